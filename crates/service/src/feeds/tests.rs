//! Feeds without any surface.

use std::cell::Cell;
use std::time::Duration;

use flatbed_auth::{AuthMethod, Principal};
use flatbed_clock::ManualClock;
use flatbed_javascript::{Runner, RunnerOptions};
use flatbed_layer::json::{self, Limits};
use flatbed_layer::{ChangesPage, CreateOptions, Edit, Layer, LayerOptions};
use flatbed_testkit::{PATIENCE, Storage, soon, until, until_some, within};
use futures_util::FutureExt;

use super::*;
use crate::context::{Context, Service};
use crate::rights::{Administer, Own, Read, Write};
use crate::standing::{RightsBasis, Standing};
use crate::test_store::{options, token, with_key};

pub(crate) struct Store {
    pub(crate) service: Service,
    pub(crate) context: Context,
    _storage: Storage,
}

impl Store {
    pub(crate) async fn new() -> Store {
        Store::timed(Clock::system()).await
    }

    async fn timed(clock: Clock) -> Store {
        let storage = Storage::new();
        let functions = Runner::new(RunnerOptions { threads: 1, ..RunnerOptions::default() }).unwrap();
        let judge = Arc::new(crate::Functions::new(functions.clone()));
        let options = LayerOptions { clock, ..options(&storage) };
        let (layer, _) = Layer::open(storage.fdb.clone(), options, Some(judge)).await.unwrap();
        let service = Service::new(layer, functions, with_key(&[]));
        let context = service.context(Standing::of_server());
        context.database("db", Own).await.unwrap().create(&CreateOptions::default()).await.unwrap();
        Store { service, context, _storage: storage }
    }

    pub(crate) async fn put(&self, id: &str, body: &str) {
        let body = json::parse(body.as_bytes(), &Limits::default()).unwrap();
        let edit = Edit {
            expiry: None,
            id: id.into(),
            parent: None,
            history: None,
            deleted: false,
            attachments: Vec::new(),
            body,
        };
        self.context.database("db", Write).await.unwrap().update(&edit).await.unwrap();
    }

    async fn feed(&self, query: FeedQuery) -> Result<Feed> {
        self.context.feed(&self.context.database("db", Read).await.unwrap(), query).await
    }

    /// Waits for a poll, begun after this call, of the basis of all followers' rights.
    async fn looked(&self) {
        let mut confirmed = self.service.accounts().confirmed();
        // The poll that ends next may have begun before.
        for _ in 0..2 {
            let before = *confirmed.borrow_and_update();
            soon(confirmed.wait_for(|began| *began != before)).await.unwrap();
        }
    }
}

fn query(follow: Follow) -> FeedQuery {
    FeedQuery {
        since: Since::Beginning,
        descending: false,
        limit: None,
        scope: Scope::All,
        active_only: false,
        revocations: false,
        filter: Filter::None,
        all_leaves: false,
        documents: Documents::No,
        filtered: Documents::Yes,
        follow,
        timeout: Duration::from_millis(200),
    }
}

fn function(name: &str) -> Filter {
    let kind = FilterKind::Filter { request: br#"{"method":"GET"}"#.to_vec() };
    Filter::Function(FilterFunction { design: "d".to_owned(), name: name.to_owned(), kind })
}

fn ids(rows: &[ChangeRow]) -> Vec<&str> {
    rows.iter().map(|row| row.id.as_str()).collect()
}

/// Returns all pages up to the end as one. The storage may cut a page short.
async fn page(feed: &mut Feed) -> ChangesPage {
    let mut page = feed.next_page().await.unwrap();
    while !page.at_end {
        let next = feed.next_page().await.unwrap();
        let rows = [page.rows, next.rows].concat();
        page = ChangesPage { rows, ..next };
    }
    page
}

async fn next(feed: &mut Feed, heartbeats: &mut Heartbeats) -> Vec<String> {
    loop {
        let rows = match feed.wait(heartbeats).await.unwrap() {
            FeedWaitOutcome::Shared(rows) => rows.iter().map(|row| feed.shown(row)).collect(),
            FeedWaitOutcome::Passed(rows) => rows,
            FeedWaitOutcome::ReadOn => feed.next_page().await.unwrap().rows,
            FeedWaitOutcome::Heartbeat => continue,
            FeedWaitOutcome::Over => return Vec::new(),
        };
        if !rows.is_empty() {
            return ids(&rows).into_iter().map(str::to_owned).collect();
        }
    }
}

#[tokio::test]
async fn feeds_wait_as_long_as_they_are_to() {
    let store = Store::new().await;
    store.put("a", r#"{"n":1}"#).await;
    let mut none = Heartbeats::new(None, store.context.clock());
    let mut once = store.feed(query(Follow::No)).await.unwrap();
    assert_eq!(ids(&page(&mut once).await.rows), ["a"]);
    assert!(!once.can_wait());
    let since = Since::after(once.last_seq().unwrap());

    // An existing row ends a feed that waits for the first one.
    let mut first = store.feed(query(Follow::UntilFirst)).await.unwrap();
    first.next_page().await.unwrap();
    assert!(!first.can_wait());
    let mut first = store.feed(FeedQuery { since, ..query(Follow::UntilFirst) }).await.unwrap();
    assert!(page(&mut first).await.rows.is_empty() && first.can_wait());
    assert!(matches!(first.wait(&mut none).await.unwrap(), FeedWaitOutcome::Over));

    // With heartbeats there is no timeout.
    let mut follower = store.feed(FeedQuery { since, limit: Some(2), ..query(Follow::On) }).await.unwrap();
    assert!(page(&mut follower).await.at_end);
    let manual = ManualClock::new();
    let mut heartbeats = Heartbeats::new(Some(Duration::from_secs(60)), &manual.clock());
    for _ in 0..3 {
        let mut waits = std::pin::pin!(follower.wait(&mut heartbeats));
        assert!(within(Duration::from_millis(20), &mut waits).await.is_none());
        manual.advance(Duration::from_secs(59));
        assert!(within(Duration::from_millis(20), &mut waits).await.is_none());
        manual.advance(Duration::from_secs(1));
        let waited = soon(waits).await.unwrap();
        assert!(matches!(waited, FeedWaitOutcome::Heartbeat), "{waited:?}");
    }
    store.put("b", r#"{"n":2}"#).await;
    assert_eq!(soon(next(&mut follower, &mut heartbeats)).await, ["b"]);
    assert!(follower.can_wait());
    store.put("c", r#"{"n":3}"#).await;
    assert_eq!(next(&mut follower, &mut none).await, ["c"]);
    assert!(!follower.can_wait(), "the limit is reached");
    assert_eq!(follower.pending().await.unwrap(), 0);
    store.put("d", r#"{"n":3}"#).await;
    assert_eq!(follower.pending().await.unwrap(), 1);
}

#[tokio::test]
async fn filters_pass_rows_up_to_the_limit() {
    let store = Store::new().await;
    let even = "function (doc, req) { return doc.n % 2 === 0 && req.userCtx.db === 'db' && req.secObj.admins.roles[0] === '_admin'; }";
    let big = "function (doc) { if (doc.n > 3) emit(1); }";
    store.put("_design/d", &format!(r#"{{"filters":{{"even":"{even}"}},"views":{{"big":{{"map":"{big}"}}}}}}"#)).await;
    for n in 0..6 {
        store.put(&format!("d{n}"), &format!("{{\"n\":{n}}}")).await;
    }
    let view = || {
        let asked = FilterFunction { design: "d".to_owned(), name: "big".to_owned(), kind: FilterKind::View };
        Filter::Function(asked)
    };
    let selector = async || {
        let selector = json::parse(br#"{"n":{"$lt":2}}"#, &Limits::default()).unwrap().into_owned();
        Filter::Selector(store.context.selector("db", selector).await.unwrap())
    };
    for (filter, expected) in
        [(function("even"), &["d0", "d2", "d4"][..]), (view(), &["d4", "d5"]), (selector().await, &["d0", "d1"])]
    {
        let mut feed = store.feed(FeedQuery { filter, ..query(Follow::No) }).await.unwrap();
        assert_eq!(ids(&page(&mut feed).await.rows), expected);
    }
    let mut limited =
        store.feed(FeedQuery { filter: function("even"), limit: Some(2), ..query(Follow::On) }).await.unwrap();
    let rows = page(&mut limited).await.rows;
    assert_eq!((ids(&rows), limited.can_wait()), (vec!["d0", "d2"], false));
    assert_eq!(limited.last_seq(), Some(rows[1].place()));
    // Missing members have CouchDB's names.
    for (name, missing) in [("odd", "odd"), ("even", "")] {
        let found = store.feed(FeedQuery { filter: function(name), ..query(Follow::No) }).await;
        assert_eq!(found.err().map(|error| error.to_string()).unwrap_or_default().rsplit(' ').next(), Some(missing));
    }
    let other = FilterFunction { design: "d".to_owned(), name: "big".to_owned(), kind: FilterKind::View };
    store.put("_design/e", "{}").await;
    let other = Filter::Function(FilterFunction { design: "e".to_owned(), ..other });
    let refused = store.feed(FeedQuery { filter: other, ..query(Follow::No) }).await.err().unwrap();
    assert!(matches!(&refused, FeedError::MissingMember(name) if name == "views"), "{refused}");
}

/// A design document of 1 MB is in memory once for all feeds that filter by it.
#[tokio::test]
async fn feeds_share_what_they_filter_by() {
    let store = Store::new().await;
    let text = "x".repeat(1 << 20);
    store
        .put("_design/d", &format!(r#"{{"filters":{{"all":"function () {{ return true; }}"}},"text":"{text}"}}"#))
        .await;
    let mut feeds = Vec::new();
    for _ in 0..200 {
        feeds.push(store.feed(FeedQuery { filter: function("all"), ..query(Follow::On) }).await.unwrap());
    }
    let held = store.service.feeds().held_bytes();
    assert!((1 << 20..2 << 20).contains(&held), "{held}");
    drop(feeds);
    assert_eq!(store.service.feeds().held_bytes(), 0);
}

#[tokio::test]
async fn a_signed_in_user_takes_the_same_turns_at_all_addresses() {
    let store = Store::new().await;
    let at = |name: Option<&str>, host: u8| {
        let principal = name.map_or_else(Principal::anonymous, |name| Principal::user(name, [], AuthMethod::Password));
        let context = store.service.context(Standing::new(principal, RightsBasis::Nothing));
        context.from_peer(Some(std::net::IpAddr::from([10, 0, 0, host]))).origin("db")
    };
    assert_eq!(at(Some("anna"), 1), at(Some("anna"), 2));
    assert_ne!(at(Some("anna"), 1), at(Some("bob"), 1));
    assert_ne!(at(None, 1), at(None, 2));
}

/// A client that reads many design documents does not delay others.
#[tokio::test]
async fn design_documents_are_read_in_turns() {
    let store = Store::new().await;
    store.put("_design/d", r#"{"filters":{"all":"function () { return true; }"}}"#).await;
    let turns = store.service.feeds().reading().clone();
    let noisy = Origin::at([10, 0, 0, 1], "noisy");
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(turns.wait(noisy.turn_keys()).await.unwrap());
    }
    let mut waiting: Vec<_> = (0..20).map(|_| Box::pin(turns.wait(noisy.turn_keys()))).collect();
    for waiting in &mut waiting {
        assert!(waiting.now_or_never().is_none());
    }
    let quiet = store.feed(FeedQuery { filter: function("all"), ..query(Follow::No) });
    let end = async {
        until("it waits, too", async || turns.waiting() == 21).await;
        held.truncate(1);
    };
    let (begun, ()) = soon(async { tokio::join!(quiet, end) }).await;
    assert!(begun.is_ok());
    // Two turns preceded it, and it gave its own back.
    assert_eq!(turns.waiting(), 17);
}

/// A function runs while the feed waits; the timeout may pass before the function answers.
#[tokio::test]
async fn what_is_being_filtered_when_the_time_is_up_comes_with_the_next_feed() {
    let store = Store::new().await;
    let slow = "function (doc) { var end = Date.now() + 1000; while (Date.now() < end) {} return !!doc.n; }";
    store.put("_design/d", &format!(r#"{{"filters":{{"slow":"{slow}"}}}}"#)).await;
    let since = store.feed(query(Follow::No)).await.unwrap().next_page().await.unwrap().last_seq;
    let follower = FeedQuery { since: Since::after(since), filter: function("slow"), ..query(Follow::On) };
    let mut feed = store.feed(follower).await.unwrap();
    assert!(page(&mut feed).await.at_end);
    // Now it follows shared rows.
    assert!(matches!(
        feed.wait(&mut Heartbeats::new(None, store.context.clock())).await.unwrap(),
        FeedWaitOutcome::Over
    ));
    let mut count = 0;
    let last = until_some("the time is up before the function answers", async || {
        count += 1;
        let id = format!("a{count}");
        store.put(&id, r#"{"n":1}"#).await;
        match feed.wait(&mut Heartbeats::new(None, store.context.clock())).await.unwrap() {
            FeedWaitOutcome::Over => Some(id),
            // On a slow machine the function may have answered before the timeout.
            _ => None,
        }
    });
    let last = last.await;
    let last_seq = feed.last_seq().unwrap();
    let next = FeedQuery { since: Since::after(last_seq), filter: function("slow"), ..query(Follow::No) };
    assert_eq!(ids(&page(&mut store.feed(next).await.unwrap()).await.rows), [&*last]);
}

/// The feed of a reader who loses the right ends within a second; other feeds continue.
#[tokio::test]
async fn a_feed_ends_with_its_readers_right() {
    let store = Store::new().await;
    let administration = store.context.database("db", Administer).await.unwrap();
    administration.set_security(br#"{"members":{"roles":["r"]}}"#).await.unwrap();
    store.put("a", "{}").await;
    let anna = Principal::user("anna", ["r".to_owned()], AuthMethod::Password);
    let anna = store.service.context(Standing::new(anna, RightsBasis::Nothing));
    let mut waiting = anna.feed(&anna.database("db", Read).await.unwrap(), query(Follow::On)).await.unwrap();
    let mut reading = anna.feed(&anna.database("db", Read).await.unwrap(), query(Follow::On)).await.unwrap();
    let mut of_admin = store.feed(query(Follow::On)).await.unwrap();
    for feed in [&mut waiting, &mut reading, &mut of_admin] {
        assert_eq!(ids(&page(feed).await.rows), ["a"]);
    }
    let mut heartbeats = Heartbeats::new(Some(10 * PATIENCE), store.context.clock());
    let is_over = Cell::new(false);
    let waits = async {
        let waited = soon(waiting.wait(&mut heartbeats)).await;
        is_over.set(true);
        waited
    };
    let changes = async {
        // Another change of the record, and a change of the members that keeps the reader's right.
        store.looked().await;
        administration.set_revs_limit(10).await.unwrap();
        administration.set_security(br#"{"members":{"roles":["r","s"]}}"#).await.unwrap();
        store.looked().await;
        assert!(!is_over.get(), "the reader still has the right");
        administration.set_security(br#"{"members":{"roles":["s"]}}"#).await.unwrap();
    };
    let (waited, ()) = tokio::join!(waits, changes);
    let lost = |error: FeedError| match error {
        FeedError::Lost(refused) => refused.kind.status(),
        error => panic!("{error}"),
    };
    assert_eq!(lost(waited.unwrap_err()), 403);
    assert_eq!(lost(reading.next_page().await.unwrap_err()), 403);
    store.put("b", "{}").await;
    assert!(matches!(
        soon(of_admin.wait(&mut heartbeats)).await.unwrap(),
        FeedWaitOutcome::Shared(_) | FeedWaitOutcome::ReadOn
    ));
    // The polling task ends without followers.
    drop((waiting, reading, of_admin));
    until("the poll ends", async || !store.service.is_watching()).await;
}

/// A feed sends nothing while its reader's rights are unconfirmed.
#[tokio::test]
async fn a_feed_waits_until_its_readers_right_is_known() {
    let store = Store::new().await;
    let administration = store.context.database("db", Administer).await.unwrap();
    administration.set_security(br#"{"members":{"roles":["r"]}}"#).await.unwrap();
    let anna = Principal::user("anna", ["r".to_owned()], AuthMethod::Password);
    let anna = store.service.context(Standing::new(anna, RightsBasis::Nothing));
    let mut feed = anna.feed(&anna.database("db", Read).await.unwrap(), query(Follow::On)).await.unwrap();
    assert!(page(&mut feed).await.at_end);
    let mut heartbeats = Heartbeats::new(Some(Duration::from_millis(300)), store.context.clock());
    let next = async |feed: &mut Feed, heartbeats: &mut Heartbeats| {
        loop {
            match feed.wait(heartbeats).await.unwrap() {
                FeedWaitOutcome::Heartbeat => {}
                FeedWaitOutcome::ReadOn => {
                    let page = feed.next_page().await.unwrap();
                    if !page.rows.is_empty() {
                        return page.rows.into_iter().map(|row| row.id).collect();
                    }
                }
                FeedWaitOutcome::Shared(rows) => return rows.iter().map(|row| row.row.id.clone()).collect::<Vec<_>>(),
                other => panic!("{other:?}"),
            }
        }
    };
    store.put("a", "{}").await;
    assert_eq!(soon(next(&mut feed, &mut heartbeats)).await, ["a"]);
    let mut of_admin = store.feed(query(Follow::On)).await.unwrap();
    assert_eq!(ids(&page(&mut of_admin).await.rows), ["a"]);
    // Blocks the polls that confirm rights.
    let stopped = store.service.accounts().stop_polling().await;
    until("the last poll is too old", async || !store.service.accounts().is_confirmed(None)).await;
    store.put("b", "{}").await;
    assert_eq!(soon(next(&mut of_admin, &mut heartbeats)).await, ["b"], "a fixed administrator's right cannot be lost");
    let mut beats = 0;
    while beats < 4 {
        match soon(feed.wait(&mut heartbeats)).await {
            Ok(FeedWaitOutcome::Heartbeat) => beats += 1,
            Ok(FeedWaitOutcome::ReadOn) => {
                assert!(tokio::time::timeout(Duration::from_millis(100), feed.next_page()).await.is_err());
            }
            waited => panic!("{waited:?}"),
        }
    }
    drop(stopped);
    assert_eq!(soon(next(&mut feed, &mut heartbeats)).await, ["b"]);
}

#[tokio::test]
async fn rows_are_read_before_they_are_filtered() {
    let store = Store::new().await;
    store.put("_design/d", r#"{"filters":{"none":"function (doc) { return false; }"}}"#).await;
    store.put("a", "{}").await;
    let mut feed = store.feed(FeedQuery { filter: function("none"), ..query(Follow::No) }).await.unwrap();
    let read = feed.read_page().await.unwrap();
    assert!(!read.rows.is_empty());
    assert!(feed.filter_page(read).await.unwrap().rows.is_empty());
}

/// The right to a feed is for one database, not for a later one of the same name.
#[tokio::test]
async fn a_feed_ends_with_its_database() {
    let store = Store::new().await;
    store.put("a", "{}").await;
    let anna =
        store.service.context(Standing::new(Principal::user("anna", [], AuthMethod::Password), RightsBasis::Nothing));
    let owner = store.context.database("db", Own).await.unwrap();
    let administration = store.context.database("db", Administer).await.unwrap();
    administration.set_security(br#"{"members":{"names":["anna"]}}"#).await.unwrap();
    let mut waiting = anna.feed(&anna.database("db", Read).await.unwrap(), query(Follow::On)).await.unwrap();
    let mut reading = store.feed(query(Follow::On)).await.unwrap();
    for feed in [&mut waiting, &mut reading] {
        assert_eq!(ids(&page(feed).await.rows), ["a"]);
    }
    let mut watch = anna.rights_watch().at_once();
    let mut goes_on = async || {
        tokio::select! {
            lost = watch.lost() => panic!("{lost}"),
            () = store.looked() => {}
        }
    };
    goes_on().await;
    owner.delete().await.unwrap();
    // This finds the database deleted.
    goes_on().await;
    owner.create(&CreateOptions::default()).await.unwrap();
    store.put("secret", "{}").await;
    assert!(matches!(reading.next_page().await, Err(FeedError::Layer(LayerError::DatabaseNotFound))));
    assert!(waiting.next_page().await.is_err());
    // A connection that is cut without a reason is cut, too.
    let lost = soon(watch.lost()).await;
    assert!(matches!(lost.kind.status(), 403 | 404), "{lost}");
}

#[tokio::test]
async fn a_feed_ends_with_its_token() {
    let manual = ManualClock::new();
    let store = Store::timed(manual.clock()).await;
    store
        .context
        .database("db", Administer)
        .await
        .unwrap()
        .set_security(b"{\"members\":{\"roles\":[]}}")
        .await
        .unwrap();
    let now_s = || store.context.clock().unix_seconds();
    let ends = now_s() + 6;
    let anna = Standing::new(Principal::user("anna", [], AuthMethod::Jwt), token(Some(ends)).await);
    let anna = store.service.context(anna);
    let mut feed = anna.feed(&anna.database("db", Read).await.unwrap(), query(Follow::On)).await.unwrap();
    assert!(page(&mut feed).await.rows.is_empty());
    let mut heartbeats = Heartbeats::new(Some(10 * PATIENCE), store.context.clock());
    let mut wait = Box::pin(feed.wait(&mut heartbeats));
    let waited = until_some("the feed ends", async || {
        let waited = within(Duration::from_millis(20), &mut wait).await;
        if waited.is_none() {
            manual.advance(Duration::from_millis(500));
        }
        waited
    })
    .await;
    assert!(matches!(&waited, Err(FeedError::Lost(refused)) if refused.kind.status() == 401), "{waited:?}");
    assert!(now_s() >= ends);
}
