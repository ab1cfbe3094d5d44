"""HTTP/1.1 as bytes: what is sent is never put right, what comes is read to the letter."""

import socket
import time


class Broken(Exception):
    """What came is no answer of HTTP/1.1."""


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def header(self, name):
        return next((value for found, value in self.headers if found == name), None)


class Reader:
    """Reads answers off a socket, until `deadline` at the latest."""

    def __init__(self, sock, seconds=20):
        self.sock, self.buffer, self.deadline = sock, b"", time.monotonic() + seconds

    def more(self):
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        self.sock.settimeout(left)
        data = self.sock.recv(1 << 16)
        self.buffer += data
        return bool(data)

    def until(self, mark):
        while mark not in self.buffer:
            if not self.more():
                raise ConnectionError("closed")
        found, self.buffer = self.buffer.split(mark, 1)
        return found

    def exactly(self, count):
        parts, have = [self.buffer], len(self.buffer)
        self.buffer = b""
        while have < count:
            if not self.more():
                raise ConnectionError("closed within a body")
            parts.append(self.buffer)
            have += len(self.buffer)
            self.buffer = b""
        whole = b"".join(parts)
        self.buffer = whole[count:]
        return whole[:count]

    def answer(self, is_head=False):
        """The next answer that is no 1xx (101 is one)."""
        while True:
            head = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
            words = head[0].split(" ", 2)
            if not words[0].startswith("HTTP/1.") or len(words) < 2 or not words[1].isdigit():
                raise Broken(head[0][:100])
            status = int(words[1])
            headers = []
            for line in head[1:]:
                name, colon, value = line.partition(":")
                if not colon or name != name.strip():
                    raise Broken(line[:100])
                headers.append((name.lower(), value.strip()))
            if status >= 200 or status == 101:
                break
        answer = Answer(status, headers, b"")
        if is_head or status in (101, 204, 304):
            return answer
        if answer.header("transfer-encoding") == "chunked":
            parts = []
            while True:
                size = int(self.until(b"\r\n").split(b";")[0], 16)
                parts.append(self.exactly(size))
                if self.exactly(2) != b"\r\n":
                    raise Broken("a chunk without its end")
                if not size:
                    break
            answer.body = b"".join(parts)
        elif answer.header("content-length") is not None:
            answer.body = self.exactly(int(answer.header("content-length")))
        else:
            while self.more():
                pass
            answer.body, self.buffer = self.buffer, b""
        return answer


def request(method, path, body=b"", headers=(), host="127.0.0.1", version="HTTP/1.1"):
    """A well-formed request, as bytes; a name that `headers` has is not added."""
    names = {name.lower() for name, _ in headers}
    lines = [f"{method} {path} {version}"]
    if host is not None and "host" not in names:
        lines.append(f"Host: {host}")
    if body and "content-length" not in names and "transfer-encoding" not in names:
        lines.append(f"Content-Length: {len(body)}")
    if body and "content-type" not in names:
        lines.append("Content-Type: application/json")
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape") + body


def chunked(body, size=1000, extension=b"", trailers=b""):
    """A body in chunks."""
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    text = b"".join(b"%x%s\r\n%s\r\n" % (len(piece), extension, piece) for piece in pieces)
    return text + b"0\r\n" + trailers + b"\r\n"


def is_closed(sock, within=2):
    """Whether the other side has closed; what still comes is thrown away."""
    end = time.monotonic() + within
    try:
        while time.monotonic() < end:
            sock.settimeout(max(0.01, end - time.monotonic()))
            if not sock.recv(1 << 16):
                return True
    except (TimeoutError, socket.timeout):
        return False
    except OSError:
        return True
    return False
