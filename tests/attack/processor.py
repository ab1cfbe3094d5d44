"""What one request or many can keep the processor busy with, and whether it stops when nobody waits."""

import gzip
import json
import socket
import struct
import time

from tools import Busy, asked, at_once, close_all, with_leaves
from wire import Reader, request
from wire2 import (
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    WINDOW_UPDATE,
    Connection,
    block,
    frame,
    get,
    settings,
)


def products(server, rng):
    """Two lists of one client that are compared each with each."""
    with_leaves(server, "leaves", 2_000)
    server.request("PUT", "/db/_revs_limit", "10000", expected=(200,))
    line = {"_id": "line", "_revisions": {"start": 10_000, "ids": [f"{at:032x}" for at in range(10_000)]}}
    server.request("POST", "/db/_bulk_docs", json.dumps({"new_edits": False, "docs": [line]}), expected=(201,))
    revs = [f"20000-{at:x}" for at in range(700_000)]
    few = [{"id": "line", "atts_since": revs[:300_000]}]
    for name, path, body in (
        ("_revs_diff: revisions and leaves", "/db/_revs_diff", {"leaves": revs}),
        ("_missing_revs: revisions and leaves", "/db/_missing_revs", {"leaves": revs}),
        ("_revs_diff: revisions and ancestors", "/db/_revs_diff", {"line": revs}),
        ("_bulk_get: atts_since and ancestors", "/db/_bulk_get", {"docs": few}),
    ):
        text = json.dumps(body)
        with Busy(server) as busy:
            statuses = at_once(2, lambda _: asked(server, "POST", path, text))
        wrong = f"{busy.used / 2:.1f} s of processor for {len(text) >> 10} kB" if busy.used > 2 * 2 else None
        yield name, wrong or (f"{statuses}" if any(status not in (200, 400, 413, 503) for status in statuses) else None)


def leaves(server, rng):
    """A bulk of conflicting revisions of one document grows as it should: twice as many, about twice as long."""

    def seconds(name, count):
        with Busy(server) as busy:
            with_leaves(server, name, count)
        return busy.used

    few, many = seconds("few", 250), seconds("many", 1_000)
    yield "leaves of one document", (
        f"250 took {few:.1f} s of processor, 1,000 {many:.1f} s" if many > 8 * max(few, 0.1) else None
    )


def abandoned(server, rng):
    """Work whose client has gone ends soon."""
    for begin in range(0, 30_000, 5_000):
        docs = json.dumps({"docs": [{"_id": f"d{at:05}"} for at in range(begin, begin + 5_000)]})
        server.request("POST", "/db/_bulk_docs", docs, expected=(201,))
    designs = json.dumps({"docs": [{"_id": f"_design/d{at:05}"} for at in range(1_000)]})
    server.request("POST", "/db/_bulk_docs", designs, timeout=60, expected=(201,))
    keys = json.dumps({"queries": [{"keys": [f"d{at:05}" for at in range(40)]}] * 1_000}).encode()
    for name, method, path, body in (
        (
            "1,000 queries that skip all",
            "POST",
            "/db/_all_docs/queries",
            json.dumps({"queries": [{"skip": 10**9}] * 1_000}).encode(),
        ),
        (
            "1,000 queries of design documents",
            "POST",
            "/db/_design_docs/queries",
            json.dumps({"queries": [{"limit": 0}] * 1_000}).encode(),
        ),
        ("1,000 queries of 40 keys", "POST", "/db/_all_docs/queries", keys),
        ("a walk that skips all", "GET", "/db/_all_docs?skip=1000000000", b""),
        (
            "_bulk_get of 50,000",
            "POST",
            "/db/_bulk_get",
            json.dumps({"docs": [{"id": f"d{at % 5_000:05}"} for at in range(50_000)]}).encode(),
        ),
        (
            "_revs_diff of 50,000 ids",
            "POST",
            "/db/_revs_diff",
            json.dumps({f"x{at}": ["1-a"] for at in range(50_000)}).encode(),
        ),
        ("changes", "GET", "/db/_changes?include_docs=true", b""),
    ):
        for at in range(2):
            with server.connect() as sock:
                sock.sendall(request(method, path, body))
                time.sleep(0.3)
        time.sleep(1)
        with Busy(server) as busy:
            time.sleep(2.5)
        yield name, busy.complaint(0.15)
        server.is_idle(20)


abandoned.longest_wait = 6.0


def beginnings(server, rng):
    """Connections that have said the beginning of HTTP/2's preface, or nothing: waiting costs no processor."""
    for name, data in (
        ("nothing", b""),
        ("P", b"P"),
        ("PRI * HTTP/2.0", b"PRI * HTTP/2.0\r\n"),
        ("a preface", PREFACE),
        ("GET", b"GET /"),
        ("P and an end", None),
    ):
        socks = []
        for _ in range(1_000):
            sock = server.connect()
            socks.append(sock)
            sock.sendall(b"P" if data is None else data)
            if data is None:
                sock.shutdown(socket.SHUT_WR)
        time.sleep(0.3)
        with Busy(server) as busy:
            time.sleep(2)
        close_all(socks)
        yield f"1,000 that have said {name}", busy.complaint(0.15)
        server.is_idle(10)


def inflating(server, rng):
    """Small bodies that become large."""
    bomb = gzip.compress(b" " * (63 << 20) + b"{}", 9)
    members = gzip.compress(b"") * 2_000_000
    for name, body, count in (("60 bombs", bomb, 60), ("members without end", members, 8)):

        def send(_):
            with server.connect() as sock:
                sock.sendall(request("POST", "/db", body, [("Content-Encoding", "gzip")]))
                return Reader(sock, 60).answer().status

        statuses = at_once(count, send)
        yield name, None if all(status in (201, 400, 413, 503) for status in statuses) else f"{statuses}"


inflating.longest_wait = 3.0


def pieces(server, rng):
    """Bodies of many tiny pieces."""
    data = b"".join(b"1\r\nx\r\n" for _ in range(300_000))
    multipart = b"--b\r\n\r\n" + b"\r\n--bX" * 200_000
    chunked_parts = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in [b"--b\r\n"] + [b"X: y\r\n"] * 2_000)
    for name, path, kind, body, chunked in (
        ("300,000 chunks to a document", "/db/x", "application/json", data, True),
        ("300,000 chunks to an attachment", "/db/x/file", "x/y", data, True),
        ("300,000 chunks to a multipart", "/db/x", "multipart/related; boundary=b", data, True),
        ("200,000 near boundaries", "/db/y", "multipart/related; boundary=b", multipart, False),
        ("part headers in chunks", "/db/z", "multipart/related; boundary=b", chunked_parts, True),
    ):
        headers = [("Content-Type", kind)] + ([("Transfer-Encoding", "chunked")] if chunked else [])

        def send(_):
            with server.connect() as sock:
                try:
                    sock.sendall(request("PUT", path, body + (b"0\r\n\r\n" if chunked else b""), headers))
                except OSError:
                    pass
                return Reader(sock, 30).answer().status

        with Busy(server) as busy:
            at_once(3, send)
        yield name, f"{busy.used:.1f} s of processor" if busy.used > 6 else None


def floods(server, rng):
    """Frames of HTTP/2 by the hundred thousand, with nothing behind them."""
    for name, data in (
        ("pings", frame(PING, payload=b"12345678")),
        ("settings", settings()),
        ("settings of a window", settings((4, 0)) + settings((4, 65_535))),
        ("priorities", frame(PRIORITY, 0, 1, struct.pack(">IB", 0, 1))),
        ("window updates", frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\x01")),
        ("unknown frames", frame(99)),
        ("resets", b""),
    ):

        def send(_):
            with Connection(server) as connection:
                try:
                    if not data:
                        fields = block(path="/db/_all_docs")
                        for begin in range(1, 40_001, 1_000):
                            connection.send(
                                b"".join(
                                    frame(HEADERS, END_STREAM | END_HEADERS, at, fields)
                                    + frame(RST_STREAM, 0, at, b"\0\0\0\x08")
                                    for at in range(begin, begin + 1_000, 2)
                                )
                            )
                    else:
                        connection.sock.settimeout(5)
                        for _ in range(200):
                            connection.send(data * 1_000)
                except OSError:
                    pass

        with Busy(server) as busy:
            at_once(2, send)
        yield name, f"{busy.used:.1f} s of processor" if busy.used > 6 else None


def followers(server, rng):
    """Heartbeats as often as they can be had."""
    with Connection(server) as connection:
        connection.send(
            b"".join(get(1 + 2 * at, "/db/_changes?feed=continuous&heartbeat=1&since=now") for at in range(900))
        )
        time.sleep(0.5)
        with Busy(server) as busy:
            sum(1 for _ in connection.frames(3))
        yield "900 followers with heartbeat=1", busy.complaint(0.5)
    socks = []
    for _ in range(300):
        sock = server.connect()
        sock.sendall(request("GET", "/db/_changes?feed=eventsource&heartbeat=1&since=now"))
        socks.append(sock)
    with Busy(server) as busy:
        time.sleep(2)
    close_all(socks)
    yield "300 that do not read their heartbeats", busy.complaint(0.5)
    ids = json.dumps({"doc_ids": [f"x{at}" for at in range(10_000)]}).encode()
    for at in range(40):
        sock = server.connect()
        sock.sendall(request("POST", "/innocent/_changes?feed=continuous&filter=_doc_ids&since=now", ids))
        socks.append(sock)
    time.sleep(1)
    with Busy(server) as busy:
        time.sleep(2)
    close_all(socks)
    yield "40 that follow 10,000 ids", busy.complaint(0.5)


def serial(server, rng):
    """One small request that is many transactions one after another, and nobody waits for it."""
    mixed = json.dumps(
        {"docs": [{"_id": f"_local/l{at}"} if at % 2 else {"_id": f"m{at}"} for at in range(40_000)]}
    ).encode()
    attached = json.dumps({"docs": [{"_attachments": {"a": {"data": "YQ=="}}} for at in range(40_000)]}).encode()
    for name, body in (
        ("40,000 documents, every other one local", mixed),
        ("40,000 documents with an attachment each", attached),
    ):
        with server.connect() as sock:
            sock.sendall(request("POST", "/db/_bulk_docs", body))
            time.sleep(0.5)
        time.sleep(5)
        with Busy(server) as busy:
            time.sleep(1)
        yield name, "still at it after 5 s" if busy.used > 0.2 else None
        server.is_idle(60)


GROUPS = [products, leaves, abandoned, beginnings, inflating, pieces, floods, followers, serial]
