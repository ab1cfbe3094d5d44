//! Deeply nested values do not crash the process: each call ends with an answer.
//!
//! The calls run in a child process, which a stack overflow would kill.
#![allow(clippy::expect_used)]

use std::process::Command;
use std::time::Duration;

use flatbed_javascript::{Design, Runner, RunnerOptions};

/// The environment variable with the name of the case to run.
const ASKED: &str = "FLATBED_TEST_DEPTH";

/// Names and function bodies. `N(...)` repeats its argument 100,000 times; the code behind it recurses.
const DEEP: &[(&str, &str)] = &[
    ("helpers: map", "var v = [1].values(); N(v = v.map(Math.abs)); v.next()"),
    ("helpers: filter", "var v = [1].values(); N(v = v.filter(Boolean)); for (var x of v);"),
    ("helpers: take", "var v = [1].values(); N(v = v.take(5)); [...v]"),
    ("helpers: drop", "var v = [1].values(); N(v = v.drop(0)); Array.from(v)"),
    ("helpers: flatMap", "var v = [1].values(); N(v = v.flatMap(function (x) { return [x] })); new Set(v)"),
    (
        "helpers: of a generator",
        "var p = Object.getPrototypeOf(Object.getPrototypeOf(function* () {}.prototype)); var v = (function* () {})(); N(v = p.map.call(v, Math.abs)); v.next()",
    ),
    ("helpers: of a set", "var v = new Set([1]).values(); N(v = v.map(Math.abs)); var [x] = v"),
    ("helpers: chunks", "var v = [1].values(); N(v = v.chunks(1)); new Map(v)"),
    ("helpers: return", "var v = [1].values(); N(v = v.take(9)); v.return()"),
    ("helpers: yield*", "var v = [1].values(); N(v = v.map(Math.abs)); (function* () { yield* v })().next()"),
    ("Iterator.concat", "var v = [1]; N(v = Iterator.concat(v)); v.next()"),
    ("Iterator.from", "var v = {next: Math.abs}; N(v = Iterator.from({next: v.next.bind(v)})); v.next()"),
    (
        "Iterator.from, wrapped",
        "var v = {next: Math.abs}; N(v = Object.setPrototypeOf(Iterator.from({__proto__: null, next: v.next, r: v}), null)); v.next()",
    ),
    ("Iterator.zip", "var v = [1]; N(v = Iterator.zip([v])); v.next()"),
    (
        "the constructor of a prototype",
        "var C = Object.getPrototypeOf(Object.getPrototypeOf([].values())).constructor; var v = [1]; N(v = C.concat(v)); v.next()",
    ),
    ("generators", "function* g(x) { yield* x } var v = g([1]); N(v = g(v)); v.next()"),
    ("generators, returned", "function* g(x) { yield* x } var v = g([1]); N(v = g(v)); v.return(1)"),
    ("async generators", "async function* g(x) { yield* x } var v = g([1]); N(v = g(v)); v.next()"),
    ("async of sync", "async function* g(x) { for await (var y of x) yield y } var v = [1]; N(v = g(v)); v.next()"),
    ("proxies: get", "var v = {}; N(v = new Proxy(v, {})); v.x"),
    ("proxies: set", "var v = {}; N(v = new Proxy(v, {})); v.x = 1"),
    ("proxies: has", "var v = {}; N(v = new Proxy(v, {})); 'x' in v"),
    ("proxies: delete", "var v = {}; N(v = new Proxy(v, {})); delete v.x"),
    ("proxies: keys", "var v = {}; N(v = new Proxy(v, {})); Object.keys(v)"),
    ("proxies: define", "var v = {}; N(v = new Proxy(v, {})); Object.defineProperty(v, 'x', {value: 1})"),
    ("proxies: descriptor", "var v = {}; N(v = new Proxy(v, {})); Object.getOwnPropertyDescriptor(v, 'x')"),
    ("proxies: extensible", "var v = {}; N(v = new Proxy(v, {})); Object.isExtensible(v)"),
    ("proxies: prevented", "var v = {}; N(v = new Proxy(v, {})); Object.preventExtensions(v)"),
    ("proxies: prototype", "var v = {}; N(v = new Proxy(v, {})); Object.getPrototypeOf(v)"),
    ("proxies: prototype set", "var v = {}; N(v = new Proxy(v, {})); Object.setPrototypeOf(v, null)"),
    ("proxies: instanceof", "var v = {}; N(v = new Proxy(v, {})); v instanceof Array"),
    ("proxies: called", "var v = function () {}; N(v = new Proxy(v, {})); v()"),
    ("proxies: constructed", "var v = function () {}; N(v = new Proxy(v, {})); new v()"),
    ("proxies: new.target", "var v = function () {}; N(v = new Proxy(v, {})); Reflect.construct(Date, [], v)"),
    ("proxies: arrays", "var v = []; N(v = new Proxy(v, {})); Array.isArray(v)"),
    ("proxies: concat", "var v = []; N(v = new Proxy(v, {})); [].concat(v)"),
    ("proxies: toString", "var v = []; N(v = new Proxy(v, {})); Object.prototype.toString.call(v)"),
    ("proxies: JSON", "var v = []; N(v = new Proxy(v, {})); JSON.stringify(v)"),
    ("proxies: spread", "var v = []; N(v = new Proxy(v, {})); [...v]; ({...v})"),
    (
        "proxies: as prototypes",
        "var v = {}; N(v = Object.create(new Proxy(v, {}))); v.x; v.x = 1; 'x' in v; for (var k in v);",
    ),
    ("proxies: of iterators", "var v = [1]; N(v = new Proxy(v, {})); v[Symbol.iterator]().next()"),
    ("bound functions", "var v = function () {}; N(v = v.bind(null)); v()"),
    ("bound constructors", "var v = function () {}; N(v = v.bind(null)); new v()"),
    ("bound: instanceof", "var v = function () {}; N(v = v.bind(null)); ({}) instanceof v"),
    ("bound: new.target", "var v = function () {}; N(v = v.bind(null)); Reflect.construct(Array, [], v)"),
    ("prototypes", "var v = {}; N(v = Object.create(v)); v.x; v.x = 1; for (var k in v);"),
    (
        "prototypes: instanceof",
        "var v = {}; N(v = Object.create(v)); v instanceof Array; Object.prototype.isPrototypeOf(v)",
    ),
    ("arrays", "var v = []; N(v = [v]); v.flat(Infinity)"),
    ("arrays as text", "var v = []; N(v = [v]); String(v)"),
    ("arrays as JSON", "var v = []; N(v = [v]); JSON.stringify(v)"),
    ("objects as JSON", "var v = {}; N(v = {v: v}); JSON.stringify(v)"),
    ("JSON", "JSON.parse('['.repeat(1000000))"),
    ("JSON of objects", "JSON.parse('{\"a\":'.repeat(1000000))"),
    (
        "JSON, revived",
        "JSON.parse('['.repeat(3000) + ']'.repeat(3000), function r(k, v) { return JSON.parse('[1]', r) })",
    ),
    ("left ropes", "var v = 'ab'.repeat(9000); N(v = 'b' + v); v.charCodeAt(3); ({})[v]"),
    ("right ropes", "var v = 'ab'.repeat(9000); N(v = v + 'b'); v < v + 'c'; v === v + ''"),
    (
        "ropes of both",
        "var v = 'ab'.repeat(9000), w = 'cd'.repeat(9000); N((v = w + v, v.length > 1e6 && (v = w))); v.charCodeAt(9)",
    ),
    (
        "ropes that grow",
        "var v = 'ab'.repeat(9000); for (var i = 0; i < 13; i++) v = v + v; v.charCodeAt(9); v.indexOf('c')",
    ),
    ("calls", "(function f() { f() })()"),
    ("getters", "var v = { get x() { return this.x } }; v.x"),
    ("toString", "var v = { toString: function () { return '' + this } }; '' + v"),
    ("toPrimitive", "var v = { [Symbol.toPrimitive]: function () { return +this } }; +v"),
    ("sort", "[2, 1].sort(function f() { return [2, 1].sort(f) })"),
    ("replace", "'a'.replace(/a/, function f() { return 'a'.replace(/a/, f) })"),
    ("causes", "var v = null; N(v = new Error('x', { cause: v })); throw v"),
    ("aggregates", "var v = null; N(v = new AggregateError([v])); throw v"),
    ("classes", "var v = class {}; for (var i = 0; i < 20000; i++) v = class extends v {}; new v()"),
    ("promises", "var v = Promise.resolve(); N(v = v.then(Math.abs)); Promise.resolve(v)"),
    ("thenables", "var v = {then: function (f) { f(v) }}; (async function () { await v })()"),
    ("freed closures", "var v = null; N(v = (function (g) { return function () { return g } })(v)); v = null"),
    ("freed maps", "var v = null; N(v = new Map([[1, v]])); v = null"),
    (
        "freed weakly",
        "var w = new WeakMap(), k = {}; N((function () { var n = {}; w.set(k, n); k = n })()); w = k = null",
    ),
    ("parsed: arrays", "eval('['.repeat(100000) + ']'.repeat(100000))"),
    ("parsed: parentheses", "eval('('.repeat(100000))"),
    ("parsed: blocks", "eval('{'.repeat(100000) + '}'.repeat(100000))"),
    ("parsed: objects", "eval('v = ' + '{a:'.repeat(100000))"),
    ("parsed: patterns", "eval('var ' + '['.repeat(100000) + 'a' + ']'.repeat(100000) + ' = 1')"),
    ("parsed: patterns of objects", "eval('var ' + '{a:'.repeat(100000) + 'a' + '}'.repeat(100000) + ' = 1')"),
    ("parsed: assigned patterns", "eval('[' + '['.repeat(100000) + 'a' + ']'.repeat(100000) + '] = 1')"),
    ("parsed: arrows", "eval('a=>'.repeat(100000) + '1')"),
    ("parsed: functions", "eval('(function(){'.repeat(50000) + '})'.repeat(50000))"),
    ("parsed: classes", "eval('(class{x='.repeat(50000) + '})'.repeat(50000))"),
    ("parsed: unary", "eval('!'.repeat(100000) + '1')"),
    ("parsed: minus", "eval('- '.repeat(100000) + '1')"),
    ("parsed: typeof", "eval('typeof '.repeat(100000) + '1')"),
    ("parsed: new", "eval('new '.repeat(100000) + 'a')"),
    ("parsed: powers", "eval('1**'.repeat(100000) + '1')"),
    ("parsed: sums", "eval('1+'.repeat(100000) + '1')"),
    ("parsed: assignments", "eval('a='.repeat(100000) + '1')"),
    ("parsed: conditions", "eval('1?1:'.repeat(100000) + '1')"),
    ("parsed: nested conditions", "eval('1?'.repeat(100000) + '1')"),
    ("parsed: ands", "eval('1&&'.repeat(100000) + '1'); eval('1??'.repeat(100000) + '1')"),
    ("parsed: members", "var a = {}; a.a = a; eval('a' + '.a'.repeat(100000)); eval('a' + '?.a'.repeat(100000))"),
    ("parsed: calls", "function a() { return a } eval('a' + '()'.repeat(100000)); eval('a('.repeat(100000))"),
    ("parsed: templates", "eval('`${'.repeat(100000))"),
    ("parsed: ifs", "eval('if(1)'.repeat(100000) + '1')"),
    ("parsed: elses", "eval('if(1);else '.repeat(100000) + '1')"),
    ("parsed: loops", "eval('for(;;)'.repeat(100000) + '1')"),
    ("parsed: labels", "var s = ''; for (var i = 0; i < 100000; i++) s += 'a' + i + ':'; eval(s + '1')"),
    ("parsed: tries", "eval('try{'.repeat(50000) + '}finally{}'.repeat(50000))"),
    ("parsed: switches", "eval('switch(1){case 1:'.repeat(50000) + '}'.repeat(50000))"),
    ("parsed: withs", "eval('with(1)'.repeat(50000) + '1')"),
    ("expressions: groups", "new RegExp('('.repeat(100000))"),
    ("expressions: ungrouped", "new RegExp('(?:'.repeat(100000) + ')'.repeat(100000))"),
    ("expressions: lookaheads", "new RegExp('(?='.repeat(100000) + ')'.repeat(100000))"),
    ("expressions: alternatives", "new RegExp('(?:a|'.repeat(10000) + ')'.repeat(10000)).test('b')"),
    ("expressions: classes", "new RegExp('['.repeat(100000) + ']'.repeat(100000), 'v')"),
    ("expressions: negated classes", "new RegExp('[^'.repeat(100000) + ']'.repeat(100000), 'v')"),
    (
        "stack traces",
        "Error.stackTraceLimit = 1e9; (function f(n) { if (n) f(n - 1); else throw new Error('x') })(400)",
    ),
    ("prepareStackTrace", "Error.prepareStackTrace = function () { throw new Error('y') }; new Error('x').stack"),
];

#[test]
fn iterators_have_no_helpers() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let runner = Runner::new(RunnerOptions { threads: 1, ..crate::patient() }).expect("a thread");
    let bodies = [
        (
            "[[].values(), new Set().keys(), new Map().entries(), ''.matchAll(/x/g), ''[Symbol.iterator](), (function* () {})()].every(function (v) { return v.map === undefined && typeof v[Symbol.iterator] === 'function' })",
            true,
        ),
        (
            "typeof Iterator === 'undefined' && [...[1, 2].values()].length === 2 && Array.from(new Set([1]).keys())[0] === 1",
            true,
        ),
        ("Reflect.ownKeys(Object.getPrototypeOf(Object.getPrototypeOf([].values()))).length === 1", true),
        (
            "[1].map(function (x) { return x + 1 })[0] === 2 && [...(function* () { yield* [1, 2] })()].length === 2",
            true,
        ),
    ];
    for (body, expected) in bodies {
        let text = format!("function () {{ return {body} }}");
        let design = Design::new("db/1", format!("{{\"filters\":{{\"f\":\"{text}\"}}}}"));
        let answer = runtime.block_on(runner.filter(&design, runner.caller(), "f", &[b"{}"], "{}"));
        assert_eq!(answer, Ok(vec![expected]), "{body}");
    }
}

fn source(body: &str) -> String {
    let loops = body.replace("N(", "for (var i = 0; i < 100000; i++) (");
    format!("function (doc) {{ {loops}; return true }}").replace('\\', "\\\\").replace('"', "\\\"")
}

#[test]
fn nothing_overflows_the_stack() {
    let Ok(asked) = std::env::var(ASKED) else { return ask() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let time = Duration::from_secs(20);
    let options = RunnerOptions { threads: 1, batch_max: time, ..RunnerOptions::default() };
    let runner = Runner::new(options).expect("a thread");
    for (name, body) in DEEP.iter().filter(|(name, _)| asked.is_empty() || asked == *name) {
        println!("at {name}");
        let design = Design::new(*name, format!("{{\"filters\":{{\"f\":\"{}\"}}}}", source(body)));
        let answer = runtime.block_on(runner.filter(&design, runner.caller(), "f", &[b"{}"], "{}"));
        let mut told = format!("{answer:?}");
        told.truncate(120);
        println!("   {told}");
    }
    println!("lived");
}

fn ask() {
    let child = std::env::current_exe().expect("this program");
    let child = Command::new(child)
        .args(["--exact", "depth::nothing_overflows_the_stack", "--nocapture"])
        .env(ASKED, "")
        .output();
    let child = child.expect("a child process");
    let told = String::from_utf8_lossy(&child.stdout);
    let at = told.lines().rfind(|line| line.starts_with("at ")).unwrap_or_default();
    let error = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && told.contains("lived"), "{at}: {} {error}", child.status);
}
