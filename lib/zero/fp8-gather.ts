// All-gather of FP8 layers at stage 3: sends each weight as a one-byte code. Matrix products stay
// the same, because they quantize the decoded weights to the same codes.

import type { Parameter } from '../nn/parameter.js';
import type { Buffer } from '../runtime/buffer.js';
import { type DType, dtypeSize } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import type { Stream } from '../runtime/stream.js';
import type { View } from '../runtime/view.js';
import { copyFlat } from '../tensor/flat.js';
import { held, Tensor } from '../tensor/index.js';
import { type GatherUnit, gatherPlain } from './gathered-weights.js';
import { fragmentsOf, parameterAlignment, type Range, shardOf } from './layout.js';
import type { WeightUnit } from './unit.js';
import { type CollectiveStart, type Collectives, releaseOn } from './wire.js';

/**
 * A range of a shard that a message holds either as codes or as values. Its size is a multiple of
 * parameterAlignment.
 */
interface MessagePart extends Range {
  /** Index of the coded weight. Null: the message contains the values. */
  readonly weight: number | null;
  /** Offset in bytes from the start of the rank's message. */
  readonly at: number;
}

/** How each rank arranges its shard of a unit in a message. */
interface MessageLayout {
  /** Number of coded weights in the unit. */
  readonly weights: number;
  /** By rank: the parts of its message. Their offsets count from the start of the rank's shard. */
  readonly parts: readonly (readonly MessagePart[])[];
  /**
   * Bytes of the largest message. All messages have this size, because an all-gather needs equal
   * sizes.
   */
  readonly bytes: number;
}

/** The dtype of the weights of FP8 layers. */
const WEIGHT_DTYPE = 'bf16';
/** Bytes reserved for the scale after the codes. 16 keeps the next part aligned. */
const SCALE_BYTES = 16;
/** Elements per row of the matrices that the kernels quantize and decode. */
const ROW_ELEMENTS = parameterAlignment;
/** The code of 1 in e4m3. */
const CODE_OF_ONE = 0x38;

/** Returns the bytes of `numel` codes, of one row with the largest magnitude, and of the scale. */
const codedBytes = (numel: number): number => numel + ROW_ELEMENTS + SCALE_BYTES;

function layoutMessages(
  { layout, ...unit }: Pick<WeightUnit, 'layout'> & { isCoded(name: string): boolean },
  ranks: number,
): MessageLayout {
  const names = layout.entries.map(({ name }) => name).filter((name) => unit.isCoded(name));
  const parts = Array.from({ length: ranks }, (_, rank) => {
    const shard = shardOf(layout.numel, rank, ranks);
    const coded = fragmentsOf(layout, shard).filter(({ entry }) => unit.isCoded(entry.name));
    const list: MessagePart[] = [];
    let [from, at] = [0, 0];
    const add = (range: Range, weight: number | null): void => {
      if (range.numel === 0) return;
      list.push({ ...range, weight, at });
      at += weight === null ? range.numel * dtypeSize(WEIGHT_DTYPE) : codedBytes(range.numel);
      from = range.offset + range.numel;
    };
    for (const { entry, offset, numel } of coded) {
      add({ offset: from, numel: offset - from }, null);
      add({ offset, numel }, names.indexOf(entry.name));
    }
    add({ offset: from, numel: shard.numel - from }, null);
    return list;
  });
  const bytes = Math.max(...parts.map((list) => endOf(list)));
  return { weights: names.length, parts, bytes };
}

function endOf(list: readonly MessagePart[]): number {
  const last = list.at(-1);
  if (!last) return 0;
  const { at, numel, weight } = last;
  return at + (weight === null ? numel * dtypeSize(WEIGHT_DTYPE) : codedBytes(numel));
}

/** Returns a contiguous view of `buffer` that begins at byte `at`. */
function viewAt(buffer: Buffer, dtype: DType, at: number, shape: readonly number[]): View {
  const strides = shape.map((_, d) => shape.slice(d + 1).reduce((all, n) => all * n, 1));
  return { buffer, dtype, offset: at / dtypeSize(dtype), shape, strides };
}

/** Returns the codes that begin at byte `at`, as a u8 view [rows, ROW_ELEMENTS]. */
const codesAt = (buffer: Buffer, at: number, rows: number): View =>
  viewAt(buffer, 'u8', at, [rows, ROW_ELEMENTS]);
const scaleAt = (buffer: Buffer, at: number, numel: number): View =>
  viewAt(buffer, 'f32', at + numel + ROW_ELEMENTS, [1]);

/** Returns a flat view of elements of a tensor. */
const elementsOf = ({ buffer, dtype, offset }: Tensor, { offset: first, numel }: Range): View =>
  viewAt(buffer, dtype, (offset + first) * dtypeSize(dtype), [1, numel]);

/**
 * Returns the largest magnitude of each coded weight over all ranks, [1, weights] on `at.stream`.
 * If a weight contains NaN, its magnitude is NaN. The caller releases the tensor.
 */
function findLargest(
  shard: Tensor,
  { weights, parts }: MessageLayout,
  group: Collectives,
  at: CollectiveStart,
): Tensor {
  const { stream, purpose } = at;
  const { device, dtype } = shard;
  const empty = (shape: readonly number[]): Tensor =>
    held(() => Tensor.empty(shape, dtype, device));
  const ownLargest = empty([weights]);
  kernels.fill({ out: ownLargest, value: 0 }, stream);
  for (const { weight, ...range } of required(parts[group.rank])) {
    if (weight === null) continue;
    const magnitudes = empty([1, range.numel]);
    kernels.unary({ in: elementsOf(shard, range), out: magnitudes, op: 'abs' }, stream);
    const out = viewAt(ownLargest.buffer, dtype, weight * dtypeSize(dtype), [1, 1]);
    kernels.reduce({ in: magnitudes, out, op: 'max', accumulate: false }, stream);
    releaseOn(stream, magnitudes);
  }
  const allLargest = empty([group.size, weights]);
  const largest = empty([1, weights]);
  group
    .allGather(allLargest, ownLargest, { stream, purpose: `${purpose}: magnitudes` })
    .wait(stream);
  kernels.reduce({ in: allLargest, out: largest, op: 'max', accumulate: false }, stream);
  for (const temporary of [ownLargest, allLargest]) releaseOn(stream, temporary);
  return largest;
}

/** The message of a rank, and the largest magnitudes of all weights. Written on `stream`. */
interface Outgoing {
  largest: Tensor;
  message: Tensor;
  stream: Stream;
}

/** Writes a shard to the message: codes of coded weights, and values of other parameters. */
function fillMessage(shard: Tensor, parts: readonly MessagePart[], outgoing: Outgoing): void {
  const { message, stream } = outgoing;
  const size = dtypeSize(shard.dtype);
  for (const part of parts) {
    if (part.weight !== null) encode(shard, part, outgoing);
    else {
      const { offset, numel, at } = part;
      const range = {
        to: message.offset + at,
        from: (shard.offset + offset) * size,
        bytes: numel * size,
      };
      message.buffer.copyFrom(shard.buffer, range, stream);
    }
  }
}

/**
 * Quantizes one part. After the part, a row with the weight's largest magnitude follows. The kernel
 * derives the scale from it, so every rank uses the scale of the whole weight.
 */
function encode(
  shard: Tensor,
  { numel, offset, weight, at }: MessagePart,
  { largest, message, stream }: Outgoing,
): void {
  const { device, dtype } = shard;
  const rows = numel / ROW_ELEMENTS + 1;
  const values = held(() => Tensor.empty([rows, ROW_ELEMENTS], dtype, device));
  copyFlat(values, { offset: 0, numel }, shard, { offset, numel }, stream);
  const largestByte = (largest.offset + required(weight)) * dtypeSize(dtype);
  kernels.copy(
    {
      in: { ...viewAt(largest.buffer, dtype, largestByte, [ROW_ELEMENTS]), strides: [0] },
      out: viewAt(values.buffer, dtype, numel * dtypeSize(dtype), [ROW_ELEMENTS]),
    },
    stream,
  );
  const start = message.offset + at;
  kernels.fp8Quantize(
    {
      in: values,
      out: codesAt(message.buffer, start, rows),
      transposed: null,
      scale: scaleAt(message.buffer, start, numel),
      transposedScale: null,
      format: 'e4m3',
      scaling: 'tensor',
    },
    stream,
  );
  releaseOn(stream, values);
}

/**
 * Returns the identity matrix in e4m3 codes, and its scale 1. The product of codes and identity
 * decodes the codes.
 */
function createIdentity(like: Tensor, stream: Stream): { codes: Tensor; scale: Tensor } {
  const codes = held(() => Tensor.empty([ROW_ELEMENTS, ROW_ELEMENTS], 'u8', like.device));
  const scale = held(() => Tensor.empty([1], 'f32', like.device));
  kernels.fill({ out: codes, value: 0 }, stream);
  const diagonal = {
    ...viewAt(codes.buffer, 'u8', 0, [ROW_ELEMENTS]),
    strides: [ROW_ELEMENTS + 1],
  };
  kernels.fill({ out: diagonal, value: CODE_OF_ONE }, stream);
  kernels.fill({ out: scale, value: 1 }, stream);
  return { codes, scale };
}

/**
 * Writes the weights of all messages to `flat`: codes times their scale, rounded to bf16, and
 * values unchanged.
 */
function decode(
  messages: Tensor,
  { parts, bytes }: MessageLayout,
  flat: Tensor,
  stream: Stream,
): void {
  const { codes, scale } = createIdentity(flat, stream);
  const size = dtypeSize(flat.dtype);
  parts.forEach((list, rank) => {
    const shard = shardOf(flat.numel, rank, parts.length);
    for (const { weight, offset, numel, at } of list) {
      const to = (flat.offset + shard.offset + offset) * size;
      const from = rank * bytes + at;
      if (weight === null) {
        flat.buffer.copyFrom(messages.buffer, { to, from, bytes: numel * size }, stream);
        continue;
      }
      const rows = numel / ROW_ELEMENTS;
      kernels.fp8Matmul(
        {
          a: codesAt(messages.buffer, from, rows),
          b: codes,
          aScale: scaleAt(messages.buffer, from, numel),
          bScale: scale,
          bias: null,
          out: viewAt(flat.buffer, flat.dtype, to, [rows, ROW_ELEMENTS]),
          aFormat: 'e4m3',
          bFormat: 'e4m3',
          aScaling: 'tensor',
          bScaling: 'tensor',
          fast: false,
          accumulate: false,
        },
        stream,
      );
    }
  });
  for (const temporary of [codes, scale]) releaseOn(stream, temporary);
}

/**
 * Returns a gather that sends the weights selected by `isCoded` as codes with one scale per weight,
 * and all other weights as gatherPlain() does. Shards keep full precision. Source: torchao's float8
 * all-gather.
 */
export function gatherFp8(isCoded: (parameter: Parameter) => boolean): GatherUnit {
  const layouts = new WeakMap<WeightUnit, MessageLayout>();
  const layoutOf = (unit: WeightUnit, ranks: number): MessageLayout => {
    const cached = layouts.get(unit);
    if (cached) return cached;
    const coded = new Set(
      unit.layout.entries
        .filter((entry) => isCoded(unit.parameterOf(entry)))
        .map(({ name }) => name),
    );
    const created = layoutMessages(
      { layout: unit.layout, isCoded: (name) => coded.has(name) },
      ranks,
    );
    layouts.set(unit, created);
    return created;
  };
  return (store, flat, group, at, unit) => {
    const messages = layoutOf(unit, group.size);
    if (group.size === 1 || flat.dtype !== WEIGHT_DTYPE || messages.weights === 0) {
      return gatherPlain(store, flat, group, at);
    }
    const { stream } = at;
    const { memory } = store;
    const isHere = memory !== null && !memory.buffer.pinned;
    const shard = isHere
      ? memory
      : held(() => Tensor.empty([flat.numel / group.size], flat.dtype, flat.device));
    if (!isHere) store.load(shard, stream);
    const largest = findLargest(shard, messages, group, at);
    const allMessages = held(() => Tensor.empty([group.size * messages.bytes], 'u8', flat.device));
    const message = held(() =>
      allMessages.alias([messages.bytes], undefined, group.rank * messages.bytes),
    );
    const parts = required(messages.parts[group.rank]);
    fillMessage(shard, parts, { largest, message, stream });
    releaseOn(stream, largest);
    if (!isHere) releaseOn(stream, shard);
    const work = group.allGather(allMessages, message, at);
    return {
      wait: (reader) => {
        work.wait(reader);
        decode(allMessages, messages, flat, reader);
        message.release();
        releaseOn(reader, allMessages);
      },
    };
  };
}
