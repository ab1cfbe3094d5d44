//! One user's database.

use std::sync::atomic::{AtomicBool, Ordering};

use flatbed_layer::{CreateOptions, Database, Error, Refusal, Result, SECURITY_BYTES_MAX};
use flatbed_service::SECURITY_DEFAULT;
use flatbed_service::configuration::PerUserSettings;

use crate::Provision;
use crate::security;

/// The `_security` of a new database where `[couchdb] default_security` opens these to everyone.
const SECURITY_OPEN: &[u8] = b"{}";

/// The database of one user, which may not exist.
pub(crate) struct UserDatabase<'a> {
    provision: &'a Provision,
    database: Database,
    user: &'a str,
    settings: &'a PerUserSettings,
}

impl<'a> UserDatabase<'a> {
    pub(crate) fn of(provision: &'a Provision, settings: &'a PerUserSettings, user: &'a str) -> UserDatabase<'a> {
        let database = provision.database(&database_name(&settings.database_prefix, user));
        UserDatabase { provision, database, user, settings }
    }

    /// Creates the database with its user as administrator and member, beside the names that `default_security` admits.
    /// A database that exists gets the user.
    ///
    /// # Errors
    /// [`Error::Refused`] for a user whose name is too long for a database's, and for a `_security` without room.
    pub(crate) async fn provide(&self) -> Result<()> {
        let is_open = self.provision.configuration.now().opens_databases;
        let security = security::with_user(if is_open { SECURITY_OPEN } else { SECURITY_DEFAULT }, self.user);
        let options = CreateOptions { hinted_shards: self.settings.q, security, ..CreateOptions::default() };
        match self.database.create(&options).await {
            Ok(()) => {
                self.provision.metrics.user_databases_created.add(1);
                tracing::info!(user = self.user, "created the database of a user");
                Ok(())
            }
            Err(Error::DatabaseExists) => self.change_security(security::with_user).await,
            Err(error) => Err(error),
        }
    }

    /// Deletes the database of a user who is gone, or removes the user from it.
    pub(crate) async fn withdraw(&self) -> Result<()> {
        let done = match self.settings.deletes_databases {
            true => self.database.delete().await,
            false => self.change_security(security::without_user).await,
        };
        match done {
            Ok(()) if self.settings.deletes_databases => {
                self.provision.metrics.user_databases_deleted.add(1);
                tracing::info!(user = self.user, "deleted the database of a user");
                Ok(())
            }
            Err(Error::DatabaseNotFound) => Ok(()),
            done => done,
        }
    }

    async fn change_security(&self, change: fn(&[u8], &str) -> Option<Vec<u8>>) -> Result<()> {
        let (user, too_large) = (self.user, AtomicBool::new(false));
        let is_too_large = &too_large;
        let changed = move |text: &[u8]| {
            let changed = change(if text.is_empty() { SECURITY_DEFAULT } else { text }, user);
            let fits = changed.as_ref().is_none_or(|security| security.len() <= SECURITY_BYTES_MAX);
            is_too_large.store(!fits, Ordering::Relaxed);
            changed
        };
        self.database.change_security(changed).await?;
        if too_large.load(Ordering::Relaxed) {
            let reason = format!("its _security would have more than {SECURITY_BYTES_MAX} bytes");
            return Err(Refusal::InvalidSetting(reason).into());
        }
        Ok(())
    }
}

/// Returns the name of a user's database. Each byte of the user's name has two digits: with fewer, the names of two
/// users would give one database.
fn database_name(prefix: &str, user: &str) -> String {
    let mut name = prefix.to_owned();
    for byte in user.bytes() {
        name.push_str(&format!("{byte:02x}"));
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_bytes_of_users_names() {
        assert_eq!(database_name("userdb-", "anna"), "userdb-616e6e61");
        assert_eq!(database_name("u/", "\u{e4}\n"), "u/c3a40a");
    }
}
