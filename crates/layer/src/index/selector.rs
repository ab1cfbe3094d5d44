//! Selector indexes: the entries of by-seq whose documents a selector takes, in the order of commits, so that
//! `_changes?filter=_index/NAME` reads them alone (design/channels.md, "Selector feeds").
//!
//! Tombstones and design documents are in one as a walk with `filter=_selector` would show them.

pub(crate) mod check;
pub(crate) mod definition;
pub(crate) mod kind;
pub(crate) mod selecting;
