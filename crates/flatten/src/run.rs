//! Consecutive rows in one value.
//!
//! A run lies under its first row's path. Plain: `00`, then the first row's value with its length before it; then for
//! each further row how many bytes of its path it shares with the row before, the length of the rest, the rest, the
//! value's length, the value. Lengths are varints. Compressed: `01`, the length of what the plain run has behind its
//! first byte, then that as an lz4 block. A row alone is no run: its value stands as it is.

use crate::error::DecodeError;
use crate::flatten::Rows;
use crate::scalar::{RUN_LZ4, RUN_PLAIN, put_varint, take_varint};

/// Most bytes of a value that [`pack`] makes.
pub const VALUE_BYTES_MAX: usize = 90_000;

/// Shorter runs are not worth a try to compress them.
const COMPRESSED_FROM_BYTES: usize = 1_024;

/// Packs rows into pairs of path and value, in order. `run_bytes` 0: each row is a pair. Otherwise a run takes rows
/// until it has `run_bytes` bytes.
pub fn pack(rows: &Rows, run_bytes: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    if run_bytes == 0 {
        return rows.iter().map(|(path, value)| (path.to_vec(), value.to_vec())).collect();
    }
    let mut packer = Packer { pairs: Vec::new(), run: Vec::new(), rows: 0, key: Vec::new(), last: &[] };
    for (path, value) in rows.iter() {
        packer.row(path, value, run_bytes);
    }
    packer.close();
    packer.pairs
}

struct Packer<'r> {
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
    run: Vec<u8>,
    rows: usize,
    key: Vec<u8>,
    last: &'r [u8],
}

impl<'r> Packer<'r> {
    fn row(&mut self, path: &'r [u8], value: &'r [u8], run_bytes: usize) {
        if self.rows > 0 && self.run.len() + path.len() + value.len() + 12 > VALUE_BYTES_MAX {
            self.close();
        }
        if self.rows == 0 {
            self.key = path.to_vec();
            self.run.push(RUN_PLAIN);
        } else {
            let shared = self.last.iter().zip(path).take_while(|(a, b)| a == b).count();
            put_varint(&mut self.run, shared as u64);
            put_varint(&mut self.run, (path.len() - shared) as u64);
            self.run.extend_from_slice(&path[shared..]);
        }
        put_varint(&mut self.run, value.len() as u64);
        self.run.extend_from_slice(value);
        self.rows += 1;
        self.last = path;
        if self.run.len() >= run_bytes {
            self.close();
        }
    }

    fn close(&mut self) {
        if self.rows == 0 {
            return;
        }
        let run = std::mem::take(&mut self.run);
        let value = if self.rows == 1 {
            let (_, used) = take_varint(&run[1..]).unwrap_or((0, 0));
            run[1 + used..].to_vec()
        } else {
            compressed(&run).unwrap_or(run)
        };
        self.pairs.push((std::mem::take(&mut self.key), value));
        self.rows = 0;
    }
}

/// The run compressed, if that saves an eighth.
fn compressed(run: &[u8]) -> Option<Vec<u8>> {
    if run.len() < COMPRESSED_FROM_BYTES {
        return None;
    }
    let block = lz4_flex::block::compress(&run[1..]);
    if block.len() + run.len() / 8 > run.len() {
        return None;
    }
    let mut out = Vec::with_capacity(block.len() + 6);
    out.push(RUN_LZ4);
    put_varint(&mut out, run.len() as u64 - 1);
    out.extend_from_slice(&block);
    Some(out)
}

/// Calls `row` with path and scalar of each row of a pair, in order.
pub(crate) fn each_row(
    key: &[u8],
    value: &[u8],
    path: &mut Vec<u8>,
    mut row: impl FnMut(&[u8], &[u8]) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    let inflated;
    let mut rest = match value.split_first() {
        Some((&RUN_PLAIN, rest)) => rest,
        Some((&RUN_LZ4, rest)) => {
            inflated = inflate(rest)?;
            inflated.as_slice()
        }
        Some(_) => return row(key, value),
        None => return Err(DecodeError::BadRun),
    };
    path.clear();
    path.extend_from_slice(key);
    let first = take_slice(&mut rest)?;
    row(path, first)?;
    while !rest.is_empty() {
        let shared = take_len(&mut rest)?;
        if shared > path.len() {
            return Err(DecodeError::BadRun);
        }
        path.truncate(shared);
        path.extend_from_slice(take_slice(&mut rest)?);
        let scalar = take_slice(&mut rest)?;
        row(path, scalar)?;
    }
    Ok(())
}

fn inflate(rest: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let (len, used) = take_varint(rest).ok_or(DecodeError::BadRun)?;
    let len = usize::try_from(len).ok().filter(|len| *len <= VALUE_BYTES_MAX).ok_or(DecodeError::BadRun)?;
    let out = lz4_flex::block::decompress(&rest[used..], len).map_err(|_| DecodeError::BadRun)?;
    if out.len() == len { Ok(out) } else { Err(DecodeError::BadRun) }
}

fn take_len(rest: &mut &[u8]) -> Result<usize, DecodeError> {
    let (len, used) = take_varint(rest).ok_or(DecodeError::BadRun)?;
    *rest = &rest[used..];
    usize::try_from(len).map_err(|_| DecodeError::BadRun)
}

fn take_slice<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let len = take_len(rest)?;
    if len > rest.len() {
        return Err(DecodeError::BadRun);
    }
    let (slice, later) = rest.split_at(len);
    *rest = later;
    Ok(slice)
}
