//! The specification of a replication.

use std::borrow::Cow;
use std::time::Duration;

use flatbed_client::encode_segment;
use flatbed_flatten::json::{Value, to_string, to_vec, write_string};
use md5::{Digest, Md5};

use crate::checkpoint::SEQ_BYTES_MAX;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::function::Function;

/// The default interval of checkpoints, as in CouchDB.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(30);

/// The longest query with which a target is created, in bytes.
const CREATE_QUERY_BYTES_MAX: usize = 1_000;

/// The selection of documents.
#[derive(Debug, Clone, PartialEq)]
pub enum Filter {
    /// By id, as the text of a JSON array.
    Ids(Vec<u8>),
    /// By a Mango selector, as JSON text.
    Selector(Vec<u8>),
    /// By a function of a design document of the source, with its parameters.
    Function(String, Vec<(String, String)>),
}

/// The options of a specification that does not name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecDefaults {
    /// See [`Spec::checkpoint_interval`].
    pub checkpoint_interval: Duration,
    /// See [`Spec::use_checkpoints`].
    pub use_checkpoints: bool,
}

/// CouchDB's defaults.
impl Default for SpecDefaults {
    fn default() -> Self {
        SpecDefaults { checkpoint_interval: CHECKPOINT_INTERVAL, use_checkpoints: true }
    }
}

/// A replication.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The source.
    pub source: Endpoint,
    /// The target.
    pub target: Endpoint,
    /// True if the replication never ends by itself.
    pub continuous: bool,
    /// True if a missing target is created.
    pub create_target: bool,
    /// The query with which it is created: empty, or from its `?` on.
    pub create_query: String,
    /// The selection of documents; `None`: all.
    pub filter: Option<Filter>,
    /// The sequence to begin at instead of the checkpoint, as JSON text.
    pub since_seq: Option<Vec<u8>>,
    /// The interval of checkpoints.
    pub checkpoint_interval: Duration,
    /// True if checkpoints are read and written.
    pub use_checkpoints: bool,
    /// True if only winning revisions are replicated.
    pub winning_revs_only: bool,
    /// The owner, if others would get other documents from the same specification. It is part of the log's id and not
    /// of the specification's text.
    pub owner: Option<String>,
}

fn hash(text: &[u8]) -> String {
    Md5::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the query with the parameters of a target's creation.
fn create_query(parameters: Option<&Value<'_>>) -> Result<String> {
    let members = match parameters {
        None => return Ok(String::new()),
        Some(Value::Object(members)) => members,
        Some(_) => {
            let reason = "parameter `create_target_params` must be a JSON object";
            return Err(Error::InvalidSpec(reason.to_owned()));
        }
    };
    let mut query = String::new();
    for (name, value) in members {
        let text: &str = match value {
            Value::String(text) | Value::Number(text) => text,
            Value::Bool(true) => "true",
            Value::Bool(false) => "false",
            _ => {
                let reason = "the members of `create_target_params` must be strings, numbers or booleans";
                return Err(Error::InvalidSpec(reason.to_owned()));
            }
        };
        query.push(if query.is_empty() { '?' } else { '&' });
        query.extend([encode_segment(name).as_str(), "=", encode_segment(text).as_str()]);
        if query.len() > CREATE_QUERY_BYTES_MAX {
            return Err(Error::InvalidSpec("`create_target_params` are longer than 1 kB".to_owned()));
        }
    }
    Ok(query)
}

/// Decodes `%XX` in an id, as CouchDB does in `doc_ids`. A `+` stays. Returns the text unchanged if the result is not
/// UTF-8.
fn unquoted(id: &str) -> Cow<'_, str> {
    if !id.contains('%') {
        return id.into();
    }
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16)).map(|digit| digit as u8);
    let mut bytes = Vec::with_capacity(id.len());
    let mut rest = id.as_bytes();
    while let [first, behind @ ..] = rest {
        let (byte, left) = match (first, digit(behind.first()), digit(behind.get(1))) {
            (b'%', Some(high), Some(low)) => (high << 4 | low, behind.get(2..).unwrap_or_default()),
            _ => (*first, behind),
        };
        bytes.push(byte);
        rest = left;
    }
    String::from_utf8(bytes).map_or_else(|_| id.into(), Cow::Owned)
}

impl Spec {
    /// Parses the body of `POST /_replicate` or a document of `_replicator`.
    ///
    /// # Errors
    /// [`Error::InvalidSpec`], [`Error::Url`].
    pub fn parse(value: &Value<'_>) -> Result<Spec> {
        Spec::parse_with(value, SpecDefaults::default())
    }

    /// As [`Spec::parse`], with other defaults.
    ///
    /// # Errors
    /// As there.
    pub fn parse_with(value: &Value<'_>, defaults: SpecDefaults) -> Result<Spec> {
        let flag = |name: &str, default: bool| match value.get(name) {
            None | Some(Value::Null) => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(Error::InvalidSpec(format!("`{name}` must be a boolean"))),
        };
        let given = |name: &str| value.get(name).filter(|value| **value != Value::Null);
        let mut filters = Vec::new();
        if let Some(ids) = given("doc_ids") {
            match ids {
                Value::Array(items) if items.iter().all(|id| id.as_str().is_some()) => {
                    // Equal sets of ids make equal replications.
                    let mut items: Vec<_> = items.iter().filter_map(Value::as_str).map(unquoted).collect();
                    items.sort_unstable();
                    items.dedup();
                    let items = items.into_iter().map(Value::String).collect();
                    filters.push(Filter::Ids(to_vec(&Value::Array(items))));
                }
                _ => return Err(Error::InvalidSpec("`doc_ids` must be an array of strings".to_owned())),
            }
        }
        if let Some(selector) = given("selector") {
            if !matches!(selector, Value::Object(_)) {
                return Err(Error::InvalidSpec("`selector` must be an object".to_owned()));
            }
            filters.push(Filter::Selector(to_vec(selector)));
        }
        if let Some(filter) = given("filter") {
            let name = filter.as_str().filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| Error::InvalidSpec("`filter` must be a string".to_owned()))?;
            let mut parameters = Vec::new();
            if let Some(Value::Object(members)) = given("query_params") {
                for (name, value) in members {
                    let text = value.as_str().map_or_else(|| to_string(value), str::to_owned);
                    parameters.push((name.to_string(), text));
                }
            }
            filters.push(Filter::Function(name.to_owned(), parameters));
        }
        if filters.len() > 1 {
            let reason = "`doc_ids`, `filter`, `selector` are mutually exclusive options";
            return Err(Error::InvalidSpec(reason.to_owned()));
        }
        let checkpoint_interval = match given("checkpoint_interval") {
            None => defaults.checkpoint_interval,
            Some(Value::Number(text)) => match text.parse::<u64>() {
                Ok(milliseconds) if milliseconds > 0 => Duration::from_millis(milliseconds),
                _ => return Err(Error::InvalidSpec("`checkpoint_interval` must be milliseconds".to_owned())),
            },
            Some(_) => return Err(Error::InvalidSpec("`checkpoint_interval` must be milliseconds".to_owned())),
        };
        let since_seq = given("since_seq").map(to_vec);
        if since_seq.as_ref().is_some_and(|seq| seq.len() > SEQ_BYTES_MAX) {
            return Err(Error::InvalidSpec("`since_seq` is longer than 8 kB".to_owned()));
        }
        Ok(Spec {
            source: Endpoint::parse(value.get("source"), "source")?,
            target: Endpoint::parse(value.get("target"), "target")?,
            continuous: flag("continuous", false)?,
            create_target: flag("create_target", false)?,
            create_query: create_query(given("create_target_params"))?,
            filter: filters.pop(),
            since_seq,
            checkpoint_interval,
            use_checkpoints: flag("use_checkpoints", defaults.use_checkpoints)?,
            winning_revs_only: flag("winning_revs_only", false)?,
            owner: None,
        })
    }

    /// Returns the length in bytes of the part without an own limit: the filter.
    pub fn filter_bytes(&self) -> usize {
        match &self.filter {
            None => 0,
            Some(Filter::Ids(text) | Filter::Selector(text)) => text.len(),
            Some(Filter::Function(name, parameters)) => {
                let each = parameters.iter().map(|(name, value)| name.len() + value.len() + 2 * size_of::<String>());
                name.len() + each.sum::<usize>()
            }
        }
    }

    /// Returns the id of the replication: 32 hexadecimal digits, equal for the same server, source, target and options.
    /// `server` is the server's own id.
    pub fn id(&self, server: &str) -> String {
        hash(&self.identity(server))
    }

    /// Returns the id of this replication's log on both sides: its own id, or, if a function selects the documents, one
    /// that includes the function's code.
    pub(crate) fn log_id(&self, server: &str, function: Option<&Function>) -> String {
        let mut text = self.identity(server);
        if let Some(function) = function {
            text.extend_from_slice(b"code");
            text.extend_from_slice(function.code());
        }
        hash(&text)
    }

    fn identity(&self, server: &str) -> Vec<u8> {
        let mut text = Vec::new();
        for part in [server, &self.source.identity(), &self.target.identity()] {
            write_string(part, &mut text);
        }
        match &self.filter {
            None => {}
            Some(Filter::Ids(ids)) => text.extend_from_slice(ids),
            Some(Filter::Selector(selector)) => text.extend_from_slice(selector),
            Some(Filter::Function(name, parameters)) => {
                write_string(name, &mut text);
                for (name, value) in parameters {
                    write_string(name, &mut text);
                    write_string(value, &mut text);
                }
            }
        }
        if self.winning_revs_only {
            text.extend_from_slice(b"winning_revs_only");
        }
        // Its checkpoint does not cover changes before `since_seq`.
        if let Some(seq) = &self.since_seq {
            text.extend_from_slice(b"since_seq");
            text.extend_from_slice(seq);
        }
        if let Some(owner) = &self.owner {
            text.extend_from_slice(b"owner");
            write_string(owner, &mut text);
        }
        text
    }

    /// Returns the id of the job. CouchDB marks continuous jobs and those that create their target.
    pub fn job_id(&self, server: &str) -> String {
        let mut id = self.id(server);
        if self.continuous {
            id.push_str("+continuous");
        }
        if self.create_target {
            id.push_str("+create_target");
        }
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flatbed_flatten::json::{Limits, parse};

    fn spec(text: &str) -> Result<Spec> {
        Spec::parse(&parse(text.as_bytes(), &Limits::default()).unwrap())
    }

    #[test]
    fn a_target_is_created_with_its_parameters() {
        let query = |parameters: &str| {
            let text =
                format!(r#"{{"source":"a","target":"b","create_target":true,"create_target_params":{parameters}}}"#);
            spec(&text).map(|spec| spec.create_query)
        };
        assert_eq!(query(r#"{"partitioned":true,"q":"4","n":1}"#).unwrap(), "?partitioned=true&q=4&n=1");
        assert_eq!(query(r#"{"a&b":"c=d e"}"#).unwrap(), "?a%26b=c%3Dd%20e");
        assert_eq!((query("{}").unwrap(), query("null").unwrap()), (String::new(), String::new()));
        for wrong in ["5", "[]", r#"{"q":null}"#, r#"{"q":{}}"#, &format!(r#"{{"q":"{}"}}"#, "x".repeat(2_000))] {
            assert!(query(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ids_are_of_what_is_replicated() {
        let id = |text: &str| spec(text).unwrap().id("server");
        let plain = id(r#"{"source":"a","target":"http://anna:x@h/b"}"#);
        assert_eq!(plain.len(), 32);
        assert_eq!(plain, id(r#"{"target":"http://anna:y@h:80/b/","source":"a","continuous":true}"#));
        assert_ne!(plain, id(r#"{"source":"a","target":"http://h/b"}"#));
        assert_ne!(plain, id(r#"{"source":"a","target":"http://anna:x@h/b","doc_ids":["x"]}"#));
        let ids = |ids: &str| id(&format!(r#"{{"source":"a","target":"b","doc_ids":{ids}}}"#));
        assert_eq!(ids(r#"["x","y"]"#), ids(r#"["y","x","y"]"#));
        let filter =
            spec(r#"{"source":"a","target":"b","doc_ids":["a%2Fb","a/b","%C3%a9+","50%","%zz","%ff","%2525"]}"#);
        let decoded = r#"["%25","%ff","%zz","50%","a/b","é+"]"#;
        assert_eq!(filter.unwrap().filter, Some(Filter::Ids(decoded.as_bytes().to_vec())));
        // A replication that began at a later sequence has seen fewer changes.
        let since = |since: &str| id(&format!(r#"{{"source":"a","target":"b","since_seq":{since}}}"#));
        assert!(since("5") != since("6") && since("null") == id(r#"{"source":"a","target":"b"}"#));
        let mut owned = spec(r#"{"source":"a","target":"b"}"#).unwrap();
        let ids = ["anna", "bob"].map(|name| {
            let before = owned.id("s");
            owned.owner = Some(name.to_owned());
            (before, owned.id("s"))
        });
        assert!(ids[0].0 != ids[0].1 && ids[0].1 == ids[1].0 && ids[1].0 != ids[1].1);
        let continuous = spec(r#"{"source":"a","target":"b","continuous":true}"#).unwrap();
        assert!(continuous.job_id("s").ends_with("+continuous"));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            r#"{"source":"a"}"#,
            r#"{"source":"a","target":"b","continuous":1}"#,
            r#"{"source":"a","target":"b","doc_ids":[1]}"#,
            r#"{"source":"a","target":"b","selector":[]}"#,
            r#"{"source":"a","target":"b","selector":{},"filter":"x/y"}"#,
            r#"{"source":"a","target":"b","checkpoint_interval":0}"#,
        ] {
            assert!(matches!(spec(text), Err(Error::InvalidSpec(_))), "{text}");
        }
    }
}
