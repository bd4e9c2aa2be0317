// RolloutPlan: how a method of policies makes prompts into batches.
import type { CausalLM } from '../../models/causal-lm.js';
import type { AdvantageOptions, Score } from '../methods/advantages.js';
import type { SamplingRequest } from './generation.js';
import type { RewardSettings } from './reward.js';
import type { Rollout } from './rollout-batch.js';
import type { TimedTool } from './tools.js';

/** How prompts become batches. */
export interface RolloutPlan extends Omit<AdvantageOptions, 'weights'> {
  /** The method, for errors. */
  readonly method: string;
  readonly rewards: readonly RewardSettings[];
  readonly sampling: SamplingRequest & { maxNewTokens: number; temperature: number };
  /**
   * Maximum number of completions that a rank samples at once; null for the default of the device.
   */
  readonly maxSequences: number | null;
  /** Whether ranks without prompts sample those of others. */
  readonly workStealing: boolean;
  /**
   * Maximum number of updates between the weights that sample a generation and its first update.
   */
  readonly maxStaleness: number;
  /** Whether a factor corrects the loss for the sampler; then `old` is not the sampler's. */
  readonly corrects: boolean;
  /** Micro-batches of a generation. Null: those of an update. */
  readonly stepsPerGeneration: number | null;
  /** Uses of each generation. */
  readonly iterations: number;
  readonly maskTruncated: boolean;
  /** Completions of each prompt in evaluations. */
  readonly evalGenerations: number;
  /** Whether optimizer state and gradients leave the device while it generates. */
  readonly offloadStates: boolean;
  /** Continues completions; null without one. */
  readonly tool: Required<TimedTool> | null;
  /** Maximum number of calls of the tool for a completion. */
  readonly toolTurns: number;
  readonly reference: CausalLM | null;
  /** Whether the sampler's log-probabilities are those of training, bit for bit. */
  readonly exactRollouts: boolean;
  /** Whether the loss or the rewards need the reference. */
  readonly needsReference: boolean;
  /** Whether advantages read the rewards of other ranks, so that groups may span ranks. */
  readonly mayBeSpread: boolean;
  /** Whether `old` is needed even if each generation serves one update. */
  readonly needsOld: boolean;
  /**
   * Advantages of this rank's `rollouts`. `rewards` has those of all ranks; the own ones begin at
   * `first`.
   */
  advantages(given: {
    rewards: readonly (readonly Score[])[];
    rollouts: readonly Rollout[];
    first: number;
  }): readonly number[];
}
