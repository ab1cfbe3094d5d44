//! Servers that do not answer, or not as servers do.

use std::sync::Arc;
use std::time::Duration;

use flatbed_worker::failure::Failure;
use flatbed_worker::output::mysql::{self, MySql};
use flatbed_worker::output::postgres::{Postgres, Way};
use flatbed_worker::output::{Refused, Target};
use flatbed_worker::peer::Dial;

use crate::server::{local, plain};

/// A server that takes connections and says nothing, and one that speaks something else.
#[tokio::test]
async fn servers_that_do_not_answer_are_not_waited_for() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let nowhere: Dial =
        Arc::new(|_| Box::pin(async { Err("the host has no address that may be reached from here".to_owned()) }));
    let chatty: Dial = Arc::new(|_| {
        Box::pin(async {
            let (near, mut far) = tokio::io::duplex(1 << 16);
            tokio::spawn(async move {
                let noise = vec![b'x'; 1 << 12];
                while tokio::io::AsyncWriteExt::write_all(&mut far, &noise).await.is_ok() {}
            });
            Ok(Box::new(near) as _)
        })
    });
    for dial in [plain(), nowhere, chatty] {
        let (host, database, user) = ("127.0.0.1".to_owned(), "d".to_owned(), "u".to_owned());
        let time_max = Duration::from_millis(100);
        let way = Way { host, port, database, schema: None, user, password: None, time_max, dial, secure: None };
        let mut target = Postgres::at(way, "j", &[], true);
        let refused = tokio::time::timeout(Duration::from_secs(120), target.begin(1)).await.unwrap().unwrap_err();
        assert!(matches!(&refused, Refused::Failed { failure: Failure::Connection, .. }), "{refused:?}");
    }
    let (host, database, user) = ("127.0.0.1".to_owned(), "d".to_owned(), "u".to_owned());
    let (password, time_max, addresses, authorities) = (None, Duration::from_millis(100), local(), None);
    let way = mysql::Way { host, port, database, user, password, time_max, addresses, authorities };
    let refused = tokio::time::timeout(Duration::from_secs(120), MySql::at(way, "j", &[], true).begin(1))
        .await
        .unwrap()
        .unwrap_err();
    assert!(matches!(&refused, Refused::Failed { failure: Failure::Connection, .. }), "{refused:?}");
}
