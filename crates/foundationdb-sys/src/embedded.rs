//! The engine's functions, with C's `int` where the binding has an enum's `unsigned`.

use std::ffi::{c_int, c_uint};

pub(crate) use fdb_capi::*;

pub(crate) unsafe fn fdb_network_set_option(option: c_uint, value: *const u8, length: c_int) -> fdb_error_t {
    // SAFETY: forwarded unchanged.
    unsafe { fdb_capi::fdb_network_set_option(option.cast_signed(), value, length) }
}

pub(crate) unsafe fn fdb_database_set_option(
    database: *mut FDBDatabase,
    option: c_uint,
    value: *const u8,
    length: c_int,
) -> fdb_error_t {
    // SAFETY: forwarded unchanged.
    unsafe { fdb_capi::fdb_database_set_option(database, option.cast_signed(), value, length) }
}

pub(crate) unsafe fn fdb_transaction_set_option(
    trx: *mut FDBTransaction,
    option: c_uint,
    value: *const u8,
    length: c_int,
) -> fdb_error_t {
    // SAFETY: forwarded unchanged.
    unsafe { fdb_capi::fdb_transaction_set_option(trx, option.cast_signed(), value, length) }
}

pub(crate) unsafe fn fdb_transaction_atomic_op(
    trx: *mut FDBTransaction,
    key: *const u8,
    key_length: c_int,
    operand: *const u8,
    operand_length: c_int,
    operation: c_uint,
) {
    let operation = operation.cast_signed();
    // SAFETY: forwarded unchanged.
    unsafe { fdb_capi::fdb_transaction_atomic_op(trx, key, key_length, operand, operand_length, operation) }
}

pub(crate) unsafe fn fdb_transaction_add_conflict_range(
    trx: *mut FDBTransaction,
    begin: *const u8,
    begin_length: c_int,
    end: *const u8,
    end_length: c_int,
    kind: c_uint,
) -> fdb_error_t {
    let kind = kind.cast_signed();
    // SAFETY: forwarded unchanged.
    unsafe { fdb_capi::fdb_transaction_add_conflict_range(trx, begin, begin_length, end, end_length, kind) }
}
