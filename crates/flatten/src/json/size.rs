//! How large a text's tree can become, before it is made.

use std::borrow::Cow;

use super::Value;

/// What a JSON text's tree takes at most, in bytes: a vector grows by doubling, its first room is for four. An item of an
/// array has a comma or the bracket before it, a member of an object a colon too; those in strings count as well.
pub fn tree_bytes(text: &[u8]) -> usize {
    const VALUE: usize = size_of::<Value<'_>>();
    const MEMBER: usize = size_of::<(Cow<'_, str>, Value<'_>)>();
    let count = |wanted: u8| text.iter().filter(|byte| **byte == wanted).count();
    let items = 2 * VALUE * count(b',') + 4 * VALUE * count(b'[');
    text.len() + items + 2 * (MEMBER - VALUE) * count(b':') + 4 * MEMBER * count(b'{')
}
