"""Replications by the hundred of some users, against a neighbour with one: peers that never answer, answer slowly or without end, redirect,
change their checkpoints; replications in a circle; documents written and deleted all the time."""

import itertools
import random
import threading
import time

from asking import ask, bulk, holds, wait_for
from neighbours import NEIGHBOUR, PASSWORD, SETUP, Tenant, at_rest, beside, flood, judged, late, owned, prepare, tenants
from peers import DOCUMENT, Peer, answer, changes

SETUP = {**SETUP, "config": SETUP["config"] + 'replication_allow = "127.0.0.0/8"\n'}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def never(request, connection):
    time.sleep(25)
    return False


def slowly(request, connection):
    connection.sendall(HEAD + b"Content-Length: 100000\r\n\r\n{")
    for _ in range(25):
        connection.sendall(b" ")
        time.sleep(1)
    return False


def endless(beginning, piece):
    def raw(request, connection):
        if request.kind in ("info", "log"):
            answer(request, connection, {})
            return True
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for part in itertools.chain([beginning], itertools.repeat(piece, 3_000)):
            connection.sendall(b"%x\r\n%s\r\n" % (len(part), part))
        return False

    return raw


def redirecting(status):
    def raw(request, connection):
        host = request.headers.get("host", "")
        connection.sendall(f"HTTP/1.1 {status} X\r\nLocation: http://{host}{request.path}\r\nContent-Length: 0\r\n\r\n".encode())
        return True

    return raw


def forgetful():
    """Says at each look that another checkpoint is written, and gives the same changes again with new sequences."""
    counts = itertools.count(1)
    return {
        "log": lambda request: {"_id": "_local/x", "_rev": f"0-{next(counts)}", "session_id": f"s{next(counts)}", "source_last_seq": next(counts), "replication_id_version": 4, "history": [{"session_id": f"s{next(counts)}", "recorded_seq": next(counts)}] * 50},
        "put_log": lambda request: (409, {}, b'{"error":"conflict","reason":"x"}') if next(counts) % 2 else (201, {}, b'{"ok":true,"id":"x","rev":"0-9"}'),
        "changes": lambda request: changes([{"seq": f"{next(counts)}-x", "id": f"d{next(counts)}", "changes": [{"rev": "1-a"}]} for _ in range(100)], f"{next(counts)}-x", 10**9),
        "bulk_get": lambda request: {"results": [{"id": entry["id"], "docs": [{"ok": {**DOCUMENT, "_id": entry["id"]}}]} for entry in (request.json or {}).get("docs", [])]},
    }


def dying(status):
    return {kind: (lambda request: (status, {"retry-after": "0"}, b'{"error":"x","reason":"y"}')) for kind in ("changes", "bulk_get", "bulk_docs", "revs_diff", "put_log")}


def peers():
    """One peer of each kind."""
    made = {
        "never": Peer(raw=never), "slowly": Peer(raw=slowly), "endless list": Peer(raw=endless(b'{"results":[', b'{"seq":"1-x","id":"d","changes":[{"rev":"1-a"}]},' * 300)),
        "endless text": Peer(raw=endless(b'{"results":[{"seq":"', b"x" * 60_000)), "endless depth": Peer(raw=endless(b"", b"[" * 60_000)), "endless blanks": Peer(raw=endless(b"", b" " * 60_000)),
        "forgetful": Peer(forgetful()), "closing": Peer(raw=lambda request, connection: False)
    }
    for status in (301, 302, 307, 308):
        made[f"redirect {status}"] = Peer(raw=redirecting(status))
    for status in (401, 403, 404, 408, 429, 500, 503):
        made[f"{status}"] = Peer(dying(status))
    return made


def shared(server):
    """The replicator database that all may write, and the users with what they replicate."""
    users = [tenants(server, f"rep{n}")[0] for n in range(6)]
    ask(server, "DELETE", "/_replicator")
    ask(server, "PUT", "/_replicator")
    ask(server, "PUT", "/_replicator/_security", {"members": {}})
    for at, user in enumerate(users):
        for name in ("a", "b", "c"):
            path = owned(server, f"rep{at}", f"rep{at}{name}")
            bulk(user, path, [{"_id": f"{name}{n}", "n": n} for n in range(20)])
    return users


def its_own(server, rng, ending, waits):
    """The neighbour's own replication: how long a document takes to its copy."""
    nora = Tenant(server, NEIGHBOUR, PASSWORD, "127.0.2.1")
    at = 0
    while not ending.is_set():
        at += 1
        began = time.monotonic()
        ask(nora, "PUT", f"/theirs/copied{rng}-{at}", {"type": "copied", "n": at}, timeout=30)
        arrived = wait_for(lambda: ask(nora, "GET", f"/copies/copied{rng}-{at}", timeout=30).status == 200, 60)
        waits.append(time.monotonic() - began if arrived else None)
        ending.wait(0.5)


def copied(server, name, attack):
    """An attack beside a neighbour who has a continuous replication and begins others."""
    prepare(server)
    nora = Tenant(server, NEIGHBOUR, PASSWORD, "127.0.2.1")
    owned(server, NEIGHBOUR, "copies")
    begun = ask(nora, "PUT", f"/_replicator/theirs-{abs(hash(name))}", {"source": "theirs", "target": "copies", "continuous": True})
    yield f"{name}: the neighbour's replication is taken", None if begun.status == 201 else begun.text[:200]
    ending, waits = threading.Event(), []
    thread = threading.Thread(target=its_own, args=(server, name.replace(" ", ""), ending, waits))
    thread.start()

    def once():
        yield from attack
        answer = ask(nora, "POST", "/_replicate", {"source": "theirs", "target": "copies"}, timeout=90)
        print(f"    {name}: a replication of the neighbour's that is asked for: {answer.status} after {answer.seconds:.1f} s", flush=True)
        yield f"{name}: the neighbour replicates once", None if answer.status == 200 and answer.seconds < ONCE_MAX else f"{answer.status} {answer.text[:200]} after {answer.seconds:.1f} s"

    yield from beside(server, name, once())
    ending.set()
    thread.join(100)
    arrived = sorted(wait for wait in waits if wait is not None)
    print(f"    {name}: {len(waits)} documents of the neighbour's, at the copy after {arrived[len(arrived) // 2] if arrived else 0:.2f} s, {arrived[-1] if arrived else 0:.1f} s at most", flush=True)
    yield f"{name}: each document comes to the copy", None if waits and None not in waits else f"{waits.count(None)} of {len(waits)} within 60 s"


def specs(rng, user, urls):
    """A replication that does no good."""
    url, own = rng.choice(urls), f"rep{user}{rng.choice('abc')}"
    spec = {"source": url, "target": own} if rng.random() < 0.6 else {"source": own, "target": url}
    spec["continuous"] = rng.random() < 0.6
    more = rng.randrange(8)
    if more == 0:
        spec["doc_ids"] = [f"d{n}" for n in range(rng.choice((1, 3_000)))]
    elif more == 1:
        spec["selector"] = {"n": {"$in": list(range(3_000))}}
    elif more == 2:
        spec["checkpoint_interval"] = 1
    elif more == 3:
        spec.update(filter="x/y", query_params={"a": "b" * 3_000})
    return spec


def settled(server, name):
    ask(server, "DELETE", "/_replicator")
    # Jobs of `_replicate` have no database, and go on.
    listed = lambda: sum(bool(job.get("database")) for job in ask(server, "GET", "/_scheduler/jobs?limit=999").get("jobs", []))
    yield f"{name}: jobs end with their database", None if wait_for(lambda: listed() == 0, 60) else f"{listed()} jobs are left"
    yield from at_rest(server, name)


def documents(server, rng):
    """Documents of `_replicator` by the hundred, with peers of all kinds; then written and deleted all the time."""
    users, others = shared(server), peers()
    urls = [peer.url for peer in others.values()]

    def fill():
        results = []
        for at in range(600):
            user = at % len(users)
            results.append(f"{ask(users[user], 'PUT', f'/_replicator/m{at}', specs(rng, user, urls)).status}")
        yield from judged("documents of replications", results, lambda result: None if result in ("201", "403", "429") else result)
        time.sleep(15)
        states = {}
        for row in ask(server, "GET", "/_scheduler/docs?limit=2000", timeout=60).get("docs", []):
            states[row["state"]] = states.get(row["state"], 0) + 1
        print(f"    states: {states}; asked of peers: { {name: sum(peer.asked.values()) for name, peer in others.items()} }", flush=True)

    def change(rng, at):
        user = at % len(users)
        by, id = users[user], f"/_replicator/m{rng.randrange(100) * 6 + user}"
        if rng.random() < 0.3:
            answer = ask(by, "POST", "/_replicate", specs(rng, user, urls), timeout=rng.choice((0.3, 3)))
        elif rng.random() < 0.3:
            answer = ask(by, "GET", "/_scheduler/" + rng.choice(("docs", "jobs", "docs/_replicator", "docs" + id)), timeout=20)
        else:
            rev = ask(by, "GET", id, timeout=20).get("_rev")
            answer = ask(by, rng.choice(("PUT", "DELETE")), f"{id}?rev={rev}", specs(rng, user, urls), timeout=20)
        return f"{answer.status}" if answer.status else "left"

    try:
        yield from copied(server, "hundreds of replications", fill())
        changing = late(lambda: judged("changes of replications", flood(24, 20, change, rng.random()), lambda result: "it hung" if result == "hung" else None))
        yield from copied(server, "replications that change", changing)
    finally:
        for peer in others.values():
            peer.__exit__()
    yield from settled(server, "replications")


# What a neighbour's replication may take beside others, on a busy machine. Alone it takes a second.
ONCE_MAX = 30


def endless_answers(server, rng):
    """Peers whose answers have no end, asked by six users again and again: a neighbour's replication of a whole database takes no longer for them."""
    users, others = shared(server), {name: peer for name, peer in peers().items() if "endless" in name}
    urls, ending = [peer.url for peer in others.values()], threading.Event()
    prepare(server)
    nora = Tenant(server, NEIGHBOUR, PASSWORD, "127.0.2.1")
    owned(server, NEIGHBOUR, "copies")
    bulk(nora, "/theirs", [{"_id": f"x{n}", "n": n, "type": "c"} for n in range(1_500)])

    def work(user):
        mine = random.Random(f"{user}")
        while not ending.is_set():
            ask(users[user], "POST", "/_replicate", {**specs(mine, user, urls), "continuous": False}, timeout=60)

    def once(name):
        answer = ask(nora, "POST", "/_replicate", {"source": "theirs", "target": "copies"}, timeout=120)
        wrong = answer.status != 200 or answer.seconds > ONCE_MAX
        return name, answer.seconds, f"{answer.status} {answer.text[:200]} after {answer.seconds:.1f} s" if wrong else None

    def attack():
        results = []
        for at in range(120):
            results.append(f"{ask(users[at % 6], 'PUT', f'/_replicator/e{at}', specs(rng, at % 6, urls)).status}")
        yield from judged("documents of endless replications", results, lambda result: None if result in ("201", "403", "429") else result)
        threads = [threading.Thread(target=work, args=(at % 6, ), daemon=True) for at in range(72)]
        for thread in threads:
            thread.start()
        time.sleep(10)
        waits = []
        for at in range(3):
            bulk(nora, "/theirs", [{"_id": f"y{at}-{n}", "n": n, "type": "c"} for n in range(300)])
            name, seconds, wrong = once(f"the neighbour's replication {at}")
            waits.append(f"{seconds:.1f}")
            yield name, wrong
        print(f"    the neighbour's replications took {', '.join(waits)} s", flush=True)
        ending.set()
        for thread in threads:
            thread.join(90)
        for at, thread in enumerate(threads):
            yield f"replications {at} end", "it hung" if thread.is_alive() else None

    try:
        name, seconds, wrong = once("the neighbour's replication alone")
        print(f"    the neighbour's replication alone took {seconds:.1f} s", flush=True)
        yield name, wrong
        yield from beside(server, "endless answers", attack())
    finally:
        ending.set()
        for peer in others.values():
            peer.__exit__()
    yield from settled(server, "endless answers")


def circles(server, rng):
    """Replications to oneself and in circles, by name and by URL, of documents that are edited all the time."""
    users = shared(server)

    def made():
        results = []
        for user in range(len(users)):
            own = [f"rep{user}{name}" for name in "abc"]
            places = own + [f"http://rep{user}:letmein@127.0.0.1:{server.port}/{name}" for name in own]
            for at, (source, target) in enumerate(itertools.product(places, places)):
                body = {"source": source, "target": target, "continuous": True}
                results.append(f"{ask(users[user], 'PUT', f'/_replicator/circle{user}-{at}', body).status}")
        yield from judged("circles", results, lambda result: None if result == "201" else result)

        def edit(rng, at):
            user = at % len(users)
            path = f"/rep{user}{rng.choice('abc')}"
            if rng.random() < 0.5:
                docs = [{"_id": f"e{n}", "_rev": f"{rng.randrange(1, 6)}-{rng.randrange(16**8):x}", "n": n} for n in range(20)]
                return f"{bulk(users[user], path, docs, new_edits=False).status}"
            id = f"{path}/{rng.choice('abc')}{rng.randrange(20)}"
            rev = ask(users[user], "GET", id).get("_rev", "")
            return f"{ask(users[user], 'PUT', f'{id}?rev={rev}', {'n': rng.random()}).status}"

        yield from judged("edits of what goes round", flood(12, 20, edit, rng.random()), lambda result: None if result in ("201", "409", "400", "429") else result)

    yield from copied(server, "circles of replications", made())
    yield from settled(server, "circles of replications")


def foreign(server, rng):
    """A user makes the server write into a neighbour's database, or read it: never, in whatever words."""
    prepare(server)
    users = shared(server)
    before = ask(server, "GET", "/theirs").get("update_seq")
    results = []
    for at, (source, target, way) in enumerate(itertools.product(
        ("theirs", "rep0a", f"http://rep0:letmein@127.0.0.1:{server.port}/theirs", f"http://127.0.0.1:{server.port}/theirs", "theirs/", "/theirs", "%74heirs", "./theirs", "rep0a/../theirs"),
        ("theirs", "rep0b", f"http://rep0:letmein@127.0.0.1:{server.port}/theirs", "%74heirs", "theirs?x", "rep0b/../theirs"), ("owner", "user_ctx", "plain", "account")
    )):
        body = {"source": source, "target": target, "doc_ids": ["static1", "a1"]}
        body.update({"owner": {"owner": NEIGHBOUR}, "user_ctx": {"user_ctx": {"name": NEIGHBOUR, "roles": ["_admin"]}}, "account": {"owner": NEIGHBOUR, "owner_account": "x"}}.get(way, {}))
        answer = ask(users[0], "PUT", f"/_replicator/foreign{at}", body)
        once = ask(users[0], "POST", "/_replicate", body, timeout=40) if way in ("plain", "user_ctx") and "theirs" in source + target else None
        results.append(f"{answer.status}/{once.status if once else '-'}")
    yield from judged("foreign replications", results, lambda result: None if result.split("/")[0] in ("201", "400", "403") else result)
    time.sleep(12)
    yield "nothing was written into the neighbour's", None if ask(server, "GET", "/theirs").get("update_seq") == before else "update_seq has changed"
    for name in ("rep0a", "rep0b"):
        read = [row["id"] for row in ask(server, "GET", f"/{name}/_all_docs").get("rows") if row["id"].startswith("static")]
        yield f"nothing of the neighbour's is in {name}", str(read) if read else None
    yield from settled(server, "foreign replications")


for group in (documents, endless_answers, circles, foreign):
    group.longest_wait = 30

GROUPS = (documents, endless_answers, circles, foreign)
