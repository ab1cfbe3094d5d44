//! Reads the routing of documents' winners, their channels and grants, for administrators.

use flatbed_databases::document::verdict::Verdict;
use flatbed_databases::server::Inner;
use flatbed_revtree::RevId;
use flatbed_store::error::{Error, Result};
use flatbed_store::records::{Info, RevisionRecord};
use flatbed_store::seq::Seq;
use flatbed_store::transaction::{Attempt, Operation, Transaction};

use crate::read::get::READ_AHEAD;

/// Bytes of verdicts after which a transaction begins no further document: each may have 40,000.
const BYTES_MAX: u64 = 1_000_000;

/// The routing of a document's winner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentRouting {
    /// The winner.
    pub rev: RevId,
    /// True if it is a tombstone.
    pub deleted: bool,
    /// The sequence of the document.
    pub seq: Seq,
    /// The channels and grants of the winner.
    pub verdict: Verdict,
}

pub struct Routings<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub ids: &'a [String],
}

impl Operation for Routings<'_> {
    /// For at least one document, and as many as fit a transaction; `None` if it never existed.
    type Output = Vec<Option<DocumentRouting>>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let (mut found, mut bytes) = (Vec::with_capacity(self.ids.len()), 0);
        for ids in self.ids.chunks(READ_AHEAD) {
            if bytes > BYTES_MAX {
                break;
            }
            let infos: Vec<_> = ids.iter().map(|id| trx.get(&instance.keys.document(id).info(), true)).collect();
            let mut part = Vec::with_capacity(ids.len());
            for (id, info) in ids.iter().zip(infos) {
                let info = info.await?.map(|bytes| Info::decode(&bytes)).transpose()?;
                part.push(info.map(|info| {
                    let record = trx.get(&instance.keys.document(id).revision(&info.winner), true);
                    (info, record)
                }));
            }
            for document in part {
                let Some((info, record)) = document else {
                    found.push(None);
                    continue;
                };
                let missing = || Error::Corrupt(format!("leaf {} has no record", info.winner));
                let record = RevisionRecord::decode(&record.await?.ok_or_else(missing)?)?;
                let verdict = Verdict::decode(record.verdict);
                bytes += verdict.bytes();
                let seq = Seq::new(instance.incarnation(), info.stamp);
                found.push(Some(DocumentRouting { rev: info.winner, deleted: info.deleted, seq, verdict }));
            }
        }
        Ok(found)
    }
}
