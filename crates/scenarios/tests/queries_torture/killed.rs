//! Clients' view of a server that is killed while it writes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flatbed_client::{Connection, Error, Url};
use flatbed_testkit::until;
use futures_util::future::join_all;
use hyper::Method;

use super::process::Mortal;
use crate::support::Store;

const KILLS: u64 = 20;

const WRITERS: u64 = 32;

/// The additional writes that each server answers before it is killed.
const WRITES_EACH: u64 = 10;

/// While a runtime shuts down, a handler may still run although its dependencies are gone.
#[tokio::test(flavor = "multi_thread")]
async fn who_dies_does_not_say_that_something_is_wrong_inside() {
    let _alone = crate::TURN.lock().await;
    super::log();
    let store = Arc::new(Store::new());
    let mut answers: BTreeMap<u16, (u64, String)> = BTreeMap::new();
    for kill in 0..KILLS {
        let mortal = Mortal::start(&store).await;
        let address = mortal.process().server.address;
        let created = connect(address).await.expect("connected").call(Method::PUT, "/db", String::new()).await;
        assert!(matches!(created.expect("created").status, 201 | 412));
        let written = Arc::new(AtomicU64::new(0));
        let write = |writer| tokio::spawn(write(address, format!("{kill}-{writer}"), written.clone()));
        let writers: Vec<_> = (0..WRITERS).map(write).collect();
        // Each server is killed after another number of writes.
        until("they write", async || written.load(Ordering::Relaxed) > WRITES_EACH * kill).await;
        drop(mortal);
        for (status, text) in join_all(writers).await.into_iter().flat_map(|told| told.expect("it ends")) {
            answers.entry(status).or_insert((0, text)).0 += 1;
        }
    }
    assert!(answers.contains_key(&201), "nothing was written: {answers:?}");
    assert!(answers.keys().all(|status| matches!(status, 201 | 503)), "{answers:#?}");
}

async fn connect(address: SocketAddr) -> Result<Connection, Error> {
    Connection::open(&Url::parse(&format!("http://{address}")).expect("a URL")).await
}

/// Writes until the server is gone; returns its answers.
async fn write(address: SocketAddr, name: String, written: Arc<AtomicU64>) -> Vec<(u16, String)> {
    let mut told = Vec::new();
    let Ok(mut connection) = connect(address).await else { return told };
    for number in 0.. {
        let path = format!("/db/{name}-{number}");
        let Ok(answer) = connection.call(Method::PUT, &path, "{}".to_owned()).await else { break };
        written.fetch_add(1, Ordering::Relaxed);
        told.push((answer.status, String::from_utf8_lossy(&answer.body).into_owned()));
    }
    told
}
