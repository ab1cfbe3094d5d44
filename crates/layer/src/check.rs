//! The checker: recomputes all data derived from documents from the raw keys.
//!
//! Each document is checked in one transaction together with its entries elsewhere, so that the check may run beside
//! writers. Sums over the whole database are compared only if neither `last_seq` nor a counter changed while the check
//! ran.

mod attachments;
mod document;
mod fields;
mod groups;
mod locals;
mod pages;
mod replicators;
mod settings;
mod updates;
mod work;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use async_recursion::async_recursion as boxed;
use document::{DocumentCheck, Sums};
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_operations::index::groups::is_group;
use flatbed_operations::index::kinds::{DefinedIndex, indexes_of};
use flatbed_operations::index::maintainers::IndexContext;
use flatbed_operations::index::partitions::{COUNTED, PartitionSums};
use flatbed_operations::index::{all_docs, by_seq, channels};
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{BucketKeys, Counter, KeyRange, Subspace};
use flatbed_store::proto;
use flatbed_store::records::decode_counter;
use flatbed_store::seq::Seq;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use futures_util::future::BoxFuture;
use futures_util::stream::{StreamExt, TryStreamExt, iter};
use pages::{PageSize, read_page};
use prost::Message;
use tokio::sync::Semaphore;

use crate::check::groups::check_group;
use crate::database_names::NameRange;
use crate::handle::Layer;
use crate::handle::Reader;

/// The most keys of a page: see [`PageSize`].
const PAGE_KEYS: usize = 1_000;

/// The number of documents or entries of a page that are checked concurrently: each waits for its own reads.
const CHECKED_AT_ONCE: usize = 128;

/// The number of these with a body of more than 400 kB.
const LARGE_AT_ONCE: usize = 2;

/// The most violations that are kept; further ones are only counted.
const VIOLATIONS_MAX: usize = 1_000;

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The number of documents checked, tombstones included.
    pub documents: u64,
    /// The number of documents mapped again and compared, for each group of views, if the layer was given a runtime of
    /// functions.
    pub mapped: u64,
    /// The number of keys checked.
    pub keys: u64,
    /// The number of keys in each part of the data model, in key order.
    pub keys_in: Vec<(&'static str, u64)>,
    /// One sentence for each of the first thousand violations.
    pub violations: Vec<String>,
    /// The number of all violations.
    pub violation_count: u64,
    /// True if sums were compared: not if writes or a compaction ran meanwhile.
    pub sums_compared: bool,
    /// The number of blobs without a document: running uploads, or broken ones to be swept.
    pub staged_uploads: u64,
}

impl Report {
    /// Returns whether no violation was found.
    pub fn is_clean(&self) -> bool {
        self.violation_count == 0
    }

    pub(crate) fn violation(&mut self, text: String) {
        self.violation_count += 1;
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(text);
        }
    }
}

/// Checks one database. `progress` is called repeatedly with the number of documents checked so far.
///
/// # Errors
/// [`Error::DatabaseNotFound`], [`Error::FormatTooNew`], [`Error::FormatTooOld`], [`Error::Storage`]; violations are in
/// the report.
pub async fn check_database(database: &Reader, mut progress: impl FnMut(u64) + Send) -> Result<Report> {
    walk(database, &mut progress).await
}

#[boxed]
async fn walk(database: &Reader, progress: &mut (dyn FnMut(u64) + Send)) -> Result<Report> {
    let inner = &database.handle.inner;
    let name = &*database.handle.name;
    let mut report = Report::default();
    let instance = run(inner, &mut Begin { inner, name }).await?;
    let before = run(inner, &mut Totals { inner, name, instance: &instance }).await?;
    let (_, waiting_before) = attachments::waiting(inner, &instance).await?;
    let mut walk = Walk { reader: database, inner, name, instance: &instance, report: &mut report, progress };
    let mut found = SubspaceContents::default();
    for subspace in Subspace::all() {
        let keys = walk.subspace(subspace, &mut found).await?;
        walk.report.keys += keys;
        walk.report.keys_in.push((subspace.name(), keys));
        (walk.progress)(walk.report.documents);
    }
    for gap in instance.keys.between_subspaces() {
        walk.strays(gap).await?;
    }
    let SubspaceContents { sums, newest, uses, waiting, blobs, staged, by_seq, all_docs, partitions, counted } = found;
    report.staged_uploads = staged.len() as u64;
    let after = run(inner, &mut Totals { inner, name, instance: &instance }).await?;
    // A compaction changes counters but no sequence; freeing attachments that waited for it may change neither.
    if after != before || waiting != waiting_before {
        return Ok(report);
    }
    report.sums_compared = true;
    let (last_seqs, counters) = after;
    let after = last_seqs.iter().copied().max().unwrap_or(Seq::zero(instance.incarnation()));
    for (counter, value) in Counter::ALL.into_iter().zip(counters) {
        let Some(counted) = sums.counter(counter) else { continue };
        if value != counted {
            report.violation(format!("counter {counter:?} is {value}, a recount gives {counted}"));
        }
    }
    let all: BTreeSet<&String> = partitions.keys().chain(counted.keys()).collect();
    for partition in all {
        let [recount, counted] = [&partitions, &counted].map(|sums| sums.get(partition).copied().unwrap_or_default());
        if recount != counted {
            report.violation(format!("partition {partition:?} counts {counted:?}, a recount gives {recount:?}"));
        }
    }
    if uses != sums.attachment_uses + waiting {
        let expected = sums.attachment_uses + waiting;
        report.violation(format!("attachments have {uses} rows for the {expected} uses in documents"));
    }
    if by_seq != sums.documents + sums.deleted_documents {
        report.violation(format!("by-seq has {by_seq} entries for {} documents", report.documents));
    }
    if all_docs != sums.documents {
        report.violation(format!("_all_docs has {all_docs} entries for {} documents", sums.documents));
    }
    // A purge of a whole document leaves no entry, and neither does a change of a user or role.
    let has_purged = Counter::ALL.into_iter().zip(counters).any(|(counter, n)| counter == Counter::Purges && n > 0);
    for (bucket, (newest, last_seq)) in newest.iter().zip(&last_seqs).enumerate() {
        if let Some(newest) = newest.filter(|newest| newest > last_seq) {
            report.violation(format!("last_seq of bucket {bucket} is {last_seq}, its newest entry is at {newest}"));
        }
    }
    if let Some(newest) = newest.into_iter().flatten().max()
        && (newest > after || newest < after && !has_purged && instance.channels() == 0)
    {
        report.violation(format!("last_seq is {after}, the newest entry is at {newest}"));
    }
    for id in &staged {
        if sums.blobs.contains(id) {
            report.violation(format!("blob {} belongs to a document, and is marked as a broken upload", hex(id)));
        }
    }
    for id in &blobs {
        // Blobs are read before the marks: an upload removed in between had both.
        if !sums.blobs.contains(id)
            && !staged.contains(id)
            && run(inner, &mut HasBlob { inner, name, instance: &instance, id }).await?
        {
            report.violation(format!("blob {} belongs to nothing", hex(id)));
        }
    }
    Ok(report)
}

/// Checks for data that belongs to no database (left behind by a deletion), and for wrong entries of `_db_updates`.
///
/// # Errors
/// As [`check_database`].
#[boxed]
pub async fn check_namespaces(layer: &Layer) -> Result<Report> {
    let inner = &layer.inner;
    let mut report = Report::default();
    let mut known = HashSet::new();
    let names = layer.all_databases(&NameRange::default()).await?;
    for name in &names {
        match run(inner, &mut Begin { inner, name }).await {
            Ok(instance) => known.insert(instance.record.namespace),
            Err(Error::DatabaseNotFound) => continue,
            Err(error) => return Err(error),
        };
    }
    let mut from = 0;
    while let Some(namespace) = run(inner, &mut NextNamespace { inner, from }).await? {
        report.keys += 1;
        if !known.contains(&namespace) {
            report.violation(format!("namespace {namespace} has data but no database"));
        }
        from = namespace + 1;
    }
    updates::check(inner, &mut report).await?;
    work::check(inner, &names, &mut report).await?;
    settings::check(inner, &mut report).await?;
    replicators::check(layer, &names, &mut report).await?;
    Ok(report)
}

/// The contents of subspaces, to be compared with each other.
#[derive(Default)]
struct SubspaceContents {
    sums: Sums,
    by_seq: u64,
    all_docs: u64,
    newest: Vec<Option<Seq>>,
    /// The number of documents' uses of attachment data, including uses that wait to be freed.
    uses: u64,
    waiting: u64,
    blobs: HashSet<Vec<u8>>,
    staged: Vec<Vec<u8>>,
    partitions: BTreeMap<String, PartitionSums>,
    counted: BTreeMap<String, PartitionSums>,
}

struct Walk<'a> {
    reader: &'a Reader,
    inner: &'a Inner,
    name: &'a str,
    instance: &'a Instance,
    report: &'a mut Report,
    progress: &'a mut (dyn FnMut(u64) + Send),
}

impl Walk<'_> {
    /// Checks a subspace, and returns its number of keys.
    async fn subspace(&mut self, subspace: Subspace, found: &mut SubspaceContents) -> Result<u64> {
        let (inner, instance) = (self.inner, self.instance);
        let keys = &instance.keys;
        Ok(match subspace {
            // These are in buckets.
            Subspace::Meta | Subspace::BySeq if instance.record.shards > 0 => {
                self.strays(keys.subspace(subspace)).await?;
                0
            }
            Subspace::Meta | Subspace::Locals | Subspace::Purges | Subspace::Leases | Subspace::Compacted => {
                self.plain(subspace).await?
            }
            Subspace::LocalBytes => {
                locals::check(inner, instance, self.report).await?;
                self.plain(subspace).await?
            }
            Subspace::Fields => {
                fields::check(inner, instance, self.report).await?;
                self.plain(subspace).await?
            }
            Subspace::Documents => self.documents(found).await?,
            Subspace::BySeq => self.by_seq(instance.buckets.own(), found).await?,
            Subspace::AllDocs => {
                (found.all_docs, _) = check_index(inner, instance, IndexKind::AllDocs, self.report).await?;
                found.all_docs
            }
            Subspace::Blobs => {
                let range = keys.subspace(subspace);
                let ids = read_keys(inner, instance, range, |key, _| keys.split_blob(key).map(|(id, _)| id)).await?;
                let count = ids.len() as u64;
                found.blobs = ids.into_iter().collect();
                count
            }
            Subspace::Staged => {
                let range = keys.subspace(subspace);
                found.staged = read_keys(inner, instance, range, |key, _| keys.staged_id(key)).await?;
                found.staged.len() as u64
            }
            Subspace::AttachmentData => {
                let (data, uses) = attachments::check(inner, instance, &mut found.sums, self.report).await?;
                found.uses = uses;
                data
            }
            Subspace::AttachmentUses => found.uses,
            Subspace::Released => {
                let (entries, waiting) = attachments::waiting(inner, instance).await?;
                found.waiting = waiting;
                entries
            }
            Subspace::Indexes => self.indexes().await?,
            Subspace::Buckets => self.buckets(found).await?,
            Subspace::Partitions if !instance.record.partitioned || instance.record.shards > 0 => {
                self.strays(keys.subspace(subspace)).await?;
                0
            }
            Subspace::Partitions => self.partitions(instance.buckets.own(), found).await?,
            // By the current record: a database may get channels while it is checked.
            Subspace::Channels | Subspace::Principals
                if run(inner, &mut Begin { inner, name: self.name }).await?.channels() == 0 =>
            {
                self.strays(keys.subspace(subspace)).await?;
                0
            }
            Subspace::Channels => check_index(inner, instance, IndexKind::Channels, self.report).await?.0,
            Subspace::Principals => check_index(inner, instance, IndexKind::Principals, self.report).await?.0,
        })
    }

    async fn by_seq(&mut self, bucket: &BucketKeys, found: &mut SubspaceContents) -> Result<u64> {
        let kind = IndexKind::BySeq(bucket);
        let (entries, newest) = check_index(self.inner, self.instance, kind, self.report).await?;
        found.by_seq += entries;
        found.newest.push(newest);
        Ok(entries)
    }

    /// Checks the buckets of a database with shards, and the keys between and behind them.
    async fn buckets(&mut self, found: &mut SubspaceContents) -> Result<u64> {
        let (instance, mut keys) = (self.instance, 0);
        let KeyRange { mut begin, end } = instance.keys.subspace(Subspace::Buckets);
        let buckets = if instance.record.shards > 0 { &instance.buckets.all()[..] } else { &[] };
        for bucket in buckets {
            let (all, by_seq) = (bucket.all(), bucket.by_seq_any());
            self.strays(KeyRange { begin, end: all.begin.clone() }).await?;
            keys += self.plain_range(Subspace::Buckets, KeyRange { begin: all.begin, end: by_seq.begin }).await?;
            keys += self.by_seq(bucket, found).await?;
            begin = by_seq.end;
            if instance.record.partitioned {
                let partitions = bucket.partitions();
                self.strays(KeyRange { begin, end: partitions.begin }).await?;
                keys += self.partitions(bucket, found).await?;
                begin = partitions.end;
            }
        }
        self.strays(KeyRange { begin, end }).await?;
        Ok(keys)
    }

    /// Checks the counters of partitions in one bucket.
    async fn partitions(&mut self, bucket: &BucketKeys, found: &mut SubspaceContents) -> Result<u64> {
        let read = |key: &[u8], value: &[u8]| {
            let place = |counter| COUNTED.into_iter().position(|counted| counted == counter);
            let parsed = bucket.partition_parse(key).ok();
            let parsed = parsed.and_then(|(partition, counter)| Some((partition, place(counter)?)));
            Ok(match (parsed, decode_counter(Some(value))) {
                (Some((partition, place)), Ok(value)) => Ok((partition, place, value)),
                _ => Err(hex(key)),
            })
        };
        let rows = read_keys(self.inner, self.instance, bucket.partitions(), read).await?;
        let count = rows.len() as u64;
        for row in rows {
            match row {
                Ok((partition, place, value)) => {
                    if let Some(sum) = found.counted.entry(partition).or_default().get_mut(place) {
                        *sum += value;
                    }
                }
                Err(stray) => self.report.violation(format!("key {stray} belongs to nothing")),
            }
        }
        Ok(count)
    }

    async fn documents(&mut self, all: &mut SubspaceContents) -> Result<u64> {
        let mut keys = 0;
        let size = &PageSize::new(PAGE_KEYS);
        let mut rest = Some(self.instance.keys.subspace(Subspace::Documents));
        while let Some(range) = rest {
            let mut page = DocumentPage { inner: self.inner, name: self.name, instance: self.instance, range, size };
            let (found, next) = read_page(self.inner, size, &mut page).await?;
            for part in found {
                keys += part.keys;
                self.report.documents += 1;
                part.violations.into_iter().for_each(|violation| self.report.violation(violation));
                if let Some((partition, sums)) = part.partition {
                    let of_all = all.partitions.entry(partition).or_default();
                    of_all.iter_mut().zip(sums).for_each(|(all, one)| *all += one);
                }
                all.sums.add(part.sums);
            }
            rest = next;
            (self.progress)(self.report.documents);
        }
        Ok(keys)
    }

    /// Checks the database's own indexes. Keys between them belong to a removed index, or to one that was added
    /// meanwhile.
    async fn indexes(&mut self) -> Result<u64> {
        let (instance, mut keys) = (self.instance, 0);
        let mut begin = instance.keys.subspace(Subspace::Indexes).begin;
        let mut indexes: Vec<&proto::Index> = instance.record.indexes.iter().collect();
        indexes.sort_by_key(|index| index.number);
        for index in indexes {
            let range = instance.keys.index(index.number);
            self.strays(KeyRange { begin, end: range.begin }).await?;
            begin = range.end;
            if is_group(index) {
                keys += check_group(self.reader, instance, index, self.report).await?;
            } else if let Some(found) = indexes_of(instance).find(|found| found.index.number == index.number) {
                keys += check_index(self.inner, instance, IndexKind::Defined(&found), self.report).await?.0;
            }
        }
        let range = KeyRange { begin, end: instance.keys.subspace(Subspace::Indexes).end };
        let is_later =
            |key: &[u8]| instance.keys.index_number(key).is_ok_and(|number| number > instance.record.indexes_defined);
        let stray = |key: &[u8], _: &[u8]| Ok((!is_later(key)).then(|| hex(key)));
        for stray in read_keys(self.inner, instance, range, stray).await?.into_iter().flatten() {
            self.report.violation(format!("key {stray} belongs to nothing"));
        }
        Ok(keys)
    }

    async fn plain(&mut self, subspace: Subspace) -> Result<u64> {
        self.plain_range(subspace, self.instance.keys.subspace(subspace)).await
    }

    async fn plain_range(&mut self, subspace: Subspace, range: KeyRange) -> Result<u64> {
        let instance = self.instance;
        let form = |key: &[u8], _: &[u8]| Ok(instance.keys.check(subspace, key).is_err().then(|| hex(key)));
        let keys = read_keys(self.inner, instance, range, form).await?;
        for stray in keys.iter().flatten() {
            self.report.violation(format!("key {stray} belongs to nothing"));
        }
        Ok(keys.len() as u64)
    }

    async fn strays(&mut self, range: KeyRange) -> Result<()> {
        if range.begin >= range.end {
            return Ok(());
        }
        for stray in read_keys(self.inner, self.instance, range, |key, _| Ok(hex(key))).await? {
            self.report.violation(format!("key {stray} belongs to nothing"));
        }
        Ok(())
    }
}

async fn run<O: Operation>(inner: &Inner, operation: &mut O) -> Result<O::Output> {
    transaction::read(&inner.db, &inner.metrics, operation).await
}

struct Begin<'a> {
    inner: &'a Inner,
    name: &'a str,
}

impl Operation for Begin<'_> {
    type Output = std::sync::Arc<Instance>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        self.inner.resolve(trx, self.name).await
    }
}

struct Totals<'a> {
    inner: &'a Inner,
    name: &'a str,
    instance: &'a Instance,
}

impl Operation for Totals<'_> {
    type Output = (Vec<Seq>, [i64; Counter::ALL.len()]);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        same_instance(self.inner, self.name, self.instance, trx).await?;
        let mut values = [0; Counter::ALL.len()];
        for (value, counter) in values.iter_mut().zip(Counter::ALL) {
            *value = self.instance.buckets.begin_count(trx, counter).await?;
        }
        let mut last_seqs = Vec::new();
        for bucket in self.instance.buckets.all().iter() {
            let stamp = trx.get(&bucket.last_seq(), true).await?;
            let incarnation = self.instance.incarnation();
            last_seqs.push(stamp.map_or(Ok(Seq::zero(incarnation)), |stamp| Seq::from_slice(incarnation, &stamp))?);
        }
        Ok((last_seqs, values))
    }
}

struct HasBlob<'a> {
    inner: &'a Inner,
    name: &'a str,
    instance: &'a Instance,
    id: &'a [u8],
}

impl Operation for HasBlob<'_> {
    type Output = bool;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<bool> {
        same_instance(self.inner, self.name, self.instance, trx).await?;
        let rows = self.instance.keys.blob_rows(self.id);
        Ok(trx.range(&rows, true).any().await?)
    }
}

async fn same_instance(
    inner: &Inner,
    name: &str,
    instance: &Instance,
    trx: &Transaction,
) -> Result<std::sync::Arc<Instance>> {
    let found = inner.resolve(trx, name).await?;
    if found.id() == instance.id() { Ok(found) } else { Err(Error::DatabaseNotFound) }
}

struct DocumentPage<'a> {
    inner: &'a Inner,
    name: &'a str,
    instance: &'a Instance,
    range: KeyRange,
    size: &'a PageSize,
}

impl Operation for DocumentPage<'_> {
    type Output = (Vec<document::DocumentReport>, Option<KeyRange>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let now = same_instance(self.inner, self.name, self.instance, trx).await?;
        let indexes: Vec<_> = indexes_of(&now).collect();
        let keys = &self.instance.keys;
        let compacted = trx.get(&keys.compacted(), true);
        let page = trx.range(&self.range, true).page(self.size.attempt()).await?;
        let compacted = compacted.await?.map(|bytes| proto::Compacted::decode(&*bytes)).transpose()?;
        let compacted = compacted.filter(|compacted| compacted.incarnation == now.incarnation());
        let compacted = &compacted.unwrap_or_default();
        let more = !page.is_all();
        let mut ids: Vec<String> = Vec::new();
        let mut found = Vec::new();
        for row in &page {
            match keys.split_document(row.key()) {
                Ok((id, _, _)) if ids.last() != Some(&id) => ids.push(id),
                Ok(_) => {}
                Err(_) => found.push(document::DocumentReport::stray(row.key())),
            }
        }
        // The last document may continue beyond the page: it is left to the next page, unless it is the only one.
        let left = if more && ids.len() > 1 { ids.pop() } else { None };
        let (large, inner, instance, indexes) = (&Semaphore::new(LARGE_AT_ONCE), self.inner, self.instance, &indexes);
        let has_channels = now.channels() > 0;
        let check = |id| DocumentCheck { inner, instance, trx, id, indexes, compacted, has_channels, large }.check();
        let checks: Vec<BoxFuture<'_, Result<document::DocumentReport>>> =
            ids.iter().map(|id| Box::pin(check(id)) as _).collect();
        let checked: Vec<document::DocumentReport> = iter(checks).buffered(CHECKED_AT_ONCE).try_collect().await?;
        found.extend(checked);
        let last = page.last().map(|row| row.key().to_vec());
        let next = match (left, ids.last(), last) {
            (Some(left), _, _) => Some(keys.document(&left).whole().begin),
            (None, Some(only), _) if more => Some(keys.document(only).whole().end),
            (None, None, Some(last)) if more => Some([last.as_slice(), &[0]].concat()),
            _ => None,
        };
        Ok((found, next.map(|begin| KeyRange { begin, end: self.range.end.clone() })))
    }
}

#[derive(Debug, Clone, Copy)]
enum IndexKind<'a> {
    BySeq(&'a BucketKeys),
    AllDocs,
    Channels,
    Principals,
    Defined(&'a DefinedIndex),
}

/// Checks that every entry is the one that its document's info names. Returns their number, and the last one's
/// sequence.
async fn check_index(
    inner: &Inner,
    instance: &Instance,
    kind: IndexKind<'_>,
    report: &mut Report,
) -> Result<(u64, Option<Seq>)> {
    let mut entries = 0;
    let mut newest = None;
    let range = match kind {
        IndexKind::BySeq(bucket) => bucket.by_seq_any(),
        IndexKind::AllDocs => instance.keys.subspace(Subspace::AllDocs),
        IndexKind::Channels => instance.keys.subspace(Subspace::Channels),
        IndexKind::Principals => instance.keys.subspace(Subspace::Principals),
        IndexKind::Defined(index) => instance.keys.index(index.index.number),
    };
    let (size, mut rest) = (&PageSize::new(PAGE_KEYS), Some(range));
    while let Some(range) = rest {
        let mut page = IndexPage { inner, instance, kind, range, size };
        let (count, last, violations, next) = read_page(inner, size, &mut page).await?;
        entries += count;
        newest = last.or(newest);
        violations.into_iter().for_each(|violation| report.violation(violation));
        rest = next;
    }
    Ok((entries, newest))
}

struct IndexPage<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
    kind: IndexKind<'a>,
    range: KeyRange,
    size: &'a PageSize,
}

impl Operation for IndexPage<'_> {
    type Output = (u64, Option<Seq>, Vec<String>, Option<KeyRange>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let page = trx.range(&self.range, true).page(self.size.attempt()).await?;
        let entries = page.to_vec();
        let checks: Vec<BoxFuture<'_, Result<Option<String>>>> =
            entries.iter().map(|(key, value)| Box::pin(self.entry(trx, key, value)) as _).collect();
        let reasons: Vec<Option<String>> = iter(checks).buffered(CHECKED_AT_ONCE).try_collect().await?;
        let kind = match self.kind {
            IndexKind::BySeq(_) => "BySeq".to_owned(),
            kind => format!("{kind:?}"),
        };
        let wrong = entries.iter().zip(reasons).filter_map(|((key, _), reason)| Some((key, reason?)));
        let violations = wrong.map(|(key, reason)| format!("{kind} entry {}: {reason}", hex(key))).collect();
        let last = match self.kind {
            IndexKind::BySeq(bucket) => page.last().and_then(|last| bucket.by_seq_parse(last.key()).ok()),
            _ => None,
        };
        Ok((page.len() as u64, last, violations, page.rest))
    }
}

impl IndexPage<'_> {
    async fn entry(&self, trx: &Transaction, key: &[u8], value: &[u8]) -> Result<Option<String>> {
        match self.kind {
            IndexKind::BySeq(bucket) => by_seq::check_entry(trx, self.instance, bucket, key, value).await,
            IndexKind::AllDocs => all_docs::check_entry(trx, self.instance, key, value).await,
            IndexKind::Channels => channels::check_entry(trx, self.instance, key, value).await,
            IndexKind::Principals => channels::check_principal(trx, self.instance, key, value).await,
            IndexKind::Defined(index) => {
                let within = IndexContext { inner: self.inner, trx, instance: self.instance };
                index.check_entry(&within, key, value).await
            }
        }
    }
}

async fn read_keys<T: Send>(
    inner: &Inner,
    instance: &Instance,
    range: KeyRange,
    take: impl Fn(&[u8], &[u8]) -> Result<T> + Send + Sync,
) -> Result<Vec<T>> {
    struct KeysPage<'a, F>(&'a KeyRange, &'a PageSize, &'a F);
    impl<T: Send, F: Fn(&[u8], &[u8]) -> Result<T> + Send + Sync> Operation for KeysPage<'_, F> {
        type Output = (Vec<T>, Option<KeyRange>);
        async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
            let page = trx.range(self.0, true).page(self.1.attempt()).await?;
            let found = page.iter().map(|row| (self.2)(row.key(), row.value())).collect::<Result<_>>()?;
            Ok((found, page.rest))
        }
    }
    let mut all = Vec::new();
    let (size, mut range) = (&PageSize::new(PAGE_KEYS), range);
    tracing::debug!(database = instance.name, keys = all.len(), "checking");
    loop {
        let (found, next) = read_page(inner, size, &mut KeysPage(&range, size, &take)).await?;
        all.extend(found);
        match next {
            Some(rest) => range = rest,
            None => return Ok(all),
        }
    }
}

struct NextNamespace<'a> {
    inner: &'a Inner,
    from: u64,
}

impl Operation for NextNamespace<'_> {
    type Output = Option<u64>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Option<u64>> {
        let range = self.inner.keys.namespaces_from(self.from);
        let first = trx.range(&range, true).first(1).await?;
        first.first().map(|row| self.inner.keys.namespace_of(row.key())).transpose()
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
