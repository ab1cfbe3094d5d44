"""Queries of anonymous clients in public databases, beside a neighbour with a private one: selectors that are generated, heavy expressions,
huge `$in` and `$or`, 50,000 fields, deep documents, sorted finds."""

import json

from asking import ask, bulk
from neighbours import SETUP, Tenant, at_rest, beside, flood, judged, late, owned, tenants

REGEXES = (
    "(a|b|ab|ba)*c", "(x+x+)+y", "(?:a?){500}a{500}", "[a-z]{1,900}$", "^(([a-z])+.)+[A-Z]([a-z])+$", "(?i)(straße|ﬃ|ǆ)*", "\\p{L}{200}", "(?s).*.*.*.*x", "\\b\\w+\\b.*\\b\\w+\\b$", "(a{0,100}){0,90}", "[\\p{L}\\p{N}--\\p{Lu}]+{300}",
    "((a{1,30}){1,30}){1,30}", "x*" * 5_000, "|".join(f"w{n}" for n in range(20_000)), "[^x]" * 20_000, "(" * 200 + "a" + ")*" * 200, "(?x)" + "a #\n" * 10_000, "\\w{1000}", "(\\w+\\s){50}", ".{1,1000}z", "$" * 9_000, "(?:)" * 9_000
)
FIELDS = ("n", "type", "text", "list", "deep", "many.f1", "many.f49", "list.3", "_id", "_rev", "none", "deep.a.a.a.a.a", "tags", "pairs")


def leaf(rng):
    """A condition on one field that costs."""
    kind = rng.randrange(12)
    if kind == 0:
        return {"$regex": rng.choice(REGEXES)}
    if kind == 1:
        return {"$in": [rng.randrange(10**6) for _ in range(rng.choice((10, 1_000, 20_000)))]}
    if kind == 2:
        return {"$nin": [f"x{n}" for n in range(rng.choice((10, 5_000)))]}
    if kind == 3:
        return {"$all": [rng.randrange(100) for _ in range(rng.choice((1, 300)))]}
    if kind == 4:
        return {"$elemMatch": {rng.choice(("$gt", "$eq", "$ne")): rng.randrange(100)}}
    if kind == 5:
        return {"$allMatch": {"$or": [{"$eq": n} for n in range(rng.choice((2, 300)))]}}
    if kind == 6:
        return {"$keyMapMatch": {"$regex": "f.*9$"}}
    if kind == 7:
        return {"$not": leaf(rng)}
    if kind == 8:
        return {"$mod": [rng.randrange(1, 99), rng.randrange(3)], "$type": "number"}
    if kind == 9:
        return {"$beginsWith": rng.choice(("", "w", "y" * 5_000)), "$exists": True}
    if kind == 10:
        return {"$size": rng.randrange(200)}
    return {"$gte": rng.choice((None, 0, "", [], {})), "$lt": rng.choice((1, "z", [1], {"a": 1}))}


def selector(rng, depth=3):
    """A selector that nobody has asked yet."""
    if depth and rng.random() < 0.6:
        wide = rng.choice((2, 5, 40))
        return {rng.choice(("$or", "$and", "$nor")): [selector(rng, depth - 1) for _ in range(wide if depth == 1 else 3)]}
    return {rng.choice(FIELDS): leaf(rng) for _ in range(rng.randrange(1, 4))}


def query(rng):
    """Path and body of a query, and what its kind is called."""
    kind = rng.choice(("any", "any", "or", "in", "fields", "sort", "deep", "count", "explain", "changes", "regexes", "execution"))
    body = {"selector": selector(rng), "limit": rng.choice((1, 25, 100_000))}
    path = "/_find"
    if kind == "or":
        body["selector"] = {"$or": [{rng.choice(FIELDS): rng.randrange(10**6)} for _ in range(rng.choice((100, 5_000, 24_000, 60_000)))]}
    elif kind == "in":
        body["selector"] = {"n": {"$in": [rng.randrange(10**6) for _ in range(rng.choice((1_000, 49_000, 60_000)))]}}
    elif kind == "fields":
        body["fields"] = [f"{rng.choice(('many', 'list', 'x'))}.{rng.choice(('f', ''))}{n}" for n in range(rng.choice((100, 50_000)))]
        body["selector"] = {"_id": {"$gt": None}}
    elif kind == "sort":
        body["sort"] = [{name: rng.choice(("asc", "desc"))} for name in rng.sample(FIELDS, rng.choice((1, 3)))]
        if rng.random() < 0.5:
            body.update(selector={"n": {"$gte": 0}}, sort=[{"n": "desc"}], skip=rng.choice((0, 1_000, 10**9)))
    elif kind == "deep":
        name = ".".join("a" * 1 for _ in range(rng.choice((50, 480, 5_000))))
        body["selector"] = {"deep." + name: leaf(rng)}
        for _ in range(rng.choice((0, 90, 400))):
            body["selector"] = {"$not": body["selector"]}
    elif kind == "count":
        path = "/_count"
        body.pop("limit")
    elif kind == "explain":
        path = "/_explain"
    elif kind == "changes":
        path = "/_changes?filter=_selector&include_docs=" + rng.choice(("true", "false")) + rng.choice(("", "&feed=longpoll&timeout=2000&since=now", "&feed=continuous&timeout=2000"))
        body = {"selector": body["selector"], "fields": ["n"]}
    elif kind == "regexes":
        body["selector"] = {"$or": [{"text": {"$regex": rng.choice(REGEXES) + f"{n}"}} for n in range(rng.choice((3, 60)))]}
    elif kind == "execution":
        body.update(execution_stats=True, use_index=rng.choice((["x", "y"], "none", [])), bookmark=rng.choice(("nil", "x", "WzEsMSwxXQ==")), r=10**9, conflicts=True, update=False)
    return kind, path, body


def public(server, owner):
    path = owned(server, owner.name, "open", public=True)
    docs = [
        {
            "_id": f"d{n:05}", "n": n, "type": f"t{n % 7}", "text": " ".join(f"w{(n * k) % 997}" for k in range(120)), "list": list(range(n % 90)), "tags": ["a", f"b{n}"],
            "many": {f"f{k}": k * n for k in range(50)}, "pairs": [{"a": k, "b": {"c": [k]}} for k in range(12)]
        } for n in range(3_000)
    ]
    for begin in range(0, 3_000, 1_000):
        bulk(owner, path, docs[begin:begin + 1_000])
    for depth in (100, 480):
        ask(owner, "PUT", f"{path}/deep{depth}", '{"n":1,"deep":%s1%s}' % ('{"a":' * depth, "}" * depth))
    ask(owner, "PUT", path + "/wide", {"n": 2, "many": {f"f{k}": k for k in range(50_000)}, "list": list(range(100_000))}, timeout=60)
    ask(owner, "PUT", path + "/long", {"n": 3, "text": "xa b" * 700_000}, timeout=60)
    for fields in (["n"], ["type", "n"], ["text"]):
        ask(owner, "POST", path + "/_index", {"index": {"fields": fields}}, timeout=60)
    return path


def heavy(server, rng):
    """Clients without a name ask what they like, wait for it or leave."""
    owner = tenants(server, "olga")[0]
    owner.name = "olga"
    path = public(server, owner)
    strangers = [Tenant(server, address=f"127.0.1.{at + 1}") for at in range(100)]

    def work(rng, at):
        kind, where, body = query(rng)
        answer = ask(strangers[rng.randrange(100)], "POST", path + where, body, timeout=rng.choice((0.2, 3, 40, 40)))
        return f"{kind} {answer.status} {answer.get('error') or ''}" if answer.status else "left"

    # A query that takes too long may be refused; an answer of 500 is the server's fault.
    wrong = lambda result: result if result == "hung" or " 500 " in result else None
    for name, workers in (("12 strangers", 12), ("150 strangers", 150)):
        yield from beside(server, f"queries of {name}", late(lambda: judged(name, flood(workers, 20, work, rng.random()), wrong)))
        yield from at_rest(server, f"queries of {name}")


def right(server, rng):
    """What one finds beside the load is what one finds alone, index or none."""
    owner = tenants(server, "olga")[0]
    owner.name = "olga"
    path = public(server, owner)
    strangers = [Tenant(server, address=f"127.0.1.{at + 1}") for at in range(100)]
    cases = []
    for n in range(60):
        asked = {"selector": {"n": {"$gte": n * 20, "$lt": n * 20 + 40}, "type": f"t{n % 7}"}, "limit": 100, "fields": ["_id"]}
        cases.append((asked, sorted(f"d{k:05}" for k in range(n * 20, n * 20 + 40) if k % 7 == n % 7)))

    def work(rng, at):
        if at % 3:
            kind, where, body = query(rng)
            return f"load {ask(strangers[at % 100], 'POST', path + where, body, timeout=3).status}"
        asked, expected = rng.choice(cases)
        if rng.random() < 0.3:
            asked = {**asked, "use_index": rng.choice((["nothing"], "_design/nothing"))}
        answer = ask(strangers[at % 100], "POST", path + "/_find", asked, timeout=60)
        if answer.status != 200:
            return f"asked {answer.status}"
        found = sorted(doc["_id"] for doc in answer.get("docs", []) if doc["_id"].startswith("d0"))
        return "right" if found == expected else f"WRONG {json.dumps(asked)[:150]}: {found[:5]}"

    wrong = lambda result: result if result == "hung" or result.startswith("WRONG") or result in ("asked 500", "load 500", "asked 0") else None
    yield from beside(server, "right answers beside queries", late(lambda: judged("right", flood(30, 15, work, rng.random()), wrong)))
    yield from at_rest(server, "right answers beside queries")


SCALARS = (None, False, True, 0, -1, 1, 1.5, 1e300, -(2**60), 2**60 + 1, "", "a", "A", "b", "ä", "\u1e9e", "\U0001f4a9", "\0", "z" * 90, [], [1], [1, 2], ["a", None], {}, {"a": 1}, {"a": {"b": 1}}, "1", "null")


def light(rng, depth=2):
    """A selector of any operators that costs little."""
    if depth and rng.random() < 0.4:
        parts = [light(rng, depth - 1) for _ in range(rng.randrange(4))]
        return {rng.choice(("$or", "$and", "$nor")): parts} if rng.random() < 0.8 else {"$not": light(rng, depth - 1)}
    return {rng.choice(("v", "v", "n", "type", "w", "w.0", "w.a", "o.x", "o.x.y", "_id", "none")): condition(rng, 2) for _ in range(rng.choice((1, 1, 2, 3)))}


def condition(rng, depth):
    kind, value = rng.randrange(16), rng.choice(SCALARS)
    if kind < 5:
        return {rng.choice(("$eq", "$ne", "$gt", "$gte", "$lt", "$lte")): value}
    if kind == 5:
        return value
    if kind == 6:
        return {rng.choice(("$in", "$nin", "$all")): rng.sample(SCALARS, rng.randrange(5))}
    if kind == 7:
        return {"$gte": value, "$lt": rng.choice(SCALARS)}
    if kind == 8:
        return {"$exists": rng.random() < 0.5}
    if kind == 9:
        return {"$type": rng.choice(("null", "boolean", "number", "string", "array", "object"))}
    if kind == 10:
        return {"$size": rng.randrange(3)}
    if kind == 11:
        return {"$mod": [rng.choice((1, 2, 3, -3)), rng.randrange(3)]}
    if kind == 12:
        return {rng.choice(("$regex", "$beginsWith")): rng.choice(("", "a", "^a", "[aA]$", "\u00e4", "z{9}"))}
    if kind == 13 and depth:
        return {rng.choice(("$elemMatch", "$allMatch")): rng.choice((condition(rng, 0), {"a": condition(rng, 0)}))}
    if kind == 14 and depth:
        return {"$not": condition(rng, depth - 1)}
    return {"$keyMapMatch": {"$eq": rng.choice(("a", "b"))}}


def same(server, rng):
    """A query finds the same with indexes and without, whatever it asks: by any operator with any argument, and page by page."""
    owner = tenants(server, "olga")[0]
    paths = [owned(server, "olga", name, public=True) for name in ("indexed", "plain")]
    docs = [{"_id": f"d{n:03}", "n": n % 17, "type": f"t{n % 5}", "w": rng.choice(([], [1, "a", n], {"a": n}, "w")), "o": {"x": rng.choice((n, {"y": n}, None))}} for n in range(300)]
    for n, doc in enumerate(docs):
        if n % 11:
            doc["v"] = rng.choice(SCALARS)
    for fields, more in ((["n"], {}), (["type", "n"], {}), (["v"], {}), (["v", "n"], {"partial_filter_selector": {"type": {"$gt": "t2"}}}), (["w.0"], {}), ([{"o.x": "desc"}], {})):
        ask(owner, "POST", paths[0] + "/_index", {"index": {"fields": fields, **more}}, timeout=60)
    for path in paths:
        bulk(owner, path, docs)
    strangers = [Tenant(server, address=f"127.0.1.{at + 1}") for at in range(20)]

    def found(path, by, body):
        """Ids of all pages, and the statuses that were answered."""
        ids, statuses, bookmark = [], [], None
        for _ in range(12):
            answer = ask(by, "POST", path + "/_find", {**body, **({"bookmark": bookmark} if bookmark else {})}, timeout=60)
            statuses.append((answer.status, answer.get("error")))
            more = [doc["_id"] for doc in answer.get("docs", [])]
            ids += more
            if len(more) < body["limit"]:
                break
            bookmark = answer.get("bookmark")
        return sorted(ids), statuses[0]

    used = 0
    for at in range(700):
        body = {"selector": light(rng), "limit": rng.choice((50, 1_000)), "fields": ["_id"]}
        by = strangers[at % 20]
        if rng.random() < 0.15:
            body["use_index"] = rng.choice(("none", "_design/none", ["none", "x"]))
        indexed, plain = (found(path, by, body) for path in paths)
        used += ask(by, "POST", paths[0] + "/_explain", body).get("index", {}).get("type") == "json"
        name = f"{json.dumps(body['selector'])[:150]}"
        yield name, None if indexed == plain else f"{len(indexed[0])} {indexed[1]} with indexes, {len(plain[0])} {plain[1]} without: {sorted(set(indexed[0]) ^ set(plain[0]))[:5]}"
        yield name + ": each once", None if len(set(indexed[0])) == len(indexed[0]) else "a document is found twice"
        yield name + ": status", None if indexed[1][0] in (200, 400) else str(indexed[1])
    print(f"    {used} of 700 queries used an index", flush=True)
    yield "indexes are used", None if used > 50 else f"{used} of 700"
    yield from at_rest(server, "the same with indexes and without")


for group in (heavy, right, same):
    group.longest_wait = 30

GROUPS = (heavy, right, same)
