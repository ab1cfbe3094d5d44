//! Information about groups.

use std::sync::atomic::Ordering;

use async_recursion::async_recursion as boxed;
use flatbed_databases::handles::ReadHandle;
use flatbed_feeds::feed::changes::Changes;
use flatbed_feeds::feed::query::{ChangesQuery, Since};
use flatbed_store::error::{Error, Result, ViewFailure};
use flatbed_store::keys::ViewPart;
use flatbed_store::records::decode_counter;
use flatbed_store::seq::Seq;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use flatbed_store::view_definition::GroupDefinition;

use crate::group::find::{GroupLookup, look_up};
use crate::group::steps::{ReadStanding, place_of};
use crate::view::build::FOLLOWED;
use crate::view::undo::shown;
use crate::view_updates::{hex, views};

/// The state of a group of views.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ViewGroupInfo {
    /// The signature in hexadecimal digits, equal for equal definitions.
    pub signature: String,
    /// The language of its functions.
    pub language: String,
    /// The number of rows in all its trees.
    pub rows: u64,
    /// The number of changes that are not in it yet, exact up to 500.
    pub pending: u64,
    /// The by-seq position up to which it is current: the beginning until it is built; `None`: no group is stored.
    pub update_seq: Option<Seq>,
    /// The number of purges that it has entered.
    pub purge_seq: u64,
    /// The number of queries in this process that wait for it.
    pub waiting_clients: u64,
    /// True while a process builds it or enters changes.
    pub updater_running: bool,
    /// True if it can be read.
    pub is_built: bool,
    /// The bytes of keys and values of its rows, as JSON.
    pub external_bytes: u64,
    /// The storage's estimate of its size, in bytes.
    pub file_bytes: u64,
    /// The number of documents that are in none of its views since their rows are too many or too large.
    pub documents_refused: u64,
    /// The documents without rows in its views, because a function exceeded its bound on them.
    pub set_aside: SetAsideDocuments,
}

/// The documents on which a function of a group exceeded its bound of time or memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetAsideDocuments {
    /// The number of documents.
    pub count: u64,
    /// The id and reason of the first 100, in the order of their ids.
    pub documents: Vec<(String, String)>,
}

/// The most documents that are listed.
const SET_ASIDE_NAMED: usize = 100;

/// Performs `Reader::view_info` of the layer.
#[boxed]
pub async fn view_info(database: &ReadHandle, design: &str) -> Result<ViewGroupInfo> {
    let nothing = |language: String| ViewGroupInfo { language, is_built: true, ..ViewGroupInfo::default() };
    // Information about a Mango index does not create its rows.
    let found = match look_up(database, design, |definition| !definition.is_of_fields()).await? {
        GroupLookup::Group(found) => found,
        GroupLookup::NotKept(GroupDefinition { signature, language, .. }) => {
            return Ok(ViewGroupInfo { signature: hex(&signature), ..nothing(language) });
        }
        GroupLookup::Nothing => return Ok(nothing("javascript".to_owned())),
    };
    let id = (found.instance.record.namespace, found.number);
    let ReadHandle { inner, name, .. } = database;
    let standing = database.read(&mut ReadStanding { inner, name, id }).await?.ok_or(ViewFailure::Changed)?;
    let definition = &found.loaded.definition;
    let state = views(inner).known(id);
    let mut info = ViewGroupInfo {
        signature: hex(&definition.signature),
        language: definition.language.clone(),
        waiting_clients: state.map_or(0, |state| state.waiting.load(Ordering::Relaxed)),
        updater_running: !standing.is_through(),
        ..ViewGroupInfo::default()
    };
    (info.file_bytes, info.documents_refused, info.set_aside) =
        database.read(&mut Sizes { reader: database, id }).await?;
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
    let mut changes = Changes::new(database.clone(), query);
    changes.stand_at(since);
    info.pending = changes.pending().await?;
    Ok(info)
}

/// Reads the size of a group in storage, the count of refused documents, and the documents set aside.
struct Sizes<'a> {
    reader: &'a ReadHandle,
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
