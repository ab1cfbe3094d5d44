//! A check of the data file's pages and records in one state, read from the file and not through LMDB.
//!
//! LMDB trusts its pages: a damaged one makes it return wrong records, miss records, or read past the file's end, which
//! ends the process. The walk follows the trees from a meta page. It checks that each page is what its parent says,
//! that its nodes lie within it, that keys are in order and between those of the parent, that each record matches its
//! checksum, and, over a whole state, that no page is used twice and no record is missing.

use std::fs::File;

use crate::disk::data_file::{
    self, BIG_DATA, BRANCH, BadFile, Bytes, HEADER_BYTES, LEAF, Meta, NO_PAGE, OVERFLOW, Pages,
};
use crate::disk::page::Nodes;
use crate::disk::sealed::unseal;

type Result<T> = std::result::Result<T, BadFile>;

const IN_BRANCH: &str = "a branch";
const IN_LEAF: &str = "a leaf";
const IN_OVERFLOW: &str = "a value's own page";
const IN_FREE: &str = "a page of the free list";
const USED_TWICE: &str = "another page or the free list names it too";

/// The engine's record of its format, which has its own form: see `format`.
pub(crate) const FORMAT_KEY: &[u8] = b"\0format";

/// The number of pages and records that a check has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanCounts {
    pub(crate) pages: u64,
    pub(crate) records: u64,
}

/// Checks the free list and at most about `pages_max` pages of the newest state. Returns the LMDB key from which
/// [`some`] continues; `None` if all is checked. No process may write to the file meanwhile.
pub(crate) fn start(file: &File, pages_max: u64) -> Result<Option<Vec<u8>>> {
    let meta = data_file::newest(file)?;
    Ok(whole_state(file, meta, pages_max, &mut |_| ())?.1)
}

/// Checks all of a state, which must stay readable meanwhile. Calls `progress` with the pages read so far.
pub(crate) fn all(file: &File, meta: Meta, progress: &mut dyn FnMut(u64)) -> Result<ScanCounts> {
    Ok(whole_state(file, meta, u64::MAX, progress)?.0)
}

/// Checks about `pages_max` pages of a state, which must stay readable meanwhile, from an LMDB key on. Returns the key
/// from which to continue, in this state or a later one; `None` at the end.
pub(crate) fn some(file: &File, meta: Meta, from: &[u8], pages_max: u64) -> Result<Option<Vec<u8>>> {
    let pages = Pages::of(file, meta)?;
    let mut ignore = |_: u64| ();
    let mut walk = Walk {
        pages: &pages,
        from,
        left: pages_max,
        met: None,
        freed_by: 0,
        scanned: ScanCounts::default(),
        progress: &mut ignore,
    };
    walk.main_tree()
}

fn whole_state(
    file: &File,
    meta: Meta,
    pages_max: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<(ScanCounts, Option<Vec<u8>>)> {
    let pages = Pages::of(file, meta)?;
    let met = Some(PageSet::new(meta.last_page));
    let scanned = ScanCounts::default();
    let mut walk =
        Walk { pages: &pages, from: b"", left: u64::MAX, met, freed_by: 0, scanned, progress: &mut *progress };
    if meta.free.root != NO_PAGE {
        walk.free_tree(meta.free.root, meta.free.depth)?;
    }
    walk.left = pages_max;
    let next = walk.main_tree()?;
    if next.is_none() && walk.scanned.records != meta.main.records {
        return Err(BadFile::Damaged("it does not hold the number of records that its meta page says"));
    }
    Ok((walk.scanned, next))
}

/// Returns a record of a state as it is stored, if its value is on the page of its key.
pub(crate) fn find(file: &File, meta: Meta, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let pages = Pages::of(file, meta)?;
    let mut page = meta.main.root;
    if page == NO_PAGE {
        return Ok(None);
    }
    for depth in (1..=meta.main.depth).rev() {
        let (flags, kind) = if depth > 1 { (BRANCH, IN_BRANCH) } else { (LEAF, IN_LEAF) };
        let bytes = pages.read(page, 1)?;
        let nodes = layout(&bytes, flags).map_err(|reason| BadFile::Page { page, kind, reason })?;
        if depth == 1 {
            let found = (0..nodes.count).find(|&at| nodes.key(at) == key);
            return Ok(found.and_then(|at| nodes.value(at)).map(<[u8]>::to_vec));
        }
        let child = (1..nodes.count).rev().find(|&at| nodes.key(at) <= key);
        page = nodes.child(child.unwrap_or(0));
    }
    Ok(None)
}

/// Returns the nodes of a page of this kind if they lie within it and do not overlap.
fn layout(page: &[u8], flags: u16) -> std::result::Result<Nodes<'_>, &'static str> {
    let head = Bytes(page);
    if head.u16(10) != flags {
        return Err("it is a page of another kind");
    }
    let (lower, upper) = (usize::from(head.u16(12)), usize::from(head.u16(14)));
    if lower <= HEADER_BYTES || !lower.is_multiple_of(2) || lower > upper || upper > page.len() {
        return Err("its header is impossible");
    }
    let nodes = Nodes::of(page);
    let mut used_bytes = 0_usize;
    for at in 0..nodes.count {
        let (begin, bytes) = nodes.extent(at, flags == LEAF);
        if begin < upper || begin.saturating_add(bytes) > page.len() {
            return Err("a record lies outside of it");
        }
        used_bytes = used_bytes.saturating_add(bytes.next_multiple_of(2));
    }
    if used_bytes > page.len() - upper { Err("its records overlap") } else { Ok(nodes) }
}

/// Pages that a check has met, a bit for each.
struct PageSet(Vec<u64>);

impl PageSet {
    fn new(last_page: u64) -> PageSet {
        PageSet(vec![0; usize::try_from(last_page / 64 + 1).unwrap_or(0)])
    }

    /// Adds a page. Returns false if it is in the set, or past its end.
    fn insert(&mut self, page: u64) -> bool {
        let word = usize::try_from(page / 64).ok().and_then(|at| self.0.get_mut(at));
        let bit = 1 << (page % 64);
        match word {
            Some(word) if *word & bit == 0 => {
                *word |= bit;
                true
            }
            _ => false,
        }
    }
}

/// The LMDB keys between which a page's keys must be: the first inclusive, the second exclusive.
#[derive(Clone, Copy)]
struct Bounds<'b> {
    lower: &'b [u8],
    upper: Option<&'b [u8]>,
}

struct Walk<'w> {
    pages: &'w Pages<'w>,
    /// Subtrees below this LMDB key are left out.
    from: &'w [u8],
    /// The pages that may still be read.
    left: u64,
    /// `None`: only a part of the state is checked.
    met: Option<PageSet>,
    /// The last key of the free list: a transaction's number.
    freed_by: u64,
    scanned: ScanCounts,
    progress: &'w mut dyn FnMut(u64),
}

impl Walk<'_> {
    fn main_tree(&mut self) -> Result<Option<Vec<u8>>> {
        let tree = self.pages.meta.main;
        if tree.root == NO_PAGE {
            return Ok(None);
        }
        self.subtree(tree.root, tree.depth, Bounds { lower: b"", upper: None })
    }

    fn subtree(&mut self, page: u64, depth: u16, bounds: Bounds<'_>) -> Result<Option<Vec<u8>>> {
        if self.left == 0 {
            return Ok(Some(bounds.lower.to_vec()));
        }
        let (flags, kind) = if depth > 1 { (BRANCH, IN_BRANCH) } else { (LEAF, IN_LEAF) };
        let damaged = |reason| BadFile::Page { page, kind, reason };
        let bytes = self.read(page, 1, kind)?;
        self.meet(page, 1, kind)?;
        let nodes = layout(&bytes, flags).map_err(damaged)?;
        if depth <= 1 {
            return self.leaf(page, nodes, bounds).map(|()| None);
        }
        for at in 0..nodes.count {
            // The first key of a branch has no meaning: its child begins where the branch does.
            let lower = if at == 0 { bounds.lower } else { nodes.key(at) };
            let upper = if at + 1 < nodes.count { Some(nodes.key(at + 1)) } else { bounds.upper };
            if upper.is_some_and(|upper| upper <= lower) {
                return Err(damaged("its keys are not in order"));
            }
            if upper.is_some_and(|upper| upper <= self.from) {
                continue;
            }
            if let Some(next) = self.subtree(nodes.child(at), depth - 1, Bounds { lower, upper })? {
                return Ok(Some(next));
            }
        }
        Ok(None)
    }

    fn leaf(&mut self, page: u64, nodes: Nodes<'_>, bounds: Bounds<'_>) -> Result<()> {
        let damaged = |reason| BadFile::Page { page, kind: IN_LEAF, reason };
        let mut before: Option<&[u8]> = None;
        for at in 0..nodes.count {
            let key = nodes.key(at);
            let is_in_order = before.is_none_or(|before| before < key)
                && bounds.lower <= key
                && bounds.upper.is_none_or(|upper| key < upper);
            if !is_in_order {
                return Err(damaged("its keys are not in order"));
            }
            before = Some(key);
            self.scanned.records += 1;
            let is_sound = match nodes.leaf_flags(at) {
                0 => nodes.value(at).is_some_and(|sealed| is_sound(key, sealed)),
                BIG_DATA => self.check_overflow(key, nodes.overflow_page(at), nodes.value_bytes(at))?,
                _ => return Err(damaged("a record has unknown flags")),
            };
            if !is_sound {
                return Err(damaged("a record does not match its checksum"));
            }
        }
        Ok(())
    }

    /// Returns whether the record whose value begins on this overflow page matches its checksum.
    fn check_overflow(&mut self, key: &[u8], first: u64, value_bytes: usize) -> Result<bool> {
        let bytes = self.overflow_value(first, value_bytes, IN_OVERFLOW)?;
        Ok(is_sound(key, &bytes))
    }

    fn overflow_value(&mut self, first: u64, value_bytes: usize, kind: &'static str) -> Result<Vec<u8>> {
        let damaged = |reason| BadFile::Page { page: first, kind, reason };
        let head = self.read(first, 1, kind)?;
        if Bytes(&head).u16(10) != OVERFLOW {
            return Err(damaged("it is a page of another kind"));
        }
        let count = u64::from(Bytes(&head).u32(12));
        let needed = ((HEADER_BYTES + value_bytes) as u64).div_ceil(self.pages.meta.page_bytes);
        // A value that became shorter keeps its pages.
        if count < needed || count - 1 > self.pages.meta.last_page - first {
            return Err(damaged("its header is impossible"));
        }
        self.meet(first, count, kind)?;
        let mut bytes = if needed > 1 { self.read(first, needed, kind)? } else { head };
        bytes.truncate(HEADER_BYTES + value_bytes);
        Ok(bytes.split_off(HEADER_BYTES))
    }

    fn free_tree(&mut self, page: u64, depth: u16) -> Result<()> {
        let damaged = |reason| BadFile::Page { page, kind: IN_FREE, reason };
        let bytes = self.read(page, 1, IN_FREE)?;
        self.meet(page, 1, IN_FREE)?;
        let nodes = layout(&bytes, if depth > 1 { BRANCH } else { LEAF }).map_err(damaged)?;
        for at in 0..nodes.count {
            if depth > 1 {
                self.free_tree(nodes.child(at), depth - 1)?;
                continue;
            }
            let freed_by = Bytes(nodes.key(at)).u64(0);
            if nodes.key(at).len() != size_of::<u64>()
                || freed_by <= self.freed_by
                || freed_by > self.pages.meta.transaction
            {
                return Err(damaged("its keys are not in order"));
            }
            self.freed_by = freed_by;
            match nodes.leaf_flags(at) {
                0 => self.free_list(page, nodes.value(at).unwrap_or_default())?,
                BIG_DATA => {
                    let first = nodes.overflow_page(at);
                    let list = self.overflow_value(first, nodes.value_bytes(at), IN_FREE)?;
                    self.free_list(first, &list)?;
                }
                _ => return Err(damaged("a record has unknown flags")),
            }
        }
        Ok(())
    }

    /// Checks a list of free pages: their number, then theirs.
    fn free_list(&mut self, page: u64, list: &[u8]) -> Result<()> {
        let damaged = |reason| BadFile::Page { page, kind: IN_FREE, reason };
        let places = (list.len() / size_of::<u64>()).saturating_sub(1);
        let length = usize::try_from(Bytes(list).u64(0)).ok().filter(|&length| length <= places);
        let length = length.ok_or_else(|| damaged("a list is longer than its record"))?;
        for at in 1..=length {
            let free = Bytes(list).u64(size_of::<u64>() * at);
            let is_page = (2..=self.pages.meta.last_page).contains(&free);
            if !is_page || self.met.as_mut().is_some_and(|met| !met.insert(free)) {
                return Err(damaged("it lists a page that is in use, is listed twice, or does not exist"));
            }
        }
        Ok(())
    }

    fn read(&mut self, page: u64, count: u64, kind: &'static str) -> Result<Vec<u8>> {
        let damaged = |reason| BadFile::Page { page, kind, reason };
        if page < 2 || page > self.pages.meta.last_page {
            return Err(damaged("the file has no such page"));
        }
        self.left = self.left.saturating_sub(count);
        self.scanned.pages += count;
        (self.progress)(self.scanned.pages);
        match self.pages.read(page, count) {
            Err(BadFile::Short { .. }) => Err(damaged("it lies past the file's end")),
            Err(BadFile::Damaged(_)) => Err(damaged("it has another page's number")),
            read => read,
        }
    }

    fn meet(&mut self, first: u64, count: u64, kind: &'static str) -> Result<()> {
        let Some(met) = &mut self.met else { return Ok(()) };
        match (first..first.saturating_add(count)).find(|&page| !met.insert(page)) {
            None => Ok(()),
            Some(page) => Err(BadFile::Page { page, kind, reason: USED_TWICE }),
        }
    }
}

/// Returns whether a record matches its checksum.
fn is_sound(key: &[u8], sealed: &[u8]) -> bool {
    // The format is checked before; formats without checksums had a bare one.
    (key == FORMAT_KEY && sealed.len() == size_of::<u32>()) || unseal(key, sealed).is_some()
}
