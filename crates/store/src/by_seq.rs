//! A page of by-seq: the pages of all buckets at one read version, merged ([`crate::merge`]).

use std::cmp::Reverse;
use std::sync::Arc;

use crate::buckets::Buckets;
use crate::error::Result;
use crate::instruments::Instruments;
use crate::keys::KeyRange;
use crate::merge::{Part, Shares, merge};
use crate::seq::Seq;
use crate::transaction::Transaction;

/// A page of by-seq.
pub struct BySeqPage<T> {
    /// In order, at most as many as requested.
    pub rows: Vec<T>,
    /// True if no entry follows.
    pub is_all: bool,
    /// The shares of the buckets, for the next page.
    pub shares: Shares,
}

/// Begins to read a range of each bucket, by bucket number: the first `most` entries of all buckets together, or the
/// last, newest first. An entry is its sequence and the bytes of a `SequenceEntry`.
pub fn begin<'t, T: Send, D: Fn(Seq, &[u8]) -> Result<T> + Send>(
    trx: &'t Transaction,
    metrics: &Arc<Instruments>,
    buckets: &Buckets,
    ranges: &[KeyRange],
    (most, descending): (usize, bool),
    shares: &Shares,
    decode: D,
) -> impl Future<Output = Result<BySeqPage<T>>> + Send + use<'t, T, D> {
    let (metrics, buckets) = (Arc::clone(metrics), buckets.all().clone());
    let limits: Vec<usize> = (0..buckets.len()).map(|bucket| shares.limit(bucket, buckets.len(), most)).collect();
    let page = |(range, limit): (&KeyRange, &usize)| trx.range(range, true).reverse(descending).page(*limit);
    let pages: Vec<_> = ranges.iter().zip(&limits).map(page).collect();
    metrics.by_seq_reads.add(pages.len() as u64);
    async move {
        let mut entries = Vec::with_capacity(pages.len());
        for page in pages {
            entries.push(page.await?);
        }
        // A single bucket needs no merge, so a row costs little more than its decoding.
        if let ([bucket], [page]) = (&*buckets, &*entries) {
            metrics.by_seq_rows.add(page.len() as u64);
            let mut rows = Vec::with_capacity(page.len());
            for entry in page {
                rows.push(decode(bucket.by_seq_parse(entry.key())?, entry.value())?);
            }
            return Ok(BySeqPage { rows, is_all: page.is_all(), shares: Shares::default() });
        }
        let mut parts = Vec::with_capacity(entries.len());
        for (bucket, entries) in buckets.iter().zip(&entries) {
            metrics.by_seq_rows.add(entries.len() as u64);
            let rows = entries.iter().map(|entry| Ok((bucket.by_seq_parse(entry.key())?, entry.value())));
            parts.push(Part { rows: rows.collect::<Result<_>>()?, is_all: entries.is_all() });
        }
        let merged = match descending {
            false => merge(parts, most, |(seq, _)| *seq),
            true => merge(parts, most, |(seq, _)| Reverse(*seq)),
        };
        let shares = Shares::of(buckets.len(), merged.rows.iter().map(|(bucket, _)| *bucket));
        let mut rows = Vec::with_capacity(merged.rows.len());
        for (_, (seq, value)) in merged.rows {
            rows.push(decode(seq, value)?);
        }
        Ok(BySeqPage { rows, is_all: merged.is_all, shares })
    }
}
