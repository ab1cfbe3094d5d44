//! Judges the edits of a request, and passes small ones to a function together.
//!
//! A function runs on another thread, and the round trip takes as long as a small function: a lock, a wake-up, a timer,
//! an answer. Small edits of a request therefore share it, in their order. Each has its own answer, and a refusal or an
//! exceeded bound concerns that edit alone. The preparation of an edit (the revision that it replaces, memory) comes
//! first: no shared resource is held while a function runs.

use std::sync::Arc;

use flatbed_channels::require::Writer;
use flatbed_databases::actor::User;
use flatbed_databases::document::edit::{Document, Edit};
use flatbed_databases::document::verdict::Verdict;
use flatbed_databases::handles::WriteHandle;
use flatbed_databases::instance::Instance;
use flatbed_revtree::DocumentId;
use flatbed_store::error::{Error, Invalid, NotJudged, Refusal, Result};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt};

use crate::judge::ask::{EditRequest, JudgeInputs, JudgedEdit, cut, with_room};
use crate::judge::design;
use crate::judge::judgement::{Judge, Judgement, ProposedWrite, Room, Rule};
use crate::judge::routes::Routes;
use crate::view_runtime::view_functions;

const JUDGED_AT_ONCE: usize = 8;

/// The number of small edits passed to a function together, and of such batches that are judged concurrently.
pub const TOGETHER_MAX: usize = 32;
const BATCHES_AT_ONCE: usize = 2;

/// The largest edit that counts as small, in bytes of its text and of the text that it replaces ([`with_room`]).
pub const SMALL_BYTES: usize = 8_000;

pub struct JudgeContext<'a> {
    pub(super) database: &'a WriteHandle,
    pub(super) instance: &'a Instance,
    pub(super) user: &'a User,
    pub(super) judge: Option<&'a dyn Judge>,
    pub(super) validators: Vec<&'a dyn Rule>,
    pub(super) routes: Option<&'a Routes>,
    /// The author, for the function, or the refusal of the author.
    pub(super) writer: std::result::Result<Option<&'a Arc<Writer>>, &'a Refusal>,
    pub(super) named: String,
    /// See [`Judge::caller`].
    pub(super) caller: u64,
    pub(super) of: usize,
}

enum EditPreparation {
    /// No function remains to be run.
    Judged(JudgedEdit),
    /// The replaced revision is known; `bytes` is the size of the texts.
    Small { old: Option<Document>, bytes: usize },
}

impl JudgeContext<'_> {
    pub(super) async fn all(&self, asked: &[EditRequest<'_, '_>]) -> Result<Vec<JudgedEdit>> {
        if let [asked] = asked {
            return Ok(vec![self.alone(asked).await?]);
        }
        // A small batch divides the edits among the concurrent parts.
        let (together, at_once) = if self.runs_functions() {
            (asked.len().div_ceil(BATCHES_AT_ONCE).clamp(1, TOGETHER_MAX), BATCHES_AT_ONCE)
        } else {
            (1, JUDGED_AT_ONCE)
        };
        let parts: Vec<BoxFuture<'_, Result<Vec<JudgedEdit>>>> = asked
            .chunks(together)
            .map(|part| match part {
                [asked] => Box::pin(async { Ok(vec![self.alone(asked).await?]) }) as BoxFuture<'_, _>,
                part => Box::pin(self.part(part, JUDGED_AT_ONCE / at_once)),
            })
            .collect();
        let mut parts = stream::iter(parts).buffered(at_once);
        let mut judged = Vec::with_capacity(asked.len());
        while let Some(part) = parts.next().await {
            judged.extend(part?);
        }
        Ok(judged)
    }

    fn runs_functions(&self) -> bool {
        !self.validators.is_empty() || self.routes.is_some_and(Routes::is_function)
    }

    async fn alone(&self, asked: &EditRequest<'_, '_>) -> Result<JudgedEdit> {
        of_the_edit(match self.prepare(asked, false).await {
            Ok(EditPreparation::Judged(judged)) => Ok(judged),
            Ok(EditPreparation::Small { .. }) => Err(not_routed().into()),
            Err(error) => Err(error),
        })
    }

    /// Judges a part together, after preparing up to `at_once` edits concurrently.
    async fn part(&self, part: &[EditRequest<'_, '_>], at_once: usize) -> Result<Vec<JudgedEdit>> {
        let prepared: Vec<BoxFuture<'_, Result<EditPreparation>>> =
            part.iter().map(|asked| Box::pin(self.prepare(asked, true)) as _).collect();
        let prepared: Vec<Result<EditPreparation>> = stream::iter(prepared).buffered(at_once).collect().await;
        let mut judged = Vec::with_capacity(part.len());
        // Each with its index and the revision that it replaces.
        let mut small: Vec<(usize, &EditRequest<'_, '_>, Option<Document>)> = Vec::new();
        let mut bytes = 0;
        for (asked, prepared) in part.iter().zip(prepared) {
            let said = match prepared {
                Ok(EditPreparation::Judged(judged)) => Ok(judged),
                Ok(EditPreparation::Small { old, bytes: its }) => {
                    small.push((judged.len(), asked, old));
                    bytes += its;
                    // An edit without an answer is not written.
                    Err(not_routed().into())
                }
                Err(error) => Err(error),
            };
            judged.push(of_the_edit(said)?);
        }
        // All their texts wait together, which takes much memory with many requests. A single one takes no permit.
        let room: Option<Room> =
            self.judge.map_or_else(|| Some(Box::new(()) as Room), |judge| judge.try_room(&self.named, bytes));
        let edits: Vec<_> = small.iter().map(|(_, asked, old)| (*asked, old.as_ref())).collect();
        let mut said = Vec::with_capacity(edits.len());
        // Without room they go one by one.
        for edits in edits.chunks(if room.is_some() { edits.len().max(1) } else { 1 }) {
            said.extend(self.together(edits).await?);
        }
        for ((at, ..), said) in small.iter().zip(said) {
            let said = said.map(|verdict| JudgedEdit { judgement: Ok(verdict), ..JudgedEdit::may() });
            if let Some(judged) = judged.get_mut(*at) {
                *judged = of_the_edit(said.map_err(Error::from))?;
            }
        }
        Ok(judged)
    }

    /// Asks the function of the database, then each validator about the edits that nothing has refused yet.
    async fn together(&self, edits: &[(&EditRequest<'_, '_>, Option<&Document>)]) -> Result<Vec<Judgement>> {
        let mut said: Vec<Judgement> = match self.routes {
            Some(routes) => {
                let writes: std::result::Result<Vec<ProposedWrite<'_>>, Refusal> =
                    edits.iter().map(|(asked, old)| self.writing(asked.edit, *old)).collect();
                routes.route_all(writes?).await
            }
            None => vec![Ok(Verdict::default()); edits.len()],
        };
        // An edit without an answer is not written.
        said.resize_with(edits.len(), || Err(not_routed()));
        for rule in &self.validators {
            let (mut writes, mut places) = (Vec::new(), Vec::new());
            for (place, ((asked, old), said)) in edits.iter().zip(&said).enumerate() {
                if said.is_ok() {
                    writes.push(self.writing(asked.edit, self.replaced_for_validators(asked, *old))?);
                    places.push(place);
                }
            }
            if writes.is_empty() {
                break;
            }
            let mut answers = rule.judge_all(writes).await.into_iter();
            for place in places {
                let answer = answers.next().unwrap_or_else(|| Err(not_routed()));
                if let Some(said) = said.get_mut(place) {
                    *said = std::mem::replace(said, Err(not_routed())).and_then(|before| Ok(before.and(answer?)));
                }
            }
        }
        let checked =
            said.into_iter().map(|said| said.and_then(Verdict::check).map_err(|refusal| cut(refusal, self.of)));
        Ok(checked.collect())
    }

    /// Returns the revision that an edit replaces for validators: as in CouchDB a recreated document replaces nothing.
    fn replaced_for_validators<'d>(
        &self,
        asked: &EditRequest<'_, '_>,
        old: Option<&'d Document>,
    ) -> Option<&'d Document> {
        old.filter(|_| asked.upon.is_none() || self.routes.is_none())
    }

    /// Judges an edit, or prepares it if it is small and may be judged with others.
    async fn prepare(
        &self,
        EditRequest { edit, upon }: &EditRequest<'_, '_>,
        is_together: bool,
    ) -> Result<EditPreparation> {
        let JudgeContext { database, instance, routes, .. } = self;
        // As in CouchDB, a broken function must not prevent its own repair.
        if DocumentId::of(&edit.id).is_design() {
            if !edit.deleted {
                let functions = view_functions(&database.inner);
                design::check(&edit.body, (&*database.inner, *instance), &self.named, functions)
                    .await
                    .map_err(|refusal| cut(refusal, self.of))?;
            }
            return Ok(EditPreparation::Judged(JudgedEdit::may()));
        }
        if routes.is_none() && edit.expiry.is_some() {
            return Err(Refusal::invalid(Invalid::Member, "Bad special document member: _exp").into());
        }
        if routes.is_none() && self.validators.is_empty() {
            return Ok(EditPreparation::Judged(JudgedEdit::may()));
        }
        let writer = self.writer.map_err(Refusal::clone)?;
        let upon = upon.filter(|_| routes.is_some());
        // The function sees a document that its author may not read as missing.
        let eyes = writer.map(|_| database.asker());
        let found = with_room(database, edit, (upon, eyes), self.judge, &self.named).await?;
        let Some(JudgeInputs { mut old, room, bytes }) = found else {
            return Ok(EditPreparation::Judged(JudgedEdit { was_there: true, ..JudgedEdit::may() }));
        };
        if let (Some(old), true) = (&mut old, upon.is_some()) {
            // An expired document is a tombstone, whether or not that is written yet.
            old.deleted = true;
            old.body.clear();
        }
        if is_together && bytes <= SMALL_BYTES {
            return Ok(EditPreparation::Small { old, bytes });
        }
        let said = match routes {
            Some(routes) => routes.route(self.writing(edit, old.as_ref())?).await,
            None => Ok(Verdict::default()),
        };
        let judged = self.validated(&EditRequest { edit, upon }, old.as_ref(), said).await;
        drop(room);
        judged.map(EditPreparation::Judged)
    }

    async fn validated(
        &self,
        asked: &EditRequest<'_, '_>,
        old: Option<&Document>,
        routed: Judgement,
    ) -> Result<JudgedEdit> {
        let mut verdict = routed.map_err(|refusal| cut(refusal, self.of))?;
        let old = self.replaced_for_validators(asked, old);
        for rule in &self.validators {
            let said = rule.judge(self.writing(asked.edit, old)?).await.map_err(|refusal| cut(refusal, self.of))?;
            verdict = verdict.and(said);
        }
        Ok(JudgedEdit { judgement: Ok(verdict.check()?), ..JudgedEdit::may() })
    }

    fn writing<'w>(
        &'w self,
        edit: &'w Edit<'w>,
        old: Option<&'w Document>,
    ) -> std::result::Result<ProposedWrite<'w>, Refusal> {
        let security = Some(self.instance.record.security.as_slice()).filter(|security| !security.is_empty());
        Ok(ProposedWrite {
            edit,
            old,
            user: self.user,
            database: &self.instance.name,
            caller: self.caller,
            security,
            writer: self.writer.map_err(Refusal::clone)?,
            now_s: self.database.inner.clock.unix_seconds(),
        })
    }
}

/// Turns a refusal into the result of its edit.
fn of_the_edit(said: Result<JudgedEdit>) -> Result<JudgedEdit> {
    match said {
        Err(Error::Refused(refusal)) => Ok(JudgedEdit { judgement: Err(refusal), ..JudgedEdit::may() }),
        said => said,
    }
}

pub fn not_routed() -> Refusal {
    Refusal::not_judged(NotJudged::Internal, "the function was not asked")
}
