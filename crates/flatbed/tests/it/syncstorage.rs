//! Firefox Sync beside CouchDB's API: started by the configuration file, counted, checked.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use flatbed_client::{Connection, Url};
use hyper::Method;

use crate::support::{flatbed, run, signal, storage};

async fn get(url: &str, path: &str) -> (u16, String) {
    let mut connection = Connection::open(&Url::parse(url).unwrap()).await.unwrap();
    let answer = connection.call(Method::GET, path, "").await.unwrap();
    (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
}

#[tokio::test]
async fn it_is_served_counted_and_checked() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let config = "listen = \"127.0.0.1:0\"\n[syncstorage]\nlisten = \"127.0.0.1:0\"\nmaster_secret_file = \"secret\"\n\
                  accounts = [\"0123456789abcdef0123456789abcdef\"]\nfirst_users = 2\njwks = \"keys.json\"\n\
                  limits = { max_post_records = 50 }\n";
    fs::write(path("flatbed.toml"), config).unwrap();
    fs::write(path("keys.json"), r#"{"keys":[]}"#).unwrap();
    let data = storage(&path("data"));
    let mut arguments = vec!["serve", "--config"];
    let config = path("flatbed.toml");
    arguments.push(config.to_str().unwrap());
    arguments.extend(data.iter().map(String::as_str));

    let refused = run(&arguments);
    let message = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2));
    assert!(message.contains("the secret of [syncstorage]"), "{message}");
    fs::write(path("secret"), "a secret of some length\n").unwrap();

    let mut child = flatbed().args(&arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let urls =
        lines.filter_map(|line| line.split_whitespace().find(|word| word.starts_with("http://")).map(str::to_owned));
    let urls: Vec<String> = urls.take(2).collect();
    let [couch, sync] = urls.as_slice() else { panic!("{urls:?}") };

    let (status, text) = get(sync, "/__heartbeat__").await;
    assert!(status == 200 && text.contains(r#""status":"Ok""#), "{status} {text}");
    let (status, text) = get(sync, "/1.5/1/info/configuration").await;
    assert!(status == 200 && text.contains(r#""max_post_records":50"#), "{text}");
    assert_eq!(get(sync, "/1.5/1/info/collections").await, (401, "0".to_owned()));
    let (status, text) = get(sync, "/").await;
    assert!(status == 200 && text.contains(&format!("{sync}/1.0/sync/1.5")), "{text}");
    assert_eq!(get(sync, "/_all_dbs").await.0, 404);
    assert_eq!(get(couch, "/_all_dbs").await.0, 200);

    let (_, metrics) = get(couch, "/metrics").await;
    let unsigned = r#"flatbed_requests_total{route="/1.5/{uid}/info/collections",method="GET",status="401",surface="syncstorage"} 1"#;
    assert!(metrics.contains(unsigned) && metrics.contains("flatbed_sync_unsigned_total 1"), "{metrics}");
    assert_eq!(metrics.matches("# TYPE flatbed_requests_total ").count(), 1);

    signal(child.id(), "TERM");
    assert!(child.wait().unwrap().success());
    let mut arguments = vec!["check", "--syncstorage"];
    arguments.extend(data.iter().map(String::as_str));
    let checked = run(&arguments);
    let text = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success() && text.contains("syncstorage: clean; 0 accounts, 0 users"), "{checked:?}");
}

#[tokio::test]
async fn it_is_served_at_a_path_beside_databases() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let config = "listen = \"127.0.0.1:0\"\n[syncstorage]\npath = \"/sync\"\nmaster_secret_file = \"secret\"\n\
                  first_users = 2\njwks = \"keys.json\"\n";
    fs::write(path("flatbed.toml"), config).unwrap();
    fs::write(path("keys.json"), r#"{"keys":[]}"#).unwrap();
    fs::write(path("secret"), "a secret of some length\n").unwrap();
    let (data, config) = (storage(&path("data")), path("flatbed.toml"));
    let mut command = flatbed();
    command.args(["serve", "--config", config.to_str().unwrap()]).args(&data);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let first = lines.next().unwrap();
    let couch = first.split_whitespace().find(|word| word.starts_with("http://")).unwrap();
    let second = lines.next().unwrap();
    assert!(second.ends_with("serves Firefox Sync at /sync"), "{second}");

    let (status, text) = get(couch, "/sync/__heartbeat__").await;
    assert!(status == 200 && text.contains(r#""status":"Ok""#), "{status} {text}");
    assert_eq!(get(couch, "/sync/1.5/1/info/collections").await, (401, "0".to_owned()));
    let (status, text) = get(couch, "/sync/").await;
    assert!(status == 200 && text.contains(&format!("{couch}/sync/1.0/sync/1.5")), "{text}");
    assert_eq!(get(couch, "/sync/_all_docs").await.0, 404);
    assert_eq!(get(couch, "/_all_dbs").await.0, 200);
    let (status, text) = get(couch, "/synced").await;
    assert!(status == 404 && text.contains(r#""error":"not_found""#), "{text}");
    let (_, metrics) = get(couch, "/metrics").await;
    let unsigned = r#"flatbed_requests_total{route="/1.5/{uid}/info/collections",method="GET",status="401",surface="syncstorage"} 1"#;
    assert!(metrics.contains(unsigned), "{metrics}");

    signal(child.id(), "TERM");
    assert!(child.wait().unwrap().success());
}
