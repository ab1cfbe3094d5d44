"""What functions of design documents answer: headers, types, status codes, bodies, chunks, without end; by shows, lists, updates and rewrites."""

import itertools
import json
import socket
import time
import urllib.parse

from asking import ask, bulk, short
from neighbours import SETUP, at_rest, beside, flood, judged, late, owned, tenants
from tools import at_once
from wire import Broken, Reader

NAMES = (
    "Set-Cookie", "set-cookie", "SET-COOKIE", "Set-Cookie2", "Set-Cookie ", " Set-Cookie", "Set-Cookie:", "Set-Cookie\t", "Set-Cookie\r\n", "X-A\r\nSet-Cookie", "X-A: 1\r\nSet-Cookie", "X-A\nSet-Cookie", "\u0130-X", "", ":", "X-\u00e9", "X-\u010d\u010aSet-Cookie",
    "Content-Security-Policy", "content-security-policy-report-only", "X-Content-Type-Options", "Cross-Origin-Resource-Policy", "Cross-Origin-Opener-Policy", "Access-Control-Allow-Origin", "access-control-allow-credentials", "Access-Control-Expose-Headers",
    "Strict-Transport-Security", "Public-Key-Pins", "Clear-Site-Data", "Refresh", "Service-Worker-Allowed", "SourceMap", "X-SourceMap", "Alt-Svc", "NEL", "Report-To", "Reporting-Endpoints", "Origin-Agent-Cluster", "Permissions-Policy", "Feature-Policy", "Document-Policy",
    "X-Frame-Options", "X-XSS-Protection", "X-DNS-Prefetch-Control", "X-Download-Options", "X-Permitted-Cross-Domain-Policies", "X-UA-Compatible", "X-Accel-Redirect", "x-accel-buffering", "X-Sendfile", "X-SENDFILE-TYPE", "X-LiteSpeed-Location", "X-LIGHTTPD-send-file", "X-Reproxy-URL",
    "X-Forwarded-For", "X-Forwarded-Host", "X-Auth-CouchDB-UserName", "X-CouchDB-Test", "X-Couch-Request-ID", "X-Couch-Id", "X-Couch-Update-NewRev", "X-Flatbed-Storage", "X-Auth-Token", "Server", "Date", "Via", "WWW-Authenticate", "Proxy-Authenticate", "Authentication-Info",
    "Content-Length", "content-length", "Transfer-Encoding", "Connection", "Keep-Alive", "Upgrade", "Trailer", "TE", "Content-Encoding", "Content-Range", "Accept-Ranges", "Location", "Link", "Content-Type", "Content-Disposition", "ETag", "Vary", "X-Mine", "Cache-Control", "__proto__", "constructor"
)
VALUES = (
    "x", "", " ", "a\r\nSet-Cookie: evil=1", "a\nSet-Cookie: evil=1", "a\rSet-Cookie: evil=1", "a\r\n\r\nHTTP/1.1 200 OK\r\nSet-Cookie: evil=1\r\n\r\n", "a\u010d\u010aSet-Cookie: evil=1", "a\u0000b", "\u00e9\u4e2d", "\u2028", "x" * 9_000, "x" * 40_000, "0", "5", "chunked", "close", "*", "text/html", "evil=1; Path=/",
    5, -1, 1.5, True, None, [], ["a", "b\r\nSet-Cookie: evil=1"], {}, {"a": 1}
)
# Headers that a function may not set: their values must be the server's, or none.
FORBIDDEN = {
    "set-cookie", "set-cookie2", "content-security-policy-report-only", "cross-origin-opener-policy", "access-control-allow-origin", "access-control-allow-credentials", "access-control-expose-headers", "strict-transport-security", "public-key-pins", "clear-site-data", "refresh",
    "service-worker-allowed", "sourcemap", "alt-svc", "nel", "report-to", "reporting-endpoints", "origin-agent-cluster", "permissions-policy", "feature-policy", "document-policy", "x-frame-options", "x-accel-redirect", "x-accel-buffering", "x-sendfile",
    "x-sendfile-type", "x-litespeed-location", "x-lighttpd-send-file", "x-reproxy-url", "x-forwarded-for", "x-forwarded-host", "x-auth-couchdb-username", "x-couchdb-test", "x-flatbed-storage", "x-auth-token", "via", "www-authenticate", "proxy-authenticate", "authentication-info", "keep-alive", "upgrade", "trailer", "te"
}
CODES = (0, -1, 1, 99, 100, 101, 102, 103, 150, 199, 200, 201, 204, 205, 206, 226, 299, 300, 301, 302, 304, 305, 400, 401, 403, 407, 408, 413, 421, 426, 429, 500, 503, 511, 599, 600, 999, 1000, 65_736, 2**31, 2**32 + 200, 2**53, 200.5, "200", "200 OK\r\nSet-Cookie: evil=1", "x", None, True, [200], {})
BODIES = ("", "x", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nSet-Cookie: evil=1\r\n\r\n", "\u0000", "\u00e9" * 100, "\ud800", "<script>1</script>", 5, None, True, [], ["a"], {}, {"a": 1})
GIVEN = "JSON.parse(req.query.r)"
DESIGN = {
    "shows": {"s": f"function(doc, req) {{ return {GIVEN}; }}"},
    "updates": {"u": f"function(doc, req) {{ return [null, {GIVEN}]; }}"},
    "lists": {"l": f"function(head, req) {{ start({GIVEN}); send('a'); return 'b'; }}"},
    "views": {"v": {"map": "function(doc) { emit(doc._id); }"}},
}
REWRITING = {**DESIGN, "rewrites": f"function(req) {{ return {GIVEN}; }}"}
PATHS = {"show": "/_design/d/_show/s", "list": "/_design/d/_list/l/v", "update": "/_design/d/_update/u", "rewrite": "/_design/r/_rewrite/x", "partly": "/_design/d/_show/s/doc"}


def prepare(server):
    who, path = tenants(server, "hugo", 20), owned(server, "hugo", "rendering")
    ask(who[0], "PUT", path + "/_design/d", DESIGN)
    ask(who[0], "PUT", path + "/_design/r", REWRITING)
    ask(who[0], "PUT", path + "/doc", {"n": 1})
    bulk(who[0], path, [{"_id": f"d{n}"} for n in range(20)])
    return who, path


def seen(by, method, target):
    """What does not hold of an answer as bytes, and of the request behind it on the same connection."""
    with by.connect(timeout=20) as sock:
        sock.sendall(by.head(method, target, 0 if method == "POST" else None) + by.head("GET", "/_up"))
        reader = Reader(sock, 20)
        try:
            answer = reader.answer(method == "HEAD")
        except Broken as error:
            return f"no HTTP: {error}", 0
        except (TimeoutError, socket.timeout):
            return "no answer", 0
        except ConnectionError:
            return "closed without an answer", 0
        names = [name for name, _ in answer.headers]
        for name, value in answer.headers:
            if name in FORBIDDEN or "evil=1" in value and name != "content-disposition" and ("\r" in value or "\n" in value):
                return f"{answer.status} has {name}: {value[:60]}", answer.status
        for name in ("content-length", "transfer-encoding", "content-type", "date", "server", "content-security-policy", "x-content-type-options", "cross-origin-resource-policy", "x-couch-request-id"):
            if names.count(name) > 1:
                return f"{answer.status} has {name} {names.count(name)} times", answer.status
        if "content-length" in names and "transfer-encoding" in names:
            return f"{answer.status} has a length and chunks", answer.status
        if answer.status < 400 or b'"error"' not in answer.body and method != "HEAD":
            for name, value in (("content-security-policy", "sandbox"), ("x-content-type-options", "nosniff"), ("cross-origin-resource-policy", "same-origin")):
                if answer.status != 304 and "path" not in target and answer.header(name) != value:
                    return f"{answer.status} has {name} {answer.header(name)!r}", answer.status
        if (answer.header("server") or "").find("CouchDB") != 0:
            return f"server is {answer.header('server')!r}", answer.status
        try:
            second = reader.answer()
            if second.status != 200 or b'"status":"ok"' not in second.body:
                return f"{answer.status}, and behind it {second.status} {second.body[:80]!r}", answer.status
        except ConnectionError:
            if answer.header("connection") != "close":
                return f"{answer.status}, and then closed without a word", answer.status
        except (Broken, ValueError, TimeoutError) as error:
            return f"{answer.status}, and behind it {error!r}", answer.status
    return None, answer.status


def matrix(who, path, cases):
    """Asks all of them, eight at a time; a step for each."""
    found = at_once(8, lambda at: [(name, *seen(who[at], method, path + target)) for name, method, target in cases[at::8]])
    for part in found:
        if isinstance(part, Exception):
            yield "the attack itself", repr(part)
            continue
        for name, wrong, _ in part:
            yield name, wrong


def to(kind, given):
    return PATHS[kind] + "?r=" + urllib.parse.quote(json.dumps(given))


def headers(server, rng):
    """Each header with each value, by each kind of function in turn."""
    who, path = prepare(server)
    cases = []
    for at, (name, value) in enumerate(itertools.product(NAMES, VALUES)):
        for kind in rng.sample(("show", "list", "update", "rewrite"), 2):
            method = "POST" if kind == "update" else "GET" if kind == "list" or rng.random() < 0.9 else "HEAD"
            given = {"headers": {name: value}, "body": "x"}
            if kind == "list":
                given.pop("body")
            target = to(kind, given)
            if len(target) < 60_000:
                cases.append((f"{kind}: {short(repr(name), 30)}: {short(repr(value), 40)}", method, target))
    yield from matrix(who, path, cases)
    yield from at_rest(server, "headers")


def answers(server, rng):
    """Status codes, bodies, members and types that no answer should have."""
    who, path = prepare(server)
    cases = []
    for kind, code in itertools.product(("show", "update", "rewrite", "list"), CODES):
        for body in (rng.choice(BODIES), BODIES[2]):
            given = {"code": code, "body": body, "headers": {"X-Mine": "x"}}
            if kind == "list":
                given.pop("body")
            cases.append((f"{kind}: {code!r} with {short(repr(body), 30)}", "POST" if kind == "update" else rng.choice(("GET", "GET", "HEAD")), to(kind, given)))
    for kind, (name, value) in itertools.product(("show", "update", "rewrite"), itertools.product(("body", "base64", "json", "stop", "headers", "code", "status", "forward", "x"), BODIES)):
        cases.append((f"{kind}: {name} = {short(repr(value), 30)}", "POST" if kind == "update" else "GET", to(kind, {name: value})))
    for kind, value in itertools.product(("show", "update", "rewrite", "list"), (None, 1, "x", [], [1], True, {}, "\ud800", {"a": {}}, {"path": "../../_all_dbs"}, {"path": "x", "method": "PUT", "body": "x"}, {"path": "\r\nX: y"}, {"path": "_design/r/_rewrite/x"}, {"path": "../../../_node/_local/_config"}, {"path": "//evil.example/"}, {"path": "http://evil.example/"}, {"path": "%2e%2e/%2e%2e/_users"}, {"path": "doc", "headers": {"X-Couch-Full-Commit": "x\r\ny"}}, {"path": "doc", "query": {"rev": "x", "a\r\n": "b"}})):
        cases.append((f"{kind}: {value!r}", "POST" if kind == "update" else "GET", to(kind, value)))
    kinds = ("text/html", "image/svg+xml", "application/xhtml+xml", "text/xml", "text/javascript", "application/x-shockwave-flash", "multipart/x-mixed-replace; boundary=b", "text/event-stream", "application/pdf", "x", "", "text/html\r\nSet-Cookie: evil=1", "text/html; charset=utf-7", "text/html, text/plain", "\u00e9")
    for kind, value in itertools.product(("show", "list", "update", "rewrite"), kinds):
        given = {"headers": {"Content-Type": value}, "body": "<script>alert(1)</script>"}
        if kind == "list":
            given.pop("body")
        cases.append((f"{kind}: type {value!r}", "POST" if kind == "update" else "GET", to(kind, given)))
    for accept in ("text/html", "*/*", "x", "", "a/b," * 900, "text/html;q=x", "text/html\u00e9"):
        for query in ("", "?format=html", "?format=x", "?format=%0d%0a", "?format=__proto__"):
            cases.append((f"format {query} {short(accept, 20)}", "GET", "/_design/d/_show/s/doc" + (query + "&r=" if query else "?r=") + "%22x%22"))
    yield from matrix(who, path, cases)
    yield from at_rest(server, "answers")


ENDLESS = {
    "lists": {
        "sends": "function() { start({headers: {'Content-Type': 'text/plain'}}); for (;;) send('x'.repeat(1000)); }", "chunks": "function() { for (;;) send('x'); }", "rows": "function() { var row; while (row = getRow()) send('x'.repeat(900000)); }",
        "starts": "function() { for (;;) start({headers: {'X-A': 'b'}}); }", "large": "function() { return 'x'.repeat(100000000); }", "slow": "function() { var row; while (row = getRow()) { var t = Date.now(); while (Date.now() - t < 100); send('x'); } }", "nothing": "function() { for (;;) getRow(); }"
    },
    "shows": {"large": "function() { return 'x'.repeat(15000000); }", "too large": "function() { return 'x'.repeat(60000000); }", "json": "function() { return {json: new Array(1000000).fill('x')}; }", "base64": "function() { return {base64: 'QUFB'.repeat(3000000)}; }", "headers": "function() { var h = {}; for (var i = 0; i < 100000; i++) h['X-' + i] = 'y'; return {headers: h, body: 'x'}; }"},
    "updates": {"large": "function() { return [{_id: 'u', x: 'y'.repeat(7000000)}, 'x'.repeat(15000000)]; }", "many": "function(doc, req) { return [{_id: req.uuid}, 'x']; }"},
    "rewrites": "function(req) { return {path: '_rewrite/' + Math.random(), query: {a: 'x'.repeat(100000)}, method: 'GET'}; }",
    "views": {"v": {"map": "function(doc) { for (var i = 0; i < 100; i++) emit(i, doc._id); }"}},
}


def endless(server, rng):
    """Outputs without end, of clients who read, read slowly, and leave."""
    who = tenants(server, "hugo", 100)
    paths = [owned(server, "hugo", f"output{at}") for at in range(20)]
    for path in paths:
        bulk(who[0], path, [{"_id": f"d{n}"} for n in range(60)])
        ask(who[0], "PUT", path + "/_design/d", ENDLESS)
    forms = [("GET", f"/_design/d/_list/{name}/v") for name in ENDLESS["lists"]] + [("GET", f"/_design/d/_show/{name}") for name in ENDLESS["shows"]] + [("POST", f"/_design/d/_update/{name}") for name in ENDLESS["updates"]] + [("GET", "/_design/d/_rewrite/x")]

    def work(rng, at):
        by, (method, form) = who[rng.randrange(100)], rng.choice(forms)
        size, pause, most = rng.choice(((1 << 16, 0, 10**8), (1 << 16, 0, 200_000), (500, 0.05, 10**8), (0, 1, 1)))
        end, read, first = time.monotonic() + rng.choice((1, 8)), 0, b""
        with by.connect(timeout=8, receive_buffer=4_096 if size < 1_000 else None) as sock:
            sock.sendall(by.head(method, rng.choice(paths) + form, 0 if method == "POST" else None))
            while time.monotonic() < end and read < most:
                if size:
                    sock.settimeout(max(0.05, end - time.monotonic()))
                    try:
                        data = sock.recv(size)
                    except (TimeoutError, socket.timeout):
                        break
                    if not data:
                        break
                    first = first or data[:12]
                    read += len(data)
                time.sleep(pause)
        return first[9:12].decode("latin-1") or "left"

    for workers in (20, 100):
        yield from beside(server, f"{workers} readers of endless outputs", late(lambda: judged("outputs", flood(workers, 20, work, rng.random()), lambda result: "it hung" if result == "hung" else None)))
    for path in paths:
        ask(server, "DELETE", path)
    yield from at_rest(server, "endless outputs")


for group in (headers, answers, endless):
    group.longest_wait = 30

GROUPS = (headers, answers, endless)
