//! Natural numbers of any size, with the few operations that are needed here.

use std::cmp::Ordering;

const LIMB_BITS: u32 = u64::BITS;

/// The greatest power of ten that fits into a limb, and its digits.
const TEN_POWER: u64 = 10_000_000_000_000_000_000;
const TEN_POWER_DIGITS: usize = 19;

/// A natural number, its lowest limb first and its highest one not zero.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Magnitude(Vec<u64>);

impl Magnitude {
    pub(super) fn of(value: u64) -> Magnitude {
        Magnitude::trimmed(vec![value])
    }

    fn trimmed(mut limbs: Vec<u64>) -> Magnitude {
        while limbs.pop_if(|limb| *limb == 0).is_some() {}
        Magnitude(limbs)
    }

    pub(super) fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    fn limb(&self, at: usize) -> u64 {
        self.0.get(at).copied().unwrap_or(0)
    }

    /// The number of bits, the leading one included: 0 for zero.
    pub(super) fn bits(&self) -> u32 {
        self.0.last().map_or(0, |top| self.0.len() as u32 * LIMB_BITS - top.leading_zeros())
    }

    pub(super) fn trailing_zeros(&self) -> u32 {
        let zeros = self.0.iter().take_while(|limb| **limb == 0).count();
        zeros as u32 * LIMB_BITS + self.0.get(zeros).map_or(0, |limb| limb.trailing_zeros())
    }

    pub(super) fn shifted_left(&self, bits: u32) -> Magnitude {
        let (limbs, bits) = ((bits / LIMB_BITS) as usize, bits % LIMB_BITS);
        let mut shifted = vec![0; limbs];
        let mut carry = 0;
        for limb in &self.0 {
            let wide = u128::from(*limb) << bits;
            shifted.push(wide as u64 | carry);
            carry = (wide >> LIMB_BITS) as u64;
        }
        shifted.push(carry);
        Magnitude::trimmed(shifted)
    }

    pub(super) fn shifted_right(&self, bits: u32) -> Magnitude {
        let (limbs, bits) = ((bits / LIMB_BITS) as usize, bits % LIMB_BITS);
        let shifted = (limbs..self.0.len())
            .map(|at| ((u128::from(self.limb(at + 1)) << LIMB_BITS | u128::from(self.limb(at))) >> bits) as u64);
        Magnitude::trimmed(shifted.collect())
    }

    /// Shifts right by `bits`. Returns the lowest 64 bits of the result, and the bits shifted out.
    pub(super) fn split_at(&self, bits: u32) -> (u64, Magnitude) {
        let high = self.shifted_right(bits);
        let low = self.minus(&high.shifted_left(bits));
        (high.limb(0), low)
    }

    pub(super) fn plus(&self, other: &Magnitude) -> Magnitude {
        let mut carry = 0;
        let mut sum: Vec<u64> = Vec::with_capacity(self.0.len().max(other.0.len()) + 1);
        for at in 0..self.0.len().max(other.0.len()) {
            let wide = u128::from(self.limb(at)) + u128::from(other.limb(at)) + carry;
            sum.push(wide as u64);
            carry = wide >> LIMB_BITS;
        }
        sum.push(carry as u64);
        Magnitude::trimmed(sum)
    }

    /// Subtracts a number that is not greater.
    pub(super) fn minus(&self, other: &Magnitude) -> Magnitude {
        let mut has_borrowed = false;
        let difference = self.0.iter().enumerate().map(|(at, limb)| {
            let (less, first) = limb.overflowing_sub(other.limb(at));
            let (less, second) = less.overflowing_sub(u64::from(has_borrowed));
            has_borrowed = first || second;
            less
        });
        Magnitude::trimmed(difference.collect())
    }

    pub(super) fn times(&self, other: &Magnitude) -> Magnitude {
        let mut sum = Magnitude::default();
        for (at, limb) in other.0.iter().enumerate() {
            sum = sum.plus(&self.times_limb(*limb, 0).shifted_left(at as u32 * LIMB_BITS));
        }
        sum
    }

    fn times_limb(&self, factor: u64, plus: u64) -> Magnitude {
        let mut carry = u128::from(plus);
        let mut product: Vec<u64> = Vec::with_capacity(self.0.len() + 1);
        for limb in &self.0 {
            let wide = u128::from(*limb) * u128::from(factor) + carry;
            product.push(wide as u64);
            carry = wide >> LIMB_BITS;
        }
        product.push(carry as u64);
        Magnitude::trimmed(product)
    }

    /// Parses decimal digits, at least one; `None` for another text. Quadratic in the number of digits.
    pub(super) fn of_decimal(digits: &str) -> Option<Magnitude> {
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let mut sum = Magnitude::default();
        for digits in digits.as_bytes().chunks(TEN_POWER_DIGITS) {
            let value = digits.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
            let power = if digits.len() == TEN_POWER_DIGITS { TEN_POWER } else { 10_u64.pow(digits.len() as u32) };
            sum = sum.times_limb(power, value);
        }
        Some(sum)
    }

    pub(super) fn to_decimal(&self) -> String {
        let mut parts = Vec::new();
        let mut rest = self.clone();
        while !rest.is_zero() {
            let mut remainder = 0;
            for limb in rest.0.iter_mut().rev() {
                let wide = remainder << LIMB_BITS | u128::from(*limb);
                *limb = (wide / u128::from(TEN_POWER)) as u64;
                remainder = wide % u128::from(TEN_POWER);
            }
            rest = Magnitude::trimmed(rest.0);
            parts.push(remainder);
        }
        let mut parts = parts.into_iter().rev();
        let first = parts.next().unwrap_or(0).to_string();
        parts.fold(first, |text, part| text + &format!("{part:0width$}", width = TEN_POWER_DIGITS))
    }

    /// Returns group `group`, counted from the top, of the lowest `below` bits in groups of seven, padded with zeros.
    pub(super) fn group_below(&self, below: u32, group: u32) -> u8 {
        let end = below.saturating_sub(group * 7);
        let bit = |place: u32| match end.checked_sub(place + 1) {
            Some(at) => (self.limb((at / LIMB_BITS) as usize) >> (at % LIMB_BITS) & 1) as u8,
            None => 0,
        };
        (0..7).fold(0, |bits, place| bits << 1 | bit(place))
    }

    /// The bytes, the highest first and not zero.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let bytes = self.0.iter().rev().flat_map(|limb| limb.to_be_bytes());
        bytes.skip_while(|byte| *byte == 0).collect()
    }

    pub(super) fn of_bytes(bytes: &[u8]) -> Magnitude {
        let limbs = bytes.rchunks(8).map(|limb| limb.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
        Magnitude::trimmed(limbs.collect())
    }
}

impl Ord for Magnitude {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }
}

impl PartialOrd for Magnitude {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
