//! Writing JSON by hand: the small objects that `_scheduler` and `_active_tasks` show.

use flatbed_layer::json::write_string;

/// A string, or `null`.
pub(crate) fn string_or_null(text: Option<&str>, out: &mut Vec<u8>) {
    match text {
        Some(text) => write_string(text, out),
        None => out.extend_from_slice(b"null"),
    }
}

/// `"name":"text"`
pub(crate) fn member(name: &str, text: &str, out: &mut Vec<u8>) {
    write_string(name, out);
    out.push(b':');
    write_string(text, out);
}
