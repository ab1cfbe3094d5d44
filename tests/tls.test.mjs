// curl over TLS: both versions, HTTP/2 by ALPN, sessions with a jar of cookies, and a certificate that is replaced meanwhile.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { get } from 'node:https';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, test } from 'node:test';
import * as accounts from './accounts.mjs';
import { pause, until } from './waiting.mjs';

const version = spawnSync('curl', ['--version'], { encoding: 'utf8' });
const skip = accounts.skip || accounts.noCertificates || (version.error ? 'curl is not installed' : false);
/** Whose the certificates are. */
const NAMES = 'IP:127.0.0.1,DNS:localhost,DNS:db.example';

let server;
let files;
let used;
let first;
before(async () => {
  if (skip) return;
  files = accounts.temporary();
  first = accounts.makeCertificate(files.directory, 'first', NAMES);
  // What the server reads is replaced later.
  used = { certificate: join(files.directory, 'certificate.pem'), key: join(files.directory, 'key.pem') };
  copyFileSync(first.certificate, used.certificate);
  copyFileSync(first.key, used.key);
  server = await accounts.startWithUsers(['anna'], { tls: used });
});
after(async () => {
  await server?.stop();
  files?.remove();
});

/** What curl says of a request to the server: status, protocol, and the version of TLS as far as it tells. */
async function curl(path, ...options) {
  const url = path.startsWith('http') ? path : server.secure + path;
  const format = '\n%{http_code} %{http_version} %{scheme}';
  const child = spawn('curl', ['--silent', '--verbose', '--max-time', '30', '--write-out', format, ...options, url]);
  let [out, err] = ['', ''];
  child.stdout.setEncoding('utf8').on('data', (text) => { out += text; });
  child.stderr.setEncoding('utf8').on('data', (text) => { err += text; });
  const [code] = await once(child, 'close');
  const [status, http] = out.slice(out.lastIndexOf('\n') + 1).split(' ');
  const tls = err.match(/SSL connection using (TLSv[\d.]+)/)?.[1];
  return { code, status: Number(status), http, tls, body: out.slice(0, out.lastIndexOf('\n')), err };
}

const trusting = (certificate) => ['--cacert', certificate];
const ANNA = ['--user', 'anna:anna!'];

test('both versions of TLS and of HTTP', { skip }, async () => {
  const hasHttp2 = /^Features:.* HTTP2/m.test(version.stdout);
  for (const tls of ['1.2', '1.3']) {
    for (const http of ['1.1', ...hasHttp2 ? ['2'] : []]) {
      const options = [`--tlsv${tls}`, '--tls-max', tls, `--http${http}`, ...trusting(first.certificate), ...ANNA];
      const found = await curl('/_session', ...options);
      assert.deepEqual([found.code, found.status, found.http, found.tls], [0, 200, http, `TLSv${tls}`], found.err);
      assert.equal(JSON.parse(found.body).userCtx.name, 'anna');
    }
  }
  // Left to themselves they take the best there is.
  const best = await curl('/', ...trusting(first.certificate));
  assert.deepEqual([best.status, best.http, best.tls], [200, hasHttp2 ? '2' : '1.1', 'TLSv1.3']);
  const old = await curl('/', '--tlsv1.1', '--tls-max', '1.1', '--ciphers', 'DEFAULT@SECLEVEL=0', ...trusting(first.certificate));
  assert.equal(old.code, 35, old.err);
  // Nobody is deceived about who the server is.
  assert.equal((await curl('/')).code, 60);
  const elsewhere = ['--connect-to', `::127.0.0.1:${new URL(server.secure).port}`];
  assert.equal((await curl('https://localhost/', ...trusting(first.certificate), ...elsewhere)).status, 200);
  assert.equal((await curl('https://other.example/', ...trusting(first.certificate), ...elsewhere)).code, 60);
  // HTTP without TLS is not understood there, nor TLS where there is none.
  assert.notEqual((await curl(server.secure.replace('https:', 'http:'))).code, 0);
  assert.equal((await curl(server.url.replace('http:', 'https:'), ...trusting(first.certificate))).code, 35);
});

test('a session in a jar of cookies', { skip }, async () => {
  const jar = join(files.directory, 'cookies');
  const name = await server.database(['anna']);
  // By a name of its own: curl takes this machine's for secure anyhow.
  const elsewhere = [[443, server.secure], [80, server.url]].flatMap(([port, url]) =>
    ['--connect-to', `db.example:${port}:127.0.0.1:${new URL(url).port}`]);
  const kept = [...trusting(first.certificate), ...elsewhere, '--cookie', jar, '--cookie-jar', jar];
  const begun = await curl('https://db.example/_session', ...kept, '--data-urlencode', 'name=anna', '--data-urlencode', 'password=anna!');
  assert.equal(begun.status, 200, begun.body);
  const [, , , isSecure, , cookie] = readFileSync(jar, 'utf8').trim().split('\n').at(-1).split('\t');
  assert.deepEqual([isSecure, cookie], ['TRUE', 'AuthSession']);
  assert.match(begun.err, /< set-cookie: AuthSession=[^;]+; .*; Secure; Path=\/; HttpOnly; SameSite=Lax/i);
  const JSON_BODY = ['--header', 'content-type: application/json'];
  assert.equal((await curl(`https://db.example/${name}/doc`, ...kept, ...JSON_BODY, '--request', 'PUT', '--data', '{"n":1}')).status, 201);
  assert.equal(JSON.parse((await curl(`https://db.example/${name}/doc`, ...kept)).body).n, 1);
  assert.equal((await curl(`/${name}/doc`, ...trusting(first.certificate))).status, 401);
  // It does not go where anybody could read it.
  assert.equal((await curl(`http://db.example/${name}/doc`, ...kept)).status, 401);
  assert.equal((await curl('https://db.example/_session', ...kept, '--request', 'DELETE')).status, 200);
  assert.equal((await curl(`https://db.example/${name}/doc`, ...kept)).status, 401);
});

test('a certificate is replaced while it is used', { skip }, async () => {
  const name = await server.database(['anna']);
  const follow = ['--silent', '--fail', '-N', ...trusting(first.certificate), ...ANNA,
    `${server.secure}/${name}/_changes?feed=continuous&heartbeat=30000`];
  const follower = spawn('curl', follow, { stdio: ['ignore', 'pipe', 'inherit'] });
  const lines = createInterface(follower.stdout)[Symbol.asyncIterator]();
  // A feed without a row yet begins with an empty line.
  const row = async () => { for (;;) { const { value } = await lines.next(); if (value !== '') return JSON.parse(value); } };
  await server.admin('PUT', `/${name}/before`, {});
  assert.equal((await row()).id, 'before');

  const put = (from, to) => { copyFileSync(from, `${to}.new`); renameSync(`${to}.new`, to); };
  const second = accounts.makeCertificate(files.directory, 'second', NAMES);
  const serves = async (certificate) => (await curl('/', ...trusting(certificate))).code === 0;
  // What cannot be used changes nothing.
  writeFileSync(used.certificate, 'no certificate');
  await pause(3_000);
  assert.ok(await serves(first.certificate));
  put(second.certificate, used.certificate);
  await pause(3_000);
  assert.ok(await serves(first.certificate), 'of another key');
  put(second.key, used.key);
  await until(() => serves(second.certificate));
  assert.equal((await curl('/', ...trusting(first.certificate))).code, 60);
  for (const tls of ['1.2', '1.3']) {
    assert.equal((await curl('/', ...trusting(second.certificate), `--tlsv${tls}`, '--tls-max', tls)).status, 200);
  }
  // Who is connected stays so.
  await server.admin('PUT', `/${name}/after`, {});
  assert.equal((await row()).id, 'after');
  follower.kill();
});

test('SIGHUP loads certificates under load, and no request is lost', { skip }, async () => {
  const pairs = ['third', 'fourth'].map((name) => accounts.makeCertificate(files.directory, name, NAMES));
  const earlier = ['first', 'second'].map((name) => join(files.directory, `${name}.pem`)).filter((file) => existsSync(file));
  const ca = [...earlier, ...pairs.map((pair) => pair.certificate)].map((file) => readFileSync(file));
  /** The status of a request on a connection of its own. */
  const ask = () => new Promise((resolve, reject) => {
    get(`${server.secure}/_up`, { ca, agent: false }, (response) => {
      response.resume().on('error', reject).on('end', () => resolve(response.statusCode));
    }).on('error', reject);
  });
  let [isOver, count] = [false, 0];
  const lost = [];
  const client = async () => {
    while (!isOver) {
      const status = await ask().catch((error) => error.code ?? String(error));
      if (status !== 200) lost.push(status);
      count += 1;
    }
  };
  const clients = [client(), client(), client(), client()];
  const more = async () => { const from = count; await until(() => count >= from + 20); };
  const replace = (from, to) => { copyFileSync(from, `${to}.new`); renameSync(`${to}.new`, to); };
  const serves = async (certificate) => (await curl('/', ...trusting(certificate))).code === 0;
  for (const { certificate, key } of [...pairs, ...pairs, ...pairs]) {
    await more();
    replace(certificate, used.certificate);
    replace(key, used.key);
    process.kill(server.pid, 'SIGHUP');
    await until(() => serves(certificate));
  }
  // What cannot be used changes nothing.
  writeFileSync(used.certificate, 'no certificate');
  process.kill(server.pid, 'SIGHUP');
  await more();
  assert.ok(await serves(pairs[1].certificate));
  isOver = true;
  await Promise.all(clients);
  assert.deepEqual(lost, []);
});
