//! One user's database.

use flatbed_layer::{CreateOptions, Database, Error, Result};
use flatbed_service::SECURITY_DEFAULT;
use flatbed_service::configuration::PerUserSettings;

use crate::Provision;
use crate::security;

/// The database of one user, which may not exist.
pub(crate) struct UserDatabase<'a> {
    database: Database,
    user: &'a str,
    settings: &'a PerUserSettings,
}

impl<'a> UserDatabase<'a> {
    pub(crate) fn of(provision: &Provision, settings: &'a PerUserSettings, user: &'a str) -> UserDatabase<'a> {
        let database = provision.database(&database_name(&settings.database_prefix, user));
        UserDatabase { database, user, settings }
    }

    /// Creates the database if it does not exist, and makes the user its administrator and member.
    ///
    /// # Errors
    /// [`Error::Refused`] for a user whose name is too long for a database's.
    pub(crate) async fn provide(&self) -> Result<()> {
        let options = CreateOptions { hinted_shards: self.settings.q, ..CreateOptions::default() };
        match self.database.create(&options).await {
            Ok(()) => tracing::info!(user = self.user, "created the database of a user"),
            Err(Error::DatabaseExists) => {}
            Err(error) => return Err(error),
        }
        self.change_security(security::with_user).await
    }

    /// Deletes the database of a user who is gone, or removes the user from it.
    pub(crate) async fn withdraw(&self) -> Result<()> {
        let done = match self.settings.deletes_databases {
            true => self.database.delete().await,
            false => self.change_security(security::without_user).await,
        };
        match done {
            Ok(()) if self.settings.deletes_databases => {
                tracing::info!(user = self.user, "deleted the database of a user");
                Ok(())
            }
            Err(Error::DatabaseNotFound) => Ok(()),
            done => done,
        }
    }

    async fn change_security(&self, change: fn(&[u8], &str) -> Option<Vec<u8>>) -> Result<()> {
        let found = self.database.security().await?;
        match change(found.as_deref().unwrap_or(SECURITY_DEFAULT), self.user) {
            Some(changed) => self.database.set_security(&changed).await,
            None => Ok(()),
        }
    }
}

/// Returns the name of a user's database. Each byte of the user's name has two digits: with fewer, the names of two users
/// would give one database.
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
