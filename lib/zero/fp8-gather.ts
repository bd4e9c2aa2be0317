// Stage 3 gathers the weights of FP8 layers as codes, one byte each. Products do not change,
// because they quantize the decoded weights to the same codes.
import type { Parameter } from '../nn/parameter.js';
import type { Buffer } from '../runtime/buffer.js';
import { type DType, dtypeSize } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import type { Stream } from '../runtime/stream.js';
import type { View } from '../runtime/view.js';
import { copyFlat } from '../tensor/flat.js';
import { held, Tensor } from '../tensor/index.js';
import { fragmentsOf, parameterAlignment, type Range, shardOf } from './layout.js';
import { type GatherUnit, gatherPlain } from './stage3.js';
import type { WeightUnit } from './unit.js';
import type { CollectivePlace, Collectives } from './wire.js';
import { releaseOn } from './wire.js';

/** Elements of a shard that travel together. Ranges are multiples of parameterAlignment. */
interface Piece extends Range {
  /** The index of the coded weight; null: the values themselves travel. */
  readonly weight: number | null;
  /** Where its bytes begin in the message of its rank. */
  readonly at: number;
}

/** The messages of a unit. */
interface Messages {
  /** Coded weights of the unit. */
  readonly weights: number;
  /** By rank: pieces with offsets from the beginning of the shard. */
  readonly pieces: readonly (readonly Piece[])[];
  /** Bytes of the largest message, which all have. */
  readonly bytes: number;
}

/** The dtype of the weights of FP8 layers. */
const DTYPE = 'bf16';
/** Bytes of the scale behind codes, so that the next piece is aligned. */
const SCALE_BYTES = 16;
/** Elements of a row of the matrix of weights that is quantized, and of the decoding product. */
const ROW = parameterAlignment;
/** The code of 1 in e4m3. */
const ONE = 0x38;

/** Bytes of `numel` codes, of the row with the largest magnitude, and of the scale. */
const codedBytes = (numel: number): number => numel + ROW + SCALE_BYTES;

function messagesOf(
  { layout, ...unit }: Pick<WeightUnit, 'layout'> & { isCoded(name: string): boolean },
  ranks: number,
): Messages {
  const names = layout.entries.map(({ name }) => name).filter((name) => unit.isCoded(name));
  const pieces = Array.from({ length: ranks }, (_, rank) => {
    const shard = shardOf(layout.numel, rank, ranks);
    const coded = fragmentsOf(layout, shard).filter(({ entry }) => unit.isCoded(entry.name));
    const list: Piece[] = [];
    let [from, at] = [0, 0];
    const add = (range: Range, weight: number | null): void => {
      if (range.numel === 0) return;
      list.push({ ...range, weight, at });
      at += weight === null ? range.numel * dtypeSize(DTYPE) : codedBytes(range.numel);
      from = range.offset + range.numel;
    };
    for (const { entry, offset, numel } of coded) {
      add({ offset: from, numel: offset - from }, null);
      add({ offset, numel }, names.indexOf(entry.name));
    }
    add({ offset: from, numel: shard.numel - from }, null);
    return list;
  });
  const bytes = Math.max(...pieces.map((list) => endOf(list)));
  return { weights: names.length, pieces, bytes };
}

function endOf(list: readonly Piece[]): number {
  const last = list.at(-1);
  if (!last) return 0;
  const { at, numel, weight } = last;
  return at + (weight === null ? numel * dtypeSize(DTYPE) : codedBytes(numel));
}

/** A contiguous view of memory; `at` is its first byte. */
function viewAt(buffer: Buffer, dtype: DType, at: number, shape: readonly number[]): View {
  const strides = shape.map((_, d) => shape.slice(d + 1).reduce((all, n) => all * n, 1));
  return { buffer, dtype, offset: at / dtypeSize(dtype), shape, strides };
}

/** The codes and the scale of a piece that begins at byte `at`; `rows` of ROW codes. */
const codesAt = (buffer: Buffer, at: number, rows: number): View =>
  viewAt(buffer, 'u8', at, [rows, ROW]);
const scaleAt = (buffer: Buffer, at: number, numel: number): View =>
  viewAt(buffer, 'f32', at + numel + ROW, [1]);

/** A flat view of elements of a tensor. */
const elements = ({ buffer, dtype, offset }: Tensor, { offset: first, numel }: Range): View =>
  viewAt(buffer, dtype, (offset + first) * dtypeSize(dtype), [1, numel]);

/**
 * Returns the largest magnitude of each coded weight over all ranks, [weights], on `at.stream`. NaN
 * stays NaN. The caller releases it.
 */
function largestOf(
  shard: Tensor,
  { weights, pieces }: Messages,
  group: Collectives,
  at: CollectivePlace,
): Tensor {
  const { stream, purpose } = at;
  const { device, dtype } = shard;
  const empty = (shape: readonly number[]): Tensor =>
    held(() => Tensor.empty(shape, dtype, device));
  const own = empty([weights]);
  kernels.fill({ out: own, value: 0 }, stream);
  for (const { weight, ...range } of required(pieces[group.rank])) {
    if (weight === null) continue;
    const magnitudes = empty([1, range.numel]);
    kernels.unary({ in: elements(shard, range), out: magnitudes, op: 'abs' }, stream);
    const out = viewAt(own.buffer, dtype, weight * dtypeSize(dtype), [1, 1]);
    kernels.reduce({ in: magnitudes, out, op: 'max', accumulate: false }, stream);
    releaseOn(stream, magnitudes);
  }
  const all = empty([group.size, weights]);
  const largest = empty([1, weights]);
  group.allGather(all, own, { stream, purpose: `${purpose}: magnitudes` }).wait(stream);
  kernels.reduce({ in: all, out: largest, op: 'max', accumulate: false }, stream);
  for (const one of [own, all]) releaseOn(stream, one);
  return largest;
}

/**
 * Writes the codes of a piece. A row with the weight's largest magnitude follows the values, so
 * that every rank has the scale of the whole weight.
 */
function encode(
  shard: Tensor,
  { numel, offset, weight, at }: Piece,
  { largest, message, stream }: { largest: Tensor; message: Tensor; stream: Stream },
): void {
  const { device, dtype } = shard;
  const rows = numel / ROW + 1;
  const values = held(() => Tensor.empty([rows, ROW], dtype, device));
  copyFlat(values, { offset: 0, numel }, shard, { offset, numel }, stream);
  const one = (largest.offset + required(weight)) * dtypeSize(dtype);
  kernels.copy(
    {
      in: { ...viewAt(largest.buffer, dtype, one, [ROW]), strides: [0] },
      out: viewAt(values.buffer, dtype, numel * dtypeSize(dtype), [ROW]),
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

/** The operand of the decoding product: ones of e4m3 on the diagonal, and their scale. */
function identity(like: Tensor, stream: Stream): { codes: Tensor; scale: Tensor } {
  const codes = held(() => Tensor.empty([ROW, ROW], 'u8', like.device));
  const scale = held(() => Tensor.empty([1], 'f32', like.device));
  kernels.fill({ out: codes, value: 0 }, stream);
  const diagonal = { ...viewAt(codes.buffer, 'u8', 0, [ROW]), strides: [ROW + 1] };
  kernels.fill({ out: diagonal, value: ONE }, stream);
  kernels.fill({ out: scale, value: 1 }, stream);
  return { codes, scale };
}

/** Fills `flat` from all messages: codes times their scale, rounded to bf16, and other values. */
function decode(messages: Tensor, { pieces, bytes }: Messages, flat: Tensor, stream: Stream): void {
  const { codes, scale } = identity(flat, stream);
  const size = dtypeSize(flat.dtype);
  pieces.forEach((list, rank) => {
    const shard = shardOf(flat.numel, rank, pieces.length);
    for (const { weight, offset, numel, at } of list) {
      const to = (flat.offset + shard.offset + offset) * size;
      const from = rank * bytes + at;
      if (weight === null) {
        flat.buffer.copyFrom(messages.buffer, { to, from, bytes: numel * size }, stream);
        continue;
      }
      const rows = numel / ROW;
      kernels.fp8Matmul(
        {
          a: codesAt(messages.buffer, from, rows),
          b: codes,
          aScale: scaleAt(messages.buffer, from, numel),
          bScale: scale,
          bias: null,
          out: viewAt(flat.buffer, flat.dtype, to, [rows, ROW]),
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
  for (const one of [codes, scale]) releaseOn(stream, one);
}

/**
 * Like gatherPlain(), with codes of the weights for which `isCoded` holds, by the scale of the
 * whole weight. Shards keep full precision. Source: torchao's float8 all-gather.
 */
export function gatherFp8(isCoded: (parameter: Parameter) => boolean): GatherUnit {
  const known = new WeakMap<WeightUnit, Messages>();
  const ofUnit = (unit: WeightUnit, ranks: number): Messages => {
    const found = known.get(unit);
    if (found) return found;
    const coded = new Set(
      unit.layout.entries.filter((one) => isCoded(unit.parameterOf(one))).map(({ name }) => name),
    );
    const made = messagesOf({ layout: unit.layout, isCoded: (name) => coded.has(name) }, ranks);
    known.set(unit, made);
    return made;
  };
  return (store, flat, group, at, unit) => {
    const messages = ofUnit(unit, group.size);
    if (group.size === 1 || flat.dtype !== DTYPE || messages.weights === 0) {
      return gatherPlain(store, flat, group, at);
    }
    const { stream } = at;
    const { memory } = store;
    const isHere = memory !== null && !memory.buffer.pinned;
    const shard = isHere
      ? memory
      : held(() => Tensor.empty([flat.numel / group.size], flat.dtype, flat.device));
    if (!isHere) store.load(shard, stream);
    const largest = largestOf(shard, messages, group, at);
    const all = held(() => Tensor.empty([group.size * messages.bytes], 'u8', flat.device));
    const own = held(() => all.alias([messages.bytes], undefined, group.rank * messages.bytes));
    for (const piece of required(messages.pieces[group.rank])) {
      if (piece.weight !== null) encode(shard, piece, { largest, message: own, stream });
      else {
        const { offset, numel } = piece;
        const size = dtypeSize(flat.dtype);
        own.buffer.copyFrom(
          shard.buffer,
          { to: own.offset + piece.at, from: (shard.offset + offset) * size, bytes: numel * size },
          stream,
        );
      }
    }
    releaseOn(stream, largest);
    if (!isHere) releaseOn(stream, shard);
    const work = group.allGather(all, own, at);
    return {
      wait: (reader) => {
        work.wait(reader);
        decode(all, messages, flat, reader);
        own.release();
        releaseOn(reader, all);
      },
    };
  };
}
