//! Functions of design documents: what they are told, and writes judged by them.

use std::pin::Pin;
use std::sync::Arc;

use flatbed_javascript::{Caller, Design, Error, Runner, Validation};
use flatbed_layer::{
    Attachment, AttachmentEdit, Document, Edit, Judge, Judgement, NotJudged, Refusal, RevId, Room, Rule, User, Verdict,
    Writing, json,
};

use crate::json_out;

/// What `_security` is where nobody has set it: administrators only.
pub const SECURITY_DEFAULT: &[u8] = br#"{"members":{"roles":["_admin"]},"admins":{"roles":["_admin"]}}"#;

/// Who asks, as JSON text: `userCtx`.
pub fn user_context(user: &User, database: &str) -> String {
    let mut out = b"{\"db\":".to_vec();
    json_out::string(database, &mut out);
    out.extend_from_slice(b",\"name\":");
    json_out::string_or_null(user.name.as_deref(), &mut out);
    out.extend_from_slice(b",\"roles\":[");
    for (at, role) in user.roles.iter().enumerate() {
        json_out::comma(at, &mut out);
        json_out::string(role, &mut out);
    }
    out.extend_from_slice(b"]}");
    text(out)
}

/// Judges writes by the functions of design documents.
pub struct Functions(pub Runner);

impl Judge for Functions {
    fn caller(&self) -> u64 {
        self.0.caller().0
    }

    fn try_room(&self, database: &str, bytes: usize) -> Option<Room> {
        self.0.try_room(database, bytes).map(|room| Box::new(room) as Room)
    }

    fn room<'a>(
        &'a self,
        database: &'a str,
        bytes: usize,
    ) -> Pin<Box<dyn Future<Output = std::result::Result<Room, Refusal>> + Send + 'a>> {
        Box::pin(async move {
            let room = self.0.room(database, bytes, false).await.map_err(failed)?;
            Ok(Box::new(room) as Room)
        })
    }

    fn load(&self, design: &Document, database: &str) -> Arc<dyn Rule> {
        let mut text = Vec::new();
        json_out::document(design, &mut text);
        let design = Design::new(database, String::from_utf8_lossy(&text).into_owned());
        Arc::new(Loaded { runner: self.0.clone(), design })
    }
}

struct Loaded {
    runner: Runner,
    design: Design,
}

impl Rule for Loaded {
    fn judge<'a>(&'a self, write: Writing<'a>) -> Pin<Box<dyn Future<Output = Judgement> + Send + 'a>> {
        Box::pin(async move {
            let document = edited(write.edit, write.old);
            let old = write.old.map_or_else(
                || "null".to_owned(),
                |old| {
                    let mut out = Vec::new();
                    json_out::document(old, &mut out);
                    text(out)
                },
            );
            let security = String::from_utf8_lossy(write.security.unwrap_or(SECURITY_DEFAULT));
            let (caller, user) = (Caller(write.caller), user_context(write.user, write.database));
            let write = Validation { document: &document, old: &old, user: &user, security: &security };
            self.runner.validate(&self.design, caller, &write).await.map_err(failed)?;
            Ok(Verdict::default())
        })
    }
}

fn failed(error: Error) -> Refusal {
    let reason = match &error {
        Error::Missing => "validate_doc_update is no function".to_owned(),
        error => error.to_string(),
    };
    let because = match error {
        Error::Forbidden(reason) => return Refusal::Forbidden(reason),
        Error::Unauthorized(reason) => return Refusal::Unauthorized(reason),
        Error::Missing | Error::Compilation(_) => NotJudged::Compilation,
        Error::Thrown { .. } => NotJudged::Thrown,
        Error::TimedOut(_) => NotJudged::TimedOut,
        Error::OutOfResources => NotJudged::OutOfResources,
        Error::Busy | Error::Refused => NotJudged::Busy,
    };
    Refusal::NotJudged { because, reason }
}

/// Written as JSON, without a copy.
fn text(out: Vec<u8>) -> String {
    String::from_utf8(out).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// An edit as the document that it would make, in JSON text. As in CouchDB `_rev` is that of the revision below it where the
/// new one is yet to be named.
fn edited(edit: &Edit<'_>, old: Option<&Document>) -> String {
    let mut out = b"{\"_id\":".to_vec();
    json_out::string(&edit.id, &mut out);
    let line: &[RevId] = match (&edit.history, &edit.parent) {
        (Some(history), _) => history,
        (None, parent) => parent.as_slice(),
    };
    if let Some(first) = line.first() {
        out.extend_from_slice(b",\"_rev\":");
        json_out::rev(first, &mut out);
    }
    if edit.deleted {
        out.extend_from_slice(b",\"_deleted\":true");
    }
    let mut body = Vec::new();
    json::write(&edit.body, &mut body);
    if let Some(members) = body.get(1..body.len().saturating_sub(1)).filter(|members| !members.is_empty()) {
        out.push(b',');
        out.extend_from_slice(members);
    }
    out.extend_from_slice(b",\"_revisions\":{\"start\":");
    json_out::number(line.first().map_or(0, RevId::generation), &mut out);
    out.extend_from_slice(b",\"ids\":[");
    for (at, rev) in line.iter().enumerate() {
        json_out::comma(at, &mut out);
        json_out::string(&rev.hash_text(), &mut out);
    }
    out.extend_from_slice(b"]}");
    if !edit.attachments.is_empty() {
        out.extend_from_slice(b",\"_attachments\":{");
        for (at, (name, attachment)) in edit.attachments.iter().enumerate() {
            json_out::comma(at, &mut out);
            let there = |found: &&Attachment| found.name == *name;
            match attachment {
                AttachmentEdit::Copy(attachment) => json_out::attachment(attachment, "stub", false, &mut out),
                AttachmentEdit::Data { content_type, .. } => {
                    json_out::string(name, &mut out);
                    out.extend_from_slice(b":{");
                    json_out::member("content_type", content_type, &mut out);
                    out.extend_from_slice(b",\"stub\":true}");
                }
                AttachmentEdit::Stub { .. } => match old.and_then(|old| old.attachments.iter().find(there)) {
                    Some(attachment) => json_out::attachment(attachment, "stub", false, &mut out),
                    None => {
                        json_out::string(name, &mut out);
                        out.extend_from_slice(b":{\"stub\":true}");
                    }
                },
            }
        }
        out.push(b'}');
    }
    out.push(b'}');
    text(out)
}
