//! `GET /{db}/{doc}?open_revs=...`: several revisions of a document, as JSON or as `multipart/mixed`.

use flatbed_documents::{Form, ListOptions};
use flatbed_http::Reply;
use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{GetOptions, OpenRevs, Reader};

use crate::error::{Failure, Result, parse_rev};
use crate::multipart::new_boundary;

/// The largest number of revisions in one `open_revs`.
const OPEN_REVS_MAX: usize = 1_000;

pub(crate) struct OpenRevsRequest<'a> {
    pub id: &'a str,
    /// `all`, or a list of revisions in JSON.
    pub revs: &'a str,
    pub options: GetOptions,
}

/// Returns the multipart form with new boundaries.
pub(crate) fn mixed() -> Result<Form> {
    Ok(Form::Mixed { outer: new_boundary()?, inner: new_boundary()? })
}

fn revs_of(wanted: &str) -> Result<OpenRevs> {
    if wanted == "all" {
        return Ok(OpenRevs::All);
    }
    let list = json::parse(wanted.as_bytes(), &Limits::default()).map_err(|_| Failure::invalid_json())?;
    let Value::Array(list) = list else { return Err(Failure::invalid_json()) };
    if list.len() > OPEN_REVS_MAX {
        return Err(Failure::bad_request(format!("at most {OPEN_REVS_MAX} revisions")));
    }
    let rev = |rev: &Value<'_>| parse_rev(rev.as_str().ok_or_else(|| Failure::bad_request("Invalid rev format"))?);
    Ok(OpenRevs::Some(list.iter().map(rev).collect::<Result<_>>()?))
}

pub(crate) async fn open_revs(database: Reader, wanted: OpenRevsRequest<'_>, shown: ListOptions) -> Result<Reply> {
    let OpenRevsRequest { id, revs, options } = wanted;
    Ok(flatbed_documents::open_revs(database, id, revs_of(revs)?, options, shown).await?)
}
