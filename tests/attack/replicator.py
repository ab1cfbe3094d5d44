"""What is asked of replications by this server's own users: `_replicate`, documents of `_replicator`, `_scheduler`."""

import json
import time

from asking import ANY, REFUSED, ask, checked, database, holds, segment, short, step, wait_for, wrong
from peers import Peer, changes
from server import MB

ENDPOINTS = (
    None, 1, True, [], {}, "", " ", "/", "//", "a b", "A", "_x", "copy?x=y", "copy#x", "copy/..", "../copy", "%",
    "\x00", "\u00e9", "x" * 10_000, "http://", "http:///x", "http://127.0.0.1:1", "http://127.0.0.1:1/",
    "http://127.0.0.1:1/x", "http://127.0.0.1:99999/x", "http://127.0.0.1:0/x", "http://[::1/x", "http://[::1]:1/x",
    "http://a b/x", "http://u:p@127.0.0.1:1/x", "http://u:p@:1/x", "http://%zz:p@127.0.0.1:1/x",
    "http://127.0.0.1:1/x?y=z", "http://127.0.0.1:1/x#y", "http://127.0.0.1:1/\r\nX: y", "http://127.0.0.1:1/\u00e9",
    "http://127.0.0.1:1/<x>", "http://127.0.0.1:1/" + "x" * 70_000, "https://127.0.0.1:1/x", "ftp://127.0.0.1/x",
    "file:///etc/passwd", "HTTP://127.0.0.1:1/x", "http:/127.0.0.1:1/x", "http://.invalid/x",
    "http://" + "a" * 5_000 + "/x", "http://127.1:1/x", "http://0x7f.1:1/x", "http://0:1/x", {"url": 1}, {"url": None},
    {"url": ""}, {"url": "copy"}, {"url": "http://127.0.0.1:1/x",
                                   "headers": 1}, {"url": "http://127.0.0.1:1/x", "headers": {"a": 1}
                                                   }, {"url": "http://127.0.0.1:1/x", "headers": {"a b": "c"}},
    {"url": "http://127.0.0.1:1/x", "headers": {"a": "b\r\nc: d"}
     }, {"url": "http://127.0.0.1:1/x",
         "headers": {"": ""}}, {"url": "http://127.0.0.1:1/x",
                                "headers": {f"h{n}": "x"
                                            for n in range(60)}}, {
                                                "url": "http://127.0.0.1:1/x",
                                                "headers": {
                                                    "host": "x", "content-length": "9", "transfer-encoding": "x",
                                                    "connection": "x", "te": "x", "upgrade": "h2c"
                                                }
                                            }, {"url": "http://127.0.0.1:1/x",
                                                "auth": 1}, {"url": "http://127.0.0.1:1/x", "auth": {"basic": {}}}, {
                                                    "url": "http://127.0.0.1:1/x",
                                                    "auth": {"basic": {"username": "\x00", "password": "\u00e9:"}}
                                                }, {"url": "http://127.0.0.1:1/x", "auth": {"iam": {}}},
)
OPTIONS = (
    "continuous", "create_target", "create_target_params", "doc_ids", "selector", "filter", "query_params", "since_seq",
    "checkpoint_interval", "use_checkpoints", "winning_revs_only", "cancel", "replication_id", "id", "_local_id",
    "user_ctx", "owner", "retries_per_request", "http_connections", "connection_timeout", "worker_processes",
    "worker_batch_size", "use_bulk_get", "socket_options", "proxy", "source_proxy", "target_proxy"
)
VALUES = (
    None, True, False, 0, 1, -1, 1.5, 10**30, "", "x", "x/y", "\x00", [], [1], ["a"], [None], {}, {"a": 1}, {"$gt": 1},
    {"$regex": "("}, {"": {}}, 18446744073709551615
)


def requests(server, rng):
    database(server, "copy")
    ask(server, "PUT", database(server, "origin") + "/o", {"n": 1})
    for body in (
        "", "null", "[]", "1", "{", "{}", '{"source":"origin"}', '{"target":"copy"}',
        '{"source":"origin","target":"copy","source":"nothing"}', '{"cancel":true}', '{"cancel":true,"id":"x"}',
        '{"cancel":true,"id":1}'
    ):
        yield step(server, f"_replicate {body}", "POST", "/_replicate", body, statuses=REFUSED | {500})
    for endpoint in ENDPOINTS:
        for which in ("source", "target"):
            spec = {"source": "origin", "target": "copy", which: endpoint}
            # A peer that is not there is asked several times.
            yield step(
                server,
                f"{which} {short(repr(endpoint))}",
                "POST",
                "/_replicate",
                spec,
                statuses=ANY | {500},
                within=25
            )
    for option in OPTIONS:
        for value in VALUES:
            spec = {"source": "origin", "target": "copy", option: value}
            answer = ask(server, "POST", "/_replicate", spec, timeout=40)
            yield f"{option} = {value!r}", wrong(answer, ANY | {500}, 25)
            if answer.status == 202:
                cancelled = ask(server, "POST", "/_replicate", {**spec, "cancel": True})
                yield f"cancel of {option} = {value!r}", wrong(cancelled, {200})
    for what in (
        "jobs", "docs", "jobs/x", "docs/_replicator", "docs/_replicator/x", "docs/x/y", "docs/copy/o", "jobs/x/y", "",
        "x", "docs/_replicator/_design%2Fx", "docs/_replicator/%00", "docs/_replicator%2Fx",
        "docs/x%2F_replicator", "docs/x/_replicator/y", "docs/%00%2F_replicator", "docs//_replicator/_replicator", "jobs/%ff", "docs?limit=x",
        "docs?skip=-1", "docs?limit=0&skip=99999999999999999999", "jobs?limit=-1", "docs?states=x", "jobs?skip=1e9"
    ):
        for method in ("GET", "HEAD", "POST", "DELETE", "PUT"):
            yield step(server, f"{method} _scheduler/{what}", method, "/_scheduler/" + what)
    for method in ("GET", "PUT", "DELETE", "HEAD", "COPY", "PATCH"):
        yield step(
            server, f"{method} _replicate", method, "/_replicate", "{}" if method == "PUT" else None, statuses=REFUSED
        )
    yield from checked(server, "copy", "origin")


def documents(server, rng):
    """A document of any shape comes to an end, or is tried again; its server stays well, and so do the others."""
    path = database(server, "_replicator")
    database(server, "copy")
    ask(server, "PUT", database(server, "origin") + "/o", {"n": 1})
    bodies = [{"source": endpoint, "target": "copy"}
              for endpoint in ENDPOINTS] + [{"source": "origin", "target": endpoint} for endpoint in ENDPOINTS]
    bodies += [{"source": "origin", "target": "copy", option: value}
               for option in OPTIONS
               for value in rng.sample(VALUES, 5)]
    for name in (
        "_replication_state", "_replication_id", "_replication_state_time", "_replication_state_reason",
        "_replication_stats", "_replication_x", "_revisions", "_deleted", "_attachments"
    ):
        bodies += [{"source": "origin", "target": "copy", name: value}
                   for value in (None, 1, "", "completed", "failed", "error", "triggered", [], {}, {"a": {"data": ""}})]
    bodies += [{}, {"source": "origin"}, {"a": 1}, {"source": "origin", "target": "copy", "pad": "x" * 7_900_000}]
    written = []
    for at, body in enumerate(bodies):
        answer = ask(server, "PUT", f"{path}/r{at}", body)
        yield f"document {short(str(body), 80)}", wrong(answer)
        if answer.status == 201:
            written.append(f"r{at}")
    for id in ("_design/x", "a/b", "\x00", "x" * 2_000, "\u00e9", "%2F"):
        yield step(
            server, f"id {short(repr(id))}", "PUT", f"{path}/{segment(id)}", {"source": "origin", "target": "copy"}
        )
    time.sleep(3)
    for what in ("docs", "jobs", "docs?limit=1&skip=3", "docs/_replicator/a%2Fb", "docs/_replicator/%00"):
        yield step(server, f"_scheduler/{what}", "GET", "/_scheduler/" + what)
    listed = ask(server, "GET", "/_scheduler/docs?limit=5000").get("docs", [])
    states = {row.get("state") for row in listed}
    yield holds(
        "states", states <= {"completed", "failed", "crashing", "running", "pending", "initializing", "error"},
        str(states)
    )
    yield holds(
        "each has a row",
        set(written) <= {row.get("doc_id")
                         for row in listed} or len(listed) >= len(written) - 20, f"{len(listed)} of {len(written)}"
    )
    shown = ask(server, "GET", "/_scheduler/docs?limit=5000").text + ask(
        server, "GET", "/_scheduler/jobs?limit=5000"
    ).text + ask(server, "GET", "/_active_tasks").text
    yield holds("no password is shown", "u:p@" not in shown and "dTpw" not in shown)
    for at in range(40):
        id = rng.choice(written)
        rev = ask(server, "GET", f"{path}/{id}").get("_rev")
        method, body = rng.choice((("DELETE", None), ("PUT", {"source": "origin", "target": "copy"}),
                                   ("PUT", {"source": 1}), ("PUT", {"_deleted": True})))
        yield step(server, f"{method} while it is worked off", method, f"{path}/{id}?rev={rev}", body)
    yield step(server, "the database goes", "DELETE", path, statuses={200})
    yield step(server, "_scheduler/docs without it", "GET", "/_scheduler/docs", statuses={200, 404})
    yield holds("nothing runs any more", wait_for(lambda: not ask(server, "GET", "/_scheduler/jobs").get("jobs"), 20))
    yield step(server, "and comes again", "PUT", path, statuses={201, 412})
    ask(server, "PUT", path + "/again", {"source": "origin", "target": "copy"})
    yield holds(
        "and works", wait_for(lambda: ask(server, "GET", path + "/again").get("_replication_state") == "completed", 20)
    )
    yield from checked(server, "_replicator", "copy")


def held_for_ever(server, rng):
    """What a job keeps in memory does not grow with its document or its peer, and no job runs again and again without a pause."""
    path = database(server, "_replicator")
    database(server, "copy")
    long = "s" * 12_000
    with Peer({
        "changes": lambda request: changes([{"seq": long, "id": "d", "changes": [{"rev": "1-a"}]}], long)
        if "since=0" in request.query else changes([], long)
    }) as peer:
        ask(server, "PUT", path + "/long-seq", {"source": peer.url, "target": "copy"})
        wait_for(lambda: ask(server, "GET", path + "/long-seq").get("_replication_state"), 12)
        state = ask(server, "GET", path + "/long-seq").get("_replication_state")
        yield holds(
            "a peer with long sequences: it comes to its end", state in ("completed", "failed")
            or peer.asked["info"] <= 2, f"state {state}, run {peer.asked['info']} times in 12 s"
        )
    with Peer() as peer:
        pad = "x" * (8_000_000 - len(json.dumps({"source": peer.url, "target": "copy", "pad": ""})) - 400)
        ask(server, "PUT", path + "/full", {"source": peer.url, "target": "copy", "pad": pad}, timeout=60)
        time.sleep(10)
        yield holds(
            "a document without room for its end is not run again and again", peer.asked["info"] <= 3,
            f"run {peer.asked['info']} times in 10 s"
        )
    with Peer() as peer:
        url = peer.url + "/" + "x" * 40_000
        ask(server, "PUT", path + "/long-url", {"source": url, "target": "copy"})
        time.sleep(10)
        yield holds(
            "a document with a long address is not run again and again",
            peer.asked["other"] + peer.asked["info"] + peer.asked["document"] <= 4, str(peer.asked)
        )
    for id in ("long-seq", "full", "long-url"):
        ask(server, "DELETE", f"{path}/{id}?rev={ask(server, 'GET', f'{path}/{id}').get('_rev')}")
    before = server.resident()
    numbers = "[" + "0," * 1_500_000 + "0]"
    for n in range(8):
        body = '{"source":"http://127.0.0.1:1/x","target":"copy","continuous":true,"pad":%s}' % numbers
        yield step(server, f"document of 3 MB, {n}", "PUT", f"{path}/held{n}", body, within=20)
    time.sleep(2)
    kept = server.resident() - before
    yield holds("memory of eight documents of 3 MB", kept < 150 * MB, f"{kept // MB} MB")
    before = server.resident()
    ids = "[" + ",".join(f'"{n:07}"' for n in range(800_000)) + "]"
    for n in range(20):
        body = '{"source":"http://127.0.0.1:1/x%d","target":"copy","continuous":true,"doc_ids":%s}' % (n, ids)
        yield step(
            server, f"_replicate with 8 MB of ids, {n}", "POST", "/_replicate", body, statuses=ANY | {503}, within=20
        )
    time.sleep(2)
    kept = server.resident() - before
    yield holds("memory of twenty lists of 8 MB", kept < 100 * MB, f"{kept // MB} MB")
    statuses = [
        ask(
            server, "POST", "/_replicate", {"source": f"http://127.0.0.1:1/n{n}", "target": "copy", "continuous": True}
        ).status for n in range(700)
    ]
    yield holds(
        "jobs of _replicate have a number too", statuses[-1] != 202
        or len(ask(server, "GET", "/_scheduler/jobs?limit=9999").get("jobs", [])) <= 550,
        str(len(ask(server, "GET", "/_scheduler/jobs?limit=9999").get("jobs", [])))
    )


documents.longest_wait = requests.longest_wait = held_for_ever.longest_wait = 8.0

GROUPS = (requests, documents, held_for_ever)
