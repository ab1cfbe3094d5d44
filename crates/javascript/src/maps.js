// Maps and reduces of a group of views. A document arrives as a value; its rows leave as JSON text.
const { load, map, reduce, takeLogs } = (() => {
  const { Failure, cut, define, told } = inner;
  const { stringify } = JSON;
  const { isArray } = Array;
  const { freeze, keys: keysOf, defineProperty } = Object;
  const { ownKeys, deleteProperty } = Reflect;
  const global = globalThis;
  const functions = [];

  // `log` is limited in length and number.
  const LOGS_MAX = 20;
  let logs = [];
  define('log', (message) => {
    if (logs.length >= LOGS_MAX) return;
    const text = typeof message === 'string' ? message : stringify(message);
    logs[logs.length] = cut(`${text}`);
  });

  let rows = [];
  let count = 0;
  let rowsMax = 0;
  let charactersMax = 0;
  define('emit', (key, value) => {
    if (count < rowsMax) rows[count] = [key, value];
    count += 1;
  });
  const elsewhere = () => {
    throw new Failure('render_error', 'only shows, lists and updates can do this');
  };
  for (const name of ['getRow', 'send', 'start', 'provides', 'registerType']) define(name, () => elsewhere());

  // Restores the global names after each function, so that no other function and no later document sees a change.
  let names = [];
  let values = [];
  let many = 0;
  const snapshot = () => {
    const all = ownKeys(global);
    many = all.length;
    names = [];
    values = [];
    for (let i = 0; i < many; i++) {
      const value = global[all[i]];
      // NaN is constant and not equal to itself.
      if (value !== value) continue;
      names[names.length] = all[i];
      values[values.length] = value;
    }
  };
  const restore = () => {
    let same = ownKeys(global).length === many;
    for (let i = 0; same && i < names.length; i++) same = global[names[i]] === values[i];
    if (same) return;
    const now = ownKeys(global);
    for (let i = 0; i < now.length; i++) {
      let known = now[i] === 'NaN';
      for (let n = 0; !known && n < names.length; n++) known = names[n] === now[i];
      if (!known) deleteProperty(global, now[i]);
    }
    for (let i = 0; i < names.length; i++) {
      if (global[names[i]] !== values[i]) {
        defineProperty(global, names[i], { value: values[i], writable: true, configurable: true });
      }
    }
  };

  // Iterative, because documents can be deeper than the stack allows.
  const freezeAll = (document) => {
    const found = [document];
    for (let left = 1; left > 0; ) {
      left -= 1;
      const value = found[left];
      freeze(value);
      if (isArray(value)) {
        for (let i = 0; i < value.length; i++) {
          const item = value[i];
          if (typeof item === 'object' && item !== null) found[left++] = item;
        }
        continue;
      }
      const names = keysOf(value);
      for (let i = 0; i < names.length; i++) {
        const item = value[names[i]];
        if (typeof item === 'object' && item !== null) found[left++] = item;
      }
    }
  };

  // Most exceptions drop the document; these end the query.
  const isFatal = (error) => {
    try {
      if (error === 'fatal_error') return new Failure('map_runtime_error', "function raised 'fatal_error'");
      if (error === null || typeof error !== 'object') return undefined;
      if (error[0] === 'fatal') return new Failure(error[1], error[2]);
      // The engine is out of memory, so later results would not be valid.
      return error.name === 'InternalError' ? new Failure('out_of_resources', '') : undefined;
    } catch {
      return undefined;
    }
  };
  const fatal = (error) => {
    const found = isFatal(error);
    if (found !== undefined) throw found;
  };
  const dropped = (error) => {
    try {
      // The form of an error of CouchDB's query server.
      return told(isArray(error) && error[0] === 'error' ? new Failure(error[1], error[2]) : error);
    } catch {
      return told('');
    }
  };

  const mapWith = (found, doc) => {
    rows = [];
    count = 0;
    try {
      found(doc);
      if (count === 0) return '';
      if (count > rowsMax) throw new Failure('too_many_rows', `a document emits ${count} rows, ${rowsMax} are allowed`);
      const text = stringify(rows);
      if (text.length > charactersMax) {
        throw new Failure('too_large_rows', `a document's rows have ${text.length} characters, ${charactersMax} are allowed`);
      }
      return text;
    } catch (error) {
      fatal(error);
      return '!' + dropped(error);
    } finally {
      rows = [];
      restore();
    }
  };

  return {
    // `kind`: the name of the functions in messages.
    load: (input, kind) => {
      try {
        const { lib, functions: sources, rows: allowed, characters } = input;
        if (kind === 'map') inner.load({ views: { lib } });
        else deleteProperty(global, 'require');
        rowsMax = allowed;
        charactersMax = characters;
        for (let i = 0; i < sources.length; i++) {
          const { name, source } = sources[i];
          try {
            functions[i] = compileSource(source);
          } catch (error) {
            if (!(error instanceof Failure) || error.answer[0] !== 'compilation_error') throw error;
            const where = `Compilation of the ${kind} function in the '${name}' view failed: `;
            throw new Failure('compilation_error', where + error.answer[1]);
          }
        }
        snapshot();
        return '';
      } catch (error) {
        return '!' + dropped(error);
      }
    },
    // Returns a line for each function: its rows, or `!` and an error. Returns `!!` and an error if all fail.
    map: (doc) => {
      try {
        freezeAll(doc);
        let lines = '';
        for (let i = 0; i < functions.length; i++) lines += (i > 0 ? '\n' : '') + mapWith(functions[i], doc);
        return lines;
      } catch (error) {
        return '!!' + dropped(error);
      }
    },
    // Returns `[RESULT]`, or `!` and an error.
    reduce: (index, input, isRereduce) => {
      try {
        let keys = null;
        let values = input;
        if (!isRereduce) {
          keys = [];
          values = [];
          for (let i = 0; i < input.length; i++) {
            keys[i] = input[i][0];
            values[i] = input[i][1];
          }
        }
        let result = null;
        try {
          const reducer = functions[index];
          result = reducer(keys, values, isRereduce);
        } catch (error) {
          fatal(error);
          if (logs.length < LOGS_MAX) logs[logs.length] = 'function raised exception ' + dropped(error);
        }
        return stringify([result]);
      } catch (error) {
        return '!' + dropped(error);
      } finally {
        restore();
      }
    },
    takeLogs: () => {
      const taken = logs;
      logs = [];
      return taken;
    },
  };
})();
export { load, map, reduce, takeLogs };
