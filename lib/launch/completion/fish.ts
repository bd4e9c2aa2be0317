// Formats the completion script for fish.
import type { CommandWords, OptionWords, Values } from './words.js';

const FOLDERS = "'(__fish_complete_directories)'";

/** Returns the script. `launcher` has the options of `ds SCRIPT`. */
export function fishScript(launcher: CommandWords, commands: readonly CommandWords[]): string {
  const names = commands.map(({ name }) => name);
  const at = `-n 'not __fish_seen_subcommand_from ${names.join(' ')}'`;
  return [
    '# Completion of ds for fish: ds completion fish > ~/.config/fish/completions/ds.fish',
    ...commands.map(({ name, text }) => `complete -c ds ${at} -a ${name} -d ${quoteText(text)}`),
    ...launcher.options.map((option) => formatOption(at, option)),
    ...commands.flatMap(formatCommand),
  ].join('\n');
}

function formatCommand({ name, options, values }: CommandWords): string[] {
  const at = `-n '__fish_seen_subcommand_from ${name}'`;
  const argumentLines = values === 'file' ? [] : [`complete -c ds ${at} -f${formatValues(values)}`];
  return [...argumentLines, ...options.map((option) => formatOption(at, option))];
}

function formatOption(at: string, { flags, text, values, isOptional }: OptionWords): string {
  const names = flags.map((flag) =>
    flag.startsWith('--') ? `-l ${flag.slice(2)}` : `-s ${flag.slice(1)}`,
  );
  const valueFlag = values === null || isOptional ? '' : values === 'file' ? ' -r -F' : ' -x';
  return `complete -c ds ${at} ${names.join(' ')} -d ${quoteText(text)}${valueFlag}${formatValues(values)}`;
}

function formatValues(values: Values | null): string {
  if (values === 'folder') return ` -a ${FOLDERS}`;
  return values === null || typeof values === 'string' ? '' : ` -a ${quoteText(values.join(' '))}`;
}

const quoteText = (text: string): string => `'${text.replace(/[\\']/g, '\\$&')}'`;
