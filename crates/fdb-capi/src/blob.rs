//! Blob granules and other result types that this library never produces: each call fails with 2000, as on a cluster
//! without blob granules.

use std::ffi::c_int;

use fdb_embedded::Error;

use crate::completion::error_of_foreign_kind;
use crate::database::FDBDatabase;
use crate::future::FDBFuture;
use crate::tenant::FDBTenant;
use crate::transaction::FDBTransaction;
use crate::types::{
    FDBBGEncryptionCtx, FDBBGFileDescription, FDBBGMutation, FDBBGTenantPrefix, FDBGranuleSummary, FDBKeyRange,
    FDBKeyValue, FDBReadBlobGranuleContext, fdb_bool_t, fdb_error_t,
};

/// `FDBResult` of the C API: an immediate result; here it is always an error.
#[derive(Debug)]
pub struct FDBResult {
    error: Error,
}

impl FDBResult {
    fn failed() -> *mut FDBResult {
        Box::into_raw(Box::new(FDBResult { error: Error::CLIENT_INVALID_OPERATION }))
    }
}

macro_rules! not_offered {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        $(
            /// Returns 2000: blob granules are not supported.
            ///
            /// # Safety
            /// As every function of the C API; the arguments are ignored.
            #[allow(clippy::too_many_arguments, reason = "the C API's")]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> *mut FDBFuture {
                FDBFuture::failed(Error::CLIENT_INVALID_OPERATION)
            }
        )*
    };
}

not_offered! {
    fn fdb_database_purge_blob_granules(
        _db: *mut FDBDatabase,
        _begin_key_name: *const u8,
        _begin_key_name_length: c_int,
        _end_key_name: *const u8,
        _end_key_name_length: c_int,
        _purge_version: i64,
        _force: fdb_bool_t,
    );
    fn fdb_database_wait_purge_granules_complete(
        _db: *mut FDBDatabase,
        _purge_key_name: *const u8,
        _purge_key_name_length: c_int,
    );
    fn fdb_database_blobbify_range(
        _db: *mut FDBDatabase,
        _begin_key_name: *const u8,
        _begin_key_name_length: c_int,
        _end_key_name: *const u8,
        _end_key_name_length: c_int,
    );
    fn fdb_database_blobbify_range_blocking(
        _db: *mut FDBDatabase,
        _begin_key_name: *const u8,
        _begin_key_name_length: c_int,
        _end_key_name: *const u8,
        _end_key_name_length: c_int,
    );
    fn fdb_database_unblobbify_range(
        _db: *mut FDBDatabase,
        _begin_key_name: *const u8,
        _begin_key_name_length: c_int,
        _end_key_name: *const u8,
        _end_key_name_length: c_int,
    );
    fn fdb_database_list_blobbified_ranges(
        _db: *mut FDBDatabase,
        _begin_key_name: *const u8,
        _begin_key_name_length: c_int,
        _end_key_name: *const u8,
        _end_key_name_length: c_int,
        _range_limit: c_int,
    );
    fn fdb_database_verify_blob_range(
        _db: *mut FDBDatabase,
        _begin_key_name: *const u8,
        _begin_key_name_length: c_int,
        _end_key_name: *const u8,
        _end_key_name_length: c_int,
        _version: i64,
    );
    fn fdb_database_flush_blob_range(
        _db: *mut FDBDatabase,
        _begin_key_name: *const u8,
        _begin_key_name_length: c_int,
        _end_key_name: *const u8,
        _end_key_name_length: c_int,
        _compact: fdb_bool_t,
        _version: i64,
    );
    fn fdb_tenant_purge_blob_granules(
        _db: *mut FDBTenant,
        _begin_key_name: *const u8,
        _begin_key_name_length: c_int,
        _end_key_name: *const u8,
        _end_key_name_length: c_int,
        _purge_version: i64,
        _force: fdb_bool_t,
    );
    fn fdb_tenant_wait_purge_granules_complete(
        _db: *mut FDBTenant,
        _purge_key_name: *const u8,
        _purge_key_name_length: c_int,
    );
    fn fdb_tenant_blobbify_range(
        _tenant: *mut FDBTenant,
        _begin_key_name: *const u8,
        _begin_key_name_length: c_int,
        _end_key_name: *const u8,
        _end_key_name_length: c_int,
    );
    fn fdb_tenant_blobbify_range_blocking(
        _tenant: *mut FDBTenant,
        _begin_key_name: *const u8,
        _begin_key_name_length: c_int,
        _end_key_name: *const u8,
        _end_key_name_length: c_int,
    );
    fn fdb_tenant_unblobbify_range(
        _tenant: *mut FDBTenant,
        _begin_key_name: *const u8,
        _begin_key_name_length: c_int,
        _end_key_name: *const u8,
        _end_key_name_length: c_int,
    );
    fn fdb_tenant_list_blobbified_ranges(
        _tenant: *mut FDBTenant,
        _begin_key_name: *const u8,
        _begin_key_name_length: c_int,
        _end_key_name: *const u8,
        _end_key_name_length: c_int,
        _range_limit: c_int,
    );
    fn fdb_tenant_verify_blob_range(
        _tenant: *mut FDBTenant,
        _begin_key_name: *const u8,
        _begin_key_name_length: c_int,
        _end_key_name: *const u8,
        _end_key_name_length: c_int,
        _version: i64,
    );
    fn fdb_tenant_flush_blob_range(
        _tenant: *mut FDBTenant,
        _begin_key_name: *const u8,
        _begin_key_name_length: c_int,
        _end_key_name: *const u8,
        _end_key_name_length: c_int,
        _compact: fdb_bool_t,
        _version: i64,
    );
    fn fdb_transaction_get_blob_granule_ranges(
        _tr: *mut FDBTransaction,
        _begin_key_name: *const u8,
        _begin_key_name_length: c_int,
        _end_key_name: *const u8,
        _end_key_name_length: c_int,
        _range_limit: c_int,
    );
    fn fdb_transaction_summarize_blob_granules(
        _tr: *mut FDBTransaction,
        _begin_key_name: *const u8,
        _begin_key_name_length: c_int,
        _end_key_name: *const u8,
        _end_key_name_length: c_int,
        _summary_version: i64,
        _range_limit: c_int,
    );
    fn fdb_transaction_read_blob_granules_description(
        _tr: *mut FDBTransaction,
        _begin_key_name: *const u8,
        _begin_key_name_length: c_int,
        _end_key_name: *const u8,
        _end_key_name_length: c_int,
        _begin_version: i64,
        _read_version: i64,
        _read_version_out: *mut i64,
    );
}

macro_rules! never_answered {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        $(
            $(#[$doc])*
            /// No future has this type of result: returns the future's own error, else 2000.
            ///
            /// # Safety
            /// `f` is a live future of this library; the other arguments are ignored.
            pub unsafe extern "C" fn $name(f: *mut FDBFuture $(, $argument: $type)*) -> fdb_error_t {
                // SAFETY: by contract `f` is alive.
                error_of_foreign_kind(unsafe { &*f })
            }
        )*
    };
}

never_answered! {
    /// A truth value.
    fn fdb_future_get_bool(_out: *mut fdb_bool_t);
    /// Ranges of keys.
    fn fdb_future_get_keyrange_array(_out_ranges: *mut *const FDBKeyRange, _out_count: *mut c_int);
    /// Summaries of granules.
    fn fdb_future_get_granule_summary_array(_out_summaries: *mut *const FDBGranuleSummary, _out_count: *mut c_int);
    /// Descriptions of granule files.
    fn fdb_future_readbg_get_descriptions(_out: *mut *mut FDBBGFileDescription, _desc_count: *mut c_int);
}

/// Returns 2000: blob granules are not supported.
///
/// # Safety
/// As every function of the C API; the arguments are ignored.
#[allow(clippy::too_many_arguments, reason = "the C API's")]
pub unsafe extern "C" fn fdb_transaction_read_blob_granules(
    _tr: *mut FDBTransaction,
    _begin_key_name: *const u8,
    _begin_key_name_length: c_int,
    _end_key_name: *const u8,
    _end_key_name_length: c_int,
    _begin_version: i64,
    _read_version: i64,
    _granule_context: FDBReadBlobGranuleContext,
) -> *mut FDBResult {
    FDBResult::failed()
}

/// Returns 2000: blob granules are not supported.
///
/// # Safety
/// As every function of the C API; the arguments are ignored.
pub unsafe extern "C" fn fdb_readbg_parse_snapshot_file(
    _file_data: *const u8,
    _file_len: c_int,
    _tenant_prefix: *const FDBBGTenantPrefix,
    _encryption_ctx: *const FDBBGEncryptionCtx,
) -> *mut FDBResult {
    FDBResult::failed()
}

/// Returns 2000: blob granules are not supported.
///
/// # Safety
/// As every function of the C API; the arguments are ignored.
pub unsafe extern "C" fn fdb_readbg_parse_delta_file(
    _file_data: *const u8,
    _file_len: c_int,
    _tenant_prefix: *const FDBBGTenantPrefix,
    _encryption_ctx: *const FDBBGEncryptionCtx,
) -> *mut FDBResult {
    FDBResult::failed()
}

/// Destroys a result. Null is allowed.
///
/// # Safety
/// `r` is a result of this library, and is not used afterwards.
pub unsafe extern "C" fn fdb_result_destroy(r: *mut FDBResult) {
    if !r.is_null() {
        // SAFETY: by contract `r` is the box that was returned, and is destroyed once.
        drop(unsafe { Box::from_raw(r) });
    }
}

/// Returns the result's error.
///
/// # Safety
/// `r` is a live result of this library; the other arguments are ignored.
pub unsafe extern "C" fn fdb_result_get_keyvalue_array(
    r: *mut FDBResult,
    _out_kv: *mut *const FDBKeyValue,
    _out_count: *mut c_int,
    _out_more: *mut fdb_bool_t,
) -> fdb_error_t {
    // SAFETY: by contract `r` is alive.
    unsafe { &*r }.error.0
}

/// Returns the result's error.
///
/// # Safety
/// `r` is a live result of this library; the other arguments are ignored.
pub unsafe extern "C" fn fdb_result_get_bg_mutations_array(
    r: *mut FDBResult,
    _out_mutations: *mut *const FDBBGMutation,
    _out_count: *mut c_int,
) -> fdb_error_t {
    // SAFETY: by contract `r` is alive.
    unsafe { &*r }.error.0
}
