//! Functions of design documents, harmless and hostile.
#![allow(clippy::expect_used)]

use std::time::Duration;

use flatbed_javascript::{Design, Error, Runner, RunnerOptions, Validation};

use super::listens;

fn runner(time: Duration) -> Runner {
    Runner::new(RunnerOptions { threads: 1, validation_max: time, batch_max: time, ..RunnerOptions::default() })
        .expect("a thread")
}

const LONG: Duration = flatbed_testkit::PATIENCE.saturating_mul(10);
const SHORT: Duration = Duration::from_millis(500);

async fn filter(source: &str, docs: &[&str]) -> Result<Vec<bool>, Error> {
    filter_within(LONG, source, docs).await
}

async fn filter_within(time: Duration, source: &str, docs: &[&str]) -> Result<Vec<bool>, Error> {
    let source = source.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let design = Design::new(
        "db/1",
        format!(
            "{{\"_id\":\"_design/d\",\"lib\":{{\"even\":\"exports.is = function (n) {{ return n % 2 === 0; }}\"}},\"filters\":{{\"f\":\"{source}\"}}}}"
        ),
    );
    let docs: Vec<&[u8]> = docs.iter().map(|doc| doc.as_bytes()).collect();
    let runner = runner(time);
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
async fn modules_know_where_they_stand() {
    let design = Design::new(
        "db/1",
        r#"{"top":"exports.t=module","lib":{"a":"exports.m=module","deep":{"b":"exports.up=require('../a').m;exports.top=require('../../top').t",
            "over":"require('../../../top')"},"over":"require('./../../lib/a')","back":"exports.m=require('../lib/deep/../a').m"},
            "filters":{
                "ids":"function(){var b=require('lib/deep/b');return b.up.id==='lib/a'&&b.top.id==='top'&&require('lib/back').m===b.up}",
                "parents":"function(){var m=require('lib/a').m;return m.parent.id==='lib'&&m.parent.current===this.lib&&m.parent.parent.current===this&&m.parent.parent.parent===undefined&&m.current===this.lib.a}",
                "top":"function(){var m=require('top').t;return m.parent.current===this&&m.parent.id===undefined&&m.parent.parent===undefined}",
                "above":"function(){return require('../lib/a')}",
                "further":"function(){return require('lib/../../lib/a')}",
                "over":"function(){return require('lib/over')}",
                "deep":"function(){return require('lib/deep/over')}",
                "caught":"function(){try{require('lib/deep/over')}catch(e){return require('lib/a').m.id==='lib/a'}}"}}"#,
    );
    let runner = runner(LONG);
    for name in ["ids", "parents", "top", "caught"] {
        assert_eq!(runner.filter(&design, runner.caller(), name, &[b"{}"], "{}").await, Ok(vec![true]), "{name}");
    }
    for (name, path) in
        [("above", "../lib/a"), ("further", "lib/../../lib/a"), ("over", "./../../lib/a"), ("deep", "../../../top")]
    {
        let reason = format!("Object has no parent: {path}");
        let thrown = Err(Error::Thrown { name: "invalid_require_path".into(), reason });
        assert_eq!(runner.filter(&design, runner.caller(), name, &[b"{}"], "{}").await, thrown, "{name}");
    }
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
    let runner = runner(LONG);
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
    let runner = runner(LONG);
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
    let filter = async |source: &str, docs: &[&str]| filter_within(SHORT, source, docs).await;
    assert!(matches!(filter("function (doc) { while (true) {} }", &docs).await, Err(Error::TimedOut(_) | Error::Busy)));
    let caught = "function (doc) { while (true) { try { while (true) {} } catch (e) {} } }";
    assert!(matches!(filter(caught, &docs).await, Err(Error::TimedOut(_) | Error::Busy)));
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

/// Each function would run for hours without a check of the clock.
#[tokio::test]
async fn lengths_that_change_do_not_keep_a_call_from_being_stopped() {
    let runner = runner(SHORT);
    let filter = async |body: &str| {
        let body = body.replace('\n', " ");
        let design = Design::new("db/1", format!("{{\"filters\":{{\"f\":\"function (doc) {{ {body} }}\"}}}}"));
        runner.filter(&design, runner.caller(), "f", &[b"{}"], "{}").await
    };
    let second = "(function () { var n = 0; return {get length() { return n++ ? 9e15 : 0; }}; })()";
    let read = "{get: function (o, key) { return key === 'length' && n++ ? 9e15 : 0; }, has: Math.abs}";
    let hostile = [
        format!("[].reverse.call({second})"),
        format!("[].reverse.call(Object.create({second}))"),
        format!("[].lastIndexOf.call({second}, 1)"),
        format!("[].fill.call({second}, 1)"),
        format!("[].toString.call(Object.assign(Object.create({second}), {{join: [].reverse}}))"),
        format!("var n = 0; [].reverse.call(new Proxy({{}}, {read}))"),
        format!("var n = 0; [].reverse.call(Proxy.revocable([], {read}).proxy)"),
        format!("var n = 0; [].reverse.call(Object.create(new Proxy({{}}, {read})))"),
        format!("var n = 0; Number.prototype.__proto__ = new Proxy({{}}, {read}); [].reverse.call(7)"),
        "var n = 0; [].reverse.call({length: {valueOf: function () { return n++ ? 9e15 : 0; }}})".to_owned(),
        "[].reverse.call(Object.defineProperty(function () {}, 'length', {value: 9e15}))".to_owned(),
        "Number.prototype.length = 9e15; [].reverse.call(7)".to_owned(),
        "Object.prototype.get = 1; [].reverse.call({length: 9e15})".to_owned(),
        "[new Array(4294967295)].flat()".to_owned(),
        "[1].flatMap(function () { return new Array(4294967295); })".to_owned(),
        "var a = []; a.constructor = {get [Symbol.species]() { o.length = 9e15; }}; var o = {length: 0, [Symbol.isConcatSpreadable]: true};
         a.concat({get [Symbol.isConcatSpreadable]() { o.length = 9e15; return false; }}, o)"
            .to_owned(),
    ];
    for body in hostile {
        let call = async || {
            let answer = filter(&body).await;
            assert!(
                matches!(answer, Err(Error::Thrown { .. } | Error::TimedOut(_) | Error::Busy)),
                "{body}: {answer:?}"
            );
        };
        assert!(listens(&runner, call).await, "{body}");
    }
}

/// Array functions that the dispatcher replaces behave as the language specifies.
#[tokio::test]
async fn arrays_are_put_together_as_ever() {
    for (body, expected) in [
        ("[1,,2].concat(3, [4, [5]], 'six')", "[1,null,2,3,4,[5],\"six\"]"),
        ("1 in [1,,2].concat([])", "false"),
        ("[].concat([1,,]).length", "2"),
        (
            "[].concat({length: 1, 0: 'a', [Symbol.isConcatSpreadable]: true}, {length: 1, 0: 'b'})",
            "[\"a\",{\"0\":\"b\",\"length\":1}]",
        ),
        ("[0].concat(Object.assign([1, 2], {[Symbol.isConcatSpreadable]: false})).length", "2"),
        ("[].concat.call('ab', 1).length", "2"),
        ("[].concat(new Proxy([1, 2], {}))", "[1,2]"),
        ("[].concat.apply([], [[1], [2, 3], []])", "[1,2,3]"),
        ("[1, [2, [3, [4]]], , 5].flat()", "[1,2,[3,[4]],5]"),
        ("[1, [2, [3, [4]]]].flat(Infinity)", "[1,2,3,4]"),
        ("[1, [2, [3]]].flat(0)", "[1,[2,[3]]]"),
        ("[1, [2, [3]]].flat('2')", "[1,2,3]"),
        ("[1, [2]].flat(NaN)", "[1,[2]]"),
        ("[].flat.call({length: 2, 0: [1], 1: 2})", "[1,2]"),
        (
            "[1, 2, , 3].flatMap(function (n, i, all) { return [n, [i + this.x + all.length]]; }, {x: 1})",
            "[1,[5],2,[6],3,[8]]",
        ),
        ("['a b', 'c'].flatMap(function (text) { return text.split(' '); })", "[\"a\",\"b\",\"c\"]"),
        ("[].slice.call((function () { return arguments; })(1, 2), 1)", "[2]"),
        ("[].indexOf.call('abc', 'b')", "1"),
        ("[].join.call(new Uint8Array([1, 2]))", "\"1,2\""),
        ("[].join.call({})", "\"\""),
        (
            "typeof new Proxy({}, {}) + Proxy.length + Proxy.name + ('prototype' in Proxy && Proxy.prototype)",
            "\"object2Proxyundefined\"",
        ),
        ("new Proxy({}, {get: function (o, key) { return key; }}).x", "\"x\""),
    ] {
        let told = filter(&format!("function (doc) {{ throw {{forbidden: JSON.stringify({body})}}; }}"), &["{}"]).await;
        assert_eq!(told, Err(Error::Forbidden(expected.into())), "{body}");
    }
}

#[tokio::test]
async fn design_documents_do_not_see_one_another() {
    let docs = ["{\"n\":1}"];
    let poison = "function (doc) { JSON.parse = JSON.stringify = Map.prototype.get = undefined; Array.prototype.push = 7; return true; }";
    assert_eq!(filter(poison, &docs).await, Ok(vec![true]));
    let runner = runner(LONG);
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
