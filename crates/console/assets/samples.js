// What `/metrics` said during the last hour, in this page's memory alone.
import { ApiError, send } from './api.js';

/** A sample each so often, for so long. */
export const EVERY_MS = 10_000;
const KEPT = 360;

/** What is kept of a sample: these families, the rest is read and let go of. */
const WANTED = /^(?:flatbed_(?!fault)|process_)/;

/** The newest last: `{ at, values }`, values by name with labels as the text has them. */
export const samples = [];
let timer;
let looked = Date.now();
const listeners = new Set();
export const state = { error: undefined };

/** The lines of Prometheus' text, as `name{labels}` to number. */
export function read(text) {
  const values = new Map();
  for (const line of text.split('\n')) {
    if (line === '' || line.startsWith('#') || !WANTED.test(line)) continue;
    const at = line.lastIndexOf(' ');
    const value = Number(line.slice(at + 1));
    if (Number.isFinite(value)) values.set(line.slice(0, at), value);
  }
  return values;
}

/** Takes a sample. Where nobody has looked for an hour none is taken: the session of who has gone may end. */
export async function take() {
  if (!document.hidden) looked = Date.now();
  else if (Date.now() - looked > KEPT * EVERY_MS) return;
  try {
    const text = await (await send('metrics', { headers: { accept: 'text/plain' } })).text();
    samples.push({ at: Date.now(), values: read(text) });
    if (samples.length > KEPT) samples.shift();
    state.error = undefined;
  } catch (error) {
    state.error = error;
    // Who may not see them is not asked again.
    if (error instanceof ApiError && (error.status === 401 || error.status === 403)) end();
  }
  for (const listener of listeners) listener();
}

/** Begins to take samples; nothing if that has begun. */
export function begin() {
  if (timer !== undefined) return;
  timer = setInterval(take, EVERY_MS);
  take();
}

/** Ends it, and forgets what there is. */
export function end() {
  clearInterval(timer);
  timer = undefined;
  samples.length = 0;
}

/** Calls `listener` after each sample until `signal` says that the page is left. */
export function listen(listener, signal) {
  listeners.add(listener);
  signal.addEventListener('abort', () => listeners.delete(listener));
}

/** The sum of all values whose name begins with `name` and whose labels have all these texts. */
export function sum(values, name, ...labels) {
  let total = 0;
  let isThere = false;
  for (const [key, value] of values) {
    if (!key.startsWith(name) || (key.length > name.length && key[name.length] !== '{')) continue;
    if (labels.every((label) => key.includes(label))) {
      total += value;
      isThere = true;
    }
  }
  return isThere ? total : undefined;
}

/** How fast a counter rose between samples: `[at, per second]`. A server that was started again begins at nought. */
export function rates(of) {
  const points = [];
  for (let at = 1; at < samples.length; at += 1) {
    const [before, now] = [samples[at - 1], samples[at]];
    const [from, until] = [of(before.values), of(now.values)];
    const seconds = (now.at - before.at) / 1000;
    // Where the page slept nothing is known.
    if (seconds > (EVERY_MS / 1000) * 12) points.push([now.at, NaN]);
    else if (until !== undefined) points.push([now.at, Math.max(0, until < (from ?? 0) ? until : until - (from ?? 0)) / seconds]);
  }
  return points;
}

/** A gauge as it was: `[at, value]`. */
export const levels = (of) => samples.map(({ at, values }) => [at, of(values)]).filter(([, value]) => value !== undefined);

/** A share of a histogram's observations between samples, in seconds, by its buckets: `[at, seconds]`. */
export function quantiles(name, share, ...labels) {
  const points = [];
  for (let at = 1; at < samples.length; at += 1) {
    const [before, now] = [samples[at - 1].values, samples[at].values];
    const buckets = new Map();
    for (const [key, value] of now) {
      if (!key.startsWith(`${name}_bucket{`) || !labels.every((label) => key.includes(label))) continue;
      const bound = /le="([^"]+)"/.exec(key)?.[1];
      const limit = bound === '+Inf' ? Infinity : Number(bound);
      buckets.set(limit, (buckets.get(limit) ?? 0) + Math.max(0, value - (before.get(key) ?? 0)));
    }
    const rows = [...buckets].sort(([a], [b]) => a - b);
    const all = rows.at(-1)?.[1] ?? 0;
    if (all === 0) continue;
    let [low, below] = [0, 0];
    for (const [limit, up] of rows) {
      if (up >= share * all) {
        const part = up > below ? (share * all - below) / (up - below) : 1;
        points.push([samples[at].at, limit === Infinity ? low : low + (limit - low) * part]);
        break;
      }
      [low, below] = [limit, up];
    }
  }
  return points;
}
