// JSON without a loss: numbers stay as they are written, members keep their order, and nothing of a text runs deeper than the server allows.

/** Levels of nesting: the server's own bound. */
export const DEPTH_MAX = 500;

/** A number, as it is written. */
export class Exact {
  constructor(text) {
    this.text = text;
  }

  toString() {
    return this.text;
  }
}

/** What is wrong with a text, and where: `at` is an index, `line` and `column` begin at 1. */
export class JsonError extends Error {
  constructor(reason, text, at) {
    const before = text.slice(0, at);
    const line = before.split('\n').length;
    const column = at - before.lastIndexOf('\n');
    super(`Line ${line}, column ${column}: ${reason}`);
    Object.assign(this, { at, line, column });
  }
}

const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const TEXT = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const SHORT = /[^"\\\u0000-\u001f]*/y;
const SPACE = /[ \t\n\r]*/y;
const WORDS = [['true', true], ['false', false], ['null', null]];

/**
 * Parses a text: objects become `Map`s, numbers `Exact`s. `doubles`, if given, takes the members that an object has twice, of which the
 * last one counts.
 */
export function parse(text, doubles) {
  let at = 0;
  const fail = (reason) => { throw new JsonError(reason, text, at); };
  const take = (pattern) => {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found) at = pattern.lastIndex;
    return found?.[0];
  };
  const space = () => { take(SPACE); };
  const string = () => {
    const from = at;
    // Long texts without escapes by a loop of the engine's own, and not by one that goes back.
    at += 1;
    take(SHORT);
    if (text[at] === '"') {
      at += 1;
      return text.slice(from + 1, at - 1);
    }
    at = from;
    let found;
    try {
      found = take(TEXT);
    } catch {
      fail('this text is too long to be read here');
    }
    if (found === undefined) {
      let end = from + 1;
      while (end < text.length && text[end] !== '"' && text[end] > '\u001f') end += text[end] === '\\' ? 2 : 1;
      at = Math.min(end, text.length);
      fail(text[at] === '"' ? 'this text has an escape that JSON does not know' : 'this text has no end on its line');
    }
    return JSON.parse(found);
  };
  const scalar = () => {
    const first = text[at];
    if (first === '"') return string();
    if (first === '-' || (first >= '0' && first <= '9')) {
      const from = at;
      const number = take(NUMBER);
      if (number === undefined || /[\w.+-]/.test(text[at] ?? '')) {
        at = from;
        fail('this is no number');
      }
      return new Exact(number);
    }
    for (const [word, value] of WORDS) {
      if (text.startsWith(word, at)) {
        at += word.length;
        return value;
      }
    }
    return fail(at >= text.length ? 'the text ends too early' : 'a value is expected');
  };
  /** What is open: containers, each with the name of the member that comes. */
  const open = [];
  const member = () => {
    const top = open.at(-1);
    space();
    if (text[at] !== '"') fail(text[at] === '}' ? 'a member is expected after the comma' : 'a member\'s name in quotes is expected');
    const from = at;
    top.name = string();
    if (top.value.has(top.name)) doubles?.push({ name: top.name, at: from });
    space();
    if (text[at] !== ':') fail('a colon is expected');
    at += 1;
  };
  for (;;) {
    space();
    let value;
    const first = text[at];
    if (first === '{' || first === '[') {
      if (open.length === DEPTH_MAX) fail(`it is nested deeper than ${DEPTH_MAX} levels`);
      at += 1;
      space();
      const container = first === '{' ? new Map() : [];
      if (text[at] === (first === '{' ? '}' : ']')) {
        at += 1;
        value = container;
      } else {
        open.push({ value: container, name: undefined });
        if (first === '{') member();
        continue;
      }
    } else {
      value = scalar();
    }
    // What is complete goes into what is open; what that completes, too.
    for (;;) {
      const top = open.at(-1);
      space();
      if (!top) {
        if (at < text.length) fail('nothing more is expected here');
        return value;
      }
      if (Array.isArray(top.value)) top.value.push(value);
      else top.value.set(top.name, value);
      const end = Array.isArray(top.value) ? ']' : '}';
      if (text[at] === ',') {
        at += 1;
        if (end === '}') member();
        break;
      }
      if (text[at] !== end) fail(at >= text.length ? 'the text ends too early' : `a comma or ${end} is expected`);
      at += 1;
      value = open.pop().value;
    }
  }
}

// What would not be seen in a text, or would move what stands beside it, is written as an escape: the same JSON.
const HIDDEN = /[\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb\ud800-\udfff]/gu;
const escape = (character) => [...Array(character.length).keys()]
  .map((unit) => `\\u${character.charCodeAt(unit).toString(16).padStart(4, '0')}`).join('');

/** A text as JSON. */
export const quote = (text) => JSON.stringify(text).replace(HIDDEN, escape);

/** Writes what `parse` gives: `indent` spaces a level, or all in one line. Stops at about `max` characters. */
export function print(value, indent = 2, max = Infinity) {
  const parts = [];
  let length = 0;
  const add = (part) => {
    parts.push(part);
    length += part.length;
  };
  const line = (level) => (indent ? `\n${' '.repeat(indent * level)}` : '');
  const write = (item, level) => {
    if (length > max) return;
    if (typeof item === 'string') {
      add(quote(item.length > max ? item.slice(0, max) : item));
    } else if (item === null || typeof item === 'boolean' || item instanceof Exact || typeof item === 'number') {
      add(String(item));
    } else {
      const isList = Array.isArray(item);
      const size = isList ? item.length : item.size;
      if (size === 0) return add(isList ? '[]' : '{}');
      add(isList ? '[' : '{');
      let before = '';
      for (const entry of item) {
        if (length > max) break;
        add(before + line(level + 1));
        if (!isList) add(`${quote(entry[0])}:${indent ? ' ' : ''}`);
        write(isList ? entry : entry[1], level + 1);
        before = ',';
      }
      add(line(level) + (isList ? ']' : '}'));
    }
    return undefined;
  };
  write(value, 0);
  const text = parts.join('');
  return text.length > max ? `${text.slice(0, max)}…` : text;
}

/** What `parse` gives as plain values, for what the console itself reads: numbers become doubles. */
export function toPlain(value) {
  if (value instanceof Exact) return Number(value.text);
  if (Array.isArray(value)) return value.map(toPlain);
  if (value instanceof Map) {
    const plain = Object.create(null);
    for (const [name, member] of value) plain[name] = toPlain(member);
    return plain;
  }
  return value;
}
