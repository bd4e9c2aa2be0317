// ProcessGroup: collectives over tensors between the ranks of a group.
import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import {
  type Collective,
  type CollectiveKind,
  type ReduceOp,
  requireFlat,
  type Tickets,
} from '../runtime/job.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { poll } from '../runtime/poll.js';
import { answerPythonNames } from '../runtime/python-names.js';
import { refusedValue } from '../runtime/refused.js';
import type { Stream } from '../runtime/stream.js';
import { describe, numel, type View } from '../runtime/view.js';
import { Tensor } from '../tensor/index.js';
import { noteChanged } from '../tensor/tape.js';
import { Beside } from './beside.js';
import { callSite } from './call-site.js';
import { CommsLogger } from './comms-logger.js';

export type { ReduceOp } from '../runtime/job.js';

/** Options of a collective; all ranks give the same `op` and `purpose`. */
export interface CollectiveOptions {
  /** How contributions are combined. Default: sum. */
  op?: ReduceOp;
  /** The collective starts after what is enqueued here. Default: the device's compute stream. */
  stream?: Stream;
  /**
   * What it carries, the same on every rank: ranks that mean something else fail as for another op.
   */
  purpose?: string;
  /** For messages alone. Default: the caller's file and line, where there is no purpose. */
  label?: string;
}

const OPTIONS: OptionNames<CollectiveOptions> = {
  ...{ op: true, stream: true, purpose: true, label: true },
};
const ALL_REDUCE = { ...OPTIONS, output: true } as const;
const ROWS = { ...OPTIONS, rows: true } as const;

/** Of a collective whose tensors may be rows, each of which is exchanged as if it were alone. */
export interface RowOptions extends CollectiveOptions {
  /**
   * How many, behind each other in input and output: so that ranks share out an inner dim. With
   * more than 1 the two are distinct memory. Default: 1.
   */
  rows?: number;
}

/** Tickets count from 1; this one is over from the start. */
const NO_TICKET = 0;

/**
 * A collective under way. Its memory belongs to it until wait(), synchronize() or done says it is
 * over.
 */
export class Work {
  /** @internal */
  constructor(
    private readonly tickets: Tickets,
    private readonly ticket: number,
    private readonly compute: Stream,
  ) {}

  /**
   * Later work of `stream` (default: the compute stream) starts after the collective. On a GPU the
   * host does not wait; on the CPU, whose streams run at once, it does. From here on its memory
   * must be returned in the order of `stream`, or of one that comes after it. Throws the job's
   * failure (DS_COMM).
   */
  wait(stream: Stream = this.compute): void {
    this.tickets.wait(this.ticket, stream);
  }

  /** Blocks until the collective is over. Throws the job's failure (DS_COMM). */
  synchronize(): void {
    this.tickets.synchronize(this.ticket);
  }

  /** Throws the job's failure (DS_COMM). */
  get done(): boolean {
    return this.tickets.done(this.ticket);
  }

  /**
   * Resolves when the collective is over, without blocking the event loop. Rejects with DS_COMM.
   */
  get promise(): Promise<void> {
    return poll(() => this.done);
  }
}

/**
 * The ranks `ranks` of the job. Every member must issue the same collectives (kind, op, dtype,
 * size, root) in the same order; where they do not, all fail with DS_COMM naming what each issued.
 * Tensors are contiguous and on the group's device. Methods return at once; a collective starts
 * after what was enqueued on its stream before, and nothing is ordered after it but by Work.wait()
 * (on a GPU, also the stream itself). Collectives of one group run in the order of their calls.
 * What they write is changed in place, as by the forms with "_": a backward that has saved it
 * throws, and parameters of an engine are refused.
 *
 * Throws DS_SHAPE, DS_DTYPE, DS_DEVICE, DS_BOUNDS, DS_ARGUMENT for a call that cannot be right, and
 * the job's first failure (DS_COMM), the same on every rank, once there is one.
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

  /** Counts and times collectives while set; then each one is waited for. */
  logger: CommsLogger | null = null;
  private ownStream: Beside | null = null;
  /** @internal Collectives that this rank has begun. */
  issued = 0;

  /** @internal Use Distributed.newGroup(). */
  constructor(
    /** What it is called in errors and logs. */
    readonly name: string,
    /** Ranks of the job. */
    readonly ranks: readonly number[],
    /** This rank's place in `ranks`. */
    readonly rank: number,
    /** Where its collectives' tensors lie. */
    readonly device: Device,
    private readonly tickets: Tickets,
  ) {}

  /** Ranks in the group. */
  get size(): number {
    return this.ranks.length;
  }

  /**
   * @internal The group's stream beside the compute stream, opened at the first use: a collective
   * on it starts after what compute has enqueued so far, and compute goes on meanwhile.
   */
  get beside(): Beside {
    this.ownStream ??= new Beside(this.device, this.name);
    return this.ownStream;
  }

  /**
   * @internal Gives back what the group has opened, after its last collective. Idempotent; never
   * throws.
   */
  dispose(): void {
    const { ownStream } = this;
    this.ownStream = null;
    try {
      ownStream?.dispose();
    } catch {
      // A device that cannot end its work says so at its next use; the stream is gone.
    }
  }

  /** Throws the job's failure (DS_COMM) once there is one; it does not wait. */
  check(): void {
    this.tickets.done(NO_TICKET);
  }

  /** Combines `tensor` over all ranks, in place or into `output`. */
  allReduce(tensor: View, given: CollectiveOptions & { output?: View } = {}): Work {
    const options = readOptions('allReduce', given, ALL_REDUCE);
    const { output = tensor } = options;
    this.requireSizes('allReduce', tensor, output, 1, 1);
    return this.start('allReduce', { input: tensor, output, count: numel(tensor.shape) }, options);
  }

  /**
   * `input` is n slots of output's size; `output` gets slot `rank` combined over all ranks, and may
   * be it.
   */
  reduceScatter(output: View, input: View, given: RowOptions = {}): Work {
    const options = readOptions('reduceScatter', given, ROWS);
    const { rows = 1 } = options;
    this.requireSizes('reduceScatter', input, output, this.size, 1);
    const count = rowOf('reduceScatter', output, rows);
    return this.start('reduceScatter', { input, output, count, rows }, options);
  }

  /**
   * `output` is n slots of input's size and gets every rank's input; `input` may be its slot
   * `rank`.
   */
  allGather(output: View, input: View, given: RowOptions = {}): Work {
    const options = readOptions('allGather', given, ROWS);
    const { rows = 1 } = options;
    this.requireSizes('allGather', input, output, 1, this.size);
    const count = rowOf('allGather', input, rows);
    return this.start('allGather', { input, output, count, rows }, options);
  }

  /** Every rank's `tensor` becomes that of `root`, a rank of the group. */
  broadcast(tensor: View, root: number, given: CollectiveOptions = {}): Work {
    const options = readOptions('broadcast', given, OPTIONS);
    const count = elementsOf('broadcast', tensor);
    return this.start('broadcast', { input: tensor, output: tensor, count, peer: root }, options);
  }

  /** Combines `tensor` over all ranks into that of `root`; the others keep theirs. */
  reduce(tensor: View, root: number, given: CollectiveOptions = {}): Work {
    const options = readOptions('reduce', given, OPTIONS);
    const count = elementsOf('reduce', tensor);
    return this.start('reduce', { input: tensor, output: tensor, count, peer: root }, options);
  }

  /** Slot j of `input` goes to slot `rank` of rank j's `output`. */
  allToAll(output: View, input: View, given: CollectiveOptions = {}): Work {
    const options = readOptions('allToAll', given, OPTIONS);
    this.requireSizes('allToAll', input, output, 1, 1);
    const count = numel(input.shape) / this.size;
    if (!Number.isInteger(count)) {
      throw shapeError('allToAll', `a multiple of ${this.size} elements`, describe(input));
    }
    return this.start('allToAll', { input, output, count }, options);
  }

  /**
   * Sends to rank `peer` of the group, which must recv as much. A group's sends and receives run
   * one after another: of two ranks that exchange, one sends first and the other receives first.
   */
  send(tensor: View, peer: number, given: CollectiveOptions = {}): Work {
    const options = readOptions('send', given, OPTIONS);
    const count = elementsOf('send', tensor);
    return this.start('send', { input: tensor, output: null, count, peer }, options);
  }

  /**
   * Receives what another rank sends, into a tensor of the same shape and dtype. Throws DS_COMM.
   */
  recv(tensor: View, peer: number, given: CollectiveOptions = {}): Work {
    const options = readOptions('recv', given, OPTIONS);
    const count = elementsOf('recv', tensor);
    return this.start('recv', { input: null, output: tensor, count, peer }, options);
  }

  /** Over once every rank has come so far. */
  barrier(given: CollectiveOptions = {}): Work {
    const options = readOptions('barrier', given, OPTIONS);
    return this.start('barrier', { input: null, output: null, count: 0 }, options);
  }

  /**
   * @internal In place of its next collective, this rank has met with `error`: others that begin
   * theirs get DS_COMM with it, those that met with one too go on. Never throws. See jointly().
   */
  giveUp(error: string): void {
    try {
      this.tickets.giveUp(error);
    } catch {
      // The job is over, and everybody learns of that; the error itself says more.
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
    if (output instanceof Tensor) noteChanged(output);
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
    for (const one of [output, input]) elementsOf(op, one);
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

/** Throws DS_ARGUMENT for what is no tensor. */
function elementsOf(op: string, tensor: View): number {
  if (Array.isArray((tensor as Partial<View> | null)?.shape)) return numel(tensor.shape);
  throw refusedValue(op, 'a tensor', tensor);
}

/** Elements of one of `rows` rows of `each`, which one rank has. Throws DS_SHAPE. */
function rowOf(op: string, each: View, rows: number): number {
  const count = numel(each.shape) / rows;
  if (rows >= 1 && Number.isInteger(rows) && Number.isInteger(count)) return count;
  throw shapeError(op, `a multiple of ${rows} rows of the same size`, describe(each));
}

function shapeError(op: string, expected: string, got: string): DsError {
  return new DsError({ code: 'DS_SHAPE', op, expected, got });
}
