//! Changes, by an administrator or by a user who may set a database's `_security`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use flatbed_auth::PasswordHash;
use flatbed_layer::json::{self, Value as Members};
use flatbed_testkit::{Random, WaitLoop, pass};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::ask::proof_of;
use super::model::{
    ADMINS, Admin, DATABASES, Database, KEYS, Model, Needs, ROLES, Security, USERS, UserDocument, WITH_PASSWORDS, When,
    database_name, parsed, user_name,
};
use super::{About, Client, Outcome, Phase, World, lock, probe, some};
use flatbed_testkit::http::Answer;
use flatbed_testkit::timeline::{Span, Timeline};

/// The number of items that are changed one at a time: users, databases, administrators, keys, switches.
pub const TURNS: usize = USERS + DATABASES + ADMINS + KEYS + 2;

/// The number of changers that continue in the quiet phase.
const CHANGERS_IN_QUIET: u64 = 2;

const CONFIG: &str = "/_node/_local/_config";

/// A view, and an index for queries.
pub const DESIGN: &str = r#"{"views":{"v":{"map":"function (doc) { emit(doc.n, null); }"}}}"#;

/// Makes the initial state, before any request.
pub async fn prepare(world: &Arc<World>) {
    let mut changer = Changer(Client::new(world, 0x9e9));
    changer.0.must("PUT", "/_users", "", 412).await;
    for (setting, text) in [
        ("chttpd_auth_lockout/mode", "off"),
        ("chttpd_auth/timeout", "31536000"),
        ("chttpd_auth/upgrade_hash_on_auth", if world.seed.is_multiple_of(2) { "true" } else { "false" }),
    ] {
        changer.0.must("PUT", &format!("{CONFIG}/{setting}"), &json!(text).to_string(), 0).await;
    }
    for key in 0..KEYS {
        changer.key(key, 0).await;
    }
    for user in 0..USERS {
        let document = changer.new_user(user);
        changer.user(user, Some(document)).await;
    }
    for database in 0..DATABASES {
        changer.database(database, true).await;
        changer.security(database, false).await;
    }
    changer.switch(true, true).await;
}

pub async fn change(world: Arc<World>, number: u64) {
    let mut changer = Changer(Client::new(&world, 0x1000 + number));
    while world.torture.pass(Duration::from_millis(changer.0.random.below(700))).await {
        if number >= CHANGERS_IN_QUIET && world.phase() == Phase::Quiet {
            continue;
        }
        changer.one().await;
        world.count("changes");
    }
}

/// Opens all databases to all users at the end.
pub async fn open_all(world: &Arc<World>) {
    let mut changer = Changer(Client::new(world, 0x0be));
    changer.switch(false, false).await;
    for database in 0..DATABASES {
        if lock(&world.model).databases[database].newest().is_none() {
            changer.database(database, true).await;
        }
        changer.set_security(database, Security::default()).await;
    }
}

struct Changer(Client);

enum Attempt {
    Made,
    NotMade,
    Unknown,
}

impl Attempt {
    fn of(answer: Option<&Answer>, made: &[u16]) -> Attempt {
        match answer {
            Some(answer) if made.contains(&answer.status) => Attempt::Made,
            Some(Answer { status: 409, .. }) => Attempt::NotMade,
            None | Some(Answer { status: 503 | 429, .. }) => Attempt::Unknown,
            Some(answer) => panic!("{answer:?}"),
        }
    }
}

impl Changer {
    fn world(&self) -> Arc<World> {
        self.0.world.clone()
    }

    fn random(&mut self) -> &mut Random {
        &mut self.0.random
    }

    async fn one(&mut self) {
        let world = self.world();
        let what = self.random().below(100);
        let is_calm = world.phase() == Phase::Calm;
        match what {
            0..34 => {
                let database = self.random().index(DATABASES);
                let _turn = world.turns[USERS + database].lock().await;
                if lock(&world.model).databases[database].newest().is_some() {
                    let about = About::Database(database);
                    let probes = probe::before(&mut self.0, about).await;
                    let by_user = !is_calm && self.random().percent(30);
                    self.security(database, by_user).await;
                    world.note(about);
                    probe::after(&mut self.0, probes).await;
                }
            }
            34..78 => {
                let user = self.random().index(USERS);
                let _turn = world.turns[user].lock().await;
                let probes = probe::before(&mut self.0, About::User(user)).await;
                let newest = lock(&world.model).users[user].newest().clone();
                let next = match newest {
                    // Servers learn of another salt from its first use.
                    Some(document) if is_calm => {
                        Some(UserDocument { roles: some(self.random(), 4, ROLES), ..document })
                    }
                    None if is_calm => return,
                    None => Some(self.new_user(user)),
                    Some(_) if what < 42 => None,
                    Some(UserDocument { password, .. }) if what < 54 => {
                        // A new salt for the same password ends sessions, too.
                        let new = self.new_user(user);
                        Some(if self.random().percent(50) { UserDocument { password, ..new } } else { new })
                    }
                    Some(document) => Some(UserDocument { roles: some(self.random(), 4, ROLES), ..document }),
                };
                self.user(user, next).await;
                world.note(About::User(user));
                probe::after(&mut self.0, probes).await;
            }
            78..84 => {
                let database = self.random().index(DATABASES);
                let _turn = world.turns[USERS + database].lock().await;
                let is_there = lock(&world.model).databases[database].newest().is_some();
                self.database(database, !is_there).await;
                if !is_there && self.random().percent(80) {
                    self.security(database, false).await;
                }
                world.note(About::Database(database));
            }
            84..91 if is_calm => {}
            84..91 => {
                let admin = self.random().index(ADMINS);
                let _turn = world.turns[USERS + DATABASES + admin].lock().await;
                let probes = probe::before(&mut self.0, About::User(admin)).await;
                let is_there = lock(&world.model).admins[admin].newest().is_some();
                let new = Admin { password: format!("a{}", world.number()), salt: format!("as{}", world.number()) };
                self.admin(admin, (!is_there).then_some(new)).await;
                world.note(About::User(admin));
                probe::after(&mut self.0, probes).await;
            }
            91..96 => {
                let key = self.random().index(KEYS);
                let _turn = world.turns[USERS + DATABASES + ADMINS + key].lock().await;
                let proofs = probe::tokens(&mut self.0, key).await;
                let number = lock(&world.keys).replace(key);
                self.key(key, number).await;
                probe::tokens_after(&mut self.0, proofs).await;
            }
            _ => {
                let is_proxies = self.random().percent(50);
                let _turn = world.turns[TURNS - if is_proxies { 1 } else { 2 }].lock().await;
                let is_on = {
                    let model = lock(&world.model);
                    *(if is_proxies { model.believes_proxies.newest() } else { model.wants_names.newest() })
                };
                self.switch(is_proxies, !is_on).await;
                if !is_proxies && !is_on {
                    // Anonymous requests see nothing meanwhile.
                    pass(Duration::from_millis(1_500)).await;
                    self.switch(is_proxies, is_on).await;
                }
            }
        }
    }

    fn new_user(&mut self, user: usize) -> UserDocument {
        let world = self.world();
        let (password, salt) = (format!("p{}", world.number()), format!("s{}", world.number()));
        let password = if user < WITH_PASSWORDS { password } else { "never sent".into() };
        UserDocument { password, salt, roles: some(self.random(), 4, ROLES) }
    }

    /// Repeats a change until it is made. All attempts are equal.
    async fn until_made<T: Clone>(
        &mut self,
        of: impl Fn(&mut Model) -> &mut Timeline<T>,
        value: T,
        (method, path, body): (&str, &str, &str),
        made: &[u16],
    ) {
        let world = self.world();
        let mut waiting = WaitLoop::begin();
        loop {
            let number = of(&mut lock(&world.model)).begin(value.clone());
            let answer = self.0.root(method, path, body).await;
            match Attempt::of(answer.as_ref(), made) {
                Attempt::Made => return of(&mut lock(&world.model)).acknowledge(number),
                Attempt::NotMade => of(&mut lock(&world.model)).withdraw(number),
                // The change may have been made.
                Attempt::Unknown => world.count("changes made again"),
            }
            waiting.pause(&format!("{method} {path}: {answer:?}")).await;
        }
    }

    async fn user(&mut self, user: usize, value: Option<UserDocument>) {
        let world = self.world();
        let path = format!("/_users/org.couchdb.user:{}", user_name(user));
        let mut waiting = WaitLoop::begin();
        loop {
            waiting.pause(&path).await;
            let found = self.0.root("GET", &path, "").await.filter(|answer| matches!(answer.status, 200 | 404));
            let Some(found) = found else { continue };
            let found = if found.status == 200 { parsed(&found.body) } else { Value::Null };
            let number = lock(&world.model).users[user].begin(value.clone());
            let answer = match &value {
                None if found.is_null() => return lock(&world.model).users[user].acknowledge(number),
                None => {
                    let rev = found["_rev"].as_str().expect("a revision");
                    self.0.root("DELETE", &format!("{path}?rev={rev}"), "").await
                }
                Some(value) => self.0.root("PUT", &path, &document(user, value, found).to_string()).await,
            };
            match Attempt::of(answer.as_ref(), &[200, 201]) {
                Attempt::Made => return lock(&world.model).users[user].acknowledge(number),
                Attempt::NotMade => lock(&world.model).users[user].withdraw(number),
                Attempt::Unknown => world.count("changes made again"),
            }
        }
    }

    /// Sets another `_security`, as a database administrator or as any user.
    async fn security(&mut self, database: usize, by_user: bool) {
        let mut security = self.new_security();
        let before = lock(&self.world().model).databases[database].newest().clone();
        if let Some(before) = before.filter(|_| self.random().percent(25)) {
            // The former administrators become members.
            security = Security { members: before.security.admins, is_new: false, ..security };
        }
        if !by_user || !self.security_by_user(database, &security).await {
            self.set_security(database, security).await;
        }
    }

    async fn set_security(&mut self, database: usize, security: Security) {
        let path = format!("/{}/_security", database_name(database));
        let (of, text) = (lock(&self.world().model).databases[database].newest().clone(), security.text());
        let value = of.map(|of| Database { security, ..of });
        self.until_made(|model| &mut model.databases[database], value, ("PUT", &path, &text), &[200]).await;
    }

    /// Returns whether the outcome is known: made, or certainly not.
    async fn security_by_user(&mut self, database: usize, security: &Security) -> bool {
        let world = self.world();
        let server = self.0.server();
        let Some(of) = lock(&world.model).databases[database].newest().clone() else { return true };
        // An administrator of the database, or a random user.
        let (names, _) = of.security.admins;
        let user = names.first().copied().filter(|_| self.random().percent(60));
        let user = user.unwrap_or_else(|| self.random().index(USERS));
        let proof = proof_of(&mut self.0, server, user);
        let value = Some(Database { number: of.number, security: security.clone() });
        let number = lock(&world.model).databases[database].begin(value);
        let path = format!("/{}/_security", database_name(database));
        let from = Instant::now();
        let answer = self.0.call(server, "PUT", &path, &proof.headers(), &security.text()).await;
        let span = Span { from, to: Instant::now() };
        let outcome = answer.as_ref().and_then(|answer| Outcome::of(answer, &proof));
        let Some(outcome) = outcome else { return false };
        let (asked, needs) = (("PUT", &path, answer), Needs::Admin(database));
        if outcome != Outcome::Answered {
            lock(&world.model).databases[database].withdraw(number);
            world.judge(&asked, &proof, needs, When::answered(span), outcome);
            return true;
        }
        let when = When::written(span);
        // The rights that the change grants do not count for its own permission.
        let possible = {
            let mut model = lock(&world.model);
            model.databases[database].hide(Some(number));
            let possible = model.outcomes(&proof, needs, when);
            model.databases[database].hide(None);
            model.databases[database].acknowledge(number);
            possible
        };
        world.compare(&asked, &proof, needs, when, outcome, possible);
        world.count("_security set by users");
        true
    }

    fn new_security(&mut self) -> Security {
        let random = self.random();
        let mut some = |count, end| some(random, count, end).into_iter().collect::<BTreeSet<_>>();
        let (admins, members) = ((some(2, USERS), some(1, ROLES)), (some(6, USERS), some(3, ROLES)));
        match random.below(100) {
            0..12 => Security { admins, ..Security::default() },
            12..20 => Security::new(),
            _ => Security { admins, members, is_new: false },
        }
    }

    async fn database(&mut self, database: usize, is_made: bool) {
        let world = self.world();
        let path = format!("/{}", database_name(database));
        let value = is_made.then(|| Database { number: world.number(), security: Security::new() });
        // The previous attempt may have succeeded.
        let (method, made): (_, &[u16]) = if is_made { ("PUT", &[201, 412]) } else { ("DELETE", &[200, 404]) };
        self.until_made(|model| &mut model.databases[database], value, (method, &path, ""), made).await;
        if is_made {
            self.0.must("PUT", &format!("{path}/_design/v"), DESIGN, 409).await;
        }
    }

    async fn admin(&mut self, admin: usize, value: Option<Admin>) {
        let path = format!("{CONFIG}/admins/{}", user_name(admin));
        let body = value
            .as_ref()
            .map(|Admin { password, salt }| json!(PasswordHash::salted(password, salt, 10).to_string()).to_string());
        let (method, made): (_, &[u16]) = if body.is_some() { ("PUT", &[200]) } else { ("DELETE", &[200, 404]) };
        let body = body.unwrap_or_default();
        self.until_made(|model| &mut model.admins[admin], value, (method, &path, &body), made).await;
    }

    async fn key(&mut self, key: usize, number: usize) {
        let (name, text) = lock(&self.world().keys).setting(key, number);
        let (path, body) = (format!("{CONFIG}/jwt_keys/{name}"), json!(text).to_string());
        self.until_made(|model| &mut model.keys[key], number, ("PUT", &path, &body), &[200]).await;
    }

    async fn switch(&mut self, is_proxies: bool, is_on: bool) {
        let (setting, text) = match (is_proxies, is_on) {
            (true, true) => ("proxy_auth/peers", "127.0.0.1"),
            (true, false) => ("proxy_auth/peers", ""),
            (false, true) => ("chttpd/require_valid_user", "true"),
            (false, false) => ("chttpd/require_valid_user", "false"),
        };
        let (path, body) = (format!("{CONFIG}/{setting}"), json!(text).to_string());
        self.until_made(
            |model| if is_proxies { &mut model.believes_proxies } else { &mut model.wants_names },
            is_on,
            ("PUT", &path, &body),
            &[200],
        )
        .await;
    }
}

/// Returns the text of a user document, as an update of `found`.
fn document(user: usize, value: &UserDocument, found: Value) -> Value {
    let has_hash = found["salt"] == value.salt;
    let mut document = if has_hash { found.clone() } else { hashed(value) };
    document["name"] = json!(user_name(user));
    document["type"] = json!("user");
    document["roles"] = value.roles.iter().map(|role| format!("r{role}")).collect();
    if !found.is_null() {
        document["_rev"] = found["_rev"].clone();
    }
    document
}

/// Returns the members of a cheap hash, which a server may want to upgrade.
fn hashed(value: &UserDocument) -> Value {
    let hash = PasswordHash::salted(&value.password, &value.salt, 10);
    let text = json::to_vec(&Members::Object(hash.put_into(Vec::new())));
    serde_json::from_slice(&text).expect("JSON")
}
