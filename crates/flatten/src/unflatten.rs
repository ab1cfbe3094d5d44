//! Unflattening: rows back to JSON text, in one pass and without a tree.
//!
//! The text is written in row order. An object written in another order has a permutation, by which its members are
//! reordered in the text when the object is closed.

use crate::error::DecodeError;
use crate::json::{self, Limits, Value, is_number, write_escaped};
use crate::path::{ARRAY, ESCAPE, Element, FIRST_FIELD_ID, PACKED, PART, PERMUTATION, take};
use crate::run::each_row;
use crate::scalar::{Cursor, Scalar};

/// The longest path accepted, in bytes: FoundationDB's limit on keys.
const PATH_BYTES_MAX: usize = 10_000;

/// The names of field ids.
pub trait FieldNames {
    /// Returns the name with this id.
    fn name_of(&self, id: u64) -> Option<&str>;

    /// Returns the cached [`member_text`] of the id's name.
    fn member_text_of(&self, _id: u64) -> Option<&[u8]> {
        None
    }
}

impl<N: FieldNames + ?Sized> FieldNames for &N {
    fn name_of(&self, id: u64) -> Option<&str> {
        (**self).name_of(id)
    }

    fn member_text_of(&self, id: u64) -> Option<&[u8]> {
        (**self).member_text_of(id)
    }
}

/// The text before a member's value: its name as a JSON string, and a colon.
pub fn member_text(name: &str) -> Box<[u8]> {
    let mut text = Vec::with_capacity(name.len() + 3);
    write_name(name, &mut text);
    text.into()
}

fn write_name(name: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    write_escaped(name, out);
    out.extend_from_slice(b"\":");
}

/// The counts of [`write_members`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Members {
    /// The number of members of the body.
    pub count: usize,
    /// The number of rows of the body.
    pub rows: usize,
}

/// Appends a body's members as compact JSON text without the outer braces, from the pairs that [`crate::pack`] made,
/// in order. An empty body appends nothing.
///
/// The appended text is JSON for any pairs; a run inflates to at most [`crate::VALUE_BYTES_MAX`] bytes.
///
/// # Errors
/// [`DecodeError`]; `out` is unchanged then.
pub fn write_members<'k>(
    pairs: impl IntoIterator<Item = (&'k [u8], &'k [u8])>,
    names: &impl FieldNames,
    out: &mut Vec<u8>,
) -> Result<Members, DecodeError> {
    let before = out.len();
    let mut writer = Writer::new(names, out, true);
    let written = pairs
        .into_iter()
        .try_for_each(|(key, value)| each_row(key, value, |shared, rest, scalar| writer.row(shared, rest, scalar)))
        .and_then(|()| writer.finish());
    if written.is_err() {
        out.truncate(before);
    }
    written
}

/// Reads a body as a tree, from the pairs that [`crate::pack`] made, in order.
pub fn read_body<'k>(
    pairs: impl IntoIterator<Item = (&'k [u8], &'k [u8])>,
    names: &impl FieldNames,
) -> Result<Value<'static>, DecodeError> {
    let mut out = b"{".to_vec();
    write_members(pairs, names, &mut out)?;
    out.push(b'}');
    parsed(&out).map(Value::into_owned)
}

/// Checks whether [`crate::pack`] can produce the pairs: every run decodes, paths grow, every id has a name, and the
/// result is a JSON object without duplicate names.
///
/// # Errors
/// The first error found.
pub fn validate<'k>(
    pairs: impl IntoIterator<Item = (&'k [u8], &'k [u8])>,
    names: &impl FieldNames,
) -> Result<(), DecodeError> {
    let mut out = b"{".to_vec();
    let members = write_members(pairs, names, &mut out)?;
    out.push(b'}');
    match parsed(&out)? {
        // The parser has dropped duplicates.
        body @ Value::Object(_) if json::text_len(&body) == out.len() => {
            debug_assert!(matches!(body, Value::Object(body) if body.len() == members.count));
            Ok(())
        }
        _ => Err(DecodeError::BadPath),
    }
}

fn parsed(text: &[u8]) -> Result<Value<'_>, DecodeError> {
    json::parse(text, &Limits { depth_max: json::DEPTH_MAX_LIMIT }).map_err(|_| DecodeError::BadScalar)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FrameKind {
    Object,
    Array,
    /// Parts of a string.
    String,
    /// Parts of a packed subtree.
    Packed,
    /// Parts of the permutation of the object around it.
    Order,
}

#[derive(Debug)]
struct Frame {
    kind: FrameKind,
    /// Bytes of the path up to its elements (a marker included).
    path_bytes: usize,
    /// Bytes of the path up to the end of the last element.
    element_end: usize,
    /// The number of elements so far, without the permutation.
    count: usize,
    /// The index of its first member in `starts`.
    starts: usize,
    /// The permutation's bytes; empty without one.
    order: Vec<u8>,
}

pub(crate) struct Writer<'o, 'n, N> {
    names: &'n N,
    out: &'o mut Vec<u8>,
    /// True if the root is an object whose braces are left out.
    members_only: bool,
    path: Vec<u8>,
    rows: usize,
    frames: Vec<Frame>,
    /// The begin of each member of the open objects in the text.
    starts: Vec<usize>,
    /// Parts that are joined before use.
    joined: Vec<u8>,
    /// The number of members of the root.
    count: usize,
}

impl<'o, 'n, N: FieldNames> Writer<'o, 'n, N> {
    pub(crate) fn new(names: &'n N, out: &'o mut Vec<u8>, members_only: bool) -> Self {
        Writer {
            names,
            out,
            members_only,
            path: Vec::with_capacity(64),
            rows: 0,
            frames: Vec::with_capacity(8),
            starts: Vec::with_capacity(32),
            joined: Vec::new(),
            count: 0,
        }
    }

    /// Writes a row whose path is the first `shared` bytes of the previous one and `rest`.
    pub(crate) fn row(&mut self, shared: usize, rest: &[u8], scalar: Scalar<'_>) -> Result<(), DecodeError> {
        let last = self.path.get(shared..).ok_or(DecodeError::BadRun)?;
        let more = last.iter().zip(rest).take_while(|(a, b)| a == b).count();
        if self.rows > 0 {
            match (last.get(more), rest.get(more)) {
                (_, None) => return Err(DecodeError::OutOfOrder),
                (None, Some(&ESCAPE)) => {}
                // A row below a row with a value.
                (None, Some(_)) => return Err(DecodeError::BadPath),
                (Some(last), Some(now)) if now < last => return Err(DecodeError::OutOfOrder),
                _ => {}
            }
        }
        let shared = shared + more;
        let differs = rest.get(more..).ok_or(DecodeError::BadRun)?;
        if shared + differs.len() > PATH_BYTES_MAX {
            return Err(DecodeError::BadPath);
        }
        self.path.truncate(shared);
        self.path.extend_from_slice(differs);
        self.rows += 1;
        while self.frames.last().is_some_and(|frame| !self.is_within(frame.path_bytes, shared)) {
            self.close()?;
        }
        match self.frames.last() {
            // The element's value was complete.
            Some(frame) if self.is_within(frame.element_end, shared) => Err(DecodeError::BadPath),
            Some(_) => self.element(scalar),
            None if self.rows > 1 => Err(DecodeError::BadPath),
            None => self.value(0, scalar),
        }
    }

    /// Returns whether `end`, the end of an element in the last path, is one in this path too. The paths share their
    /// first `shared` bytes.
    fn is_within(&self, end: usize, shared: usize) -> bool {
        // An escaped NUL also begins with a literal's end.
        end <= shared && self.path.get(end) != Some(&ESCAPE)
    }

    /// Writes the value at offset `at` of the path.
    fn value(&mut self, at: usize, scalar: Scalar<'_>) -> Result<(), DecodeError> {
        let is_root = self.frames.is_empty();
        if at == self.path.len() {
            if is_root && self.members_only {
                return if scalar == Scalar::EmptyObject { Ok(()) } else { Err(DecodeError::BadPath) };
            }
            return self.scalar(scalar);
        }
        let (element, used) = self.path.get(at..).and_then(take).ok_or(DecodeError::BadPath)?;
        let kind = match element {
            Element::Int(ARRAY) => FrameKind::Array,
            Element::Int(PART) => FrameKind::String,
            Element::Int(PACKED) => FrameKind::Packed,
            _ => FrameKind::Object,
        };
        match kind {
            FrameKind::Array | FrameKind::String if is_root && self.members_only => return Err(DecodeError::BadPath),
            FrameKind::Array => self.out.push(b'['),
            FrameKind::String => self.out.push(b'"'),
            FrameKind::Object if is_root && self.members_only => {}
            FrameKind::Object => self.out.push(b'{'),
            FrameKind::Packed | FrameKind::Order => {}
        }
        self.open(kind, if kind == FrameKind::Object { at } else { at + used });
        self.element(scalar)
    }

    fn open(&mut self, kind: FrameKind, path_bytes: usize) {
        self.frames.push(Frame {
            kind,
            path_bytes,
            element_end: path_bytes,
            count: 0,
            starts: self.starts.len(),
            order: Vec::new(),
        });
    }

    /// Writes the element of the innermost frame that begins at the end of the frame's path.
    ///
    /// It recurses with [`Writer::value`] once for each element: a path has at most 10,000 bytes, and deep ones are
    /// refused.
    fn element(&mut self, scalar: Scalar<'_>) -> Result<(), DecodeError> {
        // The frames of a value of the greatest depth, and of a text in parts inside of it.
        if self.frames.len() > json::DEPTH_MAX_LIMIT + 1 {
            return Err(DecodeError::BadPath);
        }
        let frame = self.frames.last_mut().ok_or(DecodeError::BadPath)?;
        let at = frame.path_bytes;
        let (element, used) = self.path.get(at..).and_then(take).ok_or(DecodeError::BadPath)?;
        let end = at + used;
        frame.element_end = end;
        match (frame.kind, element) {
            (FrameKind::Object, Element::Int(PERMUTATION)) => {
                self.joined.clear();
                self.open(FrameKind::Order, end);
                return self.element(scalar);
            }
            (FrameKind::Object, Element::Int(id)) if id >= FIRST_FIELD_ID => {
                begin_member(self.out, frame, &mut self.starts);
                match self.names.member_text_of(id) {
                    Some(text) => self.out.extend_from_slice(text),
                    None => write_name(self.names.name_of(id).ok_or(DecodeError::UnknownFieldId(id))?, self.out),
                }
            }
            (FrameKind::Object, Element::Literal(name)) => {
                begin_member(self.out, frame, &mut self.starts);
                write_name(&name, self.out);
            }
            (FrameKind::Object, _) => return Err(DecodeError::BadPath),
            (_, Element::Int(number)) if number == frame.count as u64 => {
                frame.count += 1;
                if frame.kind != FrameKind::Array {
                    return if end == self.path.len() { self.part(scalar) } else { Err(DecodeError::BadPath) };
                }
                if number > 0 {
                    self.out.push(b',');
                }
            }
            (_, Element::Int(_)) => return Err(DecodeError::Gap),
            (_, Element::Literal(_)) => return Err(DecodeError::BadPath),
        }
        self.value(end, scalar)
    }

    fn part(&mut self, scalar: Scalar<'_>) -> Result<(), DecodeError> {
        let kind = self.frames.last().map(|frame| frame.kind);
        match (kind, scalar) {
            (Some(FrameKind::String), Scalar::StringPart(bytes)) => write_escaped(text_of(bytes)?, self.out),
            (Some(FrameKind::Packed), Scalar::PackedPart(bytes))
            | (Some(FrameKind::Order), Scalar::OrderPart(bytes)) => {
                if self.frames.last().is_some_and(|frame| frame.count == 1) {
                    self.joined.clear();
                }
                self.joined.extend_from_slice(bytes);
            }
            _ => return Err(DecodeError::BadScalar),
        }
        Ok(())
    }

    fn scalar(&mut self, scalar: Scalar<'_>) -> Result<(), DecodeError> {
        use std::io::Write;
        let out = &mut *self.out;
        match scalar {
            Scalar::Null => out.extend_from_slice(b"null"),
            Scalar::Bool(true) => out.extend_from_slice(b"true"),
            Scalar::Bool(false) => out.extend_from_slice(b"false"),
            Scalar::EmptyObject => out.extend_from_slice(b"{}"),
            Scalar::EmptyArray => out.extend_from_slice(b"[]"),
            // Writing into a vector cannot fail.
            Scalar::Int(integer) => write!(out, "{integer}").map_err(|_| DecodeError::BadScalar)?,
            Scalar::Float(float) => write!(out, "{float}").map_err(|_| DecodeError::BadScalar)?,
            Scalar::Number(text) if is_number(text) => out.extend_from_slice(text),
            Scalar::String(bytes) => {
                let text = text_of(bytes)?;
                out.reserve(text.len() + 2);
                out.push(b'"');
                write_escaped(text, out);
                out.push(b'"');
            }
            Scalar::Number(_) | Scalar::StringPart(_) | Scalar::PackedPart(_) | Scalar::OrderPart(_) => {
                return Err(DecodeError::BadScalar);
            }
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), DecodeError> {
        let frame = self.frames.pop().ok_or(DecodeError::BadPath)?;
        let bare = self.members_only && self.frames.is_empty();
        match frame.kind {
            FrameKind::String => self.out.push(b'"'),
            FrameKind::Array => self.out.push(b']'),
            FrameKind::Order => {
                let object = self.frames.last_mut().ok_or(DecodeError::BadPath)?;
                object.order = std::mem::take(&mut self.joined);
            }
            FrameKind::Packed => match parsed(&self.joined)? {
                Value::Object(members) if bare => {
                    json::write_members(&members, self.out);
                    self.count = members.len();
                }
                value @ (Value::Object(_) | Value::Array(_)) if !bare => json::write(&value, self.out),
                _ => return Err(DecodeError::BadScalar),
            },
            FrameKind::Object => {
                if frame.count == 0 {
                    // The object has a permutation but no members.
                    return Err(DecodeError::BadOrder);
                }
                if !frame.order.is_empty() {
                    let starts = self.starts.get(frame.starts..).ok_or(DecodeError::BadOrder)?;
                    reorder(self.out, starts, &frame.order)?;
                }
                self.starts.truncate(frame.starts);
                if bare {
                    self.count = frame.count;
                } else {
                    self.out.push(b'}');
                }
            }
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<Members, DecodeError> {
        if self.rows == 0 {
            return Err(DecodeError::Empty);
        }
        while !self.frames.is_empty() {
            self.close()?;
        }
        Ok(Members { count: self.count, rows: self.rows })
    }
}

fn text_of(bytes: &[u8]) -> Result<&str, DecodeError> {
    std::str::from_utf8(bytes).map_err(|_| DecodeError::BadScalar)
}

fn begin_member(out: &mut Vec<u8>, frame: &mut Frame, starts: &mut Vec<usize>) {
    if frame.count > 0 {
        out.push(b',');
    }
    frame.count += 1;
    starts.push(out.len());
}

/// Reorders an object's members, which end the text, into the order written. `order` has, for each member in that
/// order, its index in the text.
fn reorder(out: &mut Vec<u8>, starts: &[usize], order: &[u8]) -> Result<(), DecodeError> {
    let first = *starts.first().ok_or(DecodeError::BadOrder)?;
    let sorted = out.split_off(first);
    let mut used = vec![false; starts.len()];
    let mut cursor = Cursor(order);
    for written in 0..starts.len() {
        let place = cursor.len().map_err(|_| DecodeError::BadOrder)?;
        match used.get_mut(place) {
            Some(used) if !*used => *used = true,
            _ => return Err(DecodeError::BadOrder),
        }
        // A comma separates a member from the next.
        let end = starts.get(place + 1).map_or(sorted.len(), |next| next - first - 1);
        let member = starts.get(place).and_then(|start| sorted.get(start - first..end)).ok_or(DecodeError::BadOrder)?;
        if written > 0 {
            out.push(b',');
        }
        out.extend_from_slice(member);
    }
    if cursor.is_empty() { Ok(()) } else { Err(DecodeError::BadOrder) }
}
