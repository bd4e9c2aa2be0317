// The structure of samples: numbers, typed arrays and other leaves in arrays and plain objects.

import type { DsError } from '../errors.js';
import { dataError } from '../runtime/input-errors.js';

/** A leaf's position in a list of leaves, or an array or plain object of structures. */
export type Structure = number | Structure[] | { [key: string]: Structure };

/** The same leaf of every sample; `location` names it in errors. */
export interface Column {
  location: string;
  items: readonly unknown[];
}

/** Tests whether a value is a leaf. Tensors are leaves only for callers that can handle them. */
type LeafTest = (value: unknown) => boolean;

/** Returns whether a value is a number or a typed array. */
export const isNumeric: LeafTest = (value) =>
  typeof value === 'number' || (ArrayBuffer.isView(value) && !(value instanceof DataView));

/**
 * Returns the structure that all samples share, and the leaves of all samples by position. Throws
 * DS_DATA if the structures differ.
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
 * Returns whether a value stores its contents outside of fields, such as a Map, a Date or an
 * ArrayBuffer.
 */
function isOpaque(value: object): boolean {
  if (Array.isArray(value) || Object.keys(value).length > 0) return false;
  const prototype = Object.getPrototypeOf(value);
  return prototype !== Object.prototype && prototype !== null;
}

/**
 * Returns whether a value is a tensor. Tests members, because importing the class would load the
 * addon in every worker thread.
 */
export function isTensor(value: unknown): boolean {
  return typeof value === 'object' && value !== null && 'toRaw' in value && 'dtype' in value;
}

/** Returns the error of a worker thread for a tensor: tensors cannot leave their thread. */
export function tensorInWorkerError(location: string): DsError {
  return dataError(
    location,
    'numbers or typed arrays from a worker thread',
    'a tensor',
    'Tensors do not cross threads: give the numbers, for example x.toRaw(), or numWorkers 0.',
  );
}

/** Replaces the positions in a structure by the leaves. */
export function assembleStructure(structure: Structure, leaves: readonly unknown[]): unknown {
  if (typeof structure === 'number') return leaves[structure];
  if (Array.isArray(structure)) return structure.map((part) => assembleStructure(part, leaves));
  const parts = Object.entries(structure).map(([key, part]) => [
    key,
    assembleStructure(part, leaves),
  ]);
  return Object.fromEntries(parts);
}

/** Throws DS_DATA, naming the sample, unless all items pass. */
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
