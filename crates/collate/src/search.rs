//! The search for a cut key among the rows with the same prefix.
//!
//! Rows store the whole key in their value. The caller reads a row near the middle of the possible positions, compares
//! the keys, and reports the order, until the key or a gap is found.
//!
//! Labels do not show how many rows lie between them: half of the label space may hold a single row, for example if
//! each new key fell between the last two. The caller therefore offers [pivots](Search::offer): labels of some rows
//! from a sparse level, then those of a denser level between the two nearest rows, and so on. A search among n keys
//! then reads about log n rows. Without pivots the search halves the label space. That takes as few reads if the keys
//! were inserted in random order.
//!
//! A row is written with the found label, or with one [`between`] those of the gap; the reads conflict with other
//! writes into the gap. A range begins or ends at a [`Boundary`], whether or not a row has its key.

use std::cmp::Ordering;

use crate::key::{HIGHEST, SortKey};
use crate::label::{between, middle};

/// A search in progress. It also finds places that are not keys, such as the end of a group; then no comparison is
/// `Equal`.
#[derive(Debug, Clone, Default)]
pub struct Search {
    after: Option<Vec<u8>>,
    before: Option<Vec<u8>>,
    /// In order, between the two nearest rows; each is used once.
    pivots: Vec<Vec<u8>>,
}

/// The next row to read. Candidates are the rows with the cut prefix whose labels lie between `after` and `before`. The
/// caller reads the first candidate whose label is `pivot` or greater, or the last candidate if there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchRequest<'a> {
    /// An exclusive lower bound of the label.
    pub after: Option<&'a [u8]>,
    /// An exclusive upper bound of the label.
    pub before: Option<&'a [u8]>,
    /// The label to start from.
    pub pivot: Vec<u8>,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelPlace {
    /// The rows with exactly this key have this label.
    Label(Vec<u8>),
    /// No row has the key; it belongs between these labels.
    Gap {
        /// The label of the previous key.
        after: Option<Vec<u8>>,
        /// The label of the next key.
        before: Option<Vec<u8>>,
    },
}

impl Search {
    /// Begins a search.
    pub fn new() -> Search {
        Search::default()
    }

    /// Offers labels, in order, as pivots in place of the middle of the label space. A pivot whose row has been removed
    /// leads to a neighbouring row. Labels that do not lie between the two nearest rows are ignored.
    pub fn offer(&mut self, pivots: impl IntoIterator<Item = Vec<u8>>) {
        self.pivots.extend(pivots);
        self.pivots.dedup();
        self.keep_between();
    }

    /// Returns whether unused pivots are left.
    pub fn has_pivots(&self) -> bool {
        !self.pivots.is_empty()
    }

    /// Returns the labels of the nearest rows read before and after the place.
    pub fn between(&self) -> (Option<&[u8]>, Option<&[u8]>) {
        (self.after.as_deref(), self.before.as_deref())
    }

    /// Returns the next row to read.
    pub fn ask(&self) -> SearchRequest<'_> {
        let (after, before) = self.between();
        let pivot = self.pivots.get(self.pivots.len() / 2).cloned();
        SearchRequest { after, before, pivot: pivot.unwrap_or_else(|| middle(after, before)) }
    }

    /// Reports the row read: its label, and the order of the searched key relative to the row's. `None` if no row lies
    /// between the labels. Returns the place once it is found.
    pub fn saw(&mut self, row: Option<(&[u8], Ordering)>) -> Option<LabelPlace> {
        match row {
            None => return Some(LabelPlace::Gap { after: self.after.take(), before: self.before.take() }),
            Some((label, Ordering::Equal)) => return Some(LabelPlace::Label(label.to_vec())),
            Some((label, Ordering::Greater)) => self.after = Some(label.to_vec()),
            Some((label, Ordering::Less)) => self.before = Some(label.to_vec()),
        }
        // The pivot was used: rows without it may follow.
        if self.has_pivots() {
            self.pivots.remove(self.pivots.len() / 2);
        }
        self.keep_between();
        None
    }

    fn keep_between(&mut self) {
        let (after, before) = (self.after.as_deref(), self.before.as_deref());
        let is_between =
            |pivot: &[u8]| after.is_none_or(|after| after < pivot) && before.is_none_or(|before| pivot < before);
        self.pivots.retain(|pivot| is_between(pivot));
    }
}

impl LabelPlace {
    /// Returns the label for a row with the key; `None` without room for it ([`between`]).
    pub fn label(&self) -> Option<Vec<u8>> {
        match self {
            LabelPlace::Label(label) => Some(label.clone()),
            LabelPlace::Gap { after, before } => between(after.as_deref(), before.as_deref()),
        }
    }
}

/// An end of a range of rows, by the sort forms and labels in their keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Boundary {
    /// Before all rows with these bytes.
    Before(Vec<u8>),
    /// After all rows with these bytes, for any document.
    Behind(Vec<u8>),
}

impl Boundary {
    /// Returns the boundary before or after the rows with a key. A cut key needs its place.
    pub fn of(key: &SortKey, place: Option<&LabelPlace>, is_behind: bool) -> Boundary {
        let exactly = |bytes| if is_behind { Boundary::Behind(bytes) } else { Boundary::Before(bytes) };
        match place {
            Some(LabelPlace::Label(label)) => exactly([key.bytes(), label].concat()),
            Some(LabelPlace::Gap { after: Some(label), .. }) => Boundary::Behind([key.bytes(), label].concat()),
            // All rows with this prefix are after the key: the prefix alone sorts before their labels.
            Some(LabelPlace::Gap { after: None, .. }) => Boundary::Before(key.bytes().to_vec()),
            None => exactly(key.bytes().to_vec()),
        }
    }

    /// Returns the boundary before or after the rows whose keys are arrays that begin with some items. `items` is the
    /// [`items_key`](crate::Collation::items_key) of these items. A cut `items` needs its place. The search for the
    /// place compares the rows' keys after cutting them to the same number of items
    /// ([`cut_to_level`](crate::cut_to_level)). For equal keys it reports [`Ordering::Less`] if the boundary is before
    /// the rows, else [`Ordering::Greater`].
    pub fn of_items(items: &SortKey, place: Option<&LabelPlace>, is_behind: bool) -> Boundary {
        match place {
            None if is_behind => Boundary::Before([items.bytes(), &[HIGHEST]].concat()),
            place => Boundary::of(items, place, false),
        }
    }

    /// Returns whether rows with these bytes are before the boundary.
    pub fn is_behind(&self, element: &[u8]) -> bool {
        match self {
            Boundary::Before(bytes) => element < bytes.as_slice(),
            Boundary::Behind(bytes) => element <= bytes.as_slice(),
        }
    }
}

#[cfg(test)]
mod tests;
