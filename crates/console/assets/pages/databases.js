// All databases: their sizes, a new one, one that goes.
import { ApiError, ask, path } from '../api.js';
import { badge, button, bytes, confirm, count, dialog, empty, field, form, h, head, input, message, section, shown, table, to, toast, wrong } from '../parts.js';

/** Databases of a page. Their figures come in one request. */
const PAGE = 50;

async function create(reload) {
  const name = field('Name', input({ name: 'database', required: true }), 'Lower-case letters, digits and _ $ ( ) + - /, beginning with a letter.');
  const partitioned = field('Partitioned: ids are partition:id', h('input', { type: 'checkbox' }));
  const shards = field('Shards', input({ type: 'number', min: '2', max: '64', placeholder: 'none' }), 'For what many servers write to at once, 2 to 64. It stays so.');
  const made = await dialog('New database', (close) => form([name, partitioned, shards], 'Create', async () => {
    if (!name.input.value) throw wrong(name, 'A name is needed.');
    const query = { partitioned: partitioned.input.checked ? 'true' : undefined, shards: shards.input.value || undefined };
    try {
      await ask(path(name.input.value), { method: 'PUT', query });
    } catch (error) {
      if (error instanceof ApiError && (error.status === 400 || error.status === 412)) throw wrong(name, error.status === 412 ? 'There is one of this name already.' : error.reason);
      throw error;
    }
    close(name.input.value);
  }, { more: button('Cancel', () => close()) }));
  if (made === undefined) return;
  toast.say('Created ', shown(made, 60));
  reload();
}

/** One by its name, for who may not list them. */
export function byName() {
  const name = field('Open a database by its name', input({ name: 'database' }));
  return form(name, 'Open', () => {
    if (!name.input.value) throw wrong(name, 'A name is needed.');
    location.hash = to('db', name.input.value);
  });
}

export default async function databases({ params, session, signal, reload }) {
  const from = params.get('from') ?? undefined;
  const newOne = session.isAdmin && button('New database', () => create(reload), { kind: 'main' });
  let names;
  try {
    names = await ask('_all_dbs', { query: { limit: PAGE + 1, startkey: from === undefined ? undefined : JSON.stringify(from) }, signal });
  } catch (error) {
    if (!(error instanceof ApiError) || ![401, 403].includes(error.status) || (error.status === 401 && session.name === null)) throw error;
    return [head([], 'Databases'), empty('Your account may not list databases', h('p', {}, 'You can still open those that you are a member of.'), byName())];
  }
  const rest = names[PAGE];
  const page = names.slice(0, PAGE);
  // A server may be set to tell of fewer at once: then their names are all there is.
  const infos = page.length ? await ask('_dbs_info', { method: 'POST', body: { keys: page }, signal }).catch((error) => {
    if (!(error instanceof ApiError) || error.status !== 400) throw error;
    return page.map((key) => ({ key, info: null }));
  }) : [];
  const remove = (name) => confirm('Delete a database', [h('p', {}, shown(name), ' goes with all its documents, their history and attachments. Nobody can bring it back.')],
    'Delete', () => ask(path(name), { method: 'DELETE' }), { typed: name }).then((gone) => {
    if (!gone) return;
    toast.say('Deleted ', shown(name, 60));
    reload();
  });
  const rows = infos.map(({ key, info }) => [
    h('a', { href: to('db', key) }, shown(key)),
    info ? count(info.doc_count) : '–', info ? count(info.doc_del_count) : '–', info ? bytes(info.sizes.active) : '–', info ? bytes(info.sizes.external) : '–',
    info ? [info.props?.partitioned && badge('partitioned'), ' ', info.props?.shards && badge(`${info.props.shards} shards`)] : info === undefined && badge('not yours to see', 'warn'),
    session.isAdmin && h('div', { class: 'buttons' }, button('Delete', () => remove(key), { kind: 'small', 'aria-label': `Delete ${key}` })),
  ]);
  const columns = [{ label: 'Name', wide: true }, { label: 'Documents', number: true }, { label: 'Deleted', number: true }, { label: 'Stored', number: true },
    { label: 'As JSON', number: true }, { label: 'Kind' }, { label: 'Actions', actions: true }];
  return [
    head([], 'Databases', newOne),
    session.isOpen && message('warn', 'This server has no administrator: whoever can connect may do everything. It answers to this machine alone.'),
    page.length ? table('Databases', columns, rows)
      : empty('No database yet', h('p', {}, 'A database holds documents: objects of JSON, each with an id and its revisions.'), newOne && button('New database', () => create(reload))),
    (rest !== undefined || from !== undefined) && h('nav', { class: 'buttons', 'aria-label': 'Pages' },
      from !== undefined && h('a', { class: 'button', href: '#/' }, 'First page'),
      rest !== undefined && h('a', { class: 'button', href: `#/?from=${encodeURIComponent(rest)}` }, 'Next page')),
    names.length > PAGE || from !== undefined ? section('Go to', h('div', { class: 'panel' }, byName())) : null,
  ];
}
