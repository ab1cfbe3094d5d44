//! What kinds of indexes make of documents before the transaction that enters them: the answer of a function, for one.
//!
//! A function takes longer than a transaction may be held up by it, and answers the same however often it is asked. So it is
//! asked outside, of the body that an edit brings, and the maintainer finds what it said. What is made holds for a list
//! of indexes, and every write has the record that names them as a read conflict: one that finds another list asks again.
//!
//! Some winners are known only in the transaction: a leaf that comes up where another was deleted or purged, or what a
//! builder meets. Of these the maintainer notes that it lacks something, the attempt is given up, and before the next
//! one reads anything it is made up for. Revisions do not change, so it holds then.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_flatten::json::{Limits, Value, parse};
use flatbed_revtree::{DocumentId, RevId};
use foundationdb::FdbError;
use futures_util::future::BoxFuture;
use futures_util::stream::{StreamExt, TryStreamExt, iter};

use crate::document::edit::Edit;
use crate::error::{Error, NotJudged, Refusal, Result};
use crate::index::kinds::{DefinedIndex, with_kinds};
use crate::index::maintainers::{Change, Within};
use crate::instance::Instance;
use crate::layer::Inner;
use crate::store::proto;

/// Documents that are prepared at once for one transaction.
const AT_ONCE: usize = 8;

/// A kind answers within this time, of one document.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// What is prepared for one transaction takes about this much at most (one document may pass it); tests have little.
const PREPARED_BYTES_MAX: usize = if cfg!(test) { 500 } else { 500_000 };

/// What one index has of one document is no larger.
const ANSWER_BYTES_MAX: usize = 400_000;

/// FoundationDB's error for a read version that is gone: what reads begins anew.
const TRANSACTION_TOO_OLD: i32 = 1007;

/// What one document is prepared as, by the numbers of indexes.
type Made = Vec<(u64, Arc<[u8]>)>;

/// Of which revision: of a document's edit, or one that is there.
type Of = (String, Option<RevId>);

/// What is prepared for the transactions of one operation; cheap to clone, all clones are one.
#[derive(Clone, Default)]
pub(crate) struct Preparations(Arc<State>);

#[derive(Default)]
struct State {
    /// The indexes whose kinds prepare something.
    indexes: Vec<DefinedIndex>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    made: HashMap<Of, Made>,
    /// How many edits are prepared.
    edits: usize,
    /// With the text of each body's members.
    lacking: Vec<(Of, Vec<u8>)>,
}

fn preparing(instance: &Instance) -> impl Iterator<Item = DefinedIndex> {
    let those = with_kinds(instance).filter(|(index, kind)| kind.prepares(index));
    those.map(|(index, kind)| DefinedIndex { index: index.clone(), kind })
}

impl Preparations {
    /// For a database's list of indexes: nothing is prepared yet.
    pub(crate) fn of(instance: &Instance) -> Preparations {
        if instance.record.indexes.is_empty() {
            return Preparations::default();
        }
        Preparations(Arc::new(State { indexes: preparing(instance).collect(), known: Mutex::default() }))
    }

    /// How many edits may be written.
    pub(crate) fn count(&self) -> usize {
        if self.are_wanted() { self.known().edits } else { usize::MAX }
    }

    /// Whether there is anything to prepare.
    pub(crate) fn are_wanted(&self) -> bool {
        !self.0.indexes.is_empty()
    }

    /// Prepares edits in their order, as many as there is room for and at least one.
    pub(crate) async fn edits(&self, inner: &Inner, edits: &[&Edit<'_>]) -> Result<()> {
        let (mut bytes, mut count) = (0, 0);
        for some in edits.chunks(AT_ONCE) {
            if bytes >= PREPARED_BYTES_MAX {
                break;
            }
            // A function that cannot be asked must not keep anybody from mending it.
            let alive = some.iter().filter(|edit| !edit.deleted && !DocumentId::of(&edit.id).is_design());
            let documents = alive.map(|edit| ((edit.id.to_string(), None), &edit.body)).collect();
            self.make(inner, documents).await?;
            let known = self.known();
            for edit in some {
                if bytes >= PREPARED_BYTES_MAX {
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

    /// Whether they were made for the list of indexes that the database has now.
    pub(crate) fn fit(&self, instance: &Instance) -> bool {
        if self.0.indexes.is_empty() && instance.record.indexes.is_empty() {
            return true;
        }
        // Not the numbers alone: the name may be another database's by now.
        let is_same = |now: &proto::Index, then: &proto::Index| {
            (now.number, &now.kind, &now.definition) == (then.number, &then.kind, &then.definition)
        };
        let mut then = self.0.indexes.iter();
        let are_same = preparing(instance).all(|now| then.next().is_some_and(|then| is_same(&now.index, &then.index)));
        are_same && then.next().is_none()
    }

    /// What was prepared for an index of the new winner, which is no tombstone and of no design document; `None`: it was not yet, and the
    /// maintainer has nothing to do, as the attempt is given up.
    #[cfg_attr(not(test), expect(dead_code, reason = "for kinds of indexes; tests alone have one"))]
    pub(crate) async fn get(&self, number: u64, within: &Within<'_>, change: &Change<'_>) -> Result<Option<Arc<[u8]>>> {
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

    /// Ends an attempt in which something was lacking: it is not committed, and tried again.
    pub(crate) fn check(&self) -> Result<()> {
        if self.lacks_nothing() { Ok(()) } else { Err(too_old()) }
    }

    /// Whether nothing was lacking.
    pub(crate) fn lacks_nothing(&self) -> bool {
        self.known().lacking.is_empty()
    }

    /// Prepares what was lacking. To be called before a transaction reads anything: it has no version until then.
    pub(crate) async fn make_up(&self, inner: &Inner) -> Result<()> {
        if self.0.indexes.is_empty() {
            return Ok(());
        }
        // In a box, as few writes need it.
        Box::pin(async move {
            let lacking = std::mem::take(&mut self.known().lacking);
            // What no parser takes was refused when it came.
            let parsed = lacking.iter().filter_map(|(of, text)| Some((of, parse(text, &Limits::default()).ok()?)));
            let parsed: Vec<_> = parsed.collect();
            let documents = parsed.iter().map(|(of, body)| ((*of).clone(), body)).collect();
            self.make(inner, documents).await
        })
        .await
    }

    async fn make(&self, inner: &Inner, documents: Vec<(Of, &Value<'_>)>) -> Result<()> {
        let one = |(of, body)| async move {
            let made = self.answers(inner, &of, body).await?;
            Ok((of, made))
        };
        let asked: Vec<BoxFuture<'_, Result<(Of, Made)>>> =
            documents.into_iter().map(|document| Box::pin(one(document)) as _).collect();
        let all: Vec<(Of, Made)> = iter(asked).buffer_unordered(AT_ONCE).try_collect().await?;
        self.known().made.extend(all);
        Ok(())
    }

    async fn answers(&self, inner: &Inner, (id, _): &Of, body: &Value<'_>) -> Result<Made> {
        let mut made = Made::new();
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

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn too_old() -> Error {
    Error::Storage(FdbError::from_code(TRANSACTION_TOO_OLD))
}

fn refused(because: NotJudged, reason: &str) -> Error {
    Refusal::not_judged(because, reason).into()
}
