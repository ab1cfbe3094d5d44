//! Paths and query strings.

mod declared;

use flatbed_layer::json::{self, Limits, Value};

use crate::error::{Failure, Result};

pub(crate) use declared::{FromQuery, is_not_false, is_ok, is_true, parameters, revision, row_count, switch, text};

/// The largest number of parameters in a query string; more are 400.
const PARAMETERS_MAX: usize = 100;

/// Decodes `%xx` and, as CouchDB does in paths too, `+` as a space.
pub(crate) fn decode(text: &str) -> Result<String> {
    if !text.bytes().any(|byte| byte == b'%' || byte == b'+') {
        return Ok(text.to_owned());
    }
    let nibble = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16)).map(|digit| digit as u8);
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match (byte, nibble(bytes.get(at + 1)), nibble(bytes.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                out.push(high << 4 | low);
                at += 3;
            }
            (b'+', _, _) => {
                out.push(b' ');
                at += 1;
            }
            (byte, _, _) => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8(out).map_err(|_| Failure::bad_request("The path or query is not UTF-8"))
}

/// Encodes a path segment as CouchDB does in the `location` header.
pub(crate) fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~:".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// The settings' bounds of parameters; `None`: no bound.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct QueryBounds {
    /// The largest `limit` of a query of rows.
    pub rows: Option<u64>,
    /// The same within a partition.
    pub partition_rows: Option<u64>,
    /// The largest `timeout` of a feed, in milliseconds.
    pub feed_wait_ms: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
    bounds: QueryBounds,
}

impl Query {
    pub(crate) fn parse(text: Option<&str>) -> Result<Query> {
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(Query::default()) };
        let mut parameters = Vec::new();
        // As in CouchDB, a semicolon separates parameters as an ampersand does.
        for pair in text.split(['&', ';']).filter(|pair| !pair.is_empty()) {
            if parameters.len() == PARAMETERS_MAX {
                return Err(Failure::bad_request("Too many query parameters"));
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            parameters.push((decode(name)?, decode(value)?));
        }
        Ok(Query { pairs: parameters, bounds: QueryBounds::default() })
    }

    /// Sets the bounds.
    pub(crate) fn with_bounds(self, bounds: QueryBounds) -> Query {
        Query { bounds, ..self }
    }

    pub(crate) fn bounds(&self) -> QueryBounds {
        self.bounds
    }

    /// Parses the parameters that a struct declares.
    pub(crate) fn parameters<P: FromQuery>(&self) -> Result<P> {
        P::from_query(self)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().rev().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Returns the first value of a name, for parameters where CouchDB takes the first.
    pub(crate) fn first(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Iterates over names and values in order, without values that a later parameter of the same name overrides.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let is_last = |at: usize, name: &str| !self.pairs.iter().skip(at + 1).any(|(later, _)| later == name);
        let last = self.pairs.iter().enumerate().filter(move |(at, (name, _))| is_last(*at, name));
        last.map(|(_, (name, value))| (name.as_str(), value.as_str()))
    }

    /// Returns the parameters with lower-case names, as CouchDB reads those of `_changes`.
    pub(crate) fn lowered(&self) -> Query {
        let pairs = self.pairs.iter().map(|(name, value)| (name.to_lowercase(), value.clone())).collect();
        Query { pairs, bounds: self.bounds }
    }

    /// Returns whether a parameter is `true`. CouchDB ignores any other value on documents, `_bulk_get` and feeds;
    /// Python clients send `True` and `False`.
    pub(crate) fn switch(&self, name: &str) -> bool {
        self.all().any(|(found, value)| found == name && value == "true")
    }

    /// Parses `true` or `false`, case-insensitive. Any other value is 400 `query_parse_error`, as in CouchDB for views
    /// and lists of databases.
    pub(crate) fn boolean(&self, name: &str) -> Result<Option<bool>> {
        self.get(name).map(boolean).transpose()
    }

    /// Parses `true` or `false`, default false, for parameters that CouchDB does not have.
    pub(crate) fn flag(&self, name: &str) -> Result<bool> {
        match self.get(name) {
            None | Some("false" | "") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => Err(Failure::query(format!("Invalid boolean parameter: \"{other}\""))),
        }
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>> {
        self.get(name).map(number).transpose()
    }

    /// Parses the first present of several aliases as JSON.
    pub(crate) fn json(&self, names: &[&str]) -> Result<Option<Value<'static>>> {
        let found = names.iter().find_map(|name| self.get(name));
        let parse = |text: &str| json::parse(text.as_bytes(), &Limits::default()).map(Value::into_owned);
        found.map(parse).transpose().map_err(|_| Failure::invalid_json())
    }
}

pub(crate) fn boolean(text: &str) -> Result<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(Failure::query(format!("Invalid boolean parameter: {}", as_list(text)))),
    }
}

pub(crate) fn number(text: &str) -> Result<u64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Failure::query(format!("Invalid value for integer: {}", as_list(text))));
    }
    if text.starts_with('-') && digits.bytes().any(|byte| byte != b'0') {
        return Err(Failure::query(format!("Invalid value for positive integer: {}", as_list(text))));
    }
    Ok(digits.parse().unwrap_or(u64::MAX))
}

/// Formats a text as Erlang prints a list of characters, for CouchDB's error reasons.
pub(crate) fn as_list(text: &str) -> String {
    if text.is_empty() {
        return "[]".to_owned();
    }
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => out.extend(['\\', char]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ => out.push(char),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(text in ".{0,40}") {
            prop_assert_eq!(decode(&encode(&text)).unwrap(), text);
        }

        #[test]
        fn any_query_is_taken_or_refused(text in "([a-z_]{0,4}(=|&|%[0-9a-g]{0,3}|[ -~]|\\PC){0,3}){0,12}") {
            let Ok(query) = Query::parse(Some(&text)) else { return Ok(()) };
            prop_assert!(query.all().count() <= 100);
            for (name, value) in query.all() {
                let _ = (query.get(name), query.first(name), query.flag(name), query.number(name), query.json(&[name]));
                let _ = (number(value), as_list(value), query.switch(name), query.boolean(name));
            }
        }
    }

    #[test]
    fn decodes_as_couchdb() {
        for (text, expected) in [("a%2Fb", "a/b"), ("sp%20ace+plus", "sp ace plus"), ("100%", "100%"), ("%zz", "%zz")] {
            assert_eq!(decode(text).unwrap(), expected);
        }
        assert!(decode("%ff").is_err());
        assert_eq!(encode("DB/sub(y)$-_é"), "DB%2Fsub%28y%29%24-_%C3%A9");
        assert_eq!(encode("org.couchdb.user:é"), "org.couchdb.user:%C3%A9");
    }

    #[test]
    fn booleans() {
        let text = "a=true&b=True&c=&d=false&e=FALSE&f=1&g=true&g=false&h=false&h=true&I=true";
        let query = Query::parse(Some(text)).unwrap();
        let on: Vec<&str> =
            ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"].into_iter().filter(|n| query.switch(n)).collect();
        assert_eq!(on, ["a", "g", "h"], "once on, it stays on");
        assert!(query.lowered().switch("i"));
        for (name, expected) in
            [("a", Some(true)), ("b", Some(true)), ("d", Some(false)), ("e", Some(false)), ("j", None)]
        {
            assert_eq!(query.boolean(name).unwrap(), expected, "{name}");
        }
        assert_eq!(query.boolean("c").unwrap_err().reason, "Invalid boolean parameter: []");
        assert_eq!(query.boolean("f").unwrap_err().reason, "Invalid boolean parameter: \"1\"");
    }

    #[test]
    fn semicolons_separate() {
        let query = Query::parse(Some("limit=2;&skip=1;key=%3B")).unwrap();
        let given: Vec<_> = query.all().collect();
        assert_eq!(given, [("limit", "2"), ("skip", "1"), ("key", ";")]);
    }

    #[test]
    fn numbers() {
        let query = Query::parse(Some("limit=-1&skip=x&n=5&m=99999999999999999999999")).unwrap();
        assert_eq!(query.number("limit").unwrap_err().reason, "Invalid value for positive integer: \"-1\"");
        assert_eq!(query.number("skip").unwrap_err().reason, "Invalid value for integer: \"x\"");
        assert_eq!((query.number("n").unwrap(), query.number("m").unwrap()), (Some(5), Some(u64::MAX)));
    }
}
