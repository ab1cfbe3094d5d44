//! `flatbed admin` and `flatbed user`.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use hyper::Method;

use crate::support::{Server, call, flatbed, has_engine, storage};

/// Returns the command's output. Panics if it fails, unless its message contains `fails`.
fn done(data: &Path, arguments: &[&str], password: &str, fails: Option<&str>) -> String {
    let mut command = flatbed();
    command.args(arguments).args(storage(data));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    child.stdin.take().expect("stdin").write_all(password.as_bytes()).unwrap_or_default();
    let output = child.wait_with_output().expect("it ends");
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    match fails {
        None => assert!(output.status.success(), "{arguments:?}: {error}"),
        Some(words) => assert!(!output.status.success() && error.contains(words), "{arguments:?}: {out} {error}"),
    }
    assert!(!out.contains("secret") && !error.contains("secret"), "{out} {error}");
    out.into_owned()
}

#[test]
fn accounts_are_added_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    done(&data, &["admin", "add", "anna"], "", Some("which is empty"));
    done(&data, &["admin", "add", "anna"], "secret\n", None);
    assert_eq!(done(&data, &["admin", "list"], "", None), "anna\n");
    done(&data, &["admin", "remove", "bea"], "", Some("unknown_config_value"));
    done(&data, &["admin", "remove", "anna"], "", Some("the last administrator"));
    done(&data, &["admin", "add", "bea"], "secret", None);
    done(&data, &["admin", "remove", "anna"], "", None);
    assert_eq!(done(&data, &["admin", "list"], "", None), "bea\n");

    assert_eq!(done(&data, &["user", "list"], "", None), "");
    done(&data, &["user", "password", "carl"], "secret\n", Some("there is no user"));
    done(&data, &["user", "add", "carl", "--role", "r"], "secret\n", None);
    done(&data, &["user", "add", "carl"], "secret\n", Some("there is a user"));
    done(&data, &["user", "password", "carl"], "secret2\n", None);
    assert_eq!(done(&data, &["user", "list"], "", None), "carl\n");
    for (name, reason) in [
        ("a:b", "`:` is not allowed"),
        ("_x", "may not start with underscore"),
        ("", "name is required"),
        ("a\nb", "control characters"),
    ] {
        done(&data, &["user", "add", name], "secret\n", Some(reason));
    }
    done(&data, &["user", "add", "dora", "--role", "_admin"], "secret\n", Some("No system roles"));
    assert_eq!(done(&data, &["user", "list"], "", None), "carl\n");
    done(&data, &["user", "remove", "carl"], "", None);
    assert_eq!(done(&data, &["user", "list"], "", None), "");
    done(&data, &["user", "add", "carl"], "secret\n", None);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_passwords_follow_the_rules_of_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let (data, file) = (directory.path().join("data"), directory.path().join("flatbed.toml"));
    done(&data, &["user", "add", "carl"], "secret\n", None);
    std::fs::write(&file, "[chttpd_auth]\npassword_regexp = '[{\"[0-9]\", \"At least one digit.\"}]'\n").unwrap();
    let config = ["--config", file.to_str().unwrap()];
    let refused = Some("Password does not conform to requirements. At least one digit.");
    done(&data, &[&["user", "password", "carl"], &config[..]].concat(), "secret\n", refused);
    done(&data, &[&["user", "add", "dora"], &config[..]].concat(), "secret\n", refused);
    done(&data, &[&["user", "add", "dora"], &config[..]].concat(), "secret2\n", None);

    // Stored rules hold, too.
    let server = Server::start(&data);
    let path = "/_node/_local/_config/chttpd_auth/password_regexp";
    let rules = r#""[{\".{10,}\", \"At least 10 characters.\"}]""#;
    assert_eq!(call(&mut server.connect().await, Method::PUT, path, rules).await.0, 200);
    assert!(server.stop());
    let refused = Some("At least 10 characters.");
    done(&data, &["user", "password", "dora"], "secret\n", refused);
    done(&data, &["user", "add", "emma"], "secret\n", refused);
    done(&data, &["user", "password", "dora"], "secret of ten\n", None);
    assert_eq!(done(&data, &["user", "list"], "", None), "carl\ndora\n");
}

/// The embedded engine's directory admits one process, so the server that has it makes the change.
#[test]
fn a_running_server_makes_the_change() {
    if !has_engine() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let server = Server::start(&data);
    done(&data, &["user", "list"], "", None);
    done(&data, &["user", "add", "carl", "--role", "r"], "secret\n", None);
    done(&data, &["user", "add", "carl"], "secret\n", Some("there is a user"));
    done(&data, &["user", "add", "a\nb"], "secret\n", Some("control characters"));
    done(&data, &["user", "add", "_x"], "secret\n", Some("may not start with underscore"));
    done(&data, &["user", "password", "bea"], "secret\n", Some("there is no user"));
    done(&data, &["user", "password", "carl"], "secret2\n", None);
    assert_eq!(done(&data, &["user", "list"], "", None), "carl\n");
    assert_eq!(done(&data, &["admin", "list"], "", None), "");
    done(&data, &["admin", "add", "anna"], "secret\n", None);

    // From now on only the administrator may.
    done(&data, &["admin", "list"], "", Some("admits its administrators alone"));
    let url = format!("http://anna:secret@{}", server.url.authority());
    let by_anna = |words: &[&str], password, fails| done(&data, &[words, &["--url", &url]].concat(), password, fails);
    assert_eq!(by_anna(&["admin", "list"], "", None), "anna\n");
    by_anna(&["admin", "remove", "bea"], "", Some("unknown_config_value"));
    by_anna(&["admin", "remove", "anna"], "", Some("the last administrator"));
    by_anna(&["admin", "add", "bea"], "secret\n", None);
    by_anna(&["user", "remove", "carl"], "", None);
    by_anna(&["user", "remove", "carl"], "", Some("there is no user"));
    assert_eq!(by_anna(&["user", "list"], "", None), "");
    let mut command = flatbed();
    command.args(["admin", "list"]).args(storage(&data)).env("FLATBED_URL", &url).stdin(Stdio::null());
    assert_eq!(command.output().unwrap().stdout, b"anna\nbea\n");

    // A server that was killed leaves its address behind. The next process that opens the directory removes it: a later
    // command that finds the directory in use must not send a password there.
    server.kill();
    assert!(data.join("server").exists());
    assert_eq!(done(&data, &["admin", "list"], "", None), "anna\nbea\n");
    assert!(!data.join("server").exists());
}
