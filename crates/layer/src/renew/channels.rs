//! New stamps for what channels, users and roles have of sequences.
//!
//! Whether a row of a user's feed is there depends on whether a document changed, or left a channel, before or behind the change that
//! gave the user the channel. So the stamps of left channels, of periods, of versions and of principals' records are given anew
//! together with those of documents, in the order that all of them had, and what had the same has the same again.
//!
//! They stand in values, in the order of names. So first the renewal notes under each stamp the keys whose values bear it, and that
//! it has noted all ([`Renewal::mark`]); an interrupted one begins that anew. Then each transaction that moves entries of by-seq takes
//! the marks among them along ([`Marks::up_to`]) and clears them, so that it is seen where it was interrupted.

use std::collections::{HashSet, VecDeque};

use flatbed_channels::Left;
use foundationdb::options::MutationType;
use futures_util::future::{OptionFuture, join, try_join_all};
use prost::Message;

use crate::error::{Error, Result};
use crate::index::channels::{channels_of_winner, entry_of};
use crate::renew::database::{Room, Row, read};
use crate::renew::{PAGE_BYTES_MAX, PAGE_ENTRIES, Renewal};
use crate::store::buckets::{Buckets, Writer};
use crate::store::keys::{ChannelPart, DocumentPart, KeyRange, Keys, PrincipalPart};
use crate::store::proto;
use crate::store::records::Info;
use crate::store::seq::{STAMP_BYTES, Seq};
use crate::store::transaction::{self, Attempt, Operation, Quiet, Transaction};

type Stamp = [u8; STAMP_BYTES];

impl Renewal<'_> {
    /// Notes all stamps in values, unless that has been done.
    pub(super) async fn mark(
        &self,
        record_key: &[u8],
        record: &proto::DatabaseRecord,
        keys: &Keys,
        progress: &mut (dyn FnMut() + Send),
    ) -> Result<()> {
        let mut ranges = VecDeque::from(
            [keys.left_all(), keys.stays_all(), keys.principals_stamped()].map(|range| (range, Of::Values)),
        );
        let buckets = Buckets::of_record(keys, record, Writer::Fixed(0));
        ranges.extend(buckets.all().iter().map(|bucket| (bucket.by_seq_any(), Of::Documents)));
        let mut page = MarkPage { renewal: self, record_key, record, keys, ranges, is_first: true, attempts: 0 };
        loop {
            let Some(ranges) = transaction::write(self.db, self.metrics, &mut page).await? else { return Ok(()) };
            progress();
            page = MarkPage { ranges, is_first: false, attempts: 0, ..page };
        }
    }
}

/// What lies in a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    /// Values that bear stamps.
    Values,
    /// Entries of by-seq: of documents whose infos do.
    Documents,
}

struct MarkPage<'a> {
    renewal: &'a Renewal<'a>,
    record_key: &'a [u8],
    record: &'a proto::DatabaseRecord,
    keys: &'a Keys,
    ranges: VecDeque<(KeyRange, Of)>,
    is_first: bool,
    attempts: u32,
}

impl Operation for MarkPage<'_> {
    /// What is left; `None`: all is noted.
    type Output = Option<VecDeque<(KeyRange, Of)>>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let Renewal { keys: root_keys, epoch, .. } = *self.renewal;
        let halvings = self.attempts.min(10);
        self.attempts += 1;
        let (root, record) = (trx.get(&root_keys.instance(), false), trx.get(self.record_key, false));
        let marked = trx.get(&self.keys.renewal_marked(), false);
        self.renewal.is_own(root.await?.as_deref())?;
        let record = record.await?.map(|bytes| proto::DatabaseRecord::decode(&*bytes)).transpose()?;
        if record.as_ref() != Some(self.record) {
            return Err(Error::RenewedElsewhere);
        }
        if marked.await?.as_deref() == Some(&epoch.to_be_bytes()) {
            return Ok(None);
        }
        let quiet = Quiet(trx);
        if self.is_first {
            quiet.clear(&self.keys.renewal_marked())?;
            quiet.clear_range(&self.keys.renewal_marks())?;
        }
        let mut ranges = self.ranges.clone();
        let Some((range, of)) = ranges.front_mut().map(|(range, of)| (range, *of)) else {
            trx.set(&self.keys.renewal_marked(), &epoch.to_be_bytes());
            return Ok(None);
        };
        let (rows, mut is_all) = read(trx, range, (PAGE_ENTRIES >> halvings).max(1)).await?;
        let mut bytes = 0;
        let infos = match of {
            Of::Values => Vec::new(),
            Of::Documents => try_join_all(rows.iter().map(|(_, entry)| self.info(trx, entry))).await?,
        };
        for (at, (key, value)) in rows.iter().enumerate() {
            let (stamped, value) = match (of, infos.get(at)) {
                (Of::Values, _) => (key, value),
                (Of::Documents, Some(Some((key, info)))) => (key, info),
                (Of::Documents, _) => (key, &Vec::new()),
            };
            for stamp in places(self.keys, stamped, value).into_iter().filter_map(|place| stamp_at(value, place)) {
                let mark = self.keys.renewal_mark(&stamp, stamped);
                bytes += mark.len();
                quiet.set(&mark, b"")?;
            }
            range.begin = [key.as_slice(), &[0]].concat();
            if bytes > PAGE_BYTES_MAX >> halvings && at + 1 < rows.len() {
                is_all = false;
                break;
            }
        }
        if is_all {
            ranges.pop_front();
        }
        Ok(Some(ranges))
    }
}

impl MarkPage<'_> {
    /// The info of the document of an entry of by-seq, with its key.
    async fn info(&self, trx: &Transaction, entry: &[u8]) -> Result<Option<Row>> {
        let Ok(entry) = proto::SequenceEntry::decode(entry) else { return Ok(None) };
        if entry.channels.is_none() {
            return Ok(None);
        }
        let key = self.keys.document(&entry.document_id).info();
        let info = trx.get(&key, false).await?;
        Ok(info.map(|info| (key, info.to_vec())))
    }
}

/// Where stamps stand in a value; of what cannot be read nowhere: it stays, for the checker to report.
fn places(keys: &Keys, key: &[u8], value: &[u8]) -> Vec<usize> {
    // Behind the first is a byte.
    let of_periods = || [0].into_iter().chain((STAMP_BYTES + 1..value.len()).step_by(STAMP_BYTES)).collect();
    match keys.split_channels(key) {
        Ok(ChannelPart::Left { .. }) => {
            let since = Left::decode(value).ok().and_then(|left| left.since);
            return [0].into_iter().chain(since.map(|_| value.len() - STAMP_BYTES)).collect();
        }
        Ok(ChannelPart::Stays { .. }) => return of_periods(),
        _ => {}
    }
    if let Ok((id, DocumentPart::Info, _)) = keys.split_document(key)
        && keys.document(&id).info() == key
    {
        let count = Info::decode(value).map_or(0, |info| info.routed.since.count());
        // What the last field is of: its own sequence comes with its entry of by-seq.
        let first = value.len().saturating_sub(count * STAMP_BYTES);
        return (first..value.len()).step_by(STAMP_BYTES).collect();
    }
    match keys.split_principals(key) {
        Ok(PrincipalPart::Version { .. }) => vec![0],
        Ok(PrincipalPart::Record { .. }) => {
            let record = proto::Principal::decode(value);
            let is_last =
                |record: proto::Principal| record.changed.len() == STAMP_BYTES && value.ends_with(&record.changed);
            if record.is_ok_and(is_last) { vec![value.len() - STAMP_BYTES] } else { Vec::new() }
        }
        Ok(PrincipalPart::Periods { .. }) => of_periods(),
        _ => Vec::new(),
    }
}

fn stamp_at(value: &[u8], place: usize) -> Option<Stamp> {
    value.get(place..)?.first_chunk().copied()
}

/// The user versions of a transaction: each stamp of before has its own.
#[derive(Default)]
pub(super) struct Numbers {
    /// The last one, whose it is, and whether an entry of by-seq has it.
    last: Option<(u16, Stamp, bool)>,
}

impl Numbers {
    pub(super) fn of(&mut self, stamp: &Stamp, is_entry: bool) -> u16 {
        let (number, has_entry) = match &self.last {
            None => (0, false),
            Some((number, last, has_entry)) if last == stamp && !(is_entry && *has_entry) => (*number, *has_entry),
            Some((number, ..)) => (number + 1, false),
        };
        self.last = Some((number, *stamp, is_entry || has_entry));
        number
    }
}

/// A value that bears a stamp.
struct Mark {
    mark: Vec<u8>,
    key: Vec<u8>,
    value: Option<Vec<u8>>,
    /// The channel that it says was left, and the entry that says so.
    left: Option<(String, Vec<u8>, Option<Vec<u8>>)>,
}

/// The marks that a transaction may take.
pub(super) struct Marks {
    incarnation: u64,
    groups: VecDeque<(Stamp, Vec<Mark>)>,
    /// Nothing is left behind the last one.
    is_all: bool,
    /// The stamp of the last one that was read.
    until: Option<Stamp>,
    left: KeyRange,
    /// Values that got a stamp: what a transaction has stamped cannot be read back, so none gets two.
    touched: HashSet<Vec<u8>>,
    /// The first that was taken.
    pub first: Option<Vec<u8>>,
    /// The user version of the last one that was taken.
    pub last: Option<u16>,
}

impl Marks {
    /// Reads a page of them: all of each stamp. `old` is the incarnation of before, `incarnation` the new one.
    pub(super) async fn read(
        trx: &Transaction,
        keys: &Keys,
        left: &KeyRange,
        most: usize,
        old: u64,
        incarnation: u64,
    ) -> Result<Marks> {
        let (mut rows, mut is_all) = read(trx, left, most).await?;
        let parse = |mark: &[u8]| keys.split_renewal_mark(mark);
        if let (false, Some((last, _))) = (is_all, rows.last()) {
            let (stamp, _) = parse(last)?;
            let mut end = keys.renewal_mark(&stamp, b"");
            end.push(0xff);
            // One transaction has stamped them, so they are no more than one can take.
            let mut rest = KeyRange { begin: [last.as_slice(), &[0]].concat(), end };
            loop {
                let (more, is_end) = read(trx, &rest, PAGE_ENTRIES).await?;
                rest.begin = more.last().map_or_else(|| rest.end.clone(), |(last, _)| [last.as_slice(), &[0]].concat());
                rows.extend(more);
                if is_end {
                    break;
                }
            }
        }
        is_all |= rows.is_empty();
        let marks = rows.into_iter().map(|(mark, _)| parse(&mark).map(|(stamp, key)| (mark, stamp, key)));
        let marks = marks.collect::<Result<Vec<_>>>()?;
        let reads = marks.into_iter().map(|(mark, stamp, key)| {
            let value = trx.get(&key, true);
            let entry = match keys.split_channels(&key) {
                Ok(ChannelPart::Left { channel, .. }) => {
                    let entry = keys.channel_entry(&channel, &Seq::new(old, stamp));
                    Some((channel, trx.get(&entry, true), entry))
                }
                _ => None,
            };
            let entry =
                entry.map(|(channel, read, entry)| async move { Ok::<_, Error>((channel, entry, read.await?)) });
            async move {
                let (value, left) = join(value, OptionFuture::from(entry)).await;
                let value = value?.map(|value| value.to_vec());
                let left =
                    left.transpose()?.map(|(channel, key, entry)| (channel, key, entry.map(|entry| entry.to_vec())));
                Ok::<_, Error>((stamp, Mark { mark, key, value, left }))
            }
        });
        let mut groups: VecDeque<(Stamp, Vec<Mark>)> = VecDeque::new();
        for (stamp, mark) in try_join_all(reads).await? {
            match groups.back_mut() {
                Some((last, marks)) if *last == stamp => marks.push(mark),
                _ => groups.push_back((stamp, vec![mark])),
            }
        }
        let until = groups.back().map(|(stamp, _)| *stamp);
        let (left, touched) = (left.clone(), HashSet::new());
        Ok(Marks { incarnation, groups, is_all, until, left, touched, first: None, last: None })
    }

    /// Takes those that come before an entry of by-seq, and those of its stamp; `None`: all. `info`: the key of what its document says
    /// of itself. Whether the entry's turn has come: else the transaction takes no more, and nothing of the entry's stamp either.
    pub(super) fn up_to(
        &mut self,
        trx: &Transaction,
        keys: &Keys,
        entry: Option<&Stamp>,
        info: Option<&[u8]>,
        numbers: &mut Numbers,
        room: &mut Room,
    ) -> Result<bool> {
        let is_before = |group: &(Stamp, Vec<Mark>)| entry.is_none_or(|entry| group.0 <= *entry);
        while self.groups.front().is_some_and(is_before) {
            let Some((stamp, marks)) = self.groups.pop_front() else { break };
            let is_with_entry = entry == Some(&stamp);
            let is_touched = |key: &[u8]| self.touched.contains(key);
            if marks.iter().any(|mark| is_touched(&mark.key)) || is_with_entry && info.is_some_and(is_touched) {
                self.groups.push_front((stamp, marks));
                return Ok(false);
            }
            let number = numbers.of(&stamp, false);
            self.last = Some(number);
            let mut is_room = true;
            for mark in marks {
                is_room = room.take(mark.stamp_anew(trx, keys, &stamp, self.incarnation, number)?);
                self.left.begin = [mark.mark.as_slice(), &[0]].concat();
                self.first = self.first.take().or(Some(mark.mark));
                self.touched.insert(mark.key);
            }
            if !is_room && !is_with_entry {
                return Ok(false);
            }
        }
        let are_read = self.is_all || entry.is_some_and(|entry| self.until.is_some_and(|until| *entry <= until));
        // What got a stamp in this transaction is not what was read.
        Ok(are_read && !info.is_some_and(|info| self.touched.contains(info)))
    }

    /// What is left behind those that were taken.
    pub(super) fn left(&self) -> KeyRange {
        let KeyRange { begin, end } = self.left.clone();
        match self.is_all && self.groups.is_empty() {
            true => KeyRange { begin: end.clone(), end },
            false => KeyRange { begin, end },
        }
    }
}

impl Mark {
    /// Gives the value another stamp, and the entry that belongs to it. Returns the bytes of that.
    fn stamp_anew(
        &self,
        trx: &Transaction,
        keys: &Keys,
        stamp: &Stamp,
        incarnation: u64,
        number: u16,
    ) -> Result<usize> {
        let quiet = Quiet(trx);
        quiet.clear(&self.mark)?;
        let mut bytes = 2 * self.mark.len();
        let Some(mut operand) = self.value.clone() else { return Ok(bytes) };
        let place =
            places(keys, &self.key, &operand).into_iter().find(|place| stamp_at(&operand, *place) == Some(*stamp));
        let Some(place) = place else { return Ok(bytes) };
        if let Some(version) = operand.get_mut(place + STAMP_BYTES - 2..place + STAMP_BYTES) {
            version.copy_from_slice(&number.to_be_bytes());
        }
        operand.extend_from_slice(&(place as u32).to_le_bytes());
        quiet.atomic(&self.key, &operand, MutationType::SetVersionstampedValue)?;
        bytes += self.key.len() + operand.len();
        if let Some((channel, old, Some(entry))) = &self.left {
            let new = keys.channel_entry_stamped(channel, incarnation, number);
            quiet.clear(old)?;
            quiet.atomic(&new, entry, MutationType::SetVersionstampedKey)?;
            bytes += 2 * old.len() + new.len() + entry.len();
        }
        Ok(bytes)
    }
}

/// Moves a document's own entries along with that of by-seq. Returns the bytes of that.
pub(super) async fn move_entries(
    trx: &Transaction,
    keys: &Keys,
    id: &str,
    info: &[u8],
    seq: &Seq,
    (incarnation, number): (u64, u16),
) -> Result<usize> {
    let Ok(info) = Info::decode(info) else { return Ok(0) };
    let channels = channels_of_winner(trx, &keys.document(id), &info).await?;
    let entry = entry_of(id, &info, false, channels.iter().map(String::as_str)).encode();
    let (quiet, mut bytes) = (Quiet(trx), 0);
    for channel in &channels {
        let (old, new) = (keys.channel_entry(channel, seq), keys.channel_entry_stamped(channel, incarnation, number));
        quiet.clear(&old)?;
        quiet.atomic(&new, &entry, MutationType::SetVersionstampedKey)?;
        bytes += 2 * old.len() + new.len() + entry.len();
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
