"""Sync Gateway's port and Firefox Sync's under load of other users, beside a neighbour at the same port."""

import gzip
import http.client
import json
import threading
import time
from types import SimpleNamespace

import gateway
import sync
from asking import ask, bulk
from neighbours import BOUND, Caller, Tenant, Wrong, at_rest, beside, equal, flood, judged, late, reset

SETUP = {"admin": True, "config": 'unlimited = ["127.0.0.1"]\n', "more": lambda server: (gateway.listeners(server)[0] + sync.listener(server)[0], [])}
LIMITS = ("0", "1", "99999999999")


class Gateway:
    """What a user of a database with channels does."""

    NAMES = ("get", "put", "changes", "all_docs", "bulk", "feed")

    def __init__(self, port, extra=""):
        self.port, self.db, self.tag = port, "/gtheirs", f"{time.time_ns()}"
        self.callers = {name: Caller(int(extra), gateway.basic("gina", "letmein")) for name in self.NAMES}
        self.extra, self.since, self.at = int(extra), 0, 0

    def get(self, caller, at):
        equal(json.loads(caller.ask("GET", f"{self.db}/static{at % 20}"))["n"], at % 20, "the document")

    def put(self, caller, at):
        caller.ask("PUT", f"{self.db}/w{self.tag}-{at}", {"n": at, "channels": ["c"], "bad": at % 4 == 3}, (403,) if at % 4 == 3 else (201,))

    def changes(self, caller, at):
        rows = json.loads(caller.ask("GET", f"{self.db}/_changes?filter=sync_gateway/bychannel&channels=s"))["results"]
        equal(len([row for row in rows if row["id"].startswith("static")]), 20, "changes of a channel")

    def all_docs(self, caller, at):
        rows = json.loads(caller.ask("GET", f"{self.db}/_all_docs?startkey=%22static%22&endkey=%22statid%22"))["rows"]
        equal(len(rows), 20, "rows")

    def bulk(self, caller, at):
        rows = json.loads(caller.ask("POST", f"{self.db}/_bulk_docs", {"docs": [{"_id": f"b{self.tag}-{at}-{n}", "channels": ["b"]} for n in range(10)]}, (201,)))
        equal(sum("rev" in row for row in rows), 10, "written documents")

    def feed(self, caller, at):
        """A longpoll that a write ends."""
        feed = Caller(self.extra, gateway.basic("gina", "letmein"))
        since = json.loads(caller.ask("GET", f"{self.db}/_changes?limit=1&since=0"))["last_seq"] if not self.since else self.since
        found = {}

        def follow():
            try:
                found["text"] = feed.ask("GET", f"{self.db}/_changes?feed=longpoll&filter=sync_gateway/bychannel&channels=f&since={since}")
            except Wrong as error:
                found["error"] = error

        thread = threading.Thread(target=follow)
        thread.start()
        caller.ask("PUT", f"{self.db}/f{self.tag}-{at}", {"channels": ["f"]}, (201,))
        thread.join(BOUND)
        if feed.connection:
            feed.connection.close()
        if "text" not in found:
            raise Wrong(f"a longpoll: {found.get('error', 'no answer')}")
        # A longpoll may have a row that was written before.
        self.since = json.loads(found["text"])["last_seq"]


class Device:
    """What a Firefox does."""

    NAMES = ("put", "post", "list", "info")

    def __init__(self, port, extra=""):
        self.server, self.port = SimpleNamespace(sync_port=int(extra)), port
        self.callers, self.credentials = {name: Caller(int(extra), None) for name in self.NAMES}, sync.of_user(1)

    def ask(self, caller, method, path, body=None):
        target = "/1.5/1" + path
        return caller.ask(method, target, body, (200,), {"authorization": sync.signature(self.server, self.credentials, method, target)})

    def put(self, caller, at):
        self.ask(caller, "PUT", f"/storage/tabs/t{at % 5}", {"payload": f"mine {at}"})
        equal(json.loads(self.ask(caller, "GET", f"/storage/tabs/t{at % 5}"))["payload"], f"mine {at}", "a record")

    def post(self, caller, at):
        told = json.loads(self.ask(caller, "POST", "/storage/history", [{"id": f"h{n}", "payload": "x" * 200} for n in range(50)]))
        equal(len(told["success"]), 50, "records")

    def list(self, caller, at):
        equal(len(json.loads(self.ask(caller, "GET", "/storage/fixed?full=1&limit=100"))), 30, "a list")

    def info(self, caller, at):
        if "fixed" not in json.loads(self.ask(caller, "GET", "/info/collections")):
            raise Wrong("a collection is lost")


NEIGHBOURS = {"gateway": Gateway, "sync": Device}

COSTLY = (
    "for (;;);", "var l = []; for (;;) l.push('x'.repeat(100000) + l.length);", "throw new Error('x'.repeat(3000));", "for (var i = 0; i < 999; i++) channel('c' + i + doc.n);", "for (var i = 0; i < 5000; i++) channel('c' + i);", "var t = Date.now(); while (Date.now() - t < 800);", "channel('c' + doc.n); for (var i = 0; i < 500; i++) access('u' + i % 30, 'c' + i);",
    "(function f() { f(); })();", "/(x+x+)+y/.test('x'.repeat(5000)); channel('a');", "channel('x'.repeat(1000)); expiry(1 + doc.n % 3);", "requireAccess('x'.repeat(9000));", "throw {forbidden: 'y'.repeat(100000)};", "channel(doc.channels); role('u1', 'role:r' + doc.n);"
)


def prepared(server):
    """The neighbour's database and the others': one with a costly function each."""
    made = gateway.channelled(server, "gtheirs", "function(doc) { if (doc.bad) throw({forbidden: 'bad'}); channel(doc.channels); }", gina={"admin_channels": ["c", "s", "b", "f"]})
    bulk(gateway.administrator(server), made, [{"_id": f"static{n}", "n": n, "channels": ["s"]} for n in range(20)])
    for at in range(26):
        gateway.channelled(server, f"gate{at}", "function(doc, old, meta) { var unlike = %d; %s }" % (at, COSTLY[at % len(COSTLY)]), mara={"admin_channels": ["*"] if at % 2 else [f"c{n}" for n in range(900)]})


def through_the_gateway(server, rng):
    """Users of 26 databases whose sync functions take what they can: writers, followers, readers, who wait or vanish."""
    prepared(server)
    who = [Tenant(server, "mara", address=f"127.0.1.{at + 1}", port=server.public_port) for at in range(80)]
    wrong_words = [Tenant(server, f"mara{at % 9}", "wrong", f"127.0.3.{at + 1}", server.public_port) for at in range(40)]

    def work(rng, at):
        by, path, kind = who[rng.randrange(80)], f"/gate{rng.randrange(26)}", rng.randrange(13)
        timeout = rng.choice((0.3, 3, 25))
        if kind < 3:
            answer = bulk(by, path, [{"n": rng.randrange(99), "channels": [f"c{n}"]} for n in range(rng.choice((1, 40, 400)))])
        elif kind < 5:
            answer = ask(by, "PUT", f"{path}/d{rng.randrange(200)}", {"n": rng.randrange(99), "channels": ["a"]}, timeout=timeout)
        elif kind == 5:
            answer = ask(by, "GET", path + "/_changes?include_docs=true&revocations=true&limit=" + rng.choice(LIMITS), timeout=timeout)
        elif kind == 6:
            answer = ask(by, "GET", path + "/_changes?since=0&timeout=2000&feed=" + rng.choice(("longpoll", "continuous")), timeout=timeout)
        elif kind == 7:
            answer = ask(by, "POST", path + "/_bulk_get?revs=true&attachments=true", {"docs": [{"id": f"d{n % 200}"} for n in range(2_000)]}, {"accept": "multipart/mixed"}, timeout=timeout)
        elif kind == 8:
            answer = ask(rng.choice(wrong_words), "GET", path + "/_all_docs", timeout=timeout)
        elif kind == 9:
            answer = ask(by, "POST", path + "/_session", {"name": "mara", "password": rng.choice(("letmein", "wrong"))}, timeout=timeout)
        elif kind == 10:
            answer = ask(by, "POST", path + "/_revs_diff", {f"d{n}": ["1-a", "2-b"] for n in range(3_000)}, timeout=timeout)
        elif kind == 11:
            answer = ask(by, "PUT", f"{path}/a{rng.randrange(99)}/file", b"x" * rng.choice((10, 2_000_000)), {"content-type": "x/y"}, timeout=timeout)
        else:
            sock = by.connect(timeout=5)
            text = json.dumps({"docs": [{"n": n} for n in range(500)]}).encode()
            sock.sendall((by.head("POST", path + "/_bulk_docs", len(text)) + text)[:rng.choice((300, 4_000, 10**9))])
            time.sleep(rng.choice((0, 0.3)))
            reset(sock)
            return "vanished"
        return f"{answer.status} {answer.get('error') or ''}" if answer.status else "left"

    for workers in (24, 120):
        attack = late(lambda: judged(f"{workers} at the gateway", flood(workers, 20, work, rng.random()), lambda result: "it hung" if result == "hung" else None))
        yield from beside(server, f"{workers} at the gateway", attack, kind="gateway", extra=str(server.public_port))
        # What users of the one port do is felt at the other one, or not.
    couch = late(lambda: judged("60 at the gateway", flood(60, 15, work, rng.random()), lambda result: "it hung" if result == "hung" else None))
    yield from beside(server, "60 at the gateway, and CouchDB's port", couch)
    for at in range(26):
        ask(gateway.administrator(server), "DELETE", f"/gate{at}/", timeout=60)
    yield from at_rest(server, "the gateway")


def granted(server, rng):
    """Administrators of the gateway, at its other port, change users, roles and functions all the time, of databases that are not the neighbour's."""
    prepared(server)
    admin = gateway.administrator(server)

    def work(rng, at):
        path, kind = f"/gate{rng.randrange(26)}", rng.randrange(8)
        if kind < 2:
            answer = ask(admin, "PUT", f"{path}/_user/u{rng.randrange(60)}", {"password": "letmein", "admin_channels": [f"c{n}" for n in range(rng.choice((1, 900)))], "admin_roles": [f"r{n}" for n in range(rng.choice((0, 90)))]}, timeout=30)
        elif kind == 2:
            answer = ask(admin, "PUT", f"{path}/_role/r{rng.randrange(90)}", {"admin_channels": [f"c{n}" for n in range(rng.choice((1, 900)))]}, timeout=30)
        elif kind == 3:
            answer = ask(admin, "PUT", f"{path}/_config/sync", "function(doc) { var unlike = %d; %s }" % (rng.randrange(10**9), rng.choice(COSTLY)), {"content-type": "application/javascript"}, timeout=30)
        elif kind == 4:
            answer = ask(admin, "POST", f"{path}/_resync?action=" + rng.choice(("start", "stop")), {}, timeout=30)
        elif kind == 5:
            answer = ask(admin, "DELETE", f"{path}/_user/u{rng.randrange(60)}", timeout=30)
        elif kind == 6:
            answer = bulk(admin, path, [{"_id": f"d{n}", "_rev": f"1-{rng.randrange(9)}", "n": n} for n in range(20)], new_edits=False)
        else:
            answer = ask(admin, "GET", path + rng.choice(("/_user/", "/_dumpchannel/c1", "/_all_docs?access=true&channels=true", "/_resync", "/_user/u1/_channels")), timeout=30)
        return f"{answer.status} {answer.get('error') or ''}" if answer.status else "left"

    attack = late(lambda: judged("administrators of the gateway", flood(24, 20, work, rng.random()), lambda result: "it hung" if result == "hung" else None))
    yield from beside(server, "administrators of the gateway", attack, kind="gateway", extra=str(server.public_port))
    for at in range(26):
        ask(admin, "DELETE", f"/gate{at}/", timeout=60)
    yield from at_rest(server, "administrators of the gateway")


def firefoxes(server, rng):
    """Sixty devices that store all they can, list all, send what is no record, sign wrongly, and vanish."""
    sync.ask(server, "POST", "/1.5/1/storage/fixed", [{"id": f"f{n}", "payload": "x"} for n in range(30)])
    large = json.dumps([{"id": f"r{n:04}", "payload": "y" * 20_000} for n in range(100)]).encode()
    credentials = {uid: sync.of_user(uid) for uid in range(2, 62)}

    def work(rng, at):
        uid, kind = rng.randrange(2, 62), rng.randrange(12)
        method, path, body, more = "GET", "/storage/c%d?full=1" % rng.randrange(6), None, {}
        if kind < 3:
            method, path, body = "POST", f"/storage/c{rng.randrange(6)}", large
        elif kind == 3:
            method, path, body = "POST", f"/storage/c{rng.randrange(6)}?batch=true", large
        elif kind == 4:
            method, path, body, more = "POST", "/storage/c1", gzip.compress(b"[" + b" " * 50_000_000 + b"]"), {"content-encoding": "gzip"}
        elif kind == 5:
            path += "&sort=" + rng.choice(("index", "newest", "oldest")) + "&limit=" + rng.choice(LIMITS)
        elif kind == 6:
            path = "/storage/c1?ids=" + ",".join(f"r{n:04}" for n in range(100)) + "&full=1"
        elif kind == 7:
            method, path = "DELETE", rng.choice(("/storage/c2", "/storage", "", "/storage/c3?ids=r0001,r0002"))
        elif kind == 8:
            path = rng.choice(("/info/collections", "/info/quota", "/info/collection_usage", "/info/collection_counts", "/info/configuration"))
        elif kind == 9:
            method, path, body = "POST", "/storage/c4", rng.choice((b"[" * 100_000, b"x" * 100_000, b"[" + b"1," * 400_000 + b"1]", b"\xff" * 1_000))
        target, signer = f"/1.5/{uid}{path}", credentials[uid]
        authorization = sync.signature(server, signer if kind != 10 else ("x" * 300, "y"), method, target)
        connection = http.client.HTTPConnection("127.0.0.1", server.sync_port, timeout=rng.choice((0.3, 20, 20)), source_address=(f"127.0.1.{uid}", 0))
        try:
            if kind == 11:
                connection.putrequest("POST", target)
                connection.putheader("authorization", sync.signature(server, signer, "POST", target))
                connection.putheader("content-length", "2000000")
                connection.putheader("content-type", "application/json")
                connection.endheaders(large[:rng.randrange(len(large))])
                time.sleep(0.1)
                reset(connection.sock)
                return "vanished"
            connection.request(method, target, body, {"authorization": authorization, "content-type": "application/json", **more})
            answer = connection.getresponse()
            answer.read()
            return f"{answer.status}"
        except TimeoutError:
            return "left"
        finally:
            connection.close()

    for workers in (16, 80):
        attack = late(lambda: judged(f"{workers} devices", flood(workers, 20, work, rng.random()), lambda result: result if result in ("hung", "500") else None))
        yield from beside(server, f"{workers} devices", attack, kind="sync", extra=str(server.sync_port))
    yield from at_rest(server, "devices")
    yield "the first device is still served", None if sync.still_served(server) else "it is not"


for group in (through_the_gateway, granted, firefoxes):
    group.longest_wait = 30

GROUPS = (through_the_gateway, granted, firefoxes)
