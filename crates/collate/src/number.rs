//! Numbers, exactly: CouchDB's integers have any number of digits, and its floats 64 bits. Both are an integer times a
//! power of two, so that comparing and adding loses nothing.

mod magnitude;
mod text;

use std::cmp::Ordering;

use magnitude::Magnitude;
pub(crate) use text::float_text;

/// The bits of a double below its leading one.
const FRACTION_BITS: u32 = 52;

/// The exponent of a double's last bit, where its exponent field is 0 or 1.
const EXPONENT_MIN: i32 = -1074;

/// The longest encoding that [`Exact::decode`] takes: a number of some 30,000 decimal digits, longer than any text that
/// a parser takes.
const ENCODED_BYTES_MAX: usize = 12_500;

/// An integer times a power of two: what any JSON number is worth. Equal values are equal members: the magnitude is odd,
/// or zero with the exponent 0 and no sign.
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

    /// Of a finite float; those that are not count as the greatest.
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

    /// Where the leading one stands: 0 for the number 1. Of zero it says nothing.
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

    /// The magnitude in units of two to the power of an exponent, which is not above its own.
    fn at(&self, exponent: i32) -> Magnitude {
        self.magnitude.shifted_left(self.exponent.saturating_sub(exponent).unsigned_abs())
    }

    /// The nearest float, the even one of two; infinite beyond the greatest.
    pub(crate) fn to_f64(&self) -> f64 {
        if self.is_zero() {
            return 0.0;
        }
        let surplus = self.magnitude.bits().saturating_sub(FRACTION_BITS + 1);
        // What is below the least float is none of the sums: they have no lower exponent.
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
        // In two steps, since the power alone may be beyond the least float.
        let half = (exponent / 2).clamp(-600, 600);
        let value = mantissa * power_of_two(half) * power_of_two((exponent - half).clamp(-1022, 1023));
        if self.is_negative { -value } else { value }
    }

    /// Decimal digits of an integer; of what is none, those of its integer part.
    pub(crate) fn to_decimal(&self) -> String {
        let magnitude = if self.exponent >= 0 {
            self.magnitude.shifted_left(self.exponent.unsigned_abs())
        } else {
            self.magnitude.shifted_right(self.exponent.unsigned_abs())
        };
        let digits = magnitude.to_decimal();
        if self.is_negative { format!("-{digits}") } else { digits }
    }

    /// The bits below the leading one, the highest first, in groups of seven, the last one filled with zeros: at least one
    /// group, and none of zeros alone behind the last one that is not.
    pub(crate) fn groups(&self) -> (i32, impl Iterator<Item = u8> + '_) {
        let below = self.magnitude.bits().saturating_sub(1);
        (self.top(), (0..below.div_ceil(7).max(1)).map(move |group| self.magnitude.group_below(below, group)))
    }

    /// Appends the number so that [`decode`](Exact::decode) takes it: equal numbers, equal bytes.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let bytes = self.magnitude.to_bytes();
        crate::codec::put(out, bytes.len() as u64 * 2 + u64::from(self.is_negative));
        out.extend_from_slice(&bytes);
        if !bytes.is_empty() {
            crate::codec::put(out, zigzag(self.exponent));
        }
    }

    /// Takes a number from the start of `bytes`; `None` where there is none.
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

/// A JSON number: what it is worth, and whether it is a float, which CouchDB writes with a fraction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Number {
    pub(crate) value: Exact,
    pub(crate) is_float: bool,
}

impl Number {
    /// Of a number's text: an integer exactly, and the nearest float of what has a fraction or an exponent. A text that is
    /// none counts as 0.
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

    /// As JSON, in CouchDB's words; `None` for a float beyond the greatest.
    pub(crate) fn to_text(&self) -> Option<String> {
        if self.is_float { float_text(self.value.to_f64()) } else { Some(self.value.to_decimal()) }
    }

    pub(crate) fn plus(&self, other: &Number) -> Number {
        Number { value: self.value.add(&other.value), is_float: self.is_float || other.is_float }
    }

    /// Without one that was added before. `None` for a float: whether there is another one it does not say.
    pub(crate) fn minus(&self, other: &Number) -> Option<Number> {
        let Exact { is_negative, magnitude, exponent } = &other.value;
        let opposite = Exact::new(!is_negative, magnitude.clone(), *exponent);
        (!other.is_float).then(|| Number { value: self.value.add(&opposite), is_float: self.is_float })
    }

    /// Of a float the nearest one, as the processor squares it.
    pub(crate) fn squared(&self) -> Number {
        if self.is_float {
            let float = self.value.to_f64();
            // A square beyond the greatest float is computed exactly, and shows when it is written.
            let square = float * float;
            if square.is_finite() {
                return Number { value: Exact::of_f64(square), is_float: true };
            }
        }
        Number { value: self.value.square(), is_float: self.is_float }
    }

    /// How long its encoding is, at most a few bytes less.
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

/// Of an exponent that doubles have, -1022 to 1023.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << FRACTION_BITS)
}

fn zigzag(value: i32) -> u64 {
    u64::from((value << 1 ^ value >> 31) as u32)
}

fn unzigzag(value: u64) -> Option<i32> {
    let value = u32::try_from(value).ok()?;
    let decoded = (value >> 1) as i32 ^ -((value & 1) as i32);
    // A sum of squares of integers and floats reaches no further, and arithmetic on exponents does not overflow.
    (-4_000..=200_000).contains(&decoded).then_some(decoded)
}

#[cfg(test)]
pub(crate) mod tests;
