//! The read calls of a transaction. The engine answers all of them before the call returns.

use std::ffi::c_int;

use fdb_embedded::{CallKind, KeySelector, METADATA_VERSION_KEY, RangeOptions, Transaction};

use crate::future::FDBFuture;
use crate::outcome::Outcome;
use crate::transaction::FDBTransaction;
use crate::types::{bytes, fdb_bool_t};

/// Returns the read version.
///
/// # Safety
/// `tr` is a live transaction of this library, and each pointer to bytes is readable for the length beside it; the
/// same holds for every function of this module.
pub unsafe extern "C" fn fdb_transaction_get_read_version(tr: *mut FDBTransaction) -> *mut FDBFuture {
    // SAFETY: by contract `tr` is alive.
    unsafe { &*tr }.answer_regardless(CallKind::ReadVersion, Transaction::get_read_version, Outcome::Int64)
}

/// Returns the value of a key.
///
/// # Safety
/// As [`fdb_transaction_get_read_version`].
pub unsafe extern "C" fn fdb_transaction_get(
    tr: *mut FDBTransaction,
    key_name: *const u8,
    key_name_length: c_int,
    snapshot: fdb_bool_t,
) -> *mut FDBFuture {
    // SAFETY: by contract `tr` is alive and the bytes have their length.
    let (tr, key) = unsafe { (&*tr, bytes(key_name, key_name_length)) };
    let kind = if key == METADATA_VERSION_KEY { CallKind::ReadVersion } else { CallKind::Key };
    tr.answer(kind, |tr| tr.get(key, snapshot != 0), Outcome::Value)
}

/// Returns the key of a selector.
///
/// # Safety
/// As [`fdb_transaction_get_read_version`].
pub unsafe extern "C" fn fdb_transaction_get_key(
    tr: *mut FDBTransaction,
    key_name: *const u8,
    key_name_length: c_int,
    or_equal: fdb_bool_t,
    offset: c_int,
    snapshot: fdb_bool_t,
) -> *mut FDBFuture {
    // SAFETY: by contract `tr` is alive and the bytes have their length.
    let (tr, key) = unsafe { (&*tr, bytes(key_name, key_name_length)) };
    let selector = KeySelector { key, or_equal: or_equal != 0, offset };
    tr.answer(CallKind::Range, |tr| tr.get_key(selector, snapshot != 0), Outcome::Key)
}

/// Returns the pairs between two selectors.
///
/// # Safety
/// As [`fdb_transaction_get_read_version`].
#[allow(clippy::too_many_arguments, reason = "the C API's")]
pub unsafe extern "C" fn fdb_transaction_get_range(
    tr: *mut FDBTransaction,
    begin_key_name: *const u8,
    begin_key_name_length: c_int,
    begin_or_equal: fdb_bool_t,
    begin_offset: c_int,
    end_key_name: *const u8,
    end_key_name_length: c_int,
    end_or_equal: fdb_bool_t,
    end_offset: c_int,
    limit: c_int,
    target_bytes: c_int,
    mode: c_int,
    iteration: c_int,
    snapshot: fdb_bool_t,
    reverse: fdb_bool_t,
) -> *mut FDBFuture {
    // SAFETY: by contract `tr` is alive and the bytes have their lengths.
    let (tr, begin, end) =
        unsafe { (&*tr, bytes(begin_key_name, begin_key_name_length), bytes(end_key_name, end_key_name_length)) };
    let begin = KeySelector { key: begin, or_equal: begin_or_equal != 0, offset: begin_offset };
    let end = KeySelector { key: end, or_equal: end_or_equal != 0, offset: end_offset };
    let options = RangeOptions { limit, target_bytes, mode, iteration, snapshot: snapshot != 0, reverse: reverse != 0 };
    tr.answer(CallKind::Range, |tr| tr.get_range(begin, end, &options), Outcome::range)
}

/// Returns the addresses of the servers that hold a key.
///
/// # Safety
/// As [`fdb_transaction_get_read_version`].
pub unsafe extern "C" fn fdb_transaction_get_addresses_for_key(
    tr: *mut FDBTransaction,
    key_name: *const u8,
    key_name_length: c_int,
) -> *mut FDBFuture {
    // SAFETY: by contract `tr` is alive and the bytes have their length.
    let (tr, key) = unsafe { (&*tr, bytes(key_name, key_name_length)) };
    tr.answer(CallKind::Estimate, |tr| tr.get_addresses_for_key(key), Outcome::strings)
}

/// Returns the size of the transaction in bytes.
///
/// # Safety
/// As [`fdb_transaction_get_read_version`].
pub unsafe extern "C" fn fdb_transaction_get_approximate_size(tr: *mut FDBTransaction) -> *mut FDBFuture {
    // SAFETY: by contract `tr` is alive.
    unsafe { &*tr }.answer_regardless(CallKind::Local, Transaction::get_approximate_size, Outcome::Int64)
}

/// Returns the bytes of the keys and values of a range.
///
/// # Safety
/// As [`fdb_transaction_get_read_version`].
pub unsafe extern "C" fn fdb_transaction_get_estimated_range_size_bytes(
    tr: *mut FDBTransaction,
    begin_key_name: *const u8,
    begin_key_name_length: c_int,
    end_key_name: *const u8,
    end_key_name_length: c_int,
) -> *mut FDBFuture {
    // SAFETY: by contract `tr` is alive and the bytes have their lengths.
    let (tr, begin, end) =
        unsafe { (&*tr, bytes(begin_key_name, begin_key_name_length), bytes(end_key_name, end_key_name_length)) };
    tr.answer(CallKind::Estimate, |tr| tr.get_estimated_range_size_bytes(begin, end), Outcome::Int64)
}

/// Returns keys that split a range into pieces of about `chunk_size` bytes.
///
/// # Safety
/// As [`fdb_transaction_get_read_version`].
pub unsafe extern "C" fn fdb_transaction_get_range_split_points(
    tr: *mut FDBTransaction,
    begin_key_name: *const u8,
    begin_key_name_length: c_int,
    end_key_name: *const u8,
    end_key_name_length: c_int,
    chunk_size: i64,
) -> *mut FDBFuture {
    // SAFETY: by contract `tr` is alive and the bytes have their lengths.
    let (tr, begin, end) =
        unsafe { (&*tr, bytes(begin_key_name, begin_key_name_length), bytes(end_key_name, end_key_name_length)) };
    tr.answer(CallKind::Estimate, |tr| tr.get_range_split_points(begin, end, chunk_size), Outcome::keys)
}

/// Returns for how many seconds the transaction was throttled because of its tags: always 0.
///
/// # Safety
/// As [`fdb_transaction_get_read_version`].
pub unsafe extern "C" fn fdb_transaction_get_tag_throttled_duration(tr: *mut FDBTransaction) -> *mut FDBFuture {
    // SAFETY: by contract `tr` is alive.
    unsafe { &*tr }.answer(CallKind::Local, |tr| tr.get_approximate_size().map(|_| 0.0), Outcome::Double)
}

/// Returns the transaction's cost for throttling, in bytes of whole pages, although nothing is throttled.
///
/// # Safety
/// As [`fdb_transaction_get_read_version`].
pub unsafe extern "C" fn fdb_transaction_get_total_cost(tr: *mut FDBTransaction) -> *mut FDBFuture {
    // SAFETY: by contract `tr` is alive.
    unsafe { &*tr }.answer(CallKind::Local, Transaction::get_total_cost, Outcome::Int64)
}
