// Firefox itself, without a screen, driven by Marionette; and a stand-in for Mozilla's accounts, which signs what real ones sign.
//   FIREFOX    the browser [/usr/bin/firefox-esr]
import { spawn } from 'node:child_process';
import { createPublicKey, createSign, generateKeyPairSync, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const executablePath = process.env.FIREFOX ?? '/usr/bin/firefox-esr';
/** Why there can be no test. */
export const skip = existsSync(executablePath) ? false : `${executablePath} is not there: install firefox-esr, or name one in FIREFOX`;

/** What a device may do with a token. */
const SCOPE = 'https://identity.mozilla.com/apps/oldsync';

const base64url = (what) => Buffer.from(what).toString('base64url');

/** One account, and the server that Firefox asks about it: who asks is believed, and told apart by the session of the signature. */
export class Accounts {
  #server;
  #keys = new Map();
  #kid;
  #devices = new Map();
  /** What it is called, and what its data are encrypted with. */
  uid = randomBytes(16).toString('hex');
  email = 'household@example.org';
  scopedKeys;
  generation;

  static async start() {
    const accounts = new Accounts();
    accounts.rotate();
    accounts.renew(Date.now() - 1_000_000);
    accounts.#server = createServer((request, response) => accounts.#answer(request, response)).listen(0, '127.0.0.1');
    await once(accounts.#server, 'listening');
    return accounts;
  }

  get url() { return `http://127.0.0.1:${this.#server.address().port}`; }

  get jwks() { return `${this.url}/v1/jwks`; }

  /** A new key to sign with, instead of all others. */
  rotate() {
    this.#kid = randomBytes(8).toString('hex');
    this.#keys = new Map([[this.#kid, generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey]]);
  }

  /** The account gets other keys, as with a password that was forgotten. */
  renew(at) {
    this.generation = at;
    const kid = `${at}-${base64url(randomBytes(16))}`;
    this.scopedKeys = { [SCOPE]: { kty: 'oct', scope: SCOPE, kid, k: base64url(randomBytes(64)) } };
  }

  /** How a device says which keys it has. */
  get keyId() { return this.scopedKeys[SCOPE].kid; }

  /** The keys that it signs with, as a JWK set. */
  published() {
    const jwk = ([kid, key]) => ({ ...createPublicKey(key).export({ format: 'jwk' }), kid, alg: 'RS256', use: 'sig' });
    return { keys: [...this.#keys].map(jwk) };
  }

  /** What it signs for a device, for so many seconds. */
  token(lifetime) {
    const now = Math.floor(Date.now() / 1000);
    const header = { alg: 'RS256', typ: 'at+jwt', kid: this.#kid };
    const claims = {
      iss: 'https://accounts.firefox.com', sub: this.uid, scope: SCOPE, iat: now, exp: now + lifetime,
      'fxa-generation': this.generation, client_id: '5882386c6d801776', jti: randomBytes(8).toString('hex'),
    };
    const signed = [header, claims].map((part) => base64url(JSON.stringify(part))).join('.');
    return `${signed}.${createSign('RSA-SHA256').update(signed).sign(this.#keys.get(this.#kid)).toString('base64url')}`;
  }

  async #answer(request, response) {
    let text = '';
    for await (const piece of request.setEncoding('utf8')) text += piece;
    const { pathname } = new URL(request.url, this.url);
    const session = request.headers.authorization?.match(/id="(\w+)"/)?.[1];
    const asked = text && text.startsWith('{') ? JSON.parse(text) : {};
    const answers = {
      'GET /v1/jwks': () => this.published(),
      'POST /v1/oauth/token': () => ({
        access_token: this.token(asked.ttl ?? 900), token_type: 'bearer', scope: asked.scope, expires_in: asked.ttl ?? 900,
      }),
      'POST /v1/account/device': () => {
        const device = { id: randomBytes(16).toString('hex'), ...this.#devices.get(session), ...asked };
        this.#devices.set(session, device);
        return device;
      },
      'GET /v1/account/devices': () => [...this.#devices].map(([whose, device]) => ({
        lastAccessTime: Date.now(), pushCallback: null, pushEndpointExpired: false, ...device, isCurrentDevice: whose === session,
      })),
      'GET /v1/account/device/commands': () => ({ index: 0, last: true, messages: [] }),
      'GET /v1/account/attached_clients': () => [],
      'GET /v1/session/status': () => ({ state: 'verified', uid: this.uid }),
      'GET /v1/profile': () => ({ uid: this.uid, email: this.email, avatar: null, avatarDefault: true }),
      // A page, of which devices tell each other.
      'GET /page': () => ({ a: 'page' }),
    };
    const answer = answers[`${request.method} ${pathname}`] ?? (() => ({}));
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(answer()));
  }

  stop() {
    this.#server.closeAllConnections();
    this.#server.close();
  }
}

/** One connection to Marionette: packets are `LENGTH:[type, id, ...]`. */
class Marionette {
  #socket;
  #rest = Buffer.alloc(0);
  #waiting = new Map();
  #last = 0;
  #ended;

  static async connect(port) {
    const marionette = new Marionette();
    marionette.#socket = connect(port, '127.0.0.1');
    marionette.#socket.on('data', (data) => marionette.#read(data));
    const end = () => {
      marionette.#ended = true;
      for (const { reject } of marionette.#waiting.values()) reject(new Error('Firefox has gone'));
    };
    marionette.#socket.on('close', end).on('error', end);
    await once(marionette.#socket, 'connect');
    return marionette;
  }

  #read(data) {
    this.#rest = Buffer.concat([this.#rest, data]);
    for (;;) {
      const colon = this.#rest.indexOf(':');
      if (colon < 0) return;
      const end = colon + 1 + Number(this.#rest.subarray(0, colon));
      if (this.#rest.length < end) return;
      const packet = JSON.parse(this.#rest.subarray(colon + 1, end));
      this.#rest = this.#rest.subarray(end);
      // The first one says what it speaks, and is no answer.
      if (!Array.isArray(packet)) continue;
      const [, id, error, result] = packet;
      const asked = this.#waiting.get(id);
      this.#waiting.delete(id);
      if (error) asked?.reject(new Error(`${error.error}: ${error.message}\n${error.stacktrace}`));
      else asked?.resolve(result?.value);
    }
  }

  call(name, parameters = {}) {
    if (this.#ended) return Promise.reject(new Error('Firefox has gone'));
    this.#last += 1;
    const text = JSON.stringify([0, this.#last, name, parameters]);
    const answer = new Promise((resolve, reject) => { this.#waiting.set(this.#last, { resolve, reject }); });
    this.#socket.write(`${Buffer.byteLength(text)}:${text}`);
    return answer;
  }
}

/** What is not asked of anybody while it runs, and what makes it start sooner. */
const QUIET = {
  'app.normandy.enabled': false,
  'app.update.disabledForTesting': true,
  'browser.aboutwelcome.enabled': false,
  'browser.newtabpage.enabled': false,
  'browser.search.update': false,
  'browser.sessionstore.resume_from_crash': false,
  'browser.startup.page': 0,
  'browser.startup.homepage_override.mstone': 'ignore',
  'datareporting.policy.dataSubmissionEnabled': false,
  'dom.ipc.processPrelaunch.enabled': false,
  'dom.push.connection.enabled': false,
  'extensions.update.enabled': false,
  'extensions.systemAddon.update.enabled': false,
  'fission.autostart': false,
  'media.gmp-manager.updateEnabled': false,
  'network.captive-portal-service.enabled': false,
  'network.connectivity-service.enabled': false,
  'network.proxy.type': 0,
  'services.settings.server': 'data:,#remote-settings-dummy/v1',
  'toolkit.telemetry.server': '',
  'marionette.port': 0,
};

/** What runs within Firefox, before each script: `arguments` are the script's. */
const WITHIN = `
  const { Weave } = ChromeUtils.importESModule('resource://services-sync/main.sys.mjs');
  const { getFxAccountsSingleton } = ChromeUtils.importESModule('resource://gre/modules/FxAccounts.sys.mjs');
  const { PlacesUtils } = ChromeUtils.importESModule('resource://gre/modules/PlacesUtils.sys.mjs');
  const fxAccounts = getFxAccountsSingleton();
  const { Service } = Weave;
  const { setTimeout } = ChromeUtils.importESModule('resource://gre/modules/Timer.sys.mjs');
  const rest = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });
  const settled = async () => { while (Service.locked) await rest(20); };
`;

/** A profile of its own, with a device of the account. */
export class Firefox {
  #child;
  #directory;
  #marionette;
  #name;

  static async start(accounts, tokenServer, name) {
    const firefox = new Firefox();
    firefox.#name = name;
    const directory = mkdtempSync(join(tmpdir(), 'flatbed-firefox-'));
    firefox.#directory = directory;
    const preferences = {
      ...QUIET,
      'identity.sync.tokenserver.uri': tokenServer,
      'identity.fxaccounts.auth.uri': `${accounts.url}/v1`,
      'identity.fxaccounts.remote.root': `${accounts.url}/`,
      'identity.fxaccounts.remote.oauth.uri': `${accounts.url}/v1`,
      'identity.fxaccounts.remote.profile.uri': `${accounts.url}/v1`,
      'identity.fxaccounts.allowHttp': true,
    };
    const lines = Object.entries(preferences).map(([key, value]) => `user_pref(${JSON.stringify(key)}, ${JSON.stringify(value)});\n`);
    writeFileSync(join(directory, 'user.js'), lines.join(''));
    const options = ['--headless', '--no-remote', '--marionette', '--remote-allow-system-access', '--profile', directory];
    firefox.#child = spawn(executablePath, options, {
      env: { ...process.env, HOME: directory, MOZ_CRASHREPORTER_DISABLE: '1', MOZ_DISABLE_CONTENT_SANDBOX: '1' },
      stdio: process.env.FIREFOX_LOG ? 'inherit' : 'ignore',
    });
    const said = join(directory, 'MarionetteActivePort');
    const end = Date.now() + 45_000;
    for (;;) {
      const port = existsSync(said) ? Number(readFileSync(said, 'utf8')) : 0;
      if (port > 0) {
        firefox.#marionette = await Marionette.connect(port);
        break;
      }
      if (Date.now() > end || firefox.#child.exitCode !== null) throw new Error('Firefox did not start');
      await new Promise((resolve) => { setTimeout(resolve, 50); });
    }
    await firefox.#marionette.call('WebDriver:NewSession');
    // A test has an end of its own; 30 s are little on a busy machine.
    await firefox.#marionette.call('WebDriver:SetTimeouts', { script: 600_000 });
    await firefox.#marionette.call('Marionette:SetContext', { value: 'chrome' });
    return firefox;
  }

  /** Runs a script within the browser, as itself; what it returns is JSON. */
  run(script, ...args) {
    const text = `${WITHIN}; return (async function () { ${script} }).apply(null, arguments);`;
    return this.#marionette.call('WebDriver:ExecuteScript', { script: text, args, sandbox: 'system', newSandbox: false });
  }

  /** What signing in at the accounts' page would leave behind, and what follows that. */
  async signIn(accounts) {
    const user = {
      uid: accounts.uid,
      email: accounts.email,
      verified: true,
      sessionToken: randomBytes(32).toString('hex'),
      scopedKeys: accounts.scopedKeys,
    };
    await this.run(`
      // There is no push server.
      Object.defineProperty(fxAccounts._internal, 'fxaPushService', {
        value: { registerPushEndpoint: async () => null, getSubscription: async () => null, unsubscribe: async () => {} },
      });
      await fxAccounts._internal.setSignedInUser(arguments[0]);
      fxAccounts.device.setLocalName(arguments[1]);
      await Service.promiseInitialized;
      // It syncs when it is told to, and not after changes besides.
      Service.scheduler.calculateScore = () => {};
      await Service.configure();
    `, user, this.#name);
  }

  /** Syncs, and waits until that is done: what Firefox says of it. */
  sync() {
    return this.run(`
      await settled();
      await Service.sync({ why: 'user' });
      await settled();
      const { service, sync, login, engines } = Weave.Status;
      return { service, sync, login, engines };
    `);
  }

  async stop() {
    const exited = once(this.#child, 'exit');
    const late = setTimeout(() => this.#child.kill('SIGKILL'), 10_000);
    this.#child.kill('SIGTERM');
    await exited;
    clearTimeout(late);
    rmSync(this.#directory, { recursive: true, force: true, maxRetries: 5 });
  }
}
