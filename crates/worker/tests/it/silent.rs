//! Servers that do not answer, or answer in another protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flatbed_clock::ManualClock;
use flatbed_testkit::{soon, until};
use flatbed_worker::checkpoint::Checkpoint;
use flatbed_worker::failure::Failure;
use flatbed_worker::output::mysql::{self, MySql};
use flatbed_worker::output::postgres::{Postgres, PostgresSettings};
use flatbed_worker::output::{DeliveryError, Target};
use flatbed_worker::peer::Dial;

use crate::server::{local, plain};

/// Beyond the timeout of a server's answer.
const TIME_MAX: Duration = Duration::from_secs(30);
const LATE: Duration = Duration::from_secs(60);

/// Returns the error of a target that does not begin. The clock moves once there is a connection.
async fn refused(
    manual: &ManualClock,
    begun: impl Future<Output = Result<Option<Checkpoint>, DeliveryError>>,
    connected: impl Future<Output = ()>,
) {
    let time = async {
        connected.await;
        until("an answer is waited for", async || manual.waiting() > 0).await;
        manual.advance(LATE);
        std::future::pending().await
    };
    let refused = soon(async {
        tokio::select! {
            begun = begun => begun.unwrap_err(),
            refused = time => refused,
        }
    });
    let refused = refused.await;
    assert!(matches!(&refused, DeliveryError::Failed { failure: Failure::Connection, .. }), "{refused:?}");
}

/// One server accepts connections and stays silent, another speaks another protocol.
#[tokio::test]
async fn servers_that_do_not_answer_are_not_waited_for() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let nowhere: Dial =
        Arc::new(|_| Box::pin(async { Err("the host has no address that may be reached from here".to_owned()) }));
    let (noisy, noise) = (Arc::<AtomicUsize>::default(), 1 << 20);
    let heard = noisy.clone();
    let chatty: Dial = Arc::new(move |_| {
        let noisy = noisy.clone();
        Box::pin(async move {
            let (near, mut far) = tokio::io::duplex(1 << 16);
            tokio::spawn(async move {
                let noise = vec![b'x'; 1 << 12];
                while tokio::io::AsyncWriteExt::write_all(&mut far, &noise).await.is_ok() {
                    noisy.fetch_add(noise.len(), Ordering::SeqCst);
                }
            });
            Ok(Box::new(near) as _)
        })
    });
    let (manual, mut connections) = (ManualClock::new(), Vec::new());
    for (dial, is_silent) in [(plain(), true), (nowhere, false), (chatty, false)] {
        let (host, database, user) = ("127.0.0.1".to_owned(), "d".to_owned(), "u".to_owned());
        let (schema, password, secure, time_max, clock) = (None, None, None, TIME_MAX, manual.clock());
        let way = PostgresSettings { host, port, database, schema, user, password, time_max, dial, secure, clock };
        let mut target = Postgres::at(way, "j", &[], true);
        let connected = async {
            match is_silent {
                true => connections.push(silent.accept().await.unwrap()),
                false => until("it is heard", async || heard.load(Ordering::SeqCst) > noise).await,
            }
        };
        refused(&manual, target.begin(1), connected).await;
    }
    let (host, database, user) = ("127.0.0.1".to_owned(), "d".to_owned(), "u".to_owned());
    let (password, time_max, addresses, authorities, clock) = (None, TIME_MAX, local(), None, manual.clock());
    let way = mysql::MysqlSettings { host, port, database, user, password, time_max, addresses, authorities, clock };
    let connected = async { connections.push(silent.accept().await.unwrap()) };
    refused(&manual, MySql::at(way, "j", &[], true).begin(1), connected).await;
}
