//! Sync functions: what a database's function says of a document that is to be written.
//!
//! What it may call, and what comes of it, is Sync Gateway's: `tests/sync-gateway/` has its answers.

use std::sync::Arc;

use flatbed_channels::require::Writer;
use flatbed_channels::{
    Expiry, Given, Grant, Grantee, ROLE_PREFIX, ROUTING_ENTRIES_MAX, Routing, TooMuch, check_channel, is_principal,
};
use flatbed_flatten::json::{self, Limits, Object, Value};
use rquickjs::object::Filter;
use rquickjs::{Atom, Ctx};

use crate::ask::{Answer, Ask};
use crate::error::{Error, Result};
use crate::machine::{Clock, Machine};
use crate::{Caller, Design, Runner, whole};

/// All writers share what a function is compiled to: nothing of a call is seen by another.
const ANYBODY: Caller = Caller(u64::MAX);

/// Why a write is refused where the function threw something else than a refusal, or said what means nothing.
const EXCEPTION: &str = "Exception in JS sync function";

/// The same, where it gives somebody something who can have no such name.
const ERROR: &str = "Error in JS sync function";

/// The last status that HTTP has.
const STATUS_MAX: u16 = 599;

/// A database's sync function. Cheap to clone.
#[derive(Debug, Clone, PartialEq)]
pub struct SyncFunction(Design);

impl SyncFunction {
    /// `database`: what tells its database from all others, those that had its name before included. `source`: an expression that
    /// gives a function of a document, the one that it replaces, and what is known of it besides.
    pub fn new(database: impl Into<Arc<str>>, source: impl Into<Arc<str>>) -> SyncFunction {
        SyncFunction(Design::new(database, source))
    }
}

/// A write that is to be judged; all are JSON texts.
#[derive(Debug, Clone, Copy)]
pub struct SyncWrite<'a> {
    /// The document as it would be, with `_id`, `_rev` and `_deleted`, without attachments and `_exp`.
    pub document: &'a str,
    /// The one that it replaces, without `_rev`, or `null`.
    pub old: &'a str,
    /// What is known of it besides.
    pub meta: &'a str,
    /// Who writes ([`writer_text`]), or `null`: an administrator, who meets all requirements.
    pub user: &'a str,
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
pub fn writer_text(writer: &Writer) -> String {
    let text = Object::text(|object| {
        object.string("name", &writer.name);
        object.array("channels").strings(writer.channels.iter().map(String::as_str));
        let mut roles = object.object("roles");
        for role in &writer.roles {
            roles.object(role.as_str());
        }
    });
    String::from_utf8(text).unwrap_or_default()
}

impl Runner {
    /// Whether a source is a function.
    ///
    /// # Errors
    /// [`Error::Compilation`], and those of any call.
    pub async fn check_sync(&self, function: &SyncFunction) -> Result<()> {
        self.sync(function, None).await.map(drop)
    }

    /// Asks a sync function about a write.
    ///
    /// # Errors
    /// Those of [`Runner::check_sync`]. What the function itself refuses is an answer.
    pub async fn route(&self, function: &SyncFunction, write: &SyncWrite<'_>) -> Result<Routed> {
        let SyncWrite { document, old, meta, user, .. } = write;
        let input = format!("{{\"doc\":{document},\"old\":{old},\"meta\":{meta},\"user\":{user}}}");
        let said = self.sync(function, Some(input)).await?;
        let said = json::parse(said.as_bytes(), &Limits::default()).map_err(|_| Error::OutOfResources)?;
        Ok(routed(&said, write))
    }

    async fn sync(&self, function: &SyncFunction, input: Option<String>) -> Result<String> {
        match self.run(&function.0, ANYBODY, Ask::Route { input }, self.options.validation_max).await? {
            Answer::Text(text) => Ok(text),
            _ => Err(Error::OutOfResources),
        }
    }
}

impl Machine {
    /// What the function says, and whether the machine may be used again. Without an input nothing is asked.
    pub(crate) fn route(&self, input: Option<&str>, clock: &Clock) -> (Result<String>, bool) {
        let Some(input) = input else { return (Ok(String::new()), true) };
        let names = |ctx: &Ctx<'_>| ctx.globals().own_keys::<Atom<'_>>(Filter::new().string().symbol()).len();
        let answer: Result<(String, bool)> = self.within(clock, |ctx| {
            let input = ctx.json_parse(input)?;
            let text: String = self.export(ctx, "route")?.call((input,))?;
            let is_clean = match names_before(&text) {
                Some(before) if before == names(ctx) => true,
                Some(_) => self.export(ctx, "restore")?.call(())?,
                None => false,
            };
            Ok((text, is_clean))
        });
        match answer {
            Ok((text, _)) if text.starts_with("[\"exhausted\"") => (Err(Error::OutOfResources), false),
            Ok((text, is_clean)) => (Ok(whole(text)), is_clean),
            Err(error) => (Err(error), false),
        }
    }

    pub(crate) fn compile_sync(&self, source: &str, clock: &Clock) -> Result<()> {
        let answer: String = self.within(clock, |ctx| self.export(ctx, "compileSync")?.call((source,)))?;
        if answer.is_empty() { Ok(()) } else { Err(crate::failure(&answer)) }
    }
}

/// How many names the global object had before the call, by what `route` of the program gives; one that took up all there is
/// has none. A prototype that is another one now counts as no number of names.
fn names_before(answer: &str) -> Option<usize> {
    let rest = answer.strip_prefix("[\"ok\",").or_else(|| answer.strip_prefix("[\"exception\","))?;
    let (names, _) = rest.split_once(',')?;
    Some(names.parse().unwrap_or(usize::MAX))
}

/// Takes apart what `route` of the program gives: `[how, names, {...}]`. As in Sync Gateway: what was thrown, or means nothing,
/// before what was rejected, before names that nobody has.
fn routed(answer: &Value<'_>, write: &SyncWrite<'_>) -> Routed {
    let failed = |reason| Err(SyncRefusal::Failed(reason));
    let Value::Array(parts) = answer else { return failed(EXCEPTION) };
    let [Value::String(how), _, said] = &parts[..] else { return failed(EXCEPTION) };
    if how != "ok" {
        return failed(EXCEPTION);
    }
    let mut routing = Routing::default();
    let mut has_names = true;
    for channel in items(said, "channels").iter().filter_map(Value::as_str) {
        if check_channel(channel).is_err() {
            return failed(EXCEPTION);
        }
        routing.channels.insert(channel.to_owned());
    }
    // As recorded: who is let in by it sees all, and nothing else of the document's channels matters.
    if routing.channels.contains(flatbed_channels::ALL) {
        routing.channels.retain(|channel| channel == flatbed_channels::ALL);
    }
    for (to, channel) in items(said, "grants").iter().filter_map(pair) {
        if check_channel(channel).is_err() {
            return failed(EXCEPTION);
        }
        let (to, name) = match to.strip_prefix(ROLE_PREFIX) {
            Some(role) => (Grantee::Role(role.to_owned()), role),
            None => (Grantee::User(to.to_owned()), to),
        };
        has_names &= is_principal(name);
        routing.grants.insert(Grant { to, what: Given::Channel(channel.to_owned()) });
    }
    for (to, role) in items(said, "roles").iter().filter_map(pair) {
        let Some(role) = role.strip_prefix(ROLE_PREFIX).filter(|role| check_channel(role).is_ok()) else {
            return failed(EXCEPTION);
        };
        has_names &= is_principal(to.strip_prefix(ROLE_PREFIX).unwrap_or(to)) && is_principal(role);
        // Roles are in no roles.
        if !to.starts_with(ROLE_PREFIX) {
            routing.grants.insert(Grant { to: Grantee::User(to.to_owned()), what: Given::Role(role.to_owned()) });
        }
    }
    if let Some(Value::Array(rejected)) = said.get("rejected") {
        let [Value::Number(status), Value::String(reason)] = &rejected[..] else { return failed(EXCEPTION) };
        return match status.parse() {
            Ok(status @ ..=STATUS_MAX) => Err(SyncRefusal::Rejected { status, reason: crate::cut(reason) }),
            _ => failed(EXCEPTION),
        };
    }
    if !has_names {
        return failed(ERROR);
    }
    let [channels, grants] = counts(said).ok_or(SyncRefusal::Failed(EXCEPTION))?;
    if channels > ROUTING_ENTRIES_MAX || grants > ROUTING_ENTRIES_MAX {
        // Of what is so much more, not all was told.
        return Err(TooMuch { channels, grants, rows_bytes: routing.rows_bytes(write.id_bytes) }.into());
    }
    // What is no time is as if it was not said.
    let expiry = said.get("expires").map(|expires| Expiry::parse(expires, write.now_s));
    routing.expires_at = expiry.and_then(std::result::Result::ok).and_then(Option::from);
    routing.check(write.id_bytes)?;
    Ok(routing)
}

fn items<'a>(of: &'a Value<'a>, member: &str) -> &'a [Value<'a>] {
    match of.get(member) {
        Some(Value::Array(items)) => items,
        _ => &[],
    }
}

/// How many channels, and how many grants and roles, it has said.
fn counts(said: &Value<'_>) -> Option<[usize; 2]> {
    match items(said, "counts") {
        [Value::Number(channels), Value::Number(grants)] => Some([channels.parse().ok()?, grants.parse().ok()?]),
        _ => None,
    }
}

fn pair<'a>(of: &'a Value<'a>) -> Option<(&'a str, &'a str)> {
    match of {
        Value::Array(parts) => match &parts[..] {
            [Value::String(to), Value::String(what)] => Some((to, what)),
            _ => None,
        },
        _ => None,
    }
}
