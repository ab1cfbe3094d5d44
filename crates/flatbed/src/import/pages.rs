//! A list of a server, such as `_all_docs`, that is read in pages.

use crate::import::server::json_key;

/// The position in a list whose rows are in the order of their keys.
///
/// A page begins with the last key of the page before, so that no row is passed over if the source deletes that key
/// meanwhile: `skip=1` would then skip the next one.
#[derive(Debug)]
pub(crate) struct Pages {
    /// The most rows of a page, at least 2.
    limit: usize,
    /// The last key that was read.
    last: Option<String>,
    is_at_end: bool,
}

impl Pages {
    /// Begins a list, with at most `limit` rows on a page.
    pub(crate) fn of(limit: usize) -> Pages {
        Pages { limit: limit.max(2), last: None, is_at_end: false }
    }

    /// Returns the query of the next page, `limit=...`; `None` at the end.
    pub(crate) fn query(&self) -> Option<String> {
        let start = self.last.as_ref().map(|last| format!("&startkey={}", json_key(last))).unwrap_or_default();
        (!self.is_at_end).then(|| format!("limit={}{start}", self.limit))
    }

    /// Notes the keys of the page that was read. Returns how many rows at its beginning are known.
    pub(crate) fn note(&mut self, keys: &[&str]) -> usize {
        // A server without pages answers all rows again, with the last known one anywhere.
        let last = self.last.as_deref().and_then(|last| keys.iter().position(|key| *key == last));
        let known = last.map_or(0, |at| at + 1);
        match keys.last() {
            Some(last) if keys.len() == self.limit && known < keys.len() => self.last = Some((*last).to_owned()),
            _ => self.is_at_end = true,
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a list to its end. Before each page after the first, `change` may change the list.
    fn read(list: &mut Vec<&'static str>, mut change: impl FnMut(&mut Vec<&'static str>)) -> Vec<&'static str> {
        let (mut pages, mut read) = (Pages::of(3), Vec::new());
        while let Some(query) = pages.query() {
            let start = query.strip_prefix("limit=3").unwrap();
            let start = start.strip_prefix("&startkey=%22").map(|key| key.trim_end_matches("%22").to_owned());
            if start.is_some() {
                change(list);
            }
            let rows = list.iter().copied().filter(|key| start.as_deref().is_none_or(|start| *key >= start));
            let rows: Vec<&'static str> = rows.take(3).collect();
            let known = pages.note(&rows);
            read.extend_from_slice(&rows[known..]);
        }
        read
    }

    #[test]
    fn all_rows_are_read_once() {
        for length in 0..12 {
            let all: Vec<&'static str> =
                ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"][..length].to_vec();
            assert_eq!(read(&mut all.clone(), |_| {}), all);
        }
    }

    #[test]
    fn a_row_behind_a_deleted_key_is_not_passed_over() {
        let mut list = vec!["a", "b", "c", "d", "e", "f"];
        let mut deleted = ["c", "e"].into_iter();
        let found = read(&mut list, |list| {
            let gone = deleted.next();
            list.retain(|key| Some(*key) != gone);
        });
        assert_eq!(found, ["a", "b", "c", "d", "e", "f"]);
    }

    #[test]
    fn a_server_without_pages_is_read_once() {
        let mut pages = Pages::of(3);
        assert_eq!((pages.note(&["a", "b", "c"]), pages.note(&["a", "b", "c"])), (0, 3));
        assert_eq!(pages.query(), None);
        let mut longer = Pages::of(3);
        assert_eq!((longer.note(&["a", "b", "c", "d"]), longer.query()), (0, None));
    }
}
