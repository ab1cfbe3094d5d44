// One document: its text, its revisions, conflicts and attachments.
import { ApiError, ask, askExactly, documentPath, hasPath, path, write } from '../api.js';
import { JsonEditor, reader } from '../editor.js';
import { print, toPlain } from '../json.js';
import { badge, button, confirm, count, dialog, empty, field, form, h, input, message, replace, revision, shown, tabs, tell, to, toast, trouble, wrong } from '../parts.js';
import { headIn } from './database.js';
import { attachmentsPart } from './attachments.js';
import { conflictsPart, revisionsPart } from './revisions.js';
import { keysPart } from './keys.js';

/** What the server adds for who asks, and what is no part of the document. */
const ADDED = ['_revs_info', '_conflicts', '_deleted_conflicts', '_local_seq', '_revisions'];

const ASKED = { revs_info: 'true', conflicts: 'true', deleted_conflicts: 'true', local_seq: 'true' };

/** A document as it is now, or that it is not there: `{ body, rev, conflicts, deletedConflicts, history, sequence }`. */
export async function load(database, id, signal) {
  let document;
  if (hasPath(id)) {
    try {
      document = await askExactly(documentPath(database, id), { query: id.startsWith('_local/') ? {} : ASKED, signal });
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 404) throw error;
      return { missing: true, isDeleted: error.reason === 'deleted', error };
    }
  } else {
    // A path that a browser would take for another one: asked for in a body.
    const answer = await askExactly(path(database, '_bulk_get'), { method: 'POST', body: { docs: [{ id }] }, query: { revs: 'true' }, signal });
    document = answer.get('results')[0].get('docs')[0].get('ok');
    if (!document) return { missing: true };
    if (document.get('_deleted') === true) return { missing: true, isDeleted: true };
  }
  const added = Object.fromEntries(ADDED.map((name) => [name, toPlain(document.get(name))]));
  for (const name of ADDED) document.delete(name);
  return {
    body: document, rev: document.get('_rev'), conflicts: added._conflicts ?? [], deletedConflicts: added._deleted_conflicts ?? [],
    history: added._revs_info ?? [], sequence: added._local_seq,
  };
}

const sentence = (text) => h('p', {}, text);

/** What to do where somebody else has written meanwhile: to see both, and to choose. */
async function meanwhile(database, id, editor, saved) {
  const { compare } = await import('../compare.js');
  const theirs = await load(database, id);
  await dialog('Somebody has written this document meanwhile', (close) => {
    if (theirs.missing) {
      return [sentence('It has been deleted. Your text is still in the editor: without its _rev it makes the document anew.'), h('div', { class: 'buttons' }, button('Close', () => close()))];
    }
    const both = compare(print(theirs.body), editor.value);
    return [
      h('div', { class: 'two even' }, h('div', {}, h('h3', {}, 'As it is now'), h('div', { class: 'text', tabindex: '0', role: 'region', 'aria-label': 'As it is now' }, both.left)),
        h('div', {}, h('h3', {}, 'Yours'), h('div', { class: 'text', tabindex: '0', role: 'region', 'aria-label': 'Yours' }, both.right))),
      h('div', { class: 'buttons' },
        button('Write yours over it', async () => {
          const mine = editor.check();
          mine.set('_rev', theirs.rev);
          await write(database, id, print(mine, 0));
          close();
          saved();
        }, { kind: 'danger' }),
        button('Keep editing from the newest revision', () => {
          const mine = editor.check();
          mine.set('_rev', theirs.rev);
          editor.value = print(mine);
          close();
        }),
        button('Cancel', () => close())),
    ];
  });
}

/** Texts that were left unsaved, by database and id, as long as this page is open: the newest few. */
const drafts = new Map();
const DRAFTS = 10;

function editing({ database, id, found, reload, leave }) {
  const editor = new JsonEditor({ label: 'Document', value: print(found.body), wants: 'object', name: id, hint: 'Ctrl+S saves. Numbers stay as you write them.' });
  const fault = h('div', { role: 'alert', class: 'form-fault' });
  let isEdited = false;
  editor.addEventListener('edited', () => { isEdited = true; });
  const saved = () => {
    isEdited = false;
    toast.say('Saved ', shown(id, 60));
    reload();
  };
  const save = button('Save', async () => {
    replace(fault);
    const body = editor.check();
    if (body.get('_id') !== undefined && body.get('_id') !== id) throw new Error('The _id cannot be changed: save a copy under another id instead.');
    try {
      await write(database, id, print(body, 0));
    } catch (error) {
      if (error instanceof ApiError && error.status === 409) return meanwhile(database, id, editor, saved);
      throw error;
    }
    return saved();
  }, { kind: 'main', fail: (error) => tell(fault, error) });
  editor.addEventListener('wanted', () => save.click());
  const warn = (event) => { if (isEdited) event.preventDefault(); };
  addEventListener('beforeunload', warn);
  const key = JSON.stringify([database, id]);
  found.signal.addEventListener('abort', () => {
    removeEventListener('beforeunload', warn);
    if (!isEdited) return;
    drafts.delete(key);
    drafts.set(key, editor.value);
    if (drafts.size > DRAFTS) drafts.delete(drafts.keys().next().value);
  });
  const draft = drafts.get(key);
  drafts.delete(key);
  const left = draft !== undefined && draft !== editor.value && message('warn', 'You left this document without saving. ', button('Take up that text', () => {
    editor.value = draft;
    isEdited = true;
    left.remove();
    editor.input.focus();
  }, { kind: 'small' }));
  const remove = button('Delete', async () => {
    const gone = await confirm('Delete a document', [sentence(['Deletes ', shown(id), '. Its revisions remain until the database is compacted, and a deletion is replicated as any change is.']),
      found.conflicts.length > 0 && sentence(`It has ${found.conflicts.length} conflicting revisions: the one that wins among them takes its place.`)],
    'Delete', () => (hasPath(id) ? ask(documentPath(database, id), { method: 'DELETE', query: { rev: found.rev } })
      : write(database, id, JSON.stringify({ _id: id, _rev: found.rev, _deleted: true }))));
    if (gone) {
      toast.say('Deleted ', shown(id, 60));
      leave(to('db', database));
    }
  }, { kind: 'danger' });
  const copy = button('Save a copy…', () => dialog('Save a copy', (close) => {
    const other = field('Id of the copy', input({ value: id }));
    return form(other, 'Save', async () => {
      if (!other.input.value || other.input.value === id) throw wrong(other, 'Another id is needed.');
      const body = editor.check();
      body.set('_id', other.input.value);
      for (const name of ['_rev', '_attachments']) body.delete(name);
      await write(database, other.input.value, print(body, 0));
      close();
      leave(to('db', database, 'doc', other.input.value));
    }, { more: button('Cancel', () => close()) });
  }));
  return [left, editor, fault, h('div', { class: 'buttons' }, save, copy, remove)];
}

/** Where there is no such document: what there was, and a new one. */
async function missing({ database, id, found, signal }) {
  const create = h('a', { class: 'button main', href: `${to('db', database, 'new')}?id=${encodeURIComponent(id)}` }, 'Write it');
  if (!found.isDeleted) {
    return [headIn(database, shown(id)), empty('There is no such document', h('p', {}, plainReason(found.error)), create)];
  }
  return [headIn(database, [shown(id), ' ', badge('deleted', 'warn')], create), await revisionsPart({ database, id, found, signal })];
}
const plainReason = (error) => (error?.reason && error.reason !== 'missing' ? error.reason : 'Nothing of this id was found in this database.');

function creating({ database, params, leave }) {
  const given = params.get('id') ?? '';
  const id = field('Id', input({ name: 'id', value: given }), 'Leave it empty, and the server makes one.');
  const editor = new JsonEditor({ label: 'Document', value: '{\n  \n}', wants: 'object', rows: 14 });
  const view = form([id, editor], 'Save', async () => {
    const body = editor.check();
    const own = body.get('_id');
    if (own !== undefined && id.input.value && own !== id.input.value) throw wrong(id, 'The text has another _id.');
    const chosen = id.input.value || own || (await ask('_uuids')).uuids[0];
    body.set('_id', chosen);
    try {
      await write(database, chosen, print(body, 0));
    } catch (error) {
      if (error instanceof ApiError && error.status === 409) throw wrong(id, 'There is a document of this id already.');
      throw error;
    }
    toast.say('Saved ', shown(chosen, 60));
    leave(to('db', database, 'doc', chosen));
  });
  editor.addEventListener('wanted', () => view.requestSubmit());
  return [headIn(database, 'New document'), h('div', { class: 'panel' }, view)];
}

/** A revision as it was. */
async function old({ database, id, rev, signal }) {
  const back = h('a', { class: 'button', href: to('db', database, 'doc', id) }, 'The newest revision');
  const title = headIn(database, shown(id), back);
  try {
    const body = await askExactly(documentPath(database, id), { query: { rev }, signal });
    return [title, message('ok', 'This is revision ', revision(rev), ', as it was.'), reader(print(body), `${id}-${rev}`)];
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return [title, empty('This revision is not kept any more', h('p', {}, 'Compaction takes the bodies of revisions that newer ones have followed.'))];
    return [title, trouble(error)];
  }
}

export default async function page(context) {
  const { database, id, isNew, params, signal, session } = context;
  if (isNew) return creating(context);
  if (id === undefined || id === '') throw new ApiError(404, 'not_found', 'No id was given.');
  if (params.has('rev')) return old({ database, id, rev: params.get('rev'), signal });
  const found = await load(database, id, signal);
  found.signal = signal;
  const of = { ...context, found };
  if (found.missing) return missing(of);
  const attachments = found.body.get('_attachments');
  const number = attachments instanceof Map ? attachments.size : 0;
  const here = (tab) => to('db', database, 'doc', id) + (tab ? `?tab=${tab}` : '');
  const isLocal = id.startsWith('_local/');
  const parts = isLocal ? [['Text', '']] : [['Text', ''], [found.conflicts.length ? `Conflicts (${count(found.conflicts.length)})` : 'Conflicts', 'conflicts'], ['Revisions', 'revisions'],
    [number ? `Attachments (${count(number)})` : 'Attachments', 'attachments'], session.isAdmin && ['Keys', 'keys']].filter(Boolean);
  const tab = parts.some(([, name]) => name === params.get('tab')) ? params.get('tab') : '';
  const content = { '': editing, conflicts: conflictsPart, revisions: revisionsPart, attachments: attachmentsPart, keys: keysPart }[tab];
  return [
    headIn(database, [shown(id), found.conflicts.length > 0 && [' ', badge(`${count(found.conflicts.length)} in conflict`, 'warn')]], revision(found.rev ?? '')),
    tabs('Parts of the document', parts.map(([label, name]) => [label, here(name), name === tab])),
    await content(of),
  ];
}

