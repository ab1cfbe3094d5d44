//! Makes products of documents, with the mapping's function if it has one.

use super::{Queue, Runner};
use crate::output::{DeliveryState, Target};
use crate::peer::PeerError;
use crate::rows::{Product, ROWS_BYTES_MAX, Unmappable};
use crate::script::{ScriptError, product};
use crate::source::{Source, SourceError};

pub(super) enum ProductError {
    /// The document is the cause.
    Unmappable(Unmappable),
    /// The product exceeds the available memory.
    Beyond,
    /// The document cannot be read now.
    Source(SourceError),
    /// The mapping's function cannot run now.
    Later(String),
    /// The mapping's function is not a function.
    Broken(String),
}

impl<S: Source, T: Target, Q: Queue> Runner<'_, S, T, Q> {
    pub(super) async fn read_document(&mut self, id: &str, bytes_max: usize) -> Result<Option<String>, ProductError> {
        match self.source.document(id, bytes_max).await {
            Ok(found) => {
                self.source_failures = 0;
                self.tell_failing();
                Ok(found)
            }
            Err(SourceError::Peer(PeerError::TooLarge(_))) => Err(ProductError::Beyond),
            Err(error) => Err(ProductError::Source(error)),
        }
    }

    /// Returns the product of a document's text within `bytes_max`; `None`: the document is gone.
    pub(super) async fn produce(
        &mut self,
        text: Option<&str>,
        is_written: bool,
        bytes_max: usize,
    ) -> Result<DeliveryState, ProductError> {
        let Some(text) = text else { return Ok(DeliveryState::Gone) };
        if is_written && self.job.mapping.is_identity() && text.len() <= bytes_max {
            return Ok(DeliveryState::Is(Product::Json(text.to_owned())));
        }
        let made = product(&self.job.mapping, &self.job.id, self.scripts.as_ref(), &self.memory, text, bytes_max);
        match made.await {
            Ok(Ok(product)) => Ok(DeliveryState::Is(product)),
            Ok(Err(Unmappable::TooLarge)) if bytes_max < ROWS_BYTES_MAX => Err(ProductError::Beyond),
            Ok(Err(unmappable)) => Err(ProductError::Unmappable(unmappable)),
            Err(ScriptError::Broken(reason)) => Err(ProductError::Broken(reason)),
            Err(ScriptError::Later(reason) | ScriptError::Failed(reason)) => Err(ProductError::Later(reason)),
        }
    }
}
