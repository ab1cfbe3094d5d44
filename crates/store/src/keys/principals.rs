//! Keys of a database's users and roles: their records, what they hold, and the sources of each holding.
//! design/channels.md says what they are for.

use flatbed_channels::{GrantedItem, PrincipalKind};

use crate::error::Result;
use crate::keys::tuple::{
    TUPLE_BYTES, TUPLE_STRING, bad_key, behind, put_int, put_stamp, put_text, stamped, take_bytes_at, take_int,
    take_stamp, take_text, take_text_at, under,
};
use crate::keys::{KeyRange, Keys, PRINCIPALS};
use crate::seq::Seq;

// Under {NS}/PRINCIPALS.
const RECORDS: u64 = 0;
const VERSIONS: u64 = 1;
const PERIODS: u64 = 2;
const WAYS: u64 = 3;
const CHANGED: u64 = 4;
const SESSIONS: u64 = 5;
const LOCALS: u64 = 6;

// Under a way: the source of a grant.
const BY_ADMINISTRATOR: u64 = 0;
const BY_DOCUMENT: u64 = 1;

/// The bytes kept of the SHA-256 of a session's id, which form the session's key.
pub const SESSION_HASH_BYTES: usize = 20;

/// The parts of a key of users and roles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrincipalPart {
    /// The record as an administrator wrote it.
    Record { kind: PrincipalKind, name: String },
    /// The versionstamp of the last change of anything that the user or role holds.
    Version { kind: PrincipalKind, name: String },
    /// The periods in which it holds or held a channel or role.
    Periods { kind: PrincipalKind, name: String, what: GrantedItem },
    /// One source of a holding: a document, or (`None`) an administrator.
    Way { kind: PrincipalKind, name: String, what: GrantedItem, by: Option<String> },
    /// A user or role changed in this commit.
    Changed(Seq),
    /// A session, by the hash of its id.
    Session(Vec<u8>),
    /// A part of a user's own local document.
    Local { name: String, id: String, part: u64 },
}

fn kind_number(kind: PrincipalKind) -> u64 {
    match kind {
        PrincipalKind::User => 0,
        PrincipalKind::Role => 1,
    }
}

fn take_kind(key: &[u8]) -> Result<(PrincipalKind, &[u8])> {
    match take_int(key)? {
        (0, rest) => Ok((PrincipalKind::User, rest)),
        (1, rest) => Ok((PrincipalKind::Role, rest)),
        _ => Err(bad_key()),
    }
}

fn put_given(key: &mut Vec<u8>, what: &GrantedItem) {
    let (number, name) = match what {
        GrantedItem::Channel(name) => (0, name),
        GrantedItem::Role(name) => (1, name),
    };
    put_int(key, number);
    put_text(key, TUPLE_STRING, name.as_bytes());
}

fn take_given(key: &[u8]) -> Result<(GrantedItem, &[u8])> {
    let (number, rest) = take_int(key)?;
    let (name, rest) = take_text_at(rest)?;
    match number {
        0 => Ok((GrantedItem::Channel(name), rest)),
        1 => Ok((GrantedItem::Role(name), rest)),
        _ => Err(bad_key()),
    }
}

impl Keys {
    fn principal_part(&self, part: u64, kind: PrincipalKind, name: &str) -> Vec<u8> {
        let mut key = self.two(PRINCIPALS, part);
        put_int(&mut key, kind_number(kind));
        put_text(&mut key, TUPLE_STRING, name.as_bytes());
        key
    }

    /// Returns the key of a user's or role's record.
    pub fn principal(&self, kind: PrincipalKind, name: &str) -> Vec<u8> {
        self.principal_part(RECORDS, kind, name)
    }

    /// Returns the range of a kind's records, by name.
    pub fn principals(&self, kind: PrincipalKind) -> KeyRange {
        let mut prefix = self.two(PRINCIPALS, RECORDS);
        put_int(&mut prefix, kind_number(kind));
        under(&prefix)
    }

    /// Returns the key of the versionstamp of the last change of anything that it holds.
    pub fn principal_version(&self, kind: PrincipalKind, name: &str) -> Vec<u8> {
        self.principal_part(VERSIONS, kind, name)
    }

    /// Returns the key of the periods in which it holds or held something.
    pub fn periods(&self, kind: PrincipalKind, name: &str, what: &GrantedItem) -> Vec<u8> {
        let mut key = self.principal_part(PERIODS, kind, name);
        put_given(&mut key, what);
        key
    }

    /// Returns the range of the periods of everything that it holds or held.
    pub fn periods_of(&self, kind: PrincipalKind, name: &str) -> KeyRange {
        under(&self.principal_part(PERIODS, kind, name))
    }

    fn ways_prefix(&self, kind: PrincipalKind, name: &str, what: &GrantedItem) -> Vec<u8> {
        let mut key = self.principal_part(WAYS, kind, name);
        put_given(&mut key, what);
        key
    }

    /// Returns the key whose presence records an administrator's grant.
    pub fn given_by_administrator(&self, kind: PrincipalKind, name: &str, what: &GrantedItem) -> Vec<u8> {
        let mut key = self.ways_prefix(kind, name, what);
        put_int(&mut key, BY_ADMINISTRATOR);
        key
    }

    /// Returns the key whose presence records a document's grant.
    pub fn given_by_document(&self, kind: PrincipalKind, name: &str, what: &GrantedItem, id: &str) -> Vec<u8> {
        let mut key = self.ways_prefix(kind, name, what);
        put_int(&mut key, BY_DOCUMENT);
        put_text(&mut key, TUPLE_STRING, id.as_bytes());
        key
    }

    /// Returns the range of all sources of one holding. The administrator's grant comes first.
    pub fn ways(&self, kind: PrincipalKind, name: &str, what: &GrantedItem) -> KeyRange {
        under(&self.ways_prefix(kind, name, what))
    }

    fn changed_principals_prefix(&self, incarnation: u64) -> Vec<u8> {
        let mut key = self.two(PRINCIPALS, CHANGED);
        put_int(&mut key, incarnation);
        key
    }

    /// Returns the key that logs a change of a user or role, for SET_VERSIONSTAMPED_KEY. Only
    /// `note_principals` of the module `access` writes it.
    pub(crate) fn changed_principal_stamped(&self, incarnation: u64, epoch: u32, user_version: u16) -> Vec<u8> {
        stamped(self.changed_principals_prefix(incarnation), epoch, user_version)
    }

    /// Returns the range of the changes behind a sequence.
    pub fn changed_principals_after(&self, seq: &Seq) -> KeyRange {
        let mut begin = self.changed_principals_prefix(seq.incarnation());
        let end = under(&begin).end;
        put_stamp(&mut begin, seq.stamp());
        begin.push(0);
        KeyRange { begin, end }
    }

    /// Returns the range of the changes of every incarnation.
    pub fn changed_principals_all(&self) -> KeyRange {
        KeyRange { begin: self.two(PRINCIPALS, CHANGED), end: self.two(PRINCIPALS, CHANGED + 1) }
    }

    pub fn gateway_session(&self, hash: &[u8; SESSION_HASH_BYTES]) -> Vec<u8> {
        let mut key = self.two(PRINCIPALS, SESSIONS);
        put_text(&mut key, TUPLE_BYTES, hash);
        key
    }

    pub fn gateway_sessions(&self) -> KeyRange {
        KeyRange { begin: self.two(PRINCIPALS, SESSIONS), end: self.two(PRINCIPALS, SESSIONS + 1) }
    }

    fn principal_local_prefix(&self, name: &str, id: &str) -> Vec<u8> {
        let mut key = self.two(PRINCIPALS, LOCALS);
        put_text(&mut key, TUPLE_STRING, name.as_bytes());
        put_text(&mut key, TUPLE_STRING, id.as_bytes());
        key
    }

    pub fn principal_local(&self, name: &str, id: &str, part: u64) -> Vec<u8> {
        let mut key = self.principal_local_prefix(name, id);
        put_int(&mut key, part);
        key
    }

    /// Returns the range of all parts of one such document.
    pub fn principal_local_parts(&self, name: &str, id: &str) -> KeyRange {
        under(&self.principal_local_prefix(name, id))
    }

    /// Returns the range of a user's local documents.
    pub fn principal_locals(&self, name: &str) -> KeyRange {
        let mut prefix = self.two(PRINCIPALS, LOCALS);
        put_text(&mut prefix, TUPLE_STRING, name.as_bytes());
        under(&prefix)
    }

    /// Returns the range of all users' local documents.
    pub fn all_principal_locals(&self) -> KeyRange {
        KeyRange { begin: self.two(PRINCIPALS, LOCALS), end: self.two(PRINCIPALS, LOCALS + 1) }
    }

    /// Parses a key of users and roles.
    pub fn split_principals(&self, key: &[u8]) -> Result<PrincipalPart> {
        let (part, rest) = take_int(behind(key, &self.one(PRINCIPALS)))?;
        Ok(match part {
            RECORDS | VERSIONS => {
                let (kind, rest) = take_kind(rest)?;
                let name = take_text(rest)?;
                match part {
                    RECORDS => PrincipalPart::Record { kind, name },
                    _ => PrincipalPart::Version { kind, name },
                }
            }
            PERIODS | WAYS => {
                let (kind, rest) = take_kind(rest)?;
                let (name, rest) = take_text_at(rest)?;
                let (what, rest) = take_given(rest)?;
                if part == PERIODS {
                    return if rest.is_empty() {
                        Ok(PrincipalPart::Periods { kind, name, what })
                    } else {
                        Err(bad_key())
                    };
                }
                let by = match take_int(rest)? {
                    (BY_ADMINISTRATOR, []) => None,
                    (BY_DOCUMENT, rest) => Some(take_text(rest)?),
                    _ => return Err(bad_key()),
                };
                PrincipalPart::Way { kind, name, what, by }
            }
            CHANGED => {
                let (incarnation, rest) = take_int(rest)?;
                PrincipalPart::Changed(Seq::new(incarnation, take_stamp(rest)?))
            }
            SESSIONS => match take_bytes_at(rest, TUPLE_BYTES)? {
                (hash, []) if hash.len() == SESSION_HASH_BYTES => PrincipalPart::Session(hash),
                _ => return Err(bad_key()),
            },
            LOCALS => {
                let (name, rest) = take_text_at(rest)?;
                let (id, rest) = take_text_at(rest)?;
                match take_int(rest)? {
                    (part, []) => PrincipalPart::Local { name, id, part },
                    _ => return Err(bad_key()),
                }
            }
            _ => return Err(bad_key()),
        })
    }
}

/// Encodes the value of a logged change: a tuple of kind, name, and time in milliseconds of Unix time.
pub fn pack_principal(kind: PrincipalKind, name: &str, at_ms: u64) -> Vec<u8> {
    let mut out = Vec::new();
    put_int(&mut out, kind_number(kind));
    put_text(&mut out, TUPLE_STRING, name.as_bytes());
    put_int(&mut out, at_ms);
    out
}

/// Decodes kind and name of a value of [`pack_principal`].
pub fn unpack_principal(value: &[u8]) -> Result<(PrincipalKind, String)> {
    let (kind, rest) = take_kind(value)?;
    Ok((kind, take_text_at(rest)?.0))
}

/// Decodes the time, in milliseconds of Unix time.
pub fn changed_principal_at(value: &[u8]) -> Result<u64> {
    let (_, rest) = take_text_at(take_kind(value)?.1)?;
    Ok(take_int(rest)?.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::keys::{RootKeys, Subspace};

    fn keys() -> Keys {
        RootKeys::new(b"fb").namespace(1)
    }

    #[test]
    fn keys_are_those_of_the_design() {
        let what = GrantedItem::Channel("X".to_owned());
        let way = b"\x01fb\0\x15\x03\x15\x01\x15\x12\x15\x03\x14\x02alice\0\x14\x02X\0\x15\x01\x02d\0";
        assert_eq!(keys().given_by_document(PrincipalKind::User, "alice", &what, "d"), way);
        let periods = b"\x01fb\0\x15\x03\x15\x01\x15\x12\x15\x02\x14\x02alice\0\x14\x02X\0";
        assert_eq!(keys().periods(PrincipalKind::User, "alice", &what), periods);
        let role = GrantedItem::Role("r".to_owned());
        let of_role = b"\x01fb\0\x15\x03\x15\x01\x15\x12\x15\x03\x15\x01\x02staff\0\x15\x01\x02r\0\x14";
        assert_eq!(keys().given_by_administrator(PrincipalKind::Role, "staff", &role), of_role);
        assert_eq!(keys().principal(PrincipalKind::User, ""), b"\x01fb\0\x15\x03\x15\x01\x15\x12\x14\x14\x02\0");
        assert_eq!(
            keys().principal_version(PrincipalKind::Role, "r"),
            b"\x01fb\0\x15\x03\x15\x01\x15\x12\x15\x01\x15\x01\x02r\0"
        );
        let session = keys().gateway_session(&[0; SESSION_HASH_BYTES]);
        assert_eq!(session[..10], *b"\x01fb\0\x15\x03\x15\x01\x15\x12");
        assert_eq!(session[10..], [&[0x15, 5, 1][..], &[0, 0xff].repeat(20), &[0]].concat());
        assert_eq!(keys().principal_local("a", "l", 0), b"\x01fb\0\x15\x03\x15\x01\x15\x12\x15\x06\x02a\0\x02l\0\x14");
        assert_eq!(pack_principal(PrincipalKind::Role, "r", 258), b"\x15\x01\x02r\0\x16\x01\x02");
    }

    #[test]
    fn an_administrators_way_stands_first() {
        let (keys, what) = (keys(), GrantedItem::Channel("X".to_owned()));
        let range = keys.ways(PrincipalKind::User, "a", &what);
        let ways = [
            keys.given_by_administrator(PrincipalKind::User, "a", &what),
            keys.given_by_document(PrincipalKind::User, "a", &what, ""),
        ];
        assert!(ways.is_sorted() && ways.iter().all(|way| range.begin <= *way && *way < range.end));
        for other in [
            GrantedItem::Channel("X\0".to_owned()),
            GrantedItem::Channel("XY".to_owned()),
            GrantedItem::Role("X".to_owned()),
        ] {
            let way = keys.given_by_administrator(PrincipalKind::User, "a", &other);
            assert!(way < range.begin || range.end <= way, "{other:?}");
        }
        let [first, second] = [1, 2].map(|last| Seq::new(7, [0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]));
        let after = keys.changed_principals_after(&first);
        let key = |seq: &Seq| {
            let mut key = keys.changed_principal_stamped(7, 9, 0);
            key.truncate(key.len() - 12 - 4);
            key.extend_from_slice(&seq.stamp()[4..]);
            key
        };
        let is_after = |seq: &Seq| after.begin <= key(seq) && key(seq) < after.end;
        assert_eq!([is_after(&first), is_after(&second)], [false, true]);
        assert_eq!(keys.split_principals(&key(&first)).unwrap(), PrincipalPart::Changed(first));
    }

    proptest! {
        #[test]
        fn what_is_put_is_taken(name in ".{0,40}", of in ".{0,40}", id in ".{0,40}", is_role: [bool; 2], part: u64) {
            let keys = keys();
            let kind = if is_role[0] { PrincipalKind::Role } else { PrincipalKind::User };
            let what = if is_role[1] { GrantedItem::Role(of) } else { GrantedItem::Channel(of) };
            let (whose, given) = (name.clone(), what.clone());
            let built = [
                (keys.principal(kind, &name), PrincipalPart::Record { kind, name: whose.clone() }, keys.principals(kind)),
                (
                    keys.principal_version(kind, &name),
                    PrincipalPart::Version { kind, name: whose.clone() },
                    keys.subspace(Subspace::Principals),
                ),
                (
                    keys.periods(kind, &name, &what),
                    PrincipalPart::Periods { kind, name: whose.clone(), what: given.clone() },
                    keys.periods_of(kind, &name),
                ),
                (
                    keys.given_by_administrator(kind, &name, &what),
                    PrincipalPart::Way { kind, name: whose.clone(), what: given.clone(), by: None },
                    keys.ways(kind, &name, &what),
                ),
                (
                    keys.given_by_document(kind, &name, &what, &id),
                    PrincipalPart::Way { kind, name: whose.clone(), what: given, by: Some(id.clone()) },
                    keys.ways(kind, &name, &what),
                ),
                (
                    keys.principal_local(&name, &id, part),
                    PrincipalPart::Local { name: whose, id: id.clone(), part },
                    keys.principal_local_parts(&name, &id),
                ),
            ];
            for (key, part, range) in built {
                prop_assert!(range.begin <= key && key < range.end && keys.check(Subspace::Principals, &key).is_ok());
                prop_assert_eq!(keys.split_principals(&key).unwrap(), part);
            }
            let changed = pack_principal(kind, &name, part);
            prop_assert_eq!(changed_principal_at(&changed).unwrap(), part);
            prop_assert_eq!(unpack_principal(&changed).unwrap(), (kind, name));
        }
    }
}
