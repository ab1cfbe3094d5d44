//! What a document's change does to everything that is derived from documents.
//!
//! A write hands the old and the new state of each document to a list of maintainers, in its own transaction. By-seq,
//! `_all_docs` and the counters are the first three; views, channels and expiry come by the same door.

use flatbed_revtree::{RevId, rank};
use foundationdb::options::MutationType;
use prost::Message;

use crate::document::body::Rows;
use crate::error::Result;
use crate::instance::Instance;
use crate::store::keys::Counter;
use crate::store::proto;
use crate::store::records::{Info, revision_message};
use crate::store::seq::Seq;
use crate::store::transaction::{Quiet, Transaction};
use crate::store::updated::touch_last_seq;

/// A by-seq entry names all leaves of a document that has no more than this; a reader of the feed looks the others up.
pub(crate) const LEAVES_IN_ENTRY_MAX: usize = 8;

/// One document's change within a transaction.
pub(crate) struct Change<'c> {
    pub id: &'c str,
    /// Before; `None`: the document is new.
    pub old: Option<&'c Info>,
    /// The old winner's body, where the write had to read it. For a maintainer that needs it always, the write is told
    /// to read it.
    #[expect(dead_code, reason = "read by maintainers that come with views and channels; part of the door's shape")]
    pub old_rows: Option<&'c Rows>,
    /// After; its stamp is not filled in.
    pub new: &'c Info,
    /// All leaves after the change, as (deleted, revision).
    pub leaves: &'c [(bool, RevId)],
    /// Change of what the document's bodies and new or dropped attachments take, all revisions together.
    pub stored_bytes_delta: i64,
    /// Of that, what belongs to bodies of revisions that are no leaves.
    pub superseded_bytes_delta: i64,
    /// Distinct among the documents of the transaction.
    pub user_version: u16,
}

/// A document that was purged whole.
pub(crate) struct Purged<'c> {
    pub id: &'c str,
    pub old: &'c Info,
    pub stored_bytes_delta: i64,
    pub superseded_bytes_delta: i64,
    pub user_version: u16,
}

/// Keeps one derived thing true. It writes into the caller's transaction and reads nothing that others write often.
pub(crate) trait IndexMaintainer: Send {
    /// One document has changed.
    fn document(&mut self, trx: &Transaction, instance: &Instance, change: &Change<'_>) -> Result<()>;

    /// A document has gone without a trace.
    fn purged(&mut self, trx: &Transaction, instance: &Instance, purged: &Purged<'_>) -> Result<()>;

    /// All documents of the transaction are through.
    fn finish(&mut self, _trx: &Transaction, _instance: &Instance) -> Result<()> {
        Ok(())
    }
}

/// The maintainers of one transaction.
pub(crate) fn maintainers() -> Vec<Box<dyn IndexMaintainer>> {
    vec![Box::new(BySeq::default()), Box::new(AllDocs), Box::new(Counters::default())]
}

/// Exactly one entry a document; `last_seq` for the watches; that the database has changed.
#[derive(Default)]
struct BySeq {
    greatest_user_version: Option<u16>,
}

impl IndexMaintainer for BySeq {
    fn document(&mut self, trx: &Transaction, instance: &Instance, change: &Change<'_>) -> Result<()> {
        let quiet = Quiet(trx);
        if let Some(old) = change.old {
            quiet.clear(&instance.keys.by_seq(&Seq::new(instance.incarnation(), old.stamp)))?;
        }
        let new = change.new;
        let leaves = match change.leaves.len() {
            2..=LEAVES_IN_ENTRY_MAX => {
                let mut others: Vec<_> = change.leaves.iter().filter(|(_, rev)| *rev != new.winner).collect();
                others.sort_by(|a, b| rank(b.0, &b.1).cmp(&rank(a.0, &a.1)));
                others.into_iter().map(|(_, rev)| revision_message(rev)).collect()
            }
            _ => Vec::new(),
        };
        let entry = proto::SequenceEntry {
            document_id: change.id.to_owned(),
            winner: Some(revision_message(&new.winner)),
            deleted: new.deleted,
            leaf_count: new.leaf_count,
            leaves,
        };
        let key = instance.keys.by_seq_stamped(instance.incarnation(), change.user_version);
        quiet.atomic(&key, &entry.encode_to_vec(), MutationType::SetVersionstampedKey)?;
        self.greatest_user_version = self.greatest_user_version.max(Some(change.user_version));
        Ok(())
    }

    fn purged(&mut self, trx: &Transaction, instance: &Instance, purged: &Purged<'_>) -> Result<()> {
        Quiet(trx).clear(&instance.keys.by_seq(&Seq::new(instance.incarnation(), purged.old.stamp)))?;
        self.greatest_user_version = self.greatest_user_version.max(Some(purged.user_version));
        Ok(())
    }

    fn finish(&mut self, trx: &Transaction, instance: &Instance) -> Result<()> {
        let Some(last) = self.greatest_user_version else { return Ok(()) };
        touch_last_seq(trx, &instance.keys, last)?;
        instance.updated.touch(trx)
    }
}

/// The ids of documents that are not deleted.
struct AllDocs;

impl IndexMaintainer for AllDocs {
    fn document(&mut self, trx: &Transaction, instance: &Instance, change: &Change<'_>) -> Result<()> {
        let key = instance.keys.all_docs_entry(change.id);
        if change.new.deleted {
            return if change.old.is_some_and(|old| !old.deleted) { Quiet(trx).clear(&key) } else { Ok(()) };
        }
        let entry = proto::AllDocsEntry { winner: Some(revision_message(&change.new.winner)) };
        Quiet(trx).set(&key, &entry.encode_to_vec())
    }

    fn purged(&mut self, trx: &Transaction, instance: &Instance, purged: &Purged<'_>) -> Result<()> {
        if purged.old.deleted { Ok(()) } else { Quiet(trx).clear(&instance.keys.all_docs_entry(purged.id)) }
    }
}

/// Sums, changed by atomic ADD once a transaction.
#[derive(Default)]
struct Counters {
    deltas: [i64; Counter::ALL.len()],
}

impl IndexMaintainer for Counters {
    fn document(&mut self, _: &Transaction, _: &Instance, change: &Change<'_>) -> Result<()> {
        let live = |deleted: bool| if deleted { [0, 1] } else { [1, 0] };
        let [old_live, old_deleted] = change.old.map_or([0, 0], |old| live(old.deleted));
        let [new_live, new_deleted] = live(change.new.deleted);
        let external = change.new.external_bytes as i64 - change.old.map_or(0, |old| old.external_bytes as i64);
        let stored = [change.stored_bytes_delta, change.superseded_bytes_delta];
        let changes = [new_live - old_live, new_deleted - old_deleted, external, stored[0], stored[1]];
        for (delta, change) in self.deltas.iter_mut().zip(changes) {
            *delta += change;
        }
        Ok(())
    }

    fn purged(&mut self, _: &Transaction, _: &Instance, purged: &Purged<'_>) -> Result<()> {
        let [live, deleted] = if purged.old.deleted { [0, -1] } else { [-1, 0] };
        let external = -(purged.old.external_bytes as i64);
        let changes = [live, deleted, external, purged.stored_bytes_delta, purged.superseded_bytes_delta];
        for (delta, change) in self.deltas.iter_mut().zip(changes) {
            *delta += change;
        }
        Ok(())
    }

    fn finish(&mut self, trx: &Transaction, instance: &Instance) -> Result<()> {
        for (counter, delta) in Counter::ALL.into_iter().zip(self.deltas) {
            if delta != 0 {
                Quiet(trx).atomic(&instance.keys.counter(counter), &delta.to_le_bytes(), MutationType::Add)?;
            }
        }
        Ok(())
    }
}
