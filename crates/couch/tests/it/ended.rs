//! Expired documents over HTTP: reads do not find them, although no tombstone has been written.

use std::time::UNIX_EPOCH;

use flatbed_testkit::until;
use serde_json::{Value, json};

use super::hidden_documents::{ask, root, served};
use crate::support::{Client, Running, ServerOptions, Store};

const NULL: Value = Value::Null;

fn now_ms() -> u64 {
    u64::try_from(UNIX_EPOCH.elapsed().expect("a clock").as_millis()).expect("it fits")
}

/// Starts a server on the store of [`served`], with an index and without the sweeper. `ann` has channel `A`.
async fn without_sweeper(store: &Store) -> (Running, Client) {
    let (_, server, mut client) = Box::pin(served(store)).await;
    root(&mut client, "POST", "/db/_index", &json!({"index": {"fields": ["n"]}, "ddoc": "i", "name": "i"})).await;
    root(&mut client, "POST", "/db/_find", &json!({"selector": {"n": {"$gt": 0}}})).await;
    server.stop().await;
    let options = ServerOptions { runs_background: false, ..ServerOptions::guarded_by("root", "test") };
    let server = store.serve(options).await;
    let client = server.connect().await;
    (server, client)
}

/// Sends a GET and returns the status and the answer.
async fn got(client: &mut Client, who: &str, path: &str) -> (u16, Value) {
    let answer = ask(client, who, "GET", path, &[], "").await;
    (answer.status, serde_json::from_str(&answer.body).unwrap_or(NULL))
}

async fn ids(client: &mut Client, who: &str, path: &str) -> Vec<String> {
    let (status, answer) = got(client, who, path).await;
    assert_eq!(status, 200, "{path}: {answer}");
    let rows = answer["rows"].as_array().or(answer["results"].as_array()).expect("rows");
    let ids = rows.iter().map(|row| row["id"].as_str().expect("an id").to_owned());
    ids.filter(|id| !id.starts_with('_')).collect()
}

async fn find(client: &mut Client, query: Value) -> Vec<Value> {
    let answer = root(client, "POST", "/db/_find", &query).await;
    answer["docs"].as_array().expect("documents").clone()
}

fn deleted(id: &str, rev: &str) -> Value {
    json!({"_id": id, "_rev": rev, "_deleted": true})
}

#[tokio::test]
async fn what_has_ended_is_found_by_no_read() {
    let (_server, mut client) = without_sweeper(&Store::new()).await;
    let client = &mut client;
    let past = now_ms() / 1_000 - 5;
    let first = root(client, "PUT", "/db/over", &json!({"channels": "A", "n": 1})).await["rev"].clone();
    let file = json!({"f": {"data": "aGk=", "content_type": "text/plain"}});
    let over = json!({"channels": "A", "n": 1, "_rev": first, "_exp": past, "_attachments": file});
    let over = root(client, "PUT", "/db/over", &over).await["rev"].clone();
    let (first, over) = (first.as_str().expect("a rev"), over.as_str().expect("a rev"));
    root(client, "PUT", "/db/later", &json!({"channels": "A", "n": 3, "_exp": 4_102_444_800_u64})).await;
    root(client, "PUT", "/db/stays", &json!({"channels": "A", "n": 2})).await;
    // The winner of two leaves has expired.
    let split = |rev: &str, ids: &[&str], exp: Option<u64>| {
        let revisions = json!({"start": ids.len(), "ids": ids});
        let mut body = json!({"_id": "split", "_rev": rev, "_revisions": revisions, "channels": "A", "n": 4});
        exp.into_iter().for_each(|exp| body["_exp"] = exp.into());
        body
    };
    let docs =
        [split("1-a", &["a"], None), split("2-b", &["b", "a"], None), split("3-d", &["d", "c", "a"], Some(past))];
    assert_eq!(root(client, "POST", "/db/_bulk_docs", &json!({"new_edits": false, "docs": docs})).await, json!([]));

    for who in ["root", "ann"] {
        assert_eq!(got(client, who, "/db/over").await.1["reason"], "deleted", "{who}");
        assert_eq!(got(client, who, &format!("/db/over?rev={over}")).await, (200, deleted("over", over)));
        assert_eq!(got(client, who, &format!("/db/over?rev={first}")).await.0, 404);
        assert_eq!(got(client, who, "/db/split?rev=1-a").await.0, 404, "{who}: it is behind the one that has ended");
        assert_eq!(got(client, who, "/db/split?rev=2-b").await.1["n"], 4);
        for path in ["/db/over/f".to_owned(), format!("/db/over/f?rev={over}"), format!("/db/over/f?rev={first}")] {
            assert_eq!(got(client, who, &path).await.0, 404, "{path}");
        }
        let infos = got(client, who, &format!("/db/over?rev={over}&revs_info=true")).await.1["_revs_info"].clone();
        assert_eq!([&infos[0]["status"], &infos[1]["status"]], ["available", "missing"]);
        let asked = json!({"docs": [{"id": "over"}, {"id": "over", "rev": first}, {"id": "over", "rev": over}]});
        let answer = ask(client, who, "POST", "/db/_bulk_get", &[], &asked.to_string()).await.json();
        let one = |at: usize| answer["results"][at]["docs"][0].clone();
        assert_eq!([one(0)["ok"].clone(), one(2)["ok"].clone()], [deleted("over", over), deleted("over", over)]);
        assert_eq!(one(1)["error"]["error"], "not_found", "{answer}");
        let all = ask(client, who, "GET", "/db/over?open_revs=all", &[("accept", "application/json")], "").await.json();
        assert_eq!(all, json!([{"ok": deleted("over", over)}]));

        // Walks skip and do not count expired documents.
        assert_eq!(ids(client, who, "/db/_all_docs").await, ["later", "stays"], "{who}");
        for with in ["include_docs=true", "conflicts=true&include_docs=true", "limit=100"] {
            assert_eq!(ids(client, who, &format!("/db/_all_docs?{with}")).await, ["later", "stays"], "{with}");
            let skips = format!("/db/_all_docs?start_key=%22a%22&skip=1&{with}");
            assert_eq!(ids(client, who, &skips).await, ["stays"]);
            let reversed = format!("/db/_all_docs?descending=true&end_key=%22a%22&{with}");
            assert_eq!(ids(client, who, &reversed).await, ["stays", "later"]);
        }
        assert_eq!(ids(client, who, "/db/_all_docs?start_key=%22m%22&limit=1").await, ["stays"]);
        let keys = json!({"keys": ["over", "stays"]}).to_string();
        let answer = ask(client, who, "POST", "/db/_all_docs?include_docs=true", &[], &keys).await.json();
        assert_eq!(answer["rows"][0]["value"], json!({"rev": over, "deleted": true}), "{who}");
        assert_eq!(answer["rows"][0]["doc"], NULL);

        // A feed's row has no body.
        let (_, answer) = got(client, who, "/db/_changes?include_docs=true").await;
        let row = |id: &str| {
            let rows = answer["results"].as_array().expect("rows");
            rows.iter().find(|row| row["id"] == id).unwrap_or_else(|| panic!("{who}: {id} in {answer}")).clone()
        };
        assert_eq!(row("over")["deleted"], true);
        assert_eq!(row("over")["doc"], deleted("over", over));
        assert_eq!((&row("later")["deleted"], &row("stays")["doc"]["n"]), (&NULL, &json!(2)));
        let (_, answer) = got(client, who, "/db/_changes?style=all_docs").await;
        let rows = answer["results"].as_array().expect("rows");
        let gone = rows.iter().filter(|row| row["deleted"] == true).map(|row| row["id"].as_str().expect("an id"));
        assert_eq!(gone.collect::<Vec<_>>(), ["over", "split"], "{who}");
        assert_eq!(ids(client, who, "/db/_changes?active_only=true").await, ["later", "stays"], "{who}");
        let named =
            ask(client, who, "POST", "/db/_changes?filter=_doc_ids", &[], r#"{"doc_ids":["over"]}"#).await.json();
        assert_eq!(named["results"][0]["deleted"], true, "{who}");
        // The revisions are still known, as those of a tombstone.
        let asked = json!({"over": [over, first, "9-z"]}).to_string();
        let answer = ask(client, who, "POST", "/db/_revs_diff", &[], &asked).await.json();
        assert_eq!(answer["over"]["missing"], json!(["9-z"]));
    }
    assert_eq!(got(client, "ann", "/db").await.1["doc_count"], 2);

    // Queries that read documents, and queries covered by an index.
    let ns = |docs: Vec<Value>| docs.iter().map(|doc| doc["n"].as_u64().expect("a number")).collect::<Vec<_>>();
    for query in [
        json!({"selector": {"n": {"$gt": 0}}}),
        json!({"selector": {"n": {"$gt": 0}}, "use_index": "i"}),
        json!({"selector": {"n": {"$gt": 0}}, "fields": ["n"], "use_index": "i"}),
    ] {
        assert_eq!(ns(find(client, query.clone()).await), [2, 3], "{query}");
        let mut one = query.clone();
        (one["skip"], one["limit"]) = (1.into(), 5.into());
        assert_eq!(ns(find(client, one).await), [3], "{query}");
        assert_eq!(root(client, "POST", "/db/_count", &json!({"selector": query["selector"]})).await["count"], 2);
    }
    let by_id = json!({"selector": {"_id": {"$gt": "a"}, "channels": "A"}, "fields": ["n"]});
    assert_eq!(ns(find(client, by_id).await), [3, 2]);

    // A write does not find its attachments.
    let stub = json!({"channels": "A", "_attachments": {"f": {"stub": true, "revpos": 2}}});
    assert_eq!(ask(client, "root", "PUT", "/db/over", &[], &stub.to_string()).await.status, 412);
    assert_eq!(ask(client, "root", "PUT", "/db/over", &[], r#"{"n":5,"channels":"A"}"#).await.status, 201);
    assert_eq!(ns(find(client, json!({"selector": {"n": {"$gt": 3}}, "fields": ["n"], "use_index": "i"})).await), [5]);
    assert_eq!(ids(client, "ann", "/db/_all_docs").await, ["later", "over", "stays"]);
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum EditKind {
    Nothing,
    Tombstone,
    Document,
}

/// Creates a document whose second revision has expired; the first one's file says `hi`. With `has_other_leaf`, another
/// leaf's file says `yo`. Returns the two revisions.
async fn create_expired(client: &mut Client, id: &str, upon: EditKind, has_other_leaf: bool) -> [String; 2] {
    let path = format!("/db/{id}");
    let file = |data: &str| json!({"f": {"data": data, "content_type": "text/plain"}});
    let rev_of = |answer: Value| answer["rev"].as_str().expect("a rev").to_owned();
    let first = json!({"channels": "A", "n": 1, "_attachments": file("aGk=")});
    let first = rev_of(root(client, "PUT", &path, &first).await);
    let (past, stub) = (now_ms() / 1_000 - 5, json!({"f": {"stub": true}}));
    let over = json!({"channels": "A", "n": 2, "_rev": first, "_exp": past, "_attachments": stub});
    let over = rev_of(root(client, "PUT", &path, &over).await);
    if has_other_leaf {
        let body = json!({"channels": "A", "n": 3, "_rev": "1-other", "_attachments": file("eW8=")});
        root(client, "PUT", &format!("{path}?new_edits=false"), &body).await;
    }
    match upon {
        EditKind::Nothing => {}
        EditKind::Tombstone => drop(root(client, "PUT", &path, &json!({"_deleted": true, "_rev": over})).await),
        EditKind::Document => drop(root(client, "PUT", &path, &json!({"channels": "A", "n": 4, "_rev": over})).await),
    }
    [first, over]
}

/// An expired document stays expired after any write, as do its ancestors.
#[tokio::test]
async fn what_has_ended_does_not_come_back() {
    let (_server, mut client) = without_sweeper(&Store::new()).await;
    let client = &mut client;
    for upon in [EditKind::Nothing, EditKind::Tombstone, EditKind::Document] {
        let id = &*format!("{upon:?}");
        let [first, over] = create_expired(client, id, upon, true).await;
        for who in ["root", "ann"] {
            let stub = deleted(id, &over);
            assert_eq!(got(client, who, &format!("/db/{id}?rev={over}")).await, (200, stub.clone()), "{who}");
            assert_eq!(got(client, who, &format!("/db/{id}?rev={first}")).await.0, 404, "{who}: {id}");
            for rev in [&first, &over] {
                assert_eq!(got(client, who, &format!("/db/{id}/f?rev={rev}")).await.0, 404, "{who}: {id}");
            }
            assert_eq!(got(client, who, &format!("/db/{id}?rev=1-other")).await.1["n"], 3, "{who}: {id}");
            let file = ask(client, who, "GET", &format!("/db/{id}/f?rev=1-other"), &[], "").await;
            assert_eq!((file.status, &*file.body), (200, "yo"), "{who}: {id}");
            let asked = json!({"docs": [{"id": id, "rev": first}, {"id": id, "rev": over}]});
            let answer = ask(client, who, "POST", "/db/_bulk_get", &[], &asked.to_string()).await.json();
            assert_eq!(answer["results"][0]["docs"][0]["error"]["error"], "not_found", "{answer}");
            assert_eq!(answer["results"][1]["docs"][0]["ok"], stub, "{answer}");
            let infos = got(client, who, &format!("/db/{id}?rev={over}&revs_info=true")).await.1["_revs_info"].clone();
            assert_eq!(infos[1]["status"], "missing", "{who}: {infos}");
        }
    }
}

/// A replicated stub may refer to an attachment of any existing revision, but not of an expired one or its ancestors.
#[tokio::test]
async fn stubs_stand_for_nothing_that_has_ended() {
    let (_server, mut client) = without_sweeper(&Store::new()).await;
    let client = &mut client;
    for upon in [EditKind::Nothing, EditKind::Tombstone, EditKind::Document] {
        for has_other_leaf in [false, true] {
            // Children of the expired revision, siblings of it, and a separate branch.
            for known in [2, 1, 0] {
                let id = &*format!("{upon:?}-{has_other_leaf}-{known}");
                let [first, over] = create_expired(client, id, upon, has_other_leaf).await;
                let hashes = [over, first].map(|rev| rev.split_once('-').expect("a rev").1.to_owned());
                let ids: Vec<&str> = ["x"].into_iter().chain(hashes[2 - known..].iter().map(|hash| &**hash)).collect();
                let (start, rev) = (ids.len(), format!("{}-x", ids.len()));
                let body = json!({
                    "_rev": rev, "_revisions": {"start": start, "ids": ids}, "channels": "A",
                    "_attachments": {"f": {"stub": true, "revpos": 1}},
                });
                let path = format!("/db/{id}?new_edits=false");
                let answer = ask(client, "root", "PUT", &path, &[], &body.to_string()).await;
                let file = ask(client, "root", "GET", &format!("/db/{id}/f?rev={rev}"), &[], "").await;
                match has_other_leaf {
                    true => assert_eq!((answer.status, &*file.body), (201, "yo"), "{id}: {}", answer.body),
                    false => assert_eq!((answer.status, file.status), (412, 404), "{id}: {}", answer.body),
                }
            }
        }
    }
}

/// Each row is checked when it is read. Views stop showing a document at its expiry, and open feeds continue.
#[tokio::test]
async fn rows_go_with_their_second() {
    let (server, mut client) = without_sweeper(&Store::new()).await;
    let client = &mut client;
    let map = "function (doc) { if (doc.n) { emit(doc.n, 'x'); emit(doc.n, 'y'); } }";
    let views = json!({"views": {"v": {"map": map, "reduce": "_count"}}});
    root(client, "PUT", "/db/_design/v", &views).await;
    let end = now_ms() / 1_000 + 5;
    for n in 1..=6 {
        let mut body = json!({"channels": "A", "n": n});
        if n % 3 == 1 {
            body["_exp"] = end.into();
        }
        root(client, "PUT", &format!("/db/d{n}"), &body).await;
    }
    let all = ids(client, "root", "/db/_design/v/_view/v?reduce=false").await;
    let mut followers = Vec::new();
    for who in ["root", "ann"] {
        let mut follower = server.connect().await;
        let authorization = format!("Basic {}", base64_of(who));
        let path = "/db/_changes?feed=continuous&include_docs=true&heartbeat=100";
        let headers = [("authorization", authorization.as_str())];
        follower.send("GET", path, &headers, b"").await;
        assert_eq!(follower.head().await.status, 200);
        followers.push(follower);
    }
    let was_in_time = now_ms() < end * 1_000;
    until("their second comes", async || now_ms() >= end * 1_000 + 20).await;

    let expected = ["d2", "d2", "d3", "d3", "d5", "d5", "d6", "d6"];
    let with =
        async |client: &mut Client, more: &str| ids(client, "root", &format!("/db/_design/v/_view/v?{more}")).await;
    for more in ["reduce=false", "include_docs=true&reduce=false"] {
        assert_eq!(with(client, more).await, expected, "{more}");
        assert_eq!(with(client, &format!("{more}&skip=1&limit=4")).await, expected[1..5]);
        assert_eq!(with(client, &format!("{more}&keys=[4,2,1,6]")).await, ["d2", "d2", "d6", "d6"]);
        assert_eq!(with(client, &format!("{more}&keys=[4,2,1,6]&skip=1")).await, ["d2", "d6", "d6"]);
        let reversed: Vec<&str> = expected.iter().rev().copied().collect();
        assert_eq!(with(client, &format!("{more}&descending=true")).await, reversed);
    }
    if was_in_time {
        assert_eq!(all.len(), 12);
        // Reductions count expired documents until tombstones are written.
        let (_, answer) = got(client, "root", "/db/_design/v/_view/v?limit=1&reduce=false").await;
        assert_eq!((&answer["total_rows"], &answer["rows"][0]["id"]), (&json!(12), &json!("d2")));
        let (_, answer) = got(client, "root", "/db/_design/v/_view/v").await;
        assert_eq!(answer["rows"][0]["value"], 12);
    }
    for who in ["root", "ann"] {
        assert_eq!(ids(client, who, "/db/_all_docs?start_key=%22a%22").await, ["d2", "d3", "d5", "d6"], "{who}");
    }
    // Followers of the documents see later changes.
    root(client, "PUT", "/db/next", &json!({"channels": "A"})).await;
    for mut follower in followers {
        let (mut rest, mut bodies) = (String::new(), Vec::new());
        while let Some(line) = follower.feed_line(&mut rest).await {
            let row: Value = serde_json::from_str(&line).expect("JSON");
            if row["id"] == "next" {
                break;
            }
            bodies.extend(row["doc"]["n"].as_u64());
        }
        assert!(!was_in_time || bodies == [1, 2, 3, 4, 5, 6], "{bodies:?}");
    }
}

fn base64_of(name: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(format!("{name}:test"))
}
