// Reads the help texts of the built program: man pages, completions and the commented configuration file are made of them, so that
// they list each command and setting that this program has, and no other.
import { spawnSync } from 'node:child_process';

/** Runs the program, and returns its stdout. */
function output(program, ...words) {
  const { error, status, stdout, stderr } = spawnSync(program, words, { encoding: 'utf8' });
  if (error || status !== 0) throw new Error(`${program} ${words.join(' ')}: ${error?.message ?? stderr}`);
  return stdout;
}

/** The options in a help text: `{ flag, value, help, fallback }`. A switch has no `value`; `fallback` is the default in brackets. */
function optionsOf(text) {
  const options = [];
  for (const line of text.split('\n')) {
    const found = line.match(/^ {2}--([a-z-]+) {2,}(?<help>\S.*)$/) ?? line.match(/^ {2}--([a-z-]+) (?<value>\S+) +(?<help>\S.*)$/);
    if (found) {
      options.push({ flag: found[1], value: found.groups.value, help: found.groups.help });
    } else if (/^ {15,}\S/.test(line) && options.length > 0) {
      options.at(-1).help += ` ${line.trim()}`;
    }
  }
  return options.map((option) => ({ ...option, fallback: option.help.match(/ \[([^\]]*)\]$/)?.[1] }));
}

/**
 * What the program has: `{ version, about, usages, commands }`, each command as
 * `{ name, about, usages, verbs, paragraphs, options }`. `verbs` are second words, such as `add` of `flatbed admin add`.
 */
export function readHelp(program) {
  const [title, ...lines] = output(program, '--help').split('\n');
  const usages = lines.map((line) => line.match(/^ {2}(flatbed \S.*?) {2,}(\S.*)$/)).filter((found) => found);
  const abouts = new Map();
  for (const [, usage, about] of usages) {
    const name = usage.match(/^flatbed ([a-z]+)/)?.[1];
    if (name) abouts.set(name, [...(abouts.get(name) ?? []), about]);
  }
  const commands = [...abouts].map(([name, about]) => ({ name, about, ...commandOf(name, output(program, name, '--help')) }));
  return {
    version: output(program, '--version').trim().split(' ').at(-1),
    about: title.replace(/^Flatbed: /, ''),
    usages: usages.map(([, usage]) => usage),
    commands,
  };
}

function commandOf(name, text) {
  const lines = text.split('\n');
  const isUsage = (line) => line.startsWith(`flatbed ${name}`);
  const usages = lines.filter(isUsage).map((line) => line.split(/: /)[0]);
  const verbs = new Set(usages.flatMap((usage) => usage.split(' ')[2]?.match(/^[a-z|]+$/)?.[0].split('|') ?? []));
  const options = optionsOf(text);
  for (const [, flag, value] of usages.join(' ').matchAll(/--([a-z-]+)(?: ([A-Z]+))?/g)) {
    if (!options.some((option) => option.flag === flag)) options.push({ flag, value, help: '' });
  }
  // Commands that share a text have a block of usages, in which each line is one.
  const isProse = (block) => !block.every((line) => line.startsWith('flatbed '));
  const paragraphs = text.split('\n\n').map((block) => block.trimEnd().split('\n')).filter(isProse).flatMap((block) => {
    const kept = block.filter((line) => !/^ /.test(line) && !(isUsage(line) && !line.includes(': ')) && line !== '').join(' ');
    return kept === '' ? [] : [kept];
  });
  return { usages, verbs: [...verbs], paragraphs, options };
}
