//! Compares queries of one partition with a scan of its documents, and counts their reads.
#![cfg(test)]

use flatbed_databases::document::edit::GetOptions;
use flatbed_mango::{Bookmark, Find as Request};
use flatbed_operations::find::query::FindOptions;
use flatbed_store::waits;

use crate::CreateOptions;
use crate::tests::find::{
    assert_answers, assert_clean, built, design, documents, json, put, put_all, with_background_of,
};

/// Some are prefixes of others; two are equal in the order of strings; ids of some sort among those of others.
const PARTITIONS: [&str; 6] = ["a", "a!", "aa", "a\\u0000", "\u{e9}", "e\u{301}"];

fn partition_of(at: usize) -> String {
    PARTITIONS[at % PARTITIONS.len()].to_owned()
}

fn ids(at: usize, id: &str) -> String {
    format!("{}:{id}", partition_of(at).replace("\\u0000", "\0"))
}

fn of_all(maps: &[&str]) -> String {
    design(maps).replacen('{', r#"{"options":{"partitioned":false},"#, 1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_of_a_partition_are_answered_as_its_documents_say() {
    let (_layer, background, db, _storage) = with_background_of("parts").await;
    db.create(&CreateOptions { partitioned: true, ..CreateOptions::default() }).await.unwrap();
    let long = |n: usize| format!(r#"{{"a":"{}{:03}","n":{n}}}"#, "x".repeat(4_100), n * 7 % 60);
    let mut all: Vec<(String, String)> =
        documents(72).into_iter().enumerate().map(|(at, (id, body))| (ids(at, &id), body)).collect();
    all.extend((0..30).map(|n| (ids(n, &format!("l{:02}", n * 7 % 60)), long(n))));
    let maps = [r#"{"fields":{"a":"asc"}}"#, r#"{"fields":{"b.c":"asc","a":"asc"}}"#];
    put_all(&db, &all[..60]).await;
    put(&db, "_design/i", None, &design(&maps)).await.unwrap();
    put(&db, "_design/g", None, &of_all(&[r#"{"fields":{"n":"asc"}}"#])).await.unwrap();
    put_all(&db, &all[60..85]).await;
    built(&db).await;
    put_all(&db, &all[85..]).await;
    assert_clean(&db).await;
    let look = async |partitions: std::ops::Range<usize>| {
        for at in partitions {
            let of = |request: &str| request.replacen('{', &format!(r#"{{"partition":"{}","#, partition_of(at)), 1);
            let local = [
                r#"{"selector":{"a":{"$gt":null}}}"#.to_owned(),
                r#"{"selector":{"a":{"$gt":null}},"sort":[{"a":"desc"}]}"#.to_owned(),
                r#"{"selector":{"a":{"$in":["a",1,true,[1,2]]}},"sort":[{"a":"desc"}]}"#.to_owned(),
                r#"{"selector":{"a":{"$gt":0},"n":{"$mod":[2,1]}}}"#.to_owned(),
                r#"{"selector":{"a":{"$exists":true}},"fields":["_id","a"]}"#.to_owned(),
                format!(
                    r#"{{"selector":{{"a":{{"$gt":"{}020","$lt":"{}040"}}}}}}"#,
                    "x".repeat(4_100),
                    "x".repeat(4_100)
                ),
            ];
            let local = local.map(|request| of(&request));
            assert_answers(&db, &local.each_ref().map(String::as_str), "i0").await;
            let both = of(r#"{"selector":{"b.c":{"$gt":0},"a":{"$exists":true}},"sort":["b.c","a"]}"#);
            assert_answers(&db, &[&both], "i1").await;
            let ids = of(r#"{"selector":{"n":{"$gt":40}}}"#);
            assert_answers(&db, &[&ids], "_all_docs").await;
        }
        assert_answers(&db, &[r#"{"selector":{"n":{"$gt":40}}}"#], "i0").await;
        assert_answers(&db, &[r#"{"selector":{"a":{"$gt":0}}}"#], "_all_docs").await;
    };
    look(0..PARTITIONS.len()).await;
    for (at, (id, _)) in all.iter().enumerate() {
        let rev = db.get(id, &GetOptions::default()).await.unwrap().rev;
        match at % 5 {
            0 => drop(put(&db, id, Some(rev), &long(at * 3 % 60)).await.unwrap()),
            1 => drop(put(&db, id, Some(rev), r#"{"a":"short","n":1}"#).await.unwrap()),
            2 => drop(put(&db, id, Some(rev), r#"{"_deleted":true}"#).await.unwrap()),
            3 => drop(db.purge(id, &[rev]).await.unwrap()),
            _ => {}
        }
    }
    assert_clean(&db).await;
    look(1..3).await;
    background.stop().await;
}

/// 30 of 600 documents are in one of 20 partitions: no entry of another partition is read, whatever a bookmark names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_one_partition_are_read() {
    let (_layer, background, db, _storage) = with_background_of("parts").await;
    db.create(&CreateOptions { partitioned: true, ..CreateOptions::default() }).await.unwrap();
    let all: Vec<_> = (0..600).map(|n| (format!("p{:02}:{n:03}", n % 20), format!(r#"{{"a":{}}}"#, n % 7))).collect();
    put_all(&db, &all).await;
    put(&db, "_design/i", None, &design(&[r#"{"fields":{"a":"asc"}}"#])).await.unwrap();
    built(&db).await;
    background.stop().await;
    let indexes = db.json_indexes().await.unwrap();
    let ask = async |request: &str| {
        let find = Request::parse(&json(request), Some("p07"), &|| false).unwrap();
        let plan = indexes.plan("parts", &find).unwrap();
        assert_eq!(plan.index.name(), "i0");
        let mut query = db.find(&indexes, &plan, FindOptions { limit: 100, ..FindOptions::default() });
        let mut found = 0;
        while let Some(rows) = query.next_page().await.unwrap() {
            assert!(rows.iter().all(|row| row.id.starts_with("p07:")));
            found += rows.len();
        }
        (found, query.stats())
    };
    let ((found, stats), waits) = waits::count(ask(r#"{"selector":{"a":{"$gt":null}},"fields":["a"]}"#)).await;
    assert_eq!((found, stats.keys_examined), (30, 30));
    println!("{} keys, depth {}", waits.keys_read, waits.path.depth());
    let is_exact = waits::are_exact();
    assert!(!is_exact || waits.keys_read <= 33, "{waits:?}");
    let ((found, stats), waits) = waits::count(ask(r#"{"selector":{"a":3}}"#)).await;
    assert_eq!((found as u64, stats.keys_examined, stats.docs_examined), (stats.results_returned, 4, 4));
    assert!(!is_exact || waits.keys_read <= 20, "{waits:?}");
    for (id, expected) in
        [("p06:x", 30 - 13), ("p08:x", 30 - 17), ("p07", 30 - 13), ("p07:", 30 - 13), ("p07;", 30 - 17)]
    {
        let bookmark = Bookmark { id: id.to_owned(), key: json("[3]") }.encode();
        let (found, _) = ask(&format!(r#"{{"selector":{{"a":{{"$gt":null}}}},"bookmark":"{bookmark}"}}"#)).await;
        assert_eq!(found, expected, "{id}");
    }
}
