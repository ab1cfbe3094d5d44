//! Requests to an engine and the parsing of its output.
//!
//! A function may have taken over the process that wrote the output. The parsers therefore accept any bytes.

use std::collections::VecDeque;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::list::Link;
use crate::machine::MachineKind;
use crate::message::Output;
use crate::rows::Rows;
use crate::sync::{SyncDecision, SyncWrite, routed};
use crate::together::WritesPart;
use crate::writes::{WriteContext, WriteTexts};
use crate::{cut, failure, whole};

pub(crate) enum EngineRequest {
    /// Calls a function of the dispatcher.
    Call { kind: &'static str, path: String, input: String },
    /// Maps documents until the slice ends. `is_fresh`: needs a machine that has run nothing.
    Map { documents: Vec<Vec<u8>>, views: usize, slice: Duration, is_fresh: bool },
    /// Reduces rows or reductions until the slice ends.
    Reduce { asks: Vec<ReduceRequest>, slice: Duration },
    /// Runs a show, an update or a rewrite; the input is path and arguments.
    Render { kind: &'static str, input: String },
    /// Runs a list.
    List { input: String, link: Link },
    /// Checks that a text is a sync function or a transform function.
    Check,
    /// Runs a sync function for several writes in order until the slice ends. `step_max`: the time limit of one
    /// write.
    Route { writes: VecDeque<SyncWrite>, slice: Duration, step_max: Duration },
    /// Runs `validate_doc_update` for several writes, as a sync function.
    Validate { context: WriteContext, writes: VecDeque<WriteTexts>, slice: Duration, step_max: Duration },
    /// Transforms a document for the changes worker.
    Transform { input: String },
    /// Tries an operation that the process is denied.
    #[cfg(test)]
    Probe { input: String },
}

pub(crate) struct ReduceRequest {
    /// For each function its index in the group and the length of the call in CouchDB's query server, in characters.
    pub(crate) functions: Vec<(usize, usize)>,
    pub(crate) is_rereduce: bool,
    pub(crate) input: String,
}

pub(crate) enum Answer {
    Text(String),
    Routed(RoutedPart),
    Validated(ValidatedPart),
    Mapped(MappedPart),
    Reduced(ReducedPart),
}

pub(crate) type RoutedPart = WritesPart<SyncWrite, SyncDecision>;

pub(crate) type ValidatedPart = WritesPart<WriteTexts, ()>;

pub(crate) struct ReducedPart {
    pub(crate) results: Vec<Vec<Result<String>>>,
    pub(crate) rest: Vec<ReduceRequest>,
}

pub(crate) struct MappedPart {
    pub(crate) documents: Vec<Vec<Result<Rows>>>,
    /// Why the next document has no answer.
    pub(crate) stopped: Option<Error>,
    /// The number of documents whose rows were lost: the process was killed at a later document, for `stopped`.
    pub(crate) lost: usize,
    pub(crate) was_used: bool,
    /// The documents without an answer. The first is the one that stopped the slice, or the first with lost rows.
    pub(crate) rest: Vec<Vec<u8>>,
    pub(crate) logs: Vec<String>,
}

impl EngineRequest {
    pub(crate) fn part(&self) -> MachineKind {
        match self {
            EngineRequest::Call { .. } | EngineRequest::Validate { .. } => MachineKind::Calls,
            EngineRequest::Map { .. } => MachineKind::Maps,
            EngineRequest::Reduce { .. } => MachineKind::Reduces,
            EngineRequest::Render { .. } => MachineKind::Render,
            EngineRequest::List { .. } => MachineKind::List,
            EngineRequest::Check | EngineRequest::Route { .. } | EngineRequest::Transform { .. } => MachineKind::Sync,
            #[cfg(test)]
            EngineRequest::Probe { .. } => MachineKind::Sync,
        }
    }

    /// Returns true if the request runs no function of the design document for an input.
    pub(crate) fn runs_nothing(&self) -> bool {
        match self {
            EngineRequest::Call { kind, .. } => matches!(*kind, "has" | "member"),
            EngineRequest::Map { documents, .. } => documents.is_empty(),
            EngineRequest::Reduce { asks, .. } => asks.is_empty(),
            EngineRequest::Check => true,
            _ => false,
        }
    }

    /// Returns true if the process sets a deadline for each write; otherwise the server does.
    pub(crate) fn moves_deadline(&self) -> bool {
        matches!(self, EngineRequest::Route { .. } | EngineRequest::Validate { .. })
    }

    pub(crate) fn wants_fresh(&self) -> bool {
        matches!(self, EngineRequest::Map { is_fresh: true, .. })
    }

    /// Parses the output. `was_used`: the machine had run other calls before. Returns `None` if the output does not
    /// fit the request.
    pub(crate) fn answer(self, output: Output, was_used: bool) -> Option<Answer> {
        Some(match (self, output) {
            (
                EngineRequest::Call { .. }
                | EngineRequest::Render { .. }
                | EngineRequest::List { .. }
                | EngineRequest::Check
                | EngineRequest::Transform { .. },
                Output::Text(text),
            ) => Answer::Text(text),
            (EngineRequest::Map { documents, views, .. }, Output::Mapped { documents: emitted, stopped, logs }) => {
                let mut rest = documents;
                let behind = rest.split_off_checked(emitted.len())?;
                drop(std::mem::replace(&mut rest, behind));
                let documents = emitted.into_iter().map(|lines| outcomes(lines, views)).collect::<Option<_>>()?;
                Answer::Mapped(MappedPart { documents, stopped, lost: 0, was_used, rest, logs })
            }
            (EngineRequest::Reduce { asks, .. }, Output::Reduced(results)) => {
                let mut asks = asks.into_iter();
                let results = results.into_iter().map(|answers| {
                    let ask = asks.next().filter(|ask| ask.functions.len() == answers.len())?;
                    let answers = answers.iter().zip(&ask.functions);
                    Some(answers.map(|(answer, (_, characters))| reduced(answer, *characters)).collect())
                });
                let results = results.collect::<Option<_>>()?;
                Answer::Reduced(ReducedPart { results, rest: asks.collect() })
            }
            (EngineRequest::Route { mut writes, .. }, Output::Routed(heard)) => {
                let heard = heard.into_iter().map(|heard| {
                    let write = writes.pop_front()?;
                    Some(heard.map(|heard| routed(heard, write.id_bytes)))
                });
                let answers = heard.collect::<Option<_>>()?;
                Answer::Routed(RoutedPart { answers, rest: writes, killed: None })
            }
            (EngineRequest::Validate { mut writes, .. }, Output::Validated(told)) => {
                let told = told.into_iter().map(|told| {
                    writes.pop_front()?;
                    Some(told.and_then(|told| if told.is_empty() { Ok(()) } else { Err(failure(&told)) }))
                });
                let answers = told.collect::<Option<_>>()?;
                Answer::Validated(ValidatedPart { answers, rest: writes, killed: None })
            }
            #[cfg(test)]
            (EngineRequest::Probe { .. }, Output::Text(text)) => Answer::Text(text),
            _ => return None,
        })
    }

    /// Returns the answer after the process was killed or died with `finished` items done.
    pub(crate) fn lost(self, finished: usize, was_used: bool, error: Error) -> Result<Answer> {
        match self {
            EngineRequest::Map { documents, .. } if !documents.is_empty() => {
                let lost = finished.min(documents.len() - 1);
                let (stopped, logs) = (Some(error), Vec::new());
                let part = MappedPart { documents: Vec::new(), stopped, lost, was_used, rest: documents, logs };
                Ok(Answer::Mapped(part))
            }
            EngineRequest::Route { writes, .. } if !writes.is_empty() => {
                Ok(Answer::Routed(RoutedPart::lost(writes, finished, error)))
            }
            EngineRequest::Validate { writes, .. } if !writes.is_empty() => {
                Ok(Answer::Validated(ValidatedPart::lost(writes, finished, error)))
            }
            _ => Err(error),
        }
    }
}

trait SplitOff: Sized {
    fn split_off_checked(&mut self, at: usize) -> Option<Self>;
}

impl<T> SplitOff for Vec<T> {
    fn split_off_checked(&mut self, at: usize) -> Option<Self> {
        (at <= self.len()).then(|| self.split_off(at))
    }
}

/// Splits the lines of one document, one for each view. Returns `None` if the number of lines differs.
fn outcomes(lines: String, views: usize) -> Option<Vec<Result<Rows>>> {
    let outcome = |line: String| match line.strip_prefix('!') {
        Some(failed) => Err(failure(failed)),
        None => Rows::parse(whole(line)),
    };
    if views == 1 {
        return Some(vec![outcome(lines)]);
    }
    if views == 0 {
        return lines.is_empty().then(Vec::new);
    }
    let has_all = lines.split('\n').take(views + 1).count() == views;
    has_all.then(|| lines.split('\n').map(|line| outcome(line.to_owned())).collect())
}

/// Output of up to this many UTF-16 units is exempt from the reduce overflow check.
const FREE_CHARACTERS: usize = 4_096;

/// Parses `[RESULT]` and applies CouchDB's reduce overflow check.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::SyncOutcome;

    fn map(documents: usize) -> EngineRequest {
        let documents = vec![b"{}".to_vec(); documents];
        EngineRequest::Map { documents, views: 1, slice: Duration::ZERO, is_fresh: false }
    }

    fn validate(writes: usize) -> EngineRequest {
        let writes = vec![WriteTexts { document: "{}".to_owned(), old: None }; writes].into();
        let context = WriteContext { user: "{}".into(), security: "{}".into() };
        EngineRequest::Validate { context, writes, slice: Duration::ZERO, step_max: Duration::ZERO }
    }

    fn mapped(documents: usize) -> Output {
        Output::Mapped { documents: vec!["[[1,2]]".to_owned(); documents], stopped: None, logs: Vec::new() }
    }

    #[test]
    fn more_than_was_asked_for_is_no_answer() {
        let Some(Answer::Mapped(part)) = map(3).answer(mapped(2), false) else { panic!("no answer") };
        assert_eq!((part.documents.len(), part.rest.len()), (2, 1));
        assert!(
            map(3).answer(mapped(4), false).is_none() && map(3).answer(Output::Text(String::new()), false).is_none()
        );
        for (views, lines, is_answer) in
            [(2, "[[1,2]]\n[]", true), (2, "[]", false), (2, "[]\n[]\n[]", false), (3, "", false), (0, "", true)]
        {
            let ask =
                EngineRequest::Map { documents: vec![b"{}".to_vec()], views, slice: Duration::ZERO, is_fresh: false };
            let output = Output::Mapped { documents: vec![lines.to_owned()], stopped: None, logs: Vec::new() };
            assert_eq!(ask.answer(output, false).is_some(), is_answer, "{lines:?} of {views}");
        }
        let reduce = |answers: Vec<usize>| {
            let asks = [1, 2].map(|functions| ReduceRequest {
                functions: vec![(0, 10); functions],
                is_rereduce: false,
                input: "[]".to_owned(),
            });
            let ask = EngineRequest::Reduce { asks: asks.into(), slice: Duration::ZERO };
            let answers = answers.into_iter().map(|count| vec!["[1]".to_owned(); count]).collect();
            ask.answer(Output::Reduced(answers), false)
        };
        assert!(reduce(vec![1]).is_some() && reduce(vec![1, 2]).is_some());
        for wrong in [vec![2], vec![1, 1], vec![1, 2, 1]] {
            assert!(reduce(wrong.clone()).is_none(), "{wrong:?}");
        }
        let route = |heard: usize| {
            let writes = VecDeque::from(vec![SyncWrite::default(); 2]);
            let ask = EngineRequest::Route { writes, slice: Duration::ZERO, step_max: Duration::ZERO };
            ask.answer(Output::Routed((0..heard).map(|_| Ok(SyncOutcome::Thrown)).collect()), false)
        };
        assert!(route(2).is_some() && route(3).is_none());
        let validate = |told: &[&str]| {
            let told = told.iter().map(|told| Ok((*told).to_owned())).collect();
            validate(2).answer(Output::Validated(told), false)
        };
        let Some(Answer::Validated(part)) = validate(&["", r#"["error","forbidden","no"]"#]) else {
            panic!("no answer")
        };
        assert_eq!(part.answers, [Ok(()), Err(Error::Forbidden("no".to_owned()))]);
        let Some(Answer::Validated(part)) = validate(&["[]"]) else { panic!("no answer") };
        assert_eq!((part.answers, part.rest.len()), (vec![Err(Error::OutOfResources)], 1));
        assert!(validate(&["", "", ""]).is_none());
    }

    #[test]
    fn items_before_the_one_that_ran_away_are_lost_and_not_blamed() {
        for (finished, lost) in [(0, 0), (2, 2), (3, 2), (usize::MAX, 2)] {
            let part = map(3).lost(finished, true, Error::OutOfResources);
            let Ok(Answer::Mapped(part)) = part else { panic!("no answer") };
            assert_eq!((part.lost, part.rest.len(), part.documents.len()), (lost, 3, 0));
        }
        let route = EngineRequest::Route {
            writes: vec![SyncWrite::default()].into(),
            slice: Duration::ZERO,
            step_max: Duration::ZERO,
        };
        let Ok(Answer::Routed(part)) = route.lost(7, false, Error::Busy) else { panic!("no answer") };
        assert!(part.answers == [Err(Error::Busy)] && part.rest.is_empty() && part.killed.is_none());
        for (finished, answers, lost) in [(0, 1, None), (1, 0, Some(1)), (9, 0, Some(1))] {
            let Ok(Answer::Validated(part)) = validate(2).lost(finished, true, Error::OutOfResources) else {
                panic!("no answer")
            };
            assert_eq!((part.answers.len(), part.rest.len()), (answers, 2 - answers));
            assert_eq!(part.killed, lost.map(|lost| (lost, Error::OutOfResources)));
        }
        assert!(EngineRequest::Check.lost(0, false, Error::OutOfResources).is_err());
    }
}
