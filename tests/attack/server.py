"""The server under attack: started on a free loopback port with a data directory of its own, and watched from outside."""

import base64
import http.client
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

ADMIN = ("root", "a password of the attack")
MB = 1 << 20


class Server:
    """One `flatbed serve`. With `admin` there is an administrator, without one everyone is. `more` gives further lines of
    the configuration, and places where it listens too."""

    def __init__(self, binary, admin=False, config="", more=None):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="flatbed-attack-"))
        self.log_path = self.directory / "log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FLATBED_")}
        self.authorization = None
        if admin:
            environment["FLATBED_ADMIN"] = ":".join(ADMIN)
            self.authorization = "Basic " + base64.b64encode(":".join(ADMIN).encode()).decode()
        lines, places = more(self) if more else ("", [])
        config += lines
        listen = ",".join([f"127.0.0.1:{self.port}", *places])
        command = [binary, "serve", "--listen", listen, "--data-dir", str(self.directory / "data")]
        if config:
            (self.directory / "config.toml").write_text(config)
            command += ["--config", str(self.directory / "config.toml")]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log, env=environment)
        self.wait_until_up()
        for database in ("db", "innocent"):
            self.request("PUT", f"/{database}", expected=(201,))

    def wait_until_up(self, within=20):
        end = time.monotonic() + within
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise SystemExit(f"the server ended at once:\n{self.log()}")
            try:
                if self.request("GET", "/_up", timeout=2)[0] == 200:
                    return
            except OSError:
                time.sleep(0.05)
        raise SystemExit("the server did not come up")

    def request(self, method, path, body=None, headers=None, timeout=30, expected=None):
        """An honest request on a connection of its own: status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        sent = {"content-type": "application/json", **(headers or {})}
        if self.authorization:
            sent.setdefault("authorization", self.authorization)
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            status, text = answer.status, answer.read()
        except http.client.HTTPException as error:
            raise OSError(repr(error)) from error
        finally:
            connection.close()
        if expected and status not in expected:
            raise AssertionError(f"{method} {path}: {status} {text[:200]!r}")
        return status, text

    def connect(self, timeout=20, receive_buffer=None):
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(timeout)
        sock.connect(("127.0.0.1", self.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def log(self):
        return self.log_path.read_text(errors="replace")

    def _status(self, name):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1])
        return 0

    def is_alive(self):
        return self.process.poll() is None

    def resident(self):
        """Resident memory that is not the mapped data file, in bytes."""
        return self._status("RssAnon") * 1024

    def threads(self):
        return self._status("Threads")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def processor(self):
        """Seconds of processor time so far."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def is_idle(self, within=10, share=0.15):
        """Whether it comes to rest: less than `share` of a core over a second."""
        end = time.monotonic() + within
        while True:
            before = self.processor()
            time.sleep(1)
            if self.processor() - before < share:
                return True
            if time.monotonic() > end:
                return False

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)
