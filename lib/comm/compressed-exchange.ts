// The average of a vector over ranks, at one bit per element: what each rank rounds away it adds to
// its next one. Source: DeepSpeed's compressed_allreduce (Tang et al. 2021, arXiv:2102.02888).
import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { Event, Stream } from '../runtime/stream.js';
import type { View } from '../runtime/view.js';
import { held, Tensor, zeros } from '../tensor/index.js';
import type { CompressedLayout, PartSegments } from './compressed-layout.js';

/** When a collective of an exchange starts, and what it is called. */
export interface ExchangeStart {
  /** After what is enqueued here. */
  stream: Stream;
  /** Named in errors and in the log, the same on every rank. */
  purpose: string;
}

/** A collective under way. */
export interface ExchangeWork {
  /** Later work of `stream` sees its result. */
  wait(stream: Stream): void;
}

/** What is needed of a group of ranks. */
export interface ExchangeGroup {
  /** This rank's place in the group. */
  readonly rank: number;
  /** Ranks in the group. */
  readonly size: number;
  /** Slot j of `input` goes to slot `rank` of rank j's `output`. */
  allToAll(output: View, input: View, at: ExchangeStart): ExchangeWork;
  /** `output` gets every rank's `input`, which may be its slot there. */
  allGather(output: View, input: View, at: ExchangeStart): ExchangeWork;
}

/** What an exchange is made for. */
export interface CompressedOptions {
  /** Who averages what. */
  layout: CompressedLayout;
  /** What stands for the elements of a segment. */
  levels: kernels.SignLevels;
  /** Named in errors and in the log, the same on every rank. */
  purpose: string;
}

/** The segments of a part, where the ops read them. */
interface Tables {
  starts: Tensor;
  counts: Tensor;
}

/**
 * Three calls, in this order, between which other exchanges may have theirs: send() rounds the
 * vector with this rank's error and sends each part to its owner; average() adds up what the ranks
 * have sent of this rank's part, with the owner's error, rounds that again and sends it to all;
 * receive() is the result, the same bits on every rank. All of it is enqueued: collectives on a
 * stream of their own, the rest on the compute stream. Where `control`, [4] f32 of a
 * GradientControl, says that nothing is applied, errors stay as they are.
 */
export class CompressedExchange {
  /** [numel] f32: what this rank has rounded away. */
  readonly ownError: Tensor;
  /** [part] f32: what it has rounded away as the owner of its part. */
  readonly ownerError: Tensor;
  private readonly tables: readonly Tables[];
  /** [ranks, message] u8: what goes to the owners, then what comes from them. */
  private readonly outbox: Tensor;
  /** [ranks, message] u8: what comes to this owner. */
  private readonly inbox: Tensor;
  private readonly stream: Stream;
  private readonly written: Event;
  private work: ExchangeWork | null = null;

  constructor(
    private readonly group: ExchangeGroup,
    private readonly device: Device,
    private readonly options: CompressedOptions,
  ) {
    const { layout } = options;
    const { numel, part, ranks, messageBytes } = layout;
    this.ownError = held(() => zeros([numel], { device }));
    this.ownerError = held(() => zeros([part], { device }));
    this.tables = layout.parts.map((segments) => tablesOf(segments, device));
    const box = (): Tensor => held(() => zeros([ranks * messageBytes], { device, dtype: 'u8' }));
    this.outbox = box();
    this.inbox = box();
    this.stream = Stream.create(device, 'compressed exchange');
    this.written = new Event(device);
  }

  /** Of the two errors, the messages and the tables. */
  get bytes(): number {
    const { ownError, ownerError, outbox, inbox, tables } = this;
    const all = [ownError, ownerError, outbox, inbox];
    for (const { starts, counts } of tables) all.push(starts, counts);
    return all.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /** Forgets what was rounded away. */
  reset(): void {
    for (const error of [this.ownError, this.ownerError]) kernels.fill({ out: error, value: 0 });
  }

  /** `vector` [numel] f32 is read on the compute stream. */
  send(vector: Tensor, control: Tensor): void {
    const { group, outbox, inbox } = this;
    for (let owner = 0; owner < group.size; owner++) {
      const error = this.partOf(this.ownError, owner);
      this.compress(this.partOf(vector, owner), error, owner, { slot: owner, control });
    }
    this.start((at) => group.allToAll(inbox, outbox, at));
  }

  /** This rank's part of all ranks' vectors becomes their average, on its way to all. */
  average(control: Tensor): void {
    const { group, outbox, tables } = this;
    const { part, messageBytes } = this.options.layout;
    const own = tables[group.rank] as Tables;
    this.arrived();
    const mean = held(() => Tensor.empty([part], 'f32', this.device));
    const all = { first: 0, rows: group.size };
    kernels.signAverage({
      bits: this.bitsOf(this.inbox, all),
      levels: this.levelsOf(this.inbox, all, own),
      ...own,
      out: mean,
    });
    this.compress(mean, this.ownerError, group.rank, { slot: group.rank, control });
    mean.release();
    const message = view(outbox, 'u8', group.rank * messageBytes, [messageBytes]);
    this.start((at) => group.allGather(outbox, message, at));
  }

  /** `vector` receives the average, zeros between segments. */
  receive(vector: Tensor): void {
    const { outbox, tables } = this;
    this.arrived();
    for (let owner = 0; owner < this.group.size; owner++) {
      const of = tables[owner] as Tables;
      const one = { first: owner, rows: 1 };
      kernels.signAverage({
        bits: this.bitsOf(outbox, one),
        levels: this.levelsOf(outbox, one, of),
        ...of,
        out: this.partOf(vector, owner),
      });
    }
  }

  /** Waits for what is enqueued, and frees all of it. */
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

  /** Rounds `value`, part number `part`, into message number `slot` of the outbox. */
  private compress(
    value: View,
    error: View,
    part: number,
    { slot, control }: { slot: number; control: Tensor },
  ): void {
    const of = this.tables[part] as Tables;
    const { part: size, levelBytes, messageBytes } = this.options.layout;
    const at = slot * messageBytes;
    kernels.signCompress({
      ...{ value, error, ...of, control, kind: this.options.levels },
      bits: view(this.outbox, 'u8', at + levelBytes, [size / 8]),
      levels: view(this.outbox, 'f32', at / 4, [2 * of.counts.numel]),
    });
  }

  private start(collective: (at: ExchangeStart) => ExchangeWork): void {
    const { stream } = this;
    stream.wait(this.written.record(this.device.compute));
    this.work = collective({ stream, purpose: this.options.purpose });
  }

  private arrived(): void {
    this.work?.wait(this.device.compute);
    this.work = null;
  }

  private partOf(vector: Tensor, owner: number): View {
    const { part } = this.options.layout;
    return view(vector, 'f32', vector.offset + owner * part, [part]);
  }

  private bitsOf(box: Tensor, { first, rows }: Rows): View {
    const { part, levelBytes, messageBytes } = this.options.layout;
    const strides = [messageBytes, 1];
    return view(box, 'u8', first * messageBytes + levelBytes, [rows, part / 8], strides);
  }

  private levelsOf(box: Tensor, { first, rows }: Rows, { counts }: Tables): View {
    const apart = this.options.layout.messageBytes / 4;
    return view(box, 'f32', first * apart, [rows, 2 * counts.numel], [apart, 1]);
  }
}

interface Rows {
  first: number;
  rows: number;
}

/**
 * Elements of `dtype` in the memory of a tensor, from number `offset` on; `strides` default to
 * contiguous ones.
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

function tablesOf({ starts, counts }: PartSegments, device: Device): Tables {
  const list = (values: readonly number[]): Tensor =>
    held(() => Tensor.from(BigInt64Array.from(values, BigInt), { device }));
  return { starts: list(starts), counts: list(counts) };
}
