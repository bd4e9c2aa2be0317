// Reads the arguments of `ds train` from the command line and from the file of --config.

import { DsError, formatLines } from '../../errors.js';
import { argumentError } from '../../runtime/input-errors.js';
import { isObject } from '../../runtime/is-object.js';
import { readNameValues } from '../../runtime/name-values.js';
import type { Option, Syntax } from '../../runtime/option.js';
import { ownValue } from '../../runtime/own-value.js';
import { formatJson, parseJson } from '../../runtime/parse-json.js';
import { closest } from '../../runtime/suggestion.js';
import { readSwitchWord } from '../../runtime/switch-word.js';
import { ALIAS_NOTES, ALIASES, ARGUMENTS, type TrainArguments } from './arguments.js';
import { NO_EFFECT, REFUSED } from './foreign-arguments.js';
import { readRunFile } from './run-file.js';
import { type CommandArgument, splitWords } from './split-arguments.js';

/** The arguments, and a notice about each argument that has no effect or another meaning. */
interface ReadArguments {
  readonly args: TrainArguments;
  readonly notices: readonly string[];
}

/**
 * Reads the command line `words`, like HfArgumentParser of transformers:
 *
 * - Names are --snake_case or --kebab-case.
 * - A switch is --flag, --flag true, --flag false or --no_flag.
 * - Values of a list are separated by spaces; a record is JSON.
 * - If an argument is repeated, the last value counts.
 * - --config FILE contains arguments in YAML or JSON; the command line overrides them.
 *
 * Throws DS_ARGUMENT that names all unknown, invalid and refused arguments. Throws DS_IO if a file
 * cannot be read.
 */
export async function readArguments(words: readonly string[]): Promise<ReadArguments> {
  const lineArguments = splitWords(words);
  const files = lineArguments.filter(({ name }) => name === 'config');
  const fileArguments = await Promise.all(
    files.map((file) => readRunFile(String(requireSingle(file, 'a file')))),
  );
  const argumentList = [
    ...fileArguments.flat(),
    ...lineArguments.filter(({ name }) => name !== 'config'),
  ];
  const args: Record<string, unknown> = {};
  const notices: string[] = [];
  const refusals: DsError[] = [];
  const unknownArguments: CommandArgument[] = [];
  const errors: DsError[] = [];
  for (const item of argumentList) {
    const { location, name, values } = item;
    const known = findArgument(name);
    const aliasNote = ownValue(ALIAS_NOTES, name);
    const positiveName = name.replace(/^no_/, '');
    const noEffectReason = ownValue(NO_EFFECT, name) ?? ownValue(NO_EFFECT, positiveName);
    const isNegated =
      name !== positiveName && values.length === 0 && ownValue(REFUSED, positiveName) !== undefined;
    const refusal = ownValue(REFUSED, name);
    if (aliasNote) notices.push(`${location} ${aliasNote}.`);
    if (known) {
      errors.push(
        ...catchErrors(() => {
          const { option } = known;
          const value = known.isNegated ? !readSwitch(item) : readValue(item, option.syntax);
          args[known.name] = option.read(location, value);
        }),
      );
    } else if (isNegated) continue;
    else if (noEffectReason) notices.push(`${location} has no effect: ${noEffectReason}.`);
    else if (refusal) {
      const { reason, off } = refusal;
      const isOff =
        values.length > 0 && values.every((value) => off.includes(formatArgument(value)));
      if (!isOff) refusals.push(unsupportedError(item, reason));
    } else {
      unknownArguments.push(item);
    }
  }
  const problems = [...unknownArguments.map(unknownArgumentError), ...refusals, ...errors];
  if (problems[0]) throw combineErrors([problems[0], ...problems.slice(1)]);
  return { args: args as TrainArguments, notices };
}

/** Runs `body`. Returns a list of the DsError that it throws, or an empty list. */
function catchErrors(body: () => void): DsError[] {
  try {
    body();
    return [];
  } catch (error) {
    if (error instanceof DsError) return [error];
    throw error;
  }
}

/**
 * Returns the error itself if there is one; else an error that contains each on a line of its own.
 */
function combineErrors(errors: readonly [DsError, ...DsError[]]): DsError {
  const [first] = errors;
  if (errors.length === 1) return first;
  const lines = errors.map(({ op, expected, got, hint }) =>
    `${op}: expected ${expected}, got ${got}. ${hint}`.trim(),
  );
  const got = `${errors.length} errors:${formatLines(lines)}`;
  return argumentError('ds train', 'valid arguments', got, 'ds train --help lists all arguments.');
}

interface KnownArgument {
  name: string;
  option: Option<unknown, unknown>;
  isNegated: boolean;
}

/**
 * Returns the argument with this name or other name, or null. `isNegated`: whether `name` is "no_"
 * and the name of a switch.
 */
function findArgument(name: string): KnownArgument | null {
  for (const negated of [false, true]) {
    const word = negated ? name.replace(/^no_/, '') : name;
    const fullName = ownValue(ALIASES, word) ?? word;
    const option = ownValue(ARGUMENTS, fullName);
    if (!option || (negated && (word === name || !option.syntax?.includes('switch')))) continue;
    return { name: fullName, option, isNegated: negated };
  }
  return null;
}

function readValue(given: CommandArgument, syntax: Syntax = 'text'): unknown {
  switch (syntax) {
    case 'text':
    case 'names':
      return readText(given);
    case 'integer':
    case 'bytes':
      return readNumber(given, requireSingle(given, 'a whole number'), true);
    case 'number':
      return readNumber(given, requireSingle(given, 'a number'), false);
    case 'switch':
      return readSwitch(given);
    case 'texts':
      return readList(given).map(String);
    case 'integers':
    case 'sizes':
      return readList(given).map((value) => readNumber(given, value, true));
    case 'numbers':
      return readList(given).map((value) => readNumber(given, value, false));
    case 'record':
    case 'pairs':
      return readRecord(given);
    case 'pair list':
      return isJson(given) ? readRecord(given) : readPairs(given);
    case 'text or record':
      return isJson(given) ? readRecord(given) : readText(given);
    case 'integer or switch':
      return given.values.length === 0 || isSwitchWord(given.values[0])
        ? readSwitch(given)
        : readNumber(given, requireSingle(given, 'a whole number'), true);
    case 'text or switch':
      return given.values.length === 0 || parseSwitch(given.values[0]) !== null
        ? readSwitch(given)
        : readText(given);
  }
}

/**
 * Returns the single value of an argument. Throws DS_ARGUMENT if there is no value, several values,
 * or a list.
 */
function requireSingle({ location, values }: CommandArgument, expected: string): unknown {
  const [value] = values;
  if (values.length === 1 && !Array.isArray(value)) return value;
  throw argumentError(location, expected, values.length === 0 ? 'nothing' : formatValues(values));
}

function readText(given: CommandArgument): string {
  const value = requireSingle(given, 'one value (quote a value with spaces)');
  if (typeof value === 'object')
    throw argumentError(given.location, 'a string', formatValues([value]));
  return String(value);
}

function readNumber({ location }: CommandArgument, value: unknown, whole: boolean): number {
  const text = typeof value === 'string' ? value.trim() : value;
  const number =
    typeof text === 'number'
      ? text
      : text === '' || typeof text === 'object'
        ? Number.NaN
        : Number(text);
  const isFit = whole ? Number.isSafeInteger(number) : Number.isFinite(number);
  if (isFit && typeof value !== 'boolean') return number;
  throw argumentError(location, whole ? 'a whole number' : 'a number', formatValues([value]));
}

function readSwitch(given: CommandArgument): boolean {
  if (given.values.length === 0) return true;
  const value = parseSwitch(requireSingle(given, 'true or false'));
  if (value !== null) return value;
  const hint = formatArgument(given.values[0]) === 'auto' ? AUTO : '';
  throw argumentError(given.location, 'true or false', formatValues(given.values), hint);
}

const AUTO = 'Leave it out: the DeepSpeed configuration decides.';
/** Returns whether the value is a word for true or false. 0 and 1 count as numbers. */
const isSwitchWord = (value: unknown): boolean =>
  parseSwitch(value) !== null && !/^[01]$/.test(formatArgument(value));

const parseSwitch = (value: unknown): boolean | null => readSwitchWord(formatArgument(value));

function readList(given: CommandArgument): readonly unknown[] {
  const values = given.values.flat();
  const isPlain = values.every((value) => typeof value !== 'object');
  if (values.length > 0 && isPlain) return values;
  throw argumentError(given.location, 'one word or several', formatValues(given.values));
}

/** Returns whether the value is an object, or a text that starts like a JSON object. */
function isJson({ values }: CommandArgument): boolean {
  const [value] = values;
  return typeof value === 'object' || (typeof value === 'string' && value.trim().startsWith('{'));
}

function readRecord(given: CommandArgument): object {
  const value = requireSingle(given, 'JSON, such as \'{"min_lr": 1e-6}\'');
  try {
    const record: unknown = typeof value === 'string' ? parseJson(value) : value;
    if (isObject(record)) return record;
  } catch {
    // The error below reports invalid JSON.
  }
  throw argumentError(given.location, 'an object as JSON', formatValues([value]));
}

/** Reads NAME=VALUE pairs that are separated by commas or by spaces. */
function readPairs(given: CommandArgument): object {
  const values = readNameValues(readList(given).join(','));
  if (values) return values;
  const expected = 'NAME=VALUE,NAME=VALUE with different names';
  throw argumentError(given.location, expected, formatValues(given.values));
}

function formatArgument(value: unknown): string {
  return value === null || typeof value !== 'object' ? String(value).toLowerCase() : '{}';
}

/** Maximum number of characters of values in an error. */
const MAX_SHOWN = 400;

function formatValues(values: readonly unknown[]): string {
  return values.map(formatJson).join(' ').slice(0, MAX_SHOWN);
}

function unsupportedError({ location, name }: CommandArgument, reason: string): DsError {
  const got = `"${name}" (${reason})`;
  return argumentError(location, 'an argument that ds train supports', got, 'Remove it.');
}

function unknownArgumentError({ location, name }: CommandArgument): DsError {
  const hint = suggestName(name) || 'ds train --help lists them.';
  return argumentError(location, 'an argument of ds train', `"${name}", which is unknown`, hint);
}

function suggestName(name: string): string {
  const names = [ARGUMENTS, ALIASES, NO_EFFECT, REFUSED].flatMap((table) => Object.keys(table));
  const similar = closest(name, [...names, 'config']);
  return similar ? `Did you mean --${similar}?` : '';
}
