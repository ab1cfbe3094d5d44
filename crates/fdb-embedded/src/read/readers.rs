//! The LMDB read transactions of one state of the database.
//!
//! LMDB lets one thread at a time use a read transaction. A state begins with one; a thread that finds it in use opens
//! another one, which is of the same state for as long as that is LMDB's newest. So as many threads as there are stripes
//! read one state without waiting for each other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use heed::{AnyTls, Env, RoTxn, WithoutTls};

use crate::base::error::{Error, Result};
use crate::base::lock::lock;
use crate::base::stripe::{Apart, STRIPES, own_stripe};

/// Held shared where a read transaction is opened, and alone where LMDB's map is replaced.
pub(crate) type MapGate = Arc<RwLock<()>>;

enum Slot {
    /// Not tried yet.
    Empty,
    Open(RoTxn<'static, WithoutTls>),
    /// LMDB's newest state was another one already.
    TooLate,
}

/// See the module.
pub(crate) struct Readers {
    env: Env<WithoutTls>,
    gate: MapGate,
    /// LMDB's number of the state.
    id: usize,
    is_closed: AtomicBool,
    /// The first is open unless all are closed.
    slots: [Apart<Mutex<Slot>>; STRIPES],
}

impl Readers {
    /// `first` is a transaction on the state.
    pub(crate) fn new(env: Env<WithoutTls>, gate: MapGate, first: RoTxn<'static, WithoutTls>) -> Readers {
        let id = first.id();
        let slots = std::array::from_fn(|_| Apart(Mutex::new(Slot::Empty)));
        *lock(&slots[0].0) = Slot::Open(first);
        Readers { env, gate, id, is_closed: AtomicBool::new(false), slots }
    }

    /// Calls `read` with a transaction on the state; 1007 where it was closed.
    pub(crate) fn with<T>(&self, read: impl FnOnce(&RoTxn<'_, AnyTls>) -> Result<T>) -> Result<T> {
        // A thread's own slot first, where it met others before: the lock of one that all use is slow though it is free.
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
            // Without a place among LMDB's readers threads wait for each other.
            Ok(_) | Err(_) => Slot::TooLate,
        }
    }

    /// Ends all transactions, once their reads are through.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        for slot in &self.slots {
            *lock(&slot.0) = Slot::TooLate;
        }
    }
}
