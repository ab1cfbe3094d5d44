//! Looks at followed users by a clock that the test moves.

use std::collections::BTreeSet;

use flatbed_auth::AuthMethod;
use flatbed_clock::ManualClock;
use flatbed_javascript::{Runner, RunnerOptions};
use flatbed_layer::channels::{PrincipalKind, PrincipalWrite, SignsIn};
use flatbed_layer::json::{self, Limits};
use flatbed_layer::{Authority, ChannelsOptions, CreateOptions, Database, Edit, Since};
use flatbed_metrics::Value;
use flatbed_testkit::{pages_are_full, soon, until, within};

use super::*;
use crate::configuration::Configuration;
use crate::feeds::{FeedError, FeedQuery, FeedWaitOutcome, Filter, Follow, Heartbeats};
use crate::rights::{Read, Write};
use crate::standing::{RightsBasis, Standing};
use crate::test_store::Store;
use crate::{Feed, Service};

const STEP: Duration = Duration::from_millis(50);

/// The real time for which a test looks for an event that must not happen.
const SHORT: Duration = Duration::from_millis(30);

/// Waits for a future, and moves the clock meanwhile.
async fn moving<T>(manual: &ManualClock, what: &str, mut future: impl Future<Output = T> + Unpin) -> T {
    let mut found = None;
    until(what, async || {
        found = within(SHORT, &mut future).await;
        if found.is_none() {
            manual.advance(STEP);
        }
        found.is_some()
    })
    .await;
    found.unwrap()
}

fn count(layer: &Layer, name: &str) -> u64 {
    let families = layer.metrics();
    let family = families.iter().find(|family| family.name == name).unwrap();
    let count = |value: &Value| if let Value::Count(count) = value { *count } else { 0 };
    family.samples.iter().map(|sample| count(&sample.value)).sum()
}

fn new(layer: &Layer) -> Arc<FollowedUsers> {
    Arc::new(FollowedUsers::new(layer.clone(), Arc::default()))
}

impl FollowedUsers {
    fn looks(&self) -> u64 {
        self.metrics.rights_look_seconds.of(RightsLook::Users).count()
    }

    fn failures(&self) -> u64 {
        self.metrics.rights_looks_failed.of(RightsLook::Users).get()
    }

    /// Waits for a look that begins after this call.
    async fn looked(&self, manual: &ManualClock) {
        let (now, mut confirmed) = (self.layer.clock().now(), self.confirmed());
        let looked = confirmed.wait_for(|began| began.is_some_and(|began| began > now));
        moving(manual, "a look", Box::pin(looked)).await.unwrap();
    }
}

fn user(name: &str) -> PrincipalWrite {
    PrincipalWrite {
        kind: PrincipalKind::User,
        name: name.to_owned(),
        email: String::new(),
        is_disabled: false,
        admin_channels: BTreeSet::from(["*".to_owned()]),
        admin_roles: BTreeSet::new(),
        signs_in: Some(SignsIn::Password(b"{}".to_vec())),
        is_new: false,
    }
}

async fn create(layer: &Layer, authority: &Authority, name: &str) -> (Database, u64) {
    let db = layer.database(name, authority.for_job("test"));
    let channels = Some(ChannelsOptions::default());
    db.create(&CreateOptions { channels, ..CreateOptions::default() }).await.unwrap();
    db.put_principal(&user("anna")).await.unwrap();
    let incarnation = layer.reader(name).user_at("anna").await.unwrap().unwrap().incarnation;
    (db, incarnation)
}

/// 2,000 followed databases cost what one does: a transaction and a range read for each look. Polled one by one, 20 to
/// a transaction, they were 100 transactions and 2,000 range reads.
#[tokio::test]
async fn idle_looks_cost_nothing_for_each_database() {
    let manual = ManualClock::new();
    let store = Store::timed(manual.clock()).await;
    let users = new(&store.layer);
    let follow = |number: usize| users.follow(&format!("db{number}").into(), 7, &"anna".into());
    let mut followed: Vec<_> = (0..2_000).map(follow).collect();
    users.looked(&manual).await;
    let counts = || [users.looks(), count(&store.layer, "flatbed_transactions")];
    let ranges = || count(&store.layer, "flatbed_range_reads");
    let (before, ranges_before) = (counts(), ranges());
    for _ in 0..10 {
        users.looked(&manual).await;
    }
    let after = counts();
    let looks = after[0] - before[0];
    assert!(looks >= 10 && after[1] - before[1] <= looks + 1, "{before:?} {after:?}");
    assert!(!pages_are_full() || ranges() - ranges_before <= looks + 1);
    // The last one that leaves ends the looks.
    let last = followed.pop();
    drop(followed);
    let left = || {
        let followed = users.followed();
        (followed.databases.len(), followed.cells.len())
    };
    assert_eq!(left(), (1, 1));
    drop(last);
    let has_ended = async || {
        manual.advance(STEP);
        !users.followed().is_looking
    };
    until("the looks end", has_ended).await;
    assert_eq!(left(), (0, 0));
}

#[tokio::test]
async fn one_look_finds_the_users_that_have_changed() {
    let manual = ManualClock::new();
    let store = Store::timed(manual.clock()).await;
    let (elsewhere, authority) = store.again_with_authority().await;
    let (one, of_one) = create(&elsewhere, &authority, "one").await;
    let (two, of_two) = create(&elsewhere, &authority, "two").await;
    let users = new(&store.layer);
    let mut followed = [("one", of_one, "anna"), ("one", of_one, "bert"), ("two", of_two, "anna")]
        .map(|(database, incarnation, name)| users.follow(&database.into(), incarnation, &name.into()));
    users.looked(&manual).await;
    let mut changed = || {
        followed.each_mut().map(|user| {
            let has_changed = user.has_changed();
            user.counter().mark_unchanged();
            has_changed
        })
    };
    changed();
    users.looked(&manual).await;
    assert_eq!(changed(), [false; 3]);
    one.put_principal(&PrincipalWrite { is_disabled: true, ..user("anna") }).await.unwrap();
    users.looked(&manual).await;
    assert_eq!(changed(), [true, false, false]);
    one.put_principal(&user("bert")).await.unwrap();
    two.put_principal(&user("carl")).await.unwrap();
    users.looked(&manual).await;
    assert_eq!(changed(), [false, true, false]);
    // A follower that comes between two looks, and one of another database of the name.
    let late = users.follow(&"two".into(), of_two, &"carl".into());
    two.put_principal(&PrincipalWrite { is_disabled: true, ..user("carl") }).await.unwrap();
    users.looked(&manual).await;
    assert!(late.has_changed());
    assert_eq!(changed(), [false; 3]);
    two.delete().await.unwrap();
    create(&elsewhere, &authority, "two").await;
    users.looked(&manual).await;
    assert_eq!(changed(), [false, false, true]);
}

#[tokio::test]
async fn a_failed_look_is_retried_and_finds_what_the_failed_one_would_have() {
    let manual = ManualClock::new();
    let store = Store::timed(manual.clock()).await;
    let (elsewhere, authority) = store.again_with_authority().await;
    let (one, of_one) = create(&elsewhere, &authority, "one").await;
    let users = new(&store.layer);
    let anna = users.follow(&"one".into(), of_one, &"anna".into());
    users.looked(&manual).await;
    let before = anna.count();
    let turn = users.looking.lock().await;
    users.failing.store(2, std::sync::atomic::Ordering::SeqCst);
    one.put_principal(&PrincipalWrite { is_disabled: true, ..user("anna") }).await.unwrap();
    drop(turn);
    let has_failed = async || {
        manual.advance(STEP);
        users.failures() == 2
    };
    until("two looks fail", has_failed).await;
    assert_eq!(anna.count(), before);
    users.looked(&manual).await;
    assert!(anna.count() > before);
    assert_eq!(users.failures(), 2);
}

/// A service with a database `one`, and a feed of its user `anna`.
struct Following {
    service: Service,
    one: Database,
    feed: Feed,
    heartbeats: Heartbeats,
}

impl Following {
    async fn new(store: &Store) -> Following {
        let (layer, authority) = store.again_with_authority().await;
        let runner = Runner::new(RunnerOptions { threads: 1, ..RunnerOptions::default() }).unwrap();
        let service = Service::new(layer.clone(), runner, Configuration::default());
        let (one, incarnation) = create(&layer, &authority, "one").await;
        let (database, name) = ("one".into(), "anna".into());
        let basis = RightsBasis::Principal { database, incarnation, name, generation: 1, session: None };
        let anna = service.context(Standing::of_user(basis, AuthMethod::Password));
        let query = FeedQuery {
            since: Since::Beginning,
            descending: false,
            limit: None,
            scope: flatbed_layer::Scope::All,
            active_only: false,
            revocations: false,
            filter: Filter::None,
            all_leaves: false,
            documents: flatbed_layer::Documents::No,
            filtered: flatbed_layer::Documents::No,
            follow: Follow::On,
            timeout: Duration::from_secs(3_600),
        };
        let feed = anna.feed(&anna.database("one", Read).await.unwrap(), query).await.unwrap();
        let heartbeats = Heartbeats::new(None, layer.clock());
        Following { service, one, feed, heartbeats }
    }

    async fn put(&self, id: &str) {
        let body = json::parse(b"{}", &Limits::default()).unwrap();
        let attachments = Vec::new();
        let edit = Edit { id: id.into(), parent: None, history: None, deleted: false, expiry: None, attachments, body };
        let context = self.service.context(Standing::of_server());
        context.database("one", Write).await.unwrap().update(&edit).await.unwrap();
    }

    /// Returns the ids of the next documents that the feed sends.
    async fn next(&mut self) -> std::result::Result<Vec<String>, FeedError> {
        loop {
            let rows: Vec<_> = match self.feed.wait(&mut self.heartbeats).await? {
                FeedWaitOutcome::Shared(rows) => rows.iter().map(|row| self.feed.shown(row).id).collect(),
                FeedWaitOutcome::Passed(rows) => rows.into_iter().map(|row| row.id).collect(),
                FeedWaitOutcome::ReadOn => self.feed.next_page().await?.rows.into_iter().map(|row| row.id).collect(),
                FeedWaitOutcome::Heartbeat => continue,
                FeedWaitOutcome::Over => panic!("the feed has ended"),
            };
            let rows: Vec<_> = rows.into_iter().filter(|id| !id.starts_with('_')).collect();
            if !rows.is_empty() {
                return Ok(rows);
            }
        }
    }
}

/// A look that takes seconds delays rows and is counted. Rows pass after the first look that began behind them, and
/// rows behind the loss of the right never do.
#[tokio::test]
async fn a_slow_look_delays_rows_and_lets_them_pass() {
    let manual = ManualClock::new();
    let store = Store::timed(manual.clock()).await;
    let mut anna = Following::new(&store).await;
    while !soon(anna.feed.next_page()).await.unwrap().at_end {}
    anna.put("a").await;
    assert_eq!(moving(&manual, "a row", Box::pin(anna.next())).await.unwrap(), ["a"]);
    let watching = Arc::clone(anna.service.watching());
    let (users, metrics) = (&watching.users, Arc::clone(watching.looks()));
    let late = || metrics.rights_looks_late.of(RightsLook::Users).get();
    let held = || metrics.rights_rows_held_seconds.count();
    // Rows may have waited for the first looks.
    let (late_before, held_before) = (late(), held());
    let slow = users.looking.lock().await;
    let is_old = async || {
        manual.advance(STEP);
        !users.is_confirmed(None)
    };
    until("the last look is too old", is_old).await;
    anna.put("b").await;
    for _ in 0..6 {
        assert!(within(SHORT, anna.next()).await.is_none(), "a row before the look");
        manual.advance(Duration::from_millis(500));
    }
    let (began, mut confirmed) = (*users.confirmed.borrow(), users.confirmed());
    drop(slow);
    soon(confirmed.wait_for(|now| *now != began)).await.unwrap();
    assert!(late() > late_before && !users.is_confirmed(None), "it took seconds");
    assert!(within(SHORT, anna.next()).await.is_none(), "the row came after the begin of this look");
    assert_eq!(moving(&manual, "the row that waited", Box::pin(anna.next())).await.unwrap(), ["b"]);
    assert_eq!(held(), held_before + 1);
    // The same, while the user is locked out.
    let slow = users.looking.lock().await;
    until("the last look is too old", is_old).await;
    anna.one.put_principal(&PrincipalWrite { is_disabled: true, ..user("anna") }).await.unwrap();
    anna.put("c").await;
    assert!(within(SHORT, anna.next()).await.is_none_or(|found| found.is_err()));
    drop(slow);
    let found = moving(&manual, "the feed ends", Box::pin(anna.next())).await;
    assert!(matches!(found, Err(FeedError::Lost(_) | FeedError::Layer(_))), "{found:?}");
}
