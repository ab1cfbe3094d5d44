//! Runs: consecutive rows in one value.
//!
//! A run is stored under its first row's path. A plain run is `00` and the first row's scalar; then for each further
//! row the number of bytes that its path shares with the previous row, the length of the rest, the rest, and the
//! scalar. Lengths are varints (LEB128). A compressed run is `01`, the length of the plain run after its first byte,
//! then that part as an lz4 block. A single row is a run only if it is compressed; otherwise its scalar is the value.

use crate::error::DecodeError;
use crate::rows::{RowEntry, Rows};
use crate::scalar::{Cursor, FIRST_TAG, RUN_LZ4, RUN_PLAIN, Scalar, put_varint};

/// The most bytes of a value from [`pack`], if no path is longer than 20,000 bytes (FoundationDB's limit is 100,000).
pub const VALUE_BYTES_MAX: usize = 90_000;

/// Shorter runs are not compressed.
pub const COMPRESSED_FROM_BYTES: usize = 1_024;

/// The most bytes of keys with one key per row. A body above it is packed into runs in any case, because a few bytes
/// of deep text can need kilobytes of path for each row.
const KEYS_BYTES_MAX: u64 = 32_000_000;

/// The least `run_bytes` of such a body.
const RUN_BYTES_OF_LARGE: usize = 60_000;

/// The approximate overhead of a pair in bytes.
const PAIR_OVERHEAD_BYTES: u64 = 64;

/// Options of packing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackOptions {
    /// The size at which a run ends, in bytes before compression. 0: each row is a pair (design/data-model.md).
    pub run_bytes: usize,
    /// The size in bytes from which runs are compressed if that saves an eighth. `None`: never.
    pub compressed_from_bytes: Option<usize>,
}

/// Packs rows into pairs of path and value, in order; runs from [`COMPRESSED_FROM_BYTES`] are compressed.
///
/// A value has at most [`VALUE_BYTES_MAX`] bytes. Every value describes itself, so pairs of different `run_bytes` may
/// be in one database.
pub fn pack(rows: &Rows, run_bytes: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    pack_with(rows, &PackOptions { run_bytes, compressed_from_bytes: Some(COMPRESSED_FROM_BYTES) })
}

/// As [`pack`], with explicit options.
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
    fn row(&mut self, path: &[u8], entry: &RowEntry<'_>) {
        if self.options.run_bytes == 0 {
            self.pairs.push((path.to_vec(), entry.scalar.to_vec()));
            return;
        }
        let grown = self.run.len() + entry.bytes.len();
        // A row that is large for a run is stored alone, so that its small neighbours can be read without it.
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

    /// Returns the run compressed, if that saves an eighth.
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

/// Calls `row` for each row of a pair, in order, with the number of bytes that its path claims to share with the
/// previous row (not checked), the rest of its path, and its scalar.
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
