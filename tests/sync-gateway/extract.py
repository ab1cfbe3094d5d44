#!/usr/bin/env python3
"""What recorded answers of a Sync Gateway say of sync functions and of users and roles, without storage.

    extract.py answers.jsonl      writes functions.jsonl, principals.jsonl and feeds.jsonl beside this file

functions.jsonl, a scenario a line: {"name", "sync", "writes": [{"who", "doc", "old", "status", "reason", "channels", "access",
"exp"}]}. `who` is null for the administrator, else {"name", "channels", "roles"} as the function sees them; `doc` and `old` are
JSON texts. `channels`, `access` and `exp` are there where an answer tells them. Writes that the function did not run for are left out.

principals.jsonl: {"name", "steps": [[method, path, body, status, answer]]}.

feeds.jsonl: {"name", "steps": [...]}, of scenarios whose function says channels and grants of a document plainly; a step is
{"user", "channels", "roles"}, {"role", "channels"} (null: it is deleted), {"id", "rev", "deleted", "channels", "grants"}, or
{"feed", "since", "limit", "channels", "active_only", "rows", "last_seq"}, whose sequences have the names that the recording gives
them, s1, s2 and so on.
"""
import json, re, sys
from pathlib import Path

HERE = Path(__file__).parent
FUNCTIONS = ["default sync function: the channels property", "default sync function: which channel names are valid",
             "channel() called with", "an empty sync function", "throw({forbidden})", "other exceptions", "requireUser", "requireRole",
             "requireAccess", "requireAdmin", "guest and the require", "oldDoc: null", "the sync function sees a deletion",
             "the helper functions", "access() gives", "access() with odd", "role() puts", "a rejected write", "expiry() in",
             "_bulk_docs where some", "who writes is not who reads", "read-only:", "a validation of the old", "new_edits=false writes run"]
PRINCIPALS = ["users: create", "users: POST", "users: bodies", "roles: create", "guest: disabled"]
FEEDS = ["default sync function: the channels", "default sync function: which channel", "the ! channel", "a user with the *", "access() gives",
         "access() to a role", "the feed of one user", "since and other", "an edit moves", "a document that leaves", "a removal seen",
         "deletions in the feed", "filter by channel", "backfill", "a write in the middle", "two channels given", "access given by",
         "the same channel from", "channels through roles", "a change to the user", "a role of the same name", "conflicts: channels",
         "deleting, and writing", "_purge", "a user given no channel", "the same document visible", "a channel given twice", "an edit that keeps",
         "a document that gives a user"]
PLAIN = {None: lambda d: (d.get("channels"), []),
         "function(doc) { channel(doc.channels); if (doc.to) access(doc.to, doc.grant); }": lambda d: (d.get("channels"), (d.get("to"), d.get("grant"))),
         "function(doc, oldDoc) { channel(doc.channels); if (doc.grant) access(doc.to, doc.grant); }": lambda d: (d.get("channels"), (d.get("to"), d.get("grant"))),
         "function(doc) { channel(\"own-\" + doc._id); if (doc.to) access(doc.to, \"own-\" + doc._id); }":
             lambda d: ("own-" + d["_id"], (d.get("to"), "own-" + d["_id"]))}
# The function did not run: the request was refused before it.
BEFORE = {"Document exists", "Document revision conflict", "Login required", "missing", "Cannot modify attachments without a specific rev ID",
          "Invalid doc ID", "Bad _revisions", "Internal error: illegal base64 data at input byte 0"}


def user_of(who, users, roles):
    if who == "admin":
        return None
    name = "" if who == "guest" else who.split(":")[0]
    u = users.get("GUEST" if who == "guest" else name, {})
    channels = {"!"} | set(u.get("admin_channels", []))
    for r in u.get("admin_roles", []):
        channels |= set(roles.get(r, {"admin_channels": []}).get("admin_channels", [])) if r in roles else set()
    return {"name": name, "channels": sorted(channels), "roles": {r: {"Sequence": roles.get(r, {}).get("seq", 0)} for r in u.get("admin_roles", [])}}


def functions(s):
    users, roles, docs, labels, writes, last = {}, {}, {}, {}, [], {}

    def known(text):
        return re.sub(r"\{rev:([\w.]+)\}", lambda m: labels.get(m[1], "?"), text)

    def write(who, doc_id, body, status, reason, rev, history=None, deleted=False):
        if reason in BEFORE or (reason or "").startswith(("Invalid expiry", "user defined")):
            return
        revs = docs.setdefault(doc_id, {})
        body = {k: v for k, v in body.items() if k not in ("_id", "_rev", "_revisions", "_attachments")}
        exp = body.pop("_exp", None)
        if deleted:
            body["_deleted"] = True
        if history is not None:
            old = next((revs[r] for r in history[1:] if r in revs), None)
            if history[0] in revs:
                return
        else:
            old = revs.get(last.get(doc_id))
        said = re.search(r'"_rev\\?":\\?"([^"\\]+)', json.dumps(reason or ""))
        doc = {**body, "_id": doc_id, **({"_rev": rev or said[1]} if rev or said else {})}
        w = {"who": user_of(who, users, roles), "doc": json.dumps(doc, sort_keys=True, separators=(",", ":"), ensure_ascii=False),
             "old": None if old is None else json.dumps({**old, "_id": doc_id}, sort_keys=True, separators=(",", ":"), ensure_ascii=False),
             "status": status, "reason": reason}
        writes.append((doc_id, rev, w))
        if rev:
            revs[rev] = {**body, **({"_deleted": True} if deleted else {})}
            last[doc_id] = rev
            w["_exp"] = exp

    seq = 0
    for q, a in s["steps"]:
        if a is None:
            continue
        path, status = q["path"].replace("/{db}", "", 1), a["status"]
        answer = a["body"]
        body = None
        if "body" in q:
            try:
                body = json.loads(known(q["body"]))
            except ValueError:
                pass
        name = path.lstrip("/").split("?")[0]
        reason = answer.get("reason") if isinstance(answer, dict) else None
        rev = answer.get("rev") if isinstance(answer, dict) else None
        if "label" in q and rev:
            labels[q["label"]] = rev
        if name.startswith("_user/") and q["method"] == "PUT":
            seq += 1
            users[name[6:]] = body
        elif name.startswith("_role/") and q["method"] == "PUT":
            seq += 1
            roles[name[6:]] = {**body, "seq": seq + 1}
        elif name == "_bulk_docs" and q["method"] == "POST" and isinstance(answer, list):
            for i, (d, r) in enumerate(zip(body["docs"], answer)):
                if "label" in q and r.get("rev"):
                    labels[f'{q["label"]}.{i}'] = r["rev"]
                if not isinstance(d.get("_id"), str) or d["_id"].startswith("_"):
                    continue
                h = None
                if body.get("new_edits") is False:
                    v = d.get("_revisions", {"start": int(d.get("_rev", "1-").split("-")[0]), "ids": [d.get("_rev", "1-").split("-")[1]]})
                    h = [f'{v["start"] - n}-{x}' for n, x in enumerate(v["ids"])]
                write(q["as"], d["_id"], d, r.get("status", 201), r.get("reason"), r.get("rev") or (h[0] if h and not r.get("error") else None), h)
        elif q["method"] == "PUT" and name and "/" not in name and not name.startswith("_") and isinstance(body, dict):
            h = None
            if "new_edits=false" in path and "_revisions" in body:
                v = body["_revisions"]
                h = [f'{v["start"] - n}-{x}' for n, x in enumerate(v["ids"])]
            write(q["as"], name, body, status, reason, rev, h, body.get("_deleted", False))
        elif q["method"] == "POST" and name == "" and isinstance(body, dict) and status >= 400:
            write(q["as"], "posted", body, status, reason, None)
        elif q["method"] == "DELETE" and name and not name.startswith("_"):
            write(q["as"], name, {}, status if status >= 400 else 201, reason, rev, None, True)
        elif name == "_all_docs" and q["as"] == "admin" and isinstance(answer, dict):
            for row in answer["rows"]:
                for d, r, w in writes:
                    if d == row.get("id") and r == row["value"]["rev"]:
                        if "channels=true" in path:
                            w["channels"] = row["value"].get("channels", [])
                        if "access=true" in path:
                            w["access"] = row["value"].get("access", {})
        elif name.startswith("_raw/") and isinstance(answer, dict) and "_sync" in answer:
            h = answer["_sync"]["history"]
            for d, r, w in writes:
                if d == name[5:] and r in h["revs"]:
                    w["channels"] = h["channels"][h["revs"].index(r)] or []
        elif q["method"] == "GET" and "show_exp=true" in path and isinstance(answer, dict):
            for d, r, w in writes:
                if d == name and r == answer["_rev"]:
                    w["exp"] = answer.get("_exp")
    for _, _, w in writes:
        # What the body itself says is no word of the function.
        if w.pop("_exp", None) is not None:
            w.pop("exp", None)
    return {"name": s["name"], "sync": s["config"].get("sync"), "writes": [w for _, _, w in writes]}


def principals(s):
    steps = []
    for q, a in s["steps"]:
        path = (q.get("path") or "").replace("/{db}", "", 1)
        if a is None or q["as"] != "admin" or not re.match(r"/_(user|role)/", path) or "_session" in path or a["status"] == 301:
            continue
        if q["method"] == "HEAD" or (q["method"] == "GET" and path in ("/_user/", "/_role/")):
            continue
        steps.append([q["method"], path, q.get("body"), a["status"], a["body"]])
    return {"name": s["name"], "steps": steps}


def texts(of):
    return [of] if isinstance(of, str) else sorted({x for x in of if isinstance(x, str)}) if isinstance(of, list) else []


def feeds(s):
    says = PLAIN[s["config"].get("sync")]
    steps, seqs, last = [], {}, {}

    def query(path):
        return dict(re.findall(r"[?&]([^=&]+)=([^&]*)", path))

    for q, a in s["steps"]:
        if a is None:
            continue
        path, status, answer = q["path"].replace("/{db}", "", 1), a["status"], a["body"]
        name, body = path.lstrip("/").split("?")[0], None
        if "body" in q:
            try:
                body = json.loads(q["body"])
            except ValueError:
                continue
        if re.match(r"_(user|role)/.", name) and q["method"] in ("PUT", "DELETE") and status < 300:
            kind = name[1:5]
            what = {kind: name[6:], "channels": (body or {}).get("admin_channels", []) if q["method"] == "PUT" else None}
            if kind == "user":
                what["roles"] = (body or {}).get("admin_roles", [])
            steps.append(what)
        elif q["method"] in ("PUT", "DELETE") and name and "/" not in name and not name.startswith("_") and status < 300 and answer.get("rev"):
            doc = {**(body or {}), "_id": name}
            deleted = q["method"] == "DELETE" or doc.get("_deleted", False)
            channels, grants = says(doc)
            grants = [[to, c] for to in texts(grants[0]) for c in texts(grants[1])] if grants else []
            if "new_edits=false" in path or answer["rev"].split("-")[1] in ("a", "b", "c"):
                return None
            steps.append({"id": name, "rev": answer["rev"], "deleted": deleted, "channels": texts(channels), "grants": grants})
        elif name == "_purge" and status == 200 and isinstance(answer, dict):
            steps += [{"purged": i} for i in answer["purged"]]
        elif name == "_changes" and status == 200 and isinstance(answer, dict) and "results" in answer:
            p = {**(body or {}), **query(path)}
            asked = {k: p[k] for k in p if k not in ("since", "limit", "filter", "channels", "active_only", "include_docs", "attachments", "style")}
            since = str(p.get("since", "0"))
            m = re.fullmatch(r"\{seq:(\w+)(?:\.(\d+))?\}", since)
            since = seqs[m[1], m[2]] if m else since
            if "label" in q:
                seqs[q["label"], None] = answer["last_seq"]
                for i, r in enumerate(answer["results"]):
                    seqs[q["label"], str(i)] = r["seq"]
            if asked or not re.fullmatch(r"s\d+(:s\d+)?|0", since) or not re.fullmatch(r"\d+|", str(p.get("limit", ""))):
                continue
            if q["as"] == "admin" and "filter" not in p:
                continue
            rows = [{k: (r["changes"][0]["rev"] if r["changes"] else None) if k == "changes" else r[k] for k in r if k != "doc"} for r in answer["results"]]
            steps.append({"feed": q["as"], "since": since, "limit": int(p.get("limit") or 0), "active_only": p.get("active_only") in (True, "true"),
                          "channels": str(p["channels"]).split(",") if "filter" in p else None, "rows": rows, "last_seq": answer["last_seq"]})
    return {"name": s["name"], "steps": steps} if any("feed" in x for x in steps) else None


def main():
    all_of = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
    for name, wanted, of in [("functions", FUNCTIONS, functions), ("principals", PRINCIPALS, principals), ("feeds", FEEDS, feeds)]:
        with open(HERE / f"{name}.jsonl", "w", encoding="utf-8") as out:
            for begins in wanted:
                for s in all_of:
                    if s["name"].startswith(begins) and (found := of(s)):
                        out.write(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n")


main()
