"""JSON that is no JSON, at the edges of what is, and members that CouchDB keeps for itself."""

import json

from asking import ANY, REFUSED, ask, checked, database, equal, holds, short, step, wrong

NUMBERS = (
    "0", "-0", "0.0", "-0.0", "1", "-1", "1e0", "1E0", "1e+0", "1e-0", "1.0e10", "0e0", "0e999999999", "0.0e-999999999",
    "1e308", "1.7976931348623157e308", "4.9e-324", "2.2250738585072011e-308", "5e-324", "9007199254740991",
    "9007199254740992", "9007199254740993", "-9007199254740993", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "-9223372036854775809", "18446744073709551615", "18446744073709551616",
    "340282366920938463463374607431768211455", "340282366920938463463374607431768211456", "1" * 100, "1" * 1000,
    "-" + "9" * 4000, "0." + "1" * 100, "0." + "1" * 4000, "1." + "0" * 4000, "0." + "0" * 4000 + "1", "1e22", "1e23",
    "123456789012345678901234567890e-10", "0.1", "0.30000000000000004", "1e-7", "1e21", "1.5e300",
    "1e00000000000000001",
)
OVER = (
    "1e309", "-1e309", "1e400", "1e999999999999999999999", "1" * 4097, "1" * 100_000, "0." + "1" * 5_000,
    "1" * 310 + ".0", "9" * 400 + "e0"
)
NOT_JSON = (
    "", " ", "{", "}", "[", "{}}", "{}{}", "{},", "[{}]", "null", "true", "1", "\"a\"", "{a:1}", "{'a':1}", "{\"a\"}",
    "{\"a\":}", "{\"a\":1,}", "{,}", "{\"a\" 1}", "{\"a\":1 \"b\":2}", "{\"a\":01}", "{\"a\":1.}", "{\"a\":.1}",
    "{\"a\":+1}", "{\"a\":-}", "{\"a\":1e}", "{\"a\":1e+}", "{\"a\":0x1}", "{\"a\":NaN}", "{\"a\":Infinity}",
    "{\"a\":-Infinity}", "{\"a\":undefined}", "{\"a\":tru}", "{\"a\":True}", "{\"a\":nulll}", "{\"a\":\"\n\"}",
    "{\"a\":\"\t\"}", "{\"a\":\"\x00\"}", "{\"a\":\"\\x\"}", "{\"a\":\"\\u12\"}", "{\"a\":\"\\u12g4\"}", "{\"a\":\"\\",
    "{\"a\":[1,]}", "{\"a\":[,1]}", "{\"a\":[1 2]}", "{\"a\":[1}", "{\"a\":{]}", "// x\n{}", "{/**/}", "{}\x00",
    "\x00{}", "\ufeff{}", "{}\ufeff", "\u00a0{}", "{\"a\":1}\x0c", "{\"a\":--1}", "{\"a\":1-}", "{1:2}", "{null:1}",
    "{[]:1}", "{\"a\":\"}", "{\"a\"::1}", "[" * 100_000, "{\"a\":" * 100_000, "{\"a\":" * 501 + "1" + "}" * 501,
    "[" * 501 + "]" * 501, "\u2028{}", "{\"\\ud800", "{\"a\": 1; }",
)
BYTES = (
    b'{"a":"\xff"}', b'{"a":"\xc0\x80"}', b'{"a":"\xed\xa0\x80"}', b'{"a":"\xf4\x90\x80\x80"}', b'{"a":"\xe2\x82"}',
    b'{"\xff":1}', b'\xff\xfe{\x00}\x00', b'\x00{\x00}', b'{"a":"\xf8\x88\x80\x80\x80"}', b'{"_id":"\xff"}',
    b'{"_rev":"1-\xff"}', b'\x1f\x8b\x08\x00',
)
STRINGS = (
    "", "\\u0000", "\\ud83d\\ude00", "\\ud800", "\\udc00", "\\udc00\\ud800", "\\ud800\\u0041", "\\ud800\\ud800\\udc00",
    "\\uffff", "\\ufffe", "\\ufeff", "\\/", "/", "\\b\\f\\n\\r\\t", "\\\\", "\\\"", "\\u2028", "\u2028", "\x7f",
    "\u0080", "\\u007f", "\U0010ffff", "e\\u0301", "\\u00e9", "<script>alert(1)</script>", "</", "\\u003c",
    "a" * 70_000, "\\u0000" * 10_000, "\U0001f600" * 20_000,
)


def numbers(server, rng):
    path = database(server, "numbers")
    flat = database(server, "numbers-flat", "?run_bytes=0")
    for at, number in enumerate(NUMBERS):
        for where, text in (("member", '"n":%s'), ("item", '"n":[%s,1]'), ("deep", '"n":{"a":[{"b":%s}]}')):
            body = text % number
            for base in (path, flat):
                doc = f"{base}/{where}{at}"
                answer = ask(server, "PUT", doc, "{" + body + "}")
                yield f"{where} {short(number)} in {base}", wrong(answer, 201)
                back = ask(server, "GET", doc).text
                yield holds(f"comes back as written: {where} {short(number)} in {base}", body in back, back[:200])
    revs = [[ask(server, "GET", f"{base}/member{at}").get("_rev")
             for at in range(len(NUMBERS))]
            for base in (path, flat)]
    yield equal("revision ids do not depend on how it is stored", revs[0], revs[1])
    for number in OVER:
        yield step(server, f"beyond {short(number)}", "PUT", path + "/over", '{"n":%s}' % number, statuses=ANY)
    for number in (*NUMBERS, *OVER):
        for query in ("limit", "skip", "key", "startkey", "group_level"):
            if len(number) < 5_000 and rng.random() < 0.3:
                yield step(server, f"_all_docs?{query}={short(number)}", "GET", f"{path}/_all_docs?{query}={number}")
        for query in ("limit", "timeout", "heartbeat", "since", "seq_interval", "feed=longpoll&timeout=1&since"):
            if len(number) < 5_000 and rng.random() < 0.3:
                yield step(server, f"_changes?{query}={short(number)}", "GET", f"{path}/_changes?{query}={number}")
    yield from checked(server, "numbers", "numbers-flat")


def texts(server, rng):
    path = database(server, "texts")
    for at, text in enumerate(STRINGS):
        body = '{"s":"%s","%s":1}' % (text, text if len(text) < 1_000 and text else "x")
        answer = ask(server, "PUT", f"{path}/s{at}", body)
        yield f"string {short(text)}", wrong(answer, {201, 400})
        if answer.status == 201:
            back = ask(server, "GET", f"{path}/s{at}").json
            yield equal(f"comes back {short(text)}", (back or {}).get("s"), json.loads(body)["s"])
    for text in NOT_JSON:
        for what, method, at in (("PUT", "PUT", "/x"), ("POST", "POST", ""), ("_bulk_docs", "POST", "/_bulk_docs"),
                                 ("local", "PUT", "/_local/x")):
            if what != "POST" and text in ("[{}]", ) or rng.random() < 0.75:
                yield step(server, f"{what} {short(repr(text))}", method, path + at, text, statuses=REFUSED)
    for data in BYTES:
        for method, at in (("PUT", "/x"), ("POST", ""), ("POST", "/_bulk_docs"), ("POST", "/_all_docs"),
                           ("PUT", "/_security"), ("POST", "/_purge"), ("POST", "/_revs_diff"),
                           ("POST", "/_changes?filter=_selector"), ("POST", "/_bulk_get"), ("PUT", "/_revs_limit")):
            yield step(server, f"{method} {at} {data!r}", method, path + at, data, statuses=REFUSED)
    yield step(
        server,
        "duplicate names: the last counts",
        "PUT",
        path + "/twice",
        '{"a":1,"a":2,"b":{"c":1,"c":[]}}',
        statuses={201}
    )
    yield equal(
        "the last",
        {name: value
         for name, value in (ask(server, "GET", path + "/twice").json or {}).items()
         if name in "ab"}, {"a": 2, "b": {"c": []}}
    )
    yield from checked(server, "texts")


VALUES = (None, True, False, 0, 1, -1, 1.5, "", "x", "1-a", "1-967a00dff5e02add41819138abb3284d", [], [1], {}, {"a": 1})


def special_members(server, rng):
    path = database(server, "special")
    for name in (
        "_id", "_rev", "_deleted", "_revisions", "_revs_info", "_conflicts", "_deleted_conflicts", "_local_seq",
        "_attachments", "_replication_id", "_replication_state", "_replication_stats", "_x", "_", "__", "_ID", "_id ",
        "_\x00", "_rev\x00", "_security", "_purge_seq", "_access", "_partition", "_doc"
    ):
        for value in VALUES:
            yield step(server, f"PUT {name}={value!r}", "PUT", f"{path}/x{rng.randrange(40)}", {name: value})
            if rng.random() < 0.4:
                yield step(
                    server, f"_bulk_docs {name}={value!r}", "POST", path + "/_bulk_docs",
                    {"docs": [{"_id": f"y{rng.randrange(40)}", name: value}]}
                )
            if rng.random() < 0.4:
                body = {"docs": [{"_id": f"z{rng.randrange(9)}", "_rev": "2-x", name: value}], "new_edits": False}
                yield step(server, f"new_edits=false {name}={value!r}", "POST", path + "/_bulk_docs", body)
    for name in ("docs", "new_edits", "keys", "queries", "doc_ids", "selector", "all_or_nothing", "w", "atomic"):
        for value in VALUES:
            for at in rng.sample((
                "_bulk_docs", "_bulk_get", "_all_docs", "_all_docs/queries", "_changes?filter=_doc_ids",
                "_changes?filter=_selector", "_purge", "_revs_diff", "_missing_revs", "_local_docs", "_design_docs"
            ), 4):
                yield step(server, f"{at} {name}={value!r}", "POST", f"{path}/{at}", {name: value})
    for docs in ([None], [1], ["x"], [[]], [[{}]], [{}, None], [{"_id": 1}], [{"_id": None}],
                 [{"_id": "a"}, {"_id": "a"}], [{}] * 3, [{"_id": ""}]):
        yield step(server, f"docs {docs}", "POST", path + "/_bulk_docs", {"docs": docs})
        yield step(
            server, f"docs {docs} of a replica", "POST", path + "/_bulk_docs", {"docs": docs, "new_edits": False}
        )
        yield step(server, f"_bulk_get {docs}", "POST", path + "/_bulk_get", {"docs": docs})
    yield from checked(server, "special")


def names_of_members(server, rng):
    names = (
        "", " ", ".", "..", "a.b", "$", "$ref", "a/b", "\x00", "\x00\x00", "\xff", "\uffff", "\U0010ffff", "__proto__",
        "constructor", "0", "1", "-1", "a" * 511, "a" * 512, "a" * 513, "a" * 4_000, "a" * 9_000, "a" * 10_000,
        "a" * 11_000, "a" * 90_000, "a" * 110_000, "a" * 1_000_000, "\u00e9" * 256, "\u00e9" * 257, "\x00" * 600,
        "\xff" * 6_000
    )
    for query in ("", "?run_bytes=0", "?run_bytes=0&field_ids_max=3", "?revision_bodies=leaves_only"):
        path = database(server, "members", query)
        for at, name in enumerate(names):
            for value in (1, {name: {name: [1, {name: 2}]}}, [[[name]]]):
                if rng.random() < 0.2 and len(name) > 1:
                    continue
                doc = {name: value}
                answer = ask(
                    server, "PUT", f"{path}/d{at}",
                    {**doc, "_rev": ask(server, "GET", f"{path}/d{at}").get("_rev") or ""}
                )
                yield f"{query} {short(repr(name), 20)} {short(str(value), 20)}", wrong(answer, {201, 400, 413})
                if answer.status == 201:
                    back = ask(server, "GET", f"{path}/d{at}").json or {}
                    yield equal(f"{query} comes back {short(repr(name), 20)}", back.get(name), value)
        for count in (1_000, 5_000, 40_000):
            doc = {f"{rng.getrandbits(64):x}": n for n in range(count)}
            answer = ask(server, "PUT", f"{path}/many{count}", doc, timeout=60)
            yield f"{query} {count} names", wrong(answer, {201, 413}, 40)
        for depth in (100, 480, 499):
            doc = '{"a":' * depth + "1" + "}" * depth
            yield step(server, f"{query} {depth} deep", "PUT", f"{path}/deep{depth}", doc, statuses={201})
            yield holds(f"{query} {depth} deep comes back", doc[1:] in ask(server, "GET", f"{path}/deep{depth}").text)
            long = ('{"%s":' % ("n" * 300)) * depth + "1" + "}" * depth
            yield step(
                server,
                f"{query} {depth} deep with long names",
                "PUT",
                f"{path}/long{depth}",
                long,
                statuses={201, 400, 413}
            )
        yield from checked(server, "members")


names_of_members.longest_wait = 10.0

GROUPS = (numbers, texts, special_members, names_of_members)
