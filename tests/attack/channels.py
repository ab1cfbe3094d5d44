"""Sync Gateway's two ports: names, bodies, sync functions, counts, sessions, and users who look for what is hidden from them."""

import http.client
import json
import re
import statistics
import threading
import time

from asking import ask, checked, equal, holds, segment, short, step, wait_for, wrong
from functions import THROWN
from gateway import ANY, Port, administrator, basic, channelled, guest, listeners, user
from server import MB
from tools import Peak, at_once

SETUP = {"more": listeners}

NAMES = (
    "", "%", "%zz", "%00", "%01%1f", "%7f", "%ff", "%c0%af", "%ed%a0%80", "%2F", "a%2Fb", ".", "..", "%2e%2e", "*", "!", "%2A%21",
    "_x", "%5Fx", "_", "a,b", "a:b", "role:x", "role%3Ax", "GUEST", "guest", "'", "%22", "%3Cscript%3E", "%20", "+", "a%0d%0aX:1",
    "%C3%A9", "e%CC%81", "%E2%80%AE", "%EF%BB%BF", "%F0%9F%92%A9", "%EF%BF%BF", "\\", "x" * 239, "x" * 240, "x" * 1_000, "x" * 1_001,
    "x" * 10_000, "%C3%A9" * 3_333, "a/b/c", "a%00b", "__proto__", "constructor", "-1", "1e9", "{}", "[]", "%7B%22a%22:1%7D"
)
BOTH = (
    "/{db}/{}", "/{db}/{}/file", "/{db}/a/{}", "/{db}/a?rev={}", "/{db}/a?open_revs={}", "/{db}/_local/{}", "/{db}/_design/{}",
    "/{db}/_design/x/_view/{}", "/{}/", "/{}/_changes", "/{}/_session", "/{db}/_{}", "/{db}/_changes?since={}",
    "/{db}/_changes?filter=sync_gateway/bychannel&channels={}", "/{db}/_changes?filter=_doc_ids&doc_ids={}",
    "/{db}/_changes?limit={}", "/{db}/_changes?feed={}", "/{db}/_changes?filter={}", "/{db}/_changes?style={}&heartbeat={}&timeout={}",
    "/{db}/_all_docs?startkey={}", "/{db}/_all_docs?keys={}", "/{db}/_all_docs?limit={}", "/{db}/?{}={}"
)
ALONE = (
    "/{db}/_user/{}", "/{db}/_user/{}/_channels", "/{db}/_user/{}/_session", "/{db}/_user/a/_session/{}", "/{db}/_user/{}/_session/x",
    "/{db}/_role/{}", "/{db}/_session/{}", "/{db}/_raw/{}", "/{db}/_raw/{}/_channels", "/{db}/_raw/a?redact={}", "/{db}/_revtree/{}",
    "/{db}/_dumpchannel/{}", "/{db}/_dumpchannel/a?since={}", "/{db}/_dump/{}", "/{db}/_view/{}", "/{db}/_sync?user={}",
    "/{db}/_resync?action={}", "/{db}/_config/{}", "/{db}/_all_docs?access={}&channels={}", "/{}/_user/a", "/{}/_config/sync"
)


def names(server, rng):
    """Every name where a path has one, at both ports, as each of those who may ask."""
    channelled(server, "named", anna={"admin_channels": ["A"]})
    admin = administrator(server)
    ask(admin, "PUT", "/named/a", {"channels": ["A"]})
    for whose, port, paths in (
        ("administrator", admin, BOTH + ALONE), ("anna", user(server, "anna"), BOTH + ALONE), ("guest", guest(server), BOTH)
    ):
        for path in paths:
            for name in NAMES:
                # What is one character wrong in a line of HTTP is refused before it is a path.
                target = path.replace("{db}", "named").replace("{}", name)
                # A database is not taken away while others are looked for.
                methods = ["GET", rng.choice(("HEAD", "PUT", "POST", "DELETE", "PATCH"))]
                for method in methods:
                    if method == "DELETE" and target.split("?")[0] in ("/named/", "/innocent/", "/db/"):
                        continue
                    body = None if method in ("GET", "HEAD", "DELETE") else {}
                    answer = ask(port, method, target, body, timeout=20)
                    yield f"{whose} {method} {short(target)}", wrong(answer, ANY | {503}, method=method)
        # `_offline` is among the names.
        ask(admin, "POST", "/named/_online", {})
    for header in (
        "", "Basic", "Basic ", "Basic =", "Basic " + "A" * 9_000, "Basic Og==", "Basic OnBhc3M=", basic("anna", ""), basic("anna:", "x"),
        basic("", ""), basic("GUEST", ""), basic("anna", "x" * 5_000), basic("x" * 5_000, "x"), basic("anna\0", "letmein"),
        basic("\u00e9", "letmein"), basic("ANNA", "letmein"), basic("anna ", "letmein"), basic("role:anna", "letmein"),
        "Bearer x", "Bearer " + "a." * 3_000, "Digest x", "Basic %%%", "basic " + basic("anna", "no")[6:], "Negotiate x"
    ):
        answer = ask(Port(server, server.public_port, header), "GET", "/named/a")
        yield f"authorization {short(header)}", wrong(answer, {401, 429, 431})
    for cookie in (
        "SyncGatewaySession", "SyncGatewaySession=", "SyncGatewaySession=x", "SyncGatewaySession=" + "0" * 40,
        "SyncGatewaySession=" + "f" * 9_000, "SyncGatewaySession=%00", "; " * 5_000, "SyncGatewaySession=../x", "AuthSession=x",
        "SyncGatewaySession=" + "\u00e9" * 20, "=" * 9_000
    ):
        answer = ask(guest(server), "GET", "/named/a", headers={"cookie": cookie.encode().decode("latin-1")})
        yield f"cookie {short(cookie)}", wrong(answer, {401, 403, 404, 431})
    yield equal("nothing of it has come in", ask(user(server, "anna"), "GET", "/named/a").status, 200)
    yield from checked(server, "named")


names.longest_wait = 6.0

DEEP = ("[" * 100_000, '{"a":' * 100_000, '{"a":' + "[" * 900 + "]" * 900 + "}", "{" * 50_000)
TEXTS = (
    "", " ", "null", "1", "-0", "1e400", '"x"', "[]", "[null]", "{}", "{", "[", '{"a"}', '{"a":}', "\ufeff{}", "{}{}", b"\xff\xfe", b'{"a":"\xff"}',
    b"\0" * 100, '{"\\ud800":1}', '{"a":"\\udc00"}', '{"a":' + "9" * 100_000 + "}", '{"' + "k" * 1_000_000 + '":1}', '{"__proto__":{"x":1}}',
    '{"_id":"\\u0000"}', '{"_id":1,"_rev":1}', '{"_rev":"x"}', '{"_rev":"1-"}', '{"_rev":"99999999999999999999-a"}', '{"_deleted":1}',
    '{"_attachments":1}', '{"_attachments":{"":{}}}', '{"_attachments":{"a":{"data":"%%"}}}', '{"_attachments":{"a":{"stub":true}}}',
    '{"_attachments":{"_x":{"data":""}}}', '{"_attachments":{"a":{"stub":true,"digest":"md5-AAAAAAAAAAAAAAAAAAAAAA==","revpos":-1}}}',
    '{"_revisions":{}}', '{"_revisions":{"start":1e9,"ids":["a"]}}', '{"_revisions":{"start":-1,"ids":[]}}', '{"_removed":true}', '{"_sync":{}}',
    '{"_exp":-1}', '{"_exp":1e400}', '{"_exp":"x"}', '{"_exp":[]}', '{"_exp":18446744073709551616}', '{"_exp":"9999-99-99T99:99:99Z"}',
    '{"_exp":"' + "9" * 100_000 + '"}', '{"_exp":"+262143-01-01T00:00:00Z"}', '{"channels":{}}', '{"channels":"%s"}' % ("x" * 100_000),
    '{"channels":[""]}', '{"channels":["a,b"]}', '{"channels":["*","!"]}', '{"channels":["\\u0000","\\ud7ff","\\uffff"]}', '{"channels":[[["A"]]]}',
    '{"channels":[1,null,true,{}]}', '{"channels":["' + "\u00e9" * 500 + '"]}', '{"channels":["' + "\u00e9" * 501 + '"]}'
)
# What each route's own body may be made of.
OWN = {
    "_user/": (
        '{"name":1}', '{"name":""}', '{"name":"a/b"}', '{"name":"GUEST"}', '{"name":"b","password":""}', '{"name":"b","password":"ab"}',
        '{"name":"b","password":1}', '{"name":"b","password":"%s"}' % ("p" * 1_000_000), '{"name":"b","password":"\\u0000\\u0000\\u0000"}',
        '{"name":"c","password":"letmein","email":"%s@x"}' % ("e" * 500_000), '{"name":"c","password":"letmein","email":1}',
        '{"name":"d","password":"letmein","disabled":"x"}', '{"name":"d","password":"letmein","account":true}',
        '{"name":"e","password":"letmein","admin_channels":%s}' % json.dumps([f"c{n}" for n in range(1_001)]),
        '{"name":"e","password":"letmein","admin_channels":%s}' % json.dumps(["c" * 990 + str(n) for n in range(1_000)]),
        '{"name":"e","password":"letmein","admin_channels":["",",","x"]}', '{"name":"e","password":"letmein","admin_channels":"A"}',
        '{"name":"e","password":"letmein","admin_channels":[["A"]]}', '{"name":"e","password":"letmein","admin_channels":["%s"]}' % ("c" * 10_000),
        '{"name":"f","password":"letmein","admin_roles":%s}' % json.dumps([f"r{n}" for n in range(101)]),
        '{"name":"f","password":"letmein","admin_roles":["\\u0000","%s","role:x"]}' % ("r" * 10_000),
        '{"name":"g","password":"letmein","admin_channels":["*","!"],"admin_roles":["*","!"]}', '{"name":"role:x","password":"letmein"}'
    ),
    "_session": (
        '{"name":"anna","ttl":0}', '{"name":"anna","ttl":-1}', '{"name":"anna","ttl":1e308}', '{"name":"anna","ttl":18446744073709551615}',
        '{"name":"anna","ttl":9223372036854775807}', '{"name":"anna","ttl":"1"}', '{"name":1}', '{"name":"%s"}' % ("n" * 100_000),
        '{"name":"GUEST"}', '{"name":""}', '{"name":"anna:x"}', '{"name":"\\u0000"}', '{"name":"anna","password":1}',
        '{"name":"anna","password":"%s"}' % ("p" * 60_000), '{"name":["anna"]}', " " * 70_000
    ),
    "_config": (
        '{"sync":1}', '{"sync":"%s"}' % ("x" * 100_000), '{"sync":"function("}', '{"sync":"\\u0000"}', '{"revs_limit":0}', '{"revs_limit":-1}',
        '{"revs_limit":18446744073709551616}', '{"revs_limit":1e9}', '{"users":1}', '{"users":{"a":1}}', '{"users":{"a":null}}',
        '{"users":%s}' % json.dumps({f"u{n}": {} for n in range(101)}), '{"roles":{"":{}}}', '{"roles":{"%s":{}}}' % ("r" * 10_000),
        '{"offline":"x"}', '{"bogus":1}', '{"allow_conflicts":true}', '{"sync":"function(doc){}","sync":1}'
    ),
    "_purge": (
        '{"a":["*"]}', '{"a":["*","*"]}', '{"a":["1-a"]}', '{"a":"*"}', '{"":["*"]}', '{"_design/x":["*"]}', '{"_local/x":["*"]}',
        json.dumps({f"x{n}": ["*"] for n in range(2_000)}), "{%s}" % ",".join('"a%d":1' % n for n in range(100_001)), '{"\\u0000":["*"]}',
        '{"%s":["*"]}' % ("x" * 100_000), "{%s}" % ",".join(['"a":["*"]'] * 1_000)
    ),
    "_bulk_docs": (
        '{"docs":1}', '{"docs":[1]}', '{"docs":[null]}', '{"docs":[[]]}', '{"docs":[%s]}' % ",".join(["{}"] * 300), '{"docs":[{"_id":"_x"}]}',
        '{"docs":[{"_id":"_design/x"}]}', '{"docs":[{"_id":"_local/x"},{"_id":"_local/"}]}', '{"new_edits":false,"docs":[{}]}',
        '{"new_edits":false,"docs":[{"_id":"n","_rev":"1-x"},{"_id":"n","_rev":"1-x"}]}', '{"new_edits":false,"docs":[{"_id":"n","_revisions":{"start":3,"ids":["a"]}}]}',
        '{"docs":[%s]}' % ",".join(["1"] * 100_001), '{"docs":[%s]}' % ",".join(['{"_id":"same"}'] * 200), '{"docs":' + "[" * 5_000
    ),
    "_bulk_get": (
        '{"docs":1}', '{"docs":[1,null,{}]}', '{"docs":[{"id":1}]}', '{"docs":[{"id":"a","rev":1}]}', '{"docs":[{"id":"a","atts_since":[1]}]}',
        '{"docs":[%s]}' % ",".join(['{"id":"a"}'] * 20_000), '{"docs":[%s]}' % ",".join(["{}"] * 100_001), '{"docs":[{"id":"_design/x"},{"id":"_local/x"}]}',
        '{"docs":[{"id":"%s"}]}' % ("x" * 100_000), '{"docs":[{"id":"a\\r\\nX: 1","rev":"1-a\\r\\nb"}]}'
    ),
    "_revs_diff": (
        '{"a":1}', '{"a":[1]}', '{"a":["x"]}', '{"a":["1-%s"]}' % ("f" * 5_000), '{"":["1-a"]}', '{"_design/x":["1-a"]}',
        json.dumps({"a": [f"{n}-a" for n in range(1, 20_000)]}), "{%s}" % ",".join(['"a":["9-x"]'] * 50_000), '{"a":["18446744073709551616-a"]}',
        "{%s}" % ",".join('"a%d":[]' % n for n in range(100_001))
    ),
    "_changes": (
        '{"since":true}', '{"since":"x"}', '{"since":-1}', '{"since":{}}', '{"limit":"x"}', '{"limit":-1}', '{"feed":1}', '{"feed":"x"}',
        '{"filter":"sync_gateway/bychannel"}', '{"filter":"sync_gateway/bychannel","channels":["A"]}', '{"filter":"_doc_ids","doc_ids":1}',
        '{"filter":"sync_gateway/bychannel","channels":"%s"}' % ",".join(f"c{n}" for n in range(5_000)),
        '{"filter":"sync_gateway/bychannel","channels":"%s"}' % ("c" * 1_000_000), '{"filter":"_doc_ids","doc_ids":%s}' % json.dumps([f"d{n}" for n in range(20_000)]),
        '{"filter":"_doc_ids","doc_ids":[%s]}' % ",".join(['"a"'] * 100_001), '{"heartbeat":1e400}', '{"timeout":-1}', '{"style":[]}'
    ),
    "_all_docs": (
        '{"keys":1}', '{"keys":[1]}', '{"keys":[null]}', '{"keys":%s}' % json.dumps([f"d{n}" for n in range(20_000)]), '{"keys":[%s]}' % ",".join(['"a"'] * 100_001),
        '{"keys":["%s"]}' % ("x" * 100_000), '{"keys":["_design/x","_local/x","\\u0000",""]}'
    ),
}


def bodies(server, rng):
    """JSON that is deep, large, broken or of the wrong kind, wherever a body is read."""
    channelled(server, "bodies", anna={"admin_channels": ["A", "B"]})
    admin, anna = administrator(server), user(server, "anna")
    ask(admin, "PUT", "/bodies/a", {"channels": ["A"], "text": "x"})
    routes = [
        (admin, method, path) for method, path in (
            ("POST", "_user/"), ("PUT", "_user/b"), ("PUT", "_user/GUEST"), ("POST", "_role/"), ("PUT", "_role/r"), ("POST", "_session"),
            ("PUT", "_config/sync"), ("PUT", "_config"), ("POST", "_resync"), ("POST", "_purge"), ("POST", "_sync"), ("POST", "_sync?user=anna"),
            ("POST", "_offline"), ("POST", "_online"), ("POST", "_compact"), ("POST", "_flush")
        )
    ] + [
        (port, method, path) for port in (admin, anna) for method, path in (
            ("POST", ""), ("PUT", "d"), ("PUT", "d?new_edits=false"), ("PUT", "_local/d"), ("POST", "_bulk_docs"), ("POST", "_bulk_get"),
            ("POST", "_revs_diff"), ("POST", "_changes"), ("POST", "_all_docs"), ("POST", "_session"), ("PUT", "a/file")
        )
    ]
    for port, method, path in routes:
        who = "admin" if port is admin else "anna"
        if path == "PUT _config":
            continue
        of = next((bodies for name, bodies in OWN.items() if path.startswith(name.rstrip("/")) and path[:5] == name[:5]), ())
        for text in (*TEXTS, *DEEP, *of):
            # What the function says of such a document is its own: it is the one that reads `channels`.
            functions = {500, 503} if path in ("", "d", "d?new_edits=false", "_config/sync") else {503}
            answer = ask(port, method, f"/bodies/{path}", text, {"accept": "*/*"}, timeout=40)
            yield f"{who} {method} {path} {short(text)}", wrong(answer, ANY | functions, 30)
        if path in ("_offline", "PUT _config", "_config", "_config/sync"):
            ask(admin, "POST", "/bodies/_online", {})
            ask(admin, "DELETE", "/bodies/_config/sync")
    for kind in ("text/html", "application/json; charset=utf-16", "multipart/related; boundary=x", "multipart/mixed", "x" * 5_000, "application/json" + ";" * 5_000):
        for path in ("_session", "_bulk_docs", "_user/b"):
            answer = ask(admin, "PUT" if path == "_user/b" else "POST", f"/bodies/{path}", "{}", {"content-type": kind})
            yield f"type {short(kind)} {path}", wrong(answer, ANY)
    ask(admin, "PUT", "/bodies/_config", {})
    yield step(anna, "and anna goes on", "GET", "/bodies/a", statuses={200, 404})
    yield step(admin, "and an administrator", "PUT", "/bodies/last", {"channels": ["A"]}, statuses=201, within=30.0)
    yield from checked(server, "bodies")


bodies.longest_wait = 8.0

# Bodies of sync functions: nothing that one does may last, be kept, or reach others.
SYNCS = (
    "for(;;);", "while(true){channel('x')}", "for(var i=0;;i++)channel('c'+i)", "for(var i=0;;i++)access('u'+i,'c'+i)", "(function f(){f()})()",
    "function f(n){return n>0?f(n-1)+f(n-2):channel('c'+n)}f(60)", "var a=[];for(;;)a.push(new Array(1e6))", "var s='x';for(;;)s+=s", "new Array(4294967295).join('x')",
    "'x'.repeat(1e9)", "var o={};for(var i=0;;i++)o['k'+i]=i", "new ArrayBuffer(4e9)", "JSON.stringify(new Array(1e8))", "/(a+)+$/.test('a'.repeat(50)+'b')",
    "var o={};o.o=o;JSON.stringify(o)", "doc.channels.map(function f(x){return f(x)})", "throw doc", "throw oldDoc", "throw meta", "return {channels:['x']}",
    "channel(doc)", "channel(undefined,null,1,{},[[]])", "channel('')", "channel('a,b')", "channel('x'.repeat(1e6))", "channel('\\u0000','\\ud800','\\uffff')",
    "channel(new Proxy([],{get(){throw 1}}))", "channel({length:1e9})", "channel(Array(1e7).fill('x'))", "channel.apply(null,Array(1e5).fill('y'))",
    "for(var i=0;i<1001;i++)channel('c'+i)", "for(var i=0;i<1000;i++)channel('c'+i)", "for(var i=0;i<1e6;i++)channel('same')", "for(var i=0;i<101;i++)channel('c'+i+'x'.repeat(990))",
    "for(var i=0;i<1001;i++)access('u'+i,'c')", "for(var i=0;i<1001;i++)role('u'+i,'role:r')", "access('role:'+'x'.repeat(1e5),'c')", "access('','c')", "access('*','!')",
    "access('u','*')", "access('u','x'.repeat(1e6))", "role('u','r')", "role('u','role:')", "role('role:a','role:b')", "role('u','role:'+'\\u00e9')",
    "requireUser(new Proxy({},{get(){for(;;);}}))", "requireRole('__proto__')", "requireRole({toString(){throw 1}})", "requireAccess('constructor')", "requireAccess(Array(1e7))",
    "requireAdmin()", "reject(200,'x')", "reject(599,'x')", "reject(600,'x')", "reject(1e9,'x')", "reject(NaN)", "reject('404',{toString(){for(;;);}})", "reject(404,'x'.repeat(1e6))",
    "reject(401)", "reject(403,'\\u0000\\ud800')", "reject(101,'x')", "reject(304,'x')", "expiry(-1)", "expiry(1e308)", "expiry('x'.repeat(1e6))", "expiry('0000-00-00T00:00:00Z')", "expiry({valueOf(){for(;;);}})",
    "expiry(0)", "channel=null;access=null;doc=null", "globalThis.channel=function(){}", "Object.prototype.x=1;Array.prototype.push=null", "Object.freeze(this)",
    "delete globalThis.Object", "eval('for(;;);')", "new Function('for(;;);')()", "Function('return this')().leak=1", "import('x')", "require('fs')", "await 1", "async function f(){for(;;);};f()",
    "Promise.resolve().then(function f(){Promise.resolve().then(f)})", "setTimeout(function(){},1)", "new Date('x').toISOString()", "Symbol()+''", "1n/0n", "null.x", "doc.x.y.z",
    "Object.defineProperty(doc,'channels',{get(){for(;;);}});channel(doc.channels)", "doc._id='other';doc._rev='9-x';channel('x')", "for(var k in doc)delete doc[k]",
    "doc.__proto__={};doc.constructor=1;doc._deleted=true", "oldDoc&&(oldDoc.channels=['stolen'])", "arguments[0]=null;arguments.length=1e9", "_.map(Array(1e9),function(){})",
    "_.each({length:1e9},function(){})", "_.uniq(Array(1e5).fill(0).map(function(x,i){return i}))", "var a=[];a[4e9]=1;channel(a)", "channel([,,,,'x'])", "label:for(;;){continue label}",
    "try{for(;;);}catch(e){for(;;);}finally{for(;;);}", "try{(function f(){f()})()}catch(e){channel('caught')}", "while(1)try{throw 1}catch(e){}"
)
WRITTEN = frozenset({200, 201, 400, 401, 403, 404, 409, 413, 429, 500, 503, *range(401, 600)})


def functions(server, rng):
    """Sync functions as a careless or hostile administrator writes them."""
    admin = administrator(server)
    channelled(server, "routed", "function(doc){channel(doc.channels)}", anna={"admin_channels": ["A"]})
    anna = user(server, "anna")
    ask(admin, "PUT", "/routed/old", {"channels": ["A"]})
    for at, body in enumerate((*SYNCS, *(f"throw ({thrown})" for thrown in THROWN))):
        source = "function(doc, oldDoc, meta) { %s }" % body
        put = ask(admin, "PUT", "/routed/_config/sync", source, {"content-type": "application/javascript"}, timeout=40)
        yield f"sync {short(body)}", wrong(put, {200, 400}, 20)
        if put.status == 200:
            dry = ask(admin, "POST", "/routed/_sync", {"_id": "dry", "channels": ["A"]}, timeout=40)
            # What is thrown is part of the answer, the function being somebody else's.
            yield f"asked about {short(body)}", wrong(dry, {200, 429, 503}, 20)
            yield f"asked in few words about {short(body)}", None if len(dry.body) < 200_000 else f"{len(dry.body)} bytes"
            mine = ask(anna, "PUT", f"/routed/d{at}", {"channels": ["A"]}, timeout=40)
            yield f"anna writes through {short(body)}", wrong(mine, WRITTEN, 20)
            yield f"told in few words {short(body)}", None if len(mine.body) < 20_000 else f"{len(mine.body)} bytes"
            yield f"read after {short(body)}", wrong(ask(anna, "GET", "/routed/none"), 404, 10)
        ask(admin, "POST", "/routed/_resync?action=stop")
    restored = ask(admin, "DELETE", "/routed/_config/sync", timeout=40)
    yield "the default again", wrong(restored, 200, 20)
    done = wait_for(lambda: ask(admin, "GET", "/routed/_resync").get("status") == "completed", 120)
    yield holds("the resync gets through", done, ask(admin, "GET", "/routed/_resync").text)
    yield step(anna, "anna writes again", "PUT", "/routed/again", {"channels": ["A"]}, statuses=201, within=20.0)
    yield step(anna, "and reads", "GET", "/routed/again", statuses=200)
    for source in (
        "", " ", "x", "function", "function(", "function(){", "function(){}}", "function(){} function(){}", "(function(){})", "()=>1", "async()=>1", "class{}", "{}", "null",
        "function(){return}//", "function(){/*", "\0", "\ufeff function(doc){}", "(() => { for(;;); })()", "function(doc){" + "x;" * 60_000 + "}", "function(doc){" + "x;" * 30_000 + "}",
        "function(){" + "(" * 39_000 + "}", "function(){return " + "[" * 30_000 + "]" * 30_000 + "}", "function(){return " + "!" * 70_000 + "1}", "function(){" + "{" * 30_000 + "}" * 30_000 + "}",
        "function(" + ",".join(f"a{n}" for n in range(10_000)) + "){}", b"\xff\xfe", "function(){return /" + "(" * 30_000 + ")" * 30_000 + "/}"
    ):
        put = ask(admin, "PUT", "/routed/_config/sync", source, {"content-type": "application/javascript"}, timeout=40)
        yield f"source {short(source)}", wrong(put, {200, 400, 413, 503}, 20)
        made = ask(admin, "PUT", f"/made{rng.randrange(10**9)}/", {"sync": source if isinstance(source, str) else "x"}, timeout=40)
        yield f"a database of {short(source)}", wrong(made, {201, 400, 413, 503}, 20)
    ask(admin, "DELETE", "/routed/_config/sync")
    yield from checked(server, "routed")


functions.longest_wait = 8.0


def isolation(server, rng):
    """Nothing of one call, document, user or database is seen by the next."""
    source = """function(doc, oldDoc, meta) {
        var kept = '';
        try { kept += typeof leak === 'undefined' ? '' : JSON.stringify(leak); } catch (e) { kept += 'e' + e; }
        try { kept += JSON.stringify(Object.prototype.leak || Function.prototype.leak || channel.leak || Math.leak || _.leak || ''); } catch (e) {}
        try { globalThis.leak = doc.secret; } catch (e) {}
        try { leak = doc.secret; } catch (e) {}
        try { Object.prototype.leak = doc.secret; } catch (e) {}
        try { Function.prototype.leak = doc.secret; } catch (e) {}
        try { channel.leak = doc.secret; _.leak = doc.secret; Math.leak = doc.secret; } catch (e) {}
        try { arguments.callee.leak = doc.secret; } catch (e) {}
        if (doc.tell) throw({forbidden: 'told ' + kept + (arguments.callee.leak || '')});
        channel('c');
    }"""
    admin = administrator(server)
    for n in range(3):
        one = channelled(server, f"one{n}", source, anna={"admin_channels": ["c"]})
        two = channelled(server, f"two{n}", source, anna={"admin_channels": ["c"]})
        secret = f"secret{n}of{rng.randrange(10**6)}"
        for turn in range(6):
            ask(admin, "PUT", f"{one}/s{turn}", {"secret": secret})
            for path in (one, two):
                told = ask(user(server, "anna"), "PUT", f"{path}/t{turn}", {"tell": True})
                yield holds(f"{path} {turn} tells nothing", told.status == 403 and secret not in told.text, told.text)
                told = ask(admin, "POST", path + "/_sync", {"_id": "t", "tell": True})
                yield holds(f"{path}/_sync {turn} tells nothing", "told" in told.text and secret not in told.text, told.text)
    one, two = channelled(server, "mine", anna={"admin_channels": ["*"]}), channelled(server, "yours", berta={"admin_channels": ["*"]})
    anna = user(server, "anna")
    for method, path in (("GET", "/"), ("GET", "/_all_docs"), ("GET", "/_changes"), ("PUT", "/x"), ("POST", "/_bulk_docs"), ("GET", "/_local/x"), ("POST", "/_revs_diff")):
        yield step(anna, f"anna {method} yours{path}", method, two + path, {} if method != "GET" else None, statuses=401)
    session = ask(anna, "POST", one + "/_session", "")
    cookie = session.headers.get("set-cookie", "").split(";")[0]
    yield holds("a session is made", session.status == 200 and cookie.startswith("SyncGatewaySession="), session.text)
    yield step(guest(server), "it works", "GET", one + "/_all_docs", headers={"cookie": cookie}, statuses=200)
    yield step(guest(server), "and not elsewhere", "GET", two + "/_all_docs", headers={"cookie": cookie}, statuses=401)
    sid = cookie.split("=")[1]
    for path, status in (("/_session/" + sid, 200), ("/_user/anna/_session/" + sid, 405), ("/_user/berta/_session/" + sid, 405)):
        yield step(admin, f"its own {path[:14]}", "GET", one + path, statuses=status)
        yield step(admin, f"of yours {path[:14]}", "GET", two + path, statuses={404, 405})
    yield step(admin, "another user does not end it", "DELETE", f"{one}/_user/berta/_session/{sid}", statuses=404)
    for path in ("_user/anna", "_role/x", "_config", "_config/sync", "_raw/x", "_revtree/x", "_dumpchannel/x", "_resync", "_purge", "_sync", "_offline", "_session/" + sid, "_compact", "_all_dbs"):
        for method in ("GET", "PUT", "POST", "DELETE"):
            answer = ask(anna, method, f"{one}/{path}", None if method in ("GET", "DELETE") else {})
            yield f"a user {method} {path[:12]}", wrong(answer, {404, 405})
    # CouchDB's port: where there are administrators a user of one database is nobody there.
    yield from checked(server, "mine", "one0")


def sessions(server, rng):
    """Wrong passwords and sessions without end, beside a user who has one."""
    path = channelled(server, "sessions", **{f"u{n}": {"admin_channels": ["A"]} for n in range(5)})
    admin = administrator(server)
    ask(admin, "PUT", path + "/a", {"channels": ["A"]})
    begun = ask(user(server, "u0"), "POST", path + "/_session", "")
    cookie = {"cookie": begun.headers.get("set-cookie", "").split(";")[0]}
    stopping, waits, failures = threading.Event(), [], []

    def reads():
        while not stopping.wait(0.05):
            answer = ask(guest(server), "GET", path + "/a", headers=cookie)
            waits.append(answer.seconds)
            if answer.status != 200:
                failures.append(f"{answer.status} {answer.text[:100]}")

    reader = threading.Thread(target=reads)
    reader.start()
    with Peak(server) as peak:
        found = at_once(16, lambda at: [ask(user(server, f"u{1 + at % 5}", f"wrong{at}{turn}"), "GET", path + "/a", timeout=60).status for turn in range(30)])
        statuses = {status for some in found for status in (some if isinstance(some, list) else [some])}
        yield holds("wrong passwords are refused", statuses <= {401, 429}, str(statuses))
        made = at_once(8, lambda at: [ask(admin, "POST", path + "/_session", {"name": "u1", "ttl": 5}).status for _ in range(100)])
        yield holds("800 sessions of one user", all(status in (200, 429) for some in made for status in some), str(made)[:200])
    stopping.set()
    reader.join()
    yield "memory of sessions", peak.complaint(300 * MB)
    yield holds("who has a session reads", not failures, str(failures[:2]))
    yield holds("within seconds", max(waits) < 5, f"{max(waits):.1f} s")
    yield step(admin, "all end", "DELETE", path + "/_user/u0/_session", statuses=200)
    gone = wait_for(lambda: ask(guest(server), "GET", path + "/a", headers=cookie).status == 401, 5)
    yield holds("and the session has ended", gone)


sessions.longest_wait = 8.0


def counts(server, rng):
    """More channels, grants, roles and users than there may be."""
    path = channelled(server, "counts", """function(doc) {
        channel(doc.channels || []);
        access(doc.users || [], doc.give || []);
        role(doc.users || [], doc.roles || []);
    }""", anna={"admin_channels": ["A"]})
    admin, anna = administrator(server), user(server, "anna")
    many = lambda count, text="c": [f"{text}{n}" for n in range(count)]
    with Peak(server) as peak:
        # With 500 the function takes too long to say so many.
        for name, body, statuses in (
            ("400 channels", {"channels": many(400)}, 201), ("1,001 channels", {"channels": many(1_001)}, 403), ("100,000 channels", {"channels": many(100_000)}, {403, 500}),
            ("300 grants", {"users": many(300, "u"), "give": ["g"]}, 201), ("1,001 grants", {"users": many(1_001, "u"), "give": ["g"]}, 403),
            ("1,000,000 grants", {"users": many(1_000, "u"), "give": many(1_000)}, {403, 500}),
            ("300 roles", {"users": many(300, "u"), "roles": many(1, "role:r")}, 201), ("10,000 roles", {"users": many(100, "u"), "roles": many(100, "role:r")}, 403),
            ("channels of 100 kB", {"channels": many(101, "x" * 995)}, 403), ("a channel of 1,001 bytes", {"channels": ["x" * 1_001]}, {400, 403, 500}),
            ("grants of long names", {"users": many(30, "u" * 200), "give": many(30, "c" * 900)}, 403)
        ):
            for port in (admin, anna):
                answer = ask(port, "PUT", f"{path}/{segment(name)}{port is anna}", body, timeout=60)
                yield name, wrong(answer, statuses, 30)
        # Each gives anna 300 channels more: what came first counts.
        for n in range(36):
            yield step(admin, f"300 channels more for anna, {n}", "PUT", f"{path}/give{n}", {"users": ["anna"], "give": many(300, f"g{n}-")}, statuses=201, within=30.0)
        for n in range(12):
            roles = [f"role:r{n}-{at}" for at in range(100)]
            yield step(admin, f"100 roles more for anna, {n}", "PUT", f"{path}/roles{n}", {"users": ["anna"], "roles": roles}, statuses=201, within=30.0)
        shown = ask(admin, "GET", path + "/_user/anna", timeout=60)
        yield "anna is shown", wrong(shown, 200, 30)
        yield holds("with 10,000 channels at most", len(shown.get("all_channels", [])) <= 10_000, str(len(shown.get("all_channels", []))))
        yield holds("and 1,000 roles", len(shown.get("roles", [])) <= 1_000, str(len(shown.get("roles", []))))
        for path_of in ("/_session", "/_changes?limit=5", "/_all_docs?limit=5", "/A", "/_changes?include_docs=true&limit=3"):
            yield step(anna, f"anna with 10,000 channels {path_of}", "GET", path + path_of, statuses={200, 404}, within=30.0)
        yield step(anna, "she writes", "PUT", path + "/hers", {"channels": ["A"]}, statuses=201, within=30.0)
        followed = at_once(20, lambda at: ask(anna, "GET", path + "/_changes?feed=longpoll&since=0&limit=1", timeout=60).status)
        yield holds("20 feeds of hers", all(status == 200 for status in followed), str(followed))
        # A document that wanders: what it has left is bounded.
        rev = None
        for n in range(40):
            answer = ask(admin, "PUT", path + "/wanders" + (f"?rev={rev}" if rev else ""), {"channels": many(100, f"w{n}-")}, timeout=60)
            rev = answer.get("rev")
            yield f"it wanders, {n}", wrong(answer, 201, 20)
        yield step(admin, "and is purged", "POST", path + "/_purge", {"wanders": ["*"]}, statuses=200, within=30.0)
    yield "memory of counts", peak.complaint(600 * MB)
    yield from checked(server, "counts")


counts.longest_wait = 8.0


class Probe:
    """Requests about an id that is hidden and one that never was, and what differs."""

    # What is of an answer and not of a document.
    PASSED_OVER = {"date", "x-couch-request-id", "x-couchdb-body-time"}

    def __init__(self, port, path, hidden, never):
        self.port, self.path, self.ids = port, path, (hidden, never)

    def answers(self, method, path, body=None, headers=None):
        for identity in self.ids:
            of = lambda text: text.replace("{}", identity) if isinstance(text, str) else text
            # As text, so that the id is put into a body, too.
            yield identity, ask(self.port, method, self.path + of(path), of(json.dumps(body)) if body is not None else None, headers, timeout=30)

    def shape(self, identity, answer):
        headers = {name: value.replace(identity, "{}") for name, value in answer.headers.items() if name not in self.PASSED_OVER}
        # The boundaries of multipart.
        texts = re.sub(r"--?-?[0-9a-f]{32}", "--", answer.text.replace(identity, "{}"))
        headers = {name: re.sub(r"-*[0-9a-f]{32}", "--", value) for name, value in headers.items()}
        return answer.status, headers, texts, len(answer.body)

    def step(self, name, method, path, body=None, headers=None):
        found = [self.shape(identity, answer) for identity, answer in self.answers(method, path, body, headers)]
        if found[0][0] == 0 or found[0][0] >= 500 and found[0][0] != 501:
            return name, f"{found[0]}"
        return name, None if found[0] == found[1] else f"{found[0]} and {found[1]}"


def asked_of_hidden(rev, digest):
    """What may be asked about a document: method, path, body, headers."""
    stub = {"a.txt": {"stub": True, "digest": digest, "length": 5, "revpos": 1}}
    for query in (
        "", f"?rev={rev}", "?rev=1-ffffffffffffffffffffffffffffffff", "?revs=true", "?conflicts=true", "?meta=true", "?revs_info=true", "?open_revs=all",
        f'?open_revs=["{rev}"]', f'?open_revs=["{rev}"]&revs=true', f'?open_revs=["{rev}"]&latest=true', "?attachments=true", f"?rev={rev}&revs=true&attachments=true", "?local_seq=true",
        "?show_exp=true", "?att_encoding_info=true", "?deleted_conflicts=true", f'?atts_since=["{rev}"]', "?revs_limit=1&revs=true", "?latest=true", "?channels=true&access=true"
    ):
        query = query.replace('"', "%22")
        for method in ("GET", "HEAD"):
            yield method, "/{}" + query, None, None
        yield "GET", "/{}" + query, None, {"accept": "multipart/mixed"}
        yield "GET", "/{}" + query, None, {"accept": "text/html"}
    yield "GET", "/{}", None, {"if-none-match": f'"{rev}"'}
    for headers in (None, {"range": "bytes=0-1"}, {"range": "bytes=100-"}, {"if-none-match": f'"{digest}"'}, {"if-none-match": "*"}):
        for query in ("", f"?rev={rev}"):
            for method in ("GET", "HEAD"):
                yield method, "/{}/a.txt" + query, None, headers
    for query in ("", "&include_docs=true", "&channels=true", "&access=true", "&update_seq=true", "&revs=true&include_docs=true", "&conflicts=true"):
        yield "GET", '/_all_docs?keys=["{}"]'.replace('"', "%22") + query, None, None
        yield "POST", "/_all_docs?x=y" + query, {"keys": ["{}", "{}"]}, None
        yield "GET", '/_all_docs?startkey="{}"&endkey="{}"'.replace('"', "%22") + query, None, None
    for query in ("", "?revs=true", "?attachments=true", "?latest=true"):
        for doc in ({"id": "{}"}, {"id": "{}", "rev": rev}, {"id": "{}", "atts_since": [rev]}):
            yield "POST", "/_bulk_get" + query, {"docs": [doc, doc]}, {"accept": "*/*"}
    for revs in ([rev], ["9-abc"], [rev, "9-abc", "1-a"], []):
        yield "POST", "/_revs_diff", {"{}": revs}, None
    for query in ("", "&include_docs=true", "&style=all_docs", "&active_only=true", "&revocations=true", "&conflicts=true"):
        yield "GET", '/_changes?filter=_doc_ids&doc_ids=["{}"]'.replace('"', "%22") + query, None, None
        yield "POST", "/_changes?filter=_doc_ids" + query, {"doc_ids": ["{}"]}, None
    # All of which the function refuses.
    for body in ({}, {"_rev": rev}, {"_rev": rev, "_deleted": True}, {"_attachments": stub}, {"_rev": rev, "_attachments": stub}, {"_deleted": True}, {"_revisions": {"start": 2, "ids": ["b", "a"]}}):
        yield "PUT", "/{}", body, None
        yield "PUT", "/{}?new_edits=false", {"_rev": "2-abc", **body}, None
        yield "POST", "/", {"_id": "{}", **body}, None
        for new_edits in (True, False):
            yield "POST", "/_bulk_docs", {"new_edits": new_edits, "docs": [{"_id": "{}", "_rev": "2-abc", **body}]}, None
    for query in ("", f"?rev={rev}", "?rev=1-ffffffffffffffffffffffffffffffff"):
        yield "DELETE", "/{}" + query, None, None
        yield "PUT", "/{}/a.txt" + query, {}, None
        yield "DELETE", "/{}/a.txt" + query, None, None
        yield "PUT", "/{}" + query, {}, None
    yield "GET", "/_local/{}", None, None


ROUTES = "function(doc, old) { if (doc.by !== 'admin' && !(old && old.by === 'admin' && doc._deleted)) requireRole('writers'); requireRole('writers'); channel(doc.channels); if (doc.ends) expiry(doc.ends); }"


def hidden(server, rng):
    """A document that a user may not see is answered as one that never was, at both ports, to the letter."""
    path = channelled(server, "hidden", ROUTES, anna={"admin_channels": ["A"]}, chef={"admin_channels": ["*"], "admin_roles": ["writers"]})
    admin = administrator(server)
    ask(admin, "PUT", path + "/_role/writers", {})
    account = {"_id": "org.couchdb.user:berta", "name": "berta", "password": "letmein", "type": "user", "roles": []}
    ask(server, "PUT", "/_users")
    made = ask(server, "PUT", "/_users/org.couchdb.user:berta", account, timeout=60)
    yield holds("an account", made.status == 201, made.text)
    secured = ask(server, "PUT", path + "/_security", {"members": {"names": ["berta"]}, "admins": {"roles": ["_admin"]}})
    yield holds("a member", secured.status == 200, secured.text)
    ask(admin, "PUT", path + "/_user/berta", {"account": True, "admin_channels": ["A"]})
    data = {"a.txt": {"content_type": "text/plain", "data": "aGVsbG8="}}
    kinds = {
        "plain": [{"channels": ["B"]}], "nowhere": [{}], "attached": [{"channels": ["B"], "_attachments": data}], "many": [{"channels": [f"c{n}" for n in range(40)]}],
        "starred": [{"channels": ["*"]}], "tombstone": [{"channels": ["B"]}, {"_deleted": True, "channels": ["B"]}], "edited": [{"channels": ["B"], "n": n, "_attachments": data} for n in range(5)],
        "ended": [{"channels": ["B"], "ends": int(time.time()) + 2}], "large": [{"channels": ["B"], "text": "x" * 300_000, "_attachments": data}],
    }
    revs, digest = {}, "md5-XUFAKrxLKna5cZ2REBfFkg=="
    for kind, versions in kinds.items():
        rev = None
        for body in versions:
            rev = ask(admin, "PUT", f"{path}/h-{kind}" + (f"?rev={rev}" if rev else ""), {"by": "admin", **body}, timeout=60).get("rev") or rev
        revs[kind] = rev
    ask(admin, "POST", path + "/_bulk_docs", {"new_edits": False, "docs": [{"_id": "h-forked", "_rev": f"{n}-{n}abc", "channels": ["B"], "by": "admin"} for n in range(1, 4)]})
    revs["forked"] = "3-3abc"
    ask(admin, "PUT", path + "/seen", {"channels": ["A"], "by": "admin"})
    time.sleep(3)
    ports = {"the public port": user(server, "anna"), "CouchDB's port": Port(server, server.port, basic("berta", "letmein"))}
    for where, port in ports.items():
        yield step(port, f"who asks sees what they should at {where}", "GET", path + "/seen", statuses=200)
    for kind, rev in revs.items():
        for where, port in ports.items():
            probe = Probe(port, path, f"h-{kind}", "n-" + kind[::-1])
            for method, of, body, headers in asked_of_hidden(rev or "1-a", digest):
                name = f"{kind} at {where}: {method} {short(of)} {short(json.dumps(body)) if body else ''} {headers or ''}"
                yield probe.step(name, method, of, body, headers)
    # What is counted.
    for where, port in ports.items():
        for asked in ("/", "/_all_docs", "/_changes", "/_changes?style=all_docs&include_docs=true"):
            answer = ask(port, "GET", path + (asked if where != "CouchDB's port" or asked != "/" else ""))
            yield holds(f"{asked} at {where} says nothing", answer.status == 200 and "h-" not in answer.text, answer.text[:300])
    for reading in ("/_design_docs", "/_find", "/_explain", "/_index", "/_design/x", "/_design/x/_view/y", "/_security", "/_revs_limit", "/_shards", "/_purged_infos", "/_changes?filter=_view&view=a/b"):
        found = ask(ports["CouchDB's port"], "GET", path + reading)
        yield f"berta {reading}", wrong(found, {400, 401, 403, 404, 405})
    yield from timing(ports, path, revs, rng)
    yield from checked(server, "hidden")


hidden.setup = {"more": listeners, "admin": True}
hidden.longest_wait = 6.0


def timing(ports, path, revs, rng):
    """How long an answer takes says nothing, as far as a test can tell: lower quartiles of many, in turn, again and again."""
    for where, port in ports.items():
        for kind in ("plain", "edited", "large", "attached", "many"):
            for asked in ("/{}", "/{}?revs=true", "/{}/a.txt", "/{}?open_revs=all"):
                differences = []
                # What is once the machine's is not so each time, and to the same side.
                while len(differences) < 6 and (not differences or min(differences) > 0.1 or max(differences) < -0.1):
                    connection = http.client.HTTPConnection("127.0.0.1", port.port, timeout=30)
                    times = {"h": [], "n": []}
                    for _ in range(60):
                        for which in rng.sample(("h", "n"), 2):
                            began = time.perf_counter()
                            connection.request("GET", path + asked.replace("{}", f"{which}-{kind}"), headers={"authorization": port.authorization})
                            connection.getresponse().read()
                            times[which].append(time.perf_counter() - began)
                    connection.close()
                    hidden_s, never_s = (statistics.quantiles(times[which])[0] for which in "hn")
                    differences.append(hidden_s / never_s - 1)
                yield holds(f"time of {asked} of {kind} at {where}", len(differences) < 6, f"{[f'{of:+.0%}' for of in differences]}")


GROUPS = (names, bodies, functions, isolation, sessions, counts, hidden)
