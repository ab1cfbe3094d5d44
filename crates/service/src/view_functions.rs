//! Functions of views for the layer, run by the crate `javascript`.

use std::pin::Pin;
use std::sync::Arc;

use flatbed_javascript::{
    Error, Group, GroupFunctions as Sources, ReduceInput as JavascriptInput, Reduction as JavascriptReduction,
    RowLimits, Runner,
};
use flatbed_layer::{
    EmittedRows, FunctionFailure, GroupFunctions, GroupSource, MapOutcome, ReduceInput, ReduceResults, Reduction,
    ViewBounds, ViewFunctions,
};

use crate::function_limit::unless_ended;
use crate::functions::Functions;
use FunctionFailure::TooMuch;

type FunctionFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, FunctionFailure>> + Send + 'a>>;

impl ViewFunctions for Functions {
    fn load(&self, database: &str, source: &GroupSource, bounds: ViewBounds) -> Arc<dyn GroupFunctions> {
        fn pairs(all: &[(String, String)]) -> Vec<(&str, &str)> {
            all.iter().map(|(name, source)| (name.as_str(), source.as_str())).collect()
        }
        let (maps, reduces) = (pairs(&source.maps), pairs(&source.reduces));
        let sources = Sources { lib: source.lib.as_deref(), maps: &maps, reduces: &reduces };
        // A character takes at least one byte.
        let limits = RowLimits { rows: bounds.rows, characters: usize::try_from(bounds.bytes).unwrap_or(usize::MAX) };
        let group = Group::new(database, &sources, limits);
        Arc::new(ViewGroup { runner: self.runner.clone(), group })
    }
}

struct ViewGroup {
    runner: Runner,
    group: Group,
}

impl GroupFunctions for ViewGroup {
    fn check(&self) -> FunctionFuture<'_, ()> {
        Box::pin(async { unless_ended(self.runner.check(&self.group)).await.map_err(failure) })
    }

    fn map(&self, documents: Vec<Vec<u8>>) -> FunctionFuture<'_, MapOutcome> {
        Box::pin(async {
            let mapped = self.runner.map(&self.group, documents).await.map_err(failure)?;
            let documents = mapped.documents.into_iter().map(|views| {
                let rows = views.into_iter().map(|rows| {
                    let rows =
                        rows.map_err(
                            |error| if is_too_much(&error) { TooMuch(error.to_string()) } else { failure(error) },
                        )?;
                    let mut emitted = EmittedRows::with_capacity(rows.len(), rows.bytes());
                    rows.iter().for_each(|(key, value)| emitted.push(key, value));
                    Ok(emitted)
                });
                rows.collect()
            });
            Ok(MapOutcome { documents: documents.collect(), stopped: mapped.stopped.map(failure), logs: mapped.logs })
        })
    }

    fn reduce<'a>(&'a self, reductions: &'a [Reduction<'a>]) -> FunctionFuture<'a, ReduceResults> {
        Box::pin(async {
            let reductions: Vec<_> = reductions
                .iter()
                .map(|reduction| JavascriptReduction {
                    functions: reduction.functions,
                    input: match reduction.input {
                        ReduceInput::Rows(rows) => JavascriptInput::Rows(rows),
                        ReduceInput::Reductions(values) => JavascriptInput::Reductions(values),
                    },
                })
                .collect();
            let reduced = self.runner.reduce(&self.group, &reductions).await.map_err(failure)?;
            let of_one = |results: Vec<Result<String, Error>>| {
                results.into_iter().map(|result| result.map_err(failure)).collect()
            };
            Ok(reduced.into_iter().map(of_one).collect())
        })
    }
}

/// True if a map emitted more than [`RowLimits`] allow.
fn is_too_much(error: &Error) -> bool {
    matches!(error, Error::Thrown { name, .. } if name == "too_many_rows" || name == "too_large_rows")
}

fn failure(error: Error) -> FunctionFailure {
    let text = error.to_string();
    match error {
        Error::Compilation(reason) => FunctionFailure::Compilation(reason),
        Error::Missing => FunctionFailure::Compilation(text),
        // Functions can throw an error of this name, too.
        Error::Language(reason) => FunctionFailure::Thrown { name: "unknown_query_language".to_owned(), reason },
        Error::Thrown { name, reason } => FunctionFailure::Thrown { name, reason },
        Error::Forbidden(reason) => FunctionFailure::Thrown { name: "forbidden".to_owned(), reason },
        Error::Unauthorized(reason) => FunctionFailure::Thrown { name: "unauthorized".to_owned(), reason },
        Error::TimedOut(_) => FunctionFailure::TimedOut(text),
        Error::OutOfResources => FunctionFailure::OutOfResources(text),
        Error::Busy => FunctionFailure::Busy(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function_limit::with_functions_until;
    use flatbed_javascript::RunnerOptions;

    fn load(maps: &[(&str, &str)], reduces: &[(&str, &str)], lib: Option<&str>) -> Arc<dyn GroupFunctions> {
        let own = |all: &[(&str, &str)]| all.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        let source = GroupSource { lib: lib.map(str::to_owned), maps: own(maps), reduces: own(reduces) };
        Functions::new(Runner::new(RunnerOptions::default()).unwrap()).load("db/1", &source, ViewBounds::default())
    }

    #[tokio::test]
    async fn a_batch_is_mapped_by_all_maps_and_a_document_that_throws_loses_its_rows() {
        let maps = [
            ("a", "function (doc) { emit([doc.n, require('views/lib/l').x], null); emit(doc._id); }"),
            ("b", "function (doc) { if (doc.n === 2) { throw new Error('no'); } log('seen'); emit('b', {n: doc.n}); }"),
        ];
        let functions = load(&maps, &[], Some(r#"{"l":"exports.x = 7"}"#));
        functions.check().await.unwrap();
        let documents = [1, 2].map(|n| format!(r#"{{"_id":"d{n}","n":{n}}}"#).into_bytes());
        let mapped = functions.map(documents.to_vec()).await.unwrap();
        assert_eq!(mapped.stopped, None);
        assert!(mapped.logs.iter().any(|line| line.contains("seen")), "{:?}", mapped.logs);
        let rows = |document: usize, view: usize| -> Vec<(String, String)> {
            let rows = mapped.documents[document][view].as_ref().unwrap();
            rows.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(rows(0, 0), [pair("[1,7]", "null"), pair("\"d1\"", "null")]);
        assert_eq!(rows(0, 1), [pair("\"b\"", "{\"n\":1}")]);
        assert_eq!(rows(1, 0)[0], pair("[2,7]", "null"));
        assert!(matches!(mapped.documents[1][1], Err(FunctionFailure::Thrown { .. })), "{:?}", mapped.documents[1]);
    }

    /// The same check succeeds outside of the request.
    #[tokio::test]
    async fn a_check_ends_with_the_request_that_it_is_for() {
        let functions = load(&[("a", "function (doc) { emit(doc._id); }")], &[], None);
        let ended = with_functions_until(std::future::ready(()), functions.check()).await.unwrap_err();
        assert!(matches!(ended, FunctionFailure::Busy(_)), "{ended:?}");
        functions.check().await.unwrap();
    }

    #[tokio::test]
    async fn what_does_not_compile_says_so_and_reduces_answer() {
        let broken = load(&[("a", "function (doc) {")], &[], None).check().await.unwrap_err();
        assert!(matches!(broken, FunctionFailure::Compilation(_)), "{broken:?}");
        let reduces = [("a", "function (keys, values, again) { return [again, sum(values)]; }")];
        let functions = load(&[], &reduces, None);
        let rows = [("1", "a", "10"), ("2", "b", "20")];
        let reduction = Reduction { functions: &[0], input: ReduceInput::Rows(&rows) };
        assert_eq!(functions.reduce(&[reduction]).await.unwrap(), [[Ok("[false,30]".to_owned())]]);
        let reduction = Reduction { functions: &[0], input: ReduceInput::Reductions(&["1", "2"]) };
        assert_eq!(functions.reduce(&[reduction]).await.unwrap(), [[Ok("[true,3]".to_owned())]]);
    }
}
