//! Definitions of json indexes: read from design documents, kept in the database's record, compiled once per process.

use std::sync::{Arc, OnceLock};

use flatbed_collate::Collation;
use flatbed_flatten::json::{self, Limits, Value, parse};
use flatbed_mango::Index;
use flatbed_store::error::{Error, Result};
use flatbed_store::proto;

use crate::index::compiled::CompiledIndexes;

/// The longest definition, in bytes; a longer one is ignored.
pub const DEFINITION_BYTES_MAX: usize = 16_000;

const NAME: &str = "name";
const MAP: &str = "map";
/// The member of an index per partition. (`partitioned` marked an older layout whose keys did not begin with the
/// partition.)
const LOCAL: &str = "local";
const COLLATION: &str = "collation";

/// CouchDB's order of keys.
///
/// # Errors
/// The collation data is missing. It is compiled in, so this does not happen.
pub fn collation() -> Result<&'static Collation> {
    static COLLATION: OnceLock<Option<Collation>> = OnceLock::new();
    let collation = COLLATION.get_or_init(|| Collation::unicode().ok()).as_ref();
    collation.ok_or_else(|| Error::Corrupt("the collation data is missing".to_owned()))
}

/// Returns the definitions in a design document of a database, which is `partitioned` or not, as JSON: the index's
/// name, its map as written, whether each partition has its own index, and the collation's signature. An index of
/// another collation is another index. Indexes whose filters are not compiled before `stop` returns true are left out.
pub fn defined_by(body: &Value<'_>, partitioned: bool, collation: &str, stop: &dyn Fn() -> bool) -> Vec<Vec<u8>> {
    // The id does not affect the result.
    let indexes = Index::of_design_document_unless(flatbed_revtree::DESIGN, body, partitioned, stop);
    let Some(Value::Object(views)) = body.get("views") else { return Vec::new() };
    let definition = |index: &Index| {
        let (_, view) = views.iter().find(|(name, _)| name == index.name())?;
        let mut members =
            vec![(NAME.into(), Value::String(index.name().into())), (MAP.into(), view.get("map")?.clone())];
        if partitioned && index.is_partitioned() {
            members.push((LOCAL.into(), Value::Bool(true)));
        }
        members.push((COLLATION.into(), Value::String(collation.into())));
        let mut text = Vec::new();
        json::write(&Value::Object(members), &mut text);
        Some(text).filter(|text| text.len() <= DEFINITION_BYTES_MAX)
    };
    // Maintainers do not see attachments and conflicts; such an index would lack documents.
    indexes.iter().filter(|index| index.is_of_bodies()).filter_map(definition).collect()
}

pub fn signature_in(definition: &[u8]) -> Option<String> {
    let definition = parse(definition, &Limits::default()).ok()?;
    definition.get(COLLATION).and_then(Value::as_str).map(str::to_owned)
}

/// Returns a definition with its collation replaced; `None`: it has this collation already, or none.
pub fn reordered(definition: &[u8], collation: &str) -> Option<Vec<u8>> {
    let Value::Object(mut members) = parse(definition, &Limits::default()).ok()? else { return None };
    let (_, own) = members.iter_mut().find(|(name, _)| name == COLLATION)?;
    if own.as_str()? == collation {
        return None;
    }
    *own = Value::String(collation.into());
    let mut text = Vec::new();
    json::write(&Value::Object(members), &mut text);
    Some(text)
}

/// Compiles the index in an entry of a database's record, whatever its collation. Callers check the collation first
/// ([`flatbed_store::features::is_outdated`]).
///
/// # Errors
/// The record's bytes are not a definition.
pub fn compiled(index: &proto::Index) -> Result<Arc<Index>> {
    known().get_or_compile(index, || {
        let made = compile(index)?;
        let weight = made.partial().map_or(0, flatbed_mango::Selector::weight);
        Ok((made, weight))
    })
}

/// See [`crate::index::kinds::Kind::takes_long`].
pub fn takes_long(index: &proto::Index) -> bool {
    known().takes_long(index)
}

fn known() -> &'static CompiledIndexes<Index> {
    static COMPILED: OnceLock<CompiledIndexes<Index>> = OnceLock::new();
    COMPILED.get_or_init(CompiledIndexes::default)
}

fn compile(index: &proto::Index) -> Result<Index> {
    let foreign = || Error::Corrupt(format!("index {} has an invalid definition", index.number));
    let definition = parse(&index.definition, &Limits::default()).map_err(|_| foreign())?;
    definition.get(COLLATION).and_then(Value::as_str).ok_or_else(foreign)?;
    let name = definition.get(NAME).and_then(Value::as_str).ok_or_else(foreign)?;
    let map = definition.get(MAP).ok_or_else(foreign)?;
    let object = |members: Vec<(&'static str, Value<'static>)>| {
        Value::Object(members.into_iter().map(|(name, value)| (name.into(), value)).collect())
    };
    let view = object(vec![(MAP, map.clone().into_owned()), ("options", object(Vec::new()))]);
    let views = Value::Object(vec![(name.to_owned().into(), view)]);
    let document = object(vec![("language", Value::String("query".into())), ("views", views)]);
    let is_local = definition.get(LOCAL) == Some(&Value::Bool(true));
    Index::of_design_document(&index.source, &document, is_local).into_iter().next().ok_or_else(foreign)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> Value<'_> {
        parse(text.as_bytes(), &Limits::default()).unwrap()
    }

    #[test]
    fn a_definition_is_what_it_is_compiled_to() {
        let body = document(
            r#"{"language":"query","views":{
                "one":{"map":{"fields":{"a":"asc","b.c":"asc"},"partial_filter_selector":{"x":{"$gt":1}}},"reduce":"_count","options":{"def":{}}},
                "none":{"map":"function"},
                "two":{"map":{"fields":{"_id":"desc"}},"reduce":"_count","options":{"def":{}}},
                "files":{"map":{"fields":{"_attachments.a":"asc"}},"reduce":"_count","options":{"def":{}}},
                "conflicts":{"map":{"fields":{"_conflicts":"asc"}},"reduce":"_count","options":{"def":{}}},
                "without":{"map":{"fields":{"a":"asc"},"partial_filter_selector":{"_conflicts":{"$exists":false}}},"reduce":"_count","options":{"def":{}}},
                "whole":{"map":{"fields":{"a":"asc"},"partial_filter_selector":{"$and":[{"$keyMapMatch":{"$eq":"_attachments"}}]}},"reduce":"_count","options":{"def":{}}}
            }}"#,
        );
        let defined = defined_by(&body, false, "icu 1", &|| false);
        let anew = defined_by(&body, false, "icu 10", &|| false);
        assert_eq!(defined.iter().filter_map(|text| reordered(text, "icu 10")).collect::<Vec<_>>(), anew);
        assert!(anew.iter().all(|text| reordered(text, "icu 10").is_none()));
        assert_eq!(defined.len(), 2);
        let shown = |index: &Index| {
            let mut text = Vec::new();
            json::write(&index.to_json(), &mut text);
            String::from_utf8(text).unwrap()
        };
        let expected = Index::of_design_document("_design/d", &body, false);
        for (definition, name) in defined.into_iter().zip(["one", "two"]) {
            assert_eq!(signature_in(&definition).as_deref(), Some("icu 1"));
            let entry = proto::Index { source: "_design/d".to_owned(), definition, ..Default::default() };
            let compiled = compiled(&entry).unwrap();
            let expected = expected.iter().find(|index| index.name() == name).unwrap();
            assert_eq!(shown(&compiled), shown(expected));
            assert_eq!(compiled.partial().is_some(), name == "one");
        }
        let other = document(r#"{"language":"javascript","views":{}}"#);
        assert!(defined_by(&other, true, "icu 1", &|| false).is_empty());
    }

    #[test]
    fn in_partitioned_databases_indexes_are_local_unless_they_say_otherwise() {
        let views = r#""views":{"i":{"map":{"fields":{"a":"asc"}},"reduce":"_count","options":{}}}"#;
        for (options, partitioned, is_local) in [
            ("{}", false, false),
            ("{}", true, true),
            (r#"{"partitioned":true}"#, true, true),
            (r#"{"partitioned":false}"#, true, false),
            // Design documents that replication wrote.
            (r#"{"partitioned":true}"#, false, false),
        ] {
            let body = format!(r#"{{"language":"query",{views},"options":{options}}}"#);
            let definition = defined_by(&document(&body), partitioned, "icu 1", &|| false).remove(0);
            let entry = proto::Index { source: "_design/d".to_owned(), definition, ..Default::default() };
            assert_eq!(compiled(&entry).unwrap().is_partitioned(), is_local, "{options} {partitioned}");
        }
    }

    #[test]
    fn what_is_no_definition_is_refused() {
        for definition in [r#"{"name":"x","map":{"fields":{"a":"asc"}}}"#, "{}", "x"] {
            let entry = proto::Index { definition: definition.as_bytes().to_vec(), ..Default::default() };
            assert!(compiled(&entry).is_err(), "{definition}");
            assert_eq!(reordered(definition.as_bytes(), "icu 1"), None);
        }
    }
}
