//! Documents whose revisions exceed a transaction can still be edited, deleted, compacted and purged.

use crate::support::*;
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::{AttachmentEdit, Database, Edit, Error, GetOptions, OpenRevs, Refusal, Result, RevId};
use flatbed_testkit::until;

async fn compact(db: &Database) {
    db.compact().await.unwrap();
    until("it is compacted", async || !db.info().await.unwrap().is_compacting).await;
}

async fn write(db: &Database, edit: Edit<'_>) -> Result<RevId> {
    db.update(&edit).await.map(|updated| updated.rev)
}

fn edit<'a>(id: &str, parent: Option<RevId>, deleted: bool, attachments: Vec<(String, AttachmentEdit)>) -> Edit<'a> {
    let body = parse(b"{}", &Limits::default()).unwrap();
    Edit { expiry: None, id: id.to_owned().into(), parent, history: None, deleted, attachments, body }
}

async fn data(db: &Database, text: String) -> AttachmentEdit {
    let mut upload = db.upload("x/y", false).await.unwrap();
    upload.write(text.as_bytes()).await.unwrap();
    AttachmentEdit::Data { content_type: "x/y".into(), revpos: None, data: upload.finish().await.unwrap() }
}

/// Writes a document of 60 revisions with 400 attachments each, 60 of which are new in each.
async fn with_attachments(db: &Database, id: &str) -> RevId {
    let name = |number: u64| format!("{number:03}");
    let mut rev = None;
    for generation in 0..60_u64 {
        let is_new = |number: u64| generation == 0 || (number + 400 - generation * 7 % 400) % 400 < 60;
        let uploads = (0..400).map(|number| async move {
            let stub = AttachmentEdit::Stub { revpos: None };
            let one = if is_new(number) { data(db, format!("{id} {generation} {number}")).await } else { stub };
            (name(number), one)
        });
        let attachments = futures_util::future::join_all(uploads).await;
        rev = Some(write(db, edit(id, rev, false, attachments)).await.unwrap());
    }
    rev.unwrap()
}

/// Returns all leaves with the lengths of their lines.
async fn leaves(db: &Database, id: &str) -> Vec<(RevId, usize)> {
    let options = GetOptions { revs: true, no_body: true, ..GetOptions::default() };
    let (found, count) = db.open_revs(id, &OpenRevs::All, 0, false, &options).await.unwrap();
    let leaves: Vec<_> = found.into_iter().map(|leaf| leaf.unwrap()).collect();
    assert_eq!(leaves.len(), count);
    leaves.into_iter().map(|leaf| (leaf.rev, leaf.revisions.unwrap().len())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_revisions_of_many_attachments() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let ids = ["e", "p"].map(|id| id.repeat(2_000));
    let edited = with_attachments(&db, &ids[0]).await;
    let purged = with_attachments(&db, &ids[1]).await;
    assert_clean(&layer, &db).await;
    db.set_revs_limit(1).await.unwrap();
    let stubs = (0..400).map(|number| (format!("{number:03}"), AttachmentEdit::Stub { revpos: None })).collect();
    let edited = write(&db, edit(&ids[0], Some(edited), false, stubs)).await.unwrap();
    assert_clean(&layer, &db).await;
    let edited = write(&db, edit(&ids[0], Some(edited), true, Vec::new())).await.unwrap();
    assert_clean(&layer, &db).await;
    assert_eq!(db.purge(&ids[1], std::slice::from_ref(&purged)).await.unwrap(), [purged]);
    assert!(matches!(get(&db, &ids[1]).await, Err(Error::Refused(Refusal::DocumentNotFound(_)))));
    assert_clean(&layer, &db).await;
    compact(&db).await;
    assert_clean(&layer, &db).await;
    let options = GetOptions { tombstone: true, revs: true, ..GetOptions::default() };
    assert_eq!(db.get(&ids[0], &options).await.unwrap().revisions.unwrap(), [edited]);
    // The body of a tombstone is left.
    let info = db.info().await.unwrap();
    assert_eq!((info.doc_count, info.doc_del_count, info.superseded_size_bytes), (0, 1, 0));
    assert!(info.active_size_bytes < 5_000, "{info:?}");
}

/// The document's attachment lists exceed what the lookup of a stub reads, so the nearest revisions count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stub_of_a_replica_means_what_a_near_ancestor_has() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let name = |number: u64| format!("{number:03}{}", "n".repeat(400));
    let mut line: Vec<RevId> = Vec::new();
    for generation in 0..105_u64 {
        let mut attachments = Vec::new();
        for number in 0..170 {
            let is_new = number == 0 || generation == 0;
            let stub = AttachmentEdit::Stub { revpos: None };
            let one = if is_new { data(&db, format!("{generation} {number}")).await } else { stub };
            attachments.push((name(number), one));
        }
        line.insert(0, write(&db, edit("d", line.first().cloned(), false, attachments)).await.unwrap());
    }
    let revpos = Some(flatbed_layer::Revpos::Generation(line[0].generation()));
    line.insert(0, format!("{}-a", line.len() + 1).parse().unwrap());
    let stubs = vec![(name(0), AttachmentEdit::Stub { revpos })];
    let of_replica = Edit { history: Some(line.clone()), ..edit("d", None, false, stubs) };
    assert_eq!(write(&db, of_replica).await.unwrap(), line[0]);
    assert_clean(&layer, &db).await;
}

/// 4 branches of 460 revisions under an id of 2,048 NULs, each of which takes two bytes in a key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_branches_under_a_long_id() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let ids: Vec<String> = ["e", "p"].iter().map(|id| format!("{id}{}", "\0".repeat(2_047))).collect();
    for hash in ["a", "b", "c", "d"] {
        for generation in 1..=150_u64 {
            let path: Vec<RevId> =
                (1..=generation).rev().map(|at| format!("{at}-{hash}").parse().unwrap()).take(2).collect();
            let edits = ids.iter().map(|id| Edit { history: Some(path.clone()), ..edit(id, None, false, Vec::new()) });
            assert!(db.bulk_update(&edits.collect::<Vec<_>>()).await.unwrap().iter().all(|outcome| outcome.is_ok()));
        }
    }
    assert_clean(&layer, &db).await;
    db.set_revs_limit(1).await.unwrap();
    let [edited, purged] = &ids[..] else { unreachable!() };
    // As many edits on each branch as seal a segment.
    for hash in ["a", "b", "c", "d"] {
        let mut parent: RevId = format!("150-{hash}").parse().unwrap();
        for _ in 0..40 {
            parent = write(&db, edit(edited, Some(parent), false, Vec::new())).await.unwrap();
        }
        write(&db, edit(edited, Some(parent), true, Vec::new())).await.unwrap();
    }
    assert_clean(&layer, &db).await;
    // A path that names another branch examines all of them.
    let history = Some(vec!["2-z".parse().unwrap(), "1-z".parse().unwrap()]);
    write(&db, Edit { history, ..edit(edited, None, false, Vec::new()) }).await.unwrap();
    assert_clean(&layer, &db).await;
    let some: Vec<RevId> = ["150-a", "150-d"].map(|rev| rev.parse().unwrap()).into();
    assert_eq!(db.purge(purged, &some).await.unwrap(), some);
    let left: Vec<_> = leaves(&db, purged).await.into_iter().map(|(rev, _)| rev.to_string()).collect();
    assert_eq!(left, ["150-b", "150-c"]);
    assert_clean(&layer, &db).await;
    let rest: Vec<RevId> = ["150-b", "150-c"].map(|rev| rev.parse().unwrap()).into();
    assert_eq!(db.purge(purged, &rest).await.unwrap(), rest);
    assert!(matches!(get(&db, purged).await, Err(Error::Refused(Refusal::DocumentNotFound(_)))));
    assert_clean(&layer, &db).await;
    compact(&db).await;
    assert_clean(&layer, &db).await;
    assert_eq!(db.info().await.unwrap().superseded_size_bytes, 0);
}

/// More leaves than a record of a purge holds and than one transaction removes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn very_many_leaves_are_purged() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let long = "h".repeat(500);
    let edits: Vec<_> = (0..420)
        .map(|leaf| {
            let history = Some(vec![format!("1-{leaf:04}{long}").parse().unwrap()]);
            Edit { history, ..edit("d", None, false, Vec::new()) }
        })
        .collect();
    for edits in edits.chunks(250) {
        assert!(db.bulk_update(edits).await.unwrap().iter().all(|outcome| outcome.is_ok()));
    }
    let revs: Vec<RevId> = edits.iter().flat_map(|edit| edit.history.clone().unwrap()).collect();
    let last = revs.last().unwrap().clone();
    let purged = db.purge("d", &revs[..419]).await.unwrap();
    assert_eq!(purged, revs[..419]);
    assert_eq!(db.get("d", &GetOptions::default()).await.unwrap().rev, last);
    assert_clean(&layer, &db).await;
    for edits in edits.chunks(250) {
        assert!(db.bulk_update(edits).await.unwrap().iter().all(|outcome| outcome.is_ok()));
    }
    assert_eq!(db.purge("d", &revs).await.unwrap(), revs);
    assert!(matches!(get(&db, "d").await, Err(Error::Refused(Refusal::DocumentNotFound(_)))));
    assert_clean(&layer, &db).await;
}

/// Steps of purges and compactions fail or have unknown results, with edits in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_are_taken_once_under_faults() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let Some(store) = Store::with_faults(0.03, seed) else { return };
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let ids: Vec<String> = ["c", "p"].iter().map(|id| format!("{id}{}", "\0".repeat(2_047))).collect();
    for hash in ["a", "b", "c"] {
        for generation in 1..=40_u64 {
            let path: Vec<RevId> =
                (1..=generation).rev().map(|at| format!("{at}-{hash}").parse().unwrap()).take(2).collect();
            for id in &ids {
                let name = |number: u64| format!("{generation} {number}");
                let db = &db;
                let uploads = (0..20).map(|number| async move { (name(number), data(db, name(number % 7)).await) });
                let attachments = match generation % 10 {
                    0 => futures_util::future::join_all(uploads).await,
                    _ => Vec::new(),
                };
                write(db, Edit { history: Some(path.clone()), ..edit(id, None, false, attachments) }).await.unwrap();
            }
        }
    }
    db.set_revs_limit(2).await.unwrap();
    let revs: Vec<RevId> = ["40-a", "40-c"].map(|rev| rev.parse().unwrap()).into();
    let edits = async {
        let mut parent: RevId = "40-b".parse().unwrap();
        for _ in 0..20 {
            parent = write(&db, edit(&ids[0], Some(parent.clone()), false, Vec::new())).await.unwrap();
            let _ = write(&db, edit(&ids[1], Some(parent), false, Vec::new())).await;
            parent = leaves(&db, &ids[0]).await.into_iter().map(|(rev, _)| rev).max().unwrap();
        }
    };
    let (purged, (), ()) = tokio::join!(db.purge(&ids[1], &revs), compact(&db), edits);
    assert_eq!(purged.unwrap(), revs);
    compact(&db).await;
    assert_clean(&layer, &db).await;
    let all: Vec<RevId> = leaves(&db, &ids[1]).await.into_iter().map(|(rev, _)| rev).collect();
    assert_eq!(db.purge(&ids[1], &all).await.unwrap(), all);
    compact(&db).await;
    assert_clean(&layer, &db).await;
    assert_eq!(db.info().await.unwrap().superseded_size_bytes, 0);
}
