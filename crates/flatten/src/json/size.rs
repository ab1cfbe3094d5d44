//! The size of a text's tree, estimated before parsing.

use std::borrow::Cow;

use super::Value;

/// An upper bound in bytes of the tree of a JSON text: a vector grows by doubling, from four entries. A comma or the
/// bracket precedes an item of an array, a member of an object also has a colon; those in strings count as well.
pub fn tree_bytes(text: &[u8]) -> usize {
    const VALUE: usize = size_of::<Value<'_>>();
    const MEMBER: usize = size_of::<(Cow<'_, str>, Value<'_>)>();
    let count = |wanted: u8| text.iter().filter(|byte| **byte == wanted).count();
    let items = 2 * VALUE * count(b',') + 4 * VALUE * count(b'[');
    text.len() + items + 2 * (MEMBER - VALUE) * count(b':') + 4 * MEMBER * count(b'{')
}
