"""A second client that does nothing wrong, and what it gets while another one attacks."""

import http.client
import threading
import time


class Innocent:
    """Reads and writes a small document in turn, on a connection that it keeps, ten times a second at most."""

    PAUSE = 0.1

    def __init__(self, server):
        self.server = server
        self.waits, self.failures = [], []
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self.began = time.monotonic()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.thread.join(30)
        self.seconds = time.monotonic() - self.began

    def _run(self):
        connection, at = None, 0
        while not self.stopping.is_set():
            at += 1
            began = time.monotonic()
            try:
                connection = connection or http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)
                status = self._ask(connection, at)
                if status >= 500:
                    self.failures.append(f"{status} after {time.monotonic() - began:.1f} s")
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(f"{error!r} after {time.monotonic() - began:.1f} s")
                if connection:
                    connection.close()
                connection = None
            self.waits.append(time.monotonic() - began)
            self.stopping.wait(self.PAUSE)
        if connection:
            connection.close()

    def _ask(self, connection, at):
        headers = {"content-type": "application/json"}
        if self.server.authorization:
            headers["authorization"] = self.server.authorization
        asked = [
            ("POST", "/innocent", b'{"n":%d}' % at),
            ("GET", "/innocent/_all_docs?limit=1", None),
            ("GET", "/_up", None),
        ][at % 3]
        connection.request(*asked, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status

    def complaint(self, longest, failures=0):
        """What it has to complain about: a wait of more than `longest` seconds, or more failures than are allowed."""
        worst = max(self.waits, default=0)
        if len(self.failures) > failures:
            return f"the innocent client failed {len(self.failures)} times: {self.failures[0]}"
        if worst > longest:
            return f"the innocent client waited {worst:.1f} s"
        if not self.waits:
            return "the innocent client was not served at all"
        return None
