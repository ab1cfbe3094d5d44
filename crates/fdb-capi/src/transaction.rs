//! `FDBTransaction`: the calls that change, commit or end a transaction. [`crate::reads`] has the reads.

use std::ffi::c_int;
use std::sync::Arc;

use fdb_embedded::{CallKind, Completion, Delivery, Engine, Error, Result, Transaction};

use crate::defaults::Defaults;
use crate::delivery::answer_at;
use crate::error::code;
use crate::future::FDBFuture;
use crate::outcome::Outcome;
use crate::types::{bytes, fdb_error_t, option_value};

/// `FDBTransaction` of the C API.
pub struct FDBTransaction {
    transaction: Transaction,
    /// For the watches, which outlive the transaction.
    engine: Engine,
    defaults: Arc<Defaults>,
    /// The error of every call on an unusable transaction.
    refusal: Option<Error>,
}

impl FDBTransaction {
    /// Creates a transaction, owned by the C API's caller: its pointer is an `Arc`.
    pub(crate) fn into_raw(engine: &Engine, defaults: &Arc<Defaults>, refusal: Option<Error>) -> *mut FDBTransaction {
        let transaction = engine.transaction();
        defaults.apply(&transaction);
        let defaults = Arc::clone(defaults);
        Arc::into_raw(Arc::new(FDBTransaction { transaction, engine: engine.clone(), defaults, refusal })).cast_mut()
    }

    /// Returns the engine's transaction, or the error that replaces it.
    pub(crate) fn usable(&self) -> Result<&Transaction> {
        self.refusal.map_or(Ok(&self.transaction), Err)
    }

    /// Returns the future of a read that the engine answers before the call returns; see
    /// [`Transaction::next_delivery`].
    pub(crate) fn answer<T>(
        &self,
        kind: CallKind,
        ask: impl FnOnce(&Transaction) -> Result<T>,
        ok: impl FnOnce(T) -> Outcome,
    ) -> *mut FDBFuture {
        self.deliver(kind, Outcome::of(self.usable().and_then(ask), ok))
    }

    /// As [`FDBTransaction::answer`], also for a transaction whose data is unusable.
    pub(crate) fn answer_regardless<T>(
        &self,
        kind: CallKind,
        ask: impl FnOnce(&Transaction) -> Result<T>,
        ok: impl FnOnce(T) -> Outcome,
    ) -> *mut FDBFuture {
        self.deliver(kind, Outcome::of(ask(&self.transaction), ok))
    }

    fn deliver(&self, kind: CallKind, outcome: Outcome) -> *mut FDBFuture {
        let kind = match &outcome {
            Outcome::MappedKeyValues(answer) => CallKind::Mapped(answer.records()),
            _ => kind,
        };
        match self.transaction.next_delivery(kind, || outcome.bytes()) {
            Delivery::AtOnce => FDBFuture::ready(outcome),
            late => self.answer_later(outcome, late),
        }
    }

    #[cold]
    fn answer_later(&self, outcome: Outcome, delivery: Delivery) -> *mut FDBFuture {
        let future = FDBFuture::with_answer(outcome);
        let withheld = self.transaction.withhold(FDBFuture::release(&future));
        match delivery {
            Delivery::After(delay) => withheld.deliver_after(delay),
            Delivery::Simulated(due) => answer_at(withheld, due),
            _ => future.attach_withheld(withheld),
        }
        FDBFuture::into_raw(future)
    }

    fn change(&self, change: impl FnOnce(&Transaction)) {
        if let Ok(transaction) = self.usable() {
            change(transaction);
        }
    }
}

/// Destroys a transaction. A commit in flight still completes, and so does its future. Null is allowed.
///
/// # Safety
/// `tr` is a transaction of this library, and is not used afterwards.
pub unsafe extern "C" fn fdb_transaction_destroy(tr: *mut FDBTransaction) {
    if !tr.is_null() {
        // SAFETY: by contract `tr` is the `Arc` that was returned, and is destroyed once.
        drop(unsafe { Arc::from_raw(tr.cast_const()) });
    }
}

/// Cancels a transaction: it answers 1025 until it is reset.
///
/// # Safety
/// `tr` is a live transaction of this library, and each pointer to bytes is readable for the length beside it; the
/// same holds for every function of this module.
pub unsafe extern "C" fn fdb_transaction_cancel(tr: *mut FDBTransaction) {
    // SAFETY: by contract `tr` is alive.
    unsafe { &*tr }.transaction.cancel();
}

/// Resets a transaction to the current defaults of its database.
///
/// # Safety
/// As [`fdb_transaction_cancel`].
pub unsafe extern "C" fn fdb_transaction_reset(tr: *mut FDBTransaction) {
    // SAFETY: by contract `tr` is alive.
    let tr = unsafe { &*tr };
    tr.transaction.reset();
    tr.defaults.apply(&tr.transaction);
}

/// Sets a transaction option by its FDBTransactionOption number. 2007 for an unknown number; the next read reports an
/// invalid value.
///
/// # Safety
/// As [`fdb_transaction_cancel`].
pub unsafe extern "C" fn fdb_transaction_set_option(
    tr: *mut FDBTransaction,
    option: c_int,
    value: *const u8,
    value_length: c_int,
) -> fdb_error_t {
    let Ok(option) = u32::try_from(option) else { return Error::INVALID_OPTION.0 };
    // SAFETY: by contract `tr` is alive and the value has its length.
    let (tr, value) = unsafe { (&*tr, option_value(value, value_length)) };
    code(tr.transaction.set_option(option, value))
}

/// Sets the read version.
///
/// # Safety
/// As [`fdb_transaction_cancel`].
pub unsafe extern "C" fn fdb_transaction_set_read_version(tr: *mut FDBTransaction, version: i64) {
    // SAFETY: by contract `tr` is alive.
    unsafe { &*tr }.change(|tr| tr.set_read_version(version));
}

/// Sets a key. The next read reports an error.
///
/// # Safety
/// As [`fdb_transaction_cancel`].
pub unsafe extern "C" fn fdb_transaction_set(
    tr: *mut FDBTransaction,
    key_name: *const u8,
    key_name_length: c_int,
    value: *const u8,
    value_length: c_int,
) {
    // SAFETY: by contract `tr` is alive and the bytes have their lengths.
    let (tr, key, value) = unsafe { (&*tr, bytes(key_name, key_name_length), bytes(value, value_length)) };
    tr.change(|tr| tr.set(key, value));
}

/// Applies an atomic operation by its FDBMutationType number. The next read reports an error.
///
/// # Safety
/// As [`fdb_transaction_cancel`].
pub unsafe extern "C" fn fdb_transaction_atomic_op(
    tr: *mut FDBTransaction,
    key_name: *const u8,
    key_name_length: c_int,
    param: *const u8,
    param_length: c_int,
    operation_type: c_int,
) {
    // SAFETY: by contract `tr` is alive and the bytes have their lengths.
    let (tr, key, operand) = unsafe { (&*tr, bytes(key_name, key_name_length), bytes(param, param_length)) };
    tr.change(|tr| tr.atomic_op(key, operand, operation_type));
}

/// Removes a key.
///
/// # Safety
/// As [`fdb_transaction_cancel`].
pub unsafe extern "C" fn fdb_transaction_clear(tr: *mut FDBTransaction, key_name: *const u8, key_name_length: c_int) {
    // SAFETY: by contract `tr` is alive and the bytes have their length.
    let (tr, key) = unsafe { (&*tr, bytes(key_name, key_name_length)) };
    tr.change(|tr| tr.clear(key));
}

/// Removes the keys of a range, its end excluded.
///
/// # Safety
/// As [`fdb_transaction_cancel`].
pub unsafe extern "C" fn fdb_transaction_clear_range(
    tr: *mut FDBTransaction,
    begin_key_name: *const u8,
    begin_key_name_length: c_int,
    end_key_name: *const u8,
    end_key_name_length: c_int,
) {
    // SAFETY: by contract `tr` is alive and the bytes have their lengths.
    let (tr, begin, end) =
        unsafe { (&*tr, bytes(begin_key_name, begin_key_name_length), bytes(end_key_name, end_key_name_length)) };
    tr.change(|tr| tr.clear_range(begin, end));
}

/// Adds a range to the read (0) or write (1) conflicts. 2005 if begin is above end, 2000 for another type.
///
/// # Safety
/// As [`fdb_transaction_cancel`].
pub unsafe extern "C" fn fdb_transaction_add_conflict_range(
    tr: *mut FDBTransaction,
    begin_key_name: *const u8,
    begin_key_name_length: c_int,
    end_key_name: *const u8,
    end_key_name_length: c_int,
    conflict_type: c_int,
) -> fdb_error_t {
    // SAFETY: by contract `tr` is alive and the bytes have their lengths.
    let (tr, begin, end) =
        unsafe { (&*tr, bytes(begin_key_name, begin_key_name_length), bytes(end_key_name, end_key_name_length)) };
    let is_write = match conflict_type {
        _ if begin > end => return Error::INVERTED_RANGE.0,
        0 => false,
        1 => true,
        _ => return Error::CLIENT_INVALID_OPERATION.0,
    };
    code(tr.usable().and_then(|tr| tr.add_conflict_range(begin, end, is_write)))
}

/// Returns a future that is ready when the key has another value than this transaction saw, after its commit.
/// Cancelling or destroying the future ends the watch.
///
/// # Safety
/// As [`fdb_transaction_cancel`].
pub unsafe extern "C" fn fdb_transaction_watch(
    tr: *mut FDBTransaction,
    key_name: *const u8,
    key_name_length: c_int,
) -> *mut FDBFuture {
    // SAFETY: by contract `tr` is alive and the bytes have their length.
    let (tr, key) = unsafe { (&*tr, bytes(key_name, key_name_length)) };
    match tr.usable() {
        Ok(transaction) => {
            let future = FDBFuture::pending();
            if let Some(id) = transaction.watch(key, FDBFuture::done(&future, |()| Outcome::Void)) {
                future.attach_watch(&tr.engine, id);
            }
            FDBFuture::into_raw(future)
        }
        Err(error) => FDBFuture::failed(error),
    }
}

/// Commits.
///
/// # Safety
/// As [`fdb_transaction_cancel`].
pub unsafe extern "C" fn fdb_transaction_commit(tr: *mut FDBTransaction) -> *mut FDBFuture {
    // SAFETY: by contract `tr` is alive.
    match unsafe { &*tr }.usable() {
        Ok(transaction) => {
            let future = FDBFuture::pending();
            transaction.commit(FDBFuture::done(&future, |()| Outcome::Void));
            FDBFuture::into_raw(future)
        }
        Err(error) => FDBFuture::failed(error),
    }
}

/// Returns the version of the commit; -1 if nothing was written.
///
/// # Safety
/// As [`fdb_transaction_cancel`]; `out_version` is writable.
pub unsafe extern "C" fn fdb_transaction_get_committed_version(
    tr: *mut FDBTransaction,
    out_version: *mut i64,
) -> fdb_error_t {
    // SAFETY: by contract `tr` is alive.
    match unsafe { &*tr }.usable().and_then(Transaction::committed_version) {
        Ok(version) => {
            // SAFETY: by contract it is writable.
            unsafe { *out_version = version };
            0
        }
        Err(error) => error.0,
    }
}

/// Returns the ten bytes of the coming commit's versionstamp, as a key.
///
/// # Safety
/// As [`fdb_transaction_cancel`].
pub unsafe extern "C" fn fdb_transaction_get_versionstamp(tr: *mut FDBTransaction) -> *mut FDBFuture {
    // SAFETY: by contract `tr` is alive.
    match unsafe { &*tr }.usable() {
        Ok(transaction) => {
            let future = FDBFuture::pending();
            transaction.get_versionstamp(FDBFuture::done(&future, |stamp: [u8; 10]| Outcome::Key(stamp.to_vec())));
            FDBFuture::into_raw(future)
        }
        Err(error) => FDBFuture::failed(error),
    }
}

/// Prepares a retry after an error: the future is ready when the retry may begin, or fails if the error is not
/// retryable.
///
/// # Safety
/// As [`fdb_transaction_cancel`].
pub unsafe extern "C" fn fdb_transaction_on_error(tr: *mut FDBTransaction, error: fdb_error_t) -> *mut FDBFuture {
    let future = FDBFuture::pending();
    let done = FDBFuture::done(&future, |()| Outcome::Void);
    // SAFETY: by contract `tr` is an `Arc` that the caller owns, so taking and dropping a further reference is sound.
    let tr = unsafe {
        Arc::increment_strong_count(tr);
        Arc::from_raw(tr.cast_const())
    };
    let done: Completion<()> = if tr.defaults.have_effect_after_error() {
        let tr = Arc::clone(&tr);
        Box::new(move |result| {
            if result.is_ok() {
                tr.defaults.apply_after_error(&tr.transaction);
            }
            done(result);
        })
    } else {
        done
    };
    tr.transaction.on_error(error, done);
    FDBFuture::into_raw(future)
}
