//! The revision that an attachment is added to or removed from.

use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{AttachmentEdit, Edit, Error as LayerError, GetOptions, Reader, Refusal, RevId};

/// The reason why there is no such revision.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BaseError {
    /// The document exists, and the request names no revision.
    #[error("the document exists")]
    Unnamed,
    /// The named revision does not exist.
    #[error("the named revision is missing")]
    Missing,
    /// An error of the layer.
    #[error(transparent)]
    Layer(LayerError),
}

/// A revision whose body and other attachments the new one keeps. Without a parent it is that of a new document.
pub struct BaseRevision {
    parent: Option<RevId>,
    body: Vec<u8>,
    names: Vec<String>,
}

impl BaseRevision {
    /// Reads the named revision. `None` for a new or deleted document.
    ///
    /// # Errors
    /// [`BaseError`].
    pub async fn read(database: &Reader, id: &str, rev: Option<RevId>) -> Result<BaseRevision, BaseError> {
        let options = GetOptions { rev: rev.clone(), tombstone: true, ..GetOptions::default() };
        match (database.get(id, &options).await, rev) {
            (Ok(document), Some(rev)) => Ok(BaseRevision {
                parent: Some(rev),
                body: [b"{", document.body.as_slice(), b"}"].concat(),
                names: document.attachments.into_iter().map(|attachment| attachment.name).collect(),
            }),
            (Ok(document), None) if !document.deleted => Err(BaseError::Unnamed),
            (Ok(_), None) | (Err(LayerError::Refused(Refusal::DocumentNotFound(_))), None) => {
                Ok(BaseRevision { parent: None, body: b"{}".to_vec(), names: Vec::new() })
            }
            (Err(LayerError::Refused(Refusal::DocumentNotFound(_))), Some(_)) => Err(BaseError::Missing),
            (Err(error), _) => Err(BaseError::Layer(error)),
        }
    }

    /// Returns whether the revision has an attachment of this name.
    pub fn has(&self, name: &str) -> bool {
        self.names.iter().any(|other| other == name)
    }

    /// Returns the edit that replaces or adds an attachment. `None` removes it.
    pub fn edit<'b>(&'b self, id: &'b str, name: &str, new: Option<AttachmentEdit>) -> Edit<'b> {
        let others = self.names.iter().filter(|other| *other != name);
        let others = others.map(|other| (other.clone(), AttachmentEdit::Stub { revpos: None }));
        Edit {
            id: id.into(),
            parent: self.parent.clone(),
            history: None,
            deleted: false,
            expiry: None,
            attachments: new.map(|new| (name.to_owned(), new)).into_iter().chain(others).collect(),
            body: json::parse(&self.body, &Limits::default()).unwrap_or(Value::Object(Vec::new())),
        }
    }
}
