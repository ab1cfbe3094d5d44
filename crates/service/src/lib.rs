//! The service between surfaces and the layer: the principal of a request, and access to databases by right.
//!
//! A surface has no [`Layer`](flatbed_layer::Layer). It gets a [`Context`] for each request, and asks it for a
//! database with a right. The context returns a type that can do what the right allows and no more. This crate knows
//! neither HTTP nor keys.
#![cfg_attr(not(test), forbid(unsafe_code))]
#![warn(clippy::indexing_slicing)]

mod accounts;
mod answering;
pub mod configuration;
mod context;
mod database;
mod designs;
mod feeds;
mod function_limit;
mod functions;
mod given;
mod indexes;
pub mod json_out;
mod looks;
mod named;
mod principals;
mod queries;
mod replication_secrets;
mod replications;
mod rights;
mod selecting;
mod server;
mod shown_address;
mod sign_in;
mod standing;
#[cfg(test)]
mod test_store;
mod turns;
mod uploads;
mod user_documents;
mod view_functions;
mod watching;
mod worker_documents;

pub use accounts::Accounts;
pub use answering::{AnswerError, DesignFunctions, Rewrites};
pub use configuration::{Configuration, Settings};
pub use context::{Context, Service, ServiceOptions};
pub use database::{Administration, Maintenance, Ownership, PurgeAccess, Writer};
pub use feeds::{Feed, FeedError, FeedQuery, FeedWaitOutcome, Filter, FilterFunction, FilterKind, Follow, Heartbeats};
pub use function_limit::with_functions_until;
pub use functions::{Functions, SECURITY_DEFAULT, user_context};
pub use queries::{CountResult, Query, QueryError};
pub use replications::{NamedOwner, OwnerAccount};
pub use rights::{AccessError, Administer, Maintain, Own, Purge, Read, ReadWhole, Right, Write};
pub use selecting::{FeedSelector, Projection, SelectorError, SelectorOptions};
pub use server::ServerAdministration;
pub use shown_address::shown_address;
pub use sign_in::users::{UserClaims, UserSession, UserSignIn, UserSignInError};
pub use sign_in::{CheckOptions, NewSession};
pub use standing::{Claims, IdentifiedRequest, RightsBasis, SignInError, Standing};
pub use uploads::Uploads;
pub use watching::{Basis, PartsWatch, RightsWatch};
pub use worker_documents::DocumentCheck;
