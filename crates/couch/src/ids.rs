//! Ids that a server gives to documents that come without one.

use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use hyper::StatusCode;

use crate::error::{Failure, Result};

/// Random bytes that ids share until their counter is used up.
const PREFIX_BYTES: usize = 13;

/// Counters end here: six hexadecimal digits.
const COUNTER_MAX: u32 = 0x00ff_ffff;

/// The longest step of the counter; CouchDB's.
const STEP_MAX: u32 = 0xffd;

/// 32 hexadecimal digits, in CouchDB's `sequential` way: a random part and a counter that grows by random steps, so that
/// documents made one after the other lie beside each other and yet no id can be guessed from another.
#[derive(Debug, Default)]
pub(crate) struct Uuids(Mutex<Option<([u8; PREFIX_BYTES], u32)>>);

impl Uuids {
    pub(crate) fn next(&self) -> Result<String> {
        let mut random = [0; PREFIX_BYTES];
        fill(&mut random[..2])?;
        let step = 1 + u32::from(u16::from_be_bytes([random[0], random[1]])) % STEP_MAX;
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (prefix, counter) = match *state {
            Some((prefix, counter)) if counter + step <= COUNTER_MAX => (prefix, counter + step),
            _ => {
                fill(&mut random)?;
                (random, step)
            }
        };
        *state = Some((prefix, counter));
        drop(state);
        let mut text = hex(&prefix);
        // Writing to a String does not fail.
        let _ = write!(text, "{counter:06x}");
        Ok(text)
    }
}

/// 32 random hexadecimal digits.
pub(crate) fn random() -> Result<String> {
    let mut bytes = [0; 16];
    fill(&mut bytes)?;
    Ok(hex(&bytes))
}

fn fill(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes)
        .map_err(|_| Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", "no randomness"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len() + 6), |mut text, byte| {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_ids_grow_and_change_their_prefix() {
        let uuids = Uuids::default();
        let ids: Vec<String> = (0..20_000).map(|_| uuids.next().unwrap()).collect();
        let mut prefixes = 1;
        for pair in ids.windows(2) {
            assert!(pair[1].len() == 32 && pair[1].bytes().all(|b| b.is_ascii_hexdigit()));
            if pair[0][..26] == pair[1][..26] {
                assert!(pair[0] < pair[1]);
            } else {
                prefixes += 1;
            }
        }
        assert!((2..20).contains(&prefixes), "{prefixes}");
    }
}
