//! Implements the kind of json indexes.

use flatbed_collate::CUT_BYTES;
use flatbed_collate::label::LABEL_BYTES_MAX;
use flatbed_databases::document::edit::Edit;
use flatbed_flatten::json::Value;
use flatbed_flatten::json_len;
use flatbed_store::error::Result;
use flatbed_store::features::{collation, is_outdated};
use flatbed_store::keys::IndexPart;
use flatbed_store::proto;
use flatbed_store::records::Info;
use futures_util::future::BoxFuture;

use crate::index::json::{check, definition, entry, maintainer};
use crate::index::kinds::Kind;
use crate::index::maintainers::{IndexContext, IndexMaintainer};
use crate::index::prepare::Preparations;

/// The bytes of an entry beside its sort form, value and id: the mutation's frame, the root, numbers.
const ENTRY_OVERHEAD_BYTES: u64 = 100;

/// The usual size of a sort form per byte of the key's text. Any excess is counted when it is written.
const FORM_BYTES_PER_BYTE: u64 = 4;

pub struct Json;

pub const NAME: &str = "json";

impl Kind for Json {
    fn name(&self) -> &'static str {
        NAME
    }

    fn definition_bytes_max(&self) -> usize {
        definition::DEFINITION_BYTES_MAX
    }

    fn defined_by(
        &self,
        body: &Value<'_>,
        partitioned: bool,
        collation: &str,
        stop: &dyn Fn() -> bool,
    ) -> Vec<Vec<u8>> {
        definition::defined_by(body, partitioned, collation, stop)
    }

    fn takes_long(&self, index: &proto::Index) -> bool {
        definition::takes_long(index)
    }

    fn compile(&self, index: &proto::Index) {
        // The index's readers and writers report its errors.
        let _ = definition::compiled(index);
    }

    fn reordered(&self, index: &proto::Index, collation: &str) -> Option<Vec<u8>> {
        definition::reordered(&index.definition, collation)
    }

    fn reserve(&self, index: &proto::Index, id: &str, edit: Option<&Edit<'_>>) -> u64 {
        let key_bytes = match (edit, definition::compiled(index)) {
            // The clear of an old entry is counted with the write of the new one.
            (Some(edit), Ok(index)) if edit.deleted || !may_have(&index, &edit.body) => return 0,
            (Some(edit), Ok(index)) => key_bytes(&index, &edit.body),
            _ => 0,
        };
        let id_bytes = id.len() as u64;
        let form_bytes = (FORM_BYTES_PER_BYTE * key_bytes).min((CUT_BYTES + 2 * LABEL_BYTES_MAX) as u64);
        // A long key's label is stored a second time, and its entry adds a conflict.
        let label_bytes = if form_bytes >= CUT_BYTES as u64 / 2 { form_bytes * 2 + LABEL_BYTES_MAX as u64 } else { 0 };
        2 * (ENTRY_OVERHEAD_BYTES + id_bytes) + form_bytes + label_bytes + entry::value_bytes(key_bytes)
    }

    fn maintainer(&self, index: &proto::Index, _: &Preparations) -> Box<dyn IndexMaintainer> {
        Box::new(maintainer::JsonMaintainer::new(index))
    }

    fn feature(&self, index: &proto::Index) -> Option<String> {
        definition::signature_in(&index.definition).map(|signature| collation(&signature))
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

/// Returns whether a document may be in an index, judged by the first part of each field's name.
fn may_have(index: &flatbed_mango::Index, body: &Value<'_>) -> bool {
    let is_there = |first: &str| matches!(first, "_id" | "_rev") || body.get(first).is_some();
    index.fields().iter().all(|field| field.parts().next().is_some_and(is_there))
}

/// Returns the approximate JSON text of the index's fields, in bytes.
fn key_bytes(index: &flatbed_mango::Index, body: &Value<'_>) -> u64 {
    let value =
        |field: &flatbed_mango::Field| field.parts().try_fold(body, |value, part| value.get(part)).map_or(0, json_len);
    index.fields().iter().map(|field| 1 + value(field) as u64).sum()
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};

    use super::*;

    #[test]
    fn nothing_is_reserved_of_an_index_that_a_document_cannot_be_in() {
        let json = |text: &str| parse(text.as_bytes(), &Limits::default()).unwrap().into_owned();
        let reserved = |fields: &str, body: &str, deleted| {
            let map = format!(r#"{{"name":"i","map":{{"fields":{fields}}},"collation":"icu 1"}}"#);
            let index = proto::Index { source: "_design/d".into(), definition: map.into_bytes(), ..Default::default() };
            let edit = Edit {
                expiry: None,
                id: "x".into(),
                parent: None,
                history: None,
                deleted,
                attachments: Vec::new(),
                body: json(body),
            };
            Json.reserve(&index, "x", Some(&edit))
        };
        for (fields, body, deleted, is_reserved) in [
            (r#"{"a":"asc"}"#, r#"{"a":1}"#, false, true),
            (r#"{"a":"asc"}"#, r#"{"a":1}"#, true, false),
            (r#"{"a":"asc"}"#, r#"{"b":1}"#, false, false),
            (r#"{"a":"asc","b":"asc"}"#, r#"{"b":1}"#, false, false),
            (r#"{"a.0":"asc","_id":"asc"}"#, r#"{"a":[1]}"#, false, true),
            (r#"{"_rev":"asc"}"#, "{}", false, true),
        ] {
            assert_eq!(reserved(fields, body, deleted) > 0, is_reserved, "{fields} {body} {deleted}");
        }
    }
}
