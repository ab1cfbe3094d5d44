// Feeds in a browser: headless Chromium, whose page is an attachment of a document and so of the server's own origin.
//   CHROMIUM   the browser [/usr/bin/chromium]; the test is left out where there is none
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { chromium } from 'playwright-core';
import { newName, ownPort, startServer } from './server.mjs';
import { until } from './waiting.mjs';

const executablePath = process.env.CHROMIUM ?? '/usr/bin/chromium';
const skip = existsSync(executablePath) ? false : `${executablePath} is not there: install chromium, or name one in CHROMIUM`;

let server;
let browser;
before(async () => {
  if (skip) return;
  server = await startServer({ port: await ownPort() });
  const args = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync'];
  browser = await chromium.launch({ executablePath, args });
});
after(async () => {
  await browser?.close();
  await server?.stop();
});

const call = async (method, path, body, type = 'application/json') => {
  const answer = await fetch(server.url + path, { method, headers: { 'content-type': type }, body });
  assert.ok(answer.ok, `${method} ${path}: ${answer.status}`);
  return answer.json();
};

// What the page sees it keeps in `seen`: places, and documents as they were shown.
const page = (follow) => `<!doctype html><meta charset="utf-8"><title>feed</title><script>
  const database = location.pathname.split('/')[1];
  const seen = [];
  let opened = 0;
  let beats = 0;
  let last = 0;
  function row(change) {
    seen.push({ seq: change.seq, id: change.id, deleted: change.deleted === true, n: change.doc.n });
    last = change.seq;
  }
  ${follow}
</script>`;

const eventSource = page(`
  const path = '/' + database + '/_changes?feed=eventsource&include_docs=true&heartbeat=200';
  const source = new EventSource(path);
  source.onopen = () => { opened += 1; };
  source.onmessage = ({ data, lastEventId }) => {
    const change = JSON.parse(data);
    if (JSON.parse(lastEventId) !== change.seq) throw new Error(lastEventId);
    row(change);
  };
  source.addEventListener('heartbeat', () => { beats += 1; });`);

// A page that connects again by itself, as an EventSource does.
const webSocket = page(`
  function connect() {
    const path = '/' + database + '/_changes?feed=websocket&include_docs=true&heartbeat=200&since=' + last;
    const socket = new WebSocket('ws://' + location.host + path);
    socket.onopen = () => { opened += 1; };
    socket.onmessage = ({ data }) => { const change = JSON.parse(data); if (change.id) row(change); };
    socket.onclose = () => setTimeout(connect, 100);
  }
  connect();`);

for (const [name, html] of [['EventSource', eventSource], ['WebSocket', webSocket]]) {
  test(`${name}, also across a server that is killed`, { skip }, async () => {
    const database = newName('browser');
    await call('PUT', `/${database}`);
    await call('PUT', `/${database}/page/index.html`, html, 'text/html');
    // Attachments are served in a sandbox, as by CouchDB, in which nothing would run.
    const context = await browser.newContext({ bypassCSP: true });
    const tab = await context.newPage();
    const errors = [];
    tab.on('pageerror', (error) => errors.push(error));
    await tab.goto(`${server.url}/${database}/page/index.html`);
    const look = () => tab.evaluate('({ seen, opened, beats })');
    const sees = async (wanted) => {
      const found = await look();
      return wanted(found) && found;
    };
    const untilSees = (wanted) => until(() => sees(wanted), async () => `${JSON.stringify(await look())} ${errors}`);
    await untilSees(({ opened }) => opened === 1);
    for (let n = 0; n < 30; n += 1) await call('PUT', `/${database}/doc${n}`, JSON.stringify({ n }));
    const { rev } = await call('PUT', `/${database}/gone`, JSON.stringify({ n: -1 }));
    await untilSees(({ seen }) => seen.at(-1)?.id === 'gone');
    await call('DELETE', `/${database}/gone?rev=${rev}`);
    await untilSees(({ seen }) => seen.at(-1)?.deleted);
    if (name === 'EventSource') await untilSees(({ beats }) => beats > 0);
    // The browser connects again, and says where it was.
    if (server.kill) {
      await server.kill();
      server = await server.restart();
    }
    for (let n = 30; n < 60; n += 1) await call('PUT', `/${database}/doc${n}`, JSON.stringify({ n }));
    const { seen, opened } = await untilSees(({ seen }) => seen.at(-1)?.id === 'doc59');
    assert.equal(opened, server.kill ? 2 : 1);
    const ids = seen.map(({ id }) => id);
    const numbered = Array.from({ length: 60 }, (_, n) => `doc${n}`);
    assert.deepEqual(ids, ['page', ...numbered.slice(0, 30), 'gone', 'gone', ...numbered.slice(30)]);
    assert.ok(seen.every(({ id, n }) => !id.startsWith('doc') || n === Number(id.slice(3))));
    const seqs = seen.map(({ seq }) => seq);
    assert.deepEqual(seqs, [...new Set(seqs)].sort());
    assert.deepEqual(errors, []);
    await tab.close();
    await call('DELETE', `/${database}`);
  });
}
