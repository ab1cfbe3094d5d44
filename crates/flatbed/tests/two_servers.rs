//! Two complete servers in one process on one engine, each with its own caches and feeds: what one does, the other
//! must see, although nothing tells it but the storage.

mod support;

use std::{collections::HashSet, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use flatbed_client::{Connection, Lines, Url};
use flatbed_http::{Server, ServerOptions};
use flatbed_layer::{Layer, LayerOptions, check};
use foundationdb::{Database, api::FdbApiBuilder};
use foundationdb_sys::backend::{Backend, select};
use hyper::Method;
use serde_json::Value;
use support::call;
use tokio::sync::oneshot;

struct Running {
    url: Url,
    layer: Layer,
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

async fn start(cluster_file: &Path) -> Running {
    let database = Database::from_path(cluster_file.to_str().unwrap()).unwrap();
    let layer = Layer::open(Arc::new(database), LayerOptions::default()).await.unwrap();
    let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    let server = Server::bind(ServerOptions { listen, ..ServerOptions::default() }, layer.clone()).await.unwrap();
    let url = Url::parse(&format!("http://{}", server.addresses()[0])).unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(server.serve(async move {
        let _ = stopped.await;
    }));
    Running { url, layer, stop, task }
}

async fn follow(url: &Url) -> Lines {
    let mut connection = Connection::open(url).await.unwrap();
    let path = "/db/_changes?feed=continuous&since=0&heartbeat=10000";
    let response = connection.send(Method::GET, path, Default::default()).await.unwrap();
    assert_eq!(response.status().as_u16(), 200);
    Lines::new(response.into_body())
}

async fn next_id(feed: &mut Lines) -> String {
    let row = async {
        loop {
            let line = feed.next().await.expect("the feed goes on").expect("the feed stays open");
            if !line.is_empty() {
                return serde_json::from_slice::<Value>(&line).expect("a row is JSON");
            }
        }
    };
    let row = tokio::time::timeout(Duration::from_secs(60), row).await.expect("a row comes");
    row["id"].as_str().unwrap_or_else(|| panic!("{row}")).to_owned()
}

/// Documents whose field names nobody has seen, so that both servers allocate ids in one database at once.
async fn write(url: Url, server: &'static str, count: u32) {
    let mut connection = Connection::open(&url).await.unwrap();
    for number in 0..count {
        let body = format!("{{\"common-{number}\":1,\"{server}-{number}\":{{\"deep-{number}\":[true]}}}}");
        let (status, answer) = call(&mut connection, Method::PUT, &format!("/db/{server}-{number}"), &body).await;
        assert_eq!(status, 201, "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_on_one_engine() {
    select(Backend::Embedded).unwrap();
    let network = FdbApiBuilder::default().build().unwrap();
    // SAFETY: dropped at the end of the test; a test that fails aborts nothing that needs it.
    let network = unsafe { network.boot() }.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let cluster_file = directory.path().join("fdb.cluster");
    std::fs::write(&cluster_file, "embedded:test@data\n").unwrap();
    let (a, b) = (start(&cluster_file).await, start(&cluster_file).await);
    let mut at_a = Connection::open(&a.url).await.unwrap();
    let mut at_b = Connection::open(&b.url).await.unwrap();

    // Written at both, followed at the other.
    assert_eq!(call(&mut at_a, Method::PUT, "/db", "").await.0, 201);
    let mut feed = follow(&b.url).await;
    let writers = [tokio::spawn(write(a.url.clone(), "a", 60)), tokio::spawn(write(b.url.clone(), "b", 60))];
    let mut seen = HashSet::new();
    while seen.len() < 120 {
        let id = next_id(&mut feed).await;
        assert!(seen.insert(id.clone()), "{id} comes once");
    }
    for writer in writers {
        writer.await.unwrap();
    }
    for number in 0..60 {
        let (status, document) = call(&mut at_b, Method::GET, &format!("/db/a-{number}"), "").await;
        assert_eq!(
            (status, &document[format!("a-{number}")]["deep-".to_owned() + &number.to_string()][0]),
            (200, &Value::Bool(true))
        );
    }
    let report = check::check_database(&b.layer.database("db"), |_| {}).await.unwrap();
    assert!(report.is_clean(), "{:?}", report.violations);

    // An edit here is the base of an edit there.
    let (_, first) = call(&mut at_a, Method::PUT, "/db/shared", "{\"at\":\"a\"}").await;
    let edit = format!("{{\"_rev\":{},\"at\":\"b\"}}", first["rev"]);
    assert_eq!(call(&mut at_b, Method::PUT, "/db/shared", &edit).await.0, 201);
    assert_eq!(call(&mut at_a, Method::PUT, "/db/shared", &edit).await.0, 409);
    assert_eq!(next_id(&mut feed).await, "shared");

    // Deleted and made again at one: the other's cached names and records are of the old one.
    assert_eq!(call(&mut at_b, Method::DELETE, "/db", "").await.0, 200);
    assert_eq!(call(&mut at_a, Method::GET, "/db/shared", "").await.0, 404);
    assert_eq!(call(&mut at_a, Method::PUT, "/db/lost", "{\"common-1\":1}").await.0, 404);
    assert_eq!(call(&mut at_b, Method::PUT, "/db?run_bytes=0", "").await.0, 201);
    let body = "{\"b-7\":{\"new\":null},\"common-1\":2}";
    assert_eq!(call(&mut at_a, Method::PUT, "/db/again", body).await.0, 201);
    let (_, again) = call(&mut at_b, Method::GET, "/db/again", "").await;
    assert_eq!((&again["b-7"]["new"], &again["common-1"]), (&Value::Null, &Value::from(2)));
    let (_, info) = call(&mut at_a, Method::GET, "/db", "").await;
    assert_eq!(info["doc_count"], 1);
    let report = check::check_database(&a.layer.database("db"), |_| {}).await.unwrap();
    assert!(report.is_clean() && report.documents == 1, "{:?}", report.violations);

    drop(feed);
    for server in [a, b] {
        server.stop.send(()).unwrap();
        server.task.await.unwrap();
    }
    drop(network);
}
