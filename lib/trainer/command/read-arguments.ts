// Words of a command line, and the file that --config names, to the arguments of `ds train`.
import { DsError } from '../../errors.js';
import { argumentError } from '../../runtime/input-errors.js';
import { isObject } from '../../runtime/is-object.js';
import type { Option, Syntax } from '../../runtime/option.js';
import { ownValue } from '../../runtime/own-value.js';
import { formatJson, parseJson } from '../../runtime/parse-json.js';
import { closest } from '../../runtime/suggestion.js';
import { ALIASES, ARGUMENTS, MEANT, type TrainArguments } from './arguments.js';
import { NO_EFFECT, REFUSED } from './foreign-arguments.js';
import { readRunFile } from './run-file.js';
import { type CommandArgument, splitWords } from './split-arguments.js';

/** Arguments, and one line for each that changes nothing. */
interface ReadArguments {
  readonly args: TrainArguments;
  readonly notices: readonly string[];
}

/**
 * Reads `words` like transformers' HfArgumentParser: --snake_case or --kebab-case, --flag with or
 * without true or false, --no_flag, lists by spaces, records as JSON. The last value of a name
 * wins. --config FILE has the same names in YAML or JSON; the command line overrides it. Throws
 * DS_ARGUMENT with all unknown, unreadable and unsupported arguments, and DS_IO for an unreadable
 * file.
 */
export async function readArguments(words: readonly string[]): Promise<ReadArguments> {
  const ofLine = splitWords(words);
  const files = ofLine.filter(({ name }) => name === 'config');
  const ofFiles = await Promise.all(files.map((file) => readRunFile(String(only(file, 'a file')))));
  const given = [...ofFiles.flat(), ...ofLine.filter(({ name }) => name !== 'config')];
  const args: Record<string, unknown> = {};
  const notices: string[] = [];
  const refusals: string[] = [];
  const strangers: CommandArgument[] = [];
  const wrong: DsError[] = [];
  for (const item of given) {
    const { location, name, values } = item;
    const own = ownArgument(name);
    const meant = ownValue(MEANT, name);
    const plain = name.replace(/^no_/, '');
    const ignored = ownValue(NO_EFFECT, name) ?? ownValue(NO_EFFECT, plain);
    const isNegated =
      name !== plain && values.length === 0 && ownValue(REFUSED, plain) !== undefined;
    const refusal = ownValue(REFUSED, name);
    if (meant) notices.push(`${location} ${meant}.`);
    if (own) {
      wrong.push(
        ...failureOf(() => {
          const { option } = own;
          const value = own.negated ? !readSwitch(item) : read(item, option.syntax);
          args[own.name] = option.read(location, value);
        }),
      );
    } else if (isNegated) continue;
    else if (ignored) notices.push(`${location} has no effect: ${ignored}.`);
    else if (refusal) {
      const { reason, off } = refusal;
      const isOff =
        values.length > 0 && values.every((value) => off.includes(formatArgument(value)));
      if (!isOff) refusals.push(`${location} (${reason})`);
    } else {
      strangers.push(item);
    }
  }
  const problems = [
    ...(strangers[0] ? [unknown(strangers[0], strangers.slice(1))] : []),
    ...(refusals.length > 0 ? [unsupportedError(refusals)] : []),
    ...wrong,
  ];
  if (problems[0]) throw withOthers(problems[0], problems.slice(1));
  return { args: args as TrainArguments, notices };
}

const unsupportedError = (refusals: readonly string[]): DsError =>
  argumentError('ds train', 'supported arguments', refusals.join('; '), 'Remove these arguments.');

/** The DsError that `body` throws, or nothing. */
function failureOf(body: () => void): DsError[] {
  try {
    body();
    return [];
  } catch (error) {
    if (error instanceof DsError) return [error];
    throw error;
  }
}

/** Returns `first` with the other errors in its hint. */
function withOthers(first: DsError, others: readonly DsError[]): DsError {
  if (others.length === 0) return first;
  const { op, expected, got } = first;
  const list = others.map((other) => `${other.op}: expected ${other.expected}, got ${other.got}`);
  const hint = `${first.hint} Also wrong: ${list.join('; ')}.`.trim();
  return argumentError(op, expected, got, hint);
}

interface OwnArgument {
  name: string;
  option: Option<unknown, unknown>;
  negated: boolean;
}

/** Returns the argument with this name; `negated` if `name` is "no_" and the name of a switch. */
function ownArgument(name: string): OwnArgument | null {
  for (const negated of [false, true]) {
    const word = negated ? name.replace(/^no_/, '') : name;
    const own = ownValue(ALIASES, word) ?? word;
    const option = ownValue(ARGUMENTS, own);
    if (!option || (negated && (word === name || !option.syntax?.includes('switch')))) continue;
    return { name: own, option, negated };
  }
  return null;
}

function read(given: CommandArgument, syntax: Syntax = 'text'): unknown {
  switch (syntax) {
    case 'text':
    case 'names':
      return readText(given);
    case 'integer':
    case 'bytes':
      return readNumber(given, only(given, 'a whole number'), true);
    case 'number':
      return readNumber(given, only(given, 'a number'), false);
    case 'switch':
      return readSwitch(given);
    case 'texts':
      return list(given).map(String);
    case 'integers':
    case 'sizes':
      return list(given).map((value) => readNumber(given, value, true));
    case 'numbers':
      return list(given).map((value) => readNumber(given, value, false));
    case 'record':
    case 'pairs':
      return readRecord(given);
    case 'text or record':
      return isJson(given) ? readRecord(given) : readText(given);
    case 'integer or switch':
      return given.values.length === 0 || isWord(given.values[0])
        ? readSwitch(given)
        : readNumber(given, only(given, 'a whole number'), true);
    case 'text or switch':
      return given.values.length === 0 || switchOf(given.values[0]) !== null
        ? readSwitch(given)
        : readText(given);
  }
}

/** The single value of an argument. Throws DS_ARGUMENT for no value, several values and lists. */
function only({ location, values }: CommandArgument, expected: string): unknown {
  const [value] = values;
  if (values.length === 1 && !Array.isArray(value)) return value;
  throw argumentError(location, expected, values.length === 0 ? 'nothing' : formatValues(values));
}

function readText(given: CommandArgument): string {
  const value = only(given, 'one value (quote a value with spaces)');
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
  const value = switchOf(only(given, 'true or false'));
  if (value !== null) return value;
  const hint = formatArgument(given.values[0]) === 'auto' ? AUTO : '';
  throw argumentError(given.location, 'true or false', formatValues(given.values), hint);
}

const AUTO = 'Leave it out: the DeepSpeed configuration decides.';
/** Whether it is true or false as a word; 0 and 1 are numbers here. */
const isWord = (value: unknown): boolean =>
  switchOf(value) !== null && !/^[01]$/.test(formatArgument(value));

const TRUE = ['true', 'yes', 'on', 't', 'y', '1'];
const FALSE = ['false', 'no', 'off', 'f', 'n', '0'];

function switchOf(value: unknown): boolean | null {
  if (TRUE.includes(formatArgument(value))) return true;
  return FALSE.includes(formatArgument(value)) ? false : null;
}

function list(given: CommandArgument): readonly unknown[] {
  const values = given.values.flat();
  const isPlain = values.every((value) => typeof value !== 'object');
  if (values.length > 0 && isPlain) return values;
  throw argumentError(given.location, 'one word or several', formatValues(given.values));
}

/** An object, or a text that begins as one. */
function isJson({ values }: CommandArgument): boolean {
  const [value] = values;
  return typeof value === 'object' || (typeof value === 'string' && value.trim().startsWith('{'));
}

function readRecord(given: CommandArgument): object {
  const value = only(given, 'JSON, such as \'{"min_lr": 1e-6}\'');
  try {
    const record: unknown = typeof value === 'string' ? parseJson(value) : value;
    if (isObject(record)) return record;
  } catch {
    // Refused below, as what is no object.
  }
  throw argumentError(given.location, 'an object as JSON', formatValues([value]));
}

function formatArgument(value: unknown): string {
  return value === null || typeof value !== 'object' ? String(value).toLowerCase() : '{}';
}

/** Characters of values in a message. */
const SHOWN = 400;

function formatValues(values: readonly unknown[]): string {
  return values.map(formatJson).join(' ').slice(0, SHOWN);
}

/** The error for the first of several, which names the others. */
function unknown({ location, name }: CommandArgument, others: readonly CommandArgument[]): DsError {
  const hints = [guess(name), ...others.map((other) => guess(other.name))];
  const defaultHint = hints.some(Boolean) ? [] : ['ds train --help lists them.'];
  const got = `"${name}", which is unknown`;
  const more = others.map((other) => other.location).join(', ');
  const all = others.length > 0 ? `${got}; so are ${more}` : got;
  const hint = [...hints.filter(Boolean), ...defaultHint].join(' ');
  return argumentError(location, 'an argument of ds train', all, hint);
}

function guess(name: string): string {
  const names = [ARGUMENTS, ALIASES, NO_EFFECT, REFUSED].flatMap((table) => Object.keys(table));
  const meant = closest(name, [...names, 'config']);
  return meant ? `Did you mean --${meant}?` : '';
}
