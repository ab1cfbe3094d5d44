//! Random work at two layers, while builders and compactions are killed repeatedly.
#![cfg(test)]

use flatbed_testkit::{Faults, Random, Storage, pass};

use crate::tests::index::*;

/// Two layers on one engine with faults. `None` on a cluster.
pub(crate) async fn with_faults(
    probability: f64,
    seed: u64,
    judge: Option<Arc<dyn Judge>>,
) -> Option<([Database; 2], Storage)> {
    let storage = Storage::with(Faults::new(probability, seed))?;
    let open = || crate::tests::fenced::open(&storage, judge.clone());
    let [one, other] =
        [open().await, open().await].map(|(layer, authority)| layer.database("db", authority.for_job("test")));
    let (leaves_only, shards) = (seed.is_multiple_of(2), (seed == 3).then_some(4));
    one.create(&CreateOptions { leaves_only, shards, ..CreateOptions::default() }).await.unwrap();
    Some(([one, other], storage))
}

/// Edits, conflicts, deletions, purges, compactions, and sometimes another list of indexes.
async fn writer(db: Database, seed: u64) {
    let mut random = Random(seed);
    for _ in 0..60 {
        let id = format!("d{:02}", random.below(40));
        let leaves = match db.get(&id, &GetOptions { conflicts: true, ..GetOptions::default() }).await {
            Ok(document) => Some(document.rev),
            Err(Error::Refused(Refusal::DocumentNotFound(_))) => None,
            Err(error) => panic!("{error}"),
        };
        let body = match random.below(8) {
            0 => r#"{"_deleted":true}"#.to_owned(),
            1 => format!(r#"{{"kind":"big","x":[{}]}}"#, vec![format!("{:?}", "y".repeat(900)); 600].join(",")),
            _ => format!(r#"{{"kind":"k{}","n":{}}}"#, random.below(5), random.below(1_000)),
        };
        let done = match random.below(12) {
            0 => {
                let members = [r#"["kind"]"#, r#"["^kind","n"]"#, r#"["n","^n"]"#, "[]"][random.below(4) as usize];
                let id = ["_design/a", "_design/b"][random.below(2) as usize];
                let parent = db.get(id, &GetOptions::default()).await.ok().map(|document| document.rev);
                put(&db, id, parent.as_ref(), &format!(r#"{{"member_indexes":{members}}}"#)).await.map(|_| ())
            }
            1 => match &leaves {
                Some(rev) => db.purge(&id, std::slice::from_ref(rev)).await.map(|_| ()),
                None => Ok(()),
            },
            2 => db.compact().await,
            3 => {
                let generation = 1 + random.below(4);
                let rev = format!("{generation}-{:032x}", random.below(1 << 30));
                let history = Some(vec![rev.parse().unwrap()]);
                db.bulk_update(&[Edit { history, ..edit(&id, None, &body) }]).await.map(|_| ())
            }
            _ => put(&db, &id, leaves.as_ref(), &body).await.map(|_| ()),
        };
        match done {
            Ok(()) | Err(Error::Refused(Refusal::Conflict | Refusal::DocumentNotFound(_))) => {}
            Err(Error::Storage(error)) if error.is_maybe_committed() => {}
            Err(error) => panic!("{error}"),
        }
    }
}

pub(super) async fn workers(db: Database, seed: u64, ended: tokio::sync::watch::Receiver<bool>) {
    let mut random = Random(seed);
    while !*ended.borrow() {
        let background = background(&db, Duration::from_millis(100));
        background.start();
        pass(Duration::from_millis(random.below(200))).await;
    }
}

async fn torture(probability: f64, seed: u64) {
    let Some(([one, other], _storage)) = with_faults(probability, seed, None).await else { return };
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
    let db = one;
    assert_clean(&db).await;
    build_all(&db).await;
    db.compact().await.unwrap();
    let background = background(&db, Duration::from_millis(100));
    background.start();
    until("it is compacted", async || !db.info().await.unwrap().is_compacting).await;
    background.stop().await;
    assert_eq!(db.info().await.unwrap().superseded_size_bytes, 0);
    for index in indexes(&db).await {
        let member = String::from_utf8(index.definition).unwrap();
        assert_eq!(entries(&db, index.number).await, recomputed(&db, &member).await, "{member}");
    }
    assert_clean(&db).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_work_at_two_layers() {
    torture(0.0, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_work_with_faults() {
    torture(0.05, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_work_with_shards_and_faults() {
    torture(0.05, 3).await;
}
