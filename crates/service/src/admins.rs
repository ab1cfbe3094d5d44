//! Whether the credentials of a request are right, with few checks of passwords at once.

mod checks;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use checks::{Checks, TooMany};
use flatbed_auth::{Credentials, Known, PasswordHash, Principal, Refused, SignedIn, digest};

use crate::accounts::Accounts;
use crate::standing::{Claims, Identified, RestsOn, SignInError, Standing};

/// Credentials known to be right.
const CACHE_MAX: usize = 1_000;

/// Finds out who makes a request.
#[derive(Debug)]
pub(crate) struct SignIn {
    pub(crate) accounts: Arc<Accounts>,
    known: Mutex<Known>,
    checks: Checks,
}

impl SignIn {
    pub(crate) fn new(accounts: Arc<Accounts>) -> Self {
        SignIn { accounts, known: Mutex::new(Known::new(CACHE_MAX)), checks: Checks::new() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who makes a request. Without administrators everyone is one.
    pub(crate) async fn identify(&self, claims: &Claims<'_>) -> Result<Identified, SignInError> {
        let standing = if self.accounts.is_open() {
            Standing::of_open_server()
        } else {
            match claims.authorization {
                Some(authorization) => self.basic(authorization).await?,
                None => Standing::anonymous(),
            }
        };
        Ok(Identified { standing, set_cookie: None })
    }

    async fn basic(&self, authorization: &str) -> Result<Standing, SignInError> {
        let Some(Credentials { name, password }) = Credentials::of_header(authorization)? else {
            return Ok(Standing::anonymous());
        };
        let found = self.accounts.admins().get(&name).cloned();
        let exists = found.is_some();
        let hash = found.unwrap_or_else(PasswordHash::of_nothing);
        let digest = digest(authorization);
        let is_known = exists && self.known().is_right(&digest, &name, &hash);
        if !is_known {
            let checked = hash.clone();
            let right = self.checks.ask(digest, move || checked.verify_evenly(&password) && exists).await;
            if !right.map_err(|TooMany| SignInError::TooMany)? {
                return Err(Refused::wrong_password().into());
            }
            self.known().insert_for(digest, name.clone(), hash.clone());
        }
        let rests_on = RestsOn::Admin { name: name.clone(), salt: hash.salt().to_owned(), rev: None };
        Ok(Standing::new(Principal::admin(name, SignedIn::Password), rests_on))
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;

    use super::*;

    const WRONG: &str = "unauthorized: Name or password is incorrect.";

    /// An administrator whose password takes a while to check.
    fn slow() -> SignIn {
        with(PasswordHash::new("password", &[1; 16]))
    }

    fn with(hash: PasswordHash) -> SignIn {
        SignIn::new(Arc::new(Accounts::new([("admin".to_owned(), hash)].into())))
    }

    async fn ask(sign_in: &SignIn, authorization: Option<&str>) -> Result<Principal, String> {
        let found = sign_in.identify(&Claims { authorization, ..Claims::default() }).await;
        found.map(|found| found.standing.principal().clone()).map_err(|error| error.to_string())
    }

    fn encode(text: &str) -> String {
        format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(text))
    }

    /// Threads of this process that have a name.
    fn threads(name: &str) -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|found| found.trim() == name).count()
    }

    #[test]
    fn clients_that_hang_up_start_no_further_checks() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().thread_name("checks").build().unwrap();
        runtime.block_on(async {
            let admins = slow();
            for attempt in 0..60 {
                let wrong = encode(&format!("admin:wrong{attempt}"));
                let asked = ask(&admins, Some(&wrong));
                // It hangs up.
                let _ = tokio::time::timeout(std::time::Duration::from_millis(2), asked).await;
            }
            // Two at once; a thread that has just ended its check may be there beside those that begin the next.
            assert!(threads("checks") <= 4, "{} threads check passwords", threads("checks"));
            // They are not waited for either.
            assert!(ask(&admins, Some(&encode("admin:password"))).await.is_ok());
        });
    }

    #[tokio::test]
    async fn few_wait_and_equal_ones_share_a_check() {
        let admins = slow();
        let (right, other) = (encode("admin:password"), encode("nobody:password"));
        let wrong: Vec<String> = (0..40).map(|attempt| encode(&format!("admin:wrong{attempt}"))).collect();
        let same = (0..100).map(|at| ask(&admins, Some(if at % 2 == 0 { &right } else { &other })));
        let different = wrong.iter().map(|wrong| ask(&admins, Some(wrong)));
        let (same, different) =
            futures_util::future::join(futures_util::future::join_all(same), futures_util::future::join_all(different))
                .await;
        for (at, answer) in same.into_iter().enumerate() {
            assert_eq!(answer.err().as_deref(), [None, Some(WRONG)][at % 2], "{at}");
        }
        let refused: Vec<String> = different.into_iter().map(|answer| answer.unwrap_err()).collect();
        assert_eq!(refused.iter().filter(|why| *why == WRONG).count(), 14, "{refused:?}");
        let too_many = SignInError::TooMany.to_string();
        assert_eq!(refused.iter().filter(|why| **why == too_many).count(), 26, "{refused:?}");
    }

    #[tokio::test]
    async fn basic_authentication() {
        let admins = with(PasswordHash::with_iterations("pass:word", &[1; 16], 1_000));
        for _ in 0..2 {
            let found = ask(&admins, Some(&encode("admin:pass:word"))).await.unwrap();
            assert_eq!(found, Principal::admin("admin", SignedIn::Password));
        }
        for wrong in ["admin:pass", "other:pass:word"] {
            assert_eq!(ask(&admins, Some(&encode(wrong))).await.unwrap_err(), WRONG);
        }
        let invalid = "bad_request: Authorization header has invalid base64 value";
        assert_eq!(ask(&admins, Some("Basic !")).await.unwrap_err(), invalid);
        for control in ["\0", "\n", "\x1f", "\x7f"] {
            for wrong in [format!("admin:pass:word{control}"), format!("admin{control}:pass:word")] {
                assert_eq!(ask(&admins, Some(&encode(&wrong))).await.unwrap_err(), WRONG, "{wrong:?}");
            }
        }
        for other in ["Bearer x", "Basic: x", "Basic", "", "Basic eA=="] {
            assert!(!ask(&admins, Some(other)).await.unwrap().is_admin, "{other}");
        }
        assert!(!ask(&admins, None).await.unwrap().is_admin);
        let open = SignIn::new(Arc::new(Accounts::new([].into())));
        assert!(ask(&open, None).await.unwrap().is_admin);
    }
}
