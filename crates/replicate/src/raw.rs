//! JSON text cut at its members and items without parsing what they hold: documents pass through as they were written.
//!
//! What is checked here is read again by others, whose parser may take another one of two members of the same name, and
//! knows a name in any of its spellings. So where a member counts, there must be one of it, in its plain spelling.

use std::collections::HashSet;

use crate::transfer::string_of;

/// The members of an object all of whose names count: those of the protocol, and names of attachments. `None`: it is no
/// whole object, or a name stands there twice.
pub(crate) fn object(text: &[u8]) -> Option<Vec<(String, &[u8])>> {
    let members = members(text)?;
    let mut seen = HashSet::with_capacity(members.len());
    let members = members.into_iter().map(|(name, value)| Some((unescaped(name)?, value)));
    let members: Vec<(String, &[u8])> = members.collect::<Option<_>>()?;
    members.iter().all(|(name, _)| seen.insert(name.as_str())).then_some(members)
}

/// The members of a document, names as written. Those that begin with an underscore must be there once and without escapes;
/// the others are data, which a peer may hold as it likes. `None`: they are not, or it is no whole object.
pub(crate) fn document(text: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let members = members(text)?;
    let mut seen = HashSet::new();
    for (name, _) in &members {
        match name.first() {
            Some(b'_') if name.contains(&b'\\') || !seen.insert(*name) => return None,
            Some(b'\\') if unescaped(name)?.starts_with('_') => return None,
            _ => {}
        }
    }
    Some(members)
}

/// A name without its escapes.
fn unescaped(name: &[u8]) -> Option<String> {
    if !name.contains(&b'\\') {
        return String::from_utf8(name.to_vec()).ok();
    }
    string_of(&[b"\"", name, b"\""].concat())
}

/// The members of an object's text: names as written, without quotes, and values. `None`: it is no whole object.
fn members(text: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut at = expect(text, 0, b'{')?;
    let mut members = Vec::new();
    loop {
        at = skip_space(text, at);
        if text.get(at) == Some(&b'}') {
            return Some(members);
        }
        let name_end = string_end(text, at)?;
        let name = text.get(at + 1..name_end - 1)?;
        let value_start = skip_space(text, expect(text, name_end, b':')?);
        let value_end = value_end(text, value_start)?;
        members.push((name, text.get(value_start..value_end)?));
        at = skip_space(text, value_end);
        if text.get(at) == Some(&b',') {
            at += 1;
        }
    }
}

/// The value of one member of an object all of whose names count.
pub(crate) fn member<'t>(text: &'t [u8], name: &str) -> Option<&'t [u8]> {
    object(text)?.into_iter().find(|(found, _)| found == name).map(|(_, value)| value)
}

/// The items of an array's text.
pub(crate) fn items(text: &[u8]) -> Option<Vec<&[u8]>> {
    let mut at = expect(text, 0, b'[')?;
    let mut items = Vec::new();
    loop {
        at = skip_space(text, at);
        if text.get(at) == Some(&b']') {
            return Some(items);
        }
        let end = value_end(text, at)?;
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

/// Behind `byte`, which must come next.
fn expect(text: &[u8], at: usize, byte: u8) -> Option<usize> {
    let at = skip_space(text, at);
    (text.get(at) == Some(&byte)).then_some(at + 1)
}

/// Behind the string that begins here.
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

/// Behind the value that begins here; never without progress.
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

    #[test]
    fn cuts_what_is_well_formed() {
        let text = br#" { "a" : [1, {"x":"]}\""}] ,"b":"q\\","_c":null, "d":{} } "#;
        let found = members(text).unwrap();
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
            assert_eq!(document(text.as_bytes()), None, "{text}");
        }
        // Data is the peer's own matter.
        for text in [r#"{"a":1,"a":2,"\u0061":3,"_id":"x","":0}"#, r#"{"\"_id":1,"a_id":2,"a\u005f":3}"#] {
            assert!(document(text.as_bytes()).is_some(), "{text}");
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
            assert_eq!(members(text.as_bytes()), None, "{text}");
        }
        for text in ["[", "[1", "[,]", "[}", "{}", "[\"a", "[[1]"] {
            assert_eq!(items(text.as_bytes()), None, "{text}");
        }
    }
}
