//! Filter functions of design documents. They run on threads of their own, a page of documents at a time.

use std::collections::HashMap;
use std::sync::Arc;

use flatbed_javascript::{Caller, Error as FunctionError, Runner};
use flatbed_layer::{
    ChangeRow, Document, Error as LayerError, GetOptions, OpenRevs, Reader, Refusal, RowKind, design_id,
};

use crate::designs::{Designs, HeldDesign};
use crate::feeds::{FeedError, Result};
use crate::functions::complete_request;
use crate::json_out;
use crate::rights::Rights;
use crate::turns::Origin;

/// The most documents per call, and the most bytes of them (one document may exceed it).
const DOCUMENTS_AT_ONCE: usize = 100;
const BYTES_AT_ONCE: usize = 1_000_000;

/// A filter function of a design document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterFunction {
    /// The design document's name, without `_design/`.
    pub design: String,
    /// The name of the function.
    pub name: String,
    /// The type of the function.
    pub kind: FilterKind,
}

/// The type of a filter function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterKind {
    /// `filters.NAME`: accepts or rejects a document, given a request. The request is the text of a JSON object that
    /// has members; `userCtx` and `secObj` are added.
    Filter {
        /// The text, with its braces.
        request: Vec<u8>,
    },
    /// `views.NAME.map`: accepts a document if it emits a row.
    View,
}

#[derive(Debug)]
pub(super) struct Filters {
    runner: Runner,
    designs: Designs,
}

impl Filters {
    pub(super) fn new(runner: Runner, designs: Designs) -> Filters {
        Filters { runner, designs }
    }

    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.designs.bytes()
    }

    #[cfg(test)]
    pub(super) fn reading(&self) -> &Arc<crate::turns::Turns> {
        self.designs.reading()
    }

    /// Returns a filter function. Its design document is read now, and the feed keeps it.
    pub(super) async fn find(
        &self,
        asked: FilterFunction,
        rights: &Rights,
        origin: &Origin,
        database: &Reader,
        all_leaves: bool,
    ) -> Result<Function> {
        let FilterFunction { design, name, kind } = asked;
        let held = self.designs.read(origin, database, &design_id(&design)).await?;
        let path: &[&str] = match kind {
            FilterKind::Filter { .. } => &["filters", &name],
            FilterKind::View => &["views", &name, "map"],
        };
        let caller = Caller { client: Some(origin.client.number()), ..self.runner.caller() };
        match self.runner.find(&held.design, caller, path).await {
            Err(FunctionError::Missing) => {
                let top = path.first().copied().unwrap_or_default();
                let missing = if self.runner.has(&held.design, caller, top).await? { &name } else { top };
                return Err(FeedError::MissingMember(missing.to_owned()));
            }
            found => found?,
        }
        let kind = match kind {
            FilterKind::Filter { request } => {
                FunctionKind::Filter { request: complete_request(request, rights, database).await?.into() }
            }
            FilterKind::View => FunctionKind::View,
        };
        Ok(Function { runner: self.runner.clone(), held, caller, name, kind, database: database.clone(), all_leaves })
    }
}

#[derive(Clone)]
pub(super) struct Function {
    runner: Runner,
    held: Arc<HeldDesign>,
    /// The feed, as the caller of functions.
    caller: Caller,
    name: String,
    kind: FunctionKind,
    database: Reader,
    /// True if it judges all leaves of a document, not the winner alone.
    pub(super) all_leaves: bool,
}

#[derive(Clone)]
enum FunctionKind {
    Filter { request: Arc<str> },
    View,
}

impl Function {
    /// Returns the rows that pass, with those of their leaves that pass.
    pub(super) async fn pass(&self, rows: Vec<ChangeRow>) -> Result<Vec<ChangeRow>> {
        // Thousands of feeds may wait for one database's functions.
        let largest = rows.iter().map(|row| bytes(row.doc.as_ref()) * row.leaves.len().max(1)).max().unwrap_or(0);
        let all: usize = rows.iter().map(|row| bytes(row.doc.as_ref())).sum();
        let room = all + 2 * all.min(BYTES_AT_ONCE + largest).max(largest);
        let _room = self.runner.room(self.held.design.database(), room, true).await?;
        let mut passed = Vec::with_capacity(rows.len());
        let (mut waiting, mut texts, mut bytes) = (Vec::new(), Vec::new(), 0);
        for row in rows {
            let begin = texts.len();
            match row.kind {
                RowKind::Changed => self.documents(&row, &mut texts).await?,
                // The row has no document, and passes.
                RowKind::Lost | RowKind::Revoked | RowKind::User => {}
            }
            bytes += texts.iter().skip(begin).map(Vec::len).sum::<usize>();
            waiting.push((row, texts.len() - begin));
            if texts.len() >= DOCUMENTS_AT_ONCE || bytes >= BYTES_AT_ONCE {
                self.filter(&mut waiting, &mut texts, &mut passed).await?;
                bytes = 0;
            }
        }
        self.filter(&mut waiting, &mut texts, &mut passed).await?;
        Ok(passed)
    }

    /// Appends the texts of a row's documents, one for each leaf that it shows. Leaves that are gone meanwhile do not
    /// pass, since their document will come again.
    async fn documents(&self, row: &ChangeRow, texts: &mut Vec<Vec<u8>>) -> Result<()> {
        if row.leaves.len() == 1 {
            let mut text = Vec::new();
            match &row.doc {
                Some(document) => json_out::document(document, &mut text),
                None => text.extend_from_slice(b"null"),
            }
            texts.push(text);
            return Ok(());
        }
        let revs = OpenRevs::Some(row.leaves.clone());
        let mut all = HashMap::with_capacity(row.leaves.len());
        let mut from = 0;
        while from < row.leaves.len() {
            let found = self.database.open_revs(&row.id, &revs, from, false, &GetOptions::default()).await;
            let (found, _) = match found {
                Err(LayerError::Refused(Refusal::DocumentNotFound(_))) => break,
                found => found?,
            };
            from += found.len().max(1);
            for document in found.into_iter().flatten() {
                let mut text = Vec::new();
                json_out::document(&document, &mut text);
                all.insert(document.rev, text);
            }
        }
        texts.extend(row.leaves.iter().map(|leaf| all.remove(leaf).unwrap_or_else(|| b"null".to_vec())));
        Ok(())
    }

    async fn filter(
        &self,
        waiting: &mut Vec<(ChangeRow, usize)>,
        texts: &mut Vec<Vec<u8>>,
        passed: &mut Vec<ChangeRow>,
    ) -> Result<()> {
        let docs: Vec<&[u8]> = texts.iter().map(Vec::as_slice).filter(|text| *text != b"null").collect();
        let Function { runner, caller, name, .. } = self;
        let design = &self.held.design;
        let found = match &self.kind {
            _ if docs.is_empty() => Vec::new(),
            FunctionKind::Filter { request } => runner.filter(design, *caller, name, &docs, request).await?,
            FunctionKind::View => runner.emits(design, *caller, name, &docs).await?,
        };
        if found.len() != docs.len() {
            return Err(FunctionError::OutOfResources.into());
        }
        let mut found = found.into_iter();
        let mut texts = texts.drain(..);
        for (mut row, count) in waiting.drain(..) {
            let mut leaves = Vec::with_capacity(count);
            for (leaf, text) in row.leaves.iter().zip(texts.by_ref().take(count)) {
                if text != b"null" && found.next() == Some(true) {
                    leaves.push(leaf.clone());
                }
            }
            match row.kind {
                RowKind::Changed if leaves.is_empty() => {}
                RowKind::Changed => {
                    row.leaves = leaves;
                    passed.push(row);
                }
                RowKind::Lost | RowKind::Revoked | RowKind::User => passed.push(row),
            }
        }
        Ok(())
    }
}

fn bytes(document: Option<&Document>) -> usize {
    document.map_or(0, |document| document.body.len())
}
