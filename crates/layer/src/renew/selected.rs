//! New sequences for entries of selector indexes, which move with those of by-seq.

use std::collections::HashMap;

use flatbed_databases::document::body::begin_read;
use flatbed_operations::index::selector::kind::NAME;
use flatbed_store::error::Result;
use flatbed_store::keys::{KeyRange, Keys};
use flatbed_store::proto;
use flatbed_store::seq::Seq;
use flatbed_store::transaction::{Quiet, Transaction};
use foundationdb::options::MutationType;

/// Byte limit of an index's entries that belong to one page of by-seq.
const ENTRIES_BYTES_MAX: u64 = 20_000_000;

/// The entries of selector indexes beside a page of by-seq, by sequence: the index's number and the value.
pub(super) struct SelectorEntries(HashMap<Seq, Vec<(u64, Vec<u8>)>>);

impl SelectorEntries {
    /// Reads the entries of some sequences: one range for each index, which has at most as many entries as by-seq.
    pub(super) async fn read(
        trx: &Transaction,
        keys: &Keys,
        record: &proto::DatabaseRecord,
        seqs: impl Iterator<Item = Seq>,
    ) -> Result<SelectorEntries> {
        let indexes: Vec<u64> =
            record.indexes.iter().filter(|index| index.kind == NAME).map(|index| index.number).collect();
        let mut found: HashMap<Seq, Vec<(u64, Vec<u8>)>> = HashMap::new();
        if indexes.is_empty() {
            return Ok(SelectorEntries(found));
        }
        let of_record = seqs.filter(|seq| seq.incarnation() == record.incarnation);
        let ends = of_record.fold(None, |ends: Option<(Seq, Seq)>, seq| {
            Some(ends.map_or((seq, seq), |(first, last)| (first.min(seq), last.max(seq))))
        });
        let Some((first, last)) = ends else { return Ok(SelectorEntries(found)) };
        let range = |number: &u64| KeyRange {
            begin: keys.index_change(*number, &first),
            end: [keys.index_change(*number, &last).as_slice(), &[0]].concat(),
        };
        // All requests at once.
        let reads: Vec<_> = indexes.iter().map(|number| begin_read(trx, range(number))).collect();
        for (number, read) in indexes.iter().zip(reads) {
            for row in read.finish(trx, ENTRIES_BYTES_MAX).await?.iter().flat_map(|page| page.iter()) {
                let seq = keys.index_change_seq(row.key())?;
                found.entry(seq).or_default().push((*number, row.value().to_vec()));
            }
        }
        Ok(SelectorEntries(found))
    }

    /// Moves the entries of a sequence, and returns their bytes.
    pub(super) fn move_entries(
        &self,
        trx: &Transaction,
        keys: &Keys,
        seq: &Seq,
        (incarnation, user_version): (u64, u16),
    ) -> Result<usize> {
        let (quiet, mut bytes) = (Quiet(trx), 0);
        for (number, entry) in self.0.get(seq).into_iter().flatten() {
            let (old, new) =
                (keys.index_change(*number, seq), keys.index_change_stamped(*number, incarnation, user_version));
            quiet.clear(&old)?;
            quiet.atomic(&new, entry, MutationType::SetVersionstampedKey)?;
            bytes += 2 * old.len() + new.len() + entry.len();
        }
        Ok(bytes)
    }
}
