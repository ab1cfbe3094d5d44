//! Installed database servers, started for one test each, on a free port and in a temporary directory.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use flatbed_testkit::until_blocking;

/// The password of the server's administrator, `root`.
pub(crate) const PASSWORD: &str = "hunter2";

/// A server that lives as long as its test.
pub(crate) struct Server {
    directory: tempfile::TempDir,
    program: PathBuf,
    arguments: Vec<String>,
    /// The user that it runs as: PostgreSQL does not run as root.
    user: Option<(u32, u32)>,
    child: Option<Child>,
    pub(crate) port: u16,
    client: fn(&Server, &str, &str) -> Command,
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Returns the first existing program of a list of paths and names.
fn program(candidates: &[&str]) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = std::env::split_paths(&paths).collect();
    directories.extend(["/usr/sbin".into(), "/usr/bin".into()]);
    // Debian has one directory per version.
    if let Ok(versions) = std::fs::read_dir("/usr/lib/postgresql") {
        directories.extend(versions.flatten().map(|version| version.path().join("bin")));
    }
    let mut all = directories.iter().flat_map(|directory| candidates.iter().map(|name| directory.join(name)));
    all.find(|path| path.is_file()).map(|path| path.canonicalize().unwrap())
}

/// Reports that a test is skipped, or fails if the environment requires it.
fn missing<T>(what: &str) -> Option<T> {
    assert!(std::env::var_os("FLATBED_REQUIRE_SERVERS").is_none_or(|value| value != "1"), "{what} is not installed");
    println!("skipped: {what} is not installed");
    None
}

fn id(what: &str, user: &[&str]) -> u32 {
    let said = Command::new("id").arg(what).args(user).output().unwrap();
    String::from_utf8(said.stdout).unwrap().trim().parse().unwrap()
}

fn run(command: &mut Command) -> String {
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{command:?}: {said}");
    String::from_utf8(done.stdout).unwrap()
}

impl Server {
    pub(crate) fn postgres() -> Option<Server> {
        let Some(program) = program(&["postgres"]) else { return missing("postgresql") };
        let Some(initdb) = program.parent().map(|bin| bin.join("initdb")).filter(|path| path.is_file()) else {
            return missing("postgresql (initdb)");
        };
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let user = (id("-u", &[]) == 0).then(|| (id("-u", &["postgres"]), id("-g", &["postgres"])));
        let password = directory.path().join("password");
        std::fs::write(&password, PASSWORD).unwrap();
        let data = directory.path().join("data");
        let mut make = Command::new(initdb);
        make.arg("-D").arg(&data).args(["-U", "root", "--no-sync", "-E", "UTF8", "--locale=C", "-A", "scram-sha-256"]);
        make.arg(format!("--pwfile={}", password.display())).current_dir(directory.path());
        if let Some((user, group)) = user {
            make.uid(user).gid(group);
        }
        run(&mut make);
        let port = free_port();
        let settings = ["fsync=off".to_owned(), "listen_addresses=127.0.0.1".to_owned(), format!("port={port}")];
        let mut arguments = vec!["-D".to_owned(), data.display().to_string()];
        for setting in settings.into_iter().chain([format!("unix_socket_directories={}", directory.path().display())]) {
            arguments.extend(["-c".to_owned(), setting]);
        }
        let mut server = Server { directory, program, arguments, user, child: None, port, client: Server::psql };
        server.start();
        Some(server)
    }

    pub(crate) fn mariadb() -> Option<Server> {
        let Some(program) = program(&["mariadbd"]) else { return missing("mariadb-server") };
        let Some(install) = self::program(&["mariadb-install-db"]) else { return missing("mariadb-server (install)") };
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let user = if id("-u", &[]) == 0 { vec!["--user=root".to_owned()] } else { Vec::new() };
        let data = format!("--datadir={}", path("data"));
        let mut make = Command::new(install);
        make.args(["--no-defaults", &data, "--auth-root-authentication-method=normal", "--skip-test-db"]).args(&user);
        run(make.current_dir(directory.path()));
        let users = format!(
            "CREATE OR REPLACE USER root@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';\nGRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n"
        );
        std::fs::write(path("users"), users).unwrap();
        let port = free_port();
        let mut arguments: Vec<String> = [
            "--no-defaults",
            &data,
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--innodb-flush-log-at-trx-commit=2",
            "--innodb-buffer-pool-size=64M",
        ]
        .map(str::to_owned)
        .into();
        arguments.extend([
            format!("--port={port}"),
            format!("--socket={}", path("socket")),
            format!("--pid-file={}", path("pid")),
        ]);
        arguments.extend([format!("--init-file={}", path("users"))]);
        arguments.extend(user);
        let (user, child) = (None, None);
        let mut server = Server { directory, program, arguments, user, child, port, client: Server::mysql };
        server.start();
        Some(server)
    }

    fn mysql(&self, database: &str, statement: &str) -> Command {
        let mut command = Command::new("mariadb");
        command.args([
            "--no-defaults",
            "--host=127.0.0.1",
            "--user=root",
            "--default-character-set=utf8mb4",
            "-N",
            "-B",
            "--raw",
        ]);
        command.args([&format!("--port={}", self.port), &format!("--password={PASSWORD}"), "-e", statement, database]);
        command
    }

    pub(crate) fn start(&mut self) {
        self.spawn();
        until_blocking("the database server answers", || {
            let answers = (self.client)(self, "", "SELECT 1").output().unwrap().status.success();
            // Processes of the previous server may still hold its memory.
            if !answers && self.child.as_mut().is_none_or(|child| child.try_wait().unwrap().is_some()) {
                println!("{}", std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default());
                self.spawn();
            }
            answers
        });
    }

    fn spawn(&mut self) {
        let mut command = Command::new(&self.program);
        let log = std::fs::File::create(self.directory.path().join("log")).unwrap();
        command.args(&self.arguments).current_dir(self.directory.path()).stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        self.child = Some(command.spawn().unwrap());
    }

    /// Kills the server as a power cut would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn psql(&self, database: &str, statement: &str) -> Command {
        let mut command = Command::new(self.program.with_file_name("psql"));
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-U", "root"]);
        let database = if database.is_empty() { "postgres" } else { database };
        command.args(["-p", &self.port.to_string(), "-d", database, "-c", statement]);
        command
            .env("PGPASSWORD", PASSWORD)
            .current_dir(self.directory.path())
            .stderr(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    /// Executes a statement as the administrator; returns lines of values joined by bars.
    pub(crate) fn sql(&self, database: &str, statement: &str) -> Vec<String> {
        self.try_sql(database, statement).unwrap_or_else(|error| panic!("{statement}: {error}"))
    }

    /// As [`Server::sql`], or returns the server's error.
    pub(crate) fn try_sql(&self, database: &str, statement: &str) -> Result<Vec<String>, String> {
        let done = (self.client)(self, database, statement).output().unwrap();
        if !done.status.success() {
            return Err(String::from_utf8_lossy(&done.stderr).into_owned());
        }
        Ok(String::from_utf8(done.stdout).unwrap().lines().map(str::to_owned).collect())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
