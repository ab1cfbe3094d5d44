"""Sync Gateway's two ports beside CouchDB's: where they listen, and what is asked of them."""

import base64
import socket

from asking import ask

# All errors here are the client's fault but for what is not built, and for the database being closed.
REFUSED = frozenset({400, 401, 403, 404, 405, 406, 409, 411, 412, 413, 414, 415, 416, 417, 422, 429, 431, 501})
ANY = REFUSED | {200, 201, 202, 206, 301, 304}


def listeners(server):
    """Lines of the configuration for both ports."""
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        server.public_port, server.admin_port = one.getsockname()[1], two.getsockname()[1]
    lines = f'gateway_listen = "127.0.0.1:{server.public_port}"\nadmin_listen = "127.0.0.1:{server.admin_port}"\n'
    return lines, []


def basic(name, password):
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


class Port:
    """One of the ports, as somebody: what `asking` needs of a server."""

    def __init__(self, server, port, authorization=None):
        self.server, self.port, self.authorization = server, port, authorization
        self.process, self.directory, self.is_idle = server.process, server.directory, server.is_idle

    def connect(self, timeout=20, receive_buffer=None):
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(timeout)
        sock.connect(("127.0.0.1", self.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock


def administrator(server):
    return Port(server, server.admin_port)


def user(server, name, password="letmein"):
    return Port(server, server.public_port, basic(name, password))


def guest(server):
    return Port(server, server.public_port)


def channelled(server, name, sync=None, **users):
    """A new database with channels. Gives its path; `users`: names, and what their bodies have beside a password."""
    admin = administrator(server)
    ask(admin, "DELETE", f"/{name}/")
    made = ask(admin, "PUT", f"/{name}/", {"sync": sync} if sync else {})
    if made.status != 201:
        raise RuntimeError(f"no database {name}: {made.status} {made.text[:200]}")
    for who, body in users.items():
        made = ask(admin, "PUT", f"/{name}/_user/{who}", {"password": "letmein", **body})
        if made.status != 201:
            raise RuntimeError(f"no user {who}: {made.status} {made.text[:200]}")
    return "/" + name
