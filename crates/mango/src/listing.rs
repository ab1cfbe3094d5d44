//! Lists and deletes indexes.

use std::num::IntErrorKind;

use flatbed_flatten::json::Value;

use crate::erlang::written;
use crate::error::MangoError;
use crate::index::{DESIGN, Index};
use crate::options::{Options, number, object, text};

/// The page of `GET _index`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Listing {
    limit: Option<u64>,
    skip: u64,
}

impl Listing {
    /// Parses a query string. Unknown parameters are ignored.
    ///
    /// # Errors
    /// A value is no number, or out of range.
    pub fn parse<'q>(query: impl IntoIterator<Item = (&'q str, &'q str)>) -> Result<Listing, MangoError> {
        let bad = || MangoError {
            status: 500,
            error: "invalid_list_index_params",
            reason: "Index parameter ranges: limit > 1, skip > 0".to_owned(),
        };
        let mut listing = Listing::default();
        // The first occurrence of a name counts.
        let (mut limit, mut skip) = (None, None);
        for (name, value) in query {
            let into = match name {
                "limit" => &mut limit,
                "skip" => &mut skip,
                _ => continue,
            };
            let value = whole(value).ok_or_else(bad)?;
            into.get_or_insert(value);
        }
        if let Some(limit) = limit {
            listing.limit = Some(u64::try_from(limit).ok().filter(|limit| *limit > 0).ok_or_else(bad)?);
        }
        listing.skip = u64::try_from(skip.unwrap_or(0)).map_err(|_| bad())?;
        Ok(listing)
    }

    /// Answers the page; `indexes` may be in any order.
    pub fn answer(&self, indexes: &[Index]) -> Value<'static> {
        let mut sorted: Vec<&Index> = indexes.iter().collect();
        sorted.sort_by(|a, b| a.compare(b));
        let skip = usize::try_from(self.skip).unwrap_or(usize::MAX);
        let limit = self.limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let shown = sorted.iter().skip(skip).take(limit).map(|index| index.to_json()).collect();
        object([("total_rows", number(indexes.len() as u64)), ("indexes", Value::Array(shown))])
    }
}

/// Parses an integer; a number beyond the range of `i64` becomes its nearest bound.
fn whole(text: &str) -> Option<i64> {
    match text.parse::<i64>().map_err(|error| *error.kind()) {
        Ok(number) => Some(number),
        Err(IntErrorKind::PosOverflow) => Some(i64::MAX),
        Err(IntErrorKind::NegOverflow) => Some(i64::MIN),
        Err(_) => None,
    }
}

/// Returns the id of a design document that is named with or without `_design/`.
pub fn design_id(given: &str) -> String {
    if given.starts_with(DESIGN) { given.to_owned() } else { format!("{DESIGN}{given}") }
}

/// Finds the index of `DELETE _index/{ddoc}/{type}/{name}`.
///
/// # Errors
/// The index does not exist. The index of all ids counts as missing.
pub fn find_index<'i>(indexes: &'i [Index], ddoc: &str, kind: &str, name: &str) -> Result<&'i Index, MangoError> {
    let ddoc = design_id(ddoc);
    indexes
        .iter()
        .find(|index| index.ddoc() == Some(&ddoc) && index.kind() == kind && index.name() == name)
        .ok_or_else(|| MangoError { status: 404, error: "not_found", reason: "missing".to_owned() })
}

/// Parses `POST _index/_bulk_delete`, and returns the ids of the design documents.
///
/// # Errors
/// In CouchDB's words.
pub fn parse_bulk_delete(body: &Value<'_>) -> Result<Vec<String>, MangoError> {
    let mut options = Options::of_request(body)?;
    let docids = options.required("docids")?;
    let Value::Array(docids) = docids else {
        let reason = format!("Bulk Delete requires an array of non-null docids. Docids: {}", written(docids));
        return Err(MangoError::bad("invalid_bulk_docs", reason));
    };
    let docids = docids.iter().map(|docid| match docid {
        Value::String(docid) => Ok(design_id(docid)),
        other => Err(MangoError::bad("invalid_index_name", format!("Invalid index name: {}", written(other)))),
    });
    let docids = docids.collect::<Result<_, _>>()?;
    options.integer("w", 1, 2)?;
    options.finish()?;
    Ok(docids)
}

/// Answers `_bulk_delete`: the outcomes, in the order of the request. CouchDB shows the last first.
pub fn bulk_delete_answer(deleted: &[(String, Result<(), &'static str>)]) -> Value<'static> {
    let (mut success, mut fail) = (Vec::new(), Vec::new());
    for (id, result) in deleted.iter().rev() {
        match result {
            Ok(()) => success.push(object([("id", text(id)), ("ok", Value::Bool(true))])),
            Err(error) => fail.push(object([("id", text(id)), ("error", text(error))])),
        }
    }
    object([("success", Value::Array(success)), ("fail", Value::Array(fail))])
}
