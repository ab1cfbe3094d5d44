//! Bookmarks: the position at which a page of an answer ended.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use flatbed_flatten::json::{self, Limits, Value};

use crate::error::MangoError;
use crate::options::text;

/// The bookmark of an answer without one. Requests may not send it.
pub(crate) const NIL: &str = "nil";

/// The version of the format, the first item of the array.
const FORM: &str = "1";

/// The last row of an index that was answered or skipped. The next page begins behind it, even if that row no longer
/// exists.
///
/// The text is the base64url of a JSON array: the format's version, the document's id and the row's key.
#[derive(Debug, Clone, PartialEq)]
pub struct Bookmark {
    /// The document's id.
    pub id: String,
    /// The row's key: the values of the index's fields, or the id for the index of all ids.
    pub key: Value<'static>,
}

impl Bookmark {
    /// Encodes the bookmark as text.
    pub fn encode(&self) -> String {
        let items = vec![Value::Number(FORM.into()), text(&self.id), self.key.clone()];
        URL_SAFE_NO_PAD.encode(json::to_vec(&Value::Array(items)))
    }

    /// Parses the text of a bookmark.
    ///
    /// # Errors
    /// The text is not a bookmark.
    pub fn decode(bookmark: &str) -> Result<Bookmark, MangoError> {
        decode(bookmark).ok_or_else(|| {
            let mut shown = Vec::new();
            json::write_string(bookmark.get(..1_000).unwrap_or(bookmark), &mut shown);
            let shown = String::from_utf8_lossy(&shown);
            MangoError::bad("invalid_bookmark", format!("Invalid bookmark value: {shown}"))
        })
    }

    /// Returns the bookmark of an answer: the last row's, or else the request's.
    pub fn of_answer(last: Option<&Bookmark>, asked: Option<&str>) -> String {
        match last {
            Some(last) => last.encode(),
            None => asked.unwrap_or(NIL).to_owned(),
        }
    }
}

fn decode(bookmark: &str) -> Option<Bookmark> {
    let bytes = URL_SAFE_NO_PAD.decode(bookmark).ok()?;
    let Ok(Value::Array(items)) = json::parse(&bytes, &Limits::default()) else { return None };
    match items.as_slice() {
        [Value::Number(form), Value::String(id), key] if form == FORM => {
            Some(Bookmark { id: id.to_string(), key: key.clone().into_owned() })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_bookmark() {
        // The last text has CouchDB's own format.
        let long = "x".repeat(100_000);
        for bookmark in
            ["nil", "nonsense", "", "W10", long.as_str(), "g1AAAAA8eJzLYWBgYMpgSmHgKy5JLCrJTq2MT8lPzkzJBYozAgAXAwRA"]
        {
            let refused = Bookmark::decode(bookmark).unwrap_err();
            assert_eq!((refused.status, refused.error), (400, "invalid_bookmark"));
            assert!(refused.reason.len() < 1_100);
        }
        assert_eq!(Bookmark::decode("nil").unwrap_err().reason, "Invalid bookmark value: \"nil\"");
    }

    proptest! {
        #[test]
        fn bookmarks_come_back(id in ".*", texts in prop::collection::vec(".*", 0..3)) {
            let key = Value::Array(texts.iter().map(|item| text(item)).collect());
            let bookmark = Bookmark { id, key };
            let encoded = bookmark.encode();
            prop_assert!(encoded.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'));
            prop_assert_eq!(Bookmark::decode(&encoded), Ok(bookmark));
        }

        #[test]
        fn any_text_is_a_bookmark_or_not(text in ".*") {
            let _ = Bookmark::decode(&text);
        }
    }
}
