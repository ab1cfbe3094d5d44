//! Sync functions: what a Sync Gateway answered, and that nothing of a call is left for the next.
#![allow(clippy::expect_used)]

use std::collections::BTreeMap;
use std::time::Duration;

use flatbed_channels::require::Writer;
use flatbed_channels::{Expiry, Given, Grantee, Routing};
use flatbed_flatten::json::{self, Limits, Value, parse};
use flatbed_javascript::{Error, Routed, Runner, RunnerOptions, SyncFunction, SyncRefusal, SyncWrite, writer_text};

const NOW_S: u64 = 1_700_000_000;

fn runner() -> Runner {
    Runner::new(RunnerOptions { threads: 1, ..RunnerOptions::default() }).expect("a thread")
}

fn write<'a>(document: &'a str, user: &'a str) -> SyncWrite<'a> {
    SyncWrite { document, old: "null", meta: "{}", user, id_bytes: 1, now_s: NOW_S }
}

fn value(text: &str) -> Value<'_> {
    parse(text.as_bytes(), &Limits::default()).expect("JSON")
}

fn text(value: &Value<'_>) -> String {
    let mut out = Vec::new();
    json::write(value, &mut out);
    String::from_utf8(out).expect("UTF-8")
}

fn items<'a>(of: &'a Value<'a>) -> &'a [Value<'a>] {
    match of {
        Value::Array(items) => items,
        _ => &[],
    }
}

/// Whom a document lets in where, as Sync Gateway shows it.
fn access(routing: &Routing) -> BTreeMap<String, Vec<String>> {
    let mut all = BTreeMap::<String, Vec<String>>::new();
    for grant in &routing.grants {
        let (to, what) = match (&grant.to, &grant.what) {
            (Grantee::User(to), Given::Channel(channel)) => (to.clone(), channel),
            (Grantee::Role(to), Given::Channel(channel)) => (format!("role:{to}"), channel),
            (Grantee::User(to) | Grantee::Role(to), Given::Role(role)) => (format!("role:{to}"), role),
        };
        all.entry(to).or_default().push(what.clone());
    }
    all
}

/// Of the recorded answers, those that are others here on purpose: by a part of the document.
const DIFFERENT: &[(&str, &str)] = &[
    // There is a third argument.
    ("\"q\":\"args\"", "arguments 3"),
];

#[tokio::test]
async fn writes_are_judged_as_recorded() {
    let runner = runner();
    let mut count = 0;
    for line in include_str!("../../../../tests/sync-gateway/functions.jsonl").lines() {
        let scenario = value(line);
        let (Some(Value::String(source)), Some(writes)) = (scenario.get("sync"), scenario.get("writes")) else {
            continue;
        };
        let function = SyncFunction::new("db/1", source.to_string());
        for recorded in items(writes) {
            let member = |name: &str| recorded.get(name).and_then(Value::as_str);
            let document = member("doc").expect("a document");
            let user = text(recorded.get("who").expect("who writes"));
            let asked = SyncWrite { old: member("old").unwrap_or("null"), ..write(document, &user) };
            let said = runner.route(&function, &asked).await.expect("an answer");
            count += 1;
            let Some(Value::Number(status)) = recorded.get("status") else { panic!("no status") };
            if let Some((_, reason)) = DIFFERENT.iter().find(|(part, _)| document.contains(part)) {
                assert_eq!(said.map_err(|refusal| refusal.to_string()), Err((*reason).to_owned()));
                continue;
            }
            let routing = match said {
                Err(refusal) => {
                    let told = (refusal.status().to_string(), refusal.to_string());
                    assert_eq!((&*told.0, Some(&*told.1)), (&**status, member("reason")), "{source}: {document}");
                    continue;
                }
                Ok(routing) => routing,
            };
            assert_eq!(&**status, "201", "{source}: {document}");
            if let Some(channels) = recorded.get("channels") {
                let told: Vec<_> = routing.channels.iter().map(String::as_str).collect();
                let channels: Vec<_> = items(channels).iter().filter_map(Value::as_str).collect();
                assert_eq!(told, channels, "{source}: {document}");
            }
            if let Some(Value::Object(recorded)) = recorded.get("access") {
                let mut told = access(&routing);
                for (to, what) in recorded {
                    // Who is given nothing is not kept, nor is that a role is in a role.
                    let what: Vec<_> = items(what).iter().filter_map(Value::as_str).collect();
                    if !what.is_empty() && to != "role:role:team" {
                        assert_eq!(told.remove(&**to).expect("a grant"), what, "{document}");
                    }
                }
                assert!(told.is_empty(), "{document}: {told:?}");
            }
            if let Some(expiry) = recorded.get("exp") {
                let shown = routing.expires_at.and_then(|at| Expiry::At(at).shown());
                assert_eq!(shown.as_deref(), expiry.as_str(), "{document}");
            }
        }
    }
    assert_eq!(count, COUNT);
}

/// How many recorded writes there are.
const COUNT: usize = 171;

async fn said(source: &str, document: &str) -> Result<Routed, Error> {
    runner().route(&SyncFunction::new("db/1", source), &write(document, "null")).await
}

fn rejected(status: u16, reason: &str) -> Routed {
    Err(SyncRefusal::Rejected { status, reason: reason.to_owned() })
}

const EXCEPTION: SyncRefusal = SyncRefusal::Failed("Exception in JS sync function");

#[tokio::test]
async fn what_is_no_function_is_refused() {
    let runner = runner();
    for (source, is_one) in [
        ("function (doc) {}", true),
        ("function (doc) {};  ", true),
        ("/* a comment */ function named(doc, old) { } // and another", true),
        ("(doc) => channel(doc.channels)", true),
        ("(function () { var names = ['A']; return function (doc) { channel(names); }; })()", true),
        ("this is not a function", false),
        ("", false),
        ("function (doc) {", false),
        ("7", false),
        ("null", false),
        ("function (doc) {} 7", false),
        // What leads out of where it stands.
        ("1); function leak() {} (function (doc) {}", false),
        ("1]; [function (doc) {}", false),
        ("function (doc) {}); }); (function () { return (function (doc) {}", false),
        ("function (doc) {} /*", false),
        ("(() => { Object.defineProperty(globalThis, 'kept', { value: 1 }); return function (doc) {}; })()", false),
    ] {
        let checked = runner.check_sync(&SyncFunction::new("db/1", source)).await;
        assert_eq!(checked.is_ok(), is_one, "{source}: {checked:?}");
        assert!(is_one || matches!(checked, Err(Error::Compilation(_))), "{source}: {checked:?}");
    }
}

#[tokio::test]
async fn what_is_said_is_told_whole() {
    let source = "function (doc, old, meta) {
        channel('A', ['B', 'A'], doc.name, meta.more);
        access(['alice', 'role:r', ''], ['X', '*']);
        role('alice', ['role:r', 'role:s']);
        expiry(doc.expiry);
    }";
    let all = said(source, r#"{"name":"C","expiry":"60"}"#).await.expect("an answer").expect("a routing");
    assert_eq!(all.channels.iter().collect::<Vec<_>>(), ["A", "B", "C"]);
    assert_eq!(all.expires_at, Some(NOW_S + 60));
    let expected = [("", vec!["X"]), ("alice", vec!["X"]), ("role:alice", vec!["r", "s"]), ("role:r", vec!["X"])];
    let expected: Vec<_> =
        expected.into_iter().map(|(to, what)| (to.to_owned(), what.into_iter().map(str::to_owned).collect())).collect();
    assert_eq!(access(&all).into_iter().collect::<Vec<(_, Vec<_>)>>(), expected);
    // `*` leaves nothing beside it, and half a surrogate pair is no name.
    let star = said("function () { channel('A', '*'); }", "{}").await.expect("an answer").expect("a routing");
    assert_eq!(star.channels.iter().collect::<Vec<_>>(), ["*"]);
    let half = said(r"function () { channel('\ud83d'); }", "{}").await.expect("an answer").expect("a routing");
    assert_eq!(half.channels.iter().collect::<Vec<_>>(), ["\u{fffd}"]);
}

#[tokio::test]
async fn refusals_have_an_order() {
    for (source, expected) in [
        ("function () { reject(409, 'first'); throw {forbidden: 'second'}; }", rejected(409, "first")),
        ("function () { reject(399, 'none'); reject(400); }", rejected(400, "")),
        ("function () { reject('404', {}); }", rejected(404, "[object Object]")),
        ("function () { reject(599.9, 'last'); }", rejected(599, "last")),
        ("function () { reject(600, 'no status'); }", Err(EXCEPTION)),
        ("function () { reject(1e300, 'no status'); }", Err(EXCEPTION)),
        ("function () { reject(409, 'first'); channel('a,b'); }", Err(EXCEPTION)),
        ("function () { reject(409, 'first'); throw 'boom'; }", Err(EXCEPTION)),
        ("function () { reject(409, 'first'); access('a b', 'X'); }", rejected(409, "first")),
        ("function () { access('a b', 'X'); }", Err(SyncRefusal::Failed("Error in JS sync function"))),
        ("function () { access('role:a b', 'X'); }", Err(SyncRefusal::Failed("Error in JS sync function"))),
        ("function () { role('a', 'role:b c'); }", Err(SyncRefusal::Failed("Error in JS sync function"))),
        ("function () { role('a', 'role:'); }", Err(EXCEPTION)),
        ("function () { access('a', ''); }", Err(EXCEPTION)),
        ("function () { throw {get forbidden() { throw 1; }}; }", Err(EXCEPTION)),
        ("function () { throw {forbidden: {toString: function () { throw 1; }}}; }", Err(EXCEPTION)),
        ("function () { throw {forbidden: Symbol('s')}; }", rejected(403, "Symbol(s)")),
        ("function () { try { requireAdmin(); } catch (e) {} }", Ok(Routing::default())),
        ("async function () { throw {forbidden: 'nobody waits'}; }", Ok(Routing::default())),
        ("function f() { return f() + 1; }", Err(EXCEPTION)),
    ] {
        let answer = said(source, "{}").await;
        // The engine has no stack left: it says nothing of the document.
        if source.contains("f() + 1") {
            assert!(matches!(answer, Err(Error::OutOfResources) | Ok(Err(EXCEPTION))), "{answer:?}");
        } else {
            assert_eq!(answer, Ok(expected), "{source}");
        }
    }
    let long =
        said("function () { throw {forbidden: 'x'.repeat(1e6)}; }", "{}").await.expect("an answer").expect_err("no");
    assert_eq!(long.to_string().len(), 4_000);
}

#[tokio::test]
async fn more_than_may_be_kept_is_refused() {
    let channels = |count: usize| said_count(count, "channel('c' + i)");
    let grants = |count: usize| said_count(count, "access('u' + i, 'c')");
    assert_eq!(channels(400).await.map(|routing| routing.channels.len()), Ok(400));
    for (count, refusal) in
        [(1_001, channels(1_001).await), (1_001, grants(1_001).await), (20_000, channels(20_000).await)]
    {
        let refusal = refusal.expect_err("too many");
        assert_eq!(refusal.status(), 403);
        assert!(refusal.to_string().contains(&count.to_string()), "{refusal}");
    }
}

async fn said_count(count: usize, what: &str) -> Routed {
    let source = format!("function () {{ for (var i = 0; i < {count}; i++) {what}; }}");
    said(&source, "{}").await.expect("an answer")
}

#[tokio::test]
async fn time_and_memory_are_bounded() {
    let options = RunnerOptions { threads: 1, validation_max: Duration::from_millis(500), ..RunnerOptions::default() };
    let runner = Runner::new(options).expect("a thread");
    let slow = SyncFunction::new("db/1", "(() => { for (;;) {} })()");
    assert!(matches!(runner.check_sync(&slow).await, Err(Error::TimedOut(_))));
    let said = async |source: &str, document: &str| {
        runner.route(&SyncFunction::new("db/1", source), &write(document, "null")).await
    };
    assert!(matches!(said("function () { for (;;) {} }", "{}").await, Err(Error::TimedOut(_))));
    assert!(matches!(said("function () { try { for (;;) {} } catch (e) {} }", "{}").await, Err(Error::TimedOut(_))));
    let full = said("function () { var a = []; for (;;) a.push(new Array(1e5).fill(1)); }", "{}").await;
    assert!(matches!(full, Err(Error::OutOfResources | Error::TimedOut(_) | Error::Busy)), "{full:?}");
    let patterns = said("function () { /(a*)*b/.test('a'.repeat(40)); }", "{}").await;
    assert!(matches!(patterns, Err(Error::TimedOut(_)) | Ok(Err(_) | Ok(_))), "{patterns:?}");
}

/// Requirements, beside what they mean ([`Writer`]).
#[tokio::test]
async fn requirements_are_what_they_mean() {
    let runner = runner();
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let function = SyncFunction::new(
        "db/1",
        "function (doc) { if (doc.u) requireUser(doc.u); if (doc.r) requireRole(doc.r); if (doc.c) requireAccess(doc.c); }",
    );
    let writers = [
        Writer {
            name: "bob".into(),
            channels: set(&["!", "A"]),
            roles: set(&["r", "constructor"]),
            ..Writer::default()
        },
        Writer { name: String::new(), channels: set(&["!", "*"]), roles: set(&[]), ..Writer::default() },
    ];
    for writer in &writers {
        let user = writer_text(writer);
        for names in [
            &["bob"][..],
            &[""],
            &["alice", "bob"],
            &["r"],
            &["A", "B"],
            &["*"],
            &["toString"],
            &["constructor"],
            &["!"],
            &[],
        ] {
            let list = text(&Value::Array(names.iter().map(|name| Value::String((*name).into())).collect()));
            for (member, meant) in [
                ("u", writer.is_one_of(names)),
                ("r", writer.has_role_of(names)),
                ("c", writer.has_access_to_one_of(names)),
            ] {
                let document = format!("{{\"{member}\":{list}}}");
                let said = runner.route(&function, &write(&document, &user)).await.expect("an answer");
                assert_eq!(
                    said.map(drop).map_err(|refusal| refusal.to_string()),
                    meant.map_err(str::to_owned),
                    "{document} {user}"
                );
                let admin = runner.route(&function, &write(&document, "null")).await.expect("an answer");
                assert_eq!(admin, Ok(Routing::default()));
            }
        }
    }
}

/// What functions are written like, though all that is there before them is frozen.
#[tokio::test]
async fn functions_may_be_written_as_ever() {
    for source in [
        "function (doc) { for (i = 0; i < 2; i++) channel('c' + i); total = i; if (total !== 2) throw 'lost'; }",
        "function (doc) { var o = {}; o.toString = function () { return 'x'; }; o.constructor = 1; if (o + '' !== 'x' || o.constructor !== 1) throw 1; }",
        "function (doc) { function E(m) { this.message = m; } E.prototype = new Error(); E.prototype.name = 'E'; if (new E('m').message !== 'm') throw 1; }",
        "function (doc) { function F() {} F.prototype.toString = function () { return 'f'; }; if (String(new F()) !== 'f') throw 1; }",
        "function (doc) { var f = function () {}; f.call = 1; if (f.call !== 1) throw 1; }",
        "function (doc) { var e = new TypeError('x'); e.message = 'y'; e.name = 'Z'; if (String(e) !== 'Z: y') throw 1; }",
        "function (doc) { class A { toString() { return 'a'; } } if (`${new A()}` !== 'a') throw 1; }",
        "function (doc) { doc.channels.push('B'); doc.toString = 'mine'; channel(doc.channels); }",
        "function (doc) { var a = [3, 1, 2].sort().map(function (x) { return x * 2; }); a.more = 1; if (a.length !== 3 || a.more !== 1) throw 1; }",
        "function (doc) { var seen = {}; ['constructor', 'valueOf'].forEach(function (n) { seen[n] = true; }); if (seen.valueOf !== true) throw 1; }",
        "function (doc) { if (!/^a+$/.test('aaa') || 'a-b'.replace(/-/g, '+') !== 'a+b') throw 1; }",
        "function (doc) { if (!_.isEqual({a: [1, {b: 2}]}, {a: [1, {b: 2}]}) || _.isEqual([1], {0: 1})) throw 1; }",
        "function (doc) { if (_.uniq([1, 1, 2]).length !== 2 || !_.contains(['a'], 'a') || _.keys({a: 1}).join() !== 'a') throw 1; }",
        "function (doc) { if (_.union([1], [2, 1]).join() !== '1,2' || _.difference([1, 2], [2]).join() !== '1' || _.intersection([1, 2], [2, 3]).join() !== '2') throw 1; }",
    ] {
        let answer = said(source, r#"{"channels":["A"]}"#).await;
        assert!(matches!(answer, Ok(Ok(_))), "{source}: {answer:?}");
    }
}

/// Leaves something in every place that it can think of, and throws what it finds of what was left there before.
const SPY: &str = include_str!("sync_spy.js");

#[tokio::test]
async fn nothing_of_a_call_is_left() {
    let runner = runner();
    // Where what it defines for good is left out, the engine goes on to serve others.
    let served: String = SPY.lines().filter(|line| !line.contains("look('defined'")).collect::<Vec<_>>().join("\n");
    // An arrow function has the `arguments` of what it stands in.
    let arrow = "(doc) => { const maker = arguments.callee; for (const of of [maker, maker.prototype]) {
        if (of.leak) channel(of.leak.replace(/ /g, '-')); of.leak = doc.secret; } channel('puts'); }";
    for source in [SPY, &served, arrow] {
        let function = SyncFunction::new("db/1", source);
        for name in ["a", "b", "a", "c"] {
            let document = format!("{{\"secret\":\"secret of {name}\"}}");
            let said = runner.route(&function, &write(&document, "null")).await.expect("an answer");
            assert_eq!(
                said.map(|routing| routing.channels.into_iter().collect::<Vec<_>>()),
                Ok(vec!["puts".to_owned()]),
                "{name}"
            );
        }
    }
    // It does see what it leaves, or it would prove nothing.
    let twice = format!("function (doc) {{ var spy = {SPY}; spy(doc); spy(doc); }}");
    let said = runner.route(&SyncFunction::new("db/1", twice), &write("{\"secret\":\"secret of a\"}", "null")).await;
    let found = said.expect("an answer").expect_err("nothing left").to_string();
    for place in ["global", "globalThis", "defined", "var", "realm prototype", "generator", "weak", "buffer"] {
        assert!(found.split(", ").any(|found| found == format!("{place} secret of a")), "{place} of {found}");
    }
    for place in [
        "Object.prototype",
        "Array.prototype",
        "Function",
        "JSON",
        "parse",
        "Math",
        "Date",
        "channel",
        "underscore",
        "push",
        "trace",
    ] {
        assert!(!found.split(", ").any(|found| found == format!("{place} secret of a")), "{place} of {found}");
    }
}
