//! The validation of documents of `_worker`, whose form only the worker knows.

use std::pin::Pin;

use flatbed_layer::json;
use flatbed_layer::{DocumentId, Judgement, ProposedWrite, Refusal, Rule, Verdict};

/// Checks a document of `_worker` by its id and its text, a JSON object without members that begin with an
/// underscore.
///
/// # Errors
/// The reason, for the writer. It must not quote a value that may be a secret.
pub type DocumentCheck = fn(&str, &[u8]) -> Result<(), String>;

/// The rule of `_worker`. Without a check it allows only deletions.
pub(crate) struct WorkerRule(pub(crate) Option<DocumentCheck>);

impl Rule for WorkerRule {
    fn judge<'a>(&'a self, write: ProposedWrite<'a>) -> Pin<Box<dyn Future<Output = Judgement> + Send + 'a>> {
        Box::pin(async move { self.check(&write).map(|()| Verdict::default()) })
    }
}

impl WorkerRule {
    fn check(&self, write: &ProposedWrite<'_>) -> Result<(), Refusal> {
        let edit = write.edit;
        if edit.deleted || DocumentId::of(&edit.id).is_design() {
            return Ok(());
        }
        let Some(check) = self.0 else {
            return Err(Refusal::Forbidden("This program does not know the worker's documents.".to_owned()));
        };
        let refused = |reason: String| Refusal::Rejected { status: 400, reason };
        if !edit.attachments.is_empty() {
            return Err(refused("Documents of _worker have no attachments.".to_owned()));
        }
        check(&edit.id, &json::to_vec(&edit.body)).map_err(refused)
    }
}
