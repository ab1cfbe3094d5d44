//! Checks the keys of channels: all of them are recomputed from a document's info and its winner's record.

use std::collections::BTreeSet;

use flatbed_channels::{ChannelDeparture, ChannelEntry, Periods, Stamp};
use flatbed_databases::channels::grants::{Entitlement, thing_of};
use flatbed_databases::document::verdict::Verdict;
use flatbed_databases::instance::Instance;
use flatbed_store::error::Result;
use flatbed_store::keys::{AccessCell, ChannelPart, PrincipalPart, unpack_principal};
use flatbed_store::proto;
use flatbed_store::records::since::since_each;
use flatbed_store::records::{Info, RecordedRouting};
use flatbed_store::seq::{STAMP_BYTES, Seq};
use flatbed_store::transaction::Transaction;
use flatbed_store::updated::stamp_of;
use futures_util::future::try_join_all;
use prost::Message;

use crate::index::channels::{all_left, decode_stays, entry_of, names, said_of_winner, second_of};

const READ_AT_ONCE: usize = 100;

/// The channels that a document has left and that are entered, shared by all checks.
#[derive(Debug, Default)]
pub struct ChannelDepartures(Vec<(String, ChannelDeparture)>);

impl ChannelDepartures {
    /// Reads the channels that a document has left.
    ///
    /// # Errors
    /// [`Corrupt`](flatbed_store::error::Error::Corrupt): one of them cannot be read.
    pub async fn read(trx: &Transaction, instance: &Instance, id: &str, info: &Info) -> Result<ChannelDepartures> {
        match &info.routed.channels {
            Some(_) => all_left(trx, instance, id).await.map(ChannelDepartures),
            None => Ok(ChannelDepartures::default()),
        }
    }

    /// Returns the channels that it left with its newest change, as that change's by-seq entry has them.
    fn with_the_last(&self, info: &Info) -> Option<proto::ChannelNames> {
        let left = self.0.iter().filter(|(_, left)| left.seq.0 == info.stamp);
        let left: BTreeSet<String> = left.map(|(channel, _)| channel.clone()).collect();
        (!left.is_empty()).then(|| names(left.iter()))
    }

    /// Checks the fields of a by-seq entry about channels that its document left, with this change and before it.
    pub fn compare(&self, info: &Info, entry: &proto::SequenceEntry) -> Option<&'static str> {
        if entry.left != self.with_the_last(info) {
            return Some("names other channels that the document left than its rows do");
        }
        let mut earlier =
            self.0.iter().filter(|(_, left)| left.seq.0 != info.stamp).map(|(_, left)| left.seq.0).peekable();
        let had_left = earlier.peek().is_some();
        let is_right = match <[u8; STAMP_BYTES]>::try_from(entry.before.as_slice()) {
            Err(_) => entry.before.is_empty() && !had_left,
            // No kept change lies between the two.
            Ok(before) => had_left && before < info.stamp && earlier.all(|seq| seq <= before),
        };
        (!is_right).then_some("does not name the change before")
    }
}

/// Checks a document's keys of channels. `said`: the recorded verdict on its winner. `has_channels`: the database has
/// channels.
pub async fn check_document(
    trx: &Transaction,
    instance: &Instance,
    id: &str,
    info: &Info,
    said: Option<&proto::Verdict>,
    has_channels: bool,
    ChannelDepartures(left): &ChannelDepartures,
) -> Result<Option<String>> {
    let routed = &info.routed;
    let Some(named) = &routed.channels else {
        let is_nothing = *routed == RecordedRouting::default();
        return Ok((!is_nothing).then(|| "its info names channels, and it is not entered".to_owned()));
    };
    if !has_channels {
        return Ok(Some("it is entered in channels, and its database has none".to_owned()));
    }
    let said = Verdict::decode(said.cloned());
    let expires_at_ms = said.expires_at_ms.filter(|_| !info.deleted);
    if *named != names(said.channels.iter())
        || routed.expires_at_ms != expires_at_ms
        || routed.gives == said.grants.is_empty()
    {
        return Ok(Some("the channels in its info are not those in its winner's record".to_owned()));
    }
    if !routed.since.is_sound(said.channels.len(), Stamp(info.stamp)) {
        return Ok(Some("its info has an impossible time of entering channels".to_owned()));
    }
    if left.len() as u64 != u64::from(routed.left) {
        return Ok(Some(format!("it has left {} channels, its info says {}", left.len(), routed.left)));
    }
    if let Some((channel, _)) = left.iter().find(|(_, left)| left.since.is_some_and(|since| since >= left.seq)) {
        return Ok(Some(format!("it left channel {channel:?} before it entered it")));
    }
    if let Some((channel, _)) = left.iter().find(|(channel, _)| said.channels.contains(channel)) {
        return Ok(Some(format!("it is in channel {channel:?} and has left it")));
    }
    let keys = &instance.keys;
    let seq = |stamp: Stamp| Seq::new(instance.incarnation(), stamp.0);
    let entry = info.by_id();
    let mut expected = Vec::new();
    for channel in &said.channels {
        let channels = said.channels.iter().map(String::as_str);
        let value = entry_of(id, info, false, channels).encode();
        expected.push((keys.channel_entry(channel, &seq(Stamp(info.stamp))), Some(value), channel));
        let value = (!info.deleted).then(|| entry.clone());
        expected.push((keys.channel_document(channel, id), value, channel));
    }
    for some in expected.chunks(READ_AT_ONCE) {
        let found = try_join_all(some.iter().map(|(key, ..)| trx.get(key, true))).await?;
        if let Some((_, (_, _, channel))) =
            found.iter().zip(some).find(|(found, (_, expected, _))| found.as_deref() != expected.as_deref())
        {
            return Ok(Some(format!("its entry in channel {channel:?} is not its own")));
        }
    }
    for some in left.chunks(READ_AT_ONCE) {
        let key = |(channel, left): &(String, ChannelDeparture)| keys.channel_entry(channel, &seq(left.seq));
        let found = try_join_all(some.iter().map(|left| trx.get(&key(left), true))).await?;
        if let Some((_, (channel, _))) = found
            .iter()
            .zip(some)
            .find(|(found, (_, left))| !found.as_deref().is_some_and(|found| is_departure(found, id, left)))
        {
            return Ok(Some(format!("no entry says that it has left channel {channel:?}")));
        }
    }
    let things: Vec<_> = said.grants.iter().filter_map(thing_of).collect();
    for some in things.chunks(READ_AT_ONCE) {
        let way = |(kind, name, what): &Entitlement| keys.given_by_document(*kind, name, what, id);
        let found = try_join_all(some.iter().map(|thing| trx.get(&way(thing), true))).await?;
        if let Some((_, (kind, name, what))) = found.iter().zip(some).find(|(found, _)| found.is_none()) {
            return Ok(Some(format!("no row has its grant of {what:?} to {kind:?} {name:?}")));
        }
    }
    if let Some(second) = expires_at_ms.map(second_of)
        && trx.get(&keys.end_of_document(second, id), true).await?.as_deref() != Some(&entry)
    {
        return Ok(Some("its expiry is not noted".to_owned()));
    }
    Ok(None)
}

fn is_departure(value: &[u8], id: &str, left: &ChannelDeparture) -> bool {
    ChannelEntry::decode(value)
        .is_ok_and(|entry| entry.removed && entry.doc == id && entry.rev == left.rev && entry.deleted == left.deleted)
}

/// Checks a key of users and roles: a document's grants must be those of its winner, and access must exist exactly
/// while something grants it.
pub async fn check_principal(
    trx: &Transaction,
    instance: &Instance,
    key: &[u8],
    value: &[u8],
) -> Result<Option<String>> {
    let Ok(part) = instance.keys.split_principals(key) else { return Ok(Some("belongs to nothing".to_owned())) };
    let bad = |is_good: bool| Ok((!is_good).then(|| "cannot be read".to_owned()));
    match part {
        PrincipalPart::Record { .. } => bad(proto::Principal::decode(value).is_ok()),
        PrincipalPart::Version { .. } => match <[u8; STAMP_BYTES]>::try_from(value) {
            Ok(stamp) => check_access_version(trx, instance, stamp).await,
            Err(_) => bad(false),
        },
        PrincipalPart::Changed(seq) if unpack_principal(value).is_ok() => {
            check_access_version(trx, instance, *seq.stamp()).await
        }
        PrincipalPart::Changed(_) => bad(false),
        PrincipalPart::Session(_) => bad(proto::GatewaySession::decode(value).is_ok()),
        PrincipalPart::Local { .. } | PrincipalPart::Way { by: None, .. } => Ok(None),
        PrincipalPart::Periods { kind, name, what } => {
            let Ok(periods) = Periods::decode(value) else { return bad(false) };
            let has_ways = trx.range(&instance.keys.ways(kind, &name, &what), true).any().await?;
            let is_had = periods.open().is_some();
            Ok((is_had != has_ways)
                .then(|| format!("access is recorded: {is_had}, and something grants it: {}", !is_had)))
        }
        PrincipalPart::Way { kind, name, what, by: Some(id) } => {
            let document = instance.keys.document(&id);
            let info = trx.get(&document.info(), true).await?.map(|info| Info::decode(&info)).transpose()?;
            let said = match &info {
                Some(info) => said_of_winner(trx, &document, info).await?,
                None => None,
            };
            let thing = (kind, name, what);
            let grants = said.into_iter().flat_map(|said| said.grants);
            if !grants.filter_map(|grant| thing_of(&grant)).any(|given| given == thing) {
                return Ok(Some(format!("document {id:?} has no such grant")));
            }
            let periods = trx.get(&instance.keys.periods(thing.0, &thing.1, &thing.2), true).await?;
            Ok(periods.is_none().then(|| "the start of the access is unknown".to_owned()))
        }
    }
}

/// Checks that a change of a user or role is no newer than the newest change of access in the bucket of the database.
async fn check_access_version(
    trx: &Transaction,
    instance: &Instance,
    mut stamp: [u8; STAMP_BYTES],
) -> Result<Option<String>> {
    // All changes of one commit are equal here.
    stamp[STAMP_BYTES - 2..].fill(0);
    let bucket = instance.root.access_bucket(AccessCell::of(&instance.name).bucket);
    let newest = trx.get(&bucket, true).await?.map(|newest| stamp_of(&newest)).transpose()?;
    Ok(newest.is_none_or(|newest| newest < stamp).then(|| "changed without a change of the access version".to_owned()))
}

/// Checks a key of channels, which must belong to a document.
pub async fn check_entry(trx: &Transaction, instance: &Instance, key: &[u8], value: &[u8]) -> Result<Option<String>> {
    let Ok(part) = instance.keys.split_channels(key) else { return Ok(Some("belongs to nothing".to_owned())) };
    let bad = |is_good: bool| Ok((!is_good).then(|| "cannot be read".to_owned()));
    let id = match &part {
        ChannelPart::Function => return bad(proto::SyncFunction::decode(value).is_ok()),
        ChannelPart::Resync => return bad(proto::Resync::decode(value).is_ok()),
        ChannelPart::ResyncRange { .. } => return bad(proto::ResyncRange::decode(value).is_ok()),
        ChannelPart::Entry { .. } => match ChannelEntry::decode(value) {
            Ok(entry) => entry.doc,
            Err(_) => return bad(false),
        },
        ChannelPart::Document { id, .. }
        | ChannelPart::Left { id, .. }
        | ChannelPart::Stays { id, .. }
        | ChannelPart::End { id, .. } => id.clone(),
    };
    let document = instance.keys.document(&id);
    let Some(info) = trx.get(&document.info(), true).await? else {
        return Ok(Some(format!("its document {id:?} does not exist")));
    };
    let info = Info::decode(&info)?;
    let said = said_of_winner(trx, &document, &info).await?;
    let nothing = BTreeSet::new();
    let channels = said.as_ref().map_or(&nothing, |said| &said.channels);
    let is_own = match &part {
        ChannelPart::Entry { channel, seq } if channels.contains(channel) => {
            *seq == Seq::new(instance.incarnation(), info.stamp)
        }
        ChannelPart::Entry { channel, seq } => {
            let left = trx.get(&instance.keys.left(&id, channel), true).await?;
            let left = left.and_then(|left| ChannelDeparture::decode(&left).ok());
            left.is_some_and(|left| {
                *seq == Seq::new(instance.incarnation(), left.seq.0) && is_departure(value, &id, &left)
            })
        }
        // The check of the document compares the contents.
        ChannelPart::Document { channel, .. } => !info.deleted && channels.contains(channel),
        ChannelPart::Left { channel, .. } => info.routed.left > 0 && !channels.contains(channel),
        // Periods before the current or last stay.
        ChannelPart::Stays { channel, .. } => {
            let Ok(stays) = decode_stays(value) else { return bad(false) };
            let is_in = since_each(&info, channels).find(|(name, _)| name == channel);
            let since = match is_in {
                Some((_, since)) => Some(since),
                None => {
                    let left = trx.get(&instance.keys.left(&id, channel), true).await?;
                    left.and_then(|left| ChannelDeparture::decode(&left).ok()).map(|left| left.since)
                }
            };
            let is_before = |since: Stamp| stays.all().iter().all(|stay| stay.until.is_some_and(|until| until < since));
            !stays.all().is_empty() && since.is_some_and(|since| since.is_none_or(is_before))
        }
        ChannelPart::End { second, .. } => info.routed.expires_at_ms.map(second_of) == Some(*second),
        ChannelPart::Function | ChannelPart::Resync | ChannelPart::ResyncRange { .. } => true,
    };
    Ok((!is_own).then(|| format!("document {id:?} has another")))
}
