//! The visibility of documents of `_users`.

use std::borrow::Cow;
use std::collections::HashSet;

use flatbed_flatten::json::Value;

use super::Actor;
use crate::error::AuthError;

/// The members of user documents that everyone may see: the setting `public_fields`. None by default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PublicFields(HashSet<String>);

impl PublicFields {
    /// Parses names separated by commas, and trims white space.
    pub fn parse(text: &str) -> PublicFields {
        PublicFields(text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }
}

/// The visible part of a document.
#[derive(Debug, Clone, PartialEq)]
pub enum VisibleDocument<'a> {
    /// The whole document.
    Whole(Value<'a>),
    /// These members of the body, with id and revision.
    Public(Value<'a>),
}

/// Returns the part of a document of `_users` that a reader may see. `body` has no special members. Administrators of
/// the server and of the database and the document's owner see all of it, others the public members.
///
/// # Errors
/// 404 without any public member, as for a missing document; 403 for a design document.
pub fn read<'a>(
    id: &str,
    body: Value<'a>,
    reader: &Actor<'_>,
    public: &PublicFields,
) -> Result<VisibleDocument<'a>, AuthError> {
    if id.starts_with("_design/") {
        may_see_designs(reader)?;
        return Ok(VisibleDocument::Whole(body));
    }
    if reader.is_admin || reader.owns(id) {
        return Ok(VisibleDocument::Whole(body));
    }
    let members: Vec<(Cow<'_, str>, Value<'_>)> = match body {
        Value::Object(members) => members.into_iter().filter(|(name, _)| public.0.contains(&**name)).collect(),
        _ => Vec::new(),
    };
    if members.is_empty() {
        return Err(AuthError::not_found());
    }
    Ok(VisibleDocument::Public(Value::Object(members)))
}

/// Checks whether a reader may see the design documents of `_users`.
///
/// # Errors
/// CouchDB's 403, also for an anonymous reader.
pub fn may_see_designs(reader: &Actor<'_>) -> Result<(), AuthError> {
    if reader.is_admin {
        return Ok(());
    }
    Err(AuthError::forbidden("Only administrators can view design docs in the users database."))
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse, to_string};

    use super::*;
    use crate::error::AuthErrorKind;

    const BODY: &str = r#"{"name":"bob","roles":["r"],"email":"b@x","nick":"B","derived_key":"k"}"#;

    fn seen(id: &str, name: Option<&str>, is_admin: bool, public: &str) -> Result<String, AuthError> {
        let reader = Actor { name, is_server_admin: false, is_admin };
        let body = parse(BODY.as_bytes(), &Limits::default()).unwrap();
        let (body, is_whole) = match read(id, body, &reader, &PublicFields::parse(public))? {
            VisibleDocument::Whole(body) => (body, true),
            VisibleDocument::Public(body) => (body, false),
        };
        let text = to_string(&body);
        assert_eq!(is_whole, text == BODY);
        Ok(text)
    }

    #[test]
    fn administrators_and_owners_see_all() {
        let id = "org.couchdb.user:bob";
        for (name, is_admin) in [(Some("bob"), false), (Some("anna"), true), (None, true)] {
            assert_eq!(seen(id, name, is_admin, "").unwrap(), BODY);
        }
    }

    #[test]
    fn others_see_what_is_public() {
        let id = "org.couchdb.user:bob";
        for name in [None, Some("anna")] {
            for none in ["", " , ", "phone", "Email"] {
                let refused = seen(id, name, false, none).unwrap_err();
                assert_eq!((refused.kind, &*refused.reason), (AuthErrorKind::NotFound, "missing"), "{none}");
            }
            assert_eq!(seen(id, name, false, "nick , email,phone").unwrap(), r#"{"email":"b@x","nick":"B"}"#);
        }
        assert!(seen("other", Some("bob"), false, "").is_err());
    }

    #[test]
    fn design_documents_are_for_administrators() {
        let id = "_design/_auth";
        assert_eq!(seen(id, None, true, "").unwrap(), BODY);
        for name in [None, Some("_auth")] {
            let refused = seen(id, name, false, "nick").unwrap_err();
            assert_eq!(refused.kind, AuthErrorKind::Forbidden);
            assert_eq!(refused.reason, "Only administrators can view design docs in the users database.");
        }
    }
}
