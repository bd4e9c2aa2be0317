// RolloutSampler: samples completions on all ranks, and calls the reward functions for them.
import { onAllRanks } from '../../checkpoint/index.js';
import { DATA } from '../../engine/ranks.js';
import { DsError } from '../../errors.js';
import type { GenerateRequest, Generation } from '../../inference/index.js';
import type { CausalLM } from '../../models/causal-lm.js';
import { argumentError } from '../../runtime/input-errors.js';
import { required } from '../../runtime/required.js';
import type { PromptSample, Tokenizer } from '../../text/index.js';
import type { Score } from '../methods/advantages.js';
import type { SourceParts } from '../methods/method.js';
import { hashOf, judgedOf, type Outcome, requestOf, type Sampled } from './generation.js';
import { rewardsOf } from './reward.js';
import type { RolloutPlan } from './rollout-plan.js';
import type { Piece, Sizes } from './rollout-prompts.js';
import { type RolloutOptions, type Rollouts, rolloutsOf } from './rollouts.js';
import { type Phase, SharedPrompts } from './shared-prompts.js';
import { sampleWithTool } from './tools.js';

/** Maximum number of completions that a GPU samples at a time: their logits need much memory. */
const MAX_SEQUENCES = 512;
/** Number of completions that the CPU samples at a time. Fewer would take about the same time. */
const CPU_SEQUENCES = 32;

/** States of the engine that sampling does not read. */
const UNUSED_STATES = ['optim_states', 'hp_params', 'lp_grads', 'contiguous_grad_buffer'] as const;

/** The sampled completions of this rank's prompts. */
export interface SampledPieces {
  readonly pieces: readonly Piece[];
  /** Index of the pass over the data, which is part of the seeds. */
  readonly pass: number;
  /** Number of updates before the sampling. */
  readonly step: number;
  readonly sampled: readonly Sampled[];
  /** Number of completions that other ranks sampled. */
  readonly stolen: number;
  /** Seconds that the sampling took. */
  readonly seconds: number;
}

/** Completions that the reward functions are rating. */
export interface PiecesToScore extends SampledPieces {
  /** The prompt of each completion. */
  readonly each: readonly PromptSample[];
  readonly rewards: Promise<Score[][]>;
}

/** Facts about the run for a sampler. */
interface SamplerContext {
  readonly seed: number;
  readonly tokenizer: Tokenizer | null;
  readonly sizes: Sizes;
  readonly longest: PromptSample | null;
}

export class RolloutSampler {
  private rollouts: Rollouts;
  private readonly shared: SharedPrompts | null;
  private readonly ending = new AbortController();

  /**
   * Throws DS_ARGUMENT if the engine's ranks do not support an option. Throws DS_LIMIT if the
   * longest prompt and its completion exceed the model's maximum.
   */
  constructor(
    private readonly plan: RolloutPlan,
    private readonly parts: SourceParts,
    private readonly context: SamplerContext,
  ) {
    const { engine, job, world } = parts;
    requireRanks(plan, world.size > engine.dpWorldSize);
    const maxTokens = this.maxTokens(context.longest);
    this.rollouts = rolloutsOf(engine, { ...this.rolloutOptions(), maxTokens });
    this.shared = plan.workStealing && job.store ? new SharedPrompts(job, world) : null;
  }

  /** Samples completions and starts the reward functions. All ranks must call it. */
  async sample(pieces: readonly Piece[], pass: number): Promise<PiecesToScore> {
    const begin = performance.now();
    const { step } = this.parts.progress;
    const { completions: sampled, stolen } = await this.completionsOf(pieces, pass);
    const seconds = (performance.now() - begin) / 1000;
    return this.startRewards({ pieces, pass, step, sampled, stolen, seconds });
  }

  /** Starts the reward functions. outcomesOf() waits for their results. */
  startRewards(made: SampledPieces): PiecesToScore {
    const each = eachOf(made.pieces);
    const judged = judgedOf(each, made.sampled, { count: 1, step: made.step });
    const rewards = rewardsOf(this.plan.rewards, judged, this.ending.signal);
    rewards.catch(() => {}); // outcomesOf() throws the error on all ranks.
    return { ...made, each, rewards };
  }

  /**
   * Waits for the rewards. Resolves with the outcomes of all data ranks. All ranks must call it; if
   * a function fails on one rank, it rejects on all.
   */
  async outcomesOf({ sampled, stolen, rewards }: PiecesToScore): Promise<Outcome[]> {
    const { engine, world } = this.parts;
    const reports = await onAllRanks(world, 'judging rollouts', async () => ({
      rewards: await rewards,
      lengths: sampled.map(({ tokens }) => tokens.length),
      truncated: sampled.map(({ isTruncated }) => isTruncated),
      calls: this.plan.tool ? sampled.map(({ calls }) => calls) : [],
      stolen,
    }));
    // Ranks that divide a model among them have sampled the same completions; the first of them
    // counts.
    const firstRanks = engine.mesh.shape.ranksAlong(0, ...DATA);
    return firstRanks.map((rank) => required(reports[rank]) as Outcome);
  }

  /**
   * Enlarges the sampler for the longest prompt of an evaluation. Throws DS_LIMIT if it exceeds the
   * model's maximum.
   */
  async reserve(longest: PromptSample): Promise<void> {
    const maxTokens = this.maxTokens(longest);
    if (maxTokens <= this.rollouts.maxTokens) return;
    await this.rollouts.destroy();
    this.rollouts = rolloutsOf(this.parts.engine, { ...this.rolloutOptions(), maxTokens });
  }

  async destroy(): Promise<void> {
    const got = 'the end of the Trainer';
    this.ending.abort(
      argumentError(`${this.plan.method} rewards`, 'rewards before the Trainer ends', got),
    );
    await this.rollouts.destroy();
  }

  private get maxSequences(): number {
    const { plan, context } = this;
    const { batchSize, steps } = context.sizes;
    if (plan.maxSequences !== null) return plan.maxSequences;
    const isCpu = this.parts.engine.device.kind === 'cpu';
    return isCpu ? CPU_SEQUENCES : Math.max(128, Math.min(MAX_SEQUENCES, batchSize * steps));
  }

  private rolloutOptions(): RolloutOptions {
    const { plan, context, maxSequences } = this;
    const offload = plan.offloadStates ? UNUSED_STATES : [];
    const { tokenizer } = context;
    return { tokenizer, offload, maxSequences, batchInvariant: plan.exactRollouts };
  }

  /**
   * Returns the number of tokens of the longest prompt and its completion. Throws DS_LIMIT if it
   * exceeds the model's maximum.
   */
  private maxTokens(longest: PromptSample | null): number {
    const { sharedAnglesSeq } = this.parts.engine.module as CausalLM;
    const { maxNewTokens } = this.plan.sampling;
    if (!longest) return sharedAnglesSeq;
    const { promptIds, location } = longest;
    const max = promptIds.length + maxNewTokens;
    if (max <= sharedAnglesSeq) return max;
    throw new DsError({
      code: 'DS_LIMIT',
      op: `${this.plan.method} sampling.maxNewTokens`,
      expected: `at most ${sharedAnglesSeq - promptIds.length} with the prompt of ${location}: the model takes ${sharedAnglesSeq} tokens`,
      got: `${maxNewTokens}`,
      hint: 'Lower it, or drop long prompts: PromptDataset.open({ length }).',
    });
  }

  private async completionsOf(
    pieces: readonly Piece[],
    pass: number,
  ): Promise<{ completions: readonly Sampled[]; stolen: number }> {
    const { plan, shared, rollouts } = this;
    const { seed: run, tokenizer } = this.context;
    const { world } = this.parts;
    if (plan.tool) {
      if (!tokenizer)
        throw argumentError(`${plan.method} tool`, 'a Trainer with the option tokenizer', 'none');
      const each = pieces.flatMap(({ sample, first, count }) => {
        const request = requestOf(sample, plan.sampling, { run, pass, count: 1 });
        return Array.from({ length: count }, (_, i) => {
          const seed = hashOf(`${request.seed} ${first + i}`);
          return { sample, request: { ...request, seed } };
        });
      });
      const how = { tool: plan.tool, turns: plan.toolTurns, tokenizer };
      const max = plan.sampling.maxNewTokens;
      const completions = await sampleWithTool(rollouts, each, { ...how, max: max }, world);
      return { completions, stolen: 0 };
    }
    const requests = pieces.map(({ sample, first, count }): GenerateRequest => {
      const request = requestOf(sample, plan.sampling, { run, pass, count });
      return first === 0 ? request : { ...request, seed: hashOf(`${request.seed} ${first}`) };
    });
    if (shared) {
      const lanes = Math.max(1, Math.floor(this.maxSequences / plan.generations));
      const phase: Phase = (body) =>
        rollouts.phase((generate) =>
          body(async (request) => required((await generate([request]))[0]).map(sampledOf)),
        );
      const sampling = { ...plan.sampling, logprobs: 0 };
      return shared.sample(requests, { phase, lanes, sampling });
    }
    let completions: Sampled[] = [];
    await onAllRanks(world, 'sampling rollouts', async () => {
      completions = (await rollouts.generate(requests)).flat().map(sampledOf);
      return null;
    });
    return { completions, stolen: 0 };
  }
}

const sampledOf = ({ text, tokens, logprobs, finishReason }: Generation): Sampled => ({
  content: text,
  tokens,
  isTruncated: finishReason === 'length',
  logprobs: required(logprobs).map(({ logprob }) => logprob),
  mask: null,
  calls: 0,
});

/** Returns the prompt of each completion. */
const eachOf = (pieces: readonly Piece[]): PromptSample[] =>
  pieces.flatMap(({ sample, count }) => Array.from({ length: count }, () => sample));

/** Throws DS_ARGUMENT for options that the job's ranks do not support. */
function requireRanks({ method, tool, workStealing }: RolloutPlan, sharesModel: boolean): void {
  const got = 'ranks that share a model';
  if (tool && sharesModel) {
    // Each of these ranks would call the function, and their results might differ.
    throw argumentError(`${method} tool`, 'no tensor parallelism', got);
  }
  if (!workStealing) return;
  const op = `${method} workStealing`;
  if (sharesModel) throw argumentError(op, 'no tensor parallelism', got);
  if (tool)
    throw argumentError(op, 'no tool, because all ranks sample its turns together', 'a tool');
}
