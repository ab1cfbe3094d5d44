"""Multipart bodies: boundaries, headers, nesting, parts that lie; and browsers' forms."""

import gzip
import json

from check import Input
from wire import chunked, request

# Multipart bodies that say something that is not so.
REFUSED = (
    "no parts",
    "one part too few",
    "one too many",
    "the same twice",
    "document last",
    "headers without colon",
    "header not UTF-8",
    "a header of 20 kB",
    "1,000 parts",
)


def part(headers, data):
    return "".join(f"{name}: {value}\r\n" for name, value in headers).encode("utf-8") + b"\r\n" + data


def body_of(boundary, parts, end=True):
    return b"".join(b"--%s\r\n%s\r\n" % (boundary, text) for text in parts) + (b"--%s--\r\n" % boundary if end else b"")


def related(server, rng):
    follows = {
        "_attachments": {
            "f": {"follows": True, "content_type": "t/x", "length": 3},
            "g": {"follows": True, "content_type": "t/x", "length": 3},
        }
    }
    doc = part([("Content-Type", "application/json")], json.dumps(follows).encode())
    file_f, file_g = part([("Content-Disposition", 'attachment; filename="f"')], b"fff"), part([], b"ggg")
    good = body_of(b"b", [doc, file_f, file_g])

    def put(name, body, boundary="b", statuses=("2xx", "4xx"), **more):
        kind = f'multipart/related; boundary="{boundary}"' if boundary is not None else "multipart/related"
        return Input(
            name, request("PUT", f"/db/rel{rng.randrange(10**9)}", body, [("Content-Type", kind)]), statuses, **more
        )

    yield put("as it should be", good, statuses=(201,), after="usable")
    for boundary in (
        None,
        "",
        " ",
        "x",
        "b" * 70,
        "b" * 71,
        "b" * 30_000,
        "--",
        "-",
        "\u00e9",
        "b\t",
        "b;c",
        "b b",
        "\\",
        "=?x",
    ):
        yield put(f"boundary {str(boundary)[:20]!r}", good, boundary)
        if boundary:
            yield put(
                f"boundary {boundary[:20]!r} that is there", good.replace(b"--b", b"--" + boundary.encode()), boundary
            )
    for cut in range(0, len(good), 4):
        yield put(f"ends after {cut}", good[:cut] or b" ", statuses=("2xx", "4xx") if cut > len(good) - 8 else ("4xx",))
    for _ in range(60):
        at = rng.randrange(len(good))
        yield put(f"byte {at} is changed", good[:at] + bytes([rng.randrange(256)]) + good[at + 1 :])
    for name, parts in (
        ("no parts", []),
        ("only the document", [doc]),
        ("one part too few", [doc, file_f]),
        ("one too many", [doc, file_f, file_g, file_g]),
        ("the same twice", [doc, file_f, file_f]),
        ("unknown name", [doc, part([("Content-Disposition", 'attachment; filename="zzz"')], b"x"), file_g]),
        ("document last", [file_f, file_g, doc]),
        ("two documents", [doc, doc]),
        ("document of 1,000 headers", [part([("Content-Type", "application/json")] + [("X", "y")] * 1_000, b"{}")]),
        ("a header of 20 kB", [part([("Content-Type", "application/json; a=" + "b" * 20_000)], b"{}")]),
        ("headers without colon", [b"x\r\n\r\n{}"]),
        ("header folded", [b"Content-Type:\r\n application/json\r\n\r\n{}"]),
        ("header not UTF-8", [b"X: \xff\r\n\r\n{}"]),
        ("multipart in multipart", [part([("Content-Type", "multipart/mixed; boundary=b")], body_of(b"b", [doc]))]),
        ("1,000 parts", [doc] + [file_g] * 1_000),
        ("an encoding", [doc, part([("Content-Encoding", "gzip")], b"fff"), file_g]),
        ("transfer encoding", [doc, part([("Content-Transfer-Encoding", "base64")], b"Zm")]),
    ):
        yield put(name, body_of(b"b", parts), statuses=("4xx",) if name in REFUSED else ("2xx", "4xx"))
    for depth in (2, 20, 200):
        text = b"{}"
        for at in range(depth):
            text = part([("Content-Type", f"multipart/mixed; boundary=x{at}")], body_of(b"x%d" % at, [text]))
        yield put(f"nested {depth} deep", body_of(b"b", [text]), statuses=("4xx",))
    for name, filler in (
        ("near boundaries", b"\r\n--bX"),
        ("line ends", b"\r\n"),
        ("hyphens", b"\r\n-"),
        ("blanks behind", b"\r\n--b" + b" " * 200),
        ("CRs", b"\r"),
    ):
        yield put(
            f"200 kB of {name}",
            body_of(b"b", [doc, part([], filler * (200_000 // len(filler))), file_g]),
            statuses=("2xx", "4xx"),
        )
    yield put("17 kB before the first part", b"x" * 17_000 + b"\r\n" + good, statuses=("4xx",))
    yield put("1 MB behind the last", good + b"x" * 1_000_000, statuses=("2xx", "4xx"))
    for encoding in ("gzip", "deflate"):
        yield Input(
            f"{encoding} as a whole",
            request(
                "PUT",
                "/db/relz",
                gzip.compress(good),
                [("Content-Type", "multipart/related; boundary=b"), ("Content-Encoding", encoding)],
            ),
            ("4xx",),
        )
    yield Input(
        "in chunks of one byte",
        request(
            "PUT",
            "/db/rel1",
            chunked(good, 1),
            [("Content-Type", "multipart/related; boundary=b"), ("Transfer-Encoding", "chunked")],
        ),
        (201,),
        after="usable",
    )
    for size in (0, 2, 4, 2**63):
        lying = {"_attachments": {"f": {"follows": True, "length": size}}}
        yield put(
            f"length {size} of 3",
            body_of(b"b", [part([("Content-Type", "application/json")], json.dumps(lying).encode()), file_f]),
            statuses=("4xx",),
        )


def forms(server, rng):
    home = [("Referer", "http://127.0.0.1/x"), ("Content-Type", "multipart/form-data; boundary=b")]

    def post(name, parts, headers=home, statuses=("2xx", "4xx"), **more):
        return Input(
            name, request("POST", f"/db/form{rng.randrange(10**9)}", body_of(b"b", parts), headers), statuses, **more
        )

    document = part([("Content-Disposition", 'form-data; name="_doc"')], b"{}")
    file = part(
        [("Content-Disposition", 'form-data; name="_attachments"; filename="f"'), ("Content-Type", "t/x")], b"fff"
    )
    yield post("as it should be", [document, file], statuses=(201,), after="usable")
    for referer in (
        None,
        "",
        "x",
        "http://evil/",
        "http://127.0.0.1@evil/",
        "http://127.0.0.1.evil/",
        "//127.0.0.1/",
        "http://[127.0.0.1]/",
        "http://127.0.0.1:1/",
        "null",
        "javascript:127.0.0.1",
        "x" * 9_000,
    ):
        yield post(
            f"Referer {str(referer)[:30]}",
            [document],
            [*([("Referer", referer)] if referer is not None else []), home[1]],
            ("4xx",),
        )
    yield post(
        "a foreign page that lies about its host",
        [document],
        [("Referer", "http://evil/"), ("X-Forwarded-Host", "evil"), home[1]],
    )
    for name, parts in (
        ("nothing", []),
        ("no _doc", [file]),
        ("two files of one name", [document, file, file]),
        ("1,001 fields", [document] + [part([("Content-Disposition", "form-data; name=x")], b"")] * 1_001),
        ("a wrong _rev", [part([("Content-Disposition", "form-data; name=_rev")], b"x")]),
        ("a _rev that is not there", [part([("Content-Disposition", "form-data; name=_rev")], b"1-a")]),
        ("a _rev that is not UTF-8", [part([("Content-Disposition", "form-data; name=_rev")], b"\xff")]),
        ("a _doc that is none", [part([("Content-Disposition", "form-data; name=_doc")], b"[")]),
        (
            "a name with an underscore",
            [document, part([("Content-Disposition", 'form-data; name=_attachments; filename="_f"')], b"x")],
        ),
        ("no disposition", [b"\r\nx"]),
        ("a name that does not end", [part([("Content-Disposition", 'form-data; name="_doc')], b"{}")]),
    ):
        yield post(name, parts)


GROUPS = [related, forms]
