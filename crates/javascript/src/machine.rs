//! One design document's functions, in a runtime of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rquickjs::{Context, Function, Persistent, Runtime};

use crate::error::{Error, Result};

/// Memory of one runtime: a document of 8 MB and what JavaScript makes of it.
const MEMORY_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Stack of the functions, below that of the thread they run on.
const STACK_BYTES_MAX: usize = 512 * 1024;

/// What answers a call; written in JavaScript.
const DISPATCH: &str = include_str!("dispatch.js");

/// A runtime with one design document loaded.
pub(crate) struct Machine {
    // Dropped before the context that it lives in.
    dispatch: Persistent<Function<'static>>,
    context: Context,
    started: Instant,
    /// When a call is over, in milliseconds since `started`.
    deadline_ms: Arc<AtomicU64>,
}

impl Machine {
    /// `design`: the design document as JSON text.
    pub(crate) fn new(design: &str, until: Instant) -> Result<Machine> {
        let started = Instant::now();
        let deadline_ms = Arc::new(AtomicU64::new(u64::MAX));
        let runtime = Runtime::new().map_err(|_| Error::OutOfResources)?;
        runtime.set_memory_limit(MEMORY_BYTES_MAX);
        runtime.set_max_stack_size(STACK_BYTES_MAX);
        let deadline = deadline_ms.clone();
        runtime.set_interrupt_handler(Some(Box::new(move || {
            started.elapsed().as_millis() as u64 > deadline.load(Ordering::Relaxed)
        })));
        let context = Context::full(&runtime).map_err(|_| Error::OutOfResources)?;
        let dispatch = context.with(|ctx| {
            let dispatch: Function<'_> = ctx.eval(DISPATCH)?;
            Ok::<_, rquickjs::Error>(Persistent::save(&ctx, dispatch))
        });
        let dispatch = dispatch.map_err(|_| Error::OutOfResources)?;
        let machine = Machine { dispatch, context, started, deadline_ms };
        machine.call("load", "[]", design, until)?;
        Ok(machine)
    }

    /// Calls a function; `path` and `input` are JSON text, as is what it gives. After [`Error::TimedOut`] or
    /// [`Error::OutOfResources`] the machine is not to be used again.
    pub(crate) fn call(&self, kind: &str, path: &str, input: &str, until: Instant) -> Result<String> {
        let deadline = until.saturating_duration_since(self.started);
        self.deadline_ms.store(deadline.as_millis() as u64, Ordering::Relaxed);
        let answer = self.context.with(|ctx| {
            let dispatch = self.dispatch.clone().restore(&ctx)?;
            let answer: String = dispatch.call((kind, path, input))?;
            Ok::<_, rquickjs::Error>(answer)
        });
        answer.map_err(|_| if Instant::now() >= until { Error::TimedOut(deadline) } else { Error::OutOfResources })
    }
}
