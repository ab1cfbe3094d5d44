//! A user in a security object: as the only name that CouchDB adds to `admins` and `members`.

use std::borrow::Cow;

use flatbed_layer::json::{self, Limits, Value};

/// The groups that list the user.
const GROUPS: [&str; 2] = ["admins", "members"];

const NAMES: &str = "names";

/// Returns the text of a security object with a user in both groups, the user's name first in each. `None`: it lists
/// the user already, or is no security object.
pub(crate) fn with_user(text: &[u8], user: &str) -> Option<Vec<u8>> {
    changed(text, |names| {
        let is_missing = !names.iter().any(|name| name.as_str() == Some(user));
        if is_missing {
            names.insert(0, Value::String(Cow::Owned(user.to_owned())));
        }
        is_missing
    })
}

/// Returns the text of a security object without a user in both groups. `None`: it does not list the user.
pub(crate) fn without_user(text: &[u8], user: &str) -> Option<Vec<u8>> {
    changed(text, |names| {
        let before = names.len();
        names.retain(|name| name.as_str() != Some(user));
        names.len() < before
    })
}

/// Changes the names of both groups by `change`, which returns whether it has changed them. `None`: nothing changed.
fn changed(text: &[u8], change: impl Fn(&mut Vec<Value<'_>>) -> bool) -> Option<Vec<u8>> {
    let mut object = json::parse(text, &Limits::default()).ok()?;
    let mut is_changed = false;
    for group in GROUPS {
        let members = member(&mut object, group, || Value::Object(Vec::new()))?;
        if let Value::Array(names) = member(members, NAMES, || Value::Array(Vec::new()))? {
            is_changed |= change(names);
        }
    }
    is_changed.then(|| json::to_vec(&object))
}

/// Returns an object's member, which `default` makes where it is missing. `None`: the value is no object.
fn member<'v, 'a>(
    value: &'v mut Value<'a>,
    name: &'static str,
    default: impl FnOnce() -> Value<'a>,
) -> Option<&'v mut Value<'a>> {
    let Value::Object(members) = value else { return None };
    let at = match members.iter().position(|(found, _)| found == name) {
        Some(at) => at,
        None => {
            members.push((Cow::Borrowed(name), default()));
            members.len() - 1
        }
    };
    members.get_mut(at).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(done: Option<Vec<u8>>) -> Option<String> {
        done.map(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn a_user_becomes_administrator_and_member() {
        let default = br#"{"members":{"roles":["_admin"]},"admins":{"roles":["_admin"]}}"#;
        let with = text(with_user(default, "anna"));
        let both =
            r#"{"members":{"roles":["_admin"],"names":["anna"]},"admins":{"roles":["_admin"],"names":["anna"]}}"#;
        assert_eq!(with.as_deref(), Some(both));
        assert_eq!(with_user(both.as_bytes(), "anna"), None);
        let empty = r#"{"members":{"roles":["_admin"],"names":[]},"admins":{"roles":["_admin"],"names":[]}}"#;
        assert_eq!(text(without_user(both.as_bytes(), "anna")).as_deref(), Some(empty));
    }

    #[test]
    fn everything_else_stays() {
        let text_of = br#"{"x":1,"admins":{"names":["b"]},"members":{"names":["a","b"],"y":null}}"#;
        let with = text(with_user(text_of, "a")).unwrap();
        assert_eq!(with, r#"{"x":1,"admins":{"names":["a","b"]},"members":{"names":["a","b"],"y":null}}"#);
        let without = text(without_user(with.as_bytes(), "b")).unwrap();
        assert_eq!(without, r#"{"x":1,"admins":{"names":["a"]},"members":{"names":["a"],"y":null}}"#);
        assert_eq!(without_user(b"{}", "a"), None);
        let wrong: [&[u8]; 3] = [b"[]", b"{", br#"{"admins":1}"#];
        assert!(wrong.iter().all(|wrong| with_user(wrong, "a").is_none()));
    }
}
