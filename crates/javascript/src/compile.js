// Compiles a source as CouchDB 3.5 does. The source is a script that ends with a function, or an expression such as
// `function (doc) {...}`. A declaration (`function named(doc) {...}`) and other kinds of functions are refused.
const compileSource = (() => {
  const { Failure, evaluate, trimEnd } = inner;
  const { getPrototypeOf } = Object;
  const uncurry = (f) => f.call.bind(f);
  const [slice, search] = [uncurry(''.slice), uncurry(''.indexOf)];
  const ordinary = getPrototypeOf(() => {});
  const asText = uncurry(Function.prototype.toString);
  const ATTEMPTS_MAX = 20;

  const attempt = (code) => {
    try {
      return { value: evaluate(checkedCode(code)) };
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
      return { error };
    }
  };
  // Other functions may precede it: `function helper() {...} function (doc) {...}`.
  const after = (source) => {
    let at = search(source, 'function', 1);
    for (let i = 0; at >= 0 && i < ATTEMPTS_MAX; i++) {
      const made = attempt(slice(source, 0, at) + '\n;(' + slice(source, at) + '\n)');
      if (made.error === undefined) return made;
      at = search(source, 'function', at + 1);
    }
    return undefined;
  };

  return (source) => {
    if (typeof source !== 'string' || source === '') throw new Failure('not_found', 'missing function');
    const bare = trimEnd(source, /[\s;]+$/, '');
    let made;
    try {
      const script = attempt(source);
      made = script.error === undefined ? script : attempt('(' + bare + '\n)');
      if (made.error !== undefined) made = after(bare) ?? made;
    } catch (error) {
      made = { error };
    }
    if (made.error !== undefined) throw new Failure('compilation_error', `${made.error} (${source})`);
    const { value } = made;
    if (typeof value !== 'function' || getPrototypeOf(value) !== ordinary || search(asText(value), 'class') === 0) {
      throw new Failure('compilation_error', `Expression does not eval to a function. (${source})`);
    }
    return value;
  };
})();
