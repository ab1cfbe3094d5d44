//! An engine process, as the server has it.
//!
//! It is this program, started again with a name in its environment ([`crate::child`]). Its only ways out are its socket and two pages
//! of memory. It ends when the socket does, at the latest with the server.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::ask::Ask;
use crate::child;
use crate::clock::Clock;
use crate::message::{Reply, read_reply, reply_bytes_max};
use crate::nursery::Nursery;
use crate::shared::{Page, Shared};
use crate::thread::Thread;
use crate::wire::{Broken, Buffer, Frame, Rest};

/// The server's allocator, mimalloc, takes and touches memory ahead, which is much for so many processes. Others know no such names.
const ALLOCATOR: [(&str, &str); 2] = [("MIMALLOC_ARENA_RESERVE", "65536"), ("MIMALLOC_ARENA_EAGER_COMMIT", "0")];

/// Names in the environment that say what the time zone is; without them a file of the system does.
pub(crate) const ZONE: [&str; 2] = ["TZ", "TZDIR"];

/// How often a caller of a process looks whether it is to wait on.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// How long a process may take to start: on an idle machine some milliseconds. Meanwhile no other starts.
const START_MAX: Duration = Duration::from_secs(5);

/// If it has had the processor for so long; and how long in any case.
const START_RAN: Duration = Duration::from_secs(1);
const START_STUCK: Duration = Duration::from_secs(30);

/// How long a process may take to end when its socket has, and how often is looked.
const END_MAX: Duration = Duration::from_secs(2);
const END_LOOK: Duration = Duration::from_millis(1);

/// Whether a process has ended by `SIGKILL`. `None`: it has not ended. It stays to be waited for: its number is no other's yet.
#[cfg(target_os = "linux")]
fn end_of(child: &Child) -> Option<bool> {
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: numbers and pointers of zeros are one; what is written to it lives through the call, and is read as what the call has written.
    unsafe {
        let mut end: libc::siginfo_t = std::mem::zeroed();
        if libc::waitid(libc::P_PID, child.id(), &raw mut end, flags) != 0 {
            return Some(false);
        }
        (end.si_pid() != 0).then(|| end.si_code == libc::CLD_KILLED && end.si_status() == libc::SIGKILL)
    }
}

/// Elsewhere it is not told apart.
#[cfg(not(target_os = "linux"))]
fn end_of(_child: &Child) -> Option<bool> {
    Some(false)
}

/// The program that runs. The path names it even where its file was replaced.
#[cfg(target_os = "linux")]
fn program() -> std::io::Result<std::path::PathBuf> {
    Ok("/proc/self/exe".into())
}

#[cfg(not(target_os = "linux"))]
fn program() -> std::io::Result<std::path::PathBuf> {
    std::env::current_exe()
}

/// A process. Dropped, it is killed.
pub(crate) struct Process {
    socket: UnixStream,
    /// It is there until it is dropped.
    child: Option<Child>,
    page: Arc<Shared<Page>>,
    processor: Thread,
    nursery: Arc<Nursery>,
    /// Calls so far.
    calls: u64,
    out: Vec<u8>,
    buffer: Buffer,
}

impl Process {
    /// Starts one, and waits until it is ready: its system calls may not be filtered, which the second part says. The thread that
    /// calls this must live as long as the process, which the kernel kills with its parent.
    pub(crate) fn start(nursery: &Arc<Nursery>, total: OwnedFd, setup: &mut Frame) -> std::io::Result<(Process, bool)> {
        let (socket, other) = UnixStream::pair()?;
        socket.set_read_timeout(Some(LOOK))?;
        socket.set_write_timeout(Some(LOOK))?;
        let (page, file) = Shared::<Page>::create()?;
        let mut command = Command::new(program()?);
        command.arg0("flatbed-functions").env_clear().env(child::MARKER, "1").envs(ALLOCATOR);
        // Dates are in its zone.
        command.envs(ZONE.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        // A signal of the terminal's is for the server.
        command.process_group(0);
        // Nothing but these three is inherited: no call of ours between fork and exec, which would make the start cost what a copy of
        // the server's page tables does.
        command.stdin(OwnedFd::from(other)).stdout(Stdio::from(file)).stderr(Stdio::from(total));
        let child = command.spawn()?;
        // With it goes the other end of the socket, which is the process's alone.
        drop(command);
        let (page, processor) = (Arc::new(page), Thread::of_process(child.id()));
        nursery.born(page.clone());
        let (nursery, out, buffer) = (nursery.clone(), Vec::new(), Buffer::default());
        let mut process = Process { socket, child: Some(child), page, processor, nursery, calls: 0, out, buffer };
        let began = crate::clock::now();
        let processor = process.processor.clone();
        let mut is_late = || {
            let waited = crate::clock::now().saturating_sub(began);
            waited > START_STUCK || waited > START_MAX && processor.ran() > START_RAN
        };
        let ready = match setup.send(&mut process.socket, &mut is_late) {
            Ok(()) => process.buffer.receive(&mut process.socket, 1, &mut is_late),
            Err(broken) => Err(broken),
        };
        let is_filtered = ready.ok().and_then(|ready| Rest::of(ready).flag());
        let is_filtered = is_filtered.ok_or_else(|| std::io::Error::other("an engine process did not start"))?;
        Ok((process, is_filtered))
    }

    /// Its processor time and its priority.
    pub(crate) fn processor(&self) -> &Thread {
        &self.processor
    }

    /// How many calls it has begun.
    pub(crate) fn calls(&self) -> u64 {
        self.calls
    }

    /// Whether it is alive and idle. A process that the system has killed meanwhile, for its memory for example, is not.
    pub(crate) fn is_ready(&self) -> bool {
        let mut byte = 0_u8;
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: it writes a byte at most to where it has room.
        let read = unsafe { libc::recv(self.socket.as_raw_fd(), (&raw mut byte).cast(), 1, flags) };
        read < 0 && std::io::Error::last_os_error().kind() == std::io::ErrorKind::WouldBlock
    }

    /// The clock of the next call, and its number.
    pub(crate) fn begin(&mut self) -> (Clock, u64) {
        self.calls += 1;
        let clock = Clock::of(&self.page, self.calls);
        clock.set_finished(0);
        (clock, self.calls)
    }

    /// Sends a frame. `is_late` is asked where the process does not take it.
    pub(crate) fn send(
        &mut self,
        write: impl FnOnce(&mut Frame),
        is_late: &mut dyn FnMut() -> bool,
    ) -> Result<(), Broken> {
        let mut frame = Frame::begin(std::mem::take(&mut self.out));
        write(&mut frame);
        let sent = frame.send(&mut self.socket, is_late);
        self.out = frame.into_buffer();
        sent
    }

    /// Whether it was killed, which only the system and who may do so do: for the machine's memory, say. For when its socket has ended.
    pub(crate) fn was_killed(&self) -> bool {
        let Some(child) = &self.child else { return false };
        let late = crate::clock::now() + END_MAX;
        while crate::clock::now() < late {
            match end_of(child) {
                // Its socket ends first.
                None => std::thread::park_timeout(END_LOOK),
                Some(is_kill) => return is_kill,
            }
        }
        false
    }

    /// Waits for a reply to this. `is_late` is asked each [`LOOK`]. One with something behind it is none: nothing else was asked.
    pub(crate) fn receive(&mut self, ask: &Ask, is_late: &mut dyn FnMut() -> bool) -> Result<Reply, Broken> {
        let frame = self.buffer.receive(&mut self.socket, reply_bytes_max(ask), is_late)?;
        let reply = read_reply(frame, ask).ok_or(Broken::Malformed);
        let has_more = self.buffer.has_more();
        self.buffer.trim();
        if has_more { Err(Broken::Malformed) } else { reply }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            self.nursery.bury(child, self.page.clone());
        }
    }
}

#[cfg(test)]
mod tests;
