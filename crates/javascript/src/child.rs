//! The engine process: this program in another mode.
//!
//! A program that links this crate becomes an engine process before its `main` if the environment names it and
//! descriptor 0 is a socket. The second condition guards against a name inherited from a shell. The process has three
//! descriptors: the socket to the server and two pages of shared memory. It drops all other privileges
//! ([`crate::harden`]) and answers one call after the other until the socket ends.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd};
use std::rc::Rc;
use std::sync::Arc;

use flatbed_collate::Collation;

use crate::clock::Clock;
use crate::engine::KEPT_BYTES_MAX;
use crate::error::Error;
use crate::harden;
use crate::list::Exchange;
use crate::machine::{Code, Machine, Workshop};
use crate::memory::Budget;
use crate::message::{CallRequest, ListPage, Request, Setup, read_request, write_done, write_exchange};
use crate::shared::{self, SharedMemory};
use crate::wire::{Buffer, Frame, FrameError};

/// The environment variable that marks an engine process.
pub(crate) const MARKER: &str = "FLATBED_FUNCTIONS_PROCESS";

/// A process whose engines have used more memory ends after its call: not every allocator returns memory to the
/// system.
const PEAK_BYTES_MAX: usize = 64 << 20;

const SOCKET: i32 = 0;
const OWN_PAGE: i32 = 1;
const TOTAL_PAGE: i32 = 2;

/// The system runs the functions listed in this section before `main`. Such a function may use nothing that the
/// standard library sets up in `main`: arguments and signal handlers.
#[used]
#[cfg_attr(not(target_vendor = "apple"), unsafe(link_section = ".init_array"))]
#[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    if std::env::var_os(MARKER).is_none() || !has_socket() {
        return;
    }
    let code = i32::from(serve().is_err());
    // SAFETY: it takes a number. `_exit` skips the exit handlers of the program, which was not initialised.
    unsafe { libc::_exit(code) };
}

fn has_socket() -> bool {
    // SAFETY: zeros are a valid `stat`, which lives through the call.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        libc::fstat(SOCKET, &raw mut found) == 0 && found.st_mode & libc::S_IFMT == libc::S_IFSOCK
    }
}

/// Keeps [`BEGIN`] in programs that link this crate.
pub(crate) fn link() {
    std::hint::black_box(&BEGIN);
}

/// Ends the process after any failure.
#[derive(Debug)]
struct ProcessEnd;

impl From<std::io::Error> for ProcessEnd {
    fn from(_: std::io::Error) -> ProcessEnd {
        ProcessEnd
    }
}

impl From<FrameError> for ProcessEnd {
    fn from(_: FrameError) -> ProcessEnd {
        ProcessEnd
    }
}

/// The socket to the server with its buffers, shared by calls and list exchanges.
struct ProcessSocket {
    socket: ManuallyDrop<File>,
    out: Vec<u8>,
    buffer: Buffer,
}

impl ProcessSocket {
    fn send(&mut self, write: impl FnOnce(&mut Frame)) -> Result<(), FrameError> {
        let mut frame = Frame::begin(std::mem::take(&mut self.out));
        write(&mut frame);
        let sent = frame.send(&mut *self.socket, &mut || false);
        self.out = frame.into_buffer();
        sent
    }

    /// Receives a frame of any length: the server is trusted.
    fn receive(&mut self) -> Result<&[u8], FrameError> {
        self.buffer.receive(&mut *self.socket, usize::MAX, &mut || false)
    }
}

fn serve() -> Result<(), ProcessEnd> {
    harden::leave()?;
    // SAFETY: the server starts the process with these three descriptors, and no other code has used them.
    let (own, total, socket) = unsafe {
        let own = SharedMemory::<shared::ProcessPage>::map(BorrowedFd::borrow_raw(OWN_PAGE))?;
        let total = SharedMemory::<shared::Total>::map(BorrowedFd::borrow_raw(TOTAL_PAGE))?;
        (Arc::new(own), Arc::new(total), File::from_raw_fd(SOCKET))
    };
    harden::close_all_but(socket.as_fd())?;
    let mut line = ProcessSocket { socket: ManuallyDrop::new(socket), out: Vec::new(), buffer: Buffer::default() };
    let setup = Setup::read(line.receive()?).ok_or(ProcessEnd)?;
    let Setup { memory_max, memory_all_max, programs } = setup;
    let collation = Arc::new(Collation::unicode().map_err(|_| ProcessEnd)?);
    let (code, budget) = (Code::of(programs, memory_max), Budget::new(memory_all_max, total, own.clone()));
    let workshop = Workshop { code, collation, budget };
    read_zone();
    // Long-lived allocations are made before this point: the limits apply to later ones.
    let is_filtered = harden::confine(memory_max)?;
    line.send(|frame| {
        frame.flag(is_filtered);
    })?;
    answer(&workshop, &own, Rc::new(RefCell::new(line)))
}

/// Makes the C library read the time zone now: the process cannot open files later.
fn read_zone() {
    // SAFETY: zeros are a valid `tm`, which lives through the call.
    unsafe {
        let mut time: libc::tm = std::mem::zeroed();
        libc::localtime_r(&0, &raw mut time);
    }
}

fn answer(
    workshop: &Workshop,
    page: &Arc<SharedMemory<shared::ProcessPage>>,
    line: Rc<RefCell<ProcessSocket>>,
) -> Result<(), ProcessEnd> {
    let mut machines: HashMap<u32, Machine> = HashMap::new();
    let its = line.clone();
    let exchange: Exchange = Rc::new(move |wants_rows, response, text| {
        let mut line = its.borrow_mut();
        let sent = line.send(|frame| write_exchange(frame, wants_rows, response, text));
        let page = sent.and_then(|()| line.receive()).ok().and_then(ListPage::read);
        line.buffer.trim();
        page.unwrap_or(ListPage::Broken)
    });
    loop {
        // The buffer is taken out because the request borrows it while list pages arrive in another one.
        let mut buffer = std::mem::take(&mut line.borrow_mut().buffer);
        let frame = {
            let socket = &mut *line.borrow_mut().socket;
            buffer.receive(socket, usize::MAX, &mut || false)?
        };
        match read_request(frame).ok_or(ProcessEnd)? {
            Request::Clear => machines.clear(),
            Request::Call(CallRequest { number, dropped, slot, part, text, work }) => {
                let clock = Clock::of(page, number);
                dropped.iter().for_each(|slot| drop(machines.remove(slot)));
                let machine = match (machines.remove(&slot), text) {
                    (Some(machine), _) => Ok(machine),
                    (None, Some(text)) => Machine::new(workshop, part, text, &clock),
                    (None, None) => Err(Error::OutOfResources),
                };
                let (mut kept, mut unkept) = (None, None);
                let result = machine.and_then(|machine| {
                    let (output, is_whole) = work.put(&machine, &clock, &exchange);
                    let is_kept = is_whole && !machine.usage().is_stopped() && machine.usage().used() <= KEPT_BYTES_MAX;
                    *(if is_kept { &mut kept } else { &mut unkept }) = Some(machine);
                    output
                });
                let is_last = workshop.budget.peak() > PEAK_BYTES_MAX;
                line.borrow_mut().send(|frame| write_done(frame, (kept.is_some(), is_last), &result))?;
                // The reply goes first: freeing an engine takes time.
                drop(unkept);
                if let Some(machine) = kept {
                    machines.insert(slot, machine);
                }
            }
        }
        buffer.trim();
        line.borrow_mut().buffer = buffer;
    }
}

#[cfg(test)]
pub(crate) mod probe;
