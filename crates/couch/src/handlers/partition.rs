//! `/{db}/_partition/{partition}` and the endpoints beneath it.

use std::sync::Arc;

use flatbed_http::Reply;
use flatbed_layer::{Reader, check_partition, check_partitioned_id};
use flatbed_service::Read;
use hyper::{Method, StatusCode};

use crate::error::{Failure, Result};
use crate::handlers::mango;
use crate::handlers::rewrite::go_to;
use crate::path::{DesignCall, DocumentListing, Endpoint, InDatabase};
use crate::query::encode;
use crate::request::Request;
use crate::router::redispatch;
use crate::state::State;

/// Handles a partition's paths. `of`: the endpoint beneath it, or `None` for its figures.
pub(crate) async fn partition(
    state: &Arc<State>,
    mut request: Request,
    name: &str,
    partition: Option<String>,
    of: Option<InDatabase>,
) -> Result<Reply> {
    let refused = match (&partition, &of) {
        (None, _) => Some(Failure::bad_request("invalid_partition_req")),
        (Some(partition), None) if !matches!(request.method, Method::GET | Method::HEAD) => {
            let is_named_wrongly = request.method == Method::POST && partition.starts_with('_');
            let refusal = check_partition(partition).err().filter(|_| is_named_wrongly);
            Some(refusal.map_or_else(|| Failure::method("GET"), Failure::from))
        }
        _ => None,
    };
    if let Some(failure) = refused {
        return request.refuse(failure).await;
    }
    let partition = partition.unwrap_or_default();
    let Some(of) = of else { return info(&request, name, &partition).await };
    let allowed = check(&request, name, &partition).await;
    request.skip_if_refused(allowed).await?;
    // Other endpoints are dispatched again, and then their methods are checked.
    if let (InDatabase::Mango(_), Some(failure)) = (&of, of.methods().refusal(&request.method)) {
        return request.refuse(failure).await;
    }
    match of {
        InDatabase::Mango(what) => Box::pin(mango::mango(state, request, name, what, Some(partition))).await,
        InDatabase::Endpoint(Endpoint::AllDocs) => {
            within(state, request, &partition, &format!("/{}/_all_docs", encode(name))).await
        }
        InDatabase::Queries(DocumentListing::All) => {
            within(state, request, &partition, &format!("/{}/_all_docs/queries", encode(name))).await
        }
        // A rewrite may lead here again, so the dispatcher runs it in its loop.
        InDatabase::DesignCall { kind: DesignCall::Rewrite, .. } => request.refuse(Failure::not_found("missing")).await,
        InDatabase::View { .. } | InDatabase::DesignInfo { .. } | InDatabase::DesignCall { .. } => {
            let parts: Vec<&str> = request.uri.path().split('/').filter(|part| !part.is_empty()).skip(3).collect();
            let path = parts.join("/");
            within(state, request, &partition, &format!("/{}/{path}", encode(name))).await
        }
        // CouchDB also has full-text search within a partition.
        InDatabase::Later(what @ ("_search" | "_nouveau"), _) => request.refuse(Failure::not_implemented(what)).await,
        _ => request.refuse(Failure::not_found("missing")).await,
    }
}

/// Returns the first document id without a partition. Ids with a leading underscore need none, because CouchDB finds
/// their shards by the whole id.
pub(crate) fn without_partition<'i>(mut ids: impl Iterator<Item = &'i str>) -> Option<&'i str> {
    ids.find(|id| !id.contains(':') && !id.starts_with('_'))
}

/// Refuses a whole request if [`without_partition`] found an `id` and the database is partitioned, as CouchDB does when
/// it looks up the id's shard.
pub(crate) async fn refuse_in_partitioned(database: &Reader, id: Option<&str>) -> Result<()> {
    match id {
        Some(id) if database.is_partitioned_known() != Some(false) && database.is_partitioned().await? => {
            Ok(check_partitioned_id(id)?)
        }
        _ => Ok(()),
    }
}

/// Returns 400 if the database is not partitioned.
pub(crate) async fn has_some(database: &Reader) -> Result<()> {
    match database.is_partitioned().await? {
        true => Ok(()),
        false => Err(Failure::query("`partition` parameter is not supported on this db")),
    }
}

async fn check(request: &Request, name: &str, partition: &str) -> Result<()> {
    if !request.context.database(name, Read).await?.is_partitioned().await? {
        return Err(not_partitioned());
    }
    check_partition(partition)?;
    match request.query.get("partition") {
        Some(other) if other != partition => {
            Err(Failure::bad_request("Conflicting value for `partition` in query string"))
        }
        _ => Ok(()),
    }
}

/// Forwards the request to the path without the partition, which becomes a parameter, as in CouchDB.
async fn within(state: &Arc<State>, mut request: Request, partition: &str, path: &str) -> Result<Reply> {
    let query = request.uri.query().map_or_else(String::new, |query| format!("{query}&"));
    let parameter = if request.query.get("partition").is_some() { String::new() } else { encode(partition) };
    let path =
        if parameter.is_empty() { format!("{path}?{query}") } else { format!("{path}?{query}partition={parameter}") };
    go_to(&mut request, &path)?;
    let target = state.parse_path(request.uri.path())?;
    redispatch(state, request, target).await
}

async fn info(request: &Request, name: &str, partition: &str) -> Result<Reply> {
    check_partition(partition)?;
    let info =
        request.context.database(name, Read).await?.partition_info(partition).await?.ok_or_else(not_partitioned)?;
    Ok(Reply::object(StatusCode::OK, |object| {
        object.string("db_name", name);
        object.object("sizes").number("active", info.active_size_bytes).number("external", info.external_size_bytes);
        object.string("partition", partition).number("doc_count", info.doc_count);
        object.number("doc_del_count", info.doc_del_count);
    }))
}

fn not_partitioned() -> Failure {
    Failure::bad_request("database is not partitioned")
}
