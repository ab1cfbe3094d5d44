"""HTTP/2 as frames: what is sent is never put right. Of HPACK there is what the attacks need; the server is told to use no
table, so that a status can be read without one."""

import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED, WITH_PRIORITY, ACK = 1, 4, 8, 32, 1
TABLE_SIZE, ENABLE_PUSH, MAX_STREAMS, INITIAL_WINDOW, MAX_FRAME, MAX_LIST = range(1, 7)

# Statuses that have a place of their own in HPACK's table.
INDEXED = {8: 200, 9: 204, 10: 206, 11: 304, 12: 400, 13: 404, 14: 500}
# Huffman codes of the digits.
DIGITS = {
    "00000": "0",
    "00001": "1",
    "00010": "2",
    "011001": "3",
    "011010": "4",
    "011011": "5",
    "011100": "6",
    "011101": "7",
    "011110": "8",
    "011111": "9",
}


def frame(kind, flags=0, stream=0, payload=b"", length=None):
    return (
        struct.pack(">I", len(payload) if length is None else length)[1:]
        + struct.pack(">BBI", kind, flags, stream)
        + payload
    )


def settings(*pairs):
    return frame(SETTINGS, payload=b"".join(struct.pack(">HI", *pair) for pair in pairs))


def integer(value, bits, first=0):
    """An integer of HPACK."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    out, value = [first | most], value - most
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def text(value):
    value = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
    return integer(len(value), 7) + value


def literal(name, value):
    """A field that goes into no table."""
    return b"\0" + text(name) + text(value)


def block(method="GET", path="/_up", headers=(), authority="127.0.0.1", scheme="http"):
    pseudo = [(":method", method), (":scheme", scheme), (":authority", authority), (":path", path)]
    return b"".join(literal(name, value) for name, value in [*pseudo, *headers] if value is not None)


def get(stream, path="/_up", flags=END_STREAM | END_HEADERS, **more):
    return frame(HEADERS, flags, stream, block(path=path, **more))


def status_of(fields):
    """The status that a block of fields begins with, where no table is in use; None: it does not."""
    while fields and fields[0] & 0xE0 == 0x20:
        fields = fields[1:]
    if fields and fields[0] & 0x80:
        return INDEXED.get(fields[0] & 0x7F)
    if len(fields) < 2 or (fields[0] & 0x3F if fields[0] & 0x40 else fields[0] & 0x0F) not in INDEXED:
        return None
    size, data = fields[1] & 0x7F, fields[2:]
    if not fields[1] & 0x80:
        return int(data[:size])
    bits, digits = "".join(f"{byte:08b}" for byte in data[:size]), ""
    while len(digits) < 3:
        code = next((code for code in DIGITS if bits.startswith(code)), None)
        if code is None:
            return None
        digits, bits = digits + DIGITS[code], bits[len(code) :]
    return int(digits)


class Connection:
    """A connection of HTTP/2 whose frames are read as they come."""

    def __init__(self, server, window=65_535, greet=True, receive_buffer=None):
        self.sock = server.connect(receive_buffer=receive_buffer)
        self.buffer = b""
        self.closed = False
        if greet:
            self.send(PREFACE + settings((TABLE_SIZE, 0), (ENABLE_PUSH, 0), (INITIAL_WINDOW, window)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def send(self, data):
        self.sock.sendall(data)

    def frames(self, seconds):
        """Frames as they come, for so long: kind, flags, stream, payload. Settings and pings are answered."""
        end = time.monotonic() + seconds
        while True:
            while len(self.buffer) >= 9:
                size = int.from_bytes(self.buffer[:3], "big")
                if len(self.buffer) < 9 + size:
                    break
                kind, flags, stream = struct.unpack(">BBI", self.buffer[3:9])
                payload, self.buffer = self.buffer[9 : 9 + size], self.buffer[9 + size :]
                if kind in (SETTINGS, PING) and not flags & ACK:
                    try:
                        self.send(frame(kind, ACK, 0, payload if kind == PING else b""))
                    except OSError:
                        pass
                yield kind, flags, stream, payload
            left = end - time.monotonic()
            if left <= 0:
                return
            self.sock.settimeout(left)
            try:
                data = self.sock.recv(1 << 16)
            except TimeoutError:
                return
            except OSError:
                data = b""
            if not data:
                self.closed = True
                return
            self.buffer += data

    def answer(self, stream, seconds=10):
        """Status and body of a stream; what ended it otherwise: "reset", "goaway", "closed" or "nothing"."""
        status, body = None, b""
        for kind, flags, of, payload in self.frames(seconds):
            if kind == HEADERS and of == stream:
                status = status or status_of(payload)
            elif kind == DATA and of == stream:
                body += payload
                if payload:
                    self.send(
                        frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", len(payload)))
                        + frame(WINDOW_UPDATE, 0, of, struct.pack(">I", len(payload)))
                    )
            elif kind == RST_STREAM and of == stream:
                return status or "reset", body
            elif kind == GOAWAY and int.from_bytes(payload[4:8], "big"):
                return "goaway", body
            if kind in (HEADERS, DATA) and of == stream and flags & END_STREAM:
                return status, body
        return "closed" if self.closed else "nothing", body
