//! Mango indexes, as design documents define them and as `_index` shows them.

use std::cmp::Ordering;

use flatbed_flatten::json::Value;

use crate::field::Field;
use crate::normal::member;
use crate::options::{object, text};
use crate::projection::put;
use crate::{BESIDE, InvalidSelector, Selector};

/// The name of the index of all ids, the only index outside of design documents.
const ALL_DOCS: &str = "_all_docs";

/// The prefix of the ids of design documents.
pub(crate) const DESIGN: &str = "_design/";

/// An index that `_find` can choose: of document ids, or of fields.
#[derive(Debug, Clone)]
pub struct Index {
    ddoc: Option<String>,
    name: String,
    partitioned: bool,
    fields: Vec<Field>,
    partial: Option<Selector>,
    /// The definition that `_index` shows.
    def: Value<'static>,
}

impl Index {
    /// Returns the index of all ids.
    pub fn all_docs() -> Index {
        let fields = Value::Array(vec![member("_id", text("asc"))]);
        Index {
            ddoc: None,
            name: ALL_DOCS.to_owned(),
            partitioned: false,
            fields: Field::new("_id").into_iter().collect(),
            partial: None,
            def: object([("fields", fields)]),
        }
    }

    /// Returns the indexes that a design document defines: none if its language is not `query`. `partitioned` says
    /// whether the database is partitioned. Views that define no index, and indexes that cannot be maintained, are
    /// skipped.
    pub fn of_design_document(id: &str, document: &Value<'_>, partitioned: bool) -> Vec<Index> {
        Index::of_design_document_unless(id, document, partitioned, &|| false)
    }

    /// Like [`Index::of_design_document`], without the indexes whose filters were not compiled before `stop` returned
    /// true.
    pub fn of_design_document_unless(
        id: &str,
        document: &Value<'_>,
        partitioned: bool,
        stop: &dyn Fn() -> bool,
    ) -> Vec<Index> {
        if !is_of_query(document) {
            return Vec::new();
        }
        let partitioned = is_partitioned(document, partitioned);
        let Some(Value::Object(views)) = document.get("views") else { return Vec::new() };
        let index = |(name, view): &(std::borrow::Cow<'_, str>, Value<'_>)| of_view(id, name, view, partitioned, stop);
        views.iter().filter_map(index).collect()
    }

    /// Returns the index that one view of a design document defines; see [`Index::of_design_document`].
    pub fn of_view(id: &str, document: &Value<'_>, view: &str, partitioned: bool) -> Option<Index> {
        let definition = document.get("views").filter(|_| is_of_query(document))?.get(view)?;
        of_view(id, view, definition, is_partitioned(document, partitioned), &|| false)
    }

    /// Compiles the filters of a design document's indexes. Returns `false` if `stop` interrupted that; invalid filters
    /// count as compiled.
    pub fn compiles_unless(document: &Value<'_>, stop: &dyn Fn() -> bool) -> bool {
        let Some(Value::Object(views)) = document.get("views").filter(|_| is_of_query(document)) else { return true };
        let mut filters = views.iter().filter_map(|(_, view)| filter_of(view.get("map")?));
        filters.all(|filter| !matches!(Selector::new_unless(filter, stop), Err(InvalidSelector::Stopped)))
    }

    /// Returns the index that a view's map defines. A view in the language `query` is read by its map alone, even if
    /// `_find` cannot choose it. `None`: the map defines no index.
    pub fn of_map(id: &str, name: &str, map: &Value<'_>) -> Option<Index> {
        of_map(id, name, map, false, &|| false)
    }

    /// Returns the id of its design document; `None` for the index of all ids.
    pub fn ddoc(&self) -> Option<&str> {
        self.ddoc.as_deref()
    }

    /// Returns the index's name, unique in its design document.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether this is the index of all ids.
    pub fn is_all_docs(&self) -> bool {
        self.ddoc.is_none()
    }

    /// `json` or `special`.
    pub fn kind(&self) -> &'static str {
        if self.is_all_docs() { "special" } else { "json" }
    }

    /// Returns whether each partition has its own index.
    pub fn is_partitioned(&self) -> bool {
        self.partitioned
    }

    /// Returns the fields that a document must have to be indexed, in key order.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|field| field.name() == name)
    }

    /// Returns the filter of a partial index.
    pub fn partial(&self) -> Option<&Selector> {
        self.partial.as_ref()
    }

    /// Returns the fields of a row as a document.
    pub fn document_of(&self, id: &str, key: &[Value<'_>]) -> Value<'static> {
        let mut document = Value::Object(Vec::new());
        put(&mut document, &["_id"], Value::String(id.to_owned().into()));
        for (field, value) in self.fields.iter().zip(key).rev() {
            put(&mut document, &field.parts().collect::<Vec<_>>(), value.clone().into_owned());
        }
        document
    }

    /// Returns whether the index depends on a member of documents: a field or the filter names it or something inside
    /// it.
    pub fn asks_about(&self, member: &str) -> bool {
        let is_there = |field: &Field| field.parts().next() == Some(member);
        self.fields.iter().any(is_there) || self.partial.as_ref().is_some_and(|partial| partial.asks_about(member))
    }

    /// Returns whether a document's body, id and revision determine its entry in the index. No plan uses any other
    /// index, since it would lack documents.
    pub fn is_of_bodies(&self) -> bool {
        !BESIDE.iter().any(|member| self.asks_about(member))
    }

    /// Returns the key of a document (with its special members); `None`: the index has no entry for it. Design
    /// documents have none. `stop` is called about every 10,000 steps.
    ///
    /// # Errors
    /// The filter takes too long.
    pub fn key(
        &self,
        document: &Value<'_>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<Value<'static>>>, crate::MatchInterrupted> {
        let is_design = |id: &str| id.starts_with(DESIGN);
        if document.get("_id").and_then(Value::as_str).is_some_and(is_design) {
            return Ok(None);
        }
        if let Some(partial) = &self.partial
            && !partial.matches_unless(document, stop)?
        {
            return Ok(None);
        }
        Ok(self.fields.iter().map(|field| field.of(document).map(|value| value.clone().into_owned())).collect())
    }

    /// Returns the index as `_index` and `_explain` show it.
    pub fn to_json(&self) -> Value<'static> {
        match &self.ddoc {
            None => object([
                ("ddoc", Value::Null),
                ("name", text(&self.name)),
                ("type", text(self.kind())),
                ("def", self.def.clone()),
            ]),
            Some(ddoc) => object([
                ("ddoc", text(ddoc)),
                ("name", text(&self.name)),
                ("type", text(self.kind())),
                ("partitioned", Value::Bool(self.partitioned)),
                ("def", self.def.clone()),
            ]),
        }
    }

    /// Compares by the order of lists: the index of all ids, then by design document and name.
    pub fn compare(&self, other: &Index) -> Ordering {
        #[cfg(test)]
        COMPARED.set(COMPARED.get() + 1);
        (&self.ddoc, &self.name).cmp(&(&other.ddoc, &other.name))
    }
}

#[cfg(test)]
thread_local! {
    /// The number of comparisons of two indexes.
    pub(crate) static COMPARED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Indexes are equal if their names are, which identify them.
impl PartialEq for Index {
    fn eq(&self, other: &Index) -> bool {
        self.compare(other).is_eq()
    }
}

pub(crate) fn is_of_query(document: &Value<'_>) -> bool {
    document.get("language").and_then(Value::as_str) == Some("query")
}

/// Returns whether the indexes of a design document are partitioned. `partitioned`: whether its database is.
fn is_partitioned(document: &Value<'_>, partitioned: bool) -> bool {
    match document.get("options").and_then(|options| options.get("partitioned")) {
        Some(Value::Bool(partitioned)) => *partitioned,
        _ => partitioned,
    }
}

fn of_view(id: &str, name: &str, view: &Value<'_>, partitioned: bool, stop: &dyn Fn() -> bool) -> Option<Index> {
    let Some(Value::Object(_)) = view.get("options") else { return None };
    of_map(id, name, view.get("map")?, partitioned, stop)
}

/// Returns the filter in the map of a view. `selector` is CouchDB's former name of `partial_filter_selector`.
fn filter_of<'m, 'v>(map: &'m Value<'v>) -> Option<&'m Value<'v>> {
    map.get("partial_filter_selector").or_else(|| map.get("selector"))
}

fn of_map(id: &str, name: &str, map: &Value<'_>, partitioned: bool, stop: &dyn Fn() -> bool) -> Option<Index> {
    let Value::Object(members) = map else { return None };
    let Some(Value::Object(fields)) = map.get("fields") else { return None };
    let partial = match filter_of(map) {
        None => None,
        Some(Value::Object(filter)) if filter.is_empty() => None,
        Some(filter) => Some(Selector::new_unless(filter, stop).ok()?),
    };
    let shown = |(name, direction): &(std::borrow::Cow<'_, str>, Value<'_>)| {
        member(name.to_string(), direction.clone().into_owned())
    };
    let def = members.iter().filter_map(|(member, value)| match (member.as_ref(), value) {
        ("fields", _) => Some(("fields".into(), Value::Array(fields.iter().map(shown).collect()))),
        ("partial_filter_selector", Value::Object(filter)) if filter.is_empty() => None,
        (name, value) => Some((name.to_owned().into(), value.clone().into_owned())),
    });
    Some(Index {
        ddoc: Some(id.to_owned()),
        name: name.to_owned(),
        partitioned,
        fields: fields.iter().map(|(name, _)| Field::new(name)).collect::<Result<_, _>>().ok()?,
        partial,
        def: Value::Object(def.collect()),
    })
}
