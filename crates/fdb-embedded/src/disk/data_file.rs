//! Checks of LMDB's data file before LMDB maps it. LMDB trusts its file: a page past the file's end or a page size of
//! zero would end the process.
//!
//! The layout is LMDB's data version 1 with any page size. Numbers are in native byte order.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of a page header: number (8 bytes), padding (2), flags (2), and for overflow pages their count (4).
pub(crate) const HEADER_BYTES: usize = 16;
/// Bytes of a meta page after the header.
const META_BYTES: usize = 136;
const MAGIC: u32 = 0xBEEF_C0DE;
const DATA_VERSION: u32 = 1;
/// The root of an empty tree.
pub(crate) const NO_PAGE: u64 = u64::MAX;
/// The deepest tree that LMDB supports.
const DEPTH_MAX: u16 = 32;
const PAGE_BYTES: std::ops::RangeInclusive<u64> = 512..=65_536;

pub(crate) const BRANCH: u16 = 0x01;
pub(crate) const LEAF: u16 = 0x02;
pub(crate) const OVERFLOW: u16 = 0x04;
const META: u16 = 0x08;
/// Flag of a tree with integer keys: that of the free pages.
const INTEGER_KEY: u16 = 0x08;
/// Flag of a node whose value is on overflow pages.
pub(crate) const BIG_DATA: u16 = 0x01;

/// The reason why LMDB must not open the file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadFile {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("data.mdb is not an LMDB file")]
    Foreign,
    #[error("{0}")]
    Damaged(&'static str),
    #[error("page {page}, {kind}: {reason}")]
    Page { page: u64, kind: &'static str, reason: &'static str },
    #[error("cut off at {found_bytes} of {expected_bytes} bytes")]
    Short { found_bytes: u64, expected_bytes: u64 },
}

type Result<T> = std::result::Result<T, BadFile>;

/// A B-tree as described by a meta page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    flags: u16,
    pub(crate) depth: u16,
    pub(crate) root: u64,
    pub(crate) records: u64,
}

/// The newer of the two meta pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) page_bytes: u64,
    pub(crate) last_page: u64,
    pub(crate) transaction: u64,
    pub(crate) free: Tree,
    pub(crate) main: Tree,
}

/// Checks whether LMDB may map a file.
pub(crate) fn check(file: &File) -> Result<()> {
    let found_bytes = file.metadata()?.len();
    if found_bytes == 0 {
        return Err(BadFile::Damaged("data.mdb is empty"));
    }
    let meta = newest(file)?;
    meta.check()?;
    let pages = Pages { file, meta, count: found_bytes / meta.page_bytes };
    let expected_bytes = (meta.last_page + 1).saturating_mul(meta.page_bytes);
    let cut_off = BadFile::Short { found_bytes, expected_bytes };
    for tree in [meta.free, meta.main] {
        match pages.check_root(tree) {
            Err(BadFile::Short { .. }) => return Err(cut_off),
            checked => checked?,
        }
    }
    // Pages allocated and freed within one transaction are never written, so a valid file may end before them.
    if found_bytes < expected_bytes && !pages.are_missing_ones_free().unwrap_or(false) {
        return Err(cut_off);
    }
    Ok(())
}

/// Returns the meta page from which LMDB continues.
pub(crate) fn newest(file: &File) -> Result<Meta> {
    let first = Meta::read(file, 0)?;
    let second = Meta::read(file, first.page_bytes)?;
    if first.page_bytes != second.page_bytes {
        return Err(BadFile::Damaged("its meta pages have different page sizes"));
    }
    // LMDB continues from the newer one; the older is its predecessor. They are written in turn: a lost number must
    // not make the older one the newer.
    let turns = (first.transaction, second.transaction);
    let is_in_turn = turns.0.is_multiple_of(2) && !turns.1.is_multiple_of(2) && turns.0.abs_diff(turns.1) == 1;
    if !is_in_turn && turns != (0, 0) {
        return Err(BadFile::Damaged("its meta pages were not written in turn"));
    }
    // After a failed write LMDB leaves inconsistent numbers in the older meta page.
    Ok(if second.transaction > first.transaction { second } else { first })
}

/// Returns the meta page of a transaction; `None` if newer ones replaced it.
pub(crate) fn of_transaction(file: &File, transaction: u64) -> Result<Option<Meta>> {
    let first = Meta::read(file, 0)?;
    let metas = [first, Meta::read(file, first.page_bytes)?];
    Ok(metas.into_iter().find(|meta| meta.transaction == transaction))
}

/// Rewrites both meta pages as read, and syncs. After a failed write or sync the system may show a page that the disk
/// does not hold, and no commit may build on it.
pub(crate) fn rewrite_meta_pages(file: &File) -> Result<()> {
    let page_bytes = Meta::read(file, 0)?.page_bytes;
    let mut pages = vec![0; usize::try_from(page_bytes * 2).map_err(|_| BadFile::Foreign)?];
    file.read_exact_at(&mut pages, 0)?;
    file.write_all_at(&pages, 0)?;
    Ok(file.sync_data()?)
}

impl Meta {
    pub(crate) fn read(file: &File, offset: u64) -> Result<Meta> {
        let mut bytes = [0; HEADER_BYTES + META_BYTES];
        match file.read_exact_at(&mut bytes, offset) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                let found_bytes = file.metadata()?.len();
                let is_ours = offset > 0;
                let cut_off = BadFile::Short { found_bytes, expected_bytes: offset + bytes.len() as u64 };
                return Err(if is_ours { cut_off } else { BadFile::Foreign });
            }
            done => done?,
        }
        let content = Bytes(bytes.get(HEADER_BYTES..).unwrap_or_default());
        if content.u32(0) != MAGIC {
            return Err(match offset {
                0 if is_of_lmdb(file, &bytes) => BadFile::Damaged("its first meta page is invalid"),
                0 => BadFile::Foreign,
                _ => BadFile::Damaged("its second meta page is invalid"),
            });
        }
        if content.u32(4) != DATA_VERSION || Bytes(&bytes).u16(10) & META == 0 {
            return Err(BadFile::Damaged("a meta page has an unknown LMDB version"));
        }
        let tree = |at: usize| Tree {
            flags: content.u16(at + 4),
            depth: content.u16(at + 6),
            records: content.u64(at + 32),
            root: content.u64(at + 40),
        };
        let meta = Meta {
            page_bytes: u64::from(content.u32(24)),
            last_page: content.u64(120),
            transaction: content.u64(128),
            free: tree(24),
            main: tree(72),
        };
        let is_page_size = PAGE_BYTES.contains(&meta.page_bytes) && meta.page_bytes.is_power_of_two();
        if is_page_size { Ok(meta) } else { Err(BadFile::Damaged("a meta page has an impossible page size")) }
    }

    /// Checks the numbers of a meta page from which LMDB would continue.
    pub(crate) fn check(&self) -> Result<()> {
        let is_page = |page: u64| page > 1 && page <= self.last_page;
        let is_tree = |tree: Tree| {
            if tree.root == NO_PAGE {
                tree.depth == 0
            } else {
                is_page(tree.root) && (1..=DEPTH_MAX).contains(&tree.depth)
            }
        };
        let is_sound = self.last_page >= 1
            && self.last_page < u64::MAX / self.page_bytes
            && (self.free.flags, self.main.flags) == (INTEGER_KEY, 0)
            && is_tree(self.free)
            && is_tree(self.main);
        if is_sound {
            Ok(())
        } else {
            Err(BadFile::Damaged("a meta page holds numbers that this program never writes"))
        }
    }
}

/// Returns whether a file without a first meta page was LMDB's. A lost block is zeros, and the second meta page stands
/// at the page size that it names.
fn is_of_lmdb(file: &File, start: &[u8]) -> bool {
    let is_second = |at: u64| Meta::read(file, at).is_ok_and(|meta| meta.page_bytes == at);
    start.iter().all(|byte| *byte == 0) || (9..=16).any(|power| is_second(1u64 << power))
}

/// The file's pages in the state of one meta page.
pub(crate) struct Pages<'f> {
    pub(crate) file: &'f File,
    pub(crate) meta: Meta,
    /// Whole pages in the file.
    pub(crate) count: u64,
}

impl<'f> Pages<'f> {
    pub(crate) fn of(file: &'f File, meta: Meta) -> Result<Pages<'f>> {
        Ok(Pages { file, meta, count: file.metadata()?.len() / meta.page_bytes })
    }

    pub(crate) fn read(&self, page: u64, count: u64) -> Result<Vec<u8>> {
        if page.checked_add(count).is_none_or(|end| end > self.count) {
            return Err(BadFile::Short { found_bytes: 0, expected_bytes: 0 });
        }
        let bytes = usize::try_from(count.saturating_mul(self.meta.page_bytes));
        let mut bytes = vec![0; bytes.map_err(|_| BadFile::Damaged("a value is larger than memory"))?];
        self.file.read_exact_at(&mut bytes, page * self.meta.page_bytes)?;
        if Bytes(&bytes).u64(0) != page {
            return Err(BadFile::Damaged("a page has another page's number"));
        }
        Ok(bytes)
    }

    fn check_root(&self, tree: Tree) -> Result<()> {
        if tree.root == NO_PAGE {
            return Ok(());
        }
        let page = self.read(tree.root, 1)?;
        let expected = if tree.depth > 1 { BRANCH } else { LEAF };
        if Bytes(&page).u16(10) == expected { Ok(()) } else { Err(BadFile::Damaged("a tree's root page is invalid")) }
    }

    /// Returns whether every page past the file's end is in a list of free pages.
    fn are_missing_ones_free(&self) -> Result<bool> {
        let mut search = Search { missing: self.meta.last_page + 1 - self.count, unread: self.count };
        if self.meta.free.root != NO_PAGE {
            self.walk_free(self.meta.free.root, self.meta.free.depth, &mut search)?;
        }
        Ok(search.missing == 0)
    }

    fn walk_free(&self, page: u64, depth: u16, search: &mut Search) -> Result<()> {
        search.unread = search.unread.checked_sub(1).ok_or(BadFile::Damaged("a page is in a tree twice"))?;
        let bytes = self.read(page, 1)?;
        let bytes = Bytes(&bytes);
        let nodes = (bytes.u16(12) as usize).saturating_sub(HEADER_BYTES) / 2;
        for node in 0..nodes {
            let at = bytes.u16(HEADER_BYTES + 2 * node) as usize;
            // A node header: the low 32 bits of a page number or a value size; flags or the high page number bits; the
            // key size.
            let (flags, key_bytes) = (bytes.u16(at + 4), bytes.u16(at + 6) as usize);
            match depth {
                0 => return Err(BadFile::Damaged("the tree of free pages is too deep")),
                1 if flags & BIG_DATA != 0 => {
                    let first = bytes.u64(at + 8 + key_bytes);
                    let header = self.read(first, 1)?;
                    if Bytes(&header).u16(10) & OVERFLOW == 0 {
                        return Err(BadFile::Damaged("a list of free pages is invalid"));
                    }
                    let list = self.read(first, u64::from(Bytes(&header).u32(12)).max(1))?;
                    self.count_free(Bytes(list.get(HEADER_BYTES..).unwrap_or_default()), search);
                }
                1 => self.count_free(Bytes(bytes.0.get(at + 8 + key_bytes..).unwrap_or_default()), search),
                _ => self.walk_free(u64::from(bytes.u32(at)) | u64::from(flags) << 32, depth - 1, search)?,
            }
        }
        Ok(())
    }

    /// Counts a list of free pages: its length, then the page numbers.
    fn count_free(&self, list: Bytes<'_>, search: &mut Search) {
        let length = list.u64(0).min(list.0.len() as u64 / 8);
        for at in 1..=length as usize {
            let page = list.u64(8 * at);
            if page >= self.count && page <= self.meta.last_page {
                search.missing = search.missing.saturating_sub(1);
            }
        }
    }
}

/// The pages left to find, and the most tree pages left to read.
struct Search {
    missing: u64,
    unread: u64,
}

/// Reads numbers at an offset; zero past the end.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'b>(pub(crate) &'b [u8]);

impl Bytes<'_> {
    fn array<const N: usize>(self, at: usize) -> [u8; N] {
        self.0.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }

    pub(crate) fn u16(self, at: usize) -> u16 {
        u16::from_ne_bytes(self.array(at))
    }

    pub(crate) fn u32(self, at: usize) -> u32 {
        u32::from_ne_bytes(self.array(at))
    }

    pub(crate) fn u64(self, at: usize) -> u64 {
        u64::from_ne_bytes(self.array(at))
    }
}
