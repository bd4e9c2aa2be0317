// What a Trainer learns from its data in place of next tokens, such as preferences.
import type { Module } from '../../nn/index.js';
import type { Objective } from '../micro-batch.js';

/** Made by dpo(). */
export abstract class TrainingMethod {
  /** As `ds train --method` calls it. */
  abstract readonly name: string;

  /** Names of the metrics of its evaluations. */
  abstract readonly metrics: readonly string[];

  /** @internal The losses of `model`. Throws DS_ARGUMENT for a model without them. */
  abstract objectiveOf<Batch>(model: Module): Objective<Batch>;
}
