"""Who may: every route and method without a password, `Authorization` in every form, and floods of wrong passwords."""

import base64
import socket
import statistics
import threading
import time

from asking import ask, checked, database, equal, holds, segment, short, step, wrong
from server import ADMIN, MB

SETUP = {"admin": True}

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "COPY", "OPTIONS", "PATCH", "PROPFIND", "get", "TRACE")
OPEN = ("/", "/_up", "/_session", "/_uuids", "/_utils", "/_utils/")
SERVER_PATHS = (
    "/_all_dbs", "/_dbs_info", "/_db_updates", "/_active_tasks", "/_replicate", "/_scheduler/jobs", "/_scheduler/docs",
    "/metrics", "/_node/_local/_prometheus", "/_node/_local/_config", "/_node/_local/_stats", "/_membership",
    "/_cluster_setup", "/_reshard", "/_search_analyze", "/_users",
    "/_replicator", "/_global_changes", "/_users/org.couchdb.user:x", "/_config", "/_log", "/_restart", "/_stats"
)
DATABASE_PATHS = (
    "", "/", "/doc", "/doc/file", "/_design/d", "/_design/d/_view/v", "/_design/d/_show/x", "/_design/d/_update/x",
    "/_design/d/file", "/_design%2Fd", "/_local/x", "/_local%2Fx", "/_all_docs", "/_all_docs/queries", "/_design_docs",
    "/_local_docs", "/_bulk_docs", "/_bulk_get", "/_changes", "/_changes?feed=continuous", "/_changes?feed=websocket",
    "/_changes?filter=_selector", "/_find", "/_index", "/_explain", "/_count", "/_revs_diff", "/_missing_revs", "/_revs_limit",
    "/_ensure_full_commit", "/_compact", "/_view_cleanup", "/_purge", "/_purged_infos", "/_purged_infos_limit", "/_raw_keys", "/_raw_keys?id=doc",
    "/_security", "/_shards",
    "/_sync_shards", "/_partition/x", "/_x", "/doc?rev=1-a", "/_auto_purge", "/_design/d/_info"
)
DETOURS = (
    "//secret/doc", "/./secret/doc", "/x/../secret/doc", "/%73ecret/doc", "/secret%2Fdoc", "/secret/%64oc",
    "/secret;x/doc", "/secret/doc?", "/secret/doc#", "/_up/../secret/doc", "/_session/../secret/doc", "/_up/secret",
    "/_up/x", "/_session/x", "/_uuids/x", "/_up%2F..%2Fsecret/doc", "/_up?x=/secret/doc", "/_UP", "/_up//",
    "//_all_dbs", "/_all_dbs/", "/%5fall_dbs", "/_all_dbs%00", "/_up;/secret", "http://127.0.0.1/secret/doc",
    "http://127.0.0.1/_up/../secret/doc"
)
NO_ADMIN = (
    None, "", " ", "Basic", "Basic ", "basic", "Basic  ", "Basic =", "Basic !", "Basic \t", "Basic Og==", "Basic Ong=",
    "Basic cm9vdDo=", "Basic cm9vdA==", "Basic " + "A" * 60_000, "Bearer x", "Bearer", "Negotiate x",
    "Digest username=\"root\"", "Cookie x", "Basic\troot", "BASIC x", "Basic: x", "Basic,x", "Basic \u00ff", "\u00ff",
    "Basic AA==", "Basic AAA6", "Basic //86", "AWS4-HMAC-SHA256 x", "null", "Basic null",
)


def encode(name, password):
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def prepare(server):
    path = database(server, "secret")
    ask(server, "PUT", path + "/doc", {"text": "hidden"})
    ask(server, "PUT", path + "/_design/d", {"text": "hidden", "views": {"v": {"map": "function(){}"}}})
    ask(server, "PUT", path + "/_local/x", {"text": "hidden"})
    ask(server, "PUT", path + "/_security", {"members": {"names": ["member"]}, "admins": {"names": ["owner"]}})
    return path


def anonymous(server, rng):
    """Without a password nothing is told of a database with members, and nothing changed."""
    path = prepare(server)
    before = ask(server, "GET", path).json
    for method in METHODS:
        for where in OPEN:
            yield step(server, f"{method} {where}", method, where, None, {"authorization": None})
        for where in (
            *SERVER_PATHS, *(path + rest for rest in DATABASE_PATHS), *("/nothing" + rest for rest in DATABASE_PATHS)
        ):
            if where.endswith("feed=websocket") and method != "GET":
                continue
            body = b'{"docs":[{"_id":"evil"}],"selector":{},"source":"secret","target":"evil","keys":["doc"]}' if method in (
                "POST", "PUT", "PATCH"
            ) else None
            headers = {
                "authorization": None, "destination": "evil", "x-http-method-override": "GET",
                "x-forwarded-user": ADMIN[0], "x-auth-couchdb-username": ADMIN[0], "x-auth-couchdb-roles": "_admin",
                "x-auth-couchdb-token": "x", "cookie": "AuthSession=" + base64.b64encode(b"root:5F000000:x").decode()
            }
            answer = ask(server, method, where, body, headers)
            yield f"{method} {where}", wrong(answer, {401}, 10, method)
            yield holds(
                f"{method} {where} tells nothing", "hidden" not in answer.text and "\"rows\"" not in answer.text,
                answer.text[:200]
            )
    for where in DETOURS:
        for method in ("GET", "PUT", "DELETE"):
            answer = ask(server, method, where, "{}" if method == "PUT" else None, {"authorization": None})
            yield holds(
                f"detour {method} {where}", answer.status in (400, 401, 404, 405) or
                where.startswith(("/_up?", "/_up//", "/_up")) and "hidden" not in answer.text and answer.status == 200,
                f"{answer.status} {answer.text[:100]}"
            )
    yield equal("nothing has changed", ask(server, "GET", path).json, before)
    yield equal("no database was made", set(ask(server, "GET", "/_all_dbs").json) & {"evil", "nothing"}, set())
    yield from checked(server, "secret")


def forms_of_authorization(server, rng):
    path = prepare(server)
    name, password = ADMIN
    for header in NO_ADMIN:
        for where in (path + "/doc", "/_all_dbs"):
            answer = ask(server, "GET", where, None, {"authorization": header})
            yield f"{where} {short(repr(header))}", wrong(answer, {400, 401, 431})
        session = ask(server, "GET", "/_session", None, {"authorization": header})
        yield holds(
            f"_session {short(repr(header))}", session.status in (400, 401, 431) or "_admin" not in session.text,
            session.text[:200]
        )
    for given, is_right in ((encode(name,
                                    password), True), (encode(name, password).replace("Basic", "basic"),
                                                       None), (encode(name, password).replace("Basic", "BASIC"), None),
                            (encode(name, password).replace("Basic ", "Basic  "),
                             None), (encode(name, password) + " ", None), (encode(name.upper(), password), False),
                            (encode(name, password.upper()), False), (encode(name + " ", password), False),
                            (encode(name, password + " "), False), (encode(name, password + "\x00"), None),
                            (encode(name + "\x00",
                                    password), False), (encode(name, ""), False), (encode("", password), False),
                            (encode("", ""), False), (encode(password,
                                                             name), False), (encode(name, password + ":x"), False),
                            (encode(name, password[:-1]), False), (encode(name, "x" * 10_000),
                                                                   False), (encode(name, "\u00e9"),
                                                                            False), (encode("\U0001f600", "x"), False),
                            (encode(name, password).rstrip("="),
                             None), ("Basic " + base64.urlsafe_b64encode(f"{name}:{password}".encode()).decode(),
                                     None), (encode(name, password) + ", " + encode("x", "y"), False),
                            ("Basic " + base64.b64encode(f"{name}:{password}".encode("utf-16")).decode(),
                             False), ("Basic " + f"{name}:{password}",
                                      False), (encode("_admin", password),
                                               False), (encode("*",
                                                               "*"), False), (encode(f"{name}' or '1'='1", "x"), False),
                            ):
        for _ in range(2):
            answer = ask(server, "GET", path + "/doc", None, {"authorization": given})
            yield holds(
                f"{short(given)} right: {is_right}",
                answer.status == 200 if is_right else answer.status in ((200, 400, 401, 403) if is_right is None else (400, 401, 403, 431)),
                f"{answer.status} {answer.text[:100]}"
            )
    wrong_again = ask(server, "GET", path + "/doc", None, {"authorization": encode(name, "wrong")})
    for turn in range(12):
        unknown = ask(server, "GET", path + "/doc", None, {"authorization": encode("nobody", f"wrong{turn}")})
    yield holds(
        "a wrong password tells no more than a wrong name, both locked out",
        wrong_again.status == 403 and wrong_again.text == unknown.text, f"{wrong_again.text[:100]} {unknown.text[:100]}"
    )
    for lines, expected in (([encode(name, password),
                              "Bearer x"], (200, 400, 401, 403)), (["Bearer x", encode(name, password)], (200, 400, 401, 403)),
                            ([encode(name, password),
                              encode(name, "x")], (200, 400, 401, 403)), ([encode(name, "x"),
                                                                      encode(name, password)], (400, 401, 403)),
                            ):
        with server.connect() as sock:
            head = "".join(f"Authorization: {line}\r\n" for line in lines)
            sock.sendall(f"GET {path}/doc HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{head}\r\n".encode())
            status = int(sock.recv(4096).split()[1])
        yield holds(f"two lines {[short(line, 12) for line in lines]}", status in expected, str(status))
    for url in (
        f"http://{name}:{segment(password)}@127.0.0.1{path}/doc",
        f"{path}/doc?name={name}&password={segment(password)}", f"{path}/doc?access_token=x"
    ):
        with server.connect() as sock:
            sock.sendall(f"GET {url} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
            status = int(sock.recv(4096).split()[1])
        yield holds(short(url), status in (400, 401), str(status))
    for body, kind in (("name=root&password=x", "application/x-www-form-urlencoded"),
                       ({"name": name, "password": password}, "application/json"), ("{", "application/json"), ("", "")):
        for method in ("POST", "PUT", "DELETE"):
            yield step(
                server, f"{method} _session {short(str(body), 20)}", method, "/_session", body,
                {"authorization": None, "content-type": kind}
            )
    for value in ("x", 'Basic realm="a"', "\u00ff", "a" * 5_000):
        answer = ask(server, "GET", path, None, {"authorization": None, "x-couchdb-www-authenticate": value})
        yield f"wanted challenge {short(value)}", wrong(answer, {400, 401})
    yield from checked(server, "secret")


def timing(server, rng):
    """A name that exists takes no other time than one that does not."""
    times = {"root": [], "nobody": [], "": []}
    for turn in range(25):
        for name in times:
            times[name].append(
                ask(server, "GET", "/_all_dbs", None, {"authorization": encode(name, f"wrong{turn}")}).seconds
            )
    middle = {name: statistics.median(found) for name, found in times.items()}
    yield holds("a name that exists", 0.4 < middle["root"] / middle["nobody"] < 2.5, str(middle))
    yield holds("an empty name", 0.4 < middle[""] / middle["nobody"] < 2.5, str(middle))
    yield holds("a check costs what keeps guessing slow", middle["root"] > 0.003, str(middle))


def floods(server, rng):
    """Wrong passwords by the hundred, from clients that wait and ones that hang up; who has the right one is served."""
    path = prepare(server)
    ask(server, "GET", path)
    threads, before = server.threads(), server.resident()
    most, ends = [0], time.monotonic() + 4

    def hang_up(at):
        while time.monotonic() < ends:
            sock = server.connect()
            guess = encode("root", f"no {at} {time.monotonic()}")
            sock.sendall(f"GET {path}/doc HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {guess}\r\n\r\n".encode())
            # It is being checked when its client goes.
            time.sleep(0.02)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            sock.close()
            most[0] = max(most[0], server.threads())

    flooding = [threading.Thread(target=hang_up, args=(at, )) for at in range(30)]
    for thread in flooding:
        thread.start()
    for thread in flooding:
        thread.join(30)
    yield holds("threads while clients hang up", most[0] - threads <= 12, f"{most[0] - threads} more")
    yield step(server, "the right password meanwhile", "GET", path + "/doc", statuses={200}, within=3)
    yield holds("it comes to rest", server.is_idle(20, 0.3), "still at work for nobody")
    statuses, peak = [], [0]

    def guess(turn):
        statuses.append(
            ask(
                server,
                "GET",
                path + "/doc",
                None, {"authorization": encode(f"n{turn % 7}", "x" * (turn * 50))},
                timeout=60
            ).status
        )
        peak[0] = max(peak[0], server.threads())

    guessing = [threading.Thread(target=guess, args=(turn, )) for turn in range(300)]
    for thread in guessing:
        thread.start()
    time.sleep(0.2)
    yield step(server, "the right password beside 300", "GET", path + "/doc", statuses={200}, within=3)
    yield step(server, "/_up beside 300", "GET", "/_up", None, {"authorization": None}, statuses={200}, within=3)
    for thread in guessing:
        thread.join(90)
    yield holds(
        "each was answered",
        set(statuses) <= {401, 429, 431} and len(statuses) == 300,
        str({status: statuses.count(status)
             for status in set(statuses)})
    )
    yield holds("threads while 300 waited", peak[0] - threads <= 12, f"{peak[0] - threads} more")
    yield holds("memory", server.resident() - before < 60 * MB, f"{(server.resident() - before) // MB} MB")


floods.longest_wait = 6.0

GROUPS = (anonymous, forms_of_authorization, timing, floods)
