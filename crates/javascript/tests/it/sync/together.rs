//! Group calls and partial documents do not change an answer.

use flatbed_flatten::json::{self, Value};
use flatbed_javascript::{Error, Runner, RunnerOptions, SyncDecision, SyncFunction, SyncWrite};
use flatbed_testkit::{PATIENCE, soon};
use tokio::task::JoinHandle;

use super::{runner, several, value, write};

fn asked(
    runner: &Runner,
    function: &SyncFunction,
    document: &str,
) -> JoinHandle<flatbed_javascript::Result<SyncDecision>> {
    let (runner, function, write) = (runner.clone(), function.clone(), write(document));
    tokio::spawn(async move { runner.route(&function, write).await })
}

/// Yields until spawned tasks have begun to wait.
async fn yield_often() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn each_has_its_own_answer() {
    let (source, documents, expected) = several();
    let (runner, function) = (runner(), SyncFunction::new("db/1", source));
    let all: Vec<_> = documents.iter().map(|document| asked(&runner, &function, document)).collect();
    for ((said, expected), document) in all.into_iter().zip(expected).zip(documents) {
        assert_eq!(said.await.expect("no panic"), expected, "{document}");
    }
    let long = format!(r#"{{"n":1,"more":"{}"}}"#, "n".repeat(10_000));
    assert!(asked(&runner, &function, &long).await.expect("no panic").is_ok());
    let none = SyncFunction::new("db/1", "7");
    for said in [asked(&runner, &none, "{}"), asked(&runner, &none, "{}"), asked(&runner, &none, "{}")] {
        let said = said.await.expect("no panic");
        assert!(matches!(said, Err(Error::Compilation(_))), "{said:?}");
    }
}

#[tokio::test]
async fn who_leaves_takes_nobody_along() {
    let (runner, source) = (runner(), "function (doc) { while (doc.endless); channel(doc.n); }");
    let function = SyncFunction::new("db/1", source);
    for _ in 0..3 {
        let first = asked(&runner, &function, r#"{"endless":true}"#);
        yield_often().await;
        let others: Vec<_> = (0..20).map(|_| asked(&runner, &function, r#"{"n":"c"}"#)).collect();
        yield_often().await;
        // Some writes wait; some may have begun to run alone.
        first.abort();
        for (at, other) in others.into_iter().enumerate() {
            if at % 2 == 0 {
                other.abort();
                continue;
            }
            let said = other.await.expect("no panic").expect("an answer").expect("a routing");
            assert!(said.channels.contains("c"));
        }
    }
}

#[tokio::test]
async fn those_behind_one_that_takes_long_do_not_wait_for_it() {
    let (validation_max, wait_max) = (10 * PATIENCE, PATIENCE);
    let options = RunnerOptions { threads: 4, validation_max, wait_max, ..RunnerOptions::default() };
    let runner = Runner::new(options).expect("threads");
    let function = SyncFunction::new("db/1", "function (doc) { while (doc.endless); channel(doc.n); }");
    let first = asked(&runner, &function, r#"{"endless":true}"#);
    yield_often().await;
    let second = asked(&runner, &function, r#"{"endless":true}"#);
    for _ in 0..20 {
        let (one, two) = (asked(&runner, &function, r#"{"n":"c"}"#), asked(&runner, &function, r#"{"n":"c"}"#));
        for other in [one, two] {
            assert!(soon(other).await.expect("no panic").expect("an answer").is_ok());
        }
    }
    assert!(!first.is_finished() && !second.is_finished());
    first.abort();
    second.abort();
}

/// Each pair of statements runs on the whole document and on the members it is said to read.
#[tokio::test]
async fn what_is_not_read_changes_nothing() {
    let runner = runner();
    let document = r#"{"_id":"d","a":"A","b":{"a":"B","doc":"C"},"c":["D","E"],"x y":1}"#;
    let parts = [
        "channel(doc.a);",
        "if (doc.b) channel(doc . b\n.doc, doc?.c);",
        "channel('doc.a \\' doc'); // doc.b doc } {\n",
        "var copy = doc; channel(copy.c);",
        "for (var name in doc) channel(name);",
        "channel(JSON.stringify(doc['b']).length + '');",
        "(function (doc) { channel(doc.c + 'x'); })({ c: 'F' });",
        "doc.f = ({}).valueOf; channel((doc.f)().c);",
        "doc.a = 'G'; delete doc.b; channel(doc.a, typeof doc.b);",
        "if (old) channel(old.a);",
        "channel(_.keys(doc));",
        "channel(typeof doc.nothing, typeof doc.toString);",
        "channel(doc.a ? `${doc.a}2` : '');",
        "if (doc.c.length > 1 && doc._id === 'd') throw {forbidden: doc.b.a};",
    ];
    let (mut with_less, members) = (0, value(document));
    let Value::Object(members) = &members else { panic!("no object") };
    for first in parts {
        for second in parts {
            let source = format!("function (doc, old) {{ {first} {second} }}");
            let function = SyncFunction::new("db/1", source.as_str());
            let less = String::from_utf8(json::Object::text(|object| {
                for (name, value) in members.iter().filter(|(name, _)| function.may_read(name)) {
                    object.value(&**name, value);
                }
            }));
            let less = less.expect("UTF-8");
            with_less += usize::from(less.len() < document.len());
            let old = Some(r#"{"_id":"d","a":"old"}"#.to_owned());
            let whole = SyncWrite { old: old.clone(), ..write(document) };
            let part = SyncWrite { old: old.filter(|_| function.may_read_old()), ..write(&less) };
            let said = runner.route_all(&function, vec![whole, part]).await;
            assert_eq!(said[0], said[1], "{source}: {less}");
        }
    }
    assert!(with_less > 20, "{with_less}");
}
