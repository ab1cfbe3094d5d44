//! The function pointers of an installed library.

use std::ffi::{c_char, c_int, c_uint, c_void};

use fdb_capi::{
    FDBCallback, FDBDatabase, FDBFuture, FDBKey, FDBKeyValue, FDBMappedKeyValue, FDBTenant, FDBTransaction, fdb_bool_t,
    fdb_error_t,
};

use crate::declared::each_function;

macro_rules! table {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)?;)*) => {
        pub(crate) struct Table {
            $(pub(crate) $name: unsafe extern "C" fn($($type),*) $(-> $ret)?,)*
        }

        impl Table {
            /// Looks up every function; the error is the name of the first missing one.
            pub(crate) fn load(library: &libloading::Library) -> Result<Table, &'static str> {
                $(
                    // SAFETY: the type is the function's in fdb_c.h of 7.3. The library is never unloaded.
                    let $name = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                    let $name = *$name.map_err(|_| stringify!($name))?;
                )*
                Ok(Table { $($name,)* })
            }
        }
    };
}

each_function!(table);
