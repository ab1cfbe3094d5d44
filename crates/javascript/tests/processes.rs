//! The life of engine processes.
//!
//! A separate program, because it inspects all of its child processes.
#![cfg(target_os = "linux")]
#![allow(clippy::expect_used)]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use flatbed_javascript::{Design, Error, KillCause, Runner, RunnerOptions};
use flatbed_testkit::{PATIENCE, soon, until, until_blocking, until_some};
use tokio::sync::Mutex;

/// The tests share the child processes of this program, so they run one at a time.
static ONE: Mutex<()> = Mutex::const_new(());

/// The environment variable of the server that is killed with its processes.
const SERVES: &str = "FLATBED_TEST_SERVES";

const QUICK: &str = "function (doc) { return true; }";
const ENDLESS: &str = "function (doc) { for (;;) {} }";

fn design(source: &str) -> Design {
    Design::new("db/1", format!(r#"{{"_id":"_design/d","filters":{{"f":"{source}"}}}}"#))
}

fn runner() -> Runner {
    let (wait_max, validation_max, batch_max) = (PATIENCE, 10 * PATIENCE, 10 * PATIENCE);
    Runner::new(RunnerOptions { wait_max, validation_max, batch_max, ..RunnerOptions::default() }).expect("threads")
}

async fn filter(runner: &Runner, source: &str) -> Result<Vec<bool>, Error> {
    runner.filter(&design(source), runner.caller(), "f", &[b"{}"], "{}").await
}

fn children(parent: u32) -> Vec<(u32, u64)> {
    let all = std::fs::read_dir("/proc").expect("processes").flatten();
    let of_parent = all.filter_map(|entry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        let is_child = fields.first() != Some(&"Z") && fields.get(1)?.parse() == Ok(parent);
        is_child.then_some((id, fields.get(11)?.parse().ok()?))
    });
    of_parent.collect()
}

fn mine() -> Vec<(u32, u64)> {
    children(std::process::id())
}

fn kill(id: u32) {
    // SAFETY: it takes numbers.
    unsafe { libc::kill(libc::pid_t::try_from(id).expect("a number"), libc::SIGKILL) };
}

#[tokio::test]
async fn processes_start_before_the_first_call_where_that_is_wanted() {
    let _one = ONE.lock().await;
    let runner = runner();
    runner.prepare();
    until("spare ones are there", async || mine().len() == 2).await;
    let has_none = |id: u32| {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("a process");
        status
            .lines()
            .filter(|line| line.starts_with("Cap") && !line.starts_with("CapBnd"))
            .all(|line| line.ends_with("\t0000000000000000"))
    };
    // Only root has capabilities to drop.
    until("they have given all capabilities up", async || mine().iter().all(|(id, _)| has_none(*id))).await;
    drop(runner);
    until("none is left", async || mine().is_empty()).await;
}

#[tokio::test]
async fn processes_start_with_the_first_call_and_end_with_their_runner() {
    let _one = ONE.lock().await;
    assert_eq!(mine(), []);
    let runner = runner();
    assert_eq!(mine(), []);
    assert_eq!(soon(filter(&runner, QUICK)).await, Ok(vec![true]));
    until("spare ones are there", async || mine().len() == 3).await;
    let endless = tokio::spawn({
        let runner = runner.clone();
        async move { filter(&runner, ENDLESS).await }
    });
    until("one is busy", async || mine().iter().any(|(_, ticks)| *ticks > 5)).await;
    let count = i64::try_from(mine().len()).expect("few");
    assert!(runner.figures().function_processes.get() >= count);
    // The call holds no runner.
    endless.abort();
    drop((runner, endless));
    until("none is left", async || mine().is_empty()).await;
}

/// Also holds if the server inherited `SIG_IGN` for `SIGCHLD`, which would hide how children end.
#[tokio::test]
async fn a_process_that_is_killed_from_outside_costs_its_own_call_alone() {
    let _one = ONE.lock().await;
    // SAFETY: no handler is replaced.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    let runner = runner();
    let endless = tokio::spawn({
        let runner = runner.clone();
        async move { filter(&runner, ENDLESS).await }
    });
    let busy = async || mine().iter().find(|(_, ticks)| *ticks > 5).map(|(id, _)| *id);
    kill(until_some("one is busy", busy).await);
    assert_eq!(soon(endless).await.expect("no panic"), Err(Error::Busy));
    assert_eq!(runner.figures().function_processes_killed.of(KillCause::Died).get(), 1);
    for _ in 0..3 {
        assert_eq!(soon(filter(&runner, QUICK)).await, Ok(vec![true]));
        until("spare ones are there", async || mine().len() >= 3).await;
        let killed: Vec<u32> = mine().into_iter().map(|(id, _)| id).collect();
        killed.iter().for_each(|id| kill(*id));
        until("they are gone", async || mine().iter().all(|(id, _)| !killed.contains(id))).await;
    }
    assert_eq!(soon(filter(&runner, QUICK)).await, Ok(vec![true]));
    assert_eq!(runner.figures().function_processes_killed.of(KillCause::Died).get(), 1);
    drop(runner);
    until("none is left", async || mine().is_empty()).await;
}

/// Not a test but the program of the next one.
#[tokio::test]
async fn serves_until_it_is_killed() {
    if std::env::var_os(SERVES).is_none() {
        return;
    }
    let runner = runner();
    assert_eq!(filter(&runner, QUICK).await, Ok(vec![true]));
    println!("\nserves");
    let _ = filter(&runner, ENDLESS).await;
}

fn program(test: &str) -> Command {
    let mut program = Command::new(std::env::current_exe().expect("a program"));
    program.args(["--exact", test, "--nocapture", "--test-threads", "1"]).env(SERVES, "1");
    program
}

#[tokio::test]
async fn a_killed_server_leaves_no_process() {
    let _one = ONE.lock().await;
    let mut server = program("serves_until_it_is_killed").stdout(Stdio::piped()).spawn().expect("a server");
    let lines = BufReader::new(server.stdout.take().expect("its output")).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "serves"));
    let is_busy = || children(server.id()).iter().any(|(_, ticks)| *ticks > 5);
    until_blocking("a function runs", is_busy);
    let processes = children(server.id());
    assert!(processes.len() > 1, "{processes:?}");
    kill(server.id());
    server.wait().expect("its end");
    let is_there =
        |id: u32| std::fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    for (id, _) in processes {
        until_blocking("its processes are gone", || !is_there(id));
    }
}

/// Not a test but the program of the next one.
#[tokio::test]
async fn is_in_a_zone() {
    if std::env::var_os(SERVES).is_none() {
        return;
    }
    let runner = runner();
    let source = "function (doc) { return new Date(0).getTimezoneOffset() === -210 && new Date(0).getHours() === 3; }";
    assert_eq!(filter(&runner, source).await, Ok(vec![true]));
}

#[tokio::test]
async fn dates_are_in_the_zone_of_the_server() {
    let _one = ONE.lock().await;
    // A file with one time zone, like that of the system. A process cannot open files once it runs functions.
    let counts = [0, 0, 0, 0, 1, 4].map(u32::to_be_bytes).concat();
    let file = [&b"TZif"[..], &[0; 16], &counts, &12_600_i32.to_be_bytes(), &[0, 0], b"ABC\0"].concat();
    let path = std::env::temp_dir().join(format!("flatbed-zone-{}", std::process::id()));
    std::fs::write(&path, file).expect("a file");
    for zone in ["ABC-3:30".to_owned(), format!(":{}", path.display())] {
        let ended = program("is_in_a_zone").env("TZ", &zone).output().expect("a server");
        assert!(ended.status.success(), "{zone}: {ended:?}");
    }
    std::fs::remove_file(path).expect("a file");
}

#[tokio::test]
async fn a_program_with_the_name_and_no_socket_runs() {
    let _one = ONE.lock().await;
    let ended = program("is_in_a_zone")
        .args(["--list"])
        .env("FLATBED_FUNCTIONS_PROCESS", "1")
        .stdin(Stdio::null())
        .output()
        .expect("a program");
    assert!(ended.status.success() && String::from_utf8_lossy(&ended.stdout).contains("is_in_a_zone"), "{ended:?}");
}

#[tokio::test]
async fn a_spare_process_is_there_after_a_kill() {
    let _one = ONE.lock().await;
    let (wait_max, batch_max) = (PATIENCE, Duration::from_millis(50));
    let options = RunnerOptions { threads: 1, wait_max, batch_max, ..RunnerOptions::default() };
    let runner = Runner::new(options).expect("a thread");
    assert!(filter(&runner, QUICK).await.is_ok_and(|passed| passed == [true]) || !mine().is_empty());
    until("spare ones are there", async || mine().len() >= 3).await;
    let before = runner.figures().function_processes_started.get();
    let stuck = "function (doc) { ('a' + '\\\\u0301\\\\u0316'.repeat(150000)).normalize('NFC'); }";
    assert!(matches!(soon(filter(&runner, stuck)).await, Err(Error::TimedOut(_) | Error::Busy)));
    until("another spare one is there", async || mine().len() >= 2).await;
    assert!(runner.figures().function_processes_started.get() <= before + 2);
    drop(runner);
    until("none is left", async || mine().is_empty()).await;
}

/// Not every allocator returns the memory of an idle process.
#[tokio::test]
async fn a_process_that_has_had_much_memory_ends() {
    let _one = ONE.lock().await;
    let runner = runner();
    let source = "function (doc) { new Float64Array(10000000); return true; }";
    for large in 0..3 {
        assert_eq!(soon(filter(&runner, QUICK)).await, Ok(vec![true]));
        // Each pool thread has a process, and two are spare.
        assert_eq!(soon(filter(&runner, source)).await, Ok(vec![true]));
        let ended = || {
            let figures = runner.figures();
            i64::try_from(figures.function_processes_started.get()).expect("few") - figures.function_processes.get()
        };
        until("it is gone", async || ended() == large + 1).await;
    }
    drop(runner);
    until("none is left", async || mine().is_empty()).await;
}
