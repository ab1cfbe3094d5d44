// Completions of commands, their second words and options, for bash, zsh and fish.

/** The options that take a path. */
const takesPath = ({ value }) => /^(FILE|PATH|DIR)$/.test(value ?? '');
const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

export function bash({ commands }) {
  const words = commands.map(({ name, verbs, options }) =>
    `    ${name}) words=${quoted([...verbs, ...options.map(({ flag }) => `--${flag}`), '--help'].join(' '))} ;;`);
  const paths = [...new Set(commands.flatMap(({ options }) => options.filter(takesPath).map(({ flag }) => `--${flag}`)))];
  const valued = [...new Set(commands.flatMap(({ options }) => options.filter(({ value }) => value).map(({ flag }) => `--${flag}`)))];
  return `# bash completion for flatbed
_flatbed() {
  local word=\${COMP_WORDS[COMP_CWORD]} before=\${COMP_WORDS[COMP_CWORD-1]} words=
  COMPREPLY=()
  case $before in
    ${paths.join('|')})
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$word")
      return ;;
    ${valued.filter((flag) => !paths.includes(flag)).join('|')}) return ;;
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then
    words=${quoted([...commands.map(({ name }) => name), '--help', '--version'].join(' '))}
  else case \${COMP_WORDS[1]} in
${words.join('\n')}
  esac; fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  if [ \${#COMPREPLY[@]} -eq 0 ] && [ "\${word:0:1}" != - ]; then
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  fi
}
complete -F _flatbed flatbed
`;
}

/** A text within a specification of _arguments or _describe, where a colon and brackets have a meaning. */
const plain = (text) => text.replace(/[[\]:\\]/g, '\\$&');

export function zsh({ commands }) {
  const arm = ({ name, verbs, options }) => {
    const specifications = options.map((option) => {
      const { flag, value, help } = option;
      const argument = value ? `:${plain(value)}:${takesPath(option) ? '_files' : ''}` : '';
      return `        ${quoted(`*--${flag}[${plain(help)}]${argument}`)}`;
    });
    const rest = verbs.length > 0 ? `1: :(${verbs.join(' ')})` : '*: :_files';
    return `    ${name})\n      _arguments ${[...specifications, `        ${quoted('--help[list the options]')}`, `        ${quoted(rest)}`]
      .join(' \\\n').trimStart()} ;;`;
  };
  return `#compdef flatbed
_flatbed() {
  local -a commands=(
${commands.map(({ name, about }) => `    ${quoted(`${name}:${plain(about.join('; '))}`)}`).join('\n')}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=\${words[2]}
  shift words
  (( CURRENT-- ))
  case $command in
${commands.map(arm).join('\n')}
  esac
}
if [ "$funcstack[1]" = "_flatbed" ]; then _flatbed "$@"; else compdef _flatbed flatbed; fi
`;
}

export function fish({ commands }) {
  const lines = ['# fish completion for flatbed', 'complete -c flatbed -f'];
  for (const { name, about, verbs, options } of commands) {
    lines.push(`complete -c flatbed -n __fish_use_subcommand -a ${name} -d ${quoted(about.join('; '))}`);
    const within = `-n ${quoted(`__fish_seen_subcommand_from ${name}`)}`;
    if (verbs.length > 0) lines.push(`complete -c flatbed ${within} -a ${quoted(verbs.join(' '))}`);
    for (const option of options) {
      const argument = takesPath(option) ? ' -r -F' : option.value ? ' -x' : '';
      lines.push(`complete -c flatbed ${within} -l ${option.flag}${argument}${option.help ? ` -d ${quoted(option.help)}` : ''}`);
    }
  }
  for (const name of ['load', 'backup', 'restore'].filter((wanted) => commands.some((command) => command.name === wanted))) {
    lines.push(`complete -c flatbed -n ${quoted(`__fish_seen_subcommand_from ${name}`)} -F`);
  }
  return `${lines.join('\n')}\n`;
}
