// The arguments of the program: its configuration file, and arguments for configuration values.

import { isSection, type Section } from '../config/schema.js';
import { argumentError } from '../runtime/input-errors.js';
import { required } from '../runtime/required.js';

/** The ds_config.json in the program's arguments. */
export interface ConfigArgument {
  file: string;
  /** Returns the arguments with `value` instead of the file. */
  replaced(value: string): string[];
}

/** In DeepSpeed's order. The second is also a switch without a value. */
const FLAGS = ['--deepspeed_config', '--deepspeed', '--deepscale_config'];

/** Normalizes "--Per-Device" to "--per_device", as parsers do. */
const plain = (flag: string): string => `--${flag.replace(/^-+/, '').replaceAll('-', '_')}`;

interface FlagPosition {
  at: number;
  /** Whether the value follows "=" in the same argument. */
  isInline: boolean;
  value: string;
}

/** Returns the last value of `flag` before "--" (parsers use the last one), or null. */
function positionOf(args: readonly string[], flag: string): FlagPosition | null {
  const end = args.indexOf('--');
  const words = [...(end < 0 ? args : args.slice(0, end)).entries()];
  for (const [at, word] of words.reverse()) {
    const equals = word.startsWith('--') ? word.indexOf('=') : -1;
    const name = equals < 0 ? word : word.slice(0, equals);
    if (!name.startsWith('--') || plain(name) !== plain(flag)) continue;
    if (equals > 0) return { at, isInline: true, value: word.slice(equals + 1) };
    const value = args[at + 1];
    if (value !== undefined && !value.startsWith('--')) return { at, isInline: false, value };
  }
  return null;
}

function put(args: readonly string[], { at, isInline }: FlagPosition, value: string): string[] {
  const words = [...args];
  const [name = ''] = required(words[at]).split('=');
  if (isInline) words[at] = `${name}=${value}`;
  else words[at + 1] = value;
  return words;
}

/** Throws DS_ARGUMENT if no argument names a configuration. */
export function configArgument(args: readonly string[]): ConfigArgument {
  for (const flag of FLAGS) {
    const position = positionOf(args, flag);
    if (position && (flag !== '--deepspeed' || /json$/i.test(position.value))) {
      return { file: position.value, replaced: (value) => put(args, position, value) };
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
  const position = positionOf(args, flag);
  if (!position || !/^\d+$/.test(position.value)) return null;
  const number = Number(position.value);
  if (number > 0) return number;
  const expected = 'a positive whole number';
  throw argumentError(flag, expected, position.value);
}

/** The arguments that correspond to configuration keys. */
export interface Mappings {
  /** Arguments of autotuning.arg_mappings. Missing ones are appended. */
  named: Readonly<Record<string, string>>;
  /** Arguments of a known program. Present ones are replaced. */
  known: Readonly<Record<string, string>>;
}

/** Trims keys as DeepSpeed does: public configurations have spaces around them. */
export function flagOf({ named, known }: Mappings, key: string): string | null {
  const own = Object.entries(named).find(([name]) => name.trim() === key);
  return own?.[1].trim() ?? known[key] ?? null;
}

/** Returns `args` with the values of `config`. */
export function withValues(
  args: readonly string[],
  { named, known }: Mappings,
  config: Section,
): string[] {
  let words = [...args];
  const set = (key: string, flag: string, isAdded: boolean): void => {
    const value = keyOf(config, key.trim());
    if (value === undefined || value === 'auto' || typeof value === 'object') return;
    const position = positionOf(words, flag.trim());
    if (position) words = put(words, position, String(value));
    else if (isAdded) words = withAdded(words, [flag.trim(), String(value)]);
  };
  for (const [key, flag] of Object.entries(known)) set(key, flag, false);
  for (const [key, flag] of Object.entries(named)) set(key, flag, true);
  return words;
}

/** A program reads no options after "--". */
function withAdded(args: readonly string[], added: readonly string[]): string[] {
  const at = args.indexOf('--');
  return args.toSpliced(at < 0 ? args.length : at, 0, ...added);
}

/** Finds a key by its dotted path, or by name at any depth. */
function keyOf(config: Section, key: string): unknown {
  const steps = key.split('.');
  const at = steps.reduce<unknown>(
    (value, step) => (isSection(value) ? value[step] : undefined),
    config,
  );
  if (at !== undefined || steps.length > 1) return at;
  const inner = Object.values(config).filter(isSection);
  return inner.map((section) => keyOf(section, key)).find((value) => value !== undefined);
}
