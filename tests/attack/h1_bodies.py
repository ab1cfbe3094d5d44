"""How bodies come: lengths, chunks, trailers, encodings, 100-continue, and lies about all of these."""

import gzip
import zlib

from check import Input
from wire import chunked, request

DOC = b'{"a":1}'


def put(name, headers, body=DOC, path="/db/body?new_edits=false", **more):
    return Input(name, request("POST", "/db", body, headers), **more)


def framing(server, rng):
    def framed(name, headers, body, statuses=("2xx", "4xx", 501, "none"), **more):
        text = "\r\n".join(["POST /db HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *headers])
        return Input(
            name, text.encode("utf-8", "surrogatepass") + b"\r\n\r\n" + body, statuses, is_request=False, **more
        )

    for length in (
        "-1",
        "+7",
        "7x",
        "0x7",
        "7.0",
        "7 7",
        "7,7",
        "7, 7",
        "7,8",
        "",
        " ",
        "\t7\t",
        "00000000000007",
        "1e1",
        "٧",
        "18446744073709551615",
        "18446744073709551616",
        "99999999999999999999999",
        "9223372036854775808",
    ):
        yield framed(f"length {length!r}", [f"Content-Length: {length}"], DOC, ends_sending=True)
    for other in ("7", "8", "0"):
        yield framed(
            f"lengths 7 and {other}", ["Content-Length: 7", f"Content-Length: {other}"], DOC, ends_sending=True
        )
    for coding in (
        "chunked",
        "Chunked",
        "identity",
        "gzip",
        "gzip, chunked",
        "chunked, gzip",
        "chunked, chunked",
        "xchunked",
        "chunked;q=1",
        " chunked",
        '"chunked"',
        "",
        "chunked\x0b",
        "deflate, chunked",
        "chunk\u0301ed",
    ):
        yield framed(f"coding {coding!r}", [f"Transfer-Encoding: {coding}"], chunked(DOC), ends_sending=True)
        # RFC 9112, 6.1: such a connection is closed, or the next proxy's idea of the next request may be another.
        yield framed(
            f"coding {coding!r} and a length",
            [f"Transfer-Encoding: {coding}", "Content-Length: 7"],
            chunked(DOC),
            after="closed",
        )
    for size in (
        "g",
        "-1",
        "+7",
        "0x7",
        "7 ",
        " 7",
        "",
        "ffffffffffffffff",
        "10000000000000000",
        "7" * 40,
        "00000000000000000007",
    ):
        yield framed(
            f"chunk of {size!r}",
            ["Transfer-Encoding: chunked"],
            f"{size}\r\n".encode() + DOC + b"\r\n0\r\n\r\n",
            ends_sending=True,
        )
    for name, body in (
        ("no line end behind a chunk", b"7\r\n" + DOC + b"0\r\n\r\n"),
        ("LF only", b"7\n" + DOC + b"\n0\n\n"),
        ("no last chunk", b"7\r\n" + DOC + b"\r\n"),
        ("broken off in a chunk", b"ff\r\n" + DOC),
        ("broken off in a size", b"7"),
        ("long extension", b"7;" + b"x" * 50_000 + b"\r\n" + DOC + b"\r\n0\r\n\r\n"),
        ("many extensions", chunked(DOC, 1, b";a=b" * 500)),
        ("extension with a line end", b'7;a="\r\nX\r\n' + DOC),
        ("trailers", chunked(DOC, trailers=b"X: y\r\n")),
        ("300 trailers", chunked(DOC, trailers=b"X: y\r\n" * 300)),
        ("a trailer of 50 kB", chunked(DOC, trailers=b"X: " + b"y" * 50_000 + b"\r\n")),
        ("trailers that name a length", chunked(DOC, trailers=b"Content-Length: 1\r\nHost: evil\r\n")),
        ("a trailer that is none", chunked(DOC, trailers=b"\x00\r\n")),
        ("CR in a size", b"7\rX\n" + DOC),
    ):
        yield framed(name, ["Transfer-Encoding: chunked"], body, ends_sending=True)
    for size in (1, 2, 7, 100, 5_000):
        text = b'{"a":"' + b"x" * 10_000 + b'"}'
        yield put(
            f"chunks of {size}",
            [("Transfer-Encoding", "chunked")],
            chunked(text, size),
            statuses=(201,),
            after="usable",
        )
    for word in ("100-continue", "100-Continue", "100-continue, x", "x", ""):
        yield put(f"Expect: {word!r}", [("Expect", word)], statuses=("2xx", 417))
    yield Input(
        "100-continue that is waited for",
        [
            request(
                "POST",
                "/db",
                b"",
                [("Expect", "100-continue"), ("Content-Length", "7"), ("Content-Type", "application/json")],
            ),
            0.2,
            DOC,
        ],
        (201,),
        after="usable",
    )
    yield Input(
        "100-continue, a body that is too large",
        request(
            "POST",
            "/db",
            b"",
            [("Expect", "100-continue"), ("Content-Length", "99999999"), ("Content-Type", "application/json")],
        ),
        (413,),
        within=5,
        ends_sending=True,
    )
    for length in (8, 100, 1_000_000):
        yield Input(
            f"ends before {length} bytes",
            request("POST", "/db", DOC, [("Content-Length", str(length))]),
            ("4xx", "none"),
            ends_sending=True,
        )
    for method, path in (
        ("PUT", "/db/x"),
        ("POST", "/db/_bulk_docs"),
        ("PUT", "/db/x/file"),
        ("POST", "/db/_all_docs"),
        ("PUT", "/db/_security"),
        ("POST", "/db/_changes"),
        ("PUT", "/db/_local/x"),
        ("POST", "/db/_revs_diff"),
        ("PUT", "/db/_revs_limit"),
        ("POST", "/db/_bulk_get"),
    ):
        yield Input(
            f"{method} {path} ends early",
            request(method, path, b'{"a"', [("Content-Length", "50")]),
            ("4xx", "none"),
            ends_sending=True,
        )
        yield Input(
            f"{method} {path} without a body", request(method, path, b"", [("Content-Type", "application/json")])
        )
        yield Input(
            f"{method} {path} of a length too large",
            request(method, path, b"", [("Content-Length", str(70 << 20)), ("Content-Type", "application/json")]),
            ("4xx", "none"),
            ends_sending=True,
        )


def compressed(server, rng):
    packed = gzip.compress(DOC)
    deflated = zlib.compress(DOC)
    bomb = gzip.compress(b" " * (65 << 20), 9)
    for coding in (
        "gzip",
        "GZIP",
        " gzip ",
        "x-gzip",
        "deflate",
        "br",
        "zstd",
        "identity",
        "gzip, gzip",
        "gzip,identity",
        "",
        "\u00e9",
        "*",
    ):
        for name, body in (("gzip", packed), ("plain", DOC), ("zlib", deflated)):
            yield put(f"{coding!r} of {name}", [("Content-Encoding", coding)], body)
    yield put(
        "two members", [("Content-Encoding", "gzip")], gzip.compress(DOC[:3]) + gzip.compress(DOC[3:]), statuses=(201,)
    )
    yield put(
        "1,000 empty members", [("Content-Encoding", "gzip")], gzip.compress(b"") * 1000 + packed, statuses=(201,)
    )
    yield put(
        "400,000 empty members",
        [("Content-Encoding", "gzip")],
        gzip.compress(b"") * 400_000 + packed,
        statuses=("2xx", "4xx"),
    )
    for cut in (0, 1, 2, 3, 9, 10, 11, len(packed) // 2, len(packed) - 8, len(packed) - 1):
        yield put(f"ends after {cut}", [("Content-Encoding", "gzip")], packed[:cut] or b" ", statuses=("4xx",))
    for at in range(len(packed)):
        changed = bytearray(packed)
        changed[at] ^= 1 << rng.randrange(8)
        yield put(f"byte {at} is wrong", [("Content-Encoding", "gzip")], bytes(changed))
    yield put("rubbish behind", [("Content-Encoding", "gzip")], packed + b"rubbish", statuses=("2xx", "4xx"))
    yield put("gzip in gzip", [("Content-Encoding", "gzip")], gzip.compress(packed), statuses=("4xx",))
    yield put(
        "a name of 1 MB in the header",
        [("Content-Encoding", "gzip")],
        packed[:3] + b"\x08" + packed[4:10] + b"n" * 1_000_000 + b"\0" + packed[10:],
    )
    yield put("reserved flags", [("Content-Encoding", "gzip")], packed[:3] + b"\xe0" + packed[4:])
    for method, path in (
        ("POST", "/db"),
        ("PUT", "/db/bomb"),
        ("POST", "/db/_bulk_docs"),
        ("POST", "/db/_all_docs"),
        ("POST", "/db/_changes"),
        ("PUT", "/db/_security"),
        ("POST", "/db/_revs_diff"),
        ("PUT", "/db/_local/bomb"),
        ("POST", "/db/_bulk_get"),
        ("POST", "/_replicate"),
    ):
        yield Input(
            f"a bomb to {method} {path}",
            request(method, path, bomb, [("Content-Encoding", "gzip")]),
            ("4xx", 503),
            within=20,
        )


def slow(server, rng):
    """Bodies and heads that dribble, and answers that are read late: what is honest gets through."""
    text = b'{"a":"' + b"x" * 300 + b'"}'
    pieces = [piece for at in range(0, len(text), 10) for piece in (text[at : at + 10], 0.05)]
    yield Input(
        "a body in 32 pieces",
        [
            request("POST", "/db", b"", [("Content-Length", str(len(text))), ("Content-Type", "application/json")]),
            *pieces,
        ],
        (201,),
        after="usable",
    )
    yield Input(
        "a head in pieces",
        [piece for byte in request("GET", "/_up").split(b" ") for piece in (byte + b" ", 0.1)][:-2]
        + [b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"],
        ("2xx", "4xx"),
        is_request=False,
    )
    yield Input("half closed at once", request("GET", "/_up"), (200,), ends_sending=True)
    yield Input("half closed behind a body", request("POST", "/db", text), (201, "none"), ends_sending=True)
    yield Input(
        "half closed, longpoll",
        request("GET", "/db/_changes?feed=longpoll&since=now&timeout=1000"),
        (200, "none"),
        ends_sending=True,
    )
    # Who sends no more is taken for gone: what has not been answered by then may not be.
    yield Input("half closed, walk", request("GET", "/db/_all_docs?include_docs=true"), (200, "none"), ends_sending=True)


GROUPS = [framing, compressed, slow]
