//! `/_worker/_api`: the changes worker's jobs and their queue. The router admits server administrators only.

use std::sync::Arc;

use flatbed_dispatcher::{ApiError, Dispatcher, EntryOrder, Export, Filter, PageRequest, Refusal, StoreError};
use flatbed_http::{Reply, spawn};
use hyper::{Method, StatusCode, header};
use serde_json::Value;

use crate::error::{Failure, Result};
use crate::path::{QueuePath, WorkerApi};
use crate::query::{Query, is_true, parameters, text};
use crate::request::{Body, Request};
use crate::state::State;

parameters! {
    /// The parameters of the queue. Each route ignores those that it does not need.
    struct QueueParameters {
        since: Option<u64> = Query::number,
        until: Option<u64> = Query::number,
        job: Option<String> = text,
        reason: Option<String> = text,
        state: Option<String> = text,
        sort: EntryOrder = sort,
        limit: Option<u64> = Query::number,
        offset: Option<u64> = Query::number,
        /// True if a `DELETE` needs no filter.
        all: bool = is_true,
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Failure {
        let reason = error.to_string();
        match error {
            ApiError::Refused(Refusal::NoJob | Refusal::NoEntry) => Failure::not_found(reason),
            ApiError::Refused(Refusal::Bad(_)) => Failure::bad_request(reason),
            ApiError::Refused(Refusal::Conflict(_)) => Failure::new(StatusCode::CONFLICT, "conflict", reason),
            ApiError::Store(StoreError::Refused { status, error, reason }) => {
                let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                Failure::new(status, error, reason)
            }
            ApiError::Store(StoreError::Peer(_) | StoreError::Address(_)) => {
                Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason)
            }
            ApiError::Lease(_) => Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason),
            ApiError::Layer(error) => error.into(),
        }
    }
}

pub(crate) async fn worker(state: &State, mut request: Request, what: WorkerApi) -> Result<Reply> {
    let Some(dispatcher) = state.dispatcher.clone() else {
        return request.refuse(Failure::not_implemented("_worker")).await;
    };
    match what {
        WorkerApi::Jobs => answer(dispatcher.list_jobs().await?),
        WorkerApi::Job(id) if request.method == Method::POST && id == "test" => {
            let (body, _memory) = json_of(&mut request).await?;
            answer(dispatcher.test_mapping(&body).await?)
        }
        WorkerApi::Job(id) if request.method != Method::POST => answer(dispatcher.show_job(&id).await?),
        WorkerApi::Start(id) => {
            request.skip_body().await;
            answer(dispatcher.start_job(&id).await?)
        }
        WorkerApi::Stop(id) => {
            request.skip_body().await;
            answer(dispatcher.stop_job(&id).await?)
        }
        WorkerApi::Reset(id) => {
            let (body, _memory) = json_of(&mut request).await?;
            answer(dispatcher.reset_job(&id, &body).await?)
        }
        WorkerApi::Leases if request.method == Method::POST => {
            let (body, _memory) = json_of(&mut request).await?;
            answer(dispatcher.hold_leases(&body).await?)
        }
        WorkerApi::Leases => answer(dispatcher.list_leases(request.query.get("after")).await?),
        WorkerApi::Lease(id) => {
            request.skip_body().await;
            answer(dispatcher.forget_lease(&id).await?)
        }
        WorkerApi::TakeLease(id) => {
            let (body, _memory) = json_of(&mut request).await?;
            answer(dispatcher.take_lease(&id, &body).await?)
        }
        WorkerApi::HoldLease(id) => {
            let (body, _memory) = json_of(&mut request).await?;
            answer(dispatcher.hold_lease(&id, &body, false).await?)
        }
        WorkerApi::ReleaseLease(id) => {
            let (body, _memory) = json_of(&mut request).await?;
            answer(dispatcher.hold_lease(&id, &body, true).await?)
        }
        WorkerApi::Queue(queued) => queue(&dispatcher, request, queued).await,
        WorkerApi::Job(_) | WorkerApi::Unknown => request.refuse(Failure::not_found("missing")).await,
    }
}

async fn queue(dispatcher: &Arc<Dispatcher>, mut request: Request, what: QueuePath) -> Result<Reply> {
    let QueueParameters { since, until, job, reason, state, sort: order, limit, offset, all } =
        request.query.parameters()?;
    let filter = Filter { job, reason, state, since, until };
    let page = PageRequest { limit, offset: offset.unwrap_or(0), order };
    match what {
        QueuePath::List if request.method == Method::DELETE => {
            request.skip_body().await;
            if filter.is_empty() && !all {
                return Err(Failure::bad_request("Say which entries are to go, or all=true."));
            }
            answer(dispatcher.clear_entries(&filter).await?)
        }
        QueuePath::List => answer(dispatcher.list_entries(&filter, &page).await?),
        QueuePath::Count => answer(dispatcher.count_entries(&filter).await?),
        QueuePath::Stats => answer(dispatcher.entry_stats().await?),
        QueuePath::Explain => answer(dispatcher.explain_entries(&filter, &page).await?),
        QueuePath::Export => export(dispatcher, dispatcher.export_entries(filter)).await,
        QueuePath::Import => {
            let body = request.read_body().await?;
            let text = std::str::from_utf8(&body.bytes).map_err(|_| Failure::bad_request("The body is no UTF-8."))?;
            answer(dispatcher.import_entries(filter.job.as_deref(), text).await?)
        }
        QueuePath::Retry => {
            let (body, _memory) = json_of(&mut request).await?;
            let text = |name: &str| body.get(name).and_then(Value::as_str).map(str::to_owned);
            let number = |name: &str| body.get(name).and_then(Value::as_u64);
            let filter = Filter {
                job: text("job").or(filter.job),
                reason: text("reason").or(filter.reason),
                state: text("state").or(filter.state),
                since: number("since").or(filter.since),
                until: number("until").or(filter.until),
            };
            let per_second = number("per_second").or(request.query.number("per_second")?);
            let per_second = per_second.map(|number| u32::try_from(number).unwrap_or(u32::MAX).clamp(1, 1_000_000));
            let done = dispatcher.retry_entries(&filter, per_second).await?;
            Ok(Reply::json(StatusCode::ACCEPTED, done.to_string().into_bytes()))
        }
        QueuePath::RetryOne(id) => {
            request.skip_body().await;
            let (status, done) = dispatcher.retry_entry(&id, request.query.number("wait")?).await?;
            Ok(Reply::json(StatusCode::from_u16(status).unwrap_or(StatusCode::OK), done.to_string().into_bytes()))
        }
        QueuePath::One(id) => match request.method {
            Method::PUT => {
                let (body, _memory) = json_of(&mut request).await?;
                answer(dispatcher.edit_entry(&id, &body).await?)
            }
            Method::DELETE => {
                request.skip_body().await;
                answer(dispatcher.delete_entry(&id).await?)
            }
            _ => answer(dispatcher.show_entry(&id).await?),
        },
    }
}

fn answer(value: Value) -> Result<Reply> {
    Ok(Reply::json(StatusCode::OK, value.to_string().into_bytes()))
}

/// Parses the body as JSON; an empty body is an empty object. The memory reservation comes with it.
async fn json_of(request: &mut Request) -> Result<(Value, Body)> {
    if request.header(header::CONTENT_TYPE).is_some()
        && let Err(failure) = request.require_json()
    {
        return request.refuse(failure.into()).await;
    }
    let body = request.read_body().await?;
    if body.bytes.is_empty() {
        return Ok((Value::Object(Default::default()), body));
    }
    match serde_json::from_slice(&body.bytes) {
        Ok(value @ Value::Object(_)) => Ok((value, body)),
        Ok(_) => Err(Failure::bad_request("Request body must be a JSON object")),
        Err(_) => Err(Failure::invalid_json()),
    }
}

fn sort(query: &Query, name: &str) -> Result<EntryOrder> {
    match query.get(name) {
        None | Some("-time") => Ok(EntryOrder::Newest),
        Some("time") => Ok(EntryOrder::Oldest),
        Some(_) => Err(Failure::bad_request("`sort` is time or -time")),
    }
}

/// Streams the queue with one entry per line.
async fn export(dispatcher: &Arc<Dispatcher>, mut export: Export) -> Result<Reply> {
    let mut lines = dispatcher.next_lines(&mut export).await?;
    let (mut reply, mut sender) = Reply::stream();
    reply.header(header::CONTENT_TYPE, "application/x-ndjson");
    let dispatcher = dispatcher.clone();
    spawn(async move {
        while let Some(text) = lines.take() {
            if sender.write(&text).await.is_err() {
                return;
            }
            lines = match dispatcher.next_lines(&mut export).await {
                Ok(next) => next,
                Err(error) => {
                    // The answer is cut, so that a missing entry is noticed.
                    tracing::warn!(%error, "an export of the worker's queue broke off");
                    return;
                }
            };
        }
        let _ = sender.finish().await;
    });
    Ok(reply)
}
