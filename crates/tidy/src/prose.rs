//! Words that hide the actor of a sentence, in documents and comments.
//!
//! Code spans are not read.

use crate::rust::is_of_word;

/// Words that no document and no comment uses.
const WORDS: [&str; 5] = ["whoever", "whom", "nobody", "somebody", "whosoever"];

/// Words that no doc comment begins with; those of [`WORDS`] are found without.
const BEGINNINGS: [&str; 8] = ["Of", "What", "Whether", "Who", "Where", "How", "Whose", "Whatever"];

/// The findings in a document, each as `line: word`.
pub fn in_markdown(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        found.extend(banned(line).map(|word| format!("{}: `{word}`", at + 1)));
    }
    found
}

/// The findings in the comments of a Rust file (`rust::Parts::comments`), each as `line: word`.
pub fn in_comments(comments: &[(usize, &str)]) -> Vec<String> {
    let mut found = Vec::new();
    let mut before = (0, None);
    for &(number, comment) in comments {
        found.extend(banned(comment).map(|word| format!("{number}: `{word}`")));
        let marker = doc_marker(comment);
        if marker.is_some() && before != (number - 1, marker) {
            let text = comment.get(3..).unwrap_or_default().trim_start();
            let first = text.split(|sign: char| !is_of_word(sign)).next().unwrap_or_default();
            if BEGINNINGS.contains(&first) {
                found.push(format!("{number}: `{first}` begins a doc comment"));
            }
        }
        before = (number, marker);
    }
    found
}

fn banned(line: &str) -> impl Iterator<Item = &str> {
    let texts = line.split('`').step_by(2);
    let words = texts.flat_map(|text| text.split(|sign: char| !is_of_word(sign)));
    words.filter(|word| WORDS.iter().any(|banned| word.eq_ignore_ascii_case(banned)))
}

fn doc_marker(comment: &str) -> Option<&'static str> {
    let is_doc = !comment.starts_with("////");
    ["///", "//!"].into_iter().find(|marker| is_doc && comment.starts_with(*marker))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rust::parts;

    #[test]
    fn words_are_found_outside_of_code() {
        let text = "Nobody's key, `whom`, nobody_reads.\n\n| whoever | `a` somebody |";
        assert_eq!(in_markdown(text), ["1: `Nobody`", "3: `whoever`", "3: `somebody`"]);
        assert!(in_markdown("The client, `nobody`, any body.").is_empty());
        let code = "fn whom() {} // the one whom\nlet nobody = \"nobody\";\n/// The user.\n/// Whosoever asks.";
        assert_eq!(in_comments(&parts(code).comments), ["1: `whom`", "4: `Whosoever`"]);
    }

    #[test]
    fn doc_comments_begin_with_their_item() {
        for word in BEGINNINGS {
            let findings = |text: String| in_comments(&parts(&text).comments);
            assert_eq!(findings(format!("x\n    /// {word} it is.")), [format!("2: `{word}` begins a doc comment")]);
            assert_eq!(findings(format!("//! {word}")).len(), 1);
            assert_eq!(findings(format!("/// A.\na: u8,\n/// {word}")).len(), 1);
            assert_eq!(findings(format!("//! A.\n/// {word}")).len(), 1);
            for text in [
                format!("/// The key.\n/// {word}"),
                format!("// {word}"),
                format!("//// {word}"),
                format!("/// {word}x"),
            ] {
                assert!(findings(text.clone()).is_empty(), "{text}");
            }
        }
    }
}
