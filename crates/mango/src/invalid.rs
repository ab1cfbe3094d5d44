//! What is wrong with a selector.

use flatbed_flatten::json::{self, Value};

use crate::erlang;
use crate::field::InvalidFieldName;
use crate::refused::Refused;

/// The selector breaks a rule. Its text shows arguments as JSON; [`InvalidSelector::refused`] has CouchDB's words.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InvalidSelector {
    /// Not an object.
    #[error("Selector must be a JSON object")]
    NotAnObject,
    /// There is no such operator.
    #[error("Invalid operator: {0}")]
    Operator(String),
    /// CouchDB knows the operator, but does not have it.
    #[error("Unsupported operator: {0}")]
    Unsupported(String),
    /// The operator does not take this argument.
    #[error("Bad argument for operator {operator}: {}", as_json(argument))]
    Argument {
        /// The operator.
        operator: String,
        /// Its argument.
        argument: Value<'static>,
    },
    /// A condition stands where there is no field.
    #[error("One or more conditions is missing a field name.")]
    MissingFieldName,
    /// A field's name has an empty part.
    #[error(transparent)]
    FieldName(#[from] InvalidFieldName),
    /// A search for words stands below a field.
    #[error("Invalid field normalization on selector: {}", as_json(.0))]
    BadField(Value<'static>),
    /// Too many conditions within each other.
    #[error("The selector is nested too deeply")]
    TooDeep,
    /// It has too many values, or too much text.
    #[error("The selector is too large")]
    TooLarge,
    /// Its regular expressions take too much, each or together.
    #[error("The selector's regular expressions are too large")]
    RegexesTooLarge,
    /// Nobody waits for it.
    #[error("The selector is not waited for any more")]
    Stopped,
}

fn as_json(value: &Value<'_>) -> String {
    let mut text = Vec::new();
    json::write(value, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

impl InvalidSelector {
    /// As CouchDB's `_find` and `_index` say it.
    pub fn refused(&self) -> Refused {
        let name = match self {
            InvalidSelector::NotAnObject => "invalid_selector_json",
            InvalidSelector::Operator(_) => "invalid_operator",
            InvalidSelector::Unsupported(_) => "not_supported",
            InvalidSelector::Argument { operator, argument } => {
                let argument = erlang::written(argument);
                return Refused::bad("bad_arg", format!("Bad argument for operator {operator}: {argument}"));
            }
            InvalidSelector::MissingFieldName => "invalid_selector",
            InvalidSelector::FieldName(_) => "invalid_field_name",
            InvalidSelector::BadField(selector) => {
                let selector = erlang::written(selector);
                return Refused::bad("bad_field", format!("Invalid field normalization on selector: {selector}"));
            }
            InvalidSelector::TooDeep
            | InvalidSelector::TooLarge
            | InvalidSelector::RegexesTooLarge
            | InvalidSelector::Stopped => "invalid_selector",
        };
        Refused::bad(name, self.to_string())
    }
}
