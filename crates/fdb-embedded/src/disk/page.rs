//! The layout of a page of LMDB's tree.

use crate::disk::data_file::{BIG_DATA, Bytes, HEADER_BYTES, LEAF};

/// Bytes of a node header: size of the value, flags, size of the key.
const NODE_HEAD_BYTES: usize = 8;

/// The nodes of a branch page or a leaf. A damaged page gives wrong nodes, but none outside of the page.
#[derive(Clone, Copy)]
pub(crate) struct Nodes<'p> {
    page: &'p [u8],
    pub(crate) count: usize,
}

impl<'p> Nodes<'p> {
    pub(crate) fn of(page: &'p [u8]) -> Nodes<'p> {
        Nodes { page, count: usize::from(Bytes(page).u16(12)).saturating_sub(HEADER_BYTES) / 2 }
    }

    fn start(&self, at: usize) -> usize {
        usize::from(Bytes(self.page).u16(HEADER_BYTES + 2 * at))
    }

    pub(crate) fn key(&self, at: usize) -> &'p [u8] {
        let start = self.start(at);
        let key_bytes = usize::from(Bytes(self.page).u16(start + 6));
        self.page.get(start + 8..start + 8 + key_bytes).unwrap_or_default()
    }

    pub(crate) fn child(&self, at: usize) -> u64 {
        let start = self.start(at);
        u64::from(Bytes(self.page).u32(start)) | u64::from(Bytes(self.page).u16(start + 4)) << 32
    }

    /// The bytes of a node: its place on the page, and its length.
    pub(crate) fn extent(&self, at: usize, is_leaf: bool) -> (usize, usize) {
        let start = self.start(at);
        let key_bytes = usize::from(Bytes(self.page).u16(start + 6));
        let value_bytes = match self.leaf_flags(at) {
            _ if !is_leaf => 0,
            flags if flags & BIG_DATA != 0 => size_of::<u64>(),
            _ => self.value_bytes(at),
        };
        (start, (NODE_HEAD_BYTES + key_bytes).saturating_add(value_bytes))
    }

    /// The flags of a leaf's node; 0 for a value on the page.
    pub(crate) fn leaf_flags(&self, at: usize) -> u16 {
        Bytes(self.page).u16(self.start(at) + 4)
    }

    /// The first overflow page of a leaf's value with the flag [`BIG_DATA`].
    pub(crate) fn overflow_page(&self, at: usize) -> u64 {
        let start = self.start(at);
        let key_bytes = usize::from(Bytes(self.page).u16(start + 6));
        Bytes(self.page).u64(start + NODE_HEAD_BYTES + key_bytes)
    }

    /// The size of a leaf's value in bytes, stored on the page or on overflow pages.
    pub(crate) fn value_bytes(&self, at: usize) -> usize {
        Bytes(self.page).u32(self.start(at)) as usize
    }

    /// A leaf's value, if it is stored on the page itself.
    pub(crate) fn value(&self, at: usize) -> Option<&'p [u8]> {
        let node = self.page.get(self.start(at)..)?;
        let (head, rest) = node.split_at_checked(NODE_HEAD_BYTES)?;
        let head = Bytes(head);
        let (value_bytes, key_bytes) = (head.u32(0) as usize, usize::from(head.u16(6)));
        if head.u16(4) == 0 { rest.get(key_bytes..key_bytes.checked_add(value_bytes)?) } else { None }
    }
}

/// The records after one on its leaf, ascending.
pub(crate) struct LeafRest<'p> {
    nodes: Nodes<'p>,
    next: usize,
}

impl<'p> LeafRest<'p> {
    /// Finds the records after this LMDB key; `None` if its page has an unexpected form.
    ///
    /// # Safety
    /// LMDB must have returned the key out of its memory map, in a read transaction that lives for `'p`. The map's
    /// pages must have `page_bytes` bytes.
    pub(crate) unsafe fn of(lmdb_key: &'p [u8], page_bytes: usize) -> Option<LeafRest<'p>> {
        let at = lmdb_key.as_ptr().addr();
        let offset = at.checked_rem(page_bytes)?;
        // SAFETY: the map begins at a page boundary and consists of whole pages, so this page is mapped completely.
        // LMDB does not write to it while the transaction may read it.
        let page = unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(at - offset), page_bytes) };
        let nodes = Nodes::of(page);
        let start = offset.checked_sub(NODE_HEAD_BYTES)?;
        let own = (0..nodes.count).find(|&node| nodes.start(node) == start)?;
        (Bytes(page).u16(10) == LEAF).then_some(LeafRest { nodes, next: own + 1 })
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.count - self.next
    }

    pub(crate) fn last_key(&self) -> &'p [u8] {
        self.nodes.key(self.nodes.count - 1)
    }
}

impl<'p> Iterator for LeafRest<'p> {
    /// An LMDB key and its value; no value if that is on overflow pages.
    type Item = (&'p [u8], Option<&'p [u8]>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.nodes.count {
            return None;
        }
        let at = self.next;
        self.next += 1;
        Some((self.nodes.key(at), self.nodes.value(at)))
    }
}
