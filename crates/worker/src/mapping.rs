//! Mappings: the selection of documents and their conversion to rows of tables or JSON.
//!
//! A mapping is written in JSON or YAML with the Python worker's members (docs/worker-mappings.md lists them) and
//! compiled once. Compilation refuses what would be wrong for every document: unknown transforms, types and tables,
//! keys without columns, cycles of parents.

mod document;
mod yaml;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flatbed_flatten::json::Value;

use crate::datum::{Type, TypeError};
use crate::path::{Path, PathError, Scope};
use crate::script::SOURCE_BYTES_MAX;
use crate::transform::{TooLarge, Transform, TransformError};
use document::{ColumnDocument, Columns, Format, FullColumn, MappingDocument, OneOrMany, TableDocument};
pub use document::{OnDelete, ReplaceStrategy};
pub use yaml::YamlError;

/// The longest text of a mapping, in bytes.
pub const MAPPING_BYTES_MAX: usize = 1 << 20;

/// The most tables of a mapping.
pub const TABLES_MAX: usize = 64;

/// The most columns of a table: below the limit of every target.
pub const COLUMNS_MAX: usize = 500;

/// The longest name of a table or column, in bytes: PostgreSQL's limit, which truncates longer names.
pub const NAME_BYTES_MAX: usize = 63;

/// The column with the position of an array element, which is the key beside the foreign key if the table declares
/// none.
pub const POSITION_COLUMN: &str = "flatbed_position";

/// The default column of soft deletes.
pub const SOFT_DELETE_COLUMN: &str = "deleted_at";

/// The reason why a mapping is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MappingError {
    /// Longer than 1 MB.
    #[error("the mapping is longer than 1 MB")]
    TooLong,
    /// Not YAML.
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// Unknown or malformed members.
    #[error("the mapping is invalid: {0}")]
    Shape(String),
    /// Too many tables or columns.
    #[error("there are more than {0} {1}")]
    TooMany(usize, &'static str),
    /// An invalid name of a table or column.
    #[error("{0:?} is no name of a table or column: letters, digits and underscores, at most 63")]
    Name(String),
    /// A duplicate name.
    #[error("{0:?} occurs twice")]
    Twice(String),
    /// A defect of a table: its name and the message.
    #[error("table {0:?}: {1}")]
    Table(String, String),
    /// A defect of a column.
    #[error("column {0:?}: {1}")]
    Column(String, String),
    /// A defect of `match`.
    #[error("match: {0}")]
    Match(String),
}

/// A table as `tables_rdbms` defines it, shared by mappings that use its name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SharedTable {
    /// The columns by name: the type, if the worker knows it, and whether it is nullable.
    pub columns: BTreeMap<String, (Option<Type>, bool)>,
    /// The key's columns.
    pub key: Vec<String>,
}

#[derive(Debug, Clone)]
enum DocumentFilter {
    All,
    IdPrefix(String),
    /// Those in which all of these have the required values.
    Values(Vec<(Transform, Value<'static>)>),
}

/// A column and the origin of its value.
#[derive(Debug, Clone)]
pub struct Column {
    /// Its name.
    pub name: String,
    pub(crate) path: Option<Path>,
    pub(crate) transform: Option<Transform>,
    /// The declared type.
    pub kind: Option<Type>,
    /// True if the column may be null.
    pub is_nullable: bool,
}

/// A child table's column that holds a key column of its parent's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignKey {
    /// The column's index in the child table.
    pub column: usize,
    /// The parent's index in the mapping.
    pub parent: usize,
    /// The index of the referenced column in the parent.
    pub references: usize,
}

/// A table and the rules for its rows.
#[derive(Debug, Clone)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// Its columns, in the order of their values.
    pub columns: Vec<Column>,
    /// The indexes of the key's columns.
    pub key: Vec<usize>,
    /// The reference to the parent, for a child table.
    pub foreign_key: Option<ForeignKey>,
    /// The array whose elements are the rows. `None`: the document is one row.
    pub(crate) source_array: Option<Path>,
    /// The treatment of rows that are no longer produced.
    pub on_delete: OnDelete,
    /// The column with the time of deletion, for soft deletes.
    pub soft_delete_column: Option<String>,
    /// The treatment of rows whose array element is gone.
    pub replace_strategy: ReplaceStrategy,
}

/// The product of a mapping.
#[derive(Debug, Clone)]
pub enum Shape {
    /// The document, unchanged.
    Document,
    /// An object with these members.
    Object(Vec<Column>),
    /// Rows; parents come before their children.
    Tables(Vec<Table>),
}

/// A compiled mapping.
#[derive(Debug, Clone)]
pub struct Mapping {
    matching: DocumentFilter,
    function: Option<Arc<str>>,
    shape: Shape,
}

impl Mapping {
    /// Returns the mapping of a job without one: each document, unchanged.
    pub fn identity() -> Mapping {
        Mapping { matching: DocumentFilter::All, function: None, shape: Shape::Document }
    }

    /// Compiles a mapping from JSON.
    ///
    /// # Errors
    /// [`MappingError`] with the first defect.
    pub fn from_json(text: &str) -> Result<Mapping, MappingError> {
        bounded(text)?;
        let value = serde_json::from_str(text).map_err(|error| MappingError::Shape(error.to_string()))?;
        Mapping::from_value(value)
    }

    /// Compiles a mapping from YAML, a superset of JSON.
    ///
    /// # Errors
    /// [`MappingError`] with the first defect.
    pub fn from_yaml(text: &str) -> Result<Mapping, MappingError> {
        bounded(text)?;
        Mapping::from_value(yaml::parse(text)?)
    }

    /// Compiles a mapping from a job's member `mapping`.
    ///
    /// # Errors
    /// [`MappingError`] with the first defect.
    pub fn from_value(value: serde_json::Value) -> Result<Mapping, MappingError> {
        let document: MappingDocument =
            serde_json::from_value(value).map_err(|error| MappingError::Shape(error.to_string()))?;
        let matching = matching(&document.source.matching)?;
        let mut tables = document.tables;
        if let Some(target) = document.target {
            tables.push(TableDocument {
                name: target.table,
                primary_key: target.primary_key,
                columns: target.columns,
                on_delete: OnDelete::Delete,
                soft_delete_column: None,
                parent: None,
                foreign_key: None,
                source_array: None,
                replace_strategy: ReplaceStrategy::DeleteInsert,
            });
        }
        let format = document.output_format;
        let shape = match (format, tables.is_empty(), document.mapping.is_empty()) {
            (Some(Format::Json) | None, true, false) => Shape::Object(members(document.mapping)?),
            (Some(Format::Json) | None, true, true) => Shape::Document,
            (Some(Format::Tables) | None, false, true) => Shape::Tables(compiled(tables)?),
            (Some(Format::Tables), true, _) => return Err(MappingError::Shape("it has no `tables`".to_owned())),
            (_, false, false) => return Err(MappingError::Shape("it has both `tables` and `mapping`".to_owned())),
            (Some(Format::Json), false, true) => {
                return Err(MappingError::Shape("it has `tables`, and `output_format` is json".to_owned()));
            }
        };
        let function = document.function.filter(|source| !source.trim().is_empty());
        if function.as_ref().is_some_and(|source| source.len() > SOURCE_BYTES_MAX) {
            return Err(MappingError::Shape("its `function` is longer than 256 kB".to_owned()));
        }
        Ok(Mapping { matching, function: function.map(Arc::from), shape })
    }

    /// Adds types and keys from shared tables where the mapping has none.
    ///
    /// # Errors
    /// [`MappingError::Table`] for a table that still has no key.
    pub fn completed(mut self, shared: &BTreeMap<String, SharedTable>) -> Result<Mapping, MappingError> {
        let Shape::Tables(tables) = &mut self.shape else { return Ok(self) };
        for at in 0..tables.len() {
            let (before, rest) = tables.split_at_mut(at);
            let Some(table) = rest.first_mut() else { break };
            let wrong = |reason: &str| MappingError::Table(table.name.clone(), reason.to_owned());
            if let Some(shared) = shared.get(&table.name) {
                for column in &mut table.columns {
                    let Some((kind, is_nullable)) = shared.columns.get(&column.name) else { continue };
                    column.kind = column.kind.or(*kind);
                    column.is_nullable &= is_nullable;
                }
                if table.key.is_empty() {
                    let place = |name: &String| table.columns.iter().position(|column| column.name == *name);
                    let places: Option<Vec<usize>> = shared.key.iter().map(place).collect();
                    table.key = places.ok_or_else(|| wrong("its key in tables_rdbms is not among its columns"))?;
                }
            }
            if table.key.is_empty() {
                return Err(wrong("it has no `primary_key`, and tables_rdbms has none"));
            }
            // A foreign key has the type of the parent's column.
            if let Some(foreign) = &table.foreign_key
                && let Some(of) = before.get(foreign.parent).and_then(|parent| parent.columns.get(foreign.references))
                && let Some(column) = table.columns.get_mut(foreign.column).filter(|column| column.path.is_none())
            {
                column.kind = column.kind.or(of.kind);
            }
        }
        Ok(self)
    }

    /// Returns the product.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the source of the mapping's JavaScript function, which runs on each matching document before the
    /// columns.
    pub fn function(&self) -> Option<&Arc<str>> {
        self.function.as_ref()
    }

    /// Returns whether the mapping leaves each document unchanged.
    pub(crate) fn is_identity(&self) -> bool {
        matches!((&self.matching, &self.function, &self.shape), (DocumentFilter::All, None, Shape::Document))
    }

    /// Returns the tables; empty for a mapping to JSON.
    pub fn tables(&self) -> &[Table] {
        match &self.shape {
            Shape::Tables(tables) => tables,
            Shape::Document | Shape::Object(_) => &[],
        }
    }

    /// Returns whether the mapping selects a document, which has its `_id` as a member.
    pub fn matches(&self, document: &Value<'_>) -> Result<bool, TooLarge> {
        match &self.matching {
            DocumentFilter::All => Ok(true),
            DocumentFilter::IdPrefix(prefix) => {
                Ok(document.get("_id").and_then(Value::as_str).is_some_and(|id| id.starts_with(prefix.as_str())))
            }
            DocumentFilter::Values(all) => {
                for (transform, expected) in all {
                    let found = transform.resolve(Scope::of(document))?.unwrap_or(Value::Null);
                    if found != *expected {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }
}

fn bounded(text: &str) -> Result<(), MappingError> {
    if text.len() > MAPPING_BYTES_MAX { Err(MappingError::TooLong) } else { Ok(()) }
}

fn matching(members: &BTreeMap<String, serde_json::Value>) -> Result<DocumentFilter, MappingError> {
    let wrong = |what: &str| MappingError::Match(what.to_owned());
    let text = |name: &str| match members.get(name) {
        Some(value) => value.as_str().map(Some).ok_or_else(|| MappingError::Match(format!("`{name}` is no text"))),
        None => Ok(None),
    };
    let of = |transform: &str| transform.parse::<Transform>().map_err(|error| MappingError::Match(error.to_string()));
    let own = |value: &serde_json::Value| owned(value).ok_or_else(|| wrong("a value is nested too deep"));
    if members.is_empty() {
        return Ok(DocumentFilter::All);
    }
    let is_among = |names: &[&str]| members.keys().all(|name| names.contains(&name.as_str()));
    if let Some(prefix) = members.get("id_prefix") {
        let prefix = prefix
            .as_str()
            .filter(|_| members.len() == 1)
            .ok_or_else(|| wrong("`id_prefix` must be a text and the only member"))?;
        return Ok(DocumentFilter::IdPrefix(prefix.to_owned()));
    }
    if members.contains_key("value") && is_among(&["field", "expression", "value"]) {
        let value = members.get("value").map(own).transpose()?.unwrap_or(Value::Null);
        let transform = match (text("field")?, text("expression")?) {
            (Some(field), None) => of(&member_path(field))?,
            (None, Some(expression)) => of(expression)?,
            _ => return Err(wrong("`value` must be combined with either `field` or `expression`")),
        };
        return Ok(DocumentFilter::Values(vec![(transform, value)]));
    }
    if members.contains_key("field") || members.contains_key("expression") {
        return Err(wrong("`field` and `expression` need a `value` beside them, and nothing else"));
    }
    let values: Result<Vec<_>, MappingError> =
        members.iter().map(|(name, value)| Ok((of(&member_path(name))?, own(value)?))).collect();
    Ok(DocumentFilter::Values(values?))
}

/// Returns the path to a member by its name. A name that begins with `$` already is a path.
fn member_path(name: &str) -> String {
    match name {
        path if path.starts_with('$') => path.to_owned(),
        name if name.contains('\'') => format!("$[\"{name}\"]"),
        name => format!("$['{name}']"),
    }
}

fn owned(value: &serde_json::Value) -> Option<Value<'static>> {
    let text = serde_json::to_vec(value).ok()?;
    flatbed_flatten::json::parse(&text, &flatbed_flatten::json::Limits::default()).ok().map(Value::into_owned)
}

fn members(mapping: BTreeMap<String, ColumnDocument>) -> Result<Vec<Column>, MappingError> {
    if mapping.len() > COLUMNS_MAX {
        return Err(MappingError::TooMany(COLUMNS_MAX, "members"));
    }
    mapping.into_iter().map(|(name, column)| self::column(name, full(column))).collect()
}

fn full(column: ColumnDocument) -> FullColumn {
    match column {
        ColumnDocument::Path(path) => FullColumn { path: Some(path), ..FullColumn::default() },
        ColumnDocument::Full(full) => full,
    }
}

fn column(name: String, document: FullColumn) -> Result<Column, MappingError> {
    let wrong = |reason: String| MappingError::Column(name.clone(), reason);
    let path = |text: &str| text.parse::<Path>().map_err(|error: PathError| wrong(error.to_string()));
    let parsed = |text: &String| text.parse::<Transform>().map_err(|error: TransformError| wrong(error.to_string()));
    let transform = document.transform.as_ref().map(parsed).transpose()?;
    let path = match (&document.path, transform.as_ref().and_then(Transform::path)) {
        (Some(text), _) => Some(path(text)?),
        (None, Some(path)) => Some(path.clone()),
        (None, None) => None,
    };
    if path.is_none() {
        return Err(wrong("it has no path".to_owned()));
    }
    let kind = |text: &String| text.parse::<Type>().map_err(|error: TypeError| wrong(error.to_string()));
    let kind = document.kind.as_ref().map(kind).transpose()?;
    Ok(Column { name, path, transform, kind, is_nullable: document.nullable.unwrap_or(true) })
}

fn is_name(name: &str) -> bool {
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.len() <= NAME_BYTES_MAX
        && name.starts_with(is_first)
        && name.chars().all(|c| is_first(c) || c.is_ascii_digit())
}

fn named(name: &str) -> Result<(), MappingError> {
    // The prefix is reserved for the worker's tables.
    let is_own = name.to_ascii_lowercase().starts_with("flatbed_") && name != POSITION_COLUMN;
    if is_name(name) && !is_own { Ok(()) } else { Err(MappingError::Name(name.chars().take(100).collect())) }
}

fn columns(columns: Columns) -> Result<Vec<Column>, MappingError> {
    let made: Vec<Column> = match columns {
        Columns::Named(named) => {
            named.into_iter().map(|(name, of)| column(name, full(of))).collect::<Result<_, _>>()?
        }
        Columns::Listed(listed) => listed
            .into_iter()
            .map(|listed| {
                let path = listed.path.or_else(|| listed.value.as_deref().map(member_path));
                let document =
                    FullColumn { path, transform: listed.transform, kind: listed.kind, nullable: listed.nullable };
                column(listed.name, document)
            })
            .collect::<Result<_, _>>()?,
    };
    if made.len() > COLUMNS_MAX {
        return Err(MappingError::TooMany(COLUMNS_MAX, "columns"));
    }
    let mut seen = BTreeSet::new();
    for column in &made {
        named(&column.name)?;
        // Targets fold the case of names.
        if !seen.insert(column.name.to_ascii_lowercase()) {
            return Err(MappingError::Twice(column.name.clone()));
        }
    }
    Ok(made)
}

/// Compiles tables and orders parents before their children.
fn compiled(documents: Vec<TableDocument>) -> Result<Vec<Table>, MappingError> {
    if documents.len() > TABLES_MAX {
        return Err(MappingError::TooMany(TABLES_MAX, "tables"));
    }
    let mut seen = BTreeSet::new();
    for document in &documents {
        named(&document.name)?;
        if !seen.insert(document.name.to_ascii_lowercase()) {
            return Err(MappingError::Twice(document.name.clone()));
        }
    }
    let mut waiting = documents;
    let mut tables: Vec<Table> = Vec::with_capacity(waiting.len());
    while !waiting.is_empty() {
        let (ready, later): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|document| match &document.parent {
            None => true,
            Some(parent) => tables.iter().any(|table| table.name == *parent),
        });
        if let (true, Some(first)) = (ready.is_empty(), later.first()) {
            let reason = "its parent is not among the tables, or is its own child".to_owned();
            return Err(MappingError::Table(first.name.clone(), reason));
        }
        for document in ready {
            let table = table(document, &tables)?;
            tables.push(table);
        }
        waiting = later;
    }
    Ok(tables)
}

fn table(document: TableDocument, before: &[Table]) -> Result<Table, MappingError> {
    let wrong = |reason: &str| MappingError::Table(document.name.clone(), reason.to_owned());
    let mut columns = columns(document.columns)?;
    let source_array = document.source_array.as_deref().map(str::parse::<Path>).transpose();
    let source_array = source_array.map_err(|error| wrong(&error.to_string()))?;
    let place = |columns: &[Column], name: &str| columns.iter().position(|column| column.name == name);

    let mut key = match &document.primary_key {
        None => Vec::new(),
        Some(OneOrMany::One(name)) => vec![name.clone()],
        Some(OneOrMany::Many(names)) => names.clone(),
    };
    let foreign_key = match (&document.parent, &document.foreign_key) {
        (None, None) => None,
        (Some(parent), Some(foreign)) => {
            let at =
                before.iter().position(|table| table.name == *parent).ok_or_else(|| wrong("its parent is unknown"))?;
            let of = before.get(at).ok_or_else(|| wrong("its parent is unknown"))?;
            let references = place(&of.columns, &foreign.references)
                .ok_or_else(|| wrong("its foreign key refers to no column of its parent"))?;
            if place(&columns, &foreign.column).is_none() {
                named(&foreign.column)?;
                if of.source_array.is_some() {
                    return Err(wrong("its parent has several rows of a document: its foreign key needs a path"));
                }
                // The column gets the parent's value.
                columns.push(Column {
                    name: foreign.column.clone(),
                    path: None,
                    transform: None,
                    kind: of.columns.get(references).and_then(|column| column.kind),
                    is_nullable: false,
                });
            }
            let column = place(&columns, &foreign.column).unwrap_or_default();
            Some(ForeignKey { column, parent: at, references })
        }
        _ => return Err(wrong("`parent` and `foreign_key` stand together")),
    };

    // An element without a key in the mapping is identified by its position. The Python worker's mappings name a key
    // column that the target fills, by which no row can be found.
    let is_by_position = source_array.is_some() && !key.iter().all(|name| place(&columns, name).is_some());
    if source_array.is_some() && (key.is_empty() || is_by_position) {
        let Some(foreign) = &foreign_key else {
            return Err(wrong("it has an array and neither a key among its columns nor a parent"));
        };
        if place(&columns, POSITION_COLUMN).is_none() {
            columns.push(Column {
                name: POSITION_COLUMN.to_owned(),
                path: Some("$#".parse().map_err(|_| wrong("it has no positions"))?),
                transform: None,
                kind: Some(Type::Integer(32)),
                is_nullable: false,
            });
        }
        let foreign = columns.get(foreign.column).map(|column| column.name.clone()).unwrap_or_default();
        key = vec![foreign, POSITION_COLUMN.to_owned()];
    }
    let places: Option<Vec<usize>> = key.iter().map(|name| place(&columns, name)).collect();
    let key = places.ok_or_else(|| wrong("its key is not among its columns"))?;
    if key.iter().collect::<BTreeSet<_>>().len() < key.len() {
        return Err(wrong("a column occurs twice in its key"));
    }
    let soft_delete_column = match (document.on_delete, document.soft_delete_column) {
        (OnDelete::SoftDelete, column) => {
            let column = column.unwrap_or_else(|| SOFT_DELETE_COLUMN.to_owned());
            named(&column)?;
            if place(&columns, &column).is_some() {
                return Err(MappingError::Twice(column));
            }
            Some(column)
        }
        (_, Some(_)) => return Err(wrong("`soft_delete_column` requires `on_delete: soft_delete`")),
        (_, None) => None,
    };
    Ok(Table {
        name: document.name,
        columns,
        key,
        foreign_key,
        source_array,
        on_delete: document.on_delete,
        soft_delete_column,
        replace_strategy: document.replace_strategy,
    })
}

#[cfg(test)]
mod tests;
