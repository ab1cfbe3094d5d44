//! Objects in an S3-compatible store: one of each document, or many documents in one.
//!
//! There are no transactions: of a batch that is refused some objects may be stored. Which documents they have is remembered until the
//! batch, or the part of it that they are in, is taken whole, so that what is tried again is what is left.

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
use self::key::{Place, Template};
use super::body::deletion;
use super::http::json_of;
use super::lines::line;
use super::{Delivery, Refused, State, Target, Window};
use crate::attachments::{Attachment, Stub};
use crate::checkpoint::Checkpoint;
use crate::failure::Failure;
use crate::mapping::Table;
use crate::rows::Product;

/// The longest object: what is stored is one request.
pub const OBJECT_BYTES_MAX: usize = 64 << 20;

/// Lists of keys of one document's attachments, of some hundreds each.
const LISTS_MAX: usize = 50;

/// What objects are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectFormat {
    /// The JSON of one document.
    #[default]
    Json,
    /// A line for each of many.
    JsonLines,
    /// A file of rows for each table, of many.
    Parquet,
}

impl ObjectFormat {
    /// Whether an object has many documents.
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

/// What becomes of a document's object when it is deleted, and of the deletion in an object of many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnObjectDelete {
    /// It is deleted; an object of many has a line that says so.
    #[default]
    Delete,
    /// Nothing.
    Ignore,
    /// An object, or a line, that says so is stored.
    Tombstone,
}

/// How documents are stored.
#[derive(Debug, Clone)]
pub struct Ways {
    /// What objects are called.
    pub template: Template,
    /// What they are.
    pub format: ObjectFormat,
    /// What they say that they are, if not what they are.
    pub content_type: Option<String>,
    /// What becomes of deletions.
    pub on_delete: OnObjectDelete,
    /// What objects of attachments are called that are delivered by themselves.
    pub attachments: Option<Template>,
    /// Of an object of many documents: how many, of how many bytes, and how long they may be waited for.
    pub window: Window,
}

/// A store.
#[derive(Debug)]
pub struct S3 {
    bucket: Bucket,
    ways: Ways,
    job: String,
    tables: Arc<[Table]>,
    at_once: usize,
    epoch: u64,
    /// Sequences of documents that are stored, of a batch that is not as a whole.
    taken: HashSet<String>,
}

impl S3 {
    /// For a job with such tables, with at most so many requests at once.
    pub fn new(bucket: Bucket, ways: Ways, job: &str, tables: Vec<Table>, at_once: usize) -> S3 {
        let (job, at_once) = (job.to_owned(), at_once.max(1));
        let tables = tables.into();
        S3 { bucket, ways, job, tables, at_once, epoch: 0, taken: HashSet::new() }
    }

    fn content_type(&self) -> &str {
        self.ways.content_type.as_deref().unwrap_or(self.ways.format.content_type())
    }

    /// The key of an object whose documents are these.
    fn key(&self, first: &Delivery, last: &Delivery, body: &Value<'_>, table: &str) -> Result<String, Refused> {
        let place = Place {
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
        let none =
            || Refused::failed(Failure::TooLarge, "the template makes no key of at most 1,024 bytes of this document");
        self.ways.template.key(&place).ok_or_else(none)
    }

    /// The key of an attachment, or what the keys of all attachments of a document begin with.
    fn attachment_key(&self, template: &Template, delivery: &Delivery, name: &str) -> Option<String> {
        template.key(&Place {
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

    /// Stores the attachments of a document that the store does not have. The keys of all.
    async fn attach(&self, delivery: &Delivery) -> Result<HashSet<String>, Refused> {
        let mut keys = HashSet::new();
        let Some(template) = &self.ways.attachments else { return Ok(keys) };
        for Attachment { stub, body } in &delivery.attachments {
            let long = || {
                let error = "the template makes no key of at most 1,024 bytes of an attachment of this document";
                Refused::failed(Failure::TooLarge, error)
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
    async fn prune(&self, delivery: &Delivery, kept: &HashSet<String>) -> Result<(), Refused> {
        let is_gone = is_gone(delivery);
        // A first revision has taken nothing away.
        let may_have_lost = is_gone || !delivery.rev.starts_with("1-");
        let folder = self.ways.attachments.as_ref().filter(|_| may_have_lost).and_then(Template::folder);
        let Some(folder) = folder.filter(|_| self.ways.on_delete != OnObjectDelete::Ignore) else { return Ok(()) };
        let Some(folder) = self.attachment_key(&folder, delivery, "") else { return Ok(()) };
        let mut after = None;
        for _ in 0..LISTS_MAX {
            let (keys, next) = self.bucket.list(&folder, after.as_deref()).await?;
            // Whatever a server says: nothing else is deleted.
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

    async fn one(&self, delivery: &Delivery) -> Result<(), Refused> {
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
        // Who finds the document finds its attachments.
        let kept = self.attach(delivery).await?;
        match text {
            None => self.bucket.delete(&key).await?,
            Some(text) if text.len() > OBJECT_BYTES_MAX => return Err(too_large()),
            Some(text) => self.bucket.put(&key, self.content_type(), "", Bytes::from(text)).await?,
        }
        self.prune(delivery, &kept).await
    }

    /// What is to be stored of a batch, or deleted.
    fn left<'b>(&self, batch: &'b [Delivery]) -> Vec<&'b Delivery> {
        let is_ignored = |delivery: &Delivery| self.ways.on_delete == OnObjectDelete::Ignore && is_gone(delivery);
        batch.iter().filter(|it| !self.taken.contains(&it.seq) && !is_ignored(it)).collect()
    }

    /// Stores each by itself.
    async fn each(&mut self, batch: &[Delivery]) -> Result<(), Refused> {
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

    /// Stores as many as an object may have, one object after the other.
    async fn together(&mut self, batch: Vec<Delivery>) -> Result<(), Refused> {
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

    /// How many of these have room in an object; one at least.
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

    /// The objects of a group: one, or one of each table.
    async fn bodies(&self, group: &Group) -> Result<Vec<(String, Vec<u8>)>, Refused> {
        if self.ways.format != ObjectFormat::Parquet {
            return Ok(vec![(String::new(), group.all().flat_map(|delivery| line(delivery, &self.tables)).collect())]);
        }
        let group = group.clone();
        let made = tokio::task::spawn_blocking(move || group.files()).await;
        let made = made.map_err(|error| Refused::failed(Failure::Store(0), error))?;
        made.map_err(|error| Refused::failed(Failure::TooLarge, error))
    }
}

/// Documents of one object.
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
    matches!(delivery.state, State::Gone | State::Is(Product::Nothing))
}

fn too_large() -> Refused {
    Refused::failed(Failure::TooLarge, "the object would have more than 64 MB")
}

impl Target for S3 {
    async fn begin(&mut self, epoch: u64) -> Result<Option<Checkpoint>, Refused> {
        self.epoch = epoch;
        Ok(None)
    }

    async fn deliver(&mut self, batch: Vec<Delivery>, _: Option<Checkpoint>) -> Result<(), Refused> {
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

    fn window(&self) -> Option<Window> {
        self.ways.format.is_batch().then_some(self.ways.window)
    }
}

impl Window {
    /// Of an object of many documents where nothing is said: 1,000 of them, 16 MB, a minute.
    pub const OBJECTS: Window = Window { documents: 1_000, bytes: 16 << 20, age: Duration::from_secs(60) };
}
