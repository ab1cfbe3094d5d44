//! Following a database's changes in the order of commits.

mod by_id;

use std::collections::HashSet;
use std::sync::Arc;

use flatbed_revtree::{RevId, rank};
use prost::Message;
use tokio::sync::watch;

use crate::database::Database;
use crate::document::edit::Document;
use crate::document::tree::Leaves;
use crate::error::{Error, Result};
use crate::feed::hub::{Following, Taken};
use crate::feed::tail::{Part, TailDocument, TailRow};
use crate::instance::Instance;
use crate::layer::Inner;
use crate::read::all_docs::count_keys;
use crate::read::get::{ShowsDocument, last_seq, show_documents};
use crate::store::keys::{Counter, KeyRange};
use crate::store::proto;
use crate::store::records::decode_counter;
use crate::store::records::revision;
use crate::store::seq::Seq;
use crate::store::transaction::page_of;
use crate::store::transaction::{Attempt, Operation, Transaction, bounded};

/// Rows of a page without documents.
const PAGE_ROWS_MAX: usize = 2_000;

/// Rows of a page with documents; it ends early at [`crate::read::get::READ_BYTES_MAX`].
const PAGE_DOCUMENTS_MAX: usize = 200;

/// Up to here `pending` is counted.
const PENDING_EXACT_MAX: usize = 10_000;

/// About what a by-seq row takes, for the estimate of `pending` beyond that.
const ROW_BYTES: u64 = 100;

/// Where a feed begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Since {
    /// With the oldest change.
    #[default]
    Beginning,
    /// After the newest one that is there at the first read.
    Now,
    /// After this one. A sequence of another incarnation means the beginning.
    After(Seq),
}

/// What a feed shows.
#[derive(Debug, Clone, Default)]
pub struct ChangesQuery {
    /// Where to begin.
    pub since: Since,
    /// Newest first, down to `since`. Such a feed cannot wait.
    pub descending: bool,
    /// With each changed document as it stands.
    pub include_docs: bool,
    /// The documents with their other leaves that are not deleted.
    pub conflicts: bool,
    /// All leaves of each document, not only the winner.
    pub all_leaves: bool,
    /// How many rows at most.
    pub limit: Option<u64>,
    /// These documents only.
    pub doc_ids: Option<Arc<HashSet<String>>>,
    /// Design documents only.
    pub design_only: bool,
}

impl ChangesQuery {
    fn passes(&self, id: &str) -> bool {
        let is_wanted = self.doc_ids.as_ref().is_none_or(|ids| ids.contains(id));
        is_wanted && (!self.design_only || id.starts_with("_design/"))
    }

    fn is_filtered(&self) -> bool {
        self.doc_ids.is_some() || self.design_only
    }

    pub(crate) fn reads_documents(&self) -> bool {
        self.include_docs
    }
}

impl ChangesQuery {
    /// Whether a feed shows a shared row; `None`: what it needs for that is not in it.
    fn takes(&self, row: &TailRow) -> Option<bool> {
        if !self.passes(&row.row.id) {
            return Some(false);
        }
        if self.all_leaves && row.row.lacks_leaves() {
            return None;
        }
        if !self.reads_documents() {
            return Some(true);
        }
        let TailDocument::Read { with_conflicts, .. } = &row.document else { return None };
        if self.include_docs && self.conflicts && !with_conflicts {
            return None;
        }
        Some(true)
    }

    /// The row as this feed shows it.
    fn shown(&self, row: &TailRow) -> ChangeRow {
        let mut shown = row.row.clone();
        if !self.all_leaves {
            shown.leaves.truncate(1);
        }
        if let (true, TailDocument::Read { document, .. }) = (self.include_docs, &row.document) {
            let mut document = document.clone();
            document.conflicts = document.conflicts.filter(|_| self.conflicts);
            shown.doc = Some(*document);
        }
        shown
    }
}

/// A document's newest change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeRow {
    /// Where it stands.
    pub seq: Seq,
    /// The document's id.
    pub id: String,
    /// The winner.
    pub rev: RevId,
    /// The winner; where asked for all leaves, each better than the next.
    pub leaves: Vec<RevId>,
    /// How many leaves there are.
    pub leaf_count: usize,
    /// Whether the winner is a tombstone.
    pub deleted: bool,
    /// When asked for.
    pub doc: Option<Document>,
}

impl ChangeRow {
    /// Whether there are more leaves than the by-seq entry names.
    pub(crate) fn lacks_leaves(&self) -> bool {
        self.leaf_count > self.leaves.len()
    }

    pub(crate) async fn read_leaves(&mut self, trx: &Transaction, instance: &Instance) -> Result<()> {
        let leaves = Leaves::read(trx, &instance.keys.document(&self.id)).await?.0;
        let mut leaves: Vec<_> = leaves.into_iter().map(|leaf| (leaf.deleted, leaf.rev)).collect();
        leaves.sort_by(|a, b| rank(b.0, &b.1).cmp(&rank(a.0, &a.1)));
        self.leaves = leaves.into_iter().map(|(_, rev)| rev).collect();
        Ok(())
    }
}

/// Part of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangesPage {
    /// In the feed's order; may be empty where a filter passes nothing.
    pub rows: Vec<ChangeRow>,
    /// All is read that was there, or the limit is reached.
    pub at_end: bool,
    /// Where the feed stands after this page.
    pub last_seq: Seq,
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Read on: there may be something.
    MayHaveChanged,
    /// The server is stopping.
    Shutdown,
}

/// What following gave.
#[derive(Debug)]
pub enum Followed {
    /// What came next, in order, at least one row, as all followers of the database share it. Its leaves are all leaves,
    /// and it has the document if the feed shows documents.
    Rows(Vec<Arc<TailRow>>),
    /// There is something that is not shared: it comes with [`Changes::next_page`].
    ReadOn,
    /// The server is stopping.
    Shutdown,
}

/// A feed under way.
pub struct Changes {
    database: Database,
    query: ChangesQuery,
    /// Read up to here; `None` at first.
    cursor: Option<Seq>,
    limit: u64,
    following: Option<Following>,
    instance: Option<Arc<Instance>>,
    /// The last page was not the last one.
    is_behind: bool,
    /// Of a list of documents that is being answered.
    left: Option<by_id::Left>,
}

impl Changes {
    pub(crate) fn new(database: Database, query: ChangesQuery) -> Self {
        let limit = query.limit.unwrap_or(u64::MAX);
        Changes { database, query, cursor: None, limit, following: None, instance: None, is_behind: false, left: None }
    }

    /// What is there after the cursor, one bounded page of it, of one read version.
    pub async fn next_page(&mut self) -> Result<ChangesPage> {
        if self.cursor.is_none()
            && let Some(page) = self.first_shared_page().await
        {
            return Ok(page);
        }
        // Boxed: a follower that waits would keep room for the reads' states, which are large.
        let (instance, page) = match Box::pin(self.next_by_ids()).await? {
            Some(by_ids) => by_ids,
            None => Box::pin(self.database.read(&mut self.page())).await?,
        };
        self.is_behind = !page.at_end;
        self.limit -= page.rows.len() as u64;
        self.cursor = Some(page.last_seq);
        self.instance = Some(instance);
        Ok(page)
    }

    fn page(&self) -> Page<'_> {
        Page {
            inner: &self.database.inner,
            name: &self.database.name,
            query: &self.query,
            cursor: self.cursor,
            limit: self.limit,
        }
    }

    /// A feed that begins near the end is answered from what followers share, once that is complete as of a read version
    /// that is taken now. `None`: nobody follows, or the feed begins further back.
    async fn first_shared_page(&mut self) -> Option<ChangesPage> {
        if self.query.descending || self.limit == 0 || self.query.since == Since::Beginning {
            return None;
        }
        let inner = &self.database.inner;
        let instance = inner.cached(&self.database.name)?;
        let following = Following::at_running(inner, &instance, &self.query)?;
        let version = async { Ok(Transaction::begin(&inner.db, &inner.metrics)?.get_read_version().await?) };
        let version = bounded(version).await.ok()?;
        if !bounded(async { Ok(following.fresh(version).await) }).await.ok()? {
            return None;
        }
        self.cursor = Some(match self.query.since {
            Since::After(seq) => seq,
            _ => following.drained()?,
        });
        (self.following, self.instance) = (Some(following), Some(instance));
        let (rows, at_end) = match self.take() {
            Step::Rows(rows, at_end) => (rows, at_end),
            Step::Filtered => (Vec::new(), false),
            Step::Nothing => (Vec::new(), true),
            Step::NotRead | Step::ReadOn => return None,
        };
        let rows = rows.iter().map(|row| self.query.shown(row)).collect();
        Some(ChangesPage { rows, at_end, last_seq: self.cursor? })
    }

    /// Waits for what comes after the cursor, on what all followers of the database share, and takes it. It may be dropped
    /// and called again at any time.
    pub async fn follow(&mut self) -> Followed {
        let mut closing = self.database.inner.closing.subscribe();
        loop {
            if *closing.borrow_and_update() {
                return Followed::Shutdown;
            }
            match self.take() {
                Step::Rows(rows, _) => return Followed::Rows(rows),
                Step::ReadOn => return Followed::ReadOn,
                Step::Filtered => {}
                Step::Nothing | Step::NotRead => self.changed(&mut closing).await,
            }
        }
    }

    /// Waits as [`Changes::follow`] does until there is something after the cursor, and takes nothing.
    pub async fn wait(&mut self) -> Wait {
        let mut closing = self.database.inner.closing.subscribe();
        loop {
            if *closing.borrow_and_update() {
                return Wait::Shutdown;
            }
            match self.look() {
                Some(Taken::Part(part)) if part.rows.is_empty() => {}
                Some(_) => return Wait::MayHaveChanged,
                None => {}
            }
            self.changed(&mut closing).await;
        }
    }

    async fn changed(&mut self, closing: &mut watch::Receiver<bool>) {
        let Some(following) = &mut self.following else { return };
        tokio::select! {
            () = following.changed() => {}
            _ = closing.wait_for(|closing| *closing) => {}
        }
    }

    /// What is shared behind the cursor; `None`: it is being read for the first time.
    fn look(&mut self) -> Option<Taken> {
        // Nothing was read yet.
        let (Some(instance), Some(cursor)) = (&self.instance, self.cursor) else { return Some(Taken::ReadBySeq) };
        let following = match self.following.take() {
            Some(following) if following.is_at(instance) => following,
            _ => Following::new(&self.database.inner, instance, &self.query),
        };
        let taken = self.following.insert(following).take(cursor);
        if let Some(Taken::Ended) = taken {
            self.following = None;
        }
        taken
    }

    fn take(&mut self) -> Step {
        let step = match self.look() {
            None => Step::NotRead,
            Some(Taken::Part(part)) => self.take_part(part),
            Some(Taken::ReadBySeq | Taken::Ended) => Step::ReadOn,
        };
        let is_behind = matches!(step, Step::ReadOn);
        let metrics = &self.database.inner.metrics;
        if let Some(following) = &self.following {
            following.stands_at(self.cursor.filter(|_| !is_behind));
            metrics.tail_misses.add(u64::from(is_behind));
        }
        if let Step::Rows(rows, _) = &step {
            metrics.tail_rows.add(rows.len() as u64);
        }
        step
    }

    fn take_part(&mut self, part: Part) -> Step {
        let mut rows = Vec::with_capacity(part.rows.len());
        let was_empty = part.rows.is_empty();
        for row in part.rows {
            let seq = row.row.seq;
            match self.query.takes(&row) {
                None if rows.is_empty() => return Step::ReadOn,
                None => return Step::Rows(rows, false),
                Some(false) => {}
                Some(true) => {
                    self.limit = self.limit.saturating_sub(1);
                    rows.push(row);
                }
            }
            self.cursor = Some(seq);
            if self.limit == 0 {
                return Step::Rows(rows, true);
            }
        }
        self.cursor = part.last_seq.or(self.cursor);
        match (rows.is_empty(), was_empty) {
            (false, _) => Step::Rows(rows, part.is_all),
            (true, false) => Step::Filtered,
            (true, true) => Step::Nothing,
        }
    }

    /// How many rows lie after the cursor: exact up to 10,000, beyond it an estimate.
    pub async fn pending(&mut self) -> Result<u64> {
        let Some(cursor) = self.cursor else { return Ok(0) };
        let mut pending = Pending { inner: &self.database.inner, name: &self.database.name, cursor };
        Box::pin(self.database.read(&mut pending)).await
    }

    /// Goes back to a row of what came last: what stood behind it has not been taken.
    pub fn stand_at(&mut self, seq: Seq) {
        self.cursor = Some(seq);
    }

    /// A shared row as this feed shows it.
    pub fn shown(&self, row: &TailRow) -> ChangeRow {
        self.query.shown(row)
    }

    /// Where the feed stands; `None` before the first page.
    pub fn last_seq(&self) -> Option<Seq> {
        self.cursor
    }
}

/// What a feed took from what is shared.
enum Step {
    /// Rows; whether that was all.
    Rows(Vec<Arc<TailRow>>, bool),
    /// The filter passed nothing of what was there.
    Filtered,
    /// There was nothing.
    Nothing,
    /// Nothing is shared yet.
    NotRead,
    /// What is needed is not shared.
    ReadOn,
}

struct Page<'a> {
    inner: &'a Inner,
    name: &'a str,
    query: &'a ChangesQuery,
    cursor: Option<Seq>,
    limit: u64,
}

impl Operation for Page<'_> {
    type Output = (Arc<Instance>, ChangesPage);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let newest = last_seq(trx, &instance).await?;
        if self.query.descending && self.cursor.is_some_and(|cursor| cursor.incarnation() != instance.incarnation()) {
            // What is left of the old one is gone: this must not end as if all had been read.
            return Err(Error::DatabaseNotFound);
        }
        let (range, at) = self.range(&instance, newest);
        let done = |rows, at_end, last_seq| Ok((instance.clone(), ChangesPage { rows, at_end, last_seq }));
        if self.limit == 0 || range.begin >= range.end {
            return done(Vec::new(), true, at);
        }
        let most = if self.query.reads_documents() { PAGE_DOCUMENTS_MAX } else { PAGE_ROWS_MAX };
        let limit = if self.query.is_filtered() { most } else { most.min(usize::try_from(self.limit).unwrap_or(most)) };
        self.inner.metrics.by_seq_reads.add(1);
        let page = trx.get_range(&page_of(&range, limit, self.query.descending), 1, true).await?;
        self.inner.metrics.by_seq_rows.add(page.len() as u64);
        let read_all = !page.more() && page.len() < limit;
        let mut last_read = at;
        let mut full = false;
        let mut rows = Vec::with_capacity(page.len());
        for entry in &page {
            last_read = instance.keys.by_seq_parse(entry.key())?;
            let row = change_row(last_read, entry.value())?;
            if self.query.passes(&row.id) {
                rows.push(row);
                if rows.len() as u64 == self.limit {
                    full = true;
                    break;
                }
            }
        }
        drop(page);
        // At the end the feed stands at the newest sequence, whatever a filter passed.
        let last_seq = if read_all && !full && !self.query.descending { newest.max(last_read) } else { last_read };
        self.with_documents(trx, &instance, rows, read_all || full, last_seq).await
    }
}

impl Page<'_> {
    /// What is to be read, and where the feed stands before it.
    fn range(&self, instance: &Instance, newest: Seq) -> (KeyRange, Seq) {
        let incarnation = instance.incarnation();
        let zero = Seq::zero(incarnation);
        let of_this = |seq: Seq| if seq.incarnation() == incarnation { seq } else { zero };
        let since = match self.query.since {
            Since::Beginning => zero,
            Since::Now => newest,
            Since::After(seq) => of_this(seq),
        };
        let mut range = instance.keys.by_seq_after(&since);
        if self.query.descending {
            if let Some(cursor) = self.cursor {
                range.end = instance.keys.by_seq(&of_this(cursor));
            }
            return (range, self.cursor.unwrap_or(newest));
        }
        let at = self.cursor.map_or(since, of_this);
        (instance.keys.by_seq_after(&at), at)
    }

    async fn with_documents(
        &self,
        trx: &Transaction,
        instance: &Arc<Instance>,
        mut rows: Vec<ChangeRow>,
        mut at_end: bool,
        mut last_seq: Seq,
    ) -> Result<(Arc<Instance>, ChangesPage)> {
        if self.query.all_leaves {
            for row in rows.iter_mut().filter(|row| row.lacks_leaves()) {
                row.read_leaves(trx, instance).await?;
            }
        } else {
            rows.iter_mut().for_each(|row| row.leaves.truncate(1));
        }
        if self.query.reads_documents()
            && show_documents(trx, self.inner, instance, &mut rows, self.query.conflicts).await?
        {
            at_end = false;
            last_seq = rows.last().map_or(last_seq, |row| row.seq);
        }
        Ok((instance.clone(), ChangesPage { rows, at_end, last_seq }))
    }
}

impl ShowsDocument for ChangeRow {
    fn id(&self) -> &str {
        &self.id
    }

    fn show(&mut self, document: Option<Document>) {
        self.doc = document;
    }
}

pub(crate) fn change_row(seq: Seq, value: &[u8]) -> Result<ChangeRow> {
    let entry = proto::SequenceEntry::decode(value)?;
    let rev = revision(entry.winner.as_ref())?;
    let mut leaves = vec![rev.clone()];
    for leaf in &entry.leaves {
        let leaf = revision(Some(leaf))?;
        if leaf != rev {
            leaves.push(leaf);
        }
    }
    let leaf_count = usize::try_from(entry.leaf_count).unwrap_or(usize::MAX);
    Ok(ChangeRow { seq, id: entry.document_id, rev, leaves, leaf_count, deleted: entry.deleted, doc: None })
}

struct Pending<'a> {
    inner: &'a Inner,
    name: &'a str,
    cursor: Seq,
}

impl Operation for Pending<'_> {
    type Output = u64;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<u64> {
        let instance = self.inner.resolve(trx, self.name).await?;
        if self.cursor.incarnation() != instance.incarnation() {
            return Ok(0);
        }
        let range = instance.keys.by_seq_after(&self.cursor);
        let counted = count_keys(trx, &range, PENDING_EXACT_MAX + 1).await?;
        if counted <= PENDING_EXACT_MAX {
            return Ok(counted as u64);
        }
        let bytes = trx.get_estimated_range_size_bytes(&range.begin, &range.end);
        let mut all = 0;
        for counter in [Counter::Documents, Counter::DeletedDocuments] {
            let count = trx.get(&instance.keys.counter(counter), true).await?;
            all += decode_counter(count.as_deref())?.max(0) as u64;
        }
        let estimate = bytes.await?.max(0) as u64 / ROW_BYTES;
        Ok(estimate.clamp(counted as u64, all.max(counted as u64)))
    }
}
