//! Signatures of requests: Hawk, version 1, with SHA-256.
//!
//! The header names a token, a time, a nonce, and a MAC of all that with the request's method, target, host and port. Nonces
//! are not kept, since each would be a write, and times may be a year off, since devices' clocks are: a request that
//! somebody has recorded can be sent again as long as its token lasts. TLS is what keeps it from being recorded.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::{digest, hmac};

use crate::secret::{Secret, Token};

/// How far a request's time may be off: 52 weeks.
pub const SKEW_SECONDS_MAX: u64 = 52 * 7 * 24 * 3_600;

/// Longer headers are no signatures.
const HEADER_BYTES_MAX: usize = 8_192;

/// Where a client has sent its request to, as it sees that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The host's name or address, without a port.
    pub host: String,
    /// The port, also where it is that of the scheme.
    pub port: u16,
}

/// What is signed of a request, beside what its header says.
#[derive(Debug, Clone, Copy)]
pub struct Signed<'r> {
    /// `GET` and its like.
    pub method: &'r str,
    /// Path and query, as they were sent.
    pub target: &'r str,
    /// Where it was sent to.
    pub place: &'r Place,
}

/// A signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header<'h> {
    /// The token's id.
    pub id: &'h str,
    /// When it was made, in seconds since 1970 by the client's clock.
    pub ts: &'h str,
    /// What tells it from others of that time.
    pub nonce: &'h str,
    /// Of the body, where there is one.
    pub hash: &'h str,
    /// What the client adds.
    pub ext: &'h str,
    /// The MAC, in base64.
    pub mac: &'h str,
}

/// Why a signature is not taken. The log says it, the client does not learn it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unsigned {
    /// No `Authorization`.
    #[error("the request has no Authorization header")]
    Missing,
    /// Another scheme than Hawk, or parts that are none.
    #[error("the Authorization header is no Hawk signature")]
    Malformed,
    /// Another secret has signed it, or nobody.
    #[error("the token is not signed with this server's master secret")]
    Token,
    /// It has ended.
    #[error("the token has expired")]
    Expired,
    /// The request is another one, or was sent elsewhere.
    #[error("the signature is that of another request, or of another host, port or path")]
    Mac,
    /// The same, and it would be right at the port of the other scheme.
    #[error(
        "the signature is for the port of the other scheme, http or https: set public_url, or name the proxy in forwarded_from"
    )]
    Scheme,
    /// More than a year off.
    #[error("the client's clock is more than 52 weeks off")]
    Skew,
    /// The body is another one.
    #[error("the body is not the one that was signed")]
    Body,
}

impl<'h> Header<'h> {
    /// Reads a header: `Hawk id="...", ts="...", nonce="...", mac="..."`, with `hash` and `ext` or without.
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
            // An empty one would be left out; a backslash would have to be read as an escape.
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

    /// The text whose MAC it has.
    pub fn normalized(&self, signed: &Signed<'_>) -> String {
        let Header { ts, nonce, hash, ext, .. } = self;
        let Signed { method, target, place: Place { host, port } } = signed;
        let method = method.to_ascii_uppercase();
        format!("hawk.1.header\n{ts}\n{nonce}\n{method}\n{target}\n{host}\n{port}\n{hash}\n{ext}\n")
    }

    fn is_right(&self, key: &hmac::Key, mac: &[u8], signed: &Signed<'_>) -> bool {
        hmac::verify(key, self.normalized(signed).as_bytes(), mac).is_ok()
    }

    /// Checks a signature at `now`, in seconds since 1970: whose it is. `may_be_expired`: the token may have ended.
    ///
    /// # Errors
    /// [`Unsigned`].
    pub fn check(
        &self,
        secret: &Secret,
        now: f64,
        signed: &Signed<'_>,
        may_be_expired: bool,
    ) -> Result<Token, Unsigned> {
        let token = secret.open(self.id).ok_or(Unsigned::Token)?;
        if token.expires <= now && !may_be_expired {
            return Err(Unsigned::Expired);
        }
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.key_of(self.id, &token.salt).as_bytes());
        let mac = STANDARD.decode(self.mac).map_err(|_| Unsigned::Malformed)?;
        if !self.is_right(&key, &mac, signed) {
            // For the log: this is what goes wrong where something in front ends TLS and nobody says so.
            let port = match signed.place.port {
                443 => 80,
                80 => 443,
                _ => return Err(Unsigned::Mac),
            };
            let place = Place { host: signed.place.host.clone(), port };
            let is_other = self.is_right(&key, &mac, &Signed { place: &place, ..*signed });
            return Err(if is_other { Unsigned::Scheme } else { Unsigned::Mac });
        }
        let ts: u64 = self.ts.parse().map_err(|_| Unsigned::Malformed)?;
        if (now as u64).abs_diff(ts) > SKEW_SECONDS_MAX {
            return Err(Unsigned::Skew);
        }
        Ok(token)
    }

    /// Whether the body is the one that was signed; true where none was.
    pub fn has_body(&self, content_type: &str, body: &[u8]) -> bool {
        let Ok(hash) = STANDARD.decode(self.hash) else { return false };
        self.hash.is_empty() || hash == payload_hash(content_type, body).as_ref()
    }
}

/// The hash of a body, of which only the type itself counts in `Content-Type`. It is signed, so that nobody learns anything
/// from how long a comparison takes.
pub fn payload_hash(content_type: &str, body: &[u8]) -> digest::Digest {
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let mut hash = digest::Context::new(&digest::SHA256);
    for part in [b"hawk.1.payload\n", kind.as_bytes(), b"\n", body, b"\n"] {
        hash.update(part);
    }
    hash.finish()
}
