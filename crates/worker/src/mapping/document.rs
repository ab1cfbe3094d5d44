//! The written form of a mapping, in JSON or YAML: the Python worker's members, and Flatbed's additions.

use std::collections::BTreeMap;

use serde::Deserialize;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MappingDocument {
    #[serde(default)]
    pub(super) source: SourceDocument,
    /// The source of a JavaScript function that is applied to a matching document before all members below.
    pub(super) function: Option<String>,
    pub(super) output_format: Option<Format>,
    #[serde(default)]
    pub(super) tables: Vec<TableDocument>,
    /// For a mapping to JSON: the members of the result.
    #[serde(default)]
    pub(super) mapping: BTreeMap<String, ColumnDocument>,
    /// A single table, in the form of the Python worker's oldest mappings.
    pub(super) target: Option<TargetDocument>,
    // Free texts, which are not used.
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
    /// `field` or `expression` with `value`, `id_prefix`, or members with required values.
    #[serde(default, rename = "match")]
    pub(super) matching: BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TableDocument {
    pub(super) name: String,
    pub(super) primary_key: Option<OneOrMany>,
    pub(super) columns: Columns,
    #[serde(default)]
    pub(super) on_delete: OnDelete,
    /// The column with the time of deletion, for `on_delete: soft_delete`.
    pub(super) soft_delete_column: Option<String>,
    pub(super) parent: Option<String>,
    pub(super) foreign_key: Option<ForeignKeyDocument>,
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
    pub(super) path: Option<String>,
    pub(super) transform: Option<String>,
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) nullable: Option<bool>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListedColumn {
    pub(super) name: String,
    pub(super) path: Option<String>,
    /// A member's name, in the Python worker's oldest form.
    pub(super) value: Option<String>,
    pub(super) transform: Option<String>,
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) nullable: Option<bool>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TargetDocument {
    pub(super) table: String,
    pub(super) primary_key: Option<OneOrMany>,
    pub(super) columns: Columns,
}

/// The treatment of a row that its document no longer produces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDelete {
    /// Deletes it.
    #[default]
    Delete,
    /// Keeps it and writes the time of deletion into a column.
    SoftDelete,
    /// Keeps it unchanged.
    Ignore,
}

/// The treatment of rows whose array element is gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplaceStrategy {
    /// Deletes them.
    #[default]
    DeleteInsert,
    /// Keeps them until the document is deleted.
    Merge,
}
