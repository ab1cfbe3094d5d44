//! Functions of design documents that answer requests: shows, lists, updates, rewrites.
//!
//! They run within the bounds of filters ([`Runner`]), and what they are given is counted as it is there. What is theirs in
//! HTTP is the surface's.

use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_javascript::{Caller, Error as FunctionError, InvalidResponse, List, Response, Runner};
use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{Document, Error as LayerError, Reader, RevId, design_id};
use tokio::sync::Semaphore;

use crate::designs::{DesignError, Designs, Held};
use crate::json_out;
use crate::turns::{Origin, client_number};

/// Design documents that are parsed at once, to see their rewrites.
const PARSED_AT_ONCE: usize = 2;

/// The longest text that a function may answer with: what is longer is refused, as one that takes too much memory is.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Why a function does not answer.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// What the layer says.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// What the function says, or why it cannot be asked.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// The design document has no member of this name, where the function would be.
    #[error("missing json key: {0}")]
    MissingMember(String),
    /// It answered what is no response.
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

/// What answers of all databases share. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Answering {
    runner: Runner,
    designs: Designs,
    parsing: Arc<Semaphore>,
}

impl Answering {
    pub(crate) fn new(runner: Runner, designs: Designs) -> Answering {
        Answering { runner, designs, parsing: Arc::new(Semaphore::new(PARSED_AT_ONCE)) }
    }

    /// Reads a design document for a request.
    pub(crate) async fn begin(&self, origin: &Origin, database: &Reader, design: &str) -> Result<DesignFunctions> {
        let held = self.designs.read(origin, database, &design_id(design)).await?;
        let caller = Caller { client: Some(client_number(origin.address)), ..self.runner.caller() };
        Ok(DesignFunctions { of: self.clone(), held, caller })
    }
}

/// A design document's functions, for one request. The document stays as it was when the request came.
pub struct DesignFunctions {
    of: Answering,
    held: Arc<Held>,
    caller: Caller,
}

/// What a design document has under `rewrites`.
#[derive(Debug, Clone, PartialEq)]
pub enum Rewrites {
    /// Nothing that counts.
    None,
    /// A function: [`DesignFunctions::rewrite`] asks it.
    Function,
    /// Rules, in the order given.
    Rules(Vec<Value<'static>>),
}

impl DesignFunctions {
    /// The design document's revision.
    pub fn rev(&self) -> &RevId {
        self.held.rev()
    }

    /// Nothing, if there is a function at `kind` (`lists`) and `name`.
    ///
    /// # Errors
    /// [`AnswerError`].
    #[boxed]
    pub async fn find(&self, kind: &str, name: &str) -> Result<()> {
        let found = self.of.runner.find(&self.held.design, self.caller, &[kind, name]).await;
        self.named(kind, name, found).await
    }

    /// Asks a show; `request` is as [`Context::request_object`](crate::Context::request_object) makes it.
    ///
    /// # Errors
    /// [`AnswerError`].
    #[boxed]
    pub async fn show(&self, name: &str, document: Option<&Document>, request: &str) -> Result<Response> {
        let document = text_of(document);
        let _room = self.room(document.len() + request.len()).await?;
        let answer = self.of.runner.show(&self.held.design, self.caller, name, &document, request).await;
        let answer = self.named("shows", name, answer).await?;
        bounded(&answer)?;
        Ok(Response::parse(&answer)?)
    }

    /// Asks an update: the document that it wants to be written, a JSON text, if it wants any; and what is answered when
    /// that is done.
    ///
    /// # Errors
    /// [`AnswerError`].
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
        // As in CouchDB, what is no object is not written.
        let document = Some(answer.document).filter(|document| document.starts_with('{'));
        Ok((document, Response::parse(&answer.response)?))
    }

    /// Begins a list; `head` is a JSON text. Of its text and rows, which wait for who takes them, there is one page each.
    pub fn list(&self, name: &str, head: &str, request: &str) -> List {
        self.of.runner.list(&self.held.design, self.caller, name, head, request)
    }

    /// What stands under `rewrites`.
    ///
    /// # Errors
    /// [`AnswerError`].
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

    /// Asks the function under `rewrites` where a request goes instead: a JSON object; `None`: nowhere. `spent`: the processor
    /// time of all rewrites of the request, which is bounded as that of one call.
    ///
    /// # Errors
    /// [`AnswerError`].
    #[boxed]
    pub async fn rewrite(&self, request: &str, spent: &mut Duration) -> Result<Option<String>> {
        let _room = self.room(request.len()).await?;
        let answer = self.of.runner.rewrite(&self.held.design, self.caller, request, spent).await?;
        bounded(answer.as_deref().unwrap_or_default())?;
        Ok(answer)
    }

    /// Room for what a call is given: as it is made, and as it waits.
    async fn room(&self, bytes: usize) -> Result<flatbed_javascript::Room> {
        Ok(self.of.runner.room(self.held.design.database(), 2 * bytes, false).await?)
    }

    /// Says which member is missing, where one is.
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
