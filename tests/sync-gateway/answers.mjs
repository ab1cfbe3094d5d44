// Plays what a Sync Gateway answered on a server's two ports, and says what of its answers is compared. What a line of
// answers.jsonl has is told in README.md.
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import http from 'node:http';

const compared = ['content-type', 'etag', 'location', 'allow', 'cache-control', 'www-authenticate', 'content-range', 'accept-ranges',
  'content-encoding', 'content-disposition', 'x-content-encoding', 'set-cookie'];
/** Sequences, opaque here as there. */
const sequences = new Set(['seq', 'last_seq', 'update_seq', 'committed_update_seq', 'sequence', 'start', 'end']);
/** What is of the hour, or of a server. */
const blanked = new Set(['time_saved', 'expires', 'instance_start_time', 'server_uuid', 'cas', 'bucket_uuid', 'value_crc32c',
  'tombstoned_at', 'version']);
/** Lists in no order. */
const sets = ['rows.value.channels', 'admin_channels', 'all_channels', 'admin_roles', 'roles', 'results.removed'];

/** The scenarios. */
export const read = () =>
  readFileSync(new URL('answers.jsonl', import.meta.url), 'utf8').trim().split('\n').map((line) => JSON.parse(line));

function call(url, method, path, headers, body) {
  const { hostname: host, port } = new URL(url);
  const escaped = encodeURI(path).replaceAll('%25', '%');
  return new Promise((resolve, reject) => {
    const request = http.request({ host, port, method, path: escaped, headers, agent: false }, (response) => {
      const chunks = [];
      response.on('data', (chunk) => chunks.push(chunk));
      response.on('error', reject);
      response.on('end', () => resolve({
        status: response.statusCode,
        headers: Object.fromEntries(compared.filter((name) => response.headers[name] !== undefined)
          .map((name) => [name, String(response.headers[name])])),
        text: Buffer.concat(chunks).toString(),
      }));
    });
    request.on('error', reject);
    request.end(body);
  });
}

/** What differs from run to run, marked: of which kind it is, and what. */
const mark = (kind, text) => `\u0001${kind}${text}\u0002`;
const marks = /\u0001([^\u0002]*)\u0002/;

/** Brings an answer, or one that was recorded, into the form in which they are compared. */
class Form {
  constructor(database) {
    this.database = database;
  }

  /** A sequence, or several with colons between them. */
  sequence(value) {
    if (typeof value !== 'string' && typeof value !== 'number') return value;
    return String(value).split(':').map((one) => (one === '' || one === '0' ? one : mark('s', one))).join(':');
  }

  string(text, key) {
    let out = text.replaceAll(this.database, 'DB');
    out = out.replace(/(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])|~session\d+/g, (id) => mark('n', id));
    if (key === 'reason') out = out.replace(/^(Bad JSON|Invalid JSON|JSON Unknown Field): .*/s, '$1: ~');
    if (['id', '_id', 'location'].includes(key) && /^~?[0-9a-f]{32}$|^-?[0-9a-zA-Z_-]{22,23}$|^~id\d+$/.test(out)) return mark('i', out);
    return out.replace(/(?<![0-9a-zA-Z])[0-9a-f]{32}(?![0-9a-f])/g, (hash) => mark('h', hash));
  }

  walk(value, path = []) {
    const key = path.at(-1);
    if (blanked.has(key) && value !== null) return '~';
    if (key === '_exp' && typeof value === 'string' && value < '2099') return '~';
    if (Array.isArray(value)) {
      const walked = value.map((one) => (key === 'recent_sequences' ? this.sequence(one) : this.walk(one, path)));
      const isSet = sets.includes(path.join('.')) || path.slice(0, -1).join('.') === 'rows.value.access';
      return isSet ? walked.toSorted() : walked;
    }
    if (value !== null && typeof value === 'object') {
      return Object.fromEntries(Object.entries(value).map(([name, one]) => [this.string(name), this.walk(one, [...path, name])]));
    }
    if (['update_seq', 'committed_update_seq'].includes(key) && path.length === 1) return '~';
    if (sequences.has(key) && !path.includes('_revisions')) return this.sequence(value);
    if (path.at(-2) === 'channels' && path[0] === 'userCtx') return this.sequence(value);
    if (path[0] === '_sync' && path.length === 4 && ['access', 'role_access'].includes(path[1])) return this.sequence(value);
    return typeof value === 'string' ? this.string(value, key) : value;
  }

  /** What was recorded, which has such a form already. */
  recorded({ status, headers, body }) {
    const isLines = (body) => body !== null && typeof body === 'object' && !Array.isArray(body) && Object.keys(body).join() === 'lines';
    let walked;
    const part = ({ headers, body }) => ({
      headers: Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, this.string(value)])),
      body: Array.isArray(body) && body.every((one) => one?.headers) ? body.map(part) : this.walk(body),
    });
    if (isLines(body)) walked = { lines: body.lines.map((line) => this.walk(line)) };
    else if (headers['content-type']?.includes('multipart') && Array.isArray(body)) walked = body.map(part);
    else if (headers['content-type']?.includes('html')) walked = this.html(body);
    else walked = this.walk(body);
    return { status, headers: Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, this.string(value, name)])), body: walked };
  }

  html(text) {
    return this.string(text).replace(/(?<=<tr><td>)[0-9a-zA-Z-]+(?=<\/td><td>)|(?<=Since = )[0-9a-zA-Z-]+/g, (found) => mark('s', found));
  }

  json(text) {
    try { return this.walk(JSON.parse(text)); } catch { /* Not one. */ }
    const lines = text.split('\n').filter((line) => line.trim());
    if (lines.length > 0 && lines.every((line) => line.trimStart().startsWith('{'))) {
      try { return { lines: lines.map((line) => this.walk(JSON.parse(line))) }; } catch { /* Neither. */ }
    }
    return this.string(text);
  }

  /** The parts of a multipart text. */
  multipart(type, text) {
    const boundary = /boundary="?([^";]+)"?/.exec(type)[1];
    const parts = text.split(`--${boundary}`).slice(1);
    if (!parts.at(-1)?.startsWith('--')) return this.string(text);
    return parts.slice(0, -1).map((part) => {
      const [head, ...rest] = part.replace(/^\r\n/, '').split('\r\n\r\n');
      const headers = Object.fromEntries(head.split('\r\n').filter(Boolean).map((line) => {
        const [name, ...value] = line.split(':');
        return [name.toLowerCase(), value.join(':').trim()];
      }));
      const body = rest.join('\r\n\r\n');
      const inner = headers['content-type'];
      if (inner?.startsWith('multipart')) {
        headers['content-type'] = inner.replace(/boundary="?[^";]+"?/, 'boundary=~');
        return { headers, body: this.multipart(inner, body) };
      }
      return { headers, body: this.json(body.replace(/^[\r\n]+|[\r\n]+$/g, '')) };
    });
  }

  shape({ status, headers: found, text }) {
    const headers = Object.fromEntries(Object.entries(found).map(([name, value]) => [name, this.string(value, name)]));
    if (headers['set-cookie']) {
      const cookie = headers['set-cookie'].replace(/expires=[^;]*/i, (member) => `${member.slice(0, 7)}=~`);
      headers['set-cookie'] = /=;/.test(cookie) ? cookie : cookie.replace(/=[^;]*;/, '=~;');
    }
    const type = headers['content-type'] ?? '';
    if (headers.location) headers.location = headers.location.replace(/https?:\/\/[^/]+\//, 'http://HOST/');
    let body;
    if (type.includes('multipart')) {
      headers['content-type'] = type.replace(/boundary="?[^";]+"?/, 'boundary=~');
      body = this.multipart(found['content-type'], text);
    } else if (type.includes('html')) {
      body = this.html(text);
    } else if (type.includes('octet-stream') && /^\s*({|$)/.test(text)) {
      body = { lines: text.split('\n').filter((line) => line.trim()).map((line) => this.walk(JSON.parse(line))) };
    } else body = this.json(text);
    return { status, headers, body };
  }
}

/**
 * What of one answer stands for what of the other, both ways: of sequences, hashes and ids. An answer that is not equal leaves
 * nothing here, so that one difference does not become many.
 */
class Pairs {
  constructor(of) {
    Object.assign(this, { there: new Map(of?.there), back: new Map(of?.back) });
  }

  are(one, other) {
    if (!this.there.has(one) && !this.back.has(other) && one[0] === other[0]) {
      this.there.set(one, other);
      this.back.set(other, one);
    }
    return this.there.get(one) === other && this.back.get(other) === one;
  }

  same(answer, recorded, path = '') {
    if (typeof answer === 'string' && typeof recorded === 'string') {
      const [ours, theirs] = [answer.split(marks), recorded.split(marks)];
      return ours.length === theirs.length
        && ours.every((text, at) => (at % 2 === 0 ? text === theirs[at] : this.are(text, theirs[at])));
    }
    if (Array.isArray(answer) && Array.isArray(recorded)) {
      if (answer.length !== recorded.length) return false;
      // The winner is the first; the others stand in no order.
      if (/\.changes$/.test(path) && answer.length > 2) {
        const rest = recorded.slice(1);
        return this.same(answer[0], recorded[0]) && answer.slice(1).every((one) => {
          const at = rest.findIndex((other) => this.fits(one, other));
          return at >= 0 && rest.splice(at, 1).length === 1;
        });
      }
      return answer.every((one, at) => this.same(one, recorded[at], path));
    }
    if (answer !== null && recorded !== null && typeof answer === 'object' && typeof recorded === 'object') {
      const [ours, theirs] = [answer, recorded].map((one) => Object.keys(one).toSorted());
      return ours.length === theirs.length && ours.every((name, at) => this.same(name, theirs[at])
        && this.same(answer[name], recorded[theirs[at]], `${path}.${name}`));
    }
    return answer === recorded;
  }

  /** The same, and nothing of it stays where they are not. */
  fits(answer, recorded) {
    const pairs = new Pairs(this);
    const fits = pairs.same(answer, recorded);
    if (fits) Object.assign(this, pairs);
    return fits;
  }
}

/**
 * Plays a scenario: yields of each step its `index`, `who`, `method` and `path`, the `answer`, what was `recorded`, and whether these
 * are `equal`. Of one whose configuration is not taken there is nothing but the refusal, which is returned.
 */
export async function* play({ publicUrl, adminUrl }, scenario) {
  const database = `db${randomBytes(6).toString('hex')}`;
  const fillDatabase = (text) => text?.replaceAll('{db}', database);
  const configuration = { server: 'walrus:', bucket: database, use_views: true, num_index_replicas: 0, ...scenario.config };
  const json = { accept: 'application/json', 'content-type': 'application/json' };
  const made = await call(adminUrl, 'PUT', `/${database}/`, json, fillDatabase(JSON.stringify(configuration)));
  if (made.status !== 201) return made;
  const known = new Map();
  const fill = (text) => fillDatabase(text)?.replace(/\{(\w+:[\w.]+)\}/g, (_, name) => known.get(name) ?? '?');
  const learn = (label, { headers, text }) => {
    const keep = (what, value, of = label) => value !== undefined && value !== null && known.set(`${what}:${of}`, String(value));
    let value;
    try { value = JSON.parse(text); } catch { /* Not one. */ }
    if (headers['set-cookie']) keep('session', /^[^=]*=([^;]*)/.exec(headers['set-cookie'])[1]);
    keep('rev', headers.etag?.replaceAll('"', ''));
    if (Array.isArray(value)) value.forEach((one, at) => { keep('rev', one?.rev, `${label}.${at}`); keep('id', one?.id, `${label}.${at}`); });
    else if (value) {
      keep('rev', value.rev ?? value._rev);
      keep('id', value.id ?? value._id);
      keep('seq', value.last_seq);
      keep('session', value.session_id);
      keep('cookie', value.cookie_name);
      value.results?.forEach?.((row, at) => keep('seq', row?.seq, `${label}.${at}`));
    }
  };
  const answers = [];
  const background = [];
  const ask = async (index, step) => {
    const { as: who, method } = step;
    const headers = { ...(step.body === undefined ? { accept: 'application/json' } : json) };
    // '-': none, be it one that the user would have.
    for (const [name, value] of Object.entries(step.headers ?? {})) headers[name] = value === '-' ? value : fill(value);
    if (who.startsWith('$')) {
      headers.cookie ??= `${known.get(`cookie:${who.slice(1)}`) ?? 'SyncGatewaySession'}=${known.get(`session:${who.slice(1)}`) ?? '?'}`;
    } else if (who !== 'admin' && who !== 'guest') {
      const [name, password = 'pass'] = who.split(':');
      headers.authorization ??= `Basic ${Buffer.from(`${name}:${password}`).toString('base64')}`;
    }
    for (const [name, value] of Object.entries(headers)) {
      if (value === '-') delete headers[name];
    }
    answers[index] = await call(who === 'admin' ? adminUrl : publicUrl, method, fill(step.path), headers, fill(step.body));
    if (step.label) learn(step.label, answers[index]);
  };
  for (const [index, [step]] of scenario.steps.entries()) {
    if (step.sleep) await new Promise((resolve) => { setTimeout(resolve, step.sleep * 1000); });
    else if (step.background) {
      background.push(ask(index, step));
      await new Promise((resolve) => { setTimeout(resolve, 1000); });
    } else await ask(index, step);
  }
  await Promise.all(background);
  const form = new Form(database);
  const pairs = new Pairs();
  for (const [index, [step, was]] of scenario.steps.entries()) {
    if (!was) continue;
    const { as: who, method, path } = step;
    const [answer, recorded] = [form.shape(answers[index]), form.recorded(was)];
    yield { index, who, method, path, answer, recorded, equal: pairs.fits(answer, recorded) };
  }
  await call(adminUrl, 'DELETE', `/${database}/`, {});
  return undefined;
}
