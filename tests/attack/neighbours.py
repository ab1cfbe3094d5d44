"""A neighbour who does nothing wrong - a user with an own database, in a process of its own - and tenants that attack beside it.

The neighbour reads, writes under a validation, asks views, reductions, queries, filters, shows and lists, follows a feed, and keeps
attachments; of each answer it knows what it must be. What fails is counted: another status, other data, no answer within `BOUND`. How long
it waited is only printed: median, 95 % and longest, in milliseconds, before the attack and during it.
"""

import collections
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from gateway import basic
from server import MB
from tools import Peak

# Only the administrator's requests of the attack itself are without limits by address.
SETUP = {"admin": True, "config": 'unlimited = ["127.0.0.1"]\n'}
# No answer within so many seconds is a hang.
BOUND = 30
STATIC = 50
NEIGHBOUR, PASSWORD = "nora", "a password of nora's"

DESIGN = {
    "validate_doc_update": "function(doc, old, user) { if (doc.bad) throw({forbidden: 'bad'}); if (user.name !== 'nora') throw({forbidden: 'foreign'}); }",
    "views": {
        "by_n": {"map": "function(doc) { emit([doc.type, doc.n], doc.n); }"},
        "sum": {"map": "function(doc) { if (doc.type === 'static') emit(doc.type, doc.n); }", "reduce": "_sum"},
        "scripted": {
            "map": "function(doc) { if (doc.type === 'static') emit(doc.type, doc.n); }",
            "reduce": "function(keys, values) { return sum(values); }",
        },
    },
    "filters": {"tens": "function(doc) { return doc.type === 'static' && doc.n % 10 === 0; }"},
    "shows": {"s": "function(doc, req) { return 'n=' + doc.n; }"},
    "lists": {"l": "function(head, req) { start({headers: {'Content-Type': 'text/plain'}}); var row; while (row = getRow()) send(row.value + ','); }"},
}


def prepare(server, database="theirs"):
    """The neighbour's database, as its administrator makes it."""
    from asking import ask
    from rights import account
    if ask(server, "GET", "/" + database).status == 200:
        return
    account(server, NEIGHBOUR, PASSWORD)
    ask(server, "PUT", "/" + database)
    owners = {"names": [NEIGHBOUR]}
    ask(server, "PUT", f"/{database}/_security", {"members": owners, "admins": owners})
    who = Tenant(server, NEIGHBOUR, PASSWORD, "127.0.2.1")
    docs = [{"_id": f"static{n}", "type": "static", "n": n, "text": "y" * 500} for n in range(STATIC)]
    for method, path, body in (
        ("POST", "/_bulk_docs", {"docs": docs}), ("PUT", "/_design/d", DESIGN), ("POST", "/_index", {"index": {"fields": ["type", "n"]}}), ("GET", "/_design/d/_view/by_n?limit=1", None)
    ):
        answer = ask(who, method, f"/{database}{path}", body, timeout=60)
        if answer.status not in (200, 201):
            raise RuntimeError(f"the neighbour's {path}: {answer.status} {answer.text[:200]}")


class Tenant:
    """A user from an address of its own: what `asking` needs of a server. Without a name: an anonymous client."""

    def __init__(self, server, name=None, password="letmein", address="127.0.1.1", port=None):
        self.server, self.process, self.port = server, server.process, port or server.port
        self.authorization = basic(name, password) if name else None
        self.source = (address, 0)

    def connect(self, timeout=20, receive_buffer=None):
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(timeout)
        sock.bind(self.source)
        sock.connect(("127.0.0.1", self.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def head(self, method, path, length=None, more=()):
        """A request's head, as bytes."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", *more]
        if self.authorization:
            lines.append(f"Authorization: {self.authorization}")
        if length is not None:
            lines.append(f"Content-Length: {length}")
            if not any(line.lower().startswith("content-type") for line in more):
                lines.append("Content-Type: application/json")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def tenants(server, name, count=1):
    """One user at so many addresses, whose password the server has checked."""
    from asking import ask
    from rights import account
    account(server, name, "letmein")
    made = [Tenant(server, name, address=f"127.0.1.{at % 250 + 1}") for at in range(count)]
    signed_in = ask(made[0], "GET", "/_session", timeout=60)
    if signed_in.status != 200:
        raise RuntimeError(f"{name}: {signed_in.status} {signed_in.text[:200]}")
    return made


def owned(server, owner, name, public=False):
    """An empty database that a user administers. Gives its path."""
    from asking import ask
    ask(server, "DELETE", "/" + name)
    made = ask(server, "PUT", "/" + name, timeout=60)
    if made.status != 201:
        raise RuntimeError(f"no database {name}: {made.status} {made.text[:200]}")
    ask(server, "PUT", f"/{name}/_security", {"members": {} if public else {"names": [owner]}, "admins": {"names": [owner]}})
    return "/" + name


def children(server):
    """Processes that the server has started, and theirs, with their resident bytes."""
    parents, found = {}, {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                pass
    ours, grows = {server.process.pid}, True
    while grows:
        more = {pid for pid, parent in parents.items() if parent in ours} - ours
        ours, grows = ours | more, bool(more)
    for pid in ours - {server.process.pid}:
        try:
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    found[pid] = int(line.split()[1]) * 1024
        except OSError:
            pass
    return found


class Family:
    """The most processes and memory that the server's processes of functions take while this is open."""

    def __init__(self, server):
        self.server, self.count, self.bytes, self.ending = server, 0, 0, threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ending.set()
        self.thread.join()

    def _run(self):
        while not self.ending.wait(0.2):
            found = children(self.server)
            self.count, self.bytes = max(self.count, len(found)), max(self.bytes, sum(found.values()))


def flood(workers, seconds, work, seed=0):
    """Has so many threads call `work(rng, at)` again and again; gives its results, and errors that it raised."""
    end, results, lock = time.monotonic() + seconds, [], threading.Lock()

    def run(at):
        rng, found = random.Random(f"{seed} {at}"), []
        while time.monotonic() < end:
            try:
                found.append(work(rng, at))
            except (OSError, http.client.HTTPException) as error:
                found.append(type(error).__name__)
        with lock:
            results.extend(found)

    threads = [threading.Thread(target=run, args=(at,), daemon=True) for at in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 150)
    hung = sum(thread.is_alive() for thread in threads)
    return results + ["hung"] * hung


def told(name, results):
    """Prints how often what came."""
    counted = collections.Counter(results)
    print(f"    {name}: {sum(counted.values())} requests: " + ", ".join(f"{what} {count}" for what, count in counted.most_common(9)), flush=True)


def judged(name, results, wrong=lambda result: "it hung" if result == "hung" else None):
    """Prints the results, and gives a step for each."""
    told(name, results)
    for result in results:
        yield f"{name}: {result}", wrong(result)


def late(make):
    """Steps that are made when they are asked for: while the neighbour is there."""
    yield from make()


def reset(sock):
    """Ends a connection with RST."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()
    except OSError:
        pass


class Neighbour:
    """The neighbour's process; `kind` is "couch" or one of `ports.NEIGHBOURS`."""

    def __init__(self, server, kind="couch", extra=""):
        command = [sys.executable, __file__, kind, str(server.port), extra]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def phase(self, name):
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()

    def stop(self):
        try:
            text, _ = self.process.communicate("end\n", timeout=BOUND * 3)
            return json.loads(text)
        except (subprocess.TimeoutExpired, ValueError) as error:
            self.process.kill()
            self.process.wait()
            return {"during": {"itself": {"waits": [], "failures": [repr(error)]}}}


def figures(waits):
    if not waits:
        return "none"
    waits = sorted(waits)
    at = lambda share: 1000 * waits[min(len(waits) - 1, int(share * len(waits)))]
    return f"{at(0.5):.0f}/{at(0.95):.0f}/{1000 * waits[-1]:.0f}"


def beside(server, name, attack, memory=900 * MB, functions=900 * MB, kind="couch", extra="", before=4, after=3):
    """Runs an attack, an iterable of steps, beside a neighbour; what came of both."""
    if kind == "couch":
        prepare(server)
    files, neighbour = sum(1 for _ in server.directory.rglob("*")), Neighbour(server, kind, extra)
    neighbour.phase("before")
    time.sleep(before)
    with Peak(server, settles_within=0) as peak, Family(server) as family:
        neighbour.phase("during")
        began = time.monotonic()
        yield from attack
        seconds = time.monotonic() - began
        neighbour.phase("after")
        time.sleep(after)
    found = neighbour.stop()
    print(f"    {name}: {seconds:.0f} s, {peak.most // MB} MB resident, {family.count} processes of functions with {family.bytes // MB} MB", flush=True)
    for operation in found.get("before", found["during"]):
        parts = [found.get(phase, {}).get(operation, {"waits": [], "failures": []}) for phase in ("before", "during", "after")]
        counted = " ".join(f"{len(part['waits'])}" for part in parts)
        print(f"        {operation:12} before {figures(parts[0]['waits']):>14}  during {figures(parts[1]['waits']):>18}  after {figures(parts[2]['waits']):>14} ms ({counted} answers)", flush=True)
        failures = [f"{phase}: {failure}" for phase, part in zip(("before", "during", "after"), parts) for failure in part["failures"]]
        served = len(parts[1]["waits"]) + len(parts[1]["failures"])
        if not failures and not served:
            failures = ["it was not served at all"]
        yield f"{name}: the neighbour's {operation}", f"{len(failures)} of {served}: {failures[:2]}" if failures else None
    yield f"{name}: memory", peak.complaint(memory)
    yield f"{name}: memory of functions", f"{family.bytes // MB} MB, not {functions // MB}" if family.bytes > functions else None
    more = sum(1 for _ in server.directory.rglob("*")) - files
    yield f"{name}: no files are left", f"{more} more" if more > 2 else None


def at_rest(server, name, processes=32, within=60):
    """After what attacks is gone: the processor is idle, and processes of functions are few and small."""
    yield f"{name}: it comes to rest", None if server.is_idle(within) else "the processor is busy with nobody waiting"
    end = time.monotonic() + 15
    while (found := children(server)) and (len(found) > processes or sum(found.values()) > 200 * MB) and time.monotonic() < end:
        time.sleep(0.3)
    wrong = len(found) > processes or sum(found.values()) > 200 * MB
    yield f"{name}: processes of functions end", f"{len(found)} with {sum(found.values()) // MB} MB" if wrong else None


# What follows is the neighbour's process.


class Wrong(Exception):
    """An answer that is not what it must be."""


class Caller:
    """One who asks over a connection that is kept."""

    def __init__(self, port, authorization, address="127.0.2.1"):
        self.port, self.address, self.connection = port, address, None
        self.headers = {"content-type": "application/json"}
        if authorization:
            self.headers["authorization"] = authorization

    def ask(self, method, path, body=None, statuses=(200,), headers=None):
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        sent = {**self.headers, **(headers or {})}
        for attempt in range(2):
            is_new = self.connection is None
            if is_new:
                self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=BOUND, source_address=(self.address, 0))
            try:
                self.connection.request(method, path, body, sent)
                answer = self.connection.getresponse()
                text = answer.read()
                break
            except (OSError, http.client.HTTPException) as error:
                self.connection.close()
                self.connection = None
                # A kept connection may end between two requests.
                if is_new or attempt or isinstance(error, TimeoutError):
                    raise Wrong(f"{method} {path}: {error!r}") from error
        if answer.status not in statuses:
            raise Wrong(f"{method} {path}: {answer.status} {text[:150]!r}")
        return text


def equal(found, expected, of):
    if found != expected:
        raise Wrong(f"{of}: {str(found)[:150]}, not {str(expected)[:150]}")


class Operations:
    """What a neighbour does at CouchDB's port; each operation has a thread."""

    NAMES = ("get", "put", "view", "reduce", "find", "filter", "show", "list", "feed", "upload")

    def __init__(self, port, extra=""):
        self.port, self.authorization, self.db = port, basic(NEIGHBOUR, PASSWORD), "/theirs"
        self.tag, self.written, self.lines = f"{os.getpid()}", None, {}
        self.callers = {name: Caller(port, self.authorization) for name in self.NAMES}
        self.arrived, self.closed, self.followed = threading.Condition(), 0, False
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self):
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=BOUND, source_address=("127.0.2.1", 0))
                connection.request("GET", f"{self.db}/_changes?feed=continuous&since=now&heartbeat=5000", headers={"authorization": self.authorization})
                answer = connection.getresponse()
                if answer.status == 200:
                    self.followed = True
                    while line := answer.readline():
                        if len(line) > 2:
                            with self.arrived:
                                self.lines[json.loads(line).get("id")] = time.monotonic()
                                self.arrived.notify_all()
            except (OSError, http.client.HTTPException, ValueError):
                pass
            self.closed, self.followed = self.closed + 1, False
            time.sleep(0.5)

    def get(self, caller, at):
        n = at % STATIC
        equal(json.loads(caller.ask("GET", f"{self.db}/static{n}"))["n"], n, "the document")

    def put(self, caller, at):
        if at % 4 == 3:
            caller.ask("PUT", f"{self.db}/bad{self.tag}-{at}", {"bad": True}, (403,))
        else:
            caller.ask("PUT", f"{self.db}/w{self.tag}-{at}", {"type": "w" + self.tag, "n": at}, (201,))
            self.written = at

    def view(self, caller, at):
        written = self.written
        if written is not None:
            key = "%5B%22w" + self.tag + f"%22,{written}%5D"
            rows = json.loads(caller.ask("GET", f"{self.db}/_design/d/_view/by_n?key={key}"))["rows"]
            equal([row["id"] for row in rows], [f"w{self.tag}-{written}"], "a view behind a write")
        else:
            rows = json.loads(caller.ask("GET", f"{self.db}/_design/d/_view/by_n?key=%5B%22static%22,7%5D"))["rows"]
            equal([row["value"] for row in rows], [7], "a view")

    def reduce(self, caller, at):
        name = ("sum", "scripted")[at % 2]
        rows = json.loads(caller.ask("GET", f"{self.db}/_design/d/_view/{name}"))["rows"]
        equal([row["value"] for row in rows], [STATIC * (STATIC - 1) // 2], name)

    def find(self, caller, at):
        body = {"selector": {"type": "static", "n": {"$gte": 10}, "text": {"$regex": "^y+$"}}, "fields": ["n"], "limit": 100}
        equal(len(json.loads(caller.ask("POST", f"{self.db}/_find", body))["docs"]), STATIC - 10, "found documents")

    def filter(self, caller, at):
        text = caller.ask("GET", f"{self.db}/_changes?filter=d/tens&limit=5&style=main_only")
        equal(len(json.loads(text)["results"]), STATIC // 10, "filtered changes")

    def show(self, caller, at):
        equal(caller.ask("GET", f"{self.db}/_design/d/_show/s/static{at % STATIC}"), b"n=%d" % (at % STATIC), "a show")

    def list(self, caller, at):
        text = caller.ask("GET", f"{self.db}/_design/d/_list/l/by_n?startkey=%5B%22static%22,10%5D&endkey=%5B%22static%22,15%5D")
        equal(text, b"10,11,12,13,14,15,", "a list")

    def feed(self, caller, at):
        id, closed = f"f{self.tag}-{at}", self.closed
        if not self.followed:
            end = time.monotonic() + BOUND
            while not self.followed and time.monotonic() < end:
                time.sleep(0.05)
            if not self.followed:
                raise Wrong("no feed is to be had")
        caller.ask("PUT", f"{self.db}/{id}", {"type": "f", "n": at}, (201,))
        with self.arrived:
            seen = self.arrived.wait_for(lambda: id in self.lines or self.closed != closed, BOUND)
        if self.closed != closed:
            raise Wrong("the feed ended")
        if not seen:
            raise Wrong("a row did not come")

    def upload(self, caller, at):
        data, id = bytes([at % 256]) * 20_000, f"a{self.tag}-{at}"
        caller.ask("PUT", f"{self.db}/{id}/file", data, (201,), {"content-type": "x/y"})
        equal(caller.ask("GET", f"{self.db}/{id}/file"), data, "an attachment")


def main(kind, port, extra):
    import importlib
    operations = Operations(port, extra) if kind == "couch" else importlib.import_module("ports").NEIGHBOURS[kind](port, extra)
    found, phase, ended = {}, ["before"], threading.Event()
    for name in ("before", "during", "after"):
        found[name] = {operation: {"waits": [], "failures": []} for operation in operations.NAMES}

    def run(name):
        at = 0
        while not ended.is_set():
            kept, began = found[phase[0]][name], time.monotonic()
            try:
                getattr(operations, name)(operations.callers[name], at)
                kept["waits"].append(time.monotonic() - began)
            except Exception as error:
                kept["failures"].append(f"{error if isinstance(error, Wrong) else repr(error)} after {time.monotonic() - began:.1f} s")
            at += 1
            ended.wait(0.2)

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in operations.NAMES]
    for thread in threads:
        thread.start()
    for line in sys.stdin:
        if line.strip() == "end":
            break
        phase[0] = line.strip()
    ended.set()
    for thread in threads:
        thread.join(BOUND + 5)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
