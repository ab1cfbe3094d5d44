//! Definitions of selector indexes: read from design documents, kept in the database's record, compiled once per
//! process.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use flatbed_flatten::json::{self, Limits, Value, parse};
use flatbed_mango::{BESIDE, InvalidSelector, Selector};
use flatbed_revtree::DESIGN;
use flatbed_store::error::{DesignFault, Error, IndexFailure, Refusal, Result};
use flatbed_store::features::is_outdated;
use flatbed_store::proto;

use crate::index::compiled::CompiledIndexes;
use crate::index::selector::kind::NAME as KIND;

/// The member of design documents that defines selector indexes: an object of selectors by index name.
pub const MEMBER: &str = "selector_indexes";

/// The longest definition, in bytes.
pub const DEFINITION_BYTES_MAX: usize = 16_000;

/// The limit of a selector's JSON text within a definition, in bytes.
const SELECTOR_BYTES_MAX: usize = 15_000;

const OF_DESIGN_MAX: usize = 64;

/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 200;

/// The members of a definition. The collation's member is that of json indexes.
const NAME: &str = "name";
const SELECTOR: &str = "selector";
const COLLATION: &str = "collation";

/// The name of a selector index in a feed: the index's name alone if it is unique among design documents, or with the
/// design document's name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IndexName {
    design: Option<String>,
    name: String,
}

impl IndexName {
    /// Parses `NAME` or `DESIGN/NAME`. A design document's name may have slashes, and begin with `_design/`. `None`: a
    /// part is empty.
    pub fn parse(text: &str) -> Option<IndexName> {
        let (design, name) = match text.rsplit_once('/') {
            Some((design, name)) => (Some(design), name),
            None => (None, text),
        };
        let design =
            design.map(|design| design.strip_prefix(DESIGN).and_then(|rest| rest.strip_prefix('/')).unwrap_or(design));
        if name.is_empty() || design.is_some_and(str::is_empty) {
            return None;
        }
        Some(IndexName { design: design.map(|design| format!("{DESIGN}/{design}")), name: name.to_owned() })
    }

    /// Finds the index in a record.
    ///
    /// # Errors
    /// [`Refusal::NoSelectorIndex`], [`Refusal::AmbiguousIndex`]; [`IndexFailure::Building`]; a definition cannot be
    /// read.
    pub fn find<'r>(&self, record: &'r proto::DatabaseRecord, collation: &str) -> Result<&'r proto::Index> {
        let mut found: Option<&proto::Index> = None;
        for index in record.indexes.iter().filter(|index| index.kind == KIND) {
            let is_of_design = self.design.as_ref().is_none_or(|design| *design == index.source);
            if !is_of_design || name_of(index)? != self.name {
                continue;
            }
            if found.is_some() {
                return Err(Refusal::AmbiguousIndex.into());
            }
            found = Some(index);
        }
        let found = found.ok_or(Refusal::NoSelectorIndex)?;
        // The builder replaces indexes of an older collation.
        if !found.readable || is_outdated(record, collation) {
            return Err(IndexFailure::Building.into());
        }
        Ok(found)
    }
}

#[derive(Debug)]
pub struct CompiledSelector {
    pub selector: Selector,
}

#[derive(Debug)]
enum DefinitionFault {
    Name,
    Selector(InvalidSelector),
    Unknown(&'static str),
    TooLong,
}

fn read(name: &str, selector: &Value<'_>, stop: &dyn Fn() -> bool) -> std::result::Result<Selector, DefinitionFault> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains('/') {
        return Err(DefinitionFault::Name);
    }
    Selector::measure(selector).map_err(DefinitionFault::Selector)?;
    if text_of(selector).len() > SELECTOR_BYTES_MAX {
        return Err(DefinitionFault::TooLong);
    }
    let compiled = Selector::new_unless(selector, stop).map_err(DefinitionFault::Selector)?;
    // A write does not always have the document's attachments, and conflicts change without the winner.
    match BESIDE.into_iter().find(|member| compiled.asks_about(member)) {
        Some(member) => Err(DefinitionFault::Unknown(member)),
        None => Ok(compiled),
    }
}

fn text_of(value: &Value<'_>) -> Vec<u8> {
    let mut text = Vec::new();
    json::write(value, &mut text);
    text
}

/// Returns the definitions in a design document's body, as JSON: the index's name, its selector as written, and the
/// collation's signature. Invalid selectors, and those that are not compiled before `stop` returns true, are skipped.
pub fn defined_by(body: &Value<'_>, collation: &str, stop: &dyn Fn() -> bool) -> Vec<Vec<u8>> {
    let Some(Value::Object(members)) = body.get(MEMBER) else { return Vec::new() };
    let mut names = HashSet::new();
    let definition = |(name, selector): &(std::borrow::Cow<'_, str>, Value<'_>)| {
        let text = |text: &str| Value::String(text.to_owned().into());
        let members =
            vec![(NAME.into(), text(name)), (SELECTOR.into(), selector.clone()), (COLLATION.into(), text(collation))];
        text_of(&Value::Object(members))
    };
    let is_right = |name: &str, selector: &Value<'_>| read(name, selector, stop).is_ok();
    let first = members.iter().take(OF_DESIGN_MAX).filter(|(name, _)| names.insert(name.clone()));
    first.filter(|(name, selector)| is_right(name, selector)).map(definition).collect()
}

/// Checks the member [`MEMBER`] of a design document before it is written. `None`: `stop` returned true.
///
/// # Errors
/// [`Refusal::InvalidDesign`].
pub fn check(member: &Value<'_>, stop: &dyn Fn() -> bool) -> Option<std::result::Result<(), Refusal>> {
    let refused = |what, reason: String| Some(Err(Refusal::InvalidDesign { what, reason }));
    let member_is = |reason: String| refused(DesignFault::Member, reason);
    let Value::Object(members) = member else {
        return member_is(format!("`{MEMBER}` field must have object type"));
    };
    if members.len() > OF_DESIGN_MAX {
        return member_is(format!("`{MEMBER}` has more than {OF_DESIGN_MAX} members"));
    }
    for (name, selector) in members {
        match read(name, selector, stop) {
            Ok(_) => {}
            Err(DefinitionFault::Name) => {
                return member_is(format!("The name of a selector index has 1 to {NAME_BYTES_MAX} bytes and no slash"));
            }
            Err(DefinitionFault::Selector(InvalidSelector::Stopped)) => return None,
            Err(DefinitionFault::Selector(invalid)) => {
                let invalid = invalid.refused();
                return refused(DesignFault::Selector(invalid.error), invalid.reason);
            }
            Err(DefinitionFault::Unknown(member)) => {
                let reason = format!("A selector index cannot ask about `{member}`");
                return refused(DesignFault::Selector("not_supported"), reason);
            }
            Err(DefinitionFault::TooLong) => {
                let reason = format!("The selector of an index has at most {SELECTOR_BYTES_MAX} bytes");
                return refused(DesignFault::Selector("invalid_selector"), reason);
            }
        }
    }
    Some(Ok(()))
}

/// Compiles the index in an entry of a database's record.
///
/// # Errors
/// The record's bytes are not a definition.
pub fn compiled(index: &proto::Index) -> Result<Arc<CompiledSelector>> {
    known().get_or_compile(index, || {
        let definition = definition_of(index)?;
        let selector = definition.get(SELECTOR).and_then(|selector| Selector::new(selector).ok());
        name_in(index, &definition)?;
        let selector = selector.ok_or_else(|| foreign(index))?;
        let weight = selector.weight();
        Ok((CompiledSelector { selector }, weight))
    })
}

/// See [`crate::index::kinds::Kind::takes_long`].
pub fn takes_long(index: &proto::Index) -> bool {
    known().takes_long(index)
}

fn known() -> &'static CompiledIndexes<CompiledSelector> {
    static COMPILED: OnceLock<CompiledIndexes<CompiledSelector>> = OnceLock::new();
    COMPILED.get_or_init(CompiledIndexes::default)
}

fn foreign(index: &proto::Index) -> Error {
    Error::Corrupt(format!("index {} has an invalid definition", index.number))
}

fn definition_of(index: &proto::Index) -> Result<Value<'_>> {
    parse(&index.definition, &Limits::default()).map_err(|_| foreign(index))
}

/// Returns the index's name.
///
/// # Errors
/// The record's bytes are not a definition.
pub fn name_of(index: &proto::Index) -> Result<String> {
    name_in(index, &definition_of(index)?)
}

fn name_in(index: &proto::Index, definition: &Value<'_>) -> Result<String> {
    definition.get(NAME).and_then(Value::as_str).map(str::to_owned).ok_or_else(|| foreign(index))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value<'_> {
        parse(text.as_bytes(), &Limits::default()).unwrap()
    }

    fn defined(member: &str) -> Vec<proto::Index> {
        let body = format!(r#"{{"selector_indexes":{member}}}"#);
        let entry = |(at, definition)| proto::Index {
            number: at as u64 + 1,
            kind: KIND.to_owned(),
            source: "_design/d".to_owned(),
            definition,
            readable: true,
            ..Default::default()
        };
        defined_by(&value(&body), "icu 1", &|| false).into_iter().enumerate().map(entry).collect()
    }

    #[test]
    fn a_definition_is_what_it_is_compiled_to() {
        let indexes = defined(r#"{"one":{"a":{"$gt":1}},"":{},"a/b":{},"two":{"$nope":1},"three":{},"four":5}"#);
        let names: Vec<String> = indexes.iter().map(|index| name_of(index).unwrap()).collect();
        assert_eq!(names, ["one", "three"]);
        let one = compiled(&indexes[0]).unwrap();
        assert!(one.selector.matches(&value(r#"{"a":2}"#)) && !one.selector.matches(&value(r#"{"a":1}"#)));
        for definition in ["x", "{}", r#"{"name":"x"}"#, r#"{"name":"x","selector":{"$nope":1}}"#] {
            let index = proto::Index { definition: definition.into(), ..Default::default() };
            assert!(compiled(&index).is_err(), "{definition}");
        }
        let many: Vec<String> = (0..100).map(|n| format!(r#""n{n}":{{}}"#)).collect();
        assert_eq!(defined(&format!("{{{}}}", many.join(","))).len(), OF_DESIGN_MAX);
        let long = |bytes: usize| format!(r#"{{"x":{{"a":"{}"}}}}"#, "y".repeat(bytes));
        assert_eq!((defined(&long(14_000)).len(), defined(&long(15_000)).len()), (1, 0));
        assert!(defined(&long(14_000))[0].definition.len() <= DEFINITION_BYTES_MAX);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let said = |member: &str| match check(&value(member), &|| false).unwrap() {
            Ok(()) => None,
            Err(Refusal::InvalidDesign { what, reason }) => Some((what, reason)),
            Err(other) => panic!("{other}"),
        };
        let long_name = format!(r#"{{"{}":{{}}}}"#, "n".repeat(201));
        let many: Vec<String> = (0..65).map(|n| format!(r#""n{n}":{{}}"#)).collect();
        let (many, long) = (format!("{{{}}}", many.join(",")), format!(r#"{{"x":{{"a":"{}"}}}}"#, "y".repeat(16_000)));
        for (member, what) in [
            ("[]", DesignFault::Member),
            ("5", DesignFault::Member),
            (r#"{"":{}}"#, DesignFault::Member),
            (r#"{"a/b":{}}"#, DesignFault::Member),
            (&*long_name, DesignFault::Member),
            (&*many, DesignFault::Member),
            (r#"{"x":5}"#, DesignFault::Selector("invalid_selector_json")),
            (r#"{"x":{"a":{"$nope":1}}}"#, DesignFault::Selector("invalid_operator")),
            (r#"{"x":{"_attachments.f":{"$exists":true}}}"#, DesignFault::Selector("not_supported")),
            (r#"{"x":{"$not":{"_conflicts":{"$exists":true}}}}"#, DesignFault::Selector("not_supported")),
            (&*long, DesignFault::Selector("invalid_selector")),
        ] {
            assert_eq!(said(member).map(|(what, _)| what), Some(what), "{}", &member[..member.len().min(100)]);
        }
        for member in ["{}", r#"{"x":{}}"#, r#"{"x":{"_deleted":true}}"#, r#"{"\u0000 \ud83d\ude00":{"a":1}}"#] {
            assert_eq!(said(member), None, "{member}");
        }
        assert!(check(&value(r#"{"x":{"a":{"$regex":"a+"}}}"#), &|| true).is_none_or(|said| said.is_ok()));
    }

    #[test]
    fn names_are_found() {
        let mut record =
            proto::DatabaseRecord { indexes: defined(r#"{"one":{},"two":{"a":1}}"#), ..Default::default() };
        record.indexes[1].readable = false;
        let other = proto::Index { number: 9, source: "_design/a/b".to_owned(), ..record.indexes[0].clone() };
        let find = |record: &proto::DatabaseRecord, text: &str| {
            IndexName::parse(text).unwrap().find(record, "icu 1").map(|index| index.number)
        };
        assert_eq!(find(&record, "one").unwrap(), 1);
        record.indexes.push(other);
        assert!(matches!(find(&record, "one"), Err(Error::Refused(Refusal::AmbiguousIndex))));
        for (text, number) in [("d/one", 1), ("_design/d/one", 1), ("a/b/one", 9), ("_design/a/b/one", 9)] {
            assert_eq!(find(&record, text).unwrap(), number, "{text}");
        }
        assert!(matches!(find(&record, "two"), Err(Error::Index(IndexFailure::Building))));
        for text in ["three", "d/three", "a/one", "e/one", "_design/one", "__proto__"] {
            assert!(matches!(find(&record, text), Err(Error::Refused(Refusal::NoSelectorIndex))), "{text}");
        }
        assert!(["", "/", "d/", "/one"].iter().all(|text| IndexName::parse(text).is_none()));
    }
}
