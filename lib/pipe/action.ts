// The actions of a pipeline rank, as data: work on micro-batches, transfers between stages, and
// reductions at the end of a step.
import { DsError } from '../errors.js';

/**
 * F: the forward of a stage. B: its backward. I and W: the halves of a backward, for the gradient
 * of the stage's input and for the gradients of its weights.
 */
export type WorkKind = 'F' | 'B' | 'I' | 'W';

/** Work of a stage on a micro-batch. */
export interface Work {
  /** The kind of work. */
  readonly kind: WorkKind;
  /** Stages count from the model's inputs; a rank may have several stages. */
  readonly stage: number;
  /** Index of the micro-batch in the batch. */
  readonly micro: number;
}

/** A transfer between the ranks of two consecutive stages. */
export interface Transfer {
  /**
   * sendF: sends the output of `stage` to the next stage. recvF: receives its input. sendB: sends
   * the gradient of that input back. recvB: receives the gradient of its output.
   */
  readonly kind: 'sendF' | 'recvF' | 'sendB' | 'recvB';
  /** The stage of the rank that performs the action. */
  readonly stage: number;
  /** Index of the micro-batch in the batch. */
  readonly micro: number;
  /** The rank that sends or receives on the other side. */
  readonly peer: number;
}

/** The weights' gradients of a stage are complete and may be reduced over the data ranks. */
export interface Reduce {
  /** Always so. */
  readonly kind: 'reduce';
  /** The stage of the gradients. */
  readonly stage: number;
}

/** An entry of a rank's list. */
export type Action = Work | Transfer | Reduce;

/** Returns the key of work in maps; a micro-batch visits a stage once per kind. */
export const workKey = ({ kind, stage, micro }: Work): string => `${kind} ${stage} ${micro}`;

/** Formats an action for messages: "F(stage 2, micro 5)". */
export function describeAction(action: Action): string {
  if (action.kind === 'reduce') return `reduce(stage ${action.stage})`;
  return `${action.kind}(stage ${action.stage}, micro ${action.micro})`;
}

/** Returns whether the action is computation, not a transfer or a reduction. */
export function isWork(action: Action): action is Work {
  return action.kind.length === 1;
}

/** Returns the rank of `stage` in a pipeline of `ranks`: stages are assigned round-robin. */
export const rankOf = (stage: number, ranks: number): number => stage % ranks;

/**
 * Returns the other work that `work` depends on, in a model of `stages` stages. With halved
 * backwards its gradient comes from the next stage's I.
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
 * Returns the DS_INTERNAL for lists that cannot end: each rank of `waiting` waits for an action
 * that no rank performs.
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
