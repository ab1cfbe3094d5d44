//! JWK sets (RFC 7517).

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use flatbed_flatten::json::{Limits, Value, parse_unique};

use super::algorithm::Algorithm;
use super::claims::Binding;
use super::key::{InvalidKey, KEYS_MAX, Key, KeyMaterial};

/// The longest JWK set, in bytes.
pub const JWKS_BYTES_MAX: usize = 262_144;

/// Parses a JWK set with one binding for all its keys. As RFC 7517 says, it ignores keys that are not for signatures,
/// of an unknown type or algorithm, too short, or incomplete. The algorithm of a key without `alg` follows from its
/// curve, or is RS256 or HS256.
///
/// # Errors
/// [`InvalidKey::Text`] for anything but a set; [`InvalidKey::TooMany`].
pub fn parse_jwks(text: &[u8], binding: &Arc<Binding>) -> Result<Vec<Key>, InvalidKey> {
    if text.len() > JWKS_BYTES_MAX {
        return Err(InvalidKey::Text);
    }
    let set = parse_unique(text, &Limits { depth_max: 8 }).map_err(|_| InvalidKey::Text)?;
    let Some(Value::Array(keys)) = set.get("keys") else { return Err(InvalidKey::Text) };
    if keys.len() > KEYS_MAX {
        return Err(InvalidKey::TooMany);
    }
    let mut found = Vec::new();
    for jwk in keys {
        // An unusable key, which an issuer may add for others, must not invalidate the set.
        found.extend(key(jwk, binding).unwrap_or_default());
    }
    Ok(found)
}

fn key(jwk: &Value<'_>, binding: &Arc<Binding>) -> Result<Option<Key>, InvalidKey> {
    let text = |name: &str| match jwk.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(&**text)),
        Some(_) => Err(InvalidKey::Text),
    };
    let bytes = |name: &str| URL_SAFE_NO_PAD.decode(text(name)?.ok_or(InvalidKey::Text)?).map_err(|_| InvalidKey::Text);
    let number = |name: &str| {
        let bytes = bytes(name)?;
        let first = bytes.iter().position(|byte| *byte != 0).ok_or(InvalidKey::Text)?;
        Ok::<_, InvalidKey>(bytes.get(first..).unwrap_or_default().to_vec())
    };
    let point = || Ok::<_, InvalidKey>([vec![4], bytes("x")?, bytes("y")?].concat());
    if text("use")?.is_some_and(|purpose| purpose != "sig") {
        return Ok(None);
    }
    if let Some(Value::Array(operations)) = jwk.get("key_ops")
        && !operations.iter().any(|operation| operation.as_str() == Some("verify"))
    {
        return Ok(None);
    }
    let material = match (text("kty")?.ok_or(InvalidKey::Text)?, text("crv")?) {
        ("RSA", _) => KeyMaterial::Rsa(number("n")?, number("e")?),
        ("EC", Some("P-256")) => KeyMaterial::P256(point()?),
        ("EC", Some("P-384")) => KeyMaterial::P384(point()?),
        ("OKP", Some("Ed25519")) => KeyMaterial::Ed25519(bytes("x")?),
        ("oct", _) => KeyMaterial::Secret(bytes("k")?),
        _ => return Ok(None),
    };
    let algorithm = match text("alg")? {
        None => material.default_algorithm(),
        Some(name) => match Algorithm::from_name(name) {
            Some(algorithm) => algorithm,
            None => return Ok(None),
        },
    };
    Key::new(text("kid")?.map(str::to_owned), algorithm, material, binding.clone()).map(Some)
}
