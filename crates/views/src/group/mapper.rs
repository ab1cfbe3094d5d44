//! Maps documents outside of any transaction, in parts whose rows fit the memory budget.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use flatbed_clock::{Clock, LINE_EVERY, LineDecision};
use flatbed_databases::document::edit::Document;
use flatbed_databases::document::text;
use flatbed_databases::limits::Limit;
use flatbed_databases::size_limit::{self, Growth};
use flatbed_revtree::DocumentId;
use flatbed_store::error::{Error, Refusal, Result, ViewFailure};
use flatbed_store::view_functions::{EmittedRows, FunctionFailure, MapOutcome};

use crate::group::job::Job;
use crate::view::prepare::{EmittedDocument, PreparedDocument, prepare};
use crate::view_updates::memory::MemoryPermit;
use crate::view_updates::{GroupState, LoggedFailure, RUN_DOCUMENTS_MAX, views};

/// The number of consecutive documents that exceed a bound after which the functions count as broken. A time limit
/// counts three times, as it has kept a processor busy for all of that time.
const BREACHES_MAX: Limit<usize> = Limit::new(9, 4);

/// The longest stored reason for setting a document aside, in characters.
const REASON_CHARACTERS: usize = 200;

/// A document whose JSON trees may take more bytes than this is prepared alone: a process prepares one such document at
/// a time.
const LARGE_JSON_BYTES: usize = 16 << 20;

#[derive(Debug)]
pub struct DocumentToMap {
    pub id: String,
    /// `None`: the document is deleted or gone, and has no rows.
    pub document: Option<Document>,
}

pub struct MappedPart {
    /// The mapped documents, at least one unless the list was empty.
    pub documents: Vec<PreparedDocument>,
    /// The remaining documents. The caller maps them after it has written `documents`.
    pub rest: Vec<DocumentToMap>,
    pub permit: MemoryPermit,
    pub waited: Duration,
}

fn is_mapped(job: &Job, id: &str) -> bool {
    job.definition().options.include_design || !DocumentId::of(id).is_design()
}

struct Batch {
    texts: Vec<Vec<u8>>,
    inputs: Vec<MapInput>,
}

/// The input of the functions for a document.
enum MapInput {
    Text,
    /// The functions are not called: the document has no rows.
    NoRows,
    /// The functions are not called: they exceeded a bound on this revision recently.
    SetAside(FunctionFailure),
}

impl Batch {
    /// Takes documents from the front until the batch has `texts_max` texts.
    fn of(job: &Job, documents: &mut [DocumentToMap], texts_max: usize) -> Batch {
        let mut batch = Batch { texts: Vec::new(), inputs: Vec::new() };
        for DocumentToMap { id, document } in documents {
            let document = document.as_mut().filter(|document| !document.deleted && is_mapped(job, id));
            let Some(document) = document else {
                batch.inputs.push(MapInput::NoRows);
                continue;
            };
            if let Some(failure) = job.state.runaways.failure(id, &document.rev) {
                batch.inputs.push(MapInput::SetAside(failure));
                continue;
            }
            batch.inputs.push(MapInput::Text);
            if !job.definition().options.local_seq {
                document.local_seq = None;
            }
            let mut out = Vec::new();
            text::document(document, &mut out);
            batch.texts.push(out);
            if batch.texts.len() >= texts_max {
                break;
            }
        }
        batch
    }
}

/// Maps documents in order, at least one, until their rows reach the size of a part. If no thread is free for the
/// functions of a later document, or they cannot be run, the documents before it are a part, and the next call fails.
///
/// A function that throws loses the document's rows in its view. A document on which the functions exceed a bound of
/// time or memory is retried once, behind the turns of other databases. If they exceed it again, the document is set
/// aside: it has no rows in any view. Both cases are counted, and logged at most once a minute per view.
///
/// Each time a bound is exceeded costs seconds of processor time, so several in succession fail the mapping (see
/// [`BREACHES_MAX`]). The group remembers these documents, so the next attempt does not map them and gets further.
///
/// Waits for memory if the budget is exhausted. While it waits, the caller must not hold another part that only the
/// caller drops.
///
/// # Errors
/// [`Error::View`]: the database is full; the group's functions cannot be run, ended the whole query, or exceed their
/// bounds on every document. [`Error::ShuttingDown`]: the group is gone, or the process stops.
pub async fn map(job: &Job, mut documents: Vec<DocumentToMap>) -> Result<MappedPart> {
    // Updates that only remove rows continue in a full database.
    if documents.iter().any(|document| document.document.is_some()) {
        match size_limit::check(&job.reader.inner, &job.reader.name, Growth::Reserve).await {
            Err(Error::Refused(Refusal::DatabaseFull { bytes_max })) => {
                return Err(ViewFailure::DatabaseFull { bytes_max }.into());
            }
            checked => checked?,
        }
    }
    let memory = &views(&job.reader.inner).rows_memory;
    let part_bytes = memory.part_bytes();
    let mut permit = memory.permit(job.id.0);
    let (mut prepared, mut held): (Vec<PreparedDocument>, usize) = (Vec::with_capacity(documents.len()), 0);
    // The number of times that the rows of the next document were dropped for lack of memory, and whether they exceed a
    // part.
    let (mut dropped, mut is_alone) = (0, false);
    let mut waited = Duration::ZERO;
    while prepared.len() < documents.len() {
        let goes_alone = is_alone || documents.get(prepared.len()).is_some_and(|next| is_tried(job, next));
        let most = if goes_alone { 1 } else { job.state.mapped_at_once.load(Ordering::Relaxed) };
        let Batch { texts, inputs } = Batch::of(job, documents.get_mut(prepared.len()..).unwrap_or_default(), most);
        let asked = texts.len();
        let MapOutcome { documents: answers, stopped, logs } = match asked {
            0 => MapOutcome::default(),
            _ => match job.functions.map(texts).await {
                Ok(mapped) => mapped,
                // Prepared documents are written first.
                Err(_) if !prepared.is_empty() => break,
                Err(failure) => return Err(failure.into()),
            },
        };
        for line in logs {
            tracing::info!(database = &*job.reader.name, design_document = job.design, line, "a map logs");
        }
        if asked > 0 && answers.is_empty() && stopped.is_none() {
            return Err(Error::Corrupt("documents were mapped without an answer".to_owned()));
        }
        if !answers.is_empty() {
            job.breaches.store(0, Ordering::Relaxed);
        }
        let (held_before, mut entered, mut lacks_memory) = (held, 0, None);
        let mut answers = answers.into_iter();
        for input in inputs {
            let Some(document) = documents.get(prepared.len()) else { break };
            let mut emitted = no_rows(job, document);
            let is_mapped = matches!(input, MapInput::Text);
            match input {
                MapInput::Text => {
                    let Some(views) = answers.next() else { break };
                    record_emitted(job, &mut emitted, views);
                }
                MapInput::SetAside(failure) => emitted.set_aside = Some(reason_of(&failure)),
                MapInput::NoRows => {}
            }
            let needed = held + emitted.memory_bytes();
            if held > 0 && needed > part_bytes || !permit.try_grow(needed) {
                lacks_memory = Some(needed);
                break;
            }
            if is_mapped {
                job.state.runaways.forget(&document.id);
                entered += 1;
            }
            let document = prepare_document(job, emitted, &mut waited).await?;
            held += document.memory_bytes();
            prepared.push(document);
        }
        drop(answers);
        job.reader.inner.metrics.view_documents_mapped.add(entered as u64);
        adapt_batch_size(job, entered, held - held_before, part_bytes, lacks_memory.is_some());
        if let Some(needed) = lacks_memory {
            if held > 0 {
                break;
            }
            (dropped, is_alone) = (dropped + 1, needed > part_bytes);
            drop(permit);
            // A document that emits more each time gets the whole share the second time. An oversized permit grows
            // without limit.
            let least = if dropped > 1 { memory.oversized_bytes_min() } else { part_bytes };
            let (acquired, time) = job.wait(memory.acquire(job.id.0, needed.max(least))).await?;
            permit = acquired;
            waited += time;
            continue;
        }
        match stopped {
            // The documents behind it are mapped nevertheless.
            Some(failure @ (FunctionFailure::TimedOut(_) | FunctionFailure::OutOfResources(_))) => {
                let Some(next) = documents.get(prepared.len()) else { return Err(failure.into()) };
                if let Some(document) = &next.document
                    && !job.state.runaways.record(&next.id, &document.rev, &failure)
                {
                    continue;
                }
                report_set_aside(job, &next.id, &failure);
                let emitted = EmittedDocument { set_aside: Some(reason_of(&failure)), ..no_rows(job, next) };
                prepared.push(prepare_document(job, emitted, &mut waited).await?);
                job.reader.inner.metrics.view_documents_mapped.add(1);
                let more = if matches!(failure, FunctionFailure::TimedOut(_)) { 3 } else { 1 };
                if job.breaches.fetch_add(more, Ordering::Relaxed) + more >= BREACHES_MAX.get() {
                    return Err(failure.into());
                }
                if !job.is_wanted().await? {
                    return Err(Error::ShuttingDown);
                }
            }
            Some(_) if !prepared.is_empty() => break,
            Some(failure) => return Err(failure.into()),
            None => {}
        }
        if is_alone || held > part_bytes / 2 {
            break;
        }
    }
    let rest = documents.split_off(prepared.len());
    permit.shrink(held);
    Ok(MappedPart { documents: prepared, rest, permit, waited })
}

fn no_rows(job: &Job, DocumentToMap { id, document }: &DocumentToMap) -> EmittedDocument {
    let ends_at_ms = document.as_ref().and_then(|document| document.ends_at_ms).unwrap_or(0);
    let trees = vec![EmittedRows::default(); job.definition().trees.len()];
    EmittedDocument { id: id.clone(), trees, is_too_much: false, ends_at_ms, set_aside: None }
}

fn reason_of(failure: &FunctionFailure) -> String {
    failure.to_string().chars().take(REASON_CHARACTERS).collect()
}

/// Returns whether functions exceeded a bound on a document that is still to be retried.
fn is_tried(job: &Job, DocumentToMap { id, document }: &DocumentToMap) -> bool {
    document.as_ref().is_some_and(|document| job.state.runaways.is_tried(id, &document.rev))
}

fn report_set_aside(job: &Job, id: &str, failure: &FunctionFailure) {
    job.reader.inner.metrics.view_documents_failed.add(1);
    let Some(left_out) = job.state.lines.line(LoggedFailure::SetAside) else { return };
    let (database, design_document) = (&*job.reader.name, &*job.design);
    tracing::warn!(
        database,
        design_document,
        document = id,
        %failure,
        left_out,
        "functions exceeded a bound on a document, which is set aside and in no view"
    );
}

fn record_emitted(
    job: &Job,
    emitted: &mut EmittedDocument,
    views: Vec<std::result::Result<EmittedRows, FunctionFailure>>,
) {
    for (tree, (rows, place)) in views.into_iter().zip(&mut emitted.trees).enumerate() {
        match rows {
            Ok(rows) => *place = rows,
            Err(FunctionFailure::TooMuch(_)) => emitted.is_too_much = true,
            Err(failure) => fail(job, &emitted.id, tree, &failure),
        }
    }
}

/// Sets how many documents the next call maps, after a call of which `documents` were used, with `bytes` of rows.
/// `is_cut`: the rows of further ones did not fit.
fn adapt_batch_size(job: &Job, documents: usize, bytes: usize, part_bytes: usize, is_cut: bool) {
    let at_once = &job.state.mapped_at_once;
    let now = at_once.load(Ordering::Relaxed);
    let next = match is_cut {
        true if documents > 0 => documents,
        true => (now / 2).max(1),
        false if bytes <= part_bytes / 4 => now.saturating_mul(2).min(RUN_DOCUMENTS_MAX),
        false => now,
    };
    at_once.store(next, Ordering::Relaxed);
}

fn fail(job: &Job, id: &str, tree: usize, failure: &FunctionFailure) {
    job.reader.inner.metrics.view_documents_failed.add(1);
    // A map that fails on one document often fails on many: the lines are limited.
    let paced = job.state.lines.pace(LoggedFailure::Map(tree));
    let view = || job.definition().trees.get(tree).map(|tree| tree.view.as_str()).unwrap_or_default();
    match paced {
        LineDecision::Write(left_out) => {
            let (database, design_document, view) = (&*job.reader.name, &*job.design, view());
            tracing::info!(
                database,
                design_document,
                view,
                document = id,
                %failure,
                left_out,
                "a map failed on a document"
            );
        }
        LineDecision::OmitFirst => {
            tokio::spawn(sum_up(job.clock().clone(), Arc::downgrade(&job.state), tree, MapName::of(job, view())));
        }
        LineDecision::Omit => {}
    }
}

/// The name of a map in the log.
struct MapName {
    database: String,
    design_document: String,
    view: String,
}

impl MapName {
    fn of(job: &Job, view: &str) -> MapName {
        let database = job.reader.name.to_string();
        MapName { database, design_document: job.design.clone(), view: view.to_owned() }
    }
}

/// Writes the number of omitted lines once the next line may be written, since the documents on which the map fails
/// may have come to an end. There is at most one such task for each view.
async fn sum_up(clock: Clock, state: Weak<GroupState>, tree: usize, name: MapName) {
    clock.sleep(LINE_EVERY).await;
    let Some(left_out) = state.upgrade().and_then(|state| state.lines.summary(&LoggedFailure::Map(tree))) else {
        return;
    };
    let MapName { database, design_document, view } = name;
    tracing::info!(database, design_document, view, left_out, "a map failed on more documents");
}

/// Prepares the rows of a document, on a blocking thread unless they are few. Adds to `waited` the time spent waiting
/// for shared resources.
///
/// # Errors
/// [`Error::ShuttingDown`], [`Error::BrokenOff`].
pub async fn prepare_document(job: &Job, emitted: EmittedDocument, waited: &mut Duration) -> Result<PreparedDocument> {
    let mut permit = None;
    if emitted.json_bytes() > LARGE_JSON_BYTES {
        let acquired = Arc::clone(&views(&job.reader.inner).large_json).acquire_owned();
        let (acquired, time) = job.wait(async { acquired.await.map_err(|_| Error::ShuttingDown) }).await?;
        *waited += time;
        permit = Some(acquired);
    }
    let prepared = if emitted.is_quick() {
        prepare(&job.storage, emitted)
    } else {
        let storage = job.storage.clone();
        let work = move || {
            // The trees stay in memory until the work ends, even if the task that awaits it is dropped.
            let _permit = permit;
            prepare(&storage, emitted)
        };
        tokio::task::spawn_blocking(work).await.map_err(Error::of_task)?
    };
    if prepared.is_refused() {
        job.reader.inner.metrics.view_documents_refused.add(1);
        let Some(left_out) = job.state.lines.line(LoggedFailure::Refused) else { return Ok(prepared) };
        let (database, document) = (&*job.reader.name, prepared.id());
        tracing::warn!(
            database,
            design_document = job.design,
            document,
            left_out,
            "a document has too many rows, or too large ones, and is in no view"
        );
    }
    Ok(prepared)
}
