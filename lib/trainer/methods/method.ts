// TrainingMethod: an objective of a Trainer other than next tokens, for example preferences.
import type { ResolvedConfig } from '../../../types/config.js';
import type { JsonObject } from '../../../types/json.js';
import type { CheckpointWorld } from '../../checkpoint/index.js';
import type { Distributed } from '../../comm/index.js';
import type { Engine } from '../../engine/engine.js';
import { CausalLM } from '../../models/causal-lm.js';
import type { Module } from '../../nn/index.js';
import { argumentError } from '../../runtime/input-errors.js';
import type { Tokenizer } from '../../text/index.js';
import type { Sampling } from '../data-options.js';
import type { BatchSource, DataPlace, TrainerData } from '../data-source.js';
import type { Metrics, RolloutEvent } from '../events.js';
import type { Objective } from '../micro-batch.js';

/** A training method. dpo(), grpo() and the other functions create one for the option `method`. */
export abstract class TrainingMethod {
  /** Name of the method in `ds train --method`. */
  abstract readonly name: string;

  /** Default learning rate, as in TRL; null: that of the Trainer. */
  readonly lr: number | null = null;

  /** Names of the metrics in logs and evaluations. */
  abstract readonly metrics: readonly string[];

  /**
   * @internal Returns the objective for `model`. Throws DS_ARGUMENT if the model does not suit it.
   */
  abstract objectiveOf<Batch>(model: Module): Objective<Batch>;

  /**
   * @internal Opens the source of batches, if the model itself makes them (rollouts). Returns null
   * if the Trainer reads batches from rows.
   */
  openSource(_request: SourceRequest): Promise<MethodSource | null> {
    return Promise.resolve(null);
  }
}

/** The argument of openSource(). The engine does not exist yet. */
export interface SourceRequest {
  /** The training data; null for a Trainer that only evaluates. */
  data: TrainerData<unknown, unknown> | null;
  settings: {
    seed: number;
    tokenizer: Tokenizer | null;
    data: { sampling: Sampling };
  };
  place: DataPlace;
  config: ResolvedConfig;
}

/** Parts of a session that a source uses after the engine exists. */
export interface SourceParts {
  engine: Engine;
  job: Distributed;
  world: CheckpointWorld;
  /** Number of updates and epochs so far. */
  progress: { readonly step: number; readonly epoch: number };
  /** Number of updates of the whole run. */
  maxSteps: number;
}

/** A source of batches that a method makes with the model. */
export abstract class MethodSource implements BatchSource<never> {
  abstract readonly length: number;
  /** Is called once, before the first iteration. */
  abstract begin(parts: SourceParts): void;
  abstract [Symbol.asyncIterator](): AsyncIterator<never>;
  abstract stateDict(): JsonObject;
  abstract loadStateDict(state: JsonObject): void;
  abstract close(): Promise<void>;
  /** Returns the events since the previous call. */
  abstract events(): RolloutEvent[];
  /**
   * Is called between two micro-batches. If work of the source waits for the event loop, resolves
   * after the loop has run; else returns null.
   */
  yieldToSampling(): Promise<void> | null {
    return null;
  }
  /**
   * Returns the metrics of at most `maxBatches` batches of `data`. All ranks must call it. If it is
   * absent, the Trainer evaluates with the objective.
   */
  evaluate?(
    data: TrainerData<unknown, unknown>,
    plan: { batchSize: number; maxBatches: number },
  ): Promise<Metrics>;
}

/** Returns `model`. Throws DS_ARGUMENT unless it is a language model. */
export function requireCausal(method: string, model: Module): CausalLM {
  if (model instanceof CausalLM) return model;
  throw argumentError('Trainer model', `a CausalLM for ${method}()`, `a ${model.constructor.name}`);
}
