// The jobs of the changes worker.
import { ApiError, ask, write } from '../api.js';
import { JsonEditor } from '../editor.js';
import { print } from '../json.js';
import { badge, button, count, dialog, duration, empty, every, field, form, h, head, input, more, plain, replace, shown, table, to, wrong } from '../parts.js';

export const API = '_worker/_api';

const LOOKS = { running: 'ok', failing: 'warn', halted: 'bad', broken: 'bad', waiting: 'warn' };
export const state = (job) => badge(job.state, LOOKS[job.state]);

const MODEL = `{
  "type": "job",
  "inputs": [{ "id": "in", "source_type": "flatbed", "local": "DATABASE" }],
  "outputs": [{ "id": "out", "url": "https://host/in/{id}" }],
  "output_type": "http"
}`;

/** A new job, as the document that it is. */
function create(leave) {
  const id = field('Id', input({ placeholder: 'orders' }), 'Letters, digits and _ . : -');
  const editor = new JsonEditor({ label: 'Job', value: MODEL, wants: 'object', rows: 12, name: 'job' });
  return dialog('New job', (close) => form([id, editor], 'Begin', async () => {
    if (!id.input.value) throw wrong(id, 'An id is needed.');
    const body = editor.check();
    body.set('id', id.input.value);
    try {
      await write('_worker', `job::${id.input.value}`, print(body, 0));
    } catch (error) {
      if (error instanceof ApiError && error.status === 409) throw wrong(id, 'There is a job of this id already.');
      throw error;
    }
    close();
    leave(to('jobs', id.input.value));
  }, { more: button('Cancel', () => close()) }));
}

export default async function jobs({ signal, leave }) {
  const columns = [{ label: 'Job', wide: true }, { label: 'State' }, { label: 'From' }, { label: 'To' }, { label: 'Behind', number: true }, { label: 'For', number: true }, { label: 'Documents/s', number: true }, { label: 'Delivered', number: true }, { label: 'To the queue', number: true }];
  const view = table('Jobs', columns, []);
  const frame = h('div', {});
  let before = '';
  const refresh = async () => {
    const { jobs: rows } = await ask(`${API}/jobs`, { signal });
    const text = JSON.stringify(rows);
    if (text === before || (before && view.contains(document.activeElement) && document.activeElement !== view)) return;
    before = text;
    if (rows.length === 0) {
      replace(frame, empty('No jobs', h('p', {}, 'A job follows a database and brings each document’s newest state to another system: tables, an endpoint, files.'), button('New job', create)));
      return;
    }
    view.show(rows.slice(0, 500).map((job) => [
      [h('a', { href: to('jobs', job.id) }, shown(job.id)), job.name && job.name !== job.id && h('div', { class: 'quiet' }, shown(job.name, 80))],
      [state(job), (job.halted?.reason ?? job.reason) && more('Why', h('p', {}, plain(job.halted?.reason ?? job.reason, 300)))], shown(job.source ?? '–', 60), shown(job.target ?? '–', 60),
      count(job.lag?.rows ?? NaN), duration(job.lag?.seconds ?? NaN), job.throughput === undefined ? '–' : job.throughput.toFixed(1), count(job.delivered ?? NaN),
      job.queued ? h('a', { href: `#/queue?job=${encodeURIComponent(job.id)}` }, count(job.queued)) : count(job.queued ?? NaN),
    ]));
    if (view.parentElement !== frame) replace(frame, view);
  };
  await refresh();
  every(3000, signal, refresh);
  return [head([], 'Jobs', button('New job', () => create(leave), { kind: 'main' })), frame];
}
