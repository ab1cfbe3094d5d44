//! Looking for the place of a key that was cut among the rows that begin alike.
//!
//! Rows carry the whole key in their value. So whoever holds the rows is asked for one near the middle of where the key
//! can be, compares the keys, and says which of the two is greater, until the key or a gap is found.
//!
//! What is in the middle only the rows' number tells, which labels say nothing of: where keys came each between the last two,
//! half of the labels' room has one row. So who holds the rows offers [pivots](Search::offer), labels that are some of the rows' in a level that
//! has few, then those of one that has more between the two that were found, and so on: a search among n keys then asks some
//! log n times. Without pivots it is the room that is halved, which is as good where labels came in no special order.
//!
//! A row is written with the label that was found, or with one [`between`] those of the gap; the reads conflict with
//! another write into the gap. A range begins or ends at a [`Boundary`], whether or not there is a row with its key.

use std::cmp::Ordering;

use crate::key::{HIGHEST, SortKey};
use crate::label::{between, middle};

/// A search under way. Also for a place that is no key's, such as the end of a group: then nothing is `Equal`.
#[derive(Debug, Clone, Default)]
pub struct Search {
    after: Option<Vec<u8>>,
    before: Option<Vec<u8>>,
    /// In order, between the two; none is asked for twice.
    pivots: Vec<Vec<u8>>,
}

/// Which row is asked for: of those with the cut beginning and a label behind `after` and before `before`, where there is
/// one, the first whose label is not before `pivot`, else the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask<'a> {
    /// Behind this label.
    pub after: Option<&'a [u8]>,
    /// Before this label.
    pub before: Option<&'a [u8]>,
    /// Near this one.
    pub pivot: Vec<u8>,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Rows with the very key have this label.
    Label(Vec<u8>),
    /// No row has the key: it belongs between these labels.
    Gap {
        /// That of the key before it.
        after: Option<Vec<u8>>,
        /// That of the key behind it.
        before: Option<Vec<u8>>,
    },
}

impl Search {
    /// A new search.
    pub fn new() -> Search {
        Search::default()
    }

    /// Labels in order near which is to be asked, instead of in the middle of the room. They need not be those of rows: one whose rows
    /// are gone leads to their neighbours. What is not between the two that are known is passed over.
    pub fn offer(&mut self, pivots: impl IntoIterator<Item = Vec<u8>>) {
        self.pivots.extend(pivots);
        self.pivots.dedup();
        self.keep_between();
    }

    /// Whether any of those that were offered are left.
    pub fn has_pivots(&self) -> bool {
        !self.pivots.is_empty()
    }

    /// The labels between which it is: those of the nearest rows that were seen before and behind it.
    pub fn between(&self) -> (Option<&[u8]>, Option<&[u8]>) {
        (self.after.as_deref(), self.before.as_deref())
    }

    /// What is to be read next.
    pub fn ask(&self) -> Ask<'_> {
        let (after, before) = self.between();
        let pivot = self.pivots.get(self.pivots.len() / 2).cloned();
        Ask { after, before, pivot: pivot.unwrap_or_else(|| middle(after, before)) }
    }

    /// What was read: the label of the row, and how the key that is looked for compares with the row's. `None` where there
    /// is no row between the labels. Answers the place, once it is found.
    pub fn saw(&mut self, row: Option<(&[u8], Ordering)>) -> Option<Place> {
        match row {
            None => return Some(Place::Gap { after: self.after.take(), before: self.before.take() }),
            Some((label, Ordering::Equal)) => return Some(Place::Label(label.to_vec())),
            Some((label, Ordering::Greater)) => self.after = Some(label.to_vec()),
            Some((label, Ordering::Less)) => self.before = Some(label.to_vec()),
        }
        // The one that was asked for: behind it there may be rows without it.
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

impl Place {
    /// The label for a row with the key; `None` where there is no room for it ([`between`]).
    pub fn label(&self) -> Option<Vec<u8>> {
        match self {
            Place::Label(label) => Some(label.clone()),
            Place::Gap { after, before } => between(after.as_deref(), before.as_deref()),
        }
    }
}

/// An end of a range of rows, by the sort forms and labels that stand in their keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Boundary {
    /// Before all rows with these bytes.
    Before(Vec<u8>),
    /// Behind all rows with these bytes, whatever their documents.
    Behind(Vec<u8>),
}

impl Boundary {
    /// Before or behind the rows with a key. A key that was cut needs its place.
    pub fn of(key: &SortKey, place: Option<&Place>, is_behind: bool) -> Boundary {
        let exactly = |bytes| if is_behind { Boundary::Behind(bytes) } else { Boundary::Before(bytes) };
        match place {
            Some(Place::Label(label)) => exactly([key.bytes(), label].concat()),
            Some(Place::Gap { after: Some(label), .. }) => Boundary::Behind([key.bytes(), label].concat()),
            // All that begin so are behind the key: the beginning alone is before their labels.
            Some(Place::Gap { after: None, .. }) => Boundary::Before(key.bytes().to_vec()),
            None => exactly(key.bytes().to_vec()),
        }
    }

    /// Before or behind the rows whose keys are arrays that begin with some items, by their
    /// [`items_key`](crate::Collation::items_key). Where that was cut it needs the place, which is searched with the rows' keys
    /// cut to as many items ([`cut_to_level`](crate::cut_to_level)), equal ones being behind or before it.
    pub fn of_items(items: &SortKey, place: Option<&Place>, is_behind: bool) -> Boundary {
        match place {
            None if is_behind => Boundary::Before([items.bytes(), &[HIGHEST]].concat()),
            place => Boundary::of(items, place, false),
        }
    }

    /// Whether rows with these bytes are before the boundary.
    pub fn is_behind(&self, element: &[u8]) -> bool {
        match self {
            Boundary::Before(bytes) => element < bytes.as_slice(),
            Boundary::Behind(bytes) => element <= bytes.as_slice(),
        }
    }
}

#[cfg(test)]
mod tests;
