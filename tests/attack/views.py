"""Views: every parameter with every value, maps and reduces as a stranger writes them, and readers that do not read."""

import json
import threading
import time

from asking import ask, bulk, checked, database, holds, segment, short, step, wait_for, wrong
from exhaustion import DEEP, ENDLESS
from functions import THROWN
from tools import Peak
from server import MB

PARAMETERS = (
    "key", "keys", "startkey", "start_key", "endkey", "end_key", "startkey_docid", "start_key_doc_id", "endkey_docid",
    "end_key_doc_id", "limit", "skip", "descending", "group", "group_level", "reduce", "include_docs", "conflicts",
    "attachments", "att_encoding_info", "inclusive_end", "update_seq", "sorted", "stale", "update", "stable", "queries",
    "partition", "callback", "list", "x",
)
VALUES = (
    "", "null", "true", "false", "0", "1", "-1", "1.5", "1e400", "-1e400", "99999999999999999999999", '""', '"x"',
    '"\\u0000"', '"\\ud800"', "[]", "[[]]", "[1,null,{}]", "{}", '{"a":1}', '{"a":1,"a":2}', "x", "ok",
    "update_after", "lazy", "%00", "%ff", "\"", "[" * 100 + "]" * 100, "[" * 5_000, '"' + "x" * 20_000 + '"',
    "[" + ",".join("1" for _ in range(5_000)) + "]",
)


def view(server, name, map, reduce=None, path=None, documents=5, **more):
    """A database with documents and one view; the view's path."""
    if path is None:
        path = database(server, name)
        bulk(server, path, [{"_id": f"d{n:03}", "n": n, "text": "x" * 50} for n in range(documents)])
    made = {"map": map, **({"reduce": reduce} if reduce else {})}
    ask(server, "PUT", f"{path}/_design/v", {"views": {"v": made}, **more})
    return f"{path}/_design/v/_view/v"


def parameters(server, rng):
    """A wrong parameter is the client's fault, and never more."""
    plain = view(server, "plain", "function(doc) { emit(doc.n, doc.text); emit([doc.n % 2, doc.n], {_id: 'd000'}) }")
    reduced = view(server, "reduced", "function(doc) { emit([doc.n % 2, doc.n], doc.n) }", "_stats")
    statuses = {200, 304, 400}
    for path in (plain, reduced):
        for name in PARAMETERS:
            for value in VALUES:
                if rng.random() < 0.35:
                    query = f"{name}={value if value.startswith('%') else segment(value)}"
                    yield step(server, f"{short(query)}", "GET", f"{path}?{query}", statuses=statuses | {414})
                if rng.random() < 0.35 and value and not value.startswith("%"):
                    body = '{"%s":%s}' % (name, value)
                    yield step(server, f"posted {short(body)}", "POST", path, body, statuses=statuses)
                if rng.random() < 0.2:
                    query = "&".join(
                        f"{rng.choice(PARAMETERS)}={segment(rng.choice(VALUES[:20]))}" for _ in range(rng.randrange(2, 6))
                    )
                    yield step(server, short(query), "GET", f"{path}?{query}", statuses=statuses)
        for body in (
            "", "null", "[]", "1", '{"queries":[]}', '{"queries":{}}', '{"queries":[null]}', '{"queries":[[]]}',
            '{"queries":[{"queries":[]}]}', '{"queries":[{"keys":"x"}]}', '{"queries":[%s]}' % ",".join(["{}"] * 5_000),
            '{"keys":[%s]}' % ",".join(str(n) for n in range(100_000)), '{"keys":[%s]}' % ("[" * 300),
            '{"keys":[%s]}' % ",".join("[%s]" % ('"x"' * 1) for _ in range(50_000)),
        ):
            for where in (path, path + "/queries"):
                yield step(server, f"{where[:10]} {short(body)}", "POST", where, body, statuses=statuses | {413}, within=20)
    base = plain.rsplit("/_view", 1)[0]
    for rest in (
        "_view", "_view/", "_view/v/", "_view/v/x", "_view/%00", "_view/%ff", "_view/__proto__", "_view/constructor",
        "_view/" + "x" * 5_000, "_info", "_info/x", "_view/v%2Fqueries", "_list/v/v", "_view/v/queries",
    ):
        for method in ("GET", "POST", "PUT", "DELETE", "HEAD"):
            body = "{}" if method in ("POST", "PUT") else None
            yield step(server, f"{method} {short(rest)}", method, f"{base}/{rest}", body)
    for path in ("/plain/_view_cleanup", "/plain/_compact/v", "/plain/_compact/", "/plain/_compact/x", "/plain/_compact/%ff"):
        for method in ("GET", "POST"):
            yield step(server, f"{method} {path}", method, path, "{}" if method == "POST" else None)
    yield from checked(server, "plain", "reduced")


ROWS = {
    "nothing": "",
    "no arguments": "emit()",
    "undefined": "emit(undefined, undefined)",
    "a function": "emit(function(){}, emit)",
    "symbols": "emit(Symbol('x'), 1)",
    "NaN": "emit(NaN, -Infinity)",
    "minus zero": "emit(-0, -0)",
    "half a pair": "emit('\\ud800', '\\udfff')",
    "zeros": "emit('\\u0000', '\\u0000\\u0000'); emit(['\\u0000', ''], 0)",
    "deep": "var k = 1; for (var i = 0; i < 900; i++) k = [k]; emit(k, k)",
    "too deep": "var k = 1; for (var i = 0; i < 100000; i++) k = [k]; emit(k, k)",
    "a circle": "var k = []; k.push(k); emit(k, 1)",
    "toJSON": "emit({toJSON() { throw 1 }}, 1)",
    "toJSON of all": "Object.prototype.toJSON = function() { return emit }; emit({}, {})",
    "a key of 1 MB": "emit('k'.repeat(1000000), doc._id)",
    "a key of 12 kB of one letter": "emit('k'.repeat(12000) + doc._id, 1)",
    "a key of 50,000 elements": "emit(new Array(50000).fill(1), 1)",
    "a value of 7 MB": "emit(1, 'v'.repeat(7000000))",
    "a value of 20 MB": "emit(1, 'v'.repeat(20000000))",
    "20,000 rows": "for (var i = 0; i < 20000; i++) emit(i, i)",
    "200,000 rows": "for (var i = 0; i < 200000; i++) emit(i, i)",
    "rows without end": "for (;;) emit(1, 1)",
    "large rows without end": "for (;;) emit('x'.repeat(100000), 1)",
    "the same row": "for (var i = 0; i < 5000; i++) emit(null, null)",
    "emit of emit": "emit(emit(1, 1), emit(2, 2))",
    "a saved emit": "globalThis.e = globalThis.e || emit; e(1, 1)",
    "no emit": "emit = null; emit(1)",
    "a changed document": "doc._id = 'd001'; doc._rev = null; delete doc.n; emit(doc._id, doc)",
    "another's id": "emit(1, {_id: '_design/v'}); emit(1, {_id: '../x'}); emit(1, {_id: null, _rev: {}})",
    "log": "for (var i = 0; i < 100000; i++) log('x'.repeat(1000)); emit(1)",
    "frozen": "Object.freeze(Array.prototype); Array.prototype.push = null; emit(1, [1])",
}

REDUCES = (
    "function(){}", "function(){ throw {forbidden: 1} }", "function(){ for(;;); }", "function(k, v, r){ return v }",
    "function(k, v, r){ return 'x'.repeat(1000000) }", "function(k, v, r){ return k }", "function(){ return undefined }",
    "function(){ return function(){} }", "function(k, v, r){ return r ? null.x : 1 }",
    "function(k, v){ v.length = 0; k.push(k); return k }", "function(k, v){ return [v, v] }", "_sum", "_count", "_stats",
    "_approx_count_distinct", "_top_5", "_bottom_3", "_first", "_last", "_top_101", "_top_0", "_top_-1", "_top_x", "_sumx", "_nothing", "_", "",
    " _sum", "function", "1", "x" * 100_000,
)


def definitions(server, rng):
    """Whatever functions emit and return, rows come or an error that says why; nothing else waits."""
    # Three documents, each for as long as a call may take.
    within = 20.0
    statuses = {200, 400, 404, 500, 503}
    for name, body in ROWS.items():
        path = view(server, "rows", "function(doc) { %s }" % body, documents=3)
        for query in ("", "?limit=1", "?include_docs=true&descending=true", '?startkey="k"&endkey={}', "?update=false"):
            query = query.replace('"', "%22").replace("{", "%7B").replace("}", "%7D")
            answer = ask(server, "GET", path + query, timeout=within + 20)
            yield f"rows: {name} {query}", wrong(answer, statuses, within)
        ask(server, "PUT", "/rows/d900", {"n": 900})
        yield step(server, f"rows after another: {name}", "GET", path + "?limit=1", statuses=statuses, within=within)
        yield from checked(server, "rows")
    for value in THROWN:
        path = view(server, "throws", f"function(doc) {{ emit(doc._id); if (doc.n == 1) throw ({value}) }}", documents=3)
        yield step(server, f"a map throws {short(value)}", "GET", path, statuses=statuses, within=within)
    for source in REDUCES:
        path = view(server, "reduces", "function(doc) { emit([doc.n % 3, doc.n], doc.n) }", source, documents=300)
        for query in ("", "?reduce=false&limit=2", "?group=true", "?group_level=1", "?startkey=[1]&endkey=[2]", "?skip=1&group=true"):
            answer = ask(server, "GET", path + query.replace("[", "%5B").replace("]", "%5D"), timeout=within + 20)
            yield f"reduce {short(source)} {query}", wrong(answer, statuses, within)
    path = database(server, "shapes")
    for at, body in enumerate((
        '{"views":null}', '{"views":[]}', '{"views":{"v":null}}', '{"views":{"v":{}}}', '{"views":{"v":{"map":1}}}',
        '{"views":{"v":{"map":null,"reduce":"_sum"}}}', '{"views":{"v":{"map":"function(doc){emit(1)}","reduce":1}}}',
        '{"views":{"":{"map":"function(doc){emit(1)}"}}}', '{"views":{"lib":"x"}}', '{"views":{"lib":{"a":{"b":1}}}}',
        '{"language":"erlang","views":{"v":{"map":"x"}}}', '{"language":1,"views":{"v":{"map":"x"}}}',
        '{"language":"query","views":{"v":{"map":{"fields":{"a":"asc"}}}}}', '{"language":"query","views":{"v":{"map":"x"}}}',
        '{"views":{%s}}' % ",".join('"v%d":{"map":"function(doc){emit(%d)}"}' % (n, n) for n in range(300)),
        '{"options":1,"views":{"v":{"map":"function(doc){emit(1)}"}}}',
        '{"options":{"include_design":1,"local_seq":"x","partitioned":[]},"views":{"v":{"map":"function(doc){emit(1)}"}}}',
        '{"autoupdate":0,"views":{"v":{"map":"function(doc){emit(1)}"}}}',
    )):
        name = f"{path}/_design/s{at}"
        yield step(server, f"shape {short(body)}", "PUT", name, body, statuses={201, 400, 403, 500})
        for view_name in ("v", "v7", "lib", "%20"):
            yield step(server, f"view of shape {short(body)}", "GET", f"{name}/_view/{view_name}", statuses=statuses, within=within)
        yield step(server, f"info of shape {short(body)}", "GET", f"{name}/_info", statuses={200, 400, 404, 500})


definitions.longest_wait = 6.0


def neighbours(server, rng):
    """Maps of one database that never return do not keep another's views waiting."""
    good = view(server, "good", "function(doc) { emit(doc.n, null) }", "_count")
    yield step(server, "it is built", "GET", good, statuses={200})
    ending, worst, failures = threading.Event(), [0.0], []

    def others():
        n = 1_000
        while not ending.wait(0.05):
            n += 1
            ask(server, "PUT", f"/good/d{n}", {"n": n})
            answer = ask(server, "GET", good, timeout=30)
            worst[0] = max(worst[0], answer.seconds)
            if answer.status != 200:
                failures.append(answer.text[:200])

    watching = threading.Thread(target=others)
    watching.start()
    for at in range(6):
        path = database(server, f"bad{at}")
        bulk(server, path, [{"n": n} for n in range(50)])
        body = rng.choice(ENDLESS)
        for n in range(3):
            ask(server, "PUT", f"{path}/_design/v{n}", {"views": {"v": {"map": "function(doc) { %s }" % body, "reduce": "function() { %s }" % body}}})
    asking = [
        threading.Thread(target=lambda at=at, n=n: ask(server, "GET", f"/bad{at}/_design/v{n}/_view/v", timeout=20))
        for at in range(6) for n in range(3)
    ]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    ending.set()
    watching.join()
    yield holds("another database's view is answered", not failures, str(failures[:2]))
    yield holds("within seconds", worst[0] < 5, f"{worst[0]:.1f} s")
    for at in range(6):
        ask(server, "DELETE", f"/bad{at}")
    yield holds("it ends with the databases", wait_for(lambda: server.is_idle(5), 60), "the processor is busy with what is gone")
    deep = rng.sample(sorted(DEEP), 8)
    for name in deep:
        path = view(server, "deep", "function(doc) { %s; emit(1) }" % DEEP[name], "function() { %s; return 1 }" % DEEP[name])
        yield step(server, f"deep: {name}", "GET", path, statuses={200, 500, 503}, within=20)


neighbours.longest_wait = 6.0


def to_the_end(server, path):
    """How many bytes the answer has, and whether it ends as it should."""
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    if server.authorization:
        head += f"Authorization: {server.authorization}\r\n"
    read, last = 0, b""
    with server.connect() as sock:
        sock.settimeout(60)
        sock.sendall((head + "\r\n").encode())
        while part := sock.recv(1 << 16):
            read, last = read + len(part), (last + part)[-5:]
    return read, last == b"0\r\n\r\n"


def readers(server, rng):
    """Readers that do not read, or go away: memory is flat, and nothing goes on for nobody."""
    path = view(server, "large", "function(doc) { for (var i = 0; i < 200; i++) emit([doc.n, i], doc.text) }", "_count", documents=1_000)
    yield step(server, "it is built", "GET", path, statuses={200}, within=60)
    # 200,000 rows with documents, page by page, to the end.
    with Peak(server) as peak:
        read, end = to_the_end(server, f"{path}?reduce=false&include_docs=true")
    yield holds("a view is read to its end", read > 40 * MB and end, f"{read // MB} MB, and then {'an end' if end else 'none'}")
    yield "memory of a view that is read to its end", peak.complaint(120 * MB)
    with Peak(server) as peak:
        sockets = []
        for n in range(150):
            sock = server.connect()
            query = rng.choice(("reduce=false&include_docs=true", "reduce=false&descending=true", "group=true", "reduce=false"))
            head = f"GET {path}?{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            if server.authorization:
                head += f"Authorization: {server.authorization}\r\n"
            sock.sendall((head + "\r\n").encode())
            sockets.append(sock)
        time.sleep(5)
        up = ask(server, "GET", path + "?reduce=true", timeout=10)
        yield "a view beside 150 that are not read", wrong(up, 200, 3)
        for sock in sockets:
            sock.close()
    yield "memory of answers that are not read", peak.complaint(500 * MB)
    yield holds("they end with their clients", server.is_idle(15), "the processor is busy with nobody waiting")
    many = "&".join(["keys=" + segment(json.dumps([[n % 1_000, n % 200] for n in range(3_000)])), "reduce=false"])
    # Refused by the HTTP library.
    yield holds("3,000 keys in a URL", ask(server, "GET", f"{path}?{many}").status in (414, 431))
    keys = {"keys": [[n % 1_000, n % 200] for n in range(200_000)]}
    with Peak(server) as peak:
        yield "200,000 keys", wrong(ask(server, "POST", path + "?reduce=false&include_docs=true", keys, timeout=60), {200, 400, 413}, 60)
        yield "200,000 groups", wrong(ask(server, "POST", path + "?group=true", keys, timeout=90), {200, 400, 413}, 90)
    yield "memory of many keys", peak.complaint(700 * MB)
    for query in ("skip=199990&reduce=false", "group_level=1", "group_level=2&limit=5&skip=100000", "group=true&descending=true&limit=3"):
        yield step(server, query, "GET", f"{path}?{query}", statuses={200}, within=20)
    yield from checked(server, "large")


GROUPS = (parameters, definitions, neighbours, readers)
