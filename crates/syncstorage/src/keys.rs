//! All keys. They are FoundationDB tuples below {S}, which is `{root}/21`: see `design/syncstorage.md`.

mod due;
pub(crate) mod tuple;

pub(crate) use flatbed_kit::KeyRange;

use crate::error::Result;
use tuple::{BYTES, TEXT, bad_key, put_int, put_text, take_int, take_text};

use crate::names::{BatchId, CollectionName, RecordId, Uid};
use crate::timestamp::Timestamp;

/// Firefox Sync's number under the root. No other crate uses it.
const UNDER_ROOT: u64 = 21;

// Under {S}.
const FORMAT: u64 = 0;
const USERS: u64 = 1;
const DUE: u64 = 2;
const LEASES: u64 = 3;
/// The token server's users.
pub(crate) const ACCOUNTS: u64 = 4;

// Under {S}/1/{uid}, {U}.
const HEAD: u64 = 0;
const COLLECTIONS: u64 = 1;
const DATA: u64 = 2;
const STAGED: u64 = 3;
const BATCHES: u64 = 4;

// Under {U}/2/{collection}.
const RECORDS: u64 = 1;
const BY_MODIFIED: u64 = 2;
const BY_SORTINDEX: u64 = 3;
const BY_EXPIRY: u64 = 4;
const BLOBS: u64 = 5;

// Under {U}/3/{batch}.
const STAGED_RECORDS: u64 = 1;
const STAGED_BY_SORTINDEX: u64 = 2;
const STAGED_PAYLOADS: u64 = 3;

/// The number of slices of due work. [`shard_of`] distributes users over them, so that no key range is hot.
pub(crate) const SHARDS: u64 = 64;

/// Keys of Firefox Sync under one root.
#[derive(Debug, Clone)]
pub(crate) struct RootKeys {
    prefix: Vec<u8>,
}

impl RootKeys {
    /// Creates the keys of a root. `root`: any bytes, the setting of that name.
    pub(crate) fn new(root: &[u8]) -> RootKeys {
        let mut prefix = Vec::new();
        put_text(&mut prefix, BYTES, root);
        put_int(&mut prefix, UNDER_ROOT);
        RootKeys { prefix }
    }

    /// Returns the prefix of a part's keys: {S} and a number.
    pub(crate) fn part(&self, number: u64) -> Vec<u8> {
        with(&self.prefix, number)
    }

    /// Returns the range of all of Firefox Sync's keys.
    pub(crate) fn all(&self) -> KeyRange {
        KeyRange::under(self.prefix.clone())
    }

    pub(crate) fn format(&self) -> Vec<u8> {
        self.part(FORMAT)
    }

    pub(crate) fn lease(&self, id: &str) -> Vec<u8> {
        let mut key = self.part(LEASES);
        put_text(&mut key, TEXT, id.as_bytes());
        key
    }

    pub(crate) fn user(&self, uid: Uid) -> UserKeys {
        UserKeys { prefix: with(&self.part(USERS), uid.0), due: self.part(DUE), uid }
    }

    pub(crate) fn users_from(&self, uid: Uid) -> KeyRange {
        KeyRange { begin: with(&self.part(USERS), uid.0), end: self.part(USERS + 1) }
    }

    /// Parses any user's key into the user.
    pub(crate) fn uid_of(&self, key: &[u8]) -> Result<Uid> {
        let rest = key.strip_prefix(self.part(USERS).as_slice()).ok_or_else(bad_key)?;
        Ok(Uid(take_int(rest)?.0))
    }

    pub(crate) fn due_until(&self, shard: u64, at: Timestamp) -> KeyRange {
        let begin = with(&self.part(DUE), shard);
        let end = with(&begin, at.next().hundredths() as u64);
        KeyRange { begin, end }
    }

    pub(crate) fn due_all(&self) -> KeyRange {
        KeyRange { begin: self.part(DUE), end: self.part(DUE + 1) }
    }

    pub(crate) fn take_due(&self, key: &[u8]) -> Result<DueEntry> {
        let rest = key.strip_prefix(self.part(DUE).as_slice()).ok_or_else(bad_key)?;
        let (_, rest) = take_int(rest)?;
        let (at, rest) = take_time(rest)?;
        let (kind, rest) = take_int(rest)?;
        let (uid, rest) = take_int(rest)?;
        let (due, rest) = match kind {
            1 => {
                let (collection, rest) = take_collection(rest)?;
                (Due::Expiry(collection), rest)
            }
            2 => {
                let (batch, rest) = take_int(rest)?;
                (Due::Batch(BatchId(batch)), rest)
            }
            3 => {
                let (collection, rest) = take_collection(rest)?;
                (Due::Fold(collection), rest)
            }
            4 => (Due::Purge, rest),
            _ => return Err(bad_key()),
        };
        if rest.is_empty() { Ok(DueEntry { at, uid: Uid(uid), due }) } else { Err(bad_key()) }
    }
}

/// A kind of due work.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// Remove expired records of the collection. No record expires before the entry's time.
    Expiry(CollectionName),
    /// Remove a batch or an upload that is not committed by then.
    Batch(BatchId),
    /// Fold a committed batch that its process has not folded.
    Fold(CollectionName),
    /// Remove a user's data.
    Purge,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DueEntry {
    pub at: Timestamp,
    pub uid: Uid,
    pub due: Due,
}

/// The keys of one user: {U}.
#[derive(Debug, Clone)]
pub(crate) struct UserKeys {
    prefix: Vec<u8>,
    due: Vec<u8>,
    uid: Uid,
}

impl UserKeys {
    pub(crate) fn uid(&self) -> Uid {
        self.uid
    }

    /// Returns the key of the user's clock.
    pub(crate) fn head(&self) -> Vec<u8> {
        with(&self.prefix, HEAD)
    }

    /// Returns the range of all of the user's keys.
    pub(crate) fn all(&self) -> KeyRange {
        KeyRange::under(self.prefix.clone())
    }

    /// Returns the range of all of the user's keys except the clock.
    pub(crate) fn all_but_head(&self) -> KeyRange {
        KeyRange { begin: with(&self.prefix, COLLECTIONS), end: KeyRange::under(self.prefix.clone()).end }
    }

    /// Returns the range of the clock and all collections' states.
    pub(crate) fn head_and_collections(&self) -> KeyRange {
        KeyRange { begin: self.head(), end: with(&self.prefix, COLLECTIONS + 1) }
    }

    pub(crate) fn collections(&self) -> KeyRange {
        KeyRange { begin: with(&self.prefix, COLLECTIONS), end: with(&self.prefix, COLLECTIONS + 1) }
    }

    pub(crate) fn take_collection(&self, key: &[u8]) -> Result<CollectionName> {
        let rest = key.strip_prefix(with(&self.prefix, COLLECTIONS).as_slice()).ok_or_else(bad_key)?;
        let (name, rest) = take_collection(rest)?;
        if rest.is_empty() { Ok(name) } else { Err(bad_key()) }
    }

    pub(crate) fn collection(&self, name: &CollectionName) -> CollectionKeys {
        let mut state = with(&self.prefix, COLLECTIONS);
        put_collection(&mut state, name);
        let mut data = with(&self.prefix, DATA);
        put_collection(&mut data, name);
        CollectionKeys { state, data }
    }

    pub(crate) fn batch(&self, batch: BatchId) -> BatchKeys {
        BatchKeys {
            record: with(&with(&self.prefix, BATCHES), batch.0),
            data: with(&with(&self.prefix, STAGED), batch.0),
        }
    }

    /// Returns the range of the records of batches and uploads that are not committed.
    pub(crate) fn batches(&self) -> KeyRange {
        KeyRange { begin: with(&self.prefix, BATCHES), end: with(&self.prefix, BATCHES + 1) }
    }

    pub(crate) fn take_batch(&self, key: &[u8]) -> Result<BatchId> {
        let rest = key.strip_prefix(with(&self.prefix, BATCHES).as_slice()).ok_or_else(bad_key)?;
        match take_int(rest)? {
            (batch, []) => Ok(BatchId(batch)),
            _ => Err(bad_key()),
        }
    }

    /// Returns the range of everything staged, in committed and other batches.
    pub(crate) fn staged(&self) -> KeyRange {
        KeyRange { begin: with(&self.prefix, STAGED), end: with(&self.prefix, STAGED + 1) }
    }

    pub(crate) fn take_staged(&self, key: &[u8]) -> Result<BatchId> {
        let rest = key.strip_prefix(with(&self.prefix, STAGED).as_slice()).ok_or_else(bad_key)?;
        Ok(BatchId(take_int(rest)?.0))
    }

    pub(crate) fn data(&self) -> KeyRange {
        KeyRange { begin: with(&self.prefix, DATA), end: with(&self.prefix, DATA + 1) }
    }

    pub(crate) fn take_data(&self, key: &[u8]) -> Result<CollectionName> {
        let rest = key.strip_prefix(with(&self.prefix, DATA).as_slice()).ok_or_else(bad_key)?;
        Ok(take_collection(rest)?.0)
    }

    /// Returns the key of an entry of this user's due work.
    pub(crate) fn due(&self, at: Timestamp, due: &Due) -> Vec<u8> {
        let mut key = with(&self.due, shard_of(self.uid));
        put_int(&mut key, at.hundredths() as u64);
        let kind = match due {
            Due::Expiry(_) => 1,
            Due::Batch(_) => 2,
            Due::Fold(_) => 3,
            Due::Purge => 4,
        };
        put_int(&mut key, kind);
        put_int(&mut key, self.uid.0);
        match due {
            Due::Batch(batch) => put_int(&mut key, batch.0),
            Due::Expiry(collection) | Due::Fold(collection) => put_collection(&mut key, collection),
            Due::Purge => {}
        }
        key
    }
}

/// Returns the slice of a user's due work: the top bits of the product with 2^64 divided by the golden ratio, which
/// separates users with consecutive numbers.
pub(crate) fn shard_of(uid: Uid) -> u64 {
    uid.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SHARDS.trailing_zeros())
}

#[derive(Debug, Clone)]
pub(crate) struct CollectionKeys {
    state: Vec<u8>,
    data: Vec<u8>,
}

impl CollectionKeys {
    /// Returns the key of its state. Every write of the collection conflicts on this key.
    pub(crate) fn state(&self) -> &[u8] {
        &self.state
    }

    pub(crate) fn data(&self) -> KeyRange {
        KeyRange::under(self.data.clone())
    }

    pub(crate) fn records(&self) -> KeyRange {
        self.range(RECORDS)
    }

    pub(crate) fn record(&self, id: &RecordId) -> Vec<u8> {
        with_id(with(&self.data, RECORDS), id)
    }

    pub(crate) fn take_record(&self, key: &[u8]) -> Result<RecordId> {
        last_id(key.strip_prefix(with(&self.data, RECORDS).as_slice()).ok_or_else(bad_key)?)
    }

    /// Returns the range of the entries by time that may lie between two times, inclusive.
    pub(crate) fn by_modified(&self, from: Timestamp, to: Timestamp) -> KeyRange {
        let prefix = with(&self.data, BY_MODIFIED);
        KeyRange {
            begin: with(&prefix, from.hundredths() as u64),
            end: with(&prefix, (to.hundredths() as u64).saturating_add(1)),
        }
    }

    pub(crate) fn modified(&self, modified: Timestamp, id: &RecordId) -> Vec<u8> {
        with_id(with(&with(&self.data, BY_MODIFIED), modified.hundredths() as u64), id)
    }

    pub(crate) fn take_modified(&self, key: &[u8]) -> Result<(Timestamp, RecordId)> {
        let rest = key.strip_prefix(with(&self.data, BY_MODIFIED).as_slice()).ok_or_else(bad_key)?;
        let (modified, rest) = take_time(rest)?;
        Ok((modified, last_id(rest)?))
    }

    pub(crate) fn by_sortindex(&self) -> KeyRange {
        self.range(BY_SORTINDEX)
    }

    pub(crate) fn sortindex(&self, sort: SortKey, id: &RecordId) -> Vec<u8> {
        with_id(with(&with(&self.data, BY_SORTINDEX), sort.0), id)
    }

    pub(crate) fn take_sortindex(&self, key: &[u8]) -> Result<(SortKey, RecordId)> {
        let rest = key.strip_prefix(with(&self.data, BY_SORTINDEX).as_slice()).ok_or_else(bad_key)?;
        let (sort, rest) = take_int(rest)?;
        Ok((SortKey(sort), last_id(rest)?))
    }

    /// Returns the range of the entries of records that have expired at a time.
    pub(crate) fn expired(&self, at: Timestamp) -> KeyRange {
        let prefix = with(&self.data, BY_EXPIRY);
        KeyRange { end: with(&prefix, at.hundredths() as u64 + 1), begin: prefix }
    }

    pub(crate) fn by_expiry(&self) -> KeyRange {
        self.range(BY_EXPIRY)
    }

    pub(crate) fn expiry(&self, expires: Timestamp, id: &RecordId) -> Vec<u8> {
        with_id(with(&with(&self.data, BY_EXPIRY), expires.hundredths() as u64), id)
    }

    pub(crate) fn take_expiry(&self, key: &[u8]) -> Result<(Timestamp, RecordId)> {
        let rest = key.strip_prefix(with(&self.data, BY_EXPIRY).as_slice()).ok_or_else(bad_key)?;
        let (expires, rest) = take_time(rest)?;
        Ok((expires, last_id(rest)?))
    }

    pub(crate) fn blobs(&self) -> KeyRange {
        self.range(BLOBS)
    }

    /// Returns the range of all parts that one batch, upload or write wrote.
    pub(crate) fn blobs_of(&self, writer: u64) -> KeyRange {
        KeyRange::under(with(&with(&self.data, BLOBS), writer))
    }

    /// Returns the range of all parts of a payload.
    pub(crate) fn blob(&self, blob: BlobId) -> KeyRange {
        KeyRange::under(with(&with(&with(&self.data, BLOBS), blob.writer), blob.number))
    }

    /// Returns the range of all parts of payloads of the same writer from one number to another, inclusive.
    pub(crate) fn blobs_between(&self, first: BlobId, last: u64) -> KeyRange {
        KeyRange { begin: self.blob(first).begin, end: self.blob(BlobId { number: last, ..first }).end }
    }

    pub(crate) fn blob_part(&self, blob: BlobId, part: u64) -> Vec<u8> {
        with(&with(&with(&with(&self.data, BLOBS), blob.writer), blob.number), part)
    }

    /// Parses a key of [`CollectionKeys::blobs`] into its payload and part.
    pub(crate) fn take_blob(&self, key: &[u8]) -> Result<(BlobId, u64)> {
        let rest = key.strip_prefix(with(&self.data, BLOBS).as_slice()).ok_or_else(bad_key)?;
        let (writer, rest) = take_int(rest)?;
        let (number, rest) = take_int(rest)?;
        match take_int(rest)? {
            (part, []) => Ok((BlobId { writer, number }, part)),
            _ => Err(bad_key()),
        }
    }

    fn range(&self, number: u64) -> KeyRange {
        KeyRange { begin: with(&self.data, number), end: with(&self.data, number + 1) }
    }
}

/// The id of a large payload: its writer, and its number among the writer's payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlobId {
    /// The number of a batch or an upload, or one drawn for a write.
    pub writer: u64,
    pub number: u64,
}

/// The sort key of a sortindex. A record without a sortindex has 0 and comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SortKey(pub u64);

impl SortKey {
    pub(crate) fn of(sortindex: Option<i32>) -> SortKey {
        SortKey(sortindex.map_or(0, |sortindex| (i64::from(sortindex) + 1_000_000_000).max(1) as u64))
    }
}

#[derive(Debug, Clone)]
pub(crate) struct BatchKeys {
    record: Vec<u8>,
    data: Vec<u8>,
}

impl BatchKeys {
    /// Returns the key of its record, which exists until it is committed.
    pub(crate) fn record(&self) -> &[u8] {
        &self.record
    }

    pub(crate) fn data(&self) -> KeyRange {
        KeyRange::under(self.data.clone())
    }

    pub(crate) fn staged(&self) -> KeyRange {
        self.range(STAGED_RECORDS)
    }

    pub(crate) fn staged_record(&self, id: &RecordId) -> Vec<u8> {
        with_id(with(&self.data, STAGED_RECORDS), id)
    }

    pub(crate) fn take_staged(&self, key: &[u8]) -> Result<RecordId> {
        last_id(key.strip_prefix(with(&self.data, STAGED_RECORDS).as_slice()).ok_or_else(bad_key)?)
    }

    pub(crate) fn by_sortindex(&self) -> KeyRange {
        self.range(STAGED_BY_SORTINDEX)
    }

    pub(crate) fn sortindex(&self, sort: SortKey, id: &RecordId) -> Vec<u8> {
        with_id(with(&with(&self.data, STAGED_BY_SORTINDEX), sort.0), id)
    }

    pub(crate) fn take_sortindex(&self, key: &[u8]) -> Result<(SortKey, RecordId)> {
        let rest = key.strip_prefix(with(&self.data, STAGED_BY_SORTINDEX).as_slice()).ok_or_else(bad_key)?;
        let (sort, rest) = take_int(rest)?;
        Ok((SortKey(sort), last_id(rest)?))
    }

    pub(crate) fn payloads(&self) -> KeyRange {
        self.range(STAGED_PAYLOADS)
    }

    pub(crate) fn payload(&self, id: &RecordId) -> Vec<u8> {
        with_id(with(&self.data, STAGED_PAYLOADS), id)
    }

    pub(crate) fn take_payload(&self, key: &[u8]) -> Result<RecordId> {
        last_id(key.strip_prefix(with(&self.data, STAGED_PAYLOADS).as_slice()).ok_or_else(bad_key)?)
    }

    fn range(&self, number: u64) -> KeyRange {
        KeyRange { begin: with(&self.data, number), end: with(&self.data, number + 1) }
    }
}

fn with(prefix: &[u8], number: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(prefix.len() + 90);
    key.extend_from_slice(prefix);
    put_int(&mut key, number);
    key
}

fn with_id(mut key: Vec<u8>, id: &RecordId) -> Vec<u8> {
    put_text(&mut key, TEXT, id.as_str().as_bytes());
    key
}

/// Appends the fixed number of a known collection, or the name of any other.
fn put_collection(key: &mut Vec<u8>, name: &CollectionName) {
    match name.known() {
        Some(number) => put_int(key, number),
        None => put_text(key, TEXT, name.as_str().as_bytes()),
    }
}

fn take_collection(key: &[u8]) -> Result<(CollectionName, &[u8])> {
    if key.first() != Some(&TEXT) {
        let (number, rest) = take_int(key)?;
        return Ok((CollectionName::of_known(number).ok_or_else(bad_key)?, rest));
    }
    let (name, rest) = take_text(key, TEXT)?;
    let name = std::str::from_utf8(&name).ok().and_then(CollectionName::new).ok_or_else(bad_key)?;
    // A name has only one key.
    if name.known().is_some() { Err(bad_key()) } else { Ok((name, rest)) }
}

fn take_id(key: &[u8]) -> Result<(RecordId, &[u8])> {
    let (id, rest) = take_text(key, TEXT)?;
    let id = std::str::from_utf8(&id).ok().and_then(RecordId::new).ok_or_else(bad_key)?;
    Ok((id, rest))
}

fn last_id(key: &[u8]) -> Result<RecordId> {
    let (id, rest) = take_id(key)?;
    if rest.is_empty() { Ok(id) } else { Err(bad_key()) }
}

fn take_time(key: &[u8]) -> Result<(Timestamp, &[u8])> {
    let (hundredths, rest) = take_int(key)?;
    let hundredths = i64::try_from(hundredths).map_err(|_| bad_key())?;
    Ok((Timestamp::from_hundredths(hundredths), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use foundationdb::tuple::{Bytes, pack};
    use proptest::prelude::*;

    fn user() -> UserKeys {
        RootKeys::new(b"fb").user(Uid(7))
    }

    fn name(name: &str) -> CollectionName {
        CollectionName::new(name).unwrap()
    }

    #[test]
    fn keys_are_tuples() {
        let (root, at) = (Bytes::from(b"fb".to_vec()), Timestamp::from_hundredths(170_000_000_000));
        let (user, a) = (user(), RecordId::new("a").unwrap());
        let bookmarks = user.collection(&name("bookmarks"));
        assert_eq!(user.head(), pack(&(root.clone(), 21, 1, 7, 0)));
        assert_eq!(bookmarks.state(), pack(&(root.clone(), 21, 1, 7, 1, 7)));
        assert_eq!(user.collection(&name("x.y")).state(), pack(&(root.clone(), 21, 1, 7, 1, "x.y")));
        assert_eq!(bookmarks.record(&a), pack(&(root.clone(), 21, 1, 7, 2, 7, 1, "a")));
        assert_eq!(bookmarks.modified(at, &a), pack(&(root.clone(), 21, 1, 7, 2, 7, 2, at.hundredths(), "a")));
        let sort = SortKey::of(Some(3));
        assert_eq!(bookmarks.sortindex(sort, &a), pack(&(root.clone(), 21, 1, 7, 2, 7, 3, 1_000_000_003, "a")));
        assert_eq!(bookmarks.expiry(at, &a), pack(&(root.clone(), 21, 1, 7, 2, 7, 4, at.hundredths(), "a")));
        let blob = BlobId { writer: 5, number: 6 };
        assert_eq!(bookmarks.blob_part(blob, 1), pack(&(root.clone(), 21, 1, 7, 2, 7, 5, 5, 6, 1)));
        let batch = user.batch(BatchId(300));
        assert_eq!(batch.staged_record(&a), pack(&(root.clone(), 21, 1, 7, 3, 300, 1, "a")));
        assert_eq!(batch.payload(&a), pack(&(root.clone(), 21, 1, 7, 3, 300, 3, "a")));
        assert_eq!(batch.record(), pack(&(root.clone(), 21, 1, 7, 4, 300)));
        let due = user.due(at, &Due::Expiry(name("bookmarks")));
        assert_eq!(due, pack(&(root, 21, 2, 20, at.hundredths(), 1, 7, 7)));
    }

    proptest! {
        #[test]
        fn what_is_put_is_taken(
            id in "[ -~]{1,64}", other in "[A-Za-z0-9._-]{1,32}", at in 0..9_000_000_000_i64, number in any::<u64>(),
        ) {
            let (root, at, id) = (RootKeys::new(b"r"), Timestamp::from_hundredths(at), RecordId::new(&id).unwrap());
            let (uid, other) = (Uid(number), name(&other));
            let user = root.user(uid);
            let keys = user.collection(&other);
            prop_assert_eq!(root.uid_of(keys.state()).unwrap(), uid);
            prop_assert_eq!(user.take_collection(keys.state()).unwrap(), other.clone());
            prop_assert_eq!(user.take_data(&keys.record(&id)).unwrap(), other.clone());
            prop_assert_eq!(keys.take_record(&keys.record(&id)).unwrap(), id.clone());
            prop_assert_eq!(keys.take_modified(&keys.modified(at, &id)).unwrap(), (at, id.clone()));
            prop_assert_eq!(keys.take_expiry(&keys.expiry(at, &id)).unwrap(), (at, id.clone()));
            let blob = BlobId { writer: number, number };
            prop_assert_eq!(keys.take_blob(&keys.blob_part(blob, 3)).unwrap(), (blob, 3));
            let batch = user.batch(BatchId(number));
            prop_assert_eq!(user.take_batch(batch.record()).unwrap(), BatchId(number));
            prop_assert_eq!(user.take_staged(&batch.payload(&id)).unwrap(), BatchId(number));
            prop_assert_eq!(batch.take_payload(&batch.payload(&id)).unwrap(), id.clone());
            for due in [Due::Expiry(other.clone()), Due::Fold(other.clone()), Due::Batch(BatchId(number)), Due::Purge] {
                prop_assert_eq!(root.take_due(&user.due(at, &due)).unwrap(), DueEntry { at, uid, due });
            }
        }

        #[test]
        fn order_of_keys_is_that_of_lists(
            one in (0..9_000_i64, -5..5_i32, "[ -~]{1,3}"), other in (0..9_000_i64, -5..5_i32, "[ -~]{1,3}"),
        ) {
            let keys = user().collection(&name("tabs"));
            let of = |(at, sort, id): &(i64, i32, String)| {
                let (at, id) = (Timestamp::from_hundredths(*at), RecordId::new(id).unwrap());
                let sort = Some(*sort).filter(|sort| *sort != 0);
                let found = (keys.modified(at, &id), keys.sortindex(SortKey::of(sort), &id), keys.record(&id));
                ((at, sort, id), found)
            };
            let (((at, sort, id), found), (other, behind)) = (of(&one), of(&other));
            prop_assert_eq!(found.0.cmp(&behind.0), (at, &id).cmp(&(other.0, &other.2)));
            prop_assert_eq!(found.1.cmp(&behind.1), (sort, &id).cmp(&(other.1, &other.2)));
            prop_assert_eq!(found.2.cmp(&behind.2), id.cmp(&other.2));
        }

        #[test]
        fn foreign_keys_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let (root, user) = (RootKeys::new(b"fb"), user());
            let (keys, batch) = (user.collection(&name("tabs")), user.batch(BatchId(1)));
            for begin in [root.part(DUE), user.collections().begin, keys.records().begin, keys.blobs().begin, Vec::new()] {
                let key = [&begin[..], &bytes].concat();
                let _ = (root.take_due(&key), root.uid_of(&key), user.take_collection(&key), user.take_data(&key));
                let _ = (keys.take_record(&key), keys.take_modified(&key), keys.take_sortindex(&key));
                let _ = (keys.take_expiry(&key), keys.take_blob(&key), user.take_batch(&key), user.take_staged(&key));
                let _ = (batch.take_staged(&key), batch.take_payload(&key), batch.take_sortindex(&key));
                let _ = (root.take_deferred(&key), root.take_lease(&key));
            }
        }
    }
}
