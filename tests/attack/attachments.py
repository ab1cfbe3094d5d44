"""Attachments: ranges, tags, names, types, encodings."""

import base64
import gzip
import hashlib
import json

from check import Input
from wire import chunked, request

DATA = bytes(range(256)) * 40


def ranges(server, rng):
    server.request("PUT", "/db/ranged/file", DATA, {"content-type": "application/octet-stream"}, expected=(201,))
    rev = json.loads(server.request("GET", "/db/ranged")[1])["_rev"]
    server.request(
        "PUT", f"/db/ranged/empty?rev={rev}", b"", {"content-type": "application/octet-stream"}, expected=(201,)
    )
    rev = json.loads(server.request("GET", "/db/ranged")[1])["_rev"]
    server.request("PUT", f"/db/ranged/text?rev={rev}", DATA, {"content-type": "text/plain"}, expected=(201,))
    size = len(DATA)
    for first, last in [
        (0, 0),
        (0, 1),
        (1, 5),
        (size - 1, size - 1),
        (5, size + 5),
        (100, 2**64 - 1),
        (size // 2, size),
    ]:
        want = DATA[first : last + 1]
        yield Input(
            f"bytes={first}-{last}",
            request("GET", "/db/ranged/file", headers=[("Range", f"bytes={first}-{last}")]),
            (206,),
            body_has=want[:60],
            headers={"content-length": str(len(want))},
            after="usable",
        )
    for text in (
        "bytes=",
        "bytes=-",
        "bytes=--",
        "bytes=5-1",
        "bytes=a-b",
        "bytes=-0",
        "bytes=-1",
        f"bytes=-{size + 1}",
        f"bytes={size}-",
        "bytes=0-",
        "bytes=1",
        "bytes 0-1",
        "items=0-1",
        "bytes=0-1,2-3",
        "bytes=0-1," * 500,
        "bytes=18446744073709551615-",
        "bytes=18446744073709551616-",
        "bytes=0-18446744073709551616",
        "bytes=-18446744073709551615",
        "bytes=+0-+5",
        "bytes= 0 - 5 ",
        "bytes=0x0-0x5",
        "BYTES=0-1",
        "bytes=0-1;x",
        "bytes=\u0661-2",
        "=",
        "bytes==0-1",
    ):
        for file in ("file", "empty", "text"):
            yield Input(
                f"{file} {text[:30]}",
                request("GET", f"/db/ranged/{file}", headers=[("Range", text)]),
                (200, 206, 416),
                after="usable",
            )
    for tag in (
        '"x"',
        "*",
        "W/*",
        '"',
        "",
        '"' + "x" * 5_000 + '"',
        '"a", ' * 2_000,
        "W/" * 2_000,
        ",,,,",
        "\u00e9",
        '"x',
        "x,y",
    ):
        for name in ("If-None-Match", "If-Match", "If-Range"):
            for path in ("/db/ranged/file", "/db/ranged", "/db/_changes", "/_db_updates", "/_uuids"):
                yield Input(
                    f"{path} {name}: {tag[:20]}",
                    request("GET", path, headers=[(name, tag)]),
                    (200, 304, 400, 404, 412),
                    after="usable",
                )
        yield Input(
            f"PUT If-Match: {tag[:20]}",
            request("PUT", "/db/ranged", b"{}", [("If-Match", tag)]),
            ("4xx",),
            after="usable",
        )
    for date in ("Thu, 01 Jan 1970 00:00:00 GMT", "x", "Thu, 99 Foo 99999 99:99:99 GMT", "-1", "9" * 500):
        yield Input(
            f"If-Modified-Since: {date[:30]}",
            request("GET", "/db/ranged/file", headers=[("If-Modified-Since", date), ("If-Unmodified-Since", date)]),
            (200, 304, 412),
        )
    for accepted in (
        "gzip",
        "*",
        "gzip;q=0",
        "gzip;q=0.0001",
        "gzip;q=x",
        "gzip;q=-1",
        "identity;q=0",
        "deflate",
        ",",
        "gzip;;;",
        "br," * 3_000 + "gzip",
    ):
        yield Input(
            f"Accept-Encoding: {accepted[:20]}",
            request("GET", "/db/ranged/text", headers=[("Accept-Encoding", accepted)]),
            (200, 406),
            after="usable",
        )


def puts(server, rng):
    packed = gzip.compress(DATA)

    def put(name, body, headers=(), statuses=("2xx", "4xx"), **more):
        path = f"/db/put{rng.randrange(10**9)}/{more.pop('file', 'file')}"
        return Input(name, request("PUT", path, body, headers), statuses, **more)

    for kind in (
        "",
        "x",
        "text/plain",
        "text/html",
        "a/b;c=d",
        "\u00e9/x",
        "x" * 5_000,
        "text/plain;" * 3_000,
        "a\tb",
        "multipart/related; boundary=x",
        "application/json",
        "image/svg+xml",
    ):
        yield put(f"type {kind[:30]!r}", DATA, [("Content-Type", kind)])
    for coding in ("gzip", "identity", "deflate", "br", "GZIP", "gzip, gzip", "", "x"):
        for name, body in (
            ("plain", DATA),
            ("gzip", packed),
            ("two members", gzip.compress(b"a") + gzip.compress(b"b")),
            ("cut", packed[:-5]),
            ("wrong sum", packed[:-8] + b"\0" * 8),
        ):
            yield put(f"{coding!r} of {name}", body, [("Content-Encoding", coding), ("Content-Type", "text/plain")])
    md5 = base64.b64encode(hashlib.md5(DATA).digest()).decode()
    for text, statuses in (
        (md5, (201,)),
        (md5[:-2], (400,)),
        ("", ("2xx", 400)),
        ("x" * 5_000, (400,)),
        ("\u00e9", ("2xx", 400)),
        (" " + md5 + " ", (201,)),
        (md5.lower(), (400,)),
    ):
        yield put(f"md5 {text[:20]!r}", DATA, [("Content-MD5", text), ("Content-Type", "x/y")], statuses)
    for file in (
        "_x",
        "%5fx",
        "a/b/c",
        "a//b",
        "a%2f",
        "%00",
        "..",
        "%2e%2e/x",
        "%0d%0aX:y",
        "n" * 10_000,
        "\u00e9",
        "%f0%9f%92%a9",
        "+",
        "%22",
        "%22%0d%0a",
        ";",
        "?x",
        "a" * 60_000,
    ):
        yield put(
            f"name {file[:20]!r}",
            b"x",
            [("Content-Type", "x/y")],
            ("2xx", "4xx"),
            file=file,
            is_request=len(file) < 20_000,
        )
    for size in (1, 3, 1_000, 60_000):
        yield put(
            f"chunks of {size}",
            chunked(DATA, size),
            [("Transfer-Encoding", "chunked"), ("Content-Type", "text/plain")],
            (201,),
            after="usable",
        )
    for name, data in (
        ("bomb of 60 MB", gzip.compress(b"\0" * (60 << 20), 9)),
        ("bomb in many members", b"".join([gzip.compress(b"\0" * (1 << 20), 9)] * 60)),
        ("100,000 members", gzip.compress(b"") * 100_000),
    ):
        yield put(name, data, [("Content-Encoding", "gzip"), ("Content-Type", "text/plain")], ("2xx", "4xx"), within=20)
    for count in (10, 400, 600, 5_000):
        listed = {f"a{at}": {"data": "YQ==", "content_type": "t/x"} for at in range(count)}
        yield Input(
            f"{count} inline",
            request("PUT", f"/db/inline{count}", json.dumps({"_attachments": listed}).encode()),
            ("2xx", "4xx"),
            within=20,
        )


def types(server, rng):
    """A browser neither runs an attachment nor guesses what it is, as in CouchDB 3.5."""
    guarded = {"content-security-policy": "sandbox", "x-content-type-options": "nosniff"}
    for kind in (
        "text/html",
        "image/svg+xml",
        "application/xhtml+xml",
        "text/xml",
        "application/javascript",
        "text/plain",
        "x/y",
        "",
        "text/html; charset=utf-7",
    ):
        name = f"guarded{rng.randrange(10**9)}"
        server.request("PUT", f"/db/{name}/file", b"<script>1</script>", {"content-type": kind}, expected=(201,))
        for headers in ((), [("Range", "bytes=0-3")], [("Accept-Encoding", "gzip")]):
            yield Input(
                f"GET {kind!r} {headers}",
                request("GET", f"/db/{name}/file", headers=headers),
                (200, 206),
                headers=guarded,
            )
        yield Input(f"HEAD {kind!r}", request("HEAD", f"/db/{name}/file"), (200,), is_head=True, headers=guarded)
    two = gzip.compress(b"one") + gzip.compress(b"two")
    headers = [("Content-Type", "text/plain"), ("Content-Encoding", "gzip")]
    yield Input("gzip of two members is taken", request("PUT", "/db/members/file", two, headers), (201,))
    yield Input("and read as one", request("GET", "/db/members/file"), (200,), body_has=b"onetwo")
    inline = {
        "_attachments": {
            "a": {"content_type": "text/plain", "encoding": "gzip", "data": base64.b64encode(two).decode()}
        }
    }
    yield Input("inline too", request("PUT", "/db/members2", json.dumps(inline).encode()), (201,))
    yield Input("and as one", request("GET", "/db/members2/a"), (200,), body_has=b"onetwo")


GROUPS = [ranges, puts, types]
