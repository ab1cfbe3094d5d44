//! Objects in an S3-compatible store: one per document, or one for many documents.
//!
//! There are no transactions. Some objects of a refused batch may be stored. The target remembers their documents until
//! the batch, or the part that contains them, has been taken whole, so that a retry sends only the rest.

pub mod bucket;
pub mod key;
pub mod parquet;
pub mod sign;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flatbed_flatten::json::{Limits, Value, parse};
use futures_util::future::join_all;
use serde::Deserialize;

use self::bucket::Bucket;
use self::key::{KeyValues, Template};
use super::body::deletion;
use super::http::json_of;
use super::lines::line;
use super::{BatchLimits, Delivery, DeliveryError, DeliveryState, Target};
use crate::attachments::{Attachment, Stub};
use crate::checkpoint::Checkpoint;
use crate::failure::Failure;
use crate::mapping::Table;
use crate::rows::Product;

/// The largest object, in bytes: an object is stored in a single request.
pub const OBJECT_BYTES_MAX: usize = 64 << 20;

/// The most lists of keys that are read for one document's attachments, of some hundreds of keys each.
const LISTS_MAX: usize = 50;

/// The format of objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectFormat {
    /// The JSON of one document.
    #[default]
    Json,
    /// One line per document, of many documents.
    JsonLines,
    /// One file of rows per table, of many documents.
    Parquet,
}

impl ObjectFormat {
    /// Returns whether an object has many documents.
    pub fn is_batch(self) -> bool {
        self != ObjectFormat::Json
    }

    fn content_type(self) -> &'static str {
        match self {
            ObjectFormat::Json => "application/json",
            ObjectFormat::JsonLines => "application/x-ndjson",
            ObjectFormat::Parquet => "application/vnd.apache.parquet",
        }
    }
}

/// The treatment of deletions: of the document's object, or in an object of many documents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnObjectDelete {
    /// Deletes the object; an object of many documents has a line for the deletion.
    #[default]
    Delete,
    /// Skips deletions.
    Ignore,
    /// Stores an object or a line for the deletion.
    Tombstone,
}

/// The settings of a store.
#[derive(Debug, Clone)]
pub struct StoreSettings {
    /// The template of keys.
    pub template: Template,
    /// The format.
    pub format: ObjectFormat,
    /// The content type, if it differs from the format's.
    pub content_type: Option<String>,
    /// The treatment of deletions.
    pub on_delete: OnObjectDelete,
    /// The template of keys of attachments that are delivered individually.
    pub attachments: Option<Template>,
    /// The limits of an object with many documents.
    pub window: BatchLimits,
}

/// A store.
#[derive(Debug)]
pub struct S3 {
    bucket: Bucket,
    ways: StoreSettings,
    job: String,
    tables: Arc<[Table]>,
    at_once: usize,
    epoch: u64,
    /// The sequences of documents that are stored, of a refused batch.
    taken: HashSet<String>,
}

impl S3 {
    /// Creates a store for a job with these tables and at most `at_once` concurrent requests.
    pub fn new(bucket: Bucket, ways: StoreSettings, job: &str, tables: Vec<Table>, at_once: usize) -> S3 {
        let (job, at_once) = (job.to_owned(), at_once.max(1));
        let tables = tables.into();
        S3 { bucket, ways, job, tables, at_once, epoch: 0, taken: HashSet::new() }
    }

    fn content_type(&self) -> &str {
        self.ways.content_type.as_deref().unwrap_or(self.ways.format.content_type())
    }

    /// Returns the key of an object with the documents from `first` to `last`.
    fn key(&self, first: &Delivery, last: &Delivery, body: &Value<'_>, table: &str) -> Result<String, DeliveryError> {
        let place = KeyValues {
            id: &last.id,
            rev: &last.rev,
            seq: &last.seq,
            first_seq: &first.seq,
            body,
            job: &self.job,
            epoch: self.epoch,
            table,
            attachment: "",
            now: self.bucket.clock().unix_seconds(),
        };
        let none = || {
            DeliveryError::failed(
                Failure::TooLarge,
                "the template makes no key of at most 1,024 bytes of this document",
            )
        };
        self.ways.template.key(&place).ok_or_else(none)
    }

    /// Returns the key of an attachment, or the common prefix of the keys of all attachments of a document.
    fn attachment_key(&self, template: &Template, delivery: &Delivery, name: &str) -> Option<String> {
        template.key(&KeyValues {
            id: &delivery.id,
            rev: &delivery.rev,
            seq: &delivery.seq,
            first_seq: &delivery.seq,
            body: &Value::Null,
            job: &self.job,
            epoch: self.epoch,
            table: "",
            attachment: name,
            now: self.bucket.clock().unix_seconds(),
        })
    }

    /// Stores the attachments of a document that the store lacks, and returns the keys of all.
    async fn attach(&self, delivery: &Delivery) -> Result<HashSet<String>, DeliveryError> {
        let mut keys = HashSet::new();
        let Some(template) = &self.ways.attachments else { return Ok(keys) };
        for Attachment { stub, body } in &delivery.attachments {
            let long = || {
                let error = "the template makes no key of at most 1,024 bytes of an attachment of this document";
                DeliveryError::failed(Failure::TooLarge, error)
            };
            let key = self.attachment_key(template, delivery, &stub.name).ok_or_else(long)?;
            if let Some(body) = body {
                self.bucket.put(&key, &stub.content_type, &stub.digest, body.clone()).await?;
            }
            keys.insert(key);
        }
        Ok(keys)
    }

    /// Deletes the objects of attachments that a document no longer has.
    async fn prune(&self, delivery: &Delivery, kept: &HashSet<String>) -> Result<(), DeliveryError> {
        let is_gone = is_gone(delivery);
        // A first revision has removed no attachment.
        let may_have_lost = is_gone || !delivery.rev.starts_with("1-");
        let folder = self.ways.attachments.as_ref().filter(|_| may_have_lost).and_then(Template::folder);
        let Some(folder) = folder.filter(|_| self.ways.on_delete != OnObjectDelete::Ignore) else { return Ok(()) };
        let Some(folder) = self.attachment_key(&folder, delivery, "") else { return Ok(()) };
        let mut after = None;
        for _ in 0..LISTS_MAX {
            let (keys, next) = self.bucket.list(&folder, after.as_deref()).await?;
            // Keys outside of the folder are never deleted, whatever the server lists.
            let is_own = |key: &&String| key.strip_prefix(&folder).is_some_and(|name| !name.contains('/'));
            for key in keys.iter().filter(is_own).filter(|key| !kept.contains(*key)) {
                self.bucket.delete(key).await?;
            }
            match next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        Ok(())
    }

    async fn one(&self, delivery: &Delivery) -> Result<(), DeliveryError> {
        let text = match (json_of(delivery, &self.tables), self.ways.on_delete) {
            (Some(text), _) => Some(text),
            (None, OnObjectDelete::Ignore) => return Ok(()),
            (None, OnObjectDelete::Delete) => None,
            (None, OnObjectDelete::Tombstone) => Some(deletion(&delivery.id)),
        };
        let key = {
            let value = text.as_ref().and_then(|text| parse(text.as_bytes(), &Limits::default()).ok());
            self.key(delivery, delivery, value.as_ref().unwrap_or(&Value::Null), "")?
        };
        // Attachments are stored first, so that readers of the document find them.
        let kept = self.attach(delivery).await?;
        match text {
            None => self.bucket.delete(&key).await?,
            Some(text) if text.len() > OBJECT_BYTES_MAX => return Err(too_large()),
            Some(text) => self.bucket.put(&key, self.content_type(), "", Bytes::from(text)).await?,
        }
        self.prune(delivery, &kept).await
    }

    fn left<'b>(&self, batch: &'b [Delivery]) -> Vec<&'b Delivery> {
        let is_ignored = |delivery: &Delivery| self.ways.on_delete == OnObjectDelete::Ignore && is_gone(delivery);
        batch.iter().filter(|it| !self.taken.contains(&it.seq) && !is_ignored(it)).collect()
    }

    async fn each(&mut self, batch: &[Delivery]) -> Result<(), DeliveryError> {
        let left = self.left(batch);
        for group in left.chunks(self.at_once) {
            let this = &*self;
            let stored = join_all(group.iter().map(|delivery| this.one(delivery))).await;
            let mut refused = None;
            for (delivery, stored) in group.iter().zip(stored) {
                match stored {
                    Ok(()) => {
                        self.taken.insert(delivery.seq.clone());
                    }
                    Err(error) => refused = refused.or(Some(error)),
                }
            }
            if let Some(refused) = refused {
                return Err(refused);
            }
        }
        Ok(())
    }

    /// Stores objects of many documents, one after the other.
    async fn together(&mut self, batch: Vec<Delivery>) -> Result<(), DeliveryError> {
        let left: Vec<usize> = {
            let left: HashSet<&str> = self.left(&batch).into_iter().map(|delivery| delivery.seq.as_str()).collect();
            let places = batch.iter().enumerate().filter(|(_, delivery)| left.contains(delivery.seq.as_str()));
            places.map(|(at, _)| at).collect()
        };
        let mut group = Group { batch: Arc::new(batch), tables: self.tables.clone(), places: Vec::new() };
        let mut rest = left.as_slice();
        while !rest.is_empty() {
            let count = self.count(&group, rest);
            let (own, behind) = rest.split_at_checked(count).unwrap_or((rest, &[]));
            (group.places, rest) = (own.to_vec(), behind);
            let mut kept = Vec::with_capacity(group.places.len());
            for delivery in group.all() {
                kept.push(self.attach(delivery).await?);
            }
            for (table, body) in self.bodies(&group).await? {
                if body.len() > OBJECT_BYTES_MAX {
                    return Err(too_large());
                }
                let mut all = group.all();
                let (Some(first), Some(last)) = (all.next(), group.all().last()) else { break };
                let key = self.key(first, last, &Value::Null, &table)?;
                self.bucket.put(&key, self.content_type(), "", Bytes::from(body)).await?;
            }
            for (delivery, kept) in group.all().zip(&kept) {
                self.prune(delivery, kept).await?;
            }
            self.taken.extend(group.all().map(|delivery| delivery.seq.clone()));
        }
        Ok(())
    }

    /// Returns how many of these fit into an object, at least one.
    fn count(&self, group: &Group, places: &[usize]) -> usize {
        let mut bytes = 0_usize;
        let deliveries = places.iter().filter_map(|at| group.batch.get(*at));
        let fits = |delivery: &&Delivery| {
            bytes += match self.ways.format {
                ObjectFormat::Parquet => parquet::bytes_of(delivery),
                ObjectFormat::Json | ObjectFormat::JsonLines => line(delivery, &self.tables).len(),
            };
            bytes <= self.ways.window.bytes
        };
        deliveries.take(self.ways.window.documents).take_while(fits).count().max(1)
    }

    /// Returns the objects of a group: one, or one per table.
    async fn bodies(&self, group: &Group) -> Result<Vec<(String, Vec<u8>)>, DeliveryError> {
        if self.ways.format != ObjectFormat::Parquet {
            return Ok(vec![(String::new(), group.all().flat_map(|delivery| line(delivery, &self.tables)).collect())]);
        }
        let group = group.clone();
        let made = tokio::task::spawn_blocking(move || group.files()).await;
        let made = made.map_err(|error| DeliveryError::failed(Failure::Store(0), error))?;
        made.map_err(|error| DeliveryError::failed(Failure::TooLarge, error))
    }
}

#[derive(Debug, Clone)]
struct Group {
    batch: Arc<Vec<Delivery>>,
    tables: Arc<[Table]>,
    places: Vec<usize>,
}

impl Group {
    fn all(&self) -> impl Iterator<Item = &Delivery> {
        self.places.iter().filter_map(|at| self.batch.get(*at))
    }

    fn files(&self) -> Result<Vec<(String, Vec<u8>)>, parquet::ParquetFailure> {
        if self.tables.is_empty() {
            return Ok(vec![(String::new(), parquet::file(None, self.all())?)]);
        }
        let of = |(at, table): (usize, &Table)| Ok((table.name.clone(), parquet::file(Some((at, table)), self.all())?));
        self.tables.iter().enumerate().map(of).collect()
    }
}

fn is_gone(delivery: &Delivery) -> bool {
    matches!(delivery.state, DeliveryState::Gone | DeliveryState::Is(Product::Nothing))
}

fn too_large() -> DeliveryError {
    DeliveryError::failed(Failure::TooLarge, "the object would have more than 64 MB")
}

impl Target for S3 {
    async fn begin(&mut self, epoch: u64) -> Result<Option<Checkpoint>, DeliveryError> {
        self.epoch = epoch;
        Ok(None)
    }

    async fn deliver(&mut self, batch: Vec<Delivery>, _: Option<Checkpoint>) -> Result<(), DeliveryError> {
        let sequences: Vec<String> = batch.iter().map(|delivery| delivery.seq.clone()).collect();
        if self.ways.format.is_batch() {
            self.together(batch).await?;
        } else {
            self.each(&batch).await?;
        }
        for seq in &sequences {
            self.taken.remove(seq);
        }
        Ok(())
    }

    async fn holds(&mut self, delivery: &Delivery, stub: &Stub) -> bool {
        let template = self.ways.attachments.as_ref();
        let key = template.and_then(|template| self.attachment_key(template, delivery, &stub.name));
        let Some(key) = key else { return false };
        self.bucket.digest(&key).await.is_some_and(|digest| digest == stub.digest)
    }

    fn window(&self) -> Option<BatchLimits> {
        self.ways.format.is_batch().then_some(self.ways.window)
    }
}

impl BatchLimits {
    /// The default limits of an object with many documents: 1,000 documents, 16 MB, one minute.
    pub const OBJECTS: BatchLimits = BatchLimits { documents: 1_000, bytes: 16 << 20, age: Duration::from_secs(60) };
}
