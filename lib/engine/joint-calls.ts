// Calls that all ranks of an engine make together, from initialize() to destroy().
import { type JointGroups, jointly, jointlyInTurns, type ProcessGroup } from '../comm/index.js';
import { DsError } from '../errors.js';
import { destroyed } from './engine-errors.js';
import type { Ranks } from './ranks.js';

/**
 * Selects the groups that wait for this rank in a call. If the call throws here, those ranks
 * receive the error.
 */
export class JointCalls {
  private readonly passing: JointGroups;
  private readonly stepping: JointGroups;
  private readonly more: (ProcessGroup | null)[] = [];
  /** The last call threw. */
  private hasFailed = false;
  private isClosed = false;

  /** `gathers`: a forward or a backward gathers weights from the shard group. */
  constructor(
    { world, shardGroup, replicaGroup, secondaryGroup, tensorGroup, sequenceGroup }: Ranks,
    { gathers }: { gathers: boolean },
  ) {
    const parted = [tensorGroup, sequenceGroup];
    const gathering = gathers ? [shardGroup] : [];
    this.passing = {
      always: [...parted, ...gathering],
      perhaps: [shardGroup, replicaGroup, secondaryGroup],
    };
    this.stepping = { perhaps: [world, shardGroup, replicaGroup, secondaryGroup, ...parted] };
  }

  /** Throws DS_AUTOGRAD after close(). */
  requireOpen(op: string): void {
    if (this.isClosed) throw destroyed(op);
  }

  /** Adds groups that wait for this rank. */
  join(more: JointGroups): void {
    this.more.push(...(more.always ?? []));
  }

  /** The groups in which other ranks may wait for this one. */
  get groups(): ProcessGroup[] {
    const all = [...(this.passing.always ?? []), ...(this.stepping.perhaps ?? []), ...this.more];
    return [...new Set(all)].filter((group) => group !== null && group.size > 1) as ProcessGroup[];
  }

  pass<Result>(body: () => Result): Result {
    return this.run(this.passing, body);
  }

  /** Runs the end of a micro-batch or of a step. */
  step<Result>(body: () => Result): Result {
    return this.run(this.stepping, body);
  }

  /** Runs an asynchronous call. */
  async inTurns<Result>(groups: JointGroups, body: () => Promise<Result>): Promise<Result> {
    this.hasFailed = true;
    const result = await jointlyInTurns(groups, body);
    this.hasFailed = false;
    return result;
  }

  /** Ends all calls: frees the memory of the engine. */
  close(release: () => void): void {
    this.isClosed = true;
    try {
      release();
    } catch (error) {
      // A call of this engine already reported the failure, so the end of the job adds nothing.
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
