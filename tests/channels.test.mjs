// PouchDB replicates as users of a database with channels, both ways: also when what they are given changes between two replications,
// and while one goes on.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import PouchDB from 'pouchdb';
import { skip } from './accounts.mjs';
import { newName, startServer } from './server.mjs';
import { until } from './waiting.mjs';

const sync = `function (doc, old, meta) {
  if (doc.needs) requireAccess(doc.needs);
  channel(doc.channels);
  (doc.access || []).forEach(function (one) { access(one[0], one[1]); });
}`;

let server;
let directory;
before(async () => {
  if (skip) return;
  server = await startServer({ gateway: true });
  directory = mkdtempSync(join(tmpdir(), 'flatbed-pouch-'));
});
after(async () => {
  if (skip) return;
  await server.stop();
  rmSync(directory, { recursive: true, force: true });
});

async function admin(method, path, body) {
  const headers = { 'content-type': 'application/json' };
  const answer = await fetch(server.adminUrl + path, { method, headers, body: JSON.stringify(body) });
  const text = await answer.text();
  assert.ok(answer.ok, `${method} ${path}: ${answer.status} ${text}`);
  return text && JSON.parse(text);
}

/** A database, and how its users open it; `anna` has channel A, `bert` B and a drop box that nobody reads but `carl`. */
async function database() {
  const name = newName('channels');
  await admin('PUT', `/${name}/`, { sync });
  for (const [user, channels] of [['anna', ['A']], ['bert', ['B']], ['carl', ['drop']]]) {
    await admin('PUT', `/${name}/_user/${user}`, { password: `${user}!`, admin_channels: channels });
  }
  const put = (id, body) => admin('PUT', `/${name}/${id}`, body);
  const give = (user, channels) => admin('PUT', `/${name}/_user/${user}`, { admin_channels: channels });
  const as = (user) => {
    const auth = { username: user, password: `${user}!` };
    return new PouchDB(`${server.publicUrl}/${name}`, { auth, skip_setup: true });
  };
  return { put, give, as };
}

const local = () => new PouchDB(join(directory, newName('local')));
const ids = async (db) => (await db.allDocs()).rows.map(({ id }) => id);

/** Waits until a replica has these documents and no others. */
async function untilHas(db, expected) {
  await until(async () => JSON.stringify(await ids(db)) === JSON.stringify(expected), () => ids(db));
}

test('a user pulls what is theirs, and pushes what the function allows', { skip }, async () => {
  const { put, as } = await database();
  await put('a', { channels: ['A'], text: 'hers' });
  await put('b', { channels: ['B'] });
  await put('both', { channels: ['A', 'B'] });
  await put('everybodys', { channels: ['!'] });
  await put('nobodys', {});
  const [anna, bert] = [local(), local()];
  await anna.replicate.from(as('anna'));
  await bert.replicate.from(as('bert'));
  assert.deepEqual(await ids(anna), ['a', 'both', 'everybodys']);
  assert.deepEqual(await ids(bert), ['b', 'both', 'everybodys']);
  await anna.put({ ...await anna.get('a'), text: 'edited' });
  await anna.put({ _id: 'new', channels: ['A', 'B'], _attachments: { f: { content_type: 'text/plain', data: btoa('file') } } });
  await anna.put({ _id: 'refused', channels: ['B'], needs: 'B' });
  await anna.put({ _id: 'dropped', channels: ['drop'] });
  const pushed = await anna.replicate.to(as('anna'));
  assert.deepEqual([pushed.docs_written, pushed.doc_write_failures], [3, 1]);
  await bert.replicate.from(as('bert'));
  assert.deepEqual(await ids(bert), ['b', 'both', 'everybodys', 'new']);
  assert.equal((await bert.getAttachment('new', 'f')).toString(), 'file');
  // Who dropped something does not see it there, and is not asked for it again.
  const again = await anna.replicate.to(as('anna'));
  assert.equal(again.docs_written, 0);
  await assert.rejects(as('anna').get('dropped'), { status: 404 });
  const carl = local();
  await carl.replicate.from(as('carl'));
  assert.deepEqual(await ids(carl), ['dropped', 'everybodys']);
  assert.equal((await as('anna').get('a')).text, 'edited');
});

test('what a user is given and loses between two replications', { skip }, async () => {
  const { put, give, as } = await database();
  await put('a', { channels: ['A'] });
  await put('old', { channels: ['B'] });
  const { rev } = await put('gone', { channels: ['B'] });
  const replica = local();
  await replica.replicate.from(as('anna'));
  assert.deepEqual(await ids(replica), ['a']);
  // By an administrator, and by a document.
  await give('anna', ['A', 'B']);
  await put('grant', { channels: [], access: [['anna', 'C']] });
  await put('c', { channels: ['C'] });
  await replica.replicate.from(as('anna'));
  assert.deepEqual(await ids(replica), ['a', 'c', 'gone', 'old']);
  // One is deleted in the channel, and another leaves it: what PouchDB keeps of that says that it was removed.
  await put('gone', { _rev: rev, _deleted: true, channels: ['B'] });
  await replica.replicate.from(as('anna'));
  assert.deepEqual(await ids(replica), ['a', 'c', 'old']);
  await give('anna', ['A']);
  await put('hidden', { channels: ['B'] });
  await put('a2', { channels: ['A'] });
  await replica.replicate.from(as('anna'));
  const found = await ids(replica);
  assert.ok(found.includes('a2') && !found.includes('hidden'), `${found}`);
  await assert.rejects(as('anna').get('old'), { status: 404 });
});

test('live, both ways, while grants come', { skip, timeout: 600_000 }, async () => {
  const { put, give, as } = await database();
  await put('a', { channels: ['A'] });
  await put('b', { channels: ['B'] });
  const [anna, bert] = [local(), local()];
  const live = [anna.sync(as('anna'), { live: true, retry: true }), bert.sync(as('bert'), { live: true, retry: true })];
  try {
    await Promise.all([untilHas(anna, ['a']), untilHas(bert, ['b'])]);
    await anna.put({ _id: 'from-anna', channels: ['A', 'B'] });
    await untilHas(bert, ['b', 'from-anna']);
    await give('bert', ['A', 'B']);
    await untilHas(bert, ['a', 'b', 'from-anna']);
    await put('grant', { channels: [], access: [['anna', 'B']] });
    await untilHas(anna, ['a', 'b', 'from-anna']);
    await bert.put({ ...await bert.get('a'), _deleted: true });
    await untilHas(anna, ['b', 'from-anna']);
  } finally {
    live.forEach((one) => one.cancel());
    await Promise.all(live);
  }
});
