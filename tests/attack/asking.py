"""Requests that are well-formed HTTP, and hostile in what they ask for.

Of each answer must hold: it comes in time, its status is one of those expected, and from 400 on it is CouchDB's JSON
form of errors. A step of an attack is a pair: its name, and what does not hold or `None`.
"""

import http.client
import json
import subprocess
import tempfile
import time
from urllib.parse import quote

# What a hostile request may be answered where nothing else is said: taken, or refused as the client's fault.
REFUSED = frozenset({400, 401, 403, 404, 405, 406, 409, 411, 412, 413, 414, 415, 416, 417, 431, 501})
ANY = REFUSED | {200, 201, 202, 206, 301, 304}


class Answer:
    """`status` 0: there was none; the text then says why."""

    def __init__(self, status, headers, body, seconds):
        self.status, self.headers, self.body, self.seconds = status, headers, body, seconds

    @property
    def text(self):
        return self.body.decode("utf-8", "replace")

    @property
    def json(self):
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    def get(self, name, default=None):
        value = self.json
        return value.get(name, default) if isinstance(value, dict) else default


def ask(server, method, path, body=None, headers=None, timeout=20.0):
    """One request on a connection of its own; `body`: bytes, text, or a value that becomes JSON. A header that is `None`
    is not sent; an administrator's name and password are, unless there is an `authorization`."""
    given = {"authorization": server.authorization, **(headers or {})}
    if body is not None and not isinstance(body, (bytes, str)):
        body = json.dumps(body)
    if isinstance(body, str):
        body = body.encode("utf-8", "surrogatepass")
    if body is not None or method == "POST":
        given.setdefault("content-type", "application/json")
    given = {name: value for name, value in given.items() if value is not None}
    began = time.monotonic()
    source = getattr(server, "source", None)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout, source_address=source)
    # A path may be wrong on purpose.
    connection._validate_path = lambda path: None
    try:
        connection.request(method, path, body, given)
        answer = connection.getresponse()
        data = answer.read()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, found, data, time.monotonic() - began)
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, {}, repr(error).encode(), time.monotonic() - began)
    finally:
        connection.close()


def wrong(answer, statuses=ANY, within=10.0, method="GET"):
    """What does not hold of an answer, or `None`."""
    if answer.status not in ({statuses} if isinstance(statuses, int) else statuses):
        return f"{answer.status} {answer.text[:200]}"
    if answer.seconds > within:
        return f"{answer.status} after {answer.seconds:.1f} s, not within {within}"
    value = answer.json
    has_form = isinstance(value, dict) and all(isinstance(value.get(name), str) for name in ("error", "reason"))
    if answer.status >= 400 and method != "HEAD" and not has_form:
        return f"{answer.status} is not in CouchDB's form: {answer.text[:200]}"
    return None


def step(server, name, method, path, body=None, headers=None, statuses=ANY, within=10.0):
    """A step that is one request."""
    return name, wrong(ask(server, method, path, body, headers, within + 10), statuses, within, method)


def equal(name, found, expected):
    """A step that compares."""
    return name, None if found == expected else f"{str(found)[:200]}, not {str(expected)[:200]}"


def holds(name, condition, otherwise=""):
    """A step that something holds."""
    return name, None if condition else otherwise or "it does not hold"


def segment(text):
    """A segment of a path; bytes may be no UTF-8."""
    return quote(text, safe="")


def database(server, name, query=""):
    """An empty database. Gives its path."""
    path = "/" + segment(name)
    ask(server, "DELETE", path)
    answer = ask(server, "PUT", path + query)
    if answer.status != 201:
        raise RuntimeError(f"no database {name}: {answer.status} {answer.text[:200]}")
    return path


def bulk(server, path, docs, new_edits=True):
    """The answer to `_bulk_docs`."""
    return ask(server, "POST", path + "/_bulk_docs", {"docs": docs, "new_edits": new_edits})


def short(text, length=60):
    """A text for a name."""
    text = text if isinstance(text, str) else repr(text)
    return text if len(text) <= length else f"{text[:length]}... ({len(text)})"


def wait_for(condition, seconds=10.0, pause=0.1):
    """Waits until a condition holds; whether it does."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True


def checked(server, *names):
    """`flatbed check` of databases, in a backup that is taken while they are served."""
    binary = server.process.args[0]
    with tempfile.TemporaryDirectory(prefix="flatbed-attack-") as directory:
        copy = directory + "/copy"
        source = str(server.directory / "data")
        made = subprocess.run([binary, "backup", copy, "--data-dir", source],
                              capture_output=True,
                              text=True,
                              timeout=120)
        if made.returncode:
            yield "backup", made.stderr[-300:]
            return
        for name in names:
            found = subprocess.run([binary, "check", name, "--data-dir", copy],
                                   capture_output=True,
                                   text=True,
                                   timeout=300)
            yield f"check {name}", None if found.returncode == 0 else (found.stdout + found.stderr)[-300:]
