// RolloutSampler: samples completions of prompts on all ranks, and has them judged.
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

/** Completions that a GPU samples at once: more of them need much memory for their logits. */
const MAX_SEQUENCES = 512;
/** Completions that the CPU samples at once: 32 rows take about the time of fewer ones. */
const CPU_SEQUENCES = 32;

/** The states that generation does not read. */
const NOT_GENERATING = ['optim_states', 'hp_params', 'lp_grads', 'contiguous_grad_buffer'] as const;

/** Completions of this rank's prompts. */
export interface SampledPieces {
  readonly pieces: readonly Piece[];
  /** The pass over the data, which decides seeds. */
  readonly pass: number;
  /** Updates at the time of sampling. */
  readonly step: number;
  readonly sampled: readonly Sampled[];
  /** Completions that other ranks sampled. */
  readonly stolen: number;
  /** Seconds of sampling. */
  readonly seconds: number;
}

/** Completions that reward functions judge now. */
export interface PiecesToScore extends SampledPieces {
  /** The prompt of each completion. */
  readonly each: readonly PromptSample[];
  readonly rewards: Promise<Score[][]>;
}

/** Parts of the run that a sampler reads. */
interface SamplerGrounds {
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
   * Throws DS_ARGUMENT for options that the ranks of the engine do not support. Throws DS_LIMIT if
   * the model has no room for the longest prompt and its completion.
   */
  constructor(
    private readonly plan: RolloutPlan,
    private readonly parts: SourceParts,
    private readonly grounds: SamplerGrounds,
  ) {
    const { engine, job, world } = parts;
    requireRanks(plan, world.size > engine.dpWorldSize);
    const maxTokens = this.maxTokens(grounds.longest);
    this.rollouts = rolloutsOf(engine, { ...this.rolloutOptions(), maxTokens });
    this.shared = plan.workStealing && job.store ? new SharedPrompts(job, world) : null;
  }

  /** Samples completions and starts the reward functions. All ranks call it. */
  async sample(pieces: readonly Piece[], pass: number): Promise<PiecesToScore> {
    const begin = performance.now();
    const { step } = this.parts.progress;
    const { completions: sampled, stolen } = await this.completionsOf(pieces, pass);
    const seconds = (performance.now() - begin) / 1000;
    return this.startRewards({ pieces, pass, step, sampled, stolen, seconds });
  }

  /** Starts the reward functions. outcomesOf() waits for them. */
  startRewards(made: SampledPieces): PiecesToScore {
    const each = eachOf(made.pieces);
    const judged = judgedOf(each, made.sampled, { count: 1, step: made.step });
    const rewards = rewardsOf(this.plan.rewards, judged, this.ending.signal);
    rewards.catch(() => {}); // outcomesOf() throws it on all ranks.
    return { ...made, each, rewards };
  }

  /** Resolves with the outcomes of all data ranks. A failure reaches all ranks, which call it. */
  async outcomesOf({ sampled, stolen, rewards }: PiecesToScore): Promise<Outcome[]> {
    const { engine, world } = this.parts;
    const reports = await onAllRanks(world, 'judging rollouts', async () => ({
      rewards: await rewards,
      lengths: sampled.map(({ tokens }) => tokens.length),
      truncated: sampled.map(({ isTruncated }) => isTruncated),
      calls: this.plan.tool ? sampled.map(({ calls }) => calls) : [],
      stolen,
    }));
    // Ranks that share a model have sampled the same; the first of them counts.
    const speakers = engine.mesh.shape.ranksAlong(0, ...DATA);
    return speakers.map((rank) => required(reports[rank]) as Outcome);
  }

  /** Makes room for the longest prompt of an evaluation. Throws DS_LIMIT if the model has less. */
  async makeRoom(longest: PromptSample): Promise<void> {
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
    const { plan, grounds } = this;
    const { batchSize, steps } = grounds.sizes;
    if (plan.maxSequences !== null) return plan.maxSequences;
    const isCpu = this.parts.engine.device.kind === 'cpu';
    return isCpu ? CPU_SEQUENCES : Math.max(128, Math.min(MAX_SEQUENCES, batchSize * steps));
  }

  private rolloutOptions(): RolloutOptions {
    const { plan, grounds, maxSequences } = this;
    const offload = plan.offloadStates ? NOT_GENERATING : [];
    const { tokenizer } = grounds;
    return { tokenizer, offload, maxSequences, batchInvariant: plan.exactRollouts };
  }

  /** Room for the longest prompt and its completion. Throws DS_LIMIT if the model has less. */
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
    const { seed: run, tokenizer } = this.grounds;
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

/** The prompt of each completion. */
const eachOf = (pieces: readonly Piece[]): PromptSample[] =>
  pieces.flatMap(({ sample, count }) => Array.from({ length: count }, () => sample));

/** Throws DS_ARGUMENT for options that the ranks of the job do not support. */
function requireRanks({ method, tool, workStealing }: RolloutPlan, sharesModel: boolean): void {
  const got = 'ranks that share a model';
  if (tool && sharesModel) {
    // Each of these ranks would call the function, and results may differ.
    throw argumentError(`${method} tool`, 'no tensor parallelism', got);
  }
  if (!workStealing) return;
  const op = `${method} workStealing`;
  if (sharesModel) throw argumentError(op, 'no tensor parallelism', got);
  if (tool)
    throw argumentError(op, 'no tool, because all ranks sample its turns together', 'a tool');
}
