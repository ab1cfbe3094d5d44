// The configuration file of the packages: each setting of the program as a comment, with its default or an example.

/** Settings that stand in a table of the file, whose keys have no prefix. */
const TABLES = ['worker', 'syncstorage'];
/** Options of `flatbed serve` that are no keys of the file. */
const NO_KEYS = ['config', 'ignore-stored-config'];

const EXAMPLES = {
  cluster_file: '/etc/foundationdb/fdb.cluster',
  fdb_library: '/usr/lib/libfdb_c.so',
  root: 'fb',
  database_cache_mb: '256',
  tls_certificate: '/etc/flatbed/certificate.pem',
  tls_key: '/etc/flatbed/key.pem',
  proxy_protocol_from: '10.0.0.0/8',
  forwarded_from: '10.0.0.0/8',
  gateway_listen: '127.0.0.1:4984',
  admin_listen: '127.0.0.1:4985',
  replication_ca: '/etc/flatbed/authorities.pem',
  replication_allow: '10.0.0.0/8',
  log_file: '/var/log/flatbed/flatbed.log',
  worker_files: '/var/lib/flatbed/worker',
  worker_secrets: '/etc/flatbed/secrets',
  worker_allow: '10.0.0.0/8',
  syncstorage_listen: '127.0.0.1:8000',
  syncstorage_path: '/sync',
  syncstorage_public_url: 'https://example.org/sync',
  syncstorage_master_secret_file: '/etc/flatbed/syncstorage-secret',
  syncstorage_accounts: '*',
};

/** A value as TOML. */
const toml = (text) => (/^(\d+|true|false)$/.test(text) ? text : JSON.stringify(text));

/** Text in comments, wrapped. */
function comment(text) {
  const lines = [''];
  for (const word of text.split(' ')) {
    if (lines.at(-1).length + word.length > 98) lines.push('');
    lines[lines.length - 1] += `${lines.at(-1) ? ' ' : ''}${word}`;
  }
  return lines.map((line) => `# ${line}\n`).join('');
}

/** A help text as a sentence. A name such as `libfdb_c.so` stays as it is. */
const sentence = (text) => `${/^[a-z]+[ ,]/.test(text) ? text[0].toUpperCase() : text[0]}${text.slice(1)}.`;

/** `NAME=N,NAME=N` in a help text as lines of a table. */
function limitsOf(help) {
  const pairs = help.match(/[a-z_]+=\d+(,[a-z_]+=\d+)*/)?.[0].split(',') ?? [];
  return pairs.map((pair) => pair.replace('=', ' = '));
}

export function configurationFile({ commands }) {
  const settings = commands.find(({ name }) => name === 'serve').options.filter(({ flag }) => !NO_KEYS.includes(flag))
    .map((option) => ({ ...option, key: option.flag.replaceAll('-', '_') }));
  const tableOf = ({ key }) => TABLES.find((table) => key === table || key.startsWith(`${table}_`)) ?? (key === 'limits' ? key : undefined);
  const entry = (setting) => {
    const { key, value, help, fallback } = setting;
    const table = tableOf(setting);
    const name = table === key ? 'enabled' : table ? key.slice(table.length + 1) : key;
    const text = comment(sentence(help.replace(/; without a value, --\S+/, '')));
    if (key === 'data_dir') return `${text}data_dir = "/var/lib/flatbed"\n`;
    if (value.startsWith('NAME=N')) return `${text}#${name} = { ${limitsOf(help).join(', ')} }\n`;
    const isValue = fallback !== undefined && !/ /.test(fallback);
    // A switch in the help text has the value that changes it.
    const example = EXAMPLES[key] ?? (/^(true|false)$/.test(value) ? value : isValue ? fallback : value);
    return `${text}#${name} = ${toml(example)}\n`;
  };
  const limits = settings.find(({ key }) => key === 'limits');
  const top = settings.filter((setting) => !tableOf(setting)).map(entry);
  const tables = TABLES.filter((table) => settings.some((setting) => tableOf(setting) === table)).map((table) =>
    `#[${table}]\n${settings.filter((setting) => tableOf(setting) === table).map(entry).join('')}`);
  return [
    `# Settings of the service flatbed. Lines with one # are the defaults, or examples: remove the # to set them.
# The service also takes variables of /etc/flatbed/environment, such as FLATBED_LISTEN, which come before this file.
# After a change: systemctl restart flatbed. /usr/share/doc/flatbed/configuration.md explains each setting.
`,
    ...top,
    limits ? `${comment(sentence(limits.help))}#[limits]\n${limitsOf(limits.help).map((line) => `#${line}\n`).join('')}` : '',
    ...tables,
    `# Administrators. Without one, each client that can connect is an administrator, and the server listens on this machine
# only. Rather than here, add one with: sudo -u flatbed flatbed admin add anna
# The service may not write this file, so a password in it stays readable for root and for the service.
#[admins]
#anna = "a password"
`,
    `# Origins of web pages that may use the server.
#[cors]
#origins = ["https://app.example"]
#credentials = true
`,
  ].filter((part) => part !== '').join('\n');
}
