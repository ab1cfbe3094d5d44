//! Two complete servers in one process on one engine (or the cluster in `FLATBED_CLUSTER_FILE`). Each has its own
//! caches and feeds, so changes reach the other through FoundationDB alone.

use std::net::SocketAddr;

use flatbed_client::{Connection, Lines, Url};

use super::store;
use crate::support::{ServerOptions, Store, bind, serve, soon};
use hyper::Method;
use serde_json::{Value, json};
use tokio::sync::oneshot;

struct Running {
    url: Url,
    stop: oneshot::Sender<()>,
    served: tokio::task::JoinHandle<()>,
}

async fn start(store: &Store) -> Running {
    let layer = store.layer().await;
    let options =
        ServerOptions { listen: vec![SocketAddr::from(([127, 0, 0, 1], 0)).into()], ..ServerOptions::default() };
    let server = bind(options, layer).await.unwrap();
    let url = Url::parse(&format!("http://{}", server.addresses()[0])).unwrap();
    let (stop, stopped) = oneshot::channel();
    let served = serve(server, stopped);
    Running { url, stop, served }
}

async fn call(url: &Url, method: Method, path: &str, body: &str) -> (u16, Value) {
    let mut connection = Connection::open(url).await.unwrap();
    let answer = connection.call(method, path, body.to_owned()).await.unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap_or(Value::Null))
}

async fn row(feed: &mut Lines) -> Option<Value> {
    let next = async {
        loop {
            match feed.next().await {
                Ok(Some(line)) if line.is_empty() => {}
                Ok(Some(line)) => return Some(serde_json::from_slice(&line).unwrap()),
                _ => return None,
            }
        }
    };
    soon(next).await
}

async fn follow(url: &Url, path: &str) -> Lines {
    let mut connection = Connection::open(url).await.unwrap();
    let response = connection.send(Method::GET, path, Default::default()).await.unwrap();
    assert_eq!(response.status(), 200);
    // Keeps the connection open for the feed.
    std::mem::forget(connection);
    Lines::new(response.into_body())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_does_the_other_sees() {
    let Some(store) = store() else { return };
    let (one, two) = (start(&store).await, start(&store).await);

    // Writes at one server, follows at the other; both allocate fields.
    assert_eq!(call(&one.url, Method::PUT, "/db", "").await.0, 201);
    let mut feed = follow(&two.url, "/db/_changes?feed=continuous&include_docs=true&heartbeat=5000").await;
    for number in 0..40 {
        let (at, other) = if number % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let body = json!({format!("own{number}"): number, format!("shared{}", number / 2): {"x": [number]}});
        let path = format!("/db/doc{number}");
        assert_eq!(call(&at.url, Method::PUT, &path, &body.to_string()).await.0, 201);
        let (_, mut found) = call(&other.url, Method::GET, &path, "").await;
        let row = row(&mut feed).await.unwrap();
        assert_eq!((row["id"].as_str().unwrap(), &row["doc"]), (format!("doc{number}").as_str(), &found));
        let found = found.as_object_mut().unwrap();
        found.retain(|name, _| !name.starts_with('_'));
        assert_eq!(json!(found), body);
    }

    // The deletion at one server ends the feed at the other, without the final line.
    assert_eq!(call(&one.url, Method::DELETE, "/db", "").await.0, 200);
    assert_eq!(row(&mut feed).await, None);
    assert_eq!(call(&two.url, Method::GET, "/db", "").await.0, 404);
    // Created again with another layout: both servers forget the old database and its mapping.
    assert_eq!(call(&two.url, Method::PUT, "/db?run_bytes=0", "").await.0, 201);
    assert_eq!(call(&one.url, Method::GET, "/db/doc0", "").await.0, 404);
    assert_eq!(call(&one.url, Method::PUT, "/db/doc0", r#"{"shared1":1,"own0":2}"#).await.0, 201);
    let (_, found) = call(&two.url, Method::GET, "/db/doc0", "").await;
    assert_eq!((&found["shared1"], &found["own0"]), (&json!(1), &json!(2)));
    let (_, changes) = call(&two.url, Method::GET, "/db/_changes", "").await;
    assert_eq!(changes["results"].as_array().unwrap().len(), 1);

    // A stopping server ends its feeds with a final line; the other server continues.
    let mut feed = follow(&two.url, "/db/_changes?feed=continuous&since=now&heartbeat=5000").await;
    assert_eq!(call(&two.url, Method::PUT, "/db/last", "{}").await.0, 201);
    assert_eq!(row(&mut feed).await.unwrap()["id"], "last");
    two.stop.send(()).unwrap();
    let ended = row(&mut feed).await.unwrap();
    assert!(ended["last_seq"].is_string(), "{ended}");
    two.served.await.unwrap();
    assert_eq!(call(&one.url, Method::GET, "/db/last", "").await.0, 200);
    assert_eq!(call(&one.url, Method::DELETE, "/db", "").await.0, 200);
    one.stop.send(()).unwrap();
    one.served.await.unwrap();
}
