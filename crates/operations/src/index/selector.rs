//! Selector indexes: the by-seq entries whose documents a selector matches, in commit order, so that
//! `_changes?filter=_index/NAME` reads only them (design/channels.md, "Selector feeds").
//!
//! An index contains the same tombstones and design documents as a walk with `filter=_selector`.

pub mod check;
pub mod definition;
pub mod kind;
pub mod selecting;
