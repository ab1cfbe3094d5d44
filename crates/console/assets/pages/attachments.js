// Files of a document: up, down, away.
import { ApiError, address, ask, documentPath, hasPath } from '../api.js';
import { toPlain } from '../json.js';
import { button, bytes, confirm, empty, h, many, message, replace, shown, table, toast, words } from '../parts.js';

/** What a browser draws without running anything of it. */
const PICTURES = new Set(['image/png', 'image/jpeg', 'image/gif', 'image/webp', 'image/avif']);
const PICTURE_MAX = 20_000_000;

/** Sends a file and says how far it is: `fetch` does not. */
function upload(to, query, file, tell, signal) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open('PUT', address(to, query));
    request.setRequestHeader('content-type', file.type || 'application/octet-stream');
    request.setRequestHeader('accept', 'application/json');
    request.setRequestHeader('x-couchdb-www-authenticate', 'Cookie');
    request.upload.onprogress = (event) => tell(event.loaded, event.total);
    request.onerror = () => reject(new ApiError(0, 'unreachable', 'The connection broke off.'));
    request.onabort = () => reject(new DOMException('left', 'AbortError'));
    request.onload = () => {
      let answer = {};
      try {
        answer = JSON.parse(request.responseText);
      } catch { /* the status says it */ }
      if (request.status < 300) resolve(answer);
      else reject(new ApiError(request.status, String(answer.error ?? ''), String(answer.reason ?? '')));
    };
    signal.addEventListener('abort', () => request.abort());
    request.send(file);
  });
}

export function attachmentsPart({ database, id, found, signal, reload }) {
  if (!hasPath(id)) return message('warn', 'A browser cannot name this document in an address, so its attachments cannot be reached from here.');
  const stubs = found.body.get('_attachments');
  const files = stubs instanceof Map ? [...stubs].map(([name, stub]) => ({ name, ...toPlain(stub) })) : [];
  const preview = h('div', {});
  const progress = h('progress', { max: '1', 'aria-label': 'Upload', hidden: true });
  const fault = h('div', { role: 'alert' });
  const at = (name) => documentPath(database, id, name);
  const chooser = h('input', { type: 'file', multiple: true, class: 'only-read', tabindex: '-1', 'aria-label': 'Files to attach', onchange: async () => {
    replace(fault);
    progress.hidden = false;
    let { rev } = found;
    let sent = 0;
    try {
      for (const file of chooser.files) {
        progress.value = 0;
        ({ rev } = await upload(at(file.name), { rev }, file, (loaded, total) => { progress.value = loaded / Math.max(1, total); }, signal));
        sent += 1;
      }
      toast.say(`Attached ${many(sent, 'file')}`);
      reload();
    } catch (error) {
      if (error.name !== 'AbortError') replace(fault, message('bad', `${sent ? `${sent} attached, then: ` : ''}${words(error)}`));
    }
    progress.hidden = true;
    chooser.value = '';
  } });
  const rows = files.map(({ name, content_type: type, length, digest, revpos }) => {
    const isPicture = hasPath(name) && PICTURES.has(type) && length <= PICTURE_MAX;
    return [
      hasPath(name) ? h('a', { href: address(at(name)), download: name }, shown(name)) : shown(name), shown(String(type ?? '–'), 80), bytes(length), h('code', {}, String(digest ?? '').slice(0, 12), '…'), `in ${revpos}`,
      hasPath(name) && h('div', { class: 'buttons' },
        isPicture && button('Look', () => replace(preview, h('img', { class: 'preview', src: address(at(name)), alt: `The picture ${name}` })), { kind: 'small' }),
        button('Delete', async () => {
          const gone = await confirm('Delete an attachment', h('p', {}, shown(name), ' goes from this document, which gets a new revision.'), 'Delete',
            () => ask(at(name), { method: 'DELETE', query: { rev: found.rev } }));
          if (gone) reload();
        }, { kind: 'small', 'aria-label': `Delete ${name}` })),
    ];
  });
  return [
    h('div', { class: 'row spread middle' }, h('p', { class: 'quiet' }, files.length ? `${many(files.length, 'file')}, ${bytes(files.reduce((all, { length }) => all + (length ?? 0), 0))}` : ''),
      h('div', { class: 'buttons' }, button('Attach files…', () => chooser.click(), { kind: 'main' }), chooser)),
    progress, fault,
    files.length ? table('Attachments', [{ label: 'Name', wide: true }, { label: 'Type' }, { label: 'Size', number: true }, { label: 'Digest' }, { label: 'Since revision' }, { label: 'Actions', actions: true }], rows)
      : empty('No attachments', h('p', {}, 'Files can be kept with a document, up to 1 GB each; they are replicated with it.')),
    preview,
  ];
}
