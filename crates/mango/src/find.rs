//! Requests of `_find`, `_explain` and `_count`.

use flatbed_flatten::json::Value;

use crate::Selector;
use crate::erlang::written;
use crate::error::MangoError;
use crate::field::Field;
use crate::index_request::parse_selector;
use crate::options::{Options, number, object, text};
use crate::sort::Sort;

/// The default of `limit`.
const LIMIT: u64 = 25;

/// A request of `_find`.
#[derive(Debug, Clone)]
pub struct Find {
    /// The condition on documents.
    pub selector: Selector,
    /// The design document, and perhaps the index in it, to use.
    pub use_index: Vec<String>,
    /// The text of a bookmark. [`crate::plan()`] checks it.
    pub bookmark: Option<String>,
    /// The largest number of documents to answer.
    pub limit: u64,
    /// The number of selected documents to skip.
    pub skip: u64,
    /// The order of the answer.
    pub sort: Sort,
    /// The fields to answer; `None`: whole documents.
    pub fields: Option<Vec<Field>>,
    /// The partition to search.
    pub partition: Option<String>,
    /// The number of copies that CouchDB reads. More than 1 makes it read each document itself.
    pub r: u64,
    /// True to add `_conflicts` to documents.
    pub conflicts: bool,
    /// `stale=ok`: the same as `update=false` and `stable=true`.
    pub stale_ok: bool,
    /// True if the answer must contain all earlier writes.
    pub update: bool,
    /// Has no effect on a single server.
    pub stable: bool,
    /// True to report the cost of the query.
    pub execution_stats: bool,
    /// True if an index other than the named one may be used.
    pub allow_fallback: bool,
}

impl Find {
    /// Parses a request's body. `partition` comes from the path. The parser stops when `stop` returns true.
    ///
    /// # Errors
    /// In CouchDB's words.
    pub fn parse(body: &Value<'_>, partition: Option<&str>, stop: &dyn Fn() -> bool) -> Result<Find, MangoError> {
        let mut options = Options::of_request(body)?;
        let partition = partition_of(partition, options.take("partition"))?;
        let selector = parse_selector(options.required("selector")?, stop)?;
        let use_index = options.take("use_index").map_or(Ok(Vec::new()), use_index)?;
        let bookmark = match options.take("bookmark") {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) if text.is_empty() => None,
            Some(Value::String(text)) => Some(text.to_string()),
            Some(other) => {
                return Err(MangoError::unknown("mango_opts", &format!("{{invalid_bookmark,{}}}", written(other))));
            }
        };
        let limit = options.integer("limit", 0, LIMIT)?;
        let skip = options.integer("skip", 0, 0)?;
        let sort = options.take("sort").map_or(Ok(Sort::default()), Sort::parse)?;
        let fields = options.take("fields").map_or(Ok(None), fields)?;
        let find = Find {
            selector,
            use_index,
            bookmark,
            limit,
            skip,
            sort,
            fields,
            partition,
            r: options.integer("r", 1, 1)?,
            conflicts: options.boolean("conflicts", false)?,
            stale_ok: match options.take("stale") {
                None | Some(Value::Bool(false)) => false,
                Some(Value::String(text)) if text == "ok" => true,
                Some(Value::String(text)) if text == "false" => false,
                Some(other) => {
                    let what = format!("{{invalid_ok_or_false_value,{}}}", written(other));
                    return Err(MangoError::unknown("mango_opts", &what));
                }
            },
            update: options.boolean("update", true)?,
            stable: options.boolean("stable", false)?,
            execution_stats: options.boolean("execution_stats", false)?,
            allow_fallback: options.boolean("allow_fallback", true)?,
        };
        options.finish()?;
        Ok(find)
    }

    /// Parses the body of a `_count`, which has `selector` and may have `use_index`, `allow_fallback`, `partition`,
    /// `update` and `execution_stats`. It is planned as a `_find` that answers no field.
    ///
    /// # Errors
    /// As [`Find::parse`].
    pub fn parse_count(body: &Value<'_>, partition: Option<&str>, stop: &dyn Fn() -> bool) -> Result<Find, MangoError> {
        let mut options = Options::of_request(body)?;
        let partition = partition_of(partition, options.take("partition"))?;
        let selector = parse_selector(options.required("selector")?, stop)?;
        let find = Find {
            selector,
            use_index: options.take("use_index").map_or(Ok(Vec::new()), use_index)?,
            bookmark: None,
            limit: u64::MAX,
            skip: 0,
            sort: Sort::default(),
            fields: Some(Vec::new()),
            partition,
            r: 1,
            conflicts: false,
            stale_ok: false,
            update: options.boolean("update", true)?,
            stable: false,
            execution_stats: options.boolean("execution_stats", false)?,
            allow_fallback: options.boolean("allow_fallback", true)?,
        };
        options.finish()?;
        Ok(find)
    }

    /// Returns whether the answer may lack recent writes.
    pub fn may_be_stale(&self) -> bool {
        self.stale_ok || !self.update
    }

    pub(crate) fn field_names(&self) -> Value<'static> {
        let fields = self.fields.as_deref().unwrap_or_default();
        Value::Array(fields.iter().map(|field| text(field.name())).collect())
    }

    /// Returns the options as `_explain` shows them.
    pub(crate) fn options(&self) -> Value<'static> {
        object([
            ("use_index", Value::Array(self.use_index.iter().map(|name| text(name)).collect())),
            ("bookmark", text(self.bookmark.as_deref().unwrap_or(crate::bookmark::NIL))),
            ("limit", number(self.limit)),
            ("skip", number(self.skip)),
            ("sort", self.sort.to_json()),
            ("fields", self.field_names()),
            ("partition", text(self.partition.as_deref().unwrap_or_default())),
            ("r", number(self.r)),
            ("conflicts", Value::Bool(self.conflicts)),
            ("stale", if self.stale_ok { text("ok") } else { Value::Bool(false) }),
            ("update", Value::Bool(self.update)),
            ("stable", Value::Bool(self.stable)),
            ("execution_stats", Value::Bool(self.execution_stats)),
            ("allow_fallback", Value::Bool(self.allow_fallback)),
        ])
    }
}

/// Returns the partition that path and body name. If both name one, they must agree.
fn partition_of(path: Option<&str>, body: Option<&Value<'_>>) -> Result<Option<String>, MangoError> {
    let named = match (path, body) {
        (Some(path), Some(body)) if body.as_str() != Some(path) => {
            return Err(MangoError::unknown("mango_httpd", &format!("{{bad_partition,{}}}", written(body))));
        }
        (Some(""), _) => return Ok(None),
        (Some(path), _) => path,
        (None, None) => return Ok(None),
        (None, Some(Value::String(text))) if text.is_empty() => return Ok(None),
        (None, Some(Value::String(text))) => text,
        (None, Some(_)) => return Err(MangoError::bad("illegal_partition", "Partition must be a string")),
    };
    if named.starts_with('_') {
        return Err(MangoError::bad("illegal_partition", "Partition must not start with an underscore"));
    }
    Ok(Some(named.to_owned()))
}

/// Parses a design document with an optional index in it.
fn use_index(value: &Value<'_>) -> Result<Vec<String>, MangoError> {
    let bad = || MangoError::bad("invalid_index_name", format!("Invalid index name: {}", written(value)));
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    match value {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => match text.split('/').collect::<Vec<_>>().as_slice() {
            ["_design", names @ ..] if matches!(names.len(), 1 | 2) => Ok(owned(names)),
            names if names.len() <= 2 => Ok(owned(names)),
            _ => Err(bad()),
        },
        Value::Array(items) if items.len() <= 2 => {
            items.iter().map(|item| item.as_str().map(str::to_owned)).collect::<Option<_>>().ok_or_else(bad)
        }
        _ => Err(bad()),
    }
}

/// Parses `fields`, the fields of documents to answer; `None`: all.
///
/// # Errors
/// [`MangoError`] if the value is no array of field names.
pub fn fields(value: &Value<'_>) -> Result<Option<Vec<Field>>, MangoError> {
    let Value::Array(items) = value else {
        let reason = format!("Fields must be an array of strings, not: {}", written(value));
        return Err(MangoError::bad("invalid_fields", reason));
    };
    if items.is_empty() {
        return Ok(None);
    }
    let field = |item: &Value<'_>| match item {
        Value::String(name) => {
            Field::new(name).map_err(|error| MangoError::bad("invalid_field_name", error.to_string()))
        }
        other => Err(MangoError::bad("invalid_field", format!("Invalid JSON for field spec: {}", written(other)))),
    };
    items.iter().map(field).collect::<Result<_, _>>().map(Some)
}
