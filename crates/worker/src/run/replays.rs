//! Entries of the queue, delivered once more.
//!
//! They are replayed where nothing else of the job is under way, so that nothing overtakes what is sent. What the source has
//! decides: another revision than the entry's comes, or came, through the feed, and the entry is marked and not sent.

use flatbed_flatten::json::{Limits, Value, parse};

use super::{End, Queue, Runner, now};
use crate::output::{Delivery, State, Target};
use crate::queue::{AtSource, Entry, Replay};
use crate::source::Source;

/// Entries that are asked for at once; between them the feed goes on.
const SLICE: usize = 100;

/// An entry that somebody wants to be delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The entry.
    pub entry: Entry,
    /// Whether it was asked for by its id.
    pub by_hand: bool,
}

/// What became of an entry that was to be replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replayed {
    /// It was delivered, and goes.
    Delivered,
    /// It has changed: another try failed, or it is overtaken.
    Changed,
    /// It is as it was: it is exhausted.
    Left,
}

fn rev_of(text: &str) -> String {
    let value = parse(text.as_bytes(), &Limits::default());
    let rev = value.as_ref().ok().and_then(|value| value.get("_rev")).and_then(Value::as_str);
    rev.unwrap_or_default().to_owned()
}

impl<S: Source, T: Target, Q: Queue> Runner<'_, S, T, Q> {
    /// Replays what is wanted now. Whether there may be more.
    pub(super) async fn replay(&mut self) -> Result<bool, End> {
        if self.system().processing.dry_run {
            return Ok(false);
        }
        let wanted = match self.queue.wanted(SLICE).await {
            Ok(wanted) => wanted,
            Err(error) => {
                let error = self.redactor.text(&error, 500);
                tracing::warn!(job = self.job.id, error, "entries of the queue cannot be read");
                return Ok(false);
            }
        };
        let is_more = !wanted.is_empty();
        for Wanted { mut entry, by_hand } in wanted {
            if *self.stop.borrow() {
                return Err(End::Stopped);
            }
            let what = self.replay_one(&mut entry, by_hand).await?;
            while let Err(error) = self.queue.settle(&entry, what).await {
                self.pause_for(super::Refused::failed(super::Failure::Storage, error)).await?;
            }
            self.failures = 0;
        }
        Ok(is_more)
    }

    async fn replay_one(&mut self, entry: &mut Entry, by_hand: bool) -> Result<Replayed, End> {
        let found = loop {
            match self.source.document(&entry.doc_id_original).await {
                Ok(found) => break found,
                Err(error) => self.pause_for_source(&error).await?,
            }
        };
        let rev = found.as_deref().map(rev_of);
        match entry.replay(rev.as_deref().map_or(AtSource::Gone, AtSource::Newest), by_hand) {
            Replay::Overtaken => {
                entry.overtake(now(), self.system().dlq.retention_seconds());
                Ok(Replayed::Changed)
            }
            Replay::Left => Ok(Replayed::Left),
            Replay::Send => {
                let is_deletion = entry.method == "DELETE" && !entry.edited;
                let text = match (is_deletion, entry.doc_data.is_empty()) {
                    (true, _) => None,
                    (false, false) => Some(entry.doc_data.clone()),
                    (false, true) => found,
                };
                self.send_again(entry, text).await
            }
        }
    }

    async fn send_again(&mut self, entry: &mut Entry, text: Option<String>) -> Result<Replayed, End> {
        let produced = match text {
            None => Ok(State::Gone),
            Some(text) => self.product(&text).await?.map(State::Is),
        };
        let refused = match produced {
            Err(unmappable) => {
                let error = unmappable.to_string();
                (super::Failure::Unmappable(Box::new(unmappable)), error)
            }
            Ok(state) => {
                let (id, rev, seq) = (entry.doc_id_original.clone(), entry.rev.clone(), entry.seq.clone());
                let delivery = Delivery { id, rev, seq, state };
                match self.deliver_until_taken(vec![delivery], None).await? {
                    Ok(()) => {
                        self.counts.replayed += 1;
                        self.progress.add_replayed();
                        return Ok(Replayed::Delivered);
                    }
                    Err(refused) => refused,
                }
            }
        };
        let replays_max = self.system().dlq.replays_max();
        entry.fail_again(&refused.0, &refused.1, now(), replays_max, &self.redactor);
        Ok(Replayed::Changed)
    }
}
