// How fast PouchDB on LevelDB and a server replicate, out of and into PouchDB, in batches of 100; half of the work is the
// client's. Run by `make bench`; prints a table. Servers beside Flatbed:
//   FLATBED_BENCH_PEER   URL of a CouchDB-compatible server that runs, such as http://127.0.0.1:5985
//   FLATBED_BENCH_DOCUMENTS  how many documents of about 1 KB [10000]
import { createHash } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import PouchDB from 'pouchdb';
import { newName, startServer } from '../server.mjs';

const count = Number(process.env.FLATBED_BENCH_DOCUMENTS ?? 10_000);

function* documents() {
  for (let number = 0; number < count; number++) {
    const text = Array.from({ length: 12 }, (_, at) => createHash('sha256').update(`${number} ${at}`).digest('hex'));
    yield { _id: String(number).padStart(8, '0'), number, tags: ['a', 'b'], nested: { text: text.slice(0, 6), more: text.slice(6) } };
  }
}

async function timed(work) {
  const begun = performance.now();
  const { docs_written: written } = await work();
  if (written !== count) throw new Error(`${written} of ${count} documents were written`);
  return (1000 * count) / (performance.now() - begun);
}

const directory = mkdtempSync(join(tmpdir(), 'flatbed-bench-'));
const server = await startServer();
try {
  const source = new PouchDB(join(directory, 'source'));
  await source.bulkDocs([...documents()]);
  const options = { batch_size: 100 };
  console.log(`| ${count} documents of 1 KB, batches of 100 | out of PouchDB, documents/s | into PouchDB, documents/s |\n|---|---:|---:|`);
  for (const [name, url] of [['Flatbed', server.url], ['peer', process.env.FLATBED_BENCH_PEER]]) {
    if (!url) continue;
    const remote = new PouchDB(`${url}/${newName('bench')}`);
    const push = await timed(() => source.replicate.to(remote, options));
    const target = new PouchDB(join(directory, newName('target')));
    const pull = await timed(() => target.replicate.from(remote, options));
    console.log(`| ${name} | ${push.toFixed(0)} | ${pull.toFixed(0)} |`);
    await remote.destroy();
    await target.destroy();
  }
  await source.destroy();
} finally {
  await server.stop();
  rmSync(directory, { recursive: true, force: true });
}
