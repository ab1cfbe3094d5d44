//! Which keys of an account a device has: the header `X-KeyID`, and what tokens say of it.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::secret::hex;

/// Bytes of a client state; Firefox's has 16.
const STATE_BYTES_MAX: usize = 64;

/// `KEYS_CHANGED_AT-CLIENT_STATE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyId {
    /// When the account's keys changed, in milliseconds since 1970 or whatever the accounts count in; 0 says nothing.
    pub keys_changed_at: u64,
    /// Which they are: a part of a hash of them.
    pub client_state: Vec<u8>,
}

impl KeyId {
    /// Reads the header's text: digits, a hyphen, and base64url without padding.
    pub fn parse(text: &str) -> Option<KeyId> {
        let (time, state) = text.split_once('-')?;
        if time.is_empty() || !time.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let keys_changed_at = time.parse().ok().filter(|time| i64::try_from(*time).is_ok())?;
        let client_state = URL_SAFE_NO_PAD.decode(state).ok().filter(|state| state.len() <= STATE_BYTES_MAX)?;
        Some(KeyId { keys_changed_at, client_state })
    }

    /// The client state as `X-Client-State` has it.
    pub fn client_state_hex(&self) -> String {
        hex(&self.client_state)
    }
}

/// What a token says of an account's keys; without a time of theirs, the account's generation stands there.
pub fn fxa_kid(keys_changed_at: Option<u64>, generation: u64, client_state: &[u8]) -> String {
    format!("{:013}-{}", keys_changed_at.unwrap_or(generation), URL_SAFE_NO_PAD.encode(client_state))
}
