"""What users and strangers reach besides their own: registration in `_users`, `_session`, reads of many, `_local`, attachments, design documents
of odd shapes, partitions, purges, databases of `[couch_peruser]`, lists of databases, and the other ports. Nothing may be answered 500, show
what belongs to others or whether it exists, or take long; and a flood of all of it must not delay a neighbour."""

import base64
import itertools
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import gateway
import sync
from asking import REFUSED, ask, bulk, equal, holds, segment, short, wait_for, wrong
from neighbours import SETUP, Tenant, at_rest, beside, flood, judged, late, owned, tenants

# Bodies are nested deeper than Python's own writer of JSON goes.
sys.setrecursionlimit(20_000)
SETUP = {**SETUP, "more": lambda server: (gateway.listeners(server)[0] + sync.listener(server)[0], [])}
SECRET, VAULT, VICTIM = "ivory-secret", "vault-of-victor", "victor"
MARKS = (SECRET, VAULT, VICTIM)
ALLOWED = REFUSED | {200, 201, 202, 206, 204, 301, 302, 304, 429}
LONG = "n" * 3_000
DEEP = "[" * 499 + "]" * 499
ODD = (
    None, True, False, 0, -1, 1.5, 10**30, -(10**30), "", "x", "\0", "\ud800", "_", "__proto__", "constructor", "é" * 900, LONG, [], [[]], [None], [1, "x"], ["x"] * 2_000, {}, {"x": {}}, {"$gt": None},
    {"_id": "x"}, {"docs": []}, {"toString": 1}, [{"id": "x"}], [{}] * 500
)
RAW = (b"", b"{", b"[", b"null", b"\"", b"\xff\xfe{\0}\0", b"\xef\xbb\xbf{}", b"{}{}", b"{\"a\":1,\"a\":2}", b"[" * 100_000, b"{\"a\":" * 501 + b"1" + b"}" * 501, b"1" * 5_000, b"-", b"1e99999", b"{\"a\":\"\\ud800\"}", b"{\"a\":\"\\u0000\"}", b"{\"\\u0000\":1}", b" " * 90_000, b"{,}", b"nul", b"NaN")
PARAMETERS = (
    "since", "limit", "skip", "descending", "style", "feed", "filter", "heartbeat", "timeout", "include_docs", "attachments", "att_encoding_info", "conflicts", "last-event-id", "seq_interval", "view", "doc_ids", "channels", "active_only",
    "key", "keys", "startkey", "endkey", "start_key_doc_id", "inclusive_end", "update_seq", "update", "stale", "stable", "sorted", "reduce", "group", "group_level", "rev", "revs", "revs_info", "open_revs", "atts_since", "latest", "meta", "deleted_conflicts",
    "local_seq", "batch", "new_edits", "r", "w", "partition", "attempts", "__proto__", "revs_from", "wait_for_doc_sync", "partitioned", "n", "q", "include_system", "bookmark"
)
VALUES = (
    "", "0", "-1", "1", "2", "true", "TRUE", "null", "now", "x", "%22x%22", "[]", "{}", "[1,", "%00", "%ff", "%ed%a0%80", "1e9", "99999999999999999999999", "1-a", "0-0", "1-" + "a" * 900, "all", "all_docs", "longpoll", "normal", "_doc_ids", "_selector", "_view", "_design", "d/f",
    "_index/x", "sync_gateway/bychannel", "ok", "false", "%5B%22x%22%5D", "%5B%221-a%22%5D", "%7B%7D", "%22%ef%bf%b0%22", "%5B" * 300, "9" * 400, "+", "%20", "%0d%0aX:1", "a,b,c"
)
NAMES = ("x", "_x", "%00", "%ff", "%2e%2e", "a%2Fb", "a/b/c", "%20", "%22", "%0d%0a", "%e2%80%ae", "n" * 255, LONG, "é", "_attachments", "%5F", "__proto__", "%F0%9F%92%A9", ".", "+", "a%3Fb", "a%23b", "%2F", "//", "%25", "x.html", "x;y")


def prepared(server):
    """The victim with a vault, a user with an own database, and one that is open to all."""
    ask(server, "PUT", "/_node/_local/_config/couch_peruser/enable", '"true"')
    ask(server, "PUT", "/_node/_local/_config/couchdb/users_db_security_editable", '"true"')
    ask(server, "PUT", "/_users/_security", {"members": {}, "admins": {}})
    victor, ulla = tenants(server, VICTIM)[0], tenants(server, "ulla", 40)
    vault = owned(server, VICTIM, VAULT)
    ask(victor, "PUT", f"{vault}/doc", {"text": SECRET, "_attachments": {"file": {"data": base64.b64encode(SECRET.encode()).decode(), "content_type": "text/plain"}}})
    ask(victor, "PUT", f"{vault}/_local/x", {"text": SECRET})
    ask(victor, "PUT", f"{vault}/_design/d", {"views": {"v": {"map": "function(doc) { emit(doc.text); }"}}, "shows": {"s": f"function() {{ return '{SECRET}'; }}"}})
    for path, public in ((owned(server, "ulla", "hers"), False), (owned(server, "ulla", "open", public=True), True)):
        bulk(ulla[0], path, [{"_id": f"d{n}", "n": n, "tags": ["a", n], "deep": {"a": {"b": n}}} for n in range(200)])
        bulk(ulla[0], path, [{"_id": "d1", "_rev": f"1-{n:032x}", "n": n} for n in range(40)], new_edits=False)
        ask(ulla[0], "PUT", f"{path}/att", {"_attachments": {name: {"data": "aGVsbG8=", "content_type": "text/plain"} for name in ("a", "b c", "é", "x/y")}})
        design = {"views": {"v": {"map": "function(doc) { emit(doc.n, 1); }", "reduce": "_sum"}}, "filters": {"f": "function(doc, req) { return doc.n % 2; }"}, "shows": {"s": "function(doc, req) { return JSON.stringify(req.userCtx); }"}, "lists": {"l": "function() { var r; while (r = getRow()) send(r.key + ','); }"}, "updates": {"u": "function(doc, req) { return [null, 'x']; }"}, "rewrites": [{"from": "/*", "to": "../../*"}]}
        ask(ulla[0], "PUT", f"{path}/_design/d", design)
        ask(ulla[0], "GET", f"{path}/_design/d/_view/v?limit=1")
    ask(server, "PUT", "/parts?partitioned=true")
    ask(server, "PUT", "/parts/_security", {"members": {"names": ["ulla"]}, "admins": {"names": ["ulla"]}})
    bulk(ulla[0], "/parts", [{"_id": f"p{n % 3}:{n}", "n": n} for n in range(60)])
    wait_for(lambda: ask(server, "GET", "/userdb-" + VICTIM.encode().hex()).status == 200, 30)
    return ulla


def told(answer, sent, marks=MARKS):
    """What an answer must not say: marks of the victim that the request did not have."""
    text = answer.text + json.dumps(answer.headers)
    return next((f"it says {mark}: {answer.status} {answer.text[:200]}" for mark in marks if mark in text and mark not in sent), None)


# CouchDB answers these 500, and their words are to the letter.
ITS_WORDS = ("Unknown Error: mango_opts ::", "invalid_list_index_params", "unknown_query_language", "insecure_rewrite_rule", "invalid_design_doc")


def complaint(answer, sent, method, within):
    if answer.status == 0:
        # A head may be no HTTP, which is closed without an answer.
        return None if "RemoteDisconnected" in answer.text or "BadStatusLine" in answer.text else f"no answer: {answer.text[:100]}"
    statuses = ALLOWED | {500} if any(words in answer.text[:300] for words in ITS_WORDS) else ALLOWED
    return told(answer, sent) or wrong(answer, statuses, within, method)


def done(cases, workers, within):
    """A step for each case: name, tenant, method, path, body, headers."""
    def run(case):
        name, by, method, path, body, headers = case
        answer = ask(by, method, path, body, headers, timeout=within + 20)
        sent = f"{path} {body} {headers}"
        return name, complaint(answer, sent, method, within)

    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(run, cases)


def bodies(values=ODD):
    return [*RAW, *values]


def strangers(server, count=40):
    return [Tenant(server, address=f"127.0.1.{at + 100}") for at in range(count)]


def registering(server, rng, ulla, anyone):
    """Bodies and names with which strangers register."""
    right = {"name": "new", "password": "letmein", "roles": [], "type": "user"}
    for at, (member, value) in enumerate(itertools.product(("name", "password", "roles", "type", "_id", "_rev", "iterations", "salt", "derived_key", "password_scheme", "pbkdf2_prf", "_deleted", "_attachments", "_revisions"), rng.sample(ODD, 8))):
        name = f"new{at}"
        body = {**right, "name": name, member: value}
        how = rng.choice((("PUT", f"/_users/org.couchdb.user:{name}", body), ("POST", "/_users", {"_id": f"org.couchdb.user:{name}", **body}), ("POST", "/_users/_bulk_docs", {"docs": [{"_id": f"org.couchdb.user:{name}", **body}]}), ("POST", "/_users/_bulk_docs", {"new_edits": False, "docs": [{"_id": f"org.couchdb.user:{name}", "_rev": "1-abc", **body}]})))
        yield f"register {member} {short(repr(value), 30)}", rng.choice(anyone), *how, {}
    for name in NAMES:
        for prefix in ("org.couchdb.user:", "org.couchdb.user%3A", "", "_design/", "_local/", "org.couchdb.user:" + VICTIM[:3]):
            yield f"register as {prefix}{short(name, 20)}", rng.choice(anyone), rng.choice(("PUT", "GET", "HEAD", "DELETE")), f"/_users/{prefix}{quote(name, safe='%/+;')}", {**(right if rng.random() < 0.3 else {"type": "user", "roles": []}), "name": name}, {}
    for body in RAW:
        yield f"register {body[:20]!r}", rng.choice(anyone), "PUT", "/_users/org.couchdb.user:raw", body, {}
    for form in ("/_all_docs", "/_changes", "/_find", "/_design_docs", "/_local_docs", "/_bulk_get", "/_revs_diff", "/_missing_revs", "/_all_docs/queries", "/_index", "/_explain", "/_purge", "/_security", "/_design/_auth", "/_partition/x"):
        for by, body in itertools.product((anyone[0], ulla[0]), (None, {}, {"keys": [f"org.couchdb.user:{name}" for name in ("ulla", "none")]}, {"selector": {}}, {"docs": [{"id": "org.couchdb.user:none"}]})):
            yield f"_users{form} {short(repr(body), 20)}", by, "GET" if body is None else "POST", "/_users" + form, body, {}


def signing_in(server, rng, ulla, anyone):
    """`_session`: bodies of every form, cookies, and where it leads."""
    form = "application/x-www-form-urlencoded"
    for kind in ("application/json", form, "text/plain", "multipart/form-data; boundary=b", "application/xml", "", "application/json;charset=utf-16", "x" * 900):
        for body in (*rng.sample(RAW, 9), b"name=ulla&password=wrong", b"name=%ff&password=%00", b"name=&password=", b"name[]=ulla&password[]=x", b"a=b&" * 5_000, b'{"name":"none","password":"x"}', b"--b\r\n\r\n\r\n--b--"):
            yield f"_session {short(kind, 20)} {body[:20]!r}", rng.choice(anyone), "POST", "/_session", body, {"content-type": kind}
    for member, value in itertools.product(("name", "password", "next", "fail"), rng.sample(ODD, 10)):
        yield f"_session {member} {short(repr(value), 30)}", rng.choice(anyone), "POST", "/_session" + rng.choice(("", "?next=//evil.example", "?next=%0d%0aX:1", "?basic=true", "?next=http:evil.example", "?fail=/\\evil.example")), {"name": "none", "password": "x", member: value}, {}
    for cookie in ("AuthSession=", "AuthSession=x", "AuthSession=" + base64.b64encode(b"ulla:66000000:x").decode(), "AuthSession=" + base64.b64encode(b"ulla:FFFFFFFFFFFFFFFFFF:" + b"x" * 20).decode(), "AuthSession=" + "QUFB" * 2_000, "AuthSession=%00", "AuthSession=a; AuthSession=b", "x" * 8_000, "AuthSession=\xff", ";;;=", "SyncGatewaySession=x", 'AuthSession="dWxsYQ"'):
        for method, path in (("GET", "/_session"), ("DELETE", "/_session"), ("GET", "/hers"), ("GET", "/_users/org.couchdb.user:ulla"), ("PUT", "/open/c")):
            yield f"{method} {path} with {short(cookie, 30)}", rng.choice(anyone), method, path, {} if method == "PUT" else None, {"cookie": cookie}
    for given in ("Basic", "Basic ", "Basic =", "Basic " + "QQ==" * 3_000, "Basic " + base64.b64encode(b"ulla").decode(), "Basic " + base64.b64encode(b"\xff:\xff").decode(), "basic " + base64.b64encode(b":").decode(), "Bearer", "Bearer a.b.c", "Bearer " + "a" * 9_000, "Negotiate x", "Digest username=ulla", "Hawk id=1", "\xff"):
        for path in ("/_session", "/open", f"/{VAULT}", "/_all_dbs"):
            yield f"{path} with {short(given, 20)}", rng.choice(anyone), "GET", path, None, {"authorization": given}


def reading(server, rng, ulla, anyone):
    """Reads of many: parameters and bodies of each kind, in an own database and in an open one."""
    routes = ("/_changes", "/_all_docs", "/_design_docs", "/_local_docs", "/_design/d/_view/v", "/_design/d/_list/l/v", "/_design/d/_show/s/d2", "/d1", "/att", "/att/a", "/_local/x", "", "/_security", "/_revs_limit", "/_index", "/_purged_infos", "/_shards", "/_partition/x")
    for route in routes:
        for name in rng.sample(PARAMETERS, 22):
            value = rng.choice(VALUES)
            more = rng.choice(("", "", "&timeout=50", "&feed=longpoll&timeout=50", "&feed=continuous&timeout=50", "&feed=eventsource&timeout=50", f"&{rng.choice(PARAMETERS)}={rng.choice(VALUES)}"))
            path = rng.choice(("/hers", "/open")) + route + f"?{name}={value}{more}" + ("" if "timeout" in more or "feed" not in name + more else "&timeout=50")
            yield f"GET {short(path, 80)}", rng.choice(ulla), "GET", path, None, {}
    for route in ("/_bulk_get", "/_revs_diff", "/_missing_revs", "/_find", "/_explain", "/_count", "/_all_docs", "/_all_docs/queries", "/_changes?filter=_doc_ids", "/_changes?filter=_selector", "/_design/d/_view/v", "/_design/d/_view/v/queries", "/_purge", "/_index", "/_index/_bulk_delete", "/_bulk_docs", "/_ensure_full_commit", "/_compact", "/_compact/d", "/_view_cleanup", "/_design/d/_update/u", "/_design/d/_show/s", ""):
        for body in rng.sample(bodies(), 14):
            yield f"POST {route} {short(repr(body), 25)}", rng.choice((*ulla, *anyone)), "POST", rng.choice(("/hers", "/open")) + route, body, {}
    members = {"/_bulk_get": ("docs",), "/_find": ("selector", "limit", "skip", "sort", "fields", "use_index", "bookmark", "update", "stable", "execution_stats", "conflicts", "r"), "/_all_docs/queries": ("queries",), "/_design/d/_view/v/queries": ("queries",), "/_changes?filter=_doc_ids": ("doc_ids",), "/_index": ("index", "ddoc", "name", "type", "partitioned"), "/_bulk_docs": ("docs", "new_edits"), "/_design/d/_view/v": ("keys", "limit", "startkey"), "/_all_docs": ("keys",)}
    right = {"/_find": {"selector": {"n": 1}}, "/_index": {"index": {"fields": ["n"]}, "ddoc": "odd", "name": "odd"}, "/_bulk_docs": {"docs": []}}
    for route, names in members.items():
        for name, value in itertools.product(names, rng.sample(ODD, 12)):
            yield f"{route} {name} {short(repr(value), 25)}", ulla[0], "POST", "/hers" + route, {**right.get(route, {}), name: value}, {}
    for id, rev, more in itertools.product(("d1", "none", "_design/d", "_local/x", "", 5, None, "_x", LONG), ("1-a", "1-" + "0" * 32, "x", 5, None, "99999999999999999999-a", "1-" + "f" * 900), ({}, {"atts_since": ["1-a"]}, {"atts_since": 5}, {"x": 1})):
        if rng.random() < 0.4:
            yield f"_bulk_get {short(repr(id), 20)} {short(repr(rev), 20)} {more}", ulla[0], "POST", "/open/_bulk_get" + rng.choice(("", "?revs=true", "?latest=true", "?attachments=true")), {"docs": [{"id": id, "rev": rev, **more}] * rng.choice((1, 2, 60))}, {"accept": rng.choice(("application/json", "multipart/mixed", "multipart/related"))}
    for id, revs in itertools.product(("d1", "", "_x", "_local/x", "\0", LONG), ODD):
        yield f"_revs_diff {short(id, 10)!r} {short(repr(revs), 25)}", ulla[0], "POST", "/hers" + rng.choice(("/_revs_diff", "/_missing_revs")), {id: revs}, {}


def selectors(server, rng, ulla, anyone):
    """Selectors that are odd or deep."""
    operators = ("$eq", "$ne", "$gt", "$lt", "$in", "$nin", "$all", "$size", "$mod", "$regex", "$type", "$exists", "$not", "$and", "$or", "$nor", "$elemMatch", "$allMatch", "$keyMapMatch", "$beginsWith", "$text", "$where", "$", "$$", "")
    for operator in operators:
        for value in rng.sample(ODD, 9):
            where = rng.choice(("n", "tags", "deep.a.b", "deep\\.a", "_id", "", ".", "a..b", "_rev", "$x"))
            yield f"{where!r} {operator} {short(repr(value), 25)}", rng.choice((*ulla, *anyone)), "POST", "/open/_find", {"selector": rng.choice(({where: {operator: value}}, {operator: value}, {"$and": [{where: {operator: value}}, {"n": 1}]}))}, {}
    for depth in (50, 99, 101, 490, 510):
        for wrap in ("$not", "$and", "$or", "$elemMatch", "x"):
            inner = {"n": 1}
            for _ in range(depth):
                inner = {wrap: [inner] if wrap in ("$and", "$or") else inner}
            yield f"{wrap} {depth} deep", rng.choice(anyone), "POST", "/open/_find", {"selector": inner}, {}


def attachments(server, rng, ulla, anyone):
    """Names, types, encodings and ranges of attachments."""
    for name in NAMES:
        for method in ("PUT", "GET", "DELETE", "HEAD"):
            yield f"{method} attachment {short(name, 20)}", rng.choice(ulla), method, f"/hers/att-{rng.randrange(40)}/{quote(name, safe='%/+;')}", b"hello" if method == "PUT" else None, {"content-type": rng.choice(("text/plain", "x", "", "text/html\x80", "a/b; c=\"", "multipart/mixed; boundary=x", "y" * 5_000))}
    for headers in (
        *({"range": f"bytes={value}"} for value in ("0-", "-1", "0-0", "4-4", "5-5", "9-1", "-0", "-99", "0-1,3-4", "x", "", "0-" + "9" * 40, "0-0," * 900, "--", " 0 - 1 ", "1-%ff")), *({"range": value} for value in ("items=0-1", "bytes", "bytes=" + "0-0," * 5_000)),
        *({"accept-encoding": value} for value in ("gzip", "gzip;q=0", "*", "br", "gzip;q=x", "identity;q=0", "gzip," * 900)), *({"if-none-match": value} for value in ("*", "x", '"', "W/\"x\"", '"x",' * 2_000)), *({"if-range": value} for value in ('"x"', "x", "Mon, 01 Jan 1990 00:00:00 GMT")), *({"if-match": value} for value in ("*", "1-a", '"1-a"'))
    ):
        for method in ("GET", "HEAD", "PUT"):
            yield f"{method} with {short(repr(headers), 40)}", rng.choice(ulla), method, f"/hers/att/{rng.choice(('a', 'b%20c', '%C3%A9', 'x/y', 'none'))}", b"x" if method == "PUT" else None, headers
    for coding in ("gzip", "deflate", "br", "identity", "gzip, gzip", "x-gzip", "compress", "chunked", "", "GZIP"):
        for body in (b"", b"hello", b"\x1f\x8b", b"\x1f\x8b\x08\0\0\0\0\0\0\xff\xff"):
            yield f"Content-Encoding {coding!r} {body[:5]!r}", rng.choice(ulla), "PUT", f"/hers/att-{rng.randrange(40)}/{rng.choice(('z', 'y'))}", body, {"content-type": "text/plain", "content-encoding": coding}
    for member, value in itertools.product(("data", "content_type", "revpos", "digest", "length", "encoding", "encoded_length", "stub", "follows"), rng.sample(ODD, 14)):
        yield f"_attachments {member} {short(repr(value), 25)}", ulla[0], rng.choice(("PUT",)), f"/hers/stub-{member}-{rng.randrange(10**6)}", {"_attachments": {"a": {"data": "aGVsbG8=", "content_type": "text/plain", member: value}}}, {}


def design_documents(server, rng, ulla, anyone):
    """Design documents of odd shapes, and what is asked of them."""
    fields = ("language", "views", "filters", "shows", "lists", "updates", "rewrites", "validate_doc_update", "options", "indexes", "autoupdate", "lib", "views.v", "views.v.map", "views.v.reduce", "views.lib", "filters.f", "options.partitioned", "options.include_design", "nouveau")
    for at, (name, value) in enumerate(itertools.product(fields, (*rng.sample(ODD, 12), "function(){}", "_sum", "_approx_count_distinct", "function(doc) {", "javascript", "query", "erlang", "coffeescript"))):
        body, parts = {"views": {"v": {"map": "function(doc) { emit(doc.n); }"}}, "language": "javascript"}, name.split(".")
        place = body
        for part in parts[:-1]:
            place = place.setdefault(part, {})
        place[parts[-1]] = value
        by, id = ulla[at % 40], f"/hers/_design/odd{at % 12}"
        if name == "validate_doc_update":
            continue
        rev = f"?rev={'1-a' if rng.random() < 0.1 else '{}'}"
        yield f"design {name} {short(repr(value), 25)}", by, "PUT", id + "-" + str(at), body, {}
        if at % 3 == 0:
            yield f"asked of design {name} {short(repr(value), 25)}", by, "GET", f"{id}-{at}" + rng.choice(("/_view/v", "/_view/v?group=true", "/_info", "/_show/s", "/_list/l/v", "/_rewrite/x", "/_view/none", "/_update/u")), None, {}
        yield f"design {name} is deleted", by, "DELETE", f"{id}-{at}{rev}", None, {}


def partitions(server, rng, ulla, anyone):
    for partition in (*NAMES, "p0", "p1", "_design", "p0:", ":p0", "p0%3A1"):
        for form in ("", "/_all_docs", "/_find", "/_explain", "/_design/d/_view/v", "/_changes", "/_index"):
            if rng.random() < 0.5:
                yield f"_partition/{short(partition, 20)}{form}", rng.choice(ulla), "POST" if form in ("/_find", "/_explain") else "GET", f"/{rng.choice(('parts', 'parts', 'open'))}/_partition/{quote(partition, safe='%/+;')}{form}", {"selector": {"n": 1}} if form in ("/_find", "/_explain") else None, {}
    for id in ("x", ":", ":x", "p:", "_x:y", "p:" + LONG, "p" * 2_000 + ":x", "p::x", "_design:x", "\0:x", "é:é"):
        yield f"partitioned id {short(id, 20)!r}", ulla[0], "PUT", "/parts/" + segment(id), {}, {}
        yield f"partitioned bulk id {short(id, 20)!r}", ulla[0], "POST", "/parts/_bulk_docs", {"docs": [{"_id": id}]}, {}


def local_documents(server, rng, ulla, anyone):
    for name in NAMES:
        for method in ("PUT", "GET", "DELETE"):
            yield f"{method} _local/{short(name, 20)}", rng.choice((*ulla, *anyone)), method, f"/{rng.choice(('hers', 'open'))}/_local/{quote(name, safe='%/+;')}", rng.choice(bodies()) if method == "PUT" else None, {}
    for member, value in itertools.product(("_rev", "_id", "_deleted", "_attachments", "_revisions", "_exp", "x"), rng.sample(ODD, 12)):
        yield f"_local {member} {short(repr(value), 25)}", rng.choice(ulla), "PUT", f"/hers/_local/m{rng.randrange(9)}", {member: value}, {}


def servers_paths(server, rng, ulla, anyone):
    """Paths of the server, and other ways to others' databases."""
    for path in ("/_all_dbs", "/_dbs_info", "/_db_updates", "/_db_updates?feed=longpoll&timeout=50", "/_db_updates?feed=continuous&timeout=50", "/_active_tasks", "/_scheduler/jobs", "/_scheduler/docs", f"/_scheduler/docs/_replicator/x", "/_node/_local/_config", "/_node/_local/_stats", "/_node/_local/_system", "/_node/_local/_prometheus", "/metrics", "/_membership", "/_cluster_setup", "/_reshard", "/_replicate", "/_replicator/_all_docs", "/_replicator/_changes", "/_global_changes", "/_search_analyze", "/_up", "/_uuids?count=100000", "/_uuids?count=-1", "/_uuids?count=x", "/_utils/", "/_utils/..%2f..%2f", "/favicon.ico", "/_worker", "/_worker/_all_docs", "/_users/_changes?feed=longpoll&timeout=50"):
        for by, (method, body) in itertools.product((anyone[0], ulla[0]), (("GET", None), ("POST", {}), ("POST", {"keys": [VAULT]}), ("PUT", "x"), ("DELETE", None))):
            yield f"{method} {path}", by, method, path, body, {}
    for body in bodies():
        yield f"_replicate {short(repr(body), 30)}", rng.choice((ulla[0], anyone[0])), "POST", "/_replicate", body, {}
    for member, value in itertools.product(("source", "target", "continuous", "doc_ids", "selector", "filter", "since_seq", "cancel", "create_target", "query_params", "use_checkpoints", "checkpoint_interval", "user_ctx", "owner"), rng.sample(ODD, 8)):
        yield f"_replicate {member} {short(repr(value), 30)}", rng.choice(ulla), "POST", "/_replicate", {"source": "hers", "target": "none-such", member: value}, {}
    for destination in (f"../{VAULT}/x", f"/{VAULT}/x", f"http://127.0.0.1/{VAULT}/x", "x?rev=1-a", "%00", LONG, "_design/x", "_local/x", "", "x y", "\xff"):
        yield f"COPY to {short(destination, 30)}", ulla[0], "COPY", "/hers/d2", None, {"destination": destination}
    for place in (f"../../{VAULT}/doc", f"../../../{VAULT}/doc", f"..%2f..%2f..%2f{VAULT}%2fdoc", f"%2e%2e/%2e%2e/{VAULT}/doc", "../../../_all_dbs", "../../../_users/_all_docs"):
        for method in ("GET", "PUT", "POST"):
            yield f"{method} rewrite to {place}", ulla[0], method, f"/hers/_design/d/_rewrite/{place}", {} if method != "GET" else None, {}


KINDS = (registering, signing_in, reading, selectors, attachments, design_documents, partitions, local_documents, servers_paths)


def inputs(server, rng):
    """Each input once, alone: no answer of 500, nothing of others, nothing that takes long."""
    ulla, anyone = prepared(server), strangers(server)
    for kind in KINDS:
        # New passwords are hashed one by one.
        workers, within = (2, 30) if kind in (registering, signing_in) else (6, 10)
        yield from done(list(kind(server, rng, ulla, anyone)), workers, within)
    accounts = ask(server, "GET", "/_users/_all_docs?include_docs=true", timeout=60).get("rows", [])
    risen = [row["id"] for row in accounts if row["doc"].get("roles") and not row["id"].startswith("_design/")]
    yield holds("a stranger registers without roles", not risen, str(risen[:5]))
    for row in ask(server, "GET", f"/{VAULT}/_all_docs").get("rows", []):
        yield holds(f"{row['id']} is the victim's", row["id"] in ("doc", "_design/d"))
    yield from at_rest(server, "inputs")


def existence(server, rng):
    """No other user learns whether a user has a database, by whatever route: answers about one that is there and one that is not are equal."""
    ulla, anyone = prepared(server), strangers(server)
    there, absent = "userdb-" + VICTIM.encode().hex(), "userdb-" + b"nobody".hex()
    ways = [(method, form, body) for form in ("/{}", "/{}/_changes?feed=longpoll&timeout=50", "/{}/_find", "/{}/_bulk_get", "/{}/_security", "/{}/_partition/x", "/{}/_local/x", "/{}/x/y", "/{}/_design/d/_view/v", "/{}/_purge", "/{}/_revs_diff", "/{}/_index", "/{}/%00", "/{}?x=y") for method, body in (("GET", None), ("POST", {}), ("PUT", {}), ("DELETE", None), ("HEAD", None))]
    ways += [("POST", "/_dbs_info", {"keys": ["{}"]}), ("POST", "/_replicate", {"source": "{}", "target": "hers"}), ("POST", "/_replicate", {"source": "hers", "target": "{}"}), ("POST", "/_replicate", {"source": "hers", "target": "{}", "create_target": True}), ("GET", "/_scheduler/docs/{}", None), ("GET", "/_scheduler/docs/{}/x", None), ("GET", "/_scheduler/docs/{}%2F_replicator", None), ("GET", "/hers/_design/d/_rewrite/../../{}", None), ("GET", "/_db_updates?since=0&timeout=50", None), ("GET", "/{}/_design/d/_rewrite/x", None), ("POST", "/_search_analyze", {"x": "{}"}), ("GET", "/_node/_local/_stats/{}", None)]
    filled = lambda value, name: json.loads(json.dumps(value).replace("{}", name)) if value else value
    for (method, form, body), by in itertools.product(ways, (anyone[0], ulla[0])):
        found = []
        for name in (there, absent):
            answer = ask(by, method, form.replace("{}", name), filled(body, name))
            found.append((answer.status, re.sub(r'"session_id":"\w+"', "", answer.text.replace(name, "DB"))))
        yield equal(f"{method} {form} {short(repr(body), 40)} by {'a user' if by is ulla[0] else 'a stranger'}", *found)
    for port, at in ((server.public_port, "gateway"), ):
        for form, method in itertools.product(("", "/", "/_all_docs", "/_changes", "/doc", "/_bulk_get", "/_session", "/_local/x", "/_user/", "/_config", "/_raw/x", "/_online", "/%00"), ("GET", "POST", "PUT", "DELETE")):
            for authorization in (None, gateway.basic("ulla", "letmein")):
                by, found = gateway.Port(server, port, authorization), []
                for name in (VAULT, "vault-of-nobody"):
                    answer = ask(by, method, f"/{name}{form}", {} if method in ("POST", "PUT") else None)
                    found.append((answer.status, answer.text.replace(name, "DB")))
                yield equal(f"{at}: {method} {form} {'by ulla' if authorization else ''}", *found)
    for at, target in enumerate(("/1.5/1/info/collections", "/1.5/1/storage/bookmarks", "/1.5/2/storage/x", "/1.5/99999999/storage/x", "/1.0/sync/1.5", "/1.5/1/storage/" + LONG, "/1.5/%00/storage/x", "/1.5/-1/storage", "/__heartbeat__", "/1.5/1")):
        for method, authorization in itertools.product(("GET", "PUT", "POST", "DELETE"), (None, "Hawk id=\"x\"", gateway.basic("ulla", "letmein"), "Bearer x")):
            status, *_ = sync.ask(server, method, target, "[]" if method in ("PUT", "POST") else None, {}, authorization=authorization)
            yield holds(f"sync {method} {short(target, 40)} {short(str(authorization), 10)}", status < 500 and (status >= 400 or "heartbeat" in target), str(status))
    yield from at_rest(server, "existence")


def flooded(server, rng):
    """All kinds at once by strangers and a user, beside a neighbour."""
    ulla, anyone = prepared(server), strangers(server, 100)
    cases = [case for kind in KINDS for case in kind(server, rng, ulla, anyone)]

    def work(rng, at):
        _, by, method, path, body, headers = rng.choice(cases)
        answer = ask(by, method, path, body, headers, timeout=rng.choice((0.3, 5, 40, 40)))
        # Names of databases come into own documents by COPY.
        leak = told(answer, f"{path} {body} {headers}", (SECRET, ))
        if answer.status == 500 and not any(words in answer.text[:300] for words in ITS_WORDS):
            return f"500 to {method} {short(path, 200)} {short(repr(body), 200)}: {answer.text[:200]}"
        return leak or (f"{answer.status // 100}xx" if answer.status and answer.status not in (429, 503) else f"{answer.status or 'left'} {answer.get('error') or ''}")

    bad = lambda result: result if result == "hung" or result.startswith(("500 to", "it says")) else None
    for workers in (12, 80):
        yield from beside(server, f"{workers} outsiders", late(lambda: judged("outsiders", flood(workers, 20, work, rng.random()), bad)))
        yield from at_rest(server, f"{workers} outsiders")


for group in (inputs, existence, flooded):
    group.longest_wait = 30

GROUPS = (inputs, existence, flooded)
