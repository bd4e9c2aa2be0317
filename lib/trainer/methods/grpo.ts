// grpo() and rloo(): the model samples completions of prompts and learns from their rewards.
// Sources: Shao et al. 2024 (GRPO), Ahmadian et al. 2024 (RLOO), TRL's trainers.
import type { GenerateRequest } from '../../inference/index.js';
import { GENERATION_CONFIG } from '../../inference/sampling-options.js';
import { CausalLM } from '../../models/causal-lm.js';
import type { Module } from '../../nn/index.js';
import { argumentError, valueError } from '../../runtime/input-errors.js';
import {
  boolean,
  declareOption,
  integer,
  number,
  type Options,
  oneOf,
  readDeclared,
} from '../../runtime/option.js';
import { definedOnly, type OtherNames, readOptions } from '../../runtime/options.js';
import { requireInteger } from '../../runtime/require-number.js';
import { keysOf } from '../../runtime/typed-keys.js';
import type { Objective } from '../micro-batch.js';
import { type Reward, readRewards, type WeightedReward } from '../rollouts/reward.js';
import type { RolloutPlan } from '../rollouts/rollout-plan.js';
import { openRollouts } from '../rollouts/rollout-source.js';
import { type RolloutTool, readTool, type TimedTool } from '../rollouts/tools.js';
import {
  AGGREGATIONS,
  computeAdvantages,
  computeLeaveOneOut,
  SCALES,
  sumRewards,
} from './advantages.js';
import { type MethodSource, type SourceRequest, TrainingMethod } from './method.js';
import { CORRECTIONS, LEVELS, POLICY_LOSSES } from './policy-losses.js';
import { PolicyObjective, type PolicySettings } from './policy-objective.js';

/** Options for sampling completions, as in InferenceEngine.generate(). */
export interface RolloutSampling
  extends Options<typeof GENERATION_CONFIG>,
    Pick<GenerateRequest, 'maxNewTokens' | 'minTokens' | 'stop' | 'stopTokens'> {}

const SAMPLING_NAMES: Record<keyof RolloutSampling, true | OtherNames> = {
  ...GENERATION_CONFIG,
  maxNewTokens: true,
  minTokens: true,
  stop: true,
  stopTokens: true,
};
const MAX_TOKENS = 512;
/** Maximum number of completions of a prompt: each needs its own seed. */
const MAX_GENERATIONS = 1024;

/** The declared options that grpo() and rloo() share. */
const SHARED = {
  /** A reward function, an object { of, weight, name, timeout }, or a list of them. */
  rewards: declareOption(
    (op, given: Reward | WeightedReward | readonly (Reward | WeightedReward)[]) =>
      readRewards(op, given),
    '[reward functions](#rewards)',
    { required: true, elsewhere: '`reward_funcs`, `reward_weights`' },
  ),
  /** How completions are sampled. Default: 512 new tokens at temperature 1. */
  sampling: declareOption(readSampling, '[sampling](sampling.md) of completions', {
    default: { maxNewTokens: MAX_TOKENS, temperature: 1 },
    shown: '`maxNewTokens` 512, `temperature` 1',
    elsewhere: '`max_completion_length`, `temperature`, `top_p`, `top_k`, `min_p`',
  }),
  /** Number of micro-batches of one generation. Default: the micro-batches of an update. */
  stepsPerGeneration: integer('micro-batches that train on one generation', {
    min: 1,
    default: null,
    shown: '`accumulation`',
    flag: 'steps_per_generation',
  }),
  /** Number of times that each generation is trained on. Default: 1. */
  iterations: integer('passes over each generation; more is faster and less exact', {
    min: 1,
    default: 1,
    flag: 'num_iterations',
  }),
  /**
   * Maximum number of updates between the sampling of a generation and the first update on it.
   * Default: 0.
   */
  maxStaleness: integer('updates that [sampling may run ahead](#sampling-ahead) of training', {
    min: 0,
    default: 0,
    flag: 'max_staleness',
  }),
  /**
   * Maximum number of completions that a rank samples at a time. Default: 32 on the CPU, 128 to 512
   * on a GPU.
   */
  maxSequences: integer(
    'most completions that a rank samples at a time; lower it if memory is short',
    {
      min: 1,
      default: null,
      shown: '32 on the CPU, 128 to 512 on a GPU',
    },
  ),
  /**
   * Whether ranks that have sampled their own prompts take prompts of slower ranks. Default: false.
   */
  workStealing: boolean('ranks [take prompts](#several-ranks) of slower ranks', {
    default: false,
  }),
  /** Number of completions of each prompt in evaluations. Default: `generations`. */
  evalGenerations: integer('completions of each prompt in evaluations', {
    min: 1,
    max: MAX_GENERATIONS,
    default: null,
    shown: '`generations`',
    flag: 'num_generations_eval',
  }),
  /** Whether completions without an end token are left out of the loss. Default: false. */
  maskTruncated: boolean('leave completions without an end token out of the loss', {
    default: false,
    flag: 'mask_truncated_completions',
  }),
  /**
   * A function that answers a completion with a text, after which the model continues. Default:
   * none.
   */
  tool: declareOption(
    (op, given: RolloutTool | TimedTool) => readTool(op, given),
    '[function](#tools) after which a completion continues',
    {
      default: null,
      shown: 'none',
      elsewhere: '`tools`',
    },
  ),
  /** Maximum number of tool calls for a completion. Default: 8. */
  toolTurns: integer('maximum number of calls of the tool for a completion', {
    min: 1,
    default: 8,
    elsewhere: '`max_tool_calling_iterations`',
  }),
  /**
   * Whether optimizer state and gradients move to host memory while completions are sampled.
   * Default: false.
   */
  offloadStates: boolean(
    'move [optimizer state and gradients](offload.md#between-phases) off the GPU to generate',
    { default: false },
  ),
  /**
   * Whether sampling and training use batch-invariant kernels: the sampler's log-probabilities then
   * equal the log-probabilities of training, bit for bit. Default: false.
   */
  exactRollouts: boolean('[exact log-probabilities](#exact-rollouts) of the sampler', {
    default: false,
    flag: 'exact_rollouts',
  }),
  /** The reference model for a beta above 0. Default: the model without its adapters. */
  reference: declareOption(readReference, 'reference model, for `beta` above 0', {
    default: null,
    shown: 'the model without its [adapters](lora.md)',
  }),
};

/** The declared options of grpo(). */
export const GRPO = {
  ...SHARED,
  /** Number of completions of each prompt. Default: 8. */
  generations: integer(
    'completions of each prompt, which are compared; more is slower and steadier',
    {
      min: 2,
      max: MAX_GENERATIONS,
      default: 8,
      flag: 'num_generations',
    },
  ),
  /** Name of a loss in TRL. Default: "dapo". */
  loss: oneOf(keysOf(POLICY_LOSSES))('[loss](#losses)', {
    default: 'dapo',
    elsewhere: '`loss_type`',
  }),
  /** Ratios are clipped to at least 1 - epsilon. Default: 0.2. */
  epsilon: number(
    'how far an update may move probabilities down: ratios are clipped at 1 - epsilon',
    { min: 0, default: 0.2, flag: 'epsilon' },
  ),
  /** Ratios are clipped to at most 1 + this number. Default: epsilon; 5 for "cispo". */
  epsilonHigh: number('the same upwards: ratios are clipped at 1 + this number', {
    min: 0,
    default: null,
    shown: '`epsilon`; 5 for `cispo`',
    flag: 'epsilon_high',
  }),
  /** Upper limit of ratios where the loss does not clip them. Default: none. */
  delta: number('upper limit of ratios that are not clipped', {
    above: 1,
    default: null,
    flag: 'delta',
  }),
  /** Whether each token or each whole completion (GSPO) has a ratio. Default: "token". */
  level: oneOf(LEVELS)('ratios of tokens, or of whole completions (GSPO)', {
    default: 'token',
    flag: 'importance_sampling_level',
  }),
  /** Weight of the KL divergence from the reference. Default: 0, which needs no reference. */
  beta: number('weight of the KL divergence from the reference; raise it to stay near that model', {
    min: 0,
    default: 0,
    flag: 'beta',
  }),
  /**
   * The values that give the standard deviation, which divides advantages. "none" divides by 1.
   * Default: "group".
   */
  scaleRewards: oneOf(SCALES)('group whose standard deviation divides advantages', {
    default: 'group',
    flag: 'scale_rewards',
  }),
  /**
   * Whether rewards are summed over the functions before or after they are normalized. Default:
   * before.
   */
  aggregation: oneOf(AGGREGATIONS)(
    'sum rewards first, or normalize the rewards of each function first',
    {
      default: 'sum_then_normalize',
      flag: 'multi_objective_aggregation',
    },
  ),
  /** Temperature of "sapo" for advantages above 0. Default: 1. */
  sapoTemperaturePos: number('temperature of `sapo` for advantages above 0', {
    above: 0,
    default: 1,
    flag: 'sapo_temperature_pos',
  }),
  /** Temperature of "sapo" for other advantages. Default: 1.05. */
  sapoTemperatureNeg: number('temperature of `sapo` for other advantages', {
    above: 0,
    default: 1.05,
    flag: 'sapo_temperature_neg',
  }),
  /** Weight exp(old - sampler) of tokens, against rounding errors of the sampler. Default: none. */
  correction: oneOf(CORRECTIONS)('weight of tokens against rounding errors of the sampler', {
    default: null,
    shown: 'none',
  }),
  /** Upper limit of this weight. Default: 3. */
  correctionCap: number('upper limit of this weight', { above: 0, default: 3 }),
};

/** The declared options of rloo(). */
export const RLOO = {
  ...SHARED,
  /** Number of completions of each prompt. Default: 2. */
  generations: integer(
    'completions of each prompt, which are compared; more is slower and steadier',
    {
      min: 2,
      max: MAX_GENERATIONS,
      default: 2,
      flag: 'num_generations',
    },
  ),
  /** Ratios are clipped to 1 - epsilon and 1 + epsilon. Default: 0.2. */
  epsilon: number(
    'how far an update may move probabilities: ratios are clipped at 1 - epsilon and 1 + epsilon',
    { min: 0, default: 0.2, flag: 'epsilon' },
  ),
  /** Weight of the KL divergence, which is subtracted from rewards. Default: 0.05. */
  beta: number('weight of the KL divergence in rewards; raise it to stay near the reference', {
    min: 0,
    default: 0.05,
    flag: 'beta',
  }),
};

/** Options of grpo(). */
export interface GrpoOptions extends Options<typeof GRPO> {}
/** Options of rloo(). */
export interface RlooOptions extends Options<typeof RLOO> {}

/**
 * Returns the `method` of a Trainer that samples completions of the prompts of a
 * text.PromptDataset. It compares each reward with the rewards of the prompt's other completions,
 * and learns from the difference. Throws DS_ARGUMENT for invalid options.
 */
export function grpo(given: GrpoOptions): TrainingMethod {
  const settings = readDeclared('grpo', given, GRPO);
  const { loss, epsilon, epsilonHigh, beta, level, correctionCap, ...rest } = settings;
  const { generations, scaleRewards: scale, aggregation, rewards } = rest;
  const weights = rewards.map(({ weight }) => weight);
  const advantageOptions = { generations, scale, aggregation, weights };
  return new Policy({
    name: 'grpo',
    objective: {
      ...rest,
      loss,
      epsilon,
      beta,
      level,
      isLeaveOneOut: false,
      epsilonHigh: epsilonHigh ?? (loss === 'cispo' ? 5 : epsilon),
      temperatures: [rest.sapoTemperaturePos, rest.sapoTemperatureNeg],
      correctionRange: [0, correctionCap],
    },
    plan: {
      ...rest,
      generations,
      scale,
      aggregation,
      evalGenerations: rest.evalGenerations ?? generations,
      needsReference: beta > 0,
      needsOld: false,
      corrects: rest.correction !== null,
      mayBeSpread: true,
      advantages: ({ rewards: all, rollouts, first }) =>
        computeAdvantages(all, advantageOptions).advantages.slice(first, first + rollouts.length),
    },
  });
}

/**
 * Returns the `method` of a Trainer that works like grpo(), but compares the reward of a completion
 * with the mean of the prompt's other completions (RLOO). Throws DS_ARGUMENT for invalid options.
 */
export function rloo(given: RlooOptions): TrainingMethod {
  const settings = readDeclared('rloo', given, RLOO);
  const { epsilon, beta, generations, ...rest } = settings;
  const weights = rest.rewards.map(({ weight }) => weight);
  return new Policy({
    name: 'rloo',
    objective: {
      ...rest,
      loss: 'grpo',
      epsilon,
      epsilonHigh: epsilon,
      delta: null,
      level: 'sequence',
      beta,
      temperatures: [1, 1],
      correction: null,
      correctionRange: [0, 1],
      isLeaveOneOut: true,
    },
    plan: {
      ...rest,
      generations,
      scale: 'none',
      aggregation: 'sum_then_normalize',
      evalGenerations: rest.evalGenerations ?? generations,
      needsReference: beta > 0,
      needsOld: beta > 0,
      corrects: false,
      mayBeSpread: false,
      advantages: ({ rewards: all, rollouts, first }) => {
        const totals = sumRewards(all.slice(first, first + rollouts.length), weights);
        const penalized = totals.map((total, i) => {
          const { old, reference } = rollouts[i] ?? {};
          if (total === null || !old || !reference) return total;
          const divergence = old.reduce(
            (sum, value, t) => sum + value - (reference[t] as number),
            0,
          );
          return total - beta * divergence;
        });
        return computeLeaveOneOut(penalized, generations);
      },
    },
  });
}

/** The settings of grpo() or rloo(), in the form that Policy needs. */
interface PolicyParts {
  name: string;
  objective: Omit<PolicySettings, 'method' | 'temperature' | 'max'>;
  plan: Omit<RolloutPlan, 'method'>;
}

class Policy extends TrainingMethod {
  readonly name: string;
  readonly metrics = ['reward', 'reward_std'];

  constructor(private readonly parts: PolicyParts) {
    super();
    this.name = parts.name;
  }

  override objectiveOf<Batch>(model: Module): Objective<Batch> {
    const { objective, plan } = this.parts;
    const { temperature, maxNewTokens: max } = plan.sampling;
    return new PolicyObjective(model, { ...objective, method: this.name, temperature, max: max });
  }

  override openSource(request: SourceRequest): Promise<MethodSource> {
    return openRollouts({ ...this.parts.plan, method: this.name }, request);
  }
}

function readSampling(op: string, given: RolloutSampling) {
  const options = readOptions(op, given, SAMPLING_NAMES);
  const { maxNewTokens = MAX_TOKENS, temperature = 1 } = options;
  requireInteger(`${op}.maxNewTokens`, maxNewTokens, 1);
  if (!(Number.isFinite(temperature) && temperature > 0)) {
    throw valueError(`${op}.temperature`, 'a number above 0: completions must differ', temperature);
  }
  return { ...definedOnly(options), maxNewTokens, temperature };
}

function readReference(op: string, given: CausalLM): CausalLM {
  if (given instanceof CausalLM) return given;
  throw argumentError(op, 'a language model of nn.models', `${given}`);
}
