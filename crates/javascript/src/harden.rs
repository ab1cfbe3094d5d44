//! The restrictions of an engine process: descriptors, files, sockets, other processes, and memory.
//!
//! On a system without system call filters the process still has no capabilities and may open no descriptor. There it
//! can signal processes of its user, and if it runs as root it can start processes, because the kernel applies no
//! process limit to root.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The stack limit, in bytes. QuickJS checks its own limit of 512 kB in most places; the rest is for recursion that
/// it does not check. Unused stack takes no memory.
const STACK_BYTES_MAX: libc::rlim_t = 64 << 20;

/// The memory of all engines of a process, as a multiple of the limit of one engine.
pub(crate) const ENGINES_MAX: usize = 4;

/// Memory of a process besides its engines: frames, their contents, and the allocator's reserve.
const BESIDE_BYTES: libc::rlim_t = 512 << 20;

fn limit(what: libc::__rlimit_resource_t, max: libc::rlim_t) {
    // SAFETY: it reads and writes numbers that live through the calls.
    unsafe {
        let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        if libc::getrlimit(what, &raw mut now) == 0 {
            let max = max.min(now.rlim_max);
            libc::setrlimit(what, &libc::rlimit { rlim_cur: max, rlim_max: max });
        }
    }
}

/// Drops all capabilities, which root has. Kernels without capabilities ignore this.
#[cfg(target_os = "linux")]
fn drop_capabilities() {
    /// `_LINUX_CAPABILITY_VERSION_3`: two sets of 32 bits, each with effective, permitted and inheritable bits.
    const VERSION: u32 = 0x2008_0522;
    let (header, none) = ([VERSION, 0], [[0_u32; 3]; 2]);
    // SAFETY: it reads two arrays that live through the call and have the layout of this version; process 0 is the
    // caller.
    unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
}

pub(crate) fn leave() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    drop_capabilities();
    #[cfg(target_os = "linux")]
    // SAFETY: they take numbers and a C string.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        // The name in `ps` and `top`; otherwise it is `exe`.
        libc::prctl(libc::PR_SET_NAME, c"flatbed-func".as_ptr());
    }
    // A signal to the whole service is for the server, which ends this process after its calls.
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: no handler is installed.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    std::env::set_current_dir("/")
}

/// Makes the kernel prefer this process to the server when memory is short, whatever the server's own rank is.
#[cfg(target_os = "linux")]
fn rank() {
    const PATH: &str = "/proc/self/oom_score_adj";
    let of_server = std::fs::read_to_string(PATH).ok().and_then(|rank| rank.trim().parse::<i32>().ok());
    // The file may not exist, and the kernel may refuse the value.
    let _ = std::fs::write(PATH, of_server.unwrap_or(0).saturating_add(500).min(1_000).to_string());
}

/// Closes all descriptors except `socket`, which is descriptor 0. Standard output and error become `/dev/null`.
pub(crate) fn close_all_but(socket: BorrowedFd<'_>) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        rank();
        // The owner of this process's `/proc` files is root from here on.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
    }
    let nowhere = File::options().read(true).write(true).open("/dev/null")?;
    for fd in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: it takes numbers; the old descriptors were mapped and are not used again.
        if unsafe { libc::dup2(nowhere.as_raw_fd(), fd) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    drop(nowhere);
    debug_assert!(socket.as_raw_fd() == 0);
    #[cfg(target_os = "linux")]
    // SAFETY: it takes numbers; this process uses no descriptor above 2.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0);
    }
    Ok(())
}

/// Sets limits and filters system calls. Returns true if the filter is active. `memory_max`: the limit of one engine
/// in bytes.
pub(crate) fn confine(memory_max: usize) -> io::Result<bool> {
    // SAFETY: it reads and writes numbers that live through the calls. The stack then grows up to the new limit.
    unsafe {
        let mut stack = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        if libc::getrlimit(libc::RLIMIT_STACK, &raw mut stack) == 0 {
            stack.rlim_cur = STACK_BYTES_MAX.min(stack.rlim_max);
            libc::setrlimit(libc::RLIMIT_STACK, &raw const stack);
        }
    }
    let engines = memory_max.saturating_mul(ENGINES_MAX) as libc::rlim_t;
    let memory = memory_now()?.saturating_add(BESIDE_BYTES).saturating_add(engines);
    limit(libc::RLIMIT_AS, memory);
    for what in [libc::RLIMIT_CORE, libc::RLIMIT_FSIZE, libc::RLIMIT_NOFILE, libc::RLIMIT_NPROC] {
        limit(what, 0);
    }
    Ok(filter::begin())
}

/// Returns the address space of the process, in bytes.
fn memory_now() -> io::Result<libc::rlim_t> {
    if !cfg!(target_os = "linux") {
        return Ok(4 << 30);
    }
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages = text.split(' ').next().and_then(|pages| pages.parse::<libc::rlim_t>().ok());
    // SAFETY: it takes a number.
    let page = libc::rlim_t::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    Ok(pages.unwrap_or(1 << 20).saturating_mul(page))
}

/// A filter of system calls that the kernel runs.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod filter {
    use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter};

    const ARCHITECTURE: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };

    /// Offsets in `struct seccomp_data`.
    const NUMBER_AT: u32 = 0;
    const ARCHITECTURE_AT: u32 = 4;
    const THIRD_ARGUMENT_AT: u32 = 32;

    const ALLOWED: &[libc::c_long] = &[
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_readv,
        libc::SYS_writev,
        libc::SYS_recvfrom,
        libc::SYS_sendto,
        libc::SYS_ppoll,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        libc::SYS_brk,
        libc::SYS_futex,
        libc::SYS_clock_gettime,
        libc::SYS_gettimeofday,
        libc::SYS_getrandom,
        libc::SYS_sched_yield,
        libc::SYS_rt_sigreturn,
        libc::SYS_rt_sigprocmask,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ];

    /// Calls that are allowed except for executable memory.
    const MAPS: &[libc::c_long] = &[libc::SYS_mmap, libc::SYS_mprotect];

    fn step(code: u32, value: u32, jumps: [u8; 2]) -> sock_filter {
        let [jt, jf] = jumps;
        sock_filter { code: u16::try_from(code).unwrap_or(0), jt, jf, k: value }
    }

    fn number(call: libc::c_long) -> u32 {
        u32::try_from(call).unwrap_or(u32::MAX)
    }

    fn program() -> Vec<sock_filter> {
        let load = |at| step(BPF_LD | BPF_W | BPF_ABS, at, [0, 0]);
        let end = |action| step(BPF_RET | BPF_K, action, [0, 0]);
        let equals = |value, jumps| step(BPF_JMP | BPF_JEQ | BPF_K, value, jumps);
        let refuse = libc::SECCOMP_RET_ERRNO | number(libc::c_long::from(libc::EPERM));
        let mut program = vec![
            load(ARCHITECTURE_AT),
            equals(ARCHITECTURE, [1, 0]),
            end(libc::SECCOMP_RET_KILL_PROCESS),
            load(NUMBER_AT),
        ];
        for call in ALLOWED {
            program.extend([equals(number(*call), [0, 1]), end(libc::SECCOMP_RET_ALLOW)]);
        }
        for call in MAPS {
            program.extend([
                equals(number(*call), [0, 5]),
                load(THIRD_ARGUMENT_AT),
                step(BPF_ALU | BPF_AND | BPF_K, number(libc::c_long::from(libc::PROT_EXEC)), [0, 0]),
                equals(0, [0, 1]),
                end(libc::SECCOMP_RET_ALLOW),
                end(refuse),
            ]);
        }
        program.push(end(refuse));
        program
    }

    /// Installs the filter for all threads. Returns true if the kernel accepts it.
    pub(super) fn begin() -> bool {
        let mut program = program();
        let Ok(len) = u16::try_from(program.len()) else { return false };
        let given = libc::sock_fprog { len, filter: program.as_mut_ptr() };
        // SAFETY: it reads the program, which lives through the call.
        let made = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_TSYNC,
                &raw const given,
            )
        };
        made == 0
    }
}

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod filter {
    pub(super) fn begin() -> bool {
        false
    }
}
