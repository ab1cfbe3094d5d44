"""Feeds of databases with channels and of selector indexes: followers with thousands of channels, who do not read, and over WebSockets."""

import json
import select
import socket
import time

from asking import ask, bulk, checked, database, holds, segment, short, step, wait_for, wrong
from browsers import frame, handshake
from gateway import administrator, channelled, listeners, user
from server import MB
from tools import Peak, at_once, close_all
from wire import Broken, Reader, is_closed

SETUP = {"more": listeners}
CHANNELS = [f"c{n}" for n in range(1_000)]


def opened(port, path, body=None, receive_buffer=None):
    """A feed that is asked for, of which nothing is read."""
    sock = port.connect(timeout=30, receive_buffer=receive_buffer)
    text = json.dumps(body).encode() if body is not None else b""
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {len(text)}"]
    if port.authorization:
        lines.append(f"Authorization: {port.authorization}")
    sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + text)
    return sock


def heard(socks, what, seconds=60.0):
    """How many of the connections are sent this."""
    texts, left, end = {sock: b"" for sock in socks}, set(socks), time.monotonic() + seconds
    while left and time.monotonic() < end:
        for sock in select.select(list(left), [], [], 1)[0]:
            try:
                data = sock.recv(1 << 16)
            except OSError:
                data = b""
            texts[sock] = texts[sock][-len(what):] + data
            if what in texts[sock] or not data:
                left.discard(sock)
    return sum(what in text for text in texts.values())


def followers(server, rng):
    """Who follows thousands of channels, in many feeds, and does not read."""
    path = channelled(server, "followed", anna={"admin_channels": CHANNELS}, berta={"admin_channels": ["c1"]})
    admin, anna, berta = administrator(server), user(server, "anna"), user(server, "berta")
    for part in range(4):
        docs = [{"_id": f"d{part * 250 + n}", "channels": [f"c{part * 250 + n}", f"c{n}"]} for n in range(250)]
        bulk(admin, path, docs)
    by_channel = "filter=sync_gateway/bychannel&channels=" + ",".join(CHANNELS)
    other = lambda what: (f"berta beside {what}", wrong(ask(berta, "GET", path + "/d1", timeout=30), 200, 5))
    for name, port, query, count, within in (
        ("anna's feeds of 1,000 channels", anna, "feed=continuous&since=0&" + by_channel, 100, 400 * MB),
        ("anna's feeds of all she has", anna, "feed=continuous&include_docs=true", 60, 400 * MB),
        ("administrators' of 1,000 channels", admin, "feed=continuous&" + by_channel, 30, 400 * MB),
        ("the same of channels that are not", admin, "feed=longpoll&filter=sync_gateway/bychannel&channels=" + ",".join(f"n{n}" for n in range(999)) + ",mark", 30, 400 * MB)
    ):
        with Peak(server) as peak:
            socks = [opened(port, f"{path}/_changes?{query}&heartbeat=30000") for _ in range(count)]
            yield other(name)
            mark = f"mark{rng.randrange(10**9)}"
            written = ask(admin, "PUT", f"{path}/{mark}", {"channels": ["mark" if "feed=longpoll" in query else "c500"]}, timeout=60)
            yield f"a write beside {name}", wrong(written, 201, 10)
            told = heard(socks, mark.encode(), 120)
            yield holds(f"{name}: all are told", told == count, f"{told} of {count}")
            close_all(socks)
        yield f"memory of {name}", peak.complaint(within)
        yield holds(f"{name} end with their clients", server.is_idle(20), "the processor is busy with nobody waiting")
    for query, statuses in (
        ("filter=sync_gateway/bychannel&channels=" + ",".join(f"c{n}" for n in range(1_001)), 400), ("filter=sync_gateway/bychannel&channels=" + "c" * 1_001, 400),
        ("filter=sync_gateway/bychannel&channels=" + "," * 2_000, 400), ("filter=sync_gateway/bychannel&channels=*,!", 200), ("filter=sync_gateway/bychannel&channels=%00", 200),
        ("filter=sync_gateway/bychannel&channels=" + ",".join(["c1"] * 10_000), {200, 400})
    ):
        for port in (anna, admin):
            yield step(port, short(query), "GET", f"{path}/_changes?{query}", statuses=statuses)
    names = ",".join(f"{n:x}" for n in range(12_000))
    with Peak(server) as peak:
        found = at_once(6, lambda at: ask(server, "GET", f"/followed/_changes?filter=sync_gateway/bychannel&channels={names}", timeout=90))
        yield other("12,000 channels")
        yield holds("12,000 channels at CouchDB's port", all(answer.status in (200, 400, 414, 431) for answer in found), str([answer.status for answer in found]))
        found = at_once(6, lambda at: ask(server, "GET", f"/followed/_changes?filter=sync_gateway/bychannel&feed=longpoll&timeout=2000&since=now&channels={names}", timeout=90))
        yield holds("and live", all(answer.status in (200, 400, 414, 431) for answer in found), str([answer.status for answer in found]))
    yield "memory of 12,000 channels", peak.complaint(400 * MB)
    # What is large is not read.
    for n in range(60):
        ask(admin, "PUT", f"{path}/large{n}", {"channels": ["c1", "c2"], "text": "x" * 200_000})
    with Peak(server) as peak:
        socks = [opened(anna, f"{path}/_changes?feed={feed}&include_docs=true", receive_buffer=4_096) for feed in ("continuous", "normal", "longpoll") * 50]
        time.sleep(5)
        yield other("150 that do not read")
        close_all(socks)
    yield "memory of who does not read", peak.complaint(500 * MB)
    yield holds("they end, too", server.is_idle(30), "the processor is busy with nobody waiting")
    # Grants that come and go under followers.
    with Peak(server) as peak:
        socks = [opened(berta, f"{path}/_changes?feed=continuous&revocations=true&heartbeat=30000") for _ in range(100)]
        for n in range(20):
            channels = ["c1"] + [f"c{rng.randrange(1_000)}" for _ in range(200 if n % 2 else 0)]
            changed = ask(admin, "PUT", path + "/_user/berta", {"admin_channels": channels}, timeout=30)
            yield f"grants, {n}", wrong(changed, 200, 10)
            # Who does not read for a minute is given up.
            yield holds(f"all go on, {n}", not any([is_over(sock) for sock in socks]))
        for sock in socks:
            sock.setblocking(True)
        ask(admin, "PUT", path + "/after", {"channels": ["c1"]})
        told = heard(socks, b'"after"', 120)
        yield holds("all are told behind 20 grants", told == 100, f"{told}")
        ask(admin, "PUT", path + "/_user/berta", {"disabled": True})
        ended = wait_for(lambda: sum(is_over(sock) for sock in socks) == 100, 10)
        yield holds("and end with the user", ended, f"{sum(is_over(sock) for sock in socks)} of 100")
        close_all(socks)
    yield "memory of grants", peak.complaint(400 * MB)
    yield from checked(server, "followed")


followers.longest_wait = 8.0


def is_over(sock):
    """Whether the other side has closed; what it has sent is thrown away."""
    try:
        sock.setblocking(False)
        while sock.recv(1 << 16):
            pass
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


COSTLY = (
    {"a": {"$regex": "(a|b|ab|ba)*(a|b|ab|ba)*(a|b|ab|ba)*c"}}, {"a": {"$elemMatch": {"$or": [{"$regex": f"(x+x+)+y{n}"} for n in range(20)]}}},
    {"a": {"$all": list(range(0, 2_000))}}, {"$or": [{"a": {"$ne": n}} for n in range(400)]}, {"$nor": [{"b": {"$in": list(range(1_000))}}]},
    {"$and": [{"$not": {"$or": [{"a": {"$gt": n}}]}} for n in range(200)]}
)


def selectors(server, rng):
    """Selector indexes that cost, are many or nothing, and feeds of them."""
    path = database(server, "selecting")
    for at, text in enumerate((
        "1", "null", "[]", '"x"', "{}", '{"":{}}', '{"a":1}', '{"a":{}}', '{"a":{"selector":{}}}', '{"a":null}', '{"a":[]}', '{"a":{"$bogus":1}}', '{"a":{"a":{"$regex":"("}}}',
        '{"a/b":{}}', '{"%s":{}}' % ("n" * 200), '{"%s":{}}' % ("n" * 201), '{"\\u0000":{}}', '{"a":{"_attachments":{"$exists":true}}}', '{"a":{"_conflicts":1}}',
        '{"a":{"a":"%s"}}' % ("x" * 14_000), '{"a":{"a":"%s"}}' % ("x" * 15_001), '{"a":' + '{"$not":' * 300 + "{}" + "}" * 301,
        '{"a":' + '{"$and":[' * 90 + "{}" + "]}" * 90 + "}", "{%s}" % ",".join('"i%d":{"n":%d}' % (n, n) for n in range(65)),
        '{"a":{"a":{"$regex":"(?:a?){1000}a{1000}"}}}', '{"a":{},"a":1}', '{"__proto__":{}}'
    )):
        yield step(server, f"selector_indexes {short(text)}", "PUT", f"{path}/_design/s{at}", '{"selector_indexes":%s}' % text, statuses={201, 400})
    path = database(server, "costly")
    for at, selector in enumerate(COSTLY):
        body = {"selector_indexes": {f"i{n}": {"$and": [selector, {"n": {"$gte": n}}]} for n in range(10)}}
        yield step(server, f"ten of {short(json.dumps(selector))}", "PUT", f"{path}/_design/d{at}", body, statuses={201, 400}, within=20.0)
    documents = {
        "numbers": {"n": 5, "a": list(range(100_000))}, "text": {"n": 5, "a": "ab" * 1_000_000}, "texts": {"n": 5, "a": ["x" * 30] * 30_000},
        "deep": {"n": 5, "a": json.loads("[" * 400 + "]" * 400)}, "small": {"n": 5, "a": "c"}
    }
    for name, body in documents.items():
        answer = ask(server, "PUT", f"{path}/{name}", body, timeout=90)
        # What takes too long is in no index, and is written all the same.
        yield f"a write of {name} under 60 selectors", wrong(answer, {201, 413}, 60)
    found = at_once(8, lambda at: ask(server, "PUT", f"{path}/many{at}", documents["texts"], timeout=120).status)
    yield holds("eight at once", all(status in (201, 413, 503) for status in found), str(found))
    for name in (
        "", "i0", "d0/i0", "d0/", "/i0", "d0/i0/x", "x/i0", "%00", "i0%00", "x" * 5_000, "_design/d0/i0", "d0%2Fi0", "*", "../i0", "__proto__", "\u00e9".encode().decode("latin-1")
    ):
        for feed in ("normal", "longpoll&timeout=100", "continuous&timeout=100", "eventsource&timeout=100"):
            name = name if "%" in name else segment(name).replace("%2F", "/")
            yield step(server, f"_index/{short(name)} {feed}", "GET", f"{path}/_changes?filter=_index/{name}&feed={feed}", statuses={200, 400, 404, 503})
    good = database(server, "selected")
    docs = [{"_id": f"d{n}", "type": "x" if n % 10 == 0 else "y", "text": "t" * 1_000} for n in range(500)]
    bulk(server, good, docs)
    body = {"selector_indexes": {f"x{n}": {"type": "x", "$nor": [{"type": f"y{n}"}]} for n in range(60)}}
    yield step(server, "60 indexes", "PUT", good + "/_design/x", body, statuses=201)
    built = wait_for(lambda: all(ask(server, "GET", f"{good}/_changes?filter=_index/x{n}").status == 200 for n in (0, 30, 59)), 120)
    yield holds("they are built", built)
    with Peak(server) as peak:
        socks = [opened(server, f"{good}/_changes?feed=continuous&include_docs=true&heartbeat=20000&filter=_index/x{n % 60}") for n in range(300)]
        yield "another one beside 300 feeds", wrong(ask(server, "GET", good + "/d1"), 200, 5)
        ask(server, "PUT", good + "/last", {"type": "x"})
        told = heard(socks, b'"last"', 120)
        yield holds("all are told", told == 300, f"{told} of 300")
        ask(server, "DELETE", good + "/_design/x?rev=" + ask(server, "GET", good + "/_design/x").get("_rev", ""))
        ask(server, "PUT", good + "/behind", {"type": "x"})
        ended = wait_for(lambda: sum(is_over(sock) for sock in socks) == 300, 60)
        yield holds("and are cut with their index", ended, f"{sum(is_over(sock) for sock in socks)} of 300")
        close_all(socks)
    yield "memory of feeds of indexes", peak.complaint(400 * MB)
    yield holds("they end", server.is_idle(30), "the processor is busy with nobody waiting")
    yield from checked(server, "selected")


selectors.longest_wait = 8.0

def socket_of(port, path, options=None, receive_buffer=None):
    """A WebSocket, and what it began with; options are sent as its first message."""
    sock = port.connect(timeout=30, receive_buffer=receive_buffer)
    more = {"Authorization": port.authorization} if port.authorization else {}
    sock.sendall(handshake(path, **more))
    status = Reader(sock, 30).answer().status
    if options is not None and status == 101:
        sock.sendall(frame(1, options.encode() if isinstance(options, str) else options))
    return sock, status


def websockets(server, rng):
    """`feed=websocket`: what a client must not say ends it, and who says nothing or does not read holds nothing."""
    path = channelled(server, "sockets", anna={"admin_channels": ["A"]}, berta={"admin_channels": ["A"]})
    admin, anna = administrator(server), user(server, "anna")
    for n in range(20):
        ask(admin, "PUT", f"{path}/d{n}", {"channels": ["A"]})
    feed = path + "/_changes?feed=websocket"
    first = {
        "unmasked": frame(1, b"{}", mask=None), "reserved bits": frame(1, b"{}", rsv=7), "opcode 3": frame(3), "continuation of nothing": frame(0, b"{}"), "a ping in pieces": frame(9, b"x", fin=False),
        "length 2^63": frame(1, length=2**63), "length 2^62": frame(1, length=2**62), "20 kB": frame(1, b" " * 20_000), "20 kB in pieces": frame(1, b"{", fin=False) + frame(0, b" " * 10_000, fin=False) * 2,
        "not UTF-8": frame(1, b"\xff"), "close": frame(8), "close of one byte": frame(8, b"x"), "HTTP": b"GET / HTTP/1.1\r\n\r\n", "noise": bytes(rng.randrange(256) for _ in range(3_000)),
        "end": b"", "a megabyte": frame(2, b"x" * 1_000_000), "no JSON": frame(1, b"{"), "nothing": frame(1, b""), "null": frame(1, b"null"), "a list": frame(1, b"[]"), "deep": frame(1, b"[" * 15_000),
        "wide": frame(1, b'{"a":' * 3_000), "options twice": frame(1, b"{}") * 2, "1,001 channels": frame(1, json.dumps({"channels": ",".join(f"c{n}" for n in range(1_001))}).encode()),
        "a wrong channel": frame(1, b'{"channels":",,"}'), "a wrong since": frame(1, b'{"since":"x"}'), "ids": frame(1, b'{"filter":"_doc_ids","doc_ids":["a"]}'), "a wrong limit": frame(1, b'{"limit":"x"}'),
        "bytes behind options": frame(1, b"{}") + b"\0" * 3_000, "options in many pieces, and more": frame(1, b"{", fin=False) + frame(0, b"", fin=False) * 5_000 + frame(0, b"}") + frame(1, b"x")
    }
    for name, data in first.items():
        for whose, port in (("anna", anna), ("administrator", admin)):
            sock, status = socket_of(port, feed)
            try:
                sock.sendall(data)
                if not data:
                    sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            closed = is_closed(sock, 12)
            sock.close()
            yield f"{whose} says first: {name}", f"{status}" if status != 101 else None if closed else "the socket stays open"
    staying = {
        "pings before": frame(9, b"x" * 125) * 1_000 + frame(1, b"{}"), "pings behind": frame(1, b"{}") + frame(9, b"x" * 125) * 1_000, "pongs": frame(10) * 5_000 + frame(1, b"{}"),
        "options as bytes": frame(2, b"{}"), "options in pieces, with a ping": frame(1, b"{", fin=False) + frame(9, b"x") + frame(0, b"}"), "by the byte": None, "what is not heeded": frame(1, b'{"accept_encoding":"gzip","x":[1]}')
    }
    for name, data in staying.items():
        sock, status = socket_of(anna, feed)
        for piece in [data] if data is not None else [bytes([byte]) for byte in frame(1, b'{"limit":1000}')]:
            sock.sendall(piece)
        told = heard([sock], b"[]", 30)
        yield f"it goes on: {name}", None if (status, told) == (101, 1) else f"{status}, told {told}"
        sock.close()
    for name, more in (
        ("version 12", {"Sec_WebSocket_Version": "12"}), ("no key", {"Sec_WebSocket_Key": "x"}), ("a foreign page", {"Origin": "https://evil.example"}),
        ("a foreign page of null", {"Origin": "null"}), ("another name", {"Host": "evil.example"})
    ):
        for whose, port in (("anna", anna), ("administrator", admin)):
            sock = port.connect()
            sock.sendall(handshake(feed, **more, **({"Authorization": port.authorization} if port.authorization else {})))
            try:
                status = Reader(sock, 10).answer().status
            except (ConnectionError, Broken) as error:
                status = repr(error)
            sock.close()
            # What a name is called is checked where everyone is an administrator.
            yield f"{whose}, {name}", None if status in (400, 403, 405, 426) or (name == "another name" and port is anna) else f"{status}"
    with Peak(server) as peak:
        socks = [socket_of(anna, feed)[0] for _ in range(300)]
        for sock in socks:
            # Most of a message that never ends.
            sock.sendall(frame(1, b" " * 16_000, fin=False))
        yield "berta beside 300 who say nothing", wrong(ask(user(server, "berta"), "GET", path + "/d1"), 200, 5)
        ended = wait_for(lambda: sum(is_over(sock) for sock in socks) == 300, 60)
        yield holds("they are ended", ended, f"{sum(is_over(sock) for sock in socks)} of 300")
        close_all(socks)
    yield "memory of who says nothing", peak.complaint(300 * MB)
    for n in range(40):
        ask(admin, "PUT", f"{path}/large{n}", {"channels": ["A"], "text": "x" * 200_000})
    with Peak(server) as peak:
        socks = [socket_of(anna, feed, '{"include_docs":true}', 4_096)[0] for _ in range(150)]
        time.sleep(5)
        yield "berta beside 150 who do not read", wrong(ask(user(server, "berta"), "GET", path + "/d1"), 200, 5)
        # What they have not taken yet they are not sent behind this.
        ask(admin, "PUT", path + "/_user/anna", {"disabled": True, "admin_channels": ["A"]})
        idle = server.is_idle(30)
        yield holds("they end with their user", idle, "the processor is busy")
        ended = wait_for(lambda: sum(is_over(sock) for sock in socks) == 150, 60)
        yield holds("all of them", ended, f"{sum(is_over(sock) for sock in socks)} of 150")
        close_all(socks)
    yield "memory of who does not read", peak.complaint(400 * MB)
    ask(admin, "PUT", path + "/_user/anna", {"disabled": False, "admin_channels": ["A"]})
    with Peak(server) as peak:
        socks = [socket_of(anna, feed, "{}")[0] for _ in range(300)]
        told = heard(socks, b"[]", 120)
        yield holds("300 have all that there is", told == 300, f"{told}")
        ask(admin, "PUT", path + "/news", {"channels": ["A"]})
        told = heard(socks, b'"news"', 120)
        yield holds("and are told", told == 300, f"{told}")
        close_all(socks)
    yield "memory of 300", peak.complaint(300 * MB)
    yield holds("they end with their clients", server.is_idle(30), "the processor is busy with nobody waiting")


websockets.longest_wait = 6.0

GROUPS = (followers, selectors, websockets)
