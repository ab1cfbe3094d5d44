//! Feeds as a surface takes them, without any surface.

use std::time::Duration;

use flatbed_auth::{Principal, SignedIn};
use flatbed_javascript::{Runner, RunnerOptions};
use flatbed_layer::json::{self, Limits};
use flatbed_layer::{ChangesPage, CreateOptions, Edit, Layer};

use super::*;
use crate::context::{Context, Service};
use crate::rights::{Administer, Own, Read, Write};
use crate::standing::{RestsOn, Standing};
use crate::test_store::{Place, token, with_key};

pub(crate) struct Store {
    pub(crate) service: Service,
    pub(crate) context: Context,
    _place: Place,
}

impl Store {
    pub(crate) async fn new() -> Store {
        let place = Place::new();
        let functions = Runner::new(RunnerOptions { threads: 1, ..RunnerOptions::default() }).unwrap();
        let judge = Arc::new(crate::Functions::new(functions.clone()));
        let (layer, _) = Layer::open(place.database.clone(), place.options(), Some(judge)).await.unwrap();
        let service = Service::new(layer, functions, with_key(&[]));
        let context = service.context(Standing::of_server());
        context.database("db", Own).await.unwrap().create(&CreateOptions::default()).await.unwrap();
        Store { service, context, _place: place }
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

/// All pages up to the end as one. The storage may cut a page short.
async fn page(feed: &mut Feed) -> ChangesPage {
    let mut page = feed.next_page().await.unwrap();
    while !page.at_end {
        let next = feed.next_page().await.unwrap();
        let rows = [page.rows, next.rows].concat();
        page = ChangesPage { rows, ..next };
    }
    page
}

/// The rows that come next, and how long that took in heartbeats.
async fn next(feed: &mut Feed, heartbeats: &mut Heartbeats) -> (Vec<String>, usize) {
    let mut beats = 0;
    loop {
        let rows = match feed.wait(heartbeats).await.unwrap() {
            Waited::Shared(rows) => rows.iter().map(|row| feed.shown(row)).collect(),
            Waited::Passed(rows) => rows,
            Waited::ReadOn => feed.next_page().await.unwrap().rows,
            Waited::Heartbeat => {
                beats += 1;
                continue;
            }
            Waited::Over => return (Vec::new(), beats),
        };
        if !rows.is_empty() {
            return (ids(&rows).into_iter().map(str::to_owned).collect(), beats);
        }
    }
}

#[tokio::test]
async fn feeds_wait_as_long_as_they_are_to() {
    let store = Store::new().await;
    store.put("a", r#"{"n":1}"#).await;
    let mut none = Heartbeats::new(None);
    let mut once = store.feed(query(Follow::No)).await.unwrap();
    assert_eq!(ids(&page(&mut once).await.rows), ["a"]);
    assert!(!once.goes_on());
    let since = Since::after(once.last_seq().unwrap());

    // What is there ends a feed that waits for something.
    let mut first = store.feed(query(Follow::UntilFirst)).await.unwrap();
    first.next_page().await.unwrap();
    assert!(!first.goes_on());
    let mut first = store.feed(FeedQuery { since, ..query(Follow::UntilFirst) }).await.unwrap();
    assert!(page(&mut first).await.rows.is_empty() && first.goes_on());
    assert!(matches!(first.wait(&mut none).await.unwrap(), Waited::Over));

    // Who has heartbeats waits on.
    let mut follower = store.feed(FeedQuery { since, limit: Some(2), ..query(Follow::On) }).await.unwrap();
    assert!(page(&mut follower).await.at_end);
    let mut heartbeats = Heartbeats::new(Some(Duration::from_millis(60)));
    let write = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        store.put("b", r#"{"n":2}"#).await;
    };
    let begun = Instant::now();
    let ((rows, beats), ()) = futures_util::future::join(next(&mut follower, &mut heartbeats), write).await;
    assert_eq!(rows, ["b"]);
    assert!(beats >= 1 && beats as u128 <= begun.elapsed().as_millis() / 60 + 1, "{beats}");
    assert!(follower.goes_on());
    store.put("c", r#"{"n":3}"#).await;
    assert_eq!(next(&mut follower, &mut none).await.0, ["c"]);
    assert!(!follower.goes_on(), "the limit is reached");
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
        Filter::Selector(store.context.selector(selector).await.unwrap())
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
    assert_eq!((ids(&rows), limited.goes_on()), (vec!["d0", "d2"], false));
    assert_eq!(limited.last_seq(), Some(rows[1].place()));
    // Missing ones are named as CouchDB names them.
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

/// A design document of 1 MB, once in memory for all feeds that filter by it.
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

/// A function is asked while the feed waits; the time may be up before it answers.
#[tokio::test]
async fn what_is_being_filtered_when_the_time_is_up_comes_with_the_next_feed() {
    let store = Store::new().await;
    let slow = "function (doc) { var end = Date.now() + 1000; while (Date.now() < end) {} return !!doc.n; }";
    store.put("_design/d", &format!(r#"{{"filters":{{"slow":"{slow}"}}}}"#)).await;
    let since = store.feed(query(Follow::No)).await.unwrap().next_page().await.unwrap().last_seq;
    let follower = FeedQuery { since: Since::after(since), filter: function("slow"), ..query(Follow::On) };
    let mut feed = store.feed(follower).await.unwrap();
    assert!(page(&mut feed).await.at_end);
    // Now it follows what is shared.
    assert!(matches!(feed.wait(&mut Heartbeats::new(None)).await.unwrap(), Waited::Over));
    store.put("a", r#"{"n":1}"#).await;
    let waited = feed.wait(&mut Heartbeats::new(None)).await.unwrap();
    assert!(matches!(waited, Waited::Over), "{waited:?}");
    let last_seq = feed.last_seq().unwrap();
    let next = FeedQuery { since: Since::after(last_seq), filter: function("slow"), ..query(Follow::No) };
    assert_eq!(ids(&page(&mut store.feed(next).await.unwrap()).await.rows), ["a"]);
}

/// Who reads a feed and loses the right to it sees its end within a second; others follow on.
#[tokio::test]
async fn a_feed_ends_with_its_readers_right() {
    let store = Store::new().await;
    let administration = store.context.database("db", Administer).await.unwrap();
    administration.set_security(br#"{"members":{"roles":["r"]}}"#).await.unwrap();
    store.put("a", "{}").await;
    let anna = Principal::user("anna", ["r".to_owned()], SignedIn::Password);
    let anna = store.service.context(Standing::new(anna, RestsOn::Nothing));
    let mut waiting = anna.feed(&anna.database("db", Read).await.unwrap(), query(Follow::On)).await.unwrap();
    let mut reading = anna.feed(&anna.database("db", Read).await.unwrap(), query(Follow::On)).await.unwrap();
    let mut of_admin = store.feed(query(Follow::On)).await.unwrap();
    for feed in [&mut waiting, &mut reading, &mut of_admin] {
        assert_eq!(ids(&page(feed).await.rows), ["a"]);
    }
    let mut heartbeats = Heartbeats::new(Some(Duration::from_secs(60)));
    let waits = tokio::time::timeout(Duration::from_secs(60), waiting.wait(&mut heartbeats));
    let changes = async {
        // Another change of the record, and one of the members that leaves the reader what they are.
        tokio::time::sleep(Duration::from_millis(700)).await;
        administration.set_revs_limit(10).await.unwrap();
        administration.set_security(br#"{"members":{"roles":["r","s"]}}"#).await.unwrap();
        tokio::time::sleep(Duration::from_millis(700)).await;
        administration.set_security(br#"{"members":{"roles":["s"]}}"#).await.unwrap();
        Instant::now()
    };
    let (waited, changed) = tokio::join!(waits, changes);
    assert!(changed.elapsed() < Duration::from_secs(30), "{:?}", changed.elapsed());
    let lost = |error: FeedError| match error {
        FeedError::Lost(refused) => refused.kind.status(),
        error => panic!("{error}"),
    };
    assert_eq!(lost(waited.unwrap().unwrap_err()), 403);
    assert_eq!(lost(reading.next_page().await.unwrap_err()), 403);
    store.put("b", "{}").await;
    assert!(matches!(of_admin.wait(&mut heartbeats).await.unwrap(), Waited::Shared(_) | Waited::ReadOn));
    // The task that looks has ended when nobody follows any more.
    drop((waiting, reading, of_admin));
    let deadline = Instant::now() + Duration::from_secs(60);
    while store.service.is_watching() {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// While it is not known whether its reader's right is still there, a feed gives nothing.
#[tokio::test]
async fn a_feed_waits_until_its_readers_right_is_known() {
    let store = Store::new().await;
    let administration = store.context.database("db", Administer).await.unwrap();
    administration.set_security(br#"{"members":{"roles":["r"]}}"#).await.unwrap();
    let anna = Principal::user("anna", ["r".to_owned()], SignedIn::Password);
    let anna = store.service.context(Standing::new(anna, RestsOn::Nothing));
    let mut feed = anna.feed(&anna.database("db", Read).await.unwrap(), query(Follow::On)).await.unwrap();
    assert!(page(&mut feed).await.at_end);
    let mut heartbeats = Heartbeats::new(Some(Duration::from_millis(300)));
    let next = async |feed: &mut Feed, heartbeats: &mut Heartbeats| {
        loop {
            match feed.wait(heartbeats).await.unwrap() {
                Waited::Heartbeat => {}
                Waited::ReadOn => {
                    let page = feed.next_page().await.unwrap();
                    if !page.rows.is_empty() {
                        return page.rows.into_iter().map(|row| row.id).collect();
                    }
                }
                Waited::Shared(rows) => return rows.iter().map(|row| row.row.id.clone()).collect::<Vec<_>>(),
                other => panic!("{other:?}"),
            }
        }
    };
    store.put("a", "{}").await;
    assert_eq!(next(&mut feed, &mut heartbeats).await, ["a"]);
    // Nobody finds out any more what rights rest on.
    let stopped = store.service.accounts().stop_looking().await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    store.put("b", "{}").await;
    let mut beats = 0;
    let until = Instant::now() + Duration::from_millis(1_500);
    while Instant::now() < until || beats < 2 {
        match tokio::time::timeout(Duration::from_millis(500), feed.wait(&mut heartbeats)).await {
            Ok(Ok(Waited::Heartbeat)) => beats += 1,
            Ok(Ok(Waited::ReadOn)) => {
                assert!(tokio::time::timeout(Duration::from_millis(100), feed.next_page()).await.is_err());
            }
            Ok(waited) => panic!("{waited:?}"),
            Err(_) => {}
        }
    }
    drop(stopped);
    assert_eq!(next(&mut feed, &mut heartbeats).await, ["b"]);
}

/// A database of the same name is another one: who was let read the one before is not let read it.
#[tokio::test]
async fn a_feed_ends_with_its_database() {
    let store = Store::new().await;
    store.put("a", "{}").await;
    let anna = store.service.context(Standing::new(Principal::user("anna", [], SignedIn::Password), RestsOn::Nothing));
    let owner = store.context.database("db", Own).await.unwrap();
    let administration = store.context.database("db", Administer).await.unwrap();
    administration.set_security(br#"{"members":{"names":["anna"]}}"#).await.unwrap();
    let mut waiting = anna.feed(&anna.database("db", Read).await.unwrap(), query(Follow::On)).await.unwrap();
    let mut reading = store.feed(query(Follow::On)).await.unwrap();
    for feed in [&mut waiting, &mut reading] {
        assert_eq!(ids(&page(feed).await.rows), ["a"]);
    }
    let mut watch = anna.rights_watch().at_once();
    assert!(tokio::time::timeout(Duration::from_millis(700), watch.lost()).await.is_err());
    owner.delete().await.unwrap();
    // It is found gone by now.
    assert!(tokio::time::timeout(Duration::from_millis(700), watch.lost()).await.is_err());
    owner.create(&CreateOptions::default()).await.unwrap();
    store.put("secret", "{}").await;
    assert!(matches!(reading.next_page().await, Err(FeedError::Layer(LayerError::DatabaseNotFound))));
    assert!(waiting.next_page().await.is_err());
    // What is cut, rather than told why, is cut too.
    let lost = tokio::time::timeout(Duration::from_secs(60), watch.lost()).await.unwrap();
    assert!(matches!(lost.kind.status(), 403 | 404), "{lost}");
}

#[tokio::test]
async fn a_feed_ends_with_its_token() {
    let store = Store::new().await;
    store
        .context
        .database("db", Administer)
        .await
        .unwrap()
        .set_security(b"{\"members\":{\"roles\":[]}}")
        .await
        .unwrap();
    let ends = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() + 6;
    let rests_on = token(Some(ends)).await;
    let anna = store.service.context(Standing::new(Principal::user("anna", [], SignedIn::Jwt), rests_on));
    let mut feed = anna.feed(&anna.database("db", Read).await.unwrap(), query(Follow::On)).await.unwrap();
    assert!(page(&mut feed).await.rows.is_empty());
    let mut heartbeats = Heartbeats::new(Some(Duration::from_secs(60)));
    let waited = tokio::time::timeout(Duration::from_secs(60), feed.wait(&mut heartbeats)).await.unwrap();
    assert!(matches!(&waited, Err(FeedError::Lost(refused)) if refused.kind.status() == 401), "{waited:?}");
    assert!(std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() >= ends);
}
