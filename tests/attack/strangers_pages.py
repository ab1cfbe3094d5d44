"""What a page of another origin does by the cookie of whoever looks at it, at each route that changes something; and the console's own pages."""

import itertools
import json

from asking import ask, database, equal, holds, short
from neighbours import SETUP
from server import ADMIN
from tools import at_once

FROM = (
    {"origin": "http://evil.example"}, {"origin": "https://127.0.0.1:1"}, {"origin": "null"}, {"origin": "http://127.0.0.1:1"}, {"origin": "http://127.0.0.1"}, {"origin": "http://localhost:{port}"}, {"origin": "http://127.0.0.1:{port}.evil.example"},
    {"origin": "http://evil.example#127.0.0.1:{port}"}, {"origin": "http://127.0.0.1:{port}@evil.example"}, {"origin": "http://127.0.0.1:{port}, http://evil.example"}, {"origin": "file://"}, {"origin": "chrome-extension://x"}, {"origin": ""}, {"origin": "HTTP://EVIL.EXAMPLE"}, {"origin": "http://0.0.0.0:{port}"},
    {"origin": "null", "sec-fetch-site": "same-origin"}, {"origin": "http://evil.example", "sec-fetch-site": "same-origin"}, {"origin": "http://evil.example", "referer": "http://127.0.0.1:{port}/"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"sec-fetch-site": "cross-site", "referer": "http://127.0.0.1:{port}/"},
    {"origin": "http://evil.example", "x-requested-with": "XMLHttpRequest"}, {"origin": "http://evil.example", "x-forwarded-host": "evil.example"}, {"origin": "http://evil.example", "forwarded": "host=evil.example"}, {"origin": "http://evil.example", "host": "127.0.0.1:{port}"}
)
TYPES = ("application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b", None)
# `https://` of the same host is this server's origin, where a proxy speaks TLS. Method, path and body; whatever would be changed is looked at afterwards.
CHANGES = (
    ("PUT", "/made", {}), ("POST", "/looked", {"a": 1}), ("PUT", "/looked/new", {"a": 1}), ("DELETE", "/looked/doc?rev={rev}", None), ("POST", "/looked/_bulk_docs", {"docs": [{"a": 1}]}), ("PUT", "/looked/doc/file?rev={rev}", "x"), ("COPY", "/looked/doc", None),
    ("POST", "/looked/_purge", {"doc": ["{rev}"]}), ("POST", "/looked/_compact", {}), ("POST", "/looked/_view_cleanup", {}), ("POST", "/looked/_ensure_full_commit", {}), ("PUT", "/looked/_security", {"members": {}}), ("PUT", "/looked/_revs_limit", "5"), ("PUT", "/looked/_purged_infos_limit", "5"),
    ("POST", "/looked/_index", {"index": {"fields": ["a"]}}), ("DELETE", "/looked/_index/_design/x/json/y", None), ("POST", "/looked/_index/_bulk_delete", {"docids": ["_design/d"]}), ("PUT", "/looked/_design/e", {}), ("PUT", "/looked/_local/x", {}), ("POST", "/looked/_design/d/_update/u", {}), ("PUT", "/looked/_design/d/_update/u/doc", {}),
    ("POST", "/_replicate", {"source": "looked", "target": "made", "create_target": True}), ("PUT", "/_users/org.couchdb.user:evil", {"name": "evil", "type": "user", "roles": [], "password": "x"}), ("PUT", "/_node/_local/_config/admins/evil", '"x"'), ("PUT", "/_node/_local/_config/cors/origins", '"*"'), ("POST", "/_node/_local/_config/_reload", {}),
    ("POST", "/_session", {"name": "root", "password": "a password of the attack"}), ("DELETE", "/_session", None), ("POST", "/_cluster_setup", {"action": "enable_single_node"}), ("POST", "/_worker/_api/jobs", {}), ("POST", "/looked/doc", "x"), ("POST", "/looked/_bulk_docs?x-http-method-override=PUT", {"docs": [{}]}), ("DELETE", "/looked", None)
)


def prepare(server):
    database(server, "looked")
    rev = ask(server, "PUT", "/looked/doc", {"n": 1}).get("rev")
    ask(server, "PUT", "/looked/_design/d", {"updates": {"u": "function(doc, req) { return [{_id: req.uuid}, 'made']; }"}})
    signed_in = ask(server, "POST", "/_session", {"name": ADMIN[0], "password": ADMIN[1]}, {"authorization": None}, timeout=60)
    return rev, signed_in.headers["set-cookie"]


def state(server):
    """All that a page must not change."""
    found = [ask(server, "GET", path).text for path in ("/looked/_security", "/looked/_revs_limit", "/looked/_all_docs", "/looked/_purged_infos", "/looked/_local_docs", "/_all_dbs", "/_node/_local/_config/admins", "/_node/_local/_config/cors", "/_users/_all_docs")]
    return found


def origins(server, rng):
    """Every change, from every origin, with every type: 403, and nothing has changed."""
    rev, cookie = prepare(server)
    yield holds("the cookie is HttpOnly and SameSite", "httponly" in cookie.lower() and "samesite=" in cookie.lower(), cookie)
    before = state(server)
    cases = []
    for (method, where, body), given, kind in itertools.product(CHANGES, FROM, TYPES):
        if body is None and kind != "text/plain" or body is not None and kind is None and method != "POST":
            continue
        text = None if body is None else (body if isinstance(body, str) else json.dumps(body)).replace("{rev}", rev)
        if kind and "urlencoded" in kind and where == "/_session":
            text = "name=root&password=a%20password%20of%20the%20attack"
        sent = {name: value.replace("{port}", str(server.port)) for name, value in given.items()}
        cases.append((method, where.replace("{rev}", rev), text, {"authorization": None, "cookie": cookie.split(";")[0], "content-type": kind, **sent}))

    def answered(at):
        return [(case, ask(server, *case)) for case in cases[at::8]]

    for part in at_once(8, answered):
        for (method, where, _, given), answer in part:
            told = {name: value for name, value in given.items() if name not in ("authorization", "cookie")}
            wrong = None if answer.status == 403 and answer.get("error") == "forbidden" else f"{answer.status} {answer.text[:120]}"
            if "access-control-allow-origin" in answer.headers or "set-cookie" in answer.headers and "AuthSession=;" not in answer.headers["set-cookie"] and where == "/_session":
                wrong = f"{answer.status} with {answer.headers}"
            yield f"{method} {short(where, 40)} {told}", wrong
    yield equal("nothing has changed", state(server), before)
    yield equal("the session is still there", ask(server, "GET", "/_session", None, {"authorization": None, "cookie": cookie.split(";")[0]}).get("userCtx"), {"name": ADMIN[0], "roles": ["_admin"]})


PATHS = (
    "", "index.html", "x", "../", "..", "../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "..%2f..%2fetc/passwd", "%2e%2e%2f_all_dbs", "....//....//etc/passwd", "..\\..\\etc\\passwd", "%5c..%5c..", "%00", "index.html%00.js", "index.html/", "index.html/x", "//", "/evil.example/", "//evil.example/", "%2f%2fevil.example", "\\evil.example",
    "?x=<script>", "#x", "%0d%0aSet-Cookie:x", "index.html?%0d%0aSet-Cookie:%20evil=1", ".git/config", ".", "./index.html", "INDEX.HTML", "index.htm", "a" * 5_000, "%ff", "%c0%ae%c0%ae/", "%252e%252e/", "CON", "index.html::$DATA", "index.html~", "*", "{", "_all_dbs", "assets/", "app.js", "main.js", "style.css", "favicon.ico", "robots.txt"
)


def console(server, rng):
    """The console's pages: no file but its own, no frame, no script of others, no redirect away."""
    page = ask(server, "GET", "/_utils/", None, {"authorization": None, "accept": "text/html"})
    yield holds("the console is there", page.status == 200 and "html" in page.headers.get("content-type", ""), f"{page.status}")
    policy = page.headers.get("content-security-policy", "")
    yield holds("its policy has no script of others", "script-src" in policy or "default-src" in policy, policy)
    yield holds("its policy has no unsafe scripts", "unsafe-eval" not in policy and "'unsafe-inline'" not in policy.split("style-src")[0] and "*" not in policy, policy)
    yield holds("no other page has it in a frame", "frame-ancestors" in policy or "x-frame-options" in page.headers, str(page.headers))
    yield holds("its type is not guessed", page.headers.get("x-content-type-options") == "nosniff", str(page.headers))
    print(f"    the console's policy: {policy}", flush=True)
    for path, method, given in itertools.product(PATHS, ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "COPY"), ({}, {"origin": "http://evil.example"}, {"range": "bytes=0-10"}, {"x-forwarded-prefix": "//evil.example", "x-forwarded-proto": "javascript"})):
        answer = ask(server, method, "/_utils/" + path, "{}" if method in ("POST", "PUT") else None, {"authorization": None, **given})
        name = f"{method} /_utils/{short(path, 40)} {given}"
        location = answer.headers.get("location", "")
        wrong = None
        if answer.status >= 500 and answer.status != 501 or answer.status == 0:
            wrong = f"{answer.status} {answer.text[:100]}"
        elif b"root:x:" in answer.body or "set-cookie" in answer.headers or "access-control-allow-origin" in answer.headers:
            wrong = f"{answer.status} {answer.headers} {answer.text[:80]}"
        elif location and ("evil" in location or location.startswith("//") or "\\" in location):
            wrong = f"leads to {location}"
        elif answer.status in (200, 206) and method == "GET" and "html" in answer.headers.get("content-type", "") and answer.headers.get("content-security-policy") != policy:
            wrong = f"a page with the policy {answer.headers.get('content-security-policy')}"
        yield name, wrong


for group in (origins, console):
    group.longest_wait = 30

GROUPS = (origins, console)
