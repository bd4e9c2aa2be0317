// Computes log-probabilities of completions with the training forward and with a reference, without
// gradients.

import type { Engine } from '../../engine/engine.js';
import { CausalLM } from '../../models/causal-lm.js';
import { lorasOf, withoutAdapters } from '../../peft/index.js';
import { cpu } from '../../runtime/device.js';
import { argumentError } from '../../runtime/input-errors.js';
import { required } from '../../runtime/required.js';
import { noGrad, scope, type Tensor } from '../../tensor/index.js';
import { batchOf, byRollout, type Rollout } from './rollout-batch.js';

/** How completions are scored. */
interface Scoring {
  engine: Engine;
  pad: number;
  temperature: number;
  /** Whether `old` is needed, because the model changes before the last use of the rollouts. */
  old: boolean;
  /** The reference. "adapters": the trained model without its adapters; null: no reference. */
  reference: CausalLM | 'adapters' | null;
}

/**
 * Returns the reference of a method; null if `isNeeded` is false. Throws DS_ARGUMENT if the
 * reference is the trained model itself. Also throws it for a missing reference and a model without
 * adapters.
 */
export function referenceFor(
  method: string,
  model: unknown,
  given: CausalLM | null,
  isNeeded: boolean,
): Scoring['reference'] {
  if (given && given === model) {
    const hint = 'Read the model a second time, or train adapters: peft.addLora(model).';
    throw argumentError(
      `${method} reference`,
      'a model other than the trained model',
      'the trained model',
      hint,
    );
  }
  if (!isNeeded) return null;
  if (given) return given;
  if (model instanceof CausalLM && lorasOf(model).size > 0) return 'adapters';
  const hint =
    'Give `reference: await nn.models.fromPretrained(dir)`, train adapters, or set beta: 0.';
  const expected = 'a reference, or a model with adapters, for a beta above 0';
  throw argumentError(method, expected, `a ${(model as object).constructor.name}`, hint);
}

/**
 * Sets `old` and `reference` of the rollouts of a micro-batch. The forward has the shapes of the
 * later update, so log-probabilities have the same bits. All ranks must call it.
 */
export function score(rollouts: readonly Rollout[], how: Scoring): void {
  const { engine, reference } = how;
  if (!how.old && !reference) return;
  const { training } = engine.module;
  engine.eval();
  try {
    if (how.old) {
      const forward = (...inputs: unknown[]): Tensor => engine.forward<Tensor>(...inputs);
      scoreRollouts(rollouts, how, forward).forEach((item, i) => {
        required(rollouts[i]).old = item;
      });
    }
    if (!reference) return;
    const forward = forwardOf(engine, reference);
    scoreRollouts(rollouts, how, forward).forEach((item, i) => {
      required(rollouts[i]).reference = item;
    });
  } finally {
    if (training) engine.train();
  }
}

/** References that were moved to the device of their engine. */
const placed = new WeakSet<CausalLM>();

type Forward = (...inputs: unknown[]) => Tensor;

function forwardOf(engine: Engine, reference: CausalLM | 'adapters'): Forward {
  if (reference !== 'adapters') {
    if (!placed.has(reference)) reference.to(engine.device).eval();
    placed.add(reference);
    return (ids, targets, inputs) =>
      reference.call(ids as Tensor, targets as Tensor, inputs as object);
  }
  const model = engine.module as CausalLM;
  return (...inputs) => withoutAdapters(model, () => engine.forward<Tensor>(...inputs));
}

function scoreRollouts(
  rollouts: readonly Rollout[],
  { engine, pad, temperature }: Scoring,
  forward: Forward,
): number[][] {
  return noGrad(() =>
    scope(() => {
      const all = rollouts.map((rollout) => ({ ...rollout, old: null, reference: null }));
      const { ids, targets } = batchOf(all, pad, cpu());
      const [here, wanted] = [ids.to(engine.device), targets.to(engine.device)];
      const out = forward(here, wanted, { loss: { tokens: { temperature } } });
      return byRollout(out.toArray(), rollouts);
    }),
  );
}
