// ProcessGroup: collectives on tensors between the ranks of a group, on the compute stream or on a
// stream of the group.

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
import { answerPythonNames } from '../runtime/python-names.js';
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
   * The collective starts after the work that is enqueued here. Default: the device's compute
   * stream.
   */
  stream?: Stream;
  /**
   * The purpose, equal on every rank. Ranks with different purposes fail, as with different ops.
   */
  purpose?: string;
  /** For messages only. Default: the caller's file and line, without a purpose. */
  label?: string;
}

const ALL_REDUCE = { ...namesOf.CollectiveOptions, output: true } as const;

/** Options of a collective on rows. Each row is exchanged separately. */
export interface RowOptions extends CollectiveOptions {
  /**
   * Number of consecutive rows in input and output, to divide an inner dim over ranks. With more
   * than 1, input and output must be distinct memory. Default: 1.
   */
  rows?: number;
}

/** Tickets count from 1; this one is always done. */
const NO_TICKET = 0;

/** A running collective. It owns its memory until wait(), synchronize() or done reports its end. */
export class Work {
  /** @internal */
  constructor(
    private readonly tickets: Tickets,
    private readonly ticket: number,
    private readonly compute: Stream,
  ) {}

  /**
   * Makes later work of `stream` start after the collective. Default: the compute stream. On a GPU
   * the host does not wait; on the CPU it blocks, because streams run at once. From now on, free
   * the memory in the order of `stream`, or of a later stream. Throws the job's failure (DS_COMM).
   */
  wait(stream: Stream = this.compute): void {
    this.tickets.wait(this.ticket, stream);
  }

  /** Blocks until the collective is done. Throws the job's failure (DS_COMM). */
  synchronize(): void {
    this.tickets.synchronize(this.ticket);
  }

  /** Whether the collective is done; does not wait. Throws the job's failure (DS_COMM). */
  get done(): boolean {
    return this.tickets.done(this.ticket);
  }

  /**
   * Resolves when the collective is done, without blocking the event loop. Rejects with DS_COMM if
   * the ranks disagree or one fails.
   */
  get promise(): Promise<void> {
    return poll(() => this.done);
  }
}

/**
 * A group of ranks with its collectives; `ranks` are their numbers in the job. Every member must
 * issue the same collectives (kind, op, dtype, size, root) in the same order. Otherwise all fail
 * with DS_COMM, which names the collective of each rank. Tensors are contiguous and on the group's
 * device.
 *
 * Methods return at once. A collective starts after the work that was enqueued on its stream. Only
 * Work.wait() orders later work after it (on a GPU, also the stream itself). Collectives of one
 * group run in call order. They change their output in place, like functions with "_": a backward
 * that saved it throws, and parameters of an engine are rejected.
 *
 * Throws DS_SHAPE, DS_DTYPE, DS_DEVICE, DS_BOUNDS, DS_ARGUMENT for an invalid call, and the job's
 * first failure (DS_COMM), equal on every rank.
 */
export class ProcessGroup {
  static {
    const others = {
      all_gather_into_tensor: 'allGather()',
      reduce_scatter_tensor: 'reduceScatter()',
      all_to_all_single: 'allToAll()',
    };
    answerPythonNames(ProcessGroup, { label: 'group', others });
  }

  /** Counts and times collectives while set; the host then waits for each one. */
  logger: CommsLogger | null = null;
  private ownStream: SideStream | null = null;
  /** @internal Number of collectives that this rank has issued. */
  issued = 0;

  /** @internal Use Distributed.newGroup(). */
  constructor(
    /** Name in errors and logs. */
    readonly name: string,
    /** Ranks of the job. */
    readonly ranks: readonly number[],
    /** Index of this rank in `ranks`. */
    readonly rank: number,
    /** The device of its tensors. */
    readonly device: Device,
    private readonly tickets: Tickets,
  ) {}

  /** Ranks in the group. */
  get size(): number {
    return this.ranks.length;
  }

  /**
   * @internal The group's stream in parallel with the compute stream, opened at the first use. A
   * collective on it starts after the enqueued compute work, and compute continues meanwhile.
   */
  get beside(): SideStream {
    this.ownStream ??= new SideStream(this.device, this.name);
    return this.ownStream;
  }

  /** @internal Closes the group after its last collective. Idempotent; never throws. */
  dispose(): void {
    const { ownStream } = this;
    this.ownStream = null;
    try {
      ownStream?.dispose();
    } catch {
      // A device with failed work throws at its next use. The stream is gone.
    }
  }

  /** Throws the job's failure (DS_COMM), if there is one. Does not wait. */
  check(): void {
    this.tickets.done(NO_TICKET);
  }

  /** Reduces `tensor` over all ranks, in place or into `output` of the same size and dtype. */
  allReduce(tensor: View, given: CollectiveOptions & { output?: View } = {}): Work {
    const options = readOptions('allReduce', given, ALL_REDUCE);
    const { output = tensor } = options;
    this.requireSizes('allReduce', tensor, output, 1, 1);
    return this.start('allReduce', { input: tensor, output, count: numel(tensor.shape) }, options);
  }

  /**
   * Reduces slot `rank` of `input` (n slots of output's size) over all ranks into `output`, which
   * may be that slot.
   */
  reduceScatter(output: View, input: View, given: RowOptions = {}): Work {
    const options = readOptions('reduceScatter', given, namesOf.RowOptions);
    const { rows = 1 } = options;
    this.requireSizes('reduceScatter', input, output, this.size, 1);
    const count = rowOf('reduceScatter', output, rows);
    return this.start('reduceScatter', { input, output, count, rows }, options);
  }

  /**
   * Gathers every rank's input into `output` (n slots of input's size). `input` may be slot `rank`
   * of it.
   */
  allGather(output: View, input: View, given: RowOptions = {}): Work {
    const options = readOptions('allGather', given, namesOf.RowOptions);
    const { rows = 1 } = options;
    this.requireSizes('allGather', input, output, 1, this.size);
    const count = rowOf('allGather', input, rows);
    return this.start('allGather', { input, output, count, rows }, options);
  }

  /** Copies the `tensor` of `root`, a rank of the group, to every rank. */
  broadcast(tensor: View, root: number, given: CollectiveOptions = {}): Work {
    const options = readOptions('broadcast', given, namesOf.CollectiveOptions);
    const count = elementsOf('broadcast', tensor);
    return this.start('broadcast', { input: tensor, output: tensor, count, peer: root }, options);
  }

  /** Reduces `tensor` over all ranks into the tensor of `root`; the others keep theirs. */
  reduce(tensor: View, root: number, given: CollectiveOptions = {}): Work {
    const options = readOptions('reduce', given, namesOf.CollectiveOptions);
    const count = elementsOf('reduce', tensor);
    return this.start('reduce', { input: tensor, output: tensor, count, peer: root }, options);
  }

  /** Sends slot j of `input` to slot `rank` of rank j's `output`. */
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
   * Sends to rank `peer` of the group, which must call recv() with as many elements. A group's
   * sends and receives run one after another: of two ranks that exchange, one must send first and
   * the other receive first.
   */
  send(tensor: View, peer: number, given: CollectiveOptions = {}): Work {
    const options = readOptions('send', given, namesOf.CollectiveOptions);
    const count = elementsOf('send', tensor);
    return this.start('send', { input: tensor, output: null, count, peer }, options);
  }

  /**
   * Receives `tensor` from rank `peer` of the group, which must call send() with the same dtype and
   * as many elements.
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
   * @internal Sends `error` in place of this rank's next collective: ranks that begin theirs get
   * DS_COMM with it; ranks that also sent an error continue. Never throws. See jointly().
   */
  giveUp(error: string): void {
    try {
      this.tickets.giveUp(error);
    } catch {
      // The job is over, and all ranks receive its failure. The error itself explains more.
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

/** Throws DS_ARGUMENT if `tensor` is not a tensor. */
function elementsOf(op: string, tensor: View): number {
  if (Array.isArray((tensor as Partial<View> | null)?.shape)) return numel(tensor.shape);
  throw valueError(op, 'a tensor', tensor);
}

/**
 * Returns the number of elements in each of the `rows` rows of `each`. Throws DS_SHAPE unless the
 * rows are equal.
 */
function rowOf(op: string, each: View, rows: number): number {
  const count = numel(each.shape) / rows;
  if (rows >= 1 && Number.isInteger(rows) && Number.isInteger(count)) return count;
  throw shapeError(op, `a multiple of ${rows} rows of the same size`, describe(each));
}

function shapeError(op: string, expected: string, got: string): DsError {
  return new DsError({ code: 'DS_SHAPE', op, expected, got });
}

/** Frames of this folder and of the runtime are not the caller. */
const libraryFolders = [__dirname, `${dirname(__dirname)}${sep}runtime`];

/** Returns "train.js:12": the nearest frame outside of the library's communication code, or ''. */
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

/** A group's stream, and the events that order it with the compute stream. */
export class SideStream {
  private readonly stream: Stream;
  private readonly computed: Event;
  private readonly begun: Event;

  /** `name`: the group's name, for traces. */
  constructor(
    private readonly device: Device,
    name: string,
  ) {
    this.stream = Stream.create(device, `exchanges of ${name}`);
    this.computed = new Event(device);
    this.begun = new Event(device);
  }

  /**
   * Returns the stream. Its next work starts after all enqueued compute work, so memory that
   * compute has freed is free, and its writes are visible. Compute does not wait.
   */
  follow(): Stream {
    this.stream.wait(this.computed.record(this.device.compute));
    return this.stream;
  }

  /**
   * Calls follow(), then makes the next compute work start no earlier than the stream's next work.
   * A matrix product fills a GPU: if it started first, a collective would wait for its first
   * blocks, which is most of the time for overlap. Also waits for earlier work of the stream.
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
