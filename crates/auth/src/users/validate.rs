//! The validation of `_users`.
//!
//! CouchDB runs a JavaScript function. The results here are the same, except for documents at which that function
//! throws an error of the language and CouchDB answers 500: these are refused too, with the nearest reason.

use flatbed_flatten::json::Value;

use super::{Actor, ID_PREFIX};
use crate::erlang::cut;
use crate::error::AuthError;

/// The only role with an underscore that a user document may have: it may read metrics.
pub(super) const METRICS_ROLE: &str = "_metrics";

/// The write to validate.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// The document's id.
    pub id: &'a str,
    /// True for a deletion.
    pub is_deleted: bool,
    /// The body without special members, from [`super::before_update`].
    pub body: &'a Value<'a>,
    /// The body of the replaced revision, if the write names one; also for a deletion.
    pub old: Option<&'a Value<'a>>,
}

/// Validates a write of a document of `_users` that is neither a design document nor a local one.
///
/// # Errors
/// 403 with the first reason of the validation function.
pub fn validate(write: &Write<'_>, actor: &Actor<'_>) -> Result<(), AuthError> {
    if write.is_deleted {
        return deletion(write, actor);
    }
    let (body, refuse) = (write.body, |reason: &'static str| Err(AuthError::forbidden(reason)));
    if text(body, "type") != Some("user") {
        return refuse("doc.type must be user");
    }
    if !is_true(body.get("name")) {
        return refuse("doc.name is required");
    }
    let roles = roles(body)?;
    let Some(name) = text(body, "name").filter(|name| write.id.strip_prefix(ID_PREFIX) == Some(name)) else {
        return refuse("Doc ID must be of the form org.couchdb.user:name");
    };
    if write.old.is_some_and(|old| text(old, "name") != Some(name)) {
        return refuse("Usernames can not be changed.");
    }
    password(body)?;
    if !actor.is_admin {
        authority(write.old, name, &roles, actor)?;
    }
    if roles.iter().any(|role| role.starts_with('_') && *role != METRICS_ROLE) {
        return refuse("No system roles (starting with underscore) in users db.");
    }
    if name.starts_with('_') {
        return refuse("Username may not start with underscore.");
    }
    if name.contains(':') {
        return refuse("Character `:` is not allowed in usernames.");
    }
    Ok(())
}

/// Allows deletions to administrators and to the document's owner.
fn deletion(write: &Write<'_>, actor: &Actor<'_>) -> Result<(), AuthError> {
    let owner = write.old.and_then(|old| text(old, "name"));
    if actor.is_server_admin || (owner.is_some() && owner == actor.name) {
        return Ok(());
    }
    Err(AuthError::forbidden("Only admins may delete other user docs."))
}

fn roles<'a>(body: &'a Value<'_>) -> Result<Vec<&'a str>, AuthError> {
    let roles = body.get("roles");
    if !is_true(roles) {
        return Err(AuthError::forbidden("doc.roles must exist"));
    }
    let Some(Value::Array(roles)) = roles else {
        return Err(AuthError::forbidden("doc.roles must be an array"));
    };
    let strings: Option<Vec<&str>> = roles.iter().map(Value::as_str).collect();
    strings.ok_or_else(|| AuthError::forbidden("doc.roles can only contain strings"))
}

/// Checks the members of a hash that the client has made.
fn password(body: &Value<'_>) -> Result<(), AuthError> {
    let refuse = |reason: &'static str| Err(AuthError::forbidden(reason));
    if is_true(body.get("password_sha")) && !is_true(body.get("salt")) {
        // CouchDB also lacks the space between the two sentences.
        return refuse("Users with password_sha must have a salt.See /_utils/script/couch.js for example code.");
    }
    let scheme = body.get("password_scheme").filter(|scheme| is_true(Some(scheme)));
    let named = scheme.and_then(Value::as_str);
    if let (Some(scheme), false) = (scheme, matches!(named, Some("simple" | "pbkdf2" | "simple+pbkdf2"))) {
        return Err(AuthError::forbidden(format!("Password scheme `{}` not supported.", script_text(scheme))));
    }
    if named == Some("pbkdf2") {
        if !matches!(body.get("iterations"), Some(Value::Number(_))) {
            return refuse("iterations must be a number.");
        }
        if text(body, "derived_key").is_none() {
            return refuse("derived_key must be a string.");
        }
    }
    Ok(())
}

/// Checks the writes of other users than administrators: their own document, with its current roles.
fn authority(old: Option<&Value<'_>>, name: &str, roles: &[&str], actor: &Actor<'_>) -> Result<(), AuthError> {
    let Some(old) = old else {
        return if roles.is_empty() { Ok(()) } else { Err(AuthError::forbidden("Only _admin may set roles")) };
    };
    if actor.name != Some(name) {
        return Err(AuthError::forbidden("You may only update your own user document."));
    }
    let before = old.get("roles").filter(|roles| is_true(Some(roles)));
    let before: Option<Vec<&str>> = match before {
        None => Some(Vec::new()),
        Some(Value::Array(roles)) => roles.iter().map(Value::as_str).collect(),
        Some(_) => None,
    };
    let sorted = |mut roles: Vec<&str>| {
        roles.sort_unstable();
        roles.iter().map(|role| (*role).to_owned()).collect::<Vec<_>>()
    };
    if before.map(sorted) != Some(sorted(roles.to_vec())) {
        return Err(AuthError::forbidden("Only _admin may edit roles"));
    }
    Ok(())
}

fn text<'a>(body: &'a Value<'_>, name: &str) -> Option<&'a str> {
    body.get(name).and_then(Value::as_str)
}

/// Returns the truth value in JavaScript.
fn is_true(value: Option<&Value<'_>>) -> bool {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Number(text)) => text.parse::<f64>().is_ok_and(|number| number != 0.0),
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Bool(true) | Value::Array(_) | Value::Object(_)) => true,
    }
}

/// Converts a value to text as JavaScript does. Elements of arrays are omitted, and long texts are cut.
fn script_text(value: &Value<'_>) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(text) | Value::String(text) => cut(text),
        Value::Array(items) if items.is_empty() => String::new(),
        Value::Array(_) => "...".to_owned(),
        Value::Object(_) => "[object Object]".to_owned(),
    }
}

#[cfg(test)]
mod tests;
