//! The server's start, its refusals to start, and its stop.

use std::{
    fs::{self, Permissions},
    io::{BufRead, BufReader, Read, Write},
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    process::Stdio,
};

use crate::support::{Server, call, counters, flatbed, lines, run, signal};
use flatbed_testkit::{until, until_blocking};
use hyper::Method;

/// Runs `flatbed` with `arguments`. It must fail with one line on stderr that contains all of `parts`.
fn refused(arguments: &[&str], parts: &[&str]) {
    let output = run(arguments);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{arguments:?} must fail");
    assert_eq!(message.lines().count(), 1, "{arguments:?}: one line, not {message:?}");
    assert!(message.starts_with("flatbed: "), "{message}");
    for part in parts {
        assert!(message.contains(part), "{arguments:?}: {message:?} must say {part:?}");
    }
}

#[test]
fn a_help_text_that_cannot_be_written_is_an_error() {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = flatbed().arg("help").stdout(full).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && message.contains("cannot be written"), "{output:?}");
    // The reader has gone.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = flatbed().arg("help").stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{output:?}");
}

#[test]
fn usage() {
    refused(&["serve", "--liten", "a:1"], &["--liten", "--help"]);
    refused(&["start"], &["\"start\" is no command"]);
    refused(&["serve", "--listen", "nowhere"], &["--listen", "host:port"]);
    refused(&["serve", "--data-dir", "a", "--cluster-file", "b"], &["--cluster-file", "--data-dir"]);
    let help = run(&["serve", "--help"]);
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("--fdb-library PATH"));
    assert!(run(&["--version"]).status.success());
}

#[test]
fn configuration_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("flatbed.toml");
    let path_text = path.to_str().unwrap();
    refused(&["serve", "--config", path_text], &["flatbed.toml", "cannot be read"]);
    fs::write(&path, "liten = \"127.0.0.1:0\"\n").unwrap();
    refused(&["serve", "--config", path_text], &["unknown key \"liten\""]);
    fs::write(&path, "listen = \"127.0.0.1\"\n").unwrap();
    refused(&["serve", "--config", path_text], &["listen in", "flatbed.toml", "host:port"]);
    let output = flatbed().args(["serve"]).env("FLATBED_LISTEN", "x").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("FLATBED_LISTEN"));
}

/// Starts `flatbed serve` in `directory`, returns its log up to the line that says where it serves, and stops it.
fn start_log(directory: &std::path::Path, arguments: &[&str]) -> String {
    let mut child = flatbed()
        .args(["serve", "--listen", "127.0.0.1:0"])
        .args(arguments)
        .current_dir(directory)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stderr, mut text) = (BufReader::new(child.stderr.take().unwrap()), String::new());
    while !text.contains("serving") {
        assert!(stderr.read_line(&mut text).unwrap() > 0, "{text}");
    }
    signal(child.id(), "TERM");
    stderr.read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
    text
}

#[test]
fn a_file_in_the_working_directory_that_another_user_owns_must_be_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("flatbed.toml");
    fs::write(&path, "data_dir = \"of-the-file\"\n").unwrap();
    if std::os::unix::fs::chown(&path, Some(65_534), None).is_err() {
        println!("skipped: only root gives a file to another user");
        return;
    }
    let list = |arguments: &[&str]| {
        let output = flatbed().args(["user", "list"]).args(arguments).current_dir(directory.path()).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (is_done, said) = list(&[]);
    assert!(!is_done && said.contains("belongs to another user"), "{said}");
    assert!(!directory.path().join("of-the-file").exists());
    let (is_done, said) = list(&["--config", "flatbed.toml"]);
    assert!(is_done, "{said}");
}

#[test]
fn a_file_in_the_working_directory_is_read_if_none_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("flatbed.toml");
    fs::write(&path, "data_dir = \"of-the-file\"\n").unwrap();
    let log = start_log(directory.path(), &[]);
    let line = log.lines().find(|line| line.contains("read the configuration file"));
    assert!(line.is_some_and(|line| line.contains(path.to_str().unwrap())), "{log}");
    assert!(directory.path().join("of-the-file").is_dir(), "the file's settings count");
    // Commands that open the storage find it in the same way.
    let output = flatbed().args(["check", "none"]).current_dir(directory.path()).output().unwrap();
    assert!(!directory.path().join("flatbed-data").exists(), "{output:?}");

    let named = directory.path().join("named.toml");
    fs::write(&named, "data_dir = \"of-the-named-file\"\n").unwrap();
    let log = start_log(directory.path(), &["--config", "named.toml"]);
    assert!(log.contains(named.to_str().unwrap()) && !log.contains(path.to_str().unwrap()), "{log}");
    assert!(directory.path().join("of-the-named-file").is_dir());
}

#[test]
fn unknown_variables_are_refused_where_a_server_starts() {
    let directory = tempfile::tempdir().unwrap();
    let with = |arguments: &[&str]| {
        let mut command = flatbed();
        command.args(arguments).arg("--data-dir").arg(directory.path());
        let output = command.env("FLATBED_LITSEN", "127.0.0.1:1").output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let message = with(&["serve", "--listen", "127.0.0.1:0"]);
    assert!(message.contains("FLATBED_LITSEN is no variable of Flatbed") && message.lines().count() == 1, "{message}");
    assert!(!with(&["check", "none"]).contains("FLATBED_LITSEN"));
    // Kubernetes sets this one beside a service of that name.
    let mut command = flatbed();
    command.env("FLATBED_PORT_5984_TCP", "tcp://10.0.0.1:5984").env("FLATBED_EMPTY", "");
    assert!(Server::start_as(&mut command, &["--data-dir", directory.path().to_str().unwrap()]).stop());
}

#[test]
fn a_setting_for_tests_is_refused_or_told() {
    let directory = tempfile::tempdir().unwrap();
    for (name, value) in [
        ("FLATBED_FDB_BUGGIFY", "5%"),
        ("FLATBED_FDB_PENDING_READS", "often"),
        ("FLATBED_FDB_LATENCY_US", "1ms"),
        ("FLATBED_FDB_SERVER", "on"),
    ] {
        let command = &mut flatbed();
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(directory.path()).env(name, value);
        let output = command.output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), message.lines().count()), (Some(2), 1), "{message}");
        assert!(message.contains(name) && message.contains(value), "{message}");
    }
    let mut command = flatbed();
    command.args(["check", "none", "--data-dir"]).arg(directory.path()).env("FLATBED_FDB_BUGGIFY", "0,1");
    let output = command.output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("injects faults"), "{output:?}");
}

#[test]
fn cluster_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fdb.cluster");
    let path_text = path.to_str().unwrap();
    refused(&["serve", "--cluster-file", path_text], &["no cluster file", "fdb.cluster", "--cluster-file"]);
    fs::write(&path, "embedded:data\n").unwrap();
    refused(&["serve", "--cluster-file", path_text], &["fdb.cluster"]);
    fs::write(&path, "local:flatbed@127.0.0.1:1\n").unwrap();
    let missing = directory.path().join("libfdb_c.so");
    let missing_text = missing.to_str().unwrap();
    refused(&["serve", "--cluster-file", path_text, "--fdb-library", missing_text], &["libfdb_c", "--fdb-library"]);
    fs::write(&missing, "no library").unwrap();
    refused(&["serve", "--cluster-file", path_text, "--fdb-library", missing_text], &["libfdb_c", "--fdb-library"]);
}

#[tokio::test]
async fn an_embedded_cluster_file_names_a_directory_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("embedded.cluster");
    fs::write(&path, "embedded:test@data\n").unwrap();
    let mut child = flatbed()
        .args(["serve", "--listen", "127.0.0.1:0", "--cluster-file", path.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until_blocking("the directory is made", || directory.path().join("data").is_dir());
    signal(child.id(), "TERM");
    child.wait().unwrap();
}

#[test]
fn data_directories_that_cannot_be_used() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let serve = |parts: &[&str]| {
        refused(&["serve", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()], parts);
    };
    fs::write(&data, "text").unwrap();
    serve(&[data.to_str().unwrap(), "is not a directory"]);
    fs::remove_file(&data).unwrap();
    assert!(Server::start_with(&["--data-dir", data.to_str().unwrap()]).stop());
    let file = data.join("data.mdb");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    serve(&[data.to_str().unwrap(), "is cut off", "restore a backup"]);
    fs::write(&file, "text").unwrap();
    serve(&[data.to_str().unwrap(), "does not hold a database of this program", "another directory"]);
    fs::write(&file, &whole).unwrap();
    assert!(Server::start_with(&["--data-dir", data.to_str().unwrap()]).stop());
}

#[test]
fn a_data_directory_has_one_server() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().to_str().unwrap();
    let server = Server::start_with(&["--data-dir", data]);
    refused(&["serve", "--listen", "127.0.0.1:0", "--data-dir", data], &[data, "in use by another process"]);
    refused(&["check", "db", "--data-dir", data], &[data, "in use by another process"]);
    let port = server.url.authority();
    let other = tempfile::tempdir().unwrap();
    refused(&["serve", "--listen", &port, "--data-dir", other.path().to_str().unwrap()], &[&port, "in use"]);
    assert!(server.stop());
    assert!(Server::start_with(&["--data-dir", data]).stop(), "it is free again");
}

#[tokio::test]
async fn administrators() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("flatbed.toml");
    let data = directory.path().join("data");
    let data_text = data.to_str().unwrap();
    refused(&["serve", "--listen", "0.0.0.0:0", "--data-dir", data_text], &["0.0.0.0:0", "admin"]);

    let text = "# ours\n[admins]\nanna = \"plain secret\" # the first\n";
    fs::write(&config, text).unwrap();
    let server = Server::start_with(&["--data-dir", data_text, "--config", config.to_str().unwrap()]);
    let written = fs::read_to_string(&config).unwrap();
    assert!(!written.contains("plain secret"), "the password is hashed: {written}");
    assert!(written.starts_with("# ours\n[admins]\nanna = \"") && written.ends_with("\" # the first\n"), "{written}");

    let (status, _) = call(&mut server.connect().await, Method::PUT, "/db", "").await;
    assert_eq!(status, 401);
    let url = format!("http://anna:plain%20secret@{}", server.url.authority());
    let url = flatbed_client::Url::parse(&url).unwrap();
    let mut connection = flatbed_client::Connection::open(&url).await.unwrap();
    assert_eq!(call(&mut connection, Method::PUT, "/db", "").await.0, 201);
    assert!(server.stop());

    // The hash has replaced the password, and is not hashed again.
    let server = Server::start_with(&["--data-dir", data_text, "--config", config.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(&config).unwrap(), written);
    let url = format!("http://anna:plain%20secret@{}", server.url.authority());
    let url = flatbed_client::Url::parse(&url).unwrap();
    let mut connection = flatbed_client::Connection::open(&url).await.unwrap();
    assert_eq!(call(&mut connection, Method::GET, "/db", "").await.0, 200);
    assert!(server.stop());
}

#[tokio::test]
async fn passwords_stay_in_a_file_that_the_server_may_not_write() {
    const NOBODY: u32 = 65_534;
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let (config, data) = (directory.path().join("etc/flatbed.toml"), directory.path().join("data"));
    fs::create_dir(config.parent().unwrap()).unwrap();
    fs::create_dir(&data).unwrap();
    let text = "[admins]\nanna = \"plain secret\"\n";
    fs::write(&config, text).unwrap();
    fs::set_permissions(config.parent().unwrap(), Permissions::from_mode(0o555)).unwrap();
    let mut command = flatbed();
    // SAFETY: the call only reads.
    if unsafe { libc::geteuid() } == 0 {
        // Root may write everywhere.
        chown(&data, Some(NOBODY), Some(NOBODY)).unwrap();
        command.uid(NOBODY).gid(NOBODY).current_dir(&data);
        if let Err(error) = command.arg("--version").output() {
            println!("skipped: another user may not run this program ({error})");
            return;
        }
        command = flatbed();
        command.uid(NOBODY).gid(NOBODY).current_dir(&data);
    }
    let arguments = ["--data-dir", data.to_str().unwrap(), "--config", config.to_str().unwrap()];
    let server = Server::start_as(&mut command, &arguments);
    assert_eq!(fs::read_to_string(&config).unwrap(), text);
    let url = flatbed_client::Url::parse(&format!("http://anna:plain%20secret@{}", server.url.authority())).unwrap();
    let mut connection = flatbed_client::Connection::open(&url).await.unwrap();
    let (of_admin, of_timeout) = ("/_node/_local/_config/admins/anna", "/_node/_local/_config/chttpd_auth/timeout");
    let (status, hash) = call(&mut connection, Method::GET, of_admin, "").await;
    assert!(status == 200 && hash.as_str().is_some_and(|hash| hash.starts_with("-pbkdf2")), "{status} {hash}");
    // A reload does not hash the password again, which would end the administrator's sessions.
    fs::write(&config, format!("{text}[chttpd_auth]\ntimeout = 700\n")).unwrap();
    signal(server.pid(), "HUP");
    until("the file is read again", async || call(&mut connection, Method::GET, of_timeout, "").await.1 == "700").await;
    assert_eq!(call(&mut connection, Method::GET, of_admin, "").await.1, hash);
    assert!(server.stop());
    fs::set_permissions(config.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn signals() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path());
    call(&mut server.connect().await, Method::PUT, "/db", "").await;
    let _feed = lines(&server, "/db/_changes?feed=continuous&heartbeat=10000").await;
    assert!(server.stop(), "SIGTERM ends the server, with status 0, although a feed is open");

    assert_eq!(Server::start(directory.path()).end("INT"), Some(0), "so does SIGINT");

    let server = Server::start(directory.path());
    signal(server.pid(), "HUP");
    assert_eq!(
        call(&mut server.connect().await, Method::GET, "/db", "").await.0,
        200,
        "SIGHUP reloads and does not end it"
    );
    assert!(server.stop());

    let server = Server::start(directory.path());
    let mut request = std::net::TcpStream::connect(server.url.authority()).unwrap();
    request.write_all(b"PUT /db/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{").unwrap();
    // The waiting request, and this one.
    let in_flight = async || counters(&server, "flatbed_requests_in_flight").await;
    until("the request is under way", async || in_flight().await >= 2.0).await;
    signal(server.pid(), "TERM");
    // The first signal has arrived when no connection is accepted any more.
    let lets_in = || std::net::TcpStream::connect(server.url.authority()).is_ok();
    until("no connection is accepted", async || !lets_in()).await;
    let code = server.end("TERM");
    assert_eq!(code, Some(130), "a running request holds a first signal up, but not a second");
}

#[test]
fn logs_as_json() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = flatbed()
        .args(["serve", "--listen", "127.0.0.1:0", "--log-format", "json", "--data-dir"])
        .arg(directory.path().join("data"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stderr, mut text) = (BufReader::new(child.stderr.take().unwrap()), String::new());
    // The signal handlers are installed by then.
    while !text.contains("serving") {
        assert!(stderr.read_line(&mut text).unwrap() > 0, "{text}");
    }
    signal(child.id(), "TERM");
    stderr.read_to_string(&mut text).unwrap();
    child.wait().unwrap();
    assert!(!text.is_empty());
    for line in text.lines() {
        assert!(
            serde_json::from_str::<serde_json::Value>(line).is_ok_and(|event| event["level"].is_string()),
            "{line}"
        );
    }
}
