//! The API of the queue of documents that targets refused, `/_worker/_api/dlq`.
//!
//! | path | function |
//! |---|---|
//! | `dlq` | lists without documents (`limit`, `offset`, `sort`, `reason`, `job`, `state`, `since`, `until`), in the order of the filter's index; `DELETE` with a filter or `all=true` |
//! | `dlq/count`, `dlq/stats`, `dlq/explain` | counts, a view of `_worker`, `_explain` |
//! | `dlq/{id}` | `GET`, `PUT` to edit, `DELETE` |
//! | `dlq/{id}/retry` | waits 10 s, or `wait`: 200 with `"state":"delivered"` or the failure; 202 if the job is paused, has halted, or did not reach it |
//! | `dlq/retry` | by filter, `per_second`: orders, and answers 202 |
//! | `dlq/export`, `dlq/import` | entries, one per line |

use std::time::Duration;

use flatbed_worker::documents::{Order, OrderAction};
use flatbed_worker::import::failed_line;
use flatbed_worker::queue::Entry;
use flatbed_worker::secret::Redactor;
use hyper::Method;
use serde_json::{Value, json};

use crate::Dispatcher;
use crate::api::{ApiError, Refusal, Result, order};
use crate::store::{Filter, set, text_of};

/// The default and the largest number of entries of a list.
const LIMIT: u64 = 25;
const LIMIT_MAX: u64 = 1_000;

const OFFSET_MAX: u64 = 100_000;

/// The most entries that are deleted or written in one request.
const AT_ONCE: u64 = 200;

/// The entries of a page of an export. Each has a document of up to 4 MB.
const EXPORTED: usize = 50;

/// The bytes of lines whose entries are written in one request.
const IMPORTED_BYTES: usize = 1 << 20;

/// The most malformed lines of an import that are reported.
const FAULTS_MAX: usize = 20;

const BEGIN: &str = "dlq:";
const END: &str = "dlq:~";

const LOOK: Duration = Duration::from_millis(50);

/// The default and the longest wait for a replay, in seconds.
const WAIT_SECONDS: u64 = 10;
const WAIT_SECONDS_MAX: u64 = 60;

/// The members of an entry in a list: all except the document.
const MEMBERS: [&str; 18] = [
    "_id",
    "type",
    "job",
    "doc_id_original",
    "rev",
    "seq",
    "method",
    "status",
    "reason",
    "class",
    "error",
    "target_url",
    "attempts",
    "replay_attempts",
    "time",
    "last_time",
    "state",
    "edited",
];

/// The order of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EntryOrder {
    /// Newest first.
    #[default]
    Newest,
    /// Oldest first.
    Oldest,
}

/// The requested part of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PageRequest {
    /// The most entries.
    pub limit: Option<u64>,
    /// The number of entries to skip.
    pub offset: u64,
    /// The order.
    pub order: EntryOrder,
}

fn request(filter: &Filter, page: &PageRequest) -> Value {
    let limit = page.limit.unwrap_or(LIMIT).min(LIMIT_MAX);
    let mut asked = filter.find(&MEMBERS, limit);
    set(&mut asked, "skip", page.offset.min(OFFSET_MAX));
    if page.order == EntryOrder::Newest {
        for by in asked.get_mut("sort").and_then(Value::as_array_mut).into_iter().flatten() {
            for (_, order) in by.as_object_mut().into_iter().flatten() {
                *order = "desc".into();
            }
        }
    }
    asked
}

/// Returns an entry with `id` instead of CouchDB's members.
fn shown(mut document: Value) -> Value {
    let id = text_of(&document, "_id").to_owned();
    if let Some(members) = document.as_object_mut() {
        members.retain(|name, _| !name.starts_with('_'));
        members.insert("id".to_owned(), id.into());
        members.entry("state").or_insert_with(|| "waiting".into());
    }
    document
}

/// A paged export of the entries of a filter.
#[derive(Debug, Clone)]
pub struct Export {
    filter: Filter,
    from: Option<(String, bool)>,
}

impl Dispatcher {
    /// Lists entries without their documents.
    pub async fn list_entries(&self, filter: &Filter, page: &PageRequest) -> Result<Value> {
        let answer = self.store.call(Method::POST, "/_find", Some(&request(filter, page))).await?;
        let documents = answer.get("docs").and_then(Value::as_array).cloned().unwrap_or_default();
        let entries: Vec<Value> = documents.into_iter().map(shown).collect();
        Ok(json!({"offset": page.offset, "entries": entries}))
    }

    /// Explains the query of [`Dispatcher::list_entries`].
    pub async fn explain_entries(&self, filter: &Filter, page: &PageRequest) -> Result<Value> {
        Ok(self.store.call(Method::POST, "/_explain", Some(&request(filter, page))).await?)
    }

    /// Counts entries.
    pub async fn count_entries(&self, filter: &Filter) -> Result<Value> {
        let (selector, index, _) = filter.selector();
        let asked = json!({"selector": selector, "use_index": index});
        let answer = self.store.call(Method::POST, "/_count", Some(&asked)).await?;
        Ok(json!({"count": answer.get("count").and_then(Value::as_u64).unwrap_or(0)}))
    }

    /// Counts entries by job, reason and state.
    pub async fn entry_stats(&self) -> Result<Value> {
        let path = "/_design/flatbed_queue_figures/_view/figures?group=true&limit=10000";
        let answer = self.store.call(Method::GET, path, None).await?;
        let mut total = 0;
        let (mut jobs, mut reasons, mut states) = (json!({}), json!({}), json!({}));
        let mut groups = Vec::new();
        for row in answer.get("rows").and_then(Value::as_array).into_iter().flatten() {
            let count = row.get("value").and_then(Value::as_u64).unwrap_or(0);
            let at = |place: usize| {
                row.get("key").and_then(|key| key.get(place)).and_then(Value::as_str).unwrap_or_default()
            };
            total += count;
            for (sums, name) in [(&mut jobs, at(0)), (&mut reasons, at(1)), (&mut states, at(2))] {
                let sum = sums.get(name).and_then(Value::as_u64).unwrap_or(0) + count;
                set(sums, name, sum);
            }
            groups.push(json!({"job": at(0), "reason": at(1), "state": at(2), "count": count}));
        }
        Ok(json!({"total": total, "jobs": jobs, "reasons": reasons, "states": states, "groups": groups}))
    }

    /// Returns an entry with its document.
    pub async fn show_entry(&self, id: &str) -> Result<Value> {
        Ok(shown(self.entry(id).await?))
    }

    async fn entry(&self, id: &str) -> Result<Value> {
        let found = if id.starts_with(BEGIN) { self.store.get(id).await? } else { None };
        Ok(found.ok_or(Refusal::NoEntry)?)
    }

    /// Replaces the document that a replay of an entry sends: `body` has `doc`, or `doc_data` as text.
    pub async fn edit_entry(&self, id: &str, body: &Value) -> Result<Value> {
        let bad = |reason: &str| ApiError::Refused(Refusal::Bad(reason.to_owned()));
        let text = match (body.get("doc"), body.get("doc_data")) {
            (Some(document @ Value::Object(_)), _) => document.to_string(),
            (None, Some(Value::String(text))) => text.clone(),
            _ => return Err(bad("`doc` must be a document, or `doc_data` one as text")),
        };
        let parsed: std::result::Result<Value, _> = serde_json::from_str(&text);
        let document = parsed.ok().filter(Value::is_object).ok_or_else(|| bad("the document is no JSON object"))?;
        let current = self.entry(id).await?;
        if document.get("_id").is_some_and(|id| id.as_str() != Some(text_of(&current, "doc_id_original"))) {
            return Err(bad("the document's `_id` is another one"));
        }
        let change = |current: &mut Value| {
            let rev = text_of(current, "_rev").to_owned();
            let mut members = current.clone();
            if let Some(members) = members.as_object_mut() {
                members.retain(|name, _| !name.starts_with('_'));
            }
            let Ok(mut entry) = serde_json::from_value::<Entry>(members) else { return false };
            entry.edit(text.clone());
            let Ok(mut written) = serde_json::to_value(entry) else { return false };
            set(&mut written, "_rev", rev);
            *current = written;
            true
        };
        self.store.update(id, change).await?.ok_or(Refusal::NoEntry)?;
        Ok(json!({"ok": true}))
    }

    /// Deletes an entry.
    pub async fn delete_entry(&self, id: &str) -> Result<Value> {
        let current = self.entry(id).await?;
        self.store.delete(id, text_of(&current, "_rev")).await?;
        Ok(json!({"ok": true}))
    }

    /// Orders the replay of an entry and waits for its outcome. Returns the status too: 200, or 202 if no outcome is
    /// known yet.
    pub async fn retry_entry(&self, id: &str, wait_seconds: Option<u64>) -> Result<(u16, Value)> {
        let before = self.entry(id).await?;
        let job = text_of(&before, "job").to_owned();
        if job.is_empty() {
            return Err(Refusal::Conflict("the entry is of no job: import it into one").into());
        }
        let order = Order { entries: vec![id.to_owned()], ..order(OrderAction::Replay) };
        self.give_order(&job, &order, None).await?;
        let wait = Duration::from_secs(wait_seconds.unwrap_or(WAIT_SECONDS).min(WAIT_SECONDS_MAX));
        let begun = self.clock().now();
        loop {
            let Some(now) = self.store.get(id).await? else {
                return Ok((200, json!({"ok": true, "state": "delivered"})));
            };
            if text_of(&now, "_rev") != text_of(&before, "_rev") {
                let now = shown(now);
                let of = |name: &str| now.get(name).cloned().unwrap_or(Value::Null);
                let answer = json!({"ok": false, "state": of("state"), "reason": of("reason"), "error": of("error")});
                return Ok((200, answer));
            }
            if self.clock().since(begun) >= wait {
                return Ok((202, json!({"ok": true, "state": "ordered"})));
            }
            self.clock().sleep(LOOK).await;
        }
    }

    /// Orders the replay of all matching entries, at most `per_second`, with one order per job.
    pub async fn retry_entries(&self, filter: &Filter, per_second: Option<u32>) -> Result<Value> {
        if filter.state.as_deref().is_some_and(|state| state != "waiting") {
            return Err(Refusal::Bad("only entries that wait are replayed together".to_owned()).into());
        }
        let stats = self.entry_stats().await?;
        let with_entries = stats.get("jobs").and_then(Value::as_object).cloned().unwrap_or_default();
        let jobs: Vec<String> = match &filter.job {
            Some(job) => vec![job.clone()],
            None => with_entries.keys().filter(|job| !job.is_empty()).cloned().collect(),
        };
        let mut ordered = Vec::new();
        for job in jobs {
            let (reason, since, until) = (filter.reason.clone(), filter.since, filter.until);
            let order = Order { reason, since, until, per_second, ..order(OrderAction::Replay) };
            match self.give_order(&job, &order, None).await {
                Ok(()) => ordered.push(job),
                // The job is gone, and its entries remain undelivered.
                Err(ApiError::Refused(Refusal::NoJob)) if filter.job.is_none() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(json!({"ok": true, "jobs": ordered}))
    }

    /// Deletes all matching entries.
    pub async fn clear_entries(&self, filter: &Filter) -> Result<Value> {
        let (mut deleted, mut bookmark) = (0, None::<String>);
        loop {
            let mut asked = filter.find(&["_id", "_rev"], AT_ONCE);
            if let Some(bookmark) = &bookmark {
                set(&mut asked, "bookmark", bookmark.as_str());
            }
            let answer = self.store.call(Method::POST, "/_find", Some(&asked)).await?;
            let count = answer.get("docs").and_then(Value::as_array).map_or(0, Vec::len) as u64;
            deleted += self.store.delete_found(&answer).await?;
            if count < AT_ONCE {
                return Ok(json!({"ok": true, "deleted": deleted}));
            }
            bookmark = Some(text_of(&answer, "bookmark").to_owned());
        }
    }

    /// Begins an export.
    pub fn export_entries(&self, filter: Filter) -> Export {
        Export { filter, from: Some((BEGIN.to_owned(), false)) }
    }

    /// Returns the next lines of an export, one entry each; `None` at its end.
    pub async fn next_lines(&self, export: &mut Export) -> Result<Option<Vec<u8>>> {
        let Some(from) = export.from.take() else { return Ok(None) };
        let mut lines = Vec::new();
        let filter = export.filter.clone();
        let mut take = |document: Value| {
            let entry = shown(document);
            let is = |name: &str, wanted: &Option<String>| {
                wanted.as_deref().is_none_or(|wanted| text_of(&entry, name) == wanted)
            };
            let time = entry.get("time").and_then(Value::as_u64).unwrap_or(0);
            let is_in =
                filter.since.is_none_or(|since| since <= time) && filter.until.is_none_or(|until| time <= until);
            if is("job", &filter.job) && is("reason", &filter.reason) && is("state", &filter.state) && is_in {
                lines.extend_from_slice(entry.to_string().as_bytes());
                lines.push(b'\n');
            }
        };
        let next = self.store.page(&from, END, EXPORTED, &mut take).await?;
        export.from = next.map(|last| (last, true));
        Ok(Some(lines))
    }

    /// Imports entries, one per line: Flatbed's, or the Python worker's for the job with this id. Existing entries stay
    /// unchanged.
    ///
    /// # Errors
    /// [`ApiError`]; the answer lists malformed lines.
    pub async fn import_entries(&self, job: Option<&str>, lines: &str) -> Result<Value> {
        let (mut imported, mut there, mut refused, mut faults) = (0_u64, 0_u64, 0_u64, Vec::new());
        let mut fault = |fault: Value| {
            refused += 1;
            if faults.len() < FAULTS_MAX {
                faults.push(fault);
            }
        };
        let (mut batch, mut bytes) = (Vec::<Value>::new(), 0);
        let mut all = lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        loop {
            let next = all.next();
            if let Some((at, line)) = next {
                match entry_of(job, line) {
                    Ok(document) => {
                        bytes += line.len();
                        batch.push(document);
                    }
                    Err(reason) => fault(json!({"line": at + 1, "reason": reason})),
                }
            }
            let is_full = batch.len() as u64 >= AT_ONCE || bytes >= IMPORTED_BYTES;
            if is_full || next.is_none() && !batch.is_empty() {
                bytes = 0;
                let asked = json!({"docs": std::mem::take(&mut batch)});
                let done = self.store.call(Method::POST, "/_bulk_docs", Some(&asked)).await?;
                for row in done.as_array().into_iter().flatten() {
                    match (row.get("ok"), text_of(row, "error")) {
                        (Some(_), _) => imported += 1,
                        (None, "conflict") => there += 1,
                        (None, _) => fault(json!({"id": row.get("id"), "reason": row.get("reason")})),
                    }
                }
            }
            if next.is_none() {
                break;
            }
        }
        Ok(json!({"ok": refused == 0, "imported": imported, "there": there, "refused": refused, "faults": faults}))
    }
}

fn entry_of(job: Option<&str>, line: &str) -> std::result::Result<Value, String> {
    let value: Value = serde_json::from_str(line).map_err(|_| "it is no JSON".to_owned())?;
    let entry = if text_of(&value, "type") == "dlq" {
        let mut value = value;
        if let Some(members) = value.as_object_mut() {
            members.retain(|name, _| !name.starts_with('_') && name != "id");
        }
        let mut entry: Entry = serde_json::from_value(value).map_err(|error| error.to_string())?;
        if let Some(job) = job {
            entry.job = job.to_owned();
        }
        entry
    } else {
        let job = job.ok_or("`job` must say whose the entries are")?;
        failed_line(job, line, &Redactor::default()).ok_or("it is no entry")?
    };
    let mut document = serde_json::to_value(&entry).map_err(|error| error.to_string())?;
    set(&mut document, "_id", entry.id());
    Ok(document)
}
