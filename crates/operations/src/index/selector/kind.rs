//! Implements the kind of selector indexes.

use flatbed_databases::document::edit::Edit;
use flatbed_flatten::json::Value;
use flatbed_store::error::Result;
use flatbed_store::features::{collation, is_outdated};
use flatbed_store::keys::IndexPart;
use flatbed_store::proto;
use flatbed_store::records::Info;
use futures_util::future::BoxFuture;

use crate::index::json::definition::{reordered, signature_in};
use crate::index::kinds::Kind;
use crate::index::maintainers::{IndexContext, IndexMaintainer};
use crate::index::prepare::Preparations;
use crate::index::selector::{check, definition, selecting};

/// The bytes of an entry beside its document's id: a key twice, revision, names of channels; another key that is
/// cleared; the number in the by-seq entry.
const ENTRY_BYTES: u64 = 600;

pub struct SelectorIndexes;

pub const NAME: &str = "selector";

impl Kind for SelectorIndexes {
    fn name(&self) -> &'static str {
        NAME
    }

    fn definition_bytes_max(&self) -> usize {
        definition::DEFINITION_BYTES_MAX
    }

    fn defined_by(&self, body: &Value<'_>, _: bool, collation: &str, stop: &dyn Fn() -> bool) -> Vec<Vec<u8>> {
        definition::defined_by(body, collation, stop)
    }

    fn takes_long(&self, index: &proto::Index) -> bool {
        definition::takes_long(index)
    }

    fn compile(&self, index: &proto::Index) {
        // The index's readers and writers report its errors.
        let _ = definition::compiled(index);
    }

    // A selector's result may depend on the order of texts.
    fn reordered(&self, index: &proto::Index, collation: &str) -> Option<Vec<u8>> {
        reordered(&index.definition, collation)
    }

    fn feature(&self, index: &proto::Index) -> Option<String> {
        signature_in(&index.definition).map(|signature| collation(&signature))
    }

    fn reserve(&self, _: &proto::Index, id: &str, _: Option<&Edit<'_>>) -> u64 {
        ENTRY_BYTES + id.len() as u64
    }

    fn is_of_by_seq(&self) -> bool {
        true
    }

    fn has_tombstones(&self) -> bool {
        true
    }

    fn maintainer(&self, index: &proto::Index, _: &Preparations) -> Box<dyn IndexMaintainer> {
        Box::new(selecting::SelectorMaintainer::new(index))
    }

    fn check_document<'a>(
        &'a self,
        within: &'a IndexContext<'a>,
        index: &'a proto::Index,
        id: &'a str,
        info: &'a Info,
        is_built: bool,
    ) -> BoxFuture<'a, Result<Option<String>>> {
        if is_outdated(&within.instance.record, within.inner.collation) {
            return Box::pin(async { Ok(None) });
        }
        Box::pin(check::check_document(within, index, id, info, is_built))
    }

    fn check_entry<'a>(
        &'a self,
        within: &'a IndexContext<'a>,
        index: &'a proto::Index,
        part: IndexPart,
        value: &'a [u8],
    ) -> BoxFuture<'a, Result<Option<String>>> {
        if is_outdated(&within.instance.record, within.inner.collation) {
            return Box::pin(async { Ok(None) });
        }
        Box::pin(check::check_entry(within, index, part, value))
    }
}
