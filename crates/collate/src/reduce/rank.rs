//! The greatest or the least values of some rows.

use std::cmp::Ordering;

use flatbed_flatten::json::{self, Value};

use super::name::Reducer;
use super::state::{ReduceError, STATE_BYTES_MAX, put_value, take_value};
use crate::collation::Collation;

/// Distinct values, the best one first; of equal ones (`1` and `1.0`) the first in row order.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Ranks {
    values: Vec<Value<'static>>,
    /// True if the values exceed the limit; then none are kept.
    is_too_large: bool,
}

impl Ranks {
    pub(super) fn add(&mut self, reducer: Reducer, collation: &Collation, value: &Value<'_>) {
        let Some(at) = self.place(reducer, collation, value) else { return };
        // A value that exceeds the limit by itself is not copied.
        let fits = json::text_len(value) <= STATE_BYTES_MAX;
        self.put(reducer, at, if fits { value.clone().into_owned() } else { Value::Null });
        if !fits || self.bytes() > STATE_BYTES_MAX {
            *self = Ranks { values: Vec::new(), is_too_large: true };
        }
    }

    pub(super) fn merge(&mut self, reducer: Reducer, collation: &Collation, other: &Ranks) {
        if other.is_too_large {
            *self = other.clone();
        }
        for value in &other.values {
            self.add(reducer, collation, value);
        }
    }

    /// Returns the position of a value; `None` if it is not among the best, or is present.
    fn place(&self, reducer: Reducer, collation: &Collation, value: &Value<'_>) -> Option<usize> {
        if self.is_too_large {
            return None;
        }
        let (limit, is_top) = match reducer {
            Reducer::Top(limit) => (limit, true),
            Reducer::Bottom(limit) => (limit, false),
            _ => return None,
        };
        let order = |ranked: &Value<'_>| {
            let order = collation.compare(ranked, value);
            if is_top { order.reverse() } else { order }
        };
        let at = self.values.partition_point(|ranked| order(ranked) == Ordering::Less);
        let is_there = self.values.get(at).is_some_and(|ranked| order(ranked) == Ordering::Equal);
        (at < usize::from(limit) && !is_there).then_some(at)
    }

    fn put(&mut self, reducer: Reducer, at: usize, value: Value<'static>) {
        self.values.insert(at.min(self.values.len()), value);
        if let Reducer::Top(limit) | Reducer::Bottom(limit) = reducer {
            self.values.truncate(usize::from(limit));
        }
    }

    fn bytes(&self) -> usize {
        self.values.iter().map(|value| json::text_len(value) + 3).sum()
    }

    pub(super) fn finish(&self) -> Result<Value<'static>, ReduceError> {
        if self.is_too_large {
            let reason = format!("Reduce output must shrink more rapidly: it is larger than {STATE_BYTES_MAX} bytes");
            return Err(ReduceError { error: "reduce_overflow_error", reason });
        }
        Ok(Value::Array(self.values.clone()))
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.is_too_large));
        crate::codec::put(out, self.values.len() as u64);
        self.values.iter().for_each(|value| put_value(out, value));
    }

    pub(super) fn decode(bytes: &mut &[u8]) -> Option<Ranks> {
        let (is_too_large, rest) = bytes.split_first()?;
        *bytes = rest;
        let count = crate::codec::take(bytes)?;
        let values = (0..count).map(|_| take_value(bytes)).collect::<Option<_>>()?;
        Some(Ranks { values, is_too_large: *is_too_large != 0 })
    }
}
