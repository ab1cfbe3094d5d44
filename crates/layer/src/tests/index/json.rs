//! Json indexes at two layers with different caches, and under random work.
#![cfg(test)]

use std::sync::atomic::{AtomicBool, Ordering};

use flatbed_mango::{Index, compare};
use flatbed_operations::index::apart::selector_lock;
use flatbed_operations::index::compiled::{compile_within, uncompiled};
use flatbed_operations::index::json::definition::compiled;
use flatbed_operations::index::maintainers::IndexContext;
use flatbed_store::keys::{RowPlaces, SortPlace};
use flatbed_testkit::{Random, soon};
use futures_util::FutureExt;

use crate::tests::index::random::{with_faults, workers};
use crate::tests::index::*;

pub(super) fn design(maps: &[&str]) -> String {
    let view =
        |(at, map): (usize, &&str)| format!(r#""i{at}":{{"map":{map},"reduce":"_count","options":{{"def":{{}}}}}}"#);
    let views: Vec<_> = maps.iter().enumerate().map(view).collect();
    format!(r#"{{"language":"query","views":{{{}}}}}"#, views.join(","))
}

pub(super) async fn ids_of(db: &Database, number: u64) -> Vec<String> {
    let instance = resolved(&db.inner, &db.name).await.unwrap();
    let pages = all_of(db, &instance, number).await;
    let mut found = Vec::new();
    for row in pages.iter().flat_map(|page| page.iter()) {
        if let (_, IndexPart::Entry(entry)) = instance.keys.split_index(row.key()).unwrap() {
            found.push(entry.id);
        }
    }
    found
}

async fn expected(db: &Database, index: &Index) -> Vec<String> {
    let mut walk = db.all_docs(crate::AllDocsQuery { include_docs: true, ..crate::AllDocsQuery::default() });
    let mut rows = Vec::new();
    while let Some(page) = walk.next_page().await.unwrap() {
        for document in page.into_iter().filter_map(|row| row.doc).filter(|doc| !doc.id.starts_with("_design/")) {
            let text = [b"{", document.body.as_slice(), b"}"].concat();
            let body = parse(&text, &Limits::default()).unwrap();
            rows.extend(index.key(&body, &|| false).unwrap().map(|key| (Value::Array(key), document.id)));
        }
    }
    rows.sort_by(|a, b| compare(&a.0, &b.0).then_with(|| a.1.cmp(&b.1)));
    rows.into_iter().map(|(_, id)| id).collect()
}

pub(super) async fn assert_exact(db: &Database) {
    for index in indexes(db).await.into_iter().filter(|index| index.kind == "json") {
        assert!(index.readable);
        let wanted = expected(db, &compiled(&index).unwrap()).await;
        assert_eq!(ids_of(db, index.number).await, wanted, "{}", String::from_utf8_lossy(&index.definition));
    }
}

#[tokio::test]
async fn a_process_that_knows_neither_the_index_nor_its_names_keeps_it() {
    let Some(([one, other], _storage)) = with_faults(0.0, 2, None).await else { return };
    put(&other, "warm", None, r#"{"x":1}"#).await.unwrap();
    let rev = put(&one, "d", None, r#"{"name":"old","x":1}"#).await.unwrap();
    let gone = put(&one, "gone", None, r#"{"name":"gone","x":1}"#).await.unwrap();
    put(&one, "_design/a", None, &design(&[r#"{"fields":{"name":"asc"}}"#])).await.unwrap();
    build_all(&one).await;
    assert_eq!(ids_of(&one, 1).await, ["gone", "d"]);
    // It learns of the index and of the name within the transaction.
    put(&other, "new", None, r#"{"x":2}"#).await.unwrap();
    put(&other, "d", Some(&rev), r#"{"x":3}"#).await.unwrap();
    other.purge("gone", &[gone]).await.unwrap();
    assert_eq!(ids_of(&one, 1).await, Vec::<String>::new());
    put(&other, "mine", None, r#"{"name":"mine"}"#).await.unwrap();
    assert_eq!(ids_of(&one, 1).await, ["mine"]);
    assert_clean(&one).await;
    assert_clean(&other).await;
}

#[tokio::test]
async fn a_database_has_one_ticket_whatever_its_record_says() {
    let (db, _storage) = database().await;
    let before = resolved(&db.inner, &db.name).await.unwrap();
    put(&db, "_design/a", None, &design(&[r#"{"fields":{"a":"asc"}}"#])).await.unwrap();
    let after = resolved(&db.inner, &db.name).await.unwrap();
    assert_ne!(before.record, after.record);
    assert!(Arc::ptr_eq(selector_lock(&before), selector_lock(&after)));
}

#[tokio::test]
async fn a_filter_that_takes_long_waits_for_a_turn() {
    let (layer, authority, _storage) = crate::tests::fenced::layer().await;
    let [db, other] = ["db", "other"].map(|name| layer.database(name, authority.for_job("test")));
    let index = r#"{"fields":{"n":"asc"},"partial_filter_selector":{"text":{"$regex":"^a*$"}}}"#;
    let long = format!(r#"{{"n":1,"text":"{}"}}"#, "a".repeat(40_000));
    other.create(&CreateOptions::default()).await.unwrap();
    for db in [&db, &other] {
        put(db, "_design/d", None, &design(&[index])).await.unwrap();
        build_all(db).await;
    }
    let held = db.inner.turns.selecting.clone().acquire_many_owned(2).await.unwrap();
    let mut write = Box::pin(put(&db, "long", None, &long));
    tokio::select! {
        biased;
        _ = &mut write => panic!("no turn was free"),
        rev = put(&other, "short", None, r#"{"n":2,"text":"aaa"}"#) => drop(rev.unwrap()),
    }
    drop(held);
    write.await.unwrap();
    assert_eq!(ids_of(&db, 1).await, ["long"]);
    assert_exact(&db).await;
}

#[tokio::test]
async fn filters_are_compiled_in_a_turn() {
    let (db, _storage) = database().await;
    let filter = r#"{"text":{"$regex":"^filters_are_compiled_in_a_turn$"}}"#;
    let map = format!(r#"{{"fields":{{"n":"asc"}},"partial_filter_selector":{filter}}}"#);
    put(&db, "_design/d", None, &design(&[&map])).await.unwrap();
    let instance = resolved(&db.inner, &db.name).await.unwrap();
    assert!(db.json_indexes_known().is_none(), "no query compiles them for itself");
    let held = db.inner.turns.selecting.clone().acquire_many_owned(2).await.unwrap();
    let asking = tokio::spawn({
        let db = db.clone();
        async move { db.json_indexes().await.map(|indexes| indexes.all().len()) }
    });
    until("it waits for a turn", async || selector_lock(&instance).try_lock().is_err()).await;
    drop(held);
    assert_eq!(soon(asking).await.unwrap().unwrap(), 2);
    assert!(db.json_indexes_known().is_some());
    // A process without them compiles them once, between two attempts.
    let trx = begin(&db);
    let within = IndexContext { inner: &db.inner, trx: &trx, instance: &instance };
    compile_within(&within).await.unwrap();
    let other = r#"{"fields":{"n":"asc"},"partial_filter_selector":{"text":{"$regex":"^as_within_an_attempt$"}}}"#;
    put(&db, "_design/e", None, &design(&[other])).await.unwrap();
    let instance = resolved(&db.inner, &db.name).await.unwrap();
    let within = IndexContext { instance: &instance, ..within };
    assert!(matches!(compile_within(&within).await, Err(Error::Storage(error)) if error.code() == 1007));
    trx.apart().take_lacking().unwrap().await.unwrap();
    assert!(uncompiled(&instance).next().is_none());
    compile_within(&within).await.unwrap();
}

/// The operation waits between two attempts, of which the second has the result and needs no turn.
#[tokio::test]
async fn no_transaction_waits_for_a_turn() {
    let (layer, authority, _storage) = crate::tests::fenced::layer().await;
    let filter = |operator: &str| format!(r#"{{"text":{{"$regex":"^a{operator}$"}}}}"#);
    let json = |operator: &str| {
        let map = format!(r#"{{"fields":{{"n":"asc"}},"partial_filter_selector":{}}}"#, filter(operator));
        format!(r#"{{"language":"query","views":{{"i":{{"map":{map},"options":{{}}}}}}}}"#)
    };
    let selector = |operator: &str| format!(r#"{{"selector_indexes":{{"i":{}}}}}"#, filter(operator));
    let is_counted = flatbed_store::waits::are_exact();
    for (name, design) in
        [("of-fields", &json as &dyn Fn(&str) -> String), ("of-selectors", &selector as &dyn Fn(&str) -> String)]
    {
        let db = layer.database(name, authority.for_job("test"));
        db.create(&CreateOptions::default()).await.unwrap();
        let short = r#"{"n":2,"text":"b"}"#;
        let rev = put(&db, "_design/d", None, &design("+")).await.unwrap();
        put(&db, "warm", None, short).await.unwrap();
        let (done, once) = crate::waits::count(put(&db, "short", None, short)).await;
        done.unwrap();
        let once = once.transactions;
        // Selectors of a design document are compiled before the attempt that defines them.
        let (done, waited) = crate::waits::count(put(&db, "_design/d", Some(&rev), &design("*"))).await;
        done.unwrap();
        assert!(!is_counted || waited.transactions == once + 1, "{name}: {waited:?}, {once} without");
        build_all(&db).await;
        put(&db, "warm again", None, short).await.unwrap();
        let long = format!(r#"{{"n":1,"text":"{}"}}"#, "a".repeat(40_000));
        let turns = db.inner.turns.selecting.clone();
        let held = turns.clone().acquire_many_owned(2).await.unwrap();
        let writing = tokio::spawn({
            let db = db.clone();
            async move { crate::waits::count(put(&db, "long", None, &long)).await }
        });
        let instance = resolved(&db.inner, &db.name).await.unwrap();
        until("it waits for a turn", async || selector_lock(&instance).try_lock().is_err()).await;
        // It has both turns at the same time as one.
        let mut next = Box::pin(turns.acquire_many_owned(2));
        assert!((&mut next).now_or_never().is_none());
        drop(held);
        let next = soon(next).await.unwrap();
        let (done, waited) = soon(writing).await.unwrap();
        done.unwrap();
        assert!(!is_counted || waited.transactions == once + 1, "{name}: {waited:?}, {once} without");
        drop(next);
        assert_exact(&db).await;
        assert_clean(&db).await;
    }
}

/// A match ends its turn inside a document if another database waits, after about a million steps. Each regular
/// expression takes 1.6 million on 100 kB.
#[tokio::test]
async fn a_filter_on_a_large_document_gives_its_turn_up() {
    let (layer, authority, _storage) = crate::tests::fenced::layer().await;
    let conditions = (0..5).map(|n| format!(r#"{{"text":{{"$regex":"x{n}"}}}}"#)).collect::<Vec<_>>().join(",");
    let filter = format!(r#"{{"$or":[{conditions},{{"text":{{"$regex":"ab"}}}}]}}"#);
    let map = format!(r#"{{"fields":{{"n":"asc"}},"partial_filter_selector":{filter}}}"#);
    for (name, design) in
        [("of-fields", design(&[&map])), ("of-selectors", format!(r#"{{"selector_indexes":{{"i":{filter}}}}}"#))]
    {
        let db = layer.database(name, authority.for_job("test"));
        db.create(&CreateOptions::default()).await.unwrap();
        put(&db, "_design/d", None, &design).await.unwrap();
        build_all(&db).await;
        put(&db, "warm", None, r#"{"n":2,"text":"b"}"#).await.unwrap();
        let permits = db.inner.turns.selecting.clone();
        let (one, other) = (permits.clone().acquire_owned().await.unwrap(), permits.acquire_owned().await.unwrap());
        let writing = tokio::spawn({
            let (db, long) = (db.clone(), format!(r#"{{"n":1,"text":"{}b"}}"#, "a".repeat(100_000)));
            async move { put(&db, "long", None, &long).await }
        });
        until("the write waits for a turn", async || db.inner.turns.selecting_waiters() == 1).await;
        let (neighbour, gate) = (Arc::<tokio::sync::Mutex<()>>::default(), Arc::<tokio::sync::Mutex<()>>::default());
        let (held, begun) = (gate.clone().lock_owned().await, Arc::new(AtomicBool::new(false)));
        let quiet = tokio::spawn({
            let (db, begun) = (db.clone(), begun.clone());
            let work = move || {
                begun.store(true, Ordering::SeqCst);
                drop(gate.blocking_lock());
            };
            async move { db.inner.turns.select(&neighbour, work).await }
        });
        until("a neighbour waits for a turn", async || db.inner.turns.selecting_waiters() == 2).await;
        drop(one);
        until("the neighbour has its turn", async || begun.load(Ordering::SeqCst)).await;
        until("the write waits again", async || db.inner.turns.selecting_waiters() == 1).await;
        drop(held);
        soon(quiet).await.unwrap().unwrap();
        soon(writing).await.unwrap().unwrap();
        drop(other);
        assert_exact(&db).await;
        assert_clean(&db).await;
    }
}

#[tokio::test]
async fn many_long_keys_that_go_are_taken_in_several_transactions() {
    let (db, _storage) = database().await;
    let fields = [r#"{"fields":{"a":"asc"}}"#, r#"{"fields":{"b":"asc"}}"#, r#"{"fields":{"a":"asc","b":"asc"}}"#];
    put(&db, "_design/a", None, &design(&fields)).await.unwrap();
    build_all(&db).await;
    let text = |n: usize| format!(r#"{{"a":"{n:05}{}","b":"{n:05}{}"}}"#, "x".repeat(4_000), "y".repeat(4_000));
    let texts: Vec<_> = (0..60).map(|n| (format!("d{n:04}"), text(n))).collect();
    let edits: Vec<_> = texts.iter().map(|(id, text)| edit(id, None, text)).collect();
    let revs: Vec<_> = db.bulk_update(&edits).await.unwrap().into_iter().map(|outcome| outcome.unwrap().rev).collect();
    assert_exact(&db).await;
    let edits: Vec<_> = texts.iter().zip(revs).map(|((id, _), rev)| edit(id, Some(rev), r#"{"a":1,"b":2}"#)).collect();
    assert!(db.bulk_update(&edits).await.unwrap().iter().all(|outcome| outcome.is_ok()));
    assert_exact(&db).await;
    assert_clean(&db).await;
}

#[tokio::test]
async fn a_document_with_large_entries_in_many_indexes_is_refused() {
    let (db, _storage) = database().await;
    let maps: Vec<String> = (0..40).map(|n| format!(r#"{{"fields":{{"k":"asc","n{n}":"asc"}}}}"#)).collect();
    let maps: Vec<&str> = maps.iter().map(String::as_str).collect();
    put(&db, "_design/a", None, &design(&maps)).await.unwrap();
    let members: Vec<String> = (0..40).map(|n| format!(r#""n{n}":1"#)).collect();
    let text = |length: usize| format!(r#"{{"k":"{}",{}}}"#, "x".repeat(length), members.join(","));
    assert_eq!(indexes(&db).await.len(), 40);
    let refused = put(&db, "large", None, &text(9_900)).await.unwrap_err();
    assert!(refused.to_string().contains("900000 bytes"), "{refused}");
    put(&db, "small", None, &text(10)).await.unwrap();
}

/// Each key sorts between the last two: the length of labels does not depend on the number of keys.
#[tokio::test]
async fn long_keys_in_the_worst_order_cost_few_reads() {
    let (db, _storage) = database().await;
    put(&db, "_design/a", None, &design(&[r#"{"fields":{"k":"asc"}}"#])).await.unwrap();
    build_all(&db).await;
    let text = |n: usize| format!(r#"{{"k":"{}{}{}"}}"#, "x".repeat(4_200), "01".repeat(n / 2), "1".repeat(n % 2));
    let mut revs = Vec::new();
    // A few concurrently: a comparison of two of these keys is slow without optimizations.
    for from in (0..40).step_by(5) {
        let texts: Vec<_> = (from..from + 5).map(|n| (format!("d{n:04}"), text(n))).collect();
        let edits: Vec<_> = texts.iter().map(|(id, text)| edit(id, None, text)).collect();
        for outcome in db.bulk_update(&edits).await.unwrap() {
            revs.push(outcome.unwrap().rev);
        }
    }
    let pivots = pivots_of(&db, 1).await;
    assert!(pivots < 120, "{pivots} pivots");
    let mut most = 0;
    for n in 40..42 {
        let (done, waits) = crate::waits::count(put(&db, &format!("d{n:04}"), None, &text(n))).await;
        revs.push(done.unwrap());
        most = most.max(waits.path.depth());
    }
    println!("{pivots} pivots, {most} waits");
    // In sequence it would be at least a wait for each of them.
    assert!(most < 35, "{most} waits");
    assert_clean(&db).await;
    let ids: Vec<String> = (0..revs.len()).map(|n| format!("d{n:04}")).collect();
    let edits: Vec<_> = ids.iter().zip(revs).map(|(id, rev)| edit(id, Some(rev), r#"{"k":1}"#)).collect();
    for some in edits.chunks(10) {
        assert!(db.bulk_update(some).await.unwrap().iter().all(|outcome| outcome.is_ok()));
    }
    assert_eq!(pivots_of(&db, 1).await, 0);
    assert_clean(&db).await;
}

/// Documents whose keys sort between the last two, in the order of ids, are entered in another order: their labels stay
/// short.
#[tokio::test]
async fn long_keys_are_built_in_no_order() {
    let (db, _storage) = database().await;
    let text = |n: usize| format!(r#"{{"k":"{}{}{}"}}"#, "x".repeat(4_200), "01".repeat(n / 2), "1".repeat(n % 2));
    let texts: Vec<_> =
        (0..80).map(|n| (format!("d{n:04}"), if n % 5 == 4 { "{}".to_owned() } else { text(n) })).collect();
    for some in texts.chunks(20) {
        let edits: Vec<_> = some.iter().map(|(id, text)| edit(id, None, text)).collect();
        assert!(db.bulk_update(&edits).await.unwrap().iter().all(|outcome| outcome.is_ok()));
    }
    put(&db, "_design/a", None, &design(&[r#"{"fields":{"k":"asc"}}"#])).await.unwrap();
    build_all(&db).await;
    assert_clean(&db).await;
    let instance = resolved(&db.inner, &db.name).await.unwrap();
    let trx = begin(&db);
    let pages = flatbed_databases::document::body::begin_read(&trx, instance.keys.index(1))
        .finish(&trx, 10_000_000)
        .await
        .unwrap();
    let mut labels = Vec::new();
    for row in pages.iter().flat_map(|page| page.iter()) {
        match instance.keys.split_index(row.key()).unwrap() {
            (_, IndexPart::OfDocument(_)) => labels.push(row.value().len()),
            (_, part @ (IndexPart::Later(_) | IndexPart::Progress)) => panic!("{part:?} is left"),
            _ => {}
        }
    }
    assert_eq!(labels.len(), 64);
    // In the order of ids each would add a bit, after 32 for the first: two words of 8 bytes.
    let long = labels.iter().filter(|bytes| **bytes > 8).count();
    assert!(long < 10, "{labels:?}");
}

/// A builder without room for a long key begins a new index, whose labels have room.
#[tokio::test]
async fn an_index_without_room_is_built_under_another_number() {
    let (db, _storage) = database().await;
    let text = |n: u8| format!(r#"{{"k":"{}{n}"}}"#, "x".repeat(4_200));
    put(&db, "between", None, &text(2)).await.unwrap();
    put(&db, "_design/a", None, &design(&[r#"{"fields":{"k":"asc"}}"#])).await.unwrap();
    // Writes add the keys around it, which are as close as labels can be.
    put(&db, "before", None, &text(1)).await.unwrap();
    put(&db, "behind", None, &text(3)).await.unwrap();
    let instance = resolved(&db.inner, &db.name).await.unwrap();
    let (trx, keys) = (begin(&db), &instance.keys);
    let pages =
        flatbed_databases::document::body::begin_read(&trx, keys.index(1)).finish(&trx, 10_000_000).await.unwrap();
    for row in pages.iter().flat_map(|page| page.iter()) {
        match keys.split_index(row.key()).unwrap() {
            (_, IndexPart::Entry(SortPlace { element, id, .. })) => {
                let (cut, _) = flatbed_collate::split(&element);
                let mut label = [[0x80; 8]; 96].concat();
                label[767] += u8::from(id == "behind");
                let element = [cut, &label].concat();
                trx.clear(row.key());
                trx.set(&keys.index_entry(1, RowPlaces(None), &element, &id), row.value());
                trx.set(&keys.index_of_document(1, &id), &label);
            }
            (_, IndexPart::Node(..)) => trx.clear(row.key()),
            _ => {}
        }
    }
    trx.commit().await.unwrap();
    assert_eq!(indexes(&db).await.iter().map(|index| index.number).collect::<Vec<_>>(), [1]);
    build_all(&db).await;
    assert_eq!(indexes(&db).await.iter().map(|index| index.number).collect::<Vec<_>>(), [2]);
    assert_eq!(ids_of(&db, 2).await, ["before", "between", "behind"]);
    assert_exact(&db).await;
    assert_clean(&db).await;
}

async fn pivots_of(db: &Database, number: u64) -> usize {
    let instance = resolved(&db.inner, &db.name).await.unwrap();
    let trx = begin(db);
    let pages =
        flatbed_databases::document::body::begin_read(&trx, instance.keys.index(number)).finish(&trx, 10_000_000).await;
    let is_node = |key: &[u8]| matches!(instance.keys.split_index(key).unwrap(), (_, IndexPart::Node(..)));
    pages.unwrap().iter().flat_map(|page| page.iter()).filter(|row| is_node(row.key())).count()
}

const MAPS: [&str; 4] = [
    r#"{"fields":{"a":"asc"}}"#,
    r#"{"fields":{"b.c":"asc","a":"asc"}}"#,
    r#"{"fields":{"a":"asc"},"partial_filter_selector":{"b.c":{"$gt":2}}}"#,
    r#"{"fields":{"n":"asc"}}"#,
];

fn body(random: &mut Random) -> String {
    let value = match random.below(9) {
        0 => format!(r#""{}{}""#, "x".repeat(4_100), random.below(9)),
        1 => format!(r#""{}{}{}""#, "x".repeat(4_100), random.below(4), "z".repeat(9_000)),
        2 => r#"{"o":[1,null]}"#.to_owned(),
        3 => "null".to_owned(),
        _ => format!(r#""v{}""#, random.below(6)),
    };
    let large = match random.below(12) {
        0 => format!(r#","x":[{}]"#, vec![format!("{:?}", "y".repeat(900)); 600].join(",")),
        _ => String::new(),
    };
    match random.below(8) {
        0 => r#"{"_deleted":true}"#.to_owned(),
        1 => format!(r#"{{"n":{}{large}}}"#, random.below(5)),
        _ => format!(r#"{{"a":{value},"b":{{"c":{}}},"n":{}{large}}}"#, random.below(5), random.below(50)),
    }
}

/// Edits, conflicts, deletions, purges, and sometimes other indexes; and queries, which never fail.
async fn writer(db: Database, seed: u64) {
    let mut random = Random(seed);
    for _ in 0..50 {
        let id = format!("d{:02}", random.below(30));
        let leaf = db.get(&id, &GetOptions::default()).await.ok().map(|document| document.rev);
        let body = body(&mut random);
        let done = match random.below(12) {
            0 => {
                let maps = [&MAPS[..1], &MAPS[1..3], &MAPS[2..], &[]][random.below(4) as usize];
                let id = ["_design/a", "_design/b"][random.below(2) as usize];
                let parent = db.get(id, &GetOptions::default()).await.ok().map(|document| document.rev);
                put(&db, id, parent.as_ref(), &design(maps)).await.map(|_| ())
            }
            1 | 2 => match &leaf {
                Some(rev) => db.purge(&id, std::slice::from_ref(rev)).await.map(|_| ()),
                None => Ok(()),
            },
            3 => {
                let rev = format!("{}-{:032x}", 1 + random.below(4), random.below(1 << 30));
                let history = Some(vec![rev.parse().unwrap()]);
                db.bulk_update(&[Edit { history, ..edit(&id, None, &body) }]).await.map(|_| ())
            }
            _ => put(&db, &id, leaf.as_ref(), &body).await.map(|_| ()),
        };
        match done {
            Ok(()) | Err(Error::Refused(Refusal::Conflict | Refusal::DocumentNotFound(_))) => {}
            // A commit with an unknown result is resolved by a read.
            Err(Error::Storage(error)) if error.is_maybe_committed() => {}
            Err(error) => panic!("{error}"),
        }
    }
}

async fn torture(probability: f64, seed: u64) {
    let Some(([one, other], _storage)) = with_faults(probability, seed, None).await else { return };
    put(&one, "_design/a", None, &design(&MAPS[..2])).await.unwrap();
    let (done, ended) = tokio::sync::watch::channel(false);
    let working: Vec<_> = [&one, &other]
        .into_iter()
        .enumerate()
        .map(|(n, db)| tokio::spawn(workers(db.clone(), seed + n as u64, ended.clone())))
        .collect();
    let writers: Vec<_> =
        (0..4).map(|n| tokio::spawn(writer([&one, &other][n % 2].clone(), seed * 100 + n as u64))).collect();
    for writer in writers {
        writer.await.unwrap();
    }
    done.send_replace(true);
    for working in working {
        working.await.unwrap();
    }
    assert_clean(&one).await;
    build_all(&one).await;
    assert_exact(&one).await;
    assert_clean(&other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_indexes_are_exact_after_random_work() {
    torture(0.0, 11).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_indexes_are_exact_after_random_work_with_faults() {
    torture(0.05, 12).await;
}
