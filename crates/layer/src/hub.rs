//! One FoundationDB watch a database for all its followers in this process.
//!
//! A firing is a hint, its absence no proof. The order makes up for it: the hub publishes the value of `last_seq` that it
//! read in the transaction which set the watch; a follower notes what is published, reads by-seq, and only then waits
//! for something else to be published. A commit after the hub's read fires the watch or is seen when it is set again,
//! and a read version taken after noting a value is never older than the value.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;

use crate::error::{Error, Result};
use crate::instance::Instance;
use crate::layer::Inner;
use crate::transaction::bounded;

/// Without a firing the hub looks at `last_seq` this often: nothing else reads while a database is idle.
pub(crate) const SAFETY_REREAD: Duration = Duration::from_secs(45);

/// After an error of the storage.
const ERROR_PAUSE: Duration = Duration::from_secs(1);

type Published = Option<Vec<u8>>;

/// Where followers of an instance wait. Its task runs while there are any.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    // Taken by a follower that comes and by the task before it ends, so that none comes between its last look and its end.
    running: Mutex<Option<Arc<watch::Sender<Published>>>>,
}

impl Hub {
    /// A follower's place: it is told of every value of `last_seq` published from now on.
    pub(crate) fn subscribe(inner: &Arc<Inner>, instance: &Arc<Instance>) -> watch::Receiver<Published> {
        let mut running = instance.hub.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = &*running {
            return sender.subscribe();
        }
        let (sender, receiver) = watch::channel(None);
        let sender = Arc::new(sender);
        *running = Some(sender.clone());
        tokio::spawn(run(Arc::downgrade(inner), Arc::downgrade(instance), sender));
        receiver
    }
}

async fn run(inner: Weak<Inner>, instance: Weak<Instance>, sender: Arc<watch::Sender<Published>>) {
    loop {
        let (Some(inner), Some(instance)) = (inner.upgrade(), instance.upgrade()) else { return };
        if sender.receiver_count() == 0 {
            let mut running = instance.hub.running.lock().unwrap_or_else(PoisonError::into_inner);
            if sender.receiver_count() == 0 {
                *running = None;
                return;
            }
        }
        let mut closing = inner.closing.subscribe();
        let waited = async {
            let (value, fired) = bounded(arm(&inner, &instance.keys.last_seq())).await?;
            sender.send_if_modified(|published| {
                let news = *published != Some(value.clone());
                *published = Some(value);
                news
            });
            tokio::select! {
                fired = fired => {
                    fired?;
                    inner.metrics.watches_fired.add(1);
                }
                () = tokio::time::sleep(SAFETY_REREAD) => inner.metrics.safety_rereads.add(1),
                () = sender.closed() => {}
                _ = closing.wait_for(|closing| *closing) => {}
            }
            Ok::<(), Error>(())
        };
        if let Err(error) = waited.await {
            tracing::debug!(database = instance.name, %error, "a feed's watch is set again");
            tokio::time::sleep(ERROR_PAUSE).await;
        }
        if inner.is_closing() {
            return;
        }
    }
}

/// Waits until a database is there, on a watch, or until the server stops.
pub(crate) async fn wait_until_there(inner: &Inner, name: &str) -> Result<()> {
    let key = inner.keys.database(name);
    let mut closing = inner.closing.subscribe();
    loop {
        let (value, fired) = bounded(arm(inner, &key)).await?;
        if !value.is_empty() || inner.is_closing() {
            return Ok(());
        }
        tokio::select! {
            fired = fired => fired?,
            () = tokio::time::sleep(SAFETY_REREAD) => inner.metrics.safety_rereads.add(1),
            _ = closing.wait_for(|closing| *closing) => return Ok(()),
        }
    }
}

/// Reads a key and sets the watch on it in the same transaction. What is not there reads as empty.
pub(crate) async fn arm(
    inner: &Inner,
    key: &[u8],
) -> Result<(Vec<u8>, impl Future<Output = foundationdb::FdbResult<()>> + use<>)> {
    let mut trx = inner.db.create_trx()?;
    loop {
        inner.metrics.transactions.add(1);
        let read = trx.get(key, true).await;
        let error = match read {
            Ok(value) => {
                let value = value.as_deref().map(<[u8]>::to_vec).unwrap_or_default();
                let fired = trx.watch(key);
                match trx.commit().await {
                    Ok(_) => {
                        inner.metrics.watches_set.add(1);
                        return Ok((value, fired));
                    }
                    Err(failed) => {
                        trx = failed.on_error().await?;
                        continue;
                    }
                }
            }
            Err(error) => error,
        };
        trx = trx.on_error(error).await?;
    }
}
