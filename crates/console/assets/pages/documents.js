// The documents of a database by id, in pages.
import { ask, askExactly, path } from '../api.js';
import { Exact, toPlain } from '../json.js';
import { button, bytes, count, empty, facts, field, form, h, input, more, revision, select, shown, table, to, wrong } from '../parts.js';
import { databaseHead } from './database.js';

const PAGE = 50;
/** Which documents: the path that lists them, and where their ids begin and end. */
const KINDS = {
  all: ['All documents', '_all_docs'], design: ['Design documents', '_design_docs'], local: ['Local documents', '_local_docs'],
};

export default async function documents({ database, params, signal }) {
  const kind = Object.hasOwn(KINDS, params.get('kind')) ? params.get('kind') : 'all';
  const [from, before] = [params.get('from'), params.get('before')];
  const here = (query) => {
    const set = Object.entries({ kind: kind === 'all' ? null : kind, ...query }).filter(([, value]) => value !== null && value !== undefined);
    return `${to('db', database)}${set.length ? `?${new URLSearchParams(set)}` : ''}`;
  };
  // One more than is shown tells whether there is a next page; back, the rows come the other way round.
  const query = { limit: PAGE + 1 };
  if (before !== null) Object.assign(query, { startkey: JSON.stringify(before), skip: 1, descending: 'true' });
  else if (from !== null) query.startkey = JSON.stringify(from);
  const [info, answer] = await Promise.all([
    ask(path(database), { signal }),
    askExactly(path(database, KINDS[kind][1]), { query, signal }),
  ]);
  const rows = answer.get('rows').map((row) => ({ id: row.get('id'), rev: toPlain(row.get('value'))?.rev }));
  const isMore = rows.length > PAGE;
  const page = rows.slice(0, PAGE);
  if (before !== null) page.reverse();
  const next = before !== null ? page.at(-1)?.id : rows[PAGE]?.id;
  const hasBefore = before !== null ? isMore : from !== null;
  const total = answer.get('total_rows');

  const id = field('Id', input({ name: 'id', placeholder: 'the whole id, or how it begins' }));
  const open = button('Open this document', () => {
    if (id.input.value) location.hash = to('db', database, 'doc', id.input.value);
    else id.fail('An id is needed.');
  });
  const jump = form([id], 'Show from here', () => {
    if (!id.input.value) throw wrong(id, 'An id is needed.');
    location.hash = here({ from: id.input.value });
  }, { kind: '', more: open });
  jump.classList.add('inline');
  const kinds = field('Show', select(Object.entries(KINDS).map(([name, [label]]) => [name, label]), kind, {
    onchange: () => { location.hash = kinds.input.value === 'all' ? to('db', database) : `${to('db', database)}?kind=${kinds.input.value}`; },
  }));
  kinds.classList.add('narrow');
  const pages = h('nav', { class: 'buttons', 'aria-label': 'Pages' },
    hasBefore && h('a', { class: 'button', href: here({}) }, 'First page'),
    hasBefore && page.length > 0 && h('a', { class: 'button', href: here({ before: page[0].id }) }, 'Previous page'),
    (before !== null || isMore) && next !== undefined && h('a', { class: 'button', href: here({ from: next }) }, 'Next page'));
  return [
    ...databaseHead(database, '', h('a', { class: 'button main', href: to('db', database, 'new') }, 'New document')),
    h('div', { class: 'row' }, jump, kinds),
    page.length === 0
      ? empty(from !== null || before !== null ? 'No document from here on' : 'No documents here yet', h('p', {}, 'What is written appears here by its id.'))
      : table(KINDS[kind][0], [{ label: 'Id', wide: true }, { label: 'Revision' }],
        page.map((row) => [h('a', { href: to('db', database, 'doc', row.id) }, shown(row.id)), row.rev ? revision(row.rev) : '–'])),
    h('div', { class: 'row spread middle' }, h('p', { class: 'quiet' }, `${count(page.length)} shown`, total instanceof Exact && ` of ${count(Number(total.text))}`), pages),
    more('About this database', h('div', { class: 'panel' }, facts([
      ['Documents', count(info.doc_count)], ['Deleted', count(info.doc_del_count)], ['Stored', bytes(info.sizes.active)], ['As JSON', bytes(info.sizes.external)],
      ['With older revisions', bytes(info.sizes.file)], ['Partitioned', info.props?.partitioned ? 'yes' : 'no'], ['Shards', info.props?.shards ? count(info.props.shards) : 'none'],
      ['Last change', h('code', {}, String(info.update_seq).slice(0, 60))],
    ]))),
  ];
}
