"""This server as the client of a peer that lies: what one replication costs, how it ends, and what it must not write."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from asking import ask, checked, database, holds, short, step, wrong
from peers import Peer, answer_as_usual, changes, results
from server import MB

# How a replication may end whose peer lies.
ENDS = frozenset({200, 400, 401, 403, 404, 413, 500, 502, 503})


def replicate(server, source, target="copy", within=20.0, **more):
    return ask(server, "POST", "/_replicate", {"source": source, "target": target, **more}, timeout=within + 10)


def ends(server, name, script, within=20.0, pushes=False, target="copy", raw=None, **more):
    """A replication with a peer that answers by a script comes to an end."""
    with Peer(script, raw) as peer:
        answer = replicate(server, "origin", peer.url, within, **
                           more) if pushes else replicate(server, peer.url, target, within, **more)
        return name, wrong(answer, ENDS, within)


def together(steps):
    """Steps that wait rather than work, twelve at once, in their order."""
    with ThreadPoolExecutor(12) as pool:
        for done in [pool.submit(*step) for step in steps]:
            yield done.result()


def says(said):
    return lambda request: said


ODD = (
    b"", b"null", b"[]", b"1", b'"x"', b"{}", b"{", b"\xff", b'{"a":' * 600, b"[" * 100_000, b"\x00" * 1_000,
    b'{"error":"x"}', b'{"ok":true}', b'{"results":null}', b'{"results":{}}'
)


def odd_answers(server, rng):
    """Whatever a peer answers to whichever request."""
    database(server, "copy")
    ask(server, "PUT", database(server, "origin") + "/o", {"n": 1})
    steps = []
    for kind in ("info", "log", "put_log", "changes", "bulk_get"):
        for body in ODD:
            steps.append((ends, server, f"source's {kind}: {short(repr(body), 30)}", {kind: says(body)}, 30))
    for kind in ("info", "log", "put_log", "revs_diff", "bulk_docs"):
        for body in ODD:
            steps.append((ends, server, f"target's {kind}: {short(repr(body), 30)}", {kind: says(body)}, 30, True))
    headers = {"location": f"http://127.0.0.1:{server.port}/_all_dbs"}
    for status in (
        100, 101, 204, 206, 301, 302, 303, 307, 308, 304, 400, 401, 402, 403, 404, 405, 409, 412, 413, 415, 418, 431,
        501, 599
    ):
        for kind in ("info", "log", "put_log", "changes", "bulk_get"):
            steps.append((ends, server, f"source's {kind}: {status}", {kind: says((status, headers, b"{}"))}, 75))
        for kind in ("revs_diff", "bulk_docs"):
            steps.append((ends, server, f"target's {kind}: {status}", {kind: says((status, {}, b"{}"))}, 75, True))
        steps.append((
            ends, server, f"target's creation: {status}",
            {"create": says((status, {}, b"{}")), "info": says((404, {}, b"{}"))}, 75, True
        ))
    yield from together(steps)
    listed = ask(server, "GET", "/copy/_all_docs").get("rows", [])
    yield holds("nothing but the document came", {row["id"] for row in listed} <= {"d"}, str(listed)[:200])
    yield from checked(server, "copy")


ROWS = (
    None, 1, [], {}, {"seq": 1}, {"seq": 1, "id": "d"}, {"seq": 1, "id": 1, "changes": [{"rev": "1-a"}]},
    {"seq": 1, "id": "d", "changes": {}}, {"seq": 1, "id": "d", "changes": []}, {"seq": 1, "id": "d", "changes": [1]},
    {"seq": 1, "id": "d",
     "changes": [{"rev": 1}]}, {"seq": 1, "id": "d",
                                "changes": [{"rev": ""}]}, {"seq": 1, "id": "d", "changes": [{"rev": "x"}]},
    {"seq": 1, "id": "",
     "changes": [{"rev": "1-a"}]}, {"seq": 1, "id": "_local/x",
                                    "changes": [{"rev": "1-a"}]}, {"seq": 1, "id": "_x", "changes": [{"rev": "1-a"}]},
    {"seq": 1, "id": "_design/",
     "changes": [{"rev": "1-a"}]}, {"seq": 1, "id": "_all_docs", "changes": [{"rev": "1-a"}]
                                    }, {"seq": 1, "id": "../../_all_dbs", "changes": [{"rev": "1-a"}]
                                        }, {"seq": 1, "id": "x" * 100_000, "changes": [{"rev": "1-a"}]
                                            }, {"seq": 1, "id": "d", "changes": [{"rev": "1-" + "a" * 10_000}]},
    {"seq": 1, "id": "d", "changes": [{"rev": "99999999999999999999-a"}]
     }, {"seq": 1, "id": "\x00", "changes": [{"rev": "1-a"}]}, {"seq": None, "id": "d", "changes": [{"rev": "1-a"}]}, {
         "seq": {"a": [1]}, "id": "d", "changes": [{"rev": "1-a"}]
     }, {"seq": "x" * 100_000, "id": "d",
         "changes": [{"rev": "1-a"}]}, {"seq": "\u0000\r\n&x=y", "id": "d", "changes": [{"rev": "1-a"}]
                                        }, {"seq": 1, "id": "d", "changes": [{"rev": "1-a"}] * 1_000
                                            }, {"seq": 1, "id": "d", "deleted": "x", "changes": [{"rev": "1-a"}]},
)
DOCUMENTS = ({}, {"_id": "d"}, {"_id": "e",
                                "_rev": "1-a"}, {"_id": "d",
                                                 "_rev": "1-b"}, {"_id": "d", "_rev": "1-a", "_revisions": {}},
             {"_id": "d", "_rev": "1-a",
              "_revisions": {"start": 9,
                             "ids": ["a"]}}, {"_id": "d", "_rev": "1-a", "_revisions": {"start": 1, "ids": ["b"]}},
             {"_id": "d", "_rev": "2-b", "_revisions": {"start": 2, "ids": ["b", "a"]}
              }, {"_id": "d", "_rev": "1-a", "_revisions": {"start": 1, "ids": ["a", "b", "c"]}
                  }, {"_id": "d", "_rev": "1-a",
                      "_x": 1}, {"_id": "d", "_rev": "1-a",
                                 "_deleted": 1}, {"_id": "d", "_rev": "1-a", "_attachments": 1},
             {"_id": "d", "_rev": "1-a", "_attachments": {"a": {}}
              }, {"_id": "d", "_rev": "1-a", "_attachments": {"a": {"stub": True, "length": 5}}
                  }, {"_id": "d", "_rev": "1-a", "_attachments": {"a": {"data": "!", "length": 1}}
                      }, {"_id": "d", "_rev": "1-a", "_attachments": {"_a": {"data": "aGk=", "length": 2}}
                          }, {"_id": "d", "_rev": "1-a", "_attachments": {"a": {"stub": True, "length": 2**64 - 1}}}, {
                              "_id": "d", "_rev": "1-a", "_attachments": {
                                  "a": {"stub": True, "length": 2**63, "content_type": "x\r\ny: z"},
                                  "b": {"stub": True, "length": 2**63}
                              }
                          },
             {"_id": "d", "_rev": "1-a", "_attachments": {"../../../_all_dbs": {"stub": True, "length": 3_000_000}}
              }, {"_id": "d", "_rev": "1-a",
                  "a": 10**400}, {"_id": "d", "_rev": "1-a",
                                  "a": "x" * 9_000_000}, {"_id": "d", "_rev": "1-a", "validate_doc_update": "x"},
             {"_id": "_design/d", "_rev": "1-a",
              "validate_doc_update": "function(){throw 1}"}, {"_id": "_local/d",
                                                              "_rev": "1-a"}, {"_id": "\u0000d", "_rev": "1-a"},
             )
TEXTS = (
    '{"_id":"d","_rev":"1-a","_id":"evil"}', '{"_id":"d","_rev":"1-a","_rev":"9-evil"}',
    '{"_id":"d","_rev":"1-a","\\u005fid":"evil"}', '{"_id":"d","_rev":"1-a","_\\u0069d":"evil"}',
    '{"_id":"d","_rev":"1-a","\\u005frev":"9-evil"}',
    '{"_id":"d","_rev":"1-a","_revisions":{"start":1,"ids":["a"]},"_revisions":{"start":9,"ids":["evil"]}}',
    '{"_id":"d","_rev":"1-a","_revisions":{"start":1,"ids":["a"]},"\\u005frevisions":{"start":9,"ids":["evil"]}}',
    '{"_id":"d","_rev":"1-a","_revisions":{"start":1,"ids":["a"],"start":9,"ids":["evil"]}}',
    '{"_id":"d","_rev":"1-a","_revisions":{"start":1,"ids":["a"],"\\u0073tart":9,"\\u0069ds":["evil"]}}',
    '{"_id":"d","_rev":"1-a","_revisions":{"start":1,"ids":["a"],"\\u0069ds":["evil"]}}',
    '{"_id":"d","_rev":"1-a"},{"_id":"evil","_rev":"1-a"}', '{"_id":"d","_rev":"1-a"]}',
    '{"_id":"d","_rev":"1-a","x":[}]}', '{"_id":"d" "_rev":"1-a"}', '{"_id":"d","_rev":"1-a","x":tru"e}',
    '{"_id":"d","_rev":"1-a","x":01}', '{"_id":"d","_rev":"1-a","x":"\n"}', '{"_id":"d","_rev":"1-a",}',
    '{"_id":"d","_rev":"1-a","x":"\\"}', '{"_id":"d","_rev":"1-a","x":\ufeff1}',
    '{"_id":"d","_rev":"1-a","_attachments":{"a":{"data":"aGk=","length":2}},"_attachments":{"b":{"data":"aGk=","length":2}}}',
    '{"_id":"d","_rev":"1-a","\\u005fattachments":{"b":{"data":"aGk=","length":99999999}}}',
    '{"_id":"d","_rev":"1-a","_attachments":{"a":{"stub":true,"length":3000000,"length":1}}}',
    '{"_id":"d","_rev":"1-a","_deleted":false,"_deleted":true}',
    '{"_id":"d","_rev":"1-a","\\u005fdeleted":true,"\\u005fx":1}',
)


def lies(server, rng):
    """Rows and revisions that nobody asked for, or that say one thing to who checks them and another to who writes them."""
    for at, row in enumerate(ROWS):
        path = database(server, "copy")
        script = {
            "changes": lambda request: changes([row], "1-x") if "since=0" in request.query else changes([], "1-x")
        }
        yield ends(server, f"row {short(str(row))}", script)
        listed = {found["id"] for found in ask(server, "GET", path + "/_all_docs").get("rows", [])}
        yield holds(f"row {short(str(row))} writes nothing else", listed <= {"d"}, str(listed)[:200])
    for document in DOCUMENTS:
        path = database(server, "copy")
        yield ends(server, f"document {short(str(document), 90)}", {"bulk_get": lambda request: results(document)})
        yield ends(
            server, f"document alone {short(str(document), 90)}",
            {"bulk_get": lambda request: (404, {}, b"{}"), "document": lambda request: [{"ok": document}]}
        )
        listed = {found["id"] for found in ask(server, "GET", path + "/_all_docs").get("rows", [])}
        yield holds(f"document {short(str(document), 90)} writes nothing else", listed <= {"d"}, str(listed)[:200])
    for text in TEXTS:
        path = database(server, "copy")
        body = '{"results":[{"id":"d","docs":[{"ok":%s}]}]}' % text
        yield ends(server, f"text {text[:90]}", {"bulk_get": lambda request: body.encode("utf-8", "surrogatepass")})
        for what in ("evil", "d"):
            found = ask(server, "GET", f"{path}/{what}?open_revs=all", headers={"accept": "application/json"})
            yield holds(
                f"text {text[:90]} writes nothing evil: {what}", "evil" not in found.text or found.status == 404,
                found.text[:200]
            )
    for name, last in (("the same for ever", "0"), ("null", None), ("a number", 7), ("an object", {"a": 1}),
                       ("long", "s" * 60_000), ("very long", "s" * 3_000_000),
                       ("with an ampersand", "1&since=0&limit=0"), ("with a newline", "1\r\nX: y")):
        script = {
            "changes": lambda request: changes(last_seq=last) if "since=0" in request.query else changes([], last)
        }
        yield ends(server, f"last_seq {name}", script, 30)
    yield ends(server, "pending is none", {"changes": lambda request: {**changes([]), "pending": "x"}})
    yield ends(
        server, "changes for ever", {
            "changes": lambda request: changes([{"seq": n, "id": f"{n}", "changes": []}
                                                for n in range(10)], str(time.monotonic()))
        }
    )
    yield ends(server, "no rows, other sequences", {"changes": lambda request: changes([], str(time.monotonic()))})
    with Peer() as peer:
        for name, source, target in (("itself", "copy", "copy"),
                                     ("itself by its address", f"http://127.0.0.1:{server.port}/copy",
                                      "copy"), ("a peer with itself", peer.url, peer.url)):
            yield f"between {name}", wrong(replicate(server, source, target), ENDS, 20)
    yield from checked(server, "copy")


def pieces(seconds, piece, pause):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield piece
        time.sleep(pause)


def slow_and_endless(server, rng):
    """Answers that trickle, never end, or break off; connections that close, or say no HTTP."""
    database(server, "copy")
    steps = []
    for kind in ("info", "log", "changes", "bulk_get"):
        for name, raw in (
            ("closes",
             lambda request, sock: False), ("no HTTP", lambda request, sock: sock.sendall(b"SSH-2.0-x\r\n\r\n")),
            ("a head without end", lambda request, sock: sock.sendall(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000)),
            ("a long header", lambda request, sock: sock.sendall(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 2_000_000)), (
                "half an answer",
                lambda request, sock: sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}") or False
            ), (
                "negative length",
                lambda request, sock: sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}") or False
            ), (
                "bad chunks", lambda request, sock: sock.
                sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}") or False
            ), (
                "a huge chunk", lambda request, sock: sock.
                sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}") or False
            ), (
                "two answers",
                lambda request, sock: sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}" * 2) or True
            ), (
                "gzip that nobody asked for", lambda request, sock: sock.
                sendall(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}") or True
            ), ("many 100", lambda request, sock: sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000) or False),
        ):

            def say(request, sock, kind=kind, raw=raw):
                if request.kind == kind:
                    return raw(request, sock)
                answer_as_usual(request, sock)
                return True

            steps.append((ends, server, f"{kind}: {name}", None, 75, False, "copy", say))
    yield from together(steps)
    before = server.resident()
    for kind in ("info", "changes", "bulk_get"):
        yield ends(
            server, f"{kind}: spaces without end", {kind: lambda request: (200, {}, iter(lambda: b" " * 65_536, b""))},
            60
        )
        yield ends(
            server, f"{kind}: one row without end", {
                kind: lambda request:
                (200, {}, iter([b'{"results":[{"id":"' + b"x" * 1_000_000] + [b"x" * 1_000_000] * 120))
            }, 60
        )
    yield holds("memory", server.resident() - before < 400 * MB, f"{(server.resident() - before) // MB} MB")
    with Peer({"changes": lambda request: (200, {}, pieces(20, b" ", 0.2))}) as peer:
        jobs = [
            threading.Thread(target=replicate, args=(server, f"http://127.0.0.1:{peer.port}/slow{n}", "copy", 60))
            for n in range(30)
        ]
        for job in jobs:
            job.start()
        time.sleep(2)
        yield step(server, "beside 30 slow ones", "GET", "/copy", statuses={200}, within=2)
        yield step(server, "_active_tasks", "GET", "/_active_tasks", statuses={200}, within=2)
        for job in jobs:
            job.join(90)
    yield from checked(server, "copy")


def costs(server, name, most, attack):
    """An attack with the most memory that it may take, on a server that has not done anything yet: what an allocator keeps
    of one attack would hide the next one."""
    begun, peak, done = server.resident(), [0], threading.Event()

    def watch():
        while not done.wait(0.05):
            peak[0] = max(peak[0], server.resident())

    watching = threading.Thread(target=watch)
    watching.start()
    yield from attack
    done.set()
    watching.join()
    yield holds(f"memory of {name}", peak[0] - begun < most * MB, f"{(peak[0] - begun) // MB} MB")


NUMBERS = b'{"rev":"0-1","results":[],"history":[' + b"0," * 16_000_000 + b"0]}"


def cost_of_ids(server, rng):
    """A short page of changes with one long id and very many revisions."""
    database(server, "copy")
    row = {"seq": "1-x", "id": "i" * 9_000, "changes": [{"rev": f"1-{n}"} for n in range(30_000)]}
    script = {"changes": lambda request: changes([row]) if "since=0" in request.query else changes([])}
    yield from costs(server, "30,000 revisions of one long id", 300, (ends(server, "a long id", script, 60) for _ in "1"))


def cost_of_pages(server, rng):
    """A page of changes that is 32 MB of small values, from one peer and then from four at once."""
    database(server, "copy")
    page = (ends(server, "a page of 32 MB", {"changes": says(NUMBERS)}, 60) for _ in "1")
    yield from costs(server, "a page of 32 MB of small values", 400, page)
    steps = [(ends, server, f"one of four, {n}", {"changes": says(NUMBERS)}, 90) for n in range(4)]
    yield from costs(server, "four at once", 600, together(steps))


def cost_of_logs(server, rng):
    """A replication log that is 32 MB of small values."""
    database(server, "copy")
    log = (ends(server, "a log of 32 MB", {"log": says(NUMBERS)}, 60) for _ in "1")
    yield from costs(server, "a log of 32 MB of small values", 400, log)


def cost_of_revisions(server, rng):
    """A revision of 90 MB."""
    database(server, "copy")
    head = b'{"results":[{"id":"d","docs":[{"ok":{"_id":"d","_rev":"1-a","x":"'
    script = {"bulk_get": lambda request: (200, {}, iter([head] + [b"x" * 1_000_000] * 90 + [b'"}}]}]}']))}
    yield from costs(server, "a revision of 90 MB", 400, (ends(server, "a long revision", script, 60) for _ in "1"))


COSTS = (cost_of_ids, cost_of_pages, cost_of_logs, cost_of_revisions)
for group in (odd_answers, lies, slow_and_endless, *COSTS):
    group.longest_wait = 8.0

GROUPS = (odd_answers, lies, slow_and_endless, *COSTS)
