// What pages of other origins can do in a real browser: headless Chromium, for which all names of `.example` are this machine.
//   CHROMIUM   the browser [/usr/bin/chromium]; the tests are left out where there is none
// `app.flat.example` is of the same site as the server, `db.flat.example`, and is named in `[cors]`; `evil.flat.example` is of the
// same site and is not named; `other.example` is of another site and is named, `evil.example` is not.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { chromium } from 'playwright-core';
import * as accounts from './accounts.mjs';
import { newName } from './server.mjs';

const executablePath = process.env.CHROMIUM ?? '/usr/bin/chromium';
const noBrowser = existsSync(executablePath) ? false : `${executablePath} is not there: install chromium, or name one in CHROMIUM`;
const skip = accounts.skip || noBrowser || accounts.noCertificates;

const args = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync', '--host-resolver-rules=MAP *.example 127.0.0.1'];

let server;
let browser;
let files;
/** Where pages come from, and the server, with and without TLS: `{ http: { pages, db }, https: { pages, db } }`, each a port. */
let ports;
const pages = [];
before(async () => {
  if (skip) return;
  files = accounts.temporary();
  const tls = accounts.makeCertificate(files.directory, 'example', 'DNS:*.example,DNS:*.flat.example');
  server = await accounts.startWithUsers(['anna'], { tls });
  const page = (request, response) => {
    response.setHeader('content-type', 'text/html; charset=utf-8');
    response.end('<!doctype html><title>page</title>');
  };
  const secure = https.createServer({ cert: readFileSync(tls.certificate), key: readFileSync(tls.key) }, page);
  pages.push(http.createServer(page), secure);
  for (const of of pages) await once(of.listen(0, '127.0.0.1'), 'listening');
  const [plain, safe] = pages.map((of) => of.address().port);
  ports = {
    http: { pages: plain, db: Number(new URL(server.url).port) },
    https: { pages: safe, db: Number(new URL(server.secure).port) },
  };
  const listed = ['http', 'https'].flatMap((scheme) =>
    ['app.flat.example', 'other.example'].map((host) => `${scheme}://${host}:${ports[scheme].pages}`));
  await server.set('chttpd/enable_cors', true);
  await server.set('cors/credentials', true);
  await server.set('cors/origins', listed.join());
  browser = await chromium.launch({ executablePath, args });
});
after(async () => {
  await browser?.close();
  for (const of of pages) of.close();
  await server?.stop();
  files?.remove();
});

const db = (scheme = 'http') => `${scheme}://db.flat.example:${ports[scheme].db}`;

/**
 * A browser with a reader of its own; `open(host, scheme)` opens a page there, where `ask` asks the server. One that is not
 * private takes and sends cookies of other sites than the page's, as far as these let it.
 */
async function reader(t, { isPrivate = true } = {}) {
  const options = { ignoreHTTPSErrors: true };
  const profile = join(files.directory, newName('profile'));
  if (!isPrivate) {
    mkdirSync(join(profile, 'Default'), { recursive: true });
    writeFileSync(join(profile, 'Default', 'Preferences'), JSON.stringify({ profile: { cookie_controls_mode: 0 } }));
  }
  const context = isPrivate ? await browser.newContext(options)
    : await chromium.launchPersistentContext(profile, { ...options, executablePath, args });
  t.after(() => context.close());
  const open = async (host, scheme = 'http') => {
    const tab = await context.newPage();
    await tab.goto(`${scheme}://${host}:${host === 'db.flat.example' ? ports[scheme].db : ports[scheme].pages}/`);
    /** What a page learns: a status and a body, or that it may not know. */
    const ask = (method, path, { body, headers, credentials = 'include', of = scheme } = {}) => tab.evaluate(async ([url, options]) => {
      try {
        const answer = await fetch(url, options);
        return [answer.status, await answer.json()];
      } catch (error) {
        return [error.name];
      }
    }, [db(of) + path, { method, credentials, headers, body: body && JSON.stringify(body) }]);
    const json = { 'content-type': 'application/json' };
    const signIn = (of) => ask('POST', '/_session', { body: { name: 'anna', password: 'anna!' }, headers: json, of });
    return { tab, ask, signIn, json };
  };
  const cookie = async () => (await context.cookies()).find(({ name }) => name === 'AuthSession');
  return { context, open, cookie };
}

/** Sends a form, as a page does without a script, and says how what came was answered. */
async function send(tab, action, fields, enctype = 'application/x-www-form-urlencoded') {
  const answered = tab.waitForResponse((response) => response.request().method() === 'POST');
  await tab.evaluate(([to, values, type]) => {
    const form = document.createElement('form');
    Object.assign(form, { method: 'post', action: to, enctype: type });
    for (const [name, value] of Object.entries(values)) form.append(Object.assign(document.createElement('input'), { name, value }));
    document.body.append(form);
    form.submit();
  }, [action, fields, enctype]);
  return (await answered).status();
}

for (const scheme of ['http', 'https']) {
  test(`a page that is named has a session, over ${scheme}`, { skip }, async (t) => {
    const name = await server.database(['anna']);
    const { open, cookie } = await reader(t);
    const { tab, ask, signIn, json } = await open('app.flat.example', scheme);
    assert.equal((await ask('GET', `/${name}/doc`))[0], 401);
    assert.deepEqual(await signIn(), [200, { ok: true, name: 'anna', roles: [] }]);
    const { httpOnly, secure, sameSite, domain } = await cookie();
    assert.deepEqual({ httpOnly, secure, sameSite, domain },
      { httpOnly: true, secure: scheme === 'https', sameSite: 'Lax', domain: 'db.flat.example' });
    assert.equal(await tab.evaluate('document.cookie'), '');
    const [status, { rev }] = await ask('PUT', `/${name}/doc`, { body: { n: 1 }, headers: json });
    assert.equal(status, 201);
    assert.deepEqual(await ask('GET', `/${name}/doc`), [200, { _id: 'doc', _rev: rev, n: 1 }]);
    assert.equal((await ask('DELETE', `/${name}/doc?rev=${rev}`))[0], 200);
    // What a page reads that it is answered with beside the body.
    const id = await tab.evaluate(async (url) =>
      (await fetch(url, { credentials: 'include' })).headers.get('x-couch-request-id'), `${db(scheme)}/${name}`);
    assert.match(id, /^[0-9a-f]+$/);
    // A feed as browsers have it, with the cookie.
    const followed = await tab.evaluate((url) => new Promise((resolve) => {
      const source = new EventSource(url, { withCredentials: true });
      source.onmessage = ({ data }) => { source.close(); resolve(JSON.parse(data).id); };
      source.onerror = () => { source.close(); resolve('error'); };
    }), `${db(scheme)}/${name}/_changes?feed=eventsource`);
    assert.equal(followed, 'doc');
    assert.equal((await ask('DELETE', '/_session'))[0], 200);
    assert.equal((await ask('GET', `/${name}/doc`))[0], 401);
  });

  test(`a page that is not named does nothing with its reader's session, over ${scheme}`, { skip }, async (t) => {
    const name = await server.database(['anna']);
    await server.admin('PUT', `/${name}/doc`, { n: 1 });
    const { open } = await reader(t);
    await (await open('app.flat.example', scheme)).signIn();
    // It is of the same site, so that its requests have the cookie.
    const { tab, ask, json } = await open('evil.flat.example', scheme);
    assert.deepEqual(await ask('GET', `/${name}/doc`), ['TypeError']);
    assert.deepEqual(await ask('PUT', `/${name}/evil`, { body: {}, headers: json }), ['TypeError']);
    // Without a preflight request, and without learning what came of it.
    for (const type of ['text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data; boundary=b']) {
      assert.deepEqual(await ask('POST', `/${name}`, { body: { _id: 'evil' }, headers: { 'content-type': type } }), ['TypeError']);
    }
    assert.deepEqual(await ask('GET', `/${name}/_changes`), ['TypeError']);
    const sockets = (of) => of.evaluate((url) => new Promise((resolve) => {
      const socket = new WebSocket(url);
      socket.onopen = () => { socket.close(); resolve('open'); };
      socket.onerror = () => resolve('refused');
    }), `${db(scheme).replace('http', 'ws')}/${name}/_changes?feed=websocket`);
    assert.equal(await sockets(tab), 'refused');
    assert.equal(await sockets((await open('app.flat.example', scheme)).tab), 'open');
    assert.equal(await send(tab, `${db(scheme)}/${name}/_bulk_docs`, { docs: '[{"_id":"evil"}]' }), 403);
    const { rows } = await server.admin('GET', `/${name}/_all_docs`);
    assert.deepEqual(rows.map(({ id }) => id), ['doc']);
  });

  test(`what other sites get of a cookie that is Lax, over ${scheme}`, { skip }, async (t) => {
    const name = await server.database(['anna']);
    await server.admin('PUT', `/${name}/doc`, { n: 1 });
    const { open, cookie } = await reader(t, { isPrivate: false });
    const { signIn, ask } = await open('app.flat.example', scheme);
    await signIn();
    const before = await cookie();
    assert.equal((await ask('GET', `/${name}/doc`))[0], 200);
    // Even to a site that is named it does not go along.
    const other = await open('other.example', scheme);
    assert.equal((await other.ask('GET', `/${name}/doc`))[0], 401);
    assert.equal((await other.ask('GET', '/_session'))[1].userCtx.name, null);
    const evil = await open('evil.example', scheme);
    assert.deepEqual(await evil.ask('GET', '/_session'), ['TypeError']);
    // A link that the reader follows is answered as to them.
    const answered = evil.tab.waitForResponse(`${db(scheme)}/${name}/doc`);
    await evil.tab.evaluate((url) => { location.href = url; }, `${db(scheme)}/${name}/doc`);
    assert.equal((await answered).status(), 200);
    // A form is not: neither into a database, nor to sign its reader in as somebody else, or out.
    const form = (await open('evil.example', scheme)).tab;
    // It has no session, and is refused as a page that CORS does not allow.
    assert.equal(await send(form, `${db(scheme)}/${name}/doc`, { _doc: '{}' }, 'multipart/form-data'), 403);
    assert.equal(await send((await open('evil.example', scheme)).tab, `${db(scheme)}/_session`,
      { name: 'anna', password: 'anna!' }), 403);
    assert.deepEqual(await cookie(), before);
    assert.deepEqual((await server.admin('GET', `/${name}/doc`)).n, 1);
  });
}

test('a form signs in from the page of the server itself, and from one that is named', { skip }, async (t) => {
  for (const [host, status] of [['db.flat.example', 302], ['app.flat.example', 302], ['other.example', 302],
    ['evil.flat.example', 403], ['evil.example', 403]]) {
    const { open, cookie } = await reader(t);
    const { tab } = await open(host);
    const fields = { name: 'anna', password: 'anna!' };
    assert.equal(await send(tab, `${db()}/_session?next=/_session`, fields), status, host);
    assert.equal((await cookie())?.name, status === 302 ? 'AuthSession' : undefined, host);
  }
});

test('a name and a password, or a cookie for other sites, of a page of another site that is named', { skip }, async (t) => {
  const name = await server.database(['anna']);
  const { open, cookie } = await reader(t, { isPrivate: false });
  const page = await open('other.example', 'https');
  const headers = { ...page.json, ...accounts.basic('anna', 'anna!') };
  assert.equal((await page.ask('PUT', `/${name}/doc`, { body: { n: 1 }, headers }))[0], 201);
  assert.equal((await page.ask('GET', `/${name}/doc`, { headers }))[1].n, 1);
  assert.deepEqual(await (await open('evil.example', 'https')).ask('GET', `/${name}/doc`, { headers }), ['TypeError']);
  await server.set('chttpd_auth/same_site', 'None');
  t.after(() => server.set('chttpd_auth/same_site', 'Lax'));
  await page.signIn();
  const { secure, sameSite } = await cookie();
  assert.deepEqual({ secure, sameSite }, { secure: true, sameSite: 'None' });
  assert.equal((await page.ask('GET', `/${name}/doc`))[1].n, 1);
  assert.equal((await page.ask('PUT', `/${name}/other`, { body: {}, headers: page.json }))[0], 201);
  // It goes along from everywhere now.
  const evil = await open('evil.example', 'https');
  assert.deepEqual(await evil.ask('GET', `/${name}/doc`), ['TypeError']);
  await evil.ask('POST', `/${name}`, { body: { _id: 'evil' }, headers: { 'content-type': 'text/plain' } });
  assert.equal(await send(evil.tab, `${db('https')}/${name}/_bulk_docs`, { docs: '[]' }), 403);
  assert.equal((await server.admin('GET', `/${name}`)).doc_count, 2);
});

test('a page without TLS is another one than the server with it', { skip }, async (t) => {
  const { open } = await reader(t);
  const page = await open('db.flat.example', 'http');
  assert.deepEqual(await page.signIn('https'), ['TypeError']);
  assert.equal(await send(page.tab, `${db('https')}/_session`, { name: 'anna', password: 'anna!' }), 403);
});

test('the origin * is for pages without credentials', { skip }, async (t) => {
  const name = await server.database(['anna']);
  const open = await server.database([]);
  await server.admin('PUT', `/${open}/doc`, { n: 1 });
  const { origins } = await server.admin('GET', '/_node/_local/_config/cors');
  await server.set('cors/origins', `*,${origins}`);
  t.after(() => server.set('cors/origins', origins));
  const { open: visit } = await reader(t);
  const named = await visit('app.flat.example');
  await named.signIn();
  assert.equal((await named.ask('PUT', `/${name}/doc`, { body: {}, headers: named.json }))[0], 201);
  for (const host of ['evil.flat.example', 'evil.example']) {
    const any = await visit(host);
    assert.deepEqual(await any.ask('GET', `/${open}/doc`), ['TypeError'], host);
    assert.equal((await any.ask('GET', `/${open}/doc`, { credentials: 'omit' }))[1].n, 1, host);
    assert.deepEqual(await any.ask('GET', `/${name}/doc`, { credentials: 'omit' }), [401, {
      error: 'unauthorized', reason: 'You are not authorized to access this db.',
    }], host);
    assert.deepEqual(await any.ask('PUT', `/${name}/evil`, { body: {}, headers: any.json }), ['TypeError'], host);
  }
  assert.equal((await server.admin('GET', `/${name}`)).doc_count, 1);
});
