//! Key selectors, range reads and the read conflicts that they make, as FoundationDB's client makes them.
//!
//! Two rule sets: [`Rules::ReadYourWrites`] is the client's read-your-writes layer, [`Rules::Native`] what lies below it
//! and answers when `read_your_writes_disable` is set. They resolve selectors alike; they differ in the extent of the
//! read conflicts.

use crate::base::error::{Error, Result};
use crate::read::view::{View, ViewError, ViewResult};
use crate::read::write_map::key_after;

/// A key selector as `fdb_transaction_get_key` takes it: the last key less than `key` (or equal, with `or_equal`), then
/// `offset` keys further. Any key, any offset; walking an offset costs time in proportion to it.
#[derive(Clone, Copy, Debug)]
pub struct KeySelector<'a> {
    /// The key that the selector starts from.
    pub key: &'a [u8],
    /// Whether a key equal to `key` counts as before it.
    pub or_equal: bool,
    /// How many keys to go on; 1 is the first key after the start.
    pub offset: i32,
}

impl<'a> KeySelector<'a> {
    /// The first key not below `key`.
    pub fn first_greater_or_equal(key: &'a [u8]) -> KeySelector<'a> {
        KeySelector { key, or_equal: false, offset: 1 }
    }

    /// The first key above `key`.
    pub fn first_greater_than(key: &'a [u8]) -> KeySelector<'a> {
        KeySelector { key, or_equal: true, offset: 1 }
    }

    /// Whether nothing can lie between two selectors, wherever keys are.
    pub(crate) fn are_inverted(begin: &KeySelector<'_>, end: &KeySelector<'_>) -> bool {
        begin.offset >= end.offset && (begin.or_equal || begin.key >= end.key) && begin.base() >= end.base()
    }

    /// The key from which `offset` counts: "less or equal `key`" is "less than the key after `key`".
    pub(crate) fn base(&self) -> Vec<u8> {
        if self.or_equal { key_after(self.key) } else { self.key.to_vec() }
    }
}

/// How a range shall be read; the fields are the arguments of `fdb_transaction_get_range`.
#[derive(Clone, Debug)]
pub struct RangeOptions {
    /// Most pairs to return; 0 is no limit; negative is refused (2012).
    pub limit: i32,
    /// Bytes to aim at; 0 is no limit but the mode's.
    pub target_bytes: i32,
    /// Streaming mode: -2 want all, -1 iterator, 0 exact, 1 small, 2 medium, 3 large, 4 serial.
    pub mode: i32,
    /// Which call of an iteration this is, from 1; counts in mode -1 only.
    pub iteration: i32,
    /// Whether the read makes no read conflict.
    pub snapshot: bool,
    /// Whether to read from the end.
    pub reverse: bool,
}

impl Default for RangeOptions {
    fn default() -> Self {
        RangeOptions { limit: 0, target_bytes: 0, mode: -2, iteration: 1, snapshot: false, reverse: false }
    }
}

/// Where a pair lies in [`RangeResult::arena`], in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairAt {
    /// First byte of the key.
    pub key_start: u32,
    /// Bytes of the key.
    pub key_len: u32,
    /// First byte of the value.
    pub value_start: u32,
    /// Bytes of the value.
    pub value_len: u32,
}

/// What a range read answers: all keys and values in one arena.
#[derive(Clone, Debug, Default)]
pub struct RangeResult {
    /// The bytes of all keys and values.
    pub arena: Vec<u8>,
    /// The pairs in the order of the read.
    pub pairs: Vec<PairAt>,
    /// Whether a limit ended the read, so that there may be more.
    pub more: bool,
}

impl RangeResult {
    /// The pair at a position, if there is one.
    pub fn get(&self, at: usize) -> Option<(&[u8], &[u8])> {
        let pair = self.pairs.get(at)?;
        let bytes = |start: u32, len: u32| self.arena.get(start as usize..).and_then(|rest| rest.get(..len as usize));
        Some((bytes(pair.key_start, pair.key_len)?, bytes(pair.value_start, pair.value_len)?))
    }

    /// The pairs in the order of the read.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (0..self.pairs.len()).filter_map(|at| self.get(at))
    }

    /// Makes room for a pair: at first for a few more like it, then for as many as the limits let through.
    fn make_room(&mut self, pair_bytes: usize, limits: &Limits) {
        const FIRST_BYTES: usize = 4 << 10;
        const BYTES_MAX: usize = 128 << 10;
        if self.arena.capacity() - self.arena.len() >= pair_bytes {
            return;
        }
        let bytes_max = if self.pairs.is_empty() { FIRST_BYTES } else { BYTES_MAX };
        let rows_max = limits.rows.map_or(usize::MAX, |rows| rows as usize);
        let bytes = limits.bytes.map_or(bytes_max, |bytes| bytes.min(bytes_max));
        let pairs = (bytes / (pair_bytes + 8) + 1).min(rows_max).max(1);
        self.pairs.reserve(pairs);
        self.arena.reserve(pairs.saturating_mul(pair_bytes));
    }

    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) {
        let key_start = self.arena.len() as u32;
        self.arena.extend_from_slice(key);
        let value_start = self.arena.len() as u32;
        self.arena.extend_from_slice(value);
        let (key_len, value_len) = (key.len() as u32, value.len() as u32);
        self.pairs.push(PairAt { key_start, key_len, value_start, value_len });
    }

    /// Makes the pairs between the first and the last empty.
    pub(crate) fn blank_inner(&mut self) {
        let last = self.pairs.len().saturating_sub(1);
        for pair in self.pairs.iter_mut().take(last).skip(1) {
            (pair.key_len, pair.value_len) = (0, 0);
        }
    }

    /// Keeps the first pairs only, and says that there is more.
    pub(crate) fn cut(&mut self, len: usize) {
        self.pairs.truncate(len);
        self.more = true;
    }

    fn first_key(&self) -> Option<&[u8]> {
        self.get(0).map(|(key, _)| key)
    }

    fn last_key(&self) -> Option<&[u8]> {
        self.get(self.pairs.len().checked_sub(1)?).map(|(key, _)| key)
    }
}

/// No result grows past this, whatever was asked: offsets in the arena are 32 bits, and memory is bounded.
const RESULT_BYTES_MAX: usize = 1 << 28;

/// How much of a range may still be returned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) rows: Option<u32>,
    pub(crate) bytes: Option<usize>,
    /// Bytes that count beside those of each pair.
    pub(crate) pair_overhead: usize,
    /// A limit is negative, which is told once the transaction and the range were looked at.
    pub(crate) is_invalid: bool,
}

/// What FoundationDB's client counts beside the bytes of each pair.
const PAIR_OVERHEAD: usize = 8;

impl Limits {
    /// None at all.
    pub(crate) const NONE: Limits = Limits { rows: None, bytes: None, pair_overhead: PAIR_OVERHEAD, is_invalid: false };

    /// The limits that `fdb_transaction_get_range` makes of its arguments: 2210 or 2000 where they are not valid.
    pub(crate) fn of(options: &RangeOptions) -> Result<Limits> {
        /// Bytes of small, medium, large and serial.
        const MODE_BYTES: [usize; 4] = [256, 1_000, 4_096, 80_000];
        const ITERATION_BYTES: [usize; 10] =
            [4_096, 6_144, 9_216, 13_824, 20_736, 31_104, 46_656, 69_984, 80_000, 120_000];
        let given = |number: i32| usize::try_from(number).ok().filter(|&number| number > 0);
        // Beside 0, -1 is no limit as well.
        let is_unlimited = |number: i32| number == 0 || number == -1;
        if options.mode == 0 && is_unlimited(options.limit) && is_unlimited(options.target_bytes) {
            return Err(Error::EXACT_MODE_WITHOUT_LIMITS);
        }
        let mode_bytes = match options.mode {
            -2 => Some(MODE_BYTES[3]),
            -1 => {
                let iteration = given(options.iteration).ok_or(Error::CLIENT_INVALID_OPERATION)?;
                Some(ITERATION_BYTES[iteration.min(ITERATION_BYTES.len()) - 1])
            }
            0 => None,
            mode @ 1..=4 => Some(MODE_BYTES[mode as usize - 1]),
            _ => return Err(Error::CLIENT_INVALID_OPERATION),
        };
        let bytes = match (given(options.target_bytes), mode_bytes) {
            (Some(target), Some(mode)) => Some(target.min(mode)),
            (target, mode) => target.or(mode),
        };
        let is_invalid = options.limit < -1 || options.target_bytes < -1;
        let rows = given(options.limit).map(|rows| rows as u32);
        Ok(Limits { rows, bytes, pair_overhead: PAIR_OVERHEAD, is_invalid })
    }

    /// 2012 for a negative limit.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_invalid { Err(Error::RANGE_LIMITS_INVALID) } else { Ok(()) }
    }

    /// Takes one pair off.
    pub(crate) fn take(&mut self, key: &[u8], value: &[u8]) {
        self.rows = self.rows.map(|rows| rows.saturating_sub(1));
        self.bytes = self.bytes.map(|bytes| bytes.saturating_sub(self.pair_overhead + key.len() + value.len()));
    }

    /// At least one pair was taken when this is asked.
    pub(crate) fn is_reached(&self) -> bool {
        self.rows == Some(0) || self.bytes == Some(0)
    }
}

/// Which conflicts a read makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rules {
    ReadYourWrites,
    Native,
}

/// A selector walked to its place.
struct Resolved {
    /// The first key not below this one is what the selector means; "" and `max_key` where it ran off.
    key: Vec<u8>,
    /// 1; or what was left of the offset when the selector ran off an end.
    offset: i64,
    is_before_begin: bool,
    is_past_end: bool,
}

/// Walks a selector. `max_key` bounds what may be read.
fn resolve(view: &View<'_>, base: &[u8], offset: i64, max_key: &[u8]) -> ViewResult<Resolved> {
    let at = |key: Vec<u8>| Resolved { key, offset: 1, is_before_begin: false, is_past_end: false };
    if offset == 1 {
        return Ok(at(base.to_vec()));
    }
    if offset > 1 {
        let mut left = offset;
        let mut items = view.ascend(base, max_key)?;
        while left > 1 {
            let Some(item) = items.next()?.filter(|item| item.key.as_ref() < max_key) else {
                return Ok(Resolved { offset: left, is_past_end: true, ..at(max_key.to_vec()) });
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
        // The empty key is the begin of the key space and no step.
        let Some(item) = items.next()?.filter(|item| !item.key.is_empty()) else {
            return Ok(Resolved { offset: left, is_before_begin: true, ..at(Vec::new()) });
        };
        left += 1;
        if left == 1 {
            return Ok(at(item.key.into_owned()));
        }
    }
}

/// What a read answered, and over which keys it conflicts; begin not below end is no conflict.
pub(crate) struct Outcome<T> {
    pub(crate) answer: T,
    pub(crate) conflict: Option<(Vec<u8>, Vec<u8>)>,
}

/// `get_key`: the selector's key, "" before the first and `max_key` past the last.
pub(crate) fn get_key(view: &View<'_>, selector: KeySelector<'_>, max_key: &[u8]) -> ViewResult<Outcome<Vec<u8>>> {
    let base = selector.base();
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

/// A range read between two selectors.
pub(crate) struct RangeRead<'r> {
    pub(crate) begin: KeySelector<'r>,
    pub(crate) end: KeySelector<'r>,
    pub(crate) limits: Limits,
    pub(crate) reverse: bool,
    pub(crate) rules: Rules,
    pub(crate) max_key: &'r [u8],
}

impl RangeRead<'_> {
    pub(crate) fn run(&self, view: &View<'_>) -> ViewResult<Outcome<RangeResult>> {
        self.run_cut(view, |_| Ok(()))
    }

    /// Reads, lets `cut` take pairs off the far end, and tells the conflict of what is left.
    pub(crate) fn run_cut<E: From<ViewError>>(
        &self,
        view: &View<'_>,
        cut: impl FnOnce(&mut RangeResult) -> std::result::Result<(), E>,
    ) -> std::result::Result<Outcome<RangeResult>, E> {
        let (begin, end) = (self.begin.base(), self.end.base());
        let mut found = Found::default();
        self.collect(view, &begin, &end, &mut found)?;
        cut(&mut found.result)?;
        let conflict = match self.rules {
            Rules::ReadYourWrites => self.conflict(&found, begin, end),
            Rules::Native => self.native_conflict(&found, begin, end),
        };
        Ok(Outcome { answer: found.result, conflict: Some(conflict) })
    }

    fn collect(&self, view: &View<'_>, begin: &[u8], end: &[u8], found: &mut Found) -> ViewResult<()> {
        let from = resolve(view, begin, i64::from(self.begin.offset), self.max_key);
        let to = resolve(view, end, i64::from(self.end.offset), self.max_key);
        // A selector may run into keys that cannot be read, but the read, ended by its limit, never reaches them.
        let (from, to) = match (from, to, self.reverse) {
            (Ok(from), Ok(to), _) => (from, to),
            (Ok(from), Err(error), false) => {
                found.read_to_begin = from.is_before_begin;
                return self.until_limit(view, (&from.key, end), found, error);
            }
            (Err(error), Ok(to), true) => {
                found.read_through_end = to.is_past_end;
                return self.until_limit(view, (&to.key, begin), found, error);
            }
            (Err(error), _, _) | (_, Err(error), _) => return Err(error),
        };
        if self.rules == Rules::ReadYourWrites && self.is_crossed(view, begin, end, found)? {
            return Ok(());
        }
        found.reads_past_end = to.is_past_end && (!from.is_past_end || from.offset < to.offset);
        if from.offset >= to.offset && from.key >= to.key {
            // An end that only a walk of the far selector alone ran off does not count.
            (found.read_to_begin, found.read_through_end) = (false, false);
            return Ok(());
        }
        found.begins_before_begin = from.is_before_begin && from.key < to.key;
        found.read_to_begin |= from.is_before_begin || to.is_before_begin;
        found.read_through_end |= from.is_past_end || to.is_past_end;
        if from.key < to.key {
            let end = to.key.as_slice().min(self.max_key);
            if self.reverse {
                let mut items = view.descend(end, &from.key)?;
                self.fill(found, || Ok(items.next()?.filter(|item| item.key.as_ref() >= from.key.as_slice())))?;
            } else if view.writes.is_none_or(|writes| writes.is_empty()) {
                self.fill_stored(view, &from.key, end, found)?;
            } else {
                let mut items = view.ascend(&from.key, end)?;
                self.fill(found, || Ok(items.next()?.filter(|item| item.key.as_ref() < end)))?;
            }
        }
        if found.result.more {
            // What lies past the limit was not read.
            found.read_to_begin &= !self.reverse;
            found.read_through_end &= self.reverse;
        }
        Ok(())
    }

    /// Selectors that start on crossed keys: FoundationDB's client resolves the far one first, and its answer may end the
    /// read at once, with a conflict up to the end of the key space that it ran off.
    fn is_crossed(&self, view: &View<'_>, begin: &[u8], end: &[u8], found: &mut Found) -> ViewResult<bool> {
        let (near, far) = if self.reverse { (&self.end, &self.begin) } else { (&self.begin, &self.end) };
        if begin <= end || far.offset == 1 {
            return Ok(false);
        }
        let resolved = get_key(view, *far, self.max_key)?.answer;
        let (is_begin, is_end) = (resolved.is_empty(), resolved == self.max_key);
        let (is_empty, is_off) = if self.reverse {
            (resolved.as_slice() >= end && near.offset <= 1, is_end)
        } else {
            (begin >= resolved.as_slice() && near.offset > 0, is_begin)
        };
        if !is_empty {
            found.read_to_begin = is_begin;
            found.read_through_end = is_end;
        }
        Ok(is_empty || is_off)
    }

    /// Reads from one end whose other end cannot be known, because of `error`: right only if the limit comes first, and
    /// as many pairs after it as the other selector may go back over.
    fn until_limit(
        &self,
        view: &View<'_>,
        (from, other_base): (&[u8], &[u8]),
        found: &mut Found,
        error: ViewError,
    ) -> ViewResult<()> {
        let is_known = if self.reverse {
            let further = i64::from(self.begin.offset) - 1;
            let mut items = view.descend(from.min(self.max_key), b"")?;
            let is_before = |key: &[u8]| further <= 0 || key >= other_base;
            from >= other_base && self.fill_and_go_on(found, further, is_before, || items.next())?
        } else {
            let further = 1 - i64::from(self.end.offset);
            let mut items = view.ascend(from, self.max_key)?;
            let is_before = |key: &[u8]| further <= 0 || key < other_base;
            from <= other_base && self.fill_and_go_on(found, further, is_before, || items.next())?
        };
        if is_known { Ok(()) } else { Err(error) }
    }

    /// Whether the limit was reached and `further` pairs lie beyond, all of them before the other selector's base.
    fn fill_and_go_on<'v>(
        &self,
        found: &mut Found,
        mut further: i64,
        is_before: impl Fn(&[u8]) -> bool,
        mut next: impl FnMut() -> ViewResult<Option<crate::read::view::Item<'v>>>,
    ) -> ViewResult<bool> {
        self.fill(found, &mut next)?;
        if !found.result.more || found.result.last_key().is_some_and(|key| !is_before(key)) {
            return Ok(false);
        }
        while further > 0 {
            match next()?.filter(|item| is_before(&item.key)) {
                Some(item) => further -= i64::from(item.value.is_some()),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn fill<'v>(
        &self,
        found: &mut Found,
        mut next: impl FnMut() -> ViewResult<Option<crate::read::view::Item<'v>>>,
    ) -> ViewResult<()> {
        let mut limits = self.limits;
        while let Some(item) = next()? {
            let Some(value) = item.value else { continue };
            if found.take(&item.key, &value, &mut limits) {
                break;
            }
        }
        Ok(())
    }

    /// Pairs from `from` on where there are no writes to lay over them: most of what ranges read, and so without the way
    /// through them.
    fn fill_stored(&self, view: &View<'_>, from: &[u8], end: &[u8], found: &mut Found) -> ViewResult<()> {
        let mut limits = self.limits;
        let mut pairs = view.stored()?.ascend(from)?;
        while let Some((key, value)) = pairs.next()? {
            if key.as_ref() >= end || found.take(&key, value, &mut limits) {
                break;
            }
        }
        Ok(())
    }

    /// The read-your-writes layer's extent. A limited read does not depend on what lies past its last pair, unless the
    /// far selector counts from there.
    fn conflict(&self, found: &Found, begin: Vec<u8>, end: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
        let result = &found.result;
        let (mut from, mut to) = match (begin < end, self.reverse) {
            (false, _) => (end, begin),
            (true, false) if self.end.offset > 0 && result.more => (begin.clone(), begin),
            (true, true) if self.begin.offset <= 1 && result.more => (end.clone(), end),
            (true, _) => (begin, end),
        };
        if found.read_to_begin && self.begin.offset <= 0 {
            from = Vec::new();
        }
        if found.read_through_end && self.end.offset > 0 {
            to = self.max_key.to_vec();
        }
        if let (Some(first), Some(last)) = (result.first_key(), result.last_key()) {
            let (lowest, highest) = if self.reverse { (last, first) } else { (first, last) };
            if (self.reverse || self.begin.offset <= 0) && lowest < from.as_slice() {
                from = lowest.to_vec();
            }
            if (!self.reverse || self.end.offset > 0) && to.as_slice() <= highest {
                to = key_after(highest);
            }
        }
        (from, to)
    }

    /// The extent where the read-your-writes layer is off.
    fn native_conflict(&self, found: &Found, begin: Vec<u8>, end: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
        let result = &found.result;
        let (begin_offset, end_offset) = (self.begin.offset, self.end.offset);
        let starts_at_begin = begin.is_empty() && begin_offset < 1;
        let read_to_begin = starts_at_begin || found.begins_before_begin && !(self.reverse && result.more);
        let ends = match (result.first_key(), result.last_key()) {
            (Some(first), Some(last)) if self.reverse => Some((last, first)),
            (Some(first), Some(last)) => Some((first, last)),
            _ => None,
        };
        let mut from = match ends {
            _ if read_to_begin => Vec::new(),
            Some((lowest, _)) if begin_offset <= 0 || (self.reverse && result.more && begin_offset <= 1) => {
                lowest.to_vec()
            }
            _ => begin.clone(),
        };
        if end_offset > begin_offset && end < from {
            from.clone_from(&end);
        }
        let mut to = match ends {
            _ if found.reads_past_end && !result.more => self.max_key.to_vec(),
            Some((_, highest)) if end_offset > 1 || (!self.reverse && result.more && end_offset > 0) => {
                key_after(highest)
            }
            _ => end,
        };
        if begin_offset < end_offset && begin > to {
            to = begin;
        }
        (from, to)
    }
}

#[derive(Default)]
struct Found {
    result: RangeResult,
    /// The begin selector ran off the begin of the key space, and the range is not empty.
    begins_before_begin: bool,
    /// The end selector ran off the end of what may be read, and the range is not empty: on a cluster there are system
    /// keys in it.
    reads_past_end: bool,
    read_to_begin: bool,
    read_through_end: bool,
}

impl Found {
    /// Takes a pair over; whether it was the last that the limits let through.
    fn take(&mut self, key: &[u8], value: &[u8], limits: &mut Limits) -> bool {
        self.result.make_room(key.len() + value.len(), limits);
        self.result.push(key, value);
        limits.take(key, value);
        self.result.more = limits.is_reached() || self.result.arena.len() >= RESULT_BYTES_MAX;
        self.result.more
    }
}
