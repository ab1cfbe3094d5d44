"""Attachments that are not there, not what they say, or called what nothing may be called."""

import base64
import gzip
import hashlib

from asking import ANY, ask, bulk, checked, database, holds, segment, short, step, wrong

DATA = "aGVsbG8="


def md5(data):
    return "md5-" + base64.b64encode(hashlib.md5(data).digest()).decode()


def of_others(server, rng):
    """What a stub, a digest or a length says opens nothing that belongs to another document or database."""
    mine, other = database(server, "mine"), database(server, "other")
    secret = b"a secret of the other database"
    ask(server, "PUT", other + "/holder/secret", secret, {"content-type": "text/plain"})
    ask(server, "PUT", mine + "/holder/secret", secret, {"content-type": "text/plain"})
    stub = {"stub": True, "digest": md5(secret), "length": len(secret), "revpos": 1, "content_type": "text/plain"}
    for revpos in (1, 0, 2, -1, "1", None, 10**20):
        for name in ("secret", "x", "../holder/secret", "holder/secret"):
            entry = {**stub, "revpos": revpos}
            for what, ask_for in (
                ("PUT", lambda doc: ask(server, "PUT", f"{mine}/thief", doc)),
                ("_bulk_docs", lambda doc: bulk(server, mine, [{"_id": "thief", **doc}])),
                ("new_edits=false", lambda doc: bulk(server, mine, [{"_id": "thief", "_rev": "1-a", **doc}], False)), (
                    "an ancestor", lambda doc: bulk(
                        server, mine,
                        [{"_id": "thief", "_rev": "2-b", "_revisions": {"start": 2, "ids": ["b", "a"]}, **doc}], False
                    )
                ),
            ):
                answer = ask_for({"_attachments": {name: entry}})
                rows = answer.json if isinstance(answer.json, list) else []
                got = ask(server, "GET", f"{mine}/thief/{segment(name)}")
                yield holds(
                    f"{what} {name} revpos {revpos}", secret not in got.body and wrong(answer) is None,
                    answer.text[:200] + str(rows)[:100]
                )
    for entry in ({"stub": True}, {"stub": 1}, {"stub": "true"}, {"follows": True}, {"follows": True, "length": 5},
                  {"stub": True, "data": DATA}, {"stub": True,
                                                 "follows": True}, {"data": None}, {"data": 1}, {"data": []},
                  {"data": {}}, {"data": "!"}, {"data": "a"}, {"data": "aGk"}, {"data": "aGk=="}, {"data": "=aGk"},
                  {"data": "aG k="}, {"data": "aGk=\n"}, {"data": "aGk=aGk="}, {"data": "aGl-_w=="}, {"data": ""},
                  {"data": "\x00"}, {"data": "A" * 1_000_001}, {}, None, 1, "x", [], {"content_type": "text/plain"}, {
                      "data": DATA, "content_type": 1
                  }, {"data": DATA,
                      "content_type": None}, {"data": DATA,
                                              "content_type": "x\r\ny: z"}, {"data": DATA, "content_type": "x\x00"},
                  {"data": DATA, "content_type": "\u00e9"}, {"data": DATA, "content_type": "x" * 60_000}, {
                      "data": DATA, "content_type": "x" * 100_000
                  }, {"data": DATA,
                      "content_type": ""}, {"data": DATA,
                                            "digest": "md5-AAAA"}, {"data": DATA,
                                                                    "digest": 1}, {"data": DATA, "digest": "sha1-x"},
                  {"data": DATA,
                   "length": 1}, {"data": DATA,
                                  "length": -1}, {"data": DATA,
                                                  "length": 10**30}, {"data": DATA,
                                                                      "revpos": -1}, {"data": DATA, "revpos": 2**64},
                  {"data": DATA, "revpos": 1.5}, {"data": DATA, "encoding": "gzip"}, {"data": DATA, "encoding": "br"}, {
                      "data": base64.b64encode(gzip.compress(b"x" * 1000)).decode(), "encoding": "gzip",
                      "encoded_length": 1
                  }, {"data": base64.b64encode(gzip.compress(b"x" * 1000)[:-3]).decode(), "encoding": "gzip"
                      }, {"data": base64.b64encode(gzip.compress(b"x") * 2).decode(),
                          "encoding": "gzip"}, {"data": DATA, "x": 1}, {"data": DATA, "_x": 1}):
        answer = ask(server, "PUT", f"{mine}/e{rng.getrandbits(30)}", {"_attachments": {"a": entry}})
        yield f"entry {short(str(entry))}", wrong(answer)
        at = f"{mine}/{answer.get('id')}"
        if answer.status == 201:
            for what, headers in (("a", {}), ("a", {"range": "bytes=0-0"}), ("a", {"accept-encoding": "gzip"}),
                                  ("?", {}), ("?attachments=true",
                                              {}), ("?attachments=true&att_encoding_info=true",
                                                    {}), ("?attachments=true", {"accept": "multipart/related"})):
                read = ask(
                    server, "GET", f"{at}/{what}" if what == "a" else at + what, None,
                    {"accept": "application/json", **headers}
                )
                yield f"read {what} {headers} of {short(str(entry))}", wrong(read, ANY)
                yield holds(f"no header of it {short(str(entry))}", "y" not in read.headers, str(read.headers))
        ask(server, "DELETE", f"{at}?rev={answer.get('rev')}")
    yield from checked(server, "mine", "other")


def names(server, rng):
    path = database(server, "names")
    for name in (
        "a", "a/b", "/", "//", "/a", "a/", ".", "..", "../../x", "\\", "\x00", "a\x00b", "\n", "\r\nX: y", "\"", "'",
        "%", "%2F", "\xff", "\uffff", "\U0001f600", " ", "+", "?", "#", "_x", "_", "__", "", "x" * 100, "x" * 2_000,
        "x" * 9_000, "x" * 11_000, "x" * 60_000, "x" * 89_000, "x" * 120_000, "\u00e9" * 30_000, "<script>", "CON",
        "a" * 255 + "/b"
    ):
        inline = ask(
            server, "PUT", f"{path}/i{rng.getrandbits(30)}",
            {"_attachments": {name: {"data": DATA, "content_type": "text/plain"}}}
        )
        yield f"inline {short(repr(name))}", wrong(inline)
        if inline.status == 201 and len(name) < 9_500:
            at = f"{path}/{inline.get('id')}"
            read = ask(server, "GET", f"{at}/" + "/".join(segment(part) for part in name.split("/")))
            odd = name in ("", "/", "//", "a/", "/a", "\\") or ".." in name or name == "."
            yield holds(
                f"read {short(repr(name))}", read.body == b"hello" or odd and wrong(read) is None, read.text[:200]
            )
            for how in ("multipart/related", "multipart/mixed", "application/json"):
                read = ask(server, "GET", f"{at}?attachments=true&open_revs=all", None, {"accept": how})
                yield holds(
                    f"{how} {short(repr(name))}", read.status == 200 and "x" not in read.headers, read.text[:200]
                )
        if 0 < len(name) < 9_500:
            for method, body in (("PUT", b"hi"), ("GET", None), ("HEAD", None), ("DELETE", None), ("POST", b"x"),
                                 ("COPY", None)):
                yield step(
                    server, f"{method} {short(repr(name))}", method, f"{path}/d{rng.randrange(1000)}/{segment(name)}",
                    body
                )
    many = {f"n{n}": {"data": "", "content_type": "a/b"} for n in range(2_000)}
    yield step(server, "2,000 attachments", "PUT", path + "/many", {"_attachments": many}, within=60)
    yield step(
        server,
        "400,000 attachments",
        "PUT",
        path + "/more", {"_attachments": {f"{n}": {"stub": True}
                                          for n in range(400_000)}},
        within=60
    )
    for name in ("a", "b"):
        yield step(
            server, f"one name twice, {name}", "PUT", f"{path}/twice{name}",
            '{"_attachments":{"a":{"data":"aGk="},"\\u0061":{"data":"aG8="},"a":{"stub":true}}}'
        )
    yield from checked(server, "names")


def multipart(server, rng):
    path = database(server, "parts")

    def parts(*pieces, boundary="b", end=True):
        text = b"".join(b"--" + boundary.encode() + b"\r\n" + piece + b"\r\n" for piece in pieces)
        return text + (b"--" + boundary.encode() + b"--" if end else b"")

    json = b"Content-Type: application/json\r\n\r\n"
    follows = b'{"_attachments":{"a":{"follows":true,"length":5,"content_type":"text/plain"}}}'
    kind = {"content-type": 'multipart/related; boundary="b"'}
    bodies = {
        "as it should be": parts(json + follows, b"\r\nhello"), "no data": parts(json + follows),
        "too long": parts(json + follows, b"\r\nhello!"), "too short": parts(json + follows, b"\r\nhell"),
        "no end": parts(json + follows, b"\r\nhello",
                        end=False), "a part more": parts(json + follows, b"\r\nhello", b"\r\nx"), "empty": b"",
        "only an end": b"--b--", "no boundary in it": b"x" * 100_000, "no json": parts(b"\r\nhello"),
        "bad json": parts(json + b"{", b"\r\nhello"), "json twice": parts(json + follows, json + follows),
        "headers without end": b"--b\r\n" + b"a: b\r\n" * 10_000,
        "long preamble": b"x" * 20_000 + parts(json + follows, b"\r\nhello"), "digest is wrong": parts(
            json + follows.replace(b'"length"', b'"digest":"md5-AAAAAAAAAAAAAAAAAAAAAA==","length"'), b"\r\nhello"
        ), "length is huge": parts(json + follows.replace(b":5", b":99999999999999999999"), b"\r\nhello"),
        "length is negative": parts(json + follows.replace(b":5", b":-5"), b"\r\nhello"),
        "gzip that is none": parts(json + follows.replace(b'"length"', b'"encoding":"gzip","length"'), b"\r\nhello"),
        "names of others": parts(json + follows, b'Content-Disposition: attachment; filename="../../b"\r\n\r\nhello'),
        "bare newlines": parts(json + follows,
                               b"\r\nhello").replace(b"\r\n",
                                                     b"\n"), "many parts": parts(json + b"{}", *[b"\r\n"] * 5_000),
        "encoded part": parts(json + follows, b"Content-Encoding: gzip\r\n\r\nhello"),
        "boundary in data": parts(json + follows, b"\r\nhe\r\n--b"),
    }
    for name, body in bodies.items():
        for query in ("", "?new_edits=false"):
            sent = body if not query else body.replace(b"{\"_att", b"{\"_rev\":\"1-a\",\"_att")
            yield step(server, f"{name} {query}", "PUT", f"{path}/{segment(name)}{query}", sent, kind)
    for value in (
        "multipart/related", "multipart/related; boundary=", 'multipart/related; boundary=""',
        "multipart/related; boundary=" + "b" * 71, 'multipart/related; boundary="b',
        "multipart/related; boundary=b; boundary=c", "multipart/mixed; boundary=b", "multipart/form-data; boundary=b",
        "MULTIPART/RELATED; BOUNDARY=b", "multipart/related;boundary=\"\\b\"", "multipart/related; boundary=b c",
        "multipart/", "multipart/related, application/json"
    ):
        yield step(
            server, f"type {value}", "PUT", f"{path}/t{rng.getrandbits(30)}", bodies["as it should be"],
            {"content-type": value}
        )
    for fields in (
        b'name="_doc"\r\n\r\n{}', b'name="_doc"\r\n\r\n{', b'name="_rev"\r\n\r\n1-x',
        b'name="_attachments"; filename="x"\r\n\r\nhi', b'name=""\r\n\r\n', b"\r\n\r\n",
        b'name="_doc"\r\n\r\n{"_id":"other"}', b'name="_attachments"; filename="_x"\r\n\r\nhi',
        b'name="_attachments"; filename="' + b"x" * 5_000 + b'"\r\n\r\nhi'
    ):
        body = parts(b"Content-Disposition: form-data; " + fields)
        yield step(
            server, f"form {short(repr(fields))}", "POST", f"{path}/form", body,
            {"content-type": "multipart/form-data; boundary=b"}
        )
    yield from checked(server, "parts")


GROUPS = (of_others, names, multipart)
