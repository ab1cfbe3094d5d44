//! A page of a query, in one transaction.

use std::time::Duration;

use flatbed_databases::instance::{Instance, InstanceId};
use flatbed_databases::limits::Limit;
use flatbed_databases::server::Inner;
use flatbed_flatten::json::Value;
use flatbed_mango::Source;
use flatbed_revtree::DocumentId;
use flatbed_store::due::DueKind;
use flatbed_store::error::{Error, Refusal, Result};
use flatbed_store::features::is_outdated;
use flatbed_store::keys::IndexPart;
use flatbed_store::records::ById;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use tokio::sync::oneshot;

use crate::find::documents::{Documents, Matcher, PausedMatch};
use crate::find::query::{Query, QueryDocument};
use crate::find::ranges::{self, behind, of_source};
use crate::index::json::entry::is_expired;
use crate::index::json::key::catch_up;
use crate::index::maintainers::IndexContext;
use crate::read::all_docs::{PAGE_ROWS_MAX, ScanPace, read_ranges};
use crate::read::get::{READ_BYTES_MAX, shown};

/// The most rows of a page whose documents are read one by one.
const DOCUMENTS_MAX: Limit<usize> = Limit::new(500, 7);

/// The same limit for the first page, when the selectivity is unknown.
const FIRST_DOCUMENTS: Limit<usize> = Limit::new(64, 3);

/// The most rows of a page that reads no documents.
const ROWS_MAX: Limit<usize> = Limit::new(PAGE_ROWS_MAX, 11);

/// A page ends after this time: a transaction has 5 s.
const TIME_MAX: Duration = Duration::from_millis(1_500);

/// A page ends after it has matched documents for this long, if other work waits for a turn.
const SLICE: Limit<Duration> = Limit::new(Duration::from_millis(20), Duration::ZERO);

/// The total time after which a page ends if other work waits: reads of documents hold the turn, too.
const WAITED_FOR: Limit<Duration> = Limit::new(Duration::from_millis(100), Duration::ZERO);

/// A page with fewer rows is not read ahead.
const AHEAD_ROWS_MIN: Limit<usize> = Limit::new(64, 3);

#[derive(Debug, Clone)]
pub struct PagePosition {
    /// The page begins behind this key; `None`: at the beginning.
    behind: Option<Vec<u8>>,
    /// Rows that are skipped without reading their documents.
    skip: u64,
    rows_max: usize,
    pace: ScanPace,
    paused: Option<PausedMatch>,
}

impl PagePosition {
    pub fn first(query: &Query, skip: u64, limit: u64) -> PagePosition {
        let wanted = usize::try_from(skip.saturating_add(limit)).unwrap_or(usize::MAX);
        let is_keys = matches!(query.source, Source::Keys(_));
        // Without a residual condition each row is answered, so no more rows than the limit are read.
        let rows_max = match (is_keys, query.residual.is_none()) {
            (true, true) => wanted,
            (true, false) => wanted.saturating_mul(2).max(FIRST_DOCUMENTS.get()),
            (false, _) => ScanPace::first().rows_max,
        };
        let skip = if is_keys && query.residual.is_none() { skip } else { 0 };
        PagePosition { behind: None, skip, rows_max: rows_max.max(1), pace: ScanPace::first(), paused: None }
    }

    /// Returns whether a page read from there equals one read from here.
    pub fn is_at(&self, other: &PagePosition) -> bool {
        (&self.behind, self.skip) == (&other.behind, other.skip)
    }

    /// Returns whether the page is worth reading ahead.
    pub fn may_be_ahead(&self) -> bool {
        self.rows_max >= AHEAD_ROWS_MIN.get()
    }

    fn next(&self, behind: Vec<u8>, examined: u64, pace: ScanPace) -> PagePosition {
        let rows_max = self.rows_max.saturating_mul(2);
        PagePosition { behind: Some(behind), skip: self.skip.saturating_sub(examined), rows_max, pace, paused: None }
    }
}

pub struct SelectedRow {
    /// The number of rows examined up to and including this one.
    pub ordinal: u64,
    pub id: String,
    /// The row's key, for a bookmark.
    pub key: Value<'static>,
    /// `None`: the document is only counted or skipped.
    pub document: Option<QueryDocument>,
    /// True for a design document, which is not answered; neither are the rows examined for it counted.
    pub is_dropped: bool,
}

pub struct SelectorPage {
    pub instance: InstanceId,
    pub examined: u64,
    pub found: Vec<SelectedRow>,
    pub next: Option<PagePosition>,
}

/// The transaction of a page. It returns `None` while the index is being built.
pub struct QueryPage<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub query: &'a Query,
    pub place: &'a PagePosition,
    pub is_first: bool,
    /// Receives the beginning of the next page, as soon as it is known.
    pub listed: Option<oneshot::Sender<PagePosition>>,
}

impl Operation for QueryPage<'_> {
    type Output = Option<SelectorPage>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Option<SelectorPage>> {
        let began = trx.clock().now();
        let instance = self.inner.resolve(trx, self.name).await?;
        let (query, place) = (self.query, self.place);
        if !query.indexes.are_of(&instance) || self.is_first && !query.indexes.are_those_of(&instance) {
            return Err(Refusal::IndexGone.into());
        }
        if let Some(number) = query.number {
            match instance.record.indexes.iter().find(|index| index.number == number) {
                None => return Err(Refusal::IndexGone.into()),
                Some(_) if is_outdated(&instance.record, self.inner.collation) => {
                    self.inner.due.note(DueKind::Indexes, self.name);
                    return Ok(None);
                }
                Some(index) if !index.readable => return Ok(None),
                Some(_) => {}
            }
        }
        let within = IndexContext { inner: self.inner, trx, instance: &instance };
        let mut matcher = None;
        if let Some(residual) = &query.residual {
            let new = || Matcher::new(&within, residual, query, place.paused.clone());
            let mut made = new();
            if made.lacks_ids() && !query.covering {
                catch_up(&within, trx.get(&instance.keys.next_field_id(), true).await?.as_deref()).await?;
                made = new();
            }
            matcher = Some(made);
        }
        let after = query.after.as_ref();
        let among = query.number.map(|number| query.entry_search(&within, number));
        let mut ranges = of_source(&instance.keys, among, (&query.source, after, query.reverse)).await?;
        if let Some(key) = &place.behind {
            ranges = behind(ranges, key, query.reverse);
        }
        let is_keys = query.number.is_some();
        let needs_documents = !(query.covering || query.counts_rows);
        let most = match (is_keys, needs_documents) {
            (true, true) => DOCUMENTS_MAX.get(),
            (true, false) => ROWS_MAX.get(),
            (false, _) => place.pace.rows_max,
        };
        let read = ranges::read(trx, &ranges, place.rows_max.min(most), query.reverse).await?;
        let mut page = SelectorPage { instance: instance.id(), examined: 0, found: Vec::new(), next: None };
        if let (Some(listed), true, Some((last, _))) = (self.listed.take(), read.more, read.rows.last()) {
            // The reader may be gone.
            let _ = listed.send(place.next(last.clone(), read.rows.len() as u64, place.pace.behind()));
        }
        let rows = rows_of(trx, &instance, &read.rows, is_keys)?;
        let ids: Vec<&str> = rows.iter().map(|(id, _)| id.as_str()).collect();
        let (known, share) = match is_keys {
            true => (Vec::new(), None),
            false => read_ranges(trx, &instance, &ids, place.pace, query.reverse).await?,
        };
        let mut documents = Documents::new(&within, &ids, known);
        let (mut bytes, mut has_yielded, mut is_paused) = (0, false, false);
        for (at, (id, entry)) in rows.iter().enumerate() {
            page.examined += 1;
            let Some(entry) = entry else { continue };
            // An index of fields contains no design documents.
            let is_dropped = query.number.is_none() && DocumentId::of(id).is_design();
            let row = ExaminedRow { query, within: &within, passes: (at as u64) < place.skip, is_dropped };
            match row.examine(id, entry, at, &mut documents, matcher.as_mut()).await? {
                RowOutcome::Selected(key, document) => {
                    if let Some(QueryDocument::Whole(document)) = &document {
                        bytes += document.body.len();
                    }
                    let ordinal = page.examined;
                    page.found.push(SelectedRow { ordinal, id: id.clone(), key, document, is_dropped });
                }
                RowOutcome::NotSelected => {}
                RowOutcome::Paused => {
                    page.examined -= 1;
                    is_paused = true;
                    break;
                }
            }
            let is_last = at + 1 == rows.len();
            let matched = matcher.as_ref().is_some_and(|matcher| matcher.matched() >= SLICE.get());
            let is_over = matched || trx.clock().since(began) >= WAITED_FOR.get();
            has_yielded = !is_last && is_over && query.has_waiters.as_ref().is_some_and(|has_waiters| has_waiters());
            if has_yielded || !is_last && (bytes > READ_BYTES_MAX || trx.clock().since(began) > TIME_MAX) {
                break;
            }
        }
        let examined = page.examined as usize;
        if is_paused {
            let last = examined.checked_sub(1).and_then(|last| read.rows.get(last));
            page.next = Some(PagePosition {
                behind: last.map(|(key, _)| key.clone()).or_else(|| place.behind.clone()),
                skip: place.skip.saturating_sub(page.examined),
                // Only the paused document, since it is read again.
                rows_max: 1,
                pace: place.pace,
                paused: matcher.as_mut().and_then(Matcher::take_paused),
            });
        } else if (examined < rows.len() || read.more)
            && let Some((last, _)) = examined.checked_sub(1).and_then(|last| read.rows.get(last))
        {
            let pace = match is_keys {
                true => place.pace,
                false => place.pace.next(examined, documents.bytes(), share),
            };
            let mut next = place.next(last.clone(), page.examined, pace);
            if has_yielded {
                // Twice the rows that a slice had time for, since rows that are read but not examined are read again.
                next.rows_max = examined.saturating_mul(2);
            }
            page.next = Some(next);
        }
        Ok(Some(page))
    }
}

/// A row: its document's id, and the entry's value in a json index. `None`: its document has expired.
type Row<'r> = (String, Option<Option<&'r [u8]>>);

fn rows_of<'r>(
    trx: &Transaction,
    instance: &Instance,
    read: &'r [(Vec<u8>, Vec<u8>)],
    is_keys: bool,
) -> Result<Vec<Row<'r>>> {
    let (keys, clock) = (&instance.keys, trx.clock());
    let row = |(key, value): &'r (Vec<u8>, Vec<u8>)| match is_keys {
        false => Ok((keys.all_docs_id(key)?, (!ById::is_expired(value, clock)?).then_some(None))),
        true => match keys.split_index(key)? {
            (_, IndexPart::Entry(entry)) => {
                Ok((entry.id, (!is_expired(value, clock)).then_some(Some(value.as_slice()))))
            }
            _ => Err(Error::Corrupt("an index contains a key that is no entry".to_owned())),
        },
    };
    read.iter().map(row).collect()
}

enum RowOutcome {
    NotSelected,
    Selected(Value<'static>, Option<QueryDocument>),
    Paused,
}

struct ExaminedRow<'a> {
    query: &'a Query,
    within: &'a IndexContext<'a>,
    /// True if it is skipped whatever it contains.
    passes: bool,
    is_dropped: bool,
}

impl ExaminedRow<'_> {
    async fn examine(
        &self,
        id: &str,
        entry: &Option<&[u8]>,
        at: usize,
        documents: &mut Documents<'_>,
        matcher: Option<&mut Matcher<'_>>,
    ) -> Result<RowOutcome> {
        let ExaminedRow { query, within, passes, is_dropped } = *self;
        if query.counts_rows {
            return Ok(RowOutcome::Selected(Value::Null, None));
        }
        let key = async || match (entry, query.number) {
            (Some(value), Some(number)) => query.entry_search(within, number).key(id, value).await,
            _ => Ok(Vec::new()),
        };
        let shown_key = |key: Vec<Value<'static>>| match query.number {
            Some(_) => Value::Array(key),
            None => Value::String(id.to_owned().into()),
        };
        if query.covering {
            let key = key().await?;
            let document = query.index.document_of(id, &key);
            let is_selected = matcher.map_or(Ok(true), |matcher| matcher.selects_value(&document))?;
            let document = Some(QueryDocument::Covered(document)).filter(|_| !query.counts);
            return Ok(match is_selected {
                true => RowOutcome::Selected(shown_key(key), document),
                false => RowOutcome::NotSelected,
            });
        }
        if passes && query.number.is_some() {
            return Ok(RowOutcome::Selected(shown_key(key().await?), None));
        }
        // These rows are decided without their documents.
        if is_dropped && (query.counts || query.counts_each) {
            return Ok(match query.counts_each {
                true => RowOutcome::Selected(Value::Null, None),
                false => RowOutcome::NotSelected,
            });
        }
        let Some(found) = documents.get(at).await? else { return Ok(RowOutcome::NotSelected) };
        // The document may have expired since the row was read, or the row lacks its expiry.
        if found.0.deleted || found.0.has_ended(within.trx.clock().unix_ms()) {
            return Ok(RowOutcome::NotSelected);
        }
        if let Some(matcher) = matcher {
            match matcher.selects(id, &found).await? {
                Some(true) => {}
                Some(false) => return Ok(RowOutcome::NotSelected),
                None => return Ok(RowOutcome::Paused),
            }
        }
        if query.counts || is_dropped {
            return Ok(RowOutcome::Selected(Value::Null, None));
        }
        let key = shown_key(key().await?);
        let IndexContext { inner, trx, instance } = *within;
        let document = shown(&found, trx, inner, instance, id, query.conflicts.into()).await?;
        Ok(RowOutcome::Selected(key, Some(QueryDocument::Whole(Box::new(document)))))
    }
}
