//! The state of a reduction: rows and other states are appended to it, and it gives the result.

use flatbed_flatten::json::{self, Limits, Value};

use super::distinct::Distinct;
use super::name::Reducer;
use super::rank::Ranks;
use super::stats::Stats;
use super::sum::Sum;
use crate::codec;
use crate::collation::Collation;

/// The most bytes of a state's parts in storage; the state itself takes a few more.
pub const STATE_BYTES_MAX: usize = 16_384;

/// The deepest nesting of summands, a number alone being 1. It limits the recursion over states.
pub(super) const LEVELS_MAX: usize = 64;

/// A failed reduction: 500. In CouchDB every query of the group fails, because the index is not built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ReduceError {
    /// CouchDB's error name.
    pub error: &'static str,
    /// The reason in CouchDB's words.
    pub reason: String,
}

/// The reduction of adjacent rows by one [`Reducer`]. The default is that of no rows.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReduceState(StateKind);

#[derive(Debug, Clone, PartialEq, Default)]
enum StateKind {
    #[default]
    Empty,
    Sum(Sum),
    Count(u64),
    Stats(Stats),
    Distinct(Distinct),
    /// The value of `_first` and `_last`; `None` if it is too large.
    Value(Option<Value<'static>>),
    Ranks(Ranks),
}

impl ReduceState {
    /// Appends a row. `collation` is that of `_top_N` and `_bottom_N`: [`Collation::unicode`], whatever the view's is.
    pub fn add(&mut self, reducer: Reducer, collation: &Collation, key: &Value<'_>, value: &Value<'_>) {
        match (reducer, &mut self.0) {
            (Reducer::Sum, StateKind::Sum(sum)) => sum.add(value),
            (Reducer::Sum, kind) => *kind = StateKind::Sum(Sum::of(value)),
            (Reducer::Count, StateKind::Count(count)) => *count = count.saturating_add(1),
            (Reducer::Count, kind) => *kind = StateKind::Count(1),
            (Reducer::Stats, StateKind::Stats(stats)) => stats.add(value),
            (Reducer::Stats, kind) => *kind = StateKind::Stats(Stats::of(value)),
            (Reducer::ApproxCountDistinct, StateKind::Distinct(distinct)) => distinct.add(key),
            (Reducer::ApproxCountDistinct, kind) => {
                let mut distinct = Distinct::default();
                distinct.add(key);
                *kind = StateKind::Distinct(distinct);
            }
            (Reducer::First, StateKind::Value(_)) => {}
            (Reducer::First | Reducer::Last, kind) => {
                let fits = json::text_len(value) <= STATE_BYTES_MAX;
                *kind = StateKind::Value(fits.then(|| value.clone().into_owned()));
            }
            (Reducer::Top(_) | Reducer::Bottom(_), StateKind::Ranks(ranks)) => ranks.add(reducer, collation, value),
            (Reducer::Top(_) | Reducer::Bottom(_), kind) => {
                let mut ranks = Ranks::default();
                ranks.add(reducer, collation, value);
                *kind = StateKind::Ranks(ranks);
            }
        }
    }

    /// Appends the rows of another state of the same reducer.
    pub fn merge(&mut self, reducer: Reducer, collation: &Collation, behind: &ReduceState) {
        match (&mut self.0, &behind.0) {
            (_, StateKind::Empty) => {}
            (kind @ StateKind::Empty, _) => *kind = behind.0.clone(),
            (StateKind::Sum(sum), StateKind::Sum(other)) => sum.merge(other),
            (StateKind::Count(count), StateKind::Count(other)) => *count = count.saturating_add(*other),
            (StateKind::Stats(stats), StateKind::Stats(other)) => stats.merge(other),
            (StateKind::Distinct(distinct), StateKind::Distinct(other)) => distinct.merge(other),
            (StateKind::Value(last), StateKind::Value(other)) if reducer == Reducer::Last => last.clone_from(other),
            (StateKind::Ranks(ranks), StateKind::Ranks(other)) => ranks.merge(reducer, collation, other),
            // `_first` keeps the first; states of different reducers are not merged.
            _ => {}
        }
    }

    /// Returns the state after some rows are replaced, given by their values; `None` if it depends on the other rows.
    /// It equals the state of the remaining rows in any grouping.
    pub fn replaced(&self, gone: &[&Value<'_>], come: &[&Value<'_>]) -> Option<ReduceState> {
        Some(ReduceState(match &self.0 {
            StateKind::Count(count) => {
                StateKind::Count(count.checked_sub(gone.len() as u64)?.checked_add(come.len() as u64)?)
            }
            StateKind::Sum(sum) => StateKind::Sum(sum.replaced(gone, come)?),
            StateKind::Stats(stats) => StateKind::Stats(stats.replaced(gone, come)?),
            _ => return None,
        }))
    }

    /// Returns CouchDB's value for these rows, at least one; `None` if `_first` or `_last` did not keep it because of
    /// its size, so that the caller must read it from the first or last row.
    ///
    /// An impossible `_sum` is an object that gives the reason.
    ///
    /// # Errors
    /// [`ReduceError`] of `_stats`, and of ranks that are too large.
    pub fn finish(&self) -> Result<Option<Value<'static>>, ReduceError> {
        match &self.0 {
            StateKind::Empty => Ok(Some(Value::Null)),
            StateKind::Sum(sum) => Ok(Some(sum.finish())),
            StateKind::Count(count) => Ok(Some(Value::Number(count.to_string().into()))),
            StateKind::Stats(stats) => stats.finish().map(Some),
            StateKind::Distinct(distinct) => Ok(Some(Value::Number(distinct.estimate().to_string().into()))),
            StateKind::Value(value) => Ok(value.clone()),
            StateKind::Ranks(ranks) => ranks.finish().map(Some),
        }
    }

    /// Appends the state's stored form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let tag = match &self.0 {
            StateKind::Empty => 0,
            StateKind::Sum(_) => 1,
            StateKind::Count(_) => 2,
            StateKind::Stats(_) => 3,
            StateKind::Distinct(_) => 4,
            StateKind::Value(None) => 5,
            StateKind::Value(Some(_)) => 6,
            StateKind::Ranks(_) => 7,
        };
        out.push(tag);
        match &self.0 {
            StateKind::Empty | StateKind::Value(None) => {}
            StateKind::Sum(sum) => sum.encode(out),
            StateKind::Count(count) => codec::put(out, *count),
            StateKind::Stats(stats) => stats.encode(out),
            StateKind::Distinct(distinct) => distinct.encode(out),
            StateKind::Value(Some(value)) => put_value(out, value),
            StateKind::Ranks(ranks) => ranks.encode(out),
        }
    }

    /// Reads a state of any reducer from the start of `bytes`; `None` if they are invalid.
    pub fn decode(bytes: &mut &[u8]) -> Option<ReduceState> {
        let (tag, rest) = bytes.split_first()?;
        *bytes = rest;
        Some(ReduceState(match tag {
            0 => StateKind::Empty,
            1 => StateKind::Sum(Sum::decode(bytes)?),
            2 => StateKind::Count(codec::take(bytes)?),
            3 => StateKind::Stats(Stats::decode(bytes)?),
            4 => StateKind::Distinct(Distinct::decode(bytes)?),
            5 => StateKind::Value(None),
            6 => StateKind::Value(Some(take_value(bytes)?)),
            7 => StateKind::Ranks(Ranks::decode(bytes)?),
            _ => return None,
        }))
    }
}

/// Returns whether a value is nested deeper than `levels`.
pub(super) fn is_deep(value: &Value<'_>, levels: usize) -> bool {
    let Some(below) = levels.checked_sub(1) else { return true };
    match value {
        Value::Array(items) => items.iter().any(|item| is_deep(item, below)),
        Value::Object(members) => members.iter().any(|(_, value)| is_deep(value, below)),
        _ => false,
    }
}

/// Appends a value as JSON after its length.
pub(super) fn put_value(out: &mut Vec<u8>, value: &Value<'_>) {
    codec::put_bytes(out, &json::to_vec(value));
}

/// Reads the output of [`put_value`].
pub(super) fn take_value(bytes: &mut &[u8]) -> Option<Value<'static>> {
    let limits = Limits { depth_max: json::DEPTH_MAX_LIMIT };
    Some(json::parse(codec::take_bytes(bytes)?, &limits).ok()?.into_owned())
}
