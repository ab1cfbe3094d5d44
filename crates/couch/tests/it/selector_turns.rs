//! Turns of selectors: a client or database with many queries does not delay others. A gate holds the turns, so the
//! tests do not depend on time.

use flatbed_http::Proxies;
use flatbed_service::SelectorOptions;
use flatbed_testkit::until_wanted;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::gate::Gate;
use crate::support::{Answer, Client, Running, ServerOptions, Store, figure, soon};

/// The number of queries of the noisy client.
const NOISY: usize = 40;

/// Starts a server behind a proxy that names its clients, with two databases of two documents.
async fn start(store: &Store, gate: &Gate) -> Running {
    let options = ServerOptions {
        proxies: Proxies { forwarding: "127.0.0.1".parse().unwrap(), ..Proxies::default() },
        selectors: SelectorOptions { before_each: gate.before_each() },
        ..ServerOptions::default()
    };
    let server = store.serve(options).await;
    for database in ["noisy", "quiet"] {
        server.ok("PUT", &format!("/{database}"), Value::Null).await;
        let docs = json!({"docs": [{"_id": "a", "text": "abc"}, {"_id": "b", "text": "xyz"}]});
        server.ok("POST", &format!("/{database}/_bulk_docs"), docs).await;
    }
    server
}

/// Sends a POST from this address, in a task.
fn post(server: &Running, address: &str, path: &str, body: &Value) -> JoinHandle<Answer> {
    let (to, address, path, body) = (server.address, address.to_owned(), path.to_owned(), body.to_string());
    tokio::spawn(async move {
        Client::to(to).await.call("POST", &path, &[("x-forwarded-for", &address)], body.as_bytes()).await
    })
}

/// Returns how many selectors wait to compile and to match.
async fn waiting(server: &Running) -> (usize, usize) {
    let figures = server.call("GET", "/metrics", "").await.body;
    let of = |work: &str| figure(&figures, &format!("flatbed_selectors_waiting{{work=\"{work}\"}}")) as usize;
    (of("compile"), of("match"))
}

async fn until_waiting(server: &Running, count: usize) {
    until_wanted("queries wait", async || waiting(server).await, |found| *found == (count, 0)).await;
}

fn ids(answer: &Value) -> Vec<&str> {
    answer["docs"].as_array().expect("documents").iter().map(|doc| doc["_id"].as_str().expect("an id")).collect()
}

/// Sends many queries from these addresses to these databases, and asserts that another client is served early.
async fn assert_others_are_served(from: impl Fn(usize) -> String, to: impl Fn(usize) -> String) {
    let (store, gate) = (Store::new(), Gate::new());
    let server = start(&store, &gate).await;
    let regex = json!({"selector": {"text": {"$regex": "^a"}}});
    let noisy: Vec<_> = (0..NOISY).map(|n| post(&server, &from(n), &format!("/{}/_find", to(n)), &regex)).collect();
    until_waiting(&server, NOISY - 2).await;
    // A small selector without regular expressions needs no turn.
    let trivial = post(&server, "10.0.1.1", "/quiet/_find", &json!({"selector": {"text": "xyz"}}));
    assert_eq!(ids(&soon(trivial).await.unwrap().json()), ["b"]);
    // The other client gets one of the first turns.
    let quiet = post(&server, "10.0.1.1", "/quiet/_find", &regex);
    until_waiting(&server, NOISY - 1).await;
    let mut passed = 0;
    while !quiet.is_finished() {
        gate.pass(1);
        passed += 1;
        assert!(passed <= NOISY, "{passed} turns were before one query's");
        // Waits until each query waits, has its turn, or is answered. A query that gets its turn meanwhile would count
        // twice.
        let moved = || (gate.came(), noisy.iter().chain([&quiet]).filter(|asked| asked.is_finished()).count());
        let placed = async || {
            let (came, answered) = moved();
            let (compile, matching) = waiting(&server).await;
            (moved() == (came, answered)).then_some(compile + matching + came - passed + answered)
        };
        until_wanted("the next turn is waited for", placed, |found| *found == Some(NOISY + 1)).await;
    }
    assert_eq!(ids(&quiet.await.unwrap().json()), ["a"]);
    let left = noisy.iter().filter(|asked| !asked.is_finished()).count();
    assert!(left > NOISY / 4, "{left} were not answered before");
    drop(gate);
    for asked in noisy {
        let status = soon(asked).await.unwrap().status;
        assert!([200, 404].contains(&status), "{status}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_many_queries_keeps_no_other_waiting() {
    assert_others_are_served(|_| "10.0.0.1".to_owned(), |_| "noisy".to_owned()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_with_many_clients_keeps_no_other_waiting() {
    assert_others_are_served(|n| format!("10.0.0.{n}"), |_| "noisy".to_owned()).await;
}

/// The databases do not exist: a query detects that after its selector is compiled.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_many_databases_keeps_no_other_waiting() {
    assert_others_are_served(|_| "10.0.0.1".to_owned(), |n| format!("missing{n}")).await;
}
