"""Frames of HTTP/2 that are wrong, odd or out of place (RFC 9113 says what each gives), and hostile blocks of fields."""

import struct

from check import wrong_error, status_fits
from wire import Answer
from wire2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW,
    MAX_FRAME,
    MAX_LIST,
    MAX_STREAMS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    TABLE_SIZE,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    Connection,
    block,
    frame,
    get,
    integer,
    literal,
    settings,
    text,
)

ENDED = ("reset", "goaway", "closed")


def ask(server, name, data, allowed, stream=1, window=65_535, seconds=5, probe=False):
    """Sends frames behind a greeting; whether `stream` ends as it may, and a further request on another connection does not
    notice. With `probe` a ping must be answered in the end, or the connection be closed."""
    try:
        with Connection(server, window) as connection:
            connection.send(data)
            ended, body = connection.answer(stream, seconds)
    except (ConnectionError, BrokenPipeError):
        ended, body = "closed", b""
    wrong = None
    if isinstance(ended, int):
        if not status_fits(ended, allowed):
            wrong = f"{ended} {body[:80]!r}, not {allowed}"
        elif ended >= 400 and ended not in (431,) and body:
            wrong = wrong_error(Answer(ended, [], body))
    elif ended not in allowed:
        wrong = f"{ended}, not {allowed}"
    return name, wrong


def greetings(server, rng):
    for name, data in (
        ("half a preface", PREFACE[:12]),
        ("a preface and HTTP/1.1", PREFACE + b"GET / HTTP/1.1\r\n\r\n"),
        ("no settings", PREFACE + get(1)),
        ("a wrong preface", PREFACE[:-3] + b"X\r\n" + settings()),
        ("twice", PREFACE + settings() + PREFACE),
        ("settings of 5 bytes", PREFACE + frame(SETTINGS, payload=b"12345")),
        ("settings on a stream", PREFACE + frame(SETTINGS, stream=1)),
        ("noise", PREFACE + bytes(rng.randrange(256) for _ in range(500))),
        ("a frame of 16 MB", PREFACE + settings() + frame(DATA, 0, 1, b"x", length=0xFFFFFF)),
    ):
        with Connection(server, greet=False) as connection:
            connection.send(data)
            if name == "half a preface":
                connection.sock.shutdown(1)
            ended, _ = connection.answer(1, 3)
        # Half a preface has 30 s to go on; half closed it cannot.
        yield name, (
            None
            if ended in ENDED or (name in ("half a preface", "no settings") and ended in ("nothing", 200))
            else f"{ended}"
        )
    for identifier in (TABLE_SIZE, 2, MAX_STREAMS, INITIAL_WINDOW, MAX_FRAME, MAX_LIST, 8, 9, 0, 0xFFFF):
        for value in (0, 1, 2, 16_383, 16_384, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
            yield ask(
                server,
                f"setting {identifier} is {value}",
                settings((identifier, value)) + get(1),
                ("2xx", None, *ENDED, "nothing"),
                seconds=0.4,
            )


def frames(server, rng):
    post = frame(HEADERS, END_HEADERS, 1, block("POST", "/db", [("content-type", "application/json")]))
    cases = {
        "get": (get(1), (200,)),
        "post": (post + frame(DATA, END_STREAM, 1, b"{}"), (201,)),
        "post in 1-byte frames": (post + frame(DATA, 0, 1, b"{") + frame(DATA, END_STREAM, 1, b"}"), (201,)),
        "empty frames between": (post + frame(DATA, 0, 1) * 500 + frame(DATA, END_STREAM, 1, b"{}"), (201, *ENDED)),
        "padding": (post + frame(DATA, PADDED | END_STREAM, 1, b"\x05{}" + b"\0" * 5), (201,)),
        "padding of all": (post + frame(DATA, PADDED | END_STREAM, 1, b"\x05" + b"\0" * 5), (400,)),
        "padding too long": (post + frame(DATA, PADDED | END_STREAM, 1, b"\xff{}"), ENDED),
        "data first": (frame(DATA, END_STREAM, 1, b"x"), ENDED),
        "data on stream 0": (frame(DATA, END_STREAM, 0, b"x"), ENDED),
        "headers on stream 0": (get(0), ENDED),
        "an even stream": (get(2), ENDED),
        "a stream that goes back": (get(5) + get(3), (*ENDED, "nothing")),
        "the same stream twice": (get(1) + get(1), (200, *ENDED)),
        "data behind the end": (get(1) + frame(DATA, 0, 1, b"x"), (200, *ENDED)),
        "the last stream": (frame(HEADERS, END_STREAM | END_HEADERS, 0x7FFFFFFF, block()), ("nothing", *ENDED)),
        "a reserved bit": (get(0x80000001), (200, *ENDED)),
        "reset": (post + frame(RST_STREAM, 0, 1, b"\0\0\0\x08"), ("nothing", *ENDED)),
        "reset of nothing": (frame(RST_STREAM, 0, 1, b"\0\0\0\x08"), ENDED),
        "reset of 3 bytes": (post + frame(RST_STREAM, 0, 1, b"\0\0\0"), ENDED),
        "reset of stream 0": (frame(RST_STREAM, 0, 0, b"\0\0\0\0"), ENDED),
        "ping of 7 bytes": (frame(PING, payload=b"1234567"), ENDED),
        "ping on a stream": (frame(PING, 0, 1, b"12345678"), ENDED),
        "window update 0": (get(1) + frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\0"), (200, *ENDED)),
        "window beyond its bound": (frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff") + get(1), (200, *ENDED)),
        "stream's window beyond": (post + frame(WINDOW_UPDATE, 0, 1, b"\x7f\xff\xff\xff"), ENDED),
        "window update of 3 bytes": (frame(WINDOW_UPDATE, 0, 0, b"\0\0\0"), ENDED),
        "window of an idle stream": (frame(WINDOW_UPDATE, 0, 9, b"\0\0\0\x01") + get(1), (200, *ENDED)),
        "priority of itself": (frame(PRIORITY, 0, 1, struct.pack(">IB", 1, 1)) + get(1), (200, *ENDED)),
        "priority of 4 bytes": (frame(PRIORITY, 0, 1, b"\0\0\0\0"), ENDED),
        "headers with priority": (
            frame(HEADERS, END_STREAM | END_HEADERS | WITH_PRIORITY, 1, struct.pack(">IB", 0x80000000, 255) + block()),
            (200,),
        ),
        "push promise": (frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\x02" + block()), ENDED),
        "goaway": (frame(GOAWAY, payload=b"\0" * 8) + get(1), (200, "nothing", *ENDED)),
        "goaway of 7 bytes": (frame(GOAWAY, payload=b"\0" * 7), ENDED),
        "settings ack with payload": (frame(SETTINGS, ACK, 0, b"123456"), ENDED),
        "settings ack not asked for": (frame(SETTINGS, ACK) * 3 + get(1), (200, *ENDED)),
        "continuation alone": (frame(CONTINUATION, END_HEADERS, 1, block()), ENDED),
        "headers in 20": (
            frame(HEADERS, END_STREAM, 1, block()[:1])
            + b"".join(
                frame(CONTINUATION, END_HEADERS * (at == len(block()) - 1), 1, block()[at : at + 1])
                for at in range(1, len(block()))
            ),
            (200, *ENDED),
        ),
        "another frame between": (
            frame(HEADERS, END_STREAM, 1, block()[:5])
            + frame(PING, payload=b"12345678")
            + frame(CONTINUATION, END_HEADERS, 1, block()[5:]),
            ENDED,
        ),
        "another stream between": (frame(HEADERS, END_STREAM, 1, block()[:5]) + get(3), ENDED),
        "10,000 empty continuations": (
            frame(HEADERS, END_STREAM, 1, block()) + frame(CONTINUATION, 0, 1) * 10_000,
            ENDED,
        ),
        "a megabyte of continuations": (
            frame(HEADERS, END_STREAM, 1, block()) + frame(CONTINUATION, 0, 1, literal("x", "y" * 16_000)) * 64,
            ENDED,
        ),
        "a frame too large": (frame(DATA, 0, 1, b"x" * 16_385), ENDED),
        "trailers": (
            post + frame(DATA, 0, 1, b"{}") + frame(HEADERS, END_STREAM | END_HEADERS, 1, literal("x", "y")),
            (201,),
        ),
        "trailers without end": (post + frame(HEADERS, END_HEADERS, 1, literal("x", "y")), ENDED),
        "trailers with pseudo fields": (
            post + frame(DATA, 0, 1, b"{}") + frame(HEADERS, END_STREAM | END_HEADERS, 1, literal(":path", "/x")),
            ("2xx", "4xx", *ENDED),
        ),
        "no END_HEADERS": (frame(HEADERS, END_STREAM, 1, block()), ("nothing", *ENDED)),
        "headers of nothing": (frame(HEADERS, END_STREAM | END_HEADERS, 1), ENDED),
        "padded headers of padding": (frame(HEADERS, END_STREAM | END_HEADERS | PADDED, 1, b"\xff"), ENDED),
        "data beyond the window": (post + frame(DATA, 0, 1, b" " * 16_000) * 80, ("4xx", "nothing", *ENDED)),
        "1,000 unknown frames": (frame(77, 255, 1, b"x" * 100) * 1_000 + get(1), (200, *ENDED)),
    }
    for name, (data, allowed) in cases.items():
        yield ask(server, name, data, allowed, seconds=2)
    for length in ("1", "3", "x", "-1", "18446744073709551616", ""):
        fields = block("POST", "/db", [("content-type", "application/json"), ("content-length", length)])
        yield ask(
            server,
            f"length {length!r} of 2",
            frame(HEADERS, END_HEADERS, 1, fields) + frame(DATA, END_STREAM, 1, b"{}"),
            ("4xx", *ENDED),
            seconds=2,
        )
    for kind in range(12):
        for _ in range(12):
            payload = bytes(rng.randrange(256) for _ in range(rng.choice((0, 1, 4, 5, 8, 9, 100))))
            flags, stream = rng.randrange(256), rng.choice((0, 1, 2, 3, 0x7FFFFFFF))
            yield ask(
                server,
                f"kind {kind} flags {flags} stream {stream} {payload[:6].hex()}",
                frame(kind, flags, stream, payload) + get(5),
                ("2xx", "4xx", "nothing", *ENDED),
                stream=5,
                seconds=0.25,
            )


def fields(server, rng):
    def case(name, data, allowed=("2xx", "4xx", *ENDED), **more):
        return ask(server, name, frame(HEADERS, END_STREAM | END_HEADERS, 1, data), allowed, **more)

    for name in (
        "",
        ":",
        ":x",
        ":status",
        "X-Upper",
        "x y",
        "x:",
        "x\0",
        "x\n",
        "\u00e9",
        "connection",
        "transfer-encoding",
        "upgrade",
        "keep-alive",
        "proxy-connection",
        "te",
        "host",
        "content-length",
        "cookie",
        "expect",
    ):
        for value in ("", "x", "close", "a\r\nb", "\0", "\u00e9", " x ", "chunked"):
            yield case(f"field {name!r}: {value!r}", block(headers=[(name, value)]), seconds=1)
    for method in ("", "get", "G T", "CONNECT", "\0", "x" * 5_000, None):
        yield case(f"method {str(method)[:20]!r}", block(method=method), seconds=2)
    for path in (
        "",
        "x",
        "*",
        "//",
        "/\0",
        "/ ",
        "/é",
        "http://evil/",
        "/" + "x" * 60_000,
        "/?" + "&" * 5_000,
        "/#x",
        None,
        "/%",
        "\\",
        "/..%2f",
    ):
        yield case(f"path {str(path)[:20]!r}", block(path=path), seconds=2)
    for scheme in ("", "https", "ftp", "javascript", "h t", None):
        yield case(f"scheme {scheme!r}", block(scheme=scheme), seconds=2)
    for authority in ("", "a b", "u:p@127.0.0.1", "[", "\u00e9", "x" * 5_000, "evil.example", None):
        yield case(
            f"authority {str(authority)[:20]!r}",
            block(path="/_all_dbs", authority=authority),
            ("2xx", "4xx", *ENDED) if authority != "evil.example" else ("4xx", *ENDED),
            seconds=2,
        )
    yield case(
        "authority and another host", block(path="/_all_dbs", headers=[("host", "evil.example")]), ("4xx", *ENDED)
    )
    yield case("pseudo fields last", literal("x", "y") + block(), ENDED)
    yield case("two methods", literal(":method", "GET") + block(), ENDED)
    yield case("two paths", block() + literal(":path", "/x"), ENDED)
    for count, size in ((99, 10), (101, 10), (1_000, 1), (1_900, 0), (10, 4_000), (1, 60_000), (2, 60_000), (2_000, 8)):
        data = block(headers=[(f"x{at}", "y" * size) for at in range(count)])
        pieces = [data[at : at + 16_000] for at in range(0, len(data), 16_000)]
        sent = b"".join(
            frame(
                CONTINUATION if at else HEADERS,
                (END_STREAM if not at else 0) | (END_HEADERS if at == len(pieces) - 1 else 0),
                1,
                piece,
            )
            for at, piece in enumerate(pieces)
        )
        yield ask(server, f"{count} fields of {size}", sent, ("2xx", "4xx", *ENDED))
    for name, data in (
        ("index 0", b"\x80"),
        ("an index that is not there", b"\xff\xff\xff\xff\x0f"),
        ("a huge index", b"\xff" + b"\xff" * 20),
        ("a table of 1 GB", integer(1 << 30, 5, 0x20)),
        ("table sizes", b"\x20\x3f\xe1\x1f" * 500),
        ("a table size in the middle", block() + b"\x20"),
        ("a length beyond the block", b"\0\x7f\xff\xff\xff\x7f"),
        ("a length of 2^64", b"\0\x7f" + b"\xff" * 10 + b"\x01"),
        ("huffman of EOS", b"\0\x84\xff\xff\xff\xff\x01x"),
        ("huffman padded with 0", b"\0\x81\x00\x01x"),
        ("half a field", b"\x40"),
        ("noise", bytes(rng.randrange(256) for _ in range(200))),
    ):
        yield case(name, data, ENDED if name not in ("noise", "table sizes") else (*ENDED, "nothing"), seconds=2)
    for size in (100, 1_000, 4_000):
        entry = b"\x40" + text("x" * 4) + text("y" * size)
        bomb = block() + entry + integer(62, 7, 0x80) * 12_000
        yield case(f"12,000 times an entry of {size}", bomb, ("4xx", *ENDED))
    for _ in range(100):
        data = bytearray(block(headers=[("accept", "*/*")]))
        data[rng.randrange(len(data))] = rng.randrange(256)
        yield case(
            f"block {bytes(data[:8]).hex()} changed", bytes(data), ("2xx", "4xx", 501, "nothing", *ENDED), seconds=0.5
        )


def requests(server, rng):
    """The same handlers as over HTTP/1.1."""
    for method in ("GET", "HEAD", "PUT", "POST", "DELETE", "COPY", "OPTIONS", "PATCH"):
        for path in (
            "/",
            "/_up",
            "/_all_dbs",
            "/db",
            "/db/_all_docs",
            "/db/_changes",
            "/db/none",
            "/db/none/file",
            "/db/_bulk_docs",
            "/db/_local/x",
            "/db/%00",
            "/db/%ff",
            "/%2f%2f",
            "/db/_changes?feed=websocket",
            "/db/_changes?limit=x",
            "/_uuids?count=x",
        ):
            body = b"" if method in ("GET", "HEAD") else b'{"a":'
            data = frame(
                HEADERS,
                END_HEADERS | (0 if body else END_STREAM),
                1,
                block(method, path, [("content-type", "application/json")]),
            )
            yield ask(
                server,
                f"{method} {path}",
                data + (frame(DATA, END_STREAM, 1, body) if body else b""),
                ("2xx", "4xx", 501),
            )


GROUPS = [greetings, frames, fields, requests]
