//! Finds the roots in a store.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use foundationdb::Database as Fdb;
use prost::Message;

use crate::error::Result;
use crate::store::instruments::Instruments;
use crate::store::keys::{KeyRange, RootKeys};
use crate::store::proto;
use crate::store::root::check_store;
use crate::store::transaction::{self, Attempt, Operation, Transaction};

/// Returns the roots of all layers in a store, in bytewise order.
///
/// Reads one key for each root, and one for each key of other programs that looks like a root.
///
/// # Errors
/// [`crate::Error::FormatTooNew`] or [`crate::Error::FormatTooOld`] for a root that this program does not know,
/// [`crate::Error::Storage`].
#[boxed]
pub async fn roots(db: &Fdb) -> Result<Vec<Vec<u8>>> {
    let metrics = Arc::new(Instruments::default());
    let mut roots = Vec::new();
    let mut rest = RootKeys::every_root();
    while let Some((key, instance)) = transaction::read(db, &metrics, &mut FirstRoot { range: &rest }).await? {
        rest.begin = match instance {
            // Behind all keys of this root. The next root may begin with this one.
            Some((root, is_ours)) => {
                let next = RootKeys::new(&root).end();
                roots.extend(is_ours.then_some(root));
                next
            }
            None => [key.as_slice(), &[0]].concat(),
        };
    }
    Ok(roots)
}

struct FirstRoot<'a> {
    range: &'a KeyRange,
}

impl Operation for FirstRoot<'_> {
    /// A key, and its root if it has that form, with whether the root is a layer's.
    type Output = Option<(Vec<u8>, Option<(Vec<u8>, bool)>)>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let first = trx.range(self.range, true).first(1).await?;
        let Some(key) = first.first().map(|row| row.key().to_vec()) else { return Ok(None) };
        let Ok(root) = RootKeys::root_of(&key) else { return Ok(Some((key, None))) };
        let bytes = trx.get(&RootKeys::new(&root).instance(), true).await?;
        let record = bytes.and_then(|bytes| proto::Instance::decode(&*bytes).ok());
        // In a shared store other programs may have keys of this form.
        let record = record.filter(|record| record.uuid.len() == 16 && record.format_version > 0);
        if let Some(record) = &record {
            check_store(record)?;
        }
        Ok(Some((key, Some((root, record.is_some())))))
    }
}
