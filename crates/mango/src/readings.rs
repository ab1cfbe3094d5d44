//! Translates PCRE patterns that the engine accepts but reads differently.
//!
//! Nested classes, set operations, and runs of hyphens in a class are literals in PCRE, and are escaped. A pattern is
//! refused if PCRE refuses it, or if the engine cannot express its meaning in PCRE. Other text stays unchanged.

use crate::pcre::{Characters, LineEnd};

/// The names of POSIX classes, which both engines support.
const POSIX: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word",
    "xdigit",
];

/// Returns the pattern in the engine's syntax. `None`: it is refused.
pub(crate) fn as_in_pcre(pattern: &str, characters: Characters, line_end: LineEnd) -> Option<String> {
    let out = String::with_capacity(pattern.len());
    let mut reader =
        Reader { rest: pattern, out, characters, line_end, is_verbose: false, quantifier: Quantifier::None };
    reader.read()?;
    Some(reader.out)
}

/// The state before a possible quantifier.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quantifier {
    None,
    /// After a quantifier: `?` makes it lazy. PCRE reads `+` as possessive, which the engine lacks, and refuses other
    /// quantifiers.
    Whole,
    /// After a lazy quantifier: PCRE refuses another.
    Lazy,
}

/// The state before the next item of a class.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClassState {
    /// At the beginning, or after a range or a class: a hyphen is a literal.
    Complete,
    /// After a character: a hyphen begins a range.
    Character,
    /// After a range's first character and hyphen.
    Hyphen,
}

impl ClassState {
    fn behind_character(self) -> ClassState {
        if self == ClassState::Hyphen { ClassState::Complete } else { ClassState::Character }
    }
}

struct Reader<'p> {
    rest: &'p str,
    out: String,
    characters: Characters,
    line_end: LineEnd,
    /// `(?x)`
    is_verbose: bool,
    quantifier: Quantifier,
}

impl<'p> Reader<'p> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let mut characters = self.rest.chars();
        let next = characters.next();
        self.rest = characters.as_str();
        next
    }

    fn copy(&mut self, bytes: usize) -> Option<&'p str> {
        let (copied, behind) = self.rest.split_at_checked(bytes)?;
        self.out.push_str(copied);
        self.rest = behind;
        Some(copied)
    }

    fn read(&mut self) -> Option<()> {
        // True for each open group with `(?x)` outside of it.
        let mut groups = Vec::new();
        let mut is_behind_bracket = false;
        while let Some(character) = self.next() {
            if self.is_verbose && (character.is_whitespace() || character == '#') {
                self.ignored(character)?;
                continue;
            }
            let (before, was_behind_bracket) = (self.quantifier, is_behind_bracket);
            (self.quantifier, is_behind_bracket) = (Quantifier::None, false);
            match character {
                '\\' => self.escaped()?,
                '[' => self.class()?,
                '(' => {
                    groups.push(self.is_verbose);
                    self.out.push('(');
                    if self.rest.starts_with('?') {
                        if self.group()? {
                            groups.pop();
                        }
                    } else {
                        is_behind_bracket = true;
                    }
                }
                ')' => {
                    self.is_verbose = groups.pop().unwrap_or(self.is_verbose);
                    self.out.push(')');
                }
                // With `(?x)` the engine reads `( ?i)` as flags.
                '?' if was_behind_bracket => return None,
                '?' if before == Quantifier::Whole => {
                    self.quantifier = Quantifier::Lazy;
                    self.out.push('?');
                }
                '*' | '+' | '?' | '{' => {
                    if before != Quantifier::None {
                        return None;
                    }
                    self.quantifier = Quantifier::Whole;
                    self.out.push(character);
                    if character == '{' {
                        self.repetitions()?;
                    }
                }
                other => self.out.push(other),
            }
        }
        Some(())
    }

    /// Skips white space or a comment under `(?x)`.
    fn ignored(&mut self, first: char) -> Option<()> {
        // PCRE reads other white space as a character.
        if !first.is_ascii() {
            return None;
        }
        if first != '#' {
            self.out.push(first);
            return Some(());
        }
        // In PCRE the newline verb decides what ends a comment. The text of a comment is left out.
        if self.line_end != LineEnd::Lf {
            return None;
        }
        while self.next().is_some_and(|character| character != '\n') {}
        Some(())
    }

    /// Parses repetitions after `{`. The engine refuses everything else there, but ignores white space.
    fn repetitions(&mut self) -> Option<()> {
        let end = self.rest.find('}')?;
        let inner = self.copy(end + 1)?;
        (!inner.contains(|character: char| character.is_whitespace() || character == '#')).then_some(())
    }

    /// Parses a group after `(`, before `?`. Returns true if it only sets flags.
    fn group(&mut self) -> Option<bool> {
        if self.rest.starts_with("?=") || self.rest.starts_with("?!") {
            self.copy(2)?;
            return Some(false);
        }
        if let Some(named) = self.rest.strip_prefix("?P<").or_else(|| self.rest.strip_prefix("?<")) {
            // The engine's names may contain brackets and dots.
            let (name, behind) = named.split_once('>')?;
            if !name.chars().all(|character| character.is_alphanumeric() || character == '_') {
                return None;
            }
            self.copy(self.rest.len() - behind.len())?;
            return Some(false);
        }
        let end = self.rest.find([')', ':'])?;
        let copied = self.copy(end + 1)?;
        let flags = copied.get(1..end)?;
        // In PCRE `(?R)` is a recursion, and there is no `u`.
        if !flags.chars().all(|flag| matches!(flag, 'i' | 'm' | 's' | 'x' | 'U' | '-')) {
            return None;
        }
        let (set, cleared) = flags.split_once('-').unwrap_or((flags, ""));
        self.is_verbose = (self.is_verbose || set.contains('x')) && !cleared.contains('x');
        Some(copied.ends_with(')'))
    }

    fn escaped(&mut self) -> Option<()> {
        match self.peek() {
            Some('v') => {
                self.next();
                self.out.push('[');
                self.vertical_space();
                self.out.push(']');
                Some(())
            }
            // The engine has `\b{start}`.
            Some('b') => {
                self.next();
                self.out.push_str("\\b");
                let inner = self.rest.strip_prefix('{');
                if inner.is_some_and(|inner| inner.starts_with(|next: char| next.is_ascii_alphabetic() || next == '-'))
                {
                    self.next();
                    self.out.push_str("\\{");
                }
                Some(())
            }
            _ => self.escaped_anywhere().map(|_| ()),
        }
    }

    /// Writes the members of `\v`.
    fn vertical_space(&mut self) {
        // `\x85` is a byte or a code point, like all characters.
        self.out.push_str(r"\n\x0B\f\r\x85");
        if self.characters == Characters::Whole {
            self.out.push_str(r"\x{2028}\x{2029}");
        }
    }

    fn escaped_anywhere(&mut self) -> Option<bool> {
        let Some(escaped) = self.next() else {
            self.out.push('\\');
            return Some(false);
        };
        match escaped {
            'u' | 'U' => return None,
            '<' | '>' => {
                self.out.push(escaped);
                return Some(false);
            }
            _ => {}
        }
        self.out.push('\\');
        self.out.push(escaped);
        if matches!(escaped, 'x' | 'p' | 'P') {
            // With `(?x)` the engine ignores white space and comments in these escapes.
            let bytes = match (self.rest.starts_with('{'), escaped) {
                (true, _) => self.rest.find('}')? + 1,
                (false, 'x') => 2,
                (false, _) => self.peek()?.len_utf8(),
            };
            if self.copy(bytes)?.contains(|character: char| character.is_whitespace() || character == '#') {
                return None;
            }
        }
        Some(matches!(escaped, 'd' | 'D' | 's' | 'S' | 'w' | 'W' | 'p' | 'P'))
    }

    /// Parses a class after `[`.
    fn class(&mut self) -> Option<()> {
        // PCRE refuses `[:alpha:]` outside a class.
        if posix(self.rest).is_some() {
            return None;
        }
        self.out.push('[');
        let (mut before, mut last, mut is_behind_vertical) = (ClassState::Complete, None, false);
        if self.rest.starts_with('^') {
            self.copy(1)?;
        }
        if self.rest.starts_with(']') {
            self.copy(1)?;
            before = ClassState::Character;
        }
        loop {
            let character = self.next()?;
            let was_behind_vertical = std::mem::take(&mut is_behind_vertical);
            let is_run = last == Some(character) || self.peek() == Some(character);
            last = Some(character);
            match character {
                ']' => {
                    self.out.push(']');
                    return Some(());
                }
                '\\' if self.rest.starts_with('v') => {
                    // PCRE refuses a range that ends with a class.
                    if before == ClassState::Hyphen {
                        return None;
                    }
                    self.next();
                    self.vertical_space();
                    (before, is_behind_vertical) = (ClassState::Complete, true);
                }
                '\\' => {
                    let is_class = self.escaped_anywhere()?;
                    before = if is_class { ClassState::Complete } else { before.behind_character() };
                }
                '[' => match posix(self.rest) {
                    Some(name) => {
                        let is_known = POSIX.contains(&name.strip_prefix('^').unwrap_or(name));
                        if !is_known || !self.rest.starts_with(':') || before == ClassState::Hyphen {
                            return None;
                        }
                        self.out.push('[');
                        self.copy(name.len() + 3)?;
                        before = ClassState::Complete;
                    }
                    None => {
                        self.out.push_str("\\[");
                        before = before.behind_character();
                    }
                },
                '-' if before == ClassState::Character && !self.rest.starts_with(']') => {
                    self.out.push('-');
                    before = ClassState::Hyphen;
                }
                // The engine reads `&&`, `~~` and `--` as set operations.
                '-' | '&' | '~' => {
                    if is_run || (character == '-' && was_behind_vertical) {
                        self.out.push('\\');
                    }
                    self.out.push(character);
                    before = before.behind_character();
                }
                // The engine ignores these in classes, too.
                other if self.is_verbose && (other.is_whitespace() || other == '#') => {
                    if !other.is_ascii() {
                        return None;
                    }
                    self.out.push_str(&format!("\\x{:02X}", u32::from(other)));
                    before = before.behind_character();
                }
                other => {
                    self.out.push(other);
                    before = before.behind_character();
                }
            }
        }
    }
}

/// Parses the name in `:name:]`, `.name.]` or `=name=]`, which PCRE reads behind `[` as a POSIX class or element.
fn posix(rest: &str) -> Option<&str> {
    let end = rest.chars().next().filter(|end| matches!(end, ':' | '.' | '='))?;
    let inner = rest.get(1..)?;
    let mut characters = inner.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        let next = characters.peek().map(|(_, next)| *next);
        match character {
            '\\' if matches!(next, Some(']' | '\\')) => {
                characters.next();
            }
            ']' => return None,
            '[' if next == Some(end) => return None,
            _ if character == end && next == Some(']') => return inner.get(..at),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pattern: &str) -> Option<String> {
        as_in_pcre(pattern, Characters::Bytes, LineEnd::Lf)
    }

    #[test]
    fn what_the_engine_would_read_otherwise_is_rewritten() {
        for (pattern, expected) in [
            // Nested classes.
            (r"[[a]b]", r"[\[a]b]"),
            (r"[^[a]]", r"[^\[a]]"),
            (r"[a[:alpha:][b]", r"[a[:alpha:]\[b]"),
            (r"[[:a]x]", r"[\[:a]x]"),
            (r"[!-[x]", r"[!-\[x]"),
            // Set operations.
            (r"[a&&b]", r"[a\&\&b]"),
            (r"[%-&&]", r"[%-\&\&]"),
            (r"[a~~]", r"[a\~\~]"),
            (r"[--a]", r"[\--a]"),
            (r"[+--]", r"[+-\-]"),
            (r"[---]", r"[\--\-]"),
            (r"[\w--]", r"[\w\-\-]"),
            (r"[\d--9]", r"[\d\--9]"),
            (r"[a-z--]", r"[a-z\-\-]"),
            // The engine refuses this range, as PCRE does.
            (r"[a--b]", r"[a-\-b]"),
            // Escapes.
            (r"\<a\>[\<]", r"<a>[<]"),
            (r"\b{start}", r"\b\{start}"),
            (r"\v+", r"[\n\x0B\f\r\x85]+"),
            (r"[^\v-z]", r"[^\n\x0B\f\r\x85\-z]"),
            // With `(?x)` the engine ignores white space in classes.
            ("(?x)a #[&&\n[ ^#]", r"(?x)a [\x20^\x23]"),
            ("(?:(?x)a )[ ]", "(?:(?x)a )[ ]"),
        ] {
            assert_eq!(read(pattern).as_deref(), Some(expected), "{pattern}");
        }
        assert_eq!(
            as_in_pcre(r"\v", Characters::Whole, LineEnd::Lf).as_deref(),
            Some(r"[\n\x0B\f\r\x85\x{2028}\x{2029}]")
        );
    }

    #[test]
    fn what_both_read_alike_stays() {
        for pattern in [
            r"^a.*b$",
            r"[a-z_-]",
            r"[-a]",
            r"[^-a&~]",
            r"[]a]",
            r"[^]^]",
            r"[a\]\[b]",
            r"[a\-\-b]",
            r"[a-z-9]",
            r"[\w.-]",
            r"[[:^alpha:][:digit:]x]",
            r"\[a&&b\]",
            r"a--b~~",
            r"a*?b+?c??d{1,2}?e{3,}",
            r"(?i)a(?s-m:b)(?U)(?x: c )",
            r"(?P<name>a)(?<other>b)",
            r"\x41\x{42}\p{L}\pN\b\B\A\z",
            r"^(?=a)(?!b)c",
            "(",
            r"a\",
            "é[é]",
        ] {
            assert_eq!(read(pattern).as_deref(), Some(pattern), "{pattern}");
        }
    }

    #[test]
    fn what_pcre_refuses_or_cannot_be_written_is_refused() {
        for pattern in [
            r"\u0041",
            r"\u{41}",
            r"\U00000041",
            r"[\u0041]",
            "(?R)",
            "(?R:a)",
            "(?-R)a",
            "(?u)a",
            "(?-u:a)",
            "(?iu)a",
            r"[a-\v]",
            "[",
            "[:alpha:]",
            "[[:<:]]",
            "[[.a.]]",
            "[[=a=]]",
            "[[:foo:]]",
            "[+-[:digit:]]",
            "(?P<a[0]>x)",
            "(?<a.b>x)",
            "a++",
            "a*+",
            "a?+",
            "a??+",
            "a{2}+",
            "a**",
            "a{2}{3}",
            "a*???",
            "a{ 2}",
            "a{2 }",
            "(?x)( ?i)a",
            "(?x)( #\n?i)a",
            "(?x)\\x{ 41}",
            "(?x)a\u{a0}b",
            "(?x)a+ +",
        ] {
            assert_eq!(read(pattern), None, "{pattern}");
        }
        assert_eq!(as_in_pcre("(?x)a#b\rc", Characters::Bytes, LineEnd::Cr), None);
    }
}
