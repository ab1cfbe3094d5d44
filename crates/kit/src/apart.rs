//! Values that a transaction needs and that are made between two of its attempts. Making one may wait for a turn, and a
//! transaction lasts 5 s.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foundationdb::FdbError;
use futures_util::future::BoxFuture;

/// The key of a value: a hash of all inputs that the value depends on.
pub type Digest = [u8; 32];

/// FoundationDB's error for an expired read version. The runner retries the attempt with a new one.
const TRANSACTION_TOO_OLD: i32 = 1007;

type MadeValues = HashMap<Digest, Arc<dyn Any + Send + Sync>>;

/// A future that makes one lacking value and keeps it for the next attempt.
pub type MissingValueFuture<E> = BoxFuture<'static, Result<(), E>>;

/// The values that all attempts of one operation share.
pub struct AttemptCache<E> {
    made: Arc<Mutex<MadeValues>>,
    lacking: Mutex<Option<MissingValueFuture<E>>>,
}

impl<E> Default for AttemptCache<E> {
    fn default() -> Self {
        AttemptCache { made: Arc::default(), lacking: Mutex::new(None) }
    }
}

impl<E: From<FdbError> + 'static> AttemptCache<E> {
    /// Returns the value made from `of` by an earlier attempt or before this one.
    pub fn get<T: Clone + Send + Sync + 'static>(&self, of: &Digest) -> Option<T> {
        lock(&self.made).get(of)?.downcast_ref::<T>().cloned()
    }

    /// Keeps a value for later attempts.
    pub fn put<T: Send + Sync + 'static>(&self, of: Digest, made: T) {
        lock(&self.made).insert(of, Arc::new(made));
    }

    /// Returns the error that the attempt must end with. The runner makes the lacking value before the next attempt.
    /// Only the first lacking value of an attempt counts.
    #[must_use]
    pub fn lack<T: Send + Sync + 'static>(
        &self,
        of: Digest,
        make: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> E {
        let made = self.made.clone();
        lock(&self.lacking).get_or_insert_with(|| {
            Box::pin(async move {
                let found = make.await?;
                lock(&made).insert(of, Arc::new(found));
                Ok(())
            })
        });
        FdbError::from_code(TRANSACTION_TOO_OLD).into()
    }

    /// Takes the work to do before the next attempt.
    pub fn take_lacking(&self) -> Option<MissingValueFuture<E>> {
        lock(&self.lacking).take()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestError;

    #[tokio::test]
    async fn what_was_lacking_is_there_later() {
        let (apart, of) = (AttemptCache::<TestError>::default(), [1; 32]);
        assert_eq!(apart.get::<u32>(&of), None);
        assert!(matches!(apart.lack(of, async { Ok(7_u32) }), TestError::Storage(error) if error.code() == 1007));
        let _ = apart.lack([2; 32], async { Ok(8_u32) });
        assert_eq!(apart.get::<u32>(&of), None);
        apart.take_lacking().unwrap().await.unwrap();
        assert_eq!((apart.get::<u32>(&of), apart.get::<u32>(&[2; 32])), (Some(7), None));
        assert!(apart.take_lacking().is_none());
        apart.put([2; 32], 9_u32);
        assert_eq!(apart.get::<u32>(&[2; 32]), Some(9));
    }
}
