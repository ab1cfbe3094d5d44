//! Administrators: whether the credentials of a request are right, with few checks of passwords at once.

mod checks;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use checks::{Checks, TooMany};
use flatbed_auth::{
    Credentials, InvalidCredentials, Known, PasswordHash, Passwords, Principal, SignedIn, digest, is_basic,
};

/// Credentials known to be right.
const CACHE_MAX: usize = 1_000;

/// Why nobody is known to stand behind credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignInError {
    /// There is no such name, or it has another password.
    #[error("Name or password is incorrect.")]
    Wrong,
    /// There is no room for another check: later, perhaps.
    #[error("Too many passwords are being checked")]
    TooMany,
}

impl From<InvalidCredentials> for SignInError {
    fn from(_: InvalidCredentials) -> SignInError {
        SignInError::Wrong
    }
}

/// Those who may do everything.
#[derive(Debug)]
pub struct Admins {
    passwords: Passwords,
    known: Mutex<Known>,
    checks: Checks,
}

impl Admins {
    /// By their names, with their passwords' hashes; none: everyone is an administrator.
    pub fn new(hashes: HashMap<String, PasswordHash>) -> Self {
        Admins { passwords: Passwords::new(hashes), known: Mutex::new(Known::new(CACHE_MAX)), checks: Checks::new() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who stands behind an `authorization` header. Without administrators everyone is one.
    pub(crate) async fn authenticate(&self, authorization: Option<&str>) -> Result<Principal, SignInError> {
        let Some(authorization) = authorization.filter(|authorization| is_basic(authorization)) else {
            return Ok(if self.is_empty() { Principal::nameless_admin() } else { Principal::anonymous() });
        };
        if self.is_empty() {
            return Ok(Principal::nameless_admin());
        }
        let digest = digest(authorization);
        if let Some(name) = self.known().name(&digest) {
            return Ok(Principal::admin(name, SignedIn::Password));
        }
        let Credentials { name, password } = Credentials::parse(authorization)?;
        let (hash, exists) = (self.passwords.hash_for(&name), self.passwords.contains(&name));
        let right = self.checks.ask(digest, move || hash.verify(&password) && exists).await;
        if !right.map_err(|TooMany| SignInError::TooMany)? {
            return Err(SignInError::Wrong);
        }
        self.known().insert(digest, name.clone());
        Ok(Principal::admin(name, SignedIn::Password))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.passwords.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;

    use super::*;

    /// An administrator whose password takes a while to check.
    fn slow() -> Admins {
        Admins::new([("admin".to_owned(), PasswordHash::new("password", &[1; 16]))].into())
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
                let asked = admins.authenticate(Some(&wrong));
                // It hangs up.
                let _ = tokio::time::timeout(std::time::Duration::from_millis(2), asked).await;
            }
            // Two at once; a thread that has just ended its check may be there beside those that begin the next.
            assert!(threads("checks") <= 4, "{} threads check passwords", threads("checks"));
            // They are not waited for either.
            assert!(admins.authenticate(Some(&encode("admin:password"))).await.is_ok());
        });
    }

    #[tokio::test]
    async fn few_wait_and_equal_ones_share_a_check() {
        let admins = slow();
        let (right, other) = (encode("admin:password"), encode("nobody:password"));
        let wrong: Vec<String> = (0..40).map(|attempt| encode(&format!("admin:wrong{attempt}"))).collect();
        let same = (0..100).map(|at| admins.authenticate(Some(if at % 2 == 0 { &right } else { &other })));
        let different = wrong.iter().map(|wrong| admins.authenticate(Some(wrong)));
        let (same, different) =
            futures_util::future::join(futures_util::future::join_all(same), futures_util::future::join_all(different))
                .await;
        for (at, answer) in same.into_iter().enumerate() {
            assert_eq!(answer.err(), [None, Some(SignInError::Wrong)][at % 2], "{at}");
        }
        let refused: Vec<SignInError> = different.into_iter().map(|answer| answer.unwrap_err()).collect();
        assert_eq!(refused.iter().filter(|why| **why == SignInError::Wrong).count(), 14, "{refused:?}");
        assert_eq!(refused.iter().filter(|why| **why == SignInError::TooMany).count(), 26, "{refused:?}");
    }

    #[tokio::test]
    async fn basic_authentication() {
        let admins =
            Admins::new([("admin".to_owned(), PasswordHash::with_iterations("pass:word", &[1; 16], 1_000))].into());
        for _ in 0..2 {
            let found = admins.authenticate(Some(&encode("admin:pass:word"))).await.unwrap();
            assert_eq!(found, Principal::admin("admin", SignedIn::Password));
        }
        for wrong in [encode("admin:pass"), encode("other:pass:word"), encode("x"), "Basic !".into()] {
            assert_eq!(admins.authenticate(Some(&wrong)).await.unwrap_err(), SignInError::Wrong);
        }
        for control in ["\0", "\n", "\x1f", "\x7f"] {
            for wrong in [format!("admin:pass:word{control}"), format!("admin{control}:pass:word")] {
                assert_eq!(
                    admins.authenticate(Some(&encode(&wrong))).await.unwrap_err(),
                    SignInError::Wrong,
                    "{wrong:?}"
                );
            }
        }
        for other in ["Bearer x", "Basic: x", "Basic", ""] {
            assert!(!admins.authenticate(Some(other)).await.unwrap().is_admin, "{other}");
        }
        assert!(!admins.authenticate(None).await.unwrap().is_admin);
        assert!(Admins::new(HashMap::new()).authenticate(None).await.unwrap().is_admin);
    }
}
