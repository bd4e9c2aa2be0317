// Options of commands from declarations: their help, their check, and their values by name.
import { type Command, InvalidArgumentError, Option } from 'commander';
import { DsError } from '../errors.js';
import { isObject } from '../runtime/is-object.js';
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

type Any = Declaration<unknown, unknown>;

/** Declared options by the headings of a command's help. */
export type Groups = Readonly<Record<string, Declared>>;

type Joined<Each> = (Each extends unknown ? (one: Each) => void : never) extends (
  all: infer All,
) => void
  ? All
  : never;

type Absent<Values> = {
  [Name in keyof Values]: undefined extends Values[Name] ? Name : never;
}[keyof Values];

type Present<Values> = Omit<Values, Absent<Values>> & Partial<Pick<Values, Absent<Values>>>;

/** The values of all groups, with defaults. Options without value and default are absent. */
export type Flags<G extends Groups> = Present<
  Joined<{ [Heading in keyof G]: Settings<G[Heading]> }[keyof G]>
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
    if (option.flag !== undefined) command.addOption(flagOf(option.flag, option));
  }
  return command;
}

function flagOf(flags: string, option: Any): Option {
  const fallback = defaultText(option);
  const noted = option.required ? 'required' : fallback && `default: ${plainText(fallback)}`;
  const shown = noted === null ? '' : ` (${noted})`;
  const flag = new Option(flags, plainText(option.help) + shown)
    .makeOptionMandatory(option.required)
    .conflicts([...(option.conflicts ?? [])]);
  if (option.syntax === 'switch') return flag;
  if (option.values) return flag.choices(option.values);
  return flag.argParser((text, previous?: unknown) => {
    try {
      return option.read(flags, wordValue(text, option, previous));
    } catch (error) {
      if (!(error instanceof DsError)) throw error;
      throw new InvalidArgumentError(`Expected ${error.expected}.`);
    }
  });
}

/** The value of a word. A word that is no number stays a text, which the option refuses. */
function wordValue(text: string, { syntax = 'text' }: Any, previous: unknown): unknown {
  const list = text.split(',');
  if (syntax === 'pairs') return { ...(isObject(previous) && previous), ...pairOf(text) };
  if (syntax === 'texts') return [...(Array.isArray(previous) ? previous : []), text];
  if (syntax === 'names') return list.map((name) => name.trim());
  if (syntax === 'bytes') return bytesOf(text);
  if (syntax === 'sizes') return list.map(bytesOf);
  if (syntax === 'integers') return list.map(numberOf);
  return /^(integer|number)/.test(syntax) ? numberOf(text) : text;
}

const numberOf = (text: string): number | string =>
  text.trim() !== '' && !Number.isNaN(Number(text)) ? Number(text) : text;

/** NAME=VALUE. A value may contain "=". */
function pairOf(text: string): Record<string, string> {
  const at = text.indexOf('=');
  if (at > 0 && at < text.length - 1) return { [text.slice(0, at)]: text.slice(at + 1) };
  throw new InvalidArgumentError('Expected NAME=VALUE.');
}

function bytesOf(text: string): number {
  const value = parseBytes(text);
  if (value !== null) return value;
  throw new InvalidArgumentError('Expected bytes, such as 5GB, 500MB or 2GiB.');
}

/** The options of `declared` that commander has read into `flags`. */
export function fromFlags<D extends Declared>(declared: D, flags: object): Partial<Options<D>> {
  const given: Readonly<Record<string, unknown>> = { ...flags };
  const values = Object.entries(declared).flatMap(([name, { flag }]) => {
    const value = flag && given[new Option(flag).attributeName()];
    return value === undefined ? [] : [[name, value]];
  });
  return Object.fromEntries(values) as Partial<Options<D>>;
}
