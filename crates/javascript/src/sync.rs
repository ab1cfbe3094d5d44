//! Sync functions: the decision of a database's function about a document that is written.
//!
//! The built-in functions and their effects are those of Sync Gateway, recorded in `tests/sync-gateway/`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use flatbed_channels::require::Writer;
use flatbed_channels::{
    Grant, GrantedItem, Grantee, ROLE_PREFIX, ROUTING_ENTRIES_MAX, Routing, RoutingTooLarge, check_channel,
    is_principal,
};
use flatbed_flatten::json;
use rquickjs::object::Filter;
use rquickjs::{Atom, Ctx, Function, Object, Persistent, Value, qjs};

use crate::clock::Clock;
use crate::engine_request::{Answer, EngineRequest, RoutedPart};
use crate::error::{Error, Result};
use crate::gather::Gather;
use crate::machine::Machine;
use crate::pool::Task;
use crate::read_members::ReadMembers;
use crate::sync_output::SyncOutput;
use crate::together::{SLICE, all_in_parts};
use crate::{Caller, Design, Runner};

/// The caller of all sync functions. Writers share engines because no state survives a call.
const SHARED_CALLER: Caller = Caller { number: u64::MAX, client: None };

/// The reason of a failed write: the function threw an error, or its output is invalid.
const EXCEPTION: &str = "Exception in JS sync function";

/// The reason of a failed write: the function granted access to an invalid name.
const ERROR: &str = "Error in JS sync function";

const STATUS_MAX: u16 = 599;

/// A database's sync function. Cheap to clone. Writes are grouped across all clones.
#[derive(Debug, Clone)]
pub struct SyncFunction {
    design: Design,
    wanted: Arc<ReadMembers>,
    pub(crate) gather: Arc<Gather>,
}

impl SyncFunction {
    /// `database`: a unique name of the database, different from earlier databases of the same name. `source`: an
    /// expression whose value is a function of the document, the replaced document, and metadata.
    pub fn new(database: impl Into<Arc<str>>, source: impl Into<Arc<str>>) -> SyncFunction {
        let source = source.into();
        let wanted = Arc::new(ReadMembers::of(&source));
        SyncFunction { design: Design::new(database, source), wanted, gather: Arc::default() }
    }

    /// Returns true if the function may read this member of the document. The caller may omit the others.
    pub fn may_read(&self, member: &str) -> bool {
        self.wanted.members.as_ref().is_none_or(|members| members.iter().any(|known| known == member))
    }

    /// Returns true if the function may read the replaced document.
    pub fn may_read_old(&self) -> bool {
        self.wanted.is_old
    }
}

/// A write to be judged; documents are JSON texts.
#[derive(Debug, Clone, Default)]
pub struct SyncWrite {
    /// The new document with `_id`, `_rev` and `_deleted`, without attachments and `_exp`.
    pub document: String,
    /// The replaced document without `_rev`; `None` for a new document.
    pub old: Option<String>,
    /// Metadata as a JSON text; `None` is an empty object.
    pub meta: Option<String>,
    /// The writer; `None` for an administrator, who meets all requirements.
    pub writer: Option<Arc<Writer>>,
    /// The number of the client that waits, as of [`Caller::client`].
    pub client: Option<u64>,
    /// The length of the document's id, which counts in the size of its rows.
    pub id_bytes: usize,
    /// The current Unix time, in seconds.
    pub now_s: u64,
}

/// The decision of a sync function about a write.
pub type SyncDecision = std::result::Result<Routing, SyncRefusal>;

/// The refusal of a write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyncRefusal {
    /// The function refused the write: by an exception with 403 or 401, or by `reject`.
    #[error("{reason}")]
    Rejected {
        /// From 400 to 599.
        status: u16,
        /// The function's reason.
        reason: String,
    },
    /// The function threw another value, or its output is invalid: 500.
    #[error("{0}")]
    Failed(&'static str),
    /// The output exceeds the limits of a revision: 403.
    #[error(transparent)]
    TooMuch(#[from] RoutingTooLarge),
}

impl SyncRefusal {
    /// Returns the HTTP status of the response.
    pub fn status(&self) -> u16 {
        match self {
            SyncRefusal::Rejected { status, .. } => *status,
            SyncRefusal::Failed(_) => 500,
            SyncRefusal::TooMuch(_) => 403,
        }
    }
}

/// Writes the writer as the JSON that a function sees.
fn writer_text(writer: &Writer) -> Vec<u8> {
    json::Object::text(|object| {
        object.string("name", &writer.name);
        object.array("channels").strings(writer.channels.iter().map(String::as_str));
        let mut roles = object.object("roles");
        for role in &writer.roles {
            roles.object(role.as_str());
        }
    })
}

impl Runner {
    /// Checks that the source is a function.
    ///
    /// # Errors
    /// [`Error::Compilation`], and those of any call.
    pub async fn check_sync(&self, function: &SyncFunction) -> Result<()> {
        self.run(&function.design, SHARED_CALLER, EngineRequest::Check, self.options.validation_max).await.map(drop)
    }

    /// Runs a sync function for several writes in order. Each write has its own time limit and its own bounds, and
    /// sees no state of the others; other databases take turns in between. The errors are those of [`Runner::route`].
    /// The caller bounds the memory of the arguments ([`Runner::try_room`]).
    pub async fn route_all(&self, function: &SyncFunction, writes: Vec<SyncWrite>) -> Vec<Result<SyncDecision>> {
        all_in_parts(writes, |writes| self.route_some(function, writes, SLICE)).await
    }

    /// Runs the first writes of a queue for a slice of time.
    pub(crate) async fn route_some(
        &self,
        function: &SyncFunction,
        writes: VecDeque<SyncWrite>,
        slice: Duration,
    ) -> Result<RoutedPart> {
        let step_max = self.options.validation_max;
        let caller = Caller { client: only_client(&writes), ..SHARED_CALLER };
        let ask = EngineRequest::Route { writes, slice, step_max };
        let task = Task { design: function.design.clone(), caller, ask, time_max: step_max + slice, step_max };
        match self.pool(&task.ask).run(task).await {
            Ok(Answer::Routed(part)) => Ok(part),
            Ok(_) => Err(Error::OutOfResources),
            Err(Error::TimedOut(_)) => Err(Error::TimedOut(step_max)),
            Err(error) => Err(error),
        }
    }
}

/// Returns the client of all writes; `None` if they have several.
fn only_client(writes: &VecDeque<SyncWrite>) -> Option<u64> {
    let client = writes.front()?.client?;
    writes.iter().all(|write| write.client == Some(client)).then_some(client)
}

pub(crate) struct CompiledFunction {
    make: Persistent<Function<'static>>,
    names_writer: bool,
    names: usize,
    parent: Persistent<Object<'static>>,
}

/// Returns true if a source may refer to `realUserCtx`: literally, by escapes, by `eval`, or by `arguments`.
fn may_name_writer(source: &str) -> bool {
    ["realUserCtx", "eval", "arguments", "\\u"].iter().any(|part| source.contains(part))
}

fn names(ctx: &Ctx<'_>) -> usize {
    ctx.globals().own_keys::<Atom<'_>>(Filter::new().string().symbol()).len()
}

fn parent<'js>(ctx: &Ctx<'js>) -> Option<Object<'js>> {
    ctx.globals().get_prototype()
}

/// The outcome of a sync function before its output is checked.
#[derive(Debug, PartialEq)]
pub(crate) enum SyncOutcome {
    /// The function ended normally or refused the write.
    Finished(SyncOutput),
    /// The function threw another value.
    Thrown,
}

enum CallEnd {
    /// A normal end or a refusal.
    Finished,
    /// Another exception.
    Thrown,
    /// An error of memory or stack.
    Exhausted,
}

impl Machine {
    /// Runs the function for a write. The second value is true if the machine may be used again.
    pub(crate) fn route(&self, write: &SyncWrite, clock: &Clock) -> (Result<SyncOutcome>, bool) {
        let Some(compiled) = self.compiled() else { return (Err(Error::OutOfResources), false) };
        let heard = self.heard();
        heard.begin(write.writer.clone(), write.now_s, clock);
        let ended = self.within(clock, |ctx| {
            let ended = self.ask(ctx, compiled, write)?;
            let is_same = || {
                let before = compiled.parent.clone().restore(ctx)?;
                // SAFETY: the value belongs to the running engine.
                let is_open = unsafe { qjs::JS_IsExtensible(ctx.as_raw().as_ptr(), ctx.globals().as_raw()) } == 1;
                Ok::<_, rquickjs::Error>(is_open && names(ctx) == compiled.names && parent(ctx) == Some(before))
            };
            let is_clean = match ended {
                CallEnd::Exhausted => false,
                CallEnd::Finished | CallEnd::Thrown => is_same()? || self.export(ctx, "restore")?.call(())?,
            };
            Ok((ended, is_clean))
        });
        let said = heard.take();
        match (ended, said) {
            (Ok((CallEnd::Finished, is_clean)), Some(said)) => (Ok(SyncOutcome::Finished(said)), is_clean),
            (Ok((CallEnd::Thrown, is_clean)), Some(_)) => (Ok(SyncOutcome::Thrown), is_clean),
            (Ok((CallEnd::Exhausted, _)), Some(_)) => (Err(Error::OutOfResources), false),
            // The output is incomplete. The caller fills in the time limit.
            (Ok(_), None) => (Err(Error::TimedOut(Duration::ZERO)), false),
            (Err(error), _) => (Err(error), false),
        }
    }

    fn ask(&self, ctx: &Ctx<'_>, compiled: &CompiledFunction, write: &SyncWrite) -> rquickjs::Result<CallEnd> {
        let document = ctx.json_parse(write.document.as_str())?;
        let old = write.old.as_deref().map(|old| ctx.json_parse(old));
        let old = old.unwrap_or_else(|| Ok(Value::new_null(ctx.clone())))?;
        let meta = write.meta.as_deref().map(|meta| ctx.json_parse(meta));
        let meta = meta.unwrap_or_else(|| Object::new(ctx.clone()).map(Object::into_value))?;
        // Arguments are new for each call: the function may change them.
        let writer = match &write.writer {
            _ if !compiled.names_writer => Value::new_undefined(ctx.clone()),
            Some(writer) => ctx.json_parse(writer_text(writer))?,
            None => Object::new(ctx.clone())?.into_value(),
        };
        let made = compiled.make.clone().restore(ctx)?.call::<_, Value<'_>>((writer,));
        let called = made.and_then(|made| match made.as_function() {
            // The server does not await a promise, so a refusal inside one would be lost.
            Some(function) => function.call::<_, Value<'_>>((document, old, meta)).map(|told| !told.is_promise()),
            None => Ok(false),
        });
        match called {
            Ok(true) => Ok(CallEnd::Finished),
            Ok(false) => Ok(CallEnd::Thrown),
            Err(rquickjs::Error::Exception) => {
                let thrown = ctx.catch();
                // SAFETY: the value belongs to the running engine.
                if unsafe { qjs::JS_IsUncatchableError(thrown.as_raw()) } {
                    return Err(ctx.throw(thrown));
                }
                let ended: String = self.export(ctx, "thrown")?.call((thrown,))?;
                Ok(match ended.as_str() {
                    "ok" => CallEnd::Finished,
                    "exhausted" => CallEnd::Exhausted,
                    _ => CallEnd::Thrown,
                })
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn compile_sync(&self, source: &str, clock: &Clock) -> Result<CompiledFunction> {
        self.heard().begin(None, 0, clock);
        let (answer, compiled) = self.within(clock, |ctx| {
            let answer: String = self.export(ctx, "compileSync")?.call((source,))?;
            if !answer.is_empty() {
                return Ok((answer, None));
            }
            let make: Function<'_> = self.export(ctx, "made")?.call(())?;
            let parent = parent(ctx).ok_or(rquickjs::Error::Unknown)?;
            let compiled = CompiledFunction {
                make: Persistent::save(ctx, make),
                names_writer: may_name_writer(source),
                names: names(ctx),
                parent: Persistent::save(ctx, parent),
            };
            Ok((answer, Some(compiled)))
        })?;
        self.heard().take();
        compiled.ok_or_else(|| crate::failure(&answer))
    }
}

/// Checks the output of a function for a document whose id has `id_bytes` bytes. The order of the checks is Sync
/// Gateway's: invalid output, then a refusal, then invalid names of grantees.
pub(crate) fn routed(heard: SyncOutcome, id_bytes: usize) -> SyncDecision {
    let failed = |reason| Err(SyncRefusal::Failed(reason));
    let SyncOutcome::Finished(said) = heard else { return failed(EXCEPTION) };
    let mut routing = Routing { channels: said.channels, expires_at: said.expires_at, ..Routing::default() };
    if routing.channels.iter().any(|channel| check_channel(channel).is_err()) {
        return failed(EXCEPTION);
    }
    // As recorded from Sync Gateway: every reader sees a document in `*`, so its other channels do not matter.
    if routing.channels.contains(flatbed_channels::ALL) {
        routing.channels.retain(|channel| channel == flatbed_channels::ALL);
    }
    let mut has_names = true;
    for (to, channel) in said.grants {
        if check_channel(&channel).is_err() {
            return failed(EXCEPTION);
        }
        let to = match to.strip_prefix(ROLE_PREFIX) {
            Some(role) => Grantee::Role(role.to_owned()),
            None => Grantee::User(to),
        };
        let (Grantee::Role(name) | Grantee::User(name)) = &to;
        has_names &= is_principal(name);
        routing.grants.insert(Grant { to, what: GrantedItem::Channel(channel) });
    }
    for (to, role) in said.roles {
        let Some(role) = role.strip_prefix(ROLE_PREFIX).filter(|role| check_channel(role).is_ok()) else {
            return failed(EXCEPTION);
        };
        has_names &= is_principal(to.strip_prefix(ROLE_PREFIX).unwrap_or(&to)) && is_principal(role);
        // A role cannot have roles.
        if !to.starts_with(ROLE_PREFIX) {
            routing.grants.insert(Grant { to: Grantee::User(to), what: GrantedItem::Role(role.to_owned()) });
        }
    }
    if let Some((status, reason)) = said.rejected {
        if status > f64::from(STATUS_MAX) {
            return failed(EXCEPTION);
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is a whole number from 400 to 599"
        )]
        let status = status as u16;
        return Err(SyncRefusal::Rejected { status, reason: crate::cut(&reason) });
    }
    if !has_names {
        return failed(ERROR);
    }
    let [channels, grants] = said.counts;
    if said.is_cut || channels > ROUTING_ENTRIES_MAX || grants > ROUTING_ENTRIES_MAX {
        // Beyond the limits the output is incomplete.
        return Err(RoutingTooLarge { channels, grants, rows_bytes: routing.rows_bytes(id_bytes) }.into());
    }
    routing.check(id_bytes)?;
    Ok(routing)
}
