//! A body into rows: path and scalar, in order of paths.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::json::{self, Value};
use crate::path::{self, ARRAY, PACKED, PART, put_int, put_literal};
use crate::scalar;

/// Largest part of a string or of a packed subtree, in bytes.
pub const PART_BYTES: usize = 50_000;

/// Longer names are not written literally: the object that has one is stored packed.
pub const LITERAL_BYTES_MAX: usize = 512;

/// Ids of field names, where they have one.
pub trait FieldIds {
    /// The name's id, 10 or more. It must answer the same for a name as long as one document is flattened.
    fn id_of(&self, name: &str) -> Option<u64>;
}

/// Bounds of flattening.
#[derive(Debug, Clone, Copy)]
pub struct FlattenOptions {
    /// Longest packed path, in bytes; what would pass it is stored packed.
    pub path_bytes_max: usize,
}

impl Default for FlattenOptions {
    fn default() -> Self {
        FlattenOptions { path_bytes_max: 8_000 }
    }
}

/// Rows of a body in order of their paths, in one buffer.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    buffer: Vec<u8>,
    at: Vec<(u32, u32, u32)>,
}

impl Rows {
    /// Path and value of each row.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        self.at.iter().map(|&(start, value, end)| {
            (&self.buffer[start as usize..value as usize], &self.buffer[value as usize..end as usize])
        })
    }

    /// How many there are; never 0 after flattening.
    pub fn len(&self) -> usize {
        self.at.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.at.is_empty()
    }

    fn push(&mut self, path: &[u8], value: impl FnOnce(&mut Vec<u8>)) {
        let start = self.buffer.len() as u32;
        self.buffer.extend_from_slice(path);
        let middle = self.buffer.len() as u32;
        value(&mut self.buffer);
        self.at.push((start, middle, self.buffer.len() as u32));
    }
}

/// Names in `body` that have no id, in order of first sight, each once.
pub fn unknown_names<'v>(body: &'v Value<'_>, ids: &impl FieldIds) -> Vec<&'v str> {
    let mut found = Unknown { ids, seen: HashSet::new(), names: Vec::new() };
    found.visit(body);
    found.names
}

struct Unknown<'v, 'i, I> {
    ids: &'i I,
    seen: HashSet<&'v str>,
    names: Vec<&'v str>,
}

impl<'v, I: FieldIds> Unknown<'v, '_, I> {
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

/// Flattens a body, which is an object. Names that have no id stand literally.
pub fn flatten(body: &Value<'_>, ids: &impl FieldIds, options: &FlattenOptions) -> Rows {
    let mut flattener =
        Flattener { ids, path_bytes_max: options.path_bytes_max, path: Vec::with_capacity(64), rows: Rows::default() };
    flattener.rows.buffer.reserve(1024);
    flattener.value(body);
    flattener.rows
}

struct Flattener<'i, I> {
    ids: &'i I,
    path_bytes_max: usize,
    path: Vec<u8>,
    rows: Rows,
}

/// What stands in a path for a name.
enum Field<'n> {
    Literal(&'n str),
    Id(u64),
}

impl Field<'_> {
    /// Literals sort before integers, as in tuples.
    fn sort_key(&self) -> (u64, &[u8]) {
        match self {
            Field::Literal(name) => (0, name.as_bytes()),
            Field::Id(id) => (*id, b""),
        }
    }

    fn len(&self) -> usize {
        match self {
            Field::Literal(name) => path::literal_len(name),
            Field::Id(_) => 9,
        }
    }
}

impl<I: FieldIds> Flattener<'_, I> {
    fn value(&mut self, value: &Value<'_>) {
        match value {
            Value::Null => self.tag(scalar::NULL),
            Value::Bool(false) => self.tag(scalar::FALSE),
            Value::Bool(true) => self.tag(scalar::TRUE),
            Value::Number(text) => self.number(text),
            Value::String(text) if text.len() <= PART_BYTES => {
                self.rows.push(&self.path, |out| {
                    out.push(scalar::STRING);
                    out.extend_from_slice(text.as_bytes());
                });
            }
            Value::String(text) => self.parts(text, PART, scalar::STRING_PART),
            Value::Array(items) if items.is_empty() => self.tag(scalar::EMPTY_ARRAY),
            Value::Array(items) => self.array(items, value),
            Value::Object(members) if members.is_empty() => self.tag(scalar::EMPTY_OBJECT),
            Value::Object(members) => self.object(members, value),
        }
    }

    fn tag(&mut self, tag: u8) {
        self.rows.push(&self.path, |out| out.push(tag));
    }

    fn number(&mut self, text: &str) {
        // Canonical: the text that the integer itself is written as. "-0" is none.
        let integer = text.parse::<i64>().ok().filter(|_| text != "-0");
        self.rows.push(&self.path, |out| match integer {
            Some(integer) => {
                out.push(scalar::INT);
                scalar::put_varint(out, scalar::zigzag(integer));
            }
            None => {
                out.push(scalar::NUMBER);
                out.extend_from_slice(text.as_bytes());
            }
        });
    }

    /// A text in parts under `marker`, cut between characters.
    fn parts(&mut self, text: &str, marker: u64, tag: u8) {
        let above = self.path.len();
        put_int(&mut self.path, marker);
        let base = self.path.len();
        let mut rest = text;
        let mut part = 0;
        while !rest.is_empty() {
            let mut cut = rest.len().min(PART_BYTES);
            while !rest.is_char_boundary(cut) {
                cut -= 1;
            }
            let (now, later) = rest.split_at(cut);
            self.path.truncate(base);
            put_int(&mut self.path, part);
            self.rows.push(&self.path, |out| {
                out.push(tag);
                out.extend_from_slice(now.as_bytes());
            });
            rest = later;
            part += 1;
        }
        self.path.truncate(above);
    }

    fn packed(&mut self, value: &Value<'_>) {
        let mut text = Vec::with_capacity(json::text_len(value));
        json::write(value, &mut text);
        let text = String::from_utf8_lossy(&text);
        self.parts(&text, PACKED, scalar::PACKED_PART);
    }

    /// Whether a path may still grow by `more` bytes and a marker with a number.
    fn fits(&self, more: usize) -> bool {
        self.path.len() + more + 12 <= self.path_bytes_max
    }

    fn array(&mut self, items: &[Value<'_>], value: &Value<'_>) {
        if !self.fits(10) {
            return self.packed(value);
        }
        let above = self.path.len();
        put_int(&mut self.path, ARRAY);
        let base = self.path.len();
        for (index, item) in (0..).zip(items) {
            self.path.truncate(base);
            put_int(&mut self.path, index);
            self.value(item);
        }
        self.path.truncate(above);
    }

    fn object(&mut self, members: &[(Cow<'_, str>, Value<'_>)], value: &Value<'_>) {
        let mut fields = Vec::with_capacity(members.len());
        for (name, _) in members {
            let field = match self.ids.id_of(name) {
                Some(id) => Field::Id(id),
                None if name.len() <= LITERAL_BYTES_MAX => Field::Literal(name),
                None => return self.packed(value),
            };
            if !self.fits(field.len()) {
                return self.packed(value);
            }
            fields.push(field);
        }
        let in_order = fields.windows(2).all(|pair| pair[0].sort_key() < pair[1].sort_key());
        if in_order {
            return self.members(members, &fields, 0..members.len());
        }
        let mut sorted: Vec<usize> = (0..members.len()).collect();
        sorted.sort_unstable_by(|a, b| fields[*a].sort_key().cmp(&fields[*b].sort_key()));
        let first_id = sorted.partition_point(|at| matches!(fields[*at], Field::Literal(_)));
        // In tuple order literals come before the marker, ids after it.
        self.members(members, &fields, sorted[..first_id].iter().copied());
        self.permutation(&sorted);
        self.members(members, &fields, sorted[first_id..].iter().copied());
    }

    fn members(
        &mut self,
        members: &[(Cow<'_, str>, Value<'_>)],
        fields: &[Field<'_>],
        order: impl Iterator<Item = usize>,
    ) {
        let base = self.path.len();
        for at in order {
            match &fields[at] {
                Field::Literal(name) => put_literal(&mut self.path, name),
                Field::Id(id) => put_int(&mut self.path, *id),
            }
            self.value(&members[at].1);
            self.path.truncate(base);
        }
    }

    /// `sorted[s]` is the place at which the member that sorts as the `s`-th was written.
    fn permutation(&mut self, sorted: &[usize]) {
        let mut places = vec![0; sorted.len()];
        for (place, written) in sorted.iter().enumerate() {
            places[*written] = place;
        }
        let above = self.path.len();
        put_int(&mut self.path, path::PERMUTATION);
        let base = self.path.len();
        // A varint of a place takes at most 4 bytes: bodies are below 2^28 members.
        for (part, places) in (0..).zip(places.chunks(PART_BYTES / 4)) {
            self.path.truncate(base);
            if part > 0 {
                put_int(&mut self.path, part);
            }
            self.rows.push(&self.path, |out| {
                out.push(scalar::PERMUTATION);
                places.iter().for_each(|place| scalar::put_varint(out, *place as u64));
            });
        }
        self.path.truncate(above);
    }
}
