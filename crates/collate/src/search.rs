//! Looking for the place of a key that was cut among the rows that begin alike.
//!
//! Rows carry the whole key in their value. So whoever holds the rows is asked for one near the middle of where the key
//! can be, compares the keys, and says which of the two is greater, until the key or a gap is found. Labels are halved each
//! time: a search among n keys asks some log n times, at most 64 times for each word of a label.
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

    /// What is to be read next.
    pub fn ask(&self) -> Ask<'_> {
        let (after, before) = (self.after.as_deref(), self.before.as_deref());
        Ask { after, before, pivot: middle(after, before) }
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
        None
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
