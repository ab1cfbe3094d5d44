//! Consecutive rows in one value.
//!
//! A run lies under its first row's path. Plain: `00`, then the first row's scalar; then for each further row how many
//! bytes of its path it shares with the row before, the length of the rest, the rest, the scalar. Lengths are varints
//! (LEB128). Compressed: `01`, the length of what the plain run has behind its first byte, then that as an lz4 block.
//! A row alone is no run unless it is compressed: its scalar stands as it is.

use crate::error::DecodeError;
use crate::rows::{Entry, Rows};
use crate::scalar::{Cursor, FIRST_TAG, RUN_LZ4, RUN_PLAIN, Scalar, put_varint};

/// Most bytes of a value that [`pack`] makes, as long as no path is longer than 20,000 (FoundationDB takes 100,000).
pub const VALUE_BYTES_MAX: usize = 90_000;

/// Shorter runs are not worth a try to compress them.
pub const COMPRESSED_FROM_BYTES: usize = 1_024;

/// A body whose keys would take more than this, each row with its own, is packed into runs all the same: a few bytes of
/// deep text can otherwise stand for kilobytes of path each.
const KEYS_BYTES_MAX: u64 = 32_000_000;

/// What such a body, and no other, has for `run_bytes` at least.
const RUN_BYTES_OF_LARGE: usize = 60_000;

/// What a pair takes beside its bytes, about.
const PAIR_OVERHEAD_BYTES: u64 = 64;

/// How rows are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackOptions {
    /// A run takes rows until it has this many bytes, before it is compressed. 0: each row is a pair (design/data-model.md).
    pub run_bytes: usize,
    /// Runs of this many bytes and more are compressed if that saves an eighth. `None`: never.
    pub compressed_from_bytes: Option<usize>,
}

/// Packs rows into pairs of path and value, in order; runs from [`COMPRESSED_FROM_BYTES`] are compressed.
///
/// Value bytes are at most [`VALUE_BYTES_MAX`]. Every value says itself what it is, so that pairs of different
/// `run_bytes` may lie in one database.
pub fn pack(rows: &Rows, run_bytes: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    pack_with(rows, &PackOptions { run_bytes, compressed_from_bytes: Some(COMPRESSED_FROM_BYTES) })
}

/// As [`pack`], with its options.
pub fn pack_with(rows: &Rows, options: &PackOptions) -> Vec<(Vec<u8>, Vec<u8>)> {
    let keys_bytes = rows.path_bytes() + rows.len() as u64 * PAIR_OVERHEAD_BYTES;
    let mut options = *options;
    if keys_bytes > KEYS_BYTES_MAX {
        options.run_bytes = options.run_bytes.max(RUN_BYTES_OF_LARGE);
    }
    let mut packer = Packer { options, pairs: Vec::new(), key: Vec::new(), run: Vec::new(), rows: 0 };
    if options.run_bytes == 0 {
        packer.pairs.reserve_exact(rows.len());
    }
    let mut path = Vec::with_capacity(64);
    for entry in rows.entries() {
        path.truncate(entry.shared);
        path.extend_from_slice(entry.rest);
        packer.row(&path, &entry);
    }
    packer.close();
    packer.pairs
}

struct Packer {
    options: PackOptions,
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
    key: Vec<u8>,
    run: Vec<u8>,
    rows: usize,
}

impl Packer {
    fn row(&mut self, path: &[u8], entry: &Entry<'_>) {
        if self.options.run_bytes == 0 {
            self.pairs.push((path.to_vec(), entry.scalar.to_vec()));
            return;
        }
        let grown = self.run.len() + entry.bytes.len();
        // A row that is large for a run stands alone, so that small ones beside it can be read without it.
        let bytes_max = VALUE_BYTES_MAX.min(2 * self.options.run_bytes);
        if self.rows > 0 && (self.run.len() >= self.options.run_bytes || grown > bytes_max) {
            self.close();
        }
        if self.rows == 0 {
            self.key = path.to_vec();
            self.run.reserve(self.options.run_bytes.min(1_024));
            self.run.push(RUN_PLAIN);
            self.run.extend_from_slice(entry.scalar);
        } else {
            self.run.extend_from_slice(entry.bytes);
        }
        self.rows += 1;
    }

    fn close(&mut self) {
        if self.rows == 0 {
            return;
        }
        let run = std::mem::take(&mut self.run);
        let value = match self.compressed(&run) {
            Some(compressed) => compressed,
            // Without the tag.
            None if self.rows == 1 => run.get(1..).unwrap_or_default().to_vec(),
            None => run,
        };
        self.pairs.push((std::mem::take(&mut self.key), value));
        self.rows = 0;
    }

    /// The run compressed, if that saves an eighth.
    fn compressed(&self, run: &[u8]) -> Option<Vec<u8>> {
        if self.options.compressed_from_bytes.is_none_or(|from| run.len() < from) {
            return None;
        }
        let (_, rows) = run.split_first()?;
        let block = lz4_flex::block::compress(rows);
        if block.len() + run.len() / 8 > run.len() {
            return None;
        }
        let mut out = Vec::with_capacity(block.len() + 6);
        out.push(RUN_LZ4);
        put_varint(&mut out, rows.len() as u64);
        out.extend_from_slice(&block);
        Some(out)
    }
}

/// Calls `row` for each row of a pair, in order: how many bytes of its path it says to share with the row before (not
/// checked against that), the rest of its path, its scalar.
pub(crate) fn each_row(
    key: &[u8],
    value: &[u8],
    mut row: impl FnMut(usize, &[u8], Scalar<'_>) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    let inflated;
    let mut cursor = match value.split_first() {
        Some((&RUN_PLAIN, rest)) => Cursor(rest),
        Some((&RUN_LZ4, rest)) => {
            inflated = inflate(Cursor(rest))?;
            Cursor(&inflated)
        }
        Some((&tag, _)) if tag >= FIRST_TAG => {
            let mut cursor = Cursor(value);
            let scalar = cursor.scalar()?;
            return if cursor.is_empty() { row(0, key, scalar) } else { Err(DecodeError::BadScalar) };
        }
        _ => return Err(DecodeError::BadRun),
    };
    row(0, key, cursor.scalar()?)?;
    while !cursor.is_empty() {
        let shared = cursor.len()?;
        let len = cursor.len()?;
        let rest = cursor.slice(len)?;
        row(shared, rest, cursor.scalar()?)?;
    }
    Ok(())
}

fn inflate(mut cursor: Cursor<'_>) -> Result<Vec<u8>, DecodeError> {
    let len = cursor.len()?;
    if len > VALUE_BYTES_MAX {
        return Err(DecodeError::BadRun);
    }
    let out = lz4_flex::block::decompress(cursor.0, len).map_err(|_| DecodeError::BadRun)?;
    if out.len() == len { Ok(out) } else { Err(DecodeError::BadRun) }
}
