// What functions of design documents cost: maps, reductions, validations, filters and shows, each beside the same work
// without functions where there is such work. Run by `make bench`; prints a table of medians, with the least and the
// most. Programs are measured in turn, one round after the other:
//   FLATBED_BENCH_PROGRAMS   paths of flatbed programs, separated by spaces [that of the tests]
//   FLATBED_BENCH_ROUNDS     rounds [5]
//   FLATBED_BENCH_DOCUMENTS  documents of about 1 KB [20000]
import { createHash } from 'node:crypto';
import { binary, newName, startServer } from '../server.mjs';

const programs = (process.env.FLATBED_BENCH_PROGRAMS ?? binary).split(' ').filter(Boolean);
const rounds = Number(process.env.FLATBED_BENCH_ROUNDS ?? 5);
const count = Number(process.env.FLATBED_BENCH_DOCUMENTS ?? 20_000);
const BULK = 1000;
const SINGLE = 3000;
const CONNECTIONS = 16;

const text = (number) => createHash('sha256').update(String(number)).digest('hex').repeat(14);
const document = (number) => ({ _id: String(number).padStart(8, '0'), number, kind: `kind${number % 10}`, text: text(number) });

const VALIDATE = `function (doc, old, user, security) {
  if (typeof doc.number !== 'number') throw { forbidden: 'number is missing' };
  if (old && old.kind !== doc.kind) throw { forbidden: 'kind is fixed' };
}`;
const FUNCTIONS = {
  views: {
    numbers: { map: 'function (doc) { emit(doc.number, null); }' },
    kinds: {
      map: 'function (doc) { emit([doc.kind, doc.number], doc.number); }',
      reduce: 'function (keys, values) { var sum = 0; for (var i = 0; i < values.length; i++) sum += values[i]; return sum; }',
    },
  },
  filters: { even: 'function (doc, req) { return doc.number % 2 === 0; }' },
  shows: { title: "function (doc, req) { return { body: '<h1>' + doc.number + '</h1>', headers: { 'Content-Type': 'text/html' } }; }" },
};

async function request(url, method = 'GET', body = undefined) {
  const answer = await fetch(url, { method, body: body && JSON.stringify(body), headers: body && { 'Content-Type': 'application/json' } });
  const answered = await answer.text();
  if (!answer.ok) throw new Error(`${method} ${url}: ${answer.status} ${answered.slice(0, 200)}`);
  return answered;
}

async function perSecond(units, work) {
  const begun = performance.now();
  await work();
  return (1000 * units) / (performance.now() - begun);
}

/** Runs `work` for each number below `until`, `CONNECTIONS` at a time. */
async function concurrently(until, work) {
  let next = 0;
  const connection = async () => {
    while (next < until) await work(next++);
  };
  await Promise.all(Array.from({ length: CONNECTIONS }, connection));
}

async function bulk(database, documents) {
  for (let from = 0; from < documents; from += BULK) {
    const docs = Array.from({ length: Math.min(BULK, documents - from) }, (_, at) => document(from + at));
    await request(`${database}/_bulk_docs`, 'POST', { docs });
  }
}

async function measure(server) {
  const figures = {};
  for (const name of ['without', 'validated']) {
    const database = `${server.url}/${newName('bench')}`;
    await request(database, 'PUT');
    if (name === 'validated') await request(`${database}/_design/v`, 'PUT', { validate_doc_update: VALIDATE });
    figures[`PUT, ${CONNECTIONS} at a time, ${name}`] = await perSecond(SINGLE, () =>
      concurrently(SINGLE, (number) => request(`${database}/single${number}`, 'PUT', { number, kind: 'a', text: text(number) })));
    figures[`bulk of ${BULK}, documents, ${name}`] = await perSecond(count, () => bulk(database, count));
    if (name === 'without') continue;
    await request(`${database}/_design/f`, 'PUT', FUNCTIONS);
    const view = `${database}/_design/f/_view`;
    figures['build of two views, documents'] = await perSecond(count + SINGLE, () => request(`${view}/numbers?limit=1`));
    figures['reduce by a function, group_level=1, rows'] = await perSecond(count + SINGLE, () => request(`${view}/kinds?group_level=1`));
    figures['_changes, rows'] = await perSecond(count + SINGLE, () => request(`${database}/_changes?include_docs=true`));
    figures['_changes by a filter function, documents'] = await perSecond(count + SINGLE, () => request(`${database}/_changes?filter=f/even`));
    figures[`GET, ${CONNECTIONS} at a time`] = await perSecond(SINGLE, () => concurrently(SINGLE, (n) => request(`${database}/single${n}`)));
    figures[`show, ${CONNECTIONS} at a time`] = await perSecond(SINGLE, () => concurrently(SINGLE, (n) => request(`${database}/_design/f/_show/title/single${n}`)));
  }
  return figures;
}

const results = new Map();
for (let round = 0; round < rounds; round++) {
  for (const program of programs) {
    const server = await startServer({ binary: program });
    try {
      for (const [name, figure] of Object.entries(await measure(server))) {
        const row = results.get(name) ?? new Map();
        row.set(program, [...(row.get(program) ?? []), figure]);
        results.set(name, row);
      }
    } finally {
      await server.stop();
    }
  }
}
const median = (figures) => {
  const sorted = figures.toSorted((a, b) => a - b);
  return `${sorted[sorted.length >> 1].toFixed(0)} (${sorted[0].toFixed(0)}-${sorted.at(-1).toFixed(0)})`;
};
console.log(`| a second | ${programs.join(' | ')} |\n|---|${'---:|'.repeat(programs.length)}`);
for (const [name, row] of results) console.log(`| ${name} | ${programs.map((program) => median(row.get(program))).join(' | ')} |`);
