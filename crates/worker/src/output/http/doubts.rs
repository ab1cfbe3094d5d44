//! Deletions that an endpoint answered with 404.
//!
//! 404 is the correct answer to a deletion of a missing document: the deletion may be a repetition, or the endpoint
//! never had the document. An endpoint that has lost its path, such as behind a misdirected proxy, answers the same.
//! Its documents show the difference. A document that is refused with 404 is retried, and once a document is taken
//! again, the deletions that got 404 since the last taken document are repeated. The process that sent them remembers
//! some hundreds of them. A later answer about the same document discards its deletion.

use std::collections::VecDeque;

use super::EndpointAnswer;
use crate::failure::Failure;
use crate::output::{Delivery, DeliveryError, DeliveryState};

/// The most bytes of remembered deletions. Beyond that the oldest are discarded.
const BYTES_MAX: usize = 256 << 10;

/// The deletions in doubt, oldest first.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    deletions: VecDeque<Delivery>,
    bytes: usize,
    /// True if a document was answered with 404 too.
    is_lost: bool,
    /// True if a document was taken after that.
    is_found: bool,
}

impl Doubts {
    /// Records the answer to a delivery.
    pub(super) fn note(&mut self, delivery: &Delivery, told: EndpointAnswer) {
        // An older deletion must not be repeated after this delivery.
        self.forget(&delivery.id);
        match told {
            EndpointAnswer::Taken if self.is_lost => self.is_found = true,
            EndpointAnswer::Taken => self.settle(),
            EndpointAnswer::Gone => {}
            EndpointAnswer::Unknown => {
                let (id, rev, seq) = (delivery.id.clone(), delivery.rev.clone(), delivery.seq.clone());
                let deletion = Delivery { id, rev, seq, state: DeliveryState::Gone, attachments: Vec::new() };
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

    pub(super) fn note_refused(&mut self, refused: &DeliveryError) {
        if matches!(refused, DeliveryError::Failed { failure: Failure::Http(404), .. }) && !self.deletions.is_empty() {
            (self.is_lost, self.is_found) = (true, false);
        }
    }

    /// Returns whether the deletions must be repeated.
    pub(super) fn is_to_be_settled(&self) -> bool {
        self.is_lost && self.is_found
    }

    /// Returns the remembered deletions, oldest first.
    pub(super) fn deletions(&self) -> impl Iterator<Item = &Delivery> {
        self.deletions.iter()
    }

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
            let deletion = Delivery {
                id,
                rev: "1-x".into(),
                seq: at.to_string(),
                state: DeliveryState::Gone,
                attachments: Vec::new(),
            };
            doubts.note(&deletion, EndpointAnswer::Unknown);
            assert!(doubts.bytes <= BYTES_MAX);
        }
        assert_eq!(doubts.bytes, doubts.deletions().map(Delivery::bytes).sum::<usize>());
        assert!(doubts.deletions().count() > 100 && doubts.deletions().last().is_some_and(|it| it.seq == "4999"));
        // Only the newest deletion of a document is remembered.
        let (count, bytes) = (doubts.deletions().count(), doubts.bytes);
        for seq in ["5000", "5001"] {
            let newest = doubts.deletions().last().unwrap().clone();
            doubts.note(&Delivery { seq: seq.into(), ..newest }, EndpointAnswer::Unknown);
        }
        assert_eq!((doubts.deletions().count(), doubts.bytes), (count, bytes));
        assert!(doubts.deletions().last().is_some_and(|it| it.seq == "5001"));
        doubts.note_refused(&DeliveryError::failed(Failure::Http(503), ""));
        assert!(!doubts.is_lost);
        doubts.settle();
        // Without deletions in doubt a 404 has no effect.
        doubts.note_refused(&DeliveryError::failed(Failure::Http(404), ""));
        assert!(!doubts.is_lost && doubts.bytes == 0);
    }
}
