//! Firefox Sync: SyncStorage 1.5 over HTTP, and the token server, which assigns each account a storage.
//!
//! It is a surface of the shell `flatbed-http`: paths, signatures, bodies and errors are those of Mozilla's own server.
//! The storage is `flatbed-syncstorage`. `design/syncstorage.md` lists deliberate differences.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod accept;
mod condition;
mod cors;
mod error;
pub mod hawk;
mod info;
mod key_id;
mod limits;
mod metrics;
mod object;
mod path;
mod place;
mod query;
mod records;
mod reply;
mod route;
mod secret;
mod signed;
mod state;
mod surface;
mod tokens;

pub use key_id::{KeyId, fxa_kid};
pub use place::{InvalidUrl, PublicUrl};
pub use route::Route;
pub use secret::{NewToken, Secret, TOKEN_ID_BYTES_MAX, Token, hashed_ids};
pub use state::{Firefox, FirefoxOptions};
pub use tokens::{Fetch, JwksOptions, TokenOptions};
