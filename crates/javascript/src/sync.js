// A database's sync function decides the channels of a document, grants access, and may refuse the write. No call
// sees state of an earlier one: the function is made anew for each call from a source compiled once, and everything
// shared is frozen. So one engine serves all writers of a database.
const { compileSync, made, restore, thrown, transform } = (() => {
  const { Failure, apply, cut, evaluate, told, trimEnd } = inner;
  const { stringify } = JSON;
  const { isArray } = Array;
  const { create, freeze, defineProperty, getOwnPropertyDescriptor, getPrototypeOf, isExtensible, setPrototypeOf } = Object;
  const { ownKeys, deleteProperty, defineProperty: tryDefine } = Reflect;
  const { trunc } = Math;
  const ownKey = Object.prototype.hasOwnProperty.call.bind(Object.prototype.hasOwnProperty);
  const global = globalThis;
  const promise = Promise;
  const plain = Function.prototype;
  const number = Number;
  const text = String;

  const makeArray = (value) => (isArray(value) ? value : [value]);
  const inArray = (value, values) => {
    if (!isArray(values)) return value === values;
    for (let i = 0; i < values.length; i++) if (values[i] === value) return true;
    return false;
  };
  // These functions store their arguments outside of the engine, out of reach of any function.
  const { isRejected, refuse, expire } = global;
  const reject = (status, message) => {
    const code = trunc(number(status));
    if (isRejected() || !(code >= 400)) return;
    refuse(code, message === undefined ? '' : cut(text(message)));
  };
  const helpers = {
    reject: (status, message) => reject(status, message),
    expiry(value) {
      if (typeof value === 'number') expire(stringify(value), true);
      else if (typeof value === 'string') expire(value, false);
    },
    makeArray,
    inArray,
    log: () => {},
  };

  // The part of underscore.js that functions use.
  const each = (values, work) => {
    if (values === null || values === undefined) return values;
    if (isArray(values)) for (let i = 0; i < values.length; i++) work(values[i], i, values);
    else for (const name in values) if (ownKey(values, name)) work(values[name], name, values);
    return values;
  };
  const collect = (values, pick) => {
    const found = [];
    each(values, (value, at) => {
      pick(value, at, (what) => {
        found[found.length] = what;
      });
    });
    return found;
  };
  const equal = (a, b) => {
    if (a === b || (a !== a && b !== b)) return true;
    if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null || isArray(a) !== isArray(b)) return false;
    const names = ownKeys(a);
    if (names.length !== ownKeys(b).length) return false;
    for (let i = 0; i < names.length; i++) if (!ownKey(b, names[i]) || !equal(a[names[i]], b[names[i]])) return false;
    return true;
  };
  const some = (values, is) => {
    const found = collect(values, (value, at, put) => {
      if (is(value, at, values)) put(value);
    });
    return found;
  };
  const has = (values, value) => some(values, (item) => item === value).length > 0;
  const flat = (values) => {
    const found = [];
    for (let i = 0; i < values.length; i++) each(makeArray(values[i]), (value) => (found[found.length] = value));
    return found;
  };
  const uniq = (values) => {
    const found = [];
    each(values, (value) => {
      if (!inArray(value, found)) found[found.length] = value;
    });
    return found;
  };
  const underscore = {
    each,
    forEach: each,
    map: (values, make) => collect(values, (value, at, put) => put(make(value, at, values))),
    reduce: (values, add, from) => {
      let sum = from;
      each(values, (value, at) => {
        sum = add(sum, value, at, values);
      });
      return sum;
    },
    filter: some,
    reject: (values, is) => some(values, (value, at) => !is(value, at, values)),
    find: (values, is) => some(values, is)[0],
    every: (values, is) => some(values, (value, at) => !is(value, at, values)).length === 0,
    all: (values, is) => underscore.every(values, is),
    some: (values, is) => some(values, is).length > 0,
    any: (values, is) => some(values, is).length > 0,
    contains: has,
    include: has,
    includes: has,
    pluck: (values, name) => collect(values, (value, _, put) => put(value[name])),
    keys: (of) => collect(of, (_, name, put) => put(name)),
    values: (of) => collect(of, (value, _, put) => put(value)),
    size: (of) => (typeof of === 'string' ? of.length : collect(of, (value, _, put) => put(value)).length),
    isEmpty: (of) => underscore.size(of) === 0,
    first: (values) => values?.[0],
    last: (values) => values?.[values.length - 1],
    uniq,
    union: (...lists) => uniq(flat(lists)),
    intersection: (list, ...lists) => some(uniq(list), (value) => underscore.every(lists, (other) => inArray(value, other))),
    difference: (list, ...lists) => some(list, (value) => !inArray(value, flat(lists))),
    without: (list, ...values) => some(list, (value) => !inArray(value, values)),
    compact: (list) => some(list, (value) => value),
    flatten: (list) => flat(list),
    has: (of, name) => of !== null && of !== undefined && ownKey(of, name),
    extend: (of, ...others) => {
      each(others, (other) => each(other, (value, name) => (of[name] = value)));
      return of;
    },
    clone: (of) => (isArray(of) ? flat([of]) : underscore.extend({}, of)),
    isEqual: equal,
    isArray,
    isObject: (of) => typeof of === 'function' || (typeof of === 'object' && of !== null),
    isString: (of) => typeof of === 'string',
    isNumber: (of) => typeof of === 'number',
    isBoolean: (of) => typeof of === 'boolean',
    isFunction: (of) => typeof of === 'function',
    isNull: (of) => of === null,
    isUndefined: (of) => of === undefined,
  };

  for (const name of ['emit', 'require', 'sum', 'toJSON', 'isArray', 'collate', 'isRejected', 'refuse', 'expire']) deleteProperty(global, name);
  for (const name of ownKeys(helpers)) defineProperty(global, name, { value: helpers[name], configurable: true });
  defineProperty(global, '_', { value: underscore, configurable: true });

  // Setters of these properties reach state that no property shows.
  for (const name of ['prepareStackTrace', 'stackTraceLimit', 'captureStackTrace']) {
    if (name in Error && !deleteProperty(Error, name)) throw new TypeError(`${name} stays`);
  }
  // An object that inherits from a frozen one cannot get its own property of the same name by assignment, unless a
  // setter defines it.
  const overridable = (prototype) => {
    for (const key of ownKeys(prototype)) {
      const { value, configurable, ...rest } = getOwnPropertyDescriptor(prototype, key);
      if (!configurable || 'get' in rest) continue;
      defineProperty(prototype, key, {
        get: () => value,
        set(other) {
          if (this === prototype || (typeof this !== 'object' && typeof this !== 'function') || this === null) return;
          tryDefine(this, key, { value: other, writable: true, enumerable: true, configurable: true });
        },
        enumerable: false,
        configurable: false,
      });
    }
  };
  for (const of of [Object, Function, Error, TypeError, RangeError, SyntaxError, ReferenceError, EvalError, URIError]) overridable(of.prototype);

  // All objects that exist before the first call: those reachable by properties, and those reachable by syntax only.
  const prototypeOf = getPrototypeOf;
  const found = new Set([global]);
  const queue = [
    prototypeOf(function* () {}),
    prototypeOf(async () => {}),
    prototypeOf(async function* () {}),
    prototypeOf(prototypeOf([].values())),
    [].values(),
    ''[Symbol.iterator](),
    new Map().entries(),
    new Set().entries(),
    'a'.matchAll(/a/g),
    (function* () {})(),
    (async function* () {})(),
    Object(Symbol.iterator),
    Object(1n),
    (() => {}),
    (function () {
      return arguments;
    })(),
    (function () {
      'use strict';
      return arguments;
    })(),
  ];
  const reach = (value) => {
    if ((typeof value !== 'object' && typeof value !== 'function') || value === null || found.has(value)) return;
    found.add(value);
    queue[queue.length] = value;
  };
  const reachAll = (of) => {
    reach(prototypeOf(of));
    for (const key of ownKeys(of)) {
      const { value, get, set } = getOwnPropertyDescriptor(of, key);
      reach(value);
      reach(get);
      reach(set);
    }
  };
  reachAll(global);
  for (let i = 0; i < queue.length; i++) {
    reachAll(queue[i]);
    freeze(queue[i]);
  }
  // The globals move to the prototype of the global object. The global object itself keeps few names, so that new
  // ones are soon counted.
  const names = create(prototypeOf(global));
  for (const key of ownKeys(global)) {
    const { configurable, writable, get, value, enumerable } = getOwnPropertyDescriptor(global, key);
    if (get !== undefined) throw new TypeError('a name that is no value');
    defineProperty(names, key, { value, enumerable });
    if (configurable) deleteProperty(global, key);
    else if (writable) defineProperty(global, key, { writable: false });
  }
  freeze(names);
  setPrototypeOf(global, names);
  const own = create(null);
  for (const key of ownKeys(global)) own[key] = true;
  const many = ownKeys(global).length;
  const parent = prototypeOf(global);

  // Removes the state that a call left. Returns false if some of it cannot be removed.
  const restore = () => {
    const keys = ownKeys(global);
    let is_clean = true;
    // New keys do not come last: numbers come first, and symbols after strings.
    for (let i = 0; i < keys.length; i++) if (!ownKey(own, keys[i])) is_clean = deleteProperty(global, keys[i]) && is_clean;
    if (prototypeOf(global) !== parent) setPrototypeOf(global, parent);
    return is_clean && isExtensible(global) && ownKeys(global).length === many && prototypeOf(global) === parent;
  };

  let make;
  // The source must be one expression: it is compiled within brackets of both kinds, so it can close neither.
  const compileSync = (source) => {
    try {
      const bare = trimEnd(source, /[\s;]+$/, '');
      evaluate(checkedCode('(function (realUserCtx) { return [' + bare + '\n]; })'));
      make = evaluate(checkedCode('(function (realUserCtx) { return (' + bare + '\n); })'));
      // All calls share it, and an arrow function reaches it through `arguments`.
      freeze(make.prototype);
      freeze(make);
      const made = make({});
      if (typeof made !== 'function') throw new Failure('compilation_error', 'Expression does not eval to a function.');
      // Such a function would refuse a write after its call has ended.
      if (getPrototypeOf(made) !== plain) throw new Failure('compilation_error', 'The function is asynchronous or a generator.');
      if (!restore()) throw new Failure('compilation_error', 'The expression changes what it stands in.');
      return '';
    } catch (error) {
      const reason = error instanceof Failure ? error.answer[1] : `${error}`;
      return stringify(['error', 'compilation_error', cut(reason)]);
    }
  };

  const thrown = (error) => {
    if (error !== null && typeof error === 'object' && error.name === 'InternalError') return 'exhausted';
    try {
      if (error.forbidden) reject(403, error.forbidden);
      else if (error.unauthorized) reject(401, error.unauthorized);
      else return 'exception';
      return 'ok';
    } catch {
      return 'exception';
    }
  };

  // Reading a thrown value may throw.
  const isExhausted = (error) => {
    try {
      return error !== null && typeof error === 'object' && error.name === 'InternalError';
    } catch {
      return false;
    }
  };
  const toldSafely = (error) => {
    try {
      return told(error);
    } catch {
      return stringify(['error', 'unknown_error', '']);
    }
  };

  const made = () => make;

  // Runs a function of the changes worker and returns `[how, is_clean, text]`.
  const transform = (doc) => {
    let [how, made] = ['ok', 'null'];
    try {
      const result = apply(make({}), undefined, [doc]);
      if (result instanceof promise) throw new Failure('invalid_result', 'A promise is no document.');
      made = stringify(result) ?? 'null';
    } catch (error) {
      if (isExhausted(error)) how = 'exhausted';
      else [how, made] = ['error', toldSafely(error)];
    }
    return stringify([how, restore(), made]);
  };
  return { compileSync, made, restore, thrown, transform };
})();
export { compileSync, made, restore, thrown, transform };
