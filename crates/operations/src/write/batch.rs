//! Writes documents: one transaction for each batch, and an outcome for each document.

pub mod together;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_databases::actor::Actor;
use flatbed_databases::admission::PendingAdmissions;
use flatbed_databases::document::attachments::{self, ListRead};
use flatbed_databases::document::body::{self, BoxedRangeRead, PreparedBody, ROW_OVERHEAD_OF_RECORDS};
use flatbed_databases::document::edit::{Edit, Outcome, WrittenRevision, check_document_id, check_partitioned_id};
use flatbed_databases::document::staging;
use flatbed_databases::document::tree::Leaves;
use flatbed_databases::document::verdict::Verdict;
use flatbed_databases::handles::WriteHandle;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_databases::size_limit::{self, Growth};
use flatbed_kit::CleanupBudget;
use flatbed_revtree::RevId;
use flatbed_store::error::{Error, Refusal, Result};
use flatbed_store::keys::DocumentKeys;
use flatbed_store::once::random_id;
use flatbed_store::records::{BodyPlace, Info, RevisionRecord};
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::index::compiled::{compile_all, compile_within};
use crate::index::kinds;
use crate::index::maintainers::{IndexContext, Maintainers};
use crate::index::prepare::Preparations;
use crate::judge::ask::{self, EditRequest, JudgedEdit, is_judged_by};
use crate::judge::rights::Fences;
use crate::write::document_write::DocumentWrite;
use crate::write::partition_limit::FullPartitions;
use crate::write::plan::{Contribution, EditPlan, Planner};
use crate::write::retries::WriteRetries;
pub use crate::write::work::Work;

const BATCH_DOCUMENTS_MAX: usize = 250;

/// Bytes of new bodies up to which a batch is filled.
const BATCH_BYTES_MAX: u64 = 300_000;

/// Bytes of new and superseded bodies beyond which a transaction takes no further document.
const TRANSACTION_BYTES_MAX: u64 = 850_000;

/// Bytes that a transaction of writes may use to drop revisions beyond their limit; later transactions drop the rest.
const DROPPED_BYTES_MAX: u64 = 250_000;

/// Batches of one request that run at once.
const BATCHES_AT_ONCE: usize = 4;

/// Failures after which a transaction takes half of its documents, and half of the rest at each further failure.
const WHOLE_FAILURES_MAX: u32 = 4;

/// Leaves beyond which a document is written in a transaction of its own request, because it reads all of them.
const SHARED_LEAVES_MAX: u32 = 100;

/// Bytes of the winner's body beyond which a document is written in a transaction of its own request, because the edit
/// may move the body. New bodies have the same limit.
pub const SHARED_BODY_BYTES_MAX: u64 = 32_000;

#[boxed]
pub async fn write_document(database: &WriteHandle, edit: &Edit<'_>) -> Result<WrittenRevision> {
    let (inner, name) = (&*database.inner, &*database.name);
    if let Err(refusal) = check_document_id(&edit.id) {
        // No transaction would notice that the database does not exist.
        resolved(inner, name).await?;
        return Err(refusal.into());
    }
    let (edits, work) = (std::slice::from_ref(edit), Work::new(inner));
    check_size(database, edits).await?;
    let mut retries = WriteRetries::default();
    loop {
        let instance = instance_of(inner, name).await?;
        let PreparedEdits { batches, refused } = prepare(database, &instance, edits, &[0]).await?;
        if let Some((_, refusal)) = refused.into_iter().next() {
            resolved(inner, name).await?;
            return Err(refusal.into());
        }
        for item in batches.into_iter().flatten() {
            let outcome = if together::may_join(&instance, edit, &item) {
                together::write(database, instance.clone(), edit, item, &work).await?
            } else {
                let written = write_batch(database, instance.clone(), edits, vec![item], &work, None).await?;
                written.outcomes.into_iter().next().map(|(_, outcome)| outcome)
            };
            if let Some(outcome) = outcome {
                return Ok(outcome?);
            }
        }
        if !retries.may_follow_database() {
            return Err(Error::DatabaseNotFound);
        }
    }
}

/// Refuses a user's edits if the database is full. The whole request fails: a replicator skips a document that is
/// refused on its own, but retries a failed request.
async fn check_size(database: &WriteHandle, edits: &[Edit<'_>]) -> Result<()> {
    let inner = &*database.inner;
    if inner.options.database_bytes_max == 0 || database.actor.user().is_none() {
        return Ok(());
    }
    let are_deletions = edits.iter().all(Edit::is_small_deletion);
    let growth = if are_deletions { Growth::Reserve } else { Growth::Documents };
    size_limit::check(inner, &database.name, growth).await
}

/// Writes edits and returns their outcomes in order. Several edits of one document are applied one after the other.
#[boxed]
pub async fn write_documents(database: &WriteHandle, edits: &[Edit<'_>]) -> Result<Vec<Outcome>> {
    let (inner, name) = (&*database.inner, &*database.name);
    let mut outcomes: ByEdit<Outcome> = Vec::with_capacity(edits.len());
    let mut waves: Vec<Vec<usize>> = Vec::new();
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for (at, edit) in edits.iter().enumerate() {
        if let Err(refusal) = check_document_id(&edit.id) {
            outcomes.push((at, Err(refusal)));
            continue;
        }
        let wave = seen.entry(&edit.id).or_default();
        match waves.get_mut(*wave) {
            Some(indexes) => indexes.push(at),
            None => waves.push(vec![at]),
        }
        *wave += 1;
    }
    if waves.is_empty() {
        // No transaction would notice that the database does not exist.
        resolved(inner, name).await?;
    }
    let work = Work::new(inner);
    check_size(database, edits).await?;
    for wave in waves {
        outcomes.extend(write_wave(database, edits, wave, &work).await?);
    }
    outcomes.sort_unstable_by_key(|(at, _)| *at);
    Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}

/// Items with the index of their edit.
pub type ByEdit<T> = Vec<(usize, T)>;

/// Writes edits of distinct documents, given by their index in `edits`, and returns an outcome for each.
async fn write_wave(
    database: &WriteHandle,
    edits: &[Edit<'_>],
    wave: Vec<usize>,
    work: &Work,
) -> Result<ByEdit<Outcome>> {
    let (inner, name) = (&*database.inner, &*database.name);
    let mut outcomes = Vec::with_capacity(wave.len());
    let (mut wanted, mut retries) = (wave, WriteRetries::default());
    loop {
        let instance = instance_of(inner, name).await?;
        let PreparedEdits { batches, refused } = prepare(database, &instance, edits, &wanted).await?;
        outcomes.extend(refused.into_iter().map(|(at, refusal)| (at, Err(refusal))));
        if batches.is_empty() {
            resolved(inner, name).await?;
        }
        let mut batches = batches.into_iter();
        let mut under_way = FuturesUnordered::new();
        wanted.clear();
        loop {
            while under_way.len() < BATCHES_AT_ONCE
                && let Some(batch) = batches.next()
            {
                under_way.push(write_batch(database, instance.clone(), edits, batch, work, None));
            }
            let Some(written) = under_way.next().await else { break };
            let written = written?;
            outcomes.extend(written.outcomes);
            wanted.extend(written.left);
        }
        if wanted.is_empty() {
            return Ok(outcomes);
        }
        if !retries.may_follow_database() {
            return Err(Error::DatabaseNotFound);
        }
    }
}

/// The state of a document's edit over all attempts.
pub struct Item {
    /// The index of the edit.
    at: usize,
    /// The writer.
    by: Actor,
    body: PreparedBody,
    /// Identifies the edit in the revision's record, to detect an earlier commit with an unknown result.
    token: [u8; 16],
    /// The revision of the last attempt.
    attempted: Option<RevId>,
    /// An earlier attempt may have committed (`commit_unknown_result`).
    maybe_committed: bool,
    /// The judgement of the database's rules.
    judged: JudgedEdit,
    /// True if the last attempt found that the state that was judged has changed: the rules must judge again.
    is_stale: bool,
    /// True if the document is too large for a shared transaction, or did not fit one.
    goes_alone: bool,
}

impl Item {
    pub fn at(&self) -> usize {
        self.at
    }

    pub fn judge(&mut self, judged: JudgedEdit) {
        self.judged = judged;
    }
}

/// Edits that are prepared for their transactions.
pub struct PreparedEdits {
    pub batches: Vec<Vec<Item>>,
    /// Edits that were refused before any transaction.
    pub refused: ByEdit<Refusal>,
}

/// Flattens edits and splits them into batches of bounded size.
pub async fn prepare(
    database: &WriteHandle,
    instance: &Instance,
    edits: &[Edit<'_>],
    wanted: &[usize],
) -> Result<PreparedEdits> {
    let inner = &*database.inner;
    compile_all(inner, instance).await?;
    instance.prepare_names(inner, wanted.iter().map(|at| &edits[*at].body)).await?;
    let bytes_max = inner.sizes.document();
    let full = FullPartitions::of(database, instance, edits, wanted).await?;
    let mut batches: Vec<Vec<Item>> = Vec::new();
    let mut refused = Vec::new();
    let mut room = 0;
    for &at in wanted {
        let edit = &edits[at];
        if instance.record.partitioned
            && let Err(refusal) = check_partitioned_id(&edit.id)
        {
            refused.push((at, refusal));
            continue;
        }
        if full.refuses(edit) {
            refused.push((at, Refusal::PartitionFull { document_id: edit.id.to_string() }));
            continue;
        }
        let reserved = match kinds::reserve_within(instance, edit) {
            Ok(reserved) => reserved,
            Err(refusal) => {
                refused.push((at, refusal));
                continue;
            }
        };
        let mut body = PreparedBody::new(instance, &edit.id, &edit.body);
        if body.external_bytes > bytes_max {
            refused.push((at, Refusal::DocumentTooLarge { document_id: edit.id.to_string(), bytes_max }));
            continue;
        }
        if body.must_be_staged {
            match staging::stage(database, instance, &mut body).await {
                Ok(true) => {}
                // The database was replaced: the batch's own check notices, and the write starts again.
                Ok(false) => body.place = BodyPlace::Blob(Vec::new()),
                Err(Error::Refused(refusal)) => {
                    refused.push((at, refusal));
                    continue;
                }
                Err(error) => return Err(error),
            }
        }
        let bytes = transaction_bytes(&body, edit) + reserved;
        let item = Item {
            at,
            by: database.actor().clone(),
            body,
            token: random_id()?,
            attempted: None,
            maybe_committed: false,
            judged: JudgedEdit::may(),
            is_stale: false,
            goes_alone: false,
        };
        match batches.last_mut() {
            Some(batch) if batch.len() < BATCH_DOCUMENTS_MAX && bytes <= room => batch.push(item),
            _ => {
                batches.push(vec![item]);
                room = BATCH_BYTES_MAX;
            }
        }
        room = room.saturating_sub(bytes);
    }
    Ok(PreparedEdits { batches, refused })
}

pub struct BatchOutcome {
    outcomes: ByEdit<Outcome>,
    /// Edits to prepare again because the database was replaced.
    left: Vec<usize>,
}

/// Counts the outcome of an edit.
pub fn note(inner: &Inner, outcome: &Outcome) {
    match outcome {
        Ok(_) => inner.metrics.documents_written.add(1),
        Err(Refusal::Conflict) => inner.metrics.document_conflicts.add(1),
        Err(_) => {}
    }
}

/// Writes a batch in as many transactions as its size needs. `judged_by`: the rules that have judged it.
pub async fn write_batch(
    database: &WriteHandle,
    mut instance: Arc<Instance>,
    edits: &[Edit<'_>],
    batch: Vec<Item>,
    work: &Work,
    mut judged_by: Option<u64>,
) -> Result<BatchOutcome> {
    let mut written = BatchOutcome { outcomes: Vec::with_capacity(batch.len()), left: Vec::new() };
    let inner = &*database.inner;
    let mut rest = batch;
    let mut retries = WriteRetries::default();
    while !rest.is_empty() {
        if judged_by != Some(instance.record.rules) {
            judge_items(database, &instance, edits, &mut rest, work).await?;
            judged_by = Some(instance.record.rules);
        }
        let preparations = Preparations::of(&instance);
        if preparations.are_wanted() {
            let asked: Vec<&Edit<'_>> = rest.iter().map(|item| &edits[item.at]).collect();
            preparations.edits(inner, &asked).await?;
        }
        let turn = work.turn(inner).await;
        let mut write = WriteBatch {
            inner,
            instance: &instance,
            edits,
            items: &mut rest,
            attempts: 0,
            work,
            preparations,
            is_shared: false,
        };
        let outcomes = transaction::write(&inner.db, &inner.metrics, &mut write).await?;
        drop(turn);
        let Some(outcomes) = outcomes else {
            let found = resolved(inner, &database.name).await?;
            if found.id() == instance.id() && retries.may_follow_rules() {
                // The rules or preparations have changed: the same items are judged again, and keep the state of their
                // attempts.
                instance = found;
                continue;
            }
            written.left.extend(rest.iter().map(|item| item.at));
            break;
        };
        let (mut outcomes, mut later) = (outcomes.into_iter().peekable(), Vec::new());
        for (place, item) in rest.into_iter().enumerate() {
            let Some((_, outcome)) = outcomes.next_if(|(of, _)| *of == place) else {
                later.push(item);
                continue;
            };
            note(inner, &outcome);
            if let (Err(_), BodyPlace::Blob(blob_id)) = (&outcome, &item.body.place) {
                staging::discard(inner, &instance, blob_id).await;
            }
            written.outcomes.push((item.at, outcome));
        }
        if !later.iter().any(|item| item.is_stale) {
            retries.note_current();
        } else if retries.may_judge_again() {
            judged_by = None;
        } else {
            let given_up = later.extract_if(.., |item| item.is_stale);
            written.outcomes.extend(given_up.map(|item| (item.at, Err(Refusal::stale()))));
        }
        rest = later;
    }
    Ok(written)
}

/// Judges items by the last known state of their documents.
pub async fn judge_items(
    database: &WriteHandle,
    instance: &Instance,
    edits: &[Edit<'_>],
    items: &mut [Item],
    work: &Work,
) -> Result<()> {
    let asked: Vec<EditRequest<'_, '_>> =
        items.iter().map(|item| EditRequest { edit: &edits[item.at], upon: item.judged.upon.as_ref() }).collect();
    let is_anew = items.iter().any(|item| item.is_stale);
    let judged = ask::judge(database, instance, &asked, (work.caller, edits.len()), is_anew).await?;
    drop(asked);
    for (item, judged) in items.iter_mut().zip(judged) {
        (item.judged, item.is_stale) = (judged, false);
    }
    Ok(())
}

/// Returns the database's instance, cached if possible: the write's own transaction checks it.
#[boxed]
pub async fn instance_of(inner: &Inner, name: &str) -> Result<Arc<Instance>> {
    match inner.cached(name) {
        Some(instance) => Ok(instance),
        None => resolved(inner, name).await,
    }
}

/// Reads the database's current instance.
#[boxed]
pub async fn resolved(inner: &Inner, name: &str) -> Result<Arc<Instance>> {
    struct Resolve<'a>(&'a Inner, &'a str);
    impl Operation for Resolve<'_> {
        type Output = Arc<Instance>;
        async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Arc<Instance>> {
            self.0.resolve(trx, self.1).await
        }
    }
    transaction::read(&inner.db, &inner.metrics, &mut Resolve(inner, name)).await
}

/// Pending reads of the data that an edit supersedes.
struct SupersededRead {
    leaves: BoxedRangeRead,
    body: BoxedRangeRead,
    list: Option<ListRead>,
}

impl SupersededRead {
    fn begin(trx: &Transaction, keys: &DocumentKeys, edit: &Edit<'_>) -> SupersededRead {
        SupersededRead {
            leaves: body::begin_reading(trx, keys.leaves()),
            body: body::begin_reading(trx, keys.body_rows()),
            list: attachments::begin_parents_list(trx, keys, edit),
        }
    }
}

/// Writes as many documents of a batch as fit one transaction.
pub struct WriteBatch<'a, 'e> {
    pub inner: &'a Inner,
    pub instance: &'a Instance,
    pub edits: &'a [Edit<'e>],
    pub items: &'a mut Vec<Item>,
    /// Number of attempts so far.
    pub attempts: u32,
    pub work: &'a Work,
    /// The preparations of the first items.
    pub preparations: Preparations,
    /// The edits belong to several requests, and may edit one document.
    pub is_shared: bool,
}

impl Operation for WriteBatch<'_, '_> {
    /// The outcomes of the first items, at least one and as many as fit one transaction, each with its index. A shared
    /// transaction skips items that must be written later or alone. `None`: the database was replaced, its rules have
    /// changed, or other indexes prepare its documents.
    type Output = Option<ByEdit<Outcome>>;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<Self::Output> {
        // However this attempt ends, later writes of the items must know of it.
        self.items.iter_mut().for_each(|item| item.maybe_committed |= attempt.maybe_committed);
        let preparations = &self.preparations;
        preparations.make_up(self.inner).await?;
        let arriving = PendingAdmissions::begin(self.inner, trx, self.items.iter().map(|item| &item.by));
        let (found, arriving) =
            futures_util::try_join!(self.inner.resolve_for_write(trx, &self.instance.name), arriving)?;
        let is_known = found.record.rules == self.instance.record.rules && preparations.are_current(&found);
        if found.id() != self.instance.id() || !is_known {
            return Ok(None);
        }
        // A setting that changed meanwhile applies to later edits. Names and bodies stay as prepared: starting again
        // would lose the state of attempts that may have committed.
        let instance = &*found;
        // With many contended documents each attempt conflicts on one of them: fewer documents commit sooner.
        let halvings = self.attempts.saturating_sub(WHOLE_FAILURES_MAX).min(usize::BITS - 1);
        let most = (self.items.len() >> halvings).min(preparations.count()).max(1);
        self.attempts += 1;
        let within = IndexContext { inner: self.inner, trx, instance };
        compile_within(&within).await?;
        let mut maintainers = Maintainers::of(instance, preparations);
        // All reads are issued before the first is awaited.
        let fences = Fences::begin(trx, self.items.iter().take(most).filter_map(|item| item.judged.held.as_ref()));
        let reads: Vec<_> = self
            .items
            .iter_mut()
            .take(most)
            .map(|item| {
                let edit = &self.edits[item.at];
                let keys = instance.keys.document(&edit.id);
                let attempted = item.attempted.as_ref().filter(|_| item.maybe_committed);
                let earlier = attempted.map(|rev| (rev.clone(), trx.get(&keys.revision(rev), false)));
                // In a shared transaction only applied edits add conflict ranges; a refused edit does not delay the
                // others.
                let info = trx.get(&keys.info(), self.is_shared);
                // An edit of a revision supersedes it, and needs its leaf and body.
                let is_first = edit.parent.is_none() && edit.history.as_ref().is_none_or(|path| path.len() < 2);
                let old = (!is_first).then(|| SupersededRead::begin(trx, &keys, edit));
                maintainers.begin(&within, &edit.id);
                if let Ok(said) = &item.judged.judgement {
                    maintainers.begin_grants(&within, said);
                }
                (keys, earlier, info, old)
            })
            .collect();
        let mut admissions = arriving.arrived(trx).await?;
        let fences = fences.arrived().await?;
        let room = CleanupBudget::new(DROPPED_BYTES_MAX);
        let mut outcomes: ByEdit<Outcome> = Vec::with_capacity(self.items.len());
        let mut written: HashSet<&str> = HashSet::new();
        let (count, mut bytes, mut is_full) = (reads.len(), 0, false);
        let mut user_version = 0;
        let mut changes_rules = false;
        self.items.iter_mut().for_each(|item| item.is_stale = false);
        for (place, (item, (keys, earlier, info, old))) in self.items.iter_mut().zip(reads).enumerate() {
            let info = match info.await? {
                Some(bytes) => Some(Info::decode(&bytes)?),
                None => None,
            };
            // First: an earlier attempt may have taken more documents than this one would.
            if let Some((rev, record)) = earlier
                && is_written(trx, &keys, &rev, record.await?.as_deref(), &item.token, &self.edits[item.at]).await?
            {
                outcomes.push((place, Ok(WrittenRevision { rev })));
                continue;
            }
            // In a shared transaction only the admission of an applied edit conflicts, too.
            if let Err(refusal) = admissions.admit(trx, &item.by, &instance.security)? {
                outcomes.push((place, Err(refusal)));
                continue;
            }
            if instance.record.channels > 0 {
                let upon = tombstone_below(trx, &self.edits[item.at], info.as_ref());
                let is_same = item.judged.held.as_ref().is_none_or(|held| fences.is_same(held));
                if item.judged.upon.as_ref() != upon || !is_same {
                    (item.judged.upon, item.is_stale) = (upon.cloned(), true);
                    continue;
                }
            }
            if self.is_shared {
                item.goes_alone = info.as_ref().is_some_and(|info| {
                    info.leaf_count > SHARED_LEAVES_MAX || moved_bytes(info) > SHARED_BODY_BYTES_MAX
                });
                // The reads are outdated if another edit of the document is applied.
                if item.goes_alone || written.contains(&*self.edits[item.at].id) {
                    continue;
                }
            }
            bytes += transaction_bytes(&item.body, &self.edits[item.at]) + info.as_ref().map_or(0, moved_bytes);
            // With the current list of indexes: if it has changed, the batch is split again.
            bytes += kinds::reserve(instance, &self.edits[item.at]);
            bytes += item.judged.judgement.as_ref().map_or(0, Verdict::bytes);
            is_full |= bytes > TRANSACTION_BYTES_MAX && !outcomes.is_empty();
            if is_full && self.is_shared {
                // The next ones may be as large, so this one goes alone and is not skipped twice.
                item.goes_alone = true;
                continue;
            } else if is_full {
                break;
            }
            self.work.begin_edit(info.as_ref().map_or(0, |info| info.leaf_count))?;
            let (inner, edit) = (self.inner, &self.edits[item.at]);
            let (body, token) = (&item.body, &item.token);
            let may_move_more = info.as_ref().is_some_and(|info| info.leaf_count > 1);
            let old = match (&info, old) {
                (Some(_), None) => Some(SupersededRead::begin(trx, &keys, edit)),
                (_, old) => old,
            };
            let (old_leaves, old_body, list) = match old {
                Some(SupersededRead { leaves, body, list }) => (Some(leaves), Some(body), list),
                None => (None, None, None),
            };
            let unjudged = Verdict::default();
            let judgement = item.judged.judgement.as_ref();
            let (refused, verdict) = (judgement.err(), judgement.unwrap_or(&unjudged));
            let (keys, room, leaves_max) = (&keys, &room, inner.options.leaves_max);
            let held = item.judged.held.as_deref();
            let planner = Planner { trx, instance, keys, edit, body, refused, leaves_max, held };
            let planned = planner.plan(info.as_ref(), old_leaves, list).await;
            let brings_leaf = matches!(&planned, Ok(EditPlan::Change(plan, _)) if plan.brings() == Contribution::Leaf);
            if item.judged.was_there && brings_leaf {
                // It was purged meanwhile.
                item.is_stale = true;
                continue;
            }
            if self.is_shared && planned.is_ok() {
                // Before the write: a transaction does not conflict with its own writes.
                transaction::conflict_with(trx, &keys.info())?;
            }
            if let (Some(held), true) = (&item.judged.held, planned.is_ok()) {
                held.conflict(trx)?;
            }
            let outcome = match planned {
                Ok(EditPlan::Known(rev)) => Ok(WrittenRevision { rev }),
                Ok(EditPlan::Change(plan, attached)) => {
                    let write =
                        DocumentWrite { inner, trx, instance, keys, edit, body, token, user_version, verdict, room };
                    Ok(write.write(plan, &attached, info, old_body, &mut maintainers).await?)
                }
                Err(Error::Refused(refusal)) => Err(refusal),
                Err(error) => return Err(error),
            };
            bytes += maintainers.excess();
            user_version += u16::from(outcome.is_ok());
            changes_rules |= outcome.is_ok() && is_judged_by(instance, edit);
            item.attempted = outcome.as_ref().ok().map(|updated| updated.rev.clone());
            if self.is_shared && outcome.is_ok() {
                written.insert(&edit.id);
            }
            outcomes.push((place, outcome));
            if may_move_more && place + 1 < count {
                // The sizes of a promoted body and of trimmed revisions are known only now.
                is_full = trx.get_approximate_size().await? >= TRANSACTION_BYTES_MAX as i64;
            }
        }
        preparations.check()?;
        maintainers.finish(&within, changes_rules).await?;
        Ok(Some(outcomes))
    }
}

/// Returns whether the revision of an earlier attempt was written, by its current record. Later writes may have trimmed
/// the record, with a small limit of revisions; then the tree has the revision, whose name identifies its content. A
/// replicated revision may be in the tree without its body, from before the attempt or through a later child; to merge
/// it again changes nothing if it was written.
async fn is_written(
    trx: &Transaction,
    keys: &DocumentKeys,
    rev: &RevId,
    record: Option<&[u8]>,
    token: &[u8],
    edit: &Edit<'_>,
) -> Result<bool> {
    if let Some(record) = record {
        return Ok(RevisionRecord::decode(record)?.token == token);
    }
    if edit.history.is_some() {
        return Ok(false);
    }
    let leaves = Leaves::read(trx, keys).await?;
    match leaves.holds(rev) {
        Some(is_there) => Ok(is_there),
        None => Ok(leaves.whole(trx, keys).await?.contains(rev)),
    }
}

/// Returns the tombstone on which an edit without a parent creates a document again.
fn tombstone_below<'a>(trx: &Transaction, edit: &Edit<'_>, info: Option<&'a Info>) -> Option<&'a RevId> {
    let makes = edit.history.is_none() && edit.parent.is_none() && !edit.deleted;
    let is_gone = |info: &&Info| info.deleted || info.has_ended(trx.clock().unix_ms());
    info.filter(|info| makes && is_gone(info)).map(|info| &info.winner)
}

/// Returns the approximate bytes of a document in a transaction. Its id is in the keys and values of about ten records,
/// and in a row for each new attachment.
pub fn transaction_bytes(body: &PreparedBody, edit: &Edit<'_>) -> u64 {
    let rows = if body.rows.is_empty() { 0 } else { body.stored_bytes };
    rows + ROW_OVERHEAD_OF_RECORDS + 10 * edit.id.len() as u64 + attachments::edits_bytes(&edit.id, &edit.attachments)
}

fn moved_bytes(info: &Info) -> u64 {
    if info.place == BodyPlace::Rows { info.stored_bytes } else { 0 }
}
