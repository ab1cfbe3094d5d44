// QuickJS checks the clock after each 10,000 backtracks of a regular expression. Between two backtracks, a long
// pattern or nested loops and lookarounds can run for hours. Such patterns run in a transformed form that backtracks
// in each loop and at intervals; patterns that this does not help are refused. All ways to the regular expression
// engine lead through this file.
const checkedCode = (() => {
  const { apply, construct, ownKeys } = Reflect;
  const { defineProperty, getOwnPropertyDescriptor, getPrototypeOf } = Object;
  const Native = RegExp;
  const { prototype } = Native;
  const text = String;
  const getter = (name) => getOwnPropertyDescriptor(prototype, name).get;
  const getSource = getter('source');
  const FLAGS = { d: 'hasIndices', g: 'global', i: 'ignoreCase', m: 'multiline', s: 'dotAll', u: 'unicode', v: 'unicodeSets', y: 'sticky' };
  const letters = Object.keys(FLAGS);
  const getFlag = letters.map((letter) => getter(FLAGS[letter]));
  const { exec } = prototype;
  // By pattern and flags, and by expression.
  const known = new Map();
  const get = known.get.bind(known);
  const set = known.set.bind(known);
  const clear = known.clear.bind(known);
  const expressions = new WeakMap();
  const recall = expressions.get.bind(expressions);
  const remember = expressions.set.bind(expressions);
  const forget = expressions.delete.bind(expressions);
  let count = 0;
  const uncurry = (f) => f.call.bind(f);
  const [indexOf, slice, codeAt] = [uncurry(''.indexOf), uncurry(''.slice), uncurry(''.charCodeAt)];
  const [push, pop] = [uncurry([].push), uncurry([].pop)];

  const PATTERN_MAX = 20000;
  const STEPS_MAX = 5e8;
  const KNOWN_MAX = 500;
  // Parts that match the empty string. STEP backtracks; MARK leaves a point to backtrack to, which shortens the
  // search of captures.
  const STEP = '(?:[]|)';
  const MARK = '(?:|[])';
  const PARTS_MAX = 50;

  const define = (name, value) => defineProperty(globalThis, name, { value, writable: true, configurable: true });
  const tooMuch = () => {
    throw new RangeError('too much to search');
  };
  const charAt = (string, at) => (at < string.length ? string[at] : '');
  const isHex = (code) => (code >= 48 && code <= 57) || (code >= 65 && code <= 70) || (code >= 97 && code <= 102);
  const isDigit = (code) => code >= 48 && code <= 57;

  // Returns the end of the escape at `at`.
  const escapeEnd = (source, at, isUnicode) => {
    const letter = charAt(source, at + 1);
    let end = at + 2;
    const hex = (count) => {
      for (let i = 0; i < count; i++) if (!isHex(codeAt(source, end + i))) return;
      end += count;
    };
    const to = (open, close) => {
      const found = charAt(source, end) === open ? indexOf(source, close, end) : -1;
      if (found >= 0) end = found + 1;
    };
    if (letter === 'u') {
      if (isUnicode) to('{', '}');
      if (end === at + 2) hex(4);
    } else if (letter === 'x') hex(2);
    else if (letter === 'c') end += 1;
    else if (letter === 'k') to('<', '>');
    else if ((letter === 'p' || letter === 'P') && isUnicode) to('{', '}');
    else while (isDigit(codeAt(letter, 0)) && isDigit(codeAt(source, end))) end += 1;
    return end;
  };

  const classEnd = (source, at, isNested) => {
    let depth = 0;
    for (let i = at; i < source.length; i++) {
      if (source[i] === '\\') i += 1;
      else if (source[i] === '[' && (isNested || depth === 0)) depth += 1;
      else if (source[i] === ']' && --depth === 0) return i + 1;
    }
    return source.length;
  };

  // Returns the end of the opening of a group: `(`, `(?:`, `(?<name>`, `(?<!`, `(?i-s:`.
  const groupEnd = (source, at) => {
    if (charAt(source, at + 1) !== '?') return at + 1;
    if (charAt(source, at + 2) === '<' && charAt(source, at + 3) !== '=' && charAt(source, at + 3) !== '!') return indexOf(source, '>', at) + 1;
    let end = at + 2;
    while (end < source.length && indexOf(':=!', source[end]) < 0) end += 1;
    return end + 1;
  };

  // Returns the end of the quantifier at `at`. Sets `repeated` to its count.
  let repeated = 1;
  const quantifier = (source, at) => {
    const first = charAt(source, at);
    let end = at;
    repeated = 1;
    if (first === '*' || first === '+' || first === '?') end = at + 1;
    else if (first === '{') {
      let i = at + 1;
      while (isDigit(codeAt(source, i))) i += 1;
      if (i === at + 1) return at;
      repeated = +slice(source, at + 1, i);
      if (charAt(source, i) === ',') {
        const from = (i += 1);
        while (isDigit(codeAt(source, i))) i += 1;
        if (i > from) repeated = +slice(source, from, i);
      }
      if (charAt(source, i) !== '}') {
        repeated = 1;
        return at;
      }
      end = i + 1;
    } else return at;
    return charAt(source, end) === '?' ? end + 1 : end;
  };

  // Analyses a pattern: its transformed form, the depth of its lookarounds, its back references, and its captures.
  const analyse = (source, flags) => {
    const isUnicode = indexOf(flags, 'u') >= 0 || indexOf(flags, 'v') >= 0;
    const isNested = indexOf(flags, 'v') >= 0;
    const opened = [];
    let out = '';
    let parts = 0;
    let depth = 0;
    let deepest = 0;
    let captures = 0;
    let repeats = 1;
    let refers = false;
    for (let i = 0; i < source.length; ) {
      const first = source[i];
      let isGroup = false;
      let end = i + 1;
      if (first === '(') {
        end = groupEnd(source, i);
        const head = slice(source, i, end);
        const isLook = head !== '(' && (head[2] === '=' || head[2] === '!' || head === '(?<=' || head === '(?<!');
        const isCapture = head === '(' || (head[2] === '<' && !isLook);
        push(opened, isLook);
        if (isLook && (depth += 1) > deepest) deepest = depth;
        captures += isCapture;
        out += head + STEP + (isCapture ? MARK : '');
        parts = 0;
        i = end;
        continue;
      }
      if (first === '|' || first === '^' || first === '$') {
        out += first;
        i = end;
        continue;
      }
      if (first === ')') {
        isGroup = true;
        depth -= pop(opened);
      } else if (first === '[') end = classEnd(source, i, isNested);
      else if (first === '\\') {
        end = escapeEnd(source, i, isUnicode);
        const code = codeAt(source, i + 1);
        refers = refers || (code >= 49 && code <= 57) || charAt(source, i + 1) === 'k';
        const isHigh = isUnicode && end === i + 6 && (+('0x' + slice(source, i + 2, end)) & 0xfc00) === 0xd800;
        if (isHigh && charAt(source, end) === '\\' && charAt(source, end + 1) === 'u') end = escapeEnd(source, end, isUnicode);
      } else if (isUnicode && (codeAt(source, i) & 0xfc00) === 0xd800) end = i + 2;
      const atom = slice(source, i, end);
      const after = quantifier(source, end);
      const quantified = slice(source, end, after);
      repeats *= repeated > 1 ? repeated : 1;
      if (isGroup || after === end) {
        // A boundary cannot be quantified, but STEP may precede it.
        if (!isGroup && ++parts > PARTS_MAX) {
          out += STEP;
          parts = 0;
        }
        out += atom + quantified;
      } else out += '(?:' + STEP + atom + ')' + quantified;
      i = after;
    }
    const searched = captures > 0 && repeats > 1000;
    const moves = indexOf(flags, 'g') >= 0 || indexOf(flags, 'y') >= 0;
    const farthest = indexOf(flags, 'i') < 0 ? 1e5 : 2e4;
    return { other: out, flags, length: source.length, deepest, refers, farthest, searched, moves, ready: undefined };
  };

  // Returns `undefined` for a value that is not a regular expression. Properties of the value may lie; the engine's
  // internal slots do not.
  const about = (value) => {
    const found = recall(value);
    if (found !== undefined || value === prototype || value === null || typeof value !== 'object') return found;
    let source;
    let flags = '';
    try {
      source = apply(getSource, value, []);
    } catch {
      return undefined;
    }
    for (let i = 0; i < letters.length; i++) if (apply(getFlag[i], value, [])) flags += letters[i];
    const key = flags + '/' + source;
    let shared = get(key);
    if (shared === undefined) {
      if (source.length > PATTERN_MAX) tooMuch();
      if ((count += 1) > KNOWN_MAX) {
        clear();
        count = 1;
      }
      set(key, (shared = analyse(source, flags)));
    }
    remember(value, shared);
    return shared;
  };

  const guardedExec = {
    exec(given) {
      const searched = text(given);
      if (about(this) === undefined) return apply(exec, this, [searched]);
      const at = this.lastIndex;
      if (typeof at !== 'number') this.lastIndex = +at;
      // The conversions above may have recompiled the expression.
      const found = about(this);
      const { length } = searched;
      if (found.refers && length > found.farthest) tooMuch();
      const isShort = (length + 1e4) * found.length <= STEPS_MAX && !found.searched;
      if (isShort && (found.deepest === 0 || (found.deepest === 1 && length * found.length <= 2e4))) {
        return apply(exec, this, [searched]);
      }
      if (found.ready === undefined) found.ready = new Native(found.other, found.flags);
      const other = found.ready;
      other.lastIndex = this.lastIndex;
      const result = apply(exec, other, [searched]);
      if (found.moves) this.lastIndex = other.lastIndex;
      return result;
    },
  }.exec;

  // The other functions call `exec` of their argument, and the engine itself if there is no callable `exec`. So they
  // accept only regular expressions with the `exec` above and without own properties that these functions read.
  const asked = ['exec', 'flags', 'constructor', 'global', 'unicode', 'unicodeSets', 'hasIndices', 'ignoreCase', 'multiline', 'dotAll', 'sticky'];
  const isExpression = (value) => value === prototype || about(value) !== undefined;
  const plain = (value, wanted) => {
    if (!isExpression(value)) {
      if (wanted) throw new TypeError('not a regular expression');
      return;
    }
    let isPlain = value === prototype || getPrototypeOf(value) === prototype;
    const keys = ownKeys(value);
    for (let i = 0; i < keys.length && keys.length > 1 && value !== prototype; i++) {
      for (let n = 0; n < asked.length; n++) if (keys[i] === asked[n]) isPlain = false;
    }
    if (!isPlain) throw new TypeError('a regular expression with functions of its own');
  };
  const replace = (object, name, value) => defineProperty(object, name, { value, writable: false, configurable: false });
  const { match, matchAll, replace: replaceName, search, split } = Symbol;
  for (const name of ['test', match, matchAll, replaceName, search, split]) {
    const original = prototype[name];
    const { [name]: guarded } = {
      [name](given, other) {
        plain(this, name === split || name === matchAll);
        const string = text(given);
        if (name === replaceName && typeof other !== 'function') other = text(other);
        if (name === split && other !== undefined) other = +other;
        return apply(original, this, [string, other]);
      },
    };
    replace(prototype, name, guarded);
  }
  replace(prototype, 'exec', guardedExec);
  for (const name of ['source', ...asked]) {
    const found = getOwnPropertyDescriptor(prototype, name);
    if (found.get !== undefined) defineProperty(prototype, name, { configurable: false });
  }

  // The time to compile a long pattern grows with the square of its length.
  const checked = (given) => {
    if (given.length > 0 && given[0] !== undefined && !isExpression(given[0])) given[0] = text(given[0]);
    if (typeof given[0] === 'string' && given[0].length > PATTERN_MAX) tooMuch();
    return given;
  };
  const Guarded = new Proxy(Native, {
    __proto__: null,
    apply: (_, that, given) => construct(Native, checked(given)),
    construct: (_, given, target) => construct(Native, checked(given), target === Guarded ? Native : target),
  });
  defineProperty(Native, Symbol.species, { configurable: false });
  replace(prototype, 'constructor', Guarded);
  define('RegExp', Guarded);
  const { compile } = prototype;
  replace(prototype, 'compile', {
    compile(...given) {
      try {
        return apply(compile, this, checked(given));
      } finally {
        forget(this);
      }
    },
  }.compile);
  for (const [name, symbol] of [['match', match], ['matchAll', matchAll], ['search', search]]) {
    const original = String.prototype[name];
    const { [name]: guarded } = {
      [name](given) {
        if (this !== undefined && this !== null && given !== undefined && given !== null && !isExpression(given)) {
          const method = typeof given === 'object' || typeof given === 'function' ? given[symbol] : undefined;
          if (method !== undefined && method !== null) return apply(method, given, [this]);
          return apply(original, this, checked([given]));
        }
        return apply(original, this, [given]);
      },
    };
    defineProperty(String.prototype, name, { value: guarded, writable: true, configurable: true });
  }

  // The literals of a line are compiled together with their code, without a check of the clock.
  const LINE_MAX = 500000;
  const COSTS_MAX = 5e9;
  const costs = { '|': 1, '\\k<': 25, ')+': 1, ')*': 1, ')?': 1, '){': 0.1 };
  const signs = Object.keys(costs);
  const checkedCode = (code) => {
    let all = 0;
    for (let begin = 0; code.length - begin > PATTERN_MAX; ) {
      const found = indexOf(code, '\n', begin);
      const end = found < 0 ? code.length : found;
      const length = end - begin;
      if (length > PATTERN_MAX) {
        if (length > LINE_MAX) throw new RangeError('too long a line');
        const line = slice(code, begin, end);
        for (let i = 0; i < signs.length; i++) {
          const sign = signs[i];
          for (let at = indexOf(line, sign); at >= 0; at = indexOf(line, sign, at + 1)) all += length * costs[sign];
        }
        if (all > COSTS_MAX) throw new RangeError('too much in long lines');
      }
      begin = end + 1;
    }
    return code;
  };
  const guardedCode = (compiler) =>
    new Proxy(compiler, {
      __proto__: null,
      apply: (_, that, given) => apply(compiler, that, checkedParts(given)),
      construct: (_, given, target) => construct(compiler, checkedParts(given), target),
    });
  const checkedParts = (given) => {
    let all = '';
    for (let i = 0; i < given.length; i++) {
      if (typeof given[i] === 'object' || typeof given[i] === 'function') given[i] = text(given[i]);
      if (typeof given[i] === 'string') all += given[i];
    }
    checkedCode(all);
    return given;
  };
  for (const made of [function () {}, function* () {}, async function () {}, async function* () {}]) {
    const home = getPrototypeOf(made);
    defineProperty(home, 'constructor', { value: guardedCode(home.constructor), configurable: true });
  }
  define('Function', Function.prototype.constructor);
  define('eval', guardedCode(eval));
  return checkedCode;
})();

