//! Sync functions: the recorded answers of Sync Gateway, and isolation between calls.
#![allow(clippy::expect_used)]

mod bounds;
mod together;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flatbed_channels::require::{MISSING_ACCESS, MISSING_ROLE, WRONG_USER, Writer};
use flatbed_channels::{Expiry, Grant, GrantedItem, Grantee, Routing};
use flatbed_flatten::json::{self, Limits, Value, parse};
use flatbed_javascript::{Error, Runner, RunnerOptions, SyncDecision, SyncFunction, SyncRefusal, SyncWrite};
use flatbed_testkit::until_some;

const NOW_S: u64 = 1_700_000_000;

fn runner() -> Runner {
    Runner::new(RunnerOptions { threads: 1, ..crate::patient() }).expect("a thread")
}

/// Returns a write by an administrator.
fn write(document: &str) -> SyncWrite {
    SyncWrite { document: document.to_owned(), id_bytes: 1, now_s: NOW_S, ..SyncWrite::default() }
}

fn writer(recorded: &Value<'_>) -> Option<Arc<Writer>> {
    let texts = |of: &Value<'_>| items(of).iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let Value::Object(roles) = recorded.get("roles")? else { return None };
    let roles = roles.iter().map(|(name, _)| name.to_string()).collect();
    let name = recorded.get("name").and_then(Value::as_str)?.to_owned();
    Some(Arc::new(Writer { name, channels: texts(recorded.get("channels")?), roles, ..Writer::default() }))
}

fn value(text: &str) -> Value<'_> {
    parse(text.as_bytes(), &Limits::default()).expect("JSON")
}

fn items<'a>(of: &'a Value<'a>) -> &'a [Value<'a>] {
    match of {
        Value::Array(items) => items,
        _ => &[],
    }
}

fn access(routing: &Routing) -> BTreeMap<String, Vec<String>> {
    let mut all = BTreeMap::<String, Vec<String>>::new();
    for grant in &routing.grants {
        let (to, what) = match (&grant.to, &grant.what) {
            (Grantee::User(to), GrantedItem::Channel(channel)) => (to.clone(), channel),
            (Grantee::Role(to), GrantedItem::Channel(channel)) => (format!("role:{to}"), channel),
            (Grantee::User(to) | Grantee::Role(to), GrantedItem::Role(role)) => (format!("role:{to}"), role),
        };
        all.entry(to).or_default().push(what.clone());
    }
    all
}

/// Parts of recorded documents whose answers differ on purpose.
const DIFFERENT: &[(&str, &str)] = &[
    // Functions here have a third argument.
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
            let who = recorded.get("who").expect("who writes");
            let writer = writer(who);
            assert_eq!(writer.is_none(), *who == Value::Null);
            let asked = SyncWrite { old: member("old").map(str::to_owned), writer, ..write(document) };
            let said = runner.route(&function, asked).await.expect("an answer");
            count += 1;
            let Some(Value::Number(status)) = recorded.get("status") else { panic!("no status") };
            if let Some((_, reason)) = DIFFERENT.iter().find(|(part, _)| document.contains(part)) {
                assert_eq!(said.map_err(|refusal| refusal.to_string()), Err((*reason).to_owned()));
                continue;
            }
            let routing = match said {
                Err(refusal) => {
                    let told = (refusal.status().to_string(), refusal.to_string());
                    // The sequence at which a role was granted is not shown.
                    let reason = member("reason").unwrap_or_default().replace("{\"Sequence\":2}", "{}");
                    assert_eq!((&*told.0, told.1), (&**status, reason), "{source}: {document}");
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
                    // Empty grants and roles of roles are not kept.
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

const COUNT: usize = 171;

async fn said(source: &str, document: &str) -> Result<SyncDecision, Error> {
    runner().route(&SyncFunction::new("db/1", source), write(document)).await
}

fn rejected(status: u16, reason: &str) -> SyncDecision {
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
        // Sources that close their surroundings.
        ("1); function leak() {} (function (doc) {}", false),
        ("1]; [function (doc) {}", false),
        ("function (doc) {}); }); (function () { return (function (doc) {}", false),
        ("function (doc) {} /*", false),
        ("async function (doc) {}", false),
        ("async (doc) => requireAdmin()", false),
        ("function* (doc) { requireAdmin(); }", false),
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
    // `*` removes the other channels, and a lone surrogate is not a valid name.
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
        ("function () { return (async () => { throw {forbidden: 'nobody waits'}; })(); }", Err(EXCEPTION)),
        ("function f() { return f() + 1; }", Err(EXCEPTION)),
    ] {
        let answer = said(source, "{}").await;
        // The engine's stack is exhausted, which is not the document's fault.
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

async fn said_count(count: usize, what: &str) -> SyncDecision {
    let source = format!("function () {{ for (var i = 0; i < {count}; i++) {what}; }}");
    said(&source, "{}").await.expect("an answer")
}

#[tokio::test]
async fn time_and_memory_are_bounded() {
    let options = RunnerOptions { threads: 1, validation_max: Duration::from_millis(500), ..RunnerOptions::default() };
    let runner = Runner::new(options).expect("a thread");
    let slow = SyncFunction::new("db/1", "(() => { for (;;) {} })()");
    assert!(matches!(runner.check_sync(&slow).await, Err(Error::TimedOut(_) | Error::Busy)));
    let said =
        async |source: &str, document: &str| runner.route(&SyncFunction::new("db/1", source), write(document)).await;
    assert!(matches!(said("function () { for (;;) {} }", "{}").await, Err(Error::TimedOut(_) | Error::Busy)));
    assert!(matches!(
        said("function () { try { for (;;) {} } catch (e) {} }", "{}").await,
        Err(Error::TimedOut(_) | Error::Busy)
    ));
    let full = said("function () { var a = []; for (;;) a.push(new Array(1e5).fill(1)); }", "{}").await;
    assert!(matches!(full, Err(Error::OutOfResources | Error::TimedOut(_) | Error::Busy)), "{full:?}");
    let patterns = said("function () { /(a*)*b/.test('a'.repeat(40)); }", "{}").await;
    assert!(matches!(patterns, Err(Error::TimedOut(_) | Error::Busy) | Ok(Err(_) | Ok(_))), "{patterns:?}");
}

/// Requirements beyond those recorded ([`Writer`]).
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
    for writer in writers.map(Arc::new) {
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
            let list = json::to_string(&Value::Array(names.iter().map(|name| Value::String((*name).into())).collect()));
            for (member, is_met, reason) in [
                ("u", names.contains(&&*writer.name), WRONG_USER),
                ("r", names.iter().any(|name| writer.roles.contains(*name)), MISSING_ROLE),
                // As recorded, a writer with `*` has the channel `*`, not each channel.
                ("c", names.iter().any(|name| writer.channels.contains(*name)), MISSING_ACCESS),
            ] {
                let document = format!("{{\"{member}\":{list}}}");
                let asked = SyncWrite { writer: Some(Arc::clone(&writer)), ..write(&document) };
                let said = runner.route(&function, asked).await.expect("an answer");
                assert_eq!(
                    said.map(drop).map_err(|refusal| refusal.to_string()),
                    if is_met { Ok(()) } else { Err(reason.to_owned()) },
                    "{document} {writer:?}"
                );
                let admin = runner.route(&function, write(&document)).await.expect("an answer");
                assert_eq!(admin, Ok(Routing::default()));
            }
        }
    }
}

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

/// Leaves a value in every known place and throws the values found there.
const SPY: &str = include_str!("sync_spy.js");

#[tokio::test]
async fn nothing_of_a_call_is_left() {
    let runner = runner();
    // Without permanent definitions, the same engine serves the next call.
    let served: String = SPY.lines().filter(|line| !line.contains("look('defined'")).collect::<Vec<_>>().join("\n");
    // An arrow function has the `arguments` of its surroundings.
    let arrow = "(doc) => { const maker = arguments.callee; for (const of of [maker, maker.prototype]) {
        if (of.leak) channel(of.leak.replace(/ /g, '-')); of.leak = doc.secret; } channel('puts'); }";
    for source in [SPY, &served, arrow] {
        let function = SyncFunction::new("db/1", source);
        for name in ["a", "b", "a", "c"] {
            let document = format!("{{\"secret\":\"secret of {name}\"}}");
            let said = runner.route(&function, write(&document)).await.expect("an answer");
            assert_eq!(
                said.map(|routing| routing.channels.into_iter().collect::<Vec<_>>()),
                Ok(vec!["puts".to_owned()]),
                "{name}"
            );
        }
    }
    // A call cannot close the global object: later functions need new names.
    for close in ["preventExtensions", "seal", "freeze"] {
        let source = format!(
            "function (doc) {{ if (doc.secret) Object.{close}(globalThis); else for (i = 0; i < 1; i++) channel('c' + i); }}"
        );
        let function = SyncFunction::new("db/1", source);
        for (document, channels) in [(r#"{"secret":1}"#, vec![]), ("{}", vec!["c0".to_owned()])] {
            let said = runner.route(&function, write(document)).await.expect("an answer");
            assert_eq!(said.map(|routing| routing.channels.into_iter().collect::<Vec<_>>()), Ok(channels), "{close}");
        }
    }
    // The spy sees values of an earlier call; otherwise it would prove nothing.
    let twice = format!("function (doc) {{ var spy = {SPY}; spy(doc); spy(doc); }}");
    let said = runner.route(&SyncFunction::new("db/1", twice), write("{\"secret\":\"secret of a\"}")).await;
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

/// The writer that a function sees is new in each call, whatever its name.
#[tokio::test]
async fn who_writes_is_seen_however_it_is_named() {
    let runner = runner();
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let alice = Writer { name: "alice".into(), channels: set(&["!", "A"]), roles: set(&["r"]), ..Writer::default() };
    let alice = Some(Arc::new(alice));
    let told = "alice ! A r";
    let tell = |context: &str| {
        format!(
            "function () {{ var c = {context}; channel(c.name ? [c.name].concat(c.channels, Object.keys(c.roles)).join(' ') : 'nobody'); }}"
        )
    };
    for context in ["realUserCtx", r"realU\u0073erCtx", r"real\u{55}serCtx"] {
        let function = SyncFunction::new("db/1", tell(context));
        for _ in 0..2 {
            for (writer, told) in [(alice.clone(), told), (None, "nobody")] {
                let said = runner.route(&function, SyncWrite { writer, ..write("{}") }).await.expect("an answer");
                let said = said.map(|routing| routing.channels.into_iter().collect::<Vec<_>>());
                assert_eq!(said, Ok(vec![told.to_owned()]), "{context}");
            }
        }
    }
    let outer = "(() => { const c = arguments[0]; return () => { channel(c.name); c.name = 'changed'; c.channels.push('B'); }; })()";
    let function = SyncFunction::new("db/1", outer);
    for _ in 0..2 {
        let said =
            runner.route(&function, SyncWrite { writer: alice.clone(), ..write("{}") }).await.expect("an answer");
        assert_eq!(said.map(|routing| routing.channels.into_iter().collect::<Vec<_>>()), Ok(vec!["alice".to_owned()]));
    }
}

/// Arguments may be of any type, and may call the functions again.
#[tokio::test]
async fn games_with_what_is_said_are_heard_as_they_are_played() {
    let channels = |names: &[&str]| {
        Ok(Routing { channels: names.iter().map(|name| (*name).to_owned()).collect(), ..Routing::default() })
    };
    let (runner, plays) = (runner(), SyncFunction::new("db/1", "function (doc) { Function(doc.code).call(); }"));
    for (code, expected) in [
        // Getters that call the functions or throw.
        (
            "var a = ['A', 0, 'C']; Object.defineProperty(a, 1, { get: function () { channel('B', a[0]); return 'D'; } }); channel(a);",
            channels(&["A", "B", "C", "D"]),
        ),
        (
            "var a = ['A']; Object.defineProperty(a, 1, { get: function () { a.length = 0; return 'B'; }, configurable: true }); a[2] = 'C'; channel(a);",
            channels(&["A", "B"]),
        ),
        (
            "var a = ['A']; Object.defineProperty(a, 1, { get: function () { throw {forbidden: 'no'}; } }); channel(a);",
            rejected(403, "no"),
        ),
        (
            "var a = [0]; Object.defineProperty(a, 0, { get: function () { throw 1; } }); try { requireUser(a); } catch (e) { channel('caught'); }",
            channels(&["caught"]),
        ),
        (
            "var a = ['A', 0]; Object.defineProperty(a, 1, { get: function () { access('b', 'B'); channel('C'); return 7; } }); access([], a);",
            Ok(Routing {
                grants: [Grant { to: Grantee::User("b".into()), what: GrantedItem::Channel("B".into()) }].into(),
                ..channels(&["C"]).expect("one")
            }),
        ),
        // Arrays with getters, proxies of arrays, and objects like arrays.
        (
            "channel(new Proxy(['A', 'B'], {})); channel(Proxy.revocable([], {}).proxy, new Proxy({ 0: 'C', length: 1 }, {}));",
            channels(&["A", "B"]),
        ),
        (
            "channel(new Proxy(['A', 'B', 'C'], { get: function (t, n) { return n === 'length' ? '2' : n === '1' ? 'X' : t[n]; } }));",
            channels(&["A", "X"]),
        ),
        (
            "channel(new Proxy(['A'], { get: function (t, n) { if (n === 'length') return { valueOf: function () { channel('V'); return 1; } }; return t[n]; } }));",
            channels(&["A", "V"]),
        ),
        ("channel(new Proxy(['A'], { get: function (t, n) { return n === 'length' ? NaN : 'X'; } }));", channels(&[])),
        (
            "channel({ 0: 'A', length: 1 }, new Set(['B']), new String('C'), ['D', new String('E'), ['F'], null, undefined, 7, Symbol('s')]);",
            channels(&["D"]),
        ),
        (
            "class Names extends Array { get [0]() { return 'X'; } static get [Symbol.species]() { throw 1; } } channel(Names.from(['A', 'B']));",
            channels(&["A", "B"]),
        ),
        ("var a = [, 'B']; channel(a, [].concat(a, 'C'));", channels(&["B", "C"])),
        (
            "var p = Proxy.revocable(['A'], {}); p.revoke(); try { channel(p.proxy); } catch (e) { channel(e instanceof TypeError ? 'T' : 'N'); }",
            channels(&["T"]),
        ),
        // Ropes, long texts, and objects with `toString`.
        (
            "var a = 'a'.repeat(300), b = a + 'b'.repeat(300) + a; channel(b, b); channel(b.slice(0, 2));",
            channels(&[&format!("{0}{1}{0}", "a".repeat(300), "b".repeat(300)), "aa"]),
        ),
        ("channel('x'.repeat(1001));", Err(EXCEPTION)),
        ("channel('\\u00e9'.repeat(500), 'x'.repeat(1000));", channels(&[&"x".repeat(1000), &"\u{e9}".repeat(500)])),
        ("channel('\\u00e9'.repeat(501));", Err(EXCEPTION)),
        ("channel('x'.repeat(1e6));", Err(EXCEPTION)),
        ("access('x'.repeat(1e6), 'A');", Err(SyncRefusal::Failed("Error in JS sync function"))),
        ("role('a', 'role:' + 'x'.repeat(1e6));", Err(EXCEPTION)),
        (
            "expiry('6'.repeat(1e6)); expiry(NaN); expiry({}); reject(418, 'x'.repeat(1e6));",
            rejected(418, &"x".repeat(4000)),
        ),
        ("channel('a\\ud83db\\ud83d\\ude00');", channels(&["a\u{fffd}b\u{1f600}"])),
        (
            "channel = access = role = function () {}; var f = this.requireAdmin; delete this.channel; (0, eval)(\"var reject = 1; function f() {}\"); channel('A'); f();",
            channels(&["A"]),
        ),
        (
            "Array.isArray = function () { return true; }; Object.defineProperty(Array.prototype, 0, { value: 'X' });",
            Err(EXCEPTION),
        ),
        (
            "try { new channel('A'); } catch (e) {} channel.call(null, 'B'); channel.apply(7, ['C']); Reflect.apply(channel, channel, ['D']); [1].map(channel); ['E'].forEach(channel);",
            channels(&["B", "C", "D", "E"]),
        ),
        // Changes of globals affect only their own call.
        (
            "Object.defineProperty(globalThis, 'channel', { value: function () {} }); channel('B'); globalThis.__proto__.channel('A');",
            channels(&["A"]),
        ),
        ("channel('A'); Object.setPrototypeOf(globalThis, null);", channels(&["A"])),
        ("channel('A'); globalThis[7] = globalThis[Symbol.iterator] = 1;", channels(&["A"])),
        (
            "String.prototype.toString = Object.prototype.toJSON = function () { return 'X'; }; channel('A');",
            channels(&["A"]),
        ),
        (
            "channel(typeof isRejected + typeof refuse + typeof expire + typeof thrown + typeof collate);",
            channels(&["undefinedundefinedundefinedundefinedundefined"]),
        ),
        (
            "try { throw {get forbidden() { channel('late'); return 'no'; }}; } finally { channel('A'); }",
            rejected(403, "no"),
        ),
        (
            "throw {forbidden: {toString: function () { reject(409, 'inner'); return 'outer'; }}};",
            rejected(403, "outer"),
        ),
        ("reject({valueOf: function () { reject(409, 'inner'); return 418; }}, 'outer');", rejected(409, "inner")),
        (
            "function* g() { channel('A'); yield 1; channel('B'); } g().next(); Promise.resolve().then(function () { channel('C'); });",
            channels(&["A"]),
        ),
    ] {
        let mut quoted = Vec::new();
        json::write_string(code, &mut quoted);
        let document = format!("{{\"code\":{}}}", String::from_utf8(quoted).expect("UTF-8"));
        assert_eq!(runner.route(&plays, write(&document)).await, Ok(expected), "{code}");
    }
    for (source, expected) in [
        ("(() => { channel('made'); reject(NaN); return () => channel('called'); })()", channels(&["called", "made"])),
        ("(() => { let n = 0; return { 0: () => {} }[n]; })()", channels(&[])),
    ] {
        let answer = said(source, "{}").await;
        assert_eq!(answer, Ok(expected), "{source}");
    }
}

/// Returns a function, 100 documents, and its outcome for each of them alone.
fn several() -> (&'static str, Vec<String>, Vec<flatbed_javascript::Result<SyncDecision>>) {
    let source = "function (doc) {
        if (doc.leaves) Object.defineProperty(globalThis, 'left', { value: 1 });
        if (doc.full) { left = 'left'; channel('more'); throw new InternalError('out of memory'); }
        if (doc.no) throw {forbidden: doc.no};
        channel(typeof left + ' ' + doc.n);
    }";
    let of = |n: usize| {
        let channels =
            |names: String| Ok(Ok(Routing { channels: [format!("{names} {n}")].into(), ..Routing::default() }));
        match n % 50 {
            7 => (format!("{{\"n\":{n},\"no\":\"no {n}\"}}"), Ok(rejected(403, &format!("no {n}")))),
            11 => (format!("{{\"n\":{n},\"full\":true}}"), Err(Error::OutOfResources)),
            13 => (format!("{{\"n\":{n},\"leaves\":true}}"), channels("number".to_owned())),
            _ => (format!("{{\"n\":{n}}}"), channels("undefined".to_owned())),
        }
    };
    let (documents, expected) = (0..100).map(of).unzip();
    (source, documents, expected)
}

#[tokio::test]
async fn several_are_answered_in_their_order() {
    let (source, documents, expected) = several();
    let writes = documents.iter().map(|document| write(document)).collect();
    let function = SyncFunction::new("db/1", source);
    assert_eq!(runner().route_all(&function, writes).await, expected);
    assert_eq!(runner().route_all(&function, Vec::new()).await, []);
    let said = runner().route_all(&SyncFunction::new("db/1", "7"), vec![write("{}"), write("{}")]).await;
    assert!(said.len() == 2 && said.iter().all(|said| matches!(said, Err(Error::Compilation(_)))), "{said:?}");
}

/// A write that takes too long or leaves much memory behind affects only itself: the others have their time and a
/// fresh engine.
#[tokio::test]
async fn several_have_their_own_time_and_memory() {
    let validation_max = Duration::from_secs(5);
    // The limit fits the memory that one write leaves, but not that of two.
    let memory_max = 40 << 20;
    let runner = Runner::new(RunnerOptions { threads: 1, validation_max, memory_max, ..RunnerOptions::default() });
    let runner = runner.expect("a thread");
    let source = "function (doc) {
        while (doc.endless);
        if (doc.much) {
            var kept = new Uint8Array(2.4e7);
            Promise.resolve().then(function () { return kept; });
        }
        channel(doc.n);
    }";
    let function = SyncFunction::new("db/1", source);
    let documents = [
        r#"{"n":"0","much":true}"#,
        r#"{"n":"1","much":true}"#,
        r#"{"n":"2"}"#,
        r#"{"n":"3","endless":true}"#,
        r#"{"n":"4"}"#,
    ];
    let look = async || {
        let said = runner.route_all(&function, documents.map(write).into()).await;
        // A busy machine may leave no processor time to any of them.
        let late = said.iter().filter(|said| matches!(said, Err(Error::TimedOut(_) | Error::Busy))).count();
        (late <= 1 && said.get(3) != Some(&Err(Error::Busy))).then_some(said)
    };
    let said = until_some("the others have their time", look).await;
    let expected: Vec<_> = (0..5)
        .map(|n| match n {
            3 => Err(Error::TimedOut(validation_max)),
            n => Ok(Ok(Routing { channels: [n.to_string()].into(), ..Routing::default() })),
        })
        .collect();
    assert_eq!(said, expected);
}
