//! Live feeds of channels: followers are woken by changes in their channels, and none of them misses a row.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Layer, Open, Random, Store, put, soon};
use flatbed_channels::PrincipalKind;
use flatbed_layer::channels::{PrincipalWrite, ReadPrincipal, SignsIn};
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::{
    ChangeRow, Changes, ChangesQuery, ChannelsOptions, CreateOptions, Database, Documents, Edit, Extras, FeedPosition,
    FollowOutcome, GetOptions, Reader, RowKind, Scope, Since, User, waits,
};
use flatbed_testkit::{number, pass, until, within};
use tokio::sync::{mpsc, watch};

/// Two of the long names exceed the names of an entry.
fn channel(number: u64) -> String {
    match number {
        0 => "!".to_owned(),
        1..7 => format!("c{number}"),
        _ => format!("{number}{}", "long".repeat(30)),
    }
}

const CHANNELS: u64 = 10;

fn some_channels(random: &mut Random, most: u64) -> BTreeSet<String> {
    (0..random.below(most + 1)).map(|_| channel(random.below(CHANNELS))).collect()
}

async fn create(layer: &Layer) -> Database {
    let channels = Some(ChannelsOptions::default());
    layer.create_database("db", &CreateOptions { channels, ..CreateOptions::default() }).await.expect("created");
    administrator(layer)
}

fn administrator(layer: &Layer) -> Database {
    let user = User { name: Some("root".to_owned()), roles: vec!["_admin".to_owned()], ..User::default() };
    flatbed_layer::Layer::database(layer, "db", user.through(Arc::new(Open))).asked_by(ReadPrincipal::All)
}

fn counted(layer: &Layer, name: &str) -> u64 {
    layer.counted(&format!("flatbed_{name}"))
}

fn reader(layer: &Layer, user: &str) -> Reader {
    layer.database("db").reader().asked_by(ReadPrincipal::Principal(user.into()))
}

async fn give(db: &Database, kind: PrincipalKind, name: &str, channels: &BTreeSet<String>, roles: &[&str]) {
    let write = PrincipalWrite {
        kind,
        name: name.to_owned(),
        email: String::new(),
        is_disabled: false,
        admin_channels: channels.clone(),
        admin_roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        signs_in: (kind == PrincipalKind::User).then(|| SignsIn::Password(b"{}".to_vec())),
        is_new: false,
    };
    db.put_principal(&write).await.expect("written");
}

fn body(channels: &BTreeSet<String>) -> String {
    let names: Vec<String> = channels.iter().map(|name| format!("\"{name}\"")).collect();
    format!("{{\"channels\":[{}]}}", names.join(","))
}

/// The client's copy of a database.
#[derive(Default)]
struct Client {
    docs: BTreeMap<String, String>,
    at: Option<FeedPosition>,
}

impl Client {
    fn take(&mut self, rows: Vec<ChangeRow>) {
        for row in rows {
            assert!(self.at.is_none_or(|at| row.place() > at), "{row:?} behind {:?}", self.at);
            self.at = Some(row.place());
            match row.kind {
                RowKind::Changed if !row.deleted => drop(self.docs.insert(row.id, row.rev.to_string())),
                RowKind::Changed | RowKind::Lost | RowKind::Revoked => drop(self.docs.remove(&row.id)),
                RowKind::User => {}
            }
        }
    }
}

/// Returns the next rows of a feed, possibly none.
async fn next(changes: &mut Changes, is_following: &mut bool) -> Vec<ChangeRow> {
    if *is_following {
        match changes.follow().await {
            FollowOutcome::Rows(rows) => return rows.iter().map(|row| changes.shown(row)).collect(),
            FollowOutcome::ReadOn => *is_following = false,
            FollowOutcome::Shutdown => return Vec::new(),
        }
    }
    let page = changes.next_page().await.expect("a page");
    *is_following = page.at_end;
    page.rows
}

/// Returns the rows of a feed from the beginning.
async fn walk(reader: &Reader, scope: &Scope) -> BTreeMap<String, String> {
    let mut changes = reader.changes(ChangesQuery { scope: scope.clone(), ..ChangesQuery::default() });
    let mut client = Client::default();
    loop {
        let page = changes.next_page().await.expect("a page");
        client.take(page.rows);
        if page.at_end {
            return client.docs;
        }
    }
}

/// Writes, deletes and moves documents, some twice in one request.
async fn write(db: Database, mut random: Random, rounds: u64) {
    for round in 0..rounds {
        if random.below(30) == 0 {
            let edit = |number| Edit {
                id: format!("bulk-{}-{round}-{number}", random.0).into(),
                parent: None,
                history: None,
                deleted: false,
                expiry: None,
                attachments: Vec::new(),
                body: parse(br#"{"channels":["c1","c4"]}"#, &Limits::default()).expect("JSON").into_owned(),
            };
            let edits: Vec<Edit<'_>> = (0..150).map(edit).collect();
            assert!(db.bulk_update(&edits).await.expect("outcomes").iter().all(Result::is_ok));
            continue;
        }
        let id = format!("d{}", random.below(8));
        for _ in 0..=random.below(3) {
            let found = db.get(&id, &GetOptions::default()).await.ok().map(|document| document.rev);
            let text = match random.below(8) {
                0 => r#"{"_deleted":true}"#.to_owned(),
                _ => body(&some_channels(&mut random, 3)),
            };
            // Other writers interfere, and a deletion may find nothing.
            let _ = put(&db, &id, found.as_ref(), &text).await;
        }
        if random.below(4) == 0 {
            pass(Duration::from_millis(random.below(30))).await;
        }
    }
}

struct Follower {
    number: usize,
    reader: Reader,
    scope: Scope,
    /// True if its user never loses a channel.
    keeps_all: bool,
    random: Random,
    is_over: watch::Receiver<bool>,
}

impl Follower {
    fn changes(&mut self, at: Option<FeedPosition>) -> Changes {
        let documents = if self.number.is_multiple_of(4) { Documents::Yes } else { Documents::No };
        self.reader.changes(ChangesQuery {
            since: at.map_or(Since::Beginning, Since::after),
            scope: self.scope.clone(),
            extras: Extras { leaves: self.number.is_multiple_of(3), documents },
            ..ChangesQuery::default()
        })
    }

    fn is_done(&self, has: &BTreeMap<String, String>, seen: &BTreeMap<String, String>) -> bool {
        // A user who loses a channel keeps the documents that they have of it.
        seen.iter().all(|(id, rev)| has.get(id) == Some(rev)) && (!self.keeps_all || has.len() == seen.len())
    }

    async fn run(mut self) {
        let mut client = Client::default();
        let (mut changes, mut is_following) = (self.changes(None), false);
        while !*self.is_over.borrow() {
            tokio::select! {
                rows = next(&mut changes, &mut is_following) => client.take(rows),
                _ = self.is_over.changed() => {}
            }
            if self.random.below(20) == 0 {
                (changes, is_following) = (self.changes(client.at), false);
            }
        }
        let seen = walk(&self.reader, &self.scope).await;
        let rest = async {
            while !self.is_done(&client.docs, &seen) {
                client.take(next(&mut changes, &mut is_following).await);
            }
        };
        // Sooner than a feed reads by itself.
        let in_time = within(Duration::from_secs(20), rest).await.is_some();
        assert!(in_time, "{}, {:?}: {:?} instead of {seen:?}", self.number, self.scope, client.docs);
    }
}

async fn followers_have_what_they_see(store: Store, seed: u64, rounds: u64) {
    const USERS: usize = 10;
    let mut random = Random(seed);
    let (one, two) = (store.layer().await, store.layer().await);
    let db = create(&one).await;
    give(&db, PrincipalKind::Role, "r", &some_channels(&mut random, 2), &[]).await;
    let (over, is_over) = watch::channel(false);
    let mut of_users = Vec::new();
    let mut followers = tokio::task::JoinSet::new();
    for user in 0..USERS {
        let (name, keeps_all) = (format!("u{user}"), user.is_multiple_of(2));
        let channels = some_channels(&mut random, 3);
        give(&db, PrincipalKind::User, &name, &channels, if keeps_all { &[] } else { &["r"] }).await;
        of_users.push(channels);
        for server in [&one, &two, &two] {
            let scope = match random.below(3) {
                0 => Scope::Channels(Arc::new(some_channels(&mut random, 4))),
                _ => Scope::All,
            };
            let (reader, random) = (reader(server, &name), Random(random.below(u64::MAX)));
            let (number, is_over) = (followers.len(), is_over.clone());
            followers.spawn(Follower { number, reader, scope, keeps_all, random, is_over }.run());
        }
    }
    // A follower that is woken by each change.
    let reader = two.database("db").reader().asked_by(ReadPrincipal::All);
    let random_of_all = Random(random.below(u64::MAX));
    let of_all = Follower { number: 0, reader, scope: Scope::All, keeps_all: true, random: random_of_all, is_over };
    followers.spawn(of_all.run());
    let writers = (0..4).map(|number| {
        let server = if number % 2 == 0 { &one } else { &two };
        tokio::spawn(write(administrator(server), Random(random.below(u64::MAX)), rounds))
    });
    let writers: Vec<_> = writers.collect();
    for _ in 0..rounds {
        let user = random.below(USERS as u64) as usize;
        let keeps_all = user.is_multiple_of(2);
        let mut channels = some_channels(&mut random, 3);
        if keeps_all {
            channels.extend(of_users[user].iter().cloned());
        }
        of_users[user].clone_from(&channels);
        give(&db, PrincipalKind::User, &format!("u{user}"), &channels, if keeps_all { &[] } else { &["r"] }).await;
        if random.below(4) == 0 {
            give(&db, PrincipalKind::Role, "r", &some_channels(&mut random, 2), &[]).await;
        }
        pass(Duration::from_millis(random.below(20))).await;
    }
    for writer in writers {
        writer.await.expect("written");
    }
    over.send_replace(true);
    while let Some(done) = followers.join_next().await {
        done.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    assert!(counted(&two, "tail_rows") > 0 && counted(&two, "hub_rows") > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_have_what_a_walk_of_their_channels_gives() {
    let cases = number("FLATBED_TEST_CASES").unwrap_or(1);
    for case in 0..cases {
        followers_have_what_they_see(Store::new(), 7 + case, 40).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_of_shards_under_faults_have_what_a_walk_gives() {
    let Some(store) = Store::with_faults(0.02, 11) else { return };
    followers_have_what_they_see(store.sharded(3), 11, 25).await;
}

/// Each write wakes exactly the followers that hold one of its channels.
#[tokio::test(flavor = "multi_thread")]
async fn those_are_woken_who_hold_a_channel_of_the_row() {
    const USERS: u64 = 30;
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer).await;
    let own = |users: &[u64]| -> BTreeSet<String> { users.iter().map(|user| format!("own{user}")).collect() };
    let (sent, mut came) = mpsc::unbounded_channel();
    for user in 0..USERS {
        let name = format!("u{user}");
        give(&db, PrincipalKind::User, &name, &own(&[user]), &[]).await;
        let (mut changes, sent) = (reader(&layer, &name).changes(ChangesQuery::default()), sent.clone());
        tokio::spawn(async move {
            let mut is_following = false;
            loop {
                for row in next(&mut changes, &mut is_following).await {
                    let is_lost = row.kind == RowKind::Lost;
                    if row.kind != RowKind::User && sent.send((user, row.id, is_lost)).is_err() {
                        return;
                    }
                }
            }
        });
    }
    let standing = || layer.followers();
    until("all follow", async || standing().by_channels == USERS as usize).await;
    // The channel `!`, the own channel, and the user.
    assert_eq!(standing().held, 3 * USERS as usize);
    let all: Vec<u64> = (0..USERS).collect();
    // A document in more channels than an entry names is looked up once for all followers.
    let mut rev = None;
    let steps: [(BTreeSet<String>, Vec<u64>); 6] = [
        (own(&[3]), vec![3]),
        (own(&[3, 4]), vec![3, 4]),
        (own(&[4, 5]), vec![3, 4, 5]),
        (own(&all[..20]), all[..20].to_vec()),
        (BTreeSet::new(), all[..20].to_vec()),
        (["!".to_owned()].into(), all.clone()),
    ];
    // A follower may still be at the end of its page. After the first of these changes it takes the second from the
    // shared rows.
    for id in ["ready", "steady"] {
        put(&db, id, None, r#"{"channels":["!"]}"#).await.expect("written");
        let mut told = BTreeSet::new();
        soon(async {
            while told.len() < USERS as usize {
                let (user, of, _) = came.recv().await.expect("followers are there");
                told.extend((of == id).then_some(user));
            }
        })
        .await;
    }
    let read = counted(&layer, "channel_reads");
    let woken: usize = steps.iter().map(|(_, users)| users.len()).sum();
    for (channels, users) in steps {
        let before = counted(&layer, "hub_wakes");
        rev = Some(put(&db, "doc", rev.as_ref(), &body(&channels)).await.expect("written"));
        let mut told = BTreeMap::new();
        soon(async {
            while told.len() < users.len() {
                let (user, id, is_lost) = came.recv().await.expect("followers are there");
                assert_eq!(id, "doc");
                told.insert(user, is_lost);
            }
        })
        .await;
        assert_eq!(told.keys().copied().collect::<Vec<_>>(), users);
        let is_seen = |user: &u64| channels.contains("!") || channels.contains(&format!("own{user}"));
        assert!(told.iter().all(|(user, is_lost)| *is_lost != is_seen(user)), "{channels:?} {told:?}");
        assert_eq!(counted(&layer, "hub_wakes") - before, users.len() as u64, "{channels:?}");
    }
    // Except for a follower that the system has not run until now.
    let reads = counted(&layer, "channel_reads") - read;
    assert!(reads < woken as u64 / 4, "{reads} of {woken} have read their channels");
    // Hidden changes reach no follower, and a follower that slept all the time continues at the position of the others.
    put(&db, "hidden", None, r#"{"channels":["nobody's"]}"#).await.expect("written");
    let before = counted(&layer, "hub_wakes");
    give(&db, PrincipalKind::User, "u29", &own(&[29, 0]), &[]).await;
    put(&db, "other", None, r#"{"channels":["own0"]}"#).await.expect("written");
    let mut told = BTreeSet::new();
    soon(async {
        while told.len() < 2 {
            told.insert(came.recv().await.expect("followers are there"));
        }
    })
    .await;
    let other = |user| (user, "other".to_owned(), false);
    assert_eq!(told, [other(0), other(29)].into());
    assert!(counted(&layer, "hub_wakes") - before <= 4);
    let are_there = || (standing().held, standing().lag) == (3 * USERS as usize + 1, Duration::ZERO);
    until("all are where the last change is", async || are_there()).await;
}

/// A user with more channels than one page reads, and more entries in them than a merge buffers, reads to the end.
#[tokio::test]
async fn thousands_of_channels_are_read_to_the_end() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer).await;
    let names = |from: u64, to: u64| (from..to).map(|number| format!("m{number}")).collect::<BTreeSet<String>>();
    let roles: Vec<String> = (0..6).map(|role| format!("r{role}")).collect();
    for (role, number) in roles.iter().zip(0..) {
        give(&db, PrincipalKind::Role, role, &names(1_000 * number, 1_000 * number + 1_000), &[]).await;
    }
    for doc in 0..40_u64 {
        let half = 300 * (doc % 2);
        put(&db, &format!("d{doc}"), None, &body(&names(half, half + 300))).await.expect("written");
    }
    give(&db, PrincipalKind::User, "u", &BTreeSet::new(), &roles.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let some = Scope::Channels(Arc::new(names(0, 1_000)));
    for (reader, scope) in
        [(reader(&layer, "u"), Scope::All), (reader(&layer, "u"), some.clone()), (db.reader().clone(), some)]
    {
        let mut changes = reader.changes(ChangesQuery { scope, ..ChangesQuery::default() });
        let (mut client, mut pages) = (Client::default(), 0);
        loop {
            let (page, waits) = waits::count(changes.next_page()).await;
            let page = page.expect("a page");
            // However many ranges there are, a transaction reads 4,096 of them, beside some for the principal and for
            // documents.
            assert!(waits.range_reads <= 4_500 * waits.transactions, "{waits:?}");
            client.take(page.rows);
            pages += 1;
            if page.at_end {
                break;
            }
            assert!(pages < 50, "it comes to no end");
        }
        assert_eq!(client.docs.len(), 40);
    }
}
