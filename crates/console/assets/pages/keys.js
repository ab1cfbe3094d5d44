// The keys that a document has in the storage, decoded.
import { ApiError, ask, path } from '../api.js';
import { badge, button, bytes, empty, h, many, message, more, plain, replace, shown, table, words } from '../parts.js';

/** What lies under each kind of key. */
const WHAT = {
  info: 'winner, sequence, sizes', body: 'the latest body, from here on', leaf: 'an end of the tree', revision: 'a revision', revision_body: 'the body of an older revision or a conflict', ancestors: 'older ancestors',
  attachments: 'a list of attachments', by_seq: 'its place in changes', all_docs: 'its place in lists', unknown: 'nothing known',
};

/** A key's bytes, in groups that the eye can hold. */
const grouped = (hexadecimal) => (plain(hexadecimal, 20_000).match(/.{1,8}/g) ?? []).join(' ');

/** The keys of a document, page by page. */
export async function keysOf(database, id, signal) {
  const rows = [];
  let next;
  const view = table('Keys, in their order', [{ label: 'Key', wide: true }, { label: 'What lies there' }, { label: 'Key', number: true }, { label: 'Value', number: true }], []);
  const said = h('p', { class: 'quiet', role: 'status' });
  const further = h('div', {});
  const fetch = async () => {
    const page = await ask(path(database, '_raw_keys'), { query: { id, after: next }, signal });
    rows.push(...page.keys);
    next = page.next ?? undefined;
    view.show(rows.map((row) => [
      more(h('code', {}, shown(row.form, 500)), h('code', { class: 'quiet' }, grouped(row.key))), [badge(plain(row.what, 30)), ' ', h('span', { class: 'quiet' }, WHAT[row.what] ?? '')], bytes(row.key.length / 2), bytes(row.value_bytes),
    ]));
    said.textContent = `${many(rows.length, 'key')}, ${bytes(rows.reduce((all, row) => all + row.key.length / 2 + row.value_bytes, 0))}${next ? ', and there are more' : ''}`;
    replace(further, next && button('More keys', fetch));
  };
  try {
    await fetch();
  } catch (error) {
    if (error instanceof ApiError && error.status !== 401) return message('bad', plain(words(error), 400));
    throw error;
  }
  if (rows.length === 0) return empty('No keys', h('p', {}, 'Nothing is stored of a document of this id. Local documents are not shown here.'));
  return [said, view, further];
}

export const keysPart = ({ database, id, signal }) => keysOf(database, id, signal);
