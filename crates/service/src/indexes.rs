//! Creation and deletion of Mango indexes, which are members of design documents.

use async_recursion::async_recursion as boxed;
use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{AttachmentEdit, Edit, Error, GetOptions, NotFound, Refusal, check_document_id};
use flatbed_mango::{BESIDE, Index, IndexRequest, MangoError, without_index};

use crate::database::Writer;
use crate::queries::{QueryError, Result, text_of};

/// The longest definition of an index in its design document, in bytes; a longer one is refused.
const DEFINITION_BYTES_MAX: usize = 15_000;

/// The most attempts to edit a design document that others edit.
const ATTEMPTS_MAX: usize = 10;

impl Writer {
    /// Adds an index to its design document; returns whether the document changed.
    #[boxed]
    pub async fn create_index(&self, request: &IndexRequest) -> Result<bool> {
        check_document_id(request.ddoc()).map_err(Error::from)?;
        let indexes = self.json_indexes().await?;
        let created = self.change(request.ddoc(), |existing| {
            let Some(body) = request.put_into(existing, indexes.is_partitioned())? else {
                return Ok(DesignChange::Nothing);
            };
            // The filters of the other indexes are not compiled.
            let made = Index::of_view(request.ddoc(), &body, request.name(), indexes.is_partitioned());
            if let Some(index) = made.filter(|index| !indexes.all().contains(index)) {
                if !indexes.has_room_for(request.ddoc(), &body, request.name()) {
                    return Err(refused("The database has as many indexes as it can have"));
                }
                if let Some(member) = BESIDE.into_iter().find(|member| index.asks_about(member)) {
                    return Err(refused(&format!("An index cannot be on {member}")));
                }
            }
            let text = json::to_vec(body.get("views").and_then(|views| views.get(request.name())).unwrap_or(&body));
            if text.len() > DEFINITION_BYTES_MAX {
                return Err(refused("The index's definition is too long"));
            }
            Ok(DesignChange::Write(body))
        });
        created.await
    }

    /// Removes indexes from their design document, and deletes the document if nothing is left; returns whether it
    /// had any of them.
    pub async fn delete_indexes(&self, ddoc: &str, is_meant: impl Fn(&Index) -> bool) -> Result<bool> {
        let deleted = self.change(ddoc, |existing| {
            let Some(existing) = existing else { return Ok(DesignChange::Nothing) };
            let mut left = Some(existing.clone().into_owned());
            let mut found = false;
            for index in Index::of_design_document(ddoc, existing, false).iter().filter(|index| is_meant(index)) {
                left = left.and_then(|left| without_index(&left, index.name()));
                found = true;
            }
            Ok(match (found, left) {
                (false, _) => DesignChange::Nothing,
                (true, Some(body)) => DesignChange::Write(body),
                (true, None) => DesignChange::Delete,
            })
        });
        deleted.await
    }

    /// Applies `change` to the current document; returns whether there was a change.
    async fn change(
        &self,
        id: &str,
        change: impl Fn(Option<&Value<'_>>) -> std::result::Result<DesignChange, MangoError>,
    ) -> Result<bool> {
        let mut attempts = 0;
        loop {
            let existing = match self.get(id, &GetOptions::default()).await {
                Ok(document) => Some(document),
                Err(Error::Refused(Refusal::DocumentNotFound(NotFound::Missing | NotFound::Deleted))) => None,
                Err(error) => return Err(error.into()),
            };
            let text = existing.as_ref().map(text_of);
            let value = text.as_ref().and_then(|text| json::parse(text, &Limits::default()).ok());
            let (deleted, body) = match change(value.as_ref()).map_err(QueryError::Refused)? {
                DesignChange::Nothing => return Ok(false),
                DesignChange::Write(body) => (false, body),
                DesignChange::Delete => (true, Value::Object(Vec::new())),
            };
            let parent = existing.as_ref().map(|document| document.rev.clone());
            let kept = existing.into_iter().filter(|_| !deleted).flat_map(|document| document.attachments);
            let attachments = kept.map(|attachment| (attachment.name, AttachmentEdit::Stub { revpos: None })).collect();
            let edit = Edit { expiry: None, id: id.into(), parent, history: None, deleted, attachments, body };
            attempts += 1;
            match self.update(&edit).await {
                Ok(_) => return Ok(true),
                Err(Error::Refused(Refusal::Conflict)) if attempts < ATTEMPTS_MAX => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The refusal of a definition that cannot be indexed, in CouchDB's words.
fn refused(reason: &str) -> MangoError {
    MangoError { status: 400, error: "invalid_index", reason: reason.to_owned() }
}

enum DesignChange {
    Nothing,
    Write(Value<'static>),
    Delete,
}
