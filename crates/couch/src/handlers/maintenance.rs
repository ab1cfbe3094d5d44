//! Maintenance of a database: `_purge`, `_compact`, `_security`, `_revs_limit` and index information.

use flatbed_auth::security::Security;
use flatbed_auth::users;
use flatbed_http::Reply;
use flatbed_layer::json::{self, Limits, Object, Value};
use flatbed_layer::{RevId, USERS, collator_version, design_id};
use flatbed_service::{Administer, Maintain, Purge, Read, SECURITY_DEFAULT};
use hyper::{Method, StatusCode};

use crate::error::{Failure, Result};
use crate::handlers::bulk::{json_body, object};
use crate::handlers::partition::{refuse_in_partitioned, without_partition};
use crate::json_out;
use crate::reply::ok;
use crate::request::Request;
use crate::state::State;

/// The largest number of documents in one `_purge`, as in CouchDB.
const PURGES_MAX: usize = 100;

/// The largest number of revisions in one `_purge`, as in CouchDB.
const PURGED_REVISIONS_MAX: usize = 1_000;

pub(crate) async fn purge(mut request: Request, name: &str) -> Result<Reply> {
    let body = json_body(&mut request).await?;
    let Value::Object(members) = object(&body.bytes)? else { return Err(Failure::invalid_json()) };
    let invalid = || Failure::bad_request("Invalid list of revisions");
    let invalid_rev = || Failure::bad_request("Invalid rev format");
    let mut wanted: Vec<(String, Vec<RevId>)> = Vec::with_capacity(members.len());
    for (id, revs) in members {
        let Value::Array(revs) = revs else { return Err(invalid()) };
        let parsed = |rev: &Value<'_>| rev.as_str().unwrap_or_default().parse::<RevId>().map_err(|_| invalid_rev());
        wanted.push((id.into_owned(), revs.iter().map(parsed).collect::<Result<_>>()?));
    }
    if wanted.len() > PURGES_MAX {
        return Err(Failure::bad_request(format!("Exceeded maximum number of documents: {PURGES_MAX}")));
    }
    if wanted.iter().map(|(_, revs)| revs.len()).sum::<usize>() > PURGED_REVISIONS_MAX {
        return Err(Failure::bad_request(format!("Exceeded maximum number of revisions: {PURGED_REVISIONS_MAX}")));
    }
    let database = request.context.database(name, Purge).await?;
    database.exists().await?;
    refuse_in_partitioned(&database, without_partition(wanted.iter().map(|(id, _)| id.as_str()))).await?;
    let mut out = Vec::new();
    let mut answer = Object::new(&mut out);
    let mut purged = answer.null("purge_seq").object("purged");
    for (id, revs) in &wanted {
        json_out::revs(&database.purge(id, revs).await?, purged.place(id.as_str()));
    }
    purged.end();
    answer.end();
    Ok(Reply::json(StatusCode::CREATED, out))
}

pub(crate) async fn purged_infos_limit(mut request: Request, name: &str) -> Result<Reply> {
    if request.method != Method::PUT {
        let limit = request.context.database(name, Purge).await?.purged_infos_limit().await?;
        return Ok(Reply::json(StatusCode::OK, limit.to_string().into_bytes()));
    }
    let body = request.read_body().await?;
    let text = std::str::from_utf8(&body.bytes).unwrap_or_default().trim();
    let invalid = || Failure::bad_request("`purged_infos_limit` must be a positive integer.");
    request.context.database(name, Purge).await?.set_purged_infos_limit(text.parse().map_err(|_| invalid())?).await?;
    Ok(ok(StatusCode::OK))
}

pub(crate) async fn compact(mut request: Request, name: &str) -> Result<Reply> {
    json_body(&mut request).await?;
    request.context.database(name, Maintain).await?.compact().await?;
    Ok(ok(StatusCode::ACCEPTED))
}

pub(crate) async fn compact_views(mut request: Request, name: &str, design: &str) -> Result<Reply> {
    json_body(&mut request).await?;
    request.context.database(name, Maintain).await?.view_info(&design_id(design)).await?;
    // Indexes keep no garbage that a compaction could free.
    Ok(ok(StatusCode::ACCEPTED))
}

pub(crate) async fn view_cleanup(mut request: Request, name: &str) -> Result<Reply> {
    request.skip_body().await;
    request.context.database(name, Maintain).await?.view_cleanup().await?;
    Ok(ok(StatusCode::ACCEPTED))
}

pub(crate) async fn view_info(request: Request, name: &str, design: &str) -> Result<Reply> {
    let info = request.context.database(name, Read).await?.view_info(&design_id(design)).await?;
    Ok(Reply::object(StatusCode::OK, |object| {
        let mut index = object.string("name", design).object("view_index");
        let mut pending = index.object("updates_pending");
        pending.number("minimum", info.pending).number("preferred", info.pending).number("total", info.pending);
        pending.end();
        index.bool("waiting_commit", false).number("waiting_clients", info.waiting_clients);
        index.bool("updater_running", info.updater_running);
        // CouchDB's is a number, and typed clients expect one. It grows, but no feed can resume from it.
        index.number("update_seq", info.update_seq.map_or(0, |seq| seq.version()));
        let mut sizes = index.object("sizes");
        sizes.number("file", info.file_bytes).number("external", info.external_bytes);
        sizes.number("active", info.file_bytes);
        sizes.end();
        index.string("signature", &info.signature).number("purge_seq", info.purge_seq);
        index.string("language", &info.language).bool("compact_running", false);
        index.array("collator_versions").string(&collator_version());
        // CouchDB has no such limit, so the member is absent by default.
        if info.documents_refused > 0 {
            index.number("documents_refused", info.documents_refused);
        }
        if info.set_aside.count > 0 {
            let mut set_aside = index.object("set_aside");
            let mut documents = set_aside.number("count", info.set_aside.count).array("documents");
            for (id, reason) in &info.set_aside.documents {
                documents.object().string("id", id).string("reason", reason);
            }
            documents.end();
            set_aside.end();
        }
        index.end();
    }))
}

pub(crate) async fn security(state: &State, mut request: Request, name: &str) -> Result<Reply> {
    if request.method != Method::PUT {
        let security = request.context.database(name, Read).await?.security().await?;
        return Ok(Reply::json(StatusCode::OK, security.unwrap_or_else(|| SECURITY_DEFAULT.to_vec())));
    }
    let body = request.read_body().await?;
    let value = json::parse(&body.bytes, &Limits::default()).map_err(|_| Failure::invalid_json())?;
    Security::parse(&value)?;
    if name == USERS {
        // Applies to server administrators, too.
        users::security_editable(state.service.configuration().now().auth.users_db_security_editable)?;
    }
    request.context.database(name, Administer).await?.set_security(&json::to_vec(&value)).await?;
    Ok(ok(StatusCode::OK))
}
