//! CouchDB's built-in reductions, as states that can be merged in any grouping.
//!
//! | function | state | effect of the rows' order |
//! |---|---|---|
//! | `_sum` | exact numbers; arrays item by item; objects member by member | nothing |
//! | `_count` | a number | nothing |
//! | `_stats` | five exact numbers, or arrays of them | nothing |
//! | `_approx_count_distinct` | HyperLogLog with 2,048 registers of the keys' hashes, which are CouchDB's | nothing |
//! | `_first`, `_last` | the value of the first or last row | which it is |
//! | `_top_N`, `_bottom_N` | the N greatest or least values, of equal ones the first | which of equal ones it is |
//!
//! Sums are exact, floats included, and rounded when they are written. They depend neither on the rows' order nor on
//! the grouping, so a state can be compared with a recomputed one. CouchDB adds floats one by one and rounds each
//! time; if that shows, in a sum's last digits, this result is the more exact one. Squares of floats are rounded
//! first, as in CouchDB.
//!
//! A state takes at most about [`STATE_BYTES_MAX`]. A larger state is an error, like CouchDB's error for a `_sum` that
//! grows with its rows; for `_first` and `_last` the value is then read from its row. The grouping may
//! decide if the limit is exceeded: numbers may cancel out, and a large value may leave the ranks. Apart from that it
//! decides only which of several errors is returned, and the wording of errors.

mod distinct;
mod erlang;
mod name;
mod rank;
mod state;
mod stats;
mod sum;

pub use name::{NameError, RANK_MAX, Reducer};
pub use state::{ReduceError, ReduceState, STATE_BYTES_MAX};

#[cfg(test)]
mod tests;
