// One job of the worker: what flows, how far behind it is, what is done with it.
import { ask, askExactly, documentPath, path } from '../api.js';
import { LineChart } from '../chart.js';
import { JsonEditor, reader } from '../editor.js';
import { JobFlow } from '../flow.js';
import { print } from '../json.js';
import { badge, button, bytes, confirm, count, dialog, duration, every, facts, field, form, h, head, message, more, plain, replace, section, select, shown, table, tell, to, toast, when } from '../parts.js';
import { API, state } from './jobs.js';

const EVERY_MS = 2000;
/** Half an hour of what is seen while the page, or another page of the console, has looked. */
const KEPT = 900;
const history = new Map();

/** What was seen of a job, with what is seen now. */
function remember(job) {
  const points = history.get(job.id) ?? [];
  points.push({ at: Date.now(), rows: job.lag?.rows, seconds: job.lag?.seconds, throughput: job.throughput });
  if (points.length > KEPT) points.shift();
  history.delete(job.id);
  history.set(job.id, points);
  if (history.size > 20) history.delete(history.keys().next().value);
  return points;
}

/** What a job's document says of its mapping, in a word or two. */
function mappingOf(document) {
  const mapping = document?.get('mapping');
  if (mapping === undefined || mapping === null) return 'documents as they are';
  if (typeof mapping === 'string') return mapping;
  const tables = mapping.get?.('tables');
  if (Array.isArray(tables)) return tables.map((one) => String(one.get?.('name') ?? '?')).join(', ');
  return 'its own';
}

function reset(id) {
  const where = field('Go on from', select([['beginning', 'the beginning: everything is delivered again'], ['now', 'now: what has not been delivered is passed over'], ['as_is', 'where it is, though the source is another one']], 'beginning'));
  return dialog('Reset the job', (close) => form(where, 'Reset', async () => {
    await ask(`${API}/${path('jobs', id, 'reset')}`, { method: 'POST', body: { to: where.input.value } });
    close();
    toast.say('The job is being reset');
  }, { kind: 'danger', more: button('Cancel', () => close()) }));
}

/** What the mapping makes of documents; nothing is written. */
function trial(document) {
  const editor = new JsonEditor({ label: 'A document', value: '{\n  "_id": "a"\n}', wants: 'object', rows: 7 });
  const result = h('div', {});
  const run = button('Try', async () => {
    const text = `{"mapping":${document?.get('mapping') === undefined ? 'null' : print(document.get('mapping'), 0)},"documents":[${print(editor.check(), 0)}]}`;
    replace(result, reader(print((await askExactly(`${API}/jobs/test`, { method: 'POST', body: text })).get('results')[0]), 'result'));
  }, { fail: (error) => tell(result, error) });
  return h('div', { class: 'panel' }, editor, h('div', { class: 'buttons' }, run), result);
}

export default async function page({ id, signal, leave }) {
  const at = (...rest) => `${API}/${path('jobs', id, ...rest)}`;
  const [first, document] = await Promise.all([ask(at(), { signal }), askExactly(documentPath('_worker', `job::${id}`), { signal }).catch(() => undefined)]);
  const flow = new JobFlow();
  const rows = new LineChart('Documents behind', (value) => count(Math.round(value)));
  const seconds = new LineChart('Behind for', duration);
  const speed = new LineChart('Documents per second');
  const figures = h('div', { class: 'panel' });
  const trouble = h('div', {});
  const errors = h('div', {});
  const heading = h('span', {});
  const steer = h('div', { class: 'buttons' });
  let steered = '';
  const order = (what, said) => button(said, async () => {
    await ask(at(what), { method: 'POST' });
    await turn();
  }, { kind: what === 'start' ? 'main' : '' });
  const show = (job) => {
    const mapping = mappingOf(document);
    flow.show(job, mapping);
    replace(heading, state(job));
    const points = remember(job);
    const span = { from: points[0].at, until: points.at(-1).at };
    const line = (label, of) => [{ label, points: points.map((point) => [point.at, of(point) ?? NaN]) }];
    rows.show(line('documents', (point) => point.rows), span);
    seconds.show(line('time', (point) => point.seconds), span);
    speed.show(line('delivered', (point) => point.throughput), span);
    replace(figures, facts([['Delivered', count(job.delivered ?? NaN)], ['To the queue', h('a', { href: `#/queue?job=${encodeURIComponent(id)}` }, count(job.queued ?? NaN))], ['Replayed', count(job.replayed ?? NaN)],
      ['Outages', count(job.outages ?? NaN)], ['Runs on', job.node ? h('code', {}, shown(job.node, 40)) : 'no process'], ['Epoch', job.epoch === undefined ? '–' : h('code', {}, String(job.epoch))],
      ['Sequence', h('code', {}, shown(String(job.seq ?? '–').split('-')[0], 30))], ['As of', job.updated_at ? when(job.updated_at * 1000) : '–'],
      job.attachments?.fetched > 0 && ['Attachments', `${count(job.attachments.fetched)}, ${bytes(job.attachments.bytes)}`],
      job.orders?.length > 0 && ['Orders', job.orders.map((one) => [badge(plain(one.do ?? one.what ?? 'order', 30)), ' '])]]));
    replace(trouble, job.halted && message('bad', h('strong', {}, 'Halted: '), plain(job.halted.reason ?? job.halted.kind, 500)), job.state === 'broken' && message('bad', plain(job.reason, 500)));
    replace(errors, job.errors?.length ? table('Last errors', [{ label: 'When' }, { label: 'Error', wide: true }], job.errors.slice(0, 20).map(({ at: moment, error }) => [when(moment * 1000), shown(error, 500)]))
      : h('p', { class: 'quiet' }, 'None'));
    const now = `${job.enabled} ${job.state === 'halted'}`;
    if (now !== steered) {
      steered = now;
      replace(steer, job.enabled && job.state !== 'halted' ? order('stop', 'Pause') : order('start', job.state === 'halted' ? 'Start again' : 'Start'), button('Reset…', () => reset(id)));
    }
  };
  show(first);
  const turn = every(EVERY_MS, signal, async () => show(await ask(at(), { signal })));
  const remove = button('Delete the job', async () => {
    const gone = await confirm('Delete a job', h('p', {}, shown(id), ' ends. What it has delivered stays where it is, and so do its entries of the queue.'), 'Delete', async () => {
      const { _rev: rev } = await ask(documentPath('_worker', `job::${id}`));
      await ask(documentPath('_worker', `job::${id}`), { method: 'DELETE', query: { rev } });
    });
    if (gone) leave('#/jobs');
  }, { kind: 'danger' });
  return [
    head([['Jobs', '#/jobs']], [shown(id), ' ', heading], steer), trouble, first.name && first.name !== id && h('p', { class: 'quiet' }, shown(first.name)),
    section('Flow', flow), section('Lag', h('div', { class: 'charts three' }, rows, seconds, speed)), section('Figures', figures), section('Last errors', errors),
    section('What it is', document ? [more('The job’s document', reader(print(document), `job-${id}`)), more('Try the mapping on a document', trial(document)),
      h('div', { class: 'buttons' }, h('a', { class: 'button', href: to('db', '_worker', 'doc', `job::${id}`) }, 'Edit the document'), remove)] : h('p', { class: 'quiet' }, 'Its document is gone.')),
  ];
}
