// Replications: documents of `_replicator`, and what the server makes of them.
import { ApiError, ask, documentPath, write } from '../api.js';
import { badge, button, confirm, count, dialog, empty, every, field, form, h, head, input, more, plain, replace, shown, table, to, toast, when, wrong } from '../parts.js';

const LOOKS = { running: 'ok', completed: 'ok', pending: 'plain', crashing: 'warn', error: 'bad', failed: 'bad' };

/** An address without what is secret in it. */
function masked(address) {
  const text = typeof address === 'string' ? address : address?.url ?? JSON.stringify(address ?? '');
  return shown(String(text).replace(/\/\/[^@/]*@/, '//***@'), 120);
}

async function create(reload) {
  const source = field('Source', input({ placeholder: 'a database here, or https://host/database' }));
  const target = field('Target', input({ placeholder: 'a database here, or https://host/database' }));
  const id = field('Name', input({ placeholder: 'the server makes one' }));
  const box = (label, checked) => field(label, h('input', { type: 'checkbox', checked }));
  const [continuous, make] = [box('Goes on as changes come', true), box('Make the target if it is not there', false)];
  const done = await dialog('New replication', (close) => form([source, target, id, continuous, make], 'Begin', async () => {
    for (const one of [source, target]) if (!one.input.value) throw wrong(one, 'This is needed.');
    const chosen = id.input.value || (await ask('_uuids')).uuids[0];
    const body = { source: source.input.value, target: target.input.value, continuous: continuous.input.checked, create_target: make.input.checked };
    const put = () => write('_replicator', chosen, JSON.stringify(body));
    try {
      await put();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status === 409) throw wrong(id, 'There is a replication of this name already.');
      if (error.status !== 404) throw error;
      await ask('_replicator', { method: 'PUT' });
      await put();
    }
    close(true);
  }, { more: button('Cancel', () => close(false)) }));
  if (done) reload();
}

export default async function replications({ signal, reload }) {
  const columns = [{ label: 'Name' }, { label: 'State' }, { label: 'From' }, { label: 'To' }, { label: 'Written', number: true }, { label: 'Pending', number: true }, { label: 'Since' }, { label: 'Actions', actions: true }];
  const view = table('Replications', columns, []);
  const frame = h('div', {});
  const said = h('p', { class: 'quiet' });
  let before = '';
  const remove = async (doc) => {
    const gone = await confirm('End a replication', h('p', {}, shown(doc.doc_id), ' ends, and its document is deleted. What was copied stays.'), 'End it', async () => {
      const { _rev: rev } = await ask(documentPath(doc.database, doc.doc_id));
      await ask(documentPath(doc.database, doc.doc_id), { method: 'DELETE', query: { rev } });
    });
    if (gone) {
      toast.say('Ended ', shown(doc.doc_id, 60));
      reload();
    }
  };
  const refresh = async () => {
    const { docs, total_rows: total } = await ask('_scheduler/docs', { query: { limit: 100 }, signal });
    const text = JSON.stringify(docs);
    if (text === before) return;
    before = text;
    if (docs.length === 0) {
      replace(frame, empty('No replications', h('p', {}, 'A replication copies documents with their revisions from one database to another, once or as they change.')));
      return;
    }
    // Whoever is at a button stays there.
    if (frame.contains(document.activeElement) && document.activeElement.tagName === 'BUTTON' && view.parentElement === frame) return;
    view.show(docs.map((doc) => [
      h('a', { href: to('db', doc.database, 'doc', doc.doc_id) }, shown(doc.doc_id, 60)),
      [badge(doc.state ?? 'unknown', LOOKS[doc.state]), doc.info?.error && more('Why', h('p', {}, plain(doc.info.error, 400)))], masked(doc.source), masked(doc.target),
      count(doc.info?.docs_written ?? NaN), count(doc.info?.changes_pending ?? NaN), doc.start_time ? when(Date.parse(doc.start_time)) : '–',
      h('div', { class: 'buttons' }, button('End', () => remove(doc), { kind: 'small', 'aria-label': `End ${doc.doc_id}` })),
    ]));
    if (view.parentElement !== frame) replace(frame, view);
    said.textContent = total > docs.length ? `${count(total - docs.length)} more are not shown.` : '';
  };
  await refresh();
  every(3000, signal, refresh);
  return [head([], 'Replications', button('New replication', () => create(reload), { kind: 'main' })), frame, said];
}
