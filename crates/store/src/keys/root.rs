//! Keys directly under a root, except those of `updates` and `work`.

use crate::error::Result;
use crate::keys::tuple::{
    TUPLE_BYTES, TUPLE_STRING, behind, put_int, put_text, take_bytes_at, take_int, take_text, under, with_int,
};
use crate::keys::updates::bucket_of_bytes;
use crate::keys::{KeyRange, Keys};

// Under the root.
const INSTANCE: u64 = 0;
const DBS: u64 = 1;
const NEXT_NAMESPACE: u64 = 2;
const DATA: u64 = 3;
// 4, 10 and 11: `updates`; 16 and 17: `work`; 20: `stored`; 21: the crate `syncstorage`; 23: `record_changes`;
// 25: `access`.
const REPLICATORS: u64 = 22;
const MARKS: u64 = 8;
const SECRETS: u64 = 19;

/// Keys directly under the root.
#[derive(Debug, Clone)]
pub struct RootKeys {
    pub(super) prefix: Vec<u8>,
}

impl RootKeys {
    /// Creates the keys of a root. `root`: any bytes; they are the first element of every key.
    pub fn new(root: &[u8]) -> Self {
        let mut prefix = Vec::new();
        put_text(&mut prefix, TUPLE_BYTES, root);
        RootKeys { prefix }
    }

    /// Returns the range of the keys of all roots, and of all other keys that begin with a byte string.
    pub fn every_root() -> KeyRange {
        KeyRange { begin: vec![TUPLE_BYTES], end: vec![TUPLE_BYTES + 1] }
    }

    pub fn root_of(key: &[u8]) -> Result<Vec<u8>> {
        take_bytes_at(key, TUPLE_BYTES).map(|(root, _)| root)
    }

    /// Returns the end of the root's keys. Only another root, longer by a NUL, has keys that begin with it.
    pub fn end(&self) -> Vec<u8> {
        under(&self.prefix).end
    }

    pub fn instance(&self) -> Vec<u8> {
        with_int(&self.prefix, INSTANCE)
    }

    /// Returns the key of the secrets that sign sessions.
    pub fn secrets(&self) -> Vec<u8> {
        with_int(&self.prefix, SECRETS)
    }

    pub fn next_namespace(&self) -> Vec<u8> {
        with_int(&self.prefix, NEXT_NAMESPACE)
    }

    pub fn database(&self, name: &str) -> Vec<u8> {
        let mut key = with_int(&self.prefix, DBS);
        put_text(&mut key, TUPLE_STRING, name.as_bytes());
        key
    }

    pub fn databases(&self) -> KeyRange {
        KeyRange { begin: with_int(&self.prefix, DBS), end: with_int(&self.prefix, DBS + 1) }
    }

    pub fn database_name(&self, key: &[u8]) -> Result<String> {
        take_text(behind(key, &with_int(&self.prefix, DBS)))
    }

    /// Returns the key that each creation and deletion of a database in [`RootKeys::replicators`] changes.
    pub fn replicators_changed(&self) -> Vec<u8> {
        with_int(&self.prefix, REPLICATORS)
    }

    /// Returns the key whose presence lists a replicator database.
    pub fn replicator(&self, name: &str) -> Vec<u8> {
        let mut key = self.replicators_changed();
        put_text(&mut key, TUPLE_STRING, name.as_bytes());
        key
    }

    pub fn replicators(&self) -> KeyRange {
        let begin = [&self.replicators_changed()[..], &[0]].concat();
        KeyRange { begin, end: with_int(&self.prefix, REPLICATORS + 1) }
    }

    pub fn replicator_name(&self, key: &[u8]) -> Result<String> {
        take_text(behind(key, &self.replicators_changed()))
    }

    /// Returns the key of the mark of an operation that began at a time: see [`crate::once`]. A hash of the token
    /// stands before the time, so marks of one moment lie in 255 places. No bucket has the number 0, whose encoding is
    /// shorter than the others': the length of keys does not vary.
    pub fn mark(&self, at_ms: u64, token: &[u8; 16]) -> Vec<u8> {
        let mut key = self.bucket(MARKS, bucket_of_bytes(token).max(1));
        put_int(&mut key, at_ms);
        put_text(&mut key, TUPLE_BYTES, token);
        key
    }

    pub fn mark_time(&self, key: &[u8]) -> Result<u64> {
        let (_, rest) = take_int(behind(key, &with_int(&self.prefix, MARKS)))?;
        take_int(rest).map(|(at_ms, _)| at_ms)
    }

    /// Returns the key of the time, in milliseconds of Unix time, before which marks have been removed: see
    /// [`crate::once`].
    pub fn marks_removed(&self) -> Vec<u8> {
        with_int(&self.prefix, MARKS)
    }

    /// Returns the range of all marks.
    pub fn marks(&self) -> KeyRange {
        let begin = [&self.marks_removed()[..], &[0]].concat();
        KeyRange { begin, end: with_int(&self.prefix, MARKS + 1) }
    }

    /// Returns, for each bucket, the range of the marks of operations that began before a time.
    pub fn marks_until(&self, at_ms: u64) -> impl Iterator<Item = KeyRange> + '_ {
        (1..=u8::MAX).map(move |bucket| {
            let begin = self.bucket(MARKS, bucket);
            let mut end = begin.clone();
            put_int(&mut end, at_ms);
            KeyRange { begin, end }
        })
    }

    /// Returns the range of the data of every namespace from `namespace` up.
    pub fn namespaces_from(&self, namespace: u64) -> KeyRange {
        KeyRange { begin: self.namespace(namespace).prefix, end: with_int(&self.prefix, DATA + 1) }
    }

    pub fn namespace_of(&self, key: &[u8]) -> Result<u64> {
        take_int(behind(key, &with_int(&self.prefix, DATA))).map(|(namespace, _)| namespace)
    }

    pub fn namespace(&self, namespace: u64) -> Keys {
        let mut prefix = with_int(&self.prefix, DATA);
        put_int(&mut prefix, namespace);
        Keys { prefix }
    }
}
