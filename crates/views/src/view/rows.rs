//! Reads the rows of a view, page by page.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_databases::document::edit::{Document, GetOptions};
use flatbed_databases::limits::Limit;
use flatbed_flatten::json::{Limits, Value, parse};
use flatbed_operations::read::get;
use flatbed_operations::read::get::{ShowsDocument, show_documents};
use flatbed_operations::read::local::LocalDocument;
use flatbed_operations::read::local::get_local;
use flatbed_revtree::{DocumentId, RevId, local_id};
use flatbed_rowtree::{KeyRange, count, nth};
use flatbed_store::error::{Error, Refusal, Result};
use flatbed_store::keys::{self, RowKey};
use flatbed_store::proto;
use flatbed_store::records::is_over as has_ended;
use flatbed_store::seq::Seq;
use futures_util::future::{try_join, try_join_all};

use crate::view::parts::{begin_texts, decode, texts_bytes};
use crate::view::read::{PageReader, PinnedVersion, Select, TreeReading, View, read_page};

const PAGE_ROWS: Limit<usize> = Limit::new(1_000, 30);

/// The approximate bytes of a page's rows.
const PAGE_BYTES: u64 = 400_000;

/// The most rows that are skipped one by one.
const SKIP_READ_MAX: Limit<u64> = Limit::new(100, 7);

const KEYS_AT_ONCE: usize = 64;

/// A query of rows.
#[derive(Debug, Clone, Default)]
pub struct ViewQuery {
    /// The rows to read.
    pub select: Select,
    /// True to begin with the last row; in a query of keys, with the last row of each key.
    pub descending: bool,
    /// The number of rows to skip.
    pub skip: u64,
    /// The most rows to answer.
    pub limit: Option<u64>,
    /// True to add documents: the row's own, or the one that its value names (`{"_id": ...}`).
    pub include_docs: bool,
    /// True to add the live conflicts of the rows' own documents. As in CouchDB not of those that values name.
    pub conflicts: bool,
}

/// A running query of rows. Each page is a transaction of its own, so that a view of any size can be read. Pages that
/// are read within some seconds show the same state, later ones may show a later state.
pub struct ViewRows {
    view: View,
    query: Arc<ViewQuery>,
    /// `None` after the end.
    place: Option<Cursor>,
    pinned: PinnedVersion,
}

#[derive(Debug, Clone, Default)]
struct Cursor {
    is_first: bool,
    key: usize,
    /// The rest of the range, or of the current key's; `None`: nothing of it was read.
    rest: Option<KeyRange>,
    skip: u64,
    limit: u64,
    /// The last row answered, if more rows with the same spelling of the key follow. Rows of a spelling keep their
    /// order in a descending read: they are read first, and the rest of the range ends behind them.
    shown: Option<Vec<u8>>,
    keys_at_once: usize,
    /// Skipped rows count only if their documents had not expired by this time, in milliseconds of Unix time, which the
    /// previous page used; 0: now.
    counted_at_ms: u64,
}

/// A page of a view.
#[derive(Debug, Clone, Default)]
pub struct ViewPage {
    /// The page's rows.
    pub rows: Vec<ViewRow>,
    /// The number of rows of the whole view.
    pub total_rows: u64,
    /// The first page's offset: the rows of the view before the beginning of the read, in the order of reading, without
    /// skipped rows that were not counted. In a query of keys: the rows before the first row of any key, or before the
    /// position of the last key if no key has rows.
    pub before: u64,
    /// The by-seq position up to which the view is current.
    pub place: Option<Seq>,
}

/// A row of a view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewRow {
    /// The id of its document.
    pub id: String,
    /// The emitted JSON.
    pub key: Vec<u8>,
    /// JSON.
    pub value: Vec<u8>,
    /// The row's own document, or the one that its value names, if documents are requested; `None`: it does not exist,
    /// or is deleted.
    pub doc: Option<Document>,
    /// True if the value names the document, which CouchDB opens without options.
    pub is_joined: bool,
    /// When its own document expires, in milliseconds of Unix time.
    pub ends_at_ms: Option<u64>,
}

impl View {
    /// Begins a query of rows. It reads nothing yet.
    pub fn rows(&self, query: ViewQuery) -> ViewRows {
        let place =
            Cursor { is_first: true, skip: query.skip, limit: query.limit.unwrap_or(u64::MAX), ..Cursor::default() };
        ViewRows { view: self.clone(), query: Arc::new(query), place: Some(place), pinned: PinnedVersion::default() }
    }
}

impl ViewRows {
    /// Returns the next page; `None` after the last. The first page exists even if it has no rows.
    ///
    /// # Errors
    /// Those of opening the view.
    #[boxed]
    pub async fn next_page(&mut self) -> Result<Option<ViewPage>> {
        let Some(from) = self.place.clone() else { return Ok(None) };
        let mut read = ReadRows {
            view: &self.view,
            query: &self.query,
            from: &from,
            now_ms: self.view.reader.inner.clock.unix_ms(),
        };
        let (mut page, next) = Box::pin(read_page(&self.view, from.is_first, &mut self.pinned, &mut read)).await?;
        self.place = next;
        if self.query.include_docs {
            self.named_revisions(&mut page.rows).await?;
            self.local_documents(&mut page.rows).await?;
        }
        Ok(Some(page))
    }

    /// Reads documents at the revisions that values name. They are few, and each is read on its own.
    async fn named_revisions(&self, rows: &mut [ViewRow]) -> Result<()> {
        for row in rows {
            let Some(LinkedDocument { id, rev: Some(rev) }) = joined(&row.value) else { continue };
            if id.as_deref() == Some(NO_ID) {
                continue;
            }
            let conflicts = self.query.conflicts && !row.is_joined;
            let rev: std::result::Result<RevId, _> = rev.parse();
            let options = match rev {
                Ok(rev) => GetOptions { rev: Some(rev), conflicts, ..GetOptions::default() },
                Err(_) => {
                    row.doc = None;
                    continue;
                }
            };
            let id = id.unwrap_or_else(|| row.id.clone());
            row.doc = match get::document(&self.view.reader, &id, &options).await {
                Ok(document) => Some(document),
                Err(Error::Refused(Refusal::DocumentNotFound(_))) => None,
                Err(error) => return Err(error),
            };
        }
        Ok(())
    }

    async fn local_documents(&self, rows: &mut [ViewRow]) -> Result<()> {
        for row in rows.iter_mut().filter(|row| row.is_joined) {
            let Some(LinkedDocument { id: Some(id), rev: None }) = joined(&row.value) else { continue };
            let id = DocumentId::of(&id);
            let Some(local) = id.local_name() else { continue };
            let found = match get_local(&self.view.reader, local).await {
                Err(Error::Refused(Refusal::InvalidDocument { .. })) => None,
                found => found?,
            };
            row.doc = found.map(document_of_local).transpose()?;
        }
        Ok(())
    }
}

fn document_of_local(local: LocalDocument) -> Result<Document> {
    let rev = RevId::from_parts(0, &local.revision.to_string());
    Ok(Document {
        id: local_id(&local.id),
        rev: rev.map_err(|_| Error::Corrupt("a local document has no revision".to_owned()))?,
        deleted: false,
        body: local.body,
        revisions: None,
        revs_info: None,
        born: None,
        conflicts: None,
        deleted_conflicts: None,
        attachments: Vec::new(),
        local_seq: None,
        ends_at_ms: None,
    })
}

struct LinkedDocument {
    /// [`NO_ID`] if the value's `_id` is no string: as in CouchDB the row has no document.
    id: Option<String>,
    rev: Option<String>,
}

/// An id that no document has.
const NO_ID: &str = "";

fn joined(value: &[u8]) -> Option<LinkedDocument> {
    // Few values name a document, and only these are parsed.
    if value.first() != Some(&b'{') || !value.windows(4).any(|part| matches!(part, b"\"_id" | b"\"_re")) {
        return None;
    }
    let value = parse(value, &Limits::default()).ok()?;
    let id = value.get("_id").map(|id| id.as_str().unwrap_or(NO_ID).to_owned());
    Some(LinkedDocument { id, rev: value.get("_rev").and_then(Value::as_str).map(str::to_owned) })
}

/// The most rows of a page whose documents are read one by one, each of up to 8 MB.
const APART_MAX: usize = 8;

fn is_apart(value: &[u8]) -> bool {
    joined(value).is_some_and(|joined| {
        joined.rev.is_some() || joined.id.is_some_and(|id| DocumentId::of(&id).local_name().is_some())
    })
}

struct RowToShow {
    row: ViewRow,
    id: Option<String>,
}

impl ShowsDocument for RowToShow {
    fn id(&self) -> &str {
        self.id.as_deref().unwrap_or(&self.row.id)
    }

    fn show(&mut self, document: Option<Document>) {
        // The row may be of an earlier revision without an expiry.
        let own = document.as_ref().filter(|_| !self.row.is_joined).and_then(|document| document.ends_at_ms);
        self.row.ends_at_ms = self.row.ends_at_ms.or(own);
        self.row.doc = document.filter(|document| !document.deleted);
        if let (true, Some(document)) = (self.row.is_joined, &mut self.row.doc) {
            document.conflicts = None;
        }
    }
}

struct ReadRows<'a> {
    view: &'a View,
    query: &'a ViewQuery,
    from: &'a Cursor,
    now_ms: u64,
}

/// Rows with their storage keys, and the position behind them.
#[derive(Default)]
struct Part {
    rows: Vec<(Vec<u8>, ViewRow)>,
    /// The rest of the range; `None`: it is exhausted.
    rest: Option<KeyRange>,
    /// See [`Cursor::shown`].
    shown: Option<Vec<u8>>,
}

impl PageReader for ReadRows<'_> {
    type Page = (ViewPage, Option<Cursor>);

    async fn read(&mut self, reading: &TreeReading<'_>) -> Result<Self::Page> {
        // The read may have waited for the view.
        let clock = reading.trx.clock();
        self.now_ms = clock.unix_ms();
        let mut page = ViewPage { total_rows: reading.total(), place: reading.place(), ..ViewPage::default() };
        let mut next = Cursor { is_first: false, ..self.from.clone() };
        if !reading.is_built() {
            return Ok((page, None));
        }
        let (rows, is_over) = match &self.query.select {
            Select::Range(range) => {
                let range = match &self.from.rest {
                    Some(rest) => rest.clone(),
                    None => reading.range(range, self.query.descending).await?,
                };
                let (part, before) = self.range_page(reading, range, &mut next).await?;
                page.before = before;
                (next.rest, next.shown) = (part.rest, part.shown);
                (part.rows, next.rest.is_none())
            }
            Select::Keys { keys, .. } => {
                let rows = self.keys_page(reading, keys.len(), &mut next, &mut page.before).await?;
                (rows, next.key >= keys.len())
            }
        };
        next.limit = next.limit.saturating_sub(rows.len() as u64);
        let mut is_over = is_over || next.limit == 0;
        if self.query.include_docs {
            is_over &= !self.show(reading, rows, &mut page, &mut next).await?;
            page.rows.retain(|row| !row.ends_at_ms.is_some_and(|at| has_ended(at, clock)));
        } else {
            page.rows = rows.into_iter().map(|(_, row)| row).collect();
        }
        Ok((page, (!is_over).then_some(next)))
    }
}

impl ReadRows<'_> {
    /// Returns the time by which documents must have expired for their rows not to count.
    fn counted_at_ms(&self) -> u64 {
        let is_counted_on = self.from.skip > 0 && self.from.counted_at_ms > 0;
        if is_counted_on { self.from.counted_at_ms } else { self.now_ms }
    }

    /// Reads the first rows of a range, and the number of the view's rows before it.
    async fn range_page(&self, reading: &TreeReading<'_>, range: KeyRange, next: &mut Cursor) -> Result<(Part, u64)> {
        let before = async { if self.from.is_first { self.before(reading, &range).await } else { Ok(0) } };
        if next.skip <= SKIP_READ_MAX.get() {
            let wanted = next.skip.saturating_add(next.limit).min(PAGE_ROWS.get() as u64 + next.skip) as usize;
            let part = async {
                let shown = self.from.shown.clone();
                let mut found = first_rows(reading, &range, shown, (wanted, PAGE_BYTES), self.query.descending).await?;
                found.leave_out_ended(self.now_ms);
                next.skip -= found.cut(next.skip, next.limit);
                found.with_texts(reading).await
            };
            return try_join(part, before).await;
        }
        let before = before.await?;
        let (range, shown) = passed_over(reading, range, before, next.skip, self.query.descending).await?;
        next.skip = 0;
        let Some(range) = range else { return Ok((Part::default(), before)) };
        let wanted = next.limit.min(PAGE_ROWS.get() as u64) as usize;
        let mut found = first_rows(reading, &range, shown, (wanted, PAGE_BYTES), self.query.descending).await?;
        found.leave_out_ended(self.now_ms);
        found.cut(0, next.limit);
        Ok((found.with_texts(reading).await?, before))
    }

    async fn before(&self, reading: &TreeReading<'_>, range: &KeyRange) -> Result<u64> {
        let place = match (self.query.descending, &range.end) {
            (true, None) => return Ok(0),
            (true, Some(end)) => end,
            (false, _) => &range.begin,
        };
        if place.is_empty() {
            return Ok(0);
        }
        let first = KeyRange { begin: Vec::new(), end: Some(place.clone()) };
        let counted = count(&reading.stored(), &reading.shape, reading.height, &first).await?;
        Ok(if self.query.descending { reading.total().saturating_sub(counted) } else { counted })
    }

    /// Reads rows of keys from a position on. Rows of several keys are requested together, up to a page's bytes. Parts
    /// are read only for the rows that are in the page.
    async fn keys_page(
        &self,
        reading: &TreeReading<'_>,
        count: usize,
        next: &mut Cursor,
        before: &mut u64,
    ) -> Result<Vec<(Vec<u8>, ViewRow)>> {
        let (descending, mut rows) = (self.query.descending, Vec::new());
        let limit = usize::try_from(next.limit).unwrap_or(usize::MAX);
        // At least one row, which shows the beginning of the read.
        let wanted = next.skip.saturating_add(next.limit).clamp(1, PAGE_ROWS.get() as u64) as usize;
        let mut has_found = !self.from.is_first;
        let counted_at_ms = self.counted_at_ms();
        let (mut seen, mut bytes) = (0, 0);
        if next.keys_at_once == 0 {
            next.keys_at_once = KEYS_AT_ONCE;
        }
        'page: while next.key < count {
            let (first, asked) = (next.key, next.keys_at_once.min(count - next.key));
            let keys = (first..first + asked).map(|key| {
                let (rest, shown) = if key == first { (next.rest.take(), next.shown.take()) } else { (None, None) };
                async move {
                    let range = match rest {
                        Some(rest) => Some(rest),
                        None => reading.range_of_key(&self.query.select, key, descending).await?,
                    };
                    let most = (wanted, PAGE_BYTES / asked as u64);
                    match range {
                        Some(range) => first_rows(reading, &range, shown, most, descending).await,
                        None => Ok(FoundRows::default()),
                    }
                }
            });
            for mut part in try_join_all(keys.collect::<Vec<_>>()).await? {
                if let (false, Some((key, _))) = (has_found, part.rows.first()) {
                    has_found = true;
                    let range = match descending {
                        // Rows of a spelling keep their order, so this is the first row of the spelling.
                        true => KeyRange { begin: Vec::new(), end: Some(RowKey::decode(key)?.of_spelling().end) },
                        false => KeyRange { begin: key.clone(), end: None },
                    };
                    *before = self.before(reading, &range).await?;
                }
                // The key's other rows follow at once if they fit.
                loop {
                    seen += part.rows.len();
                    bytes += part.rows.iter().map(|(key, row)| key.len() as u64 + texts_bytes(row)).sum::<u64>();
                    part.leave_out_ended(counted_at_ms);
                    let skipped = next.skip.min(part.rows.len() as u64);
                    next.skip -= skipped;
                    rows.extend(part.rows.into_iter().skip(skipped as usize));
                    (next.rest, next.shown) = (part.rest, part.shown);
                    let Some(rest) = next.rest.as_ref().filter(|_| rows.len() < limit) else { break };
                    if seen >= PAGE_ROWS.get() || bytes >= PAGE_BYTES {
                        break;
                    }
                    let most = (wanted, PAGE_BYTES - bytes);
                    part = first_rows(reading, rest, next.shown.take(), most, descending).await?;
                }
                next.key += usize::from(next.rest.is_none());
                let is_full = rows.len() >= limit || seen >= PAGE_ROWS.get() || bytes >= PAGE_BYTES;
                if has_found && (is_full || next.rest.is_some()) {
                    next.keys_at_once = (next.key - first).max(1);
                    break 'page;
                }
            }
            next.keys_at_once = next.keys_at_once.saturating_mul(2).min(KEYS_AT_ONCE);
        }
        if !has_found
            && let Some(last) = count.checked_sub(1)
            && let Some(range) = reading.range_of_key(&self.query.select, last, descending).await?
        {
            *before = self.before(reading, &range).await?;
        }
        rows.truncate(limit);
        with_texts(reading, rows).await
    }

    /// Reads the documents of rows. Returns whether some rows did not fit and come with the next page.
    async fn show(
        &self,
        reading: &TreeReading<'_>,
        rows: Vec<(Vec<u8>, ViewRow)>,
        page: &mut ViewPage,
        next: &mut Cursor,
    ) -> Result<bool> {
        let keys: Vec<Vec<u8>> = rows.iter().map(|(key, _)| key.clone()).collect();
        let shown = |(_, mut row): (Vec<u8>, ViewRow)| {
            let id = joined(&row.value).and_then(|joined| joined.id);
            row.is_joined = id.is_some();
            RowToShow { id, row }
        };
        // Documents read one by one do not count towards a page's bytes, so a page has few of them.
        let mut apart = rows.iter().enumerate().filter(|(_, (_, row))| is_apart(&row.value));
        let most = apart.nth(APART_MAX).map_or(rows.len(), |(at, _)| at);
        let mut shown: Vec<RowToShow> = rows.into_iter().take(most).map(shown).collect();
        let instance = &reading.open.instance;
        let inner = &self.view.reader.inner;
        let is_cut =
            show_documents(reading.trx, inner, instance, &mut shown, Vec::new(), self.query.conflicts.into()).await?;
        page.rows = shown.into_iter().map(|shown| shown.row).collect();
        if !is_cut && most == keys.len() {
            return Ok(false);
        }
        // The rest is read again by its number. Rows of a range may have moved by then, as between any two pages.
        let taken = page.rows.len() as u64;
        let limit = self.from.limit.saturating_sub(taken);
        *next = Cursor { is_first: false, limit, keys_at_once: next.keys_at_once, ..self.from.clone() };
        let at = page.rows.len();
        match (&self.query.select, keys.get(at.wrapping_sub(1)), keys.get(at)) {
            (Select::Range(range), Some(last), Some(left)) => {
                let whole = match &self.from.rest {
                    Some(rest) => rest.clone(),
                    None => reading.range(range, self.query.descending).await?,
                };
                (next.rest, next.shown) = behind(whole, last, left, self.query.descending)?;
                next.skip = 0;
            }
            _ => (next.skip, next.counted_at_ms) = (next.skip + taken, self.counted_at_ms()),
        }
        Ok(true)
    }
}

/// Returns the rest of a range behind a row, and the row if more rows of its spelling follow. `left`: the next row in
/// the order of reading.
fn behind(range: KeyRange, last: &[u8], left: &[u8], descending: bool) -> Result<(Option<KeyRange>, Option<Vec<u8>>)> {
    if !descending {
        return Ok((Some(KeyRange { begin: [last, &[0]].concat(), ..range }), None));
    }
    let spelling = RowKey::decode(last)?.of_spelling();
    let is_within = (spelling.begin.as_slice()..spelling.end.as_slice()).contains(&left);
    let (end, shown) = if is_within { (spelling.end, Some(last.to_vec())) } else { (spelling.begin, None) };
    Ok((Some(KeyRange { end: Some(end), ..range }), shown))
}

/// Returns a range without its first `skip` rows, before which the view has `before` rows, and the last of them if more
/// rows of its spelling follow. No range: no rows are left.
async fn passed_over(
    reading: &TreeReading<'_>,
    range: KeyRange,
    before: u64,
    skip: u64,
    descending: bool,
) -> Result<(Option<KeyRange>, Option<Vec<u8>>)> {
    let stored = reading.stored();
    let first = before.saturating_add(skip);
    if !descending {
        let found = nth(&stored, reading.height, first).await?;
        let begin = found.filter(|key| range.contains(key));
        return Ok((begin.map(|begin| KeyRange { begin, ..range }), None));
    }
    let Some(at) = reading.total().checked_sub(first.saturating_add(1)) else { return Ok((None, None)) };
    let found = nth(&stored, reading.height, at).await?;
    let Some(found) = found.filter(|key| range.contains(key)) else { return Ok((None, None)) };
    let key = RowKey::decode(&found)?;
    let spelling = key.of_spelling();
    let (tree, end) = (reading.open.tree, Some(spelling.end.as_slice()));
    let all = reading.keys.rows(tree, &spelling.begin, end);
    let page = reading.reads().range(&all, 1, true).await?;
    let last = page.get(0).map(|(key, _)| RowKey::decode(key.get(reading.keys.row_prefix(tree)..).unwrap_or_default()));
    let last = last.transpose()?.map_or(key.ordinal, |last| last.ordinal);
    // The skipped rows of the spelling begin at its first one.
    let shown = last.saturating_sub(key.ordinal).checked_sub(1).map(|ordinal| RowKey { ordinal, ..key }.encode());
    Ok((Some(KeyRange { end: Some(spelling.end), ..range }), shown))
}

/// Reads the first rows of a range in the order of reading, up to a number of rows and about a number of bytes. In a
/// descending read the rows of a spelling are read forwards, behind the row that was `shown` last.
async fn first_rows(
    reading: &TreeReading<'_>,
    range: &KeyRange,
    shown: Option<Vec<u8>>,
    (wanted, bytes_max): (usize, u64),
    descending: bool,
) -> Result<FoundRows> {
    if !descending {
        return find_rows(reading, range, wanted, bytes_max, false).await;
    }
    let mut range = range.clone();
    if let Some(shown) = shown {
        let spelling = RowKey::decode(&shown)?.of_spelling();
        let (begin, before) = ([&shown[..], &[0]].concat(), spelling.begin.clone());
        let found = rows_of_spelling(reading, &range, begin, spelling, (wanted, bytes_max)).await?;
        if !found.rows.is_empty() {
            return Ok(found);
        }
        range.end = Some(before);
    }
    let mut found = find_rows(reading, &range, wanted, bytes_max, true).await?;
    let last = found.rows.last().map(|(key, _)| RowKey::decode(key)).transpose()?;
    let mut behind = FoundRows::default();
    // The read ended among the last rows of this spelling.
    if let Some(spelling) = last.filter(|last| last.ordinal > 0).map(|last| last.of_spelling()) {
        let whole = found.rows.iter().take_while(|(key, _)| *key >= spelling.end).count();
        found.rows.truncate(whole);
        let most = (wanted.saturating_sub(whole), bytes_max);
        behind = rows_of_spelling(reading, &range, spelling.begin.clone(), spelling, most).await?;
        (found.rest, found.shown) = (behind.rest.take(), behind.shown.take());
    }
    turn(&mut found.rows)?;
    found.rows.append(&mut behind.rows);
    Ok(found)
}

/// Reads rows of a spelling from a key on, in their own order, and returns the rest of a range that is read backwards.
async fn rows_of_spelling(
    reading: &TreeReading<'_>,
    range: &KeyRange,
    begin: Vec<u8>,
    spelling: keys::KeyRange,
    (wanted, bytes_max): (usize, u64),
) -> Result<FoundRows> {
    let own = KeyRange { begin, end: Some(spelling.end.clone()) };
    let mut found = find_rows(reading, &own, wanted, bytes_max, false).await?;
    found.shown = found.rest.and(found.rows.last()).map(|(key, _)| key.clone());
    let end = if found.shown.is_some() { spelling.end } else { spelling.begin };
    found.rest = (end > range.begin).then(|| KeyRange { begin: range.begin.clone(), end: Some(end) });
    Ok(found)
}

/// Sorts rows that were read backwards: those of one spelling keep their own order.
fn turn(found: &mut [(Vec<u8>, proto::ViewRow)]) -> Result<()> {
    let keys = found.iter().map(|(key, _)| RowKey::decode(key)).collect::<Result<Vec<_>>>()?;
    if keys.iter().all(|key| key.ordinal == 0) {
        return Ok(());
    }
    let mut begin = 0;
    for run in keys.chunk_by(|a, b| (&a.element, &a.id, a.spelling) == (&b.element, &b.id, b.spelling)) {
        if let Some(rows) = found.get_mut(begin..begin + run.len()) {
            rows.reverse();
        }
        begin += run.len();
    }
    Ok(())
}

/// Rows with their storage keys, without their parts, and the position behind them.
#[derive(Default)]
struct FoundRows {
    rows: Vec<(Vec<u8>, proto::ViewRow)>,
    /// The rest of the range; `None`: it is exhausted.
    rest: Option<KeyRange>,
    /// See [`Cursor::shown`].
    shown: Option<Vec<u8>>,
}

/// Reads the first rows of a range, backwards if asked, up to about `bytes_max` bytes.
async fn find_rows(
    reading: &TreeReading<'_>,
    range: &KeyRange,
    wanted: usize,
    bytes_max: u64,
    descending: bool,
) -> Result<FoundRows> {
    let (tree, prefix) = (reading.open.tree, reading.keys.row_prefix(reading.open.tree));
    let (mut rest, mut rows) = (range.clone(), Vec::new());
    let (mut bytes, mut is_all) = (0, false);
    if range.end.as_ref().is_some_and(|end| *end <= range.begin) {
        return Ok(FoundRows::default());
    }
    while rows.len() < wanted && bytes < bytes_max && !is_all {
        let keys = reading.keys.rows(tree, &rest.begin, rest.end.as_deref());
        let most = wanted - rows.len();
        let page = reading.reads().range(&keys, most, descending).await?;
        is_all = !page.more();
        for (key, value) in page.iter() {
            let key = key.get(prefix..).unwrap_or_default().to_vec();
            let row = decode(value)?;
            bytes += texts_bytes(&row) + key.len() as u64;
            let is_apart = !row.blob_id.is_empty();
            rows.push((key, row));
            // Its parts are still to be read.
            if is_apart && bytes > 4 * bytes_max {
                is_all = false;
                break;
            }
        }
        match rows.last() {
            Some((last, _)) if descending => rest.end = Some(last.clone()),
            Some((last, _)) => rest.begin = [&last[..], &[0]].concat(),
            None => {}
        }
    }
    Ok(FoundRows { rows, rest: (!is_all).then_some(rest), shown: None })
}

impl FoundRows {
    /// Removes the rows of documents that had expired by a time. Their parts are not read, and they do not count.
    fn leave_out_ended(&mut self, at_ms: u64) {
        self.rows.retain(|(_, row)| row.expires_at_ms == 0 || row.expires_at_ms > at_ms);
    }

    /// Removes the first `skip` rows and those behind the next `limit`, and returns the number skipped. Their parts are
    /// not read.
    fn cut(&mut self, skip: u64, limit: u64) -> u64 {
        let skipped = skip.min(self.rows.len() as u64);
        self.rows.drain(..skipped as usize);
        self.rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        skipped
    }

    async fn with_texts(self, reading: &TreeReading<'_>) -> Result<Part> {
        Ok(Part { rows: with_texts(reading, self.rows).await?, rest: self.rest, shown: self.shown })
    }
}

async fn with_texts(
    reading: &TreeReading<'_>,
    rows: Vec<(Vec<u8>, proto::ViewRow)>,
) -> Result<Vec<(Vec<u8>, ViewRow)>> {
    let rows = rows.into_iter().map(|(row_key, row)| {
        let id = RowKey::decode(&row_key)?.id;
        let ends_at_ms = Some(row.expires_at_ms).filter(|at| *at > 0);
        let texts = begin_texts(reading.trx, &reading.keys, &id, row);
        Ok(async move {
            let (key, value) = texts.await?;
            Ok((row_key, ViewRow { id, key, value, doc: None, is_joined: false, ends_at_ms }))
        })
    });
    try_join_all(rows.collect::<Result<Vec<_>>>()?).await
}
