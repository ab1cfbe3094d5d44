// Feeds over WebSockets, as the one of a browser (here Node's own) opens them.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { newName, startServer } from './server.mjs';

let server;
before(async () => { server = await startServer(); });
after(() => server?.stop());

const call = async (method, path, body) => {
  const headers = { 'content-type': 'application/json' };
  const answer = await fetch(server.url + path, { method, headers, body: body && JSON.stringify(body) });
  assert.ok(answer.ok, `${method} ${path}: ${answer.status}`);
  return answer.json();
};

/** A socket's messages one after the other, and how it ended. */
function follow(path) {
  const socket = new WebSocket(server.url.replace('http:', 'ws:') + path);
  const messages = [];
  const waiting = [];
  socket.onmessage = ({ data }) => (waiting.shift() ?? ((message) => messages.push(message)))(JSON.parse(data));
  const opened = new Promise((resolve, reject) => { socket.onopen = resolve; socket.onerror = reject; });
  const closed = new Promise((resolve) => { socket.onclose = resolve; });
  const next = () => (messages.length ? messages.shift() : new Promise((resolve) => waiting.push(resolve)));
  return { socket, opened, closed, next };
}

test('a message a row, and the end of the feed', async () => {
  const name = newName('ws');
  await call('PUT', `/${name}`);
  const feed = follow(`/${name}/_changes?feed=websocket&include_docs=true&heartbeat=50&limit=40`);
  await feed.opened;
  const text = 'é\n"'.repeat(30_000);
  for (let n = 0; n < 40; n++) {
    await call('PUT', `/${name}/doc${n}`, { n, text: n === 7 ? text : 'short' });
    if (n % 10 === 0) await new Promise((resolve) => setTimeout(resolve, 120));
  }
  const seqs = [];
  for (let n = 0; n < 40; n++) {
    const row = await feed.next();
    assert.equal(row.id, `doc${n}`);
    assert.equal(row.doc.text, n === 7 ? text : 'short');
    seqs.push(row.seq);
  }
  assert.deepEqual(seqs, seqs.toSorted());
  assert.deepEqual(await feed.next(), { last_seq: seqs.at(-1), pending: 0 });
  const { code, wasClean } = await feed.closed;
  assert.deepEqual({ code, wasClean }, { code: 1000, wasClean: true });
  await call('DELETE', `/${name}`);
});

test('a client that leaves and comes back misses nothing', async () => {
  const name = newName('ws');
  await call('PUT', `/${name}`);
  const seen = [];
  let since = 0;
  for (let round = 0; round < 5; round++) {
    const feed = follow(`/${name}/_changes?feed=websocket&heartbeat=true&since=${since}`);
    await feed.opened;
    await Promise.all(Array.from({ length: 20 }, (_, n) => call('PUT', `/${name}/${round}-${n}`, {})));
    for (let rows = 0; rows < 13 + round; rows++) {
      const row = await feed.next();
      seen.push(row.id);
      since = row.seq;
    }
    feed.socket.close();
    assert.equal((await feed.closed).wasClean, true);
  }
  const rest = await call('GET', `/${name}/_changes?since=${since}`);
  const all = [...seen, ...rest.results.map(({ id }) => id)];
  assert.equal(all.length, 100);
  assert.equal(new Set(all).size, 100);
  await call('DELETE', `/${name}`);
});

test('updates of all databases', async () => {
  const feed = follow('/_db_updates?feed=websocket&since=now&heartbeat=50');
  await feed.opened;
  const name = newName('ws');
  const expect = async (type) => {
    for (;;) {
      const row = await feed.next();
      if (row.db_name === name) return assert.equal(row.type, type);
    }
  };
  await call('PUT', `/${name}`);
  await expect('created');
  await call('PUT', `/${name}/doc`, {});
  await expect('updated');
  await call('DELETE', `/${name}`);
  await expect('deleted');
  feed.socket.close();
  await feed.closed;
});

test('what cannot be followed is an error before it is opened', async () => {
  const feed = follow('/no-such-database/_changes?feed=websocket');
  await assert.rejects(feed.opened);
  const plain = await fetch(`${server.url}/_db_updates?feed=websocket`);
  assert.equal(plain.status, 426);
});
