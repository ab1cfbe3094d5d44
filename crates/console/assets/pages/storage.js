// What lies beneath: the engine, what works in the background, and the keys of a document.
import { ApiError, ask, send } from '../api.js';
import { levels, listen, samples, sum } from '../samples.js';
import { badge, bytes, count, empty, facts, field, form, h, head, input, plain, replace, section, shown, table, to, wrong } from '../parts.js';
import { keysOf } from './keys.js';

/** `state=ok; engine=embedded; ping_ms=0.2` */
const parsed = (header) => Object.fromEntries((header ?? '').split(';').map((part) => part.trim().split('=')).filter(([name]) => name));

export default async function storage({ signal, session, params }) {
  const up = send('_up', { signal }).then((response) => ({ ...parsed(response.headers.get('x-flatbed-storage')), status: 'ok' }), (error) => {
    if (!(error instanceof ApiError)) throw error;
    return { status: error.error, state: error.reason };
  });
  const [health, welcome, tasks, nodes] = await Promise.all([
    up, ask('', { signal }), ask('_active_tasks', { signal }).catch(() => undefined), ask('_membership', { signal }).catch(() => undefined),
  ]);
  const isEmbedded = health.engine === 'embedded';
  const engine = h('div', { class: 'panel' });
  const draw = () => {
    const values = samples.at(-1)?.values;
    const of = (name) => (values ? sum(values, name) ?? NaN : NaN);
    const rate = (name) => {
      const points = levels((sample) => sum(sample, name)).slice(-2);
      return points.length === 2 ? `${count(Math.round(((points[1][1] - points[0][1]) / Math.max(1, points[1][0] - points[0][0])) * 1000))}/s` : '–';
    };
    replace(engine, facts([
      ['State', badge(plain(health.status === 'ok' ? health.state ?? 'ok' : health.status, 40), health.status === 'ok' ? 'ok' : 'bad')], ['Engine', { embedded: 'embedded, on LMDB', cluster: 'FoundationDB cluster' }[health.engine] ?? plain(health.engine ?? '–', 40)],
      health.ping_ms !== undefined && ['A read takes', `${plain(health.ping_ms, 20)} ms`], ['Flatbed', plain(welcome.vendor?.version ?? '–', 40)], ['Server', h('code', {}, plain(welcome.uuid ?? '–', 40))],
      nodes && ['Node', plain(nodes.cluster_nodes?.join(', ') ?? '–', 100)],
      ['Commits', rate('flatbed_commits_total')], ['Keys read', rate('flatbed_keys_read_total')], ['Keys written', rate('flatbed_keys_written_total')], ['Bytes read', values ? bytes(of('flatbed_bytes_read_total')) : '–'], ['Bytes written', values ? bytes(of('flatbed_bytes_written_total')) : '–'],
      isEmbedded && ['Data', bytes(of('flatbed_engine_data_bytes'))], isEmbedded && ['Free on its disk', bytes(of('flatbed_disk_free_bytes'))], isEmbedded && ['Snapshots', count(of('flatbed_engine_snapshots'))], isEmbedded && ['Watches', count(of('flatbed_engine_watches'))],
    ]));
  };
  draw();
  listen(draw, signal);
  const [database, id] = [field('Database', input({ value: params.get('database') ?? '' })), field('Id of a document', input({ value: params.get('id') ?? '' }))];
  const found = h('div', {});
  const look = form(h('div', { class: 'inline' }, database, id), 'Show its keys', async () => {
    if (!database.input.value) throw wrong(database, 'A database is needed.');
    if (!id.input.value) throw wrong(id, 'An id is needed.');
    replace(found, await keysOf(database.input.value, id.input.value, signal));
  }, { kind: '' });
  return [
    head([], 'Storage'), section('Engine', engine),
    session.isAdmin && section('Keys of a document', h('div', { class: 'panel' }, look), found),
    section('At work in the background', tasks === undefined ? h('p', { class: 'quiet' }, 'Administrators of the server see what works in the background.') : tasks.length === 0 ? empty('Nothing at the moment', h('p', {}, 'Index builds, compactions and replications appear here.'))
      : table('Tasks', [{ label: 'Kind' }, { label: 'Where', wide: true }, { label: 'Progress', number: true }, { label: 'Pending', number: true }],
        tasks.slice(0, 200).map((task) => [badge(plain(task.type, 40)), task.database && !task.database.startsWith('_') ? h('a', { href: to('db', task.database) }, shown(task.database, 80)) : shown(task.doc_id ?? task.database ?? '–', 80),
          task.progress === undefined ? '–' : `${count(task.progress)} %`, count(task.changes_pending ?? task.total_changes ?? NaN)]))),
  ];
}
