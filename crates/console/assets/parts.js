// What pages are put together from.
import { ApiError } from './api.js';
import { append, h, newId, plain, replace, shown, svg } from './dom.js';
import { JsonError } from './json.js';

/** 1234567 as `1,234,567`. */
export const count = (number) => (Number.isFinite(number) ? number.toLocaleString('en') : '–');

/** So many of something: `1 line`, `2 lines`. */
export const many = (number, one, more_ = `${one}s`) => `${count(number)} ${number === 1 ? one : more_}`;

/** A number with as many digits as tell something. */
export const decimals = (value) => (Math.abs(value) >= 100 ? count(Math.round(value)) : value.toFixed(Math.abs(value) >= 10 ? 1 : 2).replace(/\.?0+$/, ''));

/** Bytes as people say them. */
export function bytes(number) {
  if (!Number.isFinite(number)) return '–';
  let [rest, at] = [number, 0];
  while (rest >= 1000 && at < 4) [rest, at] = [rest / 1000, at + 1];
  return `${at && rest < 100 ? rest.toFixed(1) : Math.round(rest)} ${['B', 'kB', 'MB', 'GB', 'TB'][at]}`;
}

/** Seconds as people say them. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return '–';
  if (seconds < 0.001 && seconds > 0) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} days`;
}

/** A moment, in the reader's time. */
export function when(ms) {
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return h('span', {}, '–');
  const two = (number) => String(number).padStart(2, '0');
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return h('time', { datetime: date.toISOString() }, `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`);
}

/** The address of a page: `to('db', name)`. */
export const to = (...parts) => `#/${parts.map(encodeURIComponent).join('/')}`;

/** A few words in a frame; `kind`: `ok`, `warn`, `bad` or nothing. */
export const badge = (text, kind = 'plain') => h('span', { class: `badge ${kind}` }, text);

/** What an error means, in words; never more than it says. */
export function words(error) {
  if (!(error instanceof ApiError)) return String(error?.message ?? error);
  if (error.status === 401) return `${error.reason || 'You are not signed in'} (401). If your session has ended, sign in in another tab, and do this again here.`;
  return `${error.message}${error.status ? ` (${error.status}${error.error && error.error !== error.message ? ` ${error.error}` : ''})` : ''}`;
}

/** A message where it belongs. `kind`: `bad`, `warn`, `ok`. */
export const message = (kind, ...children) => h('p', { class: `message ${kind}`, role: kind === 'bad' ? 'alert' : 'status' }, children);

/** A whole page's, or part's, failure. */
export function trouble(error) {
  const status = error instanceof ApiError ? error.status : -1;
  const heading = { 0: 'No answer', 401: 'Sign in to see this', 403: 'Your account may not see this', 404: 'There is no such thing' }[status]
    ?? 'This did not work';
  const hint = { 403: 'An administrator can make you a member, or give you a role that is one.', 401: 'The server shows this to those who say who they are.' }[status];
  if (!(error instanceof ApiError)) console.error(error);
  return h('div', { class: 'empty', role: 'alert' }, h('h2', {}, heading), h('p', {}, plain(words(error), 600)), hint && h('p', { class: 'quiet' }, hint));
}

/** Where nothing is yet. */
export const empty = (heading, ...children) => h('div', { class: 'empty' }, h('h2', {}, heading), children);

/**
 * A table that scrolls in its own frame. A column is `{ label, number, wide, actions }`; a row is a list of cells, each text, a node, or a
 * list of them.
 */
export function table(caption, columns, rows) {
  const body = h('tbody', {});
  const view = h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': caption },
    h('table', {}, h('caption', { class: 'unseen-caption' }, caption),
      h('thead', {}, h('tr', {}, columns.map((column) => h('th', { scope: 'col', class: kind(column) },
        column.actions ? h('span', { class: 'only-read' }, column.label) : column.label)))), body));
  view.show = (lines) => {
    replace(body, lines.map((cells) => h('tr', {}, cells.map((cell, at) => (at === 0
      ? h('th', { scope: 'row', class: kind(columns[at]) }, cell) : h('td', { class: kind(columns[at]) }, cell))))));
    return view;
  };
  return view.show(rows ?? []);
}
const kind = ({ number, wide, actions }) => [number && 'number', wide && 'wide', actions && 'actions'].filter(Boolean).join(' ') || undefined;

/** Names and values, one below the other. */
export const facts = (pairs) => h('dl', { class: 'facts' }, pairs.filter(Boolean).map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))));

/** An input with its label, and a hint that is read with it. `field.input` is the input; `field.fail(text)` shows what is wrong with it. */
export function field(label, input, hint) {
  const id = newId();
  input.id = id;
  const fault = h('p', { class: 'fault', id: `${id}-fault`, hidden: true });
  const about = hint && h('p', { class: 'hint', id: `${id}-hint` }, hint);
  input.setAttribute('aria-describedby', [about && `${id}-hint`, `${id}-fault`].filter(Boolean).join(' '));
  const isBox = input.type === 'checkbox';
  const view = h('div', { class: isBox ? 'field box' : 'field' }, isBox && input, h('label', { for: id }, label), !isBox && input, about, fault);
  view.input = input;
  view.fail = (text) => {
    fault.hidden = !text;
    fault.textContent = text ?? '';
    if (text) {
      input.setAttribute('aria-invalid', 'true');
      input.focus();
    } else {
      input.removeAttribute('aria-invalid');
    }
  };
  return view;
}

export const input = (props) => h('input', { type: 'text', autocomplete: 'off', autocapitalize: 'off', spellcheck: 'false', ...props });

export const select = (options, value, props) => h('select', { ...props, value }, options.map(([name, label]) => h('option', { value: name }, label)));

/** A button. What it does may take a while; meanwhile it is busy, and what fails is told by `ctx` or where `fail` says. */
export function button(label, onclick, { kind: look = '', fail, ...props } = {}) {
  const view = h('button', { type: 'button', class: look || undefined, ...props }, label);
  view.addEventListener('click', () => busily(view, onclick, fail));
  return view;
}

/** Runs something for a button, once at a time. */
export async function busily(view, work, fail = toast.fail) {
  if (view.getAttribute('aria-disabled') === 'true') return;
  view.setAttribute('aria-disabled', 'true');
  try {
    await work();
  } catch (error) {
    if (error?.name !== 'AbortError') fail(error);
  } finally {
    view.removeAttribute('aria-disabled');
  }
}

/**
 * A form: its fields, a button that sends it, and what went wrong between them. `onsend` gets nothing and may throw; an error with a `field`
 * is shown there.
 */
export function form(children, sendLabel, onsend, { kind: look = 'main', more } = {}) {
  const fault = h('div', { class: 'form-fault', role: 'alert' });
  const submit = h('button', { type: 'submit', class: look }, sendLabel);
  const view = h('form', { novalidate: true }, children, fault, h('div', { class: 'buttons' }, submit, more));
  view.addEventListener('submit', (event) => {
    event.preventDefault();
    replace(fault);
    for (const one of view.querySelectorAll('.field')) one.fail?.();
    busily(submit, onsend, (error) => {
      if (error?.field) error.field.fail(error.message);
      else tell(fault, error);
    });
  });
  return view;
}

/** Shows what went wrong in a place for that. What is wrong with a JSON text its editor shows, where it is. */
export function tell(place, error) {
  replace(place, !(error instanceof JsonError) && h('p', { class: 'message bad' }, plain(words(error), 600)));
}

/** Something about one field is wrong. */
export function wrong(of, text) {
  return Object.assign(new Error(text), { field: of });
}

/** A window over the page. `content(close)` gives what is in it; resolves to what `close` is given. */
export function dialog(title, content) {
  return new Promise((resolve) => {
    const id = newId();
    const view = h('dialog', { 'aria-labelledby': id });
    const close = (value) => {
      // The focus goes back where it was.
      view.close();
      view.remove();
      resolve(value);
    };
    append(view, [h('h2', { id }, title), content(close)]);
    // At once: a browser tells of the end a moment later, when whoever is quick has pressed the next key already.
    view.addEventListener('cancel', (event) => {
      if (event.target !== view) return;
      event.preventDefault();
      close();
    });
    view.addEventListener('close', () => close());
    document.body.append(view);
    view.showModal();
  });
}

/** Asks before something is done that cannot be taken back. `work` is done while the window is open, and what fails is shown in it; `typed` must be typed first. */
export function confirm(title, text, action, work, { typed, extra } = {}) {
  return dialog(title, (close) => {
    const name = typed === undefined ? undefined : field('Type the name to confirm', input({}), undefined);
    return [
      h('div', { class: 'prose' }, text),
      form([extra, name], action, async () => {
        if (name && name.input.value !== typed) throw wrong(name, 'This is another name.');
        await work();
        close(true);
      }, { kind: 'danger', more: button('Cancel', () => close(false)) }),
    ];
  });
}

/** Short messages at the page's edge, read out as they come. */
export const toast = {
  view: h('div', { class: 'toasts', role: 'status', 'aria-live': 'polite' }),
  say(...children) {
    const one = h('p', { class: 'toast' }, children);
    toast.view.append(one);
    while (toast.view.children.length > 3) toast.view.firstChild.remove();
    setTimeout(() => one.remove(), 7000);
  },
  fail(error) {
    const one = h('p', { class: 'toast bad' }, plain(words(error), 400), button('Dismiss', () => one.remove(), { kind: 'small' }));
    toast.view.append(one);
    while (toast.view.children.length > 3) toast.view.firstChild.remove();
  },
};

/** Links to the parts of something. Each is `[label, href, isCurrent]`. */
export const tabs = (label, links) => h('nav', { class: 'tabs', 'aria-label': label },
  h('ul', {}, links.map(([text, href, isCurrent]) => h('li', {}, h('a', { href, 'aria-current': isCurrent ? 'page' : undefined }, text)))));

/** The head of a page: where it is, what it is called, and what can be done. `trail` is `[label, href]`s. */
export function head(trail, title, ...actions) {
  return h('header', { class: 'head' },
    trail.length > 0 && h('nav', { class: 'trail', 'aria-label': 'Where you are' }, h('ol', {}, trail.map(([label, href]) => h('li', {}, h('a', { href }, label))))),
    h('div', { class: 'title' }, h('h1', { tabindex: '-1' }, title), h('div', { class: 'buttons' }, actions)));
}

/** A part of a page with a heading. */
export const section = (title, ...children) => {
  const id = newId();
  return h('section', { 'aria-labelledby': id }, h('h2', { id }, title), children);
};

/** A part that opens. */
export const more = (summary, ...children) => h('details', {}, h('summary', {}, summary), children);

/** A revision, short, with all of it for who asks. */
export const revision = (rev) => {
  const [generation, hash = ''] = String(rev).split(/-(.*)/s);
  return h('code', { class: 'rev', title: plain(rev) }, `${plain(generation, 12)}-${plain(hash, 9).replace('…', '')}${hash.length > 9 ? '…' : ''}`);
};

/** Something to be downloaded. */
export function download(name, content, type = 'application/json') {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = h('a', { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** What is said while that which is asked again and again is not answered: what is shown is older than it looks. */
export const stale = h('p', { class: 'message warn stale', role: 'status', hidden: true });

/** Does something every so often while the page is there and seen; gives a way to do it at once. */
export function every(ms, signal, work) {
  let timer;
  let isRunning = false;
  const turn = async () => {
    clearTimeout(timer);
    if (signal.aborted || isRunning) return;
    isRunning = true;
    try {
      if (!document.hidden) {
        await work();
        stale.hidden = true;
      }
    } catch (error) {
      if (!signal.aborted) {
        stale.textContent = `Not up to date: ${plain(words(error), 300)}`;
        stale.hidden = false;
      }
    }
    isRunning = false;
    if (!signal.aborted) timer = setTimeout(turn, ms);
  };
  signal.addEventListener('abort', () => {
    clearTimeout(timer);
    stale.hidden = true;
  });
  timer = setTimeout(turn, ms);
  return turn;
}

export { append, h, newId, plain, replace, shown, svg };
