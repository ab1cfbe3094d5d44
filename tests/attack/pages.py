"""What a link may do that somebody with more rights follows: rules of `rewrites` that lead out, and pages of other origins, neighbours among them."""

import itertools
import json

from asking import ask, database, equal, holds, segment, short
from rights import account
from server import ADMIN

SETUP = {"admin": True}

OWN_REWRITES = "function(req) { return JSON.parse(req.query.to); }"
UPS = (
    "../../../", "../../..//", "../../../linked/../", "../../../linked/%2e%2e/", "../../../linked/..%2f", "..%2f..%2f..%2f", "%2e%2e/%2e%2e/%2e%2e/", "../../../linked%2f..%2f", "/linked/../", "/linked/%2e%2e/",
    "/linked/..%2f", "/linked//../", "//", "/", "/./", "/linked/doc/../../", "../../doc/../../", "..\\..\\..\\", "../../../../", "/linked%2f..%2f", "/LINKED/../", "/linked\0/../", "..;/..;/..;/", "/linked?/../",
    "/linked#/../", "http://127.0.0.1/", "//127.0.0.1/", "..%252f..%252f..%252f", "/%6cinked/../", "/linked/.%2e/"
)
OUTSIDE = (
    ("victim", "DELETE", None), ("victim/new", "PUT", "{}"), ("victim/_security", "PUT", "{}"), ("linked2", "DELETE", None), ("stolen", "PUT", None), ("_node/_local/_config/admins/evil", "PUT", '"evil"'),
    ("_replicate", "POST", '{"source":"victim","target":"linked"}'), ("_session", "DELETE", None)
)
# What the server's administrators alone may do to a database: its own administrator, who writes its functions, may not.
OF_THE_SERVER = (("../..", "DELETE", None), ("../../../linked", "DELETE", None), ("../../_purge", "POST", '{"doc":["%s"]}'), ("../../_purged_infos_limit", "PUT", "5"))
FROM = (
    {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}, {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
    {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://127.0.0.1:1"}, {"origin": "null", "sec-fetch-site": "cross-site"},
    {"referer": "http://evil.example/page"}, {"referer": "http://127.0.0.1:1/"},
    {"user-agent": "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"}
)


def prepare(server):
    path = database(server, "linked")
    ask(server, "PUT", path + "/_security", {"members": {"names": ["owner"]}, "admins": {"names": ["owner"]}})
    owner = {"authorization": account(server, "owner", "letmein")}
    rev = ask(server, "PUT", path + "/doc", {}).get("rev")
    update = "function(doc, req) { return [{_id: req.uuid}, 'made']; }"
    made = ask(server, "PUT", path + "/_design/d", {"rewrites": OWN_REWRITES, "updates": {"u": update}}, owner)
    if made.status != 201:
        raise RuntimeError(made.text)
    return path, rev


def led(to, method, body):
    target = {"path": to, "method": method, "headers": {"Content-Type": "application/json"}, **({"body": body} if body else {})}
    return "/_design/d/_rewrite/x?to=" + segment(json.dumps(target))


def out_of_the_database(server, rng):
    """A function of `rewrites` leads out of its database to change nothing, whoever follows it."""
    path, _ = prepare(server)
    database(server, "victim"), database(server, "linked2")
    ask(server, "PUT", "/victim/doc", {"text": "hidden"})
    before = [ask(server, "GET", of).json for of in ("/_all_dbs", "/victim/_security", "/_node/_local/_config/admins")]
    for up, (to, method, body) in itertools.product(UPS, OUTSIDE):
        for by in ("GET", "POST"):
            answer = ask(server, by, path + led(up + to, method, body), {} if by == "POST" else None)
            yield holds(f"{by} to {method} {up}{to}", answer.status != 0, answer.text[:200])
        now = [ask(server, "GET", of).json for of in ("/_all_dbs", "/victim/_security", "/_node/_local/_config/admins")]
        yield equal(f"nothing has changed by {method} {up}{to}", now, before)
    yield equal("no document was made", ask(server, "GET", "/victim/new").status, 404)


def of_the_server(server, rng):
    """Who follows a link lends no right of the server's to the author of the function."""
    for at, (to, method, body) in enumerate(OF_THE_SERVER):
        path, rev = prepare(server)
        answer = ask(server, "GET", path + led(to, method, body % rev if body and "%" in body else body))
        yield equal(f"{method} {to} by a link", (answer.status, answer.get("error")), (403, "forbidden"))
        yield holds(f"the document is there behind {method} {to}", ask(server, "GET", path + "/doc").status == 200, "it is gone")


def other_origins(server, rng):
    """A page of another origin, a neighbour's on the same site too, changes nothing by who is signed in, by whatever method."""
    path, _ = prepare(server)
    signed_in = ask(server, "POST", "/_session", {"name": ADMIN[0], "password": ADMIN[1]}, {"authorization": None}, timeout=60)
    cookie = {"authorization": None, "cookie": signed_in.headers["set-cookie"].split(";")[0]}
    changes = (
        ("GET", led("../../_bulk_docs", "POST", '{"docs":[{"a":1}]}'), None), ("GET", led("../../made", "PUT", "{}"), None), ("HEAD", led("../../made2", "PUT", "{}"), None), ("GET", led("../../_compact", "POST", "{}"), None),
        ("POST", led("../../_bulk_docs", "POST", '{"docs":[{"a":1}]}'), {}), ("POST", "/_design/d/_update/u", {}), ("POST", "/_bulk_docs", {"docs": [{}]}), ("POST", "", {}), ("PUT", "/made3", {})
    )
    for (method, where, body), headers in itertools.product(changes, FROM):
        # Browsers say the origin of what is no `GET`.
        if method in ("POST", "PUT") and (headers.get("sec-fetch-site") == "same-site" or "referer" in headers or "user-agent" in headers):
            headers = {**headers, "origin": "http://127.0.0.1:1"}
        answer = ask(server, method, path + where, body, {**cookie, **headers})
        yield equal(f"{method} {short(where)} {headers}", answer.status, 403)


def lines_of_the_log(server, rng):
    """No text of a database's begins a line of the log, or moves a terminal's cursor."""
    path, _ = prepare(server)
    read = len(server.log_path.read_bytes().decode(errors="replace"))
    for at, text in enumerate(("\n2000-01-01T00:00:00Z  INFO audit: forged", "\r\nforged", "\u2028forged", "\x1b[2Jforged", "\x85forged", "\x9b2Jforged", "\x7f\x08forged")):
        said = json.dumps(text)
        thrown = (f"throw {said}", f"throw new Error({said})", f"throw ['fatal', {said}, {said}]", f"throw {{name: 'n', message: {said}}}", f"throw {{forbidden: {said}}}")
        for view, statement in enumerate(thrown):
            id = f"{path}/_design/t{at}{view}"
            maps = {"v" + text: {"map": "function(doc) { " + statement + " }"}, "r": {"map": "function(doc) { emit(1, 1); }", "reduce": "function() { " + statement + " }"}}
            ask(server, "PUT", id, {"views": maps, "shows": {"s": "function() { " + statement + " }"}, "filters": {"f": "function() { " + statement + " }"}})
            for where in ("/_view/" + segment("v" + text), "/_view/r", "/_show/s"):
                ask(server, "GET", id + where)
            ask(server, "GET", f"{path}/_changes?filter=t{at}{view}/f")
        ask(server, "PUT", f"{path}/{segment(text)}", {})
        ask(server, "POST", "/_session", {"name": text, "password": "x"}, {"authorization": None}, timeout=60)
        ask(server, "POST", "/_replicate", {"source": "linked", "target": "linked" + text})
        log = server.log_path.read_bytes().decode(errors="replace")
        log, read = log[read:], len(log)
        yield holds(f"lines with {text!r}", not any(line.startswith(("forged", "2000-01-01T00:00:00Z")) for line in log.split("\n")), "a line is forged")
        yield holds(f"controls with {text!r}", not any(ord(character) < 32 and character not in "\n\t" or 127 <= ord(character) < 160 for character in log), "the log has controls")


lines_of_the_log.longest_wait = 10.0

GROUPS = (out_of_the_database, of_the_server, other_origins, lines_of_the_log)
