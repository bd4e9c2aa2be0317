// ProcessGroup: collectives on tensors between the ranks of a group. They run on the compute
// stream, or on another stream.

import { basename, dirname, sep } from 'node:path';
import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import { valueError } from '../runtime/input-errors.js';
import {
  type Collective,
  type CollectiveKind,
  type ReduceOp,
  requireFlat,
  type Tickets,
} from '../runtime/job.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { poll } from '../runtime/poll.js';
import { definePythonNames } from '../runtime/python-names.js';
import { Event, Stream } from '../runtime/stream.js';
import { describe, numel, type View } from '../runtime/view.js';
import { Tensor } from '../tensor/index.js';
import { markChanged } from '../tensor/tape.js';
import { CommsLogger } from './comms-logger.js';

export type { ReduceOp } from '../runtime/job.js';

/** Options of a collective. All ranks pass the same `op` and `purpose`. */
export interface CollectiveOptions {
  /** The reduction. Default: sum. */
  op?: ReduceOp;
  /**
   * The collective starts after the work that is enqueued on this stream. Default: the compute
   * stream of the device.
   */
  stream?: Stream;
  /**
   * The purpose, for example in errors. Like `op`, it must be equal on every rank, else all ranks
   * fail.
   */
  purpose?: string;
  /**
   * Text for messages only; it may differ between ranks. Default: the file and line of the caller,
   * unless there is a purpose.
   */
  label?: string;
}

const ALL_REDUCE = { ...namesOf.CollectiveOptions, output: true } as const;

/** Options of a collective on rows. Each row is exchanged as a collective of its own. */
export interface RowOptions extends CollectiveOptions {
  /**
   * Number of equal consecutive rows in input and output. Use it to divide an inner dim over the
   * ranks. With more than 1 row, input and output must not overlap. Default: 1.
   */
  rows?: number;
}

/** A ticket that is always done. Real tickets count from 1. */
const NO_TICKET = 0;

/**
 * A running collective. It keeps its memory alive until wait(), synchronize() or `done` has
 * reported its end.
 */
export class Work {
  /** @internal */
  constructor(
    private readonly tickets: Tickets,
    private readonly ticket: number,
    private readonly compute: Stream,
  ) {}

  /**
   * Makes later work of `stream` start after the collective. Default: the compute stream. On a GPU,
   * the host does not wait. On the CPU, it blocks, because work on a CPU stream runs at once.
   * Afterwards, free the memory in the order of `stream` or of a later stream. Throws the failure
   * of the job (DS_COMM).
   */
  wait(stream: Stream = this.compute): void {
    this.tickets.wait(this.ticket, stream);
  }

  /** Blocks until the collective is done. Throws the failure of the job (DS_COMM). */
  synchronize(): void {
    this.tickets.synchronize(this.ticket);
  }

  /** Whether the collective is done. Does not wait. Throws the failure of the job (DS_COMM). */
  get done(): boolean {
    return this.tickets.done(this.ticket);
  }

  /**
   * Resolves when the collective is done, without blocking the event loop. Rejects with DS_COMM if
   * the ranks issued different collectives, or a rank fails.
   */
  get promise(): Promise<void> {
    return poll(() => this.done);
  }
}

/**
 * A group of ranks with its collectives. Every member must issue the same collectives (kind, op,
 * dtype, size, root) in the same order. If not, all members fail with DS_COMM, which lists the
 * collective of each rank. Tensors must be contiguous and on the device of the group.
 *
 * Methods return at once. A collective starts after the work that was enqueued on its stream.
 * Work.wait() makes later work wait for the collective; on a GPU, the order of the stream does too.
 * Collectives of one group run in call order. They change their output in place, like functions
 * with "_": if a backward saved the output, it throws. Parameters of an engine are rejected.
 *
 * Throws DS_SHAPE, DS_DTYPE, DS_DEVICE, DS_BOUNDS or DS_ARGUMENT for an invalid call. Throws the
 * first failure of the job (DS_COMM), which is the same on every rank.
 */
export class ProcessGroup {
  static {
    const others = {
      all_gather_into_tensor: 'allGather()',
      reduce_scatter_tensor: 'reduceScatter()',
      all_to_all_single: 'allToAll()',
    };
    definePythonNames(ProcessGroup, { label: 'group', others });
  }

  /**
   * Records all collectives of the group. If it is set, the host waits for each collective.
   * Default: null.
   */
  logger: CommsLogger | null = null;
  private ownStream: SideStream | null = null;
  /** @internal Number of collectives that this rank has issued. */
  issued = 0;

  /** @internal Use Distributed.newGroup(). */
  constructor(
    /** Name in errors and logs. */
    readonly name: string,
    /** Numbers of its ranks in the job. */
    readonly ranks: readonly number[],
    /** Index of this rank in `ranks`. */
    readonly rank: number,
    /** The device of tensors in its collectives. */
    readonly device: Device,
    private readonly tickets: Tickets,
  ) {}

  /** Number of ranks in the group. */
  get size(): number {
    return this.ranks.length;
  }

  /**
   * @internal A stream of the group in parallel with the compute stream, created at its first use.
   * A collective on it starts after the compute work so far, and later compute work does not wait
   * for it.
   */
  get beside(): SideStream {
    this.ownStream ??= new SideStream(this.device, this.name);
    return this.ownStream;
  }

  /**
   * @internal Closes the group after its last collective. Further calls do nothing. Never throws.
   */
  dispose(): void {
    const { ownStream } = this;
    this.ownStream = null;
    try {
      ownStream?.dispose();
    } catch {
      // If work on the device has failed, disposal throws; so does the next use of the device.
    }
  }

  /** Throws the failure of the job (DS_COMM) if there is one. Does not wait. */
  check(): void {
    this.tickets.done(NO_TICKET);
  }

  /**
   * Reduces `tensor` over all ranks. Writes the result to `tensor`, or to `output` of the same size
   * and dtype.
   */
  allReduce(tensor: View, given: CollectiveOptions & { output?: View } = {}): Work {
    const options = readOptions('allReduce', given, ALL_REDUCE);
    const { output = tensor } = options;
    this.requireSizes('allReduce', tensor, output, 1, 1);
    return this.start('allReduce', { input: tensor, output, count: numel(tensor.shape) }, options);
  }

  /**
   * Splits `input` into one range per rank, each with the size of `output`. Reduces this rank's
   * range over all ranks into `output`, which may be that range of `input`.
   */
  reduceScatter(output: View, input: View, given: RowOptions = {}): Work {
    const options = readOptions('reduceScatter', given, namesOf.RowOptions);
    const { rows = 1 } = options;
    this.requireSizes('reduceScatter', input, output, this.size, 1);
    const count = rowOf('reduceScatter', output, rows);
    return this.start('reduceScatter', { input, output, count, rows }, options);
  }

  /**
   * Gathers the `input` of every rank into `output`, in the order of ranks. `input` may be this
   * rank's range of `output`.
   */
  allGather(output: View, input: View, given: RowOptions = {}): Work {
    const options = readOptions('allGather', given, namesOf.RowOptions);
    const { rows = 1 } = options;
    this.requireSizes('allGather', input, output, 1, this.size);
    const count = rowOf('allGather', input, rows);
    return this.start('allGather', { input, output, count, rows }, options);
  }

  /** Copies the `tensor` of rank `root` of the group to every rank. */
  broadcast(tensor: View, root: number, given: CollectiveOptions = {}): Work {
    const options = readOptions('broadcast', given, namesOf.CollectiveOptions);
    const count = elementsOf('broadcast', tensor);
    return this.start('broadcast', { input: tensor, output: tensor, count, peer: root }, options);
  }

  /**
   * Reduces `tensor` over all ranks into the tensor of rank `root`. The tensors of other ranks do
   * not change.
   */
  reduce(tensor: View, root: number, given: CollectiveOptions = {}): Work {
    const options = readOptions('reduce', given, namesOf.CollectiveOptions);
    const count = elementsOf('reduce', tensor);
    return this.start('reduce', { input: tensor, output: tensor, count, peer: root }, options);
  }

  /**
   * Splits `input` and `output` into one range per rank. Sends range j of `input` to range `rank`
   * of rank j's `output`.
   */
  allToAll(output: View, input: View, given: CollectiveOptions = {}): Work {
    const options = readOptions('allToAll', given, namesOf.CollectiveOptions);
    this.requireSizes('allToAll', input, output, 1, 1);
    const count = numel(input.shape) / this.size;
    if (!Number.isInteger(count)) {
      throw shapeError('allToAll', `a multiple of ${this.size} elements`, describe(input));
    }
    return this.start('allToAll', { input, output, count }, options);
  }

  /**
   * Sends to rank `peer` of the group. The peer must call recv() with the same dtype and number of
   * elements. Sends and receives of a group run one after another. If two ranks exchange tensors,
   * one must send first, and the other receive first.
   */
  send(tensor: View, peer: number, given: CollectiveOptions = {}): Work {
    const options = readOptions('send', given, namesOf.CollectiveOptions);
    const count = elementsOf('send', tensor);
    return this.start('send', { input: tensor, output: null, count, peer }, options);
  }

  /**
   * Receives `tensor` from rank `peer` of the group. The peer must call send() with the same dtype
   * and number of elements.
   */
  recv(tensor: View, peer: number, given: CollectiveOptions = {}): Work {
    const options = readOptions('recv', given, namesOf.CollectiveOptions);
    const count = elementsOf('recv', tensor);
    return this.start('recv', { input: null, output: tensor, count, peer }, options);
  }

  /** Returns work that is done when every rank has called barrier(). */
  barrier(given: CollectiveOptions = {}): Work {
    const options = readOptions('barrier', given, namesOf.CollectiveOptions);
    return this.start('barrier', { input: null, output: null, count: 0 }, options);
  }

  /**
   * @internal Sends `error` in place of this rank's next collective. Ranks that start this
   * collective get DS_COMM with the error. Ranks that also sent an error continue. Never throws.
   * See jointly().
   */
  giveUp(error: string): void {
    try {
      this.tickets.giveUp(error);
    } catch {
      // The job has ended, and all ranks get its failure. The caller's own error explains more.
    }
  }

  private start(
    kind: CollectiveKind,
    call: Pick<Collective, 'input' | 'output' | 'count'> & { peer?: number; rows?: number },
    options: CollectiveOptions,
  ): Work {
    const { op = 'sum', stream = this.device.compute, purpose = '' } = options;
    const { label = purpose ? '' : callSite() } = options;
    const { input, output, count, peer = 0, rows = 1 } = call;
    if (input) requireFlat(kind, input);
    if (output && output !== input) requireFlat(kind, output);
    if (output instanceof Tensor) output.requireWritable(kind);
    const whole: Collective = { kind, op, purpose, input, output, count, peer, rows };
    if (this.logger) stream.synchronize();
    const begin = performance.now();
    this.issued++;
    const ticket = this.tickets.start(whole, stream, label);
    if (output instanceof Tensor) markChanged(output);
    const work = new Work(this.tickets, ticket, this.device.compute);
    if (this.logger) {
      work.synchronize();
      this.logger.add(
        CommsLogger.record(whole, this.size, performance.now() - begin, label || purpose),
      );
    }
    return work;
  }

  private requireSizes(op: string, input: View, output: View, ins: number, outs: number): void {
    for (const view of [output, input]) elementsOf(op, view);
    if (input.dtype !== output.dtype) {
      throw new DsError({ code: 'DS_DTYPE', op, expected: input.dtype, got: output.dtype });
    }
    if (numel(input.shape) * outs === numel(output.shape) * ins) return;
    const sizes =
      ins === outs
        ? "an output of the input's size"
        : ins > 1
          ? `an input of ${ins} slots`
          : `an output of ${outs} slots`;
    throw shapeError(op, sizes, `input ${describe(input)}, output ${describe(output)}`);
  }
}

/** Returns the number of elements. Throws DS_ARGUMENT if `tensor` is not a tensor. */
function elementsOf(op: string, tensor: View): number {
  if (Array.isArray((tensor as Partial<View> | null)?.shape)) return numel(tensor.shape);
  throw valueError(op, 'a tensor', tensor);
}

/**
 * Returns the number of elements per row, if `each` has `rows` rows. Throws DS_SHAPE unless rows
 * are equal.
 */
function rowOf(op: string, each: View, rows: number): number {
  const count = numel(each.shape) / rows;
  if (rows >= 1 && Number.isInteger(rows) && Number.isInteger(count)) return count;
  throw shapeError(op, `a multiple of ${rows} rows of the same size`, describe(each));
}

function shapeError(op: string, expected: string, got: string): DsError {
  return new DsError({ code: 'DS_SHAPE', op, expected, got });
}

/** Stack frames in these folders belong to the library, not to the caller. */
const libraryFolders = [__dirname, `${dirname(__dirname)}${sep}runtime`];

/**
 * Returns the place of the call, such as "train.js:12": the nearest stack frame outside the
 * library's communication code. Returns '' without such a frame.
 */
function callSite(): string {
  const holder: { stack?: string } = {};
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = 8;
  Error.captureStackTrace(holder, callSite);
  Error.stackTraceLimit = stackTraceLimit;
  for (const frame of (holder.stack ?? '').split('\n').slice(1)) {
    const [, file, line] = /\(?((?:file:\/\/)?\/[^():]*):(\d+):\d+\)?$/.exec(frame) ?? [];
    if (!file || libraryFolders.some((folder) => file.includes(folder + sep))) continue;
    return `${basename(file)}:${line}`;
  }
  return '';
}

/** A stream of a group, and the events that order it with the compute stream. */
export class SideStream {
  private readonly stream: Stream;
  private readonly computed: Event;
  private readonly begun: Event;

  /** `name`: the name of the group, for traces. */
  constructor(
    private readonly device: Device,
    name: string,
  ) {
    this.stream = Stream.create(device, `exchanges of ${name}`);
    this.computed = new Event(device);
    this.begun = new Event(device);
  }

  /**
   * Makes the next work of the stream start after all compute work so far. It may then use memory
   * that compute has freed, and sees the values that compute has written. Compute does not wait.
   * Returns the stream.
   */
  follow(): Stream {
    this.stream.wait(this.computed.record(this.device.compute));
    return this.stream;
  }

  /**
   * Calls follow(), then makes later compute work wait for the earlier work of the stream. The next
   * work of the stream and the next compute work thus start together. If a matrix product started
   * first, it would fill the GPU, and a collective would wait for most of it. Returns the stream.
   */
  lead(): Stream {
    const stream = this.follow();
    this.device.compute.wait(this.begun.record(stream));
    return stream;
  }

  /** Disposes the stream after its work is done. */
  dispose(): void {
    this.computed.dispose();
    this.begun.dispose();
    this.stream.dispose();
  }
}
