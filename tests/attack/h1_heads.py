"""Heads of HTTP/1.1 that are wrong, odd or large; and connections that are used oddly."""

from check import Input
from wire import request

OK = b"GET /_up HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
REFUSED = ("4xx", "5xx", "none")


def raw(name, data, statuses=REFUSED, **more):
    return Input(name, data, statuses, is_request=False, **more)


def request_lines(server, rng):
    for line in (
        "",
        " ",
        "GET",
        "GET /",
        "GET  /_up HTTP/1.1",
        "GET /_up  HTTP/1.1",
        "GET /_up HTTP/1.1 ",
        " GET /_up HTTP/1.1",
        "GET\t/_up\tHTTP/1.1",
        "GET /_up http/1.1",
        "GET /_up HTTP/1.2",
        "GET /_up HTTP/2.0",
        "GET /_up HTTP/0.9",
        "GET /_up HTTP/11",
        "GET /_up HTTP/1.1x",
        "GET /_up HTTP/-1.1",
        "GET /_up HTTP/1.",
        "GET _up HTTP/1.1",
        "GET \\ HTTP/1.1",
        "GET ?a=b HTTP/1.1",
        "GET # HTTP/1.1",
        "GET /_up#x HTTP/1.1",
        "GET /\x00 HTTP/1.1",
        "GET /\x7f HTTP/1.1",
        "GET /a b HTTP/1.1",
        "G\x00T / HTTP/1.1",
        "GÉT / HTTP/1.1",
        "GET: / HTTP/1.1",
        "(GET) / HTTP/1.1",
        "GET / HTTP/1.1\rX",
        "PRI * HTTP/2.0",
        "PRI / HTTP/1.1",
        "SSH-2.0-x",
        "\x16\x03\x01\x02\x00",
        "GET /é HTTP/1.1",
        "GET /\ud800 HTTP/1.1",
        "GET //// HTTP/1.1",
        "GET /./../_up HTTP/1.1",
        "GET /%2e%2e HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "GET * HTTP/1.1",
        "CONNECT a:1 HTTP/1.1",
        "CONNECT /_up HTTP/1.1",
        "TRACE / HTTP/1.1",
        "GET http://127.0.0.1/_up HTTP/1.1",
        "GET http:///_up HTTP/1.1",
        "GET http://[::1/_up HTTP/1.1",
        "GET ftp://x/_up HTTP/1.1",
        "GET http://u:p@127.0.0.1/_up HTTP/1.1",
        "GET 127.0.0.1:1 HTTP/1.1",
    ):
        yield raw(
            f"line {line!r}",
            (line + "\r\nHost: 127.0.0.1\r\n\r\n").encode("utf-8", "surrogatepass"),
            ("2xx", "4xx", "5xx", "none"),
            ends_sending=True,
        )
    for end in ("\n", "\r", "\n\r", "\r\r\n", "\x0b", "\x85"):
        yield raw(
            f"lines end in {end!r}",
            f"GET /_up HTTP/1.1{end}Host: 127.0.0.1{end}{end}".encode("latin-1"),
            ("2xx", "4xx", "5xx", "none"),
            ends_sending=True,
        )
    for count in (1, 2, 10, 1000):
        yield raw(f"{count} empty lines before", b"\r\n" * count + OK, ("2xx", "4xx", "none"))
    for length in (1, 100, 8_000, 30_000, 60_000, 70_000, 200_000):
        for where in ("path", "query", "method"):
            text = {"path": f"GET /{'a' * length}", "query": f"GET /_up?{'a' * length}", "method": f"{'A' * length} /"}[
                where
            ]
            yield raw(
                f"{where} of {length}",
                f"{text} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode(),
                ("2xx", "4xx", "5xx", "none"),
            )
    for method in (
        "get",
        "GETT",
        "PATCH",
        "LINK",
        "PROPFIND",
        "MKCOL",
        "BREW",
        "M-SEARCH",
        "_",
        "!#$%&'*+-.^_`|~",
        "0",
    ):
        for path in (
            "/",
            "/_up",
            "/db",
            "/db/x",
            "/db/x/y",
            "/db/_changes",
            "/db/_local/x",
            "/_all_dbs",
            "/db/_bulk_docs",
        ):
            yield Input(f"{method} {path}", request(method, path), ("4xx",), after="usable")


def header_lines(server, rng):
    def with_line(line):
        text = f"GET /_up HTTP/1.1\r\nHost: 127.0.0.1\r\n{line}\r\n\r\n"
        return text.encode("utf-8", "surrogatepass")

    for line in (
        ":",
        ": x",
        "X",
        "X y: z",
        "X : y",
        "X\t: y",
        " X: y",
        "\tX: y",
        "X: y\r\n folded",
        "X: y\r\n\tfolded",
        "X:\x00",
        "X: a\x00b",
        "X: \x7f",
        "X: \x01",
        "X\x00: y",
        "Xé: y",
        "X: é",
        "X: \x0b",
        "X: y\rZ: q",
        "X: y\nZ: q",
        "(X): y",
        "X[]: y",
        '"X": y',
        "@: y",
        "X: \xff",
        "X:" + " " * 5000,
        "X: " + "\t" * 5000 + "y",
        "__proto__: x",
        "Cookie: " + "a=b; " * 5000,
        "Accept: " + "*/*," * 10_000,
        "Accept: " + ";q=" * 10_000,
        "Accept: " + "a" * 40_000,
        "Accept-Encoding: " + "gzip;q=0," * 5000,
        "If-None-Match: " + '"a",' * 10_000,
        "Range: bytes=" + "0-1," * 10_000,
        "Authorization: Basic",
        "Authorization: Basic " + "A" * 50_000,
        "Authorization: Basic " + "=" * 100,
        "Authorization: \u00e9asic x",
        "Authorization: Bearer " + "x" * 5000,
        "Authorization: Basic Og==",
        "Authorization: Negotiate x\r\nAuthorization: Basic eDp5",
        "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__",
        "Connection: close, keep-alive",
        "Connection: " + "x," * 5000,
        "Connection: Host",
        "Keep-Alive: timeout=99999999",
        "TE: trailers, " + "x," * 1000,
        "Upgrade: websocket",
        "Expect: 100-continue",
        "Expect: 200-ok",
        "Max-Forwards: -1",
        "X-Forwarded-Host: evil\r\nX-Forwarded-Proto: https",
        "X-Forwarded-For: " + "1.1.1.1, " * 3000,
        "traceparent: 00-" + "f" * 32 + "-" + "f" * 16 + "-01",
        "traceparent: " + "-" * 10_000,
        "tracestate: " + "a=b," * 5000,
        "X-HTTP-Method-Override: DELETE",
        "X-Couch-Full-Commit: maybe",
        "X-CouchDB-WWW-Authenticate: Cookie",
    ):
        yield raw(f"header {line[:60]!r}", with_line(line), ("2xx", "4xx", "5xx", "none"))
    for count in (50, 98, 99, 100, 101, 200, 5_000):
        yield raw(
            f"{count} lines",
            with_line("\r\n".join(f"X{at}: y" for at in range(count))),
            ("2xx",) if count < 99 else ("2xx", "4xx"),
        )
        yield raw(f"{count} equal lines", with_line("\r\n".join(["X: y"] * count)), ("2xx", "4xx"))
    for length in (1_000, 10_000, 60_000, 65_536, 66_000, 1_000_000):
        for shape in ("name", "value", "many"):
            line = {
                "name": f"{'x' * length}: y",
                "value": f"x: {'y' * length}",
                "many": "\r\n".join(["x: " + "y" * 900] * (length // 900)),
            }[shape]
            yield raw(f"{shape} of {length}", with_line(line), ("2xx", "4xx", "none"))


def one_by_one(server, rng):
    """Heads that come byte by byte, are broken off anywhere, or are changed in one byte."""
    whole = request("GET", "/_up", headers=[("Accept", "*/*"), ("X-Test", "1")])
    yield Input("byte by byte", [piece for byte in whole for piece in (bytes([byte]), 0.001)], (200,), after="usable")
    for cut in range(1, len(whole), 5):
        yield raw(f"ends after {cut}", whole[:cut], ("4xx", "none"), ends_sending=True)
        yield Input(f"in two at {cut}", [whole[:cut], 0.002, whole[cut:]], (200,), after="usable")
    for _ in range(150):
        at, byte = rng.randrange(len(whole)), rng.randrange(256)
        changed = whole[:at] + bytes([byte]) + whole[at + 1 :]
        yield raw(f"byte {at} is {byte}", changed, ("2xx", "4xx", "5xx", "none"), ends_sending=True)
    for _ in range(60):
        noise = bytes(rng.randrange(256) for _ in range(rng.choice((1, 24, 200, 5000))))
        yield raw(f"noise {noise[:8].hex()}", noise, ("2xx", "4xx", "5xx", "none"), ends_sending=True)


def pipelines(server, rng):
    get, head = request("GET", "/_up"), request("HEAD", "/_up")
    put = request("PUT", "/db/pipelined?new_edits=false", b'{"_rev":"1-a"}')
    for count in (2, 10, 500):
        yield Input(f"{count} in one go", get * count, (200,), answers=count, after="usable")
    yield Input(
        "others between",
        (get + put + request("POST", "/db", b"{}") + request("GET", "/db/none")) * 20,
        (404,),
        answers=80,
        after="usable",
    )
    yield Input(
        "close in the middle",
        get + request("GET", "/_up", headers=[("Connection", "close")]) + get,
        (200,),
        answers=2,
        after="closed",
    )
    yield Input(
        "one is wrong", get * 3 + b"\x00\x01\r\n\r\n" + get, ("4xx",), is_request=False, answers=4, after="closed"
    )
    yield Input("HTTP/1.0", b"GET /_up HTTP/1.0\r\n\r\n", (200,), after="closed")
    yield Input(
        "HTTP/1.0 that stays",
        b"GET /_up HTTP/1.0\r\nHost: 127.0.0.1\r\nConnection: keep-alive\r\n\r\n",
        (200,),
        after="usable",
    )
    yield Input("nothing after the head of HEAD", head, (200,), is_head=True, after="usable")
    for path in (
        "/",
        "/_all_dbs",
        "/_uuids",
        "/_session",
        "/db",
        "/db/_all_docs",
        "/db/_changes",
        "/db/none",
        "/db/none/file",
        "/db/_local_docs",
        "/metrics",
        "/db/_security",
        "/db/_design_docs",
        "/_db_updates",
        "/_active_tasks",
        "/_scheduler/jobs",
        "/_scheduler/docs",
        "/db/_local/none",
        "/db/_revs_limit",
        "/db/_changes?feed=longpoll&timeout=1",
        "/db/_changes?feed=continuous&timeout=1",
        "/db/_changes?feed=eventsource&timeout=1",
    ):
        yield Input(f"HEAD {path}", request("HEAD", path), ("2xx", 404, 405), is_head=True, after="usable")
    for path in ("/", "/_up", "/db", "/db/_all_docs", "/db/none", "/db/_changes", "/_all_dbs", "/metrics", "/_uuids"):
        for body in (b"x", b"x" * 10_000, b"x" * 300_000):
            yield Input(f"GET {path} with {len(body)} bytes", request("GET", path, body) + get, ("2xx", "4xx"))


GROUPS = [request_lines, header_lines, one_by_one, pipelines]
