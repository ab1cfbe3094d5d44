"""What whole attacks are made of."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from server import MB


class Peak:
    """The most that the server has resident while this is open, in bytes."""

    # What an attack before may have left with the allocator, which is the whole group's to judge.
    BEFORE = 200 * MB

    def __init__(self, server, settles_within=8):
        end = time.monotonic() + settles_within
        while server.resident() > self.BEFORE and time.monotonic() < end:
            server.request("GET", "/innocent/_all_docs?limit=50")
            time.sleep(0.1)
        self.server, self.most, self.ending = server, server.resident(), threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ending.set()
        self.thread.join()

    def _run(self):
        while not self.ending.wait(0.02):
            try:
                self.most = max(self.most, self.server.resident())
            except OSError:
                return

    def complaint(self, bound):
        if not self.server.is_alive():
            return "the server ended"
        return f"{self.most // MB} MB resident, not {bound // MB}" if self.most > bound else None


class Busy:
    """Processor time that the server takes while this is open."""

    def __init__(self, server):
        self.server = server

    def __enter__(self):
        self.began, self.before = time.monotonic(), self.server.processor()
        return self

    def __exit__(self, *_):
        self.seconds, self.used = time.monotonic() - self.began, self.server.processor() - self.before

    def complaint(self, share):
        found = self.used / self.seconds
        return f"{found:.2f} cores for {self.seconds:.1f} s, not {share}" if found > share else None


def at_once(count, work):
    """Runs `work(n)` for each n at once; what each gave, or the error that it raised."""

    def guarded(at):
        try:
            return work(at)
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(guarded, range(count)))


def asked(server, method, path, body=None, timeout=30):
    """Status of an honest request, or what became of it instead."""
    try:
        return server.request(method, path, body, timeout=timeout)[0]
    except OSError as error:
        return repr(error)


def close_all(socks):
    for sock in socks:
        try:
            sock.close()
        except OSError:
            pass


def with_leaves(server, name, count, ancestor="", database="db"):
    """A document with as many leaves."""
    for begin in range(0, count, 500):
        docs = []
        for at in range(begin, min(count, begin + 500)):
            doc = {"_id": name, "_rev": f"1-{at:032x}"}
            if ancestor:
                doc = {"_id": name, "_revisions": {"start": 2, "ids": [f"{at:032x}", ancestor]}}
            docs.append(doc)
        server.request(
            "POST",
            f"/{database}/_bulk_docs",
            json.dumps({"new_edits": False, "docs": docs}),
            timeout=120,
            expected=(201,),
        )
