//! Several writes in one call, each with an answer of its own.
//!
//! A call for several writes ends with its slice, with a write that broke a bound, or with its process. The writes
//! without an answer are asked again, so that such a write costs the others time but no answer.

use std::collections::VecDeque;
use std::time::Duration;

use crate::error::{Error, Result};

/// The time for which writes that are judged together run before other databases have their turn.
pub(crate) const SLICE: Duration = Duration::from_millis(20);

/// The outcome of a call for several writes.
pub(crate) struct WritesPart<W, T> {
    /// In order of the writes. A write that broke a bound is the last.
    pub(crate) answers: Vec<Result<T>>,
    pub(crate) rest: VecDeque<W>,
    /// The number of writes with lost answers, and the error: the process was killed at a later write of the same
    /// slice.
    pub(crate) killed: Option<(usize, Error)>,
}

impl<W, T> WritesPart<W, T> {
    /// Returns the outcome of a call whose process was killed or died with `finished` writes done.
    pub(crate) fn lost(mut writes: VecDeque<W>, finished: usize, error: Error) -> WritesPart<W, T> {
        let lost = finished.min(writes.len().saturating_sub(1));
        let (mut answers, mut killed) = (Vec::new(), None);
        if lost == 0 {
            writes.pop_front();
            answers.push(Err(error));
        } else {
            killed = Some((lost, error));
        }
        WritesPart { answers, rest: writes, killed }
    }

    /// Returns the errors of the writes that may have ended the call.
    pub(crate) fn last_errors(&mut self) -> impl Iterator<Item = &mut Error> {
        let killed = self.killed.as_mut().map(|(_, error)| error);
        let last = self.answers.last_mut().and_then(|answer| answer.as_mut().err());
        killed.into_iter().chain(last)
    }
}

/// Judges all writes in order. `some` is a call for the first of them. An error of a whole call applies to all writes
/// that have no answer yet.
pub(crate) async fn all_in_parts<W, T: Clone, F>(
    writes: Vec<W>,
    mut some: impl FnMut(VecDeque<W>) -> F,
) -> Vec<Result<T>>
where
    F: Future<Output = Result<WritesPart<W, T>>>,
{
    let count = writes.len();
    let mut answers = Vec::with_capacity(count);
    let mut writes = VecDeque::from(writes);
    // Pairs of later writes and the error of their first one. Their predecessors run again first.
    let mut behind: Vec<(VecDeque<W>, Error)> = Vec::new();
    loop {
        if writes.is_empty() {
            let Some((mut rest, error)) = behind.pop() else { break };
            rest.pop_front();
            answers.push(Err(error));
            writes = rest;
            continue;
        }
        match some(writes).await {
            Ok(WritesPart { mut rest, killed: Some((before, error)), .. }) => {
                behind.push((rest.split_off(before.min(rest.len())), error));
                writes = rest;
            }
            Ok(part) if !part.answers.is_empty() => {
                answers.extend(part.answers);
                writes = part.rest;
            }
            Err(error) => {
                answers.resize(count, Err(error));
                break;
            }
            Ok(_) => break,
        }
    }
    // A write without an answer must not be stored.
    answers.resize(count, Err(Error::OutOfResources));
    answers
}

#[cfg(test)]
mod tests {
    use super::*;

    type Part = WritesPart<u32, u32>;

    fn part(answers: &[u32], rest: &[u32]) -> Part {
        let answers = answers.iter().map(|answer| Ok(*answer)).collect();
        Part { answers, rest: rest.iter().copied().collect(), killed: None }
    }

    /// Answers two writes at a time. 4 kills the process, after two others, and 7 breaks a bound.
    async fn some(mut writes: VecDeque<u32>) -> Result<Part> {
        match writes.iter().position(|write| *write == 4) {
            Some(at @ 0..=2) => return Ok(Part::lost(writes, at, Error::Missing)),
            _ if writes.front() == Some(&7) => {
                writes.pop_front();
                return Ok(Part { answers: vec![Err(Error::OutOfResources)], rest: writes, killed: None });
            }
            _ => {}
        }
        let rest = writes.split_off(writes.len().min(2));
        Ok(part(writes.make_contiguous(), &Vec::from(rest)))
    }

    #[tokio::test]
    async fn each_write_has_its_own_answer_in_order() {
        let said = all_in_parts((0..10).collect(), some).await;
        let expected: Vec<Result<u32>> = (0..10)
            .map(|n| match n {
                4 => Err(Error::Missing),
                7 => Err(Error::OutOfResources),
                n => Ok(n),
            })
            .collect();
        assert_eq!(said, expected);
        // All but the first are answered by the error of a call as a whole.
        let mut calls = 0;
        let said = all_in_parts(vec![1, 2, 3], |mut writes: VecDeque<u32>| {
            calls += 1;
            let first = writes.pop_front().into_iter().collect::<Vec<_>>();
            let told = if calls > 1 { Err(Error::Busy) } else { Ok(part(&first, writes.make_contiguous())) };
            async move { told }
        });
        assert_eq!(said.await, [Ok(1), Err(Error::Busy), Err(Error::Busy)]);
        let said = all_in_parts(vec![1, 2], |_| async { Ok(part(&[], &[])) });
        assert_eq!(said.await, [Err(Error::OutOfResources), Err(Error::OutOfResources)]);
    }
}
