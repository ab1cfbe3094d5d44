// nano and PouchDB as somebody: with a name and a password, with a session's cookie, and what they see when that ends.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import nano from 'nano';
import PouchDB from 'pouchdb';
import { basic, skip, startWithUsers, temporary } from './accounts.mjs';
import { newName } from './server.mjs';
import { pause, until } from './waiting.mjs';

let server;
let files;
before(async () => {
  if (skip) return;
  files = temporary();
  server = await startWithUsers(['anna', 'bob', 'carl', 'dora']);
  // Both directions of a replication try a wrong password, and all from one address.
  await server.set('chttpd_auth_lockout/mode', 'off');
});
/** What a test that failed has left behind would keep the program going. */
const syncs = [];
const kept = (sync) => (syncs.push(sync), sync);
/** What a replication ends with; the promise that a `sync` is has nothing of it. */
const failure = (sync) => new Promise((resolve) => { kept(sync).on('error', resolve); });
after(async () => {
  for (const sync of syncs) sync.cancel();
  await server?.stop();
  files?.remove();
});

const local = () => new PouchDB(join(files.directory, newName('local')));
const as = (name, password = `${name}!`) => nano(server.url.replace('//', `//${name}:${encodeURIComponent(password)}@`));
const docs = (prefix, count) => Array.from({ length: count }, (_, n) => ({ _id: `${prefix}${n}`, n }));

/** A `fetch` for PouchDB with a jar of its own: the session that begins with `begin`. `PouchDB.fetch` has one for all. */
function withJar() {
  let cookie;
  let renewed = 0;
  const keep = (answer) => {
    const header = answer.headers.get('set-cookie');
    if (header) {
      cookie = header.split(';')[0];
      renewed += 1;
    }
    return answer;
  };
  return {
    renewed: () => renewed,
    begin: async (name, password) => {
      const answer = await fetch(`${server.url}/_session`, {
        method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ name, password }),
      });
      return keep(answer).status;
    },
    fetch: async (url, options) => {
      const headers = new Headers(options?.headers);
      assert.equal(headers.get('authorization'), null);
      headers.set('cookie', cookie);
      return keep(await fetch(url, { ...options, headers }));
    },
  };
}

test('nano with a name and a password', { skip }, async () => {
  const name = await server.database(['anna']);
  const db = as('anna').use(name);
  const { rev } = await db.insert({ n: 1 }, 'doc');
  assert.deepEqual(await db.get('doc'), { _id: 'doc', _rev: rev, n: 1 });
  const session = await as('anna').session();
  assert.deepEqual(session.userCtx, { name: 'anna', roles: [] });
  assert.equal(session.info.authenticated, 'default');
  const notAllowed = { statusCode: 403, error: 'forbidden', reason: 'You are not allowed to access this db.' };
  await assert.rejects(as('bob').use(name).get('doc'), notAllowed);
  await assert.rejects(as('bob').use(name).insert({}, 'other'), notAllowed);
  const nobody = { statusCode: 401, error: 'unauthorized', reason: 'You are not authorized to access this db.' };
  await assert.rejects(nano(server.url).use(name).get('doc'), nobody);
  const wrong = { statusCode: 401, error: 'unauthorized', reason: 'Name or password is incorrect.' };
  await assert.rejects(as('anna', 'wrong').use(name).get('doc'), wrong);
  await assert.rejects(as('nobody').use(name).get('doc'), wrong);
  // What is the database's administrators' is not its members'.
  await assert.rejects(db.insert({ views: {} }, '_design/d'), { statusCode: 403, reason: 'You are not a db or server admin.' });
  await assert.rejects(as('anna').db.destroy(name), { statusCode: 401, reason: 'You are not a server admin.' });
  await as('admin', 'password').db.destroy(name);
});

test('nano with a cookie', { skip }, async () => {
  const name = await server.database(['anna']);
  const [anna, bob] = [nano(server.url), nano(server.url)];
  assert.deepEqual(await anna.auth('anna', 'anna!'), { ok: true, name: 'anna', roles: [] });
  await bob.auth('bob', 'bob!');
  await assert.rejects(nano(server.url).auth('anna', 'bob!'), { statusCode: 401, reason: 'Name or password is incorrect.' });
  assert.equal((await anna.session()).info.authenticated, 'cookie');
  const db = anna.use(name);
  assert.ok((await db.bulk({ docs: docs('doc', 20) })).every(({ rev }) => rev));
  const reader = db.changesReader.get({ since: 0, timeout: 1000 });
  const seen = [];
  await new Promise((resolve, reject) => reader.on('change', ({ id }) => seen.push(id)).on('end', resolve).on('error', reject));
  assert.equal(seen.length, 20);
  await assert.rejects(bob.use(name).list(), { statusCode: 403 });
  // nano keeps what the end of a session says.
  await anna.request({ method: 'delete', path: '_session' });
  await assert.rejects(db.list(), { statusCode: 401 });
  assert.equal((await anna.session()).userCtx.name, null);
});

test('a session goes on while it is used, and ends', { skip }, async (t) => {
  const name = await server.database(['anna']);
  // Long enough that no machine pauses for it between two requests.
  await server.set('chttpd_auth/timeout', 12);
  t.after(() => server.set('chttpd_auth/timeout', 600));
  const [couch, jar] = [nano(server.url), withJar()];
  await couch.auth('anna', 'anna!');
  assert.equal(await jar.begin('anna', 'anna!'), 200);
  const db = couch.use(name);
  const there = new PouchDB(server.url + '/' + name, { fetch: jar.fetch, skip_setup: true });
  const here = local();
  const sync = here.sync(there, { live: true, heartbeat: 500 });
  const failed = failure(sync);
  // For longer than a session is without its cookie being renewed: with each answer, where it is time.
  for (const began = Date.now(); Date.now() - began < 18_500;) {
    await db.insert({});
    await pause(1_000);
  }
  const { doc_count: count } = await there.info();
  assert.ok(count >= 5 && jar.renewed() > 1, `${count} ${jar.renewed()}`);
  await until(async () => (await here.info()).doc_count === count);
  sync.cancel();
  await pause(13_500);
  await assert.rejects(db.list(), { statusCode: 401, reason: 'You are not authorized to access this db.' });
  await assert.rejects(there.allDocs(), { status: 401, name: 'unauthorized' });
  // A replication says so and gives up, also one that would try again.
  await assert.rejects(here.replicate.to(there), { status: 401, name: 'unauthorized' });
  assert.equal((await failure(here.sync(there, { live: true, retry: true }))).status, 401);
  assert.equal(await Promise.race([failed, null]), null);
  await couch.auth('anna', 'anna!');
  assert.equal((await db.list()).total_rows, count);
  await here.destroy();
});

test('PouchDB as a member, both ways', { skip }, async (t) => {
  const jar = withJar();
  assert.equal(await jar.begin('anna', 'anna!'), 200);
  const options = { auth: { auth: { username: 'anna', password: 'anna!' } }, cookie: { fetch: jar.fetch } };
  for (const [how, option] of Object.entries(options)) {
    await t.test(how, async () => {
      const name = await server.database(['anna']);
      const there = new PouchDB(`${server.url}/${name}`, { ...option, skip_setup: true });
      const here = local();
      await here.bulkDocs(docs('here', 150));
      await there.bulkDocs(docs('there', 150));
      // A member's design document is refused, and the others go over.
      await here.put({ _id: '_design/d', views: {} });
      const denied = [];
      const result = await here.sync(there).on('denied', ({ doc }) => denied.push(doc));
      assert.deepEqual([result.push.docs_written, result.push.doc_write_failures, result.pull.docs_written], [150, 1, 150]);
      assert.deepEqual(denied.map(({ name: error, id }) => [error, id]), [['forbidden', '_design/d']]);
      assert.equal((await there.info()).doc_count, 300);
      const live = here.sync(there, { live: true, retry: true });
      const failed = failure(live).then((error) => { throw error; });
      await there.put({ _id: 'new-there', a: 'x'.repeat(100_000) });
      await here.put({ _id: 'new-here' });
      const isOver = async () => {
        const ids = async (db, id) => db.get(id).then(() => true, () => false);
        return await ids(here, 'new-there') && ids(there, 'new-here');
      };
      await Promise.race([failed, until(isOver)]);
      live.cancel();
      await here.destroy();
    });
  }
});

test('PouchDB as an outsider, and as who gives a wrong password', { skip }, async () => {
  const name = await server.database(['anna']);
  await as('anna').use(name).bulk({ docs: docs('doc', 5) });
  const here = local();
  await here.bulkDocs(docs('here', 5));
  const jar = withJar();
  assert.equal(await jar.begin('bob', 'bob!'), 200);
  const open = (options) => new PouchDB(`${server.url}/${name}`, { ...options, skip_setup: true });
  for (const [options, status, error] of [
    [{ auth: { username: 'bob', password: 'bob!' } }, 403, 'forbidden'],
    [{ fetch: jar.fetch }, 403, 'forbidden'],
    [{ auth: { username: 'anna', password: 'bob!' } }, 401, 'unauthorized'],
    [{}, 401, 'unauthorized'],
  ]) {
    const there = open(options);
    await assert.rejects(there.allDocs(), { status, name: error });
    await assert.rejects(here.replicate.to(there), { status, name: error });
    await assert.rejects(here.replicate.from(there), { status, name: error });
    const refused = await failure(here.sync(there, { live: true, retry: true }));
    assert.deepEqual([refused.status, refused.name], [status, error]);
  }
  assert.equal((await here.info()).doc_count, 5);
  assert.equal((await as('anna').use(name).info()).doc_count, 5);
  await here.destroy();
});

test('a new password ends sessions, and what goes on with the old one', { skip }, async () => {
  // As in CouchDB nobody but administrators reaches `_users` unless they let everyone in, whom it shows their own document alone.
  await server.set('couchdb/users_db_security_editable', true);
  await server.admin('PUT', '/_users/_security', { admins: { roles: ['_admin'] }, members: {} });
  const name = await server.database(['carl']);
  const [couch, jar] = [nano(server.url), withJar()];
  await couch.auth('carl', 'carl!');
  assert.equal(await jar.begin('carl', 'carl!'), 200);
  const url = `${server.url}/${name}`;
  const byCookie = new PouchDB(url, { fetch: jar.fetch, skip_setup: true });
  const byPassword = new PouchDB(url, { auth: { username: 'carl', password: 'carl!' }, skip_setup: true });
  const heres = [local(), local()];
  const ended = [byCookie, byPassword].map((there, at) => failure(heres[at].sync(there, { live: true, retry: true })));
  await couch.use(name).insert({}, 'before');
  for (const here of heres) await until(() => here.get('before').then(() => true, () => false));
  // Who has a session sets a new one themselves.
  const users = couch.use('_users');
  const mine = await users.get('org.couchdb.user:carl');
  assert.deepEqual([mine.name, mine.password], ['carl', undefined]);
  await assert.rejects(users.get('org.couchdb.user:anna'), { statusCode: 404 });
  await users.insert({ ...mine, password: 'new!' });
  for (const error of await Promise.all(ended)) assert.deepEqual([error.status, error.name], [401, 'unauthorized']);
  await assert.rejects(couch.use(name).list(), { statusCode: 401 });
  await assert.rejects(as('carl').use(name).list(), { statusCode: 401, reason: 'Name or password is incorrect.' });
  await assert.rejects(couch.auth('carl', 'carl!'), { statusCode: 401 });
  await couch.auth('carl', 'new!');
  assert.equal((await couch.use(name).list()).total_rows, 1);
  assert.equal(await jar.begin('carl', 'new!'), 200);
  await heres[0].put({ _id: 'after' });
  await heres[0].sync(byCookie);
  assert.equal((await as('carl', 'new!').use(name).list()).total_rows, 2);
  for (const here of heres) await here.destroy();
});

test('who is not a member any more follows nothing', { skip }, async () => {
  const name = await server.database(['dora']);
  const here = local();
  const there = new PouchDB(`${server.url}/${name}`, { auth: { username: 'dora', password: 'dora!' }, skip_setup: true });
  const ended = failure(here.replicate.from(there, { live: true, retry: true }));
  await server.admin('PUT', `/${name}/a`, {});
  await until(() => here.get('a').then(() => true, () => false));
  await server.admin('PUT', `/${name}/_security`, { admins: {}, members: { names: ['anna'] } });
  assert.equal((await ended).status, 403);
  await server.admin('PUT', `/${name}/b`, {});
  assert.equal((await here.info()).doc_count, 1);
  await here.destroy();
});

test('many at once, who are whoever they say', { skip }, async () => {
  const whose = async (who) => {
    const answer = await fetch(`${server.url}/_session`, { headers: basic(who, `${who}!`) });
    return (await answer.json()).userCtx.name;
  };
  const names = Array.from({ length: 60 }, (_, n) => (n % 2 ? 'anna' : 'bob'));
  assert.deepEqual(await Promise.all(names.map(whose)), names);
});
