// A server with an administrator and users: what the tests of signing in share.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { newName, startServer } from './server.mjs';

/** Tests of it need a server of their own. */
export const skip = process.env.FLATBED_TEST_URL ? 'a server of its own is needed, with an administrator' : false;

export const basic = (name, password) => ({ authorization: `Basic ${Buffer.from(`${name}:${password}`).toString('base64')}` });

/**
 * A server as `startServer` starts it, whose administrator is `admin`, with these users, whose passwords are their names and a
 * `!`. `admin(method, path, body)` asks as the administrator, and `set(key, value)` sets what changes while it runs.
 */
export async function startWithUsers(names, options) {
  const env = { FLATBED_ADMIN: 'admin:password', ...options?.env };
  const server = await startServer({ ...options, env });
  const admin = async (method, path, body) => {
    const headers = { ...basic('admin', 'password'), 'content-type': 'application/json' };
    const answer = await fetch(server.url + path, { method, headers, body: body === undefined ? body : JSON.stringify(body) });
    const text = await answer.text();
    assert.ok(answer.ok, `${method} ${path}: ${answer.status} ${text}`);
    return JSON.parse(text);
  };
  const set = (key, value) => admin('PUT', `/_node/_local/_config/${key}`, String(value));
  const setPassword = async (name, password) => {
    const path = `/_users/org.couchdb.user:${name}`;
    const now = await admin('GET', path).catch(() => ({}));
    await admin('PUT', path, { ...now, name, type: 'user', roles: [], password });
  };
  /** A database whose members are these, with nothing in it. */
  const database = async (members, prefix = 'db') => {
    const name = newName(prefix);
    await admin('PUT', `/${name}`);
    await admin('PUT', `/${name}/_security`, { admins: { names: [], roles: ['_admin'] }, members: { names: members, roles: [] } });
    return name;
  };
  for (const name of names) await setPassword(name, `${name}!`);
  return { ...server, admin, set, setPassword, database };
}

/** Why no certificates can be made, if so. */
export const noCertificates = spawnSync('openssl', ['version']).error ? 'openssl is not installed' : false;

/** A directory of its own, and what removes it. */
export function temporary() {
  const directory = mkdtempSync(join(tmpdir(), 'flatbed-users-'));
  return { directory, remove: () => rmSync(directory, { recursive: true, force: true }) };
}

/** Makes a certificate that signs itself, for names as `subjectAltName` has them: its file and that of its key. */
export function makeCertificate(directory, name, names) {
  const [certificate, key] = [join(directory, `${name}.pem`), join(directory, `${name}-key.pem`)];
  const made = spawnSync('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes',
    '-keyout', key, '-out', certificate, '-days', '30', '-subj', `/CN=${name}`, '-addext', `subjectAltName=${names}`,
    // A server's, and no authority's: rustls tells them apart.
    '-addext', 'basicConstraints=critical,CA:FALSE'],
  { encoding: 'utf8' });
  assert.equal(made.status, 0, made.stderr);
  return { certificate, key };
}
