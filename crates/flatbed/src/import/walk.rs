//! Walks a database's changes and asks the other server which of their leaves it lacks.

use std::collections::BTreeMap;

use flatbed_client::encode_segment;
use hyper::Method;
use serde_json::Value;

use crate::import::server::{ImportError, Server};

/// The changes of a page.
const ROWS: usize = 500;

/// The longest id that servers accept, in bytes.
pub(crate) const ID_BYTES_MAX: usize = 2_048;

/// A document's leaves.
pub(crate) type Leaves = BTreeMap<String, Vec<String>>;

/// A page of changes.
pub(crate) struct ChangesPage {
    /// The leaves by document.
    pub leaves: Leaves,
    /// Ids that are too long to be asked for.
    pub too_long: Vec<String>,
}

/// The walk through the changes of a database.
pub(crate) struct Walk {
    /// The path of the database.
    database: String,
    since: String,
    is_at_end: bool,
}

impl Walk {
    pub(crate) fn new(database: &str) -> Walk {
        Walk { database: database.to_owned(), since: "0".to_owned(), is_at_end: false }
    }

    /// Returns the next page; `None` at the end.
    pub(crate) async fn page(&mut self, server: &mut Server) -> Result<Option<ChangesPage>, ImportError> {
        if self.is_at_end {
            return Ok(None);
        }
        let since = encode_segment(&self.since);
        let path = format!("{}/_changes?style=all_docs&limit={ROWS}&since={since}", self.database);
        let answer = server.get(&path).await?;
        let (page, rows, last_seq) = read(&answer).ok_or(ImportError::Answer(path))?;
        self.is_at_end = rows < ROWS || last_seq == self.since;
        self.since = last_seq;
        Ok(Some(page))
    }
}

/// Reads a page, its number of rows and its last sequence.
fn read(answer: &Value) -> Option<(ChangesPage, usize, String)> {
    let rows = answer["results"].as_array()?;
    let mut page = ChangesPage { leaves: Leaves::new(), too_long: Vec::new() };
    for row in rows {
        let id = row["id"].as_str()?;
        if id.len() > ID_BYTES_MAX {
            page.too_long.push(id.to_owned());
            continue;
        }
        // A document that was edited meanwhile, or that a cluster repeats, may occur twice.
        let leaves = page.leaves.entry(id.to_owned()).or_default();
        for leaf in row["changes"].as_array()? {
            let rev = leaf["rev"].as_str()?;
            if !leaves.iter().any(|known| known == rev) {
                leaves.push(rev.to_owned());
            }
        }
    }
    // CouchDB 1 has numbers for sequences.
    let last_seq = match answer.get("last_seq")? {
        Value::String(seq) => seq.clone(),
        seq => seq.to_string(),
    };
    Some((page, rows.len(), last_seq))
}

/// Returns the leaves of which a server does not know.
pub(crate) async fn missing(
    server: &mut Server,
    database: &str,
    leaves: &Leaves,
) -> Result<Vec<(String, String)>, ImportError> {
    if leaves.is_empty() {
        return Ok(Vec::new());
    }
    let path = format!("{database}/_revs_diff");
    let body = serde_json::to_string(leaves).map_err(|_| ImportError::Answer(path.clone()))?;
    let answer = server.json(Method::POST, &path, &body).await?;
    let documents = answer.as_object().ok_or(ImportError::Answer(path))?;
    let mut found = Vec::new();
    for (id, document) in documents {
        let missing = document["missing"].as_array().into_iter().flatten();
        found.extend(missing.filter_map(|rev| Some((id.clone(), rev.as_str()?.to_owned()))));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pages() {
        let long = "x".repeat(ID_BYTES_MAX + 1);
        let change = |id: &str, revs: &[&str]| json!({ "id": id, "changes": revs.iter().map(|rev| json!({ "rev": rev })).collect::<Vec<_>>() });
        let rows = json!([change("a", &["1-a"]), change(&long, &["1-b"]), change("a", &["1-a", "2-c"])]);
        let (page, rows, last_seq) = read(&json!({ "results": rows, "last_seq": 7 })).unwrap();
        assert_eq!((rows, last_seq.as_str(), page.too_long), (3, "7", vec![long]));
        assert_eq!(page.leaves, Leaves::from([("a".to_owned(), vec!["1-a".to_owned(), "2-c".to_owned()])]));
        assert!(read(&json!({ "results": [] })).is_none() && read(&json!({})).is_none());
    }
}
