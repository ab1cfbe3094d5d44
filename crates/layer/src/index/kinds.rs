//! Kinds of indexes, and the indexes that a database has by its record.
//!
//! A kind is code: it finds its definitions in design documents, keeps its entries in the transactions that change
//! documents, and checks them. An index is one definition in one database, with a number of its own.

use flatbed_flatten::json::Value;
use futures_util::future::BoxFuture;

use crate::document::edit::Edit;
use crate::error::{Invalid, Refusal, Result};
use crate::index::maintainers::{IndexMaintainer, Within};
use crate::index::partitions::COUNTED;
use crate::index::prepare::Preparations;
use crate::instance::Instance;
use crate::layer::Inner;
use crate::store::keys::IndexPart;
use crate::store::proto;
use crate::store::records::Info;

/// All kinds. For each there is a feature in `store::features`, and lines in design/data-model.md.
pub(crate) const KINDS: &[&dyn Kind] = &[
    &crate::index::json::kind::Json,
    &crate::index::selector::kind::Selected,
    #[cfg(test)]
    &crate::index::member::Member,
];

/// The longest definition of a kind that says nothing else, in bytes: all of them stand in the database's record.
const DEFINITION_BYTES_MAX: usize = 500;

/// The most bytes of a transaction that a document's entries may take; a larger document is refused. One transaction writes the new
/// entries and clears the old ones, and must stay below 1 MB.
const RESERVED_BYTES_MAX: u64 = 900_000;

/// Code that keeps indexes.
pub(crate) trait Kind: Send + Sync {
    /// Its name in records, for ever: what is laid out otherwise is another kind.
    fn name(&self) -> &'static str;

    /// The longest definition, in bytes; a longer one is passed over.
    fn definition_bytes_max(&self) -> usize {
        DEFINITION_BYTES_MAX
    }

    /// What a program must know beside the kind, by the name of a feature.
    fn feature(&self, _index: &proto::Index) -> Option<String> {
        None
    }

    /// The indexes that a design document's body defines in a database, which is `partitioned` or not, each in the kind's own
    /// words. `collation`: the signature of the program's order. What is not compiled before `stop` says so is left out.
    fn defined_by(&self, body: &Value<'_>, partitioned: bool, collation: &str, stop: &dyn Fn() -> bool)
    -> Vec<Vec<u8>>;

    /// Whether this process has not compiled the definition yet, and that takes long: then it is compiled in a turn, where that can be.
    fn takes_long(&self, _index: &proto::Index) -> bool {
        false
    }

    /// Compiles the definition, and keeps that.
    fn compile(&self, _index: &proto::Index) {}

    /// The same index as it is defined with this collation; `None`: it is, or has none.
    fn reordered(&self, _index: &proto::Index, _collation: &str) -> Option<Vec<u8>> {
        None
    }

    /// What the index takes at most, in bytes of keys and values, in a transaction that writes the edit: of new entries and
    /// of old ones. Also in one that enters a document of that id which was there before.
    fn reserve(&self, index: &proto::Index, id: &str, edit: Option<&Edit<'_>>) -> u64;

    /// Whether writes keep it together with by-seq ([`crate::index::by_seq::BySeq`]): its maintainer is for builders alone.
    fn is_of_by_seq(&self) -> bool {
        false
    }

    /// Whether tombstones may be in it: builders enter them behind all other documents.
    fn has_tombstones(&self) -> bool {
        false
    }

    /// Whether it prepares documents: see [`Kind::prepare`].
    fn prepares(&self, _index: &proto::Index) -> bool {
        false
    }

    /// What the maintainer will have of a document's body, in the kind's own words, as a function makes it for one: asked
    /// before the transaction, of every revision that may win and is neither a tombstone nor a design document, within
    /// seconds.
    ///
    /// # Errors
    /// The write is refused with them: what a function itself does wrong is an answer, too.
    fn prepare<'a>(
        &'a self,
        _inner: &'a Inner,
        _index: &'a proto::Index,
        _id: &'a str,
        _body: &'a Value<'_>,
    ) -> BoxFuture<'a, Result<Vec<u8>>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Keeps the index in one transaction. A builder hands it documents that do not change: the old and the new state are
    /// the same, and what is entered already is entered again.
    fn maintainer(&self, index: &proto::Index, preparations: &Preparations) -> Box<dyn IndexMaintainer>;

    /// What is wrong with a document's entries. `is_built`: it must have them; else those that it has must be right.
    fn check_document<'a>(
        &'a self,
        within: &'a Within<'a>,
        index: &'a proto::Index,
        id: &'a str,
        info: &'a Info,
        is_built: bool,
    ) -> BoxFuture<'a, Result<Option<String>>>;

    /// What is wrong with an entry, seen from its key.
    fn check_entry<'a>(
        &'a self,
        within: &'a Within<'a>,
        index: &'a proto::Index,
        part: IndexPart,
        value: &'a [u8],
    ) -> BoxFuture<'a, Result<Option<String>>>;
}

/// One index of a database, with its kind.
pub(crate) struct DefinedIndex {
    pub index: proto::Index,
    pub kind: &'static dyn Kind,
}

impl std::fmt::Debug for DefinedIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.index.fmt(f)
    }
}

/// The indexes of a database. Of kinds that are not known there are none: who does not know them has not opened it.
pub(crate) fn indexes_of(instance: &Instance) -> impl Iterator<Item = DefinedIndex> {
    with_kinds(instance).map(|(index, kind)| DefinedIndex { index: index.clone(), kind })
}

/// As [`indexes_of`], by reference to the record: none of possibly hundreds of indexes is copied.
pub(crate) fn with_kinds(instance: &Instance) -> impl Iterator<Item = (&proto::Index, &'static dyn Kind)> {
    instance.record.indexes.iter().filter_map(|index| {
        let kind = *KINDS.iter().find(|kind| kind.name() == index.kind)?;
        Some((index, kind))
    })
}

/// What a database's indexes, and counters of partitions, take at most in a transaction that writes the edit.
pub(crate) fn reserve(instance: &Instance, edit: &Edit<'_>) -> u64 {
    // Each is written twice: added to, and cleared if that makes nought.
    let of_counter = 2 * (edit.id.len() as u64 + 64);
    let partition = if instance.record.partitioned { COUNTED.len() as u64 * of_counter } else { 0 };
    if instance.record.indexes.is_empty() {
        return partition;
    }
    partition + with_kinds(instance).map(|(index, kind)| kind.reserve(index, &edit.id, Some(edit))).sum::<u64>()
}

/// As [`reserve`], within [`RESERVED_BYTES_MAX`]. One index takes at most 28 kB, if a field has 10 kB of text.
///
/// # Errors
/// [`Invalid::Document`] if the entries would take more.
pub(crate) fn reserve_within(instance: &Instance, edit: &Edit<'_>) -> std::result::Result<u64, Refusal> {
    let bytes = reserve(instance, edit);
    if bytes > RESERVED_BYTES_MAX {
        let reason = format!("its entries in indexes would take more than {RESERVED_BYTES_MAX} bytes");
        return Err(Refusal::invalid(Invalid::Document, reason));
    }
    Ok(bytes)
}

impl DefinedIndex {
    pub(crate) fn maintainer(&self, preparations: &Preparations) -> Box<dyn IndexMaintainer> {
        self.kind.maintainer(&self.index, preparations)
    }

    /// See [`Kind::check_document`].
    pub(crate) async fn check_document(&self, within: &Within<'_>, id: &str, info: &Info) -> Result<Option<String>> {
        let is_built = self.index.readable || {
            let progress = crate::index::build::progress(within, self.index.number, true).await?;
            progress.is_some_and(|until| *id <= *until)
        };
        self.kind.check_document(within, &self.index, id, info, is_built).await
    }

    /// See [`Kind::check_entry`].
    pub(crate) async fn check_entry(&self, within: &Within<'_>, key: &[u8], value: &[u8]) -> Result<Option<String>> {
        match within.instance.keys.split_index(key) {
            Ok((number, _)) if number != self.index.number => Ok(Some("lies in another index".to_owned())),
            Ok((_, IndexPart::Progress)) if self.index.readable => Ok(Some("its builder is through".to_owned())),
            Ok((_, IndexPart::Later(_))) if self.index.readable => Ok(Some("a document was not entered".to_owned())),
            Ok((_, IndexPart::Progress | IndexPart::Later(_))) => Ok(None),
            Ok((_, part)) => self.kind.check_entry(within, &self.index, part, value).await,
            Err(error) => Ok(Some(error.to_string())),
        }
    }
}
