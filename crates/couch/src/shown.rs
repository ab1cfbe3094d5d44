//! Parses how a query wants attachments shown.

use flatbed_documents::{ATTS_SINCE_MAX, AttachmentOptions};
use flatbed_layer::json::Value;

use crate::error::{Failure, Result, parse_rev};
use crate::query::Query;

pub(crate) fn attachment_options(query: &Query) -> Result<AttachmentOptions> {
    let since = match query.json(&["atts_since"])? {
        None => None,
        Some(Value::Array(revs)) if revs.len() > ATTS_SINCE_MAX => {
            return Err(Failure::bad_request(format!("atts_since has at most {ATTS_SINCE_MAX} revisions")));
        }
        Some(Value::Array(revs)) => {
            let invalid = || Failure::bad_request("atts_since is a list of revisions");
            Some(revs.iter().map(|rev| parse_rev(rev.as_str().ok_or_else(invalid)?)).collect::<Result<_>>()?)
        }
        Some(_) => return Err(Failure::bad_request("atts_since is a list of revisions")),
    };
    let data = query.switch("attachments") || since.is_some();
    Ok(AttachmentOptions { data, since, encoding: query.switch("att_encoding_info") })
}

/// Parses the attachment options for [`parameters!`](crate::query::parameters), from several parameters.
pub(crate) fn attachments(query: &Query, _: &str) -> Result<AttachmentOptions> {
    attachment_options(query)
}
