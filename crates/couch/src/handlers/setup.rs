//! Endpoints that CouchDB's setup tools call: `_membership`, `_cluster_setup`, `_reshard`.

use flatbed_http::{Reply, ReplyBody};
use flatbed_layer::json::{Object, Value};
use flatbed_layer::{CreateOptions, Error, REPLICATOR, USERS};
use flatbed_replicator::NODE;
use flatbed_service::{Own, Read};
use hyper::{Method, StatusCode, header};

use crate::error::{Failure, Result};
use crate::handlers::bulk::{json_body, object};
use crate::handlers::node::failure;
use crate::path::Reshard;
use crate::reply::ok;
use crate::request::Request;

/// The databases that a setup creates by default.
const SYSTEM_DATABASES: [&str; 2] = [USERS, REPLICATOR];

/// The largest number of databases in one setup.
const DATABASES_MAX: usize = 100;

pub(crate) async fn membership(mut request: Request) -> Result<Reply> {
    request.skip_body().await;
    request.context.server().await?;
    Ok(Reply::object(StatusCode::OK, |object| {
        object.array("all_nodes").string(NODE);
        object.array("cluster_nodes").string(NODE);
    }))
}

/// Handles `/_cluster_setup` as a single node, whatever the number of processes.
pub(crate) async fn cluster_setup(mut request: Request) -> Result<Reply> {
    if request.method == Method::POST {
        let body = json_body(&mut request).await?;
        return set_up(&request, &object(&body.bytes)?).await;
    }
    let value = request.query.json(&["ensure_dbs_exist"])?;
    let databases = databases_of(value.as_ref())?;
    let state = if are_there(&request, &databases).await? { "single_node_enabled" } else { "single_node_disabled" };
    Ok(Reply::object(StatusCode::OK, |object| {
        object.string("state", state);
    }))
}

async fn set_up(request: &Request, setup: &Value<'_>) -> Result<Reply> {
    let text = |name: &str| setup.get(name).and_then(Value::as_str);
    let databases = databases_of(setup.get("ensure_dbs_exist"))?;
    match text("action") {
        Some("enable_single_node") => {
            make(request, &databases).await?;
            // Last, because an anonymous client has no rights once an administrator exists.
            if let (Some(name), Some(password)) = (text("username"), text("password_hash").or(text("password"))) {
                let server = request.context.server().await?;
                let is_there = server.configuration().now().admins.contains_key(name);
                if !is_there {
                    let set = server.set("admins", name, password, request.peer).await;
                    set.map_err(|error| failure("admins", name, error))?;
                }
            }
        }
        Some("finish_cluster") => {
            if are_there(request, &databases).await? {
                return Err(Failure::bad_request("Cluster is already finished"));
            }
            make(request, &databases).await?;
        }
        Some("enable_cluster" | "add_node" | "remove_node" | "receive_cookie") => {
            let reason = "there are no nodes to join: all processes on one storage are one server";
            return Err(Failure::bad_request(reason));
        }
        _ => return Err(Failure::bad_request("Invalid Action'")),
    }
    Ok(ok(StatusCode::CREATED))
}

fn databases_of(value: Option<&Value<'_>>) -> Result<Vec<String>> {
    let names = match value {
        None | Some(Value::Null) => return Ok(SYSTEM_DATABASES.map(str::to_owned).into()),
        Some(Value::Array(names)) if names.len() <= DATABASES_MAX => names,
        Some(_) => return Err(Failure::bad_request("`ensure_dbs_exist` must be an array of names")),
    };
    let name = |name: &Value<'_>| name.as_str().map(str::to_owned);
    let names: Option<Vec<String>> = names.iter().map(name).collect();
    names.ok_or_else(|| Failure::bad_request("`ensure_dbs_exist` must be an array of names"))
}

async fn are_there(request: &Request, databases: &[String]) -> Result<bool> {
    for name in databases {
        match request.context.database(name, Read).await?.exists().await {
            Ok(()) => {}
            Err(Error::DatabaseNotFound) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

async fn make(request: &Request, databases: &[String]) -> Result<()> {
    for name in databases {
        match request.context.database(name, Own).await?.create(&CreateOptions::default()).await {
            Ok(()) | Err(Error::DatabaseExists) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Handles `/_reshard`. The storage splits data by itself, so there are no jobs.
pub(crate) async fn reshard(mut request: Request, what: Reshard) -> Result<Reply> {
    request.skip_body().await;
    request.context.server().await?;
    if what == Reshard::Job {
        return Err(Failure::not_found("missing"));
    }
    if !matches!(request.method, Method::GET | Method::HEAD) {
        return Err(Failure::not_implemented("Resharding"));
    }
    let reason = "FoundationDB places data itself";
    let text = Object::text(|object| match what {
        Reshard::Jobs => {
            object.array("jobs").end();
            object.number("offset", 0).number("total_rows", 0);
        }
        Reshard::State => {
            object.string("state", "stopped").string("reason", reason);
        }
        _ => {
            object.string("state", "stopped").string("state_reason", reason);
            for name in ["completed", "failed", "running", "stopped", "total"] {
                object.number(name, 0);
            }
        }
    });
    Ok(Reply::json(StatusCode::OK, text))
}

/// Answers `/favicon.ico` with an answer that browsers cache.
pub(crate) async fn favicon(mut request: Request) -> Result<Reply> {
    request.skip_body().await;
    let mut reply = Reply::json(StatusCode::NO_CONTENT, Vec::new());
    reply.body = ReplyBody::Full(None);
    reply.headers.remove(header::CONTENT_TYPE);
    reply.header(header::CACHE_CONTROL, "max-age=86400");
    Ok(reply)
}
