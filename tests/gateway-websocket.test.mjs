// `_changes?feed=websocket` of Sync Gateway's two ports, as Node's own WebSocket opens it: options as the first message, arrays of rows, an
// empty one when there is nothing left.
import assert from 'node:assert/strict';
import http2 from 'node:http2';
import { after, before, test } from 'node:test';
import { newName, startServer } from './server.mjs';

let server;
before(async () => { server = await startServer({ gateway: true }); });
after(() => server?.stop());

const basic = (name, password = 'letmein') => ({ authorization: `Basic ${btoa(`${name}:${password}`)}` });

const ask = async (url, method, path, body, headers) => {
  const sent = { 'content-type': 'application/json', ...headers };
  const answer = await fetch(url + path, { method, headers: sent, body: body && JSON.stringify(body) });
  return { status: answer.status, text: await answer.text(), headers: answer.headers };
};

const administer = async (method, path, body) => {
  const { status, text } = await ask(server.adminUrl, method, path, body);
  assert.ok(status < 300, `${method} ${path}: ${status} ${text}`);
  return text && JSON.parse(text);
};

/** A database with anna, who has channel A. */
const database = async () => {
  const name = newName('ws');
  await administer('PUT', `/${name}/`, {});
  await administer('PUT', `/${name}/_user/anna`, { password: 'letmein', admin_channels: ['A'] });
  return name;
};

/** A socket's messages one after the other, and how it ended. */
function follow(url, path, { options, headers } = {}) {
  const socket = new WebSocket(url.replace('http:', 'ws:') + path, { headers });
  const messages = [];
  const waiting = [];
  socket.onmessage = ({ data }) => (waiting.shift() ?? ((message) => messages.push(message)))(data === '' ? '' : JSON.parse(data));
  const opened = new Promise((resolve, reject) => { socket.onopen = resolve; socket.onerror = reject; });
  const closed = new Promise((resolve) => { socket.onclose = ({ code, reason, wasClean }) => resolve({ code, reason, wasClean }); });
  const next = () => (messages.length ? messages.shift() : new Promise((resolve) => waiting.push(resolve)));
  // Who is not let in is not said anything.
  opened.then(() => options !== undefined && socket.send(options), () => {});
  return { socket, opened, closed, next };
}

/** Rows up to the empty array. */
async function caughtUp(feed) {
  const rows = [];
  for (;;) {
    const batch = await feed.next();
    if (batch.length === 0) return rows;
    rows.push(...batch);
  }
}

test('what there is, that it is all, and what comes', async () => {
  const name = await database();
  for (const [id, channels] of [['a', ['A']], ['b', ['B']], ['c', ['A', 'B']]]) await administer('PUT', `/${name}/${id}`, { channels });
  const path = `/${name}/_changes?feed=websocket`;
  const feed = follow(server.publicUrl, path, { options: '{"include_docs":true}', headers: basic('anna') });
  const rows = await caughtUp(feed);
  assert.deepEqual(rows.map(({ id }) => id), ['_user/anna', 'a', 'c']);
  assert.deepEqual(rows[1].doc.channels, ['A']);
  const { text } = await ask(server.publicUrl, 'GET', `/${name}/_changes?include_docs=true`, undefined, basic('anna'));
  assert.deepEqual(rows, JSON.parse(text).results, 'the rows of any other feed');
  await administer('PUT', `/${name}/hidden`, { channels: ['B'] });
  await administer('PUT', `/${name}/d`, { channels: ['A'] });
  assert.deepEqual((await feed.next()).map(({ id }) => id), ['d']);
  // What comes with a channel that is given while it is open.
  await administer('PUT', `/${name}/_user/anna`, { admin_channels: ['A', 'B'] });
  const given = [];
  while (!given.includes('_user/anna')) given.push(...(await feed.next()).map(({ id }) => id));
  assert.deepEqual(given, ['b', 'hidden', '_user/anna']);
  feed.socket.close(1000);
  assert.deepEqual(await feed.closed, { code: 1000, reason: '', wasClean: true });
  await administer('DELETE', `/${name}/`);
});

test('it ends with the session, and says why', async () => {
  const name = await database();
  const { headers } = await ask(server.publicUrl, 'POST', `/${name}/_session`, { name: 'anna', password: 'letmein' });
  const cookie = headers.get('set-cookie').split(';')[0];
  const feed = follow(server.publicUrl, `/${name}/_changes?feed=websocket`, { options: '{}', headers: { cookie } });
  await caughtUp(feed);
  await administer('DELETE', `/${name}/_user/anna/_session`);
  const { code, reason } = await feed.closed;
  assert.equal(code, 1008);
  assert.match(reason, /login|revoked/i);
  const disabled = follow(server.publicUrl, `/${name}/_changes?feed=websocket`, { options: '{}', headers: basic('anna') });
  await caughtUp(disabled);
  await administer('PUT', `/${name}/_user/anna`, { disabled: true });
  assert.equal((await disabled.closed).code, 1008);
  const later = follow(server.publicUrl, `/${name}/_changes?feed=websocket`, { options: '{}', headers: basic('anna') });
  await assert.rejects(later.opened);
  await administer('DELETE', `/${name}/`);
});

test('options, of the message before those of the query', async () => {
  const name = await database();
  // Who says nothing is waited for ten seconds.
  const silent = follow(server.adminUrl, `/${name}/_changes?feed=websocket`);
  for (const [id, channels] of [['a', ['A']], ['b', ['B']], ['c', ['C']]]) await administer('PUT', `/${name}/${id}`, { channels });
  const of = async (query, options) => {
    const feed = follow(server.adminUrl, `/${name}/_changes?feed=websocket${query}`, { options });
    const ids = (await caughtUp(feed)).map(({ id }) => id);
    feed.socket.close();
    return ids.join();
  };
  assert.equal(await of('', '{}'), 'a,b,c');
  assert.equal(await of('', new TextEncoder().encode('{"channels":"B,C"}')), 'b,c');
  assert.equal(await of('&filter=sync_gateway/bychannel&channels=A', '{}'), 'a');
  assert.equal(await of('&filter=sync_gateway/bychannel&channels=A', '{"channels":"C"}'), 'c');
  const { results } = JSON.parse((await ask(server.adminUrl, 'GET', `/${name}/_changes`)).text);
  assert.equal(await of(`&since=${results[2].seq}`, JSON.stringify({ since: results[0].seq })), 'b,c');
  const limited = follow(server.adminUrl, `/${name}/_changes?feed=websocket`, { options: '{"limit":2}' });
  assert.deepEqual((await limited.next()).map(({ id }) => id), ['a', 'b']);
  assert.deepEqual(await limited.closed, { code: 1000, reason: '', wasClean: true });
  for (const [options, said] of [
    ['', /Invalid JSON/], ['[]', /no object/], ['{"since":"x"}', /Invalid sequence/], ['{"filter":"x"}', /Unknown filter/], ['{"filter":"_doc_ids","doc_ids":["a"]}', /only valid/],
    [`{"x":"${'x'.repeat(20_000)}"}`, /too long/],
  ]) {
    const refused = follow(server.adminUrl, `/${name}/_changes?feed=websocket`, { options });
    const { code, reason } = await refused.closed;
    assert.equal(code, 1008, options.slice(0, 50));
    assert.match(reason, said);
  }
  // Rows go one way.
  const talks = follow(server.adminUrl, `/${name}/_changes?feed=websocket`, { options: '{}' });
  await caughtUp(talks);
  talks.socket.send('{}');
  assert.equal((await talks.closed).code, 1003);
  assert.equal((await silent.closed).code, 1008);
  await administer('DELETE', `/${name}/`);
});

test('much comes as many messages', async () => {
  const name = await database();
  const text = 'é\n"'.repeat(20_000);
  for (let n = 0; n < 10; n++) await administer('PUT', `/${name}/doc${n}`, { channels: ['A'], text });
  const feed = follow(server.publicUrl, `/${name}/_changes?feed=websocket&include_docs=true`, { options: '{}', headers: basic('anna') });
  const sizes = [];
  const rows = [];
  for (let batch = await feed.next(); batch.length > 0; batch = await feed.next()) {
    sizes.push(batch.length);
    rows.push(...batch);
  }
  assert.deepEqual(rows.slice(1).map(({ id }) => id), Array.from({ length: 10 }, (_, n) => `doc${n}`));
  assert.ok(rows.slice(1).every(({ doc }) => doc.text === text));
  assert.ok(sizes.every((size) => size <= 2), `${sizes}`);
  feed.socket.close();
  await administer('DELETE', `/${name}/`);
});

test('who is not let in hears it before there is a WebSocket', async () => {
  const name = await database();
  const path = `/${name}/_changes?feed=websocket`;
  const status = async (url, of, headers) => (await ask(url, 'GET', of, undefined, headers)).status;
  assert.equal(await status(server.publicUrl, path), 401);
  assert.equal(await status(server.publicUrl, path, basic('anna')), 426);
  assert.equal((await ask(server.adminUrl, 'POST', `/${name}/_changes`, { feed: 'websocket' })).status, 426);
  assert.equal(await status(server.adminUrl, `/none/_changes?feed=websocket`), 426);
  for (const of of [path, '/none/_changes?feed=websocket']) {
    await assert.rejects(follow(server.publicUrl, of, { headers: basic('anna', 'wrong') }).opened);
    await assert.rejects(follow(server.publicUrl, of, { headers: { ...basic('anna'), origin: 'http://evil.example' } }).opened);
    await assert.rejects(follow(server.adminUrl, of, { headers: { origin: 'http://evil.example' } }).opened);
  }
  await assert.rejects(follow(server.adminUrl, '/none/_changes?feed=websocket').opened);
  await assert.rejects(follow(server.adminUrl, `${path}&since=x`).opened);
  // HTTP/2 has another way to WebSockets, which is not spoken here.
  const client = http2.connect(server.adminUrl);
  const [found, text] = await new Promise((resolve, reject) => {
    client.on('error', reject);
    const request = client.request({ ':path': path });
    let [code, body] = [0, ''];
    request.on('response', (headers) => { code = headers[':status']; });
    request.on('data', (data) => { body += data; });
    request.on('end', () => resolve([code, body]));
    request.on('error', reject);
  });
  client.close();
  assert.equal(found, 426);
  assert.match(text, /HTTP\/1\.1/);
  await administer('DELETE', `/${name}/`);
});
