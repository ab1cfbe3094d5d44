//! CouchDB's orders of JSON values: that of views and the raw one.

use std::borrow::Cow;
use std::cmp::Ordering;

use flatbed_flatten::json::Value;
use icu_collator::options::{CollatorOptions, Strength};
use icu_collator::{CollatorBorrowed, CollatorPreferences};

use crate::form::{self, Full, Writer};
use crate::han::by_radicals;
use crate::key::SortKey;
use crate::marks::in_order_written;
use crate::number::Number;
use crate::weights::{self, LONG_BYTES};

/// The collator's data differs from the one that this program was built with.
#[derive(Debug, thiserror::Error)]
#[error("no collation data: {0}")]
pub struct NoData(String);

/// An order of JSON values.
///
/// | | order of types | strings | equal |
/// |---|---|---|---|
/// | [`unicode`](Collation::unicode) | null, false, true, numbers, strings, arrays, objects | ICU's root collation, tertiary strength | strings that differ in ignorable characters, or in the spelling of a letter with marks in their canonical order |
/// | [`raw`](Collation::raw) | numbers, false, null, true, objects, arrays, strings: Erlang's order of terms | bytes | equal strings |
///
/// In both, numbers compare by value, integers of any size exactly and `1` as `1.0`; arrays item by item, a prefix
/// first; objects member by member in the order written, name before value.
#[derive(Debug)]
pub struct Collation {
    strings: Option<CollatorBorrowed<'static>>,
}

impl Collation {
    /// The order of views, of json indexes, and of `_top_N` and similar reductions.
    ///
    /// # Errors
    /// [`NoData`]: never with data that is compiled in.
    pub fn unicode() -> Result<Collation, NoData> {
        let mut options = CollatorOptions::default();
        options.strength = Some(Strength::Tertiary);
        let collator = CollatorBorrowed::try_new(CollatorPreferences::default(), options);
        Ok(Collation { strings: Some(collator.map_err(|error| NoData(error.to_string()))?) })
    }

    /// The order of a view with the option `collation: "raw"`, and of the values of a document's rows with one key.
    pub const fn raw() -> Collation {
        Collation { strings: None }
    }

    /// Returns whether this is the raw order.
    pub fn is_raw(&self) -> bool {
        self.strings.is_none()
    }

    /// Compares two values. It recurses to their depth.
    pub fn compare(&self, a: &Value<'_>, b: &Value<'_>) -> Ordering {
        match (a, b) {
            (Value::Number(a), Value::Number(b)) => numbers(a, b),
            (Value::String(a), Value::String(b)) => self.compare_strings(a, b),
            (Value::Array(a), Value::Array(b)) => {
                // A loop, because each level of nesting takes a stack frame.
                for (a, b) in a.iter().zip(b) {
                    let order = self.compare(a, b);
                    if order.is_ne() {
                        return order;
                    }
                }
                a.len().cmp(&b.len())
            }
            (Value::Object(a), Value::Object(b)) => {
                for ((a_name, a), (b_name, b)) in a.iter().zip(b) {
                    let by_name = self.compare_strings(a_name, b_name);
                    let order = if by_name.is_eq() { self.compare(a, b) } else { by_name };
                    if order.is_ne() {
                        return order;
                    }
                }
                a.len().cmp(&b.len())
            }
            (a, b) => self.rank(a).cmp(&self.rank(b)),
        }
    }

    fn compare_strings(&self, a: &str, b: &str) -> Ordering {
        match &self.strings {
            Some(collator) if a.len() < LONG_BYTES && b.len() < LONG_BYTES => {
                collator.compare(&respell(a), &respell(b))
            }
            Some(collator) => weights::compare(collator, &respell(a), &respell(b)),
            None => a.cmp(b),
        }
    }

    fn rank(&self, value: &Value<'_>) -> u8 {
        match (value, self.is_raw()) {
            (Value::Null, false) => 0,
            (Value::Bool(false), false) => 1,
            (Value::Bool(true), false) => 2,
            (Value::Number(_), false) => 3,
            (Value::String(_), false) => 4,
            (Value::Array(_), false) => 5,
            (Value::Object(_), false) => 6,
            (Value::Number(_), true) => 0,
            (Value::Bool(false), true) => 1,
            (Value::Null, true) => 2,
            (Value::Bool(true), true) => 3,
            (Value::Object(_), true) => 4,
            (Value::Array(_), true) => 5,
            (Value::String(_), true) => 6,
        }
    }

    /// Returns the value's sort form, cut if it does not fit into a key. Two forms compare as the values do, unless
    /// both are cut at the same bytes. The time is linear in the value's size (except for numbers of hundreds of
    /// digits).
    pub fn sort_key(&self, value: &Value<'_>) -> SortKey {
        let mut writer = Writer::for_keys();
        let is_cut = form::write(self, value, &mut writer).is_err();
        SortKey::new(writer.into_bytes(), is_cut)
    }

    /// Returns the common prefix of the forms of all arrays that begin with these items, cut as any form:
    /// [`Boundary::of_items`](crate::Boundary::of_items) is the place before or after them. Without items it is the
    /// prefix of all arrays.
    pub fn items_key(&self, items: &[Value<'_>]) -> SortKey {
        self.items_key_in(items, Writer::for_keys())
    }

    fn items_key_in(&self, items: &[Value<'_>], mut writer: Writer) -> SortKey {
        let is_cut = form::write_items(self, items, &mut writer).is_err();
        SortKey::new(writer.into_bytes(), is_cut)
    }

    /// The sort form without a limit on its length, for checks and tests.
    pub fn whole_form(&self, value: &Value<'_>) -> Vec<u8> {
        let mut writer = Writer::unbounded();
        // A writer without limit is never full.
        let _: Result<(), Full> = form::write(self, value, &mut writer);
        writer.into_bytes()
    }

    /// As [`sort_key`](Collation::sort_key) with another limit, for tests.
    #[cfg(test)]
    pub(crate) fn sort_key_within(&self, value: &Value<'_>, bytes_max: usize) -> SortKey {
        let mut writer = Writer::within(bytes_max);
        let is_cut = form::write(self, value, &mut writer).is_err();
        SortKey::new(writer.into_bytes(), is_cut)
    }

    #[cfg(test)]
    pub(crate) fn items_key_within(&self, items: &[Value<'_>], bytes_max: usize) -> SortKey {
        self.items_key_in(items, Writer::within(bytes_max))
    }

    /// Appends a string's weights, none of which is a zero byte.
    pub(crate) fn write_weights(&self, text: &str, writer: &mut Writer) -> Result<(), Full> {
        match &self.strings {
            Some(collator) => collator.write_sort_key_to(&respell(text), writer),
            None => text.bytes().try_for_each(|byte| match byte {
                // The terminator is zero.
                0 | 1 => writer.put(&[1, byte + 1]),
                other => writer.put(&[other]),
            }),
        }
    }
}

/// Rewrites a text so that the library sorts it as CouchDB does.
fn respell(text: &str) -> Cow<'_, str> {
    match in_order_written(text) {
        Cow::Borrowed(text) => by_radicals(text),
        Cow::Owned(text) => Cow::Owned(by_radicals(&text).into_owned()),
    }
}

fn numbers(a: &str, b: &str) -> Ordering {
    if let (Ok(a), Ok(b)) = (a.parse::<i64>(), b.parse::<i64>()) {
        return a.cmp(&b);
    }
    Number::of_text(a).value.cmp(&Number::of_text(b).value)
}

#[cfg(test)]
pub(crate) mod tests;
