#!/bin/sh
# Fills a server of one commit with something of everything. $1: its URL.
set -e
u=$1
j() { curl -sf  -H 'Content-Type: application/json' "$@" >&2; echo >&2; }
j -X PUT "$u/db"
j -X PUT "$u/db/plain" -d '{"n":1,"text":"plain","nested":{"list":[1,2.5,null,true,"x"]}}'
rev=$(curl -sf  "$u/db/plain" | sed 's/.*"_rev":"\([^"]*\)".*/\1/')
j -X PUT "$u/db/plain?rev=$rev" -d '{"n":2,"text":"edited","nested":{"list":[1,2.5,null,true,"x"]}}'
j "$u/db/_bulk_docs" -d '{"new_edits":false,"docs":[
 {"_id":"conflict","_rev":"2-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb","_revisions":{"start":2,"ids":["bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb","aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"]},"side":"b"},
 {"_id":"conflict","_rev":"2-cccccccccccccccccccccccccccccccc","_revisions":{"start":2,"ids":["cccccccccccccccccccccccccccccccc","aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"]},"side":"c"},
 {"_id":"conflict","_rev":"1-oddhash","_revisions":{"start":1,"ids":["oddhash"]},"side":"odd"},
 {"_id":"purged","_rev":"1-dddddddddddddddddddddddddddddddd","_revisions":{"start":1,"ids":["dddddddddddddddddddddddddddddddd"]}}]}'
j -X PUT "$u/db/deleted" -d '{"was":"here"}'
rev=$(curl -sf  "$u/db/deleted" | sed 's/.*"_rev":"\([^"]*\)".*/\1/')
j -X DELETE "$u/db/deleted?rev=$rev"
j -X PUT "$u/db/attached" -d '{"_attachments":{"a.txt":{"content_type":"text/plain","data":"YXR0YWNoZWQgdGV4dAo="},"b.bin":{"content_type":"application/octet-stream","data":"AAECAwQFBgcICQ=="}}}'
j -X PUT "$u/db/_local/checkpoint" -d '{"seq":17}'
j -X POST "$u/db/_purge" -d '{"purged":["1-dddddddddddddddddddddddddddddddd"]}'
j -X PUT "$u/db/_security" -d '{"admins":{"names":["ann"],"roles":[]},"members":{"names":["bob"],"roles":["readers"]}}'
j -X PUT "$u/db/_revs_limit" -d '50'
j -X PUT "$u/db/_design/judge" -d '{"validate_doc_update":"function (doc) { if (doc.refused) { throw({forbidden: \"refused\"}); } }"}'
python3 -c 'import json;print(json.dumps({"large":["large and the same " * 50] * 600}))' > large.json
j -X PUT "$u/db/large" -d @large.json
j -X PUT "$u/other%2fone"
j -X PUT "$u/gone"
j -X DELETE "$u/gone"
