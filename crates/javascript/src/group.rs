//! Maps and written reduces of the views of a design document.

use std::sync::Arc;

use flatbed_flatten::json::{self, Object};

use crate::engine_request::{Answer, EngineRequest, MappedPart, ReduceRequest};
use crate::error::{Error, Result};
use crate::rows::Rows;
use crate::{Caller, Design, Runner};

/// The caller of all groups: an index is built for no particular request.
const INDEX: Caller = Caller { number: u64::MAX, client: None };

/// Functions of a group of views.
#[derive(Debug, Clone, Copy)]
pub struct GroupFunctions<'a> {
    /// `views.lib` of the design document as JSON text, which maps can `require` as `views/lib/...`.
    pub lib: Option<&'a str>,
    /// Names of views, as error messages show them, and the sources of their maps.
    pub maps: &'a [(&'a str, &'a str)],
    /// Names of views, and the sources of the reduces that are not built in.
    pub reduces: &'a [(&'a str, &'a str)],
}

/// Limits of the rows that a document may emit in a view. A document beyond them fails for this view with
/// [`Error::Thrown`], `too_many_rows` or `too_large_rows`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowLimits {
    /// The number of rows.
    pub rows: usize,
    /// UTF-16 units of the JSON of all its rows.
    pub characters: usize,
}

impl Default for RowLimits {
    fn default() -> Self {
        RowLimits { rows: 50_000, characters: 16 << 20 }
    }
}

/// A group of views whose functions run together: one call maps a document by all of them. Cheap to clone.
///
/// Global variables are removed after each call. Changes of built-in objects and state of libraries stay in an engine
/// while it is used. An engine that broke a bound is dropped.
#[derive(Debug, Clone)]
pub struct Group {
    maps: Design,
    views: usize,
    reduces: Design,
    /// The length of a call of each reduce in CouchDB's query server without its rows, in characters.
    calls: Arc<[usize]>,
}

impl Group {
    /// `database`: a unique name of the database.
    pub fn new(database: impl Into<Arc<str>>, functions: &GroupFunctions<'_>, limits: RowLimits) -> Group {
        let database = database.into();
        let calls = functions.reduces.iter().map(|(_, source)| {
            let mut quoted = Vec::new();
            json::write_string(source, &mut quoted);
            characters(&String::from_utf8_lossy(&quoted)) - characters(source) + "],]".len()
        });
        Group {
            maps: Design::new(database.clone(), definition(functions.lib, functions.maps, limits)),
            views: functions.maps.len(),
            // Clients wait for reduces. They must not wait for maps that build the index, nor be slow because of them.
            reduces: Design::new(database, definition(None, functions.reduces, limits)).apart("reduces"),
            calls: calls.collect(),
        }
    }
}

fn definition(lib: Option<&str>, functions: &[(&str, &str)], limits: RowLimits) -> String {
    let text = Object::text(|object| {
        object.raw("lib", lib.unwrap_or("null").as_bytes());
        let number = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        object.number("rows", number(limits.rows)).number("characters", number(limits.characters));
        let mut array = object.array("functions");
        for (name, source) in functions {
            array.object().string("name", name).string("source", source);
        }
    });
    String::from_utf8_lossy(&text).into_owned()
}

fn characters(text: &str) -> usize {
    text.encode_utf16().count()
}

/// The outcome of a batch of documents.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MappedBatch {
    /// For each document in turn, for each view of the group: its rows, or an error, which the caller logs with the
    /// document's id.
    pub documents: Vec<Vec<Result<Rows>>>,
    /// Why the next document has no answer: a function ended the whole query ([`Error::Thrown`]) or broke a bound.
    /// After [`Error::Busy`] the caller retries later; the document is not to blame. `None` with missing documents
    /// means that the rows reached 16 MB of memory: the caller stores them and then maps the rest. At least one
    /// document has an answer.
    pub stopped: Option<Error>,
    /// The first lines that functions logged.
    pub logs: Vec<String>,
}

pub(crate) const LOGS_MAX: usize = 100;

/// The size of the rows, in bytes, that ends a batch early.
const MAPPED_BYTES_MAX: usize = 16 << 20;
const ROW_BYTES: usize = 16;

/// One reduce input and the functions that reduce it.
#[derive(Debug, Clone)]
pub struct Reduction<'a> {
    /// Indices among the group's reduces.
    pub functions: &'a [usize],
    /// The input of each of them.
    pub input: ReduceInput<'a>,
}

/// The input of a reduce.
#[derive(Debug, Clone, Copy)]
pub enum ReduceInput<'a> {
    /// Rows: key, document id, value. Key and value are JSON. CouchDB passes the last row first.
    Rows(&'a [(&'a str, &'a str, &'a str)]),
    /// Results of earlier reduces, as JSON.
    Reductions(&'a [&'a str]),
}

impl ReduceInput<'_> {
    /// Returns the JSON text and the beginning of a call in CouchDB's query server.
    fn text(&self) -> (Vec<u8>, &'static str) {
        let mut out = vec![b'['];
        match self {
            ReduceInput::Rows(rows) => {
                for (at, (key, id, value)) in rows.iter().enumerate() {
                    out.extend_from_slice(if at > 0 { b",[[" } else { b"[[" });
                    out.extend_from_slice(key.as_bytes());
                    out.push(b',');
                    json::write_string(id, &mut out);
                    out.extend_from_slice(b"],");
                    out.extend_from_slice(value.as_bytes());
                    out.push(b']');
                }
            }
            ReduceInput::Reductions(values) => {
                for (at, value) in values.iter().enumerate() {
                    out.extend_from_slice(if at > 0 { b"," } else { b"" });
                    out.extend_from_slice(value.as_bytes());
                }
            }
        }
        out.push(b']');
        (out, if matches!(self, ReduceInput::Rows(_)) { r#"["reduce",["# } else { r#"["rereduce",["# })
    }
}

/// Returns the memory of rows, in bytes.
fn size(documents: &[Vec<Result<Rows>>]) -> usize {
    let rows = documents.iter().flatten().flatten();
    rows.map(|rows| rows.bytes() + rows.len() * ROW_BYTES).sum()
}

impl Runner {
    /// Checks that all functions of a group compile.
    ///
    /// # Errors
    /// [`Error::Compilation`] with the name of the view; [`Error::Thrown`] if a function has no text; and those of
    /// any call.
    pub async fn check(&self, group: &Group) -> Result<()> {
        self.map(group, Vec::new()).await?;
        self.reduce(group, &[]).await.map(drop)
    }

    /// Maps documents (JSON texts) by all functions of a group. The time limit of each document is that of a batch. A
    /// batch yields to other calls between its slices. It may end before its last document ([`MappedBatch::stopped`]).
    ///
    /// # Errors
    /// Those of [`Runner::check`], and those of any call.
    pub async fn map(&self, group: &Group, documents: Vec<Vec<u8>>) -> Result<MappedBatch> {
        let mut mapped = MappedBatch::default();
        let (mut rest, mut is_fresh, mut bytes) = (documents, false, 0);
        // The documents after those whose rows were lost and that are mapped again, and the error of the first of
        // them.
        let mut behind: Option<(Vec<Vec<u8>>, Error)> = None;
        loop {
            let (views, slice) = (group.views, self.options.slice);
            let asked = rest.len();
            let ask = EngineRequest::Map { documents: std::mem::take(&mut rest), views, slice, is_fresh };
            let part = match self.run(&group.maps, INDEX, ask, self.options.batch_max).await {
                Ok(Answer::Mapped(part)) => part,
                Ok(_) => return Err(Error::OutOfResources),
                Err(error) if mapped.documents.is_empty() => return Err(error),
                Err(error) => {
                    mapped.stopped = Some(error);
                    return Ok(mapped);
                }
            };
            let MappedPart { documents, stopped, lost, was_used, rest: mut left, logs } = part;
            let had_run = was_used || !documents.is_empty() || lost > 0;
            bytes += size(&documents);
            mapped.documents.extend(documents);
            let room = LOGS_MAX - mapped.logs.len();
            mapped.logs.extend(logs.into_iter().take(room));
            if let Some(error) = stopped.as_ref().filter(|_| lost > 0) {
                if *error == Error::Busy {
                    mapped.stopped = stopped;
                    return Ok(mapped);
                }
                // The documents with lost rows run first: their number shrinks each time, and the fatal document is
                // not reached.
                behind = Some((left.split_off(lost.min(left.len())), error.clone()));
                (rest, is_fresh) = (left, false);
                continue;
            }
            // Earlier documents may have filled the engine, so a fresh one retries.
            is_fresh = had_run && stopped == Some(Error::OutOfResources);
            if !is_fresh {
                mapped.stopped = stopped;
            }
            if mapped.stopped.is_some() {
                return Ok(mapped);
            }
            if left.is_empty() {
                match behind.take() {
                    None => return Ok(mapped),
                    Some((others, Error::OutOfResources)) => (left, is_fresh) = (others, true),
                    Some((_, error)) => {
                        mapped.stopped = Some(error);
                        return Ok(mapped);
                    }
                }
            } else if !is_fresh && left.len() >= asked {
                // Each call maps a document or reports an error. Anything else would loop forever.
                return Err(Error::OutOfResources);
            }
            if bytes >= MAPPED_BYTES_MAX {
                return Ok(mapped);
            }
            rest = left;
        }
    }

    /// Reduces by functions of a group. Returns for each reduction and function the result as JSON, or
    /// [`Error::Thrown`]: `reduce_overflow_error`, or an error that ends the query. A function that throws gives
    /// `null`, as in CouchDB.
    ///
    /// # Errors
    /// Those of [`Runner::check`], and those of any call. The time limit of each reduction is that of a batch.
    pub async fn reduce(&self, group: &Group, reductions: &[Reduction<'_>]) -> Result<Vec<Vec<Result<String>>>> {
        let asks = reductions.iter().map(|reduction| {
            let (input, call) = reduction.input.text();
            let input = String::from_utf8_lossy(&input).into_owned();
            let length = call.len() + characters(&input);
            let functions = reduction.functions.iter();
            let functions = functions.map(|&at| (at, length + group.calls.get(at).copied().unwrap_or_default()));
            let is_rereduce = matches!(reduction.input, ReduceInput::Reductions(_));
            ReduceRequest { functions: functions.collect(), is_rereduce, input }
        });
        let (mut rest, mut all) = (asks.collect::<Vec<_>>(), Vec::with_capacity(reductions.len()));
        loop {
            let asked = rest.len();
            let ask = EngineRequest::Reduce { asks: rest, slice: self.options.slice };
            let Answer::Reduced(part) = self.run(&group.reduces, INDEX, ask, self.options.batch_max).await? else {
                return Err(Error::OutOfResources);
            };
            all.extend(part.results);
            if part.rest.is_empty() {
                return Ok(all);
            }
            if part.rest.len() >= asked {
                return Err(Error::OutOfResources);
            }
            rest = part.rest;
        }
    }
}
