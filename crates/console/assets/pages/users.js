// Users, documents of `_users`, and the server's administrators.
import { ApiError, ask, askExactly, documentPath, path, write } from '../api.js';
import { print, toPlain } from '../json.js';
import { badge, button, confirm, dialog, empty, field, form, h, head, input, section, shown, table, to, toast, wrong } from '../parts.js';

const PREFIX = 'org.couchdb.user:';
const PAGE = 50;

const list = (text) => text.split(',').map((role) => role.trim()).filter(Boolean);
const ROLES = 'With commas between. Databases name roles as their members and administrators.';

async function create(reload) {
  const name = field('Name', input({ name: 'user' }));
  const password = field('Password', input({ type: 'password', autocomplete: 'new-password' }));
  const roles = field('Roles', input({}), ROLES);
  const made = await dialog('New user', (close) => form([name, password, roles], 'Create', async () => {
    if (!name.input.value) throw wrong(name, 'A name is needed.');
    if (!password.input.value) throw wrong(password, 'A password is needed.');
    const body = { name: name.input.value, password: password.input.value, roles: list(roles.input.value), type: 'user' };
    try {
      await write('_users', PREFIX + name.input.value, JSON.stringify(body));
    } catch (error) {
      if (error instanceof ApiError && error.status === 409) throw wrong(name, 'There is a user of this name already.');
      throw error;
    }
    close(name.input.value);
  }, { more: button('Cancel', () => close()) }));
  if (made === undefined) return;
  toast.say('Created ', shown(made, 60));
  reload();
}

/** Changes a user's document as it is now. */
async function change(id, with_) {
  const document = await askExactly(documentPath('_users', id));
  with_(document);
  await write('_users', id, print(document, 0));
}

const edit = (id, name, now, reload) => dialog('Edit a user', (close) => {
  const roles = field('Roles', input({ value: now.join(', ') }), ROLES);
  const password = field('New password', input({ type: 'password', autocomplete: 'new-password' }), 'Empty: it stays as it is. Sessions of the user end with a new one.');
  return [h('p', {}, shown(name)), form([roles, password], 'Save', async () => {
    await change(id, (document) => {
      document.set('roles', list(roles.input.value));
      if (password.input.value) document.set('password', password.input.value);
    });
    close();
    toast.say('Saved ', shown(name, 60));
    reload();
  }, { more: button('Cancel', () => close()) })];
});

export default async function users({ params, session, signal, reload }) {
  const from = params.get('from');
  const admins = session.isAdmin ? ask('_node/_local/_config/admins', { signal }).then(Object.keys, () => []) : Promise.resolve([]);
  let answer;
  try {
    answer = await askExactly(path('_users', '_all_docs'), { query: { include_docs: 'true', limit: PAGE + 1, startkey: JSON.stringify(from ?? PREFIX), endkey: JSON.stringify('org.couchdb.user;') }, signal });
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error;
    return [head([], 'Users'), empty('There is no _users database yet', h('p', {}, 'Users are its documents. As long as there is none, administrators alone can sign in.'),
      session.isAdmin && button('Create _users', async () => {
        await ask('_users', { method: 'PUT' });
        reload();
      }, { kind: 'main' }))];
  }
  const rows = answer.get('rows').map((row) => ({ id: row.get('id'), doc: row.get('doc') }));
  const next = rows[PAGE]?.id;
  const view = rows.slice(0, PAGE).map(({ id, doc }) => {
    const name = id.slice(PREFIX.length);
    const roles = toPlain(doc?.get('roles')) ?? [];
    return [
      h('a', { href: to('db', '_users', 'doc', id) }, shown(name)), Array.isArray(roles) ? roles.map((role) => [badge(shown(String(role), 60)), ' ']) : '–',
      h('div', { class: 'buttons' }, button('Edit', () => edit(id, name, Array.isArray(roles) ? roles.map(String) : [], reload), { kind: 'small', 'aria-label': `Edit ${name}` }),
        button('Delete', async () => {
          const gone = await confirm('Delete a user', h('p', {}, shown(name), ' cannot sign in from then on.'), 'Delete',
            () => ask(documentPath('_users', id), { method: 'DELETE', query: { rev: doc.get('_rev') } }));
          if (gone) reload();
        }, { kind: 'small', 'aria-label': `Delete ${name}` })),
    ];
  });
  const names = await admins;
  return [
    head([], 'Users', button('New user', () => create(reload), { kind: 'main' })),
    view.length ? table('Users', [{ label: 'Name', wide: true }, { label: 'Roles' }, { label: 'Actions', actions: true }], view)
      : empty('No users yet', h('p', {}, 'A user signs in with a name and a password, and has roles that databases know.')),
    (next !== undefined || from !== null) && h('nav', { class: 'buttons', 'aria-label': 'Pages' }, from !== null && h('a', { class: 'button', href: '#/users' }, 'First page'),
      next !== undefined && h('a', { class: 'button', href: `#/users?from=${encodeURIComponent(next)}` }, 'Next page')),
    names.length > 0 && section('Administrators of the server', h('p', { class: 'quiet' }, 'They stand in the configuration: the file, the environment, or stored by flatbed admin.'),
      h('p', {}, names.map((name) => [badge(shown(name, 60)), ' ']))),
  ];
}
