//! Who makes a request, as far as that can be said without asking anybody.
//!
//! Password hashes in CouchDB's forms, the credentials of an `authorization` header, cookies of sessions, tokens, what a
//! trusted proxy says; the rules of user documents and of security objects; who is not asked for a password any more, and
//! whose turn it is. How each form looks, and where it is CouchDB's: `design/auth.md`.
//!
//! Nothing here does I/O, waits, or knows the time or randomness: salts are passed in, and so is the clock. How many
//! passwords are checked at once is for the caller to bound.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod credentials;
mod erlang;
mod hex;
pub mod jwt;
mod known;
pub mod lockout;
mod password;
mod principal;
pub mod proxy;
mod refused;
mod roles;
pub mod security;
pub mod session;
pub mod users;

pub use credentials::{Credentials, Digest, digest};
pub use flatbed_network::{Network, fair_queue};
pub use known::Known;
pub use password::{ITERATIONS, ITERATIONS_MAX, InvalidHash, PasswordHash, Prf, SALT_BYTES};
pub use principal::{ADMIN_ROLE, Principal, SignedIn};
pub use refused::{Kind, Refused};
