//! The answers about the server and about a user's storage.

use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use flatbed_flatten::json::Object;
use flatbed_http::{Reply, Request};
use flatbed_syncstorage::{Info as CollectionInfo, Timestamp, Uid};
use hyper::StatusCode;
use hyper::header::HeaderValue;

use crate::condition::precondition;
use crate::error::Result;
use crate::path::Info;
use crate::place::url_of;
use crate::state::State;
use crate::{limits, reply};

/// The time after which a heartbeat stops waiting for the storage.
const HEARTBEAT_MAX: Duration = Duration::from_secs(5);

/// The unit of usage.
const KB: f64 = 1_024.0;

pub(crate) async fn info(state: &State, request: &Request, uid: Uid, what: Info) -> Result<Reply> {
    let condition = precondition(&request.headers)?;
    let store = &state.store;
    Ok(match what {
        Info::Collections => by_name(store.info_collections(uid, condition).await?, |time| time.to_string()),
        Info::Counts => by_name(store.collection_counts(uid, condition).await?, |count| count.to_string()),
        Info::Usage => by_name(store.collection_usage(uid, condition).await?, |bytes| kb(*bytes)),
        Info::Quota => {
            let quota = store.quota(uid, condition).await?;
            let limit = quota.limit_bytes.map_or_else(|| "null".to_owned(), kb);
            let text = format!("[{},{limit}]", kb(quota.used_bytes));
            reply::with_times(reply::json(text), Some(quota.modified), Some(quota.now))
        }
        Info::Configuration => configuration(state),
    })
}

fn kb(bytes: u64) -> String {
    format!("{:?}", bytes as f64 / KB)
}

/// Writes an object with a member for each collection. Collection names need no escapes.
fn by_name<T>(told: CollectionInfo<T>, text: impl Fn(&T) -> String) -> Reply {
    let mut body = String::from("{");
    for (index, (name, value)) in told.collections.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(body, "{comma}\"{name}\":{}", text(value));
    }
    body.push('}');
    let reply = reply::with_records(reply::json(body), told.collections.len());
    reply::with_times(reply, Some(told.modified), Some(told.now))
}

/// Returns the limits. Needs no signature.
pub(crate) fn configuration(state: &State) -> Reply {
    reply::with_times(reply::json(limits::text(state.store.limits())), Some(Timestamp::ZERO), None)
}

/// Returns a text for people: the setting to change in Firefox.
pub(crate) fn front(state: &State, request: &Request) -> Reply {
    let url = url_of(request, state.public_url(), state.mount(&request.uri)).unwrap_or_default();
    let text = if state.tokens.is_some() {
        format!("Firefox Sync by Flatbed. In about:config: identity.sync.tokenserver.uri = {url}/1.0/sync/1.5\n")
    } else {
        "Firefox Sync by Flatbed, without a token server.\n".to_owned()
    };
    reply::whole(StatusCode::OK, Some((HeaderValue::from_static("text/plain; charset=utf-8"), text.into())))
}

/// Returns whether the storage answers. Needs no signature.
pub(crate) async fn heartbeat(state: &State) -> Reply {
    let reason = match tokio::time::timeout(HEARTBEAT_MAX, state.store.ping()).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some("nothing came in time".to_owned()),
    };
    let is_up = reason.is_none();
    if let (Some(reason), Some(passed_over)) = (reason, state.failures.may_write()) {
        tracing::error!(reason, passed_over, "the storage does not answer");
    }
    let text = Object::text(|text| {
        text.string("version", &state.version)
            .string("status", if is_up { "Ok" } else { "Err" })
            .string("database", if is_up { "Ok" } else { "Err" });
        let mut quota = text.object("quota");
        let limit = state.store.limits().quota_bytes;
        quota.bool("enabled", limit.is_some()).number("size", limit.unwrap_or_default());
        quota.end();
    });
    let status = if is_up { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    reply::whole(status, Some((reply::JSON, Bytes::from(text))))
}

/// Returns whether this process answers. Mozilla's answer also describes its pool of database connections, which does
/// not exist here.
pub(crate) fn load_balancer_heartbeat() -> Reply {
    reply::json(Object::text(|text| {
        text.number("active_connections", 0).number("idle_connections", 0);
    }))
}

/// Returns the program's version.
pub(crate) fn version(state: &State) -> Reply {
    reply::json(Object::text(|text| {
        text.string("version", &state.version).string("source", "Flatbed").string("commit", "").string("build", "");
    }))
}
