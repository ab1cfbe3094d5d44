//! The end: all background work settles, and each replica and follower has what the model gives its user.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use flatbed_layer::{Background, BackgroundOptions, check};
use flatbed_testkit::{pass, until};
use serde_json::json;
use tokio::time::Instant;

use super::change::{is_through, put_user};
use super::follow::{Followed, Known, Told};
use super::model::{Body, DOCS, Doc, GIVING, Leaf, Model, PLAIN, USERS, channel_name, doc_id, doc_of, ends};
use super::replica::Replicated;
use super::support::Layer;
use super::{Client, Who, World, lock, parsed};
use flatbed_testkit::timeline::Span;

/// Settles the world after the last change: users are enabled again, ended documents are buried, and the last function
/// has routed all documents.
pub async fn settle(world: &Arc<World>, layer: &Layer) {
    let mut client = Client::new(world, 0xe0d);
    for user in 0..USERS {
        let value = lock(&world.model).users[user].newest().clone();
        if value.is_disabled {
            put_user(world, user, super::model::User { is_disabled: false, ..value }, false).await;
        }
    }
    // One more write, so that ended documents are checked soon, whatever was scheduled before.
    let number = world.number();
    client
        .must("PUT", &format!("/db/{}", super::NOTED), &json!({"n": number, "ends": now_s() + 1}).to_string(), 409)
        .await;
    let last = (PLAIN + GIVING..DOCS).filter_map(|doc| {
        let state = lock(&world.model).docs[doc].newest().clone();
        state.winners().first().and_then(|leaf| leaf.body.ends)
    });
    let last = last.max().unwrap_or_else(Instant::now).max(Instant::now() + Duration::from_millis(1_100));
    pass(last.saturating_duration_since(Instant::now())).await;
    let options = BackgroundOptions {
        ahead: Duration::from_secs(120),
        silence_max: Duration::from_secs(3),
        ..BackgroundOptions::default()
    };
    let background = Background::new(layer, layer.actor.clone(), options).expect("randomness");
    until("the last function has routed all documents", async || {
        let _ = background.round().await;
        is_through(world).await
    })
    .await;
    until("ended documents have their tombstones", async || {
        let _ = background.round().await;
        are_buried(world, &mut client).await
    })
    .await;
    let mut model = lock(&world.model);
    let newest = *model.functions.newest();
    let version = model.functions.begin(newest);
    model.functions.acknowledge(version);
}

fn now_s() -> u64 {
    std::time::UNIX_EPOCH.elapsed().expect("a clock").as_secs()
}

/// Returns whether each ended document has its tombstone.
async fn are_buried(world: &Arc<World>, client: &mut Client) -> bool {
    for doc in PLAIN + GIVING..DOCS {
        let state = lock(&world.model).docs[doc].newest().clone();
        let Some(leaf) = state.winners().first().map(|leaf| (*leaf).clone()) else { continue };
        if leaf.body.ends.is_none() || leaf.body.deleted {
            continue;
        }
        let body = json!({"doc_ids": [doc_id(doc)]}).to_string();
        let rows = client.must("POST", "/db/_changes?filter=_doc_ids", &body, 0).await;
        let row = &rows["results"][0];
        let rev = row["changes"][0]["rev"].as_str().unwrap_or_else(|| panic!("{rows}"));
        if row["deleted"] != true || Some(rev) == leaf.rev.get().map(String::as_str) {
            return false;
        }
        let body = Body { number: world.number(), deleted: true, ends: None, ..(*leaf.body).clone() };
        let (generation, rev) = (leaf.generation + 1, Arc::new(rev.to_owned().into()));
        let mut model = lock(&world.model);
        let leaves = vec![Leaf { generation, rev, body: Arc::new(body) }];
        let version = model.docs[doc].begin(Arc::new(Doc { leaves }));
        model.docs[doc].acknowledge(version);
        drop(model);
        world.count("documents that have ended");
    }
    true
}

/// Makes the last write, which every user sees.
pub async fn close(world: &Arc<World>) {
    let mut client = Client::new(world, 0xc05);
    let text = json!({"n": world.number(), "in": [channel_name(super::model::EVERYONE)]}).to_string();
    client.must("PUT", &format!("/db/{}", super::END), &text, 409).await;
}

/// Compares the database with the model.
pub async fn compare(world: &Arc<World>, followed: Vec<Followed>, replicated: Vec<Replicated>) {
    let mut client = Client::new(world, 0xe2d);
    world.judge_deferred(true);
    // The model and the database have the same documents.
    let found = client.must("GET", "/db/_all_docs?include_docs=true", "", 0).await;
    let found: BTreeMap<&str, u64> = found["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .filter_map(|row| Some((row["id"].as_str()?, row["doc"]["n"].as_u64()?)))
        .collect();
    for doc in 0..DOCS {
        let number = winner(world, doc).map(|leaf| leaf.body.number);
        let there = found.get(&*doc_id(doc)).copied();
        if number != there {
            world.fail(&format!("{} is {there:?}, acknowledged was {number:?}", doc_id(doc)), 0, Some(doc));
        }
    }
    for user in 0..USERS {
        let server = client.server();
        let headers = world.headers(Who::User(user));
        let answer = client.call(server, "GET", "/db/_all_docs", &headers, "").await.expect("an answer");
        let listed = parsed(&answer.body);
        let listed = listed["rows"].as_array().unwrap_or_else(|| panic!("{answer:?}")).iter();
        let listed: BTreeSet<usize> = listed.filter_map(|row| doc_of(row["id"].as_str()?)).collect();
        let seen: BTreeSet<usize> = seen(world, user).into_keys().collect();
        if let Some(doc) = listed.symmetric_difference(&seen).next() {
            world.fail(&format!("listed is {listed:?}, seen {seen:?}"), user, Some(*doc));
        }
    }
    for Followed { user, told_of_losses, documents, told } in followed {
        let seen = seen(world, user);
        for (doc, leaf) in &seen {
            let known = documents.get(doc);
            let rev = leaf.rev.get().expect("acknowledged").clone();
            if known != Some(&Known::Rev(rev.clone())) && known != Some(&Known::Perhaps(rev)) {
                let what = format!("the follower of {user} has {known:?} in the place of {leaf:?}");
                with_told(world, &mut client, user, *doc, &told, &what).await;
            }
        }
        let more =
            documents.into_iter().filter(|(doc, known)| !seen.contains_key(doc) && matches!(known, Known::Rev(_)));
        let more: Vec<usize> = more.map(|(doc, _)| doc).collect();
        if let Some(wrong) = not_excused(world, user, &more, told_of_losses) {
            with_told(world, &mut client, user, wrong, &told, "the follower still has it").await;
        }
    }
    for Replicated { user, all_leaves, documents, told } in replicated {
        let seen = seen(world, user);
        for (doc, leaf) in &seen {
            let has = documents.get(doc);
            if !has.is_some_and(|leaves| leaves.contains(&leaf.body.number)) {
                let what = format!("the replica of {user} has {has:?} in the place of {leaf:?}");
                with_told(world, &mut client, user, *doc, &told, &what).await;
            }
            world.count("documents compared");
        }
        let is_more = |doc: &usize| !seen.contains_key(doc);
        let more: Vec<usize> = documents.keys().copied().filter(is_more).collect();
        // A replica of leaves keeps those whose successors are hidden from it: the protocol cannot tell their loss.
        let more: Vec<usize> = more
            .into_iter()
            .filter(|doc| !all_leaves || lock(&world.model).docs[*doc].newest().leaves.len() == 1)
            .collect();
        if let Some(wrong) = not_excused(world, user, &more, true) {
            with_told(world, &mut client, user, wrong, &told, "the replica still has it").await;
        }
    }
    let report = check::check_database(&world.database, |_| {}).await.expect("checked");
    assert!(report.is_clean() && report.sums_compared, "seed {}: {report:#?}", world.seed);
}

fn winner(world: &World, doc: usize) -> Option<Leaf> {
    let state = lock(&world.model).docs[doc].newest().clone();
    let winners = state.winners();
    assert!(winners.len() <= 1, "{state:?}");
    winners.first().filter(|leaf| !leaf.body.deleted).map(|leaf| (*leaf).clone())
}

/// Returns the documents that a user sees now.
fn seen(world: &World, user: usize) -> BTreeMap<usize, Leaf> {
    let now = Instant::now();
    let now = Span { from: now, to: now };
    let (possible, sure) = {
        let model = lock(&world.model);
        (model.possible(user, now), model.sure(user, now))
    };
    assert_eq!(possible, sure, "seed {}: rights still change", world.seed);
    let winners: Vec<(usize, Leaf)> = (0..DOCS).filter_map(|doc| Some((doc, winner(world, doc)?))).collect();
    let model = lock(&world.model);
    winners.into_iter().filter(|(_, leaf)| model.must_show(sure, &leaf.body, now)).collect()
}

/// Returns whether a document has left a channel that the user has had ever since, without being visible later through
/// another channel, which the user may have lost since: then a row told of the loss. Ending documents are excluded, as
/// the time of their tombstone is unknown.
fn has_left(model: &Model, user: usize, doc: usize) -> bool {
    if ends(doc) {
        return false;
    }
    let states: Vec<_> = model.docs[doc].history_of().collect();
    states.windows(2).enumerate().any(|(at, pair)| {
        let ((before, _), (_, from)) = (pair[0], pair[1]);
        let winners = before.winners();
        let [winner] = winners[..] else { return false };
        let span = Span { from, to: Instant::now() };
        let (kept, had) = (model.sure(user, span), model.possible(user, span));
        let mut later = states[at + 1..].iter().flat_map(|(state, _)| state.winners());
        !winner.body.turns && kept.sees(winner.body.channels) && !later.any(|leaf| model.may_be_seen(had, &leaf.body))
    })
}

/// Returns one document that the user must not have kept, of those that the user no longer sees.
fn not_excused(world: &World, user: usize, more: &[usize], told_of_losses: bool) -> Option<usize> {
    let model = lock(&world.model);
    let lost = model.lost[user];
    let is_wrong = |doc: &&usize| lost.is_none() || told_of_losses || has_left(&model, user, **doc);
    let wrong = more.iter().filter(is_wrong).min().copied();
    drop(model);
    for _ in more {
        world.count("kept of what was lost");
    }
    wrong
}

/// Fails with the rows of a document that the user was sent, and the rows that a feed sends from its beginning.
async fn with_told(world: &Arc<World>, client: &mut Client, user: usize, doc: usize, told: &Told, what: &str) {
    let headers = world.headers(Who::User(user));
    let mut now = String::new();
    for path in ["/db/_changes?revocations=true", "/db/_changes"] {
        let server = client.server();
        let answer = client.call(server, "GET", path, &headers, "").await.expect("an answer");
        let rows = parsed(&answer.body);
        for row in rows["results"].as_array().into_iter().flatten().filter(|row| row["id"] == doc_id(doc)) {
            now += &format!("now {path}: {row}\n");
        }
    }
    for (at, row) in told.get(&doc).into_iter().flatten() {
        now += &format!("{:?} ago: {row}\n", at.elapsed());
    }
    world.fail(&format!("{what}\n{now}"), user, Some(doc));
}
