//! Commits small writes that arrive together in one transaction (group commit).
//!
//! A cluster needs as long for a transaction of one small document as for the document itself. So a write that finds
//! other transactions of its database running waits for one of them to end, and joins the next transaction with all
//! that wait ([`crate::lanes`]). Before and after that it belongs to its request: it is prepared and judged for its
//! actor, has its own token, and has its own outcome. The transaction's task owns it in between, and always returns it:
//! written, refused, or to be written alone, with the state of commits whose result is unknown.
//!
//! These writes go alone: large ones, those with attachments, replicated ones, design documents, documents that turn
//! out to have many leaves or a large body, writes that do not fit, and all writes of a transaction that has failed
//! twice. No write waits longer than [`WAIT_MAX`].

use std::sync::Arc;
use std::time::Duration;

use flatbed_databases::document::edit::{Edit, Outcome};
use flatbed_databases::handles::WriteHandle;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_kit::COMMIT_UNKNOWN_RESULT;
use flatbed_revtree::DocumentId;
use flatbed_store::error::{Error, Refusal, Result};
use flatbed_store::records::BodyPlace;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use flatbed_store::waits;
use foundationdb::FdbError;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::index::kinds;
use crate::index::prepare::Preparations;
use crate::lanes::{Lanes, WaitingWrite};
use crate::write::batch::{
    ByEdit, Item, SHARED_BODY_BYTES_MAX, WriteBatch, judge_items, note, resolved, transaction_bytes, write_batch,
};
use crate::write::retries::WriteRetries;
use crate::write::work::Work;

/// Attempts of a shared transaction: with contended documents each attempt conflicts on one of them.
const ATTEMPTS_MAX: u32 = 2;

/// Time limit after which a write goes alone, because the storage does not answer the transactions before it.
pub const WAIT_MAX: Duration = Duration::from_secs(5);

pub(super) fn may_join(instance: &Instance, edit: &Edit<'_>, item: &Item) -> bool {
    let is_small = item.body.place == BodyPlace::Rows && item.body.stored_bytes <= SHARED_BODY_BYTES_MAX;
    let is_plain = edit.history.is_none() && edit.attachments.is_empty() && !DocumentId::of(&edit.id).is_design();
    let is_prepared = !instance.record.indexes.is_empty() && Preparations::of(instance).are_wanted();
    is_small && is_plain && !is_prepared
}

/// Writes one edit, with waiting ones if there are any. `None`: the database was replaced.
pub(super) async fn write(
    database: &WriteHandle,
    mut instance: Arc<Instance>,
    edit: &Edit<'_>,
    mut item: Item,
    work: &Work,
) -> Result<Option<Outcome>> {
    let (inner, name) = (&database.inner, &database.name);
    let (edits, id) = (std::slice::from_ref(edit), Arc::<str>::from(&*edit.id));
    let mut retries = WriteRetries::default();
    loop {
        item.at = 0;
        judge_items(database, &instance, edits, std::slice::from_mut(&mut item), work).await?;
        let judged_by = Some(instance.record.rules);
        let may_join = may_join(&instance, edit, &item);
        let enters = may_join && inner.state::<Lanes>().enter(name, &id);
        let _turn = enters.then(|| Turn::new(inner, name, vec![Arc::clone(&id)]));
        let fate = if may_join && !enters {
            let (back, fate) = wait(inner, name, &instance, &id, edit, item).await?;
            item = back;
            fate
        } else {
            WriteFate::Alone
        };
        match fate {
            WriteFate::Done(outcome) => {
                note(inner, &outcome);
                return Ok(Some(outcome));
            }
            WriteFate::Stale if retries.may_judge_again() => {}
            WriteFate::Stale => return Ok(Some(Err(Refusal::stale()))),
            WriteFate::Alone => {
                item.at = 0;
                let written = write_batch(database, instance, edits, vec![item], work, judged_by).await?;
                return Ok(written.outcomes.into_iter().next().map(|(_, outcome)| outcome));
            }
            WriteFate::Anew => {
                let found = resolved(inner, name).await?;
                if found.id() != instance.id() || !retries.may_follow_rules() {
                    return Ok(None);
                }
                // The rules have changed: the same item is judged again, and keeps the state of its attempts.
                instance = found;
            }
        }
    }
}

/// The outcome of a write that waited.
pub enum WriteFate {
    Done(Outcome),
    /// The write must go alone.
    Alone,
    /// The write must be judged or prepared again: the database was replaced, or its rules have changed.
    Anew,
    /// The write must be judged again: its document or the writer's rights have changed.
    Stale,
}

pub struct Reply {
    item: Item,
    fate: WriteFate,
}

/// A waiting write.
struct SingleWrite {
    edit: Edit<'static>,
    item: Item,
    instance: Arc<Instance>,
    reply: oneshot::Sender<Reply>,
}

/// A write's place in the queue, which is given up when the request is dropped.
struct Ticket<'a> {
    inner: &'a Inner,
    name: &'a str,
    id: &'a Arc<str>,
    number: u64,
    is_answered: bool,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            drop(self.inner.state::<Lanes>().leave(self.name, self.id, self.number));
        }
    }
}

async fn wait(
    inner: &Arc<Inner>,
    name: &Arc<str>,
    instance: &Arc<Instance>,
    id: &Arc<str>,
    edit: &Edit<'_>,
    item: Item,
) -> Result<(Item, WriteFate)> {
    let bytes = transaction_bytes(&item.body, edit) + kinds::reserve(instance, edit);
    // Owned, because the transaction may outlive the request.
    let edit = Edit {
        expiry: edit.expiry,
        id: edit.id.to_string().into(),
        parent: edit.parent.clone(),
        history: None,
        deleted: edit.deleted,
        attachments: Vec::new(),
        body: edit.body.clone().into_owned(),
    };
    let (reply, mut answer) = oneshot::channel();
    let single = SingleWrite { edit, item, instance: Arc::clone(instance), reply };
    let number = inner.state::<Lanes>().wait(
        name,
        WaitingWrite {
            id: Arc::clone(id),
            bytes,
            fence: (instance.id(), instance.record.rules),
            // Indexes prepare each document once, before it is read.
            may_repeat: instance.record.indexes.is_empty(),
            number: 0,
            write: Box::new(single),
        },
    );
    let mut ticket = Ticket { inner, name, id, number, is_answered: false };
    begin_next(inner, name, false);
    let answered = loop {
        match inner.clock.timeout(WAIT_MAX, &mut answer).await {
            Ok(answered) => break answered,
            // It is not in the queue while its transaction runs: it may return to wait for the next one.
            Err(_) => {
                let left = inner
                    .state::<Lanes>()
                    .leave(name, id, ticket.number)
                    .and_then(|left| left.write.downcast::<SingleWrite>().ok());
                if let Some(single) = left {
                    return Ok((single.item, WriteFate::Alone));
                }
            }
        }
    };
    ticket.is_answered = true;
    match answered {
        Ok(Reply { item, fate }) => Ok((item, fate)),
        // The task always replies, so without a reply the result is unknown.
        Err(_) => Err(Error::Storage(FdbError::from_code(COMMIT_UNKNOWN_RESULT))),
    }
}

/// A running transaction of a lane; when it is dropped the next one begins.
pub struct Turn {
    inner: Arc<Inner>,
    name: Arc<str>,
    documents: Vec<Arc<str>>,
    began: Instant,
    /// Writes that the transaction did not reach.
    again: Vec<WaitingWrite>,
}

impl Turn {
    pub fn new(inner: &Arc<Inner>, name: &Arc<str>, documents: Vec<Arc<str>>) -> Turn {
        let (began, again) = (inner.clock.now(), Vec::new());
        Turn { inner: Arc::clone(inner), name: Arc::clone(name), documents, began, again }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let again = std::mem::take(&mut self.again);
        let took = self.inner.clock.since(self.began);
        self.inner.state::<Lanes>().end(&self.name, &self.documents, took, again);
        begin_next(&self.inner, &self.name, true);
    }
}

/// Starts the transactions that may begin, each in a task.
pub fn begin_next(inner: &Arc<Inner>, name: &Arc<str>, mut has_ended: bool) {
    while let Some(writes) = inner.state::<Lanes>().next(name, has_ended) {
        has_ended = false;
        let documents = writes.iter().map(|waiting| Arc::clone(&waiting.id)).collect();
        let (turn, group) = (Turn::new(inner, name, documents), Group::new(writes));
        // Without a runtime the group is dropped, and its writes are answered by that.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(waits::carry(waits::OperationCounters::current(), write_group(turn, group)));
        }
    }
}

/// The request of a write in a group.
pub struct Seat {
    id: Arc<str>,
    bytes: u64,
    may_repeat: bool,
    number: u64,
    pub instance: Arc<Instance>,
    reply: oneshot::Sender<Reply>,
}

/// The writes of one transaction; all members have equal length. If it is dropped, also by a panic, each write goes
/// alone.
pub struct Group {
    pub edits: Vec<Edit<'static>>,
    pub items: Vec<Item>,
    pub seats: Vec<Seat>,
}

impl Drop for Group {
    fn drop(&mut self) {
        for (mut item, seat) in self.items.drain(..).zip(self.seats.drain(..)) {
            item.maybe_committed = true;
            // A request that was dropped needs no answer.
            drop(seat.reply.send(Reply { item, fate: WriteFate::Alone }));
        }
    }
}

impl Group {
    pub fn new(writes: Vec<WaitingWrite>) -> Group {
        let mut group = Group { edits: Vec::new(), items: Vec::new(), seats: Vec::new() };
        for WaitingWrite { id, bytes, may_repeat, number, write, .. } in writes {
            let Ok(single) = write.downcast::<SingleWrite>() else { continue };
            let SingleWrite { edit, mut item, instance, reply } = *single;
            item.at = group.items.len();
            group.edits.push(edit);
            group.items.push(item);
            group.seats.push(Seat { id, bytes, may_repeat, number, instance, reply });
        }
        group
    }

    /// Answers each write; those that must wait again are returned.
    pub fn answer(
        mut self,
        mut fate: impl FnMut(usize, &Item) -> Option<WriteFate>,
    ) -> (Vec<(Seat, Reply)>, Vec<WaitingWrite>) {
        let (mut answers, mut again) = (Vec::with_capacity(self.seats.len()), Vec::new());
        let edits = std::mem::take(&mut self.edits);
        let (items, seats) = (std::mem::take(&mut self.items), std::mem::take(&mut self.seats));
        for (at, ((edit, item), seat)) in edits.into_iter().zip(items).zip(seats).enumerate() {
            match fate(at, &item) {
                Some(fate) => answers.push((seat, Reply { item, fate })),
                None if seat.reply.is_closed() => {}
                None => {
                    let Seat { id, bytes, may_repeat, number, instance, reply } = seat;
                    let fence = (instance.id(), instance.record.rules);
                    let write = Box::new(SingleWrite { edit, item, instance, reply });
                    again.push(WaitingWrite { id, bytes, fence, may_repeat, number, write });
                }
            }
        }
        (answers, again)
    }
}

/// Writes the edits of several requests in one transaction.
pub struct SharedTransaction<'a> {
    pub batch: WriteBatch<'a, 'static>,
    /// Number of attempts, including those that failed before the first document.
    pub attempts: u32,
}

/// The outcome of a shared transaction.
pub enum GroupOutcome {
    /// The outcomes by index; writes without an outcome come later.
    Written(ByEdit<Outcome>),
    /// The database was replaced, or its rules have changed.
    Anew,
    /// It failed too often, because others write the same documents.
    Apart,
}

impl Operation for SharedTransaction<'_> {
    type Output = GroupOutcome;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<GroupOutcome> {
        let SharedTransaction { batch, attempts } = self;
        if attempt.after_unknown && batch.items.len() > 1 {
            batch.inner.metrics.joint_unknown_results.add(1);
        }
        *attempts += 1;
        if *attempts > ATTEMPTS_MAX {
            batch.items.iter_mut().for_each(|item| item.maybe_committed |= attempt.maybe_committed);
            return Ok(GroupOutcome::Apart);
        }
        Ok(batch.attempt(trx, attempt).await?.map_or(GroupOutcome::Anew, GroupOutcome::Written))
    }
}

async fn write_group(mut turn: Turn, mut group: Group) {
    let inner = Arc::clone(&turn.inner);
    let Some(instance) = group.seats.first().map(|seat| Arc::clone(&seat.instance)) else { return };
    let work = Work::new(&inner);
    let (edits, items) = (&group.edits[..], &mut group.items);
    let preparations = Preparations::of(&instance);
    let (inner, instance, work) = (&*inner, &*instance, &work);
    let batch = WriteBatch { inner, instance, edits, items, attempts: 0, work, preparations, is_shared: true };
    let went = transaction::write(&inner.db, &inner.metrics, &mut SharedTransaction { batch, attempts: 0 }).await;
    let (answers, again) = match went {
        Ok(GroupOutcome::Written(outcomes)) => {
            if outcomes.len() > 1 {
                inner.metrics.joint_commits.add(1);
                inner.metrics.joint_documents.add(outcomes.len() as u64);
            }
            let mut outcomes = outcomes.into_iter().peekable();
            group.answer(|at, item| match outcomes.next_if(|(place, _)| *place == at) {
                Some((_, outcome)) => Some(WriteFate::Done(outcome)),
                None if item.is_stale => Some(WriteFate::Stale),
                None if item.goes_alone => Some(WriteFate::Alone),
                None => None,
            })
        }
        Ok(GroupOutcome::Anew) => group.answer(|_, _| Some(WriteFate::Anew)),
        Ok(GroupOutcome::Apart) => group.answer(|_, _| Some(WriteFate::Alone)),
        // Each write finds out alone whether it causes the error.
        Err(error) => {
            let maybe_committed = matches!(&error, Error::Storage(error) if error.is_maybe_committed());
            group.items.iter_mut().for_each(|item| item.maybe_committed |= maybe_committed);
            group.answer(|_, _| Some(WriteFate::Alone))
        }
    };
    // The next transaction begins before the answers are taken.
    turn.again = again;
    drop(turn);
    for (seat, reply) in answers {
        drop(seat.reply.send(reply));
    }
}
