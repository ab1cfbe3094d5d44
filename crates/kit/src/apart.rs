//! What a transaction needs that is made apart from it, between two of its attempts: as it waits for a turn, for one, and a
//! transaction has 5 s.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foundationdb::FdbError;
use futures_util::future::BoxFuture;

/// What was made, and of what: a hash of all that it depends on.
pub type Digest = [u8; 32];

/// FoundationDB's error for a read version that is gone: what reads begins anew.
const TRANSACTION_TOO_OLD: i32 = 1007;

type Made = HashMap<Digest, Arc<dyn Any + Send + Sync>>;

/// Makes one of what was lacking, and keeps it for the next attempt.
pub type Lacking<E> = BoxFuture<'static, Result<(), E>>;

/// Of all attempts of one operation.
pub struct Apart<E> {
    made: Arc<Mutex<Made>>,
    lacking: Mutex<Option<Lacking<E>>>,
}

impl<E> Default for Apart<E> {
    fn default() -> Self {
        Apart { made: Arc::default(), lacking: Mutex::new(None) }
    }
}

impl<E: From<FdbError> + 'static> Apart<E> {
    /// What was made of this by an earlier attempt, or before this one.
    pub fn get<T: Clone + Send + Sync + 'static>(&self, of: &Digest) -> Option<T> {
        lock(&self.made).get(of)?.downcast_ref::<T>().cloned()
    }

    /// Keeps what was made.
    pub fn put<T: Send + Sync + 'static>(&self, of: Digest, made: T) {
        lock(&self.made).insert(of, Arc::new(made));
    }

    /// Ends the attempt with the error that this returns: what is lacking is made before the next one. Of several the first.
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

    /// What is to be made before the next attempt.
    pub fn take_lacking(&self) -> Option<Lacking<E>> {
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
        let (apart, of) = (Apart::<TestError>::default(), [1; 32]);
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
