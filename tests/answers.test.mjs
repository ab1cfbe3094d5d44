// CouchDB 3.5.0's recorded answers, request by request: status, headers and body must be equal.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import { after, before, test } from 'node:test';
import { newName, startServer } from './server.mjs';

const compared = ['content-type', 'etag', 'location', 'allow', 'cache-control', 'www-authenticate', 'content-range',
  'accept-ranges', 'content-md5', 'content-encoding', 'content-disposition', 'transfer-encoding',
  'x-couch-update-newrev'];
const blanked = new Set(['update_seq', 'last_seq', 'seq', 'purge_seq', 'pending', 'sizes', 'instance_start_time', 'uuid',
  'version', 'vendor', 'features', 'git_sha', 'cluster', 'props', 'uuids', 'offset']);

// Steps by scenario that are not asked for yet, or answered otherwise on purpose.
const all = { has: () => true };
const later = {
  // local_seq is a sequence here, as everywhere else, and not a count of edits.
  'write and read': new Set([18]),
  // -0.0 and 5e-324 come back as written.
  'numbers and order': new Set([2]),
};

let server;
before(async () => { server = await startServer(); });
after(() => server.stop());

function call(method, path, headers, body) {
  const base = new URL(server.url);
  const options = { host: base.hostname, port: base.port, method, path, headers, agent: false };
  return new Promise((resolve, reject) => {
    const request = http.request(options, (response) => {
      const chunks = [];
      response.on('data', (chunk) => chunks.push(chunk));
      response.on('error', reject);
      response.on('end', () => resolve({
        status: response.statusCode, headers: response.headers, text: decode(Buffer.concat(chunks)),
      }));
    });
    request.on('error', reject);
    request.end(body);
  });
}

/** Bytes as UTF-8, those that are none as \\xNN, which is how they were recorded. */
function decode(bytes) {
  const strict = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
  const attempt = (part) => { try { return strict.decode(part); } catch { return undefined; } };
  const whole = attempt(bytes);
  if (whole !== undefined) return whole;
  let text = '';
  for (let at = 0; at < bytes.length;) {
    const length = [1, 2, 3, 4].find((of) => at + of <= bytes.length && attempt(bytes.subarray(at, at + of)) !== undefined);
    text += length ? attempt(bytes.subarray(at, at + length)) : `\\x${bytes[at].toString(16).padStart(2, '0')}`;
    at += length ?? 1;
  }
  return text;
}

const parse = (text) => { try { return JSON.parse(text); } catch { return undefined; } };

/** The same text with what is a server's own left out. */
function blank(value, db, key) {
  if (Array.isArray(value)) return value.map((item) => blank(item, db));
  if (value && typeof value === 'object') {
    return Object.fromEntries(Object.entries(value).map(([name, of]) => [name, blanked.has(name) ? '~' : blank(of, db, name)]));
  }
  if (typeof value !== 'string') return value;
  const text = value.replaceAll(db, 'DB').replace(/https?:\/\/[^/]+\//g, 'http://HOST/');
  return ['id', '_id', 'location'].includes(key) ? text.replace(/(?<![-0-9a-f])[0-9a-f]{32}(?![0-9a-f])/g, '~uuid') : text;
}

function shape({ status, headers, text }, db) {
  const isMultipart = headers['content-type']?.startsWith('multipart/');
  const lines = (isMultipart ? text.replace(/[0-9a-f]{32}/g, '~') : text).replace(/"(seq|last_seq)":"[^"]*"/g, '"$1":"~"').replace(/"pending":\d+/g, '"pending":"~"')
    .replace(/^id: .*$/gm, 'id: ~');
  const parsed = parse(text);
  const found = {};
  for (const name of compared) if (headers[name] !== undefined) found[name] = blank(headers[name], db, name);
  if (isMultipart) found['content-type'] = headers['content-type'].replace(/boundary="?[^";]+"?/, 'boundary=~');
  if (found.etag && !/\d+-[0-9a-f]{32}/.test(headers.etag)) found.etag = '~';
  return { status, headers: found, body: blank(parsed === undefined ? lines : parsed, db) };
}

/** A path as Python's quote writes it, which recorded the answers. */
const quote = (path) => [...Buffer.from(path)].map((byte) => {
  const char = String.fromCharCode(byte);
  return /[A-Za-z0-9/?&=%:+,()$\-_.~@!*';]/.test(char) ? char : `%${byte.toString(16).toUpperCase().padStart(2, '0')}`;
}).join('');

const scenarios = ['documents', 'revisions'].flatMap((of) =>
  readFileSync(new URL(`couchdb-answers/${of}.jsonl`, import.meta.url), 'utf8').trim().split('\n'));
for (const scenario of scenarios.map((line) => JSON.parse(line))) {
  test(scenario.name, async (t) => {
    const db = newName('answers').replaceAll('-', '');
    await call('PUT', `/${db}`, {});
    const known = { db };
    const fill = (text) => text?.replace(/\{((?:rev|seq)\d+|db)\}/g, (_, name) => known[name] ?? '?');
    for (const [index, [[method, path, headers, body], recorded]] of scenario.steps.entries()) {
      const sent = { accept: 'application/json', ...(body == null ? {} : { 'content-type': 'application/json' }) };
      for (const [name, value] of Object.entries(headers)) if (value !== '-') sent[name] = fill(value);
      const answer = await call(method, quote(fill(path)), sent, body == null ? undefined : fill(body));
      const parsed = parse(answer.text);
      if (parsed && !Array.isArray(parsed)) {
        known[`rev${index}`] = parsed.rev ?? parsed._rev;
        known[`seq${index}`] = encodeURIComponent(parsed.last_seq ?? '');
      }
      if (later[scenario.name]?.has(index)) continue;
      await t.test(`${index} ${method} ${path}`, () => {
        const expected = shape({ ...recorded, text: typeof recorded.body === 'string' ? recorded.body : JSON.stringify(recorded.body) }, 'DB');
        assert.deepEqual(shape(answer, db), expected);
      });
    }
    await call('DELETE', `/${db}`, {});
  });
}
