//! Selector indexes: the by-seq entries whose documents a selector matches, in commit order, so that
//! `_changes?filter=_index/NAME` reads only them (design/channels.md, "Selector feeds").
//!
//! An index contains the same tombstones and design documents as a walk with `filter=_selector`.

pub(crate) mod check;
pub(crate) mod definition;
pub(crate) mod kind;
pub(crate) mod selecting;
