//! Judges the edits of a request, and passes small ones to a sync function together.
//!
//! A function runs on another thread, and the round trip takes as long as a small function: a lock, a wake-up, a timer,
//! an answer. Small edits of a request therefore share it, in their order. Each has its own answer, and a refusal or an
//! exceeded bound concerns that edit alone. The preparation of an edit (the revision that it replaces, memory) comes
//! first: no shared resource is held while a function runs.

use std::sync::Arc;

use flatbed_channels::require::Writer;
use flatbed_revtree::DocumentId;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt};

use crate::actor::User;
use crate::document::edit::{Document, Edit};
use crate::document::verdict::Verdict;
use crate::error::{Error, Invalid, NotJudged, Refusal, Result};
use crate::handle::Database;
use crate::instance::Instance;
use crate::judge::ask::{Asked, JudgedEdit, WithRoom, cut, with_room};
use crate::judge::design;
use crate::judge::judgement::{Judge, Judgement, Rule, Writing};
use crate::judge::routes::Routes;
use crate::view_updates::views;

const JUDGED_AT_ONCE: usize = 8;

/// The number of small edits passed to a sync function together, and of such batches that are prepared concurrently.
const ROUTED_TOGETHER: usize = 32;
const ROUTED_AT_ONCE: usize = 2;

/// The largest edit that counts as small, in bytes of its text and of the text that it replaces ([`with_room`]).
const SMALL_BYTES: usize = 8_000;

pub(super) struct Judging<'a> {
    pub(super) database: &'a Database,
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

enum Prepared {
    /// No function remains to be run.
    Judged(JudgedEdit),
    /// The replaced revision is known; `bytes` is the size of the texts.
    Small { old: Option<Document>, bytes: usize },
}

impl Judging<'_> {
    pub(super) async fn all(&self, asked: &[Asked<'_, '_>]) -> Result<Vec<JudgedEdit>> {
        if let [asked] = asked {
            return Ok(vec![self.alone(asked).await?]);
        }
        // A small batch divides the edits among the concurrent parts.
        let (together, at_once) = match self.routes {
            Some(Routes::Function(_)) => {
                (asked.len().div_ceil(ROUTED_AT_ONCE).clamp(1, ROUTED_TOGETHER), ROUTED_AT_ONCE)
            }
            _ => (1, JUDGED_AT_ONCE),
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

    async fn alone(&self, asked: &Asked<'_, '_>) -> Result<JudgedEdit> {
        of_the_edit(match self.prepare(asked, false).await {
            Ok(Prepared::Judged(judged)) => Ok(judged),
            Ok(Prepared::Small { .. }) => Err(not_routed().into()),
            Err(error) => Err(error),
        })
    }

    /// Judges a part together, after preparing up to `at_once` edits concurrently.
    async fn part(&self, part: &[Asked<'_, '_>], at_once: usize) -> Result<Vec<JudgedEdit>> {
        let prepared: Vec<BoxFuture<'_, Result<Prepared>>> =
            part.iter().map(|asked| Box::pin(self.prepare(asked, true)) as _).collect();
        let prepared: Vec<Result<Prepared>> = stream::iter(prepared).buffered(at_once).collect().await;
        let mut judged = Vec::with_capacity(part.len());
        // Each with its index and the revision that it replaces.
        let mut small: Vec<(usize, &Asked<'_, '_>, Option<Document>)> = Vec::new();
        let mut bytes = 0;
        for (asked, prepared) in part.iter().zip(prepared) {
            let said = match prepared {
                Ok(Prepared::Judged(judged)) => Ok(judged),
                Ok(Prepared::Small { old, bytes: its }) => {
                    small.push((judged.len(), asked, old));
                    bytes += its;
                    // An edit without an answer is not written.
                    Err(not_routed().into())
                }
                Err(error) => Err(error),
            };
            judged.push(of_the_edit(said)?);
        }
        let writes: std::result::Result<Vec<Writing<'_>>, Refusal> =
            small.iter().map(|(_, asked, old)| self.writing(asked.edit, old.as_ref())).collect();
        let said = self.routed(writes?, bytes).await;
        for ((at, asked, old), said) in small.iter().zip(said) {
            let said = of_the_edit(self.validated(asked, old.as_ref(), said).await)?;
            if let Some(judged) = judged.get_mut(*at) {
                *judged = said;
            }
        }
        Ok(judged)
    }

    async fn routed(&self, writes: Vec<Writing<'_>>, bytes: usize) -> Vec<Judgement> {
        let Some(routes) = self.routes else { return Vec::new() };
        // All their texts wait together, which takes much memory with many requests. A single one takes no permit.
        let room = self.judge.map_or_else(|| Some(Box::new(()) as _), |judge| judge.try_room(&self.named, bytes));
        if room.is_some() {
            return routes.route_all(writes).await;
        }
        let mut said = Vec::with_capacity(writes.len());
        for write in writes {
            said.push(routes.route(write).await);
        }
        said
    }

    /// Judges an edit, or prepares it if it is small and may be judged with others.
    async fn prepare(&self, Asked { edit, upon }: &Asked<'_, '_>, is_together: bool) -> Result<Prepared> {
        let Judging { database, instance, routes, .. } = self;
        // As in CouchDB, a broken function must not prevent its own repair.
        if DocumentId::of(&edit.id).is_design() {
            if !edit.deleted {
                let functions = views(&database.inner).functions();
                design::check(&edit.body, (&*database.inner, *instance), &self.named, functions)
                    .await
                    .map_err(|refusal| cut(refusal, self.of))?;
            }
            return Ok(Prepared::Judged(JudgedEdit::may()));
        }
        if routes.is_none() && edit.expiry.is_some() {
            return Err(Refusal::invalid(Invalid::Member, "Bad special document member: _exp").into());
        }
        if routes.is_none() && self.validators.is_empty() {
            return Ok(Prepared::Judged(JudgedEdit::may()));
        }
        let writer = self.writer.map_err(Refusal::clone)?;
        let upon = upon.filter(|_| routes.is_some());
        // The function sees a document that its author may not read as missing.
        let eyes = writer.map(|_| database.asker());
        let found = with_room(database, edit, (upon, eyes), self.judge, &self.named).await?;
        let Some(WithRoom { mut old, room, bytes }) = found else {
            return Ok(Prepared::Judged(JudgedEdit { was_there: true, ..JudgedEdit::may() }));
        };
        if let (Some(old), true) = (&mut old, upon.is_some()) {
            // An expired document is a tombstone, whether or not that is written yet.
            old.deleted = true;
            old.body.clear();
        }
        if is_together && bytes <= SMALL_BYTES {
            return Ok(Prepared::Small { old, bytes });
        }
        let said = match routes {
            Some(routes) => routes.route(self.writing(edit, old.as_ref())?).await,
            None => Ok(Verdict::default()),
        };
        let judged = self.validated(&Asked { edit, upon }, old.as_ref(), said).await;
        drop(room);
        judged.map(Prepared::Judged)
    }

    async fn validated(
        &self,
        Asked { edit, upon }: &Asked<'_, '_>,
        old: Option<&Document>,
        routed: Judgement,
    ) -> Result<JudgedEdit> {
        let mut verdict = routed.map_err(|refusal| cut(refusal, self.of))?;
        // As in CouchDB a recreated document replaces nothing.
        let old = old.filter(|_| upon.is_none() || self.routes.is_none());
        for rule in &self.validators {
            let said = rule.judge(self.writing(edit, old)?).await.map_err(|refusal| cut(refusal, self.of))?;
            verdict = verdict.and(said);
        }
        Ok(JudgedEdit { judgement: Ok(verdict.check()?), ..JudgedEdit::may() })
    }

    fn writing<'w>(
        &'w self,
        edit: &'w Edit<'w>,
        old: Option<&'w Document>,
    ) -> std::result::Result<Writing<'w>, Refusal> {
        let security = Some(self.instance.record.security.as_slice()).filter(|security| !security.is_empty());
        Ok(Writing {
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

fn not_routed() -> Refusal {
    Refusal::not_judged(NotJudged::Internal, "the sync function was not asked")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use flatbed_flatten::json::{Limits, Value, parse};

    use super::*;
    use crate::asker::ReadPrincipal;
    use crate::fenced;
    use crate::judge::ask::judge;
    use crate::judge::judgement::Room;
    use crate::write::batch::resolved;

    /// A function that assigns a channel to each document, and records the sizes of its batches.
    #[derive(Clone, Default)]
    struct Counts {
        asked: Arc<Mutex<Vec<usize>>>,
        is_full: Arc<AtomicBool>,
        /// Makes it omit the last answer.
        is_short: Arc<AtomicBool>,
    }

    impl Counts {
        fn say(write: Writing<'_>) -> Judgement {
            match write.edit.body.get("in") {
                Some(Value::String(channel)) => {
                    Ok(Verdict { channels: [channel.to_string()].into(), ..Verdict::default() })
                }
                _ => Err(Refusal::Forbidden("it is in nothing".to_owned())),
            }
        }

        fn taken(&self) -> Vec<usize> {
            let mut asked = std::mem::take(&mut *self.asked.lock().unwrap());
            asked.sort_unstable();
            asked
        }
    }

    impl Judge for Counts {
        fn load(&self, _: &Document, _: &str) -> Arc<dyn Rule> {
            Arc::new(self.clone())
        }

        fn sync_function(&self, _: &str, _: &str) -> Option<Arc<dyn Rule>> {
            Some(Arc::new(self.clone()))
        }

        fn check_sync_function<'a>(
            &'a self,
            _: &'a str,
            _: &'a str,
        ) -> BoxFuture<'a, std::result::Result<(), Refusal>> {
            Box::pin(async { Ok(()) })
        }

        fn caller(&self) -> u64 {
            0
        }

        fn try_room(&self, _: &str, bytes: usize) -> Option<Room> {
            (bytes <= 300 || !self.is_full.load(Ordering::Relaxed)).then(|| Box::new(()) as Room)
        }
    }

    impl Rule for Counts {
        fn judge<'a>(&'a self, write: Writing<'a>) -> BoxFuture<'a, Judgement> {
            self.asked.lock().unwrap().push(1);
            Box::pin(async move { Counts::say(write) })
        }

        fn judge_all<'a>(&'a self, writes: Vec<Writing<'a>>) -> BoxFuture<'a, Vec<Judgement>> {
            self.asked.lock().unwrap().push(writes.len());
            let count = writes.len() - usize::from(self.is_short.load(Ordering::Relaxed));
            Box::pin(async move { writes.into_iter().take(count).map(Counts::say).collect() })
        }
    }

    #[tokio::test]
    async fn small_ones_are_asked_about_together_and_each_has_its_own_answer() {
        let counts = Counts::default();
        let (layer, authority, _storage) = fenced::layer_judged_by(Some(Arc::new(counts.clone()))).await;
        let server = layer.database("db", authority.for_job("test"));
        fenced::give_channels(&server).await;
        server.set_sync_function(Some("function")).await.unwrap();
        let db = layer.database("db", fenced::user("anna")).asked_by(ReadPrincipal::All);
        let instance = resolved(&db.inner, "db").await.unwrap();
        let (large, refused, design) = (5, 20, 10);
        let texts: Vec<(String, String)> = (0..70)
            .map(|n| {
                let id = if n == design { "_design/d".to_owned() } else { format!("doc{n}") };
                let text = "x".repeat(if n == large { SMALL_BYTES } else { 10 });
                let member = if n == refused { "no" } else { "in" };
                (id, format!(r#"{{"{member}":"C{n}","text":"{text}"}}"#))
            })
            .collect();
        let edits: Vec<Edit<'_>> = texts
            .iter()
            .map(|(id, text)| Edit {
                expiry: None,
                id: id.as_str().into(),
                parent: None,
                history: None,
                deleted: false,
                attachments: Vec::new(),
                body: parse(text.as_bytes(), &Limits::default()).unwrap(),
            })
            .collect();
        let asked: Vec<Asked<'_, '_>> = edits.iter().map(|edit| Asked { edit, upon: None }).collect();
        let told = async || -> Vec<Judgement> {
            let judged = judge(&db, &instance, &asked, asked.len(), false).await.unwrap();
            judged.into_iter().map(|judged| judged.judgement).collect()
        };
        let expected: Vec<Judgement> = (0..70)
            .map(|n| match n {
                _ if n == design => Ok(Verdict::default()),
                _ if n == refused => Err(Refusal::Forbidden("it is in nothing".to_owned())),
                _ => Ok(Verdict { channels: [format!("C{n}")].into(), ..Verdict::default() }),
            })
            .collect();
        counts.taken();
        assert_eq!(told().await, expected);
        // The last of 70 in batches of 32; the first batch has the large edit and the one without a function.
        assert_eq!(counts.taken(), [1, 6, 30, 32]);
        // Without room for a batch each edit goes alone.
        counts.is_full.store(true, Ordering::Relaxed);
        assert_eq!(told().await.len(), 70);
        assert_eq!(counts.taken(), [1; 69]);
        counts.is_full.store(false, Ordering::Relaxed);
        // An edit without an answer is not written.
        counts.is_short.store(true, Ordering::Relaxed);
        let told = told().await;
        let unanswered: Vec<usize> =
            (0..70).filter(|n| told[*n] != expected[*n]).inspect(|n| assert_eq!(told[*n], Err(not_routed()))).collect();
        assert_eq!(unanswered, [31, 63, 69]);
    }
}
