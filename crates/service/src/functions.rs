//! Functions of design documents: their input, and their judgements of writes.

use std::pin::Pin;
use std::sync::Arc;

use flatbed_javascript::{
    Caller, Design, Error, Runner, SyncDecision, SyncFunction, SyncRefusal, SyncWrite, WriteContext, WriteTexts,
};
use flatbed_layer::json::{self, Object, Value};
use flatbed_layer::{
    Attachment, AttachmentEdit, DatabaseSecurity, DesignFault, Document, Edit, Error as LayerError, Judge, Judgement,
    NotJudged, ProposedWrite, Reader, Refusal, RevId, Room, Rule, USERS, User, Verdict, WORKER,
};

use crate::function_limit::unless_ended;
use crate::json_out;
use crate::rights::{Rights, parsed};
use crate::turns::owner_number;
use crate::user_documents::UsersRule;
use crate::worker_documents::{DocumentCheck, WorkerRule};

/// The `_security` of a database where none was set: administrators only.
pub const SECURITY_DEFAULT: &[u8] = br#"{"members":{"roles":["_admin"]},"admins":{"roles":["_admin"]}}"#;

/// Returns the JSON text of `userCtx`.
pub fn user_context(user: &User, database: &str) -> String {
    text(Object::text(|context| {
        context.string("db", database).string_or_null("name", user.name.as_deref());
        context.array("roles").strings(user.roles.iter().map(String::as_str));
    }))
}

/// Adds `userCtx` and `secObj` to a request object, the text of a JSON object that has members.
pub(crate) async fn complete_request(
    mut request: Vec<u8>,
    rights: &Rights,
    database: &Reader,
) -> std::result::Result<String, LayerError> {
    let security = database.security().await?;
    request.pop();
    let mut object = Object::reopen(&mut request);
    object.raw("userCtx", user_context(&rights.user(), database.name()).as_bytes());
    object.raw("secObj", security.as_deref().unwrap_or(SECURITY_DEFAULT));
    object.end();
    Ok(text(request))
}

/// Runs the functions of design documents: judges writes by them, and maps and reduces views.
#[derive(Clone)]
pub struct Functions {
    pub(crate) runner: Runner,
    of_worker: Option<DocumentCheck>,
}

impl Functions {
    /// Runs functions in `runner`. Refuses documents of `_worker`.
    pub fn new(runner: Runner) -> Functions {
        Functions { runner, of_worker: None }
    }

    /// Accepts documents of `_worker` if `check` does.
    #[must_use]
    pub fn with_worker_check(self, check: DocumentCheck) -> Functions {
        Functions { of_worker: Some(check), ..self }
    }
}

impl Judge for Functions {
    fn of_database(&self, name: &str) -> Option<Arc<dyn Rule>> {
        match name {
            USERS => Some(Arc::new(UsersRule)),
            WORKER => Some(Arc::new(WorkerRule(self.of_worker))),
            _ => None,
        }
    }

    fn caller(&self) -> u64 {
        self.runner.caller().number
    }

    fn try_room(&self, database: &str, bytes: usize) -> Option<Room> {
        self.runner.try_room(database, bytes).map(|room| Box::new(room) as Room)
    }

    fn room<'a>(
        &'a self,
        database: &'a str,
        bytes: usize,
    ) -> Pin<Box<dyn Future<Output = std::result::Result<Room, Refusal>> + Send + 'a>> {
        Box::pin(async move {
            let room = unless_ended(self.runner.room(database, bytes, false)).await.map_err(to_refusal)?;
            Ok(Box::new(room) as Room)
        })
    }

    fn note_security(&self, database: &str, security: &DatabaseSecurity) {
        self.runner.set_owner(database, owner_number(&security.parsed(parsed)));
    }

    fn load(&self, design: &Document, database: &str) -> Arc<dyn Rule> {
        let mut text = Vec::new();
        json_out::document(design, &mut text);
        let design = Design::new(database, String::from_utf8_lossy(&text).into_owned());
        Arc::new(DesignRule { runner: self.runner.clone(), design })
    }

    fn sync_function(&self, database: &str, source: &str) -> Option<Arc<dyn Rule>> {
        Some(Arc::new(SyncFunctionRule { runner: self.runner.clone(), function: SyncFunction::new(database, source) }))
    }

    fn check_sync_function<'a>(
        &'a self,
        database: &'a str,
        source: &'a str,
    ) -> Pin<Box<dyn Future<Output = std::result::Result<(), Refusal>> + Send + 'a>> {
        Box::pin(async move {
            let function = SyncFunction::new(database, source);
            self.runner.check_sync(&function).await.map_err(|error| match error {
                Error::Missing
                | Error::Language(_)
                | Error::Compilation(_)
                | Error::Thrown { .. }
                | Error::TimedOut(_) => {
                    Refusal::InvalidDesign { what: DesignFault::Compilation, reason: error.to_string() }
                }
                error => to_refusal(error),
            })
        })
    }
}

struct SyncFunctionRule {
    runner: Runner,
    function: SyncFunction,
}

impl Rule for SyncFunctionRule {
    fn judge<'a>(&'a self, write: ProposedWrite<'a>) -> Pin<Box<dyn Future<Output = Judgement> + Send + 'a>> {
        Box::pin(async move {
            let route = self.runner.route(&self.function, self.sync_input(&write));
            to_judgement(unless_ended(route).await)
        })
    }

    fn judge_all<'a>(
        &'a self,
        writes: Vec<ProposedWrite<'a>>,
    ) -> Pin<Box<dyn Future<Output = Vec<Judgement>> + Send + 'a>> {
        Box::pin(async move {
            let asked: Vec<SyncWrite> = writes.iter().map(|write| self.sync_input(write)).collect();
            match unless_ended(async { Ok(self.runner.route_all(&self.function, asked).await) }).await {
                Ok(said) => said.into_iter().map(to_judgement).collect(),
                Err(error) => writes.iter().map(|_| Err(to_refusal(error.clone()))).collect(),
            }
        })
    }
}

impl SyncFunctionRule {
    fn sync_input(&self, write: &ProposedWrite<'_>) -> SyncWrite {
        SyncWrite {
            document: self.routed_text(write.edit),
            old: write.old.filter(|_| self.function.may_read_old()).map(replaced_text),
            meta: None,
            writer: write.writer.cloned(),
            client: write.user.client,
            id_bytes: write.edit.id.len(),
            now_s: write.now_s,
        }
    }

    /// Returns an edit as the sync function sees it: without attachments, revisions and expiry, and without values
    /// that the function cannot read. `_rev` is as in [`edited_text`].
    fn routed_text(&self, edit: &Edit<'_>) -> String {
        text(Object::text(|document| {
            document.string("_id", &edit.id);
            let line: &[RevId] = edit.history.as_deref().unwrap_or(edit.parent.as_slice());
            if let Some(rev) = line.first() {
                json_out::rev(rev, document.place("_rev"));
            }
            if edit.deleted {
                document.bool("_deleted", true);
            }
            if let Value::Object(members) = &edit.body {
                for (name, value) in members.iter().filter(|(name, _)| self.function.may_read(name)) {
                    document.value(&**name, value);
                }
            }
        }))
    }
}

fn to_judgement(said: flatbed_javascript::Result<SyncDecision>) -> Judgement {
    let refused = |refusal: SyncRefusal| Refusal::Rejected { status: refusal.status(), reason: refusal.to_string() };
    said.map_err(to_refusal)?.map(Verdict::from).map_err(refused)
}

/// Returns the replaced revision as a sync function sees it.
fn replaced_text(old: &Document) -> String {
    text(Object::text(|document| {
        document.string("_id", &old.id);
        if old.deleted {
            document.bool("_deleted", true);
        }
        document.members(&old.body);
    }))
}

struct DesignRule {
    runner: Runner,
    design: Design,
}

impl Rule for DesignRule {
    fn judge<'a>(&'a self, write: ProposedWrite<'a>) -> Pin<Box<dyn Future<Output = Judgement> + Send + 'a>> {
        Box::pin(async move {
            self.judge_all(vec![write]).await.pop().unwrap_or_else(|| Err(to_refusal(Error::OutOfResources)))
        })
    }

    fn judge_all<'a>(
        &'a self,
        writes: Vec<ProposedWrite<'a>>,
    ) -> Pin<Box<dyn Future<Output = Vec<Judgement>> + Send + 'a>> {
        Box::pin(async move {
            let Some(ProposedWrite { user, database, caller, security, .. }) = writes.first() else {
                return Vec::new();
            };
            let context = WriteContext {
                user: user_context(user, database).into(),
                security: String::from_utf8_lossy(security.unwrap_or(SECURITY_DEFAULT)).into(),
            };
            let caller = Caller { number: *caller, client: user.client };
            let texts = writes.iter().map(write_texts).collect();
            let asked = async { Ok(self.runner.validate_all(&self.design, caller, &context, texts).await) };
            match unless_ended(asked).await {
                Ok(said) => {
                    said.into_iter().map(|said| said.map(|()| Verdict::default()).map_err(to_refusal)).collect()
                }
                Err(error) => writes.iter().map(|_| Err(to_refusal(error.clone()))).collect(),
            }
        })
    }
}

fn write_texts(write: &ProposedWrite<'_>) -> WriteTexts {
    let old = |old: &Document| {
        let mut out = Vec::new();
        json_out::document(old, &mut out);
        text(out)
    };
    WriteTexts { document: edited_text(write.edit, write.old), old: write.old.map(old) }
}

fn to_refusal(error: Error) -> Refusal {
    let reason = match &error {
        Error::Missing => "validate_doc_update is no function".to_owned(),
        // An error without a name of its own keeps the text that was thrown.
        Error::Thrown { name, reason } if name == "unknown_error" => reason.clone(),
        error => error.to_string(),
    };
    let because = match error {
        Error::Forbidden(reason) => return Refusal::Forbidden(reason),
        Error::Unauthorized(reason) => return Refusal::Unauthorized(reason),
        Error::Language(_) => NotJudged::Language,
        Error::Missing | Error::Compilation(_) => NotJudged::Compilation,
        Error::Thrown { .. } => NotJudged::Thrown,
        Error::TimedOut(_) => NotJudged::TimedOut,
        Error::OutOfResources => NotJudged::OutOfResources,
        Error::Busy => NotJudged::Busy,
    };
    Refusal::NotJudged { because, reason }
}

/// Converts written JSON to a `String` without a copy.
fn text(out: Vec<u8>) -> String {
    String::from_utf8(out).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Returns the document that an edit would make, in JSON text. As in CouchDB, `_rev` is that of the replaced revision
/// if the new one has no name yet.
fn edited_text(edit: &Edit<'_>, old: Option<&Document>) -> String {
    let mut out = Vec::new();
    let mut document = Object::new(&mut out);
    document.string("_id", &edit.id);
    let line: &[RevId] = match (&edit.history, &edit.parent) {
        (Some(history), _) => history,
        (None, parent) => parent.as_slice(),
    };
    if let Some(first) = line.first() {
        json_out::rev(first, document.place("_rev"));
    }
    if edit.deleted {
        document.bool("_deleted", true);
    }
    document.members(&json::members_to_vec(&edit.body));
    if !line.is_empty() {
        json_out::history(line, document.object("_revisions"));
    }
    if !edit.attachments.is_empty() {
        let mut attachments = document.object("_attachments");
        for (name, attachment) in &edit.attachments {
            let there = |found: &&Attachment| found.name == *name;
            match attachment {
                AttachmentEdit::Copy(attachment) => json_out::attachment(attachment, "stub", false, &mut attachments),
                AttachmentEdit::Data { content_type, .. } => {
                    attachments.object(&**name).string("content_type", content_type).bool("stub", true);
                }
                AttachmentEdit::Stub { .. } => match old.and_then(|old| old.attachments.iter().find(there)) {
                    Some(attachment) => json_out::attachment(attachment, "stub", false, &mut attachments),
                    None => {
                        attachments.object(&**name).bool("stub", true);
                    }
                },
            }
        }
    }
    document.end();
    text(out)
}

#[cfg(test)]
mod tests {
    use flatbed_javascript::RunnerOptions;
    use flatbed_layer::json::Limits;
    use flatbed_testkit::{PATIENCE, soon, until};

    use super::*;
    use crate::function_limit::with_functions_until;

    #[tokio::test]
    async fn no_write_is_judged_after_its_client_has_left() {
        let (wait_max, validation_max) = (PATIENCE, 10 * PATIENCE);
        let runner = Runner::new(RunnerOptions { wait_max, validation_max, ..RunnerOptions::default() }).unwrap();
        let text = r#"{"validate_doc_update":"function (doc) { if (doc.no) throw({forbidden: 'no'}); while (doc.endless); }"}"#;
        let rule = DesignRule { runner: runner.clone(), design: Design::new("db/1", text) };
        let edits = ["{}", r#"{"no":1}"#, r#"{"endless":1}"#, "{}"].map(|body| Edit {
            expiry: None,
            id: "d".into(),
            parent: None,
            history: None,
            deleted: false,
            attachments: Vec::new(),
            body: json::parse(body.as_bytes(), &Limits::default()).unwrap(),
        });
        let user = User::default();
        let writes = |count: usize| -> Vec<ProposedWrite<'_>> {
            let write = |edit| ProposedWrite {
                edit,
                old: None,
                user: &user,
                database: "db",
                caller: 7,
                security: None,
                writer: None,
                now_s: 0,
            };
            edits.iter().take(count).map(write).collect()
        };
        let said = soon(rule.judge_all(writes(2))).await;
        assert_eq!(said, [Ok(Verdict::default()), Err(Refusal::Forbidden("no".to_owned()))]);
        let calls = || runner.figures().function_calls.get();
        let before = calls();
        let leaves = until("the writes are judged", async || calls() > before);
        let said = soon(with_functions_until(leaves, rule.judge_all(writes(4)))).await;
        // None of them is written, not even those that were judged before.
        let busy: Judgement = Err(to_refusal(Error::Busy));
        assert_eq!(said, vec![busy; 4]);
    }
}
