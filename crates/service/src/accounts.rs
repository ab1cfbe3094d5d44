//! Who has an account, as of less than a second ago.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use flatbed_auth::{PasswordHash, Principal};
use flatbed_layer::Result;
use tokio::sync::watch;

use crate::standing::{RestsOn, Standing};

/// Who has an account.
#[derive(Debug)]
pub struct Accounts {
    admins: RwLock<Arc<HashMap<String, PasswordHash>>>,
    /// Moves whenever an account was found changed.
    generation: watch::Sender<u64>,
}

impl Accounts {
    pub(crate) fn new(admins: HashMap<String, PasswordHash>) -> Accounts {
        Accounts { admins: RwLock::new(Arc::new(admins)), generation: watch::Sender::new(0) }
    }

    /// The administrators of the configuration, with their passwords' hashes.
    pub(crate) fn admins(&self) -> Arc<HashMap<String, PasswordHash>> {
        self.admins.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether everyone is an administrator: there are none by name.
    pub fn is_open(&self) -> bool {
        self.admins().is_empty()
    }

    /// Other administrators than before. What rests on those who are gone ends with the next look at it.
    pub fn set_admins(&self, admins: HashMap<String, PasswordHash>) {
        let mut now = self.admins.write().unwrap_or_else(PoisonError::into_inner);
        if **now != admins {
            *now = Arc::new(admins);
            drop(now);
            self.generation.send_modify(|generation| *generation += 1);
        }
    }

    /// Who somebody is, as of less than a second ago. `None`: not any more. A session's own time does not end this, a
    /// changed password does.
    ///
    /// # Errors
    /// Those of the storage, which then does not say it.
    pub async fn now(&self, standing: &Standing) -> Result<Option<Principal>> {
        let is_so = match standing.rests_on() {
            RestsOn::Nothing | RestsOn::Server => true,
            RestsOn::OpenServer => self.is_open(),
            RestsOn::Admin { name, salt, .. } => self.admins().get(name).is_some_and(|hash| hash.salt() == salt),
            RestsOn::Document { .. } | RestsOn::Token { .. } | RestsOn::Proxy => false,
        };
        Ok(is_so.then(|| standing.principal().clone()))
    }

    /// A number that moves whenever an account was found changed: whoever goes on for long judges anew then.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flatbed_auth::SignedIn;

    #[tokio::test]
    async fn administrators_come_and_go() {
        let hash = |byte| PasswordHash::with_iterations("p", &[byte; 16], 1);
        let with = |byte| HashMap::from([("root".to_owned(), hash(byte))]);
        let accounts = Accounts::new(HashMap::new());
        let mut changes = accounts.changes();
        let (open, root) = (Standing::of_open_server(), |byte| {
            let rests_on = RestsOn::Admin { name: "root".into(), salt: hash(byte).salt().to_owned(), rev: None };
            Standing::new(Principal::admin("root", SignedIn::Password), rests_on)
        });
        let (first, second) = (root(1), root(2));
        let mut seen = Vec::new();
        for admins in [HashMap::new(), with(1), with(1), with(2), HashMap::new()] {
            accounts.set_admins(admins);
            let moved = changes.has_changed().unwrap();
            changes.mark_unchanged();
            let mut found = vec![moved];
            for standing in [&open, &first, &second] {
                found.push(accounts.now(standing).await.unwrap().is_some());
            }
            seen.push(found);
        }
        let expected = [
            [false, true, false, false],
            [true, false, true, false],
            [false, false, true, false],
            [true, false, false, true],
            [true, true, false, false],
        ];
        assert_eq!(seen, expected);
        assert!(accounts.now(&Standing::anonymous()).await.unwrap().is_some());
    }
}
