// Plays recorded requests on a server and says what of its answers is compared: of each step the status, headers and body,
// with what is a server's own left out. `tests/couchdb-answers/README.md` tells the form.
import { readFileSync } from 'node:fs';
import http from 'node:http';
import { isDeepStrictEqual } from 'node:util';
import { newName } from './server.mjs';

const compared = ['content-type', 'etag', 'location', 'allow', 'cache-control', 'www-authenticate', 'content-range',
  'accept-ranges', 'content-md5', 'content-encoding', 'content-disposition', 'transfer-encoding',
  'x-couch-update-newrev'];
const blanked = ['update_seq', 'last_seq', 'seq', 'purge_seq', 'pending', 'sizes', 'instance_start_time', 'uuid',
  'version', 'vendor', 'features', 'git_sha', 'cluster', 'props', 'uuids', 'offset', 'session_id',
  'checkpointed_source_seq', 'start_time', 'end_time', 'replication_id_version', 'history', 'execution_stats', 'warning',
  'stack', 'bookmark', 'collator_versions', 'updater_running', 'signature'];

/** What an engine says of a function that it does not take, in its own words. */
const engine = /^(Compilation of the \w+ function in the '.*?' view failed: )(?:\(new \w+\(.*?", \d+\)\)|\w*Error: .*?)( \(.*\))$/s;

/** The lines of a recording. */
export const read = (name) =>
  readFileSync(new URL(`couchdb-answers/${name}.jsonl`, import.meta.url), 'utf8').trim().split('\n').map((line) => JSON.parse(line));

/**
 * One request; an answer that its connection cuts off has the header `(cut off)`. With the name and the password in the server's
 * URL, if there are some and the headers do not say otherwise: `authorization` `undefined` sends none.
 */
export function call(url, method, path, headers = {}, body = undefined) {
  const base = new URL(url);
  const named = base.username ? { authorization: basic(`${base.username}:${base.password}`) } : {};
  const sent = Object.fromEntries(Object.entries({ ...named, ...headers }).filter(([, value]) => value !== undefined));
  const options = { host: base.hostname, port: base.port, method, path, headers: sent, agent: false };
  return new Promise((resolve, reject) => {
    const request = http.request(options, (response) => {
      const chunks = [];
      const end = (more) => resolve({
        status: response.statusCode, headers: { ...response.headers, ...more }, text: decode(Buffer.concat(chunks)),
      });
      response.on('data', (chunk) => chunks.push(chunk));
      response.on('error', (error) => (error.code === 'ECONNRESET' ? end({ '(cut off)': 'yes' }) : reject(error)));
      response.on('end', () => end({}));
    });
    request.on('error', reject);
    request.end(body);
  });
}

const basic = (text) => `Basic ${Buffer.from(text).toString('base64')}`;

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

/** The same with what is a server's own left out; `ref` of an error names a line of CouchDB's log. */
function blank(value, db, options, key) {
  if (Array.isArray(value)) return value.map((item) => blank(item, db, options));
  if (value && typeof value === 'object') {
    const isBlank = (name, of) =>
      (blanked.includes(name) && !(options.keep ?? []).includes(name)) || (options.blank ?? []).includes(name)
      // Of those that are kept only "nil" is CouchDB's as well.
      || (name === 'bookmark' && of !== 'nil');
    return Object.fromEntries(Object.entries(value).filter(([name]) => name !== 'ref').map(([name, of]) =>
      [name.replaceAll(db, 'DB'), isBlank(name, of) ? '~' : blank(of, db, options, name)]));
  }
  if (typeof value !== 'string') return value;
  let text = value.replaceAll(db, 'DB').replace(/https?:\/\/[^/]+\//g, 'http://HOST/');
  if (key === 'reason' && text.includes('.erl')) text = '~stack';
  if (key === 'reason') text = text.replace(engine, '$1~$2');
  if (key === 'set-cookie') text = text.replace(/Expires=[^;]+/i, 'Expires=~').replace(/(AuthSession=)[^;]+/, '$1~');
  if (options.revs) text = text.replace(/(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])/g, '~').replace(/(?<![0-9a-f])(\d+)-[0-9a-f]{32}/g, '$1-~');
  return ['id', '_id', 'location'].includes(key) ? text.replace(/(?<![-0-9a-f])[0-9a-f]{32}(?![0-9a-f])/g, '~uuid') : text;
}

/** What of an answer is compared; `isParsed` where the text is a string already that came as JSON, or no JSON. */
export function shape({ status, headers, text }, db, options, isParsed = false) {
  const isMultipart = headers['content-type']?.startsWith('multipart/');
  const lines = (isMultipart ? text.replace(/[0-9a-f]{32}/g, '~') : text).replace(/"(seq|last_seq)":"[^"]*"/g, '"$1":"~"').replace(/"pending":("~"|\d+)/g, '"pending":"~"')
    .replace(/^id: .*$/gm, 'id: ~');
  const parsed = options.raw || isParsed ? undefined : parse(text);
  const found = {};
  for (const name of [...compared, '(cut off)', ...options.headers ?? []]) {
    const value = [headers[name]].flat().join(', ');
    if (headers[name] !== undefined) found[name] = blank(value, db, options, name);
  }
  if (isMultipart) found['content-type'] = headers['content-type'].replace(/boundary="?[^";]+"?/, 'boundary=~');
  if (found.etag && !/\d+-([0-9a-f]{32}|~)/.test(headers.etag)) found.etag = '~';
  return { status, headers: found, body: blank(parsed === undefined ? lines : parsed, db, options) };
}

/** Whether two answers have the same status, headers and names of members; values and how many rows there are may be others. */
export function alike(answer, recorded) {
  const names = (value) => Object.keys(value).sort().join();
  const are = (a, b) => {
    if (Array.isArray(a) || Array.isArray(b)) {
      return Array.isArray(a) && Array.isArray(b) && (b.length === 0 || a.every((item) => are(item, b[0])));
    }
    // Where one has none the other may have something.
    if (!a || !b || typeof a !== 'object' || typeof b !== 'object') return (a === null || b === null) || typeof a === typeof b;
    return names(a) === names(b) && Object.keys(a).every((name) => are(a[name], b[name]));
  };
  return answer.status === recorded.status && isDeepStrictEqual(answer.headers, recorded.headers) && are(answer.body, recorded.body);
}

/** What was recorded, in the same shape. */
export const expected = (recorded, options) =>
  (typeof recorded.body === 'string'
    ? shape({ ...recorded, text: recorded.body }, 'DB', options, true)
    : shape({ ...recorded, text: JSON.stringify(recorded.body) }, 'DB', options));

/** A path as Python's quote writes it, which recorded the answers. */
const quote = (path) => [...Buffer.from(path)].map((byte) => {
  const char = String.fromCharCode(byte);
  return /[A-Za-z0-9/?&=%:+,()$\-_.~@!*';]/.test(char) ? char : `%${byte.toString(16).toUpperCase().padStart(2, '0')}`;
}).join('');

/** Plays a scenario on a fresh database: yields each step's number, request, answer, its shape and the recorded one. */
export async function* play(url, { options = {}, steps }) {
  // As long as those that were recorded were: sessions' cookies have names of users in them, which are made of it.
  const db = newName('answersdata').replaceAll('-', '');
  await call(url, 'PUT', `/${db}${options.create?.[0] ?? '?q=1'}`);
  const known = { db };
  const bodies = [];
  const at = (step, path) => {
    const found = path.split('.').reduce((value, part) => value?.[part], bodies[step]);
    return typeof found === 'string' || found === undefined ? found : JSON.stringify(found);
  };
  const fill = (text) => text?.replace(/\{(?:((?:rev|seq|etag|cookie)\d+|db)|at(\d+):([^{}]*))\}/g,
    (_, of, step, path) => (of ? known[of] : at(step, path)) ?? '?');
  try {
    for (const [index, [[method, path, headers, body], recorded]] of steps.entries()) {
      const sent = { accept: 'application/json', ...(body == null ? {} : { 'content-type': 'application/json' }) };
      for (const [header, value] of Object.entries(headers)) {
        if (header === 'as') sent.authorization = basic(fill(value));
        else if (value === '-') sent[header] = undefined;
        else sent[header] = Buffer.from(fill(value).replaceAll('␣', ' ')).toString('latin1');
      }
      const answer = await call(url, method, quote(fill(path)), sent, body == null ? undefined : fill(body));
      const parsed = parse(answer.text);
      bodies[index] = parsed;
      if (parsed && !Array.isArray(parsed)) {
        known[`rev${index}`] = parsed.rev ?? parsed._rev;
        known[`seq${index}`] = encodeURIComponent(parsed.last_seq ?? '');
      }
      known[`etag${index}`] = answer.headers.etag;
      known[`cookie${index}`] = answer.headers['set-cookie']?.[0]?.split(';')[0];
      yield { index, method, path, answer: shape(answer, db, options), recorded: expected(recorded, options) };
    }
  } finally {
    await call(url, 'DELETE', `/${db}`);
  }
}
