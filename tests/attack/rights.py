"""What somebody may not: see whether there is a database, write design documents as a member, have more roles by an own user document."""

import itertools
import json
import re
from concurrent.futures import ThreadPoolExecutor

from asking import ask, checked, database, equal, holds, segment, short
from gateway import basic

SETUP = {"admin": True}

FORMS = (
    "", "/", "/doc", "/doc/file", "/doc?rev=1-a", "/doc?open_revs=all", "/nodoc", "/_design/d", "/_design/d/_view/v", "/_design/d/_view/v?reduce=x",
    "/_design/d/_show/s", "/_design/d/_list/l/v", "/_design/d/_update/u", "/_design/d/_rewrite/x", "/_design/d/_info", "/_local/x", "/_local_docs",
    "/_all_docs", "/_all_docs/queries", "/_design_docs", "/_bulk_docs", "/_bulk_get", "/_changes", "/_changes?feed=longpoll&timeout=1",
    "/_changes?feed=continuous&timeout=1", "/_changes?feed=eventsource&timeout=1", "/_changes?since=zzz", "/_changes?filter=d/f", "/_find", "/_index",
    "/_index/_design/d/json/x", "/_explain", "/_count", "/_revs_diff", "/_missing_revs", "/_revs_limit", "/_ensure_full_commit", "/_compact",
    "/_view_cleanup", "/_purge", "/_purged_infos", "/_purged_infos_limit", "/_raw_keys", "/_security", "/_shards", "/_shards/doc", "/_sync_shards",
    "/_partition/x", "/_x", "/%00", "/%ff", "/a%2Fb", "/..", "/%2e%2e", "//", "/_design", "/_design/", "/_local/"
)
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "COPY", "PATCH", "FOO")
BODIES = (None, b"{}", b"{", b'{"docs":[{"_id":"a"}]}', b'{"selector":{}}', b"[]", b"\xff", b"x" * 70_000)
HEADERS = (
    {}, {"if-none-match": '"1-a"'}, {"range": "bytes=0-1"}, {"destination": "x"}, {"x-http-method-override": "DELETE"}, {"content-type": "text/plain"},
    {"content-type": "multipart/related;boundary=x"}, {"content-encoding": "gzip"}, {"accept": "text/html"}, {"accept": "multipart/mixed"},
    {"origin": "http://evil.example"}, {"origin": "null"}, {"if-match": "1-a"}, {"expect": "100-continue"}
)
CHANGING = ("date", "x-couch-request-id", "x-couchdb-body-time", "set-cookie")


def account(server, name, password, roles=()):
    ask(server, "PUT", "/_users")
    made = ask(server, "PUT", f"/_users/org.couchdb.user:{name}", {"name": name, "password": password, "roles": list(roles), "type": "user"}, timeout=60)
    if made.status not in (201, 409):
        raise RuntimeError(f"no account {name}: {made.status} {made.text[:200]}")
    return basic(name, password)


def foreign(server, rng):
    """A database of others is answered as one that there is not, to the letter: to strangers, users, and who has a session."""
    path = database(server, "secret")
    ask(server, "PUT", path + "/doc", {"text": "hidden", "_attachments": {"file": {"data": "aGlkZGVu", "content_type": "text/html"}}})
    ask(server, "PUT", path + "/_design/d", {"views": {"v": {"map": "function(d){emit(d.text)}"}}, "shows": {"s": "function(){return 'hidden'}"}})
    ask(server, "PUT", path + "/_security", {"members": {"names": ["member"]}, "admins": {"names": ["owner"]}})
    bob, metrics = account(server, "bob", "letmein", ["friends"]), account(server, "met", "letmein", ["_metrics"])
    session = ask(server, "POST", "/_session", {"name": "bob", "password": "letmein"}, {"authorization": None}, timeout=60)
    cookie = session.headers["set-cookie"].split(";")[0]
    who = {"a stranger": {"authorization": None}, "bob": {"authorization": bob}, "metrics": {"authorization": metrics}, "a session": {"authorization": None, "cookie": cookie}}
    cases = []
    for form, method, (name, given) in itertools.product(FORMS, METHODS, who.items()):
        bodies = rng.sample(BODIES, 2) if method in ("POST", "PUT") else [None]
        cases += [(form, method, name, body, {**rng.choice(HEADERS), **given}) for body in bodies]

    def answers(case):
        form, method, name, body, headers = case
        found = []
        for of in ("secret", "absent"):
            answer = ask(server, method, f"/{of}{form}", body, headers)
            told = {header: value.replace(of, "DB") for header, value in answer.headers.items() if header not in CHANGING}
            found.append((answer.status, told, answer.text.replace(of, "DB")))
        return case, found

    with ThreadPoolExecutor(8) as pool:
        for (form, method, name, body, _), (theirs, none) in pool.map(answers, cases):
            what = f"{method} {form} of {short(repr(body), 20)} by {name}"
            yield equal(what, theirs, none)
            yield holds(what + " is refused", 400 <= theirs[0] < 500 and "hidden" not in theirs[2], str(theirs)[:200])


PATHS_OF_DESIGNS = (
    "_design/x", "_design%2Fx", "%5Fdesign/x", "%5fdesign%2fx", "_design//x", "_design/./x", "_design/x/../y", "./_design/x", "_local/../_design/x",
    "_desi%67n/x", "_design/x%2Fy", "_design/%00", "_design/v", "_design%2Fv", "%5F%64esign/v"
)


def design_documents(server, rng):
    """A member writes no design document, however it is named."""
    path = database(server, "designs")
    member = {"authorization": account(server, "bob", "letmein", ["friends"])}
    ask(server, "PUT", path + "/_security", {"members": {"names": ["bob"]}, "admins": {"names": ["owner"]}})
    ask(server, "PUT", path + "/doc", {})
    update = "function(doc, req) { return [JSON.parse(req.body), 'ok']; }"
    rev = ask(server, "PUT", path + "/_design/v", {"updates": {"u": update}}).get("rev")
    ask(server, "POST", path + "/_index", {"index": {"fields": ["a"]}, "ddoc": "idx", "name": "n"})
    before = ask(server, "GET", path + "/_design_docs").get("rows")
    for where in PATHS_OF_DESIGNS:
        for (method, body, more), query in itertools.product(
            (("PUT", {}, {}), ("DELETE", None, {}), ("POST", {}, {"x-http-method-override": "PUT"}), ("PUT", b"x", {"content-type": "text/plain"})),
            ("", f"?rev={rev}", "?new_edits=false", "?batch=ok", "/att", f"/att?rev={rev}")
        ):
            answer = ask(server, method, f"{path}/{where}{query}", body, {**member, **more})
            yield holds(f"{method} {where}{query}", 400 <= answer.status < 500, f"{answer.status} {answer.text[:200]}")
        for source, destination in itertools.product(("doc", "_design/v"), (where, f"{where}?rev={rev}", f"{path}/{where}", f'"{where}"')):
            answer = ask(server, "COPY", f"{path}/{source}", None, {**member, "destination": destination})
            yield holds(f"COPY of {source} to {destination}", '"id":"_design' not in answer.text, f"{answer.status} {answer.text[:200]}")
    for id, more, is_last in itertools.product(
        ('"_design/x"', '"\\u005fdesign/x"', '"_design\\/x"', '"_design/v"', '"\\u005f\\u0064esign/v"'), ("", '"_deleted":true,', f'"_rev":"{rev}",', '"_id":"a",'), (True, False)
    ):
        body = "{%s%s}" % ((more, f'"_id":{id}') if is_last else (f'"_id":{id},' + more, '"z":1'))
        for method, where, sent in (
            ("POST", "", body), ("POST", "/_bulk_docs", '{"docs":[%s]}' % body), ("POST", "/_bulk_docs", '{"new_edits":false,"docs":[%s]}' % (body[:-1] + ',"_rev":"9-abc"}')),
            ("PUT", "/zz", body), ("POST", "/_design/v/_update/u", body), ("PUT", "/_design/v/_update/u/_design/x", body)
        ):
            answer = ask(server, method, path + where, sent, member)
            yield holds(f"{method} {where} {sent}", not ('"ok":true' in answer.text and '"id":"_design' in answer.text), f"{answer.status} {answer.text[:200]}")
    for method, where, body in (
        ("POST", "/_index", {"index": {"fields": ["b"]}}), ("DELETE", "/_index/_design/idx/json/n", None), ("POST", "/_index/_bulk_delete", {"docids": ["_design/idx"]})
    ):
        answer = ask(server, method, path + where, body, member)
        yield holds(f"{method} {where}", 400 <= answer.status < 500 or '"success":[]' in answer.text, f"{answer.status} {answer.text[:200]}")
    yield equal("they are as before", [row["value"] for row in ask(server, "GET", path + "/_design_docs").get("rows")], [row["value"] for row in before])
    yield from checked(server, "designs")


def own_user_documents(server, rng):
    """Who may write their own user document has the roles and the name of before."""
    bob = account(server, "bob", "letmein", ["friends"])
    account(server, "eve", "letmein")
    ask(server, "PUT", "/_node/_local/_config/couchdb/users_db_security_editable", '"true"')
    ask(server, "PUT", "/_users/_security", {"members": {}, "admins": {}})
    own, eve = "/_users/org.couchdb.user:bob", ask(server, "GET", "/_users/org.couchdb.user:eve").get("_rev")
    for more in (
        '"roles":["_admin"]', '"roles":["friends"],"roles":["friends","x"]', '"roles":["x"],"roles":["friends"]', '"\\u0072oles":["x"]', '"roles":["friends"],"\\u0072oles":["x"]',
        '"roles":[]', '"roles":null', '"roles":"friends"', '"roles":["friends"],"name":"eve"', '"roles":["friends"],"type":"admin"', '"roles":["friends"],"_id":"org.couchdb.user:eve"',
        '"roles":["friends"],"_revisions":{"start":5,"ids":["a","b"]}', '"Roles":["x"],"roles":["friends"]', '"roles":{"0":"_admin","length":1}', '"roles":["\\u005fadmin"]',
        '"roles":["friends",["_admin"]]', '"roles":["friends"],"__proto__":{"roles":["_admin"]}', '"roles":["friends"],"admin":true,"account":true'
    ):
        for method, where, form in (("PUT", own, "%s"), ("POST", "/_users", "%s"), ("POST", "/_users/_bulk_docs", '{"docs":[%s]}'), ("POST", "/_users/_bulk_docs", '{"new_edits":false,"docs":[%s]}')):
            now = ask(server, "GET", own).json
            kept = json.dumps({name: value for name, value in now.items() if name != "roles"})[1:-1]
            answer = ask(server, method, where, form % ("{" + kept + "," + more + "}"), {"authorization": bob})
            now = ask(server, "GET", own)
            yield holds(f"{method} {where[7:]} {more}", now.get("roles") == ["friends"] and now.get("name") == "bob", f"{answer.status} {answer.text[:100]}, then {now.text[:200]}")
    yield equal("somebody else's is as before", ask(server, "GET", "/_users/org.couchdb.user:eve").get("_rev"), eve)
    first = {}
    for name in ("eve", "nobody"):
        for method, where, body in (
            ("GET", "/{}", None), ("GET", "/{}?open_revs=all", None), ("DELETE", "/{}?rev=" + eve, None), ("PUT", "/{}", {}), ("COPY", "/{}", None), ("POST", "/_bulk_get", {"docs": [{"id": "{}"}]}),
            ("POST", "/_revs_diff", {"{}": [eve]}), ("GET", "/{}/file", None), ("GET", "/_local/{}", None), ("POST", "/_find", {"selector": {"_id": "{}"}})
        ):
            id = "org.couchdb.user:" + name
            sent = json.loads(json.dumps(body).replace('"{}"', f'"{id}"')) if body else body
            answer = ask(server, method, "/_users" + where.replace("{}", segment(id)), sent, {"authorization": bob, "destination": "org.couchdb.user:copy"})
            told = answer.status, re.sub(r"[0-9a-f]{32}", "HASH", answer.text.replace(id, "ID"))
            if name == "eve":
                first[method, where] = told
            else:
                yield equal(f"{method} {where} of somebody and of nobody", told, first[method, where])


GROUPS = (foreign, design_documents, own_user_documents)
