//! Tenants, answered as a cluster answers that does not have them enabled: a tenant opens, and is not found when it is
//! used. To make one fails with 2136 (`\xff\xff/management/tenant/map/`, in the engine).

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

/// Opens a tenant, which is never looked for before it is used.
///
/// # Safety
/// `d` is a database of this library; `out_tenant` may be written to. The name is not looked at.
pub unsafe extern "C" fn fdb_database_open_tenant(
    d: *mut FDBDatabase,
    _tenant_name: *const u8,
    _tenant_name_length: c_int,
    out_tenant: *mut *mut FDBTenant,
) -> fdb_error_t {
    // SAFETY: by contract `d` is alive.
    let database = unsafe { &*d };
    let tenant = FDBTenant { engine: database.engine().clone(), defaults: Arc::clone(database.defaults()) };
    // SAFETY: by contract it may be written to.
    unsafe { *out_tenant = Box::into_raw(Box::new(tenant)) };
    0
}

/// A transaction in a tenant: what it is asked answers 2131 (no such tenant), but for its read version and its size.
///
/// # Safety
/// `tenant` is a tenant of this library; `out_transaction` may be written to.
pub unsafe extern "C" fn fdb_tenant_create_transaction(
    tenant: *mut FDBTenant,
    out_transaction: *mut *mut FDBTransaction,
) -> fdb_error_t {
    // SAFETY: by contract `tenant` is alive.
    let tenant = unsafe { &*tenant };
    let transaction = FDBTransaction::into_raw(&tenant.engine, &tenant.defaults, Some(TENANT_NOT_FOUND));
    // SAFETY: by contract it may be written to.
    unsafe { *out_transaction = transaction };
    0
}

/// Answers 2131: there is no such tenant.
///
/// # Safety
/// As every function of the C API; the argument is not looked at.
pub unsafe extern "C" fn fdb_tenant_get_id(_tenant: *mut FDBTenant) -> *mut FDBFuture {
    FDBFuture::failed(TENANT_NOT_FOUND)
}

/// Gives a tenant up. Its transactions go on. Null is let through.
///
/// # Safety
/// `tenant` is a tenant of this library, and is not used afterwards.
pub unsafe extern "C" fn fdb_tenant_destroy(tenant: *mut FDBTenant) {
    if !tenant.is_null() {
        // SAFETY: by contract `tenant` is the box that was handed out, given back here once.
        drop(unsafe { Box::from_raw(tenant) });
    }
}
