//! Signatures of requests: Hawk, version 1, with SHA-256.
//!
//! The header has a token, a time, a nonce, and a MAC of these with the request's method, target, host and port. Nonces
//! are not stored, since each would be a write. Times may be a year off, since devices' clocks are. A recorded request
//! can therefore be replayed while its token is valid; TLS prevents the recording.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::{digest, hmac};

use crate::secret::{Secret, Token};

/// The largest difference of a request's time: 52 weeks.
pub const SKEW_SECONDS_MAX: u64 = 52 * 7 * 24 * 3_600;

/// The longest header. Longer ones are no signatures.
const HEADER_BYTES_MAX: usize = 8_192;

/// The host and port to which a client sent its request, as the client sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HawkAuthority {
    /// The host's name or address, without a port.
    pub host: String,
    /// The port, even if it is the scheme's default.
    pub port: u16,
}

/// The signed parts of a request outside of the header.
#[derive(Debug, Clone, Copy)]
pub struct SignedRequest<'r> {
    /// The method, such as `GET`.
    pub method: &'r str,
    /// Path and query as sent.
    pub target: &'r str,
    /// The host and port.
    pub place: &'r HawkAuthority,
}

/// A signature header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header<'h> {
    /// The token's id.
    pub id: &'h str,
    /// The time of signing, in seconds since 1970 by the client's clock.
    pub ts: &'h str,
    /// A text that distinguishes requests of the same second.
    pub nonce: &'h str,
    /// The hash of the body, if signed.
    pub hash: &'h str,
    /// The client's extension data.
    pub ext: &'h str,
    /// The MAC, in base64.
    pub mac: &'h str,
}

/// The reason why a signature is refused. It is logged, and the client does not learn it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The request has no `Authorization`.
    #[error("the request has no Authorization header")]
    Missing,
    /// The header has another scheme than Hawk, or invalid parts.
    #[error("the Authorization header is no Hawk signature")]
    Malformed,
    /// The token is not signed with this secret.
    #[error("the token is not signed with this server's master secret")]
    Token,
    /// The token has expired.
    #[error("the token has expired")]
    Expired,
    /// The request differs, or was sent to another place.
    #[error("the signature is that of another request, or of another host, port or path")]
    Mac,
    /// The request was sent to another place, and the signature matches the port of the other scheme.
    #[error(
        "the signature is for the port of the other scheme, http or https: set public_url, or name the proxy in forwarded_from"
    )]
    Scheme,
    /// The time is more than a year off.
    #[error("the client's clock is more than 52 weeks off")]
    Skew,
    /// The body differs.
    #[error("the body is not the one that was signed")]
    Body,
}

impl<'h> Header<'h> {
    /// Parses a header: `Hawk id="...", ts="...", nonce="...", mac="..."`, with or without `hash` and `ext`.
    pub fn parse(text: &'h str) -> Option<Header<'h>> {
        if text.len() > HEADER_BYTES_MAX {
            return None;
        }
        let (scheme, mut rest) = text.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("hawk") {
            return None;
        }
        let mut header = Header::default();
        loop {
            let (name, value) = rest.trim_start().split_once("=\"")?;
            let (value, after) = value.split_once('"')?;
            let place = match name {
                "id" => &mut header.id,
                "ts" => &mut header.ts,
                "nonce" => &mut header.nonce,
                "hash" => &mut header.hash,
                "ext" => &mut header.ext,
                "mac" => &mut header.mac,
                _ => return None,
            };
            // An empty value would be omitted; a backslash would begin an escape.
            if !place.is_empty() || value.is_empty() || value.contains('\\') {
                return None;
            }
            *place = value;
            match after.trim() {
                "" => break,
                after => rest = after.strip_prefix(',')?,
            }
        }
        let is_whole = [header.id, header.ts, header.nonce, header.mac].iter().all(|part| !part.is_empty());
        is_whole.then_some(header)
    }

    /// Returns the text that the MAC covers.
    pub fn normalized(&self, signed: &SignedRequest<'_>) -> String {
        let Header { ts, nonce, hash, ext, .. } = self;
        let SignedRequest { method, target, place: HawkAuthority { host, port } } = signed;
        let method = method.to_ascii_uppercase();
        format!("hawk.1.header\n{ts}\n{nonce}\n{method}\n{target}\n{host}\n{port}\n{hash}\n{ext}\n")
    }

    fn is_right(&self, key: &hmac::Key, mac: &[u8], signed: &SignedRequest<'_>) -> bool {
        hmac::verify(key, self.normalized(signed).as_bytes(), mac).is_ok()
    }

    /// Checks a signature at `now`, in seconds since 1970, and returns its token. `may_be_expired`: the token may have
    /// expired.
    ///
    /// # Errors
    /// [`SignatureError`].
    pub fn check(
        &self,
        secret: &Secret,
        now: f64,
        signed: &SignedRequest<'_>,
        may_be_expired: bool,
    ) -> Result<Token, SignatureError> {
        let token = secret.open(self.id).ok_or(SignatureError::Token)?;
        if token.expires <= now && !may_be_expired {
            return Err(SignatureError::Expired);
        }
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.key_of(self.id, &token.salt).as_bytes());
        let mac = STANDARD.decode(self.mac).map_err(|_| SignatureError::Malformed)?;
        if !self.is_right(&key, &mac, signed) {
            // For the log: this happens when a proxy ends TLS and the server is not told.
            let port = match signed.place.port {
                443 => 80,
                80 => 443,
                _ => return Err(SignatureError::Mac),
            };
            let place = HawkAuthority { host: signed.place.host.clone(), port };
            let is_other = self.is_right(&key, &mac, &SignedRequest { place: &place, ..*signed });
            return Err(if is_other { SignatureError::Scheme } else { SignatureError::Mac });
        }
        let ts: u64 = self.ts.parse().map_err(|_| SignatureError::Malformed)?;
        if (now as u64).abs_diff(ts) > SKEW_SECONDS_MAX {
            return Err(SignatureError::Skew);
        }
        Ok(token)
    }

    /// Returns whether the body is the signed one; true if none was signed.
    pub fn has_body(&self, content_type: &str, body: &[u8]) -> bool {
        let Ok(hash) = STANDARD.decode(self.hash) else { return false };
        self.hash.is_empty() || hash == payload_hash(content_type, body).as_ref()
    }
}

/// Returns the hash of a body and of the media type in `Content-Type` without parameters. The hash is signed, so a
/// comparison that is not constant in time reveals nothing.
pub fn payload_hash(content_type: &str, body: &[u8]) -> digest::Digest {
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let mut hash = digest::Context::new(&digest::SHA256);
    for part in [b"hawk.1.payload\n", kind.as_bytes(), b"\n", body, b"\n"] {
        hash.update(part);
    }
    hash.finish()
}
