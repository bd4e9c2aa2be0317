// Builds commander options from declarations, and reads their values.
import { type Command, InvalidArgumentError, Option } from 'commander';
import { DsError } from '../errors.js';
import { isObject } from '../runtime/is-object.js';
import { readNameValues } from '../runtime/name-values.js';
import {
  type Option as Declaration,
  type Declared,
  defaultText,
  type Options,
  plainText,
  readDeclared,
  type Settings,
} from '../runtime/option.js';
import { definedOnly } from '../runtime/options.js';
import { parseBytes } from './byte-size.js';

/** Runs a command, prints its error as one line, and ends the process with the exit code. */
export type RunToExitCode = (run: () => Promise<number>) => Promise<void>;

type AnyDeclaration = Declaration<unknown, unknown>;

/** Declared options by heading of the help. */
export type Groups = Readonly<Record<string, Declared>>;

type Intersection<Each> = (Each extends unknown ? (one: Each) => void : never) extends (
  all: infer All,
) => void
  ? All
  : never;

type OptionalKeys<Values> = {
  [Name in keyof Values]: undefined extends Values[Name] ? Name : never;
}[keyof Values];

type WithOptionalKeys<Values> = Omit<Values, OptionalKeys<Values>> &
  Partial<Pick<Values, OptionalKeys<Values>>>;

/** Values of all groups, with defaults. Options without value and default are absent. */
export type Flags<G extends Groups> = WithOptionalKeys<
  Intersection<{ [Heading in keyof G]: Settings<G[Heading]> }[keyof G]>
>;

/** Adds the options of each group under its heading. Returns `command`. */
export function addGroups(command: Command, groups: Groups): Command {
  for (const [heading, declared] of Object.entries(groups)) {
    addDeclared(command.optionsGroup(heading), declared);
  }
  return command;
}

/** Returns the options of `groups` that commander has read into `flags`, with defaults. */
export function readFlags<G extends Groups>(groups: G, flags: object): Flags<G> {
  const declared: Declared = Object.assign({}, ...Object.values(groups));
  return definedOnly(readDeclared('ds', fromFlags(declared, flags), declared)) as Flags<G>;
}

/** Adds an option for each declaration with a flag. Returns `command`. */
export function addDeclared(command: Command, declared: Declared): Command {
  for (const option of Object.values(declared)) {
    if (option.flag !== undefined) command.addOption(createOption(option.flag, option));
  }
  return command;
}

function createOption(flags: string, option: AnyDeclaration): Option {
  const fallback = defaultText(option);
  const note = option.required ? 'required' : fallback && `default: ${plainText(fallback)}`;
  const shown = note === null ? '' : ` (${note})`;
  const flag = new Option(flags, plainText(option.help) + shown)
    .makeOptionMandatory(option.required)
    .conflicts([...(option.conflicts ?? [])]);
  if (option.syntax === 'switch') return flag;
  if (option.values) return flag.choices(option.values);
  return flag.argParser((text, previous?: unknown) => {
    try {
      return option.read(flags, parseWord(text, option, previous));
    } catch (error) {
      if (!(error instanceof DsError)) throw error;
      throw new InvalidArgumentError(`Expected ${error.expected}.`);
    }
  });
}

/**
 * Converts a word of the command line to a value. A word that is not a number stays text, which the
 * option's check rejects.
 */
function parseWord(text: string, { syntax = 'text' }: AnyDeclaration, previous: unknown): unknown {
  const list = text.split(',');
  if (syntax === 'pairs') return { ...(isObject(previous) && previous), ...parsePair(text) };
  if (syntax === 'pair list') return parsePairs(text, previous);
  if (syntax === 'texts') return [...(Array.isArray(previous) ? previous : []), text];
  if (syntax === 'names') return list.map((name) => name.trim());
  if (syntax === 'bytes') return parseByteSize(text);
  if (syntax === 'sizes') return list.map(parseByteSize);
  if (syntax === 'integers') return list.map(parseNumber);
  return /^(integer|number)/.test(syntax) ? parseNumber(text) : text;
}

const parseNumber = (text: string): number | string =>
  text.trim() !== '' && !Number.isNaN(Number(text)) ? Number(text) : text;

/** Parses NAME=VALUE. The value may contain "=". */
function parsePair(text: string): Record<string, string> {
  const at = text.indexOf('=');
  if (at > 0 && at < text.length - 1) return { [text.slice(0, at)]: text.slice(at + 1) };
  throw new InvalidArgumentError('Expected NAME=VALUE.');
}

/** Parses NAME=VALUE,NAME=VALUE. */
function parsePairs(text: string, previous: unknown): Record<string, string> {
  const values = readNameValues(text, previous as Record<string, string> | undefined);
  if (values) return values;
  throw new InvalidArgumentError('Expected NAME=VALUE,NAME=VALUE with different names.');
}

function parseByteSize(text: string): number {
  const value = parseBytes(text);
  if (value !== null) return value;
  throw new InvalidArgumentError('Expected bytes, such as 5GB, 500MB or 2GiB.');
}

/** Returns the values of `declared` options that commander has read into `flags`. */
export function fromFlags<D extends Declared>(declared: D, flags: object): Partial<Options<D>> {
  const given: Readonly<Record<string, unknown>> = { ...flags };
  const values = Object.entries(declared).flatMap(([name, { flag }]) => {
    const value = flag && given[new Option(flag).attributeName()];
    return value === undefined ? [] : [[name, value]];
  });
  return Object.fromEntries(values) as Partial<Options<D>>;
}
