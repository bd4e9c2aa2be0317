// Links: how values and gradients travel between the ranks of a pipeline.
import { type Distributed, type ProcessGroup, toldOf, type Work } from '../comm/index.js';
import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import { type DType, isFloating } from '../runtime/dtype.js';
import { poll } from '../runtime/poll.js';
import { describe } from '../runtime/view.js';
import { held, noGrad, scope, Tensor } from '../tensor/index.js';
import { type Action, isWork, type Transfer } from './action.js';
import type { Values } from './layers.js';

/** What travels along one link, as its sender tells the receiver. */
interface Outline {
  /** Whether a layer takes it as several values, even where it is one. */
  several: boolean;
  tensors: readonly { dtype: DType; shape: readonly number[]; wantsGrad: boolean }[];
}

/** What the sender tells in place of an outline that it does not come to. */
interface Absence {
  rank: number;
  error: string;
}

/** Values on their way from another rank. */
export class Arriving {
  constructor(
    private readonly several: boolean,
    private readonly tensors: readonly Tensor[],
    private readonly works: readonly Work[],
  ) {}

  /** Later compute work sees them; the caller owns the tensors from now on. */
  take(): Values {
    for (const work of this.works) work.wait();
    return this.several ? this.tensors : (this.tensors[0] as Tensor);
  }

  /** Nobody wants them. */
  drop(): void {
    for (const tensor of this.tensors) tensor.release();
  }
}

/** The values as a list. */
export const listOf = (values: Values): readonly Tensor[] =>
  values instanceof Tensor ? [values] : values;

/** Open until the job ends: engines that follow each other use the same. */
const groupsOfJobs = new WeakMap<Distributed, Map<string, Promise<ProcessGroup | null>>>();

/**
 * The group of `ranks`, this one among them, for the use that `use` names; opened once. Rejects
 * with DS_COMM.
 */
export async function groupOf(
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
  return (await group) as ProcessGroup;
}

/**
 * One process group per direction between two ranks, each on a stream of its own: transfers of one
 * direction are in order, never wait for those of another, and compute waits for none but those
 * whose values it takes. Of values, the sender tells shapes and dtypes through
 * the job's store: once, or with each micro-batch where they change.
 */
export class Links {
  private readonly told = new Map<string, Outline>();
  private readonly known = new Map<string, Outline>();
  private readonly counts = new Map<string, number>();
  /** Batches that have failed on this rank: what was told of one is not another's. */
  private failures = 0;
  private departing: { works: readonly Work[]; tensors: readonly Tensor[] }[] = [];

  private constructor(
    private readonly job: Distributed,
    private readonly rank: number,
    private readonly groups: ReadonlyMap<string, ProcessGroup>,
    private readonly options: {
      name: string;
      dynamicShape: boolean;
      departures: readonly number[];
    },
  ) {}

  /**
   * Opens those that the lists of all ranks need. Every rank of the job calls it. Rejects with
   * DS_COMM.
   */
  static async open(
    job: Distributed,
    lists: readonly (readonly Action[])[],
    dynamicShape: boolean,
  ): Promise<Links> {
    const { mesh } = job;
    const ranks = mesh.shape.ranksAlong(job.rank, 'pp');
    const rank = mesh.place('pp');
    // An engine's are not another's.
    const name = `${job.nextName('pipeline')}/${mesh.place('dp', 'sp', 'tp')}`;
    const groups = new Map<string, ProcessGroup>();
    for (const key of channelsOf(lists)) {
      const [from = 0, to = 0] = key.split(' ').map(Number);
      if (rank !== from && rank !== to) continue;
      const pair = [ranks[from] as number, ranks[to] as number];
      groups.set(key, await groupOf(job, pair, key));
    }
    const own = (lists[rank] ?? []).filter(({ kind }) => kind === 'sendF');
    const departures = [...new Set(own.map(({ stage }) => stage))];
    return new Links(job, rank, groups, { name, dynamicShape, departures });
  }

  get device(): Device {
    return this.job.world.device;
  }

  /** The groups that values and gradients go through. */
  get channels(): readonly ProcessGroup[] {
    return [...this.groups.values()];
  }

  /**
   * Runs a batch, `body`. Where it fails, ranks that wait to be told of shapes are told of that;
   * those that wait for a transfer learn of it through channels.
   */
  async telling<Result>(body: () => Promise<Result>): Promise<Result> {
    try {
      return await body();
    } catch (error) {
      await this.tellFailure(error);
      throw error;
    }
  }

  /**
   * Sends what a stage has made. The tensors stay the caller's; their memory is kept until they
   * have left.
   */
  async sendValues(transfer: Transfer, values: Values, training: boolean): Promise<void> {
    await this.tell(transfer, outlineOf(values, training), training);
    this.send(transfer, listOf(values));
  }

  /** Receives what the stage before has made; the tensors want gradients where they did there. */
  async receiveValues(transfer: Transfer, training: boolean): Promise<Arriving> {
    const { several, tensors } = await this.hear(transfer, training);
    const places = tensors.map(({ shape, dtype, wantsGrad }) => {
      const place = held(() => Tensor.empty(shape, dtype, this.device));
      if (wantsGrad) place.requireGrad(true);
      return place;
    });
    return this.receive(transfer, several, places);
  }

  /**
   * Sends the gradients of values that came from the rank before; the tensors become this object's.
   */
  sendGradients(transfer: Transfer, gradients: readonly Tensor[]): void {
    this.send(transfer, gradients);
    for (const gradient of gradients) gradient.release();
  }

  /** Receives those of `outputs`, which were sent. */
  receiveGradients(transfer: Transfer, outputs: readonly Tensor[]): Arriving {
    const places = outputs.map((output) => held(() => Tensor.emptyLike(output)));
    return this.receive(transfer, true, places);
  }

  /** Frees what has left; with `all`, waits for the rest. */
  settle(all = false): void {
    this.departing = this.departing.filter(({ works, tensors }) => {
      if (all) for (const work of works) work.wait();
      else if (!works.every(({ done }) => done)) return true;
      for (const tensor of tensors) tensor.release();
      return false;
    });
  }

  /** Forgets what is leaving, whose memory is kept until it has left. */
  drop(): void {
    for (const { tensors } of this.departing.splice(0)) {
      for (const tensor of tensors) tensor.release();
    }
  }

  private send(transfer: Transfer, tensors: readonly Tensor[]): void {
    const { group, peer } = this.channel(transfer);
    const leaving = tensors.map((tensor) =>
      noGrad(() => scope(() => (tensor.isContiguous ? tensor : tensor.contiguous()).retain())),
    );
    const stream = group.beside.follow();
    const works = leaving.map((tensor) =>
      group.send(tensor, peer, { stream, purpose: purposeOf(transfer) }),
    );
    this.departing.push({ works, tensors: leaving });
  }

  private receive(transfer: Transfer, several: boolean, places: readonly Tensor[]): Arriving {
    const { group, peer } = this.channel(transfer);
    const stream = group.beside.follow(); // Compute may still use what the places' memory was.
    const works = places.map((place) =>
      group.recv(place, peer, { stream, purpose: purposeOf(transfer) }),
    );
    return new Arriving(several, places, works);
  }

  private channel(transfer: Transfer): { group: ProcessGroup; peer: number } {
    const group = this.groups.get(keyOf(this.rank, transfer)) as ProcessGroup;
    return { group, peer: 1 - group.rank };
  }

  /** Throws DS_SHAPE where shapes have changed and may not. */
  private async tell(transfer: Transfer, outline: Outline, training: boolean): Promise<void> {
    const place = this.placeOf(transfer, training);
    const text = JSON.stringify(outline);
    const before = this.told.get(place);
    if (before && !this.options.dynamicShape) {
      if (JSON.stringify(before) !== text) throw changed(transfer, before, outline);
      return;
    }
    this.told.set(place, outline);
    await this.job.store?.set(this.nextKey(place), text);
  }

  private async hear(transfer: Transfer, training: boolean): Promise<Outline> {
    const stage = transfer.stage - 1;
    const place = this.placeOf({ ...transfer, stage }, training);
    const known = this.known.get(place);
    if (known && !this.options.dynamicShape) return known;
    const key = this.nextKey(place);
    const { store, timeout } = this.job;
    const { group } = this.channel(transfer);
    const told = await unlessOver(group, store?.get(key, timeout) ?? Promise.resolve(''));
    const outline = JSON.parse(told) as Outline | Absence;
    await store?.delete(key);
    if ('error' in outline) throw absent(transfer, outline);
    this.known.set(place, outline);
    return outline;
  }

  /** Never rejects: why the batch has failed says more than that the store is gone. */
  private async tellFailure(error: unknown): Promise<void> {
    const { rank, store } = this.job;
    const text = JSON.stringify({ rank, error: toldOf(error) } satisfies Absence);
    for (const training of [true, false]) {
      for (const stage of this.options.departures) {
        const place = this.placeOf({ stage }, training);
        if (this.told.has(place) && !this.options.dynamicShape) continue;
        await store?.set(this.nextKey(place), text).catch(() => {});
      }
    }
    this.failures++;
    for (const known of [this.counts, this.told, this.known]) known.clear();
  }

  private placeOf({ stage }: Pick<Transfer, 'stage'>, training: boolean): string {
    return `${this.options.name}/${training ? 'train' : 'eval'}/stage ${stage}`;
  }

  private nextKey(place: string): string {
    const count = this.counts.get(place) ?? 0;
    this.counts.set(place, count + 1);
    return `${place}/${this.failures}/${count}`;
  }
}

/** What `told` resolves with; rejects with DS_COMM once the job has failed. */
async function unlessOver<Told>(group: ProcessGroup, told: Promise<Told>): Promise<Told> {
  let isOver = false;
  const failure = poll(() => {
    if (!isOver) group.check();
    return isOver;
  });
  try {
    await Promise.race([told, failure]);
    return await told;
  } finally {
    isOver = true;
    told.catch(() => {});
    failure.catch(() => {});
  }
}

const purposeOf = ({ kind, stage, micro }: Transfer): string => {
  const isForward = kind.endsWith('F');
  const made = kind === 'recvF' ? stage - 1 : kind === 'recvB' ? stage + 1 : stage;
  return `${isForward ? 'output' : 'input gradient'} of stage ${made}, micro-batch ${micro}`;
};

/** "from to direction", of which transfers are in one order. */
function keyOf(rank: number, { kind, peer }: Transfer): string {
  const ends = kind.startsWith('send') ? [rank, peer] : [peer, rank];
  return `${ends.join(' ')} ${kind.at(-1)}`;
}

/** In one order on all ranks. */
function channelsOf(lists: readonly (readonly Action[])[]): string[] {
  const keys = lists.flatMap((list, rank) =>
    list.flatMap((action) =>
      isWork(action) || action.kind === 'reduce' ? [] : [keyOf(rank, action)],
    ),
  );
  return [...new Set(keys)].sort((a, b) => order(a) - order(b));
}

/** By the pair of ranks, so that a pair opens its groups one after the other. */
function order(key: string): number {
  const [from = 0, to = 0] = key.split(' ').map(Number);
  const direction = (from < to ? 0 : 2) + (key.endsWith('F') ? 0 : 1);
  return (Math.min(from, to) * 4096 + Math.max(from, to)) * 4 + direction;
}

function outlineOf(values: Values, training: boolean): Outline {
  const tensors = listOf(values).map(({ dtype, shape, requiresGrad }) => ({
    ...{ dtype, shape, wantsGrad: training && requiresGrad && isFloating(dtype) },
  }));
  return { several: !(values instanceof Tensor), tensors };
}

function absent({ stage }: Transfer, { rank, error }: Absence): DsError {
  return new DsError({
    code: 'DS_COMM',
    op: `pipeline, input of stage ${stage}`,
    expected: 'all stages to run the batch',
    got: `rank ${rank} met with an error: ${error}`,
    hint: `Look at the output of rank ${rank}.`,
  });
}

const phraseOf = ({ tensors }: Outline): string => tensors.map(describe).join(', ');

function changed({ stage }: Transfer, before: Outline, now: Outline): DsError {
  return new DsError({
    code: 'DS_SHAPE',
    op: `pipeline, output of stage ${stage}`,
    expected: `${phraseOf(before)}, as in the first micro-batch`,
    got: phraseOf(now),
    hint: 'Give all micro-batches one shape, or the PipelineModule dynamicShape: true.',
  });
}
