// Shows, lists, updates and rewrites. Arguments and results are JSON text; a list requests rows while it runs.
const render = (() => {
  const { Failure, apply, checkLanguage, define, load, member, told } = inner;
  const { parse, stringify } = JSON;
  const { isArray } = Array;
  const { keys: keysOf } = Object;
  const uncurry = (f) => f.call.bind(f);
  const [indexOf, slice, trim] = [uncurry(''.indexOf), uncurry(''.slice), uncurry(''.trim)];
  const wellFormed = uncurry(''.toWellFormed);
  const [join, test] = [uncurry([].join), uncurry(/x/.test)];
  const toNumber = parseFloat;

  // The keys of `provides` and their content types.
  const TYPES = [
    ['all', '*/*'],
    ['text', 'text/plain; charset=utf-8', 'txt'],
    ['html', 'text/html; charset=utf-8'],
    ['xhtml', 'application/xhtml+xml', 'xhtml'],
    ['xml', 'application/xml', 'text/xml', 'application/x-xml'],
    ['js', 'text/javascript', 'application/javascript', 'application/x-javascript'],
    ['css', 'text/css'],
    ['ics', 'text/calendar'],
    ['csv', 'text/csv'],
    ['rss', 'application/rss+xml'],
    ['atom', 'application/atom+xml'],
    ['yaml', 'application/x-yaml', 'text/yaml'],
    ['multipart_form', 'multipart/form-data'],
    ['url_encoded_form', 'application/x-www-form-urlencoded'],
    ['json', 'application/json', 'text/x-json'],
  ];
  let typesOf = { __proto__: null };
  let keyOf = { __proto__: null };
  const registerType = (key, ...types) => {
    typesOf[key] = types;
    for (let i = 0; i < types.length; i++) keyOf[types[i]] = key;
  };

  // The output so far.
  let provided = [];
  let contentType;
  let chunks = [];
  let characters = 0;
  let started = {};
  let isStartNew = false;
  // For a list: the exchange that takes text and returns rows, and the current page.
  let exchange;
  let page = [];
  let at = 0;
  let isRunning = false;
  let isLast = false;
  const reset = () => {
    chunks = [];
    characters = 0;
    started = {};
    isStartNew = false;
    page = [];
    at = 0;
    isRunning = false;
    isLast = false;
  };

  const split = (text, separator) => {
    const parts = [];
    for (let begin = 0; ; ) {
      const end = indexOf(text, separator, begin);
      parts[parts.length] = trim(end < 0 ? slice(text, begin) : slice(text, begin, end));
      if (end < 0) return parts;
      begin = end + separator.length;
    }
  };
  // Parses a content type or range with its parameters; `q` is between 0 and 1.
  const range = (text) => {
    const parts = split(text, ';');
    const [type, subtype] = split(parts[0] === '*' ? '*/*' : parts[0], '/');
    const parameters = { __proto__: null };
    for (let i = 1; i < parts.length; i++) {
      const pair = split(parts[i], '=');
      if (pair.length === 2) parameters[pair[0]] = pair[1];
    }
    const q = toNumber(parameters.q);
    return { type, subtype, parameters, q: q >= 0 && q <= 1 ? q : 1 };
  };
  // Returns the best fitness of a type among ranges, and the `q` of that range.
  const fit = (text, ranges) => {
    const wanted = range(text);
    let best = { fitness: -1, q: 0 };
    for (let i = 0; i < ranges.length; i++) {
      const { type, subtype, parameters, q } = ranges[i];
      const both = (one, other) => one === other || one === '*' || other === '*';
      if (!both(type, wanted.type) || !both(subtype, wanted.subtype)) continue;
      let fitness = (type === wanted.type ? 100 : 0) + (subtype === wanted.subtype ? 10 : 0);
      const names = keysOf(wanted.parameters);
      for (let n = 0; n < names.length; n++) {
        if (names[n] !== 'q' && parameters[names[n]] === wanted.parameters[names[n]]) fitness += 1;
      }
      if (fitness > best.fitness) best = { fitness, q };
    }
    return best;
  };
  // Returns the first type with the best fitness, or nothing.
  const bestOf = (types, accept) => {
    const ranges = split(accept, ',');
    for (let i = 0; i < ranges.length; i++) ranges[i] = range(ranges[i]);
    let found = '';
    let best = { fitness: -1, q: 0 };
    for (let i = 0; i < types.length; i++) {
      const { fitness, q } = fit(types[i], ranges);
      if (fitness > best.fitness || (fitness === best.fitness && q >= best.q)) {
        best = { fitness, q };
        found = types[i];
      }
    }
    return best.q > 0 ? found : '';
  };

  const answerProvided = (request, design) => {
    const accept = request.headers === undefined ? undefined : request.headers.Accept;
    const format = request.query === undefined ? undefined : request.query.format;
    let key;
    // Reversed, so that the first one provided wins a tie.
    const types = [];
    const told = [];
    for (let i = provided.length - 1; i >= 0; i--) {
      const its = typesOf[provided[i].key] ?? [];
      for (let n = 0; n < its.length; n++) types[types.length] = its[n];
      told[told.length] = its.length > 0 ? join(its, ', ') : provided[i].key;
    }
    if (format) key = format;
    else if (accept) key = keyOf[(contentType = bestOf(types, `${accept}`))];
    else key = provided[0].key;
    if (!accept || format) contentType = (typesOf[key] ?? [])[0];
    for (let i = provided.length - 1; i >= 0; i--) {
      if (provided[i].key === key) return apply(provided[i].fun, design, []);
    }
    throw new Failure('not_acceptable', `Content-Type ${accept || key} not supported, try one of: ${join(told, ', ')}`);
  };

  const wrapped = (response) => (typeof response === 'string' ? { body: response } : response);
  const withContentType = (response) => {
    response.headers = response.headers || {};
    if (contentType) response.headers['Content-Type'] = response.headers['Content-Type'] || contentType;
    return response;
  };
  const takeChunks = () => {
    const text = join(chunks, '');
    chunks = [];
    characters = 0;
    return text;
  };
  const isResponse = (response) => response !== null && typeof response === 'object' && !isArray(response);

  const NAME = /^[A-Za-z_$][\w$]*$/;
  // Writes a thrown value as an expression, one level deep.
  const source = (error) => {
    if (error === undefined) return '(void 0)';
    if (error === null) return 'null';
    if (typeof error === 'string') return `(new String(${stringify(error)}))`;
    if (typeof error === 'number') return `(new Number(${error}))`;
    if (typeof error === 'boolean') return `(new Boolean(${error}))`;
    if (error instanceof Error) return `(new ${error.name}(${stringify(error.message)}))`;
    if (typeof error !== 'object' || isArray(error)) return stringify(error) ?? `${error}`;
    const names = keysOf(error);
    const parts = [];
    for (let i = 0; i < names.length; i++) {
      const name = test(NAME, names[i]) ? names[i] : stringify(names[i]);
      parts[i] = `${name}:${stringify(error[names[i]])}`;
    }
    return `({${join(parts, ', ')}})`;
  };
  const failed = (error, kind) => {
    if (error instanceof Failure) return error;
    if (error !== undefined && error !== null) {
      if (error.error && error.reason) return new Failure(error.error, error.reason);
      if (error[0] === 'error' || error[0] === 'fatal') return new Failure(error[1], error[2]);
    }
    const stack = error === undefined || error === null ? undefined : error.stack;
    return new Failure(kind, `function raised error: ${source(error)} \nstacktrace: ${stack}`);
  };

  // A show passes headers by name to `start`. The `headers` and `code` of a list have no effect in a show, as in
  // CouchDB.
  const withStarted = (response) => {
    if (!isResponse(started)) return response;
    const names = keysOf(started);
    for (let i = 0; i < names.length; i++) {
      if (typeof started[names[i]] !== 'string') continue;
      response.headers = response.headers || {};
      response.headers[names[i]] = started[names[i]];
    }
    return response;
  };

  const show = (found, design, args) => {
    let response = wrapped(apply(found, design, args) || {});
    if (chunks.length > 0) {
      if (!isResponse(response)) response = {};
      response = withStarted(response);
      response.body = takeChunks() + (response.body || '');
    }
    if (provided.length > 0) {
      const more = wrapped(answerProvided(args[1], design) || {});
      response.body = (response.body || '') + takeChunks() + (more.body || '');
      response = withContentType(response);
    }
    if (!isResponse(response)) throw new Failure('render_error', 'undefined response from show function');
    return response;
  };

  const update = (found, design, args) => {
    if (args[1].method === 'GET') throw new Failure('method_not_allowed', 'Update functions do not allow GET');
    const result = apply(found, design, args);
    const response = wrapped(result[1]);
    if (!isResponse(response)) throw new Failure('render_error', 'undefined response from update function');
    return [result[0] === undefined ? null : result[0], response];
  };

  const rewrite = (found, design, args) => {
    const result = apply(found, design, args);
    if (!result) return null;
    return typeof result === 'string' ? { path: result, method: args[0].method } : result;
  };

  // Text leaves when rows are requested, or when it exceeds a size.
  const CHARACTERS_AT_ONCE = 65536;
  const CHARACTERS_MAX = 16777216;
  const pass = (wantsRows) => {
    const head = isStartNew ? stringify(withContentType(started)) : '';
    isStartNew = false;
    started = {};
    return exchange(wantsRows, head, wellFormed(takeChunks()));
  };
  const getRow = () => {
    if (exchange === undefined) throw new Failure('render_error', 'only lists have rows');
    if (isLast) return null;
    if (at >= page.length) {
      if (!isRunning) isStartNew = true;
      isRunning = true;
      const rows = pass(true);
      page = typeof rows === 'string' ? parse(rows) : [];
      at = 0;
      if (page.length === 0) {
        isLast = true;
        return null;
      }
    }
    at += 1;
    return page[at - 1];
  };
  const list = (found, design, args) => {
    let tail = apply(found, design, args);
    if (provided.length > 0) tail = answerProvided(args[1], design);
    if (!isRunning) getRow();
    if (tail !== undefined && tail !== null) chunks[chunks.length] = typeof tail === 'object' ? stringify(tail) : `${tail}`;
    pass(false);
    return null;
  };

  define('registerType', (...given) => registerType(...given));
  define('provides', (key, fun) => {
    provided[provided.length] = { key, fun };
  });
  define('start', (response) => {
    started = response || {};
    isStartNew = true;
  });
  define('send', (chunk) => {
    const text = `${chunk}`;
    chunks[chunks.length] = text;
    characters += text.length;
    if (isRunning && characters >= CHARACTERS_AT_ONCE) pass(false);
    else if (characters > CHARACTERS_MAX) throw new Failure('render_error', 'too much before the first row');
  });
  define('getRow', () => getRow());

  const kinds = { show, update, rewrite, list };
  const compiled = { __proto__: null };
  const compile = (path) => {
    const name = stringify(path);
    const code = member(path);
    if (compiled[name] === undefined) {
      if (code === undefined) throw new Failure('missing', '');
      checkLanguage();
      compiled[name] = compileSource(code);
    }
    return compiled[name];
  };

  return (kind, input, rows) => {
    try {
      if (kind === 'load') {
        load(parse(input));
        return '';
      }
      const { path, args } = parse(input);
      const found = compile(path);
      exchange = kind === 'list' ? rows : undefined;
      provided = [];
      contentType = undefined;
      typesOf = { __proto__: null };
      keyOf = { __proto__: null };
      for (let i = 0; i < TYPES.length; i++) registerType(...TYPES[i]);
      reset();
      try {
        return stringify(kinds[kind](found, inner.loaded(), args));
      } catch (error) {
        if (kind === 'show' && args[0] === null && args[1].path?.length > 5) throw new Failure('not_found', 'document not found');
        throw failed(error, kind === 'rewrite' ? 'rewrite_error' : 'render_error');
      }
    } catch (error) {
      return '!' + told(error);
    }
  };
})();
export { render };
