//! A view as a query finds it: as fresh as it was asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::error::{Error, Result, ViewFailure};
use crate::group::find::{Found, find};
use crate::group::job::Written;
use crate::group::steps::{begin_standing, drained, is_through};
use crate::group::updater::ensure;
use crate::handle::Reader;
use crate::index::groups::{group_named_by, is_group};
use crate::store::transaction::Transaction;
use crate::view::build::FOLLOWED;
use crate::view::group::ViewGroup;
use crate::view::read::{OpenView, Opening, View, ViewSource};
use crate::view::written::WrittenReduces;
use crate::view_definition::ViewDefinition;
use crate::view_updates::{GroupState, LoadedGroup, Waiting};

/// A query that waits looks again after this time, woken or not.
const LOOKS_AGAIN: Duration = Duration::from_millis(250);

/// How fresh a view is to be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ViewUpdate {
    /// It has everything that was committed before it is first read; that is waited for.
    #[default]
    True,
    /// It is read as it is, and brought up to date then.
    Lazy,
    /// It is read as it is.
    False,
}

impl Reader {
    /// A view of a design document, by its id (`_design/...`) and the view's name. Nothing is waited for here: the first
    /// page of what is read of it waits until it is as fresh as asked.
    ///
    /// A view whose group fails so that no page can be read says so with the first page.
    ///
    /// # Errors
    /// [`Refusal::DocumentNotFound`](crate::Refusal::DocumentNotFound) of the design document, [`Error::View`].
    pub async fn view(&self, design: &str, name: &str, update: ViewUpdate) -> Result<View> {
        let found = find(self, design).await?.ok_or(ViewFailure::Missing)?;
        let Found { instance, number, loaded } = found;
        let is_it = |view: &ViewDefinition| view.name == name;
        let view = loaded.definition.views.iter().position(is_it).ok_or(ViewFailure::Missing)?;
        let (definition, namespace) = (Arc::clone(&loaded.definition), instance.record.namespace);
        let storage = ViewGroup::of(number, &definition)?;
        let tree = definition.views.get(view).map(|view| view.tree).unwrap_or_default();
        let id = (namespace, number);
        let state = self.inner.views.group(id);
        let (reader, design, needs, tree) = (self.clone(), design.to_owned(), AtomicI64::new(0), tree);
        let source = Source { reader, id, design, loaded, storage, tree, update, state, needs };
        Ok(View { source: Arc::new(source), reader: self.clone(), definition, view })
    }
}

/// See [`Reader::view`].
struct Source {
    reader: Reader,
    id: (u64, u64),
    design: String,
    loaded: Arc<LoadedGroup>,
    storage: ViewGroup,
    tree: usize,
    update: ViewUpdate,
    state: Arc<GroupState>,
    /// The read version as of which it must have everything; 0: it is not known yet.
    needs: AtomicI64,
}

impl ViewSource for Source {
    fn open<'a>(&'a self, trx: &'a Transaction, is_first: bool) -> BoxFuture<'a, Result<Opening>> {
        Box::pin(self.open_in(trx, is_first))
    }
}

impl Source {
    async fn open_in(&self, trx: &Transaction, is_first: bool) -> Result<Opening> {
        let Reader { inner, name } = &self.reader;
        let (namespace, number) = self.id;
        let moved = self.state.moved.subscribe();
        // A database of the same namespace has its keys in the same places: they are asked for before it is known to be the same.
        let guessed = inner.cached(name).filter(|instance| instance.record.namespace == namespace);
        let asked = guessed.as_ref().map(|instance| begin_standing(trx, instance, number, false));
        let instance = inner.resolve(trx, name).await?;
        if instance.record.namespace != namespace {
            return Err(ViewFailure::Changed.into());
        }
        let is_same = guessed.is_some_and(|guessed| guessed.incarnation() == instance.incarnation());
        let (progress, last_seq, purges) = match asked {
            Some(asked) if is_same => asked.await?,
            _ => begin_standing(trx, &instance, number, false).await?,
        };
        let is_named = match is_first {
            true => group_named_by(&instance.record, &self.design).is_some_and(|group| group.number == number),
            // What goes on being read may have been superseded meanwhile.
            false => instance.record.indexes.iter().any(|index| is_group(index) && index.number == number),
        };
        if !is_named {
            return Err(ViewFailure::Changed.into());
        }
        let is_built = progress.as_ref().is_some_and(|progress| progress.phase == FOLLOWED);
        if is_first && self.update == ViewUpdate::True {
            let needs = self.needs.load(Ordering::Relaxed);
            let is_fresh = progress.as_ref().is_some_and(|progress| {
                is_through(progress, &last_seq, purges) || is_built && needs > 0 && drained(progress) >= needs
            });
            if !is_fresh {
                if needs == 0 {
                    self.needs.store(trx.get_read_version().await?, Ordering::Relaxed);
                }
                return Ok(Opening::Wait(self.wait(moved)));
            }
        } else if !is_first && !is_built && self.update == ViewUpdate::True {
            // It is being built anew.
            return Err(ViewFailure::Changed.into());
        } else if is_first && self.update == ViewUpdate::Lazy {
            ensure(&self.reader, self.id);
        }
        let progress = match progress {
            Some(progress) => progress,
            None => self.storage.begin()?,
        };
        let functions = self.loaded.functions.clone();
        let written = functions.map(|functions| Arc::new(Written(functions)) as Arc<dyn WrittenReduces>);
        let (group, tree) = (self.storage.clone(), self.tree);
        Ok(Opening::Open(Box::new(OpenView { instance, group, tree, progress, written })))
    }

    /// Waits until the group has come further.
    ///
    /// # Errors
    /// It cannot be followed.
    fn wait(&self, mut moved: tokio::sync::watch::Receiver<i64>) -> BoxFuture<'static, Result<()>> {
        let (reader, id, state) = (self.reader.clone(), self.id, Arc::clone(&self.state));
        Box::pin(async move {
            let inner = &reader.inner;
            let _waiting = Waiting::begin(&inner.views, &state)?;
            ensure(&reader, id);
            let mut closing = inner.closing.subscribe();
            tokio::select! {
                _ = moved.changed() => {}
                // It may have been asked in the moment in which its task ended, or something was purged elsewhere.
                () = tokio::time::sleep(LOOKS_AGAIN) => state.wake.notify_one(),
                _ = closing.wait_for(|closing| *closing) => return Err(Error::ShuttingDown),
            }
            state.failure().map_or(Ok(()), |failure| Err(failure.into()))
        })
    }
}
