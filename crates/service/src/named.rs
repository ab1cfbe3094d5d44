//! Who has an account of a name, for what somebody asked for earlier.

use flatbed_auth::{Principal, SignedIn};
use flatbed_layer::Result;

use crate::accounts::Accounts;
use crate::standing::{RestsOn, Standing};

impl Accounts {
    /// Who has the account of this name at this moment, as of less than a second ago, without that anybody shows it: it is for work
    /// that was asked for by somebody who did. `None`: nobody has.
    ///
    /// # Errors
    /// Those of the storage, which then does not say it.
    pub async fn named(&self, name: &str) -> Result<Option<Standing>> {
        Ok(self.admins().get(name).map(|hash| {
            let rests_on = RestsOn::Admin { name: name.to_owned(), salt: hash.salt().to_owned(), rev: None };
            Standing::new(Principal::admin(name, SignedIn::Not), rests_on)
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use flatbed_auth::PasswordHash;

    use super::*;

    #[tokio::test]
    async fn an_account_is_what_it_is_now() {
        let hash = PasswordHash::with_iterations("p", &[1; 16], 1);
        let accounts = Accounts::new(HashMap::from([("root".to_owned(), hash)]));
        let root = accounts.named("root").await.unwrap().unwrap();
        assert_eq!(root.principal(), &Principal::admin("root", SignedIn::Not));
        assert!(accounts.now(&root).await.unwrap().is_some());
        assert!(accounts.named("anna").await.unwrap().is_none() && accounts.named("").await.unwrap().is_none());
        accounts.set_admins(HashMap::new());
        assert!(accounts.named("root").await.unwrap().is_none());
    }
}
