//! Requests of users: single documents, lists and comparisons. Rights hold as of the request's own transaction, so an
//! answer must show nothing that was forbidden throughout the request, and hide nothing that was surely visible
//! throughout.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::model::{Body, DOCS, USERS, doc_id, doc_of, ends, user_name};
use super::{About, Client, Who, World, lock, parsed};
use flatbed_testkit::http::Answer;
use flatbed_testkit::timeline::Span;

pub async fn ask(world: Arc<World>, number: u64) {
    let mut client = Client::new(&world, 0x200 + number);
    while world.torture.pass(Duration::from_millis(client.random.below(25))).await {
        let (user, doc) = about(&mut client);
        match client.random.below(100) {
            0..45 => document(&mut client, user, doc).await,
            45..55 => file(&mut client, user, doc).await,
            55..67 => leaves(&mut client, user, doc).await,
            67..77 => some(&mut client, user, doc).await,
            77..84 => differences(&mut client, user, doc).await,
            84..88 => local(&mut client, user).await,
            _ => all(&mut client, user).await,
        }
    }
}

/// Chooses a subject, mostly one of the recent changes.
fn about(client: &mut Client) -> (usize, usize) {
    let random = &mut client.random;
    let (mut user, mut doc) = (random.index(USERS), random.index(DOCS));
    if random.percent(50) {
        let recent = lock(&client.world.recent);
        match recent.get(random.index(recent.len().max(1))) {
            Some(About::User(of)) => user = *of,
            Some(About::Doc(of)) => doc = *of,
            None => {}
        }
    }
    (user, doc)
}

/// Sends one request; `None`: its outcome is unknown, or it was refused.
async fn asked(client: &mut Client, user: usize, method: &str, path: &str, body: &str) -> Option<(Answer, Span)> {
    let world = client.world.clone();
    let server = client.server();
    let from = Instant::now();
    let answer = client.call(server, method, path, &world.headers(Who::User(user)), body).await?;
    let span = Span { from, to: Instant::now() };
    match answer.status {
        200 | 404 | 409 | 201 => Some((answer, span)),
        401 | 403 => {
            let sure = lock(&world.model).sure(user, span);
            if sure.is_enabled {
                world.fail(&format!("{method} {path}: {answer:?}"), user, None);
            }
            world.count("refused");
            None
        }
        429 | 503 => None,
        _ => world.fail(&format!("{method} {path}: {answer:?}"), user, None),
    }
}

/// Judges a document that was shown, and returns the number of its revision, if it has one.
pub fn shown(world: &World, user: usize, doc: usize, shown: &Value, span: Span, asked: &str) -> Option<u64> {
    let Some(number) = shown["n"].as_u64() else {
        // A note that the document has left the user's view, or an empty tombstone.
        let members: BTreeSet<&String> = shown.as_object().expect("an object").keys().collect();
        let told = ["_id", "_rev", "_removed", "_deleted", "_revisions"];
        let is_empty = shown["_removed"] == true || shown["_deleted"] == true;
        if !is_empty || members.iter().any(|name| !told.contains(&name.as_str())) {
            world.fail(&format!("{asked} shows {shown}"), user, Some(doc));
        }
        return None;
    };
    let body = lock(&world.model).bodies.get(&number).cloned();
    match body {
        Some(body) => judge_whole(world, user, doc, &body, span, &format!("{asked} shows {shown}")),
        None => world.fail(&format!("{asked} shows {shown}, which was never written"), user, Some(doc)),
    }
    Some(number)
}

pub fn judge(world: &World, user: usize, doc: usize, body: &Body, span: Span, asked: &str) {
    let (rights, is_right) = {
        let model = lock(&world.model);
        let rights = model.possible(user, span);
        (rights, model.may_show(rights, doc, body, span))
    };
    if !is_right {
        let (from, to) = (span.from.elapsed(), span.to.elapsed());
        world.fail(&format!("{asked}: {body:?} between {from:?} and {to:?} ago, with {rights:?}"), user, Some(doc));
    }
    world.count("revisions shown by right");
}

/// Like [`judge`], for a revision that was shown with its body, or not as a tombstone.
pub fn judge_whole(world: &World, user: usize, doc: usize, body: &Body, span: Span, asked: &str) {
    judge(world, user, doc, body, span, asked);
    if body.ends.is_some_and(|at| at + super::CLOCKS < span.from) {
        world.fail(
            &format!("{asked}: {body:?}, which ended {:?} ago", body.ends.map(|at| at.elapsed())),
            user,
            Some(doc),
        );
    }
}

/// Judges a row that tells a user of the loss of a document.
pub fn was_had(world: &World, user: usize, doc: usize, asked: impl Fn() -> String) {
    let was_had = lock(&world.model).may_have_had(user, doc);
    if !was_had {
        world.fail(&format!("{}: the user never had it", asked()), user, Some(doc));
    }
}

async fn document(client: &mut Client, user: usize, doc: usize) {
    let world = client.world.clone();
    let path = format!("/db/{}", doc_id(doc));
    let Some((answer, span)) = asked(client, user, "GET", &path, "").await else { return };
    let value = parsed(&answer.body);
    let must = lock(&world.model).must_see(user, doc, span);
    if answer.status == 200 {
        let number = shown(&world, user, doc, &value, span, &path);
        let is_one = |bodies: &[Arc<Body>]| bodies.iter().any(|body| Some(body.number) == number);
        if must.is_some_and(|bodies| !is_one(&bodies)) {
            world.fail(&format!("GET {path} shows {value}, not the winner"), user, Some(doc));
        }
    } else if must.is_some() {
        world.fail(&format!("GET {path}: {answer:?}, but the user sees it"), user, Some(doc));
    } else if value["reason"] == "deleted" && !ends(doc) {
        let may = {
            let model = lock(&world.model);
            let rights = model.possible(user, span);
            let states = model.docs[doc].possible(span);
            let mut winners = states.iter().flat_map(|state| state.winners());
            winners.any(|leaf| leaf.body.deleted && model.may_show(rights, doc, &leaf.body, span))
        };
        if !may {
            world.fail(&format!("GET {path}: {answer:?}, a hidden tombstone"), user, Some(doc));
        }
        world.count("tombstones");
    } else {
        world.count("documents hidden");
    }
}

async fn file(client: &mut Client, user: usize, doc: usize) {
    let world = client.world.clone();
    let path = format!("/db/{}/f", doc_id(doc));
    let Some((answer, span)) = asked(client, user, "GET", &path, "").await else { return };
    if answer.status != 200 {
        return;
    }
    let model = lock(&world.model);
    let rights = model.possible(user, span);
    let states = model.docs[doc].possible(span);
    let mut winners = states.iter().flat_map(|state| state.winners());
    let may = winners.any(|leaf| leaf.body.has_file && model.may_show(rights, doc, &leaf.body, span));
    drop(model);
    if !may {
        world.fail(&format!("GET {path}: {answer:?} with {rights:?}"), user, Some(doc));
    }
    world.count("files");
}

async fn leaves(client: &mut Client, user: usize, doc: usize) {
    let world = client.world.clone();
    let path = format!("/db/{}?open_revs=all", doc_id(doc));
    let Some((answer, span)) = asked(client, user, "GET", &path, "").await else { return };
    let found = parsed(&answer.body);
    let found = found.as_array().map(Vec::as_slice).unwrap_or_default();
    let numbers: Vec<u64> = found.iter().filter_map(|one| shown(&world, user, doc, &one["ok"], span, &path)).collect();
    let model = lock(&world.model);
    let sure = model.sure(user, span);
    let states = model.docs[doc].possible(span);
    if let [state] = states[..] {
        let must = state.leaves.iter().find(|leaf| {
            leaf.body.ends.is_none() && model.must_show(sure, &leaf.body, span) && !numbers.contains(&leaf.body.number)
        });
        if let Some(must) = must.filter(|_| sure.is_enabled).cloned() {
            drop(model);
            world.fail(&format!("GET {path}: {answer:?} lacks {must:?}"), user, Some(doc));
        }
    }
}

async fn some(client: &mut Client, user: usize, doc: usize) {
    let world = client.world.clone();
    // Revisions of any age.
    let known: Vec<String> = {
        let model = lock(&world.model);
        let states =
            model.docs[doc].possible(Span { from: Instant::now() - Duration::from_secs(60), to: Instant::now() });
        states.iter().flat_map(|state| &state.leaves).filter_map(|leaf| leaf.rev.get().cloned()).collect()
    };
    let known: BTreeSet<String> = known.into_iter().collect();
    let id = doc_id(doc);
    let mut docs: Vec<Value> = known.into_iter().take(20).map(|rev| json!({"id": id, "rev": rev})).collect();
    docs.push(json!({"id": id}));
    let body = json!({"docs": docs}).to_string();
    let Some((answer, span)) = asked(client, user, "POST", "/db/_bulk_get?revs=true", &body).await else { return };
    for result in parsed(&answer.body)["results"].as_array().expect("results") {
        for one in result["docs"].as_array().expect("documents") {
            if one["ok"].is_object() {
                shown(&world, user, doc, &one["ok"], span, &format!("_bulk_get {body}"));
            }
        }
    }
}

async fn differences(client: &mut Client, user: usize, doc: usize) {
    let world = client.world.clone();
    let state = lock(&world.model).docs[doc].newest().clone();
    let leaves: Vec<_> =
        state.leaves.iter().filter_map(|leaf| Some((leaf.rev.get()?.clone(), leaf.body.clone()))).collect();
    let body = json!({doc_id(doc): leaves.iter().map(|(rev, _)| rev).collect::<Vec<_>>()}).to_string();
    let Some((answer, span)) = asked(client, user, "POST", "/db/_revs_diff", &body).await else { return };
    let missing = parsed(&answer.body)[doc_id(doc)]["missing"].clone();
    let missing: Vec<&str> = missing.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (rev, of) in &leaves {
        if !missing.contains(&rev.as_str()) && of.writer != Some(user) {
            judge(&world, user, doc, of, span, &format!("_revs_diff {body}: {answer:?}"));
            world.count("revisions that are not missing");
        }
    }
}

/// A user's checkpoint is invisible to others.
async fn local(client: &mut Client, user: usize) {
    let world = client.world.clone();
    let path = "/db/_local/checkpoint";
    let body = json!({"u": user_name(user)}).to_string();
    if asked(client, user, "PUT", path, &body).await.is_none() {
        return;
    }
    let Some((answer, _)) = asked(client, user, "GET", path, "").await else { return };
    let found = parsed(&answer.body);
    if answer.status != 200 || found["u"] != user_name(user) {
        world.fail(&format!("{path}: {answer:?}"), user, None);
    }
}

async fn all(client: &mut Client, user: usize) {
    let world = client.world.clone();
    let with_docs = client.random.percent(50);
    let path = format!("/db/_all_docs?include_docs={with_docs}");
    let Some((answer, span)) = asked(client, user, "GET", &path, "").await else { return };
    let found = parsed(&answer.body);
    let mut seen = BTreeSet::new();
    for row in found["rows"].as_array().unwrap_or_else(|| panic!("{answer:?}")) {
        let id = row["id"].as_str().expect("an id");
        let doc = doc_of(id).unwrap_or_else(|| panic!("{row}"));
        seen.insert(doc);
        let rev = row["value"]["rev"].as_str().expect("a revision");
        world.sent(user, doc, rev, false, span, || format!("{path}: {row}"));
        if row["doc"].is_object() {
            shown(&world, user, doc, &row["doc"], span, &path);
        }
    }
    let model = lock(&world.model);
    let sure = model.sure(user, span);
    let lacks = (0..DOCS).find(|doc| !seen.contains(doc) && model.must_see_with(sure, *doc, span).is_some());
    drop(model);
    if let Some(doc) = lacks.filter(|_| sure.is_enabled) {
        world.fail(&format!("{path} lacks {}: {seen:?}", doc_id(doc)), user, Some(doc));
    }
    world.count("lists");
}
