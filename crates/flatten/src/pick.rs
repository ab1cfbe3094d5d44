//! Reads some values of a body without the rest of it.

use crate::error::DecodeError;
use crate::json::Value;
use crate::path::{ESCAPE, take};
use crate::run::each_row;
use crate::scalar::Scalar;
use crate::subtree::read_subtree;
use crate::unflatten::FieldNames;

/// The result of [`pick`].
#[derive(Debug, Clone, PartialEq)]
pub enum PickResult {
    /// The value at each path; `None`: the path has no value.
    Values(Vec<Option<Value<'static>>>),
    /// An object or array around one of the paths is stored packed: the whole body must be read.
    Packed,
}

/// Returns the values at `paths` (see [`crate::path::of_steps`]) of a body whose pairs come in order. The paths must
/// be in ascending order, and none may be a prefix of another.
///
/// Reads the rows up to the last path once, and once more for each path without a scalar.
///
/// # Errors
/// [`DecodeError`], for skipped rows only if they cannot be skipped.
pub fn pick<'k, P>(pairs: P, paths: &[Vec<u8>], names: &impl FieldNames) -> Result<PickResult, DecodeError>
where
    P: IntoIterator<Item = (&'k [u8], &'k [u8])> + Clone,
{
    let mut values = vec![None; paths.len()];
    let mut subtrees = Vec::new();
    let mut is_packed = false;
    // The first path at or after the current row.
    let mut at = 0;
    let mut full = Vec::new();
    for (key, value) in pairs.clone() {
        full.clear();
        each_row(key, value, |shared, rest, scalar| {
            if shared > full.len() {
                return Err(DecodeError::BadRun);
            }
            full.truncate(shared);
            full.extend_from_slice(rest);
            if let Scalar::PackedPart(_) = scalar
                && paths.iter().any(|path| is_in_packed(path, &full))
            {
                is_packed = true;
            }
            while let Some(path) = paths.get(at) {
                if full.as_slice() < path.as_slice() {
                    break;
                }
                match full.strip_prefix(path.as_slice()) {
                    Some([]) => {
                        if let Some(slot) = values.get_mut(at) {
                            *slot = Some(scalar_value(scalar)?);
                        }
                        break;
                    }
                    Some([first, ..]) if *first != ESCAPE => {
                        if subtrees.last() != Some(&at) {
                            subtrees.push(at);
                        }
                        break;
                    }
                    _ => at += 1,
                }
            }
            Ok(())
        })?;
        if is_packed {
            return Ok(PickResult::Packed);
        }
        if at == paths.len() {
            break;
        }
    }
    for at in subtrees {
        if let (Some(slot), Some(path)) = (values.get_mut(at), paths.get(at)) {
            *slot = read_subtree(pairs.clone(), path, names)?;
        }
    }
    Ok(PickResult::Values(values))
}

/// Returns whether a row that is a packed part belongs to an object or array around `path`.
fn is_in_packed(path: &[u8], row: &[u8]) -> bool {
    // Its last two elements are the marker and the part's number.
    let (mut rest, mut ends) = (row, Vec::new());
    while let Some((_, used)) = take(rest) {
        rest = rest.get(used..).unwrap_or_default();
        ends.push(row.len() - rest.len());
    }
    let around = match ends.len().checked_sub(3) {
        Some(last) => ends.get(last).copied().unwrap_or(0),
        None => 0,
    };
    path.len() > around && row.get(..around).is_some_and(|around| path.starts_with(around))
}

fn scalar_value(scalar: Scalar<'_>) -> Result<Value<'static>, DecodeError> {
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| DecodeError::BadScalar);
    Ok(match scalar {
        Scalar::Null => Value::Null,
        Scalar::Bool(value) => Value::Bool(value),
        Scalar::Int(integer) => Value::Number(integer.to_string().into()),
        Scalar::Float(float) => Value::Number(float.to_string().into()),
        Scalar::Number(bytes) if crate::json::is_number(bytes) => Value::Number(text(bytes)?.into()),
        Scalar::String(bytes) => Value::String(text(bytes)?.into()),
        Scalar::EmptyObject => Value::Object(Vec::new()),
        Scalar::EmptyArray => Value::Array(Vec::new()),
        Scalar::Number(_) | Scalar::StringPart(_) | Scalar::PackedPart(_) | Scalar::OrderPart(_) => {
            return Err(DecodeError::BadScalar);
        }
    })
}
