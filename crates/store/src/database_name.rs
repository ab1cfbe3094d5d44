//! Names of databases: the allowed ones, and the system's own.

use crate::error::{Refusal, Result};

/// The database whose documents define replications.
pub const REPLICATOR: &str = "_replicator";

/// The ending of the names of replicator databases beside `_replicator`.
const REPLICATOR_ENDING: &str = "/_replicator";

/// The database of the changes worker: its jobs, their connections, and the documents that targets refused.
pub const WORKER: &str = "_worker";

/// The database of the users that may sign in.
pub const USERS: &str = "_users";

/// The prefix of the ids of users' documents; the user's name follows.
pub const USER_ID_PREFIX: &str = "org.couchdb.user:";

/// The system's own databases, the only names with a leading underscore. They are created, read and written as any
/// other database.
const SYSTEM: [&str; 4] = [USERS, REPLICATOR, WORKER, "_global_changes"];

/// The longest name of a database, in bytes. CouchDB's own bound is the file system's.
const DATABASE_NAME_BYTES_MAX: usize = 238;

/// The class of a database, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseKind {
    /// A database that users create, if the rest of the name is allowed.
    Ordinary,
    /// One of the system's own. Only server administrators read its metadata, create or delete it.
    System,
    /// The name begins with an underscore: no database can have it.
    Reserved,
}

impl DatabaseKind {
    /// Returns the class of a database's name.
    #[must_use]
    pub fn of(name: &str) -> DatabaseKind {
        match name {
            name if !name.starts_with('_') => DatabaseKind::Ordinary,
            name if SYSTEM.contains(&name) => DatabaseKind::System,
            _ => DatabaseKind::Reserved,
        }
    }
}

/// Returns whether a database created under this name is a replicator database; false for [`REPLICATOR`] itself. A
/// database that an earlier version created is an ordinary one: its record is authoritative
/// (`SecurityOf::is_replicator` of the layer).
#[must_use]
pub fn is_replicator_name(name: &str) -> bool {
    name.ends_with(REPLICATOR_ENDING)
}

/// Checks that CouchDB accepts the name: `^[a-z][a-z0-9_$()+/-]*$`, or one of the system's.
pub fn check_name(name: &str) -> Result<()> {
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_$()+-/".contains(&b);
    let is_allowed = match DatabaseKind::of(name) {
        DatabaseKind::System => true,
        DatabaseKind::Reserved => false,
        DatabaseKind::Ordinary => {
            let first = name.as_bytes().first().is_some_and(u8::is_ascii_lowercase);
            first && name.len() <= DATABASE_NAME_BYTES_MAX && name.bytes().all(legal)
        }
    };
    if is_allowed { Ok(()) } else { Err(Refusal::IllegalDatabaseName(name.to_owned()).into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_couchdb() {
        for name in ["a", "db", "a0_$()+-/", "_users", "_replicator", "_worker", &"a".repeat(DATABASE_NAME_BYTES_MAX)] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", "A", "0a", "_a", "a.b", "a b", "é", "a\0", &"a".repeat(DATABASE_NAME_BYTES_MAX + 1)] {
            assert!(check_name(name).is_err(), "{name}");
        }
        let kinds = ["users", "_users", "_global_changes", "_user", "_usersx"].map(DatabaseKind::of);
        let (ordinary, system, reserved) = (DatabaseKind::Ordinary, DatabaseKind::System, DatabaseKind::Reserved);
        assert_eq!(kinds, [ordinary, system, system, reserved, reserved]);
        let replicators = ["a/_replicator", "a/b/_replicator", "_replicator", "a_replicator", "a/_replicator/b", "a"];
        assert_eq!(replicators.map(is_replicator_name), [true, true, false, false, false, false]);
        assert!(check_name("a/_replicator").is_ok());
    }
}
