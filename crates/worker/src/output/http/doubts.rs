//! Deletions of which an endpoint said that there is nothing to be deleted.
//!
//! 404 is the right answer to a deletion of what is not there: it may be sent for the second time, or be of a document that the endpoint
//! never had. An endpoint that has lost its place, behind a proxy that leads elsewhere for an hour, answers the same. Its documents show
//! which it is: one that is refused with 404 is waited for, and once one is taken again the deletions are sent again that were answered
//! so since the last that was taken before. They are remembered by the process that sent them, and no more than some hundreds; one is
//! forgotten with the next thing that the endpoint says of the same document, which is newer.

use std::collections::VecDeque;

use super::Told;
use crate::failure::Failure;
use crate::output::{Delivery, Refused, State};

/// What remembered deletions may take. Beyond that the oldest are forgotten.
const BYTES_MAX: usize = 256 << 10;

/// See above.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    deletions: VecDeque<Delivery>,
    bytes: usize,
    /// A document was answered 404, too.
    is_lost: bool,
    /// ... and one was taken after that.
    is_found: bool,
}

impl Doubts {
    /// What was said of something that was sent.
    pub(super) fn note(&mut self, delivery: &Delivery, told: Told) {
        // What is older must not come after it.
        self.forget(&delivery.id);
        match told {
            Told::Taken if self.is_lost => self.is_found = true,
            Told::Taken => self.settle(),
            Told::Gone => {}
            Told::Unknown => {
                let (id, rev, seq) = (delivery.id.clone(), delivery.rev.clone(), delivery.seq.clone());
                let deletion = Delivery { id, rev, seq, state: State::Gone, attachments: Vec::new() };
                self.bytes += deletion.bytes();
                self.deletions.push_back(deletion);
                while self.bytes > BYTES_MAX {
                    let Some(oldest) = self.deletions.pop_front() else { break };
                    self.bytes -= oldest.bytes();
                }
            }
        }
    }

    fn forget(&mut self, id: &str) {
        let bytes = &mut self.bytes;
        self.deletions.retain(|deletion| {
            let is_another = deletion.id != id;
            if !is_another {
                *bytes -= deletion.bytes();
            }
            is_another
        });
    }

    /// What was not taken.
    pub(super) fn note_refused(&mut self, refused: &Refused) {
        if matches!(refused, Refused::Failed { failure: Failure::Http(404), .. }) && !self.deletions.is_empty() {
            (self.is_lost, self.is_found) = (true, false);
        }
    }

    /// Whether they are to be sent again.
    pub(super) fn is_to_be_settled(&self) -> bool {
        self.is_lost && self.is_found
    }

    /// Those that are remembered, the oldest first.
    pub(super) fn deletions(&self) -> impl Iterator<Item = &Delivery> {
        self.deletions.iter()
    }

    /// There is no doubt any longer.
    pub(super) fn settle(&mut self) {
        *self = Doubts::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let mut doubts = Doubts::default();
        for at in 0..5_000 {
            let id = format!("{at}-{}", "x".repeat(at % 500));
            let deletion =
                Delivery { id, rev: "1-x".into(), seq: at.to_string(), state: State::Gone, attachments: Vec::new() };
            doubts.note(&deletion, Told::Unknown);
            assert!(doubts.bytes <= BYTES_MAX);
        }
        assert_eq!(doubts.bytes, doubts.deletions().map(Delivery::bytes).sum::<usize>());
        // The newest are.
        assert!(doubts.deletions().count() > 100 && doubts.deletions().last().is_some_and(|it| it.seq == "4999"));
        // Of a document the newest alone.
        let (count, bytes) = (doubts.deletions().count(), doubts.bytes);
        for seq in ["5000", "5001"] {
            let newest = doubts.deletions().last().unwrap().clone();
            doubts.note(&Delivery { seq: seq.into(), ..newest }, Told::Unknown);
        }
        assert_eq!((doubts.deletions().count(), doubts.bytes), (count, bytes));
        assert!(doubts.deletions().last().is_some_and(|it| it.seq == "5001"));
        doubts.note_refused(&Refused::failed(Failure::Http(503), ""));
        assert!(!doubts.is_lost);
        doubts.settle();
        // Nothing is in doubt: there is nothing to be found.
        doubts.note_refused(&Refused::failed(Failure::Http(404), ""));
        assert!(!doubts.is_lost && doubts.bytes == 0);
    }
}
