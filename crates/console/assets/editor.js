// JSON as text, edited and checked: no number passes through a double.
import { JsonError, parse, print } from './json.js';
import { button, bytes, download, h, newId, plain, replace } from './parts.js';

/** Texts beyond this are not put into an editor unasked: browsers lay out all of them. */
const SHOWN_MAX = 600_000;

/** Checked this long after the last key. */
const PAUSE_MS = 250;

/**
 * `<json-editor>`: `value` is its text, `label` what it is called, `wants` (`object`) what it must be. `check()` gives what it parses to, or
 * shows what is wrong and throws. Sends `edited` as it changes and `wanted` at Ctrl+S.
 */
export class JsonEditor extends HTMLElement {
  #area = h('textarea', { class: 'code', spellcheck: 'false', autocomplete: 'off', autocapitalize: 'off', rows: '18', dir: 'ltr' });
  #said = h('p', { class: 'quiet', role: 'status' });
  #wants;
  #large;
  #timer;

  constructor({ label, value, wants, rows, name = 'document', hint } = {}) {
    super();
    this.#wants = wants;
    this.name = name;
    const [id, foot] = [newId(), newId()];
    Object.assign(this.#area, { id });
    this.#area.setAttribute('aria-describedby', foot);
    this.#said.id = foot;
    if (rows) this.#area.rows = rows;
    this.#area.addEventListener('input', () => {
      this.dispatchEvent(new Event('edited'));
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#look(), PAUSE_MS);
    });
    this.#area.addEventListener('keydown', (event) => {
      if (event.key.toLowerCase() === 's' && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        this.dispatchEvent(new Event('wanted'));
      }
    });
    const file = h('input', { type: 'file', class: 'only-read', tabindex: '-1', 'aria-hidden': 'true', onchange: async () => {
      if (file.files[0]) this.value = await file.files[0].text();
      file.value = '';
      this.dispatchEvent(new Event('edited'));
    } });
    this.parts = [
      h('label', { for: id }, label), hint && h('p', { class: 'hint' }, hint), this.#area,
      h('div', { class: 'editor-foot' }, this.#said, h('div', { class: 'buttons' },
        button('Tidy', () => {
          this.value = print(this.check());
          this.dispatchEvent(new Event('edited'));
        }, { kind: 'small', fail: () => {} }),
        button('Open a file…', () => file.click(), { kind: 'small' }), file,
        button('Save as a file', () => download(`${this.name.replace(/[^\w.-]+/g, '_').slice(0, 80)}.json`, this.value), { kind: 'small' }))),
    ];
    this.value = value ?? '';
  }

  connectedCallback() {
    if (!this.firstChild) replace(this, this.parts);
  }

  get value() {
    return this.#large ?? this.#area.value;
  }

  set value(text) {
    this.#large = text.length > SHOWN_MAX ? text : undefined;
    this.#area.readOnly = this.#large !== undefined;
    this.#area.value = this.#large === undefined ? text : text.slice(0, SHOWN_MAX / 10);
    if (this.#large === undefined) this.#look();
    else {
      replace(this.#said, `The first tenth of ${bytes(SHOWN_MAX)} out of ${bytes(text.length)}. `, button('Edit all of it here', () => {
        this.#area.value = this.#large;
        this.#large = undefined;
        this.#area.readOnly = false;
        this.#look();
      }, { kind: 'small' }));
    }
  }

  get input() {
    return this.#area;
  }

  /** What the text parses to. */
  check() {
    clearTimeout(this.#timer);
    return this.#look(true);
  }

  #look(mayThrow) {
    if (this.#large !== undefined && !mayThrow) return undefined;
    const doubles = [];
    try {
      const value = parse(this.value, doubles);
      if (this.#wants === 'object' && !(value instanceof Map)) throw new JsonError('a JSON object is needed', this.value, 0);
      this.#area.removeAttribute('aria-invalid');
      if (this.#large === undefined) {
        this.#said.className = doubles.length ? 'fault' : 'quiet';
        this.#said.textContent = doubles.length
          ? `“${plain(doubles[0].name, 40)}” is there twice: the last one counts.` : `Valid JSON, ${bytes(new Blob([this.value]).size)}`;
      }
      return value;
    } catch (error) {
      if (!(error instanceof JsonError)) throw error;
      this.#said.className = 'fault';
      this.#said.textContent = error.message;
      this.#area.setAttribute('aria-invalid', 'true');
      if (!mayThrow) return undefined;
      this.#area.focus();
      if (this.#large === undefined) this.#area.setSelectionRange(error.at, Math.min(error.at + 1, this.value.length));
      throw error;
    }
  }
}
customElements.define('json-editor', JsonEditor);

/** A text that is only read; a long one is cut, and can be had as a file. */
export function reader(text, name = 'document') {
  const max = 200_000;
  return [
    h('pre', { class: 'text', tabindex: '0', role: 'region', 'aria-label': 'JSON' }, text.length > max ? `${text.slice(0, max)}…` : text),
    text.length > max && h('p', { class: 'quiet' }, `${bytes(max)} of ${bytes(text.length)} are shown. `,
      button('Save as a file', () => download(`${name.replace(/[^\w.-]+/g, '_').slice(0, 80)}.json`, text), { kind: 'small' })),
  ];
}
