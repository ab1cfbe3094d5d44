// PouchDB on LevelDB and the server, both ways; and couchbackup.
//   FLATBED_TEST_DOCUMENTS  how many documents are synchronized [1000]; one in twenty has a conflict
//   FLATBED_TEST_DATA       a file of JSON lines with so many documents, to be synchronized instead of numbered ones: real
//                           ones are made by tests/data/make.mjs with `all`
import assert from 'node:assert/strict';
import { createReadStream, createWriteStream, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import couchbackup from '@cloudant/couchbackup';
import PouchDB from 'pouchdb';
import { newName, ownPort, startServer } from './server.mjs';
import { pause, until } from './waiting.mjs';

const count = Number(process.env.FLATBED_TEST_DOCUMENTS ?? 1000);
const sample = readFileSync(join(import.meta.dirname, 'data', 'browser-compat-data.jsonl'), 'utf8')
  .trim().split('\n').map((line) => JSON.parse(line));

const real = process.env.FLATBED_TEST_DATA && readFileSync(process.env.FLATBED_TEST_DATA, 'utf8')
  .trim().split('\n').slice(0, count).map((line) => JSON.parse(line));

let server;
let directory;
before(async () => {
  server = await startServer({ port: await ownPort() });
  directory = mkdtempSync(join(tmpdir(), 'flatbed-pouch-'));
});
after(async () => {
  await server.stop();
  rmSync(directory, { recursive: true, force: true });
});

const local = () => new PouchDB(join(directory, newName('local')));

/** Every document's leaves, and its winner where that is not deleted. */
async function leaves(db) {
  const [{ results }, { rows }] = await Promise.all([db.changes({ since: 0, style: 'all_docs' }), db.allDocs()]);
  const winners = new Map(rows.map(({ id, value }) => [id, value.rev]));
  const found = results.map(({ id, changes }) => [id, [winners.get(id), ...changes.map(({ rev }) => rev).sort()]]);
  return Object.fromEntries(found.sort(([a], [b]) => (a < b ? -1 : 1)));
}

/** Waits until both sides have the same leaves and winners, of `least` documents or more. */
const untilEqual = (one, other, least) => until(async () => {
  const [a, b] = await Promise.all([leaves(one), leaves(other)]);
  return Object.keys(a).length >= least && JSON.stringify(a) === JSON.stringify(b) && a;
});

const numbered = (prefix, from, to, more = {}) =>
  Array.from({ length: to - from }, (_, i) => ({ _id: `${prefix}${String(from + i).padStart(6, '0')}`, i, ...more }));

test('live sync both ways with conflicts, while the server is killed', async () => {
  const [here, name] = [local(), newName('remote')];
  let there = new PouchDB(`${server.url}/${name}`);
  // After each batch PouchDB asks the source for its info, for its list of tasks, and leaves a refusal of that unhandled.
  const { info } = there;
  there.info = () => info.call(there).catch(() => ({ update_seq: '0' }));
  const conflicts = Math.floor(count / 20);
  const half = Math.floor((count - conflicts) / 2);
  const made = (prefix, from) => (real
    ? real.slice(from, from + half).map((doc) => ({ ...doc, _id: `${prefix}${doc._id}` }))
    : numbered(prefix, 0, half));
  await here.bulkDocs([...made('here', 0), ...numbered('both', 0, conflicts, { at: 'here' }), ...sample]);
  await there.bulkDocs([...made('there', half), ...numbered('both', 0, conflicts, { at: 'there' })]);

  const sync = here.sync(there, { live: true, retry: true, batch_size: 100 });
  const failed = new Promise((_, reject) => sync.on('error', reject));
  const begun = ['push', 'pull'].map((direction) => new Promise((resolve) =>
    sync.on('change', (change) => change.direction === direction && resolve())));
  await Promise.race([failed, Promise.all(begun)]);
  if (server.kill) {
    // In the middle; what is written here meanwhile goes over when the server is there again.
    await server.kill();
    await here.bulkDocs(numbered('while-away', 0, 50));
    await pause(500);
    server = await server.restart();
    there = new PouchDB(`${server.url}/${name}`);
  }
  // Conflicts are resolved at one side, and made anew at the other.
  await there.bulkDocs(numbered('late', 0, 50));
  const least = 2 * half + conflicts + sample.length + 50 + (server.kill ? 50 : 0);
  const all = await Promise.race([untilEqual(here, there, least), failed]);
  assert.equal(Object.values(all).filter((revs) => revs.length > 2).length, conflicts);
  for (let n = 0; n < conflicts; n += 2) {
    const id = `both${String(n).padStart(6, '0')}`;
    const { _conflicts } = await here.get(id, { conflicts: true });
    for (const rev of _conflicts) await here.remove(id, rev);
  }
  const resolved = async () => {
    const { rows } = await there.allDocs({ include_docs: true, conflicts: true });
    return rows.filter(({ doc }) => doc._conflicts).length === conflicts - Math.ceil(conflicts / 2);
  };
  await until(resolved);
  await untilEqual(here, there, least);
  for (const { _id } of sample.slice(0, 10)) assert.deepEqual(await there.get(_id), await here.get(_id));
  sync.cancel();
  await here.destroy();
});

test('attachments and filters, once and once more', async () => {
  const [here, there, back] = [local(), new PouchDB(`${server.url}/${newName('remote')}`), local()];
  const data = Buffer.alloc(300_000, 'flatbed ');
  await here.bulkDocs(numbered('doc', 0, 30));
  for (const n of [3, 4]) {
    const { _id, _rev } = await here.get(`doc00000${n}`);
    await here.putAttachment(_id, 'a/b.bin', _rev, data, 'application/octet-stream');
  }
  const out = await here.replicate.to(there, { doc_ids: ['doc000003', 'doc000005'] });
  assert.equal(out.docs_written, 2);
  assert.equal((await here.replicate.to(there)).docs_written, 28);
  // A checkpoint: there is nothing to be read again.
  assert.equal((await here.replicate.to(there)).docs_read, 0);
  const picked = await back.replicate.from(there, { selector: { i: { $lt: 10 } } });
  assert.equal(picked.docs_written, 10);
  assert.ok(data.equals(await back.getAttachment('doc000004', 'a/b.bin')));
  assert.equal((await back.replicate.from(there)).ok, true);
  assert.deepEqual(await leaves(back), await leaves(here));
});

test('couchbackup backs up and restores', async () => {
  const [from, to] = [new PouchDB(`${server.url}/${newName('from')}`), new PouchDB(`${server.url}/${newName('to')}`)];
  await from.bulkDocs([...sample, ...numbered('doc', 0, 500)]);
  const { _rev } = await from.get('doc000001');
  await from.remove('doc000001', _rev);
  await to.info();
  const file = join(directory, 'backup.txt');
  const done = (run) => new Promise((resolve, reject) => {
    run((error, data) => (error ? reject(error) : resolve(data)));
  });
  await done((next) => couchbackup.backup(from.name, createWriteStream(file), { parallelism: 2 }, next));
  await done((next) => couchbackup.restore(createReadStream(file), to.name, { parallelism: 2 }, next));
  const all = async (db) => (await db.allDocs({ include_docs: true })).rows.map(({ doc }) => doc);
  assert.deepEqual(await all(to), await all(from));
});

test('checkpoints are found again after the server is started anew', async () => {
  const [here, back] = [local(), local()];
  const [name, copy] = [newName('remote'), newName('copy')];
  let asked = [];
  // PouchDB reads nothing again that it need not, which only its requests tell.
  const remote = () => new PouchDB(`${server.url}/${name}`, {
    fetch: (url, options) => (asked.push(String(url)), PouchDB.fetch(url, options)),
  });
  const replicate = async () => {
    const answer = await fetch(`${server.url}/_replicate`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ source: name, target: `${server.url}/${copy}`, create_target: true }),
    });
    return answer.json();
  };
  await here.bulkDocs(numbered('doc', 0, 200));
  assert.equal((await here.replicate.to(remote())).docs_written, 200);
  assert.equal((await here.replicate.from(remote())).ok, true);
  assert.equal((await back.replicate.from(remote())).docs_written, 200);
  assert.equal((await replicate()).history[0].docs_written, 200);
  if (server.kill) {
    await server.kill();
    server = await server.restart();
  }
  asked = [];
  await here.replicate.to(remote());
  await back.replicate.from(remote());
  const since = asked.filter((url) => url.includes('_changes')).map((url) => new URL(url).searchParams.get('since'));
  assert.ok(since.length > 0 && since.every((seq) => seq && seq !== '0'), asked.join('\n'));
  assert.deepEqual(asked.filter((url) => /_revs_diff|_bulk_get/.test(url)), []);
  const again = await replicate();
  assert.deepEqual([again.no_changes, again.history.length], [true, 1]);
  // What is new goes on from there, one document and no more.
  await here.put({ _id: 'new' });
  assert.equal((await here.replicate.to(remote())).docs_read, 1);
  const { history: [{ missing_checked, docs_written }] } = await replicate();
  assert.deepEqual([missing_checked, docs_written], [1, 1]);
  assert.equal((await back.replicate.from(remote())).docs_read, 1);
  await here.destroy();
  await back.destroy();
});
