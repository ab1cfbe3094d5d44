//! CouchDB's built-in reductions, as states that are merged in any grouping.
//!
//! | function | state | what rows' order says |
//! |---|---|---|
//! | `_sum` | exact numbers; arrays place by place; objects member by member | nothing |
//! | `_count` | a number | nothing |
//! | `_stats` | five exact numbers, or arrays of them | nothing |
//! | `_approx_count_distinct` | HyperLogLog with 2,048 registers of the keys' hashes, which are CouchDB's | nothing |
//! | `_first`, `_last` | the value of the first or last row | which it is |
//! | `_top_N`, `_bottom_N` | the N greatest or least values, of equal ones the first | which of equal ones it is |
//!
//! Sums are exact, floats included, and rounded when they are written: they depend neither on the rows' order nor on how
//! they were grouped, so a state can be compared with one that was made anew. CouchDB adds floats one by one and rounds
//! each time; where that shows, in a sum's last digits, this is the nearer one. Squares of floats are rounded first, as
//! there.
//!
//! A state takes at most some [`STATE_BYTES_MAX`]. What would be larger is an error, as CouchDB's `_sum` has one for what
//! grows with its rows; of `_first` and `_last` the value is then read from its row. Whether that happens may depend on the
//! grouping, where numbers cancel out or a large value leaves the ranks; nothing else does, but for which of several errors is
//! answered, and the words of errors.

mod distinct;
mod erlang;
mod name;
mod rank;
mod state;
mod stats;
mod sum;

pub use name::{NameError, RANK_MAX, Reducer};
pub use state::{ReduceError, STATE_BYTES_MAX, State};

#[cfg(test)]
mod tests;
