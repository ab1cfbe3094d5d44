//! Names of fields in selectors, sorts and indexes.

use std::sync::Arc;

use flatbed_flatten::json::Value;

use crate::steps::{MatchInterrupted, Steps};

/// A part of the field name is empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Invalid field name: {0}")]
pub struct InvalidFieldName(pub String);

/// A field: names between dots, each a member's name or an array position. `\.` is a dot in a name. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Field {
    name: Arc<str>,
    parts: Arc<[Box<str>]>,
}

impl PartialEq for Field {
    fn eq(&self, other: &Field) -> bool {
        self.name == other.name
    }
}

impl Eq for Field {}

impl Field {
    /// Parses the name of a field.
    ///
    /// # Errors
    /// [`InvalidFieldName`]
    pub fn new(name: &str) -> Result<Field, InvalidFieldName> {
        let parts = parts(name).ok_or_else(|| InvalidFieldName(name.to_owned()))?;
        Ok(Field { name: name.into(), parts: parts.into() })
    }

    /// Returns the empty path, which leads to the value itself.
    pub(crate) fn whole() -> Field {
        Field { name: "".into(), parts: Arc::default() }
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns the name as written.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the parts of the name, without escapes.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = &str> {
        self.parts.iter().map(|part| &**part)
    }

    /// Returns whether an answer always shows the field under its own name. It does not if a part may be an array index
    /// with leading characters (`00`), since indexes are shown in their shortest form.
    pub(crate) fn is_shown_as_written(&self) -> bool {
        self.parts().all(|part| place(part).is_none_or(|place| place.to_string() == part))
    }

    /// Finds the value of this field. Each member visited is a step.
    pub(crate) fn find<'v, 't>(
        &self,
        value: &'v Value<'t>,
        steps: &mut Steps<'_>,
    ) -> Result<FieldValue<'v, 't>, MatchInterrupted> {
        self.find_from(0, value, steps)
    }

    /// Like [`Field::find`], if the first parts have already led to `value`.
    pub(crate) fn find_from<'v, 't>(
        &self,
        passed: usize,
        value: &'v Value<'t>,
        steps: &mut Steps<'_>,
    ) -> Result<FieldValue<'v, 't>, MatchInterrupted> {
        let mut value = value;
        for part in self.parts.iter().skip(passed) {
            value = match value {
                Value::Object(members) => {
                    steps.take(members.len())?;
                    match value.get(part) {
                        Some(value) => value,
                        None => return Ok(FieldValue::Missing),
                    }
                }
                Value::Array(items) => match place(part).and_then(|place| items.get(place)) {
                    Some(item) => item,
                    None => return Ok(FieldValue::NoPath),
                },
                _ => return Ok(FieldValue::NoPath),
            };
        }
        Ok(FieldValue::Present(value))
    }

    pub(crate) fn of<'v, 't>(&self, value: &'v Value<'t>) -> Option<&'v Value<'t>> {
        match self.find(value, &mut Steps::endless()) {
            Ok(FieldValue::Present(value)) => Some(value),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum FieldValue<'v, 't> {
    Present(&'v Value<'t>),
    Missing,
    /// A value on the path is neither an object nor an array with such an item.
    NoPath,
}

fn parts(name: &str) -> Option<Vec<Box<str>>> {
    let mut pieces = Vec::new();
    let (mut begin, mut before) = (0, '.');
    for (at, character) in name.char_indices() {
        if character == '.' && before != '\\' {
            pieces.push(name.get(begin..at)?);
            begin = at + 1;
        }
        before = character;
    }
    pieces.push(name.get(begin..)?);
    let has_empty = pieces.iter().any(|piece| piece.is_empty());
    (!has_empty).then(|| pieces.into_iter().map(|piece| piece.replace('\\', "").into()).collect())
}

pub(crate) fn place(name: &str) -> Option<usize> {
    name.parse::<i128>().ok().and_then(|place| usize::try_from(place).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_parts() {
        let split = |name: &str| Field::new(name).ok().map(|field| field.parts().collect::<Vec<_>>().join("|"));
        for (name, expected) in [
            ("a", Some("a")),
            ("a.b.c", Some("a|b|c")),
            (r"a\.b.c", Some("a.b|c")),
            (r"a\.b\.c", Some("a.b.c")),
            (r"\$a", Some("$a")),
            (r"a\\.b", Some("a.b")),
            (r"\", Some("")),
            (r"\.", Some(".")),
            (r"a.\.b", Some("a|.b")),
            ("", None),
            (".", None),
            ("a.", None),
            (".a", None),
            ("a..b", None),
            (r"a\.b..c", None),
            (r"a\..b", Some("a.|b")),
        ] {
            assert_eq!(split(name).as_deref(), expected, "{name}");
        }
        assert_eq!(Field::new("x..y").unwrap_err().to_string(), "Invalid field name: x..y");
    }

    #[test]
    fn places_in_arrays() {
        assert_eq!(
            ["0", "01", "+1", "-0", "-1", "x", ""].map(place),
            [Some(0), Some(1), Some(1), Some(0), None, None, None]
        );
    }
}
