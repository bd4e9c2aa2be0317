// Options objects of public functions: rejects other values and unknown names.
import type { DsError } from '../errors.js';
import { formatValue } from './format-value.js';
import { argumentError, valueError } from './input-errors.js';
import { optionNames } from './option-names.generated.js';
import { closest } from './suggestion.js';

/** Other names of an option: a caller who uses one gets the name to use. */
export interface OtherNames {
  /** The argument of a command. */
  flag?: string;
  /** Other names of that argument. */
  also?: readonly string[];
  /** Names in other libraries, in Markdown: the words in backticks count. */
  elsewhere?: string;
  /** Options inside the value. */
  fields?: Readonly<Record<string, OtherNames>>;
}

/** Options by name. */
type Known = Readonly<Record<string, OtherNames | true | 'switch'>>;

/** Options of an interface by name. */
type Names = Readonly<Record<string, true | 'switch'>>;

/** `list`: names; "?" marks a switch. */
const namesIn = (list: string): Names =>
  Object.fromEntries(
    list
      .split(' ')
      .map((name) => (name.endsWith('?') ? [name.slice(0, -1), 'switch'] : [name, true])),
  );

/** The options of each interface. `npm run gen` lists them. */
export const namesOf = Object.fromEntries(
  Object.entries(optionNames).map(([name, list]) => [name, namesIn(list)]),
) as Readonly<Record<keyof typeof optionNames, Names>>;

/** Other libraries' names of options, lowercase and without underscores. */
const elsewhere: ReadonlyMap<string, readonly string[]> = new Map(
  Object.entries({
    abortsignal: ['signal'],
    axis: ['dims'],
    badwordsids: ['badWords'],
    dim: ['dims'],
    epsilon: ['eps'],
    keepdims: ['keepDim'],
    l2: ['weightDecay'],
    learningrate: ['lr', 'maxLr', 'baseLr'],
    logitsprocessor: ['logitBias'],
    logitsprocessors: ['logitBias'],
    maxcompletiontokens: ['maxNewTokens'],
    maxtokens: ['maxNewTokens'],
    numreturnsequences: ['n'],
    responseformat: ['format'],
    shuffle: ['sampling'],
    size: ['shape', 'batchSize'],
    std: ['stddev'],
    stopsequences: ['stop'],
    system: ['messages'],
    systemprompt: ['messages'],
    timeout: ['signal'],
    type: ['dtype'],
    workers: ['numWorkers'],
  }),
);

/**
 * Returns `options` by their names here. Accepts the snake_case of DeepSpeed and PyTorch for a
 * known name; undefined values count as absent. Throws DS_ARGUMENT for an unknown name, because
 * JavaScript would silently ignore a mistake such as "client_sate". Also throws it for a switch
 * that is not true or false, and if `options` is not an object.
 */
export function readOptions<Options extends object>(
  op: string,
  options: Options | undefined,
  known: Known,
): Options {
  if (options === undefined) return {} as Options;
  if (!isRecord(options)) {
    const example = `{ ${Object.keys(known)[0]}: ... }`;
    throw argumentError(op, `an object of options, such as ${example}`, formatValue(options), '');
  }
  let renamed: Record<string, unknown> | null = null;
  for (const name of Object.keys(options)) {
    const value = options[name];
    if (value === undefined) continue;
    const optionName = Object.hasOwn(known, name) ? name : camelCase(name);
    if (!Object.hasOwn(known, optionName)) throw unknownError(op, name, known);
    if (known[optionName] === 'switch' && typeof value !== 'boolean') {
      throw valueError(`${op} ${optionName}`, 'true or false', value);
    }
    if (optionName === name) continue;
    if (options[optionName] !== undefined) {
      throw argumentError(
        op,
        `"${optionName}" once`,
        `"${optionName}" and "${name}"`,
        'Both names mean the same option: remove one.',
      );
    }
    renamed ??= { ...options };
    delete renamed[name];
    renamed[optionName] = value;
  }
  return (renamed ?? options) as Options;
}

/**
 * Returns the options with `defaults` for absent options. The defaults name all options.
 * Throws DS_ARGUMENT as readOptions() does.
 */
export function readWithDefaults<Options extends object>(
  op: string,
  given: Options | undefined,
  defaults: Required<Options>,
): Required<Options> {
  const known = Object.fromEntries(Object.keys(defaults).map((name) => [name, true as const]));
  const options = new Map(Object.entries(defaults));
  const read = readOptions(op, given, known) as Readonly<Record<string, unknown>>;
  for (const name of options.keys()) if (read[name] !== undefined) options.set(name, read[name]);
  return Object.fromEntries(options) as Required<Options>;
}

/** Returns whether `value` can hold options: it is not a list, a collection or a tensor. */
function isRecord(value: unknown): value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null) return false;
  if (Array.isArray(value) || ArrayBuffer.isView(value)) return false;
  return !(value instanceof Map || value instanceof Set || 'buffer' in value);
}

function unknownError(op: string, name: string, known: Known): DsError {
  const names = Object.keys(known);
  const word = bare(name);
  const meant =
    names.find((name) => bare(name) === word) ??
    findForeign(word, known) ??
    elsewhere.get(word)?.find((text) => names.includes(text)) ??
    (closest(name, names) || names.find((name) => bare(name).startsWith(word)));
  const hint = meant ? `Did you mean "${meant}"?` : '';
  return argumentError(op, `the options ${names.join(', ')}`, formatValue(name), hint);
}

/** Returns the path of the option with the other name `word`, such as "save.keep". */
function findForeign(word: string, known: Known): string | undefined {
  for (const [name, option] of Object.entries(known)) {
    if (typeof option !== 'object') continue;
    const { flag, also = [], elsewhere: others = '', fields = {} } = option;
    const words = [flag ?? '', ...also, ...others.split('`')];
    if (words.some((item) => bare(item) === word)) return name;
    const inside = findForeign(word, fields);
    if (inside) return `${name}.${inside}`;
  }
  return undefined;
}

/** Returns a name in lower case without underscores, so that DeepSpeed's names equal ours. */
const bare = (name: string): string => name.replaceAll('_', '').toLowerCase();

/** Returns a copy of `options` without undefined values. */
export const definedOnly = <Options extends object>(options: Options): Options =>
  Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as Options;

/** Returns "weightDecay" for "weight_decay". */
export const camelCase = (name: string): string =>
  name.replace(/(?<=[a-z0-9])_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());

/** Returns "weight_decay" for "weightDecay". */
export const snakeCase = (name: string): string =>
  name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
