//! The list of the C API's functions.

/// Passes all functions to a macro, which generates code for each.
macro_rules! each_function {
    ($make:ident) => {
        $make! {
            fn fdb_select_api_version_impl(runtime_version: c_int, header_version: c_int) -> fdb_error_t;
            fn fdb_get_max_api_version() -> c_int;
            fn fdb_get_client_version() -> *const c_char;
            fn fdb_get_error(code: fdb_error_t) -> *const c_char;
            fn fdb_error_predicate(predicate: c_int, code: fdb_error_t) -> fdb_bool_t;
            fn fdb_network_set_option(option: c_uint, value: *const u8, value_length: c_int) -> fdb_error_t;
            fn fdb_setup_network() -> fdb_error_t;
            fn fdb_run_network() -> fdb_error_t;
            fn fdb_stop_network() -> fdb_error_t;
            fn fdb_create_database(path: *const c_char, out: *mut *mut FDBDatabase) -> fdb_error_t;
            fn fdb_database_destroy(database: *mut FDBDatabase);
            fn fdb_database_set_option(
                database: *mut FDBDatabase, option: c_uint, value: *const u8, value_length: c_int
            ) -> fdb_error_t;
            fn fdb_database_create_transaction(database: *mut FDBDatabase, out: *mut *mut FDBTransaction) -> fdb_error_t;
            fn fdb_database_open_tenant(
                database: *mut FDBDatabase, name: *const u8, name_length: c_int, out: *mut *mut FDBTenant
            ) -> fdb_error_t;
            fn fdb_database_get_main_thread_busyness(database: *mut FDBDatabase) -> f64;
            fn fdb_database_get_client_status(database: *mut FDBDatabase) -> *mut FDBFuture;
            fn fdb_tenant_create_transaction(tenant: *mut FDBTenant, out: *mut *mut FDBTransaction) -> fdb_error_t;
            fn fdb_tenant_destroy(tenant: *mut FDBTenant);
            fn fdb_transaction_destroy(trx: *mut FDBTransaction);
            fn fdb_transaction_cancel(trx: *mut FDBTransaction);
            fn fdb_transaction_reset(trx: *mut FDBTransaction);
            fn fdb_transaction_set_option(
                trx: *mut FDBTransaction, option: c_uint, value: *const u8, value_length: c_int
            ) -> fdb_error_t;
            fn fdb_transaction_set_read_version(trx: *mut FDBTransaction, version: i64);
            fn fdb_transaction_get_read_version(trx: *mut FDBTransaction) -> *mut FDBFuture;
            fn fdb_transaction_get(
                trx: *mut FDBTransaction, key: *const u8, key_length: c_int, snapshot: fdb_bool_t
            ) -> *mut FDBFuture;
            fn fdb_transaction_get_key(
                trx: *mut FDBTransaction, key: *const u8, key_length: c_int, or_equal: fdb_bool_t, offset: c_int,
                snapshot: fdb_bool_t
            ) -> *mut FDBFuture;
            fn fdb_transaction_get_range(
                trx: *mut FDBTransaction, begin: *const u8, begin_length: c_int, begin_or_equal: fdb_bool_t,
                begin_offset: c_int, end: *const u8, end_length: c_int, end_or_equal: fdb_bool_t, end_offset: c_int,
                limit: c_int, target_bytes: c_int, mode: c_int, iteration: c_int, snapshot: fdb_bool_t, reverse: fdb_bool_t
            ) -> *mut FDBFuture;
            fn fdb_transaction_get_mapped_range(
                trx: *mut FDBTransaction, begin: *const u8, begin_length: c_int, begin_or_equal: fdb_bool_t,
                begin_offset: c_int, end: *const u8, end_length: c_int, end_or_equal: fdb_bool_t, end_offset: c_int,
                mapper: *const u8, mapper_length: c_int, limit: c_int, target_bytes: c_int, mode: c_int, iteration: c_int,
                snapshot: fdb_bool_t, reverse: fdb_bool_t
            ) -> *mut FDBFuture;
            fn fdb_transaction_get_addresses_for_key(
                trx: *mut FDBTransaction, key: *const u8, key_length: c_int
            ) -> *mut FDBFuture;
            fn fdb_transaction_get_approximate_size(trx: *mut FDBTransaction) -> *mut FDBFuture;
            fn fdb_transaction_get_estimated_range_size_bytes(
                trx: *mut FDBTransaction, begin: *const u8, begin_length: c_int, end: *const u8, end_length: c_int
            ) -> *mut FDBFuture;
            fn fdb_transaction_get_range_split_points(
                trx: *mut FDBTransaction, begin: *const u8, begin_length: c_int, end: *const u8, end_length: c_int,
                chunk_size: i64
            ) -> *mut FDBFuture;
            fn fdb_transaction_set(
                trx: *mut FDBTransaction, key: *const u8, key_length: c_int, value: *const u8, value_length: c_int
            );
            fn fdb_transaction_atomic_op(
                trx: *mut FDBTransaction, key: *const u8, key_length: c_int, operand: *const u8, operand_length: c_int,
                operation: c_uint
            );
            fn fdb_transaction_clear(trx: *mut FDBTransaction, key: *const u8, key_length: c_int);
            fn fdb_transaction_clear_range(
                trx: *mut FDBTransaction, begin: *const u8, begin_length: c_int, end: *const u8, end_length: c_int
            );
            fn fdb_transaction_add_conflict_range(
                trx: *mut FDBTransaction, begin: *const u8, begin_length: c_int, end: *const u8, end_length: c_int,
                kind: c_uint
            ) -> fdb_error_t;
            fn fdb_transaction_watch(trx: *mut FDBTransaction, key: *const u8, key_length: c_int) -> *mut FDBFuture;
            fn fdb_transaction_commit(trx: *mut FDBTransaction) -> *mut FDBFuture;
            fn fdb_transaction_get_committed_version(trx: *mut FDBTransaction, out: *mut i64) -> fdb_error_t;
            fn fdb_transaction_get_versionstamp(trx: *mut FDBTransaction) -> *mut FDBFuture;
            fn fdb_transaction_on_error(trx: *mut FDBTransaction, code: fdb_error_t) -> *mut FDBFuture;
            fn fdb_future_cancel(future: *mut FDBFuture);
            fn fdb_future_release_memory(future: *mut FDBFuture);
            fn fdb_future_destroy(future: *mut FDBFuture);
            fn fdb_future_block_until_ready(future: *mut FDBFuture) -> fdb_error_t;
            fn fdb_future_is_ready(future: *mut FDBFuture) -> fdb_bool_t;
            fn fdb_future_set_callback(
                future: *mut FDBFuture, callback: FDBCallback, parameter: *mut c_void
            ) -> fdb_error_t;
            fn fdb_future_get_error(future: *mut FDBFuture) -> fdb_error_t;
            fn fdb_future_get_int64(future: *mut FDBFuture, out: *mut i64) -> fdb_error_t;
            fn fdb_future_get_double(future: *mut FDBFuture, out: *mut f64) -> fdb_error_t;
            fn fdb_future_get_key(future: *mut FDBFuture, out: *mut *const u8, out_length: *mut c_int) -> fdb_error_t;
            fn fdb_future_get_value(
                future: *mut FDBFuture, out_present: *mut fdb_bool_t, out: *mut *const u8, out_length: *mut c_int
            ) -> fdb_error_t;
            fn fdb_future_get_string_array(
                future: *mut FDBFuture, out: *mut *mut *const c_char, out_count: *mut c_int
            ) -> fdb_error_t;
            fn fdb_future_get_key_array(
                future: *mut FDBFuture, out: *mut *const FDBKey, out_count: *mut c_int
            ) -> fdb_error_t;
            fn fdb_future_get_keyvalue_array(
                future: *mut FDBFuture, out: *mut *const FDBKeyValue, out_count: *mut c_int, out_more: *mut fdb_bool_t
            ) -> fdb_error_t;
            fn fdb_future_get_mappedkeyvalue_array(
                future: *mut FDBFuture, out: *mut *const FDBMappedKeyValue, out_count: *mut c_int,
                out_more: *mut fdb_bool_t
            ) -> fdb_error_t;
        }
    };
}

pub(crate) use each_function;
