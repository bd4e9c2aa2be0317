// The structure of samples: numbers, typed arrays and other leaves, in arrays and plain objects.

import type { DsError } from '../errors.js';
import { dataError } from '../runtime/input-errors.js';

/** Either the index of a leaf in a list of leaves, or an array or a plain object of structures. */
export type Structure = number | Structure[] | { [key: string]: Structure };

/** A leaf of all samples. `location` names the leaf in errors. */
export interface Column {
  location: string;
  items: readonly unknown[];
}

/** Returns whether a value is a leaf. Tensors are leaves only for callers that can stack them. */
type LeafTest = (value: unknown) => boolean;

/** Returns whether a value is a number or a typed array. */
export const isNumeric: LeafTest = (value) =>
  typeof value === 'number' || (ArrayBuffer.isView(value) && !(value instanceof DataView));

/**
 * Returns the structure that all samples have, and the columns of their leaves. Throws DS_DATA if
 * the structures differ.
 */
export function splitIntoColumns(
  samples: readonly unknown[],
  isLeaf: LeafTest = isNumeric,
): { structure: Structure; columns: Column[] } {
  const columns: Column[] = [];
  const walk = (items: readonly unknown[], location: string): Structure => {
    const first = items[0];
    if (isLeaf(first)) return columns.push({ location, items }) - 1;
    if (isTensor(first)) throw tensorInWorkerError(location);
    if (typeof first !== 'object' || first === null || isOpaque(first)) {
      throw mixedError(location, 'numbers or arrays', first);
    }
    const keys = Object.keys(first);
    const sameKeys = (x: unknown): boolean =>
      typeof x === 'object' && x !== null && Object.keys(x).join() === keys.join();
    requireAll({ items, location }, `an object with ${keys.join(', ')}`, sameKeys);
    const parts = keys.map((key) => {
      const inner = items.map((item) => (item as Record<string, unknown>)[key]);
      return [key, walk(inner, `${location}.${key}`)] as const;
    });
    return Array.isArray(first) ? parts.map(([, part]) => part) : Object.fromEntries(parts);
  };
  return { structure: walk(samples, 'sample'), columns };
}

/**
 * Returns whether a value keeps its contents elsewhere than in its fields, for example a Map or a
 * Date.
 */
function isOpaque(value: object): boolean {
  if (Array.isArray(value) || Object.keys(value).length > 0) return false;
  const prototype = Object.getPrototypeOf(value);
  return prototype !== Object.prototype && prototype !== null;
}

/**
 * Returns whether a value is a tensor. It checks members instead of the class, because an import of
 * the class would load the native addon in every worker thread.
 */
export function isTensor(value: unknown): boolean {
  return typeof value === 'object' && value !== null && 'toRaw' in value && 'dtype' in value;
}

/** Returns the error of a worker thread for a sample with a tensor: tensors cannot be sent. */
export function tensorInWorkerError(location: string): DsError {
  return dataError(
    location,
    'numbers or typed arrays from a worker thread',
    'a tensor',
    'Tensors do not cross threads: give the numbers, for example x.toRaw(), or numWorkers 0.',
  );
}

/** Returns the structure with its leaves instead of their indices. */
export function assembleStructure(structure: Structure, leaves: readonly unknown[]): unknown {
  if (typeof structure === 'number') return leaves[structure];
  if (Array.isArray(structure)) return structure.map((part) => assembleStructure(part, leaves));
  const parts = Object.entries(structure).map(([key, part]) => [
    key,
    assembleStructure(part, leaves),
  ]);
  return Object.fromEntries(parts);
}

/** Throws DS_DATA unless all items pass the test. The error names the sample. */
export function requireAll({ items, location }: Column, expected: string, test: LeafTest): void {
  const failed = items.findIndex((item) => !test(item));
  if (failed >= 0) throw mixedError(`${location}[${failed}]`, expected, items[failed]);
}

function mixedError(op: string, expected: string, value: unknown): DsError {
  const length =
    ArrayBuffer.isView(value) && 'length' in value ? ` of ${(value as Uint8Array).length}` : '';
  return dataError(
    op,
    expected,
    `${value?.constructor?.name ?? String(value)}${length}`,
    'Samples of a batch have one structure; pass `collate` to combine others.',
  );
}
