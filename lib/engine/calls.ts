// Guards the calls of an engine: refuses wrong calls, and reports the error of a call to the ranks
// that wait for it.
import { groupsOfSeveral, type JointGroups, jointly, jointlyAsync } from '../comm/joint-calls.js';
import type { ProcessGroup } from '../comm/process-group.js';
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { valueError } from '../runtime/input-errors.js';
import { Tensor } from '../tensor/index.js';
import { destroyedError, offloadedError } from './engine-errors.js';
import type { Ranks } from './ranks.js';

interface CallOptions {
  /** Whether forward and backward gather weights from the shard group (stage 3). */
  gathersWeights: boolean;
  /** Whether the engine has an optimizer. */
  hasOptimizer: boolean;
  /** Shard groups of parameters with a group of their own, such as experts. */
  parameterGroups: readonly ProcessGroup[];
}

/**
 * Refuses calls in the wrong order. Selects the groups that wait for this rank during a call. If
 * the call throws here, the ranks of these groups get the error.
 */
export class EngineCalls {
  /** Asynchronous calls that read or replace the engine's state. */
  readonly use = new StateUse();
  private readonly passGroups: JointGroups;
  private readonly stepGroups: JointGroups;
  private readonly joinedGroups: (ProcessGroup | null)[] = [];
  private readonly hasOptimizer: boolean;
  /** Whether the last call threw. */
  private hasFailed = false;
  private isClosed = false;

  constructor(
    { world, shardGroup, replicaGroup, secondaryGroup, tensorGroup, sequenceGroup }: Ranks,
    { gathersWeights, hasOptimizer, parameterGroups }: CallOptions,
  ) {
    const splitGroups = [tensorGroup, sequenceGroup];
    const shardGroups = [shardGroup, ...parameterGroups];
    const gatherGroups = gathersWeights ? shardGroups : [];
    this.passGroups = {
      always: [...splitGroups, ...gatherGroups],
      perhaps: [...shardGroups, replicaGroup, secondaryGroup],
    };
    this.stepGroups = {
      perhaps: [world, ...shardGroups, replicaGroup, secondaryGroup, ...splitGroups],
    };
    this.hasOptimizer = hasOptimizer;
  }

  /** Throws DS_AUTOGRAD after close(). */
  requireOpen(op: string): void {
    if (this.isClosed) throw destroyedError(op);
  }

  /**
   * Throws after close(), during a load, and while weights are offloaded. For calls that read
   * weights.
   */
  requireReadable(op: string): void {
    this.requireOpen(op);
    this.use.requireLoaded(op);
    this.use.requirePresent(op, ['lp_params']);
  }

  /**
   * Throws after close(), without an optimizer, and during a save or load. Throws DS_RELEASED if a
   * state of `needed` is offloaded. For calls that change the state.
   */
  requireChangeable(op: string, needed: readonly OffloadState[] = OFFLOAD_STATES): void {
    this.requireOpen(op);
    if (!this.hasOptimizer) throw forwardsOnlyError(op);
    this.use.requireIdle(op);
    this.use.requirePresent(op, needed);
  }

  /**
   * Like requireChangeable(), but optimizer state may be offloaded, because backward() does not
   * read it.
   */
  requireBackward(op: string): void {
    this.requireChangeable(op, BACKWARD_STATES);
  }

  /** Adds groups that may wait for this rank. */
  join(groups: JointGroups): void {
    this.joinedGroups.push(...(groups.always ?? []));
  }

  /** Returns all groups with ranks that may wait for this rank. */
  get groups(): ProcessGroup[] {
    const all = [
      ...(this.passGroups.always ?? []),
      ...(this.stepGroups.perhaps ?? []),
      ...this.joinedGroups,
    ];
    return groupsOfSeveral([...new Set(all)]);
  }

  pass<Result>(body: () => Result): Result {
    return this.run(this.passGroups, body);
  }

  /** Runs the end of a micro-batch or of a step. */
  step<Result>(body: () => Result): Result {
    return this.run(this.stepGroups, body);
  }

  /** Runs an asynchronous call that all ranks of `groups` make. */
  async runAsync<Result>(groups: JointGroups, body: () => Promise<Result>): Promise<Result> {
    this.hasFailed = true;
    const result = await jointlyAsync(groups, body);
    this.hasFailed = false;
    return result;
  }

  /** Ends all calls, then runs `release`, which frees the memory of the engine. */
  close(release: () => void): void {
    this.isClosed = true;
    try {
      release();
    } catch (error) {
      // A call of this engine has already thrown the failure of the job. To throw it again would
      // only repeat it.
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

interface Use {
  op: string;
  /** Whether the call replaces the state, as a load does. */
  changes: boolean;
}

/** Prevents calls that conflict with an asynchronous save, export or load. */
export class StateUse {
  private readonly uses = new Set<Use>();
  /** States in host memory: see Engine.offloadStates(). */
  readonly offloaded = new Set<OffloadState>();

  /** Throws DS_RELEASED if a state of `needed` is in host memory. Default: any state. */
  requirePresent(op: string, needed: readonly OffloadState[] = OFFLOAD_STATES): void {
    const missing = needed.filter((name) => this.offloaded.has(name));
    if (missing.length > 0) throw offloadedError(op, missing);
  }

  /** Runs `body`, which reads the state. Throws DS_AUTOGRAD during a load. */
  async runReading<Result>(op: string, body: () => Promise<Result>): Promise<Result> {
    this.requireLoaded(op);
    this.requirePresent(op);
    return this.runUsing({ op, changes: false }, body);
  }

  /** Runs `body`, which replaces the state. Throws DS_AUTOGRAD during a save or load. */
  async runChanging<Result>(op: string, body: () => Promise<Result>): Promise<Result> {
    this.requireIdle(op);
    this.requirePresent(op);
    return this.runUsing({ op, changes: true }, body);
  }

  /** Throws DS_AUTOGRAD during a save or load, because `op` would change the state. */
  requireIdle(op: string): void {
    for (const use of this.uses) throw notAwaitedError(op, use);
  }

  /** Throws DS_AUTOGRAD during a load, because `op` would read old and new state mixed. */
  requireLoaded(op: string): void {
    for (const use of this.uses) if (use.changes) throw notAwaitedError(op, use);
  }

  private async runUsing<Result>(use: Use, body: () => Promise<Result>): Promise<Result> {
    this.uses.add(use);
    try {
      return await body();
    } finally {
      this.uses.delete(use);
    }
  }
}

function notAwaitedError(op: string, { op: under, changes }: Use): DsError {
  return new DsError({
    code: 'DS_AUTOGRAD',
    op,
    expected: `a call after the end of ${under}()`,
    got: `a call while ${under}() ${changes ? 'replaces' : 'writes'} the engine state`,
    hint:
      under === 'saveCheckpoint'
        ? 'Await saveCheckpoint(). With { asynchronous: true }, training continues during the write.'
        : `Await ${under}().`,
  });
}

function forwardsOnlyError(op: string): DsError {
  return new DsError({
    code: 'DS_CONFIG',
    op,
    expected: 'an engine with an optimizer',
    got: 'an engine for forwards only',
    hint: 'Add "optimizer": { "type": "AdamW", "params": { "lr": 1e-4 } }, or pass one to initialize().',
  });
}

/** All values of OffloadState. */
export const OFFLOAD_STATES = [
  'optim_states',
  'hp_params',
  'lp_params',
  'lp_grads',
  'contiguous_grad_buffer',
] as const;

/** States of an engine that offloadStates() can move to host memory. */
export type OffloadState = (typeof OFFLOAD_STATES)[number];

/** The states that backward() reads or writes. */
const BACKWARD_STATES: readonly OffloadState[] = [
  'lp_params',
  'lp_grads',
  'contiguous_grad_buffer',
];

/** Throws DS_ARGUMENT unless `loss` is a tensor, DS_SHAPE unless it is one f32 element. */
export function requireLoss(op: string, loss: Tensor): void {
  if (!(loss instanceof Tensor)) {
    throw new DsError({
      code: 'DS_ARGUMENT',
      op,
      expected: 'a loss: the tensor that forward() has computed',
      got: formatValue(loss),
      hint: 'If the model returns several tensors, pass only the loss.',
    });
  }
  if (loss.numel === 1 && loss.dtype === 'f32') return;
  throw new DsError({
    code: 'DS_SHAPE',
    op,
    expected: 'a loss of one f32 element',
    got: `[${loss.shape.join(', ')}] ${loss.dtype}`,
    hint: "Reduce it first, for example with .mean(), and cast it with .to('f32').",
  });
}

/**
 * Throws DS_ARGUMENT unless `factor` is finite and positive. Losses are multiplied by it, and
 * gradients divided.
 */
export function requireFactor(op: string, factor: number): void {
  if (Number.isFinite(factor) && factor > 0) return;
  throw valueError(op, 'a finite number above 0', factor);
}
