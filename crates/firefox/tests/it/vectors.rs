//! Tokens, signatures, hashes and key ids, against vectors that were made with Mozilla's programs
//! (`tests/syncstorage/vectors.jsonl`).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flatbed_firefox::hawk::{HawkAuthority, Header, SignedRequest, payload_hash};
use flatbed_firefox::{KeyId, Secret, fxa_kid, hashed_ids};
use serde_json::Value;

use crate::support::recorded;

fn text<'v>(vector: &'v Value, name: &str) -> &'v str {
    vector[name].as_str().unwrap_or_else(|| panic!("{name} of {vector}"))
}

/// Splits a URL into host and port, and path with query.
fn split(url: &str) -> (HawkAuthority, String) {
    let uri: hyper::Uri = url.parse().unwrap();
    let default = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    let authority = uri.authority().unwrap();
    let place = HawkAuthority { host: authority.host().to_lowercase(), port: authority.port_u16().unwrap_or(default) };
    (place, uri.path_and_query().unwrap().to_string())
}

fn token(vector: &Value) {
    let secret = Secret::new(text(vector, "secret"));
    let id = secret.id_of(text(vector, "text").as_bytes());
    assert_eq!(id, text(vector, "token"));
    let token = secret.open(&id).unwrap();
    assert_eq!(Some(token.uid), vector["payload"]["uid"].as_u64());
    assert_eq!(Some(token.expires), vector["payload"]["expires"].as_f64());
    assert_eq!(secret.key_of(&id, &token.salt), text(vector, "key"));
    assert_eq!(Secret::new("another").open(&id), None);
}

fn hawk(vector: &Value) {
    let header = Header::parse(text(vector, "authorization")).unwrap();
    let expected = Header {
        id: text(vector, "id"),
        ts: &vector["ts"].to_string(),
        nonce: text(vector, "nonce"),
        hash: text(vector, "hash"),
        ext: text(vector, "ext"),
        mac: text(vector, "mac"),
    };
    assert_eq!(header, expected);
    let (place, target) = split(text(vector, "url"));
    let signed = SignedRequest { method: text(vector, "method"), target: &target, place: &place };
    assert_eq!(header.normalized(&signed), text(vector, "normalized"));
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, text(vector, "key").as_bytes());
    ring::hmac::verify(&key, header.normalized(&signed).as_bytes(), &STANDARD.decode(header.mac).unwrap()).unwrap();
}

fn check(vector: &Value) {
    let secret = Secret::new(text(vector, "secret"));
    let (place, target) = split(text(vector, "url"));
    let signed = SignedRequest { method: text(vector, "method"), target: &target, place: &place };
    let of_path: u64 = target.split('/').nth(2).unwrap().parse().unwrap();
    let may_be_expired = target.ends_with("/info/collections");
    let header = Header::parse(text(vector, "authorization")).unwrap();
    let status = match header.check(&secret, vector["now"].as_f64().unwrap(), &signed, may_be_expired) {
        Ok(token) if token.uid == of_path => 200,
        Ok(_) => 400,
        Err(_) => 401,
    };
    assert_eq!(Some(status), vector["status"].as_u64(), "{}", text(vector, "why"));
}

fn key_id(vector: &Value) {
    let found = KeyId::parse(text(vector, "value"));
    if vector.get("error").is_some() {
        assert_eq!(found, None);
        return;
    }
    let found = found.unwrap();
    assert_eq!(Some(found.keys_changed_at), vector["keys_changed_at"].as_u64());
    assert_eq!(found.client_state_hex(), text(vector, "client_state"));
}

fn kid(vector: &Value) {
    let bytes = |hex: &str| {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect::<Vec<_>>()
    };
    let state = bytes(text(vector, "client_state"));
    let kid = fxa_kid(vector["keys_changed_at"].as_u64(), vector["generation"].as_u64().unwrap(), &state);
    assert_eq!(kid, text(vector, "fxa_kid"));
}

#[test]
fn all_vectors() {
    let mut count = 0;
    for vector in recorded("vectors.jsonl") {
        match text(&vector, "kind") {
            "token" => token(&vector),
            "hawk" => hawk(&vector),
            "check" => check(&vector),
            "payload-hash" => {
                let hash = payload_hash(text(&vector, "content_type"), text(&vector, "body").as_bytes());
                assert_eq!(STANDARD.encode(hash), text(&vector, "hash"));
            }
            "x-keyid" => key_id(&vector),
            "fxa_kid" => kid(&vector),
            "hashed-ids" => {
                let secret = text(&vector, "metrics_secret").as_bytes();
                let (account, device) = hashed_ids(secret, text(&vector, "fxa_uid"));
                assert_eq!(account, text(&vector, "hashed_fxa_uid"));
                assert_eq!(device, text(&vector, "hashed_device_id"));
            }
            kind => panic!("{kind}"),
        }
        count += 1;
    }
    assert_eq!(count, 48);
}

#[test]
fn headers_that_are_none() {
    let whole = r#"Hawk id="a", ts="1", nonce="b", mac="c""#;
    assert!(Header::parse(whole).is_some());
    assert!(Header::parse(r#"hawk id="a",ts="1",nonce="b",mac="c",ext="d",hash="e""#).is_some());
    for text in [
        "",
        "Hawk",
        "Hawk ",
        "Hawk nonsense",
        "Basic dTpw",
        r#"Hawk id="a", ts="1", nonce="b""#,
        r#"Hawk id="a", ts="1", nonce="b", mac="""#,
        r#"Hawk id="a", ts="1", nonce="b", mac="c"#,
        r#"Hawk id="a", id="a", ts="1", nonce="b", mac="c""#,
        r#"Hawk id="a", ts="1", nonce="b", mac="c", app="x""#,
        r#"Hawk id="a" ts="1" nonce="b" mac="c""#,
        r#"Hawk id="a", ts="1", nonce="\b", mac="c""#,
        r#"Hawk id="a", ts="1", nonce="b", mac="c", x"#,
    ] {
        assert_eq!(Header::parse(text), None, "{text}");
    }
}
