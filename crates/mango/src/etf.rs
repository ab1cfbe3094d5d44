//! Default names of indexes: a hash of the request in Erlang's external term format, so that CouchDB and Flatbed choose
//! the same name.

use flatbed_flatten::json::Value;
use sha1::{Digest, Sha1};

use crate::order::is_integer;

const VERSION: u8 = 131;
const NEW_FLOAT: u8 = 70;
const SMALL_INTEGER: u8 = 97;
const INTEGER: u8 = 98;
const ATOM: u8 = 100;
const SMALL_TUPLE: u8 = 104;
const NIL: u8 = 106;
const STRING: u8 = 107;
const LIST: u8 = 108;
const BINARY: u8 = 109;
const SMALL_BIG: u8 = 110;

/// The value of an optional member of a request.
pub(crate) enum OptionValue {
    Value(Value<'static>),
    Atom(&'static str),
}

/// Hashes a definition and its options, which must be sorted by name.
pub(crate) fn name(definition: &Value<'_>, options: &[(&'static str, OptionValue)]) -> String {
    let mut term = Term(vec![VERSION, SMALL_TUPLE, 2]);
    term.value(definition);
    term.head(LIST, options.len());
    for (name, value) in options {
        term.0.extend_from_slice(&[SMALL_TUPLE, 2]);
        term.atom(name);
        match value {
            OptionValue::Value(value) => term.value(value),
            OptionValue::Atom(name) => term.atom(name),
        }
    }
    term.0.push(NIL);
    Sha1::digest(&term.0).iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Term(Vec<u8>);

impl Term {
    fn atom(&mut self, name: &str) {
        self.0.extend_from_slice(&[ATOM, 0, name.len() as u8]);
        self.0.extend_from_slice(name.as_bytes());
    }

    fn head(&mut self, tag: u8, len: usize) {
        self.0.push(tag);
        self.0.extend_from_slice(&(len as u32).to_be_bytes());
    }

    fn binary(&mut self, text: &str) {
        self.head(BINARY, text.len());
        self.0.extend_from_slice(text.as_bytes());
    }

    fn value(&mut self, value: &Value<'_>) {
        match value {
            Value::Null => self.atom("null"),
            Value::Bool(value) => self.atom(if *value { "true" } else { "false" }),
            Value::Number(text) => self.number(text),
            Value::String(text) => self.binary(text),
            Value::Array(items) => self.array(items),
            Value::Object(members) => {
                self.0.extend_from_slice(&[SMALL_TUPLE, 1]);
                if !members.is_empty() {
                    self.head(LIST, members.len());
                }
                for (name, value) in members {
                    self.0.extend_from_slice(&[SMALL_TUPLE, 2]);
                    self.binary(name);
                    self.value(value);
                }
                self.0.push(NIL);
            }
        }
    }

    /// Erlang encodes a list of bytes as a string.
    fn array(&mut self, items: &[Value<'_>]) {
        let byte = |item: &Value<'_>| match item {
            Value::Number(text) => text.parse::<u8>().ok(),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = items.iter().map(byte).collect();
        match (bytes, u16::try_from(items.len())) {
            (Some(bytes), Ok(len)) if len > 0 => {
                self.0.push(STRING);
                self.0.extend_from_slice(&len.to_be_bytes());
                self.0.extend_from_slice(&bytes);
            }
            _ => {
                if !items.is_empty() {
                    self.head(LIST, items.len());
                }
                items.iter().for_each(|item| self.value(item));
                self.0.push(NIL);
            }
        }
    }

    fn number(&mut self, text: &str) {
        if !is_integer(text) {
            self.0.push(NEW_FLOAT);
            return self.0.extend_from_slice(&text.parse::<f64>().unwrap_or_default().to_be_bytes());
        }
        // A longer integer only gives a name that differs from CouchDB's.
        let Ok(integer) = text.parse::<i128>() else { return self.binary(text) };
        if let Ok(byte) = u8::try_from(integer) {
            self.0.extend_from_slice(&[SMALL_INTEGER, byte]);
        } else if let Ok(integer) = i32::try_from(integer) {
            self.0.push(INTEGER);
            self.0.extend_from_slice(&integer.to_be_bytes());
        } else {
            let mut magnitude = integer.unsigned_abs().to_le_bytes().to_vec();
            while magnitude.last() == Some(&0) {
                magnitude.pop();
            }
            self.0.extend_from_slice(&[SMALL_BIG, magnitude.len() as u8, u8::from(integer < 0)]);
            self.0.extend_from_slice(&magnitude);
        }
    }
}
