//! Rows back into JSON text, in one pass and without a tree.
//!
//! The text is written as the rows come. An object whose order differs from that of its rows has a permutation row; its
//! members are then put in order when the object is closed, as pieces of the text that is there.

use crate::error::DecodeError;
use crate::json::write_escaped;
use crate::path::{self, ARRAY, Element, FIRST_FIELD_ID, PACKED, PART, PERMUTATION};
use crate::run::each_row;
use crate::scalar::{self, take_varint, unzigzag};

/// Deeper stacks than flattening makes are not followed.
const DEPTH_MAX: usize = 10_000;

/// Names of field ids.
pub trait FieldNames {
    /// The name that has this id.
    fn name_of(&self, id: u64) -> Option<&str>;
}

/// Appends a body's members as compact JSON text without the outer braces, from the pairs that [`crate::pack`] made, in
/// order. An empty body appends nothing.
///
/// # Errors
/// [`DecodeError`]; what was appended until then is of no use.
pub fn write_members<'k>(
    pairs: impl IntoIterator<Item = (&'k [u8], &'k [u8])>,
    names: &impl FieldNames,
    out: &mut Vec<u8>,
) -> Result<(), DecodeError> {
    let mut writer = Writer {
        names,
        base: out.len(),
        out,
        last: Vec::with_capacity(64),
        rows: 0,
        frames: vec![Frame::object(0, 0)],
        starts: Vec::new(),
        open: None,
        root: Root::Members,
    };
    let mut path = Vec::with_capacity(64);
    for (key, value) in pairs {
        each_row(key, value, &mut path, |path, scalar| writer.row(path, scalar))?;
    }
    writer.finish()
}

/// Whether pairs are what [`crate::pack`] makes of some body: every run decodes, paths grow, every id has a name.
///
/// # Errors
/// The first thing that is wrong.
pub fn validate<'k>(
    pairs: impl IntoIterator<Item = (&'k [u8], &'k [u8])>,
    names: &impl FieldNames,
) -> Result<(), DecodeError> {
    write_members(pairs, names, &mut Vec::new())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Object,
    Array,
}

/// A container that is being written.
#[derive(Debug)]
struct Frame {
    kind: Kind,
    /// Bytes of path up to its elements (for an array its marker included).
    path_bytes: usize,
    /// Where in `starts` its members begin.
    starts: usize,
    count: u64,
    order: Vec<u64>,
}

impl Frame {
    fn object(path_bytes: usize, starts: usize) -> Self {
        Frame { kind: Kind::Object, path_bytes, starts, count: 0, order: Vec::new() }
    }
}

/// A text in parts that is being written.
#[derive(Debug)]
struct Open {
    /// Bytes of path up to the part's number.
    path_bytes: usize,
    next: u64,
    tag: u8,
}

#[derive(Debug, PartialEq, Eq)]
enum Root {
    Members,
    Empty,
    Packed,
}

struct Writer<'o, 'n, N> {
    names: &'n N,
    out: &'o mut Vec<u8>,
    base: usize,
    last: Vec<u8>,
    rows: u64,
    frames: Vec<Frame>,
    /// Where each member of the open objects begins in the text.
    starts: Vec<usize>,
    open: Option<Open>,
    root: Root,
}

impl<N: FieldNames> Writer<'_, '_, N> {
    fn row(&mut self, path: &[u8], value: &[u8]) -> Result<(), DecodeError> {
        let (&tag, value) = value.split_first().ok_or(DecodeError::BadScalar)?;
        if self.rows == 0 && path.is_empty() {
            self.rows = 1;
            self.root = Root::Empty;
            return if tag == scalar::EMPTY_OBJECT { Ok(()) } else { Err(DecodeError::BadPath) };
        }
        if self.root == Root::Empty || (self.rows > 0 && path <= self.last.as_slice()) {
            return Err(DecodeError::OutOfOrder);
        }
        let shared = self.last.iter().zip(path).take_while(|(a, b)| a == b).count();
        self.rows += 1;
        if self.continue_part(path, shared, tag, value)? {
            return Ok(());
        }
        // A literal's end (00) is also how an escaped NUL begins (00 ff): no element begins with ff.
        let outside = |frame: &Frame| frame.path_bytes > shared || path.get(frame.path_bytes) == Some(&0xff);
        while self.frames.last().is_some_and(outside) {
            self.close()?;
        }
        self.last.truncate(shared);
        self.last.extend_from_slice(&path[shared..]);
        self.place(path, tag, value)
    }

    /// Goes on with a text in parts, or ends it.
    fn continue_part(&mut self, path: &[u8], shared: usize, tag: u8, value: &[u8]) -> Result<bool, DecodeError> {
        let Some(open) = &mut self.open else { return Ok(false) };
        if shared < open.path_bytes {
            if open.tag == scalar::STRING_PART {
                self.out.push(b'"');
            }
            self.open = None;
            return Ok(false);
        }
        let (part, used) = path::take_int(&path[open.path_bytes..]).ok_or(DecodeError::BadPath)?;
        if part != open.next || open.path_bytes + used != path.len() || tag != open.tag {
            return Err(DecodeError::Gap);
        }
        open.next += 1;
        self.last.truncate(shared);
        self.last.extend_from_slice(&path[shared..]);
        self.part(tag, value)?;
        Ok(true)
    }

    fn part(&mut self, tag: u8, value: &[u8]) -> Result<(), DecodeError> {
        let text = std::str::from_utf8(value).map_err(|_| DecodeError::BadScalar)?;
        if tag == scalar::STRING_PART {
            write_escaped(text, self.out);
        } else {
            self.out.extend_from_slice(text.as_bytes());
        }
        Ok(())
    }

    /// Writes a row whose containers up to some depth are open.
    fn place(&mut self, path: &[u8], tag: u8, value: &[u8]) -> Result<(), DecodeError> {
        let depth = self.frames.len();
        let mut at = self.frames.last().ok_or(DecodeError::BadPath)?.path_bytes;
        loop {
            let frame = self.frames.last_mut().ok_or(DecodeError::BadPath)?;
            if frame.kind == Kind::Array {
                let (index, used) = path::take_int(&path[at..]).ok_or(DecodeError::BadPath)?;
                if index != frame.count {
                    return Err(DecodeError::Gap);
                }
                if index > 0 {
                    self.out.push(b',');
                }
                frame.count += 1;
                at += used;
            } else {
                match path.get(at) {
                    Some(0x02) => {
                        let (element, used) = path::take(&path[at..]).ok_or(DecodeError::BadPath)?;
                        let Element::Literal(name) = element else { return Err(DecodeError::BadPath) };
                        begin_member(self.out, frame, &mut self.starts, self.base, &name);
                        at += used;
                    }
                    _ => {
                        let (id, used) = path::take_int(&path[at..]).ok_or(DecodeError::BadPath)?;
                        if id == PERMUTATION {
                            return permutation(frame, &path[at + used..], tag, value);
                        }
                        if id == PACKED && depth == 1 && at == 0 && self.rows == 1 {
                            self.root = Root::Packed;
                            return self.open_part(path, used, tag, value);
                        }
                        if id < FIRST_FIELD_ID || self.root == Root::Packed {
                            return Err(DecodeError::BadPath);
                        }
                        let name = self.names.name_of(id).ok_or(DecodeError::UnknownFieldId(id))?;
                        begin_member(self.out, frame, &mut self.starts, self.base, name);
                        at += used;
                    }
                }
            }
            if at == path.len() {
                return scalar_text(self.out, tag, value);
            }
            if self.frames.len() > DEPTH_MAX {
                return Err(DecodeError::BadPath);
            }
            match path::take_int(&path[at..]) {
                Some((ARRAY, used)) => {
                    at += used;
                    self.out.push(b'[');
                    let frame = Frame { kind: Kind::Array, ..Frame::object(at, self.starts.len()) };
                    self.frames.push(frame);
                }
                Some((PART | PACKED, used)) => return self.open_part(path, at + used, tag, value),
                _ => {
                    self.out.push(b'{');
                    self.frames.push(Frame::object(at, self.starts.len()));
                }
            }
        }
    }

    /// Begins a text in parts; `at`: bytes of path up to the part's number.
    fn open_part(&mut self, path: &[u8], at: usize, tag: u8, value: &[u8]) -> Result<(), DecodeError> {
        let (marker, part_tag) = match tag {
            scalar::STRING_PART => (PART, tag),
            scalar::PACKED_PART => (PACKED, tag),
            _ => return Err(DecodeError::BadScalar),
        };
        let number = path::take_int(&path[at..]);
        let marked = path[..at].ends_with(&[0x15, marker as u8]);
        if number != Some((0, path.len() - at)) || !marked {
            return Err(DecodeError::Gap);
        }
        if tag == scalar::STRING_PART {
            self.out.push(b'"');
        }
        self.open = Some(Open { path_bytes: at, next: 1, tag: part_tag });
        self.part(tag, value)
    }

    /// Ends the innermost container.
    fn close(&mut self) -> Result<(), DecodeError> {
        let frame = self.frames.pop().ok_or(DecodeError::BadPath)?;
        if !frame.order.is_empty() {
            reorder(self.out, &self.starts[frame.starts..], &frame.order)?;
        }
        if frame.kind == Kind::Object && frame.count == 0 {
            // Only its permutation was there.
            return Err(DecodeError::BadOrder);
        }
        self.starts.truncate(frame.starts);
        if !self.frames.is_empty() {
            self.out.push(if frame.kind == Kind::Array { b']' } else { b'}' });
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), DecodeError> {
        if self.rows == 0 {
            return Err(DecodeError::Empty);
        }
        if let Some(open) = self.open.take()
            && open.tag == scalar::STRING_PART
        {
            self.out.push(b'"');
        }
        match self.root {
            Root::Empty => Ok(()),
            Root::Packed => {
                // The packed text is the object itself.
                let packed = &self.out[self.base..];
                if packed.len() < 2 || packed.first() != Some(&b'{') || packed.last() != Some(&b'}') {
                    return Err(DecodeError::BadScalar);
                }
                self.out.pop();
                self.out.remove(self.base);
                Ok(())
            }
            Root::Members => {
                while !self.frames.is_empty() {
                    self.close()?;
                }
                Ok(())
            }
        }
    }
}

fn begin_member(out: &mut Vec<u8>, frame: &mut Frame, starts: &mut Vec<usize>, base: usize, name: &str) {
    debug_assert!(out.len() >= base);
    if frame.count > 0 {
        out.push(b',');
    }
    frame.count += 1;
    starts.push(out.len());
    out.push(b'"');
    write_escaped(name, out);
    out.extend_from_slice(b"\":");
}

fn permutation(frame: &mut Frame, rest: &[u8], tag: u8, mut value: &[u8]) -> Result<(), DecodeError> {
    let in_sequence = if rest.is_empty() { frame.order.is_empty() } else { !frame.order.is_empty() };
    let is_number = rest.is_empty() || path::take_int(rest).is_some_and(|(part, used)| part > 0 && used == rest.len());
    if tag != scalar::PERMUTATION || !in_sequence || !is_number {
        return Err(DecodeError::BadOrder);
    }
    while !value.is_empty() {
        let (place, used) = take_varint(value).ok_or(DecodeError::BadScalar)?;
        frame.order.push(place);
        value = &value[used..];
    }
    if frame.order.is_empty() { Err(DecodeError::BadOrder) } else { Ok(()) }
}

/// Puts an object's members, which end the text, into the order written. `order[w]` is the place of the `w`-th.
fn reorder(out: &mut Vec<u8>, starts: &[usize], order: &[u64]) -> Result<(), DecodeError> {
    if order.len() != starts.len() {
        return Err(DecodeError::BadOrder);
    }
    let first = *starts.first().ok_or(DecodeError::BadOrder)?;
    let sorted = out.split_off(first);
    let mut used = vec![false; starts.len()];
    for (written, place) in order.iter().enumerate() {
        let place = usize::try_from(*place).ok().filter(|place| *place < starts.len()).ok_or(DecodeError::BadOrder)?;
        if std::mem::replace(&mut used[place], true) {
            return Err(DecodeError::BadOrder);
        }
        // A comma stands between a member and the next.
        let end = starts.get(place + 1).map_or(sorted.len(), |next| next - first - 1);
        if written > 0 {
            out.push(b',');
        }
        out.extend_from_slice(&sorted[starts[place] - first..end]);
    }
    Ok(())
}

fn scalar_text(out: &mut Vec<u8>, tag: u8, value: &[u8]) -> Result<(), DecodeError> {
    let plain: &[u8] = match tag {
        scalar::NULL => b"null",
        scalar::FALSE => b"false",
        scalar::TRUE => b"true",
        scalar::EMPTY_OBJECT => b"{}",
        scalar::EMPTY_ARRAY => b"[]",
        scalar::INT => {
            let (integer, used) = take_varint(value).ok_or(DecodeError::BadScalar)?;
            if used != value.len() {
                return Err(DecodeError::BadScalar);
            }
            write_integer(out, unzigzag(integer));
            return Ok(());
        }
        scalar::NUMBER if !value.is_empty() && value.iter().all(|byte| b"+-.eE0123456789".contains(byte)) => {
            out.extend_from_slice(value);
            return Ok(());
        }
        scalar::STRING => {
            let text = std::str::from_utf8(value).map_err(|_| DecodeError::BadScalar)?;
            out.push(b'"');
            write_escaped(text, out);
            out.push(b'"');
            return Ok(());
        }
        _ => return Err(DecodeError::BadScalar),
    };
    out.extend_from_slice(plain);
    if value.is_empty() { Ok(()) } else { Err(DecodeError::BadScalar) }
}

fn write_integer(out: &mut Vec<u8>, integer: i64) {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    let mut rest = integer.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if integer < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}
