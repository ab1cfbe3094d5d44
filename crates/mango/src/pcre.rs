//! Translates PCRE syntax that the engine lacks: verbs before a pattern, and lookaheads at its beginning.
//! [`crate::readings`] rewrites before that the syntax which both engines accept and read differently.
//!
//! Both translations are exact. A lookahead behind `^` is tested only at the beginning of the text, so a pattern with
//! such lookaheads is equivalent to several patterns that must, or must not, match. Syntax that needs backtracking
//! (backreferences, other lookaheads and lookbehinds) is refused: an engine with a limit of backtracking steps has no
//! limit of time between two of them.

use crate::readings::as_in_pcre;

/// The most lookaheads that are split off a pattern. A selector cannot hold more compiled patterns; a pattern with more
/// lookaheads stays unchanged, and the engine refuses it.
const PARTS_MAX: usize = 256;

/// The unit that a pattern reads as a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Characters {
    /// Bytes; a pattern that cannot be compiled for bytes uses code points.
    Bytes,
    Whole,
}

/// The line ends, which `.` does not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineEnd {
    Lf,
    Cr,
    Both,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PcreTranslation {
    pub(crate) characters: Characters,
    pub(crate) line_end: LineEnd,
    /// The patterns, each with whether it must match a text (true) or must not.
    pub(crate) parts: Vec<(String, bool)>,
}

/// Translates a pattern. `None`: it begins with a verb that is unknown or that changes matching in an unsupported way,
/// or it has syntax that PCRE reads differently and that cannot be rewritten.
pub(crate) fn translate(pattern: &str) -> Option<PcreTranslation> {
    let (mut utf, mut ucp, mut line_end, mut rest) = (false, false, LineEnd::Lf, pattern);
    while let Some(verb) = rest.strip_prefix("(*") {
        let (name, behind) = verb.split_once(')')?;
        match name {
            "UTF8" | "UTF" => utf = true,
            "UCP" => ucp = true,
            "LF" => line_end = LineEnd::Lf,
            "CR" => line_end = LineEnd::Cr,
            "ANYCRLF" => line_end = LineEnd::Both,
            // These verbs concern PCRE's optimisations, or `\R`, which the engine does not have.
            "NO_START_OPT" | "NO_AUTO_POSSESS" | "BSR_ANYCRLF" | "BSR_UNICODE" => {}
            _ => limit(name)?,
        }
        rest = behind;
    }
    let characters = if utf || ucp { Characters::Whole } else { Characters::Bytes };
    let read = as_in_pcre(rest, characters, line_end)?;
    let text = if utf && !ucp { with_ascii_classes(&read)? } else { read };
    let parts = split_lookaheads(&text).unwrap_or_else(|| vec![(text, true)]);
    Some(PcreTranslation { characters, line_end, parts })
}

/// Accepts `LIMIT_MATCH=n` and `LIMIT_RECURSION=n`.
fn limit(verb: &str) -> Option<()> {
    let (name, number) = verb.split_once('=')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (matches!(name, "LIMIT_MATCH" | "LIMIT_RECURSION") && is_number).then_some(())
}

/// The context within a class that decides the meaning of a hyphen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClassContext {
    /// At the beginning, or after a range or a class: a hyphen is a literal.
    Complete,
    /// After a character: a hyphen begins a range.
    Character,
    /// After a range's first character and hyphen.
    Hyphen,
}

/// Replaces `\d`, `\s`, `\w` and `\b` by their ASCII meaning, which they have without `(*UCP)`. `None`: a range in a
/// class ends with one of them. PCRE reads that hyphen as a character, or refuses it; the engine would read `[+-[0-9]]`
/// as the range `+` to `[`.
fn with_ascii_classes(pattern: &str) -> Option<String> {
    let mut out = String::with_capacity(pattern.len());
    let (mut is_in_class, mut characters) = (false, pattern.chars().peekable());
    let mut before = ClassContext::Complete;
    while let Some(character) = characters.next() {
        match character {
            '\\' => {
                let Some(escaped) = characters.next() else {
                    out.push('\\');
                    break;
                };
                let is_class = matches!(escaped, 'd' | 'D' | 's' | 'S' | 'w' | 'W');
                if is_in_class && is_class && before == ClassContext::Hyphen {
                    return None;
                }
                before = if is_class { ClassContext::Complete } else { behind_character(before) };
                push_escaped(&mut out, escaped, is_in_class);
            }
            '[' if !is_in_class => {
                (is_in_class, before) = (true, ClassContext::Complete);
                out.push('[');
                out.extend(characters.next_if_eq(&'^'));
                if let Some(bracket) = characters.next_if_eq(&']') {
                    before = ClassContext::Character;
                    out.push(bracket);
                }
            }
            // `[:alpha:]`
            '[' if characters.peek() == Some(&':') => {
                if before == ClassContext::Hyphen {
                    return None;
                }
                before = ClassContext::Complete;
                out.push('[');
                for inner in characters.by_ref() {
                    out.push(inner);
                    if inner == ']' {
                        break;
                    }
                }
            }
            '-' if is_in_class && before == ClassContext::Character => {
                before = ClassContext::Hyphen;
                out.push('-');
            }
            other => {
                is_in_class &= other != ']';
                before = behind_character(before);
                out.push(other);
            }
        }
    }
    Some(out)
}

fn behind_character(before: ClassContext) -> ClassContext {
    if before == ClassContext::Hyphen { ClassContext::Complete } else { ClassContext::Character }
}

fn push_escaped(out: &mut String, escaped: char, is_in_class: bool) {
    let class = match escaped {
        'd' => "[0-9]",
        'D' => "[^0-9]",
        's' => r"[\t\n\x0B\f\r ]",
        'S' => r"[^\t\n\x0B\f\r ]",
        'w' => "[0-9A-Za-z_]",
        'W' => "[^0-9A-Za-z_]",
        'b' if !is_in_class => r"(?-u:\b)",
        'B' if !is_in_class => r"(?-u:\B)",
        other => {
            out.push('\\');
            out.push(other);
            return;
        }
    };
    // Non-ASCII letters whose other case is ASCII must not match.
    if is_in_class || matches!(escaped, 'b' | 'B') {
        out.push_str(class);
    } else {
        out.push_str("(?-i:");
        out.push_str(class);
        out.push(')');
    }
}

/// Splits a pattern with lookaheads behind `^` into several without. `None`: it cannot be split, and is used unchanged.
fn split_lookaheads(pattern: &str) -> Option<Vec<(String, bool)>> {
    let (mut ignores_case, mut dot_is_all, mut rest, mut is_anchored) = (false, false, pattern, false);
    loop {
        if let Some(behind) = rest.strip_prefix('^').or_else(|| rest.strip_prefix("\\A")) {
            (rest, is_anchored) = (behind, true);
            continue;
        }
        let Some((some, behind)) = leading_flags(rest) else { break };
        ignores_case |= some.contains('i');
        dot_is_all |= some.contains('s');
        rest = behind;
    }
    if !is_anchored {
        return None;
    }
    // Each part gets the flags, so they are kept short, however often the pattern repeats them.
    let flags = match (ignores_case, dot_is_all) {
        (false, false) => "",
        (true, false) => "(?i)",
        (false, true) => "(?s)",
        (true, true) => "(?is)",
    };
    if let Some(words) = excluded_words(rest) {
        return Some(vec![(format!("{flags}(?:{words})"), false), (format!("{flags}^.*$"), true)]);
    }
    let mut parts = Vec::new();
    loop {
        let (is_wanted, inner) = match (rest.strip_prefix("(?="), rest.strip_prefix("(?!")) {
            (Some(inner), _) => (true, inner),
            (_, Some(inner)) => (false, inner),
            _ => break,
        };
        if parts.len() == PARTS_MAX {
            return None;
        }
        let end = find_unenclosed(inner, ')')?;
        let (ahead, behind) = (inner.get(..end)?, inner.get(end + 1..)?);
        // A quantifier may make the lookahead optional.
        if behind.starts_with(['*', '+', '?', '{']) {
            return None;
        }
        parts.push((format!("{flags}^(?:{ahead})"), is_wanted));
        rest = behind;
    }
    // A top-level alternative would not be bound by the lookaheads; and both engines must parse the rest alike.
    let is_read = find_unenclosed(&format!("{rest})"), ')') == Some(rest.len());
    if parts.is_empty() || !is_read || find_unenclosed(rest, '|').is_some() {
        return None;
    }
    parts.push((format!("{flags}^{rest}"), true));
    Some(parts)
}

/// Splits off leading flags `(?i)`, `(?s)` or both, which do not change the meaning of `^`.
fn leading_flags(pattern: &str) -> Option<(&str, &str)> {
    let end = pattern.strip_prefix("(?")?.find(')')? + 2;
    let is_known = pattern.get(2..end)?.bytes().all(|flag| matches!(flag, b'i' | b's')) && end > 2;
    is_known.then(|| pattern.split_at_checked(end + 1))?
}

/// Returns the words that `((?!words).)*$` excludes from the text. Only non-empty plain words: other patterns could
/// match at its very end.
fn excluded_words(pattern: &str) -> Option<&str> {
    let inner = pattern.strip_prefix("(?:(?!").or_else(|| pattern.strip_prefix("((?!"))?;
    let words = inner.strip_suffix(").)*$")?;
    let is_plain =
        |character: char| character.is_alphanumeric() || matches!(character, ' ' | '_' | '-' | '@' | ':' | '/' | ',');
    words.split('|').all(|word| !word.is_empty() && word.chars().all(is_plain)).then_some(words)
}

/// Returns the offset of the first unescaped `wanted` character outside groups and classes. `None`: it does not occur,
/// or the two engines parse the text before it differently.
fn find_unenclosed(pattern: &str, wanted: char) -> Option<usize> {
    let (mut depth, mut characters) = (0_usize, pattern.char_indices().peekable());
    while let Some((at, character)) = characters.next() {
        match character {
            _ if character == wanted && depth == 0 => return Some(at),
            '\\' => {
                characters.next()?;
            }
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            '[' => {
                characters.next_if(|(_, next)| *next == '^');
                characters.next_if(|(_, next)| *next == ']');
                loop {
                    match characters.next()?.1 {
                        ']' => break,
                        '\\' => {
                            characters.next()?;
                        }
                        '[' => {
                            characters.next_if(|(_, next)| *next == ':')?;
                            while characters.next()?.1 != ']' {}
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_before_a_pattern() {
        let read = |pattern: &str| translate(pattern).map(|found| (found.characters, found.line_end, found.parts));
        let one = |text: &str| vec![(text.to_owned(), true)];
        for (pattern, expected) in [
            ("x", Some((Characters::Bytes, LineEnd::Lf, one("x")))),
            ("(*UTF8)x", Some((Characters::Whole, LineEnd::Lf, one("x")))),
            ("(*UCP)\\w", Some((Characters::Whole, LineEnd::Lf, one("\\w")))),
            ("(*UTF)(*UCP)(*ANYCRLF)\\w", Some((Characters::Whole, LineEnd::Both, one("\\w")))),
            ("(*LIMIT_MATCH=10)(*CR)x", Some((Characters::Bytes, LineEnd::Cr, one("x")))),
            (
                "(*UTF8)\\d[^]\\W[:alpha:]]\\b",
                Some((Characters::Whole, LineEnd::Lf, one("(?-i:[0-9])[^][^0-9A-Za-z_][:alpha:]](?-u:\\b)"))),
            ),
            // The hyphen is a character in both engines.
            (
                "(*UTF8)[\\w-.][-\\d][a-z-\\s]",
                Some((Characters::Whole, LineEnd::Lf, one("[[0-9A-Za-z_]-.][-[0-9]][a-z-[\\t\\n\\x0B\\f\\r ]]"))),
            ),
            // The hyphen would form a range with the replacement of the class.
            ("(*UTF8)^[+-\\d]$", None),
            ("(*UTF8)[^a-\\W]", None),
            ("(*UTF8)[]-\\s]", None),
            ("(*UTF8)[\\+-\\d]", None),
            ("(*UTF8)[+-[:digit:]]", None),
            ("(*LIMIT_MATCH=)x", None),
            ("(*utf8)x", None),
            ("(*FAIL)", None),
            ("(*UTF8", None),
            ("x(*UTF8)", Some((Characters::Bytes, LineEnd::Lf, one("x(*UTF8)")))),
        ] {
            assert_eq!(read(pattern), expected, "{pattern}");
        }
    }

    #[test]
    fn lookaheads_at_the_beginning() {
        let parts = |pattern: &str| -> Vec<String> {
            let parts = translate(pattern).unwrap().parts.into_iter();
            parts.map(|(text, is_wanted)| if is_wanted { text } else { format!("not {text}") }).collect()
        };
        let cases: &[(&str, &[&str])] = &[
            ("^(?=.*a)(?!b|c)d$", &["^(?:.*a)", "not ^(?:b|c)", "^d$"]),
            ("(?i)\\A(?!x)", &["not (?i)^(?:x)", "(?i)^"]),
            ("^(?is)(?=[)\\]]\\))y", &["(?is)^(?:[)\\]]\\))", "(?is)^y"]),
            ("(?i)(?s)^(?i)(?=a)b", &["(?is)^(?:a)", "(?is)^b"]),
            ("^((?!no|never).)*$", &["not (?:no|never)", "^.*$"]),
            ("(?i)^(?:(?!no).)*$", &["not (?i)(?:no)", "(?i)^.*$"]),
            ("^(?=[[]a)b", &["^(?:[\\[]a)", "^b"]),
            // These patterns are not split, and the engine refuses them.
            ("(?=a)b", &["(?=a)b"]),
            ("(?m)^(?=a)b", &["(?m)^(?=a)b"]),
            ("^(?=a)b|c", &["^(?=a)b|c"]),
            ("^(?=a)*b", &["^(?=a)*b"]),
            ("^(?=a", &["^(?=a"]),
            ("^((?!no$).)*$", &["^((?!no$).)*$"]),
            ("^((?!a|).)*$", &["^((?!a|).)*$"]),
            ("^(?=a)[[]|c", &["^(?=a)[\\[]|c"]),
        ];
        for (pattern, expected) in cases {
            assert_eq!(parts(pattern), *expected, "{pattern}");
        }
    }

    #[test]
    fn parts_take_no_more_than_the_pattern() {
        let hostile = |lookaheads: usize| format!("^{}{}x", "(?i)(?s)".repeat(1_000), "(?=a)".repeat(lookaheads));
        for lookaheads in [PARTS_MAX, PARTS_MAX + 1, 2_000] {
            let pattern = hostile(lookaheads);
            let parts = translate(&pattern).unwrap().parts;
            let bytes: usize = parts.iter().map(|(text, _)| text.len()).sum();
            assert!(bytes < 3 * pattern.len(), "{lookaheads}: {bytes}");
            assert!(parts.len() <= PARTS_MAX + 1, "{lookaheads}: {}", parts.len());
        }
    }
}
