"""Documents of 7.9 MB, read by a user's many clients in all ways of reading, beside a neighbour: at once, slowly, not at all, half-closed,
reset in the middle, pipelined."""

import json
import select
import socket
import threading
import time

from asking import ask, holds
from neighbours import SETUP, at_rest, beside, flood, judged, late, owned, reset, tenants
from server import MB

COUNT = 12
FORMS = {
    "GET": ("GET", "/big%(n)d", None),
    "GET with revisions": ("GET", "/big%(n)d?revs=true&conflicts=true", None),
    "open_revs": ("GET", "/big%(n)d?open_revs=all", None),
    "_all_docs": ("GET", "/_all_docs?include_docs=true", None),
    "_all_docs of keys": ("POST", "/_all_docs?include_docs=true", {"keys": [f"big{n % COUNT}" for n in range(100)]}),
    "queries of _all_docs": ("POST", "/_all_docs/queries", {"queries": [{"include_docs": True}] * 20}),
    "_changes": ("GET", "/_changes?include_docs=true", None),
    "continuous": ("GET", "/_changes?include_docs=true&feed=continuous&heartbeat=5000", None),
    "eventsource": ("GET", "/_changes?include_docs=true&feed=eventsource", None),
    "_changes of ids": ("POST", "/_changes?include_docs=true&filter=_doc_ids", {"doc_ids": [f"big{n}" for n in range(COUNT)]}),
    "_changes of a selector": ("POST", "/_changes?include_docs=true&filter=_selector", {"selector": {"n": {"$gte": 0}}}),
    "_bulk_get": ("POST", "/_bulk_get?revs=true", {"docs": [{"id": f"big{n % COUNT}"} for n in range(100)]}),
    "_find": ("POST", "/_find", {"selector": {"n": {"$gte": 0}}, "limit": 100}),
    "_find sorted": ("POST", "/_find", {"selector": {"n": {"$gte": 0}}, "sort": [{"n": "desc"}], "limit": 100}),
    "_find of fields": ("POST", "/_find", {"selector": {"n": {"$gte": 0}}, "fields": ["text", "list"], "limit": 100}),
    "a view with documents": ("GET", "/_design/d/_view/v?include_docs=true", None),
    "a list": ("GET", "/_design/d/_list/l/v?include_docs=true", None),
    "a show": ("GET", "/_design/d/_show/s/big%(n)d", None),
    "a filter": ("GET", "/_changes?filter=d/f&include_docs=true", None),
    "an attachment": ("GET", "/file%(n)d/file", None),
    "HEAD": ("HEAD", "/big%(n)d", None),
}
# How a client reads: bytes at a time, pause in seconds, what it does after so many bytes.
WAYS = {
    "at once": (1 << 20, 0, None),
    "slowly": (1_000, 0.05, None),
    "not at all": (0, 1, None),
    "half-closed at once": (1 << 16, 0, "shut"),
    "half-closed and not read": (0, 1, "shut"),
    "closed after 100 kB": (50_000, 0, "close"),
    "reset after 100 kB": (50_000, 0, "reset"),
    "reset at once": (0, 0, "reset"),
    "stops after 1 MB": (1 << 16, 0, "stop"),
}


def prepare(server):
    who = tenants(server, "rita", 60)
    path = owned(server, "rita", "large")
    words = [f"word {n} " for n in range(1_000)]
    for n in range(COUNT):
        text = "".join(words[(n + k) % 1_000] for k in range(1_000)) * 700
        body = {"n": n, "text": text[:6_000_000], "list": [{"a": k, "b": "c"} for k in range(80_000)]}
        made = ask(who[0], "PUT", f"{path}/big{n}", body, timeout=120)
        if made.status != 201:
            raise RuntimeError(f"{made.status} {made.text[:200]}")
        made = ask(who[0], "PUT", f"{path}/file{n}/file", b"y" * 8_000_000, {"content-type": "x/y"}, timeout=60)
    design = {
        "views": {"v": {"map": "function(doc) { emit(doc.n, null); }"}}, "filters": {"f": "function(doc) { return doc.n >= 0; }"},
        "lists": {"l": "function() { var row; while (row = getRow()) send(JSON.stringify(row.doc)); }"}, "shows": {"s": "function(doc) { return JSON.stringify(doc); }"}
    }
    ask(who[0], "PUT", path + "/_design/d", design)
    return who, path


def client(who, path, form, way, rng, seconds):
    """One client; what came of it."""
    method, where, body = FORMS[form]
    size, pause, then = WAYS[way]
    text = json.dumps(body).encode() if body is not None else b""
    request = who.head(method, path + where.replace("%(n)d", str(rng.randrange(COUNT))), len(text) if body is not None else None) + text
    read, end, first = 0, time.monotonic() + seconds, b""
    with who.connect(timeout=seconds, receive_buffer=4_096 if size < 10_000 else None) as sock:
        sock.sendall(request * (3 if way == "at once" and body is None and rng.random() < 0.2 else 1))
        if then == "shut":
            sock.shutdown(socket.SHUT_WR)
        while time.monotonic() < end:
            if size:
                sock.settimeout(max(0.1, end - time.monotonic()))
                try:
                    data = sock.recv(size)
                except (TimeoutError, socket.timeout):
                    break
                if not data:
                    break
                first = first or data[:12]
                read += len(data)
            if then == "reset" and (read > 100_000 or not size):
                reset(sock)
                return "reset"
            if then == "close" and read > 100_000:
                return "closed"
            if then == "stop" and read > 1 * MB:
                size = 0
            time.sleep(pause)
    return first[9:12].decode("latin-1") or "nothing"


def ways(server, rng):
    """Each form by clients of all ways at once, some of each."""
    who, path = prepare(server)
    for forms in (("GET", "GET with revisions", "open_revs", "HEAD", "an attachment"), ("_all_docs", "_all_docs of keys", "queries of _all_docs", "_bulk_get"), ("_changes", "continuous", "eventsource", "_changes of ids", "_changes of a selector"),
                  ("_find", "_find sorted", "_find of fields"), ("a view with documents", "a list", "a show", "a filter")):

        def work(rng, at):
            form, way = rng.choice(forms), list(WAYS)[at % len(WAYS)]
            return f"{way}: {client(who[at % len(who)], path, form, way, rng, 8)}"

        name = "large documents by " + ", ".join(forms)
        wrong = lambda result: result if result.split(": ")[-1] in ("hung", "500") else None
        yield from beside(server, name, late(lambda: judged("clients", flood(90, 10, work, rng.random()), wrong)), before=3)
        yield from at_rest(server, name)


def whole(server, rng):
    """A client that reads gets all of each answer, beside 80 that do not read."""
    who, path = prepare(server)
    ending, sizes = threading.Event(), {}
    for form in ("GET", "_all_docs", "_bulk_get", "_changes", "_find", "an attachment"):
        method, where, body = FORMS[form]
        sizes[form] = len(ask(who[0], method, path + where.replace("%(n)d", "1"), body, timeout=120).body)

    def attack():
        socks = []
        for at in range(80):
            form = rng.choice(("_all_docs", "_changes", "_bulk_get", "_find", "an attachment", "GET"))
            method, where, body = FORMS[form]
            text = json.dumps(body).encode() if body is not None else b""
            sock = who[at % 50].connect(receive_buffer=4_096)
            sock.sendall(who[0].head(method, path + where.replace("%(n)d", "1"), len(text) if body is not None else None) + text)
            socks.append(sock)
        for form, size in sizes.items():
            method, where, body = FORMS[form]
            answer = ask(who[59], method, path + where.replace("%(n)d", "1"), body, timeout=90)
            print(f"    {form} of {size // MB} MB beside 80 that do not read: {answer.status}, {len(answer.body) // MB} MB after {answer.seconds:.1f} s", flush=True)
            # Of a client's own, who reads nothing 80 times, it may wait or be refused; never be cut without a word.
            yield holds(f"{form} is whole beside 80 that do not read", (answer.status == 200 and abs(len(answer.body) - size) < 1_000) or answer.status in (429, 503), f"{answer.status} {len(answer.body)} of {size} after {answer.seconds:.1f} s {answer.text[:80]}")
        for sock in socks:
            reset(sock)

    yield from beside(server, "80 that do not read", attack())
    yield from at_rest(server, "80 that do not read")


for group in (ways, whole):
    group.longest_wait = 30

GROUPS = (ways, whole)
