// Makes browser-compat-data.jsonl from npm's @mdn/browser-compat-data (CC0-1.0): node make.mjs DATA.json > FILE
// One document a browser and one a feature; of the features every fortieth, so that all parts of the data are met.
// node make.mjs DATA.json all: every feature there is, sub-features too, each a document of its own (some 18,000).
import { readFileSync } from 'node:fs';

const data = JSON.parse(readFileSync(process.argv[2], 'utf8'));
const write = (id, type, body) => process.stdout.write(JSON.stringify({ _id: id, type, ...body }) + '\n');

for (const [name, browser] of Object.entries(data.browsers)) write(`browsers.${name}`, 'browser', { browser });

const all = process.argv[3] === 'all';
const features = [];
for (const part of ['api', 'css', 'html', 'http', 'javascript', 'svg', 'webassembly']) {
  const walk = (path, node) => {
    const deep = part === 'api' || part === 'http' || part === 'webassembly' ? 2 : 3;
    for (const [name, child] of Object.entries(node)) {
      if (name === '__compat') continue;
      const here = [...path, name];
      if (all) {
        if (child.__compat) features.push([here, child.__compat]);
        walk(here, child);
        continue;
      }
      if (child.__compat && here.length >= deep) features.push([here, child]);
      else walk(here, child);
    }
  };
  walk([part], data[part]);
}
features
  .filter((_, index) => all || index % 40 === 0)
  .forEach(([path, feature]) => write(path.join('.'), 'feature', { path, feature }));
