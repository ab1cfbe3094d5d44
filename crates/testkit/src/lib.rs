//! Shared helpers of the tests of all crates. Only tests and `flatbed-scenarios` depend on it, and it depends on no crate
//! above the engine.
//!
//! # How to write a test
//!
//! A test of storage opens a [`Storage`] of its own. It then runs on the embedded engine by default and, without a
//! change, on the cluster that `FLATBED_CLUSTER_FILE` names:
//!
//! ```text
//! use flatbed_testkit::{Storage, until};
//!
//! #[tokio::test]
//! async fn a_deleted_database_is_swept() {
//!     let storage = Storage::new();
//!     let layer = open(storage.fdb.clone(), storage.root.clone()).await;
//!     layer.database("db").delete().await.unwrap();
//!     until("the rows are swept", async || layer.counted("rows_swept") > 0).await;
//! }
//! ```
//!
//! - **Waiting**: a test waits for an event with [`until`], [`until_some`] or [`soon`]. All have one limit, [`PATIENCE`], which
//!   only a hang reaches. No test calls `sleep`, and no assertion compares an elapsed time: `tidy` refuses both.
//! - **Time**: code that depends on a duration takes a clock, which the test moves. If an event must *not* happen, the test
//!   calls [`pass`]: on a slow machine such a test proves less, and never fails.
//! - **Faults**: [`Storage::with_faults`] opens an engine that injects conflicts, unknown commit results, late reads and short
//!   pages. It returns `None` on a cluster, where the test returns at once.
//! - **Random work**: [`Random`] draws numbers from [`seed`], which is fixed in `make test` and new in `make torture`. The seed
//!   is printed, and nextest shows it if the test fails.
//! - **Kills**: [`Mortal`] is a process with a runtime of its own, which a test kills. The caller provides its work.
//! - **Models**: a [`timeline::Timeline`] holds the possible values of something at each moment, between a change's begin and its
//!   acknowledgement.
//! - **Length**: a torture runs for [`length`], which `make torture` extends, and until it has shown everything ([`Torture`]).
//!
//! A test must be able to fail: break the code once and watch it fail.
//!
//! # How a test sends requests to a server
//!
//! `flatbed-scenarios` starts servers for its own tests and those of `flatbed-couch`; other crates start theirs in their
//! tests. This crate depends on none of them, or cargo would build each of them twice: once for its own tests and once
//! below this crate. Such a server has an address, and [`http::Client`] connects to it:
//!
//! ```text
//! use flatbed_scenarios::{ServerOptions, Store};
//!
//! #[tokio::test]
//! async fn a_document_comes_by_a_feed() {
//!     let server = Store::new().serve(ServerOptions::default()).await;
//!     server.ok("PUT", "/db", Value::Null).await;
//!     // As `flatbed_testkit::http::Client::to(server.address)`.
//!     let mut follower = server.connect().await;
//!     follower.send("GET", "/db/_changes?feed=continuous", &[], b"").await;
//!     assert_eq!(follower.head().await.status, 200);
//!     let answer = server.connect().await.call("PUT", "/db/a", &[], br#"{"n":1}"#).await;
//!     assert_eq!(answer.status, 201);
//!     let row = follower.feed_line(&mut String::new()).await.unwrap();
//!     assert!(row.contains(&answer.text("rev")));
//!     server.stop().await;
//! }
//! ```
//!
//! [`http::Connection`] connects to a server that a torture kills. It returns an error when the server dies:
//!
//! ```text
//! let server = Mortal::start(2, async move { store.serve(ServerOptions::default()).await }).await;
//! let mut connection = Connection::open(server.process().address).await.unwrap();
//! drop(server);
//! assert!(connection.call("GET", "/", &[], "").await.is_err());
//! ```
//!
//! The tests of the program, `crates/flatbed/tests/it`, start it as an operator does and use `flatbed-client`. The
//! tests of `firefox` sign whole `hyper` requests.

pub mod http;
mod mortal;
mod neighbour;
mod random;
mod storage;
pub mod timeline;
mod torture;
mod waiting;

pub use mortal::Mortal;
pub use neighbour::{is_quiet, metadata_version, start_neighbour};
pub use random::{Random, length, number, seed};
pub use storage::{Faults, Storage, boot, engine, pages_are_full, shift_stamps};
pub use torture::Torture;
pub use waiting::{
    PATIENCE, RequestStart, RunningTime, WaitLoop, pass, pass_blocking, soon, until, until_blocking, until_some,
    until_wanted, within,
};
