//! The result of a mapped range in C's layout.

use fdb_embedded::{MappedRange, RangeResult};

use crate::types::{FDBGetRangeReqAndResult, FDBKey, FDBKeySelector, FDBKeyValue, FDBMappedKeyValue, c_len};

/// A mapped range with the arrays that C reads.
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

/// Returns the pairs of a range as pointers into its arena, which does not move.
fn pairs(range: &RangeResult) -> Vec<FDBKeyValue> {
    let pair = |(key, value): (&[u8], &[u8])| FDBKeyValue {
        key: key.as_ptr(),
        key_length: c_len(key.len()),
        value: value.as_ptr(),
        value_length: c_len(value.len()),
    };
    range.iter().map(pair).collect()
}

impl MappedAnswer {
    /// The number of index entries with records.
    pub(crate) fn records(&self) -> usize {
        self.range.records.len()
    }

    /// Bytes of the index and of the records.
    pub(crate) fn bytes(&self) -> usize {
        let records = self.range.records.iter().map(|records| records.pairs.arena.len()).sum::<usize>();
        self.range.index.arena.len() + records
    }

    pub(crate) fn of(range: MappedRange) -> MappedAnswer {
        let mut records: Vec<Vec<FDBKeyValue>> = range.records.iter().map(|records| pairs(&records.pairs)).collect();
        let array = range.index.iter().zip(&range.records).zip(&mut records);
        let array = array.map(|(((index_key, index_value), asked), found)| {
            // The two bytes are fields of C++: whether more records follow, and that the result is that of a range.
            // Single keys are also returned as ranges, because C has no other form for them.
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
        MappedAnswer { array, is_more: range.index.more, _records: records, range }
    }
}
