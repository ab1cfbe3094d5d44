// The examples of README.md and of docs/, page by page, in the order in which they stand.
//
// A fence of `sh` or `js` runs, unless a reason follows: "```sh untested: REASON". The examples of a page are one script, so later ones see the
// data and the shell variables of earlier ones. The script stops at the first command that fails, and curl fails at an error of the server.
import assert from 'node:assert/strict';
import { execFile, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { test } from 'node:test';
import { binary, startServer } from './server.mjs';
import { PATIENCE_MS, until } from './waiting.mjs';

const repository = resolve(import.meta.dirname, '..');
const skip = process.env.FLATBED_TEST_URL ? 'a server of its own is needed'
  : spawnSync('curl', ['--version']).error ? 'curl is not installed' : false;

const docs = readdirSync(join(repository, 'docs')).filter((name) => name.endsWith('.md')).sort();
const pages = ['README.md', ...docs.map((name) => `docs/${name}`)];
const textOf = (page) => readFileSync(join(repository, page), 'utf8');

const RUN = ['sh', 'js'];
const SHOWN = ['toml', 'json', 'python', 'text'];
const UNTESTED = 'untested: ';
/** What stands on stdout before the output of the example at a line of the page, and after each answer that curl printed. */
const EXAMPLE = '--- example at line ';
const ANSWER_ENDS = '--- end of an answer';

/** The fenced blocks of a page: `{ line, language, reason, text }`; `line` is that of the opening fence. */
function blocks(page) {
  const found = [];
  let open;
  textOf(page).split('\n').forEach((text, at) => {
    if (!text.startsWith('```')) {
      open?.lines.push(text);
    } else if (open) {
      found.push({ ...open, text: `${open.lines.join('\n')}\n` });
      open = undefined;
    } else {
      const [language, ...words] = text.slice(3).split(' ');
      open = { line: at + 1, language, reason: words.join(' '), lines: [] };
    }
  });
  assert.equal(open, undefined, `${page}: a fence is not closed`);
  return found;
}

/** How the server of a page is started; `files` is a directory for it. */
const options = {
  'docs/users-and-tls.md': () => ({ env: { FLATBED_ADMIN: 'anna:PASSWORD' } }),
  'docs/sync-gateway.md': () => ({ gateway: true }),
  'docs/worker.md': (files) => ({ env: { FLATBED_WORKER: 'true', FLATBED_WORKER_FILES: files } }),
};

/** What the examples of a page must have done. `answers(text)` is what curl printed in the example that has this text. */
const checks = {
  'docs/views-and-queries.md': ({ answers }) => {
    const [made, mobile, count, deprecated] = answers('/_find').map((answer) => JSON.parse(answer));
    assert.equal(made.result, 'created');
    const names = mobile.docs.map(({ browser }) => browser.name);
    assert.ok(names.length > 5 && mobile.warning === undefined, names);
    assert.deepEqual(names, [...names].sort());
    assert.deepEqual(count, { count: 7 });
    assert.deepEqual(deprecated.docs.map(({ _id }) => _id).slice(0, 2), ['api.SharedStorage', 'http.headers.DPR']);
  },
  'docs/users-and-tls.md': ({ answers }) => {
    assert.equal(JSON.parse(answers('/_users/org.couchdb.user:dora\n').at(-1)).name, 'dora');
  },
  'docs/sync-gateway.md': ({ answers, stdout }) => {
    assert.deepEqual(JSON.parse(answers('/_all_docs')[0]).rows.map(({ id }) => id), ['one']);
    assert.match(stdout, /^\[ 'one' \]$/m);
  },
  'docs/worker.md': async ({ files }) => {
    const file = join(files, 'orders.jsonl');
    const lines = await until(() => existsSync(file) && readFileSync(file, 'utf8').match(/^.+$/gm));
    assert.equal(JSON.parse(lines[0]).id, '1');
  },
};

/** One script of a page's examples; those in JavaScript become files beside it. */
function script(examples, directory, here) {
  const parts = examples.map(({ line, language, text }) => {
    let code = here(text);
    if (language === 'js') {
      const file = `line-${line}.mjs`;
      writeFileSync(join(directory, file), code);
      code = `"$NODE" ${file}\n`;
    }
    return `echo '${EXAMPLE}${line}'\n${code}`;
  });
  const file = join(directory, 'page.sh');
  writeFileSync(file, parts.join(''));
  return file;
}

/** Runs a page's examples on a server of their own, in a directory that looks like the repository's. */
async function run(page, examples) {
  const directory = mkdtempSync(join(tmpdir(), 'flatbed-page-'));
  const at = (name) => join(directory, name);
  ['bin', 'files'].forEach((name) => mkdirSync(at(name)));
  symlinkSync(binary, at('bin/flatbed'));
  symlinkSync(join(repository, 'tests'), at('tests'));
  symlinkSync(join(repository, 'tests', 'node_modules'), at('node_modules'));
  writeFileSync(at('.curlrc'), `silent\nshow-error\nfail\nwrite-out = "\\n${ANSWER_ENDS}\\n"\n`);
  const server = await startServer(options[page]?.(at('files')));
  try {
    const addresses = { 5984: server.url, 4984: server.publicUrl, 4985: server.adminUrl };
    const here = (text) => text.replace(/127\.0\.0\.1:(5984|4984|4985)\b/g, (_, port) => new URL(addresses[port]).host);
    const env = {
      ...process.env, PATH: `${at('bin')}:${process.env.PATH}`, CURL_HOME: directory, FLATBED_URL: server.url, NODE: process.execPath,
    };
    const { error, stdout, stderr } = await new Promise((done) => {
      const settings = { cwd: directory, env, timeout: PATIENCE_MS, maxBuffer: 1 << 28 };
      execFile('sh', ['-ex', script(examples, directory, here)], settings, (error, stdout, stderr) => done({ error, stdout, stderr }));
    });
    const lines = stdout.match(new RegExp(`(?<=^${EXAMPLE})\\d+$`, 'gm'));
    assert.ok(!error, `${page}:${lines?.at(-1)}: ${stderr.slice(-4_000)}`);
    const answers = (text) => {
      const { line } = examples.find((example) => example.text.includes(text));
      const output = stdout.split(`${EXAMPLE}${line}\n`)[1].split(EXAMPLE)[0];
      return output.split(`\n${ANSWER_ENDS}\n`).slice(0, -1);
    };
    await checks[page]?.({ answers, stdout, files: at('files') });
  } finally {
    await server.stop();
    rmSync(directory, { recursive: true, force: true });
  }
}

for (const page of pages) {
  const all = blocks(page);
  test(`${page}: each example runs or says why not`, () => {
    for (const { line, language, reason } of all) {
      const where = `${page}:${line}`;
      assert.ok([...RUN, ...SHOWN].includes(language), `${where}: the language is ${language || 'missing'}`);
      const isSaid = RUN.includes(language) && reason.startsWith(UNTESTED) && reason.length > UNTESTED.length;
      assert.ok(reason === '' || isSaid, `${where}: ${reason}`);
    }
  });
  const examples = all.filter(({ language, reason }) => RUN.includes(language) && reason === '');
  if (examples.length > 0) test(`${page}: examples`, { skip }, () => run(page, examples));
}

test('the index lists every page', () => {
  const index = textOf('docs/README.md');
  for (const name of docs) assert.ok(name === 'README.md' || index.includes(`](${name})`), name);
});

test('every command and setting is documented', { skip }, () => {
  const help = (...command) => spawnSync(binary, [...command, '--help'], { encoding: 'utf8' }).stdout;
  const [operations, configuration] = [textOf('docs/operations.md'), textOf('docs/configuration.md')];
  const commands = [...help().matchAll(/^ {2}flatbed ([a-z]+)/gm)].map(([, name]) => name);
  assert.ok(commands.length > 5, help());
  for (const name of commands) assert.ok(operations.includes(`| \`flatbed ${name}`), name);
  const settings = [...help('serve').matchAll(/^ {2}--([a-z-]+)/gm)].map(([, name]) => name);
  assert.ok(settings.length > 20, help('serve'));
  for (const name of settings) assert.match(configuration, new RegExp(`\`(flatbed serve )?--${name}[ \`]`), name);
});
