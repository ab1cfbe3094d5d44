//! `flatbed backup` beside a server under writes, and `flatbed restore` of the copy. Always on the embedded engine.

use std::{
    collections::HashMap,
    fs,
    path::Path,
    process::Output,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::support::{Server, call, counters, flatbed, run, text};
use flatbed_client::{Connection, Url};
use flatbed_testkit::{pass_blocking, until, until_blocking};
use hyper::Method;
use serde_json::Value;

const WRITERS: usize = 6;

/// The restores to kill, unless one completes before.
const ROUNDS: u64 = 40;

fn argument(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn backup(data: &Path, out: &Path) -> Output {
    run(&["backup", "--data-dir", argument(data), argument(out)])
}

fn restore(out: &Path, data: &Path) -> Output {
    run(&["restore", argument(out), "--data-dir", argument(data)])
}

/// Checks that the command failed with status 2 and one line that contains all of `parts`.
fn assert_refused(output: &Output, parts: &[&str]) {
    let text = text(output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.starts_with("flatbed: ") && text.lines().count() == 1, "{text}");
    assert!(parts.iter().all(|part| text.contains(part)), "{text:?} must say {parts:?}");
}

fn assert_clean(database: &str, data: &Path) {
    let check = run(&["check", database, "--data-dir", argument(data)]);
    assert!(check.status.success(), "{}", text(&check));
}

/// The generation of the last acknowledged write, by document.
type Acknowledged = Arc<Mutex<HashMap<String, u64>>>;

fn generation(rev: &Value) -> u64 {
    let digits = rev.as_str().and_then(|rev| rev.split('-').next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("no revision: {rev}"))
}

/// Creates and edits documents, some of them large, until told to stop.
async fn write(url: Url, writer: usize, acknowledged: Acknowledged, is_over: Arc<AtomicBool>) {
    let mut connection = Connection::open(&url).await.expect("the server answers");
    for number in 0.. {
        let id = format!("{writer}-{number}");
        let large = if number % 30 == 9 { "x".repeat(1_200_000) } else { String::new() };
        let mut body = format!("{{\"n\":{number},\"large\":\"{large}\"}}");
        for step in 0..=number % 3 {
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            let (status, made) = call(&mut connection, Method::PUT, &format!("/db/{id}"), &body).await;
            assert_eq!(status, 201, "{made}");
            acknowledged.lock().unwrap().insert(id.clone(), generation(&made["rev"]));
            body = format!("{{\"_rev\":{},\"step\":{step}}}", made["rev"]);
        }
    }
}

async fn rows(server: &Server, path: &str) -> Vec<Value> {
    let (status, mut answer) = call(&mut server.connect().await, Method::GET, path, "").await;
    assert_eq!(status, 200, "{answer}");
    serde_json::from_value(answer["results"].take()).expect("rows")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_beside_writers_is_restored() {
    let directory = tempfile::tempdir().unwrap();
    let (data, out, new) = (directory.path().join("data"), directory.path().join("out"), directory.path().join("new"));
    let server = Server::start_with(&["--data-dir", argument(&data)]);
    let mut connection = server.connect().await;
    for database in ["db", "idle"] {
        assert_eq!(call(&mut connection, Method::PUT, &format!("/{database}"), "").await.0, 201);
    }
    assert_eq!(call(&mut connection, Method::PUT, "/idle/only", "{\"a\":[1,null]}").await.0, 201);
    let (acknowledged, is_over) = (Acknowledged::default(), Arc::new(AtomicBool::new(false)));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| tokio::spawn(write(server.url.clone(), writer, acknowledged.clone(), is_over.clone())))
        .collect();
    let count = || acknowledged.lock().unwrap().len();
    let written = async |more: usize| {
        let from = count();
        until("documents are written", async || count() >= from + more).await;
    };
    written(150).await;
    let before = acknowledged.lock().unwrap().clone();
    let seen = rows(&server, "/db/_changes").await;
    let seen = seen.last().expect("a row")["seq"].as_str().expect("a sequence").to_owned();
    assert_eq!(counters(&server, "flatbed_backup_timestamp_seconds").await, 0.0);
    let now_s = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as f64;
    let earliest_s = now_s();
    let output = tokio::task::block_in_place(|| backup(&data, &out));
    assert!(output.status.success() && text(&output).contains(" MB copied from "), "{}", text(&output));
    let recorded_s = counters(&server, "flatbed_backup_timestamp_seconds").await;
    assert!((earliest_s..=now_s()).contains(&recorded_s), "{recorded_s}");
    // The writers and their server continue.
    written(50).await;
    let after = acknowledged.lock().unwrap().clone();
    assert_refused(&backup(&data, &out), &[argument(&out), "is not empty"]);
    assert_refused(&restore(&out, &data), &[argument(&data), "is not empty"]);

    let output = tokio::task::block_in_place(|| restore(&out, &new));
    assert!(output.status.success() && text(&output).starts_with("restored from "), "{}", text(&output));
    let restored = Server::start_with(&["--data-dir", argument(&new)]);
    let found: HashMap<String, u64> = rows(&restored, "/db/_changes")
        .await
        .iter()
        .map(|row| (row["id"].as_str().expect("an id").to_owned(), generation(&row["changes"][0]["rev"])))
        .collect();
    for (id, generation) in &before {
        assert!(found.get(id).is_some_and(|found| found >= generation), "{id} was acknowledged before the backup");
    }
    for (id, generation) in &found {
        // The last answer of each writer may be outstanding.
        let known = after.get(id).copied().unwrap_or(0);
        assert!(*generation <= known + 1, "{id} at {generation} is newer than the backup");
    }
    let mut connection = restored.connect().await;
    let (_, info) = call(&mut connection, Method::GET, "/db", "").await;
    assert_eq!(info["doc_count"], found.len());
    for id in before.keys() {
        let (status, document) = call(&mut connection, Method::GET, &format!("/db/{id}"), "").await;
        assert_eq!((status, generation(&document["_rev"])), (200, found[id]), "{id}");
    }
    let (_, only) = call(&mut connection, Method::GET, "/idle/only", "").await;
    assert_eq!(only["a"], serde_json::json!([1, null]));
    // Followers go on: one from before the backup, one of the lost history, and one from here.
    let since = async |seq: &str| rows(&restored, &format!("/db/_changes?since={seq}")).await;
    let sequence = |value: &Value| value.as_str().expect("a sequence").to_owned();
    let (_, lost) = call(&mut server.connect().await, Method::GET, "/db", "").await;
    let (lost, now) = (sequence(&lost["update_seq"]), sequence(&info["update_seq"]));
    let number = |seq: &str| seq.split_once('-').expect("a number").0.parse::<u128>().expect("a number");
    assert!(number(&now) > number(&lost) && number(&lost) > number(&seen), "{now} {lost} {seen}");
    assert!(since(&seen).await.len() <= found.len());
    assert_eq!((since(&lost).await.len(), since(&now).await.len()), (0, 0));
    assert_eq!(call(&mut connection, Method::PUT, "/db/later", "{}").await.0, 201);
    for seq in [&lost, &now] {
        assert_eq!(since(seq).await.iter().map(|row| &row["id"]).collect::<Vec<_>>(), ["later"]);
    }
    assert!(restored.stop());
    for database in ["db", "idle"] {
        assert_clean(database, &new);
    }
    assert_refused(&restore(&out, &new), &[argument(&new), "is not empty"]);

    is_over.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.expect("the writers' server goes on");
    }
    assert!(server.stop());
    assert_clean("db", &data);
}

#[tokio::test]
async fn a_killed_restore_leaves_no_half_database() {
    let directory = tempfile::tempdir().unwrap();
    let (data, out, new) = (directory.path().join("data"), directory.path().join("out"), directory.path().join("new"));
    let server = Server::start_with(&["--data-dir", argument(&data)]);
    let mut connection = server.connect().await;
    assert_eq!(call(&mut connection, Method::PUT, "/db", "").await.0, 201);
    for batch in 0..20 {
        let documents: Vec<String> = (0..500).map(|n| format!("{{\"_id\":\"{batch}-{n}\"}}")).collect();
        let body = format!("{{\"docs\":[{}]}}", documents.join(","));
        assert_eq!(call(&mut connection, Method::POST, "/db/_bulk_docs", &body).await.0, 201);
    }
    assert!(server.stop());
    assert!(backup(&data, &out).status.success());

    // The kills come later and later, until one comes too late. All starts over if none met a running restore.
    let is_done = || new.join("data.mdb").exists();
    let (mut round, mut has_met) = (0, false);
    until_blocking("a kill meets a restore under way", || {
        let arguments = ["restore", argument(&out), "--data-dir", argument(&new)];
        let mut child = flatbed().args(arguments).stdout(std::process::Stdio::null()).spawn().unwrap();
        pass_blocking(Duration::from_millis(10 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        round += 1;
        if is_done() && !has_met {
            fs::remove_dir_all(&new).unwrap();
            round = 0;
        } else if !is_done() {
            let left = fs::read_dir(&new).map(|entries| entries.map(|entry| entry.unwrap().file_name()).collect());
            let left: Vec<_> = left.unwrap_or_default();
            assert!(left.iter().all(|name| name == "restoring" || name == "engine.lock"), "{left:?}");
            has_met |= left.iter().any(|name| name == "restoring");
        }
        has_met && (is_done() || round >= ROUNDS)
    });
    if !is_done() {
        let output = restore(&out, &new);
        assert!(output.status.success(), "{}", text(&output));
    }
    assert_clean("db", &new);
    let check = run(&["check", "db", "--data-dir", argument(&new)]);
    assert!(text(&check).contains("; 10000 documents, "), "{}", text(&check));
}

#[test]
fn what_cannot_be_done_is_said_in_a_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("fdb.cluster"), "local:flatbed@127.0.0.1:1\n").unwrap();
    for command in ["backup", "restore"] {
        let output = run(&[command, argument(&path("out")), "--cluster-file", argument(&path("fdb.cluster"))]);
        assert_refused(&output, &["fdb.cluster", "fdbbackup", "fdbrestore", "--data-dir"]);
        let output = run(&[command, argument(&path("out")), "--cluster-file", argument(&path("none"))]);
        assert_refused(&output, &["none", "--data-dir"]);
        assert_refused(&run(&[command]), &["--help"]);
    }
    assert_refused(&backup(&path("none"), &path("out")), &["there is no database in", "none"]);
    assert_refused(&restore(&path("none"), &path("new")), &["there is no database in", "none"]);
    fs::create_dir(path("cut")).unwrap();
    fs::write(path("cut/data.mdb"), [0; 5_000]).unwrap();
    assert_refused(&restore(&path("cut"), &path("new")), &["cut", "its first meta page is invalid"]);
    assert!(!path("out").exists() && !path("new").exists(), "nothing is made for what fails");
}

#[tokio::test]
async fn a_cluster_file_may_name_the_engine() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("embedded.cluster"), "embedded:test@data\n").unwrap();
    fs::write(path("other.cluster"), "embedded:test@other\n").unwrap();
    let of = |name: &str| path(name).to_str().unwrap().to_owned();
    // Under another root than the default, which a restore finds by itself.
    let root = ["--root", "elsewhere"];
    let embedded = of("embedded.cluster");
    let server = Server::start_with(&[&["--cluster-file", &embedded], &root[..]].concat());
    let mut connection = server.connect().await;
    assert_eq!(call(&mut connection, Method::PUT, "/db", "").await.0, 201);
    assert_eq!(call(&mut connection, Method::PUT, "/db/a", "{}").await.0, 201);
    let seen = rows(&server, "/db/_changes").await[0]["seq"].as_str().unwrap().to_owned();
    let output = run(&["backup", &of("out"), "--cluster-file", &embedded]);
    assert!(output.status.success(), "{}", text(&output));
    let other = of("other.cluster");
    let output = run(&["restore", &of("out"), "--cluster-file", &other]);
    assert!(output.status.success() && text(&output).starts_with("restored from "), "{}", text(&output));
    let restored = Server::start_with(&[&["--cluster-file", &other], &root[..]].concat());
    // The history is the same, so a follower goes on.
    assert_eq!(rows(&restored, "/db/_changes").await.len(), 1);
    assert_eq!(rows(&restored, &format!("/db/_changes?since={seen}")).await.len(), 0);
    assert!(restored.stop() && server.stop());
}
