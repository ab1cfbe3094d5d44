//! Reads a view's pages and writes rows in CouchDB's form.

use std::cmp::Ordering;

use flatbed_http::Sender;
use flatbed_layer::json::Value;
use flatbed_layer::json::{Object, name};
use flatbed_layer::{
    Document, Grouping as LayerGrouping, Reader, ReduceFailure, ReduceQuery, ReducedPage, ReducedRow, ReducedRows,
    Select, Seq, View, ViewPage, ViewQuery, ViewRange, ViewRow, ViewRows,
};
use hyper::StatusCode;

use crate::error::{Failure, Result};
use crate::handlers::view::parameters::{Grouping, Parameters, Rows};
use crate::reply::{Interrupted, page_bytes};
use flatbed_documents::{self as attached, AttachmentOptions};

/// CouchDB's error for a reduction that grows too much. It becomes a row of the answer; other failures fail the whole
/// answer.
const OVERFLOW: &str = "reduce_overflow_error";

pub(crate) struct CheckedQuery {
    parameters: Parameters,
    grouping: Grouping,
    rows: Rows,
    show: AttachmentOptions,
    is_of_list: bool,
}

pub(crate) enum ViewReading {
    /// `end`: for a partition's page after the last row, the query that finds the end of the partition's rows.
    Mapped {
        rows: ViewRows,
        end: Option<Box<ViewRows>>,
    },
    Reduced(ReducedRows),
}

pub(crate) enum Page {
    /// With the end of the partition's rows, if `skip` passes all of them.
    Mapped(ViewPage, Option<u64>),
    Reduced(ReducedPage),
}

impl CheckedQuery {
    /// Checks the parameters; 400 if they are inconsistent or do not fit the view.
    pub(crate) fn new(parameters: Parameters, view: &View) -> Result<CheckedQuery> {
        let rows = parameters.rows(view.reduce_at().is_some());
        let grouping = parameters.check(rows)?;
        match (view.definition().options.partitioned, &parameters.partition) {
            (true, None) => {
                return Err(Failure::query("`partition` parameter is mandatory for queries to this view."));
            }
            (false, Some(_)) => {
                return Err(Failure::query("`partition` parameter is not supported in this design doc"));
            }
            _ => {}
        }
        parameters.check_range(|a, b| view.tree().map_or(Ordering::Equal, |tree| tree.compare(a, b)))?;
        let show =
            AttachmentOptions { data: parameters.attachments, encoding: parameters.att_encoding_info, since: None };
        Ok(CheckedQuery { parameters, grouping, rows, show, is_of_list: false })
    }

    /// Sets whether a list function reads the rows. Rows without a value then have another form.
    pub(crate) fn of_list(self, is_of_list: bool) -> CheckedQuery {
        CheckedQuery { is_of_list, ..self }
    }

    pub(crate) fn has_documents(&self) -> bool {
        self.parameters.include_docs
    }

    /// Waits until the view is as fresh as requested, without reading rows.
    pub(crate) async fn wait_for(view: &View) -> Result<()> {
        view.rows(ViewQuery { limit: Some(0), ..ViewQuery::default() }).next_page().await?;
        Ok(())
    }

    pub(crate) fn begin(&self, view: &View) -> ViewReading {
        let Parameters { descending, skip, limit, include_docs, .. } = self.parameters;
        let select = self.select();
        let of_partition = self.parameters.partition.as_ref().map(|partition| view.clone().of_partition(partition));
        let view = of_partition.as_ref().unwrap_or(view);
        match self.rows {
            Rows::Mapped => {
                let conflicts = self.parameters.conflicts();
                let is_past = skip > 0 && limit != Some(0) && of_partition.is_some();
                let end = if is_past { turned(&select, descending) } else { None };
                let rows = view.rows(ViewQuery { select, descending, skip, limit, include_docs, conflicts });
                ViewReading::Mapped { rows, end: end.map(|query| Box::new(view.rows(query))) }
            }
            Rows::Reduced => {
                let grouping = match self.grouping {
                    Grouping::All => LayerGrouping::All,
                    Grouping::Level(level) => LayerGrouping::Level(usize::try_from(level).unwrap_or(usize::MAX)),
                    Grouping::Exact => LayerGrouping::Exact,
                };
                let reduce = view.reduce_at().unwrap_or_default();
                ViewReading::Reduced(view.reduce(ReduceQuery { select, reduce, grouping, descending, skip, limit }))
            }
        }
    }

    fn select(&self) -> Select {
        let Parameters { start, start_docid, end, end_docid, keys, .. } = self.parameters.clone();
        let exclusive_end = !self.parameters.inclusive_end;
        match keys {
            Some(Value::Array(mut keys)) => {
                // As in CouchDB, a descending query starts with the last key.
                if self.parameters.descending {
                    keys.reverse();
                }
                Select::Keys { keys, start_docid, end_docid, exclusive_end }
            }
            // A document id without a key bounds nothing.
            _ => {
                let (start_docid, end_docid) =
                    (start_docid.filter(|_| start.is_some()), end_docid.filter(|_| end.is_some()));
                Select::Range(ViewRange { start, start_docid, end, end_docid, exclusive_end })
            }
        }
    }

    /// Writes the members before the rows. `first`: the first page.
    pub(crate) fn write_head(&self, first: &Page, out: &mut Vec<u8>) {
        let mut open = Object::new(out);
        if let Page::Mapped(page, end) = first {
            let total = page.total_rows;
            let offset = page.before.saturating_add(self.parameters.skip).min(end.unwrap_or(total));
            open.number("total_rows", total).number("offset", offset);
        }
        if let (true, Some(seq)) = (self.parameters.update_seq, first.place()) {
            open.string("update_seq", &seq.to_string());
        }
        open.place("rows").extend_from_slice(b"[\r\n");
        open.leave_open();
    }

    /// Writes a page's rows; `is_first`: no row has been written yet.
    pub(crate) async fn write_page(
        &self,
        database: &Reader,
        page: Page,
        is_first: &mut bool,
        sender: &mut Sender,
    ) -> std::result::Result<(), Interrupted> {
        let mut separate = |out: &mut Vec<u8>| {
            if !std::mem::take(is_first) {
                out.extend_from_slice(b",\r\n");
            }
        };
        match page {
            Page::Mapped(page, _) => {
                for row in page.rows {
                    separate(&mut sender.buffer);
                    self.write_row(database, &row, sender).await?;
                    sender.send_if_full().await?;
                }
            }
            Page::Reduced(page) => {
                for row in page.rows {
                    separate(&mut sender.buffer);
                    write_reduced(&row, self.is_of_list, &mut sender.buffer);
                    sender.send_if_full().await?;
                }
            }
        }
        Ok(())
    }

    async fn write_row(
        &self,
        database: &Reader,
        row: &ViewRow,
        sender: &mut Sender,
    ) -> std::result::Result<(), Interrupted> {
        let mut open = Object::new(&mut sender.buffer);
        open.string(name!("id"), &row.id).raw(name!("key"), &row.key);
        open.leave_open();
        sender.buffer.extend_from_slice(b",\"value\":");
        sender.write(&row.value).await?;
        if self.parameters.include_docs {
            sender.buffer.extend_from_slice(b",\"doc\":");
            // As in CouchDB, attachment options apply only to the row's own document.
            let plain = AttachmentOptions::default();
            let show = if row.is_joined { &plain } else { &self.show };
            attached::send_or_null(database, row.doc.as_ref(), show, sender).await?;
        }
        sender.buffer.push(b'}');
        Ok(())
    }
}

/// Returns the reversed range with a limit of 0. Its count of rows before the start is the count behind the original
/// range. `None` if the range excludes its end.
fn turned(select: &Select, descending: bool) -> Option<ViewQuery> {
    let Select::Range(ViewRange { start, start_docid, end, end_docid, exclusive_end: false }) = select.clone() else {
        return None;
    };
    let (start, start_docid, end, end_docid) = (end, end_docid, start, start_docid);
    let select = Select::Range(ViewRange { start, start_docid, end, end_docid, exclusive_end: false });
    Some(ViewQuery { select, descending: !descending, limit: Some(0), ..ViewQuery::default() })
}

fn write_reduced(row: &ReducedRow, is_of_list: bool, out: &mut Vec<u8>) {
    let mut open = Object::new(out);
    match &row.value {
        Ok(value) => {
            open.raw(name!("key"), row.key.as_deref().unwrap_or(b"null")).raw(name!("value"), value);
        }
        Err(ReduceFailure { error, .. }) if is_of_list => {
            open.string(name!("id"), "error").null(name!("key")).string(name!("value"), error);
        }
        Err(ReduceFailure { error, reason }) => {
            open.null(name!("key")).string(name!("error"), error).string(name!("reason"), reason);
        }
    }
    open.end();
}

impl ViewReading {
    /// Reads the next page; 500 for a failed reduction.
    pub(crate) async fn next_page(&mut self) -> Result<Option<Page>> {
        match self {
            ViewReading::Mapped { rows, end } => {
                let Some(page) = rows.next_page().await? else { return Ok(None) };
                let end = match end.take() {
                    Some(mut end) if page.rows.is_empty() => end.next_page().await?,
                    _ => None,
                };
                let end = end.map(|behind| page.total_rows.saturating_sub(behind.before));
                Ok(Some(Page::Mapped(page, end)))
            }
            ViewReading::Reduced(rows) => {
                let Some(page) = rows.next_page().await? else { return Ok(None) };
                let failed =
                    |row: &ReducedRow| row.value.as_ref().err().filter(|failure| failure.error != OVERFLOW).cloned();
                match page.rows.iter().find_map(failed) {
                    Some(ReduceFailure { error, reason }) => {
                        Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, error, reason))
                    }
                    None => Ok(Some(Page::Reduced(page))),
                }
            }
        }
    }
}

impl Default for Page {
    fn default() -> Self {
        Page::Reduced(ReducedPage::default())
    }
}

impl Page {
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Page::Mapped(page, _) => {
                let documents = page.rows.iter().filter_map(|row| row.doc.as_ref());
                let rows: usize = page.rows.iter().map(|row| row.key.len() + row.value.len()).sum();
                page_bytes(page.rows.len(), documents) + rows
            }
            Page::Reduced(page) => {
                let value = |row: &ReducedRow| row.value.as_ref().map_or(0, Vec::len);
                let rows: usize = page.rows.iter().map(|row| row.key.as_ref().map_or(0, Vec::len) + value(row)).sum();
                page_bytes(page.rows.len(), std::iter::empty::<&Document>()) + rows
            }
        }
    }

    /// Returns the sequence up to which the view is built.
    pub(crate) fn place(&self) -> Option<&Seq> {
        match self {
            Page::Mapped(page, _) => page.place.as_ref(),
            Page::Reduced(page) => page.place.as_ref(),
        }
    }
}
