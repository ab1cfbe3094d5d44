// Runs functions of one design document for one caller. Arguments and results are JSON text, so that calls share no
// objects. Built-in functions are captured before code of a design document can change them.
export const { dispatch, inner, validate } = (() => {
  const { parse, stringify } = JSON;
  const { isArray } = Array;
  const objectOf = Object;
  const { defineProperty, getOwnPropertyDescriptor, getPrototypeOf } = Object;
  const evaluate = globalThis.eval;
  const apply = Function.prototype.call.bind(Function.prototype.apply);
  const compiled = new Map();
  const modules = new Map();
  const get = Map.prototype.get.bind(compiled);
  const set = Map.prototype.set.bind(compiled);
  const getModule = Map.prototype.get.bind(modules);
  const setModule = Map.prototype.set.bind(modules);
  const ownKey = Object.prototype.hasOwnProperty.call.bind(Object.prototype.hasOwnProperty);
  const trimEnd = String.prototype.replace.call.bind(String.prototype.replace);
  const slice = String.prototype.slice.call.bind(String.prototype.slice);
  const toLowerCase = String.prototype.toLowerCase.call.bind(String.prototype.toLowerCase);
  const codeAt = String.prototype.charCodeAt.call.bind(String.prototype.charCodeAt);
  let design = {};
  let emitted = 0;

  class Failure {
    constructor(kind, message) {
      this.answer = [kind, message];
    }
  }

  const member = (path) => {
    let at = design;
    for (let i = 0; i < path.length; i++) {
      if (at === null || typeof at !== 'object' || !ownKey(at, path[i])) return undefined;
      at = at[path[i]];
    }
    return at;
  };

  // Functions of another language are refused. Its name is case-insensitive, as in CouchDB.
  const checkLanguage = () => {
    const language = member(['language']);
    if (language === undefined || (typeof language === 'string' && toLowerCase(language) === 'javascript')) return;
    throw new Failure('unknown_query_language', language);
  };

  const compile = (path) => {
    const name = stringify(path);
    let found = get(name);
    if (found !== undefined) return found;
    const source = member(path);
    if (typeof source !== 'string') throw new Failure('missing', '');
    checkLanguage();
    try {
      found = evaluate(checkedCode('(' + trimEnd(source, /[\s;]+$/, '') + '\n)'));
    } catch (error) {
      throw new Failure('compilation_error', `${error}`);
    }
    if (typeof found !== 'function') {
      throw new Failure('compilation_error', 'Expression does not eval to a function.');
    }
    set(name, found);
    return found;
  };

  // The `parent` of a module: the object that contains it, with its own `parent`. The design document has none.
  const objectAt = (path) => {
    let at = { current: design };
    for (let i = 0; i < path.length; i++) {
      at = { current: at.current[path[i]], parent: at, id: i === 0 ? path[i] : at.id + '/' + path[i] };
    }
    return at;
  };

  // Loads a module of the design document: './a' and '../a' relative to the requiring module, other names from the
  // top.
  const require = (name, from = []) => {
    const parts = `${name}`.split('/');
    const path = parts[0] === '.' || parts[0] === '..' ? from.slice(0, -1) : [];
    for (const part of parts) {
      if (part === '..') {
        if (path.length === 0) throw new Failure('invalid_require_path', `Object has no parent: ${name}`);
        path.pop();
      } else if (part !== '.' && part !== '') path.push(part);
    }
    const key = stringify(path);
    const known = getModule(key);
    if (known !== undefined) {
      // A failed module fails in each call: the first one must not hide the error from the others.
      if (known.failure !== undefined) throw known.failure.error;
      return known.module.exports;
    }
    const source = member(path);
    if (typeof source !== 'string') throw new Failure('invalid_require_path', `Must require a string: ${name}`);
    const module = { current: source, parent: objectAt(path.slice(0, -1)), id: path.join('/'), exports: {} };
    const made = { module, failure: undefined };
    setModule(key, made);
    try {
      const body = evaluate(checkedCode(`(function (module, exports, require) {${source}\n})`));
      body(module, module.exports, (other) => require(other, path));
    } catch (error) {
      made.failure = { error };
      throw error;
    }
    return module.exports;
  };

  // The iterator helpers, which CouchDB's engine lacks, call each other without a check of the stack, so a long chain
  // would crash the process. All iterators and generators inherit from this prototype, the only path to its
  // constructor.
  const iterators = getPrototypeOf(getPrototypeOf([].values()));
  for (const key of Reflect.ownKeys(iterators)) {
    if (key !== Symbol.iterator && !delete iterators[key]) throw new TypeError('a helper stays');
  }
  delete globalThis.Iterator;

  // Built-in loops do not check the clock, so their lengths are limited here. The length must not change between this
  // check and the loop; so proxies and lengths with getters are refused.
  const ITEMS_MAX = 5e6;
  const COMPARISONS_MAX = 1e9;
  const guard = (prototype, names, check) => {
    for (const name of names) {
      const original = prototype[name];
      if (typeof original !== 'function') continue;
      const guarded = {
        [name](...given) {
          check(this, given);
          return apply(original, this, given);
        },
      };
      defineProperty(prototype, name, { value: guarded[name], writable: true, configurable: true });
    }
  };

  const proxies = new WeakSet();
  const isKnown = WeakSet.prototype.has.bind(proxies);
  const know = WeakSet.prototype.add.bind(proxies);
  let hasProxies = false;
  const known = (proxy) => {
    hasProxies = true;
    know(proxy);
    return proxy;
  };
  const Native = globalThis.Proxy;
  const { revocable } = Native;
  const Known = {
    Proxy: function (target, handler) {
      if (new.target === undefined) throw new TypeError("constructor Proxy requires 'new'");
      return known(new Native(target, handler));
    },
    revocable(target, handler) {
      const made = revocable(target, handler);
      known(made.proxy);
      return made;
    },
  };
  Known.Proxy.prototype = undefined;
  defineProperty(Known.Proxy, 'revocable', { value: Known.revocable, writable: true, configurable: true });
  defineProperty(globalThis, 'Proxy', { value: Known.Proxy, writable: true, configurable: true });

  const isPrimitive = (value) => value === null || (typeof value !== 'object' && typeof value !== 'function');
  const typedLength = getOwnPropertyDescriptor(getPrototypeOf(Uint8Array.prototype), 'length').get;
  const lengthOf = (value) => {
    if (isArray(value) && !hasProxies) return value.length;
    for (let at = objectOf(value); at !== null; at = getPrototypeOf(at)) {
      if (hasProxies && isKnown(at)) throw new TypeError('a built-in loop takes no proxy');
      const own = getOwnPropertyDescriptor(at, 'length');
      if (own === undefined) continue;
      if (ownKey(own, 'value') ? isPrimitive(own.value) : own.get === typedLength) return value.length;
      throw new TypeError('a built-in loop takes no length that may change');
    }
    return 0;
  };
  guard(
    Array.prototype,
    `at copyWithin fill includes indexOf join lastIndexOf pop push reverse shift slice sort splice toLocaleString toReversed toSorted
     toSpliced toString unshift with`.split(/\s+/),
    (value) => {
      if (value !== undefined && value !== null && lengthOf(value) > ITEMS_MAX) throw new RangeError('too many items');
    },
  );
  // These functions read lengths after they have called other code, so they are replaced by JavaScript loops, which
  // check the clock. They always return plain arrays.
  const ofEach = (value) => {
    if (value === undefined || value === null) throw new TypeError('cannot convert to object');
    return objectOf(value);
  };
  const add = (all, value) => {
    defineProperty(all, all.length, { __proto__: null, value, writable: true, enumerable: true, configurable: true });
  };
  const flatten = (all, from, depth) => {
    const { length } = from;
    for (let i = 0; i < length; i++) {
      if (!(i in from)) continue;
      const value = from[i];
      if (depth >= 1 && isArray(value)) flatten(all, value, depth - 1);
      else add(all, value);
    }
    return all;
  };
  const { isConcatSpreadable } = Symbol;
  const { concat, flat, flatMap } = {
    concat(...given) {
      const all = [];
      let end = 0;
      const append = (value) => {
        const spreads = isPrimitive(value) ? false : value[isConcatSpreadable];
        if (spreads === undefined ? !isArray(value) : !spreads) {
          all[end] = value;
          end += 1;
          return;
        }
        const { length } = value;
        for (let i = 0; i < length; i++) if (i in value) all[end + i] = value[i];
        end += length;
      };
      append(ofEach(this));
      for (let i = 0; i < given.length; i++) append(given[i]);
      all.length = end;
      return all;
    },
    flat(depth) {
      return flatten([], ofEach(this), depth === undefined ? 1 : +depth);
    },
    flatMap(each, that) {
      const [from, all] = [ofEach(this), []];
      if (typeof each !== 'function') throw new TypeError('not a function');
      const { length } = from;
      for (let i = 0; i < length; i++) if (i in from) flatten(all, [apply(each, that, [from[i], i, from])], 1);
      return all;
    },
  };
  for (const [name, value] of [['concat', concat], ['flat', flat], ['flatMap', flatMap]]) {
    defineProperty(Array.prototype, name, { value, writable: true, configurable: true });
  }
  guard(String.prototype, ['includes', 'indexOf', 'lastIndexOf', 'replace', 'replaceAll', 'split'], (value, [wanted]) => {
    if (value.length > 1e3 && typeof wanted === 'string' && value.length * wanted.length > COMPARISONS_MAX) {
      throw new RangeError('too much to search');
    }
  });

  const define = (name, value) => defineProperty(globalThis, name, { value, writable: true, configurable: true });
  define('log', () => {});
  define('toJSON', (value) => stringify(value));
  define('isArray', (value) => isArray(value));
  define('sum', (values) => {
    let total = 0;
    if (isArray(values)) for (let i = 0; i < values.length; i++) total += values[i];
    else for (const name in values) total += values[name];
    return total;
  });
  define('emit', () => {
    emitted += 1;
  });
  define('require', (name) => require(name));

  const run = {
    load: (_, input) => {
      design = input;
      return [];
    },
    has: (path) => {
      compile(path);
      return [];
    },
    member: (path) => {
      if (member(path) === undefined) throw new Failure('missing', '');
      return [];
    },
    filter: (path, { docs, req }) => {
      const passes = compile(path);
      const results = [];
      for (let i = 0; i < docs.length; i++) results[i] = apply(passes, design, [docs[i], req]) ? 1 : 0;
      return results;
    },
    view: (path, { docs }) => {
      const map = compile(path);
      const results = [];
      for (let i = 0; i < docs.length; i++) {
        emitted = 0;
        apply(map, design, [docs[i]]);
        results[i] = emitted > 0 ? 1 : 0;
      }
      return results;
    },
  };

  // A message is kept for each document that is refused.
  const TEXT_MAX = 4000;
  const cut = (text) => {
    if (text.length <= TEXT_MAX) return text;
    const splits = (codeAt(text, TEXT_MAX - 1) & 0xfc00) === 0xd800;
    return slice(text, 0, splits ? TEXT_MAX - 1 : TEXT_MAX);
  };

  const thrown = (error) => {
    if (error instanceof Failure) return error.answer;
    if (error !== null && typeof error === 'object') {
      if (ownKey(error, 'forbidden')) return ['forbidden', error.forbidden];
      if (ownKey(error, 'unauthorized')) return ['unauthorized', error.unauthorized];
      if (error.stack === undefined || error.name === undefined) {
        for (const name in error) return [name, error[name]];
      }
      return [`${error.name}`, `${error.message}`];
    }
    return ['unknown_error', error];
  };

  const told = (error) => {
    const [name, message] = thrown(error);
    const text = typeof message === 'string' ? message : stringify(message);
    return stringify(['error', cut(`${name}`), text === undefined ? '' : cut(text)]);
  };

  const dispatch = (kind, path, input) => {
    try {
      return stringify(['ok', run[kind](parse(path), parse(input))]);
    } catch (error) {
      return told(error);
    }
  };
  const VALIDATOR = ['validate_doc_update'];
  let validator;
  // Returns an empty text, or what the function has thrown. Each argument is a text: the function gets objects of its
  // own, which it may change.
  const validate = (document, old, user, security) => {
    try {
      if (validator === undefined) validator = compile(VALIDATOR);
      apply(validator, design, [parse(document), parse(old), parse(user), parse(security)]);
      return '';
    } catch (error) {
      return told(error);
    }
  };

  // For the other programs.
  const load = (given) => {
    design = given;
  };
  const loaded = () => design;
  const inner = { Failure, apply, checkLanguage, cut, define, evaluate, load, loaded, member, told, trimEnd };
  return { dispatch, inner, validate };
})();
