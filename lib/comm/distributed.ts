// initDistributed: joins the job and returns the process groups of its ranks.
import { randomBytes } from 'node:crypto';
import { DsError } from '../errors.js';
import { jobEnvironment } from '../runtime/addon.js';
import { cpu, type Device, device as findDevice } from '../runtime/device.js';
import { formatValue } from '../runtime/format-value.js';
import { Job, SoloGroup, StoreServer } from '../runtime/job.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { definePythonNames } from '../runtime/python-names.js';
import { required } from '../runtime/required.js';
import { scope, Tensor } from '../tensor/index.js';
import type { CommsLogger } from './comms-logger.js';
import { type InitOptions, resolveSettings } from './join-settings.js';
import { announceMesh, findOtherMesh, Mesh, meshOf, requireMesh } from './mesh.js';
import { MeshShape } from './mesh-shape.js';
import { ProcessGroup } from './process-group.js';

/** Options of logSummary(). */
export interface LogSummaryOptions {
  /**
   * Also report how long rank 0 waited for slower ranks. All ranks must then call it. Default:
   * false.
   */
  showStraggler?: boolean;
}

/** A rank in a job of `worldSize` ranks, with its process groups. */
export class Distributed {
  static {
    definePythonNames(Distributed, { label: 'job', fields: ['localRank'] });
  }

  /** The ranks as a grid with named axes. */
  readonly mesh: Mesh;
  private readonly groups = new Map<string, number>();
  /** By kind of object: the number of names that nextName() has returned. */
  private readonly named = new Map<string, number>();

  /** @internal Use initDistributed(). */
  constructor(
    /** The group of all ranks. */
    readonly world: ProcessGroup,
    /** Index of this process on its host, from 0. It is also the index of its GPU. */
    readonly localRank: number,
    shape: MeshShape,
    private readonly network: Network,
  ) {
    this.mesh = new Mesh(shape, world, (name, ranks) =>
      openGroup(network, name, ranks, ranks.indexOf(world.rank)),
    );
  }

  /** Rank of this process in the job. */
  get rank(): number {
    return this.world.rank;
  }

  /** Ranks of the job. */
  get worldSize(): number {
    return this.world.size;
  }

  /** Milliseconds until joining, one collective, or one exchange of a save fails. */
  get timeout(): number {
    return this.network.timeout;
  }

  /** @internal The key-value store of the job; null in a job of one rank. */
  get store(): Job | null {
    return this.network.job;
  }

  /**
   * @internal Returns a name in the store, such as "initialize 0", then "initialize 1". All ranks
   * must create the named objects in the same order. The name contains the name of the job, because
   * one store may serve several jobs, and a process may have joined other jobs before.
   */
  nextName(what: string): string {
    const count = this.named.get(what) ?? 0;
    this.named.set(what, count + 1);
    return `${this.network.name}/${what} ${count}`;
  }

  /**
   * Resolves with the group of `ranks`, in the given order, and with null on all other ranks. Every
   * member must call it. Several groups of the same ranks must be opened in the same order. Rejects
   * with DS_COMM if a member does not call it.
   */
  newGroup(ranks: readonly number[]): Promise<ProcessGroup | null> {
    return this.open(ranks, this.network.device);
  }

  /** Like newGroup(), for tensors in host memory, whichever device the job uses. */
  newHostGroup(ranks: readonly number[]): Promise<ProcessGroup | null> {
    return this.open(ranks, cpu());
  }

  private async open(ranks: readonly number[], device: Device): Promise<ProcessGroup | null> {
    requireRanks(ranks, this.worldSize);
    const where = device === this.network.device ? '' : `${device.kind} `;
    const base = `${where}group [${ranks.join(', ')}]`;
    const times = this.groups.get(base) ?? 0;
    this.groups.set(base, times + 1);
    const index = ranks.indexOf(this.rank);
    if (index < 0) return null;
    const name = times === 0 ? base : `${base} #${times + 1}`;
    return openGroup({ ...this.network, device }, name, ranks, index);
  }

  /**
   * Prints the table of logged collectives on rank 0. Prints nothing without a logger (comms_logger
   * in the configuration, or world.logger). With `showStraggler`, all ranks must call it. Source:
   * deepspeed.comm.log_summary.
   */
  logSummary(given: LogSummaryOptions = {}): void {
    const { showStraggler = false } = readOptions('logSummary', given, namesOf.LogSummaryOptions);
    const { logger } = this.world;
    if (!logger) return;
    const min = showStraggler ? leastLatencies(this.world, logger) : undefined;
    if (this.rank === 0) process.stdout.write(`${logger.summary(min)}\n`);
  }

  /**
   * Waits until every rank has finished its collectives, then closes all connections. After a
   * failure of the job, it closes at once. Afterwards, initDistributed() may join another job.
   */
  async destroy(): Promise<void> {
    const { job, server, endsWithFirst } = this.network;
    await job?.leave(endsWithFirst && this.rank > 0 ? STORE_END_MS : 0);
    server?.stop();
    if (current === this) current = null;
    for (const group of this.network.groups.splice(0)) group.dispose();
  }

  /**
   * @internal Starts destroy() without waiting for it. This process can join its next job when
   * destroy() is done. Other ranks may need up to the timeout of the job.
   */
  abandon(): void {
    if (current === this) current = null;
    leaving = this.destroy().catch(() => {});
  }
}

let current: Distributed | null = null;
/**
 * The end of an abandoned job. The next job waits for it, because the old store may still use the
 * port.
 */
let leaving: Promise<void> = Promise.resolve();
/**
 * The pending result of initDistributed(). A second call returns it, because a process can serve
 * only one store at a port.
 */
let joining: Promise<Distributed> | null = null;

/** Returns the job of initDistributed(), or null. */
export function distributed(): Distributed | null {
  return current;
}

/** Calls logSummary() of the job. Prints nothing in a single process. */
export function logSummary(given: LogSummaryOptions = {}): void {
  readOptions('logSummary', given, namesOf.LogSummaryOptions);
  current?.logSummary(given);
}

/**
 * Joins the job of the launcher, or of the options, like deepspeed.init_distributed. Resolves when
 * every rank has joined. A job of one rank opens no connection. Later calls return the same job,
 * also before the first call has resolved. Of their options, only `mesh` is checked. Rejects with:
 * - DS_ARGUMENT: an unknown option; a mesh with another number of ranks (on all ranks); a mesh that
 *   differs from rank 0 (on all ranks), or from the first call.
 * - DS_DEVICE, DS_LIBRARY.
 * - DS_COMM: a port in use, another secret, a missing rank.
 */
export async function initDistributed(given: InitOptions = {}): Promise<Distributed> {
  const options = readOptions('initDistributed', given, namesOf.InitOptions);
  const job = current ?? (await joinJob(options));
  if (options.mesh) requireMesh(job.mesh.shape, MeshShape.over(job.worldSize, options.mesh));
  return job;
}

function joinJob(options: InitOptions): Promise<Distributed> {
  joining ??= leaving
    .then(() => join(options))
    .finally(() => {
      joining = null;
    });
  return joining;
}

async function join(options: InitOptions): Promise<Distributed> {
  const settings = resolveSettings(options);
  const { rank, worldSize, localRank, device } = settings;
  const { shape, reported, refused } = meshOf(worldSize, options.mesh);
  if (worldSize === 1) {
    if (refused) throw refused;
    current = aloneOn(device, { localRank, timeout: settings.timeout });
    return current;
  }
  const timeout = refused ? Math.min(settings.timeout, REFUSED_MS) : settings.timeout;
  const everyone = Array.from({ length: worldSize }, (_, i) => i);
  const { host, port, secret } = settings;
  const store = { host, port, secret };
  const server = settings.serve ? new StoreServer(store) : null;
  let job: Job | null = null;
  let joined: Distributed;
  let other: DsError | null;
  try {
    job = await Job.join({ store, rank, worldSize, timeout });
    await announceMesh(job, rank, reported);
    if (rank === 0) {
      await job.set(STORE_OWNER_KEY, server ? 'rank 0' : 'another process');
      await job.set(NAME_KEY, randomBytes(8).toString('hex'));
    }
    const network: Network = { ...networkOfOne(device, timeout), job, server };
    const world = await openGroup(network, 'world', everyone, rank);
    network.name = await job.get(NAME_KEY, 0);
    network.endsWithFirst = (await job.get(STORE_OWNER_KEY, 0)) === 'rank 0';
    joined = new Distributed(world, localRank, shape, network);
    other = await findOtherMesh(job, worldSize);
  } catch (error) {
    job?.close();
    server?.stop();
    throw refused ?? error;
  }
  if (refused || other) {
    await joined.destroy();
    throw refused ?? other;
  }
  current = joined;
  return current;
}

/**
 * Milliseconds that a rank with an invalid mesh waits for the others. It must join to report the
 * mesh to them.
 */
const REFUSED_MS = 15_000;

/** Returns a job of this process only. Its collectives are copies, and it opens no connection. */
export function aloneOn(device: Device, { localRank = 0, timeout = 600_000 } = {}): Distributed {
  const world = new ProcessGroup('world', [0], 0, device, new SoloGroup());
  return new Distributed(world, localRank, MeshShape.over(1), networkOfOne(device, timeout));
}

const networkOfOne = (device: Device, timeout: number): Network => ({
  job: null,
  server: null,
  device,
  timeout,
  name: '',
  endsWithFirst: false,
  groups: [],
});

/** Key in the store: which process serves it. Rank 0 writes it. */
const STORE_OWNER_KEY = 'home';

/**
 * When rank 0 leaves, its store ends. Milliseconds that another departing rank waits for this end.
 */
const STORE_END_MS = 5000;

/** Key in the store: the name of the job. Rank 0 writes it. */
const NAME_KEY = 'name';

/**
 * Returns the job that this process has joined, or joins the job of the launcher's environment.
 * Without a launcher, returns a job of this process only. Rejects as initDistributed() does.
 */
export async function joinLaunched(options: InitOptions = {}): Promise<Distributed> {
  if (current) return current;
  const isLaunched = Number(jobEnvironment().worldSize ?? 1) > 1;
  if (isLaunched) return initDistributed(options);
  return aloneOn(findDevice(options.device ?? 'auto'));
}

/** Resources that all groups of a job share. Without a job, this rank is the only one. */
interface Network {
  job: Job | null;
  /** Null if another process serves the store. */
  server: StoreServer | null;
  device: Device;
  /** Milliseconds. */
  timeout: number;
  /** Prefix of this job's names in the store. Empty without a store. */
  name: string;
  /** Whether rank 0 serves the store. If so, the store ends when rank 0 leaves. */
  endsWithFirst: boolean;
  /** All opened groups of the job. */
  groups: ProcessGroup[];
}

async function openGroup(
  network: Network,
  name: string,
  ranks: readonly number[],
  index: number,
): Promise<ProcessGroup> {
  const { job, device } = network;
  const isSolo = job === null || ranks.length === 1;
  const tickets = isSolo ? new SoloGroup() : await job.openGroup(name, ranks, index, device);
  const group = new ProcessGroup(name, ranks, index, device, tickets);
  network.groups.push(group);
  return group;
}

function requireRanks(ranks: readonly number[], worldSize: number): void {
  const isList = Array.isArray(ranks);
  const distinct = new Set(isList ? ranks : []);
  const good = isList && ranks.every((r) => Number.isInteger(r) && r >= 0 && r < worldSize);
  if (good && ranks.length > 0 && distinct.size === ranks.length) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'newGroup',
    expected: `different ranks from 0 to ${worldSize - 1}`,
    got: isList ? `[${ranks.join(', ')}]` : formatValue(ranks),
  });
}

/**
 * Returns, in the form of logger.latencies(), the milliseconds of each call on the rank that waited
 * least. All ranks of `group` must call it after the same collectives.
 */
function leastLatencies(group: ProcessGroup, logger: CommsLogger): number[][] {
  const ownLatencies = logger.latencies();
  const { device } = group;
  // The exchange itself is not logged.
  group.logger = null;
  try {
    return scope(() => {
      const times = Tensor.from(ownLatencies.flat(), { dtype: 'f32', device });
      if (ownLatencies.length > 0) group.allReduce(times, { op: 'min' }).synchronize();
      const min = times.toArray();
      let at = 0;
      return ownLatencies.map((calls) => calls.map(() => required(min[at++])));
    });
  } finally {
    group.logger = logger;
  }
}
