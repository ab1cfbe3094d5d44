// The revisions of a document: the tree of them, and conflicts seen side by side and resolved.
import { ApiError, askExactly, documentPath, path, write, writeAll } from '../api.js';
import { compare } from '../compare.js';
import { JsonEditor } from '../editor.js';
import { print, toPlain } from '../json.js';
import { badge, button, confirm, count, empty, field, h, many, message, plain, replace, revision, section, select, shown, table, tell, to, toast } from '../parts.js';
import { RevisionTree } from '../tree.js';

/** Ends of the tree that are asked for at once: each comes with its body. */
const ENDS = 20;

/** Ends with their ancestors: `{ rev, path, isDeleted, body }`. */
async function ends(database, id, revs, signal) {
  const docs = revs.map((rev) => (rev === undefined ? { id } : { id, rev }));
  const answer = await askExactly(path(database, '_bulk_get'), { method: 'POST', query: { revs: 'true' }, body: { docs }, signal });
  return answer.get('results').flatMap((result) => result.get('docs')).map((row) => row.get('ok')).filter(Boolean).map((body) => {
    const { start, ids } = toPlain(body.get('_revisions')) ?? { start: 0, ids: [] };
    body.delete('_revisions');
    return { rev: body.get('_rev'), path: ids.map((hash, at) => `${start - at}-${hash}`), isDeleted: body.get('_deleted') === true, body };
  });
}

export async function revisionsPart({ database, id, found, signal }) {
  let leaves;
  let left = 0;
  if (found.missing) {
    // All ends are tombstones, and nothing says which ones there are but the ends themselves.
    const rows = await askExactly(documentPath(database, id), { query: { open_revs: 'all', revs: 'true' }, signal });
    leaves = rows.map((row) => row.get('ok')).filter(Boolean).slice(0, ENDS).map((body) => {
      const { start, ids } = toPlain(body.get('_revisions'));
      return { rev: body.get('_rev'), path: ids.map((hash, at) => `${start - at}-${hash}`), isDeleted: true, body };
    });
    left = rows.length - leaves.length;
    leaves.sort((a, b) => Number(b.rev.split('-')[0]) - Number(a.rev.split('-')[0]) || (a.rev < b.rev ? 1 : -1));
  } else {
    const all = [found.rev, ...found.conflicts, ...found.deletedConflicts];
    leaves = await ends(database, id, all.slice(0, ENDS), signal);
    left = all.length - Math.min(all.length, ENDS);
  }
  if (leaves[0]) leaves[0].isWinner = !found.missing;
  const tree = new RevisionTree().show(leaves);
  const kept = new Map(found.history?.map(({ rev, status }) => [rev, status]) ?? []);
  const rows = [];
  const met = new Set();
  for (const leaf of leaves) {
    for (const rev of leaf.path) {
      if (met.has(rev)) break;
      met.add(rev);
      if (rows.length >= 300) break;
      const isLeaf = rev === leaf.rev;
      const status = isLeaf ? (leaf.isDeleted ? 'deleted' : 'available') : kept.get(rev);
      rows.push([revision(rev), [isLeaf && leaf.isWinner && badge('wins', 'ok'), isLeaf && !leaf.isWinner && !leaf.isDeleted && badge('in conflict', 'warn'), isLeaf && leaf.isDeleted && badge('deleted'),
        !isLeaf && badge('older')], status === 'missing' ? 'not kept' : status ?? 'unknown',
      status !== 'missing' && h('a', { href: `${to('db', database, 'doc', id)}?rev=${encodeURIComponent(rev)}` }, 'Show', h('span', { class: 'only-read' }, ` revision ${rev}`))]);
    }
  }
  return [
    section('Tree', tree, left > 0 && message('warn', `${count(left)} more ends are not shown.`)),
    section('History', table('Revisions, the newest first', [{ label: 'Revision' }, { label: 'What it is' }, { label: 'Body' }, { label: 'Actions', actions: true }], rows)),
  ];
}

/** All other ends are deleted, so that the one that is kept wins. */
const deleteOthers = (database, id, revs) => writeAll(database, revs.map((rev) => ({ _id: id, _rev: rev, _deleted: true })));

export async function conflictsPart({ database, id, found, signal, leave }) {
  const all = [found.rev, ...found.conflicts];
  if (all.length === 1) {
    return empty('No conflicts', h('p', {}, 'Two replicas that change one document without knowing of each other leave two revisions. One wins, the same everywhere; the others are kept until somebody decides.'));
  }
  const leaves = await ends(database, id, all.slice(0, ENDS), signal);
  const [winner, ...others] = leaves;
  if (!winner || others.length === 0) return message('warn', 'The revisions have changed meanwhile: open the document again.');
  const view = h('div', { class: 'two even' });
  const said = h('p', { class: 'quiet', role: 'status' });
  const merging = h('div', {});
  const body = (leaf) => {
    const copy = new Map(leaf.body);
    for (const name of ['_id', '_rev']) copy.delete(name);
    return print(copy);
  };
  const keep = (leaf, label) => button(label, async () => {
    const gone = all.filter((rev) => rev !== leaf.rev);
    const done = await confirm('Keep this revision', [h('p', {}, 'Keeps ', revision(leaf.rev), ' and deletes ', gone.length === 1 ? 'the other one' : `the ${gone.length} others`, ', here and by replication everywhere.')],
      'Keep it', async () => {
        const refused = await deleteOthers(database, id, gone);
        if (refused.length) throw new Error(`${refused.length} were not deleted: ${refused[0].reason ?? refused[0].error}`);
      });
    if (!done) return;
    toast.say('Resolved ', shown(id, 60));
    leave(to('db', database, 'doc', id));
  });
  const show = (other) => {
    const both = compare(body(winner), body(other));
    said.textContent = both.differing ? `${many(both.differing, 'line differs', 'lines differ')}; marked below.` : 'Their bodies are the same.';
    const side = (leaf, lines, label) => h('div', { class: 'panel' }, h('div', { class: 'row spread middle' }, h('h2', {}, label, ' ', revision(leaf.rev)), keep(leaf, 'Keep this one')),
      h('div', { class: 'text', tabindex: '0', role: 'region', 'aria-label': label }, lines));
    replace(view, side(winner, both.left, 'Wins now'), side(other, both.right, 'In conflict'));
    replace(merging, button('Merge by hand…', () => {
      const editor = new JsonEditor({ label: 'What is to remain', value: body(winner), wants: 'object', name: id });
      const fault = h('div', { role: 'alert' });
      const merge = button('Save and delete all others', async () => {
        replace(fault);
        const merged = editor.check();
        merged.set('_id', id);
        merged.set('_rev', winner.rev);
        await write(database, id, print(merged, 0));
        const refused = await deleteOthers(database, id, all.slice(1));
        if (refused.length) throw new ApiError(409, 'conflict', `It is saved; ${refused.length} others were not deleted.`);
        toast.say('Resolved ', shown(id, 60));
        leave(to('db', database, 'doc', id));
      }, { kind: 'main', fail: (error) => tell(fault, error) });
      replace(merging, h('div', { class: 'panel' }, editor, fault, h('div', { class: 'buttons' }, merge, button('Cancel', () => show(other)))));
      editor.input.focus();
    }));
  };
  const chosen = field('Compare the winner with', select(others.map((leaf, at) => [String(at), plain(leaf.rev, 60)]), '0', { onchange: () => show(others[Number(chosen.input.value)]) }));
  show(others[0]);
  return [h('div', { class: 'row' }, others.length > 1 && chosen, said), all.length > ENDS && message('warn', `${count(all.length - ENDS)} more are in conflict; keeping one deletes them too.`), view, merging];
}
