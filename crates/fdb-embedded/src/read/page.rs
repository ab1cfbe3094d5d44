//! One page of a range between two keys, which ends where FoundationDB's client would end it.
//!
//! The client knows some keys without asking a server: those that its transaction wrote or cleared, and those that it
//! read before ([`KnownRanges`]). These divide the range into segments. A page goes through the segments in order and
//! asks a server for the first stretch of unknown keys. If the read has a byte limit, as in all streaming modes but
//! `exact`, the page ends at the next unknown segment once it has a row, with `more` set. So a page may have fewer
//! rows than its limit although the range has more. `tests/bindings/pages/pages.jsonl` holds a cluster's pages.

use crate::base::key_space::{is_key_after, key_after};
use crate::read::known::KnownRanges;
use crate::read::limits::{CLIENT_PAIR_OVERHEAD, Limits, REPLY_BYTES_MAX, SERVER_PAIR_OVERHEAD};
use crate::read::result::RangeResult;
use crate::read::segment::{Content, Segment, Segments};
use crate::read::view::{View, ViewResult};

/// The number of segments that one request searches for the end of its stretch, beside those that
/// [`PageBuilder::clears_max`] adds.
const SEGMENTS_AHEAD: usize = 100;
/// The most doublings of a request's bytes and of the single cleared keys that it reads over.
const DOUBLINGS_MAX: u32 = 20;

/// A range between two keys, as read by one call.
pub(crate) struct PageRead<'r> {
    pub(crate) begin: &'r [u8],
    pub(crate) end: &'r [u8],
    pub(crate) limits: Limits,
    pub(crate) reverse: bool,
    /// The end of the keys that the transaction may read.
    pub(crate) max_key: &'r [u8],
}

impl PageRead<'_> {
    /// Reads the page and adds the requested ranges to `known`.
    pub(crate) fn run(&self, view: &View<'_>, known: &mut KnownRanges) -> ViewResult<RangeResult> {
        known.order();
        let is_written = view.writes.is_some_and(|writes| writes.touches(self.begin, self.end));
        if is_written || known.touches(self.begin, self.end) {
            let limits = Limits { pair_overhead: CLIENT_PAIR_OVERHEAD, ..self.limits };
            let mut page =
                PageBuilder { view, known, limits, max_key: self.max_key, result: RangeResult::default(), requests: 0 };
            if self.reverse { page.descend(self.begin, self.end) } else { page.ascend(self.begin, self.end) }?;
            page.result.more |= !page.result.pairs.is_empty() && page.limits.is_reached();
            return Ok(page.result);
        }
        // Nothing is known: one request answers the page.
        let (mut result, mut limits) = (RangeResult::default(), self.limits);
        let end = self.end.min(self.max_key);
        walk(view, self.begin, end, self.reverse, |key, value| result.take(key, value, &mut limits))?;
        let far = result.last_key().filter(|_| result.more);
        note_read(known, self.begin, end, far, self.reverse);
        Ok(result)
    }

    /// Returns the keys that the answer depends on.
    pub(crate) fn conflict(&self, result: &RangeResult) -> (Vec<u8>, Vec<u8>) {
        let (begin, end) = (self.begin.to_vec(), self.end.to_vec());
        match (result.more, result.last_key(), self.reverse) {
            (false, ..) => (begin, end),
            (true, Some(last), false) => (begin, key_after(last)),
            (true, Some(last), true) => (last.to_vec(), end),
            (true, None, _) => (begin.clone(), begin),
        }
    }
}

/// Gives the stored pairs of `[begin, end)` to `take` until it returns true.
fn walk(
    view: &View<'_>,
    begin: &[u8],
    end: &[u8],
    reverse: bool,
    mut take: impl FnMut(&[u8], &[u8]) -> bool,
) -> ViewResult<()> {
    let stored = view.stored()?;
    if !reverse {
        return Ok(stored.ascend(begin)?.for_each_below(end, take)?);
    }
    let mut pairs = stored.descend(end)?;
    while let Some((key, value)) = pairs.next()? {
        if key.as_ref() < begin || take(&key, value) {
            break;
        }
    }
    Ok(())
}

/// Adds the part of `[begin, end)` that a request read to `known`: up to `far`, its last row, or all of it.
fn note_read(known: &mut KnownRanges, begin: &[u8], end: &[u8], far: Option<&[u8]>, reverse: bool) {
    match (far, reverse) {
        (None, _) => known.add(begin, end),
        (Some(far), false) => known.add(begin, &key_after(far)),
        (Some(far), true) => known.add(far, end),
    }
}

struct PageBuilder<'p, 'v> {
    view: &'p View<'v>,
    known: &'p mut KnownRanges,
    /// The rows and bytes that may still be taken.
    limits: Limits,
    max_key: &'p [u8],
    result: RangeResult,
    requests: u32,
}

impl PageBuilder<'_, '_> {
    fn segments(&self) -> Segments<'_, '_> {
        Segments { view: self.view, known: self.known }
    }

    /// Returns whether the page ends before it asks a server again.
    fn ends_at_unknown(&mut self) -> bool {
        let ends = self.limits.bytes.is_some() && !self.result.pairs.is_empty();
        self.result.more |= ends;
        ends
    }

    fn is_full(&self) -> bool {
        !self.result.pairs.is_empty() && self.limits.is_reached()
    }

    fn ascend(&mut self, begin: &[u8], end: &[u8]) -> ViewResult<()> {
        let (mut from, mut at) = self.segments().skip_empty(begin, self.max_key)?;
        let (mut to, mut last) = self.segments().skip_empty(end, self.max_key)?;
        while from < to && from.as_slice() < self.max_key && !self.is_full() {
            let is_last = at.begin == last.begin;
            if at.is_known() && at.begin >= last.begin || is_last && to == at.begin {
                break;
            }
            match self.segments().content(&at)? {
                Content::Unknown if self.ends_at_unknown() => break,
                Content::Unknown => {
                    from = from.max(at.begin.clone());
                    let (stretch, clears) = self.stretch(&at, &last, false)?;
                    let until = if stretch.begin == last.begin { &to } else { &stretch.end };
                    self.request(&from, until.clone().max(from.clone()).as_slice(), clears, false)?;
                    (from, at) = self.segments().skip_empty(&from, self.max_key)?;
                    (to, last) = self.segments().skip_empty(&to, self.max_key)?;
                }
                Content::Stored => {
                    let end = at.pairs_end.as_slice().min(&to).to_vec();
                    let taken = self.take_stored(&at.begin, &end, false)?;
                    at = self.segments().at(&taken.map_or_else(|| at.end.clone(), |key| key_after(&key)))?;
                }
                Content::Written(Some(value)) if at.begin < to => {
                    self.result.take(&at.begin, value, &mut self.limits);
                    at = self.segments().at(&at.end)?;
                }
                Content::Written(_) | Content::Empty => at = self.segments().at(&at.end)?,
            }
        }
        Ok(())
    }

    fn descend(&mut self, begin: &[u8], end: &[u8]) -> ViewResult<()> {
        let (mut to, mut at) = self.segments().skip_empty(end, self.max_key)?;
        let (mut from, mut last) = self.segments().skip_empty(begin, self.max_key)?;
        while from < to && from.as_slice() < self.max_key && !self.is_full() {
            if at.is_known() && at.begin < last.begin {
                break;
            }
            if to == at.begin {
                if at.begin == last.begin {
                    break;
                }
                at = self.segments().below(&at.begin)?;
            }
            match self.segments().content(&at)? {
                Content::Unknown if self.ends_at_unknown() => break,
                Content::Unknown => {
                    to = to.min(at.end.clone());
                    let (stretch, clears) = self.stretch(&at, &last, true)?;
                    let until = if stretch.begin == last.begin { &from } else { &stretch.begin };
                    self.request(until.clone().min(to.clone()).as_slice(), &to, clears, true)?;
                    (to, at) = self.segments().skip_empty(&to, self.max_key)?;
                    (from, last) = self.segments().skip_empty(&from, self.max_key)?;
                    continue;
                }
                Content::Stored => {
                    let begin = at.pairs_begin.as_slice().max(&from).to_vec();
                    if let Some(taken) = self.take_stored(&begin, &at.end, true)? {
                        at = self.segments().at(&taken)?;
                    }
                }
                Content::Written(Some(value)) if at.begin >= from => {
                    self.result.take(&at.begin, value, &mut self.limits);
                }
                Content::Written(_) | Content::Empty => {}
            }
            if at.begin == last.begin {
                break;
            }
            at = self.segments().below(&at.begin)?;
        }
        Ok(())
    }

    /// Takes stored pairs of `[begin, end)`. Returns the key of the last one.
    fn take_stored(&mut self, begin: &[u8], end: &[u8], reverse: bool) -> ViewResult<Option<Vec<u8>>> {
        let (result, limits) = (&mut self.result, &mut self.limits);
        let before = result.pairs.len();
        walk(self.view, begin, end, reverse, |key, value| result.take(key, value, limits))?;
        let is_any = self.result.pairs.len() > before;
        Ok(self.result.last_key().filter(|_| is_any).map(<[u8]>::to_vec))
    }

    /// The number of single cleared keys that the next request reads over: none at first, then doubled each time.
    fn clears_max(&self) -> usize {
        if self.requests == 0 { 0 } else { 1 << self.requests.min(DOUBLINGS_MAX) }
    }

    /// Returns the last unknown segment that a request from `at` on reads, and the number of cleared keys that it
    /// reads over. The request reads over everything known except a cleared or empty range of more than one key.
    fn stretch(&self, at: &Segment, last: &Segment, reverse: bool) -> ViewResult<(Segment, usize)> {
        let (segments, clears_max) = (self.segments(), self.clears_max());
        let (mut unknown, mut next, mut clears) = (at.clone(), at.clone(), 0);
        // The near end of the empty segments that touch `next`.
        let mut empty_from = if reverse { at.end.clone() } else { at.begin.clone() };
        let is_before_last = if reverse { at.begin > last.begin } else { at.begin < last.begin };
        for _ in 0..clears_max + SEGMENTS_AHEAD {
            if !is_before_last || next.begin == last.begin {
                break;
            }
            if next.is_unreadable || matches!(next.content, Content::Empty) {
                let is_single = match reverse {
                    false => is_key_after(&empty_from, &next.end),
                    true => is_key_after(&next.begin, &empty_from),
                };
                if next.is_unreadable || !is_single {
                    break;
                }
                clears += 1;
            } else if reverse {
                empty_from.clone_from(&next.begin);
            } else {
                empty_from.clone_from(&next.end);
            }
            next = if reverse { segments.below(&next.begin)? } else { segments.at(&next.end)? };
            if !next.is_unreadable && matches!(next.content, Content::Unknown) {
                unknown.clone_from(&next);
            }
        }
        Ok((unknown, clears.min(clears_max)))
    }

    /// Reads `[begin, end)` as a server answers it, and adds it to the known keys.
    fn request(&mut self, begin: &[u8], end: &[u8], clears: usize, reverse: bool) -> ViewResult<()> {
        let mut rows = self.limits.rows.map(|rows| (rows.max(1) as usize).saturating_add(clears));
        let doubled = |bytes: usize| bytes.saturating_mul(1 << self.requests.min(DOUBLINGS_MAX)).min(REPLY_BYTES_MAX);
        let bytes = self.limits.bytes.map(doubled);
        self.requests += 1;
        // A server stops once its reply has this many bytes; the client asks again until it has enough rows.
        let (mut reply_left, mut client_left) = (bytes, bytes);
        let mut rows_missing = 1 + clears;
        let (mut far, mut more) = (None, false);
        walk(self.view, begin, end.min(self.max_key), reverse, |key, value| {
            let size = key.len() + value.len();
            rows = rows.map(|rows| rows - 1);
            reply_left = reply_left.map(|left| left.saturating_sub(SERVER_PAIR_OVERHEAD + size));
            client_left = client_left.map(|left| left.saturating_sub(CLIENT_PAIR_OVERHEAD + size));
            rows_missing = rows_missing.saturating_sub(1);
            if reply_left == Some(0) && rows_missing > 0 {
                reply_left = client_left.map(|left| if left == 0 { REPLY_BYTES_MAX } else { left });
            }
            more = rows == Some(0) || reply_left == Some(0);
            if more {
                far = Some(key.to_vec());
            }
            more
        })?;
        note_read(self.known, begin, end, far.as_deref(), reverse);
        self.known.order();
        Ok(())
    }
}
