//! A Rust file, taken apart into code and comments.

/// The code and the comments of a Rust file.
#[derive(Debug, PartialEq, Eq)]
pub struct Parts<'t> {
    /// The code without comments and without literals of strings and characters.
    pub code: String,
    /// The lines of comments with their numbers; each begins with the comment's marker.
    pub comments: Vec<(usize, &'t str)>,
}

/// Separates the code of a file from its comments.
pub fn parts(text: &str) -> Parts<'_> {
    let mut parts = Parts { code: String::new(), comments: Vec::new() };
    let mut number = 1;
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|byte| matches!(byte, b'/' | b'"' | b'\'')) {
        let (before, token) = rest.split_at(at);
        parts.code.push_str(before);
        number += line_breaks(before);
        let is_comment = token.starts_with("//") || token.starts_with("/*");
        let length = if token.starts_with("//") {
            token.find('\n').unwrap_or(token.len())
        } else if is_comment {
            token.find("*/").map_or(token.len(), |end| end + 2)
        } else {
            literal(&parts.code, token)
        };
        // A slash or a lifetime's quotation mark is code.
        let (token, after) = token.split_at(length.max(1));
        if is_comment {
            parts.comments.extend(token.lines().enumerate().map(|(at, line)| (number + at, line)));
        } else if length == 0 {
            parts.code.push_str(token);
        }
        number += line_breaks(token);
        rest = after;
    }
    parts.code.push_str(rest);
    parts
}

fn line_breaks(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}

/// The bytes of the literal that `text` begins with; 0 if it begins with none. `code` stands before it.
fn literal(code: &str, text: &str) -> usize {
    if text.starts_with('"') {
        let prefix = code.trim_end_matches('#');
        if !prefix.ends_with('r') {
            return quoted(text, b'"');
        }
        let close = format!("\"{}", "#".repeat(code.len() - prefix.len()));
        let end = text.get(1..).and_then(|content| content.find(close.as_str()));
        return end.map_or(text.len(), |end| 1 + end + close.len());
    }
    let mut signs = text.chars();
    match (signs.next(), signs.next(), signs.next()) {
        (Some('\''), Some('\\'), _) | (Some('\''), Some(_), Some('\'')) => quoted(text, b'\''),
        _ => 0,
    }
}

/// The bytes up to the closing quotation mark, which has no backslash before it.
fn quoted(text: &str, mark: u8) -> usize {
    let mut is_escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let is_end = byte == mark && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    });
    end.map_or(text.len(), |end| end + 2)
}

/// Removes each item after `#[cfg(test)]` from [`Parts::code`]: up to its semicolon, or to the brace that closes its first
/// one.
pub fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut kept = String::new();
    let mut rest = code;
    while let Some((before, item)) = rest.split_once(MARK) {
        kept.push_str(before);
        let mut depth = 0_i32;
        let end = item.bytes().position(|byte| {
            depth += i32::from(byte == b'{') - i32::from(byte == b'}');
            depth == 0 && matches!(byte, b';' | b'}')
        });
        rest = end.and_then(|end| item.get(end + 1..)).unwrap_or_default();
    }
    kept.push_str(rest);
    kept
}

/// Returns whether `sign` can stand in a word or a name.
pub fn is_of_word(sign: char) -> bool {
    sign.is_alphanumeric() || sign == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_told_from_code_and_literals() {
        let text = "//! One\nlet x = \"// a\n\\\" b\"; // two\nf('\"', '\\'', b'/'); /* three\nfour */ g::<'a>(1 / 2);";
        assert_eq!(
            parts(text),
            Parts {
                code: "\nlet x = ; \nf(, , b);  g::<'a>(1 / 2);".to_owned(),
                comments: vec![(1, "//! One"), (3, "// two"), (4, "/* three"), (5, "four */")],
            }
        );
        let raw = "let x = r#\"a\" // b\"#; // one\nlet y = br\"\\\"; // two";
        assert_eq!(
            parts(raw),
            Parts { code: "let x = r#; \nlet y = br; ".to_owned(), comments: vec![(1, "// one"), (2, "// two")] }
        );
    }

    #[test]
    fn test_code_is_removed() {
        let code = "fn a() {}\n#[cfg(test)]\nmod tests { fn b() { c(); } }\n#[cfg(test)]\nuse d;\nfn e() {}";
        assert_eq!(without_tests(code), "fn a() {}\n\n\nfn e() {}");
        assert_eq!(without_tests("fn a() {}\n#[cfg(test)]\nmod tests {"), "fn a() {}\n");
    }
}
