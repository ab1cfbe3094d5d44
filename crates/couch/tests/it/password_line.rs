//! The queue of password checks: admission, order, and requests that skip it. The test holds each check, so it does not
//! depend on their duration.

use std::time::Duration;

use base64::Engine;
use flatbed_http::Proxies;
use flatbed_service::CheckOptions;
use flatbed_testkit::{until, until_wanted};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::gate::Gate;
use crate::support::{ADMIN, Answer, Client, Running, ServerOptions, Store, soon};

/// Longer than the test.
const FOR_EVER: Duration = Duration::from_secs(3_600);

/// Starts a server behind a proxy that names its clients, with `admin` and `anna`.
async fn start(store: &Store, gate: &Gate, waiting_max: usize, wait_max: Duration) -> (Running, String) {
    let options = ServerOptions {
        proxies: Proxies { forwarding: "127.0.0.1".parse().unwrap(), ..Proxies::default() },
        checks: CheckOptions { waiting_max, wait_max, before_each: gate.before_each() },
        ..ServerOptions::with_admin()
    };
    let server = store.serve(options).await;
    // One check for the administrator's password, one for anna's hash.
    gate.pass(2);
    let mut client = server.connect().await;
    assert_eq!(client.call("PUT", "/_users", &[ADMIN], b"").await.status, 201);
    let anna = json!({"name": "anna", "password": "anna's", "roles": [], "type": "user"}).to_string();
    let made = client.call("PUT", "/_users/org.couchdb.user:anna", &[ADMIN], anna.as_bytes()).await;
    assert_eq!(made.status, 201, "{made:?}");
    let begun = client.call("POST", "/_session", &[], br#"{"name":"admin","password":"password"}"#).await;
    let cookie = begun.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    assert_eq!(gate.came(), 2);
    (server, cookie)
}

/// Sends a password from this address, in a task.
fn guess(server: &Running, address: String, password: String) -> JoinHandle<Answer> {
    let to = server.address;
    tokio::spawn(async move {
        let credentials = format!("someone:{password}");
        let basic = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(credentials));
        let mut client = Client::to(to).await;
        client.send("GET", "/_session", &[("authorization", &basic), ("x-forwarded-for", &address)], b"").await;
        client.answer(false).await
    })
}

/// Returns the queue's length, read with a session, which needs no check.
async fn waiting(server: &Running, cookie: &str) -> usize {
    let figures = server.connect().await.call("GET", "/_node/_local/_prometheus", &[("cookie", cookie)], b"").await;
    let line = figures.body.lines().find_map(|line| line.strip_prefix("flatbed_password_checks_waiting "));
    line.unwrap_or_else(|| panic!("{figures:?}")).parse().unwrap()
}

async fn until_waiting(server: &Running, cookie: &str, wanted: usize) {
    until_wanted("checks wait", async || waiting(server, cookie).await, |found| *found == wanted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_signs_in_for_the_first_time_is_before_a_flood_that_goes_on() {
    const PLACES: usize = 6;
    let (store, gate) = (Store::new(), Gate::new());
    let (server, cookie) = start(&store, &gate, PLACES, FOR_EVER).await;
    let ask = |at: usize, round: &str| guess(&server, format!("10.0.0.{at}"), format!("{round} {at}"));
    let mut first = FuturesUnordered::from_iter([ask(0, "first")]);
    gate.until_came(3).await;
    first.extend((1..=PLACES).map(|at| ask(at, "first")));
    until_waiting(&server, &cookie, PLACES).await;
    // A remembered client skips the queue.
    let known = server.connect().await.call("GET", "/_all_dbs", &[ADMIN], b"").await;
    assert_eq!(known.status, 200, "{known:?}");
    // Neither the first request of another address nor a repeated request displaces a waiting one.
    let other = soon(guess(&server, "10.0.1.1".to_owned(), "x".to_owned())).await.unwrap();
    assert_eq!((other.status, other.text("error")), (429, "too_many_requests".to_owned()));
    for at in 0..=PLACES {
        assert_eq!(soon(ask(at, "second")).await.unwrap().status, 429);
    }
    // All waiting requests are now of addresses that have repeated theirs.
    let anna = {
        let to = server.address;
        tokio::spawn(async move {
            let from = [("x-forwarded-for", "10.0.2.1")];
            let mut client = Client::to(to).await;
            client.send("POST", "/_session", &from, br#"{"name":"anna","password":"anna's"}"#).await;
            client.answer(false).await
        })
    };
    assert_eq!(soon(first.next()).await.unwrap().unwrap().status, 429);
    assert_eq!(waiting(&server, &cookie).await, PLACES);
    // The running check and two more, one of which may belong to the last lane.
    gate.pass(3);
    let signed_in = soon(anna).await.unwrap();
    assert_eq!(signed_in.status, 200, "{signed_in:?}");
    gate.open();
    while let Some(wrong) = soon(first.next()).await {
        assert_eq!(wrong.unwrap().status, 401);
    }
    // Refused requests were not checked.
    assert_eq!(gate.came(), 2 + PLACES + 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_has_a_few_places_and_leaves_them() {
    const OF_ONE: usize = 16;
    let (store, gate) = (Store::new(), Gate::new());
    let (server, cookie) = start(&store, &gate, 1_000, FOR_EVER).await;
    // An IPv6 client is identified by its /64 network.
    let network = |at: usize| format!("2001:db8:0:1::{at}");
    let checked = guess(&server, network(0), "0".to_owned());
    gate.until_came(3).await;
    let ask = |at: usize| guess(&server, network(at), at.to_string());
    let mut of_one: Vec<_> = (1..=OF_ONE).map(ask).collect();
    until_waiting(&server, &cookie, OF_ONE).await;
    assert_eq!(soon(ask(OF_ONE + 1)).await.unwrap().status, 429);
    let other = guess(&server, "2001:db8:0:2::1".to_owned(), "x".to_owned());
    until_waiting(&server, &cookie, OF_ONE + 1).await;
    // A disconnecting client leaves the queue and is not checked.
    let last = of_one.pop().unwrap();
    other.abort();
    of_one.iter().for_each(JoinHandle::abort);
    until_waiting(&server, &cookie, 1).await;
    gate.open();
    for asked in [checked, last] {
        assert_eq!(soon(asked).await.unwrap().status, 401);
    }
    assert_eq!(gate.came(), 4);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_waited_for_long_is_refused_and_who_is_being_checked_is_not() {
    let (store, gate) = (Store::new(), Gate::new());
    let wait_max = Duration::from_secs(2);
    let (server, _) = start(&store, &gate, 1_000, wait_max).await;
    // A request whose turn came before its wait became long.
    let mut attempt = 0;
    let checked = loop {
        attempt += 1;
        let asked = guess(&server, "10.0.0.1".to_owned(), attempt.to_string());
        until("it is checked or refused", async || gate.came() >= 3 || asked.is_finished()).await;
        if gate.came() == 3 {
            break asked;
        }
    };
    let waits = soon(guess(&server, "10.0.0.2".to_owned(), "x".to_owned())).await.unwrap();
    assert_eq!((waits.status, waits.text("error")), (429, "too_many_requests".to_owned()));
    gate.open();
    assert_eq!(soon(checked).await.unwrap().status, 401);
    assert_eq!(gate.came(), 3);
    let found = server.connect().await.call("GET", "/_session", &[ADMIN], b"").await.json();
    assert_eq!(found["userCtx"]["name"], Value::from("admin"));
    server.stop().await;
}
