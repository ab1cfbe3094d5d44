//! The crate's tests, one program: linking takes longer than compiling them. What needs a process of its own
//! is a program beside this one and says why.

mod damage;
mod json;
mod picks;
mod revisions;
mod round_trip;
mod rows;
mod support;
mod terms;
