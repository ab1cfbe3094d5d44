//! Finds the roots in a store.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_store::error::{Error, Result};
use flatbed_store::instruments::Instruments;
use flatbed_store::keys::{KeyRange, RootKeys};
use flatbed_store::proto;
use flatbed_store::root::check_store;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use foundationdb::Database as Fdb;
use prost::Message;

/// The roots of all layers in a store, in bytewise order.
#[derive(Debug, Default)]
pub struct Roots {
    /// The roots that this program reads.
    pub known: Vec<Vec<u8>>,
    /// The roots of an older format, each with its [`Error::FormatTooOld`]. They do not keep the others from use: no
    /// program of this format writes to them, and an older one cannot use the others.
    pub too_old: Vec<(Vec<u8>, Error)>,
}

/// Returns the roots of all layers in a store.
///
/// Reads one key for each root, and one for each key of other programs that looks like a root.
///
/// # Errors
/// [`Error::FormatTooNew`] or [`Error::FeatureUnknown`] for a root of a newer program, [`Error::Storage`].
#[boxed]
pub async fn roots(db: &Fdb) -> Result<Roots> {
    let metrics = Arc::new(Instruments::default());
    let mut roots = Roots::default();
    let mut rest = RootKeys::every_root();
    while let Some((key, instance)) = transaction::read(db, &metrics, &mut FirstRoot { range: &rest }).await? {
        rest.begin = match instance {
            // Behind all keys of this root. The next root may begin with this one.
            Some((root, kind)) => {
                let next = RootKeys::new(&root).end();
                match kind {
                    RootKind::Foreign => {}
                    RootKind::Known => roots.known.push(root),
                    RootKind::TooOld(error) => roots.too_old.push((root, error)),
                }
                next
            }
            None => [key.as_slice(), &[0]].concat(),
        };
    }
    Ok(roots)
}

enum RootKind {
    /// The key belongs to another program.
    Foreign,
    Known,
    TooOld(Error),
}

struct FirstRoot<'a> {
    range: &'a KeyRange,
}

impl Operation for FirstRoot<'_> {
    /// A key, and its root if it has that form.
    type Output = Option<(Vec<u8>, Option<(Vec<u8>, RootKind)>)>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let first = trx.range(self.range, true).first(1).await?;
        let Some(key) = first.first().map(|row| row.key().to_vec()) else { return Ok(None) };
        let Ok(root) = RootKeys::root_of(&key) else { return Ok(Some((key, None))) };
        let bytes = trx.get(&RootKeys::new(&root).instance(), true).await?;
        let record = bytes.and_then(|bytes| proto::Instance::decode(&*bytes).ok());
        // In a shared store other programs may have keys of this form.
        let record = record.filter(|record| record.uuid.len() == 16 && record.format_version > 0);
        let kind = match record.as_ref().map(check_store) {
            None => RootKind::Foreign,
            Some(Ok(())) => RootKind::Known,
            Some(Err(error @ Error::FormatTooOld { .. })) => RootKind::TooOld(error),
            Some(Err(error)) => return Err(error),
        };
        Ok(Some((key, Some((root, kind)))))
    }
}
