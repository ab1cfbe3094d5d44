"""What one client or many can make the server hold. A group's innocent client is served meanwhile."""

import gzip
import json
import random
import time

from server import MB
from tools import Peak, asked, at_once, close_all, with_leaves
from wire import request
from wire2 import DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, Connection, block, frame, get

# Texts and trees of all bodies are to stay below 512 MB, answers below 256 MB.
BODIES = 700 * MB
ANSWERS = 512 * MB


def lists(server, rng):
    """Short bodies that stand for much: a bound of 200 MB is ten times what each of them is."""
    with_leaves(server, "many", 300)
    with_leaves(server, "common", 1_000, "a")
    for name, method, path, body in (
        (
            "atts_since of 20,000 for 300 leaves",
            "POST",
            "/db/_bulk_get",
            json.dumps({"docs": [{"id": "many", "atts_since": [f"1-{at}" for at in range(20_000)]}]}),
        ),
        (
            "open_revs of 1,000 that mean 1,000 leaves each",
            "GET",
            "/db/common?latest=true&open_revs=[" + ",".join(["%221-a%22"] * 1_000) + "]",
            None,
        ),
        (
            "_revs_diff of 300,000",
            "POST",
            "/db/_revs_diff",
            json.dumps({"none": [f"1-{at:x}" for at in range(300_000)]}),
        ),
    ):
        with Peak(server) as peak:
            statuses = at_once(8, lambda _: asked(server, method, path, body))
        yield name, peak.complaint(300 * MB) or (
            f"{statuses}" if any(status not in (200, 400, 413, 503) for status in statuses) else None
        )


def numbers(server, rng):
    """Bodies of a few MB with millions of items, four at once."""
    count = 4_500_000
    short = b",".join(b'"%x"' % (at & 0xFFF) for at in range(count // 2))
    for name, path, body in (
        ("_bulk_get of what is no document", "/db/_bulk_get", b'{"docs":[' + b"0," * count + b"0]}"),
        ("_bulk_get of empty lists", "/db/_bulk_get", b'{"docs":[' + b"[]," * (count // 3) + b"0]}"),
        ("_bulk_get of empty objects", "/db/_bulk_get", b'{"docs":[' + b"{}," * (count // 5) + b"0]}"),
        ("_all_docs with short keys", "/db/_all_docs", b'{"keys":[' + short + b"]}"),
        ("_all_docs with numbers", "/db/_all_docs", b'{"keys":[' + b"0," * count + b"0]}"),
        ("doc_ids", "/db/_changes?filter=_doc_ids", b'{"doc_ids":[' + short + b"]}"),
        ("revisions of nothing", "/db/_revs_diff", b'{"x":[' + b'"1-a",' * (count // 2) + b'"1-a"]}'),
        ("queries", "/db/_all_docs/queries", b'{"queries":[' + b"{}," * (count // 5) + b"{}]}"),
        ("documents that are none", "/db/_bulk_docs", b'{"docs":[' + b"0," * count + b"0]}"),
    ):

        def send(_):
            with server.connect() as sock:
                sock.sendall(request("POST", path, body))
                time.sleep(2)

        with Peak(server) as peak:
            at_once(4, send)
        yield name, peak.complaint(BODIES)


numbers.longest_wait = 6.0


def forms(server, rng):
    """A form's `_rev` of 60 MB that is read, and a field behind it that never ends."""
    head = b'--b\r\nContent-Disposition: form-data; name="_rev"\r\n\r\n'
    tail = b'\r\n--b\r\nContent-Disposition: form-data; name="x"\r\n\r\nx'
    socks = []
    with Peak(server) as peak:
        for _ in range(14):
            sock = server.connect()
            socks.append(sock)
            try:
                sock.sendall(
                    request(
                        "POST",
                        "/db/form",
                        b"",
                        [
                            ("Content-Type", "multipart/form-data; boundary=b"),
                            ("Referer", "http://127.0.0.1/"),
                            ("Content-Length", "999999999"),
                        ],
                    )
                )
                sock.sendall(head + b"1" * (60 * MB) + tail)
            except OSError:
                pass
        time.sleep(1)
    close_all(socks)
    yield "14 forms that do not end", peak.complaint(BODIES)


def uploads(server, rng):
    """Attachments that come slowly: what waits to be staged counts like any other body."""
    data = random.Random(1).randbytes(440_000)
    for kind, coding in (("application/octet-stream", ""), ("text/plain", ""), ("text/plain", "gzip")):
        body = data
        if coding:
            body = gzip.compress(data, 1)[:430_000]
        socks = []
        with Peak(server) as peak:
            for at in range(1_200):
                sock = server.connect()
                socks.append(sock)
                headers = [("Content-Type", kind), ("Content-Length", "99999999")] + (
                    [("Content-Encoding", coding)] if coding else []
                )
                try:
                    sock.sendall(request("PUT", f"/db/upload{at}/file", b"", headers) + body)
                except OSError:
                    pass
            time.sleep(1)
        close_all(socks)
        yield f"1,200 uploads of {kind} {coding}", peak.complaint(BODIES)


def readers(server, rng):
    """Answers that nobody reads."""
    plain = random.Random(1).randbytes(30 * MB)
    server.request("PUT", "/db/large/file", plain, {"content-type": "application/octet-stream"}, expected=(201,))
    server.request(
        "PUT",
        "/db/bomb/file",
        gzip.compress(b"\0" * (300 * MB), 9),
        {"content-type": "text/plain", "content-encoding": "gzip"},
        expected=(201,),
    )
    server.request("PUT", "/db/text/file", b"\0" * (300 * MB), {"content-type": "text/plain"}, expected=(201,))
    for at in range(9):
        server.request("PUT", f"/db/doc{at}", json.dumps({"x": "y" * 7_900_000}), expected=(201,))
    for name, path, count in (
        ("an attachment", "/db/large/file", 500),
        ("a compressed attachment", "/db/bomb/file", 500),
        ("one compressed here", "/db/text/file", 500),
        ("documents with attachments", "/db/bomb?attachments=true", 300),
        ("documents of 8 MB", "/db/_all_docs?include_docs=true&startkey=%22doc%22&endkey=%22doc9%22", 100),
        ("a document of 8 MB", "/db/doc1", 300),
        ("changes with documents", "/db/_changes?include_docs=true", 100),
    ):
        socks = []
        with Peak(server) as peak:
            for _ in range(count):
                sock = server.connect(receive_buffer=4096)
                sock.sendall(request("GET", path))
                socks.append(sock)
            time.sleep(2)
        close_all(socks)
        yield f"{count} that do not read {name}", peak.complaint(ANSWERS)


readers.longest_wait = 8.0


def streams(server, rng):
    """The same over HTTP/2: windows of 0, few connections, many streams."""
    docs = [{"_id": f"s{at:04}", "x": "y" * 900} for at in range(260)]
    server.request("POST", "/db/_bulk_docs", json.dumps({"docs": docs}), expected=(201,))
    server.request("PUT", "/db/quarter", json.dumps({"x": "y" * 250_000}), expected=(201,))
    for name, path in (
        ("a document of 250 kB", "/db/quarter"),
        ("a walk", "/db/_all_docs?include_docs=true"),
        ("uuids", "/_uuids?count=1000"),
        ("metrics", "/metrics"),
    ):
        connections = []
        with Peak(server) as peak:
            for _ in range(4):
                connection = Connection(server, window=0)
                connections.append(connection.sock)
                connection.send(b"".join(get(1 + 2 * at, path) for at in range(990)))
            time.sleep(2)
        close_all(connections)
        yield f"4 times 990 streams without window: {name}", peak.complaint(ANSWERS)
    yield "rapid reset of writes", resets(server)


def resets(server):
    fields = block("PUT", "/db/reset?new_edits=false", [("content-type", "application/json")])
    with Peak(server) as peak:
        with Connection(server) as connection:
            try:
                for at in range(200):
                    connection.send(
                        b"".join(
                            frame(HEADERS, END_HEADERS, stream, fields)
                            + frame(DATA, END_STREAM, stream, b'{"_rev":"1-a"}')
                            + frame(RST_STREAM, 0, stream, b"\0\0\0\x08")
                            for stream in range(1 + at * 200, 1 + (at + 1) * 200, 2)
                        )
                    )
            except OSError:
                pass
        time.sleep(1)
    return peak.complaint(ANSWERS)


def windows(server, rng):
    """Nobody who is known: bodies of 1 MB for requests that wait to have their password looked at."""
    connections = []
    fields = lambda at: block(
        "PUT",
        "/db/x",
        [("authorization", f"Basic {'eDp5' if not at else 'eDp5' + 'eA' * 2}"), ("content-length", "2000000")],
    )
    with Peak(server) as peak:
        for at in range(300):
            connection = Connection(server)
            connections.append(connection.sock)
            try:
                connection.send(frame(HEADERS, END_HEADERS, 1, fields(at)) + frame(DATA, 0, 1, b"x" * 16_384) * 3)
                connection.sock.settimeout(0.5)
                connection.send(b"".join(frame(DATA, 0, 1, b"x" * 16_000) for _ in range(58)))
            except OSError:
                pass
        time.sleep(0.5)
    close_all(connections)
    yield "300 bodies behind wrong passwords", peak.complaint(ANSWERS)


windows.setup = {"admin": True}


def databases(server, rng):
    """What is left of databases that come and go."""
    for at in range(60):
        server.request("PUT", f"/gone{at}", expected=(201,))
        server.request("DELETE", f"/gone{at}", expected=(200,))
    before = server.resident()
    for at in range(1_000):
        server.request("PUT", f"/gone{at}")
        server.request("PUT", f"/gone{at}/x", b"{}")
        server.request("DELETE", f"/gone{at}")
    grown = server.resident() - before
    yield "1,000 databases that were deleted", f"{grown // 1024} kB are left" if grown > 15 * MB else None


GROUPS = [lists, numbers, forms, uploads, readers, streams, windows, databases]
