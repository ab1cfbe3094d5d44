//! The reads of a feed of channels: entries, and documents where a row depends on their current state.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use flatbed_channels::{
    ALL, ChannelDeparture, ChannelEntry, DocumentState, FeedRow, FeedScope, Position, ReadRange, RowKind, Source as Of,
    Stamp,
};
use flatbed_clock::Clock;
use flatbed_databases::document::body::begin_read;
use flatbed_databases::document::edit::check_document_id;
use flatbed_databases::instance::Instance;
use flatbed_databases::limits::Limit;
use flatbed_databases::server::Inner;
use flatbed_operations::index::channels::decode_stays;
use flatbed_operations::read::all_docs::PAGE_ROWS_MAX;
use flatbed_revtree::RevId;
use flatbed_store::by_seq;
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{BucketKeys, DocumentKeys, KeyRange};
use flatbed_store::merge::Shares;
use flatbed_store::metrics::Metrics;
use flatbed_store::proto;
use flatbed_store::records::since::{born, since_each};
use flatbed_store::records::{Info, RevisionRecord, is_over, revision};
use flatbed_store::seq::Seq;
use flatbed_store::transaction::Transaction;
use futures_util::future::{BoxFuture, try_join, try_join_all};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use prost::Message;

use crate::feed::source::channels::{MergeRow, RunningMerge};

pub const AT_ONCE: Limit<usize> = Limit::new(256, 3);

/// Entries that a merge buffers, beside those it needs to proceed: as many again, and one for each stream.
const ROOM: usize = 4 * PAGE_ROWS_MAX;

/// The smallest number of entries to request from a stream, if the buffer has room for it.
const LIMIT_MIN: Limit<usize> = Limit::new(16, 1);

/// The smallest number of entries to request from each of `streams` streams.
fn least(streams: usize) -> usize {
    (ROOM / streams.max(1)).clamp(1, LIMIT_MIN.get())
}

/// Approximate bytes of an entry with its key.
pub(super) const ENTRY_BYTES: u64 = 120;

/// Approximate limit of the departures of one document, which has at most 10,000.
const LEFT_BYTES_MAX: u64 = 16 << 20;

pub(super) struct StreamRead {
    stream: usize,
    rows: Vec<(Stamp, ChannelEntry)>,
    at_end: bool,
}

/// Returns how many entries to request first from each stream, for a page of `most` rows: twice the share of a channel,
/// since one of its two streams, before and since its grant, has most of its entries. Later requests double.
pub(super) fn first_limits(streams: usize, most: usize) -> Vec<usize> {
    let each = (4 * most / streams.max(1)).min(most.saturating_add(1)).clamp(least(streams), PAGE_ROWS_MAX);
    vec![each; streams]
}

impl RunningMerge {
    /// Requests what the merge needs; of many ranges those that come first.
    pub(super) fn begin_reads<'t>(
        &mut self,
        trx: &'t Transaction,
        inner: &Inner,
        instance: &Instance,
    ) -> impl Future<Output = Result<Vec<StreamRead>>> + Send + use<'t> {
        let room = ROOM.saturating_sub(self.merge.held_entries());
        // Streams at a similar position run dry at about the same time, so they are read in the same round.
        let low = |stream: usize| self.limits.get(stream).map_or(0, |limit| limit / 4);
        let wants = self.merge.wants(|stream| if room == 0 { 0 } else { low(stream) });
        // The merge needs the first entry of each stream before it yields a row.
        let (count, least) = (wants.len().min(AT_ONCE.get()), least(self.limits.len()));
        let share = (room / count.max(1)).max(least);
        let mut reads = Vec::with_capacity(count);
        let index = self.index_of_all();
        for want in wants.into_iter().take(count) {
            let limit = self.limits.get_mut(want.stream).map_or(least, |limit| {
                let before = *limit;
                *limit = (2 * before).min(PAGE_ROWS_MAX);
                before.min(share)
            });
            let (stream, read) = (want.stream, begin_entries(trx, inner, instance, &want, limit, index));
            reads.push(async move {
                let (rows, at_end) = read.await?;
                Ok(StreamRead { stream, rows, at_end })
            });
        }
        try_join_all(reads)
    }

    /// Returns the index with all documents that the feed may show, without those whose loss it reports.
    fn index_of_all(&self) -> Option<u64> {
        self.index.filter(|_| self.merge.scope().lost().is_empty())
    }

    pub(super) fn give(&mut self, read: Vec<StreamRead>) {
        for StreamRead { stream, rows, at_end } in read {
            self.merge.give(stream, rows, at_end);
        }
    }

    /// Requests the approximate unread bytes of its streams; of many channels a sample stands for the others.
    pub(super) fn begin_size(
        &self,
        trx: &Transaction,
        instance: &Instance,
    ) -> impl Future<Output = Result<u64>> + Send + use<> {
        let index = self.index_of_all();
        let (whole, channels): (Vec<_>, Vec<_>) =
            self.merge.wants(|_| usize::MAX).into_iter().partition(|want| *want.source == Of::All);
        let each = channels.len().div_ceil(AT_ONCE.get()).max(1);
        let size = |range: KeyRange| trx.get_estimated_range_size_bytes(&range.begin, &range.end);
        let sizes_of = |wants: &mut dyn Iterator<Item = ReadRange<'_>>| {
            try_join_all(wants.flat_map(|want| ranges(instance, &want, index)).map(size).collect::<Vec<_>>())
        };
        let sizes = [sizes_of(&mut whole.into_iter()), sizes_of(&mut channels.into_iter().step_by(each))];
        async move {
            let sum =
                |sizes: Vec<i64>| sizes.into_iter().fold(0_u64, |sum, size| sum.saturating_add(size.max(0) as u64));
            let [whole, channels] = sizes;
            let (whole, channels) = try_join(whole, channels).await?;
            Ok(sum(whole).saturating_add(sum(channels).saturating_mul(each as u64)))
        }
    }
}

/// Some entries of a stream, and whether they are all.
type EntryPage = (Vec<(Stamp, ChannelEntry)>, bool);

/// Returns the ranges of a stream; `index` takes the place of all documents.
fn ranges(instance: &Instance, want: &ReadRange<'_>, index: Option<u64>) -> Vec<KeyRange> {
    let seq = |stamp: Stamp| Seq::new(instance.incarnation(), stamp.0);
    let (after, until) = (seq(want.after), Some(want.until).filter(|until| *until != Stamp::MAX).map(seq));
    let behind = |mut key: Vec<u8>| {
        key.push(0);
        key
    };
    match want.source {
        Of::Channel(channel) => {
            let KeyRange { begin, end } = instance.keys.channel_entries_after(channel, &after);
            let until = until.map(|until| behind(instance.keys.channel_entry(channel, &until)));
            vec![KeyRange { begin, end: until.unwrap_or(end) }]
        }
        Of::All if let Some(number) = index => {
            let KeyRange { begin, end } = instance.keys.index_changes_after(number, &after);
            let until = until.map(|until| behind(instance.keys.index_change(number, &until)));
            vec![KeyRange { begin, end: until.unwrap_or(end) }]
        }
        Of::All => {
            let range = |bucket: &BucketKeys| {
                let KeyRange { begin, end } = bucket.by_seq_after(&after);
                let until = until.map(|until| behind(bucket.by_seq(&until)));
                KeyRange { begin, end: until.unwrap_or(end) }
            };
            instance.buckets.all().iter().map(range).collect()
        }
    }
}

/// Requests some entries, and whether they are all.
fn begin_entries<'t>(
    trx: &'t Transaction,
    inner: &Inner,
    instance: &Instance,
    want: &ReadRange<'_>,
    limit: usize,
    index: Option<u64>,
) -> BoxFuture<'t, Result<EntryPage>> {
    let ranges = ranges(instance, want, index);
    let is_all = *want.source == Of::All;
    if is_all && index.is_none() {
        let (metrics, buckets) = (&inner.metrics, &instance.buckets);
        let entry = |seq, value: &[u8]| entry(seq, value, trx.clock());
        let read = by_seq::begin(trx, metrics, buckets, &ranges, (limit, false), &Shares::default(), entry);
        return Box::pin(async move {
            let read = read.await?;
            Ok((read.rows, read.is_all))
        });
    }
    // One more than is kept tells whether there are more.
    let pages = ranges.iter().map(|range| trx.range(range, true).page(limit + 1));
    let pages: Vec<_> = pages.collect();
    let reads = if is_all { &inner.metrics.selector_index_reads } else { &inner.metrics.channel_reads };
    reads.add(pages.len() as u64);
    let (keys, metrics) = (instance.keys.clone(), inner.metrics.clone());
    Box::pin(async move {
        let (mut rows, mut is_whole) = (Vec::new(), true);
        for page in pages {
            let page = page.await?;
            is_whole &= page.is_all() && page.len() <= limit;
            if is_all {
                metrics.selector_index_rows.add(page.len() as u64);
                for row in page.iter().take(limit) {
                    rows.push(entry(keys.index_change_seq(row.key())?, row.value(), trx.clock())?);
                }
                continue;
            }
            metrics.channel_rows.add(page.len() as u64);
            for row in page.iter().take(limit) {
                let mut entry = ChannelEntry::decode(row.value()).map_err(|error| Error::Corrupt(error.to_string()))?;
                entry.deleted |= entry.ends_at_ms.is_some_and(|at| is_over(at, trx.clock()));
                rows.push((Stamp(*keys.channel_entry_seq(row.key())?.stamp()), entry));
            }
        }
        Ok((rows, is_whole))
    })
}

/// Returns the rows that an index has, and those of documents that are not visible any more, which need no index.
pub(super) async fn selected(
    trx: &Transaction,
    metrics: &Metrics,
    instance: &Instance,
    index: Option<u64>,
    found: Vec<FeedRow>,
) -> Result<Vec<FeedRow>> {
    let Some(number) = index else { return Ok(found) };
    metrics.selector_index_looks.add(found.iter().filter(|row| row.kind == RowKind::Changed).count() as u64);
    let one = |row: FeedRow| {
        let seq = Seq::new(instance.incarnation(), row.position.of.unwrap_or(row.position.at).0);
        let is_asked = row.kind == RowKind::Changed;
        let entry = is_asked.then(|| trx.get(&instance.keys.index_change(number, &seq), true));
        async move {
            let is_there = match entry {
                Some(entry) => entry.await?.is_some(),
                None => true,
            };
            Ok::<_, Error>(is_there.then_some(row))
        }
    };
    let found: Vec<Option<FeedRow>> = stream::iter(found).map(one).buffered(AT_ONCE.get()).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

/// Converts an entry of by-seq to an entry of the stream of all documents.
fn entry(seq: Seq, value: &[u8], clock: &Clock) -> Result<(Stamp, ChannelEntry)> {
    let entry = proto::SequenceEntry::decode(value)?;
    let rev = revision(entry.winner.as_ref())?.to_string();
    let channels = match entry.channels {
        None => Some(Vec::new()),
        Some(names) if names.are_elsewhere => None,
        Some(names) => Some(names.names),
    };
    let (doc, deleted) = (entry.document_id, entry.deleted || is_over(entry.expires_at_ms, clock));
    Ok((Stamp(*seq.stamp()), ChannelEntry { doc, rev, deleted, removed: false, channels, ends_at_ms: None }))
}

/// Returns a position that no row of a feed lies behind, and that reveals nothing of other rows.
pub(super) async fn newest(trx: &Transaction, instance: &Instance, scope: &FeedScope) -> Result<Position> {
    let lost = scope.lost().iter().map(|lost| lost.at);
    let given = scope.held.channels().map(|(_, since)| since);
    let mut newest = lost.chain(given).chain(scope.user).max().unwrap_or(Stamp::ZERO);
    if scope.held.since(ALL).is_some() {
        newest = newest.max(Stamp(*instance.buckets.begin_last_seq(trx, instance.epoch_begin()).await?.stamp()));
    } else {
        let last = |channel: String| {
            let range = instance.keys.channel_entries(&channel, instance.incarnation());
            let last = trx.range(&range, true).reverse(true).first(1);
            async move {
                let last = last.await?;
                let seq = last.first().map(|row| instance.keys.channel_entry_seq(row.key())).transpose()?;
                Ok::<_, Error>(seq.map_or(Stamp::ZERO, |seq| Stamp(*seq.stamp())))
            }
        };
        let channels: Vec<String> = scope.held.channels().map(|(channel, _)| channel.to_owned()).collect();
        let mut last = stream::iter(channels).map(last).buffered(AT_ONCE.get());
        while let Some(stamp) = last.try_next().await? {
            newest = newest.max(stamp);
        }
    }
    Ok(Position::at(newest))
}

/// Reads the rows of a list of documents behind a position, in order.
pub(super) async fn look(
    trx: &Transaction,
    instance: &Instance,
    ids: &HashSet<String>,
    scope: &FeedScope,
    since: Position,
    is_about: impl Fn(&str) -> bool,
) -> Result<Vec<MergeRow>> {
    let is_sought = |id: &&String| check_document_id(id).is_ok() && is_about(id);
    let mut ids: Vec<String> = ids.iter().filter(is_sought).cloned().collect();
    // Neighbouring keys are read together.
    ids.sort_unstable();
    let mut found = Vec::new();
    let with_stays = !scope.lost().is_empty();
    let mut states = stream::iter(ids).map(|id| state(trx, instance, id, with_stays)).buffered(AT_ONCE.get());
    while let Some((id, state)) = states.try_next().await? {
        let row = state.and_then(|state| scope.row_of(&id, &state)).filter(|row| row.position > since);
        found.extend(row.map(|row| (row.position, id)));
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(position, id)| MergeRow::Id(position, id)).collect())
}

/// Completes the rows of a merge or a list, and drops those that depend on a state that the document no longer has.
pub(super) async fn complete_rows(
    trx: &Transaction,
    instance: &Instance,
    under_way: &RunningMerge,
    slots: Vec<MergeRow>,
) -> Result<Vec<FeedRow>> {
    let asked = slots.iter().filter_map(|slot| match slot {
        MergeRow::Row(_) => None,
        MergeRow::Asked(asked) => Some(asked.doc.clone()),
        MergeRow::Id(_, id) => Some(id.clone()),
    });
    let asked: Vec<String> = asked.collect();
    let with_stays = !under_way.scope().lost().is_empty();
    let mut states = stream::iter(asked).map(|id| state(trx, instance, id, with_stays)).buffered(AT_ONCE.get());
    let mut rows = Vec::with_capacity(slots.len());
    for slot in slots {
        match slot {
            MergeRow::Row(row) => rows.push(row),
            MergeRow::Asked(asked) => {
                let state = states.try_next().await?.and_then(|(_, state)| state);
                rows.extend(under_way.merge.answer(&asked, state.as_ref()));
            }
            MergeRow::Id(position, id) => {
                let state = states.try_next().await?.and_then(|(_, state)| state);
                let row = state.and_then(|state| under_way.scope().row_of(&id, &state));
                rows.extend(row.filter(|row| row.position == position));
            }
        }
    }
    Ok(rows)
}

/// Reads the channel state of a document with its id; `None` if there is none. `with_stays` adds when it was in which
/// channels, which only losses need.
async fn state(
    trx: &Transaction,
    instance: &Instance,
    id: String,
    with_stays: bool,
) -> Result<(String, Option<DocumentState>)> {
    let keys = instance.keys.document(&id);
    let info = trx.get(&keys.info(), true);
    let left = begin_read(trx, instance.keys.left_of(&id));
    let stays = with_stays.then(|| begin_read(trx, instance.keys.stays_of(&id)));
    let Some(info) = info.await? else { return Ok((id, None)) };
    let info = Info::decode(&info)?.read_at(trx.clock().unix_ms());
    let channels = channels_of(trx, &keys, &info).await?;
    let mut all = BTreeMap::new();
    if info.routed.left > 0 {
        for row in left.finish(trx, LEFT_BYTES_MAX).await?.iter().flat_map(|page| page.iter()) {
            let left = ChannelDeparture::decode(row.value()).map_err(|error| Error::Corrupt(error.to_string()))?;
            all.insert(instance.keys.left_channel(row.key())?, left);
        }
    }
    let since = since_each(&info, &channels).filter_map(|(channel, at)| Some((channel.to_owned(), at?))).collect();
    let mut earlier = BTreeMap::new();
    if let Some(stays) = stays {
        for row in stays.finish(trx, LEFT_BYTES_MAX).await?.iter().flat_map(|page| page.iter()) {
            earlier.insert(instance.keys.stays_channel(row.key())?, decode_stays(row.value())?);
        }
    }
    let (seq, rev, deleted, born) = (Stamp(info.stamp), info.winner.to_string(), info.deleted, born(&info));
    Ok((id, Some(DocumentState { seq, rev, deleted, channels, since, left: all, earlier, born })))
}

pub(super) async fn channels_of(trx: &Transaction, keys: &DocumentKeys, info: &Info) -> Result<BTreeSet<String>> {
    match &info.routed.channels {
        None => Ok(BTreeSet::new()),
        Some(names) if names.are_elsewhere => channels_of_revision(trx, keys, &info.winner).await,
        Some(names) => Ok(names.names.iter().cloned().collect()),
    }
}

/// Returns the channels of a revision by its own record; none if it has no record.
pub(crate) async fn channels_of_revision(
    trx: &Transaction,
    keys: &DocumentKeys,
    rev: &RevId,
) -> Result<BTreeSet<String>> {
    let Some(record) = trx.get(&keys.revision(rev), true).await? else { return Ok(BTreeSet::new()) };
    let verdict = RevisionRecord::decode(&record)?.verdict.unwrap_or_default();
    Ok(verdict.channels.into_iter().collect())
}
