//! Cuts JSON text at its members and items without parsing their values, so that documents pass through as written.
//!
//! Other parsers read the text again. They may choose another one of two members of the same name, and they decode
//! escapes in names. A relevant member must therefore occur once, without escapes.

use std::collections::HashSet;

use crate::transfer::string_of;

/// The most members of an object in which all names are relevant, and the limit of items of an array below. Longer ones
/// are malformed.
const OBJECT_MEMBERS_MAX: usize = 10_000;
const ITEMS_MAX: usize = 100_000;

/// The most members of a document that begin with an underscore. Servers know about a dozen.
const SPECIAL_MEMBERS_MAX: usize = 100;

/// Returns the members of an object in which all names are relevant: objects of the protocol, and names of attachments.
/// `None`: malformed, a duplicate name, or more than 10,000.
pub(crate) fn object(text: &[u8]) -> Option<Vec<(String, &[u8])>> {
    let mut found = Vec::new();
    for member in members(text) {
        let (name, value) = member?;
        if found.len() == OBJECT_MEMBERS_MAX {
            return None;
        }
        found.push((unescaped(name)?, value));
    }
    let mut seen = HashSet::with_capacity(found.len());
    found.iter().all(|(name, _)| seen.insert(name.as_str())).then_some(found)
}

/// Returns the members of a document that begin with an underscore, with names as written. They must occur once and
/// without escapes; the others are data, which is not checked. `None`: they do not, or the object is malformed.
pub(crate) fn special(text: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut found: Vec<(&[u8], &[u8])> = Vec::new();
    for member in members(text) {
        let (name, value) = member?;
        match name.first() {
            Some(b'_') => {
                let is_twice = found.iter().any(|(found, _)| *found == name);
                if name.contains(&b'\\') || is_twice || found.len() == SPECIAL_MEMBERS_MAX {
                    return None;
                }
                found.push((name, value));
            }
            Some(b'\\') if unescaped(name)?.starts_with('_') => return None,
            _ => {}
        }
    }
    Some(found)
}

/// Decodes the escapes of a name.
fn unescaped(name: &[u8]) -> Option<String> {
    if !name.contains(&b'\\') {
        return String::from_utf8(name.to_vec()).ok();
    }
    string_of(&[b"\"", name, b"\""].concat())
}

/// A member's name as written, without quotes, and its value.
type Member<'t> = (&'t [u8], &'t [u8]);

/// Iterates over the members of an object's text; yields `None` if it is malformed.
pub(crate) fn members(text: &[u8]) -> Members<'_> {
    Members { text, next: NextMember::at(expect(text, 0, b'{')) }
}

pub(crate) struct Members<'t> {
    text: &'t [u8],
    next: NextMember,
}

#[derive(Clone, Copy)]
enum NextMember {
    /// Before a member or the object's end.
    At(usize),
    /// The text is malformed.
    Crooked,
    /// All members were returned.
    Nothing,
}

impl NextMember {
    fn at(at: Option<usize>) -> NextMember {
        at.map_or(NextMember::Crooked, NextMember::At)
    }
}

impl<'t> Iterator for Members<'t> {
    type Item = Option<Member<'t>>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = match std::mem::replace(&mut self.next, NextMember::Nothing) {
            NextMember::At(at) => skip_space(self.text, at),
            NextMember::Crooked => return Some(None),
            NextMember::Nothing => return None,
        };
        if self.text.get(at) == Some(&b'}') {
            return None;
        }
        let found = member_at(self.text, at);
        if let Some((_, next)) = found {
            self.next = NextMember::At(next);
        }
        Some(found.map(|(member, _)| member))
    }
}

/// Returns the member that begins here, and the position of the next one.
fn member_at(text: &[u8], at: usize) -> Option<(Member<'_>, usize)> {
    let name_end = string_end(text, at)?;
    let name = text.get(at + 1..name_end - 1)?;
    let value_start = skip_space(text, expect(text, name_end, b':')?);
    let value_end = value_end(text, value_start)?;
    let next = skip_space(text, value_end);
    let next = if text.get(next) == Some(&b',') { next + 1 } else { next };
    Some(((name, text.get(value_start..value_end)?), next))
}

/// Returns the value of a member of an object in which all names are relevant.
pub(crate) fn member<'t>(text: &'t [u8], name: &str) -> Option<&'t [u8]> {
    object(text)?.into_iter().find(|(found, _)| found == name).map(|(_, value)| value)
}

/// Returns the items of an array. `None`: malformed, or more than 100,000.
pub(crate) fn items(text: &[u8]) -> Option<Vec<&[u8]>> {
    let mut at = expect(text, 0, b'[')?;
    let mut items = Vec::new();
    loop {
        at = skip_space(text, at);
        if text.get(at) == Some(&b']') {
            return Some(items);
        }
        let end = value_end(text, at)?;
        if items.len() == ITEMS_MAX {
            return None;
        }
        items.push(text.get(at..end)?);
        at = skip_space(text, end);
        if text.get(at) == Some(&b',') {
            at += 1;
        }
    }
}

fn skip_space(text: &[u8], mut at: usize) -> usize {
    while text.get(at).is_some_and(u8::is_ascii_whitespace) {
        at += 1;
    }
    at
}

/// Returns the position after `byte`, which must come next.
fn expect(text: &[u8], at: usize, byte: u8) -> Option<usize> {
    let at = skip_space(text, at);
    (text.get(at) == Some(&byte)).then_some(at + 1)
}

/// Returns the position after the string that begins here.
fn string_end(text: &[u8], at: usize) -> Option<usize> {
    let mut at = expect(text, at, b'"')?;
    loop {
        match text.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Returns the position after the value that begins here, always beyond `at`.
fn value_end(text: &[u8], at: usize) -> Option<usize> {
    match text.get(at)? {
        b'"' => string_end(text, at),
        b'{' | b'[' => {
            let (mut depth, mut at) = (0_usize, at);
            loop {
                match text.get(at)? {
                    b'"' => {
                        at = string_end(text, at)?;
                        continue;
                    }
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => depth = depth.checked_sub(1)?,
                    _ => {}
                }
                at += 1;
                if depth == 0 {
                    return Some(at);
                }
            }
        }
        _ => {
            let length = text.get(at..)?.iter().take_while(|byte| !b",]} \t\r\n".contains(byte)).count();
            (length > 0).then_some(at + length)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8]) -> Option<Vec<Member<'_>>> {
        members(text).collect()
    }

    #[test]
    fn there_is_no_room_for_more_than_there_can_be() {
        let array = |count: usize| format!("[{}0]", "0,".repeat(count - 1));
        assert_eq!(items(array(ITEMS_MAX).as_bytes()).unwrap().len(), ITEMS_MAX);
        assert_eq!(items(array(ITEMS_MAX + 1).as_bytes()), None);
        let named = |sign: &str, count: usize| {
            let members: Vec<String> = (0..count).map(|n| format!("\"{sign}{n}\":{n}")).collect();
            format!("{{{}}}", members.join(","))
        };
        assert_eq!(object(named("", OBJECT_MEMBERS_MAX).as_bytes()).unwrap().len(), OBJECT_MEMBERS_MAX);
        assert_eq!(object(named("", OBJECT_MEMBERS_MAX + 1).as_bytes()), None);
        assert_eq!(special(named("_", SPECIAL_MEMBERS_MAX + 1).as_bytes()), None);
        // Irrelevant members are not listed, whatever their number.
        assert_eq!(special(named("", 50_000).as_bytes()).unwrap().len(), 0);
    }

    #[test]
    fn cuts_what_is_well_formed() {
        let text = br#" { "a" : [1, {"x":"]}\""}] ,"b":"q\\","_c":null, "d":{} } "#;
        let found = all(text).unwrap();
        let found: Vec<(&str, &str)> = found
            .iter()
            .map(|(name, value)| (std::str::from_utf8(name).unwrap(), std::str::from_utf8(value).unwrap()))
            .collect();
        assert_eq!(found, [("a", r#"[1, {"x":"]}\""}]"#), ("b", r#""q\\""#), ("_c", "null"), ("d", "{}")]);
        assert_eq!(items(b"[]").unwrap().len(), 0);
        assert_eq!(items(br#"[1,"a" , [2],{}]"#).unwrap(), [&b"1"[..], br#""a""#, b"[2]", b"{}"]);
        assert_eq!(member(text, "_c"), Some(&b"null"[..]));
    }

    #[test]
    fn what_counts_is_there_once_and_plain() {
        for text in [
            r#"{"_id":"a","_id":"b"}"#,
            r#"{"_id":"a","\u005fid":"b"}"#,
            r#"{"\u005Fid":"b"}"#,
            r#"{"_\u0069d":"b"}"#,
            r#"{"_deleted":true,"a":1,"_deleted":false}"#,
            r#"{"\u005":1}"#,
        ] {
            assert_eq!(special(text.as_bytes()), None, "{text}");
        }
        // Other members are not checked.
        for text in [r#"{"a":1,"a":2,"\u0061":3,"_id":"x","":0}"#, r#"{"\"_id":1,"a_id":2,"a\u005f":3}"#] {
            assert!(special(text.as_bytes()).is_some(), "{text}");
        }
        for text in [r#"{"id":"a","id":"b"}"#, r#"{"id":"a","\u0069d":"b"}"#, r#"{"ok":{},"ok":{}}"#, r#"{"\x":1}"#] {
            assert_eq!(object(text.as_bytes()), None, "{text}");
        }
        let text = r#"{"\u0069d":"b","ok":1}"#;
        assert_eq!(object(text.as_bytes()).unwrap()[0], ("id".to_owned(), &b"\"b\""[..]));
        assert_eq!(member(text.as_bytes(), "id"), Some(&b"\"b\""[..]));
    }

    #[test]
    fn what_is_cut_off_or_crooked_is_refused() {
        for text in ["", "{", "{\"a\"", "{\"a\":", "{\"a\":}", "{\"a\":[1}", "{\"a\":\"x", "[1", "]", "{,}", "{a:1}"] {
            assert_eq!(all(text.as_bytes()), None, "{text}");
        }
        for text in ["[", "[1", "[,]", "[}", "{}", "[\"a", "[[1]"] {
            assert_eq!(items(text.as_bytes()), None, "{text}");
        }
    }
}
