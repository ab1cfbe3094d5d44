//! Combining marks outside of their canonical order, which CouchDB's collator weighs as written.
//!
//! ICU's root collator does not normalise. It knows both spellings of `é`, because its data has both, but it weighs
//! marks in the order written: `a` with an acute and then a dot below is another key than with the dot first. The
//! library here always normalises. U+034F, a character without weight that separates marks, makes it weigh them as ICU
//! does. It also splits runs of more than 30 marks, as in Unicode's stream-safe text, because the library sorts each
//! run in quadratic time. No other text is changed.

use std::borrow::Cow;

use icu_normalizer::DecomposingNormalizerBorrowed;
use icu_normalizer::properties::CanonicalCombiningClassMapBorrowed;

/// U+034F COMBINING GRAPHEME JOINER: it has no weight, and marks are not reordered across it.
const JOINER: char = '\u{34f}';

/// The longest run of marks.
const RUN_MAX: usize = 30;

/// The first character with a combining class; the first byte of every smaller character is at most that of this one.
const FIRST_MARK: char = '\u{300}';
const FIRST_MARK_BYTE: u8 = 0xcc;

/// Inserts a joiner before each mark that canonical order would move before its predecessor.
pub(crate) fn in_order_written(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| byte < FIRST_MARK_BYTE) {
        return Cow::Borrowed(text);
    }
    let classes = CanonicalCombiningClassMapBorrowed::new();
    let class = |character: char| match character {
        ..FIRST_MARK => 0,
        // These have no class themselves, but decompose to two marks, the first one of this class; no other character
        // does.
        '\u{f73}' | '\u{f75}' | '\u{f81}' => 129,
        _ => classes.get_u8(character),
    };
    let mut kept: Option<String> = None;
    let mut copied = 0;
    let mut previous = '\0';
    let mut run = 0;
    for (at, character) in text.char_indices() {
        let own = class(character);
        run = if own == 0 { 0 } else { run + 1 };
        if own != 0 && (run > RUN_MAX || own < class(last_of(previous))) {
            run = 1;
            let kept = kept.get_or_insert_default();
            kept.push_str(text.get(copied..at).unwrap_or_default());
            kept.push(JOINER);
            copied = at;
        }
        previous = character;
    }
    match kept {
        None => Cow::Borrowed(text),
        Some(kept) => Cow::Owned(kept + text.get(copied..).unwrap_or_default()),
    }
}

/// The last character of a character's canonical decomposition.
fn last_of(character: char) -> char {
    let normalizer = DecomposingNormalizerBorrowed::new_nfd();
    normalizer.normalize_iter(std::iter::once(character)).last().unwrap_or(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_out_of_order_are_kept_apart() {
        let check = |text: &str, expected: &str| assert_eq!(in_order_written(text), expected, "{text:?}");
        check("", "");
        check("plain", "plain");
        check("\u{e9}\u{e1}", "\u{e9}\u{e1}");
        check("a\u{323}\u{301}", "a\u{323}\u{301}");
        check("a\u{301}\u{301}", "a\u{301}\u{301}");
        check("a\u{301}\u{323}", "a\u{301}\u{34f}\u{323}");
        check("\u{e1}\u{323}b\u{e1}\u{323}c", "\u{e1}\u{34f}\u{323}b\u{e1}\u{34f}\u{323}c");
        check("\u{1ead}\u{323}", "\u{1ead}\u{34f}\u{323}");
        check("\u{1ea1}\u{302}", "\u{1ea1}\u{302}");
        check("\u{301}\u{323}\u{301}\u{323}", "\u{301}\u{34f}\u{323}\u{301}\u{34f}\u{323}");
        check("\u{300}\u{334}", "\u{300}\u{34f}\u{334}");
        check("\u{2ff}\u{323}", "\u{2ff}\u{323}");
    }

    #[test]
    fn runs_of_marks_are_parted() {
        let marks = |count: usize| "\u{301}".repeat(count);
        assert!(matches!(in_order_written(&marks(30)), Cow::Borrowed(_)));
        assert_eq!(in_order_written(&marks(31)), marks(30) + "\u{34f}\u{301}");
        assert_eq!(in_order_written(&marks(61)), marks(30) + "\u{34f}" + &marks(30) + "\u{34f}\u{301}");
        assert!(matches!(in_order_written(&format!("{}a{0}", marks(30))), Cow::Borrowed(_)));
    }

    /// Without the joiners a megabyte of marks would take hours.
    #[test]
    fn runs_of_marks_take_no_time() {
        let unicode = crate::Collation::unicode().unwrap();
        for marks in ["\u{301}", "\u{323}\u{301}", "\u{301}\u{323}", "\u{334}\u{345}", "\u{344}", "\u{f73}", "\u{f81}"]
        {
            let text = flatbed_flatten::json::Value::String(marks.repeat(20_000).into());
            assert!(unicode.sort_key(&text).is_cut());
            assert!(unicode.compare(&text, &text).is_eq());
        }
    }

    #[test]
    fn what_is_not_looked_at_has_no_marks() {
        let mut bytes = [0; 4];
        assert_eq!(FIRST_MARK.encode_utf8(&mut bytes).as_bytes()[0], FIRST_MARK_BYTE);
        let classes = CanonicalCombiningClassMapBorrowed::new();
        assert!(('\0'..FIRST_MARK).all(|character| classes.get_u8(character) == 0));
    }
}
