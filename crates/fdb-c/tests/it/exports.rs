//! The library as a program loads it at run time: it exports every function of `fdb_c.h` of 7.3.

use std::ffi::{CString, c_int};

#[test]
fn every_function_of_the_header_is_exported_and_can_be_called() {
    const NAMES: &str = "
        fdb_add_network_thread_completion_hook fdb_create_database fdb_create_database_from_connection_string
        fdb_database_blobbify_range fdb_database_blobbify_range_blocking fdb_database_create_snapshot
        fdb_database_create_transaction fdb_database_destroy fdb_database_flush_blob_range
        fdb_database_force_recovery_with_data_loss fdb_database_get_client_status
        fdb_database_get_main_thread_busyness fdb_database_get_server_protocol
        fdb_database_list_blobbified_ranges fdb_database_open_tenant fdb_database_purge_blob_granules
        fdb_database_reboot_worker fdb_database_set_option fdb_database_unblobbify_range
        fdb_database_verify_blob_range fdb_database_wait_purge_granules_complete fdb_error_predicate
        fdb_future_block_until_ready fdb_future_cancel fdb_future_destroy fdb_future_get_bool
        fdb_future_get_double fdb_future_get_error fdb_future_get_granule_summary_array fdb_future_get_int64
        fdb_future_get_key fdb_future_get_key_array fdb_future_get_keyrange_array fdb_future_get_keyvalue_array
        fdb_future_get_mappedkeyvalue_array fdb_future_get_string_array fdb_future_get_uint64
        fdb_future_get_value fdb_future_is_ready fdb_future_readbg_get_descriptions fdb_future_release_memory
        fdb_future_set_callback fdb_get_client_version fdb_get_error fdb_get_max_api_version
        fdb_network_set_option fdb_readbg_parse_delta_file fdb_readbg_parse_snapshot_file fdb_result_destroy
        fdb_result_get_bg_mutations_array fdb_result_get_keyvalue_array fdb_run_network
        fdb_select_api_version_impl fdb_setup_network fdb_stop_network fdb_tenant_blobbify_range
        fdb_tenant_blobbify_range_blocking fdb_tenant_create_transaction fdb_tenant_destroy
        fdb_tenant_flush_blob_range fdb_tenant_get_id fdb_tenant_list_blobbified_ranges
        fdb_tenant_purge_blob_granules fdb_tenant_unblobbify_range fdb_tenant_verify_blob_range
        fdb_tenant_wait_purge_granules_complete fdb_transaction_add_conflict_range fdb_transaction_atomic_op
        fdb_transaction_cancel fdb_transaction_clear fdb_transaction_clear_range fdb_transaction_commit
        fdb_transaction_destroy fdb_transaction_get fdb_transaction_get_addresses_for_key
        fdb_transaction_get_approximate_size fdb_transaction_get_blob_granule_ranges
        fdb_transaction_get_committed_version fdb_transaction_get_estimated_range_size_bytes
        fdb_transaction_get_key fdb_transaction_get_mapped_range fdb_transaction_get_range
        fdb_transaction_get_range_split_points fdb_transaction_get_read_version
        fdb_transaction_get_tag_throttled_duration fdb_transaction_get_total_cost
        fdb_transaction_get_versionstamp fdb_transaction_on_error fdb_transaction_read_blob_granules
        fdb_transaction_read_blob_granules_description fdb_transaction_reset fdb_transaction_set
        fdb_transaction_set_option fdb_transaction_set_read_version fdb_transaction_summarize_blob_granules
        fdb_transaction_watch
    ";
    // Cargo puts the library beside this test.
    let path = std::env::current_exe().unwrap().with_file_name("libfdb_c.so");
    let path = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the path ends with a zero byte; loading the library runs no code of its own.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "{path:?}");
    let find = |name: &str| {
        let name = CString::new(name).unwrap();
        // SAFETY: the library is loaded and the name ends with a zero byte.
        unsafe { libc::dlsym(library, name.as_ptr()) }
    };
    let missing: Vec<&str> = NAMES.split_whitespace().filter(|name| find(name).is_null()).collect();
    assert_eq!(missing, [""; 0]);
    let max_version = find("fdb_get_max_api_version");
    // SAFETY: that is the function's type in `fdb_c.h`.
    let max_version: extern "C" fn() -> c_int = unsafe { std::mem::transmute(max_version) };
    assert_eq!(max_version(), 730);
}
