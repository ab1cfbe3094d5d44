//! The cached names of fields of a database, by id.
//!
//! Ids are allocated in the order of first use, without gaps, so the cache is a vector.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, RwLock, RwLockReadGuard};

use flatbed_flatten::path::FIRST_FIELD_ID;
use flatbed_flatten::{FieldIds, FieldNames, member_text};

#[derive(Debug, Default)]
struct NameTable {
    names: Vec<Arc<str>>,
    /// The names as text of JSON members.
    members: Vec<Box<[u8]>>,
    // Looked up for each name of each document; seeded, since clients choose the names.
    ids: HashMap<Arc<str>, u64, foldhash::fast::RandomState>,
    bytes: u64,
}

/// The approximate bytes of a name in all three tables, beside its texts.
const NAME_BYTES: u64 = 112;

/// The cached mapping of a database. Entries are never removed or changed while the instance lives.
#[derive(Debug, Default)]
pub struct Fields {
    table: RwLock<NameTable>,
    /// Held during an allocation, so that this process does not conflict with itself.
    pub allocation: tokio::sync::Mutex<()>,
    /// Held during a load, so that one load serves all callers: the number of the last completed load.
    pub loading: tokio::sync::Mutex<u64>,
    /// Number of loads that were begun.
    pub loads: AtomicU64,
}

impl Fields {
    /// Returns a view for flattening one document. It holds the cache's read lock, so it must not be held across an
    /// await, nor twice in a thread: a writer that waits between them would block both.
    #[inline]
    pub fn view(&self) -> FieldsView<'_> {
        FieldsView(self.table.read().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Returns the number of known ids.
    #[expect(clippy::len_without_is_empty, reason = "nothing asks for it")]
    #[inline]
    pub fn len(&self) -> usize {
        self.view().len()
    }

    /// Returns the approximate bytes of all names.
    pub fn bytes(&self) -> u64 {
        self.view().0.bytes
    }

    /// Adds `names` with consecutive ids from `first_id`. Known names are skipped; a name behind a gap is not added,
    /// and the next load adds it.
    pub fn enter(&self, first_id: u64, names: &[String]) {
        let mut table = self.table.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        for (id, name) in (first_id..).zip(names) {
            if id != FIRST_FIELD_ID + table.names.len() as u64 {
                continue;
            }
            let name: Arc<str> = name.as_str().into();
            table.names.push(name.clone());
            table.members.push(member_text(&name));
            table.bytes += NAME_BYTES + 2 * name.len() as u64;
            table.ids.insert(name, id);
        }
    }
}

pub struct FieldsView<'f>(RwLockReadGuard<'f, NameTable>);

impl FieldsView<'_> {
    /// Returns the number of known ids.
    #[expect(clippy::len_without_is_empty, reason = "nothing asks for it")]
    #[inline]
    pub fn len(&self) -> usize {
        self.0.names.len()
    }
}

impl FieldIds for FieldsView<'_> {
    #[inline]
    fn id_of(&self, name: &str) -> Option<u64> {
        self.0.ids.get(name).copied()
    }
}

impl FieldNames for FieldsView<'_> {
    #[inline]
    fn name_of(&self, id: u64) -> Option<&str> {
        let at = usize::try_from(id.checked_sub(FIRST_FIELD_ID)?).ok()?;
        self.0.names.get(at).map(|name| &**name)
    }

    #[inline]
    fn member_text_of(&self, id: u64) -> Option<&[u8]> {
        let at = usize::try_from(id.checked_sub(FIRST_FIELD_ID)?).ok()?;
        self.0.members.get(at).map(|text| &**text)
    }
}
