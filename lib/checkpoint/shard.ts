// Shards: parts of named tensors, how they are called inside a file, and whether they make up the whole.
import { DsError } from '../errors.js';
import type { DType } from '../runtime/dtype.js';
import { numel } from '../runtime/view.js';
import type { Tensor } from '../tensor/index.js';

/** Elements [from, from + tensor.numel) of the tensor `name`, which has `shape` as a whole. */
export interface Shard {
  name: string;
  shape: readonly number[];
  /** Default 0. */
  from?: number;
  /** Contiguous, on any device or in pinned memory. */
  tensor: Tensor;
}

/** A tensor as a whole, whoever holds its parts. */
export interface TensorInfo {
  dtype: DType;
  shape: readonly number[];
  /** State of the model that is no parameter. */
  buffer?: boolean;
}

/** Where a part of a tensor lies: the file's index, its first element and how many there are. */
export type Part = readonly [file: number, from: number, numel: number];

const RANGE = /\[(\d{1,16}):(\d{1,16})\]$/;

/** "<name>" for a whole tensor, "<name>[from:to]" for a part of one. */
export function entryName(name: string, from: number, count: number, whole: number): string {
  return count === whole ? name : `${name}[${from}:${from + count}]`;
}

/** The reverse; `to` is null for a whole tensor. */
export function parseEntryName(entry: string): { name: string; from: number; to: number | null } {
  const match = RANGE.exec(entry);
  if (!match) return { name: entry, from: 0, to: null };
  return { name: entry.slice(0, match.index), from: Number(match[1]), to: Number(match[2]) };
}

/** Throws DS_CHECKPOINT for a name that cannot be told from that of a part, or that was given before. */
export function requireNames(shards: readonly Shard[]): void {
  const seen = new Set<string>();
  for (const { name, from = 0 } of shards) {
    const key = `${name}@${from}`;
    if (RANGE.test(name)) throw unfit('a name that does not end in [from:to]', `"${name}"`);
    if (seen.has(key)) throw unfit('a different name for every tensor', `"${name}" twice`);
    seen.add(key);
  }
}

/** The parts in their order. Throws DS_CHECKPOINT unless they are [0, numel), each element once. */
export function requireWhole(place: string, info: TensorInfo, parts: readonly Part[]): Part[] {
  const size = numel(info.shape);
  const sorted = [...parts].sort((a, b) => a[1] - b[1] || a[2] - b[2]);
  let at = 0;
  for (const [, from, count] of sorted) {
    if (from !== at) throw notWhole(place, size, from < at ? `${from} twice` : `none at ${at}`);
    at += count;
  }
  if (at !== size) throw notWhole(place, size, `${at}`);
  return sorted;
}

function notWhole(place: string, size: number, got: string): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op: place,
    expected: `its ${size} elements, each in one file`,
    got,
    hint: 'Every rank must save its part of the same model.',
  });
}

function unfit(expected: string, got: string): DsError {
  return new DsError({ code: 'DS_CHECKPOINT', op: 'save', expected, got });
}
