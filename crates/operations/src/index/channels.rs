//! Channels: which documents are and were in them, by sequence and by id, and when documents expire.
//!
//! The effect of a change is found in two steps, since a document's info says which channels its winner is in:
//! [`before`], before anything of the document is written, and [`OldRouting::change_routing`], which adds the channels to the new
//! info. The maintainer makes keys of the result. [`flatbed_channels::moves`] decides the changes of entries;
//! design/channels.md has the layout.

pub mod check;

use std::collections::{BTreeMap, BTreeSet};

use flatbed_channels::{ChannelDeparture, ChannelEntry, Grant, GrantedItem, Grantee, Moves, Periods, Stamp, moves};
use flatbed_databases::document::body::begin_read;
use flatbed_databases::document::verdict::Verdict;
use flatbed_databases::instance::Instance;
use flatbed_store::due;
use flatbed_store::error::{Error, Result};
use flatbed_store::instruments::Instruments;
use flatbed_store::keys::DocumentKeys;
use flatbed_store::proto;
use flatbed_store::records::since::{ChannelsSince, since_each};
use flatbed_store::records::{Info, RecordedRouting, RevisionRecord};
use flatbed_store::seq::{STAMP_BYTES, Seq, own_stamp, stamped_value};
use flatbed_store::transaction::{Quiet, Transaction};
use foundationdb::options::MutationType;
use futures_util::future::{try_join, try_join_all};

use crate::index::maintainers::{Change, IndexContext, IndexMaintainer, PendingWork, PurgedDocument};

pub use check::{ChannelDepartures, check_document, check_entry, check_principal};

/// The most names of channels in an info and in a by-seq entry, and their total bytes.
const NAMED_MAX: usize = 16;
const NAMED_BYTES_MAX: usize = 200;

/// The most channels that a document has left and that are kept. Beyond it the oldest are forgotten, down to
/// [`LEFT_KEPT`].
const LEFT_MAX: usize = 1_000;
pub const LEFT_KEPT: usize = 500;

/// The most bytes of keys that are cleared at once to forget channels.
const FORGOTTEN_BYTES_MAX: usize = 200_000;

/// The read limit for the channels that a document has left, in bytes: [`LEFT_MAX`] and those of one more change, with
/// the longest names.
const LEFT_BYTES_MAX: u64 = 8_000_000;

#[derive(Debug, Default)]
pub struct OldRouting {
    /// The verdict on the winner. `None`: the document does not exist, or has not been entered.
    said: Option<Verdict>,
}

/// The effect of a document's change on channels.
#[derive(Debug, Default)]
pub struct RoutingChange {
    old: Option<Verdict>,
    new: Option<Verdict>,
    moves: Moves,
    /// Channels that it left earlier, whose entries and rows are cleared since there are too many.
    forgotten: Vec<(String, Stamp)>,
    /// The start of its stay in the channels that it leaves, if known.
    was_since: BTreeMap<String, Stamp>,
    stays: Vec<(String, Periods)>,
}

/// Reads the channels before a change, unless the info has them. `None`: the database has no channels. The caller must
/// not have written anything of the document, or cleared its record.
pub async fn before(within: &IndexContext<'_>, keys: &DocumentKeys, old: Option<&Info>) -> Result<Option<OldRouting>> {
    if within.instance.channels() == 0 {
        return Ok(None);
    }
    let Some(old) = old else { return Ok(Some(OldRouting::default())) };
    Ok(Some(OldRouting { said: said_of_winner(within.trx, keys, old).await? }))
}

/// Returns the verdict on an entered document's winner, read if the info lacks it.
async fn said_of_winner(trx: &Transaction, keys: &DocumentKeys, info: &Info) -> Result<Option<Verdict>> {
    let Some(named) = &info.routed.channels else { return Ok(None) };
    if named.are_elsewhere || info.routed.gives {
        return said_of(trx, keys, info).await.map(Some);
    }
    let channels = named.names.iter().cloned().collect();
    Ok(Some(Verdict { channels, expires_at_ms: info.routed.expires_at_ms, ..Verdict::default() }))
}

pub async fn channels_of_winner(trx: &Transaction, keys: &DocumentKeys, info: &Info) -> Result<BTreeSet<String>> {
    match &info.routed.channels {
        None => Ok(BTreeSet::new()),
        Some(named) if !named.are_elsewhere => Ok(named.names.iter().cloned().collect()),
        Some(_) => Ok(said_of(trx, keys, info).await?.channels),
    }
}

/// Reads the verdict in the record of a document's winner, as a snapshot: every writer of the record conflicts on the
/// document's info.
async fn said_of(trx: &Transaction, keys: &DocumentKeys, info: &Info) -> Result<Verdict> {
    match trx.get(&keys.revision(&info.winner), true).await? {
        Some(record) => Ok(Verdict::decode(RevisionRecord::decode(&record)?.verdict)),
        None => Err(Error::Corrupt(format!("leaf {} has no record", info.winner))),
    }
}

impl OldRouting {
    /// Changes the document to `new`, and fills in the channels of `new`. `judged`: the verdict on the new winner, if
    /// the change has it.
    pub async fn change_routing(
        self,
        within: &IndexContext<'_>,
        id: &str,
        keys: &DocumentKeys,
        old: Option<&Info>,
        new: &mut Info,
        judged: Option<&Verdict>,
    ) -> Result<RoutingChange> {
        let said = match (judged, old) {
            (Some(judged), _) => Some(judged.clone()),
            (None, Some(old)) if old.winner == new.winner => self.said.clone(),
            _ => Some(said_of(within.trx, keys, new).await?),
        };
        self.change_routing_to(within, id, old, new, said).await
    }

    /// Like [`OldRouting::change_routing`], with a known verdict on the new winner; `None`: it is not entered.
    pub async fn change_routing_to(
        self,
        within: &IndexContext<'_>,
        id: &str,
        old: Option<&Info>,
        new: &mut Info,
        said: Option<Verdict>,
    ) -> Result<RoutingChange> {
        let (empty, seq) = (BTreeSet::new(), Stamp(old.map_or([0; STAMP_BYTES], |old| old.stamp)));
        let after = said.as_ref().map_or(&empty, |said| &said.channels);
        let was_in = self.said.as_ref().map_or(&empty, |said| &said.channels);
        let mut left = usize::try_from(old.map_or(0, |old| old.routed.left)).unwrap_or(usize::MAX);
        let returned = match left {
            0 => BTreeMap::new(),
            _ => left_of_these(within, id, after.difference(was_in)).await?,
        };
        let stays = returned.iter().filter_map(|(channel, (left, stays))| {
            Some((channel.clone(), stays.clone().and_from(left.since?, left.seq)))
        });
        let stays = stays.collect();
        let returned = returned.iter().map(|(channel, (left, _))| (channel.as_str(), left.seq));
        let moves = moves(self.said.as_ref().map(|said| (&said.channels, seq)), returned, after);
        left = (left + moves.left.len()).saturating_sub(moves.returned.len());
        let mut forgotten = Vec::new();
        if left > LEFT_MAX {
            forgotten = oldest_left(within, id, left - LEFT_KEPT, &moves.returned).await?;
            left = left.saturating_sub(forgotten.len());
        }
        new.routed = match &said {
            None => RecordedRouting::default(),
            Some(said) => {
                let since = ChannelsSince::behind(old, was_in, &said.channels);
                RecordedRouting {
                    channels: Some(names(said.channels.iter())),
                    expires_at_ms: said.expires_at_ms.filter(|_| !new.deleted),
                    left: u32::try_from(left).unwrap_or(u32::MAX),
                    gives: !said.grants.is_empty(),
                    since,
                }
            }
        };
        let was_since = old.into_iter().flat_map(|old| since_each(old, was_in));
        let was_since = was_since.filter(|(channel, _)| !after.contains(*channel));
        let was_since = was_since.filter_map(|(channel, since)| Some((channel.to_owned(), since?))).collect();
        Ok(RoutingChange { old: self.said, new: said, moves, forgotten, was_since, stays })
    }

    /// Removes the document without a trace. The maintainer reads and clears the channels that it has left.
    pub fn goes(self) -> RoutingChange {
        RoutingChange { old: self.said, ..RoutingChange::default() }
    }
}

impl RoutingChange {
    /// Returns the channels that it leaves, as the by-seq entry has them.
    pub fn left(&self) -> Option<proto::ChannelNames> {
        (!self.moves.left.is_empty()).then(|| names(self.moves.left.iter()))
    }

    /// Returns whether the document left channels with earlier changes. `routed`: its state after this change.
    pub fn has_left_before(&self, routed: &RecordedRouting) -> bool {
        usize::try_from(routed.left).is_ok_and(|left| left > self.moves.left.len())
    }

    /// Returns whether the change moves only sequences: channels, grants and expiry stay the same.
    pub fn is_same(&self) -> bool {
        let of = |said: &Option<Verdict>| {
            said.as_ref().map(|said| (said.channels.clone(), said.grants.clone(), said.expires_at_ms))
        };
        of(&self.old) == of(&self.new)
    }

    pub fn grants(&self) -> [&BTreeSet<Grant>; 2] {
        static NOTHING: BTreeSet<Grant> = BTreeSet::new();
        [&self.old, &self.new].map(|said| said.as_ref().map_or(&NOTHING, |said| &said.grants))
    }
}

fn names<'c>(channels: impl ExactSizeIterator<Item = &'c String> + Clone) -> proto::ChannelNames {
    let are_few = channels.len() <= NAMED_MAX && channels.clone().map(String::len).sum::<usize>() <= NAMED_BYTES_MAX;
    let names = if are_few { channels.cloned().collect() } else { Vec::new() };
    proto::ChannelNames { names, are_elsewhere: !are_few }
}

async fn left_of_these(
    within: &IndexContext<'_>,
    id: &str,
    channels: impl Iterator<Item = &String>,
) -> Result<BTreeMap<String, (ChannelDeparture, Periods)>> {
    let reads = channels.map(|channel| {
        let keys = &within.instance.keys;
        let (left, stays) =
            (within.trx.get(&keys.left(id, channel), true), within.trx.get(&keys.stays(id, channel), true));
        async move {
            let (left, stays) = try_join(left, stays).await?;
            let Some(left) = left else { return Ok(None) };
            let stays = stays.map(|stays| decode_stays(&stays)).transpose()?.unwrap_or_default();
            Ok::<_, Error>(Some((channel.clone(), (decode_left(&left)?, stays))))
        }
    });
    Ok(try_join_all(reads).await?.into_iter().flatten().collect())
}

pub async fn all_left(trx: &Transaction, instance: &Instance, id: &str) -> Result<Vec<(String, ChannelDeparture)>> {
    let mut all = Vec::new();
    for page in begin_read(trx, instance.keys.left_of(id)).finish(trx, LEFT_BYTES_MAX).await? {
        for row in &page {
            all.push((instance.keys.left_channel(row.key())?, decode_left(row.value())?));
        }
    }
    Ok(all)
}

/// Returns the oldest `count` channels that a document has left and that are to be forgotten, within the transaction's
/// limit.
async fn oldest_left(
    within: &IndexContext<'_>,
    id: &str,
    count: usize,
    returned: &[String],
) -> Result<Vec<(String, Stamp)>> {
    let all = all_left(within.trx, within.instance, id).await?;
    let left = all.into_iter().map(|(channel, left)| (channel, left.seq));
    let mut left: Vec<_> = left.filter(|(channel, _)| !returned.contains(channel)).collect();
    left.sort_by_key(|(_, seq)| *seq);
    let mut bytes = 0;
    let mut fits = |channel: &String| {
        bytes += 2 * channel.len() + id.len() + 2 * ROW_BYTES;
        bytes <= FORGOTTEN_BYTES_MAX
    };
    Ok(left.into_iter().take(count).take_while(|(channel, _)| fits(channel)).collect())
}

fn decode_left(value: &[u8]) -> Result<ChannelDeparture> {
    ChannelDeparture::decode(value).map_err(|error| Error::Corrupt(error.to_string()))
}

pub fn decode_stays(value: &[u8]) -> Result<Periods> {
    Periods::decode(value).map_err(|error| Error::Corrupt(error.to_string()))
}

/// Returns the second from which a document has expired.
pub fn second_of(expires_at_ms: u64) -> u64 {
    expires_at_ms.div_ceil(1_000)
}

/// The approximate bytes of a key and value beside names.
const ROW_BYTES: usize = 60;

/// Maintains entries of channels by sequence and by id, channels that were left, and expiries.
#[derive(Default)]
pub struct Channels {
    /// The bytes written since the last call of `excess`.
    written: u64,
}

struct Writer<'a> {
    quiet: Quiet<'a, Instruments>,
    written: &'a mut u64,
}

impl Writer<'_> {
    fn count(&mut self, key: &[u8], value: &[u8]) {
        *self.written += (key.len() + value.len()) as u64;
    }

    fn clear(&mut self, key: &[u8]) -> Result<()> {
        self.count(key, key);
        self.quiet.clear(key)
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.count(key, value);
        self.quiet.set(key, value)
    }

    fn stamped(&mut self, key: &[u8], operand: &[u8], kind: MutationType) -> Result<()> {
        self.count(key, operand);
        self.quiet.atomic(key, operand, kind)
    }
}

impl IndexMaintainer for Channels {
    fn document<'a>(&'a mut self, within: &'a IndexContext<'a>, change: &'a Change<'a>) -> Result<PendingWork<'a>> {
        let IndexContext { trx, instance, .. } = *within;
        let Some(rerouted) = change.rerouted else { return Ok(None) };
        let mut writer = Writer { quiet: Quiet(trx), written: &mut self.written };
        let (keys, id, new) = (&instance.keys, change.id, change.new);
        let seq_of = |stamp: &Stamp| Seq::new(instance.incarnation(), stamp.0);
        let RoutingChange { moves, forgotten, was_since, stays, .. } = rerouted;
        for (channel, seq) in moves.cleared.iter().chain(forgotten) {
            writer.clear(&keys.channel_entry(channel, &seq_of(seq)))?;
        }
        for channel in moves.returned.iter().chain(forgotten.iter().map(|(channel, _)| channel)) {
            writer.clear(&keys.left(id, channel))?;
        }
        for (channel, stays) in stays {
            writer.set(&keys.stays(id, channel), &stays.encode())?;
        }
        for (channel, _) in forgotten {
            writer.clear(&keys.stays(id, channel))?;
        }
        let (incarnation, epoch, user_version) = (instance.incarnation(), instance.epoch(), change.user_version);
        for (channels, removed) in [(&moves.entered, false), (&moves.left, true)] {
            if channels.is_empty() {
                continue;
            }
            let entry = entry_of(id, new, removed, moves.entered.iter().map(String::as_str)).encode();
            for channel in channels {
                let key = keys.channel_entry_stamped(channel, incarnation, epoch, user_version);
                writer.stamped(&key, &entry, MutationType::SetVersionstampedKey)?;
            }
        }
        for channel in &moves.left {
            let (seq, since) = (Stamp(own_stamp(epoch, user_version)), was_since.get(channel).copied());
            let left = ChannelDeparture { seq, rev: new.winner.to_string(), deleted: new.deleted, since }.encode();
            writer.stamped(&keys.left(id, channel), &stamped_value(&left), MutationType::SetVersionstampedValue)?;
        }
        by_id(&mut writer, instance, id, rerouted, change.old, Some(new))?;
        self.written += grants_bytes(id, rerouted);
        Ok(None)
    }

    fn purged<'a>(
        &'a mut self,
        within: &'a IndexContext<'a>,
        purged: &'a PurgedDocument<'a>,
    ) -> Result<PendingWork<'a>> {
        let IndexContext { trx, instance, .. } = *within;
        let Some(rerouted) = purged.rerouted else { return Ok(None) };
        let (keys, id, old) = (&instance.keys, purged.id, purged.old);
        let mut writer = Writer { quiet: Quiet(trx), written: &mut self.written };
        for channel in rerouted.old.iter().flat_map(|said| &said.channels) {
            writer.clear(&keys.channel_entry(channel, &Seq::new(instance.incarnation(), old.stamp)))?;
        }
        by_id(&mut writer, instance, id, rerouted, Some(old), None)?;
        writer.quiet.clear_range(&keys.stays_of(id))?;
        if old.routed.left == 0 {
            return Ok(None);
        }
        Ok(Some(Box::pin(async move {
            for (channel, left) in all_left(trx, instance, id).await? {
                writer.clear(&keys.channel_entry(&channel, &Seq::new(instance.incarnation(), left.seq.0)))?;
            }
            writer.quiet.clear_range(&keys.left_of(id))
        })))
    }

    fn excess(&mut self) -> u64 {
        std::mem::take(&mut self.written)
    }
}

pub fn entry_of<'a>(
    id: &str,
    info: &Info,
    removed: bool,
    channels: impl ExactSizeIterator<Item = &'a str> + Clone,
) -> ChannelEntry {
    let entry = ChannelEntry::new(id, info.winner.to_string(), info.deleted, removed, channels);
    ChannelEntry { ends_at_ms: info.routed.expires_at_ms.filter(|_| !removed), ..entry }
}

/// Returns the approximate bytes of added and removed grants: a row for each, its periods, a version, and the mark of a
/// change.
fn grants_bytes(id: &str, rerouted: &RoutingChange) -> u64 {
    let [old, new] = rerouted.grants();
    let bytes_of = |grant: &Grant| {
        let (Grantee::User(name) | Grantee::Role(name)) = &grant.to;
        let (GrantedItem::Channel(what) | GrantedItem::Role(what)) = &grant.what;
        id.len() + 4 * (name.len() + what.len() + ROW_BYTES)
    };
    old.symmetric_difference(new).map(bytes_of).sum::<usize>() as u64
}

/// Writes entries of channels by id, and the expiry. `new`: `None` removes the document.
fn by_id(
    writer: &mut Writer<'_>,
    instance: &Instance,
    id: &str,
    rerouted: &RoutingChange,
    old: Option<&Info>,
    new: Option<&Info>,
) -> Result<()> {
    let nowhere = BTreeSet::new();
    let is_listed = |info: Option<&Info>| info.is_some_and(|info| !info.deleted);
    let [was_in, is_in] = [(&rerouted.old, old), (&rerouted.new, new)].map(|(said, info)| {
        let said = said.as_ref().filter(|_| is_listed(info));
        said.map_or(&nowhere, |said| &said.channels)
    });
    let has_other_winner = old.map(|old| &old.winner) != new.map(|new| &new.winner);
    let entry = new.map(Info::by_id).unwrap_or_default();
    let is_another = has_other_winner || old.map(Info::ends_at_ms) != new.map(Info::ends_at_ms);
    for channel in was_in.difference(is_in) {
        writer.clear(&instance.keys.channel_document(channel, id))?;
    }
    for channel in is_in.iter().filter(|channel| is_another || !was_in.contains(*channel)) {
        writer.set(&instance.keys.channel_document(channel, id), &entry)?;
    }
    let ends = |info: Option<&Info>| info.and_then(|info| info.routed.expires_at_ms).map(second_of);
    let (ended, ends) = (ends(old), ends(new));
    if let Some(second) = ended.filter(|_| ended != ends) {
        writer.clear(&instance.keys.end_of_document(second, id))?;
    }
    if let Some(second) = ends.filter(|_| is_another) {
        writer.set(&instance.keys.end_of_document(second, id), &entry)?;
        due::mark_end(writer.quiet.0, &instance.root, &instance.name, second.saturating_mul(1_000))?;
    }
    Ok(())
}
