//! What a document is made into, with its mapping's function if it has one.

use super::{Queue, Runner};
use crate::output::{State, Target};
use crate::peer::PeerError;
use crate::rows::{Product, ROWS_BYTES_MAX, Unmappable};
use crate::script::{ScriptError, product};
use crate::source::{Source, SourceError};

/// Why nothing is made of a change.
pub(super) enum Unmade {
    /// It is the document's fault.
    Unmappable(Unmappable),
    /// It is more than there is room for.
    Beyond,
    /// The document is not to be had now.
    Source(SourceError),
    /// The mapping's function cannot be run now.
    Later(String),
    /// It is not a function.
    Broken(String),
}

impl<S: Source, T: Target, Q: Queue> Runner<'_, S, T, Q> {
    /// A document's newest state at the source.
    pub(super) async fn read_document(&mut self, id: &str, bytes_max: usize) -> Result<Option<String>, Unmade> {
        match self.source.document(id, bytes_max).await {
            Ok(found) => {
                self.source_failures = 0;
                self.tell_failing();
                Ok(found)
            }
            Err(SourceError::Peer(PeerError::TooLarge(_))) => Err(Unmade::Beyond),
            Err(error) => Err(Unmade::Source(error)),
        }
    }

    /// What a document's text becomes, in at most so many bytes; `None`: it is gone.
    pub(super) async fn produce(
        &mut self,
        text: Option<&str>,
        is_written: bool,
        bytes_max: usize,
    ) -> Result<State, Unmade> {
        let Some(text) = text else { return Ok(State::Gone) };
        if is_written && self.job.mapping.is_identity() && text.len() <= bytes_max {
            return Ok(State::Is(Product::Json(text.to_owned())));
        }
        let made = product(&self.job.mapping, &self.job.id, self.scripts.as_ref(), &self.memory, text, bytes_max);
        match made.await {
            Ok(Ok(product)) => Ok(State::Is(product)),
            Ok(Err(Unmappable::TooLarge)) if bytes_max < ROWS_BYTES_MAX => Err(Unmade::Beyond),
            Ok(Err(unmappable)) => Err(Unmade::Unmappable(unmappable)),
            Err(ScriptError::Broken(reason)) => Err(Unmade::Broken(reason)),
            Err(ScriptError::Later(reason) | ScriptError::Failed(reason)) => Err(Unmade::Later(reason)),
        }
    }
}
