// Reads the data of a completion script from commander: commands, options and kinds of values.

import type { Argument, Command, Option } from 'commander';
import { required } from '../../runtime/required.js';

/** Values that complete a word: names of files or folders, a list of words, or unknown. */
export type Values = 'file' | 'folder' | 'other' | readonly string[];

/** An option with its spellings, such as -c and --config. */
export interface OptionWords {
  flags: readonly string[];
  text: string;
  /** Null for an option without a value. */
  values: Values | null;
  /** Whether the option may occur without its value. */
  isOptional: boolean;
}

/** A command. */
export interface CommandWords {
  name: string;
  text: string;
  options: readonly OptionWords[];
  /** Values of the command's arguments; null without arguments. */
  values: Values | null;
}

/** Patterns of placeholders for files and folders in the help. */
const FILES = /[<[](file|path|script)/;
const FOLDERS = /[<[](folder|dir|out|adapter|model)/;

/** Returns the visible options and the first argument of `command`, under `name`. */
export function readCommand(command: Command, name = command.name()): CommandWords {
  const options = [...command.options, ...readHelpOption(command)].filter(({ hidden }) => !hidden);
  return {
    name,
    text: takeFirstLine(command.description()),
    options: options.map(readOption),
    values: findArgumentValues(command.registeredArguments[0]),
  };
}

const readHelpOption = (command: Command): Option[] =>
  command
    .createHelp()
    .visibleOptions(command)
    .filter(({ long }) => long === '--help');

function readOption({ flags, description, argChoices, required, optional }: Option): OptionWords {
  const kind = FOLDERS.test(flags) ? 'folder' : FILES.test(flags) ? 'file' : 'other';
  return {
    flags: flags.match(/(?<=^|[ ,])--?[\w-]+/g) ?? [],
    text: takeFirstLine(description),
    values: required || optional ? (argChoices ?? kind) : null,
    isOptional: optional,
  };
}

function findArgumentValues(argument: Argument | undefined): Values | null {
  if (!argument) return null;
  if (argument.argChoices) return argument.argChoices;
  const shown = `<${argument.name()}>`;
  return FOLDERS.test(shown) ? 'folder' : FILES.test(shown) ? 'file' : 'other';
}

const takeFirstLine = (text: string): string => required(text.split('\n', 1)[0]);
