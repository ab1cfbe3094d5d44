// nano, the client of the CouchDB project, against the server.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import nano from 'nano';
import { newName, startServer } from './server.mjs';

let server;
let couch;
before(async () => {
  server = await startServer();
  couch = nano(server.url);
});
after(() => server.stop());

const sample = readFileSync(join(import.meta.dirname, 'data', 'browser-compat-data.jsonl'), 'utf8')
  .trimEnd().split('\n').map((line) => JSON.parse(line));

test('databases', async () => {
  assert.equal((await couch.info()).couchdb, 'Welcome');
  assert.equal((await couch.uuids(3)).uuids.length, 3);
  const name = newName('nano');
  assert.deepEqual(await couch.db.create(name), { ok: true });
  await assert.rejects(couch.db.create(name), { statusCode: 412, error: 'file_exists' });
  assert.ok((await couch.db.list()).includes(name));
  assert.equal((await couch.db.get(name)).db_name, name);
  assert.deepEqual(await couch.db.destroy(name), { ok: true });
  await assert.rejects(couch.db.get(name), { statusCode: 404, error: 'not_found' });
  await assert.rejects(couch.db.create('Upper'), { statusCode: 400, error: 'illegal_database_name' });
});

for (const query of [{}, { run_bytes: 0 }]) {
  test(`the sample documents, made with ${JSON.stringify(query)}`, async () => {
    const name = newName('sample');
    await couch.request({ db: name, method: 'put', qs: query });
    const db = couch.use(name);
    const results = await db.bulk({ docs: sample });
    assert.ok(results.every(({ rev }) => rev.startsWith('1-')));

    const { rows } = await db.list({ include_docs: true });
    const byId = new Map(rows.map(({ id, doc }) => [id, doc]));
    for (const document of sample) {
      const { _rev, ...value } = byId.get(document._id);
      assert.deepEqual(value, document);
    }
    const head = await db.head(sample[0]._id);
    assert.equal(head.etag, `"${byId.get(sample[0]._id)._rev}"`);
    const fetched = await db.fetch({ keys: [sample[5]._id, 'none'] });
    assert.deepEqual(fetched.rows.map(({ doc, error }) => doc?._id ?? error), [sample[5]._id, 'not_found']);
    await couch.db.destroy(name);
  });
}

test('edits and conflicts', async () => {
  const name = newName('edits');
  await couch.db.create(name);
  const db = couch.use(name);
  const made = await db.insert({ n: 1 });
  assert.equal((await db.get(made.id)).n, 1);
  const next = await db.insert({ _id: made.id, _rev: made.rev, n: 2 });
  await assert.rejects(db.insert({ _id: made.id, _rev: made.rev, n: 3 }), { statusCode: 409, error: 'conflict' });
  const gone = await db.destroy(made.id, next.rev);
  assert.match(gone.rev, /^3-/);
  await assert.rejects(db.get(made.id), { statusCode: 404, reason: 'deleted' });
  await couch.db.destroy(name);
});

test('the changes reader', async () => {
  const name = newName('reader');
  await couch.db.create(name);
  const db = couch.use(name);
  const seen = [];
  const reader = db.changesReader.start({ since: 0, includeDocs: true, wait: false, timeout: 5000 });
  const all = new Promise((resolve, reject) => {
    reader.on('error', reject).on('change', (change) => {
      seen.push(change.doc.n);
      if (seen.length === 40) resolve();
    });
  });
  for (let n = 0; n < 40; n += 1) await db.insert({ _id: `doc${n}`, n });
  await all;
  const ended = new Promise((resolve) => { reader.removeAllListeners('error').on('error', () => {}).on('end', resolve); });
  db.changesReader.stop();
  await ended;
  assert.deepEqual(seen, Array.from({ length: 40 }, (_, n) => n));

  const caughtUp = [];
  await new Promise((resolve, reject) => {
    db.changesReader.get({ since: 0, timeout: 1000 }).on('change', ({ id }) => caughtUp.push(id)).on('end', resolve).on('error', reject);
  });
  assert.equal(caughtUp.length, 40);
  await couch.db.destroy(name);
});
