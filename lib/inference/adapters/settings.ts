// Options of initInference() for adapters that are not merged into the weights.

import { formatValue } from '../../runtime/format-value.js';
import { argumentError, valueError } from '../../runtime/input-errors.js';
import { isPlainObject } from '../../runtime/is-object.js';
import { requireInteger } from '../../runtime/require-number.js';

/** Maximum rank of an adapter. */
export const MAX_RANK = 256;
/** Expected value in the error of an engine without slots for adapters. */
export const WITH_ADAPTERS = 'an engine with adapters';
/** Maximum number of loaded adapters. */
const MAX_ADAPTERS = 1024;

/** Adapters of an engine. */
export interface AdapterOptions {
  /**
   * Adapters that requests select by name: folders in PEFT's format, or names on the hub. Default:
   * none. The weights of the model stay as they are.
   */
  adapters?: Readonly<Record<string, string>>;
  /**
   * Maximum number of loaded adapters. If it exceeds the number of `adapters`, engine.loadAdapter()
   * can load others later. The engine allocates their memory at the start. Default: the number of
   * `adapters`.
   */
  maxAdapters?: number;
  /**
   * Largest rank of an adapter, 1 to 256. Default: the largest of `adapters`, and at least 16 if
   * others may be loaded later.
   */
  maxAdapterRank?: number;
}

/** Checked AdapterOptions. */
export interface AdapterSettings {
  readonly folders: ReadonlyMap<string, string>;
  /** Number of slots. */
  readonly count: number;
  /** Maximum rank; 0: the largest rank of the adapters. */
  readonly rank: number;
  /** Whether other adapters may be loaded later. */
  readonly isOpen: boolean;
}

/**
 * Returns the checked options, or null without adapters. Throws DS_ARGUMENT for an invalid name,
 * folder or limit.
 */
export function readAdapterSettings(op: string, options: AdapterOptions): AdapterSettings | null {
  const { adapters = {}, maxAdapters, maxAdapterRank } = options;
  if (!isPlainObject(adapters)) {
    throw valueError(`${op} adapters`, 'an object of folders by name', adapters);
  }
  const folders = new Map(Object.entries(adapters));
  for (const [name, source] of folders) {
    requireName(`${op} adapters`, name);
    if (typeof source === 'string' && source !== '') continue;
    throw valueError(`${op} adapters.${name}`, 'a folder or a name on the hub', source);
  }
  const rank = maxAdapterRank ?? 0;
  if (maxAdapterRank !== undefined) {
    requireBetween(`${op} maxAdapterRank`, maxAdapterRank, 1, MAX_RANK);
  }
  const count = maxAdapters ?? folders.size;
  if (maxAdapters !== undefined) {
    requireBetween(`${op} maxAdapters`, maxAdapters, folders.size, MAX_ADAPTERS);
  }
  if (count > 0) return { folders, count, rank, isOpen: count > folders.size };
  if (maxAdapterRank === undefined) return null;
  throw argumentError(
    `${op} maxAdapterRank`,
    'the option adapters or maxAdapters as well',
    String(maxAdapterRank),
  );
}

function requireBetween(op: string, value: number, min: number, max: number): void {
  requireInteger(op, value, min);
  if (value > max) throw valueError(op, `an integer of at most ${max}`, value);
}

const MAX_NAME = 128;

/** Returns the name. Throws DS_ARGUMENT for a name that requests cannot use. */
export function requireName(op: string, name: string): string {
  if (typeof name === 'string' && name.length > 0 && name.length <= MAX_NAME) return name;
  throw argumentError(op, `names of 1 to ${MAX_NAME} characters`, formatValue(name));
}
