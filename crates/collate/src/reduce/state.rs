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
pub struct State(Kind);

#[derive(Debug, Clone, PartialEq, Default)]
enum Kind {
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

impl State {
    /// Returns the state of one row.
    pub fn of_row(reducer: Reducer, collation: &Collation, key: &Value<'_>, value: &Value<'_>) -> State {
        let mut state = State::default();
        state.add(reducer, collation, key, value);
        state
    }

    /// Appends a row. `collation` is that of `_top_N` and `_bottom_N`: [`Collation::unicode`], whatever the view's is.
    pub fn add(&mut self, reducer: Reducer, collation: &Collation, key: &Value<'_>, value: &Value<'_>) {
        match (reducer, &mut self.0) {
            (Reducer::Sum, Kind::Sum(sum)) => sum.add(value),
            (Reducer::Sum, kind) => *kind = Kind::Sum(Sum::of(value)),
            (Reducer::Count, Kind::Count(count)) => *count = count.saturating_add(1),
            (Reducer::Count, kind) => *kind = Kind::Count(1),
            (Reducer::Stats, Kind::Stats(stats)) => stats.add(value),
            (Reducer::Stats, kind) => *kind = Kind::Stats(Stats::of(value)),
            (Reducer::ApproxCountDistinct, Kind::Distinct(distinct)) => distinct.add(key),
            (Reducer::ApproxCountDistinct, kind) => {
                let mut distinct = Distinct::default();
                distinct.add(key);
                *kind = Kind::Distinct(distinct);
            }
            (Reducer::First, Kind::Value(_)) => {}
            (Reducer::First | Reducer::Last, kind) => {
                let fits = json::text_len(value) <= STATE_BYTES_MAX;
                *kind = Kind::Value(fits.then(|| value.clone().into_owned()));
            }
            (Reducer::Top(_) | Reducer::Bottom(_), Kind::Ranks(ranks)) => ranks.add(reducer, collation, value),
            (Reducer::Top(_) | Reducer::Bottom(_), kind) => {
                let mut ranks = Ranks::default();
                ranks.add(reducer, collation, value);
                *kind = Kind::Ranks(ranks);
            }
        }
    }

    /// Appends the rows of another state of the same reducer.
    pub fn merge(&mut self, reducer: Reducer, collation: &Collation, behind: &State) {
        match (&mut self.0, &behind.0) {
            (_, Kind::Empty) => {}
            (kind @ Kind::Empty, _) => *kind = behind.0.clone(),
            (Kind::Sum(sum), Kind::Sum(other)) => sum.merge(other),
            (Kind::Count(count), Kind::Count(other)) => *count = count.saturating_add(*other),
            (Kind::Stats(stats), Kind::Stats(other)) => stats.merge(other),
            (Kind::Distinct(distinct), Kind::Distinct(other)) => distinct.merge(other),
            (Kind::Value(last), Kind::Value(other)) if reducer == Reducer::Last => last.clone_from(other),
            (Kind::Ranks(ranks), Kind::Ranks(other)) => ranks.merge(reducer, collation, other),
            // `_first` keeps the first; states of different reducers are not merged.
            _ => {}
        }
    }

    /// Returns the state after some rows are replaced, given by their values; `None` if it depends on the other rows.
    /// It equals the state of the remaining rows in any grouping.
    pub fn replaced(&self, gone: &[&Value<'_>], come: &[&Value<'_>]) -> Option<State> {
        Some(State(match &self.0 {
            Kind::Count(count) => Kind::Count(count.checked_sub(gone.len() as u64)?.checked_add(come.len() as u64)?),
            Kind::Sum(sum) => Kind::Sum(sum.replaced(gone, come)?),
            Kind::Stats(stats) => Kind::Stats(stats.replaced(gone, come)?),
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
            Kind::Empty => Ok(Some(Value::Null)),
            Kind::Sum(sum) => Ok(Some(sum.finish())),
            Kind::Count(count) => Ok(Some(Value::Number(count.to_string().into()))),
            Kind::Stats(stats) => stats.finish().map(Some),
            Kind::Distinct(distinct) => Ok(Some(Value::Number(distinct.estimate().to_string().into()))),
            Kind::Value(value) => Ok(value.clone()),
            Kind::Ranks(ranks) => ranks.finish().map(Some),
        }
    }

    /// Appends the state's stored form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let tag = match &self.0 {
            Kind::Empty => 0,
            Kind::Sum(_) => 1,
            Kind::Count(_) => 2,
            Kind::Stats(_) => 3,
            Kind::Distinct(_) => 4,
            Kind::Value(None) => 5,
            Kind::Value(Some(_)) => 6,
            Kind::Ranks(_) => 7,
        };
        out.push(tag);
        match &self.0 {
            Kind::Empty | Kind::Value(None) => {}
            Kind::Sum(sum) => sum.encode(out),
            Kind::Count(count) => codec::put(out, *count),
            Kind::Stats(stats) => stats.encode(out),
            Kind::Distinct(distinct) => distinct.encode(out),
            Kind::Value(Some(value)) => put_value(out, value),
            Kind::Ranks(ranks) => ranks.encode(out),
        }
    }

    /// Reads a state of any reducer from the start of `bytes`; `None` if they are invalid.
    pub fn decode(bytes: &mut &[u8]) -> Option<State> {
        let (tag, rest) = bytes.split_first()?;
        *bytes = rest;
        Some(State(match tag {
            0 => Kind::Empty,
            1 => Kind::Sum(Sum::decode(bytes)?),
            2 => Kind::Count(codec::take(bytes)?),
            3 => Kind::Stats(Stats::decode(bytes)?),
            4 => Kind::Distinct(Distinct::decode(bytes)?),
            5 => Kind::Value(None),
            6 => Kind::Value(Some(take_value(bytes)?)),
            7 => Kind::Ranks(Ranks::decode(bytes)?),
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
    let mut text = Vec::new();
    json::write(value, &mut text);
    codec::put_bytes(out, &text);
}

/// Reads the output of [`put_value`].
pub(super) fn take_value(bytes: &mut &[u8]) -> Option<Value<'static>> {
    let limits = Limits { depth_max: json::DEPTH_MAX_LIMIT };
    Some(json::parse(codec::take_bytes(bytes)?, &limits).ok()?.into_owned())
}
