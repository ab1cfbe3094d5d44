//! Kinds of indexes, and the indexes in a database's record.
//!
//! A kind is code: it finds its definitions in design documents, maintains entries in the transactions that change
//! documents, and checks them. An index is one definition in one database, with its own number.

use async_recursion::async_recursion as boxed;
use flatbed_databases::document::edit::Edit;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_flatten::json::Value;
use flatbed_store::error::{Invalid, Refusal, Result};
use flatbed_store::keys::IndexPart;
use flatbed_store::proto;
use flatbed_store::records::Info;
use futures_util::future::BoxFuture;

use crate::index::maintainers::{IndexContext, IndexMaintainer};
use crate::index::partitions::COUNTED;
use crate::index::prepare::Preparations;

/// All kinds. Each has a feature in `flatbed_store::features`, and lines in design/data-model.md.
pub const KINDS: &[&dyn Kind] = &[
    &crate::index::json::kind::Json,
    &crate::index::selector::kind::SelectorIndexes,
    #[cfg(feature = "test-hooks")]
    &crate::index::member::Member,
];

/// The default limit of a definition, in bytes: all definitions are stored in the database's record.
const DEFINITION_BYTES_MAX: usize = 500;

/// The most bytes of a transaction that a document's entries may take; a larger document is refused. One transaction
/// writes the new entries and clears the old ones, and must stay below 1 MB.
const RESERVED_BYTES_MAX: u64 = 900_000;

pub trait Kind: Send + Sync {
    /// Returns the kind's permanent name in records. A changed layout is another kind.
    fn name(&self) -> &'static str;

    /// Returns the longest definition, in bytes; a longer one is ignored.
    fn definition_bytes_max(&self) -> usize {
        DEFINITION_BYTES_MAX
    }

    /// Returns the feature that a program needs beside the kind's own.
    fn feature(&self, _index: &proto::Index) -> Option<String> {
        None
    }

    /// Returns the definitions in a design document's body, in the kind's own format, for a database that is
    /// `partitioned` or not. `collation`: the signature of the program's order. Definitions that are not compiled
    /// before `stop` returns true are left out.
    fn defined_by(&self, body: &Value<'_>, partitioned: bool, collation: &str, stop: &dyn Fn() -> bool)
    -> Vec<Vec<u8>>;

    /// Returns whether this process has yet to compile the definition and that takes long. It is then compiled in a
    /// turn, if possible.
    fn takes_long(&self, _index: &proto::Index) -> bool {
        false
    }

    fn compile(&self, _index: &proto::Index) {}

    /// Returns the definition under this collation; `None`: it has this collation, or does not depend on one.
    fn reordered(&self, _index: &proto::Index, _collation: &str) -> Option<Vec<u8>> {
        None
    }

    /// Returns the most bytes of keys and values, old and new, that the index needs in a transaction with the edit. It
    /// also holds for a builder's transaction that enters a document of that id.
    fn reserve(&self, index: &proto::Index, id: &str, edit: Option<&Edit<'_>>) -> u64;

    /// Returns whether by-seq maintains the index on writes ([`crate::index::by_seq::BySeq`]). Only builders then use
    /// its maintainer.
    fn is_of_by_seq(&self) -> bool {
        false
    }

    /// Returns whether the index may contain tombstones. Builders enter them behind all other documents.
    fn has_tombstones(&self) -> bool {
        false
    }

    /// Returns whether the kind prepares documents: see [`Kind::prepare`].
    fn prepares(&self, _index: &proto::Index) -> bool {
        false
    }

    /// Prepares the maintainer's input for one document with a function. It runs before the transaction, for every
    /// revision that may win and is neither a tombstone nor a design document, and takes seconds at most.
    ///
    /// # Errors
    /// The write is refused with them. A fault of the function itself is a regular result.
    fn prepare<'a>(
        &'a self,
        _inner: &'a Inner,
        _index: &'a proto::Index,
        _id: &'a str,
        _body: &'a Value<'_>,
    ) -> BoxFuture<'a, Result<Vec<u8>>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Returns the maintainer for one transaction. A builder gives it unchanged documents, whose old and new state are
    /// equal; it enters them again if they are already entered.
    fn maintainer(&self, index: &proto::Index, preparations: &Preparations) -> Box<dyn IndexMaintainer>;

    /// Checks a document's entries. `is_built`: they must exist; otherwise existing entries must be right.
    fn check_document<'a>(
        &'a self,
        within: &'a IndexContext<'a>,
        index: &'a proto::Index,
        id: &'a str,
        info: &'a Info,
        is_built: bool,
    ) -> BoxFuture<'a, Result<Option<String>>>;

    fn check_entry<'a>(
        &'a self,
        within: &'a IndexContext<'a>,
        index: &'a proto::Index,
        part: IndexPart,
        value: &'a [u8],
    ) -> BoxFuture<'a, Result<Option<String>>>;
}

pub struct DefinedIndex {
    pub index: proto::Index,
    pub kind: &'static dyn Kind,
}

impl std::fmt::Debug for DefinedIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.index.fmt(f)
    }
}

/// Returns the indexes of a database. Their kinds are all known: a program without one of them cannot open the
/// database.
pub fn indexes_of(instance: &Instance) -> impl Iterator<Item = DefinedIndex> {
    with_kinds(instance).map(|(index, kind)| DefinedIndex { index: index.clone(), kind })
}

/// Like [`indexes_of`], by reference to the record: no index is copied, of which there may be hundreds.
pub fn with_kinds(instance: &Instance) -> impl Iterator<Item = (&proto::Index, &'static dyn Kind)> {
    instance.record.indexes.iter().filter_map(|index| {
        let kind = *KINDS.iter().find(|kind| kind.name() == index.kind)?;
        Some((index, kind))
    })
}

/// Returns the most bytes that a database's indexes and partition counters need in a transaction with the edit.
pub fn reserve(instance: &Instance, edit: &Edit<'_>) -> u64 {
    // Each counter is written twice: added to, and cleared if the sum is 0.
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
pub fn reserve_within(instance: &Instance, edit: &Edit<'_>) -> std::result::Result<u64, Refusal> {
    let bytes = reserve(instance, edit);
    if bytes > RESERVED_BYTES_MAX {
        let reason = format!("its entries in indexes would take more than {RESERVED_BYTES_MAX} bytes");
        return Err(Refusal::invalid(Invalid::Document, reason));
    }
    Ok(bytes)
}

impl DefinedIndex {
    pub fn maintainer(&self, preparations: &Preparations) -> Box<dyn IndexMaintainer> {
        self.kind.maintainer(&self.index, preparations)
    }

    /// See [`Kind::check_document`].
    #[boxed]
    pub async fn check_document(&self, within: &IndexContext<'_>, id: &str, info: &Info) -> Result<Option<String>> {
        let is_built = self.index.readable || {
            let progress = crate::index::build::progress(within, self.index.number, true).await?;
            progress.is_some_and(|until| *id <= *until)
        };
        self.kind.check_document(within, &self.index, id, info, is_built).await
    }

    /// See [`Kind::check_entry`].
    #[boxed]
    pub async fn check_entry(&self, within: &IndexContext<'_>, key: &[u8], value: &[u8]) -> Result<Option<String>> {
        match within.instance.keys.split_index(key) {
            Ok((number, _)) if number != self.index.number => Ok(Some("lies in another index".to_owned())),
            Ok((_, IndexPart::Progress)) if self.index.readable => {
                Ok(Some("the index is built, and has progress of its builder".to_owned()))
            }
            Ok((_, IndexPart::Later(_))) if self.index.readable => Ok(Some("a document was not entered".to_owned())),
            Ok((_, IndexPart::Progress | IndexPart::Later(_))) => Ok(None),
            Ok((_, part)) => self.kind.check_entry(within, &self.index, part, value).await,
            Err(error) => Ok(Some(error.to_string())),
        }
    }
}
