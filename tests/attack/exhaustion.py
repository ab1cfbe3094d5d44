"""Functions of design documents that take what they can get: depth, time, memory."""

import threading

from asking import ask, database, holds, short, wait_for, wrong
from functions import filters, validates
from server import MB

DEEP = {
    "map of iterators": "var it = [1].values(); for (var i = 0; i < 100000; i++) it = it.map(Math.abs); it.next()",
    "filter of iterators": "var it = [1].values(); for (var i = 0; i < 100000; i++) it = it.filter(Boolean); it.next()",
    "take of iterators": "var it = [1].values(); for (var i = 0; i < 100000; i++) it = it.take(5); it.next()",
    "drop of iterators": "var it = [1].values(); for (var i = 0; i < 100000; i++) it = it.drop(0); it.next()",
    "flatMap of iterators": "var it = [1].values(); for (var i = 0; i < 100000; i++) it = it.flatMap(function(x){ return [x] }); it.next()",
    "iterators spread": "var it = [1].values(); for (var i = 0; i < 100000; i++) it = it.map(Math.abs); [...it]",
    "iterators in for": "var it = [1].values(); for (var i = 0; i < 100000; i++) it = it.map(Math.abs); for (var x of it);",
    "concatenated iterators": "var it = [1]; for (var i = 0; i < 100000; i++) it = Iterator.concat(it); it.next()",
    "wrapped iterators": "var it = {next: Math.abs}; for (var i = 0; i < 100000; i++) it = Iterator.from({next: it.next.bind(it)}); it.next()",
    "zipped iterators": "var it = [1]; for (var i = 0; i < 50000; i++) it = Iterator.zip([it]); it.next()",
    "proxies": "var p = {}; for (var i = 0; i < 80000; i++) p = new Proxy(p, {}); p.x",
    "proxies of arrays": "var p = []; for (var i = 0; i < 80000; i++) p = new Proxy(p, {}); Array.isArray(p); JSON.stringify(p)",
    "extensible proxies": "var p = {}; for (var i = 0; i < 200000; i++) p = new Proxy(p, {}); Object.isExtensible(p)",
    "proxies' prototypes": "var p = {}; for (var i = 0; i < 200000; i++) p = new Proxy(p, {}); Object.setPrototypeOf(p, null)",
    "proxies' properties": "var p = {}; for (var i = 0; i < 200000; i++) p = new Proxy(p, {}); Object.getOwnPropertyDescriptor(p, 'x')",
    "bound functions": "var f = function(){}; for (var i = 0; i < 30000; i++) f = f.bind(null); f()",
    "bound constructors": "var f = function(){}; for (var i = 0; i < 30000; i++) f = f.bind(null); Reflect.construct(Array, [], f)",
    "instanceof bound": "var f = function(){}; for (var i = 0; i < 30000; i++) f = f.bind(null); ({}) instanceof f",
    "prototypes": "var o = {}; for (var i = 0; i < 300000; i++) o = Object.create(o); o.x",
    "classes": "var C = class {}; for (var i = 0; i < 20000; i++) C = class extends C {}; new C()",
    "generators": "function* g(x) { yield* x } var it = g([]); for (var i = 0; i < 50000; i++) it = g(it); it.next()",
    "arrays": "var a = []; for (var i = 0; i < 300000; i++) a = [a]; a.flat(Infinity)",
    "arrays as text": "var a = []; for (var i = 0; i < 300000; i++) a = [a]; String(a)",
    "arrays as JSON": "var a = []; for (var i = 0; i < 300000; i++) a = [a]; JSON.stringify(a)",
    "JSON in": "JSON.parse('['.repeat(1000000))", "calls": "(function f() { f() })()",
    "getters": "var o = { get x() { return this.x } }; o.x",
    "toString": "var o = { toString() { return '' + this } }; '' + o",
    "toJSON": "var o = { toJSON() { return JSON.stringify(this) } }; JSON.stringify(o)",
    "regular expressions": "new RegExp('('.repeat(100000))",
    "lookaheads": "new RegExp('(?='.repeat(100000) + ')'.repeat(100000))", "brackets": "eval('['.repeat(100000))",
    "causes": "var e = new Error('x'); for (var i = 0; i < 100000; i++) e = new Error('x', { cause: e }); throw e",
    "stack traces": "Error.stackTraceLimit = 1e9; (function f(n) { if (n) f(n - 1); else throw new Error('x') })(400)",
    "prepareStackTrace": "Error.prepareStackTrace = function() { throw new Error('y') }; new Error('x').stack",
    "ropes": "var s = 'a'; for (var i = 0; i < 1000000; i++) s = 'b' + s; s.charCodeAt(3)",
    "promises": "var p = Promise.resolve(); for (var i = 0; i < 100000; i++) p = p.then(Math.abs)",
    "async generators": "var a = null; for (var i = 0; i < 30000; i++) { let q = a; a = (async function*() { yield* q })(); a.next() }",
    "freed lists": "var o = null; for (var i = 0; i < 500000; i++) o = { o: o }",
    "freed closures": "var f = null; for (var i = 0; i < 300000; i++) f = (function(g) { return function() { return g } })(f)",
    "freed maps": "var m = new Map(); for (var i = 0; i < 200000; i++) m = new Map([[m, m]])",
}


def depth(server, rng):
    """Nothing that a function does ends the process."""
    for name, body in DEEP.items():
        if server.is_alive():
            answer = filters(server, "/deep", body + "; return true")
            if answer.status == 0:
                wait_for(lambda: not server.is_alive(), 3)
            yield f"deep: {name}", wrong(answer, {200, 500})
        else:
            yield f"deep: {name}", "the server has ended"


ENDLESS = (
    "for(;;);", "while(true) { try { for(;;); } catch (e) {} }", "try { for(;;); } finally { for(;;); }",
    "a: for(;;) { try { throw 1 } catch (e) { continue a } finally { continue a } }",
    "Array.prototype.forEach.call({length: 2**53 - 1}, Math.abs)",
    "Array.prototype.reduce.call({length: 2**53 - 1}, Math.max, 0)",
    "Array.prototype.find.call({length: 2**53 - 1}, Math.abs)",
    "var n = 0; Array.prototype.indexOf.call({get length() { return n++ ? 2**53 - 1 : 0 }}, 1)",
    "var n = 0; Array.prototype.reverse.call({get length() { return n++ ? 2**53 - 1 : 0 }})",
    "new Array(4294967295).forEach(Math.abs)", "new Set({[Symbol.iterator]() { return {next: Object} }})",
    "Iterator.from({next: Object}).forEach(Math.abs)", "Iterator.from({next: Object}).drop(Infinity).next()",
    "new Set([1]).union({size: 1e9, has: Boolean, keys() { return {next: Object} }})",
    "/(x+x+)+y/.test('x'.repeat(5000))", "'x'.repeat(1e6).replace(/(x+x+)+y/g, '')",
    "JSON.parse('[1,2]', function() { for(;;); })", "'a'.repeat(1e6).search('a'.repeat(3e5) + 'b')",
    "for(;;) new Date(2**40).toString()", "for(;;) Symbol.for('x' + Math.random())",
    "var a = (1n << 1000000n) - 1n; for(;;) a * a", "(2n ** 1000000n).toString()", "new Uint32Array(2e7).sort()",
    "Atomics.wait(new Int32Array(new SharedArrayBuffer(8)), 0, 0)", "(async function() { for(;;) await 1 })()",
    "'\\u1e9b\\u0323'.repeat(2e6).normalize('NFKD')", "doc.x = new Proxy({}, {get() { for(;;); }}); doc.x.y",
    "var l = []; for(;;) l.push(new ArrayBuffer(1e7))", "var l = []; for(;;) l.push('x'.repeat(1e6) + l.length)",
    "var o = {}, i = 0; for(;;) o['k' + i++] = 1", "for(;;) Promise.resolve().then(function() {})",
    "for(;;) new WeakRef({})",
)


def endless(server, rng):
    """A function that does not end fails its own writes within its time, and nobody else's."""
    other = database(server, "calm")
    ask(
        server, "PUT", other + "/_design/v",
        {"validate_doc_update": "function(doc) { if (doc.bad) throw({forbidden: 'bad'}) }"}
    )
    for at, body in enumerate(ENDLESS):
        answer = validates(server, "/endless", body)
        yield f"endless: {short(body)}", wrong(answer, {201, 500, 503}, 6)
        beside = ask(server, "PUT", f"{other}/x{at}", {})
        yield f"beside it: {short(body)}", wrong(beside, 201, 4)
    path = database(server, "many-endless")
    ask(server, "PUT", path + "/_design/v", {"validate_doc_update": "function() { for(;;); }"})
    asking = [threading.Thread(target=ask, args=(server, "PUT", f"{path}/e{n}", {})) for n in range(40)]
    for thread in asking:
        thread.start()
    for n in range(5):
        yield f"beside 40 at once, {n}", wrong(ask(server, "PUT", f"{other}/y{n}", {}), 201, 6)
    for thread in asking:
        thread.join(120)
    # A search that does not listen keeps its thread for minutes. These are more than threads may be given up.
    deaf = "new RegExp('a'.repeat(8000000) + 'b').test('a'.repeat(50000000))"
    started = [threading.Thread(target=validates, args=(server, f"/deaf{n}", f"{deaf}; // {n}\n")) for n in range(9)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(60)
    for n in range(3):
        answer = ask(server, "PUT", f"{other}/deaf{n}", {}, timeout=30)
        yield f"others write while nine searches do not listen, {n}", wrong(answer, 201, 5)


endless.longest_wait = 8.0


def memory(server, rng):
    """What functions keep and what they say is bounded, over all databases together."""
    peak, done = [0], threading.Event()

    def watch():
        while not done.wait(0.05):
            peak[0] = max(peak[0], server.resident())

    watching = threading.Thread(target=watch)
    watching.start()
    path, peak[0] = database(server, "wordy"), 0
    ask(
        server, "PUT", path + "/_design/v",
        {"validate_doc_update": "function(doc) { throw({forbidden: 'x'.repeat(500000)}) }"}
    )
    begun = server.resident()
    answer = ask(server, "POST", path + "/_bulk_docs", {"docs": [{"n": n} for n in range(1_000)]}, timeout=60)
    yield "1,000 refusals of 500 kB each", wrong(answer, {201, 413, 500, 503}, 30)
    yield holds(
        "memory of 1,000 refusals", peak[0] - begun < 200 * MB,
        f"{(peak[0] - begun) // MB} MB, the answer {len(answer.body) // MB} MB"
    )
    before = server.resident()
    for n in range(10):
        answer = filters(
            server, f"/keeps{n}",
            "globalThis.k = globalThis.k || []; for (var i = globalThis.k.length; i < 12; i++) globalThis.k.push(new Uint8Array(8e6).fill(i)); return true"
        )
        yield f"keeps 96 MB, {n}", wrong(answer, {200, 500})
    yield "memory of ten that keep", None if wait_for(
        lambda: server.resident() - before < 400 * MB, 5
    ) else f"{(server.resident() - before) // MB} MB kept"
    done.set()
    watching.join()


GROUPS = (depth, endless, memory)
