//! The credentials sent to `/_session`.

use flatbed_flatten::json::Value;

use crate::credentials::Credentials;
use crate::error::AuthError;

/// Reads the credentials of a JSON object. The default password is empty. As in CouchDB, `username` may replace
/// `name`.
///
/// # Errors
/// 400 without a name, or with two different ones. Also where CouchDB answers 500: for anything but an object, and
/// for names and passwords that are no texts.
pub fn of_json(body: &Value<'_>) -> Result<Credentials, AuthError> {
    if !matches!(body, Value::Object(_)) {
        return Err(AuthError::bad_request("Request body must be a JSON object"));
    }
    let text = |name: &'static str| match body.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(&**text)),
        Some(_) => Err(AuthError::bad_request(format!("`{name}` must be a string"))),
    };
    credentials(text("name")?, text("username")?, text("password")?)
}

/// Reads the credentials of a form's decoded fields; the first of several fields with one name counts.
///
/// # Errors
/// 400 without a name, or with two different ones.
pub fn of_form<'a>(fields: &[(&'a str, &'a str)]) -> Result<Credentials, AuthError> {
    let text = |name: &str| fields.iter().find(|(found, _)| *found == name).map(|(_, value)| *value);
    credentials(text("name"), text("username"), text("password"))
}

fn credentials(name: Option<&str>, username: Option<&str>, password: Option<&str>) -> Result<Credentials, AuthError> {
    let name = match (name, username) {
        (None, None) => return Err(AuthError::bad_request("request body must contain a username")),
        (Some(one), Some(other)) if one != other => {
            return Err(AuthError::bad_request("request body contains different usernames"));
        }
        (Some(name), _) | (None, Some(name)) => name,
    };
    Ok(Credentials { name: name.to_owned(), password: password.unwrap_or_default().to_owned() })
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};

    use super::*;
    use crate::error::AuthErrorKind;

    fn told(found: Result<Credentials, AuthError>) -> String {
        match found {
            Ok(found) => format!("{}:{}", found.name, found.password),
            Err(refused) => {
                assert_eq!(refused.kind, AuthErrorKind::BadRequest);
                refused.reason.into_owned()
            }
        }
    }

    /// As recorded, but for CouchDB's 500s.
    #[test]
    fn objects() {
        for (text, expected) in [
            (r#"{"name":"u","password":"pw"}"#, "u:pw"),
            (r#"{"username":"u","password":"pw"}"#, "u:pw"),
            (r#"{"username":"u","name":"u"}"#, "u:"),
            (r#"{"name":"","next":5}"#, ":"),
            (r#"{"username":"u","name":"v"}"#, "request body contains different usernames"),
            (r#"{"password":"pw"}"#, "request body must contain a username"),
            ("{}", "request body must contain a username"),
            ("[]", "Request body must be a JSON object"),
            (r#"{"name":5}"#, "`name` must be a string"),
            (r#"{"name":"u","username":null}"#, "`username` must be a string"),
            (r#"{"name":"u","password":null}"#, "`password` must be a string"),
        ] {
            assert_eq!(told(of_json(&parse(text.as_bytes(), &Limits::default()).unwrap())), expected, "{text}");
        }
    }

    #[test]
    fn forms() {
        assert_eq!(told(of_form(&[("name", "u"), ("password", "pw"), ("name", "v")])), "u:pw");
        assert_eq!(told(of_form(&[("username", "u")])), "u:");
        assert_eq!(told(of_form(&[])), "request body must contain a username");
        assert_eq!(told(of_form(&[("username", "u"), ("name", "v")])), "request body contains different usernames");
    }
}
