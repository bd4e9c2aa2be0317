// CompressedExchange: averages a vector over the ranks. It sends one bit per element, and corrects
// the compression error in the next exchange (error feedback). Source: DeepSpeed's
// compressed_allreduce (Tang et al. 2021, arXiv:2102.02888).

import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import { Event, Stream } from '../runtime/stream.js';
import type { View } from '../runtime/view.js';
import { held, Tensor, zeros } from '../tensor/index.js';
import type { ChunkSegments, CompressedLayout } from './compressed-layout.js';

/** Where a collective of an exchange starts, and its name. */
export interface ExchangeStart {
  /** The collective starts after the work that is enqueued on this stream. */
  stream: Stream;
  /** Purpose for errors and logs, equal on every rank. */
  purpose: string;
}

/** A running collective. */
export interface ExchangeWork {
  /** Makes later work of `stream` wait for the result. */
  wait(stream: Stream): void;
}

/** The methods of a process group that an exchange needs. */
export interface ExchangeGroup {
  /** Index of this rank in the group. */
  readonly rank: number;
  /** Number of ranks in the group. */
  readonly size: number;
  /**
   * Splits `input` and `output` into one range per rank. Sends range j of `input` to range `rank`
   * of rank j's `output`.
   */
  allToAll(output: View, input: View, at: ExchangeStart): ExchangeWork;
  /** Gathers every rank's `input` into `output`. `input` may be this rank's range of `output`. */
  allGather(output: View, input: View, at: ExchangeStart): ExchangeWork;
}

/** Options of CompressedExchange. */
export interface CompressedOptions {
  /** The layout of chunks, segments and messages. */
  layout: CompressedLayout;
  /** How the two levels of a segment are computed. A compressed element is one of them. */
  levels: kernels.SignLevels;
  /** Purpose for errors and logs, equal on every rank. */
  purpose: string;
}

/** The segments of a chunk in device memory: i64 tensors, see ChunkSegments. */
interface Tables {
  starts: Tensor;
  counts: Tensor;
}

/**
 * Averages vectors over the ranks with one bit per element. The vector has one chunk per rank; the
 * owner of a chunk averages it. An exchange has three calls, and other exchanges may run between
 * them:
 *
 * 1. send() adds this rank's error of the last exchange to the vector, compresses it, and sends
 *    each chunk to its owner.
 * 2. average() averages this rank's chunk, adds the owner's error, and sends the compressed average
 *    to all ranks.
 * 3. receive() writes the average to the vector, with equal bits on every rank.
 *
 * All work is enqueued: collectives on a separate stream, the rest on the compute stream. If
 * `control` ([4] f32 of a GradientControl) skips the step, errors do not change.
 */
export class CompressedExchange {
  /** [numel] f32: the compression error of this rank's vector in the last exchange. */
  readonly ownError: Tensor;
  /** [chunk] f32: the compression error of the average of this rank's chunk. */
  readonly ownerError: Tensor;
  private readonly tables: readonly Tables[];
  /**
   * [ranks, message] u8. send() writes the messages to the owners; average() gathers their averages
   * here.
   */
  private readonly outbox: Tensor;
  /** [ranks, message] u8: this rank's chunk from every rank. */
  private readonly inbox: Tensor;
  private readonly stream: Stream;
  private readonly written: Event;
  private work: ExchangeWork | null = null;

  /**
   * Allocates errors, messages and tables for `layout` on `device`. `group` runs the collectives.
   */
  constructor(
    private readonly group: ExchangeGroup,
    private readonly device: Device,
    private readonly options: CompressedOptions,
  ) {
    const { layout } = options;
    const { numel, chunk, ranks, messageBytes } = layout;
    this.ownError = held(() => zeros([numel], { device }));
    this.ownerError = held(() => zeros([chunk], { device }));
    this.tables = layout.chunks.map((segments) => tablesOf(segments, device));
    const messages = (): Tensor =>
      held(() => zeros([ranks * messageBytes], { device, dtype: 'u8' }));
    this.outbox = messages();
    this.inbox = messages();
    this.stream = Stream.create(device, 'compressed exchange');
    this.written = new Event(device);
  }

  /** Bytes of errors, messages and tables. */
  get bytes(): number {
    const { ownError, ownerError, outbox, inbox, tables } = this;
    const all = [ownError, ownerError, outbox, inbox];
    for (const { starts, counts } of tables) all.push(starts, counts);
    return all.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /** Zeroes both errors. Call it before vectors of another quantity. */
  reset(): void {
    for (const error of [this.ownError, this.ownerError]) kernels.fill({ out: error, value: 0 });
  }

  /** Compresses `vector` [numel] f32 on the compute stream, and sends each chunk to its owner. */
  send(vector: Tensor, control: Tensor): void {
    const { group, outbox, inbox } = this;
    for (let owner = 0; owner < group.size; owner++) {
      const error = this.chunkOf(this.ownError, owner);
      this.compress(this.chunkOf(vector, owner), error, owner, { slot: owner, control });
    }
    this.start((at) => group.allToAll(inbox, outbox, at));
  }

  /** Averages this rank's chunk over all ranks, and sends the compressed average to them. */
  average(control: Tensor): void {
    const { group, outbox, tables } = this;
    const { chunk, messageBytes } = this.options.layout;
    const ownTables = required(tables[group.rank]);
    this.awaitWork();
    const mean = held(() => Tensor.empty([chunk], 'f32', this.device));
    const all = { first: 0, rows: group.size };
    kernels.signAverage({
      bits: this.bitsOf(this.inbox, all),
      levels: this.levelsOf(this.inbox, all, ownTables),
      ...ownTables,
      out: mean,
    });
    this.compress(mean, this.ownerError, group.rank, { slot: group.rank, control });
    mean.release();
    const message = view(outbox, 'u8', group.rank * messageBytes, [messageBytes]);
    this.start((at) => group.allGather(outbox, message, at));
  }

  /** Writes the average to `vector` [numel] f32. Elements between segments become zero. */
  receive(vector: Tensor): void {
    const { outbox, tables } = this;
    this.awaitWork();
    for (let owner = 0; owner < this.group.size; owner++) {
      const of = required(tables[owner]);
      const one = { first: owner, rows: 1 };
      kernels.signAverage({
        bits: this.bitsOf(outbox, one),
        levels: this.levelsOf(outbox, one, of),
        ...of,
        out: this.chunkOf(vector, owner),
      });
    }
  }

  /** Waits for the enqueued work, then frees all memory. */
  dispose(): void {
    this.work = null;
    this.stream.synchronize();
    this.device.compute.synchronize();
    const { ownError, ownerError, outbox, inbox, tables } = this;
    for (const tensor of [ownError, ownerError, outbox, inbox]) tensor.release();
    for (const { starts, counts } of tables) {
      starts.release();
      counts.release();
    }
    this.written.dispose();
    this.stream.dispose();
  }

  /** Compresses `value`, which is chunk `chunk` of a vector, to message `slot` of the outbox. */
  private compress(
    value: View,
    error: View,
    chunk: number,
    { slot, control }: { slot: number; control: Tensor },
  ): void {
    const of = required(this.tables[chunk]);
    const { chunk: size, levelBytes, messageBytes } = this.options.layout;
    const at = slot * messageBytes;
    kernels.signCompress({
      value,
      error,
      ...of,
      control,
      kind: this.options.levels,
      bits: view(this.outbox, 'u8', at + levelBytes, [size / 8]),
      levels: view(this.outbox, 'f32', at / 4, [2 * of.counts.numel]),
    });
  }

  private start(collective: (at: ExchangeStart) => ExchangeWork): void {
    const { stream } = this;
    stream.wait(this.written.record(this.device.compute));
    this.work = collective({ stream, purpose: this.options.purpose });
  }

  private awaitWork(): void {
    this.work?.wait(this.device.compute);
    this.work = null;
  }

  private chunkOf(vector: Tensor, owner: number): View {
    const { chunk } = this.options.layout;
    return view(vector, 'f32', vector.offset + owner * chunk, [chunk]);
  }

  private bitsOf(messages: Tensor, { first, rows }: Rows): View {
    const { chunk, levelBytes, messageBytes } = this.options.layout;
    const strides = [messageBytes, 1];
    return view(messages, 'u8', first * messageBytes + levelBytes, [rows, chunk / 8], strides);
  }

  private levelsOf(messages: Tensor, { first, rows }: Rows, { counts }: Tables): View {
    const apart = this.options.layout.messageBytes / 4;
    return view(messages, 'f32', first * apart, [rows, 2 * counts.numel], [apart, 1]);
  }
}

interface Rows {
  first: number;
  rows: number;
}

/**
 * Returns elements of `dtype` in the memory of a tensor, from element `offset` on. Default strides:
 * contiguous.
 */
function view(
  { buffer }: Tensor,
  dtype: DType,
  offset: number,
  shape: readonly number[],
  strides: readonly number[] = [1],
): View {
  return { buffer, dtype, offset, shape, strides };
}

function tablesOf({ starts, counts }: ChunkSegments, device: Device): Tables {
  const listRows = (values: readonly number[]): Tensor =>
    held(() => Tensor.from(BigInt64Array.from(values, BigInt), { device }));
  return { starts: listRows(starts), counts: listRows(counts) };
}
