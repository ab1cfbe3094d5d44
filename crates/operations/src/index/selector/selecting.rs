//! Maintains selector indexes in the transactions that change documents.
//!
//! An entry is stored at its document's own sequence, which the info has. Old entries are therefore cleared without a
//! read, and need no further rows.

use std::pin::Pin;
use std::sync::Arc;

use flatbed_databases::field_names::{Fields, FieldsView};
use flatbed_databases::instance::Instance;
use flatbed_flatten::DecodeError;
use flatbed_flatten::json::{self, Value};
use flatbed_mango::{Interrupts, MatchInterrupted, Progress, RowsError, SelectorReader, slice_steps};
use flatbed_store::error::{Error, Result};
use flatbed_store::proto;
use flatbed_store::records::{Info, revision_message};
use flatbed_store::seq::Seq;
use flatbed_store::transaction::Quiet;
use foundationdb::future::FdbSlice;
use prost::Message;
use sha2::Digest as _;

use crate::index::apart::{ASKED_WITHIN, add, digest_in, run_in_slices};
use crate::index::json::key::{Body, catch_up, special, yield_if_long};
use crate::index::kinds::indexes_of;
use crate::index::maintainers::{Change, IndexContext, IndexMaintainer, NewRows, PendingWork, PurgedDocument};
use crate::index::selector::definition::{CompiledSelector, compiled};
use crate::index::selector::kind::NAME;

type NextId = Pin<Box<dyn Future<Output = foundationdb::FdbResult<Option<FdbSlice>>> + Send + Sync>>;

/// Returns the value of a document's entry: that of by-seq without the conflicts.
pub fn entry_of_document(id: &str, info: &Info) -> Vec<u8> {
    let entry = proto::SequenceEntry {
        document_id: id.to_owned(),
        winner: Some(revision_message(&info.winner)),
        deleted: info.deleted,
        leaf_count: info.leaf_count,
        channels: info.routed.channels.clone(),
        expires_at_ms: info.ends_at_ms(),
        ..proto::SequenceEntry::default()
    };
    entry.encode_to_vec()
}

struct IndexSelector {
    number: u64,
    /// An index that cannot be maintained refuses the write with this error.
    index: Result<Arc<CompiledSelector>>,
    /// The reader, and the number of field names that it was made with.
    reader: Option<(usize, SelectorReader)>,
}

impl IndexSelector {
    fn new(index: &proto::Index) -> IndexSelector {
        IndexSelector { number: index.number, index: compiled(index), reader: None }
    }

    fn lacks_names(&self, instance: &Instance) -> bool {
        let lacks = |index: &Arc<CompiledSelector>| index.selector.reader(&instance.fields.view()).lacks_ids();
        self.index.as_ref().is_ok_and(lacks)
    }

    async fn takes(&mut self, within: &IndexContext<'_>, id: &str, info: &Info, body: Body<'_>) -> Result<bool> {
        let index = self.index.clone()?;
        let (clock, began) = (&within.inner.clock, within.inner.clock.now());
        let taken = match self.matches(within, &index, id, info, body).await? {
            Err(RowsError::Decode(DecodeError::UnknownFieldId(_))) => {
                Box::pin(within.instance.reload_names(within.inner)).await?;
                self.matches(within, &index, id, info, body).await?
            }
            done => done,
        };
        yield_if_long(clock, began).await;
        match taken {
            Ok(taken) => Ok(taken),
            // A selector that exhausts its steps on a document matches never.
            Err(RowsError::Exhausted(_)) => Ok(false),
            Err(RowsError::Decode(error)) => {
                Err(Error::Corrupt(format!("the body of {id:?} in {}: {error}", within.instance.name)))
            }
        }
    }

    /// Matches a document under the known names. A long match takes a turn.
    async fn matches(
        &mut self,
        within: &IndexContext<'_>,
        index: &Arc<CompiledSelector>,
        id: &str,
        info: &Info,
        body: Body<'_>,
    ) -> Result<std::result::Result<bool, RowsError>> {
        let instance = within.instance;
        // Long matches check `stop`.
        match self.with_names(&instance.fields, index, special_of(id, info), body) {
            Err(RowsError::Exhausted(MatchInterrupted::Stopped)) => {}
            done => return Ok(done),
        }
        let mut digest = digest_in(instance, NAME);
        let mut definition = Vec::new();
        json::write(&index.selector.to_json(), &mut definition);
        add(&mut digest, &definition);
        add(&mut digest, id.as_bytes());
        add(&mut digest, info.winner.to_string().as_bytes());
        // Later names may still occur in bodies.
        let names = if self.lacks_names(instance) { instance.fields.len() as u64 } else { 0 };
        digest.update(names.to_be_bytes());
        digest.update([u8::from(info.deleted)]);
        body.add_to(&mut digest);
        let (fields, index, body) = (instance.fields.clone(), index.clone(), body.into_owned());
        let special = special_of(id, info);
        let (steps, mut progress) = (slice_steps(body.body().bytes()), Progress::default());
        let work = move |has_waiters: &dyn Fn() -> bool| {
            let names = fields.view();
            let reader = index.selector.reader(&names);
            let interrupts = Interrupts { stop: &|| false, pause: has_waiters, steps };
            match matches(&index, &reader, names, &special, body.body(), &mut progress, interrupts) {
                Err(RowsError::Exhausted(MatchInterrupted::Paused)) => None,
                done => Some(done),
            }
        };
        run_in_slices(within, digest, ASKED_WITHIN, work).await
    }

    fn with_names(
        &mut self,
        fields: &Fields,
        index: &CompiledSelector,
        special: impl FnOnce() -> Value<'static>,
        body: Body<'_>,
    ) -> std::result::Result<bool, RowsError> {
        let names = fields.view();
        let (len, reader) = self.reader.get_or_insert_with(|| (names.len(), index.selector.reader(&names)));
        if *len != names.len() && reader.lacks_ids() {
            (*len, *reader) = (names.len(), index.selector.reader(&names));
        }
        let at_once = Interrupts { stop: &|| true, pause: &|| false, steps: usize::MAX };
        matches(index, reader, names, special, body, &mut Progress::default(), at_once)
    }
}

/// Returns a function that builds the special members of a document (`_id`, `_rev`, `_deleted`).
fn special_of(id: &str, info: &Info) -> impl Fn() -> Value<'static> + Send + use<> {
    let (id, rev, deleted) = (id.to_owned(), info.winner.clone(), info.deleted);
    move || {
        let mut special = special(&id, &rev);
        if let (true, Value::Object(members)) = (deleted, &mut special) {
            members.push(("_deleted".into(), Value::Bool(true)));
        }
        special
    }
}

fn matches(
    index: &CompiledSelector,
    reader: &SelectorReader,
    names: FieldsView<'_>,
    special: impl FnOnce() -> Value<'static>,
    body: Body<'_>,
    progress: &mut Progress,
    interrupts: Interrupts<'_>,
) -> std::result::Result<bool, RowsError> {
    match body {
        Body::Read(rows) => index.selector.matches_rows(reader, rows.iter(), names, special, progress, interrupts),
        Body::Prepared(rows) => {
            let rows = rows.iter().map(|(path, value)| (path.as_slice(), value.as_slice()));
            index.selector.matches_rows(reader, rows, names, special, progress, interrupts)
        }
    }
}

pub struct SelectorUpdates {
    all: Vec<IndexSelector>,
    /// The number of names, read if this process may lack some.
    next_field_id: Option<NextId>,
    asked: bool,
}

impl SelectorUpdates {
    pub fn of(instance: &Instance) -> SelectorUpdates {
        let all = indexes_of(instance)
            .filter(|found| found.kind.name() == NAME)
            .map(|found| IndexSelector::new(&found.index));
        SelectorUpdates { all: all.collect(), next_field_id: None, asked: false }
    }

    pub fn of_one(index: &proto::Index) -> SelectorUpdates {
        SelectorUpdates { all: vec![IndexSelector::new(index)], next_field_id: None, asked: false }
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        self.all.iter().map(|one| one.number)
    }

    /// See [`IndexMaintainer::begin`].
    pub fn begin(&mut self, within: &IndexContext<'_>) {
        if self.all.is_empty() || std::mem::replace(&mut self.asked, true) {
            return;
        }
        if self.all.iter().any(|one| one.lacks_names(within.instance)) {
            self.next_field_id = Some(Box::pin(within.trx.get(&within.instance.keys.next_field_id(), true)));
        }
    }

    pub async fn selected(&mut self, within: &IndexContext<'_>, change: &Change<'_>) -> Result<Vec<u64>> {
        let rows = change.new_rows(within).await?;
        let body = match &rows {
            NewRows::Brought(body) => Body::Prepared(&body.rows),
            NewRows::Known(rows) => Body::Read(rows),
            NewRows::Read(rows) => Body::Read(rows),
        };
        self.taking(within, change.id, change.new, body).await
    }

    /// Like [`SelectorUpdates::selected`], for a document and its body.
    pub async fn taking(
        &mut self,
        within: &IndexContext<'_>,
        id: &str,
        info: &Info,
        body: Body<'_>,
    ) -> Result<Vec<u64>> {
        if let Some(read) = self.next_field_id.take() {
            catch_up(within, read.await?.as_deref()).await?;
        }
        let mut numbers = Vec::new();
        for one in &mut self.all {
            if one.takes(within, id, info, body).await? {
                numbers.push(one.number);
            }
        }
        Ok(numbers)
    }
}

/// Enters documents at their current sequences, for a builder.
pub struct SelectorMaintainer(SelectorUpdates);

impl SelectorMaintainer {
    pub fn new(index: &proto::Index) -> SelectorMaintainer {
        SelectorMaintainer(SelectorUpdates::of_one(index))
    }
}

impl IndexMaintainer for SelectorMaintainer {
    fn begin(&mut self, within: &IndexContext<'_>, _: &str) {
        self.0.begin(within);
    }

    fn document<'a>(&'a mut self, within: &'a IndexContext<'a>, change: &'a Change<'a>) -> Result<PendingWork<'a>> {
        Ok(Some(Box::pin(async move {
            let IndexContext { trx, instance, .. } = *within;
            let seq = Seq::new(instance.incarnation(), change.new.stamp);
            for number in self.0.selected(within, change).await? {
                let key = instance.keys.index_change(number, &seq);
                Quiet(trx).set(&key, &entry_of_document(change.id, change.new))?;
            }
            Ok(())
        })))
    }

    fn purged<'a>(&'a mut self, _: &'a IndexContext<'a>, _: &'a PurgedDocument<'a>) -> Result<PendingWork<'a>> {
        // By-seq clears the entry.
        Ok(None)
    }
}
