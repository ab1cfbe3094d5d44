// Indexes of fields, and design documents with their views.
import { ask, askExactly, path } from '../api.js';
import { parse, print, toPlain } from '../json.js';
import { badge, button, bytes, confirm, count, dialog, empty, field, form, h, input, section, shown, table, to, toast, wrong } from '../parts.js';
import { viewsOf } from './query.js';
import { databaseHead } from './database.js';

async function create(database, reload) {
  const fields = field('Fields', input({ placeholder: 'customer, address.city' }), 'In the order in which they are sorted, with commas between.');
  const name = field('Name', input({ placeholder: 'made of what it is on' }));
  const filter = field('Only documents that this selector takes', h('textarea', { class: 'code', rows: '3', spellcheck: 'false' }), 'JSON; may be empty.');
  const done = await dialog('New index', (close) => form([fields, name, filter], 'Create', async () => {
    const list = fields.input.value.split(',').map((text) => text.trim()).filter(Boolean);
    if (list.length === 0) throw wrong(fields, 'A field is needed.');
    const index = new Map([['fields', list]]);
    if (filter.input.value.trim()) {
      try {
        index.set('partial_filter_selector', parse(filter.input.value));
      } catch (error) {
        throw wrong(filter, error.message);
      }
    }
    const body = new Map([['index', index], ['type', 'json']]);
    if (name.input.value) body.set('name', name.input.value);
    await ask(path(database, '_index'), { method: 'POST', body: print(body, 0) });
    close(true);
  }, { more: button('Cancel', () => close(false)) }));
  if (done) reload();
}

export default async function indexes({ database, signal, reload }) {
  const [listed, designs] = await Promise.all([askExactly(path(database, '_index'), { signal }), viewsOf(database, signal)]);
  const rows = toPlain(listed).indexes.map(({ ddoc, name, type, def }) => [
    shown(name), (def.fields ?? []).map((one, at) => Object.entries(one).map(([on, order]) => [at > 0 && ', ', h('code', {}, shown(on)), order === 'desc' && ' descending'])),
    type === 'special' ? badge('by id') : badge(String(type)), def.partial_filter_selector ? badge('filtered') : '', ddoc ? h('a', { href: to('db', database, 'doc', ddoc) }, shown(ddoc)) : '–',
    ddoc && h('div', { class: 'buttons' }, button('Delete', async () => {
      const gone = await confirm('Delete an index', h('p', {}, shown(name), ' goes. Queries that use it read all documents then.'), 'Delete',
        () => ask(path(database, '_index', '_design', ddoc.replace(/^_design\//, ''), 'json', name), { method: 'DELETE' }));
      if (gone) reload();
    }, { kind: 'small', 'aria-label': `Delete the index ${name}` })),
  ]);
  const info = async ([design, names, doc]) => {
    let group = {};
    if (names.length) {
      try {
        group = (await ask(path(database, '_design', design, '_info'), { signal })).view_index;
      } catch (error) {
        if (signal.aborted) throw error;
      }
    }
    return [
      h('a', { href: to('db', database, 'doc', `_design/${design}`) }, shown(design)),
      names.map((name, at) => [at > 0 && ', ', h('a', { href: `${to('db', database, 'query')}?${new URLSearchParams({ by: 'views', design, view: name })}` }, shown(name, 80))]),
      [...doc.keys()].filter((name) => ['filters', 'shows', 'lists', 'updates', 'rewrites', 'validate_doc_update', 'selector_indexes'].includes(name)).map((name) => [badge(name), ' ']),
      group.sizes ? bytes(group.sizes.active) : '–', group.updater_running ? badge('being built', 'warn') : names.length ? badge('follows', 'ok') : '',
    ];
  };
  const designRows = await Promise.all(designs.slice(0, 30).map(info));
  return [
    ...databaseHead(database, 'indexes', button('New index', () => create(database, reload), { kind: 'main' })),
    section('Indexes of fields', table('Indexes', [{ label: 'Name' }, { label: 'Fields', wide: true }, { label: 'Kind' }, { label: 'Of' }, { label: 'Design document' }, { label: 'Actions', actions: true }], rows)),
    section('Views and functions', designRows.length
      ? table('Design documents', [{ label: 'Design document' }, { label: 'Views', wide: true }, { label: 'Functions' }, { label: 'Size', number: true }, { label: 'State' }], designRows)
      : empty('No design documents with views', h('a', { class: 'button', href: `${to('db', database, 'new')}?id=_design/example` }, 'Write one')),
    designs.length > 30 && h('p', { class: 'quiet' }, `${count(designs.length - 30)} more are not shown.`),
    designRows.length > 0 && h('div', { class: 'buttons' }, button('Remove what no view needs any more', async () => {
      await ask(path(database, '_view_cleanup'), { method: 'POST' });
      toast.say('Old views are being removed');
    }, { kind: 'small' }))),
  ];
}
