// The server's public API, by addresses relative to this page: so it works behind a prefix of a proxy.
import { parse } from './json.js';

/** Where the API begins: `/`, or a prefix. */
export const base = new URL('../', document.baseURI);

/** What the server, or the way to it, says instead of an answer. `status` is 0 where there is none. */
export class ApiError extends Error {
  constructor(status, error, reason) {
    super(reason || error || `Status ${status}`);
    Object.assign(this, { status, error, reason });
  }
}

/** A path cannot be named in a browser: it takes such a segment for a step up, whatever its spelling. */
export class Unnamable extends ApiError {
  constructor(segment) {
    super(0, 'unnamable', `A browser cannot ask for “${segment}” by its path: it would take it for another one.`);
  }
}

const isDots = (segment) => /^(?:\.|%2e){1,2}$/i.test(segment);

/** Whether a document or attachment of this name can be asked for by its path. */
export const hasPath = (name) => !isDots(name) && name !== '';

function segment(text) {
  if (!hasPath(text)) throw new Unnamable(text);
  return encodeURIComponent(text);
}

/** The path of a document: those of design and local documents keep their slash. */
function idPath(id) {
  const found = /^(_design|_local)\/(.+)$/su.exec(id);
  return found ? `${found[1]}/${segment(found[2])}` : segment(id);
}

/** `path('_up')`, `path(database, '_security')`: segments as they are called. */
export const path = (...segments) => segments.map(segment).join('/');

/** The path of a document, and of what lies beneath it. */
export const documentPath = (database, id, ...rest) => [segment(database), idPath(id), ...rest.map(segment)].join('/');

/** A full address, for links and images. */
export function address(to, query) {
  const url = new URL(to, base);
  for (const [name, value] of Object.entries(query ?? {})) if (value !== undefined && value !== null) url.searchParams.set(name, value);
  return url.href;
}

/** No browser asks for a password of its own accord: the console has its form. */
const HEADERS = { accept: 'application/json', 'x-couchdb-www-authenticate': 'Cookie' };

/** A request may take so long until its answer begins. */
const WAIT_MS = 90_000;

function failure(status, text) {
  try {
    const { error, reason } = JSON.parse(text);
    return new ApiError(status, String(error ?? ''), typeof reason === 'string' ? reason : JSON.stringify(reason ?? ''));
  } catch {
    return new ApiError(status, '', text.slice(0, 500));
  }
}

/** Sends a request and gives its `Response`, which is a success. `body` is text or a `Blob`, or something to be written as JSON. */
export async function send(to, { method = 'GET', query, body, type = 'application/json', signal, headers, wait = WAIT_MS } = {}) {
  const limit = AbortSignal.timeout(wait);
  const options = { method, headers: { ...HEADERS, ...headers }, signal: signal ? AbortSignal.any([signal, limit]) : limit, cache: 'no-store' };
  if (body !== undefined) {
    options.body = typeof body === 'string' || body instanceof Blob ? body : JSON.stringify(body);
    options.headers['content-type'] = type;
  } else if (method === 'POST') {
    options.headers['content-type'] = type;
  }
  let response;
  try {
    response = await fetch(address(to, query), options);
  } catch (error) {
    if (signal?.aborted) throw error;
    const reason = limit.aborted ? 'The server did not answer in time.' : 'The server cannot be reached.';
    throw new ApiError(0, 'unreachable', reason);
  }
  if (response.ok) return response;
  const text = await response.text();
  throw failure(response.status, text);
}

/** An answer as plain values, for what has no numbers of users in it. */
export const ask = async (to, options) => (await send(to, options)).json();

/** An answer as `json.js` parses it. */
export const askExactly = async (to, options) => parse(await (await send(to, options)).text());

/** The lines of an answer that goes on; ends with the answer. A line has at most 16 MB. */
export async function* lines(to, options) {
  const response = await send(to, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const pieces = (rest + value).split('\n');
      rest = pieces.pop();
      if (rest.length > 16_000_000) throw new ApiError(0, 'too_large', 'A line of the feed is too long to be shown.');
      yield pieces.filter((piece) => piece !== '');
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Writes one document, whatever its id; `text` is its JSON. Gives its new revision. */
export async function write(database, id, text) {
  if (hasPath(id)) return (await ask(documentPath(database, id), { method: 'PUT', body: text })).rev;
  const [row] = await ask(path(database, '_bulk_docs'), { method: 'POST', body: `{"docs":[${text}]}` });
  if (!row.ok) throw new ApiError(row.error === 'conflict' ? 409 : 400, row.error, row.reason);
  return row.rev;
}

/** Several edits that do not depend on each other. Gives what was refused. */
export async function writeAll(database, documents) {
  const rows = await ask(path(database, '_bulk_docs'), { method: 'POST', body: { docs: documents } });
  return rows.filter((row) => row.error);
}
