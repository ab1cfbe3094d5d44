//! Members of requests, each checked and consumed once.

use std::borrow::Cow;

use flatbed_flatten::json::Value;

use crate::erlang::written;
use crate::error::MangoError;
use crate::order::is_integer;

/// The members of a request that were not consumed yet.
pub(crate) struct Options<'v>(Vec<(Cow<'v, str>, &'v Value<'v>)>);

impl<'v> Options<'v> {
    /// Takes the members of a request's body.
    ///
    /// # Errors
    /// The body is no object.
    pub(crate) fn of_request(body: &'v Value<'v>) -> Result<Options<'v>, MangoError> {
        Options::of(body).ok_or_else(|| MangoError::bad("bad_request", "Request body must be a JSON object"))
    }

    pub(crate) fn of(value: &'v Value<'v>) -> Option<Options<'v>> {
        match value {
            Value::Object(members) => {
                Some(Options(members.iter().map(|(name, value)| (Cow::Borrowed(name.as_ref()), value)).collect()))
            }
            _ => None,
        }
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<&'v Value<'v>> {
        let at = self.0.iter().position(|(found, _)| found == name)?;
        Some(self.0.remove(at).1)
    }

    pub(crate) fn required(&mut self, name: &str) -> Result<&'v Value<'v>, MangoError> {
        self.take(name).ok_or_else(|| MangoError::bad("missing_required_key", format!("Missing required key: {name}")))
    }

    pub(crate) fn boolean(&mut self, name: &str, default: bool) -> Result<bool, MangoError> {
        match self.take(name) {
            None => Ok(default),
            Some(Value::Bool(value)) => Ok(*value),
            Some(other) => {
                Err(MangoError::bad("invalid_boolean", format!("Invalid boolean value: {}", written(other))))
            }
        }
    }

    /// Parses an integer from `least` (0 or 1) up. Larger values than 64 bits hold count as the maximum.
    pub(crate) fn integer(&mut self, name: &str, least: u64, default: u64) -> Result<u64, MangoError> {
        let Some(value) = self.take(name) else { return Ok(default) };
        let integer = match value {
            Value::Number(text) if is_integer(text) && !text.starts_with('-') => Some(text.parse().unwrap_or(u64::MAX)),
            Value::Number(text) if text == "-0" => Some(0),
            _ => None,
        };
        integer.filter(|integer| *integer >= least).ok_or_else(|| {
            let (error, what) = match least {
                0 => ("invalid_non_neg_integer", "is not an integer greater than or equal to zero"),
                _ => ("invalid_pos_integer", "is not an integer greater than zero"),
            };
            MangoError::bad(error, format!("{} {what}", written(value)))
        })
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<Option<&'v str>, MangoError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_ref())),
            Some(other) => Err(MangoError::bad("invalid_string", format!("Invalid string: {}", written(other)))),
        }
    }

    /// Checks that all members were consumed.
    ///
    /// # Errors
    /// A member was not consumed.
    pub(crate) fn finish(self) -> Result<(), MangoError> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => Err(MangoError::bad("invalid_key", format!("Invalid key {name} for this request."))),
        }
    }
}

pub(crate) fn text(text: &str) -> Value<'static> {
    Value::String(text.to_owned().into())
}

pub(crate) fn object<const N: usize>(members: [(&'static str, Value<'static>); N]) -> Value<'static> {
    Value::Object(members.into_iter().map(|(name, value)| (name.into(), value)).collect())
}

pub(crate) fn number(number: u64) -> Value<'static> {
    Value::Number(number.to_string().into())
}
