//! Applies a database's current sync function to all documents, in the background.
//!
//! The transaction that sets a function also notes that the resync is due. The processes that find that out divide the
//! documents into ranges by id, and each works on several ranges under leases ([`ranges`]). A page of a range is read by
//! one range read ([`page`]), judged in few calls of the function ([`judge`]), and written in transactions of bounded
//! size ([`step`]), which also store the position. The function gets each leaf with its own body and that of the
//! revision below it, and without a user: the author was judged at the time of the write. A leaf that the function
//! refuses keeps its channels. A document whose winner changes channels, grants or expiry gets a new sequence, so that
//! readers past its old one see the change; other documents are not written. Writes during the resync are judged by the
//! new function, so a document that was edited or created meanwhile needs no further judgement.

mod judge;
mod page;
mod ranges;
mod run;
mod state;
mod step;

use async_recursion::async_recursion as boxed;
use flatbed_databases::actor::Actor;
use flatbed_databases::server::Inner;
use flatbed_store::due::{self, DueKind};
use flatbed_store::error::{Refusal, Result};
use flatbed_store::proto;
use flatbed_store::sync_function::{begin_resync, draw_run};
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use prost::Message;

use crate::handle::{Database, Reader};
use crate::resync::state::{ReadResync, close, state_of};

pub(crate) use crate::resync::run::resync;

/// The progress of a resync.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResyncState {
    /// The number of documents processed; a second or so late.
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
    /// Begins a resync, or resumes a stopped one with the same function.
    Start {
        /// True to close the database to its users until the resync ends or is stopped, even if it was begun without
        /// that.
        is_exclusive: bool,
        /// True to begin at the first document also if a resync is running or was stopped.
        is_anew: bool,
    },
    /// Stops the resync: each process ends within a page of each of its ranges.
    Stop,
}

impl Reader {
    /// Returns the progress of the database's sync function; `None`: it has been applied to all documents, or the
    /// database has no channels.
    #[boxed]
    pub async fn resync_state(&self) -> Result<Option<ResyncState>> {
        let (inner, name) = (&*self.handle.inner, &*self.handle.name);
        let found = self.handle.read(&mut ReadResync { inner, name }).await?;
        Ok(found.map(|found| {
            let [documents, changed, refused] = found.sums();
            let proto::Resync { begun_at_ms, stopped: is_stopped, exclusive: is_exclusive, .. } = found.state;
            ResyncState { documents, changed, refused, begun_at_ms, is_stopped, is_exclusive }
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
        let (now_ms, run) = (inner.clock.unix_ms(), draw_run()?);
        let mut set = SetState { inner, name, actor, action, now_ms, run };
        let changed = transaction::write(&inner.db, &inner.metrics, &mut set).await?;
        inner.due.wake.notify_one();
        Ok(changed)
    }
}

struct SetState<'a> {
    inner: &'a Inner,
    name: &'a str,
    actor: &'a Actor,
    action: ResyncAction,
    now_ms: u64,
    /// The number of a resync that this begins.
    run: u64,
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
        let begun = |exclusive| {
            let (number, begun_at_ms, run) = (instance.channels(), self.now_ms, self.run);
            proto::Resync { number, begun_at_ms, exclusive, run, ..proto::Resync::default() }
        };
        let state = match (before.clone(), self.action) {
            // An earlier attempt has committed.
            (Some(state), ResyncAction::Start { .. }) if state.run == self.run => return Ok(true),
            (Some(state), ResyncAction::Start { is_exclusive, is_anew: false }) if !state.stopped => {
                proto::Resync { exclusive: state.exclusive || is_exclusive, ..state }
            }
            (Some(state), ResyncAction::Start { is_exclusive, is_anew: false })
                if state.number == instance.channels() =>
            {
                proto::Resync { exclusive: is_exclusive, stopped: false, ..state }
            }
            (_, ResyncAction::Start { is_exclusive, .. }) => begun(is_exclusive),
            (Some(state), ResyncAction::Stop) => proto::Resync { stopped: true, exclusive: false, ..state },
            (None, ResyncAction::Stop) => return Ok(false),
        };
        if before.as_ref() == Some(&state) {
            return Ok(false);
        }
        match state.run == self.run {
            true => begin_resync(trx, &instance.keys, &state),
            false => trx.set(&instance.keys.resync(), &state.encode_to_vec()),
        }
        close(self.inner, trx, &instance, state.exclusive)?;
        if !state.stopped {
            due::mark(trx, &instance.root, DueKind::Resync, self.name, 0)?;
        }
        Ok(true)
    }
}
