//! `_all_docs`: the documents that are not deleted, by id.

use flatbed_databases::instance::Instance;
use flatbed_store::error::Result;
use flatbed_store::records::{ById, Info};
use flatbed_store::transaction::{Quiet, Transaction};

use crate::index::maintainers::{Change, IndexContext, IndexMaintainer, PendingWork, PurgedDocument, is_of_document};

/// Maintains the ids of documents that are not deleted.
pub struct AllDocsIndex;

impl IndexMaintainer for AllDocsIndex {
    fn document<'a>(&'a mut self, within: &'a IndexContext<'a>, change: &'a Change<'a>) -> Result<PendingWork<'a>> {
        let IndexContext { trx, instance, .. } = *within;
        let key = instance.keys.all_docs_entry(change.id);
        if change.new.deleted {
            if change.old.is_some_and(|old| !old.deleted) {
                Quiet(trx).clear(&key)?;
            }
            return Ok(None);
        }
        Quiet(trx).set(&key, &change.new.by_id())?;
        Ok(None)
    }

    fn purged<'a>(
        &'a mut self,
        within: &'a IndexContext<'a>,
        purged: &'a PurgedDocument<'a>,
    ) -> Result<PendingWork<'a>> {
        let IndexContext { trx, instance, .. } = *within;
        if !purged.old.deleted {
            Quiet(trx).clear(&instance.keys.all_docs_entry(purged.id))?;
        }
        Ok(None)
    }
}

pub async fn check_document(trx: &Transaction, instance: &Instance, id: &str, info: &Info) -> Result<Option<String>> {
    let entry = trx.get(&instance.keys.all_docs_entry(id), true).await?;
    Ok(match (entry.as_deref().map(|entry| is_entry_of(entry, info)), info.deleted) {
        (None, true) | (Some(true), false) => None,
        _ => Some("its entry in _all_docs is missing or not its own".to_owned()),
    })
}

fn is_entry_of(entry: &[u8], info: &Info) -> bool {
    ById::decode(entry).is_ok_and(|entry| entry.winner == info.winner && entry.expires_at_ms == info.ends_at_ms())
}

/// Checks that an entry names its document's winner, which is not deleted.
pub async fn check_entry(trx: &Transaction, instance: &Instance, key: &[u8], value: &[u8]) -> Result<Option<String>> {
    match instance.keys.all_docs_id(key) {
        Ok(id) => is_of_document(trx, instance, &id, |info| !info.deleted && is_entry_of(value, info)).await,
        Err(error) => Ok(Some(error.to_string())),
    }
}
