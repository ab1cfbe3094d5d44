//! Uploads of attachment data: split into chunks, hashed, compressed as by CouchDB, staged in many transactions.

use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_store::error::{Refusal, Result};
use flatbed_store::once::random_id;
use flatbed_store::transaction::{self, Attempt, Operation, Quiet, Transaction};
use md5::{Digest, Md5};
use sha2::Sha256;
use tokio::time::Instant;

use crate::actor::Actor;
use crate::document::coding::{Coding, CodingEnd, CodingWriter, InflationBound};
use crate::document::staging::{self, Stage};
use crate::instance::{Instance, InstanceId};
use crate::server::Inner;
use crate::size_limit::{self, Growth};

/// Bytes of a chunk, which is the value of one key.
const CHUNK_BYTES: usize = 90_000;

const CHUNKS_STAGED_AT_ONCE: usize = 5;

/// Bytes up to which data is staged together with other data.
const SMALL_BYTES: usize = 16 * 1024;

/// If a transaction's chunks take longer than this to arrive, each chunk is staged when it is complete.
const SLOW: Duration = Duration::from_secs(1);

/// The largest attachment in bytes, as stored and inflated.
pub const ATTACHMENT_BYTES_MAX: u64 = 1 << 30;

/// Staged data, for an edit that adds it to a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedUpload {
    pub blob_id: Vec<u8>,
    pub instance: InstanceId,
    pub digest: [u8; 32],
    /// MD5 of the stored bytes.
    pub md5: [u8; 16],
    /// MD5 of the bytes sent.
    pub sent_md5: [u8; 16],
    /// Length in bytes, decoded.
    pub length: u64,
    pub stored_length: u64,
    sent_length: u64,
    pub gzip: bool,
}

impl StagedUpload {
    /// Returns the length in bytes as sent: decoded, or as the client compressed them.
    pub fn sent_length(&self) -> u64 {
        self.sent_length
    }
}

/// Complete small data that is not staged yet: `Database::stage`.
#[derive(Debug)]
pub struct SmallUpload {
    pub blob_id: Vec<u8>,
    pub instance: InstanceId,
    pub bytes: Vec<u8>,
}

impl SmallUpload {
    /// Returns its approximate bytes in memory and in a transaction.
    pub fn bytes(&self) -> usize {
        self.bytes.len() + 300
    }
}

/// Bytes of small data that one transaction stages.
const STAGED_BYTES_MAX: usize = 500_000;

/// Stages data of one row each, in as many transactions as needed. Data for a replaced instance of the database is not
/// staged, so its edit will not find it.
#[boxed]
pub async fn stage_small(inner: &Inner, instance: &Instance, actor: &Actor, data: &[&SmallUpload]) -> Result<()> {
    let mut rest = data;
    check_size(inner, instance, actor).await?;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |data: &&&SmallUpload| {
            bytes += data.bytes();
            bytes <= STAGED_BYTES_MAX
        };
        let (now, later) = rest.split_at(rest.iter().take_while(fits).count().max(1));
        let mut stage = StageSmall { inner, instance, actor, data: now, created_at_ms: inner.clock.unix_ms() };
        transaction::write(&inner.db, &inner.metrics, &mut stage).await?;
        rest = later;
    }
    Ok(())
}

/// Refuses a user's attachment data if the database is full.
async fn check_size(inner: &Inner, instance: &Instance, actor: &Actor) -> Result<()> {
    match actor.user() {
        Some(_) => size_limit::check(inner, &instance.name, Growth::Documents).await,
        None => Ok(()),
    }
}

struct StageSmall<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
    actor: &'a Actor,
    data: &'a [&'a SmallUpload],
    created_at_ms: u64,
}

impl Operation for StageSmall<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
        let (instance, writer) = self.inner.resolve_for(trx, &self.instance.name, self.actor).await?;
        if instance.id() != self.instance.id() {
            return Ok(());
        }
        writer.admitted(trx, &instance).await?;
        staging::note(trx, self.inner, &instance)?;
        for data in self.data {
            staging::begin(trx, &instance.keys, &data.blob_id, self.created_at_ms);
            if !data.bytes.is_empty() {
                let key = [&instance.keys.blob(&data.blob_id)[..], &0_u32.to_be_bytes()].concat();
                Quiet(trx).set(&key, &data.bytes)?;
            }
        }
        Ok(())
    }
}

/// A running upload. If it is dropped before it is complete it removes its staged data; after a crash the sweeper does.
pub struct Upload {
    inner: Arc<Inner>,
    instance: Arc<Instance>,
    actor: Actor,
    blob_id: Vec<u8>,
    coding: Coding,
    pending: Vec<u8>,
    chunks: u32,
    is_staged: bool,
    /// The time of its last write to the store.
    staged_at: Instant,
    digest: Sha256,
    md5: Md5,
    sent_md5: Md5,
    sent: u64,
    stored: u64,
}

/// Returns whether CouchDB compresses data of this media type by default.
pub fn is_compressible(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind.starts_with("text/")
        || ["application/javascript", "application/json", "application/xml"].contains(&kind.as_str())
}

impl Upload {
    /// `is_gzip`: the client sends compressed bytes.
    pub fn new(
        inner: Arc<Inner>,
        instance: Arc<Instance>,
        actor: Actor,
        content_type: &str,
        is_gzip: bool,
    ) -> Result<Upload> {
        let coding = match (is_gzip, is_compressible(content_type)) {
            (true, _) => Coding::compressed(),
            (false, true) => Coding::compress(),
            (false, false) => Coding::Identity,
        };
        let staged_at = inner.clock.now();
        Ok(Upload {
            inner,
            instance,
            actor,
            blob_id: random_id()?.to_vec(),
            coding,
            pending: Vec::new(),
            chunks: 0,
            is_staged: false,
            staged_at,
            digest: Sha256::new(),
            md5: Md5::new(),
            sent_md5: Md5::new(),
            sent: 0,
            stored: 0,
        })
    }

    /// Bounds what this and other gzip attachments of its request inflate to. Precedes the first bytes.
    pub fn bound_inflation(&mut self, bound: &InflationBound) {
        self.coding.bound_by(bound);
    }

    /// Adds bytes. If the write fails or is dropped, later ones fail.
    ///
    /// # Errors
    /// [`Refusal::AttachmentTooLarge`], also for the inflated bytes, [`Refusal::InvalidAttachment`] for invalid gzip,
    /// [`Refusal::UploadSwept`].
    #[boxed]
    pub async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.sent += bytes.len() as u64;
        let bytes_max = self.inner.sizes.attachment();
        if self.sent > bytes_max {
            return Err(Refusal::AttachmentTooLarge { bytes_max }.into());
        }
        self.sent_md5.update(bytes);
        let (turns, database) = (&self.inner.turns.coding, self.instance.name.as_str());
        let writer = CodingWriter { turns, database, actor: &self.actor };
        self.coding.write(bytes, bytes_max, writer, &mut self.pending).await?;
        while self.pending.len() >= CHUNK_BYTES * CHUNKS_STAGED_AT_ONCE {
            self.stage(CHUNK_BYTES * CHUNKS_STAGED_AT_ONCE).await?;
        }
        if self.pending.len() >= CHUNK_BYTES && self.inner.clock.since(self.staged_at) > SLOW {
            // The bytes would stay in memory until more arrive.
            self.stage(self.pending.len() / CHUNK_BYTES * CHUNK_BYTES).await?;
        }
        let quiet = self.inner.clock.since(self.staged_at);
        if self.is_staged && quiet > self.inner.options.uploads_broken_after / 4 {
            // The upload is slow but alive.
            staging::renew(&self.inner, &self.instance, &[&self.blob_id]).await?;
            self.staged_at = self.inner.clock.now();
        }
        Ok(())
    }

    /// Completes the upload and stages all data.
    ///
    /// # Errors
    /// As [`Upload::write`].
    #[boxed]
    pub async fn finish(self) -> Result<StagedUpload> {
        let (inner, instance, actor) = (Arc::clone(&self.inner), Arc::clone(&self.instance), self.actor.clone());
        let (uploaded, unstaged) = self.complete().await?;
        if let Some(unstaged) = unstaged {
            stage_small(&inner, &instance, &actor, &[&unstaged]).await?;
        }
        Ok(uploaded)
    }

    /// Completes the upload. Small data is not staged, but left to `Database::stage` with other data of the
    /// same request.
    ///
    /// # Errors
    /// As [`Upload::write`].
    #[boxed]
    pub async fn complete(mut self) -> Result<(StagedUpload, Option<SmallUpload>)> {
        let CodingEnd { rest, inflated, gzip } = self.coding.finish(self.inner.sizes.attachment())?;
        self.pending.extend_from_slice(&rest);
        let length = inflated.unwrap_or(self.sent);
        let unstaged = if !self.is_staged && self.pending.len() <= SMALL_BYTES {
            let bytes = std::mem::take(&mut self.pending);
            self.digest(&bytes);
            Some(SmallUpload { blob_id: self.blob_id.clone(), instance: self.instance.id(), bytes })
        } else {
            None
        };
        while unstaged.is_none() && (!self.pending.is_empty() || !self.is_staged) {
            self.stage(self.pending.len().min(CHUNK_BYTES * CHUNKS_STAGED_AT_ONCE)).await?;
        }
        self.inner.metrics.blobs_staged.add(1);
        // The result owns the blob: dropping `self` must not remove it.
        self.is_staged = false;
        let uploaded = StagedUpload {
            blob_id: std::mem::take(&mut self.blob_id),
            instance: self.instance.id(),
            digest: std::mem::take(&mut self.digest).finalize().into(),
            md5: std::mem::take(&mut self.md5).finalize().into(),
            sent_md5: std::mem::take(&mut self.sent_md5).finalize().into(),
            length,
            stored_length: self.stored,
            sent_length: self.sent,
            gzip,
        };
        Ok((uploaded, unstaged))
    }

    fn digest(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
        self.md5.update(bytes);
        self.stored += bytes.len() as u64;
    }

    /// Stages the first `bytes` of the pending data.
    async fn stage(&mut self, bytes: usize) -> Result<()> {
        check_size(&self.inner, &self.instance, &self.actor).await?;
        let rest = self.pending.split_off(bytes.min(self.pending.len()));
        let now = std::mem::replace(&mut self.pending, rest);
        self.digest(&now);
        let mut rows = Vec::with_capacity(CHUNKS_STAGED_AT_ONCE);
        for chunk in now.chunks(CHUNK_BYTES) {
            rows.push((self.chunks.to_be_bytes().to_vec(), chunk.to_vec()));
            self.chunks += 1;
        }
        let mut stage = Stage {
            inner: &self.inner,
            instance: &self.instance,
            actor: &self.actor,
            blob_id: &self.blob_id,
            // A slow upload is not abandoned.
            created_at_ms: self.inner.clock.unix_ms(),
            rows: &rows,
            is_first: !self.is_staged,
            touches: true,
        };
        if !transaction::write(&self.inner.db, &self.inner.metrics, &mut stage).await? {
            return Err(Refusal::UploadSwept.into());
        }
        self.is_staged = true;
        self.staged_at = self.inner.clock.now();
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !self.is_staged {
            return;
        }
        let (inner, instance) = (Arc::clone(&self.inner), Arc::clone(&self.instance));
        let blob_id = std::mem::take(&mut self.blob_id);
        runtime.spawn(async move { staging::discard(&inner, &instance, &blob_id).await });
    }
}
