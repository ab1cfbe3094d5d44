//! The C API's calls on futures.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use fdb_embedded::Error;

use crate::delivery::answer_soon;
use crate::future::{Callback, FDBCallback, FDBFuture};
use crate::outcome::Outcome;
use crate::types::{FDBKey, FDBKeyValue, FDBMappedKeyValue, c_len, fdb_bool_t, fdb_error_t};

/// Cancels a pending future: it completes with 1101, and its watch ends. A ready future stays as it is.
///
/// # Safety
/// `f` is a live future of this library; the same holds for every function of this module.
pub unsafe extern "C" fn fdb_future_cancel(f: *mut FDBFuture) {
    // A callback may destroy the future.
    // SAFETY: by contract `f` is an `Arc` that the caller owns, so taking and dropping a further reference is sound.
    let future = unsafe {
        Arc::increment_strong_count(f);
        Arc::from_raw(f.cast_const())
    };
    FDBFuture::cancel(&future);
}

/// Releases a reference from a getter. After one release for each getter call the memory of the result is freed, and
/// the future answers 1102.
///
/// # Safety
/// As [`fdb_future_cancel`]; the pointers from one getter call are no longer used.
pub unsafe extern "C" fn fdb_future_release_memory(f: *mut FDBFuture) {
    // SAFETY: by contract `f` is alive.
    unsafe { &*f }.release_memory();
}

/// Cancels and destroys a future, with all memory from its getters.
///
/// # Safety
/// As [`fdb_future_cancel`]; `f` is not used afterwards. Null is allowed.
pub unsafe extern "C" fn fdb_future_destroy(f: *mut FDBFuture) {
    if f.is_null() {
        return;
    }
    // SAFETY: by contract `f` is the `Arc` that was returned, and is destroyed once.
    let future = unsafe { Arc::from_raw(f.cast_const()) };
    FDBFuture::cancel(&future);
}

/// Waits until a future is ready. 2026 on the network thread for a pending future, because the wait would never end.
///
/// # Safety
/// As [`fdb_future_cancel`].
pub unsafe extern "C" fn fdb_future_block_until_ready(f: *mut FDBFuture) -> fdb_error_t {
    // SAFETY: by contract `f` is alive.
    unsafe { &*f }.block_until_ready().map_or_else(|error| error.0, |()| 0)
}

/// Returns whether a future is ready.
///
/// # Safety
/// As [`fdb_future_cancel`].
pub unsafe extern "C" fn fdb_future_is_ready(f: *mut FDBFuture) -> fdb_bool_t {
    // SAFETY: by contract `f` is alive.
    fdb_bool_t::from(unsafe { &*f }.poll())
}

/// Registers a callback that runs once when the future is ready, at once if it is. Several may be set. 2000 for a null
/// callback.
///
/// # Safety
/// As [`fdb_future_cancel`]; the callback may be called from any thread with its parameter.
pub unsafe extern "C" fn fdb_future_set_callback(
    f: *mut FDBFuture,
    callback: FDBCallback,
    callback_parameter: *mut c_void,
) -> fdb_error_t {
    let Some(function) = callback else { return Error::CLIENT_INVALID_OPERATION.0 };
    // SAFETY: by contract `f` is alive.
    let future = unsafe { &*f };
    if !future.is_ready() {
        let mut waiting = future.lock();
        // It may have completed between the poll and the lock.
        if !future.is_ready() {
            waiting.callbacks.push(Callback { function, parameter: callback_parameter });
            let withheld = waiting.take_withheld();
            drop(waiting);
            // From here on the callback may have destroyed the future.
            withheld.into_iter().for_each(answer_soon);
            return 0;
        }
    }
    // SAFETY: by contract the callback takes this future and its parameter. It may destroy the future, which is not
    // used afterwards.
    unsafe { function(f, callback_parameter) };
    0
}

/// Returns the error of a future; 0 for success, 2002 before it is ready.
///
/// # Safety
/// As [`fdb_future_cancel`].
pub unsafe extern "C" fn fdb_future_get_error(f: *mut FDBFuture) -> fdb_error_t {
    // SAFETY: by contract `f` is alive.
    unsafe { &*f }.code()
}

macro_rules! getters {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($out:ident: $type:ty),*) { $($pattern:pat => { $($target:ident = $answer:expr),* })* }
    )*) => {
        $(
            $(#[$doc])*
            ///
            /// Returns the future's own error, 2002 before it is ready, 2000 if its result has another type.
            ///
            /// # Safety
            /// As [`fdb_future_cancel`]; the other pointers are writable.
            pub unsafe extern "C" fn $name(f: *mut FDBFuture $(, $out: *mut $type)*) -> fdb_error_t {
                // SAFETY: by contract `f` is alive.
                let future = unsafe { &*f };
                match future.hand_out() {
                    $(
                        Ok($pattern) => {
                            // SAFETY: by contract the out-parameters are writable.
                            unsafe { $(*$target = $answer;)* }
                            0
                        }
                    )*
                    Ok(_) => {
                        future.take_back();
                        Error::CLIENT_INVALID_OPERATION.0
                    }
                    Err(code) => code,
                }
            }
        )*
    };
}

getters! {
    /// Returns a signed integer.
    fn fdb_future_get_int64(out: i64) { Outcome::Int64(number) => { out = *number } }

    /// Returns an unsigned integer.
    fn fdb_future_get_uint64(out: u64) { Outcome::UInt64(number) => { out = *number } }

    /// Returns a floating-point number.
    fn fdb_future_get_double(out: f64) { Outcome::Double(number) => { out = *number } }

    /// Returns a key, valid until the future is destroyed.
    fn fdb_future_get_key(out_key: *const u8, out_key_length: c_int) {
        Outcome::Key(key) => { out_key = key.as_ptr(), out_key_length = c_len(key.len()) }
    }

    /// Returns whether the key has a value, and the value, valid until the future is destroyed.
    fn fdb_future_get_value(out_present: fdb_bool_t, out_value: *const u8, out_value_length: c_int) {
        Outcome::Value(value) => {
            out_present = fdb_bool_t::from(value.is_some()),
            out_value = value.as_deref().unwrap_or_default().as_ptr(),
            out_value_length = c_len(value.as_deref().unwrap_or_default().len())
        }
    }

    /// Returns the pairs of a range read, valid until the future is destroyed, and whether more may follow.
    fn fdb_future_get_keyvalue_array(out_kv: *const FDBKeyValue, out_count: c_int, out_more: fdb_bool_t) {
        Outcome::KeyValues { array, is_more, .. } => {
            out_kv = array.as_ptr(),
            out_count = c_len(array.len()),
            out_more = fdb_bool_t::from(*is_more)
        }
    }

    /// Returns the pairs of a mapped range with their records, valid until the future is destroyed, and whether more
    /// may follow.
    fn fdb_future_get_mappedkeyvalue_array(out_kv: *const FDBMappedKeyValue, out_count: c_int, out_more: fdb_bool_t) {
        Outcome::MappedKeyValues(mapped) => {
            out_kv = mapped.array.as_ptr(),
            out_count = c_len(mapped.array.len()),
            out_more = fdb_bool_t::from(mapped.is_more)
        }
    }

    /// Returns keys, valid until the future is destroyed.
    fn fdb_future_get_key_array(out_key_array: *const FDBKey, out_count: c_int) {
        Outcome::Keys { array, .. } => { out_key_array = array.as_ptr(), out_count = c_len(array.len()) }
    }

    /// Returns strings, valid until the future is destroyed.
    fn fdb_future_get_string_array(out_strings: *mut *const c_char, out_count: c_int) {
        Outcome::Strings { array, .. } => { out_strings = array.as_ptr().cast_mut(), out_count = c_len(array.len()) }
    }
}
