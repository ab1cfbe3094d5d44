//! Documents of `_worker`: jobs, what they name, checkpoints and entries. Each is judged by its type's schema and then read
//! into a type of its own; what only the whole can say (a mapping, a reference to a secret, the name of a header) is looked at
//! after that.

mod parts;
mod schema;

use std::collections::{BTreeMap, BTreeSet};

use flatbed_client::Url;
use serde::Deserialize;
use serde_json::Value;

use crate::attachments::{Attachments, AttachmentsPart, Mode};
use crate::checkpoint::Checkpoint;
use crate::mapping::{Mapping, MappingError, Shared};
use crate::output::s3::ObjectFormat;
use crate::queue::Entry;
use crate::secret::{SecretRef, is_secret_name};
pub use parts::*;
pub use schema::texts;

/// The longest document: an entry with a document in it, escaped.
pub const DOCUMENT_BYTES_MAX: usize = 32 << 20;

/// Why a document of `_worker` is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// Longer than 32 MB.
    #[error("the document is longer than 32 MB")]
    TooLong,
    /// No JSON, or no object.
    #[error("the document is no JSON object")]
    Json,
    /// No `type`, or one that there is not.
    #[error(
        "`type` must be inputs_changes, outputs_rdbms, outputs_http, outputs_cloud, tables_rdbms, job, checkpoint, mapping or dlq"
    )]
    Type,
    /// What the schema says.
    #[error("{0}")]
    Schema(String),
    /// What the schema cannot see.
    #[error("{0}: {1}")]
    Member(&'static str, String),
    /// The mapping.
    #[error("the mapping: {0}")]
    Mapping(#[from] MappingError),
    /// Its id.
    #[error("the `_id` of this document must be {0}")]
    Id(String),
}

/// One of several that have an id.
#[derive(Debug, Clone, PartialEq)]
pub enum Named<T> {
    /// What another document has under this id.
    Id(String),
    /// Itself.
    Full(Box<T>),
}

/// Where a job's rows go.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Tables.
    Rdbms(RdbmsOutput),
    /// An endpoint.
    Http(HttpOutput),
    /// Objects or lines.
    Cloud(CloudOutput),
}

/// The kind of an output, as `output_type` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputType {
    /// Of `outputs_rdbms`.
    Rdbms,
    /// Of `outputs_http`.
    Http,
    /// Of `outputs_cloud`.
    Cloud,
}

/// What a job says of its mapping.
#[derive(Debug, Clone)]
pub enum MappingOf {
    /// Nothing: documents as they are.
    None,
    /// The name of a document.
    Named(String),
    /// Itself.
    Own(Mapping),
}

/// A job, as it is written.
#[derive(Debug, Clone)]
pub struct Job {
    /// Its id.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// Whether it is to run.
    pub is_enabled: bool,
    /// Where changes come from.
    pub input: Named<Input>,
    /// Where they go.
    pub output: Named<Output>,
    /// What kind of output.
    pub output_type: OutputType,
    /// What is made of them.
    pub mapping: MappingOf,
    /// How.
    pub system: System,
    /// What is to be done besides.
    pub orders: Vec<Order>,
}

/// A document of `_worker`.
#[derive(Debug, Clone)]
pub enum Document {
    /// Sources.
    Inputs(Vec<Input>),
    /// Targets.
    Outputs(OutputType, Vec<Output>),
    /// Definitions of tables, by their names.
    Tables(BTreeMap<String, Shared>),
    /// A job.
    Job(Box<Job>),
    /// A checkpoint's copy.
    Checkpoint(Checkpoint),
    /// A mapping, by name.
    Mapping(String, Box<Mapping>),
    /// An entry of the queue.
    Entry(Box<Entry>),
}

#[derive(Deserialize)]
struct JobDocument {
    id: String,
    name: Option<String>,
    #[serde(default = "yes")]
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

fn yes() -> bool {
    true
}

/// Reads a document; members that begin with an underscore are CouchDB's and not looked at.
///
/// # Errors
/// [`DocumentError`] with what is wrong. It has nothing of what stands where a secret belongs.
pub fn read(text: &[u8]) -> Result<Document, DocumentError> {
    if text.len() > DOCUMENT_BYTES_MAX {
        return Err(DocumentError::TooLong);
    }
    let Ok(Value::Object(mut members)) = serde_json::from_slice(text) else { return Err(DocumentError::Json) };
    members.retain(|name, _| !name.starts_with('_'));
    let kind = members.get("type").and_then(Value::as_str).map(str::to_owned).ok_or(DocumentError::Type)?;
    let value = Value::Object(members);
    schema::check(&kind, &value).map_err(|refused| match refused {
        schema::Refused::Type => DocumentError::Type,
        schema::Refused::Faults(faults) => DocumentError::Schema(faults),
    })?;
    match kind.as_str() {
        "inputs_changes" => Ok(Document::Inputs(unique(list(&value, input)?, |input| &input.id)?)),
        "outputs_rdbms" => outputs(OutputType::Rdbms, &value),
        "outputs_http" => outputs(OutputType::Http, &value),
        "outputs_cloud" => outputs(OutputType::Cloud, &value),
        "tables_rdbms" => Ok(Document::Tables(tables(value)?)),
        "job" => job(value).map(|job| Document::Job(Box::new(job))),
        "checkpoint" => {
            let text = value.to_string();
            Checkpoint::read(text.as_bytes()).map(Document::Checkpoint).ok_or(DocumentError::Json)
        }
        "mapping" => {
            let of = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
            Ok(Document::Mapping(of("name").to_owned(), Box::new(Mapping::from_yaml(of("content"))?)))
        }
        _ => typed(value).map(|entry| Document::Entry(Box::new(entry))),
    }
}

/// What the id of a job's document begins with; the job's follows.
pub const JOB: &str = "job::";

/// What the id of a mapping's document begins with; its name follows.
pub const MAPPING: &str = "mapping:";

/// What the id of a checkpoint's copy begins with; the job's follows.
pub const CHECKPOINT: &str = "checkpoint::";

/// Judges a document that is to be written under an id: [`read`], and whether the id is the one that its type has.
///
/// # Errors
/// [`DocumentError`].
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
        Some(one) => Err(DocumentError::Member("src", format!("the id {:?} stands twice", id(one)))),
        None => Ok(all),
    }
}

fn outputs(kind: OutputType, value: &Value) -> Result<Document, DocumentError> {
    let all = list(value, |value| output(kind, value))?;
    Ok(Document::Outputs(kind, unique(all, Output::id)?))
}

impl Output {
    /// What jobs call it.
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
            // A document may not choose this server.
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

/// Whether objects of a store have what a mapping makes.
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

/// Whether attachments that are delivered by themselves have a place in a target.
fn apart(output: &Output, part: &AttachmentsPart) -> Result<(), String> {
    match output {
        Output::Http(output) => output.attachments(part).map(drop),
        Output::Cloud(output) if output.provider == CloudProvider::S3 => output.attachments(part).map(drop),
        _ => Err("those of rows and lines stand in the document: `mode` is `inline` or `list`".to_owned()),
    }
}

/// What the schema cannot see of a store.
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

/// What stands in a list of one: an id alone, or all of it.
fn one<T>(list: &[Value], of: impl Fn(&Value) -> Result<T, DocumentError>) -> Result<Named<T>, DocumentError> {
    let first = list.first().ok_or(DocumentError::Json)?;
    match first.as_object() {
        Some(members) if members.len() == 1 => {
            let id = members.get("id").and_then(Value::as_str).ok_or(DocumentError::Json)?;
            Ok(Named::Id(id.to_owned()))
        }
        _ => of(first).map(|full| Named::Full(Box::new(full))),
    }
}

fn job(value: Value) -> Result<Job, DocumentError> {
    let document: JobDocument = typed(value)?;
    let kind = document.output_type;
    let part = &document.system.attachments;
    let wrong = |error| DocumentError::Member("attachments", error);
    let attachments = Attachments::of(part).map_err(wrong)?;
    let output = one(&document.outputs, |value| output(kind, value))?;
    if let Named::Full(output) = &output
        && attachments.is_some_and(|attachments| attachments.mode == Mode::Individual)
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

/// Tables that mappings share. Types of other databases are those of nobody here, and left out.
fn tables(value: Value) -> Result<BTreeMap<String, Shared>, DocumentError> {
    let document: TablesDocument = typed(value)?;
    let mut tables = BTreeMap::new();
    for table in document.tables {
        let mut shared = Shared::default();
        for column in table.columns {
            if column.primary_key {
                shared.key.push(column.name.clone());
            }
            shared.columns.insert(column.name, (column.kind.parse().ok(), column.nullable.unwrap_or(true)));
        }
        if tables.insert(table.name.clone(), shared).is_some() {
            return Err(DocumentError::Member("tables", format!("the name {:?} stands twice", table.name)));
        }
    }
    Ok(tables)
}

/// What jobs name, as far as it is there.
#[derive(Debug, Clone, Default)]
pub struct Connections {
    inputs: BTreeMap<String, Input>,
    outputs: Vec<(OutputType, Output)>,
    mappings: BTreeMap<String, Mapping>,
    tables: BTreeMap<String, Shared>,
}

/// All that a run of a job needs.
#[derive(Debug, Clone)]
pub struct Description {
    /// The job's id.
    pub id: String,
    /// Where changes come from.
    pub input: Input,
    /// Where they go.
    pub output: Output,
    /// What is made of them.
    pub mapping: Mapping,
    /// How.
    pub system: System,
    /// What it wants of attachments.
    pub attachments: Option<Attachments>,
}

impl Description {
    /// Where attachments go, if each goes by itself.
    pub fn attachments_apart(&self) -> Option<&AttachmentsPart> {
        let is_apart = self.attachments.as_ref().is_some_and(|attachments| attachments.mode == Mode::Individual);
        is_apart.then_some(&self.system.attachments)
    }
}

/// Why a job cannot run as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unresolved {
    /// What it names is in no document.
    #[error("there is no {0} {1:?}")]
    Missing(&'static str, String),
    /// A table that has no key, neither in the mapping nor among those that mappings share.
    #[error("the mapping: {0}")]
    Mapping(#[from] MappingError),
    /// Attachments.
    #[error("`attachments`: {0}")]
    Attachments(String),
    /// Tables without a mapping to tables, or the other way round.
    #[error("{0}")]
    Unfit(&'static str),
}

impl Connections {
    /// Takes in what a document has. Jobs, checkpoints and entries have none.
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

    /// A mapping by its name.
    pub fn mapping(&self, name: &str) -> Option<&Mapping> {
        self.mappings.get(name)
    }

    /// A job with all that it names.
    ///
    /// # Errors
    /// [`Unresolved`].
    pub fn resolve(&self, job: &Job) -> Result<Description, Unresolved> {
        let missing = |what, id: &str| Unresolved::Missing(what, id.to_owned());
        let input = match &job.input {
            Named::Full(input) => (**input).clone(),
            Named::Id(id) => self.inputs.get(id).cloned().ok_or_else(|| missing("input", id))?,
        };
        let output = match &job.output {
            Named::Full(output) => (**output).clone(),
            Named::Id(id) => {
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
            return Err(Unresolved::Unfit("one of `filter`, `channels`, `doc_ids` and `selector` may be given"));
        }
        let has_collections = !matches!(input.source_type, SourceType::Flatbed | SourceType::Couchdb);
        if (input.scope.is_some() || input.collection.is_some()) && (!has_collections || input.local.is_some()) {
            return Err(Unresolved::Unfit("`scope` and `collection` are of Sync Gateway's databases"));
        }
        if input.scope.is_some() && input.collection.is_none() {
            return Err(Unresolved::Unfit("a `scope` needs a `collection`"));
        }
        if input.local.as_deref() == Some("_worker") {
            return Err(Unresolved::Unfit("the worker's own database is no source: what fails would make more of it"));
        }
        if matches!(output, Output::Rdbms(_)) && mapping.tables().is_empty() {
            return Err(Unresolved::Unfit("an SQL target needs a mapping with tables"));
        }
        if let Output::Cloud(output) = &output
            && output.provider == CloudProvider::S3
        {
            fit(output, &mapping).map_err(Unresolved::Unfit)?;
        }
        let system = job.system.clone();
        let attachments = Attachments::of(&system.attachments).map_err(Unresolved::Attachments)?;
        let description = Description { id: job.id.clone(), input, output, mapping, system, attachments };
        if let Some(part) = description.attachments_apart() {
            apart(&description.output, part).map_err(Unresolved::Attachments)?;
        }
        Ok(description)
    }
}

#[cfg(test)]
mod tests;
