//! The parameters of a view query, from a query string, a body, or one of several queries. Parsed and refused as in
//! CouchDB, in its order.

use std::cmp::Ordering;

use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{ViewUpdate, check_partition};

use crate::error::{Failure, Result};
use crate::query::{Query, QueryBounds, as_list, number};
use crate::term::write_term;

/// CouchDB's default maximum of `limit`; larger ones are 400.
const LIMIT_MAX: u64 = 0x07ff_ffff_ffff_ffff;

/// The kind of rows that a query reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rows {
    Mapped,
    Reduced,
}

/// The rows that one reduced row covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grouping {
    All,
    /// Rows whose keys share this many leading items; more than 0.
    Level(u64),
    Exact,
}

/// Parsed parameters, each valid by itself.
#[derive(Debug, Clone)]
pub(crate) struct Parameters {
    /// Any JSON; [`check`](Parameters::check) refuses it unless it is an array. A single key in `keys` becomes `start`
    /// and `end`, and stays here only for `_all_docs`.
    pub keys: Option<Value<'static>>,
    pub start: Option<Value<'static>>,
    pub start_docid: Option<String>,
    pub end: Option<Value<'static>>,
    pub end_docid: Option<String>,
    pub inclusive_end: bool,
    pub descending: bool,
    pub skip: u64,
    pub limit: Option<u64>,
    pub include_docs: bool,
    pub attachments: bool,
    pub att_encoding_info: bool,
    pub update: ViewUpdate,
    pub update_seq: bool,
    pub partition: Option<String>,
    pub reduce: Option<bool>,
    conflicts: Option<bool>,
    group: Option<bool>,
    group_level: Option<u64>,
}

impl Default for Parameters {
    fn default() -> Parameters {
        Parameters {
            keys: None,
            start: None,
            start_docid: None,
            end: None,
            end_docid: None,
            inclusive_end: true,
            descending: false,
            skip: 0,
            limit: None,
            include_docs: false,
            attachments: false,
            att_encoding_info: false,
            update: ViewUpdate::True,
            update_seq: false,
            partition: None,
            reduce: None,
            conflicts: None,
            group: None,
            group_level: None,
        }
    }
}

/// A parameter's value: text of a query string, or JSON of a body.
#[derive(Clone, Copy)]
enum ParameterValue<'g> {
    Text(&'g str),
    Json(&'g Value<'g>),
}

impl Parameters {
    /// Parses a query string. Refuses `keys` that are not JSON first, as CouchDB does for `GET`.
    pub(crate) fn of_query(query: &Query) -> Result<Parameters> {
        query.first("keys").map(|text| parse(text).map(drop)).transpose()?;
        Parameters::of_all(query)
    }

    /// Parses a list's query string, where a single key in `keys` is looked up like several.
    pub(crate) fn of_list_query(query: &Query) -> Result<Parameters> {
        let keys = query.first("keys").map(parse).transpose()?;
        Parameters { keys, ..Parameters::default() }.and_query(query)
    }

    /// Parses a list's body and query string. The query string takes precedence.
    pub(crate) fn of_list_body(body: &Value<'_>, query: &Query) -> Result<Parameters> {
        let keys = body.get("keys").map(|keys| keys.clone().into_owned());
        Parameters { keys, ..Parameters::default() }.and_members(body)?.and_query(query)
    }

    /// Parses the query string that several queries share.
    pub(crate) fn of_all(query: &Query) -> Result<Parameters> {
        Parameters::default().and_query(query)
    }

    /// Parses a body and the query string, which takes precedence.
    pub(crate) fn of_body(body: &Value<'_>, query: &Query) -> Result<Parameters> {
        if body.get("queries").is_some() {
            return Err(Failure::bad_request("The `queries` parameter is no longer supported at this endpoint"));
        }
        match body.get("keys") {
            None | Some(Value::Array(_)) => {}
            Some(_) => return Err(Failure::bad_request("`keys` member must be an array.")),
        }
        Parameters::default().and_members(body)?.and_query(query)
    }

    /// Parses a query string of `_all_docs`, where a single key in `keys` is looked up like several.
    pub(crate) fn of_documents_query(query: &Query) -> Result<Parameters> {
        let keys = query.first("keys").map(parse).transpose()?;
        match &keys {
            None | Some(Value::Array(_)) => Parameters { keys, ..Parameters::default() }.and_query(query),
            Some(_) => Err(Failure::bad_request("`keys` parameter must be an array.")),
        }
    }

    /// Parses a body of `_all_docs` as [`of_documents_query`](Parameters::of_documents_query), and the query string,
    /// which takes precedence.
    pub(crate) fn of_documents_body(body: &Value<'_>, query: &Query) -> Result<Parameters> {
        let keys = match body.get("keys") {
            None => None,
            Some(Value::Array(keys)) if keys.len() == 1 => Some(Value::Array(keys.clone()).into_owned()),
            // Set with the other members below.
            Some(Value::Array(_)) => None,
            Some(_) => return Err(Failure::bad_request("`keys` body member must be an array.")),
        };
        Parameters { keys, ..Parameters::default() }.and_members(body)?.and_query(query)
    }

    /// Parses one of several queries, which takes precedence over the shared query string, except for grouping.
    pub(crate) fn of_one(query: &Query, one: &Value<'_>) -> Result<Parameters> {
        let all = Parameters::of_all(query)?;
        Parameters { keys: None, group: None, group_level: None, ..all }.and_members(one)?.bounded(query)
    }

    fn and_query(mut self, query: &Query) -> Result<Parameters> {
        for (name, value) in query.all() {
            self.set(name, ParameterValue::Text(value))?;
        }
        self.bounded(query)
    }

    /// Applies the settings' largest `limit`, which is the default, too.
    fn bounded(self, query: &Query) -> Result<Parameters> {
        let QueryBounds { rows, partition_rows, .. } = query.bounds();
        let Some(most) = (if self.partition.is_some() { partition_rows } else { rows }) else { return Ok(self) };
        match self.limit {
            Some(limit) if limit > most => Err(Failure::query(format!("Limit is too large, must not exceed {most}"))),
            limit => Ok(Parameters { limit: limit.or(Some(most)), ..self }),
        }
    }

    fn and_members(mut self, members: &Value<'_>) -> Result<Parameters> {
        // CouchDB answers 500 with an internal function's name.
        let Value::Object(members) = members else { return Err(Failure::bad_request("a query must be an object")) };
        for (name, value) in members {
            self.set(name, ParameterValue::Json(value))?;
        }
        Ok(self)
    }

    /// Sets a parameter. Unknown names are ignored, as in CouchDB.
    fn set(&mut self, name: &str, value: ParameterValue<'_>) -> Result<()> {
        match name {
            "key" => {
                let key = value.json()?;
                (self.start, self.end) = (Some(key.clone()), Some(key));
            }
            "keys" => match value.json()? {
                Value::Array(mut keys) if keys.len() == 1 => {
                    let key = keys.pop();
                    (self.start, self.end) = (key.clone(), key);
                }
                keys => self.keys = Some(keys),
            },
            "startkey" | "start_key" => self.start = Some(value.json()?),
            "endkey" | "end_key" => self.end = Some(value.json()?),
            "startkey_docid" | "start_key_doc_id" => self.start_docid = Some(value.id("start_key_docid")?),
            "endkey_docid" | "end_key_doc_id" => self.end_docid = Some(value.id("end_key_docid")?),
            "limit" => match value.number()? {
                limit @ ..=LIMIT_MAX => self.limit = Some(limit),
                _ => return Err(Failure::query(format!("Limit is too large, must not exceed {LIMIT_MAX}"))),
            },
            "skip" => self.skip = value.number()?,
            "descending" => self.descending = value.flag()?,
            "inclusive_end" => self.inclusive_end = value.flag()?,
            "include_docs" => self.include_docs = value.flag()?,
            "conflicts" => self.conflicts = Some(value.flag()?),
            // As in CouchDB, a later `false` does not reset these.
            "attachments" => self.attachments |= value.flag()?,
            "att_encoding_info" => self.att_encoding_info |= value.flag()?,
            "reduce" => self.reduce = Some(value.flag()?),
            "group" => self.group = Some(value.flag()?),
            "group_level" => self.group_level = Some(value.number()?),
            "update_seq" => self.update_seq = value.flag()?,
            // Rows are always sorted.
            "sorted" => drop(value.flag()?),
            "stale" => {
                self.update = match value.text() {
                    Some("ok") => ViewUpdate::False,
                    Some("update_after") => ViewUpdate::Lazy,
                    _ => return Err(Failure::query("Invalid value for `stale`.")),
                }
            }
            "update" => {
                self.update = match value.text() {
                    Some("true") => ViewUpdate::True,
                    Some("lazy") => ViewUpdate::Lazy,
                    Some("false") => ViewUpdate::False,
                    _ => return Err(Failure::query("Invalid value for `update`.")),
                }
            }
            // Flatbed has no shard replicas to choose from.
            "stable" => match value.text() {
                Some("true" | "false") => {}
                _ => return Err(Failure::query("Invalid value for `stable`.")),
            },
            "partition" => {
                let partition = value.id("partition")?;
                check_partition(&partition)?;
                self.partition = Some(partition);
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the kind of rows of a view with or without a reduce function.
    pub(crate) fn rows(&self, has_reduce: bool) -> Rows {
        if has_reduce && self.reduce != Some(false) { Rows::Reduced } else { Rows::Mapped }
    }

    pub(crate) fn conflicts(&self) -> bool {
        self.conflicts == Some(true)
    }

    /// Checks that the parameters are consistent and fit the view. Returns the grouping.
    pub(crate) fn check(&self, rows: Rows) -> Result<Grouping> {
        let refuse = |reason: &str| Err(Failure::query(reason));
        let grouping = self.grouping()?;
        if rows == Rows::Mapped && self.reduce == Some(true) {
            return refuse("Reduce is invalid for map-only views.");
        }
        if let Some(keys) = &self.keys {
            let Value::Array(keys) = keys else { return refuse("`keys` must be an array of strings.") };
            if rows == Rows::Reduced && grouping != Grouping::Exact {
                return refuse("Multi-key fetches for reduce views must use `group=true`");
            }
            let bounds = (self.start.as_ref(), self.end.as_ref());
            let are_bounds = matches!(&keys[..], [key] if bounds == (Some(key), Some(key)));
            if !keys.is_empty() && !are_bounds && bounds != (None, None) {
                return refuse("`keys` is incompatible with `key`, `start_key` and `end_key`");
            }
        }
        if rows == Rows::Mapped && grouping != Grouping::All {
            return refuse("Invalid use of grouping on a map view.");
        }
        if rows == Rows::Reduced && self.include_docs {
            return refuse("`include_docs` is invalid for reduce");
        }
        if rows == Rows::Reduced && self.conflicts.is_some() {
            return refuse("`conflicts` is invalid for reduce views.");
        }
        Ok(grouping)
    }

    fn grouping(&self) -> Result<Grouping> {
        Ok(match (self.group, self.group_level) {
            (_, Some(0)) | (None | Some(false), None) => Grouping::All,
            (Some(false), Some(_)) => {
                let reason = "Can't specify group=false and group_level>0 at the same time";
                return Err(Failure::query(reason));
            }
            (Some(true), None) => Grouping::Exact,
            (None | Some(true), Some(level)) => Grouping::Level(level),
        })
    }

    /// Refuses a range whose end precedes its start in the view's order.
    pub(crate) fn check_range(&self, compare: impl Fn(&Value<'_>, &Value<'_>) -> Ordering) -> Result<()> {
        let (Some(start), Some(end)) = (&self.start, &self.end) else { return Ok(()) };
        if start == end {
            return Ok(());
        }
        // Ids compare as bytes; 0xff is above all of them.
        let (first, last): (&[u8], &[u8]) = if self.descending { (&[0xff], &[]) } else { (&[], &[0xff]) };
        let start_docid = self.start_docid.as_ref().map_or(first, |id| id.as_bytes());
        let end_docid = self.end_docid.as_ref().map_or(last, |id| id.as_bytes());
        let order = compare(start, end).then_with(|| start_docid.cmp(end_docid));
        match (self.descending, order) {
            (false, Ordering::Less) | (true, Ordering::Equal | Ordering::Greater) => Ok(()),
            (is_descending, _) => Err(Failure::query(format!(
                "No rows can match your key range, reverse your start_key and end_key or set descending={}",
                !is_descending
            ))),
        }
    }
}

impl ParameterValue<'_> {
    fn json(self) -> Result<Value<'static>> {
        match self {
            ParameterValue::Text(text) => parse(text),
            ParameterValue::Json(value) => Ok(value.clone().into_owned()),
        }
    }

    /// Parses a boolean, case-insensitive, from JSON or a string.
    fn flag(self) -> Result<bool> {
        match self.text().map(str::to_ascii_lowercase).as_deref() {
            Some("true") => Ok(true),
            Some("false") => Ok(false),
            _ => {
                // CouchDB formats a string of a body like one of the query string.
                let printed = self.text().map_or_else(|| self.term(), as_list);
                Err(Failure::query(format!("Invalid boolean parameter: {printed}")))
            }
        }
    }

    fn number(self) -> Result<u64> {
        match self {
            ParameterValue::Text(text) => number(text),
            // A quoted number in a body is a string.
            ParameterValue::Json(Value::Number(text)) if !text.contains(['.', 'e', 'E']) => match number(text) {
                Err(_) => Err(Failure::query(format!("Invalid value for positive integer: {text}"))),
                positive => positive,
            },
            ParameterValue::Json(_) => Err(Failure::query(format!("Invalid value for integer: {}", self.term()))),
        }
    }

    fn id(self, name: &str) -> Result<String> {
        match self {
            ParameterValue::Text(text) => Ok(text.to_owned()),
            ParameterValue::Json(Value::String(text) | Value::Number(text)) => Ok(text.clone().into_owned()),
            ParameterValue::Json(Value::Null) => Ok("null".to_owned()),
            ParameterValue::Json(Value::Bool(value)) => Ok(value.to_string()),
            ParameterValue::Json(_) => Err(Failure::query(format!("`{name}` must be a string."))),
        }
    }

    /// Returns a text, or `true` and `false` as words.
    fn text(&self) -> Option<&str> {
        match self {
            ParameterValue::Text(text) => Some(text),
            ParameterValue::Json(Value::String(text)) => Some(text),
            ParameterValue::Json(Value::Bool(value)) => Some(if *value { "true" } else { "false" }),
            ParameterValue::Json(_) => None,
        }
    }

    fn term(self) -> String {
        match self {
            ParameterValue::Text(text) => as_list(text),
            ParameterValue::Json(value) => {
                let mut out = String::new();
                write_term(value, &mut out);
                out
            }
        }
    }
}

fn parse(text: &str) -> Result<Value<'static>> {
    let value = json::parse(text.as_bytes(), &Limits::default());
    value.map(Value::into_owned).map_err(|_| Failure::invalid_json())
}

#[cfg(test)]
mod tests;
