//! A follower on `feed=continuous`: every document once and in order under 16 writers, no reads while it waits, and no
//! loss over a restart of the server.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use crate::support::{Server, call, counters, faults, lines};
use flatbed_client::{Connection, Lines, Url};
use flatbed_testkit::{pass, soon, until};
use hyper::Method;
use serde_json::Value;

const WRITERS: u64 = 16;
const DOCUMENTS_EACH: u64 = 60;

/// Returns the next row, skipping heartbeats. `None`: the feed has ended.
async fn row(feed: &mut Lines) -> Option<Value> {
    loop {
        let line = feed.next().await.ok()??;
        if !line.is_empty() {
            return Some(serde_json::from_slice(&line).expect("a row is JSON"));
        }
    }
}

fn text(row: &Value, name: &str) -> String {
    row[name].as_str().unwrap_or_else(|| panic!("{name} of {row}")).to_owned()
}

/// Writes its own documents, every third one twice.
async fn write(url: Url, writer: u64) {
    let mut connection = Connection::open(&url).await.expect("the server answers");
    for number in 0..DOCUMENTS_EACH {
        let path = format!("/feed/{writer}-{number}");
        let (status, made) = call(&mut connection, Method::PUT, &path, "{\"n\":1}").await;
        assert_eq!(status, 201, "{made}");
        if number % 3 == 0 {
            let body = format!("{{\"_rev\":{},\"n\":2}}", made["rev"]);
            assert_eq!(call(&mut connection, Method::PUT, &path, &body).await.0, 201);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_misses_nothing() {
    follow(None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_misses_nothing_under_faults() {
    follow(faults()).await;
}

async fn follow(faults: Option<String>) {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start_under(&faults, directory.path());
    call(&mut server.connect().await, Method::PUT, "/feed", "").await;
    let mut feed = lines(&server, "/feed/_changes?feed=continuous&since=0&include_docs=true&heartbeat=10000").await;
    let writers: Vec<_> = (0..WRITERS).map(|writer| tokio::spawn(write(server.url.clone(), writer))).collect();

    // As in CouchDB, a document that is written twice may appear only at its second revision; never twice at one.
    let mut seen: HashMap<String, Vec<String>> = HashMap::new();
    let mut last = String::new();
    let finished = |seen: &HashMap<String, Vec<String>>| {
        seen.len() as u64 == WRITERS * DOCUMENTS_EACH
            && seen.iter().all(|(id, revs)| {
                let number: u64 = id.rsplit('-').next().and_then(|n| n.parse().ok()).expect("a number");
                revs.last().is_some_and(|rev| rev.starts_with(if number.is_multiple_of(3) { "2-" } else { "1-" }))
            })
    };
    while !finished(&seen) {
        let row = soon(row(&mut feed)).await.expect("the feed stays open");
        let (seq, id, rev) = (text(&row, "seq"), text(&row, "id"), text(&row["changes"][0], "rev"));
        assert!(seq > last, "{seq} comes after {last}");
        assert_eq!(row["doc"]["_rev"], *rev, "the document is the one of its row");
        let revs = seen.entry(id).or_default();
        assert!(revs.last().is_none_or(|before| *before < rev), "{row} after {revs:?}");
        revs.push(rev);
        last = seq;
    }
    for writer in writers {
        writer.await.expect("a writer is done");
    }

    if faults.is_some() {
        assert!(
            counters(&server, "faults_injected_total{kind=\"not_committed\"}").await > 0.0,
            "no faults were injected"
        );
    } else {
        // Without writes, a follower that waits for the watch reads nothing. Its rights are checked each 600 ms, in one
        // transaction for all followers of a process; safety rereads may fall in here. Background work after the writes
        // ends after some time.
        until("an idle feed reads nothing", async || {
            let (began, before) = (Instant::now(), counters(&server, "transactions").await);
            pass(Duration::from_secs(3)).await;
            let transactions = counters(&server, "transactions").await - before;
            let took = began.elapsed().as_secs_f64();
            println!("{transactions} transactions in {took} s of an idle feed");
            transactions <= took / 0.6 + 4.0
        })
        .await;
    }

    // One write wakes it.
    let (_, made) = call(&mut server.connect().await, Method::PUT, "/feed/one-more", "{}").await;
    let woken = soon(row(&mut feed)).await.expect("the feed stays open");
    assert_eq!((text(&woken, "id"), text(&woken["changes"][0], "rev")), ("one-more".into(), text(&made, "rev")));
    last = text(&woken, "seq");

    // The server stops, and the feed ends with it; another server takes its place.
    assert!(server.stop(), "an open feed does not hold the server up");
    while let Some(end) = soon(row(&mut feed)).await {
        assert_eq!(text(&end, "last_seq"), last, "only the end is reported");
    }
    let server = Server::start_under(&faults, directory.path());
    let mut connection = server.connect().await;
    for number in 0..50 {
        assert_eq!(call(&mut connection, Method::PUT, &format!("/feed/later-{number}"), "{}").await.0, 201);
    }
    let mut feed = lines(&server, &format!("/feed/_changes?feed=continuous&since={last}&heartbeat=10000")).await;
    for number in 0..50 {
        let row = soon(row(&mut feed)).await.expect("the feed stays open");
        assert_eq!(text(&row, "id"), format!("later-{number}"), "nothing is lost and nothing comes twice");
    }
    drop(feed);
    assert!(server.stop());
}
