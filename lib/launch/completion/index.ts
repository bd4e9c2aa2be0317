// `ds completion`: the script that completes commands, options and values in a shell.
import type { Command } from 'commander';
import { GPUS } from '../../monitor/gpus.js';
import { ALIASES, ARGUMENTS } from '../../trainer/command/arguments.js';
import { helpCommand } from '../../trainer/command/help.js';
import { bashScript } from './bash.js';
import { fishScript } from './fish.js';
import { type CommandWords, type OptionWords, wordsOf } from './words.js';
import { zshScript } from './zsh.js';

const SCRIPTS = { bash: bashScript, zsh: zshScript, fish: fishScript };

/** Shells with a completion script. */
export type Shell = keyof typeof SCRIPTS;

/** The script for `shell`, from the commands of `program` and the options of `launcher`. */
export function completionScript(shell: Shell, program: Command, launcher: Command): string {
  const visible = program.createHelp().visibleCommands(program);
  const commands = visible
    .filter((command) => command.name() !== 'help')
    .map((command) => wordsOf(command));
  const whole = commands.map((command) => FURTHER[command.name]?.(command) ?? command);
  return SCRIPTS[shell](wordsOf(launcher, 'ds'), whole);
}

/** Commands with words that commander does not know. */
const FURTHER: Readonly<Record<string, (words: CommandWords) => CommandWords>> = {
  plan: planWords,
  train: trainWords,
};

/** `ds plan --gpu` takes names of a table. */
function planWords(words: CommandWords): CommandWords {
  const values = GPUS.map(({ key }) => key);
  const options = words.options.map((option) =>
    option.flags.includes('--gpu') ? { ...option, values } : option,
  );
  return { ...words, options };
}

/** Most texts of `ds train` are names of files or folders. */
const isText = ({ flags }: OptionWords): boolean =>
  Object.entries(ARGUMENTS).some(
    ([name, { syntax }]) => flags.includes(`--${name}`) && syntax?.startsWith('text'),
  );

/** `ds train` reads its arguments itself; its help has them as options. */
function trainWords({ name, text }: CommandWords): CommandWords {
  const known = wordsOf(helpCommand()).options;
  const options = known.map((words) =>
    isText(words) ? { ...words, values: 'file' as const } : words,
  );
  const others = Object.entries(ALIASES).flatMap(([alias, own]) => {
    const option = options.find(({ flags }) => flags.includes(`--${own}`));
    return option ? [{ ...option, flags: [`--${alias}`] }] : [];
  });
  return { name, text, options: [...options, ...others], values: null };
}
