//! The id of an account's keys: the header `X-KeyID`, and its form in tokens.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::secret::hex;

/// The longest client state, in bytes. Firefox's has 16.
const STATE_BYTES_MAX: usize = 64;

/// `KEYS_CHANGED_AT-CLIENT_STATE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyId {
    /// The time of the keys' last change, in milliseconds since 1970 or in the accounts' own unit; 0: unknown.
    pub keys_changed_at: u64,
    /// The client state: a part of a hash of the keys.
    pub client_state: Vec<u8>,
}

impl KeyId {
    /// Parses the header's text: digits, a hyphen, and base64url without padding.
    pub fn parse(text: &str) -> Option<KeyId> {
        let (time, state) = text.split_once('-')?;
        if time.is_empty() || !time.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let keys_changed_at = time.parse().ok().filter(|time| i64::try_from(*time).is_ok())?;
        let client_state = URL_SAFE_NO_PAD.decode(state).ok().filter(|state| state.len() <= STATE_BYTES_MAX)?;
        Some(KeyId { keys_changed_at, client_state })
    }

    /// Returns the client state in the form of `X-Client-State`.
    pub fn client_state_hex(&self) -> String {
        hex(&self.client_state)
    }
}

/// Returns the id of an account's keys in a token. The account's generation replaces an unknown time.
pub fn fxa_kid(keys_changed_at: Option<u64>, generation: u64, client_state: &[u8]) -> String {
    format!("{:013}-{}", keys_changed_at.unwrap_or(generation), URL_SAFE_NO_PAD.encode(client_state))
}
