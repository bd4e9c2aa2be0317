// The arguments of the program that is tuned: where they name its configuration, and those that
// hold values of it.

import { isSection, type Section } from '../config/schema.js';
import { DsError } from '../errors.js';

/** The ds_config.json that arguments name. */
export interface ConfigArgument {
  file: string;
  /** The arguments with `value` in its place. */
  replaced(value: string): string[];
}

/** In DeepSpeed's order; the second is also a switch without a file. */
const FLAGS = ['--deepspeed_config', '--deepspeed', '--deepscale_config'];

/** "--Per-Device" as "--per_device": parsers take both. */
const plain = (flag: string): string => `--${flag.replace(/^-+/, '').replaceAll('-', '_')}`;

interface Place {
  at: number;
  /** Whether the value follows "=" in the same word. */
  isInline: boolean;
  value: string;
}

/**
 * The value of `flag`, the last one, which wins in parsers; null where the arguments, up to "--",
 * have none.
 */
function placeOf(args: readonly string[], flag: string): Place | null {
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

function put(args: readonly string[], { at, isInline }: Place, value: string): string[] {
  const words = [...args];
  const [name = ''] = (words[at] as string).split('=');
  if (isInline) words[at] = `${name}=${value}`;
  else words[at + 1] = value;
  return words;
}

/** Throws DS_ARGUMENT where the arguments name no configuration. */
export function configArgument(args: readonly string[]): ConfigArgument {
  for (const flag of FLAGS) {
    const place = placeOf(args, flag);
    if (place && (flag !== '--deepspeed' || /json$/i.test(place.value))) {
      return { file: place.value, replaced: (value) => put(args, place, value) };
    }
  }
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: '--autotuning',
    expected: "a ds_config.json among the program's arguments",
    got: args.length > 0 ? args.join(' ') : 'none',
    hint: 'Each experiment puts another file there: let the program take --deepspeed ds_config.json or --deepspeed_config ds_config.json.',
  });
}

/** The whole number that `flag` is given; null where it is given none. Throws DS_ARGUMENT for 0. */
export function numberOf(args: readonly string[], flag: string): number | null {
  const place = placeOf(args, flag);
  if (!place || !/^\d+$/.test(place.value)) return null;
  const number = Number(place.value);
  if (number > 0) return number;
  const expected = 'a positive whole number';
  throw new DsError({ code: 'DS_ARGUMENT', op: flag, expected, got: place.value });
}

/** Which argument has which key of the configuration. */
export interface Mappings {
  /** Of autotuning.arg_mappings: added where the arguments lack it. */
  named: Readonly<Record<string, string>>;
  /** Of a program that is known: set where it stands among the arguments. */
  known: Readonly<Record<string, string>>;
}

/** Keys in public files have blanks at their ends, which DeepSpeed takes off. */
export function flagOf({ named, known }: Mappings, key: string): string | null {
  const own = Object.entries(named).find(([name]) => name.trim() === key);
  return own?.[1].trim() ?? known[key] ?? null;
}

/** `args` with the values that `config` has. */
export function withValues(
  args: readonly string[],
  { named, known }: Mappings,
  config: Section,
): string[] {
  let words = [...args];
  const set = (key: string, flag: string, isAdded: boolean): void => {
    const value = keyOf(config, key.trim());
    if (value === undefined || value === 'auto' || typeof value === 'object') return;
    const place = placeOf(words, flag.trim());
    if (place) words = put(words, place, String(value));
    else if (isAdded) words = withAdded(words, [flag.trim(), String(value)]);
  };
  for (const [key, flag] of Object.entries(known)) set(key, flag, false);
  for (const [key, flag] of Object.entries(named)) set(key, flag, true);
  return words;
}

/** Behind "--" a program reads no options. */
function withAdded(args: readonly string[], added: readonly string[]): string[] {
  const at = args.indexOf('--');
  return args.toSpliced(at < 0 ? args.length : at, 0, ...added);
}

/** By a dotted path, or wherever the name is found first. */
function keyOf(config: Section, key: string): unknown {
  const steps = key.split('.');
  const at = steps.reduce<unknown>((one, step) => (isSection(one) ? one[step] : undefined), config);
  if (at !== undefined || steps.length > 1) return at;
  const inner = Object.values(config).filter(isSection);
  return inner.map((one) => keyOf(one, key)).find((one) => one !== undefined);
}
