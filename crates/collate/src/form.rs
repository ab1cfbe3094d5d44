//! Sort forms: bytes that compare as values do, and of which none is a prefix of another.
//!
//! | type | bytes |
//! |---|---|
//! | null, false, true | a tag |
//! | number | the tag of its sign. Unless it is 0, the position of its leading one bit in 2 bytes, then the lower bits in groups of seven, each followed by a bit that says whether more follow. All bytes but the tag are inverted for a negative number |
//! | string | a tag, its weights (by ICU's rules, or its bytes with 0 and 1 written as 1 1 and 1 2), a zero |
//! | array | a tag, the items, a zero |
//! | object | a tag, for each member its name as a string and its value, a zero |
//!
//! Tags sort as the types do, above zero and below 255. Weights have no zeros, so a shorter value sorts before its
//! extensions.

use flatbed_flatten::json::Value;
use icu_collator::CollationKeySink;

use crate::collation::Collation;
use crate::key::{CUT_BYTES, HIGHEST};
use crate::number::Number;

/// The terminator of a string, an array or an object.
pub(crate) const END: u8 = 0;

struct Tags {
    null: u8,
    no: u8,
    yes: u8,
    negative: u8,
    zero: u8,
    positive: u8,
    string: u8,
    array: u8,
    object: u8,
}

const UNICODE: Tags = Tags {
    null: 0x10,
    no: 0x11,
    yes: 0x12,
    negative: 0x20,
    zero: 0x21,
    positive: 0x22,
    string: 0x30,
    array: 0x40,
    object: 0x50,
};

const RAW: Tags = Tags {
    negative: 0x20,
    zero: 0x21,
    positive: 0x22,
    no: 0x30,
    null: 0x31,
    yes: 0x32,
    object: 0x40,
    array: 0x50,
    string: 0x60,
};

fn tags(collation: &Collation) -> &'static Tags {
    if collation.is_raw() { &RAW } else { &UNICODE }
}

pub(crate) fn array_tag(collation: &Collation) -> u8 {
    tags(collation).array
}

/// Added to the position of a number's leading one, which is -1074 to about 13,600.
const PLACE_BIAS: i32 = 0x4000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

/// The output of a form.
#[derive(Debug)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
    /// Their length in a tuple, where a zero takes two bytes.
    stored: usize,
    /// The limit of `stored`; the writer is full when it is reached.
    stored_max: usize,
}

impl Writer {
    /// Creates a writer with a key's limit: see [`CUT_BYTES`].
    pub(crate) fn for_keys() -> Writer {
        Writer::within(CUT_BYTES)
    }

    pub(crate) fn within(bytes_max: usize) -> Writer {
        Writer { bytes: Vec::with_capacity(64), stored: 0, stored_max: bytes_max.saturating_sub(1) }
    }

    pub(crate) fn unbounded() -> Writer {
        Writer::within(usize::MAX)
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Appends bytes one by one until the writer is full, so the cut of a form depends on its prefix alone.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<(), Full> {
        bytes.iter().try_for_each(|byte| self.put_byte(*byte))
    }

    fn put_byte(&mut self, byte: u8) -> Result<(), Full> {
        if self.stored >= self.stored_max {
            return Err(Full);
        }
        self.stored += 1 + usize::from(byte == 0);
        self.bytes.push(byte);
        Ok(())
    }
}

impl CollationKeySink for Writer {
    type Error = Full;
    type State = ();
    type Output = ();

    fn write(&mut self, (): &mut (), bytes: &[u8]) -> Result<(), Full> {
        self.put(bytes)
    }

    fn write_byte(&mut self, (): &mut (), byte: u8) -> Result<(), Full> {
        self.put_byte(byte)
    }

    fn finish(&mut self, (): ()) -> Result<(), Full> {
        Ok(())
    }
}

pub(crate) fn write(collation: &Collation, value: &Value<'_>, out: &mut Writer) -> Result<(), Full> {
    let tags = tags(collation);
    match value {
        Value::Null => out.put(&[tags.null]),
        Value::Bool(false) => out.put(&[tags.no]),
        Value::Bool(true) => out.put(&[tags.yes]),
        Value::Number(text) => write_number(tags, text, out),
        Value::String(text) => write_string(collation, tags, text, out),
        Value::Array(items) => {
            write_items(collation, items, out)?;
            out.put(&[END])
        }
        Value::Object(members) => {
            out.put(&[tags.object])?;
            for (name, value) in members {
                write_string(collation, tags, name, out)?;
                write(collation, value, out)?;
            }
            out.put(&[END])
        }
    }
}

/// Appends an array's form without its terminator.
pub(crate) fn write_items(collation: &Collation, items: &[Value<'_>], out: &mut Writer) -> Result<(), Full> {
    out.put(&[tags(collation).array])?;
    for item in items {
        write(collation, item, out)?;
    }
    Ok(())
}

fn write_string(collation: &Collation, tags: &Tags, text: &str, out: &mut Writer) -> Result<(), Full> {
    out.put(&[tags.string])?;
    collation.write_weights(text, out)?;
    out.put(&[END])
}

fn write_number(tags: &Tags, text: &str, out: &mut Writer) -> Result<(), Full> {
    // The fast path of nearly all numbers; it gives the same bytes as the general path.
    if let Ok(integer) = text.parse::<i64>() {
        let mantissa = integer.unsigned_abs();
        if mantissa == 0 {
            return out.put(&[tags.zero]);
        }
        let place = 63 - mantissa.leading_zeros();
        // Shifts the leading one out.
        let below = mantissa.checked_shl(u64::BITS - place).unwrap_or(0);
        let groups = (0..10).map(|group| (below << (7 * group).min(63) >> 57) as u8);
        // 64 bits are nine groups and one bit of the tenth. That bit is never used, because the leading one is in no
        // group.
        let groups = groups.take((63 - below.trailing_zeros().min(63)) as usize / 7 + 1);
        return write_parts(tags, integer < 0, place as i32, groups, out);
    }
    let number = Number::of_text(text).value;
    if number.is_zero() {
        return out.put(&[tags.zero]);
    }
    let (place, groups) = number.groups();
    write_parts(tags, number.is_negative(), place, groups, out)
}

fn write_parts(
    tags: &Tags,
    is_negative: bool,
    place: i32,
    groups: impl Iterator<Item = u8>,
    out: &mut Writer,
) -> Result<(), Full> {
    let inverted = if is_negative { 0xff } else { 0 };
    out.put(&[if is_negative { tags.negative } else { tags.positive }])?;
    let place = u16::try_from(place + PLACE_BIAS).unwrap_or(u16::MAX).to_be_bytes();
    out.put(&place.map(|byte| byte ^ inverted))?;
    let mut groups = groups.peekable();
    while let Some(group) = groups.next() {
        let has_more = u8::from(groups.peek().is_some());
        out.put(&[(group << 1 | has_more) ^ inverted])?;
    }
    Ok(())
}

/// Returns the length of the value's form at the start of `bytes`; `None` if they do not contain all of it. Scans each
/// nested form once, without recursion.
pub(crate) fn len(collation: &Collation, bytes: &[u8]) -> Option<usize> {
    let tags = tags(collation);
    let mut at = 0;
    let mut depth = 0_usize;
    loop {
        let tag = *bytes.get(at)?;
        at += 1;
        if tag == END {
            depth = depth.checked_sub(1)?;
        } else if tag == tags.array || tag == tags.object {
            depth += 1;
        } else if tag == tags.string {
            at += bytes.get(at..)?.iter().position(|byte| *byte == END)? + 1;
        } else if tag == tags.negative || tag == tags.positive {
            let last = u8::from(tag == tags.negative);
            at += 2;
            at += bytes.get(at..)?.iter().position(|byte| byte & 1 == last)? + 1;
        } else if [tags.null, tags.no, tags.yes, tags.zero].contains(&tag) {
            // The form is the tag alone.
        } else {
            return None;
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

const _: () = assert!(UNICODE.object < HIGHEST && RAW.string < HIGHEST);
