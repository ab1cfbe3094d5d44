// Queries: Mango with its plan, and rows of views.
import { ask, askExactly, path } from '../api.js';
import { JsonEditor, reader } from '../editor.js';
import { parse, print, toPlain } from '../json.js';
import { badge, button, count, empty, facts, field, form, h, input, many, message, more, plain, replace, select, shown, table, tabs, tell, to, wrong } from '../parts.js';
import { databaseHead } from './database.js';

const FIRST = '{\n  "selector": {\n    "_id": { "$gt": null }\n  },\n  "limit": 25\n}';
/** Design documents that are looked through for views. */
const DESIGNS = 100;
const CELL = 400;

/** A value in a cell: short, and all of it for who opens it. */
function value(of) {
  const text = print(of, 0, CELL);
  return text.length < CELL ? h('code', {}, text) : more(h('code', {}, text.slice(0, 120), '…'), h('pre', { class: 'text' }, print(of, 2, 200_000)));
}

const link = (database, id) => (typeof id === 'string' ? h('a', { href: to('db', database, 'doc', id) }, shown(id)) : h('span', { class: 'quiet' }, 'no id'));

/** What `_explain` says, in words. */
function plan(answer) {
  const { index, covering, mrargs, execution_stats: statistics } = toPlain(answer);
  const isAll = index?.name === '_all_docs';
  return h('div', { class: 'panel' },
    h('p', {}, isAll ? badge('reads all documents', 'warn') : badge('uses an index', 'ok'), ' ', h('span', {}, isAll ? 'No index fits: every document is looked at. An index on the fields of the selector would help.' : 'Only the part of the index that the selector leaves is read.')),
    facts([['Index', shown(String(index?.name ?? '–'))], ['Design document', index?.ddoc ? shown(index.ddoc) : 'none'], ['Kind', String(index?.type ?? '–')],
      covering !== undefined && ['From the index alone', covering ? 'yes' : 'no'], mrargs?.direction && ['Direction', mrargs.direction], statistics && ['Statistics', String(statistics)]]),
    more('All that _explain says', reader(print(answer), 'explain')));
}

function mango({ database, signal }) {
  const editor = new JsonEditor({ label: 'Query', value: FIRST, wants: 'object', rows: 11, name: 'query', hint: 'A selector with limit, sort, fields, use_index. Ctrl+S runs it.' });
  const fault = h('div', { role: 'alert' });
  const results = h('div', { class: 'results' });
  const fail = (error) => tell(fault, error);
  const run = async (bookmark) => {
    replace(fault);
    const query = editor.check();
    query.set('execution_stats', true);
    if (bookmark) query.set('bookmark', bookmark);
    const answer = await askExactly(path(database, '_find'), { method: 'POST', body: print(query, 0), signal });
    const [docs, next, warning] = ['docs', 'bookmark', 'warning'].map((name) => answer.get(name));
    const statistics = toPlain(answer.get('execution_stats')) ?? {};
    const limit = Number(query.get('limit')?.text ?? 25);
    replace(results,
      warning && message('warn', String(warning)),
      h('p', { class: 'quiet', role: 'status' }, `${many(docs.length, 'document')}; ${many(statistics.total_docs_examined, 'document')} and ${many(statistics.total_keys_examined, 'key')} examined, ${count(Math.round(statistics.execution_time_ms ?? 0))} ms`),
      docs.length ? table('Documents found', [{ label: 'Id' }, { label: 'Document', wide: true }], docs.map((found) => {
        const rest = new Map(found);
        rest.delete('_id');
        rest.delete('_rev');
        return [link(database, found.get('_id')), value(rest)];
      })) : empty('Nothing found', h('p', {}, bookmark ? 'That was the last page.' : 'No document has what the selector asks for.')),
      h('div', { class: 'buttons' }, bookmark && button('First page', () => run(), { fail }), docs.length >= limit && limit > 0 && next && button('Next page', () => run(next), { fail })));
  };
  const submit = button('Run', () => run(), { kind: 'main', fail });
  const explain = button('Explain', async () => {
    replace(fault);
    replace(results, plan(await askExactly(path(database, '_explain'), { method: 'POST', body: print(editor.check(), 0), signal })));
  }, { fail });
  editor.addEventListener('wanted', () => submit.click());
  return [h('div', { class: 'panel' }, editor, fault, h('div', { class: 'buttons' }, submit, explain, h('a', { href: to('db', database, 'indexes') }, 'Indexes'))), results];
}

/** Views by design document: `[[design, [views]]]`. */
export async function viewsOf(database, signal) {
  const answer = await askExactly(path(database, '_design_docs'), { query: { include_docs: 'true', limit: DESIGNS }, signal });
  return answer.get('rows').map((row) => row.get('doc')).filter((doc) => doc instanceof Map && doc.get('language') !== 'query')
    .map((doc) => [doc.get('_id').slice('_design/'.length), doc.get('views') instanceof Map ? [...doc.get('views').keys()] : [], doc]);
}

async function views({ database, params, signal }) {
  const all = (await viewsOf(database, signal)).flatMap(([design, names, doc]) => names.map((name) => ({ design, name, reduces: doc.get('views').get(name)?.get?.('reduce') !== undefined })));
  if (all.length === 0) {
    return empty('No views yet', h('p', {}, 'A view is made of a function in a design document.'),
      h('a', { class: 'button', href: `${to('db', database, 'new')}?id=_design/example` }, 'Write a design document'));
  }
  const first = Math.max(0, all.findIndex(({ design, name }) => design === params.get('design') && name === params.get('view')));
  const which = field('View', select(all.map(({ design, name }, at) => [String(at), plain(`${design}/${name}`, 120)]), String(first)));
  const json = (label, hint) => field(label, input({ class: 'mono' }), hint);
  const [key, start, end] = [json('Key', 'JSON, such as "a" or [1,2]'), json('From key'), json('To key')];
  const limit = field('Rows', input({ type: 'number', min: '1', max: '1000', value: '50' }));
  const group = field('Group', select([['', 'rows, not reduced'], ['all', 'one value'], ['true', 'by key'], ['1', 'by 1 part of the key'], ['2', 'by 2 parts'], ['3', 'by 3 parts']], ''));
  const descending = field('Descending', h('input', { type: 'checkbox' }));
  const results = h('div', { class: 'results' });
  const run = async (skip = 0) => {
    const view = all[Number(which.input.value)];
    const query = { limit: limit.input.value || '50', skip: skip || undefined, descending: descending.input.checked ? 'true' : undefined };
    for (const [name, of] of [['key', key], ['startkey', start], ['endkey', end]]) {
      if (of.input.value === '') continue;
      try {
        parse(of.input.value);
      } catch (error) {
        throw wrong(of, error.message);
      }
      query[name] = of.input.value;
    }
    const grouped = group.input.value;
    if (view.reduces) query.reduce = grouped ? 'true' : 'false';
    else if (grouped) throw wrong(group, 'This view has no reduce.');
    if (grouped === 'true') query.group = 'true';
    else if (/^\d$/.test(grouped)) query.group_level = grouped;
    const answer = await askExactly(path(database, '_design', view.design, '_view', view.name), { query, signal });
    const rows = answer.get('rows');
    replace(results,
      h('p', { class: 'quiet', role: 'status' }, `${many(rows.length, 'row')}${answer.get('total_rows') ? ` of ${count(Number(answer.get('total_rows').text))}` : ''}`),
      rows.length ? table('Rows', grouped ? [{ label: 'Key', wide: true }, { label: 'Value', wide: true }] : [{ label: 'Key', wide: true }, { label: 'Value', wide: true }, { label: 'Document' }],
        rows.map((row) => [value(row.get('key')), value(row.get('value')), !grouped && link(database, row.get('id'))].slice(0, grouped ? 2 : 3))) : empty('No rows'),
      h('div', { class: 'buttons' }, skip > 0 && button('First rows', () => run(0)), rows.length >= Number(query.limit) && button('Next rows', () => run(skip + rows.length))));
  };
  return [h('div', { class: 'panel' }, form([h('div', { class: 'two' }, which, group), h('div', { class: 'two' }, key, h('div', { class: 'inline' }, start, end)), h('div', { class: 'inline' }, limit, descending)], 'Run', () => run())), results];
}

export default async function query(context) {
  const { database, params, signal } = context;
  const isViews = params.get('by') === 'views';
  await ask(path(database), { signal });
  return [...databaseHead(database, 'query'),
    tabs('Kinds of queries', [['Selector', to('db', database, 'query'), !isViews], ['Views', `${to('db', database, 'query')}?by=views`, isViews]]),
    await (isViews ? views(context) : mango(context))];
}
