//! The rights that requests need.
//!
//! The rules are CouchDB's (`chttpd_auth_request`); `docs/couchdb-differences.md` lists the differences. Handlers
//! request the same right again when they open a database. The right determines the refusal's text: see
//! [`authorize`](crate::router).

use flatbed_layer::{DatabaseKind, REPLICATOR, USERS};
use hyper::Method;

use crate::path::{DatabaseName, InDatabase};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequiredRight {
    /// No right: anonymous requests are allowed.
    Nothing,
    User,
    /// A server administrator, or the right to read metrics.
    Metrics,
    /// A server administrator, or everyone if the settings make the list of databases public.
    Databases,
    ServerAdmin,
    Member,
    /// A member with unrestricted access: in a database with channels an administrator of the database.
    Whole,
    /// An administrator of the database, to configure it.
    Admin,
    /// An administrator of the database, for maintenance. Members get a different refusal.
    Maintainer,
    /// An administrator of the database. Members get 404.
    Hidden,
    /// An administrator of `_users`, to read its views. The refusal has its own message and is 403 for anonymous
    /// clients, too.
    UserViews,
}

/// The right that a route in a database needs, by the kind of database.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DatabaseRights {
    ordinary: RequiredRight,
    users: RequiredRight,
    replicators: RequiredRight,
}

/// Returns the rights of a route that needs `right` in ordinary databases. In `_users` and in replicator databases it
/// then needs an administrator, unless a method below says otherwise.
pub(super) const fn needs(right: RequiredRight) -> DatabaseRights {
    let of_system = match right {
        RequiredRight::Member | RequiredRight::Whole => RequiredRight::Admin,
        stricter => stricter,
    };
    DatabaseRights { ordinary: right, users: of_system, replicators: of_system }
}

impl DatabaseRights {
    /// Needs the same right in `_users` and in replicator databases. The route reads through
    /// [`flatbed_layer::DocumentFilter`], or its answer contains nothing of documents.
    pub(super) const fn everywhere(self) -> DatabaseRights {
        self.in_system(self.ordinary)
    }

    /// Needs `right` in `_users` and in replicator databases.
    pub(super) const fn in_system(self, right: RequiredRight) -> DatabaseRights {
        DatabaseRights { users: right, replicators: right, ..self }
    }

    /// Needs `right` in `_users`.
    pub(super) const fn in_users(self, right: RequiredRight) -> DatabaseRights {
        DatabaseRights { users: right, ..self }
    }
}

/// Returns the right that a request in a database needs.
pub(super) fn in_database(
    name: &DatabaseName,
    what: &InDatabase,
    method: &Method,
    is_replicator: bool,
) -> RequiredRight {
    match (name.kind, name.text.as_str()) {
        (DatabaseKind::System, USERS) => what.needs(method).users,
        (DatabaseKind::System, REPLICATOR) => what.needs(method).replicators,
        (DatabaseKind::Ordinary, _) if is_replicator => what.needs(method).replicators,
        (DatabaseKind::Ordinary, _) => what.needs(method).ordinary,
        (DatabaseKind::System | DatabaseKind::Reserved, _) => RequiredRight::ServerAdmin,
    }
}
