//! Functions of design documents that answer requests: shows, lists, updates, rewrites.
//!
//! They run within the bounds of filters ([`Runner`]), and their input counts towards the same memory. The HTTP part
//! is the surface's.

use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_javascript::{Caller, Error as FunctionError, InvalidResponse, List, Response, Runner};
use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{Document, Error as LayerError, Reader, RevId, design_id};
use tokio::sync::Semaphore;

use crate::designs::{DesignError, Designs, HeldDesign};
use crate::json_out;
use crate::turns::Origin;

/// The most design documents that are parsed in parallel for their rewrites.
const PARSED_AT_ONCE: usize = 2;

/// The longest answer of a function; a longer one is refused, as a function that takes too much memory is.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// The reason why a function does not answer.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// A failure of the layer.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// A failure of the function or of its process.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// The design document has no member of this name, where the function would be.
    #[error("missing json key: {0}")]
    MissingMember(String),
    /// The answer is not a response.
    #[error(transparent)]
    Response(#[from] InvalidResponse),
}

impl From<DesignError> for AnswerError {
    fn from(error: DesignError) -> AnswerError {
        match error {
            DesignError::Layer(error) => error.into(),
            DesignError::Function(error) => error.into(),
        }
    }
}

type Result<T> = std::result::Result<T, AnswerError>;

/// The state that answers of all databases share. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct AnswerContext {
    runner: Runner,
    designs: Designs,
    parsing: Arc<Semaphore>,
}

impl AnswerContext {
    pub(crate) fn new(runner: Runner, designs: Designs) -> AnswerContext {
        AnswerContext { runner, designs, parsing: Arc::new(Semaphore::new(PARSED_AT_ONCE)) }
    }

    pub(crate) async fn begin(&self, origin: &Origin, database: &Reader, design: &str) -> Result<DesignFunctions> {
        let held = self.designs.read(origin, database, &design_id(design)).await?;
        let caller = Caller { client: Some(origin.client.number()), ..self.runner.caller() };
        Ok(DesignFunctions { of: self.clone(), held, caller })
    }
}

/// A design document's functions for one request, which keeps the revision that it began with.
pub struct DesignFunctions {
    of: AnswerContext,
    held: Arc<HeldDesign>,
    caller: Caller,
}

/// The member `rewrites` of a design document.
#[derive(Debug, Clone, PartialEq)]
pub enum Rewrites {
    /// Absent or of another type.
    None,
    /// A function: [`DesignFunctions::rewrite`] calls it.
    Function,
    /// Rules in their order.
    Rules(Vec<Value<'static>>),
}

impl DesignFunctions {
    /// The design document's revision.
    pub fn rev(&self) -> &RevId {
        self.held.rev()
    }

    /// Checks that there is a function at `kind` (`lists`) and `name`.
    #[boxed]
    pub async fn find(&self, kind: &str, name: &str) -> Result<()> {
        let found = self.of.runner.find(&self.held.design, self.caller, &[kind, name]).await;
        self.named(kind, name, found).await
    }

    /// Calls a show; `request` comes from [`Context::request_object`](crate::Context::request_object).
    #[boxed]
    pub async fn show(&self, name: &str, document: Option<&Document>, request: &str) -> Result<Response> {
        let document = text_of(document);
        let _room = self.room(document.len() + request.len()).await?;
        let answer = self.of.runner.show(&self.held.design, self.caller, name, &document, request).await;
        let answer = self.named("shows", name, answer).await?;
        bounded(&answer)?;
        Ok(Response::parse(&answer)?)
    }

    /// Calls an update. Returns the document to write, a JSON text, if any, and the response after the write.
    #[boxed]
    pub async fn update(
        &self,
        name: &str,
        document: Option<&Document>,
        request: &str,
    ) -> Result<(Option<String>, Response)> {
        let document = text_of(document);
        let _room = self.room(document.len() + request.len()).await?;
        let answer = self.of.runner.update(&self.held.design, self.caller, name, &document, request).await;
        let answer = self.named("updates", name, answer).await?;
        bounded(&answer.response)?;
        // As in CouchDB, only objects are written.
        let document = Some(answer.document).filter(|document| document.starts_with('{'));
        Ok((document, Response::parse(&answer.response)?))
    }

    /// Begins a list; `head` is a JSON text. At most one page of its text and one of its rows wait for the other
    /// side.
    pub fn list(&self, name: &str, head: &str, request: &str) -> List {
        self.of.runner.list(&self.held.design, self.caller, name, head, request)
    }

    /// Parses `rewrites`.
    #[boxed]
    pub async fn rewrites(&self) -> Result<Rewrites> {
        let _turn = self.of.parsing.acquire().await.map_err(|_| FunctionError::OutOfResources)?;
        let Ok(Value::Object(members)) = json::parse(self.held.design.text().as_bytes(), &Limits::default()) else {
            return Ok(Rewrites::None);
        };
        let rewrites = members.into_iter().find(|(name, _)| name == "rewrites").map(|(_, value)| value);
        Ok(match rewrites {
            Some(Value::String(_)) => Rewrites::Function,
            Some(Value::Array(rules)) => Rewrites::Rules(rules.into_iter().map(Value::into_owned).collect()),
            _ => Rewrites::None,
        })
    }

    /// Calls the function under `rewrites` for a request and returns its target, a JSON object; `None`: there is
    /// none. `spent` is the processor time of all rewrites of the request, which has the bound of one call.
    #[boxed]
    pub async fn rewrite(&self, request: &str, spent: &mut Duration) -> Result<Option<String>> {
        let _room = self.room(request.len()).await?;
        let answer = self.of.runner.rewrite(&self.held.design, self.caller, request, spent).await?;
        bounded(answer.as_deref().unwrap_or_default())?;
        Ok(answer)
    }

    /// Reserves memory for the input of a call and for its copy in the queue.
    async fn room(&self, bytes: usize) -> Result<flatbed_javascript::Room> {
        Ok(self.of.runner.room(self.held.design.database(), 2 * bytes, false).await?)
    }

    /// Names the missing member, if one is missing.
    async fn named<T>(&self, kind: &str, name: &str, found: flatbed_javascript::Result<T>) -> Result<T> {
        match found {
            Err(FunctionError::Missing) => {
                let has_kind = self.of.runner.has(&self.held.design, self.caller, kind).await?;
                Err(AnswerError::MissingMember(if has_kind { name } else { kind }.to_owned()))
            }
            found => Ok(found?),
        }
    }
}

fn text_of(document: Option<&Document>) -> String {
    let Some(document) = document else { return "null".to_owned() };
    let mut text = Vec::new();
    json_out::document(document, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

fn bounded(answer: &str) -> Result<()> {
    if answer.len() > ANSWER_BYTES_MAX { Err(FunctionError::OutOfResources.into()) } else { Ok(()) }
}
