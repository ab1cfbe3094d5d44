//! Authentication without I/O.
//!
//! Password hashes in CouchDB's forms, `authorization` headers, session cookies, tokens, and assertions of trusted
//! proxies; the rules of user documents and of security objects; caches of right credentials, and lock-out.
//! `design/auth.md` describes each form and where it differs from CouchDB's.
//!
//! The crate knows neither time nor randomness: callers pass salts and the clock. They also bound how many passwords
//! are checked in parallel.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod credentials;
mod erlang;
mod error;
mod hex;
pub mod jwt;
mod known;
pub mod lockout;
mod password;
mod principal;
pub mod proxy;
mod roles;
pub mod security;
pub mod session;
pub mod users;

pub use credentials::{Credentials, Digest, digest};
pub use error::{AuthError, AuthErrorKind};
pub use flatbed_network::Network;
pub use known::CredentialCache;
pub use password::{ITERATIONS, ITERATIONS_MAX, InvalidHash, PasswordHash, Prf, SALT_BYTES};
pub use principal::{ADMIN_ROLE, AuthMethod, Principal};
