//! Ids that the server generates.

use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use hyper::StatusCode;

use crate::error::{Failure, Result};

/// Random bytes shared by all ids until their counter overflows.
const PREFIX_BYTES: usize = 13;

/// The counter's maximum: six hexadecimal digits.
const COUNTER_MAX: u32 = 0x00ff_ffff;

/// The largest step of the counter, as in CouchDB.
const STEP_MAX: u32 = 0xffd;

/// Generates ids of 32 hexadecimal digits by CouchDB's `sequential` algorithm: a random prefix and a counter that grows
/// by random steps. Consecutive documents are adjacent in the key order, but one id does not reveal the next.
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
        let _ = write!(text, "{counter:06x}");
        Ok(text)
    }
}

/// Returns 32 random hexadecimal digits.
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
