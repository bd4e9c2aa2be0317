// RolloutSource: the data of grpo() and rloo(). The model samples completions of prompts between
// updates.
import type { JsonObject } from '../../../types/json.js';
import type { DataLoader } from '../../data/index.js';
import type { CausalLM } from '../../models/causal-lm.js';
import { cpu } from '../../runtime/device.js';
import { waitForEventLoop } from '../../runtime/event-loop.js';
import { required } from '../../runtime/required.js';
import type { PromptSample } from '../../text/index.js';
import type { DataPlace, TrainerData } from '../data-source.js';
import type { Metrics, RolloutEvent } from '../events.js';
import { computeMoments, type Score, sumRewards } from '../methods/advantages.js';
import { MethodSource, type SourceParts, type SourceRequest } from '../methods/method.js';
import type { PolicyMicroBatch } from '../methods/policy-objective.js';
import { requireExact } from './exact.js';
import { hashOf, metricNames, metricsOf, type Sampled } from './generation.js';
import { batchOf, type Rollout } from './rollout-batch.js';
import type { RolloutPlan } from './rollout-plan.js';
import {
  loaderOf,
  longestOf,
  piecesOf,
  promptsOf,
  type Sizes,
  sizesOf,
} from './rollout-prompts.js';
import { type PiecesToScore, RolloutSampler, type SampledPieces } from './rollout-sampler.js';
import { referenceFor, score } from './scoring.js';

/** The rollouts of a generation, and its micro-batches that were not yet used. */
interface Pending {
  rollouts: Rollout[];
  /** The micro-batches, as indices of `rollouts`. */
  order: number[][];
  /** Metrics of the generation. The first micro-batch reports them; afterwards null. */
  metrics: number[] | null;
}

/** A generation that was sampled before the updates on earlier generations were done. */
interface Ahead extends PiecesToScore {
  /** Index of the generation in its epoch of prompts, from 0. */
  readonly number: number;
}

/** An `Ahead` generation as a checkpoint stores it: with indices of prompts, without rewards. */
type SavedAhead = Omit<SampledPieces, 'pieces' | 'sampled'> & {
  number: number;
  pieces: { prompt: number; first: number; count: number }[];
  sampled: Sampled[];
};

/**
 * The pass over the data in the seeds of evaluations: all evaluations sample with the same seeds.
 */
const EVALUATION = -1;

const NOTHING: Pending = { rollouts: [], order: [], metrics: null };

/** Opens `data`, a text.PromptDataset, for this rank. Throws DS_ARGUMENT or DS_DATA. */
export async function openRollouts(
  plan: RolloutPlan,
  { data, settings, place, config }: SourceRequest,
): Promise<MethodSource> {
  if (plan.exactRollouts) requireExact(plan.method, config);
  const accumulation = config.gradient_accumulation_steps;
  const sizes = sizesOf(plan, place, accumulation);
  const prompts = data === null ? null : await promptsOf(plan, data, place);
  const loader = prompts && loaderOf(prompts, { settings, place, sizes });
  const longest = prompts ? await longestOf(prompts) : null;
  const get = (index: number) => required(prompts).get(index);
  return new RolloutSource(plan, loader, { settings, place, sizes, accumulation, longest, get });
}

class RolloutSource extends MethodSource {
  private parts: SourceParts | null = null;
  private sampler: RolloutSampler | null = null;
  private reference: CausalLM | 'adapters' | null = null;
  private pending: Pending = NOTHING;
  /** Generations that wait for their first update, in order. */
  private ahead: Ahead[] = [];
  /** Generations of a loaded checkpoint. Their rewards were not yet computed. */
  private saved: SavedAhead[] = [];
  /** Number of generations of the current epoch that have begun their first update. */
  private served = 0;
  private batches: AsyncGenerator<PromptSample[]> | null = null;
  private readonly queue: RolloutEvent[] = [];
  private readonly names: readonly string[];
  private readonly run: number;
  private readonly pad: number;

  constructor(
    private readonly plan: RolloutPlan,
    private readonly prompts: DataLoader<PromptSample, PromptSample[]> | null,
    private readonly context: Pick<SourceRequest, 'settings' | 'place'> & {
      sizes: Sizes;
      accumulation: number;
      longest: PromptSample | null;
      get: (index: number) => PromptSample | Promise<PromptSample>;
    },
  ) {
    super();
    const functions = plan.rewards.map(({ name }) => name);
    this.names = metricNames(functions, plan.tool !== null, plan);
    const { seed, tokenizer } = context.settings;
    this.run = seed;
    this.pad = tokenizer?.padId ?? tokenizer?.eosId ?? 0;
  }

  /** Number of micro-batches of an epoch on this rank. */
  get length(): number {
    return (this.prompts?.length ?? 0) * this.uses;
  }

  /** Number of micro-batches that train on one generation. */
  private get uses(): number {
    return this.context.sizes.steps * this.plan.iterations;
  }

  begin(parts: SourceParts): void {
    const { engine } = parts;
    const { plan, context } = this;
    this.parts = parts;
    const { method, reference, needsReference } = plan;
    this.reference = referenceFor(method, engine.module, reference, needsReference);
    const { settings, sizes, longest } = context;
    const { seed, tokenizer } = settings;
    this.sampler = new RolloutSampler(plan, parts, { seed, tokenizer, sizes, longest });
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<never> {
    const { prompts } = this;
    if (!prompts) return;
    await this.restartRewards();
    const isOver = (): boolean => this.served >= prompts.length;
    if (this.pending.order.length === 0 && isOver()) this.served = 0;
    // Every `accumulation`-th micro-batch of the epoch starts an update.
    for (let count = 0; ; ++count) {
      const isUpdate = count % this.context.accumulation === 0;
      if (this.pending.order.length === 0) {
        if (isOver()) return;
        const next = this.ahead.shift() ?? (await this.sampleNext());
        if (!next) return;
        this.pending = await this.scoreCompletions(next);
        this.served++;
      }
      if (isUpdate && this.plan.maxStaleness > 0) await this.sampleAhead();
      yield this.next() as never;
    }
  }

  override yieldToSampling(): Promise<void> | null {
    return this.ahead.length > 0 ? waitForEventLoop() : null;
  }

  /**
   * Samples generations in advance. It stops if the first update on the next generation is more
   * than `maxStaleness` updates away.
   */
  private async sampleAhead(): Promise<void> {
    const { maxSteps, progress } = required(this.parts);
    for (;;) {
      const between = this.pending.order.length + this.ahead.length * this.uses;
      const updates = this.updatesBefore(between);
      if (updates > this.plan.maxStaleness || progress.step + updates >= maxSteps) return;
      const next = await this.sampleNext();
      if (!next) return;
      this.ahead.push(next);
    }
  }

  /**
   * Returns the number of updates before the update that uses the micro-batch `count` positions
   * ahead.
   */
  private updatesBefore(count: number): number {
    const { accumulation } = this.context;
    const epoch = this.length;
    let rest = this.pending.order.length + epoch - this.served * this.uses;
    let updates = 0;
    // The last update of an epoch may have fewer micro-batches than the others.
    for (; count >= rest; rest = epoch) {
      updates += Math.ceil(rest / accumulation);
      count -= rest;
    }
    return updates + Math.floor(count / accumulation);
  }

  /**
   * Samples completions of the next prompts. Returns null if there are no prompts. All ranks must
   * call it.
   */
  private async sampleNext(): Promise<Ahead | null> {
    const prompts = required(this.prompts);
    const { sizes } = this.context;
    for (let tries = 0; tries < 2; ++tries) {
      this.batches ??= prompts[Symbol.asyncIterator]();
      const { done, value } = await this.batches.next();
      if (done) {
        this.batches = null;
        continue;
      }
      const pass = prompts.epoch;
      const size = sizes.prompts * (sizes.isSpread ? 1 : this.place.worldSize);
      const number = (prompts.stateDict().served as number) / size - 1;
      const pieces = piecesOf(value, this.plan.generations, sizes, this.place.rank);
      return { ...(await required(this.sampler).sample(pieces, pass)), number };
    }
    return null;
  }

  /** Starts the reward functions for the completions of a loaded checkpoint. */
  private async restartRewards(): Promise<void> {
    const { sampler, context } = this;
    for (const { pieces, ...item } of this.saved.splice(0)) {
      const read = pieces.map(async ({ prompt, first, count }) => ({
        sample: await context.get(prompt),
        first,
        count,
      }));
      const made = { ...item, pieces: await Promise.all(read) };
      this.ahead.push({ ...required(sampler).startRewards(made), number: item.number });
    }
  }

  /** Returns the next micro-batch of the generation, and removes it from the pending ones. */
  private next(): PolicyMicroBatch {
    const { rollouts, order, metrics } = this.pending;
    const ownRollouts = required(order[0]).map((place) => required(rollouts[place]));
    this.pending = { rollouts, order: order.slice(1), metrics: null };
    return {
      ...batchOf(ownRollouts, this.pad, cpu()),
      metrics: { names: this.names, values: metrics },
    };
  }

  /**
   * Waits for the rewards of a generation, computes log-probabilities and advantages, and adds an
   * event. All ranks must call it.
   */
  private async scoreCompletions(made: Ahead): Promise<Pending> {
    const { progress } = required(this.parts);
    const { plan } = this;
    const { each, sampled } = made;
    const begin = performance.now();
    const outcomes = await required(this.sampler).outcomesOf(made);
    const judgedAt = performance.now();
    const usesSampler = plan.exactRollouts || (plan.maxStaleness > 0 && !plan.corrects);
    const rollouts = sampled.map(({ tokens, logprobs, mask, isTruncated }, i): Rollout => {
      const { promptIds } = required(each[i]);
      return {
        prompt: [...promptIds],
        tokens: [...tokens],
        sampler: [...logprobs],
        old: usesSampler ? [...logprobs] : null,
        reference: null,
        advantage: 0,
        counts: !(plan.maskTruncated && isTruncated),
        mask: mask && [...mask],
      };
    });
    const order = this.orderOf(rollouts.length, made);
    for (const places of order) {
      this.score(
        places.map((place) => required(rollouts[place])),
        usesSampler,
      );
    }
    const scoredAt = performance.now();
    const all = outcomes.flatMap(({ rewards }) => rewards);
    const first = this.place.rank * rollouts.length;
    const advantages = plan.advantages({ rewards: all, rollouts, first });
    rollouts.forEach((rollout, i) => {
      rollout.advantage = required(advantages[i]);
    });
    const names = plan.rewards.map(({ name }) => name);
    const moments = groupMoments(sumRewards(all, this.weights), plan.generations);
    const numbers = metricsOf(outcomes, names, moments, {
      ...plan,
      staleness: progress.step - made.step,
    });
    const metrics = this.names.map((name) => numbers[name] ?? 0);
    const seconds = {
      generate: made.seconds,
      reward: (judgedAt - begin) / 1000,
      score: (scoredAt - judgedAt) / 1000,
    };
    const described = sampled.map((sampled, i) => ({
      prompt: required(each[i]).prompt,
      completion: sampled.content,
      rewards: Object.fromEntries(names.map((name, k) => [name, all[first + i]?.[k] ?? null])),
      advantage: required(advantages[i]),
    }));
    const { step, epoch } = progress;
    const reward = numbers.reward ?? 0;
    this.queue.push({ type: 'rollout', step, epoch, samples: described, reward, seconds });
    const uses = Array.from({ length: plan.iterations }, () => order).flat();
    return { rollouts, order: uses, metrics };
  }

  private get place(): DataPlace {
    return this.context.place;
  }

  private get weights(): number[] {
    return this.plan.rewards.map(({ weight }) => weight);
  }

  private score(rollouts: Rollout[], usesSampler: boolean): void {
    const { engine } = required(this.parts);
    const { plan, pad, reference, context } = this;
    const { temperature } = plan.sampling;
    const isStale = plan.needsOld || context.accumulation % this.uses !== 0;
    const old = isStale && !usesSampler;
    score(rollouts, { engine, pad, temperature, old, reference });
  }

  /**
   * Returns the micro-batches of a generation as indices of completions. If the generation is used
   * for several updates, the completions are shuffled.
   */
  private orderOf(count: number, { pass, number }: Ahead): number[][] {
    const { sizes, accumulation, place } = this.context;
    const places = Array.from({ length: count }, (_, i) => i);
    if (sizes.steps > accumulation) shuffle(places, `${this.run} ${pass} ${number} ${place.rank}`);
    return Array.from({ length: sizes.steps }, (_, i) =>
      places.slice(i * sizes.batchSize, (i + 1) * sizes.batchSize),
    );
  }

  stateDict(): JsonObject {
    const { prompts, served, pending, place } = this;
    const ahead = [
      ...this.saved,
      ...this.ahead.map(({ pieces, each: _, rewards: __, ...rest }) => ({
        ...rest,
        pieces: pieces.map(({ sample, ...piece }) => ({ prompt: sample.index, ...piece })),
      })),
    ];
    return {
      prompts: prompts?.stateDict() ?? null,
      served,
      ranks: place.worldSize,
      pending: pending as unknown as JsonObject,
      ahead: ahead as unknown as JsonObject[],
    };
  }

  /**
   * Continues at a position. If the number of ranks has changed, rollouts that wait for updates are
   * dropped, because they belong to other ranks.
   */
  loadStateDict(state: JsonObject): void {
    const { prompts, place, context } = this;
    prompts?.loadStateDict(state.prompts as JsonObject);
    const isSame = state.ranks === place.worldSize;
    this.pending = isSame ? (state.pending as unknown as Pending) : NOTHING;
    this.ahead = [];
    this.saved = isSame ? ((state.ahead ?? []) as unknown as SavedAhead[]) : [];
    if (isSame) {
      this.served = state.served as number;
      return;
    }
    const position = (prompts?.stateDict().served ?? 0) as number;
    const { prompts: size, isSpread } = context.sizes;
    this.served = Math.floor(position / (size * (isSpread ? 1 : place.worldSize)));
  }

  events(): RolloutEvent[] {
    return this.queue.splice(0);
  }

  override async evaluate(
    data: TrainerData<unknown, unknown>,
    { batchSize, maxBatches }: { batchSize: number; maxBatches: number },
  ): Promise<Metrics> {
    const { plan, place } = this;
    const sampler = required(this.sampler);
    const prompts = await promptsOf(plan, data, place);
    await sampler.reserve(await longestOf(prompts));
    const count = Math.min(prompts.length, maxBatches * batchSize * place.worldSize);
    const ownSamples: PromptSample[] = [];
    for (let i = place.rank; i < count; i += place.worldSize) ownSamples.push(await prompts.get(i));
    const pieces = ownSamples.map((sample) => ({ sample, first: 0, count: plan.evalGenerations }));
    const outcomes = await sampler.outcomesOf(await sampler.sample(pieces, EVALUATION));
    const rewards = outcomes.flatMap((outcome) => outcome.rewards);
    const names = plan.rewards.map(({ name }) => name);
    const totals = sumRewards(rewards, this.weights);
    const found = metricsOf(outcomes, names, groupMoments(totals, plan.evalGenerations));
    return { ...found, loss: -(found.reward ?? Number.NaN) };
  }

  async close(): Promise<void> {
    await this.sampler?.destroy();
    await this.batches?.return(undefined);
    await this.prompts?.close();
  }
}

function groupMoments(totals: readonly Score[], size: number) {
  const groups = Array.from({ length: totals.length / size }, (_, i) =>
    totals.slice(i * size, (i + 1) * size).filter((total) => total !== null),
  );
  return { totals, deviations: groups.map((group) => computeMoments(group).deviation) };
}

/**
 * Shuffles `places` in place (Fisher-Yates). Random numbers are hashes of `key`, so a resumed run
 * gets the same order.
 */
function shuffle(places: number[], key: string): void {
  for (let i = places.length - 1; i > 0; --i) {
    const j = hashOf(`${key} ${i}`) % (i + 1);
    [places[i], places[j]] = [places[j] as number, places[i] as number];
  }
}
