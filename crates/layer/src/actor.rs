//! On whose behalf something is written.
//!
//! Nothing is written without an [`Actor`]: a [`Database`](crate::Database) is had from a layer with one, and what is had
//! without, a [`Reader`](crate::Reader), cannot write. What a user writes is judged by the database's functions; what the
//! server itself writes is not. So the server's right is a capability: whoever opens the layer gets the one
//! [`Authority`], and hands [`ServerActor`]s to jobs by their names. Neither can be made otherwise.
//!
//! Nothing is written without an actor:
//!
//! ```compile_fail,E0061
//! fn handler(layer: &flatbed_layer::Layer) -> flatbed_layer::Database {
//!     layer.database("db")
//! }
//! ```
//!
//! What reads cannot write:
//!
//! ```compile_fail,E0599
//! async fn handler(layer: &flatbed_layer::Layer, edit: &flatbed_layer::Edit<'_>) {
//!     let _ = layer.reader("db").update(edit).await;
//! }
//! ```
//!
//! A surface makes no actor of the server:
//!
//! ```compile_fail,E0451
//! fn handler(layer: &flatbed_layer::Layer) -> flatbed_layer::Database {
//!     layer.database("db", flatbed_layer::ServerActor { job: "handler" })
//! }
//! ```
//!
//! nor the authority that makes them, nor a second one of it:
//!
//! ```compile_fail,E0451
//! fn handler() -> flatbed_layer::Authority {
//!     flatbed_layer::Authority { made: () }
//! }
//! ```
//!
//! ```compile_fail,E0599
//! fn surface(authority: flatbed_layer::Authority) -> flatbed_layer::Authority {
//!     authority.clone()
//! }
//! ```
//!
//! A user writes as itself, and a job as the server with what it was handed:
//!
//! ```
//! use flatbed_layer::{Authority, Database, Layer, User};
//!
//! fn handler(layer: &Layer, user: User) -> Database {
//!     layer.database("db", user)
//! }
//!
//! fn together(layer: &Layer, authority: &Authority) -> Database {
//!     layer.database("db", authority.for_job("replicator"))
//! }
//! ```

use std::sync::Arc;

/// On whose behalf something is written. Cheap to clone.
#[derive(Debug, Clone)]
pub enum Actor {
    /// Somebody who asked for it: judged by what the database judges with.
    User(Arc<User>),
    /// The server of its own accord: not judged.
    Server(ServerActor),
}

/// A user, as whoever authenticated it says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct User {
    /// `None`: nobody has logged in.
    pub name: Option<String>,
    /// Such as `_admin`.
    pub roles: Vec<String>,
}

/// The right to write as the server itself, of one job. Made by [`Authority::for_job`] alone.
#[derive(Debug, Clone)]
pub struct ServerActor {
    job: &'static str,
}

impl ServerActor {
    /// The job that it was made for.
    pub fn job(&self) -> &'static str {
        self.job
    }
}

/// Makes [`ServerActor`]s. [`Layer::open`](crate::Layer::open) gives the only one to whoever puts the program together,
/// who keeps it.
#[derive(Debug)]
pub struct Authority {
    made: (),
}

impl Authority {
    pub(crate) fn new() -> Authority {
        Authority { made: () }
    }

    /// The right to write as the server, for a job.
    pub fn for_job(&self, job: &'static str) -> ServerActor {
        let () = self.made;
        ServerActor { job }
    }
}

impl From<User> for Actor {
    fn from(user: User) -> Actor {
        Actor::User(Arc::new(user))
    }
}

impl From<ServerActor> for Actor {
    fn from(actor: ServerActor) -> Actor {
        Actor::Server(actor)
    }
}
