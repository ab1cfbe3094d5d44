//! One design document's functions for one caller, in a runtime of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rquickjs::module::WriteOptions;
use rquickjs::{Context, Function, Module, Persistent, Runtime};

use crate::error::{Error, Result};

/// Memory of one runtime: a document of 8 MB and what JavaScript makes of it.
const MEMORY_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Stack of the functions, below that of the thread they run on.
const STACK_BYTES_MAX: usize = 512 * 1024;

/// What answers a call; written in JavaScript.
const DISPATCH: &str = concat!(include_str!("patterns.js"), include_str!("dispatch.js"));

/// [`DISPATCH`], compiled: to parse it takes longer than all else that makes a machine.
pub(crate) struct Dispatch(Vec<u8>);

impl Dispatch {
    pub(crate) fn compile() -> Result<Dispatch> {
        let stripped = WriteOptions { strip_source: true, strip_debug: true, ..WriteOptions::default() };
        let compile = || {
            let context = Context::full(&Runtime::new()?)?;
            context.with(|ctx| Module::declare(ctx, "dispatch", DISPATCH)?.write(stripped))
        };
        compile().map(Dispatch).map_err(|_| Error::OutOfResources)
    }
}

/// A runtime with one design document loaded. What its functions leave behind stays in it.
pub(crate) struct Machine {
    // Dropped before the context that it lives in.
    dispatch: Persistent<Function<'static>>,
    context: Context,
    runtime: Runtime,
}

impl Machine {
    /// `design`: the design document as JSON text.
    pub(crate) fn new(code: &Dispatch, design: &str, until: Instant, abandoned: &Arc<AtomicBool>) -> Result<Machine> {
        let runtime = Runtime::new().map_err(|_| Error::OutOfResources)?;
        runtime.set_memory_limit(MEMORY_BYTES_MAX);
        runtime.set_max_stack_size(STACK_BYTES_MAX);
        let context = Context::full(&runtime).map_err(|_| Error::OutOfResources)?;
        let dispatch = context.with(|ctx| {
            // SAFETY: the bytes are what the same QuickJS has written in `Dispatch::compile`; nobody else makes one.
            let module = unsafe { Module::load(ctx.clone(), &code.0) }?;
            let (module, _) = module.eval()?;
            Ok::<_, rquickjs::Error>(Persistent::save(&ctx, module.get::<_, Function<'_>>("dispatch")?))
        });
        let dispatch = dispatch.map_err(|_| Error::OutOfResources)?;
        let machine = Machine { dispatch, context, runtime };
        machine.call("load", "[]", design, until, abandoned)?;
        Ok(machine)
    }

    /// Calls a function; `path` and `input` are JSON text, as is what it gives. It is stopped at `until`, and when nobody
    /// waits for it. After [`Error::TimedOut`] or [`Error::OutOfResources`] the machine is not to be used again.
    pub(crate) fn call(
        &self,
        kind: &str,
        path: &str,
        input: &str,
        until: Instant,
        abandoned: &Arc<AtomicBool>,
    ) -> Result<String> {
        let (begun, abandoned) = (Instant::now(), abandoned.clone());
        let is_over = move || abandoned.load(Ordering::Relaxed) || Instant::now() >= until;
        self.runtime.set_interrupt_handler(Some(Box::new(is_over)));
        let answer = self.context.with(|ctx| {
            let dispatch = self.dispatch.clone().restore(&ctx)?;
            let answer: String = dispatch.call((kind, path, input))?;
            Ok::<_, rquickjs::Error>(answer)
        });
        let is_late = Instant::now() >= until;
        answer.map_err(|_| if is_late { Error::TimedOut(until - begun) } else { Error::OutOfResources })
    }
}
