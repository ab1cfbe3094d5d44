#!/usr/bin/env python3
"""What a server takes in memory while many clients read large documents.

    tests/bench/large_readers.py [target/release/flatbed] [--readers 100] [--documents 9] [--megabytes 8]
                                [--pause 5] [--take 1000] [--way NAME]...

Starts the server on an empty directory, writes the documents, and has all readers ask at once, one connection each. They read
nothing for `--pause` seconds, then all of it, or `--take` megabytes each and hang up. Prints a line of JSON for each way to read: the resident memory before, the
most of it while they read, what was read, how long it took, and how many answers were refused or cut.
"""

import argparse
import http.client
import json
import pathlib
import socket
import subprocess
import tempfile
import threading
import time

parser = argparse.ArgumentParser()
parser.add_argument("flatbed", nargs="?", default="target/release/flatbed")
parser.add_argument("--readers", type=int, default=100)
parser.add_argument("--documents", type=int, default=9)
parser.add_argument("--megabytes", type=float, default=8)
parser.add_argument("--pause", type=float, default=5)
parser.add_argument("--take", type=float, default=1e6)
parser.add_argument("--way", action="append")
options = parser.parse_args()


def resident(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def call(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(method, path, body, {"content-type": "application/json", "accept": "application/json"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def read(port, requests, pause, results):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    count = 0
    try:
        for at, (method, path, body) in enumerate(requests):
            connection.request(method, path, body, {"content-type": "application/json", "accept": "application/json"})
            if at == 0:
                time.sleep(pause)
            answer = connection.getresponse()
            while piece := answer.read(1 << 20):
                count += len(piece)
                if count > options.take * 1_000_000:
                    results.append((count, True))
                    return
            if answer.status != 200:
                results.append((count, False))
                return
        results.append((count, True))
    except (OSError, http.client.HTTPException):
        results.append((count, False))
    finally:
        connection.close()


def measure(name, port, pid, requests):
    before, results = resident(pid), []
    readers = [
        threading.Thread(target=read, args=(port, requests, options.pause, results)) for _ in range(options.readers)
    ]
    begun, most = time.monotonic(), before
    for reader in readers:
        reader.start()
    while any(reader.is_alive() for reader in readers):
        most = max(most, resident(pid))
        time.sleep(0.02)
    figures = {
        "way": name,
        "readers": options.readers,
        "before_mb": before // 1_000_000,
        "most_mb": most // 1_000_000,
        "read_mb": sum(count for count, _ in results) // 1_000_000,
        "seconds": round(time.monotonic() - begun, 1),
        "failed": sum(not is_whole for _, is_whole in results),
    }
    print(json.dumps(figures), flush=True)


def main():
    with tempfile.TemporaryDirectory() as directory:
        port = free_port()
        command = [options.flatbed, "serve", "--data-dir", f"{directory}/data", "--listen", f"127.0.0.1:{port}"]
        server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            for _ in range(200):
                try:
                    call(port, "GET", "/_up")
                    break
                except OSError:
                    time.sleep(0.05)
            assert call(port, "PUT", "/db") == 201
            # Lines of some length, as text has; not one string, and not many numbers.
            line = "the quick brown fox jumps over the lazy dog " * 20
            lines = [line] * int((options.megabytes * 1_000_000 - 1_000) / (len(line) + 3))
            names = [f"d{at}" for at in range(options.documents)]
            for name in names:
                status = call(port, "PUT", f"/db/{name}", json.dumps({"lines": lines}, separators=(",", ":")))
                assert status == 201, status
            wanted = json.dumps({"docs": [{"id": name} for name in names]})
            for name, requests in {
                "_all_docs": [("GET", "/db/_all_docs?include_docs=true", None)],
                "_changes": [("GET", "/db/_changes?include_docs=true", None)],
                "_bulk_get": [("POST", "/db/_bulk_get", wanted)],
                "documents": [("GET", f"/db/{name}", None) for name in names],
                "open_revs": [("GET", f"/db/{name}?open_revs=all", None) for name in names],
            }.items():
                if options.way and name not in options.way:
                    continue
                measure(name, port, server.pid, requests)
        finally:
            server.terminate()
            server.wait(30)


if __name__ == "__main__":
    main()
