//! Documents are mapped: what a batch of them has in a group, outside of any transaction.

use std::sync::atomic::Ordering;

use flatbed_revtree::DocumentId;

use crate::document::edit::Document;
use crate::document::text;
use crate::error::{Error, Refusal, Result, ViewFailure};
use crate::group::job::Job;
use crate::size_limit::{self, Growth};
use crate::view::prepare::{Emitted, PreparedDocument, prepare};
use crate::view_functions::{EmittedRows, FunctionFailure, Mapped};
use crate::view_updates::LoggedFailure;

/// Documents after each other on which functions may break a bound: then they are broken, and not the documents. One of time
/// counts as three, as it has kept a processor busy for all of it.
const BREACHES_MAX: usize = if cfg!(test) { 4 } else { 9 };

/// A document to be mapped.
#[derive(Debug)]
pub(super) struct ToMap {
    pub id: String,
    /// `None`: it has no rows, being deleted or gone.
    pub document: Option<Document>,
}

/// Whether a document of this id may have rows in a group.
fn is_mapped(job: &Job, id: &str) -> bool {
    job.definition().options.include_design || !DocumentId::of(id).is_design()
}

/// Maps documents; each comes out, in order. One on which a function throws has no rows in that view, and one that breaks a
/// bound of its functions has none in any: that is counted, and logged at most once a minute for each view. Each such document costs a processor seconds, so
/// some after each other end the mapping.
///
/// # Errors
/// [`Error::View`]: the database is full; the group's functions cannot be run, ended the whole query, or break their bounds on every document.
/// [`Error::ShuttingDown`]: the group is gone, or the process stops.
pub(super) async fn map(job: &Job, documents: Vec<ToMap>) -> Result<Vec<PreparedDocument>> {
    let metrics = &job.reader.inner.metrics;
    // What only takes rows away goes on.
    if documents.iter().any(|document| document.document.is_some()) {
        match size_limit::check(&job.reader.inner, &job.reader.name, Growth::Reserve).await {
            Err(Error::Refused(Refusal::DatabaseFull { bytes_max })) => {
                return Err(ViewFailure::DatabaseFull { bytes_max }.into());
            }
            checked => checked?,
        }
    }
    let (mut texts, mut places) = (Vec::with_capacity(documents.len()), Vec::with_capacity(documents.len()));
    let mut emitted: Vec<Emitted> = Vec::with_capacity(documents.len());
    let trees = job.definition().trees.len();
    for (at, ToMap { id, document }) in documents.into_iter().enumerate() {
        let ends_at_ms = document.as_ref().and_then(|document| document.ends_at_ms).unwrap_or(0);
        if let Some(mut document) = document.filter(|document| !document.deleted && is_mapped(job, &id)) {
            if !job.definition().options.local_seq {
                document.local_seq = None;
            }
            let mut out = Vec::new();
            text::document(&document, &mut out);
            texts.push(out);
            places.push(at);
        }
        emitted.push(Emitted { id, trees: vec![EmittedRows::default(); trees], is_too_much: false, ends_at_ms });
    }
    metrics.view_documents_mapped.add(texts.len() as u64);
    let mut done = 0;
    while !texts.is_empty() {
        let asked = texts.len();
        // What a function ends the batch at is passed over, and the rest asked for again.
        let rest = std::mem::take(&mut texts);
        let again = rest.clone();
        let Mapped { documents, stopped, logs } = job.functions.map(rest).await?;
        for line in logs {
            tracing::info!(database = &*job.reader.name, design_document = job.design, line, "a map logs");
        }
        let answered = documents.len().min(asked);
        if answered > 0 {
            job.breaches.store(0, Ordering::Relaxed);
        }
        for (document, at) in documents.into_iter().zip(places.iter().skip(done)) {
            let Some(Emitted { id, trees, is_too_much, .. }) = emitted.get_mut(*at) else { continue };
            for (tree, rows) in document.into_iter().enumerate().take(trees.len()) {
                match rows {
                    Ok(rows) => {
                        if let Some(place) = trees.get_mut(tree) {
                            *place = rows;
                        }
                    }
                    Err(FunctionFailure::TooMuch(_)) => *is_too_much = true,
                    Err(failure) => fail(job, id, tree, &failure),
                }
            }
        }
        done += answered;
        match stopped {
            None if answered == asked => break,
            // Those behind are mapped nevertheless.
            Some(failure @ (FunctionFailure::TimedOut(_) | FunctionFailure::OutOfResources(_))) => {
                if let Some(Emitted { id, .. }) = places.get(done).and_then(|at| emitted.get(*at)) {
                    fail(job, id, 0, &failure);
                }
                done += 1;
                let more = if matches!(failure, FunctionFailure::TimedOut(_)) { 3 } else { 1 };
                if job.breaches.fetch_add(more, Ordering::Relaxed) + more >= BREACHES_MAX {
                    return Err(failure.into());
                }
                if !job.is_wanted().await? {
                    return Err(Error::ShuttingDown);
                }
                texts = again.into_iter().skip(answered + 1).collect();
            }
            Some(failure) => return Err(failure.into()),
            None => return Err(Error::Corrupt("documents were mapped without an answer".to_owned())),
        }
    }
    Ok(emitted.into_iter().map(|emitted| prepared(job, emitted)).collect())
}

fn fail(job: &Job, id: &str, tree: usize, failure: &FunctionFailure) {
    job.reader.inner.metrics.view_documents_failed.add(1);
    // A map that fails on one document often fails on many: the lines are limited.
    let Some(left_out) = job.state.lines.line(LoggedFailure::Map(tree)) else { return };
    let view = job.definition().trees.get(tree).map(|tree| tree.view.as_str()).unwrap_or_default();
    let database = &*job.reader.name;
    let design_document = &*job.design;
    tracing::info!(database, design_document, view, document = id, %failure, left_out, "a map failed on a document");
}

fn prepared(job: &Job, emitted: Emitted) -> PreparedDocument {
    let prepared = prepare(&job.storage, emitted);
    if prepared.is_refused() {
        job.reader.inner.metrics.view_documents_refused.add(1);
        let Some(left_out) = job.state.lines.line(LoggedFailure::Refused) else { return prepared };
        let (database, document) = (&*job.reader.name, prepared.id());
        tracing::warn!(
            database,
            design_document = job.design,
            document,
            left_out,
            "a document has too many rows, or too large ones, and is in no view"
        );
    }
    prepared
}
