//! A mapped range as a C program reads it.

use crate::common::{Future, Tr, len, open};
use fdb_capi::*;

/// The key, the value, the first key of the lookup, its end, and the records of a pair.
type Row = (Vec<u8>, Vec<u8>, Vec<u8>, Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>);

fn mapped(tr: &Tr, mapper: &[u8]) -> Future {
    let (begin, end) = (b"\x01index", b"\x01indey");
    // SAFETY: the transaction is alive and slices have their lengths.
    Future(unsafe {
        fdb_transaction_get_mapped_range(
            tr.0,
            begin.as_ptr(),
            len(begin),
            0,
            1,
            end.as_ptr(),
            len(end),
            0,
            1,
            mapper.as_ptr(),
            len(mapper),
            2,
            0,
            -2,
            0,
            0,
            0,
        )
    })
}

fn rows(future: &Future) -> Result<(Vec<Row>, bool), fdb_error_t> {
    fn owned(key: FDBKey) -> Vec<u8> {
        assert!(!key.key.is_null());
        // SAFETY: the memory from a getter lives as long as its future.
        unsafe { std::slice::from_raw_parts(key.key, key.key_length as usize) }.to_vec()
    }
    let (mut array, mut count, mut more) = (std::ptr::null(), -1, -1);
    // SAFETY: the future is alive, and so is the memory from its getters.
    unsafe {
        match fdb_future_get_mappedkeyvalue_array(future.0, &mut array, &mut count, &mut more) {
            0 => {}
            error => return Err(error),
        }
        let rows = std::slice::from_raw_parts(array, count as usize).iter().map(|row| {
            let range = row.getRange;
            assert_eq!((range.begin.orEqual, range.begin.offset, range.end.orEqual, range.end.offset), (0, 1, 0, 1));
            assert!(!range.data.is_null());
            let records = std::slice::from_raw_parts(range.data, range.m_size as usize).iter().map(|pair| {
                let value = FDBKey { key: pair.value, key_length: pair.value_length };
                (owned(FDBKey { key: pair.key, key_length: pair.key_length }), owned(value))
            });
            (owned(row.key), owned(row.value), owned(range.begin.key), owned(range.end.key), records.collect())
        });
        Ok((rows.collect(), more != 0))
    }
}

#[test]
fn a_mapped_range_outlives_transaction_and_database() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    for id in [b"a", b"b", b"c"] {
        database.write(&[b"\x01index\0\x01", &id[..], b"\0"].concat(), b"");
        database.write(&[b"\x01data\0\x01", &id[..], b"\0"].concat(), &[b"value ", &id[..]].concat());
    }
    let tr = database.transaction();
    let (single, prefix) = (mapped(&tr, b"\x01data\0\x01{K[1]}\0"), mapped(&tr, b"\x01data\0\x01{K[1]}\0\x01{...}\0"));
    let (bad, foreign) = (mapped(&tr, b"\xff"), tr.range(b"", b"\xff", 0));
    drop((tr, database));
    let key = |id: &[u8], end: &[u8]| [b"\x01data\0\x01", id, end].concat();
    let row = |id: &[u8], end: &[u8]| {
        let records = vec![(key(id, b"\0"), [b"value ", id].concat())];
        ([b"\x01index\0\x01", id, b"\0"].concat(), vec![], key(id, b"\0"), key(id, end), records)
    };
    assert_eq!(rows(&single), Ok((vec![row(b"a", b"\0\0"), row(b"b", b"\0\0")], true)));
    assert_eq!(rows(&prefix), Ok((vec![row(b"a", b"\x01"), row(b"b", b"\x01")], true)));
    assert_eq!(rows(&bad), Err(2043));
    assert_eq!(rows(&foreign), Err(2000), "an answer of another kind");
}
