// The examples of README.md and of docs/, page by page, in the order in which they stand.
//
// A fence of `sh` runs, unless a reason follows: "```sh untested: REASON". A fence of `js` is the file that the paragraph before it names:
// "In a file `notes.mjs`:". The examples of a page are one script, so later ones see the data and the shell variables of earlier ones. The
// script stops at the first command that fails, and curl fails at an error of the server.
//
// A page that runs `flatbed serve` begins in an empty directory and without a server. It has what an installation leaves: `flatbed` in
// PATH, curl, Node.js, and `npm` and `npx`, which take packages from the tests' own in place of the network. Ports are replaced by free
// ones. Other pages have a server, and `tests` as in the repository.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { test } from 'node:test';
import { noCertificates } from './accounts.mjs';
import { binary, ownPort, startServer } from './server.mjs';
import { PATIENCE_MS } from './waiting.mjs';

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

/** The ports of servers, as the pages have them. */
const PORTS = [5984, 5985, 4984, 4985, 8000];

/** The fenced blocks of a page: `{ line, language, reason, text, file }`; `line` is that of the opening fence. */
function blocks(page) {
  const found = [];
  let open;
  let before = '';
  textOf(page).split('\n').forEach((text, at) => {
    if (!text.startsWith('```')) {
      open?.lines.push(text);
      if (!open && text !== '') before = text;
    } else if (open) {
      found.push({ ...open, text: `${open.lines.join('\n')}\n` });
      [open, before] = [undefined, ''];
    } else {
      const [language, ...words] = text.slice(3).split(' ');
      const file = before.match(/`([\w-]+\.mjs)`:$/)?.[1];
      open = { line: at + 1, language, reason: words.join(' '), file, lines: [] };
    }
  });
  assert.equal(open, undefined, `${page}: a fence is not closed`);
  return found;
}

/** What the examples of a page must have done. `answers(text)` is what curl printed in the example that has this text. */
const checks = {
  'README.md': ({ answers }) => {
    const { docs } = JSON.parse(answers('/_find')[0]);
    assert.deepEqual(docs, [{ name: 'Chrome Android' }, { name: 'Firefox for Android' }]);
  },
  'docs/getting-started.md': ({ answers, stdout }) => {
    assert.equal(JSON.parse(answers('"edited": true')[0]).rev[0], '2');
    assert.match(stdout, /^1 sent, 1 received$/m);
    assert.deepEqual(JSON.parse(answers('/_all_dbs')[0]).filter((name) => !name.startsWith('_')), ['browsers', 'browsers-flat', 'notes']);
  },
  'docs/web-apps.md': ({ answers, stdout }) => {
    assert.match(stdout, /^success$/m);
    assert.equal(JSON.parse(answers('cors/origins')[0]), '*');
    assert.match(stdout, /text: 'written offline'/);
  },
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
  'docs/firefox-sync.md': ({ answers }) => {
    assert.match(answers('--retry')[0], /https:\/\/sync\.example\.org\/1\.0\/sync\/1\.5/);
  },
  'docs/worker.md': ({ directory }) => {
    const [line] = readFileSync(join(directory, 'worker-files/orders.jsonl'), 'utf8').split('\n');
    assert.equal(JSON.parse(line).id, '1');
  },
};

/** One script of a page's examples, in `directory`. */
function script(examples, directory, here) {
  const parts = examples.map(({ line, language, text, file }) => {
    const code = language === 'js' ? `cat > ${file} <<'END OF THE FILE'\n${here(text)}END OF THE FILE\n` : here(text);
    return `echo '${EXAMPLE}${line}'\n${code}`;
  });
  const file = join(directory, 'page.sh');
  writeFileSync(file, parts.join(''));
  return file;
}

/** The programs of an installation, in `directory`: `flatbed`, and npm and npx without a network. */
function install(directory) {
  mkdirSync(directory);
  symlinkSync(binary, join(directory, 'flatbed'));
  symlinkSync(process.execPath, join(directory, 'node'));
  const packages = join(repository, 'tests', 'node_modules');
  const write = (name, text) => writeFileSync(join(directory, name), `#!/bin/sh\nset -eu\n${text}`, { mode: 0o755 });
  write('npm', `[ "$1" = install ] && shift
mkdir -p node_modules
for name; do
  test -d '${packages}'/"$name"
  ln -sfn '${packages}'/"$name" node_modules/"$name"
done
`);
  write('npx', `name=$1; shift\nexec '${packages}'/.bin/"$name" "$@"\n`);
}

/** Returns whether a page starts a server of its own. */
const startsServer = (examples) => examples.some(({ text }) => /^flatbed serve\b.*&$/m.test(text));

/** Runs a page's examples, in the directory and with the server that the comment at the top describes. */
async function run(page, examples) {
  const outside = mkdtempSync(join(tmpdir(), 'flatbed-page-'));
  const directory = join(outside, 'empty');
  mkdirSync(directory);
  install(join(outside, 'bin'));
  writeFileSync(join(outside, '.curlrc'), `silent\nshow-error\nfail\nwrite-out = "\\n${ANSWER_ENDS}\\n"\n`);
  let server;
  const ports = new Map();
  if (startsServer(examples)) {
    for (const port of PORTS) ports.set(`${port}`, await ownPort());
  } else {
    server = await startServer();
    ports.set('5984', new URL(server.url).port);
    symlinkSync(join(repository, 'tests'), join(directory, 'tests'));
  }
  const here = (text) => text.replace(/\b(127\.0\.0\.1|localhost):(\d+)\b/g, (all, host, port) => (ports.has(port) ? `${host}:${ports.get(port)}` : all));
  const address = `127.0.0.1:${ports.get('5984')}`;
  // No variable of the test's own environment but these, so that the text has to set what its commands need.
  const env = {
    PATH: `${join(outside, 'bin')}:${process.env.PATH}`, HOME: outside, CURL_HOME: outside, FLATBED_URL: `http://${address}`, FLATBED_LISTEN: address,
  };
  // Servers that the script starts are in its process group.
  const child = spawn('sh', ['-ex', script(examples, outside, here)], { cwd: directory, env, detached: true });
  const output = { stdout: '', stderr: '' };
  for (const name of ['stdout', 'stderr']) child[name].setEncoding('utf8').on('data', (text) => { output[name] += text; });
  // What a reader types at a prompt.
  child.stdin.on('error', () => {}).end('PASSWORD\n');
  const closed = once(child, 'close');
  try {
    const timer = setTimeout(() => process.kill(-child.pid, 'SIGKILL'), PATIENCE_MS);
    const [code] = await once(child, 'exit');
    clearTimeout(timer);
    const lines = output.stdout.match(new RegExp(`(?<=^${EXAMPLE})\\d+$`, 'gm'));
    assert.equal(code, 0, `${page}:${lines?.at(-1)}: ${output.stderr.slice(-4_000)}`);
    end(child.pid);
    await closed;
    const stdout = output.stdout.replace(/^Flatbed \S+ serves .*\n/gm, '');
    const answers = (text) => {
      const { line } = examples.find((example) => example.text.includes(text));
      const printed = stdout.split(`${EXAMPLE}${line}\n`)[1].split(EXAMPLE)[0];
      return printed.split(`\n${ANSWER_ENDS}\n`).slice(0, -1);
    };
    await checks[page]?.({ answers, stdout, directory });
  } finally {
    end(child.pid);
    await closed;
    await server?.stop();
    rmSync(outside, { recursive: true, force: true });
  }
}

/** Ends the processes of a group, if there are any. */
function end(group) {
  try {
    process.kill(-group, 'SIGTERM');
  } catch (error) {
    if (error.code !== 'ESRCH') throw error;
  }
}

for (const page of pages) {
  const all = blocks(page);
  test(`${page}: each example runs or says why not`, () => {
    for (const { line, language, reason, file } of all) {
      const where = `${page}:${line}`;
      assert.ok([...RUN, ...SHOWN].includes(language), `${where}: the language is ${language || 'missing'}`);
      const isSaid = RUN.includes(language) && reason.startsWith(UNTESTED) && reason.length > UNTESTED.length;
      assert.ok(reason === '' || isSaid, `${where}: ${reason}`);
      assert.ok(language !== 'js' || reason !== '' || file, `${where}: the line before names no file`);
    }
  });
  const examples = all.filter(({ language, reason }) => RUN.includes(language) && reason === '');
  const lacks = skip || (examples.some(({ text }) => text.includes('openssl ')) && noCertificates);
  if (examples.length > 0) test(`${page}: examples`, { skip: lacks }, () => run(page, examples));
}

test('the index lists every page', () => {
  const index = textOf('docs/README.md');
  for (const name of docs) assert.ok(name === 'README.md' || index.includes(`](${name})`), name);
});

test('capacity.md has the counts of the waits', () => {
  const rowsOf = (page) => textOf(page).split('\n').filter((line) => line.startsWith('| ')).map((line) => line.slice(2, -2).split(' | '));
  const waits = new Map();
  for (const [operation, ...counts] of rowsOf('crates/layer-tests/tests/it/waits.md')) if (!waits.has(operation)) waits.set(operation, counts);
  const [head, ...others] = rowsOf('docs/capacity.md').slice(rowsOf('docs/capacity.md').findIndex(([first]) => first === 'operation'));
  const columns = head.slice(1).map((name) => waits.get('operation').indexOf(name));
  const rows = others.slice(0, others.findIndex(([first]) => first === 'load'));
  assert.ok(rows.length >= 20 && !columns.includes(-1), head);
  for (const [operation, ...counts] of rows) assert.deepEqual(counts, columns.map((at) => waits.get(operation)?.[at]), operation);
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
