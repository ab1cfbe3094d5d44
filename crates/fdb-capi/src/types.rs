//! The plain types of `fdb_c.h`, in C's layout.

use std::ffi::{c_char, c_int, c_uchar, c_void};

/// `fdb_error_t`: 0 is success, anything else one of FoundationDB's error codes.
#[allow(non_camel_case_types, reason = "the name of the C API")]
pub type fdb_error_t = c_int;
/// `fdb_bool_t`: 0 is false, anything else true.
#[allow(non_camel_case_types, reason = "the name of the C API")]
pub type fdb_bool_t = c_int;

/// A hook that runs when the network ends, with the given parameter.
pub type FDBNetworkHook = Option<unsafe extern "C" fn(*mut c_void)>;

/// A key. Packed to 4 bytes, as `fdb_c.h` says: 12 bytes.
#[repr(C, packed(4))]
#[derive(Clone, Copy, Debug)]
pub struct FDBKey {
    /// First byte; never null in results of this library.
    pub key: *const u8,
    /// Bytes.
    pub key_length: c_int,
}

/// A key and its value. Packed to 4 bytes, as `fdb_c.h` says: 24 bytes.
#[repr(C, packed(4))]
#[derive(Clone, Copy, Debug)]
pub struct FDBKeyValue {
    /// First byte of the key; never null in results of this library.
    pub key: *const u8,
    /// Bytes of the key.
    pub key_length: c_int,
    /// First byte of the value; never null in results of this library.
    pub value: *const u8,
    /// Bytes of the value.
    pub value_length: c_int,
}

/// A range of keys. Packed to 4 bytes: 24 bytes.
#[repr(C, packed(4))]
#[derive(Clone, Copy, Debug)]
pub struct FDBKeyRange {
    /// First byte of the begin key.
    pub begin_key: *const u8,
    /// Bytes of the begin key.
    pub begin_key_length: c_int,
    /// First byte of the end key.
    pub end_key: *const u8,
    /// Bytes of the end key.
    pub end_key_length: c_int,
}

/// A key selector in the result of a mapped range.
#[repr(C)]
#[allow(non_snake_case, reason = "the names of the C API")]
#[derive(Clone, Copy, Debug)]
pub struct FDBKeySelector {
    /// The key that the selector starts from.
    pub key: FDBKey,
    /// True if a key equal to it counts as before it.
    pub orEqual: fdb_bool_t,
    /// Keys to advance.
    pub offset: c_int,
}

/// The inner range read of a mapped range, and its result.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FDBGetRangeReqAndResult {
    /// The begin of the range.
    pub begin: FDBKeySelector,
    /// The end of the range.
    pub end: FDBKeySelector,
    /// The pairs found.
    pub data: *mut FDBKeyValue,
    /// The number of pairs.
    pub m_size: c_int,
    /// The capacity in pairs.
    pub m_capacity: c_int,
}

/// A pair of a mapped range, with its records.
#[repr(C)]
#[allow(non_snake_case, reason = "the names of the C API")]
#[derive(Clone, Copy, Debug)]
pub struct FDBMappedKeyValue {
    /// The key of the outer range.
    pub key: FDBKey,
    /// Its value.
    pub value: FDBKey,
    /// The inner range read.
    pub getRange: FDBGetRangeReqAndResult,
    /// Space used by the C++ client; zero here.
    pub buffer: [c_uchar; 32],
}

/// The summary of a blob granule. Blob granules are not supported, so none is ever created.
#[repr(C, packed(4))]
#[derive(Clone, Copy, Debug)]
pub struct FDBGranuleSummary {
    /// The keys of the granule.
    pub key_range: FDBKeyRange,
    /// Version of its snapshot file.
    pub snapshot_version: i64,
    /// Bytes of its snapshot file.
    pub snapshot_size: i64,
    /// Version of its newest delta file.
    pub delta_version: i64,
    /// Bytes of its delta files.
    pub delta_size: i64,
}

/// The callbacks for loading blob granule files; taken by value and never used.
#[repr(C)]
#[allow(non_snake_case, reason = "the names of the C API")]
#[derive(Clone, Copy, Debug)]
pub struct FDBReadBlobGranuleContext {
    /// The parameter of the callbacks.
    pub userContext: *mut c_void,
    /// Starts to load a file.
    pub start_load_f: Option<unsafe extern "C" fn(*const c_char, c_int, i64, i64, i64, *mut c_void) -> i64>,
    /// Waits for a file.
    pub get_load_f: Option<unsafe extern "C" fn(i64, *mut c_void) -> *mut u8>,
    /// Frees a file.
    pub free_load_f: Option<unsafe extern "C" fn(i64, *mut c_void)>,
    /// True to skip the files.
    pub debugNoMaterialize: fdb_bool_t,
    /// The number of granules to load concurrently.
    pub granuleParallelism: c_int,
}

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Debug)]
            pub struct $name {
                _opaque: [u8; 0],
            }
        )*
    };
}

opaque! {
    /// A blob granule's files; never created here.
    FDBBGFileDescription,
    /// A blob granule's change; never created here.
    FDBBGMutation,
    /// The prefix of a tenant in a blob granule; never read here.
    FDBBGTenantPrefix,
    /// The keys of an encrypted blob granule; never read here.
    FDBBGEncryptionCtx,
}

/// The bytes of a C pointer and length; empty for a null pointer or a length that is not positive.
///
/// # Safety
/// A non-null pointer points to `length` readable bytes that stay unchanged for `'a`.
pub(crate) unsafe fn bytes<'a>(pointer: *const u8, length: c_int) -> &'a [u8] {
    match usize::try_from(length) {
        // SAFETY: the caller's promise; the pointer is not null and the length is positive.
        Ok(length) if length > 0 && !pointer.is_null() => unsafe { std::slice::from_raw_parts(pointer, length) },
        _ => &[],
    }
}

/// The value of an option: `None` for a null pointer.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn option_value<'a>(pointer: *const u8, length: c_int) -> Option<&'a [u8]> {
    // SAFETY: the caller's promise is the requirement of `bytes`.
    (!pointer.is_null()).then(|| unsafe { bytes(pointer, length) })
}

/// Converts a length or count to C's type. The engine's limits keep all of them far below the bound.
pub(crate) fn c_len(length: usize) -> c_int {
    c_int::try_from(length).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_those_of_the_header() {
        assert_eq!((size_of::<FDBKey>(), align_of::<FDBKey>()), (12, 4));
        assert_eq!((size_of::<FDBKeyValue>(), align_of::<FDBKeyValue>()), (24, 4));
        assert_eq!(size_of::<FDBKeyRange>(), 24);
        assert_eq!(size_of::<FDBKeySelector>(), 20);
        assert_eq!(size_of::<FDBGetRangeReqAndResult>(), 56);
        assert_eq!(size_of::<FDBMappedKeyValue>(), 112);
        assert_eq!(size_of::<FDBGranuleSummary>(), 56);
    }

    #[test]
    fn a_null_pointer_is_no_bytes() {
        // SAFETY: null pointers and empty lengths are under test; the last slice is valid.
        unsafe {
            assert_eq!(bytes(std::ptr::null(), 5), b"");
            assert_eq!(bytes(b"ab".as_ptr(), -1), b"");
            assert_eq!(bytes(b"ab".as_ptr(), 2), b"ab");
            assert_eq!(option_value(std::ptr::null(), 0), None);
            assert_eq!(option_value(b"".as_ptr(), 0), Some(&b""[..]));
        }
    }
}
