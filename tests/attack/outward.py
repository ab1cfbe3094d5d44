"""Where users may not make the server go: addresses of its own network in every spelling, and foreign databases by their names."""

import itertools
import re
import socket
import threading
import time

from asking import ask, equal, holds, short
from rights import account
from tools import at_once

SETUP = {"admin": True}

HOSTS = (
    "127.0.0.1", "localhost", "LOCALHOST", "localhost.", "127.1", "127.0.1", "0x7f.0.0.1", "0x7f000001", "2130706433", "017700000001", "0177.0.0.1", "0", "0.0.0.0", "[::1]", "[::]", "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[::ffff:0:127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]", "[2001:0:7f00:1::]", "[fe80::1]", "[fe80::1%25lo]", "[fec0::1]",
    "[fc00::1]", "[ff02::1]", "169.254.169.254", "10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "192.0.0.1", "198.18.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1", "127.0.0.2", "127.255.255.254",
    "user:pw@127.0.0.1", "example.com@127.0.0.1", "example.com%40127.0.0.1", "example.com\\@127.0.0.1", "127.0.0.1%00.example.com", "%31%32%37.0.0.1", "\uff11\uff12\uff17.0.0.1", "127\u30020\u30020\u30021",
    "\u24db\u24decalhost", "127.0.0.1.", "127.0.0.01", "127.00.00.01", "localhost%2e", "ip6-localhost", "ip6-loopback", "[::1%25lo]", "[::00:1]", "127.0.0.1\t", "\t127.0.0.1", "[127.0.0.1]", "a.localhost"
)
URLS = (
    "http:127.0.0.1:{}/x", "http:/127.0.0.1:{}/x", "http:///127.0.0.1:{}/x", "http:\\\\127.0.0.1:{}/x", "ht\ntp://127.0.0.1:{}/x", " http://127.0.0.1:{}/x", "http://127.0.0.1:{}#@example.com/", "http://127.0.0.1:{}?@example.com/",
    "file:///etc/passwd", "gopher://127.0.0.1:{}/_x", "ftp://127.0.0.1:{}/x", "//127.0.0.1:{}/x", "http+unix://%2Ftmp%2Fx/x"
)


class Ear:
    """A port of this machine that counts who comes."""

    def __enter__(self):
        self.sock, self.heard = socket.socket(), []
        self.sock.bind(("0.0.0.0", 0))
        self.sock.listen(50)
        self.port = self.sock.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def _run(self):
        while True:
            try:
                connection, address = self.sock.accept()
            except OSError:
                return
            self.heard.append(address)
            connection.close()


def prepare(server):
    bob = {"authorization": account(server, "bob", "letmein", ["friends"])}
    ask(server, "PUT", "/mine")
    ask(server, "PUT", "/mine/_security", {"members": {"names": ["bob"]}})
    ask(server, "PUT", "/secret")
    ask(server, "PUT", "/secret/doc", {"text": "hidden"})
    return bob


def forms(url, port):
    yield {"source": url, "target": "mine"}
    yield {"source": "mine", "target": url}
    yield {"source": {"url": url, "headers": {"Host": "example.com"}}, "target": "mine"}
    yield {"source": {"url": url, "auth": {"basic": {"username": "a", "password": "b"}}}, "target": "mine"}
    yield {"source": "mine", "target": url, "create_target": True}
    yield {"source": url, "target": "mine", "source_proxy": f"http://127.0.0.1:{port}"}


def addresses(server, rng):
    """A user's replication reaches no address of the server's own network."""
    bob = prepare(server)
    with Ear() as ear:
        urls = [f"{scheme}://{host}:{ear.port}/x" for host in HOSTS for scheme in ("http", "https", "HTTP")] + [url.format(ear.port) for url in URLS]
        bodies = [body for url in urls for body in itertools.islice(forms(url, ear.port), 6 if url.startswith("http:") else 2)]
        answers = at_once(8, lambda at: [ask(server, "POST", "/_replicate", body, bob, timeout=60) for body in bodies[at::8]])
        for at, found in enumerate(answers):
            for body, answer in zip(bodies[at::8], found):
                yield holds(short(str(body), 120), 400 <= answer.status < 500, f"{answer.status} {answer.text[:200]}")
        yield equal("nobody came", ear.heard, [])


def documents(server, rng):
    """What a document of a replicator database claims of its owner, nobody believes."""
    bob = prepare(server)
    names = ("_replicator", "x%2F_replicator")
    with Ear() as ear:
        for name in names:
            ask(server, "PUT", "/" + name)
            ask(server, "PUT", f"/{name}/_security", {"members": {"names": ["bob"]}})
            for at, (source, target, more) in enumerate((
                ("secret", "mine", {}), ("mine", "secret", {}), ("secret", "mine", {"owner": "root"}), ("secret", "mine", {"user_ctx": {"name": "root", "roles": ["_admin"]}}), ("_users", "mine", {}),
                ("secret", "mine", {"owner": "root", "user_ctx": {"roles": ["_admin"]}}), (f"http://127.0.0.1:{ear.port}/x", "mine", {}), ("mine", f"http://localhost:{ear.port}/x", {}),
                (f"http://127.0.0.1:{server.port}/secret", "mine", {}), ("mine", "newdb", {"create_target": True}), ("secret", "mine", {"_replication_state": "completed"})
            )):
                body = {"source": source, "target": target, **more}
                for way, method, where, sent in (
                    ("PUT", "PUT", f"/{at}-put", body), ("POST", "POST", "", {"_id": f"{at}-post", **body}), ("bulk", "POST", "/_bulk_docs", {"docs": [{"_id": f"{at}-bulk", **body}]}),
                    ("replicated", "POST", "/_bulk_docs", {"new_edits": False, "docs": [{"_id": f"{at}-replicated", "_rev": "1-abc", **body}]})
                ):
                    answer = ask(server, method, f"/{name}{where}", sent, bob)
                    yield holds(f"{way} in {name} {body}", answer.status in (201, 400, 401, 403), f"{answer.status} {answer.text[:200]}")
            ask(server, "PUT", f"/{name}/twice", '{"source":"secret","target":"mine","owner":"bob","owner":"root"}', bob)
        time.sleep(6)
        yield equal("nobody came", ear.heard, [])
    for of, ids in (("mine", []), ("secret", ["doc"])):
        yield equal(f"{of} is as before", [row["id"] for row in ask(server, "GET", f"/{of}/_all_docs").get("rows")], ids)
    yield equal("no database was made", ask(server, "GET", "/newdb").status, 404)


def local_names(server, rng):
    """A foreign database is answered as one that there is not."""
    bob = prepare(server)

    def told(of):
        for body in (
            {"source": of, "target": "mine"}, {"source": "mine", "target": of}, {"source": of, "target": of}, {"source": {"url": of}, "target": "mine"}, {"source": "/" + of, "target": "mine"}, {"source": of + "/", "target": "mine"},
            {"source": of + "%00", "target": "mine"}, {"source": of + "?x", "target": "mine"}, {"source": of + "/doc", "target": "mine"}, {"source": "mine/../" + of, "target": "mine"}, {"source": of, "target": "mine", "filter": "a/b"},
            {"source": of, "target": "mine", "selector": {}}, {"source": of, "target": "mine", "doc_ids": ["doc"]}, {"source": "mine", "target": of, "create_target": True}, {"source": of, "target": "mine", "since_seq": "zz"},
            {"source": of, "target": "mine", "user_ctx": {"name": "root", "roles": ["_admin"]}}, {"source": {"url": of, "auth": {"basic": {"username": "root", "password": "x"}}}, "target": "mine"},
            {"source": of, "target": "mine", "continuous": True}, {"source": of, "target": "mine", "continuous": True, "cancel": True}
        ):
            answer = ask(server, "POST", "/_replicate", body, bob, timeout=60)
            yield str(body).replace(of, "DB"), answer.status, re.sub("[0-9a-f]{32}", "ID", answer.text.replace(of, "DB"))

    for theirs, none in zip(told("secret"), told("absent")):
        yield equal(short(theirs[0], 120), theirs, none)
    yield equal("nothing came", ask(server, "GET", "/mine/_all_docs").get("rows"), [])


GROUPS = (addresses, documents, local_names)
