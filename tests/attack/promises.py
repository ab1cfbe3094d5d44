"""What is promised of writes, under conditions that once broke it: `_security` as of now, bodies of ancestors, documents that can
always be edited, deleted, compacted and purged."""

from asking import ask, bulk, checked, database, equal, holds, segment, short, step, wait_for, wrong

BY_SECURITY = "function(doc, old, user, security) { if (security.closed) throw({forbidden: 'closed'}) }"


def security_as_of_now(server, rng):
    """A write after the answer to `PUT _security` is judged by what was put."""
    path = database(server, "fenced")
    ask(server, "PUT", path + "/_design/v", {"validate_doc_update": BY_SECURITY})
    for turn in range(60):
        closed = rng.random() < 0.5
        yield step(server, f"_security {turn}", "PUT", path + "/_security", {"closed": closed}, statuses={200})
        for what, answer in (("PUT", ask(server, "PUT", f"{path}/p{turn}", {})),
                             ("a replica", ask(server, "PUT", f"{path}/r{turn}?new_edits=false", {"_rev": "1-a"})),
                             ("an attachment", ask(server, "PUT", f"{path}/a{turn}/x", b"x"))):
            yield f"{what} {turn}, closed: {closed}", wrong(answer, {403} if closed else {201})
        rows = bulk(server, path, [{"_id": f"b{turn}"}]).json
        yield equal(f"_bulk_docs {turn}, closed: {closed}", "error" in rows[0], closed)
        if rng.random() < 0.3:
            design = ask(server, "GET", path + "/_design/v")
            source = BY_SECURITY if rng.random() < 0.5 else "function() { throw({forbidden: 'never'}) }"
            ask(server, "PUT", path + "/_design/v", {"_rev": design.get("_rev"), "validate_doc_update": source})
            refuses = closed or source != BY_SECURITY
            yield f"a function is of now, {turn}", wrong(
                ask(server, "PUT", f"{path}/f{turn}", {}), {403} if refuses else {201}
            )
            ask(
                server, "PUT", path + "/_design/v",
                {"_rev": ask(server, "GET", path + "/_design/v").get("_rev"), "validate_doc_update": BY_SECURITY}
            )
    yield from checked(server, "fenced")


def bodies_of_ancestors(server, rng):
    """A replicated revision that comes after its child can be read until compaction."""
    path = database(server, "ancestors")
    for case in range(20):
        depth = rng.randrange(2, 7)
        line = [f"{n:x}" for n in range(depth)]
        docs = [{
            "_id": f"d{case}", "_rev": f"{at + 1}-{line[at]}", "_revisions": {"start": at + 1, "ids": line[at::-1]},
            "n": at
        } for at in range(depth)]
        for doc in rng.sample(docs, depth):
            bulk(server, path, [doc], False)
        for doc in docs:
            found = ask(server, "GET", f"{path}/d{case}?rev={doc['_rev']}")
            yield equal(f"case {case}: {doc['_rev']}", found.get("n"), doc["n"])
        info = ask(server, "GET", f"{path}/d{case}?revs_info=true").get("_revs_info", [])
        yield equal(f"case {case}: all are available", {row["status"] for row in info}, {"available"})
    yield from checked(server, "ancestors")


def never_stuck(server, rng):
    """Documents with long histories, many branches and many attachments."""
    path = database(server, "stuck")
    attachments = {f"attachment {n}": {"data": "eA==", "content_type": "text/plain"} for n in range(400)}
    rev = None
    for turn in range(60):
        body = {"_attachments": attachments if not turn else {name: {"stub": True} for name in attachments}, "n": turn}
        answer = ask(server, "PUT", path + "/attached", {**body, **({"_rev": rev} if rev else {})}, timeout=60)
        yield f"edit {turn} with 400 attachments", wrong(answer, 201, 30)
        rev = answer.get("rev", rev)
    id, long = "branches " + "i" * 1_900, []
    for branch in range(4):
        # Of 32 bytes they would have to be hexadecimal.
        line = [f"{branch:x}{n:04x}" + "h" * 26 for n in range(460)]
        long.append({"_id": id, "_rev": f"460-{line[0]}", "_revisions": {"start": 460, "ids": line}})
    yield "branches of 460", wrong(bulk(server, path, long, False), 201)
    yield step(server, "limit of 1", "PUT", path + "/_revs_limit", "1", statuses={200})
    for name in ("attached", id):
        for turn in range(3):
            rev = ask(server, "GET", f"{path}/{segment(name)}").get("_rev")
            yield step(
                server,
                f"edit {short(name, 10)} under it {turn}",
                "PUT",
                f"{path}/{segment(name)}", {"_rev": rev, "n": turn},
                statuses={201},
                within=30
            )
    yield step(server, "compaction", "POST", path + "/_compact", {}, statuses={202})
    yield holds("it ends", wait_for(lambda: ask(server, "GET", path).get("compact_running") is False, 60))
    for name in ("attached", id):
        leaves = ask(
            server, "GET", f"{path}/{segment(name)}?open_revs=all", headers={"accept": "application/json"}
        ).json
        revs = [row["ok"]["_rev"] for row in leaves]
        yield step(
            server,
            f"deletion {short(name, 10)}",
            "DELETE",
            f"{path}/{segment(name)}?rev={revs[0]}",
            statuses={200},
            within=30
        )
        leaves = ask(
            server, "GET", f"{path}/{segment(name)}?open_revs=all", headers={"accept": "application/json"}
        ).json
        answer = ask(server, "POST", path + "/_purge", {name: [row["ok"]["_rev"] for row in leaves]}, timeout=60)
        yield f"purge {short(name, 10)}", wrong(answer, 201, 30)
        yield step(server, f"it is gone {short(name, 10)}", "GET", f"{path}/{segment(name)}", statuses={404})
    yield from checked(server, "stuck")


def many_edits_of_one(server, rng):
    """What an edit costs does not grow with the branches that its document has, or not so that a small request takes long."""
    path = database(server, "wide")

    def edits(begin, count):
        docs = [{"_id": "d", "_rev": f"2-{n:x}", "_revisions": {"start": 2, "ids": [f"{n:x}", "r"]}}
                for n in range(begin, begin + count)]
        before = server.processor()
        answer = ask(server, "POST", path + "/_bulk_docs", {"docs": docs, "new_edits": False}, timeout=100)
        return answer, server.processor() - before

    first, first_cost = edits(0, 500)
    yield "500 branches", wrong(first, 201, 20)
    for begin in range(500, 5_000, 1_500):
        yield f"branches from {begin}", wrong(edits(begin, 1_500)[0], 201, 60)
    last, last_cost = edits(5_000, 500)
    yield "500 branches more", wrong(last, 201, 20)
    yield holds(
        "they cost about what the first did", last_cost < 4 * first_cost + 0.5,
        f"{last_cost:.1f} s of processor, the first {first_cost:.1f}"
    )
    sent = server.connect()
    body = ('{"new_edits":false,"docs":[%s]}' % ",".join('{"_id":"d","_rev":"3-%x"}' % n
                                                         for n in range(20_000))).encode()
    sent.sendall(
        f"POST {path}/_bulk_docs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        .encode() + body
    )
    sent.close()
    yield holds(
        "a request of 600 kB whose client has gone ends soon", server.is_idle(20, 0.3),
        "the processor is busy with nobody waiting"
    )
    yield from checked(server, "wide")


never_stuck.longest_wait = many_edits_of_one.longest_wait = 10.0

GROUPS = (security_as_of_now, bodies_of_ancestors, never_stuck, many_edits_of_one)
