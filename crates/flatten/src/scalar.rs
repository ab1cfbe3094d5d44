//! The values of single rows: a tag byte and its data, which includes the length.

use crate::error::DecodeError;

/// First byte of a plain run.
pub(crate) const RUN_PLAIN: u8 = 0x00;
/// First byte of a run compressed with lz4.
pub(crate) const RUN_LZ4: u8 = 0x01;
/// The first tag of a scalar; lower bytes begin a run.
pub(crate) const FIRST_TAG: u8 = 0x10;

const NULL: u8 = 0x10;
const FALSE: u8 = 0x11;
const TRUE: u8 = 0x12;
const INT: u8 = 0x13;
const NUMBER: u8 = 0x14;
const STRING: u8 = 0x15;
const EMPTY_OBJECT: u8 = 0x16;
const EMPTY_ARRAY: u8 = 0x17;
const STRING_PART: u8 = 0x18;
const PACKED_PART: u8 = 0x19;
const ORDER_PART: u8 = 0x1a;
const FLOAT: u8 = 0x1b;

/// Integers 0 to 63 are encoded in their tag.
const SMALL_INT: u8 = 0x40;
/// Strings of 0 to 63 bytes have their length in the tag.
const SHORT_STRING: u8 = 0x80;
/// Number texts of 1 to 32 bytes have their length in the tag.
const SHORT_NUMBER: u8 = 0xc0;

const SMALL_INT_COUNT: u64 = 64;
const SHORT_STRING_COUNT: usize = 64;
const SHORT_NUMBER_MAX: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scalar<'a> {
    Null,
    Bool(bool),
    /// A number whose text is the canonical form of this integer.
    Int(i64),
    /// A number whose text is Rust's display of this float: shortest, without exponent.
    Float(f64),
    /// The text of any other number.
    Number(&'a [u8]),
    String(&'a [u8]),
    EmptyObject,
    EmptyArray,
    StringPart(&'a [u8]),
    PackedPart(&'a [u8]),
    OrderPart(&'a [u8]),
}

impl<'a> Scalar<'a> {
    /// Chooses the storage form of a number: binary if that is shorter and restores the same text.
    pub(crate) fn of_number(text: &'a str) -> Self {
        // The shortest text of a float whose binary form, 9 bytes, is smaller.
        const FLOAT_FROM_BYTES: usize = 10;
        let is_integer = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        if is_integer {
            // "-0" is not the canonical form of any integer.
            if let Ok(integer) = text.parse::<i64>()
                && text != "-0"
            {
                return Scalar::Int(integer);
            }
        } else if (FLOAT_FROM_BYTES..=SHORT_NUMBER_MAX).contains(&text.len())
            && let Ok(float) = text.parse::<f64>()
            && float.is_finite()
            && displays_as(float, text)
        {
            return Scalar::Float(float);
        }
        Scalar::Number(text.as_bytes())
    }

    pub(crate) fn put(self, out: &mut Vec<u8>) {
        match self {
            Scalar::Null => out.push(NULL),
            Scalar::Bool(false) => out.push(FALSE),
            Scalar::Bool(true) => out.push(TRUE),
            Scalar::Int(integer) => match u64::try_from(integer) {
                Ok(small) if small < SMALL_INT_COUNT => out.push(SMALL_INT + small as u8),
                _ => {
                    out.push(INT);
                    put_varint(out, zigzag(integer));
                }
            },
            Scalar::Float(float) => {
                out.push(FLOAT);
                out.extend_from_slice(&float.to_be_bytes());
            }
            Scalar::Number(text) if (1..=SHORT_NUMBER_MAX).contains(&text.len()) => {
                out.push(SHORT_NUMBER + (text.len() - 1) as u8);
                out.extend_from_slice(text);
            }
            Scalar::Number(text) => put_slice(out, NUMBER, text),
            Scalar::String(text) if text.len() < SHORT_STRING_COUNT => {
                out.push(SHORT_STRING + text.len() as u8);
                out.extend_from_slice(text);
            }
            Scalar::String(text) => put_slice(out, STRING, text),
            Scalar::EmptyObject => out.push(EMPTY_OBJECT),
            Scalar::EmptyArray => out.push(EMPTY_ARRAY),
            Scalar::StringPart(text) => put_slice(out, STRING_PART, text),
            Scalar::PackedPart(text) => put_slice(out, PACKED_PART, text),
            Scalar::OrderPart(bytes) => put_slice(out, ORDER_PART, bytes),
        }
    }
}

fn displays_as(float: f64, text: &str) -> bool {
    use std::fmt::Write;
    /// Compares written text with an expected one.
    struct Expect<'t>(&'t str);
    impl Write for Expect<'_> {
        fn write_str(&mut self, piece: &str) -> std::fmt::Result {
            self.0 = self.0.strip_prefix(piece).ok_or(std::fmt::Error)?;
            Ok(())
        }
    }
    let mut expect = Expect(text);
    write!(expect, "{float}").is_ok() && expect.0.is_empty()
}

fn put_slice(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads from the front of a byte string.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'a>(pub(crate) &'a [u8]);

impl<'a> Cursor<'a> {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(crate) fn byte(&mut self) -> Result<u8, DecodeError> {
        let (byte, rest) = self.0.split_first().ok_or(DecodeError::BadRun)?;
        self.0 = rest;
        Ok(*byte)
    }

    #[inline]
    pub(crate) fn slice(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (slice, rest) = self.0.split_at_checked(len).ok_or(DecodeError::BadRun)?;
        self.0 = rest;
        Ok(slice)
    }

    /// An unsigned LEB128 varint of at most 64 bits.
    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, DecodeError> {
        let first = self.byte()?;
        let mut value = u64::from(first & 0x7f);
        let mut more = first & 0x80 != 0;
        let mut shift = 7;
        while more {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift > 63 || (shift == 63 && part > 1) {
                return Err(DecodeError::BadRun);
            }
            value |= part << shift;
            shift += 7;
            more = byte & 0x80 != 0;
        }
        Ok(value)
    }

    #[inline]
    pub(crate) fn len(&mut self) -> Result<usize, DecodeError> {
        usize::try_from(self.varint()?).map_err(|_| DecodeError::BadRun)
    }

    #[inline]
    pub(crate) fn scalar(&mut self) -> Result<Scalar<'a>, DecodeError> {
        let tag = self.byte()?;
        Ok(match tag {
            SMALL_INT..SHORT_STRING => Scalar::Int(i64::from(tag - SMALL_INT)),
            SHORT_STRING..SHORT_NUMBER => Scalar::String(self.slice(usize::from(tag - SHORT_STRING))?),
            SHORT_NUMBER..0xe0 => Scalar::Number(self.slice(usize::from(tag - SHORT_NUMBER) + 1)?),
            NULL => Scalar::Null,
            FALSE => Scalar::Bool(false),
            TRUE => Scalar::Bool(true),
            INT => Scalar::Int(unzigzag(self.varint()?)),
            NUMBER => Scalar::Number(self.sized()?),
            STRING => Scalar::String(self.sized()?),
            EMPTY_OBJECT => Scalar::EmptyObject,
            EMPTY_ARRAY => Scalar::EmptyArray,
            STRING_PART => Scalar::StringPart(self.sized()?),
            PACKED_PART => Scalar::PackedPart(self.sized()?),
            ORDER_PART => Scalar::OrderPart(self.sized()?),
            FLOAT => {
                let bytes = self.slice(8)?.first_chunk().ok_or(DecodeError::BadRun)?;
                let float = f64::from_be_bytes(*bytes);
                if !float.is_finite() {
                    return Err(DecodeError::BadScalar);
                }
                Scalar::Float(float)
            }
            _ => return Err(DecodeError::BadScalar),
        })
    }

    #[inline]
    fn sized(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.len()?;
        self.slice(len)
    }
}

/// Appends an unsigned LEB128 varint.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn comes_back(scalar: Scalar<'_>) -> usize {
        let mut out = Vec::new();
        scalar.put(&mut out);
        let mut cursor = Cursor(&out);
        assert_eq!(cursor.scalar(), Ok(scalar));
        assert!(cursor.is_empty() && out[0] >= FIRST_TAG);
        for cut in 0..out.len() {
            assert!(Cursor(&out[..cut]).scalar().is_err());
        }
        out.len()
    }

    #[test]
    fn numbers_take_their_shortest_form() {
        let check = |text: &str, expected: Scalar<'_>, len: usize| {
            assert_eq!(Scalar::of_number(text), expected, "{text}");
            assert_eq!(comes_back(expected), len, "{text}");
        };
        let text = |text: &'static str| Scalar::Number(text.as_bytes());
        check("0", Scalar::Int(0), 1);
        check("63", Scalar::Int(63), 1);
        check("64", Scalar::Int(64), 3);
        check("-1", Scalar::Int(-1), 2);
        check("9223372036854775807", Scalar::Int(i64::MAX), 11);
        check("-9223372036854775808", Scalar::Int(i64::MIN), 11);
        check("9223372036854775808", text("9223372036854775808"), 20);
        check("-0", text("-0"), 3);
        check("-0.0", text("-0.0"), 5);
        check("1.10", text("1.10"), 5);
        check("12.345678", text("12.345678"), 10);
        check("12.3456789", Scalar::Float(12.3456789), 9);
        check("-0.00000012", Scalar::Float(-1.2e-7), 9);
        check("12.34567890", text("12.34567890"), 12);
        check("1.0000000000000000001", text("1.0000000000000000001"), 22);
        check("1.23456789e3", text("1.23456789e3"), 13);
        check("1000000000.0", text("1000000000.0"), 13);
    }

    proptest! {
        #[test]
        fn scalars_come_back(integer: i64, bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            comes_back(Scalar::Int(integer));
            for scalar in [Scalar::String, Scalar::Number, Scalar::StringPart, Scalar::PackedPart, Scalar::OrderPart] {
                comes_back(scalar(&bytes));
            }
        }

        #[test]
        fn varints_come_back(value: u64) {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            prop_assert_eq!(Cursor(&out).varint(), Ok(value));
        }

        #[test]
        fn foreign_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..30)) {
            let _ = Cursor(&bytes).scalar();
            let _ = Cursor(&bytes).varint();
        }
    }
}
