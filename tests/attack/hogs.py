"""A user with a hundred databases whose functions take what they can get, beside a neighbour with one: maps, validations, filters, shows,
lists, updates and reduces that never end, take memory, emit much, throw, or change between all of that."""

import itertools
import json
import signal
import threading
import time

from asking import ask, bulk, holds, wait_for
from neighbours import NEIGHBOUR, PASSWORD, SETUP, Tenant, at_rest, beside, children, flood, judged, late, owned, prepare, tenants
from server import Server
from tools import at_once

DATABASES = 100
MODES = {
    "endless": "for (;;);",
    "caught": "for (;;) try { for (;;); } catch (e) {}",
    "memory": "var l = []; for (;;) l.push('x'.repeat(100000) + l.length);",
    "buffers": "var l = []; for (;;) l.push(new Uint8Array(1000000).fill(1));",
    "objects": "var o = {}; for (var i = 0;; i++) o['k' + i] = {i: i};",
    "emits": "for (var i = 0; i < 5000; i++) emit([doc._id, i], 'x'.repeat(20));",
    "too many": "for (var i = 0; i < 51000; i++) emit(i, i);",
    "large rows": "for (var i = 0; i < 4; i++) emit(i, 'x'.repeat(500000));",
    "too large": "emit(1, 'x'.repeat(9000000));",
    "throws": "throw new Error('x'.repeat(3000));",
    "throws much": "throw {forbidden: 'y'.repeat(4000), stack: 'z'.repeat(100000)};",
    "fatal": "throw ['fatal', 'x', 'y'];",
    "regex": "/(x+x+)+y/.test('x'.repeat(5000));",
    "deep": "(function f() { f(); })();",
    "json": "for (;;) JSON.parse(JSON.stringify(new Array(100000).fill({a: 1})));",
    "sorting": "for (;;) new Array(300000).fill(0).map(Math.random).sort();",
    "slow": "var t = Date.now(); while (Date.now() - t < 900);",
    "nothing": "emit(doc.n, null);",
}
# A function that is another one for each document, and each second.
CHANGING = "var modes = [%s]; modes[(doc.n + Math.floor(Date.now() / 1000)) %% modes.length]();" % ", ".join(
    "function() { %s }" % MODES[name] for name in ("endless", "memory", "emits", "throws", "nothing", "large rows", "slow")
)


def designed(rng, mode):
    """A design document of one mode; equal ones would share work."""
    body = f"var unlike = {rng.randrange(10**9)}; " + (CHANGING if mode == "changing" else MODES[mode])
    return {
        "views": {"v": {"map": "function(doc) { %s }" % body, "reduce": rng.choice(("_count", "function(k, v) { %s }" % body.replace("doc.n", "1").replace("emit(", "(")))}},
        "filters": {"f": "function(doc, req) { %s; return true; }" % body.replace("emit(", "(")},
        "shows": {"s": "function(doc, req) { doc = doc || {n: 1}; %s; return 'x'; }" % body.replace("emit(", "(")},
        "lists": {"l": "function(head, req) { var doc = {n: 1}; while (getRow()) { %s } }" % body.replace("emit(", "(")},
        "updates": {"u": "function(doc, req) { doc = doc || {n: 1}; %s; return [null, 'x']; }" % body.replace("emit(", "(")},
    }


def hundred(server, rng, count=DATABASES):
    """The databases, each with a few documents and one mode."""
    who = tenants(server, "mallory", 40)
    modes = itertools.cycle(["changing", *MODES])
    designs = [designed(rng, mode) for _, mode in zip(range(count), modes)]

    def make(part):
        for at in range(part, count, 8):
            path = owned(server, "mallory", f"hog{at}")
            bulk(who[at % 40], path, [{"_id": f"d{n}", "n": n} for n in range(4)])
            ask(who[at % 40], "PUT", path + "/_design/x", designs[at], timeout=60)

    at_once(8, make)
    return who


def gone(server, count=DATABASES):
    at_once(8, lambda part: [ask(server, "DELETE", f"/hog{at}", timeout=60) for at in range(part, count, 8)])


def wrong(result):
    """What a hog's own request may get: anything but no answer, and the server's own 500."""
    return "it hung" if result in ("hung", "TimeoutError") else None


def asks(who, paths, timeout=12):
    """A work that asks one of the paths of one of the databases."""

    def work(rng, at):
        method, path, body = rng.choice(paths)
        answer = ask(rng.choice(who), method, f"/hog{rng.randrange(DATABASES)}{path % {'r': rng.randrange(10**9)} if '%(' in path else path}", body, timeout=rng.choice((0.3, 2, timeout)))
        return f"{answer.status} {answer.get('error') or ''}" if answer.status else "left"

    return work


def views(server, rng):
    """Maps: built in the background, and asked for."""
    paths = [("GET", "/_design/x/_view/v?limit=5", None), ("GET", "/_design/x/_view/v?reduce=false&update=false", None), ("GET", "/_design/x/_info", None), ("GET", "/_design/x/_view/v?group=true", None)]

    attack = late(lambda: judged("views", flood(60, 25, asks(hundred(server, rng), paths), rng.random()), wrong))
    yield from beside(server, "views of 100 databases", attack)
    gone(server)
    yield from at_rest(server, "views of 100 databases")


def rewritten(server, rng):
    """Design documents that are another one all the time, and documents that are written meanwhile."""
    who = tenants(server, "mallory", 40)

    def work(rng, at):
        path, by = f"/hog{rng.randrange(DATABASES)}", rng.choice(who)
        kind = rng.random()
        if kind < 0.6:
            rev = ask(by, "GET", path + "/_design/x", timeout=12).get("_rev")
            answer = ask(by, "PUT", path + "/_design/x", {**designed(rng, rng.choice(["changing", *MODES])), "_rev": rev}, timeout=25)
        elif kind < 0.8:
            answer = bulk(by, path, [{"n": rng.randrange(9)} for _ in range(3)])
        else:
            answer = ask(by, "GET", path + "/_design/x/_view/v?limit=5", timeout=0.5)
        return f"{answer.status} {answer.get('error') or ''}" if answer.status else "left"

    yield from beside(server, "design documents rewritten", late(lambda: hundred(server, rng) and judged("rewritten", flood(40, 20, work, rng.random()), wrong)))
    gone(server)
    yield from at_rest(server, "design documents rewritten")


def functions(server, rng):
    """Filters, shows, lists and updates, whose clients wait or leave."""
    paths = [
        ("GET", "/_changes?filter=x/f", None), ("GET", "/_changes?filter=x/f&feed=longpoll&timeout=3000", None), ("GET", "/_design/x/_show/s/d1", None),
        ("GET", "/_design/x/_list/l/v?update=false&reduce=false", None), ("POST", "/_design/x/_update/u/d2", {}), ("GET", "/_changes?filter=_view&view=x/v", None)
    ]
    attack = late(lambda: judged("functions", flood(80, 20, asks(hundred(server, rng), paths), rng.random()), wrong))
    yield from beside(server, "functions of 100 databases", attack)
    gone(server)
    yield from at_rest(server, "functions of 100 databases")


def validations(server, rng):
    """Each database has a validation that never ends, and writers who all wait for it: who takes turns, databases or owners?"""
    who = tenants(server, "mallory", 40)
    modes = [name for name in MODES if name not in ("emits", "too many", "large rows", "too large", "nothing", "fatal")]

    def make(part):
        for at in range(part, DATABASES, 8):
            path = owned(server, "mallory", f"hog{at}")
            body = MODES["endless" if at < 0.6 * DATABASES else modes[at % len(modes)]]
            ask(who[0], "PUT", path + "/_design/x", {"validate_doc_update": "function(doc) { var unlike = %d; %s }" % (at, body)})

    def work(rng, at):
        path, by = f"/hog{at % DATABASES}", rng.choice(who)
        if rng.random() < 0.5:
            answer = bulk(by, path, [{"n": n} for n in range(rng.choice((1, 50, 500)))])
        else:
            answer = ask(by, "PUT", f"{path}/w{rng.randrange(10**9)}", {"n": 1}, timeout=15)
        return f"{answer.status} {answer.get('error') or ''}" if answer.status else "left"

    yield from beside(server, "validations of 100 databases", late(lambda: at_once(8, make) and judged("validations", flood(200, 25, work, rng.random()), wrong)))
    gone(server)
    yield from at_rest(server, "validations of 100 databases")


def orphans(server, rng):
    """Processes of functions end with their server, however it ends."""
    for how, name in ((signal.SIGKILL, "SIGKILL"), (signal.SIGTERM, "SIGTERM")):
        other = Server(server.process.args[0], admin=True)
        for at in range(6):
            ask(other, "PUT", f"/o{at}")
            ask(other, "PUT", f"/o{at}/_design/x", {"validate_doc_update": "function() { for (;;); }", "views": {"v": {"map": "function() { for (;;); }"}}})
            threading.Thread(target=ask, args=(other, "PUT", f"/o{at}/d", {}), daemon=True).start()
        wait_for(lambda: children(other), 5)
        found = children(other)
        other.process.send_signal(how)
        other.process.wait(30)
        left = lambda: [pid for pid in found if is_running(pid)]
        yield holds(f"{len(found)} processes of functions end after {name}", wait_for(lambda: not left(), 10), f"{len(left())} of {len(found)} are left")
        other.stop()


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def slow_filters(server, rng):
    """Filters that take long hold no memory that others' documents need: forty feeds of one user, beside a neighbour's queries and attachments."""
    who = tenants(server, "hugo", 40)
    paths = [owned(server, "hugo", f"filtered{at}") for at in range(10)]
    slow = "function(doc) { var t = Date.now(); while (Date.now() - t < 60) ; return true; }"
    for path in paths:
        bulk(who[0], path, [{"_id": f"d{n}", "n": n} for n in range(60)])
        ask(who[0], "PUT", path + "/_design/d", {"filters": {f"f{n}": slow + f" // {n}" for n in range(4)}})
    prepare(server)
    nora = Tenant(server, NEIGHBOUR, PASSWORD, "127.0.2.1")

    def work(rng, at):
        answer = ask(who[at], "GET", f"{paths[at % 10]}/_changes?filter=d/f{at % 4}&include_docs=true", timeout=60)
        return f"{answer.status}" if answer.status else "left"

    def attack():
        found = []
        thread = threading.Thread(target=lambda: found.extend(flood(40, 15, work, rng.random())))
        thread.start()
        time.sleep(2)
        for at in range(20):
            answer = ask(nora, "POST", "/theirs/_find", {"selector": {"type": "static"}, "limit": 5}, timeout=60)
            yield f"a query of the neighbour's {at}", None if answer.status == 200 and answer.seconds < 8 else f"{answer.status} after {answer.seconds:.1f} s"
        thread.join()
        yield from judged("slow filters", found)

    yield from beside(server, "slow filters", attack())
    yield from at_rest(server, "slow filters")


for group in (views, rewritten, functions, slow_filters, validations):
    group.longest_wait = 30

GROUPS = (views, rewritten, functions, slow_filters, validations, orphans)
