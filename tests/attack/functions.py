"""Functions of design documents as a stranger writes them: what they throw, return and are made of, and what they see."""

from asking import ANY, ask, bulk, checked, database, holds, segment, short, step, wrong

# A function may fail its own request; what fails in it is the server's 500 with a word for it, as in CouchDB. An endless one that is kept
# from the processor by other work gets 503.
OWN = frozenset({200, 201, 401, 403, 404, 500, 503})


def validates(server, path, body, within=6.0):
    """Makes a database that a function validates, and writes into it."""
    database(server, path[1:])
    ask(server, "PUT", path + "/_design/v", {"validate_doc_update": "function(doc, old, user, security) { %s }" % body})
    return ask(server, "PUT", path + "/x", {"n": 1}, timeout=within + 20)


def filters(server, path, body, query="", within=10.0):
    database(server, path[1:])
    bulk(server, path, [{"_id": f"d{n}", "n": n} for n in range(5)])
    ask(
        server, "PUT", path + "/_design/f",
        {"filters": {"f": "function(doc, req) { %s }" % body}, "views": {"v": {"map": "function(doc) { %s }" % body}}}
    )
    return ask(server, "GET", f"{path}/_changes?filter=f/f{query}", timeout=within + 20)


THROWN = (
    "null", "undefined", "true", "0", "NaN", "1n", "''", "'x'", "[]", "[1]", "{}", "Symbol('x')", "function(){}",
    "new Date()", "/x/", "new Error('x')", "new Error()", "Object.create(null)", "new Proxy({}, {})",
    "new Proxy({}, {get(){throw 1}})", "new Proxy({}, {has(){throw 1}, getOwnPropertyDescriptor(){throw 1}})",
    "new Proxy({}, {ownKeys(){for(;;);}})", "{get forbidden(){throw 1}}", "{get forbidden(){return this.forbidden}}",
    "{toString(){throw 1}, name: 1, stack: 1}", "{forbidden: 'no'}", "{unauthorized: 'no'}", "{forbidden: null}",
    "{forbidden: undefined}", "{forbidden: 1}", "{forbidden: 1n}", "{forbidden: Symbol()}", "{forbidden: {a: 1}}",
    "{forbidden: []}", "{forbidden: '\\ud800'}", "{forbidden: '\\u0000'}", "{forbidden: '\"}'}",
    "{forbidden: 'x', unauthorized: 'y'}", "{forbidden: {toJSON(){throw 1}}}",
    "{forbidden: {toJSON(){return undefined}}}", "{unauthorized: function(){}}", "{missing: 'x'}",
    "{compilation_error: 'x'}", "{'': ''}", "{ok: true}", "['ok', []]", "['error', 'forbidden', 'x']",
    "{'\\ud800': '\\udfff'}", "{a: {b: {c: [1, 2]}}}", "(function(){ var o = {}; o.forbidden = o; return o })()",
    "{forbidden: 'x'.repeat(1000000)}", "(function(){ var e = new Error('x'); e.name = 'forbidden'; return e })()",
    "(function(){ var e = new Error(); Object.defineProperty(e, 'message', {get(){throw e}}); return e })()",
)


def thrown(server, rng):
    for at, value in enumerate(THROWN):
        answer = validates(server, "/thrown", f"throw ({value})")
        yield f"throw {short(value)}", wrong(answer, {401, 403, 500, 503})
        rows = bulk(server, "/thrown", [{"_id": "a"}, {"_id": "_design/ok"}, {"_id": "b"}])
        yield f"throw {short(value)} in _bulk_docs", wrong(rows, 201)
        yield step(
            server,
            f"throw {short(value)} for a replica",
            "PUT",
            "/thrown/y?new_edits=false", {"_rev": "1-a"},
            statuses={401, 403, 500, 503}
        )
        yield f"throw {short(value)} of a filter", wrong(
            filters(server, "/thrown", f"throw ({value})"), {401, 403, 404, 500, 503}
        )
    for value in (
        "1", "null", "undefined", "'x'", "'0'", "NaN", "{}", "[]", "new Boolean(false)", "Symbol()", "1n", "document",
        "new Proxy({}, {get(){throw 1}})"
    ):
        yield f"return {value} of a filter", wrong(filters(server, "/thrown", f"return {value}"), {200, 500})
    for body in (
        "Array.prototype.toJSON = function(){return '11111111111'}; return true",
        "Object.prototype.toJSON = function(){return 1}", "Array.prototype.toJSON = function(){}",
        "Object.defineProperty(Array.prototype, '0', {set(){}}); return true",
        "Object.defineProperty(Array.prototype, 1, {get(){throw 1}, set(){throw 2}}); return true",
        "Object.prototype.__proto__ = null; return true", "Object.freeze(Object.prototype); return true",
        "globalThis.JSON = null; return true", "delete globalThis.Array; return true",
        "Array.prototype.push = null; Map.prototype.get = null; return true",
        "Function.prototype.call = Function.prototype.apply = null; return true", "eval = null; return true",
        "RegExp.prototype.exec = function(){for(;;);}; return true",
        "String.prototype.split = null; return require('x')", "this.filters.f = 'function(){throw 1}'; return true",
        "emit(1); emit = null; return true", "toJSON(1); sum([1]); isArray([]); log('x'.repeat(1e6)); return true",
        "return require('../../../etc/passwd')", "return require('filters/f')",
        "return require('__proto__/constructor')", "return require({toString(){for(;;);}})",
        "Error.prototype.toString = function(){for(;;);}; throw new Error('x')",
        "Symbol.prototype.toString = null; throw Symbol()",
        "Object.defineProperty(globalThis, 'undefined', {value: 1}); return true",
        "return typeof std + typeof os + typeof print + typeof scriptArgs"
    ):
        for turn in range(2):
            answer = filters(server, "/tampered", body) if not turn else ask(
                server, "GET", "/tampered/_changes?filter=_view&view=f/v", timeout=20
            )
            yield f"{short(body, 90)} {turn}", wrong(answer, {200, 404, 500, 503})
            yield "what passes is of the database", None if all(row.get("id") for row in answer.get("results", [])
                                                                ) else answer.text[:200]
    yield from checked(server, "thrown")


def texts_of_functions(server, rng):
    path = database(server, "texts")
    sources = (
        "", " ", "1", "null", "undefined", "x", "function", "function(", "function(){", "function(){}}",
        "function(){} function(){}", "(function(){})", "function(){};;; ", "()=>1", "async()=>1",
        "async function(){for(;;);}", "function*(){}", "class{}", "function(){return}//", "function(){return true}/*",
        "//\nfunction(){return true}", "<!--\nfunction(){}", "'use strict'; function(){}",
        "function(){})(), (function(){", "throw 1", "for(;;);", "(() => { for(;;); })()",
        "new Proxy(function(){}, {apply(){for(;;);}})", "Math.abs", "eval", "{}", "[]", "/x/", "function(){\u2028}",
        "\x00", "\ufeff function(){return true}", "function(){return '\ud800'}".encode("utf-8", "replace").decode(),
        "function(){" + "x;" * 100_000 + "}", "function(){" + "(" * 100_000 + "}",
        "function(){return " + "[" * 10_000 + "]" * 10_000 + "}", "function(){return " + "!" * 100_000 + "1}",
        "function(){" + "{" * 50_000 + "}" * 50_000 + "}", "function(){return `" + "${`" * 5_000 + "}",
        "function(){return /" + "(" * 30_000 + ")" * 30_000 + "/}", "function(){" + "if(1)" * 50_000 + "1}",
        "function(" + ",".join(f"a{n}" for n in range(70_000)) + "){}", 1, None, True, {}, [], ["function(){}"]
    )
    for at, source in enumerate(sources):
        written = ask(
            server, "PUT", f"{path}/_design/d{at}", {"filters": {"f": source}, "views": {"v": {"map": source}}}
        )
        yield f"text {short(repr(source), 40)}", wrong(written, {201, 400, 404, 500, 503})
        for query in (f"filter=d{at}/f", f"filter=_view&view=d{at}/v", f"filter=d{at}/f&feed=longpoll&timeout=50"):
            yield f"{query} {short(repr(source), 40)}", wrong(
                ask(server, "GET", f"{path}/_changes?{query}", timeout=30), {200, 404, 500, 503}, 12
            )
        validating = database(server, "texts-validate")
        ask(server, "PUT", validating + "/_design/v", {"validate_doc_update": source})
        yield f"validates {short(repr(source), 40)}", wrong(
            ask(server, "PUT", validating + "/x", {}, timeout=30), OWN, 10
        )
        yield step(
            server,
            f"is mended {short(repr(source), 40)}",
            "DELETE",
            f"{validating}/_design/v?rev={ask(server, 'GET', validating + '/_design/v').get('_rev')}",
            # One that was refused is not there.
            statuses={200, 400}
        )
        yield step(server, f"and writes again {short(repr(source), 40)}", "PUT", validating + "/z", {}, statuses={201})
    for name in (
        "", "/", "f", "f/", "/f", "f/f/f", "f//f", "x/f", "__proto__/f", "d0/__proto__", "d0/constructor",
        "d0/toString", "_design/d0", "../d0/f", "d0/f%00", "%ff/f", "d0/f?", "_doc_ids/x", "_x", "_selector/x",
        "d0%2Ff", "x" * 5_000 + "/f", "f/" + "x" * 50_000, "\u00e9/\u00e9".encode().decode("latin-1")
    ):
        for query in (
            f"filter={name if '%' in name else segment(name)}",
            f"filter=_view&view={name if '%' in name else segment(name)}"
        ):
            yield step(server, f"{short(query)}", "GET", f"{path}/_changes?{query}", statuses=ANY | {500})
    yield from checked(server, "texts")


def isolation(server, rng):
    """Nothing of one request or database is seen by the next one, also where design documents are equal."""
    source = {
        "filters": {
            "f": "function(doc, req) { globalThis.seen = globalThis.seen || []; var old = globalThis.seen.slice(); globalThis.seen.push(doc.secret || ''); if (req.query.tell) throw({seen: JSON.stringify(old)}); return true }"
        },
        "validate_doc_update": "function(doc) { globalThis.docs = globalThis.docs || []; if (doc.tell) throw({forbidden: JSON.stringify(globalThis.docs)}); globalThis.docs.push(doc.secret) }",
        "lib": {"state": "exports.kept = []"}, "views": {
            "v": {
                "map": "function(doc) { var kept = require('views/lib/state').kept; kept.push(doc.secret); emit(1) }"
            }, "lib": {"state": "exports.kept = []"},
            "tell": {"map": "function(doc) { throw({seen: JSON.stringify(require('views/lib/state').kept)}) }"}
        }
    }
    for n in range(3):
        one, two = database(server, f"tenant{n}"), database(server, f"other{n}")
        for path in (one, two):
            ask(server, "PUT", path + "/_design/f", source)
        secret = f"the secret of tenant {n}"
        for turn in range(4):
            ask(server, "PUT", f"{one}/s{turn}", {"secret": secret})
            ask(server, "GET", one + "/_changes?filter=f/f")
            ask(server, "GET", one + "/_changes?filter=_view&view=f/v")
            ask(server, "PUT", f"{two}/mine{turn}", {})
            for what, answer in (("filter", ask(server, "GET", two + "/_changes?filter=f/f&tell=1")),
                                 ("validation", ask(server, "PUT", two + "/t", {"tell": True})),
                                 ("modules", ask(server, "GET", two + "/_changes?filter=_view&view=f/tell"))):
                yield holds(f"{what} of another database, {n} {turn}", secret not in answer.text, answer.text[:200])
    path = database(server, "seen")
    ask(server, "PUT", path + "/_design/f", source)
    ask(server, "PUT", path + "/s", {"secret": "of a request"})
    for n in range(6):
        ask(server, "GET", path + "/_changes?filter=f/f")
        yield holds(
            f"a request sees nothing of the one before, {n}", "of a request"
            not in ask(server, "GET", path + "/_changes?filter=f/f&tell=1&limit=1&descending=true").text
        )
    req = database(server, "req")
    ask(server, "PUT", req + "/x", {})
    ask(
        server, "PUT", req + "/_design/f",
        {"filters": {"f": "function(doc, req) { throw({req: JSON.stringify(req)}) }"}}
    )
    told = ask(
        server, "GET", req + "/_changes?filter=f/f&q=%22%7D&__proto__=1", None,
        {"x-secret-not": "told", "cookie": "AuthSession=secret", "proxy-authorization": "secret", "x": '"}\\u0000'}
    )
    yield holds(
        "the request is told without credentials", "AuthSession" not in told.text and "Basic " not in told.text
        and "secret\"" not in told.text, told.text[:300]
    )


GROUPS = (thrown, texts_of_functions, isolation)
