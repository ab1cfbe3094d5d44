//! The frames between the server and an engine process: requests and replies.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use flatbed_channels::require::Writer;

use crate::cut;
use crate::engine_request::EngineRequest;
use crate::error::{Error, Result};
use crate::group::LOGS_MAX;
use crate::list::ListPart;
use crate::machine::{Code, MachineKind};
use crate::sync::{SyncOutcome, SyncWrite};
use crate::sync_output::{OUTPUT_BYTES_MAX, OUTPUT_ENTRIES_MAX, SyncOutput};
use crate::wire::{Frame, FrameReader};
use crate::writes::TOLD_BYTES_MAX;

pub(crate) struct Setup<'f> {
    pub(crate) memory_max: usize,
    pub(crate) memory_all_max: usize,
    pub(crate) programs: [&'f [u8]; 4],
}

impl<'f> Setup<'f> {
    pub(crate) fn write(code: &Code, memory_all_max: usize) -> Frame {
        let mut frame = Frame::begin(Vec::new());
        frame.number(code.memory_max as u64).number(memory_all_max as u64);
        for program in code.programs() {
            frame.bytes(program);
        }
        frame
    }

    pub(crate) fn read(frame: &'f [u8]) -> Option<Setup<'f>> {
        let mut rest = FrameReader::of(frame);
        let memory_max = usize::try_from(rest.number()?).ok()?;
        let memory_all_max = usize::try_from(rest.number()?).ok()?;
        let programs = [rest.bytes()?, rest.bytes()?, rest.bytes()?, rest.bytes()?];
        Some(Setup { memory_max, memory_all_max, programs })
    }
}

pub(crate) enum Request<'f> {
    /// Drops all engines. Has no reply.
    Clear,
    Call(CallRequest<'f>),
}

pub(crate) struct CallRequest<'f> {
    pub(crate) number: u64,
    pub(crate) dropped: Vec<u32>,
    pub(crate) slot: u32,
    pub(crate) part: MachineKind,
    /// The source of a new engine; `None` if the engine exists.
    pub(crate) text: Option<&'f str>,
    pub(crate) work: Work<'f>,
}

pub(crate) enum Work<'f> {
    Call {
        kind: &'f str,
        path: &'f str,
        input: &'f str,
    },
    Map {
        documents: Vec<&'f [u8]>,
        slice: Duration,
    },
    Reduce {
        asks: Vec<ReduceWork<'f>>,
        slice: Duration,
    },
    Render {
        kind: &'f str,
        input: &'f str,
    },
    List {
        input: &'f str,
    },
    Check,
    Route {
        writes: VecDeque<SyncWrite>,
        slice: Duration,
        step_max: Duration,
    },
    Transform {
        input: &'f str,
    },
    Validate {
        /// The user and `_security`.
        context: [&'f str; 2],
        /// Each document with the one that it replaces.
        writes: Vec<(&'f str, Option<&'f str>)>,
        slice: Duration,
        step_max: Duration,
    },
    #[cfg(test)]
    Probe {
        input: &'f str,
    },
}

pub(crate) struct ReduceWork<'f> {
    pub(crate) functions: Vec<usize>,
    pub(crate) is_rereduce: bool,
    pub(crate) input: &'f str,
}

const CLEAR: u8 = 0;
const CALL: u8 = 1;

pub(crate) fn write_clear(frame: &mut Frame) {
    frame.byte(CLEAR);
}

pub(crate) fn write_call(
    frame: &mut Frame,
    number: u64,
    (dropped, slot): (&[u32], u32),
    text: Option<&str>,
    ask: &EngineRequest,
) {
    frame.byte(CALL).number(number).list(dropped.iter(), |frame, slot| {
        frame.number(u64::from(*slot));
    });
    frame.number(u64::from(slot)).byte(ask.part().number()).maybe_text(text);
    match ask {
        EngineRequest::Call { kind, path, input } => frame.byte(0).text(kind).text(path).text(input),
        EngineRequest::Map { documents, slice, .. } => {
            frame.byte(1).number(micros(*slice)).list(documents.iter(), |frame, document| {
                frame.bytes(document);
            })
        }
        EngineRequest::Reduce { asks, slice } => {
            frame.byte(2).number(micros(*slice)).list(asks.iter(), |frame, ask| {
                frame.flag(ask.is_rereduce).text(&ask.input).list(ask.functions.iter(), |frame, (function, _)| {
                    frame.count(*function);
                });
            })
        }
        EngineRequest::Render { kind, input } => frame.byte(3).text(kind).text(input),
        EngineRequest::List { input, .. } => frame.byte(4).text(input),
        EngineRequest::Check => frame.byte(5),
        EngineRequest::Route { writes, slice, step_max } => {
            let mut before: Option<&Arc<Writer>> = None;
            frame.byte(6).number(micros(*slice)).number(micros(*step_max)).list(writes.iter(), |frame, write| {
                frame.text(&write.document).maybe_text(write.old.as_deref()).maybe_text(write.meta.as_deref());
                frame.number(write.now_s);
                // The writes of one request share a writer, who may have thousands of channels.
                match &write.writer {
                    None => frame.byte(0),
                    Some(writer) if before.is_some_and(|before| Arc::ptr_eq(before, writer)) => frame.byte(2),
                    Some(writer) => {
                        before = Some(writer);
                        frame.byte(1).text(&writer.name).texts(writer.channels.iter()).texts(writer.roles.iter())
                    }
                };
            })
        }
        EngineRequest::Transform { input } => frame.byte(7).text(input),
        EngineRequest::Validate { context, writes, slice, step_max } => {
            frame.byte(8).number(micros(*slice)).number(micros(*step_max));
            frame.text(&context.user).text(&context.security).list(writes.iter(), |frame, write| {
                frame.text(&write.document).maybe_text(write.old.as_deref());
            })
        }
        #[cfg(test)]
        EngineRequest::Probe { input } => frame.byte(9).text(input),
    };
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

pub(crate) fn read_request(frame: &[u8]) -> Option<Request<'_>> {
    let mut rest = FrameReader::of(frame);
    if rest.byte()? == CLEAR {
        return Some(Request::Clear);
    }
    let slot = |rest: &mut FrameReader<'_>| u32::try_from(rest.number()?).ok();
    Some(Request::Call(CallRequest {
        number: rest.number()?,
        dropped: rest.list(slot)?,
        slot: slot(&mut rest)?,
        part: MachineKind::of_number(rest.byte()?)?,
        text: rest.maybe(FrameReader::text)?,
        work: read_work(&mut rest)?,
    }))
}

fn read_work<'f>(rest: &mut FrameReader<'f>) -> Option<Work<'f>> {
    let time = |rest: &mut FrameReader<'f>| rest.number().map(Duration::from_micros);
    Some(match rest.byte()? {
        0 => Work::Call { kind: rest.text()?, path: rest.text()?, input: rest.text()? },
        1 => Work::Map { slice: time(rest)?, documents: rest.list(FrameReader::bytes)? },
        2 => Work::Reduce {
            slice: time(rest)?,
            asks: rest.list(|rest| {
                let (is_rereduce, input) = (rest.flag()?, rest.text()?);
                Some(ReduceWork { is_rereduce, input, functions: rest.list(FrameReader::count)? })
            })?,
        },
        3 => Work::Render { kind: rest.text()?, input: rest.text()? },
        4 => Work::List { input: rest.text()? },
        5 => Work::Check,
        6 => {
            let (slice, step_max) = (time(rest)?, time(rest)?);
            let mut before: Option<Arc<Writer>> = None;
            let writes = rest.list(|rest| {
                let (document, old, meta) =
                    (rest.owned()?, rest.maybe(FrameReader::owned)?, rest.maybe(FrameReader::owned)?);
                let now_s = rest.number()?;
                let writer = match rest.byte()? {
                    0 => None,
                    2 => before.clone(),
                    _ => {
                        let name = rest.owned()?;
                        let (channels, roles) = (rest.list(FrameReader::owned)?, rest.list(FrameReader::owned)?);
                        before = Some(Arc::new(Writer { name, channels, roles, ..Writer::default() }));
                        before.clone()
                    }
                };
                Some(SyncWrite { document, old, meta, writer, now_s, ..SyncWrite::default() })
            });
            Work::Route { writes: writes?, slice, step_max }
        }
        7 => Work::Transform { input: rest.text()? },
        8 => Work::Validate {
            slice: time(rest)?,
            step_max: time(rest)?,
            context: [rest.text()?, rest.text()?],
            writes: rest.list(|rest| Some((rest.text()?, rest.maybe(FrameReader::text)?)))?,
        },
        #[cfg(test)]
        9 => Work::Probe { input: rest.text()? },
        _ => return None,
    })
}

#[derive(Debug, PartialEq)]
pub(crate) enum Reply {
    /// A part of the text of a list, which then waits for a [`ListPage`].
    Exchange(ListPart),
    /// The end of a call. `is_kept`: the process keeps the engine. `is_last`: the process used so much memory that it
    /// must end, because its allocator may not return memory to the system.
    Done { is_kept: bool, is_last: bool, result: Result<Output> },
}

#[derive(Debug, PartialEq)]
pub(crate) enum Output {
    Text(String),
    /// For each document in turn the rows of all maps, as `maps.js` writes them, and why the next document has no
    /// answer.
    Mapped {
        documents: Vec<String>,
        stopped: Option<Error>,
        logs: Vec<String>,
    },
    Reduced(Vec<Vec<String>>),
    Routed(Vec<Result<SyncOutcome>>),
    /// For each write an empty text, or what the function has thrown.
    Validated(Vec<Result<String>>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListPage {
    Rows(String),
    End,
    /// The list must stop. This says nothing about further rows.
    Broken,
}

impl ListPage {
    pub(crate) fn write(&self, frame: &mut Frame) {
        match self {
            ListPage::Rows(rows) => frame.byte(0).text(rows),
            ListPage::End => frame.byte(1),
            ListPage::Broken => frame.byte(2),
        };
    }

    pub(crate) fn read(frame: &[u8]) -> Option<ListPage> {
        let mut rest = FrameReader::of(frame);
        Some(match rest.byte()? {
            0 => ListPage::Rows(rest.owned()?),
            1 => ListPage::End,
            _ => ListPage::Broken,
        })
    }
}

pub(crate) fn write_exchange(frame: &mut Frame, wants_rows: bool, response: &str, text: &str) {
    frame.byte(0).flag(wants_rows).text(response).text(text);
}

pub(crate) fn write_done(frame: &mut Frame, (is_kept, is_last): (bool, bool), result: &Result<Output>) {
    frame.byte(1).flag(is_kept).flag(is_last);
    match result {
        Err(error) => write_error(frame.byte(0), error),
        Ok(Output::Text(text)) => {
            frame.byte(1).text(text);
        }
        Ok(Output::Mapped { documents, stopped, logs }) => {
            frame.byte(2).texts(documents.iter()).flag(stopped.is_some());
            stopped.iter().for_each(|error| write_error(frame, error));
            frame.texts(logs.iter());
        }
        Ok(Output::Reduced(results)) => {
            frame.byte(3).list(results.iter(), |frame, results| {
                frame.texts(results.iter());
            });
        }
        Ok(Output::Routed(routed)) => {
            frame.byte(4).list(routed.iter(), |frame, heard| match heard {
                Err(error) => write_error(frame.byte(0), error),
                Ok(SyncOutcome::Thrown) => {
                    frame.byte(1);
                }
                Ok(SyncOutcome::Finished(said)) => write_sync_output(frame.byte(2), said),
            });
        }
        Ok(Output::Validated(told)) => {
            frame.byte(5).list(told.iter(), |frame, told| match told {
                Err(error) => write_error(frame.byte(0), error),
                Ok(told) => {
                    frame.byte(1).text(told);
                }
            });
        }
    }
}

/// The longest reply, in bytes. An engine has 128 MB by default.
const REPLY_BYTES_MAX: usize = 160 << 20;

/// The longest reply without output, in bytes.
const END_BYTES_MAX: usize = 1 << 20;

pub(crate) fn reply_bytes_max(ask: &EngineRequest) -> usize {
    let several =
        |writes: usize, each: usize| writes.saturating_mul(each).saturating_add(END_BYTES_MAX).min(REPLY_BYTES_MAX);
    match ask {
        EngineRequest::Check => END_BYTES_MAX,
        EngineRequest::Route { writes, .. } => several(writes.len(), 2 * OUTPUT_BYTES_MAX),
        EngineRequest::Validate { writes, .. } => several(writes.len(), TOLD_BYTES_MAX),
        _ => REPLY_BYTES_MAX,
    }
}

/// Reads a reply. Returns `None` if it is not a reply to this request. Reads no more items than the request has,
/// because a value takes 100 times its bytes in a frame.
pub(crate) fn read_reply(frame: &[u8], ask: &EngineRequest) -> Option<Reply> {
    let mut rest = FrameReader::of(frame);
    let reply = match rest.byte()? {
        0 if matches!(ask, EngineRequest::List { .. }) => {
            let (wants_rows, response) = (rest.flag()?, rest.owned()?);
            let response = Some(crate::whole(response)).filter(|response| !response.is_empty());
            Reply::Exchange(ListPart { response, text: rest.owned()?, wants_rows, is_end: false })
        }
        1 => Reply::Done { is_kept: rest.flag()?, is_last: rest.flag()?, result: read_result(&mut rest, ask)? },
        _ => return None,
    };
    rest.is_end().then_some(reply)
}

fn read_result(rest: &mut FrameReader<'_>, ask: &EngineRequest) -> Option<Result<Output>> {
    Some(Ok(match (rest.byte()?, ask) {
        (0, _) => return read_error(rest).map(Err),
        (1, _) => Output::Text(rest.owned()?),
        (2, EngineRequest::Map { documents, .. }) => Output::Mapped {
            documents: rest.list_of(documents.len(), FrameReader::owned)?,
            stopped: rest.maybe(read_error)?,
            logs: rest.list_of(LOGS_MAX, |rest| rest.text().map(cut))?,
        },
        (3, EngineRequest::Reduce { asks, .. }) => {
            let (max, mut asks) = (asks.len(), asks.iter());
            Output::Reduced(rest.list_of(max, |rest| -> Option<Vec<String>> {
                rest.list_of(asks.next()?.functions.len(), FrameReader::owned)
            })?)
        }
        (4, EngineRequest::Route { writes, .. }) => Output::Routed(rest.list_of(writes.len(), |rest| {
            Some(match rest.byte()? {
                0 => Err(read_error(rest)?),
                1 => Ok(SyncOutcome::Thrown),
                2 => Ok(SyncOutcome::Finished(read_sync_output(rest)?)),
                _ => return None,
            })
        })?),
        (5, EngineRequest::Validate { writes, .. }) => Output::Validated(rest.list_of(writes.len(), |rest| {
            Some(match rest.byte()? {
                0 => Err(read_error(rest)?),
                1 => Ok(rest.owned()?),
                _ => return None,
            })
        })?),
        _ => return None,
    }))
}

fn write_error(frame: &mut Frame, error: &Error) {
    match error {
        Error::Forbidden(reason) => frame.byte(0).text(reason),
        Error::Unauthorized(reason) => frame.byte(1).text(reason),
        Error::Missing => frame.byte(2),
        Error::Language(reason) => frame.byte(3).text(reason),
        Error::Compilation(reason) => frame.byte(4).text(reason),
        Error::Thrown { name, reason } => frame.byte(5).text(name).text(reason),
        Error::TimedOut(time) => frame.byte(6).number(micros(*time)),
        Error::OutOfResources => frame.byte(7),
        Error::Busy => frame.byte(8),
    };
}

fn read_error(rest: &mut FrameReader<'_>) -> Option<Error> {
    let text = |rest: &mut FrameReader<'_>| rest.text().map(cut);
    Some(match rest.byte()? {
        0 => Error::Forbidden(text(rest)?),
        1 => Error::Unauthorized(text(rest)?),
        2 => Error::Missing,
        3 => Error::Language(text(rest)?),
        4 => Error::Compilation(text(rest)?),
        5 => Error::Thrown { name: text(rest)?, reason: text(rest)? },
        6 => Error::TimedOut(Duration::from_micros(rest.number()?)),
        7 => Error::OutOfResources,
        8 => Error::Busy,
        _ => return None,
    })
}

fn write_sync_output(frame: &mut Frame, said: &SyncOutput) {
    frame.texts(said.channels.iter());
    for pairs in [&said.grants, &said.roles] {
        frame.list(pairs.iter(), |frame, (to, what)| {
            frame.text(to).text(what);
        });
    }
    let [channels, grants] = said.counts;
    frame.number(channels as u64).number(grants as u64);
    frame.flag(said.is_cut).flag(said.rejected.is_some());
    if let Some((status, reason)) = &said.rejected {
        frame.number(status.to_bits()).text(reason);
    }
    frame.flag(said.expires_at.is_some()).number(said.expires_at.unwrap_or(0));
}

fn read_sync_output(rest: &mut FrameReader<'_>) -> Option<SyncOutput> {
    let pair = |rest: &mut FrameReader<'_>| Some((rest.owned()?, rest.owned()?));
    let count = |rest: &mut FrameReader<'_>| usize::try_from(rest.number()?).ok();
    let channels = rest.list_of(OUTPUT_ENTRIES_MAX, FrameReader::owned)?;
    let (grants, roles) = (rest.list_of(OUTPUT_ENTRIES_MAX, pair)?, rest.list_of(OUTPUT_ENTRIES_MAX, pair)?);
    let (counts, is_cut) = ([count(rest)?, count(rest)?], rest.flag()?);
    let rejected = rest.maybe(|rest| {
        let status = f64::from_bits(rest.number()?);
        // `sync.js` guarantees this for honest processes.
        (status >= 400.0).then_some((status, rest.owned()?))
    })?;
    let (expires, at) = (rest.flag()?, rest.number()?);
    let expires_at = expires.then_some(at);
    Some(SyncOutput { channels, grants, roles, counts, is_cut, rejected, expires_at, bytes: 0 })
}

#[cfg(test)]
mod tests;
