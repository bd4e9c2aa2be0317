// The calls that an engine's ranks make together, from initialize() to destroy().
import { type JointGroups, jointly, jointlyInTurns, type ProcessGroup } from '../comm/index.js';
import { DsError } from '../errors.js';
import { destroyed } from './engine-errors.js';
import type { Ranks } from './ranks.js';

/** Who waits for this rank in which call: where one throws here, the others are told. */
export class JointCalls {
  private readonly passing: JointGroups;
  private readonly stepping: JointGroups;
  private readonly more: (ProcessGroup | null)[] = [];
  /** The last call has thrown. */
  private hasFailed = false;
  private isClosed = false;

  /** `gathers`: a forward or a backward brings weights from the ranks that share them out. */
  constructor(
    { world, shards, replicas, near, layers, tokens }: Ranks,
    { gathers }: { gathers: boolean },
  ) {
    const parted = [layers, tokens];
    const gathering = gathers ? [shards] : [];
    this.passing = { always: [...parted, ...gathering], perhaps: [shards, replicas, near] };
    this.stepping = { perhaps: [world, shards, replicas, near, ...parted] };
  }

  /** Throws DS_AUTOGRAD after close(). */
  requireOpen(op: string): void {
    if (this.isClosed) throw destroyed(op);
  }

  /** Ranks of `more` wait for this one, too. */
  join(more: JointGroups): void {
    this.more.push(...(more.always ?? []));
  }

  /** The groups in which ranks may wait for this one. */
  get groups(): ProcessGroup[] {
    const all = [...(this.passing.always ?? []), ...(this.stepping.perhaps ?? []), ...this.more];
    return [...new Set(all)].filter((group) => group !== null && group.size > 1) as ProcessGroup[];
  }

  /** Runs a forward or a backward. */
  pass<Result>(body: () => Result): Result {
    return this.run(this.passing, body);
  }

  /** Runs what ends a micro-batch or a step. */
  step<Result>(body: () => Result): Result {
    return this.run(this.stepping, body);
  }

  /** Runs what takes turns of the event loop. */
  async inTurns<Result>(groups: JointGroups, body: () => Promise<Result>): Promise<Result> {
    this.hasFailed = true;
    const result = await jointlyInTurns(groups, body);
    this.hasFailed = false;
    return result;
  }

  /** The last one: frees what the engine owns. */
  close(release: () => void): void {
    this.isClosed = true;
    try {
      release();
    } catch (error) {
      // That the job has ended is no news where a call of this engine has said why.
      if (!this.hasFailed || !(error instanceof DsError && error.code === 'DS_COMM')) throw error;
    }
  }

  private run<Result>(groups: JointGroups, body: () => Result): Result {
    this.hasFailed = true;
    const result = jointly(groups, body);
    this.hasFailed = false;
    return result;
  }
}
