//! What is shown of a group.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_recursion::async_recursion as boxed;

use crate::error::{Error, Result, ViewFailure};
use crate::feed::changes::Changes;
use crate::feed::query::{ChangesQuery, Since};
use crate::group::find::{Defined, look};
use crate::group::steps::{Look, place_of};
use crate::handle::Reader;
use crate::layer::Layer;
use crate::store::keys::ViewPart;
use crate::store::records::decode_counter;
use crate::store::seq::Seq;
use crate::store::transaction::{Attempt, Operation, Transaction};
use crate::view::build::FOLLOWED;
use crate::view::undo::shown;
use crate::view_definition::GroupDefinition;
use crate::view_functions::ViewFunctions;
use crate::view_updates::{ViewTask, ViewWait, hex};

/// A group of views, as it stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ViewGroupInfo {
    /// What it is named by, in hexadecimal digits: equal for equal definitions.
    pub signature: String,
    /// The language of its functions.
    pub language: String,
    /// Rows of all its trees.
    pub rows: u64,
    /// Changes that are not in it yet, exact up to 500.
    pub pending: u64,
    /// Up to where it has the changes, which is the beginning until it is built; `None`: no group is kept.
    pub update_seq: Option<Seq>,
    /// How many purges it has.
    pub purge_seq: u64,
    /// Queries of this process that wait for it.
    pub waiting_clients: u64,
    /// Whether a process is building it, or entering changes.
    pub updater_running: bool,
    /// Whether it is built, so that it can be read.
    pub is_built: bool,
    /// Bytes of keys and values of its rows, as JSON.
    pub external_bytes: u64,
    /// What it takes in storage, as the storage estimates.
    pub file_bytes: u64,
    /// Documents that are in none of its views since their rows are too many or too large.
    pub documents_refused: u64,
    /// Documents without rows in its views, because a function broke its bound on them.
    pub set_aside: SetAsideDocuments,
}

/// The documents on which a function of a group broke its bound of time or memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetAsideDocuments {
    /// The number of documents.
    pub count: u64,
    /// The id and reason of the first 100, in the order of their ids.
    pub documents: Vec<(String, String)>,
}

/// How many documents are listed.
const SET_ASIDE_NAMED: usize = 100;

impl Reader {
    /// How the group of a design document (by its id, `_design/...`) stands. One without views has no rows, and neither has one
    /// of fields that nobody has asked for.
    ///
    /// # Errors
    /// [`Refusal::DocumentNotFound`](crate::Refusal::DocumentNotFound), [`Error::View`].
    #[boxed]
    pub async fn view_info(&self, design: &str) -> Result<ViewGroupInfo> {
        let nothing = |language: String| ViewGroupInfo { language, is_built: true, ..ViewGroupInfo::default() };
        // Who looks at an index of Mango has not asked for its rows.
        let found = match look(self, design, |definition| !definition.is_of_fields()).await? {
            Defined::Group(found) => found,
            Defined::NotKept(GroupDefinition { signature, language, .. }) => {
                return Ok(ViewGroupInfo { signature: hex(&signature), ..nothing(language) });
            }
            Defined::Nothing => return Ok(nothing("javascript".to_owned())),
        };
        let id = (found.instance.record.namespace, found.number);
        let Reader { inner, name, .. } = self;
        let standing = self.read(&mut Look { inner, name, id }).await?.ok_or(ViewFailure::Changed)?;
        let definition = &found.loaded.definition;
        let state = inner.views.known(id);
        let mut info = ViewGroupInfo {
            signature: hex(&definition.signature),
            language: definition.language.clone(),
            waiting_clients: state.map_or(0, |state| state.waiting.load(Ordering::Relaxed)),
            updater_running: !standing.is_through(),
            ..ViewGroupInfo::default()
        };
        (info.file_bytes, info.documents_refused, info.set_aside) = self.read(&mut Sizes { reader: self, id }).await?;
        let place = match &standing.progress {
            Some(progress) => {
                info.purge_seq = progress.purges;
                info.is_built = progress.phase == FOLLOWED;
                let trees = shown(progress).0;
                info.rows = trees.iter().map(|tree| tree.rows).sum();
                info.external_bytes = trees.iter().map(|tree| tree.bytes).sum();
                place_of(progress)?
            }
            None => Seq::zero(standing.instance.incarnation()),
        };
        let since = if info.is_built { place } else { Seq::zero(standing.instance.incarnation()) };
        info.update_seq = Some(since);
        let query = ChangesQuery { since: Since::after(since), ..ChangesQuery::default() };
        let mut changes = Changes::new(self.clone(), query);
        changes.stand_at(since);
        info.pending = changes.pending().await?;
        Ok(info)
    }
}

impl Layer {
    /// Gives the layer what runs the functions of views, once: before that no group is built by this process.
    pub fn run_views_by(&self, functions: Arc<dyn ViewFunctions>) {
        self.inner.views.run_by(functions);
    }

    /// Groups of views that this process builds or that catch up with many changes.
    pub fn view_tasks(&self) -> Vec<ViewTask> {
        self.inner.views.tasks()
    }

    /// Queries of this process that wait for views, together by view: those that have waited the longest, 500 at most; and
    /// how many queries more wait than these.
    pub fn view_waits(&self) -> (Vec<ViewWait>, u64) {
        self.inner.views.waits()
    }
}

/// Reads the size of a group in storage, the count of refused documents, and the documents set aside.
struct Sizes<'a> {
    reader: &'a Reader,
    id: (u64, u64),
}

impl Operation for Sizes<'_> {
    type Output = (u64, u64, SetAsideDocuments);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.reader.inner.resolve(trx, &self.reader.name).await?;
        if instance.record.namespace != self.id.0 {
            return Err(Error::View(ViewFailure::Changed));
        }
        let all = instance.keys.index(self.id.1);
        let view = instance.keys.view(self.id.1);
        let (refused, count) = (trx.get(&view.refused(), true), trx.get(&view.set_aside_count(), true));
        let named = view.all_set_aside();
        let named = trx.range(&named, true).first(SET_ASIDE_NAMED);
        let bytes = trx.get_estimated_range_size_bytes(&all.begin, &all.end);
        let (refused, count, bytes) = (refused.await?, count.await?, bytes.await?);
        let mut documents = Vec::new();
        for row in named.await?.iter() {
            if let ViewPart::SetAside(id) = view.split(row.key())? {
                documents.push((id, String::from_utf8_lossy(row.value()).into_owned()));
            }
        }
        let count = decode_counter(count.as_deref())?.max(0) as u64;
        let set_aside = SetAsideDocuments { count, documents };
        Ok((bytes.max(0) as u64, decode_counter(refused.as_deref())?.max(0) as u64, set_aside))
    }
}
