//! What a call of a sync function says and requires: the functions that it is given for that, as built-in ones of its engine.
//!
//! What is said is collected here, within bounds of its own, and is no object that a function could reach. Nothing is borrowed while the
//! engine runs: what a function passes may be arrays with getters, and proxies, that call the same functions again.

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

/// More than a revision may have is counted no further: so many channels, and as many grants and roles.
pub(crate) const SAID_MAX: usize = 10_000;

/// Nor is what takes more together: ten times what a revision's rows may.
pub(crate) const SAID_BYTES_MAX: usize = 1_000_000;

/// What all calls of `access` and `role` hold of what they are passed, one within the other: of one it is less, two lists that take
/// some 1.7 MB each at most.
const UNDER_WAY_BYTES_MAX: usize = 4 * SAID_BYTES_MAX;

/// What a text takes in a list beside its bytes, about.
const TEXT_BYTES: usize = 64;

/// Of a longer text this many bytes are kept, and then some that make it whole: no name is as long, and what is refused for its length still is.
const TEXT_BYTES_MAX: usize = CHANNEL_BYTES_MAX + 100;

/// Of why a write is refused; the program cuts it to 4,000 characters.
const REASON_BYTES_MAX: usize = 16_000;

/// Of these, which the engine does not listen between, so many are done between two looks at the clock: texts, and thousands of bytes.
const WORK_BETWEEN_LOOKS: usize = 1_000;

/// What one call has said.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Said {
    pub(crate) channels: BTreeSet<String>,
    /// To whom, and which channel.
    pub(crate) grants: BTreeSet<(String, String)>,
    /// To whom, and which role, with its prefix.
    pub(crate) roles: BTreeSet<(String, String)>,
    /// How many channels, and how many grants and roles.
    pub(crate) counts: [usize; 2],
    /// Some of it was not heard to its end.
    pub(crate) is_cut: bool,
    /// Status and reason.
    pub(crate) rejected: Option<(f64, String)>,
    /// What is no time is as if it was not said.
    pub(crate) expires_at: Option<u64>,
    /// Of all names, while they are heard.
    pub(crate) bytes: usize,
}

/// What is known of a call.
struct Call {
    writer: Option<Arc<Writer>>,
    now_s: u64,
    clock: Clock,
}

/// What an engine's functions share. Empty between two calls.
#[derive(Default)]
pub(crate) struct Hearing {
    call: RefCell<Option<Call>>,
    said: RefCell<Said>,
    work: Cell<usize>,
    /// What all [`Texts`] take.
    under_way: Cell<usize>,
    /// Its time was over in one of the functions, which has not heard all.
    is_stopped: Cell<bool>,
}

impl Hearing {
    /// Forgets what was said before. Without a `writer` all requirements are met.
    pub(crate) fn begin(&self, writer: Option<Arc<Writer>>, now_s: u64, clock: &Clock) {
        self.take();
        *self.call.borrow_mut() = Some(Call { writer, now_s, clock: clock.clone() });
    }

    /// What was said since; `None`: not all of it was heard.
    pub(crate) fn take(&self) -> Option<Said> {
        self.call.take();
        self.work.set(0);
        let said = self.said.take();
        (!self.is_stopped.take()).then_some(said)
    }

    /// Makes the functions, as global names: the program takes those away that are for itself, and freezes the others.
    pub(crate) fn give(self: &Rc<Self>, ctx: &Ctx<'_>) -> rquickjs::Result<()> {
        for (name, what) in [
            ("channel", What::Channel),
            ("access", What::Access),
            ("role", What::Role),
            ("requireUser", What::RequireUser),
            ("requireRole", What::RequireRole),
            ("requireAccess", What::RequireAccess),
            ("requireAdmin", What::RequireAdmin),
            ("isRejected", What::IsRejected),
            ("refuse", What::Refuse),
            ("expire", What::Expire),
        ] {
            ctx.globals()
                .set(name, Function::new(ctx.clone(), Helper { what, heard: Rc::clone(self) })?.with_name(name)?)?;
        }
        Ok(())
    }

    fn writer(&self) -> Option<Arc<Writer>> {
        self.call.borrow().as_ref().and_then(|call| call.writer.clone())
    }

    /// Some work was done that the engine's clock has not seen.
    fn worked(&self, ctx: &Ctx<'_>, bytes: usize) -> rquickjs::Result<()> {
        let work = self.work.get() + 1 + bytes / 1_000;
        self.work.set(if work < WORK_BETWEEN_LOOKS { work } else { 0 });
        if work >= WORK_BETWEEN_LOOKS && self.call.borrow().as_ref().is_some_and(|call| call.clock.is_over()) {
            self.is_stopped.set(true);
        }
        if self.is_stopped.get() { Err(Exception::throw_internal(ctx, "interrupted")) } else { Ok(()) }
    }

    /// Gives each text of a value, which is one, or of an array its items that are, until one was enough.
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

    /// A text, as much of it as counts.
    fn text(&self, value: &Value<'_>, bytes_max: usize) -> rquickjs::Result<String> {
        let (text, bytes) = with_bytes(value, |bytes| (whole(bytes, bytes_max), bytes.len()))?;
        self.worked(value.ctx(), bytes)?;
        Ok(text)
    }

    /// The texts of a value, as many as are counted. While they are taken, functions may be called that take others.
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
            let is_enough = texts.all.len() > SAID_MAX || bytes > SAID_BYTES_MAX;
            if is_enough {
                // What is behind it is not heard, so nothing of the call may hold.
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
                    // The others would be counted no further.
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

    /// Whether what a value names is met.
    fn meets(&self, value: &Value<'_>, has: impl Fn(&Writer, &str) -> bool) -> rquickjs::Result<bool> {
        let writer = self.writer();
        let mut is_met = false;
        self.each_text(value, |name| {
            if let Some(writer) = &writer {
                // No name has half a pair in it.
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

/// Texts that a call holds while the engine runs, counted among those of all such calls.
struct Texts<'h> {
    all: Vec<String>,
    taken: usize,
    under_way: &'h Cell<usize>,
}

impl Texts<'_> {
    /// Takes one more, if there is room.
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

impl Said {
    /// Counts one more, and whether it is kept.
    fn has_room(&mut self, of: usize, bytes: usize) -> bool {
        let Some(count) = self.counts.get_mut(of) else { return false };
        *count += 1;
        let has_room = *count <= SAID_MAX && self.bytes + bytes <= SAID_BYTES_MAX;
        if has_room {
            self.bytes += bytes;
        } else {
            self.is_cut = true;
        }
        has_room
    }
}

/// A function that sync functions call, or their program.
struct Helper {
    what: What,
    heard: Rc<Hearing>,
}

#[derive(Debug, Clone, Copy)]
enum What {
    Channel,
    Access,
    Role,
    RequireUser,
    RequireRole,
    RequireAccess,
    RequireAdmin,
    /// Of the program: whether there is a refusal already.
    IsRejected,
    /// Of the program: status and reason.
    Refuse,
    /// Of the program: a text, and whether it is a number's.
    Expire,
}

impl<'js> IntoJsFunc<'js, Helper> for Helper {
    fn param_requirements() -> ParamRequirement {
        ParamRequirement::any()
    }

    fn call(&self, params: Params<'_, 'js>) -> rquickjs::Result<Value<'js>> {
        let (ctx, heard) = (params.ctx(), &self.heard);
        let given = |at: usize| params.arg(at).unwrap_or_else(|| Value::new_undefined(ctx.clone()));
        let required = |is_met: bool, reason: &'static str| if is_met { Ok(()) } else { Err(refusal(ctx, reason)) };
        match self.what {
            What::Channel => (0..params.len()).try_for_each(|at| heard.channel(&given(at)))?,
            What::Access => heard.give_each(false, &given(0), &given(1))?,
            What::Role => heard.give_each(true, &given(0), &given(1))?,
            What::RequireUser => {
                required(heard.meets(&given(0), |writer, name| writer.name == name)?, WRONG_USER)?;
            }
            What::RequireRole => {
                required(heard.meets(&given(0), |writer, name| writer.roles.contains(name))?, MISSING_ROLE)?;
            }
            What::RequireAccess => {
                required(heard.meets(&given(0), |writer, name| writer.channels.contains(name))?, MISSING_ACCESS)?;
            }
            What::RequireAdmin => required(heard.writer().is_none(), NO_ADMINISTRATOR)?,
            What::IsRejected => return Ok(Value::new_bool(ctx.clone(), heard.said.borrow().rejected.is_some())),
            What::Refuse => {
                let reason = heard.text(&given(1), REASON_BYTES_MAX)?;
                heard.said.borrow_mut().rejected = Some((given(0).as_number().unwrap_or(f64::NAN), reason));
            }
            What::Expire => {
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

/// Throws what a function throws to refuse a write.
fn refusal(ctx: &Ctx<'_>, reason: &str) -> rquickjs::Error {
    let thrown = Object::new(ctx.clone()).and_then(|thrown| thrown.set("forbidden", reason).map(|()| thrown));
    match thrown {
        Ok(thrown) => ctx.throw(thrown.into_value()),
        Err(error) => error,
    }
}

/// What `Array.isArray` says, which sees through proxies. A function that puts another in front of it does so for its own call.
fn is_array(value: &Value<'_>) -> rquickjs::Result<bool> {
    let array: Object<'_> = value.ctx().globals().get("Array")?;
    array.get::<_, Function<'_>>("isArray")?.call((value.clone(),))
}

/// What is in a text: UTF-8, but for halves of surrogate pairs, which are three bytes each.
fn with_bytes<T>(value: &Value<'_>, look: impl FnOnce(&[u8]) -> T) -> rquickjs::Result<T> {
    let ctx = value.ctx().as_raw().as_ptr();
    let mut bytes = 0;
    // SAFETY: context and value are those of the engine that runs; what is given has so many bytes until it is freed, below, and `look`
    // runs nothing of the engine's. Nothing but a text of its own memory is made of a text.
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

/// The first of so many bytes, and of what follows as much as makes them a text, with U+FFFD for halves of surrogate pairs.
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
            // Half a pair.
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
