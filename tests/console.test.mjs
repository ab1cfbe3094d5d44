// The console, as a person uses it, with a mouse and with the keyboard alone.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { conflicting, endpoint, open, path, skip } from './console.mjs';
import { newName, startServer } from './server.mjs';
import { until } from './waiting.mjs';

let all;
before(async () => {
  if (!skip) all = await open(['dora']);
});
after(() => all?.close());

const admin = (...args) => all.server.admin(...args);

test('its files: relative, strict, cached until they change', { skip }, async () => {
  const at = `${all.url}/_utils`;
  const bare = await fetch(at, { redirect: 'manual' });
  assert.deepEqual([bare.status, bare.headers.get('location')], [301, '_utils/']);
  const page = await fetch(`${at}/`);
  assert.equal(page.headers.get('content-type'), 'text/html; charset=utf-8');
  const policy = page.headers.get('content-security-policy');
  for (const part of ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'"]) {
    assert.ok(policy.includes(part), policy);
  }
  assert.ok(!policy.includes('unsafe'), policy);
  assert.equal(page.headers.get('x-content-type-options'), 'nosniff');
  const script = await fetch(`${at}/main.js`);
  assert.equal(script.headers.get('content-type'), 'text/javascript; charset=utf-8');
  const again = await fetch(`${at}/main.js`, { headers: { 'if-none-match': script.headers.get('etag') } });
  assert.deepEqual([again.status, await again.text()], [304, '']);
  for (const [method, to, status] of [['GET', '/none.js', 404], ['GET', '/pages', 404], ['POST', '/', 405], ['HEAD', '/style.css', 200]]) {
    assert.equal((await fetch(at + to, { method })).status, status, `${method} ${to}`);
  }
});

test('where everyone must say who they are one can still sign in; it can be turned off', { skip }, async () => {
  const strict = await startServer({ env: { FLATBED_ADMIN: 'admin:password' } });
  const headers = { authorization: `Basic ${btoa('admin:password')}` };
  await fetch(`${strict.url}/_node/_local/_config/chttpd/require_valid_user`, { method: 'PUT', headers, body: '"true"' });
  await until(async () => (await fetch(strict.url)).status === 401);
  assert.equal((await fetch(`${strict.url}/_utils/`)).status, 200);
  await strict.stop();
  const without = await startServer({ env: { FLATBED_CONSOLE: 'false' } });
  assert.equal((await fetch(`${without.url}/_utils/`)).status, 404);
  await without.stop();
});

test('JSON is kept to the letter', async () => {
  const { parse, print, quote, JsonError } = await import('../crates/console/assets/json.js');
  for (const text of ['{"b":1e3,"a":[-0.0,12345678901234567890.10,1E+2,0],"1":null,"0":true}', '[]', '"x"', '0', '{"":{"":[[],{}]}}', '{"__proto__":1,"constructor":2}']) {
    assert.equal(print(parse(text), 0), text);
    assert.equal(print(parse(print(parse(text))), 0), text);
  }
  assert.equal(print(parse('["\\u202e\\u0000\\ud800\u200b"]'), 0), '["\\u202e\\u0000\\ud800\\u200b"]');
  assert.equal(quote('\u{e0001}a'), '"\u{e0001}a"');
  for (const wrong of ['', '{', '[1,]', '{"a":1,}', '01', '1.', '.5', '+1', '"a\nb"', '"\\x"', 'nul', '1 2', '{a:1}', '[1 2]', '\u00a01', 'NaN', `${'['.repeat(501)}${']'.repeat(501)}`]) {
    assert.throws(() => parse(wrong), JsonError, wrong);
  }
  const doubles = [];
  assert.equal(print(parse('{"a":1,"a":2}', doubles), 0), '{"a":2}');
  assert.deepEqual(doubles, [{ name: 'a', at: 7 }]);
  assert.throws(() => parse('{\n  "a": tru\n}'), /Line 2, column 8/);
  // What a browser, and its JSON, makes of the same texts.
  let seed = 7;
  const random = (n) => {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    return Math.floor((seed / 2147483648) * n);
  };
  const make = (depth) => [() => random(1e6) / 8, () => 'aé"\\\u2028\n'.slice(0, random(7)), () => null, () => random(2) === 1,
    () => Array.from({ length: random(4) }, () => make(depth + 1)), () => Object.fromEntries(Array.from({ length: random(4) }, (_, at) => [`k${at}`, make(depth + 1)]))][random(depth > 4 ? 4 : 6)]();
  for (let n = 0; n < 300; n += 1) {
    const value = make(0);
    assert.deepEqual(JSON.parse(print(parse(JSON.stringify(value)))), value);
    const text = JSON.stringify(value);
    const broken = text.slice(0, random(text.length)) + '{}[]",:1'.charAt(random(8)) + text.slice(random(text.length));
    let isFine = true;
    try { JSON.parse(broken); } catch { isFine = false; }
    if (isFine) parse(broken);
    else assert.throws(() => parse(broken), JsonError, broken);
  }
});

test('lines are laid side by side', async () => {
  const { align } = await import('../crates/console/assets/compare.js');
  const sides = (a, b) => align(a.split(''), b.split('')).map(([left, right, same]) => `${left ?? '_'}${right ?? '_'}${same ? '' : '!'}`).join(' ');
  assert.equal(sides('abc', 'abc'), 'aa bb cc');
  assert.equal(sides('abc', 'axc'), 'aa bx! cc');
  assert.equal(sides('ac', 'abc'), 'aa _b! cc');
  assert.equal(sides('abcd', 'ad'), 'aa b_! c_! dd');
  assert.equal(sides('', 'a'), '_a!');
});

test('signing in, and what stays in the browser', { skip }, async (t) => {
  const { tab, go, button, wrong, heading, context } = await all.person(t);
  await button('Sign out').click();
  await heading('Sign in');
  await tab.getByLabel('Name').fill('admin');
  await tab.getByLabel('Password').fill('no');
  await button('Sign in').click();
  await tab.getByText('Name or password is not right.').waitFor();
  // Where one wanted to go one gets after signing in.
  await go('/users');
  await tab.getByLabel('Name').fill('admin');
  await tab.getByLabel('Password').fill('password');
  await button('Sign in').click();
  await heading('Users');
  const kept = await tab.evaluate(async () => [localStorage.length, sessionStorage.length, document.cookie, (await indexedDB.databases()).length, (await caches.keys()).length]);
  assert.deepEqual(kept, [0, 0, '', 0, 0]);
  assert.ok((await context.cookies()).every(({ httpOnly }) => httpOnly));
  assert.deepEqual(wrong, []);
});

test('a database and a document, by the keyboard alone', { skip }, async (t) => {
  const { tab, wrong, heading } = await all.person(t, { name: null });
  const name = newName('keys');
  /** Tabs on until what has the focus is called so. */
  const tabTo = async (label) => {
    for (let presses = 0; presses < 80; presses += 1) {
      await tab.keyboard.press('Tab');
      const called = await tab.evaluate(() => {
        const on = document.activeElement;
        return [on.labels?.[0]?.textContent, on.getAttribute('aria-label'), on.textContent].find((text) => text)?.trim();
      });
      if (called === label) return;
    }
    assert.fail(`no way to ${label} by the keyboard`);
  };
  await tab.goto(`${all.url}/_utils/`);
  await heading('Sign in');
  await tabTo('Name');
  await tab.keyboard.type('admin');
  await tabTo('Password');
  await tab.keyboard.type('password');
  await tab.keyboard.press('Enter');
  await heading('Databases');
  await tabTo('New database');
  await tab.keyboard.press('Enter');
  await tab.getByRole('dialog').waitFor();
  // A window closes by Escape, and what opened it has the focus again.
  await tab.keyboard.press('Escape');
  await tab.getByRole('dialog').waitFor({ state: 'detached' });
  assert.equal(await tab.evaluate(() => document.activeElement.textContent), 'New database');
  await tab.keyboard.press('Enter');
  await tab.getByRole('dialog').waitFor();
  assert.equal(await tab.evaluate(() => document.activeElement.labels?.[0]?.textContent), 'Name');
  await tab.keyboard.type('Not A Name');
  await tab.keyboard.press('Enter');
  await tab.locator('[aria-invalid=true]').waitFor();
  await tab.keyboard.press('Control+A');
  await tab.keyboard.type(name);
  await tab.keyboard.press('Enter');
  await tab.getByRole('link', { name }).waitFor();
  await tabTo(name);
  await tab.keyboard.press('Enter');
  await heading(name);
  assert.equal(await tab.evaluate(() => document.activeElement.tagName), 'H1');
  await tabTo('New document');
  await tab.keyboard.press('Enter');
  await heading('New document');
  await tabTo('Id');
  await tab.keyboard.type('exact');
  await tabTo('Document');
  await tab.keyboard.press('Control+A');
  await tab.keyboard.type('{"n": 12345678901234567890.10, "m": 1e3, }');
  await tab.keyboard.press('Control+S');
  await tab.getByText('Line 1, column 42').waitFor();
  await tab.keyboard.press('Control+A');
  await tab.keyboard.type('{"n": 12345678901234567890.10, "m": 1e3}');
  await tab.keyboard.press('Control+S');
  await heading('exact');
  const text = await (await fetch(`${all.server.url}/${name}/exact`, { headers: { authorization: `Basic ${btoa('admin:password')}` } })).text();
  assert.ok(text.includes('"n":12345678901234567890.10,"m":1e3'), text);
  // And again through the editor.
  await tabTo('Document');
  assert.ok((await tab.evaluate(() => document.activeElement.value)).includes('12345678901234567890.10'));
  await tab.keyboard.press('Control+S');
  await until(async () => (await admin('GET', path(name, 'exact')))._rev.startsWith('2-'));
  assert.deepEqual(wrong, []);
});

test('pages of documents, jumps, deletion, and a database that goes', { skip }, async (t) => {
  const { tab, go, button, heading, wrong } = await all.person(t);
  const name = newName('pages');
  await admin('PUT', path(name));
  await admin('POST', `${path(name)}/_bulk_docs`, { docs: Array.from({ length: 120 }, (_, at) => ({ _id: `d${String(at).padStart(3, '0')}`, at })) });
  await go(`/db/${name}`);
  const first = async () => tab.locator('tbody th').first().innerText();
  const shows = (id) => until(async () => (await first()) === id);
  await shows('d000');
  await tab.getByRole('link', { name: 'Next page' }).click();
  await shows('d050');
  await tab.getByRole('link', { name: 'Next page' }).click();
  await shows('d100');
  assert.equal(await tab.getByRole('link', { name: 'Next page' }).count(), 0);
  await tab.getByRole('link', { name: 'Previous page' }).click();
  await shows('d050');
  await tab.getByLabel('Id').fill('d07');
  await button('Show from here').click();
  await shows('d070');
  await tab.getByLabel('Id').fill('d090');
  await button('Open this document').click();
  await heading('d090');
  await button('Delete').click();
  await tab.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
  await heading(name);
  await go(`/db/${name}/doc/d090?tab=revisions`);
  await tab.getByText('deleted').first().waitFor();
  await go(`/db/${name}/doc/none`);
  await tab.getByText('There is no such document').waitFor();
  await go('/');
  await tab.getByRole('button', { name: `Delete ${name}` }).click();
  const dialog = tab.getByRole('dialog');
  await dialog.getByRole('button', { name: 'Delete' }).click();
  await dialog.getByText('This is another name.').waitFor();
  await dialog.getByLabel('Type the name to confirm').fill(name);
  await dialog.getByRole('button', { name: 'Delete' }).click();
  await until(async () => !(await admin('GET', '/_all_dbs')).includes(name));
  assert.deepEqual(wrong, []);
});

test('a conflict is seen side by side and resolved, by choosing and by hand', { skip }, async (t) => {
  const { tab, go, button, wrong } = await all.person(t);
  const name = newName('conflict');
  await admin('PUT', path(name));
  await conflicting(admin, name, 'a', [{ colour: 'red', n: 1 }, { colour: 'blue', n: 1 }, { colour: 'green', n: 1 }]);
  await conflicting(admin, name, 'b', [{ colour: 'red' }, { colour: 'blue' }]);
  await go(`/db/${name}/doc/a`);
  await tab.getByText('2 in conflict').waitFor();
  await tab.getByRole('link', { name: 'Revisions' }).click();
  await tab.getByRole('img', { name: /3 ends: 2-2 wins/ }).waitFor();
  await tab.getByRole('link', { name: 'Conflicts (2)' }).click();
  await tab.getByText('1 line differs').waitFor();
  await tab.getByLabel('Compare the winner with').selectOption({ label: '2-0' });
  await tab.getByText('"red"').waitFor();
  assert.equal(await tab.locator('.lines > .here').count(), 2);
  await button('Keep this one').last().click();
  await button('Keep it').click();
  await until(async () => (await admin('GET', `${path(name, 'a')}?conflicts=true`))._conflicts === undefined);
  assert.equal((await admin('GET', path(name, 'a'))).colour, 'red');
  await go(`/db/${name}/doc/b?tab=conflicts`);
  await button('Merge by hand…').click();
  await tab.getByLabel('What is to remain').fill('{"colour": "purple"}');
  await button('Save and delete all others').click();
  await until(async () => (await admin('GET', `${path(name, 'b')}?conflicts=true`))._conflicts === undefined);
  assert.equal((await admin('GET', path(name, 'b'))).colour, 'purple');
  assert.deepEqual(wrong, []);
});

test('somebody else has written meanwhile', { skip }, async (t) => {
  const { tab, go, button, wrong } = await all.person(t);
  const name = newName('meanwhile');
  await admin('PUT', path(name));
  const { rev } = await admin('PUT', path(name, 'a'), { n: 1 });
  await go(`/db/${name}/doc/a`);
  await tab.getByLabel('Document', { exact: true }).fill(`{"_id": "a", "_rev": "${rev}", "n": 3}`);
  await admin('PUT', path(name, 'a'), { _rev: rev, n: 2 });
  // Whoever leaves without saving finds the text again.
  await go(`/db/${name}`);
  await go(`/db/${name}/doc/a`);
  await button('Take up that text').click();
  await button('Save').click();
  const dialog = tab.getByRole('dialog');
  await dialog.getByText('"n": 2').waitFor();
  await dialog.getByRole('button', { name: 'Write yours over it' }).click();
  await until(async () => (await admin('GET', path(name, 'a'))).n === 3);
  assert.deepEqual(wrong, []);
});

test('attachments up, seen, down and away', { skip }, async (t) => {
  const { tab, go, button, wrong } = await all.person(t);
  const name = newName('files');
  await admin('PUT', path(name));
  await admin('PUT', path(name, 'a'), { n: 1 });
  await go(`/db/${name}/doc/a?tab=attachments`);
  await tab.getByText('No attachments').waitFor();
  const chosen = tab.waitForEvent('filechooser');
  await button('Attach files…').click();
  const picture = Buffer.from('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==', 'base64');
  await (await chosen).setFiles([{ name: 'dot.png', mimeType: 'image/png', buffer: picture }, { name: '<b>&".txt', mimeType: 'text/html', buffer: Buffer.from('<script>alert(1)</script>') }]);
  await tab.getByRole('link', { name: 'dot.png' }).waitFor();
  await button('Look').click();
  await tab.waitForFunction(() => document.querySelector('img.preview')?.naturalWidth === 1);
  const saved = tab.waitForEvent('download');
  await tab.getByRole('link', { name: '<b>&".txt' }).click();
  assert.equal(readFileSync(await (await saved).path(), 'utf8'), '<script>alert(1)</script>');
  await tab.getByRole('button', { name: 'Delete dot.png' }).click();
  await tab.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
  await until(async () => !Object.hasOwn((await admin('GET', path(name, 'a')))._attachments, 'dot.png'));
  assert.deepEqual(wrong, []);
});

test('changes as they come, paused and gone on with', { skip }, async (t) => {
  const { tab, go, button, wrong } = await all.person(t);
  const name = newName('changes');
  await admin('PUT', path(name));
  await go(`/db/${name}/changes`);
  await tab.getByText('Live', { exact: true }).waitFor();
  await admin('PUT', path(name, '<img src=x onerror=alert(1)>'), {});
  await tab.getByRole('link', { name: '<img src=x onerror=alert(1)>' }).waitFor();
  const { rev } = await admin('PUT', path(name, 'b'), {});
  await admin('DELETE', `${path(name, 'b')}?rev=${rev}`);
  await tab.getByText('deleted', { exact: true }).waitFor();
  await button('Pause').click();
  await tab.getByText('Paused').waitFor();
  await admin('PUT', path(name, 'c'), {});
  await button('Go on').click();
  await tab.getByRole('link', { name: 'c', exact: true }).waitFor();
  await tab.getByLabel('Begin').selectOption({ label: 'at the beginning' });
  await tab.getByText('3 seen').waitFor();
  assert.deepEqual(wrong, []);
});

test('queries: found, explained, with an index; views', { skip }, async (t) => {
  const { tab, go, button, wrong } = await all.person(t);
  const name = newName('query');
  await admin('PUT', path(name));
  await admin('POST', `${path(name)}/_bulk_docs`, { docs: Array.from({ length: 40 }, (_, n) => ({ _id: `d${n}`, n, half: n / 2 })) });
  await admin('PUT', `/${name}/_design/sums`, { views: { by_n: { map: 'function (doc) { emit(doc.n % 2, doc.n); }', reduce: '_sum' } } });
  await go(`/db/${name}/query`);
  const editor = tab.getByLabel('Query', { exact: true });
  await editor.fill('{"selector": {"n": {"$gte": 10}}, "limit": 25}');
  await button('Run').click();
  await tab.getByText('25 documents;').waitFor();
  await button('Next page').click();
  await tab.getByText('5 documents;').waitFor();
  await button('Explain').click();
  await tab.getByText('reads all documents').waitFor();
  await go(`/db/${name}/indexes`);
  await button('New index').click();
  await tab.getByRole('textbox', { name: 'Fields' }).fill('n');
  await button('Create').click();
  await tab.getByText('json', { exact: true }).waitFor();
  await go(`/db/${name}/query`);
  await editor.fill('{"selector": {"n": {"$gte": 10}}}');
  await button('Explain').click();
  await tab.getByText('uses an index').waitFor();
  await editor.fill('{"selector": {"n": {"$nothing": 10}}}');
  await button('Run').click();
  await tab.getByRole('alert').getByText('$nothing').waitFor();
  await go(`/db/${name}/query?by=views`);
  await tab.getByLabel('Group').selectOption({ label: 'by key' });
  await button('Run').click();
  await tab.getByText('400', { exact: true }).waitFor();
  await tab.getByLabel('Key', { exact: true }).fill('{');
  await button('Run').click();
  await tab.getByText('Line 1, column 2').waitFor();
  assert.deepEqual(wrong, []);
});

test('a user is made, becomes a member, and sees what the API gives', { skip }, async (t) => {
  const { tab, go, button, wrong } = await all.person(t);
  const [name, user] = [newName('members'), newName('eve')];
  await admin('PUT', path(name));
  await go('/users');
  await button('New user').click();
  const dialog = tab.getByRole('dialog');
  await dialog.getByLabel('Name').fill(user);
  await dialog.getByLabel('Password').fill('a password');
  await dialog.getByLabel('Roles').fill('friends');
  await dialog.getByRole('button', { name: 'Create' }).click();
  await tab.getByRole('link', { name: user }).waitFor();
  await go(`/db/${name}/access`);
  await tab.getByRole('group', { name: 'Members' }).getByLabel('Roles').fill('friends');
  await button('Save').first().click();
  await until(async () => (await admin('GET', `/${name}/_security`)).members.roles.includes('friends'));
  const eve = await all.person(t, { name: user, password: 'a password' });
  await eve.tab.getByText('Your account may not list databases').waitFor();
  await eve.tab.getByLabel('Open a database by its name').fill(name);
  await eve.button('Open').click();
  await eve.heading(name);
  await eve.tab.getByText('No documents here yet').waitFor();
  for (const closed of ['/jobs', '/queue', '/metrics', '/replications', '/users']) {
    await eve.go(closed);
    await eve.tab.getByRole('heading', { name: 'Your account may not see this' }).waitFor();
  }
  const stranger = await all.person(t, { name: null });
  await stranger.go(`/db/${name}`);
  await stranger.heading('Sign in');
  assert.deepEqual([...wrong, ...eve.wrong, ...stranger.wrong], []);
});

test('a replication is begun, seen and ended', { skip }, async (t) => {
  const { tab, go, button, wrong } = await all.person(t);
  const [source, target] = [newName('source'), newName('target')];
  await admin('PUT', path(source));
  await admin('PUT', path(source, 'a'), {});
  await go('/replications');
  await button('New replication').click();
  await tab.getByLabel('Source').fill(source);
  await tab.getByLabel('Target', { exact: true }).fill(target);
  await tab.getByLabel('Name').fill('copy it');
  await tab.getByLabel('Make the target').check();
  await button('Begin').click();
  await tab.getByText('running').waitFor();
  await until(async () => (await fetch(`${all.server.url}/${target}/a`, { headers: { authorization: `Basic ${btoa('admin:password')}` } })).ok);
  await tab.getByRole('button', { name: 'End copy it' }).click();
  await button('End it').click();
  await tab.getByText('No replications').waitFor();
  assert.deepEqual(wrong, []);
});

test('a job, its queue, an entry that is mended and retried', { skip }, async (t) => {
  const target = await endpoint();
  t.after(() => target.close());
  const { tab, go, button, heading, wrong, picture } = await all.person(t);
  const [name, job] = [newName('shop'), newName('j')];
  await admin('PUT', path(name));
  await until(async () => (await admin('GET', '/_all_dbs')).includes('_worker'));
  await admin('PUT', path('_worker', `job::${job}`), { type: 'job', id: job, inputs: [{ id: 'in', source_type: 'flatbed', local: name }], outputs: [{ id: 'out', url: `${target.url}/in/{id}` }], output_type: 'http' });
  await admin('PUT', path(name, 'good'), { n: 1 });
  await admin('PUT', path(name, 'ill'), { state: 'bad', n: 1 });
  await go('/jobs');
  await tab.getByRole('link', { name: job, exact: true }).click();
  await heading(job);
  await tab.getByRole('img', { name: /running\. 0 rows behind, 1 delivered, 1 to the queue/ }).waitFor();
  await tab.getByRole('img', { name: /Documents behind/ }).waitFor();
  await picture('job');
  await tab.getByRole('link', { name: '1', exact: true }).click();
  await heading('Dead letters');
  await button('Explain').click();
  await tab.getByText('Found by the index').waitFor();
  await tab.getByRole('link', { name: 'ill', exact: true }).click();
  await tab.getByText('this is <b>bad</b>').first().waitFor();
  await button('Save and retry').click();
  await tab.getByText('The target refused it again').waitFor();
  await tab.getByLabel('What is sent').fill('{"_id": "ill", "state": "well", "n": 10000000000000000000.50}');
  await picture('entry');
  await button('Save and retry').click();
  await tab.getByText('The target took it').waitFor();
  assert.ok(target.kept.get('/in/ill').includes('10000000000000000000.50'), target.kept.get('/in/ill'));
  await go('/queue');
  await tab.getByText('The queue is empty').waitFor();
  // Several at once, and a pause.
  for (const id of ['x', 'y']) await admin('PUT', path(name, id), { state: 'bad' });
  await until(async () => (await admin('GET', '/_worker/_api/dlq/count')).count === 2);
  await go(`/queue?job=${job}`);
  await button('Delete 2…').click();
  await tab.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
  await tab.getByText('None match').waitFor();
  await go(`/jobs/${job}`);
  await button('Pause').click();
  await tab.getByRole('heading', { level: 1 }).getByText('paused').waitFor();
  await button('Start').click();
  await tab.getByRole('heading', { level: 1 }).getByText('running').waitFor();
  assert.deepEqual(wrong, []);
});
