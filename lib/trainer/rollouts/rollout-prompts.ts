// Divides the prompts of a generation among the ranks.
import { DataLoader, type Dataset, DistributedSampler } from '../../data/index.js';
import { formatValue } from '../../runtime/format-value.js';
import { argumentError } from '../../runtime/input-errors.js';
import type { PromptSample } from '../../text/index.js';
import { isPromptSample } from '../../text/prompt-dataset.js';
import type { DataPlace, TrainerData } from '../data-source.js';
import type { SourceRequest } from '../methods/method.js';
import { isDataset } from '../train-data.js';

/** The options that determine the sizes; see RolloutPlan. */
interface SizePlan {
  readonly method: string;
  readonly stepsPerGeneration: number | null;
  readonly generations: number;
  readonly mayBeSpread: boolean;
}

/** Sizes of a generation on one rank. */
export interface Sizes {
  batchSize: number;
  steps: number;
  /** Number of prompts of this rank; with `isSpread`, of all ranks. */
  prompts: number;
  /** Whether the completions of a prompt may be on several ranks. */
  isSpread: boolean;
}

/** Adjacent completions of a prompt that this rank samples. */
export interface Piece {
  sample: PromptSample;
  /** Index of the first of them among all completions of the prompt. */
  first: number;
  count: number;
}

/**
 * Returns the sizes of a generation. Throws DS_ARGUMENT if its completions are not a multiple of
 * `generations`.
 */
export function sizesOf(
  { method, stepsPerGeneration, generations, mayBeSpread }: SizePlan,
  { batchSize, worldSize }: DataPlace,
  accumulation: number,
): Sizes {
  const steps = stepsPerGeneration ?? accumulation;
  const completions = batchSize * steps;
  if (completions % generations === 0) {
    return { batchSize, steps, prompts: completions / generations, isSpread: false };
  }
  const all = completions * worldSize;
  if (mayBeSpread && all % generations === 0) {
    return { batchSize, steps, prompts: all / generations, isSpread: true };
  }
  const expected = `a divisor of the ${completions} completions of a generation on a rank (batchSize x stepsPerGeneration)`;
  const hint = 'Change generations, batchSize, accumulation or stepsPerGeneration.';
  throw argumentError(`${method} generations`, expected, `${generations}`, hint);
}

/** Opens the prompts of `data`. Throws DS_ARGUMENT unless `data` is a dataset of prompts. */
export async function promptsOf(
  { method }: { readonly method: string },
  data: TrainerData<unknown, unknown>,
  place: DataPlace,
): Promise<Dataset<PromptSample>> {
  const opened = typeof data === 'function' ? await data(place) : data;
  const first = isDataset(opened) && opened.length > 0 ? await opened.get(0) : opened;
  if (!isDataset<PromptSample>(opened) || !isPromptSample(first)) {
    const expected = `a text.PromptDataset for ${method}()`;
    throw argumentError('Trainer train', expected, formatValue(first));
  }
  return opened;
}

/** Returns the prompt with the most tokens. */
export async function longestOf(prompts: Dataset<PromptSample>): Promise<PromptSample> {
  let longest = await prompts.get(0);
  for (let i = 1; i < prompts.length; ++i) {
    const sample = await prompts.get(i);
    if (sample.promptIds.length > longest.promptIds.length) longest = sample;
  }
  return longest;
}

/** Returns a loader of this rank's prompts; with `isSpread`, of all prompts. */
export function loaderOf(
  prompts: Dataset<PromptSample>,
  { settings, place, sizes }: Pick<SourceRequest, 'settings' | 'place'> & { sizes: Sizes },
): DataLoader<PromptSample, PromptSample[]> {
  const { seed } = place;
  const shuffle = settings.data.sampling === 'random';
  // If completions of a prompt may be on several ranks, every rank reads all prompts.
  const { rank, worldSize } = sizes.isSpread ? { rank: 0, worldSize: 1 } : place;
  const sampler = new DistributedSampler(prompts.length, { rank, worldSize, seed, shuffle });
  const collate = (samples: PromptSample[]): PromptSample[] => samples;
  return new DataLoader(prompts, { batchSize: sizes.prompts, sampler, dropLast: true, collate });
}

/** Returns this rank's completions of a generation, grouped by prompt. */
export function piecesOf(
  samples: readonly PromptSample[],
  generations: number,
  { batchSize, steps, isSpread }: Sizes,
  rank: number,
): Piece[] {
  const ownSize = batchSize * steps;
  const from = isSpread ? ownSize * rank : 0;
  return samples.flatMap((sample, i) => {
    const begin = Math.max(from, i * generations);
    const count = Math.min(from + ownSize, (i + 1) * generations) - begin;
    return count > 0 ? [{ sample, first: begin - i * generations, count }] : [];
  });
}
