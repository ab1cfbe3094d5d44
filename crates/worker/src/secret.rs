//! References to secrets, and redaction.
//!
//! A document has a reference in place of a secret, `env:NAME` or `file:NAME`. The right to write jobs makes an
//! administrator of the server, but not of its machine. A variable must therefore begin with [`ENV_PREFIX`], and a file
//! lies in the one configured directory. No other data of the machine can be sent as a password.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};

/// The prefix of environment variables that hold the worker's secrets.
pub const ENV_PREFIX: &str = "FLATBED_WORKER_";

/// The longest secret, in bytes.
pub const SECRET_BYTES_MAX: usize = 64 << 10;

const NAME_BYTES_MAX: usize = 200;

/// The replacement for a redacted secret.
pub const HIDDEN: &str = "***";

/// A reference to a secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Deserialize)]
#[serde(try_from = "String")]
pub enum SecretRef {
    /// In an environment variable, named in full.
    Env(String),
    /// In a file of the secrets directory.
    File(String),
}

/// The reason why a secret is unavailable. Messages contain no part of a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// The value is not a reference, and may be a secret itself.
    #[error("a secret must be a reference, env:FLATBED_WORKER_... or file:NAME")]
    NoReference,
    /// A variable without the worker's prefix.
    #[error("the name of the variable must begin with FLATBED_WORKER_, and have letters, digits and underscores")]
    Variable,
    /// A file name with a directory in it, or a hidden file.
    #[error(
        "the name of the file must have letters, digits, dots, dashes and underscores, and begin with none of the last three"
    )]
    File,
    /// The secret does not exist or cannot be read.
    #[error("{0} cannot be read")]
    Missing(SecretRef),
    /// The secret is longer than 64 kB, empty, or not UTF-8.
    #[error("{0} is empty, longer than 64 kB, or not UTF-8")]
    Unusable(SecretRef),
}

impl FromStr for SecretRef {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<SecretRef, SecretError> {
        let is_plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if let Some(name) = text.strip_prefix("env:") {
            let rest = name.strip_prefix(ENV_PREFIX).filter(|rest| !rest.is_empty() && name.len() <= NAME_BYTES_MAX);
            return rest
                .filter(|rest| is_plain(rest))
                .map(|_| SecretRef::Env(name.to_owned()))
                .ok_or(SecretError::Variable);
        }
        let name = text.strip_prefix("file:").ok_or(SecretError::NoReference)?;
        let is_name = name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.len() <= NAME_BYTES_MAX
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'));
        if is_name { Ok(SecretRef::File(name.to_owned())) } else { Err(SecretError::File) }
    }
}

impl TryFrom<String> for SecretRef {
    type Error = SecretError;

    fn try_from(text: String) -> Result<SecretRef, SecretError> {
        text.parse()
    }
}

impl fmt::Display for SecretRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretRef::Env(name) => write!(f, "env:{name}"),
            SecretRef::File(name) => write!(f, "file:{name}"),
        }
    }
}

/// A secret, displayed as `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Creates a secret from raw bytes. Trailing white space, such as a file's line end, is removed.
    ///
    /// # Errors
    /// [`SecretError::Unusable`].
    pub fn of(reference: &SecretRef, bytes: &[u8]) -> Result<Secret, SecretError> {
        let unusable = || SecretError::Unusable(reference.clone());
        if bytes.len() > SECRET_BYTES_MAX {
            return Err(unusable());
        }
        let text = std::str::from_utf8(bytes).map_err(|_| unusable())?.trim_end();
        if text.is_empty() { Err(unusable()) } else { Ok(Secret(text.to_owned())) }
    }

    /// Returns the secret itself, to be sent.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

/// Removes secrets from texts that are stored or shown: messages of targets, URLs, headers.
#[derive(Clone, Default)]
pub struct Redactor {
    /// The secrets, longest first, so that replacing a short secret leaves no part of a longer one.
    hidden: Vec<String>,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redactor({} texts)", self.hidden.len())
    }
}

/// Headers whose values are secret, in lower case.
const SECRET_HEADERS: &[&str] = &["authorization", "proxy-authorization", "cookie", "set-cookie"];

/// Words that mark a name as secret.
const SECRET_WORDS: &[&str] =
    &["auth", "token", "secret", "passw", "api-key", "apikey", "api_key", "session", "signature", "credential"];

/// Returns whether a header, member or parameter of this name may hold a secret.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_HEADERS.contains(&name.as_str()) || SECRET_WORDS.iter().any(|word| name.contains(word))
}

impl Redactor {
    /// Creates a redactor of these secrets, also as they appear in headers, URLs and JSON. `pairs` are names with
    /// passwords that are sent together.
    pub fn new<'s>(
        secrets: impl IntoIterator<Item = &'s Secret>,
        pairs: impl IntoIterator<Item = (&'s str, &'s Secret)>,
    ) -> Redactor {
        let mut hidden = Vec::new();
        let mut base64 = |text: &str| {
            for engine in [&STANDARD, &STANDARD_NO_PAD, &URL_SAFE, &URL_SAFE_NO_PAD] {
                hidden.push(engine.encode(text));
            }
        };
        let mut plain = Vec::new();
        for secret in secrets {
            plain.push(secret.expose().to_owned());
            base64(secret.expose());
        }
        for (name, secret) in pairs {
            plain.push(secret.expose().to_owned());
            base64(&format!("{name}:{}", secret.expose()));
        }
        for text in plain {
            hidden.push(percent_encoded(&text));
            hidden.push(percent_encoded(&text).to_ascii_lowercase());
            let json = serde_json::Value::String(text.clone()).to_string();
            hidden.push(json.trim_matches('"').to_owned());
            hidden.push(text);
        }
        hidden.retain(|text| !text.is_empty());
        hidden.sort_by(|left, right| right.len().cmp(&left.len()).then_with(|| left.cmp(right)));
        hidden.dedup();
        Redactor { hidden }
    }

    /// Returns the redacted text, cut to `characters_max`.
    pub fn text(&self, text: &str, characters_max: usize) -> String {
        let mut shown = text.to_owned();
        for hidden in &self.hidden {
            if shown.contains(hidden.as_str()) {
                shown = shown.replace(hidden.as_str(), HIDDEN);
            }
        }
        // Redact before cutting: a partial secret would not be recognized.
        shown.chars().take(characters_max).collect()
    }

    /// Returns a URL without user, password, fragment and the values of parameters that may be secret.
    pub fn url(&self, url: &str) -> String {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let (place, query) = match rest.split_once('?') {
            Some((place, query)) => (place, Some(query)),
            None => (rest, None),
        };
        let place = place.split('#').next().unwrap_or_default();
        let (authority, path) = place.find('/').and_then(|at| place.split_at_checked(at)).unwrap_or((place, ""));
        let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let mut shown = if scheme.is_empty() { String::new() } else { format!("{scheme}://") };
        shown.push_str(authority);
        shown.push_str(path);
        for (at, parameter) in
            query.into_iter().flat_map(|query| query.split('#').next()).flat_map(|query| query.split('&')).enumerate()
        {
            shown.push(if at == 0 { '?' } else { '&' });
            match parameter.split_once('=') {
                Some((name, _)) if is_secret_name(name) => {
                    shown.push_str(name);
                    shown.push('=');
                    shown.push_str(HIDDEN);
                }
                _ => shown.push_str(parameter),
            }
        }
        self.text(&shown, 2_000)
    }

    /// Returns a header's value, redacted if its name is secret.
    pub fn header(&self, name: &str, value: &str) -> String {
        if is_secret_name(name) { HIDDEN.to_owned() } else { self.text(value, 500) }
    }
}

fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secret(text: &str) -> Secret {
        Secret::of(&SecretRef::File("x".to_owned()), text.as_bytes()).unwrap()
    }

    #[test]
    fn references_stay_within_their_places() {
        for text in ["env:FLATBED_WORKER_PG", "file:pg.password", "file:a"] {
            assert_eq!(text.parse::<SecretRef>().unwrap().to_string(), text);
        }
        for text in ["env:HOME", "env:FLATBED_WORKER_", "env:FLATBED_WORKER_A-B", "env:", "env:AWS_SECRET_ACCESS_KEY"] {
            assert_eq!(text.parse::<SecretRef>(), Err(SecretError::Variable), "{text}");
        }
        for text in [
            "file:",
            "file:/etc/shadow",
            "file:../x",
            "file:..",
            "file:.x",
            "file:a/b",
            "file:a\\b",
            "file:a\0",
            "file:-x",
        ] {
            assert_eq!(text.parse::<SecretRef>(), Err(SecretError::File), "{text}");
        }
        for text in ["", "hunter2", "ENV:FLATBED_WORKER_A"] {
            assert_eq!(text.parse::<SecretRef>(), Err(SecretError::NoReference), "{text}");
        }
    }

    #[test]
    fn secrets_are_read_and_not_shown() {
        let reference = SecretRef::File("x".to_owned());
        assert_eq!(secret("hunter2\r\n").expose(), "hunter2");
        assert_eq!(format!("{:?}", secret("hunter2")), "***");
        for bytes in [&b""[..], b" \n", b"\xff", &[b'a'; SECRET_BYTES_MAX + 1]] {
            assert_eq!(Secret::of(&reference, bytes), Err(SecretError::Unusable(reference.clone())));
        }
    }

    #[test]
    fn urls_and_headers() {
        let redactor = Redactor::new([&secret("p@ss/word")], []);
        for (url, shown) in [
            ("https://anna:p@ss/word@host/x", "https://anna:p@ss/word@host/x".replace("p@ss/word", HIDDEN)),
            (
                "https://anna:other@host:99/x?a=1&access_token=7&b#f",
                "https://host:99/x?a=1&access_token=***&b".to_owned(),
            ),
            ("http://host/?q=p%40ss%2Fword", "http://host/?q=***".to_owned()),
            ("http://host#f", "http://host".to_owned()),
            ("no url", "no url".to_owned()),
        ] {
            let found = redactor.url(url);
            assert!(!found.contains("p@ss/word") && !found.contains("other"), "{found}");
            if !url.contains("p@ss/word@") {
                assert_eq!(found, shown);
            }
        }
        assert_eq!(redactor.header("X-Api-Key", "7"), HIDDEN);
        assert_eq!(redactor.header("content-type", "a p@ss/word"), "a ***");
        assert_eq!(redactor.text("xp@ss/word", 3), "x**");
    }

    proptest! {
        #[test]
        fn no_form_of_a_secret_is_left(text in "[ -~]{4,20}", name in "[a-z]{1,5}", before in "[ -~]{0,9}", form in 0_usize..6) {
            prop_assume!(!text.trim_end().is_empty() && !text.trim().starts_with("***"));
            let secret = secret(&text);
            let plain = secret.expose().to_owned();
            prop_assume!(!HIDDEN.contains(&plain));
            let redactor = Redactor::new([&secret], [(name.as_str(), &secret)]);
            let shown = match form {
                0 => plain.clone(),
                1 => percent_encoded(&plain),
                2 => STANDARD.encode(&plain),
                3 => STANDARD.encode(format!("{name}:{plain}")),
                4 => serde_json::to_string(&plain).unwrap(),
                _ => URL_SAFE_NO_PAD.encode(format!("{name}:{plain}")),
            };
            let redacted = redactor.text(&format!("{before}{shown}"), 1_000);
            prop_assert!(!redacted.contains(shown.trim_matches('"')), "{}", redacted);
        }
    }
}
