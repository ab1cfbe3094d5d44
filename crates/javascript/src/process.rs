//! An engine process, seen from the server.
//!
//! The process is this program, started again with a variable in its environment ([`crate::child`]). It can reach
//! only its socket and two pages of shared memory. It ends when the socket closes, at the latest with the server.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::child;
use crate::clock::Clock;
use crate::engine_request::EngineRequest;
use crate::message::{Reply, read_reply, reply_bytes_max};
use crate::nursery::Nursery;
use crate::shared::{ProcessPage, SharedMemory};
use crate::thread::Thread;
use crate::wire::{Buffer, Frame, FrameError, FrameReader};

/// mimalloc, the server's allocator, reserves and touches memory ahead, which is too much for many processes. Other
/// allocators ignore these variables.
const ALLOCATOR: [(&str, &str); 2] = [("MIMALLOC_ARENA_RESERVE", "65536"), ("MIMALLOC_ARENA_EAGER_COMMIT", "0")];

/// The environment variables of the time zone. Without them the C library reads a file of the system.
pub(crate) const ZONE: [&str; 2] = ["TZ", "TZDIR"];

/// The interval at which a caller of a process checks whether to keep waiting.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The time limit of a process start, which takes some milliseconds on an idle machine. No other process starts
/// meanwhile.
const START_MAX: Duration = Duration::from_secs(5);

/// The limit of [`START_MAX`] applies once the process used this much processor time; [`START_STUCK`] always applies.
const START_RAN: Duration = Duration::from_secs(1);
const START_STUCK: Duration = Duration::from_secs(30);

/// The longest wait for the end of a process after its socket closed, and the interval of the checks.
const END_MAX: Duration = Duration::from_secs(2);
const END_LOOK: Duration = Duration::from_millis(1);

/// Returns true if a process was ended by `SIGKILL`, `None` if it still runs. Does not reap it, so its number is not
/// reused.
#[cfg(target_os = "linux")]
fn end_of(child: &Child) -> Option<bool> {
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: zeros are a valid `siginfo_t`, which lives through the call and is read as the call wrote it.
    unsafe {
        let mut end: libc::siginfo_t = std::mem::zeroed();
        if libc::waitid(libc::P_PID, child.id(), &raw mut end, flags) != 0 {
            return Some(false);
        }
        (end.si_pid() != 0).then(|| end.si_code == libc::CLD_KILLED && end.si_status() == libc::SIGKILL)
    }
}

/// Other systems do not distinguish the causes.
#[cfg(not(target_os = "linux"))]
fn end_of(_child: &Child) -> Option<bool> {
    Some(false)
}

/// Returns the path of this program. It stays valid if the file is replaced.
#[cfg(target_os = "linux")]
fn program() -> std::io::Result<std::path::PathBuf> {
    Ok("/proc/self/exe".into())
}

#[cfg(not(target_os = "linux"))]
fn program() -> std::io::Result<std::path::PathBuf> {
    std::env::current_exe()
}

/// An engine process; killed when dropped.
pub(crate) struct Process {
    socket: UnixStream,
    /// `None` only while it is dropped.
    child: Option<Child>,
    page: Arc<SharedMemory<ProcessPage>>,
    processor: Thread,
    nursery: Arc<Nursery>,
    calls: u64,
    out: Vec<u8>,
    buffer: Buffer,
}

impl Process {
    /// Starts a process and waits until it is ready. The second value is true if the kernel filters its system calls.
    /// The calling thread must live as long as the process: the kernel kills the process with its parent thread.
    pub(crate) fn start(nursery: &Arc<Nursery>, total: OwnedFd, setup: &mut Frame) -> std::io::Result<(Process, bool)> {
        let (socket, other) = UnixStream::pair()?;
        socket.set_read_timeout(Some(POLL_INTERVAL))?;
        socket.set_write_timeout(Some(POLL_INTERVAL))?;
        let (page, file) = SharedMemory::<ProcessPage>::create()?;
        let mut command = Command::new(program()?);
        command.arg0("flatbed-functions").env_clear().env(child::MARKER, "1").envs(ALLOCATOR);
        // Dates use the server's time zone.
        command.envs(ZONE.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        // Signals of the terminal are for the server.
        command.process_group(0);
        // Only these three descriptors are inherited. Without a closure between fork and exec, the start does not
        // copy the server's page tables.
        command.stdin(OwnedFd::from(other)).stdout(Stdio::from(file)).stderr(Stdio::from(total));
        let child = command.spawn()?;
        // The command holds the process's end of the socket.
        drop(command);
        let (page, processor) = (Arc::new(page), Thread::of_process(child.id()));
        nursery.register(page.clone());
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
        let is_filtered = ready.ok().and_then(|ready| FrameReader::of(ready).flag());
        let is_filtered = is_filtered.ok_or_else(|| std::io::Error::other("an engine process did not start"))?;
        Ok((process, is_filtered))
    }

    pub(crate) fn processor(&self) -> &Thread {
        &self.processor
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls
    }

    /// Returns true if the process is alive and idle. The system may have killed it, for example when memory was
    /// short.
    pub(crate) fn is_ready(&self) -> bool {
        let mut byte = 0_u8;
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: it writes at most one byte to `byte`.
        let read = unsafe { libc::recv(self.socket.as_raw_fd(), (&raw mut byte).cast(), 1, flags) };
        read < 0 && std::io::Error::last_os_error().kind() == std::io::ErrorKind::WouldBlock
    }

    pub(crate) fn begin(&mut self) -> (Clock, u64) {
        self.calls += 1;
        let clock = Clock::of(&self.page, self.calls);
        clock.set_finished(0);
        (clock, self.calls)
    }

    /// Sends a frame. Checks `is_late` while the process does not read.
    pub(crate) fn send(
        &mut self,
        write: impl FnOnce(&mut Frame),
        is_late: &mut dyn FnMut() -> bool,
    ) -> Result<(), FrameError> {
        let mut frame = Frame::begin(std::mem::take(&mut self.out));
        write(&mut frame);
        let sent = frame.send(&mut self.socket, is_late);
        self.out = frame.into_buffer();
        sent
    }

    /// Returns true if the process was killed by `SIGKILL`, for example when memory was short. Called after its
    /// socket has closed.
    pub(crate) fn was_killed(&self) -> bool {
        let Some(child) = &self.child else { return false };
        let late = crate::clock::now() + END_MAX;
        while crate::clock::now() < late {
            match end_of(child) {
                // The socket closes before the process ends.
                None => std::thread::park_timeout(END_LOOK),
                Some(is_kill) => return is_kill,
            }
        }
        false
    }

    /// Waits for a reply and checks `is_late` each [`POLL_INTERVAL`]. A reply with bytes behind it is
    /// malformed: there was no other request.
    pub(crate) fn receive(
        &mut self,
        ask: &EngineRequest,
        is_late: &mut dyn FnMut() -> bool,
    ) -> Result<Reply, FrameError> {
        let frame = self.buffer.receive(&mut self.socket, reply_bytes_max(ask), is_late)?;
        let reply = read_reply(frame, ask).ok_or(FrameError::Malformed);
        let has_more = self.buffer.has_more();
        self.buffer.trim();
        if has_more { Err(FrameError::Malformed) } else { reply }
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
