"""Attachments by a user's many clients, beside a neighbour who keeps some: multipart bodies of wrong lengths, slow ones, interrupted ones,
bombs, ten thousand small ones."""

import base64
import gzip
import json
import socket
import time
import zlib

from asking import ask, checked
from neighbours import SETUP, at_rest, beside, flood, judged, late, owned, reset, tenants

BOMB = gzip.compress(b"\0" * (200 << 20), 9)
DOUBLE = gzip.compress(gzip.compress(b"\0" * (100 << 20), 9), 9)
MEMBERS = gzip.compress(b"") * 200_000
LENGTHS = (-10**12, -1, 0, 1, 9, 10, 11, 500, 10**7, 2**31, 2**63, 2**64, 1e3, "10", None, True, [], {})


def parts(rng):
    """A multipart body of which something is wrong: what, headers, bytes."""
    count = rng.choice((1, 2, 5, 40))
    data = [bytes([65 + at % 26]) * rng.choice((0, 1, 10, 3_000, 60_000)) for at in range(count)]
    listed = {f"f{at}": {"follows": True, "content_type": "x/y", "length": len(part)} for at, part in enumerate(data)}
    what = rng.choice((
        "right", "length", "length", "missing part", "one too many", "no end", "cut", "cut in boundary", "other order", "same name", "encoded", "bad encoding", "wrong digest", "no follows", "preamble", "long header", "many headers", "near boundaries", "nested", "stub", "two documents", "no document", "empty boundary", "huge boundary", "form"
    ))
    boundary, end = "b" * rng.choice((1, 30, 69)), True
    name = f"f{rng.randrange(count)}"
    if what == "length":
        listed[name]["length"] = rng.choice(LENGTHS)
    elif what == "missing part":
        data.pop()
    elif what == "one too many":
        data.append(b"more")
    elif what == "same name":
        listed = {("f0" if at % 2 else f"f{at}"): entry for at, entry in enumerate(listed.values())}
    elif what == "encoded":
        data = [gzip.compress(part) for part in data]
        listed = {f"f{at}": {"follows": True, "content_type": "text/plain", "encoding": "gzip", "length": rng.choice((0, 5, 10**9)), "encoded_length": len(part)} for at, part in enumerate(data)}
    elif what == "bad encoding":
        listed[name].update(encoding="gzip", encoded_length=len(data[0]))
    elif what == "wrong digest":
        listed[name]["digest"] = rng.choice(("md5-x", "md5-" + base64.b64encode(b"0" * 16).decode(), "sha1-x", 5, None))
    elif what == "no follows":
        listed[name].pop("follows")
    elif what == "stub":
        listed[name] = {"stub": True, "revpos": rng.choice((0, 1, 10**9, -1)), "content_type": "x/y"}
    first = json.dumps({"_attachments": listed}).encode()
    headers = ["Content-Type: application/json"]
    if what == "long header":
        headers.append("X: " + "y" * 30_000)
    if what == "many headers":
        headers += [f"X{n}: y" for n in range(2_000)]
    pieces = ["\r\n".join(headers).encode() + b"\r\n\r\n" + (b"" if what == "no document" else first)]
    if what == "two documents":
        pieces.append(pieces[0])
    order = reversed(data) if what == "other order" else data
    pieces += [b"\r\n" + part if not part.startswith(b"{") else part for part in order]
    if what == "nested":
        pieces.append(b"Content-Type: multipart/related; boundary=c\r\n\r\n--c\r\n\r\nx\r\n--c--")
    if what == "near boundaries":
        pieces.append(b"\r\n" + (b"\r\n--" + boundary.encode()[:-1] + b"X") * 3_000)
    mark = b"--" + boundary.encode()
    body = b"".join(mark + b"\r\n" + piece + b"\r\n" for piece in pieces) + (mark + b"--" if what != "no end" else b"")
    if what == "preamble":
        body = b"p" * 20_000 + b"\r\n" + body
    if what == "cut":
        body = body[:rng.randrange(len(body))]
    if what == "cut in boundary":
        body = body[:-2 - rng.randrange(len(mark))]
    kind = f"multipart/related; boundary={'' if what == 'empty boundary' else 'b' * 5_000 if what == 'huge boundary' else boundary}"
    if what == "form":
        kind = f"multipart/form-data; boundary={boundary}"
        body = b"".join(mark + b'\r\nContent-Disposition: form-data; name="_attachments"; filename="f%d"\r\n\r\n%s\r\n' % (at, part) for at, part in enumerate(data)) + mark + b"--"
    return what, kind, body


def send(by, path, method, kind, body, rng, more=()):
    """Sends a body in one way of several; the status, or what the client did."""
    way = rng.choice(("at once", "at once", "at once", "in pieces", "announced longer", "announced shorter", "chunked", "interrupted", "reset", "half-closed"))
    length = len(body) + (rng.choice((1, 10**6, 10**9)) if way == "announced longer" else -min(len(body), rng.choice((1, 100))) if way == "announced shorter" else 0)
    head = by.head(method, path, None if way == "chunked" else length, [f"Content-Type: {kind}", *more, *(["Transfer-Encoding: chunked"] if way == "chunked" else [])])
    if way == "chunked":
        size = rng.choice((7, 5_000))
        body = b"".join(b"%x\r\n%s\r\n" % (len(body[at:at + size]), body[at:at + size]) for at in range(0, min(len(body), 60_000 if size == 7 else 10**9), size)) + b"0\r\n\r\n"
    sock = by.connect(timeout=25)
    try:
        if way in ("interrupted", "reset"):
            body = body[:len(body) // 2]
        if way == "in pieces":
            sock.sendall(head)
            for at in range(0, len(body), max(1, len(body) // 10)):
                sock.sendall(body[at:at + max(1, len(body) // 10)])
                time.sleep(0.05)
        else:
            sock.sendall(head + body)
        if way == "half-closed":
            sock.shutdown(socket.SHUT_WR)
        if way in ("interrupted", "reset"):
            time.sleep(rng.choice((0, 0.1)))
            return way
        sock.settimeout(1 if way in ("announced longer", "half-closed") else 25)
        answer = sock.recv(65_536)
        return answer[9:12].decode("latin-1") or "closed"
    except (TimeoutError, socket.timeout):
        return "left" if way in ("announced longer", "half-closed") else "hung"
    except OSError:
        return "closed"
    finally:
        reset(sock) if way == "reset" else sock.close()


def multiparts(server, rng):
    who, path = tenants(server, "ute", 60), owned(server, "ute", "files")

    def work(rng, at):
        what, kind, body = parts(rng)
        status = send(who[rng.randrange(60)], f"{path}/m{rng.randrange(10**12)}", "POST" if "form" in kind else "PUT", kind, body, rng)
        return f"{what} {status}"

    wrong = lambda result: result if result == "hung" or result.endswith((" hung", " 500")) else None
    yield from beside(server, "multipart bodies", late(lambda: judged("multipart", flood(24, 20, work, rng.random()), wrong)))
    yield from at_rest(server, "multipart bodies")
    yield from checked(server, "files", "theirs")


def slow(server, rng):
    """Uploads that hardly go on: more than there is memory for, from many addresses."""
    who, path = tenants(server, "ute", 200), owned(server, "ute", "slow")

    def attack():
        socks, kinds = [], (("PUT", "/s%d/f", "x/y", b"y" * 200_000), ("PUT", "/s%d", "multipart/related; boundary=b", b"--b\r\nContent-Type: application/json\r\n\r\n" + b'{"_attachments":{"f":{"follows":true,"content_type":"x/y","length":5000000}}}' + b"\r\n--b\r\n\r\n" + b"y" * 200_000),
                            ("PUT", "/s%d", "application/json", b'{"_attachments":{"f":{"data":"' + b"eXl5" * 50_000), ("PUT", "/s%d/f", "text/plain", gzip.compress(b"z" * 90_000)))
        for at in range(800):
            method, where, kind, body = kinds[at % 4]
            more = ["Content-Encoding: gzip"] if kind == "text/plain" else []
            sock = who[at % 200].connect(timeout=5)
            try:
                sock.sendall(who[0].head(method, path + where % at, 5_000_000, [f"Content-Type: {kind}", *more]) + body)
                sock.setblocking(False)
            except OSError:
                pass
            socks.append(sock)
            yield f"slow upload {at}", None
        end = time.monotonic() + 15
        while time.monotonic() < end:
            for sock in socks:
                try:
                    sock.send(b"y" * 100)
                except OSError:
                    pass
            time.sleep(0.5)
        open_ = 0
        for sock in socks:
            try:
                sock.send(b"y")
                open_ += 1
            except OSError:
                pass
            sock.close()
        print(f"    slow uploads: {open_} of 800 were still open", flush=True)

    yield from beside(server, "800 slow uploads", attack())
    yield from at_rest(server, "800 slow uploads")


def bombs(server, rng):
    """What is small and becomes large, in each place that inflates."""
    who, path = tenants(server, "ute", 60), owned(server, "ute", "bombs")
    bomb64 = base64.b64encode(BOMB).decode()

    def work(rng, at):
        by, id = who[rng.randrange(60)], f"/x{rng.randrange(10**12)}"
        data = rng.choice((BOMB, DOUBLE, MEMBERS, BOMB[:-9], zlib.compress(b"\0" * 10**7), BOMB * 3))
        kind = rng.randrange(5)
        if kind == 0:
            return f"attachment {send(by, path + id + '/f', 'PUT', 'text/plain', data, rng, ['Content-Encoding: gzip'])}"
        if kind == 1:
            return f"document {send(by, path + id, 'PUT', 'application/json', data, rng, ['Content-Encoding: gzip'])}"
        if kind == 2:
            listed = {f"f{n}": {"content_type": "text/plain", "encoding": "gzip", "data": bomb64} for n in range(rng.choice((1, 20)))}
            return f"inline {ask(by, 'PUT', path + id, {'_attachments': listed}, timeout=60).status}"
        if kind == 3:
            first = json.dumps({"_attachments": {"f": {"follows": True, "content_type": "text/plain", "encoding": "gzip", "length": 5, "encoded_length": len(data)}}}).encode()
            return f"multipart {send(by, path + id, 'PUT', 'multipart/related; boundary=b', b'--b' + bytes([13, 10]) * 2 + first + bytes([13, 10]) + b'--b' + bytes([13, 10]) * 2 + data + bytes([13, 10]) + b'--b--', rng)}"
        answer = ask(by, "GET", f"{path}/bomb?attachments=true", headers={"accept": rng.choice(("application/json", "multipart/related"))}, timeout=rng.choice((0.5, 40)))
        return f"reading {answer.status or 'left'}"

    def attack():
        yield from judged("a bomb that is read", [f"{ask(who[0], 'PUT', path + '/bomb/f', BOMB, {'content-type': 'text/plain', 'content-encoding': 'gzip'}, timeout=60).status}"])
        wrong = lambda result: result if result.endswith((" hung", " 500")) or result == "hung" else None
        yield from judged("bombs", flood(16, 20, work, rng.random()), wrong)

    yield from beside(server, "bombs", attack())
    yield from at_rest(server, "bombs")


def small(server, rng):
    """Ten thousand attachments of a few bytes: in bulk, one by one with conflicts, read together, by a filter and by replication."""
    who, path = tenants(server, "ute", 60), owned(server, "ute", "small")

    def attack():
        statuses = []
        for at in range(20):
            listed = {f"f{n}": {"data": "YQ==", "content_type": "x/y"} for n in range(500)}
            statuses.append(f"{ask(who[at], 'PUT', f'{path}/many{at}', {'_attachments': listed}, timeout=90).status}")
        yield from judged("documents of 500", statuses, lambda result: None if result in ("201", "413", "400") else result)

        def work(rng, at):
            by, id = who[rng.randrange(60)], f"{path}/many{rng.randrange(20)}"
            kind = rng.randrange(6)
            if kind == 0:
                rev = ask(by, "GET", id, timeout=60).get("_rev", "")
                return f"put {ask(by, 'PUT', f'{id}/g{rng.randrange(600)}?rev={rev}', b'x', {'content-type': 'x/y'}, timeout=60).status}"
            if kind == 1:
                accept = rng.choice(("application/json", "multipart/related", "multipart/mixed"))
                return f"get {ask(by, 'GET', f'{id}?attachments=true', headers={'accept': accept}, timeout=rng.choice((1, 60))).status or 'left'}"
            if kind == 2:
                return f"all {ask(by, 'GET', path + '/_all_docs?include_docs=true&attachments=true', timeout=rng.choice((1, 60))).status or 'left'}"
            if kind == 3:
                return f"changes {ask(by, 'GET', path + '/_changes?include_docs=true&attachments=true&att_encoding_info=true', timeout=rng.choice((1, 60))).status or 'left'}"
            if kind == 4:
                body = {"docs": [{"id": f"many{n % 20}", "atts_since": []} for n in range(100)]}
                return f"bulk_get {ask(by, 'POST', path + '/_bulk_get?attachments=true&revs=true', body, timeout=rng.choice((1, 60))).status or 'left'}"
            docs = [{"_id": f"c{rng.randrange(10**9)}", "_attachments": {"f": {"data": "YQ==", "content_type": "x/y"}}} for _ in range(500)]
            return f"bulk {ask(by, 'POST', path + '/_bulk_docs', {'docs': docs}, timeout=60).status}"

        yield from judged("small ones", flood(24, 20, work, rng.random()), lambda result: result if result == "hung" or result.endswith(" 500") else None)

    yield from beside(server, "10,000 small attachments", attack())
    yield from at_rest(server, "10,000 small attachments")
    yield from checked(server, "small")


for group in (multiparts, slow, bombs, small):
    group.longest_wait = 30

GROUPS = (multiparts, slow, bombs, small)
