//! Channel facts that by-seq entries do not hold, read once for all followers.
//!
//! An entry names few channels, and of the channels that its document left only those left with its newest change. When
//! a document has changed twice since the hub's last read, by-seq has lost the first change, but the index of the
//! channel that was left with it still has it. A follower of that channel must read the index ([`Departure`]) before it
//! takes a row behind that place.

use std::sync::Arc;

use flatbed_channels::{ChannelDeparture, Stamp};
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_revtree::RevId;
use flatbed_store::by_seq;
use flatbed_store::error::{Error, Result};
use flatbed_store::merge::Shares;
use flatbed_store::proto;
use flatbed_store::seq::Seq;
use flatbed_store::transaction::Transaction;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use prost::Message;

use crate::feed::row::{ChangeRow, RowChannels};
use crate::feed::source::channels::channels_of_revision;
use crate::feed::tail::Departure;

/// Entries that are read ahead behind a page that is not the last one.
const AHEAD_MAX: usize = 2_000;

/// Documents that are looked up for a page. Beyond this limit the page reports a departure from any channel.
const DOCUMENTS_MAX: usize = 500;

const AT_ONCE: usize = 64;

/// Limit of read departures from channels.
const LEFT_MAX: usize = 2_000;

/// Bytes of names that a page has beside those of its entries. Followers read the rest themselves.
const NAMES_BYTES_MAX: usize = 1_000_000;

pub(super) struct PageRows<'a> {
    pub(super) rows: &'a mut [(ChangeRow, RowChannels)],
    /// The page begins behind this sequence.
    pub(super) after: Seq,
    /// The page ends with this sequence.
    pub(super) drained: Seq,
    pub(super) at_end: bool,
    /// True if there are followers by channels.
    pub(super) has_followers: bool,
}

struct RouteLookup {
    /// The index of its row on the page.
    row: Option<usize>,
    id: String,
    /// The revision whose channels are needed.
    entered_of: Option<RevId>,
    is_left_sought: bool,
    /// True if one of its changes is neither on this page nor on an earlier one.
    has_missed: bool,
}

struct RouteResult {
    sought: RouteLookup,
    entered: Option<Vec<String>>,
    /// `None` if they are over the limit, or were not needed.
    left: Option<Vec<(String, Seq)>>,
}

impl PageRows<'_> {
    /// Completes the channels of rows, and returns the departures that no row shows. Runs in the transaction that read
    /// them.
    pub(super) async fn complete(
        &mut self,
        trx: &Transaction,
        inner: &Inner,
        instance: &Instance,
    ) -> Result<Vec<Departure>> {
        let is_missed = |before: Option<Stamp>| before.is_some_and(|at| seq(instance, at) > self.after);
        let mut sought: Vec<RouteLookup> = Vec::new();
        for (number, (row, channels)) in self.rows.iter().enumerate() {
            let has_missed = is_missed(channels.before);
            let entered_of = (self.has_followers && channels.entered.is_none()).then(|| row.rev.clone());
            let is_left_sought = self.has_followers && channels.left.is_none();
            if has_missed || entered_of.is_some() || is_left_sought {
                sought.push(RouteLookup {
                    row: Some(number),
                    id: row.id.clone(),
                    entered_of,
                    is_left_sought,
                    has_missed,
                });
            }
        }
        let mut departures = Vec::new();
        if !self.at_end {
            let (ahead, is_all) = ahead(trx, inner, instance, self.drained).await?;
            let missed = ahead.into_iter().filter(|(_, before)| is_missed(*before));
            sought.extend(missed.map(|(id, _)| {
                let (row, entered_of, is_left_sought, has_missed) = (None, None, false, true);
                RouteLookup { row, id, entered_of, is_left_sought, has_missed }
            }));
            if !is_all {
                departures.push(Departure { at: self.drained, channel: None });
            }
        }
        if sought.len() > DOCUMENTS_MAX {
            if sought.iter().any(|sought| sought.has_missed) {
                departures.push(Departure { at: self.drained, channel: None });
            }
            return Ok(departures);
        }
        let mut found = stream::iter(sought).map(|sought| look_up(trx, instance, sought)).buffered(AT_ONCE);
        let mut bytes = 0;
        while let Some(RouteResult { sought, entered, left }) = found.try_next().await? {
            let names = entered.iter().flatten().chain(left.iter().flatten().map(|(name, _)| name));
            bytes += names.map(String::len).sum::<usize>();
            if bytes > NAMES_BYTES_MAX {
                departures.push(Departure { at: self.drained, channel: None });
                break;
            }
            let row = sought.row.and_then(|number| self.rows.get_mut(number));
            let until = row.as_ref().map_or(self.drained, |(row, _)| row.seq);
            match (&left, sought.has_missed) {
                (_, false) => {}
                (None, true) => departures.push(Departure { at: until, channel: None }),
                (Some(left), true) => {
                    let is_row = row.is_some();
                    let is_missed = |at: Seq| at > self.after && (at < until || at == until && !is_row);
                    let missed = left.iter().filter(|(_, at)| is_missed(*at));
                    departures
                        .extend(missed.map(|(name, at)| Departure { at: *at, channel: Some(Arc::from(&**name)) }));
                }
            }
            if let Some((row, channels)) = row {
                channels.entered = channels.entered.take().or(entered);
                if sought.is_left_sought {
                    let with_it = |left: Vec<(String, Seq)>| {
                        left.into_iter().filter(|(_, at)| *at == row.seq).map(|(name, _)| name).collect()
                    };
                    channels.left = left.map(with_it);
                }
            }
        }
        Ok(departures)
    }
}

fn seq(instance: &Instance, stamp: Stamp) -> Seq {
    Seq::new(instance.incarnation(), stamp.0)
}

/// Returns the documents behind a page, each with the change before its newest one by its entry, and whether they are
/// all.
async fn ahead(
    trx: &Transaction,
    inner: &Inner,
    instance: &Instance,
    drained: Seq,
) -> Result<(Vec<(String, Option<Stamp>)>, bool)> {
    let ranges: Vec<_> = instance.buckets.all().iter().map(|bucket| bucket.by_seq_after(&drained)).collect();
    let entry = |_, value: &[u8]| {
        let entry = proto::SequenceEntry::decode(value)?;
        Ok((entry.document_id, entry.before.try_into().ok().map(Stamp)))
    };
    let extent = (AHEAD_MAX, false);
    let read = by_seq::begin(trx, &inner.metrics, &instance.buckets, &ranges, extent, &Shares::default(), entry);
    let read = read.await?;
    Ok((read.rows, read.is_all))
}

async fn look_up(trx: &Transaction, instance: &Instance, sought: RouteLookup) -> Result<RouteResult> {
    let left = (sought.is_left_sought || sought.has_missed).then(|| {
        let range = instance.keys.left_of(&sought.id);
        trx.range(&range, true).first(LEFT_MAX)
    });
    let entered = match &sought.entered_of {
        None => None,
        Some(rev) => {
            let channels = channels_of_revision(trx, &instance.keys.document(&sought.id), rev).await?;
            Some(channels.into_iter().collect())
        }
    };
    let Some(left) = left else { return Ok(RouteResult { sought, entered, left: None }) };
    let rows = left.await?;
    if rows.len() == LEFT_MAX {
        return Ok(RouteResult { sought, entered, left: None });
    }
    let mut found = Vec::with_capacity(rows.len());
    for row in rows.iter() {
        let left = ChannelDeparture::decode(row.value()).map_err(|error| Error::Corrupt(error.to_string()))?;
        found.push((instance.keys.left_channel(row.key())?, seq(instance, left.seq)));
    }
    Ok(RouteResult { sought, entered, left: Some(found) })
}
