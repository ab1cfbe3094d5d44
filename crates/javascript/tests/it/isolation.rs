//! No request sees state that functions of another request left behind, in another database with the same design
//! document or for another user of the same database.
#![allow(clippy::expect_used)]

use flatbed_javascript::{Caller, Design, Error, Runner, RunnerOptions, Validation};

/// Leaves its argument in every known place and throws the values found there.
const SPY: &str = r"function (doc, old, user) {
    var lib = require('lib/state');
    var self = Function('return this')();
    var found = [];
    var puts = [];
    var secret = 'secret of ' + user.name;
    function look(name, get, put) {
        var left;
        try { left = get(); } catch (e) { left = undefined; }
        if (typeof left === 'string' && left.indexOf('secret') === 0) found.push(name + ' ' + left);
        puts.push(put);
    }
    var me = arguments.callee;
    var realm = globalThis;
    look('global', function () { return leaked; }, function (s) { leaked = s; });
    look('this', function () { return this.leak; }.bind(this), function (s) { this.leak = s; }.bind(this));
    look('Function', function () { return self.leak; }, function (s) { self.leak = s; });
    look('globalThis', function () { return realm.other; }, function (s) { realm.other = s; });
    look('defined', function () { return realm.fixed; }, function (s) { Object.defineProperty(realm, 'fixed', {value: s}); });
    look('var', function () { return (0, eval)('vared'); }, function (s) { (0, eval)('var vared = ' + JSON.stringify(s)); });
    look('closure', lib.get, lib.put);
    look('exports', function () { return lib.leak; }, function (s) { lib.leak = s; });
    look('function', function () { return me.leak; }, function (s) { me.leak = s; });
    look('prototype', function () { return me.prototype.leak; }, function (s) { me.prototype.leak = s; });
    look('require', function () { return require.leak; }, function (s) { require.leak = s; });
    look('log', function () { return log.leak; }, function (s) { log.leak = s; });
    look('emit', function () { return emit('x'); }, function (s) { emit = function () { return s; }; });
    [Object, Array, String, Number, Boolean, Function, RegExp, Date, Promise, Map, Set, Symbol, Error].forEach(function (c) {
        look(c.name + '.prototype', function () { return c.prototype.leak; }, function (s) { c.prototype.leak = s; });
        look(c.name, function () { return c.leak; }, function (s) { c.leak = s; });
    });
    look('object', function () { return ({}).inherited; }, function (s) {
        Object.defineProperty(Object.prototype, 'inherited', {value: s, enumerable: false});
    });
    look('push', function () { return [].push.leak; }, function (s) {
        var push = Array.prototype.push;
        Array.prototype.push = function () { return push.apply(this, arguments); };
        Array.prototype.push.leak = s;
    });
    look('symbol', function () { return realm[Symbol.for('leak')]; }, function (s) { realm[Symbol.for('leak')] = s; });
    look('symbol object', function () { return Object(Symbol.for('leak')).leak; }, function (s) { Object.getPrototypeOf(Object(Symbol.for('leak'))).leak = s; });
    look('JSON', function () { return JSON.leak || JSON.stringify({}); }, function (s) { JSON.stringify = function () { return s; }; });
    look('parse', function () { return JSON.parse('{}').leak; }, function (s) { JSON.parse = function () { return {leak: s}; }; });
    look('Math', function () { return Math.random(); }, function (s) { Math.random = function () { return s; }; });
    look('now', function () { return Date.now(); }, function (s) { Date.now = function () { return s; }; });
    look('Date', function () { return new Date().toISOString(); }, function (s) { Date.prototype.toISOString = function () { return s; }; });
    look('trace', function () { return Error.prepareStackTrace && Error.prepareStackTrace(); }, function (s) { Error.prepareStackTrace = function () { return s; }; });
    look('limit', function () { return Error.stackTraceLimit; }, function (s) { Error.stackTraceLimit = s; });
    look('generator', function () { return realm.generator.next().value; }, function (s) {
        realm.generator = (function* () { while (true) yield s; })();
        realm.generator.next();
    });
    look('generator prototype', function () { return Object.getPrototypeOf(function* () {}).leak; }, function (s) { Object.getPrototypeOf(function* () {}).leak = s; });
    look('weak', function () { return realm.weak.deref().leak; }, function (s) { realm.kept = {leak: s}; realm.weak = new WeakRef(realm.kept); });
    look('finalized', function () { return realm.finalized; }, function (s) {
        new FinalizationRegistry(function () { realm.finalized = s; Object.prototype.finalized = s; }).register({}, s);
    });
    look('promise', function () { return realm.promised; }, function (s) {
        Promise.resolve().then(function () { realm.promised = s; Object.prototype.promised = s; });
        (async function () { await null; realm.promised = s; })();
    });
    look('proxy', function () { return Object.getPrototypeOf(realm).leak; }, function (s) {
        Object.setPrototypeOf(Object.getPrototypeOf(realm), new Proxy({}, {get: function () { return s; }}));
    });
    look('realm', function () { return Object.getPrototypeOf(realm).leak2; }, function (s) { Object.getPrototypeOf(realm).leak2 = s; });
    look('buffer', function () { return realm.buffer.leak; }, function (s) { realm.buffer = new SharedArrayBuffer(8); realm.buffer.leak = s; });
    puts.forEach(function (put) { try { put(secret); } catch (e) {} });
    if (found.length) throw({forbidden: found.join(', ')});
}";

fn quoted(source: &str) -> String {
    let mut out = Vec::new();
    flatbed_flatten::json::write_string(source, &mut out);
    String::from_utf8(out).expect("text")
}

fn spies(database: &str) -> Design {
    let state = "var kept; exports.get = function () { return kept; }; exports.put = function (s) { kept = s; };";
    let filter = format!("function (doc, req) {{ ({SPY}).call(this, doc, null, {{name: req.name}}); return true; }}");
    let map = format!("function (doc) {{ ({SPY}).call(this, doc, null, {{name: doc.name}}); emit(1); }}");
    let text = format!(
        r#"{{"_id":"_design/d","lib":{{"state":{}}},"validate_doc_update":{},"filters":{{"f":{}}},"views":{{"v":{{"map":{}}}}}}}"#,
        quoted(state),
        quoted(SPY),
        quoted(&filter),
        quoted(&map)
    );
    Design::new(database, text)
}

async fn validate(runner: &Runner, design: &Design, caller: Caller, name: &str) -> Result<(), Error> {
    let user = format!(r#"{{"name":"{name}","roles":[]}}"#);
    let write = Validation { document: "{}", old: "null", user: &user, security: "{}" };
    runner.validate(design, caller, &write).await
}

fn one_thread() -> Runner {
    Runner::new(RunnerOptions { threads: 1, ..crate::patient() }).expect("a thread")
}

/// The spy sees values of an earlier call; otherwise it would prove nothing.
#[tokio::test]
async fn a_caller_sees_what_it_has_left() {
    let (runner, design) = (one_thread(), spies("a/1"));
    let caller = runner.caller();
    assert_eq!(validate(&runner, &design, caller, "jan").await, Ok(()));
    let Err(Error::Forbidden(found)) = validate(&runner, &design, caller, "jan").await else { panic!("nothing left") };
    for place in [
        "global",
        "this",
        "Function",
        "globalThis",
        "defined",
        "var",
        "closure",
        "exports",
        "function",
        "prototype",
        "require",
        "log",
        "emit",
        "Object.prototype",
        "Array.prototype",
        "object",
        "push",
        "symbol",
        "JSON",
        "parse",
        "Math",
        "now",
        "Date",
        "trace",
        "generator",
        "weak",
        "proxy",
        "buffer",
    ] {
        assert!(found.split(", ").any(|found| found == format!("{place} secret of jan")), "{place} of {found}");
    }
}

#[tokio::test]
async fn no_request_sees_what_another_has_left() {
    let runner = one_thread();
    let (a, b, again) = (spies("a/1"), spies("b/2"), spies("a/3"));
    for design in [&a, &b, &a, &again, &b] {
        assert_eq!(validate(&runner, design, runner.caller(), "jan").await, Ok(()));
        assert_eq!(validate(&runner, design, runner.caller(), "eva").await, Ok(()));
        let caller = runner.caller();
        assert_eq!(runner.filter(design, caller, "f", &[b"{}"], r#"{"name":"jan"}"#).await, Ok(vec![true]));
        let caller = runner.caller();
        assert_eq!(runner.emits(design, caller, "v", &[br#"{"name":"eva"}"#]).await, Ok(vec![true]));
    }
    let caller = runner.caller();
    assert_eq!(validate(&runner, &a, caller, "jan").await, Ok(()));
    assert_eq!(validate(&runner, &b, caller, "jan").await, Ok(()));
}
