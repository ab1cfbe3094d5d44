//! The parts of `_worker` documents. The schemas define required members and their limits; this module defines the
//! defaults.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::attachments::AttachmentsPart;
use crate::output::BatchLimits;
use crate::output::body::Format;
use crate::output::http::path::{self, PathTemplateError};
use crate::output::s3::key::{KeyPurpose, Template, TemplateError};
use crate::output::s3::{OBJECT_BYTES_MAX, ObjectFormat, OnObjectDelete};
use crate::queue::REPLAYS_MAX;
use crate::retry::Schedule;
use crate::secret::SecretRef;

/// The kind of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceType {
    /// Flatbed.
    Flatbed,
    /// CouchDB and compatible servers.
    Couchdb,
    /// Sync Gateway.
    SyncGateway,
    /// Capella App Services.
    AppServices,
    /// Couchbase Edge Server.
    EdgeServer,
}

/// The worker's authentication method.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthMethod {
    /// Anonymous.
    #[default]
    None,
    /// With a name and a password.
    Basic,
    /// With a token.
    Bearer,
    /// With a session cookie in `token`.
    Session,
}

/// The worker's credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Auth {
    /// The method.
    #[serde(default)]
    pub method: AuthMethod,
    /// The user name.
    pub username: Option<String>,
    /// The user's password.
    pub password: Option<SecretRef>,
    /// A token or cookie.
    pub token: Option<SecretRef>,
}

/// The mode of reading a feed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeedType {
    /// Page by page, with pauses.
    Normal,
    /// Page by page; each request waits for changes.
    #[default]
    Longpoll,
    /// One continuous answer.
    Continuous,
}

/// The options of a feed.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct ChangesFeed {
    /// The mode.
    #[serde(default)]
    pub feed_type: FeedType,
    /// The start of a job without a checkpoint: `0`, `now`, or a sequence.
    pub since: Option<serde_json::Value>,
    /// The channels to read, with Sync Gateway.
    #[serde(default)]
    pub channels: Vec<String>,
    /// True if deletions are skipped until the feed has been read to its end once.
    #[serde(default)]
    pub active_only: bool,
    /// True if rows carry documents; otherwise they are read in bulk.
    pub include_docs: Option<bool>,
    /// The interval of heartbeats, in milliseconds.
    pub heartbeat_ms: Option<u64>,
    /// The time after which an idle feed ends, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// The most rows of a page; 0 means 1,000.
    #[serde(default)]
    pub limit: u64,
    /// The name of a filter function.
    pub filter: Option<String>,
    /// The ids of the documents to read. Empty: all.
    #[serde(default)]
    pub doc_ids: Vec<String>,
    /// A selector of the documents to read.
    pub selector: Option<serde_json::Value>,
    /// The interval of polling in seconds, for `normal`.
    pub poll_interval_seconds: Option<f64>,
}

/// A source.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Input {
    /// The id that jobs use.
    pub id: String,
    /// Its kind.
    pub source_type: SourceType,
    /// The database's URL.
    pub url: Option<String>,
    /// The name of a database of this server.
    pub local: Option<String>,
    /// Sync Gateway's scope.
    pub scope: Option<String>,
    /// Sync Gateway's collection.
    pub collection: Option<String>,
    /// The credentials.
    #[serde(default)]
    pub auth: Auth,
    /// Further headers; values may be references to secrets.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// The options of its feed.
    #[serde(default)]
    pub changes_feed: ChangesFeed,
}

/// The kind of an SQL target.
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
    /// The id that jobs use.
    pub id: String,
    /// Its kind.
    pub database_type: DatabaseType,
    /// The host.
    pub host: Option<String>,
    /// The port, if not the default.
    pub port: Option<u16>,
    /// The database; for SQLite the file's name.
    pub database: String,
    /// PostgreSQL's schema.
    pub schema: Option<String>,
    /// The user name.
    pub username: Option<String>,
    /// The user's password.
    pub password: Option<SecretRef>,
    /// True if TLS is required.
    #[serde(default)]
    pub ssl: bool,
    /// True if missing tables are created.
    #[serde(default)]
    pub create_tables: bool,
    /// The timeout of a statement, in seconds.
    pub timeout_seconds: Option<f64>,
    /// The most connections.
    pub pool_max: Option<u32>,
}

/// The treatment of deletions at an HTTP endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnHttpDelete {
    /// Sends them to the document's URL.
    #[default]
    Delete,
    /// Skips them.
    Ignore,
}

/// An HTTP target.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct HttpOutput {
    /// The id that jobs use.
    pub id: String,
    /// The URL of a document: a template.
    pub url: String,
    /// The method for documents. Default: `PUT`.
    pub method: Option<String>,
    /// The method for deletions. Default: `DELETE`.
    pub delete_method: Option<String>,
    /// True if a deletion has a body.
    #[serde(default)]
    pub send_delete_body: bool,
    /// The treatment of deletions.
    #[serde(default)]
    pub on_delete: OnHttpDelete,
    /// Further headers; values may be references to secrets.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// The credentials.
    #[serde(default)]
    pub auth: Auth,
    /// The format of bodies.
    #[serde(default)]
    pub format: Format,
    /// The timeout of an answer, in seconds.
    pub timeout_seconds: Option<f64>,
}

impl HttpOutput {
    /// Splits the URL into the server and the template of its paths, which is at least a slash.
    pub fn parts(&self) -> (&str, &str) {
        let begin = self.url.find("://").map_or(0, |at| at + 3);
        let end = self.url.get(begin..).and_then(|rest| rest.find('/')).map_or(self.url.len(), |at| begin + at);
        let (server, template) = self.url.split_at_checked(end).unwrap_or((&self.url, ""));
        (server, if template.is_empty() { "/" } else { template })
    }

    /// Checks that the template fits documents and their deletions.
    pub fn check(&self) -> Result<(), PathTemplateError> {
        let is_deleted = self.on_delete == OnHttpDelete::Delete;
        path::check(self.parts().1, path::PathPurpose::Documents { is_deleted, is_told: self.send_delete_body })
    }

    /// Returns the template of attachments' paths.
    ///
    /// # Errors
    /// A message that names the defect.
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
        path::check(&template, path::PathPurpose::Attachments).map_err(|error| error.to_string())?;
        Ok(template)
    }
}

/// The kind of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CloudProvider {
    /// S3 and compatible servers.
    S3,
    /// A file of JSON Lines.
    File,
    /// The standard output.
    Stdout,
}

/// The position of the bucket's name in the URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Addressing {
    /// `https://HOST/BUCKET/KEY`
    Path,
    /// `https://BUCKET.HOST/KEY`
    Virtual,
}

/// The limits of an object with many documents.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct BatchPart {
    /// The most documents.
    pub max_docs: Option<usize>,
    /// The most bytes.
    pub max_bytes: Option<usize>,
    /// The longest time that the oldest document waits, in seconds.
    pub max_seconds: Option<f64>,
}

/// A store of objects, a file, or the standard output.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct CloudOutput {
    /// The id that jobs use.
    pub id: String,
    /// Its kind.
    pub provider: CloudProvider,
    /// The file's name.
    pub file: Option<String>,
    /// S3's bucket.
    pub bucket: Option<String>,
    /// The template of object keys.
    pub key_template: Option<String>,
    /// The bucket's region. Default: `us-east-1`.
    pub region: Option<String>,
    /// The store's URL, if it is not Amazon's.
    pub endpoint_url: Option<String>,
    /// The position of the bucket's name. Default: the host name at Amazon, else the path.
    pub addressing: Option<Addressing>,
    /// The access key's id. `None`: anonymous.
    pub access_key_id: Option<SecretRef>,
    /// The secret access key.
    pub secret_access_key: Option<SecretRef>,
    /// The token of temporary credentials.
    pub session_token: Option<SecretRef>,
    /// The format of objects.
    #[serde(default)]
    pub format: ObjectFormat,
    /// The content type, if it differs from the format's.
    pub content_type: Option<String>,
    /// The treatment of deletions.
    #[serde(default)]
    pub on_delete: OnObjectDelete,
    /// The limits of objects with many documents.
    #[serde(default)]
    pub batch: BatchPart,
    /// The timeout of an answer, in seconds.
    pub timeout_seconds: Option<f64>,
}

impl CloudOutput {
    /// Returns the template of object keys.
    ///
    /// # Errors
    /// A message that names the defect.
    pub fn template(&self) -> Result<Template, String> {
        let template: Template = self
            .key_template
            .as_deref()
            .unwrap_or_default()
            .parse()
            .map_err(|error: TemplateError| error.to_string())?;
        let is_for = match (self.format.is_batch(), self.on_delete) {
            (true, _) => KeyPurpose::Batch,
            (false, OnObjectDelete::Delete) => KeyPurpose::Each { is_deleted: true },
            (false, OnObjectDelete::Ignore) => KeyPurpose::Each { is_deleted: false },
            (false, OnObjectDelete::Tombstone) => KeyPurpose::Tombstones,
        };
        template.check(is_for).map_err(|error| error.to_string())?;
        Ok(template)
    }

    /// Returns the template of attachments' keys.
    ///
    /// # Errors
    /// A message that names the defect.
    pub fn attachments(&self, part: &AttachmentsPart) -> Result<Template, String> {
        let template = part.destination.key_template.as_deref().unwrap_or("attachments/{id}/{attachment}");
        let template: Template = template.parse().map_err(|error: TemplateError| error.to_string())?;
        let is_deleted = self.on_delete != OnObjectDelete::Ignore;
        template.check(KeyPurpose::Attachments { is_deleted }).map_err(|error| error.to_string())?;
        if is_deleted && self.template()?.may_meet(&template) {
            return Err(TemplateError::Folder.to_string());
        }
        Ok(template)
    }

    /// Returns the limits of an object with many documents.
    pub fn window(&self) -> BatchLimits {
        let (batch, default) = (&self.batch, BatchLimits::OBJECTS);
        let age = batch.max_seconds.map_or(default.age, |of| Duration::try_from_secs_f64(of).unwrap_or(default.age));
        BatchLimits {
            documents: batch.max_docs.unwrap_or(default.documents).max(1),
            bytes: batch.max_bytes.unwrap_or(default.bytes).clamp(1, OBJECT_BYTES_MAX),
            age,
        }
    }
}

/// The settings of delivery.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Processing {
    /// True if changes are delivered one at a time.
    #[serde(default)]
    pub sequential: bool,
    /// The most concurrent requests.
    pub max_concurrent: Option<usize>,
    /// The most changes in a transaction.
    pub batch: Option<usize>,
    /// True if deletions have no effect.
    #[serde(default)]
    pub ignore_delete: bool,
    /// True if documents that the job lost access to have no effect.
    #[serde(default)]
    pub ignore_remove: bool,
    /// True if everything but the delivery is done.
    #[serde(default)]
    pub dry_run: bool,
}

impl Processing {
    /// Returns the most concurrent requests.
    pub fn at_once(&self) -> usize {
        if self.sequential { 1 } else { self.max_concurrent.unwrap_or(20).max(1) }
    }

    /// Returns the most changes in a transaction.
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

/// The settings of checkpoints at the source.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct CheckpointPart {
    /// The worker's name.
    pub client_id: Option<String>,
    /// See [`CheckpointPart::documents`].
    pub every_n_docs: Option<u64>,
    /// See [`CheckpointPart::period`].
    pub every_seconds: Option<f64>,
}

impl CheckpointPart {
    /// Returns the number of delivered or queued documents after which a checkpoint is written, also within a batch, as
    /// in the Python worker. `None`, also for 0: the worker's default.
    pub fn documents(&self) -> Option<u64> {
        self.every_n_docs.filter(|documents| *documents > 0)
    }

    /// Returns the time after which a checkpoint that could be newer is written. It then is not written at once at the
    /// end of the feed. `None`, also for 0: the worker's default.
    pub fn period(&self) -> Option<std::time::Duration> {
        let seconds = self.every_seconds.filter(|seconds| *seconds > 0.0)?;
        std::time::Duration::try_from_secs_f64(seconds).ok()
    }
}

/// The settings of queue entries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct QueuePart {
    /// The time in seconds after which a removable entry expires; 0: never.
    pub retention_seconds: Option<u64>,
    /// The number of failed replays after which an entry is exhausted.
    pub max_replay_attempts: Option<u32>,
    /// True if waiting entries expire too.
    #[serde(default)]
    pub drop_waiting: bool,
    /// The number of entries that halts the job.
    pub entries_max: Option<u64>,
}

impl QueuePart {
    /// Returns the number of failed replays after which an entry is exhausted.
    pub fn replays_max(&self) -> u32 {
        self.max_replay_attempts.unwrap_or(REPLAYS_MAX)
    }

    /// Returns the retention in seconds. Default: a day, as in the Python worker.
    pub fn retention_seconds(&self) -> u64 {
        self.retention_seconds.unwrap_or(86_400)
    }
}

/// The position that a reset gives to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ResetTo {
    /// The position of a job that never ran.
    Beginning,
    /// The current end of the feed.
    Now,
    /// The current position, even if the source has changed.
    AsIs,
}

/// The action of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderAction {
    /// Restart after a halt.
    Start,
    /// Continue from another position.
    Reset,
    /// Replay entries of the queue.
    Replay,
}

/// A pending order of an administrator to a job. It stays in the job's document until it is done.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, serde::Serialize)]
pub struct Order {
    /// An id, unique within the job.
    pub id: String,
    /// The action.
    #[serde(rename = "do")]
    pub what: OrderAction,
    /// The position, for a reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<ResetTo>,
    /// The ids of the entries to replay, in any state. Empty: waiting entries that match the members below.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<String>,
    /// Only entries with this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Only entries that first failed at or after this time, in seconds of Unix time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// Only entries that first failed at or before this time, in seconds of Unix time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// The most replays per second.
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

/// The settings of a job.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct System {
    /// The settings of delivery.
    #[serde(default)]
    pub processing: Processing,
    #[serde(default)]
    pub(super) retry: RetryPart,
    /// True if the job halts after the configured number of retries.
    #[serde(default)]
    pub halt_on_failure: bool,
    /// The settings of checkpoints at the source.
    #[serde(default)]
    pub checkpoint: CheckpointPart,
    /// The settings of queue entries.
    #[serde(default)]
    pub dlq: QueuePart,
    /// The settings of attachments.
    #[serde(default)]
    pub attachments: AttachmentsPart,
}

impl System {
    /// Returns the schedule of retries after outages of the target.
    pub fn schedule(&self) -> Schedule {
        let default = Schedule::default();
        // The schema limits the values to a day.
        let seconds = |of: Option<f64>, other| of.map_or(other, |of| Duration::try_from_secs_f64(of).unwrap_or(other));
        Schedule {
            first: seconds(self.retry.backoff_base_seconds, default.first),
            max: seconds(self.retry.backoff_max_seconds, default.max),
            tries_max: self.halt_on_failure.then_some(self.retry.max_retries.unwrap_or(5)),
        }
    }
}
