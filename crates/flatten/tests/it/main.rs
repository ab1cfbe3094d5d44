//! The crate's tests in one program, because linking takes longer than compiling. Tests that need a process of their
//! own are separate programs, with the reason in each.

mod damage;
mod json;
mod picks;
mod revisions;
mod round_trip;
mod rows;
mod support;
mod terms;
