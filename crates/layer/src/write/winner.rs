//! The winner's body lies in the latest range, every other one in the range of its revision; so whoever changes the winner
//! moves bodies. The latest range and the info are what plain reads see.

use flatbed_revtree::RevId;

use crate::document::body::{self, Prepared, Rows};
use crate::document::tree::winner;
use crate::error::{Error, Result};
use crate::instance::Instance;
use crate::store::keys::DocumentKeys;
use crate::store::records::{BodyPlace, Info, RevisionRecord, Routed};
use crate::store::seq::STAMP_BYTES;
use crate::store::transaction::{Quiet, Transaction};

/// What is kept of a revision's body beside the body.
pub(crate) struct Described {
    place: BodyPlace,
    external_bytes: u64,
    stored_bytes: u64,
    has_attachments: bool,
    attachment_bytes: u64,
}

impl Described {
    pub(crate) fn of(body: &Prepared, has_attachments: bool, attachment_bytes: u64) -> Described {
        let external_bytes = body.external_bytes.saturating_add(attachment_bytes);
        let (place, stored_bytes) = (body.place.clone(), body.stored_bytes);
        Described { place, external_bytes, stored_bytes, has_attachments, attachment_bytes }
    }

    /// Of a winner that stays.
    pub(crate) fn kept(info: &Info) -> Described {
        let (external_bytes, stored_bytes) = (info.external_bytes, info.stored_bytes);
        let (has_attachments, attachment_bytes) = (info.has_attachments, info.attachment_bytes);
        Described { place: info.place.clone(), external_bytes, stored_bytes, has_attachments, attachment_bytes }
    }
}

/// The best of a document's leaves, given as (deleted, revision).
pub(crate) fn best(leaves: &[(bool, RevId)]) -> Result<&(bool, RevId)> {
    winner(leaves).ok_or_else(|| Error::Corrupt("a document without a leaf".into()))
}

/// The info of a document with these leaves, the best of which has this body. `user_version` is distinct among the
/// documents of the transaction, which enters them in the by-seq of a bucket.
pub(crate) fn info(leaves: &[(bool, RevId)], body: Described, user_version: u16, bucket: u32) -> Result<Info> {
    let (deleted, winner) = best(leaves)?;
    let mut stamp = [0xff; STAMP_BYTES];
    stamp[10..].copy_from_slice(&user_version.to_be_bytes());
    let leaf_count = u32::try_from(leaves.len()).unwrap_or(u32::MAX);
    let Described { place, external_bytes, stored_bytes, has_attachments, attachment_bytes } = body;
    let (winner, deleted) = (winner.clone(), *deleted);
    let routed = Routed::default();
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

/// A document's bodies within a transaction.
pub(crate) struct Bodies<'a> {
    pub trx: &'a Transaction,
    pub instance: &'a Instance,
    pub keys: &'a DocumentKeys,
}

impl Bodies<'_> {
    /// The winner's body, if it lies in a blob.
    pub(crate) async fn blob_rows(&self, info: &Info) -> Result<Option<Rows>> {
        match &info.place {
            BodyPlace::Blob(blob_id) => {
                Ok(Some(Box::pin(body::read_rows(self.trx, self.instance.keys.blob_rows(blob_id))).await?))
            }
            BodyPlace::Rows => Ok(None),
        }
    }

    /// Writes rows below a key.
    pub(crate) fn put_rows<'r>(&self, prefix: Vec<u8>, rows: impl Iterator<Item = (&'r [u8], &'r [u8])>) -> Result<()> {
        let prefix_bytes = prefix.len();
        let mut key = prefix;
        for (path, value) in rows {
            key.truncate(prefix_bytes);
            key.extend_from_slice(path);
            Quiet(self.trx).set(&key, value)?;
        }
        Ok(())
    }

    /// Empties the latest range for another winner: fields that it lacks would come back.
    pub(crate) fn clear_latest(&self) -> Result<()> {
        Quiet(self.trx).clear_range(&self.keys.body_rows())
    }

    /// A leaf that was not the winner comes up: its body moves into the latest range.
    pub(crate) async fn promote(&self, rev: &RevId) -> Result<Described> {
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
        Ok(Described { place, external_bytes, stored_bytes, has_attachments, attachment_bytes })
    }
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};
    use prost::Message;

    use super::*;
    use crate::check::check_database;
    use crate::document::body::{BODY_BYTES_MAX, begin_read};
    use crate::document::tree;
    use crate::fenced::database;
    use crate::index::by_seq;
    use crate::store::proto;
    use crate::store::records::revision_message;
    use crate::store::transaction::{self, Attempt, Operation};
    use crate::{Database, Edit, GetOptions};

    const TEXT: &str = "1-z";

    fn digits() -> String {
        format!("1-{}", "a".repeat(32))
    }

    fn rev(text: &str) -> RevId {
        text.parse().unwrap()
    }

    async fn replicate(db: &Database, id: &str, leaf: &str, body: &str) {
        let (body, history) = (parse(body.as_bytes(), &Limits::default()).unwrap(), Some(vec![rev(leaf)]));
        let (parent, attachments) = (None, Vec::new());
        let edit = Edit { expiry: None, id: id.into(), parent, history, deleted: false, attachments, body };
        db.update(&edit).await.unwrap();
    }

    async fn edit(db: &Database, id: &str, parent: &str, deleted: bool) {
        let (body, parent) = (parse(br#"{"of":"edit"}"#, &Limits::default()).unwrap(), Some(rev(parent)));
        let (history, attachments) = (None, Vec::new());
        let edit = Edit { expiry: None, id: id.into(), parent, history, deleted, attachments, body };
        db.update(&edit).await.unwrap();
    }

    async fn body(db: &Database, id: &str, leaf: Option<&str>) -> String {
        let options = GetOptions { rev: leaf.map(rev), ..GetOptions::default() };
        String::from_utf8(db.get(id, &options).await.unwrap().body).unwrap()
    }

    /// Makes a leaf the winner of a document with three leaves, as an earlier version left it.
    struct Choose<'a> {
        db: &'a Database,
        id: &'a str,
        winner: RevId,
    }

    impl Operation for Choose<'_> {
        type Output = ();

        async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
            let instance = self.db.inner.resolve_for_write(trx, &self.db.name).await?;
            let keys = &instance.keys.document(self.id);
            let info = tree::info(trx, keys, false).await?.expect("a document");
            let bodies = Bodies { trx, instance: &instance, keys };
            let rows = begin_read(trx, keys.body_rows()).finish(trx, BODY_BYTES_MAX).await?;
            bodies.put_rows(keys.revision_body(&info.winner), Rows::new(rows, keys.body().len()).iter())?;
            bodies.clear_latest()?;
            let Described { place, external_bytes, stored_bytes, has_attachments, attachment_bytes } =
                bodies.promote(&self.winner).await?;
            let winner = self.winner.clone();
            let chosen =
                Info { winner, place, external_bytes, stored_bytes, has_attachments, attachment_bytes, ..info.clone() };
            let mut bytes = chosen.encode_stamped();
            // Without the position of a versionstamp: the row keeps its stamp.
            bytes.truncate(bytes.len() - 4);
            trx.set(&keys.info(), &bytes);
            trx.set(&instance.keys.all_docs_entry(self.id), &chosen.by_id());
            let key = by_seq::entry_of(&instance, &chosen)?;
            let mut entry = proto::SequenceEntry::decode(&*trx.get(&key, false).await?.expect("an entry"))?;
            let (old, new) = (Some(revision_message(&info.winner)), Some(revision_message(&self.winner)));
            entry.leaves.retain(|leaf| Some(leaf) != new.as_ref());
            entry.leaves.splice(0..0, old);
            entry.winner = new;
            trx.set(&key, &entry.encode_to_vec());
            Ok(())
        }
    }

    async fn is_clean(db: &Database) {
        let report = check_database(db, |_| {}).await.unwrap();
        assert!(report.is_clean(), "{report:#?}");
    }

    /// Earlier versions compared hashes as text. A winner that they chose is valid until the document is written again, and then
    /// no body is lost.
    #[tokio::test]
    async fn a_winner_of_another_order_gives_way_to_the_next_write() {
        let (db, _storage) = database().await;
        let own = digits();
        let digits = own.as_str();
        let ids = ["edited", "beside", "deleted", "replicated", "purged", "purged-beside"];
        for id in ids {
            for (leaf, body) in [(TEXT, r#"{"of":"text"}"#), ("1-b", r#"{"of":"b---"}"#), (digits, r#"{"of":"hash"}"#)]
            {
                replicate(&db, id, leaf, body).await;
            }
            assert_eq!(body(&db, id, None).await, r#""of":"hash""#, "the best of them");
            let mut choose = Choose { db: &db, id, winner: rev(TEXT) };
            transaction::write(&db.inner.db, &db.inner.metrics, &mut choose).await.unwrap();
            assert_eq!(body(&db, id, None).await, r#""of":"text""#);
            assert_eq!(body(&db, id, Some(digits)).await, r#""of":"hash""#);
        }
        is_clean(&db).await;
        edit(&db, "edited", TEXT, false).await;
        edit(&db, "beside", "1-b", true).await;
        edit(&db, "deleted", TEXT, true).await;
        replicate(&db, "replicated", "1-c", r#"{"of":"c---"}"#).await;
        assert_eq!(db.purge("purged", &[rev(TEXT)]).await.unwrap(), [rev(TEXT)]);
        assert_eq!(db.purge("purged-beside", &[rev("1-b")]).await.unwrap(), [rev("1-b")]);
        for id in ids {
            let expected = if id == "edited" { r#""of":"edit""# } else { r#""of":"hash""# };
            assert_eq!(body(&db, id, None).await, expected, "{id}");
            assert_eq!(body(&db, id, Some(digits)).await, r#""of":"hash""#, "{id}");
            if ["beside", "replicated", "purged-beside"].contains(&id) {
                assert_eq!(body(&db, id, Some(TEXT)).await, r#""of":"text""#, "{id}");
            }
        }
        is_clean(&db).await;
    }

    /// Earlier versions accepted any 32 bytes as a hash. Such a revision can be read and purged.
    #[tokio::test]
    async fn a_revision_that_is_no_longer_accepted_is_read_and_purged() {
        let (db, _storage) = database().await;
        let odd = RevId::parse_stored(&format!("2-{}", "z".repeat(32))).unwrap();
        let parent = RevId::parse_stored(&format!("1-{}", "y".repeat(32))).unwrap();
        let body = parse(br#"{"of":"odd"}"#, &Limits::default()).unwrap();
        let (history, attachments) = (Some(vec![odd.clone(), parent]), Vec::new());
        let edit = Edit { expiry: None, id: "d".into(), parent: None, history, deleted: false, attachments, body };
        db.update(&edit).await.unwrap();
        let found = db.get("d", &GetOptions { revs: true, ..GetOptions::default() }).await.unwrap();
        assert_eq!((&found.rev, found.revisions.map(|line| line.len())), (&odd, Some(2)));
        is_clean(&db).await;
        let purged = db.purge("d", std::slice::from_ref(&odd)).await.unwrap();
        assert_eq!(purged, std::slice::from_ref(&odd));
        is_clean(&db).await;
    }
}
