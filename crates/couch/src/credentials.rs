//! Headers that functions of design documents neither see nor set: credentials, and headers that identify the client.
//!
//! A header is recognised by the words in its name, because the settings name the proxy's headers and other reverse
//! proxies send token headers of their own.

use hyper::header::{self, HeaderName};

/// Words in header names, between hyphens or underscores, that mark a credential or a proof of identity. They also do
/// so at the end of a word, as in `X-AccessToken`.
const WORDS: [&str; 39] = [
    "2fa",
    "apikey",
    "assertion",
    "auth",
    "authenticate",
    "authenticated",
    "authentication",
    "authorisation",
    "authorise",
    "authorised",
    "authorization",
    "authorize",
    "authorized",
    "bearer",
    "cert",
    "certificate",
    "cookie",
    "cookie2",
    "credential",
    "credentials",
    "csrf",
    "dpop",
    "jwt",
    "oidc",
    "macaroon",
    "otp",
    "passcode",
    "passphrase",
    "passwd",
    "password",
    "principal",
    "pwd",
    "saml",
    "secret",
    "session",
    "sid",
    "token",
    "tokens",
    "xsrf",
];

/// The beginning of a word that marks a credential, as in `X-SessionId`.
const BEGINNING: &str = "session";

/// Words before `key` in the names of keys that are no credentials. Every other `...-Key` is one.
const PUBLIC_KEYS: [&str; 6] = ["cache", "idempotency", "partition", "routing", "surrogate", "websocket"];

/// A header that browsers let pages set for a WebSocket, and that clients misuse for tokens.
const WEBSOCKET_PROTOCOL: &str = "sec-websocket-protocol";

/// Returns whether a header carries a credential or a proxy's assertion of the user. `of_proxy`: the names of the
/// proxy's headers, from the settings.
pub(crate) fn is_credential(name: &HeaderName, of_proxy: &[String]) -> bool {
    let name = name.as_str();
    if name == WEBSOCKET_PROTOCOL || of_proxy.iter().any(|of_proxy| of_proxy == name) {
        return true;
    }
    let mut before = "";
    name.split(['-', '_']).any(|word| {
        let before = std::mem::replace(&mut before, word);
        let is_key = word == "key" && !before.is_empty() && !PUBLIC_KEYS.contains(&before);
        is_key || WORDS.iter().any(|known| word.ends_with(known)) || word.starts_with(BEGINNING)
    })
}

/// Returns whether a header identifies the client or its address.
pub(crate) fn identifies_client(name: &HeaderName, of_proxy: &[String]) -> bool {
    let is_place = [header::HOST, header::ORIGIN, header::REFERER, header::FORWARDED].contains(name);
    let text = name.as_str();
    is_place
        || text == "x-real-ip"
        || text.starts_with("x-forwarded-")
        || text.starts_with("sec-fetch-")
        || is_credential(name, of_proxy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_hidden(name: &str, of_proxy: &[&str]) -> bool {
        let of_proxy: Vec<String> = of_proxy.iter().map(|&name| name.to_owned()).collect();
        is_credential(&HeaderName::from_bytes(name.as_bytes()).unwrap(), &of_proxy)
    }

    #[test]
    fn credentials_are_known_by_what_they_mean() {
        for name in [
            "Authorization",
            "Proxy-Authorization",
            "Cookie",
            "X-Auth-CouchDB-UserName",
            "X-Auth-CouchDB-Roles",
            "X-Auth-CouchDB-Token",
            "X-Forwarded-Access-Token",
            "Cf-Access-Jwt-Assertion",
            "X-Api-Key",
            "x_api_key",
            "X-CSRF-Token",
            "X-Original-Authorization",
            "Authorisation",
            "X-Authorised-By",
            "X-Client-Certificate",
            "X-Passphrase",
            "XAuthorization",
            "X-Amzn-Oidc-Accesstoken",
            "X-Amzn-Oidc-Data",
            "X-AuthToken",
            "X-IdToken",
            "X-Csrftoken",
            "X-Oauth",
            "X-Saml",
            "X-SessionId",
            "X-Sid",
            "X-MS-CLIENT-PRINCIPAL",
            "X-ARR-ClientCert",
            "Ocp-Apim-Subscription-Key",
            "X-Functions-Key",
            "X-TOTP",
            "X-2FA",
            "X-PWD",
            "DPoP",
            "Sec-WebSocket-Protocol",
        ] {
            assert!(is_hidden(name, &[]), "{name}");
        }
        for name in [
            "Accept",
            "Content-Type",
            "X-Author",
            "Idempotency-Key",
            "X-Keys",
            "X-User",
            "Tokenizer",
            "Host",
            "Sec-WebSocket-Key",
        ] {
            assert!(!is_hidden(name, &["x-remote-user"]), "{name}");
        }
        assert!(is_hidden("X-Remote-User", &["x-remote-user"]));
    }

    #[test]
    fn functions_do_not_say_who_asks() {
        for name in
            ["host", "origin", "referer", "forwarded", "x-forwarded-for", "x-real-ip", "sec-fetch-site", "cookie"]
        {
            assert!(identifies_client(&HeaderName::from_static(name), &[]), "{name}");
        }
        assert!(!identifies_client(&HeaderName::from_static("accept"), &[]));
    }
}
