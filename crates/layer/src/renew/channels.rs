//! New stamps for the sequences in channels, users and roles.
//!
//! A row of a user's feed depends on whether a document changed, or left a channel, before or behind the grant of the
//! channel. So the stamps of departures, periods, versions and principals' records are renewed together with those of
//! documents, in their common order; equal stamps stay equal.
//!
//! These stamps are in values, ordered by names. So the renewal first writes a mark for each of them, by stamp and key,
//! and then that the marks are complete ([`Renewal::mark`]); an interrupted renewal begins this step again. Then each
//! transaction that moves by-seq entries applies the marks between them ([`Marks::advance_to`]) and clears them, which
//! records the position.

use std::collections::{HashSet, VecDeque};

use flatbed_channels::ChannelDeparture;
use flatbed_operations::index::channels::{channels_of_winner, entry_of};
use flatbed_store::buckets::{Buckets, Writer};
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{ChannelPart, DocumentPart, KeyRange, Keys, PrincipalPart};
use flatbed_store::proto;
use flatbed_store::records::Info;
use flatbed_store::seq::{STAMP_BYTES, Seq};
use flatbed_store::transaction::{self, Attempt, Operation, Quiet, Transaction};
use foundationdb::options::MutationType;
use futures_util::future::{OptionFuture, join, try_join_all};
use prost::Message;

use crate::renew::database::{Room, Row, read};
use crate::renew::{PAGE_BYTES_MAX, PAGE_ENTRIES, Renewal};

type Stamp = [u8; STAMP_BYTES];

impl Renewal<'_> {
    /// Writes marks for all stamps in values, unless they are complete.
    pub(super) async fn mark(
        &self,
        record_key: &[u8],
        record: &proto::DatabaseRecord,
        keys: &Keys,
        progress: &mut (dyn FnMut() + Send),
    ) -> Result<()> {
        let mut ranges = VecDeque::from(
            [keys.left_all(), keys.stays_all(), keys.principals_stamped()].map(|range| (range, RangeContent::Values)),
        );
        let buckets = Buckets::of_record(keys, record, Writer::Fixed(0));
        ranges.extend(buckets.all().iter().map(|bucket| (bucket.by_seq_any(), RangeContent::Documents)));
        let mut page = MarkPage { renewal: self, record_key, record, keys, ranges, is_first: true, attempts: 0 };
        loop {
            let Some(ranges) = transaction::write(self.db, self.metrics, &mut page).await? else { return Ok(()) };
            progress();
            page = MarkPage { ranges, is_first: false, attempts: 0, ..page };
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RangeContent {
    Values,
    /// By-seq entries, whose documents' infos have stamps.
    Documents,
}

struct MarkPage<'a> {
    renewal: &'a Renewal<'a>,
    record_key: &'a [u8],
    record: &'a proto::DatabaseRecord,
    keys: &'a Keys,
    ranges: VecDeque<(KeyRange, RangeContent)>,
    is_first: bool,
    attempts: u32,
}

impl Operation for MarkPage<'_> {
    /// The remaining ranges; `None` if all are marked.
    type Output = Option<VecDeque<(KeyRange, RangeContent)>>;

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
        let (rows, mut is_all) = read(trx, range, (PAGE_ENTRIES.get() >> halvings).max(1)).await?;
        let mut bytes = 0;
        let infos = match of {
            RangeContent::Values => Vec::new(),
            RangeContent::Documents => try_join_all(rows.iter().map(|(_, entry)| self.info(trx, entry))).await?,
        };
        for (at, (key, value)) in rows.iter().enumerate() {
            let (stamped, value) = match (of, infos.get(at)) {
                (RangeContent::Values, _) => (key, value),
                (RangeContent::Documents, Some(Some((key, info)))) => (key, info),
                (RangeContent::Documents, _) => (key, &Vec::new()),
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
    /// Reads the info of a by-seq entry's document, with its key.
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

/// Returns the positions of stamps in a value; none for a corrupt value, which stays for the checker to report.
fn places(keys: &Keys, key: &[u8], value: &[u8]) -> Vec<usize> {
    // A byte follows the first one.
    let of_periods = || [0].into_iter().chain((STAMP_BYTES + 1..value.len()).step_by(STAMP_BYTES)).collect();
    match keys.split_channels(key) {
        Ok(ChannelPart::Left { .. }) => {
            let since = ChannelDeparture::decode(value).ok().and_then(|left| left.since);
            return [0].into_iter().chain(since.map(|_| value.len() - STAMP_BYTES)).collect();
        }
        Ok(ChannelPart::Stays { .. }) => return of_periods(),
        _ => {}
    }
    if let Ok((id, DocumentPart::Info, _)) = keys.split_document(key)
        && keys.document(&id).info() == key
    {
        let count = Info::decode(value).map_or(0, |info| info.routed.since.count());
        // The other values of the last field; the document's own sequence comes with its by-seq entry.
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

/// Assigns user versions in a transaction: one for each old stamp.
#[derive(Default)]
pub(super) struct Numbers {
    /// The last one, its stamp, and whether a by-seq entry has it.
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

struct Mark {
    mark: Vec<u8>,
    key: Vec<u8>,
    value: Option<Vec<u8>>,
    /// The channel of a departure, and its entry.
    left: Option<(String, Vec<u8>, Option<Vec<u8>>)>,
}

pub(super) struct Marks {
    incarnation: u64,
    groups: VecDeque<(Stamp, Vec<Mark>)>,
    is_all: bool,
    /// The stamp of the last mark that was read.
    until: Option<Stamp>,
    left: KeyRange,
    /// Values that were stamped: a transaction cannot read its own stamps back, so each value gets at most one.
    touched: HashSet<Vec<u8>>,
    /// The first applied mark.
    pub first: Option<Vec<u8>>,
    /// The user version of the last applied mark.
    pub last: Option<u16>,
}

impl Marks {
    /// Reads a page with all marks of each stamp. `old` is the earlier incarnation, `incarnation` the new one.
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
            // One transaction wrote this stamp, so its marks fit one transaction.
            let mut rest = KeyRange { begin: [last.as_slice(), &[0]].concat(), end };
            loop {
                let (more, is_end) = read(trx, &rest, PAGE_ENTRIES.get()).await?;
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

    /// Applies the marks before a by-seq entry and those of its stamp; `None`: all. `info`: the key of its document's
    /// info. Returns whether the entry may be moved: otherwise the transaction ends before it, and before its stamp's
    /// marks.
    pub(super) fn advance_to(
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
        // A value stamped in this transaction differs from the one that was read.
        Ok(are_read && !info.is_some_and(|info| self.touched.contains(info)))
    }

    pub(super) fn left(&self) -> KeyRange {
        let KeyRange { begin, end } = self.left.clone();
        match self.is_all && self.groups.is_empty() {
            true => KeyRange { begin: end.clone(), end },
            false => KeyRange { begin, end },
        }
    }
}

impl Mark {
    /// Replaces the stamp in the value and in its entry, and returns their bytes.
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

/// Moves a document's channel entries with its by-seq entry, and returns their bytes.
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
