//! Tenants, as on a cluster that has them disabled: a tenant opens, and its use fails with 2131. Creating one fails
//! with 2136 (`\xff\xff/management/tenant/map/`, in the engine).

use std::ffi::c_int;
use std::sync::Arc;

use fdb_embedded::Engine;

use crate::database::FDBDatabase;
use crate::defaults::Defaults;
use crate::error::TENANT_NOT_FOUND;
use crate::future::FDBFuture;
use crate::transaction::FDBTransaction;
use crate::types::fdb_error_t;

/// `FDBTenant` of the C API.
#[derive(Debug)]
pub struct FDBTenant {
    engine: Engine,
    defaults: Arc<Defaults>,
}

/// Opens a tenant; its existence is checked at its first use.
///
/// # Safety
/// `d` is a database of this library; `out_tenant` is writable. The name is ignored.
pub unsafe extern "C" fn fdb_database_open_tenant(
    d: *mut FDBDatabase,
    _tenant_name: *const u8,
    _tenant_name_length: c_int,
    out_tenant: *mut *mut FDBTenant,
) -> fdb_error_t {
    // SAFETY: by contract `d` is alive.
    let database = unsafe { &*d };
    let tenant = FDBTenant { engine: database.engine().clone(), defaults: Arc::clone(database.defaults()) };
    // SAFETY: by contract it is writable.
    unsafe { *out_tenant = Box::into_raw(Box::new(tenant)) };
    0
}

/// Creates a transaction in a tenant: all reads fail with 2131 (tenant not found), except of its read version and its
/// size.
///
/// # Safety
/// `tenant` is a tenant of this library; `out_transaction` is writable.
pub unsafe extern "C" fn fdb_tenant_create_transaction(
    tenant: *mut FDBTenant,
    out_transaction: *mut *mut FDBTransaction,
) -> fdb_error_t {
    // SAFETY: by contract `tenant` is alive.
    let tenant = unsafe { &*tenant };
    let transaction = FDBTransaction::into_raw(&tenant.engine, &tenant.defaults, Some(TENANT_NOT_FOUND));
    // SAFETY: by contract it is writable.
    unsafe { *out_transaction = transaction };
    0
}

/// Returns 2131: the tenant does not exist.
///
/// # Safety
/// As every function of the C API; the argument is ignored.
pub unsafe extern "C" fn fdb_tenant_get_id(_tenant: *mut FDBTenant) -> *mut FDBFuture {
    FDBFuture::failed(TENANT_NOT_FOUND)
}

/// Destroys a tenant. Its transactions stay valid. Null is allowed.
///
/// # Safety
/// `tenant` is a tenant of this library, and is not used afterwards.
pub unsafe extern "C" fn fdb_tenant_destroy(tenant: *mut FDBTenant) {
    if !tenant.is_null() {
        // SAFETY: by contract `tenant` is the box that was returned, and is destroyed once.
        drop(unsafe { Box::from_raw(tenant) });
    }
}
