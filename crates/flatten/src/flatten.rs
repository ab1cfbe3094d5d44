//! Flattening: a body to rows of path and scalar, in path order.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::json::{self, Value};
use crate::path::{ARRAY, FIRST_FIELD_ID, PACKED, PART, PERMUTATION, literal_len, put_int, put_literal};
use crate::rows::Rows;
use crate::scalar::{Scalar, put_varint};

/// The largest part of a string, a packed subtree or a permutation, in bytes. FoundationDB's limit on a value is
/// 100,000.
pub const PART_BYTES: usize = 50_000;

/// The longest literal name, in bytes. An object with a longer one is stored packed.
pub const LITERAL_BYTES_MAX: usize = 512;

/// The most enclosing objects with a permutation. A further one is stored packed, because reading moves the text of
/// each object again.
pub const PERMUTED_DEPTH_MAX: usize = 16;

/// The most bytes of a marker and a part's number.
const MARKER_BYTES: usize = 1 + 1 + 9;

/// The ids of field names.
pub trait FieldIds {
    /// Returns the name's id, which must be unique. The name is stored literally for `None` and for an id below 10.
    /// The result must not change while one document is flattened.
    fn id_of(&self, name: &str) -> Option<u64>;
}

/// Limits of flattening.
#[derive(Debug, Clone, Copy)]
pub struct FlattenOptions {
    /// The longest path in bytes, at least 20. An object or array with a longer one is stored packed.
    pub path_bytes_max: usize,
}

impl Default for FlattenOptions {
    fn default() -> Self {
        FlattenOptions { path_bytes_max: 8_000 }
    }
}

/// Returns the names in `body` without an id, in order of first occurrence, each once.
pub fn unknown_names<'v>(body: &'v Value<'_>, ids: &impl FieldIds) -> Vec<&'v str> {
    let mut found = UnknownNames { ids, seen: HashSet::new(), names: Vec::new() };
    found.visit(body);
    found.names
}

struct UnknownNames<'v, 'i, I> {
    ids: &'i I,
    seen: HashSet<&'v str>,
    names: Vec<&'v str>,
}

impl<'v, I: FieldIds> UnknownNames<'v, '_, I> {
    fn visit(&mut self, value: &'v Value<'_>) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.visit(item)),
            Value::Object(members) => {
                for (name, value) in members {
                    if self.ids.id_of(name).is_none() && self.seen.insert(name) {
                        self.names.push(name);
                    }
                    self.visit(value);
                }
            }
            _ => {}
        }
    }
}

/// Flattens a body: an object from [`crate::json::parse`], so without duplicate names. Names without an id are stored
/// literally.
pub fn flatten(body: &Value<'_>, ids: &impl FieldIds, options: &FlattenOptions) -> Rows {
    let mut flattener = Flattener {
        ids,
        path_bytes_max: options.path_bytes_max,
        path: Vec::with_capacity(64),
        shared: 0,
        behind: None,
        fields: Vec::with_capacity(32),
        permuted: 0,
        rows: Rows::with_capacity(1_024),
    };
    flattener.value(body);
    flattener.rows
}

struct Flattener<'i, I> {
    ids: &'i I,
    path_bytes_max: usize,
    path: Vec<u8>,
    /// The length of the prefix that `path` shares with the last row's path.
    shared: usize,
    /// The byte of the last row's path after that prefix.
    behind: Option<u8>,
    /// Members of the open objects, in order of their path elements; the innermost object's are last.
    fields: Vec<Field>,
    /// The number of open objects with a permutation.
    permuted: usize,
    rows: Rows,
}

#[derive(Debug, Clone, Copy)]
struct Field {
    /// `None`: the name is stored literally.
    id: Option<u64>,
    /// Its position as written.
    place: usize,
}

type Members<'v> = [(Cow<'v, str>, Value<'v>)];

impl<I: FieldIds> Flattener<'_, I> {
    fn row(&mut self, scalar: Scalar<'_>) {
        // Neighbours usually have elements of equal length, so of the same type code.
        let shared =
            self.shared + usize::from(self.behind.is_some() && self.path.get(self.shared) == self.behind.as_ref());
        self.rows.push(&self.path, shared, scalar);
        self.shared = self.path.len();
        self.behind = None;
    }

    fn up(&mut self, len: usize) {
        if self.shared > len {
            self.shared = len;
            self.behind = self.path.get(len).copied();
        }
        self.path.truncate(len);
    }

    fn value(&mut self, value: &Value<'_>) {
        match value {
            Value::Null => self.row(Scalar::Null),
            Value::Bool(value) => self.row(Scalar::Bool(*value)),
            Value::Number(text) => self.row(Scalar::of_number(text)),
            Value::String(text) if text.len() <= PART_BYTES => self.row(Scalar::String(text.as_bytes())),
            Value::String(text) => self.texts(PART, text, Scalar::StringPart),
            Value::Array(items) if items.is_empty() => self.row(Scalar::EmptyArray),
            Value::Array(items) => self.array(items, value),
            Value::Object(members) if members.is_empty() => self.row(Scalar::EmptyObject),
            Value::Object(members) => self.object(members, value),
        }
    }

    /// Writes rows under `marker`, one for each part.
    fn parts<'p>(&mut self, marker: u64, parts: impl Iterator<Item = Scalar<'p>>) {
        let above = self.path.len();
        put_int(&mut self.path, marker);
        let base = self.path.len();
        for (number, part) in (0..).zip(parts) {
            put_int(&mut self.path, number);
            self.row(part);
            self.up(base);
        }
        self.up(above);
    }

    /// Writes a text in parts, cut between characters.
    fn texts<'t>(&mut self, marker: u64, text: &'t str, part: impl Fn(&'t [u8]) -> Scalar<'t>) {
        let mut rest = text;
        self.parts(
            marker,
            std::iter::from_fn(|| {
                let mut cut = rest.len().min(PART_BYTES);
                while !rest.is_char_boundary(cut) {
                    cut -= 1;
                }
                let (now, later) = rest.split_at(cut);
                rest = later;
                (!now.is_empty()).then(|| part(now.as_bytes()))
            }),
        );
    }

    fn packed(&mut self, value: &Value<'_>) {
        let mut text = Vec::with_capacity(json::text_len(value));
        json::write(value, &mut text);
        // The text is UTF-8, because it was assembled from strings.
        self.texts(PACKED, &String::from_utf8_lossy(&text), Scalar::PackedPart);
    }

    /// Returns whether the path may grow by `more` bytes and still leave space for a marker.
    fn fits(&self, more: usize) -> bool {
        self.path.len() + more + MARKER_BYTES <= self.path_bytes_max
    }

    fn array(&mut self, items: &[Value<'_>], value: &Value<'_>) {
        if !self.fits(1 + 9) {
            return self.packed(value);
        }
        let above = self.path.len();
        put_int(&mut self.path, ARRAY);
        let base = self.path.len();
        for (index, item) in (0..).zip(items) {
            put_int(&mut self.path, index);
            self.value(item);
            self.up(base);
        }
        self.up(above);
    }

    #[expect(clippy::indexing_slicing, reason = "`fields` only grows from `first`")]
    fn object(&mut self, members: &Members<'_>, value: &Value<'_>) {
        let first = self.fields.len();
        let mut last: Option<Field> = None;
        let mut in_order = true;
        for (place, (name, _)) in members.iter().enumerate() {
            let field = Field { id: self.ids.id_of(name).filter(|id| *id >= FIRST_FIELD_ID), place };
            let fits = match field.id {
                Some(_) => self.fits(9),
                None => name.len() <= LITERAL_BYTES_MAX && self.fits(literal_len(name)),
            };
            if !fits {
                self.fields.truncate(first);
                return self.packed(value);
            }
            in_order = in_order && last.is_none_or(|last| sorts(members, &last, &field).is_lt());
            last = Some(field);
            self.fields.push(field);
        }
        if in_order {
            self.members(members, first, self.fields.len());
        } else if self.permuted == PERMUTED_DEPTH_MAX {
            self.fields.truncate(first);
            return self.packed(value);
        } else {
            self.permuted += 1;
            self.fields[first..].sort_unstable_by(|a, b| sorts(members, a, b));
            let end = self.fields.len();
            // In tuple order literals come before the marker, ids after it.
            let first_id = first + self.fields[first..].partition_point(|field| field.id.is_none());
            self.members(members, first, first_id);
            self.permutation(first);
            self.members(members, first_id, end);
            self.permuted -= 1;
        }
        self.fields.truncate(first);
    }

    #[expect(clippy::indexing_slicing, reason = "`object` put a field there for each member")]
    fn members(&mut self, members: &Members<'_>, first: usize, end: usize) {
        let base = self.path.len();
        for at in first..end {
            let field = self.fields[at];
            let (name, value) = &members[field.place];
            match field.id {
                Some(id) => put_int(&mut self.path, id),
                None => put_literal(&mut self.path, name),
            }
            self.value(value);
            self.up(base);
        }
    }

    /// For each member in the order written: its index in row order.
    #[expect(clippy::indexing_slicing, reason = "`object` put a field there for each member")]
    fn permutation(&mut self, first: usize) {
        let mut sorted = vec![0; self.fields.len() - first];
        for (at, field) in self.fields[first..].iter().enumerate() {
            sorted[field.place] = at as u64;
        }
        let mut bytes = Vec::with_capacity(sorted.len() * 2);
        sorted.iter().for_each(|at| put_varint(&mut bytes, *at));
        self.parts(PERMUTATION, bytes.chunks(PART_BYTES).map(Scalar::OrderPart));
    }
}

/// The order of two members' path elements: literals sort before integers.
#[expect(clippy::indexing_slicing, reason = "a field's place is that of a member")]
fn sorts(members: &Members<'_>, a: &Field, b: &Field) -> std::cmp::Ordering {
    a.id.cmp(&b.id).then_with(|| match a.id {
        Some(_) => std::cmp::Ordering::Equal,
        None => members[a.place].0.as_bytes().cmp(members[b.place].0.as_bytes()),
    })
}
