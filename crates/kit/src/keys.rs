//! Ranges of keys, and the key of FoundationDB that stores read.

/// FoundationDB's own key that every creation, deletion and change of settings bumps.
pub const METADATA_VERSION: &[u8] = b"\xff/metadataVersion";

/// A half-open range of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key.
    pub begin: Vec<u8>,
    /// The first key behind the range.
    pub end: Vec<u8>,
}

impl KeyRange {
    /// Returns all keys that continue a prefix by an element of a tuple.
    pub fn under(prefix: Vec<u8>) -> KeyRange {
        let mut end = prefix.clone();
        end.push(0xff);
        KeyRange { begin: prefix, end }
    }

    /// Returns the range without the keys up to and including `key`.
    #[must_use]
    pub fn behind(self, key: &[u8]) -> KeyRange {
        let mut begin = key.to_vec();
        begin.push(0);
        KeyRange { begin: begin.max(self.begin), end: self.end }
    }

    /// Returns the range without `key` and the keys after it.
    #[must_use]
    pub fn before(self, key: &[u8]) -> KeyRange {
        KeyRange { end: self.end.min(key.to_vec()), begin: self.begin }
    }
}
