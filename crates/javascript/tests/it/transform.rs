//! Functions of the changes worker.
#![allow(clippy::expect_used)]

use std::time::Duration;

use flatbed_javascript::{Error, Runner, RunnerOptions, TransformFunction};

fn runner() -> Runner {
    of(10 * flatbed_testkit::PATIENCE)
}

fn of(validation_max: Duration) -> Runner {
    let options = RunnerOptions { validation_max, ..RunnerOptions::default() };
    Runner::new(RunnerOptions { threads: 1, map_threads: 1, ..options }).expect("a thread")
}

async fn made(runner: &Runner, source: &str, document: &str) -> Result<String, Error> {
    runner.transform(&TransformFunction::new("j", source), document).await
}

#[tokio::test]
async fn documents_nothing_and_several() {
    let runner = runner();
    for (source, expected) in [
        ("(doc) => doc", r#"{"_id":"a","n":1.5,"list":[1,2]}"#),
        ("(doc) => null", "null"),
        ("(doc) => {}", "null"),
        ("(doc) => { if (doc.n > 1) return { id: doc._id, 'ä': '\u{1f600}' }; }", "{\"id\":\"a\",\"ä\":\"\u{1f600}\"}"),
        ("function (doc) { return doc.list.map(function (n) { return { n: n }; }); }", r#"[{"n":1},{"n":2}]"#),
        ("(doc) => 7", "7"),
        (
            "(doc) => ({ d: new Date(0), x: undefined, f: () => 1, n: NaN });",
            r#"{"d":"1970-01-01T00:00:00.000Z","n":null}"#,
        ),
    ] {
        assert_eq!(
            made(&runner, source, r#"{"_id":"a","n":1.5,"list":[1,2]}"#).await.as_deref(),
            Ok(expected),
            "{source}"
        );
    }
}

#[tokio::test]
async fn what_goes_wrong_is_said() {
    let runner = runner();
    let thrown = |name: &str, reason: &str| Error::Thrown { name: name.to_owned(), reason: reason.to_owned() };
    for (source, expected) in [
        ("(doc) => doc.gone.name", thrown("TypeError", "cannot read property 'name' of undefined")),
        ("(doc) => { throw { odd: 'thing' }; }", thrown("odd", "thing")),
        ("(doc) => { throw 'text'; }", thrown("unknown_error", "text")),
        ("(doc) => { throw { get name() { throw 1; }, stack: 1 }; }", thrown("unknown_error", "")),
        ("(doc) => (async () => doc)()", thrown("invalid_result", "A promise is no document.")),
        ("(doc) => ({ get a() { throw new Error('late'); } })", thrown("Error", "late")),
        ("(doc) => ({ a: 1n })", thrown("TypeError", "BigInt are forbidden in JSON.stringify")),
    ] {
        let found = made(&runner, source, "{}").await;
        match (&found, &expected) {
            // The wording of engine errors is not compared.
            (Err(Error::Thrown { name, .. }), Error::Thrown { name: wanted, .. }) if wanted == "TypeError" => {
                assert_eq!(name, wanted);
            }
            _ => assert_eq!(found, Err(expected), "{source}"),
        }
    }
    let runner = of(Duration::from_millis(300));
    assert!(matches!(made(&runner, "(doc) => { for (;;); }", "{}").await, Err(Error::TimedOut(_) | Error::Busy)));
    let endless = "(doc) => { const all = []; for (;;) all.push(new Array(100000).fill(7)); }";
    let found = made(&runner, endless, "{}").await;
    assert!(matches!(found, Err(Error::OutOfResources | Error::TimedOut(_) | Error::Busy)), "{found:?}");
    let runner = self::runner();
    let deep = made(&runner, "(doc) => (function f() { return f(); })()", "{}").await;
    assert!(matches!(deep, Err(Error::OutOfResources | Error::Thrown { .. })), "{deep:?}");
    for source in ["7", "(doc) =>", "1) + (2", "", "async (doc) => doc", "function* (doc) {}"] {
        let function = TransformFunction::new("j", source);
        assert!(matches!(runner.check_transform(&function).await, Err(Error::Compilation(_))), "{source}");
    }
    assert_eq!(runner.check_transform(&TransformFunction::new("j", "(doc) => gone")).await, Ok(()));
}

#[tokio::test]
async fn nothing_of_a_call_is_left_for_the_next() {
    let runner = runner();
    let counting = "(() => { let n = 0; return (doc) => { n += 1; globalThis.seen = (globalThis.seen ?? 0) + 1; Object.prototype.x = 1; return { n, seen: globalThis.seen, x: doc.x }; }; })()";
    for _ in 0..3 {
        assert_eq!(made(&runner, counting, "{}").await.as_deref(), Ok(r#"{"n":1,"seen":1}"#));
    }
    let reached = "(doc) => ({ f: typeof fetch, r: typeof require, p: typeof process, i: typeof emit, s: typeof std })";
    let expected = r#"{"f":"undefined","r":"undefined","p":"undefined","i":"undefined","s":"undefined"}"#;
    assert_eq!(made(&runner, reached, "{}").await.as_deref(), Ok(expected));
}
