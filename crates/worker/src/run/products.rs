//! What a document is made into, with its mapping's function if it has one.

use super::{End, Queue, Runner};
use crate::failure::Failure;
use crate::output::{Refused, Target};
use crate::rows::{Product, Unmappable};
use crate::script::{ScriptError, product};
use crate::source::Source;

impl<S: Source, T: Target, Q: Queue> Runner<'_, S, T, Q> {
    /// What a document produces, by its text. A function that cannot be run now is waited for.
    pub(super) async fn product(&mut self, text: &str) -> Result<Result<Product, Unmappable>, End> {
        loop {
            match product(&self.job.mapping, &self.job.id, self.scripts.as_ref(), text).await {
                Ok(made) => return Ok(made),
                Err(ScriptError::Broken(reason)) => return Err(End::Broken(reason)),
                Err(ScriptError::Later(reason) | ScriptError::Failed(reason)) => {
                    self.pause_for(Refused::failed(Failure::Storage, reason)).await?;
                }
            }
        }
    }
}
