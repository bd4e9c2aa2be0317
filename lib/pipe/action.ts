// The actions of a pipeline rank, as data: work on micro-batches, transfers between stages, and
// reductions of gradients at the end of a step.
import { DsError } from '../errors.js';

/**
 * F: the forward of a stage. B: its backward. I and W: the two halves of a backward. I computes the
 * gradients of the stage's input, W the gradients of its weights.
 */
export type WorkKind = 'F' | 'B' | 'I' | 'W';

/** The work of a stage on a micro-batch. */
export interface Work {
  /** The kind of work. */
  readonly kind: WorkKind;
  /** Index of the stage, from the model's inputs on. A rank may have several stages. */
  readonly stage: number;
  /** Index of the micro-batch in the batch. */
  readonly micro: number;
}

/** One side of a transfer between the ranks of two consecutive stages. */
export interface Transfer {
  /**
   * sendF: sends the output of `stage` to the next stage. recvF: receives the input of `stage`.
   * sendB: sends the gradient of that input back. recvB: receives the gradient of the output of
   * `stage`.
   */
  readonly kind: 'sendF' | 'recvF' | 'sendB' | 'recvB';
  /** The stage of the rank that performs this action. */
  readonly stage: number;
  /** Index of the micro-batch in the batch. */
  readonly micro: number;
  /** The rank that performs the other side. */
  readonly peer: number;
}

/**
 * A reduction of a stage's gradients over the data ranks. It follows all work that adds to them.
 */
export interface Reduce {
  /** The kind of action. */
  readonly kind: 'reduce';
  /** The stage of the gradients. */
  readonly stage: number;
}

/** An entry of a rank's list of actions. */
export type Action = Work | Transfer | Reduce;

/** Returns a key of the work for maps. A micro-batch visits a stage once per kind. */
export const workKey = ({ kind, stage, micro }: Work): string => `${kind} ${stage} ${micro}`;

/** Formats an action for errors, for example "F(stage 2, micro 5)". */
export function describeAction(action: Action): string {
  if (action.kind === 'reduce') return `reduce(stage ${action.stage})`;
  return `${action.kind}(stage ${action.stage}, micro ${action.micro})`;
}

/** Returns whether the action is computation, that is, no transfer and no reduction. */
export function isWork(action: Action): action is Work {
  return action.kind.length === 1;
}

/** Returns the rank that has `stage`. Stages are assigned to the ranks round-robin. */
export const rankOf = (stage: number, ranks: number): number => stage % ranks;

/**
 * Returns the work that `work` needs, in a model of `stages` stages. The result lists needs. Each
 * need lists alternatives; one alternative must be complete. For example, a backward needs the next
 * stage's B or, if its backward is halved, I.
 */
export function listInputs(work: Work, stages: number): readonly (readonly Work[])[] {
  const { kind, stage, micro } = work;
  const worksHere = (...kinds: WorkKind[]): Work[] => kinds.map((k) => ({ kind: k, stage, micro }));
  if (kind === 'F') return stage === 0 ? [] : [[{ kind, stage: stage - 1, micro }]];
  if (kind === 'W') return [worksHere('I')];
  const forwards = worksHere('F');
  if (stage === stages - 1) return [forwards];
  return [forwards, (['B', 'I'] as const).map((k) => ({ kind: k, stage: stage + 1, micro }))];
}

/**
 * Returns the error for lists that cannot end. `waiting`: the next action of each rank, or
 * undefined if the rank is done.
 */
export function deadlockError(op: string, waiting: readonly (Action | undefined)[]): DsError {
  const lines = waiting.map((action, rank) =>
    action ? `rank ${rank} before ${describeAction(action)}` : `rank ${rank} at its end`,
  );
  return new DsError({
    code: 'DS_INTERNAL',
    op,
    expected: 'an order in which every action follows its inputs',
    got: lines.join(', '),
  });
}
