//! Mapped ranges: the call, and its answer laid out as C reads it.

use std::ffi::c_int;

use fdb_embedded::{KeySelector, MappedRange, Question, RangeOptions, RangeResult};

use crate::future::FDBFuture;
use crate::outcome::Outcome;
use crate::transaction::FDBTransaction;
use crate::types::{
    FDBGetRangeReqAndResult, FDBKey, FDBKeySelector, FDBKeyValue, FDBMappedKeyValue, bytes, c_len, fdb_bool_t,
};

/// A mapped range with the arrays that C reads it through.
#[derive(Debug)]
pub(crate) struct MappedAnswer {
    pub(crate) array: Vec<FDBMappedKeyValue>,
    pub(crate) is_more: bool,
    _records: Vec<Vec<FDBKeyValue>>,
    range: MappedRange,
}

fn key(bytes: &[u8]) -> FDBKey {
    FDBKey { key: bytes.as_ptr(), key_length: c_len(bytes.len()) }
}

fn selector(bytes: &[u8]) -> FDBKeySelector {
    FDBKeySelector { key: key(bytes), orEqual: 0, offset: 1 }
}

/// The pairs of a range with pointers into its arena, which stays where it is.
pub(crate) fn pairs(range: &RangeResult) -> Vec<FDBKeyValue> {
    let pair = |(key, value): (&[u8], &[u8])| FDBKeyValue {
        key: key.as_ptr(),
        key_length: c_len(key.len()),
        value: value.as_ptr(),
        value_length: c_len(value.len()),
    };
    range.iter().map(pair).collect()
}

impl MappedAnswer {
    /// How many entries of the index led to records.
    pub(crate) fn records(&self) -> usize {
        self.range.records.len()
    }

    /// Bytes of the index and of the records.
    pub(crate) fn bytes(&self) -> usize {
        let records = self.range.records.iter().map(|records| records.pairs.arena.len()).sum::<usize>();
        self.range.index.arena.len() + records
    }

    pub(crate) fn outcome(range: MappedRange) -> Outcome {
        let mut records: Vec<Vec<FDBKeyValue>> = range.records.iter().map(|records| pairs(&records.pairs)).collect();
        let array = range.index.iter().zip(&range.records).zip(&mut records);
        let array = array.map(|(((index_key, index_value), asked), found)| {
            // The two bytes are what C++ has there: whether there are more records than were given, and that the answer
            // is that of a range. Single keys are told as ranges, too, as C has no shape for them.
            let mut buffer = [0; 32];
            buffer[0] = u8::from(asked.pairs.more);
            buffer[24] = 1;
            FDBMappedKeyValue {
                key: key(index_key),
                value: key(index_value),
                getRange: FDBGetRangeReqAndResult {
                    begin: selector(&asked.begin),
                    end: selector(&asked.end),
                    m_size: c_len(found.len()),
                    m_capacity: c_len(found.len()),
                    data: found.as_mut_ptr(),
                },
                buffer,
            }
        });
        let array = array.collect();
        Outcome::MappedKeyValues(MappedAnswer { array, is_more: range.index.more, _records: records, range })
    }
}

/// The pairs of an index between two selectors, and the records that the mapper makes of each.
///
/// # Safety
/// As [`crate::fdb_transaction_get_read_version`].
#[allow(clippy::too_many_arguments, reason = "the C API's")]
pub unsafe extern "C" fn fdb_transaction_get_mapped_range(
    tr: *mut FDBTransaction,
    begin_key_name: *const u8,
    begin_key_name_length: c_int,
    begin_or_equal: fdb_bool_t,
    begin_offset: c_int,
    end_key_name: *const u8,
    end_key_name_length: c_int,
    end_or_equal: fdb_bool_t,
    end_offset: c_int,
    mapper_name: *const u8,
    mapper_name_length: c_int,
    limit: c_int,
    target_bytes: c_int,
    mode: c_int,
    iteration: c_int,
    snapshot: fdb_bool_t,
    reverse: fdb_bool_t,
) -> *mut FDBFuture {
    // SAFETY: by contract `tr` is alive and the bytes have their lengths.
    let (tr, begin, end, mapper) = unsafe {
        let begin = bytes(begin_key_name, begin_key_name_length);
        (&*tr, begin, bytes(end_key_name, end_key_name_length), bytes(mapper_name, mapper_name_length))
    };
    let begin = KeySelector { key: begin, or_equal: begin_or_equal != 0, offset: begin_offset };
    let end = KeySelector { key: end, or_equal: end_or_equal != 0, offset: end_offset };
    let options = RangeOptions { limit, target_bytes, mode, iteration, snapshot: snapshot != 0, reverse: reverse != 0 };
    tr.answer(Question::Mapped(0), |tr| tr.get_mapped_range(begin, end, mapper, &options), MappedAnswer::outcome)
}
