//! The processes: a server that is killed or ended and restarted, and workers that are killed, or suspended for three
//! lease times.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flatbed_testkit::{Random, pass_blocking};

use crate::support::Server;
use crate::worker_process::{TestFiles, Worker};

/// The pause between two checks for the end.
const STEP: Duration = Duration::from_millis(20);

/// Three of the leases that [`TestFiles`] configures.
const STOPPED: Duration = Duration::from_secs(9);

/// Waits, but not beyond the end.
pub(super) fn pass(time: Duration, is_over: &AtomicBool) {
    let mut left = time;
    while !left.is_zero() && !is_over.load(Ordering::Relaxed) {
        let step = left.min(STEP);
        pass_blocking(step);
        left -= step;
    }
}

pub(super) fn start(place: &TestFiles, address: &str) -> Server {
    place.server(&["--listen", address, "--log-level", "warn"])
}

/// Disturbs the server until the end, and returns the final one.
pub(super) fn server(place: &TestFiles, mut server: Server, mut random: Random, is_over: &AtomicBool) -> Server {
    let address = server.url.authority();
    loop {
        pass(random.seconds(4.0, 12.0), is_over);
        if is_over.load(Ordering::Relaxed) {
            return server;
        }
        if random.below(3) == 0 {
            assert!(server.stop());
        } else {
            server.kill();
        }
        pass(random.seconds(0.0, 4.0), is_over);
        server = start(place, &address);
    }
}

/// Disturbs a worker until the end, and returns the final one. The first is suspended before it is killed.
pub(super) fn worker(
    place: &TestFiles,
    address: &str,
    number: usize,
    mut random: Random,
    is_over: &AtomicBool,
) -> Worker {
    let name = format!("worker{number}");
    let mut process = place.worker_at(address, &name, "info");
    for round in 0.. {
        pass(random.seconds(0.5, 4.0), is_over);
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        if (round % 4 == 0 && number == 0) || random.below(4) == 0 {
            process.signal("STOP");
            pass(STOPPED, is_over);
            process.signal("CONT");
        } else {
            // Killed at any point.
            drop(process);
            process = place.worker_at(address, &name, "info");
        }
    }
    process
}
