//! Sync functions: what a database's function says of a document that is to be written.
//!
//! What it may call, and what comes of it, is Sync Gateway's: `tests/sync-gateway/` has its answers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use flatbed_channels::require::Writer;
use flatbed_channels::{
    Given, Grant, Grantee, ROLE_PREFIX, ROUTING_ENTRIES_MAX, Routing, TooMuch, check_channel, is_principal,
};
use flatbed_flatten::json;
use rquickjs::object::Filter;
use rquickjs::{Atom, Ctx, Function, Object, Persistent, Value, qjs};

use crate::ask::{Answer, Ask, RoutedPart};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::gather::Gather;
use crate::machine::Machine;
use crate::pool::Task;
use crate::said::Said;
use crate::wanted::Wanted;
use crate::{Caller, Design, Runner};

/// All writers share what a function is compiled to: nothing of a call is seen by another.
const ANYBODY: Caller = Caller { number: u64::MAX, client: None };

/// Why a write is refused where the function threw something else than a refusal, or said what means nothing.
const EXCEPTION: &str = "Exception in JS sync function";

/// The same, where it gives somebody something who can have no such name.
const ERROR: &str = "Error in JS sync function";

/// For how long writes that come together are asked about before others have their turn.
const SLICE: Duration = Duration::from_millis(20);

/// The last status that HTTP has.
const STATUS_MAX: u16 = 599;

/// A database's sync function. Cheap to clone; writes that are asked about together are those of one and its clones.
#[derive(Debug, Clone)]
pub struct SyncFunction {
    design: Design,
    wanted: Arc<Wanted>,
    pub(crate) gather: Arc<Gather>,
}

impl SyncFunction {
    /// `database`: what tells its database from all others, those that had its name before included. `source`: an expression that
    /// gives a function of a document, the one that it replaces, and what is known of it besides.
    pub fn new(database: impl Into<Arc<str>>, source: impl Into<Arc<str>>) -> SyncFunction {
        let source = source.into();
        let wanted = Arc::new(Wanted::of(&source));
        SyncFunction { design: Design::new(database, source), wanted, gather: Arc::default() }
    }

    /// Whether it may read this member of a document: of all others it need not be told.
    pub fn may_read(&self, member: &str) -> bool {
        self.wanted.members.as_ref().is_none_or(|members| members.iter().any(|known| known == member))
    }

    /// Whether it may read the document that is replaced.
    pub fn may_read_old(&self) -> bool {
        self.wanted.is_old
    }
}

/// A write that is to be judged; documents are JSON texts.
#[derive(Debug, Clone, Default)]
pub struct SyncWrite {
    /// The document as it would be, with `_id`, `_rev` and `_deleted`, without attachments and `_exp`.
    pub document: String,
    /// The one that it replaces, without `_rev`, if it does.
    pub old: Option<String>,
    /// What is known of it besides; `None`: nothing, an empty object.
    pub meta: Option<String>,
    /// Who writes; `None`: an administrator, who meets all requirements.
    pub writer: Option<Arc<Writer>>,
    /// The bytes of the document's id, by which its rows are counted.
    pub id_bytes: usize,
    /// The present, in seconds of Unix time.
    pub now_s: u64,
}

/// What a function says of a write.
pub type Routed = std::result::Result<Routing, SyncRefusal>;

/// A function lets a write not be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyncRefusal {
    /// It says so: 403 and 401 by what it throws, others by `reject`.
    #[error("{reason}")]
    Rejected {
        /// From 400 to 599.
        status: u16,
        /// In its words.
        reason: String,
    },
    /// It threw something else, or said what means nothing: 500.
    #[error("{0}")]
    Failed(&'static str),
    /// It says more than may be kept: 403.
    #[error(transparent)]
    TooMuch(#[from] TooMuch),
}

impl SyncRefusal {
    /// The status that it is answered with.
    pub fn status(&self) -> u16 {
        match self {
            SyncRefusal::Rejected { status, .. } => *status,
            SyncRefusal::Failed(_) => 500,
            SyncRefusal::TooMuch(_) => 403,
        }
    }
}

/// Who writes, as a function sees it.
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
    /// Whether a source is a function.
    ///
    /// # Errors
    /// [`Error::Compilation`], and those of any call.
    pub async fn check_sync(&self, function: &SyncFunction) -> Result<()> {
        self.run(&function.design, ANYBODY, Ask::Check, self.options.validation_max).await.map(drop)
    }

    /// Asks a sync function about several writes, in their order; an answer each, with the errors of [`Runner::route`]. Each may take as
    /// long as one alone, breaks its bounds for itself, and finds nothing of the others; databases have their turn between them. They
    /// wait together: how much their texts take is the caller's to bound ([`Runner::try_room`]).
    pub async fn route_all(&self, function: &SyncFunction, writes: Vec<SyncWrite>) -> Vec<Result<Routed>> {
        let count = writes.len();
        let mut routed = Vec::with_capacity(count);
        let mut writes = VecDeque::from(writes);
        // Writes behind those that are asked about again, and why the first of them has no answer.
        let mut behind: Vec<(VecDeque<SyncWrite>, Error)> = Vec::new();
        loop {
            if writes.is_empty() {
                let Some((mut rest, error)) = behind.pop() else { break };
                rest.pop_front();
                routed.push(Err(error));
                writes = rest;
                continue;
            }
            match self.route_some(function, writes, SLICE).await {
                Ok(RoutedPart { mut rest, killed: Some((before, error)), .. }) => {
                    behind.push((rest.split_off(before.min(rest.len())), error));
                    writes = rest;
                }
                Ok(part) if !part.routed.is_empty() => {
                    routed.extend(part.routed);
                    writes = part.rest;
                }
                // It holds for all that were to come.
                Err(error) => {
                    routed.resize(count, Err(error));
                    break;
                }
                Ok(_) => break,
            }
        }
        // What has no answer may not be written.
        routed.resize(count, Err(Error::OutOfResources));
        routed
    }

    /// Asks about the first of some writes, for a slice of time.
    pub(crate) async fn route_some(
        &self,
        function: &SyncFunction,
        writes: VecDeque<SyncWrite>,
        slice: Duration,
    ) -> Result<RoutedPart> {
        let step_max = self.options.validation_max;
        let ask = Ask::Route { writes, slice, step_max };
        let task = Task { design: function.design.clone(), caller: ANYBODY, ask, time_max: step_max + slice, step_max };
        match self.pool(&task.ask).run(task).await {
            Ok(Answer::Routed(part)) => Ok(part),
            Ok(_) => Err(Error::OutOfResources),
            Err(Error::TimedOut(_)) => Err(Error::TimedOut(step_max)),
            Err(error) => Err(error),
        }
    }
}

/// A sync function in an engine.
pub(crate) struct Compiled {
    /// Makes it, of who writes.
    make: Persistent<Function<'static>>,
    /// Whether who writes may be looked at.
    names_writer: bool,
    /// How many names the global object has between two calls, and its prototype.
    names: usize,
    parent: Persistent<Object<'static>>,
}

/// Whether a source may name a parameter of what makes it its function: a name stands there as it is, or with escapes, or is put together
/// for `eval`, or all are taken as `arguments`.
fn may_name_writer(source: &str) -> bool {
    ["realUserCtx", "eval", "arguments", "\\u"].iter().any(|part| source.contains(part))
}

/// How many names the global object has.
fn names(ctx: &Ctx<'_>) -> usize {
    ctx.globals().own_keys::<Atom<'_>>(Filter::new().string().symbol()).len()
}

fn parent<'js>(ctx: &Ctx<'js>) -> Option<Object<'js>> {
    ctx.globals().get_prototype()
}

/// The output of a function before it is judged.
#[derive(Debug, PartialEq)]
pub(crate) enum Heard {
    /// To its end, or to a refusal.
    Told(Said),
    /// It threw something else.
    Thrown,
}

/// How a call ended.
enum Ended {
    /// With an answer, or a refusal.
    Told,
    /// By an exception.
    Thrown,
    /// For want of something.
    Exhausted,
}

impl Machine {
    /// What the function says, and whether the machine may be used again.
    pub(crate) fn route(&self, write: &SyncWrite, clock: &Clock) -> (Result<Heard>, bool) {
        let Some(compiled) = self.compiled() else { return (Err(Error::OutOfResources), false) };
        let heard = self.heard();
        heard.begin(write.writer.clone(), write.now_s, clock);
        let ended = self.within(clock, |ctx| {
            let ended = self.ask(ctx, compiled, write)?;
            let is_same = || {
                let before = compiled.parent.clone().restore(ctx)?;
                // SAFETY: it asks a value of the engine that runs.
                let is_open = unsafe { qjs::JS_IsExtensible(ctx.as_raw().as_ptr(), ctx.globals().as_raw()) } == 1;
                Ok::<_, rquickjs::Error>(is_open && names(ctx) == compiled.names && parent(ctx) == Some(before))
            };
            let is_clean = match ended {
                Ended::Exhausted => false,
                Ended::Told | Ended::Thrown => is_same()? || self.export(ctx, "restore")?.call(())?,
            };
            Ok((ended, is_clean))
        });
        let said = heard.take();
        match (ended, said) {
            (Ok((Ended::Told, is_clean)), Some(said)) => (Ok(Heard::Told(said)), is_clean),
            (Ok((Ended::Thrown, is_clean)), Some(_)) => (Ok(Heard::Thrown), is_clean),
            (Ok((Ended::Exhausted, _)), Some(_)) => (Err(Error::OutOfResources), false),
            // Not all was heard. After what time is said by who gave it.
            (Ok(_), None) => (Err(Error::TimedOut(Duration::ZERO)), false),
            (Err(error), _) => (Err(error), false),
        }
    }

    fn ask(&self, ctx: &Ctx<'_>, compiled: &Compiled, write: &SyncWrite) -> rquickjs::Result<Ended> {
        let document = ctx.json_parse(write.document.as_str())?;
        let old = write.old.as_deref().map(|old| ctx.json_parse(old));
        let old = old.unwrap_or_else(|| Ok(Value::new_null(ctx.clone())))?;
        let meta = write.meta.as_deref().map(|meta| ctx.json_parse(meta));
        let meta = meta.unwrap_or_else(|| Object::new(ctx.clone()).map(Object::into_value))?;
        // What is theirs is made anew: a function may do with it as it likes.
        let writer = match &write.writer {
            _ if !compiled.names_writer => Value::new_undefined(ctx.clone()),
            Some(writer) => ctx.json_parse(writer_text(writer))?,
            None => Object::new(ctx.clone())?.into_value(),
        };
        let made = compiled.make.clone().restore(ctx)?.call::<_, Value<'_>>((writer,));
        let called = made.and_then(|made| match made.as_function() {
            // Nobody waits for a promise, and what it refuses would be written.
            Some(function) => function.call::<_, Value<'_>>((document, old, meta)).map(|told| !told.is_promise()),
            None => Ok(false),
        });
        match called {
            Ok(true) => Ok(Ended::Told),
            Ok(false) => Ok(Ended::Thrown),
            Err(rquickjs::Error::Exception) => {
                let thrown = ctx.catch();
                // SAFETY: it is a value of the engine that runs.
                if unsafe { qjs::JS_IsUncatchableError(thrown.as_raw()) } {
                    return Err(ctx.throw(thrown));
                }
                let ended: String = self.export(ctx, "thrown")?.call((thrown,))?;
                Ok(match ended.as_str() {
                    "ok" => Ended::Told,
                    "exhausted" => Ended::Exhausted,
                    _ => Ended::Thrown,
                })
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn compile_sync(&self, source: &str, clock: &Clock) -> Result<Compiled> {
        self.heard().begin(None, 0, clock);
        let (answer, compiled) = self.within(clock, |ctx| {
            let answer: String = self.export(ctx, "compileSync")?.call((source,))?;
            if !answer.is_empty() {
                return Ok((answer, None));
            }
            let make: Function<'_> = self.export(ctx, "made")?.call(())?;
            let parent = parent(ctx).ok_or(rquickjs::Error::Unknown)?;
            let compiled = Compiled {
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

/// What comes of what was said of a document whose id has so many bytes. As in Sync Gateway: what means nothing, before what was
/// rejected, before names that nobody has.
pub(crate) fn routed(heard: Heard, id_bytes: usize) -> Routed {
    let failed = |reason| Err(SyncRefusal::Failed(reason));
    let Heard::Told(said) = heard else { return failed(EXCEPTION) };
    let mut routing = Routing { channels: said.channels, expires_at: said.expires_at, ..Routing::default() };
    if routing.channels.iter().any(|channel| check_channel(channel).is_err()) {
        return failed(EXCEPTION);
    }
    // As recorded: who is let in by it sees all, and nothing else of the document's channels matters.
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
        routing.grants.insert(Grant { to, what: Given::Channel(channel) });
    }
    for (to, role) in said.roles {
        let Some(role) = role.strip_prefix(ROLE_PREFIX).filter(|role| check_channel(role).is_ok()) else {
            return failed(EXCEPTION);
        };
        has_names &= is_principal(to.strip_prefix(ROLE_PREFIX).unwrap_or(&to)) && is_principal(role);
        // Roles are in no roles.
        if !to.starts_with(ROLE_PREFIX) {
            routing.grants.insert(Grant { to: Grantee::User(to), what: Given::Role(role.to_owned()) });
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
        // Of what is so much more, not all was told.
        return Err(TooMuch { channels, grants, rows_bytes: routing.rows_bytes(id_bytes) }.into());
    }
    routing.check(id_bytes)?;
    Ok(routing)
}
