//! Shared helpers of the black-box tests: the built binary on a free port, and requests to it.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use flatbed_client::{Connection, Lines, Url};
use flatbed_testkit::Faults;
use hyper::Method;
use serde_json::Value;

/// Returns the binary under test, without the machine's environment of settings.
pub fn flatbed() -> Command {
    program(Path::new(env!("CARGO_BIN_EXE_flatbed")))
}

/// Returns another program in place of [`flatbed`].
pub fn program(path: &Path) -> Command {
    let mut command = Command::new(path);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FLATBED_")) {
        command.env_remove(name);
    }
    command
}

/// Runs `flatbed` with `arguments` to its end.
pub fn run(arguments: &[&str]) -> Output {
    flatbed().args(arguments).stdin(Stdio::null()).output().expect("the binary runs")
}

/// Returns the arguments for a storage of the test's own: the embedded engine in `data`, or the cluster that
/// `FLATBED_CLUSTER_FILE` names, with the library of `FLATBED_FDB_LIBRARY` and a root derived from `data`.
pub fn storage(data: &Path) -> Vec<String> {
    let Ok(cluster_file) = std::env::var("FLATBED_CLUSTER_FILE") else {
        return vec!["--data-dir".into(), data.to_str().expect("UTF-8").into()];
    };
    let mut name = DefaultHasher::new();
    data.hash(&mut name);
    let mut arguments =
        vec!["--cluster-file".into(), cluster_file, "--root".into(), format!("test-{:016x}", name.finish())];
    if let Ok(library) = std::env::var("FLATBED_FDB_LIBRARY") {
        arguments.extend(["--fdb-library".into(), library]);
    }
    arguments
}

/// Returns whether [`storage`] is the embedded engine. Tests that need the engine (its faults, its files) are skipped
/// otherwise, and print a line.
pub fn has_engine() -> bool {
    let has_engine = std::env::var_os("FLATBED_CLUSTER_FILE").is_none();
    if !has_engine {
        println!("skipped: needs the embedded engine");
    }
    has_engine
}

/// Returns the older program that `FLATBED_BEFORE` names, if there is a cluster on which both can run: only one process
/// can use the embedded engine. Without it a test is skipped, and prints a line.
pub fn before() -> Option<PathBuf> {
    let before = std::env::var_os("FLATBED_BEFORE").filter(|_| std::env::var_os("FLATBED_CLUSTER_FILE").is_some());
    if before.is_none() {
        println!("skipped: needs a cluster (FLATBED_CLUSTER_FILE) and an older flatbed (FLATBED_BEFORE)");
    }
    before.map(PathBuf::from)
}

/// Returns the value of `FLATBED_FDB_BUGGIFY` for servers under faults. `None` on a cluster, which has no such faults.
pub fn faults() -> Option<String> {
    std::env::var_os("FLATBED_CLUSTER_FILE").is_none().then(Faults::text)
}

/// Runs `flatbed check` on `data`, whose server must be stopped.
pub fn check(database: &str, data: &Path) -> Output {
    let storage = storage(data);
    let mut arguments = vec!["check", database];
    arguments.extend(storage.iter().map(String::as_str));
    run(&arguments)
}

/// A server on its own port; killed when dropped.
pub struct Server {
    pub url: Url,
    /// Sync Gateway's API, for users and for administrators, if the arguments request it.
    pub gateway: Vec<Url>,
    child: Child,
}

impl Server {
    /// Starts a server on the storage that `data` stands for.
    pub fn start(data: &Path) -> Server {
        let storage = storage(data);
        Server::start_with(&storage.iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub fn start_with(arguments: &[&str]) -> Server {
        Server::start_as(&mut flatbed(), arguments)
    }

    /// Starts a server as [`Server::start`], on an engine that injects `faults`, if any.
    pub fn start_under(faults: &Option<String>, data: &Path) -> Server {
        let storage = storage(data);
        let mut command = flatbed();
        command.envs(faults.iter().map(|faults| ("FLATBED_FDB_BUGGIFY", faults)));
        Server::start_as(&mut command, &storage.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Starts a server by `command`, which is [`flatbed`] with its own environment or limits.
    pub fn start_as(command: &mut Command, arguments: &[&str]) -> Server {
        let mut child = command
            .args(["serve", "--listen", "127.0.0.1:0", "--log-level", "warn"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let output = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let urls = output.lines().map_while(Result::ok).filter_map(|line| {
            line.split_whitespace()
                .find(|word| word.starts_with("http://"))
                .map(|word| Url::parse(word).expect("a URL"))
        });
        let is_gateway = |argument: &&&str| ["--gateway-listen", "--admin-listen"].contains(argument);
        let gateways = arguments.iter().filter(is_gateway).count();
        let mut urls = urls.take(1 + gateways);
        let (Some(url), gateway) = (urls.next(), urls.collect()) else {
            let status = child.wait();
            panic!("the server did not start: {status:?}");
        };
        Server { url, gateway, child }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGKILL, and waits for the end.
    pub fn kill(mut self) {
        self.child.kill().expect("the server runs");
        self.child.wait().expect("the server ends");
    }

    /// Sends SIGTERM, and waits; true if the server ended with status 0.
    pub fn stop(self) -> bool {
        self.end("TERM") == Some(0)
    }

    /// Sends a signal by its name, and returns the server's exit status.
    pub fn end(self, name: &str) -> Option<i32> {
        signal(self.pid(), name);
        self.wait()
    }

    /// Waits for the server's end, and returns its exit status.
    pub fn wait(mut self) -> Option<i32> {
        self.child.wait().expect("the server ends").code()
    }

    pub async fn connect(&self) -> Connection {
        Connection::open(&self.url).await.expect("the server answers")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal by its name, `TERM` or `INT`.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status();
    assert!(status.expect("sh runs").success());
}

/// Sends a request, and returns its status and JSON answer.
pub async fn call(connection: &mut Connection, method: Method, path: &str, body: &str) -> (u16, Value) {
    let answer = connection.call(method, path, body.to_owned()).await.expect("an answer");
    let value = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
    (answer.status, value)
}

/// Sends a request that must succeed, without a body if it is `null`. Returns the answer.
pub async fn ask(connection: &mut Connection, method: Method, path: &str, body: &Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let (status, answer) = call(connection, method, path, &body).await;
    assert!((200..300).contains(&status), "{path}: {status} {answer}");
    answer
}

/// Returns the output of a command for messages.
pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Returns the lines of a streamed answer.
pub async fn lines(server: &Server, path: &str) -> Lines {
    let mut connection = server.connect().await;
    let response = connection.send(Method::GET, path, Default::default()).await.expect("an answer");
    assert_eq!(response.status().as_u16(), 200, "{path}");
    Lines::new(response.into_body())
}

/// Returns the sum of the server's counters whose name contains `part`.
pub async fn counters(server: &Server, part: &str) -> f64 {
    let answer = server.connect().await.call(Method::GET, "/metrics", "").await.expect("an answer");
    assert_eq!(answer.status, 200, "/metrics");
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let counters = text.lines().filter(|line| !line.starts_with('#') && line.contains(part));
    let values: Vec<f64> = counters.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
    assert!(!values.is_empty(), "no counter is called {part}: {text}");
    values.into_iter().sum()
}
