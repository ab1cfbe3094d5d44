//! The network thread, which ends before the process does.
//!
//! At the end of a process the C runtime destroys the static data of all libraries. A `libfdb_c` whose network thread
//! still runs then reads destroyed data, and the process dies of a segmentation fault although its work is done. Few
//! programs can stop the network themselves: a test harness exits by itself, and so does a program that calls
//! `process::exit`. So the network runs on a thread of this crate, and an exit handler ([`libc::atexit`]) stops it and
//! joins the thread. A thread that calls the API afterwards blocks until the process has ended.
//!
//! Handlers and destructors run in the reverse order of their registration. The library creates some data on first use
//! and registers its destructor then, so the handler is registered again from time to time ([`note_transaction`]).

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, ThreadId};
use std::time::{Duration, Instant};

use fdb_capi::fdb_error_t;

/// The name of the network thread.
pub const NETWORK_THREAD: &str = "fdb-network";

/// The longest time that the end of the process waits for the network thread. After it the process ends with a
/// message.
const JOIN_MAX: Duration = Duration::from_secs(10);

const REGISTRATIONS_MAX: u32 = 32;

/// A call of the API without arguments.
type Call = fn() -> fdb_error_t;

/// The network thread, and the call that stops it.
struct Network {
    thread: ThreadId,
    stop: Call,
}

/// Set from before the thread enters the library until it has ended.
static NETWORK: Mutex<Option<Network>> = Mutex::new(None);
static ENDED: Condvar = Condvar::new();

/// True once the process is ending and the network thread has ended.
static IS_OVER: AtomicBool = AtomicBool::new(false);

static REGISTRATIONS: AtomicU32 = AtomicU32::new(0);
static TRANSACTIONS: AtomicU32 = AtomicU32::new(0);

fn network() -> MutexGuard<'static, Option<Network>> {
    NETWORK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `run` on a thread of its own, the network thread, and returns when it has ended. `stop` ends it.
pub(crate) fn run_network(run: Call, stop: Call) -> fdb_error_t {
    register();
    let mut network = network();
    hold_if_over();
    if network.is_some() {
        drop(network);
        // The backend has a code for a network that runs already.
        return run();
    }
    let Ok(thread) = Builder::new().name(NETWORK_THREAD.to_owned()).spawn(run) else {
        drop(network);
        // Without another thread the network runs on this one, and the exit handler does not wait for it.
        return run();
    };
    *network = Some(Network { thread: thread.thread().id(), stop });
    drop(network);
    let code = thread.join();
    *self::network() = None;
    ENDED.notify_all();
    // Propagates a panic, as if the network had run on the caller's thread.
    code.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Counts a transaction. At each power of two the handler is registered again, so that it runs before the destructors
/// of the data that the library has created until then.
#[inline]
pub(crate) fn note_transaction() {
    if TRANSACTIONS.fetch_add(1, Ordering::Relaxed).is_power_of_two() {
        register();
    }
}

/// Registers [`at_exit`] for the end of the process.
pub(crate) fn register() {
    if REGISTRATIONS.fetch_add(1, Ordering::Relaxed) < REGISTRATIONS_MAX {
        // SAFETY: the handler is a function of this program, which is never unloaded. Without memory for a further
        // handler the registered ones must suffice.
        unsafe { libc::atexit(at_exit) };
    } else {
        // Keeps the count from wrapping around.
        REGISTRATIONS.store(REGISTRATIONS_MAX, Ordering::Relaxed);
    }
}

/// Stops the network and joins its thread. The first call does that; later ones return at once.
extern "C" fn at_exit() {
    if IS_OVER.load(Ordering::Acquire) {
        return;
    }
    let mut network = network();
    if let Some(Network { thread, stop }) = *network {
        if thread == std::thread::current().id() {
            // A callback ends the process; the thread cannot join itself.
            return;
        }
        drop(network);
        // Stopping twice has no effect.
        stop();
        let until = Instant::now() + JOIN_MAX;
        network = self::network();
        while network.is_some() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(network);
                let _ = writeln!(std::io::stderr(), "foundationdb: the network thread does not end");
                return;
            }
            network =
                ENDED.wait_timeout(network, left).map_or_else(|broken| broken.into_inner().0, |(network, _)| network);
        }
    }
    IS_OVER.store(true, Ordering::Release);
}

/// Blocks a thread that calls the API at the end of the process, because the library's data is being destroyed.
#[inline]
pub(crate) fn hold_if_over() {
    if IS_OVER.load(Ordering::Relaxed) {
        hold();
    }
}

#[cold]
fn hold() -> ! {
    loop {
        std::thread::park();
    }
}
