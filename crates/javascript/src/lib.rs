//! Runs functions of design documents (filters, `validate_doc_update`, maps, reduces, shows, lists, updates,
//! rewrites), sync functions of databases, and functions of the changes worker.
//!
//! These functions are untrusted programs. Each design document runs in its own runtime (QuickJS), which reaches no
//! file, no network and no other document. Memory, stack and time of a call are bounded. A runtime serves one caller,
//! a request, so that no other request sees state that a function leaves behind. All runtimes live in a few processes
//! of this crate that databases share in turns. No thread of the caller waits for JavaScript, and a process that does
//! not stop is killed.
//!
//! The processes are the program that links this crate, started again without running its `main` (`child.rs`).
//!
//! Documents are passed as JSON text; results are values.

mod child;
mod clock;
mod engine;
mod engine_request;
mod error;
mod figures;
mod gather;
mod group;
mod harden;
mod late;
mod list;
mod machine;
mod memory;
mod message;
mod nursery;
mod owners;
mod pool;
mod process;
mod queue;
mod read_members;
mod records;
mod render;
mod report;
mod response;
mod room;
mod rows;
mod runner;
mod shared;
mod sync;
mod sync_output;
mod thread;
mod together;
mod transform;
mod validate;
mod wire;
mod work;
mod writes;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

pub use error::{Error, Result};
pub use figures::{CallClass, FunctionFigures, KillCause};
use flatbed_flatten::json::{self, Limits, Value};
pub use group::{Group, GroupFunctions, MappedBatch, ReduceInput, Reduction, RowLimits};
pub use list::{List, ListPart};
pub use render::UpdateResult;
pub use response::{InvalidResponse, Response, ResponseBody, members};
pub use room::Room;
pub use rows::Rows;
pub use runner::Runner;
pub use sync::{SyncDecision, SyncFunction, SyncRefusal, SyncWrite};
pub use transform::TransformFunction;
pub use validate::Validation;
pub use writes::{WriteContext, WriteTexts};

use engine_request::{Answer, EngineRequest};

/// The most characters of names and reasons that functions throw; longer ones are cut.
const TEXT_CHARACTERS_MAX: usize = 4_000;

/// Limits of the calls.
#[derive(Debug, Clone)]
pub struct RunnerOptions {
    /// Calls of filters and validation that run at once, each in a process. One database runs one fewer if there are
    /// several.
    pub threads: usize,
    /// Batches of views that are mapped or reduced at once, also for a single database.
    pub map_threads: usize,
    /// The longest wait for a thread; for maps and reduces twelve times as long. A call that waits longer gets
    /// [`Error::Busy`]. The time limit of a call starts after the wait.
    pub wait_max: Duration,
    /// The time limit of a call for one document. CouchDB's `os_process_timeout` is 5 s; a FoundationDB transaction
    /// also has 5 s.
    pub validation_max: Duration,
    /// The time limit of a call for a batch of documents.
    pub batch_max: Duration,
    /// The time after which a call that keeps others waiting loses its thread and continues beside them. A batch of
    /// documents yields earlier. Databases whose calls use much processor time share a separate thread for a while
    /// and lose the usual ones.
    pub slice: Duration,
    /// The memory limit of one engine, in bytes. A list gets a quarter of it.
    pub memory_max: usize,
    /// The memory limit of all engines, in bytes, besides 8 MB that each engine gets in any case. Beyond it calls
    /// fail with [`Error::Busy`].
    pub memory_all_max: usize,
}

impl Default for RunnerOptions {
    fn default() -> Self {
        let (validation_max, batch_max) = (Duration::from_secs(2), Duration::from_secs(5));
        let map_threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        RunnerOptions {
            threads: 3,
            map_threads,
            wait_max: Duration::from_secs(5),
            validation_max,
            batch_max,
            slice: Duration::from_millis(150),
            memory_max: 128 << 20,
            memory_all_max: 512 << 20,
        }
    }
}

/// The request on whose behalf functions run. Its calls can see state that functions left behind in earlier calls of
/// the same caller, never that of others. [`Runner::caller`] makes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// The number of the request.
    pub number: u64,
    /// The number of the client that waits: a user or a network. Its calls take turns with those of other clients
    /// across all databases. Without a client, calls take turns by the owner of their database only, which
    /// [`Runner::set_owner`] sets.
    pub client: Option<u64>,
}

/// A design document with functions. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Design {
    database: Arc<str>,
    /// The name under which its calls take turns: the database, or a part of its calls.
    turn: Arc<str>,
    text: Arc<str>,
    hash: u64,
}

impl Design {
    /// `database`: a unique name of the database, different from earlier databases of the same name. `text`: the
    /// whole document as JSON text, with `_id` and `_rev`.
    pub fn new(database: impl Into<Arc<str>>, text: impl Into<Arc<str>>) -> Design {
        let text = text.into();
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let database: Arc<str> = database.into();
        Design { turn: database.clone(), database, text, hash: hasher.finish() }
    }

    /// Lets its calls take turns apart from the others of its database. `part` names these calls.
    fn apart(self, part: &str) -> Design {
        // No name of a database has a line break.
        Design { turn: format!("{}\n{part}", self.database).into(), ..self }
    }

    /// Returns the unique name of the database.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Returns the document's text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl PartialEq for Design {
    fn eq(&self, other: &Design) -> bool {
        self.hash == other.hash && self.database == other.database && self.text == other.text
    }
}

impl Runner {
    /// Checks that the design document has a function at a path such as `["filters", "mine"]`.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Compilation`], and those of any call.
    pub async fn find(&self, design: &Design, caller: Caller, path: &[&str]) -> Result<()> {
        self.call(design, caller, "has", path, "null".to_owned(), self.options.validation_max).await.map(drop)
    }

    /// Returns true if the design document has a member of this name, of any type.
    ///
    /// # Errors
    /// Those of any call.
    pub async fn has(&self, design: &Design, caller: Caller, member: &str) -> Result<bool> {
        match self.call(design, caller, "member", &[member], "null".to_owned(), self.options.validation_max).await {
            Err(Error::Missing) => Ok(false),
            found => found.map(|_| true),
        }
    }

    /// Applies the filter `filters.NAME` to documents (JSON texts); `req` is the request as JSON text. Returns true
    /// for each document that passes.
    ///
    /// # Errors
    /// Any error that the function throws for a document, and those of any call.
    pub async fn filter(
        &self,
        design: &Design,
        caller: Caller,
        name: &str,
        docs: &[&[u8]],
        req: &str,
    ) -> Result<Vec<bool>> {
        let mut input = batch(docs);
        input.push_str(",\"req\":");
        input.push_str(req);
        input.push('}');
        let found = self.call(design, caller, "filter", &["filters", name], input, self.options.batch_max).await?;
        passed(&found, docs.len())
    }

    /// Returns true for each document (JSON text) for which the map of the view NAME emits a row.
    ///
    /// # Errors
    /// Any error that the function throws for a document, and those of any call.
    pub async fn emits(&self, design: &Design, caller: Caller, name: &str, docs: &[&[u8]]) -> Result<Vec<bool>> {
        let mut input = batch(docs);
        input.push('}');
        let found = self.call(design, caller, "view", &["views", name, "map"], input, self.options.batch_max).await?;
        passed(&found, docs.len())
    }

    async fn call(
        &self,
        design: &Design,
        caller: Caller,
        kind: &'static str,
        path: &[&str],
        input: String,
        time: Duration,
    ) -> Result<String> {
        let names = Value::Array(path.iter().map(|name| Value::String((*name).into())).collect());
        let path = json::to_string(&names);
        match self.run(design, caller, EngineRequest::Call { kind, path, input }, time).await? {
            Answer::Text(text) => answer(&text),
            _ => Err(Error::OutOfResources),
        }
    }
}

fn batch(docs: &[&[u8]]) -> String {
    let mut input = String::with_capacity(docs.iter().map(|doc| doc.len() + 1).sum::<usize>() + 64);
    input.push_str("{\"docs\":[");
    for (at, doc) in docs.iter().enumerate() {
        input.push_str(if at > 0 { "," } else { "" });
        input.push_str(&String::from_utf8_lossy(doc));
    }
    input.push(']');
    input
}

/// Parses `[1,0,...]` of the dispatcher, one digit for each document.
fn passed(results: &str, documents: usize) -> Result<Vec<bool>> {
    let passed: Vec<bool> = results.bytes().filter(u8::is_ascii_digit).map(|digit| digit == b'1').collect();
    if passed.len() == documents { Ok(passed) } else { Err(Error::OutOfResources) }
}

/// Replaces the escapes of lone surrogates in a text of `JSON.stringify` by U+FFFD. JavaScript strings may contain
/// them, JSON texts may not. `JSON.stringify` escapes lone surrogates and writes pairs as they are.
fn whole(text: String) -> String {
    if !text.contains("\\ud") {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = &text[..];
    while let Some(at) = rest.find('\\') {
        let is_half =
            rest.get(at..at + 3) == Some("\\ud") && rest.as_bytes().get(at + 3).is_some_and(|digit| *digit > b'7');
        // An escape is ASCII.
        let (before, escape, behind) = match (rest.get(..at), rest.get(at..at + 2), is_half) {
            (Some(before), _, true) => (before, "\u{fffd}", rest.get(at + 6..)),
            (Some(before), Some(escape), false) => (before, escape, rest.get(at + 2..)),
            _ => break,
        };
        out.push_str(before);
        out.push_str(escape);
        rest = behind.unwrap_or_default();
    }
    out.push_str(rest);
    out
}

fn cut(text: &str) -> String {
    text.char_indices().nth(TEXT_CHARACTERS_MAX).map_or(text, |(end, _)| &text[..end]).to_owned()
}

fn answer(text: &str) -> Result<String> {
    if let Some(result) = text.strip_prefix("[\"ok\",").and_then(|rest| rest.strip_suffix(']')) {
        return Ok(result.to_owned());
    }
    Err(failure(text))
}

fn failure(text: &str) -> Error {
    let text = whole(text.to_owned());
    let (name, reason) = match json::parse(text.as_bytes(), &Limits::default()) {
        Ok(Value::Array(parts)) => match &parts[..] {
            [_, Value::String(name), Value::String(reason)] => (cut(name), cut(reason)),
            _ => return Error::OutOfResources,
        },
        _ => return Error::OutOfResources,
    };
    match name.as_str() {
        "forbidden" => Error::Forbidden(reason),
        "unauthorized" => Error::Unauthorized(reason),
        "missing" => Error::Missing,
        "unknown_query_language" => Error::Language(reason),
        "compilation_error" => Error::Compilation(reason),
        "out_of_resources" => Error::OutOfResources,
        _ => Error::Thrown { name, reason },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_pairs_are_replaced() {
        for (text, expected) in [
            (r#""a\ud83d""#, "\"a\u{fffd}\""),
            (r#""\\ud83d""#, r#""\\ud83d""#),
            (r#"["\ud83d","x\udfffy"]"#, "[\"\u{fffd}\",\"x\u{fffd}y\"]"),
            (r#""\\\ud83d\n\u00e9😀""#, "\"\\\\\u{fffd}\\n\\u00e9😀\""),
            (r#""\ud7ff""#, r#""\ud7ff""#),
        ] {
            assert_eq!(whole(text.to_owned()), expected, "{text}");
        }
    }
}
