// The packages of packages/: what is in them, and what their scripts do in a clean root, without a network. A script stands in for the
// program, whose debug build is large; the texts come from the built program itself. `make packages-test` installs a package in a clean
// Debian, with its systemd.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { chmodSync, existsSync, lstatSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { after, before, test } from 'node:test';
import { gunzipSync } from 'node:zlib';
import { build } from '../packages/build.mjs';
import { readHelp } from '../packages/help.mjs';
import { binary } from './server.mjs';

const packages = resolve(import.meta.dirname, '../packages');
const has = (command) => !spawnSync(command, ['--version']).error;
/** Why a test does not run here; it says so in its output. */
const without = (command) => (has(command) ? false : `SKIPPED: ${command} is not installed`);
const skip = process.env.FLATBED_TEST_URL ? 'a program of its own is needed' : false;
const noDeb = skip || without('dpkg-deb');

function run(command, ...words) {
  const { error, status, stdout, stderr } = spawnSync(command, words, { encoding: 'utf8' });
  assert.equal(status, 0, `${command} ${words.join(' ')}: ${error ?? stderr}${stdout}`);
  return stdout;
}

let directory;
let help;
let deb;
const at = (...names) => join(directory, ...names);

before(() => {
  directory = mkdtempSync(join(tmpdir(), 'flatbed-packages-'));
  if (skip) return;
  help = readHelp(binary);
  writeFileSync(at('stand-in'), '#!/bin/sh\n# GLIBC_2.35\nexec /program "$@"\n');
  chmodSync(at('stand-in'), 0o755);
  mkdirSync(at('out'));
  if (noDeb) return;
  [deb] = build({ program: binary, payload: at('stand-in'), out: at('out'), formats: ['deb', 'tar'], compression: 'none' });
  run('dpkg-deb', '--raw-extract', deb, at('deb'));
});
after(() => rmSync(directory, { recursive: true, force: true }));

test('the help texts are understood', { skip }, () => {
  const names = help.commands.map(({ name }) => name);
  for (const name of ['serve', 'load', 'dump', 'check', 'backup', 'restore', 'admin', 'user']) assert.ok(names.includes(name), name);
  for (const { name, usages, paragraphs, options } of help.commands) {
    assert.ok(usages.length > 0, name);
    // The usages of a command that shares the text are no description.
    for (const paragraph of paragraphs) assert.doesNotMatch(paragraph, /^flatbed [^:]*\[OPTIONS\](?!:)/, name);
    // Each line of an option is read as one, and none as the text of another.
    const { stdout } = spawnSync(binary, [name, '--help'], { encoding: 'utf8' });
    const flags = [...stdout.matchAll(/^ {2}--([a-z-]+)/gm)].map(([, flag]) => flag);
    for (const flag of flags) assert.ok(options.some((option) => option.flag === flag), `${name} --${flag}`);
    for (const { flag, help: text } of options) assert.doesNotMatch(text, / --config FILE /, `${name} --${flag}`);
  }
  const { paragraphs } = help.commands.find(({ name }) => name === 'worker');
  assert.ok(paragraphs.some((text) => text.startsWith('flatbed worker import DIR [OPTIONS]: create jobs')), paragraphs);
  const { verbs } = help.commands.find(({ name }) => name === 'admin');
  assert.deepEqual(verbs, ['add', 'remove', 'list']);
});

test('the package of Debian: control fields, files, owners and modes', { skip: noDeb }, () => {
  const field = (name) => run('dpkg-deb', '--field', deb, name).trim();
  assert.equal(field('Package'), 'flatbed');
  assert.equal(field('Version'), help.version);
  assert.match(field('Depends'), /^libc6 \(>= 2\.35\), libgcc-s1, passwd, init-system-helpers /);
  assert.match(field('Description'), /CouchDB/);
  const lines = run('dpkg-deb', '--contents', deb).trim().split('\n');
  const files = new Map(lines.map((line) => [line.split(' ./').at(-1), line]));
  const pages = ['flatbed', ...help.commands.map(({ name }) => `flatbed-${name}`)].map((name) => `usr/share/man/man1/${name}.1.gz`);
  for (const [path, mode] of [
    ['usr/bin/flatbed', '-rwxr-xr-x'],
    ['etc/flatbed/flatbed.toml', '-rw-r-----'],
    ['usr/lib/systemd/system/flatbed.service', '-rw-r--r--'],
    ['usr/share/bash-completion/completions/flatbed', '-rw-r--r--'],
    ['usr/share/zsh/vendor-completions/_flatbed', '-rw-r--r--'],
    ['usr/share/fish/vendor_completions.d/flatbed.fish', '-rw-r--r--'],
    ['usr/share/doc/flatbed/copyright', '-rw-r--r--'],
    ['usr/share/doc/flatbed/installation.md', '-rw-r--r--'],
    ['usr/share/flatbed/monitoring/alerts.yml', '-rw-r--r--'],
    ['usr/share/flatbed/monitoring/grafana-dashboard.json', '-rw-r--r--'],
    ...pages.map((page) => [page, '-rw-r--r--']),
  ]) assert.match(files.get(path) ?? '', new RegExp(`^${mode} root/root `), path);
  assert.equal(readFileSync(at('deb/DEBIAN/conffiles'), 'utf8'), '/etc/flatbed/flatbed.toml\n');
  for (const script of ['postinst', 'prerm', 'postrm']) {
    assert.equal(statSync(at('deb/DEBIAN', script)).mode & 0o777, 0o755, script);
    run('sh', '-n', at('deb/DEBIAN', script));
  }
});

test('the service may not write its configuration, which root reads too', { skip: noDeb }, () => {
  const unit = readFileSync(at('deb/usr/lib/systemd/system/flatbed.service'), 'utf8');
  assert.match(unit, /^ProtectSystem=strict$/m);
  assert.doesNotMatch(unit, /^ReadWritePaths=.*\/etc/m);
  const postinst = readFileSync(at('deb/DEBIAN/postinst'), 'utf8');
  assert.match(postinst, /^ *chown root:flatbed \/etc\/flatbed$/m);
  assert.match(postinst, /^ *chmod 0750 \/etc\/flatbed$/m);
  assert.doesNotMatch(postinst, /^ *chmod \d?[0-7][2367][0-7] /m);
  const spec = readFileSync(join(packages, 'rpm/flatbed.spec'), 'utf8');
  assert.match(spec, /^%dir %attr\(0750, root, flatbed\) \/etc\/flatbed$/m);
});

test('the man pages name each command and option', { skip: noDeb }, () => {
  const page = (name) => gunzipSync(readFileSync(at('deb/usr/share/man/man1', `${name}.1.gz`)), 'utf8').toString().replaceAll('\\-', '-');
  for (const { name, options } of help.commands) {
    assert.match(page('flatbed'), new RegExp(`^\\.B ${name}$`, 'm'));
    for (const { flag } of options) assert.ok(page(`flatbed-${name}`).includes(`.B --${flag}`), `${name} --${flag}`);
  }
});

test('groff reads the man pages without a warning', { skip: noDeb || without('groff') }, () => {
  for (const name of readdirSync(at('deb/usr/share/man/man1'))) {
    const input = gunzipSync(readFileSync(at('deb/usr/share/man/man1', name)));
    const { status, stderr } = spawnSync('groff', ['-man', '-Tascii', '-ww', '-z'], { input, encoding: 'utf8' });
    assert.equal(`${status} ${stderr}`, '0 ', name);
  }
});

test('the configuration file has each setting, and the program reads it with all of them', { skip: noDeb }, () => {
  const text = readFileSync(at('deb/etc/flatbed/flatbed.toml'), 'utf8');
  const settings = help.commands.find(({ name }) => name === 'serve').options.map(({ flag }) => flag.replaceAll('-', '_'));
  for (const key of settings.filter((flag) => !['config', 'ignore_stored_config', 'limits', 'worker'].includes(flag))) {
    const [, , short] = key.match(/^(worker|syncstorage)_(.*)$/) ?? [];
    assert.match(text, new RegExp(`^#?${short ?? key} = `, 'm'), key);
  }
  const used = text.split('\n').filter((line) => line !== '' && !line.startsWith('#'));
  assert.deepEqual(used, ['data_dir = "/var/lib/flatbed"']);
  // The program reads the file before the command fails, for want of the database or of a directory that it may use.
  const read = (content) => {
    const file = at('flatbed.toml');
    writeFileSync(file, content);
    const { stderr } = spawnSync(binary, ['check', 'none', '--config', file, '--data-dir', at('data')], { encoding: 'utf8' });
    return stderr;
  };
  assert.match(read('nothing = 1\n'), /unknown key/);
  // A cluster file and a data directory exclude each other.
  const all = text.replace(/^#(?! )/gm, '').replace(/^cluster_file = .*$/m, '');
  assert.doesNotMatch(read(text), /configuration file/);
  assert.doesNotMatch(read(all), /configuration file|unknown/);
  assert.match(read(all.replace(/^connections = .*$/m, 'connections = "many"')), /connections in .*flatbed\.toml: "many" is not/);
  assert.doesNotMatch(read(all), / in .*flatbed\.toml/, 'the program takes the examples');
});

test('the links of the pages lead to files of the package', { skip: noDeb }, () => {
  const pages = at('deb/usr/share/doc/flatbed');
  for (const name of readdirSync(pages).filter((file) => file.endsWith('.md'))) {
    const targets = [...readFileSync(join(pages, name), 'utf8').matchAll(/\]\(([^)\s#]+)[^)]*\)/g)].map(([, target]) => target);
    for (const target of targets.filter((file) => !file.includes('://'))) assert.ok(existsSync(join(pages, target)), `${name}: ${target}`);
  }
});

test('the completions of bash', { skip: noDeb || without('bash') }, () => {
  const file = at('deb/usr/share/bash-completion/completions/flatbed');
  const complete = (...words) => run('bash', '-c', `source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _flatbed; echo "\${COMPREPLY[*]}"`, file, ...words).trim();
  assert.equal(complete('flatbed', 'du'), 'dump');
  assert.equal(complete('flatbed', 'admin', 'a'), 'add');
  assert.equal(complete('flatbed', 'serve', '--data-'), '--data-dir');
  assert.equal(complete('flatbed', 'serve', '--data-dir', at('st')), at('stand-in'));
});

for (const [shell, file] of [['zsh', 'zsh/vendor-completions/_flatbed'], ['fish', 'fish/vendor_completions.d/flatbed.fish']]) {
  test(`${shell} reads its completions`, { skip: noDeb || without(shell) }, () => run(shell, '-n', at('deb/usr/share', file)));
}

test('fish completes commands and options', { skip: noDeb || without('fish') }, () => {
  const file = at('deb/usr/share/fish/vendor_completions.d/flatbed.fish');
  const complete = (line) => run('fish', '--no-config', '-c', `source ${file}; complete -C '${line}'`).split('\n').map((row) => row.split('\t')[0]);
  assert.deepEqual(complete('flatbed du'), ['dump', '']);
  assert.ok(complete('flatbed serve --data').includes('--data-dir'));
});

test('systemd takes the unit', { skip: noDeb || without('systemd-analyze') }, (context) => {
  // The program must exist where the unit says, so a copy names another one.
  const unit = readFileSync(at('deb/usr/lib/systemd/system/flatbed.service'), 'utf8');
  assert.match(unit, /^ExecStart=\/usr\/bin\/flatbed serve --config \/etc\/flatbed\/flatbed\.toml$/m);
  mkdirSync(at('unit'));
  writeFileSync(at('unit/flatbed.service'), unit.replace('/usr/bin/flatbed', '/bin/true').replace(/^Documentation=.*\n/m, ''));
  const verify = (file) => {
    const { stderr } = spawnSync('systemd-analyze', ['verify', '--man=no', at('unit', file)], { encoding: 'utf8' });
    // Units of this machine may have faults of their own.
    return stderr.split('\n').filter((line) => line.includes(file));
  };
  writeFileSync(at('unit/faulty.service'), '[Service]\nExecStart=/bin/true\nProtectSytem=strict\n');
  // It needs a few things of the system beside itself.
  if (verify('faulty.service').length === 0) return context.skip('SKIPPED: systemd-analyze finds no fault here');
  assert.deepEqual(verify('flatbed.service'), []);
});

const asRoot = process.getuid?.() === 0 ? [] : ['fakeroot'];
test('an upgrade keeps a changed configuration file, and a removal too', { skip: noDeb || without(asRoot[0] ?? 'dpkg') }, () => {
  // The scripts make a user and want the root of a system: the next test has one. Here dpkg handles the files alone.
  const packed = (version, more) => {
    const root = at(`files-${version}`);
    run('cp', '-a', at('deb'), root);
    for (const script of ['postinst', 'prerm', 'postrm']) rmSync(join(root, 'DEBIAN', script));
    const control = join(root, 'DEBIAN/control');
    writeFileSync(control, readFileSync(control, 'utf8').replace(/^Version: .*$/m, `Version: ${version}`).replace(/^Depends: .*\n/m, ''));
    const file = join(root, 'etc/flatbed/flatbed.toml');
    writeFileSync(file, readFileSync(file, 'utf8') + more);
    run('dpkg-deb', '--root-owner-group', '-Znone', '--build', root, at(`${version}.deb`));
    return at(`${version}.deb`);
  };
  const root = at('root');
  for (const name of ['updates', 'info', 'triggers']) mkdirSync(join(root, 'var/lib/dpkg', name), { recursive: true });
  for (const name of ['status', 'available']) writeFileSync(join(root, 'var/lib/dpkg', name), '');
  // dpkg wants these programs to exist, and calls none of them.
  mkdirSync(at('bin'));
  for (const name of ['ldconfig', 'start-stop-daemon']) symlinkSync('/bin/true', at('bin', name));
  const dpkg = (...words) => {
    const options = [`--root=${root}`, '--force-not-root', '--force-confold', '--force-script-chrootless', `--log=${at('dpkg.log')}`];
    const env = { ...process.env, PATH: `${process.env.PATH}:/usr/sbin:/sbin:${at('bin')}` };
    const [command, ...line] = [...asRoot, 'dpkg', ...options, ...words];
    const { status, stdout, stderr } = spawnSync(command, line, { encoding: 'utf8', env });
    assert.equal(status, 0, `dpkg ${words.join(' ')}: ${stderr}${stdout}`);
  };
  const file = join(root, 'etc/flatbed/flatbed.toml');
  dpkg('--install', packed('1', ''));
  assert.ok(existsSync(join(root, 'usr/bin/flatbed')));
  writeFileSync(file, 'listen = "127.0.0.1:1"\n');
  dpkg('--install', packed('2', '# newer\n'));
  assert.equal(readFileSync(file, 'utf8'), 'listen = "127.0.0.1:1"\n');
  assert.match(readFileSync(`${file}.dpkg-dist`, 'utf8'), /# newer\n$/);
  dpkg('--remove', 'flatbed');
  assert.ok(!existsSync(join(root, 'usr/bin/flatbed')) && existsSync(file));
  dpkg('--purge', 'flatbed');
  assert.ok(!existsSync(file));
});

/** Why no clean root can be made of this machine's programs: that wants root, a Debian, and the right to mount. */
function withoutCleanRoot() {
  if (process.getuid?.() !== 0) return 'SKIPPED: only root makes a clean root';
  for (const file of ['/usr/share/base-passwd/passwd.master', '/usr/bin/deb-systemd-helper']) {
    if (!existsSync(file)) return `SKIPPED: this Debian lacks ${file}`;
  }
  const split = ['bin', 'sbin', 'lib', 'lib32', 'lib64', 'libx32'].find((name) => lstatSync(`/${name}`, { throwIfNoEntry: false })?.isDirectory());
  if (split) return `SKIPPED: /${split} is no link into /usr`;
  const missing = ['ip', 'nsenter', 'runuser', 'unshare', 'useradd'].find((name) => !['/usr/sbin', '/usr/bin'].some((place) => existsSync(join(place, name))));
  if (missing) return `SKIPPED: ${missing} is not installed`;
  // The mounts of packages/test; a container may allow only some of them.
  const mounts = `ip link set lo up && cd "$0" && mount -t tmpfs tmpfs . && cd "$0" && mkdir u w m p && mount -t proc proc p &&
    mount -t overlay -o lowerdir=/usr,upperdir=u,workdir=w overlay m && touch null && mount --bind /dev/null null && echo >null`;
  const env = { PATH: `${process.env.PATH}:/usr/sbin:/sbin` };
  const { status } = spawnSync('unshare', ['--mount', '--net', '--propagation', 'private', 'sh', '-c', mounts, directory], { env });
  return status === 0 ? false : 'SKIPPED: this machine does not let root mount /usr, /proc and devices in namespaces';
}

test('a clean root: the package is installed, serves, is upgraded, removed and purged', { skip: noDeb }, (context) => {
  const reason = withoutCleanRoot();
  if (reason) return context.skip(reason);
  const env = { PATH: `${process.env.PATH}:/usr/sbin:/sbin`, CLEAN_ROOT: 'host', PROGRAM: binary };
  const { error, status, stdout, stderr } = spawnSync(join(packages, 'test'), [deb], { encoding: 'utf8', env });
  assert.equal(status, 0, `${error ?? stderr}${stdout}`);
});

test('the tarball', { skip: noDeb || without('tar') }, () => {
  const [name] = readdirSync(at('out')).filter((file) => file.endsWith('.tar.gz'));
  const files = run('tar', '--list', '--file', at('out', name)).split('\n').map((file) => file.split('/').slice(1).join('/'));
  for (const file of ['bin/flatbed', 'etc/flatbed/flatbed.toml', 'LICENSE', 'share/flatbed/Containerfile', 'share/flatbed/kustomize/kustomization.yaml', 'share/flatbed/monitoring/alerts.yml']) {
    assert.ok(files.includes(file), file);
  }
});

test('the rpm has the files of the package of Debian, with their owners and modes, and its scripts are shell', { skip: noDeb || without('rpmbuild') }, () => {
  mkdirSync(at('rpm'));
  const [rpm] = build({ program: binary, payload: at('stand-in'), out: at('rpm'), formats: ['rpm'] });
  const query = (...words) => run('rpm', '--query', '--package', ...words, rpm);
  const listed = query('--queryformat', '[%{FILEMODES:perms} %{FILEUSERNAME} %{FILEGROUPNAME} %{FILENAMES}\n]').trim().split('\n');
  const names = listed.map((line) => line.split(' ')[3].slice(1));
  // Each system has its own place of the licence and of zsh's functions.
  const own = /^usr\/share\/(zsh|licenses|doc\/flatbed\/copyright)/;
  const files = run('dpkg-deb', '--contents', deb).trim().split('\n').map((line) => line.split(' ./').at(-1)).filter((name) => name !== '' && !name.endsWith('/'));
  for (const name of files.filter((file) => !own.test(file))) assert.ok(names.includes(name), name);
  assert.ok(names.includes('usr/share/licenses/flatbed/LICENSE') && names.includes('usr/share/zsh/site-functions/_flatbed'), names);
  for (const line of ['-rwxr-xr-x root root /usr/bin/flatbed', '-rw-r----- root flatbed /etc/flatbed/flatbed.toml', 'drwxr-x--- flatbed flatbed /var/lib/flatbed']) {
    assert.ok(listed.includes(line), line);
  }
  assert.equal(query('--configfiles').trim(), '/etc/flatbed/flatbed.toml');
  const scripts = query('--queryformat', '%{PREIN}\n%{POSTIN}\n%{PREUN}\n%{POSTUN}\n');
  assert.match(scripts, /useradd --system/);
  writeFileSync(at('scripts'), scripts);
  run('sh', '-n', at('scripts'));
});

test('the image and the manifests agree with the program', { skip }, () => {
  const image = readFileSync(join(packages, 'Containerfile'), 'utf8');
  const manifest = readFileSync(join(packages, 'kustomize/deployment.yaml'), 'utf8');
  assert.match(image, /^USER 5984:5984$/m);
  assert.match(image, /GET \/_up HTTP/);
  assert.match(manifest, /runAsNonRoot: true/);
  const known = help.commands.find(({ name }) => name === 'serve').options.map(({ flag }) => `FLATBED_${flag.replaceAll('-', '_').toUpperCase()}`);
  const named = new Set(`${image}${manifest}`.match(/\bFLATBED_[A-Z_]+/g));
  for (const name of named) assert.ok(known.includes(name) || name === 'FLATBED_ADMIN', name);
  // `flatbed serve` refuses variables that it does not know, and the script's own are in its environment.
  for (const name of readFileSync(join(packages, 'test'), 'utf8').match(/\bFLATBED_[A-Z_]+/g) ?? []) assert.ok(known.includes(name), `packages/test: ${name}`);
  const listed = readFileSync(join(packages, 'kustomize/kustomization.yaml'), 'utf8').match(/^ {2}- (\S+)$/gm).map((line) => line.slice(4)).sort();
  assert.deepEqual(listed, readdirSync(join(packages, 'kustomize')).filter((file) => file !== 'kustomization.yaml').sort());
});

test('kubectl builds the base, and the overlay of the documentation', { skip: without('kubectl') }, () => {
  const base = at('overlay/flatbed/packages/kustomize');
  mkdirSync(base, { recursive: true });
  for (const name of readdirSync(join(packages, 'kustomize'))) writeFileSync(join(base, name), readFileSync(join(packages, 'kustomize', name)));
  assert.match(run('kubectl', 'kustomize', base), /^kind: Deployment$/m);
  const page = readFileSync(join(packages, '../docs/installation.md'), 'utf8');
  writeFileSync(at('overlay/kustomization.yaml'), page.match(/^# kustomization\.yaml\n.*?(?=^```)/ms)[0]);
  const built = run('kubectl', 'kustomize', at('overlay'));
  for (const line of ['namespace: documents', 'image: registry.example/flatbed:0.1.0', 'name: my-cluster-config', 'kind: Secret']) {
    assert.ok(built.includes(line), line);
  }
});
