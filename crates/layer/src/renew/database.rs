//! A new incarnation and new stamps for one database.

use foundationdb::options::MutationType;
use prost::Message;

use crate::error::{Error, Result};
use crate::instance::next_incarnation;
use crate::renew::{PAGE_BYTES_MAX, PAGE_ENTRIES, Renewal};
use crate::store::keys::{KeyRange, Keys};
use crate::store::proto;
use crate::store::records::stamped_anew;
use crate::store::transaction::page_of;
use crate::store::transaction::{self, Attempt, Operation, Quiet, Transaction};
use crate::store::updated::UpdatedKeys;
use crate::store::updated::touch_last_seq;

impl Renewal<'_> {
    /// Moves what is not in the new incarnation yet, and gives the record that incarnation at the end. `entries` counts.
    pub(super) async fn database(
        &self,
        record_key: &[u8],
        name: &str,
        record: &proto::DatabaseRecord,
        entries: &mut u64,
        progress: &mut (dyn FnMut(u64) + Send),
    ) -> Result<()> {
        let namespace = self.keys.namespace(record.namespace);
        let left = Left { entries: namespace.by_seq_any(), purges: namespace.purges() };
        let mut step = Step {
            renewal: self,
            record_key,
            record,
            incarnation: next_incarnation(record, self.epoch),
            updated: UpdatedKeys::new(self.keys, name),
            keys: namespace,
            left,
            attempts: 0,
            attempted: None,
        };
        loop {
            let Stepped { moved, purges, left } = transaction::write(self.db, self.metrics, &mut step).await?;
            *entries += moved;
            if moved > 0 || purges > 0 || left.is_none() {
                progress(*entries);
            }
            let Some(left) = left else { return Ok(()) };
            step = Step { left, attempts: 0, attempted: None, ..step };
        }
    }
}

/// What has not been looked at.
#[derive(Clone)]
struct Left {
    entries: KeyRange,
    purges: KeyRange,
}

/// What one transaction has done.
#[derive(Clone)]
struct Stepped {
    /// Entries of by-seq.
    moved: u64,
    /// Purges stamped.
    purges: u16,
    /// `None`: the database is done.
    left: Option<Left>,
}

/// One transaction's part of a database.
struct Step<'a> {
    renewal: &'a Renewal<'a>,
    record_key: &'a [u8],
    record: &'a proto::DatabaseRecord,
    incarnation: u64,
    keys: Keys,
    updated: UpdatedKeys,
    left: Left,
    attempts: u32,
    /// The first entry that the last attempt would have moved, and what it would have done.
    attempted: Option<(Option<Vec<u8>>, Stepped)>,
}

type Row = (Vec<u8>, Vec<u8>);

impl Operation for Step<'_> {
    type Output = Stepped;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<Stepped> {
        // What takes too long, or is too large with the ids that it has, is done in smaller parts.
        let halvings = self.attempts.min(10);
        self.attempts += 1;
        let mut room = Room { entries: PAGE_ENTRIES >> halvings, bytes: PAGE_BYTES_MAX >> halvings };
        let (root, record) = (trx.get(&self.renewal.keys.instance(), false), trx.get(self.record_key, false));
        let own = self.keys.by_seq_all(self.incarnation);
        let newest = page_of(&own, 1, true);
        let (newest, updated) = (trx.get_range(&newest, 1, true), self.updated.is_there(trx));
        self.renewal.is_own(root.await?.as_deref())?;
        let mut record = match record.await? {
            Some(bytes) => proto::DatabaseRecord::decode(&*bytes)?,
            None => return Err(Error::RenewedElsewhere),
        };
        if let (true, Some((first, stepped))) = (attempt.maybe_committed, &self.attempted) {
            // It is counted, and not looked for again.
            let is_settled = record.epoch == self.renewal.epoch;
            if is_settled || matches!(first, Some(first) if trx.get(first, false).await?.is_none()) {
                return Ok(stepped.clone());
            }
        }
        if record != *self.record {
            return Err(Error::RenewedElsewhere);
        }
        let (moved, first, entries) = self.entries(trx, &own, &mut room).await?;
        let has_entries = moved > 0 || !newest.await?.is_empty();
        let was_updated = updated.await?;
        let (stamped, purges) = match &entries {
            Some(_) => (0, Some(self.left.purges.clone())),
            None => self.purges(trx, &mut room).await?,
        };
        if let Some(last) = moved.checked_sub(1) {
            touch_last_seq(trx, &self.keys, last as u16)?;
            self.updated.touch(trx)?;
        }
        let is_done = entries.is_none() && purges.is_none();
        if is_done {
            if !has_entries {
                // Nothing else says where it stands.
                touch_last_seq(trx, &self.keys, 0)?;
                if was_updated {
                    self.updated.touch(trx)?;
                }
            }
            record.incarnation = self.incarnation;
            record.epoch = self.renewal.epoch;
            trx.set(self.record_key, &record.encode_to_vec());
        }
        let none = |range: &KeyRange| KeyRange { begin: range.end.clone(), end: range.end.clone() };
        let left = Left {
            entries: entries.unwrap_or_else(|| none(&self.left.entries)),
            purges: purges.unwrap_or_else(|| none(&self.left.purges)),
        };
        let stepped = Stepped { moved, purges: stamped, left: Some(left).filter(|_| !is_done) };
        self.attempted = Some((first, stepped.clone()));
        Ok(stepped)
    }
}

/// What a transaction may still take.
struct Room {
    entries: usize,
    bytes: usize,
}

impl Room {
    /// Takes one with so many bytes; whether there is room for another.
    fn take(&mut self, bytes: usize) -> bool {
        self.entries = self.entries.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.is_left()
    }

    fn is_left(&self) -> bool {
        self.entries > 0 && self.bytes > 0
    }
}

impl Step<'_> {
    /// Moves entries into the new incarnation, each with its document's sequence. Returns how many, the first of them, and
    /// what is left.
    async fn entries(
        &self,
        trx: &Transaction,
        own: &KeyRange,
        room: &mut Room,
    ) -> Result<(u64, Option<Vec<u8>>, Option<KeyRange>)> {
        let KeyRange { begin, end } = self.left.entries.clone();
        let before = KeyRange { begin: begin.clone(), end: own.begin.clone().min(end.clone()) };
        let behind = KeyRange { begin: own.end.clone().max(begin), end: end.clone() };
        let (before, behind) = (read(trx, &before, room.entries), read(trx, &behind, room.entries));
        let (mut rows, mut is_all) = before.await?;
        if is_all {
            let (more, is_end) = behind.await?;
            rows.extend(more);
            is_all = is_end;
        }
        let entries: Vec<_> =
            rows.iter().map(|(_, value)| proto::SequenceEntry::decode(value.as_slice()).ok()).collect();
        let infos: Vec<_> = entries
            .iter()
            .map(|entry| {
                let info = entry.as_ref().map(|entry| self.keys.document(&entry.document_id).info());
                info.map(|key| (trx.get(&key, true), key))
            })
            .collect();
        let quiet = Quiet(trx);
        let (mut user_version, mut first, mut cleared, mut last) = (0, None, None::<Vec<u8>>, None);
        for ((key, value), info) in rows.iter().zip(infos) {
            last = Some(key);
            if *key >= own.end {
                // What was moved lies between entries of older incarnations before and behind it.
                cleared.take_if(|begin| *begin < own.begin).inspect(|begin| trx.clear_range(begin, &own.begin));
            }
            let Ok(seq) = self.keys.by_seq_parse(key) else {
                // What is no entry stays, for the checker to report.
                cleared.take().inspect(|begin| trx.clear_range(begin, key));
                continue;
            };
            let moved = self.keys.by_seq_stamped(self.incarnation, user_version);
            quiet.atomic(&moved, value, MutationType::SetVersionstampedKey)?;
            let mut bytes = key.len() + moved.len() + value.len();
            if let Some((found, info_key)) = info
                && let Some(info) = found.await?
                && let Some(operand) = stamped_anew(&info, seq.stamp(), user_version)
            {
                quiet.atomic(&info_key, &operand, MutationType::SetVersionstampedValue)?;
                bytes += info_key.len() + operand.len();
            }
            user_version += 1;
            first = first.or_else(|| Some(key.clone()));
            cleared = cleared.or_else(|| Some(key.clone()));
            if !room.take(bytes) {
                break;
            }
        }
        let behind_last = last.map(|last| [last.as_slice(), &[0]].concat());
        if let (Some(begin), Some(end)) = (&cleared, &behind_last) {
            trx.clear_range(begin, end);
        }
        let is_through = last == rows.last().map(|(key, _)| key);
        let left = match behind_last {
            Some(begin) if !is_all || !is_through => Some(KeyRange { begin, end }),
            _ => None,
        };
        Ok((u64::from(user_version), first, left))
    }

    /// Stamps purges anew. Returns how many, and what is left.
    async fn purges(&self, trx: &Transaction, room: &mut Room) -> Result<(u16, Option<KeyRange>)> {
        let range = &self.left.purges;
        if !room.is_left() {
            return Ok((0, Some(range.clone())));
        }
        let (rows, is_all) = read(trx, range, room.entries).await?;
        let quiet = Quiet(trx);
        let mut user_version = 0;
        for (at, (key, value)) in rows.iter().enumerate() {
            let purge = proto::PurgeInfo::decode(value.as_slice()).ok();
            let Some(mut purge) = purge.filter(|purge| purge.renewed != self.renewal.epoch) else { continue };
            purge.renewed = self.renewal.epoch;
            let (stamped, value) = (self.keys.purge_stamped(user_version), purge.encode_to_vec());
            quiet.atomic(&stamped, &value, MutationType::SetVersionstampedKey)?;
            trx.clear(key);
            user_version += 1;
            if !room.take(4 * key.len() + value.len()) && at + 1 < rows.len() {
                let begin = [key.as_slice(), &[0]].concat();
                return Ok((user_version, Some(KeyRange { begin, end: range.end.clone() })));
            }
        }
        let last = rows.last().filter(|_| !is_all);
        let rest = last.map(|(last, _)| KeyRange { begin: [last.as_slice(), &[0]].concat(), end: range.end.clone() });
        Ok((user_version, rest))
    }
}

/// The first rows of a range, with conflict, and whether they are all.
async fn read(trx: &Transaction, range: &KeyRange, most: usize) -> Result<(Vec<Row>, bool)> {
    if range.begin >= range.end {
        return Ok((Vec::new(), true));
    }
    let page = trx.get_range(&page_of(range, most, false), 1, false).await?;
    let is_all = !page.more() && page.len() < most;
    Ok((page.iter().map(|row| (row.key().to_vec(), row.value().to_vec())).collect(), is_all))
}

#[cfg(test)]
mod tests {
    use crate::fenced::database;
    use crate::renew::renew;
    use crate::store::seq::Seq;
    use crate::store::transaction::Transaction;
    use crate::{ChangesQuery, Edit, check};
    use flatbed_flatten::json::{Limits, parse};

    #[tokio::test]
    async fn entries_before_and_behind_the_new_incarnation_are_moved() {
        let (db, _directory) = database().await;
        let ids = ["a", "b", "c"];
        for id in ids {
            let body = parse(b"{}", &Limits::default()).unwrap();
            let (id, attachments) = (id.into(), Vec::new());
            db.update(&Edit { id, parent: None, history: None, deleted: false, attachments, body }).await.unwrap();
        }
        let inner = &db.inner;
        let instance = crate::write::batch::instance_of(inner, "db").await.unwrap();
        let trx = Transaction::begin(&inner.db, &inner.metrics).unwrap();
        for (id, incarnation) in ids.into_iter().zip([0, 0, u64::MAX]) {
            let info = crate::document::tree::info(&trx, &instance.keys.document(id), true)
                .await
                .unwrap()
                .expect("a document");
            let key = instance.keys.by_seq(&Seq::new(instance.incarnation(), info.stamp));
            let entry = trx.get(&key, true).await.unwrap().expect("an entry");
            trx.clear(&key);
            trx.set(&instance.keys.by_seq(&Seq::new(incarnation, info.stamp)), &entry);
        }
        trx.commit().await.unwrap();
        renew(&inner.db, &inner.options.root, false, |_| {}).await.unwrap();
        let page = db.changes(ChangesQuery::default()).next_page().await.unwrap();
        assert_eq!(page.rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ids);
        let report = check::check_database(&db, |_| {}).await.unwrap();
        assert!(report.is_clean(), "{report:#?}");
    }
}
