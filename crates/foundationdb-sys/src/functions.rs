//! The functions of the C API; each dispatches to the backend.

use std::ffi::{c_char, c_int, c_uint, c_void};

use fdb_capi::{
    FDBCallback, FDBDatabase, FDBFuture, FDBKey, FDBKeyValue, FDBMappedKeyValue, FDBTenant, FDBTransaction, fdb_bool_t,
    fdb_error_t,
};

use crate::backend::{Active, active};
use crate::declared::each_function;
use crate::embedded;
use crate::exit;

/// Extra work around the calls of some functions.
macro_rules! around {
    (fdb_run_network, $call:expr) => {
        // SAFETY: the network runs, so it may be stopped.
        exit::run_network(|| $call, || unsafe { fdb_stop_network() })
    };
    (fdb_create_database, $call:expr) => {{
        exit::register();
        $call
    }};
    (fdb_database_create_transaction, $call:expr) => {{
        exit::note_transaction();
        $call
    }};
    ($name:ident, $call:expr) => {
        $call
    };
}

macro_rules! functions {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)?;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of FoundationDB's C API.")]
            ///
            /// # Safety
            /// As in FoundationDB's documentation of the C API.
            #[inline]
            #[allow(clippy::too_many_arguments, reason = "as in C")]
            pub unsafe extern "C" fn $name($($arg: $type),*) $(-> $ret)? {
                exit::hold_if_over();
                around!($name, match active() {
                    // SAFETY: the caller keeps the contract of the C API, and the backend does not change.
                    #[allow(unused_unsafe, reason = "some of the engine's functions are safe")]
                    Active::Embedded => unsafe { embedded::$name($($arg),*) },
                    // SAFETY: as above.
                    Active::Library(table) => unsafe { (table.$name)($($arg),*) },
                })
            }
        )*
    };
}

each_function!(functions);
