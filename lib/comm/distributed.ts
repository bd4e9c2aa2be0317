// initDistributed: joins the job, and gives the process groups of its ranks.
import { randomBytes } from 'node:crypto';
import { DsError } from '../errors.js';
import { jobEnvironment } from '../runtime/addon.js';
import { cpu, type Device, device as findDevice } from '../runtime/device.js';
import { formatValue } from '../runtime/format-value.js';
import { Job, SoloGroup, StoreServer } from '../runtime/job.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { answerPythonNames } from '../runtime/python-names.js';
import { requireType } from '../runtime/require-type.js';
import { INIT_OPTIONS, type InitOptions, resolveSettings } from './join-settings.js';
import { announceMesh, meshOf, otherMesh, requireMesh } from './joined-mesh.js';
import { leastLatencies } from './least-latencies.js';
import { Mesh } from './mesh.js';
import { MeshShape } from './mesh-shape.js';
import { ProcessGroup } from './process-group.js';

/** What logSummary() prints. */
export interface LogSummaryOptions {
  /** Adds the time that rank 0 waited for slower ranks; all ranks call it. Default: false. */
  showStraggler?: boolean;
}

const LOG_SUMMARY: OptionNames<LogSummaryOptions> = { showStraggler: true };

/** A rank's place in a job of `worldSize` ranks, and the groups that it is a member of. */
export class Distributed {
  static {
    answerPythonNames(Distributed, { label: 'job', fields: ['localRank'] });
  }

  /** The ranks on their axes. */
  readonly mesh: Mesh;
  private readonly groups = new Map<string, number>();
  /** How many names of a kind nextName() has given. */
  private readonly named = new Map<string, number>();

  /** @internal Use initDistributed(). */
  constructor(
    /** All ranks. */
    readonly world: ProcessGroup,
    /** This rank's number on its machine, from 0: also that of its GPU. */
    readonly localRank: number,
    shape: MeshShape,
    private readonly network: Network,
  ) {
    this.mesh = new Mesh(shape, world, (name, ranks) =>
      openGroup(network, name, ranks, ranks.indexOf(world.rank)),
    );
  }

  /** This process among all. */
  get rank(): number {
    return this.world.rank;
  }

  /** Ranks of the job. */
  get worldSize(): number {
    return this.world.size;
  }

  /** Milliseconds that joining, one collective, or one meeting of a save may take. */
  get timeout(): number {
    return this.network.timeout;
  }

  /** @internal The job's key-value store; null in a job of one rank. */
  get store(): Job | null {
    return this.network.job;
  }

  /**
   * @internal A name in the store for something that all ranks make, in the same order: "initialize
   * 0", "initialize 1". No other job has it, though one store may serve several, and a process may
   * have been in more of them than others.
   */
  nextName(what: string): string {
    const count = this.named.get(what) ?? 0;
    this.named.set(what, count + 1);
    return `${this.network.name}/${what} ${count}`;
  }

  /**
   * The group of `ranks`, in their order; null on ranks that are not among them. Every member must
   * call it, in the same order for groups of the same ranks. Rejects with DS_COMM when one does
   * not.
   */
  newGroup(ranks: readonly number[]): Promise<ProcessGroup | null> {
    return this.open(ranks, this.network.device);
  }

  /** newGroup() of ranks whose tensors lie in host memory, wherever the job computes. */
  newHostGroup(ranks: readonly number[]): Promise<ProcessGroup | null> {
    return this.open(ranks, cpu());
  }

  private async open(ranks: readonly number[], device: Device): Promise<ProcessGroup | null> {
    requireRanks(ranks, this.worldSize);
    const where = device === this.network.device ? '' : `${device.kind} `;
    const base = `${where}group [${ranks.join(', ')}]`;
    const times = this.groups.get(base) ?? 0;
    this.groups.set(base, times + 1);
    const place = ranks.indexOf(this.rank);
    if (place < 0) return null;
    const name = times === 0 ? base : `${base} #${times + 1}`;
    return openGroup({ ...this.network, device }, name, ranks, place);
  }

  /**
   * Prints the table of the collectives that were logged, on rank 0; without a log (comms_logger,
   * or world.logger) nothing. All ranks call it with `showStraggler`. Source:
   * deepspeed.comm.log_summary.
   */
  logSummary(given: LogSummaryOptions = {}): void {
    const { showStraggler = false } = readOptions('logSummary', given, LOG_SUMMARY);
    requireType('logSummary showStraggler', showStraggler, 'boolean');
    const { logger } = this.world;
    if (!logger) return;
    const least = showStraggler ? leastLatencies(this.world, logger) : undefined;
    if (this.rank === 0) process.stdout.write(`${logger.summary(least)}\n`);
  }

  /**
   * Waits until every rank is done with its collectives, then closes all connections. After a
   * failure of the job it closes at once, and a new initDistributed() may follow.
   */
  async destroy(): Promise<void> {
    const { job, server, endsWithFirst } = this.network;
    await job?.leave(endsWithFirst && this.rank > 0 ? STORE_END_MS : 0);
    server?.stop();
    if (current === this) current = null;
    for (const group of this.network.groups.splice(0)) group.dispose();
  }

  /**
   * @internal destroy() of a job that this process takes for none from now on; the next one is
   * joined once it is over. Other ranks may take until the job's timeout to come so far.
   */
  abandon(): void {
    if (current === this) current = null;
    leaving = this.destroy().catch(() => {});
  }
}

let current: Distributed | null = null;
/** The end of the job that was abandoned, whose store would be in the way of another. */
let leaving: Promise<void> = Promise.resolve();
/** What initDistributed() is about to give; a second store of this process would be in its way. */
let joining: Promise<Distributed> | null = null;

/** The job that initDistributed() joined; null before. */
export function distributed(): Distributed | null {
  return current;
}

/** Distributed.logSummary() of the job that was joined; in a process alone it prints nothing. */
export function logSummary(given: LogSummaryOptions = {}): void {
  readOptions('logSummary', given, LOG_SUMMARY);
  current?.logSummary(given);
}

/**
 * Joins the job that the launcher (or the options) describes and resolves once every rank is there,
 * as deepspeed.init_distributed. A job of one rank opens no connection. Called again, also before
 * the first call has resolved, it returns the same, whatever its options but `mesh`. Rejects with
 * DS_ARGUMENT (an unknown option; on all ranks, a mesh that the ranks do not fill, or another one
 * than that of rank 0; another than that of the first call), DS_DEVICE, DS_LIBRARY, DS_COMM (a port
 * in use, another secret, a missing rank).
 */
export async function initDistributed(given: InitOptions = {}): Promise<Distributed> {
  const options = readOptions('initDistributed', given, INIT_OPTIONS);
  const job = current ?? (await joined(options));
  if (options.mesh) requireMesh(job.mesh.shape, MeshShape.over(job.worldSize, options.mesh));
  return job;
}

function joined(options: InitOptions): Promise<Distributed> {
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
      await job.set(HOME_KEY, server ? 'rank 0' : 'another process');
      await job.set(NAME_KEY, randomBytes(8).toString('hex'));
    }
    const network: Network = { ...noNetwork(device, timeout), job, server };
    const world = await openGroup(network, 'world', everyone, rank);
    network.name = await job.get(NAME_KEY, 0);
    network.endsWithFirst = (await job.get(HOME_KEY, 0)) === 'rank 0';
    joined = new Distributed(world, localRank, shape, network);
    other = await otherMesh(job, worldSize);
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

/** How long a rank whose mesh is refused waits for the others, to tell them what it has. */
const REFUSED_MS = 15_000;

/** A job of this process alone, whose collectives are copies; nobody else learns of it. */
export function aloneOn(device: Device, { localRank = 0, timeout = 600_000 } = {}): Distributed {
  const world = new ProcessGroup('world', [0], 0, device, new SoloGroup());
  return new Distributed(world, localRank, MeshShape.over(1), noNetwork(device, timeout));
}

const noNetwork = (device: Device, timeout: number): Network => ({
  ...{ job: null, server: null, device, timeout, name: '', endsWithFirst: false, groups: [] },
});

/** Where rank 0 says in the store whose the store is. */
const HOME_KEY = 'home';

/** How long a rank that has left waits for the end of rank 0's store, which is near by then. */
const STORE_END_MS = 5000;

/** Where rank 0 says in the store what the job is called. */
const NAME_KEY = 'name';

/**
 * The job that this process belongs to: the one joined before, or the one that a launcher's
 * environment describes; else one of this process alone. Rejects as initDistributed().
 */
export async function joinLaunched(options: InitOptions = {}): Promise<Distributed> {
  if (current) return current;
  const isLaunched = Number(jobEnvironment().worldSize ?? 1) > 1;
  if (isLaunched) return initDistributed(options);
  return aloneOn(findDevice(options.device ?? 'auto'));
}

/** What groups are opened with; without a job there is only this rank. */
interface Network {
  job: Job | null;
  /** Null where another process serves the store. */
  server: StoreServer | null;
  device: Device;
  /** Milliseconds. */
  timeout: number;
  /** What names in the store begin with; empty without one. */
  name: string;
  /** Whether the store is rank 0's, and ends with its part in the job. */
  endsWithFirst: boolean;
  /** Those that were opened. */
  groups: ProcessGroup[];
}

async function openGroup(
  network: Network,
  name: string,
  ranks: readonly number[],
  place: number,
): Promise<ProcessGroup> {
  const { job, device } = network;
  const alone = job === null || ranks.length === 1;
  const tickets = alone ? new SoloGroup() : await job.openGroup(name, ranks, place, device);
  const group = new ProcessGroup(name, ranks, place, device, tickets);
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
