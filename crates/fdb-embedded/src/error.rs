//! FoundationDB's error codes, their texts and the predicates over them.

use std::fmt;

/// The result of every operation that FoundationDB's C API answers with an error code.
pub type Result<T> = std::result::Result<T, Error>;

/// A FoundationDB error code (1007, 1020, 2101 ...), the same numbers that `fdb_error_t` has; never 0.
///
/// The rule of each code is FoundationDB's own (its documentation, "Error Codes").
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Error(pub i32);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal),* $(,)?) => {
        impl Error {
            $($(#[$doc])* pub const $name: Error = Error($code);)*
        }
    };
}

codes! {
    /// The read version is more than five seconds old, or its snapshot is gone.
    TRANSACTION_TOO_OLD = 1007,
    /// The read version was never handed out yet.
    FUTURE_VERSION = 1009,
    /// A conflict: another transaction wrote what this one read.
    NOT_COMMITTED = 1020,
    /// The commit may or may not have happened.
    COMMIT_UNKNOWN_RESULT = 1021,
    /// `cancel` was called, or an error that cannot be retried went through `on_error`.
    TRANSACTION_CANCELLED = 1025,
    /// The option `timeout` ran out.
    TRANSACTION_TIMED_OUT = 1031,
    /// Too many watches are set on the engine.
    TOO_MANY_WATCHES = 1032,
    /// A watch in a transaction that does not read its own writes.
    WATCHES_DISABLED = 1034,
    /// A key whose value is not known before the commit (versionstamps).
    ACCESSED_UNREADABLE = 1036,
    /// The engine cannot serve another read version just now; worth a retry.
    PROCESS_BEHIND = 1037,
    /// A watch was cancelled by its owner.
    OPERATION_CANCELLED = 1101,
    /// Reading or writing the disk failed; the engine takes no commits until it is opened again.
    IO_ERROR = 1510,
    /// The call is not valid in this state or with these arguments.
    CLIENT_INVALID_OPERATION = 2000,
    /// The key is outside what the transaction's options allow.
    KEY_OUTSIDE_LEGAL_RANGE = 2004,
    /// A range whose begin is greater than its end.
    INVERTED_RANGE = 2005,
    /// An option's value has the wrong shape.
    INVALID_OPTION_VALUE = 2006,
    /// There is no such option here.
    INVALID_OPTION = 2007,
    /// `set_read_version` after the read version was fixed.
    READ_VERSION_ALREADY_SET = 2010,
    /// A read version that is not positive.
    VERSION_INVALID = 2011,
    /// A negative limit.
    RANGE_LIMITS_INVALID = 2012,
    /// The transaction was used while or after its commit.
    USED_DURING_COMMIT = 2017,
    /// An unknown atomic operation.
    INVALID_MUTATION_TYPE = 2018,
    /// Writes of a transaction that may only read from a locked database.
    TRANSACTION_READ_ONLY = 2023,
    /// A versionstamp was asked of a transaction that wrote nothing.
    NO_COMMIT_VERSION = 2021,
    /// A mapper asks for an element that the pair does not have.
    MAPPER_BAD_INDEX = 2030,
    /// `{...}` is not the last element of a mapper.
    MAPPER_BAD_RANGE_DESCRIPTOR = 2032,
    /// A mapped range holds what the transaction itself wrote.
    MAPPED_RANGE_READS_YOUR_WRITES = 2039,
    /// A mapper asks for an element of a key that is no tuple.
    KEY_NOT_TUPLE = 2041,
    /// A mapper asks for an element of a value that is no tuple.
    VALUE_NOT_TUPLE = 2042,
    /// A mapper is no tuple.
    MAPPER_NOT_TUPLE = 2043,
    /// The transaction passes its size limit.
    TRANSACTION_TOO_LARGE = 2101,
    /// The key passes 10,000 bytes.
    KEY_TOO_LARGE = 2102,
    /// The value passes 100,000 bytes.
    VALUE_TOO_LARGE = 2103,
    /// The operation is not offered.
    UNSUPPORTED_OPERATION = 2108,
    /// A read of special keys crosses modules.
    SPECIAL_KEYS_CROSS_MODULE_READ = 2112,
    /// More than five tags on a transaction.
    TOO_MANY_TAGS = 2109,
    /// A tag of more than 255 bytes.
    TAG_TOO_LONG = 2110,
    /// A special key outside every module.
    SPECIAL_KEYS_NO_MODULE_FOUND = 2113,
    /// A special key was written without the option for it.
    SPECIAL_KEYS_WRITE_DISABLED = 2114,
    /// A special key was written that no module takes.
    SPECIAL_KEYS_NO_WRITE_MODULE_FOUND = 2115,
    /// A clear of special keys crosses modules.
    SPECIAL_KEYS_CROSS_MODULE_CLEAR = 2116,
    /// The cluster has no tenants.
    TENANTS_DISABLED = 2136,
    /// `EXACT` streaming needs a limit.
    EXACT_MODE_WITHOUT_LIMITS = 2210,
    /// Something broke inside the engine.
    INTERNAL_ERROR = 4100,
}

impl Error {
    /// FoundationDB's text for the code, as `fdb_get_error` gives it.
    pub fn message(self) -> &'static str {
        error_message(self.0)
    }

    /// Whether a retry loop may try again (`FDB_ERROR_PREDICATE_RETRYABLE`).
    pub fn is_retryable(self) -> bool {
        error_predicate(50_000, self.0)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message(), self.0)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({}: {})", self.0, self.message())
    }
}

impl std::error::Error for Error {}

/// `fdb_get_error`: the text of an error code; "UNKNOWN_ERROR" for a number that has none.
pub fn error_message(code: i32) -> &'static str {
    match MESSAGES.binary_search_by_key(&code, |(known, _)| *known) {
        Ok(at) => MESSAGES[at].1,
        Err(_) => "UNKNOWN_ERROR",
    }
}

/// `fdb_error_predicate`: 50000 retryable, 50001 maybe committed, 50002 retryable and surely not committed.
///
/// Any other predicate is false for every code.
pub fn error_predicate(predicate: i32, code: i32) -> bool {
    const MAYBE_COMMITTED: [i32; 2] = [1021, 1039];
    const NOT_COMMITTED: [i32; 10] = [1007, 1009, 1020, 1037, 1038, 1042, 1051, 1078, 1213, 1223];
    match predicate {
        50_000 => MAYBE_COMMITTED.contains(&code) || NOT_COMMITTED.contains(&code),
        50_001 => MAYBE_COMMITTED.contains(&code),
        50_002 => NOT_COMMITTED.contains(&code),
        _ => false,
    }
}

/// Code and text, ascending by code.
const MESSAGES: &[(i32, &str)] = &[
    (0, "Success"),
    (1, "End of stream"),
    (1000, "Operation failed"),
    (1001, "Shard is not available from this server"),
    (1002, "Operation result no longer necessary"),
    (1003, "Cache server is not warm for this range"),
    (1004, "Operation timed out"),
    (1005, "Conflict occurred while changing coordination information"),
    (1006, "All alternatives failed"),
    (1007, "Transaction is too old to perform reads or be committed"),
    (1008, "Not enough physical servers available"),
    (1009, "Request for future version"),
    (1010, "Conflicting attempts to change data distribution"),
    (1011, "TLog stopped"),
    (1012, "Server request queue is full"),
    (1020, "Transaction not committed due to conflict with another transaction"),
    (1021, "Transaction may or may not have committed"),
    (
        1022,
        "Idempotency id for transaction may have expired, so the commit status of the transaction cannot be determined",
    ),
    (1025, "Operation aborted because the transaction was cancelled"),
    (1026, "Network connection failed"),
    (1027, "Coordination servers have changed"),
    (1028, "New coordination servers did not respond in a timely way"),
    (1029, "Watch cancelled because storage server watch limit exceeded"),
    (1030, "Request may or may not have been delivered"),
    (1031, "Operation aborted because the transaction timed out"),
    (1032, "Too many watches currently set"),
    (1033, "Locality information not available"),
    (1034, "Watches cannot be set if read your writes is disabled"),
    (1035, "Default error for an ErrorOr object"),
    (1036, "Read or wrote an unreadable key"),
    (1037, "Storage process does not have recent mutations"),
    (1038, "Database is locked"),
    (1039, "The protocol version of the cluster has changed"),
    (1040, "External client has already been loaded"),
    (1041, "DNS lookup failed"),
    (1042, "CommitProxy commit memory limit exceeded"),
    (1043, "Operation no longer supported due to shutdown"),
    (1044, "Failed to deserialize an object"),
    (1051, "Batch GRV request rate limit exceeded"),
    (1078, "GetReadVersion proxy memory limit exceeded"),
    (1100, "Broken promise"),
    (1101, "Asynchronous operation cancelled"),
    (1102, "Future has been released"),
    (1105, "Retry operation"),
    (1213, "Transaction tag is being throttled"),
    (1223, "Exceeded maximum proxy tag throttling duration"),
    (1225, "Exceeded the maximum storage quota allocated to the tenant."),
    (1500, "Platform error"),
    (1501, "Large block allocation failed"),
    (1502, "QueryPerformanceCounter error"),
    (1503, "Null allocator was used to allocate memory"),
    (1510, "Disk i/o operation failed"),
    (1511, "File not found"),
    (1512, "Unable to bind to network"),
    (1513, "File could not be read"),
    (1514, "File could not be written"),
    (1515, "No cluster file found in current directory or default location"),
    (1516, "File too large to be read"),
    (1520, "A data checksum failed"),
    (1521, "A disk IO operation failed to complete in a timely manner"),
    (1522, "A structurally corrupt data file was detected"),
    (1529, "Unable to lock the file"),
    (2000, "Invalid API call"),
    (2002, "Commit with incomplete read"),
    (2003, "Invalid test specification"),
    (2004, "Key outside legal range"),
    (2005, "Range begin key larger than end key"),
    (2006, "Option set with an invalid value"),
    (2007, "Option not valid in this context"),
    (2008, "Action not possible before the network is configured"),
    (2009, "Network can be configured only once"),
    (2010, "Transaction already has a read version set"),
    (2011, "Version not valid"),
    (2012, "Range limits not valid"),
    (2013, "Database name must be 'DB'"),
    (2014, "Attribute not found"),
    (2015, "Future not ready"),
    (2016, "Future not an error"),
    (2017, "Operation issued while a commit was outstanding"),
    (2018, "Unrecognized atomic mutation type"),
    (2019, "Attribute too large for type int"),
    (2020, "Transaction does not have a valid commit version"),
    (2021, "Transaction is read-only and therefore does not have a commit version"),
    (2022, "Environment variable network option could not be set"),
    (2023, "Attempted to commit a transaction specified as read-only"),
    (2024, "Invalid cache eviction policy, only random and lru are supported"),
    (2025, "Network can only be started once"),
    (2026, "Detected a deadlock in a callback called from the network thread"),
    (2030, "The index in K[] or V[] is not a valid number or out of range"),
    (2031, "A mapped key is not set in database"),
    (2032, "\"{...}\" must be the last element of the mapper tuple"),
    (2033, "One of the mapped range queries is too large"),
    (2036, "Blob Granule Read Transactions must be specified as ryw-disabled"),
    (2037, "Blob Granule Read was not materialized"),
    (2038, "getMappedRange does not support continuation for now"),
    (2039, "getMappedRange tries to read data that were previously written in the transaction"),
    (2041, "The key cannot be parsed as a tuple"),
    (2042, "The value cannot be parsed as a tuple"),
    (2043, "The mapper cannot be parsed as a tuple"),
    (2045, "Invalid quota value. Note that reserved_throughput cannot exceed total_throughput"),
    (2100, "Incompatible protocol version"),
    (2101, "Transaction exceeds byte limit"),
    (2102, "Key length exceeds limit"),
    (2103, "Value length exceeds limit"),
    (2104, "Connection string invalid"),
    (2105, "Local address in use"),
    (2106, "Invalid local address"),
    (2107, "TLS error"),
    (2108, "Operation is not supported"),
    (2109, "Too many tags set on transaction"),
    (2110, "Tag set on transaction is too long"),
    (2111, "Too many tag throttles have been created"),
    (
        2112,
        "Special key space range read crosses modules. Refer to the `special_key_space_relaxed' transaction option for more details.",
    ),
    (
        2113,
        "Special key space range read does not intersect a module. Refer to the `special_key_space_relaxed' transaction option for more details.",
    ),
    (
        2114,
        "Special Key space is not allowed to write by default. Refer to the `special_key_space_enable_writes` transaction option for more details.",
    ),
    (2115, "Special key space key or keyrange in set or clear does not intersect a module"),
    (2116, "Special key space clear crosses modules"),
    (
        2117,
        "Api call through special keys failed. For more information, call get on special key 0xff0xff/error_message to get a json string of the error message.",
    ),
    (2130, "Tenant name must be specified to access data in the cluster"),
    (2131, "Tenant does not exist"),
    (2132, "A tenant with the given name already exists"),
    (2133, "Cannot delete a non-empty tenant"),
    (2134, "Tenant name cannot begin with \\xff"),
    (2135, "The database already has keys stored at the prefix allocated for the tenant"),
    (2136, "Tenants have been disabled in the cluster"),
    (2138, "Illegal tenant access"),
    (2139, "Tenant group name cannot begin with \\xff"),
    (2140, "Tenant configuration is invalid"),
    (2141, "Cluster does not have capacity to perform the specified operation"),
    (2142, "The tenant was removed"),
    (2143, "Operation cannot be applied to tenant in its current state"),
    (2144, "Tenant is locked"),
    (2200, "API version is not set"),
    (2201, "API version may be set only once"),
    (2202, "API version not valid"),
    (2203, "API version not supported"),
    (2204, "Failed to load a required FDB API function."),
    (2210, "EXACT streaming mode requires limits, but none were given"),
    (2250, "Unrecognized data type in packed tuple"),
    (2251, "Tuple does not have element at specified index"),
    (2252, "Cannot unpack key that is not in subspace"),
    (2253, "Cannot specify a prefix unless manual prefixes are enabled"),
    (2254, "Cannot specify a prefix in a partition"),
    (2255, "Root directory cannot be opened"),
    (2256, "Directory already exists"),
    (2257, "Directory does not exist"),
    (2258, "Directory's parent does not exist"),
    (2259, "Directory has already been created with a different layer string"),
    (2260, "Invalid directory layer metadata"),
    (2261, "Directory cannot be moved between partitions"),
    (2262, "Directory partition cannot be used as subspace"),
    (2263, "Directory layer was created with an incompatible version"),
    (2264, "Database has keys stored at the prefix chosen by the automatic prefix allocator"),
    (2265, "Directory layer already has a conflicting prefix"),
    (2266, "Target directory is invalid"),
    (2267, "Root directory cannot be modified"),
    (2268, "UUID is not sixteen bytes"),
    (2269, "Versionstamp is not exactly twelve bytes"),
    (4000, "An unknown error occurred"),
    (4100, "An internal error occurred"),
    (4200, "Not implemented yet"),
    (6000, "Client tried to access unauthorized data"),
    (6001, "A untrusted client tried to send a message to a private endpoint"),
];
