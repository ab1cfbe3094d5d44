//! Revision ids whose hashes are not 32 hexadecimal digits: the refused ones, and the order that chooses the winner.

use serde_json::{Value, json};

use crate::support::Store;

/// CouchDB decodes a hash of 32 bytes, and refuses one that is not hexadecimal.
#[tokio::test(flavor = "multi_thread")]
async fn thirty_two_bytes_that_are_no_digits() {
    let server = Store::new().serve_database().await;
    let own = server.call("PUT", "/db/d", "{}").await.text("rev");
    for rev in [format!("1-{}", "g".repeat(32)), format!("7-{}z", "0".repeat(31))] {
        let document = json!({"_id": "d", "_rev": rev}).to_string();
        let bulk = |new_edits: bool| json!({"docs": [{"_id": "d", "_rev": rev}], "new_edits": new_edits}).to_string();
        let list = json!({"d": [rev]}).to_string();
        let (tag, onto) = (format!("\"{rev}\""), format!("e?rev={rev}"));
        let (by_tag, copied) = (vec![("if-match", tag.as_str())], vec![("destination", onto.as_str())]);
        let (query, attachment) = (format!("/db/d?rev={rev}"), format!("/db/d/a?rev={rev}"));
        let (path, none, empty) = (|path: &str| path.to_owned(), Vec::new, String::new);
        for (method, path, headers, body) in [
            ("GET", query.clone(), none(), empty()),
            ("GET", format!("/db/d?open_revs=[%22{rev}%22]"), none(), empty()),
            ("GET", format!("/db/d?atts_since=[%22{rev}%22]"), none(), empty()),
            ("GET", attachment.clone(), none(), empty()),
            ("PUT", path("/db/d"), none(), document.clone()),
            ("PUT", path("/db/d?new_edits=false"), none(), document.clone()),
            ("PUT", query.clone(), none(), "{}".to_owned()),
            ("PUT", path("/db/d"), by_tag, "{}".to_owned()),
            ("PUT", attachment.clone(), none(), "x".to_owned()),
            ("DELETE", query.clone(), none(), empty()),
            ("DELETE", attachment.clone(), none(), empty()),
            ("COPY", path("/db/d"), copied, empty()),
            ("POST", path("/db"), none(), document.clone()),
            ("POST", path("/db/_bulk_docs"), none(), bulk(true)),
            ("POST", path("/db/_bulk_docs"), none(), bulk(false)),
            ("POST", path("/db/_revs_diff"), none(), list.clone()),
            ("POST", path("/db/_missing_revs"), none(), list.clone()),
            ("POST", path("/db/_purge"), none(), list.clone()),
        ] {
            let answer = server.connect().await.call(method, &path, &headers, body.as_bytes()).await;
            let said = (answer.status, answer.text("error"), answer.text("reason"));
            assert_eq!(said, (400, "bad_request".into(), "Invalid rev format".into()), "{method} {path}");
        }
        let (_, got) = server.json("POST", "/db/_bulk_get", json!({"docs": [{"id": "d", "rev": rev}]})).await;
        assert_eq!(got["results"][0]["docs"][0]["error"]["reason"], "Invalid rev format", "{got}");
        let (generation, hash) = rev.split_once('-').unwrap();
        let start: u64 = generation.parse().unwrap();
        let ancestry = json!({"_revisions": {"start": start, "ids": [hash]}});
        let (status, refused) = server.json("PUT", "/db/d?new_edits=false", ancestry).await;
        assert_eq!((status, &refused["error"]), (400, &json!("doc_validation")), "{refused}");
    }
    let found = server.call("GET", "/db/d?open_revs=all", "").await.json();
    assert_eq!((found.as_array().map(Vec::len), &found[0]["ok"]["_rev"]), (Some(1), &json!(own)), "{found}");
    server.stop().await;
}

/// CouchDB compares the bytes that 32 digits stand for with those of other hashes.
#[tokio::test(flavor = "multi_thread")]
async fn winners_among_hashes_of_any_form() {
    let server = Store::new().serve_database().await;
    let of = |digits: &str| format!("1-{}", digits.repeat(32 / digits.len()));
    // Revisions in ascending order.
    let ranks =
        ["1-".to_owned(), of("0"), of("39"), "1-A".into(), "1-a".into(), of("6"), "1-z".into(), of("a"), of("f")];
    // In either order of arrival.
    for (id, is_turned) in [("up", false), ("down", true)] {
        let mut arriving: Vec<&String> = ranks.iter().collect();
        if is_turned {
            arriving.reverse();
        }
        for rev in arriving {
            let doc = json!({"_id": id, "_rev": rev, "own": rev});
            server.ok("POST", "/db/_bulk_docs", json!({"new_edits": false, "docs": [doc]})).await;
        }
        let best = ranks.last().unwrap();
        let found = server.ok("GET", &format!("/db/{id}?conflicts=true"), Value::Null).await;
        assert_eq!((&found["_rev"], &found["own"]), (&json!(best), &json!(best)), "{found}");
        let descending: Vec<&String> = ranks.iter().rev().collect();
        assert_eq!(found["_conflicts"], json!(descending[1..]), "{id}");
        let leaves = server.ok("GET", &format!("/db/{id}?open_revs=all"), Value::Null).await;
        let leaves: Vec<&Value> = leaves.as_array().unwrap().iter().map(|leaf| &leaf["ok"]["_rev"]).collect();
        assert_eq!(json!(leaves), json!(ranks), "{id}");
        // Deleting a winner promotes the next leaf.
        for (at, rev) in descending.iter().enumerate().take(4) {
            let gone = server.call("DELETE", &format!("/db/{id}?rev={rev}"), "").await;
            assert_eq!(gone.status, 200, "{gone:?}");
            let found = server.ok("GET", &format!("/db/{id}"), Value::Null).await;
            assert_eq!((&found["_rev"], &found["own"]), (&json!(descending[at + 1]), &json!(descending[at + 1])));
        }
    }
    server.stop_clean().await;
}
