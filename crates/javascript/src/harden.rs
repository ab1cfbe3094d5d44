//! The restrictions of an engine process: descriptors, files, sockets, other processes, and memory beyond a bound.
//!
//! Where the system has no filter of system calls, its capabilities are given up all the same and the limit on descriptors holds, so that it
//! opens nothing. Then it may start processes if it is root's, to whom the kernel applies no limit on them, and signal those of its user.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Stack. Functions may use 512 kB of it, and QuickJS heeds that where it looks; the rest is for a way down on which it does not
/// look, should there be one left. What nobody has used takes no memory.
const STACK_BYTES_MAX: libc::rlim_t = 64 << 20;

/// Its engines have so many times what one may have, together.
pub(crate) const ENGINES_MAX: usize = 4;

/// Memory of a process beside what engines may have of it: frames, what goes into them, and what an allocator reserves.
const BESIDE_BYTES: libc::rlim_t = 512 << 20;

/// Sets a limit of the system, as far as it may be set.
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

/// Gives all capabilities up, which root has. The kernel may have no such thing.
#[cfg(target_os = "linux")]
fn drop_capabilities() {
    /// `_LINUX_CAPABILITY_VERSION_3`: two sets of 32 bits, of each what is effective, permitted and inheritable.
    const VERSION: u32 = 0x2008_0522;
    let (header, none) = ([VERSION, 0], [[0_u32; 3]; 2]);
    // SAFETY: it reads what lives through the call, which has the form of this version; the second number is this process.
    unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
}

/// Leaves the place and the signals of the server.
pub(crate) fn leave() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    drop_capabilities();
    #[cfg(target_os = "linux")]
    // SAFETY: they take numbers, and a name that ends with a zero byte.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        // The name in `ps` and `top`, which is `exe` otherwise.
        libc::prctl(libc::PR_SET_NAME, c"flatbed-func".as_ptr());
    }
    // A signal to all processes of the service is for the server, which ends this one when its calls have ended.
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: no handler runs.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    std::env::set_current_dir("/")
}

/// Where memory is short, the server is to stay, whatever rank it was given itself.
#[cfg(target_os = "linux")]
fn rank() {
    const PATH: &str = "/proc/self/oom_score_adj";
    let of_server = std::fs::read_to_string(PATH).ok().and_then(|rank| rank.trim().parse::<i32>().ok());
    // The name may not be there, and the value may be refused.
    let _ = std::fs::write(PATH, of_server.unwrap_or(0).saturating_add(500).min(1_000).to_string());
}

/// Closes all descriptors but this, which is the first; the two of output lead nowhere.
pub(crate) fn close_all_but(socket: BorrowedFd<'_>) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        rank();
        // Its own files in `/proc` are another's from then on.
        // SAFETY: it takes numbers alone.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
    }
    let nowhere = File::options().read(true).write(true).open("/dev/null")?;
    for fd in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: it takes numbers; what was there was mapped, and is not used any more.
        if unsafe { libc::dup2(nowhere.as_raw_fd(), fd) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    drop(nowhere);
    debug_assert!(socket.as_raw_fd() == 0);
    #[cfg(target_os = "linux")]
    // SAFETY: it takes numbers; nothing that this process uses is behind the first three.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0);
    }
    Ok(())
}

/// Sets limits, and filters system calls: whether that is so. `memory_max`: of one engine.
pub(crate) fn confine(memory_max: usize) -> io::Result<bool> {
    // SAFETY: it reads and writes numbers that live through the calls. The stack grows up to what the limit is then.
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

/// Bytes of address space.
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

/// A filter of system calls, for the kernel to run.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod filter {
    use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter};

    /// As `linux/audit.h` numbers it.
    const ARCHITECTURE: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };

    /// Where `struct seccomp_data` has them.
    const NUMBER_AT: u32 = 0;
    const ARCHITECTURE_AT: u32 = 4;
    const THIRD_ARGUMENT_AT: u32 = 32;

    /// System calls that functions and their loop need: memory, the socket, the clock, and exit.
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

    /// Allowed but for memory that is code.
    const MAPS: &[libc::c_long] = &[libc::SYS_mmap, libc::SYS_mprotect];

    fn step(code: u32, value: u32, jumps: [u8; 2]) -> sock_filter {
        let [jt, jf] = jumps;
        // All codes are numbers of 16 bits.
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

    /// Whether the kernel takes it. It holds for all threads.
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
