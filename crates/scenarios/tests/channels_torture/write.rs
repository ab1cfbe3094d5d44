//! Writes by administrators and users, one write of a document at a time. The outcome of each write is determined
//! before the next one.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flatbed_testkit::WaitLoop;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::model::{
    Body, CHANNELS, DOCS, Doc, EVERYONE, GIVING, Leaf, Mask, PLAIN, ROLES, To, USERS, bits, channel_name, doc_id, ends,
    gives_things, role_name, user_name,
};
use super::{About, Client, Who, World, lock, parsed};
use flatbed_testkit::http::Answer;
use flatbed_testkit::timeline::Span;

/// The largest number of leaves of a document, including tombstones.
const LEAVES_MAX: usize = 8;

pub fn function(number: u64) -> String {
    format!(
        "function (doc, old, meta) {{
            function turned(name) {{
                return doc.turns && name !== '!' ? 'c' + (Number(name.slice(1)) + {number}) % {CHANNELS} : name;
            }}
            if (doc.needs) requireAccess(doc.needs);
            channel((doc.in || []).map(turned));
            if (doc._deleted) return;
            (doc.to || []).forEach(function (one) {{ access(one[0], turned(one[1])); }});
            (doc.roles || []).forEach(function (one) {{ role(one[0], one[1]); }});
            if (doc.ends) expiry(doc.ends);
        }}"
    )
}

pub async fn write(world: Arc<World>, number: u64) {
    let mut client = Client::new(&world, 0x100 + number);
    while world.torture.pass(Duration::from_millis(client.random.below(40))).await {
        let doc = match client.random.below(100) {
            0..55 => client.random.index(PLAIN),
            55..85 => PLAIN + client.random.index(GIVING),
            _ => PLAIN + GIVING + client.random.index(DOCS - PLAIN - GIVING),
        };
        let _turn = world.turns[doc].lock().await;
        one(&mut client, doc).await;
    }
}

struct Attempt {
    doc: usize,
    who: Who,
    new_edits: bool,
    text: String,
    after: Doc,
    leaf: Leaf,
    /// The body whose file the stub stands for.
    stub_of: Option<Arc<Body>>,
    /// True if the write names no revision although the document exists.
    is_conflict: bool,
}

async fn one(client: &mut Client, doc: usize) {
    let world = client.world.clone();
    let state = lock(&world.model).docs[doc].newest().clone();
    let now = Instant::now();
    let who = match client.random.percent(if ends(doc) { 0 } else { 35 }) {
        true => Who::User(client.random.index(USERS)),
        false => Who::Root,
    };
    let alive: Vec<&Leaf> = state.leaves.iter().filter(|leaf| !leaf.body.deleted).collect();
    let winner = state.winners().first().map(|leaf| (*leaf).clone());
    let random = &mut client.random;
    let (mut parent, mut deleted, mut new_edits, mut is_conflict) = (winner.clone(), false, true, false);
    let mut chosen = None;
    if ends(doc) {
        match winner.as_ref().and_then(|leaf| leaf.body.ends) {
            // A write after the document's end.
            Some(at) if at + Duration::from_millis(1_500) < now => parent = None,
            Some(at) if at < now + Duration::from_millis(2_200) => return,
            _ => {}
        }
        if parent.as_ref().is_some_and(|leaf| leaf.rev.get().is_none()) {
            parent = None;
        }
    } else if let Some(winner) = &winner {
        match random.below(100) {
            _ if alive.is_empty() => {}
            0..52 => {}
            52..64 => parent = alive.get(random.index(alive.len())).map(|leaf| (*leaf).clone()),
            64..78 => {
                deleted = true;
                parent = alive.get(random.index(alive.len())).map(|leaf| (*leaf).clone());
            }
            78..82 => {
                parent = None;
                is_conflict = true;
            }
            _ => {
                // A revision of another replica.
                new_edits = false;
                deleted = random.percent(15);
                let is_new = state.leaves.len() < LEAVES_MAX && random.percent(60);
                let other = state.leaves.get(random.index(state.leaves.len())).cloned();
                parent = if is_new { None } else { other };
                let generation = match &parent {
                    Some(parent) => parent.generation + 1,
                    None => 1 + random.below(winner.generation + 2),
                };
                chosen = Some((generation, format!("{:016x}{:016x}", random.next(), random.next())));
            }
        }
    }
    let body = body(client, doc, who, deleted, parent.as_ref().map(|leaf| &leaf.body));
    let stub_of = parent
        .as_ref()
        .map(|leaf| leaf.body.clone())
        .filter(|of| of.has_file && !of.deleted && body.has_file && client.random.percent(60));
    let mut text = text_of(&body);
    if body.has_file {
        text["_attachments"] = match stub_of.is_some() {
            true => json!({"f": {"stub": true}}),
            false => json!({"f": {"content_type": "text/plain", "data": "aGlkZGVu"}}),
        };
    }
    let rev_of = |leaf: &Leaf| leaf.rev.get().cloned().unwrap_or_else(|| panic!("{leaf:?} is not known"));
    let generation = parent.as_ref().map_or(0, |leaf| leaf.generation) + 1;
    let leaf = match chosen {
        Some((generation, hash)) => {
            let mut ids = vec![hash.clone()];
            ids.extend(parent.as_ref().and_then(|leaf| rev_of(leaf).split_once('-').map(|(_, id)| id.to_owned())));
            text["_rev"] = json!(format!("{generation}-{hash}"));
            text["_revisions"] = json!({"start": generation, "ids": ids});
            Leaf { generation, rev: Arc::new(OnceLock::from(format!("{generation}-{hash}"))), body: Arc::new(body) }
        }
        None => {
            if let Some(parent) = &parent {
                text["_rev"] = json!(rev_of(parent));
            }
            Leaf { generation, rev: Arc::default(), body: Arc::new(body) }
        }
    };
    let mut after = Doc::clone(&state);
    match &parent {
        Some(parent) => after.leaves.retain(|leaf| leaf.body.number != parent.body.number),
        None if ends(doc) => after.leaves.clear(),
        None => {}
    }
    after.leaves.push(leaf.clone());
    let attempt = Attempt { doc, who, new_edits, text: text.to_string(), after, leaf, stub_of, is_conflict };
    make(client, attempt).await;
}

fn text_of(body: &Body) -> Value {
    let mut text = json!({"n": body.number, "in": bits(body.channels).map(channel_name).collect::<Vec<_>>()});
    if body.turns {
        text["turns"] = json!(true);
    }
    if let Some(needs) = body.needs {
        text["needs"] = json!(channel_name(needs));
    }
    if !body.gives.is_empty() {
        let to = body.gives.iter().map(|(to, channel)| {
            let name = match to {
                To::User(user) => user_name(*user),
                To::Role(role) => format!("role:{}", role_name(*role)),
            };
            json!([name, channel_name(*channel)])
        });
        text["to"] = to.collect();
    }
    if !body.roles.is_empty() {
        let roles =
            body.roles.iter().map(|(user, role)| json!([user_name(*user), format!("role:{}", role_name(*role))]));
        text["roles"] = roles.collect();
    }
    if let Some(ends) = body.ends {
        let wall = SystemTime::now() + (ends - Instant::now());
        text["ends"] = json!(wall.duration_since(UNIX_EPOCH).expect("a clock").as_secs());
    }
    if body.deleted {
        text["_deleted"] = json!(true);
    }
    text
}

fn body(client: &mut Client, doc: usize, who: Who, deleted: bool, before: Option<&Arc<Body>>) -> Body {
    let world = client.world.clone();
    let random = &mut client.random;
    let mut channels: Mask =
        (0..random.below(4)).map(|_| 1 << random.below(u64::from(CHANNELS))).fold(0, |a, b: Mask| a | b);
    if let Some(before) = before.filter(|_| random.percent(40)) {
        channels = before.channels;
    } else if random.percent(4) {
        channels |= 1 << EVERYONE;
    }
    if deleted && random.percent(40) {
        channels = 0;
    }
    let mut body = Body { number: world.number(), deleted, channels, turns: random.percent(30), ..Body::default() };
    if let Who::User(user) = who {
        body.writer = Some(user);
        if random.percent(50) {
            // Mostly a channel that the user may have.
            let now = Instant::now();
            let rights = lock(&world.model).possible(user, Span { from: now, to: now });
            let has: Vec<u32> = bits(rights.channels).collect();
            let any = random.below(u64::from(CHANNELS)) as u32;
            body.needs = Some(if random.percent(70) { has[random.index(has.len())] } else { any });
        }
    }
    if gives_things(doc) && !deleted {
        for _ in 0..random.below(4) {
            let to = match random.percent(60) {
                true => To::User(random.index(USERS)),
                false => To::Role(random.index(ROLES)),
            };
            // A small range, so that several documents grant the same channel.
            body.gives.push((to, random.below(12) as u32 * 5));
        }
        for _ in 0..random.below(3) {
            body.roles.push((random.index(USERS), random.index(ROLES)));
        }
    }
    if ends(doc) && !deleted && random.percent(70) {
        // Seconds are whole, so the end in the text is up to one second earlier.
        body.ends = Some(Instant::now() + Duration::from_millis(2_000 + random.below(2_500)));
    }
    body.has_file = !deleted && random.percent(if before.is_some_and(|body| body.has_file) { 80 } else { 20 });
    body
}

async fn make(client: &mut Client, attempt: Attempt) {
    let world = client.world.clone();
    let Attempt { doc, who, new_edits, text, after, leaf, stub_of, is_conflict } = attempt;
    let path = format!("/db/{}{}", doc_id(doc), if new_edits { "" } else { "?new_edits=false" });
    let version = {
        let mut model = lock(&world.model);
        model.bodies.insert(leaf.body.number, leaf.body.clone());
        if let Some(rev) = leaf.rev.get() {
            model.revs.insert((doc, rev.clone()), leaf.body.clone());
        }
        model.docs[doc].begin(Arc::new(after))
    };
    let from = Instant::now();
    let server = client.server();
    let answer = client.call(server, "PUT", &path, &world.headers(who), &text).await;
    let span = Span { from, to: Instant::now() };
    let stub_of = stub_of.as_deref().map(|of| (of, new_edits));
    let judge = |answer: &Answer| accepted(&world, doc, who, &leaf.body, stub_of, span, version, answer);
    let rev = match answer {
        Some(answer @ Answer { status: 200..=202, .. }) => {
            if is_conflict {
                world.fail(&format!("{path} {text} without a revision: {answer:?}"), 0, Some(doc));
            }
            judge(&answer);
            parsed(&answer.body)["rev"].as_str().map(str::to_owned)
        }
        Some(answer @ Answer { status: 401 | 403 | 412, .. }) => {
            judge(&answer);
            world.count("writes refused");
            None
        }
        Some(answer @ Answer { status: 409, .. }) => {
            if !is_conflict && !ends(doc) {
                world.fail(&format!("{path} {text}: {answer:?}"), 0, Some(doc));
            }
            world.count("conflicts");
            if ends(doc) { found(client, doc, &leaf).await } else { None }
        }
        None | Some(Answer { status: 429 | 500..=599, .. }) if is_conflict => None,
        None | Some(Answer { status: 429 | 503, .. }) => finish(client, doc, &path, &text, &leaf).await,
        Some(answer) => world.fail(&format!("{path} {text} as {who:?}: {answer:?}"), 0, Some(doc)),
    };
    let mut model = lock(&world.model);
    let Some(rev) = rev else { return model.docs[doc].withdraw(version) };
    let _ = leaf.rev.set(rev.clone());
    model.revs.insert((doc, rev), leaf.body.clone());
    model.docs[doc].acknowledge(version);
    if gives_things(doc) {
        // The write may have revoked something.
        for lost in &mut model.lost {
            lost.get_or_insert(from);
        }
    }
    drop(model);
    world.note(About::Doc(doc));
    world.count("writes");
    if matches!(who, Who::User(_)) {
        world.count("writes by users");
    }
}

/// Repeats a write of unknown outcome as the administrator. `None`: it is not written, and never will be.
async fn finish(client: &mut Client, doc: usize, path: &str, text: &str, leaf: &Leaf) -> Option<String> {
    client.world.count("writes made again");
    let mut waiting = WaitLoop::begin();
    loop {
        let answer = client.root("PUT", path, text).await;
        match answer {
            Some(answer @ Answer { status: 200..=202, .. }) => {
                return parsed(&answer.body)["rev"].as_str().map(str::to_owned);
            }
            Some(Answer { status: 409, .. }) => return found(client, doc, leaf).await,
            None | Some(Answer { status: 429 | 503, .. }) => waiting.pause(&format!("{path} {text} is written")).await,
            Some(answer) => client.world.fail(&format!("{path} {text}: {answer:?}"), 0, Some(doc)),
        }
    }
}

/// Returns the revision of a leaf, if the leaf exists.
async fn found(client: &mut Client, doc: usize, leaf: &Leaf) -> Option<String> {
    let path = format!("/db/{}?open_revs=all", doc_id(doc));
    let leaves = client.must("GET", &path, "", 404).await;
    let leaves = leaves.as_array()?.iter().map(|one| &one["ok"]);
    let mut leaves = leaves.filter(|one| one["n"] == leaf.body.number);
    leaves.next()?["_rev"].as_str().map(str::to_owned)
}

/// Judges whether a user's write was rightly accepted or refused.
#[allow(clippy::too_many_arguments, reason = "all that is known of one write")]
fn accepted(
    world: &World,
    doc: usize,
    who: Who,
    body: &Body,
    stub_of: Option<(&Body, bool)>,
    span: Span,
    version: u64,
    answer: &Answer,
) {
    let Who::User(user) = who else {
        if answer.status > 202 {
            world.fail(&format!("the administrator's write of {}: {answer:?}", doc_id(doc)), 0, Some(doc));
        }
        return;
    };
    let mut model = lock(&world.model);
    // The grants of a write do not count for its own permission.
    model.docs[doc].hide(Some(version));
    let (possible, sure) = (model.possible(user, span), model.sure(user, span));
    let has = |rights: super::model::Rights| body.needs.is_none_or(|needs| rights.channels >> needs & 1 == 1);
    let (may_file, must_file) = match stub_of {
        Some((of, new_edits)) => {
            // In a revision of another replica the stub may stand for the file of any existing revision.
            let may_file = match new_edits {
                true => model.may_show(possible, doc, of, span),
                false => model.may_show_a_file(possible, doc, span),
            };
            (may_file, model.must_show(sure, of, span))
        }
        None => (true, true),
    };
    model.docs[doc].hide(None);
    drop(model);
    let is_right = match answer.status {
        200..=202 => possible.is_enabled && has(possible) && may_file,
        412 => !must_file && stub_of.is_some(),
        _ => !(sure.is_enabled && has(sure)),
    };
    if !is_right {
        world.fail(
            &format!("{body:?} with a stub of {stub_of:?}: {answer:?}, but the user has {possible:?}, surely {sure:?}"),
            user,
            Some(doc),
        );
    }
    world.count(match answer.status {
        200..=202 if body.needs.is_some() => "writes by right",
        200..=202 if stub_of.is_some() => "stubs",
        412 => "stubs refused",
        _ => "writes by users judged",
    });
}
