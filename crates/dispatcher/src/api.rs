//! The API of jobs, `/_worker/_api`, served by any process: commands are written into a job's document, and the state
//! of jobs comes from their leases.

use std::collections::HashMap;
use std::time::Duration;

use flatbed_flatten::json::{Limits, Value as Flat, parse};
use flatbed_layer::Error as LayerError;
use flatbed_worker::documents::{JOB, Order, OrderAction, ResetTo};
use flatbed_worker::mapping::Mapping;
use flatbed_worker::memory::Memory;
use flatbed_worker::rows::{Product, ROWS_BYTES_MAX, rows_json};
use flatbed_worker::script::{Scripts, product};
use serde_json::{Value, json};

use crate::Dispatcher;
use crate::board::{Board, JobDefinition};
use crate::scripts::check;
use crate::store::{StoreError, set};
use crate::work::JobReport;

/// The most documents on which a mapping is tested in one request.
const TRIED_MAX: usize = 100;

/// The timeout of such a request. A single call of a function may exceed it by its own limit.
const TRYING_MAX: Duration = Duration::from_secs(20);

/// The name under which the functions of tested mappings run.
const TRYING: &str = "/test";

/// The most pending orders of a job. Further ones are refused.
const ORDERS_MAX: usize = 100;

/// The reason why the API refuses a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The job does not exist.
    #[error("there is no such job")]
    NoJob,
    /// The entry does not exist.
    #[error("there is no such entry")]
    NoEntry,
    /// The request is malformed.
    #[error("{0}")]
    Bad(String),
    /// The request conflicts with the current state.
    #[error("{0}")]
    Conflict(&'static str),
}

/// An error of the API.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ApiError {
    /// The request is refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// An error of the database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An error of the leases.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// An error of the leases at another server.
    #[error("{0}")]
    Lease(String),
}

pub(crate) type Result<T> = std::result::Result<T, ApiError>;

pub(crate) fn new_id() -> String {
    let mut random = [0; 8];
    // Without randomness the time distinguishes ids.
    if getrandom::fill(&mut random).is_err() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        random = (now.as_nanos() as u64).to_be_bytes();
    }
    random.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

pub(crate) fn order(what: OrderAction) -> Order {
    Order {
        id: new_id(),
        what,
        to: None,
        entries: Vec::new(),
        reason: None,
        since: None,
        until: None,
        per_second: None,
    }
}

fn shown(id: &str, listed: &JobDefinition, told: Option<&JobReport>) -> Value {
    let mut row = json!({"id": id, "name": listed.name, "enabled": listed.is_enabled, "orders": listed.orders});
    let told = told.filter(|told| told.of == listed.fingerprint || listed.description.is_err());
    let state = match (&listed.description, listed.is_enabled, told) {
        (Err(_), ..) => "broken",
        (_, false, _) => "paused",
        (_, _, Some(told)) => told.state.as_str(),
        (_, _, None) => "waiting",
    };
    set(&mut row, "state", state);
    if let Err(reason) = &listed.description {
        set(&mut row, "reason", reason.as_str());
    }
    if let Ok(description) = &listed.description {
        let input = &description.input;
        set(&mut row, "source", input.url.as_deref().or(input.local.as_deref()));
        set(&mut row, "target", description.output.id().as_str());
    }
    let Some(told) = told else { return row };
    if let Some(halted) = told.halted.as_ref().filter(|_| listed.is_enabled) {
        set(&mut row, "halted", json!({"kind": halted.kind, "reason": halted.reason}));
    }
    let errors: Vec<Value> = told.errors.iter().map(|(at, error)| json!({"at": at, "error": error})).collect();
    let rows = told.is_lag_known.then_some(told.lag_rows);
    let figures = json!({
        "node": told.node, "epoch": told.epoch, "seq": told.seq,
        "lag": {"rows": rows, "seconds": told.lag_seconds}, "throughput": told.throughput,
        "delivered": told.delivered, "queued": told.queued, "replayed": told.replayed, "outages": told.outages,
        "attachments": told.attachments, "errors": errors, "updated_at": told.at,
    });
    if let (Some(row), Value::Object(figures)) = (row.as_object_mut(), figures) {
        row.extend(figures);
    }
    row
}

impl Dispatcher {
    /// Returns the states of running jobs: of this process as of now, of others as of some seconds ago.
    async fn reports(&self) -> Result<HashMap<String, JobReport>> {
        let mut told = HashMap::new();
        let mut after: Option<String> = None;
        loop {
            let page = self.home.page(after.as_deref()).await?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            for (id, lease) in page {
                let Some(id) = id.strip_prefix(JOB) else { continue };
                let Ok(mut said) = serde_json::from_slice::<JobReport>(&lease.state) else { continue };
                if lease.owner.is_empty() {
                    said.state = if said.halted.is_some() { "halted" } else { "waiting" }.to_owned();
                }
                told.insert(id.to_owned(), said);
            }
        }
        for job in self.followed() {
            if job.claim.is_ours() {
                told.insert(job.description.id.clone(), job.report());
            }
        }
        Ok(told)
    }

    async fn board(&self) -> Result<Board> {
        match Board::read(&self.store).await {
            Err(error) if error.status() == Some(404) => Ok(Board::default()),
            board => Ok(board?),
        }
    }

    /// Returns all jobs.
    pub async fn list_jobs(&self) -> Result<Value> {
        let (board, told) = (self.board().await?, self.reports().await?);
        let rows: Vec<Value> = board.jobs.iter().map(|(id, listed)| shown(id, listed, told.get(id))).collect();
        Ok(json!({"total_rows": rows.len(), "jobs": rows}))
    }

    /// Returns one job.
    pub async fn show_job(&self, id: &str) -> Result<Value> {
        let (board, told) = (self.board().await?, self.reports().await?);
        let listed = board.jobs.get(id).ok_or(Refusal::NoJob)?;
        Ok(shown(id, listed, told.get(id)))
    }

    /// Adds an order to a job's document, and sets whether the job is enabled.
    pub(crate) async fn give_order(&self, id: &str, order: &Order, is_enabled: Option<bool>) -> Result<()> {
        let value = serde_json::to_value(order).map_err(|error| Refusal::Bad(error.to_string()))?;
        let mut is_full = false;
        let change = |document: &mut Value| {
            if let Some(is_enabled) = is_enabled {
                set(document, "enabled", is_enabled);
            }
            if !document.get("orders").is_some_and(Value::is_array) {
                set(document, "orders", json!([]));
            }
            let Some(Value::Array(orders)) = document.get_mut("orders") else { return false };
            is_full = orders.len() >= ORDERS_MAX;
            orders.push(value.clone());
            !is_full
        };
        let found = self.store.update(&format!("{JOB}{id}"), change).await?;
        found.ok_or(Refusal::NoJob)?;
        if is_full {
            return Err(Refusal::Conflict("100 orders of this job are not done yet").into());
        }
        Ok(())
    }

    /// Starts a job, also after a halt.
    pub async fn start_job(&self, id: &str) -> Result<Value> {
        self.give_order(id, &order(OrderAction::Start), Some(true)).await?;
        Ok(json!({"ok": true}))
    }

    /// Pauses a job.
    pub async fn stop_job(&self, id: &str) -> Result<Value> {
        let change = |document: &mut Value| {
            let is_paused = document.get("enabled") == Some(&Value::Bool(false));
            set(document, "enabled", false);
            !is_paused
        };
        self.store.update(&format!("{JOB}{id}"), change).await?.ok_or(Refusal::NoJob)?;
        Ok(json!({"ok": true}))
    }

    /// Resets a job to another position; `body` has `to`: `beginning`, `now` or `as_is`.
    pub async fn reset_job(&self, id: &str, body: &Value) -> Result<Value> {
        let to: Option<ResetTo> = body.get("to").and_then(|to| serde_json::from_value(to.clone()).ok());
        let to = to.ok_or_else(|| Refusal::Bad("`to` must be beginning, now or as_is".to_owned()))?;
        self.give_order(id, &Order { to: Some(to), ..order(OrderAction::Reset) }, None).await?;
        Ok(json!({"ok": true}))
    }

    /// Returns the products of documents under a mapping: `body` has `mapping` (inline or a name) and `documents`.
    /// Writes nothing.
    pub async fn test_mapping(&self, body: &Value) -> Result<Value> {
        let bad = |reason: String| ApiError::Refused(Refusal::Bad(reason));
        let mapping = match body.get("mapping") {
            None | Some(Value::Null) => Mapping::identity(),
            Some(Value::String(name)) => {
                let board = self.board().await?;
                board.connections.mapping(name).cloned().ok_or_else(|| bad(format!("there is no mapping {name:?}")))?
            }
            Some(own) => Mapping::from_value(own.clone()).map_err(|error| bad(format!("the mapping: {error}")))?,
        };
        let documents = body.get("documents").and_then(Value::as_array);
        let documents = documents.ok_or_else(|| bad("`documents` must be an array of documents".to_owned()))?;
        if documents.len() > TRIED_MAX {
            return Err(bad(format!("at most {TRIED_MAX} documents are tried at once")));
        }
        let scripts = self.options.scripts.as_ref();
        if let Some(source) = mapping.function() {
            check(scripts, TRYING, source).await.map_err(|error| bad(error.to_string()))?;
        }
        let mut results = Vec::with_capacity(documents.len());
        let until = self.clock().now() + TRYING_MAX;
        for document in documents {
            if self.clock().now() >= until {
                return Err(bad("the mapping's function takes too long to be tried on so many documents".to_owned()));
            }
            results.push(tried(&mapping, scripts, &self.options.memory, document).await);
        }
        Ok(json!({"results": results}))
    }
}

async fn tried(mapping: &Mapping, scripts: Option<&Scripts>, memory: &Memory, document: &Value) -> Value {
    let text = document.to_string();
    let id = document.get("_id").cloned().unwrap_or(Value::Null);
    if !matches!(parse(text.as_bytes(), &Limits::default()), Ok(Flat::Object(_))) {
        return json!({"id": id, "error": "it is no JSON object, or too deep"});
    }
    let value = |text: &str| serde_json::from_str::<Value>(text).unwrap_or(Value::Null);
    match product(mapping, TRYING, scripts, memory, &text, ROWS_BYTES_MAX).await {
        Err(error) => json!({"id": id, "error": error.to_string()}),
        Ok(Err(error)) => json!({"id": id, "error": error.to_string()}),
        Ok(Ok(Product::Nothing)) => json!({"id": id, "matches": false}),
        Ok(Ok(Product::Json(text))) => json!({"id": id, "matches": true, "json": value(&text)}),
        Ok(Ok(Product::Rows(rows))) => {
            json!({"id": id, "matches": true, "tables": value(&rows_json(mapping.tables(), &rows))})
        }
    }
}
