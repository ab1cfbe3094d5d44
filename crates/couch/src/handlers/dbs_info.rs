//! `_dbs_info`: figures of several databases.

use flatbed_http::{Pages, Reply, Sender, spawn};
use flatbed_layer::json::{self, Limits, Object, Value};
use flatbed_service::{Context, Read};
use hyper::{Method, StatusCode};

use crate::error::{Failure, Result};
use crate::handlers::bulk::json_body;
use crate::handlers::database::info_text;
use crate::handlers::server::names_of;
use crate::reply::Interrupted;
use crate::request::Request;
use crate::state::State;

pub(crate) async fn dbs_info(state: &State, mut request: Request) -> Result<Reply> {
    if request.method == Method::POST {
        let body = json_body(&mut request).await?;
        let asked = json::parse(&body.bytes, &Limits::default()).map_err(|_| Failure::invalid_json())?;
        let names = keys_of(&asked, state.service.configuration().now().limits.dbs_info)?;
        request.context.databases().await?;
        let mut text = b"[".to_vec();
        for (at, name) in names.iter().enumerate() {
            if at > 0 {
                text.push(b',');
            }
            write_row(name, row(&request.context, name).await, &mut text);
        }
        text.push(b']');
        return Ok(Reply::json(StatusCode::OK, text));
    }
    request.skip_body().await;
    let names = names_of(&request).await?;
    let (reply, mut sender) = Reply::stream();
    spawn(async move {
        let pages = Pages::new(false);
        let Ok(_room) = sender.page_room(&pages).await else { return };
        if rows(&request.context, &names, &mut sender).await.is_ok() {
            let _ = sender.finish().await;
        }
    });
    Ok(reply)
}

fn keys_of<'b>(asked: &'b Value<'_>, most: usize) -> Result<Vec<&'b str>> {
    if !matches!(asked, Value::Object(_)) {
        return Err(Failure::bad_request("Request body must be a JSON object"));
    }
    match asked.get("keys") {
        None => Err(Failure::bad_request("`keys` member must exist.")),
        Some(Value::Array(keys)) if keys.len() > most => Err(Failure::bad_request("too_many_keys")),
        // A key that is no string names no database.
        Some(Value::Array(keys)) => Ok(keys.iter().map(|key| key.as_str().unwrap_or_default()).collect()),
        Some(_) => Err(Failure::bad_request("`keys` member must be an array.")),
    }
}

async fn row(context: &Context, name: &str) -> Result<Vec<u8>> {
    Ok(info_text(name, &context.database(name, Read).await?.info().await?))
}

/// Writes a row. Like CouchDB, reports every failure as `not_found`.
fn write_row(name: &str, found: Result<Vec<u8>>, out: &mut Vec<u8>) {
    let mut object = Object::new(out);
    object.string("key", name);
    match found {
        Ok(info) => object.raw("info", &info),
        Err(_) => object.string("error", "not_found"),
    };
    object.end();
}

async fn rows(context: &Context, names: &[String], sender: &mut Sender) -> std::result::Result<(), Interrupted> {
    sender.buffer.push(b'[');
    let mut is_first = true;
    for name in names {
        let found = sender.unless_gone(row(context, name)).await?;
        // Skips databases that were deleted meanwhile or that the client may not read.
        let Ok(found) = found else { continue };
        if !std::mem::take(&mut is_first) {
            sender.buffer.push(b',');
        }
        write_row(name, Ok(found), &mut sender.buffer);
        sender.send_if_full().await?;
    }
    sender.buffer.extend_from_slice(b"]\n");
    Ok(())
}
