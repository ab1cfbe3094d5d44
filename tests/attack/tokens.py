"""Who claims to be somebody: tokens, cookies and proxies' words that nobody has signed, or signed for something else."""

import base64
import hashlib
import hmac
import itertools
import json
import time

from asking import ask, equal, holds, short
from rights import account

SECRET, OTHER = b"0123456789abcdef0123456789abcdef", b"x" * 32
KEYS = "".join(f'"hmac:{id}" = "{base64.b64encode(key).decode()}"\n' for id, key in (("k1", SECRET), ("_default", OTHER)))
CONFIG = f'[proxy_auth]\npeers = "127.0.0.1"\n[jwt_auth]\nrequired_claims = "exp"\n[jwt_keys]\n{KEYS}'
SETUP = {"admin": True, "config": CONFIG}


def encoded(value):
    data = value if isinstance(value, bytes) else (value if isinstance(value, str) else json.dumps(value)).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(header, claims, key=SECRET, digest=hashlib.sha256):
    signed = encoded(header) + "." + encoded(claims)
    return signed + "." + encoded(hmac.new(key, signed.encode(), digest).digest())


def asker(server, headers):
    """Status, name and roles of who asks so."""
    answer = ask(server, "GET", "/_session", None, {"authorization": None, **headers})
    who = answer.get("userCtx") or {}
    return answer.status, who.get("name"), who.get("roles") or []


def tokens(server, rng):
    ends = int(time.time()) + 3_000
    claims = {"sub": "jay", "exp": ends}
    for alg, kid, key, digest in itertools.product(
        ("none", "None", "", "HS256", "hs256", "HS384", "HS512", "RS256", "ES256", "EdDSA", None, 1, ["HS256"], "HS256\0"),
        ("k1", "_default", "", "../k1", "k1\0", "K1", None, 1, "hmac:k1", "/dev/null", ["k1"], "k1' OR 1"), (SECRET, OTHER, b"", b"\0" * 32), (hashlib.sha256, hashlib.sha512)
    ):
        is_right = {"k1": SECRET, "_default": OTHER}.get(kid if isinstance(kid, str) else "") == key and (alg, digest) in (("HS256", hashlib.sha256), ("HS512", hashlib.sha512))
        found = asker(server, {"authorization": "Bearer " + token({"alg": alg, "kid": kid}, claims, key, digest)})
        yield holds(f"{alg!r} {kid!r} {key[:3]} {digest().name}", found[0] in (200, 400, 401) and (found[1] is None or is_right), str(found))
    header = {"alg": "HS256", "kid": "k1"}
    for text in ('{"alg":"none","alg":"HS256","kid":"k1"}', '{"alg":"HS256","alg":"none","kid":"k1"}', '{"alg":"HS256","kid":"k1","crit":["x"]}'):
        yield equal(f"header {text}", asker(server, {"authorization": "Bearer " + token(text, claims)})[1], None)
    for of in (
        {"exp": ends - 3_001}, {"exp": str(ends)}, {"exp": True}, {"exp": []}, {"exp": None}, {"sub": None}, {"sub": 1}, {"sub": ""}, {"sub": "x\n"}, {"aud": "x"}, {"nbf": ends}, {"iat": ends},
        {"_couchdb.roles": {"_admin": 1}}
    ):
        yield equal(f"claims {of}", asker(server, {"authorization": "Bearer " + token(header, {**claims, **of})})[1], None)
    for text in ('{"sub":"a","sub":"root","exp":%d}', '{"sub":"a","exp":1,"exp":%d}', "[%d]", "%d", '"%d"'):
        yield equal(f"claims {text}", asker(server, {"authorization": "Bearer " + token(header, text % ends)})[1], None)
    for roles in (["_admin"], "_admin,x", ["_metrics", "_replicator"], ["\u005fadmin"]):
        for name in ("_couchdb.roles", "roles"):
            found = asker(server, {"authorization": "Bearer " + token(header, {"sub": "root", "exp": ends, name: roles})})
            yield holds(f"{name} {roles}", not any(role.startswith("_") for role in found[2]), str(found))
    good = token(header, claims)
    yield equal("a token that is right", asker(server, {"authorization": "Bearer " + good})[1], "jay")
    for changed in (good + "=", good + ".", good + ".x", "." + good, good.replace(".", ".."), good + ",", good.upper(), good.rpartition(".")[0], good.rpartition(".")[0] + ".", good + "A", good + "%00", "..", "."):
        yield equal(f"changed to {short(changed, 10)}...{changed[-5:]}", asker(server, {"authorization": "Bearer " + changed})[1], None)


def cookies(server, rng):
    account(server, "eve", "letmein")
    made = ask(server, "POST", "/_session", {"name": "eve", "password": "letmein"}, {"authorization": None}, timeout=60)
    value = made.headers["set-cookie"].split(";")[0].split("=", 1)[1]
    raw = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    name, at, mac = raw.split(b":", 2)
    yield equal("a cookie that is right", asker(server, {"cookie": "AuthSession=" + value})[1], "eve")
    forged = [
        b"root:%s:%s" % (at, mac), b"eve:FFFFFFFF:" + mac, b"eve:%s:%s" % (at.lower()[::-1], mac), b"eve:0%s:%s" % (at, mac), b"eve:+%s:%s" % (at, mac), b"eve:%s:%sx" % (at, mac), b"eve:%s:%s" % (at, mac[:-1]),
        b"eve:%s:" % at, b"eve::" + mac, b":%s:%s" % (at, mac), b"eve\0:%s:%s" % (at, mac), b"EVE:%s:%s" % (at, mac), b"root:eve:%s:%s" % (at, mac), b"ev:e:%s:%s" % (at, mac), b"root:%s:%s" % (at, bytes(32))
    ]
    forged += [b"root:%s:%s" % (at, hmac.new(key, b"root:" + at, digest).digest()) for key in (b"", b"\0", b"secret") for digest in (hashlib.sha1, hashlib.sha256)]
    for _ in range(400):
        changed = bytearray(raw)
        changed[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        forged.append(bytes(changed))
    for of in forged:
        found = asker(server, {"cookie": "AuthSession=" + encoded(of)})
        yield holds(f"cookie {of[:30]!r}", found[0] in (200, 400, 401) and found[1] is None, str(found))
    words = itertools.product(
        ("root", "eve", "_admin", "", f"eve:{at.decode()}"), ("", mac.hex(), mac.hex() * 2, "0" * 64, *(hmac.new(key, b"root", digest).hexdigest() for key in (b"", b"\0", b"secret", b"undefined") for digest in (hashlib.sha1, hashlib.sha256))), ("", "_admin")
    )
    for who, proof, roles in words:
        found = asker(server, {"x-auth-couchdb-username": who, "x-auth-couchdb-roles": roles, "x-auth-couchdb-token": proof})
        yield equal(f"a proxy's word for {who} {roles} {short(proof, 8)}", found[1], None)
    user = ask(server, "GET", "/_users/org.couchdb.user:eve").json
    ask(server, "PUT", "/_users/org.couchdb.user:eve", {**user, "password": "another one"}, timeout=60)
    time.sleep(1.2)
    yield equal("behind a new password", asker(server, {"cookie": "AuthSession=" + value})[1], None)


GROUPS = (tokens, cookies)
