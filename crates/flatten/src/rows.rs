//! The rows of a body, in one buffer.

use crate::scalar::{Cursor, Scalar, put_varint};

/// The rows of a body in path order.
///
/// They are stored in the format of a run (see [`crate::run`]), each path as its difference from the previous one:
/// memory is proportional to the body's text at any depth.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    stream: Vec<u8>,
    count: usize,
    path_bytes: u64,
}

impl Rows {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Rows { stream: Vec::with_capacity(bytes), count: 0, path_bytes: 0 }
    }

    /// The number of rows; never 0 after flattening.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The total size of all paths written in full, in bytes.
    pub fn path_bytes(&self) -> u64 {
        self.path_bytes
    }

    /// Appends a row. `path` must be greater than the last one, and share its first `shared` bytes with it.
    pub(crate) fn push(&mut self, path: &[u8], shared: usize, scalar: Scalar<'_>) {
        let (_, rest) = path.split_at_checked(shared).unwrap_or((path, &[]));
        put_varint(&mut self.stream, shared as u64);
        put_varint(&mut self.stream, rest.len() as u64);
        self.stream.extend_from_slice(rest);
        scalar.put(&mut self.stream);
        self.count += 1;
        self.path_bytes += path.len() as u64;
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = RowEntry<'_>> {
        let mut cursor = Cursor(&self.stream);
        // `push` wrote complete entries, so this ends only at the end.
        std::iter::from_fn(move || RowEntry::take(&mut cursor).ok())
    }

    /// Calls `row` with path and scalar of each row, in order.
    pub fn for_each(&self, mut row: impl FnMut(&[u8], &[u8])) {
        let mut path = Vec::new();
        for entry in self.entries() {
            path.truncate(entry.shared);
            path.extend_from_slice(entry.rest);
            row(&path, entry.scalar);
        }
    }
}

pub(crate) struct RowEntry<'r> {
    /// The number of bytes that its path shares with the previous one.
    pub shared: usize,
    /// The rest of its path.
    pub rest: &'r [u8],
    pub scalar: &'r [u8],
    /// The whole entry.
    pub bytes: &'r [u8],
}

impl<'r> RowEntry<'r> {
    fn take(cursor: &mut Cursor<'r>) -> Result<Self, crate::DecodeError> {
        let before = cursor.0;
        let shared = cursor.len()?;
        let len = cursor.len()?;
        let rest = cursor.slice(len)?;
        let from_scalar = cursor.0;
        cursor.scalar()?;
        let passed = |from: &'r [u8]| from.get(..from.len() - cursor.0.len()).unwrap_or_default();
        Ok(RowEntry { shared, rest, scalar: passed(from_scalar), bytes: passed(before) })
    }
}
