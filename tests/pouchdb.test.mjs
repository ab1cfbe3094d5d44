// PouchDB's HTTP adapter against the server.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import PouchDB from 'pouchdb';
import { newName, startServer } from './server.mjs';
import { until } from './waiting.mjs';

let server;
before(async () => { server = await startServer(); });
after(() => server.stop());

const open = () => new PouchDB(`${server.url}/${newName('pouch')}`);

test('a document through its life', async () => {
  const db = open();
  const first = await db.put({ _id: 'müsli/1', title: 'Oats', tags: ['a', 'b'], deep: { n: 1.5, none: null } });
  assert.match(first.rev, /^1-[0-9a-f]{32}$/);
  assert.deepEqual(await db.get('müsli/1'), {
    _id: 'müsli/1', _rev: first.rev, title: 'Oats', tags: ['a', 'b'], deep: { n: 1.5, none: null },
  });
  await assert.rejects(db.put({ _id: 'müsli/1', title: 'again' }), { name: 'conflict', status: 409 });

  const second = await db.put({ _id: 'müsli/1', _rev: first.rev, title: 'Rye' });
  assert.deepEqual(await db.get('müsli/1'), { _id: 'müsli/1', _rev: second.rev, title: 'Rye' });
  assert.equal((await db.get('müsli/1', { rev: first.rev })).title, 'Oats');
  const { _revisions, _revs_info } = await db.get('müsli/1', { revs: true, revs_info: true });
  assert.equal(_revisions.start, 2);
  assert.deepEqual(_revisions.ids, [second.rev.slice(2), first.rev.slice(2)]);
  assert.deepEqual(_revs_info.map(({ status }) => status), ['available', 'available']);

  const removed = await db.remove('müsli/1', second.rev);
  assert.match(removed.rev, /^3-/);
  await assert.rejects(db.get('müsli/1'), { status: 404, reason: 'deleted' });
  await assert.rejects(db.get('nothing'), { status: 404, reason: 'missing' });
  const info = await db.info();
  assert.equal(info.doc_count, 0);
  await db.destroy();
  await assert.rejects(new PouchDB(db.name, { skip_setup: true }).info().then((answer) => {
    if (answer.error) throw Object.assign(new Error(answer.reason), { status: 404 });
  }), { status: 404 });
});

test('bulk writes, and all documents in order', async () => {
  const db = open();
  const ids = Array.from({ length: 250 }, (_, i) => `doc${String(i).padStart(4, '0')}`);
  const results = await db.bulkDocs(ids.map((_id, i) => ({ _id, i })));
  assert.ok(results.every(({ ok }) => ok));
  const again = await db.bulkDocs([{ _id: 'doc0007', i: -1 }, { _id: 'new', i: -2 }]);
  assert.deepEqual(again.map(({ ok, status }) => ok ?? status), [409, true]);

  const all = await db.allDocs();
  assert.deepEqual(all.rows.map(({ id }) => id), [...ids, 'new']);
  assert.equal(all.total_rows, 251);
  const some = await db.allDocs({ startkey: 'doc0100', endkey: 'doc0109', include_docs: true, descending: false });
  assert.deepEqual(some.rows.map(({ doc }) => doc.i), ids.slice(100, 110).map((_, i) => 100 + i));
  const back = await db.allDocs({ startkey: 'doc0009', endkey: 'doc0000', inclusive_end: false, descending: true, limit: 3, skip: 1 });
  assert.deepEqual(back.rows.map(({ id }) => id), ['doc0008', 'doc0007', 'doc0006']);
  const keyed = await db.allDocs({ keys: ['doc0002', 'none', 'doc0001'] });
  assert.deepEqual(keyed.rows.map(({ id, error }) => id ?? error), ['doc0002', 'not_found', 'doc0001']);

  const got = await db.bulkGet({ docs: [{ id: 'doc0003' }, { id: 'none' }] });
  assert.equal(got.results[0].docs[0].ok.i, 3);
  assert.ok(got.results[1].docs[0].error);
  await db.destroy();
});

test('changes, once and live', async () => {
  const db = open();
  await db.bulkDocs(Array.from({ length: 30 }, (_, i) => ({ _id: `a${i}`, i })));
  const { _rev } = await db.get('a3');
  await db.put({ _id: 'a3', _rev, i: 'changed' });
  const once = await db.changes({ since: 0, include_docs: true });
  assert.equal(once.results.length, 30);
  assert.equal(once.results.at(-1).id, 'a3');
  assert.equal(once.results.at(-1).doc.i, 'changed');
  assert.equal((await db.changes({ since: once.last_seq })).results.length, 0);
  const limited = await db.changes({ since: 0, limit: 7 });
  assert.equal(limited.results.length, 7);
  const rest = await db.changes({ since: limited.last_seq });
  assert.equal(rest.results.length, 23);
  const picked = await db.changes({ since: 0, doc_ids: ['a5', 'a7', 'none'] });
  assert.deepEqual(picked.results.map(({ id }) => id).sort(), ['a5', 'a7']);

  const seen = [];
  let isThere = false;
  const feed = db.changes({ since: 'now', live: true, include_docs: true });
  const all = new Promise((resolve, reject) => {
    feed.on('error', reject).on('change', (change) => {
      if (change.id.startsWith('live')) seen.push([change.id, change.doc.n]);
      else isThere = true;
      if (seen.length === 60) resolve();
    });
  });
  // `now` is when the server takes the request: the first row shows that the feed is there.
  await until(async () => {
    await db.post({});
    return isThere;
  });
  for (let n = 0; n < 60; n += 1) await db.put({ _id: `live${n}`, n });
  await all;
  feed.cancel();
  assert.deepEqual(seen, Array.from({ length: 60 }, (_, n) => [`live${n}`, n]));
  await db.destroy();
});
