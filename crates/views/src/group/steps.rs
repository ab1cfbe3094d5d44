//! The transactions that build and follow a group. Each reads its inputs with a conflict, so that of two concurrent
//! ones one fails; a committed earlier attempt shows in the group's position.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use flatbed_databases::instance::Instance;
use flatbed_databases::limits::Limit;
use flatbed_databases::server::Inner;
use flatbed_operations::index::groups::is_group;
use flatbed_store::error::{Result, ViewFailure};
use flatbed_store::keys::Counter;
use flatbed_store::proto::{self, ViewProgress};
use flatbed_store::seq::Seq;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use prost::Message;
use tokio::time::Instant;

use crate::at_once::BatchPacer;
use crate::group::job::Job;
use crate::group::purges;
use crate::view::apply::{ApplyContext, ApplyResult, apply};
use crate::view::build::{FOLLOWED, NODES, NodesPace, ROWS, build_nodes, is_shared};
use crate::view::documents::LargeReadGate;
use crate::view::known::new_mark;
use crate::view::large::{may_enter, tidy};
use crate::view::prepare::PreparedDocument;
use crate::view_updates::views;

pub struct GroupStanding {
    pub instance: Arc<Instance>,
    /// The group in the record.
    pub group: proto::Index,
    /// `None`: the group is new, or the progress belongs to an earlier incarnation of the database.
    pub progress: Option<ViewProgress>,
    pub last_seq: Seq,
    pub purges: i64,
}

impl GroupStanding {
    pub(super) fn is_through(&self) -> bool {
        self.progress.as_ref().is_some_and(|progress| is_through(progress, &self.last_seq, self.purges))
    }
}

/// Returns whether a group with this progress is complete up to `last_seq` and `purges`.
pub(super) fn is_through(progress: &ViewProgress, last_seq: &Seq, purges: i64) -> bool {
    let is_at = progress.stamp == last_seq.stamp() && purges_of(progress) == purges;
    progress.phase == FOLLOWED && is_at && progress.large.is_none()
}

pub fn purges_of(progress: &ViewProgress) -> i64 {
    i64::try_from(progress.purges).unwrap_or(i64::MAX)
}

/// Begins all reads of a group and its database. `is_read`: the progress is read with a conflict.
pub(super) fn begin_standing(
    trx: &Transaction,
    instance: &Instance,
    number: u64,
    is_written: bool,
) -> impl Future<Output = Result<(Option<ViewProgress>, Seq, i64)>> + Send + use<> {
    let incarnation = instance.incarnation();
    let progress = trx.get(&instance.keys.index_progress(number), !is_written);
    let epoch = instance.epoch();
    let last_seq = instance.buckets.begin_last_seq(trx, instance.epoch_begin());
    let purges = instance.buckets.begin_count(trx, Counter::Purges);
    async move {
        let progress = progress.await?.map(|bytes| ViewProgress::decode(&*bytes)).transpose()?;
        let progress = progress.filter(|progress| progress.incarnation == incarnation);
        let progress = progress.map(|progress| of_epoch(progress, epoch));
        Ok((progress, last_seq.await?, purges.await?))
    }
}

/// Returns a progress as it counts in an epoch: a read version of an earlier one may be of another cluster.
fn of_epoch(mut progress: ViewProgress, epoch: u32) -> ViewProgress {
    if place_of(&progress).map_or(0, |place| place.epoch()) != epoch {
        progress.drained_version = 0;
    }
    progress
}

pub(super) fn group_of(instance: &Instance, (namespace, number): (u64, u64)) -> Option<&proto::Index> {
    let is_it = |index: &&proto::Index| is_group(index) && index.number == number;
    instance.record.indexes.iter().filter(|_| instance.record.namespace == namespace).find(is_it)
}

/// Reads the state of a group; `None`: it is gone.
pub struct ReadStanding<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub id: (u64, u64),
}

impl Operation for ReadStanding<'_> {
    type Output = Option<GroupStanding>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let Some(group) = group_of(&instance, self.id).cloned() else { return Ok(None) };
        let (progress, last_seq, purges) = begin_standing(trx, &instance, self.id.1, false).await?;
        Ok(Some(GroupStanding { instance, group, progress, last_seq, purges }))
    }
}

/// The size above which a transaction waits for its turn: some 200 rows.
const SMALL_STEP_BYTES: usize = 64 << 10;

/// Returns the approximate bytes of the documents' rows. A transaction may write less.
pub(super) fn row_bytes(documents: &[PreparedDocument]) -> usize {
    documents.iter().map(PreparedDocument::memory_bytes).sum()
}

/// The interval at which a process shows that it works while it waits for a turn: well below the time after which
/// others take the group over.
pub const BEAT_INTERVAL: Limit<Duration> = Limit::new(Duration::from_secs(1), Duration::from_millis(100));

pub struct Step<'a, W> {
    pub job: &'a Job,
    pub work: W,
    pub large_reads: LargeReadGate,
}

pub trait Work: Send {
    type Output: Send;

    fn attempt(&mut self, within: &GroupContext<'_>) -> impl Future<Output = Result<Option<Self::Output>>> + Send;

    /// Returns the approximate bytes that the transaction writes. With more than [`SMALL_STEP_BYTES`] it waits for its
    /// turn.
    fn bytes(&self) -> usize {
        0
    }

    /// Records the time that the transaction waited for a permit, before it begins or is retried.
    fn record_wait(&mut self, _time: Duration) {}

    /// Returns whether other processes see this work only by the group's progress. Leases have beats of their own.
    fn is_of_holder(&self) -> bool {
        false
    }
}

pub struct GroupContext<'a> {
    pub job: &'a Job,
    pub trx: &'a Transaction,
    pub instance: &'a Instance,
    pub large_reads: &'a LargeReadGate,
}

impl<W: Work> Operation for Step<'_, W> {
    /// `None`: the group is gone, or another process follows it.
    type Output = Option<W::Output>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        self.large_reads.begin_attempt();
        let instance = self.job.reader.inner.resolve_for_write(trx, &self.job.reader.name).await?;
        match group_of(&instance, self.job.id) {
            Some(group) if !group.named_by.is_empty() => {}
            _ => return Ok(None),
        }
        let within = GroupContext { job: self.job, trx, instance: &instance, large_reads: &self.large_reads };
        let output = self.work.attempt(&within).await?;
        // The error keeps the transaction from committing; `run` retries it with the permit.
        if self.large_reads.must_retry() { Err(ViewFailure::Changed.into()) } else { Ok(output) }
    }
}

impl GroupContext<'_> {
    pub(super) fn at(&self) -> ApplyContext<'_> {
        ApplyContext { trx: self.trx, keys: &self.instance.keys, large_reads: self.large_reads }
    }

    pub(super) fn write(&self, progress: &ViewProgress) {
        self.trx.set(&self.instance.keys.index_progress(self.job.number()), &progress.encode_to_vec());
    }

    pub(super) fn owner(&self) -> [u8; 16] {
        views(&self.job.reader.inner).owner
    }

    async fn apply(&self, progress: &mut ViewProgress, documents: &[PreparedDocument]) -> Result<ApplyResult> {
        let Job { storage, written, known, .. } = self.job;
        apply(&self.at(), storage, Some(written), known, progress, documents).await
    }
}

/// Takes a group over, or begins it if it is new. Rows and sections of a first build are shared, so the group has no
/// holder during them. A group without room for a row is begun again.
pub struct Take {
    /// The beginning to replace, if it is still the current one ([`beginning_of`]).
    pub anew: Option<GroupGeneration>,
}

/// Distinguishes a group from its rebuild.
pub(super) type GroupGeneration = (u64, u64);

/// See [`Take`].
pub fn beginning_of(progress: &ViewProgress) -> GroupGeneration {
    progress.trees.first().map(|tree| (tree.secret_0, tree.secret_1)).unwrap_or_default()
}

impl Work for Take {
    type Output = ViewProgress;

    async fn attempt(&mut self, within: &GroupContext<'_>) -> Result<Option<ViewProgress>> {
        let GroupContext { job, trx, instance, .. } = *within;
        let standing = begin_standing(trx, instance, job.number(), true);
        let purged = instance.keys.purges();
        let last_purge = trx.range(&purged, true).reverse(true).first(1);
        let (progress, last_seq, purges) = standing.await?;
        let mut progress = match progress.filter(|progress| self.anew != Some(beginning_of(progress))) {
            // Builders of ranges and sections have leases.
            Some(progress) if is_shared(progress.phase) => return Ok(Some(progress)),
            Some(progress) => progress,
            None => {
                let all = instance.keys.index(job.number());
                trx.clear_range(&all.begin, &all.end);
                let last_purge = last_purge.await?;
                let stamp = last_purge.first().map(|row| instance.keys.purge_stamp(row.key())).transpose()?;
                ViewProgress {
                    incarnation: instance.incarnation(),
                    stamp: last_seq.stamp().to_vec(),
                    purges: u64::try_from(purges).unwrap_or_default(),
                    purge_stamp: stamp.map(|stamp| stamp.to_vec()).unwrap_or_default(),
                    ..job.storage.begin()?
                }
            }
        };
        progress.holder = if progress.phase == ROWS { Vec::new() } else { within.owner().to_vec() };
        within.write(&progress);
        Ok(Some(progress))
    }
}

/// Shows that this process works on a group, and makes it the holder of a group without one. The output is the replaced
/// mark and the progress; `None`: another process is the holder.
pub struct Hold<'a> {
    /// The progress of a holder that counts as silent. It is replaced unless it has moved since.
    pub silent: Option<&'a ViewProgress>,
}

impl Work for Hold<'_> {
    type Output = (Vec<u8>, ViewProgress);

    async fn attempt(&mut self, within: &GroupContext<'_>) -> Result<Option<Self::Output>> {
        let GroupContext { job, trx, instance, .. } = *within;
        let progress = trx.get(&instance.keys.index_progress(job.number()), false).await?;
        let progress = progress.map(|bytes| ViewProgress::decode(&*bytes)).transpose()?;
        let progress = progress.map(|progress| of_epoch(progress, instance.epoch()));
        let may_hold = |progress: &ViewProgress| {
            let is_free = progress.holder.is_empty() || progress.holder == within.owner();
            let has_holder = progress.incarnation == instance.incarnation() && !is_shared(progress.phase);
            has_holder && (is_free || self.silent == Some(progress))
        };
        let Some(mut progress) = progress.filter(may_hold) else { return Ok(None) };
        progress.holder = within.owner().to_vec();
        let replaced = std::mem::replace(&mut progress.nodes_mark, new_mark()?);
        within.write(&progress);
        Ok(Some((replaced, progress)))
    }
}

/// Releases a group that this process holds and has followed up to a position.
pub(super) struct ReleaseGroup {
    pub stamp: Vec<u8>,
}

impl Work for ReleaseGroup {
    type Output = ();

    async fn attempt(&mut self, within: &GroupContext<'_>) -> Result<Option<()>> {
        let (progress, ..) = begin_standing(within.trx, within.instance, within.job.number(), true).await?;
        let is_ours = |progress: &ViewProgress| progress.holder == within.owner() && progress.stamp == self.stamp;
        if let Some(mut progress) = progress.filter(is_ours) {
            progress.holder.clear();
            within.write(&progress);
        }
        Ok(Some(()))
    }
}

/// A step of the holder of a first build: clears marks, begins the sections, or writes nodes.
pub struct Nodes<'a> {
    pub pace: &'a mut NodesPace,
    pub began: Option<Instant>,
    /// The time that the transaction waited for permits.
    pub waited: &'a mut Duration,
}

/// The time limit of an attempt, which runs JavaScript reduces within the transaction. A slower one halves the number
/// of nodes.
pub(super) const NODES_FOR: Duration = Duration::from_secs(2);

impl Work for Nodes<'_> {
    type Output = bool;

    async fn attempt(&mut self, within: &GroupContext<'_>) -> Result<Option<bool>> {
        let job = within.job;
        let (progress, ..) = begin_standing(within.trx, within.instance, job.number(), true).await?;
        let Some(mut progress) = progress.filter(|progress| progress.holder == within.owner()) else { return Ok(None) };
        if progress.phase != NODES {
            return Ok(Some(progress.phase == FOLLOWED));
        }
        let clock = job.clock();
        if self.began.replace(clock.now()).is_some_and(|began| clock.since(began) > NODES_FOR) {
            self.pace.halve();
        }
        let is_built = build_nodes(&within.at(), &job.storage, Some(&job.written), &mut progress, self.pace).await?;
        if is_shared(progress.phase) {
            progress.holder.clear();
        }
        within.write(&progress);
        Ok(Some(is_built))
    }

    fn bytes(&self) -> usize {
        self.pace.bytes()
    }

    fn record_wait(&mut self, time: Duration) {
        self.began = None;
        *self.waited += time;
    }

    fn is_of_holder(&self) -> bool {
        true
    }
}

pub(super) struct Enter<'a, 'p> {
    pub stamp: &'a [u8],
    /// The group's count of purges. Later purges may concern documents of the run.
    pub purges: i64,
    /// In the order of their sequences in `seqs`.
    pub documents: &'a [PreparedDocument],
    pub seqs: &'a [Seq],
    /// The group's position with all of them.
    pub last_seq: Seq,
    /// A read version up to which no more changes existed.
    pub ended_as_of: Option<i64>,
    pub pace: &'a mut BatchPacer<'p>,
}

pub(super) enum EnterOutcome {
    /// The number of leading documents that are entered, and the group's position. `is_tidy`: no leftovers are to be
    /// cleared. `purged`: newer purges are to be entered; the group's progress.
    Documents {
        count: usize,
        place: Seq,
        drained: i64,
        is_through: bool,
        is_tidy: bool,
        purged: Option<Box<ViewProgress>>,
    },
    /// Nothing was entered: newer purges, perhaps of the first document, must be entered first.
    Purged(Box<ViewProgress>),
    /// A row's label does not fit: the group must be rebuilt.
    Full,
}

impl Work for Enter<'_, '_> {
    type Output = EnterOutcome;

    async fn attempt(&mut self, within: &GroupContext<'_>) -> Result<Option<EnterOutcome>> {
        let GroupContext { job, trx, instance, .. } = *within;
        let version = trx.get_read_version();
        let (progress, newest, purges) = begin_standing(trx, instance, job.number(), true).await?;
        let stands = |progress: &ViewProgress| {
            let is_there = progress.phase == FOLLOWED && progress.stamp == self.stamp;
            is_there && purges_of(progress) == self.purges && may_enter(progress, self.documents)
        };
        let Some(mut progress) = progress.filter(stands) else { return Ok(None) };
        let lacks_purges = self.purges != purges;
        let mut documents = self.documents;
        if lacks_purges {
            let Some(purged) = purges::lacking(trx, instance, &progress, purges).await? else {
                return Ok(Some(EnterOutcome::Purged(Box::new(progress))));
            };
            // The run may have read a document before its purge. The position stays before that document: otherwise, if
            // the log were truncated before the purge is entered, a document that was written again would be missed.
            let is_other = |document: &&PreparedDocument| !purged.contains(document.id());
            let others = documents.iter().take_while(is_other).count();
            if others == 0 && !documents.is_empty() {
                return Ok(Some(EnterOutcome::Purged(Box::new(progress))));
            }
            documents = documents.get(..others).unwrap_or_default();
        }
        let mut count = 0;
        if !documents.is_empty() {
            let entered = within.apply(&mut progress, self.pace.attempt(documents)).await?;
            if entered.is_full {
                return Ok(Some(EnterOutcome::Full));
            }
            count = entered.documents;
        } else {
            tidy(trx, &instance.keys.view(job.number()), &mut progress, within.large_reads).await?;
        }
        let is_all = count == self.documents.len();
        // A part of a large document may be entered: the position then stays before it.
        let before = || self.seqs.get(count.checked_sub(1)?);
        let place = if is_all { Some(&self.last_seq) } else { before() };
        if let Some(place) = place {
            progress.stamp = place.stamp().to_vec();
        }
        let is_through = is_through(&progress, &newest, purges);
        // While purges are pending, the group is not complete up to that version.
        if is_all && !lacks_purges {
            let as_of = if is_through { Some(version.await?) } else { self.ended_as_of };
            let drained = as_of.unwrap_or_default().max(drained(&progress));
            progress.drained_version = u64::try_from(drained).unwrap_or_default();
        }
        progress.holder = within.owner().to_vec();
        within.write(&progress);
        let (place, drained) = (place_of(&progress)?, drained(&progress));
        let is_tidy = !progress.untidy;
        let purged = lacks_purges.then(|| Box::new(progress));
        Ok(Some(EnterOutcome::Documents { count, place, drained, is_through, is_tidy, purged }))
    }

    fn bytes(&self) -> usize {
        row_bytes(self.documents)
    }

    fn record_wait(&mut self, time: Duration) {
        self.pace.record_wait(time);
    }

    fn is_of_holder(&self) -> bool {
        true
    }
}

pub(super) fn drained(progress: &ViewProgress) -> i64 {
    i64::try_from(progress.drained_version).unwrap_or_default()
}

pub struct EnteredPurges {
    /// Their count.
    pub purges: i64,
    /// The stamp of the last one in the log.
    pub stamp: Vec<u8>,
    /// A read version up to which the group is complete together with these purges.
    pub drained: Option<i64>,
}

impl EnteredPurges {
    pub fn as_before(progress: &ViewProgress) -> EnteredPurges {
        EnteredPurges { purges: purges_of(progress), stamp: progress.purge_stamp.clone(), drained: None }
    }
}

/// Enters purged documents in their current state, and records the entered purges. Steps of a large document or of a
/// comparison do not change the place, so the holder is compared, too: a document read before another process took the
/// group over may have been purged since, and the log may no longer have the purge.
pub(super) struct EnterPurged<'a, 'p> {
    /// The group's progress when the documents were read.
    pub stood: &'a ViewProgress,
    pub documents: &'a [PreparedDocument],
    /// The purges that the group has once all documents are entered.
    pub purges: &'a EnteredPurges,
    pub pace: &'a mut BatchPacer<'p>,
}

impl Work for EnterPurged<'_, '_> {
    /// The number of leading documents that are entered; `None`: a row's label does not fit.
    type Output = (Option<usize>, ViewProgress);

    async fn attempt(&mut self, within: &GroupContext<'_>) -> Result<Option<Self::Output>> {
        let GroupContext { job, trx, instance, .. } = *within;
        let (progress, ..) = begin_standing(trx, instance, job.number(), true).await?;
        let stands = |progress: &ViewProgress| {
            let place =
                |progress: &ViewProgress| (progress.stamp.clone(), progress.purges, progress.purge_stamp.clone());
            let is_there = progress.phase == FOLLOWED && place(progress) == place(self.stood);
            // The previous attempt may have committed.
            let is_ours = progress.holder == self.stood.holder || progress.holder == within.owner();
            is_there && is_ours && may_enter(progress, self.documents)
        };
        let Some(mut progress) = progress.filter(stands) else { return Ok(None) };
        let mut count = 0;
        if !self.documents.is_empty() {
            let entered = within.apply(&mut progress, self.pace.attempt(self.documents)).await?;
            if entered.is_full {
                return Ok(Some((None, progress)));
            }
            count = entered.documents;
        } else {
            // The new mark shows other processes that this one works.
            progress.nodes_mark = new_mark()?;
        }
        if count == self.documents.len() {
            let EnteredPurges { purges, stamp, drained: as_of } = self.purges;
            progress.purge_stamp.clone_from(stamp);
            progress.purges = u64::try_from(*purges).unwrap_or_default();
            let drained = as_of.unwrap_or_default().max(drained(&progress));
            progress.drained_version = u64::try_from(drained).unwrap_or_default();
        }
        progress.holder = within.owner().to_vec();
        within.write(&progress);
        Ok(Some((Some(count), progress)))
    }

    fn bytes(&self) -> usize {
        row_bytes(self.documents)
    }

    fn record_wait(&mut self, time: Duration) {
        self.pace.record_wait(time);
    }

    fn is_of_holder(&self) -> bool {
        true
    }
}

pub(super) fn place_of(progress: &ViewProgress) -> Result<Seq> {
    Seq::from_slice(progress.incarnation, &progress.stamp)
}

impl<'a, W: Work> Step<'a, W> {
    /// Runs it; `None`: the group is gone, or another process follows it.
    pub async fn run(job: &'a Job, work: W) -> Result<Option<W::Output>> {
        #[cfg(feature = "test-hooks")]
        if let Ok(permit) = views(&job.reader.inner).steps.acquire().await {
            permit.forget();
        }
        let mut step = Step { job, work, large_reads: LargeReadGate::default() };
        let output = step.run_in_turn().await;
        if !step.large_reads.must_retry() {
            return output;
        }
        // Nothing was committed. The permit is awaited outside of the transaction, which would become too old.
        let is_of_holder = step.work.is_of_holder();
        let (_permit, waited) = wait_visibly(job, is_of_holder, job.acquire_large_read()).await?;
        step.large_reads = LargeReadGate::open();
        step.work.record_wait(waited);
        step.run_in_turn().await
    }

    /// Runs the transaction, in its turn if it is not small. The turn is awaited outside of the transaction, which
    /// would become too old.
    async fn run_in_turn(&mut self) -> Result<Option<W::Output>> {
        let job = self.job;
        let mut turn = None;
        if self.work.bytes() > SMALL_STEP_BYTES {
            let is_of_holder = self.work.is_of_holder();
            let (acquired, waited) = wait_visibly(job, is_of_holder, job.acquire_row_write()).await?;
            self.work.record_wait(waited);
            turn = Some(acquired);
        }
        let inner = &job.reader.inner;
        let output = flatbed_store::transaction::write(&inner.db, &inner.metrics, self).await;
        drop(turn);
        output
    }
}

/// Waits for a resource. `is_of_holder`: shows meanwhile that this process works, so that no other process takes the
/// group over and does the work again, or waits for the same resource.
async fn wait_visibly<T>(job: &Job, is_of_holder: bool, resource: impl Future<Output = Result<T>>) -> Result<T> {
    if !is_of_holder {
        return resource.await;
    }
    tokio::select! {
        biased;
        acquired = resource => acquired,
        // A beat that is dropped here may still commit. It conflicts with each later transaction of the group.
        never = Box::pin(show_work(job)) => match never {},
    }
}

/// Writes a beat in each interval, until another process is the holder or the group is gone. The work itself notices
/// that.
async fn show_work(job: &Job) -> Infallible {
    let inner = &job.reader.inner;
    loop {
        job.clock().sleep(BEAT_INTERVAL.get()).await;
        let mut beat = Step { job, work: Hold { silent: None }, large_reads: LargeReadGate::default() };
        match flatbed_store::transaction::write(&inner.db, &inner.metrics, &mut beat).await {
            Ok(Some((replaced, progress))) => job.known.follow_mark(&replaced, &progress.nodes_mark),
            Ok(None) => std::future::pending::<()>().await,
            Err(error) => tracing::debug!(%error, "a group of views that waits could not show that it works"),
        }
    }
}
