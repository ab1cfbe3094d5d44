//! Several documents are written in one transaction, or none of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::{Layer, Random, Store, assert_clean, create, delete, get, put};
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::{
    Database, Edit, EditParts, Error, GetOptions, GetOutcome, Refusal, Result, RevId, WrittenRevision,
};

/// Creates an edit of a document with this body, on a revision.
fn edit<'a>(id: &'a str, parent: Option<&RevId>, body: &'a str) -> Edit<'a> {
    let parts = EditParts::from_json(
        parse(body.as_bytes(), &Limits::default()).expect("JSON"),
        &flatbed_clock::Clock::system(),
    )
    .expect("a document");
    Edit {
        expiry: None,
        id: id.into(),
        parent: parent.cloned(),
        history: None,
        deleted: parts.deleted,
        attachments: Vec::new(),
        body: parts.body,
    }
}

fn refused(result: Result<Vec<WrittenRevision>>) -> Vec<(String, String)> {
    match result {
        Err(Error::NoneWritten(refused)) => refused.into_iter().map(|(id, error)| (id, error.to_string())).collect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn all_are_written_or_none() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let first = put(&db, "there", None, r#"{"n":1}"#).await.unwrap();
    let written = db.update_all(&[edit("a", None, "{}"), edit("there", Some(&first), r#"{"n":2}"#)]).await.unwrap();
    assert_eq!(written.iter().map(|updated| updated.rev.generation()).collect::<Vec<_>>(), [1, 2]);
    // A large body is staged before the transaction, and removed if that is refused.
    let large = format!("{{\"pad\":\"{}\"}}", "x".repeat(2_000_000));
    let conflict = "Document update conflict.".to_owned();
    let edits =
        [edit("b", None, "{}"), edit("there", Some(&first), "{}"), edit("large", None, &large), edit("a", None, "{}")];
    let both = [("there".to_owned(), conflict.clone()), ("a".to_owned(), conflict)];
    assert_eq!(refused(db.update_all(&edits).await), both);
    for id in ["b", "large"] {
        assert!(matches!(get(&db, id).await, Err(Error::Refused(Refusal::DocumentNotFound(_)))), "{id}");
    }
    let twice = refused(db.update_all(&[edit("c", None, "{}"), edit("c", None, "{}")]).await);
    assert_eq!(twice, [("c".to_owned(), "the document is edited twice".to_owned())]);
    assert_eq!(refused(db.update_all(&[edit("c", None, "{}"), edit("_no", None, "{}")]).await)[0].0, "_no");
    // More than one transaction takes, by number and by size; large bodies are in blobs.
    let ids: Vec<String> = (0..251).map(|number| format!("m{number}")).collect();
    let many: Vec<Edit<'_>> = ids.iter().map(|id| edit(id, None, "{}")).collect();
    assert!(matches!(db.update_all(&many).await, Err(Error::Refused(Refusal::TooMuchAtOnce { .. }))));
    assert_eq!(db.update_all(&many[..250]).await.unwrap().len(), 250);
    let mut random = Random(1);
    let pad: String = (0..9_000).map(|_| char::from(b'a' + random.below(26) as u8)).collect();
    let wide = format!("{{\"pad\":\"{pad}\"}}");
    let ids: Vec<String> = (0..120).map(|number| format!("w{number}")).collect();
    let wide: Vec<Edit<'_>> = ids.iter().map(|id| edit(id, None, &wide)).collect();
    let too_much = db.update_all(&wide).await;
    assert!(matches!(too_much, Err(Error::Refused(Refusal::TooMuchAtOnce { .. }))), "{too_much:?}");
    assert!(matches!(get(&db, "w0").await, Err(Error::Refused(Refusal::DocumentNotFound(_)))));
    assert_eq!(db.update_all(&wide[..60]).await.unwrap().len(), 60);
    assert!(db.update_all(&[]).await.unwrap().is_empty());
    assert!(matches!(layer.database("none").update_all(&[]).await, Err(Error::DatabaseNotFound)));
    let report = flatbed_layer::check::check_database(&db, |_| {}).await.unwrap();
    assert!(report.is_clean() && report.staged_uploads == 0, "{report:#?}");
}

const ACCOUNTS: usize = 6;
const OPENING: i64 = 1_000;

fn account(number: usize) -> String {
    format!("account{number}")
}

/// Reads the balances of accounts at one read version, with their revisions.
async fn balances(db: &Database, accounts: &[usize]) -> Result<Vec<(RevId, i64)>> {
    let requests: Vec<_> = accounts.iter().map(|number| (account(*number), GetOptions::default())).collect();
    let found = db.get_many(&requests).await?;
    assert_eq!(found.len(), accounts.len());
    let one = |got: GetOutcome| match got {
        GetOutcome::Document(document) => {
            let text = String::from_utf8(document.body).unwrap();
            (document.rev, text.trim_start_matches("\"balance\":").parse().unwrap())
        }
        _ => panic!("an account is gone"),
    };
    Ok(found.into_iter().map(one).collect())
}

/// Moves money between three accounts at a time, some of it to a deleted account, which must move nothing.
async fn transfer(db: Database, gone: RevId, made: Arc<[AtomicU64; ACCOUNTS]>, seed: u64) {
    let mut random = Random(seed);
    for _ in 0..25 {
        let from = random.below(ACCOUNTS as u64) as usize;
        let accounts = [from, (from + 1) % ACCOUNTS, (from + 3) % ACCOUNTS];
        let amount = random.below(50) as i64;
        loop {
            let before = balances(&db, &accounts).await.unwrap();
            let after = [-2 * amount, amount, amount];
            let ids = accounts.map(account);
            let bodies: Vec<String> = before
                .iter()
                .zip(after)
                .map(|((_, balance), by)| format!("{{\"balance\":{}}}", balance + by))
                .collect();
            let parts = ids.iter().zip(&before).zip(&bodies);
            let mut edits: Vec<Edit<'_>> = parts.map(|((id, (rev, _)), body)| edit(id, Some(rev), body)).collect();
            let fails = random.below(4) == 0;
            if fails {
                edits.push(edit("gone", Some(&gone), "{}"));
            }
            match db.update_all(&edits).await {
                Ok(written) => {
                    assert!(!fails && written.len() == 3);
                    for number in accounts {
                        made[number].fetch_add(1, Ordering::Relaxed);
                    }
                    break;
                }
                Err(Error::NoneWritten(refused)) => {
                    assert!(refused.iter().all(|(_, error)| matches!(error, Refusal::Conflict)), "{refused:?}");
                    assert!(!fails || refused.iter().any(|(id, _)| id == "gone"), "{refused:?}");
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

async fn work(layers: [Layer; 2]) {
    let db = create(&layers[0], "db", None).await;
    let opening: Vec<(String, String)> =
        (0..ACCOUNTS).map(|number| (account(number), format!("{{\"balance\":{OPENING}}}"))).collect();
    let edits: Vec<Edit<'_>> = opening.iter().map(|(id, body)| edit(id, None, body)).collect();
    assert_eq!(db.update_all(&edits).await.unwrap().len(), ACCOUNTS);
    let gone = put(&db, "gone", None, "{}").await.unwrap();
    delete(&db, "gone", &gone).await.unwrap();
    let made: Arc<[AtomicU64; ACCOUNTS]> = Arc::default();
    let workers: Vec<_> = (0..6)
        .map(|seed| tokio::spawn(transfer(layers[seed % 2].database("db"), gone.clone(), made.clone(), seed as u64)))
        .collect();
    // A concurrent reader never sees a part.
    let all: Vec<usize> = (0..ACCOUNTS).collect();
    while !workers.iter().all(|worker| worker.is_finished()) {
        let sum: i64 =
            balances(&layers[1].database("db"), &all).await.unwrap().iter().map(|(_, balance)| balance).sum();
        assert_eq!(sum, OPENING * ACCOUNTS as i64);
        tokio::task::yield_now().await;
    }
    for worker in workers {
        worker.await.unwrap();
    }
    // Each acknowledged transfer was applied once to each of its documents, and no other was.
    let last = balances(&db, &all).await.unwrap();
    for (number, (rev, _)) in last.iter().enumerate() {
        assert_eq!(rev.generation(), 1 + made[number].load(Ordering::Relaxed), "{}", account(number));
    }
    assert_eq!(last.iter().map(|(_, balance)| balance).sum::<i64>(), OPENING * ACCOUNTS as i64);
    assert_clean(&layers[0], &db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_move_money() {
    let store = Store::new();
    work([store.layer().await, store.layer().await]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn and_so_they_do_under_faults() {
    for seed in 0..3 {
        let Some(store) = Store::with_faults(0.08, seed) else { return };
        work([store.layer().await, store.layer().await]).await;
    }
}
