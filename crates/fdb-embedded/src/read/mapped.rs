//! `get_mapped_range`: a range of an index, and for each of its pairs the record that it points to.
//!
//! A mapper is a tuple that says how a pair becomes the key of its record. An element `{K[i]}` stands for the i-th
//! element of the pair's key, `{V[i]}` for an element of its value. A last `{...}` makes the key a prefix of all
//! records to return. `{{` and `}}` stand for braces, and everything else for itself. The limits are the defaults of
//! FoundationDB's storage server.

use crate::base::error::{Error, Result};
use crate::base::key_space::{SYSTEM_END, key_after};
use crate::base::tuple;
use crate::read::limits::{Limits, REPLY_BYTES_MAX, SERVER_PAIR_OVERHEAD};
use crate::read::range::{RangeRead, Rules};
use crate::read::result::RangeResult;
use crate::read::selector::KeySelector;
use crate::read::view::View;

/// The divisor of an answer's bytes that gives the index's share.
const INDEX_SHARE: usize = 5;
/// Records are looked up in groups of this many, and the bytes are checked after each group.
const LOOKUPS: usize = 10;
/// The limits on the records of one index pair.
const RECORD_LIMITS: Limits =
    Limits { rows: Some(2_000), bytes: Some(10_000_000), pair_overhead: SERVER_PAIR_OVERHEAD, is_invalid: false };
/// The size at which an answer ends without a byte target, so that memory is bounded.
const ANSWER_BYTES_MAX: usize = 1 << 28;

/// Index pairs, and the records that each points to.
#[derive(Clone, Debug, Default)]
pub struct MappedRange {
    /// The index pairs. Without `{...}` in the mapper only the first and the last are filled, and those between are
    /// empty, as on a cluster.
    pub index: RangeResult,
    /// The records of each index pair, in the same order.
    pub records: Vec<Records>,
}

/// The records that an index pair points to.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// The first key of the lookup.
    pub begin: Vec<u8>,
    /// The end of the lookup, exclusive.
    pub end: Vec<u8>,
    /// The records found, ascending by key.
    pub pairs: RangeResult,
}

impl Records {
    /// The bytes that a storage server counts towards an answer.
    fn counted_bytes(&self, is_prefix: bool) -> usize {
        if is_prefix {
            self.pairs.arena.len() + self.pairs.pairs.len() * SERVER_PAIR_OVERHEAD
        } else {
            let value = self.pairs.get(0).map_or(0, |(_, value)| value.len());
            self.end.len().saturating_sub(1) + value
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum MapperElement {
    /// An encoded element that stands for itself.
    Literal(Vec<u8>),
    /// An element of the pair's key; `None` if the index is not a number.
    OfKey(Option<usize>),
    /// An element of the pair's value, likewise.
    OfValue(Option<usize>),
}

/// The rule that turns an index pair into the key of its record.
#[derive(Debug, PartialEq, Eq)]
struct Mapper {
    parts: Vec<MapperElement>,
    is_prefix: bool,
}

impl Mapper {
    /// Parses a mapper: 2043 if the bytes are no tuple, 2032 if `{...}` is not the last element.
    fn parse(bytes: &[u8]) -> Result<Mapper> {
        let elements = tuple::elements(bytes).map_err(|_| Error::MAPPER_NOT_TUPLE)?;
        let mut mapper = Mapper { parts: Vec::with_capacity(elements.len()), is_prefix: false };
        for element in elements {
            if mapper.is_prefix {
                return Err(Error::MAPPER_BAD_RANGE_DESCRIPTOR);
            }
            let Some(text) = tuple::string(element) else {
                mapper.parts.push(MapperElement::Literal(element.to_vec()));
                continue;
            };
            let unescaped = replace_pairs(&replace_pairs(&text, b'{'), b'}');
            if unescaped.len() != text.len() {
                let mut literal = Vec::new();
                tuple::push_bytes(&mut literal, &unescaped);
                mapper.parts.push(MapperElement::Literal(literal));
            } else if text == b"{...}" {
                mapper.is_prefix = true;
            } else {
                let part = placeholder(&text).unwrap_or_else(|| MapperElement::Literal(element.to_vec()));
                mapper.parts.push(part);
            }
        }
        Ok(mapper)
    }

    /// Returns the key, or the prefix, for an index pair: 2041 and 2042 if its key or value is no tuple, 2030 for an
    /// element that it does not have.
    fn map(&self, key: &[u8], value: &[u8]) -> Result<Vec<u8>> {
        // The key or the value must be a tuple only if the mapper names one of its elements.
        let (mut key_elements, mut value_elements) = (None, None);
        let mut mapped = Vec::new();
        for part in &self.parts {
            let (index, elements) = match part {
                MapperElement::Literal(element) => {
                    mapped.extend_from_slice(element);
                    continue;
                }
                MapperElement::OfKey(None) | MapperElement::OfValue(None) => return Err(Error::MAPPER_BAD_INDEX),
                MapperElement::OfKey(Some(index)) => (index, unpack(&mut key_elements, key, Error::KEY_NOT_TUPLE)?),
                MapperElement::OfValue(Some(index)) => {
                    (index, unpack(&mut value_elements, value, Error::VALUE_NOT_TUPLE)?)
                }
            };
            mapped.extend_from_slice(elements.get(*index).ok_or(Error::MAPPER_BAD_INDEX)?);
        }
        Ok(mapped)
    }
}

fn unpack<'t, 'u>(known: &'u mut Option<Vec<&'t [u8]>>, bytes: &'t [u8], error: Error) -> Result<&'u Vec<&'t [u8]>> {
    Ok(match known {
        Some(elements) => elements,
        None => known.insert(tuple::elements(bytes).map_err(|_| error)?),
    })
}

/// Replaces each two adjacent `byte` by one.
fn replace_pairs(text: &[u8], byte: u8) -> Vec<u8> {
    let mut replaced = Vec::with_capacity(text.len());
    let mut bytes = text.iter().peekable();
    while let Some(&next) = bytes.next() {
        if next == byte {
            bytes.next_if(|&&after| after == byte);
        }
        replaced.push(next);
    }
    replaced
}

/// Parses `{K[1]}` and `{V[1]}`. The number is read as C's `strtol` does: leading white space and a sign, trailing
/// text ignored.
fn placeholder(text: &[u8]) -> Option<MapperElement> {
    let inner = text.strip_prefix(b"{")?.strip_suffix(b"]}")?;
    let (of, number) = (inner.strip_prefix(b"K["), inner.strip_prefix(b"V["));
    let number_text = of.or(number).filter(|text| !text.is_empty())?.trim_ascii_start();
    let (is_negative, digits) = match number_text.split_first() {
        Some((b'-', digits)) => (true, digits),
        Some((b'+', digits)) => (false, digits),
        _ => (false, number_text),
    };
    let len = digits.iter().take_while(|digit| digit.is_ascii_digit()).count();
    let parsed = digits.get(..len).and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<i32>().ok());
    let index = parsed.filter(|&index| !is_negative || index == 0).and_then(|index| usize::try_from(index).ok());
    Some(if of.is_some() { MapperElement::OfKey(index) } else { MapperElement::OfValue(index) })
}

/// Returns the first key after all keys with the prefix; `None` if there is none.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let len = prefix.iter().rposition(|&byte| byte != 0xff)? + 1;
    let mut after = prefix.get(..len)?.to_vec();
    *after.last_mut()? += 1;
    Some(after)
}

/// A mapped range read from a view without the transaction's own writes.
pub(crate) struct MappedRead {
    pub(crate) answer: MappedRange,
    /// The ranges read, in order: the index, then the records. An inverted or empty range is none.
    pub(crate) conflicts: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Reads a mapped range. `index` is the range of the index; its limits are the caller's.
///
/// Errors: 2043 and 2032 for the mapper, 2041, 2042 and 2030 for a pair that does not fit it.
pub(crate) fn read(view: &View<'_>, mut index: RangeRead<'_>, mapper: &[u8]) -> Result<MappedRead> {
    let reply_bytes = index.limits.bytes.map(|bytes| bytes.min(REPLY_BYTES_MAX));
    index.limits.bytes = reply_bytes.map(|bytes| bytes / INDEX_SHARE);
    if reply_bytes.is_some() {
        let rows_max = REPLY_BYTES_MAX as u32;
        index.limits.rows = Some(index.limits.rows.map_or(rows_max, |rows| rows.min(rows_max)));
    }
    let (mut records, mut conflicts) = (Vec::new(), Vec::new());
    let outcome = index.run_cut(view, |pairs| {
        let mapper = Mapper::parse(mapper)?;
        let mut left = reply_bytes.unwrap_or(ANSWER_BYTES_MAX);
        for (at, (key, value)) in pairs.iter().enumerate() {
            if at % LOOKUPS == 0 && left == 0 {
                break;
            }
            let (found, conflict) = look_up(view, &mapper, key, value)?;
            left = left
                .saturating_sub(SERVER_PAIR_OVERHEAD + key.len() + value.len() + found.counted_bytes(mapper.is_prefix));
            records.push(found);
            conflicts.extend(conflict);
        }
        if records.len() < pairs.pairs.len() {
            pairs.cut(records.len());
        }
        Ok::<_, Error>(())
    })?;
    let mut answer = MappedRange { index: outcome.answer, records };
    conflicts.splice(0..0, outcome.conflict);
    if !Mapper::parse(mapper).is_ok_and(|mapper| mapper.is_prefix) {
        answer.index.blank_inner();
    }
    Ok(MappedRead { answer, conflicts })
}

type Conflict = Option<(Vec<u8>, Vec<u8>)>;

fn look_up(view: &View<'_>, mapper: &Mapper, key: &[u8], value: &[u8]) -> Result<(Records, Conflict)> {
    let begin = mapper.map(key, value)?;
    if !mapper.is_prefix {
        let mut pairs = RangeResult::default();
        if let Some(value) = view.get(&begin)? {
            pairs.push(&begin, &value);
        }
        let end = key_after(&begin);
        return Ok((Records { begin: begin.clone(), end: end.clone(), pairs }, Some((begin, end))));
    }
    let end = after_prefix(&begin).ok_or(Error::KEY_OUTSIDE_LEGAL_RANGE)?;
    let range = RangeRead {
        begin: KeySelector::first_greater_or_equal(&begin),
        end: KeySelector::first_greater_or_equal(&end),
        limits: RECORD_LIMITS,
        reverse: false,
        rules: Rules::ReadYourWrites,
        max_key: SYSTEM_END,
    };
    let outcome = range.run(view)?;
    Ok((Records { pairs: outcome.answer, begin, end }, outcome.conflict))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pack(parts: &[&[u8]]) -> Vec<u8> {
        parts.iter().fold(Vec::new(), |mut packed, part| {
            tuple::push_bytes(&mut packed, part);
            packed
        })
    }

    fn mapped(mapper: &[&[u8]], key: &[&[u8]], value: &[&[u8]]) -> Result<Vec<u8>> {
        Mapper::parse(&pack(mapper))?.map(&pack(key), &pack(value))
    }

    #[test]
    fn a_mapper_puts_a_key_together() {
        let (key, value): (&[&[u8]], &[&[u8]]) = (&[b"k0", b"k1"], &[b"v0", b"v1\0"]);
        let check = |mapper: &[&[u8]], expected: &[&[u8]]| {
            assert_eq!(mapped(mapper, key, value), Ok(pack(expected)), "{mapper:?}");
        };
        check(&[b"data", b"{K[1]}", b"{V[1]}"], &[b"data", b"k1", b"v1\0"]);
        check(&[b"data", b"{...}"], &[b"data"]);
        check(&[b"{{K[0]}}", b"{{{{}}", b"}}"], &[b"{K[0]}", b"{{}", b"}"]);
        check(&[b"{K[]}", b"{X[0]}", b"{K[0]", b"K[0]}", b""], &[b"{K[]}", b"{X[0]}", b"{K[0]", b"K[0]}", b""]);
        check(&[b"{K[ +1x]}"], &[b"k1"]);
        check(&[], &[]);
    }

    #[test]
    fn what_does_not_fit_has_its_code() {
        let (key, value): (&[&[u8]], &[&[u8]]) = (&[b"k0"], &[b"v0"]);
        for bad in [&b"{K[1]}"[..], b"{V[1]}", b"{K[-1]}", b"{K[x]}", b"{K[99999999999]}"] {
            assert_eq!(mapped(&[bad], key, value), Err(Error::MAPPER_BAD_INDEX), "{bad:?}");
        }
        assert_eq!(mapped(&[b"{...}", b"x"], key, value), Err(Error::MAPPER_BAD_RANGE_DESCRIPTOR));
        assert_eq!(Mapper::parse(b"\xff"), Err(Error::MAPPER_NOT_TUPLE));
        let map = |mapper: &[u8]| Mapper::parse(&pack(&[mapper])).and_then(|mapper| mapper.map(b"\xff", b"\xfe"));
        assert_eq!(map(b"{K[0]}"), Err(Error::KEY_NOT_TUPLE));
        assert_eq!(map(b"{V[0]}"), Err(Error::VALUE_NOT_TUPLE));
        assert_eq!(map(b"neither is looked at"), Ok(pack(&[b"neither is looked at"])));
    }

    #[test]
    fn a_prefix_has_an_end() {
        assert_eq!(after_prefix(b"a\xff\xff").as_deref(), Some(&b"b"[..]));
        assert_eq!(after_prefix(b"\xff"), None);
        assert_eq!(after_prefix(b""), None);
    }

    proptest! {
        #[test]
        fn any_text_is_taken_for_itself_once_escaped(text in "[{}KV\\[\\]01.]{0,9}") {
            let escaped = text.replace('{', "{{").replace('}', "}}");
            prop_assert_eq!(mapped(&[escaped.as_bytes()], &[b"k"], &[b"v"]), Ok(pack(&[text.as_bytes()])));
        }

        #[test]
        fn any_bytes_are_taken_or_refused(mapper: Vec<u8>, key: Vec<u8>, value: Vec<u8>) {
            let _ = Mapper::parse(&mapper).and_then(|mapper| mapper.map(&key, &value));
        }
    }
}
