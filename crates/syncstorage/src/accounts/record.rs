//! The record of an account, as it is stored: elements of FoundationDB's tuple encoding, one after the other.

use crate::error::{Error, Result};
use crate::keys::tuple::{BYTES, put_int, put_text, take_int, take_text};
use crate::names::Uid;

use super::SignedIn;
use super::rules::Known;

/// Of this form; another one is a newer program's.
const FORMAT: u64 = 1;

/// What is stored of an account: at most 9 kB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    /// Its user.
    pub uid: Uid,
    /// What was seen of it.
    pub known: Known,
}

impl Record {
    pub(super) fn signed_in(&self) -> SignedIn {
        let Known { generation, keys_changed_at, .. } = self.known;
        SignedIn { uid: self.uid, generation, keys_changed_at }
    }

    /// Form, user, generation, 1 more than the keys' time or 0, client state, and those of old.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let Known { generation, keys_changed_at, client_state, old_states } = &self.known;
        let mut bytes = Vec::new();
        let keys_changed_at = keys_changed_at.map_or(0, |time| time.saturating_add(1));
        for number in [FORMAT, self.uid.0, *generation, keys_changed_at] {
            put_int(&mut bytes, number);
        }
        put_text(&mut bytes, BYTES, client_state);
        for state in old_states {
            put_text(&mut bytes, BYTES, state);
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Record> {
        let corrupt = || Error::Corrupt("an account's record");
        let (format, rest) = take_int(bytes)?;
        if format != FORMAT {
            return Err(Error::Format(u8::try_from(format).unwrap_or(u8::MAX)));
        }
        let (uid, rest) = take_int(rest)?;
        let (generation, rest) = take_int(rest)?;
        let (keys_changed_at, mut rest) = take_int(rest)?;
        let mut states = Vec::new();
        while !rest.is_empty() {
            let (state, behind) = take_text(rest, BYTES)?;
            states.push(state);
            rest = behind;
        }
        if states.is_empty() {
            return Err(corrupt());
        }
        let client_state = states.remove(0);
        let keys_changed_at = keys_changed_at.checked_sub(1);
        Ok(Record { uid: Uid(uid), known: Known { generation, keys_changed_at, client_state, old_states: states } })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(
            (uid, generation) in any::<(u64, u64)>(),
            keys_changed_at in prop::option::of(0..u64::MAX),
            mut states in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..5)
        ) {
            let client_state = states.remove(0);
            let known = Known { generation, keys_changed_at, client_state, old_states: states };
            let record = Record { uid: Uid(uid), known };
            prop_assert_eq!(Record::from_bytes(&record.to_bytes()).unwrap(), record);
        }

        #[test]
        fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = Record::from_bytes(&bytes);
        }
    }
}
