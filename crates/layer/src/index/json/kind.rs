//! The kind of json indexes.

use flatbed_collate::CUT_BYTES;
use flatbed_collate::label::LABEL_BYTES_MAX;
use flatbed_flatten::json::Value;
use flatbed_flatten::json_len;
use futures_util::future::BoxFuture;

use crate::document::edit::Edit;
use crate::error::Result;
use crate::index::json::{check, definition, entry, maintainer};
use crate::index::kinds::Kind;
use crate::index::maintainers::{IndexMaintainer, Within};
use crate::index::prepare::Preparations;
use crate::store::features::{collation, is_outdated};
use crate::store::keys::IndexPart;
use crate::store::proto;
use crate::store::records::Info;

/// What an entry takes beside its key's form, its value and its id: the mutation's frame, the root, numbers.
const ENTRY_OVERHEAD_BYTES: u64 = 100;

/// A sort form takes about this much of each byte of a key's text, mostly; what it takes more is counted as it is written.
const FORM_BYTES_PER_BYTE: u64 = 4;

/// The kind of json indexes.
pub(crate) struct Json;

/// Its name in records.
pub(crate) const NAME: &str = "json";

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
        // What is wrong with it is said where it is used.
        let _ = definition::compiled(index);
    }

    fn reordered(&self, index: &proto::Index, collation: &str) -> Option<Vec<u8>> {
        definition::reordered(&index.definition, collation)
    }

    fn reserve(&self, index: &proto::Index, id: &str, edit: Option<&Edit<'_>>) -> u64 {
        let key_bytes = match (edit, definition::compiled(index)) {
            // The clear of an old entry counts with the write of the new one.
            (Some(edit), Ok(index)) if edit.deleted || !may_have(&index, &edit.body) => return 0,
            (Some(edit), Ok(index)) => key_bytes(&index, &edit.body),
            _ => 0,
        };
        let id_bytes = id.len() as u64;
        let form_bytes = (FORM_BYTES_PER_BYTE * key_bytes).min((CUT_BYTES + 2 * LABEL_BYTES_MAX) as u64);
        // Of a long key its label stands once more, and the entry is a conflict.
        let label_bytes = if form_bytes >= CUT_BYTES as u64 / 2 { form_bytes * 2 + LABEL_BYTES_MAX as u64 } else { 0 };
        2 * (ENTRY_OVERHEAD_BYTES + id_bytes) + form_bytes + label_bytes + entry::value_bytes(key_bytes)
    }

    fn maintainer(&self, index: &proto::Index, _: &Preparations) -> Box<dyn IndexMaintainer> {
        Box::new(maintainer::Maintainer::new(index))
    }

    fn feature(&self, index: &proto::Index) -> Option<String> {
        definition::signature_in(&index.definition).map(|signature| collation(&signature))
    }

    fn check_document<'a>(
        &'a self,
        within: &'a Within<'a>,
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
        within: &'a Within<'a>,
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

/// Whether a document may be in an index, judged by the first part of the name of each of the index's fields.
fn may_have(index: &flatbed_mango::Index, body: &Value<'_>) -> bool {
    let is_there = |first: &str| matches!(first, "_id" | "_rev") || body.get(first).is_some();
    index.fields().iter().all(|field| field.parts().next().is_some_and(is_there))
}

/// What the values of an index's fields take as JSON text, about.
fn key_bytes(index: &flatbed_mango::Index, body: &Value<'_>) -> u64 {
    let value =
        |field: &flatbed_mango::Field| field.parts().try_fold(body, |value, part| value.get(part)).map_or(0, json_len);
    index.fields().iter().map(|field| 1 + value(field) as u64).sum()
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};

    use super::*;

    /// A database may have hundreds of indexes, and a document entries in only a few of them.
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
