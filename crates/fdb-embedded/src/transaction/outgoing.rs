//! The writes of a transaction in the form of a commit request.

use crate::base::key_space::{SYSTEM_END, key_after};
use crate::base::mutation::Mutation;
use crate::base::range_set::{RangeList, RangeSet};
use crate::read::write_map::{Op, Ops, WriteMap};

/// FoundationDB's overhead in bytes for a mutation and for a conflict range.
pub(crate) const MUTATION_OVERHEAD: usize = 44;
pub(crate) const RANGE_OVERHEAD: usize = 24;

/// Writes handed over to the commit already, or written directly without read-your-writes.
#[derive(Default)]
pub(crate) struct OutgoingWrites {
    pub(crate) mutations: Vec<Mutation>,
    pub(crate) conflicts: RangeList,
}

impl OutgoingWrites {
    fn push_operations(&mut self, key: Vec<u8>, ops: Ops) {
        let (mut key, mut left) = (key, ops.len());
        for op in ops {
            left -= 1;
            // The last operation moves the key.
            let key = if left == 0 { std::mem::take(&mut key) } else { key.clone() };
            self.mutations.push(match op {
                Op::Set(Some(value)) => Mutation::Set(key, value),
                Op::Set(None) => {
                    let end = key_after(&key);
                    Mutation::Clear((key, end))
                }
                Op::Atomic(op, operand) => Mutation::Atomic(op, key, operand),
                Op::StampKey(value) => Mutation::StampKey(key, value),
                Op::StampValue(value) => Mutation::StampValue(key, value),
            });
        }
    }

    /// Copies the map's writes within a range; the caller must make the map forget it.
    pub(crate) fn take_range(&mut self, writes: &WriteMap, begin: &[u8], end: &[u8]) {
        self.mutations.extend(writes.cleared(begin, end).into_iter().map(Mutation::Clear));
        writes.conflicts(begin, end, &mut self.conflicts);
        for (key, ops) in writes.operations(begin, end) {
            self.push_operations(key, ops);
        }
    }

    pub(crate) fn take_all(&mut self, writes: WriteMap) {
        // Single keys are walked once, together with their conflicts.
        let has_keys_only = writes.has_keys_only();
        if !has_keys_only {
            self.mutations.extend(writes.cleared(b"", SYSTEM_END).into_iter().map(Mutation::Clear));
            writes.conflicts(b"", SYSTEM_END, &mut self.conflicts);
        }
        let before = self.conflicts.len();
        let operations = writes.into_operations();
        self.mutations.reserve(operations.len());
        self.conflicts.reserve(if has_keys_only { operations.len() } else { 0 });
        for (key, ops, is_conflict) in operations {
            if has_keys_only && is_conflict {
                self.conflicts.push_key_after(&key, before);
            }
            self.push_operations(key, ops);
        }
    }

    /// The size that `transaction_too_large` limits.
    pub(crate) fn bytes(&self, read_conflicts: &RangeSet) -> usize {
        let mutations = self.mutations.iter().map(|mutation| mutation.bytes() + MUTATION_OVERHEAD);
        let writes = self.conflicts.iter().map(|(begin, end)| begin.len() + end.len() + RANGE_OVERHEAD);
        let read_conflicts = read_conflicts.in_order();
        let reads = read_conflicts.iter().map(|(begin, end)| begin.len() + end.len() + RANGE_OVERHEAD);
        mutations.chain(writes).chain(reads).sum()
    }
}
