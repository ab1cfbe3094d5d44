//! The stored state of a resync: its record, and the ranges of documents that it is divided into.

use std::sync::Arc;

use flatbed_databases::confirmed::ClosedReasons;
use flatbed_databases::instance::Instance;
use flatbed_databases::record_change::check_room;
use flatbed_databases::server::Inner;
use flatbed_store::error::{Error, Result};
use flatbed_store::features::name_features;
use flatbed_store::keys::ChannelPart;
use flatbed_store::proto;
use flatbed_store::record_log::note_change;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use prost::Message;

/// The most ranges of a resync. Each process reads all of them about once a second.
pub(super) const RANGES_MAX: usize = 256;

/// A resync as it is stored.
pub(super) struct StoredResync {
    pub(super) instance: Arc<Instance>,
    pub(super) state: proto::Resync,
    /// Its ranges by their first ids.
    pub(super) ranges: Vec<(String, proto::ResyncRange)>,
}

impl StoredResync {
    /// Returns the numbers of documents processed, of those changed, and of refused leaves.
    pub(super) fn sums(&self) -> [u64; 3] {
        let mut sums = [0_u64; 3];
        for (_, range) in &self.ranges {
            let counts = [range.documents, range.changed, range.refused];
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(count));
        }
        sums
    }

    pub(super) fn is_through(&self) -> bool {
        self.state.divided && self.ranges.iter().all(|(_, range)| range.done)
    }
}

/// Reads a database's resync with its ranges by one range read. `None`: there is none, or the database has no channels.
pub(super) struct ReadResync<'a> {
    pub(super) inner: &'a Inner,
    pub(super) name: &'a str,
}

impl Operation for ReadResync<'_> {
    type Output = Option<StoredResync>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.inner.resolve(trx, self.name).await?;
        if instance.channels() == 0 {
            return Ok(None);
        }
        let rows = trx.range(&instance.keys.resync_all(), true).all(RANGES_MAX + 1).await?;
        let (mut state, mut ranges) = (None, Vec::new());
        for row in rows.iter() {
            match instance.keys.split_channels(row.key())? {
                ChannelPart::Resync => state = Some(proto::Resync::decode(row.value())?),
                ChannelPart::ResyncRange { first } => ranges.push((first, proto::ResyncRange::decode(row.value())?)),
                part => return Err(Error::Corrupt(format!("{part:?} lies among the ranges of a resync"))),
            }
        }
        let Some(state) = state else { return Ok(None) };
        ranges.retain(|(_, range)| range.run == state.run);
        Ok(Some(StoredResync { instance, state, ranges }))
    }
}

/// Reads the record of a database's resync. `None`: there is none, or the database has no channels.
pub(super) async fn state_of(trx: &Transaction, instance: &Instance, snapshot: bool) -> Result<Option<proto::Resync>> {
    let state = trx.get(&instance.keys.resync(), snapshot).await?;
    Ok(state.map(|state| proto::Resync::decode(&*state)).transpose()?.filter(|_| instance.channels() > 0))
}

/// Closes a database to its users, or opens it, for a resync; every process notices.
pub(super) fn close(inner: &Inner, trx: &Transaction, instance: &Instance, is_resyncing: bool) -> Result<()> {
    let closed = ClosedReasons { is_resyncing, ..instance.closed() }.stored();
    if closed != instance.record.closed {
        let mut record = proto::DatabaseRecord { closed, ..instance.record.clone() };
        name_features(&mut record);
        let record = record.encode_to_vec();
        check_room(&record, &instance.record.encode_to_vec())?;
        trx.set(&instance.record_key, &record);
        // The entry of the log is removed with old marks.
        inner.due.note_mark();
        note_change(trx, &instance.root, &instance.name)?;
    }
    Ok(())
}
