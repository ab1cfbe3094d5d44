//! What a machine is asked.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::list::Link;
use crate::machine::{Clock, Machine, Part};
use crate::pool::KEPT_BYTES_MAX;
use crate::rows::Rows;
use crate::sync::{Routed, SyncWrite};
use crate::{cut, failure, whole};

/// A call, with all that it needs.
pub(crate) enum Ask {
    /// A function of the dispatcher.
    Call { kind: &'static str, path: String, input: String },
    /// Documents to map, until the slice is over. `is_fresh`: in a machine that has run nothing.
    Map { documents: Vec<Vec<u8>>, views: usize, slice: Duration, is_fresh: bool },
    /// Rows or reductions to reduce, until the slice is over.
    Reduce { asks: Vec<ReduceAsk>, slice: Duration },
    /// A show, an update or a rewrite; the input is path and arguments.
    Render { kind: &'static str, input: String },
    /// A list.
    List { input: String, link: Link },
    /// Whether a text is a sync function, or one of the worker.
    Check,
    /// What a sync function says of writes, one behind the other until the slice is over. Each may take the time of a step.
    Route { writes: VecDeque<SyncWrite>, slice: Duration, step_max: Duration },
    /// What a function of the worker makes of a document.
    Transform { input: String },
}

/// One input, for some functions.
pub(crate) struct ReduceAsk {
    /// Their places among the group's, and how long CouchDB's query server would find the call.
    pub(crate) functions: Vec<(usize, usize)>,
    pub(crate) is_rereduce: bool,
    pub(crate) input: String,
}

/// What is answered.
pub(crate) enum Answer {
    Text(String),
    Routed(RoutedPart),
    Mapped(MappedPart),
    Reduced(ReducedPart),
}

/// What came of a part of several writes.
pub(crate) struct RoutedPart {
    /// In their order; behind one that broke a bound there is no other.
    pub(crate) routed: Vec<Result<Routed>>,
    /// Those whose turn it was not.
    pub(crate) rest: VecDeque<SyncWrite>,
}

/// What came of a part of a batch of reductions.
pub(crate) struct ReducedPart {
    pub(crate) results: Vec<Vec<Result<String>>>,
    /// Those whose turn it was not.
    pub(crate) rest: Vec<ReduceAsk>,
}

/// What came of a part of a batch of documents.
pub(crate) struct MappedPart {
    pub(crate) documents: Vec<Vec<Result<Rows>>>,
    /// Why the document after those has no answer.
    pub(crate) stopped: Option<Error>,
    /// Whether the machine had run something before.
    pub(crate) was_used: bool,
    /// Those whose turn it was not; the one that it stopped at is the first.
    pub(crate) rest: Vec<Vec<u8>>,
    pub(crate) logs: Vec<String>,
}

impl Ask {
    /// What it is asked of.
    pub(crate) fn part(&self) -> Part {
        match self {
            Ask::Call { .. } => Part::Calls,
            Ask::Map { .. } => Part::Maps,
            Ask::Reduce { .. } => Part::Reduces,
            Ask::Render { .. } => Part::Render,
            Ask::List { .. } => Part::List,
            Ask::Check | Ask::Route { .. } | Ask::Transform { .. } => Part::Sync,
        }
    }

    pub(crate) fn wants_fresh(&self) -> bool {
        matches!(self, Ask::Map { is_fresh: true, .. })
    }

    /// Also says whether the machine may be used again: one that was stopped in the middle of something may not.
    pub(crate) fn put(self, machine: &Machine, was_used: bool, clock: &Clock) -> (Result<Answer>, bool) {
        let answer = match self {
            Ask::Call { kind, path, input } => machine.call(kind, &path, &input, clock).map(Answer::Text),
            Ask::Map { documents, views, slice, .. } => {
                let mapped = map(machine, documents, views, slice, clock, was_used);
                let is_whole = mapped.stopped.is_none();
                return (Ok(Answer::Mapped(mapped)), is_whole);
            }
            Ask::Reduce { asks, slice } => reduce(machine, asks, slice, clock).map(Answer::Reduced),
            Ask::Render { kind, input } => machine.render(kind, &input, clock).map(Answer::Text),
            Ask::List { input, link } => machine.list(&input, link, clock).map(Answer::Text),
            Ask::Transform { input } => {
                let (answer, is_whole) = machine.transform(&input, clock);
                return (answer.map(Answer::Text), is_whole);
            }
            // It was compiled.
            Ask::Check => Ok(Answer::Text(String::new())),
            Ask::Route { writes, slice, step_max } => {
                let (part, is_whole) = route(machine, writes, slice, step_max, clock);
                return (Ok(Answer::Routed(part)), is_whole);
            }
        };
        let is_whole = answer.is_ok();
        (answer, is_whole)
    }
}

/// At least one write is asked about.
fn route(
    machine: &Machine,
    mut writes: VecDeque<SyncWrite>,
    slice: Duration,
    step_max: Duration,
    clock: &Clock,
) -> (RoutedPart, bool) {
    // What it took to make the machine is of it: with the last write it takes no longer than a slice and a step.
    let slice_end = clock.began() + slice;
    let mut routed = Vec::with_capacity(writes.len());
    let mut is_whole = true;
    while is_whole && let Some(write) = writes.pop_front() {
        let answer;
        (answer, is_whole) = machine.route(&write, clock);
        routed.push(answer);
        // What one leaves behind is not the next one's: as behind a call.
        is_whole &= machine.usage().used() <= KEPT_BYTES_MAX;
        let now = Instant::now();
        if now >= slice_end || clock.is_stopped() {
            break;
        }
        clock.set(now + step_max);
    }
    (RoutedPart { routed, rest: writes }, is_whole)
}

fn map(
    machine: &Machine,
    documents: Vec<Vec<u8>>,
    views: usize,
    slice: Duration,
    clock: &Clock,
    was_used: bool,
) -> MappedPart {
    let slice_end = Instant::now() + slice;
    let mut part = MappedPart { documents: Vec::new(), stopped: None, was_used, rest: Vec::new(), logs: Vec::new() };
    let mut waiting = documents.into_iter();
    let mapped = machine.within(clock, |ctx| {
        let map = machine.export(ctx, "map")?;
        // The first is mapped in any case, or a batch would never end.
        while part.documents.is_empty() || Instant::now() < slice_end {
            // What stops it is the caller's to judge: it gets the document back.
            let Some(document) = waiting.next() else { break };
            let value = ctx.json_parse(document.as_slice());
            part.rest.push(document);
            let lines: String = map.call((value?,))?;
            if let Some(failed) = lines.strip_prefix("!!") {
                part.stopped = Some(failure(failed));
                break;
            }
            // What it has made without memory that it wanted is not its answer.
            if machine.usage().is_refused() || machine.usage().is_exhausted() {
                break;
            }
            part.documents.push(outcomes(lines, views));
            part.rest.clear();
        }
        Ok(())
    });
    if let Err(error) = mapped {
        part.stopped = Some(error);
    } else {
        part.logs = machine.logs(clock);
    }
    part.rest.extend(waiting);
    part
}

/// One for each view.
fn outcomes(lines: String, views: usize) -> Vec<Result<Rows>> {
    let outcome = |line: String| match line.strip_prefix('!') {
        Some(failed) => Err(failure(failed)),
        None => Rows::parse(whole(line)),
    };
    if views == 1 {
        return vec![outcome(lines)];
    }
    lines.split('\n').map(|line| outcome(line.to_owned())).collect()
}

/// Output of so many characters may be of any size beside its input's.
const FREE_CHARACTERS: usize = 4_096;

fn reduce(machine: &Machine, asks: Vec<ReduceAsk>, slice: Duration, clock: &Clock) -> Result<ReducedPart> {
    let slice_end = Instant::now() + slice;
    let mut part = ReducedPart { results: Vec::with_capacity(asks.len()), rest: Vec::new() };
    let mut waiting = asks.into_iter();
    machine.within(clock, |ctx| {
        let reduce = machine.export(ctx, "reduce")?;
        while part.results.is_empty() || Instant::now() < slice_end {
            let Some(ReduceAsk { functions, is_rereduce, input }) = waiting.next() else { break };
            let mut results = Vec::with_capacity(functions.len());
            for (function, input_characters) in functions {
                // Each gets its own, which it may sort or otherwise change.
                let answer: String = reduce.call((function, ctx.json_parse(input.as_str())?, is_rereduce))?;
                results.push(reduced(&answer, input_characters));
            }
            part.results.push(results);
        }
        Ok(())
    })?;
    part.rest.extend(waiting);
    Ok(part)
}

/// Takes `[RESULT]` apart.
fn reduced(answer: &str, input_characters: usize) -> Result<String> {
    if let Some(failed) = answer.strip_prefix('!') {
        return Err(failure(failed));
    }
    let output = if answer.len() > FREE_CHARACTERS { answer.encode_utf16().count() } else { 0 };
    if output > FREE_CHARACTERS && output * 2 > input_characters {
        let reason =
            format!("Reduce output must shrink more rapidly: input size: {input_characters} output size: {output}");
        return Err(Error::Thrown { name: "reduce_overflow_error".to_owned(), reason: cut(&reason) });
    }
    let result = answer.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    result.map(|result| whole(result.to_owned())).ok_or(Error::OutOfResources)
}
