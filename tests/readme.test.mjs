// The queries that README.md shows, on the sample that it loads.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { after, before, test } from 'node:test';
import { startServer } from './server.mjs';

const repository = resolve(import.meta.dirname, '..');
const skip = spawnSync('curl', ['--version']).error ? 'curl is not installed' : false;

let server;
before(async () => { server = await startServer(); });
after(() => server.stop());

test('queries of the sample', { skip }, async () => {
  const lines = readFileSync(join(repository, 'tests/data/browser-compat-data.jsonl'), 'utf8').trim().split('\n');
  await fetch(`${server.url}/compat`, { method: 'PUT' });
  for (const line of lines) {
    await fetch(`${server.url}/compat`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: line });
  }
  const block = readFileSync(join(repository, 'README.md'), 'utf8').match(/^ {4}JSON='[^]*?\n\n/m)[0];
  const commands = block.replace(/\n {6}/g, ' ').trim().split('\n').map((line) => line.trim());
  const [json, ...curls] = commands.map((line) => line.replaceAll('http://127.0.0.1:5984', server.url));
  const answers = curls.map((command) => {
    const { stdout, stderr } = spawnSync('sh', ['-c', `${json}\n${command} --silent`], { encoding: 'utf8' });
    assert.ok(stdout, stderr);
    return JSON.parse(stdout);
  });
  const [made, mobile, count, deprecated] = answers;
  assert.equal(made.result, 'created');
  const names = mobile.docs.map(({ browser }) => browser.name);
  assert.ok(names.length > 5 && mobile.warning === undefined, names);
  assert.deepEqual(names, [...names].sort());
  assert.deepEqual(count, { count: 7 });
  assert.deepEqual(deprecated.docs.map(({ _id }) => _id).slice(0, 2), ['api.SharedStorage', 'http.headers.DPR']);
});
