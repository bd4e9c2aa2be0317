// Reads the facts of an optimizer that a plan needs: bytes of its state, and kinds of its updates.
import type { ResolvedConfig } from '../../types/config.js';
import { DsError } from '../errors.js';
import { Parameter } from '../nn/parameter.js';
import { Adagrad } from '../optim/adagrad.js';
import { AdamW } from '../optim/adamw.js';
import { declaredState } from '../optim/declared-state.js';
import { Lion } from '../optim/lion.js';
import { canSpeculate, type Optimizer } from '../optim/optimizer.js';
import { canSplit } from '../optim/split-master.js';
import { dtypeSize } from '../runtime/dtype.js';
import { numel } from '../runtime/view.js';

export interface OptimizerFacts {
  /** Bytes of optimizer state per trained parameter without the master weight, on average. */
  stateBytes: number;
  /** Whether the optimizer can update masters in two halves. */
  canSplit: boolean;
  /** Whether it can compute an update without storing its state. */
  canSpeculate: boolean;
}

export function factsOf(optimizer: Optimizer): OptimizerFacts {
  let [bytes, elements] = [0, 0];
  for (const [group, { params }] of optimizer.groups.entries()) {
    for (const { shape } of params.filter(({ requiresGrad }) => requiresGrad)) {
      elements += numel(shape);
      for (const { shape: stateShape, dtype } of Object.values(
        declaredState(optimizer, group, shape),
      )) {
        bytes += numel(stateShape) * dtypeSize(dtype);
      }
    }
  }
  return {
    stateBytes: elements === 0 ? 0 : bytes / elements,
    canSplit: canSplit(optimizer),
    canSpeculate: canSpeculate(optimizer),
  };
}

/** Returns one parameter without memory, for an optimizer that only reports its facts. */
const placeholders = (): Parameter[] => [new Parameter([64], () => {})];

export const adamWFacts = (bf16States: boolean): OptimizerFacts =>
  factsOf(new AdamW(placeholders(), { fp32OptimizerStates: !bf16States }));

/**
 * Returns the facts of a configured optimizer. Throws DS_ARGUMENT for an optimizer of whole
 * parameters.
 */
export function configuredFacts({ optimizer, bf16 }: ResolvedConfig): OptimizerFacts {
  const type = optimizer?.type ?? 'AdamW';
  if (type === 'Adam' || type === 'AdamW') return adamWFacts(bf16.bf16_optimizer_states);
  if (type === 'Lion') return factsOf(new Lion(placeholders()));
  if (type === 'Adagrad') return factsOf(new Adagrad(placeholders()));
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'plan --config, optimizer.type',
    expected: 'AdamW, Adam, Lion or Adagrad',
    got: type,
    hint: 'zero.estimateMemory(model, { stateBytes }) takes the bytes of any other.',
  });
}
