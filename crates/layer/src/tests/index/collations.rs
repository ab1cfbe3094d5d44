//! Json indexes beside programs with older or newer collations.
#![cfg(test)]

use flatbed_mango::Find as Request;
use flatbed_operations::index::definitions::reorder;

use crate::FindOptions;
use crate::tests::index::json::{assert_exact, design, ids_of};
use crate::tests::index::*;

const OLDER: &str = "icu_collator 2.3.0 1 0000000000000000";
const NEWER: &str = "icu_collator 2.5.0 1 1111111111111111";

const MAPS: [&str; 2] = [
    r#"{"fields":{"name":"asc"},"partial_filter_selector":{}}"#,
    r#"{"fields":{"n":"asc"},"partial_filter_selector":{"n":{"$gte":2.50}}}"#,
];

/// Opens the same database in a program with another collation.
async fn program(db: &Database, collation: &'static str) -> Database {
    let (mut layer, authority) = Layer::open(db.inner.db.clone(), db.inner.options.clone(), None).await.unwrap();
    Arc::get_mut(&mut layer.inner).expect("no other has it").collation = collation;
    layer.database("db", authority.for_job("test"))
}

/// Opens a database with documents and built indexes in an older program, and in a newer one.
async fn two() -> (Database, Database, Storage) {
    let (db, storage) = database().await;
    let (older, newer) = (program(&db, OLDER).await, program(&db, NEWER).await);
    for n in 0..25 {
        put(&older, &format!("d{n:02}"), None, &format!(r#"{{"name":"n{}","n":{n}}}"#, n % 7)).await.unwrap();
    }
    put(&older, "_design/a", None, &design(&MAPS)).await.unwrap();
    build_all(&older).await;
    assert_exact(&older).await;
    (older, newer, storage)
}

/// Numbers and states of the indexes, and the collations that the record names.
async fn states(db: &Database) -> (Vec<(u64, bool)>, Vec<String>) {
    let record = resolved(&db.inner, &db.name).await.unwrap().record.clone();
    let orders = record.features.iter().filter_map(|feature| feature.strip_prefix("collation:"));
    let orders = orders.map(str::to_owned).collect();
    (record.indexes.iter().map(|index| (index.number, index.readable)).collect(), orders)
}

fn is_refused<T: std::fmt::Debug>(result: Result<T>) {
    let feature = format!("collation:{NEWER}");
    assert!(matches!(&result, Err(Error::FeatureUnknown { feature: found, .. }) if *found == feature), "{result:?}");
}

/// Returns the ids that a query by name finds; `None`: it waits for its index.
async fn found(db: &Database, indexes: &crate::JsonIndexes) -> Option<Vec<String>> {
    let selector = parse(br#"{"selector":{"name":"n3"}}"#, &Limits::default()).unwrap();
    let find = Request::parse(&selector, None, &|| false).unwrap();
    let plan = indexes.plan("db", &find).unwrap();
    assert_eq!(plan.index.name(), "i0");
    let mut find = db.find(indexes, &plan, FindOptions { limit: 100, ..FindOptions::default() });
    let mut ids: Vec<_> = find.read_page().await.unwrap()?.into_iter().map(|row| row.id).collect();
    let begun = ids.len();
    while let Some(page) = find.read_page().await.unwrap() {
        if page.is_empty() && begun == 0 {
            return None;
        }
        ids.extend(page.into_iter().map(|row| row.id));
    }
    Some(ids)
}

#[tokio::test]
async fn a_write_of_a_newer_program_builds_indexes_anew() {
    let (older, newer, _storage) = two().await;
    assert_eq!(states(&newer).await, (vec![(1, true), (2, true)], vec![OLDER.to_owned()]));
    // Neither finds a violation before.
    assert_clean(&older).await;
    assert_clean(&newer).await;
    put(&newer, "new", None, r#"{"name":"new","n":7}"#).await.unwrap();
    assert_eq!(states(&newer).await, (vec![(3, false), (4, false)], vec![NEWER.to_owned()]));
    for (number, ids) in [(1, vec![]), (2, vec![]), (3, vec!["new"]), (4, vec!["new"])] {
        assert_eq!(ids_of(&newer, number).await, ids, "{number}");
    }
    is_refused(put(&older, "old", None, r#"{"name":"old"}"#).await);
    is_refused(older.get("new", &GetOptions::default()).await);
    is_refused(older.json_indexes().await);
    build_all(&newer).await;
    assert_exact(&newer).await;
    assert_clean(&newer).await;
    // The definitions are those of this program: an edit that does not change them keeps them.
    let rev = newer.get("_design/a", &GetOptions::default()).await.unwrap().rev;
    put(&newer, "_design/a", Some(&rev), &design(&MAPS)).await.unwrap();
    assert_eq!(states(&newer).await, (vec![(3, true), (4, true)], vec![NEWER.to_owned()]));
    is_refused(reorder(&older.inner, "db").await);
    assert_eq!(states(&newer).await, (vec![(3, true), (4, true)], vec![NEWER.to_owned()]));
}

#[tokio::test]
async fn a_query_of_a_newer_program_does_not_read_an_older_index_and_has_it_built() {
    let (older, newer, _storage) = two().await;
    let wanted = found(&older, &older.json_indexes().await.unwrap()).await;
    assert_eq!(wanted.as_deref(), Some(&["d03", "d10", "d17", "d24"].map(str::to_owned)[..]));
    let indexes = newer.json_indexes().await.unwrap();
    assert_eq!((indexes.all().len(), indexes.readable().len()), (3, 1));
    let known = newer.json_indexes_known().unwrap();
    assert_eq!(known.readable().len(), 1);
    let waits = tokio::time::timeout(Duration::from_millis(200), found(&newer, &indexes)).await;
    assert!(matches!(waits, Err(_) | Ok(None)), "{waits:?}");
    assert_eq!(states(&newer).await.0, [(1, true), (2, true)], "a read writes nothing");
    // Background work does the rest after the database was opened.
    let background = background(&newer, Duration::from_secs(1));
    background.start();
    until("the indexes are built", async || states(&newer).await.0 == [(3, true), (4, true)]).await;
    background.stop().await;
    let late = found_or_gone(&newer, &indexes).await;
    assert!(matches!(late, Err(Error::Refused(Refusal::IndexGone))), "{late:?}");
    assert_eq!(found(&newer, &newer.json_indexes().await.unwrap()).await, wanted);
    assert_exact(&newer).await;
    assert_clean(&newer).await;
}

async fn found_or_gone(db: &Database, indexes: &crate::JsonIndexes) -> Result<usize> {
    let selector = parse(br#"{"selector":{"name":"n3"}}"#, &Limits::default()).unwrap();
    let find = Request::parse(&selector, None, &|| false).unwrap();
    let plan = indexes.plan("db", &find).unwrap();
    let mut find = db.find(indexes, &plan, FindOptions { limit: 100, ..FindOptions::default() });
    Ok(find.next_page().await?.map_or(0, |rows| rows.len()))
}

#[tokio::test]
async fn a_write_of_an_older_program_that_does_not_know_of_it_is_not_committed() {
    let (older, newer, _storage) = two().await;
    let inner = &*older.inner;
    let instance = resolved(inner, "db").await.unwrap();
    let edits = [edit("late", None, r#"{"name":"late","n":9}"#)];
    let mut items = prepare(&older.handle, &instance, &edits, &[0]).await.unwrap().batches.pop().unwrap();
    let work = Work::new(inner);
    let mut write = WriteBatch {
        inner,
        instance: &instance,
        edits: &edits,
        items: &mut items,
        attempts: 0,
        work: &work,
        preparations: Preparations::of(&instance),
        is_shared: false,
    };
    let trx = begin(&older);
    write.attempt(&trx, FIRST).await.unwrap();
    // A builder of the older one fails, too.
    let build = begin(&older);
    let mut step = Step::new(inner, "db", 1, BuildPace::default());
    step.attempt(&build, FIRST).await.unwrap();
    build.set(b"what a step writes", b"");
    reorder(&newer.inner, "db").await.unwrap();
    assert!(trx.commit().await.is_err());
    assert!(build.commit().await.is_err());
    is_refused(write.attempt(&begin(&older), FIRST).await.map(|_| ()));
    reorder(&newer.inner, "db").await.unwrap();
    assert_eq!(states(&newer).await.0, [(3, false), (4, false)]);
    build_all(&newer).await;
    assert_exact(&newer).await;
    assert_clean(&newer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_write_is_lost_from_an_index_in_a_rolling_update() {
    let (older, newer, _storage) = two().await;
    let background = background(&newer, Duration::from_secs(1));
    let writer = |db: Database, name: &'static str| async move {
        let mut written = 0;
        for n in 0..60 {
            match put(&db, &format!("{name}{n:02}"), None, &format!(r#"{{"name":"{name}{n}","n":{n}}}"#)).await {
                Ok(_) => written += 1,
                Err(error @ Error::FeatureUnknown { .. }) => {
                    is_refused(Err::<(), _>(error));
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        written
    };
    let others = (0..2).map(|at| tokio::spawn(writer(older.clone(), ["x", "y"][at])));
    let others: Vec<_> = others.collect();
    until("it is written", async || newer.get("x03", &GetOptions::default()).await.is_ok()).await;
    background.start();
    let own = (0..2).map(|at| tokio::spawn(writer(newer.clone(), ["v", "w"][at])));
    for own in own.collect::<Vec<_>>() {
        assert_eq!(own.await.unwrap(), 60);
    }
    let mut written = 25 + 1 + 120;
    for other in others {
        written += other.await.unwrap();
    }
    until("the indexes are built", async || states(&newer).await.0 == [(3, true), (4, true)]).await;
    background.stop().await;
    assert_eq!(ids_of(&newer, 3).await.len() + 1, written);
    assert_eq!(newer.info().await.unwrap().doc_count, written as u64);
    assert_exact(&newer).await;
    assert_clean(&newer).await;
}
