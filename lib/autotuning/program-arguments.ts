// Finds and replaces the configuration file and configuration values in the program's arguments.

import { isSection, type Section } from '../config/schema.js';
import { argumentError } from '../runtime/input-errors.js';
import { required } from '../runtime/required.js';

/** The ds_config.json in the program's arguments. */
export interface ConfigArgument {
  file: string;
  /** Returns the arguments with `value` instead of the file. */
  replaceFile(value: string): string[];
}

/**
 * Flags with the path of the configuration, in DeepSpeed's order. --deepspeed may have no value.
 */
const FLAGS = ['--deepspeed_config', '--deepspeed', '--deepscale_config'];

/** Normalizes "--Per-Device" to "--per_device", as parsers do. */
const normalizeFlag = (flag: string): string => `--${flag.replace(/^-+/, '').replaceAll('-', '_')}`;

interface FlagPosition {
  index: number;
  /** Whether the value follows "=" in the same argument. */
  isInline: boolean;
  value: string;
}

/** Returns the last value of `flag` before "--" (parsers use the last one), or null. */
function findFlag(args: readonly string[], flag: string): FlagPosition | null {
  const end = args.indexOf('--');
  const words = [...(end < 0 ? args : args.slice(0, end)).entries()];
  for (const [at, word] of words.reverse()) {
    const equals = word.startsWith('--') ? word.indexOf('=') : -1;
    const name = equals < 0 ? word : word.slice(0, equals);
    if (!name.startsWith('--') || normalizeFlag(name) !== normalizeFlag(flag)) continue;
    if (equals > 0) return { index: at, isInline: true, value: word.slice(equals + 1) };
    const value = args[at + 1];
    if (value !== undefined && !value.startsWith('--'))
      return { index: at, isInline: false, value };
  }
  return null;
}

function setFlag(
  args: readonly string[],
  { index, isInline }: FlagPosition,
  value: string,
): string[] {
  const words = [...args];
  const [name = ''] = required(words[index]).split('=');
  if (isInline) words[index] = `${name}=${value}`;
  else words[index + 1] = value;
  return words;
}

/** Returns the argument with the path of the configuration. Throws DS_ARGUMENT if there is none. */
export function findConfigArgument(args: readonly string[]): ConfigArgument {
  for (const flag of FLAGS) {
    const position = findFlag(args, flag);
    if (position && (flag !== '--deepspeed' || /json$/i.test(position.value))) {
      return { file: position.value, replaceFile: (value) => setFlag(args, position, value) };
    }
  }
  throw argumentError(
    '--autotuning',
    "a ds_config.json among the program's arguments",
    args.length > 0 ? args.join(' ') : 'none',
    'Each experiment replaces this file: pass --deepspeed ds_config.json or --deepspeed_config ds_config.json.',
  );
}

/** Returns the integer value of `flag`, or null. Throws DS_ARGUMENT if it is 0. */
export function numberOf(args: readonly string[], flag: string): number | null {
  const position = findFlag(args, flag);
  if (!position || !/^\d+$/.test(position.value)) return null;
  const number = Number(position.value);
  if (number > 0) return number;
  const expected = 'a positive whole number';
  throw argumentError(flag, expected, position.value);
}

/** The arguments that correspond to configuration keys. */
export interface Mappings {
  /** Arguments of autotuning.arg_mappings. The search appends them if they are missing. */
  named: Readonly<Record<string, string>>;
  /** Arguments of a known program. The search replaces them if they are present. */
  known: Readonly<Record<string, string>>;
}

/**
 * Returns the flag that sets the key, or null. Keys are trimmed as in DeepSpeed: public
 * configurations have spaces around them.
 */
export function findMappedFlag({ named, known }: Mappings, key: string): string | null {
  const entry = Object.entries(named).find(([name]) => name.trim() === key);
  return entry?.[1].trim() ?? known[key] ?? null;
}

/** Returns `args` with the values of `config`. */
export function applyValues(
  args: readonly string[],
  { named, known }: Mappings,
  config: Section,
): string[] {
  let words = [...args];
  const set = (key: string, flag: string, isAdded: boolean): void => {
    const value = findKey(config, key.trim());
    if (value === undefined || value === 'auto' || typeof value === 'object') return;
    const position = findFlag(words, flag.trim());
    if (position) words = setFlag(words, position, String(value));
    else if (isAdded) words = addArguments(words, [flag.trim(), String(value)]);
  };
  for (const [key, flag] of Object.entries(known)) set(key, flag, false);
  for (const [key, flag] of Object.entries(named)) set(key, flag, true);
  return words;
}

/** Returns `args` with `added` before "--": a program reads no options after it. */
function addArguments(args: readonly string[], added: readonly string[]): string[] {
  const at = args.indexOf('--');
  return args.toSpliced(at < 0 ? args.length : at, 0, ...added);
}

/** Returns the value of a key by its dotted path, or by its name at any depth. */
function findKey(config: Section, key: string): unknown {
  const steps = key.split('.');
  const at = steps.reduce<unknown>(
    (value, step) => (isSection(value) ? value[step] : undefined),
    config,
  );
  if (at !== undefined || steps.length > 1) return at;
  const inner = Object.values(config).filter(isSection);
  return inner.map((section) => findKey(section, key)).find((value) => value !== undefined);
}
