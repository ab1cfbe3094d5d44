//! A mapping's function in JavaScript: what it makes of a document before the mapping's columns are.
//!
//! Whoever puts a worker together says what runs it, and within which bounds; there is nothing in this crate that does.

use std::pin::Pin;
use std::sync::Arc;

use flatbed_flatten::json::{Limits, Value, as_written, parse};

use crate::mapping::Mapping;
use crate::memory::Memory;
use crate::rows::{Product, Unmappable, produce_all, produce_within};

/// The longest source, in bytes.
pub const SOURCE_BYTES_MAX: usize = 256 << 10;

/// Characters of what a function says of its failure that are kept.
const TEXT_CHARACTERS_MAX: usize = 500;

/// Why a function gave nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// It threw, or took more time or memory than it may: the document's fault.
    #[error("{0}")]
    Failed(String),
    /// It is no function.
    #[error("the mapping's function: {0}")]
    Broken(String),
    /// It was not run, or not to its end: it is tried again.
    #[error("{0}")]
    Later(String),
}

/// What is to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The job whose it is.
    pub job: Arc<str>,
    /// An expression that gives a function of a document.
    pub source: Arc<str>,
    /// JSON text. `None`: it is only said whether the source is a function.
    pub document: Option<String>,
}

/// A call that is under way: the JSON text of what the function gave.
pub type Called = Pin<Box<dyn Future<Output = Result<String, ScriptError>> + Send>>;

/// Runs functions.
pub type Scripts = Arc<dyn Fn(Call) -> Called + Send + Sync>;

/// What is made of a document with its mapping's function, if it has one, in no more than so many bytes, as [`Product::bytes`] counts
/// them. Large texts are parsed when `memory` allows it.
///
/// # Errors
/// [`ScriptError::Broken`] and [`ScriptError::Later`]; what is the document's fault is the answer.
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
        // It was written from a value; were it none now, its rows must not go for it.
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
    let scripts = scripts.ok_or_else(|| ScriptError::Broken("this worker runs none".to_owned()))?;
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
