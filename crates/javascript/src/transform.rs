//! Functions of the changes worker: what a job makes of a document.
//!
//! They run where sync functions do, so nothing of a call is seen by another; on the threads of maps, as nobody waits for them at once.

use std::sync::Arc;

use flatbed_flatten::json::{self, Limits, Value};

use crate::ask::{Answer, Ask};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::{Caller, Design, Runner, failure, whole};

/// All jobs share what a function is compiled to: nothing of a call is seen by another.
const ANYBODY: Caller = Caller { number: u64::MAX, client: None };

/// The longest result, in bytes.
const RESULT_BYTES_MAX: usize = 64 << 20;

/// A function of a document. Cheap to clone.
#[derive(Debug, Clone, PartialEq)]
pub struct TransformFunction(Design);

impl TransformFunction {
    /// `owner`: whose it is, who takes turns with others. `source`: an expression that gives a function of a document.
    pub fn new(owner: impl Into<Arc<str>>, source: impl Into<Arc<str>>) -> TransformFunction {
        TransformFunction(Design::new(owner, source))
    }
}

impl Runner {
    /// Whether a source is a function.
    ///
    /// # Errors
    /// [`Error::Compilation`], and those of any call.
    pub async fn check_transform(&self, function: &TransformFunction) -> Result<()> {
        self.ask(function, Ask::Check).await.map(drop)
    }

    /// What a function makes of a document: JSON text of at most 64 MB, `null` where it gives nothing. Any JSON: what is a document is
    /// the caller's to judge.
    ///
    /// # Errors
    /// [`Error::Thrown`], and those of any call.
    pub async fn transform(&self, function: &TransformFunction, document: &str) -> Result<String> {
        let said = self.ask(function, Ask::Transform { input: document.to_owned() }).await?;
        let said = json::parse(said.as_bytes(), &Limits::default()).map_err(|_| Error::OutOfResources)?;
        let (how, made) = match &said {
            Value::Array(parts) => match &parts[..] {
                [Value::String(how), _, Value::String(made)] => (how.as_ref(), made),
                _ => return Err(Error::OutOfResources),
            },
            _ => return Err(Error::OutOfResources),
        };
        match how {
            "ok" if made.len() <= RESULT_BYTES_MAX => Ok(whole(made.clone().into_owned())),
            "ok" => Err(Error::OutOfResources),
            _ => Err(failure(made)),
        }
    }

    async fn ask(&self, function: &TransformFunction, ask: Ask) -> Result<String> {
        match self.run(&function.0, ANYBODY, ask, self.options.validation_max).await? {
            Answer::Text(text) => Ok(text),
            _ => Err(Error::OutOfResources),
        }
    }
}

impl Machine {
    /// What the function makes, and whether the machine may be used again.
    pub(crate) fn transform(&self, input: &str, clock: &Clock) -> (Result<String>, bool) {
        // What it says to sync functions' functions means nothing here.
        self.heard().begin(None, 0, clock);
        let answer: Result<String> = self.within(clock, |ctx| {
            let input = ctx.json_parse(input)?;
            self.export(ctx, "transform")?.call((input,))
        });
        self.heard().take();
        match answer.map(whole) {
            Ok(text) if text.starts_with("[\"exhausted\"") => (Err(Error::OutOfResources), false),
            Ok(text) => {
                let is_clean = text.starts_with("[\"ok\",true,") || text.starts_with("[\"error\",true,");
                (Ok(text), is_clean)
            }
            Err(error) => (Err(error), false),
        }
    }
}
