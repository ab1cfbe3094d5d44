//! The winner's body lies in the latest range, every other one in the range of its revision, so a change of the winner
//! moves bodies. Plain reads use the latest range and the info alone.

use flatbed_databases::document::body::{self, PreparedBody, Rows};
use flatbed_databases::document::tree::winner;
use flatbed_databases::instance::Instance;
use flatbed_revtree::RevId;
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::DocumentKeys;
use flatbed_store::records::{BodyPlace, Info, RecordedRouting, RevisionRecord};
use flatbed_store::seq::own_stamp;
use flatbed_store::transaction::{Quiet, Transaction};

/// The facts of a revision's body that are stored beside it.
pub struct BodyFacts {
    place: BodyPlace,
    external_bytes: u64,
    stored_bytes: u64,
    has_attachments: bool,
    attachment_bytes: u64,
}

impl BodyFacts {
    pub fn of(body: &PreparedBody, has_attachments: bool, attachment_bytes: u64) -> BodyFacts {
        let external_bytes = body.external_bytes.saturating_add(attachment_bytes);
        let (place, stored_bytes) = (body.place.clone(), body.stored_bytes);
        BodyFacts { place, external_bytes, stored_bytes, has_attachments, attachment_bytes }
    }

    /// Returns those of a winner that stays.
    pub fn kept(info: &Info) -> BodyFacts {
        let (external_bytes, stored_bytes) = (info.external_bytes, info.stored_bytes);
        let (has_attachments, attachment_bytes) = (info.has_attachments, info.attachment_bytes);
        BodyFacts { place: info.place.clone(), external_bytes, stored_bytes, has_attachments, attachment_bytes }
    }
}

/// Returns the best of a document's leaves, given as (deleted, revision).
pub fn best(leaves: &[(bool, RevId)]) -> Result<&(bool, RevId)> {
    winner(leaves).ok_or_else(|| Error::Corrupt("a document without a leaf".into()))
}

/// Returns the info of a document of the instance with these leaves, the best of which has this body. `user_version` is
/// unique among the documents of the transaction, which adds them to the by-seq of its bucket.
pub fn info(leaves: &[(bool, RevId)], body: BodyFacts, user_version: u16, instance: &Instance) -> Result<Info> {
    let (deleted, winner) = best(leaves)?;
    let (stamp, bucket) = (own_stamp(instance.epoch(), user_version), instance.buckets.own_number());
    let leaf_count = u32::try_from(leaves.len()).unwrap_or(u32::MAX);
    let BodyFacts { place, external_bytes, stored_bytes, has_attachments, attachment_bytes } = body;
    let (winner, deleted) = (winner.clone(), *deleted);
    let routed = RecordedRouting::default();
    Ok(Info {
        stamp,
        winner,
        deleted,
        leaf_count,
        place,
        external_bytes,
        stored_bytes,
        has_attachments,
        attachment_bytes,
        bucket,
        routed,
    })
}

/// The bodies of a document in a transaction.
pub struct Bodies<'a> {
    pub trx: &'a Transaction,
    pub instance: &'a Instance,
    pub keys: &'a DocumentKeys,
}

impl Bodies<'_> {
    /// Reads the winner's body, if it lies in a blob.
    pub async fn blob_rows(&self, info: &Info) -> Result<Option<Rows>> {
        match &info.place {
            BodyPlace::Blob(blob_id) => {
                Ok(Some(Box::pin(body::read_rows(self.trx, self.instance.keys.blob_rows(blob_id))).await?))
            }
            BodyPlace::Rows => Ok(None),
        }
    }

    /// Writes rows below a key.
    pub fn put_rows<'r>(&self, prefix: Vec<u8>, rows: impl Iterator<Item = (&'r [u8], &'r [u8])>) -> Result<()> {
        let prefix_bytes = prefix.len();
        let mut key = prefix;
        for (path, value) in rows {
            key.truncate(prefix_bytes);
            key.extend_from_slice(path);
            Quiet(self.trx).set(&key, value)?;
        }
        Ok(())
    }

    /// Clears the latest range for another winner, which may lack some of its fields.
    pub fn clear_latest(&self) -> Result<()> {
        Quiet(self.trx).clear_range(&self.keys.body_rows())
    }

    /// Moves the body of a leaf that becomes the winner into the latest range.
    pub async fn promote(&self, rev: &RevId) -> Result<BodyFacts> {
        let missing = || Error::Corrupt(format!("leaf {rev} has no record"));
        let record = self.trx.get(&self.keys.revision(rev), true).await?.ok_or_else(missing)?;
        let record = RevisionRecord::decode(&record)?;
        if record.place == BodyPlace::Rows {
            let range = self.keys.revision_body_rows(rev);
            let rows = body::read_rows(self.trx, range.clone()).await?;
            self.put_rows(self.keys.body(), rows.iter())?;
            Quiet(self.trx).clear_range(&range)?;
        }
        let RevisionRecord { place, external_bytes, stored_bytes, has_attachments, attachment_bytes, .. } = record;
        let external_bytes = external_bytes.saturating_add(attachment_bytes);
        Ok(BodyFacts { place, external_bytes, stored_bytes, has_attachments, attachment_bytes })
    }
}
