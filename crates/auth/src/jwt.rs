//! JSON Web Tokens: verification only.
//!
//! A token is valid if a key of the [`KeySet`] has signed it with the key's only algorithm, and if its claims match
//! the key's [`Binding`]. Claims are not read before the signature is verified.

mod algorithm;
mod claims;
mod der;
mod jwks;
mod key;
mod memory;

pub use algorithm::Algorithm;
pub use claims::{Binding, RolesClaim, required_claims};
pub use jwks::{JWKS_BYTES_MAX, parse_jwks};
pub use key::{InvalidKey, KEYS_MAX, Key, KeyMaterial, KeySet, VerifiedBy};
pub use memory::TokenCache;

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use flatbed_flatten::json::{Limits, Value, parse_unique};

use self::claims::ValidClaims;
use crate::error::AuthError;
use crate::principal::Principal;

/// The longest token, in bytes; longer ones are malformed.
pub const TOKEN_BYTES_MAX: usize = 8_192;

const DEPTH_MAX: usize = 16;

/// A valid token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedToken {
    /// The user.
    pub principal: Principal,
    /// The end of its validity, in seconds since 1970, with the skew; `None` without an end.
    pub ends: Option<u64>,
    /// The key that verified it: the token is valid until it ends or the key is gone ([`KeySet::has`]).
    pub by: VerifiedBy,
}

/// Returns the token of an `authorization` header: the text after `Bearer `, in either case. `None` for another
/// scheme.
pub fn token_in(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Verifies a token at `now`, in seconds since 1970, with clocks that may differ by `skew` seconds. Verifies at
/// most four signatures, and otherwise takes time in proportion to the token.
///
/// # Errors
/// 400 for a malformed token, an unknown key, or another issuer or audience; 401 for a token that is too old, too new
/// or without a user. The reasons are CouchDB's where it has one.
pub fn verify(token: &str, keys: &KeySet, now: u64, skew: u64) -> Result<VerifiedToken, AuthError> {
    let token = CompactToken::read(token)?;
    let mut refused = token.not_signed();
    for key in token.candidates(keys)? {
        if !token.is_signed_with(key) {
            continue;
        }
        match key.binding().judge(&object(&token.claims()?)?, now, skew) {
            Ok(ValidClaims { principal, ends }) => {
                return Ok(VerifiedToken { principal, ends, by: VerifiedBy::new(key, skew) });
            }
            Err(why) => refused = why,
        }
    }
    Err(refused)
}

/// Returns the unverified claims of a signed token of this type (compared without case), as the text of a JSON
/// object. For tokens of other users than CouchDB's. Verifies at most four signatures.
///
/// # Errors
/// 400 for a malformed token, another type or an unknown key.
pub fn signed_claims(token: &str, keys: &KeySet, typ: &str) -> Result<Vec<u8>, AuthError> {
    let token = CompactToken::read(token)?;
    if !token.typ.as_deref().is_some_and(|found| found.eq_ignore_ascii_case(typ)) {
        return Err(AuthError::bad_request("Invalid typ header parameter"));
    }
    if !token.candidates(keys)?.iter().any(|key| token.is_signed_with(key)) {
        return Err(token.not_signed());
    }
    let claims = token.claims()?;
    object(&claims)?;
    Ok(claims)
}

/// The parts of a token (RFC 7515, 7.1), unverified.
struct CompactToken<'t> {
    signed: &'t str,
    payload: &'t str,
    signature: Vec<u8>,
    algorithm: Algorithm,
    kid: Option<String>,
    typ: Option<String>,
}

impl<'t> CompactToken<'t> {
    fn read(token: &'t str) -> Result<CompactToken<'t>, AuthError> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(malformed());
        }
        let (signed, signature) = token.rsplit_once('.').ok_or_else(malformed)?;
        let (header, payload) = signed.split_once('.').filter(|(_, rest)| !rest.contains('.')).ok_or_else(malformed)?;
        let header = URL_SAFE_NO_PAD.decode(header).map_err(|_| malformed())?;
        let header = object(&header)?;
        let (algorithm, kid) = read_header(&header)?;
        let typ = header.get("typ").and_then(Value::as_str).map(str::to_owned);
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| malformed())?;
        Ok(CompactToken { signed, payload, signature, algorithm, kid, typ })
    }

    fn candidates<'k>(&self, keys: &'k KeySet) -> Result<&'k [Arc<Key>], AuthError> {
        let candidates = keys.find(self.kid.as_deref(), self.algorithm);
        if candidates.is_empty() { Err(AuthError::bad_request("Unknown kid")) } else { Ok(candidates) }
    }

    fn is_signed_with(&self, key: &Key) -> bool {
        key.has_signed(self.signed.as_bytes(), &self.signature)
    }

    fn not_signed(&self) -> AuthError {
        AuthError::bad_request(if self.algorithm.is_hmac() { "Bad HMAC" } else { "Bad signature" })
    }

    fn claims(&self) -> Result<Vec<u8>, AuthError> {
        URL_SAFE_NO_PAD.decode(self.payload).map_err(|_| malformed())
    }
}

fn malformed() -> AuthError {
    AuthError::bad_request("Malformed token")
}

fn object(text: &[u8]) -> Result<Value<'_>, AuthError> {
    let value = parse_unique(text, &Limits { depth_max: DEPTH_MAX });
    match value.map_err(|_| AuthError::bad_request("Malformed token"))? {
        value @ Value::Object(_) => Ok(value),
        _ => Err(AuthError::bad_request("Not an object")),
    }
}

fn read_header(header: &Value<'_>) -> Result<(Algorithm, Option<String>), AuthError> {
    let refuse = |reason: &'static str| Err(AuthError::bad_request(reason));
    match header.get("typ") {
        None => {}
        Some(Value::String(typ)) if typ.eq_ignore_ascii_case("jwt") || typ.eq_ignore_ascii_case("at+jwt") => {}
        Some(_) => return refuse("Invalid typ header parameter"),
    }
    if header.get("crit").is_some() {
        return refuse("Invalid crit header parameter");
    }
    let Some(algorithm) = header.get("alg") else { return refuse("Missing alg header parameter") };
    let Some(algorithm) = algorithm.as_str().and_then(Algorithm::from_name) else {
        return refuse("Invalid alg header parameter");
    };
    match header.get("kid") {
        None => Ok((algorithm, None)),
        Some(Value::String(kid)) => Ok((algorithm, Some(kid.clone().into_owned()))),
        Some(_) => refuse("Invalid kid header parameter"),
    }
}

#[cfg(test)]
mod tests;
