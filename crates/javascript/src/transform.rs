//! Functions of the changes worker, which transform documents.
//!
//! They run in engines of sync functions, so no state survives a call. They use the threads of maps because no client
//! waits for them.

use std::sync::Arc;

use flatbed_flatten::json::{self, Limits, Value};

use crate::clock::Clock;
use crate::engine_request::{Answer, EngineRequest};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::{Caller, Design, Runner, failure, whole};

/// The caller of all transform functions. Jobs share engines because no state survives a call.
const SHARED_CALLER: Caller = Caller { number: u64::MAX, client: None };

/// The longest result, in bytes. A longer one is [`Error::OutOfResources`].
const RESULT_BYTES_MAX: usize = 64 << 20;

/// A transform function. Cheap to clone.
#[derive(Debug, Clone, PartialEq)]
pub struct TransformFunction(Design);

impl TransformFunction {
    /// `owner`: the name under which its calls take turns with others. `source`: an expression whose value is a
    /// function of a document.
    pub fn new(owner: impl Into<Arc<str>>, source: impl Into<Arc<str>>) -> TransformFunction {
        TransformFunction(Design::new(owner, source))
    }
}

impl Runner {
    /// Checks that the source is a function.
    ///
    /// # Errors
    /// [`Error::Compilation`], and those of any call.
    pub async fn check_transform(&self, function: &TransformFunction) -> Result<()> {
        self.ask(function, EngineRequest::Check).await.map(drop)
    }

    /// Transforms a document. Returns a JSON text of at most 64 MB, `null` if the function returns nothing. The
    /// caller checks that it is a document.
    ///
    /// # Errors
    /// [`Error::Thrown`], and those of any call.
    pub async fn transform(&self, function: &TransformFunction, document: &str) -> Result<String> {
        let said = self.ask(function, EngineRequest::Transform { input: document.to_owned() }).await?;
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

    async fn ask(&self, function: &TransformFunction, ask: EngineRequest) -> Result<String> {
        match self.run(&function.0, SHARED_CALLER, ask, self.options.validation_max).await? {
            Answer::Text(text) => Ok(text),
            _ => Err(Error::OutOfResources),
        }
    }
}

impl Machine {
    pub(crate) fn transform(&self, input: &str, clock: &Clock) -> (Result<String>, bool) {
        // The built-in functions of sync functions have no effect here.
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
