// One generation: completions of prompts with their rewards, advantages and metrics.
import { createHash } from 'node:crypto';
import type { GenerateRequest } from '../../inference/index.js';
import type { PromptSample } from '../../text/index.js';
import type { Score } from '../methods/advantages.js';
import { computeMoments } from '../methods/advantages.js';
import type { Completion, CompletionsToScore } from './reward.js';

/** A completion with the log-probabilities that the sampler recorded. */
export interface Sampled extends Completion {
  readonly logprobs: readonly number[];
  /** 1 for sampled tokens, 0 for results of tools; null without tools. */
  readonly mask: readonly number[] | null;
  /** Calls of tools. */
  readonly calls: number;
}

/** 52 bits, as seeds may have. */
const DIGITS = 13;

/**
 * The seed of the samples of a prompt, from the seed of the run, the prompt and the pass over the
 * data. It does not depend on ranks and batches.
 */
const seedOf = (run: number, prompt: number, pass: number): number =>
  hashOf(`${run} ${prompt} ${pass}`);

/** A number below 2^52 by the hash of a text. */
export function hashOf(text: string): number {
  return Number.parseInt(createHash('sha256').update(text).digest('hex').slice(0, DIGITS), 16);
}

/** Sampling options of rollouts, as a request takes them. */
export type SamplingRequest = Omit<GenerateRequest, 'prompt' | 'n' | 'seed' | 'logprobs'>;

/** The request for `count` completions of a prompt. */
export function requestOf(
  { prompt, promptIds, index }: PromptSample,
  sampling: SamplingRequest,
  { run, pass, count }: { run: number; pass: number; count: number },
): GenerateRequest {
  const seed = seedOf(run, index, pass);
  const beginsText = typeof prompt !== 'string';
  return { ...sampling, prompt: promptIds, n: count, seed, logprobs: 0, beginsText };
}

/** The arguments of reward functions; each prompt has `count` adjacent completions. */
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

/** What a rank tells the others about its completions. */
export type Outcome = {
  rewards: Score[][];
  lengths: number[];
  truncated: boolean[];
  /** Calls of tools by completion; empty without tools. */
  calls: number[];
  /** Completions that other ranks sampled. */
  stolen: number;
};

/** Options that have metrics of their own. */
interface MeasuredSampling {
  readonly workStealing?: boolean;
  readonly maxStaleness?: number;
  /** Updates since sampling. */
  readonly staleness?: number;
}

/** Means over completions of all ranks, by TRL's names. */
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

/** The names of metricsOf() if all functions judge something. */
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
