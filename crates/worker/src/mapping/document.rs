//! A mapping as it is written down, in JSON or YAML: the Python worker's members, and what Flatbed adds.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A whole mapping.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MappingDocument {
    #[serde(default)]
    pub(super) source: SourceDocument,
    /// JavaScript: what is made of a document that matches, before all that follows.
    #[serde(default)]
    pub(super) function: Option<String>,
    #[serde(default)]
    pub(super) output_format: Option<Format>,
    #[serde(default)]
    pub(super) tables: Vec<TableDocument>,
    /// Of a mapping to JSON: the members of what is made.
    #[serde(default)]
    pub(super) mapping: BTreeMap<String, ColumnDocument>,
    /// One table in the form of the Python worker's oldest mappings.
    #[serde(default)]
    pub(super) target: Option<TargetDocument>,
    // What people write for each other.
    #[serde(default, rename = "name")]
    _name: Option<String>,
    #[serde(default, rename = "description")]
    _description: Option<String>,
    #[serde(default, rename = "version")]
    _version: Option<serde_json::Value>,
    #[serde(default, rename = "meta")]
    _meta: Option<serde_json::Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Format {
    Tables,
    Json,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SourceDocument {
    /// `field` or `expression` with `value`, `id_prefix`, or members that must have such values.
    #[serde(default, rename = "match")]
    pub(super) matching: BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TableDocument {
    pub(super) name: String,
    #[serde(default)]
    pub(super) primary_key: Option<OneOrMany>,
    pub(super) columns: Columns,
    #[serde(default)]
    pub(super) on_delete: OnDelete,
    /// With `on_delete: soft_delete`: the column that says so.
    #[serde(default)]
    pub(super) soft_delete_column: Option<String>,
    #[serde(default)]
    pub(super) parent: Option<String>,
    #[serde(default)]
    pub(super) foreign_key: Option<ForeignKeyDocument>,
    #[serde(default)]
    pub(super) source_array: Option<String>,
    #[serde(default)]
    pub(super) replace_strategy: ReplaceStrategy,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ForeignKeyDocument {
    pub(super) column: String,
    pub(super) references: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// Columns by name, or in an order.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum Columns {
    Named(BTreeMap<String, ColumnDocument>),
    Listed(Vec<ListedColumn>),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum ColumnDocument {
    Path(String),
    Full(FullColumn),
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FullColumn {
    #[serde(default)]
    pub(super) path: Option<String>,
    #[serde(default)]
    pub(super) transform: Option<String>,
    #[serde(default, rename = "type")]
    pub(super) kind: Option<String>,
    #[serde(default)]
    pub(super) nullable: Option<bool>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListedColumn {
    pub(super) name: String,
    #[serde(default)]
    pub(super) path: Option<String>,
    /// A member's name, in the Python worker's oldest form.
    #[serde(default)]
    pub(super) value: Option<String>,
    #[serde(default)]
    pub(super) transform: Option<String>,
    #[serde(default, rename = "type")]
    pub(super) kind: Option<String>,
    #[serde(default)]
    pub(super) nullable: Option<bool>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TargetDocument {
    pub(super) table: String,
    #[serde(default)]
    pub(super) primary_key: Option<OneOrMany>,
    pub(super) columns: Columns,
}

/// What becomes of a row that its document no longer produces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDelete {
    /// It is deleted.
    #[default]
    Delete,
    /// It stays, with the moment in a column.
    SoftDelete,
    /// It stays as it is.
    Ignore,
}

/// What becomes of rows of elements that an array has no longer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplaceStrategy {
    /// They are deleted.
    #[default]
    DeleteInsert,
    /// They stay until their document goes.
    Merge,
}
