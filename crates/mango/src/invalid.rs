//! Errors in selectors.

use flatbed_flatten::json::{self, Value};

use crate::erlang;
use crate::error::MangoError;
use crate::field::InvalidFieldName;

/// A selector that breaks a rule. `Display` shows arguments as JSON; [`InvalidSelector::refused`] has CouchDB's words.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InvalidSelector {
    /// The selector is not an object.
    #[error("Selector must be a JSON object")]
    NotAnObject,
    /// The operator does not exist.
    #[error("Invalid operator: {0}")]
    Operator(String),
    /// CouchDB knows the operator, but does not support it.
    #[error("Unsupported operator: {0}")]
    Unsupported(String),
    /// The operator does not take this argument.
    #[error("Bad argument for operator {operator}: {}", json::to_string(argument))]
    Argument {
        /// The operator.
        operator: String,
        /// Its argument.
        argument: Value<'static>,
    },
    /// A condition has no field.
    #[error("One or more conditions is missing a field name.")]
    MissingFieldName,
    /// A field name has an empty part.
    #[error(transparent)]
    FieldName(#[from] InvalidFieldName),
    /// A text search stands below a field.
    #[error("Invalid field normalization on selector: {}", json::to_string(.0))]
    BadField(Value<'static>),
    /// Conditions are nested too deeply.
    #[error("The selector is nested too deeply")]
    TooDeep,
    /// The selector has too many values, or too much text.
    #[error("The selector is too large")]
    TooLarge,
    /// One regular expression, or all of them together, are too large.
    #[error("The selector's regular expressions are too large")]
    RegexesTooLarge,
    /// The client is gone.
    #[error("The client stopped waiting for the selector")]
    Stopped,
}

impl InvalidSelector {
    /// Returns the error in the words of CouchDB's `_find` and `_index`.
    pub fn refused(&self) -> MangoError {
        let name = match self {
            InvalidSelector::NotAnObject => "invalid_selector_json",
            InvalidSelector::Operator(_) => "invalid_operator",
            InvalidSelector::Unsupported(_) => "not_supported",
            InvalidSelector::Argument { operator, argument } => {
                let argument = erlang::written(argument);
                return MangoError::bad("bad_arg", format!("Bad argument for operator {operator}: {argument}"));
            }
            InvalidSelector::MissingFieldName => "invalid_selector",
            InvalidSelector::FieldName(_) => "invalid_field_name",
            InvalidSelector::BadField(selector) => {
                let selector = erlang::written(selector);
                return MangoError::bad("bad_field", format!("Invalid field normalization on selector: {selector}"));
            }
            InvalidSelector::TooDeep
            | InvalidSelector::TooLarge
            | InvalidSelector::RegexesTooLarge
            | InvalidSelector::Stopped => "invalid_selector",
        };
        MangoError::bad(name, self.to_string())
    }
}
