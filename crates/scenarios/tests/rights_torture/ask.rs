//! Requests of all kinds, by permitted and forbidden principals.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::model::{DATABASES, KEYS, Needs, ROLES, USERS, WITH_PASSWORDS, When, database_name, moment, parsed};
use super::proof::Proof;
use super::{About, Client, Outcome, Phase, World, lock};
use flatbed_testkit::http::Answer;
use flatbed_testkit::timeline::Span;

/// The number of its own documents that a client remembers for deletion.
const REMEMBERED: usize = 50;

pub struct Asked {
    method: &'static str,
    path: String,
    body: String,
    needs: Needs,
    kind: Kind,
}

impl Asked {
    pub fn read(database: usize) -> Asked {
        let (path, needs) = (format!("/{}", database_name(database)), Needs::Member(database));
        Asked { method: "GET", path, body: String::new(), needs, kind: Kind::Read }
    }

    pub fn write(database: usize, number: u64) -> Asked {
        let id = format!("w{number}");
        let (path, body) = (format!("/{}/{id}", database_name(database)), json!({ "n": number % 100 }).to_string());
        Asked { method: "PUT", path, body, needs: Needs::Member(database), kind: Kind::Write(vec![id]) }
    }

    pub fn design(database: usize, number: u64) -> Asked {
        let id = format!("_design/w{number}");
        let path = format!("/{}/{id}", database_name(database));
        Asked { method: "PUT", path, body: "{}".into(), needs: Needs::Admin(database), kind: Kind::Write(vec![id]) }
    }

    pub fn session() -> Asked {
        let (path, body) = ("/_session".into(), String::new());
        Asked { method: "GET", path, body, needs: Needs::Nothing, kind: Kind::Session }
    }
}

enum Kind {
    Read,
    /// Writes documents with these ids.
    Write(Vec<String>),
    /// Deletes the document with this id.
    Delete(String),
    /// A write whose result is not checked.
    OtherWrite,
    Session,
}

/// A document that a client has written.
#[derive(Debug, Clone)]
pub struct Written {
    database: usize,
    id: String,
    rev: String,
}

pub async fn ask(world: Arc<World>, number: u64) {
    let mut client = Client::new(&world, 1 + number);
    let mut written: Vec<Written> = Vec::new();
    while world.torture.pass(Duration::from_millis(client.random.below(30))).await {
        if world.phase() == Phase::Quiet {
            continue;
        }
        let (user, database) = about(&mut client);
        let server = client.server();
        let is_busy = world.phase() == Phase::Busy;
        if is_busy && client.random.percent(8) && user < WITH_PASSWORDS && world.may_check() {
            sign_in(&mut client, server, user).await;
            continue;
        }
        let proof = proof_of(&mut client, server, user);
        let asked = choose(&mut client, database, &mut written);
        one(&mut client, server, &proof, asked, &mut written).await;
    }
}

/// Chooses the user and the database of the next request, mostly of recent changes.
fn about(client: &mut Client) -> (usize, usize) {
    let random = &mut client.random;
    let (mut user, mut database) = (random.index(USERS), random.index(DATABASES));
    if random.percent(50) {
        let recent = lock(&client.world.recent);
        match recent.get(random.index(recent.len().max(1))) {
            Some(About::User(of)) => user = *of,
            Some(About::Database(of)) => database = *of,
            None => {}
        }
    }
    (user, database)
}

/// Returns credentials of a user, at times outdated ones.
pub fn proof_of(client: &mut Client, server: SocketAddr, user: usize) -> Proof {
    let world = client.world.clone();
    let random = &mut client.random;
    let (document, admin) = {
        let model = lock(&world.model);
        (model.users[user].newest().clone(), model.admins.get(user).and_then(|admin| admin.newest().clone()))
    };
    let is_busy = world.phase() == Phase::Busy;
    // Sometimes the former account.
    let old = is_busy && random.percent(10);
    let account = match (admin, document) {
        (Some(admin), _) if !old => Some((admin.password, admin.salt)),
        (_, Some(document)) => Some((document.password, document.salt)),
        (admin, None) => admin.map(|admin| (admin.password, admin.salt)),
    };
    // Recurring roles, so that servers remember the tokens.
    let roles = if random.percent(50) { vec![user % ROLES] } else { vec![user % 3, 3 + user % 5] };
    match random.below(100) {
        0..8 => Proof::Nothing,
        8..22 => Proof::proxy(&world.secret, user, roles),
        22..45 => {
            let key = random.index(KEYS);
            let newest = *lock(&world.model).keys[key].newest();
            let number = if is_busy && random.percent(10) { newest.saturating_sub(1) } else { newest };
            world.token(key, number, user, roles)
        }
        kind => {
            let Some((password, salt)) = account else {
                return if is_busy { Proof::session(&world.secret, user, "none") } else { Proof::Nothing };
            };
            let is_known = lock(&world.known).contains(&(server, user, salt.clone()));
            if user < WITH_PASSWORDS && kind < 75 && (is_known || is_busy && world.may_check()) {
                Proof::basic(user, &password)
            } else {
                let salt =
                    if is_busy && random.percent(5) { lock(&world.model).some_salt(user, moment()) } else { salt };
                Proof::session(&world.secret, user, &salt)
            }
        }
    }
}

fn choose(client: &mut Client, database: usize, written: &mut Vec<Written>) -> Asked {
    let world = client.world.clone();
    let random = &mut client.random;
    let path = format!("/{}", database_name(database));
    let member = Needs::Member(database);
    let read = |method, path: String, body: &str| {
        let body = body.to_owned();
        Asked { method, path, body, needs: member, kind: Kind::Read }
    };
    let id = || format!("w{}", world.number());
    match random.below(if world.phase() == Phase::Calm { 53 } else { 100 }) {
        0..5 => Asked::read(database),
        5..12 => read("GET", format!("{path}/_design/v"), ""),
        12..17 => read("GET", format!("{path}/_all_docs?limit=20&include_docs=true"), ""),
        17..21 => read("GET", format!("{path}/_changes?limit=20&descending=true"), ""),
        21..23 => read("GET", format!("{path}/_changes?feed=longpoll&since=now&timeout=100"), ""),
        23..28 => read("POST", format!("{path}/_find"), r#"{"selector":{"n":{"$gt":0}},"limit":5}"#),
        28..32 => read("GET", format!("{path}/_design/v/_view/v?limit=5"), ""),
        32..36 => read("GET", format!("{path}/_security"), ""),
        36..39 => read("GET", format!("{path}/_local/x"), ""),
        39..42 => read("POST", format!("{path}/_bulk_get"), r#"{"docs":[{"id":"_design/v"}]}"#),
        42..45 => read("POST", format!("{path}/_revs_diff"), r#"{"x":["1-00000000000000000000000000000000"]}"#),
        45..50 => Asked::session(),
        50..53 => Asked {
            method: "GET",
            path: "/_all_dbs".into(),
            body: String::new(),
            needs: Needs::Server,
            kind: Kind::Read,
        },
        53..58 if !written.is_empty() => {
            let Written { database, id, rev } = written.swap_remove(random.index(written.len()));
            let path = format!("/{}/{id}?rev={rev}", database_name(database));
            let needs = Needs::Member(database);
            Asked { method: "DELETE", path, body: String::new(), needs, kind: Kind::Delete(id) }
        }
        53..61 => {
            let path = format!("{path}/_local/x{}", world.number());
            Asked { method: "PUT", path, body: "{}".into(), needs: member, kind: Kind::OtherWrite }
        }
        61..66 => Asked::design(database, world.number()),
        66..74 => {
            let ids: Vec<String> = (0..1 + random.below(8)).map(|_| id()).collect();
            let documents: Vec<Value> = ids.iter().map(|id| json!({ "_id": id, "n": random.below(100) })).collect();
            let body = json!({ "docs": documents }).to_string();
            Asked { method: "POST", path: format!("{path}/_bulk_docs"), body, needs: member, kind: Kind::Write(ids) }
        }
        74..80 => {
            let id = id();
            let body = json!({ "_id": id, "n": 1 }).to_string();
            Asked { method: "POST", path, body, needs: member, kind: Kind::Write(vec![id]) }
        }
        _ => Asked::write(database, world.number()),
    }
}

/// Sends one request and judges its outcome.
pub async fn one(client: &mut Client, server: SocketAddr, proof: &Proof, asked: Asked, written: &mut Vec<Written>) {
    let world = client.world.clone();
    let Asked { method, path, body, needs, kind } = asked;
    if let Kind::Delete(id) = &kind {
        let mut ledger = lock(&world.ledger);
        for (_, ids) in ledger.written.values_mut() {
            ids.remove(id);
        }
    }
    let from = Instant::now();
    let answer = client.call(server, method, &path, &proof.headers(), &body).await;
    let span = Span { from, to: Instant::now() };
    let outcome = answer.as_ref().and_then(|answer| Outcome::of(answer, proof));
    let (Some(answer), Some(outcome)) = (answer, outcome) else {
        return world.count("nothing is known of");
    };
    if let (Proof::Basic { user, password }, true) = (proof, outcome != Outcome::Refused) {
        known(&world, server, *user, password, span);
    }
    let is_written = answer.status < 300 && !matches!(kind, Kind::Read | Kind::Session);
    let asked = (method, &path, server, answer.status, &answer.body);
    let judge = |when: When, outcome: Outcome| world.judge(&asked, proof, needs, when, outcome);
    match &kind {
        Kind::Write(ids) if method == "POST" && path.ends_with("_bulk_docs") && is_written => {
            bulk(&world, &answer, ids, judge, span, needs, written);
        }
        _ if is_written => {
            judge(When::written(span), outcome);
            world.count("writes");
            if let (Kind::Write(ids), Some(rev)) = (&kind, parsed(&answer.body)["rev"].as_str()) {
                acknowledged(&world, needs, span, &ids[0], rev, written);
            }
        }
        Kind::Write(ids) if outcome != Outcome::Answered => {
            judge(When::answered(span), outcome);
            lock(&world.ledger).refused.extend(ids.iter().cloned());
        }
        Kind::Session if outcome == Outcome::Answered => {
            judge(When::answered(span), outcome);
            is_who(&world, &answer, proof, span);
        }
        _ => judge(When::answered(span), outcome),
    }
}

/// Returns the outcomes of several documents.
fn bulk(
    world: &World,
    answer: &Answer,
    ids: &[String],
    judge: impl Fn(When, Outcome),
    span: Span,
    needs: Needs,
    written: &mut Vec<Written>,
) {
    let rows = parsed(&answer.body);
    let rows = rows.as_array().expect("outcomes");
    assert_eq!(rows.len(), ids.len(), "{answer:?}");
    for (row, id) in rows.iter().zip(ids) {
        match (row["rev"].as_str(), row["error"].as_str()) {
            (Some(rev), None) => {
                judge(When::written(span), Outcome::Answered);
                world.count("writes");
                acknowledged(world, needs, span, id, rev, written);
            }
            (_, Some("forbidden" | "unauthorized")) => {
                judge(When::answered(span), Outcome::Refused);
                lock(&world.ledger).refused.insert(id.clone());
            }
            _ => panic!("{row}"),
        }
    }
}

/// Records a written document.
fn acknowledged(world: &World, needs: Needs, span: Span, id: &str, rev: &str, written: &mut Vec<Written>) {
    let Some(database) = needs.database() else { return };
    let (numbers, has_none) = lock(&world.model).databases(database, span);
    if let (Some(number), 1, false) = (numbers.first(), numbers.len(), has_none) {
        let mut ledger = lock(&world.ledger);
        let known = ledger.written.entry(database).or_default();
        if known.0 != *number {
            *known = (*number, Default::default());
        }
        known.1.insert(id.to_owned());
    }
    if written.len() < REMEMBERED && !id.starts_with('_') {
        written.push(Written { database, id: id.to_owned(), rev: rev.to_owned() });
    }
}

/// Judges the user and roles of a `_session` answer.
fn is_who(world: &World, answer: &Answer, proof: &Proof, span: Span) {
    let body = parsed(&answer.body);
    let context = &body["userCtx"];
    let roles: BTreeSet<String> = context["roles"]
        .as_array()
        .expect("roles")
        .iter()
        .map(|role| role.as_str().expect("a role").to_owned())
        .collect();
    let when = When::answered(span);
    let may = lock(&world.model).may_be(proof, when, context["name"].as_str(), &roles);
    if !may {
        world.fail(&format!("{proof:?} is taken for {context}"), Needs::Nothing, when);
    }
}

/// Records that a server has accepted a password: it does not check the password again.
fn known(world: &World, server: SocketAddr, user: usize, password: &str, span: Span) {
    let salts = lock(&world.model).salts(user, password, span);
    if let (Some(salt), 1) = (salts.first(), salts.len()) {
        lock(&world.known).insert((server, user, salt.clone()));
    }
}

/// Begins a session and uses it at once.
async fn sign_in(client: &mut Client, server: SocketAddr, user: usize) {
    let world = client.world.clone();
    let document = lock(&world.model).users[user].newest().clone();
    let password = document.map_or_else(|| "none".to_owned(), |document| document.password);
    let proof = Proof::basic(user, &password);
    let body = json!({ "name": super::model::user_name(user), "password": password }).to_string();
    let from = Instant::now();
    let answer = client.call(server, "POST", "/_session", &[], &body).await;
    let span = Span { from, to: Instant::now() };
    let outcome = answer.as_ref().and_then(|answer| Outcome::of(answer, &proof));
    let (Some(answer), Some(outcome)) = (answer, outcome) else { return world.count("nothing is known of") };
    world.judge(&("POST", "/_session", server), &proof, Needs::Nothing, When::answered(span), outcome);
    if outcome != Outcome::Answered {
        return;
    }
    world.count("sessions begun");
    known(&world, server, user, &password, span);
    let salts = lock(&world.model).salts(user, &password, span);
    if let (Some(salt), 1, Some(cookie)) = (salts.first(), salts.len(), answer.session()) {
        let proof = Proof::Session { user, salt: salt.clone(), cookie };
        let other = client.server();
        one(client, other, &proof, Asked::session(), &mut Vec::new()).await;
    }
}
