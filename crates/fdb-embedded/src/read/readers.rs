//! The LMDB read transactions of one state of the database.
//!
//! Only one thread at a time may use an LMDB read transaction. A state begins with one. A thread that finds it in use
//! opens another one, which reads the same state while that is LMDB's newest. So up to [`STRIPES`] threads read one
//! state without waiting for each other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use heed::{AnyTls, Env, RoTxn, WithoutTls};

use crate::base::error::{Error, Result};
use crate::base::lock::lock;
use crate::base::stripe::{CacheAligned, STRIPES, own_stripe};

/// Locked shared while a read transaction is opened, and exclusively while LMDB's map is replaced.
pub(crate) type MapGate = Arc<RwLock<()>>;

enum Slot {
    /// Not tried yet.
    Empty,
    Open(RoTxn<'static, WithoutTls>),
    /// LMDB's newest state had already moved on.
    TooLate,
}

pub(crate) struct Readers {
    env: Env<WithoutTls>,
    gate: MapGate,
    /// LMDB's transaction id of the state.
    id: usize,
    is_closed: AtomicBool,
    /// The first is open unless all are closed.
    slots: [CacheAligned<Mutex<Slot>>; STRIPES],
}

impl Readers {
    /// Creates the readers of a state; `first` is a transaction on it.
    pub(crate) fn new(env: Env<WithoutTls>, gate: MapGate, first: RoTxn<'static, WithoutTls>) -> Readers {
        let id = first.id();
        let slots = std::array::from_fn(|_| CacheAligned(Mutex::new(Slot::Empty)));
        *lock(&slots[0].0) = Slot::Open(first);
        Readers { env, gate, id, is_closed: AtomicBool::new(false), slots }
    }

    /// Calls `read` with a transaction on the state; 1007 if it was closed.
    pub(crate) fn with<T>(&self, read: impl FnOnce(&RoTxn<'_, AnyTls>) -> Result<T>) -> Result<T> {
        // A thread that met others before tries its own slot first: a lock shared by all threads is slow even if it is
        // free.
        if let Some(own) = self.slots.get(own_stripe()).and_then(|slot| slot.0.try_lock().ok())
            && let Slot::Open(txn) = &*own
        {
            return read(txn);
        }
        for slot in &self.slots {
            let Ok(mut slot) = slot.0.try_lock() else { continue };
            if matches!(*slot, Slot::Empty) {
                *slot = self.open();
            }
            if let Slot::Open(txn) = &*slot {
                return read(txn);
            }
        }
        match &*lock(&self.slots[0].0) {
            Slot::Open(txn) => read(txn),
            Slot::Empty | Slot::TooLate => Err(Error::TRANSACTION_TOO_OLD),
        }
    }

    fn open(&self) -> Slot {
        let _shared = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        if self.is_closed.load(Ordering::Acquire) {
            return Slot::TooLate;
        }
        match self.env.clone().static_read_txn() {
            Ok(txn) if txn.id() == self.id => Slot::Open(txn),
            // Without a free slot in LMDB's reader table, threads wait for each other.
            Ok(_) | Err(_) => Slot::TooLate,
        }
    }

    /// Ends all transactions once their reads are done.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        for slot in &self.slots {
            *lock(&slot.0) = Slot::TooLate;
        }
    }
}
