// The dead letter queue: what targets refused.
import { address, ask } from '../api.js';
import { BarChart } from '../chart.js';
import { reader } from '../editor.js';
import { badge, button, confirm, count, empty, every, field, form, h, head, input, plain, replace, section, select, shown, table, to, toast, when } from '../parts.js';
import { API } from './jobs.js';

const PAGE = 50;
const FILTER = ['job', 'reason', 'state', 'since', 'until'];
/** For how long back, in seconds. */
const SPANS = [['', 'any time'], ['3600', 'the last hour'], ['86400', 'the last day'], ['604800', 'the last week']];

export const LOOKS = { waiting: 'warn', exhausted: 'bad', overtaken: 'plain' };

export default async function queue({ params, signal, reload }) {
  const filter = Object.fromEntries(FILTER.map((name) => [name, params.get(name)]).filter(([, value]) => value));
  const sort = params.get('sort') === 'time' ? 'time' : '-time';
  const offset = Math.max(0, Number(params.get('offset')) || 0);
  const here = (query) => {
    const set = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
    return `#/queue${set.size ? `?${set}` : ''}`;
  };
  const [stats, { entries }, { count: number }] = await Promise.all([
    ask(`${API}/dlq/stats`, { signal }), ask(`${API}/dlq`, { query: { ...filter, sort, limit: PAGE, offset }, signal }), ask(`${API}/dlq/count`, { query: filter, signal }),
  ]);
  const sorted = (of) => Object.entries(of).sort(([, a], [, b]) => b - a).slice(0, 8);
  const bars = (heading, of, name) => new BarChart(heading).show(sorted(of).map(([value, n]) => [h('a', { href: here({ ...filter, [name]: value }) }, shown(value, 50)), n]));
  const isFiltered = Object.keys(filter).length > 0;
  const options = (of, value) => [['', 'any'], ...[...new Set([...Object.keys(of), value].filter(Boolean))].map((one) => [one, plain(one, 60)])];
  const job = field('Job', select(options(stats.jobs, filter.job), filter.job ?? ''));
  const reason = field('Reason', select(options(stats.reasons, filter.reason), filter.reason ?? ''));
  const state = field('State', select(options(stats.states, filter.state), filter.state ?? ''));
  const span = field('Failed', select(SPANS, ''));
  const order = field('Order', select([['-time', 'newest first'], ['time', 'oldest first']], sort));
  const explained = h('div', {});
  const explain = button('Explain', async () => {
    const plan = await ask(`${API}/dlq/explain`, { query: { ...filter, sort }, signal });
    replace(explained, h('div', { class: 'panel' }, h('p', {}, 'Found by the index ', badge(plain(plan.index?.name ?? '–', 60), 'ok')), reader(JSON.stringify(plan, null, 2), 'explain')));
  });
  const choose = form(h('div', { class: 'inline' }, job, reason, state, span, order), 'Filter', () => {
    const since = span.input.value ? String(Math.floor(Date.now() / 1000) - Number(span.input.value)) : filter.since;
    location.hash = here({ job: job.input.value, reason: reason.input.value, state: state.input.value, since, until: filter.until, sort: order.input.value === 'time' ? 'time' : '' });
  }, { kind: '', more: [explain, isFiltered && h('a', { class: 'button', href: '#/queue' }, 'All entries')] });
  const whose = isFiltered ? 'that match' : 'of all jobs';
  const speed = field('At most so many in a second', input({ type: 'number', min: '1', value: '100' }));
  const retry = button(`Retry ${count(number)}…`, async () => {
    const done = await confirm('Retry entries', h('p', {}, `The entries ${whose} are sent again, each if no newer revision has overtaken it. What the target takes leaves the queue.`), 'Retry',
      () => ask(`${API}/dlq/retry`, { method: 'POST', body: { job: filter.job, reason: filter.reason, since: filter.since && Number(filter.since), until: filter.until && Number(filter.until), per_second: Number(speed.input.value) || undefined } }), { extra: speed });
    if (done) toast.say('Ordered; jobs that run do it one after the other');
  });
  const clear = button(`Delete ${count(number)}…`, async () => {
    const done = await confirm('Delete entries', h('p', {}, `The entries ${whose}, ${count(number)}, are deleted and never delivered.`), 'Delete',
      () => ask(`${API}/dlq`, { method: 'DELETE', query: isFiltered ? filter : { all: 'true' }, wait: 600_000 }));
    if (done) reload();
  }, { kind: 'danger' });
  const file = h('input', { type: 'file', class: 'only-read', tabindex: '-1', 'aria-label': 'Entries to take in', onchange: async () => {
    const text = await file.files[0].text();
    const { imported, there, refused } = await ask(`${API}/dlq/import`, { method: 'POST', query: { job: filter.job }, body: text, type: 'application/x-ndjson' });
    toast.say(`${count(imported)} taken in, ${count(there)} were there, ${count(refused)} refused`);
    reload();
  } });
  const rows = entries.map((entry) => [
    h('a', { href: to('queue', entry.id) }, shown(entry.doc_id_original, 120)), h('a', { href: to('jobs', entry.job) }, shown(entry.job, 60)), shown(entry.reason, 80),
    [badge(entry.state, LOOKS[entry.state]), entry.edited && [' ', badge('edited')]], count(entry.replay_attempts ?? 0), when(entry.time * 1000),
  ]);
  if (stats.total > 0 || number > 0) {
    // Somebody else, or a job, may work with it: that is said, and nothing moves under whoever reads.
    const said = h('p', { class: 'quiet', role: 'status' });
    every(5000, signal, async () => {
      const { count: now } = await ask(`${API}/dlq/count`, { query: filter, signal });
      replace(said, now !== number && [`There are ${count(now)} now. `, button('Show them', reload, { kind: 'small' })]);
    });
    choose.append(said);
  }
  return [
    head([], 'Dead letters', h('a', { class: 'button', href: address(`${API}/dlq/export`, filter), download: 'dead-letters.jsonl' }, 'Export'), button('Import…', () => file.click()), file),
    stats.total === 0 && !isFiltered
      ? empty('The queue is empty', h('p', {}, 'A document that a target refuses for its own sake, and not because the target is ill, waits here until somebody mends and retries it.'))
      : [section('What waits', h('div', { class: 'charts three' }, bars('By job', stats.jobs, 'job'), bars('By reason', stats.reasons, 'reason'), bars('By state', stats.states, 'state'))),
        section('Entries', h('div', { class: 'panel' }, choose), explained,
          h('div', { class: 'row spread middle' }, h('p', { class: 'quiet' }, `${count(number)} ${isFiltered ? number === 1 ? 'matches' : 'match' : number === 1 ? 'entry' : 'entries'}`), number > 0 && h('div', { class: 'buttons' }, retry, clear)),
          rows.length ? table('Entries', [{ label: 'Document', wide: true }, { label: 'Job' }, { label: 'Reason' }, { label: 'State' }, { label: 'Retries', number: true }, { label: 'Failed' }], rows) : empty('None match'),
          h('nav', { class: 'buttons', 'aria-label': 'Pages' }, offset > 0 && h('a', { class: 'button', href: here({ ...filter, sort, offset: offset > PAGE ? offset - PAGE : '' }) }, 'Previous page'),
            offset + entries.length < number && entries.length > 0 && h('a', { class: 'button', href: here({ ...filter, sort, offset: offset + PAGE }) }, 'Next page')))],
  ];
}

