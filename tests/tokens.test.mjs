// The keys of Firefox Sync's accounts over https, as the settings have it: whom to trust, and what is no answer.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:https';
import { after, before, test } from 'node:test';
import { noCertificates, temporary, makeCertificate } from './accounts.mjs';
import { Accounts } from './firefox.mjs';
import { startServer } from './server.mjs';

const skip = noCertificates || (process.env.FLATBED_TEST_URL ? 'Firefox Sync is not served there' : false);

let accounts;
let files;
let trusted;
let issuer;
let answer;
before(async () => {
  if (skip) return;
  accounts = await Accounts.start();
  files = temporary();
  trusted = makeCertificate(files.directory, 'issuer', 'DNS:localhost');
  const options = { cert: readFileSync(trusted.certificate), key: readFileSync(trusted.key) };
  issuer = createServer(options, (request, response) => answer(request, response)).listen(0, '127.0.0.1');
  await once(issuer, 'listening');
});
after(async () => {
  issuer?.closeAllConnections();
  issuer?.close();
  accounts?.stop();
  files?.remove();
});

/** What a device is answered that asks for a token, once by a server that has read no keys yet. */
async function status(host, authorities) {
  const jwks = `https://${host}:${issuer.address().port}/v1/jwks`;
  const server = await startServer({ sync: { jwks }, env: authorities ? { FLATBED_REPLICATION_CA: authorities } : {} });
  try {
    const headers = { authorization: `Bearer ${accounts.token(300)}`, 'x-keyid': accounts.keyId };
    const found = await fetch(`${server.syncUrl}/1.0/sync/1.5`, { headers });
    const figures = await (await fetch(`${server.url}/metrics`)).text();
    const read = (name) => Number(figures.match(new RegExp(`^flatbed_sync_jwks_${name}(?:_total)?(?:\\{[^}]*\\})? (\\d+)$`, 'm'))?.[1]);
    return [found.status, read('reads'), read('failures')];
  } finally {
    await server.stop();
  }
}

test('only who is trusted is believed', { skip }, async () => {
  answer = (_, response) => response.end(JSON.stringify(accounts.published()));
  assert.deepEqual(await status('localhost', trusted.certificate), [200, 1, 0]);
  // Nobody trusts it, or it is another's certificate.
  assert.deepEqual(await status('localhost'), [503, 1, 1]);
  assert.deepEqual(await status('127.0.0.1', trusted.certificate), [503, 1, 1]);
  const other = makeCertificate(files.directory, 'other', 'DNS:localhost');
  assert.deepEqual(await status('localhost', other.certificate), [503, 1, 1]);
});

test('what is no set of keys', { skip }, async () => {
  const set = JSON.stringify(accounts.published());
  const wrong = {
    'a redirect': (_, response) => response.writeHead(302, { location: `${accounts.jwks}` }).end(set),
    'an error': (_, response) => response.writeHead(500).end(set),
    'too long': (_, response) => response.end(set + ' '.repeat(262_144)),
    'another text': (_, response) => response.end('<html>'),
    'no keys': (_, response) => response.end('{"keys":[]}'),
    'cut off': (_, response) => { response.writeHead(200, { 'content-length': set.length }); response.write(set.slice(1)); response.destroy(); },
  };
  for (const [name, how] of Object.entries(wrong)) {
    answer = how;
    assert.deepEqual([name, ...await status('localhost', trusted.certificate)], [name, 503, 1, 1]);
  }
});

test('an issuer that never answers', { skip }, async () => {
  answer = () => {};
  const begun = Date.now();
  assert.deepEqual(await status('localhost', trusted.certificate), [503, 1, 1]);
  assert.ok(Date.now() - begun > 9_000);
});
