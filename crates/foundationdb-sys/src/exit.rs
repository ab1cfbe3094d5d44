//! The network thread, and its end before the process ends.
//!
//! At the end of a process the C runtime destroys the static data of all libraries. A `libfdb_c` whose network thread still
//! runs then reads what is gone, and the process dies of a segmentation fault although its work is done. Few programs can
//! stop the network themselves: a test harness exits by itself, and so does a program that calls `process::exit`. So the
//! network runs on a thread of this crate, and a handler for the process's end ([`libc::atexit`]) stops it and waits until
//! the thread is gone. A thread that calls the API afterwards waits for the end of the process.
//!
//! Handlers and destructors run in the reverse order of their registration. What the library makes on first use is
//! registered late, so the handler is registered again as the program goes on ([`note_transaction`]).

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, ThreadId};
use std::time::{Duration, Instant};

use fdb_capi::fdb_error_t;

/// The name of the network thread.
pub const NETWORK_THREAD: &str = "fdb-network";

/// How long the end of the process waits for the network thread. Behind it the process ends all the same, and says so.
const JOIN_MAX: Duration = Duration::from_secs(10);

/// The handler is registered so often at most.
const REGISTRATIONS_MAX: u32 = 32;

/// A call of the API without arguments.
type Call = fn() -> fdb_error_t;

/// The network thread, and what stops it.
struct Network {
    thread: ThreadId,
    stop: Call,
}

/// From before the thread enters the library until it has ended.
static NETWORK: Mutex<Option<Network>> = Mutex::new(None);
static ENDED: Condvar = Condvar::new();

/// The process ends, and the network thread has ended.
static IS_OVER: AtomicBool = AtomicBool::new(false);

static REGISTRATIONS: AtomicU32 = AtomicU32::new(0);
static TRANSACTIONS: AtomicU32 = AtomicU32::new(0);

fn network() -> MutexGuard<'static, Option<Network>> {
    NETWORK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `run` on a thread of its own, which is the network thread, and returns when that has ended. `stop` has it end.
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
        // Without another thread the network is this one's, and no one's to wait for.
        return run();
    };
    *network = Some(Network { thread: thread.thread().id(), stop });
    drop(network);
    let code = thread.join();
    *self::network() = None;
    ENDED.notify_all();
    // The caller's panic, as if the network had run in its thread.
    code.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Notes that a transaction was begun: at each power of two of them the handler is registered once more, so that it runs
/// before the destructors of what the library has made until then.
#[inline]
pub(crate) fn note_transaction() {
    if TRANSACTIONS.fetch_add(1, Ordering::Relaxed).is_power_of_two() {
        register();
    }
}

/// Has [`at_exit`] called at the end of the process.
pub(crate) fn register() {
    if REGISTRATIONS.fetch_add(1, Ordering::Relaxed) < REGISTRATIONS_MAX {
        // SAFETY: the handler is a function of this program, which is never unloaded. Without memory for another handler
        // those that are registered must do.
        unsafe { libc::atexit(at_exit) };
    } else {
        // So that it never comes round.
        REGISTRATIONS.store(REGISTRATIONS_MAX, Ordering::Relaxed);
    }
}

/// Stops the network and waits until its thread has ended. The first call does that, the others find it done.
extern "C" fn at_exit() {
    if IS_OVER.load(Ordering::Acquire) {
        return;
    }
    let mut network = network();
    if let Some(Network { thread, stop }) = *network {
        if thread == std::thread::current().id() {
            // A callback ends the process. The thread cannot wait for itself.
            return;
        }
        drop(network);
        // Stopping one that has been stopped does nothing.
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

/// Holds a thread that calls the API at the end of the process: what it would use is being destroyed.
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
