//! Requests that make indexes, and the design documents that they make.

use std::borrow::Cow;

use flatbed_flatten::json::Value;

use crate::Selector;
use crate::erlang::written;
use crate::error::MangoError;
use crate::etf;
use crate::field::Field;
use crate::index::{DESIGN, is_of_query};
use crate::options::{Options, object, text};
use crate::order::are_same;
use crate::sort::Sort;

/// A request of `POST _index`.
#[derive(Debug, Clone)]
pub struct IndexRequest {
    ddoc: String,
    name: String,
    partitioned: Option<bool>,
    view: Value<'static>,
}

type Members = Vec<(Cow<'static, str>, Value<'static>)>;

impl IndexRequest {
    /// Parses a request's body. The parser stops when `stop` returns true.
    ///
    /// # Errors
    /// In CouchDB's words; for text and nouveau indexes those of a CouchDB without a search service.
    pub fn parse(body: &Value<'_>, stop: &dyn Fn() -> bool) -> Result<IndexRequest, MangoError> {
        let mut options = Options::of_request(body)?;
        let definition = options.required("index")?;
        let kind = options.string("type")?;
        let name = not_empty(options.string("name")?)?;
        let ddoc = not_empty(options.string("ddoc")?)?;
        let given = options.integer("w", 1, 2)?;
        let partitioned = match options.take("partitioned") {
            None => None,
            Some(Value::Bool(partitioned)) => Some(*partitioned),
            Some(other) => {
                let what = format!("{{invalid_partitioned_value,{}}}", written(other));
                return Err(MangoError::unknown("mango_opts", &what));
            }
        };
        options.finish()?;
        match kind {
            None | Some("json") => {}
            Some(kind @ ("text" | "nouveau")) => {
                let error = "required index service unavailable";
                return Err(MangoError { status: 503, error, reason: kind.to_owned() });
            }
            Some(kind) => return Err(MangoError::bad("invalid_index", format!("Invalid type for index: {kind}"))),
        }
        let made = || {
            let given_or = |given: Option<&str>| given.map(text);
            let (given_ddoc, given_name) = (given_or(ddoc), given_or(name));
            let (w, kind) = (Value::Number(given.to_string().into()), text(kind.unwrap_or("json")));
            let option = |given: &'_ Option<Value<'static>>| match given {
                Some(value) => etf::OptionValue::Value(value.clone()),
                None => etf::OptionValue::Atom("auto_name"),
            };
            let partitioned = match partitioned {
                None => etf::OptionValue::Atom("db_default"),
                Some(partitioned) => etf::OptionValue::Value(Value::Bool(partitioned)),
            };
            etf::name(
                definition,
                &[
                    ("ddoc", option(&given_ddoc)),
                    ("def", etf::OptionValue::Value(definition.clone().into_owned())),
                    ("name", option(&given_name)),
                    ("partitioned", partitioned),
                    ("type", etf::OptionValue::Value(kind)),
                    ("w", etf::OptionValue::Value(w)),
                ],
            )
        };
        let view = view(definition, stop)?;
        let ddoc = match ddoc {
            Some(ddoc) if ddoc.starts_with(DESIGN) => ddoc.to_owned(),
            Some(ddoc) => format!("{DESIGN}{ddoc}"),
            None => format!("{DESIGN}{}", made()),
        };
        let name = name.map_or_else(made, str::to_owned);
        Ok(IndexRequest { ddoc, name, partitioned, view })
    }

    /// Returns the id of the index's design document.
    pub fn ddoc(&self) -> &str {
        &self.ddoc
    }

    /// Returns the index's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the design document with the index, without its special members: an updated `existing` or a new
    /// document. `None`: it already has the index. `partitioned` says whether the database is partitioned.
    ///
    /// # Errors
    /// The document has another language, or the index cannot be partitioned.
    pub fn put_into(
        &self,
        existing: Option<&Value<'_>>,
        partitioned: bool,
    ) -> Result<Option<Value<'static>>, MangoError> {
        if self.partitioned == Some(true) && !partitioned {
            let reason = "Unknown error while saving the design document: invalid_design_doc".to_owned();
            return Err(MangoError { status: 500, error: "error_saving_ddoc", reason });
        }
        if let Some(existing) = existing
            && !is_of_query(existing)
        {
            let language = match existing.get("language") {
                None => "false".to_owned(),
                Some(language) => format!("{{{},{}}}", written(&text("language")), written(language)),
            };
            let reason = format!("Existing design doc has an invalid language: {language}");
            return Err(MangoError::bad("invalid_ddoc_lang", reason));
        }
        let mut body: Members = match existing {
            Some(existing) => members_of(existing),
            None => vec![("language".into(), text("query"))],
        };
        let mut views = match body.iter().find(|(name, _)| name == "views") {
            Some((_, Value::Object(views))) => views.clone(),
            _ => Vec::new(),
        };
        put(&mut views, &self.name, self.view.clone());
        put(&mut body, "views", Value::Object(views));
        let old = existing.and_then(|existing| existing.get("options")).and_then(|options| options.get("partitioned"));
        let is_old = match (self.partitioned, old) {
            (None, None) => true,
            (Some(new), Some(Value::Bool(old))) => new == *old,
            _ => false,
        };
        match (existing, self.partitioned) {
            (Some(_), _) if !is_old => {
                let ddoc = &self.ddoc;
                let reason =
                    format!("Requested partitioned option does not match existing value on design document {ddoc}");
                return Err(MangoError::bad("invalid_partitioned_option", reason));
            }
            (None, Some(partitioned)) => {
                put(&mut body, "options", object([("partitioned", Value::Bool(partitioned))]));
            }
            _ => {}
        }
        let body = Value::Object(body);
        let is_there = existing.is_some_and(|existing| are_same(&Value::Object(members_of(existing)), &body));
        Ok((!is_there).then_some(body))
    }

    /// Answers the request.
    pub fn answer(&self, created: bool) -> Value<'static> {
        let result = if created { "created" } else { "exists" };
        object([("result", text(result)), ("id", text(&self.ddoc)), ("name", text(&self.name))])
    }
}

fn not_empty(given: Option<&str>) -> Result<Option<&str>, MangoError> {
    match given {
        Some("") => Err(MangoError::bad("invalid_empty_string", "Index name or ddoc cannot be empty string")),
        given => Ok(given),
    }
}

/// Returns the view of a design document that defines the index.
fn view(definition: &Value<'_>, stop: &dyn Fn() -> bool) -> Result<Value<'static>, MangoError> {
    let Some(mut options) = Options::of(definition) else {
        let reason = format!("JSON indexes must be an object, not: {}", written(definition));
        return Err(MangoError::bad("invalid_index", reason));
    };
    let fields = Sort::parse(options.required("fields")?)?;
    let partial = match options.take("partial_filter_selector") {
        None => Value::Object(Vec::new()),
        Some(filter) => parse_selector(filter, stop)?.to_json(),
    };
    options.finish()?;
    for name in &fields.fields {
        Field::new(name).map_err(|error| MangoError::bad("invalid_field_name", error.to_string()))?;
    }
    let map = object([("fields", fields.to_json()), ("partial_filter_selector", partial)]);
    let options = object([("def", definition.clone().into_owned())]);
    Ok(object([("map", map), ("reduce", text("_count")), ("options", options)]))
}

pub(crate) fn parse_selector(value: &Value<'_>, stop: &dyn Fn() -> bool) -> Result<Selector, MangoError> {
    if !matches!(value, Value::Object(_)) {
        let reason = format!("Selector must be a JSON object, not: {}", written(value));
        return Err(MangoError::bad("invalid_selector_json", reason));
    }
    Selector::new_unless(value, stop).map_err(|invalid| invalid.refused())
}

fn members_of(document: &Value<'_>) -> Members {
    let Value::Object(members) = document else { return Vec::new() };
    let own = |(name, value): &(Cow<'_, str>, Value<'_>)| (name.to_string().into(), value.clone().into_owned());
    members.iter().filter(|(name, _)| !name.starts_with('_')).map(own).collect()
}

fn put(members: &mut Members, name: &str, value: Value<'static>) {
    match members.iter_mut().find(|(found, _)| found == name) {
        Some((_, found)) => *found = value,
        None => members.push((name.to_owned().into(), value)),
    }
}

/// Removes an index from a design document, and returns it without its special members. `None`: nothing is left, and
/// the document is to be deleted. A document without the index is returned unchanged.
pub fn without_index(document: &Value<'_>, name: &str) -> Option<Value<'static>> {
    let mut body = members_of(document);
    if let Some((_, Value::Object(views))) = body.iter_mut().find(|(member, _)| member == "views") {
        views.retain(|(found, _)| found != name);
        if views.is_empty() {
            body.retain(|(member, _)| member != "views");
        }
    }
    let only_language = matches!(body.as_slice(), [(name, _)] if name == "language");
    (!only_language || !is_of_query(document)).then_some(Value::Object(body))
}
