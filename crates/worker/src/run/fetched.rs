//! Attachments of a part of a batch that may be refused: it is made anew in halves then, and they are not fetched again.
//!
//! They have room of their own among what is made for targets, if there is any at once, and are let go before more of it is waited for.

use std::collections::HashMap;

use bytes::Bytes;

use crate::memory::{Charge, Memory};

/// What is kept at most, as much as a part has.
const BYTES_MAX: usize = super::delivering::PART_BYTES;

/// What an attachment takes at least.
const ONE_BYTES: usize = 1 << 10;

#[derive(Debug)]
struct Kept {
    /// Of their document, which may be read anew for the same change.
    rev: String,
    name: String,
    body: Bytes,
    _charge: Charge,
}

/// See above.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    /// By the place of their document's change.
    kept: HashMap<String, Vec<Kept>>,
    bytes: usize,
}

fn bytes_of(body: &Bytes) -> usize {
    body.len().max(ONE_BYTES)
}

impl Fetched {
    /// One that is kept, of this revision.
    pub(super) fn get(&self, seq: &str, rev: &str, name: &str) -> Option<Bytes> {
        self.kept.get(seq)?.iter().find(|kept| kept.rev == rev && kept.name == name).map(|kept| kept.body.clone())
    }

    /// Keeps one, where there is room.
    pub(super) fn keep(&mut self, seq: &str, rev: &str, name: &str, body: &Bytes, memory: &Memory) {
        let bytes = bytes_of(body);
        if self.bytes.saturating_add(bytes) > BYTES_MAX {
            return;
        }
        if let Some(_charge) = memory.try_products(bytes) {
            self.bytes += bytes;
            let kept = Kept { rev: rev.to_owned(), name: name.to_owned(), body: body.clone(), _charge };
            self.kept.entry(seq.to_owned()).or_default().push(kept);
        }
    }

    /// Lets go those of a change that is delivered.
    pub(super) fn forget(&mut self, seq: &str) {
        let gone = self.kept.remove(seq).unwrap_or_default();
        self.bytes -= gone.iter().map(|kept| bytes_of(&kept.body)).sum::<usize>();
    }

    /// Lets all go.
    pub(super) fn clear(&mut self) {
        *self = Fetched::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let (memory, mut fetched) = (Memory::new(64 << 20), Fetched::default());
        let body = Bytes::from(vec![0; 3 << 20]);
        for (at, is_kept) in [(1, true), (2, true), (3, false)] {
            fetched.keep(&at.to_string(), "1-r", "a", &body, &memory);
            assert_eq!(fetched.get(&at.to_string(), "1-r", "a").is_some(), is_kept);
        }
        for at in 0..10_000 {
            fetched.keep("4", "1-r", &at.to_string(), &Bytes::new(), &memory);
        }
        assert_eq!((memory.taken().1, fetched.kept["4"].len()), (8 << 20, 2 << 10));
        assert!(fetched.get("4", "1-r", "a").is_none());
        fetched.forget("1");
        fetched.forget("1");
        assert_eq!(memory.taken().1, 5 << 20);
        fetched.keep("3", "1-r", "a", &body, &memory);
        assert!(fetched.get("3", "1-r", "a").is_some());
        // A change whose document was read again may be of another revision by then.
        assert!(fetched.get("3", "2-r", "a").is_none());
        fetched.clear();
        // Who has no room at once keeps nothing.
        let (_all, mut fetched) = (memory.try_products(32 << 20), fetched);
        fetched.keep("1", "1-r", "a", &Bytes::new(), &memory);
        assert!(fetched.get("1", "1-r", "a").is_none() && fetched.bytes == 0);
    }
}
