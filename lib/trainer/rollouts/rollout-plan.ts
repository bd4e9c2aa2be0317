// RolloutPlan: the settings of grpo() and rloo() for making prompts into batches.
import type { CausalLM } from '../../models/causal-lm.js';
import type { AdvantageOptions, Score } from '../methods/advantages.js';
import type { SamplingRequest } from './generation.js';
import type { RewardSettings } from './reward.js';
import type { Rollout } from './rollout-batch.js';
import type { TimedTool } from './tools.js';

/** How prompts become batches. */
export interface RolloutPlan extends Omit<AdvantageOptions, 'weights'> {
  /** Name of the method in errors. */
  readonly method: string;
  readonly rewards: readonly RewardSettings[];
  readonly sampling: SamplingRequest & { maxNewTokens: number; temperature: number };
  /**
   * Maximum number of completions that a rank samples at a time; null: the default of the device.
   */
  readonly maxSequences: number | null;
  /** Whether ranks that have no prompts left sample prompts of other ranks. */
  readonly workStealing: boolean;
  /** Maximum number of updates between the sampling of a generation and the first update on it. */
  readonly maxStaleness: number;
  /**
   * Whether a factor corrects losses for the sampler's rounding errors. `old` is then not the
   * sampler's.
   */
  readonly corrects: boolean;
  /** Number of micro-batches of a generation; null: as many as an update has. */
  readonly stepsPerGeneration: number | null;
  /** How many times the model trains on each generation. */
  readonly iterations: number;
  readonly maskTruncated: boolean;
  /** Number of completions of each prompt in evaluations. */
  readonly evalGenerations: number;
  /** Whether optimizer state and gradients leave the device during the sampling. */
  readonly offloadStates: boolean;
  /** The tool, which continues completions; null without a tool. */
  readonly tool: Required<TimedTool> | null;
  /** Maximum number of calls of the tool for a completion. */
  readonly toolTurns: number;
  readonly reference: CausalLM | null;
  /** Whether the sampler's log-probabilities equal training's, bit for bit. */
  readonly exactRollouts: boolean;
  /** Whether the loss or the rewards need log-probabilities of the reference. */
  readonly needsReference: boolean;
  /**
   * Whether the completions of a prompt may be on several ranks: advantages then read the rewards
   * of all ranks.
   */
  readonly mayBeSpread: boolean;
  /** Whether `old` is needed even if each generation is used for one update only. */
  readonly needsOld: boolean;
  /**
   * Returns the advantages of this rank's `rollouts`. `rewards`: the rewards of all ranks. This
   * rank's rewards start at index `first`.
   */
  advantages(given: {
    rewards: readonly (readonly Score[])[];
    rollouts: readonly Rollout[];
    first: number;
  }): readonly number[];
}
