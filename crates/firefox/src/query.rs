//! The parameters of requests.

use std::borrow::Cow;

use flatbed_syncstorage::{BatchId, ListQuery, Offset, RecordId, Sort, Timestamp};

use crate::error::{Failure, Result};
use crate::path::decoded;

/// The batch operation of a POST.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Batch {
    /// No batch: objects are stored at once.
    None,
    /// A batch begins.
    Begin,
    /// Objects are added to the batch.
    Append(BatchId),
    /// Objects are added to the batch, and it is committed.
    Commit(BatchId),
}

/// Names and values. A name may occur once.
struct Parameters<'q>(Option<&'q str>);

impl<'q> Parameters<'q> {
    /// Returns the value of a name; a name without a value has the empty one.
    fn get(&self, name: &str) -> Result<Option<Cow<'q, str>>> {
        let mut found = None;
        for pair in self.0.into_iter().flat_map(|query| query.split('&')) {
            let (of, value) = pair.split_once('=').unwrap_or((pair, ""));
            if text(of).as_deref() != Some(name) {
                continue;
            }
            if found.is_some() {
                return Err(Failure::bad_request(format!("the parameter {name} stands twice")));
            }
            found = Some(text(value).ok_or_else(|| Failure::bad_request(format!("the parameter {name} is no UTF-8")))?);
        }
        Ok(found)
    }

    fn read<T>(&self, name: &str, read: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.get(name)? else { return Ok(None) };
        read(&value).map(Some).ok_or_else(|| Failure::bad_request(format!("the parameter {name} is none")))
    }
}

/// Decodes a form's text.
fn text(encoded: &str) -> Option<Cow<'_, str>> {
    if encoded.contains('+') {
        return decoded(&encoded.replace('+', " ")).map(|text| Cow::Owned(text.into_owned()));
    }
    decoded(encoded)
}

/// Parses the query of a list.
///
/// # Errors
/// 400.
pub(crate) fn listed(query: Option<&str>) -> Result<ListQuery> {
    let parameters = Parameters(query);
    let sort = parameters.read("sort", |text| match text {
        "newest" => Some(Sort::Newest),
        "oldest" => Some(Sort::Oldest),
        "index" => Some(Sort::Index),
        _ => None,
    })?;
    Ok(ListQuery {
        ids: parameters.read("ids", ids)?.flatten(),
        newer: parameters.read("newer", Timestamp::parse)?,
        older: parameters.read("older", Timestamp::parse)?,
        sort: sort.unwrap_or_default(),
        limit: parameters.read("limit", |text| text.parse().ok())?,
        offset: parameters.read("offset", Offset::parse)?,
        full: parameters.get("full")?.is_some(),
    })
}

/// Parses a list of ids. An empty text is no list.
fn ids(text: &str) -> Option<Option<Vec<RecordId>>> {
    let mut ids: Vec<RecordId> = Vec::new();
    let found = text.split(',').map(str::trim).filter(|id| !id.is_empty());
    for (count, id) in found.enumerate() {
        if count == ListQuery::IDS_MAX {
            return None;
        }
        let id = RecordId::new(id)?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    Some((!ids.is_empty()).then_some(ids))
}

/// Parses the batch operation.
///
/// # Errors
/// 400.
pub(crate) fn batch(query: Option<&str>) -> Result<Batch> {
    let parameters = Parameters(query);
    let unknown = || Failure::bad_request("there is no such batch");
    let batch = parameters.get("batch")?;
    let commit = parameters.read("commit", |text| text.eq_ignore_ascii_case("true").then_some(()))?;
    Ok(match (batch, commit) {
        (None, None) => Batch::None,
        (None, Some(())) => return Err(Failure::bad_request("commit without a batch")),
        (Some(id), commit) if id.is_empty() || id.eq_ignore_ascii_case("true") => match commit {
            // A batch of one request is invisible to others, so it is none.
            Some(()) => Batch::None,
            None => Batch::Begin,
        },
        (Some(id), None) => Batch::Append(BatchId::parse(&id).ok_or_else(unknown)?),
        (Some(id), Some(())) => Batch::Commit(BatchId::parse(&id).ok_or_else(unknown)?),
    })
}

/// Returns the requested duration of a token, in seconds. A text that is no number is ignored.
pub(crate) fn duration(query: Option<&str>) -> Option<u64> {
    Parameters(query).get("duration").ok().flatten()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ids_of(query: &str) -> Option<Option<Vec<String>>> {
        let ids = listed(Some(query)).ok()?.ids;
        Some(ids.map(|ids| ids.iter().map(|id| id.as_str().to_owned()).collect()))
    }

    #[test]
    fn lists() {
        assert_eq!(listed(None).unwrap(), ListQuery::default());
        assert_eq!(listed(Some("FULL=1&unknown=x&unknown=y&batch=true")).unwrap(), ListQuery::default());
        let query = "full&limit=4294967295&offset=5&newer=1.239&older=1e3&sort=index&ids=a";
        let expected = ListQuery {
            ids: RecordId::new("a").map(|id| vec![id]),
            newer: Some(Timestamp::from_hundredths(123)),
            older: Some(Timestamp::from_hundredths(100_000)),
            full: true,
            limit: Some(u32::MAX),
            offset: Offset::parse("5"),
            sort: Sort::Index,
        };
        assert_eq!(listed(Some(query)).unwrap(), expected);
        for query in [
            "limit=",
            "limit=-1",
            "limit=1.5",
            "limit=99999999999",
            "newer=",
            "older=nan",
            "sort=",
            "sort=NEWEST",
            "sort=newest&sort=newest",
            "offset=",
            "offset=-1",
            "ids=%C3%A9",
            "ids=%FF",
            "newer=-1",
        ] {
            let failure = listed(Some(query)).unwrap_err();
            assert_eq!((failure.status.as_u16(), failure.code.map(|code| code as u8)), (400, Some(0)), "{query}");
        }
    }

    #[test]
    fn ids_are_a_list() {
        let some = |ids: &[&str]| Some(Some(ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>()));
        assert_eq!(ids_of("ids=a,,c,"), some(&["a", "c"]));
        assert_eq!(ids_of("ids=%20a%20,+c"), some(&["a", "c"]));
        assert_eq!(ids_of("ids=c,a,c"), some(&["c", "a"]));
        assert_eq!(ids_of("ids=a%2Cb"), some(&["a", "b"]));
        assert_eq!(ids_of("ids="), Some(None));
        assert_eq!(ids_of("ids=,%20,"), Some(None));
        let many = |count: usize| ids_of(&format!("ids={}", (0..count).map(|n| format!("{n},")).collect::<String>()));
        assert!(many(100).is_some() && many(101).is_none());
        assert_eq!(ids_of(&format!("ids={}", "x".repeat(65))), None);
    }

    #[test]
    fn batches() {
        let of = |query: &str| batch(Some(query)).ok();
        let id = BatchId::parse("0123456789abcdef").unwrap();
        assert_eq!(batch(None).unwrap(), Batch::None);
        assert_eq!(of("batch=true"), Some(Batch::Begin));
        assert_eq!(of("batch="), Some(Batch::Begin));
        assert_eq!(of("batch"), Some(Batch::Begin));
        assert_eq!(of("batch=TRUE&commit=True"), Some(Batch::None));
        assert_eq!(of("batch=0123456789abcdef"), Some(Batch::Append(id)));
        assert_eq!(of("batch=%30123456789abcdef&commit=true"), Some(Batch::Commit(id)));
        for query in ["commit=true", "batch=true&commit=1", "batch=a", "batch=false&commit=", "batch=true&batch=true"] {
            assert_eq!(of(query), None, "{query}");
        }
    }

    proptest! {
        #[test]
        fn any_query_is_taken(query in "((ids|newer|limit|sort|batch|commit|offset)?=?[a-z0-9,.%+ &-]{0,9}){0,4}|.{0,40}") {
            if let Ok(ListQuery { ids: Some(ids), .. }) = listed(Some(&query)) {
                prop_assert!((1..=ListQuery::IDS_MAX).contains(&ids.len()));
            }
            let _ = batch(Some(&query));
        }
    }
}
