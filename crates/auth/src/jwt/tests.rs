use flatbed_flatten::json::parse;
use proptest::prelude::*;

use super::*;
use crate::error::AuthErrorKind;

/// Tokens and public keys, made with OpenSSL and Python's `cryptography`. The private keys were deleted.
const VECTORS: &str = include_str!("vectors.json");

const NOW: u64 = 1_900_000_000;

fn secret() -> Vec<u8> {
    (0..64).collect()
}

fn vector(kind: &str, name: &str) -> String {
    let vectors = parse(VECTORS.as_bytes(), &Limits::default()).unwrap();
    vectors.get(kind).and_then(|kind| kind.get(name)).and_then(Value::as_str).unwrap().to_owned()
}

fn jwks() -> String {
    let vectors = parse(VECTORS.as_bytes(), &Limits::default()).unwrap();
    vectors.get("jwks").and_then(Value::as_str).unwrap().to_owned()
}

fn bound() -> Arc<Binding> {
    Arc::new(Binding {
        issuer: Some("https://issuer.example".into()),
        audience: Some("flatbed".into()),
        ..Binding::default()
    })
}

fn key(kid: Option<&str>, algorithm: Algorithm, material: KeyMaterial) -> Result<Key, InvalidKey> {
    Key::new(kid.map(str::to_owned), algorithm, material, bound())
}

fn set(keys: Vec<Key>) -> KeySet {
    KeySet::new(keys, 1).unwrap()
}

fn material(algorithm: Algorithm) -> KeyMaterial {
    let pem = match algorithm.name() {
        "RS256" | "RS384" | "RS512" => "rsa",
        "ES256" => "p256",
        "ES384" => "p384",
        "EdDSA" => "ed",
        _ => return KeyMaterial::Secret(secret()),
    };
    KeyMaterial::pem(&vector("pem", pem)).unwrap()
}

fn kid(algorithm: Algorithm) -> String {
    algorithm.name()[..2].to_lowercase()
}

fn all_keys() -> KeySet {
    set(Algorithm::ALL.iter().map(|found| key(Some(&kid(*found)), *found, material(*found)).unwrap()).collect())
}

fn refusal(token: &str, keys: &KeySet) -> String {
    let refused = verify(token, keys, NOW, 0).unwrap_err();
    assert_eq!(refused.kind, AuthErrorKind::BadRequest, "{refused}");
    refused.reason.into_owned()
}

fn hs256(header: &str, claims: &str) -> String {
    let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &secret());
    let tag = ring::hmac::sign(&key, signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag.as_ref()))
}

/// Keys of the secret for HS256 that require no claims.
fn lax(kids: &[Option<&str>]) -> KeySet {
    let binding = Arc::new(Binding { required: Vec::new(), ..Binding::default() });
    let keys = kids.iter().map(|kid| {
        Key::new(kid.map(str::to_owned), Algorithm::Hs256, KeyMaterial::Secret(secret()), binding.clone()).unwrap()
    });
    set(keys.collect())
}

#[test]
fn each_algorithm_is_verified() {
    let keys = all_keys();
    for algorithm in Algorithm::ALL {
        let token = vector("tokens", algorithm.name());
        let verified = verify(&token, &keys, NOW, 5).unwrap();
        assert_eq!(verified.principal.name.as_deref(), Some("anna"), "{algorithm:?}");
        assert_eq!((&*verified.principal.roles, verified.principal.is_admin), (&["r1".to_owned()][..], false));
        assert_eq!(verified.ends, Some(2_000_000_005));
        assert_eq!(verify(&token, &keys, 2_000_000_000, 0).unwrap_err().reason, "exp not in future");
        // A change of any bit makes the signature wrong.
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let mut other = URL_SAFE_NO_PAD.decode(signature).unwrap();
        let reason = if algorithm.is_hmac() { "Bad HMAC" } else { "Bad signature" };
        for at in [0, other.len() / 2, other.len() - 1] {
            other[at] ^= 1;
            assert_eq!(refusal(&format!("{signed}.{}", URL_SAFE_NO_PAD.encode(&other)), &keys), reason);
            other[at] ^= 1;
        }
        assert_eq!(refusal(&format!("{signed}."), &keys), reason);
        other.pop();
        assert_eq!(refusal(&format!("{signed}.{}", URL_SAFE_NO_PAD.encode(&other)), &keys), reason);
    }
    assert_eq!(refusal(&vector("tokens", "ES512"), &keys), "Invalid alg header parameter");
}

#[test]
fn claims_are_handed_out_once_they_are_signed() {
    let keys = lax(&[None]);
    let claims = r#"{"aud":["any"],"exp":1}"#;
    let found =
        |token: &str, typ: &str| signed_claims(token, &keys, typ).map_err(|refused| refused.reason.into_owned());
    let token = hs256(r#"{"alg":"HS256","typ":"AT+jwt"}"#, claims);
    assert_eq!(found(&token, "at+jwt"), Ok(claims.as_bytes().to_vec()));
    for (token, reason) in [
        (hs256(r#"{"alg":"HS256","typ":"JWT"}"#, claims), "Invalid typ header parameter"),
        (hs256(r#"{"alg":"HS256"}"#, claims), "Invalid typ header parameter"),
        (hs256(r#"{"alg":"HS256","typ":"at+jwt","kid":"x"}"#, claims), "Unknown kid"),
        (hs256(r#"{"alg":"HS256","typ":"at+jwt"}"#, "[]"), "Not an object"),
        (format!("{token}!"), "Malformed token"),
    ] {
        assert_eq!(found(&token, "at+jwt"), Err(reason.to_owned()), "{token}");
    }
    let (signed, _) = token.rsplit_once('.').unwrap();
    assert_eq!(found(&format!("{signed}.AAAA"), "at+jwt"), Err("Bad HMAC".to_owned()));
}

#[test]
fn claims_are_signed() {
    let token = vector("tokens", "EdDSA");
    let parts: Vec<&str> = token.split('.').collect();
    let claims = String::from_utf8(URL_SAFE_NO_PAD.decode(parts[1]).unwrap()).unwrap();
    let other = URL_SAFE_NO_PAD.encode(claims.replace("anna", "root"));
    assert_eq!(refusal(&format!("{}.{other}.{}", parts[0], parts[2]), &all_keys()), "Bad signature");
}

/// A public key is not usable as a secret, and a token's header does not choose how a key is used.
#[test]
fn algorithms_are_the_keys() {
    for (pem, right) in [("rsa", "RS256"), ("p256", "ES256"), ("p384", "ES384"), ("ed", "EdDSA")] {
        let material = KeyMaterial::pem(&vector("pem", pem)).unwrap();
        assert_eq!(material.default_algorithm().name(), right);
        for algorithm in Algorithm::ALL {
            let is_right = algorithm.name() == right || (pem == "rsa" && algorithm.rsa().is_some());
            let found = key(None, algorithm, material.clone()).map(|_| ());
            assert_eq!(found, if is_right { Ok(()) } else { Err(InvalidKey::Algorithm) }, "{pem} {algorithm:?}");
        }
        // A PEM is not valid base64.
        assert_eq!(KeyMaterial::secret(&vector("pem", pem)), Err(InvalidKey::Text));
    }
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| !algorithm.is_hmac()) {
        assert_eq!(key(None, algorithm, KeyMaterial::Secret(secret())), Err(InvalidKey::Algorithm));
    }
    // A key for RS256 does not verify RS384.
    let keys = set(vec![key(Some("rs"), Algorithm::Rs256, material(Algorithm::Rs256)).unwrap()]);
    assert!(verify(&vector("tokens", "RS256"), &keys, NOW, 0).is_ok());
    assert_eq!(refusal(&vector("tokens", "RS384"), &keys), "Unknown kid");
    for alg in ["none", "None", "nOnE", "", "HS257"] {
        for signature in ["", ".", "x"] {
            let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"{alg}"}}"#));
            let token = format!("{header}.{}.{signature}", URL_SAFE_NO_PAD.encode(r#"{"sub":"admin"}"#));
            let expected = if signature == "." { "Malformed token" } else { "Invalid alg header parameter" };
            assert_eq!(refusal(&token, &all_keys()), expected, "{alg}");
        }
    }
}

#[test]
fn headers() {
    let keys = lax(&[None]);
    let with = |header: &str| verify(&hs256(header, r#"{"sub":"a"}"#), &keys, NOW, 0).err().map(|found| found.reason);
    for right in [
        r#"{"alg":"HS256"}"#,
        r#"{"alg":"HS256","typ":"JWT"}"#,
        r#"{"alg":"HS256","typ":"jwt","x":[1]}"#,
        r#"{"alg":"HS256","typ":"at+JWT"}"#,
    ] {
        assert_eq!(with(right), None, "{right}");
    }
    for (header, reason) in [
        ("{}", "Missing alg header parameter"),
        (r#"{"alg":5}"#, "Invalid alg header parameter"),
        (r#"{"alg":"HS256","alg":"HS256"}"#, "Malformed token"),
        (r#"{"alg":"HS256","typ":"JWE"}"#, "Invalid typ header parameter"),
        (r#"{"alg":"HS256","typ":null}"#, "Invalid typ header parameter"),
        (r#"{"alg":"HS256","crit":[]}"#, "Invalid crit header parameter"),
        (r#"{"alg":"HS256","kid":5}"#, "Invalid kid header parameter"),
        (r#"{"alg":"HS256","kid":"x"}"#, "Unknown kid"),
        (r#"{"alg":"HS384"}"#, "Unknown kid"),
        (r#"["HS256"]"#, "Not an object"),
        (r#"{"alg":"HS256""#, "Malformed token"),
        ("", "Malformed token"),
    ] {
        assert_eq!(with(header).as_deref(), Some(reason), "{header}");
    }
    let nested = |depth: usize| format!(r#"{{"alg":"HS256","x":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
    assert_eq!((with(&nested(15)), with(&nested(16)).as_deref()), (None, Some("Malformed token")));
}

#[test]
fn keys_are_found_by_their_id() {
    let token = |kid: &str| hs256(&format!(r#"{{"alg":"HS256"{kid}}}"#), r#"{"sub":"a"}"#);
    let is_right = |kids: &[Option<&str>], kid: &str| verify(&token(kid), &lax(kids), NOW, 0).is_ok();
    assert!(is_right(&[Some("k")], r#","kid":"k""#) && is_right(&[None], "") && is_right(&[Some("_default")], ""));
    assert!(!is_right(&[Some("k")], "") && !is_right(&[None], r#","kid":"k""#) && !is_right(&[], ""));
    // The key that signed decides among those of one id, and its issuer must match.
    let with = |issuer: &str, secret: Vec<u8>| {
        let binding = Binding { issuer: Some(issuer.into()), required: Vec::new(), ..Binding::default() };
        Key::new(None, Algorithm::Hs256, KeyMaterial::Secret(secret), Arc::new(binding)).unwrap()
    };
    let token = |issuer: &str| hs256(r#"{"alg":"HS256"}"#, &format!(r#"{{"sub":"a","iss":"{issuer}"}}"#));
    let keys = set(vec![with("i", vec![0; 32]), with("j", secret()), with("k", secret())]);
    assert!(verify(&token("j"), &keys, NOW, 0).is_ok() && verify(&token("k"), &keys, NOW, 0).is_ok());
    assert_eq!(refusal(&token("i"), &keys), "Invalid iss claim");
    let other = set(vec![with("i", vec![0; 32]), with("i", vec![1; 32])]);
    assert_eq!(refusal(&token("i"), &other), "Bad HMAC");
}

#[test]
fn malformed_tokens() {
    let keys = lax(&[None]);
    let right = hs256(r#"{"alg":"HS256"}"#, r#"{"sub":"a"}"#);
    assert!(verify(&right, &keys, NOW, 0).is_ok());
    for token in ["", "a", "a.b", "..", "a.b.c", &format!("{right}.x"), &format!(".{right}"), &format!("{right}="), " "]
    {
        assert_eq!(refusal(token, &keys), "Malformed token", "{token}");
    }
    for (claims, reason) in
        [("[]", "Not an object"), ("", "Malformed token"), (r#"{"sub":"a","sub":"b"}"#, "Malformed token")]
    {
        assert_eq!(refusal(&hs256(r#"{"alg":"HS256"}"#, claims), &keys), reason, "{claims}");
    }
    let long = |bytes: usize| hs256(r#"{"alg":"HS256"}"#, &format!(r#"{{"sub":"a","x":"{}"}}"#, "x".repeat(bytes)));
    let room = (TOKEN_BYTES_MAX - long(0).len()) / 4 * 3;
    assert!(verify(&long(room), &keys, NOW, 0).is_ok());
    assert!((TOKEN_BYTES_MAX - 3..=TOKEN_BYTES_MAX).contains(&long(room).len()));
    assert_eq!(refusal(&long(room + 3), &keys), "Malformed token");
    assert_eq!(TOKEN_BYTES_MAX, 8_192);
}

#[test]
fn sets_are_bounded() {
    let key = |kid: Option<String>| {
        Key::new(kid, Algorithm::Hs256, KeyMaterial::Secret(secret()), Arc::new(Binding::default())).unwrap()
    };
    let many = |count: usize| KeySet::new((0..count).map(|at| key(Some(at.to_string()))).collect(), 9);
    assert_eq!(many(100).map(|set| (set.generation(), set.is_empty())), Ok((9, false)));
    assert_eq!(many(101), Err(InvalidKey::TooMany));
    assert!(many(0).unwrap().is_empty());
    let same = |count: usize| KeySet::new((0..count).map(|_| key(None)).collect(), 9).err();
    assert_eq!((same(4), same(5)), (None, Some(InvalidKey::SameId)));
}

#[test]
fn a_token_rests_on_the_very_key_that_verified_it() {
    let material = |byte: u8| KeyMaterial::Secret([secret(), vec![byte]].concat());
    let key = |kid: &str, algorithm, byte, binding: Binding| {
        Key::new(Some(kid.to_owned()), algorithm, material(byte), Arc::new(binding)).unwrap()
    };
    let lax = || Binding { required: Vec::new(), ..Binding::default() };
    let own = || key("k", Algorithm::Hs256, 0, lax());
    let others = || {
        [
            key("k", Algorithm::Hs256, 1, lax()),
            key("k", Algorithm::Hs384, 0, lax()),
            key("l", Algorithm::Hs256, 0, lax()),
        ]
    };
    let signed = [r#"{"alg":"HS256","kid":"k"}"#, r#"{"sub":"a"}"#].map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
    let signer = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &[secret(), vec![0]].concat());
    let tag = ring::hmac::sign(&signer, signed.as_bytes());
    let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag.as_ref()));
    let by = |keys: Vec<Key>, skew| verify(&token, &set(keys), NOW, skew).unwrap().by;
    let first = by(vec![own()], 5);
    // Keys are added, removed and put before it; the same key is read again.
    let all = || [others().to_vec(), vec![own()]].concat();
    assert!(set(all()).has(&first, 5) && set(vec![own()]).has(&by(all(), 5), 5));
    assert!(KeySet::new(vec![own()], 99).unwrap().has(&first, 5));
    // The key is removed, or the skew changes.
    assert!(!set(others().to_vec()).has(&first, 5) && !set(Vec::new()).has(&first, 5));
    assert!(!set(all()).has(&first, 4) && !set(all()).has(&by(all(), 0), 5));
    // The binding changes.
    for binding in [
        Binding { issuer: Some("i".into()), ..lax() },
        Binding { audience: Some("a".into()), ..lax() },
        Binding { required: vec!["exp".into()], ..lax() },
        Binding { required_issuer: Some("i".into()), ..lax() },
        Binding { name_prefix: "p/".into(), ..lax() },
        Binding { roles: RolesClaim::path("roles"), ..lax() },
        Binding { trusts_system_roles: true, ..lax() },
    ] {
        assert!(!set(vec![key("k", Algorithm::Hs256, 0, binding)]).has(&first, 5));
    }
    assert!(format!("{first:?}").contains("Secret(...)"), "{first:?}");
}

#[test]
fn keys_have_a_size() {
    for (algorithm, bytes) in [(Algorithm::Hs256, 32), (Algorithm::Hs384, 48), (Algorithm::Hs512, 64)] {
        let with = |bytes| key(None, algorithm, KeyMaterial::Secret(vec![1; bytes])).map(|key| key.algorithm());
        assert_eq!((with(bytes), with(bytes - 1)), (Ok(algorithm), Err(InvalidKey::Size)));
    }
    let small = KeyMaterial::pem(&vector("pem", "rsas")).unwrap();
    assert_eq!(key(None, Algorithm::Rs256, small), Err(InvalidKey::Size));
    let modulus = |first: u8, bytes: usize| {
        let modulus = [vec![first], vec![0xff; bytes - 1]].concat();
        key(None, Algorithm::Rs256, KeyMaterial::Rsa(modulus, vec![3])).is_ok()
    };
    assert!(modulus(0x80, 256) && !modulus(0x7f, 256) && modulus(0xff, 1_024) && !modulus(1, 1_025));
    for (made, algorithm) in [
        (KeyMaterial::P256(vec![4; 64]), Algorithm::Es256),
        (KeyMaterial::P256(vec![3; 65]), Algorithm::Es256),
        (KeyMaterial::P384(vec![4; 65]), Algorithm::Es384),
        (KeyMaterial::Ed25519(vec![4; 33]), Algorithm::EdDsa),
        (KeyMaterial::Rsa(Vec::new(), vec![3]), Algorithm::Rs256),
    ] {
        assert_eq!(key(None, algorithm, made), Err(InvalidKey::Size));
    }
}

#[test]
fn keys_come_from_texts() {
    assert_eq!(KeyMaterial::secret(" AAEC\n"), Ok(KeyMaterial::Secret(vec![0, 1, 2])));
    assert_eq!(KeyMaterial::secret("AAE"), Err(InvalidKey::Text));
    let rsa = KeyMaterial::pem(&vector("pem", "rsa")).unwrap();
    assert_eq!(KeyMaterial::pem(&vector("pem", "rsa1")), Ok(rsa.clone()));
    assert_eq!(KeyMaterial::pem(&vector("pem", "rsa").replace('\n', "\\n")), Ok(rsa));
    assert_eq!(KeyMaterial::pem(&vector("pem", "p521")), Err(InvalidKey::Text));
    assert_eq!(format!("{:?}", KeyMaterial::Secret(vec![1])), "Secret(...)");
}

#[test]
fn jwk_sets() {
    let keys = parse_jwks(jwks().as_bytes(), &bound()).unwrap();
    let found: Vec<_> = keys.iter().map(|key| (key.kid().unwrap(), key.algorithm().name())).collect();
    assert_eq!(found, [("rs", "RS256"), ("es", "ES256"), ("es", "ES384"), ("ed", "EdDSA"), ("hs", "HS512")]);
    let keys = set(keys);
    for alg in ["RS256", "ES256", "ES384", "EdDSA", "HS512"] {
        assert!(verify(&vector("tokens", alg), &keys, NOW, 0).is_ok(), "{alg}");
    }
    assert_eq!(refusal(&vector("tokens", "HS256"), &keys), "Unknown kid");
    let parsed = |text: &str| parse_jwks(text.as_bytes(), &bound()).map(|keys| keys.len());
    assert_eq!(parsed(r#"{"keys":[]}"#), Ok(0));
    let secret = URL_SAFE_NO_PAD.encode([7; 32]);
    let oct = |rest: &str| parsed(&format!(r#"{{"keys":[{{"kty":"oct","k":"{secret}"{rest}}}]}}"#));
    assert_eq!((oct(""), oct(r#","alg":"A256GCM""#), oct(r#","use":"enc""#)), (Ok(1), Ok(0), Ok(0)));
    assert_eq!((oct(r#","alg":"RS256""#), oct(r#","alg":"HS512""#)), (Ok(0), Ok(0)));
    assert_eq!((oct(r#","key_ops":["sign"]"#), oct(r#","key_ops":["sign","verify"]"#)), (Ok(0), Ok(1)));
    for wrong in ["", "[]", "{}", r#"{"keys":{}}"#] {
        assert_eq!(parsed(wrong), Err(InvalidKey::Text), "{wrong}");
    }
    // A broken key leaves the others.
    for wrong in [
        "1",
        "{}",
        r#"{"kty":"oct"}"#,
        r#"{"kty":"oct","k":"!"}"#,
        r#"{"kty":"oct","k":5}"#,
        r#"{"kty":"oct","k":"AAAA"}"#,
        r#"{"kty":"RSA","n":"AAAA","e":"AQAB"}"#,
    ] {
        assert_eq!(parsed(&format!(r#"{{"keys":[{wrong},{{"kty":"oct","k":"{secret}"}}]}}"#)), Ok(1), "{wrong}");
    }
    let many = |count: usize| parsed(&format!(r#"{{"keys":[{}{{"kty":"x"}}]}}"#, r#"{"kty":"x"},"#.repeat(count - 1)));
    assert_eq!((many(100), many(101)), (Ok(0), Err(InvalidKey::TooMany)));
    let padded = |bytes: usize| parsed(&format!("{}{}", r#"{"keys":[]}"#, " ".repeat(bytes - 11)));
    assert_eq!((padded(JWKS_BYTES_MAX), padded(JWKS_BYTES_MAX + 1)), (Ok(0), Err(InvalidKey::Text)));
    assert_eq!(JWKS_BYTES_MAX, 262_144);
    let nested = |depth: usize| parsed(&format!(r#"{{"keys":[],"x":{}{}}}"#, "[".repeat(depth), "]".repeat(depth)));
    assert_eq!((nested(7), nested(8)), (Ok(0), Err(InvalidKey::Text)));
}

#[test]
fn tokens_stand_in_headers() {
    for (header, token) in [
        ("Bearer a.b.c", Some("a.b.c")),
        ("bearer  x ", Some("x")),
        ("BEARER ", Some("")),
        ("Bearer", None),
        ("Basic x", None),
        ("", None),
        ("XBearer x", None),
    ] {
        assert_eq!(token_in(header), token, "{header}");
    }
}

proptest! {
    #[test]
    fn no_token_panics(token in "[A-Za-z0-9_.-]{0,60}") {
        prop_assert!(verify(&token, &all_keys(), NOW, 0).is_err());
    }

    #[test]
    fn nothing_is_right_that_was_changed(at in 0..10_000_usize, by in 1..128u8) {
        let token = hs256(r#"{"alg":"HS256"}"#, r#"{"sub":"a"}"#);
        let mut bytes = token.clone().into_bytes();
        let at = at % bytes.len();
        bytes[at] = (bytes[at] + by) % 128;
        let changed = String::from_utf8(bytes).unwrap();
        prop_assert!(changed == token || verify(&changed, &lax(&[None]), NOW, 0).is_err());
    }
}
