// Runs PouchDB's own test suites, from a checkout of its repository, with Flatbed as their remote:
//   node run.mjs DIRECTORY [find] [mapreduce] [integration]
// DIRECTORY is PouchDB's source. Nothing is built there: the tests are copied, and what they ask of PouchDB's packages comes
// from npm. Ends with 1 where another test fails than is listed in failures.mjs, or one of these does not (but for those
// with a reason that begins with `perhaps`).
import { spawn } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { once } from 'node:events';
import { startServer } from '../server.mjs';
import { failures } from './failures.mjs';

// Those of PouchDB with itself beside a remote: README.md tells of the others.
const integration = ['active_tasks', 'all_docs', 'attachments', 'basics', 'bulk_docs', 'bulk_get', 'close', 'conflicts',
  'constructor', 'design_docs', 'deterministicrevs', 'events', 'failures', 'local_docs', 'reserved', 'slash_id'];

// Of each the files of one run of mocha after the other, PouchDB's adapter where it is not to be its own, and its plugins.
const suites = {
  // The first has its `beforeEach` in a file of its own, which mocha reads with the others.
  find: { runs: ['tests/find/*/test.*.js'], adapters: 'http', plugins: 'pouchdb-find' },
  mapreduce: { runs: ['tests/mapreduce/test.*.js'], adapters: 'http', plugins: '' },
  // A hook that fails ends a run.
  integration: { runs: integration.map((name) => `tests/integration/test.${name}.js`), adapters: '', plugins: '' },
};

const [source, ...named] = process.argv.slice(2);
if (!source || named.some((name) => !suites[name])) {
  console.error(`usage: node run.mjs DIRECTORY [${Object.keys(suites).join('] [')}]`);
  process.exit(2);
}

/** The suites' files where they find what they ask for. */
function prepare() {
  const directory = mkdtempSync(join(tmpdir(), 'flatbed-pouchdb-'));
  cpSync(join(resolve(source), 'tests'), join(directory, 'tests'), { recursive: true });
  symlinkSync(join(import.meta.dirname, 'node_modules'), join(directory, 'node_modules'));
  const shims = {
    pouchdb: 'module.exports = require("../../../node_modules/pouchdb");',
    'pouchdb-find': 'module.exports = require("../../../node_modules/pouchdb-find");',
    'pouchdb-for-coverage': `const packages = "../../../node_modules/";
      const utils = { ...require(packages + "pouchdb-utils"), ...require(packages + "pouchdb-binary-utils") };
      module.exports = Object.assign(require(packages + "pouchdb"), { utils, Errors: require(packages + "pouchdb-errors") });`,
  };
  for (const [name, text] of Object.entries(shims)) {
    const place = join(directory, 'packages', 'node_modules', name);
    mkdirSync(place, { recursive: true });
    writeFileSync(join(place, 'index.js'), text);
  }
  return directory;
}

/** The report of a run. */
async function run(directory, url, files, { adapters, plugins }) {
  const report = join(directory, 'report.json');
  rmSync(report, { force: true });
  const env = { ...process.env, SEED: '1', COUCH_HOST: url };
  if (adapters) env.ADAPTERS = adapters;
  if (plugins) env.PLUGINS = plugins;
  const mocha = join(directory, 'node_modules', 'mocha', 'bin', 'mocha.js');
  const arguments_ = ['--exit', '--timeout', '20000', '--require', './tests/integration/node.setup.js',
    '--reporter', 'json', '--reporter-option', `output=${report}`, files];
  const child = spawn(process.execPath, [mocha, ...arguments_], { cwd: directory, env, stdio: ['ignore', 'ignore', 'inherit'] });
  await once(child, 'exit');
  return JSON.parse(readFileSync(report, 'utf8'));
}

const directory = prepare();
const server = await startServer();
let differs = false;
try {
  for (const name of named.length ? named : Object.keys(suites)) {
    const failed = [];
    const totals = { passes: 0, failures: 0, pending: 0 };
    for (const files of suites[name].runs) {
      const report = await run(directory, server.url, files, suites[name]);
      failed.push(...report.failures);
      for (const key of Object.keys(totals)) totals[key] += report.stats[key];
      if (report.stats.tests === 0) throw new Error(`${files} has no tests`);
    }
    console.log(`${name}: ${totals.passes} passed, ${totals.failures} failed, ${totals.pending} pending`);
    const expected = new Map(Object.entries(failures[name] ?? {}));
    for (const { fullTitle, err } of failed) {
      const reason = expected.get(fullTitle);
      expected.delete(fullTitle);
      if (reason) console.log(`  as known: ${fullTitle}: ${reason}`);
      else {
        differs = true;
        console.log(`  failed: ${fullTitle}: ${String(err.message ?? JSON.stringify(err)).slice(0, 300)}`);
      }
    }
    for (const [title, reason] of expected) {
      if (reason.startsWith('perhaps: ')) continue;
      differs = true;
      console.log(`  listed, and did not fail: ${title}`);
    }
  }
} finally {
  await server.stop();
  rmSync(directory, { recursive: true, force: true });
}
process.exitCode = differs ? 1 : 0;
