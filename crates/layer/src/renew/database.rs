//! A new incarnation and new stamps for a database.

use flatbed_databases::instance::next_incarnation;
use flatbed_store::buckets::{Buckets, Writer};
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{KeyRange, Keys};
use flatbed_store::merge::{Part, Shares, merge};
use flatbed_store::proto;
use flatbed_store::records::stamped_anew;
use flatbed_store::seq::STAMP_BYTES;
use flatbed_store::transaction::{self, Attempt, Operation, Quiet, Transaction};
use flatbed_store::updated::UpdatedKeys;
use flatbed_store::updated::touch_last_seq;
use foundationdb::options::MutationType;
use futures_util::future::{try_join, try_join_all};
use prost::Message;

use crate::renew::channels::{Marks, Numbers, move_entries};
use crate::renew::selected::SelectorEntries;
use crate::renew::{PAGE_BYTES_MAX, PAGE_ENTRIES, Renewal};

impl Renewal<'_> {
    /// Moves the remaining entries to the new incarnation, and then changes the record. Adds to `entries`.
    pub(super) async fn database(
        &self,
        record_key: &[u8],
        name: &str,
        record: &proto::DatabaseRecord,
        entries: &mut u64,
        progress: &mut (dyn FnMut(u64) + Send),
    ) -> Result<()> {
        let namespace = self.keys.namespace(record.namespace);
        let buckets = Buckets::of_record(&namespace, record, Writer::Fixed(0));
        let left = buckets.all().iter().map(|bucket| bucket.by_seq_any()).collect();
        let mut marks = namespace.renewal_marks();
        if record.channels == 0 {
            marks.begin = marks.end.clone();
        } else {
            self.mark(record_key, record, &namespace, &mut || progress(*entries)).await?;
        }
        let left = RemainingWork { entries: left, marks, purges: namespace.purges(), shares: Shares::default() };
        let mut step = RenewStep {
            renewal: self,
            record_key,
            record,
            incarnation: next_incarnation(record, self.epoch),
            updated: (0..record.shards.max(1)).map(|shard| UpdatedKeys::new(self.keys, name, shard)).collect(),
            keys: namespace,
            buckets,
            left,
            attempts: 0,
            attempted: None,
        };
        loop {
            let StepResult { moved, is_marked, purges, left } =
                transaction::write(self.db, self.metrics, &mut step).await?;
            *entries += moved;
            if moved > 0 || is_marked || purges > 0 || left.is_none() {
                progress(*entries);
            }
            let Some(left) = left else { return Ok(()) };
            step = RenewStep { left, attempts: 0, attempted: None, ..step };
        }
    }
}

#[derive(Clone)]
struct RemainingWork {
    entries: Vec<KeyRange>,
    marks: KeyRange,
    purges: KeyRange,
    /// Each bucket's share of the entries in the last transaction.
    shares: Shares,
}

impl RemainingWork {
    fn is_none(&self) -> bool {
        self.entries.iter().chain([&self.marks, &self.purges]).all(|range| range.begin >= range.end)
    }
}

#[derive(Clone)]
struct StepResult {
    moved: u64,
    is_marked: bool,
    purges: u16,
    /// The remaining work; `None` if the database is finished.
    left: Option<RemainingWork>,
}

struct RenewStep<'a> {
    renewal: &'a Renewal<'a>,
    record_key: &'a [u8],
    record: &'a proto::DatabaseRecord,
    incarnation: u64,
    keys: Keys,
    buckets: Buckets,
    updated: Vec<UpdatedKeys>,
    left: RemainingWork,
    attempts: u32,
    /// The first entry that the last attempt would have moved, and its result.
    attempted: Option<(Option<Vec<u8>>, StepResult)>,
}

pub(super) type Row = (Vec<u8>, Vec<u8>);

impl Operation for RenewStep<'_> {
    type Output = StepResult;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<StepResult> {
        // After failures a transaction takes less, in case it took too long or is too large with the document ids.
        let halvings = self.attempts.min(10);
        self.attempts += 1;
        let mut room = Room { entries: (PAGE_ENTRIES.get() >> halvings).max(1), bytes: PAGE_BYTES_MAX >> halvings };
        let (root, record) = (trx.get(&self.renewal.keys.instance(), false), trx.get(self.record_key, false));
        let own: Vec<_> = self.buckets.all().iter().map(|bucket| bucket.by_seq_all(self.incarnation)).collect();
        let newest: Vec<_> = own.iter().map(|own| trx.range(own, true).any()).collect();
        let updated = try_join_all(self.updated.iter().map(|updated| updated.is_there(trx)));
        self.renewal.is_own(root.await?.as_deref())?;
        let mut record = match record.await? {
            Some(bytes) => proto::DatabaseRecord::decode(&*bytes)?,
            None => return Err(Error::RenewedElsewhere),
        };
        if let (true, Some((first, stepped))) = (attempt.maybe_committed, &self.attempted) {
            // A finished database is counted and not examined again.
            let is_settled = record.epoch == self.renewal.epoch;
            if is_settled || matches!(first, Some(first) if trx.get(first, false).await?.is_none()) {
                return Ok(stepped.clone());
            }
        }
        if record != *self.record {
            return Err(Error::RenewedElsewhere);
        }
        // Before any write: a later read of these keys would see versionstamped values of the transaction, and fail.
        let newest = try_join_all(newest).await?;
        let MovedEntries { moved, first, mut last_of, left: entries, marks, last_mark, shares } =
            self.entries(trx, &own, &mut room).await?;
        // A change of users and roles counts as a change of the database, behind its entries.
        last_of.iter_mut().take(1).for_each(|last| *last = (*last).max(last_mark));
        let mut has_entries: Vec<bool> =
            newest.into_iter().zip(&last_of).map(|(has, last)| has || last.is_some()).collect();
        let was_updated = updated.await?.contains(&true);
        let mut left = RemainingWork { entries, marks, purges: self.left.purges.clone(), shares };
        let mut stamped = 0;
        if left.entries.iter().chain([&left.marks]).all(|range| range.begin >= range.end) {
            (stamped, left.purges) = self.purges(trx, &mut room).await?;
        }
        for ((bucket, updated), last) in self.buckets.all().iter().zip(&self.updated).zip(&last_of) {
            if let Some(last) = last {
                touch_last_seq(trx, bucket, *last)?;
                updated.touch(trx)?;
            }
        }
        let is_done = left.is_none();
        if is_done {
            let says_users = record.channels > 0 && has_entries.first() == Some(&false);
            if !has_entries.contains(&true) || says_users {
                // Only the first bucket records the position of a database without entries, and that of its users and
                // roles.
                has_entries.iter_mut().take(1).for_each(|has| *has = true);
                touch_last_seq(trx, self.buckets.own(), 0)?;
                if was_updated {
                    self.updated.iter().take(1).try_for_each(|updated| updated.touch(trx))?;
                }
            }
            // The stamp of a bucket without entries may be of another cluster.
            for ((bucket, updated), _) in
                self.buckets.all().iter().zip(&self.updated).zip(&has_entries).filter(|(_, has)| !**has)
            {
                trx.clear(&bucket.last_seq());
                updated.clear(trx)?;
            }
            if record.channels > 0 {
                self.forget_marks(trx)?;
            }
            record.incarnation = self.incarnation;
            record.epoch = self.renewal.epoch;
            trx.set(self.record_key, &record.encode_to_vec());
        }
        let is_marked = last_mark.is_some();
        let stepped = StepResult { moved, is_marked, purges: stamped, left: Some(left).filter(|_| !is_done) };
        self.attempted = Some((first, stepped.clone()));
        Ok(stepped)
    }
}

struct MovedEntries {
    moved: u64,
    first: Option<Vec<u8>>,
    /// The user version of the last moved entry of each bucket; `None` if none was moved.
    last_of: Vec<Option<u16>>,
    left: Vec<KeyRange>,
    /// The remaining marks; `last_mark` is the user version of the last applied one.
    marks: KeyRange,
    last_mark: Option<u16>,
    shares: Shares,
}

/// The remaining room of a transaction.
pub(super) struct Room {
    entries: usize,
    bytes: usize,
}

impl Room {
    /// Takes an entry of this many bytes, and returns whether there is room for another.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        self.entries = self.entries.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.is_left()
    }

    fn is_left(&self) -> bool {
        self.entries > 0 && self.bytes > 0
    }
}

/// Encodes an entry without the sequence of the change before, which has changed. Every feed begins again, so no
/// follower is between the two changes.
fn without_before(entry: &proto::SequenceEntry) -> Vec<u8> {
    proto::SequenceEntry { before: vec![0; STAMP_BYTES], ..entry.clone() }.encode_to_vec()
}

impl RenewStep<'_> {
    /// Moves entries to the new incarnation, each in its bucket and with its document's sequence, in their order.
    async fn entries(&self, trx: &Transaction, own: &[KeyRange], room: &mut Room) -> Result<MovedEntries> {
        let buckets = self.buckets.all();
        let limits = (0..own.len()).map(|bucket| self.left.shares.limit(bucket, own.len(), room.entries));
        let reads = self.left.entries.iter().zip(own).zip(limits).map(|((left, own), most)| async move {
            let KeyRange { begin, end } = left.clone();
            let before = KeyRange { begin: begin.clone(), end: own.begin.clone().min(end.clone()) };
            let behind = KeyRange { begin: own.end.clone().max(begin), end };
            let (before, behind) = (read(trx, &before, most), read(trx, &behind, most));
            let ((mut rows, mut is_all), (more, is_end)) = try_join(before, behind).await?;
            if is_all {
                rows.extend(more);
                is_all = is_end;
            }
            Ok::<_, Error>((rows, is_all))
        });
        let (marks, old) = (&self.left.marks, self.record.incarnation);
        let marks = Marks::read(trx, &self.keys, marks, room.entries, old, self.incarnation);
        let (read, mut marks) = try_join(try_join_all(reads), marks).await?;
        let is_read: Vec<bool> = read.iter().map(|(_, is_all)| *is_all).collect();
        let parts = read.iter().zip(buckets.iter()).map(|((rows, is_all), bucket)| {
            let rows = rows.iter().map(|row| (bucket.by_seq_place(&row.0), row)).collect();
            Part { rows, is_all: *is_all }
        });
        let merged = merge(parts.collect(), usize::MAX, |(place, _)| *place);
        let entries = merged.rows.iter().map(|(_, (_, row))| proto::SequenceEntry::decode(row.1.as_slice()).ok());
        let infos: Vec<_> = entries
            .map(|entry| entry.map(|entry| self.keys.document(&entry.document_id).info()))
            .map(|key| key.map(|key| (trx.get(&key, true), key)))
            .collect();
        let seqs =
            merged.rows.iter().filter_map(|(number, (_, (key, _)))| buckets.get(*number)?.by_seq_parse(key).ok());
        let selected = SelectorEntries::read(trx, &self.keys, self.record, seqs).await?;
        let quiet = Quiet(trx);
        let mut cleared: Vec<Option<Vec<u8>>> = vec![None; own.len()];
        let mut last_read: Vec<Option<&Vec<u8>>> = vec![None; own.len()];
        let (mut first, mut last_of, mut left) = (None, vec![None; own.len()], Vec::with_capacity(own.len()));
        let (mut numbers, mut moved_in, mut is_cut) = (Numbers::default(), Vec::new(), false);
        for ((number, (_, (key, value))), info) in merged.rows.iter().zip(infos) {
            let number = *number;
            let (Some(bucket), Some(own), Some(cleared), Some(last_read), Some(last)) = (
                buckets.get(number),
                own.get(number),
                cleared.get_mut(number),
                last_read.get_mut(number),
                last_of.get_mut(number),
            ) else {
                break;
            };
            let seq = bucket.by_seq_parse(key).ok();
            let info_key = info.as_ref().map(|(_, key)| key.as_slice());
            if let Some(seq) = &seq
                && !marks.advance_to(trx, &self.keys, Some(seq.stamp()), info_key, &mut numbers, room)?
            {
                is_cut = true;
                break;
            }
            *last_read = Some(key);
            if *key >= own.end {
                // Moved entries lie between entries of older incarnations before and behind them.
                cleared.take_if(|begin| *begin < own.begin).inspect(|begin| trx.clear_range(begin, &own.begin));
            }
            let Some(seq) = seq else {
                // An invalid entry stays for the checker to report.
                cleared.take().inspect(|begin| trx.clear_range(begin, key));
                continue;
            };
            let user_version = numbers.of(seq.stamp(), true);
            let stamped = bucket.by_seq_stamped(self.incarnation, user_version);
            let entry = proto::SequenceEntry::decode(value.as_slice()).ok();
            let anew = entry.as_ref().filter(|entry| !entry.before.is_empty()).map(without_before);
            let value = anew.as_ref().unwrap_or(value);
            quiet.atomic(&stamped, value, MutationType::SetVersionstampedKey)?;
            let mut bytes = key.len() + stamped.len() + value.len();
            bytes += selected.move_entries(trx, &self.keys, &seq, (self.incarnation, user_version))?;
            if let Some((found, info_key)) = info
                && let Some(info) = found.await?
                && let Some(operand) = stamped_anew(&info, seq.stamp(), user_version)
            {
                quiet.atomic(&info_key, &operand, MutationType::SetVersionstampedValue)?;
                bytes += info_key.len() + operand.len();
                if self.record.channels > 0
                    && let Some(entry) = &entry
                {
                    let place = (self.incarnation, user_version);
                    bytes += move_entries(trx, &self.keys, &entry.document_id, &info, &seq, place).await?;
                }
            }
            *last = Some(user_version);
            moved_in.push(number);
            first = first.or_else(|| Some(key.clone()));
            *cleared = cleared.take().or_else(|| Some(key.clone()));
            if !room.take(bytes) {
                is_cut = true;
                break;
            }
        }
        if !is_cut && merged.is_all {
            marks.advance_to(trx, &self.keys, None, None, &mut numbers, room)?;
        }
        let moved = moved_in.len() as u64;
        let shares = Shares::of(own.len(), moved_in.into_iter());
        for (number, old) in self.left.entries.iter().enumerate() {
            let behind_last = last_read.get(number).copied().flatten().map(|last| [last.as_slice(), &[0]].concat());
            if let (Some(Some(begin)), Some(end)) = (cleared.get(number), &behind_last) {
                trx.clear_range(begin, end);
            }
            let rows = read.get(number).and_then(|(rows, _)| rows.last());
            let is_through = last_read.get(number).copied().flatten() == rows.map(|(key, _)| key);
            let begin = match behind_last {
                _ if is_through && is_read.get(number) == Some(&true) => old.end.clone(),
                Some(begin) => begin,
                None => old.begin.clone(),
            };
            left.push(KeyRange { begin, end: old.end.clone() });
        }
        let first = first.or(marks.first.take());
        let (last_mark, marks) = (marks.last, marks.left());
        Ok(MovedEntries { moved, first, last_of, left, marks, last_mark, shares })
    }

    /// Clears the complete marks, and the records of changed principals, which only earlier followers need.
    fn forget_marks(&self, trx: &Transaction) -> Result<()> {
        let quiet = Quiet(trx);
        quiet.clear(&self.keys.renewal_marked())?;
        quiet.clear_range(&self.keys.renewal_marks())?;
        quiet.clear_range(&self.keys.changed_principals_all())
    }

    /// Stamps purges again. Returns their number, and the remaining range.
    async fn purges(&self, trx: &Transaction, room: &mut Room) -> Result<(u16, KeyRange)> {
        let range = &self.left.purges;
        if !room.is_left() {
            return Ok((0, range.clone()));
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
                return Ok((user_version, KeyRange { begin, end: range.end.clone() }));
            }
        }
        let last = rows.last().filter(|_| !is_all);
        let begin = last.map_or_else(|| range.end.clone(), |(last, _)| [last.as_slice(), &[0]].concat());
        Ok((user_version, KeyRange { begin, end: range.end.clone() }))
    }
}

/// Reads the first rows of a range, with conflict, and whether they are all.
pub(super) async fn read(trx: &Transaction, range: &KeyRange, most: usize) -> Result<(Vec<Row>, bool)> {
    if range.begin >= range.end {
        return Ok((Vec::new(), true));
    }
    let page = trx.range(range, false).page(most).await?;
    Ok((page.to_vec(), page.is_all()))
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};
    use flatbed_store::seq::Seq;
    use flatbed_store::transaction::Transaction;

    use crate::renew::renew;
    use crate::tests::fenced::database;
    use crate::{ChangesQuery, Edit, check};

    #[tokio::test]
    async fn entries_before_and_behind_the_new_incarnation_are_moved() {
        let (db, _storage) = database().await;
        let ids = ["a", "b", "c"];
        for id in ids {
            let body = parse(b"{}", &Limits::default()).unwrap();
            let (id, attachments) = (id.into(), Vec::new());
            db.update(&Edit { expiry: None, id, parent: None, history: None, deleted: false, attachments, body })
                .await
                .unwrap();
        }
        let inner = &db.inner;
        let instance = flatbed_operations::write::batch::instance_of(inner, "db").await.unwrap();
        let trx = Transaction::begin(&inner.db, &inner.metrics).unwrap();
        for (id, incarnation) in ids.into_iter().zip([0, 0, u64::MAX]) {
            let info = flatbed_databases::document::tree::info(&trx, &instance.keys.document(id), true)
                .await
                .unwrap()
                .expect("a document");
            let key = instance.buckets.own().by_seq(&Seq::new(instance.incarnation(), info.stamp));
            let entry = trx.get(&key, true).await.unwrap().expect("an entry");
            trx.clear(&key);
            trx.set(&instance.buckets.own().by_seq(&Seq::new(incarnation, info.stamp)), &entry);
        }
        trx.commit().await.unwrap();
        renew(&inner.db, &inner.options.root, false, |_| {}).await.unwrap();
        let (mut changes, mut changed) = (db.changes(ChangesQuery::default()), Vec::new());
        loop {
            let page = changes.next_page().await.unwrap();
            changed.extend(page.rows.into_iter().map(|row| row.id));
            if page.at_end {
                break;
            }
        }
        assert_eq!(changed, ids);
        let report = check::check_database(&db, |_| {}).await.unwrap();
        assert!(report.is_clean(), "{report:#?}");
    }
}
