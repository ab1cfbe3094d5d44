//! Finds the revisions that the target refused, and the reasons.

use flatbed_client::encode_segment;
use hyper::Method;
use serde_json::{Value, json};

use crate::dump_format::document_path;
use crate::import::server::{ImportError, Server};
use crate::import::state::{LINES_OF_ONE, UnmovedList};
use crate::import::walk::{Walk, missing};

/// The revisions that are offered to the target once more, to learn its reasons.
const OFFERED_MAX: u64 = 10_000;

/// The length of attachments up to which a revision is offered with them.
const ATTACHED_BYTES_MAX: u64 = 32 << 20;

/// Offers the revisions that the target lacks once more, and adds a line for each that it refuses. Returns their
/// number.
pub(crate) async fn add_refused(
    (from, to): (&mut Server, &mut Server),
    database: &str,
    name: &str,
    left: &mut UnmovedList,
) -> Result<u64, ImportError> {
    let (mut walk, mut refused, mut offered, mut lines) = (Walk::new(database), 0_u64, 0_u64, 0);
    let mut add = |line: String| {
        refused += 1;
        lines += 1;
        if lines <= LINES_OF_ONE { left.add(line) } else { left.add_further(1) }
    };
    while let Some(page) = walk.page(from).await? {
        for id in page.too_long {
            let id: String = id.chars().take(100).collect();
            add(format!("{name}: the document {id:?}...: its id is longer than 2,048 bytes"));
        }
        for (id, rev) in missing(to, database, &page.leaves).await? {
            offered += 1;
            let reason = if offered <= OFFERED_MAX {
                offer((&mut *from, &mut *to), database, &id, &rev).await?
            } else {
                Some("the target refuses it".to_owned())
            };
            if let Some(reason) = reason {
                add(format!("{name}: revision {rev} of {id:?}: {reason}"));
            }
        }
    }
    Ok(refused)
}

/// Writes a revision of the source into the target. Returns the reason why the target refuses it; `None` if it is
/// written, or the source no longer has it.
async fn offer(
    (from, to): (&mut Server, &mut Server),
    database: &str,
    id: &str,
    rev: &str,
) -> Result<Option<String>, ImportError> {
    let path = format!("{database}/{}?revs=true&rev={}", document_path(id), encode_segment(rev));
    let document = match from.find(&path).await {
        Ok(Some(document)) => document,
        Ok(None) => return Ok(None),
        Err(error) => return Ok(Some(format!("the source: {error}"))),
    };
    let lengths = document["_attachments"].as_object().into_iter().flat_map(|all| all.values());
    let bytes = lengths.filter_map(|stub| stub["length"].as_u64()).fold(0, u64::saturating_add);
    if bytes > ATTACHED_BYTES_MAX {
        return Ok(Some(format!("the target refuses it with its attachments of {bytes} bytes")));
    }
    let document = if bytes == 0 && document.get("_attachments").is_none() {
        document
    } else {
        match from.find(&format!("{path}&attachments=true")).await {
            Ok(Some(document)) => document,
            Ok(None) => return Ok(None),
            Err(error) => return Ok(Some(format!("the source: {error}"))),
        }
    };
    let body = json!({ "docs": [document], "new_edits": false }).to_string();
    let answer = to.call(Method::POST, &format!("{database}/_bulk_docs"), &body).await?;
    if !matches!(answer.status, 200..=202) {
        return Ok(Some(format!("the target: {} {}", answer.status, answer.text())));
    }
    let rows: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let text = |row: &Value, name: &str| row[name].as_str().unwrap_or_default().chars().take(300).collect::<String>();
    let refused = rows.as_array().into_iter().flatten().find(|row| row.get("error").is_some());
    Ok(refused.map(|row| format!("the target: {}: {}", text(row, "error"), text(row, "reason"))))
}
