//! Applies a database's current sync function to all documents, in the background.
//!
//! The transaction that sets a function also notes that the resync is due, and one process runs it over the documents
//! in the order of their ids, some in each transaction. The function gets each leaf with its own body and that of the
//! revision below it, and without a user: the author was judged at the time of the write. A leaf that the function
//! refuses keeps its channels. A document whose winner changes channels, grants or expiry gets a new sequence, so that
//! readers past its old one see the change; other documents are not written. Writes during the resync are judged by the
//! new function. Two concurrent resyncs are correct: each step commits only if the position is the one at which it
//! began.

use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_databases::actor::Actor;
use flatbed_databases::confirmed::ClosedReasons;
use flatbed_databases::document::attachments::AttachmentEdit;
use flatbed_databases::document::body::{BODY_BYTES_MAX, Rows, begin_read};
use flatbed_databases::document::edit::{Document, Edit, GetOptions};
use flatbed_databases::document::tree::{Leaves, info};
use flatbed_databases::document::verdict::Verdict;
use flatbed_databases::instance::Instance;
use flatbed_databases::record_change::check_room;
use flatbed_databases::server::Inner;
use flatbed_flatten::json::{Limits, parse};
use flatbed_operations::index::channels;
use flatbed_operations::index::compiled::compile_within;
use flatbed_operations::index::maintainers::{Change, IndexContext, Maintainers};
use flatbed_operations::index::prepare::Preparations;
use flatbed_operations::judge::ask::route_edit;
use flatbed_operations::write::winner::Bodies;
use flatbed_revtree::{DocumentId, RevId};
use flatbed_store::due::{self, DueKind};
use flatbed_store::error::{Error, Refusal, Result};
use flatbed_store::features::name_features;
use flatbed_store::keys::Counter;
use flatbed_store::proto;
use flatbed_store::record_log::note_change;
use flatbed_store::records::{Info, RevisionRecord};
use flatbed_store::seq::STAMP_BYTES;
use flatbed_store::transaction::{self, Attempt, Operation, Quiet, Transaction};
use foundationdb::options::{ConflictRangeType, MutationType};
use futures_util::future::try_join_all;
use futures_util::stream::{StreamExt, TryStreamExt, iter};
use prost::Message;

use crate::handle::{Database, Reader};
use crate::resyncs::{ResyncTask, Resyncs};

const DOCUMENTS_AT_ONCE: usize = 50;

/// The approximate bytes that a transaction writes. It ends behind the document that exceeds them.
const WRITTEN_BYTES_MAX: u64 = 400_000;

const ASKED_AT_ONCE: usize = 4;

/// The approximate bytes of a document's other records.
const ROW_BYTES: u64 = 400;

const RECORDS_AT_ONCE: usize = 100;

/// Retry limit for a conflicted document under continuous edits.
const ASKED_ANEW_MAX: usize = 20;

/// The progress of a resync.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResyncState {
    /// The number of documents processed.
    pub documents: u64,
    /// The number of documents whose channels, grants or expiry have changed.
    pub changed: u64,
    /// The number of leaves that the function refused, which keep their channels.
    pub refused: u64,
    /// The time of its beginning, in milliseconds of Unix time.
    pub begun_at_ms: u64,
    /// True if it was stopped before its end.
    pub is_stopped: bool,
    /// True if the database is closed to its users until the end.
    pub is_exclusive: bool,
}

/// A command to a resync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResyncAction {
    /// Begins at the first document, unless a resync is already running.
    Start {
        /// True to close the database to its users until the resync ends or is stopped, even if it was begun without
        /// that.
        is_exclusive: bool,
    },
    /// Stops the resync at its current position.
    Stop,
}

impl Reader {
    /// Returns the progress of the database's sync function; `None`: it has been applied to all documents, or the
    /// database has no channels.
    #[boxed]
    pub async fn resync_state(&self) -> Result<Option<ResyncState>> {
        let (inner, name) = (&*self.handle.inner, &*self.handle.name);
        let state = self.handle.read(&mut ReadState { inner, name }).await?;
        Ok(state.map(|(_, state)| ResyncState {
            documents: state.documents,
            changed: state.changed,
            refused: state.refused,
            begun_at_ms: state.begun_at_ms,
            is_stopped: state.stopped,
            is_exclusive: state.exclusive,
        }))
    }
}

impl Database {
    /// Begins or stops a resync. Returns whether that changed its state.
    ///
    /// # Errors
    /// [`Refusal::InvalidSetting`]: the database has no channels.
    #[boxed]
    pub async fn resync(&self, action: ResyncAction) -> Result<bool> {
        let (inner, name, actor) = (&*self.handle.inner, &*self.handle.name, self.actor());
        let mut set = SetState { inner, name, actor, action, now_ms: inner.clock.unix_ms() };
        let changed = transaction::write(&inner.db, &inner.metrics, &mut set).await?;
        inner.due.wake.notify_one();
        Ok(changed)
    }
}

struct ReadState<'a> {
    inner: &'a Inner,
    name: &'a str,
}

async fn state_of(trx: &Transaction, instance: &Instance, snapshot: bool) -> Result<Option<proto::Resync>> {
    let state = trx.get(&instance.keys.resync(), snapshot).await?;
    Ok(state.map(|state| proto::Resync::decode(&*state)).transpose()?.filter(|_| instance.channels() > 0))
}

impl Operation for ReadState<'_> {
    type Output = Option<(std::sync::Arc<Instance>, proto::Resync)>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.inner.resolve(trx, self.name).await?;
        Ok(state_of(trx, &instance, true).await?.map(|state| (instance, state)))
    }
}

struct SetState<'a> {
    inner: &'a Inner,
    name: &'a str,
    actor: &'a Actor,
    action: ResyncAction,
    now_ms: u64,
}

impl Operation for SetState<'_> {
    type Output = bool;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<bool> {
        let (instance, writer) = self.inner.resolve_for(trx, self.name, self.actor).await?;
        writer.admitted(trx, &instance).await?;
        if instance.channels() == 0 {
            return Err(Refusal::InvalidSetting("The database has no channels".to_owned()).into());
        }
        let before = state_of(trx, &instance, false).await?;
        let state = match (before.clone(), self.action) {
            (Some(state), ResyncAction::Start { is_exclusive }) if !state.stopped => {
                proto::Resync { exclusive: state.exclusive || is_exclusive, ..state }
            }
            (_, ResyncAction::Start { is_exclusive }) => {
                proto::Resync { exclusive: is_exclusive, ..begun(instance.channels(), self.now_ms) }
            }
            (Some(state), ResyncAction::Stop) => proto::Resync { stopped: true, exclusive: false, ..state },
            (None, ResyncAction::Stop) => return Ok(false),
        };
        if before.as_ref() == Some(&state) {
            return Ok(false);
        }
        trx.set(&instance.keys.resync(), &state.encode_to_vec());
        close(self.inner, trx, &instance, state.exclusive)?;
        if !state.stopped {
            due::mark(trx, &instance.root, DueKind::Resync, self.name, 0)?;
        }
        Ok(true)
    }
}

/// Closes a database to its users, or opens it, for a resync; every process notices.
fn close(inner: &Inner, trx: &Transaction, instance: &Instance, is_resyncing: bool) -> Result<()> {
    let closed = ClosedReasons { is_resyncing, ..instance.closed() }.stored();
    if closed != instance.record.closed {
        let mut record = proto::DatabaseRecord { closed, ..instance.record.clone() };
        name_features(&mut record);
        let record = record.encode_to_vec();
        check_room(&record, &instance.record.encode_to_vec())?;
        trx.set(&instance.record_key, &record);
        // The entry of the log is removed with old marks.
        inner.due.note_mark();
        note_change(trx, &instance.root, &instance.name)?;
    }
    Ok(())
}

/// Returns the state of a resync that begins with the function of this number.
fn begun(number: u64, now_ms: u64) -> proto::Resync {
    proto::Resync { number, begun_at_ms: now_ms, ..proto::Resync::default() }
}

/// Continues a database's resync for up to `time`. Returns whether it has finished or was stopped.
///
/// # Errors
/// Those of the storage; of a function that cannot be run. Earlier progress stays.
pub(crate) async fn resync(database: &Reader, time: Duration) -> Result<bool> {
    let (inner, name) = (&*database.handle.inner, &*database.handle.name);
    let (until, mut anew, mut running) = (inner.clock.now() + time, 0, None);
    let _running = inner.metrics.resyncs_running.hold();
    loop {
        let found = transaction::read(&inner.db, &inner.metrics, &mut ReadState { inner, name }).await?;
        let Some((instance, state)) = found.filter(|(_, state)| !state.stopped) else { return Ok(true) };
        if inner.is_closing() || inner.clock.now() >= until {
            return Ok(false);
        }
        let running = match &mut running {
            Some(running) => &*running,
            none => {
                let mut begin = Begin { name, instance: &instance, state: &state };
                let task = transaction::read(&inner.db, &inner.metrics, &mut begin).await?;
                &*none.insert(inner.state::<Resyncs>().begin(instance.record.namespace, task))
            }
        };
        let mut page = NextDocuments { inner, instance: &instance, behind: state.done_until.clone() };
        let found = transaction::read(&inner.db, &inner.metrics, &mut page).await?;
        let asked: Vec<_> = found.documents.iter().map(|found| Box::pin(ask(database, &instance, found))).collect();
        let answers: Vec<Answers> = iter(asked).buffered(ASKED_AT_ONCE).try_collect().await?;
        let preparations = Preparations::default();
        let gives_up = anew >= ASKED_ANEW_MAX;
        let before = state.clone();
        let got_on = state.clone();
        let mut step = Step { inner, name, state, found: &found, answers: &answers, preparations, gives_up, got_on };
        match transaction::write(&inner.db, &inner.metrics, &mut step).await? {
            StepOutcome::On => {
                anew = 0;
                let now = step.got_on;
                let metrics = &inner.metrics;
                metrics.resync_documents.add(now.documents.saturating_sub(before.documents));
                metrics.resync_documents_changed.add(now.changed.saturating_sub(before.changed));
                metrics.resync_leaves_refused.add(now.refused.saturating_sub(before.refused));
                running.update(|task| {
                    (task.documents, task.changed, task.refused) = (now.documents, now.changed, now.refused);
                    task.updated_at_ms = inner.clock.unix_ms();
                });
            }
            StepOutcome::Edited => anew += 1,
            StepOutcome::Elsewhere => {}
        }
    }
}

struct Begin<'a> {
    name: &'a str,
    instance: &'a Instance,
    state: &'a proto::Resync,
}

impl Operation for Begin<'_> {
    type Output = ResyncTask;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<ResyncTask> {
        let buckets = &self.instance.buckets;
        let counts = [Counter::Documents, Counter::DeletedDocuments].map(|counter| buckets.begin_count(trx, counter));
        let total: i64 = try_join_all(counts).await?.into_iter().sum();
        let proto::Resync { documents, changed, refused, begun_at_ms, .. } = *self.state;
        let (database, total, updated_at_ms) = (self.name.to_owned(), total.max(0) as u64, trx.clock().unix_ms());
        Ok(ResyncTask { database, documents, total, changed, refused, started_at_ms: begun_at_ms, updated_at_ms })
    }
}

/// A document as it was judged.
struct ScannedDocument {
    id: String,
    info: Info,
    /// Its leaves, as (deleted, revision), and their recorded verdicts.
    leaves: Vec<(bool, RevId)>,
    said: Vec<Verdict>,
}

struct FoundPage {
    documents: Vec<ScannedDocument>,
    /// True if no document follows.
    is_last: bool,
}

struct NextDocuments<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
    behind: String,
}

impl Operation for NextDocuments<'_> {
    type Output = FoundPage;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<FoundPage> {
        let instance = self.inner.resolve(trx, &self.instance.name).await?;
        if instance.id() != self.instance.id() {
            return Err(Error::DatabaseNotFound);
        }
        let keys = &instance.keys;
        let mut range = keys.subspace(flatbed_store::keys::Subspace::Documents);
        if !self.behind.is_empty() {
            range.begin = keys.document(&self.behind).whole().end;
        }
        let mut infos = Vec::new();
        // Tombstones have channels, too, and are in no index by id. A document's first key is its info.
        while infos.len() < DOCUMENTS_AT_ONCE {
            let first = trx.range(&range, true).first(1).await?;
            let Some(row) = first.first() else { break };
            let (id, _, _) = keys.split_document(row.key())?;
            let document = keys.document(&id);
            range.begin = document.whole().end;
            if row.key() != document.info() {
                return Err(Error::Corrupt(format!("document {id:?} has no info")));
            }
            infos.push((id, Info::decode(row.value())?));
        }
        let is_last = infos.len() < DOCUMENTS_AT_ONCE;
        let documents = infos.into_iter().map(|(id, info)| found(trx, &instance, id, info));
        Ok(FoundPage { documents: try_join_all(documents).await?, is_last })
    }
}

async fn found(trx: &Transaction, instance: &Instance, id: String, info: Info) -> Result<ScannedDocument> {
    let keys = instance.keys.document(&id);
    let leaves: Vec<(bool, RevId)> = match info.leaf_count {
        1 => vec![(info.deleted, info.winner.clone())],
        _ => Leaves::read(trx, &keys).await?.0.into_iter().map(|leaf| (leaf.deleted, leaf.rev)).collect(),
    };
    let mut said = Vec::with_capacity(leaves.len());
    for some in leaves.chunks(RECORDS_AT_ONCE) {
        let records = try_join_all(some.iter().map(|(_, rev)| trx.get(&keys.revision(rev), true))).await?;
        for ((_, rev), record) in some.iter().zip(records) {
            let record = record.ok_or_else(|| Error::Corrupt(format!("leaf {rev} has no record")))?;
            said.push(Verdict::decode(RevisionRecord::decode(&record)?.verdict));
        }
    }
    Ok(ScannedDocument { id, info, leaves, said })
}

#[derive(Default)]
struct Answers {
    changed: Vec<(usize, Verdict)>,
    refused: u64,
}

/// Judges all leaves of a document in order.
async fn ask(database: &Reader, instance: &Instance, found: &ScannedDocument) -> Result<Answers> {
    let mut answers = Answers::default();
    let is_design = DocumentId::of(&found.id).is_design();
    for (at, ((deleted, rev), said)) in found.leaves.iter().zip(&found.said).enumerate() {
        let now = match is_design {
            // Such writes are not judged, either.
            true => Verdict::default(),
            false => match ask_leaf(database, instance, &found.id, *deleted, rev).await {
                Ok(Some(now)) => now,
                // The revision is gone, so the document has changed.
                Ok(None) => continue,
                Err(error @ Error::Refused(Refusal::NotJudged { .. })) => return Err(error),
                Err(Error::Refused(_)) => {
                    answers.refused += 1;
                    continue;
                }
                Err(error) => return Err(error),
            },
        };
        // The author is recorded, and so is an expiry that the client set: whether the client or the function set it is
        // not recorded.
        let expires_at_ms = now.expires_at_ms.or(said.expires_at_ms).filter(|_| !deleted && !is_design);
        let now = Verdict { writer: said.writer.clone(), expires_at_ms, ..now };
        if now != *said {
            answers.changed.push((at, now));
        }
    }
    Ok(answers)
}

async fn ask_leaf(
    database: &Reader,
    instance: &Instance,
    id: &str,
    deleted: bool,
    rev: &RevId,
) -> Result<Option<Verdict>> {
    // The semaphore is never closed.
    let _reading = database.handle.inner.turns.judged_reads.acquire().await.ok();
    let Some(document) = revision(database, id, rev).await? else { return Ok(None) };
    let parent = document.revisions.as_ref().and_then(|revisions| revisions.get(1)).cloned();
    let old = match &parent {
        Some(parent) => revision(database, id, parent).await?,
        None => None,
    };
    let text = [b"{", document.body.as_slice(), b"}"].concat();
    let body = parse(&text, &Limits::default()).map_err(|error| Error::Corrupt(format!("body of {rev}: {error}")))?;
    let attachments = document.attachments.into_iter();
    let attachments =
        attachments.map(|attachment| (attachment.name.clone(), AttachmentEdit::Copy(attachment))).collect();
    let edit = Edit { id: id.into(), parent, history: None, deleted, expiry: None, attachments, body };
    let said = route_edit(&database.handle, instance, &edit, old.as_ref(), None).await?;
    Ok(Some(said?))
}

async fn revision(database: &Reader, id: &str, rev: &RevId) -> Result<Option<Document>> {
    let options = GetOptions { rev: Some(rev.clone()), revs: true, ..GetOptions::default() };
    match database.get(id, &options).await {
        Ok(document) => Ok(Some(document)),
        Err(Error::Refused(Refusal::DocumentNotFound(_))) => Ok(None),
        Err(error) => Err(error),
    }
}

enum StepOutcome {
    /// The position has moved, or the resync is complete.
    On,
    /// The first document has been edited since it was judged.
    Edited,
    /// Another process has continued, the function has changed, or the resync was stopped.
    Elsewhere,
}

/// Writes the verdicts of some documents, and the progress.
struct Step<'a> {
    inner: &'a Inner,
    name: &'a str,
    state: proto::Resync,
    found: &'a FoundPage,
    answers: &'a [Answers],
    preparations: Preparations,
    /// True to skip the first document if it was edited again.
    gives_up: bool,
    got_on: proto::Resync,
}

impl Operation for Step<'_> {
    type Output = StepOutcome;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<StepOutcome> {
        self.preparations.make_up(self.inner).await?;
        let instance = self.inner.resolve_for_write(trx, self.name).await?;
        if !self.preparations.are_current(&instance) {
            self.preparations = Preparations::of(&instance);
        }
        // A committed earlier attempt has moved the position.
        let state = state_of(trx, &instance, false).await?;
        if state.as_ref() != Some(&self.state) {
            return Ok(StepOutcome::Elsewhere);
        }
        if instance.channels() != self.state.number {
            // The verdicts are from another function than the current one.
            let anew = begun(instance.channels(), self.state.begun_at_ms);
            let anew = proto::Resync { exclusive: self.state.exclusive, ..anew };
            trx.set(&instance.keys.resync(), &anew.encode_to_vec());
            return Ok(StepOutcome::On);
        }
        let mut state = self.state.clone();
        let within = IndexContext { inner: self.inner, trx, instance: &instance };
        compile_within(&within).await?;
        let mut maintainers = Maintainers::of(&instance, &self.preparations);
        let documents = self.found.documents.iter().zip(self.answers);
        let infos =
            self.found.documents.iter().map(async |found| info(trx, &instance.keys.document(&found.id), true).await);
        let infos = try_join_all(infos).await?;
        let (mut written, mut user_version, mut passed) = (0, 0, 0);
        for ((found, answers), now) in documents.zip(infos) {
            if written > WRITTEN_BYTES_MAX {
                break;
            }
            let is_same = now.as_ref().is_some_and(|now| now.stamp == found.info.stamp);
            // A document with one leaf that was edited since was judged by the function then.
            let is_judged = now.as_ref().is_none_or(|now| now.leaf_count == 1) && found.leaves.len() == 1;
            let is_passed_over = self.gives_up && passed == 0;
            if !(is_same || is_judged || is_passed_over) {
                break;
            }
            if is_same {
                let rewritten = self.rewrite(&within, &mut maintainers, found, answers, user_version).await?;
                written += rewritten.bytes + maintainers.excess();
                user_version += u16::from(rewritten.is_moved);
                state.changed += u64::from(rewritten.is_moved);
                state.refused += answers.refused;
            }
            state.documents += 1;
            state.done_until.clone_from(&found.id);
            passed += 1;
        }
        self.preparations.check()?;
        maintainers.finish(&within, false).await?;
        if passed == self.found.documents.len() && self.found.is_last {
            trx.clear(&instance.keys.resync());
            close(within.inner, trx, &instance, false)?;
        } else if passed == 0 {
            return Ok(StepOutcome::Edited);
        } else {
            trx.set(&instance.keys.resync(), &state.encode_to_vec());
        }
        self.got_on = state;
        Ok(StepOutcome::On)
    }
}

#[derive(Default)]
struct RewriteResult {
    bytes: u64,
    is_moved: bool,
}

impl Step<'_> {
    async fn rewrite(
        &self,
        within: &IndexContext<'_>,
        maintainers: &mut Maintainers,
        found: &ScannedDocument,
        answers: &Answers,
        user_version: u16,
    ) -> Result<RewriteResult> {
        let IndexContext { trx, instance, .. } = *within;
        let (keys, old) = (instance.keys.document(&found.id), &found.info);
        let mut rewritten = RewriteResult::default();
        let of_winner =
            answers.changed.iter().find(|(at, _)| found.leaves.get(*at).is_some_and(|(_, rev)| *rev == old.winner));
        // Before any record is written.
        let Some(before) = channels::before(within, &keys, Some(old)).await? else { return Ok(rewritten) };
        let place = found.leaves.iter().position(|(_, rev)| *rev == old.winner);
        let said = of_winner.map(|(_, said)| said).or_else(|| found.said.get(place?)).cloned().unwrap_or_default();
        let mut new = Info { bucket: instance.buckets.own_number(), ..old.clone() };
        new.stamp = [0xff; STAMP_BYTES];
        new.stamp[STAMP_BYTES - 2..].copy_from_slice(&user_version.to_be_bytes());
        let rerouted = before.change_routing_to(within, &found.id, Some(old), &mut new, Some(said.clone())).await?;
        if answers.changed.is_empty() && rerouted.is_same() {
            return Ok(rewritten);
        }
        let info_key = keys.info();
        let end = [&info_key[..], &[0]].concat();
        // Conflicts with concurrent edits in both directions.
        trx.add_conflict_range(&info_key, &end, ConflictRangeType::Read)?;
        trx.add_conflict_range(&info_key, &end, ConflictRangeType::Write)?;
        for (at, said) in &answers.changed {
            let Some((_, rev)) = found.leaves.get(*at) else { continue };
            let key = keys.revision(rev);
            let record =
                trx.get(&key, true).await?.ok_or_else(|| Error::Corrupt(format!("leaf {rev} has no record")))?;
            let record = RevisionRecord { verdict: said.encode(), ..RevisionRecord::decode(&record)? }.encode();
            rewritten.bytes += (key.len() + record.len()) as u64;
            Quiet(trx).set(&key, &record)?;
        }
        if rerouted.is_same() {
            return Ok(rewritten);
        }
        maintainers.begin(within, &found.id);
        let bodies = Bodies { trx, instance, keys: &keys };
        let (mut old_rows, mut old_blob) = (None, None);
        if !instance.record.indexes.is_empty() {
            let rows = begin_read(trx, keys.body_rows()).finish(trx, BODY_BYTES_MAX).await?;
            old_rows = Some(Rows::new(rows, keys.body().len()));
            if maintainers.want_old_body() {
                old_blob = bodies.blob_rows(old).await?;
            }
        }
        trx.atomic_op(&info_key, &new.encode_stamped(), MutationType::SetVersionstampedValue);
        let change = Change {
            id: &found.id,
            keys: &keys,
            old: Some(old),
            old_rows: old_blob.as_ref().or(old_rows.as_ref()),
            new: &new,
            brought: None,
            judged: Some((&new.winner, &said)),
            rerouted: Some(&rerouted),
            leaves: &found.leaves,
            stored_bytes_delta: 0,
            superseded_bytes_delta: 0,
            user_version,
        };
        maintainers.document(within, &change).await?;
        rewritten.bytes += 10 * (info_key.len() as u64) + ROW_BYTES;
        rewritten.is_moved = true;
        Ok(rewritten)
    }
}
