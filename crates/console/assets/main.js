// The frame of the console: who is signed in, which page is open, and how one gets to another.
import { ApiError, ask } from './api.js';
import { h, plain, replace, shown } from './dom.js';
import { begin as beginMetrics } from './samples.js';
import { button, field, form, input, message, stale, toast, trouble, wrong } from './parts.js';

/** Pages by the first part of the address: their module, their name in the menu, and the module of one of what is listed there. */
const PAGES = {
  '': ['databases', 'Databases'],
  users: ['users', 'Users'],
  replications: ['replications', 'Replications'],
  jobs: ['jobs', 'Jobs', 'job'],
  queue: ['queue', 'Dead letters', 'entry'],
  metrics: ['metrics', 'Metrics'],
  storage: ['storage', 'Storage'],
};

/** Pages of a database by the third part. */
const OF_DATABASE = { '': 'documents', doc: 'document', new: 'document', changes: 'changes', query: 'query', indexes: 'indexes', access: 'access' };

const session = { name: null, roles: [], isAdmin: false, isOpen: false };
const main = h('main', { id: 'main', tabindex: '-1' });
const bar = h('div', { class: 'progress', hidden: true, role: 'progressbar', 'aria-label': 'Loading' });
const who = h('div', { class: 'who' });
const menu = h('ul', {});
let leaving = new AbortController();
/** Who was signed in last. */
let last;

async function whoIsIt() {
  const { userCtx, info } = await ask('_session');
  session.name = userCtx.name;
  session.roles = userCtx.roles ?? [];
  session.isAdmin = session.roles.includes('_admin');
  session.isOpen = session.isAdmin && session.name === null;
  session.way = info?.authenticated;
}

function showWho() {
  replace(who, session.name !== null
    ? h('span', {}, h('span', { class: 'quiet' }, 'Signed in as '), shown(session.name, 60), session.isAdmin && h('span', { class: 'quiet' }, ', administrator'))
    : h('span', { class: 'quiet' }, session.isOpen ? 'No administrator yet: everyone may do everything.' : 'Not signed in'),
  session.name === null
    ? h('a', { class: 'button small', href: '#/sign-in' }, 'Sign in')
    : button('Sign out', async () => {
      await ask('_session', { method: 'DELETE' });
      location.hash = '#/sign-in';
      // With all that the page has in its memory.
      location.reload();
    }, { kind: 'small' }));
  last = session.name ?? last;
  if (session.isAdmin) beginMetrics();
}

/** The page where one signs in; goes on to where one wanted to. */
function signIn(next, reason) {
  const name = field('Name', input({ autocomplete: 'username', name: 'name' }));
  const password = field('Password', input({ type: 'password', autocomplete: 'current-password', name: 'password' }));
  return h('div', { class: 'sign-in' },
    h('h1', { tabindex: '-1' }, 'Sign in'),
    reason && message('warn', plain(reason)),
    form([name, password], 'Sign in', async () => {
      if (!name.input.value) throw wrong(name, 'A name is needed.');
      try {
        await ask('_session', { method: 'POST', body: { name: name.input.value, password: password.input.value } });
      } catch (error) {
        if (error instanceof ApiError && error.status === 401) throw wrong(password, 'Name or password is not right.');
        throw error;
      }
      await whoIsIt();
      if (session.name === null) throw new Error('The browser did not keep the session: are cookies allowed here?');
      // Another one than before sees nothing of what was theirs.
      const isAnother = last !== undefined && last !== session.name;
      showWho();
      if (location.hash !== next) location.hash = next;
      else if (!isAnother) await open();
      if (isAnother) location.reload();
    }));
}

function parsed() {
  const [way, query = ''] = location.hash.replace(/^#\/?/, '').split('?');
  return { parts: way.split('/').map(decodeURIComponent), params: new URLSearchParams(query) };
}

/** The module of an address, and what of it belongs to the page. */
function pageOf(parts) {
  if (parts[0] === 'db' && parts[1]) {
    const what = parts[2] ?? '';
    const module = Object.hasOwn(OF_DATABASE, what) ? OF_DATABASE[what] : undefined;
    return module && { module, args: { database: parts[1], id: parts[3], isNew: what === 'new' }, menu: '' };
  }
  if (!Object.hasOwn(PAGES, parts[0])) return undefined;
  // With an id, the page of that one.
  const [all, , one] = PAGES[parts[0]];
  return { module: parts[1] && one ? one : all, args: { id: parts[1] }, menu: parts[0] };
}

/** What is shown in the place of a page that cannot be. */
async function instead(error) {
  let told = error instanceof URIError ? new ApiError(404, 'not_found', 'The console has no such page.') : error;
  if (error instanceof ApiError && error.status === 401) {
    const before = session.name;
    await whoIsIt().catch(() => { session.name = null; });
    showWho();
    if (session.name === null) return signIn(location.hash || '#/', before === null ? undefined : 'Your session has ended.');
    // CouchDB says so, too, of what is for administrators alone.
    told = new ApiError(403, error.error, error.reason);
  }
  const page = location.hash.split(/[/?]/)[1] ?? '';
  return [h('h1', { tabindex: '-1' }, Object.hasOwn(PAGES, page) ? PAGES[page][1] : 'Console'), trouble(told)];
}

let opened = 0;
/** Opens the page of the address. The one before stays until this one is there, so that nothing jumps. */
async function open() {
  const turn = (opened += 1);
  const asked = location.hash;
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  document.documentElement.classList.remove('menu-open');
  toggle.setAttribute('aria-expanded', 'false');
  const slow = setTimeout(() => { bar.hidden = false; }, 200);
  let content;
  let found;
  try {
    const { parts, params } = parsed();
    if (parts[0] === 'sign-in') {
      content = signIn('#/');
    } else {
      found = pageOf(parts);
      if (!found) throw new ApiError(404, 'not_found', 'The console has no such page.');
      const page = await import(`./pages/${found.module}.js`);
      // What one did there ends later, perhaps after one went elsewhere, and takes nobody away from where they are then.
      const ifHere = (work) => { if (location.hash === asked) work(); };
      const leave = (hash) => ifHere(() => { location.hash = hash; });
      content = await page.default({ ...found.args, params, signal, session, reload: () => ifHere(open), leave });
    }
  } catch (error) {
    if (signal.aborted) return;
    content = await instead(error);
  } finally {
    clearTimeout(slow);
    if (turn === opened) bar.hidden = true;
  }
  if (turn !== opened) return;
  for (const link of menu.querySelectorAll('a')) {
    if (found && link.dataset.page === found.menu) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  replace(main, content);
  main.dataset.at = asked;
  const heading = main.querySelector('h1');
  main.querySelector('.tabs [aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'nearest' });
  document.title = `${plain(heading?.textContent ?? 'Console', 60)} · Flatbed`;
  scrollTo(0, 0);
  // Whoever does not see the page hears what it is; the first one was not asked for.
  if (turn > 1) (main.querySelector('[data-focus]') ?? heading)?.focus({ preventScroll: true });
}

const toggle = button('Menu', () => {
  const isOpen = document.documentElement.classList.toggle('menu-open');
  toggle.setAttribute('aria-expanded', String(isOpen));
}, { kind: 'menu-button', 'aria-expanded': 'false', 'aria-controls': 'menu' });

const THEMES = [['', 'System colours'], ['light', 'Light colours'], ['dark', 'Dark colours']];
const theme = h('select', { 'aria-label': 'Colours', class: 'small', onchange: () => {
  if (theme.value) document.documentElement.dataset.theme = theme.value;
  else delete document.documentElement.dataset.theme;
} }, THEMES.map(([value, label]) => h('option', { value }, label)));

function frame() {
  replace(menu, Object.entries(PAGES).map(([page, [, label]]) => h('li', {}, h('a', { href: `#/${page}`, 'data-page': page }, label))));
  document.body.append(
    h('a', { class: 'skip', href: '#main', onclick: (event) => {
      event.preventDefault();
      main.focus();
    } }, 'To the content'),
    h('header', { class: 'side' },
      h('div', { class: 'brand' }, h('img', { src: 'icon.svg', alt: '', width: '28', height: '28' }), h('span', {}, 'Flatbed'), toggle),
      h('div', { class: 'side-body', id: 'menu' }, h('nav', { 'aria-label': 'Console' }, menu), h('div', { class: 'foot' }, who, theme))),
    main, bar, stale, toast.view);
}

async function start() {
  try {
    await whoIsIt();
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 401)) {
      replace(main, h('h1', {}, 'Console'), trouble(error), button('Try again', start));
      return;
    }
    Object.assign(session, { name: null, roles: [], isAdmin: false, isOpen: false });
  }
  showWho();
  await open();
}

frame();
addEventListener('hashchange', () => {
  // What a window was about has gone with its page.
  for (const view of document.querySelectorAll('dialog[open]')) view.close();
  open();
});
start();
