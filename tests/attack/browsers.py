"""What browsers may be made to do by a foreign page: Host, Origin, CORS, WebSockets; and frames of WebSockets that are wrong."""

import base64
import os
import socket
import struct

from check import Input
from wire import Broken, Reader, is_closed, request

CORS = '[cors]\norigins = ["https://app.example"]\ncredentials = true\n'
ORIGINS = (
    "https://app.example",
    "https://evil.example",
    "null",
    "",
    "https://app.example.evil",
    "https://app.example:443",
    "http://app.example",
    "HTTPS://APP.EXAMPLE",
    "https://app.example/",
    "https://app.example, https://evil.example",
    "*",
    "\u00e9",
    "https://" + "x" * 5_000,
    "file://",
)


def hosts(server, rng):
    """Without administrators only names of this machine are its names; several or none are no request (RFC 9112, 3.2)."""
    port = server.port
    for host in (
        "127.0.0.1",
        "localhost",
        "[::1]",
        f"127.0.0.1:{port}",
        f"localhost:{port}",
        f"[::1]:{port}",
        "LOCALHOST",
        "127.0.0.1:1",
    ):
        yield Input(f"own {host}", request("GET", "/_all_dbs", host=host), (200,), after="usable")
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil.example#127.0.0.1",
        "127.0.0.1@evil.example",
        "10.0.0.1",
        "169.254.169.254",
        "[fe80::1]",
        "localhos",
        "xlocalhost",
        "127.0.0.1evil",
        "0.evil",
        "\u0131localhost",
        "a" * 300 + ".example",
        "metadata.google.internal",
    ):
        for method, path in (
            ("GET", "/_all_dbs"),
            ("PUT", "/stolen"),
            ("POST", "/db"),
            ("DELETE", "/nothing"),
            ("GET", "/db/_changes"),
            ("GET", "/db/x/y"),
            ("POST", "/_replicate"),
        ):
            body = b"{}" if method in ("PUT", "POST") else b""
            yield Input(f"{method} {path} of {host[:40]}", request(method, path, body, host=host), ("4xx",))
    for name, lines in (
        ("no Host", ""),
        ("two", "Host: 127.0.0.1\r\nHost: 127.0.0.1\r\n"),
        ("two others", "Host: 127.0.0.1\r\nHost: evil.example\r\n"),
        ("three", "Host: localhost\r\n" * 3),
        ("empty", "Host:\r\n"),
        ("two in one", "Host: 127.0.0.1, evil.example\r\n"),
        ("a path", "Host: 127.0.0.1/x\r\n"),
        ("a user", "Host: x@127.0.0.1\r\n"),
        ("blanks", "Host: 127.0.0.1 x\r\n"),
        ("a port that is none", "Host: 127.0.0.1:x\r\n"),
    ):
        yield Input(name, f"GET /_all_dbs HTTP/1.1\r\n{lines}\r\n".encode(), ("4xx",))
    for target in (
        "http://evil.example/_all_dbs",
        "http://evil.example:5984/_all_dbs",
        "https://evil.example/_all_dbs",
    ):
        yield Input(f"{target} with a good Host", request("GET", target), ("4xx",))
    yield Input("HTTP/1.0 without Host", b"GET /_up HTTP/1.0\r\n\r\n", (200,))


def origins(server, rng):
    for origin in ORIGINS:
        own = origin == "https://app.example"
        for method, path in (
            ("GET", "/_up"),
            ("GET", "/db"),
            ("PUT", "/db/cors"),
            ("DELETE", "/db/none"),
            ("GET", "/nothing"),
        ):
            yield Input(
                f"{method} {path} from {origin[:40]!r}",
                request(method, path, b"{}" if method == "PUT" else b"", [("Origin", origin)]),
                ("2xx", "4xx"),
                headers={"access-control-allow-origin": origin if own else None},
            )
        for wanted in ("PUT", "", "x" * 3_000, "\u00e9", "GET, PUT"):
            yield Input(
                f"preflight {wanted[:20]!r} from {origin[:40]!r}",
                request(
                    "OPTIONS",
                    "/db/x",
                    headers=[
                        ("Origin", origin),
                        ("Access-Control-Request-Method", wanted),
                        ("Access-Control-Request-Headers", "x-" * 500),
                    ],
                ),
                ("2xx", "4xx"),
                headers={"access-control-allow-origin": origin if own else None},
            )


origins.setup = {"config": CORS}


def handshake(path="/db/_changes?feed=websocket&since=now&timeout=3000", drop=(), **changed):
    headers = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        **{name.replace("_", "-"): value for name, value in changed.items() if name != "method"},
    }
    return request(
        changed.get("method", "GET"),
        path,
        headers=[(name, value) for name, value in headers.items() if name not in drop],
    )


def handshakes(server, rng):
    for drop in ("Upgrade", "Connection", "Sec-WebSocket-Version", "Sec-WebSocket-Key"):
        yield Input(f"without {drop}", handshake(drop=(drop,)), (400, 426), after="usable")
    for name, values in (
        ("Upgrade", ("", "h2c", "websocket2", "websocket, h2c", "x" * 5_000)),
        ("Connection", ("close", "keep-alive", "Upgrade, close", "")),
        ("Sec_WebSocket_Version", ("", "12", "14", "13, 14", "-13")),
        ("Sec_WebSocket_Key", ("", "x", "A" * 24, "A" * 23 + "=", "\u00e9", "A" * 5_000)),
        ("Sec_WebSocket_Extensions", ("permessage-deflate", "x" * 5_000)),
        ("Sec_WebSocket_Protocol", ("x", "x," * 2_000)),
        ("Origin", ("https://evil.example", "null", "", "http://127.0.0.1", "http://127.0.0.1.evil")),
    ):
        for value in values:
            yield Input(f"{name}: {value[:30]}", handshake(**{name: value}), (101, "4xx"))
    for path in (
        "/db/_changes?feed=websocket&since=x",
        "/none/_changes?feed=websocket",
        "/db/_changes?feed=websocket&filter=x/y",
        "/_up?feed=websocket",
        "/db/_all_docs?feed=websocket",
    ):
        yield Input(path, handshake(path), ("2xx", "4xx"))
    for method in ("POST", "HEAD", "PUT"):
        yield Input(
            f"{method}",
            request(
                method,
                "/db/_changes?feed=websocket",
                b"",
                [
                    ("Upgrade", "websocket"),
                    ("Connection", "Upgrade"),
                    ("Content-Type", "application/json"),
                    ("Content-Length", "0"),
                ],
            ),
            ("4xx",),
            is_head=method == "HEAD",
        )
    yield Input("HTTP/1.0", handshake().replace(b"HTTP/1.1", b"HTTP/1.0"), ("4xx",))


def frame(opcode, data=b"", fin=True, mask=b"\1\2\3\4", rsv=0, length=None):
    size = len(data) if length is None else length
    head = bytes([(0x80 if fin else 0) | rsv << 4 | opcode])
    flag = 0x80 if mask is not None else 0
    if size < 126:
        head += bytes([flag | size])
    elif size < 1 << 16:
        head += bytes([flag | 126]) + struct.pack(">H", size)
    else:
        head += bytes([flag | 127]) + struct.pack(">Q", size)
    if mask is None:
        return head + data
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))


def frames(server, rng):
    """What a client must not say ends the socket within seconds; what it may say does not."""
    ending = {
        "text": frame(1, b"x"),
        "binary": frame(2, b"x"),
        "unmasked": frame(1, b"x", mask=None),
        "unmasked ping": frame(9, b"x", mask=None),
        "reserved bits": frame(1, b"x", rsv=7),
        "opcode 3": frame(3),
        "opcode 15": frame(15),
        "continuation of nothing": frame(0, b"x"),
        "a ping in pieces": frame(9, b"x", fin=False),
        "a ping of 126": frame(9, b"x" * 126),
        "text of 2 kB": frame(1, b"x" * 2_000),
        "length 2^63": frame(1, length=2**63),
        "length 2^62": frame(1, length=2**62),
        "length with leading bits": b"\x81\xff" + b"\xff" * 8 + b"\1\2\3\4",
        "not UTF-8": frame(1, b"\xff"),
        "close of one byte": frame(8, b"x"),
        "close 1005": frame(8, struct.pack(">H", 1005)),
        "close 65535": frame(8, struct.pack(">H", 65535)),
        "close not UTF-8": frame(8, b"\x03\xe8\xff"),
        "close": frame(8),
        "close twice": frame(8) * 2,
        "HTTP": b"GET / HTTP/1.1\r\n\r\n",
        "end": b"",
        "fragments": frame(1, b"x", fin=False) * 2,
        "10,000 fragments": frame(1, b"x", fin=False) + frame(0, b"", fin=False) * 10_000 + frame(1, b"y"),
        "noise": bytes(rng.randrange(256) for _ in range(3_000)),
        "a megabyte": frame(2, b"x" * 1_000_000),
    }
    staying = {
        "ping": frame(9, b"x"),
        "1,000 pings": frame(9, b"x" * 125) * 1_000,
        "pong": frame(10, b"x"),
        "10,000 pongs": frame(10) * 10_000,
        "ping by the byte": None,
    }
    for name, data in [*ending.items(), *staying.items()]:
        with server.connect() as sock:
            sock.sendall(handshake("/db/_changes?feed=websocket&since=now&heartbeat=20000"))
            try:
                status = Reader(sock, 5).answer().status
                for piece in [data] if data is not None else [bytes([byte]) for byte in frame(9, b"x" * 100)]:
                    sock.sendall(piece)
                if name == "end":
                    sock.shutdown(socket.SHUT_WR)
            except (OSError, Broken) as error:
                status = status if isinstance(error, OSError) else repr(error)
            closed = is_closed(sock, 8 if name in ending else 0.3)
        wrong = f"handshake: {status}" if status != 101 else None
        if name in ending and not closed:
            wrong = wrong or "the socket stays open"
        if name in staying and closed:
            wrong = wrong or "the socket was closed"
        yield name, wrong


GROUPS = [hosts, origins, handshakes, frames]
