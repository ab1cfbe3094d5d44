"""Revision ids and revision trees fed with nonsense: contradictory paths, cycles, gaps, huge generations, strange hashes."""

from asking import REFUSED, ask, bulk, checked, database, equal, holds, segment, short, step, wrong

REVS = (
    "", "-", "1", "1-", "-1", "-a", "0-a", "0-0", "1-a", "01-a", "1--a", "1-a-b", "+1-a", " 1-a", "1-a ", "1 -a",
    "1-\n", "1-\x00", "1-\u00e9", "1-\U0001f600", "1-\\", "1-\"", "1-]", "1-,", "1-%", "1-/", "1-a/b", "1e1-a", "0x1-a",
    "1.0-a", "-1-a", "9007199254740991-a", "9007199254740992-a", "9007199254740993-a", "9223372036854775807-a",
    "9223372036854775808-a", "18446744073709551616-a", "9" * 16 + "-a", "9" * 17 + "-a", "9" * 500 + "-a", "1-" +
    "a" * 32, "1-" + "A" * 32, "1-" + "g" * 32, "1-" + "a" * 31, "1-" + "a" * 33, "1-" + "a" * 512, "1-" + "a" * 513,
    "1-" + "a" * 20_000, "1-" + "0" * 32, "1-" + "f" * 32, "null", "true", "[]", "{}", "\u0661-a", "1\u2013a",
)


def ids_of_revisions(server, rng):
    path = database(server, "revs")
    ask(server, "PUT", path + "/d", {"n": 1})
    for rev in REVS:
        name, text = short(repr(rev), 30), segment(rev)
        for what, method, at, body, headers in (
            ("GET ?rev", "GET", f"/d?rev={text}", None,
             {}), ("GET ?rev&latest", "GET", f"/d?rev={text}&latest=true", None, {}),
            ("GET open_revs", "GET", "/d?open_revs=" + segment(f'["{rev}"]'), None, {"accept": "application/json"}),
            ("GET atts_since", "GET", "/d?atts_since=" + segment(f'["{rev}"]'), None,
             {}), ("PUT _rev", "PUT", "/d", {"_rev": rev, "n": 2} if rev else {"n": 2},
                   {}), ("PUT ?rev", "PUT", f"/d?rev={text}", {"n": 2},
                         {}), ("DELETE ?rev", "DELETE", f"/nothing?rev={text}", None,
                               {}), ("COPY ?rev", "COPY", f"/d?rev={text}", None, {"destination": "copy"}),
            ("COPY onto", "COPY", "/d", None, {"destination": f"copy2?rev={text}"}), (
                "new_edits=false", "POST", "/_bulk_docs",
                {"docs": [{"_id": "of-replica", "_rev": rev}], "new_edits": False}, {}
            ), ("PUT new_edits=false", "PUT", "/of-replica2?new_edits=false", {"_rev": rev},
                {}), ("_revs_diff", "POST", "/_revs_diff", {"d": [rev]},
                      {}), ("_missing_revs", "POST", "/_missing_revs", {"d": [rev]},
                            {}), ("_purge", "POST", "/_purge", {"nothing": [rev]},
                                  {}), ("_bulk_get", "POST", "/_bulk_get", {"docs": [{"id": "d", "rev": rev}]}, {}),
            ("attachment", "PUT", f"/att?rev={text}", b"x", {}), ("local", "PUT", "/_local/x", {"_rev": rev}, {}),
        ):
            if len(text) < 40_000 or not text or "rev" not in at:
                yield step(server, f"{what} {name}", method, path + at, body, headers)
        if "\n" not in rev and "\x00" not in rev and rev.isascii() and len(rev) < 30_000:
            yield step(server, f"If-Match {name}", "PUT", path + "/d", {"n": 3}, {"if-match": f'"{rev}"'})
            yield step(server, f"If-None-Match {name}", "GET", path + "/d", None, {"if-none-match": f'"{rev}"'})
    yield from checked(server, "revs")


def shapes_of_revisions(server, rng):
    path = database(server, "shapes")
    shapes = (
        None, 1, "x", [], {}, {"start": 1}, {"ids": ["a"]}, {"start": 1, "ids": []}, {"start": 1, "ids": "a"},
        {"start": 1, "ids": {}}, {"start": 1, "ids": [1]}, {"start": 1, "ids": [None]}, {"start": 1, "ids": [["a"]]},
        {"start": "1", "ids": ["a"]}, {"start": -1, "ids": ["a"]}, {"start": 0, "ids": ["a"]}, {"start": 0, "ids": []},
        {"start": 1.5, "ids": ["a"]}, {"start": 1.0, "ids": ["a"]}, {"start": 1e300,
                                                                     "ids": ["a"]}, {"start": 2**53, "ids": ["a", "b"]},
        {"start": 2**53 + 1,
         "ids": ["a"]}, {"start": 2**63, "ids": ["a"]}, {"start": 2**64,
                                                         "ids": ["a"]}, {"start": 10**400,
                                                                         "ids": ["a"]}, {"start": 1, "ids": ["a", "b"]},
        {"start": 2, "ids": ["a", "b", "c"]}, {"start": 2, "ids": ["a", "a"]}, {"start": 3, "ids": ["a", "b", "a"]}, {
            "start": 3, "ids": ["a", "a", "a"]
        }, {"start": 2, "ids": ["", "a"]}, {"start": 2, "ids": ["a",
                                                                ""]}, {"start": 5,
                                                                       "ids": ["a"]}, {"start": 5, "ids": ["x" * 513]},
        {"start": 2,
         "ids": ["\x00", "\uffff"]}, {"start": True,
                                      "ids": ["a"]}, {"start": [1],
                                                      "ids": ["a"]}, {"start": None,
                                                                      "ids": None}, {"start": 3, "ids": ["a", "b", 1]},
        {"start": 10_000, "ids": [f"{n:x}" for n in range(10_000)]
         }, {"start": 20_000, "ids": [f"{n:x}" for n in range(20_000)]
             }, {"start": 1000,
                 "ids": ["h" * 512] * 999}, {"start": 2_000_000,
                                             "ids": ["h"] * 1_000_000}, {"start": 2, "ids": ["A" * 32, "a" * 32]
                                                                         }, {"x": 1, "start": 2, "ids": ["q"]},
    )
    for at, shape in enumerate(shapes):
        for rev in (None, "1-a", "2-a", "7-zzz"):
            doc = {"_id": f"d{at}", "_revisions": shape, "n": at}
            if rev:
                doc["_rev"] = rev
            for new_edits in (True, False):
                what = f"_rev {rev}, _revisions {short(str(shape), 40)}, new_edits {new_edits}"
                yield step(
                    server, what, "POST", path + "/_bulk_docs", {"docs": [doc], "new_edits": new_edits}, within=15
                )
        yield step(
            server, f"PUT {short(str(shape), 40)}", "PUT", f"{path}/p{at}?new_edits=false",
            {"_rev": "3-c", "_revisions": shape}
        )
        for query in ("?conflicts=true&revs_info=true", "?open_revs=all", "?revs=true&open_revs=all&latest=true"):
            yield step(
                server,
                f"read {query} {short(str(shape), 40)}",
                "GET",
                f"{path}/d{at}{query}",
                headers={"accept": "application/json"}
            )
    yield from checked(server, "shapes")


def path_of(rng, hashes, depth, start_max):
    """A path that may have nothing to do with any other: newest first."""
    start = rng.randrange(1, start_max)
    return start, [rng.choice(hashes) for _ in range(min(start, rng.randrange(1, depth)))]


def leaves_of(server, doc):
    answer = ask(server, "GET", doc + "?open_revs=all&revs=true", headers={"accept": "application/json"})
    return [row["ok"] for row in answer.json or [] if "ok" in row]


def bytes_of(digest):
    """The bytes of a revision's hash that CouchDB compares: those of 32 digits, or the text's own."""
    return bytes.fromhex(digest) if len(digest) == 32 else digest.encode()


def contradictory_trees(server, rng):
    """Random paths over few hashes, so that the same revision has several parents, is its own ancestor's hash, and comes
    before and after its children. Whatever is made of it: what was written is known, what is a leaf can be read, and the
    stored keys agree with each other."""
    path = database(server, "trees")
    for case in range(60):
        hashes = [rng.choice("abcdef") * rng.choice((1, 1, 32, 5)) for _ in range(rng.randrange(1, 6))]
        doc, written = f"t{case}", set()
        ask(server, "PUT", path + "/_revs_limit", "1000")
        for _ in range(rng.randrange(2, 25)):
            start, ids = path_of(rng, hashes, 7, 9)
            edit = {
                "_id": doc, "_rev": f"{start}-{ids[0]}", "_revisions": {"start": start, "ids": ids}, "n": rng.random()
            }
            if rng.random() < 0.25:
                edit["_deleted"] = True
            if rng.random() < 0.15:
                edit["_attachments"] = {
                    "a": {"data": "aGVsbG8=", "content_type": "text/plain", "revpos": rng.randrange(0, 12)}
                }
            answer = bulk(server, path, [edit], False)
            if answer.status != 201:
                yield f"tree {case}", wrong(answer, 201)
            elif answer.json == []:
                written.add(edit["_rev"])
        missing = ask(server, "POST", path + "/_revs_diff", {doc: sorted(written)}).json
        yield equal(f"tree {case}: what was written is known", missing, {})
        leaves = leaves_of(server, f"{path}/{doc}")
        yield holds(f"tree {case}: it has leaves", len(leaves) > 0)
        yield equal(f"tree {case}: each leaf once", len({leaf["_rev"] for leaf in leaves}), len(leaves))
        for leaf in leaves:
            ids, start = leaf["_revisions"]["ids"], leaf["_revisions"]["start"]
            yield equal(
                f"tree {case}: {short(leaf['_rev'], 20)} begins its own path", f"{start}-{ids[0]}", leaf["_rev"]
            )
            read = ask(server, "GET", f"{path}/{doc}?rev={leaf['_rev']}")
            yield f"tree {case}: {short(leaf['_rev'], 20)} can be read", wrong(read, 200)
        alive = [leaf for leaf in leaves if not leaf.get("_deleted")] or leaves
        best = max(alive, key=lambda leaf: (leaf["_revisions"]["start"], bytes_of(leaf["_revisions"]["ids"][0])))["_rev"]
        winner = ask(server, "GET",
                     f"{path}/_changes?filter=_doc_ids&doc_ids=" + segment(f'["{doc}"]')).get("results", [])
        yield equal(f"tree {case}: the winner", [row["changes"][0]["rev"] for row in winner], [best])
        change = rng.choice(("edit", "purge", "delete", "compact", "limit", "nothing"))
        if change == "edit":
            yield step(
                server, f"tree {case}: edit", "PUT", f"{path}/{doc}", {"_rev": rng.choice(leaves)["_rev"], "x": 1}
            )
        elif change == "purge":
            revs = [leaf["_rev"]
                    for leaf in rng.sample(leaves, rng.randrange(1,
                                                                 len(leaves) + 1))] + rng.sample(sorted(written), 1)
            yield step(server, f"tree {case}: purge", "POST", path + "/_purge", {doc: revs})
        elif change == "delete":
            yield step(server, f"tree {case}: delete", "DELETE", f"{path}/{doc}?rev={rng.choice(leaves)['_rev']}")
        elif change == "compact":
            yield step(server, f"tree {case}: compact", "POST", path + "/_compact", {})
        elif change == "limit":
            yield step(server, f"tree {case}: limit", "PUT", path + "/_revs_limit", str(rng.choice((1, 2, 3, 1000))))
            yield step(
                server, f"tree {case}: edit under it", "PUT", f"{path}/{doc}",
                {"_rev": rng.choice(leaves)["_rev"], "x": 2}
            )
        yield step(
            server, f"tree {case}: read after", "GET",
            f"{path}/{doc}?conflicts=true&deleted_conflicts=true&revs_info=true&local_seq=true"
        )
    yield from checked(server, "trees")


def orders_of_one_tree(server, rng):
    """The same honest revisions in any order are the same tree: leaves, winner, and the bodies of leaves."""
    for case in range(12):
        revs, count = [(1, ["r"])], rng.randrange(4, 16)
        for n in range(count):
            start, ids = rng.choice(revs)
            revs.append((start + 1, [f"{n:x}", *ids]))
        docs = [{
            "_id": "d", "_rev": f"{start}-{ids[0]}", "_revisions": {"start": start, "ids": ids}, "n": "-".join(ids),
            **({"_deleted": True} if rng.random() < 0.2 else {})
        } for start, ids in revs]
        seen = []
        for order in range(3):
            path = database(server, f"order{order}")
            shuffled = rng.sample(docs, len(docs))
            for doc in shuffled if order else [docs]:
                answer = bulk(server, path, [doc] if order else doc, False)
                yield f"case {case}, order {order}", wrong(answer, 201)
            found = {
                leaf["_rev"]: (leaf["n"], leaf["_revisions"]["ids"], leaf.get("_deleted"))
                for leaf in leaves_of(server, path + "/d")
            }
            seen.append((found, ask(server, "GET", path + "/d").get("_rev")))
        yield equal(f"case {case}: one after the other", seen[1], seen[0])
        yield equal(f"case {case}: in another order", seen[2], seen[0])
    yield from checked(server, "order0", "order1", "order2")


def many_leaves(server, rng):
    """More leaves than an entry holds, and than a document may have; parents that come after them."""
    path = database(server, "leaves")
    for begin in range(0, 10_500, 1_500):
        docs = [{"_id": "wide", "_rev": f"2-{n:x}", "_revisions": {"start": 2, "ids": [f"{n:x}", "r"]}}
                for n in range(begin, begin + 1_500)]
        answer = ask(server, "POST", path + "/_bulk_docs", {"docs": docs, "new_edits": False}, timeout=100)
        yield f"leaves from {begin}", wrong(answer, 201, 90)
    for query in ("", "?conflicts=true", "?open_revs=all", "?revs_info=true&meta=true"):
        yield step(
            server, f"read {query}", "GET", f"{path}/wide{query}", headers={"accept": "application/json"}, within=30
        )
    for at in (
        "_changes?style=all_docs&include_docs=true&conflicts=true", "_all_docs?include_docs=true&conflicts=true",
        "_changes?style=all_docs&limit=1"
    ):
        yield step(server, at, "GET", f"{path}/{at}", within=30)
    wide = {"wide": [f"2-{n:x}" for n in range(100_000)]}
    yield step(server, "_revs_diff of 100,000", "POST", path + "/_revs_diff", wide, within=30)
    yield step(server, "_purge of 1,000", "POST", path + "/_purge", {"wide": wide["wide"][:1_000]}, within=60)
    yield step(server, "_purge of 1,001", "POST", path + "/_purge", {"wide": wide["wide"][:1_001]}, statuses=REFUSED)
    yield step(
        server,
        "its root comes late",
        "POST",
        path + "/_bulk_docs", {"docs": [{"_id": "wide", "_rev": "1-r", "late": True}], "new_edits": False},
        within=30
    )
    yield step(server, "edit of one", "PUT", path + "/wide", {"_rev": "2-fff", "x": 1}, within=30)
    yield step(server, "limit of 1", "PUT", path + "/_revs_limit", "1")
    yield step(server, "edit under it", "PUT", path + "/wide", {"_rev": "2-ffe", "x": 1}, within=30)
    yield step(server, "compaction", "POST", path + "/_compact", {}, within=60)
    yield from checked(server, "leaves")


contradictory_trees.longest_wait = many_leaves.longest_wait = 12.0

GROUPS = (ids_of_revisions, shapes_of_revisions, contradictory_trees, orders_of_one_tree, many_leaves)
