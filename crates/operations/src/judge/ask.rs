//! Runs the rules of a database's design documents on writes.
//!
//! The inputs of a rule are immutable: the edit, the revision that it replaces, and the rules at a version of the
//! database's record, including `_security`. Rules therefore run before the write's transaction, which they do not
//! prolong, and the transaction fails if the version has changed. The user is that of the request.

use std::fmt;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_channels::require::Writer;
use flatbed_databases::actor::User;
use flatbed_databases::asker::ReadPrincipal;
use flatbed_databases::document::edit::{Document, Edit, GetOptions};
use flatbed_databases::document::verdict::Verdict;
use flatbed_databases::handles::{ReadHandle, WriteHandle};
use flatbed_databases::held::HeldRights;
use flatbed_databases::instance::Instance;
use flatbed_databases::slots::State;
use flatbed_flatten::json::{self, Limits, Value};
use flatbed_revtree::{DESIGN_IDS, DocumentId, RevId};
use flatbed_store::error::{Error, NotJudged, Refusal, Result};
use futures_util::future::try_join;
use tokio::sync::OnceCell;

use crate::judge::judgement::judge_of;
use crate::judge::judgement::{Judge, Judgement, NO_FUNCTIONS, ProposedWrite, Room, Rule};
use crate::judge::rights;
use crate::judge::routes::Routes;
use crate::judge::several::{JudgeContext, SMALL_BYTES, TOGETHER_MAX, not_routed};
use crate::read::all_docs::{AllDocs, AllDocsQuery};
use crate::read::get;
use crate::read::missing::missing_revs;

/// The member of a design document with its validator.
const MEMBER: &str = "validate_doc_update";

/// The most ancestors of a replicated revision that are searched for a body.
const ANCESTORS_MAX: usize = 16;

/// The most text of a database's design documents with validators, in bytes.
const DESIGN_BYTES_MAX: usize = 16_000_000;

/// The memory limit for all reasons with which functions refuse edits of a batch, in bytes.
const REASONS_BYTES_MAX: usize = 8_000_000;

/// The length of each reason that is kept at least, in bytes.
const REASON_BYTES_MIN: usize = 40;

/// The rules of a database at a version of its record.
#[derive(Clone, Default)]
pub struct Rules {
    /// The source of channels; `None` in a database without channels.
    routes: Option<Routes>,
    validators: Arc<[Arc<dyn Rule>]>,
}

/// The rules of a version of a database's record.
#[derive(Default)]
struct KnownRules(OnceCell<Rules>);

impl State<Instance> for KnownRules {
    fn new_of(_: &Instance) -> KnownRules {
        KnownRules::default()
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes = self.routes.as_ref().map(Routes::is_function);
        f.debug_struct("Rules").field("function", &routes).field("validators", &self.validators.len()).finish()
    }
}

/// Returns the rules, read once for each version of the record, which changes with them.
async fn rules(database: &ReadHandle, instance: &Instance) -> Result<Rules> {
    let known = &instance.of_version.get::<KnownRules>(instance).0;
    known.get_or_try_init(|| load(database, instance)).await.cloned()
}

/// Returns whether a write of this document may change the rules.
pub fn is_judged_by(instance: &Instance, edit: &Edit<'_>) -> bool {
    let brings = || !edit.deleted && edit.body.get(MEMBER).is_some();
    DocumentId::of(&edit.id).is_design() && (instance.record.rules > 0 || brings())
}

/// Identifies a database, and distinguishes it from earlier ones of the same name.
pub(super) fn named(instance: &Instance) -> String {
    named_by(&instance.name, instance.cache_number())
}

/// Identifies a database of this name, by its [`Instance::cache_number`]; 0: a database to be created.
pub fn named_by(name: &str, number: u64) -> String {
    format!("{name}/{number}")
}

async fn load(database: &ReadHandle, instance: &Instance) -> Result<Rules> {
    let routes = if instance.record.channels > 0 { Some(Routes::load(&database.inner, instance).await?) } else { None };
    let failed = |reason: &str| Refusal::not_judged(NotJudged::Internal, reason);
    let (start, end) = (Some(DESIGN_IDS.0.to_owned()), Some(DESIGN_IDS.1.to_owned()));
    let query = AllDocsQuery { start, end, exclusive_end: true, include_docs: true, ..AllDocsQuery::default() };
    let named = named(instance);
    let mut walk = AllDocs::new(database.clone(), query);
    let (mut found, mut bytes) = (Vec::new(), 0);
    while let Some(rows) = walk.next_page().await? {
        for design in rows.into_iter().filter_map(|row| row.doc) {
            let text = [b"{", design.body.as_slice(), b"}"].concat();
            if json::parse(&text, &Limits::default()).is_ok_and(|body: Value<'_>| body.get(MEMBER).is_some()) {
                bytes += text.len();
                if bytes > DESIGN_BYTES_MAX {
                    return Err(failed("the design documents that validate are too large").into());
                }
                let judge = judge_of(&database.inner).ok_or_else(|| failed(NO_FUNCTIONS))?;
                found.push(judge.load(&design, &named));
            }
        }
    }
    Ok(Rules { routes, validators: found.into() })
}

/// Truncates the reason of a refusal to its share of the limit for `edits` edits.
pub fn cut(mut refusal: Refusal, edits: usize) -> Refusal {
    if let Refusal::Forbidden(reason)
    | Refusal::Unauthorized(reason)
    | Refusal::Rejected { reason, .. }
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

pub struct EditRequest<'a, 'e> {
    pub edit: &'a Edit<'e>,
    /// The tombstone on which an edit without a parent recreates a document, if known.
    pub upon: Option<&'a RevId>,
}

/// The judgement of an edit, and its inputs beside the rules.
#[derive(Debug, Clone)]
pub struct JudgedEdit {
    pub judgement: Judgement,
    /// True if the revision already existed, and no rule was run.
    pub was_there: bool,
    /// See [`EditRequest::upon`].
    pub upon: Option<RevId>,
    /// The author's access, in a database with channels; `None`: unrestricted.
    pub held: Option<Arc<HeldRights>>,
}

impl JudgedEdit {
    /// Returns a judgement without effects.
    pub fn may() -> JudgedEdit {
        JudgedEdit { judgement: Ok(Verdict::default()), was_there: false, upon: None, held: None }
    }
}

/// Runs the database's rules on edits. `caller`: the request ([`Judge::caller`]), which has `of` edits in all.
/// `is_anew`: the cached access of the author was outdated.
pub async fn judge(
    database: &WriteHandle,
    instance: &Instance,
    asked: &[EditRequest<'_, '_>],
    (caller, of): (u64, usize),
    is_anew: bool,
) -> Result<Vec<JudgedEdit>> {
    let all_may = || vec![JudgedEdit::may(); asked.len()];
    let is_design = |asked: &EditRequest<'_, '_>| DocumentId::of(&asked.edit.id).is_design();
    // The server's own writes are not judged.
    let Some(user) = database.actor().user() else { return Ok(all_may()) };
    let has_rules = instance.record.rules > 0 || instance.channels() > 0;
    let rules = if has_rules { rules(database, instance).await? } else { Rules::default() };
    let own = judge_of(&database.inner).map(|judge| &**judge).and_then(|judge| judge.of_database(&instance.name));
    let validators: Vec<&dyn Rule> = own.iter().chain(rules.validators.iter()).map(|rule| &**rule).collect();
    let routes = rules.routes.as_ref();
    let is_judged = !validators.is_empty() || routes.is_some();
    if !is_judged && !asked.iter().any(is_design) && asked.iter().all(|asked| asked.edit.expiry.is_none()) {
        return Ok(all_may());
    }
    let held = if routes.is_some() { rights::held(database, instance, database.asker(), is_anew).await? } else { None };
    let writer = held.as_ref().map(|held| rights::writer(database.asker(), held)).transpose();
    let judge = judge_of(&database.inner).map(|judge| &**judge);
    let judging = JudgeContext {
        database,
        instance,
        user,
        judge,
        validators,
        routes,
        writer: writer.as_ref().map(Option::as_ref),
        named: named(instance),
        caller,
        of,
    };
    let mut judged = judging.all(asked).await?;
    for (judged, asked) in judged.iter_mut().zip(asked) {
        judged.upon = asked.upon.cloned();
        judged.held = held.clone();
    }
    Ok(judged)
}

/// Routes an edit upon `old` by the database's function, or by the document itself; without a `writer` all requirements
/// are met.
///
/// # Errors
/// [`Refusal::InvalidSetting`]: the database has no channels.
#[boxed]
pub async fn route_edit(
    database: &ReadHandle,
    instance: &Instance,
    edit: &Edit<'_>,
    old: Option<&Document>,
    writer: Option<&Arc<Writer>>,
) -> Result<Judgement> {
    let routes = routes(database, instance).await?;
    let anonymous = User::default();
    Ok(routes.route(unsigned(database, instance, &anonymous, (edit, old), writer)).await)
}

/// Routes edits upon the revisions beside them, as [`route_edit`] does without a writer. Small ones share calls of the
/// function. Returns as many answers, in their order.
///
/// # Errors
/// As [`route_edit`].
#[boxed]
pub async fn all_routed(
    database: &ReadHandle,
    instance: &Instance,
    edits: &[(Edit<'_>, Option<Document>)],
) -> Result<Vec<Judgement>> {
    let routes = routes(database, instance).await?;
    let (anonymous, named) = (User::default(), named(instance));
    let judge = judge_of(&database.inner);
    let mut said = Vec::with_capacity(edits.len());
    let (mut rest, bytes) = (edits, |(edit, old): &(Edit<'_>, Option<Document>)| {
        2 * edit_bytes(edit) + 3 * old.as_ref().map_or(0, document_bytes)
    });
    while let Some(first) = rest.first() {
        let small = rest.iter().take(TOGETHER_MAX).take_while(|edit| bytes(edit) <= SMALL_BYTES).count();
        let together: usize = rest.iter().take(small).map(bytes).sum();
        // Without room for their texts they go one by one.
        let room = judge.map_or_else(|| Some(Box::new(()) as Room), |judge| judge.try_room(&named, together));
        if small < 2 || room.is_none() {
            let (edit, old) = first;
            said.push(routes.route(unsigned(database, instance, &anonymous, (edit, old.as_ref()), None)).await);
            rest = rest.get(1..).unwrap_or_default();
            continue;
        }
        let (some, others) = rest.split_at(small);
        let writes =
            some.iter().map(|(edit, old)| unsigned(database, instance, &anonymous, (edit, old.as_ref()), None));
        let mut answers = routes.route_all(writes.collect()).await;
        // An edit without an answer keeps its routing.
        answers.resize_with(small, || Err(not_routed()));
        said.append(&mut answers);
        rest = others;
    }
    Ok(said)
}

async fn routes(database: &ReadHandle, instance: &Instance) -> Result<Routes> {
    let routes = rules(database, instance).await?.routes;
    routes.ok_or_else(|| Refusal::InvalidSetting("The database has no channels".to_owned()).into())
}

/// Returns a write without a user.
fn unsigned<'a>(
    database: &'a ReadHandle,
    instance: &'a Instance,
    anonymous: &'a User,
    (edit, old): (&'a Edit<'a>, Option<&'a Document>),
    writer: Option<&'a Arc<Writer>>,
) -> ProposedWrite<'a> {
    let security = Some(instance.record.security.as_slice()).filter(|security| !security.is_empty());
    let now_s = database.inner.clock.unix_seconds();
    ProposedWrite { edit, old, user: anonymous, database: &instance.name, caller: 0, security, writer, now_s }
}

/// The inputs of a judgement, with their memory permit.
pub struct JudgeInputs {
    pub(super) old: Option<Document>,
    pub(super) room: Option<Room>,
    /// The approximate bytes of its texts.
    pub(super) bytes: usize,
}

/// Reads the revision that an edit replaces, with a permit for the texts of both: many edits wait for their functions
/// at once, among them small edits of large documents. A text is dropped while it waits for a permit. `None`: the
/// edit's revision already exists.
pub async fn with_room(
    database: &ReadHandle,
    edit: &Edit<'_>,
    (upon, eyes): (Option<&RevId>, Option<&ReadPrincipal>),
    judge: Option<&dyn Judge>,
    named: &str,
) -> Result<Option<JudgeInputs>> {
    let mut room = None;
    loop {
        let reading = match (edit.parent.as_ref().or(upon), &edit.history) {
            (None, None) => None,
            // The semaphore is never closed.
            _ => database.inner.turns.judged_reads.acquire().await.ok(),
        };
        let old = match read_replaced(database, edit, upon, eyes).await? {
            ReplacedRevision::Itself => return Ok(None),
            ReplacedRevision::Nothing => None,
            ReplacedRevision::Revision(old) => Some(*old),
        };
        drop(reading);
        let bytes = 2 * edit_bytes(edit) + 3 * old.as_ref().map_or(0, document_bytes);
        let Some(judge) = judge else { return Ok(Some(JudgeInputs { old, room, bytes })) };
        match room.take().or_else(|| judge.try_room(named, bytes)) {
            Some(room) => return Ok(Some(JudgeInputs { old, room: Some(room), bytes })),
            None => drop(old),
        }
        // The revision is read again: revisions do not change.
        room = Some(judge.room(named, bytes).await?);
    }
}

const REVISION_BYTES: usize = 40;
const ATTACHMENT_BYTES: usize = 200;

fn edit_bytes(edit: &Edit<'_>) -> usize {
    let names: usize = edit.attachments.iter().map(|(name, _)| name.len() + ATTACHMENT_BYTES).sum();
    text_bytes(&edit.body) + names + edit.history.as_ref().map_or(0, Vec::len) * REVISION_BYTES
}

fn document_bytes(document: &Document) -> usize {
    let names: usize = document.attachments.iter().map(|attachment| attachment.name.len() + ATTACHMENT_BYTES).sum();
    document.body.len() + names + document.revisions.as_ref().map_or(0, Vec::len) * REVISION_BYTES
}

/// Returns the approximate length of a value's text. The parser bounds the depth of the recursion.
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

pub enum ReplacedRevision {
    Itself,
    Nothing,
    /// The parent; for a replicated revision the nearest ancestor with a body.
    Revision(Box<Document>),
}

/// Finds the revision that an edit replaces. `eyes`: the reader who must see the edit's revision, or have pushed it,
/// for it to count as existing, as for `_revs_diff`.
#[boxed]
pub async fn read_replaced(
    database: &ReadHandle,
    edit: &Edit<'_>,
    upon: Option<&RevId>,
    eyes: Option<&ReadPrincipal>,
) -> Result<ReplacedRevision> {
    let candidates = match &edit.history {
        None => edit.parent.as_ref().or(upon).into_iter().cloned().collect(),
        Some(path) => {
            let wanted = [(edit.id.to_string(), path.clone())];
            // Both cases take the same time, so that timing does not reveal the revision's existence.
            let known = async {
                let (Some(asker), Some(rev)) = (eyes, path.first()) else { return Ok::<_, Error>(true) };
                let wanted = [(edit.id.to_string(), vec![rev.clone()])];
                let missing = missing_revs(&database.asked_by(asker.clone()), &wanted).await?;
                Ok(missing.iter().all(|(missing, _)| missing.is_empty()))
            };
            let (missing, is_known) = try_join(missing_revs(database, &wanted), known).await?;
            let missing = missing.into_iter().next().map(|(missing, _)| missing).unwrap_or_default();
            let mut there = path.iter().filter(|rev| !missing.contains(rev)).cloned().peekable();
            if path.first() == there.peek() {
                if is_known {
                    return Ok(ReplacedRevision::Itself);
                }
                there.next();
            }
            there.take(ANCESTORS_MAX).collect::<Vec<_>>()
        }
    };
    for rev in candidates {
        let options = GetOptions { rev: Some(rev), revs: true, ..GetOptions::default() };
        match get::document(database, &edit.id, &options).await {
            Err(Error::Refused(Refusal::DocumentNotFound(_))) => {}
            found => return Ok(ReplacedRevision::Revision(Box::new(found?))),
        }
    }
    Ok(ReplacedRevision::Nothing)
}
