// The console's pages among hostile names and documents, and as others see them: by screen readers, in the dark, on a phone.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { conflicting, open, path, skip } from './console.mjs';
import { newName } from './server.mjs';
import { until } from './waiting.mjs';

let all;
before(async () => {
  if (!skip) all = await open([]);
});
after(() => all?.close());

const admin = (...args) => all.server.admin(...args);

test('metrics are plotted, and keys decoded', { skip }, async (t) => {
  const { tab, go, button, wrong } = await all.person(t);
  const name = newName('keys');
  await admin('PUT', path(name));
  await admin('PUT', path(name, 'a'), { customer: { city: 'Bern' } });
  await go('/metrics');
  // Two samples, ten seconds apart, make a line; the arrow keys read it out.
  const chart = tab.getByRole('img', { name: /^Documents per second/ });
  await until(async () => /^M.*L/.test(await tab.getByRole('img', { name: /^Memory/ }).locator('path').first().getAttribute('d')));
  await tab.getByRole('img', { name: /^Memory/ }).focus();
  await tab.keyboard.press('ArrowLeft');
  await tab.locator('line-chart [role=status]', { hasText: 'resident' }).waitFor({ state: 'attached' });
  assert.equal(await chart.count(), 1);
  await go('/storage');
  await tab.getByLabel('Database').fill(name);
  await tab.getByLabel('Id of a document').fill('a');
  await button('Show its keys').click();
  await tab.getByText('{NS} / 2 / "a" / 1 / customer / city').waitFor();
  await tab.getByText('6 keys').waitFor();
  await go(`/db/${name}/doc/a?tab=keys`);
  await tab.getByText('{NS} / 4 / "a"').waitFor();
  assert.deepEqual(wrong, []);
});

const HOSTILE = ['<img src=x onerror=tellTest("xss")>', '"><script>tellTest("xss")</script>', 'a/b/../c', '..', '.', '%2e%2e', 'x?y#z&w', 'evil\u202etxt.exe', ' ', '\u0000', '{{7*7}}', 'javascript:tellTest(1)',
  'constructor', '日本 é\u0301', 'x'.repeat(2000)];

test('hostile names and documents', { skip }, async (t) => {
  const { tab, go, button, heading, wrong, fits } = await all.person(t);
  const name = `${newName('a')}/b$()+-`;
  await admin('PUT', path(name));
  const rows = await admin('POST', `${path(name)}/_bulk_docs`, { docs: HOSTILE.map((_id) => ({ _id, '<b>': HOSTILE[0], in: JSON.parse('{"__proto__": {"x": 1}}') })) });
  assert.ok(rows.every(({ ok }) => ok), JSON.stringify(rows));
  const deep = `${'{"a":['.repeat(240)}1${']}'.repeat(240)}`;
  await fetch(`${all.server.url}${path(name, 'deep')}`, { method: 'PUT', headers: { authorization: `Basic ${btoa('admin:password')}` }, body: deep });
  await admin('PUT', path(name, 'large'), { text: 'y'.repeat(3_000_000), rows: Array.from({ length: 5000 }, (_, at) => ({ at })) });
  const at = `/db/${encodeURIComponent(name)}`;
  await go(at);
  await fits('the list');
  await tab.getByText('U+202E').first().waitFor();
  for (const id of HOSTILE) {
    await go(`${at}/doc/${encodeURIComponent(id)}`);
    await tab.getByLabel('Document', { exact: true }).waitFor();
    assert.ok((await tab.getByLabel('Document', { exact: true }).inputValue()).includes('"_rev": "1-'), id);
    await fits(id);
  }
  const second = () => tab.locator('main .rev[title^="2-"]').waitFor();
  // A browser takes these for a step up: they are written in a body, and nothing else is.
  await go(`${at}/doc/..`);
  await tab.getByLabel('Document', { exact: true }).waitFor();
  await button('Save').click();
  await second();
  assert.match((await admin('POST', `${path(name)}/_all_docs`, { keys: ['..'] })).rows[0].value.rev, /^2-/);
  await button('Delete').click();
  await tab.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
  await tab.locator('.toast', { hasText: 'Deleted' }).waitFor();
  assert.ok((await admin('POST', `${path(name)}/_all_docs`, { keys: ['..'] })).rows[0].value.deleted);
  assert.equal((await admin('GET', path(name))).db_name, name);
  await go(`${at}/doc/deep`);
  await button('Save').click();
  await second();
  await go(`${at}/doc/large`);
  await tab.getByText('The first tenth').waitFor();
  await button('Save').click();
  await second();
  assert.equal((await admin('GET', path(name, 'large'))).text.length, 3_000_000);
  await go(`${at}/doc/${encodeURIComponent('a/b/../c')}?tab=revisions`);
  await heading('a/b/../c');
  await go(`${at}/query`);
  await button('Run').click();
  await tab.getByText('documents;').waitFor();
  for (const odd of ['/%zz', '/none', '/db', '/db/x/none', `${at}/doc`]) {
    await go(odd);
    await tab.getByRole('alert').waitFor();
  }
  assert.deepEqual(wrong, []);
});

test('what ends after one has left takes nobody away', { skip }, async (t) => {
  const { tab, go, button, heading, settled, wrong } = await all.person(t);
  const name = newName('left');
  await admin('PUT', path(name));
  await admin('PUT', path(name, 'b'), {});
  await go(`/db/${name}/new?id=a`);
  const held = new Promise((resolve) => { tab.route(/\/a(\?|$)/, resolve); });
  await button('Save').click();
  const route = await held;
  await go(`/db/${name}/doc/b`);
  await route.continue();
  await tab.locator('.toast', { hasText: 'Saved' }).waitFor();
  // In a turn of its own, if anything goes elsewhere.
  await tab.evaluate(() => new Promise((resolve) => { setTimeout(resolve); }));
  await settled();
  await heading('b');
  assert.ok(tab.url().endsWith('/doc/b'), tab.url());
  assert.deepEqual(wrong, []);
});

test('accessible, fitting, in light and dark and on a phone', { skip }, async (t) => {
  const name = newName('all');
  await admin('PUT', path(name));
  await conflicting(admin, name, 'a', [{ colour: 'red' }, { colour: 'blue' }]);
  await admin('PUT', `/${name}/_design/v`, { views: { v: { map: 'function (doc) { emit(doc._id); }' } } });
  const pages = ['/', `/db/${name}`, `/db/${name}/doc/a`, `/db/${name}/doc/a?tab=conflicts`, `/db/${name}/doc/a?tab=revisions`, `/db/${name}/doc/a?tab=attachments`, `/db/${name}/doc/a?tab=keys`, `/db/${name}/new`,
    `/db/${name}/changes`, `/db/${name}/query`, `/db/${name}/query?by=views`, `/db/${name}/indexes`, `/db/${name}/access`, '/users', '/replications', '/jobs', '/queue', '/metrics', '/storage', '/sign-in', '/none'];
  for (const looks of [{}, { dark: true, phone: true }]) {
    const { tab, go, audit, fits, picture, wrong, button } = await all.person(t, looks);
    for (const page of pages) {
      await go(page);
      const where = `${page} ${JSON.stringify(looks)}`;
      await audit(where);
      await fits(where);
      await picture(page.replaceAll(name, 'db').replace(/\W+/g, '-'));
    }
    if (looks.phone) {
      await button('Menu').click();
      await audit('the menu');
      await picture('menu');
      await tab.getByRole('link', { name: 'Metrics' }).click();
      await tab.getByRole('heading', { name: 'Metrics' }).waitFor();
    }
    assert.deepEqual(wrong, []);
  }
});
