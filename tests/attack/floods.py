"""Floods of connections and of what goes over them, from many addresses, beside a client that reads as fast as it can: it keeps
80 % of its rate, memory grows by less than 300 MB, and all is free 60 s after."""

import os
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import wire2
from server import MB
from tools import Peak

SECONDS = 12
CERTIFICATE = Path(__file__).resolve().parents[2] / "crates/scenarios/tests/data"
# Bounds by address hold for the attackers; the client that is measured is 127.0.0.1.
SETUP = {"config": 'unlimited = ["127.0.0.1"]\n'}


def behind():
    """What has a command wait for the server and its other client, as one on another machine would not be in their way.
    `chrt -f 2 run.py` keeps the figures from whatever else is done here."""
    if os.sched_getscheduler(0) == os.SCHED_FIFO:
        return ["chrt", "-f", "1"]
    return ["nice", "-n", "19"]


def rate(server, seconds):
    """Requests a second of a client in a process of its own."""
    command = [sys.executable, __file__, "read", str(server.port), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)
    return float(done.stdout.strip() or 0)


def beside(server, name, *attack, port=None, seconds=SECONDS, share=0.8, memory=300 * MB):
    """An attack, and what the other client gets meanwhile."""
    rate(server, 1)
    alone_before = rate(server, 5)
    before, descriptors = server.resident(), server.descriptors()
    command = [sys.executable, __file__, *map(str, attack), str(port or server.port), str(seconds + 20)]
    with Peak(server, settles_within=0) as peak, tempfile.TemporaryFile("w+") as said:
        attacker = subprocess.Popen([*behind(), *command], stdout=said, stderr=said)
        time.sleep(8)
        found = rate(server, seconds)
        is_there = attacker.poll() is None
        attacker.kill()
        attacker.wait()
        said.seek(0)
        words = said.read()[-300:]
    yield f"{name}: it went on", None if is_there else f"the attack ended: {words}"
    yield f"{name}: memory", peak.complaint(max(before, 1) + memory)
    ended, end = None, time.monotonic() + 60
    while time.monotonic() < end:
        ended = (server.descriptors() - descriptors, (server.resident() - before) // MB)
        if ended[0] <= 24 and ended[1] <= 100:
            break
        time.sleep(1)
    print(f"    {name}: free after {60 - max(0, end - time.monotonic()):.0f} s")
    freed = ended[0] <= 24 and ended[1] <= 100
    alone_after = rate(server, 5)
    alone = (alone_before + alone_after) / 2
    print(f"    {name}: {alone:.0f} requests a second alone ({alone_before:.0f}, {alone_after:.0f}), {found:.0f} beside it "
          f"({100 * found / alone:.0f} %); {(peak.most - before) // MB} MB more")
    yield f"{name}: the other client", None if found >= share * alone else f"{found:.0f} a second, {alone:.0f} alone"
    yield f"{name}: free again", None if freed else f"{ended[0]} descriptors and {ended[1]} MB more after 60 s"


def prepare(server):
    server.request("PUT", "/db/large", b'{"text":"' + b"x" * 2_000_000 + b'"}', expected=(201, 409))
    server.request("PUT", "/innocent/small", b'{"a":1}', expected=(201, 409))


def heads(server, rng):
    prepare(server)
    yield from beside(server, "15,000 that never finish their head", "hold", "head", 15_000)


def handshakes(server, rng):
    prepare(server)
    port = int((server.directory / "tls-port").read_text())
    yield from beside(server, "15,000 that never finish TLS", "hold", "hello", 15_000, port=port)
    yield from beside(server, "15,000 that say nothing", "hold", "nothing", 15_000, port=port)


def with_tls(server):
    """What the configuration has beside the rest, for a server that is about to start."""
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (server.directory / "tls-port").write_text(str(port))
    return f'tls_certificate = "{CERTIFICATE}/localhost.pem"\ntls_key = "{CERTIFICATE}/localhost.key.pem"\n', [
        f"https://127.0.0.1:{port}"
    ]


handshakes.setup = {"more": with_tls}


def resets(server, rng):
    prepare(server)
    yield from beside(server, "rapid reset", "resets", "x", 20)


def readers(server, rng):
    prepare(server)
    yield from beside(server, "slow readers", "hold", "reader", 2_000)


def writers(server, rng):
    prepare(server)
    yield from beside(server, "slow writers", "hold", "writer", 2_000)


def chunks(server, rng):
    prepare(server)
    yield from beside(server, "endless chunks", "hold", "chunks", 500)


def over_http2(server, rng):
    prepare(server)
    yield from beside(server, "endless frames of one byte", "hold", "frames", 200)
    yield from beside(server, "endless frames without a byte", "hold", "empty", 200)
    yield from beside(server, "endless pings", "hold", "pings", 200)
    yield from beside(server, "slow readers of 50 streams each", "hold", "reader2", 200)
    yield from beside(server, "slow writers of 50 streams each", "hold", "writer2", 200)


def over_tls(server, rng):
    prepare(server)
    port = int((server.directory / "tls-port").read_text())
    yield from beside(server, "endless chunks over TLS", "hold-tls", "chunks", 300, port=port)
    yield from beside(server, "slow readers over TLS", "hold-tls", "reader", 1_000, port=port)
    yield from beside(server, "slow writers over TLS", "hold-tls", "writer", 1_000, port=port)


over_tls.setup = {"more": with_tls}

GROUPS = [heads, handshakes, resets, readers, writers, chunks, over_http2, over_tls]

# The beginning of a client's greeting: a record of 512 bytes, of which 100 come.
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x07" * 89
HOST = b"host: localhost\r\n"


def streams(count, method, path, flags):
    """So many requests of HTTP/2 at the beginning of a connection."""
    opened = b"".join(
        wire2.frame(wire2.HEADERS, flags | wire2.END_HEADERS, 1 + 2 * at, wire2.block(method, path, authority="localhost"))
        for at in range(count)
    )
    return wire2.PREFACE + wire2.settings() + opened


def data(count, payload):
    return b"".join(wire2.frame(wire2.DATA, 0, 1 + 2 * at, payload) for at in range(count))


# What each kind begins with, and what it sends from then on, now and then.
KINDS = {
    "nothing": (b"", b""),
    "hello": (HELLO, b""),
    "head": (b"GET / HTTP/1.1\r\n" + HOST + b"x-a: ", b"b"),
    "reader": (b"GET /db/large HTTP/1.1\r\n" + HOST + b"\r\n", None),
    "writer": (b"PUT /db/w HTTP/1.1\r\n" + HOST + b"content-length: 8000000\r\n\r\n{\"a\":\"", b"x" * 1024),
    "chunks": (b"PUT /db/c HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 200),
    "frames": (streams(1, "PUT", "/db/c", 0), data(1, b"x") * 200),
    "empty": (streams(1, "PUT", "/db/c", 0), data(1, b"") * 200),
    "pings": (streams(1, "PUT", "/db/c", 0), wire2.frame(wire2.PING, payload=bytes(8)) * 200),
    "reader2": (streams(50, "GET", "/db/large", wire2.END_STREAM), None),
    "writer2": (streams(50, "PUT", "/db/w", 0) + data(50, b'{"a":"'), data(50, b"x" * 100)),
}


def hold(kind, count, port, seconds, tls=None):
    """So many connections from 15 addresses, each made anew when it ends."""
    import resource
    import select
    import socket
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    first, more = KINDS[kind]
    poll, open_, made, waiting = select.epoll(), {}, 0, []
    greeted = set()
    reads = select.EPOLLRDHUP if more is None else select.EPOLLIN | select.EPOLLRDHUP
    end = time.monotonic() + seconds
    turn = 0
    while time.monotonic() < end:
        # As fast as it goes at first; whoever is thrown out comes back.
        for _ in range(400):
            if len(open_) >= count:
                break
            sock = socket.socket()
            if more is None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            sock.setblocking(False)
            try:
                sock.bind((f"127.0.1.{made % 15 + 1}", 0))
                sock.connect(("127.0.0.1", port))
            except BlockingIOError:
                pass
            except OSError:
                sock.close()
                break
            made += 1
            open_[sock.fileno()] = sock
            poll.register(sock, select.EPOLLOUT)
        for descriptor, event in poll.poll(0.02, 2_000):
            sock = open_[descriptor]
            try:
                if tls and descriptor not in greeted:
                    if not isinstance(sock, ssl.SSLSocket):
                        poll.unregister(sock)
                        sock = open_[descriptor] = tls.wrap_socket(
                            sock, server_hostname="localhost", do_handshake_on_connect=False)
                        poll.register(sock, select.EPOLLIN)
                    try:
                        sock.do_handshake()
                    except ssl.SSLWantReadError:
                        continue
                    greeted.add(descriptor)
                    poll.modify(sock, reads)
                    sock.send(first)
                    waiting.append(sock)
                elif event & select.EPOLLOUT:
                    sock.send(first)
                    waiting.append(sock)
                    poll.modify(sock, reads)
                elif event & (select.EPOLLHUP | select.EPOLLRDHUP | select.EPOLLERR) or not sock.recv(65_536):
                    raise OSError
            except BlockingIOError:
                pass
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                pass
            except OSError:
                poll.unregister(sock)
                greeted.discard(descriptor)
                del open_[descriptor]
                sock.close()
        turn += 1
        for sock in [] if more == b"" or turn % 5 else waiting[-2_000:]:
            try:
                if more is None:
                    sock.recv(1)
                else:
                    sock.send(more)
            except OSError:
                pass
        waiting = [sock for sock in waiting if sock.fileno() >= 0]
        time.sleep(0.01)


def resets_of(count, port, seconds):
    """Streams of HTTP/2 that are begun and given up, on so many connections."""
    import socket
    fields = b"".join(wire2.literal(*pair) for pair in (
        (":method", "GET"), (":scheme", "http"), (":authority", "localhost"), (":path", "/db/_all_docs?include_docs=true")))
    sockets = [None] * count
    end = time.monotonic() + seconds
    streams = [1] * count
    while time.monotonic() < end:
        for at in range(count):
            try:
                if sockets[at] is None:
                    sockets[at] = socket.create_connection(("127.0.0.1", port), 5, (f"127.0.1.{at % 15 + 1}", 0))
                    sockets[at].setblocking(False)
                    sockets[at].send(wire2.PREFACE + wire2.settings())
                    streams[at] = 1
                many = b""
                for _ in range(50):
                    many += wire2.frame(wire2.HEADERS, wire2.END_STREAM | wire2.END_HEADERS, streams[at], fields)
                    many += wire2.frame(wire2.RST_STREAM, 0, streams[at], b"\0\0\0\x08")
                    streams[at] += 2
                sockets[at].send(many)
                sockets[at].recv(65_536)
            except BlockingIOError:
                pass
            except OSError:
                if sockets[at]:
                    sockets[at].close()
                sockets[at] = None
        time.sleep(0.002)


def read(port, seconds):
    """Reads a document on a kept connection, and now and then on a new one."""
    import http.client
    connection, count, end = None, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/innocent/small")
        answer = connection.getresponse()
        answer.read()
        count += answer.status == 200
        if count % 200 == 0:
            connection.close()
            connection = None
    print(count / seconds)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["read", port, seconds]:
            read(int(port), float(seconds))
        case ["hold", kind, count, port, seconds]:
            hold(kind, int(count), int(port), float(seconds))
        case ["hold-tls", kind, count, port, seconds]:
            tls = ssl.create_default_context(cafile=f"{CERTIFICATE}/localhost.pem")
            tls.check_hostname = False
            hold(kind, int(count), int(port), float(seconds), tls)
        case ["resets", _, count, port, seconds]:
            resets_of(int(count), int(port), float(seconds))
