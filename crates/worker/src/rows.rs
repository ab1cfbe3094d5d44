//! The product of a document under a mapping.

use std::borrow::Cow;
use std::collections::HashSet;

use flatbed_flatten::json::{Object, Value, to_string};

use crate::datum::{Datum, Mismatch, key_text};
use crate::mapping::{Column, Mapping, Shape, Table};
use crate::path::{Path, Scope};
use crate::transform::TooLarge;

/// The most rows that one document may produce, over all tables.
pub const ROWS_MAX: usize = 10_000;

/// The most bytes of those rows.
pub const ROWS_BYTES_MAX: usize = 64 << 20;

/// A row of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The table's index in the mapping.
    pub table: usize,
    /// The key, as [`key_text`] writes it.
    pub key: String,
    /// The values, in the order of the table's columns.
    pub values: Vec<Datum>,
}

/// The product of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Product {
    /// Nothing: the mapping does not select the document.
    Nothing,
    /// Rows, parents before their children.
    Rows(Vec<Row>),
    /// A JSON text.
    Json(String),
}

/// The reason why a document has no deliverable product. The document is the cause. Messages contain no value of the
/// document, except those of a function.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unmappable {
    /// A value that is not of its column's declared type.
    #[error("{table}.{column}: {mismatch}")]
    Mismatch {
        /// The table; empty for a JSON object.
        table: String,
        /// The column or member.
        column: String,
        /// The mismatch.
        mismatch: Mismatch,
    },
    /// Null in a column that must not be null.
    #[error("{0}.{1} is null")]
    Null(String, String),
    /// Two rows of one table with one key.
    #[error("the document has two rows of {0} with the same key")]
    TwoOfOneKey(String),
    /// More than 10,000 rows.
    #[error("the document has more than 10,000 rows")]
    TooMany,
    /// The error of the mapping's function, which may contain parts of the document.
    #[error("the mapping's function: {0}")]
    Function(String),
    /// A defect of the attachments.
    #[error("{0}")]
    Attachments(&'static str),
    /// More than 64 MB of rows, or a text of more than 16 MB.
    #[error("the product of the document is too large")]
    TooLarge,
}

impl From<TooLarge> for Unmappable {
    fn from(_: TooLarge) -> Unmappable {
        Unmappable::TooLarge
    }
}

impl Product {
    /// Returns the approximate size in memory, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Product::Nothing => 0,
            Product::Json(text) => text.len(),
            Product::Rows(rows) => rows.iter().map(Row::bytes).sum(),
        }
    }
}

impl Row {
    fn bytes(&self) -> usize {
        size_of::<Row>() + self.key.len() + self.values.iter().map(bytes_of).sum::<usize>()
    }
}

fn bytes_of(datum: &Datum) -> usize {
    size_of::<Datum>() + datum.bytes()
}

/// Returns the product of a document, which has its `_id` and `_rev` as members.
pub fn produce(mapping: &Mapping, document: &Value<'_>) -> Result<Product, Unmappable> {
    produce_within(mapping, document, ROWS_BYTES_MAX)
}

/// Returns the product as [`produce`] does, limited to `bytes_max` as counted by [`Product::bytes`].
///
/// # Errors
/// [`Unmappable`]; [`Unmappable::TooLarge`] beyond the limit.
pub fn produce_within(mapping: &Mapping, document: &Value<'_>, bytes_max: usize) -> Result<Product, Unmappable> {
    if !mapping.matches(document)? {
        return Ok(Product::Nothing);
    }
    made(mapping, document, bytes_max)
}

/// Returns the combined product of the documents that a mapping's function returned for one document, whether they
/// match or not. `is_list`: the function returned an array, which stays an array in JSON. Limited to `bytes_max` as
/// counted by [`Product::bytes`].
///
/// # Errors
/// [`Unmappable`]; [`Unmappable::TooLarge`] beyond the limit.
pub fn produce_all(
    mapping: &Mapping,
    documents: &[Value<'_>],
    is_list: bool,
    bytes_max: usize,
) -> Result<Product, Unmappable> {
    let (mut all, mut texts, mut bytes) = (Vec::new(), Vec::new(), 0_usize);
    for document in documents {
        let product = made(mapping, document, bytes_max.saturating_sub(bytes))?;
        // Includes the separators of a list.
        bytes = bytes.saturating_add(product.bytes()).saturating_add(usize::from(is_list));
        match product {
            Product::Nothing => {}
            Product::Json(text) => texts.push(text),
            Product::Rows(rows) => all.extend(rows),
        }
        if all.len() > ROWS_MAX {
            return Err(Unmappable::TooMany);
        }
        if bytes > bytes_max {
            return Err(Unmappable::TooLarge);
        }
    }
    if mapping.tables().is_empty() {
        return Ok(match (is_list, texts.len()) {
            (_, 0) => Product::Nothing,
            (false, _) => Product::Json(texts.concat()),
            (true, _) => Product::Json(format!("[{}]", texts.join(","))),
        });
    }
    if documents.is_empty() {
        return Ok(Product::Nothing);
    }
    // Parents come before children, as for one document; the sort keeps the order within a table.
    all.sort_by_key(|row| row.table);
    let mut seen = HashSet::new();
    if let Some(row) = all.iter().find(|row| !seen.insert((row.table, row.key.as_str()))) {
        let name = mapping.tables().get(row.table).map(|table| table.name.clone());
        return Err(Unmappable::TwoOfOneKey(name.unwrap_or_default()));
    }
    Ok(Product::Rows(all))
}

fn made(mapping: &Mapping, document: &Value<'_>, bytes_max: usize) -> Result<Product, Unmappable> {
    match mapping.shape() {
        Shape::Document => {
            let text = to_string(document);
            if text.len() > bytes_max { Err(Unmappable::TooLarge) } else { Ok(Product::Json(text)) }
        }
        Shape::Object(columns) => {
            let mut out = Vec::new();
            let mut object = Object::new(&mut out);
            for column in columns {
                let datum = value_of("", column, Scope::of(document))?;
                let place = object.place(column.name.as_str());
                datum.write(place);
                if place.len() > bytes_max {
                    return Err(Unmappable::TooLarge);
                }
            }
            object.end();
            Ok(Product::Json(String::from_utf8(out).unwrap_or_default()))
        }
        Shape::Tables(tables) => rows(tables, document, bytes_max).map(Product::Rows),
    }
}

fn rows(tables: &[Table], document: &Value<'_>, bytes_max: usize) -> Result<Vec<Row>, Unmappable> {
    let mut rows: Vec<Row> = Vec::new();
    // The first row of each table, for foreign keys without a path: such a parent has one row.
    let mut firsts: Vec<Option<usize>> = Vec::with_capacity(tables.len());
    let mut bytes = 0_usize;
    for (at, table) in tables.iter().enumerate() {
        let begin = rows.len();
        let mut seen = HashSet::new();
        let scopes: Vec<Scope<'_, '_>> = match &table.source_array {
            None => vec![Scope::of(document)],
            Some(path) => {
                let elements = path.elements(Scope::of(document), ROWS_MAX);
                let scope = |(position, element)| Scope { document, element: Some((element, position)) };
                elements.into_iter().enumerate().map(scope).collect()
            }
        };
        if rows.len() + scopes.len() > ROWS_MAX {
            return Err(Unmappable::TooMany);
        }
        // Columns that depend only on the document have the same value in each row and are computed once.
        let mut same: Vec<Option<Datum>> = Vec::with_capacity(table.columns.len());
        for column in &table.columns {
            let is_same = column.path.as_ref().is_some_and(Path::is_of_document) && scopes.len() > 1;
            same.push(if is_same { Some(value_of(&table.name, column, Scope::of(document))?) } else { None });
        }
        for scope in scopes {
            let mut values = Vec::with_capacity(table.columns.len());
            for (place, column) in table.columns.iter().enumerate() {
                let foreign =
                    table.foreign_key.as_ref().filter(|foreign| foreign.column == place && column.path.is_none());
                let parents = |foreign: &crate::mapping::ForeignKey| {
                    let row = rows.get((*firsts.get(foreign.parent)?)?)?;
                    row.values.get(foreign.references).cloned()
                };
                let datum = match foreign {
                    Some(foreign) => parents(foreign).unwrap_or(Datum::Null),
                    None => match same.get(place) {
                        Some(Some(datum)) => datum.clone(),
                        _ => value_of(&table.name, column, scope)?,
                    },
                };
                if datum == Datum::Null && (!column.is_nullable || table.key.contains(&place)) {
                    return Err(Unmappable::Null(table.name.clone(), column.name.clone()));
                }
                let datum = if table.key.contains(&place) { datum.in_key(column.kind) } else { datum };
                bytes += bytes_of(&datum);
                values.push(datum);
            }
            if bytes > bytes_max {
                return Err(Unmappable::TooLarge);
            }
            let named = |place: &usize| Some((table.columns.get(*place)?.name.as_str(), values.get(*place)?));
            let key = key_text(table.key.iter().filter_map(named));
            if !seen.insert(key.clone()) {
                return Err(Unmappable::TwoOfOneKey(table.name.clone()));
            }
            bytes += size_of::<Row>() + key.len();
            rows.push(Row { table: at, key, values });
        }
        firsts.push((rows.len() > begin).then_some(begin));
    }
    Ok(rows)
}

#[cfg(test)]
thread_local! {
    static LOOKED_FOR: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

fn value_of(table: &str, column: &Column, scope: Scope<'_, '_>) -> Result<Datum, Unmappable> {
    #[cfg(test)]
    LOOKED_FOR.set(LOOKED_FOR.get() + 1);
    let found = column.path.as_ref().and_then(|path| path.resolve(scope));
    let value = match &column.transform {
        None => found,
        Some(transform) => transform.apply(found.map(Cow::into_owned))?.map(Cow::Owned),
    };
    let value = value.unwrap_or(Cow::Owned(Value::Null));
    match column.kind {
        None => Ok(Datum::of(&value)),
        Some(kind) => kind.convert(&value).map_err(|mismatch| Unmappable::Mismatch {
            table: table.to_owned(),
            column: column.name.clone(),
            mismatch,
        }),
    }
}

/// Returns rows as JSON, for targets without tables: an object with an array of objects for each table.
pub fn rows_json(tables: &[Table], rows: &[Row]) -> String {
    let out = Object::text(|written| {
        for (at, table) in tables.iter().enumerate() {
            let mut list = written.array(table.name.as_str());
            for row in rows.iter().filter(|row| row.table == at) {
                let mut object = list.object();
                for (column, value) in table.columns.iter().zip(&row.values) {
                    value.write(object.place(column.name.as_str()));
                }
            }
        }
    });
    String::from_utf8(out).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};
    use serde_json::json;

    use super::*;

    fn made(mapping: serde_json::Value, document: serde_json::Value) -> Result<String, String> {
        let mapping = Mapping::from_value(mapping).unwrap();
        let text = document.to_string();
        let document = parse(text.as_bytes(), &Limits::default()).unwrap();
        match produce(&mapping, &document) {
            Ok(Product::Nothing) => Ok("nothing".to_owned()),
            Ok(Product::Json(text)) => Ok(text),
            Ok(Product::Rows(rows)) => Ok(rows_json(mapping.tables(), &rows)),
            Err(unmappable) => Err(unmappable.to_string()),
        }
    }

    fn orders() -> serde_json::Value {
        json!({
            "source": {"match": {"type": "order"}},
            "tables": [
                {"name": "orders", "primary_key": "id", "columns": {"id": "$._id", "total": {"path": "$.total", "type": "numeric(6,2)"}}},
                {"name": "items", "parent": "orders", "foreign_key": {"column": "order_id", "references": "id"},
                 "source_array": "$.items", "columns": {"sku": {"path": "$.sku", "nullable": false}, "kind": "$$.type"}},
                {"name": "tags", "parent": "orders", "foreign_key": {"column": "order_id", "references": "id"},
                 "primary_key": ["order_id", "tag"], "source_array": "$.tags", "columns": {"tag": "$"}}]
        })
    }

    #[test]
    fn one_document_and_three_tables() {
        let order = json!({"_id": "o1", "type": "order", "total": 7.555, "items": [{"sku": "a"}, {"sku": "b", "type": "x"}], "tags": ["x", "y"]});
        let rows = made(orders(), order).unwrap();
        assert_eq!(
            rows,
            concat!(
                r#"{"orders":[{"id":"o1","total":7.56}],"#,
                r#""items":[{"kind":"order","sku":"a","order_id":"o1","flatbed_position":0},"#,
                r#"{"kind":"order","sku":"b","order_id":"o1","flatbed_position":1}],"#,
                r#""tags":[{"tag":"x","order_id":"o1"},{"tag":"y","order_id":"o1"}]}"#
            )
        );
        assert_eq!(made(orders(), json!({"_id": "o1", "type": "x"})).unwrap(), "nothing");
        // A value that is not an array yields no rows.
        let bare = made(orders(), json!({"_id": "o1", "type": "order", "items": 7})).unwrap();
        assert_eq!(bare, r#"{"orders":[{"id":"o1","total":null}],"items":[],"tags":[]}"#);
    }

    #[test]
    fn documents_that_are_to_blame() {
        let of = |members: serde_json::Value| {
            let mut document = json!({"_id": "o1", "type": "order"});
            for (name, value) in members.as_object().unwrap() {
                document[name] = value.clone();
            }
            made(orders(), document).unwrap_err()
        };
        assert_eq!(of(json!({"total": "much"})), "orders.total: this text is not numeric(6,2)");
        assert_eq!(of(json!({"items": [{}]})), "items.sku is null");
        assert_eq!(of(json!({"tags": [null]})), "tags.tag is null");
        assert_eq!(of(json!({"tags": ["x", "x"]})), "the document has two rows of tags with the same key");
        assert_eq!(of(json!({"tags": [1, 1.0]})), "the document has two rows of tags with the same key");
        assert_eq!(of(json!({"tags": vec![0; ROWS_MAX]})), "the document has more than 10,000 rows");
        // Each of many rows contains the whole document.
        let wide = json!({"tables": [{"name": "t", "primary_key": ["n"], "source_array": "$.items", "columns": {"n": "$#", "d": "$$"}}]});
        let document = json!({"_id": "a", "items": vec![0; 9_000], "text": "x".repeat(20_000)});
        assert_eq!(made(wide, document).unwrap_err(), "the product of the document is too large");
    }

    #[test]
    fn what_is_the_documents_is_made_once_for_all_its_rows() {
        let columns = json!({"n": "$#", "length": {"path": "$$.text", "transform": "uppercase().length()"}, "id": "$._id", "own": "$.v"});
        let mapping =
            json!({"tables": [{"name": "t", "primary_key": ["n"], "source_array": "$.items", "columns": columns}]});
        let items: Vec<_> = (0..9_000).map(|at| json!({"v": at})).collect();
        let rows = made(mapping, json!({"_id": "a", "items": items, "text": "x".repeat(10_000)})).unwrap();
        let row = |at: usize| format!(r#"{{"id":"a","length":10000,"n":{at},"own":{at}}}"#);
        assert!(rows.starts_with(&format!("{{\"t\":[{},{}", row(0), row(1))), "{}", &rows[..200]);
        assert!(rows.ends_with(&format!("{}]}}", row(8_999))));
        // Two for the document, two for each row.
        assert_eq!(LOOKED_FOR.get(), 2 + 2 * 9_000);
    }

    #[test]
    fn objects_and_documents() {
        let document = json!({"_id": "o1", "a": {"b": [1]}, "n": 1});
        let mapping = json!({"output_format": "json", "mapping": {"id": "$._id", "first": "$.a.b[0]", "gone": "$.x", "all": "$.a",
            "up": {"path": "$._id", "transform": "upper()"}}});
        assert_eq!(
            made(mapping, document.clone()).unwrap(),
            r#"{"all":{"b":[1]},"first":1,"gone":null,"id":"o1","up":"O1"}"#
        );
        assert_eq!(made(json!({}), document.clone()).unwrap(), document.to_string());
        let typed = json!({"mapping": {"n": {"path": "$.a", "type": "integer"}}});
        assert_eq!(made(typed, document).unwrap_err(), ".n: an object is not integer");
    }
}
