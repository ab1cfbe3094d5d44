//! FoundationDB's error codes, their texts and predicates.

use std::fmt;

use crate::base::messages::MESSAGES;

/// The result of an operation that fails with a FoundationDB error code.
pub type Result<T> = std::result::Result<T, Error>;

/// A FoundationDB error code (1007, 1020, 2101 ...), with the numbers of `fdb_error_t`; never 0.
///
/// FoundationDB's documentation, "Error Codes", defines each code.
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
    /// The read version is more than five seconds old, or its snapshot was dropped.
    TRANSACTION_TOO_OLD = 1007,
    /// The read version was not handed out yet.
    FUTURE_VERSION = 1009,
    /// A conflict: another transaction wrote keys that this one read.
    NOT_COMMITTED = 1020,
    /// The commit may or may not have happened.
    COMMIT_UNKNOWN_RESULT = 1021,
    /// `cancel` was called, or an error that cannot be retried went through `on_error`.
    TRANSACTION_CANCELLED = 1025,
    /// The timeout of the transaction expired.
    TRANSACTION_TIMED_OUT = 1031,
    /// Too many watches are set on the engine.
    TOO_MANY_WATCHES = 1032,
    /// A watch in a transaction with `read_your_writes_disable`.
    WATCHES_DISABLED = 1034,
    /// A read of a key whose value is unknown before the commit (versionstamps).
    ACCESSED_UNREADABLE = 1036,
    /// The engine cannot serve another read version now; retryable.
    PROCESS_BEHIND = 1037,
    /// The database is locked, and the transaction is not lock-aware.
    DATABASE_LOCKED = 1038,
    /// A cluster's commit proxies are out of memory. The engine returns it only as an injected fault.
    COMMIT_PROXY_MEMORY_LIMIT_EXCEEDED = 1042,
    /// A cluster has no capacity for transactions of low priority. Only an injected fault.
    BATCH_TRANSACTION_THROTTLED = 1051,
    /// A cluster's proxies are out of memory for read versions. Only an injected fault.
    GRV_PROXY_MEMORY_LIMIT_EXCEEDED = 1078,
    /// The owner cancelled the watch.
    OPERATION_CANCELLED = 1101,
    /// A cluster throttles a tag of the transaction. Only an injected fault.
    TAG_THROTTLED = 1213,
    /// A cluster's proxies throttled a tag of the transaction for too long. Only an injected fault.
    PROXY_TAG_THROTTLED = 1223,
    /// Reading or writing the disk failed; the engine accepts no commits until it is reopened.
    IO_ERROR = 1510,
    /// The call is not valid in this state or with these arguments.
    CLIENT_INVALID_OPERATION = 2000,
    /// The key is outside of the key space that the transaction's options allow.
    KEY_OUTSIDE_LEGAL_RANGE = 2004,
    /// A range whose begin is greater than its end.
    INVERTED_RANGE = 2005,
    /// An option's value has the wrong shape.
    INVALID_OPTION_VALUE = 2006,
    /// The option does not exist.
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
    /// A write in a transaction that may only read a locked database.
    TRANSACTION_READ_ONLY = 2023,
    /// The transaction wrote nothing, so it has no versionstamp.
    NO_COMMIT_VERSION = 2021,
    /// A mapper names an element that the pair does not have.
    MAPPER_BAD_INDEX = 2030,
    /// `{...}` is not the last element of a mapper.
    MAPPER_BAD_RANGE_DESCRIPTOR = 2032,
    /// A mapped range overlaps the transaction's own writes.
    MAPPED_RANGE_READS_YOUR_WRITES = 2039,
    /// A mapper names an element of a key that is no tuple.
    KEY_NOT_TUPLE = 2041,
    /// A mapper names an element of a value that is no tuple.
    VALUE_NOT_TUPLE = 2042,
    /// A mapper is no tuple.
    MAPPER_NOT_TUPLE = 2043,
    /// The transaction exceeds its size limit.
    TRANSACTION_TOO_LARGE = 2101,
    /// The key exceeds 10,000 bytes.
    KEY_TOO_LARGE = 2102,
    /// The value exceeds 100,000 bytes.
    VALUE_TOO_LARGE = 2103,
    /// The operation is not supported.
    UNSUPPORTED_OPERATION = 2108,
    /// A read of special keys crosses modules.
    SPECIAL_KEYS_CROSS_MODULE_READ = 2112,
    /// More than five tags on a transaction.
    TOO_MANY_TAGS = 2109,
    /// A tag of more than 255 bytes.
    TAG_TOO_LONG = 2110,
    /// A special key outside of all modules.
    SPECIAL_KEYS_NO_MODULE_FOUND = 2113,
    /// A special key was written without the option for it.
    SPECIAL_KEYS_WRITE_DISABLED = 2114,
    /// A write to a special key that no module accepts.
    SPECIAL_KEYS_NO_WRITE_MODULE_FOUND = 2115,
    /// A clear of special keys crosses modules.
    SPECIAL_KEYS_CROSS_MODULE_CLEAR = 2116,
    /// The cluster has no tenants.
    TENANTS_DISABLED = 2136,
    /// `EXACT` streaming needs a limit.
    EXACT_MODE_WITHOUT_LIMITS = 2210,
    /// An internal error of the engine.
    INTERNAL_ERROR = 4100,
}

impl Error {
    /// FoundationDB's text for the code, as from `fdb_get_error`.
    pub fn message(self) -> &'static str {
        error_message(self.0)
    }

    /// Returns whether a retry loop may retry (`FDB_ERROR_PREDICATE_RETRYABLE`).
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

/// Returns the text of an error code as `fdb_get_error` does: "UNKNOWN_ERROR" for a number without a text, and the
/// text of 4000 for a number outside of 0 to 30,000.
pub fn error_message(code: i32) -> &'static str {
    let code = if (0..=30_000).contains(&code) { code } else { 4000 };
    match MESSAGES.binary_search_by_key(&code, |(known, _)| *known) {
        Ok(at) => MESSAGES.get(at).map_or("UNKNOWN_ERROR", |(_, text)| text),
        Err(_) => "UNKNOWN_ERROR",
    }
}

/// Evaluates `fdb_error_predicate`: 50000 retryable, 50001 maybe committed, 50002 retryable and not committed. Any
/// other predicate is false.
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
