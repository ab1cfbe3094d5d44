//! Administrators: whether the credentials of a request are right, with few checks of passwords at once.

mod checks;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use flatbed_auth::{Credentials, InvalidCredentials, Known, PasswordHash, Passwords, Principal, digest, is_basic};
use hyper::StatusCode;

use crate::error::{Failure, Result};
use checks::{Checks, TooMany};

/// Credentials known to be right.
const CACHE_MAX: usize = 1_000;

/// Those who may do everything.
#[derive(Debug)]
pub(crate) struct Admins {
    passwords: Passwords,
    known: Mutex<Known>,
    checks: Checks,
}

impl Admins {
    pub(crate) fn new(hashes: HashMap<String, PasswordHash>) -> Self {
        Admins { passwords: Passwords::new(hashes), known: Mutex::new(Known::new(CACHE_MAX)), checks: Checks::new() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who stands behind an `authorization` header. Without administrators everyone is one.
    pub(crate) async fn authenticate(&self, authorization: Option<&str>) -> Result<Principal> {
        let Some(authorization) = authorization.filter(|authorization| is_basic(authorization)) else {
            return Ok(Principal { name: None, is_admin: self.is_empty() });
        };
        if self.is_empty() {
            return Ok(Principal { name: None, is_admin: true });
        }
        let digest = digest(authorization);
        if let Some(name) = self.known().name(&digest) {
            return Ok(Principal { name: Some(name.to_owned()), is_admin: true });
        }
        let wrong = || Failure::unauthorized("Name or password is incorrect.");
        let credentials = Credentials::parse(authorization).map_err(|InvalidCredentials| wrong())?;
        let Credentials { name, password } = credentials;
        let (hash, exists) = (self.passwords.hash_for(&name), self.passwords.contains(&name));
        let right = self.checks.ask(digest, move || hash.verify(&password) && exists).await.map_err(|TooMany| {
            let reason = "Too many passwords are being checked";
            Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason)
        })?;
        if !right {
            return Err(wrong());
        }
        self.known().insert(digest, name.clone());
        Ok(Principal { name: Some(name), is_admin: true })
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
            assert!(threads("checks") <= 2, "{} threads check passwords", threads("checks"));
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
            assert_eq!(answer.map_err(|failure| failure.status.as_u16()).err(), [None, Some(401)][at % 2], "{at}");
        }
        let statuses: Vec<u16> = different.into_iter().map(|answer| answer.unwrap_err().status.as_u16()).collect();
        assert_eq!(statuses.iter().filter(|status| **status == 401).count(), 14, "{statuses:?}");
        assert_eq!(statuses.iter().filter(|status| **status == 503).count(), 26, "{statuses:?}");
    }

    #[tokio::test]
    async fn basic_authentication() {
        let admins = Admins::new([("admin".to_owned(), PasswordHash::new("pass:word", &[1; 16]))].into());
        for _ in 0..2 {
            let found = admins.authenticate(Some(&encode("admin:pass:word"))).await.unwrap();
            assert_eq!(found, Principal { name: Some("admin".into()), is_admin: true });
        }
        for wrong in [encode("admin:pass"), encode("other:pass:word"), encode("x"), "Basic !".into()] {
            assert_eq!(admins.authenticate(Some(&wrong)).await.unwrap_err().status, 401);
        }
        for control in ["\0", "\n", "\x1f", "\x7f"] {
            for wrong in [format!("admin:pass:word{control}"), format!("admin{control}:pass:word")] {
                assert_eq!(admins.authenticate(Some(&encode(&wrong))).await.unwrap_err().status, 401, "{wrong:?}");
            }
        }
        for other in ["Bearer x", "Basic: x", "Basic", ""] {
            assert!(!admins.authenticate(Some(other)).await.unwrap().is_admin, "{other}");
        }
        assert!(!admins.authenticate(None).await.unwrap().is_admin);
        assert!(Admins::new(HashMap::new()).authenticate(None).await.unwrap().is_admin);
    }
}
