// One entry of the queue: why it failed, its document, another try.
import { ApiError, ask, askExactly, path } from '../api.js';
import { JsonEditor } from '../editor.js';
import { parse, print, toPlain } from '../json.js';
import { badge, button, confirm, count, empty, facts, h, head, message, plain, replace, revision, section, shown, tell, to, toast, when } from '../parts.js';
import { API } from './jobs.js';
import { LOOKS } from './queue.js';

export default async function page({ id, signal, leave }) {
  const at = (...rest) => `${API}/${path('dlq', id, ...rest)}`;
  const trail = [['Dead letters', '#/queue']];
  let entry;
  try {
    entry = toPlain(await askExactly(at(), { signal }));
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error;
    return [head(trail, 'An entry'), empty('This entry is not in the queue any more', h('p', {}, 'It was delivered, or deleted.'), h('a', { class: 'button', href: '#/queue' }, 'All entries'))];
  }
  const said = h('div', { role: 'status' });
  const fault = h('div', { role: 'alert' });
  let text = entry.doc_data ?? '';
  try {
    text = print(parse(text));
  } catch { /* shown as it is */ }
  const editor = new JsonEditor({ label: 'What is sent', value: text, wants: 'object', name: 'entry', hint: 'Changes go to the target alone: the document in its database stays as it is.' });
  let isEdited = false;
  editor.addEventListener('edited', () => { isEdited = true; });
  const fail = (error) => {
    replace(said);
    tell(fault, error);
  };
  const save = async () => {
    // As text: it is JSON within JSON, so that no number passes through a double on its way.
    await ask(at(), { method: 'PUT', body: { doc_data: print(editor.check(), 0) } });
    isEdited = false;
  };
  const retry = async () => {
    replace(fault);
    replace(said, message('', 'Sending…'));
    const answer = await ask(at('retry'), { method: 'POST', wait: 120_000 });
    if (answer.ok && answer.state === 'delivered') {
      toast.say('Delivered ', shown(entry.doc_id_original, 60));
      replace(said, message('ok', 'The target took it. The entry has left the queue. ', h('a', { href: '#/queue' }, 'All entries')));
      replace(actions);
      return;
    }
    if (answer.ok) return replace(said, message('warn', 'Nobody has come to it yet: the job is paused, has halted, or runs nowhere. It is noted.'));
    if (answer.state === 'overtaken') return replace(said, message('warn', 'A newer revision of the document has overtaken it, which the job brings: it was not sent.'));
    return replace(said, message('bad', 'The target refused it again: ', plain(answer.reason ?? '', 80), answer.error ? ` – ${plain(answer.error, 300)}` : ''));
  };
  const actions = h('div', { class: 'buttons' },
    button('Save and retry', async () => {
      replace(fault);
      if (isEdited) await save();
      await retry();
    }, { kind: 'main', fail }),
    button('Save', async () => {
      replace(fault);
      await save();
      toast.say('Saved');
    }, { fail }),
    button('Delete', async () => {
      const gone = await confirm('Delete an entry', h('p', {}, 'It is never delivered, unless the document changes.'), 'Delete', () => ask(at(), { method: 'DELETE' }));
      if (gone) leave('#/queue');
    }, { kind: 'danger' }));
  editor.addEventListener('wanted', () => actions.querySelector('button')?.click());
  return [
    head(trail, shown(entry.doc_id_original, 200), badge(entry.state, LOOKS[entry.state])),
    section('Why', h('div', { class: 'panel' }, message('bad', h('strong', {}, plain(entry.reason, 120)), entry.error ? ` – ${plain(entry.error, 1000)}` : ''),
      facts([['Job', h('a', { href: to('jobs', entry.job) }, shown(entry.job))], entry.status && ['Status', String(entry.status)], ['Method', String(entry.method ?? '–')], ['Target', shown(entry.target_url ?? '–', 200)],
        ['Class', String(entry.class ?? '–')], ['Revision', revision(entry.rev ?? '')], ['Sequence', h('code', {}, shown(String(entry.seq ?? '–').split('-')[0], 40))], ['Tries', count(entry.attempts ?? 0)], ['Retries', count(entry.replay_attempts ?? 0)],
        ['First failed', when(entry.time * 1000)], ['Last failed', when((entry.last_time ?? entry.time) * 1000)], entry.expires_at && ['Goes, once overtaken', when(entry.expires_at * 1000)], ['Edited', entry.edited ? 'yes' : 'no']]))),
    section('Document', entry.doc_data === undefined ? message('warn', 'The document was too long to be kept with the entry; a retry asks the source for it.') : editor, said, fault, actions),
  ];
}
