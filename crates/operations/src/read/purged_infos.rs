//! Reads the log of purges for `_purged_infos`.

use async_recursion::async_recursion as boxed;
use flatbed_databases::handles::ReadHandle;
use flatbed_databases::limits::Limit;
use flatbed_databases::server::Inner;
use flatbed_revtree::RevId;
use flatbed_store::error::Result;
use flatbed_store::keys::KeyRange;
use flatbed_store::proto;
use flatbed_store::records::revision;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use prost::Message;

/// Limits of a page: records, and approximate bytes. A record has up to 90 kB.
pub const RECORDS_MAX: Limit<usize> = Limit::new(500, 3);
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
    pub next: Option<PurgeLogPosition>,
}

/// A position in the log of purges, valid for the instance of the database that returned it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurgeLogPosition(pub Vec<u8>);

struct ReadInfos<'a> {
    inner: &'a Inner,
    name: &'a str,
    from: Option<&'a PurgeLogPosition>,
}

impl Operation for ReadInfos<'_> {
    type Output = PurgedInfos;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<PurgedInfos> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let KeyRange { mut begin, end } = instance.keys.purges();
        // A position of an earlier instance of the database has other keys and is ignored.
        if let Some(PurgeLogPosition(from)) = self.from
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
        Ok(PurgedInfos { infos, next: page.rest.map(|rest| PurgeLogPosition(rest.begin)) })
    }
}

/// Performs `Reader::purged_infos` of the layer.
#[boxed]
pub async fn purged_infos(database: &ReadHandle, from: Option<&PurgeLogPosition>) -> Result<PurgedInfos> {
    database.read(&mut ReadInfos { inner: &database.inner, name: &database.name, from }).await
}
