// A household's devices: Firefox itself, twice, whose Sync is this server's. One device has it on a listener of its own, the other one at
// a path of the main listener. What stands for Mozilla's accounts is in firefox.mjs; all else of them is as it comes.
//   FIREFOX        the browser [/usr/bin/firefox-esr]; the test is left out where there is none
//   FIREFOX_TIMES  so many times more bookmarks and places [1]
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, request as ask } from 'node:http';
import { after, before, test } from 'node:test';
import { Accounts, Firefox, skip as none } from './firefox.mjs';
import { ownPort, startServer } from './server.mjs';

const skip = none || (process.env.FLATBED_TEST_URL ? 'Firefox Sync is not served there' : false);
const LARGE = Number(process.env.FIREFOX_TIMES ?? 1);
const BOOKMARKS = 450 * LARGE;
// Firefox itself brings and takes 5,000 at most.
const PLACES = Math.min(300 * LARGE, 4_900);

let accounts;
let server;
let between;
let one;
let other;
before(async () => {
  if (skip) return;
  accounts = await Accounts.start();
  server = await startServer({ port: await ownPort(), sync: { jwks: accounts.jwks, port: await ownPort() } });
  between = await Between.start();
  [one, other] = await Promise.all([
    Firefox.start(accounts, `${between.url}/1.0/sync/1.5`, 'one'),
    Firefox.start(accounts, `${between.url}/sync/1.0/sync/1.5`, 'other'),
  ]);
}, { timeout: 600_000 });
after(async () => {
  await Promise.all([one?.stop(), other?.stop()]);
  between?.stop();
  await server?.stop();
  accounts?.stop();
});

/** What lies between devices and the server: it notes what is asked for, holds requests up, and loses answers. */
class Between {
  seen = [];
  #server;
  #held;
  #lost;

  static async start() {
    const between = new Between();
    between.#server = createServer((request, response) => between.#pass(request, response)).listen(0, '127.0.0.1');
    await once(between.#server, 'listening');
    return between;
  }

  get url() { return `http://127.0.0.1:${this.#server.address().port}`; }

  async #pass(request, response) {
    const { method, url, headers } = request;
    const line = `${method} ${url}`;
    if (this.#held?.line.test(line)) {
      const { reached, until } = this.#held;
      this.#held = undefined;
      reached();
      await until;
    }
    const base = new URL(url.startsWith('/sync/') ? server.url : server.syncUrl);
    const further = ask({ host: base.hostname, port: base.port, method, path: url, headers }, (answer) => {
      this.seen.push({ line, status: answer.statusCode, headers });
      if (this.#lost?.test(line)) {
        this.#lost = undefined;
        answer.resume();
        response.destroy();
        return;
      }
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    further.on('error', () => response.destroy());
    request.pipe(further);
  }

  /** Holds the next such request up: `reached` when it has come; `go` lets it go on. */
  hold(line) {
    let go;
    const until = new Promise((resolve) => { go = resolve; });
    const reached = new Promise((resolve) => { this.#held = { line, until, reached: resolve }; });
    return { reached, go };
  }

  /** The answer to the next such request does not come. */
  lose(line) { this.#lost = line; }

  /** What has passed since the last time. */
  take() { return this.seen.splice(0); }

  stop() {
    this.#server.closeAllConnections();
    this.#server.close();
  }
}

const GOOD = { service: 'success.status_ok', sync: 'success.sync', login: 'success.login', engines: {} };

/** Syncs, and nothing has gone wrong but what a first sync asks for in vain. */
async function sync(...devices) {
  for (const device of devices) {
    between.take();
    assert.deepEqual(await device.sync(), GOOD);
    const wrong = between.take().filter(({ line, status }) => status >= 400 && !(status === 404 && line.endsWith('/storage/meta/global')));
    assert.deepEqual(wrong.map(({ line, status }) => `${status} ${line}`), []);
  }
}

/** All bookmarks, as a text for each with its path; each with a folder's order. */
const bookmarks = (device) => device.run(`
  const seen = [];
  const walk = (node, path) => {
    const here = path + '/' + (node.root ?? node.title);
    seen.push([here, node.guid, node.uri ?? null, node.keyword ?? null, node.tags ?? null]);
    for (const child of node.children ?? []) walk(child, here);
  };
  walk(await PlacesUtils.promiseBookmarksTree(PlacesUtils.bookmarks.rootGuid), '');
  return seen;
`);

/** All places that were visited, and when. */
const places = (device) => device.run(`
  const db = await PlacesUtils.promiseDBConnection();
  const rows = await db.executeCached('SELECT url, title, visit_date FROM moz_places h JOIN moz_historyvisits v ON v.place_id = h.id ORDER BY url, visit_date');
  return rows.map((row) => [row.getResultByName('url'), row.getResultByName('title'), row.getResultByName('visit_date')])
    .filter(([url]) => url.includes('example'));
`);

/** Everything that devices must agree on. */
async function same() {
  const [first, second] = await Promise.all([one, other].map(bookmarks));
  assert.deepEqual(second, first);
  const [before, behind] = await Promise.all([one, other].map(places));
  assert.deepEqual(behind, before);
  return { bookmarks: first.length, places: before.length };
}

const titleOf = (device, guid) => device.run(`return (await PlacesUtils.bookmarks.fetch('${guid}'))?.title ?? null;`);
const rename = (device, guid, title) => device.run(`await PlacesUtils.bookmarks.update({ guid: '${guid}', title: '${title}' });`);
const add = (device, title) => device.run(`
  const { toolbarGuid, insert } = PlacesUtils.bookmarks;
  return (await insert.call(PlacesUtils.bookmarks, { parentGuid: toolbarGuid, title: '${title}', url: 'https://example.org/${title}' })).guid;
`);

test('a first device brings all that it has', { skip }, async () => {
  await one.run(`
    const { bookmarks, history, tagging } = PlacesUtils;
    const leaf = (n) => ({ title: 'bookmark ' + n + ' \u{1f516} <&"', url: 'https://example.org/b/' + n + '?q=\u00e4' });
    for (let folder = 0; folder < 3; folder += 1) {
      const children = Array.from({ length: ${BOOKMARKS} / 3 }, (_, n) => leaf(folder * 100_000 + n));
      children.push({ type: bookmarks.TYPE_SEPARATOR });
      await bookmarks.insertTree({ guid: bookmarks.menuGuid, children: [{ title: 'folder ' + folder, type: bookmarks.TYPE_FOLDER, children }] });
    }
    await PlacesUtils.keywords.insert({ keyword: 'seven', url: 'https://example.org/b/7?q=\u00e4' });
    tagging.tagURI(Services.io.newURI('https://example.org/b/8?q=\u00e4'), ['red', 'green']);
    await history.insertMany(Array.from({ length: ${PLACES} }, (_, n) => ({
      url: 'https://example.net/h/' + n,
      title: 'place ' + n,
      visits: [{ date: new Date(Date.now() - 60_000 * n - 1_000) }, { date: new Date(Date.now() - 60_000 * n - 30_000) }],
    })));
    Services.prefs.setIntPref('browser.urlbar.maxRichResults', 7);
    const login = Cc['@mozilla.org/login-manager/loginInfo;1'].createInstance(Ci.nsILoginInfo);
    login.init('https://example.org', 'https://example.org', null, 'anna', 'a password', '', '');
    await Services.logins.addLoginAsync(login);
    const { FormHistory } = ChromeUtils.importESModule('resource://gre/modules/FormHistory.sys.mjs');
    await FormHistory.update([{ op: 'add', fieldname: 'search', value: 'flat beds' }]);
    const { gBrowser } = Services.wm.getMostRecentWindow('navigator:browser');
    const tab = gBrowser.addTrustedTab('${accounts.url}/page');
    while (tab.linkedBrowser.currentURI.spec !== '${accounts.url}/page' || tab.linkedBrowser.webProgress.isLoadingDocument) await rest(20);
  `);
  await one.signIn(accounts);
  await one.sync();
  const asked = between.take();
  const lines = asked.map(({ line }) => line);
  assert.ok(lines.some((line) => /^GET \/1\.0\/sync\/1\.5$/.test(line)), 'a token was asked for');
  // More than a POST takes: a batch.
  assert.ok(lines.some((line) => /^POST .*\/storage\/bookmarks\?batch=true/.test(line)), lines.join('\n'));
  assert.ok(lines.some((line) => /^POST .*\/storage\/bookmarks\?.*commit=true/.test(line)), lines.join('\n'));
  const wrong = asked.filter(({ line, status }) => status >= 400 && !/storage\/meta\/global$/.test(line));
  assert.deepEqual(wrong, []);
  await sync(one);
});

test('another device gets all of it', { skip }, async () => {
  await other.signIn(accounts);
  await sync(other);
  const { bookmarks: marks, places: visits } = await same();
  assert.ok(marks > BOOKMARKS && visits === 2 * PLACES, `${marks} ${visits}`);
  const found = await other.run(`
    const [login] = await Services.logins.searchLoginsAsync({ origin: 'https://example.org' });
    const { FormHistory } = ChromeUtils.importESModule('resource://gre/modules/FormHistory.sys.mjs');
    const { SyncedTabs } = ChromeUtils.importESModule('resource://services-sync/SyncedTabs.sys.mjs');
    return {
      results: Services.prefs.getIntPref('browser.urlbar.maxRichResults'),
      login: [login?.username, login?.password],
      searches: (await FormHistory.search(['value'], { fieldname: 'search' })).map(({ value }) => value),
      tabs: (await SyncedTabs.getTabClients()).map(({ name, tabs }) => [name, tabs.map(({ url }) => url)]),
      devices: Service.clientsEngine.stats.names.sort(),
    };
  `);
  assert.deepEqual(found, {
    results: 7,
    login: ['anna', 'a password'],
    searches: ['flat beds'],
    tabs: [['one', [`${accounts.url}/page`]]],
    devices: ['one', 'other'],
  });
});

test('changes go both ways, and what is deleted goes', { skip }, async () => {
  const [mine, theirs] = [await add(one, 'mine'), await add(other, 'theirs')];
  await one.run(`await PlacesUtils.history.remove('https://example.net/h/1');`);
  await other.run(`
    const [folder] = (await PlacesUtils.promiseBookmarksTree(PlacesUtils.bookmarks.menuGuid)).children.filter(({ title }) => title === 'folder 1');
    await PlacesUtils.bookmarks.remove(folder.guid);
  `);
  await sync(one, other, one, other);
  assert.deepEqual([await titleOf(one, theirs), await titleOf(other, mine)], ['theirs', 'mine']);
  const { bookmarks: marks, places: visits } = await same();
  assert.ok(marks < BOOKMARKS && visits === 2 * (PLACES - 1), `${marks} ${visits}`);
});

test('who was overtaken is told so, and comes again', { skip }, async () => {
  const guid = await add(one, 'both');
  await sync(one, other);
  await rename(one, guid, 'said by one');
  const { reached, go } = between.hold(/^POST \/1\.5\/\d+\/storage\/bookmarks\?/);
  const syncing = one.sync();
  await reached;
  await add(other, 'meanwhile');
  await rename(other, guid, 'said by other');
  assert.deepEqual(await other.sync(), GOOD);
  between.take();
  go();
  const said = await syncing;
  const refused = between.take().find(({ line }) => /^POST \/1\.5\/\d+\/storage\/bookmarks\?/.test(line));
  assert.equal(refused.status, 412);
  assert.ok(refused.headers['x-if-unmodified-since']);
  // It thinks nothing of it: it is to read first, and to write then.
  assert.deepEqual(said, GOOD);
  assert.equal(await titleOf(other, guid), 'said by other');
  await sync(one, other, one);
  await same();
  // Which of both it takes is its own affair.
  assert.match(await titleOf(one, guid), /^said by /);
});

test('an answer that is lost, and a server that is killed', { skip }, async () => {
  await one.run(`
    const { bookmarks } = PlacesUtils;
    const children = Array.from({ length: 250 }, (_, n) => ({ title: 'further ' + n, url: 'https://example.org/f/' + n }));
    await bookmarks.insertTree({ guid: bookmarks.toolbarGuid, children });
  `);
  // The batch is committed, and the device does not know.
  between.lose(/^POST .*\/storage\/bookmarks\?.*commit=true/);
  await one.sync();
  const commits = between.take().filter(({ line }) => /\/storage\/bookmarks\?.*commit=true/.test(line));
  // It asks once more by itself: that is a later write, and no second one.
  assert.deepEqual(commits.map(({ status }) => status).slice(0, 2), [200, 412]);
  await sync(one, other);
  const { bookmarks: marks } = await same();
  assert.ok(marks > BOOKMARKS / 3 * 2 + 250, `${marks}`);
  await add(one, 'before');
  if (server.kill) await server.kill();
  assert.notDeepEqual(await one.sync(), GOOD);
  server = await server.restart();
  await sync(one, other);
  await same();
});

test('one device makes all that the others have its own', { skip }, async () => {
  // As from the page that asks what is to become of data.
  await other.run(`Services.prefs.setStringPref('services.sync.firstSync', 'wipeRemote');`);
  await add(one, 'lost');
  const kept = await add(other, 'kept');
  await sync(other);
  await sync(one, other, one);
  assert.equal(await titleOf(one, kept), 'kept');
  await same();
});

test('an account with other keys starts anew, and old clients are refused', { skip }, async () => {
  accounts.renew(Date.now());
  await one.signIn(accounts);
  await sync(one);
  // The other one still has the old keys.
  await other.run(`Service.identity.logout(); Service.clusterURL = null;`);
  between.take();
  const said = await other.sync();
  assert.equal(said.login, 'error.login.reason.account', JSON.stringify(said));
  assert.ok(between.take().every(({ status }) => status === 401));
  await other.signIn(accounts);
  await sync(other);
  await sync(one, other);
  await same();
});

test('a device that is disconnected takes its own records away', { skip }, async () => {
  await other.run(`
    const over = new Promise((resolve) => { Services.obs.addObserver(function seen(_, topic) { Services.obs.removeObserver(seen, topic); resolve(); }, 'weave:service:start-over:finish'); });
    await fxAccounts.signOut();
    await over;
  `);
  await sync(one);
  assert.deepEqual(await one.run('return Service.clientsEngine.stats.names;'), ['one']);
});
