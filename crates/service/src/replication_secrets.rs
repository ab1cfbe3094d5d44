//! Credentials in documents of `_replicator`, and how they are hidden from readers who do not own the document.
//!
//! Credentials stand in addresses, in members that this server reads, and in members that another server or an
//! application reads, at any depth. Members are hidden by the words in their names, texts that hold an address are
//! reduced to the address without user, query and fragment.

use std::borrow::Cow;

use flatbed_layer::json::Value;

use crate::shown_address::shown_address;

/// The members that name an endpoint: a string, or an object of which only the address is shown.
const ENDPOINTS: [&str; 2] = ["source", "target"];

/// Parts of names, in lower case and without other characters than letters and digits, that mark credentials. A proxy
/// may be an address with a password.
const PARTS: [&str; 27] = [
    "accesskey",
    "apikey",
    "assertion",
    "bearer",
    "clientkey",
    "cookie",
    "credential",
    "csrf",
    "dpop",
    "encryptionkey",
    "header",
    "jwt",
    "macaroon",
    "oidc",
    "passcode",
    "passphrase",
    "passwd",
    "password",
    "privatekey",
    "proxy",
    "pwd",
    "saml",
    "secret",
    "session",
    "signature",
    "sharedkey",
    "token",
];

/// Words of names that mark credentials, in lower case. As parts of other words they do not.
const WORDS: [&str; 6] = ["otp", "pass", "pin", "pw", "sid", "sig"];

/// Removes everything from the members of another user's document that may be a credential.
pub(crate) fn hide(members: &mut Vec<(Cow<'_, str>, Value<'_>)>) {
    hide_within(members);
    for (name, value) in members {
        if ENDPOINTS.contains(&name.as_ref()) {
            *value = endpoint(std::mem::replace(value, Value::Null));
        }
    }
}

/// The depth of the members is bounded by the parser.
fn hide_within(members: &mut Vec<(Cow<'_, str>, Value<'_>)>) {
    members.retain(|(name, _)| !is_credential(name));
    for (_, value) in members {
        hide_in_value(value);
    }
}

fn hide_in_value(value: &mut Value<'_>) {
    match value {
        Value::Object(members) => hide_within(members),
        Value::Array(elements) => elements.iter_mut().for_each(hide_in_value),
        Value::String(text) if text.contains("://") && text.contains(['@', '?', '#']) => {
            *value = Value::String(shown_address(text).into());
        }
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns whether a member holds a credential, by its name.
fn is_credential(name: &str) -> bool {
    let letters: String =
        name.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect();
    // An author is no proof of identity; an authorization is one, in both spellings.
    let is_proof = ["authoriz", "authoris"].iter().any(|proof| letters.contains(proof))
        || letters.replace("author", "").contains("auth");
    is_proof || PARTS.iter().any(|part| letters.contains(part)) || words(name).any(|word| WORDS.contains(&&*word))
}

/// Splits a name at characters that are no letters or digits, and before capital letters inside: `userPass`.
fn words(name: &str) -> impl Iterator<Item = String> {
    let mut words = vec![String::new()];
    let mut was_small = false;
    for letter in name.chars() {
        if !letter.is_ascii_alphanumeric() || was_small && letter.is_ascii_uppercase() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| letter.is_ascii_alphanumeric()) {
            word.push(letter.to_ascii_lowercase());
        }
        was_small = letter.is_ascii_lowercase();
    }
    words.into_iter()
}

/// Reduces an endpoint to its address. An unreadable endpoint is hidden.
fn endpoint(endpoint: Value<'_>) -> Value<'_> {
    match endpoint {
        Value::String(text) => Value::String(shown_address(&text).into()),
        Value::Object(members) => {
            let url = members.into_iter().find(|(name, _)| name == "url");
            Value::Object(url.map(|(name, url)| (name, self::endpoint(url))).into_iter().collect())
        }
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use flatbed_layer::json::{self, parse};

    use super::*;

    #[test]
    fn members_are_hidden_by_what_they_mean() {
        for name in [
            "headers",
            "Headers",
            "auth",
            "oauth",
            "basic_auth",
            "authorization",
            "Proxy-Authorization",
            "cookie",
            "proxy",
            "source_proxy",
            "target_proxy",
            "password",
            "apiKey",
            "api_key",
            "access-token",
            "clientSecret",
            "sessionId",
            "authorisation",
            "Proxy-Authorisation",
            "authorised_by",
            "assertion",
            "pass",
            "userPass",
            "user_pass",
            "proxy.pw",
            "passcode",
            "X-OTP",
            "sig",
            "shared-key",
        ] {
            assert!(is_credential(name), "{name}");
        }
        for name in [
            "_id",
            "_replication_id",
            "_replication_state_reason",
            "author",
            "authority",
            "bypass",
            "compass",
            "continuous",
            "create_target",
            "doc_ids",
            "filter",
            "owner",
            "owner_account",
            "passed",
            "query_params",
            "shipping",
            "selector",
            "since_seq",
            "use_checkpoints",
            "user_ctx",
        ] {
            assert!(!is_credential(name), "{name}");
        }
    }

    #[test]
    fn credentials_are_hidden_at_any_depth() {
        let text = br#"{"headers":{"a":"s3cret"},"auth":"s3cret","source":{"url":"http://h/db?s3cret","x":"s3cret"},"target":["s3cret"],"query_params":{"a":"b","apiKey":"s3cret","of":["http://anna:s3cret@h/x"]},"comment":"c?@","n":1e3}"#;
        let Ok(Value::Object(mut members)) = parse(text, &json::Limits::default()) else { panic!("no object") };
        hide(&mut members);
        assert_eq!(
            json::to_string(&Value::Object(members)),
            r#"{"source":{"url":"http://h/db"},"target":null,"query_params":{"a":"b","of":["http://h/x"]},"comment":"c?@","n":1e3}"#
        );
    }
}
