//! Large bodies: staged as blobs in transactions of bounded size, before the document that refers to them.
//!
//! A blob is immutable and written once. Until a committed document refers to it, a STAGED record names it. The
//! transaction that commits the document clears that record and reads it with conflict, so a sweep and a commit exclude
//! each other.

use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_store::due::{self, DueKind};
use flatbed_store::error::{Error, Refusal, Result};
use flatbed_store::keys::Keys;
use flatbed_store::once::random_id;
use flatbed_store::proto;
use flatbed_store::records::BodyPlace;
use flatbed_store::transaction::{self, Attempt, Operation, Quiet, Transaction};
use prost::Message;
use tokio::time::Instant;

use crate::actor::Actor;
use crate::document::body::{PreparedBody, row_bytes};
use crate::document::release;
use crate::handles::WriteHandle;
use crate::instance::Instance;
use crate::limits::Limit;
use crate::server::Inner;

/// Bytes of rows in one staging transaction.
const STAGE_BYTES_MAX: u64 = 500_000;

/// Blobs that one transaction renews.
const RENEWED_AT_ONCE: usize = 200;

/// Blobs that a sweep lists in one transaction.
pub const LISTED_AT_ONCE: Limit<usize> = Limit::new(1_000, 5);

/// Stages a body, and replaces it by a reference. Returns false if the database was replaced.
pub async fn stage(database: &WriteHandle, instance: &Instance, body: &mut PreparedBody) -> Result<bool> {
    let (inner, actor) = (&*database.inner, database.actor());
    let blob_id = random_id()?.to_vec();
    let created_at_ms = inner.clock.unix_ms();
    let prefix_bytes = instance.keys.blob(&blob_id).len();
    let mut rest = body.rows.as_slice();
    let mut is_first = true;
    while !rest.is_empty() {
        let mut bytes = 0;
        let count = rest
            .iter()
            .take_while(|(path, value)| {
                bytes += row_bytes(prefix_bytes, path, value);
                bytes <= STAGE_BYTES_MAX
            })
            .count()
            .max(1);
        let (now, later) = rest.split_at(count);
        let mut write =
            Stage { inner, instance, actor, blob_id: &blob_id, created_at_ms, rows: now, is_first, touches: false };
        if !transaction::write(&inner.db, &inner.metrics, &mut write).await? {
            return Ok(false);
        }
        is_first = false;
        rest = later;
    }
    inner.metrics.blobs_staged.add(1);
    body.rows = Vec::new();
    body.place = BodyPlace::Blob(blob_id);
    Ok(true)
}

/// Schedules a sweep of abandoned blobs, in a transaction that writes first rows of blobs.
pub fn note(trx: &Transaction, inner: &Inner, instance: &Instance) -> Result<()> {
    let at_ms = due::after_ms(trx.clock(), inner.options.uploads_broken_after.as_millis() as u64);
    due::mark(trx, &inner.keys, DueKind::Uploads, &instance.name, at_ms)
}

/// Marks a blob as staged, in the transaction that writes its first rows, beside [`note`].
pub fn begin(trx: &Transaction, keys: &Keys, blob_id: &[u8], created_at_ms: u64) {
    trx.set(&keys.staged(blob_id), &proto::Staged { created_at_ms }.encode_to_vec());
}

/// Returns whether the blob is still staged, in the transaction that will refer to it; otherwise it was swept.
pub async fn is_staged(trx: &Transaction, keys: &Keys, blob_id: &[u8]) -> Result<bool> {
    Ok(trx.get(&keys.staged(blob_id), false).await?.is_some())
}

/// Removes the blob from STAGED, after [`is_staged`] in the transaction that refers to it.
pub fn take(trx: &Transaction, keys: &Keys, blob_id: &[u8]) {
    trx.clear(&keys.staged(blob_id));
}

/// Removes a blob of an edit that was refused.
pub async fn discard(inner: &Inner, instance: &Instance, blob_id: &[u8]) {
    let mut sweep = Sweep { inner, instance, blob_id, older_than_ms: u64::MAX };
    if let Err(error) = transaction::write(&inner.db, &inner.metrics, &mut sweep).await {
        tracing::debug!(%error, "a staged body is left to the sweeper");
    }
}

pub struct Stage<'a> {
    pub inner: &'a Inner,
    pub instance: &'a Instance,
    pub actor: &'a Actor,
    pub blob_id: &'a [u8],
    pub created_at_ms: u64,
    pub rows: &'a [(Vec<u8>, Vec<u8>)],
    pub is_first: bool,
    /// True to restart the blob's lifetime.
    pub touches: bool,
}

impl Operation for Stage<'_> {
    type Output = bool;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<bool> {
        let (instance, writer) = self.inner.resolve_for(trx, &self.instance.name, self.actor).await?;
        if instance.id() != self.instance.id() {
            return Ok(false);
        }
        writer.admitted(trx, &instance).await?;
        let keys = &instance.keys;
        let staged_key = keys.staged(self.blob_id);
        if self.is_first {
            note(trx, self.inner, &instance)?;
            begin(trx, keys, self.blob_id, self.created_at_ms);
        } else if trx.get(&staged_key, false).await?.is_none() {
            // The earlier rows are gone: the blob would lack its beginning.
            return Err(Refusal::UploadSwept.into());
        } else if self.touches {
            trx.set(&staged_key, &proto::Staged { created_at_ms: self.created_at_ms }.encode_to_vec());
        }
        let quiet = Quiet(trx);
        let mut key = keys.blob(self.blob_id);
        let prefix_bytes = key.len();
        for (path, value) in self.rows {
            key.truncate(prefix_bytes);
            key.extend_from_slice(path);
            quiet.set(&key, value)?;
        }
        Ok(true)
    }
}

/// Restarts the lifetime of blobs that are still staged.
#[boxed]
pub async fn renew(inner: &Inner, instance: &Instance, blob_ids: &[&[u8]]) -> Result<()> {
    struct Renew<'a> {
        inner: &'a Inner,
        instance: &'a Instance,
        blob_ids: &'a [&'a [u8]],
        now_ms: u64,
    }
    impl Operation for Renew<'_> {
        type Output = ();
        async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
            let instance = self.inner.resolve_for_write(trx, &self.instance.name).await?;
            if instance.id() != self.instance.id() {
                return Ok(());
            }
            let keys: Vec<_> = self.blob_ids.iter().map(|id| instance.keys.staged(id)).collect();
            let found: Vec<_> = keys.iter().map(|key| trx.get(key, false)).collect();
            for (key, found) in keys.iter().zip(found) {
                // An absent blob was taken by a document or swept; its user will notice.
                if found.await?.is_some() {
                    trx.set(key, &proto::Staged { created_at_ms: self.now_ms }.encode_to_vec());
                }
            }
            Ok(())
        }
    }
    for blob_ids in blob_ids.chunks(RENEWED_AT_ONCE) {
        let mut renew = Renew { inner, instance, blob_ids, now_ms: inner.clock.unix_ms() };
        transaction::write(&inner.db, &inner.metrics, &mut renew).await?;
    }
    Ok(())
}

struct Sweep<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
    blob_id: &'a [u8],
    older_than_ms: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum BlobState {
    Removed,
    /// It is still staged, since this time.
    Staged(u64),
    /// It was taken or removed.
    Gone,
}

impl Operation for Sweep<'_> {
    type Output = BlobState;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<BlobState> {
        let instance = self.inner.resolve_for_write(trx, &self.instance.name).await?;
        if instance.id() != self.instance.id() {
            return Ok(BlobState::Gone);
        }
        let key = instance.keys.staged(self.blob_id);
        let Some(bytes) = trx.get(&key, false).await? else { return Ok(BlobState::Gone) };
        let since_ms = proto::Staged::decode(&*bytes)?.created_at_ms;
        if since_ms > self.older_than_ms {
            return Ok(BlobState::Staged(since_ms));
        }
        let rows = instance.keys.blob_rows(self.blob_id);
        trx.clear(&key);
        trx.clear_range(&rows.begin, &rows.end);
        Ok(BlobState::Removed)
    }
}

struct ListStaged<'a> {
    inner: &'a Inner,
    name: &'a str,
    /// The instance and last key of the previous page.
    after: Option<(&'a Instance, Vec<u8>)>,
}

impl Operation for ListStaged<'_> {
    /// The blobs and since when they are staged, and the last key if there may be more.
    type Output = (Arc<Instance>, Vec<(Vec<u8>, u64)>, Option<Vec<u8>>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let mut range = instance.keys.staged_all();
        if let Some((before, after)) = &self.after {
            if before.id() != instance.id() {
                return Err(Error::DatabaseNotFound);
            }
            range.begin = [after, &[0][..]].concat();
        }
        let page = trx.range(&range, true).page(LISTED_AT_ONCE.get()).await?;
        let since = |value: &[u8]| proto::Staged::decode(value).map(|staged| staged.created_at_ms);
        let rows = page.iter().map(|row| Ok((instance.keys.staged_id(row.key())?, since(row.value())?)));
        let ids = rows.collect::<Result<_>>()?;
        let last = page.last().filter(|_| !page.is_all());
        Ok((instance, ids, last.map(|last| last.key().to_vec())))
    }
}

#[derive(Debug, Default)]
pub struct StagingSweep {
    /// Number of removed blobs.
    pub blobs: u64,
    /// The time from which the oldest remaining blob is staged, in milliseconds.
    pub oldest_ms: Option<u64>,
    /// True if there are released lists whose attachments are not freed yet.
    pub is_released_left: bool,
    /// True if the time limit ended the sweep.
    pub is_over: bool,
}

/// Removes blobs that were staged long ago and never taken, and frees attachments that left their documents, until a
/// time limit.
#[boxed]
pub async fn sweep_database(
    inner: &Inner,
    name: &str,
    broken_after: Duration,
    until: Option<Instant>,
) -> Result<StagingSweep> {
    let is_over = || until.is_some_and(|until| inner.clock.now() >= until);
    let older_than_ms = inner.clock.unix_ms().saturating_sub(broken_after.as_millis() as u64);
    let mut list = ListStaged { inner, name, after: None };
    let (instance, mut staged, mut last) = transaction::read(&inner.db, &inner.metrics, &mut list).await?;
    let mut swept = StagingSweep::default();
    loop {
        for (blob_id, since_ms) in staged {
            swept.blob(inner, &instance, &blob_id, since_ms, older_than_ms).await?;
            swept.is_over |= since_ms <= older_than_ms && is_over();
            if swept.is_over {
                return Ok(swept);
            }
        }
        let Some(after) = last else { break };
        let mut list = ListStaged { inner, name, after: Some((&*instance, after)) };
        (_, staged, last) = transaction::read(&inner.db, &inner.metrics, &mut list).await?;
    }
    let (_, is_through) = release::drain_until(inner, &instance, None, until).await?;
    swept.is_over = !is_through;
    swept.is_released_left = release::is_any(inner, &instance).await?;
    inner.metrics.sweeps.add(1);
    Ok(swept)
}

impl StagingSweep {
    /// Removes a blob if it was staged long enough ago.
    pub async fn blob(
        &mut self,
        inner: &Inner,
        instance: &Instance,
        blob_id: &[u8],
        since_ms: u64,
        older_than_ms: u64,
    ) -> Result<()> {
        let mut sweep = Sweep { inner, instance, blob_id, older_than_ms };
        let blob = match since_ms > older_than_ms {
            true => BlobState::Staged(since_ms),
            // A blob that was renewed since it was listed must be examined again later.
            false => transaction::write(&inner.db, &inner.metrics, &mut sweep).await?,
        };
        match blob {
            BlobState::Removed => {
                self.blobs += 1;
                inner.metrics.blobs_swept.add(1);
            }
            BlobState::Staged(since_ms) => self.oldest_ms = Some(self.oldest_ms.unwrap_or(u64::MAX).min(since_ms)),
            BlobState::Gone => {}
        }
        Ok(())
    }
}
