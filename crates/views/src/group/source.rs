//! Opens a view for a query, with the requested freshness.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_databases::handles::ReadHandle;
use flatbed_databases::instance::InstanceId;
use flatbed_operations::index::groups::{group_named_by, is_group};
use flatbed_store::error::{Error, Result, ViewFailure};
use flatbed_store::transaction::Transaction;
use flatbed_store::view_definition::ViewDefinition;
use futures_util::future::BoxFuture;

use crate::group::find::{CurrentGroup, find, known};
use crate::group::job::JavascriptReduces;
use crate::group::steps::{begin_standing, drained, is_through};
use crate::group::updater::ensure;
use crate::view::build::FOLLOWED;
use crate::view::group::ViewGroup;
use crate::view::read::{OpenOutcome, OpenView, View, ViewSource};
use crate::view::written::WrittenReduces;
use crate::view_updates::{GroupMoves, GroupState, LoadedGroup, WaitingReader, WaitsFor, views};

/// The interval at which a waiting query makes sure that a process follows the group.
const NUDGES: Duration = Duration::from_millis(250);

/// The longest time between two reads of the group's state by a waiting query.
const LOOKS_AGAIN: Duration = Duration::from_secs(10);

/// The freshness of a view.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ViewUpdate {
    /// The view contains everything that was committed before its first read, and the query waits for that.
    #[default]
    True,
    /// The view is read as it is, and updated afterwards.
    Lazy,
    /// The view is read as it is.
    False,
}

/// Performs `Reader::view` of the layer.
#[boxed]
pub async fn view(database: &ReadHandle, design: &str, name: &str, update: ViewUpdate) -> Result<View> {
    let found = find(database, design).await?.ok_or(ViewFailure::Missing)?;
    view_of(database, found, design, name, update)
}

/// Performs `Reader::view_known` of the layer.
pub fn view_known(database: &ReadHandle, design: &str, name: &str, update: ViewUpdate) -> Option<View> {
    view_of(database, known(database, design)?, design, name, update).ok()
}

fn view_of(database: &ReadHandle, found: CurrentGroup, design: &str, name: &str, update: ViewUpdate) -> Result<View> {
    let CurrentGroup { instance, number, loaded } = found;
    let is_it = |view: &ViewDefinition| view.name == name;
    let view = loaded.definition.views.iter().position(is_it).ok_or(ViewFailure::Missing)?;
    let (definition, namespace) = (Arc::clone(&loaded.definition), instance.record.namespace);
    let storage = ViewGroup::of(number, &definition)?;
    let tree = definition.views.get(view).map(|view| view.tree).unwrap_or_default();
    let id = (namespace, number);
    let state = views(&database.inner).group(id);
    let waits_for = WaitsFor {
        database: Arc::clone(&database.name),
        design: design.to_owned(),
        view: name.to_owned(),
        signature: definition.signature,
    };
    let (reader, needs, waiting) = (database.clone(), AtomicI64::new(0), Mutex::default());
    let instance = instance.id();
    let source = Source { reader, id, instance, waits_for, loaded, storage, tree, update, state, needs, waiting };
    Ok(View { source: Arc::new(source), reader: database.clone(), definition, view, partition: None })
}

/// See `Reader::view` of the layer.
struct Source {
    reader: ReadHandle,
    id: (u64, u64),
    instance: InstanceId,
    waits_for: WaitsFor,
    loaded: Arc<LoadedGroup>,
    storage: ViewGroup,
    tree: usize,
    update: ViewUpdate,
    state: Arc<GroupState>,
    /// The read version up to which the group must be complete; 0: not known yet.
    needs: AtomicI64,
    /// Set while the query waits, from its first attempt on.
    waiting: Mutex<Option<WaitingReader>>,
}

impl ViewSource for Source {
    fn open<'a>(&'a self, trx: &'a Transaction, is_first: bool) -> BoxFuture<'a, Result<OpenOutcome>> {
        Box::pin(async move {
            let opened = self.open_in(trx, is_first).await;
            // A retry on the storage's request keeps the query waiting.
            if !matches!(opened, Ok(OpenOutcome::Wait(_)) | Err(Error::Storage(_))) {
                self.waits(None);
            }
            opened
        })
    }

    fn is_waiting(&self) -> bool {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

impl Source {
    async fn open_in(&self, trx: &Transaction, is_first: bool) -> Result<OpenOutcome> {
        let ReadHandle { inner, name, .. } = &self.reader;
        let (namespace, number) = self.id;
        let seen = *self.state.moved.borrow();
        // A database of the same namespace has its keys at the same positions, so they are read before its identity is
        // known.
        let guessed = inner.cached(name).filter(|instance| instance.record.namespace == namespace);
        let asked = guessed.as_ref().map(|instance| begin_standing(trx, instance, number, false));
        let instance = inner.resolve(trx, name).await?;
        // A restore may give a namespace and a group's number to others.
        if instance.id() != self.instance {
            return Err(ViewFailure::Changed.into());
        }
        let is_same = guessed.is_some_and(|guessed| guessed.incarnation() == instance.incarnation());
        let (progress, last_seq, purges) = match asked {
            Some(asked) if is_same => asked.await?,
            _ => begin_standing(trx, &instance, number, false).await?,
        };
        let is_named = match is_first {
            true => {
                group_named_by(&instance.record, &self.waits_for.design).is_some_and(|group| group.number == number)
            }
            // A query under way may continue on a superseded group.
            false => instance.record.indexes.iter().any(|index| is_group(index) && index.number == number),
        };
        if !is_named {
            return Err(ViewFailure::Changed.into());
        }
        let is_built = progress.as_ref().is_some_and(|progress| progress.phase == FOLLOWED);
        if is_first && self.update == ViewUpdate::True {
            let mut needs = self.needs.load(Ordering::Relaxed);
            let is_fresh = progress.as_ref().is_some_and(|progress| {
                is_through(progress, &last_seq, purges) || is_built && needs > 0 && drained(progress) >= needs
            });
            if !is_fresh {
                if needs == 0 {
                    needs = trx.get_read_version().await?;
                    self.needs.store(needs, Ordering::Relaxed);
                }
                return Ok(OpenOutcome::Wait(self.wait(needs, seen)?));
            }
        } else if !is_first && !is_built && self.update == ViewUpdate::True {
            // The group is being rebuilt.
            return Err(ViewFailure::Changed.into());
        } else if is_first && self.update == ViewUpdate::Lazy {
            ensure(&self.reader, self.id);
        }
        let progress = match progress {
            Some(progress) => progress,
            None => self.storage.begin()?,
        };
        let functions = self.loaded.functions.clone();
        let written = functions.map(|functions| Arc::new(JavascriptReduces(functions)) as Arc<dyn WrittenReduces>);
        let (group, tree) = (self.storage.clone(), self.tree);
        Ok(OpenOutcome::Open(Box::new(OpenView { instance, group, tree, progress, written })))
    }

    fn waits(&self, waiting: Option<WaitingReader>) {
        let mut waits = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waits.is_none() || waiting.is_none() {
            *waits = waiting;
        }
    }

    /// Waits until the group is complete up to `needs`, or has made progress since `seen`.
    ///
    /// # Errors
    /// The group cannot be followed, or too many queries wait.
    fn wait(&self, needs: i64, seen: GroupMoves) -> Result<BoxFuture<'static, Result<()>>> {
        let (reader, id, state) = (self.reader.clone(), self.id, Arc::clone(&self.state));
        if self.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            self.waits(Some(WaitingReader::begin(views(&reader.inner), &state, self.waits_for.clone())?));
        }
        Ok(Box::pin(async move {
            if let Some(failure) = state.failure() {
                return Err(failure.into());
            }
            ensure(&reader, id);
            let (mut closing, mut moved) = (reader.inner.closing.subscribe(), state.moved.subscribe());
            let clock = &reader.inner.clock;
            let looks_again = clock.sleep(LOOKS_AGAIN);
            tokio::pin!(looks_again);
            loop {
                let is_further = |moved: &GroupMoves| {
                    moved.drained >= needs && moved.drained > seen.drained || moved.ended != seen.ended
                };
                tokio::select! {
                    _ = moved.wait_for(is_further) => break,
                    () = &mut looks_again => break,
                    // The request may have raced with the end of the task, or another process has purged something.
                    () = clock.sleep(NUDGES) => {
                        ensure(&reader, id);
                        state.wake_follower();
                    }
                    _ = closing.wait_for(|closing| *closing) => return Err(Error::ShuttingDown),
                }
            }
            state.failure().map_or(Ok(()), |failure| Err(failure.into()))
        }))
    }
}
