//! Copies one database: its settings, its documents by replication, and its local documents.

use std::sync::Arc;
use std::time::Duration;

use flatbed_client::encode_segment;
use flatbed_layer::json::{self as exact, Limits, parse};
use flatbed_replicate::{Control, PeerAccess, Progress, Spec, replicate};
use hyper::Method;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::dump_format::document_path;
use crate::import::pages::Pages;
use crate::import::server::{ImportError, Place, Server};
use crate::import::state::UnmovedList;
use crate::import::unmoved;
use crate::import::verify::is_same;

/// The database of users.
pub(crate) const USERS: &str = "_users";

/// The name under which replications of an import have their checkpoints.
const SERVER: &str = "flatbed-import";

/// The interval of checkpoints in milliseconds: the most work that an interrupted import repeats.
const CHECKPOINT_MS: u64 = 5_000;

/// The most consecutive attempts without progress.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_secs(2);

/// The ids on one page of local documents.
const LOCALS: usize = 1_000;

/// Both servers and the ways to them.
#[derive(Clone)]
pub(crate) struct CopyRoute {
    pub from: Place,
    pub to: Place,
    pub access: PeerAccess,
}

/// The figures of a database of the source.
pub(crate) struct SourceInfo {
    pub documents: u64,
    is_partitioned: bool,
    has_channels: bool,
}

impl SourceInfo {
    pub(crate) fn read(info: &Value) -> SourceInfo {
        let count = |name: &str| info[name].as_u64().unwrap_or(0);
        SourceInfo {
            documents: count("doc_count").saturating_add(count("doc_del_count")),
            is_partitioned: info["props"]["partitioned"] == true,
            has_channels: info["props"]["channels"] == true,
        }
    }
}

/// Copies a database and returns what was not moved.
///
/// # Errors
/// [`ImportError`]. The documents copied before remain, and the next run resumes.
pub(crate) async fn copy(
    ways: &CopyRoute,
    name: &str,
    info: &SourceInfo,
    with_locals: bool,
    progress: Arc<Progress>,
) -> Result<UnmovedList, ImportError> {
    let (mut from, mut to) = (ways.from.open(), ways.to.open());
    let database = format!("/{}", encode_segment(name));
    let mut left = UnmovedList::default();
    create(&mut to, &database, name, info).await?;
    if info.has_channels {
        left.add(format!("{name}: its sync function, users and roles (import it from the administrators' port)"));
    }
    copy_security((&mut from, &mut to), &database, name, &mut left).await?;
    if let Err(error) = copy_setting(&mut from, &mut to, &format!("{database}/_revs_limit")).await {
        left.add(format!("{name}: _revs_limit: {error}"));
    }
    documents(ways, name, with_locals, progress, &mut left).await?;
    Ok(left)
}

/// Replicates the documents of a database that exists on both sides, and adds what was not moved.
pub(crate) async fn documents(
    ways: &CopyRoute,
    name: &str,
    with_locals: bool,
    progress: Arc<Progress>,
    left: &mut UnmovedList,
) -> Result<(), ImportError> {
    let (mut from, mut to) = (ways.from.open(), ways.to.open());
    let database = format!("/{}", encode_segment(name));
    let spec = Arc::new(spec(ways, name)?);
    let state_path = format!("{database}/_local/{SERVER}-{}", spec.id(SERVER));
    let state = to.find(&state_path).await?;
    // A run that was interrupted may have passed refused revisions without a note of them.
    let is_unsure = state.is_some_and(|state| state["complete"] != true || state["refused"] != 0);
    write_state(&mut to, &state_path, &ways.from, false, 0).await?;
    run(&spec, ways, &progress).await?;
    let mut refused = 0;
    if is_unsure || progress.stats().doc_write_failures > 0 {
        refused = unmoved::add_refused((&mut from, &mut to), &database, name, left).await?;
    }
    if with_locals {
        copy_locals((&mut from, &mut to), &database, &spec.id(SERVER), left).await?;
    }
    write_state(&mut to, &state_path, &ways.from, true, refused).await
}

/// Creates the database if it is missing.
async fn create(to: &mut Server, database: &str, name: &str, info: &SourceInfo) -> Result<(), ImportError> {
    if let Some(found) = to.find(database).await? {
        let is_partitioned = found["props"]["partitioned"] == true;
        if is_partitioned != info.is_partitioned {
            let kind = if is_partitioned { "is partitioned" } else { "is not partitioned" };
            return Err(ImportError::Database(format!("{name} exists and {kind}, unlike that of the source")));
        }
        return Ok(());
    }
    let query = if info.is_partitioned { "?partitioned=true" } else { "" };
    let body = if info.has_channels { "{\"channels\":true}" } else { "" };
    let path = format!("{database}{query}");
    match to.json(Method::PUT, &path, body).await {
        // An attempt whose answer was lost has created it.
        Ok(_) | Err(ImportError::Refused { status: 412, .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Copies a setting of a database, which has a path of its own, if it differs.
pub(crate) async fn copy_setting(from: &mut Server, to: &mut Server, path: &str) -> Result<(), ImportError> {
    let wanted = from.get_exact(path).await?;
    if !is_same(&to.get_exact(path).await?, &wanted) {
        to.put_exact(path, &wanted).await?;
    }
    Ok(())
}

/// Copies `_security`, before any document: the target must not show documents to more users than the source does.
///
/// # Errors
/// [`ImportError::Database`]: it could not be copied, so the documents must not be. `_users` is an exception where the
/// target fixes its `_security` and admits administrators of the server alone.
pub(crate) async fn copy_security(
    (from, to): (&mut Server, &mut Server),
    database: &str,
    name: &str,
    left: &mut UnmovedList,
) -> Result<(), ImportError> {
    let path = format!("{database}/_security");
    let Err(error) = copy_setting(from, to, &path).await else { return Ok(()) };
    if name == USERS && is_closed(&to.get(&path).await?) {
        left.add(format!("{name}: _security: {error}"));
        return Ok(());
    }
    Err(ImportError::Database(format!("not copied, because its _security could not be set: {error}")))
}

/// Returns whether a security object admits administrators of the server alone.
fn is_closed(security: &Value) -> bool {
    let is_empty = |list: &Value| list.is_null() || list.as_array().is_some_and(Vec::is_empty);
    let are_admins = |roles: &Value| roles.as_array().is_some_and(|roles| roles.iter().all(|role| role == "_admin"));
    let (members, admins) = (&security["members"], &security["admins"]);
    is_empty(&members["names"])
        && !is_empty(&members["roles"])
        && are_admins(&members["roles"])
        && is_empty(&admins["names"])
        && (is_empty(&admins["roles"]) || are_admins(&admins["roles"]))
}

fn spec(ways: &CopyRoute, name: &str) -> Result<Spec, ImportError> {
    let text = json!({
        "source": ways.from.endpoint(name),
        "target": ways.to.endpoint(name),
        "checkpoint_interval": CHECKPOINT_MS,
    })
    .to_string();
    let value = parse(text.as_bytes(), &Limits::default()).map_err(|error| ImportError::Database(error.to_string()))?;
    Ok(Spec::parse(&value)?)
}

/// Replicates, and resumes after failures that may pass.
async fn run(spec: &Arc<Spec>, ways: &CopyRoute, progress: &Arc<Progress>) -> Result<(), ImportError> {
    let (_never, stop) = watch::channel(false);
    let (mut tries, mut before) = (1, progress.stats());
    loop {
        let control = Control { progress: progress.clone(), stop: stop.clone(), fence: None };
        let error = match replicate(spec, SERVER, &ways.access, control).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        let now = progress.stats();
        tries = if now.docs_written > before.docs_written { 1 } else { tries + 1 };
        before = now;
        if !error.is_transient() || tries > TRIES {
            return Err(error.into());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn write_state(
    to: &mut Server,
    path: &str,
    from: &Place,
    is_complete: bool,
    refused: u64,
) -> Result<(), ImportError> {
    let mut state = json!({ "source": from.to_string(), "complete": is_complete, "refused": refused });
    // CouchDB asks for the revision of a local document that is replaced.
    if let Some(found) = to.find(path).await? {
        state["_rev"] = found["_rev"].clone();
    }
    to.put(path, &state).await.map(drop)
}

/// Returns whether a local document is kept by a server or by an import for itself.
fn is_internal(id: &str, replication: &str) -> bool {
    let name = id.strip_prefix("_local/").unwrap_or(id);
    name == replication || [SERVER, "shard-sync-", "purge-"].iter().any(|prefix| name.starts_with(prefix))
}

async fn copy_locals(
    (from, to): (&mut Server, &mut Server),
    database: &str,
    replication: &str,
    left: &mut UnmovedList,
) -> Result<(), ImportError> {
    let mut pages = Pages::of(LOCALS);
    while let Some(query) = pages.query() {
        let path = format!("{database}/_local_docs?{query}");
        let page = from.get(&path).await?;
        let rows = page["rows"].as_array().ok_or_else(|| ImportError::Answer(path.clone()))?;
        let ids: Vec<&str> = rows.iter().filter_map(|row| row["id"].as_str()).collect();
        let known = pages.note(&ids);
        for id in ids.iter().skip(known).filter(|id| !is_internal(id, replication)) {
            let path = format!("{database}/{}", document_path(id));
            if let Err(error) = copy_local(from, to, &path).await {
                left.add(format!("{id} of {}: {error}", database.trim_start_matches('/')));
            }
        }
    }
    Ok(())
}

async fn copy_local(from: &mut Server, to: &mut Server, path: &str) -> Result<(), ImportError> {
    let document = match from.get_exact(path).await {
        Err(ImportError::Refused { status: 404, .. }) => return Ok(()),
        found => found?,
    };
    let exact::Value::Object(mut members) = document else { return Err(ImportError::Answer(path.to_owned())) };
    members.retain(|(name, _)| name != "_rev");
    let found = match to.get_exact(path).await {
        Err(ImportError::Refused { status: 404, .. }) => None,
        found => Some(found?),
    };
    if let Some(exact::Value::Object(mut found)) = found {
        let rev = found.iter().position(|(name, _)| name == "_rev").map(|at| found.remove(at));
        if found == members {
            return Ok(());
        }
        members.extend(rev);
    }
    to.put_exact(path, &exact::Value::Object(members)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_local_documents_stay() {
        for id in ["_local/0a", "_local/flatbed-import-0b", "_local/shard-sync-x", "_local/purge-mem3-x"] {
            assert!(is_internal(id, "0a"), "{id}");
        }
        assert!(!is_internal("_local/0b", "0a") && !is_internal("_local/x/0a", "0a"));
    }

    #[test]
    fn closed_security_admits_administrators_alone() {
        let roles = json!({ "roles": ["_admin"] });
        assert!(is_closed(&json!({ "members": roles, "admins": roles })));
        assert!(is_closed(&json!({ "members": { "names": [], "roles": ["_admin"] } })));
        for members in [json!({}), json!({ "roles": [] }), json!({ "roles": ["_admin", "r"] })] {
            assert!(!is_closed(&json!({ "members": members, "admins": roles })), "{members}");
        }
        assert!(!is_closed(&json!({ "members": roles, "admins": { "names": ["anna"] } })) && !is_closed(&json!({})));
    }

    #[test]
    fn figures_of_the_source() {
        let info = SourceInfo::read(&json!({ "doc_count": 2, "doc_del_count": 3, "props": { "partitioned": true } }));
        assert_eq!((info.documents, info.is_partitioned, info.has_channels), (5, true, false));
        let older = SourceInfo::read(&json!({ "doc_count": 2 }));
        assert_eq!((older.documents, older.is_partitioned), (2, false));
    }
}
