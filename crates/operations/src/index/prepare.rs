//! Runs functions for indexes before the transaction that enters a document.
//!
//! A function takes longer than a transaction may wait, and is deterministic. It therefore runs outside of the
//! transaction, on the edit's body, and the maintainer uses its result. The results belong to a list of indexes. Every
//! write has the record with that list as a read conflict, and runs the functions again if it finds another list.
//!
//! Some winners are known only in the transaction: a leaf that wins after a deletion or purge, or a document that a
//! builder meets. The maintainer then notes what is missing, the attempt ends, and the missing results are prepared
//! before the next attempt reads anything. Revisions are immutable, so the results stay valid.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_databases::document::edit::Edit;
use flatbed_databases::instance::Instance;
use flatbed_databases::limits::Limit;
use flatbed_databases::server::Inner;
use flatbed_flatten::json::{Limits, Value, parse};
use flatbed_revtree::{DocumentId, RevId};
use flatbed_store::error::{Error, NotJudged, Refusal, Result};
use flatbed_store::proto;
use foundationdb::FdbError;
use futures_util::future::BoxFuture;
use futures_util::stream::{StreamExt, TryStreamExt, iter};

use crate::index::kinds::{DefinedIndex, with_kinds};
use crate::index::maintainers::{Change, IndexContext};

const AT_ONCE: usize = 8;

/// The timeout of a kind for one document.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The approximate limit of prepared bytes for one transaction; one document may exceed it. Tests have a small one.
const PREPARED_BYTES_MAX: Limit<usize> = Limit::new(500_000, 500);

/// The largest result of one index for one document.
const ANSWER_BYTES_MAX: usize = 400_000;

/// FoundationDB's error for an expired read version; a reader begins again.
const TRANSACTION_TOO_OLD: i32 = 1007;

/// The results for one document, by index number.
type PreparedValues = Vec<(u64, Arc<[u8]>)>;

/// A document, and its existing revision or `None` for the edit's.
type PreparedRevision = (String, Option<RevId>);

/// The preparations for the transactions of one operation. Clones share them.
#[derive(Clone, Default)]
pub struct Preparations(Arc<PreparationState>);

#[derive(Default)]
struct PreparationState {
    indexes: Vec<DefinedIndex>,
    known: Mutex<KnownValues>,
}

#[derive(Default)]
struct KnownValues {
    made: HashMap<PreparedRevision, PreparedValues>,
    edits: usize,
    /// With the text of each body's members.
    lacking: Vec<(PreparedRevision, Vec<u8>)>,
}

fn preparing(instance: &Instance) -> impl Iterator<Item = DefinedIndex> {
    let those = with_kinds(instance).filter(|(index, kind)| kind.prepares(index));
    those.map(|(index, kind)| DefinedIndex { index: index.clone(), kind })
}

impl Preparations {
    pub fn of(instance: &Instance) -> Preparations {
        if instance.record.indexes.is_empty() {
            return Preparations::default();
        }
        Preparations(Arc::new(PreparationState { indexes: preparing(instance).collect(), known: Mutex::default() }))
    }

    pub fn count(&self) -> usize {
        if self.are_wanted() { self.known().edits } else { usize::MAX }
    }

    pub fn are_wanted(&self) -> bool {
        !self.0.indexes.is_empty()
    }

    /// Prepares edits in order, within the limits, and at least one.
    pub async fn edits(&self, inner: &Inner, edits: &[&Edit<'_>]) -> Result<()> {
        let (mut bytes, mut count) = (0, 0);
        for some in edits.chunks(AT_ONCE) {
            if bytes >= PREPARED_BYTES_MAX.get() {
                break;
            }
            // A function that fails must not prevent its own repair.
            let alive = some.iter().filter(|edit| !edit.deleted && !DocumentId::of(&edit.id).is_design());
            let documents = alive.map(|edit| ((edit.id.to_string(), None), &edit.body)).collect();
            self.make(inner, documents).await?;
            let known = self.known();
            for edit in some {
                if bytes >= PREPARED_BYTES_MAX.get() {
                    break;
                }
                let made = known.made.get(&(edit.id.to_string(), None)).into_iter().flatten();
                bytes += made.map(|(_, answer)| answer.len()).sum::<usize>();
                count += 1;
            }
        }
        self.known().edits = count;
        Ok(())
    }

    /// Returns whether the preparations match the database's current list of indexes.
    pub fn are_current(&self, instance: &Instance) -> bool {
        if self.0.indexes.is_empty() && instance.record.indexes.is_empty() {
            return true;
        }
        // Numbers alone are not enough: the name may belong to another database now.
        let is_same = |now: &proto::Index, then: &proto::Index| {
            (now.number, &now.kind, &now.definition) == (then.number, &then.kind, &then.definition)
        };
        let mut then = self.0.indexes.iter();
        let are_same = preparing(instance).all(|now| then.next().is_some_and(|then| is_same(&now.index, &then.index)));
        are_same && then.next().is_none()
    }

    /// Returns the result for an index of the new winner, which is neither a tombstone nor a design document. `None`:
    /// it is not prepared yet, and the attempt will end, so the maintainer does nothing.
    pub async fn get(&self, number: u64, within: &IndexContext<'_>, change: &Change<'_>) -> Result<Option<Arc<[u8]>>> {
        let rev = change.brought.is_none().then(|| change.new.winner.clone());
        let of = (change.id.to_owned(), rev);
        if let Some(made) = self.known().made.get(&of) {
            let made = made.iter().find(|(other, _)| *other == number);
            return made.map(|(_, made)| Some(made.clone())).ok_or_else(too_old);
        }
        if !self.known().lacking.iter().any(|(other, _)| *other == of) {
            let text = [b"{", change.new_body(within).await?.as_slice(), b"}"].concat();
            self.known().lacking.push((of, text));
        }
        Ok(None)
    }

    /// Fails if a result was missing: the attempt is not committed, and tried again.
    pub fn check(&self) -> Result<()> {
        if self.lacks_nothing() { Ok(()) } else { Err(too_old()) }
    }

    pub fn lacks_nothing(&self) -> bool {
        self.known().lacking.is_empty()
    }

    /// Prepares the missing results. The caller must not have read anything in the transaction, which has no read
    /// version until then.
    pub async fn make_up(&self, inner: &Inner) -> Result<()> {
        if self.0.indexes.is_empty() {
            return Ok(());
        }
        // Boxed, as few writes need it.
        Box::pin(async move {
            let lacking = std::mem::take(&mut self.known().lacking);
            // Unparsable bodies were refused when they arrived.
            let parsed = lacking.iter().filter_map(|(of, text)| Some((of, parse(text, &Limits::default()).ok()?)));
            let parsed: Vec<_> = parsed.collect();
            let documents = parsed.iter().map(|(of, body)| ((*of).clone(), body)).collect();
            self.make(inner, documents).await
        })
        .await
    }

    async fn make(&self, inner: &Inner, documents: Vec<(PreparedRevision, &Value<'_>)>) -> Result<()> {
        let one = |(of, body)| async move {
            let made = self.answers(inner, &of, body).await?;
            Ok((of, made))
        };
        let asked: Vec<BoxFuture<'_, Result<(PreparedRevision, PreparedValues)>>> =
            documents.into_iter().map(|document| Box::pin(one(document)) as _).collect();
        let all: Vec<(PreparedRevision, PreparedValues)> = iter(asked).buffer_unordered(AT_ONCE).try_collect().await?;
        self.known().made.extend(all);
        Ok(())
    }

    async fn answers(&self, inner: &Inner, (id, _): &PreparedRevision, body: &Value<'_>) -> Result<PreparedValues> {
        let mut made = PreparedValues::new();
        for DefinedIndex { index, kind } in &self.0.indexes {
            let answer = inner.clock.timeout(ANSWER_MAX, kind.prepare(inner, index, id, body)).await;
            let answer = answer.map_err(|_| refused(NotJudged::TimedOut, "an index took too long"))??;
            if answer.len() > ANSWER_BYTES_MAX {
                return Err(refused(NotJudged::Internal, "an index made too much of a document"));
            }
            made.push((index.number, answer.into()));
        }
        Ok(made)
    }

    fn known(&self) -> MutexGuard<'_, KnownValues> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn too_old() -> Error {
    Error::Storage(FdbError::from_code(TRANSACTION_TOO_OLD))
}

fn refused(because: NotJudged, reason: &str) -> Error {
    Refusal::not_judged(because, reason).into()
}
