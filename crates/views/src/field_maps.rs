//! Views in the language `query`, whose maps are lists of fields. The crate `mango` evaluates them here, without a
//! process for functions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flatbed_databases::limits::Limit;
use flatbed_flatten::json::{Limits, Value, parse, write};
use flatbed_mango::Index;
use flatbed_revtree::DESIGN;
use flatbed_store::view_definition::GroupDefinition;
use flatbed_store::view_functions::{
    EmittedRows, FunctionFailure, GroupFunctions, MapOutcome, ReduceResults, Reduction,
};
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;

/// Batches that a process maps at once, each with the tree of one document in memory.
static AT_ONCE: Semaphore = Semaphore::const_new(2);

/// A batch releases its permit after this time, between two documents, and queues again.
const SLICE: Duration = Duration::from_millis(20);

/// The size of an answer, in bytes of rows. The answer ends with the document that exceeds it.
const ROWS_BYTES_MAX: Limit<usize> = Limit::new(16 << 20, 2_000);

pub struct FieldMaps(Arc<Vec<Index>>);

impl FieldMaps {
    /// Creates the maps of a group that [consists of fields](GroupDefinition::is_of_fields).
    pub fn of(definition: &GroupDefinition) -> FieldMaps {
        let index = |map: &str| {
            let map = parse(map.as_bytes(), &Limits::default()).ok()?;
            Index::of_map(DESIGN, "", &map)
        };
        // An invalid index is not a view.
        FieldMaps(Arc::new(definition.trees.iter().filter_map(|tree| index(&tree.map)).collect()))
    }
}

impl GroupFunctions for FieldMaps {
    fn check(&self) -> BoxFuture<'_, Result<(), FunctionFailure>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn map(&self, documents: Vec<Vec<u8>>) -> BoxFuture<'_, Result<MapOutcome, FunctionFailure>> {
        let indexes = Arc::clone(&self.0);
        Box::pin(async move {
            let busy = || FunctionFailure::Busy("the process is stopping".to_owned());
            let (mut mapped, mut left, mut bytes) = (Vec::with_capacity(documents.len()), documents.into_iter(), 0);
            while left.len() > 0 && bytes <= ROWS_BYTES_MAX.get() {
                let room = AT_ONCE.acquire().await.map_err(|_| busy())?;
                let indexes = Arc::clone(&indexes);
                let slice = tokio::task::spawn_blocking(move || {
                    let (_room, began) = (room, Instant::now());
                    let is_over = |more| began.elapsed() >= SLICE || bytes + more > ROWS_BYTES_MAX.get();
                    let (some, more) = map_some(&indexes, &mut left, is_over);
                    (some, more, left)
                });
                let (some, more, rest) = slice.await.map_err(|_| busy())?;
                mapped.extend(some);
                bytes += more;
                left = rest;
            }
            Ok(MapOutcome { documents: mapped, ..MapOutcome::default() })
        })
    }

    fn reduce<'a>(&'a self, _: &'a [Reduction<'a>]) -> BoxFuture<'a, Result<ReduceResults, FunctionFailure>> {
        // These groups have only built-in reduces.
        Box::pin(std::future::ready(Err(FunctionFailure::NotRun)))
    }
}

/// Maps documents in order, at least one, until `is_over` returns `true` for the bytes of their rows. Returns the rows
/// and their bytes.
fn map_some(
    indexes: &[Index],
    left: &mut std::vec::IntoIter<Vec<u8>>,
    is_over: impl Fn(usize) -> bool,
) -> (Vec<Vec<Result<EmittedRows, FunctionFailure>>>, usize) {
    let (mut mapped, mut bytes) = (Vec::new(), 0);
    for document in left {
        let rows = map(indexes, &document);
        bytes += rows.iter().flatten().map(EmittedRows::bytes).sum::<usize>();
        mapped.push(rows);
        if is_over(bytes) {
            break;
        }
    }
    (mapped, bytes)
}

/// The rows of a document in each view: one of the values of its fields, if it has all of them.
fn map(indexes: &[Index], document: &[u8]) -> Vec<Result<EmittedRows, FunctionFailure>> {
    let unread = |error: &dyn std::fmt::Display| FunctionFailure::OutOfResources(error.to_string());
    let document = match parse(document, &Limits::default()) {
        Ok(document) => document,
        Err(error) => return indexes.iter().map(|_| Err(unread(&error))).collect(),
    };
    let rows = |index: &Index| {
        let key = index.key(&document, &|| false).map_err(|error| FunctionFailure::TimedOut(error.to_string()))?;
        let Some(key) = key else { return Ok(EmittedRows::default()) };
        let mut text = Vec::new();
        write(&Value::Array(key), &mut text);
        let key = std::str::from_utf8(&text).map_err(|error| unread(&error))?;
        let mut rows = EmittedRows::with_capacity(1, key.len() + NULL.len());
        rows.push(key, NULL);
        Ok(rows)
    };
    indexes.iter().map(rows).collect()
}

/// The value of each row.
const NULL: &str = "null";

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn documents_are_mapped_by_their_fields() {
        flatbed_databases::limits::lower();
        let body = r#"{"language":"query","views":{
            "a":{"map":{"fields":{"n":"asc","o.p":"asc"}}},
            "b":{"map":{"fields":{"n":"asc"},"partial_filter_selector":{"t":{"$gt":"x"}}}}}}"#;
        let body = parse(body.as_bytes(), &Limits::default()).unwrap();
        let maps = FieldMaps::of(&GroupDefinition::of_design(&body, false).unwrap().unwrap());
        maps.check().await.unwrap();
        let documents = [
            r#"{"_id":"a","n":1.0,"o":{"p":[null]}}"#,
            r#"{"_id":"b","n":{"b":1,"a":2},"t":"y"}"#,
            r#"{"_id":"c","o":{"p":1},"t":"y"}"#,
            r#"{"_id":"_design/d","n":1,"o":{"p":1},"t":"y"}"#,
        ];
        let mapped = maps.map(documents.map(|document| document.as_bytes().to_vec()).to_vec()).await.unwrap();
        let rows = |rows: &Result<EmittedRows, FunctionFailure>| {
            let all: Vec<_> = rows.as_ref().unwrap().iter().map(|(key, value)| format!("{key} {value}")).collect();
            all.join(", ")
        };
        let found: Vec<Vec<String>> = mapped.documents.iter().map(|views| views.iter().map(rows).collect()).collect();
        assert_eq!(found, [["[1.0,[null]] null", ""], ["", r#"[{"b":1,"a":2}] null"#], ["", ""], ["", ""]]);
        assert_eq!(mapped.stopped, None);
        // An answer ends with the document whose rows exceed the size limit.
        let long = |n: usize| format!(r#"{{"_id":"{n}","n":"{}"}}"#, "x".repeat(1_500)).into_bytes();
        let mapped = maps.map((0..4).map(long).collect()).await.unwrap();
        assert_eq!((mapped.documents.len(), mapped.stopped), (4, None), "none has a row without all fields");
        let long = |n: usize| format!(r#"{{"_id":"{n}","n":"{}","o":{{"p":1}}}}"#, "x".repeat(1_500)).into_bytes();
        let mapped = maps.map((0..4).map(long).collect()).await.unwrap();
        assert_eq!((mapped.documents.len(), mapped.stopped), (2, None));
    }

    #[test]
    fn a_batch_ends_its_turn_between_two_documents() {
        let mut left = ["{}", "{}", "{}"].map(|document| document.as_bytes().to_vec()).to_vec().into_iter();
        assert_eq!((map_some(&[], &mut left, |_| true).0.len(), left.len()), (1, 2));
        assert_eq!((map_some(&[], &mut left, |_| false).0.len(), left.len()), (2, 0));
    }
}
