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
//! Whoever a surface takes for a user, the database's `_security` has a say in it, in the transaction that writes: there is no
//! user without a [`Gate`],
//!
//! ```compile_fail,E0277
//! fn handler(layer: &flatbed_layer::Layer, user: flatbed_layer::User) -> flatbed_layer::Database {
//!     layer.database("db", user)
//! }
//! ```
//!
//! A user writes as itself through one, and a job as the server with what it was handed:
//!
//! ```
//! use std::sync::Arc;
//!
//! use flatbed_layer::{Authority, Database, Gate, Layer, User};
//!
//! fn handler(layer: &Layer, user: User, gate: Arc<dyn Gate>) -> Database {
//!     layer.database("db", user.through(gate))
//! }
//!
//! fn together(layer: &Layer, authority: &Authority) -> Database {
//!     layer.database("db", authority.for_job("replicator"))
//! }
//! ```

use std::fmt::Debug;
use std::sync::Arc;

use flatbed_revtree::RevId;

use crate::confirmed::{SecurityOf, SettingsState};
use crate::error::Refusal;

/// On whose behalf something is written. Cheap to clone.
#[derive(Debug, Clone)]
pub enum Actor {
    /// Somebody who asked for it: judged by what the database judges with. Made by [`User::through`].
    User(Arc<Entrant>),
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
    /// What it was known by that the user is this one, and has these roles.
    pub fence: Option<UserFence>,
    /// The same, where it was a stored setting.
    pub setting: Option<Arc<SettingFence>>,
    /// A number of the client that asks, by which clients take turns where writes are judged. `None`: it is not known.
    pub client: Option<u64>,
}

/// The user's document that was judged: what is written on the user's behalf is written only if it is still the one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UserFence {
    /// The user's name.
    pub name: String,
    /// The winning revision of the user's document in `_users`; `None`: there was no such document.
    pub rev: Option<RevId>,
}

/// The stored setting that was judged: what is written on the user's behalf is written only if it is as it was then. Debug output
/// is without its text, which may be secret.
#[derive(Clone)]
pub struct SettingFence {
    /// The settings' state that it is of: where these have not changed since, nothing is read.
    pub(crate) state: Option<SettingsState>,
    pub(crate) section: &'static str,
    /// Its key and its text; `None`: the section was empty.
    pub(crate) found: Option<(String, String)>,
}

impl SettingFence {
    /// Of a setting, or of a section that was found empty. `state`: what the settings were known to be as of before that was found; without
    /// one it is always read.
    pub fn new(state: Option<SettingsState>, section: &'static str, found: Option<(&str, &str)>) -> SettingFence {
        let found = found.map(|(key, text)| (key.to_owned(), text.to_owned()));
        SettingFence { state, section, found }
    }
}

impl PartialEq for SettingFence {
    fn eq(&self, other: &SettingFence) -> bool {
        (self.section, &self.found) == (other.section, &other.found)
    }
}

impl Eq for SettingFence {}

impl Debug for SettingFence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let key = self.found.as_ref().map(|(key, _)| key);
        f.debug_struct("SettingFence").field("section", &self.section).field("key", &key).finish_non_exhaustive()
    }
}

/// Whether somebody may write to a database, by its `_security`: asked in each attempt of each transaction that writes on their
/// behalf, about the `_security` that holds as it is committed.
pub trait Gate: Send + Sync + Debug {
    /// Does not wait, and says the same of the same `_security` each time.
    ///
    /// # Errors
    /// [`Refusal::Unauthorized`], [`Refusal::Forbidden`]: they may not, or not any longer.
    fn judge(&self, security: &SecurityOf) -> Result<(), Refusal>;
}

/// A user, with the gate of what they asked for.
#[derive(Debug)]
pub struct Entrant {
    user: User,
    gate: Arc<dyn Gate>,
}

impl User {
    /// Writes through a gate.
    pub fn through(self, gate: Arc<dyn Gate>) -> Actor {
        Actor::User(Arc::new(Entrant { user: self, gate }))
    }
}

impl Entrant {
    /// Who it is.
    pub fn user(&self) -> &User {
        &self.user
    }

    pub(crate) fn gate(&self) -> &dyn Gate {
        &*self.gate
    }
}

impl Actor {
    /// Whether the actor is a user without a name who is not an administrator.
    pub(crate) fn is_anonymous(&self) -> bool {
        !self.is_administrator() && self.user().is_some_and(|user| user.name.is_none())
    }

    /// Whether the actor is the server or an administrator of it.
    pub(crate) fn is_administrator(&self) -> bool {
        self.user().is_none_or(|user| user.roles.iter().any(|role| role == "_admin"))
    }

    /// The user; `None` is the server.
    pub fn user(&self) -> Option<&User> {
        match self {
            Actor::User(entrant) => Some(entrant.user()),
            Actor::Server(_) => None,
        }
    }
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

impl From<ServerActor> for Actor {
    fn from(actor: ServerActor) -> Actor {
        Actor::Server(actor)
    }
}
