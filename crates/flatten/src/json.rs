//! JSON as in RFC 8259, with the details that CouchDB keeps: the order of names, and numbers as written.

mod compose;
mod number;
mod parse;
mod scan;
mod size;
mod write;

use std::borrow::Cow;

pub use crate::json_name as name;
pub use compose::{Array, Literal, Name, Object, write_number};
pub(crate) use number::float_of;
pub use parse::{
    DEPTH_MAX, DEPTH_MAX_LIMIT, Limits, NUMBER_BYTES_MAX, ParseError, ParseErrorKind, as_written, parse, parse_unique,
};
pub(crate) use scan::is_number;
pub use size::tree_bytes;
pub(crate) use write::write_escaped;
pub use write::{members_to_vec, text_len, to_string, to_vec, write, write_members, write_string};

/// A JSON value; strings without escapes borrow from the text.
///
/// A value takes 24 bytes, a member of an object 48: at worst (`[0,0,0,...]`) a tree takes about 25 times its text.
/// Functions on it recurse, so a tree built by hand must not be deeper than [`DEPTH_MAX_LIMIT`]; [`parse()`] ensures
/// that.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number as written.
    Number(Cow<'a, str>),
    /// A string, unescaped.
    String(Cow<'a, str>),
    /// `[...]`
    Array(Vec<Value<'a>>),
    /// `{...}` in the order written; of duplicate names only the last is kept.
    Object(Vec<(Cow<'a, str>, Value<'a>)>),
}

impl<'a> Value<'a> {
    /// Returns the value of a member; `None` if the value is not an object or lacks the member.
    pub fn get(&self, name: &str) -> Option<&Value<'a>> {
        match self {
            Value::Object(members) => members.iter().find(|(found, _)| found == name).map(|(_, value)| value),
            _ => None,
        }
    }

    /// Returns the text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the value without borrowed text.
    pub fn into_owned(self) -> Value<'static> {
        let own = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        match self {
            Value::Null => Value::Null,
            Value::Bool(value) => Value::Bool(value),
            Value::Number(text) => Value::Number(own(text)),
            Value::String(text) => Value::String(own(text)),
            Value::Array(items) => Value::Array(items.into_iter().map(Value::into_owned).collect()),
            Value::Object(members) => {
                Value::Object(members.into_iter().map(|(name, value)| (own(name), value.into_owned())).collect())
            }
        }
    }
}
