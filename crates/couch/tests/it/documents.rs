//! Documents over HTTP beyond CouchDB's recorded answers: headers and encodings.

use std::io::Write;

use super::{serve_database, store};
use crate::support::{ServerOptions, soon};
use serde_json::json;
use tokio::io::AsyncWriteExt;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn encodings_of_bodies() {
    let Some(server) = serve_database().await else { return };
    // One connection, so an unread body would corrupt the next answer.
    let mut client = server.connect().await;
    let compressed = [("content-encoding", "gzip")];
    assert_eq!(client.call("PUT", "/db/gzip", &compressed, &gzip(br#"{"a":1}"#)).await.status, 201);
    assert_eq!(client.call("PUT", "/db/none", &compressed, b"{}").await.status, 400);
    let cut = &gzip(br#"{"a":1}"#)[..15];
    assert_eq!(client.call("PUT", "/db/none", &compressed, cut).await.status, 400);
    let other = client.call("PUT", "/db/none", &[("content-encoding", "br")], b"{}").await;
    assert_eq!((other.status, other.text("error").as_str()), (415, "bad_content_type"));
    client.send("PUT", "/db/chunked", &[("transfer-encoding", "chunked")], b"").await;
    client.stream.write_all(b"3\r\n{\"b\r\n4\r\n\":2}\r\n0\r\n\r\n").await.unwrap();
    let head = soon(client.head()).await;
    assert_eq!(head.status, 201, "{head:?}");
    drop(client);
    assert_eq!(server.call("GET", "/db/gzip", "").await.json()["a"], 1);
    assert_eq!(server.call("GET", "/db/chunked", "").await.json()["b"], 2);
    assert_eq!(server.call("GET", "/db/none", "").await.status, 404);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_that_is_put() {
    let Some(server) = serve_database().await else { return };
    let rev = server.call("PUT", "/db/d", "{}").await.text("rev");
    let deleted = server.call("PUT", "/db/d", &format!(r#"{{"_rev":"{rev}","_deleted":true,"why":1}}"#)).await;
    // CouchDB answers a DELETE with the `location` of a PUT.
    assert_eq!((deleted.status, deleted.header("location")), (200, Some("http://localhost/db/d")), "{deleted:?}");
    assert_eq!(deleted.header("etag"), Some(format!("\"{}\"", deleted.text("rev")).as_str()));
    assert_eq!(server.call("GET", "/db/d", "").await.status, 404);
    let tombstone = server.call("GET", &format!("/db/d?rev={}", deleted.text("rev")), "").await;
    assert_eq!(tombstone.json()["why"], 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bombs_and_bodies_that_are_too_large() {
    let Some(store) = store() else { return };
    let options = ServerOptions { body_bytes_max: 1_000_000, body_memory_bytes: 3_000_000, ..ServerOptions::default() };
    let server = store.serve(options).await;
    server.call("PUT", "/db", "").await;
    let bomb = gzip(format!("{{\"a\":\"{}\"}}", "x".repeat(20_000_000)).as_bytes());
    for (headers, body) in [
        (&[("content-encoding", "gzip")][..], bomb),
        (&[], format!("{{\"a\":\"{}\"}}", "x".repeat(1_100_000)).into_bytes()),
        // Small as text, large as a tree.
        (&[], format!("{{\"a\":[{}0]}}", "0,".repeat(100_000)).into_bytes()),
    ] {
        let answer = server.connect().await.call("PUT", "/db/d", headers, &body).await;
        assert_eq!((answer.status, answer.text("error").as_str()), (413, "too_large"));
    }
    assert_eq!(server.call("PUT", "/db/d", r#"{"a":[0]}"#).await.status, 201);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_and_places() {
    let Some(server) = serve_database().await else { return };
    let mut client = server.connect().await;
    let made = client.call("PUT", "/db/_design%2Fx", &[("x-forwarded-proto", "https")], b"{}").await;
    assert_eq!((made.status, made.header("location")), (201, Some("https://localhost/db/_design%2Fx")));
    for method in ["GET", "HEAD"] {
        let moved = client.call(method, "/db/_design%2Fx?revs=true", &[], b"").await;
        assert_eq!((moved.status, moved.header("location")), (301, Some("http://localhost/db/_design/x?revs=true")));
    }
    let read = client.call("GET", "//db//_design/x/", &[], b"").await;
    let etag = read.header("etag").unwrap().to_owned();
    assert_eq!(read.status, 200);
    for tag in [etag.clone(), format!("\"1-x\", W/{etag}")] {
        assert_eq!(client.call("GET", "/db/_design/x", &[("if-none-match", &tag)], b"").await.status, 304);
    }
    let feed = client.call("GET", "/db/_changes", &[], b"").await;
    let etag = feed.header("etag").unwrap().to_owned();
    assert_eq!(client.call("GET", "/db/_changes", &[("if-none-match", &etag)], b"").await.status, 304);
    assert_eq!(client.call("PUT", "/db/d", &[], b"{}").await.status, 201);
    assert_eq!(client.call("GET", "/db/_changes", &[("if-none-match", &etag)], b"").await.status, 200);
    let head = client.call("HEAD", "/db/d", &[], b"").await;
    let whole = client.call("GET", "/db/d", &[], b"").await;
    assert_eq!(head.header("content-length"), whole.header("content-length"));
    let form = [("referer", "http://localhost/"), ("content-type", "text/plain")];
    assert_eq!(client.call("POST", "/db/d", &form, b"x").await.status, 415);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_answers_come_whole() {
    let Some(server) = serve_database().await else { return };
    let long = "x".repeat(3_000_000);
    for id in ["a", "b", "c"] {
        assert_eq!(server.call("PUT", &format!("/db/{id}"), &format!("{{\"long\":\"{long}\"}}")).await.status, 201);
    }
    let read = server.call("GET", "/db/a", "").await;
    assert!(read.header("content-length").is_some());
    assert_eq!(read.text("long"), long);
    let keys = r#"{"keys":["a","none","b","c","a"]}"#;
    let rows = server.call("POST", "/db/_all_docs?include_docs=true", keys).await.json();
    let lengths: Vec<usize> =
        rows["rows"].as_array().unwrap().iter().map(|row| row["doc"]["long"].as_str().map_or(0, str::len)).collect();
    assert_eq!(lengths, [3_000_000, 0, 3_000_000, 3_000_000, 3_000_000]);
    let short = &long[..100_000];
    server.call("PUT", "/db/short", &format!("{{\"long\":\"{short}\"}}")).await;
    let wanted = ["short"; 20].map(|id| format!("{{\"id\":\"{id}\"}}")).join(",");
    let wanted = format!("{{\"docs\":[{wanted},{{\"id\":\"none\"}},{{\"id\":\"a\"}}]}}");
    let answer = server.call("POST", "/db/_bulk_get", &wanted).await;
    assert_eq!(answer.header("transfer-encoding"), Some("chunked"));
    let results = answer.json()["results"].clone();
    let lengths: Vec<usize> = results
        .as_array()
        .unwrap()
        .iter()
        .map(|result| result["docs"][0]["ok"]["long"].as_str().map_or(0, str::len))
        .collect();
    assert_eq!(lengths, [&[100_000; 20][..], &[0, 3_000_000]].concat());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bulk_get_of_tombstones_ancestors_and_nonsense() {
    let Some(server) = serve_database().await else { return };
    let first = server.call("PUT", "/db/live", r#"{"n":1}"#).await.text("rev");
    let second = server.call("PUT", &format!("/db/live?rev={first}"), r#"{"n":2}"#).await.text("rev");
    let gone = server.call("PUT", "/db/gone", "{}").await.text("rev");
    let tombstone = server.call("DELETE", &format!("/db/gone?rev={gone}"), "").await.text("rev");
    let wanted = format!(
        r#"{{"docs":[{{"id":"gone"}},{{"id":"live","rev":"{first}"}},{{"id":"live","rev":"9-x"}},{{"id":"live","rev":"x"}},{{"rev":"1-a"}},7]}}"#
    );
    let read = async |path: &str| server.call("POST", path, &wanted).await.json()["results"].clone();
    let plain = read("/db/_bulk_get").await;
    assert_eq!(plain[0]["docs"][0]["ok"]["_rev"], tombstone.as_str());
    assert_eq!(plain[0]["docs"][0]["ok"]["_deleted"], true);
    assert_eq!(plain[1]["docs"][0]["ok"]["n"], 1);
    assert_eq!(plain[2]["docs"][0]["error"]["reason"], "missing");
    assert_eq!(plain[3]["docs"][0]["error"]["reason"], "Invalid rev format");
    assert_eq!(plain[4]["docs"][0]["error"]["reason"], "document must be a JSON object");
    assert_eq!(plain[5]["id"], serde_json::Value::Null);
    let latest = read("/db/_bulk_get?latest=true").await;
    assert_eq!(latest[1]["docs"][0]["ok"]["_rev"], second.as_str());
    assert_eq!(latest[1]["docs"][0]["ok"]["_revisions"], serde_json::Value::Null);
    assert_eq!(latest[2]["docs"][0]["error"]["reason"], "missing");
    let revs = read("/db/_bulk_get?latest=true&revs=true").await;
    assert_eq!(revs[1]["docs"][0]["ok"]["_revisions"]["start"], 2);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_goes_on_when_its_client_hangs_up() {
    let Some(server) = serve_database().await else { return };
    for number in 0..20 {
        let mut client = server.connect().await;
        let headers = [("expect", "100-continue"), ("content-length", "2")];
        client.send("PUT", &format!("/db/{number}"), &headers, b"").await;
        // The handler runs and waits for the body.
        assert_eq!(soon(client.head()).await.status, 100);
        client.stream.write_all(b"{}").await.unwrap();
    }
    soon(async {
        while server.call("GET", "/db", "").await.json()["doc_count"] != 20 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_yet_says_so() {
    let Some(server) = serve_database().await else { return };
    server.call("PUT", "/parts?partitioned=true", "").await;
    // Design documents with full-text indexes are stored.
    let design = r#"{"indexes":{"x":{"analyzer":"standard","index":"function (doc) {}"}},
        "nouveau":{"x":{"default_analyzer":"keyword","index":"function (doc) {}"}}}"#;
    for name in ["db", "parts"] {
        assert_eq!(server.call("PUT", &format!("/{name}/_design/d"), design).await.status, 201, "{name}");
        let stored = server.call("GET", &format!("/{name}/_design/d"), "").await.json();
        assert_eq!(stored["indexes"]["x"]["analyzer"], "standard", "{stored}");
    }
    let missing = "/_design/d/_search/x /_design/d/_search/x?q=*:* /_design/d/_search /_design/d/_search_info/x \
        /_design/d/_search_disk_size/x /_design/d/_nouveau/x /_design/d/_nouveau_info/x /_design/none/_nouveau/x \
        /_search_cleanup /_nouveau_cleanup /_shards";
    let missing = missing.split_whitespace().flat_map(|path| [format!("/db{path}"), format!("/parts{path}")]);
    let of_server = ["/_search_analyze", "/_nouveau_analyze"].map(str::to_owned);
    let of_partition = ["_search", "_nouveau"].map(|kind| format!("/parts/_partition/p/_design/d/{kind}/x?q=*:*"));
    for path in missing.chain(of_server).chain(of_partition) {
        for (method, body) in [("GET", ""), ("POST", "{}")] {
            let answer = server.call(method, &path, body).await;
            assert_eq!((answer.status, answer.text("error").as_str()), (501, "not_implemented"), "{method} {path}");
        }
    }
    assert_eq!(server.call("PUT", "/db/d", r#"{"_attachments":{}}"#).await.status, 201);
    server.stop().await;
}

/// As in CouchDB, documents and the revisions of missing documents keep the request's order; other revisions ascend.
#[tokio::test(flavor = "multi_thread")]
async fn missing_revisions_keep_their_order() {
    let Some(server) = serve_database().await else { return };
    let rev = server.call("PUT", "/db/there", "{}").await.text("rev");
    let asked = r#"{"z":["3-b","1-a","2-c"],"there":["3-b","1-a"],"a":["2-d","2-a"]}"#;
    let there = format!(r#""there":{{"missing":["1-a","3-b"],"possible_ancestors":["{rev}"]}}"#);
    let expected = format!(r#"{{"z":{{"missing":["3-b","1-a","2-c"]}},{there},"a":{{"missing":["2-d","2-a"]}}}}"#);
    assert_eq!(server.call("POST", "/db/_revs_diff", asked).await.body.trim_end(), expected);
    let expected = r#"{"missing_revs":{"z":["3-b","1-a","2-c"],"there":["1-a","3-b"],"a":["2-d","2-a"]}}"#;
    assert_eq!(server.call("POST", "/db/_missing_revs", asked).await.body.trim_end(), expected);
    server.stop().await;
}

/// As in CouchDB, the last of repeated members counts, in any spelling, for checks and for the write.
#[tokio::test(flavor = "multi_thread")]
async fn of_members_that_stand_twice_the_last_counts() {
    let Some(server) = serve_database().await else { return };
    let get = async |path: &str| server.call("GET", path, "").await.json();
    assert_eq!(server.call("PUT", "/db/x", r#"{"_id":"y","_id":"x","a":1,"a":2}"#).await.status, 201);
    assert_eq!(get("/db/x").await["a"], 2);
    assert_eq!(server.call("POST", "/db", r#"{"_id":"p","\u005fid":"q"}"#).await.text("id"), "q");
    let rows = r#"{"docs":[{"_id":"r","\u005fid":"s"},{"\u005fid":"t","_id":"u","_deleted":true,"_deleted":false}]}"#;
    let rows = server.call("POST", "/db/_bulk_docs", rows).await.json();
    assert_eq!((rows[0]["id"].as_str(), rows[1]["id"].as_str()), (Some("s"), Some("u")), "{rows}");
    for (id, status) in [("p", 404), ("q", 200), ("r", 404), ("s", 200), ("t", 404), ("u", 200)] {
        assert_eq!(server.call("GET", &format!("/db/{id}"), "").await.status, status, "{id}");
    }
    let rev = get("/db/x").await["_rev"].as_str().unwrap().to_owned();
    let other = format!("1-{:032x}", 7);
    let twice = |first: &str, last: &str| format!(r#"{{"_rev":"{first}","\u005frev":"{last}","n":1}}"#);
    assert_eq!(server.call("PUT", "/db/x", &twice(&rev, &other)).await.status, 409);
    assert_eq!(server.call("PUT", "/db/x", &twice(&other, &rev)).await.status, 201);
    let replicated = r#"{"new_edits":false,"new_edits":true,"new_edits":false,"docs":[
        {"_id":"v","_rev":"2-a","_rev":"2-b","_revisions":{"start":2,"ids":["a","c"]},
         "\u005frevisions":{"start":2,"start":2,"ids":["a","c"],"ids":["b","d"]}}]}"#;
    assert_eq!(server.call("POST", "/db/_bulk_docs", replicated).await.json(), serde_json::json!([]));
    let found = get("/db/v?revs=true").await;
    assert_eq!((found["_rev"].as_str(), found["_revisions"]["ids"][1].as_str()), (Some("2-b"), Some("d")), "{found}");
    let attached = r#"{"_attachments":{"a":{"data":"YQ=="}},
        "_attachments":{"b":{"data":"YQ==","data":"YmI="},"\u0062":{"data":"YmJi"}}}"#;
    assert_eq!(server.call("PUT", "/db/w", attached).await.status, 201);
    let stubs = get("/db/w").await["_attachments"].clone();
    assert_eq!((stubs.as_object().unwrap().len(), stubs["b"]["length"].as_u64()), (1, Some(3)), "{stubs}");
    server.stop().await;
}

/// The query string and the headers may name a replicated revision, as they name an edit's parent.
#[tokio::test(flavor = "multi_thread")]
async fn a_revision_of_another_replica_in_the_line() {
    let Some(server) = serve_database().await else { return };
    let mut client = server.connect().await;
    let related = [("content-type", "multipart/related; boundary=\"abc\"")];
    let parts = b"--abc\r\nContent-Type: application/json\r\n\r\n{\"_attachments\":{\"a\":{\"follows\":true}}}\r\n\
        --abc\r\n\r\none\r\n--abc--";
    let tagged = [("if-match", "\"2-b\"")];
    let history = br#"{"_revisions":{"start":2,"ids":["b","a"]}}"#;
    for (path, headers, body, rev) in [
        ("/db/line?new_edits=false&rev=3-c", &[][..], &br#"{"v":1}"#[..], "3-c"),
        ("/db/header?new_edits=false", &tagged, br#"{"v":1}"#, "2-b"),
        ("/db/parts?new_edits=false&rev=3-c", &related, parts, "3-c"),
        ("/db/both?new_edits=false&rev=2-b", &[], br#"{"_rev":"2-b"}"#, "2-b"),
        ("/db/history?new_edits=false&rev=2-b", &[], history, "2-b"),
    ] {
        let made = client.call("PUT", path, headers, body).await;
        assert_eq!((made.status, made.json()["rev"].as_str()), (201, Some(rev)), "{path}: {made:?}");
        let path = path.split('?').next().expect("a path");
        let found = client.call("GET", &format!("{path}?revs=true"), &[], b"").await;
        assert_eq!(found.text("_rev"), rev, "{found:?}");
        assert_eq!(found.json()["_revisions"]["start"], rev[..1].parse::<u64>().unwrap());
    }
    let data = client.call("GET", "/db/parts/a", &[], b"").await;
    assert_eq!((data.status, data.body.as_str()), (200, "one"));
    let differ = "Document rev from request body and query string have different values";
    let by_tag = "Document rev and etag have different values";
    let none = "When `new_edits: false`, the document needs `_rev` or `_revisions` specified";
    for (path, headers, body, reason) in [
        ("/db/none?new_edits=false&rev=3-c", &[][..], &br#"{"_rev":"3-d"}"#[..], differ),
        ("/db/none?new_edits=false&rev=3-c", &[], history, differ),
        ("/db/none", &tagged, br#"{"_rev":"2-d"}"#, by_tag),
        ("/db/none?rev=2-c", &tagged, b"{}", by_tag),
        ("/db/none?new_edits=false", &[], b"{}", none),
        ("/db/none?new_edits=false", &related, parts, none),
        ("/db/none?new_edits=false&rev=c", &related, parts, "Invalid rev format"),
    ] {
        let refused = server.connect().await.call("PUT", path, headers, body).await;
        assert_eq!((refused.status, refused.text("reason").as_str()), (400, reason), "{path}");
    }
    assert_eq!(server.call("GET", "/db/none", "").await.status, 404);
    server.stop().await;
}

/// As in CouchDB, a local document is copied like any other document.
#[tokio::test(flavor = "multi_thread")]
async fn copies_from_and_to_local_documents() {
    let Some(server) = serve_database().await else { return };
    server.ok("PUT", "/db/_local/a", json!({"v": 1})).await;
    server.ok("PUT", "/db/attached", json!({"v": 2, "_attachments": {"a": {"data": ""}}})).await;
    let mut client = server.connect().await;
    let rev = "1-7a7e4b29f3af401e69b6f86e4c26b727";
    let onto = format!("made?rev={rev}");
    for (from, to, id, rev) in [
        ("_local/a", "made", "made", rev),
        ("made", "_local/b", "_local/b", "0-1"),
        ("made", "_local/b?rev=0-1", "_local/b", "0-2"),
        ("_local/a", "_local%2Fc", "_local/c", "0-1"),
        ("attached", "_local/d", "_local/d", "0-1"),
    ] {
        let copied = client.call("COPY", &format!("/db/{from}"), &[("destination", to)], b"").await;
        assert_eq!((copied.status, copied.text("id"), copied.text("rev")), (201, id.into(), rev.into()), "{to}");
        assert_eq!(copied.header("etag"), Some(format!("\"{rev}\"").as_str()));
        let place = copied.header("location").expect("a place");
        assert_eq!(place, format!("http://localhost/db/{}", id.replace('/', "%2F")));
        let found = client.call("GET", &format!("/db/{id}"), &[], b"").await.json();
        let value = if from == "attached" { 2 } else { 1 };
        assert_eq!(found, json!({"_id": id, "_rev": rev, "v": value}));
    }
    for (from, to, status) in [
        ("_local/a", "made", 409),
        ("_local/a", onto.as_str(), 201),
        ("_local/none", "other", 404),
        ("made", "_local/", 400),
        ("made", "_local/b?rev=0-x", 400),
        ("_local/a", "_other", 400),
    ] {
        let copied = client.call("COPY", &format!("/db/{from}"), &[("destination", to)], b"").await;
        assert_eq!(copied.status, status, "{from} to {to}: {copied:?}");
    }
    assert_eq!(client.call("COPY", "/db/_local/a", &[], b"").await.status, 400);
    for path in ["/db/_local", "/db/_local/", "/db/_local%2F"] {
        for (method, body) in [("GET", &b""[..]), ("PUT", b"{}")] {
            let refused = client.call(method, path, &[], body).await;
            let told = (refused.status, refused.text("error"), refused.text("reason"));
            assert_eq!(told, (400, "bad_request".into(), "Invalid _local document id.".into()), "{method} {path}");
        }
    }
    server.stop().await;
}

/// CouchDB looks up the named parent of a first edit only if it validates the edit. Otherwise the parent becomes a
/// missing ancestor.
#[tokio::test(flavor = "multi_thread")]
async fn a_revision_of_no_document() {
    let Some(server) = serve_database().await else { return };
    server.call("PUT", "/_users", "").await;
    let rev = "1-967a00dff5e02add41819138abb3284d";
    let bare = json!({"_rev": rev});
    let attached = json!({"_rev": rev, "_attachments": {"a": {"data": ""}}});
    let user = json!({"_rev": rev, "name": "x", "type": "user", "roles": []});
    for (path, body) in [
        ("/db/_design/d", &bare),
        ("/db/attached", &attached),
        ("/db/text", &json!({"_rev": "1-text"})),
        ("/_users/org.couchdb.user:x", &user),
    ] {
        let (status, answer) = server.json("PUT", path, body.clone()).await;
        assert_eq!((status, &answer["error"]), (409, &json!("conflict")), "{path}: {answer}");
        assert_eq!(server.call("GET", path, "").await.status, 404, "{path}");
    }
    let stub = json!({"_rev": rev, "_attachments": {"a": {"stub": true}}});
    assert_eq!(server.json("PUT", "/db/stub", stub).await.0, 412);
    let (status, answer) = server.json("PUT", "/db/bare", bare.clone()).await;
    assert_eq!((status, &answer["rev"]), (201, &json!("2-7051cbe5c8faecd085a3fa619e6e6337")), "{answer}");
    server.ok("PUT", "/db/_design/v", json!({"validate_doc_update": "function () {}"})).await;
    assert_eq!(server.json("PUT", "/db/judged", bare.clone()).await.0, 409);
    let (_, rows) = server.json("POST", "/db/_bulk_docs", json!({"docs": [{"_id": "judged", "_rev": rev}]})).await;
    assert_eq!(rows[0]["error"], "conflict", "{rows}");
    assert_eq!(server.call("GET", "/db/judged", "").await.status, 404);
    // A document with a generated id has no earlier revision.
    for named in [rev, "1-text"] {
        let (status, answer) = server.json("POST", "/db", json!({"_rev": named})).await;
        assert_eq!((status, &answer["rev"]), (201, &json!("1-967a00dff5e02add41819138abb3284d")), "{answer}");
    }
    assert_eq!(server.json("POST", "/db", json!({"_rev": "none"})).await.0, 400);
    server.stop().await;
}

/// `shards` is Flatbed's. `q` is CouchDB's hint: it is stored and shown, without effect.
#[tokio::test(flavor = "multi_thread")]
async fn shards_are_chosen_when_a_database_is_created() {
    let Some(store) = store() else { return };
    let server = store.serve(ServerOptions::default()).await;
    for (name, query, shards) in
        [("plain", "", 1), ("hinted", "?q=16&n=3", 16), ("one", "?shards=1&q=8", 1), ("four", "?shards=4&q=2", 4)]
    {
        assert_eq!(server.call("PUT", &format!("/{name}{query}"), "").await.status, 201);
        let info = server.call("GET", &format!("/{name}"), "").await.json();
        assert_eq!(info["cluster"], json!({"q": shards, "n": 1, "w": 1, "r": 1}), "{name}");
        assert_eq!(info["props"], json!({"run_bytes": 8000}));
    }
    for hint in ["q=0", "q=x", "q=65536", "n=0"] {
        assert_eq!(server.call("PUT", &format!("/other?{hint}"), "").await.status, 400, "{hint}");
    }
    for (shards, error) in [("0", "bad_request"), ("65", "bad_request"), ("-1", "query_parse_error")] {
        let refused = server.call("PUT", &format!("/other?shards={shards}"), "").await;
        assert_eq!((refused.status, refused.text("error").as_str()), (400, error), "{shards}");
    }
    server.call("PUT", "/four/d", "{}").await;
    let changes = server.call("GET", "/four/_changes", "").await.json();
    let info = server.call("GET", "/four", "").await.json();
    assert_eq!((&changes["results"][0]["id"], &changes["last_seq"]), (&json!("d"), &info["update_seq"]));
    assert_eq!((&changes["pending"], &info["doc_count"]), (&json!(0), &json!(1)));
    server.stop().await;
}
