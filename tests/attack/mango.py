"""Selectors: each operator with arguments of every shape, and ones that cost."""

import json
import threading
import time

from asking import REFUSED, ask, checked, database, holds, short, step, wrong
from server import MB

OPERATORS = (
    "$and", "$or", "$nor", "$not", "$lt", "$lte", "$eq", "$ne", "$gte", "$gt", "$exists", "$type", "$in", "$nin",
    "$all", "$elemMatch", "$allMatch", "$keyMapMatch", "$size", "$mod", "$regex", "$beginsWith", "$text", "$where", "$",
    "$$", "$AND", "$and ", "$near", "$comment",
)
ARGUMENTS = (
    "null", "true", "false", "0", "-1", "1.5", "1e400", "99999999999999999999999", '""', '"x"', '"number"', "[]", "[1]",
    "[[]]", "[{}]", "[null]", "{}", '{"a":1}', '{"$gt":1}', '{"$not":{}}', "[0,1]", "[1,0]",
    "[-9223372036854775808,-1]", '[1,"a"]', "[2,1,0]", '"("', '"(?i)X"', '"\\\\p{Greek}"',
)
DOCUMENTS = ({}, {"a": None}, {"a": 1}, {"a": -9223372036854775808}, {"a": "x"}, {"a": []}, {"a": [1, [1], {"a": 1}]},
             {"a": {"a": {"a": 1}}}, {"a": {}}, {"a.b": 1}, {"": 1}, {"$gt": 1}, {"a": 1.5}, {"a": "X\u0000"},
             )


def asked(server, path, selector, within=10.0, timeout=None):
    body = selector if isinstance(selector, str) else json.dumps(selector)
    return ask(
        server, "POST", path + "/_changes?filter=_selector", '{"selector":%s}' % body, timeout=timeout or within + 10
    )


def operators(server, rng):
    path = database(server, "selected")
    for document in DOCUMENTS:
        ask(server, "POST", path, document)
    for operator in OPERATORS:
        for argument in ARGUMENTS:
            for selector in ('{"%s":%s}', '{"a":{"%s":%s}}', '{"a":{"$elemMatch":{"%s":%s}}}'):
                if rng.random() < 0.8:
                    text = selector % (operator, argument)
                    yield f"selector {text}", wrong(asked(server, path, text), {200, 400})
    for text in (
        "null", "1", "[]", '"x"', "{}", '{"":1}', '{".":1}', '{"..":1}', '{"a..b":1}', '{"a.":1}', '{"\\\\":1}',
        '{"\\\\.":1}', '{"a\\\\":1}', '{"a.0":1}', '{"a.-1":1}', '{"a.99999999999999999999":1}', '{"_id":{"$gt":null}}',
        '{"_rev":{"$regex":"^1"}}', '{"_deleted":true}', '{"_attachments":{}}', '{"a":{"$gt":1,"b":2}}',
        '{"a":{"b":2,"$gt":1}}', '{"$and":[{"$or":[{"$nor":[{"$not":{"a":1}}]}]}]}', '{"a":1,"a":2}', '{"__proto__":1}',
        "{" * 99, '{"$not":' * 99 + "{}" + "}" * 99, '{"$not":' * 101 + "{}" + "}" * 101, '{"a":' * 400 + "1" +
        "}" * 400, '{"$and":[' * 99 + "{}" + "]}" * 99, '{"a":{"$elemMatch":' * 60 + "{}" + "}}" * 60
    ):
        yield f"selector {short(text)}", wrong(asked(server, path, text), {200, 400})
    for pattern in (
        "", "(", ")", "[", "[^]", "a{1,2", "a{2,1}", "a**", "*", "\\", "\\8", "(?P<x>a)(?P<x>b)", "(?<=a)b", "(?=a)",
        "\\1", "(a)\\1", "(?R)", "\x00", "\U0001f600", "(a+)+$", "(a|a)*b", "(x+x+)+y", ".*.*.*.*.*=",
        "(?:a?){1000}a{1000}", "\\w{1000}", "(\\p{L}{100}){100}", "[\\w\\W]{2000}", "(((a{10}){10}){10}){10}",
        "a{99999}", "(?i)" + "x" * 10_000, "|".join("ab" * 3 for _ in range(5_000)), "(" * 300 + ")" * 300,
        "[[:alpha:][[:^digit:]]]", "(?x) # comment", "\\b{start}", "(?u:\\d){500}"
    ):
        yield f"regex {short(pattern)}", wrong(asked(server, path, {"a": {"$regex": pattern}}, 5), {200, 400}, 5)
    for what in (
        "feed=longpoll&timeout=100", "feed=continuous&timeout=100", "feed=eventsource&timeout=100", "include_docs=true",
        "descending=true", "limit=0", "style=all_docs"
    ):
        yield step(server, what, "POST", f"{path}/_changes?filter=_selector&{what}", {"selector": {"a": {"$gt": None}}})
    for body in (
        "", "{}", "null", '{"selector":null}', '{"selector":[]}', '{"selector":"x"}', '{"selectors":{}}',
        '{"selector":{}}}', '{"selector":{},"selector":1}'
    ):
        yield step(server, f"body {body}", "POST", path + "/_changes?filter=_selector", body)
    yield step(server, "GET", "GET", path + "/_changes?filter=_selector&selector=%7B%7D", statuses=REFUSED)
    yield from checked(server, "selected")


def costly(server, rng):
    """What a selector costs is bounded: others are answered meanwhile, and it ends with its client."""
    path = database(server, "costly")
    many = 200_000
    ask(server, "PUT", path + "/numbers", '{"a":[%s]}' % ",".join(map(str, range(many))))
    ask(server, "PUT", path + "/texts", '{"a":[%s]}' % ",".join('"%s"' % ("x" * 30) for _ in range(50_000)))
    ask(server, "PUT", path + "/objects", '{"a":[%s]}' % ",".join('{"b":%d,"c":[1,2,3]}' % n for n in range(50_000)))
    ask(server, "PUT", path + "/long", '{"a":"%s"}' % ("a" * 5_000_000))
    backwards = ",".join(str(many - 1 - n) for n in range(60_000))
    selectors = {
        "$all of 60,000 in an array": '{"a":{"$all":[%s]}}' % backwards,
        "$in of 20,000 in an array": '{"a":{"$in":[%s]}}' % ",".join(str(many + n) for n in range(20_000)),
        "$nin of 20,000 in an array": '{"a":{"$nin":[%s]}}' % ",".join(str(many + n) for n in range(20_000)),
        "$elemMatch of 20,000 $ne": '{"a":{"$elemMatch":{"$and":[%s,{"$eq":-1}]}}}' %
        ",".join('{"$ne":%d}' % (many + n)
                 for n in range(20_000)), "$allMatch of 20,000 $or": '{"a":{"$allMatch":{"$nor":[%s]}}}' %
        ",".join('{"$eq":%d}' % (many + n) for n in range(20_000)), "$all of objects": '{"a":{"$all":[%s]}}' %
        ",".join('{"c":[3,2,1],"b":%d}' % (49_999 - n)
                 for n in range(20_000)), "many regular expressions": '{"a":{"$elemMatch":{"$or":[%s]}}}' %
        ",".join('{"$regex":"(x+x+)+y%d"}' % n for n in range(50)),
        "one regular expression on a long text": '{"a":{"$regex":"(a|b|ab|ba)*(a|b|ab|ba)*(a|b|ab|ba)*c"}}',
        "$elemMatch within each other": '{"a":' + '{"$elemMatch":{"$or":[{"$gt":1e9},' * 40 + '{"$gt":1e9}' +
        "]}}" * 40 + "}",
    }
    for name, selector in selectors.items():
        answer = asked(server, path, selector, 20)
        yield name, wrong(answer, {200, 400, 413, 503}, 20)
    yield holds("it ends with its client", server.is_idle(10), "the processor is busy with nobody waiting")
    for name, selector in list(selectors.items())[:4]:
        sockets = []
        for _ in range(4):
            body = b'{"selector":%s}' % selector.encode()
            head = f"POST {path}/_changes?filter=_selector HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            sockets.append(server.connect())
            sockets[-1].sendall(head.encode() + body)
        time.sleep(0.5)
        up = ask(server, "GET", "/_up", timeout=10)
        yield f"/_up beside four times {name}", wrong(up, 200, 3)
        for sock in sockets:
            sock.close()
        yield holds(
            f"it ends with its clients: {name}", server.is_idle(10), "the processor is busy with nobody waiting"
        )
    before = server.resident()
    for name, selector in (
        ("a name of 4,000,000 dots",
         '{"%s":1}' % ("." * 4_000_000)), ("a name of 2,000,000 parts", '{"%s":1}' % ("a." * 2_000_000)),
        ("200,000 conditions", '{"$and":[%s]}' % ",".join(['{"a":1}'] * 200_000)), (
            "600 regular expressions",
            '{"$or":[%s]}' % ",".join('{"a":{"$regex":"\\\\w{30}%d"}}' % n for n in range(600))
        ), ("600 equal ones", '{"$or":[%s]}' % ",".join('{"a":{"$regex":"\\\\w{30}"}}' for n in range(600))),
        ("50,000 small ones", '{"$or":[%s]}' % ",".join('{"a":{"$regex":"a%d"}}' % n for n in range(50_000))),
    ):
        peak = [0]
        done = threading.Event()

        def watch():
            while not done.wait(0.02):
                peak[0] = max(peak[0], server.resident())

        watching = threading.Thread(target=watch)
        watching.start()
        answer = asked(server, path, selector, 5)
        done.set()
        watching.join()
        yield name, wrong(answer, {200, 400, 413, 503}, 5)
        yield holds(f"memory of {name}", peak[0] - before < 250 * MB, f"{(peak[0] - before) // MB} MB")


costly.longest_wait = 6.0


def queries(server, rng):
    """`_find` and its like, over documents of every shape and an index on what they have."""
    path = database(server, "queried")
    for document in DOCUMENTS:
        ask(server, "POST", path, document)
    yield step(server, "an index", "POST", path + "/_index", {"index": {"fields": ["a"]}, "ddoc": "i", "name": "i"})
    yield step(server, "another", "POST", path + "/_index", {"index": {"fields": ["a.0", "_id"]}, "ddoc": "j", "name": "j"})
    # Some are CouchDB's own 500: `unknown_error`.
    statuses = {200, 400, 500}
    for operator in OPERATORS:
        for argument in ARGUMENTS:
            for selector in ('{"%s":%s}', '{"a":{"%s":%s}}', '{"a":{"$gt":null},"b":{"%s":%s}}'):
                if rng.random() < 0.3:
                    text = selector % (operator, argument)
                    where = rng.choice(("_find", "_explain", "_count"))
                    yield f"{where} {text}", wrong(ask(server, "POST", f"{path}/{where}", '{"selector":%s}' % text), {200, 400})
    values = ARGUMENTS + ("25", '"nil"', '["a"]', '[{"a":"desc"}]', '"i"', '["i","i"]', '["_design/i","x"]', '"' + "x" * 100_000 + '"')
    for member in (
        "limit", "skip", "sort", "fields", "bookmark", "use_index", "r", "conflicts", "stale", "update", "stable",
        "execution_stats", "allow_fallback", "partition", "x"
    ):
        for value in values:
            body = '{"selector":{"a":{"$gt":null}},"%s":%s}' % (member, value)
            for where in ("_find", "_explain", "_count"):
                if rng.random() < 0.6:
                    answer = ask(server, "POST", f"{path}/{where}", body)
                    yield f"{where} {member}={short(value)}", wrong(answer, statuses)
    for member in ("index", "name", "ddoc", "type", "w", "partitioned", "x"):
        for value in values:
            members = {"index": '{"fields":["b"]}', "ddoc": '"d%d"' % rng.randrange(1_000), member: value}
            body = "{%s}" % ",".join(f'"{name}":{of}' for name, of in members.items())
            yield f"_index {member}={short(value)}", wrong(ask(server, "POST", path + "/_index", body), {200, 400, 500, 503})
    for member in ("fields", "partial_filter_selector", "x"):
        for value in values:
            index = {"fields": '["c"]', member: value}
            body = '{"ddoc":"e","index":{%s}}' % ",".join(f'"{name}":{of}' for name, of in index.items())
            yield f"_index {member} {short(value)}", wrong(ask(server, "POST", path + "/_index", body), {200, 400})
    for body in ("", "null", "[]", "{}", '{"docids":{}}', '{"docids":["",null]}', '{"docids":["_design/"]}', '{"docids":["%s"]}' % ("x" * 9_000)):
        yield step(server, f"_bulk_delete {short(body)}", "POST", path + "/_index/_bulk_delete", body, statuses={200, 400})
    for rest in ("i/json/x", "i/special/_all_docs", "%2F/json/%2F", "_design/i/json/" + "x" * 9_000, "x" * 9_000 + "/json/i", "i/json/%00"):
        yield step(server, f"_index/{short(rest)}", "DELETE", f"{path}/_index/{rest}", statuses={400, 404})
    yield from checked(server, "queried")


queries.longest_wait = 3.0


def scans(server, rng):
    """What a query costs is bounded: others are answered meanwhile, and it ends with its client."""
    path = database(server, "scanned")
    ask(server, "PUT", path + "/numbers", '{"a":[%s],"n":1}' % ",".join(map(str, range(200_000))))
    ask(server, "PUT", path + "/long", '{"a":"%s","n":2}' % ("a" * 5_000_000))
    for at in range(20):
        docs = [{"n": at * 500 + n, "text": "ab" * 500} for n in range(500)]
        ask(server, "POST", path + "/_bulk_docs", {"docs": docs})
    yield step(server, "an index", "POST", path + "/_index", {"index": {"fields": ["n"]}})
    selectors = {
        "$in of 20,000 in an array": '{"a":{"$in":[%s]}}' % ",".join(str(200_000 + n) for n in range(20_000)),
        "a regular expression on all": '{"text":{"$regex":"(a|b|ab|ba)*(a|b|ab|ba)*c"}}',
        "a regular expression behind an index": '{"n":{"$gte":0},"text":{"$regex":"(a|b|ab|ba)*(a|b|ab|ba)*c"}}',
        "40 conditions": '{"$and":[%s]}' % ",".join('{"text":{"$ne":"%d"}}' % n for n in range(40)),
    }
    for name, selector in selectors.items():
        for where in ("_find", "_count"):
            sockets = []
            for _ in range(6):
                body = b'{"selector":%s}' % selector.encode()
                head = f"POST {path}/{where} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                sockets.append(server.connect())
                sockets[-1].sendall(head.encode() + body)
            time.sleep(0.5)
            up = ask(server, "GET", path + "/_all_docs?limit=1", timeout=10)
            yield f"_all_docs beside six times {where}, {name}", wrong(up, 200, 3)
            for sock in sockets:
                sock.close()
            idle = server.is_idle(10)
            yield holds(f"{where} ends with its clients: {name}", idle, "the processor is busy with nobody waiting")


scans.longest_wait = 6.0

GROUPS = (operators, costly, queries, scans)
