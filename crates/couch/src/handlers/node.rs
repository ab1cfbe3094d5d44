//! `/_node/{node}`: settings that change at run time, and figures.

use std::collections::BTreeMap;

use flatbed_http::Reply;
use flatbed_layer::json::{self, Limits, Object, Value};
use flatbed_replicator::NODE;
use flatbed_service::configuration::{self, ChangeError, SettingError};
use hyper::header::HeaderName;
use hyper::{Method, StatusCode};

use crate::error::{Failure, Result};
use crate::handlers::stats;
use crate::path::Node;
use crate::reply::{ok, warn};
use crate::request::Request;
use crate::state::State;

/// The request header that says whether a change survives a restart, and applies to other processes.
const PERSIST: HeaderName = HeaderName::from_static("x-couch-persist");

pub(crate) async fn node(state: &State, mut request: Request, what: Node) -> Result<Reply> {
    if !matches!(what, Node::Key(..)) {
        request.skip_body().await;
    }
    match what {
        Node::Incomplete => Err(Failure::bad_request("Incomplete path to _node request")),
        Node::Other(node) => Err(Failure::not_found(format!("no such node: {node}"))),
        Node::Name => Ok(Reply::object(StatusCode::OK, |object| {
            object.string("name", NODE);
        })),
        Node::Config => {
            let is_unused = request.query.flag("unused")?;
            let now = request.context.server().await?.configuration().now();
            let shown = if is_unused { now.shown_unused() } else { now.shown() };
            Ok(Reply::object(StatusCode::OK, |object| {
                for (section, values) in &shown {
                    write_values(values, object.object(section.as_str()));
                }
            }))
        }
        Node::Reload => {
            request.context.server().await?.configuration().reload().await?;
            Ok(ok(StatusCode::OK))
        }
        Node::Section(section) => {
            let mut shown = request.context.server().await?.configuration().now().shown();
            let values = shown.remove(&section).unwrap_or_default();
            let mut text = Vec::new();
            write_values(&values, Object::new(&mut text));
            Ok(Reply::json(StatusCode::OK, text))
        }
        Node::Key(section, key) => config_key(request, &section, &key).await,
        Node::Stats(path) => {
            request.context.metrics().await?;
            stats::stats(state, &path)
        }
        Node::System => {
            request.context.metrics().await?;
            Ok(stats::system(state))
        }
        Node::Versions => {
            request.context.server().await?;
            Ok(Reply::object(StatusCode::OK, |object| {
                let mut collation = object.object("collation_driver");
                collation.string("name", "icu4x").string("collator_version", &flatbed_layer::collator_version());
                collation.end();
                object.object("javascript_engine").string("name", "quickjs");
            }))
        }
        Node::Restart => Err(Failure::not_implemented("_restart")),
        Node::Unknown => Err(Failure::not_found("no_db_file")),
    }
}

fn write_values(values: &BTreeMap<String, String>, mut object: Object<'_>) {
    for (key, text) in values {
        object.string(key.as_str(), text);
    }
    object.end();
}

async fn config_key(mut request: Request, section: &str, key: &str) -> Result<Reply> {
    // As in CouchDB, no body contains the request's address.
    let is_kept = request.headers.get(PERSIST).is_none_or(|persist| persist != "false");
    let mut warning = None;
    let old = match request.method {
        Method::PUT => {
            let body = request.read_body().await?;
            let value = json::parse(&body.bytes, &Limits::default()).map_err(|_| Failure::invalid_json())?;
            let Value::String(text) = value else { return Err(Failure::bad_request("a JSON string expected")) };
            let server = request.context.server().await?;
            let set = match is_kept {
                true => server.set(section, key, &text, request.peer).await,
                false => server.change_here(section, key, Some(&*text), request.peer).await,
            };
            let old = set.map_err(|error| failure(section, key, error))?;
            warning = configuration::warning(section, key, &text);
            warning = if is_kept { warning } else { warning.map(|text| text.replace("is stored", "is set")) };
            old
        }
        Method::DELETE => {
            request.skip_body().await;
            let server = request.context.server().await?;
            let removed = match is_kept {
                true => server.remove(section, key, request.peer).await,
                false => server.change_here(section, key, None, request.peer).await,
            };
            removed.map_err(|error| failure(section, key, error))?
        }
        _ => {
            request.skip_body().await;
            let now = request.context.server().await?.configuration().now();
            now.shown_value(section, key).ok_or_else(|| Failure::not_found("unknown_config_value"))?
        }
    };
    let mut text = Vec::new();
    json::write_string(&old, &mut text);
    let mut reply = Reply::json(StatusCode::OK, text);
    if let Some(warning) = warning {
        warn(&mut reply, &warning);
    }
    Ok(reply)
}

pub(crate) fn failure(section: &str, key: &str, error: ChangeError) -> Failure {
    let reason = format!("{section}/{key}: {error}");
    match error {
        ChangeError::Setting(SettingError::Unknown) => Failure::not_found("unknown_config_value"),
        ChangeError::Setting(SettingError::Wrong(_)) => Failure::bad_request(reason),
        ChangeError::Setting(SettingError::Form(_)) => Failure::bad_request(error.to_string()),
        ChangeError::Setting(SettingError::Closed) => {
            Failure::new(StatusCode::FORBIDDEN, "forbidden", error.to_string())
        }
        ChangeError::Setting(SettingError::OnlyAtStart) | ChangeError::LastAdmin | ChangeError::NotStored => {
            Failure::new(StatusCode::FORBIDDEN, "forbidden", reason)
        }
        ChangeError::Fixed { .. } => Failure::new(StatusCode::FORBIDDEN, "forbidden", error.to_string()),
        ChangeError::Layer(error) => error.into(),
    }
}
