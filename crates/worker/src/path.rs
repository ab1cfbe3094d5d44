//! Paths to values in a document: `$.customer.id`, `$.items[0].price`, `$['a name']`, `$.items[*].price`.
//!
//! `$` is the origin of a table's rows: the document, or for a child table the element of its array. `$$` always is the
//! document. Members that begin with an underscore (`$._id`, `$._rev`) belong to the document for elements too, as the
//! Python worker documents. `$#` is the element's position in its array, from 0.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use flatbed_flatten::json::Value;

/// The longest path, in bytes.
pub const PATH_BYTES_MAX: usize = 1_000;

/// The most values that a path with `[*]` yields.
pub const VALUES_MAX: usize = 10_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Root {
    /// `$`: the element, or the document outside of elements.
    Element,
    /// `$$`.
    Document,
    /// `$#`.
    Position,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Member(String),
    Position(usize),
    Each,
}

/// A parsed path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    root: Root,
    steps: Vec<Step>,
}

/// The error for a malformed path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no path: {reason}")]
pub struct PathError {
    text: String,
    reason: &'static str,
}

/// The values that paths are resolved against.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'s, 'd> {
    /// The whole document.
    pub document: &'s Value<'d>,
    /// An element of one of its arrays with its position, for rows of child tables.
    pub element: Option<(&'s Value<'d>, usize)>,
}

impl<'s, 'd> Scope<'s, 'd> {
    /// Returns the scope of a whole document.
    pub fn of(document: &'s Value<'d>) -> Scope<'s, 'd> {
        Scope { document, element: None }
    }
}

impl FromStr for Path {
    type Err = PathError;

    fn from_str(text: &str) -> Result<Path, PathError> {
        let error = |reason| PathError { text: text.chars().take(100).collect(), reason };
        if text.len() > PATH_BYTES_MAX {
            return Err(error("it is longer than 1,000 bytes"));
        }
        let (root, mut rest) = if let Some(rest) = text.strip_prefix("$$") {
            (Root::Document, rest)
        } else if let Some(rest) = text.strip_prefix("$#") {
            (Root::Position, rest)
        } else {
            (Root::Element, text.strip_prefix('$').ok_or_else(|| error("it does not begin with $"))?)
        };
        let mut steps = Vec::new();
        while !rest.is_empty() {
            let (step, after) = step(rest).map_err(error)?;
            steps.push(step);
            rest = after;
        }
        if root == Root::Position && !steps.is_empty() {
            return Err(error("a position has no members"));
        }
        let root = match (root, steps.first()) {
            (Root::Element, Some(Step::Member(name))) if name.starts_with('_') => Root::Document,
            (root, _) => root,
        };
        Ok(Path { root, steps })
    }
}

fn step(text: &str) -> Result<(Step, &str), &'static str> {
    if let Some(rest) = text.strip_prefix('.') {
        let end = rest.find(['.', '[']).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        return match name {
            "" => Err("a name is empty"),
            name if name.contains(['\'', '"', ']']) => Err("a name with quotation marks must be in brackets"),
            name => Ok((Step::Member(name.to_owned()), rest)),
        };
    }
    let inner = text.strip_prefix('[').ok_or("a dot or a bracket is missing")?;
    for quote in ['\'', '"'] {
        if let Some(quoted) = inner.strip_prefix(quote) {
            let (name, rest) = quoted.split_once(quote).ok_or("a quotation mark is missing")?;
            let rest = rest.strip_prefix(']').ok_or("a bracket is not closed")?;
            return Ok((Step::Member(name.to_owned()), rest));
        }
    }
    let (inside, rest) = inner.split_once(']').ok_or("a bracket is not closed")?;
    match inside {
        "*" => Ok((Step::Each, rest)),
        digits if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            digits.parse().map(|at| (Step::Position(at), rest)).map_err(|_| "a position is too large")
        }
        _ => Err("brackets hold a position, a star or a quoted name"),
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.root {
            Root::Element => "$",
            Root::Document => "$$",
            Root::Position => "$#",
        })?;
        self.steps.iter().try_for_each(|step| match step {
            Step::Member(name) if name.contains('\'') => write!(f, "[\"{name}\"]"),
            Step::Member(name) => write!(f, "['{name}']"),
            Step::Position(at) => write!(f, "[{at}]"),
            Step::Each => f.write_str("[*]"),
        })
    }
}

impl Path {
    /// Returns the value at the path; `None` if there is none. With `[*]`: an array of at most [`VALUES_MAX`] values.
    pub fn resolve<'s, 'd>(&self, scope: Scope<'s, 'd>) -> Option<Cow<'s, Value<'d>>> {
        let begin = match (self.root, scope.element) {
            (Root::Position, element) => {
                let position = element.map_or(0, |(_, position)| position);
                return Some(Cow::Owned(Value::Number(position.to_string().into())));
            }
            (Root::Element, Some((element, _))) => element,
            (Root::Element | Root::Document, _) => scope.document,
        };
        if !self.steps.contains(&Step::Each) {
            return self.steps.iter().try_fold(begin, one).map(Cow::Borrowed);
        }
        Some(Cow::Owned(Value::Array(self.all(begin).into_iter().cloned().collect())))
    }

    /// Returns the elements of the array at the path, or with `[*]` of all arrays, in order. Stops after `max + 1`
    /// elements, so that the caller detects an excess. Values other than arrays have no elements.
    pub fn elements<'s, 'd>(&self, scope: Scope<'s, 'd>, max: usize) -> Vec<&'s Value<'d>> {
        let begin = match (self.root, scope.element) {
            (Root::Position, _) => return Vec::new(),
            (Root::Element, Some((element, _))) => element,
            (Root::Element | Root::Document, _) => scope.document,
        };
        let mut elements = Vec::new();
        for found in self.all(begin) {
            let Value::Array(items) = found else { continue };
            elements.extend(items.iter().take((max + 1).saturating_sub(elements.len())));
        }
        elements
    }

    /// Returns whether the result is the same for each element of a document.
    pub fn is_of_document(&self) -> bool {
        self.root == Root::Document
    }

    fn all<'s, 'd>(&self, begin: &'s Value<'d>) -> Vec<&'s Value<'d>> {
        let mut found = vec![begin];
        for step in &self.steps {
            found = match step {
                Step::Each => found
                    .into_iter()
                    .flat_map(|value| match value {
                        Value::Array(items) => items.as_slice(),
                        _ => &[],
                    })
                    .take(VALUES_MAX)
                    .collect(),
                step => found.into_iter().filter_map(|value| one(value, step)).collect(),
            };
        }
        found
    }
}

fn one<'s, 'd>(value: &'s Value<'d>, step: &Step) -> Option<&'s Value<'d>> {
    match (step, value) {
        (Step::Member(name), value) => value.get(name),
        (Step::Position(at), Value::Array(items)) => items.get(*at),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse, to_string};
    use proptest::prelude::*;

    use super::*;

    const ORDER: &str = r#"{"_id":"o1","type":"order","customer":{"id":"c1"},"a name":{"x.y":7},"none":null,
        "items":[{"price":1,"_id":"i"},{"price":2.50},{"name":"x"}],"rows":[[1,2],[3]]}"#;

    fn resolved(path: &str, element: Option<usize>) -> String {
        let document = parse(ORDER.as_bytes(), &Limits::default()).unwrap();
        let Some(Value::Array(items)) = document.get("items") else { panic!() };
        let scope = Scope { document: &document, element: element.map(|at| (&items[at], at)) };
        match path.parse::<Path>().unwrap().resolve(scope) {
            None => "-".to_owned(),
            Some(value) => to_string(&value),
        }
    }

    #[test]
    fn values_are_found() {
        for (path, found) in [
            ("$.customer.id", "\"c1\""),
            ("$._id", "\"o1\""),
            ("$['a name']['x.y']", "7"),
            ("$[\"a name\"]", r#"{"x.y":7}"#),
            ("$.none", "null"),
            ("$.gone", "-"),
            ("$.customer.id.further", "-"),
            ("$.items[1].price", "2.50"),
            ("$.items[3]", "-"),
            ("$.customer[0]", "-"),
            ("$.items[*].price", "[1,2.50]"),
            ("$.rows[*][*]", "[1,2,3]"),
            ("$.type[*]", "[]"),
            ("$#", "0"),
        ] {
            assert_eq!(resolved(path, None), found, "{path}");
        }
        for (path, found) in [
            ("$", r#"{"price":2.50}"#),
            ("$.price", "2.50"),
            ("$._id", "\"o1\""),
            ("$.type", "-"),
            ("$$.type", "\"order\""),
            ("$#", "1"),
        ] {
            assert_eq!(resolved(path, Some(1)), found, "{path}");
        }
    }

    #[test]
    fn elements_of_one_array_or_several() {
        let document = parse(ORDER.as_bytes(), &Limits::default()).unwrap();
        let count = |path: &str, max| path.parse::<Path>().unwrap().elements(Scope::of(&document), max).len();
        assert_eq!([count("$.items", 9), count("$.rows", 9), count("$.rows[*]", 9)], [3, 2, 3]);
        assert_eq!([count("$.type", 9), count("$.gone", 9), count("$#", 9)], [0, 0, 0]);
        // One more than `max` reveals the excess.
        assert_eq!([count("$.rows[*]", 1), count("$.rows[*]", 0)], [2, 1]);
    }

    #[test]
    fn what_is_no_path() {
        for text in
            ["", "x", "$x", "$.", "$..a", "$.a.", "$[", "$[]", "$[-1]", "$['a]", "$['a'x", "$[1", "$#.a", "$[x]"]
        {
            assert!(text.parse::<Path>().is_err(), "{text}");
        }
        assert!(format!("$.{}", "a".repeat(PATH_BYTES_MAX)).parse::<Path>().is_err());
        assert!("$[99999999999999999999999]".parse::<Path>().is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_a_path_or_refused(text in "[$#.\\[\\]'\"*a-c0-9_ ]{0,12}") {
            if let Ok(path) = text.parse::<Path>() {
                prop_assert_eq!(path.to_string().parse::<Path>(), Ok(path));
            }
        }
    }
}
