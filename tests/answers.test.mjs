// CouchDB 3.5.0's recorded answers, request by request: status, headers and body must be equal. What differs is listed with
// its reason in couchdb-answers/differences.mjs, and must differ.
//   FLATBED_ANSWERS  replay only scenarios whose names have this in them
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { call, play, read } from './answers.mjs';
import { differences } from './couchdb-answers/differences.mjs';
import { newName, startServer } from './server.mjs';

let server;
before(async () => { server = await startServer(); });
after(() => server.stop());

for (const [file, known] of Object.entries(differences)) {
  for (const scenario of read(file)) {
    if (!scenario.name.includes(process.env.FLATBED_ANSWERS ?? '')) continue;
    const differs = known[scenario.name] ?? {};
    test(scenario.name, async (t) => {
      for await (const { index, method, path, answer, recorded } of play(server.url, scenario)) {
        const reason = typeof differs === 'string' ? differs : differs[index];
        await t.test(`${index} ${method} ${path}`, () => {
          if (reason === undefined) assert.deepEqual(answer, recorded);
          else if (reason.startsWith?.('perhaps')) return;
          // Of a whole scenario that is for later some steps are equal by themselves.
          else if (typeof differs !== 'string') assert.notDeepEqual(answer, recorded, `is equal, against: ${reason}`);
        });
      }
    });
  }
}
