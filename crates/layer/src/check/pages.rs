//! Sizes of the checker's pages, which become smaller while transactions become too old.

use std::sync::atomic::{AtomicUsize, Ordering};

use flatbed_databases::server::Inner;
use flatbed_store::error::{Error, Result};
use flatbed_store::transaction::{self, Operation};

/// FoundationDB's error for a transaction of more than five seconds (`transaction_too_old`).
const TRANSACTION_TOO_OLD: i32 = 1007;

/// A retry has this part of the keys of the attempt before it: five retries go from 1,000 keys to one.
const RETRY_PART: usize = 4;

/// The number of keys in a page of a walk. A failed attempt makes the next one smaller, and each page that is read
/// doubles the next one, up to a maximum.
#[derive(Debug)]
pub(super) struct PageSize {
    most: usize,
    of_last: AtomicUsize,
    of_next: AtomicUsize,
}

impl PageSize {
    pub(super) fn new(most: usize) -> PageSize {
        PageSize { most, of_last: AtomicUsize::new(most), of_next: AtomicUsize::new(most) }
    }

    /// Returns the number of keys of an attempt that begins now. At least 1.
    pub(super) fn attempt(&self) -> usize {
        let keys = self.of_next.load(Ordering::Relaxed);
        self.of_last.store(keys, Ordering::Relaxed);
        self.of_next.store((keys / RETRY_PART).max(1), Ordering::Relaxed);
        keys
    }

    fn record_read(&self) {
        let next = self.of_last.load(Ordering::Relaxed).saturating_mul(2).min(self.most);
        self.of_next.store(next, Ordering::Relaxed);
    }

    fn is_least(&self) -> bool {
        self.of_last.load(Ordering::Relaxed) <= 1
    }
}

/// Reads a page of a size, whose every attempt calls [`PageSize::attempt`]. If all retries became too old, reads a
/// smaller page in a new transaction, down to one key.
pub(super) async fn read_page<O: Operation>(inner: &Inner, size: &PageSize, page: &mut O) -> Result<O::Output> {
    loop {
        match transaction::read(&inner.db, &inner.metrics, page).await {
            Ok(read) => {
                size.record_read();
                return Ok(read);
            }
            Err(Error::Storage(error)) if error.code() == TRANSACTION_TOO_OLD && !size.is_least() => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use flatbed_flatten::json::Value;
    use foundationdb::FdbError;

    use super::*;
    use crate::Edit;
    use crate::check::read_keys;
    use crate::tests::fenced::database;
    use flatbed_store::keys::Subspace;

    #[test]
    fn retries_are_smaller_and_later_pages_grow_again() {
        let size = PageSize::new(1_000);
        let retried: Vec<_> = (0..7).map(|_| size.attempt()).collect();
        assert_eq!(retried, [1_000, 250, 62, 15, 3, 1, 1]);
        let later: Vec<_> = (0..11)
            .map(|_| {
                size.record_read();
                size.attempt()
            })
            .collect();
        assert_eq!(later, [2, 4, 8, 16, 32, 64, 128, 256, 512, 1_000, 1_000]);
    }

    /// Each transaction becomes too old behind its third key.
    #[tokio::test(flavor = "multi_thread")]
    async fn keys_are_read_although_whole_pages_become_too_old() {
        let (db, _storage) = database().await;
        for n in 0..20 {
            let (id, body) = (format!("d{n:02}").into(), Value::Object(Vec::new()));
            let edit =
                Edit { expiry: None, id, parent: None, history: None, deleted: false, attachments: Vec::new(), body };
            db.update(&edit).await.unwrap();
        }
        let instance = db.inner.cached("db").expect("an instance");
        let keys = instance.keys.subspace(Subspace::Documents);
        let all = read_keys(&db.inner, &instance, keys.clone(), |key, _| Ok(key.to_vec())).await.unwrap();
        assert!(all.len() >= 20, "{}", all.len());
        let read = Mutex::new(0);
        let found = read_keys(&db.inner, &instance, keys, |key, _| {
            let mut read = read.lock().unwrap();
            *read = (*read + 1) % 4;
            if *read == 0 { Err(Error::Storage(FdbError::from_code(TRANSACTION_TOO_OLD))) } else { Ok(key.to_vec()) }
        });
        assert_eq!(found.await.unwrap(), all);
    }
}
