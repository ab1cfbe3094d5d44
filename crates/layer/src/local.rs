//! Local documents: `_local/...`, without history, never replicated, in no index.
//!
//! Replicators keep their checkpoints here. As in CouchDB a write checks no revision: the last one stays.

use prost::Message;

use crate::body::{BODY_BYTES_MAX, begin_read};
use crate::error::{Error, Result};
use crate::instance::RUN_BYTES_MAX;
use crate::keys::KeyRange;
use crate::layer::Inner;
use crate::once::Once;
use crate::proto;
use crate::read::page_of;
use crate::transaction::{Attempt, Operation, Transaction};

/// The largest local document, in bytes of JSON text: it is written in one transaction.
pub const LOCAL_BYTES_MAX: usize = 900_000;

/// Local documents that a page of a list shows.
const PAGE_DOCUMENTS_MAX: usize = 100;

/// A local document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalDocument {
    /// Without `_local/`.
    pub id: String,
    /// The number in its revision `0-N`.
    pub revision: u64,
    /// The body's members as JSON text without braces; may be empty.
    pub body: Vec<u8>,
}

pub(crate) struct GetLocal<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub id: &'a str,
}

impl Operation for GetLocal<'_> {
    type Output = Option<LocalDocument>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Option<LocalDocument>> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let pages = begin_read(trx, instance.keys.local_parts(self.id)).finish(trx, BODY_BYTES_MAX).await?;
        let mut record = Vec::new();
        pages.iter().flat_map(|page| page.iter()).for_each(|row| record.extend_from_slice(row.value()));
        if pages.iter().all(|page| page.is_empty()) {
            return Ok(None);
        }
        let record = proto::LocalDocument::decode(&*record)?;
        Ok(Some(LocalDocument { id: self.id.to_owned(), revision: record.revision, body: record.members }))
    }
}

/// Writes a local document; `document: None` removes it.
pub(crate) struct PutLocal<'a> {
    inner: &'a Inner,
    name: &'a str,
    id: &'a str,
    document: Option<&'a LocalDocument>,
    once: Once,
}

impl<'a> PutLocal<'a> {
    pub(crate) fn new(
        inner: &'a Inner,
        name: &'a str,
        id: &'a str,
        document: Option<&'a LocalDocument>,
    ) -> Result<PutLocal<'a>> {
        Ok(PutLocal { inner, name, id, document, once: Once::new(inner)? })
    }
}

impl Operation for PutLocal<'_> {
    /// Whether there was one; not looked at for a write.
    type Output = bool;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<bool> {
        let instance = self.inner.resolve_for_write(trx, self.name).await?;
        // What an earlier attempt wrote or removed may have been written over, or written anew.
        if self.once.happened(trx, attempt).await?.is_some() {
            return Ok(true);
        }
        let parts = instance.keys.local_parts(self.id);
        let Some(document) = self.document else {
            // Where there is nothing, nothing is written, and no commit can be in doubt.
            if trx.get(&instance.keys.local(self.id, 0), false).await?.is_none() {
                return Ok(false);
            }
            self.once.mark(trx);
            trx.clear_range(&parts.begin, &parts.end);
            return Ok(true);
        };
        if document.body.len() > LOCAL_BYTES_MAX {
            let document_id = format!("_local/{}", self.id);
            return Err(Error::DocumentTooLarge { document_id, bytes_max: LOCAL_BYTES_MAX as u64 });
        }
        self.once.mark(trx);
        trx.clear_range(&parts.begin, &parts.end);
        let record = proto::LocalDocument { revision: document.revision, members: document.body.clone() };
        for (part, bytes) in (0..).zip(record.encode_to_vec().chunks(RUN_BYTES_MAX as usize)) {
            trx.set(&instance.keys.local(self.id, part), bytes);
        }
        Ok(true)
    }
}

/// Ids of local documents in a range.
pub(crate) struct ListLocal<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    /// The first id, and whether it belongs to the list itself.
    pub from: Option<(&'a str, bool)>,
    /// Downwards.
    pub descending: bool,
}

impl Operation for ListLocal<'_> {
    /// One page; fewer than [`PAGE_DOCUMENTS_MAX`] at the end.
    type Output = (Vec<String>, bool);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let keys = &instance.keys;
        let mut range = keys.locals();
        match self.from {
            Some((id, true)) if self.descending => range.end = keys.local_parts(id).end,
            Some((id, false)) if self.descending => range.end = keys.local_parts(id).begin,
            Some((id, true)) => range.begin = keys.local_parts(id).begin,
            Some((id, false)) => range.begin = keys.local_parts(id).end,
            None => {}
        }
        let mut ids = Vec::new();
        while ids.len() < PAGE_DOCUMENTS_MAX {
            // A record of many parts is stepped over, not read.
            let first = trx.get_range(&page_of(&range, 1, self.descending), 1, true).await?;
            let Some(row) = first.first() else { return Ok((ids, true)) };
            let (id, _) = keys.split_local(row.key())?;
            let KeyRange { begin, end } = keys.local_parts(&id);
            if self.descending {
                range.end = begin;
            } else {
                range.begin = end;
            }
            ids.push(id);
        }
        Ok((ids, false))
    }
}
