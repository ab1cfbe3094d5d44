//! Trees of revisions: replicated revisions, edits of any leaf, and the place of the winner's body.

use std::collections::BTreeMap;

use crate::support::*;
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::{CreateOptions, Database, Edit, EditParts, Error, GetOptions, OpenRevs, Refusal, Result, RevId};
use flatbed_revtree::Tree;
use flatbed_testkit::{seed, until};

fn path(text: &str) -> Vec<RevId> {
    text.split(' ').map(|rev| rev.parse().unwrap()).collect()
}

/// Writes a revision of another replica.
async fn replicate(db: &Database, id: &str, path: &[RevId], body: &str) -> Result<RevId> {
    let parts = EditParts::from_json(
        parse(body.as_bytes(), &Limits::default()).expect("JSON"),
        &flatbed_clock::Clock::system(),
    )?;
    let history = Some(path.to_vec());
    let edit = Edit {
        expiry: None,
        id: id.into(),
        parent: None,
        history,
        deleted: parts.deleted,
        attachments: Vec::new(),
        body: parts.body,
    };
    db.update(&edit).await.map(|updated| updated.rev)
}

fn body(rev: &RevId, size: usize, deleted: bool) -> String {
    format!(r#"{{"_deleted":{deleted},"rev":"{rev}","fill":"{}"}}"#, "x".repeat(size))
}

/// Returns all leaves, the winner first, each with its line and whether its body names it.
async fn leaves(db: &Database, id: &str) -> Vec<(Vec<RevId>, bool)> {
    let options = GetOptions { revs: true, ..GetOptions::default() };
    let (mut leaves, mut count) = (Vec::new(), 1);
    while leaves.len() < count {
        let (found, all) = db.open_revs(id, &OpenRevs::All, leaves.len(), false, &options).await.unwrap();
        count = all;
        for document in found {
            let document = document.unwrap();
            let body = braces(&document.body);
            assert!(
                body.starts_with(&format!(r#"{{"rev":"{}""#, document.rev)),
                "{} has the body {body}",
                document.rev
            );
            leaves.push((document.revisions.unwrap(), document.deleted));
        }
    }
    leaves.sort_by(|(a, a_deleted), (b, b_deleted)| (!b_deleted, &b[0]).cmp(&(!a_deleted, &a[0])));
    leaves
}

fn of(tree: &Tree) -> Vec<(Vec<RevId>, bool)> {
    tree.branches().into_iter().map(|branch| (branch.line().cloned().collect(), branch.deleted)).collect()
}

#[tokio::test]
async fn a_losing_leaf_is_edited_and_comes_up() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    for (line, deleted) in [("3-c 2-b 1-a", false), ("3-d 2-b 1-a", false), ("2-e 1-a", true)] {
        let line = path(line);
        assert_eq!(replicate(&db, "t", &line, &body(&line[0], 10, deleted)).await.unwrap(), line[0]);
    }
    let options = GetOptions { conflicts: true, deleted_conflicts: true, revs: true, ..GetOptions::default() };
    let winner = db.get("t", &options).await.unwrap();
    assert_eq!((&winner.rev, winner.conflicts), (&path("3-d")[0], Some(path("3-c"))));
    assert_eq!((winner.deleted_conflicts, winner.revisions), (Some(path("2-e")), Some(path("3-d 2-b 1-a"))));
    // A known revision changes nothing; but its body is stored if it arrives later, once.
    replicate(&db, "t", &path("2-b 1-a"), r#"{"v":"first"}"#).await.unwrap();
    let before = all_changes(&db).await;
    replicate(&db, "t", &path("2-b 1-a"), r#"{"v":"other"}"#).await.unwrap();
    replicate(&db, "t", &path("3-c 2-b"), r#"{"v":"other"}"#).await.unwrap();
    assert_eq!(all_changes(&db).await, before);
    // An edit of the loser becomes the winner; an edit of an inner revision is a conflict.
    let fourth = put(&db, "t", Some(&path("3-c")[0]), r#"{"v":4}"#).await.unwrap();
    assert_eq!(fourth.generation(), 4);
    assert_eq!(get(&db, "t").await.unwrap(), r#"{"v":4}"#);
    for no_leaf in ["3-c", "2-b", "3-x"] {
        assert!(matches!(put(&db, "t", Some(&path(no_leaf)[0]), "{}").await, Err(Error::Refused(Refusal::Conflict))));
    }
    assert_clean(&layer, &db).await;
    // After its deletion the best of the other leaves is the winner, with its body.
    delete(&db, "t", &fourth).await.unwrap();
    assert!(get(&db, "t").await.unwrap().contains(r#""rev":"3-d""#));
    assert_clean(&layer, &db).await;
    let fifth = put(&db, "t", Some(&path("2-e")[0]), r#"{"rev":"on the tombstone"}"#).await.unwrap();
    delete(&db, "t", &path("3-d")[0]).await.unwrap();
    assert_eq!(get(&db, "t").await.unwrap(), r#"{"rev":"on the tombstone"}"#);
    delete(&db, "t", &fifth).await.unwrap();
    assert!(matches!(get(&db, "t").await, Err(Error::Refused(Refusal::DocumentNotFound(_)))));
    let info = db.info().await.unwrap();
    assert_eq!((info.doc_count, info.doc_del_count), (0, 1));
    // Created again on top of the best tombstone.
    let again = put(&db, "t", None, r#"{"v":6}"#).await.unwrap();
    assert_eq!(again.generation(), 6);
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn large_bodies_change_places() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    // In rows, at the limit, in a blob, near the largest size.
    for size in [50_000, 390_000, 420_000, 7_900_000] {
        let id = format!("d{size}");
        let (low, high) = (path("2-a 1-r"), path("2-b 1-r"));
        replicate(&db, &id, &low, &body(&low[0], size, false)).await.unwrap();
        replicate(&db, &id, &high, &body(&high[0], size, false)).await.unwrap();
        assert_eq!(db.get(&id, &GetOptions::default()).await.unwrap().rev, high[0]);
        let gone = delete(&db, &id, &high[0]).await.unwrap();
        let shown = db.get(&id, &GetOptions::default()).await.unwrap();
        assert_eq!(shown.rev, low[0]);
        assert!(shown.body.len() > size && shown.body.starts_with(br#""rev":"2-a""#));
        put(&db, &id, Some(&low[0]), &body(&low[0], size, false)).await.unwrap();
        let old = GetOptions { rev: Some(low[0].clone()), ..GetOptions::default() };
        assert_eq!(db.get(&id, &old).await.unwrap().body, shown.body);
        assert!(db.get(&id, &GetOptions { rev: Some(gone), ..GetOptions::default() }).await.unwrap().deleted);
        assert_clean(&layer, &db).await;
    }
}

#[tokio::test]
async fn long_histories_and_many_branches_keep_their_lines() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let line = |hash: &str, from: u64| -> Vec<RevId> {
        let shared = (1..=from).rev().map(|generation| format!("{generation}-s"));
        let own = (from + 1..=from + 150).rev().map(|generation| format!("{generation}-{hash}"));
        own.chain(shared).map(|rev| rev.parse().unwrap()).collect()
    };
    let mut expected = Tree::default();
    for (hash, from) in [("a", 500), ("b", 500), ("c", 200), ("d", 849), ("e", 10)] {
        let line = line(hash, from);
        // In parts, and not from the beginning.
        for end in [line.len() - 90, line.len() - 3, 0] {
            let part = &line[end..];
            replicate(&db, "t", part, &body(&part[0], 10, false)).await.unwrap();
            expected.merge(part, false);
        }
    }
    assert!(leaves(&db, "t").await == of(&expected));
    assert_clean(&layer, &db).await;
    // Each is edited beyond the limit of 1,000 revisions.
    let mut tips: BTreeMap<String, RevId> = BTreeMap::new();
    for branch in expected.branches() {
        tips.insert(branch.leaf.hash_text(), branch.leaf.clone());
    }
    for _ in 0..40 {
        for tip in tips.values_mut() {
            *tip = put(&db, "t", Some(tip), r#"{"v":1}"#).await.unwrap();
        }
    }
    let options = GetOptions { revs: true, ..GetOptions::default() };
    let (shown, count) = db.open_revs("t", &OpenRevs::All, 0, false, &options).await.unwrap();
    assert_eq!(count, 5);
    for document in shown {
        let document = document.unwrap();
        let generation = document.rev.generation() as usize;
        assert_eq!(document.revisions.map(|line| line.len()), Some(generation.min(1_000)));
    }
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn the_oldest_revisions_of_a_branch_go_a_few_at_a_time() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    // A thirty-second part of the limit is two.
    db.set_revs_limit(64).await.unwrap();
    let mut line = vec![put(&db, "t", None, r#"{"v":0}"#).await.unwrap()];
    let still_there = async |line: &[RevId]| {
        let mut count = 0;
        for rev in line.iter().rev() {
            let options = GetOptions { rev: Some(rev.clone()), ..GetOptions::default() };
            match db.get("t", &options).await {
                Ok(_) => count += 1,
                Err(_) => break,
            }
        }
        count
    };
    let mut counts = Vec::new();
    for edit in 1..75 {
        let next = put(&db, "t", line.last(), &format!("{{\"v\":{edit}}}")).await.unwrap();
        line.push(next);
        if edit > 70 {
            counts.push(still_there(&line).await);
        }
    }
    assert_eq!(counts, [64, 65, 64, 65]);
    let options = GetOptions { revs: true, ..GetOptions::default() };
    assert_eq!(db.get("t", &options).await.unwrap().revisions.map(|line| line.len()), Some(64));
    // With a small limit each edit drops revisions.
    db.set_revs_limit(3).await.unwrap();
    for edit in 0..3 {
        let next = put(&db, "t", line.last(), &format!("{{\"v\":{edit}}}")).await.unwrap();
        line.push(next);
        assert_eq!(still_there(&line).await, 3);
    }
    assert_clean(&layer, &db).await;
}

/// Random trees are replicated to two databases in different orders and parts, and edited in one of them: both have
/// equal leaves, equal winners, and the right body for each leaf.
#[tokio::test]
async fn replicas_agree_leaf_for_leaf() {
    let seed = seed(1);
    let mut random = Random(seed);
    let mut random = move |below: usize| random.below(below as u64) as usize;
    let Some(store) = Store::with_faults(0.02, seed) else { return };
    let layer = store.layer().await;
    let (one, two) = (create(&layer, "one", None).await, create(&layer, "two", Some(0)).await);
    for number in 0..12 {
        let id = format!("doc{number}");
        let mut nodes: Vec<(Vec<RevId>, bool)> = Vec::new();
        for node in 0..1 + random(20) {
            let parent = nodes.get(random(nodes.len() + 1)).map(|(path, _)| path.clone()).unwrap_or_default();
            let generation = parent.first().map_or(0, RevId::generation) + 1;
            let hash = if random(2) == 0 { format!("{node:032x}") } else { format!("n{node:02}") };
            let rev: RevId = format!("{generation}-{hash}").parse().unwrap();
            nodes.push((std::iter::once(rev).chain(parent).collect(), random(4) == 0));
        }
        let mut expected = Tree::default();
        nodes.iter().for_each(|(path, deleted)| {
            expected.merge(path, *deleted);
        });
        for db in [&one, &two] {
            let mut rest = nodes.clone();
            while !rest.is_empty() {
                let (path, deleted) = rest.swap_remove(random(rest.len()));
                let size = [10, 3_000, 450_000][random(40).saturating_sub(37)];
                replicate(db, &id, &path, &body(&path[0], size, deleted)).await.unwrap();
            }
            assert_eq!(leaves(db, &id).await, of(&expected), "{id} in {}", db.name());
        }
    }
    for row in all_changes(&one).await {
        let other = two.get(&row.id, &GetOptions { tombstone: true, no_body: true, ..GetOptions::default() }).await;
        assert_eq!(other.unwrap().rev, row.rev);
    }
    assert_clean(&layer, &one).await;
    assert_clean(&layer, &two).await;
}

/// A branch that was cut off above a leaf may hold, unknown to that leaf, the parent of a new revision.
#[tokio::test]
async fn what_lies_on_a_cut_branch_comes_once() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    for (id, cut) in [("leaf", "3-c"), ("inner", "4-d 3-c"), ("deep", "70-z")] {
        let mut cut = path(cut);
        if id == "deep" {
            // So long that the revision is in a sealed segment.
            cut.extend((3..70).rev().map(|generation| format!("{generation}-c").parse::<RevId>().unwrap()));
        }
        replicate(&db, id, &cut, &body(&cut[0], 10, false)).await.unwrap();
        replicate(&db, id, &path("2-b 1-a"), &body(&path("2-b")[0], 10, false)).await.unwrap();
        assert_eq!(leaves(&db, id).await.len(), 2);
        replicate(&db, id, &path("3-c 2-b 1-a"), &body(&path("3-c")[0], 10, false)).await.unwrap();
        cut.extend(path("2-b 1-a"));
        assert_eq!(leaves(&db, id).await, [(cut, false)], "{id}");
        assert_clean(&layer, &db).await;
    }
    // An edit with the name of an existing revision, on a branch that does not name its parent.
    let first = put(&db, "edit", None, r#"{"v":1}"#).await.unwrap();
    let other = create(&layer, "other", None).await;
    assert_eq!(put(&other, "edit", None, r#"{"v":1}"#).await.unwrap(), first);
    let second = put(&other, "edit", Some(&first), r#"{"v":2}"#).await.unwrap();
    replicate(&db, "edit", &[path("3-x")[0].clone(), second], &body(&path("3-x")[0], 10, false)).await.unwrap();
    assert!(matches!(put(&db, "edit", Some(&first), r#"{"v":2}"#).await, Err(Error::Refused(Refusal::Conflict))));
    assert_clean(&layer, &db).await;
}

async fn compact(db: &Database) {
    db.compact().await.unwrap();
    until("it is compacted", async || !db.info().await.unwrap().is_compacting).await;
}

/// Returns a revision's body; `None` if it is not available.
async fn text(db: &Database, id: &str, rev: &str) -> Option<String> {
    let options = GetOptions { rev: Some(rev.parse().unwrap()), ..GetOptions::default() };
    db.get(id, &options).await.ok().map(|document| braces(&document.body))
}

/// As in CouchDB a revision that arrives after its child is available until compaction.
#[tokio::test]
async fn a_revision_that_arrives_after_its_child_is_available_until_compaction() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    for (id, size) in [("small", 10), ("large", 450_000)] {
        let line = path("5-e 4-d 3-c 2-b 1-a");
        replicate(&db, id, &line, &body(&line[0], 10, false)).await.unwrap();
        let before = db.info().await.unwrap();
        for late in [&line[1..], &line[2..3]] {
            let body = body(&late[0], size, false);
            assert_eq!(text(&db, id, &late[0].to_string()).await, None);
            replicate(&db, id, late, &body).await.unwrap();
            assert!(text(&db, id, &late[0].to_string()).await.unwrap().starts_with(r#"{"rev":""#));
            assert_clean(&layer, &db).await;
        }
        assert_eq!(leaves(&db, id).await, [(line.clone(), false)]);
        let options = GetOptions { revs_info: true, ..GetOptions::default() };
        let shown = db.get(id, &options).await.unwrap().revs_info.unwrap();
        assert_eq!(shown.iter().map(|(_, is_there)| *is_there).collect::<Vec<_>>(), [true, true, true, false, false]);
        let after = db.info().await.unwrap();
        let grown = after.active_size_bytes - before.active_size_bytes;
        assert_eq!(after.superseded_size_bytes - before.superseded_size_bytes, grown);
        assert!(grown > 0 && after.doc_count == before.doc_count);
        // Below two branches, and beside another one.
        replicate(&db, id, &path("5-f 4-d"), &body(&path("5-f")[0], 10, false)).await.unwrap();
        replicate(&db, id, &path("2-b 1-a"), &body(&path("2-b")[0], 10, false)).await.unwrap();
        assert!(text(&db, id, "2-b").await.is_some());
        assert_clean(&layer, &db).await;
        compact(&db).await;
        for rev in ["4-d", "3-c", "2-b"] {
            assert_eq!(text(&db, id, rev).await, None);
        }
        assert_clean(&layer, &db).await;
        // A second time.
        replicate(&db, id, &line[1..], r#"{"rev":"again"}"#).await.unwrap();
        assert_eq!(text(&db, id, "4-d").await.unwrap(), r#"{"rev":"again"}"#);
        assert_clean(&layer, &db).await;
    }
    // It is not available beyond the limit of revisions.
    db.set_revs_limit(2).await.unwrap();
    let line = path("5-e 4-d 3-c");
    replicate(&db, "short", &line, "{}").await.unwrap();
    replicate(&db, "short", &line[2..], "{}").await.unwrap();
    replicate(&db, "short", &line[1..], "{}").await.unwrap();
    assert_eq!((text(&db, "short", "3-c").await, text(&db, "short", "4-d").await), (None, Some("{}".into())));
    assert_clean(&layer, &db).await;
    // Nor if only bodies of leaves are kept.
    let options = CreateOptions { leaves_only: true, ..CreateOptions::default() };
    layer.create_database("leaves", &options).await.unwrap();
    let db = layer.database("leaves");
    replicate(&db, "d", &path("2-b 1-a"), "{}").await.unwrap();
    replicate(&db, "d", &path("1-a"), "{}").await.unwrap();
    assert_eq!(text(&db, "d", "1-a").await, None);
    assert_clean(&layer, &db).await;
}
