//! `flatbed check --all` beside a server, after it, and on a damaged file. Always on the embedded engine.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use hyper::Method;

use crate::support::{Server, call, flatbed, run};

/// Runs the check. Returns its exit status, and what it printed.
fn check_all(data: &Path, scratch: &Path) -> (Option<i32>, String) {
    let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let output = run(&["check", "--all", "--data-dir", &path(data), "--scratch", &path(scratch)]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), text)
}

#[tokio::test]
async fn all_that_is_stored_is_checked_beside_a_server_and_after_it() {
    let directory = tempfile::tempdir().unwrap();
    let (data, scratch) = (directory.path().join("data"), directory.path().join("scratch"));
    fs::create_dir(&scratch).unwrap();
    let server = Server::start_with(&["--data-dir", data.to_str().unwrap()]);
    let mut connection = server.connect().await;
    for database in ["one", "two"] {
        assert_eq!(call(&mut connection, Method::PUT, &format!("/{database}"), "").await.0, 201);
        let body = r#"{"text":"a needle in it"}"#;
        assert_eq!(call(&mut connection, Method::PUT, &format!("/{database}/document"), body).await.0, 201);
    }
    let parts = ["data file: clean; ", "one: clean; 1 documents", "two: clean; 1 documents", "beyond databases: clean"];
    let (status, text) = check_all(&data, &scratch);
    assert!(status == Some(0) && text.contains("a server is running"), "{status:?} {text}");
    assert!(parts.iter().all(|part| text.contains(part)) && text.contains("syncstorage: clean"), "{text}");
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0, "the copy is removed");
    let (status, _) = call(&mut connection, Method::PUT, "/one/after", "{}").await;
    assert_eq!(status, 201, "the server goes on");
    assert!(server.stop());

    let (status, text) = check_all(&data, &scratch);
    assert!(status == Some(0) && !text.contains("a server is running"), "{status:?} {text}");
    assert!(text.contains("one: clean; 2 documents"), "{text}");

    // The output is lost, and nothing of the work.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let arguments = ["check", "--all", "--data-dir", data.to_str().unwrap()];
    let output = flatbed().args(arguments).stdout(full).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && told.contains("stdout cannot be written"), "{output:?}");

    let path = data.join("data.mdb");
    let bytes = fs::read(&path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    let needle = b"a needle in it";
    for (at, _) in bytes.windows(needle.len()).enumerate().filter(|(_, window)| window == needle) {
        file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
    }
    let (status, text) = check_all(&data, &scratch);
    assert!(status == Some(2) && text.contains("data.mdb is damaged (page "), "{status:?} {text}");
}
