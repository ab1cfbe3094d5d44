//! FoundationDB's error codes, their texts and the predicates over them.

use std::fmt;

use crate::base::messages::MESSAGES;

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
    /// The database is locked, and the transaction does not know of locks.
    DATABASE_LOCKED = 1038,
    /// A cluster's commit proxies have no memory left; never but as a fault.
    COMMIT_PROXY_MEMORY_LIMIT_EXCEEDED = 1042,
    /// A cluster has no capacity left for transactions of low priority; never but as a fault.
    BATCH_TRANSACTION_THROTTLED = 1051,
    /// A cluster's proxies have no memory left for read versions; never but as a fault.
    GRV_PROXY_MEMORY_LIMIT_EXCEEDED = 1078,
    /// A watch was cancelled by its owner.
    OPERATION_CANCELLED = 1101,
    /// A cluster throttles a tag of the transaction; never but as a fault.
    TAG_THROTTLED = 1213,
    /// A cluster's proxies throttled a tag of the transaction for too long; never but as a fault.
    PROXY_TAG_THROTTLED = 1223,
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

/// `fdb_get_error`: the text of an error code; "UNKNOWN_ERROR" for a number that has none, and that of 4000 for one that
/// is outside of what a code can be (0 to 30,000).
pub fn error_message(code: i32) -> &'static str {
    let code = if (0..=30_000).contains(&code) { code } else { 4000 };
    match MESSAGES.binary_search_by_key(&code, |(known, _)| *known) {
        Ok(at) => MESSAGES.get(at).map_or("UNKNOWN_ERROR", |(_, text)| text),
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
