//! Functions of design documents, well-behaved ones and others.
#![allow(clippy::expect_used)]

use std::time::{Duration, Instant};

use flatbed_javascript::{Design, Error, Runner, RunnerOptions, Validation};

fn runner() -> Runner {
    let time = Duration::from_millis(500);
    Runner::new(RunnerOptions { threads: 1, validation_max: time, batch_max: time, ..RunnerOptions::default() })
        .expect("a thread")
}

async fn filter(source: &str, docs: &[&str]) -> Result<Vec<bool>, Error> {
    let source = source.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let design = Design::new(
        "db/1",
        format!(
            "{{\"_id\":\"_design/d\",\"lib\":{{\"even\":\"exports.is = function (n) {{ return n % 2 === 0; }}\"}},\"filters\":{{\"f\":\"{source}\"}}}}"
        ),
    );
    let docs: Vec<&[u8]> = docs.iter().map(|doc| doc.as_bytes()).collect();
    let runner = runner();
    runner.filter(&design, runner.caller(), "f", &docs, "{\"query\":{\"name\":\"x\"}}").await
}

#[tokio::test]
async fn filters() {
    let docs = ["{\"_id\":\"x\",\"n\":1}", "{\"_id\":\"y\",\"n\":2}"];
    assert_eq!(filter("function (doc) { return doc.n > 1; }", &docs).await, Ok(vec![false, true]));
    assert_eq!(
        filter("function (doc, req) {\n return doc._id === req.query.name\n}; ", &docs).await,
        Ok(vec![true, false])
    );
    assert_eq!(filter("(doc) => require('lib/even').is(doc.n) // even", &docs).await, Ok(vec![false, true]));
    assert_eq!(filter("function (doc) { return this._id === '_design/d'; }", &docs).await, Ok(vec![true, true]));
    assert_eq!(
        filter("function (doc) { return isArray([]) && sum([1, 2]) === 3 && toJSON(doc).length > 5; }", &docs).await,
        Ok(vec![true, true])
    );
    assert_eq!(filter("function (doc) { return 1; }", &[]).await, Ok(vec![]));
}

#[tokio::test]
async fn what_is_wrong_is_told() {
    let docs = ["{}"];
    let thrown = |name: &str, reason: &str| Err(Error::Thrown { name: name.into(), reason: reason.into() });
    assert!(matches!(filter("function (doc) {", &docs).await, Err(Error::Compilation(_))));
    assert!(matches!(filter("7", &docs).await, Err(Error::Compilation(_))));
    assert_eq!(filter("function (doc) { throw new TypeError('no'); }", &docs).await, thrown("TypeError", "no"));
    assert_eq!(filter("function (doc) { throw {oops: 'no'}; }", &docs).await, thrown("oops", "no"));
    assert_eq!(filter("function (doc) { throw 'no'; }", &docs).await, thrown("unknown_error", "no"));
    assert_eq!(filter("function (doc) { throw null; }", &docs).await, thrown("unknown_error", "null"));
    assert_eq!(
        filter("function (doc) { require('lib'); }", &docs).await,
        thrown("invalid_require_path", "Must require a string: lib")
    );
    let design = Design::new(
        "db/1",
        "{\"filters\":{\"f\":7},\"views\":{\"v\":{\"map\":\"function (doc) { if (doc.a) emit(doc.a); }\"}}}",
    );
    let runner = runner();
    for path in [vec!["filters", "f"], vec!["filters", "toString"], vec!["__proto__"], vec!["views", "w", "map"]] {
        assert_eq!(runner.find(&design, runner.caller(), &path).await, Err(Error::Missing), "{path:?}");
    }
    assert_eq!(runner.find(&design, runner.caller(), &["views", "v", "map"]).await, Ok(()));
    assert_eq!(runner.emits(&design, runner.caller(), "v", &[b"{}", b"{\"a\":1}"]).await, Ok(vec![false, true]));
}

#[tokio::test]
async fn what_is_thrown_is_cut() {
    for body in [
        "throw({forbidden: 'x'.repeat(300000)})",
        "throw({unauthorized: new Array(10000).fill('x')})",
        "var e = {}; e['x'.repeat(300000)] = 1; throw e",
        "var e = new Error('x'.repeat(300000)); e.name = 'y'.repeat(300000); throw e",
        "throw '\\ud83d\\ude00'.repeat(10000)",
        "throw 'x' + '\\ud83d\\ude00'.repeat(10000)",
        "require('x'.repeat(300000))",
    ] {
        let error = filter(&format!("function (doc) {{ {body} }}"), &["{}"]).await.expect_err(body);
        let told = error.to_string();
        assert!(!matches!(error, Error::OutOfResources | Error::TimedOut(_)), "{error}");
        assert!((4_000..17_000).contains(&told.len()), "{body}: {}", told.len());
    }
}

#[tokio::test]
async fn writes_are_validated() {
    let design = Design::new(
        "db/1",
        concat!(
            r#"{"validate_doc_update":"function (document, old, user, security) {"#,
            r#" if (document.forbid) throw({forbidden: 'no ' + document.forbid});"#,
            r#" if (!old && user.roles.indexOf('maker') < 0) throw({unauthorized: security.text}); }"}"#
        ),
    );
    let runner = runner();
    let validate = async |document: &str, old: &str, user: &str| {
        let write = Validation { document, old, user, security: "{\"text\":\"made by makers\"}" };
        runner.validate(&design, runner.caller(), &write).await
    };
    assert_eq!(validate("{}", "{}", "{\"roles\":[]}").await, Ok(()));
    assert_eq!(validate("{}", "null", "{\"roles\":[\"maker\"]}").await, Ok(()));
    assert_eq!(validate("{}", "null", "{\"roles\":[]}").await, Err(Error::Unauthorized("made by makers".into())));
    assert_eq!(validate("{\"forbid\":\"it\"}", "{}", "{\"roles\":[]}").await, Err(Error::Forbidden("no it".into())));
}

#[tokio::test]
async fn hostile_functions_are_stopped() {
    let docs = ["{\"n\":1}"];
    assert!(matches!(filter("function (doc) { while (true) {} }", &docs).await, Err(Error::TimedOut(_))));
    let caught = "function (doc) { while (true) { try { while (true) {} } catch (e) {} } }";
    assert!(matches!(filter(caught, &docs).await, Err(Error::TimedOut(_))));
    let bomb = "function (doc) { var a = ['x']; while (true) a.push(a.join('') + a.join('')); }";
    assert!(filter(bomb, &docs).await.is_err());
    let deep = "function (doc) { var f = function () { return f() + 1; }; return f(); }";
    assert!(filter(deep, &docs).await.is_err());
    assert!(filter("function (doc) { return JSON.parse('['.repeat(1000000)); }", &docs).await.is_err());
    assert!(filter("function (doc) { throw new Array(1e9).join('x'); }", &docs).await.is_err());
    let cyclic = "function (doc) { var a = {}; a.forbidden = a; throw a; }";
    assert!(filter(cyclic, &docs).await.is_err());
    let regex = "function (doc) { return /^(a+)+$/.test('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!'); }";
    assert!(filter(regex, &docs).await.is_err());
    let searched = "function (doc) { return [].indexOf.call({length: 1e15}, 1); }";
    assert!(filter(searched, &docs).await.is_err());
}

#[tokio::test]
async fn a_thread_that_does_not_stop_is_replaced() {
    let runner = runner();
    // A built-in function that goes on for minutes and is not interrupted, by a way around the guards.
    let stuck = "function (doc) { Object.defineProperty(Array.prototype, 'x', {get: function () { return 1; }}); var s = 'a'.repeat(20000000); return new String(s + 'b').indexOf({toString: function () { return s.slice(10000000) + 'c'; }}); }";
    let design = |source: &str| Design::new("db/1", format!("{{\"filters\":{{\"f\":\"{source}\"}}}}"));
    for attempt in 0..2 {
        let begun = Instant::now();
        let answer = runner.filter(&design(stuck), runner.caller(), "f", &[b"{}"], "{}").await;
        // What does not run at all does not run into its time.
        assert!(matches!((attempt, &answer), (0, Err(Error::TimedOut(_))) | (1, Err(Error::Refused))), "{answer:?}");
        // Its thread is given up once it has had the processor, which others may have.
        assert!(begun.elapsed() < Duration::from_millis(4_000), "{:?}", begun.elapsed());
    }
    // One thread alone runs here, and it is another one now.
    assert_eq!(
        runner.filter(&design("function (doc) { return true; }"), runner.caller(), "f", &[b"{}"], "{}").await,
        Ok(vec![true])
    );
}

#[tokio::test]
async fn design_documents_do_not_see_one_another() {
    let docs = ["{\"n\":1}"];
    // What one function has broken, another design document does not notice.
    let poison = "function (doc) { JSON.parse = JSON.stringify = Map.prototype.get = undefined; Array.prototype.push = 7; return true; }";
    assert_eq!(filter(poison, &docs).await, Ok(vec![true]));
    let runner = runner();
    let (bad, good) = (
        Design::new("db/1", format!("{{\"filters\":{{\"f\":\"{poison}\"}}}}")),
        Design::new("db/1", "{\"filters\":{\"f\":\"function (doc) { return doc.n; }\"}}"),
    );
    for _ in 0..3 {
        assert_eq!(runner.filter(&bad, runner.caller(), "f", &[b"{\"n\":1}"], "{}").await, Ok(vec![true]));
        assert_eq!(
            runner.filter(&good, runner.caller(), "f", &[b"{\"n\":1}", b"{\"n\":0}"], "{}").await,
            Ok(vec![true, false])
        );
    }
    for name in ["fetch", "process", "require('fs')", "std", "os", "XMLHttpRequest", "Deno", "setTimeout"] {
        assert!(filter(&format!("function (doc) {{ {name}.x; }}"), &docs).await.is_err(), "{name}");
    }
}
