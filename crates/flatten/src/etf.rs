//! The revision id that CouchDB gives to an edit.
//!
//! It is the MD5 of Erlang's external term format (minor version 1) of `[Deleted, OldStart, OldRev, Body, Atts]`, so
//! equal edits on two replicas do not conflict. `tests/data/revisions.jsonl` has recorded ids.

use md5::digest::Update;
use md5::{Digest, Md5};

use crate::json::{Value, float_of};

const VERSION: u8 = 131;
const NEW_FLOAT: u8 = 70;
const SMALL_INTEGER: u8 = 97;
const INTEGER: u8 = 98;
const ATOM: u8 = 100;
const SMALL_TUPLE: u8 = 104;
const NIL: u8 = 106;
const STRING: u8 = 107;
const LIST: u8 = 108;
const BINARY: u8 = 109;
const SMALL_BIG: u8 = 110;
const LARGE_BIG: u8 = 111;

/// An attachment's contribution to the hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttachmentDigest<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its media type.
    pub content_type: &'a str,
    /// The MD5 of its stored bytes. CouchDB's default stores `text/*` and other compressible types as zlib's gzip at
    /// level 8.
    pub md5: [u8; 16],
}

/// Hashes an edit of a document without attachments. `parent` is the generation and the hash bytes of the parent
/// revision; `body` is an object without special members, in the order written.
pub fn body_revision(parent: Option<(u64, &[u8])>, deleted: bool, body: &Value<'_>) -> [u8; 16] {
    revision(parent, deleted, body, &[])
}

/// As [`body_revision`], for a document with attachments, in the order written, including those of earlier revisions.
pub fn revision(
    parent: Option<(u64, &[u8])>,
    deleted: bool,
    body: &Value<'_>,
    attachments: &[AttachmentDigest<'_>],
) -> [u8; 16] {
    let mut out = Term { buffer: Vec::with_capacity(FLUSH_BYTES + 64), hash: Md5::new() };
    out.put(&[VERSION, LIST, 0, 0, 0, 5]);
    out.atom(if deleted { "true" } else { "false" });
    match parent {
        None => {
            out.integer(0);
            out.integer(0);
        }
        Some((generation, hash)) => {
            out.integer(generation as i64);
            out.binary(hash);
        }
    }
    out.value(body);
    if !attachments.is_empty() {
        out.list(attachments.len());
        for attachment in attachments.iter().rev() {
            out.put(&[SMALL_TUPLE, 3]);
            out.binary(attachment.name.as_bytes());
            out.binary(attachment.content_type.as_bytes());
            out.binary(&attachment.md5);
        }
    }
    // The end of the attachments, and of the list of five.
    out.put(&[NIL, NIL]);
    out.finish().finalize().into()
}

/// Feeds a value's external term with its version byte to a hash; CouchDB counts distinct values by it.
pub fn hash_term<H: Update>(value: &Value<'_>, hash: H) -> H {
    let mut out = Term { buffer: Vec::with_capacity(64), hash };
    out.put(&[VERSION]);
    out.value(value);
    out.finish()
}

const FLUSH_BYTES: usize = 4_096;

struct Term<H> {
    buffer: Vec<u8>,
    hash: H,
}

impl<H: Update> Term<H> {
    fn finish(mut self) -> H {
        self.hash.update(&self.buffer);
        self.hash
    }

    fn put(&mut self, bytes: &[u8]) {
        if self.buffer.len() + bytes.len() > FLUSH_BYTES {
            self.hash.update(&self.buffer);
            self.buffer.clear();
            if bytes.len() > FLUSH_BYTES {
                self.hash.update(bytes);
                return;
            }
        }
        self.buffer.extend_from_slice(bytes);
    }

    fn atom(&mut self, name: &str) {
        self.put(&[ATOM, 0, name.len() as u8]);
        self.put(name.as_bytes());
    }

    fn binary(&mut self, bytes: &[u8]) {
        self.put(&[BINARY]);
        self.put(&(bytes.len() as u32).to_be_bytes());
        self.put(bytes);
    }

    /// The head of a list, which ends with a NIL.
    fn list(&mut self, len: usize) {
        self.put(&[LIST]);
        self.put(&(len as u32).to_be_bytes());
    }

    fn value(&mut self, value: &Value<'_>) {
        match value {
            Value::Null => self.atom("null"),
            Value::Bool(value) => self.atom(if *value { "true" } else { "false" }),
            Value::Number(text) => self.number(text),
            Value::String(text) => self.binary(text.as_bytes()),
            Value::Array(items) if items.is_empty() => self.put(&[NIL]),
            Value::Array(items) => self.array(items),
            Value::Object(members) => {
                self.put(&[SMALL_TUPLE, 1]);
                if !members.is_empty() {
                    self.list(members.len());
                    for (name, value) in members {
                        self.put(&[SMALL_TUPLE, 2]);
                        self.binary(name.as_bytes());
                        self.value(value);
                    }
                }
                self.put(&[NIL]);
            }
        }
    }

    /// Erlang encodes a list of bytes as a string.
    fn array(&mut self, items: &[Value<'_>]) {
        let byte = |item: &Value<'_>| match item {
            Value::Number(text) if text == "-0" => Some(0),
            Value::Number(text) => text.parse::<u8>().ok(),
            _ => None,
        };
        if let Ok(len) = u16::try_from(items.len())
            && let Some(bytes) = items.iter().map(byte).collect::<Option<Vec<u8>>>()
        {
            self.put(&[STRING]);
            self.put(&len.to_be_bytes());
            return self.put(&bytes);
        }
        self.list(items.len());
        for item in items {
            self.value(item);
        }
        self.put(&[NIL]);
    }

    fn number(&mut self, text: &str) {
        if text.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E')) {
            // The parser has refused texts that are not numbers.
            let float = float_of(text).unwrap_or_default();
            self.put(&[NEW_FLOAT]);
            return self.put(&float.to_be_bytes());
        }
        match text.parse::<i64>() {
            Ok(integer) => self.integer(integer),
            Err(_) => self.big(text.starts_with('-'), &magnitude(text.trim_start_matches('-'))),
        }
    }

    fn integer(&mut self, integer: i64) {
        if let Ok(byte) = u8::try_from(integer) {
            self.put(&[SMALL_INTEGER, byte]);
        } else if let Ok(integer) = i32::try_from(integer) {
            self.put(&[INTEGER]);
            self.put(&integer.to_be_bytes());
        } else {
            let bytes = integer.unsigned_abs().to_le_bytes();
            let len = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            self.big(integer < 0, bytes.get(..len).unwrap_or_default());
        }
    }

    /// `magnitude`: little-endian, without leading zeros.
    fn big(&mut self, negative: bool, magnitude: &[u8]) {
        match u8::try_from(magnitude.len()) {
            Ok(len) => self.put(&[SMALL_BIG, len]),
            Err(_) => {
                self.put(&[LARGE_BIG]);
                self.put(&(magnitude.len() as u32).to_be_bytes());
            }
        }
        self.put(&[u8::from(negative)]);
        self.put(magnitude);
    }
}

/// Converts decimal digits to little-endian bytes without leading zeros. Quadratic: the parser bounds the length.
fn magnitude(digits: &str) -> Vec<u8> {
    let mut limbs: Vec<u32> = Vec::new();
    for chunk in digits.as_bytes().chunks(9) {
        let mut carry = chunk.iter().fold(0_u64, |value, digit| value * 10 + u64::from(digit.wrapping_sub(b'0')));
        let scale = 10_u64.pow(chunk.len() as u32);
        for limb in &mut limbs {
            let value = u64::from(*limb) * scale + carry;
            *limb = value as u32;
            carry = value >> 32;
        }
        if carry > 0 {
            limbs.push(carry as u32);
        }
    }
    let mut bytes: Vec<u8> = limbs.iter().flat_map(|limb| limb.to_le_bytes()).collect();
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    bytes
}
