//! `POST /_replicate`.

use flatbed_http::Reply;
use flatbed_layer::json::{Limits, Value, parse};
use flatbed_replicator::{Error, ReplicateRefusal, SPEC_BYTES_MAX, Spec};
use hyper::StatusCode;

use crate::error::{Failure, Result};
use crate::handlers::bulk::json_body;
use crate::request::Request;
use crate::state::State;

fn failure(error: &Error) -> Failure {
    let reason = error.to_string();
    let status = match error {
        Error::InvalidSpec(_) | Error::Url(..) => StatusCode::BAD_REQUEST,
        Error::DatabaseNotFound(_) => StatusCode::NOT_FOUND,
        Error::NoRoom(_) => StatusCode::SERVICE_UNAVAILABLE,
        Error::Unauthorized(_) | Error::Owner(_) | Error::OwnerGone | Error::OwnerUnknown => StatusCode::UNAUTHORIZED,
        Error::OutOfBounds(_) => StatusCode::FORBIDDEN,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    Failure::new(status, error.error_name(), reason)
}

fn not_done(error: ReplicateRefusal) -> Failure {
    let (status, word) = match error {
        ReplicateRefusal::NoRoom => (StatusCode::SERVICE_UNAVAILABLE, "service_unavailable"),
        ReplicateRefusal::Others => (StatusCode::UNAUTHORIZED, "unauthorized"),
        ReplicateRefusal::Missing => return Failure::not_found("missing"),
    };
    Failure::new(status, word, error.to_string())
}

pub(crate) async fn replicate(state: &State, mut request: Request) -> Result<Reply> {
    let body = json_body(&mut request).await?;
    if body.bytes.len() > SPEC_BYTES_MAX {
        let reason = format!("a replication's specification is longer than {SPEC_BYTES_MAX} bytes");
        return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", reason));
    }
    let value = parse(&body.bytes, &Limits::default()).map_err(|_| Failure::invalid_json())?;
    if !matches!(value, Value::Object(_)) {
        return Err(Failure::bad_request("Request body must be a JSON object"));
    }
    if value.get("cancel") == Some(&Value::Bool(true)) {
        let named = ["replication_id", "id", "_local_id"].iter().find_map(|name| value.get(name)?.as_str());
        let named = named.map(str::to_owned);
        let spec = if named.is_none() { Some(Spec::parse(&value).map_err(|error| failure(&error))?) } else { None };
        drop(value);
        drop(body);
        let standing = request.context.standing();
        let ended = match (named, spec) {
            (Some(id), _) => state.replicator.cancel(&id, standing).await,
            (None, Some(spec)) => state.replicator.cancel_like(spec, standing).await,
            (None, None) => Err(ReplicateRefusal::Missing),
        };
        return Ok(local_id(StatusCode::OK, &ended.map_err(not_done)?));
    }
    let spec = Spec::parse_with(&value, state.replicator.spec_defaults()).map_err(|error| failure(&error))?;
    drop(value);
    drop(body);
    let is_continuous = spec.continuous;
    let job = state.replicator.begin(spec, request.context.standing()).map_err(not_done)?;
    if is_continuous {
        return Ok(local_id(StatusCode::ACCEPTED, &job.id));
    }
    let outcome = job.ended().await.map_err(|error| failure(&error))?;
    Ok(Reply::object(StatusCode::OK, |object| {
        object.bool("ok", true);
        if outcome.no_changes {
            object.bool("no_changes", true);
        }
        object.members(&outcome.members);
    }))
}

fn local_id(status: StatusCode, id: &str) -> Reply {
    Reply::object(status, |object| {
        object.bool("ok", true).string("_local_id", id);
    })
}
