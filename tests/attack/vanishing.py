"""Writes whose validation runs long, and whose clients vanish in every way: FIN, RST, half a request, half an answer, pipelined requests;
beside a neighbour. What is answered is stored, what is half is not, and no function goes on for a client that has gone."""

import gzip
import json
import socket
import time

from asking import ask, checked
from neighbours import SETUP, at_rest, beside, children, flood, judged, late, owned, reset, tenants

LONG = "var t = Date.now(); while (Date.now() - t < %d);"
DATABASES = 12
VALIDATIONS = {0: LONG % 5, 1: LONG % 40, 2: LONG % 400, 3: LONG % 1_500, 4: "for (;;);", 5: "if (doc.n % 2) { for (;;); }", 6: "if (doc.n % 5 === 0) throw({forbidden: 'x'.repeat(3000)}); " + LONG % 20, 7: "JSON.stringify(doc).split('').sort().join('');"}
# How the request is cut, and how its client goes.
CUTS = ("whole", "head", "half head", "half", "all but one", "no last chunk", "pipelined", "pipelined in half", "slow", "with Expect")
ENDS = ("wait", "wait a little", "FIN", "RST", "shut and wait", "shut and RST", "half of the answer")


def bodies(rng, tag):
    """Method, path, type and body of a write."""
    kind = rng.choice(("bulk", "bulk", "bulk", "replicated", "put", "post", "update", "upload", "multipart", "gzip", "delete", "copy", "form", "purge", "local", "large"))
    docs = [{"_id": f"{tag}-{n}", "n": n, "text": "z" * rng.choice((5, 400))} for n in range(rng.choice((1, 30, 1_000)))]
    text = lambda value: json.dumps(value).encode()
    if kind == "bulk":
        return "POST", "/_bulk_docs", [], text({"docs": docs})
    if kind == "replicated":
        return "POST", "/_bulk_docs", [], text({"new_edits": False, "docs": [{**doc, "_rev": "1-a"} for doc in docs]})
    if kind == "put":
        return "PUT", f"/{tag}", [], text(docs[0])
    if kind == "post":
        return "POST", "", [], text(docs[0])
    if kind == "update":
        return "POST", f"/_design/x/_update/u/{tag}", [], text(docs[0])
    if kind == "upload":
        return "PUT", f"/{tag}/file", ["Content-Type: x/y"], b"y" * rng.choice((10, 300_000))
    if kind == "multipart":
        data = b"y" * rng.choice((10, 100_000))
        first = text({"_attachments": {"f": {"follows": True, "content_type": "x/y", "length": len(data)}}})
        return "PUT", f"/{tag}", ["Content-Type: multipart/related; boundary=b"], b"--b\r\nContent-Type: application/json\r\n\r\n" + first + b"\r\n--b\r\n\r\n" + data + b"\r\n--b--"
    if kind == "gzip":
        return "POST", "/_bulk_docs", ["Content-Encoding: gzip"], gzip.compress(text({"docs": docs}))
    if kind == "delete":
        return "DELETE", f"/{tag}?rev=1-a", [], b""
    if kind == "copy":
        return "COPY", "/_design/x", [f"Destination: {tag}"], b""
    if kind == "form":
        return "POST", f"/{tag}", ["Content-Type: multipart/form-data; boundary=b"], b'--b\r\nContent-Disposition: form-data; name="_doc"\r\n\r\n{}\r\n--b\r\nContent-Disposition: form-data; name="_attachments"; filename="f"\r\n\r\nxyz\r\n--b--'
    if kind == "purge":
        return "POST", "/_revs_diff", [], text({f"{tag}-{n}": ["1-a"] for n in range(5_000)})
    if kind == "local":
        return "POST", "/_bulk_docs", [], text({"docs": [{"_id": f"_local/{tag}-{n}"} if n % 2 else {"_id": f"{tag}-{n}"} for n in range(60)]})
    return "PUT", f"/{tag}", [], text({"text": "w" * 3_000_000})


def write(by, path, rng, tag, seconds=25):
    """One write that is cut somewhere; what its client saw."""
    method, where, lines, body = bodies(rng, tag)
    cut, ending = rng.choice(CUTS), rng.choice(ENDS)
    is_chunked = rng.random() < 0.2 or cut == "no last chunk"
    if cut == "with Expect":
        lines = [*lines, "Expect: 100-continue"]
    if is_chunked and body:
        head = by.head(method, path + where, None, [*lines, "Transfer-Encoding: chunked", *([] if lines else ["Content-Type: application/json"])])
        body = b"".join(b"%x\r\n%s\r\n" % (len(body[at:at + 9_000]), body[at:at + 9_000]) for at in range(0, len(body), 9_000)) + (b"" if cut == "no last chunk" else b"0\r\n\r\n")
    else:
        head = by.head(method, path + where, len(body), lines)
    data = head + body
    sent = {"head": head, "half head": head[:len(head) // 2], "half": data[:len(head) + len(body) // 2], "all but one": data[:-1], "pipelined": data * 3, "pipelined in half": data * 2 + data[:len(data) // 2]}.get(cut, data)
    sock = by.connect(timeout=seconds)
    try:
        for begin in range(0, len(sent), max(1, len(sent) // 8 if cut == "slow" else len(sent))):
            sock.sendall(sent[begin:begin + max(1, len(sent) // 8 if cut == "slow" else len(sent))])
            time.sleep(0.1 if cut == "slow" else 0)
        if ending in ("shut and wait", "shut and RST"):
            sock.shutdown(socket.SHUT_WR)
        if ending in ("FIN", "RST", "shut and RST"):
            time.sleep(rng.choice((0, 0.05, 0.5)))
            return ending
        sock.settimeout(seconds if ending == "wait" and cut in ("whole", "slow", "pipelined") else rng.choice((0.2, 2)))
        answer = sock.recv(20 if ending == "half of the answer" else 65_536)
        if answer.startswith(b"HTTP/1.1 100"):
            answer = sock.recv(65_536)
        return answer[9:12].decode("latin-1") or "closed"
    except (TimeoutError, socket.timeout):
        return "hung" if ending == "wait" and cut in ("whole", "slow", "pipelined") else "left"
    finally:
        reset(sock) if "RST" in ending else sock.close()


def prepare(server, name="lara", prefix="vanish"):
    who = tenants(server, name, 60)
    for at in range(DATABASES):
        path = owned(server, name, f"{prefix}{at}")
        ask(who[0], "PUT", path + "/_design/x", {"updates": {"u": "function(doc, req) { return [{_id: req.id, n: 1}, 'x']; }"}, "validate_doc_update": "function(doc) { var unlike = %d; %s }" % (at, VALIDATIONS[at % len(VALIDATIONS)])})
    return who


def ways(server, rng):
    """All ways at once, in databases with validations of all lengths."""
    who = prepare(server)
    seed = rng.randrange(10**9)

    def work(rng, at):
        path = f"/vanish{rng.randrange(DATABASES)}"
        return write(who[rng.randrange(60)], path, rng, f"t{rng.randrange(10**12)}")

    # What waits long is a bulk under a slow validation: up to 300 s as the limits say. It is no hang as long as the neighbour is served.
    for workers in (16, 90):
        yield from beside(server, f"{workers} writers that vanish", late(lambda: judged(f"{workers} writers", flood(workers, 20, work, seed + workers), lambda result: None)))
        yield from at_rest(server, f"{workers} writers that vanish")
    for at in range(DATABASES):
        ask(server, "DELETE", f"/vanish{at}")


def ends(server, rng):
    """A function of a client that has gone ends: each way of going, alone."""
    who = prepare(server)
    text = json.dumps({"docs": [{"n": n} for n in range(3_000)]}).encode()
    for at in (1, 4):
        for way in ("FIN", "RST", "shut", "pipelined FIN", "pipelined RST", "half and FIN", "HTTP/1.0 FIN"):
            request = who[0].head("POST", f"/vanish{at}/_bulk_docs", len(text)) + text
            sent = request * 4 if way.startswith("pipelined") else request[:-1] if way.startswith("half") else request.replace(b"HTTP/1.1", b"HTTP/1.0", 1) if "1.0" in way else request
            socks = [who[n].connect() for n in range(6)]
            for sock in socks:
                sock.settimeout(5)
                try:
                    sock.sendall(sent)
                except OSError:
                    pass
            time.sleep(0.5)
            for sock in socks:
                if "shut" in way:
                    sock.shutdown(socket.SHUT_WR)
                elif "RST" in way:
                    reset(sock)
                else:
                    sock.close()
            time.sleep(3)
            family = lambda: server.processor() + sum(processor(pid) for pid in children(server))
            before = family()
            time.sleep(2)
            used = family() - before
            yield f"validation {at} of a client that has gone by {way}", f"{used / 2:.2f} cores 3 to 5 s later" if used > 0.8 else None
            for sock in socks:
                sock.close()


def processor(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / 100
    except OSError:
        return 0


def kept(server, rng):
    """An answered write is there, and a refused one is not, among clients that vanish in the middle."""
    who = prepare(server, "lena", "keeping")
    path = "/keeping6"

    def work(rng, at):
        tag = f"k{rng.randrange(10**12)}"
        if at % 2:
            return "beside " + write(who[at % 60], path, rng, tag, 8)
        docs = [{"_id": f"{tag}-{n}", "n": n} for n in range(20)]
        answer = ask(who[at % 60], "POST", path + "/_bulk_docs", {"docs": docs}, timeout=60)
        if answer.status != 201:
            return f"bulk {answer.status} {answer.get('error') or ''}"
        taken = {row["id"] for row in answer.json if row.get("ok")}
        refused = {row.get("id"): row.get("error") for row in answer.json if not row.get("ok")}
        there = ask(who[at % 60], "POST", path + "/_all_docs", {"keys": [doc["_id"] for doc in docs]}, timeout=60)
        found = {row["id"] for row in there.get("rows", []) if "error" not in row}
        if there.status == 200 and found != taken:
            return f"WRONG {len(taken)} taken, {len(found)} found"
        odd = [error for id, error in refused.items() if error != "forbidden"]
        return f"kept, refused as {odd[0]}" if odd else "kept"

    wrong = lambda result: result if result.startswith("WRONG") or result.startswith("bulk 500") else None
    yield from beside(server, "writes that are kept", late(lambda: judged("kept", flood(24, 20, work, rng.random()), wrong)))
    yield from at_rest(server, "writes that are kept")
    yield from checked(server, "keeping6", "theirs")


for group in (ways, ends, kept):
    group.longest_wait = 30

GROUPS = (ways, ends, kept)
