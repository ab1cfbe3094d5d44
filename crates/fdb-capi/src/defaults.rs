//! Database options that set a default for the transactions of one `FDBDatabase`.
//!
//! The engine is shared by all databases of a directory, so these are kept beside it and given to each transaction when
//! it begins anew.

use std::sync::{Mutex, MutexGuard};

use fdb_embedded::{Error, Result, Transaction};

/// What the transactions of a database begin with: transaction options and their values, in the order they were set.
#[derive(Debug, Default)]
pub(crate) struct Defaults(Mutex<Vec<(u32, Option<Vec<u8>>)>>);

/// The transaction option that a database option stands for.
fn transaction_option(database_option: u32) -> Option<u32> {
    Some(match database_option {
        405 | 500..=503 | 701 => database_option,
        26 => 600,
        27 => 601,
        504 => 20,
        505 => 23,
        506 => 505,
        700 => 1100,
        702 => 712,
        _ => return None,
    })
}

/// Whether the option outlives `fdb_transaction_on_error` by itself.
fn is_persistent(option: u32) -> bool {
    matches!(option, 500..=502)
}

impl Defaults {
    fn lock(&self) -> MutexGuard<'_, Vec<(u32, Option<Vec<u8>>)>> {
        self.0.lock().unwrap_or_else(|broken| broken.into_inner())
    }

    /// Sets a default by its database option: 2007 where the option sets none, 2006 for a value of the wrong shape.
    pub(crate) fn set(&self, database_option: u32, value: Option<&[u8]>) -> Result<()> {
        let option = transaction_option(database_option).ok_or(Error::INVALID_OPTION)?;
        fdb_embedded::check_transaction_option(option, value)?;
        let mut options = self.lock();
        // Of the two that count up and down, the last one alone holds, and the first of them is what holds without one.
        let is_replaced = |other: u32| other == option || matches!((other, option), (600 | 601, 600 | 601));
        options.retain(|(other, _)| !is_replaced(*other));
        if option != 600 {
            options.push((option, value.map(<[u8]>::to_vec)));
        }
        Ok(())
    }

    /// Gives the defaults to a transaction that was made or reset.
    pub(crate) fn apply(&self, transaction: &Transaction) {
        self.apply_if(transaction, |_| true);
    }

    /// Gives the defaults to a transaction after `on_error`, which keeps the persistent ones as the program set them.
    pub(crate) fn apply_after_error(&self, transaction: &Transaction) {
        self.apply_if(transaction, |option| !is_persistent(option));
    }

    /// Whether [`Defaults::apply_after_error`] has anything to do.
    pub(crate) fn matter_after_error(&self) -> bool {
        self.lock().iter().any(|(option, _)| !is_persistent(*option))
    }

    fn apply_if(&self, transaction: &Transaction, is_due: impl Fn(u32) -> bool) {
        for (option, value) in self.lock().iter().filter(|(option, _)| is_due(*option)) {
            // The value was tried when it was set.
            let _ = transaction.set_option(*option, value.as_deref());
        }
    }
}
