//! Checks that a source answers the request: no other documents, no unrelated branches, and a limited number of rows.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::raw;
use crate::transfer::{MissingRevision, string_of};

/// The most additional rows. A source returns the leaves above the requested revisions, which may be more after an
/// edit.
const FURTHER_ROWS_MAX: usize = 10_000;

/// The revisions that one request asks for, and its progress.
pub(crate) struct RevisionRequest<'w> {
    revs: HashMap<&'w str, (&'w Arc<str>, Vec<&'w str>)>,
    answered: HashSet<&'w str>,
    rows_left: usize,
}

impl<'w> RevisionRequest<'w> {
    pub(crate) fn new(wanted: &'w [MissingRevision]) -> RevisionRequest<'w> {
        let mut revs: HashMap<&str, (&Arc<str>, Vec<&str>)> = HashMap::with_capacity(wanted.len());
        for (id, rev) in wanted {
            revs.entry(id).or_insert_with(|| (id, Vec::new())).1.push(rev);
        }
        // Each row and each revision in it counts.
        RevisionRequest { revs, answered: HashSet::new(), rows_left: 2 * wanted.len() + FURTHER_ROWS_MAX }
    }

    /// Counts a row; returns false beyond the limit.
    pub(crate) fn has_room(&mut self) -> bool {
        self.rows_left = self.rows_left.saturating_sub(1);
        self.rows_left > 0
    }

    /// Returns the shared copy of a requested document's id.
    pub(crate) fn id(&self, id: &str) -> Option<Arc<str>> {
        self.revs.get(id).map(|(id, _)| Arc::clone(id))
    }

    /// Marks a document as answered.
    pub(crate) fn answer(&mut self, id: &str) {
        if let Some((id, _)) = self.revs.get_key_value(id) {
            self.answered.insert(id);
        }
    }

    pub(crate) fn all_answered(&self) -> bool {
        self.answered.len() == self.revs.len()
    }

    /// Returns whether a revision was requested or descends from one. `revisions`: the text of its `_revisions`.
    pub(crate) fn is_asked_for(&self, id: &str, rev: &str, revisions: Option<&[u8]>) -> bool {
        let Some((_, wanted)) = self.revs.get(id) else { return false };
        if wanted.contains(&rev) {
            return true;
        }
        let Some((start, ids)) = revisions.and_then(ancestry) else { return false };
        let wanted: HashSet<&str> = wanted.iter().copied().collect();
        let path = ids.iter().zip((0..=start).rev());
        path.into_iter().any(|(hash, position)| wanted.contains(format!("{position}-{hash}").as_str()))
    }
}

/// Parses `start` and `ids` of a `_revisions`.
fn ancestry(revisions: &[u8]) -> Option<(u64, Vec<String>)> {
    let members = raw::object(revisions)?;
    let find = |wanted: &str| members.iter().find(|(name, _)| name == wanted).map(|(_, value)| *value);
    let start = std::str::from_utf8(find("start")?).ok()?.parse().ok()?;
    let ids = raw::items(find("ids")?)?.into_iter().map(string_of).collect::<Option<_>>()?;
    Some((start, ids))
}

/// Returns whether the text of a `_revisions` begins with this revision.
pub(crate) fn is_ancestry_of(rev: &str, revisions: &[u8]) -> bool {
    let Some((position, hash)) = rev.split_once('-') else { return false };
    ancestry(revisions)
        .is_some_and(|(start, ids)| start.to_string() == position && ids.first().map(String::as_str) == Some(hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_and_what_lies_above_it() {
        let wanted = [("x".into(), "2-b".to_owned()), ("y".into(), "1-q".to_owned())];
        let mut asked = RevisionRequest::new(&wanted);
        assert!(asked.is_asked_for("x", "2-b", None));
        assert!(!asked.is_asked_for("y", "2-b", None) && !asked.is_asked_for("z", "2-b", None));
        let above = |start: u64, ids: &str| format!("{{\"start\":{start},\"ids\":{ids}}}").into_bytes();
        assert!(asked.is_asked_for("x", "4-d", Some(&above(4, r#"["d","c","b","a"]"#))));
        assert!(!asked.is_asked_for("x", "5-d", Some(&above(5, r#"["d","c","b","a"]"#))));
        assert!(!asked.is_asked_for("x", "4-d", Some(&above(4, r#"["d","c","e","a"]"#))));
        assert!(!asked.is_asked_for("x", "4-d", Some(b"[]")) && !asked.is_asked_for("x", "4-d", Some(b"{")));
        assert!(is_ancestry_of("4-d", &above(4, r#" ["d","c"]"#)));
        for (rev, revisions) in
            [("4-d", above(3, r#"["d"]"#)), ("4-d", above(4, r#"["c","d"]"#)), ("4-d", above(4, "[]"))]
        {
            assert!(!is_ancestry_of(rev, &revisions));
        }
        for twice in [r#"{"start":4,"start":3,"ids":["d"]}"#, r#"{"start":4,"ids":["d"],"\u0069ds":["e"]}"#] {
            assert!(!is_ancestry_of("4-d", twice.as_bytes()), "{twice}");
            assert!(!asked.is_asked_for("x", "4-d", Some(twice.as_bytes())), "{twice}");
        }
        asked.answer("x");
        asked.answer("z");
        assert!(!asked.all_answered());
        asked.answer("y");
        assert!(asked.all_answered());
        assert_eq!((0..100_000).take_while(|_| asked.has_room()).count(), 2 * 2 + FURTHER_ROWS_MAX - 1);
    }
}
