//! A QuickJS runtime with the functions of one design document for one caller.

use std::rc::Rc;
use std::sync::Arc;

use flatbed_collate::Collation;
use flatbed_flatten::json::Value;
use rquickjs::module::WriteOptions;
use rquickjs::{Context, Ctx, Function, Module, Persistent, Runtime, qjs};

use crate::clock::{Clock, now};
use crate::error::{Error, Result};
use crate::memory::{Budget, CountingAllocator, Usage};
use crate::sync::CompiledFunction;
use crate::sync_output::SyncRecorder;

const STACK_BYTES_MAX: usize = 512 * 1024;

/// The program for calls, in JavaScript.
const CALLS: &str = concat!(include_str!("patterns.js"), include_str!("locale.js"), include_str!("dispatch.js"));

const MAPS: &str = concat!(
    include_str!("patterns.js"),
    include_str!("locale.js"),
    include_str!("dispatch.js"),
    include_str!("compile.js"),
    include_str!("maps.js")
);

const RENDER: &str = concat!(
    include_str!("patterns.js"),
    include_str!("locale.js"),
    include_str!("dispatch.js"),
    include_str!("compile.js"),
    include_str!("render.js")
);

const SYNC: &str = concat!(
    include_str!("patterns.js"),
    include_str!("locale.js"),
    include_str!("dispatch.js"),
    include_str!("sync.js")
);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MachineKind {
    /// Filters ([`Machine::call`]) and validation ([`Machine::validate`]).
    Calls,
    /// The maps of a group.
    Maps,
    /// Its written reduces.
    Reduces,
    Render,
    List,
    /// A sync function ([`Machine::route`]) or a function of the worker ([`Machine::transform`]). State is restored
    /// after each call.
    Sync,
}

impl MachineKind {
    fn exports(self) -> &'static [&'static str] {
        match self {
            MachineKind::Calls => &["dispatch", "validate"],
            MachineKind::Maps | MachineKind::Reduces => &["load", "map", "reduce", "takeLogs"],
            MachineKind::Render | MachineKind::List => &["render"],
            MachineKind::Sync => &["compileSync", "made", "restore", "thrown", "transform"],
        }
    }

    pub(crate) fn number(self) -> u8 {
        self as u8
    }

    pub(crate) fn of_number(number: u8) -> Option<MachineKind> {
        [
            MachineKind::Calls,
            MachineKind::Maps,
            MachineKind::Reduces,
            MachineKind::Render,
            MachineKind::List,
            MachineKind::Sync,
        ]
        .into_iter()
        .find(|part| part.number() == number)
    }
}

/// The programs as bytecode. Parsing one takes longer than all other steps of making a machine.
pub(crate) struct Code {
    calls: Vec<u8>,
    maps: Vec<u8>,
    render: Vec<u8>,
    sync: Vec<u8>,
    /// The memory limit of one runtime, in bytes. It fits a document of 8 MB with its JavaScript values.
    pub(crate) memory_max: usize,
}

impl Code {
    pub(crate) fn compile(memory_max: usize) -> Result<Code> {
        let (calls, maps) = (compiled(CALLS)?, compiled(MAPS)?);
        let (render, sync) = (compiled(RENDER)?, compiled(SYNC)?);
        Ok(Code { calls, maps, render, sync, memory_max })
    }

    pub(crate) fn programs(&self) -> [&[u8]; 4] {
        [&self.calls, &self.maps, &self.render, &self.sync]
    }

    /// Returns the code of bytecode made by the same version of this program.
    pub(crate) fn of(programs: [&[u8]; 4], memory_max: usize) -> Code {
        let [calls, maps, render, sync] = programs.map(<[u8]>::to_vec);
        Code { calls, maps, render, sync, memory_max }
    }

    fn program(&self, part: MachineKind) -> &[u8] {
        match part {
            MachineKind::Calls => &self.calls,
            MachineKind::Maps | MachineKind::Reduces => &self.maps,
            MachineKind::Render | MachineKind::List => &self.render,
            MachineKind::Sync => &self.sync,
        }
    }
}

pub(crate) struct Workshop {
    pub(crate) code: Code,
    pub(crate) collation: Arc<Collation>,
    pub(crate) budget: Arc<Budget>,
}

fn compiled(program: &str) -> Result<Vec<u8>> {
    let stripped = WriteOptions { strip_source: true, strip_debug: true, ..WriteOptions::default() };
    let compile = || {
        let context = Context::full(&Runtime::new()?)?;
        context.with(|ctx| Module::declare(ctx, "program", program)?.write(stripped))
    };
    compile().map_err(|_| Error::OutOfResources)
}

/// A runtime with one design document loaded. State that its functions leave behind stays in it.
pub(crate) struct Machine {
    // First, because fields drop in order and these live in the context.
    exports: Vec<Persistent<Function<'static>>>,
    /// Set for sync functions only.
    compiled: Option<CompiledFunction>,
    heard: Rc<SyncRecorder>,
    part: MachineKind,
    usage: Arc<Usage>,
    context: Context,
    runtime: Runtime,
    /// The raw runtime, for use while it runs.
    raw: *mut qjs::JSRuntime,
}

impl Machine {
    /// `text`: the design document or a part of it as JSON text; for a sync function its source.
    pub(crate) fn new(workshop: &Workshop, part: MachineKind, text: &str, clock: &Clock) -> Result<Machine> {
        let Workshop { code, collation, budget } = workshop;
        // Many lists run at once, and each has one page of rows at a time.
        let memory_max = if part == MachineKind::List { code.memory_max / 4 } else { code.memory_max };
        let (allocator, usage) = CountingAllocator::new(budget, memory_max);
        let runtime = Runtime::new_with_alloc(allocator).map_err(|_| Error::OutOfResources)?;
        runtime.set_max_stack_size(STACK_BYTES_MAX);
        let context = Context::full(&runtime).map_err(|_| Error::OutOfResources)?;
        let heard = Rc::<SyncRecorder>::default();
        let exports = context.with(|ctx| {
            if part == MachineKind::Sync {
                heard.give(&ctx)?;
            }
            let collation = Arc::clone(collation);
            let collate = move |a: String, b: String| {
                collation.compare(&Value::String(a.into()), &Value::String(b.into())) as i32
            };
            // The program removes this global before any code of a design document runs.
            ctx.globals().set("collate", Function::new(ctx.clone(), collate)?)?;
            // SAFETY: the bytes come from `compiled` in the server, which is the same program with the same QuickJS.
            let module = unsafe { Module::load(ctx.clone(), code.program(part)) }?;
            let (module, _) = module.eval()?;
            let found = part.exports().iter().map(|name| {
                let found = module.get::<_, Function<'_>>(*name)?;
                Ok(Persistent::save(&ctx, found))
            });
            found.collect::<rquickjs::Result<Vec<_>>>()
        });
        let exports = exports.map_err(|_| Error::OutOfResources)?;
        // SAFETY: it reads a member of a live context.
        let raw = context.with(|ctx| unsafe { qjs::JS_GetRuntime(ctx.as_raw().as_ptr()) });
        let mut machine = Machine { exports, compiled: None, heard, part, usage, context, runtime, raw };
        match part {
            MachineKind::Calls => drop(machine.call("load", "[]", text, clock)?),
            MachineKind::Maps => machine.load(text, "map", clock)?,
            MachineKind::Reduces => machine.load(text, "reduce", clock)?,
            MachineKind::Render | MachineKind::List => drop(machine.render("load", text, clock)?),
            MachineKind::Sync => machine.compiled = Some(machine.compile_sync(text, clock)?),
        }
        Ok(machine)
    }

    fn load(&self, text: &str, kind: &str, clock: &Clock) -> Result<()> {
        let answer: String = self.within(clock, |ctx| {
            let input = ctx.json_parse(text)?;
            self.export(ctx, "load")?.call((input, kind))
        })?;
        match answer.strip_prefix('!') {
            Some(failure) => Err(crate::failure(failure)),
            None => Ok(()),
        }
    }

    pub(crate) fn call(&self, kind: &str, path: &str, input: &str, clock: &Clock) -> Result<String> {
        self.within(clock, |ctx| self.export(ctx, "dispatch")?.call((kind, path, input)))
    }

    pub(crate) fn render(&self, kind: &str, input: &str, clock: &Clock) -> Result<String> {
        let answer: String = self.within(clock, |ctx| self.export(ctx, "render")?.call((kind, input)))?;
        match answer.strip_prefix('!') {
            Some(failure) => Err(crate::failure(failure)),
            None => Ok(crate::whole(answer)),
        }
    }

    /// Runs work that is interrupted at its deadline. After [`Error::TimedOut`], [`Error::OutOfResources`] or
    /// [`Error::Busy`] the machine must not be used again.
    pub(crate) fn within<T>(
        &self,
        clock: &Clock,
        work: impl for<'js> FnOnce(&Ctx<'js>) -> rquickjs::Result<T>,
    ) -> Result<T> {
        let (begun, watched, usage) = (now(), clock.clone(), self.usage.clone());
        let raw = self.raw;
        self.runtime.set_interrupt_handler(Some(Box::new(move || {
            let stops = watched.is_over() || usage.is_exhausted() || usage.is_refused();
            if stops {
                usage.stop();
                // Some built-in functions, such as the constructor of promises, drop the error of the interrupt and
                // would continue. Without a stack no function can be called, so the next check comes from code that
                // heeds it.
                // SAFETY: this engine called the handler, on this thread; the call sets two numbers that are read
                // before each call.
                unsafe { qjs::JS_SetMaxStackSize(raw, 1) };
            }
            stops
        })));
        let answer = self.context.with(|ctx| work(&ctx));
        if self.usage.is_refused() {
            return Err(Error::Busy);
        }
        // A result that was computed without the refused memory is not valid, even if the function handled the error.
        if self.usage.is_exhausted() {
            return Err(Error::OutOfResources);
        }
        let timed_out = || Error::TimedOut(clock.until().saturating_sub(begun));
        // A stopped call is not valid, even if it ended normally: a part of it was skipped.
        if self.usage.is_stopped() {
            return Err(timed_out());
        }
        answer.map_err(|_| if clock.is_over() { timed_out() } else { Error::OutOfResources })
    }

    pub(crate) fn usage(&self) -> &Usage {
        &self.usage
    }

    pub(crate) fn compiled(&self) -> Option<&CompiledFunction> {
        self.compiled.as_ref()
    }

    /// Returns the recorder of the functions that sync functions call.
    pub(crate) fn heard(&self) -> &SyncRecorder {
        &self.heard
    }

    pub(crate) fn export<'js>(&self, ctx: &Ctx<'js>, name: &str) -> rquickjs::Result<Function<'js>> {
        let found = self.part.exports().iter().zip(&self.exports).find(|(known, _)| **known == name);
        let (_, found) = found.ok_or(rquickjs::Error::Unknown)?;
        found.clone().restore(ctx)
    }

    pub(crate) fn logs(&self, clock: &Clock) -> Vec<String> {
        self.within(clock, |ctx| self.export(ctx, "takeLogs")?.call(())).unwrap_or_default()
    }
}
