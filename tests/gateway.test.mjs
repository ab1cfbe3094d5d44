// Sync Gateway's recorded answers, request by request, on Flatbed's two ports for its API: status, headers and body must be equal. What
// differs on purpose is listed with its reason in sync-gateway/differences.mjs, as a scenario where its database is refused; what is not
// built yet, in sync-gateway/later.json, scenario by scenario, by the places of its steps, or as 'all' where the database cannot be made.
// The former must differ; of the latter nothing is held, and FLATBED_GENERATE leaves out what has become equal.
//   FLATBED_ANSWERS   replay only scenarios whose names have this in them
//   FLATBED_GENERATE  write later.json anew, but for what differs on purpose, and tell how many answers are equal
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { after, before, test } from 'node:test';
import { play, read } from './sync-gateway/answers.mjs';
import { differences, refused } from './sync-gateway/differences.mjs';
import { startServer } from './server.mjs';

const file = new URL('sync-gateway/later.json', import.meta.url);
const later = process.env.FLATBED_GENERATE ? {} : JSON.parse(readFileSync(file, 'utf8'));

let server;
before(async () => { server = await startServer({ gateway: true }); });
after(() => server.stop());

const counts = { equal: 0, different: 0, later: 0 };
for (const scenario of read()) {
  if (!scenario.name.includes(process.env.FLATBED_ANSWERS ?? '')) continue;
  test(scenario.name, { timeout: 600_000 }, async (t) => {
    const known = differences[scenario.name] ?? {};
    const notYet = later[scenario.name] ?? [];
    const found = [];
    let played = false;
    for await (const { index, who, method, path, answer, recorded, equal } of play(server, scenario)) {
      played = true;
      const reason = known[index];
      if (equal) counts.equal += 1;
      else if (reason) counts.different += 1;
      else {
        counts.later += 1;
        found.push(index);
      }
      if (process.env.FLATBED_GENERATE) {
        if (process.env.FLATBED_ANSWERS !== undefined && !equal) {
          console.log(`${scenario.name}: ${index} ${who} ${method} ${path}\n   recorded ${JSON.stringify(recorded)}\n   answered ${JSON.stringify(answer)}`);
        }
        continue;
      }
      await t.test(`${index} ${who} ${method} ${path}`, () => {
        if (reason) assert.ok(!equal, `is equal, against: ${reason}`);
        else if (!(notYet === 'all' || notYet.includes(index))) assert.ok(equal, `recorded ${JSON.stringify(recorded)}\nanswered ${JSON.stringify(answer)}`);
      });
    }
    const reason = refused[scenario.name];
    if (reason) {
      assert.ok(!played, `the database is made, against: ${reason}`);
      counts.different += scenario.steps.filter(([, was]) => was).length;
      return;
    }
    if (!played) {
      counts.later += scenario.steps.filter(([, was]) => was).length;
      if (!process.env.FLATBED_GENERATE) assert.equal(notYet, 'all', 'the database cannot be made');
    }
    if (process.env.FLATBED_GENERATE) later[scenario.name] = played ? found : 'all';
  });
}

test('pages of other origins change nothing, and no other name reaches the administrators\' port', async () => {
  const ask = (url, method, path, headers) => new Promise((resolve, reject) => {
    const { hostname: host, port } = new URL(url);
    const request = http.request({ host, port, method, path, headers, agent: false }, (response) => {
      response.resume();
      response.on('end', () => resolve(response.statusCode));
    });
    request.on('error', reject);
    request.end(method === 'GET' ? undefined : '{}');
  });
  const { adminUrl, publicUrl } = server;
  const foreign = { origin: 'http://evil.example', 'content-type': 'text/plain' };
  for (const url of [adminUrl, publicUrl]) {
    assert.equal(await ask(url, 'POST', '/db/_purge', foreign), 403);
    assert.equal(await ask(url, 'POST', '/db/', foreign), 403);
  }
  assert.equal(await ask(adminUrl, 'GET', '/', { host: 'evil.example' }), 403);
  assert.equal(await ask(adminUrl, 'GET', '/', {}), 200);
  // What is the server's own has no path here.
  for (const path of ['/_users/', '/%5Fusers/', '/_replicator/x', '/_users/_changes']) {
    assert.equal(await ask(adminUrl, 'GET', path, {}), 404);
    assert.equal(await ask(adminUrl, 'PUT', path, {}), 404);
  }
});

after(() => {
  if (!process.env.FLATBED_GENERATE) return;
  console.log(JSON.stringify(counts));
  const lines = Object.entries(later).filter(([, found]) => found.length > 0)
    .map(([name, found]) => `  ${JSON.stringify(name)}: ${JSON.stringify(found)}`);
  if (process.env.FLATBED_ANSWERS === undefined) writeFileSync(file, `{\n${lines.join(',\n')}\n}\n`);
});
