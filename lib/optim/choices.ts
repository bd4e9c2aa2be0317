// Options of optimizers and schedules that are booleans or enumerations.
import { readOptions } from '../runtime/options.js';
import { requireOneOf, requireType } from '../runtime/require-type.js';

const SWITCHES: ReadonlySet<string> = new Set([
  'biasCorrection',
  'decoupled',
  'adamWMode',
  'fp32OptimizerStates',
  'nesterov',
  'epsInsideSqrt',
  'momentCorrection',
  'scaleParameter',
  'relativeStep',
  'warmupInit',
  'staircase',
  'cycleMomentum',
]);

const WORDS: ReadonlyMap<string, readonly string[]> = new Map([
  ['nsMethod', ['gram', 'standard']],
  ['warmupType', ['log', 'linear']],
  ['mode', ['min', 'max']],
  ['thresholdMode', ['rel', 'abs']],
]);

export const isChoice = (key: string): boolean => SWITCHES.has(key) || WORDS.has(key);

/** Like readOptions(), and throws DS_ARGUMENT for an invalid boolean or enumeration value. */
export function readChoices<Options extends object>(
  name: string,
  given: Options | undefined,
  known: Readonly<Record<string, true>>,
): Options {
  const options = readOptions(name, given, known);
  for (const [key, value] of Object.entries(options)) {
    if (value === undefined || value === null) continue;
    const words = WORDS.get(key);
    if (words) requireOneOf(`${name} ${key}`, value, words);
    if (SWITCHES.has(key)) requireType(`${name} ${key}`, value, 'boolean');
  }
  return options;
}
