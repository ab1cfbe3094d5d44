//! For tests: documents by the value of one of their members.
//!
//! A design document says `{"member_indexes": ["name"]}`. An entry is sorted by the value's JSON text, up to
//! [`VALUE_BYTES_MAX`]. A second key holds the document's value in the index, from which the maintainer finds the old
//! entry. The name [`CHANNELS`] indexes the channels of the winner's verdict. With [`PREPARED`] before a name the value
//! is prepared before the transaction, in upper case.
#![cfg(feature = "test-hooks")]
#![allow(clippy::unwrap_used, reason = "for tests alone")]

use std::collections::HashMap;
use std::pin::Pin;

use flatbed_databases::document::body;
use flatbed_databases::document::edit::Edit;
use flatbed_databases::document::verdict::Verdict;
use flatbed_databases::server::Inner;
use flatbed_flatten::json::{Limits, Value, parse};
use flatbed_revtree::DocumentId;
use flatbed_store::error::{Error, NotJudged, Refusal, Result};
use flatbed_store::keys::{IndexPart, RowPlaces, SortPlace};
use flatbed_store::proto;
use flatbed_store::records::{BodyPlace, Info, RevisionRecord};
use flatbed_store::transaction::Quiet;
use foundationdb::future::FdbSlice;
use foundationdb::options::MutationType;
use futures_util::future::BoxFuture;

use crate::index::kinds::Kind;
use crate::index::maintainers::{Change, IndexContext, IndexMaintainer, PendingWork, PurgedDocument, is_of_document};
use crate::index::prepare::Preparations;

const VALUE_BYTES_MAX: usize = 200;

/// The level of the nodes that count entries by their first byte.
const LEVEL: u64 = 1;

/// No member has this name.
const CHANNELS: &[u8] = b"@channels";

/// No member's name begins with this byte.
const PREPARED: u8 = b'^';

pub struct Member;

fn is_passed_over(definition: &[u8], id: &str) -> bool {
    definition.starts_with(&[PREPARED]) && DocumentId::of(id).is_design()
}

fn channels_of(verdict: Verdict) -> Option<Vec<u8>> {
    let all: Vec<String> = verdict.channels.into_iter().collect();
    (!all.is_empty()).then(|| all.join(",").into_bytes())
}

fn value_of(definition: &[u8], members: &[u8]) -> Option<Vec<u8>> {
    let text = [b"{", members, b"}"].concat();
    value_in(definition, &parse(&text, &Limits::default()).unwrap())
}

fn value_in(definition: &[u8], body: &Value<'_>) -> Option<Vec<u8>> {
    let name = definition.strip_prefix(&[PREPARED]).unwrap_or(definition);
    let mut text = match body.get(std::str::from_utf8(name).unwrap())? {
        Value::String(text) | Value::Number(text) => text.as_bytes().to_vec(),
        _ => return None,
    };
    text.truncate(VALUE_BYTES_MAX);
    if name.len() < definition.len() {
        text.make_ascii_uppercase();
    }
    Some(text)
}

impl Kind for Member {
    fn name(&self) -> &'static str {
        "member"
    }

    fn defined_by(&self, body: &Value<'_>, _: bool, _: &str, _: &dyn Fn() -> bool) -> Vec<Vec<u8>> {
        let Some(Value::Array(names)) = body.get("member_indexes") else { return Vec::new() };
        let name = |name: &Value<'_>| match name {
            Value::String(name) => Some(name.as_bytes().to_vec()),
            _ => None,
        };
        names.iter().filter_map(name).collect()
    }

    fn reserve(&self, _: &proto::Index, id: &str, _: Option<&Edit<'_>>) -> u64 {
        // The old entry and the new one, and the document's value twice.
        4 * (id.len() + 2 * VALUE_BYTES_MAX + 100) as u64
    }

    fn prepares(&self, index: &proto::Index) -> bool {
        index.definition.starts_with(&[PREPARED])
    }

    fn prepare<'a>(
        &'a self,
        _: &'a Inner,
        index: &'a proto::Index,
        _: &'a str,
        body: &'a Value<'_>,
    ) -> BoxFuture<'a, Result<Vec<u8>>> {
        // The first byte says whether a value follows.
        let value = value_in(&index.definition, body).map_or(vec![0], |value| [&[1], &value[..]].concat());
        let fails = index.definition.ends_with(b"fails");
        Box::pin(async move {
            tokio::task::yield_now().await;
            if fails {
                return Err(Refusal::not_judged(NotJudged::Busy, "no room for an index").into());
            }
            Ok(value)
        })
    }

    fn maintainer(&self, index: &proto::Index, preparations: &Preparations) -> Box<dyn IndexMaintainer> {
        Box::new(Maintainer { index: index.clone(), old: HashMap::new(), preparations: preparations.clone() })
    }

    fn check_document<'a>(
        &'a self,
        within: &'a IndexContext<'a>,
        index: &'a proto::Index,
        id: &'a str,
        info: &'a Info,
        is_built: bool,
    ) -> BoxFuture<'a, Result<Option<String>>> {
        Box::pin(async move {
            let (trx, keys) = (within.trx, &within.instance.keys);
            let found = trx.get(&keys.index_of_document(index.number, id), true).await?.map(|found| found.to_vec());
            let range = match &info.place {
                BodyPlace::Rows => keys.document(id).body_rows(),
                BodyPlace::Blob(blob_id) => keys.blob_rows(blob_id),
            };
            let rows = body::read_rows(trx, range).await?;
            let members = body::to_json(within.inner, within.instance, &rows).await?;
            let expected = if info.deleted || is_passed_over(&index.definition, id) {
                None
            } else if index.definition == CHANNELS {
                let record = trx.get(&keys.document(id).revision(&info.winner), true).await?;
                let record = record.map(|record| RevisionRecord::decode(&record)).transpose()?;
                channels_of(Verdict::decode(record.and_then(|record| record.verdict)))
            } else {
                value_of(&index.definition, &members)
            };
            let entry = match &found {
                Some(found) => trx.get(&keys.index_entry(index.number, RowPlaces::default(), found, id), true).await?,
                None => None,
            };
            if found.is_some() != entry.is_some() || found != expected && (is_built || found.is_some()) {
                let number = index.number;
                return Ok(Some(format!(
                    "in index {number} it has {found:?} and its entry is there: {}, it should have {expected:?}",
                    entry.is_some()
                )));
            }
            Ok(None)
        })
    }

    fn check_entry<'a>(
        &'a self,
        within: &'a IndexContext<'a>,
        index: &'a proto::Index,
        part: IndexPart,
        value: &'a [u8],
    ) -> BoxFuture<'a, Result<Option<String>>> {
        Box::pin(async move {
            let (trx, instance) = (within.trx, within.instance);
            let id = match part {
                IndexPart::Progress | IndexPart::Later(_) => return Ok(None),
                IndexPart::Change(_) => return Ok(Some("it has no entries in the order of commits".to_owned())),
                IndexPart::OfDocument(id) => id,
                IndexPart::Node(level, from) => {
                    let pages =
                        body::begin_read(trx, instance.keys.index(index.number)).finish(trx, 10_000_000).await?;
                    let mut counted = 0_i64;
                    for row in pages.iter().flat_map(|page| page.iter()) {
                        let (_, part) = instance.keys.split_index(row.key())?;
                        counted +=
                            i64::from(matches!(part, IndexPart::Entry(found) if begin_of(&found.element) == from));
                    }
                    let is_right = level == LEVEL && counted > 0 && value == counted.to_le_bytes();
                    return Ok((!is_right).then(|| format!("there are {counted} of these")));
                }
                IndexPart::Entry(SortPlace { element: value, id, .. }) => {
                    let own = trx.get(&instance.keys.index_of_document(index.number, &id), true).await?;
                    let node = instance.keys.index_node(index.number, LEVEL, begin_of(&value));
                    if trx.get(&node, true).await?.is_none() {
                        return Ok(Some("no node counts it".to_owned()));
                    }
                    if own.as_deref() != Some(&value) {
                        return Ok(Some(format!("document {id:?} does not know of it")));
                    }
                    id
                }
            };
            is_of_document(trx, instance, &id, |info| !info.deleted).await
        })
    }
}

type PendingValue = Pin<Box<dyn Future<Output = foundationdb::FdbResult<Option<FdbSlice>>> + Send + Sync>>;

struct Maintainer {
    index: proto::Index,
    /// The documents' old values, read before anything is awaited.
    old: HashMap<String, PendingValue>,
    preparations: Preparations,
}

/// Returns the name of an entry's node.
fn begin_of(value: &[u8]) -> &[u8] {
    value.get(..1).unwrap_or_default()
}

impl Maintainer {
    fn take(&mut self, within: &IndexContext<'_>, id: &str) -> PendingValue {
        self.begin(within, id);
        self.old.remove(id).unwrap()
    }

    fn replace(&self, within: &IndexContext<'_>, id: &str, old: Option<&[u8]>, new: Option<&[u8]>) -> Result<()> {
        let (keys, number, quiet) = (&within.instance.keys, self.index.number, Quiet(within.trx));
        if let Some(old) = old.filter(|old| Some(*old) != new) {
            quiet.clear(&keys.index_entry(number, RowPlaces::default(), old, id))?;
        }
        for (value, delta) in [(old, -1_i64), (new, 1)].into_iter().filter(|_| old != new) {
            if let Some(value) = value {
                let node = keys.index_node(number, LEVEL, begin_of(value));
                quiet.atomic(&node, &delta.to_le_bytes(), MutationType::Add)?;
                quiet.atomic(&node, &0_i64.to_le_bytes(), MutationType::CompareAndClear)?;
            }
        }
        match new {
            Some(new) => {
                quiet.set(&keys.index_entry(number, RowPlaces::default(), new, id), b"")?;
                quiet.set(&keys.index_of_document(number, id), new)
            }
            None if old.is_some() => quiet.clear(&keys.index_of_document(number, id)),
            None => Ok(()),
        }
    }
}

impl IndexMaintainer for Maintainer {
    fn begin(&mut self, within: &IndexContext<'_>, id: &str) {
        let key = within.instance.keys.index_of_document(self.index.number, id);
        self.old.entry(id.to_owned()).or_insert_with(|| Box::pin(within.trx.get(&key, true)));
    }

    fn wants_old_body(&self) -> bool {
        true
    }

    fn document<'a>(&'a mut self, within: &'a IndexContext<'a>, change: &'a Change<'a>) -> Result<PendingWork<'a>> {
        let old = self.take(within, change.id);
        Ok(Some(Box::pin(async move {
            let old = old.await?;
            let definition = &self.index.definition;
            // The old value of an entered document follows from its old winner's body.
            if let (Some(found), Some(info)) = (&old, change.old.filter(|_| definition != CHANNELS)) {
                let before = change.old_body(within).await?.filter(|_| !info.deleted);
                let before = before.and_then(|before| value_of(definition, &before));
                if before.as_deref() != Some(&found[..]) {
                    return Err(Error::Corrupt(format!("{}: {before:?} in the old body, {:?}", change.id, &found[..])));
                }
            }
            let new = if change.new.deleted || is_passed_over(definition, change.id) {
                None
            } else if definition == CHANNELS {
                channels_of(change.verdict(within).await?)
            } else if definition.starts_with(&[PREPARED]) {
                let Some(made) = self.preparations.get(self.index.number, within, change).await? else { return Ok(()) };
                made.strip_prefix(&[1]).map(<[u8]>::to_vec)
            } else {
                value_of(definition, &change.new_body(within).await?)
            };
            self.replace(within, change.id, old.as_deref(), new.as_deref())
        })))
    }

    fn purged<'a>(
        &'a mut self,
        within: &'a IndexContext<'a>,
        purged: &'a PurgedDocument<'a>,
    ) -> Result<PendingWork<'a>> {
        let old = self.take(within, purged.id);
        Ok(Some(Box::pin(async move {
            let old = old.await?;
            self.replace(within, purged.id, old.as_deref(), None)
        })))
    }
}
