//! A small HTTP/1.1 client for servers that speak CouchDB's API.
//!
//! `flatbed load` and `flatbed dump`, the load generator and the black-box tests share it: one keep-alive
//! [`Connection`], a parsed [`Url`], bodies read line by line ([`Lines`]), and JSON cut into documents without parsing
//! ([`split::Splitter`]). Replications and jobs of the worker keep their connections in [`IdleConnections`]. It knows
//! nothing of Flatbed's internals.
#![warn(clippy::indexing_slicing)]

pub mod connection;
pub mod idle;
pub mod lines;
pub mod pieces;
pub mod split;
pub mod url;

pub use connection::{Answer, Connection, Connector, Error, Stream};
pub use idle::{IdleConnections, handshake};
pub use lines::Lines;
pub use pieces::{OutgoingBody, pieces};
pub use url::{Url, UrlError, encode_segment};
