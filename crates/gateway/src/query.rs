//! Decodes query strings and path segments.

use flatbed_layer::json::{self, Limits, Value};

use crate::error::{Failure, Result};

/// The largest number of parameters; more are refused.
const PARAMETERS_MAX: usize = 100;

/// Decodes `%xx` and, in a query, `+`. `None` for invalid UTF-8 or an incomplete `%`.
pub(crate) fn decode(text: &str, is_query: bool) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let mut digit = || bytes.next().and_then(|byte| char::from(byte).to_digit(16));
                let (high, low) = (digit()?, digit()?);
                u8::try_from(high << 4 | low).ok()?
            }
            b'+' if is_query => b' ',
            byte => byte,
        });
    }
    String::from_utf8(out).ok()
}

/// The parameters of a query string. The first of repeated names counts; parameters that cannot be decoded are ignored.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(text: Option<&str>) -> Result<Query> {
        let mut parameters = Vec::new();
        for pair in text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            if parameters.len() == PARAMETERS_MAX {
                return Err(Failure::bad_request("Too many query parameters"));
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if let (Some(name), Some(value)) = (decode(name, true), decode(value, true)) {
                parameters.push((name, value));
            }
        }
        Ok(Query(parameters))
    }

    /// Removes the parameters for which `is_said` returns true.
    pub(crate) fn without(mut self, is_said: impl Fn(&str) -> bool) -> Query {
        self.0.retain(|(name, _)| !is_said(name));
        self
    }

    /// Returns a parameter that is not empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(found, _)| found == name);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// Returns whether a parameter is true.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.get(name) == Some("true")
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.parse().ok()
    }

    /// Returns a JSON string, or the raw text.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        let text = self.get(name)?;
        match json::parse(text.as_bytes(), &Limits::default()) {
            Ok(Value::String(text)) => Some(text.into_owned()),
            _ => Some(text.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parameters() {
        let query = Query::parse(Some("a=1&a=2&b=%22x%20+y%22&c&d=%zz&e=%ff&limit=-1&f=true&g=x")).unwrap();
        assert_eq!((query.get("a"), query.number("a"), query.number("limit")), (Some("1"), Some(1), None));
        assert_eq!((query.text("b"), query.text("g")), (Some("x  y".to_owned()), Some("x".to_owned())));
        assert_eq!((query.get("c"), query.get("d"), query.get("e")), (None, None, None));
        assert!(query.flag("f") && !query.flag("a") && !query.flag("nothing"));
        assert!(Query::parse(Some(&"a&".repeat(101))).is_err());
        assert_eq!(decode("a+b%2F%", false), None);
        assert_eq!(decode("a+b%2Fé", false).as_deref(), Some("a+b/é"));
    }

    proptest! {
        #[test]
        fn any_text_is_decoded_or_not(text in "(%[0-9a-gA-F]{0,2}|\\PC){0,20}") {
            if let Ok(query) = Query::parse(Some(&text)) {
                let _ = (query.get("a"), query.text("a"), query.number("a"));
            }
            let _ = (decode(&text, true), decode(&text, false));
        }
    }
}
