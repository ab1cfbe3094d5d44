// Changes of a database as they come.
import { ApiError, ask, lines, path } from '../api.js';
import { badge, button, count, empty, field, h, message, replace, revision, select, shown, table, to, when, words } from '../parts.js';
import { databaseHead } from './database.js';

/** Rows that are kept, the newest first. */
const KEPT = 300;
const PAUSES_S = [1, 2, 5, 10, 30];
const DAY_MS = 86_400_000;

export default async function changes({ database, signal }) {
  const rows = [];
  let seen = 0;
  let last;
  let stopped = new AbortController();
  let isDrawn = true;
  const view = table('Changes, the newest first', [{ label: 'Document', wide: true }, { label: 'Seen' }, { label: 'Revisions' }, { label: 'What' }, { label: 'Sequence' }], []);
  const nothing = empty('Waiting for changes', h('p', {}, 'Each write appears here as it is committed.'));
  const frame = h('div', {}, nothing);
  const said = h('p', { class: 'quiet', role: 'status' });
  const trouble = h('div', {});
  const draw = () => {
    isDrawn = true;
    if (rows.length && view.parentElement !== frame) replace(frame, view);
    view.show(rows.map((row) => [
      h('a', { href: to('db', database, 'doc', row.id) }, shown(row.id)), when(row.at),
      [revision(row.changes?.[0]?.rev ?? ''), row.changes?.length > 1 && ` and ${row.changes.length - 1} more`],
      row.deleted ? badge('deleted', 'warn') : row.changes?.length > 1 ? badge('in conflict', 'warn') : badge('written'), h('code', {}, shown(String(row.seq).split('-')[0], 24)),
    ]));
    counted.textContent = `${count(seen)} seen${rows.length < seen ? `, the newest ${count(rows.length)} shown` : ''}`;
  };
  const counted = h('p', { class: 'quiet' });
  const take = (row) => {
    if (row.last_seq !== undefined) {
      last = row.last_seq;
      return;
    }
    last = row.seq;
    seen += 1;
    rows.unshift({ ...row, at: Date.now() });
    rows.length = Math.min(rows.length, KEPT);
    if (isDrawn) {
      isDrawn = false;
      setTimeout(draw, 100);
    }
  };
  const follow = async (since) => {
    stopped.abort();
    stopped = new AbortController();
    const own = AbortSignal.any([signal, stopped.signal]);
    last = since;
    for (let tries = 0; !own.aborted;) {
      try {
        said.textContent = 'Connecting…';
        const query = { feed: 'continuous', style: 'all_docs', heartbeat: 20_000, since: last };
        const feed = lines(path(database, '_changes'), { query, signal: own, wait: DAY_MS });
        said.textContent = 'Live';
        replace(trouble);
        for await (const texts of feed) {
          tries = 0;
          for (const text of texts) take(JSON.parse(text));
        }
        // The server ends feeds when it stops, or when a day is over: it goes on where it was.
      } catch (error) {
        if (own.aborted) return;
        replace(trouble, message('bad', words(error)));
        if (error instanceof ApiError && [401, 403, 404].includes(error.status)) {
          said.textContent = 'Ended';
          return;
        }
      }
      const pause = PAUSES_S[Math.min(tries, PAUSES_S.length - 1)];
      tries += 1;
      if (own.aborted) return;
      said.textContent = `The feed has ended; again in ${pause} s`;
      await new Promise((resolve) => { setTimeout(resolve, pause * 1000); });
    }
  };
  const begin = (since) => {
    rows.length = 0;
    seen = 0;
    replace(frame, nothing);
    draw();
    if (toggle) toggle.textContent = 'Pause';
    follow(since);
  };
  const from = field('Begin', select([['now', 'with what comes now'], ['0', 'at the beginning']], 'now', { onchange: () => begin(from.input.value) }));
  from.classList.add('narrow');
  const toggle = button('Pause', () => {
    if (stopped.signal.aborted) {
      toggle.textContent = 'Pause';
      follow(last ?? 'now');
    } else {
      stopped.abort();
      toggle.textContent = 'Go on';
      said.textContent = 'Paused';
    }
  });
  // A database that cannot be read is a failure of the page, and not of the feed.
  await ask(path(database), { signal });
  begin('now');
  return [...databaseHead(database, 'changes'), h('div', { class: 'row' }, from, toggle, h('div', { class: 'row' }, said, counted)), trouble, frame];
}
