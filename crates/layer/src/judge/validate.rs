//! Validation of writes by functions of a database's design documents.
//!
//! The layer knows which design documents have such a function, and runs none itself: whoever opens it says how. What a
//! function sees is immutable once it is found: the edit, the revision that it replaces, and the functions as of a version
//! of the database's record, `_security` among them. So it is asked before the write's transaction, which takes no longer
//! for it, and that transaction fails if the version is another one by then.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use flatbed_flatten::json::{self, Limits, Value};
use futures_util::future::BoxFuture;
use futures_util::stream::{StreamExt, TryStreamExt};
use prost::Message;
use tokio::sync::Semaphore;

use crate::database::{Database, Reader};
use crate::document::edit::{Document, Edit, GetOptions};
use crate::error::{Error, Result};
use crate::instance::Instance;
use crate::judge::actor::{Actor, User};
use crate::read::all_docs::AllDocsQuery;
use crate::store::proto::DatabaseRecord;
use crate::store::transaction::Transaction;

/// The member of a design document that validates.
const MEMBER: &str = "validate_doc_update";

/// Edits of a batch that are validated at once.
const VALIDATED_AT_ONCE: usize = 8;

/// Old revisions that are read at once, in all: their size is known when they are there.
static READING: Semaphore = Semaphore::const_new(12);

/// How many ancestors of a replicated revision are looked at for a body.
const ANCESTORS_MAX: usize = 16;

/// Text of design documents that validate, in a database, at most.
const DESIGN_BYTES_MAX: usize = 16_000_000;

/// What is kept of all reasons that functions give for refusing edits of a batch, in bytes.
const REASONS_BYTES_MAX: usize = 8_000_000;

/// What is kept of each at least.
const REASON_BYTES_MIN: usize = 40;

/// How functions of design documents are run.
pub trait Validate: Send + Sync {
    /// A design document that validates; `database` tells its database from all others, those that had its name before
    /// included.
    fn load(&self, design: &Document, database: &str) -> Arc<dyn Validator>;

    /// Another number than it gave before: on whose behalf a batch of edits is validated.
    fn caller(&self) -> u64;

    /// Room for what an edit of a database is validated with, of so many bytes in all, if it is there now.
    fn try_room(&self, _database: &str, _bytes: usize) -> Option<Room> {
        Some(Box::new(()))
    }

    /// Waits for it, some seconds at most.
    ///
    /// # Errors
    /// [`Error::ValidationFailed`]: there was none.
    fn room<'a>(&'a self, _database: &'a str, _bytes: usize) -> BoxFuture<'a, Result<Room>> {
        Box::pin(async { Ok(Box::new(()) as Room) })
    }
}

/// Room that is held until this is dropped.
pub type Room = Box<dyn Any + Send>;

/// A design document's function.
pub trait Validator: Send + Sync {
    /// Resolves within seconds.
    ///
    /// # Errors
    /// [`Error::Forbidden`], [`Error::Unauthorized`], [`Error::ValidationFailed`].
    fn validate<'a>(&'a self, write: Writing<'a>) -> BoxFuture<'a, Result<()>>;
}

/// What is to be written.
#[derive(Debug, Clone, Copy)]
pub struct Writing<'a> {
    /// The edit.
    pub edit: &'a Edit<'a>,
    /// The revision that it replaces, if it does.
    pub old: Option<&'a Document>,
    /// Who writes.
    pub user: &'a User,
    /// The database's name.
    pub database: &'a str,
    /// Of [`Validate::caller`]: what a function leaves behind is seen by calls of the same caller alone.
    pub caller: u64,
    /// The database's `_security`, if it was set.
    pub security: Option<&'a [u8]>,
}

/// The functions of a database as of a version of its record.
#[derive(Clone, Default)]
pub(crate) struct Validators(Arc<[Arc<dyn Validator>]>);

impl fmt::Debug for Validators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Validators").field(&self.0.len()).finish()
    }
}

impl Instance {
    /// The functions, read once for each version of the record: where they have changed since, the record's version has too.
    async fn validators(&self, database: &Reader) -> Result<Validators> {
        self.validators.get_or_try_init(|| load(database, self)).await.cloned()
    }

    /// Whether a write of this document may change what validates.
    pub(crate) fn is_validated_by(&self, edit: &Edit<'_>) -> bool {
        let brings = || !edit.deleted && edit.body.get(MEMBER).is_some();
        edit.id.starts_with("_design/") && (self.record.rules > 0 || brings())
    }

    /// Tells every process that what validates has changed.
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

async fn load(database: &Reader, instance: &Instance) -> Result<Validators> {
    let failed = |reason: &str| Error::ValidationFailed { error: "internal_server_error", reason: reason.to_owned() };
    let (start, end) = (Some("_design/".to_owned()), Some("_design0".to_owned()));
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
                    return Err(failed("the design documents that validate are too large"));
                }
                let validate = database.inner.validate.get().ok_or_else(|| failed("no functions run here"))?;
                found.push(validate.load(&design, &named));
            }
        }
    }
    Ok(Validators(found.into()))
}

/// An error with as much of its reason as there is room for where so many edits may be refused.
fn cut(mut error: Error, edits: usize) -> Error {
    if let Error::Forbidden(reason) | Error::Unauthorized(reason) | Error::ValidationFailed { reason, .. } = &mut error
    {
        let room = (REASONS_BYTES_MAX / edits.max(1)).max(REASON_BYTES_MIN);
        let end = (0..=room.min(reason.len())).rev().find(|end| reason.is_char_boundary(*end));
        reason.truncate(end.unwrap_or(0));
        reason.shrink_to_fit();
    }
    error
}

/// Asks the database's functions about edits: for each one why it is refused, if it is. `of`: how many edits the whole
/// request has.
pub(crate) async fn refusals(
    database: &Database,
    instance: &Instance,
    edits: &[&Edit<'_>],
    of: usize,
) -> Result<Vec<Option<Error>>> {
    let none = || vec![None; edits.len()];
    // What the server writes of its own accord is not validated.
    let (true, Actor::User(user)) = (instance.record.rules > 0, &database.actor) else { return Ok(none()) };
    let validators = instance.validators(database).await?;
    if validators.0.is_empty() {
        return Ok(none());
    }
    let security = Some(instance.record.security.as_slice()).filter(|security| !security.is_empty());
    let Some(validate) = database.inner.validate.get() else { return Ok(none()) };
    let (caller, named) = (validate.caller(), &named(instance));
    let asked = edits.iter().map(|edit| {
        let validators = &validators;
        async move {
            // As in CouchDB: a broken function must not keep anybody from mending it.
            if edit.id.starts_with("_design/") {
                return Ok(None);
            }
            let (old, _room) = match with_room(database, edit, &**validate, named).await {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(None),
                Err(error @ Error::ValidationFailed { .. }) => return Ok(Some(error)),
                Err(error) => return Err(error),
            };
            for validator in validators.0.iter() {
                let database = &*instance.name;
                let write = Writing { edit, old: old.as_ref(), user, database, caller, security };
                if let Err(error) = validator.validate(write).await {
                    return Ok(Some(cut(error, of)));
                }
            }
            Ok(None)
        }
    });
    let asked: Vec<BoxFuture<'_, Result<Option<Error>>>> = asked.map(|asked| Box::pin(asked) as _).collect();
    futures_util::stream::iter(asked).buffered(VALIDATED_AT_ONCE).try_collect().await
}

/// The revision that an edit replaces, with room for the edit's texts and its own: many edits wait for their functions at
/// once, small ones of large documents among them. What finds no room is not held while it waits for some.
async fn with_room(
    database: &Reader,
    edit: &Edit<'_>,
    validate: &dyn Validate,
    named: &str,
) -> Result<Option<(Option<Document>, Room)>> {
    let mut room = None;
    loop {
        let reading = match (&edit.parent, &edit.history) {
            (None, None) => None,
            // It is never closed.
            _ => READING.acquire().await.ok(),
        };
        let Some(old) = old(database, edit).await? else { return Ok(None) };
        drop(reading);
        let bytes = 2 * edit_bytes(edit) + 3 * old.as_ref().map_or(0, document_bytes);
        match room.take().or_else(|| validate.try_room(named, bytes)) {
            Some(room) => return Ok(Some((old, room))),
            None => drop(old),
        }
        // What was read then is what is read again: revisions do not change.
        room = Some(validate.room(named, bytes).await?);
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

/// The revision that an edit replaces: its parent, of a replicated one the nearest ancestor whose body is there. `None`:
/// the revision is there already.
async fn old(database: &Reader, edit: &Edit<'_>) -> Result<Option<Option<Document>>> {
    let candidates = match &edit.history {
        None => edit.parent.iter().cloned().collect(),
        Some(path) => {
            let missing = database.missing_revs(&[(edit.id.to_string(), path.clone())]).await?;
            let missing = missing.into_iter().next().map(|(missing, _)| missing).unwrap_or_default();
            let mut there = path.iter().filter(|rev| !missing.contains(rev)).cloned().peekable();
            if path.first() == there.peek() {
                return Ok(None);
            }
            there.take(ANCESTORS_MAX).collect::<Vec<_>>()
        }
    };
    for rev in candidates {
        let options = GetOptions { rev: Some(rev), revs: true, ..GetOptions::default() };
        match database.get(&edit.id, &options).await {
            Err(Error::DocumentNotFound(_)) => {}
            found => return Ok(Some(Some(found?))),
        }
    }
    Ok(Some(None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_many_edits_are_short() {
        let reason = "\u{20ac}".repeat(10_000);
        for (edits, least, most) in [(1, 30_000, 30_000), (1_000, 7_900, 8_000), (100_000_000, 38, 40)] {
            for error in [
                Error::Forbidden(reason.clone()),
                Error::Unauthorized(reason.clone()),
                Error::ValidationFailed { error: "timeout", reason: reason.clone() },
            ] {
                let told = cut(error, edits).to_string();
                assert!((least..=most).contains(&told.len()) && reason.starts_with(&told), "{edits}: {}", told.len());
            }
        }
    }
}
