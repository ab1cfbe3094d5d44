"""What an input is, what must hold of its answer, and what must hold of the server after a group of them."""

import json
import socket
import time
from dataclasses import dataclass, field

import wire
from innocent import Innocent
from server import MB

# Errors that the HTTP library answers itself, before a request is one: without CouchDB's JSON.
WITHOUT_JSON = (400, 413, 414, 417, 431, 505)


@dataclass
class Input:
    """Bytes for a connection of its own, and what must come back.

    `data`: bytes, or a list of bytes and of pauses in seconds. `statuses`: what the answer may be, such as "2xx" or 404;
    "none" stands for a connection that is closed without one. `is_request`: it reaches the handlers, so an error must have
    CouchDB's form. `after`: whether the connection must be "closed" or "usable" then.
    """

    name: str
    data: object
    statuses: tuple = ("2xx", "3xx", "4xx", 501)
    is_request: bool = True
    within: float = 10
    after: str = "either"
    is_head: bool = False
    answers: int = 1
    ends_sending: bool = False
    body_has: bytes = b""
    headers: dict = field(default_factory=dict)
    """Header lines that the answer must have; None: that it must not have."""


def status_fits(status, statuses):
    return any(
        allowed == status or (isinstance(allowed, str) and allowed[0] == str(status)[0] and allowed[1:] == "xx")
        for allowed in statuses
    )


def wrong_error(answer):
    """What is wrong with an error's body; None: nothing."""
    try:
        value = json.loads(answer.body)
    except ValueError:
        return f"{answer.status} without JSON: {answer.body[:80]!r}"
    if not isinstance(value, dict) or not all(isinstance(value.get(name), str) for name in ("error", "reason")):
        return f"{answer.status} not in CouchDB's form: {answer.body[:80]!r}"
    return None


def send(sock, data):
    for piece in [data] if isinstance(data, bytes) else data:
        if isinstance(piece, bytes):
            sock.sendall(piece)
        else:
            time.sleep(piece)


def complaint(server, case):
    """Sends one input; what does not hold, or None."""
    with server.connect(timeout=case.within) as sock:
        began = time.monotonic()
        try:
            send(sock, case.data)
            if case.ends_sending:
                sock.shutdown(socket.SHUT_WR)
        except OSError:
            # The answer may have come before all was sent.
            pass
        reader = wire.Reader(sock, case.within)
        answer = None
        try:
            for _ in range(case.answers):
                answer = reader.answer(case.is_head)
        except (TimeoutError, socket.timeout):
            return f"no answer within {case.within} s"
        except ConnectionError:
            return None if "none" in case.statuses else "closed without an answer"
        except (wire.Broken, ValueError) as error:
            return f"no HTTP: {error}"
        if not status_fits(answer.status, case.statuses):
            return f"{answer.status} {answer.body[:100]!r}, not {case.statuses}"
        if answer.status >= 400 and not case.is_head:
            wrong = wrong_error(answer)
            if wrong and (case.is_request or answer.status not in WITHOUT_JSON):
                return wrong
        if case.body_has and case.body_has not in answer.body:
            return f"{answer.status} without {case.body_has[:60]!r}: {answer.body[:100]!r}"
        for name, value in case.headers.items():
            if answer.header(name) != value:
                return f"header {name} is {answer.header(name)!r}, not {value!r}"
        if time.monotonic() - began > case.within:
            return f"took {time.monotonic() - began:.1f} s"
        return wrong_after(sock, reader, case, answer)


def wrong_after(sock, reader, case, answer):
    if case.after == "closed":
        return None if wire.is_closed(sock) else f"{answer.status}, and the connection stays open"
    if case.after == "usable":
        try:
            sock.sendall(wire.request("GET", "/_up"))
            if reader.answer().status != 200:
                return "the connection is not usable"
        except (OSError, wire.Broken, ValueError) as error:
            return f"the connection is not usable: {error!r}"
    return None


class Result:
    """What came of a group."""

    def __init__(self, name):
        self.name, self.held, self.failed = name, 0, []

    def add(self, name, wrong):
        if wrong:
            self.failed.append((name, wrong))
        else:
            self.held += 1


class Watch:
    """The server before a group, and what must be as it was after it."""

    # What caches, pools and the allocator may keep.
    MEMORY_KEPT = 256 * MB
    THREADS_MORE = 8
    DESCRIPTORS_MORE = 24

    def __init__(self, server):
        self.server = server
        self.threads, self.descriptors = server.threads(), server.descriptors()
        self.panics = server.log().count("panicked")

    def complaints(self, within=20):
        """Name and complaint of each thing that must hold, with some time to come to rest."""
        server = self.server
        yield "alive", None if server.is_alive() else "the server ended"
        if not server.is_alive():
            return
        try:
            status = server.request("GET", "/_up", timeout=10)[0]
            yield "/_up", None if status == 200 else f"/_up answers {status}"
        except OSError as error:
            yield "/_up", f"/_up: {error!r}"
        panics = server.log().count("panicked")
        yield "no panic", None if panics == self.panics else "the log has panicked"
        # What closed connections had sent is still read and stored: some hundred MB, on a busy machine for a minute.
        yield "idle", None if server.is_idle(5 * within) else "the processor is busy with nobody waiting"
        for name, now, most, unit in (
            ("memory", server.resident, self.MEMORY_KEPT, MB),
            ("threads", server.threads, self.threads + self.THREADS_MORE, 1),
            ("descriptors", server.descriptors, self.descriptors + self.DESCRIPTORS_MORE, 1),
        ):
            end = time.monotonic() + within
            while now() > most and time.monotonic() < end:
                # The allocator gives memory back when it is used again.
                server.request("GET", "/innocent/_all_docs?limit=50")
                time.sleep(0.2)
            yield name, f"{name}: {now() // unit}, not {most // unit}" if now() > most else None


def run_group(server, group, rng, longest=4.0):
    """Runs a group of inputs or of whole attacks beside an innocent client; a [`Result`]."""
    result = Result(group.__name__)
    watch = Watch(server)
    with Innocent(server) as innocent:
        for case in group(server, rng):
            if isinstance(case, Input):
                result.add(case.name, complaint(server, case))
            else:
                result.add(*case)
            if not server.is_alive():
                break
    result.add(
        "innocent client",
        innocent.complaint(getattr(group, "longest_wait", longest), getattr(group, "failures_allowed", 0)),
    )
    for name, wrong in watch.complaints():
        result.add(name, wrong)
    return result
