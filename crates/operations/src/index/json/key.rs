//! Keys of documents in json indexes, made from the rows of their bodies.

use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_collate::SortKey;
use flatbed_collate::label::LABEL_BYTES_MAX;
use flatbed_databases::document::body::Rows;
use flatbed_databases::field_names::{Fields, FieldsView};
use flatbed_databases::instance::Instance;
use flatbed_flatten::json::{self, Value};
use flatbed_flatten::path::FIRST_FIELD_ID;
use flatbed_flatten::{DecodeError, json_len};
use flatbed_mango::{Index, IndexReader, Interrupts, MatchInterrupted, Progress, RowsError, slice_steps};
use flatbed_revtree::{DocumentId, RevId};
use flatbed_store::error::{Error, Result};
use flatbed_store::proto;
use flatbed_store::records::Info;
use prost::Message;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::index::apart::{ASKED_WITHIN, add, digest_in, run_in_slices};
use crate::index::json::definition::collation;
use crate::index::json::entry;
use crate::index::maintainers::IndexContext;

#[derive(Debug, Clone, PartialEq)]
pub struct DocumentKey {
    /// The array of the values of the index's fields.
    pub values: Value<'static>,
    pub sort_key: SortKey,
    /// The time at which the document expires; 0: never.
    pub ends_at_ms: u64,
}

impl DocumentKey {
    pub fn new(values: Vec<Value<'static>>) -> Result<DocumentKey> {
        let values = Value::Array(values);
        let sort_key = collation()?.sort_key(&values);
        Ok(DocumentKey { values, sort_key, ends_at_ms: 0 })
    }

    #[must_use]
    pub fn of(self, info: &Info) -> DocumentKey {
        DocumentKey { ends_at_ms: info.ends_at_ms(), ..self }
    }

    /// Returns the approximate size of its entry and its label.
    pub fn bytes(&self) -> u64 {
        let form_bytes = self.sort_key.bytes().len();
        let label_bytes = if self.sort_key.is_cut() { LABEL_BYTES_MAX * 2 + form_bytes * 2 } else { 0 };
        (form_bytes + label_bytes) as u64 + entry::value_bytes(json_len(&self.values) as u64)
    }

    pub fn entry_value(&self) -> Vec<u8> {
        entry::encode(&self.values, self.ends_at_ms)
    }
}

#[derive(Clone, Copy)]
pub enum Body<'a> {
    Read(&'a Rows),
    Prepared(&'a [(Vec<u8>, Vec<u8>)]),
}

pub enum OwnedBody {
    Read(Rows),
    Prepared(Vec<(Vec<u8>, Vec<u8>)>),
}

impl Body<'_> {
    pub fn add_to(self, digest: &mut Sha256) {
        let mut row = |path: &[u8], value: &[u8]| {
            add(digest, path);
            add(digest, value);
        };
        match self {
            Body::Read(rows) => rows.iter().for_each(|(path, value)| row(path, value)),
            Body::Prepared(rows) => rows.iter().for_each(|(path, value)| row(path, value)),
        }
    }

    pub fn bytes(self) -> usize {
        match self {
            Body::Read(rows) => rows.iter().map(|(path, value)| path.len() + value.len()).sum(),
            Body::Prepared(rows) => rows.iter().map(|(path, value)| path.len() + value.len()).sum(),
        }
    }

    pub fn into_owned(self) -> OwnedBody {
        match self {
            Body::Read(rows) => OwnedBody::Read(rows.clone()),
            Body::Prepared(rows) => OwnedBody::Prepared(rows.to_vec()),
        }
    }
}

impl OwnedBody {
    pub fn body(&self) -> Body<'_> {
        match self {
            OwnedBody::Read(rows) => Body::Read(rows),
            OwnedBody::Prepared(rows) => Body::Prepared(rows),
        }
    }
}

pub fn special(id: &str, rev: &RevId) -> Value<'static> {
    let text = |text: String| Value::String(text.into());
    Value::Object(vec![("_id".into(), text(id.to_owned())), ("_rev".into(), text(rev.to_string()))])
}

/// The longest time between two yields to the runtime.
const TURN: Duration = Duration::from_millis(2);

/// Yields to the runtime if more than [`TURN`] has passed since `began`: a document may be matched against 1,000
/// filters in sequence.
pub async fn yield_if_long(clock: &Clock, began: Instant) {
    if clock.since(began) > TURN {
        tokio::task::yield_now().await;
    }
}

/// The values of a document's key. `None`: the document is not in the index.
type Values = std::result::Result<Option<Vec<Value<'static>>>, RowsError>;

#[derive(Default)]
pub struct KeyReader {
    /// The reader, and the number of field names that it was made with.
    reader: Option<(usize, IndexReader)>,
}

impl KeyReader {
    fn reader(&mut self, index: &Index, names: &FieldsView<'_>) -> &IndexReader {
        let (len, reader) = self.reader.get_or_insert_with(|| (names.len(), index.reader(names)));
        if *len != names.len() && reader.lacks_ids() {
            (*len, *reader) = (names.len(), index.reader(names));
        }
        reader
    }

    /// See [`key_of`].
    pub async fn key_of(
        &mut self,
        within: &IndexContext<'_>,
        index: &Index,
        of: (&str, &RevId),
        body: Body<'_>,
    ) -> Result<Option<DocumentKey>> {
        let IndexContext { inner, instance, .. } = *within;
        if DocumentId::of(of.0).is_design() {
            return Ok(None);
        }
        let began = inner.clock.now();
        let values = match self.values(within, index, of, body).await? {
            Err(RowsError::Decode(DecodeError::UnknownFieldId(_))) => {
                Box::pin(instance.reload_names(inner)).await?;
                self.values(within, index, of, body).await?
            }
            done => done,
        };
        yield_if_long(&inner.clock, began).await;
        match values {
            Ok(Some(values)) => DocumentKey::new(values).map(Some),
            // The document is not in the index. A filter that exhausts its steps decides nothing, on every attempt.
            Ok(None) | Err(RowsError::Exhausted(_)) => Ok(None),
            Err(RowsError::Decode(error)) => {
                Err(Error::Corrupt(format!("the body of {:?} in {}: {error}", of.0, instance.name)))
            }
        }
    }

    /// Returns the values under the known names. A long computation takes a turn.
    async fn values(
        &mut self,
        within: &IndexContext<'_>,
        index: &Index,
        of: (&str, &RevId),
        body: Body<'_>,
    ) -> Result<Values> {
        let instance = within.instance;
        // Long matches check `stop`.
        match self.at_once(&instance.fields, index, of, body) {
            Err(RowsError::Exhausted(MatchInterrupted::Stopped)) => {}
            done => return Ok(done),
        }
        let mut digest = digest_in(instance, "json");
        let mut definition = Vec::new();
        json::write(&index.to_json(), &mut definition);
        add(&mut digest, &definition);
        add(&mut digest, of.0.as_bytes());
        add(&mut digest, of.1.to_string().as_bytes());
        // Later names may still occur in bodies.
        let names = if lacks_names(instance, index) { instance.fields.len() as u64 } else { 0 };
        digest.update(names.to_be_bytes());
        body.add_to(&mut digest);
        let (fields, index, id, rev, body) =
            (instance.fields.clone(), index.clone(), of.0.to_owned(), of.1.clone(), body.into_owned());
        let (steps, mut progress) = (slice_steps(body.body().bytes()), Progress::default());
        let work = move |has_waiters: &dyn Fn() -> bool| {
            let interrupts = Interrupts { stop: &|| false, pause: has_waiters, steps };
            let of = (id.as_str(), &rev);
            match KeyReader::default().with_cache(&fields, &index, of, body.body(), &mut progress, interrupts) {
                Err(RowsError::Exhausted(MatchInterrupted::Paused)) => None,
                done => Some(done),
            }
        };
        run_in_slices(within, digest, ASKED_WITHIN, work).await
    }

    /// Returns the values if that takes less than 10,000 steps.
    fn at_once(&mut self, fields: &Fields, index: &Index, of: (&str, &RevId), body: Body<'_>) -> Values {
        let interrupts = Interrupts { stop: &|| true, pause: &|| false, steps: usize::MAX };
        self.with_cache(fields, index, of, body, &mut Progress::default(), interrupts)
    }

    fn with_cache(
        &mut self,
        fields: &Fields,
        index: &Index,
        (id, rev): (&str, &RevId),
        body: Body<'_>,
        progress: &mut Progress,
        interrupts: Interrupts<'_>,
    ) -> Values {
        let names = fields.view();
        let (reader, special) = (self.reader(index, &names), || special(id, rev));
        match body {
            Body::Read(rows) => index.key_of_rows(reader, rows.iter(), names, special, progress, interrupts),
            Body::Prepared(rows) => {
                let rows = rows.iter().map(|(path, value)| (path.as_slice(), value.as_slice()));
                index.key_of_rows(reader, rows, names, special, progress, interrupts)
            }
        }
    }
}

/// Returns the key of a live document, from its body's rows; `None`: it is not in the index.
pub async fn key_of(
    within: &IndexContext<'_>,
    index: &Index,
    of: (&str, &RevId),
    body: Body<'_>,
) -> Result<Option<DocumentKey>> {
    KeyReader::default().key_of(within, index, of, body).await
}

/// Returns whether a field of the index has a name without an id in this process. Bodies that other processes wrote may
/// still have it.
pub fn lacks_names(instance: &Instance, index: &Index) -> bool {
    index.reader(&instance.fields.view()).lacks_ids()
}

/// Loads the names that this process lacks, up to the database's count.
pub async fn catch_up(within: &IndexContext<'_>, next_field_id: Option<&[u8]>) -> Result<()> {
    let IndexContext { inner, instance, .. } = *within;
    let next = next_field_id.map(|bytes| proto::FieldId::decode(bytes).map(|next| next.id)).transpose()?;
    if next.is_some_and(|next| next > FIRST_FIELD_ID + instance.fields.len() as u64) {
        Box::pin(instance.reload_names(inner)).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use flatbed_clock::ManualClock;
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_filter_that_takes_long_lets_others_go_on() {
        let manual = ManualClock::new();
        let (clock, began) = (manual.clock(), manual.clock().now());
        assert!(yield_if_long(&clock, began).now_or_never().is_some());
        manual.advance(TURN + Duration::from_millis(1));
        assert!(yield_if_long(&clock, began).now_or_never().is_none());
    }
}
