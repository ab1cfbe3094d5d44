"""Firefox Sync's listener: signatures, bodies, lines, names, parameters, and devices that are slow or want too much."""

import base64
import gzip
import hashlib
import hmac
import http.client
import json
import socket
import subprocess
import tempfile
import threading
import time
from urllib.parse import quote

from asking import holds, short

SECRET = "the secret of the attack on sync"
JSON, LINES = {"content-type": "application/json"}, {"content-type": "application/newlines"}
REFUSED = frozenset({400, 401, 403, 404, 405, 406, 409, 412, 413, 414, 415, 431})
ANY = REFUSED | {200, 202, 304}
POST_BYTES = 2_621_440
MB = 1_000_000


def listener(server):
    """A listener for sync beside the other one, with a token server, and batches that are not too large to be sent here."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server.sync_port = free.getsockname()[1]
    (server.directory / "secret").write_text(SECRET)
    # A key that nobody has the other half of.
    number = base64.urlsafe_b64encode(hashlib.sha512(b"modulus").digest() * 3 + hashlib.sha512(b"x").digest()[:-1] + b"\1")
    key = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "k", "n": "4" + number.decode().rstrip("=")[1:], "e": "AQAB"}
    (server.directory / "keys.json").write_text(json.dumps({"keys": [key]}))
    lines = f"""
[syncstorage]
listen = "127.0.0.1:{server.sync_port}"
master_secret_file = "secret"
jwks = "keys.json"
first_users = 3
limits = {{ max_total_bytes = {10 * MB} }}
"""
    return lines, []


SETUP = {"more": listener}


def derived(secret, salt, info):
    pseudorandom = hmac.digest(salt or bytes(32), secret, "sha256")
    return hmac.digest(pseudorandom, info + b"\1", "sha256")


def token(text, salt="abcdef", secret=SECRET):
    """Id and key of a token, whatever its text is."""
    secret = secret.encode()
    signing = derived(secret, b"", b"services.mozilla.com/tokenlib/v1/signing")
    text = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    name = base64.urlsafe_b64encode(text + hmac.digest(signing, text, "sha256")).decode()
    info = b"services.mozilla.com/tokenlib/v1/derive/" + name.encode()
    key = base64.urlsafe_b64encode(derived(secret, salt.encode(), info)).decode()
    return name, key


def of_user(uid, **more):
    said = {"uid": uid, "node": "http://localhost", "expires": time.time() + 3_000, "salt": "abcdef", **more}
    return token(json.dumps({name: value for name, value in said.items() if value is not None}))


def signature(server, credentials, method, target, said=None):
    """The header; `said` replaces what it says before it is signed."""
    said = {"ts": str(int(time.time())), "nonce": "x" * 6, "hash": "", "ext": "", **(said or {})}
    lines = [
        "hawk.1.header", said["ts"], said["nonce"], method.upper(), target, "127.0.0.1", str(server.sync_port),
        said["hash"], said["ext"], ""
    ]
    mac = hmac.digest(credentials[1].encode(), "\n".join(lines).encode("utf-8", "surrogatepass"), "sha256")
    parts = {"id": credentials[0], **said, "mac": base64.b64encode(mac).decode()}
    return "Hawk " + ", ".join(f'{name}="{value}"' for name, value in parts.items() if value)


def ask(server, method, target, body=None, headers=None, uid=1, authorization=..., timeout=30):
    """One request: status, headers, body and seconds; status 0 where no answer came."""
    if authorization is ...:
        authorization = signature(server, of_user(uid), method, target)
    given = {"authorization": authorization, **(JSON if body is not None else {}), **(headers or {})}
    given = {name: value.encode("utf-8", "surrogatepass") for name, value in given.items() if value is not None}
    if body is not None and not isinstance(body, (bytes, str)):
        body = json.dumps(body)
    if isinstance(body, str):
        body = body.encode("utf-8", "surrogatepass")
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", server.sync_port, timeout=timeout)
    connection._validate_path = lambda path: None
    try:
        connection.request(method, target, body, given)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, dict(answer.getheaders()), text, time.monotonic() - began
    except (OSError, http.client.HTTPException, ValueError) as error:
        return 0, {}, repr(error).encode(), time.monotonic() - began
    finally:
        connection.close()


def wrong(answer, statuses=ANY, within=10.0):
    """What does not hold of an answer: its status, its time, and that an error is a number and nothing else."""
    status, headers, text, seconds = answer
    if status not in ({statuses} if isinstance(statuses, int) else statuses):
        return f"{status} {text[:120]!r}"
    if seconds > within:
        return f"{status} after {seconds:.1f} s"
    if status >= 400 and text and not text.isdigit() and not text.startswith(b'{"status":'):
        return f"{status} says {text[:120]!r}"
    return None


def step(server, name, method, path, body=None, headers=None, statuses=ANY, uid=1, **more):
    return name, wrong(ask(server, method, f"/1.5/{uid}{path}", body, headers, uid, **more), statuses)


def still_served(server, uid=1):
    """A device that does nothing wrong writes and reads."""
    path = f"/1.5/{uid}/storage/meta/global"
    put = ask(server, "PUT", path, {"payload": "fine"}, uid=uid)
    got = ask(server, "GET", path, uid=uid)
    return put[0] == 200 and got[0] == 200 and b"fine" in got[2] and got[3] < 5


def checked(server):
    """`flatbed check --syncstorage` in a backup that is taken while it is served."""
    binary = server.process.args[0]
    with tempfile.TemporaryDirectory(prefix="flatbed-attack-") as directory:
        copy = directory + "/copy"
        for command in (["backup", copy, "--data-dir", str(server.directory / "data")],
                        ["check", "--syncstorage", "--data-dir", copy]):
            done = subprocess.run([binary, *command], capture_output=True, text=True, timeout=300)
            if done.returncode:
                return (done.stdout + done.stderr)[-300:]
    return None


def signatures(server, rng):
    """Headers that are no signatures, tokens that are none, and both of others."""
    path = "/1.5/1/info/collections"
    right = signature(server, of_user(1), "GET", path)
    yield "a right one", wrong(ask(server, "GET", path, authorization=right), 200)
    name, _ = of_user(1)
    for text in (
        None, "", " ", "Hawk", "Hawk ", "hawk x", "Hawk =", 'Hawk id="', 'Hawk id=""', 'Hawk id="a"', "Hawk " + "," * 5_000,
        'Hawk id="a", ts="1", nonce="1", mac="1"', 'Hawk ' + 'id="a", ' * 500, 'Hawk ' + 'x="1", ' * 1_000,
        f'Hawk id="{name}", ts="1", nonce="a", mac="{"A" * 6_000}"', f'Hawk id="{"A" * 7_000}", ts="1", nonce="a", mac="AA=="',
        f'Hawk id="{name}", ts="1", nonce="a", mac="===="', f'Hawk id="{name}", ts="1", nonce="\\"", mac="AA=="',
        f'Hawk id="{name}" ts="1" nonce="a" mac="AA=="', "Basic cm9vdDpyb290", "Bearer x", "Hawk " + "\u00e9" * 100,
        "Hawk " + '"' * 3_000, "Hawk " + "=" * 3_000, 'Hawk id="\x01"', right + ",", right + ', ext="a"', right * 2,
        right.replace("Hawk ", "Hawk\t"), right.replace('"', "'"), right.replace(", ", ";"), right + "\x7f"
    ):
        found = ask(server, "GET", path, authorization=text)
        yield f"header {short(text)}", wrong(found, {400, 401, 431})
    for _ in range(300):
        at = rng.randrange(len(right))
        changed = right[:at] + chr(rng.choice((*range(32, 127), 0xe9))) + right[at + 1:]
        found = ask(server, "GET", path, authorization=changed)
        yield f"byte {at} of a right one", wrong(found, {200, 400, 401} if changed.lower() == right.lower() else {400, 401})
    for said in (
        {"ts": "0"}, {"ts": "-1"}, {"ts": "9" * 19}, {"ts": "9" * 400}, {"ts": "1e9"}, {"ts": "18446744073709551616"},
        {"ts": "x"}, {"ts": " 1"}, {"ts": "1700000000.5"}, {"ts": "\u0661"}
    ):
        found = ask(server, "GET", path, authorization=signature(server, of_user(1), "GET", path, said))
        yield f"ts {short(said['ts'])}", wrong(found, {400, 401})
    for nonce in ("n" * 3_000, "\u2603", "a\\n", "a, b=c"):
        said = {"nonce": nonce, "ext": nonce}
        found = ask(server, "GET", path, authorization=signature(server, of_user(1), "GET", path, said))
        yield f"nonce {short(nonce)}", wrong(found, {200, 400, 401})
    future = time.time() + 3_000
    for text in (
        "", "{}", "null", "[]", "1", '"x"', "{" * 1_500, "[" * 2_900, '{"uid":1}', b"\xff\xfe", "\0" * 100,
        json.dumps({"uid": 1, "expires": future, "salt": "abcdef"}),
        json.dumps({"uid": 1, "node": "x", "salt": "abcdef"}),
        json.dumps({"uid": 1, "node": "x", "expires": future}),
        *(
            '{"uid":%s,"node":"x","expires":%s,"salt":"abcdef"}' % (uid, expires) for uid, expires in (
                ("1", "0"), ("1", "-1"), ("1", "1e400"), ("1", "-1e400"), ("1", "NaN"), ("1", '"x"'), ("1", "null"),
                ("-1", future), ("1.5", future), ('"1"', future), ("1e0", future), ("18446744073709551616", future),
                ("null", future), ("[1]", future), ("9" * 1_000, future)
            )
        ),
        '{"uid":2,"uid":1,"node":"x","expires":%s,"salt":"abcdef"}' % future
    ):
        found = ask(server, "GET", path, authorization=signature(server, token(text), "GET", path))
        # Who asks for nothing but times learns them with a token that has ended.
        has_ended = '"expires":0,' in str(text) or '"expires":-1,' in str(text)
        yield f"token {short(text)}", wrong(found, {200, 401} if has_ended else 401)
        found = ask(server, "GET", path + "?x", authorization=signature(server, token(text), "GET", path))
        yield f"the same elsewhere {short(text)}", wrong(found, 401)
    for other in (token(json.dumps({"uid": 1, "node": "x", "expires": future, "salt": "abcdef"}), secret="another"),
                  of_user(1, expires=1)):
        target = "/1.5/1/storage/meta/global"
        found = ask(server, "GET", target, authorization=signature(server, other, "GET", target))
        yield "another secret, or a token that has ended", wrong(found, 401)
    for method in ("GET", "PUT", "POST", "DELETE"):
        target = "/1.5/2/storage/tabs/a" if method == "PUT" else "/1.5/2/storage/tabs"
        body = {"payload": "x"} if method == "PUT" else [] if method == "POST" else None
        found = ask(server, method, target, body, authorization=signature(server, of_user(1), method, target))
        yield f"{method} of another user", wrong(found, 400)
    for given in ("AAAA", "=", "x" * 3_000, base64.b64encode(hashlib.sha256(b"other").digest()).decode()):
        target = "/1.5/1/storage/tabs/hashed"
        signed = signature(server, of_user(1), "PUT", target, {"hash": given})
        found = ask(server, "PUT", target, {"payload": "x"}, authorization=signed)
        yield f"hash {short(given)}", wrong(found, {400, 401})
    for text in (
        "Bearer", "Bearer ", "Bearer x", "Bearer a.b.c", "Bearer " + "a" * 7_000, "Bearer ..", "Bearer eyJhbGciOiJub25lIn0.e30.",
        "Bearer " + base64.urlsafe_b64encode(b"[" * 3_000).decode() + ".e30.AA", "BrowserID x", "Bearer \u00e9"
    ):
        for key in ("", "x", "1-AAAA", "9" * 40 + "-" + "A" * 22, "-1-" + "A" * 22, "0-" + "A" * 3_000, "\u00e9"):
            found = ask(server, "GET", "/1.0/sync/1.5", headers={"x-keyid": key}, authorization=text)
            yield f"{short(text)} with {short(key)}", wrong(found, {400, 401, 403, 431})
    yield holds("a device goes on", still_served(server))


def bodies(server, rng):
    """JSON and lines: deep, large, broken, of the wrong kind; numbers and ids at the edges."""
    good = '{"id":"a","payload":"x"}'
    for text in (
        "", " ", "null", "1", '"x"', "[", "]", "{", "[null]", "[[]]", "[1]", "[{}]", '[{"id":1}]', '[{"id":null}]', "[" * 1_000_000,
        '{"a":' * 300_000, '[{"id":"a","x":' + "[" * 100_000, good, f"[{good},{good}]", f"[{good},]", "\ufeff[]", "[] []", "[]x",
        b"\xff", b'[{"id":"\xff"}]', '[{"id":"\\ud800"}]', '[{"id":"a","payload":"\\udc00"}]', b"\0" * 1_000, "[" + " " * 2_000_000,
        "[" + ",".join('{"id":"i%d"}' % at for at in range(50_000)) + "]", "[" + "1," * 1_000_000 + "1]",
        '[{"id":"a","payload":"' + "\\u0000" * 300_000 + '"}]', '[{"id":"a","' + "x" * 2_000_000 + '":1}]',
        '[{"id":"' + "x" * 2_000_000 + '"}]', "[{" + ",".join(f'"m{at}":1' for at in range(150_000)) + "}]",
        '[{"id":"a","payload":' + "9" * 1_000_000 + "}]", "[" + "-" * 100_000 + "]", "1e" + "9" * 100_000
    ):
        for kind in (JSON, LINES, {"content-type": "text/plain"}):
            yield step(server, f"POST {short(text)}", "POST", "/storage/tabs", text, kind)
            yield step(server, f"PUT {short(text)}", "PUT", "/storage/tabs/put", text, kind)
    for lines in (
        "\n", "\n\n\n", "\r\n", "\n" * 2_000_000, good + "\n\n", "\n" + good, good + "\r" + good, good + "\x85", good + "\u2028" + good,
        good + "\n" + good, "[]\n[]", good + "\n{", "{\n}", '{"id":"a",\n"payload":"x"}', good + "\0\n", "\n".join(["{}"] * 100_000)
    ):
        yield step(server, f"lines {short(lines)}", "POST", "/storage/tabs", lines, LINES)
    for name in ("sortindex", "ttl"):
        for number in (
            "-1", "-0", "0", "1.0", "1.5", "1e3", "999999999", "1000000000", "-999999999", "-1000000000", "2147483648", "-2147483649",
            "4294967296", "9223372036854775808", "18446744073709551616", "1e400", "9" * 100_000, '"1"', "true", "[]", "{}", "null"
        ):
            for path, text in (("/storage/nums/a", f'{{"{name}":{number}}}'), ("/storage/nums", f'[{{"id":"a","{name}":{number}}}]')):
                method = "PUT" if path.endswith("/a") else "POST"
                yield step(server, f"{method} {name} {short(number)}", method, path, text, statuses={200, 400, 413})
    for name in (
        "", " ", "\n", "\t", "\0", "\x1f", "\x7f", "\u00e9", "\u2603", "a" * 64, "a" * 65, "a" * 10_000, "/", "a/b", "%", "%2F", "{", ",",
        "'", '"', "\\", "..", ".", "*", "__proto__"
    ):
        yield step(server, f"id {short(name)}", "POST", "/storage/ids", [{"id": name, "payload": "x"}], statuses={200, 400})
        yield step(server, f"PUT id {short(name)}", "PUT", "/storage/ids/" + quote(name, safe=""), {"payload": "x"})
        yield step(server, f"GET id {short(name)}", "GET", "/storage/ids/" + quote(name, safe=""))
        yield step(server, f"DELETE id {short(name)}", "DELETE", "/storage/ids?ids=" + quote(name, safe=""))
    for kind in (None, "", "text/html", "application/json;" * 1_000, "application/json; charset=utf-16", "multipart/form-data", "\u00e9", "x" * 5_000):
        yield step(server, f"type {short(kind)}", "POST", "/storage/tabs", "[]", {"content-type": kind})
    bomb = gzip.compress(b" " * 200 * MB, 9)
    for encoding, body in (
        ("gzip", bomb), ("gzip", gzip.compress(b"[]")[:-3]), ("gzip", b"[]"), ("gzip", b""), ("deflate", b"[]"), ("br", b"[]"),
        ("gzip, gzip", gzip.compress(gzip.compress(b"[]"))), ("zstd", b"x"), ("gzip" + ", gzip" * 300, bomb), ("\u00e9", b"[]")
    ):
        found = step(server, f"encoded {short(encoding)}", "POST", "/storage/tabs", body, {"content-encoding": encoding})
        yield found
    for size in (POST_BYTES - 40, POST_BYTES, POST_BYTES + 1, POST_BYTES + 4_096, 3 * POST_BYTES):
        # The connection may be closed before all of it is sent.
        may = ANY | {0} if size > POST_BYTES + 4_096 else ANY
        yield step(server, f"a payload of {size}", "PUT", "/storage/large/a", {"payload": "x" * size}, statuses=may)
        yield step(server, f"a record of {size}", "POST", "/storage/large", [{"id": "a", "payload": "x" * size}], statuses=may)
    for method, path in (("GET", "/storage/tabs"), ("DELETE", "/storage/tabs?ids=a"), ("GET", "/info/quota")):
        yield step(server, f"{method} with a body", method, path, b"x" * 500_000)
    for _ in range(300):
        text = bytearray(b'[{"id":"a","payload":"{}","sortindex":1,"ttl":5},{"id":"b"}]')
        for _ in range(rng.randrange(1, 4)):
            text[rng.randrange(len(text))] = rng.randrange(256)
        yield step(server, f"changed {bytes(text)!r}", "POST", "/storage/changed", bytes(text), rng.choice((JSON, LINES)), {200, 400})
    yield holds("a device goes on", still_served(server))
    yield "check", checked(server)


def parameters(server, rng):
    """Paths, queries and conditions."""
    ask(server, "POST", "/1.5/1/storage/tabs", [{"id": f"i{at}", "payload": "x", "sortindex": at} for at in range(50)])
    for uid in ("", "0", "-1", "01", "1.0", "1e1", "18446744073709551616", "9" * 5_000, "\u0661", "%31", "1%00", "a", "..", "1/"):
        for rest in ("/info/collections", "/storage/tabs", "", "/storage"):
            path = f"/1.5/{quote(uid, safe='%/')}{rest}"
            yield f"user {short(uid)} {rest}", wrong(ask(server, "GET", path), REFUSED | {200})
    for path in (
        "/1.5", "/1.5/", "/1.5/1", "/1.5/1/", "/1.5/1/storage/", "/1.5/1/storage//", "/1.5/1/storage/tabs/", "/1.5/1/storage/tabs/a/b",
        "//1.5/1/info/collections", "/1.5/1/../1/info/collections", "/1.5/1/info/", "/1.5/1/info/x", "/1.6/1/info/collections", "/1.0/sync",
        "/1.0/sync/1.1", "/1.0//1.5", "/1.0/sync/1.5/x", "/__version__/x", "/__heartbeat__?x", "/__error__", "/1.5/1/storage/" + "c" * 32,
        "/1.5/1/storage/" + "c" * 33, "/1.5/1/storage/" + "c" * 9_000, "/1.5/1/storage/%00", "/1.5/1/storage/%ff", "/1.5/1/storage/%",
        "/1.5/1/storage/a%2Fb", "/1.5/1/storage/tabs;x", "/1.5/1/storage/\u00e9", "*", "/" + "a/" * 10_000, "/%2e%2e/%2e%2e", "/db/_all_docs"
    ):
        for method in ("GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "get"):
            body = b"[]" if method in ("PUT", "POST") else None
            yield f"{method} {short(path)}", wrong(ask(server, method, path, body), REFUSED | {0, 200, 304})
    texts = (
        "", "x", "-1", "0", "1", "1.5", "1e3", "NaN", "inf", "9" * 20, "9" * 5_000, "-" + "9" * 20, "99999999999.99", "1.123456789012",
        "%00", "%ff", "%", "true", "null", "index", "newest", "oldest", "a,b,c", "," * 3_000, "[]", "\u00e9", "'", "1&1", "1;1", "0x10"
    )
    for name in ("newer", "older", "limit", "offset", "sort", "full", "ids", "batch", "commit", "sort=index&offset", "sort=oldest&offset", "full=1&limit"):
        for text in texts:
            query = f"{name}={quote(text, safe='%&;,')}"
            yield step(server, f"GET {short(query)}", "GET", "/storage/tabs?" + query)
            yield step(server, f"POST {short(query)}", "POST", "/storage/queried?" + query, "[]")
            yield step(server, f"DELETE {short(query)}", "DELETE", "/storage/none?" + query)
    for count in (100, 101, 1_000, 5_000):
        ids = ",".join(f"i{at}" for at in range(count))
        yield step(server, f"{count} ids", "GET", "/storage/tabs?full=1&ids=" + ids)
        yield step(server, f"DELETE of {count} ids", "DELETE", "/storage/none?ids=" + ids)
    for name in (
        "x-if-modified-since", "x-if-unmodified-since", "x-weave-records", "x-weave-bytes", "x-weave-total-records", "x-weave-total-bytes",
        "x-last-modified", "accept", "if-none-match", "x-confirm-delete", "user-agent", "x-forwarded-host", "forwarded", "x-client-state"
    ):
        for text in (*texts, "\u00e9" * 100, "1, 2", "0.001", "-0", "+1"):
            text = text.replace("%", "")
            yield step(server, f"{name}: {short(text)}", "GET", "/storage/tabs?full=1", None, {name: text})
            yield step(server, f"POST {name}: {short(text)}", "POST", "/storage/told", "[]", {name: text})
    for batch in ("true", "false", "", "0", "1", "MTIz", "9" * 30, "x" * 4_000, "%00", "AAAA====", "\u00e9"):
        for commit in ("", "&commit=true", "&commit=", "&commit=1", "&commit=false"):
            path = "/storage/batched?batch=" + quote(batch, safe="%") + commit
            yield step(server, f"batch {short(batch)}{commit}", "POST", path, '[{"id":"a"}]')
    yield holds("a device goes on", still_served(server))
    yield "check", checked(server)


def staging(server, rng):
    """What one user stages: batches, bytes, and collections."""
    uid = 7
    large = json.dumps([{"id": "a", "payload": "x" * 2_500_000}])
    statuses = []
    for _ in range(12):
        status, _, text, _ = ask(server, "POST", f"/1.5/{uid}/storage/tabs?batch=true", large, uid=uid)
        statuses.append((status, text if status >= 400 else b""))
    # Twice the largest batch: 20 MB.
    yield holds("20 MB are staged, and no more", statuses == [(202, b"")] * 8 + [(403, b"14")] * 4, f"{statuses}")
    found = ask(server, "PUT", f"/1.5/{uid}/storage/tabs/large", {"payload": "x" * 2_500_000}, uid=uid)
    yield "a large PUT has no room either", wrong(found, 403)
    yield holds("a small one has", still_served(server, uid))
    yield holds("nor does it concern others", ask(server, "POST", "/1.5/8/storage/tabs?batch=true", large, uid=8)[0] == 202)
    yield "check", checked(server)
    yield "all goes", wrong(ask(server, "DELETE", f"/1.5/{uid}/storage", uid=uid), 200)
    counts = [ask(server, "POST", f"/1.5/{uid}/storage/tabs?batch=true", "[]", uid=uid)[0] for _ in range(105)]
    yield holds("100 batches are open, and no more", counts == [202] * 100 + [400] * 5, f"{counts}")
    counts = [ask(server, "POST", f"/1.5/{uid}/storage/c{at}", "[]", uid=uid)[0] for at in range(1_003)]
    refused = [at for at, status in enumerate(counts) if status != 200]
    # Of which one is that of the device above.
    yield holds("1,000 collections, and no more", len(refused) in (3, 4) and min(refused) >= 999, f"{refused[:9]}")
    yield "check", checked(server)


def connect(server, receive_buffer=None):
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(30)
    sock.connect(("127.0.0.1", server.sync_port))
    return sock


def head(server, method, target, uid, length=None):
    lines = [f"{method} {target} HTTP/1.1", f"Host: 127.0.0.1:{server.sync_port}",
             "Authorization: " + signature(server, of_user(uid), method, target)]
    if length is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {length}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def slowness(server, rng):
    """Bodies that come slowly or never end, and readers that do not read."""
    before = server.resident()
    socks = []
    for at in range(120):
        sock = connect(server)
        target = f"/1.5/{100 + at}/storage/tabs"
        try:
            sock.sendall(head(server, "POST", target, 100 + at, POST_BYTES) + b'[{"id":"a","payload":"')
            sock.sendall(b"x" * (2 * MB if at % 2 else 100))
        except OSError:
            pass
        socks.append(sock)
    served = still_served(server)
    yield holds("a device goes on beside bodies that do not end", served)
    more = (server.resident() - before) // (1 << 20)
    yield holds("they take no more than their room", more < 700, f"{more} MB")
    for _ in range(5):
        for sock in socks:
            try:
                sock.sendall(b"x")
            except OSError:
                pass
        time.sleep(0.2)
    yield holds("nor beside bodies that come slowly", still_served(server))
    for sock in socks:
        sock.close()
    payload = "x" * 20_000
    for at in range(3):
        for part in range(4):
            records = [{"id": f"r{at}-{part}-{number}", "payload": payload} for number in range(100)]
            ask(server, "POST", f"/1.5/{200 + at}/storage/history", records, uid=200 + at)
    before, readers = server.resident(), []
    for at in range(90):
        sock = connect(server, 4_096)
        sock.sendall(head(server, "GET", f"/1.5/{200 + at % 3}/storage/history?full=1", 200 + at % 3))
        readers.append(sock)
    time.sleep(2)
    yield holds("a device goes on beside readers that do not read", still_served(server))
    more = (server.resident() - before) // (1 << 20)
    yield holds("what they do not read is not held", more < 700, f"{more} MB")
    for sock in readers:
        sock.close()
    wrong_ones = []

    def hammer(which):
        until = time.monotonic() + 4
        while time.monotonic() < until:
            status = ask(server, "GET", f"/1.5/{which}/storage/tabs", authorization="Hawk " + "x" * 500)[0]
            if status not in (401, 429):
                wrong_ones.append(status)

    threads = [threading.Thread(target=hammer, args=(which,)) for which in range(8)]
    for thread in threads:
        thread.start()
    served = still_served(server)
    for thread in threads:
        thread.join()
    yield holds("a device goes on beside floods of wrong signatures", served)
    yield holds("each of which is refused", not wrong_ones, f"{wrong_ones[:5]}")
    lines = server.log().count("not signed as it must be")
    yield holds("the log does not grow with them", lines < 400, f"{lines} lines")
    yield "check", checked(server)


slowness.longest_wait = 8.0

GROUPS = [signatures, bodies, parameters, staging, slowness]
