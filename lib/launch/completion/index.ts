// `ds completion`: the script that completes commands, options and values in a shell.
import type { Command } from 'commander';
import { GPUS } from '../../monitor/gpus.js';
import { ALIASES, ARGUMENTS } from '../../trainer/command/arguments.js';
import { createHelpCommand } from '../../trainer/command/help.js';
import { bashScript } from './bash.js';
import { fishScript } from './fish.js';
import { type CommandWords, type OptionWords, readCommand } from './words.js';
import { zshScript } from './zsh.js';

const SCRIPTS = { bash: bashScript, zsh: zshScript, fish: fishScript };

/** Shells with a completion script. */
export type Shell = keyof typeof SCRIPTS;

/** Returns the script for `shell`, from the commands of `program` and the options of `launcher`. */
export function completionScript(shell: Shell, program: Command, launcher: Command): string {
  const visible = program.createHelp().visibleCommands(program);
  const commands = visible
    .filter((command) => command.name() !== 'help')
    .map((command) => readCommand(command));
  const completed = commands.map((command) => COMPLETED_BY[command.name]?.(command) ?? command);
  return SCRIPTS[shell](readCommand(launcher, 'ds'), completed);
}

/** Functions that add options or values which commander does not know, by command. */
const COMPLETED_BY: Readonly<Record<string, (words: CommandWords) => CommandWords>> = {
  plan: addGpuNames,
  train: addTrainOptions,
};

/** Adds the names of GPUs to `ds plan --gpu`. */
function addGpuNames(words: CommandWords): CommandWords {
  const values = GPUS.map(({ key }) => key);
  const options = words.options.map((option) =>
    option.flags.includes('--gpu') ? { ...option, values } : option,
  );
  return { ...words, options };
}

/** Returns whether an option of `ds train` takes a text, usually a file or a folder. */
const takesText = ({ flags }: OptionWords): boolean =>
  Object.entries(ARGUMENTS).some(
    ([name, { syntax }]) => flags.includes(`--${name}`) && syntax?.startsWith('text'),
  );

/** Adds the options of `ds train`, which reads its arguments without commander. */
function addTrainOptions({ name, text }: CommandWords): CommandWords {
  const helpOptions = readCommand(createHelpCommand()).options;
  const options = helpOptions.map((words) =>
    takesText(words) ? { ...words, values: 'file' as const } : words,
  );
  const aliases = Object.entries(ALIASES).flatMap(([alias, argument]) => {
    const option = options.find(({ flags }) => flags.includes(`--${argument}`));
    return option ? [{ ...option, flags: [`--${alias}`] }] : [];
  });
  return { name, text, options: [...options, ...aliases], values: null };
}
