//! The texts of the design documents in use by feeds and requests. Equal documents share one text. The bytes of all
//! texts are bounded.
//!
//! A feed keeps the functions that it began with, even if their document changes, so no text is evicted while a feed
//! uses it. At the bound a feed with a new text is refused. A feed with a text that is already in memory is accepted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use flatbed_admission::{Budget, Grant, Shares};
use flatbed_javascript::{Design, Error as FunctionError};
use flatbed_layer::{Error as LayerError, GetOptions, Reader, RevId};

use crate::json_out;
use crate::turns::{Origin, Turns};

/// The most design documents that are read in parallel: each has several copies of its text in memory until an equal
/// one is found.
const READ_AT_ONCE: usize = 4;

/// The most requests that wait to read a design document.
const READING_WAITING_MAX: usize = 16_384;

/// The most bytes of texts, for all databases and for one.
const BYTES_MAX: usize = 128 << 20;
const BYTES_OF_ONE_MAX: usize = BYTES_MAX / 2;

/// The bound on texts is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

/// A design document: its database with incarnation, its id, its revision.
type DesignKey = (String, String, RevId);

#[derive(Debug, thiserror::Error)]
pub(crate) enum DesignError {
    #[error(transparent)]
    Layer(#[from] LayerError),
    #[error(transparent)]
    Function(#[from] FunctionError),
}

/// The texts in use. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Designs {
    texts: Arc<DesignTexts>,
    reading: Arc<Turns>,
}

impl Default for Designs {
    fn default() -> Designs {
        let (held, all, by_database) = (Mutex::default(), Budget::new(BYTES_MAX, 1), Shares::default());
        let texts = Arc::new(DesignTexts { held, all, by_database });
        Designs { texts, reading: Turns::new(READ_AT_ONCE, READING_WAITING_MAX) }
    }
}

#[derive(Debug)]
struct DesignTexts {
    held: Mutex<HashMap<DesignKey, Weak<HeldDesign>>>,
    all: Arc<Budget>,
    by_database: Shares<String, Budget>,
}

/// A design document while a feed uses it.
#[derive(Debug)]
pub(crate) struct HeldDesign {
    pub(crate) design: Design,
    key: DesignKey,
    texts: Arc<DesignTexts>,
    _room: [Grant; 2],
}

impl DesignTexts {
    fn held(&self) -> MutexGuard<'_, HashMap<DesignKey, Weak<HeldDesign>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Designs {
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.texts.all.used()
    }

    #[cfg(test)]
    pub(crate) fn reading(&self) -> &Arc<Turns> {
        &self.reading
    }

    /// Reads a design document.
    ///
    /// # Errors
    /// A missing document; [`FunctionError::Busy`] without room.
    pub(crate) async fn read(
        &self,
        origin: &Origin,
        database: &Reader,
        id: &str,
    ) -> Result<Arc<HeldDesign>, DesignError> {
        let _turn = self.reading.wait(origin.turn_keys()).await.map_err(|_| FunctionError::Busy)?;
        let options = GetOptions { local_seq: true, ..GetOptions::default() };
        let mut document = database.get(id, &options).await?;
        // The sequence distinguishes this database from earlier ones of its name.
        let incarnation = document.local_seq.take().map_or(0, |seq| seq.incarnation());
        let mut text = Vec::new();
        json_out::document(&document, &mut text);
        let text = String::from_utf8_lossy(&text).into_owned();
        let held = self.hold(&format!("{}/{incarnation}", database.name()), id, &document.rev, text);
        Ok(held.map_err(|Full| FunctionError::Busy)?)
    }

    /// Returns the design document of this text, shared if it is held already. `database` includes the incarnation.
    /// The text is compared, because one revision id can have two texts: another replica may have made the revision,
    /// or it was purged and written again.
    pub(crate) fn hold(&self, database: &str, id: &str, rev: &RevId, text: String) -> Result<Arc<HeldDesign>, Full> {
        let key = (database.to_owned(), id.to_owned(), rev.clone());
        // Dropped after the lock, since the last reference removes its own entry.
        let known = self.texts.held().get(&key).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|known| known.design.text() == text) {
            return Ok(known);
        }
        let of_database = self.texts.by_database.of(database.to_owned(), || Budget::new(BYTES_OF_ONE_MAX, 1));
        let of_database = of_database.try_take(text.len()).ok_or(Full)?;
        let of_all = self.texts.all.try_take(text.len()).ok_or(Full)?;
        let (design, texts) = (Design::new(database, text), self.texts.clone());
        let held = Arc::new(HeldDesign { design, key: key.clone(), texts, _room: [of_database, of_all] });
        self.texts.held().insert(key, Arc::downgrade(&held));
        Ok(held)
    }
}

impl HeldDesign {
    pub(crate) fn rev(&self) -> &RevId {
        &self.key.2
    }
}

impl Drop for HeldDesign {
    fn drop(&mut self) {
        let mut held = self.texts.held();
        // Another text may have replaced the entry.
        if held.get(&self.key).is_some_and(|held| held.strong_count() == 0) {
            held.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rev(text: &str) -> RevId {
        text.parse().unwrap()
    }

    #[test]
    fn one_text_for_all_that_use_it() {
        let designs = Designs::default();
        let hold = |rev: &RevId, text: &str| designs.hold("db/1", "_design/d", rev, text.to_owned()).unwrap();
        let all: Vec<_> = (0..1_000).map(|_| hold(&rev("1-a"), "text")).collect();
        assert!(all.iter().all(|held| Arc::ptr_eq(held, &all[0])));
        assert_eq!(designs.bytes(), 4);
        // Another revision, and another text of the same revision.
        let (other, same_name) = (hold(&rev("2-b"), "other"), hold(&rev("1-a"), "texts"));
        assert!(!Arc::ptr_eq(&other, &all[0]) && !Arc::ptr_eq(&same_name, &all[0]));
        assert_eq!(designs.texts.held().len(), 2);
        assert_eq!(designs.bytes(), 14);
        drop(all);
        assert!(Arc::ptr_eq(&hold(&rev("1-a"), "texts"), &same_name), "the newer text stays");
        drop((other, same_name));
        assert!(designs.texts.held().is_empty() && designs.texts.by_database.all().is_empty() && designs.bytes() == 0);
    }

    #[test]
    fn texts_are_bounded() {
        let designs = Designs::default();
        let eight = "x".repeat(8 << 20);
        let hold =
            |database: &str, n: usize| designs.hold(database, &format!("_design/{n}"), &rev("1-a"), eight.clone());
        let held: Vec<_> = (0..8).map(|n| hold("a/1", n).expect("room")).collect();
        assert_eq!(hold("a/1", 8).expect_err("half is one database's"), Full);
        assert!(hold("a/1", 7).is_ok(), "what is held takes nothing");
        let others: Vec<_> = (0..8).map(|n| hold("b/1", n).expect("room")).collect();
        assert_eq!(hold("c/1", 0).expect_err("all is taken"), Full);
        drop(held);
        assert!(hold("c/1", 0).is_ok());
        drop(others);
    }
}
