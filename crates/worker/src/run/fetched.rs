//! Caches the attachments of a part. If the part is refused and made again in halves, they are not fetched again.
//!
//! The cache takes memory for products if it is available at once, and is cleared before the run waits for memory.

use std::collections::HashMap;

use bytes::Bytes;

use crate::memory::{Charge, Memory};

/// The most bytes in the cache, as many as a part has.
const BYTES_MAX: usize = super::delivering::PART_BYTES;

/// The smallest accounted size of an attachment, in bytes.
const ONE_BYTES: usize = 1 << 10;

#[derive(Debug)]
struct CachedAttachment {
    /// The document's revision, which may differ when the same change is read again.
    rev: String,
    name: String,
    body: Bytes,
    _charge: Charge,
}

#[derive(Debug, Default)]
pub(super) struct AttachmentCache {
    /// Attachments by the position of their change.
    kept: HashMap<String, Vec<CachedAttachment>>,
    bytes: usize,
}

fn bytes_of(body: &Bytes) -> usize {
    body.len().max(ONE_BYTES)
}

impl AttachmentCache {
    /// Returns a cached attachment of this revision.
    pub(super) fn get(&self, seq: &str, rev: &str, name: &str) -> Option<Bytes> {
        self.kept.get(seq)?.iter().find(|kept| kept.rev == rev && kept.name == name).map(|kept| kept.body.clone())
    }

    /// Caches an attachment if there is memory.
    pub(super) fn keep(&mut self, seq: &str, rev: &str, name: &str, body: &Bytes, memory: &Memory) {
        let bytes = bytes_of(body);
        if self.bytes.saturating_add(bytes) > BYTES_MAX {
            return;
        }
        if let Some(_charge) = memory.try_products(bytes) {
            self.bytes += bytes;
            let kept = CachedAttachment { rev: rev.to_owned(), name: name.to_owned(), body: body.clone(), _charge };
            self.kept.entry(seq.to_owned()).or_default().push(kept);
        }
    }

    /// Removes the attachments of a delivered change.
    pub(super) fn forget(&mut self, seq: &str) {
        let gone = self.kept.remove(seq).unwrap_or_default();
        self.bytes -= gone.iter().map(|kept| bytes_of(&kept.body)).sum::<usize>();
    }

    pub(super) fn clear(&mut self) {
        *self = AttachmentCache::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let (memory, mut fetched) = (Memory::new(64 << 20), AttachmentCache::default());
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
        // A document that is read again may have another revision.
        assert!(fetched.get("3", "2-r", "a").is_none());
        fetched.clear();
        // Nothing is cached if memory is not available at once.
        let (_all, mut fetched) = (memory.try_products(32 << 20), fetched);
        fetched.keep("1", "1-r", "a", &Bytes::new(), &memory);
        assert!(fetched.get("1", "1-r", "a").is_none() && fetched.bytes == 0);
    }
}
