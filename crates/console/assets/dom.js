// Elements, made of data that is always text: there is no way from a value to markup here.

const SVG = 'http://www.w3.org/2000/svg';
const REFUSED = new Set(['style', 'srcdoc', 'innerHTML', 'outerHTML']);
const ADDRESSES = new Set(['href', 'src', 'action', 'formaction', 'xlink:href']);
const SCHEMES = new Set(['http:', 'https:', 'blob:']);

function set(element, name, value) {
  if (value === undefined || value === null || value === false) return;
  if (REFUSED.has(name)) throw new Error(`${name} is not for values`);
  if (name.startsWith('on')) {
    if (typeof value !== 'function') throw new Error(`${name} takes a function`);
    element.addEventListener(name.slice(2), value);
  } else if (name === 'value' || name === 'checked' || name === 'indeterminate') {
    element[name] = value;
  } else {
    if (ADDRESSES.has(name) && !SCHEMES.has(new URL(value, document.baseURI).protocol)) throw new Error('not an address to lead to');
    element.setAttribute(name, value === true ? '' : String(value));
  }
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) if (name !== 'value') set(element, name, value);
  append(element, children);
  // After its options, of which it is one.
  if (props && 'value' in props) set(element, 'value', props.value);
  return element;
}

/** Puts nodes, texts, and lists of both at the end of an element; `null`, `undefined` and `false` are nothing. */
export function append(element, children) {
  for (const child of children) {
    if (child === undefined || child === null || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : String(child));
  }
}

/** An element: `h('a', { href: '#/', onclick }, 'text', node)`. */
export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);

/** An element of a drawing. */
export const svg = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

/** Puts these children in the place of those that are there. */
export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

let ids = 0;
/** An id that no other element has. */
export const newId = () => `n${(ids += 1)}`;

// What cannot be seen, or moves what stands beside it: controls, other spaces, marks of direction, fillers, lone surrogates.
const UNSEEN = /[\u0000-\u001f\u007f-\u00a0\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff]|^ | $| {2,}/gu;

const code = (character) => `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}`;

/** A name or id as somebody chose it, so that it shows what it is and moves nothing around it. */
export function shown(text, max = 400) {
  const whole = String(text);
  const cut = whole.length > max ? [...whole.slice(0, max)].slice(0, -1).join('') : whole;
  const element = h('bdi', { class: whole.length <= 24 ? 'name short' : 'name' });
  let from = 0;
  for (const { 0: found, index } of cut.matchAll(UNSEEN)) {
    element.append(cut.slice(from, index));
    for (const character of found) {
      element.append(character === ' ' ? h('span', { class: 'unseen' }, '␣') : h('span', { class: 'unseen' }, code(character)));
    }
    from = index + found.length;
  }
  element.append(cut.slice(from));
  if (cut.length < whole.length) element.append(h('span', { class: 'unseen' }, `… ${whole.length.toLocaleString('en')} characters`));
  if (whole === '') element.append(h('span', { class: 'unseen' }, 'empty'));
  return element;
}

const CONFUSING = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]/gu;

/** The same where only text may stand: a title, an option, a label. */
export function plain(text, max = 200) {
  const whole = String(text).replace(CONFUSING, code);
  return whole.length > max ? `${[...whole.slice(0, max)].slice(0, -1).join('')}…` : whole;
}
