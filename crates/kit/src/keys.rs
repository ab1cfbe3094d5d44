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
