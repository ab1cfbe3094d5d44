//! A write commits only under the functions of design documents and the `_security` that judged it.

use std::sync::{Arc, Mutex};

use crate::support::{Store, assert_clean, create, get, put, soon};
use flatbed_layer::{DatabaseSecurity, Document, Error, Judge, Judgement, ProposedWrite, Refusal, Rule, Verdict};
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;

/// A function that refuses if `_security` says closed, and waits after it has read it.
#[derive(Clone)]
struct Gate {
    asked: Arc<Semaphore>,
    may_answer: Arc<Semaphore>,
}

impl Gate {
    fn new() -> Gate {
        Gate { asked: Arc::new(Semaphore::new(0)), may_answer: Arc::new(Semaphore::new(0)) }
    }

    fn open(&self) {
        self.may_answer.add_permits(Semaphore::MAX_PERMITS / 2);
    }
}

impl Judge for Gate {
    fn load(&self, _: &Document, _: &str) -> Arc<dyn Rule> {
        Arc::new(self.clone())
    }

    fn caller(&self) -> u64 {
        0
    }
}

impl Rule for Gate {
    fn judge<'a>(&'a self, write: ProposedWrite<'a>) -> BoxFuture<'a, Judgement> {
        let is_closed = write.security.is_some_and(|security| security == CLOSED);
        let user = write.user.name.clone().unwrap_or_default();
        Box::pin(async move {
            self.asked.add_permits(1);
            self.may_answer.acquire().await.expect("open").forget();
            if is_closed { Err(Refusal::Forbidden(format!("closed to {user}"))) } else { Ok(Verdict::default()) }
        })
    }
}

const OPEN: &[u8] = br#"{"members":{"names":["all"]}}"#;
const CLOSED: &[u8] = br#"{"members":{"names":["none"]}}"#;
const DESIGN: &str = r#"{"validate_doc_update":"function () {}"}"#;

#[tokio::test]
async fn a_write_is_judged_by_the_security_that_it_is_committed_under() {
    let store = Store::new();
    let gate = Gate::new();
    let (one, two) = (store.layer_judged_by(gate.clone()).await, store.layer_judged_by(gate.clone()).await);
    let own = create(&one, "db", None).await;
    put(&own, "_design/v", None, DESIGN).await.unwrap();
    own.set_security(OPEN).await.unwrap();
    // Judged by the old rule at either server, and not committed yet.
    let writers: Vec<_> = [&one, &two]
        .map(|layer| {
            let db = layer.written_by("db", "anna");
            tokio::spawn(async move { put(&db, "held", None, "{}").await })
        })
        .into();
    soon(gate.asked.acquire_many(2)).await.unwrap().forget();
    own.set_security(CLOSED).await.unwrap();
    gate.open();
    for writer in writers {
        let result = soon(writer).await.unwrap();
        assert!(
            matches!(&result, Err(Error::Refused(Refusal::Forbidden(reason))) if reason == "closed to anna"),
            "{result:?}"
        );
    }
    assert!(get(&own, "held").await.is_err());
    assert_clean(&one, &own).await;
}

#[tokio::test]
async fn a_changed_security_holds_for_the_next_write_everywhere() {
    let store = Store::new();
    let gate = Gate::new();
    gate.open();
    let (one, two) = (store.layer_judged_by(gate.clone()).await, store.layer_judged_by(gate.clone()).await);
    let own = create(&one, "db", None).await;
    put(&own, "_design/v", None, DESIGN).await.unwrap();
    let users = [&one, &two].map(|layer| layer.written_by("db", "anna"));
    for round in 0..3 {
        for (security, is_open) in [(OPEN, true), (CLOSED, false)] {
            own.set_security(security).await.unwrap();
            for (at, db) in users.iter().enumerate() {
                let result = put(db, &format!("{round}-{is_open}-{at}"), None, "{}").await;
                match is_open {
                    true => assert!(result.is_ok(), "{result:?}"),
                    false => assert!(matches!(result, Err(Error::Refused(Refusal::Forbidden(_)))), "{result:?}"),
                }
            }
        }
    }
    // Writes of the server are not judged.
    put(&own, "own", None, "{}").await.unwrap();
    assert_clean(&two, &own).await;
}

type NotedSecurity = (String, Option<Vec<u8>>);

/// Keeps what it is told of `_security`.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<NotedSecurity>>>);

impl Judge for Notes {
    fn note_security(&self, database: &str, security: &DatabaseSecurity) {
        self.0.lock().unwrap().push((database.to_owned(), security.bytes().map(<[u8]>::to_vec)));
    }

    fn load(&self, _: &Document, _: &str) -> Arc<dyn Rule> {
        Arc::new(Gate::new())
    }

    fn caller(&self) -> u64 {
        0
    }
}

#[tokio::test]
async fn the_judge_is_told_of_a_security_that_is_new_to_the_process_once() {
    let store = Store::new();
    let notes = Notes::default();
    let (one, two) = (store.layer_judged_by(Notes::default()).await, store.layer_judged_by(notes.clone()).await);
    let own = create(&one, "db", None).await;
    let other = two.database("db");
    for security in [OPEN, CLOSED] {
        own.set_security(security).await.unwrap();
        for n in 0..3 {
            put(&other, &format!("{}{n}", security.len()), None, "{}").await.unwrap();
        }
    }
    let noted = notes.0.lock().unwrap().clone();
    assert!(noted.iter().all(|(database, _)| *database == noted[0].0 && database.starts_with("db/")), "{noted:?}");
    let told: Vec<_> = noted.iter().map(|(_, security)| security.as_deref()).collect();
    assert_eq!(told, [Some(OPEN), Some(CLOSED)]);
}
