//! Key selectors, resolved as in FoundationDB's client.

use std::borrow::Cow;

use crate::base::key_space::key_after;
use crate::read::view::{View, ViewResult};

/// A key selector as in `fdb_transaction_get_key`: the last key less than `key` (or equal, with `or_equal`), then
/// `offset` keys further. Any key and offset is allowed; the time is proportional to the offset.
#[derive(Clone, Copy, Debug)]
pub struct KeySelector<'a> {
    /// The key that the selector starts from.
    pub key: &'a [u8],
    /// True if a key equal to `key` counts as before it.
    pub or_equal: bool,
    /// Keys to advance; 1 is the first key after the start.
    pub offset: i32,
}

impl<'a> KeySelector<'a> {
    /// Selects the first key not below `key`.
    pub fn first_greater_or_equal(key: &'a [u8]) -> KeySelector<'a> {
        KeySelector { key, or_equal: false, offset: 1 }
    }

    /// Selects the first key above `key`.
    pub fn first_greater_than(key: &'a [u8]) -> KeySelector<'a> {
        KeySelector { key, or_equal: true, offset: 1 }
    }

    /// Returns whether nothing can lie between two selectors, whatever keys exist.
    pub(crate) fn are_inverted(begin: &KeySelector<'_>, end: &KeySelector<'_>) -> bool {
        begin.offset >= end.offset && (begin.or_equal || begin.key >= end.key) && begin.base() >= end.base()
    }

    /// The key from which `offset` counts: "less or equal `key`" is "less than the key after `key`".
    pub(crate) fn base(&self) -> Cow<'a, [u8]> {
        if self.or_equal { Cow::Owned(key_after(self.key)) } else { Cow::Borrowed(self.key) }
    }
}

pub(crate) struct ResolvedSelector {
    /// The selector's key is the first key not below this one; "" and `max_key` if it ran off an end.
    pub(crate) key: Vec<u8>,
    /// 1, or the rest of the offset if the selector ran off an end.
    pub(crate) offset: i64,
    pub(crate) is_before_begin: bool,
    pub(crate) is_past_end: bool,
}

/// Resolves a selector. `max_key` bounds the readable keys.
pub(crate) fn resolve(view: &View<'_>, base: &[u8], offset: i64, max_key: &[u8]) -> ViewResult<ResolvedSelector> {
    let at = |key: Vec<u8>| ResolvedSelector { key, offset: 1, is_before_begin: false, is_past_end: false };
    if offset == 1 {
        return Ok(at(base.to_vec()));
    }
    if offset > 1 {
        let mut left = offset;
        let mut items = view.ascend(base, max_key)?;
        while left > 1 {
            let Some(item) = items.next()?.filter(|item| item.key.as_ref() < max_key) else {
                return Ok(ResolvedSelector { offset: left, is_past_end: true, ..at(max_key.to_vec()) });
            };
            left -= 1;
            if left == 1 {
                return Ok(at(key_after(&item.key)));
            }
        }
    }
    let mut left = offset;
    let mut items = view.descend(base.min(max_key), b"")?;
    loop {
        // The empty key is the begin of the key space and counts as no step.
        let Some(item) = items.next()?.filter(|item| !item.key.is_empty()) else {
            return Ok(ResolvedSelector { offset: left, is_before_begin: true, ..at(Vec::new()) });
        };
        left += 1;
        if left == 1 {
            return Ok(at(item.key.into_owned()));
        }
    }
}

/// The answer of a read and its conflict range; begin not below end is no conflict.
pub(crate) struct Outcome<T> {
    pub(crate) answer: T,
    pub(crate) conflict: Option<(Vec<u8>, Vec<u8>)>,
}

/// Resolves `get_key`: the selector's key, "" before the first and `max_key` past the last.
pub(crate) fn get_key(view: &View<'_>, selector: KeySelector<'_>, max_key: &[u8]) -> ViewResult<Outcome<Vec<u8>>> {
    let base = selector.base().into_owned();
    let offset = i64::from(selector.offset);
    let found = if offset > 0 {
        let from = resolve(view, &base, offset, max_key)?;
        let mut items = view.ascend(&from.key, max_key)?;
        loop {
            match items.next()?.filter(|item| !from.is_past_end && item.key.as_ref() < max_key) {
                None => break max_key.to_vec(),
                Some(item) if item.value.is_some() => break item.key.into_owned(),
                Some(_) => {}
            }
        }
    } else {
        let below = resolve(view, &base, offset + 1, max_key)?;
        let mut items = view.descend(below.key.as_slice().min(max_key), b"")?;
        loop {
            match items.next()?.filter(|_| !below.is_before_begin) {
                None => break Vec::new(),
                Some(item) if item.value.is_some() => break item.key.into_owned(),
                Some(_) => {}
            }
        }
    };
    let conflict = if offset <= 0 { (found.clone(), base) } else { (base, key_after(&found)) };
    Ok(Outcome { answer: found, conflict: Some(conflict) })
}
