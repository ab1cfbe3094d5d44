//! JSON text, strictly as RFC 8259 has it, with what CouchDB keeps: the order of names, and numbers as written.

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
pub use write::{text_len, write, write_members, write_string};

/// A JSON value; strings borrow from the text where they have no escapes.
///
/// It takes 24 bytes, a member of an object 48: at worst (`[0,0,0,...]`) a tree takes about 25 times its text.
/// Functions over it recurse, so a tree built by hand must not be deeper than [`DEPTH_MAX_LIMIT`], which
/// [`parse()`] sees to.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number as it is written.
    Number(Cow<'a, str>),
    /// A string, unescaped.
    String(Cow<'a, str>),
    /// `[...]`
    Array(Vec<Value<'a>>),
    /// `{...}` in the order written; of duplicate names only the last is left.
    Object(Vec<(Cow<'a, str>, Value<'a>)>),
}

impl<'a> Value<'a> {
    /// The value of a member; `None` for what is no object, or has no such member.
    pub fn get(&self, name: &str) -> Option<&Value<'a>> {
        match self {
            Value::Object(members) => members.iter().find(|(found, _)| found == name).map(|(_, value)| value),
            _ => None,
        }
    }

    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The value without what it borrows from.
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
