// Functions for one generation of rollouts: requests, inputs of reward functions, and metrics.
import { createHash } from 'node:crypto';
import type { GenerateRequest } from '../../inference/index.js';
import type { PromptSample } from '../../text/index.js';
import type { Score } from '../methods/advantages.js';
import { computeMoments } from '../methods/advantages.js';
import type { Completion, CompletionsToScore } from './reward.js';

/** A completion with the sampler's records. */
export interface Sampled extends Completion {
  readonly logprobs: readonly number[];
  /** 1 for sampled tokens, 0 for tokens of tool results; null without tools. */
  readonly mask: readonly number[] | null;
  /** Number of tool calls. */
  readonly calls: number;
}

/** Number of hexadecimal digits of a seed: 52 bits are exact in a number. */
const DIGITS = 13;

/**
 * Returns the seed for the completions of a prompt. It depends on the seed of the run, the prompt
 * and the pass over the data, but not on ranks and batches.
 */
const seedOf = (run: number, prompt: number, pass: number): number =>
  hashOf(`${run} ${prompt} ${pass}`);

/** Returns a number less than 2^52 from the hash of a text. */
export function hashOf(text: string): number {
  return Number.parseInt(createHash('sha256').update(text).digest('hex').slice(0, DIGITS), 16);
}

/** Sampling options of a request that are the same for all prompts. */
export type SamplingRequest = Omit<GenerateRequest, 'prompt' | 'n' | 'seed' | 'logprobs'>;

/** Returns the request for `count` completions of a prompt. */
export function requestOf(
  { prompt, promptIds, index }: PromptSample,
  sampling: SamplingRequest,
  { run, pass, count }: { run: number; pass: number; count: number },
): GenerateRequest {
  const seed = seedOf(run, index, pass);
  const beginsText = typeof prompt !== 'string';
  return { ...sampling, prompt: promptIds, n: count, seed, logprobs: 0, beginsText };
}

/** Returns the input of the reward functions. Each prompt has `count` adjacent completions. */
export function judgedOf(
  samples: readonly PromptSample[],
  completions: readonly Completion[],
  { count, step }: { count: number; step: number },
): CompletionsToScore {
  const each = samples.flatMap((sample) => Array.from({ length: count }, () => sample));
  const names = [...new Set(samples.flatMap(({ columns }) => Object.keys(columns)))];
  const columns = names.map((name) => [name, each.map((sample) => sample.columns[name] ?? null)]);
  return {
    prompts: each.map(({ prompt }) => prompt),
    completions,
    columns: Object.fromEntries(columns) as CompletionsToScore['columns'],
    step,
    locations: each.map(({ location }) => location),
  };
}

/** The report of a rank to the others about its completions. */
export type Outcome = {
  rewards: Score[][];
  lengths: number[];
  truncated: boolean[];
  /** Number of tool calls of each completion; empty without tools. */
  calls: number[];
  /** Number of completions that other ranks sampled. */
  stolen: number;
};

/** Options of the sampling that have their own metrics. */
interface MeasuredSampling {
  readonly workStealing?: boolean;
  readonly maxStaleness?: number;
  /** Number of updates since the sampling. */
  readonly staleness?: number;
}

/** Returns the metrics of a generation by TRL's names: means over the completions of all ranks. */
export function metricsOf(
  outcomes: readonly Outcome[],
  names: readonly string[],
  groups: { totals: readonly Score[]; deviations: readonly number[] },
  how: MeasuredSampling = {},
): Record<string, number> {
  const lengths = outcomes.flatMap((outcome) => outcome.lengths);
  const truncated = outcomes.flatMap((outcome) => outcome.truncated);
  const calls = outcomes.flatMap((outcome) => outcome.calls);
  const stolen = outcomes.reduce((sum, outcome) => sum + outcome.stolen, 0);
  const ended = lengths.filter((_, i) => !truncated[i]);
  const known = groups.totals.filter((total) => total !== null);
  const { deviations } = groups;
  const rewards = outcomes.flatMap((outcome) => outcome.rewards);
  const byFunction = names.flatMap((name, k) => {
    const ownRewards = rewards.map((row) => row[k] ?? null).filter((item) => item !== null);
    const { mean, deviation } = computeMoments(ownRewards);
    return ownRewards.length === 0
      ? []
      : [
          [`rewards/${name}/mean`, mean],
          [`rewards/${name}/std`, deviation],
        ];
  });
  const zero = deviations.filter((deviation) => deviation < 1e-12).length;
  return {
    reward: computeMoments(known).mean,
    reward_std: computeMoments(known).deviation,
    frac_reward_zero_std: zero / Math.max(1, deviations.length),
    ...Object.fromEntries(byFunction),
    'completions/mean_length': computeMoments(lengths).mean,
    'completions/min_length': Math.min(...lengths),
    'completions/max_length': Math.max(...lengths),
    'completions/clipped_ratio': 1 - ended.length / lengths.length,
    'completions/mean_terminated_length': computeMoments(ended).mean,
    'completions/min_terminated_length': ended.length > 0 ? Math.min(...ended) : 0,
    'completions/max_terminated_length': ended.length > 0 ? Math.max(...ended) : 0,
    ...(calls.length > 0 && { 'tools/call_frequency': computeMoments(calls).mean }),
    ...(how.workStealing && { 'sampling/stolen_ratio': stolen / lengths.length }),
    ...(how.maxStaleness && { 'sample/staleness_mean': how.staleness ?? 0 }),
  };
}

/** Returns the names of the metrics that metricsOf() returns if every function gives a reward. */
export const metricNames = (
  functions: readonly string[],
  hasTools: boolean,
  how: MeasuredSampling,
): string[] =>
  Object.keys(
    metricsOf(
      [
        {
          rewards: [functions.map(() => 0)],
          lengths: [1],
          truncated: [false],
          calls: hasTools ? [0] : [],
          stolen: 0,
        },
      ],
      functions,
      {
        totals: [0],
        deviations: [0],
      },
      how,
    ),
  );
