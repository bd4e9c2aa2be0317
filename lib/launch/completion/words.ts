// The words of the command line: commands, options and kinds of values, from commander's commands.

import type { Argument, Command, Option } from 'commander';
import { required } from '../../runtime/required.js';

/** Values that complete a word: names of files or folders, some words, or unknown ones. */
export type Values = 'file' | 'folder' | 'other' | readonly string[];

/** An option with its spellings, such as -c and --config. */
export interface OptionWords {
  flags: readonly string[];
  text: string;
  /** Null for an option without a value. */
  values: Values | null;
  /** The option is complete without its value. */
  isOptional: boolean;
}

/** A command. */
export interface CommandWords {
  name: string;
  text: string;
  options: readonly OptionWords[];
  /** Values of its arguments; null without arguments. */
  values: Values | null;
}

/** Placeholders of files and folders in the help. */
const FILES = /[<[](file|path|script)/;
const FOLDERS = /[<[](folder|dir|out|adapter|model)/;

/** The visible options and the first argument of `command`, under `name`. */
export function wordsOf(command: Command, name = command.name()): CommandWords {
  const options = [...command.options, ...helpOf(command)].filter(({ hidden }) => !hidden);
  return {
    name,
    text: firstLine(command.description()),
    options: options.map(optionWords),
    values: argumentValues(command.registeredArguments[0]),
  };
}

const helpOf = (command: Command): Option[] =>
  command
    .createHelp()
    .visibleOptions(command)
    .filter(({ long }) => long === '--help');

function optionWords({ flags, description, argChoices, required, optional }: Option): OptionWords {
  const kind = FOLDERS.test(flags) ? 'folder' : FILES.test(flags) ? 'file' : 'other';
  return {
    flags: flags.match(/(?<=^|[ ,])--?[\w-]+/g) ?? [],
    text: firstLine(description),
    values: required || optional ? (argChoices ?? kind) : null,
    isOptional: optional,
  };
}

function argumentValues(argument: Argument | undefined): Values | null {
  if (!argument) return null;
  if (argument.argChoices) return argument.argChoices;
  const shown = `<${argument.name()}>`;
  return FOLDERS.test(shown) ? 'folder' : FILES.test(shown) ? 'file' : 'other';
}

const firstLine = (text: string): string => required(text.split('\n', 1)[0]);
