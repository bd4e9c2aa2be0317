// RolloutSource: batches of completions that the model samples between updates.
import type { JsonObject } from '../../../types/json.js';
import { inUnison } from '../../checkpoint/index.js';
import type { DataLoader } from '../../data/index.js';
import type { Engine } from '../../engine/engine.js';
import { DATA } from '../../engine/ranks.js';
import { DsError } from '../../errors.js';
import type { CausalLM } from '../../models/causal-lm.js';
import { cpu } from '../../runtime/device.js';
import { refused } from '../../runtime/refused.js';
import { required } from '../../runtime/required.js';
import type { PromptSample } from '../../text/index.js';
import type { DataPlace, TrainerData } from '../data-source.js';
import type { Metrics, RolloutEvent } from '../events.js';
import { type AdvantageOptions, momentsOf, type Score, totalsOf } from '../methods/advantages.js';
import { MethodSource, type SourceGrounds, type SourceParts } from '../methods/method.js';
import type { PolicyMicroBatch } from '../methods/policy-objective.js';
import { requireExact } from './exact.js';
import {
  hashOf,
  judgedOf,
  metricNames,
  metricsOf,
  type Outcome,
  requestOf,
  type Sampled,
  type SamplingRequest,
} from './generation.js';
import { type RewardSettings, rewardsOf } from './reward.js';
import { batchOf, type Rollout } from './rollout-batch.js';
import {
  loaderOf,
  longestOf,
  type Piece,
  piecesOf,
  promptsOf,
  type Sizes,
  sizesOf,
} from './rollout-prompts.js';
import { type RolloutOptions, type Rollouts, rolloutsOf } from './rollouts.js';
import { referenceFor, score } from './scoring.js';
import { sampleWithTool, type TimedTool } from './tools.js';

/** How prompts become batches. */
export interface RolloutPlan extends Omit<AdvantageOptions, 'weights'> {
  /** The method, for errors. */
  readonly method: string;
  readonly rewards: readonly RewardSettings[];
  readonly sampling: SamplingRequest & { maxNewTokens: number; temperature: number };
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
  /** Most calls of the tool for a completion. */
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

/** Rollouts of micro-batches that wait for their updates. */
interface Pending {
  rollouts: Rollout[];
  /** Micro-batches, as places in `rollouts`. */
  order: number[][];
  /** Metrics of the generation, for its next micro-batch; null once they were given. */
  metrics: number[] | null;
}

/** Completions that a GPU samples at once: more of them need much memory for their logits. */
const MOST_SEQUENCES = 512;

/** The states that generation does not read. */
const NOT_GENERATING = ['optim_states', 'hp_params', 'lp_grads', 'contiguous_grad_buffer'] as const;

/** The pass of evaluations, for their seeds: each evaluation draws the same noise. */
const EVALUATION = -1;

const NOTHING: Pending = { rollouts: [], order: [], metrics: null };

/** Opens `data`, a text.PromptDataset, for this rank. Throws DS_ARGUMENT, DS_DATA. */
export async function openRollouts(
  plan: RolloutPlan,
  { data, settings, place, config }: SourceGrounds,
): Promise<MethodSource> {
  if (plan.exactRollouts) requireExact(plan.method, config);
  const accumulation = config.gradient_accumulation_steps;
  const sizes = sizesOf(plan, place, accumulation);
  const prompts = data === null ? null : await promptsOf(plan, data, place);
  const loader = prompts && loaderOf(prompts, { settings, place, sizes });
  const longest = prompts ? await longestOf(prompts) : null;
  return new RolloutSource(plan, loader, { settings, place, sizes, accumulation, longest });
}

class RolloutSource extends MethodSource {
  private parts: SourceParts | null = null;
  private rollouts: Rollouts | null = null;
  private reference: CausalLM | 'adapters' | null = null;
  private pending: Pending = NOTHING;
  /** Generations of the current epoch so far. */
  private served = 0;
  private readonly queue: RolloutEvent[] = [];
  private readonly names: readonly string[];
  private readonly run: number;
  private readonly pad: number;

  constructor(
    private readonly plan: RolloutPlan,
    private readonly prompts: DataLoader<PromptSample, PromptSample[]> | null,
    private readonly grounds: Pick<SourceGrounds, 'settings' | 'place'> & {
      sizes: Sizes;
      accumulation: number;
      longest: PromptSample | null;
    },
  ) {
    super();
    const functions = plan.rewards.map(({ name }) => name);
    this.names = metricNames(functions, plan.tool !== null);
    const { seed, tokenizer } = grounds.settings;
    this.run = seed;
    this.pad = tokenizer?.padId ?? tokenizer?.eosId ?? 0;
  }

  /** Micro-batches of an epoch on this rank. */
  get length(): number {
    const { steps } = this.grounds.sizes;
    return (this.prompts?.length ?? 0) * steps * this.plan.iterations;
  }

  begin(parts: SourceParts): void {
    const { engine } = parts;
    const { plan, grounds } = this;
    this.parts = parts;
    const { method, reference, needsReference } = plan;
    if (plan.tool && (engine.parts.ranks.tensorGroup?.size ?? 1) > 1) {
      // Each of these ranks would call the function, and results may differ.
      throw refused(`${method} tool`, 'no tensor parallelism', 'ranks that share each layer');
    }
    this.reference = referenceFor(method, engine.module, reference, needsReference);
    const maxTokens = this.mostTokens(engine, grounds.longest);
    this.rollouts = rolloutsOf(engine, { ...this.decoding(), maxTokens });
  }

  private decoding(): RolloutOptions {
    const { tokenizer } = this.grounds.settings;
    const { batchSize, steps } = this.grounds.sizes;
    // The CPU computes 32 rows about as fast as more of them; a GPU needs many.
    const isGpu = required(this.parts).engine.device.kind !== 'cpu';
    const maxSequences = Math.min(MOST_SEQUENCES, batchSize * steps);
    return {
      ...{ tokenizer, offload: this.plan.offloadStates ? NOT_GENERATING : [] },
      ...(isGpu && maxSequences > 128 && { maxSequences }),
      batchInvariant: this.plan.exactRollouts,
    };
  }

  private get weights(): number[] {
    return this.plan.rewards.map(({ weight }) => weight);
  }

  /** Room for the longest prompt and its completion. Throws DS_LIMIT if the model has less. */
  private mostTokens(engine: Engine, longest: PromptSample | null): number {
    const { alikeSeq } = engine.module as CausalLM;
    const { maxNewTokens } = this.plan.sampling;
    if (!longest) return alikeSeq;
    const { promptIds, location } = longest;
    const most = promptIds.length + maxNewTokens;
    if (most <= alikeSeq) return most;
    throw new DsError({
      code: 'DS_LIMIT',
      op: `${this.plan.method} sampling.maxNewTokens`,
      expected: `at most ${alikeSeq - promptIds.length} with the prompt of ${location}: the model takes ${alikeSeq} tokens`,
      got: `${maxNewTokens}`,
      hint: 'Lower it, or drop long prompts: PromptDataset.open({ length }).',
    });
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<never> {
    const { prompts } = this;
    if (!prompts) return;
    const isOver = (): boolean => this.served >= prompts.length;
    if (this.pending.order.length === 0 && isOver()) this.served = 0;
    const batches = prompts[Symbol.asyncIterator]();
    try {
      for (;;) {
        while (this.pending.order.length > 0) yield this.next() as never;
        if (isOver()) return;
        const pass = prompts.epoch;
        const { done, value } = await batches.next();
        if (done) return;
        const pending = await this.generation(value, pass);
        this.served++;
        this.pending = pending;
      }
    } finally {
      await batches.return(undefined);
    }
  }

  /** The next micro-batch of the generation. */
  private next(): PolicyMicroBatch {
    const { rollouts, order, metrics } = this.pending;
    const own = required(order[0]).map((place) => required(rollouts[place]));
    this.pending = { rollouts, order: order.slice(1), metrics: null };
    return {
      ...batchOf(own, this.pad, cpu()),
      metrics: { names: this.names, values: metrics },
    };
  }

  /** Samples, judges and scores the completions of prompts. All ranks call it. */
  private async generation(samples: readonly PromptSample[], pass: number): Promise<Pending> {
    const { progress } = required(this.parts);
    const { plan } = this;
    const begin = performance.now();
    const pieces = piecesOf(samples, plan.generations, this.grounds.sizes, this.place.rank);
    const each = pieces.flatMap(({ sample, count }) => Array.from({ length: count }, () => sample));
    const found = await this.sampledAndJudged(pieces, pass);
    const { sampled, outcomes, generated, judgedAt } = found;
    const rollouts = sampled.map(({ tokens, logprobs, mask, isTruncated }, i): Rollout => {
      const { promptIds } = required(each[i]);
      return {
        ...{ prompt: [...promptIds], tokens: [...tokens], sampler: [...logprobs] },
        ...{ old: plan.exactRollouts ? [...logprobs] : null, reference: null, advantage: 0 },
        ...{ counts: !(plan.maskTruncated && isTruncated), mask: mask && [...mask] },
      };
    });
    const order = this.orderOf(rollouts.length, pass);
    for (const places of order) this.score(places.map((place) => required(rollouts[place])));
    const scoredAt = performance.now();
    const all = outcomes.flatMap(({ rewards }) => rewards);
    const first = this.place.rank * rollouts.length;
    const advantages = plan.advantages({ rewards: all, rollouts, first });
    rollouts.forEach((one, i) => {
      one.advantage = required(advantages[i]);
    });
    const names = plan.rewards.map(({ name }) => name);
    const moments = groupMoments(totalsOf(all, this.weights), plan.generations);
    const numbers = metricsOf(outcomes, names, moments);
    const metrics = this.names.map((name) => numbers[name] ?? 0);
    const seconds = {
      generate: (generated - begin) / 1000,
      reward: (judgedAt - generated) / 1000,
      score: (scoredAt - judgedAt) / 1000,
    };
    const described = sampled.map((one, i) => ({
      prompt: required(each[i]).prompt,
      completion: one.content,
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
    return this.grounds.place;
  }

  /** Completions of this rank, and what all data ranks report. A failure reaches all ranks. */
  private async sampledAndJudged(
    pieces: readonly Piece[],
    pass: number,
  ): Promise<{ sampled: Sampled[]; outcomes: Outcome[]; generated: number; judgedAt: number }> {
    const { engine, world, progress } = required(this.parts);
    const { plan, run } = this;
    const found: Sampled[] = [];
    let generated = 0;
    if (plan.tool) found.push(...(await this.sampledWithTool(pieces, pass)));
    const each = pieces.flatMap(({ sample, count }) => Array.from({ length: count }, () => sample));
    const reports = await inUnison(world, 'sampling rollouts', async () => {
      if (!plan.tool) {
        const requests = pieces.map(({ sample, first, count }) => {
          const request = requestOf(sample, plan.sampling, { run, pass, count });
          return first === 0 ? request : { ...request, seed: hashOf(`${request.seed} ${first}`) };
        });
        const made = await required(this.rollouts).generate(requests);
        for (const { text, tokens, logprobs, finishReason } of made.flat()) {
          found.push({
            ...{ content: text, tokens, isTruncated: finishReason === 'length' },
            ...{ logprobs: required(logprobs).map(({ logprob }) => logprob), mask: null, calls: 0 },
          });
        }
      }
      generated = performance.now();
      const judged = judgedOf(each, found, { count: 1, step: progress.step });
      const rewards = await rewardsOf(plan.rewards, judged);
      return {
        rewards,
        lengths: found.map(({ tokens }) => tokens.length),
        truncated: found.map(({ isTruncated }) => isTruncated),
        calls: plan.tool ? found.map(({ calls }) => calls) : [],
      };
    });
    const judgedAt = performance.now();
    // Ranks that share a model have sampled the same; the first of them counts.
    const speakers = engine.mesh.shape.ranksAlong(0, ...DATA);
    const outcomes = speakers.map((rank) => required(reports[rank]) as Outcome);
    return { sampled: found, outcomes, generated, judgedAt };
  }

  private sampledWithTool(pieces: readonly Piece[], pass: number): Promise<Sampled[]> {
    const { plan, run, grounds } = this;
    const each = pieces.flatMap(({ sample, first, count }) =>
      Array.from({ length: count }, (_, i) => {
        const request = requestOf(sample, plan.sampling, { run, pass, count: 1 });
        return { sample, request: { ...request, seed: hashOf(`${request.seed} ${first + i}`) } };
      }),
    );
    const { tokenizer } = grounds.settings;
    if (!tokenizer) throw refused(`${plan.method} tool`, 'a tokenizer of the Trainer', 'none');
    const how = { tool: required(plan.tool), turns: plan.toolTurns, tokenizer };
    const most = plan.sampling.maxNewTokens;
    const { world } = required(this.parts);
    return sampleWithTool(required(this.rollouts), each, { ...how, most }, world);
  }

  private score(rollouts: Rollout[]): void {
    const { engine } = required(this.parts);
    const { plan, pad, reference, grounds } = this;
    const { temperature } = plan.sampling;
    const uses = grounds.sizes.steps * plan.iterations;
    const isStale = plan.needsOld || grounds.accumulation % uses !== 0;
    const old = isStale && !plan.exactRollouts;
    score(rollouts, { engine, pad, temperature, old, reference });
  }

  /** Places of the completions in micro-batches; shuffled if they belong to several updates. */
  private orderOf(count: number, pass: number): number[][] {
    const { sizes, accumulation, place } = this.grounds;
    const places = Array.from({ length: count }, (_, i) => i);
    if (sizes.steps > accumulation)
      shuffle(places, `${this.run} ${pass} ${this.served} ${place.rank}`);
    return Array.from({ length: sizes.steps }, (_, i) =>
      places.slice(i * sizes.batchSize, (i + 1) * sizes.batchSize),
    );
  }

  stateDict(): JsonObject {
    const { prompts, served, pending, place } = this;
    return {
      prompts: prompts?.stateDict() ?? null,
      served,
      ranks: place.worldSize,
      pending: pending as unknown as JsonObject,
    };
  }

  /** With another number of ranks, rollouts that wait for updates are dropped. */
  loadStateDict(state: JsonObject): void {
    const { prompts, place, grounds } = this;
    prompts?.loadStateDict(state.prompts as JsonObject);
    const isSame = state.ranks === place.worldSize;
    this.pending = isSame ? (state.pending as unknown as Pending) : NOTHING;
    if (isSame) {
      this.served = state.served as number;
      return;
    }
    const position = (prompts?.stateDict().served ?? 0) as number;
    const { prompts: size, isSpread } = grounds.sizes;
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
    const { engine } = required(this.parts);
    const prompts = await promptsOf(plan, data, place);
    const most = this.mostTokens(engine, await longestOf(prompts));
    if (most > required(this.rollouts).maxTokens) {
      await this.rollouts?.destroy();
      this.rollouts = rolloutsOf(engine, { ...this.decoding(), maxTokens: most });
    }
    const count = Math.min(prompts.length, maxBatches * batchSize * place.worldSize);
    const own: PromptSample[] = [];
    for (let i = place.rank; i < count; i += place.worldSize) own.push(await prompts.get(i));
    const pieces = own.map((sample) => ({ sample, first: 0, count: plan.evalGenerations }));
    const { outcomes } = await this.sampledAndJudged(pieces, EVALUATION);
    const rewards = outcomes.flatMap((one) => one.rewards);
    const names = plan.rewards.map(({ name }) => name);
    const totals = totalsOf(rewards, this.weights);
    const found = metricsOf(outcomes, names, groupMoments(totals, plan.evalGenerations));
    return { ...found, loss: -(found.reward ?? Number.NaN) };
  }

  async close(): Promise<void> {
    await this.rollouts?.destroy();
    await this.prompts?.close();
  }
}

function groupMoments(totals: readonly Score[], size: number) {
  const groups = Array.from({ length: totals.length / size }, (_, i) =>
    totals.slice(i * size, (i + 1) * size).filter((one) => one !== null),
  );
  return { totals, deviations: groups.map((group) => momentsOf(group).deviation) };
}

/** Fisher-Yates by numbers of the hash of `key`. */
function shuffle(places: number[], key: string): void {
  for (let i = places.length - 1; i > 0; --i) {
    const j = hashOf(`${key} ${i}`) % (i + 1);
    [places[i], places[j]] = [places[j] as number, places[i] as number];
  }
}
