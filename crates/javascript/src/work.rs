//! The execution of requests in an engine process.

use std::time::Duration;

use crate::clock::{Clock, now};
use crate::engine::KEPT_BYTES_MAX;
use crate::error::Result;
use crate::failure;
use crate::list::Exchange;
use crate::machine::Machine;
use crate::message::{Output, ReduceWork, Work};
use crate::sync::SyncWrite;

/// The size of an answer, in bytes, that ends a part of a batch. The first document's rows are included whatever
/// their size.
const PART_BYTES_MAX: usize = 4 << 20;

impl Work<'_> {
    /// Runs a request. The second value is true if the machine may be used again: not if it was interrupted.
    pub(crate) fn put(self, machine: &Machine, clock: &Clock, exchange: &Exchange) -> (Result<Output>, bool) {
        let output = match self {
            Work::Call { kind, path, input } => machine.call(kind, path, input, clock).map(Output::Text),
            Work::Map { documents, slice } => {
                let mapped = map(machine, &documents, slice, clock);
                let is_whole = matches!(&mapped, Output::Mapped { stopped: None, .. });
                return (Ok(mapped), is_whole);
            }
            Work::Reduce { asks, slice } => reduce(machine, asks, slice, clock).map(Output::Reduced),
            Work::Render { kind, input } => machine.render(kind, input, clock).map(Output::Text),
            Work::List { input } => machine.list(input, exchange, clock).map(Output::Text),
            Work::Transform { input } => {
                let (output, is_whole) = machine.transform(input, clock);
                return (output.map(Output::Text), is_whole);
            }
            // The machine has compiled the source.
            Work::Check => Ok(Output::Text(String::new())),
            Work::Route { writes, slice, step_max } => {
                let one = |write: &SyncWrite| machine.route(write, clock);
                let (heard, is_whole) = in_order(writes.iter(), machine, (slice, step_max), clock, one);
                return (Ok(Output::Routed(heard)), is_whole);
            }
            Work::Validate { context, writes, slice, step_max } => {
                let one = |write: (&str, Option<&str>)| {
                    let told = machine.validate(context, write, clock);
                    let is_whole = told.is_ok();
                    (told, is_whole)
                };
                let (told, is_whole) = in_order(writes.into_iter(), machine, (slice, step_max), clock, one);
                return (Ok(Output::Validated(told)), is_whole);
            }
            #[cfg(test)]
            Work::Probe { input } => Ok(Output::Text(crate::child::probe::probe(input, clock))),
        };
        let is_whole = output.is_ok();
        (output, is_whole)
    }
}

/// Judges writes until the slice ends. The second value is true if the machine may be used again.
fn in_order<W, T>(
    writes: impl Iterator<Item = W>,
    machine: &Machine,
    (slice, step_max): (Duration, Duration),
    clock: &Clock,
    judge: impl Fn(W) -> (Result<T>, bool),
) -> (Vec<Result<T>>, bool) {
    // The slice includes the time to make the machine, so the batch takes at most a slice and a step.
    let slice_end = (clock.until() + slice).saturating_sub(step_max);
    let mut judged = Vec::new();
    let mut is_whole = true;
    for write in writes {
        let said;
        (said, is_whole) = judge(write);
        judged.push(said);
        clock.set_finished(judged.len());
        // A write that leaves much memory behind ends the batch, so that the next one gets a fresh engine.
        is_whole &= machine.usage().used() <= KEPT_BYTES_MAX;
        let now = now();
        if !is_whole || now >= slice_end || clock.is_stopped() {
            break;
        }
        clock.set(now + step_max);
    }
    (judged, is_whole)
}

fn map(machine: &Machine, documents: &[&[u8]], slice: Duration, clock: &Clock) -> Output {
    let slice_end = now() + slice;
    let (mut emitted, mut bytes) = (Vec::<String>::with_capacity(documents.len()), 0);
    let (mut stopped, mut logs) = (None, Vec::new());
    let mapped = machine.within(clock, |ctx| {
        let map = machine.export(ctx, "map")?;
        for document in documents {
            // The first document is always mapped; otherwise a batch would never end.
            if !emitted.is_empty() && (now() >= slice_end || bytes >= PART_BYTES_MAX) {
                break;
            }
            let value = ctx.json_parse(*document);
            let lines: String = map.call((value?,))?;
            if let Some(failed) = lines.strip_prefix("!!") {
                stopped = Some(failure(failed));
                break;
            }
            // Output made after a failed allocation is not valid.
            if machine.usage().is_refused() || machine.usage().is_exhausted() {
                break;
            }
            bytes += lines.len();
            emitted.push(lines);
            clock.set_finished(emitted.len());
        }
        Ok(())
    });
    if let Err(error) = mapped {
        stopped = Some(error);
    } else {
        logs = machine.logs(clock);
    }
    Output::Mapped { documents: emitted, stopped, logs }
}

/// Runs reduces. A part ends like one of a batch of documents.
fn reduce(machine: &Machine, asks: Vec<ReduceWork<'_>>, slice: Duration, clock: &Clock) -> Result<Vec<Vec<String>>> {
    let slice_end = now() + slice;
    let (mut all, mut bytes) = (Vec::with_capacity(asks.len()), 0);
    machine.within(clock, |ctx| {
        let reduce = machine.export(ctx, "reduce")?;
        for ReduceWork { functions, is_rereduce, input } in asks {
            if !all.is_empty() && (now() >= slice_end || bytes >= PART_BYTES_MAX) {
                break;
            }
            let mut results = Vec::with_capacity(functions.len());
            for function in functions {
                // Each function gets its own copy, which it may change.
                let answer: String = reduce.call((function, ctx.json_parse(input)?, is_rereduce))?;
                bytes += answer.len();
                results.push(answer);
            }
            all.push(results);
        }
        Ok(())
    })?;
    Ok(all)
}
