//! Functions for tests: a map's source is a member's name, and its prefix before a colon selects a failure.
#![cfg(test)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flatbed_flatten::json::{Limits, Value, parse, write};
use flatbed_store::view_bounds::ViewBounds;
use flatbed_store::view_functions::{
    EmittedRows, FunctionFailure, GroupFunctions, GroupSource, MapOutcome, ReduceInput, ReduceResults, Reduction,
    ViewFunctions,
};
use flatbed_testkit::pass;
use futures_util::future::BoxFuture;
use tokio::sync::Notify;

/// Runs them, and can stop after some documents.
#[derive(Default)]
pub(super) struct Texts(Arc<State>);

#[derive(Default)]
struct State {
    mapped: AtomicU64,
    stops_after: AtomicU64,
    pause: Duration,
    go_on: Notify,
    /// Documents with this member have no rows.
    passes_over: Option<&'static str>,
    /// The number of rows by which reduces of rows miscount.
    miscounts: usize,
    /// The number of times that documents with the member `slow` were mapped, and how many of these calls time out: at
    /// least one.
    slow: AtomicU64,
    slow_times: u64,
    /// The most documents of one answer; 0: no limit.
    answers_at_most: usize,
    is_busy_each_second: bool,
    /// The number of calls after which every call fails as busy; 0: no limit.
    busy_after: AtomicU64,
    calls: AtomicU64,
}

impl Texts {
    pub(super) fn passing_over(member: &'static str) -> Texts {
        Texts(Arc::new(State { passes_over: Some(member), ..State::default() }))
    }

    pub(super) fn miscounting() -> Texts {
        Texts(Arc::new(State { miscounts: 1, ..State::default() }))
    }

    pub(super) fn answering_at_most(answers_at_most: usize) -> Texts {
        Texts(Arc::new(State { answers_at_most, ..State::default() }))
    }

    pub(super) fn slow_times(slow_times: u64) -> Texts {
        Texts(Arc::new(State { slow_times, ..State::default() }))
    }

    pub(super) fn busy_each_second_call() -> Texts {
        Texts(Arc::new(State { is_busy_each_second: true, ..State::default() }))
    }

    pub(super) fn busy_after(calls: u64, answers_at_most: usize) -> Texts {
        Texts(Arc::new(State { busy_after: AtomicU64::new(calls), answers_at_most, ..State::default() }))
    }

    pub(super) fn stop_being_busy(&self) {
        self.0.busy_after.store(0, Ordering::Relaxed);
    }

    pub(super) fn stopping_after(documents: u64) -> Texts {
        let texts = Texts::default();
        texts.0.stops_after.store(documents, Ordering::Relaxed);
        texts
    }

    pub(super) fn pausing(pause: Duration) -> Texts {
        Texts(Arc::new(State { pause, ..State::default() }))
    }

    pub(super) fn stop_after(&self, documents: u64) {
        self.0.stops_after.store(documents, Ordering::Relaxed);
    }

    pub(super) fn mapped(&self) -> u64 {
        self.0.mapped.load(Ordering::Relaxed)
    }

    pub(super) fn go_on(&self) {
        self.0.stops_after.store(0, Ordering::Relaxed);
        self.0.go_on.notify_waiters();
    }
}

impl ViewFunctions for Texts {
    fn load(&self, _database: &str, source: &GroupSource, _bounds: ViewBounds) -> Arc<dyn GroupFunctions> {
        let texts = |all: &[(String, String)]| all.iter().map(|(_, text)| text.clone()).collect();
        Arc::new(LoadedFunctions {
            state: Arc::clone(&self.0),
            maps: texts(&source.maps),
            reduces: texts(&source.reduces),
        })
    }
}

struct LoadedFunctions {
    state: Arc<State>,
    maps: Vec<String>,
    reduces: Vec<String>,
}

/// Returns a map's output for a document: its member's value, with that of `n`; twice if `n` is 3. A number `many` in
/// the document makes that many numbers.
pub(super) fn emitted_by(map: &str, document: &[u8]) -> Result<Vec<(String, String)>, FunctionFailure> {
    let document = parse(document, &Limits::default()).unwrap();
    let (fails, member) = map.split_once(':').unwrap_or(("", map));
    if !fails.is_empty() && document.get(fails).is_some() {
        let text = fails.to_owned();
        return Err(match fails {
            "heavy" => FunctionFailure::OutOfResources(text),
            "busy" => FunctionFailure::Busy(text),
            _ => FunctionFailure::Thrown { name: text, reason: "so it says".to_owned() },
        });
    }
    let text = |value: &Value<'_>| {
        let mut out = Vec::new();
        write(value, &mut out);
        String::from_utf8(out).unwrap()
    };
    let Some(key) = document.get(member).map(text) else { return Ok(Vec::new()) };
    let value = text(document.get("n").unwrap_or(&Value::Null));
    if let Some(many) = document.get("many").map(text) {
        return Ok((0..many.parse::<u32>().unwrap()).map(|at| (at.to_string(), value.clone())).collect());
    }
    let count = if key == "3" { 2 } else { 1 };
    Ok(vec![(key, value); count])
}

impl GroupFunctions for LoadedFunctions {
    fn check(&self) -> BoxFuture<'_, Result<(), FunctionFailure>> {
        let is_broken = self.maps.iter().any(|map| map == "broken");
        Box::pin(async move {
            if is_broken { Err(FunctionFailure::Compilation("it is broken".to_owned())) } else { Ok(()) }
        })
    }

    fn map(&self, documents: Vec<Vec<u8>>) -> BoxFuture<'_, Result<MapOutcome, FunctionFailure>> {
        Box::pin(async move {
            let mut mapped = MapOutcome::default();
            let calls = self.state.calls.fetch_add(1, Ordering::Relaxed) + 1;
            let busy_after = self.state.busy_after.load(Ordering::Relaxed);
            let is_late = busy_after > 0 && calls > busy_after;
            if is_late || self.state.is_busy_each_second && calls.is_multiple_of(2) {
                return Err(FunctionFailure::Busy("there is no turn".to_owned()));
            }
            for document in documents {
                if self.state.answers_at_most > 0 && mapped.documents.len() >= self.state.answers_at_most {
                    break;
                }
                loop {
                    // Created before the check, so that no notification is missed.
                    let goes_on = self.state.go_on.notified();
                    let stops_after = self.state.stops_after.load(Ordering::Relaxed);
                    if stops_after == 0 || self.state.mapped.load(Ordering::Relaxed) < stops_after {
                        break;
                    }
                    goes_on.await;
                }
                self.state.mapped.fetch_add(1, Ordering::Relaxed);
                let parsed = parse(&document, &Limits::default()).unwrap();
                let is_slow = || self.state.slow.fetch_add(1, Ordering::Relaxed) < self.state.slow_times.max(1);
                if parsed.get("slow").is_some() && is_slow() {
                    mapped.stopped = Some(FunctionFailure::TimedOut("slow".to_owned()));
                    break;
                }
                let is_passed_over = self.state.passes_over.is_some_and(|member| parsed.get(member).is_some());
                let emitted = |map| if is_passed_over { Ok(Vec::new()) } else { emitted_by(map, &document) };
                let views: Vec<_> = self.maps.iter().map(|map| emitted(map)).collect();
                if let Some(Err(busy @ FunctionFailure::Busy(_))) = views.iter().find(|rows| rows.is_err()) {
                    return Err(busy.clone());
                }
                let ends = |rows: &Result<_, FunctionFailure>| match rows {
                    Err(failure @ FunctionFailure::OutOfResources(_)) => Some(failure.clone()),
                    Err(failure @ FunctionFailure::Thrown { name, .. }) if name == "fatal" => Some(failure.clone()),
                    _ => None,
                };
                if let Some(failure) = views.iter().find_map(ends) {
                    mapped.stopped = Some(failure);
                    break;
                }
                let emitted = |rows: Vec<(String, String)>| {
                    let mut emitted = EmittedRows::default();
                    rows.iter().for_each(|(key, value)| emitted.push(key, value));
                    emitted
                };
                mapped.documents.push(views.into_iter().map(|rows| rows.map(emitted)).collect());
            }
            pass(self.state.pause).await;
            tokio::task::yield_now().await;
            Ok(mapped)
        })
    }

    /// Counts rows; the reduce `longest` returns the longest value.
    fn reduce<'a>(&'a self, reductions: &'a [Reduction<'a>]) -> BoxFuture<'a, Result<ReduceResults, FunctionFailure>> {
        let reduced = reductions.iter().map(|reduction| {
            let count = || match reduction.input {
                ReduceInput::Rows(rows) => rows.len() + self.state.miscounts,
                ReduceInput::Reductions(values) => {
                    values.iter().map(|value| value.parse::<usize>().unwrap()).sum::<usize>()
                }
            };
            let longest = || match reduction.input {
                ReduceInput::Rows(rows) => rows.iter().map(|(_, _, value)| *value).max_by_key(|value| value.len()),
                ReduceInput::Reductions(values) => values.iter().copied().max_by_key(|value| value.len()),
            };
            let result = |function: &usize| match self.reduces.get(*function).map(String::as_str) {
                Some("longest") => longest().unwrap_or("null").to_owned(),
                _ => count().to_string(),
            };
            reduction.functions.iter().map(|function| Ok(result(function))).collect()
        });
        let reduced = reduced.collect();
        Box::pin(async move { Ok(reduced) })
    }
}
