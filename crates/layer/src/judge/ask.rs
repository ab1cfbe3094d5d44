//! Asking the rules of a database's design documents about writes.
//!
//! What a rule sees is immutable once it is found: the edit, the revision that it replaces, and the rules as of a version
//! of the database's record, `_security` among them. So it is asked before the write's transaction, which takes no longer
//! for it, and that transaction fails if the version is another one by then. The user is that of the request.

use std::fmt;
use std::sync::Arc;

use flatbed_flatten::json::{self, Limits, Value};
use flatbed_revtree::{DESIGN_IDS, DocumentId};
use futures_util::future::BoxFuture;
use futures_util::stream::StreamExt;
use prost::Message;

use crate::document::edit::{Document, Edit, GetOptions};
use crate::document::verdict::Verdict;
use crate::error::{Error, NotJudged, Refusal, Result};
use crate::handle::{Database, Reader};
use crate::instance::Instance;
use crate::judge::design;
use crate::judge::judgement::{Judge, Judgement, Room, Rule, Writing};
use crate::read::all_docs::AllDocsQuery;
use crate::store::proto::DatabaseRecord;
use crate::store::transaction::Transaction;

/// The member of a design document that judges.
const MEMBER: &str = "validate_doc_update";

/// Edits of a batch that are judged at once.
const JUDGED_AT_ONCE: usize = 8;

/// How many ancestors of a replicated revision are looked at for a body.
const ANCESTORS_MAX: usize = 16;

/// Text of design documents that judge, in a database, at most.
const DESIGN_BYTES_MAX: usize = 16_000_000;

/// What is kept of all reasons that functions give for refusing edits of a batch, in bytes.
const REASONS_BYTES_MAX: usize = 8_000_000;

/// What is kept of each at least.
const REASON_BYTES_MIN: usize = 40;

/// The rules of a database as of a version of its record.
#[derive(Clone, Default)]
pub(crate) struct Rules(Arc<[Arc<dyn Rule>]>);

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rules").field(&self.0.len()).finish()
    }
}

impl Instance {
    /// The rules, read once for each version of the record: where they have changed since, the record's version has too.
    async fn rules(&self, database: &Reader) -> Result<Rules> {
        self.rules.get_or_try_init(|| load(database, self)).await.cloned()
    }

    /// Whether a write of this document may change what judges.
    pub(crate) fn is_judged_by(&self, edit: &Edit<'_>) -> bool {
        let brings = || !edit.deleted && edit.body.get(MEMBER).is_some();
        DocumentId::of(&edit.id).is_design() && (self.record.rules > 0 || brings())
    }

    /// Tells every process that what judges has changed.
    pub(crate) fn change_rules(&self, trx: &Transaction) {
        let record = DatabaseRecord { rules: self.record.rules + 1, ..self.record.clone() };
        trx.set(&self.record_key, &record.encode_to_vec());
        trx.update_metadata_version();
    }
}

impl DatabaseRecord {
    /// Sets `_security`. Functions that are asked about writes see it, so that what they said under another
    /// one holds no more.
    pub(crate) fn set_security(&mut self, security: &[u8]) {
        if self.security != security {
            self.security = security.to_vec();
            self.rules += u64::from(self.rules > 0);
        }
    }
}

/// What tells a database from all others, those that had its name before included.
fn named(instance: &Instance) -> String {
    format!("{}/{}", instance.name, instance.incarnation())
}

async fn load(database: &Reader, instance: &Instance) -> Result<Rules> {
    let failed = |reason: &str| Refusal::not_judged(NotJudged::Internal, reason);
    let (start, end) = (Some(DESIGN_IDS.0.to_owned()), Some(DESIGN_IDS.1.to_owned()));
    let query = AllDocsQuery { start, end, exclusive_end: true, include_docs: true, ..AllDocsQuery::default() };
    let named = named(instance);
    let mut walk = database.all_docs(query);
    let (mut found, mut bytes) = (Vec::new(), 0);
    while let Some(rows) = walk.next_page().await? {
        for design in rows.into_iter().filter_map(|row| row.doc) {
            let text = [b"{", design.body.as_slice(), b"}"].concat();
            if json::parse(&text, &Limits::default()).is_ok_and(|body: Value<'_>| body.get(MEMBER).is_some()) {
                bytes += text.len();
                if bytes > DESIGN_BYTES_MAX {
                    return Err(failed("the design documents that validate are too large").into());
                }
                let judge = database.inner.judge.as_ref().ok_or_else(|| failed("no functions run here"))?;
                found.push(judge.load(&design, &named));
            }
        }
    }
    Ok(Rules(found.into()))
}

/// A refusal with as much of its reason as there is room for where so many edits may be refused.
fn cut(mut refusal: Refusal, edits: usize) -> Refusal {
    if let Refusal::Forbidden(reason)
    | Refusal::Unauthorized(reason)
    | Refusal::NotJudged { reason, .. }
    | Refusal::InvalidDesign { reason, .. } = &mut refusal
    {
        let room = (REASONS_BYTES_MAX / edits.max(1)).max(REASON_BYTES_MIN);
        let end = (0..=room.min(reason.len())).rev().find(|end| reason.is_char_boundary(*end));
        reason.truncate(end.unwrap_or(0));
        reason.shrink_to_fit();
    }
    refusal
}

/// Asks the database's rules about edits. `of`: how many edits the whole request has.
pub(crate) async fn judge(
    database: &Database,
    instance: &Instance,
    edits: &[&Edit<'_>],
    of: usize,
) -> Result<Vec<Judgement>> {
    let all_may = || vec![Ok(Verdict::default()); edits.len()];
    let is_design = |edit: &Edit<'_>| DocumentId::of(&edit.id).is_design();
    // What the server writes of its own accord is not judged.
    let Some(user) = database.actor().user() else { return Ok(all_may()) };
    let rules = if instance.record.rules > 0 { instance.rules(database).await? } else { Rules::default() };
    let own = database.inner.judge.as_deref().and_then(|judge| judge.of_database(&instance.name));
    let rules: Vec<&dyn Rule> = own.iter().chain(rules.0.iter()).map(|rule| &**rule).collect();
    let judge = database.inner.judge.as_deref().filter(|_| !rules.is_empty());
    if judge.is_none() && !edits.iter().any(|edit| is_design(edit)) {
        return Ok(all_may());
    }
    let security = Some(instance.record.security.as_slice()).filter(|security| !security.is_empty());
    let (caller, named) = (judge.map_or(0, Judge::caller), &named(instance));
    let asked = edits.iter().map(|edit| {
        let rules = &rules;
        async move {
            let mut verdict = Verdict::default();
            // As in CouchDB: a broken function must not keep anybody from mending it.
            if is_design(edit) {
                if !edit.deleted {
                    let functions = database.inner.views.functions();
                    design::check(&edit.body, named, functions, instance.record.partitioned)
                        .await
                        .map_err(|refusal| cut(refusal, of))?;
                }
                return Ok(verdict);
            }
            let Some(judge) = judge else { return Ok(verdict) };
            let Some((old, _room)) = with_room(database, edit, judge, named).await? else { return Ok(verdict) };
            for rule in rules {
                let write = Writing { edit, old: old.as_ref(), user, database: &instance.name, caller, security };
                verdict = verdict.and(rule.judge(write).await.map_err(|refusal| cut(refusal, of))?);
            }
            Ok(verdict.check()?)
        }
    });
    let asked: Vec<BoxFuture<'_, Result<Verdict>>> = asked.map(|asked| Box::pin(asked) as _).collect();
    let mut asked = futures_util::stream::iter(asked).buffered(JUDGED_AT_ONCE);
    let mut judged = Vec::with_capacity(edits.len());
    while let Some(judgement) = asked.next().await {
        judged.push(match judgement {
            // Of this edit alone.
            Err(Error::Refused(refusal)) => Err(refusal),
            judgement => Ok(judgement?),
        });
    }
    Ok(judged)
}

/// The revision that an edit replaces, with room for the edit's texts and its own: many edits wait for their functions at
/// once, small ones of large documents among them. What finds no room is not held while it waits for some.
async fn with_room(
    database: &Reader,
    edit: &Edit<'_>,
    judge: &dyn Judge,
    named: &str,
) -> Result<Option<(Option<Document>, Room)>> {
    let mut room = None;
    loop {
        let reading = match (&edit.parent, &edit.history) {
            (None, None) => None,
            // It is never closed.
            _ => database.inner.turns.judged_reads.acquire().await.ok(),
        };
        let old = match replaced(database, edit).await? {
            Replaced::Itself => return Ok(None),
            Replaced::Nothing => None,
            Replaced::Revision(old) => Some(*old),
        };
        drop(reading);
        let bytes = 2 * edit_bytes(edit) + 3 * old.as_ref().map_or(0, document_bytes);
        match room.take().or_else(|| judge.try_room(named, bytes)) {
            Some(room) => return Ok(Some((old, room))),
            None => drop(old),
        }
        // What was read then is what is read again: revisions do not change.
        room = Some(judge.room(named, bytes).await?);
    }
}

const REVISION_BYTES: usize = 40;
const ATTACHMENT_BYTES: usize = 200;

/// About how long an edit's text is.
fn edit_bytes(edit: &Edit<'_>) -> usize {
    let names: usize = edit.attachments.iter().map(|(name, _)| name.len() + ATTACHMENT_BYTES).sum();
    text_bytes(&edit.body) + names + edit.history.as_ref().map_or(0, Vec::len) * REVISION_BYTES
}

fn document_bytes(document: &Document) -> usize {
    let names: usize = document.attachments.iter().map(|attachment| attachment.name.len() + ATTACHMENT_BYTES).sum();
    document.body.len() + names + document.revisions.as_ref().map_or(0, Vec::len) * REVISION_BYTES
}

/// About how long a value's text is: no deeper than the parser goes.
fn text_bytes(value: &Value<'_>) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 6,
        Value::Number(text) | Value::String(text) => text.len() + 3,
        Value::Array(items) => items.iter().map(text_bytes).sum::<usize>() + 3,
        Value::Object(members) => {
            members.iter().map(|(name, value)| name.len() + 4 + text_bytes(value)).sum::<usize>() + 3
        }
    }
}

/// What an edit replaces.
enum Replaced {
    /// Its revision is there already.
    Itself,
    /// Nothing that has a body.
    Nothing,
    /// This revision: its parent, of a replicated one the nearest ancestor whose body is there.
    Revision(Box<Document>),
}

async fn replaced(database: &Reader, edit: &Edit<'_>) -> Result<Replaced> {
    let candidates = match &edit.history {
        None => edit.parent.iter().cloned().collect(),
        Some(path) => {
            let missing = database.missing_revs(&[(edit.id.to_string(), path.clone())]).await?;
            let missing = missing.into_iter().next().map(|(missing, _)| missing).unwrap_or_default();
            let mut there = path.iter().filter(|rev| !missing.contains(rev)).cloned().peekable();
            if path.first() == there.peek() {
                return Ok(Replaced::Itself);
            }
            there.take(ANCESTORS_MAX).collect::<Vec<_>>()
        }
    };
    for rev in candidates {
        let options = GetOptions { rev: Some(rev), revs: true, ..GetOptions::default() };
        match database.get(&edit.id, &options).await {
            Err(Error::Refused(Refusal::DocumentNotFound(_))) => {}
            found => return Ok(Replaced::Revision(Box::new(found?))),
        }
    }
    Ok(Replaced::Nothing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flatbed_channels::{Given, Grant, Grantee};

    #[test]
    fn reasons_of_many_edits_are_short() {
        let reason = "\u{20ac}".repeat(10_000);
        for (edits, least, most) in [(1, 30_000, 30_000), (1_000, 7_900, 8_000), (100_000_000, 38, 40)] {
            for refusal in [
                Refusal::Forbidden(reason.clone()),
                Refusal::Unauthorized(reason.clone()),
                Refusal::NotJudged { because: NotJudged::TimedOut, reason: reason.clone() },
            ] {
                let told = cut(refusal, edits).to_string();
                assert!((least..=most).contains(&told.len()) && reason.starts_with(&told), "{edits}: {}", told.len());
            }
        }
    }

    /// Says of each edit the channel that its design document is named by, and lets `anna` into it for a while.
    struct Channels;

    struct Channel(String);

    impl Judge for Channels {
        fn load(&self, design: &Document, _: &str) -> Arc<dyn Rule> {
            Arc::new(Channel(design.id.clone()))
        }

        fn caller(&self) -> u64 {
            0
        }
    }

    fn anna_has(channel: &str) -> Grant {
        Grant { to: Grantee::User("anna".into()), what: Given::Channel(channel.into()) }
    }

    impl Rule for Channel {
        fn judge<'a>(&'a self, write: Writing<'a>) -> BoxFuture<'a, Judgement> {
            assert_eq!((write.user.name.as_deref(), write.database), (Some("anna"), "db"));
            let grants = [anna_has(&self.0)].into();
            let expires_at_ms = Some(self.0.len() as u64);
            let channels = [self.0.clone()].into();
            Box::pin(async move { Ok(Verdict { channels, grants, expires_at_ms, ..Verdict::default() }) })
        }
    }

    #[tokio::test]
    async fn what_several_rules_say_holds_together() {
        let (layer, authority, _directory) = crate::fenced::layer_judged_by(Some(Arc::new(Channels))).await;
        let server = layer.database("db", authority.for_job("test"));
        let body = || json::parse(br#"{"validate_doc_update":"function () {}"}"#, &Limits::default()).unwrap();
        let edit = |id: &'static str| Edit {
            id: id.into(),
            parent: None,
            history: None,
            deleted: false,
            attachments: Vec::new(),
            body: body(),
        };
        for id in ["_design/long", "_design/a"] {
            server.update(&edit(id)).await.unwrap();
        }
        server.exists().await.unwrap();
        let instance = crate::write::batch::instance_of(&layer.inner, "db").await.unwrap();
        let anna = layer.database("db", crate::fenced::user("anna"));
        let (document, design) = (edit("d"), edit("_design/a"));
        let said = judge(&anna, &instance, &[&document, &design], 2).await.unwrap();
        let channels = ["_design/a", "_design/long"].map(str::to_owned);
        let grants = channels.clone().map(|channel| anna_has(&channel));
        let both =
            Verdict { channels: channels.into(), grants: grants.into(), expires_at_ms: Some(9), ..Verdict::default() };
        // Nobody judges a design document, nor the server.
        assert_eq!(said, [Ok(both), Ok(Verdict::default())]);
        assert_eq!(judge(&server, &instance, &[&document], 1).await.unwrap(), [Ok(Verdict::default())]);
    }
}
