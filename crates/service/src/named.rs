//! Accounts by name, for work that a user asked for earlier.

use async_recursion::async_recursion as boxed;
use flatbed_auth::users::Account;
use flatbed_auth::{AuthMethod, PasswordHash};
use flatbed_layer::Result;

use crate::accounts::{Accounts, Freshness};
use crate::standing::Standing;

impl Accounts {
    /// Returns the standing of this account as of less than a second ago, without a proof of identity: for work that
    /// the user asked for earlier, with one. `None`: the account does not exist or cannot sign in.
    #[boxed]
    pub async fn named(&self, name: &str) -> Result<Option<Standing>> {
        self.confirm_settings(Some(name)).await?;
        let found = self.find(name, Freshness::Second).await?;
        let has_password = |account: &&Account| account.may_sign_in() && account.hash() != PasswordHash::of_nothing();
        let account = found.account.as_ref().filter(has_password);
        Ok(account.map(|account| found.standing(account, AuthMethod::Not)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flatbed_auth::Principal;
    use flatbed_clock::ManualClock;
    use flatbed_layer::CreateOptions;

    use super::*;
    use crate::accounts::tests::{hash_members, users, write_user};
    use crate::test_store::{Store, with_admin};

    #[tokio::test(flavor = "multi_thread")]
    async fn an_account_is_what_it_is_now() {
        let manual = ManualClock::new();
        let store = Store::timed(manual.clock()).await;
        let hash = PasswordHash::with_iterations("p", &[1; 16], 1);
        let accounts = Accounts::new(store.layer.clone(), with_admin("root", &hash));
        let root = accounts.named("root").await.unwrap().unwrap();
        assert_eq!(root.principal(), &Principal::admin("root", AuthMethod::Not));
        assert!(accounts.now(&root).await.unwrap().is_some());
        assert!(accounts.named("anna").await.unwrap().is_none() && accounts.named("").await.unwrap().is_none());
        users(&store.layer).create(&CreateOptions::default()).await.unwrap();
        let rest = format!(r#"{},"roles":["r"]"#, hash_members("p", "s", 1));
        let rev = write_user(&store.layer, "anna", &rest, None).await;
        write_user(&store.layer, "bob", r#""roles":["r"]"#, None).await;
        manual.advance(Duration::from_secs(1));
        let anna = accounts.named("anna").await.unwrap().unwrap();
        assert_eq!((anna.principal().roles.join(","), anna.principal().is_admin), ("r".to_owned(), false));
        assert!(accounts.named("bob").await.unwrap().is_none(), "without a password");
        write_user(&store.layer, "anna", r#""roles":["r"]"#, Some(rev)).await;
        manual.advance(Duration::from_secs(1));
        assert!(accounts.named("anna").await.unwrap().is_none(), "without a password");
    }
}
