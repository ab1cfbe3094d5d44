"""A thousand wrong passwords a second from a thousand addresses, beside one who reads with a session and those who sign in for the
first time: the reader keeps half of its rate with p99 below 100 ms, and a first sign-in from a fresh address takes 5 s at most."""

import base64
import http.client
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from floods import behind
from server import ADMIN, MB
from tools import Peak

ADDRESSES = 1_000
A_SECOND = 1_000
SIGN_INS = 10
SETUP = {"admin": True, "config": 'unlimited = ["127.0.0.1"]\n'}


def passwords(server, rng):
    server.request("PUT", "/_users", expected=(201, 412))
    for name in ("reader", *(f"first{at}" for at in range(SIGN_INS))):
        user = {"name": name, "password": f"{name}'s own", "roles": [], "type": "user"}
        server.request("PUT", f"/_users/org.couchdb.user:{name}", json.dumps(user), expected=(201,))
    security = {"members": {"names": ["reader"], "roles": []}}
    server.request("PUT", "/innocent/_security", json.dumps(security), expected=(200,))
    server.request("PUT", "/innocent/small", b'{"a":1}', expected=(201,))
    cookie, _ = sign_in(server.port, "127.0.0.1", "reader")
    rate, _ = read(server, cookie, 5)
    command = [sys.executable, __file__, "guess", str(server.port), "40"]
    with Peak(server) as peak, tempfile.TemporaryFile("w+") as said:
        before = server.resident()
        attacker = subprocess.Popen([*behind(), *command], stdout=said, stderr=said)
        time.sleep(8)
        reading = subprocess.Popen(reader(server, cookie, 12), stdout=subprocess.PIPE, text=True)
        seconds = []
        for at in range(SIGN_INS):
            began = time.monotonic()
            _, status = sign_in(server.port, f"127.0.9.{at + 1}", f"first{at}")
            seconds.append(time.monotonic() - began)
            yield f"first sign-in {at}", None if status == 200 and seconds[-1] <= 5 else f"{status} after {seconds[-1]:.1f} s"
        found, p99 = json.loads(reading.communicate(timeout=60)[0])
        is_there = attacker.poll() is None
        attacker.kill()
        attacker.wait()
        said.seek(0)
        words = said.read().strip().splitlines()
    after, _ = read(server, cookie, 5)
    alone = (rate + after) / 2
    print(f"    wrong passwords: {alone:.0f} reads a second alone ({rate:.0f}, {after:.0f}), {found:.0f} beside them "
          f"({100 * found / alone:.0f} %), p99 {p99:.1f} ms; first sign-ins {min(seconds):.1f} to {max(seconds):.1f} s; "
          f"{(peak.most - before) // MB} MB more; {words[-1] if words else 'nothing was said'}")
    yield "it went on", None if is_there else f"the attack ended: {words[-3:]}"
    yield "who reads with a session", None if found >= 0.5 * alone else f"{found:.0f} a second, {alone:.0f} alone"
    yield "p99", None if p99 < 100 else f"{p99:.1f} ms"
    yield "memory", peak.complaint(before + 300 * MB)


passwords.longest_wait = 5.0

GROUPS = [passwords]


def sign_in(port, address, name):
    """The cookie of a session that begins, and the status."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30, source_address=(address, 0))
    body = json.dumps({"name": name, "password": f"{name}'s own"})
    connection.request("POST", "/_session", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    cookie = (answer.getheader("set-cookie") or "").split(";")[0]
    connection.close()
    return cookie, answer.status


def reader(server, cookie, seconds):
    return [sys.executable, __file__, "read", str(server.port), cookie, str(seconds)]


def read(server, cookie, seconds):
    """Reads a second, and the wait in milliseconds that one in a hundred exceeds, of a client in a process of its own."""
    done = subprocess.run(reader(server, cookie, seconds), capture_output=True, text=True, timeout=seconds + 60)
    return json.loads(done.stdout)


def read_for(port, cookie, seconds):
    connection, waits, end = http.client.HTTPConnection("127.0.0.1", port, timeout=20), [], time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        connection.request("GET", "/innocent/small", headers={"cookie": cookie})
        answer = connection.getresponse()
        answer.read()
        if answer.status == 200:
            waits.append(time.monotonic() - began)
    waits.sort()
    print(json.dumps([len(waits) / seconds, 1000 * waits[len(waits) * 99 // 100] if waits else 1e9]))


def guess(port, seconds):
    """Wrong passwords of other names each time, of which some are there, on a kept connection for each address."""
    import collections
    import select
    import socket
    sockets, poll = {}, select.epoll()
    statuses, at, began = collections.Counter(), 0, time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        while at < (now - began) * A_SECOND:
            at += 1
            of = at % ADDRESSES
            name = "reader" if at % 10 == 0 else ADMIN[0] if at % 10 == 1 else f"n{at}"
            credentials = base64.b64encode(f"{name}:guess {at}".encode()).decode()
            try:
                if of not in sockets:
                    sock = socket.socket()
                    sock.bind((f"127.0.{2 + of // 250}.{of % 250 + 1}", 0))
                    sock.connect(("127.0.0.1", port))
                    sock.setblocking(False)
                    sockets[of] = sock
                    poll.register(sock, select.EPOLLIN)
                    sockets[-sock.fileno() - 1] = of
                sockets[of].send(
                    b"GET /innocent/small HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic " + credentials.encode() + b"\r\n\r\n"
                )
            except OSError:
                statuses["not sent"] += 1
        for descriptor, _ in poll.poll(0.005):
            of = sockets[-descriptor - 1]
            try:
                text = sockets[of].recv(65_536)
            except OSError:
                text = b""
            for part in text.split(b"HTTP/1.1 ")[1:]:
                statuses[part[:3].decode()] += 1
            if not text:
                statuses["closed"] += 1
                poll.unregister(descriptor)
                sockets.pop(of).close()
        if int(now) % 5 == 0:
            print(f"{at / (now - began):.0f} a second sent, answered {dict(statuses)}", flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["read", port, cookie, seconds]:
            read_for(int(port), cookie, float(seconds))
        case ["guess", port, seconds]:
            guess(int(port), float(seconds))
