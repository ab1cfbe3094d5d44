//! Database statistics for restricted readers.

use async_recursion::async_recursion as boxed;
use flatbed_databases::asker::ReadPrincipal;
use flatbed_databases::instance::Instance;
use flatbed_databases::limits::Limit;
use flatbed_databases::server::Inner;
use flatbed_revtree::DESIGN_IDS;
use flatbed_store::error::Result;
use flatbed_store::keys::{Counter, KeyRange};
use flatbed_store::records::is_over;
use flatbed_store::seq::Seq;
use flatbed_store::transaction::Transaction;
use futures_util::future::{try_join, try_join_all};

use crate::read::get::last_seq;
use crate::read::merged_ids::{RANGES_AT_ONCE, merged_page};
use crate::read::viewer::{PendingViewer, Viewer};

/// Documents up to which the count is exact.
const COUNTED_MAX: Limit<usize> = Limit::new(1_000, 20);

/// The statistics of the visible part of a database.
pub struct SeenInfo {
    /// Documents that are not deleted. Above 1,000, or if many channels share them, an estimate by the size of the
    /// channels.
    pub doc_count: u64,
    /// The newest sequence in the reader's channels.
    pub update_seq: Seq,
}

/// Reads the statistics.
#[boxed]
pub async fn seen_info(
    inner: &Inner,
    trx: &Transaction,
    instance: &Instance,
    asker: &ReadPrincipal,
) -> Result<SeenInfo> {
    let viewer = PendingViewer::begin(inner, trx, instance, asker).viewer().await?;
    let (update_seq, doc_count) = try_join(newest_seq(&viewer, trx, instance), count(&viewer, trx, instance)).await?;
    Ok(SeenInfo { doc_count, update_seq })
}

/// Reads the newest sequence of documents that are visible to the reader or have left their channels.
#[boxed]
pub async fn seen_seq(inner: &Inner, trx: &Transaction, instance: &Instance, asker: &ReadPrincipal) -> Result<Seq> {
    let viewer = PendingViewer::begin(inner, trx, instance, asker).viewer().await?;
    newest_seq(&viewer, trx, instance).await
}

async fn newest_seq(viewer: &Viewer, trx: &Transaction, instance: &Instance) -> Result<Seq> {
    if viewer.held.has_all() {
        return last_seq(trx, instance).await;
    }
    let (keys, incarnation) = (&instance.keys, instance.incarnation());
    let mut newest = Seq::zero(incarnation);
    let ranges: Vec<_> =
        viewer.held.channels().map(|(channel, _)| keys.channel_entries(channel, incarnation)).collect();
    for part in ranges.chunks(RANGES_AT_ONCE) {
        let reads: Vec<_> = part.iter().map(|range| trx.range(range, true).reverse(true).first(1)).collect();
        for last in try_join_all(reads).await? {
            if let Some(row) = last.first() {
                newest = newest.max(keys.channel_entry_seq(row.key())?);
            }
        }
    }
    Ok(newest)
}

async fn count(viewer: &Viewer, trx: &Transaction, instance: &Instance) -> Result<u64> {
    let keys = &instance.keys;
    if viewer.held.has_all() {
        let designs = KeyRange { begin: keys.all_docs_entry(DESIGN_IDS.0), end: keys.all_docs_entry(DESIGN_IDS.1) };
        let all = instance.buckets.begin_count(trx, Counter::Documents);
        let designs = trx.range(&designs, true).first(COUNTED_MAX.get());
        // Design documents are hidden from the reader.
        return Ok((all.await?.max(0) as u64).saturating_sub(designs.await?.len() as u64));
    }
    let channels = || viewer.held.channels().map(|(channel, _)| channel);
    let page = merged_page(trx, keys, channels(), &keys.all_docs(), false, COUNTED_MAX.get() + 1).await?;
    if !page.more && page.rows.len() <= COUNTED_MAX.get() {
        return Ok(page.rows.iter().filter(|(_, row)| !is_over(row.expires_at_ms, trx.clock())).count() as u64);
    }
    let counted = page.rows.len() as u64;
    // Approximate key and value bytes of a row; a document in several channels counts in each.
    let (ids, names) =
        (page.rows.iter().map(|(id, _)| id.len()).sum::<usize>(), channels().map(str::len).sum::<usize>());
    let row_bytes = ids / page.rows.len().max(1) + names / channels().count().max(1) + ROW_BYTES;
    let ranges: Vec<_> = channels().map(|channel| keys.channel_documents(channel)).collect();
    let mut bytes = 0_u64;
    for part in ranges.chunks(RANGES_AT_ONCE) {
        let sizes: Vec<_> =
            part.iter().map(|range| trx.get_estimated_range_size_bytes(&range.begin, &range.end)).collect();
        for size in sizes {
            bytes = bytes.saturating_add(size.await?.max(0) as u64);
        }
    }
    Ok((bytes / row_bytes as u64).max(counted))
}

/// Bytes of a row of a channel's ids beside the channel's name and the id.
const ROW_BYTES: usize = 45;
