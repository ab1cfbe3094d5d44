// CouchDB 3.5.0's recorded answers, request by request: status, headers and body must be equal. What differs is listed with
// its reason in couchdb-answers/differences.mjs, and must differ. What is not built yet is in couchdb-answers/later.mjs.
//   FLATBED_ANSWERS  replay only scenarios whose names have this in them
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { alike, call, play, read } from './answers.mjs';
import { differences } from './couchdb-answers/differences.mjs';
import { later } from './couchdb-answers/later.mjs';
import { newName, startServer } from './server.mjs';

let server;
/** One with an administrator and users, as a CouchDB is set up. */
let closed;
before(async () => {
  server = await startServer();
  closed = await startServer({ env: { FLATBED_ADMIN: 'admin:password' } });
  closed.url = closed.url.replace('//', '//admin:password@');
  for (const database of ['_users', '_replicator']) {
    const { status } = await call(closed.url, 'PUT', `/${database}`);
    assert.equal(status, 412, 'a server with an administrator has it from the start');
  }
  // As it was recorded: wrong passwords lock nobody out, and cookies do not say which sites may bring them.
  for (const [key, value] of [['chttpd_auth_lockout/mode', 'off'], ['chttpd_auth/same_site', '']]) {
    const { status, text } = await call(closed.url, 'PUT', `/_node/_local/_config/${key}`, {}, JSON.stringify(value));
    assert.equal(status, 200, text);
  }
});
after(async () => { await server.stop(); await closed.stop(); });

/** Asks in JSON. */
async function ask(method, path, body) {
  const headers = { 'content-type': 'application/json' };
  const answer = await call(server.url, method, path, headers, body && JSON.stringify(body));
  assert.ok(answer.status < 300, `${method} ${path}: ${answer.status} ${answer.text.slice(0, 300)}`);
  return JSON.parse(answer.text);
}

for (const [file, known] of Object.entries(differences)) {
  for (const scenario of read(file)) {
    if (!scenario.name.includes(process.env.FLATBED_ANSWERS ?? '')) continue;
    const differs = known[scenario.name] ?? {};
    const notYet = later[file]?.[scenario.name] ?? [];
    test(scenario.name, { skip: notYet === 'all' && 'for later' }, async (t) => {
      const url = file === 'users' ? closed.url : server.url;
      for await (const { index, method, path, answer, recorded } of play(url, scenario)) {
        if (notYet.includes(index)) continue;
        const reason = typeof differs === 'string' ? differs : differs[index];
        await t.test(`${index} ${method} ${path}`, () => {
          if (reason === undefined) assert.deepEqual(answer, recorded);
          // It may differ, or not: only in what values are.
          else if (reason.startsWith?.('perhaps')) assert.ok(alike(answer, recorded), JSON.stringify([answer, recorded]));
          else if (reason.startsWith?.('headers')) {
            assert.deepEqual([answer.status, answer.body], [recorded.status, recorded.body]);
            assert.notDeepEqual(answer.headers, recorded.headers, `is equal, against: ${reason}`);
          }
          // Of a whole scenario that is for later some steps are equal by themselves.
          else if (typeof differs !== 'string') assert.notDeepEqual(answer, recorded, `is equal, against: ${reason}`);
        });
      }
    });
  }
}

// The strings of collation.jsonl, in the order in which a view of CouchDB has them: a line has those that are one key there.
test('strings in the order of a view', async (t) => {
  const classes = read('collation').map((line) => line.equal);
  const strings = classes.flatMap((equal, at) => equal.map((text) => ({ at, text })));
  assert.equal(strings.length, 633);
  const db = newName('collation');
  await ask('PUT', `/${db}`);
  t.after(() => call(server.url, 'DELETE', `/${db}`));
  // Ids say nothing of the order: every 100th comes first.
  const id = (place) => `${String(place % 100).padStart(3, '0')}-${place}`;
  const docs = strings.map(({ text }, place) => ({ _id: id(place), text }));
  await ask('POST', `/${db}/_bulk_docs`, { docs });
  const views = { text: { map: 'function (doc) { emit(doc.text); }', reduce: '_count' } };
  await ask('PUT', `/${db}/_design/d`, { views });
  await ask('POST', `/${db}/_index`, { index: { fields: ['text'] }, ddoc: 'i', name: 'i' });
  const placeOf = Object.fromEntries(strings.map(({ at }, place) => [id(place), at]));
  const isOrdered = (ids) => ids.every((of, n) => n === 0
    || placeOf[ids[n - 1]] < placeOf[of] || (placeOf[ids[n - 1]] === placeOf[of] && ids[n - 1] < of));
  for (const view of ['_design/d/_view/text', '_design/i/_view/i']) {
    const isOfFields = view.includes('i/_view');
    const shown = (key) => (isOfFields ? key[0] : key);
    const { rows, total_rows: total } = await ask('GET', `/${db}/${view}?reduce=false`);
    assert.equal(total, strings.length);
    assert.ok(isOrdered(rows.map((row) => row.id)), view);
    const groups = (await ask('GET', `/${db}/${view}?group=true`)).rows;
    assert.deepEqual(groups.map((row) => row.value), classes.map((equal) => equal.length));
    assert.ok(groups.every((row, at) => classes[at].includes(shown(row.key))));
    const keys = strings.map(({ text }) => (isOfFields ? [text] : text));
    const found = (await ask('POST', `/${db}/${view}`, { keys, reduce: false })).rows;
    const expected = strings.map(({ at }) => classes[at].length).reduce((sum, length) => sum + length);
    assert.equal(found.length, expected);
    assert.ok(found.every((row) => classes[placeOf[row.id]].includes(shown(row.key))));
  }
  const { docs: sorted } = await ask('POST', `/${db}/_find`, { selector: { text: { $gte: '' } }, sort: ['text'], limit: 1000 });
  assert.ok(sorted.length === strings.length && isOrdered(sorted.map((doc) => doc._id)));
});
