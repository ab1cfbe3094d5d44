//! JSON text cut at its members and items without parsing what they hold: documents pass through as they were written.

/// The members of an object's text: names as written, without quotes, and values. `None`: it is no whole object.
pub(crate) fn members(text: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
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

/// The value of one member.
pub(crate) fn member<'t>(text: &'t [u8], name: &str) -> Option<&'t [u8]> {
    members(text)?.into_iter().find(|(found, _)| *found == name.as_bytes()).map(|(_, value)| value)
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
    fn what_is_cut_off_or_crooked_is_refused() {
        for text in ["", "{", "{\"a\"", "{\"a\":", "{\"a\":}", "{\"a\":[1}", "{\"a\":\"x", "[1", "]", "{,}", "{a:1}"] {
            assert_eq!(members(text.as_bytes()), None, "{text}");
        }
        for text in ["[", "[1", "[,]", "[}", "{}", "[\"a", "[[1]"] {
            assert_eq!(items(text.as_bytes()), None, "{text}");
        }
    }
}
