//! Reads of a part of a body: its key range, and its value.

use crate::error::DecodeError;
use crate::json::{self, Value};
use crate::path::ESCAPE;
use crate::run::each_row;
use crate::unflatten::{FieldNames, Writer};

/// The keys that contain a subtree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubtreeRange {
    /// The read begins at the last key not greater than this, because the run with the subtree's first row may begin
    /// before it. (The caller must skip that key if it is not one of the body's.)
    pub begin: Vec<u8>,
    /// The read ends before the first key not less than this.
    pub end: Vec<u8>,
}

/// Returns the range of the subtree at `path` (see [`crate::path::of_steps`]) in a body whose keys have `prefix`
/// before their paths.
pub fn subtree_range(prefix: &[u8], path: &[u8]) -> SubtreeRange {
    let begin = [prefix, path].concat();
    let end = [&begin, &[ESCAPE][..]].concat();
    SubtreeRange { begin, end }
}

/// Returns the value at `path`, from the pairs in its [`subtree_range`], in order.
///
/// `None`: the subtree has no rows. Then it does not exist, or an object around it is stored packed, and the whole
/// body must be read.
///
/// # Errors
/// [`DecodeError`], for rows before the subtree only if they cannot be skipped.
pub fn read_subtree<'k>(
    pairs: impl IntoIterator<Item = (&'k [u8], &'k [u8])>,
    path: &[u8],
    names: &impl FieldNames,
) -> Result<Option<Value<'static>>, DecodeError> {
    let mut out = Vec::new();
    let mut writer = Writer::new(names, &mut out, false);
    let mut found = false;
    let mut full = Vec::new();
    for (key, value) in pairs {
        full.clear();
        each_row(key, value, |shared, rest, scalar| {
            if shared > full.len() {
                return Err(DecodeError::BadRun);
            }
            full.truncate(shared);
            full.extend_from_slice(rest);
            match full.strip_prefix(path) {
                Some(below) if below.first() != Some(&ESCAPE) => {
                    found = true;
                    writer.row(0, below, scalar)
                }
                _ => Ok(()),
            }
        })?;
    }
    if !found {
        return Ok(None);
    }
    writer.finish()?;
    let limits = json::Limits { depth_max: json::DEPTH_MAX_LIMIT };
    let value = json::parse(&out, &limits).map_err(|_| DecodeError::BadScalar)?;
    Ok(Some(value.into_owned()))
}
