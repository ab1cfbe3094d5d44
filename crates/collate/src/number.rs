//! Exact numbers: CouchDB's integers have any number of digits, and its floats 64 bits. Both are an integer times a
//! power of two, so comparison and addition are exact.

mod magnitude;
mod text;

use std::cmp::Ordering;

use magnitude::Magnitude;
pub(crate) use text::float_text;

/// The bits of a double below its leading one.
const FRACTION_BITS: u32 = 52;

/// The exponent of a double's last bit with an exponent field of 0 or 1.
const EXPONENT_MIN: i32 = -1074;

/// The longest encoding that [`Exact::decode`] accepts: a number of about 30,000 decimal digits, longer than any
/// number that a parser accepts.
const ENCODED_BYTES_MAX: usize = 12_500;

/// An integer times a power of two: the value of any JSON number. Equal values have equal fields: the magnitude is
/// odd, or zero with the exponent 0 and no sign.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Exact {
    is_negative: bool,
    magnitude: Magnitude,
    exponent: i32,
}

impl Exact {
    fn new(is_negative: bool, magnitude: Magnitude, exponent: i32) -> Exact {
        let zeros = magnitude.trailing_zeros();
        if magnitude.is_zero() {
            return Exact::default();
        }
        Exact { is_negative, magnitude: magnitude.shifted_right(zeros), exponent: exponent + zeros as i32 }
    }

    pub(crate) fn of_i64(value: i64) -> Exact {
        Exact::new(value < 0, Magnitude::of(value.unsigned_abs()), 0)
    }

    /// Converts a finite float; other floats count as the greatest.
    pub(crate) fn of_f64(value: f64) -> Exact {
        let value = if value.is_nan() { 0.0 } else { value.clamp(f64::MIN, f64::MAX) };
        let bits = value.to_bits();
        let field = (bits >> FRACTION_BITS & 0x7ff) as i32;
        let fraction = bits & ((1 << FRACTION_BITS) - 1);
        let (mantissa, exponent) = if field == 0 {
            (fraction, EXPONENT_MIN)
        } else {
            (fraction | 1 << FRACTION_BITS, field - 1 + EXPONENT_MIN)
        };
        Exact::new(value < 0.0, Magnitude::of(mantissa), exponent)
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.magnitude.is_zero()
    }

    pub(crate) fn is_negative(&self) -> bool {
        self.is_negative
    }

    /// The position of the leading one: 0 for the number 1. Meaningless for zero.
    fn top(&self) -> i32 {
        self.exponent + self.magnitude.bits() as i32 - 1
    }

    pub(crate) fn add(&self, other: &Exact) -> Exact {
        if self.is_zero() {
            return other.clone();
        }
        if other.is_zero() {
            return self.clone();
        }
        let exponent = self.exponent.min(other.exponent);
        let (a, b) = (self.at(exponent), other.at(exponent));
        if self.is_negative == other.is_negative {
            return Exact::new(self.is_negative, a.plus(&b), exponent);
        }
        match a.cmp(&b) {
            Ordering::Less => Exact::new(other.is_negative, b.minus(&a), exponent),
            _ => Exact::new(self.is_negative, a.minus(&b), exponent),
        }
    }

    pub(crate) fn square(&self) -> Exact {
        Exact::new(false, self.magnitude.times(&self.magnitude), 2 * self.exponent)
    }

    /// The magnitude in units of two to the power of `exponent`, which must not exceed its own.
    fn at(&self, exponent: i32) -> Magnitude {
        self.magnitude.shifted_left(self.exponent.saturating_sub(exponent).unsigned_abs())
    }

    /// Rounds to the nearest float, ties to even; infinite above the greatest.
    pub(crate) fn to_f64(&self) -> f64 {
        if self.is_zero() {
            return 0.0;
        }
        let surplus = self.magnitude.bits().saturating_sub(FRACTION_BITS + 1);
        // No sum has bits below the least float: no summand has a lower exponent.
        let (kept, dropped) = self.magnitude.split_at(surplus);
        let up = match dropped.cmp(&Magnitude::of(1).shifted_left(surplus.saturating_sub(1))) {
            _ if surplus == 0 => false,
            Ordering::Less => false,
            Ordering::Equal => kept & 1 == 1,
            Ordering::Greater => true,
        };
        // At most 2 to the power of 53: exact.
        let mantissa = (kept + u64::from(up)) as f64;
        let exponent = self.exponent.saturating_add(surplus as i32);
        // In two steps, because the power alone may be below the least float.
        let half = (exponent / 2).clamp(-600, 600);
        let value = mantissa * power_of_two(half) * power_of_two((exponent - half).clamp(-1022, 1023));
        if self.is_negative { -value } else { value }
    }

    /// The decimal digits of an integer; for another number those of its integer part.
    pub(crate) fn to_decimal(&self) -> String {
        let magnitude = if self.exponent >= 0 {
            self.magnitude.shifted_left(self.exponent.unsigned_abs())
        } else {
            self.magnitude.shifted_right(self.exponent.unsigned_abs())
        };
        let digits = magnitude.to_decimal();
        if self.is_negative { format!("-{digits}") } else { digits }
    }

    /// The bits below the leading one, the highest first, in groups of seven, the last one padded with zeros: at least
    /// one group, and no trailing group of zeros after it.
    pub(crate) fn groups(&self) -> (i32, impl Iterator<Item = u8> + '_) {
        let below = self.magnitude.bits().saturating_sub(1);
        (self.top(), (0..below.div_ceil(7).max(1)).map(move |group| self.magnitude.group_below(below, group)))
    }

    /// Appends the number in the form that [`decode`](Exact::decode) reads: equal numbers have equal bytes.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let bytes = self.magnitude.to_bytes();
        crate::codec::put(out, bytes.len() as u64 * 2 + u64::from(self.is_negative));
        out.extend_from_slice(&bytes);
        if !bytes.is_empty() {
            crate::codec::put(out, zigzag(self.exponent));
        }
    }

    /// Reads a number from the start of `bytes`; `None` if they are invalid.
    pub(crate) fn decode(bytes: &mut &[u8]) -> Option<Exact> {
        let head = crate::codec::take(bytes)?;
        let len = usize::try_from(head / 2).ok().filter(|len| *len <= ENCODED_BYTES_MAX)?;
        let (magnitude, rest) = bytes.split_at_checked(len)?;
        *bytes = rest;
        let exponent = if len == 0 { 0 } else { unzigzag(crate::codec::take(bytes)?)? };
        Some(Exact::new(head & 1 == 1, Magnitude::of_bytes(magnitude), exponent))
    }
}

impl Ord for Exact {
    fn cmp(&self, other: &Self) -> Ordering {
        let sign = |number: &Exact| if number.is_zero() { 0 } else { 1 - 2 * i8::from(number.is_negative) };
        let by_sign = sign(self).cmp(&sign(other));
        if by_sign.is_ne() || self.is_zero() {
            return by_sign;
        }
        let exponent = self.exponent.min(other.exponent);
        let by_size = self.top().cmp(&other.top()).then_with(|| self.at(exponent).cmp(&other.at(exponent)));
        if self.is_negative { by_size.reverse() } else { by_size }
    }
}

impl PartialOrd for Exact {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A JSON number: its value, and whether it is a float, which CouchDB writes with a fraction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Number {
    pub(crate) value: Exact,
    pub(crate) is_float: bool,
}

impl Number {
    /// Parses a number's text: an integer exactly, a text with a fraction or an exponent to the nearest float. An
    /// invalid text counts as 0.
    pub(crate) fn of_text(text: &str) -> Number {
        if let Ok(integer) = text.parse() {
            return Number { value: Exact::of_i64(integer), is_float: false };
        }
        let digits = text.strip_prefix('-').unwrap_or(text);
        match Magnitude::of_decimal(digits) {
            Some(magnitude) => Number { value: Exact::new(text.starts_with('-'), magnitude, 0), is_float: false },
            None => Number { value: Exact::of_f64(text.parse().unwrap_or(0.0)), is_float: true },
        }
    }

    /// Formats as JSON like CouchDB; `None` for a float above the greatest.
    pub(crate) fn to_text(&self) -> Option<String> {
        if self.is_float { float_text(self.value.to_f64()) } else { Some(self.value.to_decimal()) }
    }

    pub(crate) fn plus(&self, other: &Number) -> Number {
        Number { value: self.value.add(&other.value), is_float: self.is_float || other.is_float }
    }

    /// Subtracts a number that was added before. `None` for a float: the sum does not tell whether it has other
    /// floats.
    pub(crate) fn minus(&self, other: &Number) -> Option<Number> {
        let Exact { is_negative, magnitude, exponent } = &other.value;
        let opposite = Exact::new(!is_negative, magnitude.clone(), *exponent);
        (!other.is_float).then(|| Number { value: self.value.add(&opposite), is_float: self.is_float })
    }

    /// Squares the number; a float's square is rounded as the processor does.
    pub(crate) fn squared(&self) -> Number {
        if self.is_float {
            let float = self.value.to_f64();
            // A square above the greatest float is computed exactly, and becomes an error when it is written.
            let square = float * float;
            if square.is_finite() {
                return Number { value: Exact::of_f64(square), is_float: true };
            }
        }
        Number { value: self.value.square(), is_float: self.is_float }
    }

    /// An estimate of its encoding's length, at most a few bytes too small.
    pub(crate) fn bytes(&self) -> usize {
        self.value.magnitude.bits() as usize / 8 + 4
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.is_float));
        self.value.encode(out);
    }

    pub(crate) fn decode(bytes: &mut &[u8]) -> Option<Number> {
        let (kind, rest) = bytes.split_first()?;
        *bytes = rest;
        Some(Number { value: Exact::decode(bytes)?, is_float: *kind != 0 })
    }
}

/// For an exponent that doubles have, -1022 to 1023.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << FRACTION_BITS)
}

fn zigzag(value: i32) -> u64 {
    u64::from((value << 1 ^ value >> 31) as u32)
}

fn unzigzag(value: u64) -> Option<i32> {
    let value = u32::try_from(value).ok()?;
    let decoded = (value >> 1) as i32 ^ -((value & 1) as i32);
    // Sums of squares of integers and floats stay in this range, in which arithmetic on exponents does not overflow.
    (-4_000..=200_000).contains(&decoded).then_some(decoded)
}

#[cfg(test)]
pub(crate) mod tests;
