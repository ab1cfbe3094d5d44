//! Copies what belongs to the server: administrators, and replications, which arrive paused.

use flatbed_client::encode_segment;
use flatbed_service::shown_address;
use serde_json::{Map, Value, json};

use crate::dump_format::document_path;
use crate::import::database::{copy_security, copy_setting};
use crate::import::pages::Pages;
use crate::import::server::{ImportError, Server};
use crate::import::state::UnmovedList;

const ADMINS: &str = "/_node/_local/_config/admins";

/// The documents of a page of replications.
const ROWS: usize = 100;

/// The most bytes of attachments that are copied with a document.
const ATTACHED_BYTES_MAX: u64 = 32 << 20;

/// The state that no replicator starts, with the reason for its reader.
const PAUSED: &str = "failed";
const PAUSED_REASON: &str = "paused by flatbed import: remove _replication_state from this document to start it";

/// Copies administrators with the hashes of their passwords. An administrator of the target stays as it is.
pub(crate) async fn copy_admins(from: &mut Server, to: &mut Server, left: &mut UnmovedList) -> Result<(), ImportError> {
    let (admins, known) = (from.get(ADMINS).await?, to.get(ADMINS).await?);
    for (name, hash) in admins.as_object().ok_or_else(|| ImportError::Answer(ADMINS.to_owned()))? {
        match known.get(name) {
            Some(here) if here == hash => {}
            Some(_) => left.add(format!("administrator {name}: the target has one of this name")),
            None => {
                if let Err(error) = to.put(&format!("{ADMINS}/{}", encode_segment(name)), hash).await {
                    left.add(format!("administrator {name}: {error}"));
                }
            }
        }
    }
    Ok(())
}

/// Returns the owner of a replication who is no administrator of the source, as `admins` lists them.
fn other_owner<'d>(document: &'d Value, admins: Option<&Value>) -> Option<&'d str> {
    let owner = document["owner"].as_str()?;
    admins.and_then(|admins| admins.get(owner)).is_none().then_some(owner)
}

/// Returns a document of a replicator database as it is written: paused, unless it has ended. A replication has the
/// rights of its owner, so that of a user must not become one of the importing administrator.
fn paused(mut document: Value, admins: Option<&Value>) -> Value {
    let has_other_owner = other_owner(&document, admins).is_some();
    let is_design = document["_id"].as_str().is_some_and(|id| id.starts_with('_'));
    if let Some(members) = document.as_object_mut() {
        // The target gives the replication its owner, or finds the account of the owner that is named.
        members.retain(|name, _| match name.as_str() {
            "_rev" | "owner_account" | "_attachments" => false,
            "owner" => has_other_owner,
            _ => true,
        });
        let is_completed = members.get("_replication_state").is_some_and(|state| state == "completed");
        if !is_design && !is_completed {
            members.retain(|name, _| !name.starts_with("_replication_"));
            members.insert("_replication_state".to_owned(), PAUSED.into());
            members.insert("_replication_state_reason".to_owned(), PAUSED_REASON.into());
        }
    }
    document
}

/// Copies the settings of a replicator database, and its documents, paused. Documents that the target has stay as they
/// are. Returns a line for each replication that was paused now.
pub(crate) async fn copy_replications(
    (from, to): (&mut Server, &mut Server),
    name: &str,
    left: &mut UnmovedList,
) -> Result<Vec<String>, ImportError> {
    let database = format!("/{}", encode_segment(name));
    if to.find(&database).await?.is_none() {
        match to.put(&database, &json!({})).await {
            Ok(_) | Err(ImportError::Refused { status: 412, .. }) => {}
            Err(error) => return Err(error),
        }
    }
    copy_security((&mut *from, &mut *to), &database, name, left).await?;
    if let Err(error) = copy_setting(from, to, &format!("{database}/_revs_limit")).await {
        left.add(format!("{name}: _revs_limit: {error}"));
    }
    // A client that may not read them knows none, and then all owners stay.
    let admins = from.get(ADMINS).await.ok();
    let mut lines = Vec::new();
    let mut pages = Pages::of(ROWS);
    while let Some(query) = pages.query() {
        let path = format!("{database}/_all_docs?include_docs=true&{query}");
        let page = from.get(&path).await?;
        let rows = page["rows"].as_array().ok_or_else(|| ImportError::Answer(path.clone()))?;
        let ids: Vec<&str> = rows.iter().map(|row| row["id"].as_str().unwrap_or_default()).collect();
        let known = pages.note(&ids);
        let documents = rows.iter().skip(known).filter_map(|row| row.get("doc"));
        for document in documents.filter(|document| document.is_object()) {
            let id = document["_id"].as_str().unwrap_or_default();
            // Servers make it themselves.
            if id == "_design/_replicator" {
                continue;
            }
            let written = paused(document.clone(), admins.as_ref());
            let is_paused = written["_replication_state"] == PAUSED;
            let path = format!("{database}/{}", document_path(id));
            let what = format!("{name}: the replication {id:?}");
            let written = match with_attachments((&mut *from, &mut *to), &path, document, written).await {
                Ok(ReplicationCopy::Whole(written)) => written,
                Ok(ReplicationCopy::WithoutAttachments(written, bytes)) => {
                    left.add(format!("{what}: its attachments, which have {bytes} bytes"));
                    written
                }
                Ok(ReplicationCopy::Known) => continue,
                Err(error) => {
                    left.add(format!("{what}: its attachments: {error}"));
                    continue;
                }
            };
            match to.put(&path, &written).await {
                Ok(_) if is_paused => {
                    let (source, target) = (shown(&document["source"]), shown(&document["target"]));
                    let owner = other_owner(document, admins.as_ref());
                    let owner = owner.map(|owner| format!(" of {owner}")).unwrap_or_default();
                    let line = format!("{name}/{id}: {source} to {target}{owner}");
                    // Any user of the source chooses ids, and this is a terminal.
                    lines.push(line.replace(char::is_control, " "));
                }
                Ok(_) | Err(ImportError::Refused { status: 409, .. }) => {}
                Err(error) => left.add(format!("{what}: {error}")),
            }
        }
    }
    Ok(lines)
}

/// The copy of a document of a replicator database.
enum ReplicationCopy {
    Whole(Value),
    /// The document without its attachments, and their length in bytes, which is above the limit.
    WithoutAttachments(Value, u64),
    /// The target has the document.
    Known,
}

/// Adds the attachments of the source's `document` to `written`, the document for the target.
async fn with_attachments(
    (from, to): (&mut Server, &mut Server),
    path: &str,
    document: &Value,
    mut written: Value,
) -> Result<ReplicationCopy, ImportError> {
    let Some(stubs) = document["_attachments"].as_object() else { return Ok(ReplicationCopy::Whole(written)) };
    let lengths = stubs.values().filter_map(|stub| stub["length"].as_u64());
    let bytes = lengths.fold(0, u64::saturating_add);
    if bytes > ATTACHED_BYTES_MAX {
        return Ok(ReplicationCopy::WithoutAttachments(written, bytes));
    }
    if to.find(path).await?.is_some() {
        return Ok(ReplicationCopy::Known);
    }
    let wrong = || ImportError::Answer(path.to_owned());
    let rev = document["_rev"].as_str().ok_or_else(wrong)?;
    let found = from.get(&format!("{path}?attachments=true&rev={}", encode_segment(rev))).await?;
    let found = found["_attachments"].as_object().ok_or_else(wrong)?;
    let kept = |of: &Value| json!({ "content_type": of["content_type"], "data": of["data"] });
    written["_attachments"] = found.iter().map(|(name, of)| (name.clone(), kept(of))).collect::<Map<_, _>>().into();
    Ok(ReplicationCopy::Whole(written))
}

/// Returns an endpoint of a replication, without its secrets.
fn shown(endpoint: &Value) -> String {
    let text = endpoint.as_str().or_else(|| endpoint["url"].as_str()).unwrap_or_default();
    let shown = Some(shown_address(text)).filter(|shown| !shown.is_empty()).unwrap_or_else(|| "?".to_owned());
    shown.chars().take(300).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replications_are_paused_unless_they_ended() {
        let running = paused(
            json!({ "_id": "a", "_rev": "1-a", "owner": "x", "source": "s", "continuous": true,
            "_replication_state": "error", "_replication_id": "0a" }),
            Some(&json!({ "x": "-pbkdf2-" })),
        );
        assert_eq!(
            running,
            json!({ "_id": "a", "source": "s", "continuous": true, "_replication_state": "failed",
                "_replication_state_reason": PAUSED_REASON })
        );
        let ended = paused(json!({ "_id": "a", "_replication_state": "completed", "_replication_id": "0a" }), None);
        assert_eq!(ended["_replication_state"], "completed");
        let design = paused(json!({ "_id": "_design/x", "views": {} }), None);
        assert_eq!(design, json!({ "_id": "_design/x", "views": {} }));
    }

    #[test]
    fn a_users_replication_stays_one_of_the_user() {
        let document = json!({ "_id": "a", "owner": "bob", "owner_account": "1-a", "source": "s" });
        for admins in [None, Some(&json!({ "anna": "-pbkdf2-" }))] {
            let written = paused(document.clone(), admins);
            assert_eq!((&written["owner"], written.get("owner_account")), (&"bob".into(), None));
        }
        assert_eq!(paused(json!({ "_id": "a", "owner": null }), None).get("owner"), None);
    }

    #[test]
    fn passwords_are_not_shown() {
        assert_eq!(shown(&"https://a:s3cret@h:1/db".into()), "https://h:1/db");
        assert_eq!(shown(&json!({ "url": "http://a:p@ss@h/db", "headers": {} })), "http://h/db");
        assert_eq!(shown(&"a:s3cret@h/db".into()), "h/db");
        assert_eq!(shown(&json!({ "url": "http://h/db?password=s3cret&token=s3cret" })), "http://h/db");
        assert_eq!((shown(&"db".into()), shown(&Value::Null)), ("db".to_owned(), "?".to_owned()));
    }
}
