// `curl -N` on feeds: each row is there as soon as it is written, though nothing comes after it.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { after, before, test } from 'node:test';
import { newName, startServer } from './server.mjs';

const skip = spawnSync('curl', ['--version']).error ? 'curl is not installed' : false;

let server;
before(async () => { server = await startServer(); });
after(() => server.stop());

const call = async (method, path, body) => {
  const answer = await fetch(server.url + path, { method, headers: { 'content-type': 'application/json' }, body });
  assert.ok(answer.ok, `${method} ${path}: ${answer.status}`);
  return answer.json();
};

const feeds = {
  continuous: async (lines) => JSON.parse((await lines.next()).value),
  eventsource: async (lines) => {
    const data = (await lines.next()).value;
    const id = (await lines.next()).value;
    const row = JSON.parse(data.replace(/^data: /, ''));
    assert.equal(id, `id: ${JSON.stringify(row.seq)}`);
    return row;
  },
};

for (const [feed, read] of Object.entries(feeds)) {
  test(`curl -N and feed=${feed}`, { skip }, async () => {
    const name = newName('curl');
    await call('PUT', `/${name}`);
    const follow = (since) => {
      const url = `${server.url}/${name}/_changes?feed=${feed}&include_docs=true&since=${since}&heartbeat=30000`;
      const curl = spawn('curl', ['--silent', '--show-error', '--fail', '-N', url], { stdio: ['ignore', 'pipe', 'inherit'] });
      const lines = createInterface(curl.stdout)[Symbol.asyncIterator]();
      // Without the lines between events, and heartbeats.
      const rows = { async next() { for (;;) { const line = await lines.next(); if (line.done || line.value) return line; } } };
      return { curl, next: () => read(rows), ended: once(curl, 'exit') };
    };
    const first = follow(0);
    let last;
    for (let n = 0; n < 20; n += 1) {
      await call('PUT', `/${name}/doc${n}`, JSON.stringify({ n }));
      const row = await first.next();
      assert.deepEqual([row.id, row.doc.n], [`doc${n}`, n]);
      last = row.seq;
    }
    first.curl.kill();
    await first.ended;
    await call('PUT', `/${name}/later`, '{}');
    const second = follow(last);
    assert.equal((await second.next()).id, 'later');
    // A feed whose database is deleted does not end as one that is complete.
    await call('DELETE', `/${name}`);
    const [code] = await second.ended;
    assert.equal(code, 18, 'curl: transfer closed with outstanding read data remaining');
  });
}
