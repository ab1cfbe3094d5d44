// The console in headless Chromium, behind a prefix of a proxy: what its tests share.
//   CHROMIUM             the browser [/usr/bin/chromium]; the tests are left out where there is none
//   CONSOLE_SCREENSHOTS  a directory for pictures of the pages, to be looked at
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import http from 'node:http';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chromium } from 'playwright-core';
import * as accounts from './accounts.mjs';
import { PATIENCE_MS } from './waiting.mjs';

const executablePath = process.env.CHROMIUM ?? '/usr/bin/chromium';
export const skip = accounts.skip || (existsSync(executablePath) ? false : `${executablePath} is not there: install chromium, or name one in CHROMIUM`);

const args = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];
const axe = skip ? '' : readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

export const PREFIX = '/behind/a proxy';

/** Hands on what is asked for under the prefix, and nothing else. */
async function proxy(target) {
  const prefix = encodeURI(PREFIX);
  const server = http.createServer((request, response) => {
    if (!request.url.startsWith(`${prefix}/`)) {
      response.writeHead(418).end();
      return;
    }
    const { hostname, port } = new URL(target);
    const asked = http.request({ hostname, port, path: request.url.slice(prefix.length), method: request.method, headers: request.headers }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      response.flushHeaders();
      answer.pipe(response);
    });
    asked.on('error', () => response.destroy());
    response.on('close', () => asked.destroy());
    request.pipe(asked);
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const close = () => {
    server.close();
    server.closeAllConnections();
  };
  return { url: `http://127.0.0.1:${server.address().port}${prefix}`, close };
}

/** The path of a database, or of what lies in it. */
export const path = (...segments) => `/${segments.map(encodeURIComponent).join('/')}`;

/** A document with these conflicting bodies, which do not know of each other; the last one wins. */
export async function conflicting(admin, database, id, bodies) {
  const docs = bodies.map((body, at) => ({ _id: id, _rev: `2-${at}`, ...body, _revisions: { start: 2, ids: [String(at), 'f'] } }));
  await admin('POST', `${path(database)}/_bulk_docs`, { docs, new_edits: false });
}

/** An endpoint that keeps what it gets by its path, and answers 422 to documents that say so with `"bad"`. */
export async function endpoint() {
  const kept = new Map();
  const server = http.createServer(async (request, response) => {
    let body = '';
    for await (const piece of request) body += piece;
    const isBad = body.includes('"bad"');
    if (!isBad) kept.set(request.url, body);
    response.writeHead(isBad ? 422 : 200).end(isBad ? 'this is <b>bad</b>' : '');
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const close = () => {
    server.close();
    server.closeAllConnections();
  };
  return { url: `http://127.0.0.1:${server.address().port}`, kept, close };
}

/** A server with a worker, users, a proxy before it, and a browser: `person()` is somebody who opens the console. */
export async function open(users) {
  const files = mkdtempSync(join(tmpdir(), 'flatbed-console-'));
  const server = await accounts.startWithUsers(users, { env: { FLATBED_WORKER: 'true', FLATBED_WORKER_FILES: files, FLATBED_WORKER_ALLOW: '127.0.0.1' } });
  const before = await proxy(server.url);
  const browser = await chromium.launch({ executablePath, args });
  const close = async () => {
    await browser.close();
    before.close();
    await server.stop();
    rmSync(files, { recursive: true, force: true });
  };

  async function person(t, { name = 'admin', password = name === 'admin' ? 'password' : `${name}!`, dark = false, phone = false } = {}) {
    const context = await browser.newContext({
      viewport: phone ? { width: 390, height: 844 } : { width: 1280, height: 900 }, colorScheme: dark ? 'dark' : 'light', acceptDownloads: true,
    });
    t.after(() => context.close());
    context.setDefaultTimeout(PATIENCE_MS);
    // What must not happen anywhere: a script that fails, a policy that is broken, a dialog, text that became markup.
    const wrong = [];
    await context.exposeBinding('tellTest', (_, what) => { wrong.push(what); });
    await context.addInitScript(() => {
      document.addEventListener('securitypolicyviolation', (event) => tellTest(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`));
    });
    const tab = await context.newPage();
    tab.on('pageerror', (error) => wrong.push(error.stack));
    tab.on('dialog', (dialog) => {
      wrong.push(`a dialog: ${dialog.message()}`);
      dialog.dismiss();
    });
    tab.on('request', (request) => { if (!request.url().startsWith(before.url) && !request.url().startsWith('blob:')) wrong.push(`asked for ${request.url()}`); });
    const go = async (hash) => {
      await tab.goto(`${before.url}/_utils/#${hash}`);
      await settled();
    };
    /** The page of the address is there. */
    const settled = () => tab.waitForFunction(() => document.querySelector('main')?.dataset.at === location.hash);
    const heading = (text) => tab.getByRole('heading', { level: 1, name: text }).waitFor();
    const button = (text) => tab.getByRole('button', { name: text, exact: true });
    const signIn = async () => {
      await tab.getByLabel('Name').fill(name);
      await tab.getByLabel('Password').fill(password);
      await button('Sign in').click();
    };
    /** What a page has against people who do not see it, or not well. */
    const audit = async (where) => {
      await tab.evaluate(axe);
      const { violations } = await tab.evaluate(() => axe.run(document, { resultTypes: ['violations'] }));
      const found = violations.map(({ id, nodes }) => `${where}: ${id}: ${nodes.slice(0, 3).map(({ html, failureSummary }) => `${html} ${failureSummary}`).join(' | ')}`);
      assert.deepEqual(found, []);
    };
    /** Nothing sticks out to the side: what is wide scrolls in its own frame. */
    const fits = async (where) => {
      const width = await tab.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      assert.ok(width <= 0, `${where} is ${width} pixels too wide`);
    };
    const picture = async (file) => {
      if (process.env.CONSOLE_SCREENSHOTS) await tab.screenshot({ path: join(process.env.CONSOLE_SCREENSHOTS, `${file}${dark ? '-dark' : ''}${phone ? '-phone' : ''}.png`), fullPage: true });
    };
    if (name !== null) {
      await tab.goto(`${before.url}/_utils/`);
      await settled();
      await signIn();
      await tab.getByText('Signed in as').first().waitFor({ state: 'attached' });
    }
    return { context, tab, go, settled, heading, button, signIn, audit, fits, picture, wrong };
  }
  return { server, url: before.url, person, close };
}
