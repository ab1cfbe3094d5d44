//! The atomic operations of 7.3 as pure functions: value before, operand, value after.
//!
//! FoundationDB's Developer Guide, "Atomic Operations", documents the lengths. For the little-endian operations the
//! operand's length is the result's length. `min` and `and` on an absent value store the operand (API version 510 and
//! later).

/// The largest value, in bytes.
pub(crate) const VALUE_BYTES_MAX: usize = 100_000;

/// An atomic operation, resolved against the current value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AtomicOp {
    Add,
    And,
    Or,
    Xor,
    AppendIfFits,
    Max,
    Min,
    ByteMin,
    ByteMax,
    CompareAndClear,
}

impl AtomicOp {
    /// Maps an `FDBMutationType` number; `None` for the two versionstamp operations and for unknown numbers.
    pub(crate) fn from_code(code: i32) -> Option<AtomicOp> {
        Some(match code {
            2 => AtomicOp::Add,
            6 | 19 => AtomicOp::And,
            7 => AtomicOp::Or,
            8 => AtomicOp::Xor,
            9 => AtomicOp::AppendIfFits,
            12 => AtomicOp::Max,
            13 | 18 => AtomicOp::Min,
            16 => AtomicOp::ByteMin,
            17 => AtomicOp::ByteMax,
            20 => AtomicOp::CompareAndClear,
            _ => return None,
        })
    }

    /// Returns whether `a` then `b` on operands of unequal length differs from `a` on (`a` combined with `b`). The
    /// transaction must keep two such operations separate.
    pub(crate) fn depends_on_operand_length(self) -> bool {
        !matches!(self, AtomicOp::And | AtomicOp::AppendIfFits | AtomicOp::ByteMin | AtomicOp::ByteMax)
    }

    /// Returns the value after the operation; `None` is an absent key.
    pub(crate) fn apply(self, before: Option<&[u8]>, operand: &[u8]) -> Option<Vec<u8>> {
        let empty_as_absent = before.unwrap_or_default();
        Some(match self {
            AtomicOp::Add => add(empty_as_absent, operand),
            AtomicOp::And => match before {
                None => operand.to_vec(),
                Some(before) => zip_padded(before, operand, |a, b| a & b),
            },
            AtomicOp::Or => zip_padded(empty_as_absent, operand, |a, b| a | b),
            AtomicOp::Xor => zip_padded(empty_as_absent, operand, |a, b| a ^ b),
            AtomicOp::AppendIfFits => {
                let mut value = empty_as_absent.to_vec();
                if value.len() + operand.len() <= VALUE_BYTES_MAX {
                    value.extend_from_slice(operand);
                }
                value
            }
            AtomicOp::Max => match little_endian_cmp(empty_as_absent, operand) {
                std::cmp::Ordering::Greater => fit(empty_as_absent, operand.len()),
                _ => operand.to_vec(),
            },
            AtomicOp::Min => match before {
                None => operand.to_vec(),
                Some(before) => match little_endian_cmp(before, operand) {
                    std::cmp::Ordering::Less => fit(before, operand.len()),
                    _ => operand.to_vec(),
                },
            },
            AtomicOp::ByteMin => match before {
                Some(before) if before < operand => before.to_vec(),
                _ => operand.to_vec(),
            },
            AtomicOp::ByteMax => match before {
                Some(before) if before > operand => before.to_vec(),
                _ => operand.to_vec(),
            },
            AtomicOp::CompareAndClear => match before {
                Some(before) if before != operand => before.to_vec(),
                _ => return None,
            },
        })
    }
}

/// Little-endian sum, truncated to the operand's length; a shorter value is padded with zeros.
fn add(before: &[u8], operand: &[u8]) -> Vec<u8> {
    let mut carry = 0u16;
    operand
        .iter()
        .enumerate()
        .map(|(at, &byte)| {
            let sum = u16::from(byte) + u16::from(before.get(at).copied().unwrap_or(0)) + carry;
            carry = sum >> 8;
            sum as u8
        })
        .collect()
}

fn zip_padded(before: &[u8], operand: &[u8], op: impl Fn(u8, u8) -> u8) -> Vec<u8> {
    operand.iter().enumerate().map(|(at, &byte)| op(before.get(at).copied().unwrap_or(0), byte)).collect()
}

/// Compares as little-endian numbers of the operand's length; further bytes of the value are ignored.
fn little_endian_cmp(before: &[u8], operand: &[u8]) -> std::cmp::Ordering {
    (0..operand.len())
        .rev()
        .map(|at| before.get(at).copied().unwrap_or(0).cmp(&operand[at]))
        .find(|ordering| ordering.is_ne())
        .unwrap_or(std::cmp::Ordering::Equal)
}

fn fit(value: &[u8], len: usize) -> Vec<u8> {
    let mut value = value[..value.len().min(len)].to_vec();
    value.resize(len, 0);
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn examples() {
        let check = |op: AtomicOp, before: Option<&[u8]>, operand: &[u8], after: Option<&[u8]>| {
            assert_eq!(op.apply(before, operand).as_deref(), after, "{op:?} {before:?} {operand:?}");
        };
        check(AtomicOp::Add, Some(&[255, 0]), &[1], Some(&[0]));
        check(AtomicOp::Add, Some(&[255]), &[1, 0], Some(&[0, 1]));
        check(AtomicOp::Add, None, &[1, 2], Some(&[1, 2]));
        check(AtomicOp::Add, Some(&[1, 2]), &[], Some(&[]));
        check(AtomicOp::And, None, &[7], Some(&[7]));
        check(AtomicOp::And, Some(&[]), &[7], Some(&[0]));
        check(AtomicOp::Max, Some(&[1, 1]), &[9], Some(&[9]));
        check(AtomicOp::Max, Some(&[10, 0]), &[9], Some(&[10]));
        check(AtomicOp::Min, None, &[9], Some(&[9]));
        check(AtomicOp::Min, Some(&[]), &[9, 1], Some(&[0, 0]));
        check(AtomicOp::AppendIfFits, Some(&[1]), &[2], Some(&[1, 2]));
        check(AtomicOp::AppendIfFits, Some(&[1; 99_999]), &[2, 2], Some(&[1; 99_999]));
        check(AtomicOp::CompareAndClear, Some(&[1]), &[1], None);
        check(AtomicOp::CompareAndClear, Some(&[1]), &[2], Some(&[1]));
        check(AtomicOp::CompareAndClear, None, &[2], None);
        check(AtomicOp::ByteMin, None, &[2], Some(&[2]));
        check(AtomicOp::ByteMin, Some(&[1, 9]), &[2], Some(&[1, 9]));
        check(AtomicOp::ByteMax, Some(&[1, 9]), &[1], Some(&[1, 9]));
    }

    proptest! {
        #[test]
        fn numbers_of_eight_bytes_behave_as_u64(a: u64, b: u64) {
            let apply = |op: AtomicOp| {
                let value = op.apply(Some(&a.to_le_bytes()), &b.to_le_bytes()).unwrap();
                u64::from_le_bytes(value.try_into().unwrap())
            };
            prop_assert_eq!(apply(AtomicOp::Add), a.wrapping_add(b));
            prop_assert_eq!(apply(AtomicOp::And), a & b);
            prop_assert_eq!(apply(AtomicOp::Or), a | b);
            prop_assert_eq!(apply(AtomicOp::Xor), a ^ b);
            prop_assert_eq!(apply(AtomicOp::Max), a.max(b));
            prop_assert_eq!(apply(AtomicOp::Min), a.min(b));
        }
    }
}
