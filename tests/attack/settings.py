"""What is set of a database and what keeps it in order, in odd shapes and odd orders; and two databases that must not see each other."""

import threading

from asking import ANY, ask, checked, database, equal, holds, segment, short, step, wrong

WRONG = (
    "", "null", "true", '"1"', "[]", "{}", "1.5", "1e3", "-1", "0", "00", "+1", " 1 ", "1\n", "1 2", "0x10",
    "4294967295", "4294967296", "9223372036854775807", "18446744073709551616", "9" * 500, "\x00", "\xff", "NaN",
    "1" * 100_000
)


def security(server, rng):
    path = database(server, "secure")
    values = (
        None, True, 1, "x", [], [1], {}, {"names": []}, {"names": ["a"]}, {"names": [1]}, {"names": "a"},
        {"names": None}, {"names": {}}, {"roles": ["a", None]}, {"roles": [["a"]]}, {"roles": [""]}, {"x": 1},
        {"names": ["a"] * 10_000}, {"names": ["\x00", "\uffff", "x" * 10_000]}
    )
    before = ask(server, "GET", path + "/_security").json
    for name in ("admins", "members", "readers", "x", "_x", "", "cloudant", "couchdb_auth_only", "admins "):
        for value in values:
            answer = ask(server, "PUT", path + "/_security", {name: value})
            yield f"{name} = {short(str(value))}", wrong(answer)
            if answer.status == 200:
                yield equal(
                    f"comes back: {name} = {short(str(value))}",
                    ask(server, "GET", path + "/_security").json, {name: value}
                )
                before = {name: value}
            else:
                yield equal(
                    f"is as before: {name} = {short(str(value))}",
                    ask(server, "GET", path + "/_security").json, before
                )
    for text in (
        "", "null", "[]", "1", '"x"', "{", '{"admins":{"names":["a"],"names":["b"]}}', '{"admins":{},"admins":1}',
        "{}" * 2, '{"a":' * 400 + "1" + "}" * 400, '{"a":"%s"}' % ("x" * 49_000), '{"a":"%s"}' % ("x" * 51_000),
        '{"a":"%s"}' % ("x" * 200_000), '{"a":"%s"}' % ("x" * 10_000_000), '{"\\ud800":1}'
    ):
        yield step(server, f"_security {short(text)}", "PUT", path + "/_security", text)
    for method in ("POST", "DELETE", "COPY", "PATCH", "HEAD", "OPTIONS"):
        yield step(server, f"{method} _security", method, path + "/_security")
    yield from checked(server, "secure")


def limits(server, rng):
    path = database(server, "limits")
    for what in ("_revs_limit", "_purged_infos_limit"):
        for text in WRONG:
            yield step(server, f"{what} {short(repr(text))}", "PUT", f"{path}/{what}", text.encode("latin-1"))
            yield step(server, f"{what} read", "GET", f"{path}/{what}", statuses={200})
        for method in ("POST", "DELETE", "COPY", "PATCH", "HEAD"):
            yield step(server, f"{method} {what}", method, f"{path}/{what}")
    for what, body in (("_compact", b""), ("_compact", "{}"), ("_compact", "x"), ("_compact/x", "{}"),
                       ("_view_cleanup", "{}"), ("_ensure_full_commit", "x"), ("_ensure_full_commit?seq=-1", ""),
                       ("_purge", "null"), ("_purge", "[]"), ("_purge", '{"a":null}'), ("_purge", '{"a":"1-a"}'),
                       ("_purge", '{"a":[1]}'), ("_purge", '{"a":[]}'), ("_purge", '{"":["1-a"]}'),
                       ("_purge", '{"a":["1-a","1-a"]}'), ("_purge", '{"a":["1-a"],"a":["1-b"]}'),
                       ("_purge", '{"_local/x":["0-1"]}'), ("_purge", '{"_design/x":["1-a"]}'),
                       ("_purge", "{%s}" % ",".join('"%d":["1-a"]' % n
                                                    for n in range(101))), ("_purge", '{"a":["x"]}')):
        for method in ("POST", "GET", "PUT"):
            yield step(server, f"{method} {what} {short(str(body))}", method, f"{path}/{what}", body)
            yield step(
                server, f"{method} {what} without a type", method, f"{path}/{what}", body,
                {"content-type": "text/plain"}
            )
    yield from checked(server, "limits")


def odd_orders(server, rng):
    """Random orders of edits, deletions, replicated revisions, purges, limits, compactions: never an error of the server's,
    and the stored keys agree with each other."""
    path = database(server, "orders")
    known = {f"d{n}": set() for n in range(6)}
    for at in range(400):
        doc = rng.choice(sorted(known))
        leaf = ask(server, "GET", f"{path}/{doc}?open_revs=all", headers={"accept": "application/json"}).json or []
        revs = [row["ok"]["_rev"]
                for row in leaf
                if isinstance(row, dict) and "ok" in row] if isinstance(leaf, list) else []
        some = rng.choice(revs) if revs else "1-none"
        known[doc].update(revs)
        actions = {
            "edit": ("PUT", f"/{doc}", {"_rev": some, "n": at} if revs else {"n": at}),
            "delete": ("DELETE", f"/{doc}?rev={some}", None), "replica": (
                "POST", "/_bulk_docs", {
                    "docs": [{"_id": doc, "_rev": f"{rng.randrange(1, 9)}-{rng.choice('abc')}", "n": at}],
                    "new_edits": False
                }
            ), "purge": ("POST", "/_purge", {doc: rng.sample(revs, rng.randrange(len(revs))) if revs else ["1-a"]}),
            "purge all": ("POST", "/_purge", {doc: revs or ["1-a"]}),
            "purge an ancestor": ("POST", "/_purge", {doc: sorted(known[doc])[:5]}),
            "limit": ("PUT", "/_revs_limit", str(rng.choice(
                (1, 1, 2, 5, 1000)
            ))), "infos": ("PUT", "/_purged_infos_limit", str(rng.choice((1, 2, 100))
                                                              )), "compact": ("POST", "/_compact", {}),
            "attach": ("PUT", f"/{doc}/a{rng.randrange(4)}?rev={some}", b"x" * rng.choice((0, 1, 100_000))),
            "detach": ("DELETE", f"/{doc}/a{rng.randrange(4)}?rev={some}", None),
            "big": ("PUT", f"/{doc}", {"_rev": some, "n": "x" * rng.choice((10_000, 200_000, 1_500_000))
                                       }), "copy": ("COPY", f"/{doc}?rev={some}", None), "validate": (
                                           "PUT", f"/_design/v{rng.randrange(3)}",
                                           {"validate_doc_update": "function(d){ if (d.bad) throw({forbidden:'x'}) }"}
                                       ),
        }
        name = rng.choice(sorted(actions))
        method, where, body = actions[name]
        headers = {"destination": rng.choice(sorted(known))} if method == "COPY" else None
        yield step(server, f"{at}: {name} {doc}", method, path + where, body, headers, within=20)
    yield from checked(server, "orders")


def neighbours(server, rng):
    """Databases whose names, ids, field names and sequences are alike show nothing of each other."""
    pairs = (("a", "aa"), ("a/b", "a/bb"), ("t1", "t10"), ("x", "x/"), ("q", "q$"))
    for one, two in pairs:
        first, second = database(server, one), database(server, two)
        for at in range(5):
            ask(server, "PUT", f"{first}/shared{at}", {"secret": one + " secret", f"only-{one}": at})
            ask(server, "PUT", f"{second}/shared{at}", {"open": at})
        ask(server, "PUT", first + "/_local/x", {"secret": one + " secret"})
        ask(
            server, "PUT", first + "/_design/x",
            {"filters": {"f": "function(){return true}"}, "secret": one + " secret"}
        )
        ask(server, "PUT", first + "/att/file", b"the secret of " + one.encode())
        seq = segment(str(ask(server, "GET", first).get("update_seq")))
        for what in (
            "_all_docs?include_docs=true", "_changes?include_docs=true&conflicts=true&attachments=true",
            "_local_docs?include_docs=true", "_design_docs?include_docs=true",
            f"_changes?since={seq}&include_docs=true", "_local/x", "_design/x", "att", "att/file",
            "shared0?revs_info=true&attachments=true", "", "_security", "_changes?filter=x/f",
            "_all_docs?startkey=%22%22&endkey=%22%EF%BF%BF%22", "_all_docs?descending=true"
        ):
            answer = ask(server, "GET", f"{second}/{what}")
            yield holds(
                f"{two} shows nothing of {one}: {what}", b"secret" not in answer.body and wrong(answer) is None,
                answer.text[:300]
            )
        rev = ask(server, "GET", first + "/shared0").get("_rev")
        for what, body in (("_bulk_get", {"docs": [{"id": "shared0", "rev": rev}, {"id": "att"}]
                                          }), ("_all_docs?include_docs=true", {"keys": ["att", "_design/x"]}),
                           ("_revs_diff", {"shared0": [rev]}), ("_purge", {"shared0": [rev],
                                                                           "att": [rev]}), ("_compact", {})):
            answer = ask(server, "POST", f"{second}/{what}", body)
            yield holds(
                f"{two}/{what} shows nothing of {one}", b"secret" not in answer.body and wrong(answer) is None,
                answer.text[:300]
            )
        ask(server, "DELETE", second)
        yield equal(
            f"{one} stays when {two} goes",
            ask(server, "GET", first + "/shared0").get("secret"), one + " secret"
        )
        ask(server, "PUT", second)
        yield equal(f"{two} begins empty", ask(server, "GET", second + "/_all_docs").get("rows"), [])
        yield step(server, "and without attachments", "GET", second + "/att/file", statuses={404})
        yield step(server, "and without local documents", "GET", second + "/_local/x", statuses={404})
        yield from checked(server, one, two)


def made_and_deleted_at_once(server, rng):
    """A database that is made and deleted while others write into it, read and follow it."""
    ends = threading.Event()
    odd, counts = {}, {}

    def work(seed):
        ask_for = (("PUT", "/flicker", None), ("DELETE", "/flicker", None), ("POST", "/flicker", {"n": 1}),
                   ("GET", "/flicker/_all_docs?include_docs=true",
                    None), ("GET", "/flicker/_changes?feed=longpoll&timeout=300",
                            None), ("PUT", "/flicker/_security", {"admins": {"names": ["x"]}}),
                   ("POST", "/flicker/_compact", {}), ("PUT", "/flicker/a/b", b"x" * 50_000),
                   ("PUT", "/flicker/_design/v", {"validate_doc_update": "function(){}"
                                                  }), ("PUT", "/flicker/_local/x", {}))
        at = seed
        while not ends.is_set():
            at = (at * 1103515245 + 12345) & 0x7FFFFFFF
            method, path, body = ask_for[(at >> 16) % len(ask_for)]
            # A feed is cut when its database goes, and an upload is swept.
            bad = wrong(ask(server, method, path, body), ANY | {0, 503}, within=15)
            counts[f"{method} {path}"] = counts.get(f"{method} {path}", 0) + 1
            if bad:
                odd[f"{method} {path}"] = bad

    threads = [threading.Thread(target=work, args=(rng.getrandbits(20), )) for _ in range(6)]
    for thread in threads:
        thread.start()
    ends.wait(12)
    ends.set()
    for thread in threads:
        thread.join(30)
    yield from ((name, odd.get(name)) for name in counts)
    database(server, "flicker")
    yield from checked(server, "flicker")


made_and_deleted_at_once.longest_wait = odd_orders.longest_wait = 8.0

GROUPS = (security, limits, odd_orders, neighbours, made_and_deleted_at_once)
