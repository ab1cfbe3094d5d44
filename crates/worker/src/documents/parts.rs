//! What documents of `_worker` are made of. The schemas say what is required and how large it may be; defaults are here.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::attachments::AttachmentsPart;
use crate::output::Window;
use crate::output::body::Format;
use crate::output::http::path::{self, PathError};
use crate::output::s3::key::{Template, TemplateError, Use};
use crate::output::s3::{OBJECT_BYTES_MAX, ObjectFormat, OnObjectDelete};
use crate::queue::REPLAYS_MAX;
use crate::retry::Schedule;
use crate::secret::SecretRef;

/// What a source is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceType {
    /// Flatbed.
    Flatbed,
    /// CouchDB, and what answers as it does.
    Couchdb,
    /// Sync Gateway.
    SyncGateway,
    /// Capella App Services.
    AppServices,
    /// Couchbase Edge Server.
    EdgeServer,
}

/// How the worker signs in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthMethod {
    /// As nobody.
    #[default]
    None,
    /// With a name and a password.
    Basic,
    /// With a token.
    Bearer,
    /// With a session's cookie, which is `token`.
    Session,
}

/// As whom the worker speaks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Auth {
    /// How.
    #[serde(default)]
    pub method: AuthMethod,
    /// A name.
    pub username: Option<String>,
    /// Its password.
    pub password: Option<SecretRef>,
    /// A token or cookie.
    pub token: Option<SecretRef>,
}

/// How a feed is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeedType {
    /// Page by page, with pauses.
    Normal,
    /// Page by page, waiting for changes.
    #[default]
    Longpoll,
    /// As one long answer.
    Continuous,
}

/// What is asked of a feed.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct ChangesFeed {
    /// How it is read.
    #[serde(default)]
    pub feed_type: FeedType,
    /// Where a job without a checkpoint begins: `0`, `now`, a sequence.
    pub since: Option<serde_json::Value>,
    /// Of these channels alone, with Sync Gateway.
    #[serde(default)]
    pub channels: Vec<String>,
    /// Without deletions, until all that was there has been read once.
    #[serde(default)]
    pub active_only: bool,
    /// Whether rows carry documents; else they are read in bulk.
    pub include_docs: Option<bool>,
    /// Between two signs of life.
    pub heartbeat_ms: Option<u64>,
    /// Until a feed ends on which nothing happens.
    pub timeout_ms: Option<u64>,
    /// Rows of a page; 0 is 1,000.
    #[serde(default)]
    pub limit: u64,
    /// A filter function.
    pub filter: Option<String>,
    /// Of these documents alone.
    #[serde(default)]
    pub doc_ids: Vec<String>,
    /// Of what a selector matches alone.
    pub selector: Option<serde_json::Value>,
    /// With `normal`.
    pub poll_interval_seconds: Option<f64>,
}

/// A source.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Input {
    /// What jobs call it.
    pub id: String,
    /// What it is.
    pub source_type: SourceType,
    /// Its database's address.
    pub url: Option<String>,
    /// A database of this server.
    pub local: Option<String>,
    /// Sync Gateway's.
    pub scope: Option<String>,
    /// Sync Gateway's.
    pub collection: Option<String>,
    /// As whom.
    #[serde(default)]
    pub auth: Auth,
    /// Headers beside it; values may be references.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// What is asked of its feed.
    #[serde(default)]
    pub changes_feed: ChangesFeed,
}

/// An SQL server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DatabaseType {
    /// PostgreSQL.
    Postgres,
    /// MySQL, MariaDB.
    Mysql,
    /// SQLite, in a file.
    Sqlite,
}

/// An SQL target.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RdbmsOutput {
    /// What jobs call it.
    pub id: String,
    /// What it is.
    pub database_type: DatabaseType,
    /// Where.
    pub host: Option<String>,
    /// Its port, if not the usual one.
    pub port: Option<u16>,
    /// The database; for SQLite a file's name.
    pub database: String,
    /// PostgreSQL's.
    pub schema: Option<String>,
    /// As whom.
    pub username: Option<String>,
    /// With which password.
    pub password: Option<SecretRef>,
    /// Whether by TLS alone.
    #[serde(default)]
    pub ssl: bool,
    /// Whether tables that are missing are made.
    #[serde(default)]
    pub create_tables: bool,
    /// For a statement.
    pub timeout_seconds: Option<f64>,
    /// Connections.
    pub pool_max: Option<u32>,
}

/// What becomes of deletions at an endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnHttpDelete {
    /// They are sent, to where the document is.
    #[default]
    Delete,
    /// Nothing.
    Ignore,
}

/// An HTTP target.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct HttpOutput {
    /// What jobs call it.
    pub id: String,
    /// Where a document goes: a template.
    pub url: String,
    /// How it is sent; `PUT` where nothing stands.
    pub method: Option<String>,
    /// How a deletion is sent; `DELETE` where nothing stands.
    pub delete_method: Option<String>,
    /// Whether a deletion has a body.
    #[serde(default)]
    pub send_delete_body: bool,
    /// What becomes of deletions.
    #[serde(default)]
    pub on_delete: OnHttpDelete,
    /// Headers; values may be references.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// As whom.
    #[serde(default)]
    pub auth: Auth,
    /// What bodies are written as.
    #[serde(default)]
    pub format: Format,
    /// For an answer.
    pub timeout_seconds: Option<f64>,
}

impl HttpOutput {
    /// The server, and the template of paths behind it, which has a slash at least.
    pub fn parts(&self) -> (&str, &str) {
        let begin = self.url.find("://").map_or(0, |at| at + 3);
        let end = self.url.get(begin..).and_then(|rest| rest.find('/')).map_or(self.url.len(), |at| begin + at);
        let (server, template) = self.url.split_at_checked(end).unwrap_or((&self.url, ""));
        (server, if template.is_empty() { "/" } else { template })
    }

    /// Whether documents and their deletions have a place there.
    ///
    /// # Errors
    /// [`PathError`].
    pub fn check(&self) -> Result<(), PathError> {
        let is_deleted = self.on_delete == OnHttpDelete::Delete;
        path::check(self.parts().1, path::Use::Documents { is_deleted, is_told: self.send_delete_body })
    }

    /// The path of attachments, a template.
    ///
    /// # Errors
    /// In words, why there is none.
    pub fn attachments(&self, part: &AttachmentsPart) -> Result<String, String> {
        let template = match &part.destination.url_template {
            Some(template) => template.clone(),
            None if self.url.contains('?') => {
                return Err(
                    "`url_template` must say where they go, as the documents' URL has a question mark".to_owned()
                );
            }
            None => format!("{}/{{attachment}}", self.parts().1.trim_end_matches('/')),
        };
        path::check(&template, path::Use::Attachments).map_err(|error| error.to_string())?;
        Ok(template)
    }
}

/// What a store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CloudProvider {
    /// S3, or what answers as it does.
    S3,
    /// A file of JSON Lines.
    File,
    /// The standard output.
    Stdout,
}

/// How a bucket stands in an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Addressing {
    /// `https://HOST/BUCKET/KEY`
    Path,
    /// `https://BUCKET.HOST/KEY`
    Virtual,
}

/// How many documents an object has, and until when they are waited for.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct BatchPart {
    /// So many.
    pub max_docs: Option<usize>,
    /// Of so many bytes.
    pub max_bytes: Option<usize>,
    /// The oldest has waited for so long.
    pub max_seconds: Option<f64>,
}

/// A store of objects, a file, or the standard output.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct CloudOutput {
    /// What jobs call it.
    pub id: String,
    /// What it is.
    pub provider: CloudProvider,
    /// A file's name.
    pub file: Option<String>,
    /// S3's.
    pub bucket: Option<String>,
    /// What objects are called.
    pub key_template: Option<String>,
    /// Where the bucket is; `us-east-1` where nothing stands.
    pub region: Option<String>,
    /// The store's address, if it is not Amazon's.
    pub endpoint_url: Option<String>,
    /// How the bucket stands in it: with Amazon in the name, else in the path.
    pub addressing: Option<Addressing>,
    /// As whom; without one as nobody.
    pub access_key_id: Option<SecretRef>,
    /// With which key.
    pub secret_access_key: Option<SecretRef>,
    /// With a key for a time.
    pub session_token: Option<SecretRef>,
    /// What objects are.
    #[serde(default)]
    pub format: ObjectFormat,
    /// What they say that they are, if not what they are.
    pub content_type: Option<String>,
    /// What becomes of deletions.
    #[serde(default)]
    pub on_delete: OnObjectDelete,
    /// Of objects of many documents.
    #[serde(default)]
    pub batch: BatchPart,
    /// For an answer.
    pub timeout_seconds: Option<f64>,
}

impl CloudOutput {
    /// What objects are called.
    ///
    /// # Errors
    /// In words, why it is no template, or none for such objects.
    pub fn template(&self) -> Result<Template, String> {
        let template: Template = self
            .key_template
            .as_deref()
            .unwrap_or_default()
            .parse()
            .map_err(|error: TemplateError| error.to_string())?;
        let is_for = match (self.format.is_batch(), self.on_delete) {
            (true, _) => Use::Batch,
            (false, OnObjectDelete::Delete) => Use::Each { is_deleted: true },
            (false, OnObjectDelete::Ignore) => Use::Each { is_deleted: false },
            (false, OnObjectDelete::Tombstone) => Use::Tombstones,
        };
        template.check(is_for).map_err(|error| error.to_string())?;
        Ok(template)
    }

    /// What objects of attachments are called.
    ///
    /// # Errors
    /// In words, why it is no template, or none for such objects.
    pub fn attachments(&self, part: &AttachmentsPart) -> Result<Template, String> {
        let template = part.destination.key_template.as_deref().unwrap_or("attachments/{id}/{attachment}");
        let template: Template = template.parse().map_err(|error: TemplateError| error.to_string())?;
        let is_deleted = self.on_delete != OnObjectDelete::Ignore;
        template.check(Use::Attachments { is_deleted }).map_err(|error| error.to_string())?;
        if is_deleted && self.template()?.may_meet(&template) {
            return Err(TemplateError::Folder.to_string());
        }
        Ok(template)
    }

    /// How many documents an object has, and until when they are waited for.
    pub fn window(&self) -> Window {
        let (batch, default) = (&self.batch, Window::OBJECTS);
        let age = batch.max_seconds.map_or(default.age, |of| Duration::try_from_secs_f64(of).unwrap_or(default.age));
        Window {
            documents: batch.max_docs.unwrap_or(default.documents).max(1),
            bytes: batch.max_bytes.unwrap_or(default.bytes).clamp(1, OBJECT_BYTES_MAX),
            age,
        }
    }
}

/// The order of delivery.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Processing {
    /// One change at a time.
    #[serde(default)]
    pub sequential: bool,
    /// Requests at once.
    pub max_concurrent: Option<usize>,
    /// Changes in a transaction.
    pub batch: Option<usize>,
    /// Deletions do nothing.
    #[serde(default)]
    pub ignore_delete: bool,
    /// Nor does what the job may no longer see.
    #[serde(default)]
    pub ignore_remove: bool,
    /// All but the delivery.
    #[serde(default)]
    pub dry_run: bool,
}

impl Processing {
    /// Requests that are under way at once.
    pub fn at_once(&self) -> usize {
        if self.sequential { 1 } else { self.max_concurrent.unwrap_or(20).max(1) }
    }

    /// Changes in a transaction.
    pub fn batch(&self) -> usize {
        if self.sequential { 1 } else { self.batch.unwrap_or(1_000).max(1) }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub(super) struct RetryPart {
    pub(super) max_retries: Option<u32>,
    pub(super) backoff_base_seconds: Option<f64>,
    pub(super) backoff_max_seconds: Option<f64>,
}

/// When a checkpoint is written to a source, and under which name.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct CheckpointPart {
    /// What a worker is called there.
    pub client_id: Option<String>,
    /// See [`CheckpointPart::documents`].
    pub every_n_docs: Option<u64>,
    /// See [`CheckpointPart::period`].
    pub every_seconds: Option<f64>,
}

impl CheckpointPart {
    /// After how many documents, delivered or in the queue, it is written; within a batch too, as the Python worker does. `None`, also for
    /// 0: the worker chooses.
    pub fn documents(&self) -> Option<u64> {
        self.every_n_docs.filter(|documents| *documents > 0)
    }

    /// It is written once it is so old and could be newer; where the feed ends, too, and not at once. `None`, for 0 too: the worker chooses.
    pub fn period(&self) -> Option<std::time::Duration> {
        let seconds = self.every_seconds.filter(|seconds| *seconds > 0.0)?;
        std::time::Duration::try_from_secs_f64(seconds).ok()
    }
}

/// What becomes of entries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct QueuePart {
    /// Until one goes that may go; 0: never.
    pub retention_seconds: Option<u64>,
    /// Failed replays until one is exhausted.
    pub max_replay_attempts: Option<u32>,
    /// Whether those go too that wait.
    #[serde(default)]
    pub drop_waiting: bool,
    /// So many halt the job.
    pub entries_max: Option<u64>,
}

impl QueuePart {
    /// Failed replays until an entry is exhausted.
    pub fn replays_max(&self) -> u32 {
        self.max_replay_attempts.unwrap_or(REPLAYS_MAX)
    }

    /// In seconds: a day where nothing is said, as in the Python worker.
    pub fn retention_seconds(&self) -> u64 {
        self.retention_seconds.unwrap_or(86_400)
    }
}

/// Where a reset lets a job begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ResetTo {
    /// Where one begins that never ran.
    Beginning,
    /// Behind all that is there now.
    Now,
    /// Where it stands, whatever has become of the source.
    AsIs,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Do {
    /// Run once more after a halt.
    Start,
    /// Go on from another place.
    Reset,
    /// Deliver entries of the queue.
    Replay,
}

/// What somebody wants to be done with a job besides; it stands in the job's document until it is done.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, serde::Serialize)]
pub struct Order {
    /// What tells it from others of the job.
    pub id: String,
    /// What.
    #[serde(rename = "do")]
    pub what: Do,
    /// Of a reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<ResetTo>,
    /// Of a replay: these entries, whatever their state. Else those that wait and match the members below.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<String>,
    /// Of this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// That failed first at this time or later, in seconds of Unix time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// ... or earlier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// So many in a second at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_second: Option<u32>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TablesDocument {
    pub(super) tables: Vec<TablePart>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TablePart {
    pub(super) name: String,
    #[serde(default)]
    pub(super) columns: Vec<ColumnPart>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ColumnPart {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) primary_key: bool,
    pub(super) nullable: Option<bool>,
}

/// A job's settings.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct System {
    /// The order of delivery.
    #[serde(default)]
    pub processing: Processing,
    #[serde(default)]
    pub(super) retry: RetryPart,
    /// Whether the job halts after so many retries.
    #[serde(default)]
    pub halt_on_failure: bool,
    /// Checkpoints at the source.
    #[serde(default)]
    pub checkpoint: CheckpointPart,
    /// Entries of the queue.
    #[serde(default)]
    pub dlq: QueuePart,
    /// Attachments.
    #[serde(default)]
    pub attachments: AttachmentsPart,
}

impl System {
    /// When deliveries that failed by the target's state are tried again.
    pub fn schedule(&self) -> Schedule {
        let default = Schedule::default();
        // The schema bounds them to a day.
        let seconds = |of: Option<f64>, other| of.map_or(other, |of| Duration::try_from_secs_f64(of).unwrap_or(other));
        Schedule {
            first: seconds(self.retry.backoff_base_seconds, default.first),
            max: seconds(self.retry.backoff_max_seconds, default.max),
            tries_max: self.halt_on_failure.then_some(self.retry.max_retries.unwrap_or(5)),
        }
    }
}
