#!/bin/sh
# Fills a server of format 1. $1: its URL.
set -e
u=$1
j() { curl -sf -H 'Content-Type: application/json' "$@" >&2; echo >&2; }
j -X PUT "$u/db"
j -X PUT "$u/db/plain" -d '{"n":1,"text":"plain","nested":{"list":[1,2.5,null,true,"x"]}}'
rev=
for n in $(seq 200); do
  rev=$(curl -sf -H 'Content-Type: application/json' -X PUT "$u/db/long${rev:+?rev=$rev}" -d "{\"n\":$n}" | sed 's/.*"rev":"\([^"]*\)".*/\1/')
done
rev=
for n in $(seq 100); do
  rev=$(curl -sf -H 'Content-Type: application/json' -X PUT "$u/db/deleted${rev:+?rev=$rev}" -d "{\"n\":$n}" | sed 's/.*"rev":"\([^"]*\)".*/\1/')
done
j -X DELETE "$u/db/deleted?rev=$rev"
j -X PUT "$u/db/_design/words" -d '{"language":"javascript"}'
python3 -c 'import json;print(json.dumps({"large":["large and the same " * 50] * 600}))' > large.json
j -X PUT "$u/db/large" -d @large.json
j -X PUT "$u/other%2fone"
