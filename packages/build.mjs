// Makes the packages of a built program: `node packages/build.mjs --program target/release/flatbed --out target/packages`.
//   --formats deb,rpm,tar   which ones [all]
//   --version VERSION       another version than the program's own, for tests of upgrades
//   --compression NAME      of the .deb: xz, or none for tests [xz]
// dpkg-deb and rpmbuild are the formats' own tools, and Debian has both; so nothing else is fetched.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { chmodSync, copyFileSync, cpSync, existsSync, lstatSync, lutimesSync, mkdirSync, readFileSync, readdirSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { gzipSync } from 'node:zlib';
import { bash, fish, zsh } from './completions.mjs';
import { configurationFile } from './configuration.mjs';
import { readHelp } from './help.mjs';
import { manPages } from './man.mjs';

const here = import.meta.dirname;
const repository = resolve(here, '..');
const MAINTAINER = 'Flatbed developers <flatbed@localhost>';

function run(command, words, options) {
  const { error, status, stdout, stderr } = spawnSync(command, words, { encoding: 'utf8', ...options });
  if (error?.code === 'ENOENT') throw new Error(`${command} is missing (Debian: apt install ${command === 'rpmbuild' ? 'rpm' : 'dpkg'})`);
  if (error || status !== 0) throw new Error(`${command} ${words.join(' ')}: ${error?.message ?? stderr}`);
  return stdout.trim();
}

/** The time of the last commit, so that equal sources make equal packages. */
function sourceEpoch() {
  if (process.env.SOURCE_DATE_EPOCH) return Number(process.env.SOURCE_DATE_EPOCH);
  const { status, stdout } = spawnSync('git', ['log', '-1', '--format=%ct'], { cwd: repository, encoding: 'utf8' });
  return status === 0 ? Number(stdout) : Math.floor(Date.now() / 1_000);
}

/** The files below a directory, relative to it and sorted. */
function filesOf(directory) {
  const entries = readdirSync(directory, { recursive: true, withFileTypes: true });
  return entries.filter((entry) => !entry.isDirectory()).map((entry) => relative(directory, join(entry.parentPath ?? entry.path, entry.name))).sort();
}

/** Sets the modes that a user's umask may have changed, and one time. */
function settle(directory, epoch) {
  for (const name of ['', ...readdirSync(directory, { recursive: true })].sort().reverse()) {
    const path = join(directory, name);
    const state = lstatSync(path);
    if (!state.isSymbolicLink()) chmodSync(path, state.isDirectory() || state.mode & 0o100 ? 0o755 : 0o644);
    lutimesSync(path, epoch, epoch);
  }
}

/** Writes the tree of files that all packages share. */
function stage(tree, program, help, epoch) {
  const put = (path, content, mode = 0o644) => {
    mkdirSync(dirname(join(tree, path)), { recursive: true });
    writeFileSync(join(tree, path), content, { mode });
  };
  const copy = (from, to) => put(to, readFileSync(join(repository, from)));
  const packed = (content) => gzipSync(content, { level: 9 });
  mkdirSync(join(tree, 'usr/bin'), { recursive: true });
  copyFileSync(program, join(tree, 'usr/bin/flatbed'));
  chmodSync(join(tree, 'usr/bin/flatbed'), 0o755);
  put('etc/flatbed/flatbed.toml', configurationFile(help));
  copy('packages/systemd/flatbed.service', 'usr/lib/systemd/system/flatbed.service');
  const date = new Date(epoch * 1_000).toISOString().slice(0, 10);
  for (const [name, text] of manPages(help, date)) put(`usr/share/man/man1/${name}.gz`, packed(text));
  put('usr/share/bash-completion/completions/flatbed', bash(help));
  put('usr/share/zsh/site-functions/_flatbed', zsh(help));
  put('usr/share/fish/vendor_completions.d/flatbed.fish', fish(help));
  // All pages, since they have links to one another. What they name beside them is in the repository alone, without a link.
  for (const page of readdirSync(join(repository, 'docs'))) {
    const text = readFileSync(join(repository, 'docs', page), 'utf8').replaceAll('](../CHANGELOG.md)', '](changelog.gz)');
    put(`usr/share/doc/flatbed/${page}`, text.replace(/\[([^\]]*)\]\(\.\.\/[^)]*\)/g, '$1'));
  }
  for (const name of readdirSync(join(repository, 'monitoring'))) copy(`monitoring/${name}`, `usr/share/flatbed/monitoring/${name}`);
  put('usr/share/doc/flatbed/changelog.gz', packed(readFileSync(join(repository, 'CHANGELOG.md'))));
}

/** The libraries that the program needs, as packages of Debian. */
function dependencies(program) {
  const versions = readFileSync(program, 'latin1').match(/GLIBC_2\.\d+/g) ?? [];
  const newest = Math.max(17, ...versions.map((version) => Number(version.split('.')[1])));
  return `libc6 (>= 2.${newest}), libgcc-s1, passwd, init-system-helpers (>= 1.51)`;
}

function makeDeb({ tree, work, out, version, about, compression, epoch }) {
  const root = join(work, 'deb');
  cpSync(tree, root, { recursive: true, preserveTimestamps: true });
  mkdirSync(join(root, 'usr/share/zsh/vendor-completions'));
  cpSync(join(root, 'usr/share/zsh/site-functions/_flatbed'), join(root, 'usr/share/zsh/vendor-completions/_flatbed'));
  rmSync(join(root, 'usr/share/zsh/site-functions'), { recursive: true });
  // Debian's base has the text of the licence.
  writeFileSync(join(root, 'usr/share/doc/flatbed/copyright'), `Copyright: the developers of Flatbed
License: Apache-2.0
 The text of the licence is in /usr/share/common-licenses/Apache-2.0.
`);
  const architecture = run('dpkg', ['--print-architecture']);
  const files = filesOf(root);
  const kilobytes = files.reduce((sum, file) => sum + Math.ceil(lstatSync(join(root, file)).size / 1_024), 0);
  const control = join(root, 'DEBIAN');
  mkdirSync(control);
  writeFileSync(join(control, 'control'), `Package: flatbed
Version: ${version}
Architecture: ${architecture}
Maintainer: ${MAINTAINER}
Installed-Size: ${kilobytes}
Depends: ${dependencies(join(root, 'usr/bin/flatbed'))}
Section: database
Priority: optional
Description: ${about}
 Flatbed answers CouchDB's HTTP API from FoundationDB, or from an embedded
 engine with FoundationDB's transaction semantics. The service serves the
 embedded engine in /var/lib/flatbed on http://127.0.0.1:5984.
`);
  writeFileSync(join(control, 'conffiles'), '/etc/flatbed/flatbed.toml\n');
  const sums = files.map((file) => `${createHash('md5').update(readFileSync(join(root, file))).digest('hex')}  ${file}\n`);
  writeFileSync(join(control, 'md5sums'), sums.filter((line) => !line.endsWith('etc/flatbed/flatbed.toml\n')).join(''));
  for (const script of ['postinst', 'prerm', 'postrm']) cpSync(join(here, 'debian', script), join(control, script));
  settle(root, epoch);
  // Only the owner and the service's group may read passwords, also before the package is configured.
  chmodSync(join(root, 'etc/flatbed/flatbed.toml'), 0o640);
  const file = join(out, `flatbed_${version}_${architecture}.deb`);
  run('dpkg-deb', ['--root-owner-group', `-Z${compression}`, '--build', root, file], { env: { ...process.env, SOURCE_DATE_EPOCH: String(epoch) } });
  return file;
}

function makeRpm({ tree, work, out, version, about, epoch }) {
  const root = join(work, 'rpm');
  cpSync(tree, root, { recursive: true, preserveTimestamps: true });
  mkdirSync(join(root, 'usr/share/licenses/flatbed'), { recursive: true });
  copyFileSync(join(repository, 'LICENSE'), join(root, 'usr/share/licenses/flatbed/LICENSE'));
  mkdirSync(join(root, 'var/lib/flatbed'), { recursive: true });
  settle(root, epoch);
  const top = join(work, 'rpmbuild');
  const define = (name, value) => ['--define', `${name} ${value}`];
  run('rpmbuild', [
    '-bb', ...define('_topdir', top), ...define('staged', root), ...define('release_version', version),
    ...define('maintainer', MAINTAINER), ...define('about', about), ...define('use_source_date_epoch_as_buildtime', '1'),
    ...define('_rpmfilename', '%{name}-%{version}-%{release}.%{arch}.rpm'), join(here, 'rpm/flatbed.spec'),
  ], { env: { ...process.env, SOURCE_DATE_EPOCH: String(epoch) } });
  const [name] = readdirSync(join(top, 'RPMS'));
  copyFileSync(join(top, 'RPMS', name), join(out, name));
  return join(out, name);
}

/** `bin`, `etc`, `lib` and `share`, for /usr/local or any other directory. */
function makeTar({ tree, work, out, version, epoch }) {
  const name = `flatbed-${version}-${process.platform}-${process.arch}`;
  const root = join(work, name);
  cpSync(join(tree, 'usr'), root, { recursive: true, preserveTimestamps: true });
  cpSync(join(tree, 'etc'), join(root, 'etc'), { recursive: true, preserveTimestamps: true });
  for (const file of ['LICENSE', 'README.md']) copyFileSync(join(repository, file), join(root, file));
  for (const directory of ['kustomize', 'Containerfile']) cpSync(join(here, directory), join(root, 'share/flatbed', directory), { recursive: true });
  settle(root, epoch);
  const file = join(out, `${name}.tar.gz`);
  const tar = spawnSync('tar', ['--create', '--sort=name', '--owner=0', '--group=0', '--numeric-owner', '--directory', work, name], { maxBuffer: 2 ** 31 - 1 });
  if (tar.status !== 0) throw new Error(`tar: ${tar.error?.message ?? tar.stderr}`);
  writeFileSync(file, gzipSync(tar.stdout));
  return file;
}

const MAKERS = { deb: makeDeb, rpm: makeRpm, tar: makeTar };

/** Makes the packages, and returns their files. `payload` stands in for the program in tests, whose debug build is large. */
export function build({ program, payload = program, out, version, formats = Object.keys(MAKERS), compression = 'xz' }) {
  const help = readHelp(program);
  const epoch = sourceEpoch();
  const work = join(out, 'work');
  rmSync(work, { recursive: true, force: true });
  const tree = join(work, 'tree');
  stage(tree, payload, help, epoch);
  settle(tree, epoch);
  const about = help.about[0].toUpperCase() + help.about.slice(1);
  const made = formats.map((format) => MAKERS[format]({ tree, work, out, about, version: version ?? help.version, compression, epoch }));
  rmSync(work, { recursive: true });
  return made;
}

function main() {
  const text = { type: 'string' };
  const { values } = parseArgs({ options: { program: text, out: text, version: text, formats: text, compression: text } });
  if (!values.program || !values.out) throw new Error('--program FILE and --out DIRECTORY are needed');
  const out = resolve(values.out);
  mkdirSync(out, { recursive: true });
  const made = build({ ...values, program: resolve(values.program), out, formats: values.formats?.split(',') });
  for (const file of made) console.log(`${file} ${Math.ceil(lstatSync(file).size / 1e6)} MB`);
}

if (process.argv[1] && existsSync(process.argv[1]) && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  try {
    main();
  } catch (error) {
    console.error(`packages: ${error.message}`);
    process.exitCode = 1;
  }
}
