// The completion script for fish.
import type { CommandWords, OptionWords, Values } from './words.js';

const FOLDERS = "'(__fish_complete_directories)'";

/** `launcher` is `ds` itself, with options and a script. */
export function fishScript(launcher: CommandWords, commands: readonly CommandWords[]): string {
  const names = commands.map(({ name }) => name);
  const at = `-n 'not __fish_seen_subcommand_from ${names.join(' ')}'`;
  return [
    '# Completion of ds for fish: ds completion fish > ~/.config/fish/completions/ds.fish',
    ...commands.map(({ name, text }) => `complete -c ds ${at} -a ${name} -d ${quoteText(text)}`),
    ...launcher.options.map((option) => optionLine(at, option)),
    ...commands.flatMap(commandLines),
  ].join('\n');
}

function commandLines({ name, options, values }: CommandWords): string[] {
  const at = `-n '__fish_seen_subcommand_from ${name}'`;
  const rest = values === 'file' ? [] : [`complete -c ds ${at} -f${valuesOf(values)}`];
  return [...rest, ...options.map((option) => optionLine(at, option))];
}

function optionLine(at: string, { flags, text, values, isOptional }: OptionWords): string {
  const names = flags.map((flag) =>
    flag.startsWith('--') ? `-l ${flag.slice(2)}` : `-s ${flag.slice(1)}`,
  );
  const takes = values === null || isOptional ? '' : values === 'file' ? ' -r -F' : ' -x';
  return `complete -c ds ${at} ${names.join(' ')} -d ${quoteText(text)}${takes}${valuesOf(values)}`;
}

function valuesOf(values: Values | null): string {
  if (values === 'folder') return ` -a ${FOLDERS}`;
  return values === null || typeof values === 'string' ? '' : ` -a ${quoteText(values.join(' '))}`;
}

const quoteText = (text: string): string => `'${text.replace(/[\\']/g, '\\$&')}'`;
