/* The part of FoundationDB's C API that threads.c uses: API version 730, after the documentation of the C API. */

#ifndef FLATBED_TESTS_FDB_H
#define FLATBED_TESTS_FDB_H

#include <stdint.h>

#define FDB_API_VERSION 730

typedef struct FDB_future FDBFuture;
typedef struct FDB_database FDBDatabase;
typedef struct FDB_transaction FDBTransaction;
typedef int fdb_error_t;
typedef int fdb_bool_t;
typedef void (*FDBCallback)(FDBFuture *, void *);

#pragma pack(push, 4)
typedef struct {
    const uint8_t *key;
    int key_length;
    const uint8_t *value;
    int value_length;
} FDBKeyValue;
#pragma pack(pop)

const char *fdb_get_error(fdb_error_t code);
fdb_bool_t fdb_error_predicate(int predicate, fdb_error_t code);

fdb_error_t fdb_select_api_version_impl(int runtime_version, int header_version);
fdb_error_t fdb_setup_network(void);
fdb_error_t fdb_run_network(void);
fdb_error_t fdb_stop_network(void);
fdb_error_t fdb_add_network_thread_completion_hook(void (*hook)(void *), void *parameter);

void fdb_future_cancel(FDBFuture *future);
void fdb_future_release_memory(FDBFuture *future);
void fdb_future_destroy(FDBFuture *future);
fdb_error_t fdb_future_block_until_ready(FDBFuture *future);
fdb_bool_t fdb_future_is_ready(FDBFuture *future);
fdb_error_t fdb_future_set_callback(FDBFuture *future, FDBCallback callback, void *parameter);
fdb_error_t fdb_future_get_error(FDBFuture *future);
fdb_error_t fdb_future_get_int64(FDBFuture *future, int64_t *out);
fdb_error_t fdb_future_get_key(FDBFuture *future, const uint8_t **out_key, int *out_length);
fdb_error_t fdb_future_get_value(FDBFuture *future, fdb_bool_t *out_present, const uint8_t **out_value, int *out_length);
fdb_error_t fdb_future_get_keyvalue_array(FDBFuture *future, const FDBKeyValue **out_pairs, int *out_count,
                                          fdb_bool_t *out_more);
fdb_error_t fdb_future_get_string_array(FDBFuture *future, const char ***out_strings, int *out_count);

fdb_error_t fdb_create_database(const char *cluster_file, FDBDatabase **out_database);
void fdb_database_destroy(FDBDatabase *database);
fdb_error_t fdb_database_create_transaction(FDBDatabase *database, FDBTransaction **out_transaction);
double fdb_database_get_main_thread_busyness(FDBDatabase *database);
FDBFuture *fdb_database_get_client_status(FDBDatabase *database);

void fdb_transaction_destroy(FDBTransaction *transaction);
void fdb_transaction_cancel(FDBTransaction *transaction);
void fdb_transaction_reset(FDBTransaction *transaction);
fdb_error_t fdb_transaction_set_option(FDBTransaction *transaction, int option, const uint8_t *value, int value_length);
FDBFuture *fdb_transaction_get_read_version(FDBTransaction *transaction);
FDBFuture *fdb_transaction_get(FDBTransaction *transaction, const uint8_t *key, int key_length, fdb_bool_t snapshot);
FDBFuture *fdb_transaction_get_range(FDBTransaction *transaction, const uint8_t *begin, int begin_length,
                                     fdb_bool_t begin_or_equal, int begin_offset, const uint8_t *end, int end_length,
                                     fdb_bool_t end_or_equal, int end_offset, int limit, int target_bytes, int mode,
                                     int iteration, fdb_bool_t snapshot, fdb_bool_t reverse);
FDBFuture *fdb_transaction_get_addresses_for_key(FDBTransaction *transaction, const uint8_t *key, int key_length);
void fdb_transaction_set(FDBTransaction *transaction, const uint8_t *key, int key_length, const uint8_t *value,
                         int value_length);
void fdb_transaction_clear_range(FDBTransaction *transaction, const uint8_t *begin, int begin_length,
                                 const uint8_t *end, int end_length);
FDBFuture *fdb_transaction_watch(FDBTransaction *transaction, const uint8_t *key, int key_length);
FDBFuture *fdb_transaction_commit(FDBTransaction *transaction);
FDBFuture *fdb_transaction_get_versionstamp(FDBTransaction *transaction);
FDBFuture *fdb_transaction_on_error(FDBTransaction *transaction, fdb_error_t error);

#endif
