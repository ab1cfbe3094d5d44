//! The call for mapped ranges.

use std::ffi::c_int;

use fdb_embedded::{CallKind, KeySelector, RangeOptions};

use crate::future::FDBFuture;
use crate::outcome::Outcome;
use crate::transaction::FDBTransaction;
use crate::types::{bytes, fdb_bool_t};

/// Reads the pairs of an index between two selectors, and the records that the mapper derives from each.
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
    tr.answer(CallKind::Mapped(0), |tr| tr.get_mapped_range(begin, end, mapper, &options), Outcome::mapped)
}
