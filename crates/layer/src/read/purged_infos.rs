//! Reads the log of purges for `_purged_infos`.

use async_recursion::async_recursion as boxed;
use flatbed_revtree::RevId;
use flatbed_store::error::Result;
use flatbed_store::keys::KeyRange;
use flatbed_store::proto;
use flatbed_store::records::revision;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use prost::Message;

use crate::handle::Reader;
use crate::layer::Inner;
use crate::limits::Limit;

/// Limits of a page: records, and approximate bytes. A record has up to 90 kB.
const RECORDS_MAX: Limit<usize> = Limit::new(500, 3);
const PAGE_BYTES: usize = 200_000;

/// A recorded purge of a document. A purge of very many revisions is split into several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurgedInfo {
    /// The document's id.
    pub id: String,
    /// The purged leaves.
    pub revs: Vec<RevId>,
}

/// A page of recorded purges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PurgedInfos {
    /// The purges, oldest first; at most 500.
    pub infos: Vec<PurgedInfo>,
    /// The start of the next page; `None` for the last page.
    pub next: Option<PurgedFrom>,
}

/// A position in the log of purges, valid for the instance of the database that returned it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurgedFrom(Vec<u8>);

struct ReadInfos<'a> {
    inner: &'a Inner,
    name: &'a str,
    from: Option<&'a PurgedFrom>,
}

impl Operation for ReadInfos<'_> {
    type Output = PurgedInfos;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<PurgedInfos> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let KeyRange { mut begin, end } = instance.keys.purges();
        // A position of an earlier instance of the database has other keys and is ignored.
        if let Some(PurgedFrom(from)) = self.from
            && (begin.as_slice()..end.as_slice()).contains(&from.as_slice())
        {
            begin.clone_from(from);
        }
        let page = trx.range(&KeyRange { begin, end }, true).target_bytes(PAGE_BYTES).page(RECORDS_MAX.get()).await?;
        let mut infos = Vec::with_capacity(page.len());
        for row in &page {
            let record = proto::PurgeInfo::decode(row.value())?;
            let revs = record.revisions.iter().map(|rev| revision(Some(rev))).collect::<Result<Vec<_>>>()?;
            infos.push(PurgedInfo { id: record.document_id, revs });
        }
        Ok(PurgedInfos { infos, next: page.rest.map(|rest| PurgedFrom(rest.begin)) })
    }
}

impl Reader {
    /// Returns a page of the recorded purges, from the position of an earlier page or from the oldest. The last
    /// `purged_infos_limit` purges are recorded, and older ones while groups of views may need them.
    ///
    /// # Errors
    /// [`DatabaseNotFound`](crate::Error::DatabaseNotFound), and errors of the storage.
    #[boxed]
    pub async fn purged_infos(&self, from: Option<&PurgedFrom>) -> Result<PurgedInfos> {
        self.read(&mut ReadInfos { inner: &self.inner, name: &self.name, from }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fenced::database;
    use crate::{Database, Edit};
    use flatbed_flatten::json::{Limits, parse};

    /// Writes a new document.
    async fn put(db: &Database, id: &str) -> RevId {
        let body = parse(br#"{"a":1}"#, &Limits::default()).unwrap();
        let (parent, history, attachments) = (None, None, Vec::new());
        let edit = Edit { expiry: None, id: id.into(), parent, history, deleted: false, attachments, body };
        db.update(&edit).await.unwrap();
        db.get(id, &Default::default()).await.unwrap().rev
    }

    #[tokio::test]
    async fn purges_are_shown_in_pages_oldest_first() {
        let (db, _storage) = database().await;
        assert_eq!(db.purged_infos(None).await.unwrap(), PurgedInfos::default());
        let mut purged = Vec::new();
        for n in 0..8 {
            let id = format!("d{}", n % 5);
            let revs = vec![put(&db, &id).await];
            assert_eq!(db.purge(&id, &revs).await.unwrap(), revs);
            purged.push(PurgedInfo { id, revs });
        }
        let (mut shown, mut from) = (Vec::new(), None);
        loop {
            let page = db.purged_infos(from.as_ref()).await.unwrap();
            assert!(page.infos.len() <= RECORDS_MAX.get());
            shown.extend(page.infos);
            from = page.next;
            if from.is_none() {
                break;
            }
        }
        assert_eq!(shown, purged);
        // A position of another instance is ignored.
        let elsewhere = PurgedFrom(b"elsewhere".to_vec());
        assert_eq!(db.purged_infos(Some(&elsewhere)).await.unwrap(), db.purged_infos(None).await.unwrap());
        db.delete().await.unwrap();
        assert!(matches!(db.purged_infos(None).await, Err(crate::Error::DatabaseNotFound)));
    }
}
