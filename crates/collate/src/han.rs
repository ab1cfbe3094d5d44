//! Chinese characters in radical-stroke order, as in ICU's root collation.
//!
//! The library's data sorts them by code point. Before a comparison a text's characters are therefore exchanged: the
//! first in radical order for the first by code point, and so on. `order.bin` has the 97,058 unified ideographs of
//! Unicode 15 in ICU 72's order, each as its difference from the previous one (zigzag, seven bits per byte). It is
//! Unicode's data, under the Unicode License v3. Ideographs of later versions keep the library's position.
//!
//! Characters derived from ideographs (`㍿`, `㊀`, radicals) are replaced by their decomposition and a distinguishing
//! mark. ICU distinguishes them at a lower level than marks, which only shows in a comparison of a text with marks and
//! a derived character.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

use icu_normalizer::DecomposingNormalizerBorrowed;

use crate::codec;

/// No smaller character is affected, and no affected character has a smaller first byte.
const FIRST: char = '\u{2e80}';
const FIRST_BYTE: u8 = 0xe2;

/// The ideographs, and the compatibility ideographs that decompose to one.
const PLANES: [std::ops::Range<u32>; 2] = [0x3400..0xfb00, 0x2_0000..0x3_23b0];

/// The characters derived from ideographs, in the order of those of one ideograph: radicals, enclosed, small, squared.
const MADE: [std::ops::RangeInclusive<char>; 6] = [
    '\u{2e80}'..='\u{2fdf}',
    '\u{3000}'..='\u{3191}',
    '\u{31a0}'..='\u{33ff}',
    '\u{a700}'..='\u{a7ff}',
    '\u{3192}'..='\u{319f}',
    '\u{1f200}'..='\u{1f2ff}',
];

/// Marks with increasing weights, Slavonic and Samaritan, which never follow such a character in practice.
const MARKS: [char; 8] = ['\u{a66f}', '\u{81c}', '\u{81e}', '\u{821}', '\u{825}', '\u{826}', '\u{829}', '\u{82b}'];

struct Table {
    /// For each character of [`PLANES`] its replacement, or 0.
    exchanged: [Vec<u32>; 2],
    /// The decompositions of the characters of [`MADE`].
    made: HashMap<char, String>,
}

static TABLE: LazyLock<Table> = LazyLock::new(Table::new);

/// Rewrites a text so that the library sorts it by radicals.
pub(crate) fn by_radicals(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| byte < FIRST_BYTE) || text.chars().all(|character| TABLE.of(character).is_none()) {
        return Cow::Borrowed(text);
    }
    let mut exchanged = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match TABLE.of(character) {
            None => exchanged.push(character),
            Some(Replacement::One(other)) => exchanged.push(other),
            Some(Replacement::Made(text)) => exchanged.push_str(text),
        }
    }
    Cow::Owned(exchanged)
}

enum Replacement<'t> {
    One(char),
    Made(&'t str),
}

impl Table {
    fn new() -> Table {
        let by_radicals = ideographs(include_bytes!("han/order.bin"));
        let mut by_number = by_radicals.clone();
        by_number.sort_unstable_by_key(|character| number(*character));
        let mut table = Table { exchanged: PLANES.map(|plane| vec![0; plane.len()]), made: HashMap::new() };
        for (from, to) in by_radicals.into_iter().zip(by_number) {
            table.set(from, to);
        }
        let canonical = DecomposingNormalizerBorrowed::new_nfd();
        let compatible = DecomposingNormalizerBorrowed::new_nfkd();
        for code in PLANES.into_iter().flatten() {
            let Some(character) = char::from_u32(code).filter(|character| table.one(*character).is_none()) else {
                continue;
            };
            let mut decomposed = canonical.normalize_iter(std::iter::once(character));
            if let Some(to) = decomposed.next().and_then(|character| table.one(character)) {
                table.set(character, to);
            }
        }
        let mut alike: HashMap<String, usize> = HashMap::new();
        for character in MADE.into_iter().flatten() {
            let parts: Vec<char> = compatible.normalize_iter(std::iter::once(character)).collect();
            if parts.iter().any(|part| table.one(*part).is_some()) {
                let mut text: String = parts.iter().map(|part| table.one(*part).unwrap_or(*part)).collect();
                let count = alike.entry(text.clone()).or_default();
                // If there are more characters than marks, several marks distinguish them.
                text.extend(std::iter::repeat_n(MARKS.last(), *count / MARKS.len()).flatten());
                text.extend(MARKS.get(*count % MARKS.len()));
                *count += 1;
                table.made.insert(character, text);
            }
        }
        table
    }

    fn place(character: char) -> Option<(usize, usize)> {
        let code = u32::from(character);
        let plane = PLANES.iter().position(|plane| plane.contains(&code))?;
        Some((plane, (code - PLANES.get(plane)?.start) as usize))
    }

    fn set(&mut self, from: char, to: char) {
        if let Some((plane, at)) = Table::place(from)
            && let Some(place) = self.exchanged.get_mut(plane).and_then(|plane| plane.get_mut(at))
        {
            *place = to.into();
        }
    }

    fn one(&self, character: char) -> Option<char> {
        let (plane, at) = Table::place(character)?;
        self.exchanged.get(plane)?.get(at).and_then(|code| char::from_u32(*code)).filter(|found| *found != '\0')
    }

    fn of(&self, character: char) -> Option<Replacement<'_>> {
        if character < FIRST {
            return None;
        }
        match self.one(character) {
            Some(other) => Some(Replacement::One(other)),
            None => self.made.get(&character).map(|text| Replacement::Made(text)),
        }
    }
}

/// The library's order: the characters of the oldest block and twelve others, then the rest by code point.
fn number(character: char) -> (bool, char) {
    (!matches!(character, '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}'), character)
}

fn ideographs(mut encoded: &[u8]) -> Vec<char> {
    let mut found = Vec::with_capacity(encoded.len());
    let mut code = 0_u32;
    while let Some(difference) = codec::take(&mut encoded) {
        let difference = difference as u32;
        code = code.wrapping_add(difference >> 1 ^ (difference & 1).wrapping_neg());
        found.extend(char::from_u32(code));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use flatbed_flatten::json::Value;

    use super::*;
    use crate::collation::Collation;

    #[test]
    fn each_character_is_exchanged_for_another() {
        let order = ideographs(include_bytes!("han/order.bin"));
        assert_eq!(order.len(), 97_058);
        let exchanged: HashSet<char> = order.iter().map(|character| TABLE.one(*character).unwrap()).collect();
        assert_eq!(exchanged, order.iter().copied().collect());
        let by_number: Vec<char> = order.iter().map(|character| TABLE.one(*character).unwrap()).collect();
        assert!(by_number.is_sorted_by_key(|character| number(*character)));
    }

    /// All ideographs: the library's order is the assumed one.
    #[test]
    fn sort_forms_lie_in_the_order_of_radicals() {
        let unicode = Collation::unicode().unwrap();
        let form = |character: char| unicode.whole_form(&Value::String(character.to_string().into()));
        let order = ideographs(include_bytes!("han/order.bin"));
        let forms: Vec<_> = order.iter().map(|character| form(*character)).collect();
        assert!(forms.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn other_text_stays() {
        for text in ["", "plain", "\u{e9}\u{10ffff}", "\u{3042}\u{30a2}\u{3007}", "\u{1f600}"] {
            assert!(matches!(by_radicals(text), Cow::Borrowed(_)), "{text}");
        }
        assert_eq!(by_radicals("a\u{4e00}b"), "a\u{4e00}b");
        // The second character by radicals is of a late block.
        assert_eq!(by_radicals("\u{2a6d9}"), "\u{4e01}");
        assert_eq!(by_radicals("\u{4e01}"), "\u{4e02}");
    }

    #[test]
    fn what_is_equal_and_what_is_made_of_others() {
        let unicode = Collation::unicode().unwrap();
        let compare = |a: &str, b: &str| {
            unicode.compare(&Value::String(a.to_owned().into()), &Value::String(b.to_owned().into()))
        };
        // A compatibility ideograph sorts as its ideograph.
        assert!(compare("\u{f900}", "\u{8c48}").is_eq());
        assert!(compare("\u{2f800}", "\u{4e3d}").is_eq());
        assert!(compare("\u{337f}", "\u{682a}\u{5f0f}\u{4f1a}\u{793e}").is_gt());
        assert!(compare("\u{337f}", "\u{682a}\u{5f0f}\u{4f1a}\u{793f}").is_lt());
        let ones = ["\u{4e00}", "\u{2f00}", "\u{3280}", "\u{3192}", "\u{1f229}"];
        assert!(ones.is_sorted_by(|a, b| compare(a, b).is_lt()));
        assert!(compare(ones[4], "\u{4e00}\u{4e00}").is_lt());
        let made: HashSet<&String> = TABLE.made.values().collect();
        assert_eq!(made.len(), TABLE.made.len());
    }

    #[test]
    fn what_is_not_looked_at_is_before() {
        assert_eq!(FIRST.to_string().as_bytes()[0], FIRST_BYTE);
        assert!(PLANES.iter().all(|plane| plane.start >= u32::from(FIRST)));
        assert!(MADE.iter().all(|range| *range.start() >= FIRST));
    }
}
