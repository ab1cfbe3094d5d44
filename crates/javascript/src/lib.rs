//! Functions of design documents: filters of changes, `validate_doc_update`, maps and reduces of views, shows, lists, updates
//! and rewrites; sync functions of databases; and functions of the changes worker.
//!
//! They are a stranger's programs. Each design document's run in a runtime of their own (QuickJS) that can reach nothing:
//! no file, no network, no other document; its memory, its stack and the time of a call are bounded. A runtime serves one
//! caller, a request, and ends with it: what a function leaves behind, wherever it does, is seen by no other request. All
//! runs in a few processes of this crate, which databases take turns on, so that no thread of the caller ever waits for
//! JavaScript, and what does not stop is killed.
//!
//! Those processes are the program that links this crate, started again: its `main` does not run in them (`child.rs`).
//!
//! Documents go in as JSON text, results come out as values.

mod ask;
mod child;
mod clock;
mod engine;
mod error;
mod figures;
mod gather;
mod group;
mod harden;
mod list;
mod machine;
mod memory;
mod message;
mod nursery;
mod pool;
mod process;
mod queue;
mod render;
mod report;
mod response;
mod room;
mod rows;
mod runner;
mod said;
mod shared;
mod sync;
mod thread;
mod transform;
mod wanted;
mod wire;
mod work;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

pub use error::{Error, Result};
pub use figures::{FunctionFigures, KillCause};
use flatbed_flatten::json::{self, Limits, Value};
pub use group::{Group, GroupFunctions, Mapped, ReduceInput, Reduction, RowLimits};
pub use list::{List, ListPart};
pub use render::Updated;
pub use response::{InvalidResponse, Response, ResponseBody, members};
pub use room::Room;
pub use rows::Rows;
pub use runner::Runner;
pub use sync::{Routed, SyncFunction, SyncRefusal, SyncWrite};
pub use transform::TransformFunction;

use ask::{Answer, Ask};

/// Names and reasons that functions throw are cut to so many characters.
const TEXT_CHARACTERS_MAX: usize = 4_000;

/// How functions are run.
#[derive(Debug, Clone)]
pub struct RunnerOptions {
    /// How many calls of filters and validation run at once, each in a process; of one database one less, if there are several.
    pub threads: usize,
    /// How many batches of views are mapped or reduced at once, of one database too.
    pub map_threads: usize,
    /// How long a call may wait for a thread; maps and reduces twelve times as long. Its time to run begins when it does.
    pub wait_max: Duration,
    /// How long a call for one document may take (CouchDB's `os_process_timeout` is 5 s; FoundationDB gives a whole
    /// transaction as long).
    pub validation_max: Duration,
    /// How long a call for a batch of documents may take.
    pub batch_max: Duration,
    /// For how long a call keeps others from its thread: then it goes on beside them. A batch of documents to map lets
    /// others have their turn before. Databases whose calls take the processor for long have a thread of their own
    /// for a while, and none of the usual ones.
    pub slice: Duration,
    /// Bytes of memory of one engine; of a list's a quarter.
    pub memory_max: usize,
    /// Bytes of memory of all engines, beside 8 MB that each gets in any case. What gets no more for it is [`Error::Busy`].
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

/// On whose behalf functions are called: a request. Its calls may see what functions have left behind in earlier ones of
/// the same caller, and never in others'. [`Runner::caller`] makes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// The request's number.
    pub number: u64,
    /// A number of the client. Its calls take turns with those of other clients, whatever databases they are of. `None`: with those of other
    /// databases alone.
    pub client: Option<u64>,
}

/// A design document with functions. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Design {
    database: Arc<str>,
    text: Arc<str>,
    hash: u64,
}

impl Design {
    /// `database`: what tells its database from all others, those that had its name before included. `text`: the whole
    /// document as JSON text, `_id` and `_rev` in it.
    pub fn new(database: impl Into<Arc<str>>, text: impl Into<Arc<str>>) -> Design {
        let text = text.into();
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        Design { database: database.into(), text, hash: hasher.finish() }
    }

    /// What tells its database from all others.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The document's text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl PartialEq for Design {
    fn eq(&self, other: &Design) -> bool {
        self.hash == other.hash && self.database == other.database && self.text == other.text
    }
}

/// What a write is validated with; all are JSON texts.
#[derive(Debug, Clone, Copy)]
pub struct Validation<'a> {
    /// The document as it would be.
    pub document: &'a str,
    /// The revision that it replaces, or `null`.
    pub old: &'a str,
    /// Who writes: `{"db":...,"name":...,"roles":[...]}`.
    pub user: &'a str,
    /// The database's `_security`.
    pub security: &'a str,
}

impl Runner {
    /// Whether there is a function at a place in the design document, such as `["filters", "mine"]`.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Compilation`], and those of any call.
    pub async fn find(&self, design: &Design, caller: Caller, path: &[&str]) -> Result<()> {
        self.call(design, caller, "has", path, "null".to_owned(), self.options.validation_max).await.map(drop)
    }

    /// Whether the design document has a member, whatever it is.
    ///
    /// # Errors
    /// Those of any call.
    pub async fn has(&self, design: &Design, caller: Caller, member: &str) -> Result<bool> {
        match self.call(design, caller, "member", &[member], "null".to_owned(), self.options.validation_max).await {
            Err(Error::Missing) => Ok(false),
            found => found.map(|_| true),
        }
    }

    /// Which of some documents (JSON texts) the filter `filters.NAME` lets through; `req` is the request as JSON text.
    ///
    /// # Errors
    /// What the function throws for any of them, and those of any call.
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

    /// For which of some documents (JSON texts) the map of the view NAME emits anything.
    ///
    /// # Errors
    /// What the function throws for any of them, and those of any call.
    pub async fn emits(&self, design: &Design, caller: Caller, name: &str, docs: &[&[u8]]) -> Result<Vec<bool>> {
        let mut input = batch(docs);
        input.push('}');
        let found = self.call(design, caller, "view", &["views", name, "map"], input, self.options.batch_max).await?;
        passed(&found, docs.len())
    }

    /// Asks `validate_doc_update` about a write.
    ///
    /// # Errors
    /// [`Error::Forbidden`], [`Error::Unauthorized`]: the write is refused; and those of any call.
    pub async fn validate(&self, design: &Design, caller: Caller, write: &Validation<'_>) -> Result<()> {
        let Validation { document, old, user, security } = write;
        let input = format!("{{\"document\":{document},\"old\":{old},\"user\":{user},\"security\":{security}}}");
        self.call(design, caller, "validate", &["validate_doc_update"], input, self.options.validation_max)
            .await
            .map(drop)
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
        let mut path = Vec::new();
        json::write(&names, &mut path);
        let path = String::from_utf8_lossy(&path).into_owned();
        match self.run(design, caller, Ask::Call { kind, path, input }, time).await? {
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

/// `[1,0,...]`, as the dispatcher writes it, one for each document.
fn passed(results: &str, documents: usize) -> Result<Vec<bool>> {
    let passed: Vec<bool> = results.bytes().filter(u8::is_ascii_digit).map(|digit| digit == b'1').collect();
    if passed.len() == documents { Ok(passed) } else { Err(Error::OutOfResources) }
}

/// JSON text as `JSON.stringify` writes it, with U+FFFD for halves of surrogate pairs: strings of JavaScript may have them, those
/// of JSON texts may not. It writes them as escapes, and whole pairs as they are.
fn whole(text: String) -> String {
    if !text.contains("\\ud") {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = &text[..];
    while let Some(at) = rest.find('\\') {
        let is_half =
            rest.get(at..at + 3) == Some("\\ud") && rest.as_bytes().get(at + 3).is_some_and(|digit| *digit > b'7');
        // An escape is of ASCII.
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

/// What a function says, as far as it is passed on: the dispatcher cuts it likewise.
fn cut(text: &str) -> String {
    text.char_indices().nth(TEXT_CHARACTERS_MAX).map_or(text, |(end, _)| &text[..end]).to_owned()
}

/// Takes `["ok",RESULT]` or `["error",NAME,REASON]` apart.
fn answer(text: &str) -> Result<String> {
    if let Some(result) = text.strip_prefix("[\"ok\",").and_then(|rest| rest.strip_suffix(']')) {
        return Ok(result.to_owned());
    }
    Err(failure(text))
}

/// What `["error",NAME,REASON]` says.
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
