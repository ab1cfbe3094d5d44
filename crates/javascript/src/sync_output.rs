//! The built-in functions that a sync function calls, and the collection of their arguments.
//!
//! The output is collected here within its own bounds, and no JavaScript object reaches it. No `RefCell` stays
//! borrowed while the engine runs: arguments may be arrays with getters or proxies that call these functions again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use flatbed_channels::require::{MISSING_ACCESS, MISSING_ROLE, NO_ADMINISTRATOR, WRONG_USER, Writer};
use flatbed_channels::{ALL, CHANNEL_BYTES_MAX, Expiry};
use flatbed_flatten::json;
use rquickjs::atom::PredefinedAtom;
use rquickjs::convert::Coerced;
use rquickjs::function::{IntoJsFunc, ParamRequirement, Params};
use rquickjs::{Ctx, Exception, Function, Object, Value, qjs};

use crate::clock::Clock;

/// The most channels, and the most grants and roles together, that are collected. A revision may have fewer.
pub(crate) const OUTPUT_ENTRIES_MAX: usize = 10_000;

/// The most bytes of names that are collected: ten times the limit of a revision's rows.
pub(crate) const OUTPUT_BYTES_MAX: usize = 1_000_000;

/// The most bytes of arguments that all nested calls of `access` and `role` hold. A single call holds less: two lists
/// of at most some 1.7 MB each.
const UNDER_WAY_BYTES_MAX: usize = 4 * OUTPUT_BYTES_MAX;

/// The approximate overhead of a text in a list, in bytes.
const TEXT_BYTES: usize = 64;

/// The bytes that are kept of a longer text, rounded up to a whole character. Valid names are shorter, so a cut name
/// is still refused for its length.
const TEXT_BYTES_MAX: usize = CHANNEL_BYTES_MAX + 100;

/// The same for the reason of a refusal. `sync.js` cuts it to 4,000 characters.
const REASON_BYTES_MAX: usize = 16_000;

/// The units of work (texts, and thousands of bytes) between two checks of the clock. The engine's own checks do not
/// run meanwhile.
const WORK_BETWEEN_LOOKS: usize = 1_000;

#[derive(Debug, Default, PartialEq)]
pub(crate) struct SyncOutput {
    pub(crate) channels: BTreeSet<String>,
    pub(crate) grants: BTreeSet<(String, String)>,
    pub(crate) roles: BTreeSet<(String, String)>,
    /// The number of channels, and of grants and roles, including those that are not kept.
    pub(crate) counts: [usize; 2],
    /// True if a limit was reached and output was dropped.
    pub(crate) is_cut: bool,
    pub(crate) rejected: Option<(f64, String)>,
    /// `None` for an invalid time.
    pub(crate) expires_at: Option<u64>,
    /// The bytes of all names so far.
    pub(crate) bytes: usize,
}

struct CallContext {
    writer: Option<Arc<Writer>>,
    now_s: u64,
    clock: Clock,
}

/// The state that the built-in functions of an engine share. Empty between two calls.
#[derive(Default)]
pub(crate) struct SyncRecorder {
    call: RefCell<Option<CallContext>>,
    said: RefCell<SyncOutput>,
    work: Cell<usize>,
    under_way: Cell<usize>,
    /// True if the deadline passed inside one of these functions, which then did not collect everything.
    is_stopped: Cell<bool>,
}

impl SyncRecorder {
    /// Begins a call. Without a `writer` all requirements are met.
    pub(crate) fn begin(&self, writer: Option<Arc<Writer>>, now_s: u64, clock: &Clock) {
        self.take();
        *self.call.borrow_mut() = Some(CallContext { writer, now_s, clock: clock.clone() });
    }

    /// Ends a call and returns its output. Returns `None` if the output is incomplete.
    pub(crate) fn take(&self) -> Option<SyncOutput> {
        self.call.take();
        self.work.set(0);
        let said = self.said.take();
        (!self.is_stopped.take()).then_some(said)
    }

    /// Defines the functions as globals. `sync.js` removes those for itself and freezes the others.
    pub(crate) fn give(self: &Rc<Self>, ctx: &Ctx<'_>) -> rquickjs::Result<()> {
        for (name, what) in [
            ("channel", HelperKind::Channel),
            ("access", HelperKind::Access),
            ("role", HelperKind::Role),
            ("requireUser", HelperKind::RequireUser),
            ("requireRole", HelperKind::RequireRole),
            ("requireAccess", HelperKind::RequireAccess),
            ("requireAdmin", HelperKind::RequireAdmin),
            ("isRejected", HelperKind::IsRejected),
            ("refuse", HelperKind::Refuse),
            ("expire", HelperKind::Expire),
        ] {
            ctx.globals()
                .set(name, Function::new(ctx.clone(), SyncHelper { what, heard: Rc::clone(self) })?.with_name(name)?)?;
        }
        Ok(())
    }

    fn writer(&self) -> Option<Arc<Writer>> {
        self.call.borrow().as_ref().and_then(|call| call.writer.clone())
    }

    /// Counts work that the engine's own checks do not see, and checks the deadline.
    fn worked(&self, ctx: &Ctx<'_>, bytes: usize) -> rquickjs::Result<()> {
        let work = self.work.get() + 1 + bytes / 1_000;
        self.work.set(if work < WORK_BETWEEN_LOOKS { work } else { 0 });
        if work >= WORK_BETWEEN_LOOKS && self.call.borrow().as_ref().is_some_and(|call| call.clock.is_over()) {
            self.is_stopped.set(true);
        }
        if self.is_stopped.get() { Err(Exception::throw_internal(ctx, "interrupted")) } else { Ok(()) }
    }

    /// Calls a closure with a text, or with each text of an array, until it returns true.
    fn each_text<'js>(
        &self,
        value: &Value<'js>,
        mut is_enough: impl FnMut(&Value<'js>) -> rquickjs::Result<bool>,
    ) -> rquickjs::Result<()> {
        if value.is_string() {
            return is_enough(value).map(drop);
        }
        let Some(items) = value.as_object().filter(|_| value.is_array() || value.is_proxy()) else { return Ok(()) };
        if !value.is_array() && !is_array(value)? {
            return Ok(());
        }
        for at in 0..u32::MAX {
            let Coerced(length) = items.get::<_, Coerced<f64>>(PredefinedAtom::Length)?;
            if length.is_nan() || length <= f64::from(at) {
                return Ok(());
            }
            let item = items.get::<_, Value<'js>>(at)?;
            self.worked(value.ctx(), 0)?;
            if item.is_string() && is_enough(&item)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Copies a text up to a length.
    fn text(&self, value: &Value<'_>, bytes_max: usize) -> rquickjs::Result<String> {
        let (text, bytes) = with_bytes(value, |bytes| (whole(bytes, bytes_max), bytes.len()))?;
        self.worked(value.ctx(), bytes)?;
        Ok(text)
    }

    /// Copies the texts of a value, up to the limits. Getters of the value may call these functions meanwhile.
    fn texts(&self, value: &Value<'_>) -> rquickjs::Result<Texts<'_>> {
        let mut texts = Texts { all: Vec::new(), taken: 0, under_way: &self.under_way };
        let mut bytes = 0;
        self.each_text(value, |text| {
            let ctx = text.ctx();
            let text = self.text(text, TEXT_BYTES_MAX)?;
            bytes += text.len();
            if !texts.take(text) {
                return Err(Exception::throw_internal(ctx, "out of memory"));
            }
            let is_enough = texts.all.len() > OUTPUT_ENTRIES_MAX || bytes > OUTPUT_BYTES_MAX;
            if is_enough {
                // Later texts are not collected, so the call must be refused.
                self.said.borrow_mut().is_cut = true;
            }
            Ok(is_enough)
        })?;
        Ok(texts)
    }

    fn channel(&self, value: &Value<'_>) -> rquickjs::Result<()> {
        self.each_text(value, |name| {
            let name = self.text(name, TEXT_BYTES_MAX)?;
            let said = &mut *self.said.borrow_mut();
            let bytes = name.len();
            if !said.channels.contains(&name) && said.has_room(0, bytes) {
                said.channels.insert(name);
            }
            Ok(false)
        })
    }

    fn give_each(&self, is_role: bool, to: &Value<'_>, what: &Value<'_>) -> rquickjs::Result<()> {
        let (to_all, what_all) = (self.texts(to)?, self.texts(what)?);
        for to_one in &to_all.all {
            for what in what_all.all.iter().filter(|what| is_role || *what != ALL) {
                self.worked(to.ctx(), 0)?;
                let said = &mut *self.said.borrow_mut();
                let pair = (to_one.clone(), what.clone());
                let is_known = if is_role { said.roles.contains(&pair) } else { said.grants.contains(&pair) };
                if is_known {
                    continue;
                }
                if !said.has_room(1, pair.0.len() + pair.1.len()) {
                    // Further pairs would not be counted.
                    return Ok(());
                }
                if is_role {
                    said.roles.insert(pair)
                } else {
                    said.grants.insert(pair)
                };
            }
        }
        Ok(())
    }

    /// Returns true if the writer meets a requirement.
    fn meets(&self, value: &Value<'_>, has: impl Fn(&Writer, &str) -> bool) -> rquickjs::Result<bool> {
        let writer = self.writer();
        let mut is_met = false;
        self.each_text(value, |name| {
            if let Some(writer) = &writer {
                // No valid name contains half a surrogate pair.
                let (met, bytes) =
                    with_bytes(name, |bytes| (str::from_utf8(bytes).is_ok_and(|name| has(writer, name)), bytes.len()))?;
                is_met = met;
                self.worked(name.ctx(), bytes)?;
            }
            Ok(is_met)
        })?;
        Ok(is_met || writer.is_none())
    }
}

/// Texts held while the engine runs, counted together with those of nested calls.
struct Texts<'h> {
    all: Vec<String>,
    taken: usize,
    under_way: &'h Cell<usize>,
}

impl Texts<'_> {
    fn take(&mut self, text: String) -> bool {
        let bytes = text.capacity() + TEXT_BYTES;
        let has_room = self.under_way.get() + bytes <= UNDER_WAY_BYTES_MAX;
        if has_room {
            self.under_way.set(self.under_way.get() + bytes);
            self.taken += bytes;
            self.all.push(text);
        }
        has_room
    }
}

impl Drop for Texts<'_> {
    fn drop(&mut self) {
        self.under_way.set(self.under_way.get() - self.taken);
    }
}

impl SyncOutput {
    fn has_room(&mut self, of: usize, bytes: usize) -> bool {
        let Some(count) = self.counts.get_mut(of) else { return false };
        *count += 1;
        let has_room = *count <= OUTPUT_ENTRIES_MAX && self.bytes + bytes <= OUTPUT_BYTES_MAX;
        if has_room {
            self.bytes += bytes;
        } else {
            self.is_cut = true;
        }
        has_room
    }
}

struct SyncHelper {
    what: HelperKind,
    heard: Rc<SyncRecorder>,
}

#[derive(Debug, Clone, Copy)]
enum HelperKind {
    Channel,
    Access,
    Role,
    RequireUser,
    RequireRole,
    RequireAccess,
    RequireAdmin,
    /// For `sync.js`: returns true if the write is already refused.
    IsRejected,
    /// For `sync.js`: records status and reason.
    Refuse,
    /// For `sync.js`: records a time; the second argument tells whether the text is a number.
    Expire,
}

impl<'js> IntoJsFunc<'js, SyncHelper> for SyncHelper {
    fn param_requirements() -> ParamRequirement {
        ParamRequirement::any()
    }

    fn call(&self, params: Params<'_, 'js>) -> rquickjs::Result<Value<'js>> {
        let (ctx, heard) = (params.ctx(), &self.heard);
        let given = |at: usize| params.arg(at).unwrap_or_else(|| Value::new_undefined(ctx.clone()));
        let required = |is_met: bool, reason: &'static str| if is_met { Ok(()) } else { Err(refusal(ctx, reason)) };
        match self.what {
            HelperKind::Channel => (0..params.len()).try_for_each(|at| heard.channel(&given(at)))?,
            HelperKind::Access => heard.give_each(false, &given(0), &given(1))?,
            HelperKind::Role => heard.give_each(true, &given(0), &given(1))?,
            HelperKind::RequireUser => {
                required(heard.meets(&given(0), |writer, name| writer.name == name)?, WRONG_USER)?;
            }
            HelperKind::RequireRole => {
                required(heard.meets(&given(0), |writer, name| writer.roles.contains(name))?, MISSING_ROLE)?;
            }
            HelperKind::RequireAccess => {
                required(heard.meets(&given(0), |writer, name| writer.channels.contains(name))?, MISSING_ACCESS)?;
            }
            HelperKind::RequireAdmin => required(heard.writer().is_none(), NO_ADMINISTRATOR)?,
            HelperKind::IsRejected => return Ok(Value::new_bool(ctx.clone(), heard.said.borrow().rejected.is_some())),
            HelperKind::Refuse => {
                let reason = heard.text(&given(1), REASON_BYTES_MAX)?;
                heard.said.borrow_mut().rejected = Some((given(0).as_number().unwrap_or(f64::NAN), reason));
            }
            HelperKind::Expire => {
                let text = heard.text(&given(0), TEXT_BYTES_MAX)?;
                let is_number = given(1).as_bool() == Some(true);
                let value = if is_number { json::Value::Number(text.into()) } else { json::Value::String(text.into()) };
                let now_s = heard.call.borrow().as_ref().map_or(0, |call| call.now_s);
                let expiry = Expiry::parse(&value, now_s);
                heard.said.borrow_mut().expires_at = match expiry {
                    Ok(Expiry::At(second)) => Some(second),
                    _ => None,
                };
            }
        }
        Ok(Value::new_undefined(ctx.clone()))
    }
}

fn refusal(ctx: &Ctx<'_>, reason: &str) -> rquickjs::Error {
    let thrown = Object::new(ctx.clone()).and_then(|thrown| thrown.set("forbidden", reason).map(|()| thrown));
    match thrown {
        Ok(thrown) => ctx.throw(thrown.into_value()),
        Err(error) => error,
    }
}

/// Calls `Array.isArray`, which sees through proxies. A function that replaces it affects its own call only.
fn is_array(value: &Value<'_>) -> rquickjs::Result<bool> {
    let array: Object<'_> = value.ctx().globals().get("Array")?;
    array.get::<_, Function<'_>>("isArray")?.call((value.clone(),))
}

/// Passes the bytes of a text to a closure: UTF-8, except that a lone surrogate takes three bytes.
fn with_bytes<T>(value: &Value<'_>, look: impl FnOnce(&[u8]) -> T) -> rquickjs::Result<T> {
    let ctx = value.ctx().as_raw().as_ptr();
    let mut bytes = 0;
    // SAFETY: context and value are those of the running engine. The pointer is valid for `bytes` bytes until it is
    // freed below, and `look` runs no code of the engine. The value is a string, so its conversion runs none either.
    unsafe {
        let text = qjs::JS_ToCStringLen(ctx, &mut bytes, value.as_raw());
        if text.is_null() {
            return Err(rquickjs::Error::Exception);
        }
        let found = look(std::slice::from_raw_parts(text.cast(), bytes));
        qjs::JS_FreeCString(ctx, text);
        Ok(found)
    }
}

/// Copies the first bytes of a text up to the next character boundary, with U+FFFD for lone surrogates.
fn whole(bytes: &[u8], bytes_max: usize) -> String {
    let is_within = |byte: &u8| byte & 0xc0 == 0x80;
    let end = bytes.len().min(bytes_max);
    let end = end + bytes.iter().skip(end).take_while(|byte| is_within(byte)).count();
    let mut rest = bytes.get(..end).unwrap_or_default();
    let mut text = String::with_capacity(rest.len());
    loop {
        let chunk = rest.utf8_chunks().next();
        let Some(chunk) = chunk else { return text };
        text.push_str(chunk.valid());
        rest = rest.get(chunk.valid().len()..).unwrap_or_default();
        if !rest.is_empty() {
            text.push('\u{fffd}');
            // A lone surrogate has three bytes.
            rest = rest.get(3..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_at_characters_and_halves_of_pairs_are_replaced() {
        for (bytes, max, expected) in [
            (&b"abc"[..], 10, "abc"),
            (b"abc", 2, "ab"),
            (b"", 2, ""),
            ("aé".as_bytes(), 2, "aé"),
            ("a😀b".as_bytes(), 2, "a😀"),
            (b"\xed\xa0\xbd", 10, "\u{fffd}"),
            (b"a\xed\xa0\xbd\xed\xb0\x80b", 10, "a\u{fffd}\u{fffd}b"),
            (b"a\xed\xa0\xbdb", 2, "a\u{fffd}"),
        ] {
            assert_eq!(whole(bytes, max), expected, "{bytes:?}");
        }
    }
}
