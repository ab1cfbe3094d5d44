//! A feed that a function of a design document or a selector filters.
//!
//! A function runs on threads of its own, a page of documents at a time; so does a selector where it takes long. What has been taken of the feed and is not
//! filtered yet is kept here, so that whoever waits may stop waiting at any time, to send a heartbeat.

use std::collections::HashMap;
use std::sync::Arc;

use flatbed_javascript::{Caller, Design, Runner};
use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{
    ChangeRow, Changes, ChangesPage, Document, Error as LayerError, Followed, GetOptions, OpenRevs, Reader, Refusal,
    RowKind, Seq, TailRow, design_id,
};
use flatbed_service::{SECURITY_DEFAULT, Selecting};
use tokio::task::JoinHandle;

use crate::error::{Failure, Result};
use crate::json_out;
use crate::request::Request;
use crate::request_object::request_object;
use crate::state::State;

/// Documents that a function is given at once, and bytes of them (one document may pass it).
const DOCUMENTS_AT_ONCE: usize = 100;
const BYTES_AT_ONCE: usize = 1_000_000;

/// A function that filters.
#[derive(Clone)]
pub(super) struct Function {
    runner: Runner,
    design: Design,
    /// The feed: a request.
    caller: Caller,
    name: String,
    kind: Kind,
    /// The request as JSON text.
    request: Arc<str>,
    database: Reader,
    all_leaves: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Filter,
    View,
}

impl Function {
    /// The function that the query names, if it names one. The design document is read now: the feed keeps it as it is.
    ///
    /// # Errors
    /// 400 for a name that is none, 404 where there is no such function, 500 where it is no function.
    pub(super) async fn of(
        state: &State,
        request: &Request,
        database: &Reader,
        all_leaves: bool,
    ) -> Result<Option<Function>> {
        let query = &request.query;
        let (kind, name) = match query.get("filter") {
            Some("_view") => (Kind::View, query.get("view").unwrap_or_default()),
            Some(name) if !name.is_empty() && !name.starts_with('_') => (Kind::Filter, name),
            _ => return Ok(None),
        };
        let parts: Vec<&str> = name.split('/').filter(|part| !part.is_empty()).collect();
        let &[design, function] = &parts[..] else {
            return Err(Failure::bad_request(match kind {
                Kind::View if parts.is_empty() => "`view` filter parameter is not provided.",
                Kind::View => "`view` must be of the form `designname/viewname`",
                Kind::Filter => "`filter` must be of the form `designname/filtername`",
            }));
        };
        let options = GetOptions { local_seq: true, ..GetOptions::default() };
        let mut document = database.get(&design_id(design), &options).await?;
        // A sequence tells its database from those that had the name before.
        let incarnation = document.local_seq.take().map_or(0, |seq| seq.incarnation());
        let mut text = Vec::new();
        json_out::document(&document, &mut text);
        let design =
            Design::new(format!("{}/{incarnation}", database.name()), String::from_utf8_lossy(&text).into_owned());
        let path: &[&str] = match kind {
            Kind::Filter => &["filters", function],
            Kind::View => &["views", function, "map"],
        };
        let caller = state.functions.caller();
        state.functions.find(&design, caller, path).await.map_err(|error| match error {
            flatbed_javascript::Error::Missing => {
                let body = json::parse(design.text().as_bytes(), &Limits::default()).unwrap_or(Value::Null);
                let all = path.first().filter(|all| body.get(all).is_none());
                Failure::not_found(format!("missing json key: {}", all.unwrap_or(&function)))
            }
            error => error.into(),
        })?;
        let security = database.security().await?;
        let security = security.as_deref().unwrap_or(SECURITY_DEFAULT);
        Ok(Some(Function {
            runner: state.functions.clone(),
            design,
            caller,
            name: function.to_owned(),
            kind,
            request: request_object(request, database.name(), security).into(),
            database: database.clone(),
            all_leaves,
        }))
    }

    /// The rows that pass, with those of their leaves that do.
    async fn pass(&self, rows: Vec<ChangeRow>) -> Result<Vec<ChangeRow>> {
        // Thousands of feeds may wait for one database's functions.
        let largest = rows.iter().map(|row| bytes(row.doc.as_ref()) * row.leaves.len().max(1)).max().unwrap_or(0);
        let all: usize = rows.iter().map(|row| bytes(row.doc.as_ref())).sum();
        let room = all + 2 * all.min(BYTES_AT_ONCE + largest).max(largest);
        let _room = self.runner.room(self.design.database(), room, true).await?;
        let mut passed = Vec::with_capacity(rows.len());
        let (mut waiting, mut texts, mut bytes) = (Vec::new(), Vec::new(), 0);
        for row in rows {
            let begin = texts.len();
            match row.kind {
                RowKind::Changed => self.documents(&row, &mut texts).await?,
                // It has none, and passes.
                RowKind::Lost => {}
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

    /// The texts of a row's documents, one for each leaf that it shows. Leaves that are gone meanwhile pass nothing: their
    /// document comes again.
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
        let found = match self.kind {
            _ if docs.is_empty() => Vec::new(),
            Kind::Filter => self.runner.filter(&self.design, self.caller, &self.name, &docs, &self.request).await?,
            Kind::View => self.runner.emits(&self.design, self.caller, &self.name, &docs).await?,
        };
        if found.len() != docs.len() {
            return Err(flatbed_javascript::Error::OutOfResources.into());
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
                RowKind::Lost => passed.push(row),
            }
        }
        Ok(())
    }
}

fn bytes(document: Option<&Document>) -> usize {
    document.map_or(0, |document| document.body.len())
}

/// What came of following.
pub(super) enum Came {
    /// Rows as all followers share them, or those of them that a selector let through.
    Shared(Vec<Arc<TailRow>>),
    /// Rows that a function let through.
    Passed(Vec<ChangeRow>),
    ReadOn,
    Shutdown,
}

/// What a filter has let through of what followers share.
enum Passed {
    Rows(Vec<ChangeRow>),
    Shared(Vec<Arc<TailRow>>),
}

/// A feed under way, and what filters it, if anything does.
pub(super) struct Filtered {
    changes: Changes,
    function: Option<Function>,
    selecting: Option<Selecting>,
    /// How many rows may pass.
    left: usize,
    /// What was taken and is being filtered.
    filtering: Option<JoinHandle<Result<Passed>>>,
}

impl Drop for Filtered {
    fn drop(&mut self) {
        if let Some(filtering) = &self.filtering {
            filtering.abort();
        }
    }
}

impl Filtered {
    pub(super) fn new(
        changes: Changes,
        function: Option<Function>,
        selecting: Option<Selecting>,
        limit: Option<u64>,
    ) -> Filtered {
        let left = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        Filtered { changes, function, selecting, left, filtering: None }
    }

    pub(super) async fn next_page(&mut self) -> Result<ChangesPage> {
        let mut page = self.changes.next_page().await?;
        if let Some(function) = &self.function {
            page.rows = function.pass(page.rows).await?;
        } else if let Some(selecting) = &self.selecting {
            page.rows = selecting.pass(page.rows).await?;
        } else {
            return Ok(page);
        }
        page.at_end |= self.cut(&mut page.rows, |row| row.seq);
        Ok(page)
    }

    /// Drops rows beyond the limit, and says whether it is reached: then the feed stands at the last row.
    fn cut<R>(&mut self, rows: &mut Vec<R>, seq: impl Fn(&R) -> Seq) -> bool {
        let is_full = rows.len() >= self.left;
        rows.truncate(self.left);
        self.left -= rows.len();
        if let (true, Some(last)) = (is_full, rows.last()) {
            self.changes.stand_at(seq(last));
        }
        is_full
    }

    /// What came of filtering, as far as the limit goes; `None`: nothing passed.
    fn came(&mut self, passed: Passed) -> Option<Came> {
        match passed {
            Passed::Rows(mut rows) => {
                self.cut(&mut rows, |row| row.seq);
                (!rows.is_empty()).then_some(Came::Passed(rows))
            }
            Passed::Shared(mut rows) => {
                self.cut(&mut rows, |row| row.row.seq);
                (!rows.is_empty()).then_some(Came::Shared(rows))
            }
        }
    }

    /// As [`Changes::follow`]: it may be dropped and called again at any time.
    pub(super) async fn follow(&mut self) -> Result<Came> {
        loop {
            if let Some(filtering) = &mut self.filtering {
                let passed = filtering.await;
                self.filtering = None;
                let passed = passed.map_err(|_| flatbed_javascript::Error::OutOfResources)??;
                if let Some(came) = self.came(passed) {
                    return Ok(came);
                }
            }
            let rows = match self.changes.follow().await {
                Followed::Shutdown => return Ok(Came::Shutdown),
                Followed::ReadOn => return Ok(Came::ReadOn),
                Followed::Rows(rows) => rows,
            };
            if let Some(function) = &self.function {
                let mut rows: Vec<ChangeRow> = rows.iter().map(|row| self.changes.shown(row)).collect();
                if !function.all_leaves {
                    rows.iter_mut().for_each(|row| row.leaves.truncate(1));
                }
                let function = function.clone();
                self.filtering = Some(tokio::spawn(async move { function.pass(rows).await.map(Passed::Rows) }));
            } else if let Some(selecting) = &self.selecting {
                if selecting.is_short(&rows) {
                    let passed = Passed::Shared(selecting.pass_now(rows)?);
                    if let Some(came) = self.came(passed) {
                        return Ok(came);
                    }
                } else {
                    let selecting = selecting.clone();
                    self.filtering = Some(tokio::spawn(async move { Ok(Passed::Shared(selecting.pass(rows).await?)) }));
                }
            } else {
                return Ok(Came::Shared(rows));
            }
        }
    }

    pub(super) async fn pending(&mut self) -> flatbed_layer::Result<u64> {
        self.changes.pending().await
    }

    pub(super) fn shown(&self, row: &TailRow) -> ChangeRow {
        self.changes.shown(row)
    }

    pub(super) fn last_seq(&self) -> Option<Seq> {
        self.changes.last_seq()
    }
}
