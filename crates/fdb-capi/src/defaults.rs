//! Database options that set a default for the transactions of one `FDBDatabase`.
//!
//! All databases of a directory share the engine, so the defaults are kept beside it and applied to each transaction
//! when it is created or reset.

use std::sync::{Mutex, MutexGuard};

use fdb_embedded::{Error, Result, Transaction};

/// The defaults of a database's transactions: transaction options and values, in the order in which they were set.
#[derive(Debug, Default)]
pub(crate) struct Defaults(Mutex<Vec<(u32, Option<Vec<u8>>)>>);

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

/// Returns whether `fdb_transaction_on_error` keeps the option by itself.
fn is_persistent(option: u32) -> bool {
    matches!(option, 500..=502)
}

impl Defaults {
    fn lock(&self) -> MutexGuard<'_, Vec<(u32, Option<Vec<u8>>)>> {
        self.0.lock().unwrap_or_else(|broken| broken.into_inner())
    }

    /// Sets a default by its database option: 2007 if it presets none, 2006 for a value of the wrong shape.
    pub(crate) fn set(&self, database_option: u32, value: Option<&[u8]>) -> Result<()> {
        let option = transaction_option(database_option).ok_or(Error::INVALID_OPTION)?;
        fdb_embedded::check_transaction_option(option, value)?;
        let mut options = self.lock();
        // Two options count up and down: only the last one counts, and the first of them is the default.
        let is_replaced = |other: u32| other == option || matches!((other, option), (600 | 601, 600 | 601));
        options.retain(|(other, _)| !is_replaced(*other));
        if option != 600 {
            options.push((option, value.map(<[u8]>::to_vec)));
        }
        Ok(())
    }

    /// Applies the defaults to a created or reset transaction.
    pub(crate) fn apply(&self, transaction: &Transaction) {
        self.apply_if(transaction, |_| true);
    }

    /// Applies the defaults after `on_error`, which keeps the persistent ones as the program set them.
    pub(crate) fn apply_after_error(&self, transaction: &Transaction) {
        self.apply_if(transaction, |option| !is_persistent(option));
    }

    /// Returns whether [`Defaults::apply_after_error`] has any effect.
    pub(crate) fn have_effect_after_error(&self) -> bool {
        self.lock().iter().any(|(option, _)| !is_persistent(*option))
    }

    fn apply_if(&self, transaction: &Transaction, is_due: impl Fn(u32) -> bool) {
        for (option, value) in self.lock().iter().filter(|(option, _)| is_due(*option)) {
            // The value was checked when it was set.
            let _ = transaction.set_option(*option, value.as_deref());
        }
    }
}
