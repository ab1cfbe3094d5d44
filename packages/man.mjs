// Man pages, in man(7)'s macros: flatbed.1, and flatbed-COMMAND.1 for each command.

/** Text of which roff takes nothing as its own. */
const roff = (text) => text.replaceAll('\\', '\\e').replaceAll('-', '\\-').replace(/^(?=[.'])/gm, '\\&');

const header = (name, version, date) => `.TH ${name.toUpperCase()} 1 ${date} "Flatbed ${version}" "Flatbed"\n`;
const section = (title, ...lines) => `.SH ${title}\n${lines.join('\n')}\n`;
const usage = (text) => `.B ${roff(text)}\n.br`;
const item = (term, text) => `.TP\n.B ${roff(term)}\n${roff(text)}`;

const FILES = [
  ['/etc/flatbed/flatbed.toml', 'the settings of the service. A file flatbed.toml in the working directory comes before it.'],
  ['/etc/flatbed/environment', 'variables of the service, one NAME=VALUE a line, if the file exists'],
  ['/var/lib/flatbed', 'the data of the service'],
];

/** The pages, by file name. `date` is `YYYY-MM-DD`. */
export function manPages({ version, about, commands, usages }, date) {
  const pages = new Map();
  const others = (name) => ['flatbed', ...commands.map((command) => `flatbed-${command.name}`)].filter((other) => other !== name);
  const seeAlso = (name) => section('SEE ALSO', others(name).map((other) => `.BR ${roff(other)} (1)`).join(',\n'));
  pages.set('flatbed.1', [
    header('flatbed', version, date),
    section('NAME', `flatbed \\- ${roff(about)}`),
    section('SYNOPSIS', ...usages.map(usage)),
    section('COMMANDS', ...commands.map(({ name, about: lines }) => item(name, `${lines.join('; ')}.`))),
    section('EXIT STATUS', item('0', 'done'), item('1', 'done, with findings'), item('2', 'failed; stderr has the reason in one line')),
    section('FILES', ...FILES.map(([path, text]) => item(path, text))),
    seeAlso('flatbed'),
  ].join(''));
  for (const { name, about: lines, usages: forms, paragraphs, options } of commands) {
    pages.set(`flatbed-${name}.1`, [
      header(`flatbed-${name}`, version, date),
      section('NAME', `flatbed\\-${name} \\- ${roff(lines.join('; '))}`),
      section('SYNOPSIS', ...forms.map(usage)),
      paragraphs.length > 0 ? section('DESCRIPTION', paragraphs.map(roff).join('\n.PP\n')) : '',
      section('OPTIONS', ...options.map(({ flag, value, help }) => item(`--${flag}${value ? ` ${value}` : ''}`, help || 'see above'))),
      section('FILES', ...FILES.map(([path, text]) => item(path, text))),
      seeAlso(`flatbed-${name}`),
    ].join(''));
  }
  return pages;
}
