//! The state of any reduction: rows are added behind it, another state is merged behind it, and a result is made of it.

use flatbed_flatten::json::{self, Limits, Value};

use super::distinct::Distinct;
use super::name::Reducer;
use super::rank::Ranks;
use super::stats::Stats;
use super::sum::Sum;
use crate::codec;
use crate::collation::Collation;

/// The most bytes that a state's parts may take together when it is stored; the state itself takes a few more.
pub const STATE_BYTES_MAX: usize = 16_384;

/// The deepest nesting of what is added up, a number alone being 1: what recurses over states has small frames to care for.
pub(super) const LEVELS_MAX: usize = 64;

/// A reduction without a result: 500, and so is every query of the group in CouchDB, whose index is not built then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ReduceError {
    /// CouchDB's word for it.
    pub error: &'static str,
    /// What is wrong, in CouchDB's words.
    pub reason: String,
}

/// What rows that follow each other were reduced to, by one [`Reducer`]. By default there are no rows.
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
    /// Of `_first` and `_last`; `None` where it is too large.
    Value(Option<Value<'static>>),
    Ranks(Ranks),
}

impl State {
    /// Of one row.
    pub fn of_row(reducer: Reducer, collation: &Collation, key: &Value<'_>, value: &Value<'_>) -> State {
        let mut state = State::default();
        state.add(reducer, collation, key, value);
        state
    }

    /// Adds a row behind all others. `collation` is that of `_top_N` and `_bottom_N`, [`Collation::unicode`] whatever the
    /// view's is.
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

    /// Adds the rows of another state of the same reducer behind all others.
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
            // The first of two; and states of two reducers are none of one.
            _ => {}
        }
    }

    /// The state without some of its rows and with others, by their values; `None` where only the rows that stay tell. It is the
    /// one that these rows have, however it came to be.
    pub fn replaced(&self, gone: &[&Value<'_>], come: &[&Value<'_>]) -> Option<State> {
        Some(State(match &self.0 {
            Kind::Count(count) => Kind::Count(count.checked_sub(gone.len() as u64)?.checked_add(come.len() as u64)?),
            Kind::Sum(sum) => Kind::Sum(sum.replaced(gone, come)?),
            Kind::Stats(stats) => Kind::Stats(stats.replaced(gone, come)?),
            _ => return None,
        }))
    }

    /// The value that CouchDB answers for these rows, of which there must be some; `None` where `_first` or `_last` did not
    /// keep it, as it is too large, and it has to be read from the first or last row.
    ///
    /// A `_sum` that is impossible has an object for its value that says so.
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

    /// Appends the state as it is stored.
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

    /// Takes a state from the start of `bytes`; `None` where there is none. It may be of any reducer.
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

/// Whether a value is nested deeper than so many levels.
pub(super) fn is_deep(value: &Value<'_>, levels: usize) -> bool {
    let Some(below) = levels.checked_sub(1) else { return true };
    match value {
        Value::Array(items) => items.iter().any(|item| is_deep(item, below)),
        Value::Object(members) => members.iter().any(|(_, value)| is_deep(value, below)),
        _ => false,
    }
}

/// Appends a value as JSON behind its length.
pub(super) fn put_value(out: &mut Vec<u8>, value: &Value<'_>) {
    let mut text = Vec::new();
    json::write(value, &mut text);
    codec::put_bytes(out, &text);
}

/// Takes what [`put_value`] appended.
pub(super) fn take_value(bytes: &mut &[u8]) -> Option<Value<'static>> {
    let limits = Limits { depth_max: json::DEPTH_MAX_LIMIT };
    Some(json::parse(codec::take_bytes(bytes)?, &limits).ok()?.into_owned())
}
