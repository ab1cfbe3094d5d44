//! Documents of `_worker`: jobs, the objects that they name, checkpoints and queue entries. Each is validated by its
//! type's schema and then parsed into its own type. Parsing checks what a schema cannot express: mappings, references
//! to secrets, names of headers.

mod parts;
mod schema;

use std::collections::{BTreeMap, BTreeSet};

use flatbed_client::Url;
use serde::Deserialize;
use serde_json::Value;

use crate::attachments::{AttachmentMode, Attachments, AttachmentsPart};
use crate::checkpoint::Checkpoint;
use crate::mapping::{Mapping, MappingError, SharedTable};
use crate::output::s3::ObjectFormat;
use crate::queue::Entry;
use crate::secret::{SecretRef, is_secret_name};
pub use parts::*;
pub use schema::texts;

/// The longest document, in bytes: an entry with an escaped document in it.
pub const DOCUMENT_BYTES_MAX: usize = 32 << 20;

/// The reason why a document of `_worker` is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// Longer than 32 MB.
    #[error("the document is longer than 32 MB")]
    TooLong,
    /// Not JSON, or not an object.
    #[error("the document is no JSON object")]
    Json,
    /// A missing or unknown `type`.
    #[error(
        "`type` must be inputs_changes, outputs_rdbms, outputs_http, outputs_cloud, tables_rdbms, job, checkpoint, mapping or dlq"
    )]
    Type,
    /// A violation of the schema.
    #[error("{0}")]
    Schema(String),
    /// A violation that the schema cannot express: the member and the message.
    #[error("{0}: {1}")]
    Member(&'static str, String),
    /// An invalid mapping.
    #[error("the mapping: {0}")]
    Mapping(#[from] MappingError),
    /// An `_id` that does not fit the document's type.
    #[error("the `_id` of this document must be {0}")]
    Id(String),
}

/// An object given in full or by its id.
#[derive(Debug, Clone, PartialEq)]
pub enum ObjectRef<T> {
    /// The id of an object in another document.
    Id(String),
    /// The object itself.
    Full(Box<T>),
}

/// A job's target.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Tables.
    Rdbms(RdbmsOutput),
    /// An endpoint.
    Http(HttpOutput),
    /// Objects or lines.
    Cloud(CloudOutput),
}

/// The kind of an output, as in `output_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputType {
    /// An entry of `outputs_rdbms`.
    Rdbms,
    /// An entry of `outputs_http`.
    Http,
    /// An entry of `outputs_cloud`.
    Cloud,
}

/// A job's mapping.
#[derive(Debug, Clone)]
pub enum MappingOf {
    /// None: documents are delivered unchanged.
    None,
    /// The name of a mapping's document.
    Named(String),
    /// An inline mapping.
    Own(Mapping),
}

/// A job, as written.
#[derive(Debug, Clone)]
pub struct Job {
    /// Its id.
    pub id: String,
    /// Its display name.
    pub name: String,
    /// True if the job is to run.
    pub is_enabled: bool,
    /// The source.
    pub input: ObjectRef<Input>,
    /// The target.
    pub output: ObjectRef<Output>,
    /// The kind of the target.
    pub output_type: OutputType,
    /// The mapping.
    pub mapping: MappingOf,
    /// The settings.
    pub system: System,
    /// Pending orders.
    pub orders: Vec<Order>,
}

/// A document of `_worker`.
#[derive(Debug, Clone)]
pub enum Document {
    /// Sources.
    Inputs(Vec<Input>),
    /// Targets.
    Outputs(OutputType, Vec<Output>),
    /// Definitions of tables, by name.
    Tables(BTreeMap<String, SharedTable>),
    /// A job.
    Job(Box<Job>),
    /// A copy of a checkpoint.
    Checkpoint(Checkpoint),
    /// A mapping, by name.
    Mapping(String, Box<Mapping>),
    /// A queue entry.
    Entry(Box<Entry>),
}

#[derive(Deserialize)]
struct JobDocument {
    id: String,
    name: Option<String>,
    #[serde(default = "default_true")]
    enabled: bool,
    inputs: Vec<Value>,
    outputs: Vec<Value>,
    output_type: OutputType,
    mapping: Option<Value>,
    #[serde(default)]
    system: System,
    #[serde(default)]
    orders: Vec<Order>,
}

fn default_true() -> bool {
    true
}

/// Parses a document. Ignores members that begin with an underscore, which are CouchDB's.
///
/// # Errors
/// [`DocumentError`]. The message never contains the value of a member that may hold a secret.
pub fn read(text: &[u8]) -> Result<Document, DocumentError> {
    if text.len() > DOCUMENT_BYTES_MAX {
        return Err(DocumentError::TooLong);
    }
    let Ok(Value::Object(mut members)) = serde_json::from_slice(text) else { return Err(DocumentError::Json) };
    members.retain(|name, _| !name.starts_with('_'));
    let kind = members.get("type").and_then(Value::as_str).map(str::to_owned).ok_or(DocumentError::Type)?;
    let value = Value::Object(members);
    schema::check(&kind, &value).map_err(|refused| match refused {
        schema::SchemaError::Type => DocumentError::Type,
        schema::SchemaError::Faults(faults) => DocumentError::Schema(faults),
    })?;
    match kind.as_str() {
        "inputs_changes" => Ok(Document::Inputs(unique(list(&value, input)?, |input| &input.id)?)),
        "outputs_rdbms" => outputs(OutputType::Rdbms, &value),
        "outputs_http" => outputs(OutputType::Http, &value),
        "outputs_cloud" => outputs(OutputType::Cloud, &value),
        "tables_rdbms" => Ok(Document::Tables(tables(value)?)),
        "job" => job(value).map(|job| Document::Job(Box::new(job))),
        // From the text: a sequence may be a number with more digits than `value` keeps.
        "checkpoint" => Checkpoint::read(text).map(Document::Checkpoint).ok_or(DocumentError::Json),
        "mapping" => {
            let of = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
            Ok(Document::Mapping(of("name").to_owned(), Box::new(Mapping::from_yaml(of("content"))?)))
        }
        _ => typed(value).map(|entry| Document::Entry(Box::new(entry))),
    }
}

/// The prefix of a job document's id; the job's id follows.
pub const JOB: &str = "job::";

/// The prefix of a mapping document's id; its name follows.
pub const MAPPING: &str = "mapping:";

/// The prefix of a checkpoint copy's id; the job's id follows.
pub const CHECKPOINT: &str = "checkpoint::";

/// Validates a document to be written under an id: [`read`], and that the id fits the type.
pub fn check(id: &str, text: &[u8]) -> Result<(), DocumentError> {
    let is = match read(text)? {
        Document::Inputs(_) => "inputs_changes".to_owned(),
        Document::Outputs(OutputType::Rdbms, _) => "outputs_rdbms".to_owned(),
        Document::Outputs(OutputType::Http, _) => "outputs_http".to_owned(),
        Document::Outputs(OutputType::Cloud, _) => "outputs_cloud".to_owned(),
        Document::Tables(_) => "tables_rdbms".to_owned(),
        Document::Job(job) => format!("{JOB}{}", job.id),
        Document::Mapping(name, _) => format!("{MAPPING}{name}"),
        Document::Entry(entry) => entry.id(),
        Document::Checkpoint(_) if id.len() > CHECKPOINT.len() && id.starts_with(CHECKPOINT) => return Ok(()),
        Document::Checkpoint(_) => format!("{CHECKPOINT} and the job's"),
    };
    if is == id { Ok(()) } else { Err(DocumentError::Id(is)) }
}

fn typed<T: for<'d> Deserialize<'d>>(value: Value) -> Result<T, DocumentError> {
    serde_json::from_value(value).map_err(|error| DocumentError::Schema(error.to_string()))
}

fn list<T>(value: &Value, of: impl Fn(&Value) -> Result<T, DocumentError>) -> Result<Vec<T>, DocumentError> {
    value.get("src").and_then(Value::as_array).into_iter().flatten().map(of).collect()
}

fn unique<T>(all: Vec<T>, id: impl Fn(&T) -> &String) -> Result<Vec<T>, DocumentError> {
    let mut seen = BTreeSet::new();
    match all.iter().find(|one| !seen.insert(id(one))) {
        Some(one) => Err(DocumentError::Member("src", format!("the id {:?} occurs twice", id(one)))),
        None => Ok(all),
    }
}

fn outputs(kind: OutputType, value: &Value) -> Result<Document, DocumentError> {
    let all = list(value, |value| output(kind, value))?;
    Ok(Document::Outputs(kind, unique(all, Output::id)?))
}

impl Output {
    /// Returns the id that jobs use.
    pub fn id(&self) -> &String {
        match self {
            Output::Rdbms(output) => &output.id,
            Output::Http(output) => &output.id,
            Output::Cloud(output) => &output.id,
        }
    }
}

fn input(value: &Value) -> Result<Input, DocumentError> {
    let input: Input = typed(value.clone())?;
    if let Some(url) = &input.url {
        address(url, "url")?;
    }
    headers(&input.headers)?;
    signed_in(&input.auth)?;
    Ok(input)
}

fn output(kind: OutputType, value: &Value) -> Result<Output, DocumentError> {
    Ok(match kind {
        OutputType::Rdbms => Output::Rdbms(typed(value.clone())?),
        OutputType::Cloud => Output::Cloud(cloud(typed(value.clone())?)?),
        OutputType::Http => {
            let output: HttpOutput = typed(value.clone())?;
            // A document's content must not choose the server.
            let (server, _) = output.parts();
            if server.contains(['{', '}']) {
                return Err(DocumentError::Member("url", "a template begins behind the server's name".to_owned()));
            }
            address(server, "url")?;
            output.check().map_err(|error| DocumentError::Member("url", error.to_string()))?;
            headers(&output.headers)?;
            signed_in(&output.auth)?;
            Output::Http(output)
        }
    })
}

/// Checks that an object store can hold what a mapping produces.
fn fit(output: &CloudOutput, mapping: &Mapping) -> Result<(), &'static str> {
    let has_table = output.template().is_ok_and(|template| template.has_table());
    let is_parquet = output.format == ObjectFormat::Parquet;
    if has_table && (!is_parquet || mapping.tables().is_empty()) {
        return Err("`{table}` in a key needs Parquet, and a mapping with tables");
    }
    if is_parquet && mapping.tables().len() > 1 && !has_table {
        return Err("Parquet of several tables needs `{table}` in its keys");
    }
    Ok(())
}

/// Checks that a target has a destination for attachments that are delivered individually.
fn apart(output: &Output, part: &AttachmentsPart) -> Result<(), String> {
    match output {
        Output::Http(output) => output.attachments(part).map(drop),
        Output::Cloud(output) if output.provider == CloudProvider::S3 => output.attachments(part).map(drop),
        _ => Err("those of rows and lines stand in the document: `mode` is `inline` or `list`".to_owned()),
    }
}

/// Checks the settings of a store that the schema cannot express.
fn cloud(output: CloudOutput) -> Result<CloudOutput, DocumentError> {
    if output.provider != CloudProvider::S3 {
        return Ok(output);
    }
    if let Some(url) = &output.endpoint_url {
        address(url, "endpoint_url")?;
    }
    output.template().map_err(|error| DocumentError::Member("key_template", error))?;
    if output.access_key_id.is_some() != output.secret_access_key.is_some() {
        let message = "`access_key_id` and `secret_access_key` stand together, or there is neither";
        return Err(DocumentError::Member("access_key_id", message.to_owned()));
    }
    Ok(output)
}

fn address(url: &str, member: &'static str) -> Result<(), DocumentError> {
    let parsed = Url::parse_either(url).map_err(|error| DocumentError::Member(member, error.to_string()))?;
    if parsed.authorization().is_some() || url.split('/').nth(2).is_some_and(|authority| authority.contains('@')) {
        return Err(DocumentError::Member(member, "names and passwords stand in `auth`".to_owned()));
    }
    Ok(())
}

fn headers(headers: &BTreeMap<String, String>) -> Result<(), DocumentError> {
    let wrong = |what: String| DocumentError::Member("headers", what);
    for (name, value) in headers {
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(wrong(format!("{name:?} is no name of a header")));
        }
        if ["host", "content-length", "transfer-encoding", "connection"].contains(&name.to_ascii_lowercase().as_str()) {
            return Err(wrong(format!("{name} is the worker's own")));
        }
        let reference = value.parse::<SecretRef>();
        let is_reference = value.starts_with("env:") || value.starts_with("file:");
        match reference {
            Err(error) if is_reference || is_secret_name(name) => return Err(wrong(format!("{name}: {error}"))),
            Err(_) if value.bytes().any(|byte| byte.is_ascii_control()) => {
                return Err(wrong(format!("{name} has control characters")));
            }
            _ => {}
        }
    }
    Ok(())
}

fn signed_in(auth: &Auth) -> Result<(), DocumentError> {
    let is_whole = match auth.method {
        AuthMethod::None => true,
        AuthMethod::Basic => auth.username.is_some() && auth.password.is_some(),
        AuthMethod::Bearer | AuthMethod::Session => auth.token.is_some(),
    };
    let message = "`basic` needs `username` and `password`, `bearer` and `session` a `token`";
    if is_whole { Ok(()) } else { Err(DocumentError::Member("auth", message.to_owned())) }
}

/// Parses a list of one element: an id, or the whole object.
fn one<T>(list: &[Value], of: impl Fn(&Value) -> Result<T, DocumentError>) -> Result<ObjectRef<T>, DocumentError> {
    let first = list.first().ok_or(DocumentError::Json)?;
    match first.as_object() {
        Some(members) if members.len() == 1 => {
            let id = members.get("id").and_then(Value::as_str).ok_or(DocumentError::Json)?;
            Ok(ObjectRef::Id(id.to_owned()))
        }
        _ => of(first).map(|full| ObjectRef::Full(Box::new(full))),
    }
}

fn job(value: Value) -> Result<Job, DocumentError> {
    let document: JobDocument = typed(value)?;
    let kind = document.output_type;
    let part = &document.system.attachments;
    let wrong = |error| DocumentError::Member("attachments", error);
    let attachments = Attachments::of(part).map_err(wrong)?;
    let output = one(&document.outputs, |value| output(kind, value))?;
    if let ObjectRef::Full(output) = &output
        && attachments.is_some_and(|attachments| attachments.mode == AttachmentMode::Individual)
    {
        apart(output, part).map_err(wrong)?;
    }
    let mapping = match document.mapping {
        None | Some(Value::Null) => MappingOf::None,
        Some(Value::String(name)) => MappingOf::Named(name),
        Some(own) => MappingOf::Own(Mapping::from_value(own)?),
    };
    Ok(Job {
        name: document.name.unwrap_or_else(|| document.id.clone()),
        id: document.id,
        is_enabled: document.enabled,
        input: one(&document.inputs, input)?,
        output,
        output_type: kind,
        mapping,
        system: document.system,
        orders: document.orders,
    })
}

/// Parses tables that mappings share. Skips types that belong to other databases.
fn tables(value: Value) -> Result<BTreeMap<String, SharedTable>, DocumentError> {
    let document: TablesDocument = typed(value)?;
    let mut tables = BTreeMap::new();
    for table in document.tables {
        let mut shared = SharedTable::default();
        for column in table.columns {
            if column.primary_key {
                shared.key.push(column.name.clone());
            }
            shared.columns.insert(column.name, (column.kind.parse().ok(), column.nullable.unwrap_or(true)));
        }
        if tables.insert(table.name.clone(), shared).is_some() {
            return Err(DocumentError::Member("tables", format!("the name {:?} occurs twice", table.name)));
        }
    }
    Ok(tables)
}

/// The objects that jobs can name.
#[derive(Debug, Clone, Default)]
pub struct Connections {
    inputs: BTreeMap<String, Input>,
    outputs: Vec<(OutputType, Output)>,
    mappings: BTreeMap<String, Mapping>,
    tables: BTreeMap<String, SharedTable>,
}

/// A job with all objects that it names: the input of a run.
#[derive(Debug, Clone)]
pub struct Description {
    /// The job's id.
    pub id: String,
    /// The source.
    pub input: Input,
    /// The target.
    pub output: Output,
    /// The mapping.
    pub mapping: Mapping,
    /// The settings.
    pub system: System,
    /// The settings of attachments.
    pub attachments: Option<Attachments>,
}

impl Description {
    /// Returns the settings of attachments if they are delivered individually.
    pub fn attachments_apart(&self) -> Option<&AttachmentsPart> {
        let is_apart =
            self.attachments.as_ref().is_some_and(|attachments| attachments.mode == AttachmentMode::Individual);
        is_apart.then_some(&self.system.attachments)
    }
}

/// The reason why a job cannot run as configured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigurationError {
    /// A named object that does not exist.
    #[error("there is no {0} {1:?}")]
    Missing(&'static str, String),
    /// A table without a key, both in the mapping and among the shared tables.
    #[error("the mapping: {0}")]
    Mapping(#[from] MappingError),
    /// Unfit settings of attachments.
    #[error("`attachments`: {0}")]
    Attachments(String),
    /// A target with tables whose mapping has none, or vice versa.
    #[error("{0}")]
    Unfit(&'static str),
}

impl Connections {
    /// Adds a document's objects. Jobs, checkpoints and entries have none.
    pub fn add(&mut self, document: Document) {
        match document {
            Document::Inputs(inputs) => {
                self.inputs = inputs.into_iter().map(|input| (input.id.clone(), input)).collect()
            }
            Document::Outputs(kind, outputs) => {
                self.outputs.retain(|(other, _)| *other != kind);
                self.outputs.extend(outputs.into_iter().map(|output| (kind, output)));
            }
            Document::Mapping(name, mapping) => {
                self.mappings.insert(name, *mapping);
            }
            Document::Tables(tables) => self.tables = tables,
            Document::Job(_) | Document::Checkpoint(_) | Document::Entry(_) => {}
        }
    }

    /// Returns a mapping by name.
    pub fn mapping(&self, name: &str) -> Option<&Mapping> {
        self.mappings.get(name)
    }

    /// Returns a job with all objects that it names.
    pub fn resolve(&self, job: &Job) -> Result<Description, ConfigurationError> {
        let missing = |what, id: &str| ConfigurationError::Missing(what, id.to_owned());
        let input = match &job.input {
            ObjectRef::Full(input) => (**input).clone(),
            ObjectRef::Id(id) => self.inputs.get(id).cloned().ok_or_else(|| missing("input", id))?,
        };
        let output = match &job.output {
            ObjectRef::Full(output) => (**output).clone(),
            ObjectRef::Id(id) => {
                let of = |(kind, output): &&(OutputType, Output)| *kind == job.output_type && output.id() == id;
                self.outputs.iter().find(of).map(|(_, output)| output.clone()).ok_or_else(|| missing("output", id))?
            }
        };
        let mapping = match &job.mapping {
            MappingOf::None => Mapping::identity(),
            MappingOf::Own(mapping) => mapping.clone(),
            MappingOf::Named(name) => self.mappings.get(name).cloned().ok_or_else(|| missing("mapping", name))?,
        };
        let mapping = mapping.completed(&self.tables)?;
        let feed = &input.changes_feed;
        let filters =
            [feed.filter.is_some(), !feed.channels.is_empty(), !feed.doc_ids.is_empty(), feed.selector.is_some()];
        if filters.into_iter().filter(|is_there| *is_there).count() > 1 {
            return Err(ConfigurationError::Unfit(
                "one of `filter`, `channels`, `doc_ids` and `selector` may be given",
            ));
        }
        let has_collections = !matches!(input.source_type, SourceType::Flatbed | SourceType::Couchdb);
        if (input.scope.is_some() || input.collection.is_some()) && (!has_collections || input.local.is_some()) {
            return Err(ConfigurationError::Unfit("`scope` and `collection` are of Sync Gateway's databases"));
        }
        if input.scope.is_some() && input.collection.is_none() {
            return Err(ConfigurationError::Unfit("a `scope` needs a `collection`"));
        }
        if input.local.as_deref() == Some("_worker") {
            return Err(ConfigurationError::Unfit(
                "the worker's own database cannot be a source: each failure would add a change to it",
            ));
        }
        if matches!(output, Output::Rdbms(_)) && mapping.tables().is_empty() {
            return Err(ConfigurationError::Unfit("an SQL target needs a mapping with tables"));
        }
        if let Output::Cloud(output) = &output
            && output.provider == CloudProvider::S3
        {
            fit(output, &mapping).map_err(ConfigurationError::Unfit)?;
        }
        let system = job.system.clone();
        let attachments = Attachments::of(&system.attachments).map_err(ConfigurationError::Attachments)?;
        let description = Description { id: job.id.clone(), input, output, mapping, system, attachments };
        if let Some(part) = description.attachments_apart() {
            apart(&description.output, part).map_err(ConfigurationError::Attachments)?;
        }
        Ok(description)
    }
}

#[cfg(test)]
mod tests;
