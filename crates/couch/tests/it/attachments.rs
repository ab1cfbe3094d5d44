//! Attachments over HTTP beyond CouchDB's recorded answers: ranges, encodings, digests, lengths, names.

use std::io::{Read, Write};

use crate::support::{Answer, Client, Running, Store, soon};
use serde_json::Value;
use tokio::io::AsyncWriteExt;

const KIND: (&str, &str) = ("content-type", "a/b");

async fn serve() -> (Running, Client) {
    let server = Store::new().serve_database().await;
    let client = server.connect().await;
    (server, client)
}

async fn get(client: &mut Client, path: &str, headers: &[(&str, &str)]) -> (Answer, Vec<u8>) {
    client.send("GET", path, headers, b"").await;
    let head = soon(client.head()).await;
    let length = head.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let bytes = if head.status == 304 { Vec::new() } else { soon(client.bytes(length)).await };
    (head, bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges() {
    let (server, mut client) = serve().await;
    // Spans several chunks.
    let data: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
    assert_eq!(client.call("PUT", "/db/d/a", &[KIND], &data).await.status, 201);
    let (whole, bytes) = get(&mut client, "/db/d/a", &[]).await;
    assert_eq!((whole.status, whole.header("accept-ranges"), bytes == data), (200, Some("bytes"), true));
    for (range, first, last) in [
        ("bytes=0-0", 0, 0),
        ("bytes=0-9", 0, 9),
        ("bytes=89990-90010", 89_990, 90_010),
        ("bytes=90000-90000", 90_000, 90_000),
        ("bytes=199999-", 199_999, 199_999),
        ("bytes=1-", 1, 199_999),
        ("bytes=-1", 199_999, 199_999),
        ("bytes=-300000", 0, 199_999),
        ("bytes=199990-18446744073709551615", 199_990, 199_999),
        (" bytes= 5 - 7 ", 5, 7),
    ] {
        let (answer, bytes) = get(&mut client, "/db/d/a", &[("range", range)]).await;
        assert_eq!(answer.status, 206, "{range}");
        assert_eq!(answer.header("content-range"), Some(format!("bytes {first}-{last}/200000").as_str()));
        assert!(bytes == data[first..=last], "{range}: {} bytes", bytes.len());
        let head = client.call("HEAD", "/db/d/a", &[("range", range)], b"").await;
        assert_eq!((head.status, head.header("content-length")), (206, answer.header("content-length")));
    }
    for range in ["bytes=200000-", "bytes=200000-200001", "bytes=5-3", "bytes=-0", "bytes=18446744073709551615-"] {
        let answer = client.call("GET", "/db/d/a", &[("range", range)], b"").await;
        assert_eq!((answer.status, answer.text("error").as_str()), (416, "requested_range_not_satisfiable"), "{range}");
    }
    // RFC 9110 allows ignoring everything but a single range.
    for range in ["bytes=0-", "bytes=0-1,5-6", "bytes=x-y", "bytes=-", "bytes=", "lines=0-1", "bytes=1--2", "0-1"] {
        let (answer, bytes) = get(&mut client, "/db/d/a", &[("range", range)]).await;
        assert_eq!((answer.status, bytes == data), (200, true), "{range}");
    }
    let empty = client.call("PUT", "/db/e/a", &[KIND, ("content-length", "0")], b"").await;
    assert_eq!(empty.status, 201);
    assert_eq!(client.call("GET", "/db/e/a", &[("range", "bytes=-5")], b"").await.status, 416);
    server.stop().await;
}

/// Sizes of a database and of a partition include attachments, and `sizes.file` is at least `sizes.active`.
#[tokio::test(flavor = "multi_thread")]
async fn sizes() {
    let (server, mut client) = serve().await;
    assert_eq!(server.call("PUT", "/parts?partitioned=true", "").await.status, 201);
    let bytes = vec![b'x'; 100_000];
    for (database, id, of) in [("db", "d", "/db"), ("parts", "p:d", "/parts/_partition/p")] {
        let path = format!("/{database}/{id}/a");
        assert_eq!(soon(client.call("PUT", &path, &[KIND], &bytes)).await.status, 201, "{path}");
        let external = server.call("GET", of, "").await.json()["sizes"]["external"].as_u64().unwrap();
        assert!((100_000..101_000).contains(&external), "{of}: {external}");
        let sizes = server.call("GET", &format!("/{database}"), "").await.json()["sizes"].clone();
        assert!(sizes["file"].as_u64() >= sizes["active"].as_u64() && sizes["external"] == external, "{sizes}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn encodings_and_tags() {
    let (server, mut client) = serve().await;
    let text = "words ".repeat(50_000);
    let kind = ("content-type", "text/plain;charset=utf-8");
    assert_eq!(client.call("PUT", "/db/d/t", &[kind], text.as_bytes()).await.status, 201);
    // Compressed by the client, of a type that the server does not compress; 1 MB becomes about 1 kB.
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(&vec![0; 5_000_000]).unwrap();
    let sent = encoder.finish().unwrap();
    let encoding = ("content-encoding", "gzip");
    assert_eq!(client.call("PUT", "/db/e/z", &[KIND, encoding], &sent).await.status, 201);
    for (accepted, is_gzip) in [
        ("gzip", true),
        ("deflate, GZip;q=0.5", true),
        ("identity", false),
        ("gzip;q=0", false),
        ("gzip; q=0.0, identity", false),
        ("x-gzip", false),
        ("", false),
    ] {
        for (path, plain) in [("/db/d/t", text.as_bytes()), ("/db/e/z", &[0; 5_000_000])] {
            let (answer, bytes) = get(&mut client, path, &[("accept-encoding", accepted)]).await;
            assert_eq!((answer.status, answer.header("accept-ranges")), (200, Some("none")));
            assert_eq!(answer.header("content-encoding"), is_gzip.then_some("gzip"), "{accepted}");
            let mut shown = Vec::new();
            match is_gzip {
                true => drop(flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut shown).unwrap()),
                false => shown = bytes,
            }
            assert!(shown == plain, "{path} {accepted}: {} bytes", shown.len());
        }
    }
    // Returned byte for byte. Ranges would apply to the uncompressed bytes, which are not stored, so there are none.
    assert!(get(&mut client, "/db/e/z", &[("accept-encoding", "gzip")]).await.1 == sent);
    assert_eq!(get(&mut client, "/db/e/z", &[("range", "bytes=0-1")]).await.0.status, 200);
    let document = client.call("GET", "/db/e?att_encoding_info=true", &[], b"").await.json();
    let stub = &document["_attachments"]["z"];
    assert_eq!((&stub["length"], &stub["encoding"]), (&5_000_000.into(), &"gzip".into()));
    assert_eq!(stub["encoded_length"], sent.len());
    // Data declared as gzip must be complete gzip.
    for body in [&b"no gzip"[..], &sent[..sent.len() - 9]] {
        let answer = client.call("PUT", "/db/f/z", &[KIND, encoding], body).await;
        assert_eq!((answer.status, answer.text("error").as_str()), (400, "bad_request"), "{answer:?}");
    }
    let other = client.call("PUT", "/db/f/z", &[KIND, ("content-encoding", "br")], b"x").await;
    assert_eq!((other.status, other.text("error").as_str()), (415, "bad_ctype"));
    // The entity tag is the digest, so equal data has an equal tag under any name.
    let tag = get(&mut client, "/db/d/t", &[]).await.0.header("etag").expect("a tag").to_owned();
    assert_eq!(document["_attachments"]["z"]["digest"].as_str().map(|digest| digest.len()), Some(28));
    client.call("PUT", "/db/g/other", &[kind], text.as_bytes()).await;
    for path in ["/db/d/t", "/db/g/other"] {
        for (sent, status) in [
            (tag.clone(), 304),
            (format!("W/{tag}"), 304),
            (format!("\"x\", {tag}"), 304),
            ("\"x\"".to_owned(), 200),
            (tag.trim_matches('"').to_owned(), 200),
        ] {
            let (answer, _) = get(&mut client, path, &[("if-none-match", &sent)]).await;
            assert_eq!((answer.status, answer.header("etag")), (status, Some(tag.as_str())), "{sent}");
        }
    }
    server.stop_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn digests_and_lengths() {
    let (server, mut client) = serve().await;
    let right = ("content-md5", "3/Qdo/KAkeYaLZQbpSGL2A==");
    let wrong = client.call("PUT", "/db/d/a", &[KIND, ("content-md5", "rL0Y20zC+Fzt72VPzMSk2A==")], b"data!").await;
    assert_eq!((wrong.status, wrong.text("error").as_str()), (400, "content_md5_mismatch"));
    for nonsense in ["", "x", "AAAA"] {
        assert_eq!(client.call("PUT", "/db/d/a", &[KIND, ("content-md5", nonsense)], b"data!").await.status, 400);
    }
    assert_eq!(client.call("GET", "/db/d", &[], b"").await.status, 404);
    let digest = client.call("PUT", "/db/right/a", &[KIND], b"data!").await;
    assert_eq!(digest.status, 201);
    let document = client.call("GET", "/db/right", &[], b"").await.json();
    let md5 = document["_attachments"]["a"]["digest"].as_str().expect("a digest").replace("md5-", "");
    assert_ne!(md5, right.1);
    assert_eq!(client.call("PUT", "/db/d/a", &[KIND, ("content-md5", &md5)], b"data!").await.status, 201);
    // The digest of text covers the bytes as sent, although they are stored compressed.
    let text = [("content-type", "text/plain"), ("content-md5", &md5)];
    assert_eq!(client.call("PUT", "/db/t/a", &text, b"data!").await.status, 201);
    // Chunked, in pieces of any size.
    client.send("PUT", "/db/c/a", &[KIND, ("transfer-encoding", "chunked")], b"").await;
    client.stream.write_all(b"1\r\nd\r\n3;x=y\r\nata\r\n1\r\n!\r\n0\r\n\r\n").await.unwrap();
    let head = soon(client.head()).await;
    assert_eq!(head.status, 201, "{head:?}");
    drop(client);
    assert_eq!(server.call("GET", "/db/c/a", "").await.body, "data!");
    // Too short, too long or broken bodies are discarded.
    for (headers, body, is_whole) in [
        ("content-length: 50\r\n", "data!", false),
        ("content-length: 5\r\n", "data!more", true),
        ("content-length: 5\r\ncontent-length: 9\r\n", "data!more", false),
        ("transfer-encoding: chunked\r\n", "5\r\ndata!\r\n", false),
        ("transfer-encoding: chunked\r\n", "5\r\ndata!\r\nzz\r\n", false),
        ("transfer-encoding: chunked\r\n", "fffffffffffffffff\r\ndata!\r\n", false),
    ] {
        let mut client = server.connect().await;
        let head = format!("PUT /db/n/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: a/b\r\n{headers}\r\n{body}");
        client.stream.write_all(head.as_bytes()).await.unwrap();
        client.stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = soon(tokio::io::AsyncReadExt::read_to_end(&mut client.stream, &mut answer)).await;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert_eq!(answer.starts_with("HTTP/1.1 201"), is_whole, "{head}: {answer}");
        let found = server.call("GET", "/db/n", "").await;
        assert_eq!(found.status, if is_whole { 200 } else { 404 }, "{head}");
        if is_whole {
            assert_eq!(server.call("GET", "/db/n/a", "").await.body, "data!");
            assert_eq!(server.call("DELETE", &format!("/db/n?rev={}", found.text("_rev")), "").await.status, 200);
        }
    }
    // The partial upload of a broken connection is removed.
    let mut client = server.connect().await;
    client.send("PUT", "/db/n/a", &[KIND, ("content-length", "5000000")], &vec![1; 2_000_000]).await;
    drop(client);
    server.stop_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names() {
    let (server, mut client) = serve().await;
    let mut rev = client.call("PUT", "/db/d", &[], b"{}").await.text("rev");
    let long = "l".repeat(2_000);
    for (path, name) in [
        ("a/b/c", "a/b/c"),
        ("a%2Fd", "a/d"),
        ("sp%20ace+plus%2B", "sp ace plus+"),
        ("100%25", "100%"),
        ("%C3%A9%F0%9F%98%80", "é😀"),
        ("q%22%5C%3F%23%26%3D", "q\"\\?#&="),
        ("..", ".."),
        (".%2F..%2F", "./../"),
        ("nul%00tab%09", "nul\0tab\t"),
        ("line%0D%0Ax%3Ay", "line\r\nx:y"),
        ("a_b", "a_b"),
        ("x/_y", "x/_y"),
        (&long, &long),
    ] {
        let made = client.call("PUT", &format!("/db/d/{path}?rev={rev}"), &[KIND], path.as_bytes()).await;
        assert_eq!(made.status, 201, "{path}: {made:?}");
        rev = made.text("rev");
        // The `location` leads to the attachment.
        let place = made.header("location").expect("a place").replace("http://test", "");
        let data = path;
        for path in [&format!("/db/d/{path}"), &place] {
            let shown = client.call("GET", path, &[], b"").await;
            assert_eq!((shown.status, shown.body.as_str()), (200, data), "{path}");
        }
        let document = client.call("GET", "/db/d", &[], b"").await.json();
        assert_eq!(document["_attachments"][name]["length"], data.len(), "{document}");
        // A name cannot inject headers into a part.
        let mixed = client.call("GET", "/db/d?attachments=true", &[("accept", "multipart/related")], b"").await;
        assert!(!mixed.body.contains("\r\nx:y"), "{mixed:?}");
    }
    for path in ["_x", "_x/y", "%5Fx", "%FF"] {
        let mut client = server.connect().await;
        let refused = client.call("PUT", &format!("/db/d/{path}?rev={rev}"), &[KIND], b"x").await;
        assert_eq!((refused.status, refused.text("error").as_str()), (400, "bad_request"), "{path}");
    }
    let refused = client.call("PUT", "/db/e", &[], br#"{"_attachments":{"_x":{"data":""}}}"#).await;
    assert_eq!((refused.status, refused.text("error").as_str()), (400, "bad_request"));
    // Lists that exceed the limits of a document's attachments.
    let many: Vec<String> = (0..2_000).map(|at| format!(r#""name {at}":{{"data":"eA=="}}"#)).collect();
    for list in [many.join(","), format!(r#""{}":{{"data":"eA=="}}"#, "l".repeat(100_000))] {
        let refused = client.call("PUT", "/db/e", &[], format!(r#"{{"_attachments":{{{list}}}}}"#).as_bytes()).await;
        assert_eq!((refused.status, refused.text("error").as_str()), (413, "attachment_too_large"));
    }
    // An empty attachment.
    let made = client.call("PUT", "/db/zero/a", &[("content-type", "text/plain")], b"").await;
    assert_eq!(made.status, 201);
    let made = client.call("PUT", "/db/zero2", &[], br#"{"_attachments":{"a":{"data":""}}}"#).await;
    assert_eq!(made.status, 201);
    for path in ["/db/zero/a", "/db/zero2/a"] {
        let (answer, bytes) = get(&mut client, path, &[]).await;
        assert_eq!((answer.status, answer.header("content-length"), bytes.len()), (200, Some("0"), 0));
    }
    server.stop_clean().await;
}

/// CouchDB stores `revpos` 0 for attachments without one. Their data is shown as usual.
#[tokio::test(flavor = "multi_thread")]
async fn of_no_generation() {
    let (server, mut client) = serve().await;
    let foreign = br#"{"_revisions":{"start":2,"ids":["b","a"]},"_attachments":{"x":{"data":"b25l","revpos":0}}}"#;
    assert_eq!(client.call("PUT", "/db/d?new_edits=false", &[], foreign).await.status, 201);
    let is_shown = |attachments: &serde_json::Value| {
        assert_eq!((&attachments["x"]["data"], &attachments["x"]["revpos"]), (&"b25l".into(), &0.into()));
    };
    for since in ["", "&atts_since=[%221-a%22]", "&atts_since=[%222-b%22]"] {
        let shown = client.call("GET", &format!("/db/d?attachments=true{since}"), &[], b"").await.json();
        is_shown(&shown["_attachments"]);
        let leaves = client.call("GET", &format!("/db/d?open_revs=all&attachments=true{since}"), &[], b"").await.json();
        is_shown(&leaves[0]["ok"]["_attachments"]);
        let path = format!("/db/d?attachments=true{since}");
        let related = client.call("GET", &path, &[("accept", "multipart/related")], b"").await;
        assert!(related.body.contains("\"follows\":true") && related.body.contains("filename=\"x\""), "{related:?}");
    }
    for asked in
        [&br#"{"docs":[{"id":"d","rev":"2-b"}]}"#[..], br#"{"docs":[{"id":"d","rev":"2-b","atts_since":["1-a"]}]}"#]
    {
        let got = client.call("POST", "/db/_bulk_get?revs=true&attachments=true", &[], asked).await.json();
        is_shown(&got["results"][0]["docs"][0]["ok"]["_attachments"]);
    }
    let rows = client.call("GET", "/db/_all_docs?include_docs=true&attachments=true", &[], b"").await.json();
    is_shown(&rows["rows"][0]["doc"]["_attachments"]);
    server.stop_clean().await;
}

/// As in CouchDB, a stub with a `revpos` stands only for an attachment with the same `revpos`.
#[tokio::test(flavor = "multi_thread")]
async fn stubs_of_another_generation() {
    let (server, mut client) = serve().await;
    let foreign = br#"{"_rev":"1-a","_attachments":{"x":{"data":"b25l","revpos":0}}}"#;
    assert_eq!(client.call("PUT", "/db/zero?new_edits=false", &[], foreign).await.status, 201);
    let own = client.call("PUT", "/db/one", &[], br#"{"_attachments":{"x":{"data":"b25l"}}}"#).await.text("rev");
    for (id, rev, revpos) in [("zero", "1-a", 0_u64), ("one", own.as_str(), 1)] {
        let stub = |pos: &str| {
            format!(r#"{{"_id":"{id}","_rev":"{rev}","_attachments":{{"x":{{"stub":true,"revpos":{pos}}}}}}}"#)
        };
        let reason = format!("Invalid attachment stub in {id} for x");
        let (other, last) = ((1 - revpos).to_string(), u64::MAX.to_string());
        // An invalid `revpos` differs from an absent one.
        let never = ["-1", "1.5", "99999999999999999999", "\"1\"", "\"0\"", "null", "true", "false", "{}", "[]"];
        for wrong in [&*other, "2", &*last].into_iter().chain(never) {
            for (method, path, body) in [
                ("PUT", format!("/db/{id}"), stub(wrong)),
                ("POST", "/db/_bulk_docs".to_owned(), format!(r#"{{"docs":[{}]}}"#, stub(wrong))),
            ] {
                let refused = client.call(method, &path, &[], body.as_bytes()).await;
                assert_eq!((refused.status, refused.text("error").as_str()), (412, "missing_stub"), "{path} {wrong}");
                assert_eq!(refused.text("reason"), reason);
            }
        }
        let path = format!("/db/{id}");
        assert_eq!(client.call("GET", &path, &[], b"").await.text("_rev"), rev, "nothing was written");
        let kept = client.call("PUT", &path, &[], stub(&format!("{revpos}.0")).as_bytes()).await;
        assert_eq!(kept.status, 201, "{kept:?}");
        let shown = client.call("GET", &format!("/db/{id}?attachments=true"), &[], b"").await.json();
        assert_eq!(
            (&shown["_attachments"]["x"]["data"], &shown["_attachments"]["x"]["revpos"]),
            (&"b25l".into(), &revpos.into())
        );
    }
    server.stop_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_what_is_not_there() {
    let (server, mut client) = serve().await;
    let first = client.call("PUT", "/db/d/a", &[KIND], b"x").await.text("rev");
    let last = client.call("PUT", &format!("/db/d/b?rev={first}"), &[KIND], b"y").await.text("rev");
    let missing = (404, "Document is missing attachment");
    for (path, (status, reason)) in [
        (format!("/db/d/c?rev={last}"), missing),
        ("/db/d/c".to_owned(), missing),
        (format!("/db/d/b?rev={first}"), missing),
        (format!("/db/d/a?rev={first}"), (409, "Document update conflict.")),
        ("/db/d/a".to_owned(), (409, "Document update conflict.")),
        ("/db/none/a".to_owned(), (404, "missing")),
    ] {
        let refused = client.call("DELETE", &path, &[], b"").await;
        assert_eq!((refused.status, refused.text("reason").as_str()), (status, reason), "{path}");
    }
    let header = [("if-match", last.as_str())];
    assert_eq!(client.call("DELETE", "/db/d/c", &header, b"").await.status, 404);
    assert_eq!(client.call("GET", "/db/d", &[], b"").await.text("_rev"), last, "nothing was written");
    let gone = client.call("DELETE", "/db/d/a", &header, b"").await;
    assert_eq!(gone.status, 200, "{gone:?}");
    let again = client.call("DELETE", &format!("/db/d/a?rev={}", gone.text("rev")), &[], b"").await;
    assert_eq!((again.status, again.text("error").as_str()), (404, "not_found"));
    assert_eq!(client.call("GET", "/db/d", &[], b"").await.text("_rev"), gone.text("rev"));
    server.stop_clean().await;
}

/// CouchDB accepts an attachment with an empty name within a document, and shows it there.
#[tokio::test(flavor = "multi_thread")]
async fn of_an_empty_name() {
    let (server, mut client) = serve().await;
    let made = client.call("PUT", "/db/own", &[], br#"{"_attachments":{"":{"data":"b25l"}}}"#).await;
    assert_eq!(made.status, 201, "{made:?}");
    let stub = format!(r#"{{"_rev":"{}","n":1,"_attachments":{{"":{{"stub":true}}}}}}"#, made.text("rev"));
    assert_eq!(client.call("PUT", "/db/own", &[], stub.as_bytes()).await.status, 201);
    let docs = br#"{"new_edits":false,"docs":[{"_id":"bulk","_rev":"1-a","_attachments":{"":{"data":"b25l"}}},{"_id":"next","_rev":"1-a"}]}"#;
    let written = client.call("POST", "/db/_bulk_docs", &[], docs).await;
    assert_eq!((written.status, written.json()), (201, serde_json::json!([])));
    assert_eq!(client.call("GET", "/db/next", &[], b"").await.status, 200);
    let kind = [("content-type", "multipart/related; boundary=\"abc\"")];
    let related = b"--abc\r\nContent-Type: application/json\r\n\r\n{\"_attachments\":{\"\":{\"follows\":true}}}\r\n\
        --abc\r\nContent-Disposition: attachment; filename=\"\"\r\n\r\none\r\n--abc--";
    let made = client.call("PUT", "/db/parts", &kind, related).await;
    assert_eq!(made.status, 201, "{made:?}");
    for id in ["own", "bulk", "parts"] {
        let shown = client.call("GET", &format!("/db/{id}?attachments=true"), &[], b"").await.json();
        assert_eq!(shown["_attachments"][""]["data"], "b25l", "{id}: {shown}");
        let leaves = client.call("GET", &format!("/db/{id}?open_revs=all&attachments=true"), &[], b"").await.json();
        assert_eq!(leaves[0]["ok"]["_attachments"][""]["data"], "b25l", "{id}: {leaves}");
    }
    server.stop_clean().await;
}

/// As in CouchDB: a stored page may be hostile.
#[tokio::test(flavor = "multi_thread")]
async fn browsers_run_nothing_of_them() {
    let (server, mut client) = serve().await;
    let page = b"<script>fetch('/_all_dbs')</script>";
    assert_eq!(client.call("PUT", "/db/d/page", &[("content-type", "text/html")], page).await.status, 201);
    assert_eq!(client.call("PUT", "/db/e/a", &[KIND], b"0123456789").await.status, 201);
    for (method, path, headers, status) in [
        ("GET", "/db/d/page", &[][..], 200),
        ("HEAD", "/db/d/page", &[], 200),
        ("GET", "/db/d/page", &[("accept-encoding", "gzip")], 200),
        ("GET", "/db/e/a", &[("range", "bytes=1-2")], 206),
    ] {
        client.send(method, path, headers, b"").await;
        let head = soon(client.head()).await;
        assert_eq!(head.status, status);
        assert_eq!(head.header("content-security-policy"), Some("sandbox"), "{method} {path} {headers:?}");
        assert_eq!(head.header("x-content-type-options"), Some("nosniff"), "{method} {path} {headers:?}");
        let length = head.header("content-length").and_then(|length| length.parse().ok()).unwrap();
        soon(client.bytes(if method == "HEAD" { 0 } else { length })).await;
    }
    server.stop().await;
}

/// JSON shows the encoding beside uncompressed data, and a document that is sent back stays the same.
#[tokio::test(flavor = "multi_thread")]
async fn encodings_beside_data() {
    let (server, mut client) = serve().await;
    let text = "words ".repeat(1_000);
    let put = client.call("PUT", "/db/d/t", &[("content-type", "text/plain")], text.as_bytes()).await.text("rev");
    let stub = client.call("GET", "/db/d?att_encoding_info=true", &[], b"").await.json()["_attachments"]["t"].clone();
    let is_shown = |document: &Value, path: &str| {
        let shown = &document["_attachments"]["t"];
        assert_eq!(shown["data"], base64(text.as_bytes()), "{path}");
        assert_eq!((&shown["encoding"], &shown["encoded_length"]), (&"gzip".into(), &stub["encoded_length"]), "{path}");
        assert_eq!((shown.get("length"), shown.get("stub")), (None, None), "{path}");
    };
    let query = "attachments=true&att_encoding_info=true";
    for (path, place) in [
        (format!("/db/d?{query}"), ""),
        (format!("/db/d?{query}&open_revs=all"), "/0/ok"),
        (format!("/db/_all_docs?{query}&include_docs=true"), "/rows/0/doc"),
        (format!("/db/_changes?{query}&include_docs=true"), "/results/0/doc"),
    ] {
        let answer = client.call("GET", &path, &[], b"").await.json();
        is_shown(answer.pointer(place).unwrap(), &path);
    }
    let path = format!("/db/_bulk_get?{query}");
    let answer = client.call("POST", &path, &[], br#"{"docs":[{"id":"d"}]}"#).await.json();
    is_shown(&answer["results"][0]["docs"][0]["ok"], &path);
    let plain = client.call("GET", "/db/d?attachments=true", &[], b"").await.json();
    assert_eq!(plain["_attachments"]["t"].get("encoding"), None);
    // The document is unchanged.
    let document = client.call("GET", &format!("/db/d?{query}"), &[], b"").await;
    assert_eq!(document.text("_rev"), put);
    assert_eq!(client.call("PUT", "/db/d", &[], document.body.as_bytes()).await.status, 201);
    assert!(get(&mut client, "/db/d/t", &[]).await.1 == text.as_bytes());
    server.stop_clean().await;
}

/// RFC 1952, 2.2 allows several gzip members in one file, as in logs.
#[tokio::test(flavor = "multi_thread")]
async fn gzip_of_several_members() {
    let gzip = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let (server, mut client) = serve().await;
    let encoding = ("content-encoding", "gzip");
    let parts: Vec<Vec<u8>> = (0..5).map(|part| vec![b'a' + part; 100_000 * usize::from(part)]).collect();
    let sent: Vec<u8> = parts.iter().flat_map(|part| gzip(part)).collect();
    assert_eq!(client.call("PUT", "/db/d/a", &[KIND, encoding], &sent).await.status, 201);
    let (_, plain) = get(&mut client, "/db/d/a", &[]).await;
    assert!(plain == parts.concat(), "{} of {} bytes", plain.len(), parts.concat().len());
    assert!(get(&mut client, "/db/d/a", &[("accept-encoding", "gzip")]).await.1 == sent);
    let stub = client.call("GET", "/db/d", &[], b"").await.json()["_attachments"]["a"].clone();
    assert_eq!(stub["length"], 1_000_000);
    let inline = client.call("GET", "/db/d?attachments=true", &[], b"").await.json();
    assert_eq!(inline["_attachments"]["a"]["data"].as_str().unwrap().len(), 1_333_336);
    // The last member must be complete, and nothing else may follow.
    for end in [&sent[..sent.len() - 9], &[sent.as_slice(), b"garbage"].concat()] {
        assert_eq!(client.call("PUT", "/db/broken/a", &[KIND, encoding], end).await.status, 400);
    }
    // Inline in JSON, in a part, and as a whole body.
    let data = base64(&sent);
    let document = format!(r#"{{"_attachments":{{"a":{{"content_type":"a/b","encoding":"gzip","data":"{data}"}}}}}}"#);
    assert_eq!(client.call("PUT", "/db/inline", &[], document.as_bytes()).await.status, 201);
    assert!(get(&mut client, "/db/inline/a", &[]).await.1 == plain);
    let head = format!(
        "--x\r\ncontent-type: application/json\r\n\r\n{{\"_attachments\":{{\"a\":{{\"content_type\":\"a/b\",\
         \"follows\":true,\"encoding\":\"gzip\",\"length\":1000000,\"encoded_length\":{}}}}}}}\r\n--x\r\n\
         content-encoding: gzip\r\n\r\n",
        sent.len()
    );
    let body = [head.as_bytes(), &sent, b"\r\n--x--"].concat();
    let kind = ("content-type", "multipart/related; boundary=x");
    let written = client.call("PUT", "/db/related", &[kind], &body).await;
    assert_eq!(written.status, 201, "{written:?}");
    assert!(get(&mut client, "/db/related/a", &[]).await.1 == plain);
    let body = [gzip(b"{\"a\":"), gzip(b""), gzip(b"1}")].concat();
    assert_eq!(client.call("PUT", "/db/body", &[encoding], &body).await.status, 201);
    assert_eq!(client.call("GET", "/db/body", &[], b"").await.json()["a"], 1);
    server.stop_clean().await;
}

fn base64(bytes: &[u8]) -> String {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let number = (0..3).fold(0, |number, at| number << 8 | u32::from(three.get(at).copied().unwrap_or(0)));
        for digit in 0..4 {
            let is_there = digit <= three.len();
            let at = number >> (18 - 6 * digit) & 63;
            text.push(if is_there { digits[at as usize].into() } else { '=' });
        }
    }
    text
}
