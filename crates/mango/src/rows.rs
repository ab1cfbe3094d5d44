//! Matches selectors, and makes index keys, on the rows of a body (crate `flatten`), without making JSON of rejected
//! documents or of fields outside of an index.

use std::collections::HashMap;

use flatbed_flatten::json::Value;
use flatbed_flatten::path::{Step, of_steps};
use flatbed_flatten::{DecodeError, FieldIds, FieldNames, PickResult, pick, read_body};

use crate::Selector;
use crate::field::{Field, FieldValue, place};
use crate::index::Index;
use crate::matching::Subject;
use crate::normal::{Normal, Term};
use crate::steps::{Interrupts, MatchInterrupted, Progress, Steps};

/// The number of parts of a field's name that are looked up as a path. The rest is followed inside of the value there.
const PATH_PARTS_MAX: usize = 2;

/// Why a body was not matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RowsError {
    /// The selector takes too long, or the client is gone.
    #[error(transparent)]
    Exhausted(#[from] MatchInterrupted),
    /// The rows are invalid.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// A selector prepared for the bodies of one database.
#[derive(Debug, Clone)]
pub struct RowSelector<'s> {
    selector: &'s Normal,
    reader: Reader,
}

/// An index prepared for the bodies of one database.
#[derive(Debug, Clone)]
pub struct RowIndex<'i> {
    index: &'i Index,
    reader: Reader,
}

/// The fields that an index reads from the bodies of one database, kept beside the index.
#[derive(Debug, Clone)]
pub struct IndexReader(Reader);

impl IndexReader {
    /// As [`RowSelector::lacks_ids`].
    pub fn lacks_ids(&self) -> bool {
        self.0.lacks_ids
    }
}

impl Selector {
    /// Prepares the selector for bodies whose field names have these ids. Bodies written before a name had an id are
    /// matched correctly. Bodies written later that use a name without an id are not: prepare the selector anew for
    /// each page.
    pub fn for_rows(&self, ids: &impl FieldIds) -> RowSelector<'_> {
        let mut fields = Fields::default();
        fields.collect(self.normal());
        RowSelector { selector: self.normal(), reader: Reader::new(fields, ids) }
    }
}

/// The fields that a selector reads from the bodies of one database, kept beside the selector.
#[derive(Debug, Clone)]
pub struct SelectorReader(Reader);

impl SelectorReader {
    /// As [`RowSelector::lacks_ids`].
    pub fn lacks_ids(&self) -> bool {
        self.0.lacks_ids
    }
}

impl Selector {
    /// Like [`Selector::for_rows`], for [`Selector::matches_rows`].
    pub fn reader(&self, ids: &impl FieldIds) -> SelectorReader {
        SelectorReader(self.for_rows(ids).reader)
    }

    /// Like [`RowSelector::matches_in_slices`], with a reader of this selector.
    ///
    /// # Errors
    /// [`RowsError`]
    pub fn matches_rows<'k, P>(
        &self,
        reader: &SelectorReader,
        pairs: P,
        names: impl FieldNames,
        special: impl FnOnce() -> Value<'static>,
        progress: &mut Progress,
        interrupts: Interrupts<'_>,
    ) -> Result<bool, RowsError>
    where
        P: IntoIterator<Item = (&'k [u8], &'k [u8])> + Clone,
    {
        let read = reader.0.read(pairs, &names, special)?;
        drop(names);
        Ok(self.normal().holds_in_slices(&read, progress, interrupts)?)
    }
}

impl RowSelector<'_> {
    /// Returns whether a name in the selector has no id. Bodies are then matched correctly only if `ids` is complete.
    pub fn lacks_ids(&self) -> bool {
        self.reader.lacks_ids
    }

    /// Matches a body, given as the pairs that [`flatbed_flatten::pack`] made. `special` makes the object of the
    /// special members (`_id`, `_rev` and others); it is called only if the selector needs them. `names` may hold a
    /// lock: they are dropped before the conditions are tested, which may be slow.
    ///
    /// # Errors
    /// [`RowsError`]; as for [`Selector::matches_unless`].
    pub fn matches<'k, P>(
        &self,
        pairs: P,
        names: impl FieldNames,
        special: impl FnOnce() -> Value<'static>,
        stop: &dyn Fn() -> bool,
    ) -> Result<bool, RowsError>
    where
        P: IntoIterator<Item = (&'k [u8], &'k [u8])> + Clone,
    {
        let read = self.reader.read(pairs, &names, special)?;
        drop(names);
        Ok(self.selector.holds(&read, &mut Steps::new(stop))?)
    }

    /// Like [`RowSelector::matches`], for one slice; see [`Selector::matches_in_slices`].
    ///
    /// # Errors
    /// [`RowsError`]
    pub fn matches_in_slices<'k, P>(
        &self,
        pairs: P,
        names: impl FieldNames,
        special: impl FnOnce() -> Value<'static>,
        progress: &mut Progress,
        interrupts: Interrupts<'_>,
    ) -> Result<bool, RowsError>
    where
        P: IntoIterator<Item = (&'k [u8], &'k [u8])> + Clone,
    {
        let read = self.reader.read(pairs, &names, special)?;
        drop(names);
        Ok(self.selector.holds_in_slices(&read, progress, interrupts)?)
    }
}

impl Index {
    /// Prepares the index for bodies whose field names have these ids; see [`Selector::for_rows`].
    pub fn for_rows(&self, ids: &impl FieldIds) -> RowIndex<'_> {
        RowIndex { index: self, reader: self.reader(ids).0 }
    }

    /// Like [`Index::for_rows`], for [`Index::key_of_rows`].
    pub fn reader(&self, ids: &impl FieldIds) -> IndexReader {
        let mut fields = Fields::default();
        if let Some(partial) = self.partial() {
            fields.collect(partial.normal());
        }
        self.fields().iter().for_each(|field| fields.field(field, false));
        IndexReader(Reader::new(fields, ids))
    }

    /// Like [`RowIndex::key`], with a reader of this index, for one slice; see [`Selector::matches_in_slices`].
    ///
    /// # Errors
    /// [`RowsError`]
    pub fn key_of_rows<'k, P>(
        &self,
        reader: &IndexReader,
        pairs: P,
        names: impl FieldNames,
        special: impl FnOnce() -> Value<'static>,
        progress: &mut Progress,
        interrupts: Interrupts<'_>,
    ) -> Result<Option<Vec<Value<'static>>>, RowsError>
    where
        P: IntoIterator<Item = (&'k [u8], &'k [u8])> + Clone,
    {
        let read = reader.0.read(pairs, &names, special)?;
        drop(names);
        let mut steps = Steps::of_slice(interrupts, std::mem::take(progress));
        let key = self.key_read(&read, &mut steps);
        if key == Err(RowsError::Exhausted(MatchInterrupted::Paused)) {
            *progress = steps.into_progress();
        }
        key
    }

    fn key_read(&self, read: &BodyValues<'_>, steps: &mut Steps<'_>) -> Result<Option<Vec<Value<'static>>>, RowsError> {
        if let Some(partial) = self.partial()
            && !partial.normal().holds(read, steps)?
        {
            return Ok(None);
        }
        let mut key = Vec::with_capacity(self.fields().len());
        for field in self.fields() {
            match read.find(field, steps)? {
                FieldValue::Present(value) => key.push(value.clone().into_owned()),
                FieldValue::Missing | FieldValue::NoPath => return Ok(None),
            }
        }
        Ok(Some(key))
    }
}

impl RowIndex<'_> {
    /// Like [`Index::key`], from a body's pairs; see [`RowSelector::matches`]. The caller excludes design documents.
    ///
    /// # Errors
    /// [`RowsError`]
    pub fn key<'k, P>(
        &self,
        pairs: P,
        names: &impl FieldNames,
        special: impl FnOnce() -> Value<'static>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<Value<'static>>>, RowsError>
    where
        P: IntoIterator<Item = (&'k [u8], &'k [u8])> + Clone,
    {
        self.index.key_read(&self.reader.read(pairs, names, special)?, &mut Steps::new(stop))
    }
}

#[derive(Debug, Clone)]
struct Reader {
    /// In ascending order; no path is a prefix of another.
    paths: Vec<Vec<u8>>,
    /// The fields of bodies to read, by name.
    places: HashMap<String, FieldLocation>,
    /// True if special members are read.
    special: bool,
    /// True if a condition applies to the document as a whole.
    whole: bool,
    /// True if a name has no id.
    lacks_ids: bool,
}

#[derive(Debug, Clone)]
struct FieldLocation {
    /// Indexes into `paths`. A body has at most one of them.
    paths: Vec<usize>,
    /// The number of the name's parts that these paths cover.
    parts: usize,
}

impl Reader {
    fn new(fields: Fields<'_>, ids: &impl FieldIds) -> Reader {
        // A shorter path may be a prefix of longer ones, which are then found in its value.
        let short = fields.plain.values().filter(|(_, parts)| *parts == 1);
        let shortest: Vec<Vec<u8>> = short.flat_map(|(field, _)| paths_of(field, 1, ids)).collect();
        let of_field = |(field, parts): &(&Field, usize)| {
            let is_within = *parts > 1 && paths_of(field, 1, ids).iter().any(|path| shortest.contains(path));
            let parts = if is_within { 1 } else { *parts };
            (field.name().to_owned(), parts, paths_of(field, parts, ids))
        };
        let of_fields: Vec<(String, usize, Vec<Vec<u8>>)> = fields.plain.values().map(of_field).collect();
        let mut paths: Vec<Vec<u8>> = of_fields.iter().flat_map(|(_, _, paths)| paths.clone()).collect();
        paths.sort_unstable();
        paths.dedup();
        let places = of_fields.into_iter().map(|(name, parts, of)| {
            let of = of.iter().filter_map(|path| paths.binary_search(path).ok()).collect();
            (name, FieldLocation { paths: of, parts })
        });
        let places = places.collect();
        let names = fields.plain.values().flat_map(|(field, parts)| field.parts().take(*parts));
        let lacks_ids = names.into_iter().any(|name| ids.id_of(name).is_none());
        Reader { paths, places, special: fields.special, whole: fields.whole, lacks_ids }
    }

    fn read<'r, 'k, P>(
        &'r self,
        pairs: P,
        names: &impl FieldNames,
        special: impl FnOnce() -> Value<'static>,
    ) -> Result<BodyValues<'r>, DecodeError>
    where
        P: IntoIterator<Item = (&'k [u8], &'k [u8])> + Clone,
    {
        let picked = match self.whole {
            true => PickResult::Packed,
            false if self.paths.is_empty() => PickResult::Values(Vec::new()),
            false => pick(pairs.clone(), &self.paths, names)?,
        };
        Ok(match picked {
            PickResult::Values(values) => {
                BodyValues::Values { reader: self, values, special: self.special.then(special) }
            }
            PickResult::Packed => {
                let mut document = special();
                if let (Value::Object(members), Value::Object(body)) = (&mut document, read_body(pairs, names)?) {
                    members.extend(body);
                }
                BodyValues::Document(document)
            }
        })
    }
}

enum BodyValues<'r> {
    Values { reader: &'r Reader, values: Vec<Option<Value<'static>>>, special: Option<Value<'static>> },
    Document(Value<'static>),
}

impl Subject for BodyValues<'_> {
    fn find<'v>(&'v self, field: &Field, steps: &mut Steps<'_>) -> Result<FieldValue<'v, 'v>, MatchInterrupted> {
        let (reader, values, special) = match self {
            BodyValues::Document(document) => return field.find(document, steps),
            BodyValues::Values { reader, values, special } => (reader, values, special),
        };
        let Some(place) = reader.places.get(field.name()) else {
            return match special {
                Some(special) => field.find(special, steps),
                None => Ok(FieldValue::Missing),
            };
        };
        let mut there = place.paths.iter().filter_map(|path| values.get(*path).and_then(Option::as_ref));
        match there.next() {
            Some(value) => field.find_from(place.parts, value, steps),
            None => Ok(FieldValue::Missing),
        }
    }
}

#[derive(Default)]
struct Fields<'s> {
    plain: HashMap<&'s str, (&'s Field, usize)>,
    special: bool,
    whole: bool,
}

impl<'s> Fields<'s> {
    fn collect(&mut self, selector: &'s Normal) {
        match selector {
            Normal::Everything | Normal::Text(_) => {}
            Normal::All(conditions) | Normal::Any(conditions) | Normal::None(conditions) => {
                conditions.iter().for_each(|condition| self.collect(condition));
            }
            Normal::Not(condition) => self.collect(condition),
            Normal::At(field, term) => self.field(field, matches!(term, Term::Exists(false))),
        }
    }

    /// `missing`: true if the condition depends on which part is missing.
    fn field(&mut self, field: &'s Field, missing: bool) {
        if field.is_whole() {
            self.whole = true;
            return;
        }
        // The replicator's own members are stored in bodies.
        let is_special = |first: &str| first.starts_with('_') && !first.starts_with("_replication_");
        if field.parts().next().is_some_and(is_special) {
            self.special = true;
            return;
        }
        // Only the value decides whether a part is an array position or a name, and whether a member is missing or its
        // parent cannot have members.
        let names = field.parts().skip(1).take_while(|part| place(part).is_none()).count();
        let parts = if missing { 1 } else { (1 + names).min(PATH_PARTS_MAX) };
        let known = self.plain.entry(field.name()).or_insert((field, parts));
        known.1 = known.1.min(parts);
    }
}

/// Returns the paths at which the value of a field's first parts may be stored: each name as its id, and as text.
fn paths_of(field: &Field, parts: usize, ids: &impl FieldIds) -> Vec<Vec<u8>> {
    let mut paths = vec![Vec::new()];
    for name in field.parts().take(parts) {
        let step = [Step::Name(name)];
        let (known, literal) = (of_steps(&step, ids), of_steps(&step, &NoIds));
        let extended = |path: &Vec<u8>, element: &Vec<u8>| [path.as_slice(), element].concat();
        paths = match known == literal {
            true => paths.iter().map(|path| extended(path, &known)).collect(),
            false => paths.iter().flat_map(|path| [extended(path, &known), extended(path, &literal)]).collect(),
        };
    }
    paths
}

struct NoIds;

impl FieldIds for NoIds {
    fn id_of(&self, _: &str) -> Option<u64> {
        None
    }
}
