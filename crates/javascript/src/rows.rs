//! The rows that a map emits for a document.

use crate::error::{Error, Result};

/// The deepest nesting of keys and values: readers must be able to parse them.
const DEPTH_MAX: usize = flatbed_flatten::json::DEPTH_MAX_LIMIT;

/// The rows of one document in one view, in the order of emission.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    text: String,
    cuts: Vec<RowBounds>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RowBounds {
    key: u32,
    comma: u32,
    end: u32,
}

impl Rows {
    pub(crate) fn parse(text: String) -> Result<Rows> {
        let mut rows = Rows { text, cuts: Vec::new() };
        if !rows.text.is_empty() {
            rows.cuts = cuts(rows.text.as_bytes()).ok_or_else(|| Error::Thrown {
                name: "invalid_rows".to_owned(),
                reason: format!("rows are not pairs of values, or are nested deeper than {DEPTH_MAX}"),
            })?;
        }
        Ok(rows)
    }

    /// Returns keys and values as JSON texts.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.cuts.iter().map(|cut| {
            let part = |from: u32, to: u32| self.text.get(from as usize..to as usize).unwrap_or("null");
            (part(cut.key, cut.comma), part(cut.comma + 1, cut.end))
        })
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.cuts.len()
    }

    /// Returns true if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.cuts.is_empty()
    }

    /// Returns the size of keys and values with their separators, in bytes.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }
}

/// Finds the rows. Returns `None` if the text is malformed: functions can change how their engine writes JSON.
fn cuts(text: &[u8]) -> Option<Vec<RowBounds>> {
    let number = |at: usize| u32::try_from(at).ok();
    let mut found = Vec::new();
    let mut at = expect(text, 0, b'[')?;
    loop {
        let key = expect(text, at, b'[')?;
        let comma = value_end(text, key)?;
        let value = expect(text, comma, b',')?;
        let end = value_end(text, value)?;
        found.push(RowBounds { key: number(key)?, comma: number(comma)?, end: number(end)? });
        at = expect(text, end, b']')?;
        match text.get(at)? {
            b',' => at += 1,
            b']' if at + 1 == text.len() => return Some(found),
            _ => return None,
        }
    }
}

fn expect(text: &[u8], at: usize, byte: u8) -> Option<usize> {
    (text.get(at) == Some(&byte)).then_some(at + 1)
}

pub(crate) fn value_end(text: &[u8], begin: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = begin;
    loop {
        match text.get(at)? {
            b'"' => {
                at = string_end(text, at + 1)?;
                if depth == 0 {
                    return Some(at);
                }
                continue;
            }
            b'[' | b'{' if depth >= DEPTH_MAX => return None,
            b'[' | b'{' => depth += 1,
            b']' | b'}' if depth > 0 => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            b']' | b'}' | b',' if depth == 0 => return (at > begin).then_some(at),
            _ => {}
        }
        at += 1;
    }
}

fn string_end(text: &[u8], begin: usize) -> Option<usize> {
    let mut at = begin;
    loop {
        match text.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Option<Vec<(String, String)>> {
        let rows = Rows::parse(text.to_owned()).ok()?;
        assert_eq!(rows.len(), rows.iter().len());
        Some(rows.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    #[test]
    fn pairs_are_found() {
        assert_eq!(pairs(""), Some(vec![]));
        let text = r#"[["a\"],[",1],[null,{"x":[1,{"y":"}"}]}],[[],-1.5e+3],[{},"\\"]]"#;
        let expected = [(r#""a\"],[""#, "1"), ("null", r#"{"x":[1,{"y":"}"}]}"#), ("[]", "-1.5e+3"), ("{}", r#""\\""#)];
        assert_eq!(pairs(text), Some(expected.map(|(key, value)| (key.into(), value.into())).to_vec()));
    }

    #[test]
    fn what_is_no_pairs_is_refused() {
        for text in [
            "[]",
            "1",
            "null",
            "[1]",
            "[[1]]",
            "[[1,2]",
            "[[1,2,3]]",
            "[[1,2]]x",
            "[[,2]]",
            "[[1,]]",
            "[[\"a,2]]",
            "[[1,2]2]",
        ] {
            assert_eq!(pairs(text), None, "{text}");
        }
    }
}
