//! Fields with a direction, of `sort` and of indexes.

use flatbed_flatten::json::Value;

use crate::erlang::pretty;
use crate::error::MangoError;
use crate::options::text;

/// The fields of a sort, all in one direction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sort {
    /// The names of the fields, as written.
    pub fields: Vec<String>,
    /// True for descending order.
    pub descending: bool,
}

impl Sort {
    /// Parses a sort.
    ///
    /// # Errors
    /// It is no list of names, or of objects of a name and `"asc"` or `"desc"`, in one direction.
    pub(crate) fn parse(value: &Value<'_>) -> Result<Sort, MangoError> {
        let Value::Array(items) = value else {
            let reason = format!("Sort must be an array of sort specs, not: {}", pretty(value));
            return Err(MangoError::bad("invalid_sort_json", reason));
        };
        let items = items.iter().map(field).collect::<Result<Vec<_>, _>>()?;
        let descending = items.first().is_some_and(|(_, descending)| *descending);
        if items.iter().any(|(_, other)| *other != descending) {
            let reason = "Sorts currently only support a single direction for all fields.";
            return Err(MangoError::bad("unsupported_mixed_sort", reason));
        }
        Ok(Sort { fields: items.into_iter().map(|(name, _)| name.to_owned()).collect(), descending })
    }

    pub(crate) fn direction(&self) -> &'static str {
        if self.descending { "desc" } else { "asc" }
    }

    pub(crate) fn to_json(&self) -> Value<'static> {
        let mut members: Vec<(std::borrow::Cow<'static, str>, _)> = Vec::new();
        for name in &self.fields {
            if !members.iter().any(|(found, _)| found == name) {
                members.push((name.clone().into(), text(self.direction())));
            }
        }
        Value::Object(members)
    }
}

fn field<'v>(value: &'v Value<'_>) -> Result<(&'v str, bool), MangoError> {
    let bad = || MangoError::bad("invalid_sort_field", format!("Invalid sort field: {}", pretty(value)));
    match value {
        Value::String(name) if !name.is_empty() => Ok((name, false)),
        Value::Object(members) => match members.as_slice() {
            // As in CouchDB an object may name the empty field, which a text alone may not.
            [(name, direction)] => match direction.as_str() {
                Some("asc") => Ok((name, false)),
                Some("desc") => Ok((name, true)),
                _ => Err(bad()),
            },
            _ => Err(bad()),
        },
        _ => Err(bad()),
    }
}
