// Shards: the parts of tensors that a rank saves, their names in files, and checks for
// completeness.

import { DsError } from '../errors.js';
import { type Box, type BoxRange, canonical, isInside, wholeBox } from '../runtime/box.js';
import { type DType, dtypeSize } from '../runtime/dtype.js';
import { leading, required } from '../runtime/required.js';
import { numel } from '../runtime/view.js';
import type { Tensor } from '../tensor/index.js';
import { findFlaw } from './tiling.js';

/** Values on disk (offloaded optimizer state), which are read into memory in parts. */
export interface Remote {
  readonly dtype: DType;
  readonly numel: number;
  readonly bytes: number;
  /** Reads must start and end at multiples of this many elements, or at the end. */
  readonly grain: number;
  /**
   * Starts a read of `numel` elements from `offset` on into a flat tensor. The caller releases it.
   */
  borrow(offset: number, numel: number): PendingTensor;
}

/** A tensor with values that are complete after wait() returns or arrived() resolves. */
export interface PendingTensor {
  readonly tensor: Tensor;
  /** Blocks the thread until the values are complete. */
  wait(): void;
  arrived(): Promise<void>;
}

/** Bytes per part of remote values. Two parts are in memory at a time. */
export const PART_BYTES = 16 * 2 ** 20;

export const isRemote = (values: Tensor | Remote): values is Remote => 'borrow' in values;

/** Yields [offset, numel] of each read of remote values, in order. */
export function* partsOf({
  dtype,
  numel: count,
  grain,
}: Omit<Remote, 'borrow' | 'bytes'>): Generator<[number, number]> {
  const max = Math.max(grain, Math.floor(PART_BYTES / dtypeSize(dtype) / grain) * grain);
  for (let at = 0; at < count; at += max) yield [at, Math.min(max, count - at)];
}

/**
 * A part of the tensor `name` with the whole shape `shape`. The part has `tensor.numel` elements of
 * `box`, in row-major order, from index `from` on.
 */
export interface Shard {
  name: string;
  shape: readonly number[];
  /** Default: the whole tensor. */
  box?: Box;
  /** Index in the box of the first element. Default: 0. */
  from?: number;
  /** The values: contiguous, on any device, in pinned memory, or remote. */
  tensor: Tensor | Remote;
}

/** A shard with values in memory. */
export interface LocalShard extends Shard {
  tensor: Tensor;
}

/** The dtype and shape of a whole tensor, whatever parts ranks save. */
export interface TensorInfo {
  dtype: DType;
  shape: readonly number[];
  /** Whether it is a buffer of the model; else it is a parameter. Default: false. */
  buffer?: boolean;
}

/** A saved part of a tensor, in canonical form. `file`: index of its file in the manifest. */
export interface Part extends BoxRange {
  file: number;
}

const RANGE = /\[(\d{1,16}):(\d{1,16})\]$/;
const BOX = /\[(\d{1,16}:\d{1,16}(?:,\d{1,16}:\d{1,16}){1,31})\]$/;

/**
 * Returns the elements of a shard, in canonical form. Throws DS_CHECKPOINT if they lie outside of
 * the tensor.
 */
export function rangeOf({ name, shape, box, from = 0, tensor }: Shard): BoxRange {
  const range = { box: box ?? wholeBox(shape), from, numel: tensor.numel };
  if (!isInside(range.box, shape) || from + tensor.numel > numel(range.box.shape)) {
    throw unfitError(`"${name}" inside [${shape.join(', ')}]`, describeRange(range));
  }
  return canonical(shape, range);
}

/**
 * Returns the name in a file of a part of the tensor `name`:
 *
 * - "<name>" for the whole tensor;
 * - "<name>[from:to]" for a contiguous range of it;
 * - "<name>[from:to,from:to]", with from and to of every dimension, for a box that is not
 *   contiguous;
 * - the same with a second "[from:to]" for a range of such a box.
 */
export function entryName(name: string, shape: readonly number[], range: BoxRange): string {
  const { box, from, numel: count } = range;
  const rest = count === numel(box.shape) ? '' : `[${from}:${from + count}]`;
  if (box.shape.join() === shape.join()) return name + rest;
  const sides = box.offset.map((low, d) => `${low}:${low + required(box.shape[d])}`);
  return `${name}[${sides.join()}]${rest}`;
}

/**
 * Returns the shape of a part in its file: that of the box if the part is the whole box, else flat.
 */
export function entryShape({ box, numel: count }: BoxRange): readonly number[] {
  return count === numel(box.shape) ? box.shape : [count];
}

/**
 * The components of an entry's name. `box`: null for the whole tensor. `range`: null for a whole
 * box.
 */
interface EntryName {
  name: string;
  box: Box | null;
  range: { from: number; to: number } | null;
}

/** Parses a name that entryName() returned. */
export function parseEntryName(entry: string): EntryName {
  const range = RANGE.exec(entry);
  const rest = range ? entry.slice(0, range.index) : entry;
  const box = BOX.exec(rest);
  return {
    name: box ? rest.slice(0, box.index) : rest,
    box: box && boxOf(required(box[1])),
    range: range && { from: Number(range[1]), to: Number(range[2]) },
  };
}

function boxOf(text: string): Box {
  const sides = text.split(',').map((side) => leading(side.split(':').map(Number), 2));
  return { offset: sides.map(([from]) => from), shape: sides.map(([from, to]) => to - from) };
}

/**
 * Returns the range that the entry named `entry` stores, with `count` elements, of a tensor of
 * `shape`. Returns null if it lies outside of the tensor or is not in canonical form.
 */
export function entryRange(
  entry: string,
  shape: readonly number[],
  count: number,
): BoxRange | null {
  const { name, box, range } = parseEntryName(entry);
  const request = { box: box ?? wholeBox(shape), from: range?.from ?? 0, numel: count };
  const isPossible =
    isInside(request.box, shape) &&
    request.box.shape.every((n) => n > 0 || !box) &&
    request.from + count <= numel(request.box.shape);
  return isPossible && entryName(name, shape, canonical(shape, request)) === entry ? request : null;
}

/**
 * Throws DS_CHECKPOINT if two shards have the same name, or if a tensor's name looks like that of a
 * part.
 */
export function requireNames(shards: readonly Shard[]): void {
  const seen = new Set<string>();
  for (const shard of shards) {
    const { name, shape } = shard;
    if (RANGE.test(name) || BOX.test(name)) {
      throw unfitError('a name that does not end in [from:to]', `"${name}"`);
    }
    const entry = entryName(name, shape, rangeOf(shard));
    if (seen.has(entry)) throw unfitError('a different name for every tensor', `"${entry}" twice`);
    seen.add(entry);
  }
}

/**
 * Throws DS_CHECKPOINT unless the parts contain every element of the tensor exactly once. The parts
 * must lie inside the tensor.
 */
export function requireWhole(
  location: string,
  { shape }: TensorInfo,
  parts: readonly Part[],
): void {
  const flaw = findFlaw(shape, parts);
  if (!flaw) return;
  const element = `element [${flaw.element.join(', ')}]`;
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: location,
    expected: `its ${numel(shape)} elements, each in one file`,
    got: flaw.kind === 'twice' ? `${element} twice` : `no ${element}`,
    hint: 'Every rank must save its part of the same model.',
  });
}

function describeRange({ box, from, numel: count }: BoxRange): string {
  const location = `[${box.shape.join(', ')}] at [${box.offset.join(', ')}]`;
  return `elements ${from} to ${from + count} of ${location}`;
}

function unfitError(expected: string, got: string): DsError {
  return new DsError({ code: 'DS_CHECKPOINT', op: 'save', expected, got });
}
