//! The response object of a function.
//!
//! Its text may be long, and its member `json` is passed on unchanged, so the text is split and not parsed as a
//! whole.

use flatbed_flatten::json::{self, Limits, Value};

use crate::rows::value_end;

/// A response of a function. The sender checks that HTTP allows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Response {
    /// `code`, if set: a number, or a text such as `"404"`. A number that does not fit becomes 0; other invalid
    /// statuses are kept.
    pub code: Option<u16>,
    /// `headers`, in the function's order.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: ResponseBody,
}

/// The body of a [`Response`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ResponseBody {
    /// The function set no body.
    #[default]
    None,
    /// `body`
    Text(String),
    /// `json`, as JSON text.
    Json(String),
    /// `base64`, not decoded.
    Base64(String),
}

/// The error of an invalid response object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidResponse {
    /// Not an object.
    #[error("Invalid data from external server: no object")]
    NoObject,
    /// An unknown member, or a member with an invalid value.
    #[error("Invalid data from external server: {name}")]
    Member {
        /// The member's name.
        name: String,
        /// Its value, as JSON text.
        value: String,
    },
}

impl Response {
    /// Parses the text of a response.
    pub fn parse(text: &str) -> Result<Response, InvalidResponse> {
        let mut response = Response::default();
        for (name, value) in members(text).ok_or(InvalidResponse::NoObject)? {
            let invalid = |name: &str| InvalidResponse::Member { name: name.to_owned(), value: value.to_owned() };
            match name.as_str() {
                "code" => response.code = Some(code(value).ok_or_else(|| invalid("code"))?),
                "headers" => response.headers = headers(value).ok_or_else(|| invalid("headers"))?,
                "json" => response.body = ResponseBody::Json(value.to_owned()),
                "body" | "base64" if matches!(response.body, ResponseBody::Json(_)) => {}
                "body" => response.body = ResponseBody::Text(string(value).ok_or_else(|| invalid("body"))?),
                "base64" => response.body = ResponseBody::Base64(string(value).ok_or_else(|| invalid("base64"))?),
                "stop" => {}
                other => return Err(invalid(other)),
            }
        }
        Ok(response)
    }
}

/// Splits an object, as `JSON.stringify` writes it, into its members as JSON texts. Returns `None` for other values.
pub fn members(text: &str) -> Option<Vec<(String, &str)>> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    if bytes.first() != Some(&b'{') {
        return None;
    }
    if text == "{}" {
        return Some(found);
    }
    let mut at = 1;
    loop {
        let name = value_end(bytes, at)?;
        if bytes.get(name) != Some(&b':') {
            return None;
        }
        let end = value_end(bytes, name + 1)?;
        found.push((string(text.get(at..name)?)?, text.get(name + 1..end)?));
        match bytes.get(end)? {
            b',' => at = end + 1,
            b'}' if end + 1 == bytes.len() => return Some(found),
            _ => return None,
        }
    }
}

fn string(text: &str) -> Option<String> {
    match json::parse(text.as_bytes(), &Limits::default()) {
        Ok(Value::String(text)) => Some(text.into_owned()),
        _ => None,
    }
}

/// Reads `code`: a number, or a text that begins with a status. CouchDB writes such a text into the status line.
fn code(text: &str) -> Option<u16> {
    if text.starts_with('"') {
        let text = string(text)?;
        let (status, rest) = text.split_at_checked(3)?;
        let is_status = status.bytes().all(|byte| byte.is_ascii_digit()) && (rest.is_empty() || rest.starts_with(' '));
        return if is_status { status.parse().ok() } else { None };
    }
    let number: f64 = text.parse().ok()?;
    // JavaScript has one type of numbers. The sender refuses invalid statuses.
    Some(if number.fract() == 0.0 && (0.0..=65_535.0).contains(&number) { number as u16 } else { 0 })
}

/// Reads `headers`. Numbers, `true`, `false` and `null` become texts.
fn headers(text: &str) -> Option<Vec<(String, String)>> {
    let value = |text: &str| match text.as_bytes().first()? {
        b'"' => string(text),
        b'{' | b'[' => None,
        _ => Some(text.to_owned()),
    };
    members(text)?.into_iter().map(|(name, text)| Some((name, value(text)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_taken_apart() {
        let parse = |text: &str| Response::parse(text).unwrap();
        assert_eq!(parse("{}"), Response::default());
        assert_eq!(
            parse(r#"{"code":418,"headers":{"X-\"":"é\n","N":1},"body":"t\"ea"}"#),
            Response {
                code: Some(418),
                headers: vec![("X-\"".into(), "é\n".into()), ("N".into(), "1".into())],
                body: ResponseBody::Text("t\"ea".into()),
            }
        );
        for text in [r#"{"json":{"a":["}"]},"body":"x","stop":true}"#, r#"{"body":"x","json":{"a":["}"]}}"#] {
            assert_eq!(parse(text).body, ResponseBody::Json(r#"{"a":["}"]}"#.into()), "{text}");
        }
        assert_eq!(parse(r#"{"base64":"aGk="}"#).body, ResponseBody::Base64("aGk=".into()));
        for text in [r#"{"code":"404"}"#, r#"{"code":"404 Not Found"}"#] {
            assert_eq!(parse(text).code, Some(404), "{text}");
        }
        for text in [r#"{"code":99999}"#, r#"{"code":-1}"#, r#"{"code":200.5}"#, r#"{"code":1e400}"#] {
            assert_eq!(parse(text).code, Some(0), "{text}");
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        for (text, name, value) in [
            (r#"{"a":1}"#, "a", "1"),
            (r#"{"code":"x"}"#, "code", "\"x\""),
            (r#"{"code":"4040"}"#, "code", "\"4040\""),
            (r#"{"code":"éé"}"#, "code", "\"éé\""),
            (r#"{"headers":null}"#, "headers", "null"),
            (r#"{"headers":{"a":{}}}"#, "headers", r#"{"a":{}}"#),
            (r#"{"body":5}"#, "body", "5"),
            (r#"{"base64":null}"#, "base64", "null"),
        ] {
            let member = InvalidResponse::Member { name: name.to_owned(), value: value.to_owned() };
            assert_eq!(Response::parse(text), Err(member), "{text}");
        }
        for text in ["null", "[]", r#"{"body":"x"}}"#] {
            assert_eq!(Response::parse(text), Err(InvalidResponse::NoObject), "{text}");
        }
    }
}
