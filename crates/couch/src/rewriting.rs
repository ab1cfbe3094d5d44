//! Matches a path against the rules of `rewrites` and computes the target, as in CouchDB.

use std::borrow::Cow;

use flatbed_layer::json::{self, Limits, Value};
use hyper::StatusCode;

use crate::error::{Failure, Result};
use crate::query::encode;

/// View parameters whose values are JSON.
const JSON_PARAMETERS: [&str; 6] = ["key", "startkey", "start_key", "endkey", "end_key", "keys"];

/// The most `..` segments in a secure rule: from the design document to its database.
const UP_MAX: usize = 2;

/// Matches the rest of a path, or any method.
const ALL: &str = "*";

/// A variable and its value, from the path, the query or the rule.
type Binding = (String, Value<'static>);

#[derive(Debug, Clone, PartialEq)]
enum Part {
    Text(String),
    /// `:name`, or `*`.
    Bind(String),
}

struct Rule<'r> {
    method: &'r str,
    from: Vec<Part>,
    to: Vec<Part>,
    query: &'r [(Cow<'static, str>, Value<'static>)],
    formats: Option<&'r Value<'static>>,
}

/// Returns the target of a request: a path relative to the design document, and a query. `parts`: the decoded path
/// after `_rewrite`. `is_secure`: no rule may leave its database.
///
/// # Errors
/// 404 if no rule matches; 400 for a parameter that is not JSON; 500 for an invalid rule.
pub(crate) fn rewritten<'q>(
    rules: &[Value<'static>],
    method: &str,
    parts: &[String],
    query: impl Iterator<Item = (&'q str, &'q str)>,
    is_secure: bool,
) -> Result<String> {
    let given: Vec<Binding> =
        query.map(|(name, text)| Ok((name.to_owned(), decoded(name, text)?))).collect::<Result<_>>()?;
    // As in CouchDB, an invalid rule fails the request even if another rule matches.
    let rules: Vec<Rule<'_>> = rules.iter().filter_map(|rule| Rule::of(rule, is_secure)).collect::<Result<_>>()?;
    for rule in rules {
        if rule.method != ALL && rule.method != method {
            continue;
        }
        let Some((mut bound, rest)) = follow(&rule.from, parts) else { continue };
        bound.extend(given.iter().cloned());
        let own: Vec<Binding> =
            rule.query.iter().map(|(name, value)| (name.to_string(), rule.substitute(value, &bound))).collect();
        bound.retain(|(name, _)| !own.iter().any(|(own, _)| own == name));
        bound.extend(own);
        return Ok(target(&rule.to, &bound, rest));
    }
    Err(Failure::not_found("missing"))
}

impl<'r> Rule<'r> {
    /// Parses a rule; `None` if it is not an object.
    fn of(rule: &'r Value<'static>, is_secure: bool) -> Option<Result<Rule<'r>>> {
        let Value::Object(_) = rule else { return None };
        let text = |name: &str| rule.get(name).and_then(Value::as_str);
        let query = match rule.get("query") {
            Some(Value::Object(query)) => query.as_slice(),
            _ => &[],
        };
        let Some(to) = text("to") else {
            let failure = Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "error", "invalid_rewrite_target");
            return Some(Err(failure));
        };
        let to = path(to);
        if is_secure && to.iter().filter(|part| **part == Part::Text("..".to_owned())).count() > UP_MAX {
            return Some(Err(insecure()));
        }
        let from = text("from").map_or_else(|| vec![Part::Bind(ALL.to_owned())], path);
        Some(Ok(Rule { method: text("method").unwrap_or(ALL), from, to, query, formats: rule.get("formats") }))
    }

    /// Replaces variables in a value of the rule's query.
    fn substitute(&self, value: &Value<'static>, bound: &[Binding]) -> Value<'static> {
        let variable =
            |text: &str| if text == ALL { Some(ALL.to_owned()) } else { text.strip_prefix(':').map(str::to_owned) };
        match value {
            Value::String(text) => variable(text).map_or_else(|| value.clone(), |name| self.bound(&name, value, bound)),
            Value::Array(items) => {
                let item = |item: &Value<'static>| match item.as_str().and_then(|text| text.strip_prefix(':')) {
                    Some(name) => self.bound(name, item, bound),
                    None => item.clone(),
                };
                Value::Array(items.iter().map(item).collect())
            }
            _ => value.clone(),
        }
    }

    fn bound(&self, name: &str, without: &Value<'static>, bound: &[Binding]) -> Value<'static> {
        let value = find(bound, name).unwrap_or(without).clone();
        let format = self.formats.and_then(|formats| formats.get(name)).and_then(Value::as_str);
        match (format, value.as_str()) {
            (Some("int"), Some(text)) if text.parse::<i64>().is_ok() => Value::Number(text.to_owned().into()),
            (Some("bool"), Some(text)) if text.eq_ignore_ascii_case("true") => Value::Bool(true),
            (Some("bool"), Some(text)) if text.eq_ignore_ascii_case("false") => Value::Bool(false),
            _ => value,
        }
    }
}

pub(crate) fn insecure() -> Failure {
    Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "insecure_rewrite_rule", "too many ../.. segments")
}

fn decoded(name: &str, text: &str) -> Result<Value<'static>> {
    if !JSON_PARAMETERS.contains(&name) {
        return Ok(Value::String(text.to_owned().into()));
    }
    json::parse(text.as_bytes(), &Limits::default()).map(Value::into_owned).map_err(|_| Failure::invalid_json())
}

fn path(text: &str) -> Vec<Part> {
    let part = |part: &str| match part.strip_prefix(':') {
        Some(name) => Part::Bind(name.to_owned()),
        None if part == ALL => Part::Bind(ALL.to_owned()),
        None => Part::Text(part.to_owned()),
    };
    text.split('/').filter(|part| !part.is_empty()).map(part).collect()
}

/// Matches a path against a rule. Returns the bound variables, last first, and the rest for the rule's final `*`.
fn follow<'p>(from: &[Part], parts: &'p [String]) -> Option<(Vec<Binding>, &'p [String])> {
    let mut bound = Vec::new();
    let mut rest = parts;
    for (at, part) in from.iter().enumerate() {
        if *part == Part::Bind(ALL.to_owned()) && at + 1 == from.len() {
            return Some((bound, rest));
        }
        let (first, others) = rest.split_first()?;
        match part {
            Part::Text(text) if text != first => return None,
            Part::Text(_) => {}
            Part::Bind(name) => bound.insert(0, (name.clone(), Value::String(first.clone().into()))),
        }
        rest = others;
    }
    rest.is_empty().then_some((bound, rest))
}

fn find<'b>(bound: &'b [Binding], name: &str) -> Option<&'b Value<'static>> {
    bound.iter().find(|(found, _)| found == name).map(|(_, value)| value)
}

fn target(to: &[Part], bound: &[Binding], rest: &[String]) -> String {
    let mut parts = Vec::new();
    for part in to {
        match part {
            Part::Text(text) => parts.push(encode(text)),
            Part::Bind(name) if name == ALL => {
                parts.extend(rest.iter().map(|part| encode(part)));
                break;
            }
            Part::Bind(name) => parts.push(encode(&find(bound, name).map_or_else(|| "undefined".to_owned(), plain))),
        }
    }
    let shown = bound.iter().filter(|(name, _)| name != ALL);
    let value = |name: &str, value: &Value<'_>| {
        if JSON_PARAMETERS.contains(&name) { json::to_string(value) } else { plain(value) }
    };
    let query: Vec<String> = shown.map(|(name, of)| format!("{}={}", encode(name), encode(&value(name, of)))).collect();
    let path = parts.join("/");
    if query.is_empty() { path } else { format!("{path}?{}", query.join("&")) }
}

/// Formats a string or an array of strings as plain text, concatenated as in CouchDB; any other value as JSON.
fn plain(value: &Value<'_>) -> String {
    let strings = match value {
        Value::Array(items) => items.iter().map(Value::as_str).collect::<Option<String>>(),
        _ => value.as_str().map(str::to_owned),
    };
    strings.unwrap_or_else(|| json::to_string(value))
}

/// Resolves `.` and `..` of a path relative to `place`. Steps above the root are dropped.
pub(crate) fn joined(place: &[String], path: &str) -> String {
    let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
    let mut parts: Vec<Cow<'_, str>> = place.iter().map(|part| Cow::Owned(encode(part))).collect();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part.into()),
        }
    }
    let path = format!("/{}", parts.join("/"));
    query.map_or_else(|| path.clone(), |query| format!("{path}?{query}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn go(rules: &str, method: &str, path: &str, query: &[(&str, &str)]) -> Result<String> {
        let Value::Array(rules) = json::parse(rules.as_bytes(), &Limits::default()).unwrap().into_owned() else {
            panic!()
        };
        let parts: Vec<String> = path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        rewritten(&rules, method, &parts, query.iter().copied(), true)
    }

    const RULES: &str = r#"[5,{"from":"/doc/:id","to":"../../:id"},{"from":"/all","to":"_view/n"},
        {"from":"/k/:k","to":"_view/n","query":{"key":":k"}},{"from":"/star/*","to":"_show/q/*"},
        {"from":"/q","to":"_show/q","query":{"a":"b"}},{"from":"/put","to":"../../made","method":"PUT"},
        {"from":"/range/:a/:b","to":"_view/n","query":{"startkey":[":a",":n"],"endkey":[":b",{}],"limit":":b"},"formats":{"a":"int","n":"bool"}},
        {"from":"/*/x","to":"_show/:none/*"},{"from":"","to":"_view/n","query":{"limit":"1"}}]"#;

    #[test]
    fn rules_are_followed() {
        for (method, path, query, expected) in [
            ("GET", "doc/a", &[][..], "../../a?id=a"),
            ("GET", "doc/a b%", &[], "../../a%20b%25?id=a%20b%25"),
            ("GET", "all", &[], "_view/n"),
            ("GET", "k/x", &[], "_view/n?k=x&key=%22x%22"),
            ("GET", "star/a/b", &[], "_show/q/a/b"),
            ("GET", "star", &[], "_show/q"),
            ("GET", "q", &[("c", "d"), ("a", "x")], "_show/q?c=d&a=b"),
            ("PUT", "put", &[], "../../made"),
            ("GET", "", &[], "_view/n?limit=1"),
            (
                "GET",
                "range/1/z",
                &[("n", "TRUE"), ("key", "[1]")],
                "_view/n?b=z&a=1&n=TRUE&key=%5B1%5D&startkey=%5B1%2Ctrue%5D&endkey=%5B%22z%22%2C%7B%7D%5D&limit=z",
            ),
            ("GET", "y/x", &[], "_show/undefined"),
        ] {
            assert_eq!(go(RULES, method, path, query).unwrap(), expected, "{path}");
        }
        assert_eq!(go(RULES, "GET", "put", &[]).unwrap_err().status.as_u16(), 404);
        assert_eq!(go(RULES, "GET", "doc", &[]).unwrap_err().reason, "missing");
        assert_eq!(go(RULES, "GET", "all", &[("key", "x")]).unwrap_err().status.as_u16(), 400);
        assert_eq!(go("[]", "GET", "all", &[]).unwrap_err().status.as_u16(), 404);
    }

    /// As in CouchDB. Parameters that are no view keys are plain text.
    #[test]
    fn arrays_of_strings_are_put_together() {
        let rules = r#"[{"from":"a/:x","to":"_view/n","query":{"arr":[":x","lit"],"mixed":["l",1],"keys":[":x"]}}]"#;
        let expected = "_view/n?x=1&arr=1lit&mixed=%5B%22l%22%2C1%5D&keys=%5B%221%22%5D";
        assert_eq!(go(rules, "GET", "a/1", &[]).unwrap(), expected);
    }

    #[test]
    fn rules_stay_in_their_database() {
        let rules = r#"[{"from":"a","to":"../../../other/doc"}]"#;
        assert_eq!(go(rules, "GET", "b", &[]).unwrap_err().error, "insecure_rewrite_rule");
        let Value::Array(read) = json::parse(rules.as_bytes(), &Limits::default()).unwrap().into_owned() else {
            panic!()
        };
        let insecure = rewritten(&read, "GET", &["a".to_owned()], std::iter::empty(), false);
        assert_eq!(insecure.unwrap(), "../../../other/doc");
        assert_eq!(go(r#"[{"from":"a"}]"#, "GET", "a", &[]).unwrap_err().reason, "invalid_rewrite_target");
    }

    #[test]
    fn paths_are_joined() {
        let place = ["d/b".to_owned(), "_design".to_owned(), "x".to_owned()];
        for (path, expected) in [
            ("_view/n?limit=1", "/d%2Fb/_design/x/_view/n?limit=1"),
            ("../../a", "/d%2Fb/a"),
            ("/abs//./b/", "/d%2Fb/_design/x/abs/b"),
            ("../../../../../_all_dbs", "/_all_dbs"),
            ("..%2F", "/d%2Fb/_design/x/..%2F"),
            ("", "/d%2Fb/_design/x"),
        ] {
            assert_eq!(joined(&place, path), expected);
        }
    }
}
