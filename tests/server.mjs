// Starts the built binary for a test file and stops it afterwards.
//   FLATBED_BIN           the binary [target/debug/flatbed]
//   FLATBED_CLUSTER_FILE  a cluster to run on, under a root of its own, instead of the embedded engine
//   FLATBED_TEST_FAULTS   PROBABILITY, PROBABILITY,SEED or PROBABILITY,SEED,SHORT_PAGES: the embedded engine injects faults; another seed each time
//   FLATBED_TEST_URL      a CouchDB-compatible server that runs already, to try the tests themselves on
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';

const repository = resolve(import.meta.dirname, '..');
const targetDirectory = resolve(repository, process.env.CARGO_TARGET_DIR ?? 'target');
export const binary = process.env.FLATBED_BIN ?? join(targetDirectory, 'debug', 'flatbed');

/**
 * Starts a server: `{ url, secure, pid, stop, kill, restart }`. Its storage is new, and gone after `stop`; after `kill`, which gives
 * it no time to end, `restart` gives a server on the same storage and port. For that `again.port` is an `ownPort`. `again.env` is what
 * its environment has besides. With `again.tls`, the files of a `certificate` and its `key`, it is reached over TLS too, at `secure`.
 * With `again.gateway` it serves Sync Gateway's API at `publicUrl` and `adminUrl`. With `again.sync`, where the accounts' keys are, it
 * serves Firefox Sync at `syncUrl`, and at the path `/sync` of `url`, to the first account that comes. `again.binary` is another program.
 */
export async function startServer(again) {
  if (process.env.FLATBED_TEST_URL) return { url: process.env.FLATBED_TEST_URL, stop: async () => {} };
  const directory = again?.directory ?? mkdtempSync(join(tmpdir(), 'flatbed-test-'));
  const port = again?.port ?? 0;
  const root = again?.root ?? `test-${randomBytes(6).toString('hex')}`;
  const storage = process.env.FLATBED_CLUSTER_FILE
    ? ['--cluster-file', process.env.FLATBED_CLUSTER_FILE, '--root', root]
    : ['--data-dir', join(directory, 'data')];
  const env = { ...process.env, ...again?.env };
  const listen = [`127.0.0.1:${port}`];
  if (again?.tls) {
    listen.push('https://127.0.0.1:0');
    env.FLATBED_TLS_CERTIFICATE = again.tls.certificate;
    env.FLATBED_TLS_KEY = again.tls.key;
  }
  const ports = again?.gateway ? ['--gateway-listen', '127.0.0.1:0', '--admin-listen', '127.0.0.1:0'] : [];
  const sync = [];
  if (again?.sync) {
    const { jwks, port: syncPort = 0 } = again.sync;
    sync.push('--syncstorage-listen', `127.0.0.1:${syncPort}`, '--syncstorage-path', '/sync');
    sync.push('--syncstorage-jwks', jwks, '--syncstorage-first-users', '1');
    env.FLATBED_SYNCSTORAGE_MASTER_SECRET = 'a secret of the tests alone';
  }
  if (process.env.FLATBED_TEST_FAULTS) {
    const [probability, seed = randomBytes(4).readUInt32LE(), ...shortPages] = process.env.FLATBED_TEST_FAULTS.split(',');
    env.FLATBED_FDB_BUGGIFY = [probability, seed, ...shortPages].join(',');
    console.error(`FLATBED_TEST_FAULTS=${env.FLATBED_FDB_BUGGIFY}`);
  }
  const server = spawn(again?.binary ?? binary, ['serve', '--listen', listen.join(), '--log-level', 'warn', ...ports, ...sync, ...storage], {
    env,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const exited = once(server, 'exit');
  const stop = async () => {
    server.kill('SIGTERM');
    const [code] = await exited;
    rmSync(directory, { recursive: true, force: true });
    if (code !== 0) throw new Error(`the server ended with ${code}`);
  };
  const kill = async () => {
    server.kill('SIGKILL');
    await exited;
  };
  const urls = [];
  for await (const line of createInterface(server.stdout)) {
    urls.push(...line.match(/https?:\/\/\S+/) ?? []);
    if (urls.length === listen.length + ports.length / 2 + (again?.sync ? 1 : 0)) {
      const [url, secure] = again?.tls ? urls : [urls[0]];
      const [publicUrl, adminUrl] = again?.gateway ? urls.slice(-2) : [];
      const syncUrl = again?.sync ? urls.at(listen.length) : undefined;
      const restart = () => startServer({
        ...again,
        directory,
        root,
        port: new URL(url).port,
        sync: again?.sync && { ...again.sync, port: new URL(syncUrl).port },
      });
      return { url, secure, publicUrl, adminUrl, syncUrl, pid: server.pid, stop, kill, restart };
    }
  }
  rmSync(directory, { recursive: true, force: true });
  throw new Error('the server did not start');
}

let portsTried = 0;

/**
 * Returns a free port for a server that is restarted. It is outside of the range from which the system chooses ports, so that nothing
 * takes it while the server is down.
 */
export async function ownPort() {
  for (;;) {
    const port = 11_000 + (process.pid * 8 + portsTried++) % 20_000;
    const probe = createServer();
    const isFree = await new Promise((resolve) => {
      probe.once('error', () => resolve(false));
      probe.listen(port, '127.0.0.1', () => probe.close(() => resolve(true)));
    });
    if (isFree) return port;
  }
}

/** A database's name that nobody has used. */
export const newName = (prefix) => `${prefix}-${randomBytes(6).toString('hex')}`;
