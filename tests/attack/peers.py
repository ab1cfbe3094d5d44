"""A peer of a replication that lies, is slow, endless, huge, or sends its client elsewhere.

`Peer` listens on loopback and answers as CouchDB would, but for what a script says otherwise. A script is a dictionary
from a kind of request (see `KINDS`) to a function of the request that gives an answer: bytes (a JSON body), a tuple
(status, headers, body) whose body may be an iterator of pieces, or `None` for the usual answer.
"""

import json
import socket
import threading
from urllib.parse import unquote

KINDS = ("info", "log", "put_log", "changes", "bulk_get", "document", "revs_diff", "bulk_docs", "create", "other")

DOCUMENT = {"_id": "d", "_rev": "1-a", "_revisions": {"start": 1, "ids": ["a"]}, "n": 1}


def changes(rows=None, last_seq="1-x", pending=0):
    """A page of changes, of one document unless rows are given."""
    if rows is None:
        rows = [{"seq": "1-x", "id": "d", "changes": [{"rev": "1-a"}]}]
    return {"results": rows, "last_seq": last_seq, "pending": pending}


def results(*documents):
    """The answer to `_bulk_get`."""
    return {"results": [{"id": document.get("_id", "d"), "docs": [{"ok": document}]} for document in documents]}


class Request:
    """`kind` is one of `KINDS`."""

    def __init__(self, method, path, headers, body):
        self.method, self.path, self.headers, self.body = method, path, headers, body
        before, _, self.query = path.partition("?")
        parts = [unquote(part) for part in before.split("/") if part][1:]
        first = parts[0] if parts else ""
        self.kind = "other"
        if not parts:
            self.kind = "create" if method == "PUT" else "info"
        elif first == "_local":
            self.kind = "put_log" if method == "PUT" else "log"
        elif first in ("_changes", "_bulk_get", "_revs_diff", "_bulk_docs"):
            self.kind = first[1:]
        elif method == "GET":
            self.kind = "document"

    @property
    def json(self):
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def usual(request):
    """What an honest peer with one document answers."""
    if request.kind == "info":
        return {"db_name": "db", "update_seq": "1-x", "instance_start_time": "0"}
    if request.kind == "log":
        return 404, {}, b'{"error":"not_found","reason":"missing"}'
    if request.kind == "put_log":
        return 201, {}, b'{"ok":true,"id":"x","rev":"0-1"}'
    if request.kind == "changes":
        return changes(last_seq="1-x") if "since=0" in request.query else changes([], "1-x")
    if request.kind == "bulk_get":
        return results(DOCUMENT)
    if request.kind == "document":
        return [{"ok": DOCUMENT}]
    if request.kind == "revs_diff":
        return {id: {"missing": revs} for id, revs in (request.json or {}).items()}
    if request.kind == "bulk_docs":
        return 201, {}, b"[]"
    if request.kind == "create":
        return 201, {}, b'{"ok":true}'
    return 404, {}, b'{"error":"not_found","reason":"missing"}'


class Peer:
    """Serves until it is closed; `asked` counts requests by their kind."""

    def __init__(self, script=None, raw=None):
        self.script, self.raw, self.asked = script or {}, raw, dict.fromkeys(KINDS, 0)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        self.is_open = True
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/db"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.is_open = False
        self.listener.close()

    def accept(self):
        while self.is_open:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection, ), daemon=True).start()

    def serve(self, connection):
        try:
            with connection, connection.makefile("rb") as incoming:
                while self.is_open:
                    request = self.read(incoming)
                    if request is None:
                        return
                    self.asked[request.kind] += 1
                    if self.raw is not None:
                        if not self.raw(request, connection):
                            return
                        continue
                    answer(request, connection, self.script)
        except (OSError, ValueError):
            return

    @staticmethod
    def read(incoming):
        line = incoming.readline(1 << 20).decode("latin-1").split()
        if len(line) < 3:
            return None
        headers, body = {}, b""
        while True:
            header = incoming.readline(1 << 20).decode("latin-1").strip()
            if not header:
                break
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while True:
                size = int(incoming.readline(64), 16)
                body += incoming.read(size)
                incoming.readline(64)
                if size == 0:
                    break
        else:
            body = incoming.read(int(headers.get("content-length", 0)))
        return Request(line[0], line[1], headers, body)


def answer(request, connection, script):
    say = script.get(request.kind)
    said = say(request) if callable(say) else say
    if said is None:
        said = usual(request)
    status, headers, body = said if isinstance(said, tuple) else (200, {}, said)
    if not isinstance(body, (bytes, bytearray)) and not hasattr(body, "__next__"):
        body = json.dumps(body).encode()
    head = {"content-type": "application/json", **headers}
    if hasattr(body, "__next__"):
        head["transfer-encoding"] = "chunked"
    else:
        head.setdefault("content-length", str(len(body)))
    text = f"HTTP/1.1 {status} X\r\n" + "".join(f"{name}: {value}\r\n" for name, value in head.items()) + "\r\n"
    connection.sendall(text.encode("latin-1"))
    if not hasattr(body, "__next__"):
        connection.sendall(body)
        return
    for piece in body:
        connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
    connection.sendall(b"0\r\n\r\n")


def answer_as_usual(request, connection):
    answer(request, connection, {})
