//! Ids that the server generates.

use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use flatbed_service::configuration::{UuidAlgorithm, UuidSettings};
use hyper::StatusCode;

use crate::error::{Failure, Result};

/// Random bytes shared by all ids until their counter overflows.
const PREFIX_BYTES: usize = 13;

/// The counter's maximum: six hexadecimal digits.
const COUNTER_MAX: u32 = 0x00ff_ffff;

/// The largest step of the counter, as in CouchDB.
const STEP_MAX: u32 = 0xffd;

/// The random bytes of an id by `utc_random`.
const UTC_RANDOM_BYTES: usize = 9;

/// Generates ids by CouchDB's algorithms. `sequential` is the default: 32 hexadecimal digits, of a random prefix and a
/// counter that grows by random steps. Consecutive documents are adjacent in the key order, but one id does not reveal
/// the next.
#[derive(Debug, Default)]
pub(crate) struct Uuids(Mutex<UuidState>);

#[derive(Debug, Default)]
struct UuidState {
    /// The prefix and the counter of the last `sequential` id.
    sequential: Option<([u8; PREFIX_BYTES], u32)>,
    /// The time of the last id by `utc_random` or `utc_id`, in microseconds.
    last_us: u64,
}

impl Uuids {
    /// Returns the next id. `now_ms`: the time since 1970 in milliseconds.
    pub(crate) fn next(&self, settings: &UuidSettings, now_ms: u64) -> Result<String> {
        match settings.algorithm {
            UuidAlgorithm::Sequential => self.sequential(),
            UuidAlgorithm::Random => random(),
            UuidAlgorithm::UtcRandom => {
                let mut bytes = [0; UTC_RANDOM_BYTES];
                fill(&mut bytes)?;
                Ok(format!("{:014x}{}", self.next_us(now_ms), hex(&bytes)))
            }
            UuidAlgorithm::UtcId => Ok(format!("{:014x}{}", self.next_us(now_ms), settings.utc_id_suffix)),
            UuidAlgorithm::UuidV7 => version_7(now_ms),
        }
    }

    fn sequential(&self) -> Result<String> {
        let mut random = [0; PREFIX_BYTES];
        fill(&mut random[..2])?;
        let step = 1 + u32::from(u16::from_be_bytes([random[0], random[1]])) % STEP_MAX;
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (prefix, counter) = match state.sequential {
            Some((prefix, counter)) if counter + step <= COUNTER_MAX => (prefix, counter + step),
            _ => {
                fill(&mut random)?;
                (random, step)
            }
        };
        state.sequential = Some((prefix, counter));
        drop(state);
        let mut text = hex(&prefix);
        let _ = write!(text, "{counter:06x}");
        Ok(text)
    }

    /// Returns the time in microseconds, or a later one, so that each id has another.
    fn next_us(&self, now_ms: u64) -> u64 {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.last_us = now_ms.saturating_mul(1_000).max(state.last_us.saturating_add(1));
        state.last_us
    }
}

/// Returns 32 random hexadecimal digits.
pub(crate) fn random() -> Result<String> {
    let mut bytes = [0; 16];
    fill(&mut bytes)?;
    Ok(hex(&bytes))
}

/// Returns an id of version 7 of RFC 9562 in hexadecimal digits: 48 bits of the time, the version, 12 random bits, the
/// variant, 62 random bits.
fn version_7(now_ms: u64) -> Result<String> {
    let mut bytes = [0; 16];
    fill(&mut bytes)?;
    let fixed: u128 = (0xffff_ffff_ffff << 80) | (0xf << 76) | (0x3 << 62);
    let time = u128::from(now_ms & 0xffff_ffff_ffff);
    let id = (u128::from_be_bytes(bytes) & !fixed) | (time << 80) | (0x7 << 76) | (0x2 << 62);
    Ok(format!("{id:032x}"))
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
        let ids: Vec<String> = (0..20_000).map(|_| uuids.next(&UuidSettings::default(), 0).unwrap()).collect();
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

    fn by(uuids: &Uuids, algorithm: UuidAlgorithm, now_ms: u64) -> String {
        let settings = UuidSettings { algorithm, utc_id_suffix: "-a".to_owned(), ..UuidSettings::default() };
        uuids.next(&settings, now_ms).unwrap()
    }

    #[test]
    fn ids_by_time_begin_with_it_and_grow() {
        let (uuids, now_ms) = (Uuids::default(), 1_700_000_000_000);
        assert_eq!(by(&uuids, UuidAlgorithm::UtcId, now_ms), "060a24181e4000-a");
        // A clock that stands still or goes back makes no id twice.
        assert_eq!(by(&uuids, UuidAlgorithm::UtcId, now_ms), "060a24181e4001-a");
        assert_eq!(by(&uuids, UuidAlgorithm::UtcId, now_ms - 5), "060a24181e4002-a");
        let random = by(&uuids, UuidAlgorithm::UtcRandom, now_ms);
        assert!(random.starts_with("060a24181e4003") && random.len() == 32, "{random}");
    }

    #[test]
    fn ids_of_version_7_have_time_version_and_variant() {
        let uuids = Uuids::default();
        for _ in 0..100 {
            let id = by(&uuids, UuidAlgorithm::UuidV7, 0x0123_4567_89ab);
            assert!(id.len() == 32 && id.starts_with("0123456789ab7"), "{id}");
            assert!(id[16..17].contains(['8', '9', 'a', 'b']), "{id}");
        }
        assert_ne!(by(&uuids, UuidAlgorithm::Random, 0), by(&uuids, UuidAlgorithm::Random, 0));
    }
}
