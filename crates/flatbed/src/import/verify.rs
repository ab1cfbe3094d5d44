//! Compares a database of the source with that of the target.

use bytes::Bytes;
use flatbed_client::encode_segment;
use flatbed_client::split::member;
use flatbed_layer::json::{self as exact, Limits};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;

use crate::dump_format::document_path;
use crate::import::server::{ImportError, Server};
use crate::import::state::{LINES_OF_ONE, UnmovedList};
use crate::import::walk::{Leaves, Walk, missing};

/// The revisions of a page of changes whose content is compared.
const SAMPLES: usize = 8;

/// The differences that are found.
struct Differences<'l> {
    name: &'l str,
    left: &'l mut UnmovedList,
    count: usize,
}

impl Differences<'_> {
    fn add(&mut self, line: &str) {
        self.count += 1;
        if self.count <= LINES_OF_ONE {
            self.left.add(format!("{}: differs: {line}", self.name));
        } else {
            self.left.add_further(1);
        }
    }
}

/// Compares counts and leaves, and the content of some revisions with their attachments, and adds a line for each
/// difference.
///
/// Both servers are asked which leaves of the other they do not know. If there is none, the leaves are the same: a leaf
/// that the other has as an ancestor would have a descendant there, which would be unknown here.
pub(crate) async fn verify(
    (from, to): (&mut Server, &mut Server),
    database: &str,
    name: &str,
    left: &mut UnmovedList,
) -> Result<(), ImportError> {
    let mut differences = Differences { name, left, count: 0 };
    let (of_source, of_target) = (from.get(database).await?, to.get(database).await?);
    for count in ["doc_count", "doc_del_count"] {
        if of_source[count] != of_target[count] {
            differences.add(&format!("{count} is {} there and {} here", of_source[count], of_target[count]));
        }
    }
    let mut walk = Walk::new(database);
    while let Some(page) = walk.page(from).await? {
        let absent = missing(to, database, &page.leaves).await?;
        for (id, rev) in &absent {
            differences.add(&format!("revision {rev} of {id:?} is missing"));
        }
        for (id, rev) in samples(&page.leaves) {
            if absent.iter().any(|(of, missing)| of == id && missing == rev) {
                continue;
            }
            if let Some(difference) = revision((&mut *from, &mut *to), database, id, rev).await? {
                differences.add(&format!("revision {rev} of {id:?}: {difference}"));
            }
        }
    }
    let mut walk = Walk::new(database);
    while let Some(page) = walk.page(to).await? {
        for (id, rev) in missing(from, database, &page.leaves).await? {
            differences.add(&format!("the source has no revision {rev} of {id:?}"));
        }
    }
    Ok(())
}

/// Returns some of the leaves of a page, evenly spread.
fn samples(leaves: &Leaves) -> Vec<(&str, &str)> {
    let all: Vec<(&str, &str)> =
        leaves.iter().flat_map(|(id, revs)| revs.iter().map(move |rev| (id.as_str(), rev.as_str()))).collect();
    let step = all.len().div_ceil(SAMPLES).max(1);
    all.into_iter().step_by(step).collect()
}

/// Compares a revision at both servers. Returns the difference.
async fn revision(
    (from, to): (&mut Server, &mut Server),
    database: &str,
    id: &str,
    rev: &str,
) -> Result<Option<String>, ImportError> {
    let document = format!("{database}/{}", document_path(id));
    let rev = encode_segment(rev);
    let path = format!("{document}?rev={rev}&revs=true");
    // Edited meanwhile.
    let Some(one) = from.find_text(&path).await? else { return Ok(None) };
    let Some(other) = to.find_text(&path).await? else { return Ok(Some("it has no content".to_owned())) };
    if !is_same_content(&one, &other) {
        return Ok(Some("the content differs".to_owned()));
    }
    let take = |name: &str| (part(&one, name), part(&other, name));
    let (attachments, histories) = (take("_attachments"), take("_revisions"));
    if !is_same_history(&histories.0, &histories.1) {
        return Ok(Some("the history differs".to_owned()));
    }
    let empty = serde_json::Map::new();
    let (these, those) = (attachments.0.as_object().unwrap_or(&empty), attachments.1.as_object().unwrap_or(&empty));
    if these.len() != those.len() || !these.keys().all(|name| those.contains_key(name)) {
        return Ok(Some("the names of the attachments differ".to_owned()));
    }
    for (name, this) in these {
        let that = those.get(name).unwrap_or(&Value::Null);
        for member in ["content_type", "length", "revpos"] {
            if this[member] != that[member] {
                return Ok(Some(format!("{member} of the attachment {name:?} differs")));
            }
        }
        // The digest is that of the stored data, which one of both may have compressed.
        if this["digest"] != that["digest"] {
            let is_same = if name.is_empty() {
                let path = format!("{document}?rev={rev}&attachments=true");
                is_same_unnamed((&mut *from, &mut *to), &path).await?
            } else {
                let name_path = name.split('/').map(encode_segment).collect::<Vec<_>>().join("/");
                is_same_attachment((&mut *from, &mut *to), &format!("{document}/{name_path}?rev={rev}")).await?
            };
            if !is_same {
                return Ok(Some(format!("the data of the attachment {name:?} differ")));
            }
        }
    }
    Ok(None)
}

/// Compares the data of an attachment. `path`: its own.
async fn is_same_attachment((from, to): (&mut Server, &mut Server), path: &str) -> Result<bool, ImportError> {
    let (one, other) = (from.send(path).await?, to.send(path).await?);
    let is_same = one.status().is_success()
        && other.status().is_success()
        && is_same_body(one.into_body(), other.into_body()).await?;
    from.close();
    to.close();
    Ok(is_same)
}

/// Compares the data of the attachment without a name, which has no path. `path`: the document with its attachments.
async fn is_same_unnamed((from, to): (&mut Server, &mut Server), path: &str) -> Result<bool, ImportError> {
    let data = |found: Option<Bytes>| found.map(|document| part(&document, "_attachments")[""]["data"].clone());
    let (one, other) = (data(from.find_text(path).await?), data(to.find_text(path).await?));
    Ok(one.is_some() && one == other)
}

/// Returns a member of a document, null without one. The rest may be nested deeper than serde_json reads.
fn part(document: &[u8], name: &str) -> Value {
    let found = member(document, name).and_then(|found| document.get(found.value));
    found.and_then(|text| serde_json::from_slice(text).ok()).unwrap_or_default()
}

/// Compares two documents without their attachments and histories.
fn is_same_content(one: &[u8], other: &[u8]) -> bool {
    matches!((content(one), content(other)), (Some(one), Some(other)) if is_same(&one, &other))
}

fn content(text: &[u8]) -> Option<exact::Value<'_>> {
    let mut document = exact::parse(text, &Limits::default()).ok()?;
    if let exact::Value::Object(members) = &mut document {
        members.retain(|(name, _)| name != "_attachments" && name != "_revisions");
    }
    Some(document)
}

/// Compares two values: members in any order; integers as written, since a float rounds large ones.
pub(crate) fn is_same(one: &exact::Value<'_>, other: &exact::Value<'_>) -> bool {
    match (one, other) {
        (exact::Value::Object(these), exact::Value::Object(those)) => {
            let (mut these, mut those): (Vec<_>, Vec<_>) = (these.iter().collect(), those.iter().collect());
            these.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
            those.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
            these.len() == those.len()
                && these.into_iter().zip(those).all(|((name, this), (of, that))| name == of && is_same(this, that))
        }
        (exact::Value::Array(these), exact::Value::Array(those)) => {
            these.len() == those.len() && these.iter().zip(those).all(|(this, that)| is_same(this, that))
        }
        (exact::Value::Number(this), exact::Value::Number(that)) => this == that || is_same_float(this, that),
        (one, other) => one == other,
    }
}

/// Compares two numbers that may be written differently, if neither is an integer.
fn is_same_float(one: &str, other: &str) -> bool {
    let read = |text: &str| text.contains(['.', 'e', 'E']).then(|| text.parse::<f64>().ok()).flatten();
    read(one).is_some_and(|one| read(other) == Some(one))
}

/// Compares two `_revisions`. The older end of one may be cut off more than that of the other.
fn is_same_history(one: &Value, other: &Value) -> bool {
    let ids = |history: &Value| history["ids"].as_array().cloned().unwrap_or_default();
    one["start"] == other["start"] && ids(one).iter().zip(&ids(other)).all(|(one, other)| one == other)
}

/// Compares two bodies as they arrive.
async fn is_same_body(mut one: Incoming, mut other: Incoming) -> Result<bool, ImportError> {
    let (mut left, mut right) = (Bytes::new(), Bytes::new());
    loop {
        if left.is_empty() {
            left = piece(&mut one).await?;
        }
        if right.is_empty() {
            right = piece(&mut other).await?;
        }
        let length = left.len().min(right.len());
        if length == 0 {
            return Ok(left.is_empty() && right.is_empty());
        }
        if left.split_to(length) != right.split_to(length) {
            return Ok(false);
        }
    }
}

/// Returns the next piece of a body; empty at its end.
async fn piece(body: &mut Incoming) -> Result<Bytes, ImportError> {
    while let Some(frame) = body.frame().await.transpose().map_err(flatbed_client::Error::Http)? {
        if let Ok(data) = frame.into_data()
            && !data.is_empty()
        {
            return Ok(data);
        }
    }
    Ok(Bytes::new())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn samples_are_spread() {
        let leaves: Leaves = (0..100).map(|at| (format!("{at:03}"), vec!["1-a".to_owned()])).collect();
        let found = samples(&leaves);
        assert!(found.len() <= SAMPLES && found.len() > SAMPLES / 2, "{found:?}");
        assert_eq!(found[0], ("000", "1-a"));
        assert!(samples(&Leaves::new()).is_empty());
    }

    #[test]
    fn contents_are_compared_with_all_digits() {
        let is_same = |one: &str, other: &str| is_same_content(one.as_bytes(), other.as_bytes());
        assert!(is_same(r#"{"a":1,"b":[{"c":"x"}],"_revisions":1}"#, r#"{"b":[{"c":"x"}],"a":1,"_attachments":{}}"#));
        assert!(is_same(r#"{"a":1.5e3}"#, r#"{"a":1500.0}"#));
        for (one, other) in [
            (r#"{"a":123456789012345678901234567890}"#, r#"{"a":123456789012345678901234567891}"#),
            (r#"{"a":1}"#, r#"{"b":1}"#),
            (r#"{"a":1}"#, r#"{"a":1,"b":1}"#),
            (r#"{"a":[1]}"#, r#"{"a":[1,2]}"#),
            (r#"{"a":1.5}"#, r#"{"a":1.25}"#),
            ("{}", "{"),
        ] {
            assert!(!is_same(one, other), "{one} {other}");
        }
    }

    #[test]
    fn histories_may_be_cut_off() {
        let history = |ids: &[&str]| json!({ "start": 3, "ids": ids });
        assert!(is_same_history(&history(&["c", "b", "a"]), &history(&["c", "b"])));
        assert!(!is_same_history(&history(&["c", "b", "a"]), &history(&["c", "x", "a"])));
        assert!(!is_same_history(&history(&["c"]), &json!({ "start": 2, "ids": ["c"] })));
    }
}
