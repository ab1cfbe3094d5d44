//! A mapping's function in JavaScript, applied to a document before the mapping's columns.
//!
//! The embedding program runs the function, within limits of its choice; this crate has no JavaScript engine.

use std::pin::Pin;
use std::sync::Arc;

use flatbed_flatten::json::{Limits, Value, as_written, parse};

use crate::mapping::Mapping;
use crate::memory::Memory;
use crate::rows::{Product, Unmappable, produce_all, produce_within};

/// The longest source, in bytes.
pub const SOURCE_BYTES_MAX: usize = 256 << 10;

/// The longest error message of a function that is kept, in characters.
const TEXT_CHARACTERS_MAX: usize = 500;

/// The reason why a function returned nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// The function threw, or exceeded its time or memory: the document is the cause.
    #[error("{0}")]
    Failed(String),
    /// The source is not a function.
    #[error("the mapping's function: {0}")]
    Broken(String),
    /// The call did not run or did not complete: it is retried.
    #[error("{0}")]
    Later(String),
}

/// A call of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The id of the job.
    pub job: Arc<str>,
    /// An expression that evaluates to a function of a document.
    pub source: Arc<str>,
    /// The document as JSON text. `None`: only checks that the source is a function.
    pub document: Option<String>,
}

/// A pending call, which yields the result as JSON text.
pub type ScriptFuture = Pin<Box<dyn Future<Output = Result<String, ScriptError>> + Send>>;

/// Runs functions.
pub type Scripts = Arc<dyn Fn(Call) -> ScriptFuture + Send + Sync>;

/// Returns the product of a document, after the mapping's function if there is one, limited to `bytes_max` as counted
/// by [`Product::bytes`]. Large texts wait for `memory` before they are parsed.
///
/// # Errors
/// [`ScriptError::Broken`] and [`ScriptError::Later`]. Failures that the document causes are part of the result.
pub async fn product(
    mapping: &Mapping,
    job: &str,
    scripts: Option<&Scripts>,
    memory: &Memory,
    text: &str,
    bytes_max: usize,
) -> Result<Result<Product, Unmappable>, ScriptError> {
    if mapping.is_identity()
        && let Ok(Some(text)) = as_written(text.as_bytes(), &Limits::default())
    {
        let is_too_large = text.len() > bytes_max;
        return Ok(if is_too_large { Err(Unmappable::TooLarge) } else { Ok(Product::Json(text.to_owned())) });
    }
    let Some(source) = mapping.function() else {
        let _alone = memory.parsing(text.len()).await;
        // This program wrote the text. A failure to parse it must not delete the document's rows.
        let document = parse(text.as_bytes(), &Limits::default());
        return Ok(document
            .map_err(|_| Unmappable::TooLarge)
            .and_then(|document| produce_within(mapping, &document, bytes_max)));
    };
    let matches = {
        let _alone = memory.parsing(text.len()).await;
        match parse(text.as_bytes(), &Limits::default()) {
            Ok(document) => mapping.matches(&document),
            Err(_) => return Ok(Err(Unmappable::TooLarge)),
        }
    };
    match matches {
        Ok(true) => {}
        Ok(false) => return Ok(Ok(Product::Nothing)),
        Err(too_large) => return Ok(Err(too_large.into())),
    }
    let scripts = scripts.ok_or_else(|| ScriptError::Broken("this worker cannot run functions".to_owned()))?;
    let call = Call { job: job.into(), source: source.clone(), document: Some(text.to_owned()) };
    let made = match scripts(call).await {
        Err(ScriptError::Failed(reason)) => {
            return Ok(Err(Unmappable::Function(reason.chars().take(TEXT_CHARACTERS_MAX).collect())));
        }
        made => made?,
    };
    let none = || Unmappable::Function("it gives no document, no array of documents and not null".to_owned());
    let _alone = memory.parsing(made.len()).await;
    Ok(match parse(made.as_bytes(), &Limits::default()) {
        Ok(Value::Null) => Ok(Product::Nothing),
        Ok(document @ Value::Object(_)) => produce_all(mapping, std::slice::from_ref(&document), false, bytes_max),
        Ok(Value::Array(documents)) if documents.iter().all(|it| matches!(it, Value::Object(_))) => {
            produce_all(mapping, &documents, true, bytes_max)
        }
        _ => Err(none()),
    })
}
