//! `_resync` re-runs the sync function on all documents; `_sync` runs it on a document without writing.

use std::sync::Arc;

use flatbed_channels::{Grant, GrantedItem, Grantee, ROLE_PREFIX};
use flatbed_documents::check_any_id;
use flatbed_http::Reply;
use flatbed_layer::channels::{ReadPrincipal, is_principal};
use flatbed_layer::json::Object;
use flatbed_layer::{Error as LayerError, Refusal, ResyncAction, ResyncState, Verdict};
use flatbed_service::{Administer, Administration};
use hyper::{Method, StatusCode};

use crate::body::edit_of;
use crate::error::{Failure, Result};
use crate::principals::must_have_channels;
use crate::reply::{self, json};
use crate::request::{Request, object};

/// The id of a document without one. `_sync` writes nothing, so it need not be unique.
const NO_ID: &str = "id";

/// Handles `_resync`: `GET` shows the progress, `POST` starts it (`action=start`, the default) or stops it
/// (`action=stop`). It runs in the background; with `exclusive=true` only administrators can use the database
/// meanwhile. A start after a stop resumes, or begins at the first document with `reset=true`.
pub(crate) async fn resync(mut request: Request, db: &str) -> Result<Reply> {
    let database = request.context.database(db, Administer).await?;
    request.skip_body().await;
    must_have_channels(&database).await?;
    if request.method == Method::POST {
        let is_exclusive = request.query.flag("exclusive");
        let action = match request.query.get("action") {
            None | Some("start") => ResyncAction::Start { is_exclusive, is_anew: request.query.flag("reset") },
            Some("stop") => ResyncAction::Stop,
            Some(_) => {
                return Err(Failure::bad_request("Unknown parameter for 'action'. Must be start or stop"));
            }
        };
        database.resync(action).await?;
    }
    state(&database).await
}

async fn state(database: &Administration) -> Result<Reply> {
    let state = database.resync_state().await?;
    Ok(reply::object(StatusCode::OK, |object| {
        let status = match &state {
            None => "completed",
            Some(ResyncState { is_stopped: true, .. }) => "stopped",
            Some(_) => "running",
        };
        object.string("status", status);
        if let Some(ResyncState { documents, changed, refused, begun_at_ms, is_exclusive, .. }) = state {
            if is_exclusive {
                object.bool("exclusive", true);
            }
            object.number("docs_processed", documents).number("docs_changed", changed);
            object.number("docs_refused", refused).number("begun_at_ms", begun_at_ms);
        }
    }))
}

/// Handles `_sync`: returns the channels, grants and expiry that the function would assign if an administrator (or
/// `user=NAME`) wrote the document, or its refusal as `exception`.
pub(crate) async fn dry_run(mut request: Request, db: &str) -> Result<Reply> {
    let database = request.context.database(db, Administer).await?;
    let asker = match request.query.get("user") {
        None => ReadPrincipal::All,
        Some(name) if is_principal(name) => ReadPrincipal::Principal(Arc::from(name)),
        Some(_) => return Err(Failure::not_found("missing")),
    };
    let body = request.json().await?;
    must_have_channels(&database).await?;
    // The function sees only the names of attachments, so they are not uploaded.
    let (mut edit, _) = edit_of(object(&body.bytes)?, None, true, request.context.clock())?;
    if edit.id.is_empty() {
        edit.id = NO_ID.into();
    }
    // The function does not run for ids with a leading underscore.
    if edit.id.starts_with('_') {
        return Err(Failure::bad_request("Invalid doc ID"));
    }
    check_any_id(&edit.id)?;
    let text = match database.route(&edit, &asker).await {
        Ok(verdict) => routed(&verdict),
        Err(LayerError::Refused(Refusal::Rejected { status, reason })) => refused(&format!("{status} {reason}")),
        Err(LayerError::Refused(Refusal::NotJudged { reason, .. })) => refused(&reason),
        Err(error) => return Err(error.into()),
    };
    Ok(json(StatusCode::OK, text))
}

fn refused(exception: &str) -> Vec<u8> {
    Object::text(|object| {
        object.string("exception", exception);
    })
}

fn routed(verdict: &Verdict) -> Vec<u8> {
    let to = |grantee: &Grantee| match grantee {
        Grantee::User(name) => name.clone(),
        Grantee::Role(name) => format!("{ROLE_PREFIX}{name}"),
    };
    // Grants are sorted by grantee.
    let given = |object: &mut Object<'_>, name: &'static str, what: &dyn Fn(&GrantedItem) -> Option<String>| {
        let mut grants = std::collections::BTreeMap::<String, Vec<String>>::new();
        for Grant { to: grantee, what: given } in &verdict.grants {
            if let Some(given) = what(given) {
                grants.entry(to(grantee)).or_default().push(given);
            }
        }
        let mut members = object.object(name);
        for (to, given) in &grants {
            members.array(to.as_str()).strings(given.iter().map(String::as_str));
        }
    };
    Object::text(|object| {
        object.array("channels").strings(verdict.channels.iter().map(String::as_str));
        given(object, "access", &|given| match given {
            GrantedItem::Channel(channel) => Some(channel.clone()),
            GrantedItem::Role(_) => None,
        });
        given(object, "roles", &|given| match given {
            GrantedItem::Role(role) => Some(format!("{ROLE_PREFIX}{role}")),
            GrantedItem::Channel(_) => None,
        });
        if let Some(at) = verdict.expires_at_ms {
            object.number("expires_at_ms", at);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts() {
        let grant = |to: Grantee, what: GrantedItem| Grant { to, what };
        let (alice, team) = (Grantee::User("alice".to_owned()), Grantee::Role("team".to_owned()));
        let verdict = Verdict {
            channels: ["A".to_owned()].into(),
            grants: [
                grant(alice.clone(), GrantedItem::Channel("B".to_owned())),
                grant(alice, GrantedItem::Role("team".to_owned())),
                grant(team, GrantedItem::Channel("C".to_owned())),
            ]
            .into(),
            expires_at_ms: Some(5_000),
            writer: None,
        };
        let text = String::from_utf8(routed(&verdict)).unwrap();
        let wanted = concat!(
            r#"{"channels":["A"],"access":{"alice":["B"],"role:team":["C"]},"#,
            r#""roles":{"alice":["role:team"]},"expires_at_ms":5000}"#
        );
        assert_eq!(text, wanted);
        assert_eq!(refused("403 \"no\""), br#"{"exception":"403 \"no\""}"#);
    }
}
