"""Ids of documents, local and design documents, and names of databases, in every form and encoding."""

from asking import ANY, REFUSED, ask, bulk, checked, database, equal, holds, segment, short, step, wrong

TAKEN = (
    "a", " ", "  x ", "\t", "\n", "\r\n", "\x00", "a\x00b", "\x00\x00", "\x01", "\x7f", "\x80", "\x9f", "\ufeff",
    "\ufffe", "\uffff", "\U0010ffff", "\u2028", "\u202e", "e\u0301", "\u00e9", "\U0001f600", "\u0130", "%", "%41",
    "%2F", "%00", "%ff", "+", "a+b", "a b", "/", "a/b", "//", "a//b", "/a", "a/", ".", "..", "../x", "./x", "a/../b",
    "\\", "a\\b", "\"", "'", "`", "<script>", "${x}", "{{x}}", "{", "}", "[", "]", "null", "true", "0", "-1", "1e3",
    "NaN", "?", "a?b", "#", "a#b", "&", "a=b", ";", "a;b", ":", "@", "!", "*", "(", ")", ",", "~", "^", "|", "$", "=",
    "-", "a_", "a_design/b", "\u00ff_design/x", "org.couchdb.user:x", "Design/x", " _design/x", "x" * 2048,
    "\u00e9" * 1024, "\x00" * 2048, "\xff" * 1024, "a" * 255, "\u0000\u0001\u0002\ufffd", "\U0010fffd" * 512,
)
NOT_TAKEN = (
    "_", "__", "_x", "_all_docs", "_changes", "_bulk_docs", "_design", "_design/", "_designx/a", "_Design/x", "_local",
    "_local/", "_LOCAL/x", "_security", "_x/y", "_\x00", "_ ", "x" * 2049, "\u00e9" * 1025, "x" * 9_990, "x" * 10_001,
    "x" * 40_000,
)


def documents(server, rng):
    path = database(server, "ids")
    other = database(server, "ids-bulk")
    for id in TAKEN:
        name, at = short(repr(id)), f"{path}/{segment(id)}"
        written = ask(server, "PUT", at, {"n": 1})
        # In a path a dot or two as a segment may be resolved by whoever is between, not by the server.
        yield f"PUT {name}", wrong(written, 201)
        yield equal(f"GET {name}", ask(server, "GET", at).get("_id"), id)
        yield equal(
            f"_bulk_docs {name}", [row.get("id") for row in bulk(server, other, [{"_id": id}]).json or []], [id]
        )
        yield equal(f"its rev is the same {name}", ask(server, "GET", at).get("_rev"), written.get("rev"))
        key = ask(server, "POST", other + "/_all_docs", {"keys": [id]})
        yield equal(f"_all_docs {name}", [row.get("id") for row in key.get("rows", [])], [id])
        ids = ask(server, "POST", other + "/_changes?filter=_doc_ids", {"doc_ids": [id]})
        yield equal(f"_changes {name}", [row.get("id") for row in ids.get("results", [])], [id])
    for id in NOT_TAKEN:
        name = short(repr(id))
        if len(id) < 40_000 and id != "_security":
            yield step(server, f"PUT {name}", "PUT", f"{path}/{segment(id)}", {}, statuses=REFUSED)
            yield step(server, f"GET {name}", "GET", f"{path}/{segment(id)}")
            yield step(server, f"DELETE {name}", "DELETE", f"{path}/{segment(id)}", statuses=REFUSED)
            yield step(
                server, f"COPY to {name}", "COPY", path + "/a", headers={"destination": segment(id)}, statuses=REFUSED
            )
            yield step(server, f"attachment {name}", "PUT", f"{path}/{segment(id)}/file", b"x", statuses=REFUSED)
        answer = bulk(server, other, [{"_id": id}])
        rows = answer.json if isinstance(answer.json, list) else []
        refused = wrong(answer, REFUSED) is None or (answer.status == 201 and all("error" in row for row in rows))
        is_local = id == "_local/"
        yield holds(f"_bulk_docs {name}", refused or is_local and answer.status == 201, answer.text[:200])
        for what, body in (("_all_docs", {"keys": [id]}), ("_bulk_get", {"docs": [{"id": id}]}),
                           ("_bulk_get", {"docs": [{"id": id, "rev": "1-a"}]
                                          }), ("_revs_diff", {id: ["1-a"]}), ("_missing_revs", {id: ["1-a"]}),
                           ("_purge", {id: ["1-a"]}), ("_changes?filter=_doc_ids", {"doc_ids": [id]}),
                           ("_local_docs", {"keys": [id]}), ("_design_docs", {"keys": [id]}),
                           ):
            yield step(server, f"{what} {name}", "POST", f"{other}/{what}", body)
    for what in ("key", "startkey", "endkey", "start_key_doc_id"):
        for id in ("x" * 3_000, "x" * 11_000, "\uffff" * 3_000, "\x00" * 5_000):
            yield step(
                server, f"_all_docs?{what}={short(id, 5)}", "GET", f"{path}/_all_docs?{what}=%22{segment(id)}%22"
            )
            yield step(
                server, f"_local_docs?{what}={short(id, 5)}", "GET", f"{path}/_local_docs?{what}=%22{segment(id)}%22"
            )
    yield from checked(server, "ids", "ids-bulk")


def of_local_documents(server, rng):
    path = database(server, "local-ids")
    for id in (
        "a", "a/b", "/", "//", "\x00", "_local/a", "_local/_local/a", "_design/x", "_x", " ", "\uffff", "x" * 2048,
        "%2F"
    ):
        name = short(repr(id))
        at = f"{path}/_local/{segment(id)}"
        yield step(server, f"PUT {name}", "PUT", at, {"of": id}, statuses={201})
        yield equal(f"GET {name}", ask(server, "GET", at).get("of"), id)
        yield equal(f"its id {name}", ask(server, "GET", at).get("_id"), "_local/" + id)
    listed = {row["id"] for row in ask(server, "GET", path + "/_local_docs").get("rows", [])}
    yield holds(
        "each of them is listed", {"_local/a", "_local/_local/a", "_local/_local/_local/a"} <= listed,
        short(str(listed), 300)
    )
    # One id is one document, whichever way it comes.
    other = database(server, "local-bulk")
    for way, write in (("_bulk_docs", lambda id, of: bulk(server, other, [{"_id": id, "of": of}])),
                       ("POST", lambda id, of: ask(server, "POST", other, {"_id": id, "of": of})),
                       ("an encoded slash", lambda id, of: ask(server, "PUT", f"{other}/{segment(id)}", {"of": of})),
                       ):
        ask(server, "PUT", other + "/_local/victim", {"of": "victim"})
        write("_local/_local/victim", way)
        found = ask(server, "GET", other + "/_local/victim").get("of")
        yield equal(f"{way}: _local/_local/victim is not _local/victim", found, "victim")
    for id in (
        "_local/" + "x" * 2049, "_local/" + "x" * 9_000, "_local/" + "x" * 12_000, "_local/" + "x" * 200_000,
        "_local/_local/", "_local//", "_local/", "_local"
    ):
        for way, ask_for in (("_bulk_docs", lambda: bulk(server, other, [{"_id": id, "a": 1}])), (
            "_bulk_docs deleted", lambda: bulk(server, other, [{"_id": id, "_deleted": True}])
        ), ("_bulk_docs new_edits=false", lambda: bulk(server, other, [{"_id": id, "_rev": "0-1"}], False)),
                             ("POST", lambda: ask(server, "POST", other, {"_id": id, "a": 1}))):
            answer = ask_for()
            rows = answer.json if isinstance(answer.json, list) else [answer.json or {}]
            broken = [row for row in rows if row.get("error") in ("internal_server_error", "service_unavailable")]
            yield f"{way} {short(id, 20)}", wrong(answer) or (str(broken)[:200] if broken else None)
    for rev in (
        "0-18446744073709551615", "0-18446744073709551616", "0--1", "0-", "1-1", "0-0", "0-1e3", "x", "0-" + "9" * 400,
        1, None
    ):
        yield step(server, f"local _rev {rev!r}", "PUT", path + "/_local/revs", {"_rev": rev})
    for body in (
        b"[]", b"1", b"", b"null", b'{"_attachments":{"a":{"data":"aGk="}}}', b'{"_deleted":1}', b'{"_x":1}',
        b'{"a":"' + b"x" * 899_000 + b'"}', b'{"a":"' + b"x" * 901_000 + b'"}', b'{"a":"' + b"x" * 9_000_000 + b'"}'
    ):
        yield step(server, f"local body {short(body, 30)}", "PUT", path + "/_local/body", body)
    for method in ("POST", "PATCH", "COPY", "OPTIONS", "DELETE", "HEAD"):
        yield step(server, f"{method} of a local document", method, path + "/_local/none")
        yield step(server, f"{method} behind a local document", method, path + "/_local/none/file")
    yield from checked(server, "local-ids", "local-bulk")


def encodings_of_paths(server, rng):
    path = database(server, "paths")
    ask(server, "PUT", path + "/a", {})
    pieces = (
        "%", "%0", "%zz", "%u0041", "%00", "%ff", "%c0%80", "%ed%a0%80", "%f4%90%80%80", "%f8%88%80%80%80", "%e2%82",
        "%80", "%2F", "%2f", "%252F", "%5C", "%2e%2e", "..", ".", "%20", "%0d%0a", "%0D%0AX:%20y", "%3F", "%23", "%25",
        "%%", "a%", "a%4", ";a=b", "a,b", "~", "%F0%9F%98%80", "\\", "|", "^", "`", "{}", "[]", "<>", "\"", "'", "%7f",
        "@", "*", "_design%2fx", "_design%2Fx%2Fy", "_DESIGN%2Fx", "_local%2fx", "_local%2F", "_local", "_design",
        "%5f", "%5Fall_docs", "_all%5fdocs", "_all_docs%00", "_all_docs%20", "_all_docs/", "_all_docs/x", "_changes/x",
        "_bulk_docs/x", "_security/x"
    )
    for piece in pieces:
        for where in (
            f"/{piece}", f"{path}/{piece}", f"{path}/a/{piece}", f"{path}/_design/{piece}", f"{path}/_local/{piece}",
            f"/{piece}/a", f"{path}/_design/x/{piece}", f"{path}/_design/x/_view/{piece}", f"{path}/a?rev={piece}",
            f"{path}/_all_docs?startkey={piece}", f"{path}/_changes?since={piece}"
        ):
            method = rng.choice(("GET", "GET", "HEAD", "PUT", "DELETE", "COPY"))
            body = b"{}" if method == "PUT" else None
            answer = ask(server, method, where, body)
            # What no path may hold the HTTP library refuses, in its own form.
            is_no_path = any(character in where for character in "\"<>`{}|^ ")
            yield f"{method} {where}", None if is_no_path and answer.status == 400 else wrong(answer, ANY, 10, method)


def databases(server, rng):
    good = ("a", "a0", "a_", "a$", "a(", "a)", "a+", "a-", "a/", "a/b", "a//b", "a" * 238, "a/b/c/d", "zz(x)$+-_/")
    bad = (
        "", "A", "aB", "0a", "_a", "-a", "$a", "a.b", "a b", "a%", "a?", "a#", "a\x00", "a\n", "a\n\n", "\u00e9",
        "a\u00e9", "a:b", "a;b", "a@b", "a*", "a'", "a\"", "a\\", "..", "../a", "a" * 239, "a" * 10_000, "metrics",
        "_all_dbs", "_up", "_node", "_x", "_Users", "_users/", "_users ", "_replicator/x", "_global_changes2", "\uff41",
        "a\x7f", "a,b", "a&b", "a=b", "a!"
    )
    for name in good:
        at = "/" + segment(name)
        yield step(server, f"PUT {short(name)}", "PUT", at, statuses={201})
        yield equal(f"its name {short(name)}", ask(server, "GET", at).get("db_name"), name)
        yield step(server, f"PUT again {short(name)}", "PUT", at, statuses={412})
    listed = ask(server, "GET", "/_all_dbs").json
    yield holds("all are listed", set(good) <= set(listed or []), str(listed)[:200])
    for name in good:
        yield step(server, f"DELETE {short(name)}", "DELETE", "/" + segment(name), statuses={200})
        yield step(server, f"GET when it is gone {short(name)}", "GET", "/" + segment(name), statuses={404})
    for name in bad:
        yield step(server, f"PUT {short(repr(name))}", "PUT", "/" + segment(name), statuses=REFUSED)
        yield step(server, f"GET {short(repr(name))}", "GET", "/" + segment(name))
        if name:
            yield step(server, f"document in {short(repr(name))}", "PUT", f"/{segment(name)}/x", {}, statuses=REFUSED)
        for what in ("_all_docs", "_changes", "_security", "_local/x", "_design/x"):
            yield step(server, f"{what} in {short(repr(name))}", "GET", f"/{segment(name)}/{what}")
    for query in (
        "q=0", "q=-1", "q=x", "q=99999", "n=0", "n=1e1", "partitioned=true", "partitioned=x", "run_bytes=60001",
        "run_bytes=-1", "run_bytes=99999999999", "run_bytes=x", "field_ids_max=0", "field_ids_max=99999999999",
        "field_ids_max=-1", "revision_bodies=", "revision_bodies=x", "=", "&&&", "%ff=1", "q=%ff", "q=8&q=0",
        "a" * 5_000, "&".join(["q=1"] * 101)
    ):
        ask(server, "DELETE", "/options")
        yield step(server, f"PUT ?{short(query)}", "PUT", "/options?" + query)
    left = set(ask(server, "GET", "/_all_dbs").json or []) - {"options", "db", "innocent", "paths"}
    yield holds("nothing else was made", not {name for name in left if name in bad}, str(left)[:200])


GROUPS = (documents, of_local_documents, encodings_of_paths, databases)
