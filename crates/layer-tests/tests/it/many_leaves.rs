//! Documents with very many leaves, and many documents whose bodies move at once: transactions stay within their
//! bounds.

use crate::support::*;
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::{Database, Edit, EditParts, Error, GetOptions, LayerOptions, OpenRevs, Refusal, RevId};

struct Write {
    id: String,
    parent: Option<RevId>,
    history: Option<Vec<RevId>>,
    body: String,
}

fn edit(write: &Write) -> Edit<'static> {
    let parts = EditParts::from_json(
        parse(write.body.as_bytes(), &Limits::default()).unwrap(),
        &flatbed_clock::Clock::system(),
    )
    .unwrap();
    Edit {
        expiry: None,
        id: write.id.clone().into(),
        parent: write.parent.clone(),
        history: write.history.clone(),
        deleted: parts.deleted,
        attachments: Vec::new(),
        body: parts.body.into_owned(),
    }
}

async fn bulk(db: &Database, writes: &[Write]) -> Vec<Result<RevId, Refusal>> {
    let edits: Vec<_> = writes.iter().map(edit).collect();
    let results = db.bulk_update(&edits).await.expect("a bulk");
    results.into_iter().map(|result| result.map(|updated| updated.rev)).collect()
}

fn replicated(id: &str, path: &[String], body: &str) -> Write {
    let history = Some(path.iter().map(|rev| rev.parse().unwrap()).collect());
    Write { id: id.into(), parent: None, history, body: body.into() }
}

async fn leaves(db: &Database, id: &str) -> Vec<(Vec<RevId>, bool)> {
    let options = GetOptions { revs: true, ..GetOptions::default() };
    let (mut leaves, mut count) = (Vec::new(), 1);
    while leaves.len() < count {
        let (found, all) = db.open_revs(id, &OpenRevs::All, leaves.len(), false, &options).await.unwrap();
        assert!((1..=500).contains(&found.len()));
        count = all;
        leaves
            .extend(found.into_iter().map(|found| found.unwrap()).map(|leaf| (leaf.revisions.unwrap(), leaf.deleted)));
    }
    leaves
}

/// Returns text that does not compress.
fn noise(random: &mut Random, size: usize) -> String {
    let letters = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    (0..size).map(|_| char::from(letters[random.below(62) as usize])).collect()
}

#[tokio::test]
async fn one_request_brings_500_leaves_and_another_resolves_them() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let writes: Vec<_> = (0..520)
        .map(|leaf| replicated("d", &[format!("2-{leaf:03}"), "1-a".into()], &format!(r#"{{"leaf":{leaf}}}"#)))
        .collect();
    assert!(bulk(&db, &writes).await.iter().all(|outcome| outcome.is_ok()));
    assert_eq!(leaves(&db, "d").await.len(), 520);
    assert_eq!(get(&db, "d").await.unwrap(), r#"{"leaf":519}"#);
    let deletions = leaves(&db, "d").await.into_iter().skip(1).map(|(line, _)| Write {
        id: "d".into(),
        parent: Some(line[0].clone()),
        history: None,
        body: r#"{"_deleted":true}"#.into(),
    });
    let deletions = deletions.collect::<Vec<_>>();
    assert!(bulk(&db, &deletions).await.iter().all(|outcome| outcome.is_ok()));
    assert_eq!(leaves(&db, "d").await.iter().filter(|(_, deleted)| !deleted).count(), 1);
    assert_eq!(get(&db, "d").await.unwrap(), r#"{"leaf":0}"#);
    assert_clean(&layer, &db).await;
}

/// In each document a losing leaf of 350 kB becomes the winner: together they exceed FoundationDB's limit of a
/// transaction.
#[tokio::test]
async fn many_bodies_come_up_at_once() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let mut random = Random(1);
    let ids: Vec<String> = (0..36).map(|number| format!("d{number:02}")).collect();
    for ids in ids.chunks(12) {
        let large = format!(r#"{{"large":"{}"}}"#, noise(&mut random, 350_000));
        let losers: Vec<_> = ids.iter().map(|id| replicated(id, &["1-a".into()], &large)).collect();
        assert!(bulk(&db, &losers).await.iter().all(|outcome| outcome.is_ok()));
    }
    let winners: Vec<_> = ids.iter().map(|id| replicated(id, &["1-b".into()], "{}")).collect();
    assert!(bulk(&db, &winners).await.iter().all(|outcome| outcome.is_ok()));
    let winner = Some("1-b".parse().unwrap());
    let deletions: Vec<_> = ids
        .iter()
        .map(|id| Write { id: id.clone(), parent: winner.clone(), history: None, body: r#"{"_deleted":true}"#.into() })
        .collect();
    for result in bulk(&db, &deletions).await {
        result.unwrap();
    }
    for id in &ids {
        assert!(get(&db, id).await.unwrap().len() > 350_000);
    }
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn leaves_beyond_the_limit_are_refused() {
    let store = Store::new();
    let layer = store.layer_with(LayerOptions { leaves_max: 20, ..LayerOptions::default() }).await;
    let db = create(&layer, "db", None).await;
    let leaf = |leaf: u64| replicated("d", &[format!("2-{leaf:02}"), "1-a".into()], "{}");
    let results = bulk(&db, &(0..25).map(leaf).collect::<Vec<_>>()).await;
    assert!(results[..20].iter().all(|outcome| outcome.is_ok()));
    assert!(results[20..].iter().all(|result| matches!(result, Err(Refusal::TooManyLeaves { leaves_max: 20 }))));
    // Edits that add no leaves are accepted.
    let others =
        [leaf(3), replicated("d", &["3-x".into(), "2-05".into()], "{}"), replicated("d", &["1-a".into()], "{}")];
    assert!(bulk(&db, &others).await.iter().all(|outcome| outcome.is_ok()));
    delete(&db, "d", &"2-07".parse().unwrap()).await.unwrap();
    assert_eq!(leaves(&db, "d").await.len(), 20);
    assert_clean(&layer, &db).await;
    // After a purge another leaf is accepted.
    db.purge("d", &["2-08".parse().unwrap()]).await.unwrap();
    assert!(bulk(&db, &[leaf(24)]).await[0].is_ok());
    assert_clean(&layer, &db).await;
}

/// The ancestors that a path adds to many branches are written into each of them.
#[tokio::test]
async fn a_path_that_many_branches_share_is_taken_while_it_fits() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    for (id, hash, fits) in [("short", "h".to_owned(), true), ("long", "h".repeat(500), false)] {
        let rev = |generation: u64| format!("{generation}-{hash}");
        let writes: Vec<_> = (0..420).map(|leaf| replicated(id, &[format!("101-{leaf:03}"), rev(100)], "{}")).collect();
        assert!(bulk(&db, &writes).await.iter().all(|outcome| outcome.is_ok()));
        let past: Vec<String> = (1..=100).rev().map(rev).collect();
        let result = bulk(&db, &[replicated(id, &past, "{}")]).await.pop().unwrap();
        assert!(matches!((fits, &result), (true, Ok(_)) | (false, Err(Refusal::TooManyLeaves { .. }))), "{result:?}");
        let length = if fits { 101 } else { 2 };
        assert!(leaves(&db, id).await.iter().all(|(line, _)| line.len() == length));
        assert_clean(&layer, &db).await;
    }
}

#[tokio::test]
async fn what_reads_many_leaves_ends_a_read_of_many_documents() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let writes: Vec<Write> = (0..150).map(|at| replicated("d", &[format!("2-{at}"), "1-a".into()], "{}")).collect();
    assert!(bulk(&db, &writes).await.iter().all(|outcome| outcome.is_ok()));
    let options = GetOptions { rev: Some("1-a".parse().unwrap()), latest: true, ..GetOptions::default() };
    let requests = vec![("d".to_owned(), options); 100];
    // Each of them reads all leaves.
    let found = db.get_many(&requests).await.unwrap().len();
    assert!((1..100).contains(&found), "{found}");
}

#[tokio::test]
async fn edits_of_one_request_go_through_a_bounded_number_of_leaves() {
    let store = Store::new();
    let layer = store.layer_with(LayerOptions { leaves_read_max: 2_000, ..LayerOptions::default() }).await;
    let db = create(&layer, "db", None).await;
    let branches = |begin, end| -> Vec<Write> {
        (begin..end).map(|at| replicated("d", &[format!("2-{at:03}"), "1-a".into()], "{}")).collect()
    };
    let count = async || db.open_revs("d", &OpenRevs::All, 0, false, &GetOptions::default()).await.unwrap().1;
    assert!(bulk(&db, &branches(0, 60)).await.iter().all(|outcome| outcome.is_ok()));
    let edits = |writes: &[Write]| -> Vec<Edit<'static>> { writes.iter().map(edit).collect() };
    let refused = db.bulk_update(&edits(&branches(60, 160))).await;
    assert!(matches!(refused, Err(Error::Refused(Refusal::TooManyEdits))), "{refused:?}");
    // The edits before the first one over the limit are applied.
    let made = count().await;
    assert!((61..160).contains(&made), "{made}");
    // The edits are accepted in parts, and those of many documents do not count.
    for begin in (60..160).step_by(10) {
        assert!(bulk(&db, &branches(begin, begin + 10)).await.iter().all(|outcome| outcome.is_ok()));
    }
    assert_eq!(count().await, 160);
    let others: Vec<Write> = (0..50).map(|at| replicated(&format!("e{at}"), &["1-a".into()], "{}")).collect();
    assert!(bulk(&db, &others).await.iter().all(|outcome| outcome.is_ok()));
    assert_clean(&layer, &db).await;
}
