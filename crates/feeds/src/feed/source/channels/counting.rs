//! Counts the rows of a feed of channels behind a position, in as many bounded transactions as needed.

use flatbed_databases::channels::holding::RightsRead;
use flatbed_databases::instance::Instance;
use flatbed_databases::limits::Limit;
use flatbed_databases::server::Inner;
use flatbed_store::error::Result;
use flatbed_store::transaction::Transaction;
use futures_util::future::try_join;

use crate::feed::source::channels::{Channels, MergeRow, ROUNDS_MAX, RunningMerge, known_position, reading};
use crate::feed::source::{PendingCount, UnrestrictedSource};

/// Limit up to which the count is exact.
pub const EXACT_MAX: Limit<usize> = Limit::new(500, 7);

/// Steps of the merge that one transaction counts.
const LOOKS_MAX: Limit<usize> = ROUNDS_MAX;

pub(crate) struct RunningCount {
    under_way: RunningMerge,
    /// Counted rows, without those left in the merge.
    counted: usize,
}

impl RunningCount {
    /// Returns the count so far; `None` if no row was found yet and the feed may have none.
    pub(crate) fn known(&self) -> Option<u64> {
        (self.counted > 0).then_some(EXACT_MAX.get() as u64 + 1)
    }
}

impl Channels {
    /// See [`crate::feed::source::Source::pending`]. A failed or dropped call keeps its count, and the next one
    /// continues.
    pub(super) async fn count(
        &self,
        trx: &Transaction,
        inner: &Inner,
        instance: &Instance,
        behind: &mut PendingCount,
    ) -> Result<Option<u64>> {
        let most = EXACT_MAX.get() + 1;
        let is_known = behind.counting.as_ref().is_some_and(|known| known.under_way.instance == instance.id());
        let last_seq = async || instance.buckets.begin_last_seq(trx, instance.epoch_begin()).await;
        let until = async { if is_known { Ok(None) } else { last_seq().await.map(Some) } };
        let (held, until) = try_join(RightsRead::begin(inner, trx, instance, &self.asker).held(), until).await?;
        self.asker.admitted(&held)?;
        let counting = match &mut behind.counting {
            Some(known) if is_known && held.is_as(&known.under_way.held) => known,
            // The count belongs to the reader's old rights.
            other => {
                let until = match until {
                    Some(until) => until,
                    None => last_seq().await?,
                };
                let index = match &self.plain {
                    UnrestrictedSource::Selected(index) => index.known(),
                    UnrestrictedSource::BySeq(_) | UnrestrictedSource::ByIds(_) => None,
                };
                let between = (known_position(instance, &behind.cursor), until);
                let under_way = self.set_out(trx, instance, &held, between, most, index).await?;
                other.insert(RunningCount { under_way, counted: 0 })
            }
        };
        let RunningCount { under_way, counted } = counting;
        if under_way.of_ids.is_some() {
            return Ok(Some(under_way.left.len() as u64));
        }
        let mut rounds = under_way.rounds_max();
        for _ in 0..LOOKS_MAX.get() {
            let is_end = self.collect(trx, inner, instance, under_way, most, &mut rounds).await?;
            let slots: Vec<MergeRow> = under_way.left.iter().cloned().collect();
            let found = reading::complete_rows(trx, instance, under_way, slots).await?;
            let found = reading::selected(trx, &inner.metrics, instance, under_way.index, found).await?;
            // Only now: if this fails they are looked up again.
            under_way.left.clear();
            *counted += found.len();
            if is_end {
                return Ok(Some(*counted as u64));
            }
            if *counted > EXACT_MAX.get() || rounds == 0 {
                break;
            }
        }
        if *counted <= EXACT_MAX.get() && !behind.is_last {
            return Ok(None);
        }
        let entries = under_way.begin_size(trx, instance).await? / reading::ENTRY_BYTES;
        let estimate = entries.saturating_add((*counted + under_way.merge.held_entries()) as u64);
        Ok(Some(estimate.max(most as u64)))
    }
}
