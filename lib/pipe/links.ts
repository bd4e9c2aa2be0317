// Links: transfers values and gradients between the ranks of a pipeline.

import type { Distributed, ProcessGroup, Work } from '../comm/index.js';
import { AXIS } from '../comm/mesh-shape.js';
import type { Device } from '../runtime/device.js';
import { required } from '../runtime/required.js';
import { held, noGrad, scope, Tensor } from '../tensor/index.js';
import { type Action, isWork, type Transfer } from './action.js';
import { toList, type Values } from './layers.js';
import { type BatchKind, describeValues, KIND_NAMES, Outlines } from './outlines.js';

/** Values that another rank is sending. */
export class IncomingValues {
  constructor(
    private readonly several: boolean,
    private readonly tensors: readonly Tensor[],
    private readonly works: readonly Work[],
  ) {}

  /**
   * Makes later compute work wait for the arrival, and returns the values. The caller owns the
   * tensors.
   */
  take(): Values {
    for (const work of this.works) work.wait();
    return this.several ? this.tensors : required(this.tensors[0]);
  }

  /** Releases the values if no stage will take them. */
  drop(): void {
    release(this.tensors);
  }
}

function release(tensors: readonly Tensor[]): void {
  for (const tensor of tensors) tensor.release();
}

/**
 * Process groups by job and key. They stay open until the job ends, so consecutive engines reuse
 * them.
 */
const groupsOfJobs = new WeakMap<Distributed, Map<string, Promise<ProcessGroup | null>>>();

/**
 * Returns the group of `ranks` for the purpose `use`. `ranks` includes this rank. The first call
 * opens the group. Rejects with DS_COMM.
 */
export async function openGroup(
  job: Distributed,
  ranks: readonly number[],
  use: string,
): Promise<ProcessGroup> {
  const groups = groupsOfJobs.get(job) ?? new Map<string, Promise<ProcessGroup | null>>();
  groupsOfJobs.set(job, groups);
  const key = `${use} [${ranks.join()}]`;
  const group = groups.get(key) ?? job.newGroup(ranks);
  groups.set(key, group);
  group.catch(() => groups.delete(key));
  return required(await group);
}

/**
 * The transfers of this rank. Each direction between two ranks has a process group with its own
 * stream. Transfers of a direction run in order and never wait for other directions. Compute work
 * waits only for values that it reads. A receiver learns shapes and dtypes (outlines.ts) before
 * values arrive.
 */
export class Links {
  /**
   * Describes the current batch in errors, so that ranks that run different batches are detected.
   */
  private batch = '';
  private departing: { works: readonly Work[]; tensors: readonly Tensor[] }[] = [];

  private constructor(
    private readonly job: Distributed,
    private readonly rank: number,
    private readonly groups: ReadonlyMap<string, ProcessGroup>,
    private readonly outlines: Outlines,
  ) {}

  /**
   * Opens the links that the lists of actions of all ranks need. All ranks of the job must call it.
   * Rejects with DS_COMM.
   */
  static async open(
    job: Distributed,
    lists: readonly (readonly Action[])[],
    dynamicShape: boolean,
  ): Promise<Links> {
    const { mesh } = job;
    const ranks = mesh.shape.ranksAlong(job.rank, AXIS.pipeline);
    const rank = mesh.place(AXIS.pipeline);
    // Each engine has its own outlines in the store.
    const name = `${job.nextName('pipeline')}/${mesh.place(...mesh.shape.others(AXIS.pipeline))}`;
    const groups = new Map<string, ProcessGroup>();
    for (const key of listChannels(lists)) {
      const [from = 0, to = 0] = key.split(' ').map(Number);
      if (rank !== from && rank !== to) continue;
      const pair = [required(ranks[from]), required(ranks[to])];
      groups.set(key, await openGroup(job, pair, key));
    }
    const sends = (lists[rank] ?? []).filter(({ kind }) => kind === 'sendF');
    const departures = [...new Set(sends.map(({ stage }) => stage))];
    const outlines = new Outlines(job, { name, dynamicShape, departures });
    return new Links(job, rank, groups, outlines);
  }

  get device(): Device {
    return this.job.world.device;
  }

  /** The process groups of all transfers of this rank. */
  get channels(): readonly ProcessGroup[] {
    return [...this.groups.values()];
  }

  /** Starts the transfers of a batch of `micros` micro-batches. */
  beginBatch(micros: number, kind: BatchKind): void {
    this.batch = `${micros} ${KIND_NAMES[kind]}`;
  }

  /**
   * Runs a batch, `body`. If it fails, reports the error to ranks that wait for outlines. Ranks
   * that wait for a transfer learn of it through the process groups.
   */
  async reportingFailure<Result>(body: () => Promise<Result>): Promise<Result> {
    try {
      return await body();
    } catch (error) {
      await this.outlines.reportFailure(error);
      throw error;
    }
  }

  /**
   * Sends the output of a stage. The caller keeps ownership of the tensors; their memory is kept
   * until the transfer is complete.
   */
  async sendValues(transfer: Transfer, values: Values, kind: BatchKind): Promise<void> {
    await this.outlines.report(transfer, describeValues(values, kind), kind);
    this.send(transfer, toList(values));
  }

  /** Receives the output of the previous stage. A tensor requires a gradient if it did there. */
  async receiveValues(transfer: Transfer, kind: BatchKind): Promise<IncomingValues> {
    const { group } = this.channel(transfer);
    const { several, tensors } = await this.outlines.receive(transfer, group, kind);
    const buffers = tensors.map(({ shape, dtype, wantsGrad }) => {
      const buffer = held(() => Tensor.empty(shape, dtype, this.device));
      if (wantsGrad) buffer.requireGrad(true);
      return buffer;
    });
    return this.receive(transfer, several, buffers);
  }

  /** Sends the gradients of values to the previous stage. Takes ownership of the tensors. */
  sendGradients(transfer: Transfer, gradients: readonly Tensor[]): void {
    this.send(transfer, gradients);
    release(gradients);
  }

  /** Receives the gradients of `outputs`, which this rank has sent to the next stage. */
  receiveGradients(transfer: Transfer, outputs: readonly Tensor[]): IncomingValues {
    const buffers = outputs.map((output) => held(() => Tensor.emptyLike(output)));
    return this.receive(transfer, true, buffers);
  }

  /** Releases the tensors of complete outgoing transfers. */
  freeComplete(): void {
    const complete = this.departing.filter(({ works }) => works.every(({ done }) => done));
    this.departing = this.departing.filter((item) => !complete.includes(item));
    for (const { tensors } of complete) release(tensors);
  }

  /** Waits for outgoing transfers, and releases their tensors. */
  finish(): void {
    for (const { works } of this.departing) for (const work of works) work.wait();
    this.drop();
  }

  /**
   * Releases outgoing tensors without waiting. Their memory is kept until the transfers are
   * complete.
   */
  drop(): void {
    for (const { tensors } of this.departing.splice(0)) release(tensors);
  }

  private send(transfer: Transfer, tensors: readonly Tensor[]): void {
    const { group, peer } = this.channel(transfer);
    const contiguous = tensors.map((tensor) =>
      noGrad(() => scope(() => (tensor.isContiguous ? tensor : tensor.contiguous()).retain())),
    );
    const stream = group.beside.follow();
    const works = contiguous.map((tensor) =>
      group.send(tensor, peer, { stream, purpose: describeTransfer(transfer, this.batch) }),
    );
    this.departing.push({ works, tensors: contiguous });
  }

  private receive(
    transfer: Transfer,
    several: boolean,
    buffers: readonly Tensor[],
  ): IncomingValues {
    const { group, peer } = this.channel(transfer);
    // Follows compute, which may still read memory that the tensors reuse.
    const stream = group.beside.follow();
    const works = buffers.map((buffer) =>
      group.recv(buffer, peer, { stream, purpose: describeTransfer(transfer, this.batch) }),
    );
    return new IncomingValues(several, buffers, works);
  }

  private channel(transfer: Transfer): { group: ProcessGroup; peer: number } {
    const group = required(this.groups.get(channelKey(this.rank, transfer)));
    return { group, peer: 1 - group.rank };
  }
}

const describeTransfer = ({ kind, stage, micro }: Transfer, batch: string): string => {
  const isForward = kind.endsWith('F');
  const source = kind === 'recvF' ? stage - 1 : kind === 'recvB' ? stage + 1 : stage;
  const content = isForward ? 'output' : 'input gradient';
  return `${content} of stage ${source}, micro-batch ${micro} of ${batch}`;
};

/** Returns "from to direction", the key of the transfers that run in one order. */
function channelKey(rank: number, { kind, peer }: Transfer): string {
  const ends = kind.startsWith('send') ? [rank, peer] : [peer, rank];
  return `${ends.join(' ')} ${kind.at(-1)}`;
}

/** Returns the keys of all channels, in an order that is the same on all ranks. */
function listChannels(lists: readonly (readonly Action[])[]): string[] {
  const keys = lists.flatMap((list, rank) =>
    list.flatMap((action) =>
      isWork(action) || action.kind === 'reduce' ? [] : [channelKey(rank, action)],
    ),
  );
  return [...new Set(keys)].sort((a, b) => channelOrder(a) - channelOrder(b));
}

/**
 * Returns a number that sorts keys by pair of ranks, so that a pair opens its groups one after the
 * other.
 */
function channelOrder(key: string): number {
  const [from = 0, to = 0] = key.split(' ').map(Number);
  const direction = (from < to ? 0 : 2) + (key.endsWith('F') ? 0 : 1);
  return (Math.min(from, to) * 4096 + Math.max(from, to)) * 4 + direction;
}
