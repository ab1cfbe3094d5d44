"""Databases by the thousand that come and go, feeds by the thousand, and rights that are taken away under them, beside a neighbour."""

import base64
import json
import random
import resource
import select
import threading
import time

from asking import ask, bulk, holds, short
from neighbours import SETUP, Tenant, at_rest, beside, flood, judged, late, owned, tenants
from rights import account
from server import ADMIN

SETUP = {**SETUP, "config": SETUP["config"] + "[chttpd]\nadmin_only_all_dbs = false\n"}
SOFT, HARD = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (HARD, HARD))


class Followers:
    """Connections that are read all the time, by one thread; of each, its status, what it was told last, and when it ended."""

    def __init__(self):
        self.poll, self.socks, self.tails, self.ended, self.first = select.epoll(), {}, {}, {}, {}
        self.bytes, self.is_open = 0, True
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def follow(self, by, path, more=(), body=None, receive_buffer=None):
        sock = by.connect(timeout=20, receive_buffer=receive_buffer)
        sock.sendall(by.head("GET" if body is None else "POST", path, None if body is None else len(body), more) + (body or b""))
        sock.setblocking(False)
        self.socks[sock.fileno()], self.tails[sock.fileno()] = sock, b""
        self.poll.register(sock, select.EPOLLIN)
        return sock.fileno()

    def _run(self):
        while self.is_open:
            for descriptor, _ in self.poll.poll(0.2, 500):
                sock = self.socks.get(descriptor)
                try:
                    data = sock.recv(1 << 16)
                except BlockingIOError:
                    continue
                except (OSError, AttributeError):
                    data = b""
                self.bytes += len(data)
                self.first.setdefault(descriptor, data[9:12].decode("latin-1"))
                self.tails[descriptor] = (self.tails[descriptor] + data)[-2_000:]
                # A feed that ends in order leaves its connection open.
                if not data or self.tails[descriptor].endswith(b"\r\n0\r\n\r\n"):
                    self.ended[descriptor] = time.monotonic()
                    self.poll.unregister(descriptor)

    def statuses(self):
        found = {}
        for status in self.first.values():
            found[status] = found.get(status, 0) + 1
        return found

    def wait(self, of, condition, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end and not all(condition(descriptor) for descriptor in of):
            time.sleep(0.05)
        return sum(not condition(descriptor) for descriptor in of)

    def close(self):
        self.is_open = False
        self.thread.join(5)
        for sock in self.socks.values():
            sock.close()
        self.poll.close()


FEEDS = ("continuous&heartbeat=10000", "eventsource&heartbeat=10000", "continuous&heartbeat=10000&include_docs=true", "longpoll&timeout=60000", "continuous&heartbeat=10000&filter=_design", "continuous&heartbeat=1000&style=all_docs")
WEBSOCKET = ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: " + base64.b64encode(b"0" * 16).decode()]


def databases(server, rng):
    """A thousand databases are created, filled, followed, listed and deleted, again and again."""
    count, root = [0], [Tenant(server, *ADMIN, address=f"127.0.1.{at + 1}") for at in range(60)]

    def work(rng, at):
        by, name = root[rng.randrange(60)], f"/churn{rng.randrange(1_000)}"
        kind = rng.random()
        if kind < 0.45:
            count[0] += 1
            answer = ask(by, "PUT", name + rng.choice(("", "?partitioned=true", "?shards=16", "?q=8")), timeout=60)
        elif kind < 0.75:
            answer = ask(by, "DELETE", name, timeout=60)
        elif kind < 0.85:
            answer = bulk(by, name, [{"n": n} for n in range(20)])
        elif kind < 0.9:
            answer = ask(by, "PUT", name + "/_design/d", {"views": {"v": {"map": "function(doc) { emit(doc.n); }"}}}, timeout=30)
        elif kind < 0.95:
            answer = ask(by, "GET", rng.choice(("/_all_dbs", "/_dbs_info", "/_db_updates", name + "/_changes", name + "/_design/d/_view/v")), timeout=30)
        else:
            answer = ask(by, "GET", name + "/_changes?feed=longpoll&timeout=500&since=now", timeout=30)
        return f"{answer.status} {answer.get('error') or ''}" if answer.status else "left"

    def attack():
        followers = Followers()
        for at in range(300):
            followers.follow(root[at % 60], "/_db_updates?since=now&feed=" + rng.choice(FEEDS[:2]) if at % 10 else "/_db_updates?feed=longpoll&timeout=60000")
        wrong = lambda result: result if result in ("hung", "left") or result.startswith("500") else None
        yield from judged("databases", flood(32, 25, work, rng.random()), wrong)
        lasts = f"churnlast{rng.randrange(10**6)}"
        ask(server, "PUT", "/" + lasts)
        behind = followers.wait([at for at in followers.socks if at not in followers.ended], lambda at: lasts.encode() in followers.tails[at] or at in followers.ended, 30)
        print(f"    {count[0]} creations; 300 followers of _db_updates had {followers.bytes >> 10} kB, {len(followers.ended)} ended, {behind} behind", flush=True)
        yield holds("followers of _db_updates are told of the last one", behind == 0, f"{behind} of 300 are not")
        followers.close()

    yield from beside(server, "databases that come and go", attack())
    before = sum(1 for _ in server.directory.rglob("*"))
    for name in ask(server, "GET", "/_all_dbs").json:
        if name.startswith("churn"):
            ask(server, "DELETE", "/" + name, timeout=60)
    left = [name for name in ask(server, "GET", "/_all_dbs").json if name.startswith("churn")]
    yield holds("all are deleted", not left, str(left[:5]))
    yield from at_rest(server, f"databases that come and go ({before} files)")


def feeds(server, rng):
    """Thousands of feeds of one user in fifty databases that are written all the time."""
    who = tenants(server, "fred", 200)
    paths = [owned(server, "fred", f"fed{at}") for at in range(50)]

    def attack():
        followers, began = Followers(), time.monotonic()
        for at in range(4_000):
            try:
                path = f"{paths[at % 50]}/_changes?since=now&feed=" + (FEEDS[at % len(FEEDS)] if at % 7 else "websocket")
                followers.follow(who[at % 200], path, () if at % 7 else WEBSOCKET)
            except OSError:
                pass
        print(f"    {len(followers.socks)} feeds after {time.monotonic() - began:.1f} s", flush=True)

        def work(rng, at):
            answer = bulk(who[rng.randrange(200)], rng.choice(paths), [{"n": n, "text": "x" * 200} for n in range(rng.choice((1, 50)))])
            return f"{answer.status} {answer.get('error') or ''}" if answer.status else "left"

        yield from judged("writes beneath feeds", flood(6, 15, work, rng.random()), lambda result: result if result in ("hung", "left") or result.startswith("5") else None)
        print(f"    {followers.bytes >> 20} MB to {len(followers.socks)} feeds, {len(followers.ended)} ended: {followers.statuses()}", flush=True)
        for path in paths:
            bulk(who[0], path, [{"_id": "zlast"}, {"_id": "_design/zlast"}])
        open_ones = [at for at in followers.socks if at not in followers.ended and followers.first.get(at) in ("200", "101")]
        followers.wait(open_ones, lambda at: b"zlast" in followers.tails[at] or at in followers.ended, 30)
        for at in open_ones:
            yield f"feed {at} is told of the last write", None if b"zlast" in followers.tails[at] or at in followers.ended else f"{followers.tails[at][-200:]!r}"
        followers.close()

    yield from beside(server, "4,000 feeds", attack(), memory=1_200 << 20)
    yield from at_rest(server, "4,000 feeds")


SINCES = ("now", "0", "0-0", "x", "99999999999999999999", "%22%22", "now&last-event-id=0", "-1", "")
FILTERS = ("", "", "", "&filter=d/half", "&filter=d/slow", "&filter=d/throws", "&filter=d/none", "&filter=_view&view=d/v", "&filter=_doc_ids", "&filter=_selector", "&filter=_design", "&filter=sync_gateway/bychannel&channels=a", "&filter=d/half&x=" + "y" * 3_000)
FORMS = ("", "&style=all_docs", "&include_docs=true&conflicts=true", "&include_docs=true&attachments=true", "&descending=true", "&limit=1", "&limit=0", "&seq_interval=3", "&heartbeat=1", "&heartbeat=true", "&heartbeat=0", "&heartbeat=99999999", "&timeout=1", "&timeout=0", "&timeout=-1", "&include_docs=true&att_encoding_info=true&r=9")


def odd_feeds(server, rng):
    """Feeds of every parameter, filter and body: some do not read, some send what no client may, some leave and come again, under writes."""
    who, rough = tenants(server, "fred", 100), random.Random(rng.random())
    path = owned(server, "fred", "odd")
    functions = {"half": "function(doc, req) { return doc.n % 2; }", "slow": "function(doc) { var t = Date.now(); while (Date.now() - t < 30); return true; }", "throws": "function(doc) { throw 'x'; }"}
    ask(who[0], "PUT", path + "/_design/d", {"filters": functions, "views": {"v": {"map": "function(doc) { if (doc.n % 2) emit(doc.n); }"}}})
    bulk(who[0], path, [{"_id": f"o{n}", "n": n, "text": "x" * 500, "_attachments": {"a": {"data": "aGVsbG8=", "content_type": "text/plain"}}} for n in range(60)])

    def attack():
        followers, kinds = Followers(), {}

        def begin():
            feed = rough.choice(("continuous", "eventsource", "longpoll", "websocket", "normal", "x"))
            query = f"{path}/_changes?feed={feed}&since={rough.choice(SINCES)}{rough.choice(FILTERS)}{rough.choice(FORMS)}"
            body = rough.choice((None, None, b"{}", b'{"doc_ids":["o1","o2"]}', b'{"selector":{"n":{"$gt":5}}}', b'{"doc_ids":5}', b'{"selector":5}', b"{", json.dumps({"doc_ids": [f"o{n}" for n in range(9_000)]}).encode()))
            more = WEBSOCKET if feed == "websocket" and rough.random() < 0.8 else ["Last-Event-ID: 0"] if rough.random() < 0.1 else ()
            try:
                at = followers.follow(who[rough.randrange(100)], query, more, body if feed != "websocket" else None, 4_096 if rough.random() < 0.2 else None)
                kinds[at] = query
                if rough.random() < 0.1:
                    followers.socks[at].send(rough.choice((b"\x81\x83abcxyz", b"x" * 3_000, b"\x88\x80abcd", b"GET / HTTP/1.1\r\n\r\n")))
            except OSError:
                pass

        def work(rng, at):
            kind = rng.random()
            if kind < 0.5:
                for _ in range(8):
                    begin()
                return "feeds"
            by = who[rng.randrange(100)]
            if kind < 0.6:
                return f"{ask(by, 'GET', path + '/_changes?limit=5&since=' + rng.choice(SINCES), timeout=30).status} a page"
            answer = bulk(by, path, [{"_id": f"o{rng.randrange(60)}", "_rev": f"{rng.randrange(1, 9)}-{rng.randrange(16**9):x}", "n": n} for n in range(rng.choice((1, 20)))], new_edits=False)
            return f"{answer.status} written" if answer.status else "left"

        yield from judged("odd feeds", flood(4, 15, work, rng.random()), lambda result: result if result in ("hung", "left") or result.startswith("5") else None)
        plain = [followers.follow(who[at], f"{path}/_changes?feed=continuous&since=now&heartbeat=10000") for at in range(20)]
        begun = followers.wait(plain, lambda at: at in followers.first, 30)
        time.sleep(1)
        ask(who[0], "PUT", path + "/zlast", {"n": 1})
        behind = followers.wait(plain, lambda at: b"zlast" in followers.tails[at], 30)
        print(f"    {len(kinds)} odd feeds: {followers.statuses()}, {len(followers.ended)} ended, {followers.bytes >> 20} MB", flush=True)
        yield holds("plain feeds are told beside odd ones", begun == behind == 0, f"{begun} not begun, {behind} behind of 20")
        for at, query in kinds.items():
            status = followers.first.get(at, "none")
            # A filter that throws is answered 500, as in CouchDB.
            wrong = status.startswith("5") and status != "503" and "d/throws" not in query
            yield f"{short(query, 100)}", f"{status}: {followers.tails[at][:300]!r}" if wrong else None
        followers.close()

    yield from beside(server, "odd feeds", attack())
    yield from at_rest(server, "odd feeds")


def taken(server, rng):
    """Rights are taken away under feeds: by `_security`, with the user, with the database, with the password. They end, and are told nothing more."""
    who = [Tenant(server, f"gone{at}", address=f"127.0.1.{at % 250 + 1}") for at in range(4)]
    for at in range(4):
        account(server, f"gone{at}", "letmein")

    def attack():
        for way in ("_security", "user", "database", "password", "_security to others"):
            path = owned(server, "gone0", "taken")
            ask(server, "PUT", "/taken/_security", {"members": {"names": [f"gone{n}" for n in range(4)]}})
            for at in range(4):
                id = f"/_users/org.couchdb.user:gone{at}"
                now = ask(server, "GET", id)
                ask(server, "PUT", id, {"name": f"gone{at}", "password": "letmein", "roles": [], "type": "user", **({"_rev": now.get("_rev")} if now.status == 200 else {})}, timeout=60)
                # Only sixteen passwords of an address may wait for their check.
                ask(who[at], "GET", "/_session", timeout=60)
            followers = Followers()
            for at in range(400):
                followers.follow(who[at % 4], f"{path}/_changes?since=now&feed=" + (FEEDS[at % len(FEEDS)] if at % 7 else "websocket"), () if at % 7 else WEBSOCKET)
            for at in range(4):
                session = ask(server, "POST", "/_session", {"name": f"gone{at}", "password": "letmein"}, {"authorization": None}, timeout=60)
                cookie = session.headers.get("set-cookie", "").split(";")[0]
                by = Tenant(server, address=who[at].source[0])
                for _ in range(25):
                    followers.follow(by, f"{path}/_changes?since=now&feed=continuous&heartbeat=10000", [f"Cookie: {cookie}"])
            time.sleep(2)
            ask(server, "PUT", f"{path}/before", {"n": 1})
            time.sleep(1.5)
            began = len(followers.ended)
            if way == "_security":
                ask(server, "PUT", "/taken/_security", {"members": {"names": ["nobody"]}})
            elif way == "_security to others":
                ask(server, "PUT", "/taken/_security", {"members": {"roles": ["x"]}, "admins": {"names": ["other"]}})
            elif way == "database":
                ask(server, "DELETE", "/taken")
            for at in range(4) if way in ("user", "password") else ():
                id, now = f"/_users/org.couchdb.user:gone{at}", ask(server, "GET", f"/_users/org.couchdb.user:gone{at}").json
                now.pop("derived_key", None)
                ask(server, "DELETE", f"{id}?rev={now['_rev']}") if way == "user" else ask(server, "PUT", id, {**now, "password": "another one"}, timeout=60)
            # What comes within a second of the change may have been under way.
            time.sleep(2.5)
            secret = f"secret{rng.randrange(10**9)}"
            ask(server, "PUT", "/taken")
            ask(server, "PUT", f"/taken/{secret}", {"n": 1})
            left = followers.wait(list(followers.socks), lambda at: at in followers.ended, 15)
            told = [at for at, tail in followers.tails.items() if secret.encode() in tail]
            print(f"    {way}: {len(followers.socks)} feeds {followers.statuses()}, {began} ended before, {left} not ended 15 s after, {len(told)} were told", flush=True)
            yield from ((f"{way}: feed {at}", "it was told what it may not read" if at in told else None) for at in followers.socks)
            yield holds(f"{way}: feeds were begun", set(followers.statuses()) <= {"200", "101"} and len(followers.first) == len(followers.socks), str(followers.statuses()))
            yield holds(f"{way}: all feeds end", left == 0, f"{left} of {len(followers.socks)} are open after 15 s")
            followers.close()
            ask(server, "DELETE", "/taken")

    yield from beside(server, "rights taken away", attack())
    yield from at_rest(server, "rights taken away")


for group in (databases, feeds, odd_feeds, taken):
    group.longest_wait = 30

GROUPS = (databases, feeds, odd_feeds, taken)
