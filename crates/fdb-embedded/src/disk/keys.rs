//! The mapping from FoundationDB keys to LMDB keys.
//!
//! LMDB accepts keys of 1 to [`LMDB_KEY_BYTES_MAX`] bytes, FoundationDB of 0 to 10,000. Every user key is stored under
//! the tag byte [`USER_TAG`], so the empty key is a valid LMDB key. A key of [`SHORT_BYTES`] bytes or more shares one
//! *bucket* with all keys of the same first [`SHORT_BYTES`] bytes: the LMDB key is the tag and those bytes, the LMDB
//! value is the sorted list of (rest of the key, value). No shorter key begins with a bucket's prefix, so LMDB's order
//! of the stored keys is the order of the user's keys.
//!
//! A bucket is `entry*`; an entry is `rest_len: u32 LE, value_len: u32 LE, rest, value`, ascending by rest.

/// LMDB's limit with heed's feature `longer-keys`; opening an engine checks it.
pub(crate) const LMDB_KEY_BYTES_MAX: usize = 1982;
/// Keys below this length are stored as they are, longer ones in buckets.
pub(crate) const SHORT_BYTES: usize = LMDB_KEY_BYTES_MAX - 1;
/// First byte of the engine's own records.
pub(crate) const META_TAG: u8 = 0;
/// First byte of every stored user key.
pub(crate) const USER_TAG: u8 = 1;

/// LMDB keys up to this length are built without an allocation.
const INLINE_BYTES: usize = 128;

/// The storage place of a user key: the LMDB key, and the rest of the key if it is in a bucket.
#[derive(Debug)]
pub(crate) struct KeyPlace<'k> {
    inline: [u8; INLINE_BYTES],
    len: usize,
    /// The LMDB key if it is longer than `inline`.
    long: Vec<u8>,
    /// `None`: the LMDB value is the user's value. `Some(rest)`: the LMDB value is a bucket.
    pub(crate) rest: Option<&'k [u8]>,
}

impl<'k> KeyPlace<'k> {
    pub(crate) fn of(key: &'k [u8]) -> KeyPlace<'k> {
        let (head, rest) = match key.split_at_checked(SHORT_BYTES) {
            None => (key, None),
            Some((head, rest)) => (head, Some(rest)),
        };
        let (mut inline, len) = ([0; INLINE_BYTES], head.len() + 1);
        let mut long = Vec::new();
        if let Some(key) = inline.get_mut(1..len) {
            key.copy_from_slice(head);
            inline[0] = USER_TAG;
        } else {
            long.reserve_exact(len);
            long.push(USER_TAG);
            long.extend_from_slice(head);
        }
        KeyPlace { inline, len, long, rest }
    }

    pub(crate) fn lmdb_key(&self) -> &[u8] {
        self.inline.get(..self.len).unwrap_or(&self.long)
    }
}

pub(crate) fn is_bucket(lmdb_key: &[u8]) -> bool {
    lmdb_key.len() == LMDB_KEY_BYTES_MAX
}

/// An unreadable bucket: the file is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadBucket;

/// An entry of a bucket: the rest of its key, and its value.
pub(crate) type BucketEntry<'b> = (&'b [u8], &'b [u8]);

/// The entries of a bucket, ascending by the rest of the key.
#[derive(Clone)]
pub(crate) struct Bucket<'b>(pub(crate) &'b [u8]);

impl<'b> Bucket<'b> {
    /// Returns the next entry, `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<BucketEntry<'b>>, BadBucket> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let (rest_len, bytes) = take_len(self.0)?;
        let (value_len, bytes) = take_len(bytes)?;
        let (rest, bytes) = bytes.split_at_checked(rest_len).ok_or(BadBucket)?;
        let (value, bytes) = bytes.split_at_checked(value_len).ok_or(BadBucket)?;
        self.0 = bytes;
        Ok(Some((rest, value)))
    }

    pub(crate) fn find(mut self, wanted: &[u8]) -> Result<Option<&'b [u8]>, BadBucket> {
        while let Some((rest, value)) = self.next()? {
            if rest >= wanted {
                return Ok((rest == wanted).then_some(value));
            }
        }
        Ok(None)
    }

    pub(crate) fn entries(mut self) -> Result<Vec<BucketEntry<'b>>, BadBucket> {
        let mut entries = Vec::new();
        while let Some(entry) = self.next()? {
            entries.push(entry);
        }
        Ok(entries)
    }
}

fn take_len(bytes: &[u8]) -> Result<(usize, &[u8]), BadBucket> {
    let (len, bytes) = bytes.split_first_chunk::<4>().ok_or(BadBucket)?;
    Ok((u32::from_le_bytes(*len) as usize, bytes))
}

/// Appends an entry to a bucket being built; lengths are bounded by the limits of keys and values.
pub(crate) fn push_entry(bucket: &mut Vec<u8>, rest: &[u8], value: &[u8]) {
    bucket.extend_from_slice(&(rest.len() as u32).to_le_bytes());
    bucket.extend_from_slice(&(value.len() as u32).to_le_bytes());
    bucket.extend_from_slice(rest);
    bucket.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn long_or_short() -> impl Strategy<Value = Vec<u8>> {
        (prop::sample::select(vec![0usize, 1, 5, SHORT_BYTES - 1, SHORT_BYTES, SHORT_BYTES + 1]), "[ab\0]{0,3}")
            .prop_map(|(len, tail)| [&vec![b'a'; len][..], tail.as_bytes()].concat())
    }

    proptest! {
        #[test]
        fn order_is_kept(a in long_or_short(), b in long_or_short()) {
            let (pa, pb) = (KeyPlace::of(&a), KeyPlace::of(&b));
            let stored = |p: &KeyPlace<'_>| (p.lmdb_key().to_vec(), p.rest.map(<[u8]>::to_vec));
            prop_assert_eq!(stored(&pa).cmp(&stored(&pb)), a.cmp(&b));
            prop_assert_eq!(is_bucket(pa.lmdb_key()), pa.rest.is_some());
        }

        #[test]
        fn a_bucket_gives_back_its_entries(entries in prop::collection::btree_map(any::<Vec<u8>>(), any::<Vec<u8>>(), 0..9)) {
            let mut bytes = Vec::new();
            for (rest, value) in &entries {
                push_entry(&mut bytes, rest, value);
            }
            let read = Bucket(&bytes).entries().unwrap();
            prop_assert!(read.iter().copied().eq(entries.iter().map(|(r, v)| (&r[..], &v[..]))));
            for cut in 0..bytes.len() {
                let _ = Bucket(&bytes[..cut]).entries();
            }
        }
    }
}
