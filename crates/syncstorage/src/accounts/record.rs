//! The stored record of an account: a sequence of elements in FoundationDB's tuple encoding.

use crate::error::{Error, Result};
use crate::keys::tuple::{BYTES, put_int, put_text, take_int, take_text};
use crate::names::Uid;

use super::DeviceAccount;
use super::rules::AccountState;

/// The format. A newer program may write another one.
const FORMAT: u64 = 1;

/// The record of an account, at most 9 kB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    /// The account's user.
    pub uid: Uid,
    /// The account's state, as its claims showed it.
    pub known: AccountState,
}

impl Record {
    pub(super) fn signed_in(&self) -> DeviceAccount {
        let AccountState { generation, keys_changed_at, .. } = self.known;
        DeviceAccount { uid: self.uid, generation, keys_changed_at }
    }

    /// Encodes the format, the user, the generation, the keys' time plus 1 or 0, the client state, and the former
    /// client states.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let AccountState { generation, keys_changed_at, client_state, old_states } = &self.known;
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
        Ok(Record {
            uid: Uid(uid),
            known: AccountState { generation, keys_changed_at, client_state, old_states: states },
        })
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
            let known = AccountState { generation, keys_changed_at, client_state, old_states: states };
            let record = Record { uid: Uid(uid), known };
            prop_assert_eq!(Record::from_bytes(&record.to_bytes()).unwrap(), record);
        }

        #[test]
        fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = Record::from_bytes(&bytes);
        }
    }
}
