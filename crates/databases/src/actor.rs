//! Actors: the user or the server on whose behalf a transaction writes.
//!
//! Every write needs an [`Actor`]: a layer returns a `Database` only for one, and a `Reader`, which needs none, cannot
//! write. The database's functions judge writes of users but not of the server. So the right to write as the server is
//! a capability: `Layer::open` returns the only [`Authority`], and its owner makes a [`ServerActor`] for each job by
//! name. Only `Layer::open` may call [`authority`]; code above the layer cannot reach this crate.
//!
//! Examples in the module `handle` of the crate `layer`, which do not compile, show the bounds of code above the layer.

use std::fmt::Debug;
use std::sync::Arc;

use flatbed_revtree::RevId;
use flatbed_store::error::Refusal;

use crate::confirmed::{DatabaseSecurity, SettingsState};

/// The actor of a write. Cheap to clone.
#[derive(Debug, Clone)]
pub enum Actor {
    /// A user, judged by the rules of the database. Made by [`User::through`].
    User(Arc<GatedUser>),
    /// The server itself, which is not judged.
    Server(ServerActor),
}

/// An authenticated or anonymous user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct User {
    /// The name; `None` if anonymous.
    pub name: Option<String>,
    /// Such as `_admin`.
    pub roles: Vec<String>,
    /// The user document that proves the name and roles.
    pub fence: Option<UserFence>,
    /// The stored setting that proves them instead.
    pub setting: Option<Arc<SettingFence>>,
    /// A number of the client, a user or a network, by which clients take turns in judging. `None`: unknown.
    pub client: Option<u64>,
}

/// The user document that was judged: a write for the user fails if the document has changed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UserFence {
    /// The name of the user.
    pub name: String,
    /// The winning revision of the user's document in `_users`; `None`: there was no such document.
    pub rev: Option<RevId>,
}

/// The stored setting that was judged: a write for the user fails if the setting has changed. Debug output omits its
/// text, which may be secret.
#[derive(Clone)]
pub struct SettingFence {
    /// The state of the settings that were read: while it is current, no read is needed.
    pub state: Option<SettingsState>,
    pub section: &'static str,
    /// Its key and text; `None` if the section was empty.
    pub found: Option<(String, String)>,
}

impl SettingFence {
    /// Creates the fence of a setting, or of an empty section. `state`: the state of the settings before the setting
    /// was read; without it each write reads the setting.
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

/// Judges by a database's `_security` whether a user may write. Each attempt of each transaction of the user asks the
/// gate about the `_security` that is current at the commit.
pub trait Gate: Send + Sync + Debug {
    /// Must not wait, and must return the same for the same `_security`.
    ///
    /// # Errors
    /// [`Refusal::Unauthorized`], [`Refusal::Forbidden`] if the user may not write, or not any more.
    fn judge(&self, security: &DatabaseSecurity) -> Result<(), Refusal>;
}

/// A user with the gate of their request.
#[derive(Debug)]
pub struct GatedUser {
    user: User,
    gate: Arc<dyn Gate>,
}

impl User {
    /// Makes an actor that writes through a gate.
    pub fn through(self, gate: Arc<dyn Gate>) -> Actor {
        Actor::User(Arc::new(GatedUser { user: self, gate }))
    }
}

impl GatedUser {
    /// Returns the user.
    pub fn user(&self) -> &User {
        &self.user
    }

    pub fn gate(&self) -> &dyn Gate {
        &*self.gate
    }
}

impl Actor {
    /// Returns whether the actor is a user without a name who is not an administrator.
    pub fn is_anonymous(&self) -> bool {
        !self.is_administrator() && self.user().is_some_and(|user| user.name.is_none())
    }

    pub fn is_administrator(&self) -> bool {
        self.user().is_none_or(|user| user.roles.iter().any(|role| role == "_admin"))
    }

    /// Returns the user; `None` for the server.
    pub fn user(&self) -> Option<&User> {
        match self {
            Actor::User(entrant) => Some(entrant.user()),
            Actor::Server(_) => None,
        }
    }
}

/// The right of one job to write as the server. Made only by [`Authority::for_job`].
#[derive(Debug, Clone)]
pub struct ServerActor {
    job: &'static str,
}

impl ServerActor {
    /// Returns the name of the job.
    pub fn job(&self) -> &'static str {
        self.job
    }
}

/// Makes [`ServerActor`]s. `Layer::open` returns the only one.
#[derive(Debug)]
pub struct Authority {
    made: (),
}

/// Makes the authority. For `Layer::open` alone, since no surface reaches this crate.
pub fn authority() -> Authority {
    Authority { made: () }
}

impl Authority {
    /// Returns the right to write as the server, for a job.
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
