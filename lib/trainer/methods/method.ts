// TrainingMethod: another objective of a Trainer than next tokens, such as preferences.
import { CausalLM } from '../../models/causal-lm.js';
import type { Module } from '../../nn/index.js';
import { refused } from '../../runtime/refused.js';
import type { Objective } from '../micro-batch.js';

/** Another objective than next tokens. dpo() creates one. */
export abstract class TrainingMethod {
  /** Its name in `ds train --method`. */
  abstract readonly name: string;

  /** Names of the metrics in logs and evaluations. */
  abstract readonly metrics: readonly string[];

  /** @internal Returns the objective for `model`. Throws DS_ARGUMENT for a model without them. */
  abstract objectiveOf<Batch>(model: Module): Objective<Batch>;
}

/** Returns `model`. Throws DS_ARGUMENT for other models than language models. */
export function requireCausal(method: string, model: Module): CausalLM {
  if (model instanceof CausalLM) return model;
  throw refused('Trainer model', `a CausalLM for ${method}()`, `a ${model.constructor.name}`);
}
