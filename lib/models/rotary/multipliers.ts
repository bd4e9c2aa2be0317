// Constant factors inside the branches of a block: options, and keys of config.json.
import type { JsonObject, JsonValue } from '../../../types/json.js';
import { valueError } from '../../runtime/input-errors.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireFinite } from '../../runtime/require-number.js';
import { entriesOf } from '../../runtime/typed-keys.js';
import type { ModelConfig } from '../model-config.js';

/**
 * Constant factors inside the branches of a block. They let learning rates of small models serve
 * large ones. Source: Falcon-H1. Default: 1 each.
 */
export interface Multipliers {
  /** Of the input of attention (attention_in_multiplier). */
  attentionIn?: number;
  /** Of the result of attention (attention_out_multiplier). */
  attentionOut?: number;
  /** Of the input of a state space layer (ssm_in_multiplier). */
  stateIn?: number;
  /** Of the result of a state space layer (ssm_out_multiplier). */
  stateOut?: number;
  /** Of its projections to gates, values, B, C and time steps (ssm_multipliers). */
  stateParts?: readonly number[];
  /** Of the gate and of the result of a feed-forward block (mlp_multipliers). */
  feed?: readonly number[];
}

/** Complete Multipliers. */
export type AllMultipliers = Required<Multipliers>;

/** By option: the key of config.json, and the length of a list; null: a number. */
const KEYS = {
  attentionIn: ['attention_in_multiplier', null],
  attentionOut: ['attention_out_multiplier', null],
  stateIn: ['ssm_in_multiplier', null],
  stateOut: ['ssm_out_multiplier', null],
  stateParts: ['ssm_multipliers', 5],
  feed: ['mlp_multipliers', 2],
} as const;

const unit = (length: number | null): number | number[] =>
  length === null ? 1 : Array.from({ length }, () => 1);

/** Returns the complete `given`; `model` is the name in errors. Throws DS_ARGUMENT. */
export function readMultipliers(model: string, given: Multipliers | undefined): AllMultipliers {
  const op = `${model} multipliers`;
  const read = readOptions(op, given, namesOf.Multipliers);
  const entries = entriesOf(KEYS).map(([name, [, length]]) => {
    const value = read[name] ?? unit(length);
    const list = length === null ? [value] : value;
    if (!Array.isArray(list) || list.length !== (length ?? 1)) {
      throw valueError(`${op} ${name}`, `${length} numbers`, value);
    }
    for (const item of list) requireFinite(`${op} ${name}`, item);
    return [name, length === null ? value : [...list]];
  });
  return Object.fromEntries(entries) as AllMultipliers;
}

/** Reads the keys of a config.json. Throws DS_CHECKPOINT for invalid values. */
export function parseMultipliers(config: ModelConfig): AllMultipliers {
  const entries = entriesOf(KEYS).map(([name, [key, length]]) => {
    const value = config.get(key, unit(length));
    const isNumber = (item: JsonValue): boolean => typeof item === 'number';
    const isList = Array.isArray(value) && value.length === length && value.every(isNumber);
    if (length === null ? isNumber(value) : isList) return [name, value];
    throw config.refusalError(key, length === null ? 'a number' : `${length} numbers`, value);
  });
  return Object.fromEntries(entries) as AllMultipliers;
}

/** Returns the keys of a config.json. */
export const describeMultipliers = (multipliers: AllMultipliers): JsonObject =>
  Object.fromEntries(
    entriesOf(KEYS).map(([name, [key]]) => {
      const value = multipliers[name];
      return [key, typeof value === 'number' ? value : [...value]];
    }),
  );
