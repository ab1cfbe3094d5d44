//! Forbidden operations that tests have a process try.

use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::time::Duration;

use super::SOCKET;
use crate::clock::{Clock, now};
use crate::process::ZONE;

pub(crate) fn probe(what: &str, clock: &Clock) -> String {
    match what {
        "open" => told(File::open("/etc/passwd").map(drop)),
        "write" => told(File::create("flatbed-probe").map(drop)),
        "socket" => told(std::net::TcpStream::connect("127.0.0.1:1").map(drop)),
        "udp" => told(std::net::UdpSocket::bind("127.0.0.1:0").map(drop)),
        "thread" => told(std::thread::Builder::new().spawn(|| {}).map(drop)),
        "exec" => told(std::process::Command::new("/bin/true").spawn().map(drop)),
        // SAFETY: it takes numbers; signal 0 is not delivered.
        "kill" => told(if unsafe { libc::kill(1, 0) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }),
        #[cfg(target_os = "linux")]
        "filter" => {
            // SAFETY: it takes a number. A filter denies this call too.
            let mode = unsafe { libc::prctl(libc::PR_GET_SECCOMP) };
            if mode == 0 { "none" } else { "some" }.to_owned()
        }
        "code" => {
            let (access, flags) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: it makes a new mapping.
            let place = unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, flags, -1, 0) };
            told(if place == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) })
        }
        "descriptors" => format!("{:?}", (0..1_024).filter(|fd| is_open(*fd)).collect::<Vec<i32>>()),
        "environment" => {
            let is_known = |name: &String| name.starts_with("MIMALLOC_") || ZONE.contains(&name.as_str());
            let names = std::env::vars().map(|(name, _)| name).filter(|name| !is_known(name));
            let names: Vec<_> = names.collect();
            format!("{names:?}")
        }
        "memory" => {
            let all: Vec<_> = (0..10_000).map(|_| Vec::<u8>::with_capacity(1 << 20)).collect();
            format!("{} MB", all.len())
        }
        "abort" => std::process::abort(),
        "silence" => endless(),
        "idle" => idle(),
        "seldom" => seldom(),
        "undo" => loop {
            clock.undo();
        },
        "piece" => {
            send(&[100, 0, 0, 0, 1]);
            endless()
        }
        "frame: " => sent(&[0, 0, 0, 0]),
        "frame: 255 255 255 255" => sent(&[255, 255, 255, 255]),
        "frames: 0 9" => sent(&[1, 0, 0, 0, 0, 1, 0, 0, 0, 9]),
        _ => "what?".to_owned(),
    }
}

fn told(result: io::Result<()>) -> String {
    result.map_or_else(|error| format!("{:?}", error.kind()), |()| "done".to_owned())
}

fn is_open(fd: i32) -> bool {
    // SAFETY: a read of length 0 writes nothing.
    let read = unsafe { libc::read(fd, std::ptr::null_mut(), 0) };
    read == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EBADF)
}

fn send(bytes: &[u8]) {
    // SAFETY: the socket is open, and `ManuallyDrop` keeps it open.
    let mut socket = ManuallyDrop::new(unsafe { File::from_raw_fd(SOCKET) });
    socket.write_all(bytes).unwrap();
}

fn sent(bytes: &[u8]) -> String {
    send(bytes);
    endless()
}

/// Waits without processor time for a byte that the server never sends.
fn idle() -> ! {
    let mut byte = 0_u8;
    loop {
        // SAFETY: it writes at most one byte to `byte`.
        unsafe { libc::read(SOCKET, (&raw mut byte).cast(), 1) };
    }
}

/// Uses the processor for a seventh of the time at most, as under a quota.
fn seldom() -> ! {
    loop {
        let began = now();
        while now() < began + Duration::from_millis(10) {
            std::hint::spin_loop();
        }
        std::thread::park_timeout(Duration::from_millis(60));
    }
}

fn endless() -> ! {
    loop {
        std::hint::spin_loop();
    }
}
