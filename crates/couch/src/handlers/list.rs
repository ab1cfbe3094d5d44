//! `/{db}/_design/{ddoc}/_list/{list}/{view}`: a function turns a view's rows into an answer.
//!
//! The list sends itself a request for the view and reads the rows from the streamed answer. Refusals of the view are
//! passed on, and backpressure reaches from the client to the view. As in CouchDB, a single key in `keys` is looked up
//! like several, and rows for missing values have another form.

use std::sync::Arc;

use flatbed_http::{Reply, Sender, TenantReply, spawn};
use flatbed_javascript::{List, ListPart, Response};
use flatbed_layer::design_id;
use flatbed_layer::json::Object;
use flatbed_service::{AnswerError, Read};
use hyper::{HeaderMap, Method, StatusCode};

use crate::error::{Failure, Result};
use crate::handlers::answering::{function_body, invalid_path, object};
use crate::handlers::bulk;
use crate::handlers::rewrite::go_to;
use crate::query::encode;
use crate::reply::Interrupted;
use crate::request::Request;
use crate::request_object::FunctionBody;
use crate::response;
use crate::router::redispatch;
use crate::rows_text::{RowsText, TruncatedRows};
use crate::state::State;

pub(crate) async fn list(
    state: &Arc<State>,
    mut request: Request,
    name: &str,
    design: &str,
    rest: &[String],
) -> Result<TenantReply> {
    let is_head = request.method == Method::HEAD;
    // As in CouchDB, an `OPTIONS` that is no CORS preflight counts as `GET`.
    if !matches!(request.method, Method::GET | Method::HEAD | Method::POST | Method::OPTIONS) {
        return request.refuse(Failure::method("GET,POST,HEAD")).await;
    }
    let (list, of, view) = match rest {
        [list, view] => (list, design, view),
        [list, of, view] => (list, of.as_str(), view),
        _ => return Err(invalid_path(&mut request, "list_error").await),
    };
    let body = if request.method == Method::POST {
        let body = bulk::json_body(&mut request).await?;
        bulk::object(&body.bytes)?;
        Some(body)
    } else {
        request.skip_body().await;
        None
    };
    let database = request.context.database(name, Read).await?;
    let functions = request.context.design_functions(&database, design).await?;
    functions.find("lists", list).await?;
    let posted = body.as_ref().map_or_else(|| function_body(None), |body| FunctionBody::Json(&body.bytes));
    let object = object(state, &request, &database, None, posted).await?;
    let path = if view == "_all_docs" {
        format!("/{}/_all_docs", encode(name))
    } else {
        format!("/{}/{}/_view/{}", encode(name), design_id(&encode(of)), encode(view))
    };
    let path = match request.uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path,
    };
    go_to(&mut request, &path)?;
    request.is_of_list = true;
    match body {
        Some(body) => request.replace_body(body),
        None => request.method = Method::GET,
    }
    let target = state.parse_path(request.uri.path())?;
    let answer = redispatch(state, request, target).await?;
    if answer.status != StatusCode::OK {
        return Ok(TenantReply::new(answer, &HeaderMap::new()));
    }
    let mut rows = RowsText::new(answer.body);
    let head = rows.head().await.map_err(broken_off)?;
    let run = ListRun { list: functions.list(list, &head, &object), rows };
    drop((head, object, functions));
    run.begin(is_head).await
}

struct ListRun {
    list: List,
    rows: RowsText,
}

impl ListRun {
    /// Runs the function until it sends text. A failure before that is a complete answer.
    async fn begin(mut self, is_head: bool) -> Result<TenantReply> {
        let mut started = Response::default();
        let mut has_begun = false;
        let part = loop {
            let part = match self.list.next().await {
                Ok(part) => part,
                Err(error) => {
                    let failure = Failure::from(AnswerError::from(error));
                    return if has_begun { late(&failure, &started) } else { Err(failure) };
                }
            };
            if let Some(response) = &part.response {
                started = Response::parse(response).map_err(AnswerError::from)?;
            }
            if part.is_end || !part.text.is_empty() {
                break part;
            }
            self.feed(&part).await.map_err(broken_off)?;
            has_begun = true;
        };
        let (stream, mut sender) = Reply::stream();
        let reply = response::list(&started, stream.body)?;
        if !is_head {
            spawn(async move {
                if self.go_on(part, &mut sender).await.is_ok() {
                    let _ = sender.finish().await;
                }
            });
        }
        Ok(reply)
    }

    /// Sends the rest of the answer. As in CouchDB, a failing function ends the answer with its error text. A failing
    /// read of rows cuts the connection.
    async fn go_on(mut self, mut part: ListPart, sender: &mut Sender) -> std::result::Result<(), Interrupted> {
        loop {
            sender.write(part.text.as_bytes()).await?;
            if part.is_end {
                return Ok(());
            }
            sender.unless_gone(self.feed(&part)).await?.map_err(broken_off)?;
            part = match sender.unless_gone(self.list.next()).await? {
                Ok(part) => part,
                Err(error) => {
                    let text = error_text(&Failure::from(AnswerError::from(error)));
                    sender.write(&text).await?;
                    return Ok(());
                }
            };
        }
    }

    async fn feed(&mut self, part: &ListPart) -> std::result::Result<(), TruncatedRows> {
        if part.wants_rows {
            let page = self.rows.next_page().await?;
            self.list.feed(page);
        }
        Ok(())
    }
}

fn broken_off(_: TruncatedRows) -> Failure {
    Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", "the view's rows broke off")
}

/// Returns CouchDB's answer to a list that fails after it has read a row and before it has sent text.
fn late(failure: &Failure, started: &Response) -> Result<TenantReply> {
    let text = error_text(failure);
    let (stream, mut sender) = Reply::stream();
    let reply = response::failed_list(failure.status, started, stream.body)?;
    sender.buffer = text;
    spawn(async move {
        let _ = sender.finish().await;
    });
    Ok(reply)
}

/// Formats the error of a list as the last line of its answer.
fn error_text(failure: &Failure) -> Vec<u8> {
    let mut text = b"\n".to_vec();
    let mut object = Object::new(&mut text);
    object.number("code", failure.status.as_u16().into());
    object.string("error", &failure.error).string("reason", &failure.reason);
    object.end();
    text.push(b'\n');
    text
}
