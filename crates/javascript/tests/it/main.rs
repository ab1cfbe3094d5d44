//! The crate's tests, one program: linking takes longer than compiling them. What needs a process of its own
//! is a program beside this one and says why.

mod depth;
mod functions;
mod isolation;
mod patterns;
mod render;
mod sync;
mod transform;
mod views;
