// Who may do what in a database, and what keeps it in order.
import { ask, askExactly, path } from '../api.js';
import { JsonEditor } from '../editor.js';
import { print } from '../json.js';
import { button, confirm, field, form, h, more, section, toast } from '../parts.js';
import { databaseHead } from './database.js';

const KINDS = [['admins', 'Administrators', 'They set the database up: design documents, indexes, who is a member.'], ['members', 'Members', 'They read and write documents. Without any member everyone is one.']];

export default async function access({ database, session, signal, reload, leave }) {
  const security = await askExactly(path(database, '_security'), { signal });
  const lists = KINDS.flatMap(([kind]) => ['names', 'roles'].map((what) => [kind, what, security.get(kind)?.get?.(what)]));
  // One a line: what does not fit that is edited as JSON alone.
  const isPlain = lists.every(([, , list]) => list === undefined || (Array.isArray(list) && list.every((one) => typeof one === 'string' && !/[\r\n]/.test(one))));
  const save = async (value) => {
    await ask(path(database, '_security'), { method: 'PUT', body: print(value, 0) });
    toast.say('Saved who may do what');
    reload();
  };
  const areas = new Map();
  const byLists = () => form(h('div', { class: 'two' }, KINDS.map(([kind, label, about]) => h('fieldset', { class: 'panel' }, h('legend', { class: 'only-read' }, label),
    h('h3', { 'aria-hidden': 'true' }, label), h('p', { class: 'hint' }, about), ['names', 'roles'].map((what) => {
      const area = h('textarea', { rows: '4', spellcheck: 'false', autocapitalize: 'off', value: (security.get(kind)?.get?.(what) ?? []).join('\n') });
      areas.set(`${kind}.${what}`, area);
      return field(what === 'names' ? 'Names, one a line' : 'Roles, one a line', area);
    })))), 'Save', async () => {
    const next = new Map(security);
    for (const [kind] of KINDS) {
      const part = new Map(next.get(kind) instanceof Map ? next.get(kind) : []);
      for (const what of ['names', 'roles']) part.set(what, areas.get(`${kind}.${what}`).value.split('\n').map((line) => line.trim()).filter(Boolean));
      next.set(kind, part);
    }
    await save(next);
  });
  const editor = new JsonEditor({ label: 'Security object', value: print(security), wants: 'object', rows: 12, name: 'security' });
  const asJson = form(editor, 'Save', () => save(editor.check()));
  const compact = button('Compact', () => confirm('Compact', h('p', {}, 'The bodies of revisions that newer ones have followed are taken away. Conflicts stay.'), 'Compact', async () => {
    await ask(path(database, '_compact'), { method: 'POST' });
    toast.say('Compaction has begun');
  }));
  const remove = session.isAdmin && button('Delete this database', async () => {
    const gone = await confirm('Delete a database', h('p', {}, 'It goes with all its documents. Nobody can bring it back.'), 'Delete', () => ask(path(database), { method: 'DELETE' }), { typed: database });
    if (gone) leave('#/');
  }, { kind: 'danger' });
  return [...databaseHead(database, 'access'), section('Who may do what', isPlain ? byLists() : asJson), isPlain && more('As JSON', h('div', { class: 'panel' }, asJson)),
    section('Upkeep', h('div', { class: 'buttons' }, compact, remove))];
}
