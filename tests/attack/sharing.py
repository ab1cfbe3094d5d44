"""What all clients share - room for pages, memory, connections, passwords - and one client takes for itself. The group's innocent
client tells whether anything was left."""

import base64
import json
import socket
import time

from server import MB
from tools import asked, at_once, close_all
from wire import Reader, is_closed, request
from wire2 import END_HEADERS, END_STREAM, HEADERS, PREFACE, Connection, block, frame, get, settings

JSON = ("Content-Type", "application/json")


def pages(server, rng):
    """Readers of walks and feeds who do not read, or a little at a time, keep nobody from walking."""
    for at in range(8):
        docs = [{"_id": f"p{at}{n:04}", "x": "y" * 3_000} for n in range(600)]
        server.request("POST", "/db/_bulk_docs", json.dumps({"docs": docs}), expected=(201,))
    for name, method, path, body in (
        ("_all_docs", "GET", "/db/_all_docs?include_docs=true", b""),
        ("_changes", "GET", "/db/_changes?include_docs=true", b""),
        ("continuous", "GET", "/db/_changes?feed=continuous&include_docs=true", b""),
        (
            "_bulk_get",
            "POST",
            "/db/_bulk_get",
            json.dumps({"docs": [{"id": f"p{at}{n:04}"} for at in range(8) for n in range(600)]}).encode(),
        ),
    ):
        for reads in (0, 2_000):
            socks = []
            for _ in range(80):
                sock = server.connect(receive_buffer=4096)
                sock.sendall(request(method, path, body))
                socks.append(sock)
            began, longest = time.monotonic(), 0
            while time.monotonic() - began < 4:
                for sock in socks if reads else ():
                    sock.settimeout(0.01)
                    try:
                        sock.recv(reads)
                    except OSError:
                        pass
                start = time.monotonic()
                asked(server, "GET", "/innocent/_all_docs?limit=1", timeout=4)
                longest = max(longest, time.monotonic() - start)
                time.sleep(0.2)
            close_all(socks)
            time.sleep(0.5)
            yield f"80 of {name}, {reads} bytes at a time", (
                f"a walk took {longest:.1f} s beside them" if longest > 2 else None
            )


pages.longest_wait = 5.0


def trees(server, rng):
    """A feed holds the memory of its list as long as it lasts. Who waits for what it has left keeps nobody else waiting."""
    ids = b",".join(b'"%x"' % at for at in range(1_000_000))
    feed = server.connect()
    feed.sendall(
        request(
            "POST",
            "/db/_changes?feed=continuous&heartbeat=5000&filter=_doc_ids&since=now",
            b'{"doc_ids":[' + ids + b"]}",
        )
    )
    Reader(feed, 10).until(b"\r\n\r\n")
    for stays in (True, False):
        large = server.connect()
        large.sendall(request("POST", "/db/_bulk_docs", b'{"docs":[' + b"0," * 4_700_000 + b"0]}"))
        time.sleep(1)
        if not stays:
            large.close()
        body = json.dumps({"a": [{"n": at, "m": [at]} for at in range(2_000)]})
        start = time.monotonic()
        status = asked(server, "PUT", f"/innocent/beside-a-feed-{stays}", body, timeout=12)
        seconds = time.monotonic() - start
        large.close()
        yield f"a document of {len(body) >> 10} kB behind a large one that {'waits' if stays else 'has gone'}", (
            f"{status} after {seconds:.1f} s" if status != 201 or seconds > 4 else None
        )
    feed.close()


trees.longest_wait = 8.0


def texts(server, rng):
    """Bodies that do not end hold their memory; small ones go on beside them."""
    head = request("PUT", "/db/unending", b"", [("Content-Length", str(64 * MB)), JSON])
    socks = []
    for size in [63 * MB] * 3 + [200_000] * 40:
        sock = server.connect()
        socks.append(sock)
        try:
            sock.sendall(head + b" " * size)
        except OSError:
            pass
        # The large ones shall have their room before the small ones take the rest.
        time.sleep(1 if size > MB else 0)
    time.sleep(1)
    sizes = (1_000, 20_000, 100_000)
    statuses = [asked(server, "PUT", f"/innocent/s{size}", json.dumps({"x": "y" * size}), timeout=20) for size in sizes]
    close_all(socks)
    yield "documents of 1, 20 and 100 kB beside 3 bodies of 63 MB", f"{statuses}" if statuses != [201] * 3 else None


def leaving(server, rng):
    """Connections whose client has gone are gone, however far they came."""
    before = server.descriptors()
    ask_feed = request("GET", "/db/_changes?feed=continuous&since=now&heartbeat=60000")
    for name, data in (
        ("nothing", b""),
        ("a letter of a preface", b"P"),
        ("half a preface", PREFACE[:12]),
        ("half a head", b"GET / HTTP/1.1\r\nHo"),
        ("half a body", request("PUT", "/db/x", b"", [("Content-Length", "9")]) + b"{"),
        ("a feed", ask_feed),
        ("a preface", PREFACE),
        ("a stream of HTTP/2", PREFACE + settings() + get(1, "/db/_changes?feed=continuous&since=now")),
        ("half an upload", request("PUT", "/db/x/y", b"", [("Content-Length", "9")]) + b"{"),
        ("a longpoll", request("GET", "/db/_changes?feed=longpoll&since=now")),
    ):
        for how in ("close", "reset"):
            socks = []
            for _ in range(150):
                sock = server.connect()
                sock.sendall(data)
                if how == "reset":
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                socks.append(sock)
            time.sleep(0.2)
            close_all(socks)
            end = time.monotonic() + 4
            while server.descriptors() > before + 20 and time.monotonic() < end:
                time.sleep(0.1)
            left = server.descriptors() - before
            yield f"{how} behind {name}", f"{left} descriptors are left after 4 s" if left > 20 else None
            before = max(before, server.descriptors())


def staying(server, rng):
    """Connections that say nothing, or not enough, are closed in time: a head has 30 s, and so has each piece of a body."""
    kind = ("Content-Type", "multipart/related; boundary=b")
    cases = {
        "nothing": b"",
        "a letter": b"P",
        "half a head": b"GET / HTTP/1.1\r\nHo",
        "half a preface": PREFACE[:10],
        "half a head behind an answer": request("GET", "/_up") + b"GET / HTTP/1.1\r\nHo",
        "half a body": request("POST", "/db", b"", [("Transfer-Encoding", "chunked"), JSON]) + b"7\r\n{",
        "half an attachment": request("PUT", "/db/x/y", b"", [("Content-Length", "9")]) + b"{",
        "half a multipart": request("PUT", "/db/x", b"", [("Content-Length", "99"), kind]) + b"--b\r\n",
    }
    socks = {}
    for name, data in cases.items():
        socks[name] = server.connect(timeout=60)
        socks[name].sendall(data)
    dribble = server.connect(timeout=60)
    is_ended = False
    for _ in range(40):
        try:
            dribble.sendall(b"X")
        except OSError:
            is_ended = True
        time.sleep(1)
    for name, sock in socks.items():
        yield name, None if is_closed(sock, 0.5) else "is still open after 40 s"
    yield "a head that dribbles", None if is_ended else "is still open after 40 s"
    close_all([*socks.values(), dribble])


def passwords(server, rng):
    """Wrong passwords, whose clients do not wait for the answer, take neither threads nor everybody's time; locked out is 403."""

    def wrong(at):
        return base64.b64encode(f"root:{at}-{rng.random()}".encode()).decode()

    threads = server.threads()
    for at in range(400):
        with server.connect() as sock:
            sock.sendall(request("GET", "/_all_dbs", headers=[("Authorization", "Basic " + wrong(at))]))
            time.sleep(0.002)
    most = server.threads()
    yield "400 that hang up", f"{most} threads, {threads} before" if most > threads + 6 else None
    statuses = at_once(
        60,
        lambda at: (
            Connection(server).answer(1, 0.1),
            server.request("GET", "/_session", headers={"authorization": "Basic " + wrong(at)}, timeout=30)[0],
        )[1],
    )
    yield "60 at once", None if all(status in (401, 403, 429) for status in statuses) else f"{statuses}"
    with Connection(server) as connection:
        connection.send(
            b"".join(
                frame(
                    HEADERS,
                    END_STREAM | END_HEADERS,
                    1 + 2 * at,
                    block(headers=[("authorization", "Basic " + wrong(at))]),
                )
                for at in range(900)
            )
        )
        time.sleep(0.5)
    most = server.threads()
    yield "900 streams", f"{most} threads, {threads} before" if most > threads + 6 else None
    long = base64.b64encode(b"root:" + b"x" * 40_000).decode()
    statuses = at_once(
        20, lambda _: server.request("GET", "/_all_dbs", headers={"authorization": "Basic " + long}, timeout=30)[0]
    )
    yield "passwords of 40 kB", None if all(status in (401, 403, 429, 431) for status in statuses) else f"{statuses}"


passwords.setup = {"admin": True}
passwords.longest_wait = 3.0


def strangers(server, rng):
    """Who is not known gets 401 before anything is done, and its body is not kept."""
    for method, path in (
        ("GET", "/db"),
        ("GET", "/nothing"),
        ("PUT", "/new"),
        ("DELETE", "/db"),
        ("POST", "/db"),
        ("POST", "/db/_bulk_docs"),
        ("PUT", "/db/x/y"),
        ("GET", "/db/_changes?feed=continuous"),
        ("GET", "/_all_dbs"),
        ("GET", "/metrics"),
        ("POST", "/_replicate"),
        ("GET", "/_scheduler/docs"),
        ("GET", "/_db_updates?feed=continuous"),
        ("GET", "/db/_changes?feed=websocket"),
        ("COPY", "/db/x"),
        ("GET", "/%00"),
        ("POST", "/db/_compact"),
        ("PUT", "/db/_security"),
        ("GET", "/_node/_local/_config"),
        ("GET", "/_users"),
        ("GET", "/db/_design/x"),
        ("GET", "//db"),
        ("GET", "/db/"),
        ("PUT", "/db/_local/x"),
    ):
        for size in (0, 2, 200_000, 2_000_000):
            with server.connect() as sock:
                try:
                    sock.sendall(request(method, path, b" " * size, [] if size else [("Content-Length", "0")]))
                except OSError:
                    pass
                try:
                    status = Reader(sock, 10).answer().status
                except ConnectionError:
                    status = 401 if size > 1_000_000 else "closed"
            yield f"{method} {path} of {size}", None if status == 401 else f"{status}"


strangers.setup = {"admin": True}


GROUPS = [pages, trees, texts, leaving, staying, passwords, strangers]
