//! The numbers of FoundationDB 7.3's options, as in `fdb.options`, under bindgen's names for C's enums.
#![allow(non_upper_case_globals, reason = "the names that the binding expects")]

use std::ffi::{c_int, c_uint};

macro_rules! options {
    ($($(#[$doc:meta])* $type:ident: $integer:ty { $($constant:ident = $code:literal,)* })*) => {
        $(
            $(#[$doc])*
            pub type $type = $integer;
            $(
                #[doc = concat!("Option ", stringify!($code), " of [`", stringify!($type), "`].")]
                pub const $constant: $type = $code;
            )*
        )*
    };
}

options! {
    /// Options of the client as a whole, set before its network runs.
    FDBNetworkOption: c_uint {
        FDBNetworkOption_FDB_NET_OPTION_LOCAL_ADDRESS = 10,
        FDBNetworkOption_FDB_NET_OPTION_CLUSTER_FILE = 20,
        FDBNetworkOption_FDB_NET_OPTION_TRACE_ENABLE = 30,
        FDBNetworkOption_FDB_NET_OPTION_TRACE_ROLL_SIZE = 31,
        FDBNetworkOption_FDB_NET_OPTION_TRACE_MAX_LOGS_SIZE = 32,
        FDBNetworkOption_FDB_NET_OPTION_TRACE_LOG_GROUP = 33,
        FDBNetworkOption_FDB_NET_OPTION_TRACE_FORMAT = 34,
        FDBNetworkOption_FDB_NET_OPTION_TRACE_CLOCK_SOURCE = 35,
        FDBNetworkOption_FDB_NET_OPTION_TRACE_FILE_IDENTIFIER = 36,
        FDBNetworkOption_FDB_NET_OPTION_TRACE_SHARE_AMONG_CLIENT_THREADS = 37,
        FDBNetworkOption_FDB_NET_OPTION_TRACE_INITIALIZE_ON_SETUP = 38,
        FDBNetworkOption_FDB_NET_OPTION_TRACE_PARTIAL_FILE_SUFFIX = 39,
        FDBNetworkOption_FDB_NET_OPTION_KNOB = 40,
        FDBNetworkOption_FDB_NET_OPTION_TLS_PLUGIN = 41,
        FDBNetworkOption_FDB_NET_OPTION_TLS_CERT_BYTES = 42,
        FDBNetworkOption_FDB_NET_OPTION_TLS_CERT_PATH = 43,
        FDBNetworkOption_FDB_NET_OPTION_TLS_KEY_BYTES = 45,
        FDBNetworkOption_FDB_NET_OPTION_TLS_KEY_PATH = 46,
        FDBNetworkOption_FDB_NET_OPTION_TLS_VERIFY_PEERS = 47,
        FDBNetworkOption_FDB_NET_OPTION_BUGGIFY_ENABLE = 48,
        FDBNetworkOption_FDB_NET_OPTION_BUGGIFY_DISABLE = 49,
        FDBNetworkOption_FDB_NET_OPTION_BUGGIFY_SECTION_ACTIVATED_PROBABILITY = 50,
        FDBNetworkOption_FDB_NET_OPTION_BUGGIFY_SECTION_FIRED_PROBABILITY = 51,
        FDBNetworkOption_FDB_NET_OPTION_TLS_CA_BYTES = 52,
        FDBNetworkOption_FDB_NET_OPTION_TLS_CA_PATH = 53,
        FDBNetworkOption_FDB_NET_OPTION_TLS_PASSWORD = 54,
        FDBNetworkOption_FDB_NET_OPTION_DISABLE_MULTI_VERSION_CLIENT_API = 60,
        FDBNetworkOption_FDB_NET_OPTION_CALLBACKS_ON_EXTERNAL_THREADS = 61,
        FDBNetworkOption_FDB_NET_OPTION_EXTERNAL_CLIENT_LIBRARY = 62,
        FDBNetworkOption_FDB_NET_OPTION_EXTERNAL_CLIENT_DIRECTORY = 63,
        FDBNetworkOption_FDB_NET_OPTION_DISABLE_LOCAL_CLIENT = 64,
        FDBNetworkOption_FDB_NET_OPTION_CLIENT_THREADS_PER_VERSION = 65,
        FDBNetworkOption_FDB_NET_OPTION_FUTURE_VERSION_CLIENT_LIBRARY = 66,
        FDBNetworkOption_FDB_NET_OPTION_RETAIN_CLIENT_LIBRARY_COPIES = 67,
        FDBNetworkOption_FDB_NET_OPTION_IGNORE_EXTERNAL_CLIENT_FAILURES = 68,
        FDBNetworkOption_FDB_NET_OPTION_FAIL_INCOMPATIBLE_CLIENT = 69,
        FDBNetworkOption_FDB_NET_OPTION_DISABLE_CLIENT_STATISTICS_LOGGING = 70,
        FDBNetworkOption_FDB_NET_OPTION_ENABLE_SLOW_TASK_PROFILING = 71,
        FDBNetworkOption_FDB_NET_OPTION_ENABLE_RUN_LOOP_PROFILING = 71,
        FDBNetworkOption_FDB_NET_OPTION_DISABLE_CLIENT_BYPASS = 72,
        FDBNetworkOption_FDB_NET_OPTION_CLIENT_BUGGIFY_ENABLE = 80,
        FDBNetworkOption_FDB_NET_OPTION_CLIENT_BUGGIFY_DISABLE = 81,
        FDBNetworkOption_FDB_NET_OPTION_CLIENT_BUGGIFY_SECTION_ACTIVATED_PROBABILITY = 82,
        FDBNetworkOption_FDB_NET_OPTION_CLIENT_BUGGIFY_SECTION_FIRED_PROBABILITY = 83,
        FDBNetworkOption_FDB_NET_OPTION_DISTRIBUTED_CLIENT_TRACER = 90,
        FDBNetworkOption_FDB_NET_OPTION_CLIENT_TMP_DIR = 91,
        FDBNetworkOption_FDB_NET_OPTION_SUPPORTED_CLIENT_VERSIONS = 1000,
        FDBNetworkOption_FDB_NET_OPTION_EXTERNAL_CLIENT = 1001,
        FDBNetworkOption_FDB_NET_OPTION_EXTERNAL_CLIENT_TRANSPORT_ID = 1002,
    }
    /// Options of a database.
    FDBDatabaseOption: c_uint {
        FDBDatabaseOption_FDB_DB_OPTION_LOCATION_CACHE_SIZE = 10,
        FDBDatabaseOption_FDB_DB_OPTION_MAX_WATCHES = 20,
        FDBDatabaseOption_FDB_DB_OPTION_MACHINE_ID = 21,
        FDBDatabaseOption_FDB_DB_OPTION_DATACENTER_ID = 22,
        FDBDatabaseOption_FDB_DB_OPTION_SNAPSHOT_RYW_ENABLE = 26,
        FDBDatabaseOption_FDB_DB_OPTION_SNAPSHOT_RYW_DISABLE = 27,
        FDBDatabaseOption_FDB_DB_OPTION_TRANSACTION_LOGGING_MAX_FIELD_LENGTH = 405,
        FDBDatabaseOption_FDB_DB_OPTION_TRANSACTION_TIMEOUT = 500,
        FDBDatabaseOption_FDB_DB_OPTION_TRANSACTION_RETRY_LIMIT = 501,
        FDBDatabaseOption_FDB_DB_OPTION_TRANSACTION_MAX_RETRY_DELAY = 502,
        FDBDatabaseOption_FDB_DB_OPTION_TRANSACTION_SIZE_LIMIT = 503,
        FDBDatabaseOption_FDB_DB_OPTION_TRANSACTION_CAUSAL_READ_RISKY = 504,
        FDBDatabaseOption_FDB_DB_OPTION_TRANSACTION_INCLUDE_PORT_IN_ADDRESS = 505,
        FDBDatabaseOption_FDB_DB_OPTION_TRANSACTION_AUTOMATIC_IDEMPOTENCY = 506,
        FDBDatabaseOption_FDB_DB_OPTION_TRANSACTION_BYPASS_UNREADABLE = 700,
        FDBDatabaseOption_FDB_DB_OPTION_TRANSACTION_USED_DURING_COMMIT_PROTECTION_DISABLE = 701,
        FDBDatabaseOption_FDB_DB_OPTION_TRANSACTION_REPORT_CONFLICTING_KEYS = 702,
        FDBDatabaseOption_FDB_DB_OPTION_USE_CONFIG_DATABASE = 800,
        FDBDatabaseOption_FDB_DB_OPTION_TEST_CAUSAL_READ_RISKY = 900,
    }
    /// Options of a transaction.
    FDBTransactionOption: c_uint {
        FDBTransactionOption_FDB_TR_OPTION_CAUSAL_WRITE_RISKY = 10,
        FDBTransactionOption_FDB_TR_OPTION_CAUSAL_READ_RISKY = 20,
        FDBTransactionOption_FDB_TR_OPTION_CAUSAL_READ_DISABLE = 21,
        FDBTransactionOption_FDB_TR_OPTION_INCLUDE_PORT_IN_ADDRESS = 23,
        FDBTransactionOption_FDB_TR_OPTION_NEXT_WRITE_NO_WRITE_CONFLICT_RANGE = 30,
        FDBTransactionOption_FDB_TR_OPTION_COMMIT_ON_FIRST_PROXY = 40,
        FDBTransactionOption_FDB_TR_OPTION_CHECK_WRITES_ENABLE = 50,
        FDBTransactionOption_FDB_TR_OPTION_READ_YOUR_WRITES_DISABLE = 51,
        FDBTransactionOption_FDB_TR_OPTION_READ_AHEAD_DISABLE = 52,
        FDBTransactionOption_FDB_TR_OPTION_READ_SERVER_SIDE_CACHE_ENABLE = 507,
        FDBTransactionOption_FDB_TR_OPTION_READ_SERVER_SIDE_CACHE_DISABLE = 508,
        FDBTransactionOption_FDB_TR_OPTION_READ_PRIORITY_NORMAL = 509,
        FDBTransactionOption_FDB_TR_OPTION_READ_PRIORITY_LOW = 510,
        FDBTransactionOption_FDB_TR_OPTION_READ_PRIORITY_HIGH = 511,
        FDBTransactionOption_FDB_TR_OPTION_DURABILITY_DATACENTER = 110,
        FDBTransactionOption_FDB_TR_OPTION_DURABILITY_RISKY = 120,
        FDBTransactionOption_FDB_TR_OPTION_DURABILITY_DEV_NULL_IS_WEB_SCALE = 130,
        FDBTransactionOption_FDB_TR_OPTION_PRIORITY_SYSTEM_IMMEDIATE = 200,
        FDBTransactionOption_FDB_TR_OPTION_PRIORITY_BATCH = 201,
        FDBTransactionOption_FDB_TR_OPTION_INITIALIZE_NEW_DATABASE = 300,
        FDBTransactionOption_FDB_TR_OPTION_ACCESS_SYSTEM_KEYS = 301,
        FDBTransactionOption_FDB_TR_OPTION_READ_SYSTEM_KEYS = 302,
        FDBTransactionOption_FDB_TR_OPTION_RAW_ACCESS = 303,
        FDBTransactionOption_FDB_TR_OPTION_BYPASS_STORAGE_QUOTA = 304,
        FDBTransactionOption_FDB_TR_OPTION_DEBUG_DUMP = 400,
        FDBTransactionOption_FDB_TR_OPTION_DEBUG_RETRY_LOGGING = 401,
        FDBTransactionOption_FDB_TR_OPTION_TRANSACTION_LOGGING_ENABLE = 402,
        FDBTransactionOption_FDB_TR_OPTION_DEBUG_TRANSACTION_IDENTIFIER = 403,
        FDBTransactionOption_FDB_TR_OPTION_LOG_TRANSACTION = 404,
        FDBTransactionOption_FDB_TR_OPTION_TRANSACTION_LOGGING_MAX_FIELD_LENGTH = 405,
        FDBTransactionOption_FDB_TR_OPTION_SERVER_REQUEST_TRACING = 406,
        FDBTransactionOption_FDB_TR_OPTION_TIMEOUT = 500,
        FDBTransactionOption_FDB_TR_OPTION_RETRY_LIMIT = 501,
        FDBTransactionOption_FDB_TR_OPTION_MAX_RETRY_DELAY = 502,
        FDBTransactionOption_FDB_TR_OPTION_SIZE_LIMIT = 503,
        FDBTransactionOption_FDB_TR_OPTION_IDEMPOTENCY_ID = 504,
        FDBTransactionOption_FDB_TR_OPTION_AUTOMATIC_IDEMPOTENCY = 505,
        FDBTransactionOption_FDB_TR_OPTION_SNAPSHOT_RYW_ENABLE = 600,
        FDBTransactionOption_FDB_TR_OPTION_SNAPSHOT_RYW_DISABLE = 601,
        FDBTransactionOption_FDB_TR_OPTION_LOCK_AWARE = 700,
        FDBTransactionOption_FDB_TR_OPTION_USED_DURING_COMMIT_PROTECTION_DISABLE = 701,
        FDBTransactionOption_FDB_TR_OPTION_READ_LOCK_AWARE = 702,
        FDBTransactionOption_FDB_TR_OPTION_FIRST_IN_BATCH = 710,
        FDBTransactionOption_FDB_TR_OPTION_USE_PROVISIONAL_PROXIES = 711,
        FDBTransactionOption_FDB_TR_OPTION_REPORT_CONFLICTING_KEYS = 712,
        FDBTransactionOption_FDB_TR_OPTION_SPECIAL_KEY_SPACE_RELAXED = 713,
        FDBTransactionOption_FDB_TR_OPTION_SPECIAL_KEY_SPACE_ENABLE_WRITES = 714,
        FDBTransactionOption_FDB_TR_OPTION_TAG = 800,
        FDBTransactionOption_FDB_TR_OPTION_AUTO_THROTTLE_TAG = 801,
        FDBTransactionOption_FDB_TR_OPTION_SPAN_PARENT = 900,
        FDBTransactionOption_FDB_TR_OPTION_EXPENSIVE_CLEAR_COST_ESTIMATION_ENABLE = 1000,
        FDBTransactionOption_FDB_TR_OPTION_BYPASS_UNREADABLE = 1100,
        FDBTransactionOption_FDB_TR_OPTION_USE_GRV_CACHE = 1101,
        FDBTransactionOption_FDB_TR_OPTION_SKIP_GRV_CACHE = 1102,
        FDBTransactionOption_FDB_TR_OPTION_AUTHORIZATION_TOKEN = 2000,
    }
    /// The batching of a range read.
    FDBStreamingMode: c_int {
        FDBStreamingMode_FDB_STREAMING_MODE_WANT_ALL = -2,
        FDBStreamingMode_FDB_STREAMING_MODE_ITERATOR = -1,
        FDBStreamingMode_FDB_STREAMING_MODE_EXACT = 0,
        FDBStreamingMode_FDB_STREAMING_MODE_SMALL = 1,
        FDBStreamingMode_FDB_STREAMING_MODE_MEDIUM = 2,
        FDBStreamingMode_FDB_STREAMING_MODE_LARGE = 3,
        FDBStreamingMode_FDB_STREAMING_MODE_SERIAL = 4,
    }
    /// Atomic operations.
    FDBMutationType: c_uint {
        FDBMutationType_FDB_MUTATION_TYPE_ADD = 2,
        FDBMutationType_FDB_MUTATION_TYPE_AND = 6,
        FDBMutationType_FDB_MUTATION_TYPE_BIT_AND = 6,
        FDBMutationType_FDB_MUTATION_TYPE_OR = 7,
        FDBMutationType_FDB_MUTATION_TYPE_BIT_OR = 7,
        FDBMutationType_FDB_MUTATION_TYPE_XOR = 8,
        FDBMutationType_FDB_MUTATION_TYPE_BIT_XOR = 8,
        FDBMutationType_FDB_MUTATION_TYPE_APPEND_IF_FITS = 9,
        FDBMutationType_FDB_MUTATION_TYPE_MAX = 12,
        FDBMutationType_FDB_MUTATION_TYPE_MIN = 13,
        FDBMutationType_FDB_MUTATION_TYPE_SET_VERSIONSTAMPED_KEY = 14,
        FDBMutationType_FDB_MUTATION_TYPE_SET_VERSIONSTAMPED_VALUE = 15,
        FDBMutationType_FDB_MUTATION_TYPE_BYTE_MIN = 16,
        FDBMutationType_FDB_MUTATION_TYPE_BYTE_MAX = 17,
        FDBMutationType_FDB_MUTATION_TYPE_COMPARE_AND_CLEAR = 20,
    }
    /// Types of conflict ranges.
    FDBConflictRangeType: c_uint {
        FDBConflictRangeType_FDB_CONFLICT_RANGE_TYPE_READ = 0,
        FDBConflictRangeType_FDB_CONFLICT_RANGE_TYPE_WRITE = 1,
    }
    /// The predicates of `fdb_error_predicate`.
    FDBErrorPredicate: c_uint {
        FDBErrorPredicate_FDB_ERROR_PREDICATE_RETRYABLE = 50000,
        FDBErrorPredicate_FDB_ERROR_PREDICATE_MAYBE_COMMITTED = 50001,
        FDBErrorPredicate_FDB_ERROR_PREDICATE_RETRYABLE_NOT_COMMITTED = 50002,
    }
}
